from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from pipeline.limits import Budgets, Limits
from proxy.config import SCHEMA, Config, load_config, read_config
from proxy.config_errors import ConfigError, Problem, general
from proxy.config_rules import exposure
from proxy.config_sources import BrokenListError, Origin, from_text, variable_path
from proxy.config_tables import UpstreamConfig
from proxy.config_template import template, toml_value
from proxy.config_variables import variable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proxy.config_toml import KeyPath

SECRET = "sk-abcdefghijklmnop"
PORT = "a whole number, at least 0, at most 65535"
TWO_OF_A_KIND = """\
[[upstream]]
name = "a"
base_url = "https://h/v1"
[[upstream]]
name = "b"
base_url = "https://i/v1"
"""


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the machine's own configuration and state out of the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def no_names(_host: str) -> Iterable[str]:
    raise OSError("no network in tests")


def load(
    text: str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[KeyPath, object] | None = None,
    *,
    directory: Path | None = None,
) -> Config:
    if text is not None:
        Path("sottovoce.toml").write_text(text)
    return load_config(flags=flags, environ=environ or {}, directory=directory, resolve=no_names)


def problems(
    text: str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[KeyPath, object] | None = None,
) -> list[tuple[str, str | None]]:
    """Return message and hint of everything that is wrong, without the folder of the file."""
    with pytest.raises(ConfigError) as caught:
        load(text, environ, flags)
    return [(_short(problem), problem.hint) for problem in caught.value.problems]


def _short(problem: Problem) -> str:
    where = (problem.where or "").rpartition("/")[2]
    return f"{where}: {problem.message}" if where else problem.message


# Defaults, and the order of the layers.


def test_without_any_setting_there_are_the_defaults_of_the_design() -> None:
    config = load()
    assert config.file is None
    assert (config.server.host, config.server.port) == ("127.0.0.1", 7688)
    assert config.server.tenancy == "single"
    assert config.server.keepalive_seconds == 15
    assert config.recall.budgets.as_budgets() == Budgets(
        rounds=10,
        executions=24,
        result_bytes=512 * 1024,
        extra_tokens=128_000,
        stalled_rounds=2,
        seconds=300,
    )
    assert config.limits.as_limits() == Limits(
        stream_bytes=64 << 20,
        retained_bytes=16 << 20,
        deferred_bytes=1 << 20,
        hidden_bytes=1 << 20,
        event_bytes=4 << 20,
        frames=100_000,
        items=65_535,
        error_bytes=64 << 10,
    )
    assert config.source("server", "port").origin is Origin.DEFAULT
    assert config.model_dump() == Config().model_dump()


def test_the_default_pair_serves_codex_and_everybody_else() -> None:
    config = load()
    assert config.upstream_for(codex=True).base_url == "https://chatgpt.com/backend-api/codex"
    assert config.upstream_for(codex=False).base_url == "https://api.openai.com/v1"
    config = load(environ={"OPENAI_BASE_URL": "http://gateway:8080/openai/v1/"})
    assert config.upstream_for(codex=True).kind == "codex"
    assert config.upstream_for(codex=False).base_url == "http://gateway:8080/openai/v1"
    assert str(config.source("upstream", 0, "base_url")) == "OPENAI_BASE_URL"


