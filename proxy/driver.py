"""Performs what a turn asks for: the only asynchronous code that knows a ``Turn``.

One task drives one turn::

    event = what happened  →  commands = turn.receive(event)  →  perform each, in order

It waits for one thing at a time: the upstream's head, its next bytes, or the results of hidden
calls. Whatever else may happen meanwhile (a result, a keep-alive, a deadline, a shutdown) is put
into the inbox and wakes the waiting: a read by cancelling it, which loses nothing, every other by
its own future. So nothing is ever sent by two tasks at once, and one timer serves all deadlines of
a turn instead of one for each read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

from starlette.requests import ClientDisconnect

from pipeline import commands as c
from pipeline import events
from pipeline.errors import SottovoceError, UpstreamError
from pipeline.phases import TurnPhase
from proxy import headers as h

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pipeline.outcome import TurnOutcome
    from pipeline.reader import StreamMode
    from pipeline.request import Request
    from pipeline.turn import Turn
    from proxy.answer import Answer
    from proxy.downstream import Channel
    from proxy.headers import Headers
    from recall.tool import RecallResult

    ToolRunner = Callable[[str], Awaitable[RecallResult]]
    """Executes a hidden call: arguments → result."""

SAVE_SECONDS: Final = 2.0
"""How long a terminal waits for all of its turn's join records."""
DRAIN_SECONDS: Final = 0.1
"""How long the rest of a body is read on, so that its connection can serve the next hop."""
_TOOL_FAILED: Final = "[The memory search failed; nothing can be said about what is stored.]"


class Wiring(NamedTuple):
    """What a driver needs of its surroundings, for one turn.

    Attributes:
        open: Sends a hop's request, asking for the form that its reader takes, and returns an
            upstream's answer at its head. How long that may take is its own business.
        spent: Returns what ``open`` used of other requests since it was asked last.
        tools: Hidden tools by name.
        save: Makes join records durable. From the call on they are found, and they become durable
            even if nobody waits for it any more.
        report_empty: Tells that a completion was empty.
        save_missed: Counts a join record that was not durable in time.
        head: Makes the client's response headers from the upstream's.
        refusal_head: Makes the headers of an answer that is no 2xx, from the error that it is
            made of, or from None where it is the provider's own.
        idle_seconds: How long an upstream may be silent after its head.
        keepalive_seconds: After how much silence a client gets a sign of life.
        lead: Whether the first events of a burst go ahead of the rest.
        spawn: Runs something that outlives the turn.
    """

    open: Callable[[Request, StreamMode], Awaitable[Answer]]
    spent: Callable[[], dict[str, Any] | None]
    tools: dict[str, ToolRunner]
    save: Callable[[c.SaveJoin], Awaitable[None]]
    report_empty: Callable[[c.ReportEmpty], None]
    save_missed: Callable[[], None]
    head: Callable[[Headers], Headers]
    refusal_head: Callable[[SottovoceError | None], Headers]
    idle_seconds: float
    keepalive_seconds: float
    lead: bool
    spawn: Callable[[Awaitable[Any]], None]


