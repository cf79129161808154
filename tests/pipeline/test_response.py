"""What a stream stands for: the accumulated response."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lifecycle import ItemPhase, Phase
from pipeline.matching import match_output
from pipeline.response import ItemState, ResponseState, apply_responses_event
from tests import builders, strategies
from tests.builders import custom_call, function_call, message, reasoning, refusal, usage


def state_of(*events: builders.Event) -> ResponseState:
    state = ResponseState()
    for event in (*builders.opening(), *events):
        apply_responses_event(event, state, len(builders.compact(event).encode()))
    return state


def half(item: builders.Item, events: int) -> ItemState:
    """Return an item after its first events."""
    return state_of(*builders.item_events(item, 0)[:events]).items[0]


def test_phases_and_what_the_response_says() -> None:
    state = ResponseState()
    assert (state.phase, state.id, state.model, state.status) == (Phase.NONE, None, None, None)
    created, in_progress = builders.opening()
    apply_responses_event(created, state)
    assert (state.phase, state.id, state.model) == (Phase.CREATED, "resp_A", builders.MODEL)
    apply_responses_event({**created, "type": "response.queued"}, state)
    assert state.phase is Phase.QUEUED
    apply_responses_event(in_progress, state)
    assert state.phase is Phase.IN_PROGRESS
    apply_responses_event(builders.terminal(usage=usage(1, 2)), state)
    assert (state.phase, state.terminal) == (Phase.COMPLETED, "response.completed")
    assert state.usage == usage(1, 2)
    assert state.status == "completed"
    assert "resp_A" in repr(state)


@given(st.data())
def test_the_output_is_what_was_done_in_index_order(data: st.DataObject) -> None:
    items = data.draw(strategies.outputs(1, recall=True, client=True))
    events = data.draw(strategies.hop_events(items))
    state = state_of(*events[2:-1])
    assert state.output() == items
    assert all(item.phase is ItemPhase.DONE for item in state.ordered())
    assert all(not item.texts for item in state.ordered())


def test_numbers() -> None:
    assert state_of().numbered is False
    state = ResponseState()
    for event in builders.numbered(builders.opening(), start=7):
        apply_responses_event(event, state)
    assert (state.numbered, state.sequence) == (True, 8)
    apply_responses_event({"type": "response.new", "sequence_number": "9"}, state)
    assert state.sequence == 8


def test_texts_grow_and_are_settled() -> None:
    item = half(message("hello world"), 5)
    assert "".join(item.texts["text", 0]) == "hello worl"
    assert item.snapshot("incomplete") == message("hello worl", status="incomplete") | {
        "id": item.id,
        "content": [{"type": "output_text", "text": "hello worl", "annotations": []}],
    }
    settled = state_of(
        *builders.item_events(message("hello"), 0)[:3],
        {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "bye"},
    ).items[0]
    assert settled.texts == {("text", 0): ["bye"]}


@pytest.mark.parametrize(
    ("item", "member"),
    [
        (message("hi"), "content"),
        (refusal("no"), "content"),
        (reasoning("why"), "summary"),
        (function_call("c", "s", '{"a":1}'), "arguments"),
        (custom_call("c", "s", "text"), "input"),
    ],
)
def test_a_snapshot_is_the_item_as_far_as_it_has_come(item: builders.Item, member: str) -> None:
    whole = half(item, len(builders.item_events(item, 0)) - 1).snapshot("completed")
    expected = item[member]
    if isinstance(expected, list):
        expected = [{k: v for k, v in part.items() if k != "logprobs"} for part in expected]
    assert whole[member] == expected
    assert whole["id"] == item["id"]


def test_raw_reasoning_has_its_own_text() -> None:
    delta = {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0}
    added = builders.item_events(reasoning(""), 0)[0]
    item = state_of(added, delta | {"delta": "so"}, delta | {"delta": "?"}).items[0]
    assert item.snapshot("incomplete")["content"] == [{"type": "reasoning_text", "text": "so?"}]


def test_a_call_as_it_becomes_known() -> None:
    call = function_call("c1", "shell", '{"a":1}')
    state = state_of(*builders.nameless(builders.item_events(call, 0))[:-2])
    item = state.items[0]
    assert (item.name, item.call_id, item.arguments) == ("", "", '{"a":1}')
    done = builders.item_events(call, 0)[-2] | {"name": "shell"}
    apply_responses_event(done, state)
    assert item.phase is ItemPhase.ARGUMENTS_DONE
    assert item.name == "shell"
    apply_responses_event(builders.item_done(call, 0), state)
    assert (item.call_id, item.value) == ("c1", call)
    assert "function_call" in repr(item)


def test_values_that_are_no_text_are_none() -> None:
    item = ItemState(0, {"type": "function_call", "id": 5, "name": [], "call_id": {}})
    assert (item.id, item.name, item.call_id, item.arguments) == ("", "", "", "")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"type": "function_call"}, True),
        ({"type": "mcp_approval_request"}, True),
        ({"type": "tool_search_call", "execution": "client"}, True),
        ({"type": "tool_search_call", "execution": "server"}, False),
        ({"type": "mcp_call"}, False),
        ({"type": "message"}, False),
    ],
)
def test_whose_call_it_is(item: builders.Item, expected: bool) -> None:
    state = ItemState(0, item)
    assert state.is_client_call is expected
    assert state.may_stay_open("response.incomplete") is expected
    assert state.may_stay_open("response.completed") is False


def test_the_newest_version_of_an_item_counts() -> None:
    thought, newer = (reasoning("why", encrypted=text) for text in ("old", "new"))
    state = state_of(*builders.item_events(thought, 0), builders.terminal(output=[newer]))
    assert state.output() == [newer]
    assert state.items[0].in_terminal
    assert not state.mended


def test_but_not_its_id_nor_its_name() -> None:
    call = function_call("c1", "shell", "{}")
    for other in (call | {"id": "fc_2"}, call | {"name": "recall"}):
        state = state_of(*builders.item_events(call, 0), builders.terminal(output=[other]))
        assert state.output() == [call]
        assert state.mended


def test_what_was_done_stays_done() -> None:
    events = builders.item_events(message("hi"), 0)
    state = state_of(*events, builders.item_done(message("other"), 0), events[2])
    assert state.output() == [message("hi")]
    assert state.items[0].texts == {}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([message("b"), message("a")], [1, 0]),
        ([message("a") | {"id": "x"}, message("b") | {"id": "y"}], [0, 1]),
        ([message("a"), message("new")], [0, 1]),
        ([message("a"), reasoning("new")], [0, None]),
        ([message("a"), message("a")], [0, None]),
        ([function_call("c", "s", "{}"), message("b")], [None, 1]),
        ([None, {}, message("b")], [1]),
    ],
)
def test_pairing_a_terminals_items(output: list[Any], expected: list[int | None]) -> None:
    events = [e for n, text in enumerate("ab") for e in builders.item_events(message(text), n)]
    pairs = match_output(state_of(*events), output)
    assert [None if item is None else item.index for item, _ in pairs] == expected


def test_calls_pair_by_their_call_id() -> None:
    calls = [function_call(f"c{n}", "shell", "{}") for n in (1, 2)]
    state = state_of(*(e for n, call in enumerate(calls) for e in builders.item_events(call, n)))
    output = [calls[1] | {"id": "x"}, calls[0] | {"id": "y"}]
    assert [item.index for item, _ in match_output(state, output) if item] == [1, 0]


def test_errors_of_either_kind() -> None:
    error = {"type": "error", "code": "x", "message": "no"}
    assert state_of(error).error == error
    state = state_of(error, builders.failed("server_error", "really"))
    assert state.error == {"code": "server_error", "message": "really"}


def test_usage_that_makes_no_sense_is_none() -> None:
    created = builders.opening()[0]
    odd = {**created, "response": created["response"] | {"usage": {}}}
    assert state_of(odd).usage is None


@given(st.data())
def test_retained_is_what_is_held(data: st.DataObject) -> None:
    items = data.draw(strategies.outputs(1, recall=False, client=True, least=1))
    events = data.draw(strategies.hop_events(items, numbers=False))
    state = state_of(*events[2:-1])
    dones = [e for e in events if e["type"] == "response.output_item.done"]
    assert state.retained == sum(len(builders.compact(done).encode()) for done in dones)
    apply_responses_event(events[-1], state, size := len(builders.compact(events[-1]).encode()))
    assert state.retained == size
