"""Hidden calls beside calls of the client: the turn ends, and leaves records of what was found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.budget import UNANSWERED
from pipeline.commands import CloseUpstream, Finish, OpenUpstream, SaveJoin, Send
from pipeline.errors import UpstreamError
from pipeline.events import DeadlineReached, KeepAliveDue, ShutdownDue
from pipeline.history import restorations
from pipeline.join import as_sent
from pipeline.outcome import Ending
from pipeline.request import input_items
from pipeline.restore import restore
from pipeline.survey import Survey
from tests import builders, strategies
from tests.builders import (
    body,
    custom_call,
    frames,
    function_call,
    message,
    output,
    reasoning,
    recall_call,
)
from tests.playbook import (
    ID_KEY,
    Answer,
    Playbook,
    Played,
    budgets,
    chunk,
    found,
    opened,
    prepare,
    run_turn,
    says,
    turn,
)
from tests.sent import check_sent

SHELL = function_call("c2", "shell", {"command": "ls"})
ONE, THREE = recall_call("c1", {"query": "a"}), recall_call("c3", {"query": "b"})


def next_request(played: Played, *more: builders.Item) -> list[Any]:
    """Return the input of the upstream's next request: what a client sends, restored."""
    sent = played.requests[0].body["input"]
    history = builders.request(*sent, *played.response["output"], *more)
    request, _ = prepare(history, tools=())
    groups = [saved.group for saved in played.performer.saved if saved.group is not None]
    restored = restore(request, restorations(Survey(input_items(request.body)), groups))
    result = restored.body["input"]
    assert isinstance(result, list)
    return result[len(sent) :]


def interleaved() -> list[builders.Event]:
    runs = [builders.item_events(item, index) for index, item in enumerate((ONE, SHELL, THREE))]
    end = builders.terminal(output=[ONE, SHELL, THREE], usage=builders.USAGE)
    return builders.numbered([*builders.opening(), *builders.interleaved(*runs), end])


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("client", ["stream", "json"])
def test_mixed_and_parallel(late: bool, client: Any) -> None:
    results = {"c1": "first", "c3": "third"}
    played = run_turn(hops=[interleaved()], results=results, late=late, client=client)
    assert played.response["output"] == [SHELL]
    assert played.outcome.ending is Ending.COMPLETED
    assert len(played.requests) == 1
    if client == "stream":
        events = check_sent(played.client_bytes)
        assert {e["output_index"] for e in events if "output_index" in e} == {0}
    for hidden in (b"c1", b"c3", b"recall", b"first", b"third"):
        assert hidden not in played.client_bytes
    assert next_request(played, output("c2", "files")) == [
        ONE,
        SHELL,
        THREE,
        output("c1", "first"),
        output("c3", "third"),
        output("c2", "files"),
    ]


def test_the_terminal_waits_for_the_results_and_the_records() -> None:
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(body(interleaved()))).skip()
    assert b"response.completed" not in script.performer.sent
    assert b"shell" in script.performer.sent
    assert b"response.in_progress" in script.feed(KeepAliveDue()).sent()
    script.feed(found("c3", "third")).expect()
    script.feed(found("c1", "first")).expect(SaveJoin, Send, Finish)
    check_sent(script.performer.sent)


def test_a_result_that_does_not_come_in_time() -> None:
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(body(interleaved()), now=1.0), found("c1", "first")).skip()
    assert script.turn.deadline == 301.0
    script.feed(DeadlineReached(301.0))
    check_sent(script.performer.sent)
    group = script.performer.saved[-1].group
    assert group is not None
    first, third = (slot.hidden or b"" for slot in group.slots[-2:])
    assert b'"first' in first
    assert b"did not finish" in third


def test_the_record_is_there_before_the_results() -> None:
    """The client has its call, and goes on with it even if this process ends now."""
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(body(interleaved())), found("c3", "third"))
    (early,) = script.performer.saved
    assert b"response.completed" not in script.performer.sent
    script.feed(found("c1", "first")).skip()
    (_, late) = script.performer.saved
    assert early.group is not None
    assert late.group is not None
    assert early.group.turn_keys() == late.group.turn_keys()
    assert early.response_id == late.response_id == "resp_A"
    for saved, results in ((early, [UNANSWERED, UNANSWERED]), (late, ["first", "third"])):
        history = builders.request(builders.user("hello"), SHELL, output("c2", "files"))
        request, _ = prepare(history, tools=())
        groups = [saved.group] if saved is early else [early.group, late.group]
        restored = restore(
            request, restorations(Survey(input_items(request.body)), [one for one in groups if one])
        )
        assert restored.body["input"][1:] == [
            ONE,
            SHELL,
            THREE,
            *(output(call, text) for call, text in zip(("c1", "c3"), results, strict=True)),
            output("c2", "files"),
        ]
        assert [json.loads(each)["output"] for each in saved.outputs] == results


