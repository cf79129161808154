"""What a turn asks for: its outputs. The driver performs them in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.errors import SottovoceError
    from pipeline.history import HiddenGroup
    from pipeline.outcome import TurnOutcome
    from pipeline.reader import StreamMode
    from pipeline.request import Request


@dataclass(frozen=True, slots=True)
class OpenUpstream:
    """Send the request of a hop. ``mode`` was written into it and will read its answer."""

    hop: int
    request: Request
    mode: StreamMode


@dataclass(frozen=True, slots=True)
class CloseUpstream:
    """Nothing more is wanted of the current hop's answer."""


@dataclass(frozen=True, slots=True)
class Relay:
    """Pass the provider's error answer on: status, headers and body as they come."""


@dataclass(frozen=True, slots=True)
class Send:
    """Bytes for the client. The first one sends the head; the last one ends the body."""

    data: bytes
    last: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with this error: no head was sent yet."""

    error: SottovoceError


@dataclass(frozen=True, slots=True)
class RunTool:
    """Execute a hidden call and report its result."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CancelTools:
    """Stop what still runs; its results would come too late."""


@dataclass(frozen=True, slots=True)
class SaveJoin:
    """Begin to make the turn's hidden items durable. The last ``Send`` waits for that, no other.

    Attributes:
        group: The turn's items with their join keys; None where there is nothing to put back.
        response_id: What the client knows the response by.
        hop_ids: The upstream's response ids, hop by hop.
        outputs: Items that answer hidden calls of the last hop, which no request has carried yet.
    """

    group: HiddenGroup | None
    response_id: str
    hop_ids: tuple[str, ...]
    outputs: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportEmpty:
    """The upstream completed with nothing for the client.

    Attributes:
        model: As the upstream reported it.
        stop_reason: Why it says it stopped.
        output_tokens: What it says it produced.
        recall_depth: Rounds of hidden calls before it.
    """

    model: str | None
    stop_reason: str
    output_tokens: int | None
    recall_depth: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The turn is over."""

    outcome: TurnOutcome


Command = (
    OpenUpstream
    | CloseUpstream
    | Relay
    | Send
    | Refuse
    | RunTool
    | CancelTools
    | SaveJoin
    | ReportEmpty
    | Finish
)
