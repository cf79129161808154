"""Where a request goes when an upstream fails: again to the same one, or to the next.

A *walk* leads one request along a list of upstreams. It decides, ``proxy.route`` does::

    walk = Walk(["first", "second"])
    command = walk.start()
    while True:
        match command:
            case TryUpstream(): ...  # send it; tell Answered, AttemptFailed, Healed or Skipped
            case Sleep():       ...  # then tell Slept
            case Done():        ...  # the last TryUpstream has the answer
            case GiveUp(error): ...  # nobody has
        command = walk.receive(event)

::

    READY ──▶ TRYING ──answered──▶ OVER (Done)
               │  ▲
        failed │  │ slept: the same upstream again
               ▼  │
             SLEEPING      or, at once: TRYING the next upstream, OVER (GiveUp) behind the last one

Only what may pass by itself is tried in place: ``rate_limit`` and ``network``, three times in all,
with delays that are always the same. Every other failure, and every failure inside an answer that
had begun well, goes to the next upstream at once.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, assert_never

from pipeline.errors import SottovoceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipeline.taxonomy import Failure

ATTEMPTS: Final = 3
"""How often one upstream is tried in place."""
_STEP_MS: Final = 500
_CAP_MS: Final = 8_000


class RouterAbortError(SottovoceError):
    """A request was given up before any upstream had been tried."""

    status = 503


# --- Waiting -----------------------------------------------------------------------------------


def retry_after_ms(headers: Iterable[tuple[bytes, bytes]], now: float) -> int | None:
    """Return for how many milliseconds an answer asks to be left alone, None if it doesn't.

    Args:
        headers: The answer's. ``retry-after-ms`` is read before ``retry-after``, which is a
            number of seconds or an HTTP date. What is in the past counts as 0; what can't be
            read is ignored.
        now: Unix time, for the date.
    """
    values = {name.lower(): value.decode("latin-1").strip() for name, value in headers}
    for name, unit in ((b"retry-after-ms", 1), (b"retry-after", 1000)):
        delay = _number(values.get(name))
        if delay is not None:
            return _whole(delay * unit)
    moment = _date(values.get(b"retry-after"))
    return None if moment is None else _whole((moment - now) * 1000)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return None if math.isnan(value) else value


def _date(text: str | None) -> float | None:
    try:
        moment = parsedate_to_datetime(text or "")
        # A date without a zone is in GMT, as every HTTP date.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _whole(milliseconds: float) -> int:
    """Round up, within what can be waited for at all."""
    return math.ceil(min(max(milliseconds, 0.0), 1e15))


def backoff_ms(n: int, floor_ms: int | None = None) -> int:
    """Return how long to wait before the next attempt in place, in milliseconds.

    Args:
        n: Which failed attempt this follows, from 1.
        floor_ms: What the upstream asked for.
    """
    delay = _STEP_MS * (1 << min(n, 16)) + _STEP_MS * n // 2
    return max(min(delay, _CAP_MS), floor_ms or 0)


# --- The walk ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answered:
    """The upstream has answered: its answer is the request's."""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The attempt has failed. ``once``: it was a trial, which is not repeated in place."""

    failure: Failure
    once: bool = False


@dataclass(frozen=True, slots=True)
class Healed:
    """The request was refused for something that has been taken out of it: it goes out again."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """The upstream is left out for now; it is asked all the same if there is no other."""


@dataclass(frozen=True, slots=True)
class Slept:
    """The time to wait is over."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """Nobody waits for an answer any more."""


WalkEvent = Answered | AttemptFailed | Healed | Skipped | Slept | Aborted


@dataclass(frozen=True, slots=True)
class TryUpstream:
    """Send the request.

    Attributes:
        upstream: To whom.
        attempt: The how manieth in place, from 1.
        forced: It was skipped before and is the last resort now: don't skip it again.
    """

    upstream: str
    attempt: int
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for so many milliseconds."""

    ms: int


