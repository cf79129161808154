"""Everything that goes wrong ends as one clear error, and leaves nothing running."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any, Final

import pytest
from backports import zstd

from tests import builders
from tests.builders import (
    failed,
    item_events,
    message,
    numbered,
    opening,
    recall_call,
    terminal,
    usage,
)
from tests.e2e import checks
from tests.e2e.client import SDK_HEADERS, Exchange, Frame
from tests.e2e.process import free_port
from tests.e2e.replies import says, streamed
from tests.upstreams import Close, Early, Gate, Reset, Stall, answer, chunk, head, response, stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.builders import Event
    from tests.e2e.client import Headers
    from tests.e2e.conftest import Lab, StartLab
    from tests.upstreams import Reply, Steps

HIDDEN = recall_call("call_hidden_1", {"query": "canary"})
ANSWER = message("It is all fine, is it not?")
MESSAGE = item_events(ANSWER, 0)
EVENT_STREAM: Final = ("content-type", "text/event-stream")
RETRY_LATE: Final = ("retry-after", "40")
"""So late that nobody waits for it."""
IMPATIENT: Final = """
[[upstream]]
name = "slow"
kind = "responses"
base_url = "{url}"
timeout_ms = 300
idle_timeout_ms = 300
"""


def error_of(exchange: Exchange, status: int) -> dict[str, Any]:
    """Check status and shape of an error answer; return its error."""
    assert exchange.status == status, exchange.body()
    assert exchange.headers["content-type"].startswith("application/json")
    body = exchange.json()
    assert body.keys() == {"error"}
    error = body["error"]
    assert {"message", "type", "code", "param"} <= error.keys()
    assert error["message"]
    assert isinstance(error, dict)
    return error


def failure_of(exchange: Exchange) -> tuple[list[Event], dict[str, Any]]:
    """Check that a stream ends in one ``response.failed``; return its events and the error."""
    events = checks.received(exchange)
    assert events[-1]["type"] == "response.failed", events[-1]["type"]
    error = events[-1]["response"]["error"]
    assert error["message"]
    assert isinstance(error, dict)
    return events, error


# ------------------------------------------------------------------------- what the client sends

MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "no json": b'{"model": "m", "input": ',
    "an array": b"[]",
    "not a number": b'{"model": "m", "input": "hi", "temperature": NaN}',
    "not utf-8": b'{"model": "\xff"}',
    "utf-16": '{"model": "m"}'.encode("utf-16"),
    "input is a number": b'{"model": "m", "input": 7}',
    "tools is an object": b'{"model": "m", "input": "hi", "tools": {}}',
    "stream is a text": b'{"model": "m", "input": "hi", "stream": "yes"}',
    "nested without end": b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("name", sorted(MALFORMED))
def test_malformed_requests(shared_lab: Lab, name: str) -> None:
    with shared_lab.post(MALFORMED[name]) as exchange:
        error = error_of(exchange, 400)
    assert error["type"] == "invalid_request_error"
    shared_lab.is_idle()


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
}


@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_encoded_bodies_reach_the_upstream_plain(shared_lab: Lab, name: str) -> None:
    """Case 12."""
    text = builders.compact(builders.request(tools=None, tool_choice=None)).encode()
    headers = (*SDK_HEADERS, ("content-encoding", name))
    with shared_lab.post(ENCODINGS[name](text), says(ANSWER), headers=headers) as exchange:
        checks.received(exchange)
    seen = shared_lab.seen()
    assert seen.body == text
    assert seen.header("content-encoding") is None
    assert seen.header("content-type") == b"application/json"


@pytest.mark.parametrize("name", sorted(ENCODINGS))
@pytest.mark.parametrize("damage", ["cut", "nonsense"])
def test_corrupt_bodies(shared_lab: Lab, name: str, damage: str) -> None:
    data = ENCODINGS[name](builders.compact(builders.request()).encode())
    data = data[: len(data) // 2] if damage == "cut" else b"nonsense" + data
    headers = (*SDK_HEADERS, ("content-encoding", name))
    with shared_lab.post(data, headers=headers) as exchange:
        error_of(exchange, 400)


def test_an_unknown_encoding(shared_lab: Lab) -> None:
    headers = (*SDK_HEADERS, ("content-encoding", "brotli-9"))
    with shared_lab.post(b"{}", headers=headers) as exchange:
        error_of(exchange, 415)


@pytest.mark.parametrize("name", ["identity", *ENCODINGS])
def test_a_body_above_the_limit(start_lab: StartLab, name: str) -> None:
    lab = start_lab(config="[server]\nmax_request_bytes = 20000\n")
    text = builders.compact(builders.request(text="x" * 30_000)).encode()
    data, headers = text, SDK_HEADERS
    if name != "identity":
        data = ENCODINGS[name](text)
        assert len(data) < 20_000
        headers = (*SDK_HEADERS, ("content-encoding", name))
    with lab.post(data, headers=headers) as exchange:
        error = error_of(exchange, 413)
    assert error["message"] == "request body exceeded 20000 byte limit"
    assert not lab.provider.requests


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param((("origin", "https://evil.example"),), id="a page of somebody else"),
        pytest.param((("origin", "null"),), id="a page of nobody"),
    ],
)
def test_foreign_origins(shared_lab: Lab, headers: Headers) -> None:
    with shared_lab.post(builders.request(), headers=(*SDK_HEADERS, *headers)) as exchange:
        error_of(exchange, 403)


def test_a_foreign_host(shared_lab: Lab) -> None:
    with Exchange(shared_lab.proxy.port, builders.request(), host="rebound.example") as exchange:
        error_of(exchange, 403)


def test_an_upgrade_is_refused_in_the_one_way_that_falls_back(shared_lab: Lab) -> None:
    headers = (
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-version", "13"),
    )
    for target in ("/v1/responses", "/responses", "/backend-api/codex/responses"):
        with shared_lab.proxy.get(target, headers=headers) as exchange:
            error_of(exchange, 426)
            assert exchange.headers["connection"].lower() == "close"
            assert exchange.ended


H2C: Final[Headers] = (
    ("connection", "Upgrade, HTTP2-Settings"),
    ("upgrade", "h2c"),
    ("http2-settings", "AAMAAABkAAQAAP__"),
)


@pytest.mark.parametrize("target", ["/v1/responses", "/v1/chat/completions", "/v1/embeddings"])
def test_another_upgrade_is_as_if_it_had_not_been_asked_for(shared_lab: Lab, target: str) -> None:
    """curl, Java's HttpClient and others ask for HTTP/2 with their first request."""
    asked = builders.request(text="x" * 300_000)
    if target == "/v1/chat/completions":
        asked = {"model": "m", "messages": [{"role": "user", "content": "x" * 300_000}]}
    headers = (*SDK_HEADERS, *H2C)
    reply = says(ANSWER) if target == "/v1/responses" else answer({"object": "list", "data": []})
    with shared_lab.post(asked, reply, headers=headers, target=target) as exchange:
        if target != "/v1/chat/completions":
            assert exchange.status == 200
        exchange.body()
    seen = shared_lab.seen()
    assert len(seen.body) > 300_000
    assert seen.header("upgrade") is None
    assert seen.header("http2-settings") is None
    with shared_lab.proxy.get("/v1/responses", headers=H2C) as exchange:
        assert exchange.status == 405


