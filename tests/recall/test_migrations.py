from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from recall.migrations import APPLICATION, MIGRATIONS, StoreError, migrate
from recall.store import Store
from recall.trouble import DAMAGED

if TYPE_CHECKING:
    from pathlib import Path


def pragma(path: Path, text: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute(f"PRAGMA {text}").fetchone()
        connection.commit()
        return int(row[0]) if row else 0


def test_steps_are_numbered_without_a_gap() -> None:
    numbers = [int(step.__name__[1:4]) for step in MIGRATIONS]
    assert numbers == list(range(1, len(MIGRATIONS) + 1))


def test_a_new_file_has_seen_all_steps(path: Path) -> None:
    Store.open(path).close()
    assert pragma(path, "user_version") == len(MIGRATIONS)
    assert pragma(path, "application_id") == APPLICATION


def test_an_older_file_is_brought_forward(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        MIGRATIONS[0](connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute("PRAGMA user_version = 1")
    with Store.open(path) as store:
        store.add_text("t", "p", "s", "kept", 0)
    assert pragma(path, "user_version") == len(MIGRATIONS)


def test_a_newer_file_is_refused_untouched(path: Path) -> None:
    with Store.open(path) as store:
        store.add_text("t", "p", "s", "kept", 0)
    pragma(path, f"user_version = {len(MIGRATIONS) + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"has version 3, .* up to 2$") as caught:
        Store.open(path)
    assert caught.value.hint == "upgrade sottovoce, or choose another state directory"
    assert path.read_bytes() == before


def test_another_programs_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(StoreError, match="another program"):
        Store.open(path)


def test_what_is_no_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database, and longer than a header of one: " * 10)
    with pytest.raises(StoreError, match="can't be used: file is not a database") as caught:
        Store.open(path)
    assert caught.value.hint == DAMAGED.remedy
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match=r"can't be used: .*directory"):
        Store.open(path)


def test_a_failing_step_leaves_the_file_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def m002_fails(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half (x)")
        raise sqlite3.OperationalError("no room")

    monkeypatch.setattr("recall.migrations.MIGRATIONS", (MIGRATIONS[0], m002_fails))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        with pytest.raises(sqlite3.OperationalError, match="no room"):
            migrate(connection)
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
        assert connection.execute("PRAGMA user_version").fetchone() == (0,)


def test_another_process_may_finish_while_one_looks_at_the_file(path: Path) -> None:
    """What is seen of a file is of one moment: not the mark of before and the tables of after."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")

        class Slow(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                if "sqlite_master" in sql and not other.in_transaction:
                    migrate(other)
                return super().execute(sql, *values)

        with closing(sqlite3.connect(path, isolation_level=None, factory=Slow)) as slow:
            migrate(slow)
            assert slow.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_many_may_open_a_new_file_at_once(path: Path) -> None:
    together = threading.Barrier(6)

    def open_and_add(number: int) -> int:
        together.wait()
        with Store.open(path) as store:
            return len(store.add_text("t", "p", f"s{number}", "hello", 0))

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(open_and_add, range(6))) == [1] * 6
    with Store.open(path) as store:
        assert store.count("t") == 6
        assert store.integrity() == []