def test_a_single_upstream_takes_everything() -> None:
    config = load(flags={("upstream",): "https://host/v1"}, environ={"OPENAI_BASE_URL": "nonsense"})
    assert config.upstream_for(codex=True) is config.upstream_for(codex=False)
    assert [(found.name, found.kind) for found in config.upstream] == [("responses", "responses")]


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://chatgpt.com/backend-api/codex", "codex"),
        ("http://127.0.0.1:1/backend-api/codex/", "codex"),
        ("http://127.0.0.1:1/v1", "responses"),
    ],
)
def test_the_kind_is_read_from_the_url_unless_it_is_given(url: str, kind: str) -> None:
    assert load(flags={("upstream",): url}).upstream[0].kind == kind
    config = load(flags={("upstream",): url, ("upstream", 0, "kind"): "responses"})
    assert config.upstream[0].kind == "responses"
    assert str(config.source("upstream", 0, "kind")) == "--kind"


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("responses", "https://api.openai.com/v1"),
        ("codex", "https://chatgpt.com/backend-api/codex"),
        ("openai_compat", "https://api.openai.com/v1"),
        ("anthropic", "https://api.anthropic.com"),
        ("ollama", "http://localhost:11434"),
    ],
)
def test_a_kind_that_is_given_has_a_place_of_its_own(kind: str, url: str) -> None:
    upstream = load(f"[[upstream]]\nkind = '{kind}'").upstream[0]
    assert (upstream.name, upstream.base_url) == (kind, url)


def test_flag_beats_environment_beats_file_beats_default() -> None:
    text = "[server]\nport = 1\nhost = '::1'\nkeepalive_seconds = 3\n"
    environ = {"SOTTOVOCE_SERVER__PORT": "2", "SOTTOVOCE_SERVER__HOST": "localhost"}
    config = load(text, environ, {("server", "port"): 3, ("server", "host"): None})
    server = config.server
    assert (server.port, server.host, server.keepalive_seconds) == (3, "localhost", 3)
    assert str(config.source("server", "port")) == "--port"
    assert str(config.source("server", "host")) == "SOTTOVOCE_SERVER__HOST"
    assert str(config.source("server", "keepalive_seconds")).endswith("sottovoce.toml:4")
    assert str(config.source("server", "drain_seconds")) == "default"


def test_the_upstream_flag_replaces_those_of_file_and_environment() -> None:
    text = '[[upstream]]\nname = "mine"\nbase_url = "https://a/v1"\napi_key = "k"\n'
    config = load(text, {"SOTTOVOCE_UPSTREAM__0__TIMEOUT_MS": "5"}, {("upstream",): "https://b/v1"})
    (upstream,) = config.upstream
    assert upstream == UpstreamConfig(name="responses", kind="responses", base_url="https://b/v1")
    assert str(config.source("upstream", 0, "base_url")) == "--upstream"


def test_files_are_looked_for_here_and_then_at_the_user(own_directories: Path) -> None:
    user = own_directories / "xdg" / "sottovoce" / "sottovoce.toml"
    user.parent.mkdir(parents=True)
    user.write_text("[server]\nport = 1\n")
    assert load().file == user
    (own_directories / "sottovoce.toml").write_text("[server]\nport = 2\n")
    assert load().server.port == 2
    assert load_config(config_file=user, environ={}).server.port == 1


def test_paths_are_made_whole(own_directories: Path) -> None:
    assert load("[server]\nstate_dir = 'here'").server.state_dir == own_directories / "here"
    assert "~" not in str(load("[server]\nstate_dir = '~/x'").server.state_dir)


# The environment.


def test_every_key_has_a_twin_that_leads_back_to_it() -> None:
    for path in SCHEMA.fields:
        concrete: KeyPath = tuple(0 if part == "*" else part for part in path)
        assert variable_path(variable(concrete)) == concrete
        assert general(concrete) == path


@pytest.mark.parametrize(
    ("name", "text", "path", "value"),
    [
        ("RECALL__ENABLED", "off", ("recall", "enabled"), False),
        ("TELEMETRY__METRICS", "TRUE", ("telemetry", "metrics"), True),
        ("RECALL__BUDGETS__ROUNDS", "4", ("recall", "budgets", "rounds"), 4),
        ("RECALL__BUDGETS__SECONDS", "1.5", ("recall", "budgets", "seconds"), 1.5),
        ("SERVER__ALLOWED_HOSTS", "a, b,", ("server", "allowed_hosts"), ("a", "b")),
        ("SERVER__ALLOWED_HOSTS", '["a,b"]', ("server", "allowed_hosts"), ("a,b",)),
        ("SERVER__TENANCY", "credential", ("server", "tenancy"), "credential"),
    ],
)
def test_twins_are_read_by_the_kind_of_their_key(
    name: str, text: str, path: tuple[str, ...], value: object
) -> None:
    config = load(environ={f"SOTTOVOCE_{name}": text})
    found: object = config
    for part in path:
        found = getattr(found, part)
    assert found == value
    assert str(config.source(*path)) == f"SOTTOVOCE_{name}"