def test_a_plain_get_is_not_allowed(shared_lab: Lab) -> None:
    with shared_lab.proxy.get("/v1/responses") as exchange:
        assert exchange.status == 405


# ---------------------------------------------------------------- what the upstream does: no head


def _empty_stream() -> Steps:
    return [head(200, [EVENT_STREAM, ("content-length", "0")])]


BEFORE_THE_HEAD: dict[str, tuple[Reply, int, str]] = {
    "reset": ([Reset()], 502, "server_error"),
    "closed": ([Close()], 502, "server_error"),
    "cut in the head": ([b"HTTP/1.1 200 OK\r\ncontent-", Reset()], 502, "server_error"),
    "cut before created": (stream(b"event: response.cre", Reset()), 502, "server_error"),
    "nothing": (_empty_stream(), 502, "server_error"),
    "html": (
        response(200, b"<html>Sign in</html>", headers=[("content-type", "text/html")]),
        502,
        "invalid_prompt",
    ),
    "html without a type": (response(200, b"<html>Sign in</html>"), 502, "invalid_prompt"),
    "json": (answer({"id": "resp_1", "object": "response"}), 502, "invalid_prompt"),
    "an error in a 200": (
        answer({"error": {"message": "No credit left.", "code": "insufficient_quota"}}),
        502,
        "insufficient_quota",
    ),
    "malformed first event": (
        stream(b"event: response.created\ndata: {oops\n\n"),
        502,
        "invalid_prompt",
    ),
}


