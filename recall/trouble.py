"""What is wrong with a memory file, for people: why it can't be used, and what to do about it."""

from __future__ import annotations

import sqlite3
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Trouble(NamedTuple):
    """Why the memory can't be used. Neither text names a path or a word of its content."""

    cause: str
    remedy: str
    lasting: bool = False
    """It does not go away by itself, even if other parts of the file still work."""


LOCKED: Final = Trouble(
    "another process holds it locked", "end the process that works on it, or wait for its end"
)
FULL: Final = Trouble("the disk is full", "free some space on the disk of the state directory")
READ_ONLY: Final = Trouble(
    "it can't be written to", "make the state directory and its files writable for this user"
)
GONE: Final = Trouble(
    "it can't be opened", "check that the state directory is there and may be used by this user"
)
FAILING: Final = Trouble("the disk fails", "check the disk of the state directory")
DAMAGED: Final = Trouble(
    "it is damaged",
    "stop what uses it, put a backup in its place or move it away to start anew",
    lasting=True,
)
REMOVED: Final = Trouble(
    "the file was taken away from under the running proxy",
    "start the proxy anew: what it stores now is lost with its end",
    lasting=True,
)

_BY_CODE: Final = {
    sqlite3.SQLITE_BUSY: LOCKED,
    sqlite3.SQLITE_LOCKED: LOCKED,
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_READONLY: READ_ONLY,
    sqlite3.SQLITE_PERM: READ_ONLY,
    sqlite3.SQLITE_AUTH: READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: GONE,
    sqlite3.SQLITE_IOERR: FAILING,
    sqlite3.SQLITE_PROTOCOL: FAILING,
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_NOTADB: DAMAGED,
}


def trouble_of(error: BaseException) -> Trouble | None:
    """Return what an error says of the file; None where it says nothing of it."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else _BY_CODE.get(code & 0xFF)


class Health:
    """What was tried on the file and failed, until the same works again.

    Searching a damaged index fails while all else works, so each kind of work is noted for
    itself. What is not lasting (a full disk, a lock) is over with the next write that works.
    Any thread may note something; only what is wrong costs more than a look.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[Trouble | None, bool], None] | None = None
        """Called with a trouble that begins or turns into another, and whether it was met in
        writing; with None at its end. On a thread of the database."""
        self._troubles: dict[str, Trouble] = {}
        self._told: Trouble | None = None
        self._lock = Lock()

    @property
    def trouble(self) -> Trouble | None:
        """What is wrong now; of several things the newest."""
        return next(reversed(self._troubles.copy().values()), None)

    def failed(self, kind: str, trouble: Trouble | None, *, wrote: bool) -> None:
        """Note that a kind of work failed; a trouble of None is not the file's."""
        if trouble is None:
            return
        with self._lock:
            self._troubles.pop(kind, None)
            self._troubles[kind] = trouble
        self._tell(wrote=wrote)

    def worked(self, kind: str, *, wrote: bool) -> None:
        """Note that a kind of work was done."""
        if not self._troubles:
            return
        with self._lock:
            for each, trouble in list(self._troubles.items()):
                if each == kind or (wrote and not trouble.lasting):
                    del self._troubles[each]
        self._tell(wrote=wrote)

    def _tell(self, *, wrote: bool) -> None:
        with self._lock:
            now = self.trouble
            changed, self._told = now != self._told, now
        if changed and self.on_change is not None:
            self.on_change(now, wrote)
