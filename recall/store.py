"""The store: one memory file, opened and closed as one thing.

The proxy works on :attr:`Store.database` with the functions of the modules beside this one
(``run_recall``, ``Ingests``, ``Joins``), which never block its loop. What stands here as
plain methods is for callers without a loop: the ``recall`` verbs.
"""

from __future__ import annotations

import asyncio
import sqlite3
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Self

from recall import entries, records
from recall.database import Database
from recall.entries import Draft, Entry, Scope
from recall.glance import Glance, Mark
from recall.ingest import Pieces
from recall.text import clean, split, stored_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Forgotten(NamedTuple):
    """What :meth:`Store.forget` did."""

    entries: int
    """How many entries were deleted."""
    wiped: bool
    """False: another process holds the file, and deleted text stays in it until that ends."""


Ids = list[str]
Entries = list[Entry]
Problems = list[str]


class Store:
    """A memory: entries of all tenants, and what turns leave for later ones.

    Args:
        path: Its file; None for a memory that ends with this object.

    Raises:
        StoreError: The file can't be used; the text says why and what to do.
    """

    def __init__(self, path: Path | None) -> None:
        self.database = Database(path)
        self.pieces = Pieces()
        self.glance = Glance(_mark(path))
        self._fleeting: Store | None = None
        self._lock = Lock()

    @classmethod
    def open(cls, path: Path | None) -> Self:
        """Open a memory, making the file where it is missing."""
        return cls(path)

    def close(self) -> None:
        """Stop what reads, finish what writes, leave no thread. May be called again."""
        for home in self.homes():
            home.database.close()

    async def aclose(self) -> None:
        """Close without blocking the loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_text(
        self, tenant: str, project: str, session: str, text: str, now: float, *, role: str = "user"
    ) -> Ids:
        """Store a text, in as many entries as its length takes.

        Returns:
            The ids of the new entries; none for what the session has already.
        """
        drafts = [Draft(piece, role, "add") for piece in split(clean(text))]
        scope = Scope(tenant, project, session)
        return self.database.write(lambda connection: entries.add(connection, scope, drafts, now))

    def list(self, tenant: str, limit: int, offset: int = 0) -> Entries:
        """Return a tenant's entries, the newest first."""
        return self.database.read(
            lambda connection: entries.list_entries(connection, tenant, limit, offset)
        )

    def show(self, tenant: str, id_: str) -> Entry | None:
        """Return one entry of a tenant; None where it has none of that id."""
        return self.database.read(lambda connection: entries.show(connection, tenant, id_))

    def count(self, tenant: str | None = None) -> int:
        """Return how many entries a tenant has, or all of them together."""
        return self.database.read(lambda connection: entries.count(connection, tenant))

    def size_bytes(self) -> int:
        """Return what the memory takes on disk, or of memory where it has no file."""
        path = self.database.path
        if path is None:
            return self.database.read(_pages)
        files = (path, path.with_name(f"{path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def forget(
        self,
        tenant: str,
        *,
        ids: Sequence[str] | None = None,
        project: str | None = None,
        session: str | None = None,
    ) -> Forgotten:
        """Delete entries of a tenant for good: the words of none of them stay in the file.

        Deleted are those that satisfy every condition given, all of them without any. With an
        entry go the hidden groups in which it was shown; with a session's last entry, all of the
        session's groups.
        """
        removed = self.database.write(
            lambda connection: entries.forget(
                connection, tenant, ids=ids, project=project, session=session
            )
        )
        everything = ids is None and project is None and session is None
        named = () if session is None or ids is not None or project is not None else (session,)
        sessions = None if everything else {*removed.sessions, *map(stored_name, named)}
        for home in self.homes():
            home.database.write(
                lambda connection: records.forget(connection, tenant, removed.ids, sessions)
            )
            home.glance.wrote()
        return Forgotten(len(removed.ids), self.database.wipe())

    def fleeting(self) -> Store:
        """Return the memory for what must not be stored; it ends with this one."""
        if self.database.path is None:
            return self
        with self._lock:
            if self._fleeting is None:
                self._fleeting = Store(None)
            return self._fleeting

    def homes(self) -> Sequence[Store]:
        """Return this memory and, if something is in it, the one for what must not be stored."""
        return (self,) if self._fleeting is None else (self, self._fleeting)

    def integrity(self) -> Problems:
        """Check the file and both indexes; return what is wrong, if anything is."""
        return self.database.write(_problems)


def _mark(path: Path | None) -> Mark | None:
    """Return the mark of a memory; None where it can't have one, and is asked every time."""
    try:
        return Mark(path and path.with_name(f"{path.name}-mark"))
    except OSError:
        return None


def _pages(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("PRAGMA page_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int(count) * int(size)


def _problems(connection: sqlite3.Connection) -> list[str]:
    problems = [row[0] for row in connection.execute("PRAGMA quick_check") if row[0] != "ok"]
    (stored,) = connection.execute("SELECT count(*) FROM entry").fetchone()
    for name, check, size in (
        (
            "words",
            "INSERT INTO words (words) VALUES ('integrity-check')",
            "SELECT count(*) FROM words_docsize",
        ),
        (
            "parts",
            "INSERT INTO parts (parts) VALUES ('integrity-check')",
            "SELECT count(*) FROM parts_docsize",
        ),
    ):
        try:
            connection.execute(check)
        except sqlite3.DatabaseError as error:
            problems.append(f"index {name}: {error}")
        (indexed,) = connection.execute(size).fetchone()
        if indexed != stored:
            problems.append(f"index {name}: {indexed} of {stored} entries")
    return problems
