"""Whether an answer that begins with 200 fails before it shows anything."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UpstreamError
from pipeline.peek import Peek
from pipeline.reader import StreamMode
from pipeline.taxonomy import ErrorKind
from proxy.config_tables import LimitsConfig
from tests import builders
from tests.builders import message, opening

if TYPE_CHECKING:
    from tests.builders import Event

LIMITS = LimitsConfig().as_limits()
SSE = "text/event-stream"
JSON = "application/json"


def peek(mode: StreamMode = StreamMode.SSE, *, byte_limit: int = 1 << 20, **limits: int) -> Peek:
    reader = mode.reader(
        replace(LIMITS, **limits), observed=False, phase="principal", redact=lambda text: text
    )
    return Peek(reader, byte_limit=byte_limit, redact=lambda text: text.replace("sk-1", "***"))


def look(data: bytes, content_type: str | None = SSE, *, ended: bool = True) -> Peek:
    looking = peek()
    looking.head(content_type)
    if not looking.over:
        looking.feed(data)
    if ended and not looking.over:
        looking.finish()
    return looking


def stream(*events: Event) -> bytes:
    return b"".join(builders.frames(builders.numbered(events)))


def failed(code: str | None, text: str = "no") -> Event:
    error = {"code": code, "message": text}
    return {"type": "response.failed", "response": {"id": "r", "status": "failed", "error": error}}


def kind_of(looking: Peek) -> ErrorKind | None:
    assert looking.over
    if looking.failure is None:
        return None
    assert looking.failure.inside
    return looking.failure.kind


OPENING = opening()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("server_is_overloaded", ErrorKind.RATE_LIMIT),
        ("rate_limit_exceeded", ErrorKind.RATE_LIMIT),
        ("context_length_exceeded", ErrorKind.OVERFLOW),
        ("server_error", ErrorKind.UNKNOWN),
        (None, ErrorKind.UNKNOWN),
    ],
)
def test_a_failure_is_known_by_its_code(code: str | None, expected: ErrorKind) -> None:
    flat = {"type": "error", "code": code, "message": "no", "param": None}
    nested = {"type": "error", "error": {"code": code, "message": "no"}}
    done = {**failed(code), "type": "response.done"}
    for event in (failed(code), flat, nested, done):
        for before in ([], OPENING):
            assert kind_of(look(stream(*before, event), ended=False)) is expected
    told = {"code": code, "message": "no"}
    for name, value in ((b"event: error\n", told), (b"", {"error": told})):
        data = name + b"data: " + json.dumps(value).encode() + b"\n\n"
        assert kind_of(look(data, ended=False)) is expected


def test_the_message_is_redacted_and_cut() -> None:
    failure = look(stream(failed("c", "sk-1 " + "x" * 999))).failure
    assert failure is not None
    assert failure.error.message.startswith("*** xxx")
    assert len(failure.error.message) == 500
    assert failure.error.code == "c"


def test_a_failure_without_words() -> None:
    event = {"type": "response.failed", "response": {"id": "r", "status": "failed", "error": None}}
    assert kind_of(look(stream(event))) is ErrorKind.UNKNOWN


@pytest.mark.parametrize(
    "data",
    [
        stream(*OPENING),
        stream({"type": "codex.rate_limits", "rate_limits": {}}, *OPENING),
        stream(OPENING[0], {**OPENING[0], "type": "response.queued"}),
        b": a comment\n\n",
        b"data:\n\n",
        b"id: 1\n\n",
        b"data: [DONE]\n\n",
        b"",
        b"event: response.output_text.del",
    ],
)
def test_what_shows_nothing(data: bytes) -> None:
    assert not look(data, ended=False).over
    looking = look(data)
    assert kind_of(looking) in {ErrorKind.NETWORK, ErrorKind.BAD_REQUEST}


@pytest.mark.parametrize(
    "event",
    [
        *builders.item_events(message("hi"), 0),
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
        {"type": "response.incomplete", "response": {"status": "incomplete", "output": []}},
        {"type": "response.done", "response": {"status": "completed"}},
        {"type": "response.brand_new"},
        {"type": 7},
        {},
    ],
)
def test_any_other_event_is_an_answer(event: dict[str, Any]) -> None:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    assert kind_of(look(stream(*OPENING) + data + stream(failed("x")), ended=False)) is None


def test_data_that_nobody_can_read_is_an_answer_too() -> None:
    assert kind_of(look(b"event: x\ndata: {oops\n\n", ended=False)) is None


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("text/html", b"<html>Sign in</html>", ErrorKind.BAD_REQUEST),
        (None, b"<html>Sign in</html>", ErrorKind.BAD_REQUEST),
        (SSE, b"", ErrorKind.NETWORK),
        (None, b"", ErrorKind.BAD_REQUEST),
        (JSON, b"", ErrorKind.BAD_REQUEST),
        (JSON, b'{"id": "resp_1"}', ErrorKind.BAD_REQUEST),
        (
            JSON,
            b'{"error": {"message": "no", "code": "insufficient_quota"}}',
            ErrorKind.BAD_REQUEST,
        ),
        (
            JSON,
            b'{"error": {"message": "no", "code": "rate_limit_exceeded"}}',
            ErrorKind.RATE_LIMIT,
        ),
        (JSON, b'{"detail": "no"}', ErrorKind.BAD_REQUEST),
    ],
)
def test_no_stream_at_all(content_type: str | None, body: bytes, expected: ErrorKind) -> None:
    assert kind_of(look(body, content_type)) is expected


def test_a_stream_where_json_was_asked_for() -> None:
    looking = peek(StreamMode.JSON)
    looking.head(SSE)
    assert kind_of(looking) is ErrorKind.BAD_REQUEST


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ({"id": "r", "status": "completed", "output": [message("hi")]}, None),
        ({"id": "r", "status": "completed", "output": []}, None),
        (
            {
                "id": "r",
                "status": "failed",
                "output": [],
                "error": {"code": "server_is_overloaded", "message": "no"},
            },
            ErrorKind.RATE_LIMIT,
        ),
        ({"error": {"message": "no"}}, ErrorKind.BAD_REQUEST),
        ([], ErrorKind.BAD_REQUEST),
    ],
)
def test_json_answers(response: object, expected: ErrorKind | None) -> None:
    looking = peek(StreamMode.JSON)
    looking.head(JSON)
    looking.feed(json.dumps(response).encode())
    assert not looking.over
    looking.finish()
    assert kind_of(looking) is expected


def test_a_cut_is_the_networks_fault() -> None:
    looking = look(stream(*OPENING), ended=False)
    looking.broken(UpstreamError("reset"))
    assert kind_of(looking) is ErrorKind.NETWORK


def test_it_reads_only_so_far() -> None:
    looking = peek(byte_limit=1000)
    looking.head(SSE)
    looking.feed(b": " + b"x" * 997)
    assert not looking.over
    looking.feed(b"x")
    assert kind_of(looking) is None


@pytest.mark.parametrize("limits", [{"event_bytes": 100}, {"frames": 1}], ids=str)
def test_a_limit_is_the_turns_to_judge(limits: dict[str, int]) -> None:
    looking = peek(**limits)
    looking.head(SSE)
    looking.feed(stream(*OPENING))
    assert kind_of(looking) is None


@given(
    st.lists(st.sampled_from([*OPENING, *builders.item_events(message("hi"), 0)]), max_size=6),
    st.sampled_from([None, "server_is_overloaded"]),
    st.lists(st.integers(1, 400), max_size=20),
)
def test_the_cuts_make_no_difference(
    events: list[Event], code: str | None, cuts: list[int]
) -> None:
    data = stream(*events, *([] if code is None else [failed(code)]))
    looking = peek()
    looking.head(SSE)
    for size in [*cuts, len(data)]:
        piece, data = data[:size], data[size:]
        if piece and not looking.over:
            looking.feed(piece)
    if not looking.over:
        looking.finish()
    visible = any(event not in OPENING for event in events)
    expected = None if visible else ErrorKind.NETWORK if code is None else ErrorKind.RATE_LIMIT
    assert kind_of(looking) is expected