@pytest.mark.parametrize("name", sorted(BEFORE_THE_HEAD))
@pytest.mark.parametrize("tools", [True, False], ids=["with tools", "observed"])
def test_an_upstream_that_fails_before_the_head(shared_lab: Lab, name: str, *, tools: bool) -> None:
    reply, status, code = BEFORE_THE_HEAD[name]
    shared_lab.provider.default = reply
    asked = builders.request() if tools else builders.request(tools=None, tool_choice=None)
    with shared_lab.post(asked) as exchange:
        error = error_of(exchange, status)
        assert exchange.headers["x-should-retry"] == "false"
    assert error["code"] == code
    shared_lab.is_idle()


def test_the_providers_words_are_kept(shared_lab: Lab) -> None:
    reply = answer({"error": {"message": "No credit left.", "code": "insufficient_quota"}})
    shared_lab.provider.default = reply
    with shared_lab.post(builders.request()) as exchange:
        assert "No credit left." in error_of(exchange, 502)["message"]


def test_an_upstream_that_is_down(start_lab: StartLab) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    lab = start_lab(config=IMPATIENT.replace("{url}", url))
    with lab.post(builders.request()) as exchange:
        assert error_of(exchange, 502)["code"] == "server_error"
    lab.is_idle()


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param([Stall()], id="no head"),
        pytest.param([head(200, [EVENT_STREAM]), Stall()], id="no event"),
    ],
)
def test_an_upstream_that_is_silent(start_lab: StartLab, reply: Reply) -> None:
    lab = start_lab(config=IMPATIENT)
    lab.provider.default = reply
    with lab.post(builders.request()) as exchange:
        if exchange.status == 200:
            events = checks.written(exchange.frames())
            assert [event["type"] for event in events] == ["response.failed"]
            assert events[0]["response"]["error"]["code"] == "server_error"
        else:
            assert error_of(exchange, 504)["code"] == "server_error"
    lab.is_idle()
    lab.provider.connections_closed.wait_for(1)


REFUSALS: dict[str, tuple[int, dict[str, Any]]] = {
    "bad request": (400, {"error": {"message": "Bad.", "type": "t", "code": "c", "param": "p"}}),
    "codex": (400, {"detail": "Stream must be set to true"}),
    "no key": (401, {"error": {"message": "Key?", "type": "t", "code": None, "param": None}}),
    "limit": (
        429,
        {"error": {"message": "Slow down.", "type": "usage_limit_reached", "resets_in": 9}},
    ),
    "server": (500, {"error": {"message": "Oh.", "type": "server_error", "code": None}}),
}


@pytest.mark.parametrize("name", sorted(REFUSALS))
def test_the_providers_own_error_passes(shared_lab: Lab, name: str) -> None:
    status, body = REFUSALS[name]
    headers = [("retry-after", "60"), ("x-request-id", "req_9")]
    shared_lab.provider.default = answer(body, status=status, headers=headers)
    with shared_lab.post(builders.request()) as exchange:
        assert exchange.status == status
        assert exchange.headers["retry-after"] == "60"
        assert exchange.headers["x-request-id"] == "req_9"
        assert exchange.json() == body
    shared_lab.is_idle()


