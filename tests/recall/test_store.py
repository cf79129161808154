from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.database import Database
from recall.entries import Draft, Reach, Scope, add, entry_id, list_entries, reach_of, rowid_of
from recall.store import Forgotten, Store
from recall.text import ENTRY_CHARS

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

NOW = 1_790_000_000.0


def test_an_entry_knows_where_it_came_from(store: Store) -> None:
    (id_,) = store.add_text("t", "proj", "sess", "We chose SQLite.", NOW)
    entry = store.show("t", id_)
    assert entry is not None
    assert (entry.id, entry.project, entry.session, entry.role) == (id_, "proj", "sess", "user")
    assert (entry.created, entry.position, entry.source) == (int(NOW), 1, "add")
    assert entry.text == "We chose SQLite."
    assert store.show("t", f"[{id_.upper()}]") == entry


def test_ids_are_of_their_tenant(store: Store) -> None:
    (mine,) = store.add_text("a", "p", "s", "mine", NOW)
    (theirs,) = store.add_text("b", "p", "s", "theirs", NOW)
    assert mine == theirs == "m1"
    shown = store.show("a", "m1")
    assert shown is not None
    assert shown.text == "mine"
    assert store.show("a", "m2") is None
    assert store.show("c", "m1") is None
    assert store.show("a", "nonsense") is None


def test_a_session_stores_a_text_once(store: Store) -> None:
    assert store.add_text("t", "p", "s", "hello", NOW) == ["m1"]
    assert store.add_text("t", "p", "s", " hello\r\n", NOW) == []
    assert store.add_text("t", "p", "s", "hello", NOW, role="assistant") == ["m2"]
    assert store.add_text("t", "p", "other", "hello", NOW) == ["m3"]
    assert store.add_text("t", "p", "s", " \x00 ", NOW) == []
    assert store.count("t") == 3


def test_a_batch_is_stored_in_order_and_without_doubles(store: Store) -> None:
    drafts = [Draft("one", "user"), Draft("two", "assistant"), Draft("one", "user")]
    scope = Scope("t", "p", "s")
    ids = store.database.write(lambda connection: add(connection, scope, drafts, NOW))
    assert [(each.text, each.position) for each in reversed(store.list("t", 9))] == [
        ("one", 1),
        ("two", 2),
    ]
    assert ids == ["m1", "m2"]


