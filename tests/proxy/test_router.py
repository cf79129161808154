"""The way of a turn's requests over its upstreams: order, attempts, exact delays, aborts."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import RequestError, SottovoceError, UpstreamError, UpstreamRefusedError
from pipeline.failover import RouterAbortError
from pipeline.taxonomy import ErrorKind
from proxy.router import PEEK_SECONDS
from tests import builders, clock
from tests.routing import (
    DELTA,
    GOOD,
    HEALTHY,
    NAMES,
    OPENING,
    REQUEST,
    SSE,
    Lab,
    Reply,
    Response,
    answer,
    failed,
    failing,
    streamed,
    whole,
)

if TYPE_CHECKING:
    from proxy.route import Route
    from proxy.upstream import UpstreamRequest

# --- the table: every kind, position, before and after the first visible event ---------------

IN_PLACE = (ErrorKind.RATE_LIMIT, ErrorKind.NETWORK)
BEFORE_THE_HEAD: dict[str, tuple[Reply, ErrorKind]] = {
    "401": (answer(401), ErrorKind.AUTH),
    "403": (answer(403), ErrorKind.AUTH),
    "429": (answer(429), ErrorKind.RATE_LIMIT),
    "529": (answer(529), ErrorKind.RATE_LIMIT),
    "500": (answer(500), ErrorKind.RATE_LIMIT),
    "overflow": (answer(400, {"error": {"message": "context too small"}}), ErrorKind.OVERFLOW),
    "400": (answer(400), ErrorKind.BAD_REQUEST),
    "404": (answer(404, b"<html>"), ErrorKind.BAD_REQUEST),
    "302": (answer(302, b""), ErrorKind.BAD_REQUEST),
    "refused": (UpstreamError("refused"), ErrorKind.NETWORK),
    "late": (UpstreamError("late", status=504), ErrorKind.NETWORK),
    "closing": (UpstreamError("we are closing", status=503), ErrorKind.UNKNOWN),
}
INSIDE: dict[str, tuple[Response, ErrorKind]] = {
    "overloaded": (streamed(failing("server_is_overloaded")), ErrorKind.RATE_LIMIT),
    "rate limit": (streamed(failing("rate_limit_exceeded")), ErrorKind.RATE_LIMIT),
    "overflow": (streamed(failing("context_length_exceeded")), ErrorKind.OVERFLOW),
    "any code": (streamed(failing("server_error")), ErrorKind.UNKNOWN),
    "html": (
        Response(200, deque([b"<html>"]), [(b"content-type", b"text/html")]),
        ErrorKind.BAD_REQUEST,
    ),
    "error body": (answer(200, {"error": {"message": "no"}}), ErrorKind.BAD_REQUEST),
    "nothing": (Response(200, deque(), [(b"content-type", b"x/y")]), ErrorKind.BAD_REQUEST),
    "no terminal": (streamed(OPENING), ErrorKind.NETWORK),
    "cut": (streamed(OPENING, UpstreamError("reset")), ErrorKind.NETWORK),
    "odd encoding": (
        Response(200, deque([b"x"]), [(b"content-encoding", b"odd")]),
        ErrorKind.BAD_REQUEST,
    ),
}


def scripts(position: int, reply: Reply) -> dict[str, list[Reply]]:
    """Let the upstream at a position fail so, those before it with 401; the rest is well."""
    before: dict[str, list[Reply]] = {name: [answer(401)] for name in NAMES[:position]}
    return before | {NAMES[position]: [reply]} | {name: [HEALTHY] for name in NAMES[position + 1 :]}


@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("name", sorted(BEFORE_THE_HEAD))
def test_a_failure_before_the_head(name: str, position: int) -> None:
    reply, kind = BEFORE_THE_HEAD[name]
    at, attempts = NAMES[position], [0, 1250, 3750] if kind in IN_PLACE else [0]
    expected = [(one, 0) for one in NAMES[:position]] + [(at, ms) for ms in attempts]

    async def play() -> None:
        lab = Lab(scripts(position, reply))
        route = lab.route()
        if position == 2:
            await raises_as(route, reply)
        else:
            assert await whole(await route.open(REQUEST, SSE)) == b"".join(GOOD)
            expected.append((NAMES[position + 1], attempts[-1]))
            assert route.endpoint.name == NAMES[position + 1]
        assert lab.asked == expected
        assert route.attempts == len(expected)
        assert route.failure is not None
        assert route.failure.kind is kind
        assert lab.metric("upstream_requests_total", upstream=at, result=kind) == len(attempts)
        assert lab.metric("failovers_total", upstream=at, kind=kind) == (position < 2)
        lab.left_nothing_open()

    clock.run(play())


async def raises_as(route: Route, reply: Reply) -> None:
    """Check that a route ends with its last error: an answer as it came, else an exception."""
    if isinstance(reply, SottovoceError):
        with pytest.raises(SottovoceError) as caught:
            await route.open(REQUEST, SSE)
        assert caught.value is reply
    else:
        assert isinstance(reply, Response)
        found = await route.open(REQUEST, SSE)
        assert found.status == reply.status
        assert await whole(found) == b"".join(one for one in reply.pieces if isinstance(one, bytes))


@pytest.mark.parametrize("position", range(2))
@pytest.mark.parametrize("name", sorted(INSIDE))
def test_a_failure_inside_a_200_before_anything_shows(name: str, position: int) -> None:
    reply, kind = INSIDE[name]
    at = NAMES[position]

    async def play() -> None:
        lab = Lab(scripts(position, reply))
        route = lab.route()
        assert await whole(await route.open(REQUEST, SSE)) == b"".join(GOOD)
        assert lab.asked == [(one, 0) for one in NAMES[: position + 2]]
        assert route.attempts == position + 2
        assert lab.metric("upstream_requests_total", upstream=at, result=kind) == 1
        assert lab.metric("failovers_total", upstream=at, kind=kind) == 1
        lab.left_nothing_open()

    clock.run(play())


@pytest.mark.parametrize("name", sorted(INSIDE.keys() - {"odd encoding"}))
def test_the_last_one_is_not_looked_into(name: str) -> None:
    """Nobody else could take the request: whatever it says passes, and nothing is held back."""
    reply, _ = INSIDE[name]

    async def play() -> None:
        lab = Lab(scripts(2, reply))
        found = await lab.route().open(REQUEST, SSE)
        assert found.status == 200
        assert lab.names == [*NAMES]
        assert not lab.transports["three"].given[0].closed
        assert lab.transports["three"].given[0].pieces == reply.pieces

    clock.run(play())


def test_the_last_one_with_an_odd_encoding() -> None:
    async def play() -> None:
        lab = Lab(scripts(2, INSIDE["odd encoding"][0]))
        with pytest.raises(UpstreamError, match="encoding"):
            await lab.route().open(REQUEST, SSE)
        lab.left_nothing_open()

    clock.run(play())


@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize(
    "end",
    [
        *(
            builders.frames([failed(code)])
            for code in ("server_is_overloaded", "context_length_exceeded", "x")
        ),
        [UpstreamError("reset")],
    ],
    ids=["rate_limit", "overflow", "unknown", "network"],
)
def test_a_failure_after_the_first_visible_event(end: list[Any], position: int) -> None:
    async def play() -> None:
        reply = streamed(DELTA, *end)
        lab = Lab(scripts(position, reply))
        found = await lab.route().open(REQUEST, SSE)
        assert lab.asked == [(one, 0) for one in NAMES[: position + 1]]
        seen = []
        for expected in reply.pieces:
            if isinstance(expected, SottovoceError):
                with pytest.raises(UpstreamError):
                    await found.read()
            else:
                seen.append(await found.read())
                assert seen[-1] == expected

    clock.run(play())


def test_a_request_that_can_not_be_put_to_an_upstream() -> None:
    async def play() -> None:
        lab = Lab(scripts(0, HEALTHY), {"one": {"model": "unspeakable"}})
        assert await lab.post() == b"".join(GOOD)
        assert lab.asked == [("two", 0)]
        alone = Lab({"one": [HEALTHY]}, {"one": {"model": "unspeakable"}})
        with pytest.raises(RequestError, match="can't say that"):
            await alone.post()

    clock.run(play())


# --- delays the upstream asks for ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "times"),
    [
        ({"retry_after": "3"}, [0, 3000, 6000]),
        ({"retry_after_ms": "1300"}, [0, 1300, 3800]),
        ({"retry_after": "30"}, [0, 30_000, 60_000]),
        ({"retry_after": "-1"}, [0, 1250, 3750]),
        ({"retry_after": "31"}, [0]),
    ],
)
def test_retry_after(headers: dict[str, str], times: list[int]) -> None:
    async def play() -> None:
        lab = Lab({"one": [answer(429, **headers)]})
        route = lab.route()
        found = await route.open(REQUEST, SSE)
        assert lab.asked == [("one", ms) for ms in times]
        assert found.status == 429
        name, value = next(iter(headers.items()))
        assert (name.replace("_", "-").encode(), value.encode()) in found.headers
        assert route.worth_waiting is (len(times) == 1)

    clock.run(play())


@pytest.mark.parametrize("code", ["insufficient_quota", "usage_limit_reached"])
def test_a_spent_quota(code: str) -> None:
    async def play() -> None:
        spent = answer(429, {"error": {"message": "gone", "type": code}})
        lab = Lab({"one": [spent], "two": [spent]})
        assert json.loads(await lab.post()) == {"error": {"message": "gone", "type": code}}
        assert lab.asked == [("one", 0), ("two", 0)]

    clock.run(play())


def test_it_comes_back_by_itself() -> None:
    async def play() -> None:
        lab = Lab({"one": [answer(503), UpstreamError("reset"), HEALTHY], "two": [HEALTHY]})
        assert await lab.post() == b"".join(GOOD)
        assert lab.asked == [("one", 0), ("one", 1250), ("one", 3750)]
        lab.left_nothing_open()

    clock.run(play())


# --- the look into a 200 ------------------------------------------------------------------------


@pytest.mark.parametrize("silent", [OPENING, [b": ping\n\n"], []], ids=["opening", "comment", "-"])
def test_it_is_held_back_for_two_seconds_at_most(silent: list[bytes]) -> None:
    async def play() -> None:
        pieces = [*silent, 5.0, *failing("server_is_overloaded")]
        lab = Lab({"one": [streamed(*pieces)], "two": [HEALTHY]})
        found = await lab.route().open(REQUEST, SSE)
        assert clock.milliseconds() == PEEK_SECONDS * 1000
        assert await whole(found) == b"".join(one for one in pieces if isinstance(one, bytes))
        assert clock.milliseconds() >= 5000
        assert lab.names == ["one"]

    clock.run(play())


def test_a_short_keep_alive_holds_it_back_for_less() -> None:
    async def play() -> None:
        lab = Lab({"one": [streamed(OPENING, 5.0, GOOD[-1])], "two": [HEALTHY]})
        lab.router.peek_seconds = 0.3
        await lab.route().open(REQUEST, SSE)
        assert clock.milliseconds() == 300

    clock.run(play())


def test_what_shows_something_ends_it() -> None:
    async def play() -> None:
        lab = Lab({"one": [streamed(OPENING, 0.5, GOOD[2], 60.0, GOOD[3:])], "two": [HEALTHY]})
        found = await lab.route().open(REQUEST, SSE)
        assert clock.milliseconds() == 500
        assert await whole(found) == b"".join(GOOD)

    clock.run(play())


def test_a_failure_inside_counts_as_long_as_nobody_took_over() -> None:
    """The next upstream is shut: the first one's failure is the answer, with all its bytes."""

    async def play() -> None:
        events = failing("server_is_overloaded")
        lab = Lab({"one": [streamed(events)], "two": [HEALTHY]})
        route = lab.route()
        enter = lab.router.circuits.enter

        def shut(upstream: str, caller: str | None, now: float, **how: bool) -> Any:
            return None if upstream == "two" else enter(upstream, caller, now, **how)

        with patch.object(lab.router.circuits, "enter", shut):  # as if it had just opened
            assert await whole(await route.open(REQUEST, SSE)) == b"".join(events)
        assert lab.names == ["one"]
        assert route.endpoint.name == "one"

    clock.run(play())


