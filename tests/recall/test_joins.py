"""Join records are found from the moment they are given, whatever the file is up to."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest

import recall.joins
from pipeline.history import HiddenGroup, hidden_slot
from recall.joins import Join, Joins
from recall.ledger import ResponseIds, find_groups, find_response_id
from recall.migrations import StoreError
from recall.store import Store
from tests.recall.test_ledger import NOW, call, group, keys_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

BOUND = 30.0


def join(call_id: str, output: str = "nothing", tenant: str = "t", **members: Any) -> Join:
    behind = ResponseIds((f"resp_{call_id}",))
    return Join(tenant, "s", left(call_id, output), f"resp_{call_id}", behind, NOW, **members)


def left(call_id: str, output: str = "nothing") -> HiddenGroup:
    return group(call_id, f"the answer after {call_id}", output)


def asked_for(*call_ids: str) -> list[str]:
    return [key for each in call_ids for key in keys_for(each, text=f"the answer after {each}")]


class Disk:
    """Stands between the records and their file: it may hold them up, or fail."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.fails = 0
        self.tries = 0

    async def save_group(self, *arguments: Any, **options: Any) -> bool:
        self.tries += 1
        await self.open.wait()
        if self.fails:
            self.fails -= 1
            raise sqlite3.OperationalError("database is locked")
        return await _save_group(*arguments, **options)


_save_group = recall.joins.save_group


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(recall.joins, "save_group", made.save_group)
    return made


@pytest.fixture
def lost() -> list[None]:
    return []


@pytest.fixture
async def joins(store: Store, lost: list[None]) -> AsyncIterator[Joins]:
    made = Joins(store, lost=lambda: lost.append(None), unreadable=_raise, pause=0.01)
    yield made
    await made.close(BOUND)


def _raise(error: Exception) -> None:
    raise error


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():  # noqa: ASYNC110 - many small steps may lead there
            await asyncio.sleep(0)


async def test_found_before_while_and_after_it_is_written(
    joins: Joins, store: Store, disk: Disk
) -> None:
    disk.open.clear()
    saving = asyncio.create_task(joins.save(join("c1")))
    await until(lambda: len(joins) == 1)
    assert await joins.find_groups("t", asked_for("c1")) == [left("c1")]
    await until(lambda: disk.tries == 1)
    assert not saving.done()
    assert await joins.find_groups("t", asked_for("c1")) == [left("c1")]
    assert await joins.find_groups("u", asked_for("c1")) == []
    assert await joins.find_groups("t", asked_for("c2")) == []
    found = await joins.find_response_id("t", "resp_c1")
    assert found == ResponseIds(("resp_c1",))
    assert await joins.find_response_id("u", "resp_c1") is None
    disk.open.set()
    await saving
    assert len(joins) == 0
    assert await joins.find_groups("t", asked_for("c1")) == [left("c1")]
    assert await find_groups(store, "t", asked_for("c1")) == [left("c1")]
    assert await find_response_id(store, "t", "resp_c1") == found


async def test_a_write_that_fails_is_made_up_for(
    joins: Joins, store: Store, disk: Disk, lost: list[None]
) -> None:
    disk.fails = 3
    with pytest.raises(sqlite3.OperationalError):
        await joins.save(join("c1"))
    assert await joins.find_groups("t", asked_for("c1")) == [left("c1")]
    await until(lambda: len(joins) == 0)
    assert await find_groups(store, "t", asked_for("c1")) == [left("c1")]
    assert disk.tries == 4
    assert not lost


async def test_what_is_given_meanwhile_does_not_wait(
    joins: Joins, store: Store, disk: Disk
) -> None:
    joins._pause = BOUND
    disk.fails = 1
    with pytest.raises(sqlite3.OperationalError):
        await joins.save(join("c1"))
    await joins.save(join("c2"))
    await until(lambda: len(joins) == 0)  # and takes the other along
    assert len(await find_groups(store, "t", asked_for("c1", "c2"))) == 2


async def test_a_caller_who_leaves_takes_nothing_along(
    joins: Joins, store: Store, disk: Disk
) -> None:
    disk.open.clear()
    saving = asyncio.create_task(joins.save(join("c1")))
    await until(lambda: disk.tries == 1)
    saving.cancel()
    with suppress(asyncio.CancelledError):
        await saving
    disk.open.set()
    await until(lambda: len(joins) == 0)
    assert await find_groups(store, "t", asked_for("c1")) == [left("c1")]


@pytest.mark.parametrize("fails", [0, 1])
async def test_the_later_record_of_a_turn_replaces_the_earlier(
    joins: Joins, store: Store, disk: Disk, fails: int
) -> None:
    disk.fails = fails
    with suppress(sqlite3.OperationalError):
        await joins.save(join("c1", "interrupted"))
    await joins.save(join("c1", "found"))
    await until(lambda: len(joins) == 0)
    expected = [left("c1", "found")]
    assert await joins.find_groups("t", asked_for("c1")) == expected
    assert await find_groups(store, "t", asked_for("c1")) == expected


