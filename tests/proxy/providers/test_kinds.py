"""Which provider a kind is, where it is, and whose key it gets."""

from __future__ import annotations

import pytest

from pipeline.errors import UpstreamError
from pipeline.reader import StreamMode
from pipeline.request import read_request
from proxy.providers.base import Headers, LeftOut
from proxy.providers.kinds import (
    KINDS,
    MISSING_KEY,
    authorize,
    default_base_url,
    find_key,
    make_provider,
    needs_key,
    presented_key,
    root_of,
)
from proxy.providers.replay import wrap
from tests import builders
from tests.builders import compact, message, reasoning, user

OPENAI = "https://api.openai.com/v1"
ENVIRON = {
    "OPENAI_API_KEY": "sk-env",
    "ANTHROPIC_API_KEY": "sk-ant-env",
    "OLLAMA_API_KEY": "ollama-env",
}
CLIENT: Headers = [
    (b"authorization", b"Bearer sk-client"),
    (b"cookie", b"a=b"),
    (b"user-agent", b"me"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_provider_of_its_name(kind: str) -> None:
    provider = make_provider(kind, default_base_url(kind))
    assert provider.kind == kind
    assert provider.translates is (kind not in {"responses", "codex"})


@pytest.mark.parametrize(
    ("kind", "url", "root"),
    [
        ("anthropic", "https://api.anthropic.com/v1/", "https://api.anthropic.com"),
        ("anthropic", "https://h/anthropic", "https://h/anthropic"),
        ("ollama", "http://h:11434/v1", "http://h:11434"),
        ("ollama", "http://h:11434/api", "http://h:11434"),
        ("openai_compat", "https://h/v1/", "https://h/v1"),
        ("responses", "https://h/v1", "https://h/v1"),
    ],
)
def test_paths_are_appended_to_what_they_do_not_bring(kind: str, url: str, root: str) -> None:
    assert root_of(kind, url) == root


# ------------------------------------------------------------------------------------- the key


@pytest.mark.parametrize(
    ("kind", "url", "key"),
    [
        ("openai_compat", OPENAI, "sk-env"),
        ("openai_compat", "https://openrouter.ai/api/v1", None),
        ("anthropic", "https://api.anthropic.com", "sk-ant-env"),
        ("anthropic", "https://gateway/anthropic", "sk-ant-env"),
        ("ollama", "http://localhost:11434", "ollama-env"),
        ("responses", OPENAI, None),
        ("codex", default_base_url("codex"), None),
    ],
)
def test_a_configured_key_comes_before_the_variable_of_its_kind(
    kind: str, url: str, key: str | None
) -> None:
    assert find_key(kind, url, configured=None, environ=ENVIRON) == key
    assert find_key(kind, url, configured="sk-mine", environ=ENVIRON) == "sk-mine"
    assert find_key(kind, url, configured=None, environ=dict.fromkeys(ENVIRON, "")) is None


def test_who_needs_a_key() -> None:
    assert needs_key("anthropic", "https://gateway")
    assert needs_key("openai_compat", OPENAI)
    assert not needs_key("openai_compat", "http://localhost:8000/v1")
    assert not needs_key("ollama", "http://localhost:11434")
    assert not needs_key("responses", OPENAI)


@pytest.mark.parametrize(
    ("kind", "headers", "key"),
    [
        ("openai_compat", CLIENT, "sk-client"),
        ("openai_compat", [(b"Authorization", b"bearer  sk-x ")], "sk-x"),
        ("openai_compat", [*CLIENT, (b"chatgpt-account-id", b"acc")], None),
        ("openai_compat", [(b"authorization", b"Basic eA==")], None),
        ("anthropic", CLIENT, None),
        ("anthropic", [(b"authorization", b"Bearer sk-ant-x")], "sk-ant-x"),
        ("anthropic", [*CLIENT, (b"x-api-key", b"sk-ant-x")], "sk-ant-x"),
        ("ollama", CLIENT, None),
    ],
)
def test_a_client_presents_its_key_only_where_it_can_be_meant(
    kind: str, headers: Headers, key: str | None
) -> None:
    assert presented_key(kind, headers) == key


def authorized(kind: str, url: str, key: str | None, headers: Headers = CLIENT) -> Headers:
    return authorize(make_provider(kind, url), url, headers, key=key, name="mine")


def test_a_key_replaces_every_credential_of_the_client() -> None:
    bearer = [(b"user-agent", b"me"), (b"authorization", b"Bearer k")]
    for kind in ("responses", "codex", "openai_compat", "ollama"):
        assert authorized(kind, "https://h/v1", "k") == bearer
    own = [(b"x-api-key", b"k"), (b"anthropic-version", b"2023-06-01")]
    assert authorized("anthropic", "https://h", "k") == [(b"user-agent", b"me"), *own]


def test_without_a_key_the_clients_own_passes_where_it_is_known() -> None:
    for kind in ("responses", "codex"):
        assert authorized(kind, "https://h/v1", None) == CLIENT
    passed = [(b"user-agent", b"me"), (b"authorization", b"Bearer sk-client")]
    assert authorized("openai_compat", OPENAI, None) == passed
    assert authorized("ollama", "http://h", None) == [(b"user-agent", b"me")]


@pytest.mark.parametrize(
    ("kind", "url", "variable"),
    [
        ("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
        ("openai_compat", OPENAI, "OPENAI_API_KEY"),
    ],
)
def test_a_key_that_is_missing_fails_before_anything_is_sent(
    kind: str, url: str, variable: str
) -> None:
    with pytest.raises(UpstreamError, match=variable) as caught:
        authorized(kind, url, None, [(b"user-agent", b"me")])
    assert (caught.value.status, caught.value.code) == (401, MISSING_KEY)
    assert "upstream mine" in caught.value.message


# --------------------------------------------------------------------- those that translate not


@pytest.mark.parametrize("kind", ["responses", "codex"])
def test_a_request_leaves_as_it_came(kind: str) -> None:
    provider = make_provider(kind, OPENAI)
    text = b'{ "model":"m","stream" : true, "input":[{"n":1e400,"n":12345678901234567890}] }'
    sent = provider.encode(read_request(text), StreamMode.SSE)
    assert (sent.body, sent.left_out, sent.headers) == (text, {}, [])


def test_the_flag_is_the_modes() -> None:
    responses, codex = (make_provider(kind, OPENAI) for kind in ("responses", "codex"))
    assert responses.mode(streamed=False) is StreamMode.JSON
    assert codex.mode(streamed=False) is codex.mode(streamed=True) is StreamMode.SSE
    for text in (b'{"model":"m"}', b'{"stream":false}', b'{"stream":null}'):
        sent = codex.encode(read_request(text), StreamMode.SSE)
        assert b'"stream":true' in sent.body
    assert responses.encode(read_request(b"{}"), StreamMode.JSON).body == b"{}"


def test_reasoning_of_other_upstreams_is_left_out() -> None:
    provider = make_provider("responses", OPENAI)
    ours = reasoning("a", encrypted=wrap("anthropic", {"type": "thinking"}))
    theirs = reasoning("b", encrypted="gAAAA")
    request = builders.request(user("hi"), ours, theirs, message("sottovoce."))
    sent = provider.encode(read_request(compact(request).encode()), StreamMode.SSE)
    assert read_request(sent.body).body["input"] == [user("hi"), theirs, message("sottovoce.")]
    assert sent.left_out == {LeftOut.REASONING: 1}
    quoted = builders.request(user('"sottovoce.1.'))
    text = compact(quoted).encode()
    assert provider.encode(read_request(text), StreamMode.SSE).body == text