# --- aborts -------------------------------------------------------------------------------------


async def aborted(lab: Lab, when: float) -> BaseException | None:
    """Give a request up after so many seconds; return what its cancellation says."""
    task = asyncio.ensure_future(lab.route().open(REQUEST, SSE))
    if when:
        await asyncio.sleep(when)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    lab.left_nothing_open()
    return caught.value.__cause__


def test_an_abort_before_the_first_attempt() -> None:
    async def play() -> None:
        lab = Lab({"one": [HEALTHY]})

        async def late() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await lab.route().open(REQUEST, SSE)

        with pytest.raises(asyncio.CancelledError) as caught:
            await asyncio.ensure_future(late())
        assert isinstance(caught.value.__cause__, RouterAbortError)
        assert lab.names == []

    clock.run(play())


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        pytest.param([5.0], ["one"], id="no head yet"),
        pytest.param([streamed(OPENING, 5.0)], ["one"], id="looked into"),
        pytest.param([answer(500, b"x")], ["one"], id="asleep"),
    ],
)
def test_an_abort_on_the_way(script: list[Reply], asked: list[str]) -> None:
    async def play() -> None:
        lab = Lab({"one": script, "two": [HEALTHY]})
        cause = await aborted(lab, 1.0)
        asleep = isinstance(script[0], Response) and script[0].status == 500
        assert isinstance(cause, UpstreamRefusedError if asleep else RouterAbortError)
        await asyncio.sleep(60)
        assert lab.names == asked

    clock.run(play())