class Driver:
    """Drives one turn over one client connection.

    Args:
        turn: The turn, not started.
        wiring: Its surroundings.
        channel: The client's side.

    Attributes:
        results: What the hidden calls returned, in order of completion, used or not.
        head_times: Seconds until the upstream's head, hop by hop.
        first_byte_after: Seconds until the first byte for the client.
    """

    def __init__(self, turn: Turn, wiring: Wiring, channel: Channel) -> None:
        self.turn = turn
        self.results: list[tuple[c.RunTool, RecallResult]] = []
        self.head_times: list[float] = []
        self.recall_times: list[float] = []
        self.first_byte_after: float | None = None
        self._wiring = wiring
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[events.TurnEvent] = deque()
        self._task: asyncio.Task[Any] | None = None
        self._reading = False
        self._woken = False
        self._news: asyncio.Future[None] | None = None
        self._opening: asyncio.Task[Answer] | None = None
        self._opened_at = 0.0
        self._response: Answer | None = None
        self._begins = turn.streamed and wiring.lead
        self._upstream_headers: Headers = []
        self._upstream_status = 200
        self._tools: dict[str, asyncio.Task[None]] = {}
        self._saving: list[asyncio.Task[bool]] = []
        self._pulse: asyncio.TimerHandle | None = None
        self._started = self._heard = self._sent = self._loop.time()

    def __repr__(self) -> str:
        return f"<Driver {self.turn!r}>"

    # --- The loop -------------------------------------------------------------------------

    async def run(self) -> TurnOutcome:
        """Drive the turn to its end; return how it ended.

        Cancel it when the client leaves: the upstream is closed, hidden calls are interrupted,
        and ``CancelledError`` is raised on. The turn's outcome is set in every case.
        """
        self._task = asyncio.current_task()
        self._arm()
        try:
            outcome = await self._drive()
            if self.turn.fault is not None:  # the client has its terminal, now it is reported
                raise self.turn.fault
            return outcome
        finally:
            self.turn.abort()
            if self.turn.left is not None:
                self._wiring.spawn(self._save_behind(self.turn.left))
            await self._clean_up()

    async def _drive(self) -> TurnOutcome:
        try:
            await self._perform_all(self.turn.start())
            while self.turn.outcome is None:
                event = self._inbox.popleft() if self._inbox else await self._next_event()
                if event is None:
                    continue
                await self._perform_all(self.turn.receive(event))
                if type(event) is events.UpstreamChunk:
                    # The time that a slow client took is not the upstream's silence.
                    self._heard = self._loop.time()
        except ClientDisconnect:
            raise
        except Exception as error:  # of ours: the client is still there, and gets its end
            await self._perform_all(self.turn.break_off(error))
            raise
        else:
            return self.turn.outcome

    def shut_down(self) -> None:
        """End the turn soon, with a terminal."""
        self._post(events.ShutdownDue())

    async def _next_event(self) -> events.TurnEvent | None:
        """Wait for what the turn waits for; None when something came into the inbox meanwhile."""
        opening, response = self._opening, self._response
        if opening is not None:
            if opening.done():
                return self._head_of(opening)
        elif response is not None and self.turn.phase is TurnPhase.STREAMING:
            return await self._bytes_of(response)
        self._news = self._loop.create_future()
        try:
            await self._news
        finally:
            self._news = None
        return None

    def _head_of(self, opening: asyncio.Task[Answer]) -> events.TurnEvent:
        self._opening = None
        now = self._heard = self._loop.time()
        try:
            self._response = response = opening.result()
        except SottovoceError as error:
            return events.UpstreamFailed(error, now, self._wiring.spent())
        self.head_times.append(now - self._opened_at)
        if self.turn.hop.number == 1:
            self._upstream_headers = response.headers
            self._upstream_status = response.status
        spent = self._wiring.spent()
        return events.UpstreamOpened(response.status, response.content_type, now, spent)

    async def _bytes_of(self, response: Answer) -> events.TurnEvent | None:
        self._reading = True
        try:
            data = await response.read()
        except SottovoceError as error:
            return events.UpstreamFailed(error, self._loop.time())
        except asyncio.CancelledError:
            woken = self._woken and self._task is not None and self._task.uncancel() == 0
            if not woken:
                raise
            return None
        finally:
            self._reading = self._woken = False
        now = self._heard = self._loop.time()
        if data is None:
            return events.UpstreamEnded(now)
        if self._begins:
            self._begins = False
            data = response.lead(data)
        return events.UpstreamChunk(data, now)

    def _post(self, event: events.TurnEvent) -> None:
        self._inbox.append(event)
        if not self._reading:
            self._tell()
        elif not self._woken and self._task is not None:
            self._woken = True
            self._task.cancel()

    def _tell(self) -> None:
        """Wake a wait that is no read."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # --- Time -----------------------------------------------------------------------------

    def _arm(self) -> None:
        delay = min(self._wiring.keepalive_seconds, self._wiring.idle_seconds)
        self._pulse = self._loop.call_later(max(delay / 4, 0.01), self._beat)

    def _beat(self) -> None:
        """Look whether something is due. Nothing is while the client is slow to read."""
        self._arm()
        waiting = self._reading or self._news is not None
        if not waiting or self._inbox:
            return
        now = self._loop.time()
        deadline = self.turn.deadline
        limit = self._wiring.idle_seconds
        if deadline is not None and now >= deadline:
            self._post(events.DeadlineReached(now))
        elif self._response is not None and now - self._heard >= limit:
            error = UpstreamError(
                f"the upstream timed out: no bytes within {limit:g} seconds", status=504
            )
            self._post(events.UpstreamFailed(error, now))
        elif now - self._sent >= self._wiring.keepalive_seconds:
            self._post(events.KeepAliveDue())

    # --- Performing -----------------------------------------------------------------------

    async def _perform_all(self, commands: list[c.Command]) -> None:
        for command in commands:
            await self._perform(command)

    async def _perform(self, command: c.Command) -> None:
        match command:
            case c.Send():
                await self._send(command)
            case c.RunTool():
                self._run_tool(command)
            case c.OpenUpstream():
                self._open(command)
            case c.CloseUpstream():
                self._close_upstream()
            case c.SaveJoin():
                self._saving.append(self._loop.create_task(self._save(command)))
            case c.CancelTools():
                for task in self._tools.values():
                    task.cancel()
            case c.ReportEmpty():
                self._wiring.report_empty(command)
            case c.Relay():
                await self._relay()
            case c.Refuse():
                error = command.error
                await self._channel.refuse(error, self._wiring.refusal_head(error))
            case c.Finish():
                pass
            case _:
                assert_never(command)

    async def _send(self, command: c.Send) -> None:
        channel = self._channel
        if not channel.started:
            headers = self._shown(self._wiring.head(self._upstream_headers))
            if command.last and not self.turn.streamed:  # one body, and it is here
                headers.append((b"content-length", str(len(command.data)).encode()))
            await channel.start(self._upstream_status, headers)
        if command.last:
            await self._settle()
        await channel.send(command.data, more=not command.last)
        self._sent = self._loop.time()
        if self.first_byte_after is None:
            self.first_byte_after = self._sent - self._started

    def _shown(self, headers: Headers) -> Headers:
        """Return headers without those that name a hidden call, as far as any is known."""
        return h.without_ids(headers, self.turn.hidden_ids())

    def _open(self, command: c.OpenUpstream) -> None:
        self._opened_at = self._heard = self._loop.time()
        self._opening = self._loop.create_task(self._opened(command))

    async def _opened(self, command: c.OpenUpstream) -> Answer:
        try:
            return await self._wiring.open(command.request, command.mode)
        finally:
            self._tell()  # done as soon as it has returned, which is before anybody wakes

    def _close_upstream(self) -> None:
        response, self._response = self._response, None
        opening, self._opening = self._opening, None
        if opening is not None and not opening.cancel():  # it was answered in the same moment
            response = _answer_of(opening)
        if response is not None:
            response.drain(DRAIN_SECONDS)

    async def _save(self, command: c.SaveJoin) -> bool:
        """Make records durable; say whether they are. They are found all the same."""
        try:
            await self._wiring.save(command)
        except Exception:  # noqa: BLE001 - whatever is in the way, the client gets its terminal
            return False
        return True

    async def _settle(self) -> None:
        """Wait until all of the turn's records are durable, but not for long: once, at its end."""
        if not self._saving:
            return
        done, late = await asyncio.wait(self._saving, timeout=SAVE_SECONDS)
        if late or not all(task.result() for task in done):
            self._wiring.save_missed()

    async def _save_behind(self, command: c.SaveJoin) -> None:
        """Save the record of a client who left: no terminal waits for it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SAVE_SECONDS):
                await self._save(command)

    async def _relay(self) -> None:
        """Pass the provider's error answer on."""
        response = self._response
        if response is None:
            return
        parts = []
        while (piece := await response.read()) is not None:  # at hand, cut where it is very long
            parts.append(piece)
        body = self.turn.shown_refusal(b"".join(parts))
        own = [
            *self._wiring.refusal_head(None),
            (b"content-length", str(len(body)).encode()),
        ]
        if response.content_type is not None:
            own.append((b"content-type", response.content_type.encode("latin-1")))
        names = {name for name, _ in own}
        headers = self._shown(
            [one for one in self._wiring.head(response.headers) if one[0].lower() not in names]
        )
        await self._channel.start(response.status, [*headers, *own])
        await self._channel.send(body, more=False)
        await response.close()
        self._response = None

    def _run_tool(self, command: c.RunTool) -> None:
        task = self._loop.create_task(self._tool(command))
        self._tools[command.call_id] = task

    async def _tool(self, command: c.RunTool) -> None:
        started = self._loop.time()
        try:
            result = await self._wiring.tools[command.name](command.arguments)
        except Exception:  # noqa: BLE001 - whatever a tool raises is a result for the model
            now = self._loop.time()
            self._post(events.ToolFinished(command.call_id, _TOOL_FAILED, now, failed=True))
            return
        now = self._loop.time()
        self.recall_times.append(now - started)
        self.results.append((command, result))
        self._post(
            events.ToolFinished(command.call_id, result.result_text, now, anchor=result.anchor_text)
        )

    async def _clean_up(self) -> None:
        """Leave nothing behind: no timer, no task, no open response."""
        if self._pulse is not None:
            self._pulse.cancel()
        started: list[asyncio.Task[Any]] = [*self._tools.values(), *self._saving]
        tasks = [task for task in started if not task.done()]
        if self._opening is not None:
            tasks.append(self._opening)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        answers = [self._response, None if self._opening is None else _answer_of(self._opening)]
        self._response = self._opening = None
        for answer in answers:
            if answer is not None:
                with contextlib.suppress(SottovoceError):
                    await answer.close()


def _answer_of(opening: asyncio.Task[Answer]) -> Answer | None:
    """Return the answer of an opening that is done, None where there is none."""
    answered = not opening.cancelled() and opening.exception() is None
    return opening.result() if answered else None
