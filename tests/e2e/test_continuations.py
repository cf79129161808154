"""Turns that end otherwise than in one streamed follow-up: recovered, mixed, in JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests import builders
from tests.builders import (
    function_call,
    interleaved,
    item_events,
    message,
    numbered,
    opening,
    recall_call,
    terminal,
    usage,
)
from tests.e2e import checks
from tests.e2e.replies import says, streamed
from tests.upstreams import answer

if TYPE_CHECKING:
    from tests.e2e.conftest import Lab, StartLab
    from tests.upstreams import Received, Reply, Steps

HIDDEN = recall_call("call_hidden_1", {"query": "canary"})
AGAIN = recall_call("call_hidden_3", {"query": "canary too"})
SHELL = function_call("call_shell", "shell", {"command": "ls"})
ANSWER = message("hi")
REFUSAL = answer({"error": {"message": "Bad input.", "code": "invalid_input"}}, status=400)


# ---------------------------------------------------------------------------- recovered (case 2)


def test_a_follow_up_that_fails_is_recovered(shared_lab: Lab) -> None:
    first = says(HIDDEN, usage=usage(100, 10, cached=40))
    last = says(ANSWER, response_id="resp_C", usage=usage(150, 5, cached=90))
    with shared_lab.post(builders.request(), first, REFUSAL, last) as exchange:
        frames = list(exchange.frames())
    events = checks.written(frames)
    checks.well_formed(events)
    checks.knows_nothing_of(b"".join(f.raw for f in frames), "call_hidden_1", "canary")
    final = events[-1]["response"]
    assert final["output"] == [ANSWER]
    assert checks.figures(final["usage"]) == (250, 15, 265, 130)
    bodies = [request.json() for request in shared_lab.provider.requests]
    assert bodies[2]["input"] == bodies[1]["input"]
    assert bodies[2]["tools"] == bodies[1]["tools"]
    assert "recall" not in json.dumps(bodies[2]["tool_choice"])


def test_a_recovery_that_calls_again_has_failed(shared_lab: Lab) -> None:
    first = says(HIDDEN, usage=usage(100, 10, cached=40))
    with shared_lab.post(
        builders.request(), first, REFUSAL, says(message("Hm."), AGAIN, response_id="resp_C")
    ) as exchange:
        frames = list(exchange.frames())
    events = checks.written(frames)
    checks.well_formed(events)
    checks.knows_nothing_of(b"".join(f.raw for f in frames), "call_hidden", "canary", "Hm.")
    assert events[-1]["type"] == "response.failed"
    assert len(shared_lab.provider.requests) == 3
    shared_lab.is_idle()


# -------------------------------------------------------------------------------- JSON (case 3)


def _only_streams(*items: builders.Item, **options: Any) -> Reply:
    """Answer as a Codex backend does: streams to those that ask for one."""

    def reply(received: Received) -> Steps:
        if received.json().get("stream") is not True:
            return answer({"detail": "Stream must be set to true"}, status=400)
        return says(*items, **options)(received)

    return reply


def test_json_over_a_backend_that_only_streams(start_lab: StartLab) -> None:
    lab = start_lab(kind="codex")
    with lab.post(
        builders.request(stream=False),
        _only_streams(HIDDEN, usage=usage(100, 10), sparse=True),
        _only_streams(ANSWER, response_id="resp_B", usage=usage(150, 5), sparse=True),
    ) as exchange:
        assert exchange.headers["content-type"].startswith("application/json")
        data = exchange.body()
    assert exchange.status == 200, data
    body = json.loads(data)
    checks.knows_nothing_of(data, "call_hidden_1", "canary")
    assert (body["id"], body["output"]) == ("resp_A", [ANSWER])
    assert checks.figures(body["usage"])[:3] == (250, 15, 265)
    assert [request.json()["stream"] for request in lab.provider.requests] == [True, True]


def test_json_over_the_public_api(shared_lab: Lab) -> None:
    def reply(response_id: str, item: builders.Item, spent: dict[str, Any]) -> Reply:
        def steps(received: Received) -> Steps:
            asked = received.json()
            return answer(
                builders.response(response_id, "completed", echo=asked, output=[item], usage=spent)
            )

        return steps

    with shared_lab.post(
        builders.request(stream=False),
        reply("resp_A", HIDDEN, usage(100, 10)),
        reply("resp_B", ANSWER, usage(150, 5)),
    ) as exchange:
        data = exchange.body()
    body = json.loads(data)
    checks.knows_nothing_of(data, "call_hidden_1", "canary")
    assert (body["id"], body["output"]) == ("resp_A", [ANSWER])
    assert [tool["name"] for tool in body["tools"]] == ["shell"]
    assert [request.json()["stream"] for request in shared_lab.provider.requests] == [False, False]


# ------------------------------------------------------------------------------- mixed (case 7)


def test_hidden_and_client_calls_side_by_side(shared_lab: Lab) -> None:
    inner = interleaved(*(item_events(call, n) for n, call in enumerate((HIDDEN, SHELL, AGAIN))))
    hop = numbered([*opening(), *inner, terminal(output=[HIDDEN, SHELL, AGAIN])])
    asked = builders.request()
    with shared_lab.post(asked, streamed(hop)) as exchange:
        frames = list(exchange.frames())
    events = checks.written(frames)
    checks.well_formed(events)
    checks.knows_nothing_of(b"".join(f.raw for f in frames), "call_hidden", "canary")
    assert events[-1]["response"]["output"] == [SHELL]
    assert len(shared_lab.provider.requests) == 1

    after = asked | {"input": [*asked["input"], SHELL, builders.output("call_shell", "a b")]}
    with shared_lab.post(after, says(ANSWER, response_id="resp_B")) as exchange:
        checks.received(exchange)
    got = [(item["type"], item.get("call_id")) for item in shared_lab.seen().json()["input"][1:]]
    assert got == [
        ("function_call", "call_hidden_1"),
        ("function_call", "call_shell"),
        ("function_call", "call_hidden_3"),
        ("function_call_output", "call_hidden_1"),
        ("function_call_output", "call_hidden_3"),
        ("function_call_output", "call_shell"),
    ]


def test_parallel_hidden_calls_are_both_answered(shared_lab: Lab) -> None:
    with shared_lab.post(
        builders.request(), says(HIDDEN, AGAIN), says(ANSWER, response_id="resp_B")
    ) as exchange:
        checks.received(exchange)
    tail = shared_lab.seen().json()["input"][-4:]
    assert tail[:2] == [HIDDEN, AGAIN]
    assert [item["call_id"] for item in tail[2:]] == ["call_hidden_1", "call_hidden_3"]
