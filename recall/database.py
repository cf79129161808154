"""The memory file and the threads that may touch it.

SQLite blocks, the event loop must not: every statement runs on a thread of ours. One thread
writes, so writes stand in line instead of failing as busy; a few threads read, each on its own
connection, which the write-ahead log lets them do while the writer writes. Another process may
have the same file open; it is waited for.

Work that nobody waits for any longer is stopped by ``interrupt()``, which ends the running
statement within microseconds. It can't stop what has not begun, so it is repeated until the work
has ended: when a cancelled call returns, its thread is free and its transaction is gone.

A memory without a file lives on one connection, which then serves reads and writes alike.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from recall.migrations import StoreError, migrate
from recall.trouble import REMOVED, Health, trouble_of

if TYPE_CHECKING:
    from pathlib import Path

    from recall.trouble import Trouble

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
"""Something to do with a connection. It runs on a thread of the database."""

READERS: Final = 4
"""Threads that read, so that one slow search doesn't hold up the ledger."""
BUSY_SECONDS: Final = 5.0
"""How long to wait for another process that writes."""
_OLDEST_SQLITE: Final = (3, 35, 0)
_REPEAT_SECONDS: Final = 0.005
_PATIENCE_MS: Final = 50
"""How long the writer waits for the lock before it looks whether it still should."""

PROBE_SECONDS: Final = 0.5
"""How long to wait for what a small write says of a file in trouble."""

_LOG_BYTES: Final = 16 << 20


class StoppedError(Exception):
    """The work was stopped: its deadline passed, or the database is closing."""


class _Job(Generic[T]):
    """One piece of work on its way through a thread."""

    __slots__ = ("_connection", "_lock", "_work", "committed", "kind", "stopped")

    def __init__(self, work: Work[T], committed: Callable[[], None] | None = None) -> None:
        self.kind = str(getattr(work, "__qualname__", work))
        """What sort of work it is: the same function does the same to the file."""
        self.stopped = False
        self.committed = committed
        self._work = work
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None

    def run(self, connection: sqlite3.Connection) -> T:
        """Do the work, unless it was stopped before it began."""
        with self._lock:
            if self.stopped:
                raise StoppedError
            self._connection = connection
        try:
            return self._work(connection)
        except sqlite3.OperationalError as error:
            if self.stopped:
                raise StoppedError from error
            raise
        finally:
            with self._lock:
                self._connection = None

    def stop(self) -> None:
        """Interrupt the statement that is running, if one is. Any thread may call this."""
        with self._lock:
            self.stopped = True
            if self._connection is not None:
                self._connection.interrupt()