async def test_what_waits_is_bounded(store: Store, disk: Disk, lost: list[None]) -> None:
    size = join("c1").size
    joins = Joins(
        store,
        lost=lambda: lost.append(None),
        unreadable=_raise,
        most_bytes=3 * size,
        pause=BOUND,
    )
    disk.open.clear()
    saving = [asyncio.create_task(joins.save(join(f"c{n}"))) for n in range(5)]
    await until(lambda: len(lost) == 2)
    assert len(joins) == 3
    assert await joins.find_groups("t", asked_for("c0", "c1")) == []
    assert len(await joins.find_groups("t", asked_for("c2", "c3", "c4"))) == 3
    disk.open.set()
    ends = await asyncio.gather(*saving, return_exceptions=True)
    assert [type(end) for end in ends] == [StoreError, StoreError, *[type(None)] * 3]
    await joins.close(BOUND)
    assert len(await find_groups(store, "t", asked_for("c2", "c3", "c4"))) == 3


async def test_what_is_left_at_the_end_is_tried_once_more(
    store: Store, disk: Disk, lost: list[None]
) -> None:
    joins = Joins(store, lost=lambda: lost.append(None), unreadable=_raise, pause=BOUND)
    disk.fails = 1
    with pytest.raises(sqlite3.OperationalError):
        await joins.save(join("c1"))
    await joins.close(BOUND)
    assert await find_groups(store, "t", asked_for("c1"))
    disk.fails = 9
    with pytest.raises(sqlite3.OperationalError):
        await joins.save(join("c2"))
    await joins.close(BOUND)
    assert len(joins) == 0
    assert len(lost) == 1


async def test_a_write_that_never_ends_does_not_hold_up_the_end(
    store: Store, disk: Disk, lost: list[None]
) -> None:
    joins = Joins(store, lost=lambda: lost.append(None), unreadable=_raise)
    disk.open.clear()
    saving = asyncio.create_task(joins.save(join("c1")))
    await until(lambda: disk.tries == 1)
    await joins.close(0.01)
    with pytest.raises(StoreError):
        await saving
    assert len(lost) == 1


async def test_what_must_not_be_stored_is_not(joins: Joins, store: Store) -> None:
    await joins.save(join("c1", lasting=False))
    assert await joins.find_groups("t", asked_for("c1")) == [left("c1")]
    if store.database.path is not None:
        assert b"msg_c1" not in store.database.path.read_bytes()


async def test_a_turn_with_nothing_but_an_id(joins: Joins, store: Store) -> None:
    await joins.save(Join("t", "s", None, "resp_1", ResponseIds(("resp_1", "resp_2")), NOW))
    assert await find_response_id(store, "t", "resp_1") == ResponseIds(("resp_1", "resp_2"))
    await joins.save(Join("t", "s", HiddenGroup((hidden_slot(call("c9")[0]),), ()), "", None, NOW))


async def test_a_memory_that_can_not_be_read_has_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, disk: Disk
) -> None:
    errors: list[Exception] = []
    joins = Joins(store, lost=lambda: None, unreadable=errors.append, pause=BOUND)
    disk.fails = 1
    with pytest.raises(sqlite3.OperationalError):
        await joins.save(join("c1"))

    async def broken(*_: object) -> None:
        raise sqlite3.DatabaseError("the file is no database")

    monkeypatch.setattr(recall.joins, "find_groups", broken)
    monkeypatch.setattr(recall.joins, "find_response_id", broken)
    assert await joins.find_groups("t", asked_for("c1", "c2")) == [left("c1")]
    assert await joins.find_response_id("t", "resp_2") is None
    assert [type(error) for error in errors] == [sqlite3.DatabaseError] * 2
    await joins.close(BOUND)


@pytest.fixture
def locked(path: Path) -> Iterator[Callable[[], sqlite3.Connection]]:
    """Lock the file as another process would."""
    opened: list[sqlite3.Connection] = []

    def lock() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        opened.append(connection)
        return connection

    yield lock
    for connection in opened:
        connection.close()


async def test_a_file_that_another_process_holds(
    path: Path,
    locked: Callable[[], sqlite3.Connection],
    monkeypatch: pytest.MonkeyPatch,
    lost: list[None],
) -> None:
    monkeypatch.setattr("recall.database.BUSY_SECONDS", 0.1)
    with closing(Store.open(path)) as store:
        joins = Joins(store, lost=lambda: lost.append(None), unreadable=_raise, pause=0.01)
        holder = locked()
        with pytest.raises(sqlite3.OperationalError):
            await joins.save(join("c1"))
        assert await joins.find_groups("t", asked_for("c1")) == [left("c1")]
        holder.execute("ROLLBACK")
        await until(lambda: len(joins) == 0)
        await joins.close(BOUND)
    with closing(Store.open(path)) as store:
        assert await find_groups(store, "t", asked_for("c1")) == [left("c1")]
    assert not lost
