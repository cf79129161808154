"""Which events of a hop the client sees: hidden calls, unresolved ones, held text."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.accepted import Accepted
from pipeline.errors import ProtocolError, SSEStreamLimitError
from pipeline.intercept import HELD_TEXT_BYTES, HiddenCall, Interception, Verdict
from pipeline.lifecycle import EVENTS, Action
from pipeline.response import ResponseState, apply_responses_event
from tests import builders, strategies
from tests.builders import custom_call, frame, function_call, message, recall_call

if TYPE_CHECKING:
    from tests.builders import Event, Item

SHOW, HIDE, HOLD = Verdict
NAMES = frozenset({"recall"})


class Hop:
    """A hop's state and its interception, without a client."""

    def __init__(self, *, names: frozenset[str] = NAMES, **options: Any) -> None:
        limits = {"deferred_bytes": 1 << 20, "hidden_bytes": 1 << 20, "hold_text": False}
        self.state = ResponseState()
        self.seen = Interception(names, **(limits | options))
        for event in builders.opening():
            apply_responses_event(event, self.state)

    def take(self, *events: Event) -> list[Verdict]:
        """Accumulate events and return what is decided."""
        return [self._take(copy.deepcopy(event)) for event in events]

    def _take(self, event: Event) -> Verdict:
        item = self.state.items.get(event.get("output_index", -1))
        self.seen.check_call(event, item)
        apply_responses_event(event, self.state)
        item = self.state.items.get(event.get("output_index", -1))
        accepted = Accepted(event, raw := frame(event), raw, frozenset(), verbatim=True)
        return self.seen.decide(accepted, item)

    def end(self, kind: str = "completed", **members: Any) -> None:
        apply_responses_event(builders.terminal(status=kind, **members), self.state)
        self.seen.settle(self.state)

    def released(self) -> list[tuple[str, int]]:
        return [
            (one.event["type"].rpartition(".")[2], one.event.get("output_index", -1))
            for one in self.seen.release()
        ]


def events_of(item: Item, index: int = 0, *, nameless: bool = False) -> list[Event]:
    events = builders.item_events(item, index)
    return builders.nameless(events) if nameless else events


ONE = recall_call("c1", {"query": "x"})
SHELL = function_call("c2", "shell", {"command": "ls"})


# -------------------------------------------------------------------------------- hidden calls


@pytest.mark.parametrize("call", [ONE, custom_call("c1", "recall", "x")])
def test_every_event_of_a_hidden_call_is_hidden(call: Item) -> None:
    hop = Hop()
    events = events_of(call)
    assert set(hop.take(*events)) == {HIDE}
    seen = hop.seen
    assert seen.recall_indices == {0}
    assert seen.hidden_bytes == sum(len(frame(event)) for event in events)
    assert seen.unresolved_tool_bytes == 0
    text = call.get("arguments") or call["input"]
    assert seen.parsed_recall_inputs == {0: text}
    assert seen.pending_recalls == [HiddenCall(0, "c1", "recall", text, call["type"])]
    assert not seen.other_tool_seen


def test_a_call_is_pending_as_soon_as_its_arguments_are_complete() -> None:
    hop = Hop()
    *begun, settled, done = events_of(ONE)
    hop.take(*begun)
    assert hop.seen.pending_recalls == []
    assert hop.seen.busy(hop.state)
    hop.take(settled)
    assert [call.call_id for call in hop.seen.pending_recalls] == ["c1"]
    assert hop.seen.busy(hop.state)
    hop.take(done)
    assert len(hop.seen.pending_recalls) == 1
    assert not hop.seen.busy(hop.state)


def test_a_lone_done_is_hidden_too() -> None:
    hop = Hop()
    assert hop.take(builders.item_done(ONE, 0)) == [HIDE]
    assert hop.seen.parsed_recall_inputs == {0: '{"query":"x"}'}


def test_a_hidden_call_defers_nothing() -> None:
    hop = Hop()
    hop.take(*events_of(ONE)[:2])
    assert set(hop.take(*events_of(message("hi"), 1))) == {SHOW}


def test_where_no_tool_is_declared_everything_is_shown() -> None:
    hop = Hop(names=frozenset())
    assert set(hop.take(*events_of(ONE), *events_of(function_call("c", "", "{}"), 1))) == {SHOW}
    assert hop.seen.other_tool_seen