def test_a_long_text_becomes_several_entries(store: Store) -> None:
    text = " ".join(f"word{number:05}" for number in range(ENTRY_CHARS // 2))
    ids = store.add_text("t", "p", "s", text, NOW)
    assert ids == ["m1", "m2", "m3", "m4", "m5"]
    assert store.list("t", 2, 1)[0].id == "m4"


def test_listing_is_newest_first_and_paged(store: Store) -> None:
    for number in range(5):
        store.add_text("t", "p", "s", f"text {number}", NOW)
    store.add_text("u", "p", "s", "theirs", NOW)
    assert [entry.id for entry in store.list("t", 3)] == ["m5", "m4", "m3"]
    assert [entry.id for entry in store.list("t", 3, 3)] == ["m2", "m1"]
    assert store.list("nobody", 3) == []


def test_counts_and_size(store: Store) -> None:
    assert store.count() == store.count("t") == 0
    store.add_text("t", "p", "s", "one", NOW)
    store.add_text("u", "p", "s", "two", NOW)
    assert (store.count(), store.count("t"), store.count("nobody")) == (2, 1, 0)
    assert store.size_bytes() > 0
    assert store.integrity() == []


def test_integrity_names_an_index_that_lacks_entries(store: Store) -> None:
    store.add_text("t", "p", "s", "one", NOW)
    store.database.write(
        lambda connection: connection.execute(
            "INSERT INTO parts (parts, rowid, body) SELECT 'delete', id, text FROM entry"
        )
    )
    assert store.integrity() == ["index parts: 0 of 1 entries"]


def test_integrity_names_an_index_that_is_damaged(store: Store) -> None:
    store.add_text("t", "p", "s", "one", NOW)
    store.database.write(
        lambda connection: connection.execute("DELETE FROM words_data WHERE id > 10")
    )
    assert any(problem.startswith("index words: ") for problem in store.integrity())


@pytest.mark.parametrize(
    "name", ["", "x" * 5_000, "a\x00b", "\ud83d", "名前", "'; DROP TABLE entry"]
)
def test_any_name_names_a_place(store: Store, name: str) -> None:
    assert store.add_text(name, name, name, "hello", NOW) == ["m1"]
    assert store.add_text(name, name, name, "hello", NOW) == []
    assert store.add_text(f"{name}2", name, name, "hello", NOW) == ["m1"]


@given(st.text())
def test_any_text_can_be_stored_found_and_forgotten(text: str) -> None:
    with Store.open(None) as store:
        ids = store.add_text("t", "p", "s", f"{text} kept", NOW)
        assert [entry.id for entry in store.list("t", 9)] == ids[::-1]
        assert store.forget("t", ids=ids).entries == len(ids)
        assert store.count() == 0
        assert store.integrity() == []


@given(st.integers(1, 2**32 - 1), st.integers(1, 2**30))
def test_an_id_leads_back_to_its_entry(number: int, tenant: int) -> None:
    reach = reach_of(tenant)
    rowid = reach.first - 1 + number
    assert reach.first <= rowid <= reach.last
    assert rowid_of(reach, entry_id(rowid)) == rowid


@given(st.text() | st.from_regex(r"m[0-9a-z]{1,9}"))
def test_no_id_leads_out_of_its_tenant(id_: str) -> None:
    reach = reach_of(7)
    rowid = rowid_of(reach, id_)
    assert rowid is None or reach.first <= rowid <= reach.last
    assert reach_of(8) == Reach(reach.last + 2, reach.last + 2**32)


# ---------------------------------------------------------------------------------- forgetting


def secrets_in(folder: Path, secret: bytes) -> list[str]:
    return [file.name for file in folder.iterdir() if secret in file.read_bytes().lower()]


def test_what_is_forgotten_is_in_no_file(path: Path) -> None:
    with Store.open(path) as store:
        store.add_text("t", "p", "s", "the word is Xyzzyplugh", NOW)
        kept = store.add_text("t", "p", "s", "another text", NOW)
        for number in range(30):
            store.add_text("t", "p", "s", f"filler number {number} xyzzyother", NOW)
        assert secrets_in(path.parent, b"plugh")
        assert store.forget("t", ids=["m1"]) == (1, True)
        assert not secrets_in(path.parent, b"plugh")
        assert store.show("t", *kept) is not None
        assert store.integrity() == []


def test_forgetting_takes_what_satisfies_every_condition(store: Store) -> None:
    for project, session in (("p", "s1"), ("p", "s2"), ("q", "s3")):
        store.add_text("t", project, session, f"text of {session}", NOW)
    store.add_text("u", "p", "s1", "theirs", NOW)
    assert store.forget("t", project="nowhere").entries == 0
    assert store.forget("t", ids=["m1"], session="s2").entries == 0
    assert store.forget("t", session="s2").entries == 1
    assert store.forget("t", project="p").entries == 1
    assert [entry.session for entry in store.list("t", 9)] == ["s3"]
    assert store.forget("t").entries == 1
    assert store.forget("nobody").entries == 0
    assert store.count() == store.count("u") == 1


def test_an_id_is_never_given_twice(store: Store) -> None:
    store.add_text("t", "p", "s", "one", NOW)
    store.forget("t")
    assert store.add_text("t", "p", "s", "one", NOW) == ["m2"]


def test_names_of_what_is_empty_go_too(path: Path) -> None:
    with Store.open(path) as store:
        store.add_text("t", "secretproject", "secretsession", "one", NOW)
        store.add_text("u", "p", "s", "two", NOW)
        store.forget("t")
    assert not secrets_in(path.parent, b"secret")


def test_forgetting_beside_another_reader_says_that_it_is_not_wiped(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recall.database.BUSY_SECONDS", 0.01)
    with Store.open(path) as store, closing(Database(path)) as other:
        store.add_text("t", "p", "s", "one", NOW)

        def forget_while_reading(connection: sqlite3.Connection) -> Forgotten:
            list_entries(connection, "t", 1)
            return store.forget("t")

        assert other.read(forget_while_reading) == Forgotten(1, wiped=False)
        assert store.database.wipe()


# ------------------------------------------------------------------------------- two processes


def test_two_stores_on_one_file_see_each_other(path: Path) -> None:
    with Store.open(path) as one, Store.open(path) as two:
        assert one.add_text("t", "p", "s", "hello from one", NOW) == ["m1"]
        assert two.add_text("t", "p", "s", "hello from one", NOW) == []
        assert two.add_text("t", "p", "s", "hello from two", NOW) == ["m2"]
        assert [entry.position for entry in one.list("t", 9)] == [2, 1]
        assert one.integrity() == two.integrity() == []