class Database:
    """Connections to one memory file, and their threads.

    Args:
        path: The file, created with mode 0600 where it is missing; None for a memory that ends
            with this object.

    Raises:
        StoreError: The file can't be opened, is no memory of ours or comes from a newer version.
    """

    def __init__(self, path: Path | None) -> None:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise StoreError(
                f"SQLite {sqlite3.sqlite_version} is too old",
                hint="use a Python with SQLite 3.35 or newer",
            )
        self.path = path
        self.health = Health()
        self._writer = _prepare(path)
        self._identity = None if path is None else _identity(path)
        self._probe: Future[None] | None = None
        self._idle: list[sqlite3.Connection] = []
        self._reads: set[_Job[Any]] = set()
        self._closed = False
        self._write_pool = ThreadPoolExecutor(1, thread_name_prefix="memory-write")
        self._read_pool = (
            self._write_pool
            if path is None
            else ThreadPoolExecutor(READERS, thread_name_prefix="memory-read")
        )

    def read(self, work: Work[T]) -> T:
        """Do some reading and wait for it. Not for the event loop's thread."""
        return self._submit_read(_Job(work)).result()

    def write(self, work: Work[T]) -> T:
        """Do some writing in one transaction and wait for it. Not for the event loop's thread."""
        return self._submit_write(_Job(work)).result()

    async def read_async(self, work: Work[T], *, seconds: float | None = None) -> T:
        """Do some reading. Cancelling the call interrupts it.

        Args:
            work: What to do.
            seconds: After this time it is interrupted; None: never.

        Raises:
            StoppedError: The time was over.
        """
        job = _Job(work)
        return await _follow(job, self._submit_read(job), seconds)

    async def write_async(
        self,
        work: Work[T],
        *,
        lasting: bool = False,
        committed: Callable[[], None] | None = None,
    ) -> T:
        """Do some writing in one transaction. Cancelling the call rolls it back.

        Args:
            work: What to do.
            lasting: The write goes on when the caller is cancelled, and :meth:`close` waits for
                it: for what a later request will ask for in any case.
            committed: Called on the writing thread as soon as the write is durable.
        """
        job = _Job(work, committed)
        future = self._submit_write(job)
        if lasting:
            return await asyncio.shield(_watched(future))
        return await _follow(job, future, None)

    async def condition(self) -> Trouble | None:
        """Return what keeps the file from being used, None if nothing is known to.

        Nothing is written while all is well. While something is wrong, a small write tries
        whether it still is: who is not ready gets no work that could show it.
        """
        if self._closed or self.path is None:
            return None
        await asyncio.to_thread(self._look)
        trouble = self.health.trouble
        if trouble is not None and not trouble.lasting:
            if self._probe is None or self._probe.done():
                self._probe = self._submit_write(_Job(_touch))
            await asyncio.wait({_watched(self._probe)}, timeout=PROBE_SECONDS)
        return self.health.trouble

    def wipe(self) -> bool:
        """Write the file anew, so that nothing deleted is left in it. Not for the event loop.

        Returns:
            Whether that is done: not while another process uses the file.
        """
        return self.path is None or self._write_pool.submit(_wipe, self._writer).result()

    def close(self) -> None:
        """Stop the reads, finish the writes, close everything. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._read_pool.shutdown(wait=False)
        while self._reads:
            for job in list(self._reads):
                job.stop()
            time.sleep(_REPEAT_SECONDS)
        self._read_pool.shutdown()
        self._write_pool.shutdown()
        for connection in (*self._idle, self._writer):
            connection.close()
        self._idle.clear()

    def _submit_read(self, job: _Job[T]) -> Future[T]:
        return self._submit(self._read_pool, job, self._run_read)

    def _submit_write(self, job: _Job[T]) -> Future[T]:
        return self._submit(self._write_pool, job, self._run_write)

    def _submit(
        self, pool: ThreadPoolExecutor, job: _Job[T], run: Callable[[_Job[T]], T]
    ) -> Future[T]:
        if self._closed:
            raise StoreError("the memory is closed")
        return pool.submit(run, job)

    def _run_read(self, job: _Job[T]) -> T:
        """Do the work in one snapshot. There are never more threads than connections."""
        try:
            result = self._read_on(
                self._writer if self.path is None else self._borrow(self.path), job
            )
        except sqlite3.Error as error:
            self.health.failed(job.kind, trouble_of(error), wrote=False)
            raise
        self.health.worked(job.kind, wrote=False)
        return result

    def _read_on(self, connection: sqlite3.Connection, job: _Job[T]) -> T:
        self._reads.add(job)
        if self._closed:
            job.stop()
        try:
            connection.execute("BEGIN")
            return job.run(connection)
        finally:
            self._reads.discard(job)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if connection is not self._writer:
                self._idle.append(connection)

    def _run_write(self, job: _Job[T]) -> T:
        """Do the work in one transaction: all of it or nothing."""
        connection = self._writer
        try:
            _begin(connection, job)
            result = job.run(connection)
            connection.execute("COMMIT")
            if job.committed is not None:
                job.committed()
        except BaseException as error:
            # An interrupted statement may have rolled back already.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self.health.failed(job.kind, trouble_of(error), wrote=True)
            raise
        self.health.worked(job.kind, wrote=True)
        return result

    def _look(self) -> None:
        """Note whether the file is still the one that was opened."""
        if self.path is not None and _identity(self.path) != self._identity:
            self.health.failed("look", REMOVED, wrote=True)
        else:
            self.health.worked("look", wrote=False)

    def _borrow(self, path: Path) -> sqlite3.Connection:
        with suppress(IndexError):
            return self._idle.pop()
        connection = _connect(path)
        connection.execute("PRAGMA query_only = ON")
        return connection


async def _follow(job: _Job[T], future: Future[T], seconds: float | None) -> T:
    """Wait for work; when it takes too long or nobody waits, stop it and see it end."""
    watched = _watched(future)
    try:
        await asyncio.wait({watched}, timeout=seconds)
    finally:
        # Reached by cancellation too, and then a second one must not leave the work running.
        while not watched.done():
            if not future.cancel():
                job.stop()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({watched}, timeout=_REPEAT_SECONDS)
    if watched.cancelled():
        raise StoppedError
    return watched.result()


def _watched(future: Future[T]) -> asyncio.Future[T]:
    """Follow a thread's future from the loop, without a complaint if nobody asks how it ended."""
    watched = asyncio.wrap_future(future)
    watched.add_done_callback(lambda done: done.cancelled() or done.exception())
    return watched


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one of its name; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _touch(connection: sqlite3.Connection) -> None:
    """Write a page without changing anything."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {version}")


def _begin(connection: sqlite3.Connection, job: _Job[Any]) -> None:
    """Take the file's write lock, which another process may hold, unless the work is stopped."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
        else:
            return
        if job.stopped:
            raise StoppedError


def _prepare(path: Path | None) -> sqlite3.Connection:
    """Open the writer's connection and bring the file into shape."""
    try:
        if path is not None:
            _claim(path)
        connection = _connect(path)
        try:
            if path is not None:
                _use_write_ahead_log(connection)
            migrate(connection)
            connection.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
        except BaseException:
            connection.close()
            raise
    except (OSError, sqlite3.Error) as error:
        known = trouble_of(error)
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise StoreError(
            f"the memory file {path} can't be used: {reason}",
            hint=known.remedy if known else "check its folder and its rights",
        ) from error
    return connection


def _claim(path: Path) -> None:
    """Make sure that the file, and what SQLite puts beside it, is for its owner only.

    SQLite gives the log and the index of it the mode of the file itself.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        with suppress(FileNotFoundError):
            each.chmod(0o600)


def _connect(path: Path | None) -> sqlite3.Connection:
    # Never makes a file: one that was taken away must not come back empty and open to all.
    name = ":memory:" if path is None else f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(
        name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )
    try:
        for pragma in ("secure_delete = ON", "cache_size = -16384", "temp_store = MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the log on. Unlike all else this doesn't wait for another process by itself."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(_REPEAT_SECONDS)
    # In WAL mode this loses no consistency: at worst the last writes before a power cut.
    connection.execute("PRAGMA synchronous = NORMAL")
    # What an import left behind is given back.
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")


def _is_busy(error: sqlite3.OperationalError) -> bool:
    """Tell that another process is in the way from everything that waiting won't help."""
    return error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _wipe(connection: sqlite3.Connection) -> bool:
    deadline = time.monotonic() + BUSY_SECONDS
    # What VACUUM copies is what remains, and may be larger than memory.
    connection.execute("PRAGMA temp_store = FILE")
    try:
        while time.monotonic() < deadline:
            try:
                connection.execute("VACUUM")
                (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.OperationalError as error:
                busy = _is_busy(error)
                if not busy:
                    raise
            if not busy:
                return True
        return False
    finally:
        connection.execute("PRAGMA temp_store = MEMORY")