def test_a_turn_whose_results_are_there_is_recorded_once() -> None:
    script = Playbook(turn()).skip()
    first, last = frames(interleaved())[:-1], frames(interleaved())[-1]
    script.feed(opened(), chunk(b"".join(first)), found("c1", "first"), found("c3", "third"))
    script.feed(chunk(last))
    assert len(script.performer.saved) == 1


def test_a_json_client_has_nothing_before_the_end() -> None:
    played = run_turn(hops=[interleaved()], late=True, client="json")
    assert len(played.performer.saved) == 1


def test_a_shutdown_while_hidden_calls_run_keeps_their_places() -> None:
    script = Playbook(turn()).skip()
    thought = reasoning("why")
    script.feed(opened(), chunk(body(builders.stream(thought, ONE))), ShutdownDue())
    saved = script.performer.saved[-1].group
    assert saved is not None
    history, _ = prepare(builders.request(builders.user("hello"), thought), tools=())
    restored = restore(history, restorations(Survey(input_items(history.body)), [saved]))
    assert restored.body["input"][1:] == [thought, ONE, output("c1", UNANSWERED)]


def test_a_client_that_leaves_keeps_what_it_has() -> None:
    script = Playbook(turn()).skip()
    thought = reasoning("why")
    script.feed(opened(), chunk(body(builders.stream(thought, ONE))), found("c1", "first"))
    script.feed(opened(), chunk(frames(builders.stream(message("so"), response_id="resp_B"))[0]))
    script.turn.abort()
    left = script.turn.left
    assert left is not None
    assert left.group is not None
    history, _ = prepare(builders.request(builders.user("hello"), thought), tools=())
    restored = restore(history, restorations(Survey(input_items(history.body)), [left.group]))
    assert restored.body["input"][1:] == [thought, ONE, output("c1", "first")]


def test_a_recovery_that_is_refused_leaves_nothing() -> None:
    """Its calls have no outputs: put back, they would break every later request."""
    thought = reasoning("why")
    played = run_turn(
        hops=[
            says(thought, ONE),
            Answer(b"{}", status=500),
            says(message("no"), THREE, response_id="resp_R"),
        ],
        results="first",
    )
    assert played.outcome.ending is Ending.FAILED
    assert next_request(played) == [thought, ONE, output("c1", "first")]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_text_that_was_cut_short_may_be_dropped(keeps: bool) -> None:
    told, rest = message("so"), frames(builders.stream(message("rest"), response_id="resp_B"))
    broken = Answer(b"".join(rest[:5]), cut=UpstreamError("cut"))
    played = run_turn(hops=[says(told, ONE), broken], results="first")
    shown = played.response["output"]
    assert [item["status"] for item in shown] == ["completed", "incomplete"]
    kept = shown if keeps else shown[:1]
    history, _ = prepare(builders.request(builders.user("hello"), *kept), tools=())
    groups = [saved.group for saved in played.performer.saved if saved.group is not None]
    restored = restore(history, restorations(Survey(input_items(history.body)), groups))
    assert restored.body["input"][1:] == [told, ONE, output("c1", "first"), *kept[1:]]


def test_a_client_that_leaves_a_plain_turn_leaves_no_record() -> None:
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(frames(builders.stream(message("so")))[0]))
    script.turn.abort()
    assert script.turn.left is None


CLIENT_CALLS = [
    SHELL,
    custom_call("c2", "patch", "*** begin"),
    {"id": "sh_1", "type": "local_shell_call", "status": "completed", "call_id": "c2"},
    {"id": "sh_1", "type": "shell_call", "status": "completed", "call_id": "c2"},
    {"id": "ap_1", "type": "apply_patch_call", "status": "completed", "call_id": "c2"},
    {"id": "cu_1", "type": "computer_call", "status": "completed", "call_id": "c2"},
    {"id": "ts_1", "type": "tool_search_call", "status": "completed", "execution": "client"},
    {"id": "mr_1", "type": "mcp_approval_request", "name": "x", "arguments": "{}"},
]


