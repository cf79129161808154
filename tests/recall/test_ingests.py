"""Turns that end close together are written together, and none costs another one anything."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from recall import ingests
from recall.entries import Scope
from recall.ingest import Told, ingest_turns
from recall.ingests import GROUP, Ingests
from recall.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.anyio

BOUND = 30.0
NOW = 1_790_000_000.0


def told(*texts: str, session: str = "s") -> Told:
    body = {"input": [{"role": "user", "content": text} for text in texts]}
    return Told(Scope("t", "p", session), body, [], NOW)


class Lab:
    """The turns of a process, and what was said of them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.stored: list[int] = []
        self.failed: list[Exception | None] = []
        self.ingests = Ingests(
            store, stored=self.stored.append, failed=self.failed.append, linger=0
        )

    def texts(self) -> list[str]:
        return sorted(entry.text for entry in self.store.list("t", 10_000))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Store.open(tmp_path / "memory.db") as store:
        yield Lab(store)


def refuse(monkeypatch: pytest.MonkeyPatch, word: str, error: Exception) -> None:
    """Let every turn fail that says a word."""

    def refusing(connection: sqlite3.Connection, pieces: Any, turns: Sequence[Told]) -> int:
        stored = ingest_turns(connection, pieces, turns)
        if any(word in item["content"] for one in turns for item in one.body["input"]):
            raise error
        return stored

    monkeypatch.setattr(ingests, "ingest_turns", refusing)


async def test_turns_that_come_together_are_one_transaction(lab: Lab) -> None:
    commits: list[str] = []
    lab.store.database.write(lambda connection: connection.set_trace_callback(commits.append))
    for number in range(GROUP):
        lab.ingests.put(told("hello", f"number {number}", session=f"s{number % 3}"))
    await lab.ingests.close(BOUND)
    assert lab.stored == [GROUP + 3]
    assert lab.failed == []
    assert lab.store.count("t") == GROUP + 3
    assert commits.count("COMMIT") == 2  # that of the trace, and theirs


async def test_many_turns_are_all_stored_in_order(lab: Lab) -> None:
    for number in range(3 * GROUP + 1):
        lab.ingests.put(told(f"number {number}"))
        await asyncio.sleep(0)
    await lab.ingests.close(BOUND)
    assert sum(lab.stored) == 3 * GROUP + 1
    texts = [entry.text for entry in lab.store.list("t", 1000)[::-1]]
    assert texts == [f"number {number}" for number in range(3 * GROUP + 1)]


async def test_a_turn_that_fails_takes_no_other_with_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ValueError("a defect")
    refuse(monkeypatch, "bad", error)
    for text in ("one", "bad", "two", "bad too", "three"):
        lab.ingests.put(told(text, session=text))
    await lab.ingests.close(BOUND)
    assert lab.failed == [error, error]
    assert lab.texts() == ["one", "three", "two"]
    assert sum(lab.stored) == 3


async def test_one_that_fails_alone_is_tried_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ValueError("a defect")
    refuse(monkeypatch, "bad", error)
    lab.ingests.put(told("bad"))
    await lab.ingests.close(BOUND)
    assert lab.failed == [error]
    lab.ingests.put(told("good"))
    await lab.ingests.close(BOUND)
    assert lab.texts() == ["good"]


async def test_what_can_not_be_written_in_time_is_rolled_back(lab: Lab, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "memory.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for number in range(2 * GROUP):
            lab.ingests.put(told(f"number {number}"))
        await lab.ingests.close(0.05)
        other.execute("ROLLBACK")
    assert len(lab.ingests) == 0
    assert lab.stored == []
    assert lab.store.count() == 0


async def test_what_waits_is_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingests, "WAITING", 3)
    for number in range(5):
        lab.ingests.put(told(f"number {number}"))
    assert len(lab.ingests) == 3
    assert lab.failed == [None, None]
    await lab.ingests.close(BOUND)
    assert lab.texts() == ["number 2", "number 3", "number 4"]
    assert repr(lab.ingests) == "<Ingests 0 waiting, 0 bytes>"


async def test_what_waits_is_bounded_in_bytes_as_well(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingests, "WAITING_BYTES", 10)
    for number, size in enumerate((4, 4, 4, 100)):
        lab.ingests.put(told(f"number {number}")._replace(size=size))
    assert repr(lab.ingests) == "<Ingests 1 waiting, 100 bytes>"
    assert lab.failed == [None] * 3
    await lab.ingests.close(BOUND)
    assert lab.texts() == ["number 3"]  # one alone may be of any size


async def test_who_looks_for_what_was_said_waits_for_it(lab: Lab) -> None:
    patient = Ingests(lab.store, stored=lab.stored.append, failed=lab.failed.append, linger=BOUND)
    await patient.settle(BOUND)  # nothing is on its way
    patient.put(told("one"))
    await patient.settle(BOUND)
    assert lab.texts() == ["one"]
    patient.put(told("two"))
    await patient.close(BOUND)
    assert lab.texts() == ["one", "two"]
    await patient.settle(BOUND)


async def test_who_waits_for_turns_does_not_wait_for_later_ones(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = asyncio.Event()

    async def writing(group: Sequence[Told]) -> int:
        if 1 in {one.size for one in group}:
            await held.wait()
        return len(group)

    monkeypatch.setattr(lab.ingests, "_write", writing)
    lab.ingests.put(told("one"))
    waiting = asyncio.create_task(lab.ingests.settle(BOUND))
    await asyncio.sleep(0)
    for number in range(2 * GROUP):
        lab.ingests.put(told(f"later {number}")._replace(size=int(number >= GROUP)))
    await waiting
    assert lab.stored
    assert len(lab.ingests) > 0
    await lab.ingests.settle(0.01)  # not longer than it was told to
    held.set()
    await lab.ingests.close(BOUND)
    assert sum(lab.stored) == 2 * GROUP + 1


async def test_who_waits_for_what_is_given_up_is_told(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingests, "WAITING", 1)
    lab.ingests.put(told("one"))
    waiting = asyncio.create_task(lab.ingests.settle(BOUND))
    await asyncio.sleep(0)
    lab.ingests.put(told("two"))
    await waiting
    assert lab.failed == [None]
    await lab.ingests.close(BOUND)


async def test_what_is_wrong_with_the_file_is_not_tried_for_each_turn(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    locked = sqlite3.OperationalError("database is locked")
    locked.sqlite_errorcode = sqlite3.SQLITE_BUSY

    async def writing(group: Sequence[Told]) -> int:
        tried.append(len(group))
        raise locked

    monkeypatch.setattr(lab.ingests, "_write", writing)
    for number in range(3):
        lab.ingests.put(told(f"number {number}"))
    await lab.ingests.close(BOUND)
    assert tried == [3]
    assert lab.failed == [locked] * 3
