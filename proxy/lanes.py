"""One turn at a time per conversation, where ``sessions.serialize`` asks for that.

A turn that comes while another one of its conversation runs waits its time, in the order of
coming. How many may wait is limited: a client that sends faster than its provider answers is told
so, instead of being kept in a queue that only grows.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from pipeline.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from proxy.sessions import Identity

WAITING: Final = 8
"""Turns of a conversation that may wait."""
RETRY_AFTER: Final = b"5"
"""Seconds until a turn that may not wait should be sent again."""


class BusyError(RequestError):
    """Too many turns of one conversation wait already."""

    status = 429
    code = "conversation_busy"


class _Lane:
    """One conversation: who runs holds the lock, and ``turns`` counts who waits as well."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.turns = 0


class Lanes:
    """The conversations that have a turn now.

    Args:
        switched_on: Without it every turn runs at once.
        waiting: How many turns of a conversation may wait.
    """

    def __init__(self, *, switched_on: bool, waiting: int = WAITING) -> None:
        self._switched_on = switched_on
        self._waiting = waiting
        self._lanes: dict[tuple[str, str], _Lane] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def turn(self, identity: Identity) -> AbstractAsyncContextManager[None]:
        """Run the block when it is its turn.

        Raises:
            BusyError: Too many wait.
        """
        return self._in_line(identity) if self._switched_on else nullcontext()

    @asynccontextmanager
    async def _in_line(self, identity: Identity) -> AsyncIterator[None]:
        key = identity.tenant, identity.session
        lane = self._lanes.setdefault(key, _Lane())
        if lane.turns > self._waiting:
            raise BusyError(
                f"{self._waiting} turns of this conversation wait already; "
                "send this one again when they are answered"
            )
        lane.turns += 1
        try:
            async with lane.lock:
                yield
        finally:
            lane.turns -= 1
            if not lane.turns:
                del self._lanes[key]
