"""Compaction where the upstream has none: summaries, asked for along a turn's own route.

How a turn's requests get to an upstream is its *way*. Most turns have the plain one, the route.
Two others send requests for summaries (``pipeline.compaction``) over the same route:

- a turn that asks for a compaction, whose answer is the summary itself, sealed;
- with ``sessions.compress_on_overflow`` any other turn, once its upstream found it too long.

Upstreams that speak Responses compact themselves: they get what the client sent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Unpack

import structlog

from pipeline import jsontext
from pipeline.compaction import PROMPT, Summing, divide, estimate, summary_message
from pipeline.errors import SottovoceError, UpstreamError, UpstreamRefusedError
from pipeline.outcome import Ending
from pipeline.request import Request, has_trigger, input_items
from pipeline.sealing import seal
from pipeline.sse import Frame
from pipeline.summary import SummaryReader, summary_of
from pipeline.taxonomy import ErrorKind, classify_code
from pipeline.usage import add_usage, usable_usage
from proxy.speech import Speech

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.compaction import Division
    from pipeline.limits import Limits
    from pipeline.reader import Reader, Reading, StreamMode
    from proxy.answer import Answer
    from proxy.route import Route
    from proxy.services import Services
    from proxy.turns import Exchange
    from proxy.upstreams import Endpoint

log = structlog.get_logger("sottovoce.compaction")

_STAYS: Final = 4
"""Of a history that is too long a quarter stays as it is."""
_TERMINALS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


# --- Ways --------------------------------------------------------------------------------------


class Way:
    """The plain way of a turn's requests: its route.

    Args:
        route: The turn's.
    """

    def __init__(self, route: Route) -> None:
        self.route = route
        self._spent: dict[str, Any] | None = None

    async def open(self, request: Request, mode: StreamMode) -> Answer:
        """Send a request of the turn; return its answer at the head, as ``Route.open`` does."""
        return await self.route.open(request, mode)

    def spent(self) -> dict[str, Any] | None:
        """Return the usage of the summaries since this was asked last."""
        spent, self._spent = self._spent, None
        return spent

    def settle(self, ending: Ending) -> None:
        """Take how the turn ended."""


def make_way(services: Services, exchange: Exchange, route: Route, speech: Speech) -> Way:
    """Return the way that a turn's requests take."""
    if not any(one.provider.translates for one in route.line):
        return Way(route)
    if isinstance(speech, CompactingSpeech):
        return CompactingWay(services, exchange, route, speech)
    if services.config.sessions.compress_on_overflow:
        return CompressingWay(services, exchange, route, speech)
    return Way(route)


def make_speech(services: Services, exchange: Exchange) -> Speech:
    """Return how a turn's requests are put."""
    speech = CompactingSpeech if has_trigger(exchange.request.body) else Speech
    return speech(services, exchange)


class _SummingWay(Way):
    """A way on which summaries are asked for."""

    def __init__(
        self, services: Services, exchange: Exchange, route: Route, speech: Speech
    ) -> None:
        super().__init__(route)
        self._services = services
        self._exchange = exchange
        self._speech = speech

    @property
    def _is_too_long(self) -> bool:
        """Whether the last request was given up because its upstream found it too long."""
        given_up = self.route.given_up
        translates = self.route.endpoint.provider.translates
        return translates and given_up is not None and given_up.kind is ErrorKind.OVERFLOW

    def _summing(self, request: Request, items: Sequence[Any]) -> Summing:
        sessions = self._services.config.sessions
        prompt = sessions.compaction_prompt or PROMPT
        return Summing(request, items, prompt=prompt, tokens=sessions.compaction_tokens)

    async def _summary(self, answer: Answer, request: Request, mode: StreamMode) -> str | None:
        """Read the summary of one step; None where its upstream found the step too long.

        Raises:
            SottovoceError: There is none.
        """
        endpoint, redact = self.route.endpoint, self._services.secrets.redact
        reader = endpoint.provider.reader(
            request, mode, self._services.limits, observed=False, phase="summary", redact=redact
        )
        try:
            response = await _terminal(answer, reader, endpoint.config.idle_timeout_ms / 1000)
        except UpstreamRefusedError as error:
            if classify_code(error.code) is ErrorKind.OVERFLOW:
                return None
            raise
        finally:
            await answer.close()
        self._spent = add_usage(self._spent, usable_usage(response.get("usage")))
        if response.get("status") != "failed":
            return summary_of(response)
        code, message = _failure(response)
        if classify_code(code) is ErrorKind.OVERFLOW:
            return None
        raise UpstreamError(redact(f"summary: {message}"), code=code)

    def _tell(self, *, reason: str, steps: int) -> None:
        upstream = self.route.endpoint.name
        log.info("history compacted", upstream=upstream, reason=reason, steps=steps)