def test_upstreams_can_be_built_and_changed_by_variables() -> None:
    environ = {
        "SOTTOVOCE_UPSTREAM__0__BASE_URL": "https://a/v1",
        "SOTTOVOCE_UPSTREAM__1__BASE_URL": "https://a/backend-api/codex",
        "SOTTOVOCE_UPSTREAM__1__MAX_CONNECTIONS": "7",
    }
    config = load(environ=environ)
    assert [found.name for found in config.upstream] == ["responses", "codex"]
    assert config.upstream[1].max_connections == 7
    config = load('[[upstream]]\nbase_url = "https://b/v1"\n', {"SOTTOVOCE_UPSTREAM__0__NAME": "x"})
    assert (config.upstream[0].name, config.upstream[0].base_url) == ("x", "https://b/v1")


def test_empty_and_foreign_variables_count_for_nothing() -> None:
    environ = {"SOTTOVOCE_SERVER__PORT": "", "SOTTOVOCE_CODEX": "/bin/codex", "SOTTO": "x"}
    assert load(environ=environ).server.port == 7688


@given(st.text(), st.sampled_from([field.annotation for field in SCHEMA.fields.values()]))
def test_any_text_of_a_variable_is_read_or_left(text: str, annotation: object) -> None:
    try:
        assert from_text(text, annotation) is not None
    except BrokenListError:
        # The one thing that is refused here: what begins like a JSON list and is none.
        assert get_origin(annotation) is tuple
        assert text.lstrip().startswith(("[", "{", '"'))


# What is wrong, where, and what to do.


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "[server]\n\nprot = 1",
            "sottovoce.toml:3: unknown key server.prot",
            "did you mean server.port?",
        ),
        ("[sever]\nport = 1", "sottovoce.toml:1: unknown key sever", "did you mean server?"),
        (
            "port = 1",
            "sottovoce.toml:1: unknown key port",
            "server.port exists: the key stands in the wrong table",
        ),
        (
            "[telemetry]\nxyz = 1",
            "sottovoce.toml:2: unknown key telemetry.xyz",
            "[telemetry] knows log_format, metrics, transcripts, otlp_endpoint",
        ),
        (
            "[[upstream]]\nbase_url = 'https://h/v1'\nkynd = 'codex'",
            "sottovoce.toml:3: unknown key upstream.0.kynd",
            "did you mean upstream.0.kind?",
        ),
        (
            "[server]\nport = '1'",
            f'sottovoce.toml:2: server.port: expected {PORT}, got "1"',
            None,
        ),
        (
            "[server]\nport = 1.5",
            f"sottovoce.toml:2: server.port: expected {PORT}, got 1.5",
            None,
        ),
        (
            "[recall]\nenabled = 1",
            "sottovoce.toml:2: recall.enabled: expected true or false, got 1",
            None,
        ),
        (
            "[recall]\ninject = 'never'",
            'sottovoce.toml:2: recall.inject: expected one of with_tools, always, got "never"',
            None,
        ),
        (
            "[server]\nallowed_hosts = [1]",
            "sottovoce.toml:2: server.allowed_hosts: expected a list of texts, got 1",
            None,
        ),
        ("server = 1", "sottovoce.toml:1: server: expected a table, got 1", None),
        (
            "upstream = []",
            "sottovoce.toml:1: upstream: expected tables, each headed [[upstream]], got a list",
            None,
        ),
        (
            "[[upstream]]\nname = 'x'",
            "sottovoce.toml:1: upstream.0.base_url is missing",
            None,
        ),
        (
            "[[upstream]]\nbase_url = 'https://h/v1'\napi_key = 7",
            "sottovoce.toml:3: upstream.0.api_key: expected a text, got something else",
            None,
        ),
        ("a =", "sottovoce.toml:1: is not TOML: Invalid value", None),
        (
            "[server]\nhost = 'http://x'",
            "sottovoce.toml:2: server.host: expected an address or a name, without scheme or port",
            None,
        ),
    ],
)
def test_a_wrong_file_is_told_by_line(text: str, message: str, hint: str | None) -> None:
    assert problems(text) == [(message, hint)]