@pytest.mark.parametrize("status", [600, 999])
@pytest.mark.parametrize("turn", [True, False], ids=["a turn", "passed on"])
def test_a_status_that_http_does_not_have(shared_lab: Lab, status: int, *, turn: bool) -> None:
    """A client counts it among the server errors; the provider's body stays."""
    shared_lab.provider.default = answer({"error": "odd"}, status=status, headers=[RETRY_LATE])
    ask, proxy = builders.request(), shared_lab.proxy
    with shared_lab.post(ask) if turn else proxy.get("/v1/models") as exchange:
        assert exchange.status == 502
        assert exchange.json() == {"error": "odd"}


def test_an_error_body_without_end_is_cut(start_lab: StartLab) -> None:
    lab = start_lab(config="[limits]\nerror_bytes = 1000\n")
    lab.provider.default = [
        head(500, [("content-type", "text/plain"), ("transfer-encoding", "chunked")]),
        *[chunk(b"x" * 1000)] * 5,
        Stall(),
    ]
    with lab.post(builders.request()) as exchange:
        assert exchange.status == 500
        assert len(exchange.body()) < 3000
    lab.is_idle()
    lab.provider.connections_closed.wait_for(1)


def test_an_answer_that_does_not_wait_for_the_body(shared_lab: Lab) -> None:
    body = json.dumps(REFUSALS["bad request"][1]).encode()
    shared_lab.provider.default = Early(
        [head(400, [("content-type", "application/json"), ("connection", "close")]), body]
    )
    with shared_lab.post(builders.request(text="x" * 300_000)) as exchange:
        assert exchange.status == 400


# --------------------------------------------------------------- what the upstream does: a stream


@pytest.mark.parametrize("end", [Reset(), Close()], ids=["reset", "closed"])
@pytest.mark.parametrize("tools", [True, False], ids=["with tools", "observed"])
def test_a_stream_that_is_cut(shared_lab: Lab, end: Reset | Close, *, tools: bool) -> None:
    frames = builders.frames(numbered([*opening(), *MESSAGE]))
    reply = stream(*frames[:6], frames[6][:20], end)
    asked = builders.request() if tools else builders.request(tools=None, tool_choice=None)
    with shared_lab.post(asked, reply) as exchange:
        events, error = failure_of(exchange)
    assert error["code"] == "server_error"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["status"] for item in done] == ["incomplete"]
    shared_lab.is_idle()


def test_a_stream_without_terminal(shared_lab: Lab) -> None:
    with shared_lab.post(
        builders.request(), streamed(numbered([*opening(), *MESSAGE]))
    ) as exchange:
        events, error = failure_of(exchange)
    assert error["code"] == "server_error"
    assert checks.text_of(events[-2]["item"]) == checks.text_of(ANSWER)


def test_a_stream_that_falls_silent(start_lab: StartLab) -> None:
    lab = start_lab(config=IMPATIENT)
    frames = builders.frames(numbered([*opening(), *MESSAGE]))
    with lab.post(builders.request(), stream(*frames[:6], Stall())) as exchange:
        _, error = failure_of(exchange)
    assert error["code"] == "server_error"
    lab.is_idle()
    lab.provider.connections_closed.wait_for(1)


