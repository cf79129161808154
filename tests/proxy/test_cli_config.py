from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from proxy.config import SCHEMA
from proxy.config_template import template
from tests.proxy.commands import run

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "sk-abcdefghijklmnop"


def write(folder: Path, text: str) -> Path:
    path = folder / "sottovoce.toml"
    path.write_text(text)
    return path


def test_show_prints_every_key_with_its_source(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nport = 1\n")
    code, out, said = run(tmp_path, "config", "show", more={"SOTTOVOCE_RECALL__ENABLED": "false"})
    assert (code, said) == (0, "")
    assert f"server.port = 1  # {path}:2" in out
    assert "recall.enabled = false  # SOTTOVOCE_RECALL__ENABLED" in out
    assert 'server.host = "127.0.0.1"  # default' in out
    shown = {line.partition(" = ")[0] for line in out.splitlines()}
    for key in SCHEMA.fields:
        assert ".".join("0" if part == "*" else part for part in key) in shown


def test_show_masks_secrets(tmp_path: Path) -> None:
    write(tmp_path, f'[[upstream]]\nbase_url = "https://h/v1"\napi_key = "{SECRET}"\n')
    for arguments in ((), ("--json",)):
        code, out, _ = run(tmp_path, "config", "show", *arguments)
        assert code == 0
        assert SECRET not in out
        assert "upstream.0.api_key" in out


def test_show_works_where_serve_could_not(tmp_path: Path) -> None:
    write(tmp_path, '[[upstream]]\nbase_url = "https://h/v1"\napi_key_env = "NOT_SET"\n')
    assert run(tmp_path, "config", "show")[0] == 0
    assert run(tmp_path, "config", "check")[0] == 1


def test_show_as_json_has_a_schema_version_and_plain_values(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nallowed_hosts = ['a']\n")
    code, out, _ = run(tmp_path, "config", "show", "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["schema_version"] == 1
    assert shown["file"] == str(path)
    values = {each["key"]: (each["value"], each["source"]) for each in shown["values"]}
    assert values["server.allowed_hosts"] == (["a"], f"{path}:2")
    assert values["server.port"] == (7688, "default")
    assert values["server.access_token_env"] == (None, "default")


def test_path_is_the_file_that_is_read_or_would_be(tmp_path: Path) -> None:
    code, out, said = run(tmp_path, "config", "path")
    assert (code, out) == (0, f"{tmp_path / 'sottovoce' / 'sottovoce.toml'}\n")
    assert "config init" in said
    path = write(tmp_path, "")
    assert run(tmp_path, "config", "path") == (0, f"{path}\n", "")


def test_check_says_ok_or_all_that_is_wrong(tmp_path: Path) -> None:
    assert run(tmp_path, "config", "check") == (0, "ok: no file, the defaults\n", "")
    path = write(tmp_path, "[server]\nprot = 1\nhost = 5\n")
    code, out, said = run(tmp_path, "config", "check")
    assert (code, out) == (1, "")
    assert said.splitlines() == [
        f"error: {path}:3: server.host: expected a text, got 5",
        "hint: `sottovoce config init --print` explains every key",
        f"error: {path}:2: unknown key server.prot",
        "hint: did you mean server.port?",
    ]
    code, out, said = run(tmp_path, "config", "check", "--json")
    assert (code, said) == (1, "")
    told = json.loads(out)
    assert (told["schema_version"], told["ok"], len(told["problems"])) == (1, False, 2)
    assert told["problems"][1]["hint"] == "did you mean server.port?"


def test_check_knows_what_serve_will_refuse(tmp_path: Path) -> None:
    write(tmp_path, "[server]\nhost = '0.0.0.0'\n")
    code, _, said = run(tmp_path, "config", "check")
    assert code == 1
    assert "hint: sottovoce serve --host 0.0.0.0" in said


def test_init_begins_a_configuration_that_is_the_defaults(tmp_path: Path) -> None:
    code, out, _ = run(tmp_path, "config", "init")
    path = tmp_path / "sottovoce" / "sottovoce.toml"
    assert (code, out) == (0, f"{path}\n")
    assert path.stat().st_mode & 0o777 == 0o600
    assert run(tmp_path, "config", "check") == (0, f"ok: {path}\n", "")
    code, _, said = run(tmp_path, "config", "init")
    assert code == 1
    assert said.splitlines() == [
        f"error: {path} is there already",
        "hint: --force replaces it",
    ]
    path.write_text("plugins = []")
    assert run(tmp_path, "config", "init", "--force")[0] == 0
    assert "[server]" in path.read_text()


def test_init_writes_where_it_is_told_and_leaves_no_draft(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "my.toml"
    assert run(tmp_path, "config", "init", "--config", str(target))[0] == 0
    assert list(target.parent.iterdir()) == [target]
    (tmp_path / "file").write_text("")
    code, _, said = run(tmp_path, "config", "init", "--config", str(tmp_path / "file" / "x"))
    assert code == 1
    assert "can't be written" in said


def test_init_can_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    code, out, said = run(tmp_path, "config", "init", "--print")
    assert (code, said) == (0, "")
    assert out == template()
    assert not (tmp_path / "sottovoce").exists()


@pytest.mark.parametrize("verb", ["show", "check"])
def test_a_named_file_must_be_there(tmp_path: Path, verb: str) -> None:
    code, _, said = run(tmp_path, "config", verb, "--config", "none.toml")
    assert code == 1
    assert said.splitlines() == [
        "error: none.toml: there is no such file",
        "hint: `sottovoce config init` writes one",
    ]


def test_a_variable_that_sets_nothing_is_a_warning_of_every_verb(tmp_path: Path) -> None:
    more = {"SOTTOVOCE_PORT": "8000"}
    warning = "warning: SOTTOVOCE_PORT: sets nothing; did you mean SOTTOVOCE_SERVER__PORT?\n"
    for verb in (("config", "show"), ("config", "check"), ("recall", "list")):
        code, _, said = run(tmp_path, *verb, more=more)
        assert code == 0
        assert said.startswith(warning)
    code, out, said = run(tmp_path, "config", "check", "--json", more=more)
    assert (code, said) == (0, "")
    assert json.loads(out)["warnings"] == [
        {
            "where": "SOTTOVOCE_PORT",
            "message": "sets nothing",
            "hint": "did you mean SOTTOVOCE_SERVER__PORT?",
        }
    ]


def test_show_tells_the_tenancy_that_is_in_effect(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\naccess_token_env = 'TOKENS'\n")
    _, out, _ = run(tmp_path, "config", "show", more={"TOKENS": "svt_a"})
    assert f'server.tenancy = "token"  # default with {path}:2\n' in out
