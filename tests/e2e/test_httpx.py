"""The real process with an upstream that is reached over httpx."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import builders
from tests.builders import message, recall_call, usage
from tests.e2e import checks
from tests.e2e.replies import says
from tests.upstreams import Gate, Stall, stream

if TYPE_CHECKING:
    from tests.e2e.conftest import StartLab

HIDDEN = recall_call("call_hidden_1", {"query": "the canary's name"})
FILE = '[[upstream]]\nbase_url = "{url}"\nmax_connections = 1\n'
CHOICES = [
    pytest.param(FILE + 'transport = "httpx"\n', {}, id="by the file"),
    pytest.param(FILE, {"SOTTOVOCE_UPSTREAM__0__TRANSPORT": "httpx"}, id="by the environment"),
]


@pytest.mark.parametrize(("config", "environment"), CHOICES)
def test_a_streamed_turn_with_a_hidden_recall(
    start_lab: StartLab, config: str, environment: dict[str, str]
) -> None:
    lab = start_lab(config=config, environment=environment)
    gate, answer = Gate(), message("hi")
    first = says(HIDDEN, usage=usage(100, 10, cached=40), before={2: gate})
    second = says(answer, response_id="resp_B", usage=usage(150, 5, cached=90))
    with lab.post(builders.request(), first, second) as exchange:
        created = exchange.next_event("response.created")
        assert len(lab.provider.requests) == 1
        gate.open()
        frames = list(exchange.frames())
    raw = b"".join(frame.raw for frame in frames)
    events = [created, *checks.written(frames)]
    checks.well_formed(events)
    checks.knows_nothing_of(builders.body([created]) + raw, "call_hidden_1", HIDDEN["id"], "canary")
    final = events[-1]["response"]
    assert (final["id"], final["output"]) == ("resp_A", [answer])
    assert checks.figures(final["usage"]) == (250, 15, 265, 130)
    assert lab.seen().json()["input"][-2] == HIDDEN
    for request in lab.provider.requests:
        assert sorted(name.lower() for name, _ in request.headers) == [
            b"accept-encoding",
            b"authorization",
            b"content-length",
            b"content-type",
            b"host",
            b"user-agent",
            b"via",
        ]
        assert request.header("user-agent") == b"OpenAI/Python"
        assert request.header("accept-encoding") == b"identity"
    assert lab.provider.connections_opened.value == 2  # as no other transport has it


def test_a_client_that_leaves_frees_the_only_slot(start_lab: StartLab) -> None:
    lab = start_lab(config=FILE + 'transport = "httpx"\n')
    opening = builders.body(builders.opening())
    with lab.post(builders.request(), stream(opening, Stall())) as exchange:
        exchange.next_event("response.created")
    lab.provider.connections_closed.wait_for(1)
    assert lab.provider.connections[0].by_peer
    lab.is_idle()
    with lab.post(builders.request(), says(message("hi"))) as exchange:
        assert checks.answer_of(checks.received(exchange)) == "hi"