def test_an_abort_that_an_attempt_swallows_is_noticed_after_it() -> None:
    async def play() -> None:
        lab = Lab({"one": [HEALTHY], "two": [HEALTHY]})

        async def swallows(_: UpstreamRequest) -> Response:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                raise UpstreamError("something went wrong") from None
            raise AssertionError

        with patch.object(lab.transports["one"], "open", swallows):
            cause = await aborted(lab, 1.0)
        assert isinstance(cause, RouterAbortError)
        assert lab.names == []

    clock.run(play())


def test_an_abort_gives_a_trial_back() -> None:
    async def play() -> None:
        lab = Lab({"one": [*[answer(500)] * 6, 50.0, HEALTHY], "two": [HEALTHY]})
        for session in "ab":
            await lab.post(session=session)
        await asyncio.sleep(31)
        await aborted(lab, 1.0)
        await lab.post(session="c")
        assert lab.names[-1] == "one"

    clock.run(play())


# --- error bodies -------------------------------------------------------------------------------


def test_an_error_body_is_cut_and_not_waited_for() -> None:
    async def play() -> None:
        long = Response(400, deque([b"x" * 40_000] * 3), [(b"content-length", b"120000")])
        lab = Lab({"one": [long]})
        assert await lab.post() == b"x" * 65_536
        slow = Response(400, deque([b"begun", 100.0, b"ended"]))
        assert await Lab({"one": [slow]}).post() == b"begun"
        assert clock.milliseconds() == 10_000
        cut = Response(400, deque([b"begun", UpstreamError("reset")]))
        assert await Lab({"one": [cut]}).post() == b"begun"

    clock.run(play())


