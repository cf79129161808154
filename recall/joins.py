"""Join records on their way into the memory, readable from the moment they are handed over.

A client may go on microseconds after its turn, and its file may be slow, locked by another process
or full just then. So a record counts from when it is given: it is found here until it is in the
memory, and written again and again until it is. What waits is bounded; the oldest records go first,
and the turns that they belong to look to their provider as if nothing had been hidden in them.

One task writes, one record after the other, and only while there are some::

    save(join) ─▶ fresh ──written──▶ memory
                    │ failed            ▲
                    ▼                   │
                  failed ──tried again──┘
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from recall.ledger import (
    find_groups,
    find_public_id,
    find_response_id,
    save_group,
    save_response_id,
)
from recall.migrations import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pipeline.history import HiddenGroup
    from recall.ledger import ResponseIds
    from recall.store import Store

WAITING_BYTES: Final = 16 << 20
"""What all records together may take that are not written yet."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Seconds between two passes over what could not be written."""
_RECORD_BYTES: Final = 512
"""What a record takes besides its texts."""


@dataclass(frozen=True, slots=True)
class Join:
    """What one turn leaves for later requests.

    Attributes:
        tenant: Whose it is.
        session: Its conversation.
        group: What was hidden, if anything was.
        response_id: The id that the client knows; empty where it knows none.
        behind: What stands behind that id.
        now: Seconds since 1970.
        lasting: False keeps it in memory only.
    """

    tenant: str
    session: str
    group: HiddenGroup | None
    response_id: str
    behind: ResponseIds | None
    now: float
    lasting: bool = True

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        texts = [slot.text for slot in self.group.slots] if self.group is not None else []
        outputs = self.behind.outputs if self.behind is not None else ()
        return _RECORD_BYTES + sum(map(len, texts)) + sum(map(len, outputs))


@dataclass(eq=False, slots=True)
class _Waiting:
    join: Join
    keys: frozenset[str] = field(init=False)
    turn: bytes | None = field(init=False)
    written: asyncio.Future[None] = field(init=False)

    def __post_init__(self) -> None:
        group = self.join.group
        keys = () if group is None else (*group.lookup_keys(), *group.hidden_keys())
        self.keys = frozenset(keys)
        self.turn = group.turn_keys() if group is not None else None
        self.written = asyncio.get_running_loop().create_future()
        # How it ended may be nobody's question any more.
        self.written.add_done_callback(lambda done: done.cancelled() or done.exception())


