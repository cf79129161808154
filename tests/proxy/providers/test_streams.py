"""What holds for the answers of every dialect: properties over generated ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import (
    ProtocolError,
    SottovoceError,
    SSEStreamLimitError,
    StreamFlagError,
    UpstreamError,
    UpstreamRefusedError,
)
from pipeline.reader import StreamMode
from tests import builders, strategies
from tests.builders import function_call, message, reasoning
from tests.dialects import (
    ANTHROPIC,
    CHAT,
    DIALECTS,
    OLLAMA,
    USAGE,
    Dialect,
    each_dialect,
    lines,
    sse,
)
from tests.playbook import LIMITS, bytewise, limits, whole
from tests.proxy.providers.reading import drain, essences, opening, outcome, read, reader_of
from tests.sent import TERMINALS, check_sent

if TYPE_CHECKING:
    from tests.builders import Item
    from tests.playbook import Chunking

dialects = st.sampled_from(DIALECTS)
texts = strategies.texts
calls = st.builds(
    function_call,
    st.integers(0, 9).map("call_{}".format),
    st.sampled_from(["shell", "lookup"]),
    st.dictionaries(texts, texts, max_size=2),
)


@st.composite
def answers(draw: st.DrawFn) -> list[Item]:
    """Draw an answer that every dialect can give: reasoning, text, calls, in this order."""
    items: list[Item] = []
    if draw(st.booleans()):
        items.append(reasoning(draw(texts)))
    if draw(st.booleans()):
        items.append(message(draw(texts)))
    items += draw(st.lists(calls, max_size=3, unique_by=lambda call: call["call_id"]))
    return items


@given(dialects, answers(), strategies.chunkings())
def test_an_answer_means_the_same_streamed_whole_and_however_it_is_cut(
    dialect: Dialect, items: list[Item], chunking: Chunking
) -> None:
    streamed = read(dialect, dialect.stream(*items), chunking=chunking)
    status, output, usage = outcome(streamed)
    assert (status, usage) == ("completed", USAGE)
    assert essences(output) == essences(items)
    body = dialect.whole(*items)
    told = read(dialect, body, mode=StreamMode.JSON, chunking=chunking)
    assert outcome(told)[0] == "completed"
    assert outcome(told)[2] == USAGE
    assert essences(outcome(told)[1]) == essences(items)


@given(dialects, answers(), answers())
def test_ids_are_of_their_answer_and_their_request(
    dialect: Dialect, one: list[Item], other: list[Item]
) -> None:
    body = dialect.stream(*one, message("end"))
    events = read(dialect, body)
    assert events == read(dialect, body, chunking=bytewise)
    asked = builders.request(text="another question")
    again = read(dialect, dialect.stream(*other, message("end")), asked)
    assert _ids(events).isdisjoint(_ids(again))


def _ids(events: list[dict[str, Any]]) -> set[str]:
    response = events[-1]["response"]
    return {response["id"], *(item["id"] for item in response["output"])}


@each_dialect
def test_deltas_are_live(dialect: Dialect) -> None:
    reader = reader_of(dialect)
    body = dialect.stream(message("one two three"))
    parts = [line + b"\n" for line in body.split(b"\n")]
    kinds = [[frame.event for frame in reader.feed(part)] for part in parts]
    assert sum("response.output_text.delta" in told for told in kinds) > 2


@each_dialect
def test_the_request_is_echoed(dialect: Dialect) -> None:
    asked = builders.request(temperature=0.5, metadata={"a": "b"}, reasoning={"effort": "low"})
    events = read(dialect, dialect.stream(message("hi")), asked)
    for event in (events[0], events[-1]):
        response = event["response"]
        told = {name: response[name] for name in ("tools", "temperature", "metadata", "reasoning")}
        assert told == {name: asked[name] for name in told}
        assert response["instructions"] == "Be brief."
        assert response["previous_response_id"] is None


@each_dialect
@pytest.mark.parametrize("mode", StreamMode)
def test_an_answer_without_usage_reports_none(dialect: Dialect, mode: StreamMode) -> None:
    write = dialect.stream if mode is StreamMode.SSE else dialect.whole
    events = read(dialect, write(message("hi"), usage=None), mode=mode)
    assert events[-1]["response"]["usage"] is None


# ------------------------------------------------------------------------------------- errors


@each_dialect
@pytest.mark.parametrize("mode", StreamMode)
def test_an_answer_that_is_an_error_is_refused(dialect: Dialect, mode: StreamMode) -> None:
    """Case 10: a 200 that fails at once can still be an answer of its own."""
    text = "Overloaded, sk-secret."
    error = {"message": text, "type": "overloaded_error", "code": "overloaded_error"}
    value = {"error": text if dialect is OLLAMA else error}
    body = lines(value) if dialect is OLLAMA or mode is StreamMode.JSON else sse(value)
    reader = reader_of(dialect, mode=mode)
    with pytest.raises(UpstreamRefusedError) as caught:
        drain(reader, body)
    error_code = "server_error" if dialect is OLLAMA else "server_is_overloaded"
    assert (caught.value.status, caught.value.code) == (502, error_code)
    assert "Overloaded, [redacted]." in caught.value.message
    assert caught.value.message.startswith("principal: ")


@each_dialect
def test_an_error_in_the_middle_fails_the_response(dialect: Dialect) -> None:
    """Case 10: after the first text the failure is the stream's own."""
    told = opening(dialect, dialect.stream(message("hi")))
    events = read(dialect, told + dialect.error("overloaded_error", "Overloaded sk-secret"))
    status, output, _ = outcome(events)
    assert status == "failed"
    assert [item["status"] for item in output] == ["incomplete"]
    error = events[-1]["response"]["error"]
    assert error["message"] == "Overloaded [redacted]"
    assert error["code"] == ("server_error" if dialect is OLLAMA else "server_is_overloaded")