# --- any script ---------------------------------------------------------------------------------

replies = st.sampled_from(
    [
        *(reply for reply, _ in BEFORE_THE_HEAD.values()),
        *(reply for reply, _ in INSIDE.values()),
        answer(429, retry_after="4"),
        answer(429, retry_after="40"),
        answer(429, {"error": {"code": "insufficient_quota"}}),
        HEALTHY,
    ]
)


@given(st.lists(st.lists(replies, min_size=3, max_size=3), min_size=1, max_size=3))
def test_any_script(script: list[list[Reply]]) -> None:
    """Each upstream in order, at most three times, with the delays of the rule."""

    async def play() -> None:
        lab = Lab({NAMES[number]: list(outcomes) for number, outcomes in enumerate(script)})
        try:
            found = await lab.route().open(REQUEST, SSE)
        except SottovoceError:
            pass
        else:
            await found.close()
        visits = [lab.names.count(name) for name in NAMES[: len(script)]]
        assert lab.names == [
            name for name, count in zip(NAMES, visits, strict=False) for _ in range(count)
        ]
        assert max(visits) <= 3
        for name, outcomes in zip(NAMES, script, strict=False):
            times = [call.at for call in lab.calls if call.name == name]
            waits = [later - earlier for earlier, later in pairwise(times)]
            asked_for = [4000 if is_told(one, b"4") else 0 for one in outcomes]
            floors = zip([1250, 2500], asked_for, strict=False)
            assert waits == [max(pair) for pair in floors][: len(waits)]
        lab.left_nothing_open()

    clock.run(play())


def is_told(reply: Reply, seconds: bytes) -> bool:
    return isinstance(reply, Response) and (b"retry-after", seconds) in reply.headers
