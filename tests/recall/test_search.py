from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.entries import Draft, Entry, Scope, add
from recall.render import Order
from recall.search import CANDIDATES, find, run_recall, search
from recall.store import Store
from recall.tool import RecallInput, RecallResult, Within

if TYPE_CHECKING:
    from recall.render import Found

pytestmark = pytest.mark.anyio

NOW = 1_790_000_000.0
DAY = 86_400.0
HERE = Scope("t", "p", "s")
WORDS = ["parser", "lexer", "migration", "sqlite", "photograph", "数据库连接", "café", "7688"]
SENTENCES = st.lists(st.sampled_from([*WORDS, "the", "and", "🙂"]), min_size=1, max_size=6).map(
    " ".join
)
QUERIES = SENTENCES | st.text(max_size=80) | st.text(alphabet='"*()^:+-{}NEAROTD ab数据🙂\x00')
STORED = st.lists(
    st.tuples(
        st.sampled_from(["t", "u"]),
        st.sampled_from(["p", "q"]),
        st.sampled_from(["s", "r"]),
        SENTENCES,
    ),
    max_size=25,
)


def remember(store: Store, text: str, scope: Scope = HERE, *, age: float = DAY) -> str:
    ids = store.add_text(scope.tenant, scope.project, scope.session, text, NOW - age)
    return ids[0]


def fill(store: Store, scope: Scope, word: str) -> None:
    drafts = [Draft(f"{word} {number}", "user") for number in range(2 * CANDIDATES)]
    store.database.write(lambda connection: add(connection, scope, drafts, NOW))


def look(store: Store, wanted: RecallInput, scope: Scope = HERE) -> Found:
    return store.database.read(lambda connection: find(connection, scope, wanted, now=NOW))


def texts(store: Store, query: str, within: Within = Within.ALL, scope: Scope = HERE) -> list[str]:
    found = look(store, RecallInput(query, within, limit=20), scope)
    return [entry.text for entry in found.entries]


async def call(store: Store, scope: Scope = HERE, **arguments: object) -> RecallResult:
    return await run_recall(store, scope, json.dumps(arguments), now=NOW, anchor=False)


def test_the_entry_with_the_rarer_words_comes_first(store: Store) -> None:
    for number in range(20):
        remember(store, f"the parser again, number {number}", Scope("t", "p", f"s{number}"))
    remember(store, "the parser reads surrogates", Scope("t", "p", "other"))
    assert texts(store, "parser surrogates")[0] == "the parser reads surrogates"


def test_an_answer_is_found_beside_its_question(store: Store) -> None:
    remember(store, "Which port does it listen on?")
    remember(store, "7688, on loopback.")
    remember(store, "unrelated", Scope("t", "p", "elsewhere"))
    assert texts(store, "which port") == ["Which port does it listen on?", "7688, on loopback."]


def test_a_piece_of_a_word_finds_it(store: Store) -> None:
    remember(store, "He studied photography in Rome.")
    assert texts(store, "photographer") == ["He studied photography in Rome."]
    assert texts(store, "otogra") == ["He studied photography in Rome."]
    assert texts(store, "sculptor") == []


def test_a_whole_word_beats_a_piece(store: Store) -> None:
    remember(store, "sqlite is a file", Scope("t", "p", "a"), age=2 * DAY)
    remember(store, "sqliteish things", Scope("t", "p", "b"), age=DAY)
    assert texts(store, "sqlite") == ["sqlite is a file", "sqliteish things"]


def test_what_was_said_on_a_day_is_found_by_the_day(store: Store) -> None:
    remember(store, "we painted the fence", Scope("t", "p", "a"), age=DAY)
    remember(store, "we painted the door", Scope("t", "p", "b"), age=40 * DAY)
    assert texts(store, "what did we paint yesterday")[0] == "we painted the fence"
    assert texts(store, "what happened yesterday") == ["we painted the fence"]


def test_own_project_first(store: Store) -> None:
    remember(store, "the parser is slow", Scope("t", "q", "a"))
    remember(store, "the parser is slow", Scope("t", "p", "b"))
    found = look(store, RecallInput("parser"))
    assert [entry.project for entry in found.entries] == ["p", "q"]