@pytest.mark.parametrize("call", CLIENT_CALLS, ids=lambda call: call["type"])
@pytest.mark.parametrize("client", ["stream", "json"])
def test_what_the_client_must_answer_ends_the_turn(call: builders.Item, client: Any) -> None:
    played = run_turn(hops=[says(ONE, call)], client=client)
    assert len(played.requests) == 1
    assert played.response["output"] == [call]
    assert [one.call_id for one in played.calls] == ["c1"]


@pytest.mark.parametrize(
    "item",
    [
        message("hi"),
        reasoning("why"),
        {"id": "ws_1", "type": "web_search_call", "status": "completed"},
        {"id": "ts_1", "type": "tool_search_call", "status": "completed", "execution": "server"},
        {"id": "mc_1", "type": "mcp_call", "status": "completed", "name": "x", "arguments": "{}"},
        {"id": "zz_1", "type": "brand_new_item"},
    ],
    ids=lambda item: item["type"],
)
def test_what_the_provider_answers_itself_does_not(item: builders.Item) -> None:
    played = run_turn(hops=[says(item, ONE), says(message("done"), response_id="resp_B")])
    assert len(played.requests) == 2
    assert played.response["output"] == [item, message("done")]


def test_a_second_hop_may_be_mixed() -> None:
    played = run_turn(
        hops=[says(reasoning("why"), ONE), says(THREE, SHELL, response_id="resp_B")],
        results={"c1": "first", "c3": "third"},
    )
    check_sent(played.client_bytes)
    assert next_request(played, output("c2", "files")) == [
        reasoning("why"),
        ONE,
        output("c1", "first"),
        THREE,
        SHELL,
        output("c3", "third"),
        output("c2", "files"),
    ]
    saved = played.performer.saved[-1]
    assert saved.response_id == "resp_A"
    assert saved.hop_ids == ("resp_A", "resp_B")


def test_no_lookup_after_the_last_round_but_the_turn_ends_well() -> None:
    played = run_turn(
        hops=[says(ONE), says(THREE, SHELL, response_id="resp_B")],
        results={"c1": "first"},
        budgets=budgets(rounds=1),
    )
    check_sent(played.client_bytes)
    assert played.outcome.ending is Ending.COMPLETED
    hidden = next_request(played)[-1]
    assert hidden["call_id"] == "c3"
    assert hidden["output"].startswith("[Not executed: the memory lookups of this turn are used up")


def test_no_hidden_result_of_a_turn_that_did_not_complete() -> None:
    played = run_turn(hops=[says(ONE, SHELL, end="incomplete")])
    check_sent(played.client_bytes)
    assert played.response["output"] == [SHELL]
    assert played.performer.saved == []


def test_ciphertext_that_was_withheld_goes_back() -> None:
    thought = reasoning("why", encrypted="gAAAA")
    played = run_turn(hops=[says(thought, message("hi"))])
    assert b"gAAAA" not in played.client_bytes
    assert next_request(played) == [thought, message("hi")]


def test_the_upstream_is_closed_before_the_results_come() -> None:
    script = Playbook(turn()).expect(OpenUpstream)
    script.feed(opened(), chunk(body(interleaved())))
    assert CloseUpstream() in script.performer.commands


@given(st.data())
def test_the_next_request_begins_with_what_was_sent_and_got(data: st.DataObject) -> None:
    script = data.draw(strategies.scripts(mixed=data.draw(st.booleans()), habits=False))
    chunking = data.draw(strategies.chunkings())
    played = run_turn(hops=script.hops, results=script.results, chunking=chunking)
    last = played.turn.hop
    sent = played.requests[-1].body["input"][len(played.requests[0].body["input"]) :]
    got = [as_sent(item.value, ID_KEY) for item in last.state.ordered()]
    restored = [builders.compact(item).encode() for item in next_request(played)]
    expected = [builders.compact(item).encode() for item in sent] + got
    visible = bool(played.response["output"])
    assert restored[: len(expected)] == (expected if visible else [])
