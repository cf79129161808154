from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from recall.store import Store
from recall.trouble import DAMAGED, LOCKED, READ_ONLY, REMOVED, Trouble, trouble_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "memory.db") as store:
        store.add_text("t", "p", "s", "a fact", 0)
        yield store


def told(store: Store) -> list[tuple[Trouble | None, bool]]:
    """Return the list into which the store tells its troubles."""
    news: list[tuple[Trouble | None, bool]] = []
    store.database.health.on_change = lambda trouble, wrote: news.append((trouble, wrote))
    return news


def switch(store: Store, pragma: str) -> None:
    """Set something on the connection that writes, from its own thread."""
    store.database._write_pool.submit(store.database._writer.execute, pragma).result()


def fails(work: Callable[[], object]) -> sqlite3.Error:
    with pytest.raises(sqlite3.Error) as caught:
        work()
    return caught.value


def add(store: Store) -> Callable[[], object]:
    return lambda: store.add_text("t", "p", "s", "another fact", 1)


async def test_all_is_well_without_a_write(opened: Store) -> None:
    path = opened.database.path
    assert path is not None
    log = path.with_name(f"{path.name}-wal")
    before = log.read_bytes()
    assert await opened.database.condition() is None
    assert log.read_bytes() == before


async def test_a_write_that_fails_is_known_until_one_works(opened: Store) -> None:
    news = told(opened)
    switch(opened, "PRAGMA query_only = ON")
    for _ in range(3):
        fails(add(opened))
        assert await opened.database.condition() == READ_ONLY
    assert news == [(READ_ONLY, True)]
    switch(opened, "PRAGMA query_only = OFF")
    # Nobody writes meanwhile, and yet it is found out.
    assert await opened.database.condition() is None
    assert news == [(READ_ONLY, True), (None, True)]


async def test_a_lock_of_another_process_is_told_as_such(
    opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recall.database.BUSY_SECONDS", 0)
    with closing(sqlite3.connect(opened.database.path or "", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        fails(add(opened))
        assert await opened.database.condition() == LOCKED
        other.execute("ROLLBACK")
    assert await opened.database.condition() is None


async def test_damage_lasts_until_the_same_work_is_done(opened: Store) -> None:
    news = told(opened)

    def search(connection: sqlite3.Connection) -> list[tuple[int]]:
        return connection.execute("SELECT rowid FROM words WHERE words MATCH 'fact'").fetchall()

    whole = opened.database.read(
        lambda connection: connection.execute("SELECT id, block FROM words_data").fetchall()
    )
    opened.database.write(
        lambda connection: (
            connection.execute("UPDATE words_data SET block = x'ff00ff' WHERE id > 1000").rowcount
        )
    )
    assert trouble_of(fails(lambda: opened.database.read(search))) == DAMAGED
    assert await opened.database.condition() == DAMAGED
    opened.database.write(lambda connection: connection.execute("SELECT 1").fetchone())
    assert await opened.database.condition() == DAMAGED
    assert news == [(DAMAGED, False)]
    opened.database.write(
        lambda connection: (
            connection.executemany("UPDATE words_data SET block = ?2 WHERE id = ?1", whole).rowcount
        )
    )
    opened.database.read(search)
    assert await opened.database.condition() is None
    assert news[1:] == [(None, False)]


async def test_a_file_that_was_taken_away_is_missed(opened: Store, tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    path.rename(tmp_path / "elsewhere")
    assert await opened.database.condition() == REMOVED
    (tmp_path / "elsewhere").rename(path)
    assert await opened.database.condition() is None


async def test_errors_of_ours_are_no_trouble_of_the_file(opened: Store) -> None:
    error = fails(lambda: opened.database.write(lambda connection: connection.execute("NONSENSE")))
    assert trouble_of(error) is None
    assert trouble_of(ValueError()) is None
    assert await opened.database.condition() is None


async def test_a_memory_without_a_file_has_no_trouble() -> None:
    with Store.open(None) as store:
        assert await store.database.condition() is None