DELTA = MESSAGE[2]
VIOLATIONS: dict[str, tuple[bytes, str]] = {
    "no json": (
        b"event: response.output_text.delta\ndata: {oops\n\n",
        "malformed JSON in Responses event response.output_text.delta",
    ),
    "another type": (
        b"event: response.output_text.delta\ndata: "
        + builders.compact(DELTA | {"type": "response.output_text.done"}).encode()
        + b"\n\n",
        "Responses payload type does not match response.output_text.delta",
    ),
    "another response": (
        builders.frame(builders.terminal("resp_other", output=[ANSWER])),
        "",
    ),
    "an index opened twice": (builders.frame(MESSAGE[0]), ""),
    "a done of another kind": (
        builders.frame(builders.item_done(builders.function_call("c9", "shell", {}), 0)),
        "",
    ),
    "an index below zero": (builders.frame(DELTA | {"output_index": -1}), ""),
    "an index beyond reason": (builders.frame(DELTA | {"output_index": 70_000}), ""),
}


@pytest.mark.parametrize("name", sorted(VIOLATIONS))
@pytest.mark.parametrize("tools", [True, False], ids=["with tools", "observed"])
def test_a_stream_that_no_client_could_read(shared_lab: Lab, name: str, *, tools: bool) -> None:
    data, text = VIOLATIONS[name]
    frames = builders.frames(numbered([*opening(), *MESSAGE]))
    reply = stream(*frames[:5], data, Stall())
    asked = builders.request() if tools else builders.request(tools=None, tool_choice=None)
    with shared_lab.post(asked, reply) as exchange:
        _, error = failure_of(exchange)
    assert error["code"] == "invalid_prompt"
    assert text in error["message"]
    shared_lab.is_idle()


# ------------------------------------------------------------------------------------------ limits


def _nameless(call: builders.Item) -> list[Event]:
    events = [*opening(), *builders.nameless(item_events(call, 0)), terminal(output=[call])]
    return numbered(events)


LIMITS: dict[str, tuple[int, list[Event], str]] = {
    "stream_bytes": (
        6000,
        builders.stream(message("x " * 100)),
        "Responses stream exceeded byte limit",
    ),
    "retained_bytes": (
        4000,
        builders.stream(message("y" * 2500), message("z" * 2500)),
        "Responses retained state exceeded byte limit",
    ),
    "deferred_bytes": (
        2000,
        _nameless(builders.function_call("c1", "shell", "x" * 400)),
        "recall stream exceeded deferred event limit",
    ),
    "hidden_bytes": (
        2000,
        builders.stream(recall_call("c1", "x" * 400)),
        "recall stream exceeded hidden byte limit",
    ),
    "event_bytes": (
        4000,
        builders.stream(message("w" * 5000)),
        "SSE event exceeded 4000 byte limit",
    ),
    "frames": (
        30,
        builders.stream(message("v " * 60)),
        "SSE stream exceeded frame limit",
    ),
}


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_limits_end_a_turn_in_which_we_hide(start_lab: StartLab, name: str) -> None:
    value, sent, text = LIMITS[name]
    lab = start_lab(config=f"[limits]\n{name} = {value}\n")
    gate = Gate()
    with lab.post(builders.request(), streamed(sent, before={2: gate})) as exchange:
        opened = [exchange.next_event(event["type"]) for event in opening()]
        gate.open()
        events = [*opened, *checks.written(exchange.frames())]
    checks.well_formed(events)
    error = events[-1]["response"]["error"]
    assert error == {"code": "invalid_prompt", "message": text}
    lab.proxy.reaches(1, "limits_reached_total", limit=name)
    lab.is_idle()


@pytest.mark.parametrize("name", sorted(set(LIMITS) - {"deferred_bytes", "hidden_bytes"}))
def test_limits_never_end_a_turn_that_we_only_observe(start_lab: StartLab, name: str) -> None:
    value, sent, _ = LIMITS[name]
    lab = start_lab(config=f"[limits]\n{name} = {value}\n")
    with lab.post(builders.request(tools=None, tool_choice=None), streamed(sent)) as exchange:
        assert exchange.body() == builders.body(sent)
    lab.proxy.reaches(1, "accumulations_truncated_total", limit=name)
    lab.is_idle()


# -------------------------------------------------------------------------------- continuations


def _fails_after(*replies: Reply) -> tuple[Reply, ...]:
    return (says(message("Let me see."), HIDDEN, usage=usage(100, 10, cached=40)), *replies)