@dataclass(frozen=True, slots=True)
class Done:
    """The walk has found its answer."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No upstream has answered: raise this."""

    error: SottovoceError


WalkCommand = TryUpstream | Sleep | Done | GiveUp


_NOBODY: Final = TryUpstream("", 0)


class WalkPhase(StrEnum):
    """Where a walk is."""

    READY = "ready"
    TRYING = "trying"
    SLEEPING = "sleeping"
    OVER = "over"


_TAKES: Final[dict[WalkPhase, tuple[type, ...]]] = {
    WalkPhase.READY: (Aborted,),
    WalkPhase.TRYING: (Answered, AttemptFailed, Healed, Skipped, Aborted),
    WalkPhase.SLEEPING: (Slept, Aborted),
    WalkPhase.OVER: (),
}


class Walk:
    """Leads one request along its upstreams.

    Args:
        upstreams: Their names, in the order in which they are asked.

    Attributes:
        phase: Where it is.
        tried: Attempts that have failed or were answered, of all upstreams.
        failure: The newest failure; None as long as nothing failed.
    """

    def __init__(self, upstreams: Sequence[str]) -> None:
        self.phase = WalkPhase.READY
        self.tried = 0
        self.failure: Failure | None = None
        self._queue = deque([TryUpstream(name, 1) for name in upstreams])
        self._skipped: list[TryUpstream] = []
        self._current = _NOBODY

    def __repr__(self) -> str:
        return f"<Walk {self.phase} at {self._current.upstream!r}, {self.tried} tried>"

    @property
    def ahead(self) -> tuple[str, ...]:
        """The upstreams that could still take the request if the current one does not."""
        return tuple(one.upstream for one in self._queue)

    def start(self) -> WalkCommand:
        """Return the first command."""
        return self._next()

    def receive(self, event: WalkEvent) -> WalkCommand:
        """Take what came of the last command; return the next one.

        Raises:
            ValueError: The event can't be what came of it.
        """
        if not isinstance(event, _TAKES[self.phase]):
            message = f"a walk that is {self.phase} takes no {type(event).__name__}"
            raise ValueError(message)  # noqa: TRY004 - the moment is wrong, not the type
        match event:
            case Answered():
                self.tried += 1
                self.phase = WalkPhase.OVER
                return Done()
            case AttemptFailed(failure, once):
                self.tried += 1
                self.failure = failure
                return self._next() if once else self._after(failure)
            case Healed():
                self.tried += 1
                return self._current
            case Skipped():
                self._skipped.append(self._current)
                return self._next()
            case Slept():
                return self._try(
                    TryUpstream(
                        self._current.upstream,
                        self._current.attempt + 1,
                        forced=self._current.forced,
                    )
                )
            case Aborted():
                return self._give_up()
            case _:
                assert_never(event)

    def _after(self, failure: Failure) -> WalkCommand:
        attempt = self._current.attempt
        if not failure.may_pass or attempt >= ATTEMPTS:
            return self._next()
        self.phase = WalkPhase.SLEEPING
        return Sleep(backoff_ms(attempt, failure.retry_after_ms))

    def _next(self) -> WalkCommand:
        if not self._queue and self.failure is None:
            # Nobody was asked: better one that is thought to be down than no answer at all.
            self._queue = deque(
                TryUpstream(one.upstream, 1, forced=True) for one in self._skipped if not one.forced
            )
            self._skipped.clear()
        if self._queue:
            return self._try(self._queue.popleft())
        return self._give_up()

    def _try(self, command: TryUpstream) -> WalkCommand:
        self.phase = WalkPhase.TRYING
        self._current = command
        return command

    def _give_up(self) -> GiveUp:
        self.phase = WalkPhase.OVER
        if self.failure is None:
            return GiveUp(RouterAbortError("the request was given up before it was sent"))
        return GiveUp(self.failure.error)
