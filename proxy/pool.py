"""Which connections exist: a bounded number of slots, and what idles between two exchanges."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from proxy.connection import Connection
    from proxy.dial import Origin

IDLE_SECONDS: Final = 15.0
"""How long a connection idles. Servers close idle ones too, some after 5 s; the longer ours wait,
the likelier a request meets a connection that the server is just closing."""


class Pool:
    """Slots for exchanges, first come first served, and idle connections, newest first.

    A slot is taken before a connection is looked for or opened and freed when its exchange is
    over, so there are never more connections than slots: an idle one makes room for a new one.

    Args:
        size: The number of slots.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.in_use = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._idle: dict[Connection, tuple[Origin, float]] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return (
            f"<Pool: {self.in_use} of {self.size} in use, {self.idle} idle, {self.queued} queued>"
        )

    @property
    def idle(self) -> int:
        """How many connections wait for their next exchange."""
        return len(self._idle)

    @property
    def queued(self) -> int:
        """How many requests wait for a slot."""
        return len(self._queue)

    def enter(self) -> bool:
        """Take a slot if one is free at once; say whether."""
        if self.in_use >= self.size:
            return False
        self.in_use += 1
        return True

    async def acquire(self) -> None:
        """Take a slot, or wait for one; ``free`` gives it back."""
        if self.enter():
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.free()  # the slot came in the same moment
            else:
                self._queue.remove(turn)
            raise

    def free(self) -> None:
        """Give a slot back: to who waits longest, if anybody does."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.in_use -= 1

    def take(self, origin: Origin) -> Connection | None:
        """Return an idle connection to an origin, the one used last, or None."""
        for connection, (key, _) in reversed(self._idle.items()):
            if key == origin:
                del self._idle[connection]
                if connection.is_open:
                    return connection
                return self.take(origin)
        return None

    def keep(self, origin: Origin, connection: Connection) -> None:
        """Let a connection idle until it is taken, lost or too old."""
        loop = asyncio.get_running_loop()
        self._idle[connection] = (origin, loop.time() + IDLE_SECONDS)
        if self._timer is None:  # one for all: connections come and go with each exchange
            self._timer = loop.call_later(IDLE_SECONDS, self._retire)

    def _retire(self) -> None:
        """Close what has idled for too long, and look again when the next one will have."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection, (_, until) in list(self._idle.items()):
            if until > now:
                self._timer = loop.call_at(until, self._retire)
                break
            self.forget(connection)
            connection.abort()

    def make_room(self) -> None:
        """Close the oldest idle connection if a new one would be one too many."""
        if self._idle and self.in_use + self.idle > self.size:
            oldest = next(iter(self._idle))
            self.forget(oldest)
            oldest.abort()

    def forget(self, connection: Connection) -> None:
        """Drop a connection that was lost."""
        self._idle.pop(connection, None)

    def close(self) -> None:
        """Close what idles."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._idle):
            self.forget(connection)
            connection.abort()
