"""The second tries of a turn: one more of a broken transport, one recovery."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.commands import CloseUpstream, OpenUpstream, RunTool
from pipeline.errors import FailureCategory, UpstreamError
from pipeline.outcome import Ending
from tests import builders
from tests.builders import body, frames, function_call, message, output, recall_call, stream, usage
from tests.playbook import (
    Answer,
    Playbook,
    Played,
    broken,
    budgets,
    chunk,
    found,
    opened,
    run_turn,
    turn,
)
from tests.sent import check_sent

RESET = UpstreamError("the upstream reset the connection")
CALL = stream(recall_call("c1", {"query": "a"}), usage=usage(100, 10))
MORE = stream(recall_call("c2", {"query": "b"}), response_id="resp_B", usage=usage(150, 5))
ANSWER = stream(message("hi"), response_id="resp_C", usage=usage(200, 7))
REFUSED = Answer(b'{"error":{"message":"bad input sk-secret","code":"invalid_value"}}', status=400)
BROKEN = Answer(b"oops", status=500)


NAMELESS = [
    event | ({"response": event["response"] | {"model": None}} if "response" in event else {})
    for event in stream(message("hi"))
]


def recovered(played: Played, category: FailureCategory) -> None:
    check_sent(played.client_bytes)
    assert played.outcome.ending is Ending.COMPLETED
    assert played.outcome.recovered_from is category
    assert played.text == "hi"


def failed(played: Played) -> dict[str, Any]:
    check_sent(played.client_bytes)
    assert played.outcome.ending is Ending.FAILED
    error = played.response["error"]
    assert isinstance(error, dict)
    return error


# ------------------------------------------------------------------------ the transport again


@pytest.mark.parametrize("cut", [0, 1, 3, len(MORE) - 1])
def test_a_continuation_that_breaks_unseen_is_tried_once_more(cut: int) -> None:
    half = Answer(b"".join(frames(MORE)[:cut]), cut=RESET)
    played = run_turn(hops=[CALL, half, MORE, ANSWER])
    check_sent(played.client_bytes)
    assert played.text == "hi"
    assert played.requests[1].text == played.requests[2].text
    assert played.outcome.recovered_from is None


def test_foreign_data_of_a_broken_try_is_not_repeated() -> None:
    note = b"event: note\ndata: no json\n\n"
    trace = builders.frame({"type": "acme:trace"})
    first, *rest = frames(ANSWER)
    half = Answer(first + note + trace, cut=RESET)
    played = run_turn(hops=[CALL, half, b"".join([first, note, trace, *rest])])
    check_sent(played.client_bytes)
    assert played.client_bytes.count(note) == 1
    assert played.kinds.count("acme:trace") == 1


def test_only_once() -> None:
    half = Answer(body(MORE[:-1]), cut=RESET)
    played = run_turn(hops=[CALL, half, half, ANSWER])
    recovered(played, FailureCategory.FOLLOW_UP_FAILED)


def test_no_head_is_not_tried_again_here() -> None:
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(body(CALL)), found("c1", "x")).skip()
    script.feed(broken(RESET))
    assert script.turn.hop.phase == "recovery"


def test_running_calls_of_a_broken_try_are_forgotten() -> None:
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(body(CALL)), found("c1", "x"), opened()).skip()
    script.feed(chunk(body(MORE[:-1]))).expect(RunTool("c2", "recall", '{"query":"b"}'))
    script.feed(broken(RESET))
    assert script.performer.running == {}
    script.skip().feed(found("c2", "late"), opened(), chunk(body(MORE)))
    script.expect(RunTool("c2", "recall", '{"query":"b"}'), CloseUpstream)
    script.feed(found("c2", "y")).expect(OpenUpstream)
    assert script.performer.requests[-1].body["input"][-1] == output("c2", "y")


def test_an_error_of_the_provider_is_not_tried_again() -> None:
    event = {"type": "error", "code": "insufficient_quota", "message": "pay first"}
    played = run_turn(hops=[body([event])])
    assert (played.error.status, played.error.code) == (502, "insufficient_quota")
    assert played.error.message == "pay first"
    assert len(played.requests) == 1


# ------------------------------------------------------------------------------ the recovery


@pytest.mark.parametrize(
    "failure",
    [
        REFUSED,
        BROKEN,
        Answer(refused=RESET),
        Answer(b"<html>", content_type="text/html"),
        body(builders.opening("resp_B")) + b"event: response.completed\ndata: {\n\n",
        stream(response_id="resp_B", end="failed", error={"code": "x", "message": "no"}),
        body([*builders.opening("resp_B"), {"type": "error", "code": "x", "message": "no"}]),
    ],
)
def test_a_failed_continuation_recovers(failure: Any) -> None:
    played = run_turn(hops=[CALL, failure, ANSWER])
    recovered(played, FailureCategory.FOLLOW_UP_FAILED)
    assert "error" not in played.kinds
    request = played.requests[2].body
    assert request["tools"] == played.requests[1].body["tools"]
    assert request["tool_choice"] == {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "shell"}],
    }
    assert request["input"] == played.requests[1].body["input"]
    assert played.response["tool_choice"] == "auto"


def test_a_recovery_counts_what_failed() -> None:
    lost = stream(
        response_id="resp_B", end="failed", usage=usage(50, 1), error={"code": "x", "message": "no"}
    )
    played = run_turn(hops=[CALL, lost, ANSWER])
    assert played.response["usage"] == usage(350, 18)
    assert played.outcome.context == usage(200, 7)


def test_after_an_input_error_results_are_short() -> None:
    played = run_turn(hops=[CALL, REFUSED, ANSWER], results="é" * 5000)
    text = played.requests[2].body["input"][-1]["output"]
    assert text == "é" * 2000 + "\n[shortened]"
    assert played.requests[2].body["input"][:2] == played.requests[1].body["input"][:2]


def test_after_a_server_error_results_stay() -> None:
    played = run_turn(hops=[CALL, BROKEN, ANSWER], results="é" * 5000)
    assert played.requests[2].body["input"] == played.requests[1].body["input"]


def test_nothing_of_a_recovery_shows_before_it_is_checked() -> None:
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(body(CALL)), found("c1", "x"), opened(500), chunk(b"no"))
    script.feed(broken(RESET), opened()).skip()
    for sent in frames(ANSWER)[:-1]:
        assert script.feed(chunk(sent)).sent() == b""
    script.feed(chunk(frames(ANSWER)[-1]))
    check_sent(script.performer.sent)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (stream(recall_call("c9", "{}"), message("hi")), "recovery called for memory again"),
        (stream(), "recovery said nothing"),
        (stream(builders.reasoning("why")), "recovery said nothing"),
        (stream(message("half"), end="incomplete"), "recovery did not complete"),
        (stream(message("half", status="incomplete")), "recovery left an item unfinished"),
        (NAMELESS, "recovery has no id or no model"),
    ],
)
def test_a_recovery_must_be_usable(answer: list[builders.Event], text: str) -> None:
    played = run_turn(hops=[CALL, REFUSED, answer])
    error = failed(played)
    assert error["code"] == "server_error"
    begin = "memory was consulted, but the answer could not be continued (follow_up_failed)"
    assert error["message"] == f"{begin}: the {text}"
    assert played.response["output"] == []
    assert played.outcome.category is FailureCategory.FOLLOW_UP_FAILED


@pytest.mark.parametrize(
    "answer",
    [
        stream(message("hi")),
        stream(builders.refusal("no")),
        stream(function_call("c2", "shell", "{}")),
    ],
)
def test_text_calls_and_refusals_are_usable(answer: list[builders.Event]) -> None:
    played = run_turn(hops=[CALL, REFUSED, answer])
    check_sent(played.client_bytes)
    assert played.outcome.ending is Ending.COMPLETED


def test_a_recovery_that_fails_too() -> None:
    error = failed(run_turn(hops=[CALL, REFUSED, BROKEN]))
    assert error == {
        "code": "server_error",
        "message": "memory was consulted, but the answer could not be continued "
        "(follow_up_failed): recovery: the upstream answered 500: no readable error",
    }


@pytest.mark.parametrize(
    ("code", "shown"),
    [("context_length_exceeded", "context_length_exceeded"), ("weird", "server_error")],
)
def test_a_final_code_of_the_provider_is_kept(code: str, shown: str) -> None:
    lost = stream(end="failed", error={"code": code, "message": "no"})
    assert failed(run_turn(hops=[CALL, REFUSED, lost]))["code"] == shown
    body_ = builders.compact({"error": {"code": code, "message": "no"}}).encode()
    assert failed(run_turn(hops=[CALL, BROKEN, Answer(body_, status=400)]))["code"] == shown


def test_no_recovery_once_something_shows() -> None:
    answer = frames(stream(message("hello world"), response_id="resp_B"))
    played = run_turn(hops=[CALL, Answer(b"".join(answer[:5]), cut=RESET)])
    assert failed(played)["message"] == RESET.message
    assert played.response["usage"] == usage(100, 10)


def test_no_recovery_of_the_principal() -> None:
    played = run_turn(hops=[b"".join(frames(CALL)[:3])])
    assert failed(played)["code"] == "server_error"


def test_a_client_choice_keeps_its_mode() -> None:
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "shell"}],
    }
    played = run_turn(builders.request(tool_choice=choice), [CALL, REFUSED, ANSWER])
    assert played.requests[1].body["tool_choice"]["tools"][-1]["name"] == "recall"
    assert played.requests[2].body["tool_choice"] == choice
    assert played.response["tool_choice"] == "auto"


# ------------------------------------------------------------------------- the depth exhausted


def test_a_model_that_keeps_calling_is_asked_to_answer() -> None:
    played = run_turn(hops=[CALL, MORE, ANSWER], budgets=budgets(rounds=1))
    recovered(played, FailureCategory.DEPTH_EXHAUSTED)
    assert [call.call_id for call in played.calls] == ["c1"]
    *_, call, answer = played.requests[2].body["input"]
    assert call == recall_call("c2", {"query": "b"})
    assert answer["call_id"] == "c2"
    assert answer["output"].startswith("[Not executed: the memory lookups of this turn are used up")
    assert played.requests[2].body["tool_choice"]["mode"] == "auto"


def test_what_was_shown_of_the_last_hop_stays() -> None:
    more = stream(message("wait"), recall_call("c2", {"query": "b"}), response_id="resp_B")
    played = run_turn(hops=[CALL, more, ANSWER], budgets=budgets(rounds=1))
    check_sent(played.client_bytes)
    assert [item["content"][0]["text"] for item in played.response["output"]] == ["wait", "hi"]


def test_a_model_that_will_not_answer_ends_the_turn() -> None:
    again = stream(recall_call("c3", {"query": "c"}), response_id="resp_C")
    played = run_turn(hops=[CALL, MORE, again], budgets=budgets(rounds=1))
    assert failed(played)["code"] == "server_error"
    assert played.outcome.category is FailureCategory.DEPTH_EXHAUSTED