def test_scopes_narrow(store: Store) -> None:
    places = [("p", "s"), ("p", "r"), ("q", "s2")]
    for project, session in places:
        remember(store, f"parser of {project} {session}", Scope("t", project, session))
    assert len(texts(store, "parser")) == 3
    assert set(texts(store, "parser", Within.PROJECT)) == {"parser of p s", "parser of p r"}
    assert texts(store, "parser", Within.SESSION) == ["parser of p s"]
    assert texts(store, "parser", Within.PROJECT, Scope("t", "none", "s")) == []
    assert texts(store, "parser", Within.SESSION, Scope("t", "p", "none")) == []
    assert texts(store, "parser", Within.ALL, Scope("none", "p", "s")) == []


def test_a_neighbour_of_another_project_is_out_of_scope(store: Store) -> None:
    remember(store, "parser question", Scope("t", "p", "s"))
    remember(store, "answer elsewhere", Scope("t", "q", "s"))
    assert texts(store, "parser") == ["parser question", "answer elsewhere"]
    assert texts(store, "parser", Within.PROJECT) == ["parser question"]


def test_others_can_not_crowd_a_tenant_or_a_session_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recall.search.SCORED", 50)
    mine = [remember(store, f"parser parser {n}", Scope("t", "p", "s"), age=DAY) for n in range(5)]
    for tenant, session in (("u", "s"), ("t", "noise")):
        fill(store, Scope(tenant, "q", session), "parser")
    for within in (Within.PROJECT, Within.SESSION):
        found = look(store, RecallInput("parser", within, limit=20))
        assert {entry.id for entry in found.entries} == set(mine)
    found = look(store, RecallInput("parser", limit=20))
    assert len(found.entries) == 20
    assert found.more


def test_pages_follow_each_other(store: Store) -> None:
    for number in range(9):
        remember(store, f"parser {number}", Scope("t", "p", f"s{number}"))
    pages = [look(store, RecallInput("parser", offset=offset, limit=4)) for offset in (0, 4, 8, 12)]
    assert [len(page.entries) for page in pages] == [4, 4, 1, 0]
    assert [page.more for page in pages] == [True, True, False, False]
    assert len({entry.id for page in pages for entry in page.entries}) == 9


@pytest.mark.parametrize("within", list(Within))
def test_a_query_without_words_gets_the_newest(store: Store, within: Within) -> None:
    for number in range(3):
        remember(store, f"text {number}")
    found = look(store, RecallInput("🙂 !?", within, limit=2))
    assert [entry.text for entry in found.entries] == ["text 2", "text 1"]
    assert found.order is Order.NEWEST
    assert found.more


def test_common_words_alone_find_the_newest_and_those_with_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recall.search.SCORED", 20)
    remember(store, "alpha beta together", Scope("t", "p", "old"))
    for number in range(60):
        remember(store, ("alpha", "beta")[number % 2], Scope("t", "p", f"s{number}"))
    found = texts(store, "alpha beta")
    assert found[0] == "alpha beta together"
    assert len(found) == 20


@given(STORED, QUERIES, st.sampled_from(list(Within)), st.integers(1, 20))
def test_any_query_gets_what_it_asks_for_and_nothing_else(
    stored: list[tuple[str, str, str, str]], query: str, within: Within, limit: int
) -> None:
    with Store.open(None) as store:
        for tenant, project, session, text in stored:
            store.add_text(tenant, project, session, text, NOW)
        found = look(store, RecallInput(query, within, limit=limit))
        mine = store.list("t", 100)
    allowed = {entry.id for entry in mine if in_scope(entry, within)}
    ids = [entry.id for entry in found.entries]
    assert len(ids) == len(set(ids)) <= limit
    assert set(ids) <= allowed
    shared = {entry.id for entry in mine if entry.id in allowed and shares_word(query, entry)}
    assert len(ids) >= min(limit, len(shared))


def in_scope(entry: Entry, within: Within) -> bool:
    match within:
        case Within.ALL:
            return True
        case Within.PROJECT:
            return entry.project == "p"
        case Within.SESSION:
            return entry.session == "s"


