"""One turn's way to an upstream: performs what a ``Walk`` decides.

The turn's first request walks along the upstreams that may take it; the one that answers keeps the
turn, and every further request of the turn goes there. Nothing of this is seen by the client: its
answer begins behind an upstream's 2xx head, and, where another upstream could still take over, not
before the first event that shows something.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, assert_never

import structlog

from pipeline.errors import SottovoceError
from pipeline.failover import (
    Aborted,
    Answered,
    AttemptFailed,
    Done,
    GiveUp,
    Healed,
    RouterAbortError,
    Skipped,
    Sleep,
    Slept,
    TryUpstream,
    Walk,
    retry_after_ms,
)
from pipeline.healing import Healing, diagnose
from pipeline.peek import Peek
from pipeline.taxonomy import ErrorKind, Failure, failed_inside, refused, unreached
from proxy.answer import Answer
from proxy.homes import response_key
from proxy.refusals import in_openai_shape

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pipeline.circuit import Visit
    from pipeline.failover import WalkCommand, WalkEvent
    from pipeline.reader import StreamMode
    from pipeline.request import Request
    from proxy.homes import Errand
    from proxy.router import Router
    from proxy.speech import Speech
    from proxy.upstreams import Endpoint

log = structlog.get_logger("sottovoce.router")


class Route:
    """One turn's way to an upstream.

    Args:
        router: What routes have in common.
        line: Who may take the turn, in order; not empty.
        errand: Whose turn it is.
        speech: How requests are put.

    Attributes:
        endpoint: Who answers the turn; before anybody does, who was asked last.
        attempts: Requests that were sent.
        failure: The newest failure; None as long as nothing failed.
        worth_waiting: The last upstream said when to come again, later than we wait ourselves.
        given_up: Why the last request was given up; None where it was answered.
        wary: Answers are read ahead also where nobody else could take the request.
    """

    def __init__(
        self, router: Router, line: tuple[Endpoint, ...], errand: Errand, speech: Speech
    ) -> None:
        self.endpoint = line[0]
        self.attempts = 0
        self.failure: Failure | None = None
        self.worth_waiting = False
        self.given_up: Failure | None = None
        self.wary = False
        self._router = router
        self._line = line
        self._errand = errand
        self._speech = speech
        self._healing = Healing()
        self._visit: Visit | None = None
        self._outcome: Answer | SottovoceError = RouterAbortError("nobody was asked")

    def __repr__(self) -> str:
        return f"<Route to {self.endpoint!r} after {self.attempts} attempts>"

    @property
    def line(self) -> tuple[Endpoint, ...]:
        """Who may take the turn, in order; once it was answered, who did."""
        return self._line

    async def open(self, request: Request, mode: StreamMode) -> Answer:
        """Send a request to whoever takes it; return the answer at its head.

        The answer is a 2xx, or the last one that was none.

        Args:
            request: The request.
            mode: In which form its answer is asked for and read.

        Raises:
            SottovoceError: Why the last upstream gave no answer.
            CancelledError: The request was given up; the cause is what the walk says of it.
        """
        self._mode = mode
        task = asyncio.current_task()
        walk = Walk([one.name for one in self._line])
        command = walk.start()
        try:
            while not isinstance(command, (Done, GiveUp)):
                _raise_if_cancelled(task)
                event = await self._perform(walk, command, request)
                _raise_if_cancelled(task)
                command = walk.receive(event)
                if isinstance(event, AttemptFailed):
                    self._tell(event.failure, command)
        except BaseException as error:
            await self._drop_answer()
            if isinstance(error, asyncio.CancelledError):
                given_up = walk.receive(Aborted())
                raise error from (given_up.error if isinstance(given_up, GiveUp) else None)
            raise
        finally:
            self._leave()
        self.given_up = last = walk.failure if isinstance(command, GiveUp) else None
        self.worth_waiting = last is not None and last.asks_for_patience
        if isinstance(self._outcome, Answer):
            return self._outcome
        raise self._outcome

    # --- Performing -----------------------------------------------------------------------

    async def _perform(
        self, walk: Walk, command: TryUpstream | Sleep, request: Request
    ) -> WalkEvent:
        match command:
            case TryUpstream():
                return await self._try(walk, command, request)
            case Sleep(ms):
                await asyncio.sleep(ms / 1000)
                return Slept()
            case _:
                assert_never(command)

    async def _try(self, walk: Walk, command: TryUpstream, request: Request) -> WalkEvent:
        visit = self._enter(command)
        if visit is None:
            return Skipped()
        if isinstance(self._outcome, Answer):
            await self._drop_answer()
        request = self._healing.apply(self._speech.meant(self.endpoint, request))
        failure = await self._ask(walk, request)
        if failure is None:
            visit.answered()
            self._settle()
            return Answered()
        error = failure.error
        ailment = diagnose(error.code, error.message)
        if ailment is not None and self._healing.treat(ailment, error.message, request):
            log.info("request healed", upstream=self.endpoint.name, ailment=ailment)
            return Healed()
        visit.failed(failure, self._router.clock())
        self.failure = failure
        return AttemptFailed(failure, once=visit.trial)

    def _enter(self, command: TryUpstream) -> Visit | None:
        """Come to an upstream, or stay there; None if it is to be skipped."""
        if self._visit is not None and self.endpoint.name == command.upstream:
            return self._visit
        self._leave()
        (endpoint,) = [one for one in self._line if one.name == command.upstream]
        self._visit = self._router.circuits.enter(
            endpoint.name,
            endpoint.caller(self._errand.headers),
            self._router.clock(),
            forced=command.forced,
        )
        if self._visit is not None:
            self.endpoint = endpoint
        return self._visit

    def _leave(self) -> None:
        visit, self._visit = self._visit, None
        if visit is not None:
            visit.left()

    async def _ask(self, walk: Walk, request: Request) -> Failure | None:
        """Make one attempt; return how it failed."""
        endpoint, started = self.endpoint, self._router.clock()
        try:
            encoded = self._speech.encode(endpoint, request, self._mode)
            self.attempts += 1
            answer = self._outcome = Answer(await endpoint.open(encoded))
        except SottovoceError as error:
            self._outcome = error
            failure: Failure | None = unreached(error)
            seconds = self._router.clock() - started
        else:
            seconds = self._router.clock() - started
            failure = await self._judge(walk, request, answer)
        result = "ok" if failure is None else failure.kind
        self._router.metrics.upstream_answered(
            upstream=endpoint.name, result=result, seconds=seconds
        )
        return failure

    async def _judge(self, walk: Walk, request: Request, answer: Answer) -> Failure | None:
        """Look at an answer; return how it failed."""
        limits = self._router.limits
        try:
            answer.decode(limit=limits.stream_bytes)
        except SottovoceError as error:
            if answer.successful:
                await self._drop_answer()
                self._outcome = error
                return failed_inside(error, ErrorKind.BAD_REQUEST)
        if answer.successful:
            ahead = self.wary or self._replaceable(walk)
            return await self._peek(request, answer) if ahead else None
        secrets = self._router.secrets
        body = await answer.read_whole(limits.error_bytes, secrets.cleanse)
        if not self._speech.same_dialect(self.endpoint):
            answer.replace(in_openai_shape(body, redact=secrets.redact))
        return refused(
            self.endpoint.config.kind,
            self.endpoint.name,
            answer.status,
            body,
            retry_after_ms=retry_after_ms(answer.headers, time.time()),
            redact=secrets.redact,
        )

    def _replaceable(self, walk: Walk) -> bool:
        """Say whether another upstream could still take the request."""
        ahead = walk.ahead
        if not ahead:
            return False
        now, circuits = self._router.clock(), self._router.circuits
        return any(
            circuits.passes(one.name, one.caller(self._errand.headers), now)
            for one in self._line
            if one.name in ahead
        )

    async def _peek(self, request: Request, answer: Answer) -> Failure | None:
        """Read an answer until it shows something, fails, or has been held back long enough."""
        limits, redact = self._router.limits, self._router.secrets.redact
        reader = self._speech.reader(
            self.endpoint,
            request,
            self._mode,
            limits,
            observed=False,
            phase="principal",
            redact=redact,
        )
        peek = Peek(reader, byte_limit=limits.deferred_bytes, redact=redact)
        peek.head(answer.content_type)
        try:
            async with asyncio.timeout(self._router.peek_seconds):
                while not peek.over:
                    piece = await answer.read_ahead()
                    if piece is None:
                        peek.finish()
                    else:
                        peek.feed(piece)
        except TimeoutError:
            return None
        except SottovoceError as error:
            peek.broken(error)
        return peek.failure

    # --- What came of it ------------------------------------------------------------------

    def _settle(self) -> None:
        """Stay where the answer came from, and the conversation with it."""
        self._remember(self._errand.conversation)
        self._line = (self.endpoint,)

    def remember_response(self, response_id: str) -> None:
        """Let what continues a response go where the response was made."""
        self._remember(response_key(self._errand.tenant, response_id))

    def _remember(self, key: Hashable) -> None:
        self._router.remember(key, self.endpoint, codex=self._errand.codex)

    async def _drop_answer(self) -> None:
        if isinstance(self._outcome, Answer):
            await self._outcome.close()

    def _tell(self, failure: Failure, command: WalkCommand) -> None:
        """Log and count a failure and what follows from it."""
        match command:
            case Sleep(ms):
                follows = f"again in {ms} ms"
            case TryUpstream(upstream):
                follows = f"{upstream} instead"
                self._router.metrics.failed_over(upstream=self.endpoint.name, kind=failure.kind)
            case _:
                follows = "given up"
        log.warning(
            "upstream failed",
            upstream=self.endpoint.name,
            kind=failure.kind,
            status=failure.error.status,
            code=failure.error.code[:80],
            follows=follows,
        )


def _raise_if_cancelled(task: asyncio.Task[Any] | None) -> None:
    """Notice a cancellation that something on the way has swallowed."""
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