async def _terminal(answer: Answer, reader: Reader, idle_seconds: float) -> dict[str, Any]:
    """Read an answer up to its terminal; return the response that it tells.

    Raises:
        SottovoceError: It broke, was silent for too long, or is no answer.
    """
    reader.head(answer.content_type)
    while True:
        try:
            async with asyncio.timeout(idle_seconds):
                piece = await answer.read()
        except TimeoutError:
            raise UpstreamError(
                f"summary: the upstream timed out: no bytes within {idle_seconds:g} seconds",
                status=504,
            ) from None
        for frame in reader.finish() if piece is None else reader.feed(piece):
            event = jsontext.loads(frame.data) if isinstance(frame, Frame) and frame.data else {}
            if event.get("type") in _TERMINALS:
                response: dict[str, Any] = event["response"]
                return response
        if piece is None:
            raise UpstreamError("summary: the upstream's stream ended without a terminal event")


def _failure(response: dict[str, Any]) -> tuple[str | None, str]:
    error = response.get("error")
    error = error if isinstance(error, dict) else {}
    code = error.get("code")
    message = error.get("message") or "the provider gave no message"
    return (code if isinstance(code, str) else None), str(message)


# --- A compaction ------------------------------------------------------------------------------


class CompactingSpeech(Speech):
    """Puts a request for a compaction: as a step of the summary where the upstream needs that.

    Attributes:
        step: What is asked instead, of who has no compaction.
    """

    def __init__(self, services: Services, exchange: Exchange) -> None:
        super().__init__(services, exchange)
        self.step: Request | None = None
        self.rewritten = True
        self._seal_key = services.seal_key
        self._tenant = exchange.identity.tenant

    def meant(self, endpoint: Endpoint, request: Request, /) -> Request:
        """Return what an upstream is asked where a turn asks for a compaction."""
        return self.step if self.step is not None and endpoint.provider.translates else request

    def reader(
        self,
        endpoint: Endpoint,
        request: Request,
        mode: StreamMode,
        limits: Limits,
        **how: Unpack[Reading],
    ) -> Reader:
        """Return a reader that finds the compaction in an upstream's answer."""
        reader = super().reader(endpoint, request, mode, limits, **how)
        return SummaryReader(reader, self._seal) if endpoint.provider.translates else reader

    def _seal(self, summary: str) -> str:
        return seal(self._seal_key, self._tenant, summary)