def test_all_that_is_wrong_is_told_at_once() -> None:
    found = problems("[server]\nport = 'x'\n[recall]\nfoo = 1\n", {"SOTTOVOCE_LIMITS__ITEMS": "no"})
    assert [message.partition(":")[0] for message, _ in found] == [
        "sottovoce.toml",
        "sottovoce.toml",
        "SOTTOVOCE_LIMITS__ITEMS",
    ]


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"SOTTOVOCE_SERVER__PRT": "1"}, "SOTTOVOCE_SERVER__PRT: unknown key server.prt"),
        ({"SOTTOVOCE_FOO__BAR": "1"}, "SOTTOVOCE_FOO__BAR: unknown key foo"),
        ({"SOTTOVOCE_SERVER_PORT": "1"}, "SOTTOVOCE_SERVER_PORT: sets nothing"),
        (
            {"SOTTOVOCE_RECALL__ENABLED": "maybe"},
            'SOTTOVOCE_RECALL__ENABLED: recall.enabled: expected true or false, got "maybe"',
        ),
        (
            {"SOTTOVOCE_UPSTREAM__3__NAME": "x"},
            "SOTTOVOCE_UPSTREAM__3__NAME: there is no place for upstream.3.name",
        ),
        (
            {"OPENAI_BASE_URL": "nonsense"},
            "OPENAI_BASE_URL: upstream.0.base_url: expected a URL like https://api.openai.com/v1",
        ),
    ],
)
def test_a_wrong_variable_is_told_by_name(environ: dict[str, str], message: str) -> None:
    assert [found for found, _ in problems(environ=environ)] == [message]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "ftp://h",
        "http://",
        "http://h:99999/v1",
        "http://u:p@h/v1",
        "http://h/?a=1",
        "http://h/ v1",
        "http://[::1/",
    ],
)
def test_an_upstream_needs_a_plain_url(url: str) -> None:
    ((message, _),) = problems(flags={("upstream",): url})
    assert message.startswith("--upstream: upstream.0.base_url: ")
    assert "u:p" not in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[recall]\nstore = 'postgresql://u:p@h/d'",
            "recall.store: this version keeps memory in sqlite",
        ),
        (
            "[[upstream]]\nthink = true\nbase_url = 'https://h/v1'",
            "upstream.0.think: has no effect on kind responses, only on ollama",
        ),
        (
            "[[upstream]]\nbase_url = 'https://h/v1'\napi_key_env = 'NOT_SET'",
            "upstream.0.api_key_env: the variable NOT_SET is not set",
        ),
        (
            "[[upstream]]\nbase_url = 'https://h/v1'\nkey_file = '/dev/null/k'",
            "upstream.0.key_file: is of no use without cert_file",
        ),
        ("[server]\ntenancy = 'token'", "server.tenancy: token needs access tokens"),
    ],
)
def test_what_can_not_work_is_refused(text: str, message: str) -> None:
    assert message in [found.partition(": ")[2] for found, _ in problems(text)]


