from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from telemetry.redact import (
    _PLAIN,
    REDACTED,
    _searched,
    is_secret_name,
    redact,
    redact_headers,
    redact_value,
)

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ1c2VyLTEifQ.c2lnbmF0dXJl"

SECRETS = [
    "sk-proj-abcdefghijklmnop",
    "sk-ant-api03-abcdefgh_ijkl-mnop",
    "svt_0123456789abcdef",
    "ghp_0123456789abcdefghij",
    "AIzaSyA0123456789abcdefghijklm",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdef",
    JWT,
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "frame",
    ["{}", "key {} used", '"{}"', "({})", "a={}&b=1", "x: {}\n", "https://h/p?q={}", "é{}é"],
)
def test_tokens_are_known_by_their_form(secret: str, frame: str) -> None:
    cleaned = redact(frame.format(secret))
    assert secret not in cleaned
    assert secret[-8:] not in cleaned
    assert REDACTED in cleaned


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abcdef123456", "Authorization: Bearer [redacted]"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: Basic [redacted]"),
        ("Authorization: opaque", "Authorization: [redacted]"),
        ("{'Authorization': 'Bearer abcdef123'}", "{'Authorization': '[redacted]'}"),
        ("(b'x-api-key', b'abc')", "(b'x-api-key', b'[redacted]')"),
        ("Cookie: a=1; b=2\nnext", "Cookie: [redacted]\nnext"),
        ("Set-Cookie: sid=1; Path=/", "Set-Cookie: [redacted]"),
        ("https://me:pa@ss@host/x", "https://[redacted]@host/x"),
        ("postgresql://u:p@db:5432/m", "postgresql://[redacted]@db:5432/m"),
        ("GET /v1?key=abc&x=1", "GET /v1?key=[redacted]&x=1"),
        ("/cb?code=abc#f", "/cb?code=[redacted]#f"),
        ('{"api_key": "a b\\"c", "n": 1}', '{"api_key": "[redacted]", "n": 1}'),
        ('"{\\"refresh_token\\":\\"abc\\"}"', '"{\\"refresh_token\\":\\"[redacted]\\"}"'),
        ("OPENAI_API_KEY=abc make", "OPENAI_API_KEY=[redacted] make"),
        ("x-sottovoce-key: abc", "x-sottovoce-key: [redacted]"),
        (
            "Incorrect API key provided: sk-abcd****wxyz.",
            f"Incorrect API key provided: {REDACTED}.",
        ),
    ],
)
def test_named_secrets_lose_their_value(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"usage":{"input_tokens":5,"total_tokens":7}}',
        '{"max_output_tokens": 100, "prompt_cache_key": "thread-1"}',
        '{"token":"Hel","logprob":-0.1}',
        "write to anna@example.org about risk-taking and task-oriented work",
        "the bearer of good news is a keyboard",
        "http://127.0.0.1:7688/v1/responses",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_headers_keep_order_case_and_scheme() -> None:
    assert redact_headers(
        [
            (b"Authorization", b"Bearer abc"),
            (b"x-sottovoce-key", b"svt_x"),
            (b"Cookie", b"a=1; b=2"),
            (b"chatgpt-account-id", b"acc-1"),
            (b"user-agent", b"codex"),
            (b"x-note", b"sk-abcdefghijkl"),
        ]
    ) == [
        (b"Authorization", b"Bearer [redacted]"),
        (b"x-sottovoce-key", b"[redacted]"),
        (b"Cookie", b"[redacted]"),
        (b"chatgpt-account-id", b"[redacted]"),
        (b"user-agent", b"codex"),
        (b"x-note", b"[redacted]"),
    ]


def test_structured_values_are_redacted_by_name_and_by_content() -> None:
    value = {
        "headers": [("authorization", "Bearer abcdefgh"), {"password": {"deep": 1}}],
        "n": 1,
        "raw": b"svt_0123456789",
        7: None,
    }
    assert redact_value(value) == {
        "headers": [["authorization", "Bearer [redacted]"], {"password": "[redacted]"}],
        "n": 1,
        "raw": "[redacted]",
        7: None,
    }


def test_what_nests_too_deeply_is_replaced_whole() -> None:
    nested: object = "leaf"
    for _ in range(40):
        nested = [nested]
    assert "leaf" not in repr(redact_value(nested))


@pytest.mark.parametrize(
    "name", ["Authorization", "X-Api-Key", "OPENAI_API_KEY", "id_token", "token"]
)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["tokens", "input_tokens", "key", "prompt_cache_key", "author"])
def test_plain_names(name: str) -> None:
    assert not is_secret_name(name)


PIECES = st.sampled_from(
    [
        *SECRETS,
        *("Bearer ", "Basic ", "authorization", "cookie: ", "api_key", "password", "sk-", "eyJ"),
        *("://", "@", "?key=", "&code=", '"', "'", "\\", ": ", "=", ",", ";", " ", "\n", "[", "]"),
        *("b'", "token", "_", "-", ".", "/", "abc", "0123456789", REDACTED, "\ud83d", "é", "*"),
    ]
)
TEXTS = st.one_of(st.text(), st.lists(PIECES, max_size=24).map("".join))


@given(TEXTS)
def test_redaction_never_raises_and_is_idempotent(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(TEXTS.map(lambda text: text.encode("ascii", "ignore").decode()))
def test_what_is_looked_for_first_leaves_nothing_out(text: str) -> None:
    # In front of it stands a letter with which every step is taken.
    assert redact(f"é\n{text}") == f"é\n{redact(text)}"


@given(st.lists(st.tuples(st.binary(), st.binary())))
def test_headers_never_raise_and_keep_their_names(headers: list[tuple[bytes, bytes]]) -> None:
    cleaned = redact_headers(headers)
    assert [name for name, _ in cleaned] == [name for name, _ in headers]
    assert redact_headers(cleaned) == cleaned


@given(
    st.recursive(
        TEXTS | st.binary() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
        max_leaves=8,
    )
)
def test_values_never_raise(value: object) -> None:
    cleaned = redact_value(value)
    assert redact_value(cleaned) == cleaned


@given(st.sampled_from(SECRETS), TEXTS, TEXTS)
def test_a_token_that_stands_alone_never_survives(secret: str, before: str, after: str) -> None:
    assume(secret not in before + after)  # glued to a word there, it is another word
    assert secret not in redact(f"{before} {secret} {after}")


@pytest.mark.parametrize(
    "piece",
    [
        "sk-",
        "eyJ",
        "eyJaaaaaaaa.",
        "://",
        "a:@",
        "api_key",
        "a_",
        "a-",
        "cookie:",
        '\\"',
        "password='",
    ],
)
def test_long_texts_stay_linear(piece: str) -> None:
    # The per-test timeout is the bound: a quadratic step would take minutes here.
    assert redact(piece * 60_000) is not None


@given(st.from_regex(_PLAIN, fullmatch=True))
def test_what_is_not_searched_has_no_secret(text: str) -> None:
    assert redact(text) == _searched(text) == text
