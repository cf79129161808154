"""A driver alone: a real turn, an upstream and a client in memory, moment by moment."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.outcome import Ending
from proxy.answer import BURST_BYTES, LEAD_BYTES, Answer
from proxy.downstream import Channel
from proxy.driver import Driver, Wiring
from proxy.upstream import UpstreamResponse
from tests.builders import body, message, stream
from tests.playbook import turn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Message

pytestmark = pytest.mark.anyio


class Incoming:
    """An exchange whose body is in memory, and never ends by itself."""

    status = 200

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.headers = [(b"content-type", b"text/event-stream")]
        self.draining = False
        self.aborted = False
        self._pieces = deque(pieces)

    async def read(self) -> bytes | None:
        if not self._pieces:
            await asyncio.get_running_loop().create_future()
        return self._pieces.popleft()

    def drain(self, seconds: float) -> None:
        assert seconds > 0
        self.draining = True

    def abort(self) -> None:
        self.aborted = True

    async def settle(self) -> None:
        pass


class Play:
    """A driver between a client and an upstream that answers when it is told to."""

    def __init__(self, *pieces: bytes, lead: bool = True, **options: Any) -> None:
        self.incoming = Incoming(pieces)
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.sent: list[Message] = []
        wiring = Wiring(
            open=self._open,
            spent=lambda: None,
            tools={},
            save=self._never,
            report_empty=lambda _: None,
            save_missed=lambda: None,
            head=list,
            refusal_head=lambda _: [],
            idle_seconds=60.0,
            keepalive_seconds=60.0,
            lead=lead,
            spawn=self._never,
        )
        self.driver = Driver(turn(**options), wiring, Channel(self._send))

    async def _open(self, *_asked: object) -> Answer:
        self.asked.set()
        await self.answers.wait()
        return Answer(UpstreamResponse(self.incoming, reused=False))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def _never(self, *_: object) -> None:
        raise AssertionError

    @property
    def bodies(self) -> list[bytes]:
        return [one["body"] for one in self.sent if one["type"] == "http.response.body"]


async def test_an_answer_in_the_moment_of_its_opening_given_up_is_left_in_good_order() -> None:
    play = Play(body(stream(message("hi"))))
    run = asyncio.ensure_future(play.driver.run())
    await play.asked.wait()
    play.answers.set()
    play.driver.shut_down()
    outcome = await run
    assert outcome.ending is Ending.FAILED
    assert play.incoming.draining or play.incoming.aborted
    assert play.sent[0]["status"] == 503


async def test_a_shutdown_wakes_whoever_waits_for_a_head() -> None:
    play = Play()
    run = asyncio.ensure_future(play.driver.run())
    await play.asked.wait()
    play.driver.shut_down()
    assert (await run).ending is Ending.FAILED
    assert play.sent[0]["status"] == 503


async def test_a_client_that_leaves_in_the_moment_of_the_head_leaves_nothing() -> None:
    play = Play(body(stream(message("hi"))))
    run = asyncio.ensure_future(play.driver.run())
    await play.asked.wait()
    play.answers.set()
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert play.incoming.aborted
    assert not play.sent


@pytest.mark.parametrize("declared", [True, False])
async def test_the_first_events_of_a_burst_go_ahead(*, declared: bool) -> None:
    said = body(stream(message("word " * 400)))
    assert len(said) > BURST_BYTES
    play = Play(said, **({} if declared else {"tools": ()}))
    play.answers.set()
    outcome = await play.driver.run()
    assert outcome.ending is Ending.COMPLETED
    first, *_ = play.bodies
    assert first.startswith(b"event: response.created\n")
    assert first.endswith(b"\n\n")
    assert len(first) <= LEAD_BYTES
    whole = b"".join(play.bodies)
    assert whole == said


async def test_a_burst_stays_whole_where_many_turns_run() -> None:
    said = body(stream(message("word " * 400)))
    play = Play(said, lead=False, tools=())
    play.answers.set()
    await play.driver.run()
    first, *_ = play.bodies
    assert len(first) > LEAD_BYTES
    assert b"".join(play.bodies) == said


async def test_what_is_no_burst_goes_as_it_came() -> None:
    said = body(stream(message("hi")))
    play = Play(said, tools=())
    play.answers.set()
    await play.driver.run()
    assert [one for one in play.bodies if one] == [said]