def test_a_file_that_can_not_be_read_is_an_error(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(ConfigError, match="there is no such file") as caught:
        load_config(config_file=missing, environ={})
    assert caught.value.problems[0].hint == "`sottovoce config init` writes one"
    with pytest.raises(ConfigError, match="can't be read"):
        load_config(config_file=tmp_path, environ={})
    (tmp_path / "latin.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_config(config_file=tmp_path / "latin.toml", environ={})


# Secrets and access.


def test_keys_are_secret_wherever_they_come_from() -> None:
    text = f'[[upstream]]\nbase_url = "https://h/v1"\napi_key = "{SECRET}"\n'
    config = load(text)
    credential = config.upstream[0].credential
    assert credential is not None
    assert credential.get_secret_value() == SECRET
    assert SECRET not in repr(config)
    assert SECRET not in str(config.model_dump())
    text = '[[upstream]]\nbase_url = "https://h/v1"\napi_key_env = "MY_KEY"\n'
    config = load(text, {"MY_KEY": SECRET})
    assert config.upstream[0].credential == SecretStr(SECRET)
    assert SECRET not in repr(config)


@pytest.mark.parametrize("environ", [{"MY_KEY": "sk-of-the-variable"}, {}])
def test_a_key_that_is_given_comes_before_one_that_is_named(environ: dict[str, str]) -> None:
    text = (
        f"[[upstream]]\nbase_url = 'https://h/v1'\napi_key = '{SECRET}'\napi_key_env = 'MY_KEY'\n"
    )
    config = load(text, environ)
    assert config.upstream[0].credential == SecretStr(SECRET)
    (warning,) = config.warnings
    assert warning.message == "upstream.0.api_key_env: has no effect beside api_key"
    assert str(warning.where).endswith(":4")
    assert SECRET not in str(warning)


def test_no_error_shows_a_secret() -> None:
    text = f'[[upstream]]\nbase_url = "https://h/v1"\nname = "{SECRET} x"\napi_key = ["{SECRET}"]\n'
    assert SECRET not in str(problems(text))
    assert SECRET not in str(problems(f'[server]\naccess_token_env = "{SECRET}"'))
    with pytest.raises(ValidationError) as caught:
        UpstreamConfig(name=SECRET + " ", kind="codex", base_url="https://h")
    assert SECRET not in str(caught.value)


def test_access_tokens_have_names_and_make_tenants() -> None:
    text = '[server]\naccess_token_env = "TOKENS"\n'
    config = load(text, {"TOKENS": "svt_one, bob=svt_two,"})
    assert config.access_tokens == {"default": SecretStr("svt_one"), "bob": SecretStr("svt_two")}
    assert config.server.tenancy == "token"
    assert "svt_one" not in repr(config)
    assert load(text + 'tenancy = "single"', {"TOKENS": "svt_x"}).server.tenancy == "single"


@pytest.mark.parametrize(
    "value", ["", " , ", "bob=xyz", "b b=svt_x", "a=svt_x,a=svt_y", "svt_", "="]
)
def test_wrong_access_tokens_are_refused_unshown(value: str) -> None:
    ((message, _),) = problems('[server]\naccess_token_env = "TOKENS"\n', {"TOKENS": value})
    assert message.startswith("TOKENS: ")
    assert "xyz" not in message


def test_listening_beyond_loopback_takes_a_flag_and_a_token() -> None:
    assert exposure(load()) == []
    assert exposure(load(flags={("server", "host"): "localhost"})) == []
    by_file = exposure(load("[server]\nhost = '0.0.0.0'"))
    assert [problem.hint for problem in by_file][:1] == ["sottovoce serve --host 0.0.0.0"]
    assert len(by_file) == 2
    flags = {("server", "host"): "0.0.0.0"}
    (problem,) = exposure(load(flags=flags))
    assert "needs an access token" in problem.message
    assert exposure(load('[server]\naccess_token_env = "T"\n', {"T": "svt_x"}, flags)) == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "0.0.0.0"])
def test_an_upstream_that_is_ourselves_is_refused(host: str) -> None:
    ((message, hint),) = problems(environ={"OPENAI_BASE_URL": f"http://{host}:7688/v1"})
    assert (
        message
        == f"OPENAI_BASE_URL: upstream openai (http://{host}:7688/v1) is this proxy's own address"
    )
    assert hint is not None
    assert load(environ={"OPENAI_BASE_URL": f"http://{host}:7689/v1"}).upstream[0].name == "openai"