class Joins:
    """The join records of a process.

    Args:
        store: Where they are written to.
        lost: Called for each record that is given up.
        unreadable: Called with the error when the memory can't be read.
        most_bytes: What may wait.
        pause: Seconds before what failed is tried again, the first time.
    """

    def __init__(
        self,
        store: Store,
        *,
        lost: Callable[[], None],
        unreadable: Callable[[Exception], None],
        most_bytes: int = WAITING_BYTES,
        pause: float = FIRST_PAUSE,
    ) -> None:
        self._store = store
        self._lost = lost
        self._unreadable = unreadable
        self._most_bytes = most_bytes
        self._pause = pause
        self._size = 0
        self._number = 0
        self._fresh: OrderedDict[int, _Waiting] = OrderedDict()
        self._failed: OrderedDict[int, _Waiting] = OrderedDict()
        self._given = asyncio.Event()
        self._closing = False
        self._writer: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._fresh) + len(self._failed)

    def __repr__(self) -> str:
        return f"<Joins {len(self)} waiting, {self._size} bytes>"

    # --- Writing --------------------------------------------------------------------------

    async def save(self, join: Join) -> None:
        """Keep a record, and wait until it is durable. It is found at once.

        Cancelling the call changes nothing but that nobody waits.

        Raises:
            Exception: What the first try to write it raised; it will be tried again.
        """
        waiting = _Waiting(join)
        self._replace(waiting)
        self._number += 1
        self._fresh[self._number] = waiting
        self._size += join.size
        self._make_room()
        self._given.set()
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all())
        await asyncio.shield(waiting.written)

    async def close(self, seconds: float) -> None:
        """Try once more to write what waits, for so long; give up what is left."""
        self._closing = True
        self._given.set()
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=seconds)
            self._writer.cancel()
            await asyncio.wait({self._writer})
        for number in (*self._fresh, *self._failed):
            self._give_up(number)

    def _replace(self, newer: _Waiting) -> None:
        """Take out earlier records of the same turn, or one that failed would come after it."""
        if newer.turn is None:
            return
        for number, one in (*self._failed.items(), *self._fresh.items()):
            if one.turn == newer.turn and one.join.tenant == newer.join.tenant:
                self._remove(number)
                _settle(one.written, None)

    def _make_room(self) -> None:
        while self._size > self._most_bytes and len(self) > 1:
            self._give_up(next(iter(self._failed or self._fresh)))

    def _give_up(self, number: int) -> None:
        waiting = self._remove(number)
        if waiting is not None:
            _settle(waiting.written, StoreError("the record was given up: too many wait"))
            self._lost()

    def _remove(self, number: int) -> _Waiting | None:
        waiting = self._fresh.pop(number, None) or self._failed.pop(number, None)
        if waiting is not None:
            self._size -= waiting.join.size
        return waiting

    async def _write_all(self) -> None:
        """Write until nothing waits: what is fresh at once, what failed after a pause."""
        pause = self._pause
        while self._fresh or self._failed:
            before = len(self._failed)
            await self._pass_over()
            if self._fresh:
                continue
            if self._closing:
                return
            if self._failed:
                pause = self._pause if len(self._failed) < before else pause
                await self._rest(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _pass_over(self) -> None:
        """Try everything once: what failed before comes after what is fresh."""
        for number in (*self._fresh, *self._failed):
            waiting = self._fresh.get(number) or self._failed.get(number)
            if waiting is not None:
                await self._try_to_write(number, waiting)

    async def _try_to_write(self, number: int, waiting: _Waiting) -> None:
        try:
            await self._write(waiting.join)
        except Exception as error:  # noqa: BLE001 - whatever it is, the record must not be lost
            if self._fresh.pop(number, None) is not None:
                self._failed[number] = waiting
            _settle(waiting.written, error)
            return
        self._remove(number)
        _settle(waiting.written, None)

    async def _write(self, join: Join) -> None:
        store, lasting = self._store, join.lasting
        if join.group is not None:
            await save_group(
                store, join.tenant, join.group, join.now, session=join.session, lasting=lasting
            )
        if join.response_id and join.behind is not None:
            await save_response_id(
                store, join.tenant, join.response_id, join.behind, join.now, lasting=lasting
            )

    async def _rest(self, seconds: float) -> None:
        """Wait before what failed is tried again; what is given meanwhile doesn't wait."""
        self._given.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._given.wait()
        except TimeoutError:
            return

    # --- Reading --------------------------------------------------------------------------

    async def find_groups(self, tenant: str, keys: Collection[str]) -> list[HiddenGroup]:
        """Return a tenant's groups that have any of the keys, in the order they were given.

        A memory that can't be read has none.
        """
        # Before the memory is asked: what is written meanwhile is in one of the two.
        waiting = [*self._failed.values(), *self._fresh.values()]
        try:
            found = await find_groups(self._store, tenant, keys)
        except Exception as error:  # noqa: BLE001 - a turn must not fail for what it could recall
            self._unreadable(error)
            found = []
        for one in waiting:
            group = one.join.group
            asked_for = one.join.tenant == tenant and not one.keys.isdisjoint(keys)
            if asked_for and group is not None and group not in found:
                found.append(group)
        return found

    async def find_response_id(self, tenant: str, public_id: str) -> ResponseIds | None:
        """Return what stands behind a response id; None for one that this tenant was not given.

        A memory that can't be read has none.
        """
        for one in reversed((*self._failed.values(), *self._fresh.values())):
            if (one.join.tenant, one.join.response_id) == (tenant, public_id):
                return one.join.behind
        try:
            return await find_response_id(self._store, tenant, public_id)
        except Exception as error:  # noqa: BLE001 - as above
            self._unreadable(error)
            return None

    async def find_public_id(self, tenant: str, hop: str) -> str | None:
        """Return the id that a tenant knows instead of an upstream's; None where it has no other.

        A memory that can't be read has none.
        """
        for one in reversed((*self._failed.values(), *self._fresh.values())):
            behind = one.join.behind
            if one.join.tenant == tenant and behind is not None and hop in behind.hops:
                return one.join.response_id
        try:
            return await find_public_id(self._store, tenant, hop)
        except Exception as error:  # noqa: BLE001 - as above
            self._unreadable(error)
            return None


def _settle(written: asyncio.Future[None], error: Exception | None) -> None:
    """Tell who waits for a record how its first try ended, once."""
    if written.done():
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
