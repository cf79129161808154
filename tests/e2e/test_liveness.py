"""Clients that leave, upstreams that are silent, a proxy that is told to stop."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

import pytest

from tests import builders
from tests.builders import item_events, message, numbered, opening, recall_call
from tests.e2e import checks
from tests.e2e.process import BOUND, SHUTDOWN, eventually
from tests.e2e.replies import says, streamed
from tests.upstreams import Gate, Stall, stream

if TYPE_CHECKING:
    from tests.e2e.conftest import Lab, StartLab

ONE_CONNECTION = """
[[upstream]]
name = "narrow"
kind = "responses"
base_url = "{url}"
max_connections = 1
"""
QUICK = "[server]\nkeepalive_seconds = 0.1\n"
ANSWER = message("It is all fine, is it not?")
FRAMES = builders.frames(numbered([*opening(), *item_events(ANSWER, 0)]))
HIDDEN = recall_call("call_hidden_1", {"query": "canary"})
PLAIN_REQUEST = builders.request(tools=None, tool_choice=None)


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("tools", [True, False], ids=["with tools", "observed"])
def test_a_client_that_leaves_takes_the_upstream_with_it(
    start_lab: StartLab, how: str, *, tools: bool
) -> None:
    """Case 8."""
    lab = start_lab(config=ONE_CONNECTION)
    asked = builders.request() if tools else PLAIN_REQUEST
    exchange = lab.post(asked, stream(*FRAMES[:6], Stall()))
    exchange.next_event("response.output_text.delta")
    exchange.close() if how == "close" else exchange.reset()
    lab.provider.connections_closed.wait_for(1)
    assert lab.provider.connections[0].by_peer
    lab.is_idle()
    lab.proxy.reaches(1, "turns_total", outcome="client_disconnect")
    with lab.post(asked, says(ANSWER)) as exchange:
        checks.received(exchange)


def test_a_client_that_leaves_before_the_head(start_lab: StartLab) -> None:
    lab = start_lab(config=ONE_CONNECTION)
    exchange = lab.post(builders.request(), [Stall()])
    lab.provider.requests_seen.wait_for(1)
    exchange.close()
    lab.provider.connections_closed.wait_for(1)
    lab.is_idle()
    lab.proxy.reaches(1, "turns_total", outcome="client_disconnect")


def test_a_client_that_leaves_during_a_continuation(start_lab: StartLab) -> None:
    lab = start_lab(config=ONE_CONNECTION)
    exchange = lab.post(builders.request(), says(HIDDEN), stream(*FRAMES[:6], Stall()))
    exchange.next_event("response.output_text.delta")
    exchange.close()
    eventually(lambda: lab.provider.connections[-1].closed.is_open, "the upstream is closed")
    lab.is_idle()
    lab.proxy.reaches(1, "turns_total", outcome="client_disconnect")


def test_a_client_that_does_not_read_holds_the_upstream_back(lab: Lab) -> None:
    """What waits for a slow client is bounded: the provider can't send all of it."""
    delta = builders.frame(item_events(message("x" * 4), 0)[2] | {"delta": "x" * 60_000})
    exchange = lab.post(PLAIN_REQUEST, stream(*FRAMES[:4], *[delta] * 1000))
    exchange.next_event("response.content_part.added")
    lab.provider.requests_seen.wait_for(1)
    exchange.close()
    lab.is_idle()
    assert lab.provider.replies_sent.value == 0


@pytest.mark.parametrize("tools", [True, False], ids=["with tools", "observed"])
def test_silence_is_filled(start_lab: StartLab, *, tools: bool) -> None:
    """Case 9: comments between head and created, in_progress after it, no gap in the numbers."""
    lab = start_lab(config=QUICK)
    events = builders.stream(ANSWER)
    first, second = Gate(), Gate()
    reply = streamed(events, before={0: first, 4: second})
    with lab.post(builders.request() if tools else PLAIN_REQUEST, reply) as exchange:
        frames = []
        for frame in exchange.frames():
            frames.append(frame)
            if not first.is_open and sum(f.is_comment for f in frames) == 3:
                first.open()
            in_progress = [f for f in frames if not f.is_comment and _is_in_progress(f.event)]
            if not second.is_open and len(in_progress) == 4:
                second.open()
        assert exchange.ended
    got = checks.written(frames)
    checks.well_formed(got)
    kept = [event for event in got if not _is_in_progress(event)]
    assert [event["type"] for event in kept] == [
        event["type"] for event in events if not _is_in_progress(event)
    ]
    assert checks.answer_of(got) == checks.text_of(ANSWER)
    assert not any(_is_in_progress(event) for event in got[-3:])


