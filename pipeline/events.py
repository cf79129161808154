"""What happens to a turn: its inputs.

A handful for each read of the upstream; the events of the stream itself stay bytes and dicts.
Times are seconds of one monotonic clock, which the driver reads: the turn has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.errors import SottovoceError


@dataclass(frozen=True, slots=True)
class UpstreamOpened:
    """The upstream answered the request of the current hop with a head.

    Attributes:
        status: Its HTTP status.
        content_type: Its content type, None where the header is absent.
        now: When.
        spent: Usage of requests that this one took before it: they were for no hop of the turn.
    """

    status: int
    content_type: str | None
    now: float
    spent: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class UpstreamChunk:
    """Bytes of the upstream's body, as they came."""

    data: bytes
    now: float


@dataclass(frozen=True, slots=True)
class UpstreamEnded:
    """The upstream's body ended as its framing announced."""

    now: float


@dataclass(frozen=True, slots=True)
class UpstreamFailed:
    """The current hop broke: refused, reset, cut, silent for too long.

    Attributes:
        error: How.
        now: When.
        spent: As in ``UpstreamOpened``.
    """

    error: SottovoceError
    now: float
    spent: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A hidden call has its result.

    Attributes:
        call_id: Which call.
        text: What the model gets.
        anchor: A line that the client sees, where that is switched on.
        failed: The tool broke; ``text`` says so.
        now: When.
    """

    call_id: str
    text: str
    now: float
    anchor: str | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class KeepAliveDue:
    """The client heard nothing for one keep-alive interval, and is ready to hear something."""


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """The time for hidden calls and the start of continuations is used up."""

    now: float


@dataclass(frozen=True, slots=True)
class ShutdownDue:
    """The proxy is about to stop and ends what is left."""


TurnEvent = (
    UpstreamOpened
    | UpstreamChunk
    | UpstreamEnded
    | UpstreamFailed
    | ToolFinished
    | KeepAliveDue
    | DeadlineReached
    | ShutdownDue
)