def test_several_tools_may_be_hidden() -> None:
    hop = Hop(names=frozenset({"recall", "clock"}))
    assert set(hop.take(*events_of(ONE))) == {HIDE}
    assert set(hop.take(*events_of(function_call("c4", "clock", "{}"), 1))) == {HIDE}
    assert [call.name for call in hop.seen.pending_recalls] == ["recall", "clock"]


def test_what_a_hidden_call_is_answered_with() -> None:
    call = HiddenCall(0, "c1", "recall", "{}", "custom_tool_call")
    assert call.output("x") == {
        "type": "custom_tool_call_output",
        "call_id": "c1",
        "output": "x",
    }
    assert call.key == ("recall", "{}")


# ---------------------------------------------------------------------------- unresolved calls


def test_an_unresolved_call_is_held_and_counted() -> None:
    hop = Hop()
    events = events_of(SHELL, nameless=True)[:-1]
    assert set(hop.take(*events)) == {HOLD}
    assert hop.seen.unresolved_tool_indices == {0}
    assert hop.seen.unresolved_tool_bytes == sum(len(frame(event)) for event in events)
    assert hop.seen.holding
    assert hop.released() == []


def test_it_is_discarded_once_it_is_ours() -> None:
    hop = Hop()
    hop.take(*events_of(ONE, nameless=True))
    assert hop.seen.recall_indices == {0}
    assert (hop.seen.unresolved_tool_indices, hop.seen.unresolved_tool_bytes) == (set(), 0)
    assert hop.seen.hidden_bytes > 0
    assert [call.arguments for call in hop.seen.pending_recalls] == ['{"query":"x"}']
    assert hop.released() == []
    assert not hop.seen.holding


def test_it_is_released_once_it_is_the_clients() -> None:
    hop = Hop()
    hop.take(*events_of(SHELL, nameless=True))
    assert hop.seen.other_tool_seen
    kinds = [kind for kind, _ in hop.released()]
    assert (kinds[0], kinds[-1]) == ("added", "done")
    assert hop.seen.unresolved_tool_bytes == 0
    assert hop.take(builders.item_events(message("more"), 1)[0]) == [SHOW]


def test_items_that_open_later_wait_as_a_whole() -> None:
    hop = Hop()
    hop.take(events_of(message("first"))[0])
    hop.take(*events_of(SHELL, 1, nameless=True)[:-1])
    assert set(hop.take(*events_of(message("later"), 2))) == {HOLD}
    assert hop.take(*events_of(message("first"))[1:3]) == [SHOW, SHOW]
    assert set(hop.take(*events_of(ONE, 3))) == {HIDE}
    assert hop.released() == []
    hop.take(events_of(SHELL, 1)[-1])
    order = [index for _, index in hop.released()]
    assert order == sorted(order)
    assert set(order) == {1, 2}


def test_two_unresolved_calls_are_released_in_order() -> None:
    hop = Hop()
    other = function_call("c3", "shell", "{}")
    hop.take(events_of(SHELL, 0, nameless=True)[0], events_of(other, 1, nameless=True)[0])
    hop.take(events_of(other, 1)[-1])
    assert hop.released() == []
    hop.take(events_of(SHELL, 0)[-1])
    assert [index for _, index in hop.released()] == [0, 0, 1, 1]


@pytest.mark.parametrize("name", ["recall", "shell"])
def test_the_terminal_decides_what_is_left(name: str) -> None:
    hop = Hop()
    hop.take(*events_of(function_call("c1", "", "{}"))[:-1])
    hop.end(output=[function_call("c1", name, "{}")])
    assert hop.seen.recall_indices == ({0} if name == "recall" else set())
    assert bool(hop.released()) is (name == "shell")


@pytest.mark.parametrize("end", ["completed", "incomplete"])
def test_or_can_not(end: str) -> None:
    hop = Hop()
    hop.take(*events_of(function_call("c1", "", "{}"))[:-1])
    with pytest.raises(ProtocolError, match="was never named") as caught:
        hop.end(end)
    assert caught.value.code == "server_error"