def _is_in_progress(event: builders.Event) -> bool:
    return bool(event["type"] == "response.in_progress")


def test_silence_of_a_continuation_is_filled(start_lab: StartLab) -> None:
    lab = start_lab(config=QUICK)
    gate = Gate()
    second = says(ANSWER, response_id="resp_B", before={0: gate})
    with lab.post(builders.request(), says(HIDDEN), second) as exchange:
        exchange.next_event("response.in_progress")
        exchange.next_event("response.in_progress")
        gate.open()
        rest = [frame.event for frame in exchange.frames()]
    assert rest[-1]["type"] == "response.completed"
    lab.is_idle()


def test_a_proxy_that_drains_finishes_what_runs(start_lab: StartLab) -> None:
    lab = start_lab(config="[server]\ndrain_notice_seconds = 1\ndrain_seconds = 20\n")
    gate = Gate()
    events = builders.stream(ANSWER)
    assert lab.proxy.process is not None
    with lab.post(PLAIN_REQUEST, streamed(events, before={4: gate})) as exchange:
        exchange.next_event("response.in_progress")
        lab.proxy.process.send_signal(signal.SIGTERM)
        eventually(lambda: _ready(lab) == 503, "it says that it drains")
        gate.open()
        rest = [frame.event for frame in exchange.frames()]
    assert rest == events[2:]
    assert lab.proxy.process.wait(SHUTDOWN) == 0
    assert "Traceback" not in lab.proxy.said


def test_a_proxy_that_must_stop_ends_what_is_left(start_lab: StartLab) -> None:
    lab = start_lab(config="[server]\ndrain_notice_seconds = 0\ndrain_seconds = 3\n")
    assert lab.proxy.process is not None
    with lab.post(builders.request(), stream(*FRAMES[:6], Stall())) as exchange:
        exchange.next_event("response.output_text.delta")
        lab.proxy.process.send_signal(signal.SIGTERM)
        rest = [frame.event for frame in exchange.frames()]
        assert exchange.ended
    assert rest[-1]["type"] == "response.failed"
    assert rest[-1]["response"]["error"]["code"] == "server_error"
    assert lab.proxy.process.wait(SHUTDOWN) == 0
    assert "Traceback" not in lab.proxy.said


def test_a_proxy_that_must_stop_waits_for_no_client_that_is_silent(start_lab: StartLab) -> None:
    """Idle connections, half a head and half a body: none holds it beyond its time."""
    lab = start_lab(config="[server]\ndrain_notice_seconds = 0\ndrain_seconds = 3\n")
    head = b"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    halves = [b"", head, head + b"content-length: 9\r\n\r\n{"]
    connections = [socket.create_connection(("127.0.0.1", lab.proxy.port)) for _ in halves]
    for connection, half in zip(connections, halves, strict=True):
        connection.sendall(half)
        connection.settimeout(BOUND)
    assert _ready(lab) == 200
    _must_stop(lab)
    answers = [connection.recv(4096) for connection in connections]
    assert answers[:2] == [b"", b""]
    assert answers[2].startswith(b"HTTP/1.1 503 ")
    for connection in connections:
        connection.close()


def test_a_proxy_that_must_stop_cuts_what_only_passes(start_lab: StartLab) -> None:
    lab = start_lab(config="[server]\ndrain_notice_seconds = 0\ndrain_seconds = 3\n")
    lab.provider.script([[Stall()], stream(FRAMES[0], Stall())])
    with lab.proxy.get("/v1/models") as first:
        lab.provider.requests_seen.wait_for(1)
        with lab.proxy.get("/v1/models") as second:
            assert second.status == 200
            _must_stop(lab)
            assert first.status == 503


def _must_stop(lab: Lab) -> None:
    assert lab.proxy.process is not None
    lab.proxy.process.send_signal(signal.SIGTERM)
    assert lab.proxy.process.wait(SHUTDOWN) == 0
    assert "Traceback" not in lab.proxy.said
    assert "Cancel" not in lab.proxy.said


def _ready(lab: Lab) -> int:
    with lab.proxy.get("/readyz") as exchange:
        return exchange.status