@each_dialect
def test_a_stream_that_is_cut_has_no_terminal(dialect: Dialect) -> None:
    told = drain(reader_of(dialect), opening(dialect, dialect.stream(message("hi"))))
    kinds = [frame.event for frame in told]
    assert kinds[0] == "response.created"
    assert not {"response.completed", "response.failed"}.intersection(kinds)


@each_dialect
@pytest.mark.parametrize("mode", StreamMode)
def test_an_empty_body_is_an_error(dialect: Dialect, mode: StreamMode) -> None:
    form = "text/plain"
    with pytest.raises(UpstreamError, match=r"empty|nothing"):
        drain(reader_of(dialect, mode=mode, form=form), b"")


def test_a_form_that_was_not_asked_for_is_refused() -> None:
    for dialect in DIALECTS:
        with pytest.raises(StreamFlagError, match="stream flag and consumer disagree"):
            reader_of(dialect, mode=StreamMode.JSON, form="text/event-stream")
    with pytest.raises(StreamFlagError):
        reader_of(OLLAMA, form="text/event-stream")
    for dialect in (CHAT, ANTHROPIC):
        reader = reader_of(dialect, form="application/json")
        with pytest.raises(StreamFlagError, match="stream=true was sent"):
            drain(reader, dialect.whole(message("hi")))


@each_dialect
@pytest.mark.parametrize("mode", StreamMode)
def test_what_is_no_json_names_the_base_url(dialect: Dialect, mode: StreamMode) -> None:
    reader = reader_of(dialect, mode=mode, form="text/html")
    with pytest.raises(ProtocolError, match=r"text/html.*base_url"):
        drain(reader, b"<html>\n</html>\n")


@each_dialect
@pytest.mark.parametrize("mode", StreamMode)
@pytest.mark.parametrize("value", ["[]", "7", "{}", '{"choices":[]}', '{"content":7}'])
def test_json_that_is_no_answer_is_none(dialect: Dialect, mode: StreamMode, value: str) -> None:
    events = mode is StreamMode.SSE and dialect is not OLLAMA
    body = sse(value) if events else f"{value}\n".encode()
    reader = reader_of(dialect, mode=mode)
    if mode is StreamMode.JSON:
        with pytest.raises(ProtocolError, match=r"no JSON object|no message"):
            drain(reader, body)
    else:
        kinds = [frame.event for frame in drain(reader, body)]
        assert "response.completed" not in kinds


def test_malformed_json_comes_after_what_stood_before_it() -> None:
    for dialect in DIALECTS:
        told = opening(dialect, dialect.stream(message("hi")))
        bad = b"{\n" if dialect is OLLAMA else b"data: {\n\n"
        reader = reader_of(dialect)
        kinds = [frame.event for frame in reader.feed(told + bad)]
        assert "response.output_text.delta" in kinds
        assert isinstance(reader.failure, ProtocolError)
        with pytest.raises(ProtocolError):
            reader.feed(b"")


# ------------------------------------------------------------------------------------- limits


@each_dialect
@pytest.mark.parametrize("observed", [False, True])
def test_one_event_is_limited(dialect: Dialect, *, observed: bool) -> None:
    small = limits(event_bytes=1000)
    reader = reader_of(dialect, limits=small, observed=observed)
    body = dialect.stream(message("hi")).replace(b'"hi"', b'"' + b"x" * 2000 + b'"')
    with pytest.raises(SSEStreamLimitError, match="SSE event exceeded 1000 byte limit"):
        drain(reader, body, bytewise)


@each_dialect
@pytest.mark.parametrize("chunking", [whole, bytewise])
def test_the_number_of_events_is_limited_where_something_is_hidden(
    dialect: Dialect, chunking: Chunking
) -> None:
    body, few = dialect.stream(message("word " * 60)), limits(frames=20)
    with pytest.raises(SSEStreamLimitError, match="SSE stream exceeded frame limit"):
        drain(reader_of(dialect, limits=few), body, chunking)
    assert drain(reader_of(dialect, limits=few, observed=True), body, chunking)


@each_dialect
@pytest.mark.parametrize("mode", StreamMode)
def test_what_an_answer_makes_us_keep_is_limited(dialect: Dialect, mode: StreamMode) -> None:
    write = dialect.stream if mode is StreamMode.SSE else dialect.whole
    reader = reader_of(dialect, mode=mode, limits=replace(LIMITS, retained_bytes=400))
    error = "Responses retained state exceeded byte limit"
    with pytest.raises(SSEStreamLimitError, match=error):
        drain(reader, write(message("word " * 100)), bytewise)


@each_dialect
def test_lone_surrogates_survive(dialect: Dialect) -> None:
    body = dialect.stream(message("a")).replace(b'"a"', b'"\\ud83d"')
    events = read(dialect, body)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "\ud83d"


@given(dialects, st.binary(max_size=200), st.integers(0, 400))
def test_rubbish_is_an_error_of_ours_or_nothing(dialect: Dialect, junk: bytes, place: int) -> None:
    body = dialect.stream(reasoning("r"), message("hi"), function_call("c", "shell", {"a": 1}))
    reader = reader_of(dialect)
    try:
        frames = drain(reader, body[:place] + junk + body[place:])
    except SottovoceError:
        return
    if frames and frames[-1].event in TERMINALS:
        check_sent(b"".join(frame.raw for frame in frames))
