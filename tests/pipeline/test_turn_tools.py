"""Several hidden tools in one turn: all of them hidden, the ones with effects kept waiting."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.commands import CancelTools, CloseUpstream, OpenUpstream, RunTool, Send
from pipeline.outcome import Ending
from pipeline.request import HiddenTool
from tests import builders, strategies
from tests.builders import (
    body,
    function_call,
    item_done,
    item_events,
    message,
    opening,
    output,
    recall_call,
    stream,
    terminal,
)
from tests.playbook import TOOL, Playbook, chunk, found, opened, run_turn, turn
from tests.sent import check_sent

WRITER = HiddenTool(
    "write_note",
    b'{"type":"function","name":"write_note","strict":false,"parameters":{"type":"object"}}',
    early=False,
)
TOOLS = (TOOL, WRITER)
LOOK = recall_call("c1", {"query": "x"})
NOTE = function_call("c2", "write_note", {"text": "a note"})
SHELL = function_call("c3", "shell", {"command": "ls"})
ANSWER = stream(message("hi"), response_id="resp_B")


def test_all_are_declared_last_in_their_order() -> None:
    played = run_turn(tools=TOOLS, hops=[ANSWER])
    names = [tool["name"] for tool in played.requests[0].body["tools"]]
    assert names == ["shell", "recall", "write_note"]


def test_the_choice_of_a_client_gets_all_of_them() -> None:
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "shell"}],
    }
    played = run_turn(builders.request(tool_choice=choice), tools=TOOLS, hops=[ANSWER])
    names = [one["name"] for one in played.requests[0].body["tool_choice"]["tools"]]
    assert names == ["shell", "recall", "write_note"]


def test_every_one_of_them_is_hidden() -> None:
    played = run_turn(
        tools=TOOLS, hops=[stream(LOOK, NOTE), ANSWER], results={"c1": "1", "c2": "2"}
    )
    assert played.text == "hi"
    check_sent(played.client_bytes)
    for word in (b"recall", b"write_note", b"c1", b"c2", b"a note"):
        assert word not in played.client_bytes
    assert played.requests[1].body["input"][-4:] == [
        LOOK,
        NOTE,
        output("c1", "1"),
        output("c2", "2"),
    ]


def test_the_echo_of_the_request_loses_all_of_them() -> None:
    def echoing(request: dict[str, Any]) -> list[builders.Event]:
        return stream(message("hi"), echo=request)

    played = run_turn(tools=TOOLS, hops=[echoing])
    assert [tool["name"] for tool in played.response["tools"]] == ["shell"]
    assert b"write_note" not in played.client_bytes


def test_only_what_changes_nothing_runs_before_the_response_is_complete() -> None:
    script = Playbook(turn(tools=TOOLS)).feed(opened()).skip()
    events = [*opening(), *item_events(NOTE, 0), *item_events(LOOK, 1)]
    script.feed(chunk(body(events))).expect(RunTool("c1", "recall", LOOK["arguments"]), Send)
    end = [terminal(output=[NOTE, LOOK])]
    late = RunTool("c2", "write_note", NOTE["arguments"])
    script.feed(chunk(body(end))).expect(late, CloseUpstream)
    script.feed(found("c1", "1")).expect()
    script.feed(found("c2", "2")).expect(OpenUpstream)


@pytest.mark.parametrize("how", ["failed", "incomplete"])
def test_what_waits_never_runs_when_the_response_does_not_complete(how: str) -> None:
    played = run_turn(tools=TOOLS, hops=[stream(NOTE, end=how)])
    assert played.calls == []
    assert any(isinstance(one, CancelTools) for one in played.commands)
    assert played.outcome.recalls == 0
    check_sent(played.client_bytes)


def test_what_waits_runs_beside_a_call_of_the_client() -> None:
    played = run_turn(tools=TOOLS, hops=[stream(NOTE, SHELL)])
    assert [call.call_id for call in played.calls] == ["c2"]
    assert [item["type"] for item in played.response["output"]] == ["function_call"]
    assert played.outcome.ending is Ending.COMPLETED


def test_equal_calls_run_once_a_round_but_again_in_the_next() -> None:
    twin = NOTE | {"call_id": "c9", "id": "fc_9"}
    again = NOTE | {"call_id": "c4", "id": "fc_4"}
    looked = LOOK | {"call_id": "c5", "id": "fc_5"}
    hops = [
        stream(LOOK, NOTE, twin),
        stream(looked, again, response_id="resp_2"),
        stream(message("hi"), response_id="resp_3"),
    ]
    played = run_turn(tools=TOOLS, hops=hops)
    assert [call.call_id for call in played.calls] == ["c1", "c2", "c4"]
    assert played.text == "hi"


def test_a_recovery_may_call_none_of_them() -> None:
    hops = [stream(NOTE), b"", b"", ANSWER]
    played = run_turn(tools=TOOLS, hops=hops)
    allowed = played.requests[-1].body["tool_choice"]
    assert [one["name"] for one in allowed["tools"]] == ["shell"]
    assert played.text == "hi"
    assert [call.call_id for call in played.calls] == ["c2"]


@given(st.data())
def test_any_chunking_and_order_hides_the_same(data: st.DataObject) -> None:
    items = data.draw(st.permutations([LOOK, NOTE, message("so")]))
    chunking = data.draw(strategies.chunkings())
    played = run_turn(tools=TOOLS, hops=[stream(*items), ANSWER], chunking=chunking)
    check_sent(played.client_bytes)
    assert sorted(call.call_id for call in played.calls) == ["c1", "c2"]
    assert [item["type"] for item in played.response["output"]] == ["message", "message"]
    assert item_done(NOTE)["item"]["name"].encode() not in played.client_bytes
