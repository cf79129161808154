"""Which kind a failure is, by what the upstream said or didn't say."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import (
    ProtocolError,
    RequestError,
    SottovoceError,
    UpstreamError,
)
from pipeline.taxonomy import (
    MESSAGE_CHARACTERS,
    ErrorKind,
    Failure,
    classify,
    classify_code,
    failed_inside,
    refused,
    unreached,
)

OPENAI = ("responses", "codex", "openai_compat")
KINDS = (*OPENAI, "anthropic", "ollama")


def refusal(
    status: int, body: object, *, kind: str = "responses", wait: int | None = None
) -> Failure:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return refused(kind, "one", status, data, retry_after_ms=wait, redact=lambda text: text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, ErrorKind.AUTH),
        (403, ErrorKind.AUTH),
        (429, ErrorKind.RATE_LIMIT),
        (529, ErrorKind.RATE_LIMIT),
        (500, ErrorKind.RATE_LIMIT),
        (503, ErrorKind.RATE_LIMIT),
        (599, ErrorKind.RATE_LIMIT),
        (400, ErrorKind.BAD_REQUEST),
        (404, ErrorKind.BAD_REQUEST),
        (408, ErrorKind.BAD_REQUEST),
        (413, ErrorKind.BAD_REQUEST),
        (422, ErrorKind.BAD_REQUEST),
        (301, ErrorKind.BAD_REQUEST),
        (199, ErrorKind.BAD_REQUEST),
    ],
)
def test_statuses(kind: str, status: int, expected: ErrorKind) -> None:
    assert classify(kind, status, b'{"error": "no"}') is expected


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (b"Maximum CONTEXT reached", KINDS),
        (b"too many tokens", KINDS),
        (b"the length is 9", OPENAI),
        (b"above the maximum", ("anthropic", "ollama")),
        (b"prompt is too long", ("ollama",)),
    ],
)
def test_words_of_an_overflow(words: bytes, kinds: tuple[str, ...]) -> None:
    for kind in KINDS:
        expected = ErrorKind.OVERFLOW if kind in kinds else ErrorKind.BAD_REQUEST
        assert classify(kind, 400, words) is expected, kind
        assert classify(kind, 422, words) is ErrorKind.BAD_REQUEST


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("rate_limit_exceeded", ErrorKind.RATE_LIMIT),
        ("server_is_overloaded", ErrorKind.RATE_LIMIT),
        ("context_length_exceeded", ErrorKind.OVERFLOW),
        ("server_error", ErrorKind.UNKNOWN),
        ("", ErrorKind.UNKNOWN),
        (None, ErrorKind.UNKNOWN),
        (429, ErrorKind.UNKNOWN),
        (["rate_limit_exceeded"], ErrorKind.UNKNOWN),
    ],
)
def test_codes_inside_a_200(code: object, expected: ErrorKind) -> None:
    assert classify_code(code) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UpstreamError("refused"), ErrorKind.NETWORK),
        (UpstreamError("no head", status=504), ErrorKind.NETWORK),
        (UpstreamError("we are closing", status=503), ErrorKind.UNKNOWN),
        (RequestError("no key", status=401), ErrorKind.AUTH),
        (RequestError("can't be put so"), ErrorKind.BAD_REQUEST),
        (ProtocolError("what is this"), ErrorKind.UNKNOWN),
    ],
)
def test_attempts_without_an_answer(error: SottovoceError, expected: ErrorKind) -> None:
    assert unreached(error).kind is expected
    assert unreached(error).error is error


@pytest.mark.parametrize("key", ["code", "type"])
@pytest.mark.parametrize("code", ["insufficient_quota", "usage_limit_reached"])
def test_a_spent_quota_is_not_waited_for(key: str, code: str) -> None:
    failure = refusal(429, {"error": {"message": "All gone.", key: code}})
    assert failure.kind is ErrorKind.RATE_LIMIT
    assert failure.spent
    assert not failure.may_pass
    assert refusal(429, {key: code, "detail": "gone"}).spent
    assert not refusal(400, {"error": {key: code}}).spent


@pytest.mark.parametrize(
    ("wait", "passes"), [(None, True), (0, True), (30_000, True), (30_001, False)]
)
def test_a_long_wait_is_somebody_elses(wait: int | None, *, passes: bool) -> None:
    failure = refusal(429, {}, wait=wait)
    assert failure.may_pass is passes
    assert failure.asks_for_patience is not passes


def test_a_loop_is_one_at_the_next_attempt_too() -> None:
    failure = refusal(508, {"error": {"message": "You are here again."}})
    assert failure.kind is ErrorKind.RATE_LIMIT
    assert not failure.may_pass


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_only_what_may_pass_is_tried_in_place(kind: ErrorKind) -> None:
    failure = Failure(kind, UpstreamError("no"))
    assert failure.may_pass is (kind in {ErrorKind.RATE_LIMIT, ErrorKind.NETWORK})
    assert not failed_inside(UpstreamError("no"), kind).may_pass


def test_the_message_has_the_providers_words_redacted_and_cut() -> None:
    body = {"error": {"message": "sk-1 " + "x" * 9000, "code": "c"}}
    failure = refused(
        "responses",
        "one",
        500,
        json.dumps(body).encode(),
        retry_after_ms=None,
        redact=lambda text: text.replace("sk-1", "[redacted]"),
    )
    assert failure.error.message.startswith("upstream one answered 500: [redacted] xxx")
    assert len(failure.error.message) == len("upstream one answered 500: ") + MESSAGE_CHARACTERS
    assert (failure.error.status, failure.error.code) == (500, "c")


@pytest.mark.parametrize(
    ("failure", "personal"),
    [
        (refusal(401, {}), True),
        (refusal(429, {}), True),
        (refusal(529, {}), False),
        (refusal(500, {}), False),
        (unreached(UpstreamError("refused")), False),
        (unreached(RequestError("no key", status=401)), True),
        (failed_inside(UpstreamError("x", code="rate_limit_exceeded"), ErrorKind.RATE_LIMIT), True),
        (
            failed_inside(UpstreamError("x", code="server_is_overloaded"), ErrorKind.RATE_LIMIT),
            False,
        ),
    ],
)
def test_what_may_be_the_credentials_fault(failure: Failure, *, personal: bool) -> None:
    assert failure.personal is personal


@given(st.sampled_from(KINDS), st.integers(100, 999), st.binary(max_size=300))
def test_any_answer_has_a_kind_and_a_safe_error(kind: str, status: int, body: bytes) -> None:
    failure = refusal(status, body, kind=kind)
    assert failure.kind is classify(kind, status, body)
    assert len(failure.error.message) < 600
    assert isinstance(failure.error.code, str)
