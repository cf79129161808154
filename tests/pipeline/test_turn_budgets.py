"""What hidden calls may cost, and what the model is told when it is used up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.budget import LAST_ROUND, OUT_OF_TIME, SHORTENED, SPENT, Spending
from pipeline.commands import CancelTools, OpenUpstream, RunTool
from pipeline.errors import FailureCategory, UpstreamError
from pipeline.events import DeadlineReached, TurnEvent, UpstreamFailed
from pipeline.outcome import Ending
from pipeline.phases import TurnPhase
from tests import builders
from tests.builders import body, message, recall_call, stream, usage
from tests.playbook import BUDGETS, Playbook, budgets, chunk, ended, found, opened, run_turn, turn
from tests.sent import check_sent


def call(number: int, **members: Any) -> list[builders.Event]:
    """Return a hop with one hidden call."""
    return stream(
        recall_call(f"c{number}", {"query": f"q{number}"}), response_id=f"resp_{number}", **members
    )


def answer(number: int, **members: Any) -> list[builders.Event]:
    return stream(message("hi"), response_id=f"resp_{number}", **members)


def told(request: Any, back: int = 1) -> str:
    """Return the text of an output at a request's end."""
    text = request.body["input"][-back]["output"]
    assert isinstance(text, str)
    return text


def test_the_words() -> None:
    assert LAST_ROUND == (
        "\n\n[This was the last memory lookup of this turn. Answer now with what you have; do not "
        "call this tool again.]"
    )
    assert SPENT == (
        "[Not executed: the memory lookups of this turn are used up. Answer with what you have; do "
        "not call this tool again.]"
    )
    assert OUT_OF_TIME == (
        "[The lookup did not finish: the time for memory lookups of this turn is used up. Answer "
        "with what you have; do not call this tool again.]"
    )


# --------------------------------------------------------------------------------- the rounds


def test_the_last_round_says_so() -> None:
    played = run_turn(
        hops=[call(1), call(2), answer(3)],
        results={"c1": "one", "c2": "two"},
        budgets=budgets(rounds=2),
    )
    assert told(played.requests[1]) == "one"
    assert told(played.requests[2]) == "two" + LAST_ROUND
    assert played.outcome.rounds == 2
    assert played.outcome.ending is Ending.COMPLETED


def test_two_rounds_without_news_are_the_last() -> None:
    played = run_turn(
        hops=[call(1), call(2), call(3), answer(4)], results="the same", budgets=BUDGETS
    )
    assert told(played.requests[1]) == told(played.requests[2]) == "the same"
    assert told(played.requests[3]) == "the same" + LAST_ROUND


def test_news_start_the_count_anew() -> None:
    results = {"c1": "a", "c2": "a", "c3": "b", "c4": "b", "c5": "a"}
    hops = [*map(call, range(1, 6)), answer(6)]
    played = run_turn(hops=hops, results=results)
    texts = [told(request) for request in played.requests[1:]]
    assert texts == ["a", "a", "b", "b", "a" + LAST_ROUND]


def test_the_tokens_of_continuations_are_counted() -> None:
    hops = [
        call(1, usage=usage(5000, 5000)),
        call(2, usage=usage(90, 9)),
        call(3, usage=usage(1, 0)),
        answer(4),
    ]
    played = run_turn(
        hops=hops, results={f"c{n}": str(n) for n in range(4)}, budgets=budgets(extra_tokens=100)
    )
    assert told(played.requests[2]) == "2"
    assert told(played.requests[3]) == "3" + LAST_ROUND


# ----------------------------------------------------------------------------- the executions


def test_calls_beyond_the_budget_are_not_executed() -> None:
    three = stream(*(recall_call(f"c{n}", {"query": f"q{n}"}) for n in (1, 2, 3)))
    played = run_turn(
        hops=[three, answer(2)], results={"c1": "1", "c2": "2"}, budgets=budgets(executions=2)
    )
    assert [one.call_id for one in played.calls] == ["c1", "c2"]
    assert [told(played.requests[1], back) for back in (3, 2, 1)] == ["1", "2", SPENT]
    assert played.outcome.recalls == 2


# ------------------------------------------------------------------------------------ the bytes


def test_results_are_shortened_to_what_is_left() -> None:
    played = run_turn(
        hops=[call(1), call(2), answer(3)],
        results={"c1": "x" * 60, "c2": "é" * 40},
        budgets=budgets(result_bytes=101),
    )
    assert told(played.requests[1]) == "x" * 60
    assert told(played.requests[2]) == "é" * 20 + SHORTENED + LAST_ROUND


@given(st.lists(st.text(max_size=30), max_size=6), st.integers(0, 60))
def test_no_more_bytes_than_the_budget(results: list[str], limit: int) -> None:
    spending = Spending(budgets(result_bytes=limit, rounds=99, stalled_rounds=99))
    texts = spending.finish_round(results)
    plain = [text.removesuffix(LAST_ROUND).removesuffix(SHORTENED) for text in texts]
    assert sum(len(text.encode()) for text in plain) <= limit
    assert all(result.startswith(text) for text, result in zip(plain, results, strict=True))


# ------------------------------------------------------------------------------------- the time


def recalling(**options: Any) -> Playbook:
    """Return a turn whose hidden call runs since 100.0."""
    script = Playbook(turn(**options)).skip()
    script.feed(opened(now=50.0), chunk(body(call(1)), now=100.0)).skip()
    assert script.turn.phase is TurnPhase.RECALLING
    return script


