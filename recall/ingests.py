"""Turns on their way into the memory.

Nobody waits for them. So turns that end close together are written together: to wake the writing
thread, to open a transaction and to commit it costs more than to look through a turn that says
nothing new, which most of its history is. What goes wrong with one of them costs the others
nothing: then each gets a transaction of its own. What is wrong with the file is wrong for all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final

from recall.ingest import ingest_turns
from recall.trouble import trouble_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from recall.ingest import Told
    from recall.store import Store

LINGER: Final = 0.02
"""Seconds for which the first turn waits for others."""
GROUP: Final = 32
"""Turns that are written together: a join record may have to wait for them."""
WAITING: Final = 1024
"""Turns that may wait; the oldest are given up first."""
WAITING_BYTES: Final = 64 << 20
"""What their requests together may have taken."""


class Ingests:
    """What the turns of a process add to its memory, written by one task while there are some.

    Args:
        store: The memory.
        stored: Called with the number of entries that are new.
        failed: Called for each turn that could not be stored, with the error; with None for one
            that was given up because too many wait.
        linger: Seconds for which the first turn waits for others.
    """

    def __init__(
        self,
        store: Store,
        *,
        stored: Callable[[int], None],
        failed: Callable[[Exception | None], None],
        linger: float = LINGER,
    ) -> None:
        self._store = store
        self._stored = stored
        self._failed = failed
        self._linger = linger
        self._waiting: deque[Told] = deque()
        self._size = 0
        self._writer: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._writing = 0
        self._over = 0  # turns that were stored, refused or given up
        self._awaited: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<Ingests {len(self)} waiting, {self._size} bytes>"

    def put(self, told: Told) -> None:
        """Hand a turn over; returns at once."""
        self._waiting.append(told)
        self._size += told.size
        while len(self._waiting) > WAITING or (self._size > WAITING_BYTES and len(self) > 1):
            self._take()
            self._failed(None)
            self._count(1)
        if self._writer is None or self._writer.done():
            self._hurry.clear()
            self._writer = asyncio.create_task(self._write_all())

    async def settle(self, seconds: float) -> None:
        """Wait until what was handed over is in the memory, or can't be; so long at most.

        A recall waits for it: what was said before it can be found.
        """
        if self._writer is None or self._writer.done():
            return
        self._hurry.set()
        settled = asyncio.get_running_loop().create_future()
        self._awaited.append((self._over + self._writing + len(self), settled))
        await asyncio.wait({settled}, timeout=seconds)

    async def close(self, seconds: float) -> None:
        """Write what waits, for so long; what is left then is not stored."""
        if self._writer is not None:
            self._hurry.set()
            await asyncio.wait({self._writer}, timeout=seconds)
            self._writer.cancel()
            await asyncio.wait({self._writer})
        self._waiting.clear()
        self._size = 0

    def _count(self, turns: int) -> None:
        """Count turns that nothing is to be done for any more; wake who waited for them."""
        self._over += turns
        while self._awaited and self._awaited[0][0] <= self._over:
            _, settled = self._awaited.popleft()
            if not settled.done():
                settled.set_result(None)

    def _take(self) -> Told:
        told = self._waiting.popleft()
        self._size -= told.size
        return told

    async def _write_all(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._linger):
                await self._hurry.wait()
        while self._waiting:
            group = [self._take() for _ in range(min(GROUP, len(self)))]
            self._writing = len(group)
            try:
                self._stored(await self._write(group))
            except Exception as error:  # noqa: BLE001 - memory is best effort once the turn is over
                await self._write_each(group, error)
            self._writing = 0
            self._count(len(group))

    async def _write_each(self, group: Sequence[Told], error: Exception) -> None:
        """Write turns one by one, after they could not be written together.

        Not where the file is in the way: each would wait for it in vain, and what waits behind.
        """
        if len(group) == 1 or trouble_of(error) is not None:
            for _ in group:
                self._failed(error)
            return
        for told in group:
            try:
                self._stored(await self._write([told]))
            except Exception as reason:  # noqa: BLE001 - as above
                self._failed(reason)

    async def _write(self, group: Sequence[Told]) -> int:
        pieces = self._store.pieces

        def work(connection: sqlite3.Connection) -> int:
            return ingest_turns(connection, pieces, group)

        return await self._store.database.write_async(work)