FOLLOW_UPS: dict[str, tuple[Reply, str]] = {
    "an error": (
        answer({"error": {"message": "Bad input.", "code": "invalid_input"}}, status=400),
        "",
    ),
    "an overflow": (
        answer({"error": {"message": "Too long.", "code": "context_length_exceeded"}}, status=400),
        "context_length_exceeded",
    ),
    "a reset": ([Reset()], "server_error"),
    "html": (response(200, b"<html>", headers=[("content-type", "text/html")]), ""),
    "a failure": (
        streamed([*opening("resp_B"), failed("server_is_overloaded", response_id="resp_B")]),
        "server_is_overloaded",
    ),
    "a cut after text": (
        stream(
            *builders.frames(numbered([*opening("resp_B"), *MESSAGE]))[:6],
            Reset(),
        ),
        "server_error",
    ),
}


@pytest.mark.parametrize("name", sorted(FOLLOW_UPS))
def test_a_continuation_that_fails(shared_lab: Lab, name: str) -> None:
    """Case 2, without recovery: what was visible, then one failure with the usage so far."""
    reply, code = FOLLOW_UPS[name]
    shared_lab.provider.default = reply
    with shared_lab.post(builders.request(), *_fails_after(reply)) as exchange:
        frames = list(exchange.frames())
        assert exchange.ended
    events = checks.written(frames)
    checks.well_formed(events)
    checks.knows_nothing_of(b"".join(f.raw for f in frames), "call_hidden_1", "canary")
    end = events[-1]["response"]
    assert events[-1]["type"] == "response.failed"
    assert end["id"] == "resp_A"
    assert checks.figures(end["usage"]) == (100, 10, 110, 40)
    if code:
        assert end["error"]["code"] == code
    shared_lab.is_idle()


def test_a_hidden_call_in_an_incomplete_answer(shared_lab: Lab) -> None:
    details = {"reason": "max_output_tokens"}
    reply = says(message("Hm."), HIDDEN, end="incomplete", incomplete_details=details)
    with shared_lab.post(builders.request(), reply) as exchange:
        frames = list(exchange.frames())
    events = checks.written(frames)
    checks.well_formed(events)
    checks.knows_nothing_of(b"".join(f.raw for f in frames), "call_hidden_1", "canary")
    end = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert end["incomplete_details"] == details
    assert [checks.text_of(item) for item in end["output"]] == ["Hm."]


def test_a_hidden_call_in_a_failed_answer(shared_lab: Lab) -> None:
    events = [*opening(), *item_events(HIDDEN, 0), failed("server_is_overloaded", "Busy.")]
    with shared_lab.post(builders.request(), streamed(numbered(events))) as exchange:
        frames = [Frame(frame.raw) for frame in exchange.frames()]
    got = checks.written(frames)
    checks.well_formed(got)
    checks.knows_nothing_of(b"".join(f.raw for f in frames), "call_hidden_1", "canary")
    assert got[-1]["response"]["error"] == {"code": "server_is_overloaded", "message": "Busy."}


def test_calls_without_end_end_the_turn(start_lab: StartLab) -> None:
    """After the last round one more request may not call for memory; this model does."""
    lab = start_lab(config="[recall.budgets]\nrounds = 2\n")
    calls = [recall_call(f"call_hidden_{n}", {"query": f"canary {n}"}) for n in range(4)]
    replies = [says(call, response_id=f"resp_{n}") for n, call in enumerate(calls)]
    with lab.post(builders.request(), *replies) as exchange:
        _, error = failure_of(exchange)
    assert "canary" not in error["message"]
    choices = [request.json()["tool_choice"] for request in lab.provider.requests]
    shell = {"type": "function", "name": "shell"}
    last = {"type": "allowed_tools", "mode": "auto", "tools": [shell]}
    assert choices == ["auto", "auto", "auto", last]
    lab.is_idle()
