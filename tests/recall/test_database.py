from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from recall.database import BUSY_SECONDS, Database, StoppedError
from recall.migrations import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from recall.store import Store

pytestmark = pytest.mark.anyio
ENDLESS = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


class Endless:
    """Work that only an interrupt ends, and that tells when it has begun."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.ended = threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> object:
        self.begun.set()
        try:
            return connection.execute(ENDLESS).fetchone()
        finally:
            self.ended.set()


class EndlessBetween(Endless):
    """Work of statements that are each too short to be interrupted."""

    def __call__(self, connection: sqlite3.Connection) -> object:
        self.begun.set()
        try:
            while True:
                connection.execute("SELECT 1").fetchone()
        finally:
            self.ended.set()


async def begun(work: Endless) -> None:
    await asyncio.to_thread(work.begun.wait)


def one(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT 1").fetchone()[0])


@pytest.mark.parametrize("kind", [Endless, EndlessBetween])
async def test_cancelling_a_read_ends_it_before_the_call_returns(
    store: Store, kind: type[Endless]
) -> None:
    work = kind()
    task = asyncio.create_task(store.database.read_async(work))
    await begun(work)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.ended.is_set()
    assert await store.database.read_async(one) == 1


async def test_a_read_that_waits_in_line_is_cancelled_too(store: Store) -> None:
    blockers = [Endless() for _ in range(4)]
    tasks = [asyncio.create_task(store.database.read_async(each)) for each in blockers]
    await begun(blockers[0])
    waiting = Endless()
    task = asyncio.create_task(store.database.read_async(waiting))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await store.database.read_async(one) == 1


async def test_a_second_cancellation_leaves_nothing_either(store: Store) -> None:
    work = Endless()
    task = asyncio.create_task(store.database.read_async(work))
    await begun(work)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.ended.is_set()


async def test_a_read_ends_at_its_deadline(store: Store) -> None:
    work = Endless()
    with pytest.raises(StoppedError):
        await store.database.read_async(work, seconds=0.01)
    assert work.ended.is_set()


async def test_cancelling_a_write_rolls_it_back(store: Store) -> None:
    endless = Endless()

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO tenant (name) VALUES ('half')")
        endless(connection)

    task = asyncio.create_task(store.database.write_async(work))
    await begun(endless)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.database.read_async(tenants) == []


async def test_a_failing_write_is_rolled_back(store: Store) -> None:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO tenant (name) VALUES ('half')")
        raise LookupError

    with pytest.raises(LookupError):
        await store.database.write_async(work)
    assert await store.database.read_async(tenants) == []


async def test_a_lasting_write_goes_on_without_its_caller(store: Store) -> None:
    entered, release = threading.Event(), threading.Event()

    def work(connection: sqlite3.Connection) -> None:
        entered.set()
        release.wait()
        connection.execute("INSERT INTO tenant (name) VALUES ('kept')")

    task = asyncio.create_task(store.database.write_async(work, lasting=True))
    await asyncio.to_thread(entered.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert await store.database.write_async(tenants) == ["kept"]


async def test_a_read_sees_one_state_of_the_file(path: Path) -> None:
    database = Database(path)
    counted, written = threading.Event(), threading.Event()

    def twice(connection: sqlite3.Connection) -> tuple[int, int]:
        first = len(tenants(connection))
        counted.set()
        written.wait()
        return first, len(tenants(connection))

    reading = asyncio.create_task(database.read_async(twice))
    await asyncio.to_thread(counted.wait)
    await database.write_async(lambda connection: insert(connection, "new"))
    written.set()
    assert await reading == (0, 0)
    assert await database.read_async(tenants) == ["new"]
    database.close()


def test_a_reader_can_not_write(path: Path) -> None:
    with closing(Database(path)) as database, pytest.raises(sqlite3.OperationalError):
        database.read(lambda connection: insert(connection, "x"))


def test_all_files_are_for_their_owner_only(path: Path) -> None:
    with closing(Database(path)) as database:
        database.write(lambda connection: insert(connection, "x"))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(("memory.db", "memory.db-wal", "memory.db-shm"), 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_an_open_file_of_ours_is_closed_to_others(path: Path) -> None:
    Database(path).close()
    path.chmod(0o644)
    Database(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_umask_does_not_matter(path: Path) -> None:
    previous = os.umask(0)
    try:
        test_all_files_are_for_their_owner_only(path)
    finally:
        os.umask(previous)


def test_a_path_of_any_characters(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory#%41 名" / "m.db"
    with closing(Database(path)) as database:
        database.write(lambda connection: insert(connection, "x"))
        assert database.read(tenants) == ["x"]
    assert path.is_file()


def test_a_file_that_was_taken_away_does_not_come_back_empty(path: Path) -> None:
    with closing(Database(path)) as database:
        path.unlink()
        with pytest.raises(sqlite3.OperationalError, match="unable to open"):
            database.read(one)
        assert not path.exists()


async def test_another_writer_is_waited_for(path: Path) -> None:
    database = Database(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        task = asyncio.create_task(database.write_async(lambda each: insert(each, "ours")))
        await asyncio.sleep(0)
        insert(other, "theirs")
        other.execute("COMMIT")
        await task
    assert await database.read_async(tenants) == ["theirs", "ours"]
    database.close()


async def test_waiting_for_another_writer_can_be_cancelled(path: Path) -> None:
    database = Database(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        task = asyncio.create_task(database.write_async(lambda each: insert(each, "ours")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        other.execute("COMMIT")
    assert await database.read_async(tenants) == []
    database.close()


def test_a_writer_that_never_ends_is_not_waited_for_forever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BUSY_SECONDS == 5.0
    monkeypatch.setattr("recall.database.BUSY_SECONDS", 0.01)
    with (
        closing(Database(path)) as database,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            database.write(lambda connection: insert(connection, "ours"))


async def test_closing_stops_reads_and_finishes_writes(path: Path) -> None:
    database = Database(path)
    work = Endless()
    reading = asyncio.create_task(database.read_async(work))
    await begun(work)
    writing = asyncio.create_task(database.write_async(lambda each: insert(each, "kept")))
    await asyncio.sleep(0)
    await asyncio.to_thread(database.close)
    with pytest.raises(StoppedError):
        await reading
    await writing
    database.close()
    with pytest.raises(StoreError, match="closed"):
        await database.read_async(one)
    with closing(sqlite3.connect(path)) as connection:
        assert tenants(connection) == ["kept"]


def insert(connection: sqlite3.Connection, name: str) -> None:
    connection.execute("INSERT INTO tenant (name) VALUES (?)", (name,))


def tenants(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT name FROM tenant ORDER BY id")]