def test_a_failure_drops_what_was_never_named() -> None:
    hop = Hop()
    hop.take(*events_of(function_call("c1", "", "{}"))[:-1], *events_of(message("hi"), 1))
    hop.end("failed")
    assert hop.seen.dropped == {0}
    assert {index for _, index in hop.released()} == {1}


# -------------------------------------------------------------------------------- disagreement


@pytest.mark.parametrize("nameless", [True, False])
def test_hidden_arguments_may_not_change(nameless: bool) -> None:
    hop = Hop()
    *begun, _ = events_of(ONE, nameless=nameless)
    hop.take(*begun)
    with pytest.raises(ProtocolError, match=r"disagree with response\.output_item\.done"):
        hop.take(builders.item_done(ONE | {"arguments": '{"query":"y"}'}, 0))


def test_nor_in_the_terminal() -> None:
    hop = Hop()
    hop.take(*events_of(ONE))
    with pytest.raises(ProtocolError, match=r"disagree with response\.completed"):
        hop.end(output=[ONE | {"arguments": "{}"}])


def test_custom_input_is_compared_as_well() -> None:
    hop = Hop()
    call = custom_call("c1", "recall", "some text")
    *begun, settled, _ = events_of(call)
    hop.take(*begun)
    with pytest.raises(ProtocolError, match=r"custom_tool_call_input\.done"):
        hop.take(settled | {"input": "other text"})


def test_empty_arguments_at_the_end_are_no_others() -> None:
    hop = Hop()
    *begun, _ = events_of(ONE)
    hop.take(*begun, builders.item_done(ONE | {"arguments": ""}, 0))
    assert hop.seen.parsed_recall_inputs == {0: '{"query":"x"}'}


@pytest.mark.parametrize(("first", "then"), [("shell", "recall"), ("recall", "shell")])
def test_a_name_may_not_change_to_ours_or_from_it(first: str, then: str) -> None:
    hop = Hop()
    hop.take(*events_of(function_call("c1", first, "{}"))[:-1])
    with pytest.raises(ProtocolError, match="the name of a hidden call changed"):
        hop.take(builders.item_done(function_call("c1", then, "{}"), 0))


@pytest.mark.parametrize("name", [{"a": 1}, ["recall"], 5, None, ""])
def test_a_name_that_is_none_changes_nothing(name: Any) -> None:
    hop = Hop()
    *begun, done = events_of(ONE)
    hop.take(*begun)
    hop.seen.check_call(done | {"item": ONE | {"name": name}}, hop.state.items[0])
    assert hop.take(done) == [HIDE]
    assert [call.name for call in hop.seen.pending_recalls] == ["recall"]


def test_other_names_are_the_clients_business() -> None:
    hop = Hop()
    hop.take(*events_of(function_call("c1", "a", "{}"))[:-1])
    assert hop.take(builders.item_done(function_call("c1", "b", "{}"), 0)) == [SHOW]


# ------------------------------------------------------------------------------- foreign events


def test_events_without_an_item_are_shown_unless_they_tell() -> None:
    hop = Hop()
    hop.take(*events_of(ONE))
    assert hop.take({"type": "acme:trace", "text": "hello"}) == [SHOW]
    assert hop.take({"type": "acme:trace", "call": "c1"}) == [HIDE]
    assert hop.take({"type": "acme:trace", "item": ONE["id"]}) == [HIDE]


@pytest.mark.parametrize("name", ["recall", "shell"])
def test_or_wait_where_the_call_is_not_resolved(name: str) -> None:
    hop = Hop()
    call = function_call("c1", name, "{}")
    hop.take(*events_of(call, nameless=True)[:-1])
    assert hop.take({"type": "acme:trace", "item": call["id"]}) == [HOLD]
    hop.take(events_of(call)[-1])
    assert (("acme:trace", -1) in hop.released()) is (name == "shell")


def test_noise_waits_and_is_counted() -> None:
    hop = Hop(deferred_bytes=100)
    hop.seen.hold_noise(b"x" * 60)
    assert hop.seen.unresolved_tool_bytes == 60
    assert hop.seen.holding
    with pytest.raises(SSEStreamLimitError, match="recall stream exceeded deferred event limit"):
        hop.seen.hold_noise(b"x" * 41)
    assert hop.seen.release_noise() == [b"x" * 60, b"x" * 41]
    assert hop.seen.unresolved_tool_bytes == 0


