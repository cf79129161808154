"""Two processes, many threads, one file."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from recall.entries import Scope
from recall.search import find
from recall.store import Store
from recall.tool import RecallInput

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_790_000_000.0
TEXTS = 25


def write_many(path: Path, writer: int) -> int:
    with Store.open(path) as store:
        ids = [
            store.add_text("t", "p", f"s{number % 3}", f"text {number} by {writer}", NOW)
            for number in range(TEXTS)
        ]
    return sum(map(len, ids))


def search_many(store: Store) -> int:
    wanted, scope = RecallInput("text", limit=20), Scope("t", "p", "s1")
    found = [
        store.database.read(lambda connection: find(connection, scope, wanted, now=NOW))
        for _ in range(TEXTS)
    ]
    return len(found[-1].entries)


def test_processes_write_and_search_one_file(path: Path) -> None:
    with (
        Store.open(path) as store,
        ThreadPoolExecutor(2) as searching,
        multiprocessing.get_context("spawn").Pool(2) as writing,
    ):
        searches = [searching.submit(search_many, store) for _ in range(2)]
        written = writing.starmap(write_many, [(path, 1), (path, 2)])
        mine = write_many(path, 3)
        assert [*written, mine] == [TEXTS] * 3
        assert all(search.result() >= 0 for search in searches)
        writing.close()
        writing.join()
        entries = store.list("t", 1_000)
        assert len(entries) == len({entry.id for entry in entries}) == 3 * TEXTS
        assert len({(entry.session, entry.position) for entry in entries}) == 3 * TEXTS
        assert search_many(store) == 20
        assert store.integrity() == []