# The template.


def uncommented(text: str) -> str:
    return "\n".join(
        line[1:] if line.startswith("#") and not line.startswith("# ") else line
        for line in text.splitlines()
    )


def test_the_template_is_the_defaults_with_and_without_its_comment_signs() -> None:
    assert load(template()).model_dump() == Config().model_dump()
    assert load(uncommented(template())).model_dump() == Config().model_dump()


def test_the_template_explains_every_key() -> None:
    lines = template().splitlines()
    for path, field in SCHEMA.fields.items():
        at = next(i for i, line in enumerate(lines) if line.startswith(f"#{path[-1]} = "))
        assert lines[at - 1].startswith("# "), path
        assert f"# {field.description}" in lines, path


@given(
    st.recursive(
        st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f")),
        lambda inner: st.lists(inner).map(tuple),
    )
)
def test_what_is_written_as_toml_is_read_back(value: object) -> None:
    def plain(item: object) -> object:
        return [plain(part) for part in item] if isinstance(item, tuple) else item

    assert tomllib.loads(f"a = {toml_value(value)}")["a"] == plain(value)


def test_an_empty_table_says_nothing_about_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "sottovoce.toml"
    file.write_text("[server]\n")
    environ = {"TOKENS": f"alice=svt_{'a' * 40}", "SOTTOVOCE_SERVER__ACCESS_TOKEN_ENV": "TOKENS"}
    config = load_config(config_file=file, environ=environ, directory=tmp_path)
    assert config.server.tenancy == "token"


# ------------------------------------------------------------------------ variables of ours


def warnings(environ: dict[str, str], text: str = "") -> list[tuple[str, str | None]]:
    config = load(text, environ)
    return [(str(found), found.hint) for found in config.warnings]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SOTTOVOCE_PORT", "SOTTOVOCE_SERVER__PORT"),
        ("SOTTOVOCE_STATE_DIR", "SOTTOVOCE_SERVER__STATE_DIR"),
        ("SOTTOVOCE_PLUGIN", "SOTTOVOCE_PLUGINS"),
        ("SOTTOVOCE_TRANSCRIPT", "SOTTOVOCE_TELEMETRY__TRANSCRIPTS"),
        ("SOTTOVOCE_BASE_URL", "SOTTOVOCE_UPSTREAM__0__BASE_URL"),
        ("SOTTOVOCE_UPSTREAM", "SOTTOVOCE_UPSTREAM__0__BASE_URL"),
        ("SOTTOVOCE_UPSTREAM_URL", "SOTTOVOCE_UPSTREAM__0__BASE_URL"),
    ],
)
def test_a_variable_that_sets_nothing_is_told_with_the_nearest(name: str, meant: str) -> None:
    assert warnings({name: "1"}) == [(f"{name}: sets nothing", f"did you mean {meant}?")]


def test_a_variable_that_is_like_no_key_is_told_too() -> None:
    assert warnings({"SOTTOVOCE_XYZZY": "1"}) == [
        (
            "SOTTOVOCE_XYZZY: sets nothing",
            "a key's variable is SOTTOVOCE_TABLE__KEY; `sottovoce config show` lists the keys",
        )
    ]


def test_variables_that_have_a_meaning_are_not_told() -> None:
    text = (
        "[server]\naccess_token_env = 'SOTTOVOCE_TOKENS'\n"
        "[[upstream]]\nbase_url = 'https://h/v1'\napi_key_env = 'SOTTOVOCE_KEY'\n"
    )
    environ = {
        "SOTTOVOCE_TOKENS": "svt_abc",
        "SOTTOVOCE_KEY": "sk-abc",
        "SOTTOVOCE_MODEL": "m",
        "SOTTOVOCE_SERVER__PORT": "1",
        "SOTTOVOCE_EMPTY": "",
        "_SOTTOVOCE_COMPLETE": "bash_source",
    }
    assert warnings(environ, text) == []


