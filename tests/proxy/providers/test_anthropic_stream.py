"""Anthropic messages as they are streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipeline.reader import StreamMode
from proxy.providers.replay import unwrap
from tests import builders
from tests.builders import function_call, message, reasoning
from tests.dialects import (
    ANTHROPIC,
    USAGE,
    anthropic_block,
    anthropic_end,
    anthropic_start,
    anthropic_stream,
    sse,
    usage,
)
from tests.proxy.providers.reading import essences, outcome, read, reader_of

if TYPE_CHECKING:
    from tests.builders import Event

Value = dict[str, Any]
THINKING = reasoning("Let me think.")
CALL = function_call("toolu_1", "shell", {"command": "ls"})


def said(*events: Value) -> list[Event]:
    return read(ANTHROPIC, sse(*events, named=True))


def block(index: int, start: Value, *deltas: Value) -> list[Value]:
    """Return the events of a block."""
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": one} for one in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def test_thinking_carries_its_block_and_signature() -> None:
    events = read(ANTHROPIC, anthropic_stream(THINKING, message("hi")))
    thought, _ = outcome(events)[1]
    assert thought["summary"][0]["text"] == "Let me think."
    kept = {"type": "thinking", "thinking": "Let me think.", "signature": "sig=="}
    assert unwrap("anthropic", thought["encrypted_content"]) == kept
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done[0] == thought


@pytest.mark.parametrize("mode", StreamMode)
def test_redacted_thinking_is_kept_and_shows_nothing(mode: StreamMode) -> None:
    write = ANTHROPIC.stream if mode is StreamMode.SSE else ANTHROPIC.whole
    body = write(reasoning(""), THINKING, CALL)
    first, second, call = outcome(read(ANTHROPIC, body, mode=mode))[1]
    assert first["summary"] == []
    kept = unwrap("anthropic", first["encrypted_content"])
    assert kept == {"type": "redacted_thinking", "data": "gAAAA"}
    assert second["summary"]
    assert call["call_id"] == "toolu_1"


def test_thinking_that_is_not_shown_keeps_its_signature() -> None:
    start = {"type": "thinking", "thinking": ""}
    signed = {"type": "signature_delta", "signature": "sig"}
    events = said(
        anthropic_start(), *block(0, start, signed), *block(1, start, signed), *anthropic_end("x")
    )
    thoughts = outcome(events)[1]
    assert [thought["summary"] for thought in thoughts] == [[], []]
    kept = unwrap("anthropic", thoughts[0]["encrypted_content"])
    assert kept == {"type": "thinking", "thinking": "", "signature": "sig"}


def test_text_blocks_in_a_row_are_parts_of_one_message() -> None:
    text = {"type": "text", "text": ""}
    events = said(
        anthropic_start(),
        *block(0, text, {"type": "text_delta", "text": "one"}),
        *block(1, text | {"text": "tw"}, {"type": "text_delta", "text": "o"}),
        *anthropic_end("end_turn"),
    )
    [item] = outcome(events)[1]
    assert [part["text"] for part in item["content"]] == ["one", "two"]


def test_a_call_is_done_at_its_stop() -> None:
    reader = reader_of(ANTHROPIC)
    reader.feed(sse(anthropic_start(), named=True))
    kinds = [frame.event for frame in reader.feed(sse(*anthropic_block(CALL, 0), named=True))]
    assert kinds[-1] == "response.output_item.done"
    assert "response.function_call_arguments.delta" in kinds


def test_a_ping_may_come_anywhere() -> None:
    ping = {"type": "ping"}
    inner = [value for one in anthropic_block(message("hi"), 0) for value in (ping, one)]
    events = said(ping, anthropic_start(), ping, *inner, *anthropic_end("end_turn"))
    assert essences(outcome(events)[1]) == [("message", ["hi"])]


@pytest.mark.parametrize("value", [{}, {"command": "ls"}])
def test_arguments_may_stand_in_the_start(value: Value) -> None:
    start = {"type": "tool_use", "id": "toolu_1", "name": "shell", "input": value}
    empty = {"type": "input_json_delta", "partial_json": ""}
    for deltas in ([], [empty], [empty, empty]):
        events = said(anthropic_start(), *block(0, start, *deltas), *anthropic_end("tool_use"))
        assert essences(outcome(events)[1]) == [("function_call", None, "shell", value)]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("max_tokens", "max_output_tokens"),
        ("model_context_window_exceeded", "max_output_tokens"),
        ("refusal", "content_filter"),
    ],
)
@pytest.mark.parametrize("mode", StreamMode)
def test_an_answer_that_was_stopped_is_incomplete(reason: str, told: str, mode: StreamMode) -> None:
    write = ANTHROPIC.stream if mode is StreamMode.SSE else ANTHROPIC.whole
    events = read(ANTHROPIC, write(message("hi"), reason=reason), mode=mode)
    response = events[-1]["response"]
    assert response["incomplete_details"] == {"reason": told}
    assert response["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("mode", StreamMode)
def test_a_refusal_without_blocks(mode: StreamMode) -> None:
    write = ANTHROPIC.stream if mode is StreamMode.SSE else ANTHROPIC.whole
    events = read(ANTHROPIC, write(reason="refusal"), mode=mode)
    assert outcome(events)[:2] == ("incomplete", [])


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence", "pause_turn", "max_tokens", "new"])
def test_whole_calls_beat_any_stop_reason(reason: str) -> None:
    assert outcome(read(ANTHROPIC, anthropic_stream(CALL, reason=reason)))[0] == "completed"


def test_a_call_that_was_cut_off_is_not_done() -> None:
    start = {"type": "tool_use", "id": "toolu_2", "name": "shell", "input": {}}
    cut = {"type": "input_json_delta", "partial_json": '{"command": "rm -rf /tm'}
    events = said(
        anthropic_start(),
        *anthropic_block(CALL, 0),
        *block(1, start, cut),
        *anthropic_end("max_tokens"),
    )
    status, output, _ = outcome(events)
    assert status == "incomplete"
    assert [call["call_id"] for call in output] == ["toolu_1"]


def test_usage_counts_both_caches_and_what_came_last() -> None:
    start = anthropic_start()
    start["message"]["usage"] = {
        "input_tokens": 5,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 100,
        "output_tokens": 1,
    }
    counted = {
        "input_tokens": 6,
        "output_tokens": 30,
        "cache_read_input_tokens": None,
        "output_tokens_details": {"thinking_tokens": 10},
    }
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": counted}
    events = said(start, *anthropic_block(message("hi"), 0), end, {"type": "message_stop"})
    assert outcome(events)[2] == usage(126, 30, cached=100, reasoning_tokens=10, written=20)


def test_an_empty_completion_is_one() -> None:
    assert outcome(read(ANTHROPIC, anthropic_stream())) == ("completed", [], USAGE)


def test_a_stop_reason_but_no_stop() -> None:
    events = said(
        anthropic_start(), *anthropic_block(message("hi"), 0), anthropic_end("end_turn")[0]
    )
    assert outcome(events)[0] == "completed"


def test_a_message_without_a_start_is_one_all_the_same() -> None:
    events = said(*anthropic_block(message("hi"), 0), *anthropic_end("end_turn"))
    assert essences(outcome(events)[1]) == [("message", ["hi"])]
    assert events[0]["response"]["model"] == builders.MODEL


def test_a_block_that_never_stops_ends_with_the_message() -> None:
    events = said(anthropic_start(), *anthropic_block(CALL, 0)[:-1], *anthropic_end("tool_use"))
    assert essences(outcome(events)[1]) == [("function_call", None, "shell", {"command": "ls"})]


def test_blocks_and_events_that_nobody_knows_are_left_out() -> None:
    hosted = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    events = said(
        anthropic_start(),
        *block(0, hosted, {"type": "input_json_delta", "partial_json": "{}"}),
        {"type": "content_block_delta", "index": 9, "delta": {"type": "text_delta", "text": "?"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta"}},
        {"type": "brand_new"},
        *anthropic_block(message("hi"), 1),
        *anthropic_end("end_turn"),
    )
    assert essences(outcome(events)[1]) == [("message", ["hi"])]


@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        ("overloaded_error", "Overloaded", "server_is_overloaded"),
        ("rate_limit_error", "Slow down", "rate_limit_exceeded"),
        ("api_error", "Internal server error", "server_error"),
        ("billing_error", "No credit", "insufficient_quota"),
        ("invalid_request_error", "prompt is too long: 2 > 1", "context_length_exceeded"),
        ("invalid_request_error", "messages: roles must alternate", "invalid_prompt"),
        ("authentication_error", "invalid x-api-key", "authentication_error"),
    ],
)
def test_errors_are_told_in_codes_that_clients_know(kind: str, text: str, code: str) -> None:
    start = sse(anthropic_start(), named=True)
    events = read(ANTHROPIC, start + ANTHROPIC.error(kind, text))
    assert events[-1]["response"]["error"] == {"code": code, "message": text}


def test_names_lead_back_to_what_the_client_declared() -> None:
    tools = [
        {"type": "custom", "name": "apply_patch"},
        {"type": "namespace", "name": "git", "tools": [builders.CLIENT_TOOL]},
    ]
    body = anthropic_stream(
        function_call("toolu_1", "apply_patch", {"input": "x"}),
        function_call("toolu_2", "git__shell", {"command": "ls"}),
    )
    output = outcome(read(ANTHROPIC, body, builders.request(tools=tools)))[1]
    assert essences(output) == [
        ("custom_tool_call", None, "apply_patch", "x"),
        ("function_call", "git", "shell", {"command": "ls"}),
    ]
