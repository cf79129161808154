"""One value decides how an answer is asked for and how it is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ProtocolError, SottovoceError, StreamFlagError
from pipeline.reader import JSONReader, SSEReader, StreamMode, provider_error
from pipeline.sse import Fragment, Frame
from tests import builders, strategies
from tests.builders import body, message, stream
from tests.playbook import LIMITS, bytewise, limits, whole
from tests.strategies import chunkings

SENT = body(stream(message("hi")))
RESPONSE = builders.response("resp_A", "completed", output=[message("hi")])


def reader(mode: StreamMode, *, observed: bool = False, **changes: int) -> Any:
    return mode.reader(limits(**changes), observed=observed, phase="principal", redact=str.upper)


def read(one: Any, chunks: Any, content_type: str | None) -> list[Frame | Fragment]:
    one.head(content_type)
    frames = []
    for piece in chunks:
        frames += one.feed(piece)
    return frames + list(one.finish())


# ------------------------------------------------------------------------------------- the mode


def test_the_flag_and_the_reader_are_one() -> None:
    assert StreamMode.SSE.flag is True
    assert StreamMode.JSON.flag is False
    assert StreamMode.SSE.accept == "text/event-stream"
    assert StreamMode.JSON.accept == "application/json"
    assert isinstance(reader(StreamMode.SSE), SSEReader)
    assert isinstance(reader(StreamMode.JSON), JSONReader)


# ----------------------------------------------------------------------------------- the stream


@pytest.mark.parametrize("content_type", ["text/event-stream", "Text/Event-Stream; charset=utf-8"])
def test_a_stream_is_read(content_type: str) -> None:
    frames = read(reader(StreamMode.SSE), [SENT], content_type)
    assert b"".join(frame.raw for frame in frames) == SENT


@pytest.mark.parametrize("content_type", [None, "", "  "])
@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\n\n\r\n",
        b"\xef\xbb\xbf",
        b": hello\n\n",
        b"id: 7\n\n",
        b"retry: 5\n\n",
        b"data: {}\n\n",
        b"data:{}\n\n",
    ],
)
@pytest.mark.parametrize("chunking", [whole, bytewise])
def test_a_stream_without_a_content_type_is_known_by_its_start(
    content_type: str | None,
    start: bytes,
    chunking: Any,
) -> None:
    frames = read(reader(StreamMode.SSE), chunking(start + SENT), content_type)
    assert b"".join(frame.raw for frame in frames) == start + SENT


@given(st.binary(max_size=100), chunkings())
def test_what_it_is_doesnt_depend_on_how_it_comes(
    data: bytes, chunking: strategies.Chunking
) -> None:
    outcomes = []
    for pieces in ([data], chunking(data), bytewise(data)):
        try:
            frames = read(reader(StreamMode.SSE), pieces, None)
        except SottovoceError as error:
            outcomes.append((type(error), error.message))
        else:
            outcomes.append(b"".join(frame.raw for frame in frames))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_blank_bytes_are_not_waited_for_without_end() -> None:
    one = reader(StreamMode.SSE, error_bytes=200)
    one.head(None)
    for _ in range(199):
        assert one.feed(b"\n") == []
    with pytest.raises(SottovoceError):
        one.feed(b"\n")


def test_a_foreign_body_is_read_no_further_than_an_error() -> None:
    one = reader(StreamMode.SSE, error_bytes=100)
    one.head("text/html")
    assert one.feed(b"x" * 99) == []
    with pytest.raises(ProtocolError):
        one.feed(b"x")


# ------------------------------------------------------------------------------------- the body


def test_a_body_stands_for_its_events() -> None:
    data = json.dumps(RESPONSE, indent=1).encode()
    frames = read(reader(StreamMode.JSON), [data], "application/json")
    events = [json.loads(frame.data) for frame in frames if isinstance(frame, Frame) and frame.data]
    kinds = [event["type"] for event in events]
    assert kinds == [
        "response.created",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[-1]["response"] == RESPONSE
    assert data in frames[-1].raw


@pytest.mark.parametrize("status", ["queued", "in_progress", None, 5])
def test_a_response_that_is_not_over_is_no_answer(status: Any) -> None:
    data = builders.compact(RESPONSE | {"status": status}).encode()
    with pytest.raises(ProtocolError, match="no response object"):
        read(reader(StreamMode.JSON), [data], "application/json")
    (fragment,) = read(reader(StreamMode.JSON, observed=True), [data], "application/json")
    assert fragment == Fragment(data, None, last=True)


def test_a_stream_is_no_body() -> None:
    with pytest.raises(StreamFlagError, match="flag and consumer disagree"):
        reader(StreamMode.JSON).head("text/event-stream")
    (*_, last) = read(reader(StreamMode.JSON, observed=True), [SENT], "text/event-stream")
    assert isinstance(last, Fragment)


@given(
    st.binary(max_size=200), chunkings(), st.sampled_from(["application/json", "text/html", None])
)
def test_an_observed_body_loses_no_byte(
    data: bytes, chunking: strategies.Chunking, content_type: str | None
) -> None:
    one = reader(StreamMode.JSON, observed=True, retained_bytes=50)
    fragments = read(one, chunking(data), content_type)
    assert b"".join(fragment.raw for fragment in fragments) == data
    assert fragments[-1].last
    large = len(data) > 50 and content_type != "text/html"
    assert one.relayed_by == ("retained_bytes" if large else None)


# -------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"error": {"message": "no", "code": "x", "type": "t"}}, ("no", "x")),
        ({"error": {"message": "no", "type": "t"}}, ("no", "t")),
        ({"error": "no"}, ("no", None)),
        ({"error": {"message": "no", "code": 5}}, ("no", "5")),
        ({"error": {"code": "x"}}, ("the provider gave no message", "x")),
        ({"error": {}}, ("", None)),
        ({"error": None, "status": "completed"}, ("", None)),
        ({"detail": "no"}, ("no", None)),
        ({"detail": [{"msg": "a"}, {"msg": "b"}, 5]}, ("a; b", None)),
        ({"message": "no", "code": "x"}, ("no", "x")),
        ({"detail": {"message": "no"}}, ("no", None)),
        ([{"error": "no"}], ("", None)),
        (None, ("", None)),
        ("no", ("", None)),
    ],
)
def test_a_providers_error_in_every_shape(value: Any, expected: tuple[str, str | None]) -> None:
    assert provider_error(value) == expected


@given(strategies.json_values)
def test_any_value_is_an_error_or_none(value: Any) -> None:
    text, code = provider_error(value)
    assert isinstance(text, str)
    assert code is None or (text and isinstance(code, str))


def test_messages_are_redacted_and_short() -> None:
    one = reader(StreamMode.SSE)
    one.head("application/json")
    one.feed(builders.compact({"error": {"message": "a" * 900}}).encode())
    with pytest.raises(SottovoceError) as caught:
        one.finish()
    assert caught.value.message.endswith("error: " + "A" * 500)
    assert LIMITS.error_bytes > 900
