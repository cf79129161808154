"""Providers that break the rules on purpose: no client is harmed, no turn is without its end."""

from __future__ import annotations

import pytest

from pipeline.commands import Finish
from pipeline.errors import UpstreamError
from pipeline.events import KeepAliveDue
from pipeline.outcome import Ending
from tests import builders, strategies
from tests.builders import (
    body,
    failed,
    function_call,
    item_events,
    message,
    numbered,
    opening,
    recall_call,
    stream,
    terminal,
)
from tests.playbook import (
    Answer,
    Playbook,
    Played,
    broken,
    chunk,
    found,
    limits,
    opened,
    run_turn,
    turn,
)
from tests.sent import check_sent

CALL = recall_call("c1", {"query": "canary"})
SHELL = function_call("c2", "shell", {"command": "ls"})
AFTER = stream(message("hi"), response_id="resp_B")


def secretive(played: Played) -> None:
    """Check that the client got a sound stream with nothing hidden in it."""
    check_sent(played.client_bytes)
    for hidden in (b'"recall"', b"canary", b'"c1"'):
        assert hidden not in played.client_bytes


def test_items_that_are_renamed_in_every_event() -> None:
    events = strategies.rotated_ids(stream(CALL, message("so")))
    played = run_turn(hops=[events, strategies.rotated_ids(AFTER)])
    secretive(played)
    assert played.text == "sohi"


@pytest.mark.parametrize("other", [CALL, SHELL | {"call_id": "c1"}, recall_call("c1", "{}")])
def test_a_call_id_that_is_used_again_in_the_next_hop(other: builders.Item) -> None:
    played = run_turn(hops=[stream(CALL), stream(other, response_id="resp_B"), AFTER])
    check_sent(played.client_bytes)
    assert b"canary" not in played.client_bytes
    assert played.outcome.ending is Ending.COMPLETED


def test_a_call_id_that_is_used_twice_in_a_hop() -> None:
    played = run_turn(hops=[stream(CALL, recall_call("c1", {"query": "other"}))])
    secretive(played)
    assert played.response["error"]["message"] == "the upstream used one call id for two calls"


def test_a_visible_tool_that_the_terminal_names_recall() -> None:
    events = stream(SHELL)
    events[-1]["response"]["output"] = [SHELL | {"name": "recall"}]
    played = run_turn(hops=[events])
    check_sent(played.client_bytes)
    assert played.calls == []
    assert [item["name"] for item in played.response["output"]] == ["shell"]


def test_a_hundred_thousand_open_items() -> None:
    """The limit of items ends it long before memory does."""
    opened_items = [
        {"type": "response.output_item.added", "output_index": at, "item": {"type": "note"}}
        for at in range(100_000)
    ]
    played = run_turn(
        hops=[body([*opening(), *opened_items])],
        limits=limits(frames=200_000, stream_bytes=1 << 26, retained_bytes=1 << 26),
    )
    assert played.outcome.ending is Ending.FAILED
    assert len(played.turn.hop.state.items) <= 65_536
    assert played.events[-1]["type"] == "response.failed"


@pytest.mark.parametrize("index", [2**53, 2**63, 10**30, -1, 65_536])
@pytest.mark.parametrize("call", [CALL, SHELL])
def test_an_index_beyond_all_reason(index: int, call: builders.Item) -> None:
    events = [*opening(), *item_events(call, index), terminal(output=[call])]
    played = run_turn(hops=[body(numbered(events))])
    secretive(played) if call is CALL else check_sent(played.client_bytes)
    assert played.outcome.ending is Ending.FAILED
    assert played.response["error"]["code"] == "invalid_prompt"
    assert played.calls == []


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_hidden_call_in_a_response_that_came_to_nothing(end: str) -> None:
    if end == "failed":
        last = failed("server_is_overloaded", "no")
    else:
        last = {"type": "response.failed", "response": builders.response("resp_A", "cancelled")}
    played = run_turn(hops=[numbered([*stream(CALL, message("so"))[:-1], last])])
    secretive(played)
    assert played.events[-1]["type"] == "response.failed"
    assert len(played.requests) == 1
    assert played.performer.saved == [] or played.performer.saved[-1].outputs == ()


def test_a_terminal_with_items_that_nobody_saw() -> None:
    events = stream(message("one"))
    events[-1]["response"]["output"] += [SHELL, CALL]
    played = run_turn(hops=[events], results="found")
    secretive(played)
    assert [item["type"] for item in played.response["output"]] == ["message", "function_call"]
    assert [call.call_id for call in played.calls] == ["c1"]


@pytest.mark.parametrize(
    ("item", "streamed"), [(message("one"), 0), (message("one"), 3), (SHELL, 3)]
)
def test_a_terminal_with_items_that_lack_what_clients_append_to(
    item: builders.Item, streamed: int
) -> None:
    bare = builders.without(item, "content", "arguments")
    begun = builders.item_events(item, 0)[:streamed]
    played = run_turn(hops=[[*opening(), *begun, terminal(output=[bare])]], declared=False)
    check_sent(played.client_bytes)


@pytest.mark.parametrize(
    "more",
    [
        [terminal(output=[message("two")])],
        [failed("server_error", "no")],
        [builders.item_done(SHELL, 1)],
        [*opening("resp_Z"), *item_events(message("again"), 0), terminal("resp_Z")],
    ],
)
@pytest.mark.parametrize("first", [stream(message("one")), stream(CALL)])
def test_whatever_follows_a_terminal(
    more: list[builders.Event], first: list[builders.Event]
) -> None:
    played = run_turn(hops=[[*first, *more], [*AFTER, *more]])
    alone = run_turn(hops=[first, AFTER])
    assert played.client_bytes == alone.client_bytes
    assert played.outcome == alone.outcome


def test_signs_of_life_while_a_recovery_is_awaited() -> None:
    """Nothing of it shows before it is checked, but the client must not give up meanwhile."""
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(body(stream(CALL))), found("c1", "first")).skip()
    script.feed(opened(500), chunk(b"{}"), broken(UpstreamError("cut"))).skip()
    script.feed(opened(), chunk(body(AFTER[:-1]))).skip()
    assert script.turn.hop.phase == "recovery"
    assert b"response.in_progress" in script.feed(KeepAliveDue()).sent()
    script.feed(chunk(body(AFTER[-1:])))
    assert isinstance(script.performer.commands[-1], Finish)
    check_sent(script.performer.sent)


def test_a_cut_that_repeats_is_tried_once_and_recovered_once() -> None:
    """However often a provider breaks, the number of requests is small."""
    cut = Answer(body(AFTER[:2]), cut=UpstreamError("cut"))
    played = run_turn(hops=[stream(CALL), cut, cut, cut, cut, cut])
    secretive(played)
    assert len(played.requests) <= 5
    assert played.outcome.ending is Ending.FAILED