# -------------------------------------------------------------------------------------- limits


def test_hidden_bytes_are_limited() -> None:
    size = len(frame(events_of(ONE)[0]))
    hop = Hop(hidden_bytes=size)
    hop.take(events_of(ONE)[0])
    with pytest.raises(SSEStreamLimitError, match="recall stream exceeded hidden byte limit"):
        hop.take(events_of(ONE)[1])


def test_held_bytes_are_limited() -> None:
    first, second, *_ = events_of(SHELL, nameless=True)
    hop = Hop(deferred_bytes=len(frame(first)))
    hop.take(first)
    with pytest.raises(SSEStreamLimitError, match="recall stream exceeded deferred event limit"):
        hop.take(second)


def test_what_was_held_counts_as_hidden_once_it_is() -> None:
    events = events_of(ONE, nameless=True)
    size = sum(len(frame(event)) for event in events)
    Hop(hidden_bytes=size).take(*events)
    with pytest.raises(SSEStreamLimitError, match="hidden"):
        Hop(hidden_bytes=size - 1).take(*events)


# ------------------------------------------------------------------------------------ held text


def test_text_is_held_until_the_end() -> None:
    hop = Hop(hold_text=True)
    assert set(hop.take(*events_of(message("hi")))) == {HOLD}
    assert hop.seen.held_text_indices == {0}
    assert not hop.seen.busy(hop.state)
    assert set(hop.take(*events_of(builders.reasoning("why"), 1))) == {HOLD}
    hop.end()
    assert {index for _, index in hop.released()} == {0, 1}


def test_and_dropped_where_a_continuation_follows() -> None:
    hop = Hop(hold_text=True)
    hop.take(*events_of(message("hi")), *events_of(ONE, 1), *events_of(message("more"), 2))
    hop.end()
    assert hop.seen.dropped == {0, 2}
    assert hop.released() == []
    assert hop.seen.held_text_indices == set()


@pytest.mark.parametrize(("items", "end"), [([ONE], "incomplete"), ([ONE, SHELL], "completed")])
def test_but_not_where_the_turn_ends(items: list[Item], end: str) -> None:
    hop = Hop(hold_text=True)
    hop.take(*events_of(message("hi")))
    for index, item in enumerate(items, start=1):
        hop.take(*events_of(item, index))
    hop.end(end)
    assert hop.seen.dropped == set()
    assert 0 in {index for _, index in hop.released()}


def test_all_of_it_goes_out_past_its_limit() -> None:
    hop = Hop(hold_text=True)
    for index in (0, 1):
        hop.take(events_of(message("hi"), index)[0] | {"output_index": index})
    delta = events_of(message("hi"))[2] | {"delta": "x" * HELD_TEXT_BYTES}
    hop.take(delta)
    assert {index for _, index in hop.released()} == {0, 1}
    assert hop.take(events_of(message("again"), 2)[0]) == [SHOW]


# ---------------------------------------------------------------------------------- properties


@given(st.data())
def test_each_item_is_shown_whole_or_not_at_all(data: st.DataObject) -> None:
    items = data.draw(strategies.outputs(1, recall=True, client=True, least=1))
    events = data.draw(strategies.hop_events(items))
    if data.draw(st.booleans()):
        events = builders.nameless(events)
    hop = Hop()
    shown: dict[int, list[str]] = {}
    for event in events[2:-1]:
        (verdict,) = hop.take(event)
        released = [event] if verdict is SHOW else [one.event for one in hop.seen.release()]
        for one in released:
            shown.setdefault(one["output_index"], []).append(one["type"])
    hop.end(output=items)
    for one in hop.seen.release():
        shown.setdefault(one.event["output_index"], []).append(one.event["type"])
    for index, item in enumerate(items):
        hidden = item.get("name") == strategies.RECALL
        of_item = [e["type"] for e in events[2:-1] if e["output_index"] == index]
        assert shown.get(index, []) == ([] if hidden else of_item)
    assert {one.index for one in hop.seen.pending_recalls} == hop.seen.recall_indices
    assert hop.seen.unresolved_tool_bytes == 0
    assert all(EVENTS[kind].action is not Action.RESPONSE for run in shown.values() for kind in run)
