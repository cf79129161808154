"""Whether the ledger may have anything for a request, told without asking the memory file.

Nearly every request has calls in its history, and most have nothing hidden in it. Asking the file
takes two changes of threads, which under load wait for the loop to rest. So the keys of all groups
are kept here, as digests. They may be those of groups that are gone, or of another tenant: then the
file is asked in vain. They must never lack one.

They lack none while the file's *mark* is what it was when they were read: eight random bytes in a
file beside it, mapped by every process that uses the memory. Who has written a group writes another
mark, behind its commit and before its client can know of the turn::

    writer     commit ── renew mark ── terminal for its client
    reader     read mark ── read keys ─── … ─── the mark is still that one: the keys are complete

Marks never come twice, so a mark that was read too early, or half, only asks for the keys anew.

What the file had for some keys is remembered for as long as well: between two turns that leave
something, a conversation asks for the same groups with every request.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from recall import records

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection
    from pathlib import Path

    from pipeline.history import HiddenGroup

MOST_KEYS: Final = 1 << 17
"""Keys that are kept, some 10 MB. A memory with more is asked every time."""
MOST_BYTES: Final = 8 * 1024 * 1024
"""Bytes of groups that are remembered, as they are stored."""
_MARK_BYTES: Final = 8


class Mark:
    """What changes whenever a group was written, whichever process wrote it.

    Args:
        path: Its file, made with mode 0600 where it is missing; None where one process is all.

    Raises:
        OSError: The file can't be used.
    """

    def __init__(self, path: Path | None) -> None:
        self._bytes: bytearray | mmap.mmap = bytearray(_MARK_BYTES)
        if path is None:
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < _MARK_BYTES:
                os.ftruncate(descriptor, _MARK_BYTES)
            self._bytes = mmap.mmap(descriptor, _MARK_BYTES)
        finally:
            os.close(descriptor)

    def read(self) -> bytes:
        """Return the mark."""
        return bytes(self._bytes[:_MARK_BYTES])

    def renew(self) -> None:
        """Tell every process that there is a group which it doesn't know."""
        self._bytes[:_MARK_BYTES] = os.urandom(_MARK_BYTES)


class Seen(NamedTuple):
    """What a look into the file has found."""

    mark: bytes
    keys: Collection[int] | None
    """None: there are too many."""
    last: int
    """The newest group."""


class _Found(NamedTuple):
    groups: list[HiddenGroup]
    size: int


_Asked = tuple[str, tuple[int, ...]]
_FOUND_BYTES: Final = 1024
"""What an answer takes beside its groups."""


class Glance:
    """The keys of all groups of a memory, and the groups that were asked for of late.

    Args:
        mark: The memory's; None: it has none, and is asked every time.
        most: Keys that are kept.
        most_bytes: Bytes of groups that are kept.
    """

    def __init__(
        self, mark: Mark | None, most: int = MOST_KEYS, most_bytes: int = MOST_BYTES
    ) -> None:
        self._mark = mark
        self._most = most
        self._keys: set[int] = set()
        self._last = 0
        self._known_for: bytes | None = None
        self._found: OrderedDict[_Asked, _Found] = OrderedDict()
        self._found_for: bytes | None = None
        self._found_bytes = 0
        self._most_bytes = most_bytes

    def __repr__(self) -> str:
        return f"<Glance at {len(self._keys)} keys>"

    def known(self, digests: Collection[int]) -> list[int] | None:
        """Return which keys a group may have; None where only the file knows.

        Args:
            digests: The keys' (see `records.key_digests`).
        """
        if self._mark is None or self._known_for != self._mark.read():
            return None
        return [one for one in digests if one in self._keys]

    def mark(self) -> bytes | None:
        """Return what to remember an answer of the file for: read in front of it, on any thread."""
        return None if self._mark is None else self._mark.read()

    def remembered(self, tenant: str, digests: Collection[int]) -> list[HiddenGroup] | None:
        """Return the groups that the file has; None where only the file knows.

        Args:
            tenant: Whose.
            digests: As `known` has just returned them.
        """
        if self._found_for != self._known_for:
            return None
        asked = tenant, tuple(digests)
        found = self._found.get(asked)
        if found is None:
            return None
        self._found.move_to_end(asked)
        return found.groups

    def remember(
        self,
        mark: bytes | None,
        tenant: str,
        digests: Collection[int],
        groups: list[HiddenGroup],
        size: int,
    ) -> None:
        """Remember the groups that the file has, on the loop's thread.

        Args:
            mark: As it was before the file was asked.
            tenant: Whose.
            digests: What it was asked for.
            groups: What it has; never changed in place.
            size: Bytes of them, as they are stored.
        """
        known = self.known(digests)
        if not known or mark != self._known_for:
            return
        if self._found_for != mark:
            self._found.clear()
            self._found_for, self._found_bytes = mark, 0
        asked = tenant, tuple(known)
        if asked in self._found:
            return
        self._found[asked] = _Found(groups, size + _FOUND_BYTES)
        self._found_bytes += size + _FOUND_BYTES
        while self._found_bytes > self._most_bytes:
            self._found_bytes -= self._found.popitem(last=False)[1].size

    def look(self, connection: sqlite3.Connection) -> Seen | None:
        """Read what is new: on any thread, in front of what else its transaction reads.

        Returns:
            What `learn` takes; None where nothing is new, or will be looked at any more.
        """
        if self._mark is None or not self._most:
            return None
        mark = self._mark.read()  # before the keys: what is written from here on has another one
        if mark == self._known_for:
            return None
        rows = records.newer_keys(connection, self._last, self._most + 1)
        if len(rows) > self._most:
            return Seen(mark, None, 0)
        return Seen(mark, [key for key, _ in rows], max((id_ for _, id_ in rows), default=0))

    def learn(self, seen: Seen | None) -> None:
        """Take what a look has found, on the loop's thread."""
        if seen is None:
            return
        self._keys.update(seen.keys or ())
        self._last = max(self._last, seen.last)
        self._known_for = seen.mark
        if seen.keys is None or len(self._keys) > self._most:
            self._known_for, self._most = None, 0
            self._keys.clear()

    def wrote(self) -> None:
        """Say that groups were written or deleted; on any thread, behind the commit."""
        if self._mark is not None:
            self._mark.renew()