class CompactingWay(_SummingWay):
    """The way of a turn that asks for a compaction.

    All steps but the last are read here; the last one's answer is the turn's to read, so that its
    client sees the turn begin as soon as the summary does.
    """

    _speech: CompactingSpeech

    def __init__(
        self, services: Services, exchange: Exchange, route: Route, speech: CompactingSpeech
    ) -> None:
        super().__init__(services, exchange, route, speech)
        self._run: Summing | None = None
        route.wary = True

    async def open(self, request: Request, mode: StreamMode) -> Answer:
        """Send what leads to the compaction; return the answer of its last step at the head.

        Raises:
            SottovoceError: As ``Route.open``, or a step before the last told no summary.
        """
        if self._run is None:
            self._run = self._summing(request, input_items(request.body)[:-1])
        run = self._run
        while True:
            step = self._speech.step = run.request()
            answer = await self.route.open(request, mode)
            if self._is_too_long and run.halve():
                await answer.close()
                continue
            native = not self.route.endpoint.provider.translates
            if native or self.route.given_up is not None or run.is_last:
                return answer
            summary = await self._summary(answer, step, mode)
            if summary is not None:
                run.take(summary)
            elif not run.halve():
                raise _too_long()

    def settle(self, ending: Ending) -> None:
        """Count the compaction, where it was ours to make."""
        if self._run is None or not self.route.endpoint.provider.translates:
            return
        done = ending is Ending.COMPLETED
        self._services.metrics.compacted(reason="asked", result="ok" if done else "failed")
        if done:  # the last step was the turn's to read
            self._tell(reason="asked", steps=self._run.steps + 1)


def _too_long() -> UpstreamError:
    return UpstreamError(
        "the conversation could not be compacted: even a small part of it is too long for the "
        "upstream",
        code="context_length_exceeded",
    )


# --- An overflow -------------------------------------------------------------------------------


class CompressingWay(_SummingWay):
    """The way of a turn whose history may turn out too long for its upstream.

    Where it does, its older part is summarized and the request sent once more, once in a turn.
    Continuations repeat the history, so the same part of them is replaced as well.
    """

    def __init__(
        self, services: Services, exchange: Exchange, route: Route, speech: Speech
    ) -> None:
        super().__init__(services, exchange, route, speech)
        self._tried = False
        self._replaced: list[Any] = []
        self._instead: list[Any] = []
        route.wary = True

    async def open(self, request: Request, mode: StreamMode) -> Answer:
        """Send a request of the turn, and once more with less history if it is too long.

        Raises:
            SottovoceError: As ``Route.open``.
        """
        answer = await self.route.open(self._shorter(request), mode)
        if self._tried or not self._is_too_long:
            return answer
        self._tried = True
        self.route.wary = False
        items = input_items(request.body)
        tokens = min(estimate(items), self._services.config.sessions.compaction_tokens)
        division = divide(items, tokens // _STAYS)
        if division is None:
            return answer
        return await self._compressed(request, mode, division, answer)

    async def _compressed(
        self, request: Request, mode: StreamMode, division: Division, answer: Answer
    ) -> Answer:
        overflow = self.route.given_up
        metrics = self._services.metrics
        summing = self._summing(request, [*division.fixed, *division.older])
        self._speech.rewritten = True
        try:
            summary = await self._summarize(summing, mode)
        except SottovoceError as error:
            metrics.compacted(reason="overflow", result="failed")
            log.warning("history not compacted", reason="overflow", error=type(error).__name__)
            if answer.successful and overflow is not None:  # it was read, and has ended
                raise overflow.error from error
            return answer
        metrics.compacted(reason="overflow", result="ok")
        self._tell(reason="overflow", steps=summing.steps)
        self._replaced = input_items(request.body)[: division.length]
        self._instead = [*division.fixed, summary_message(summary), *division.asked]
        return await self.route.open(self._shorter(request), mode)

    async def _summarize(self, summing: Summing, mode: StreamMode) -> str:
        """Take all steps.

        Raises:
            SottovoceError: One of them told no summary.
        """
        while True:
            step, last = summing.request(), summing.is_last
            answer = await self.route.open(step, mode)
            summary = None
            if self.route.given_up is None:
                summary = await self._summary(answer, step, mode)
            elif not self._is_too_long:
                raise self.route.given_up.error
            if summary is None and not summing.halve():
                raise _too_long()
            if summary is not None:
                summing.take(summary)
                if last:
                    return summary

    def _shorter(self, request: Request) -> Request:
        """Return a request with the summary, where it begins with what that stands for."""
        items, count = input_items(request.body), len(self._replaced)
        if not count or items[:count] != self._replaced:
            return request
        body = {**request.body, "input": [*self._instead, *items[count:]]}
        return Request(jsontext.dumps(body), body)