def test_time_runs_from_the_hops_end_to_the_head_of_the_next() -> None:
    script = recalling(budgets=budgets(seconds=30))
    assert script.turn.deadline == 130.0
    script.feed(found("c1", "x", now=110.0))
    assert script.turn.deadline == 130.0
    script.feed(opened(now=112.0))
    assert script.turn.deadline is None
    script.feed(chunk(body(call(2)), now=500.0))
    assert script.turn.deadline == 518.0
    assert script.turn.rounds.spending.seconds == 12.0


def test_time_runs_from_zero_too() -> None:
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(body(call(1)), now=0.0)).skip()
    assert script.turn.deadline == 300.0
    script.feed(found("c1", "x", now=10.0))
    assert script.turn.deadline == 300.0


def test_a_lookup_that_takes_too_long_is_answered_for() -> None:
    script = recalling()
    script.feed(DeadlineReached(400.0)).expect(CancelTools, OpenUpstream)
    assert told(script.performer.requests[1]) == OUT_OF_TIME
    assert script.turn.deadline is None
    script.feed(found("c1", "late")).expect()
    script.feed(opened(), chunk(body(answer(2))))
    check_sent(script.performer.sent)


def test_results_that_are_there_stay() -> None:
    two = stream(recall_call("c1", {"query": "a"}), recall_call("c2", {"query": "b"}))
    script = Playbook(turn()).skip()
    script.feed(opened(), chunk(body(two)), found("c2", "two"), DeadlineReached(300.0))
    request = script.performer.requests[1]
    assert [told(request, back) for back in (2, 1)] == [OUT_OF_TIME, "two" + LAST_ROUND]


def test_no_lookup_starts_after_the_time() -> None:
    script = recalling()
    script.feed(DeadlineReached(400.0), opened(), chunk(body(call(2)))).skip()
    assert script.turn.hop.phase == "recovery"
    assert not any(isinstance(one, RunTool) for one in script.performer.commands[3:])


def test_a_continuation_that_does_not_begin_in_time() -> None:
    script = recalling()
    script.feed(found("c1", "x", now=110.0)).skip()
    script.feed(DeadlineReached(400.0))
    (*_, last) = check_sent(script.performer.sent)
    assert last["response"]["error"] == {
        "code": "server_error",
        "message": "the time for memory lookups ended before the continuation began",
    }
    assert script.turn.outcome is not None
    assert script.turn.outcome.category is FailureCategory.FOLLOW_UP_SETUP


REFUSED = UpstreamError("the upstream refused the connection")


@pytest.mark.parametrize(
    "broken",
    [
        [UpstreamFailed(REFUSED, 112.0)],
        [opened(500, "application/json", 111.0), chunk(b"{}", 111.5), ended(112.0)],
        [opened(now=112.0), chunk(b"data: no JSON\nevent: response.new\n\n", 112.0)],
        [opened(now=111.0), UpstreamFailed(REFUSED, 112.0), opened(now=112.0), ended(112.0)],
    ],
    ids=["not reached", "refused", "no rule kept", "cut twice"],
)
def test_time_runs_for_a_recovery_too(broken: list[TurnEvent]) -> None:
    script = recalling(budgets=budgets(seconds=30))
    script.feed(found("c1", "x", now=110.0), *broken)
    assert script.turn.hop.phase == "recovery"
    spent = script.turn.rounds.spending.seconds
    assert script.turn.deadline == 112.0 + 30 - spent
    script.feed(DeadlineReached(142.0 - spent))
    assert script.turn.outcome is not None
    assert check_sent(script.performer.sent)[-1]["type"] == "response.failed"


def test_time_stands_still_while_a_recovery_streams() -> None:
    script = recalling(budgets=budgets(seconds=30))
    script.feed(found("c1", "x", now=110.0), UpstreamFailed(REFUSED, 112.0), opened(now=120.0))
    assert script.turn.deadline is None
    assert script.turn.rounds.spending.seconds == 20.0
    script.feed(chunk(body(answer(2)), now=500.0))
    assert check_sent(script.performer.sent)[-1]["type"] == "response.completed"


# ---------------------------------------------------------------------------- the client's limit


def test_a_continuation_gets_what_is_left_of_the_clients_tokens() -> None:
    request = builders.request(max_output_tokens=100)
    played = run_turn(request, [call(1, usage=usage(5, 60)), answer(2)])
    assert played.requests[1].body["max_output_tokens"] == 40
    assert played.requests[0].body["max_output_tokens"] == 100


@pytest.mark.parametrize("client", ["stream", "json"])
def test_fewer_than_sixteen_left_end_the_turn(client: Any) -> None:
    request = builders.request(max_output_tokens=100)
    said = stream(message("so far"), recall_call("c1", "{}"), usage=usage(5, 85))
    played = run_turn(request, [said], client=client)
    if client == "stream":
        check_sent(played.client_bytes)
    assert played.response["status"] == "incomplete"
    assert played.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert played.response["usage"] == usage(5, 85)
    assert played.response["output"] == [message("so far")]
    assert played.outcome.ending is Ending.INCOMPLETE
    assert played.outcome.stop_reason == "max_output_tokens"


def test_sixteen_left_are_enough() -> None:
    request = builders.request(max_output_tokens=100)
    played = run_turn(request, [call(1, usage=usage(5, 84)), answer(2)])
    assert played.requests[1].body["max_output_tokens"] == 16