def shares_word(query: str, entry: Entry) -> bool:
    return any(word in query.split() and word in entry.text.split() for word in WORDS)


# --------------------------------------------------------------------------------- the hidden call


async def test_a_call_answers_with_marked_data_and_private_coverage(store: Store) -> None:
    id_ = remember(store, "We chose SQLite.")
    result = await call(store, query="sqlite")
    assert "| We chose SQLite." in result.result_text
    assert result.coverage == (id_,)
    assert result.anchor_text is None
    assert result.commit is None
    assert result.rollback is None


async def test_an_anchor_says_nothing_of_what_was_found(store: Store) -> None:
    remember(store, "We chose SQLite.")
    result = await run_recall(store, HERE, '{"query":"sqlite"}', now=NOW, anchor=True)
    assert result.anchor_text == "Consulted memory."


async def test_entries_are_read_by_id_with_what_is_around(store: Store) -> None:
    for text in ("one", "two", "three"):
        remember(store, text)
    remember(store, "secret", Scope("u", "p", "s"))
    result = await call(store, ids=["m2", "m9", "nonsense"])
    assert "before it: m1 · after it: m3" in result.result_text
    assert "No entry has the id m9, nonsense." in result.result_text
    assert result.coverage == ("m2",)
    assert "secret" not in (await call(store, ids=["m1", "m4"])).result_text


async def test_wrong_arguments_are_answered(store: Store) -> None:
    result = await call(store, query=5)
    assert result.result_text.startswith("recall was not run")
    assert result.coverage == ()


async def test_nothing_found_differs_from_failed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "nothing was found" in (await call(store, query="absent")).result_text

    def fail(*_: object, **__: object) -> None:
        raise sqlite3.DatabaseError("disk image is malformed")

    monkeypatch.setattr("recall.search.find", fail)
    failed = await call(store, query="absent")
    assert failed.result_text.startswith("The memory search failed: the memory could not be read.")
    assert "malformed" not in failed.result_text


async def test_a_closed_memory_is_a_failed_search(store: Store) -> None:
    await store.aclose()
    assert "search failed" in (await call(store, query="x")).result_text


def endless(begun: threading.Event) -> object:
    def work(connection: sqlite3.Connection, *_: object, **__: object) -> None:
        begun.set()
        connection.execute(
            "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
        ).fetchone()

    return work


async def test_a_search_that_takes_too_long_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recall.search.find", endless(threading.Event()))
    monkeypatch.setattr("recall.search.DEADLINE_SECONDS", 0.01)
    failed = await call(store, query="x")
    assert failed.result_text.startswith("The memory search failed: it took too long.")


async def test_cancelling_a_call_interrupts_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    monkeypatch.setattr("recall.search.find", endless(begun))
    monkeypatch.setattr("recall.search.DEADLINE_SECONDS", None)
    task = asyncio.create_task(call(store, query="x"))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    monkeypatch.undo()
    assert (await call(store, query="x")).coverage == ()


async def test_calls_run_beside_each_other(store: Store) -> None:
    remember(store, "We chose SQLite.")
    results = await asyncio.gather(*(call(store, query="sqlite") for _ in range(12)))
    assert len({result.result_text for result in results}) == 1


async def test_search_for_other_callers(store: Store) -> None:
    remember(store, "We chose SQLite.")
    found = await search(store, HERE, RecallInput("sqlite"), now=NOW)
    assert [entry.text for entry in found.entries] == ["We chose SQLite."]


@given(STORED, QUERIES, st.sampled_from(list(Within)))
def test_a_canary_of_another_tenant_is_in_no_result(
    stored: list[tuple[str, str, str, str]], query: str, within: Within
) -> None:
    async def scenario() -> RecallResult:
        store = Store.open(None)
        try:
            for tenant, project, session, text in stored:
                canary = "quetzalcanary " if tenant == "u" else ""
                store.add_text(tenant, project, session, f"{canary}{text}", NOW)
            arguments = {"query": f"{query[:400]} quetzalcanary", "scope": within, "limit": 20}
            return await run_recall(store, HERE, json.dumps(arguments), now=NOW, anchor=False)
        finally:
            await store.aclose()

    assert "quetzalcanary" not in asyncio.run(scenario()).result_text