@pytest.mark.parametrize("service", ["SOTTOVOCE", "SOTTOVOCE_SERVER"])
def test_a_cluster_may_tell_where_a_service_of_our_name_is(service: str) -> None:
    environ = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "7688",
        f"{service}_SERVICE_PORT_HTTP": "7688",
        f"{service}_PORT": "tcp://10.0.0.1:7688",
        f"{service}_PORT_7688_TCP": "tcp://10.0.0.1:7688",
        f"{service}_PORT_7688_TCP_ADDR": "10.0.0.1",
    }
    assert warnings(environ) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SOTTOVOCE_PLUGINS", '["a'),
        ("SOTTOVOCE_PLUGINS", '["a"'),
        ("SOTTOVOCE_PLUGINS", '["a",]'),
        ("SOTTOVOCE_PLUGINS", "['a']"),
        ("SOTTOVOCE_PLUGINS", '{"a": 1}'),
        ("SOTTOVOCE_PLUGINS", '"a","b"'),
        ("SOTTOVOCE_SERVER__ALLOWED_HOSTS", "[1,"),
        ("SOTTOVOCE_SERVER__ALLOWED_HOSTS", "[" * 100_000),
        ("SOTTOVOCE_SERVER__ALLOWED_ORIGINS", '["a"] ["b"]'),
    ],
)
def test_a_list_that_is_broken_json_is_told_by_its_variable(name: str, text: str) -> None:
    key = name.removeprefix("SOTTOVOCE_").lower().replace("__", ".")
    assert problems(environ={name: text}) == [
        (f"{name}: {key}: is no JSON list", 'write a,b or ["a","b"]')
    ]


def test_a_list_of_other_things_is_told_by_its_variable() -> None:
    ((message, _),) = problems(environ={"SOTTOVOCE_PLUGINS": "[1, 2]"})
    assert message == "SOTTOVOCE_PLUGINS: plugins: expected a list of texts, got 1"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a", ("a",)),
        (" a, b ,", ("a", "b")),
        ('["a,b", "c"]', ("a,b", "c")),
        ("[]", ()),
        ("[::1],proxy.lan", ("[::1]", "proxy.lan")),
        ("[fe80::1%eth0]", ("[fe80::1%eth0]",)),
    ],
)
def test_a_list_is_written_with_commas_or_as_json(text: str, values: tuple[str, ...]) -> None:
    config = load(environ={"SOTTOVOCE_SERVER__ALLOWED_HOSTS": text})
    assert config.server.allowed_hosts == values


# ------------------------------------------------------------------------ what is in effect


def test_the_tenancy_that_is_in_effect_is_known_without_the_tokens() -> None:
    environ = {"SOTTOVOCE_SERVER__ACCESS_TOKEN_ENV": "TOKENS"}
    config = read_config(environ=environ)
    assert config.server.tenancy == "token"
    source = config.source("server", "tenancy")
    assert source.origin is Origin.DEFAULT
    assert str(source) == "default with SOTTOVOCE_SERVER__ACCESS_TOKEN_ENV"
    assert load_config(environ=environ | {"TOKENS": "svt_a"}).server.tenancy == "token"
    given = read_config(environ=environ | {"SOTTOVOCE_SERVER__TENANCY": "credential"})
    assert given.server.tenancy == "credential"
    assert str(given.source("server", "tenancy")) == "SOTTOVOCE_SERVER__TENANCY"
    # What is missing is the token, and that is said once.
    assert [message for message, _ in problems(environ=environ)] == [
        "TOKENS: is named by server.access_token_env and holds no token"
    ]


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("a\\u0000b", "server.state_dir: a path has no zero byte"),
        ("~nobody-of-that-name/x", "server.state_dir: there is no home of nobody-of-that-name"),
    ],
)
def test_a_path_must_be_one(folder: str, message: str) -> None:
    assert problems(f'[server]\nstate_dir = "{folder}"') == [(f"sottovoce.toml:2: {message}", None)]
