"""Where a turn can be, and what reaches it there.

::

    OPENING ──head──▶ STREAMING ──hidden calls──▶ RECALLING ──results──▶ CONTINUING ──head──┐
                          ▲                           │                                     │
                          └───────────────────────────┼─────────────────────────────────────┘
                          ▼                           ▼
                  FINISHED, FAILED            FINISHED (mixed), FAILED        ABORTED from anywhere

A hidden call that only reads runs while its response still streams, so its result may come before
the terminal does. Whatever belongs to a phase that is over comes too late and is ignored: bytes
behind a terminal, the result of a call whose turn has failed, a deadline that was met.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pipeline.events import (
    DeadlineReached,
    KeepAliveDue,
    ShutdownDue,
    ToolFinished,
    TurnEvent,
    UpstreamChunk,
    UpstreamEnded,
    UpstreamFailed,
    UpstreamOpened,
)


class TurnPhase(StrEnum):
    """Where a turn is."""

    OPENING = "opening"
    STREAMING = "streaming"
    RECALLING = "recalling"
    CONTINUING = "continuing"
    FINISHED = "finished"
    FAILED = "failed"
    ABORTED = "aborted"


_ANSWERED: Final[set[type[TurnEvent]]] = {KeepAliveDue, ShutdownDue}
"""What the client may be told once the upstream's head is known: its own goes out behind that."""

TAKES: Final[dict[TurnPhase, frozenset[type[TurnEvent]]]] = {
    TurnPhase.OPENING: frozenset({UpstreamOpened, UpstreamFailed, ShutdownDue}),
    TurnPhase.STREAMING: frozenset(
        {UpstreamChunk, UpstreamEnded, UpstreamFailed, ToolFinished, *_ANSWERED}
    ),
    TurnPhase.RECALLING: frozenset({ToolFinished, DeadlineReached, *_ANSWERED}),
    TurnPhase.CONTINUING: frozenset({UpstreamOpened, UpstreamFailed, DeadlineReached, *_ANSWERED}),
    TurnPhase.FINISHED: frozenset(),
    TurnPhase.FAILED: frozenset(),
    TurnPhase.ABORTED: frozenset(),
}
"""Which phase takes what."""

WAITING: Final = frozenset({TurnPhase.RECALLING, TurnPhase.CONTINUING})
"""Where the turn's own time runs: for hidden calls, and for the start of what follows them."""
