from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.dates import day_of, iso_day, query_days
from recall.terms import (
    STOP_WORDS,
    TERMS,
    expressions,
    index_day,
    index_text,
    query_words,
    substrings,
)

TODAY = 20261130  # a Monday
NOISE = st.text() | st.text(alphabet='"*()^:+-{}NEAROT ab好吗🙂é\x00\ud83d')
LATIN = st.characters(categories=["Lu", "Ll", "Nd", "Po", "Zs"], max_codepoint=0x17F)


def found_by(expression: str, text: str, day: int = TODAY) -> bool:
    index = sqlite3.connect(":memory:")
    try:
        index.execute(
            "CREATE VIRTUAL TABLE words USING fts5 (body, tags, day, content='',"
            " tokenize='porter unicode61 remove_diacritics 2')"
        )
        row = (1, index_text(text), "p1 s1", index_day(day))
        index.execute("INSERT INTO words (rowid, body, tags, day) VALUES (?, ?, ?, ?)", row)
        sql = "SELECT count(*) FROM words WHERE words MATCH ?"
        return bool(index.execute(sql, (expression,)).fetchone()[0])
    finally:
        index.close()


def finds(query: str, text: str, day: int = 20200101) -> bool:
    return any(found_by(each, text, day) for each in expressions(query, TODAY))


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("What did we decide about migrations?", "The migration runs forward only."),
        ("running", "it runs"),
        ("café", "the cafe around the corner"),
        ("cafe", "das Café nebenan"),
        ("cafe\u0301", "das Café nebenan"),
        ("Straße", "in der Straße"),
        ("parse_recall_input", "call parse_recall_input first"),
        ("recall input", "call parse_recall_input first"),
        ("don't panic", "no panic, please"),
        ("连接", "数据库连接失败了"),
        ("数据库的连接", "数据库连接失败了"),
        ("败", "数据库连接失败了"),
        ("了", "数据库连接失败了"),
        ("SQLite数据库", "我们用数据库"),
        ("カタカナ", "これはカタカナです"),
        ("서울에서", "서울에서 만나요"),
        ("हिन्दी", "हिन्दी में लिखो"),
        ("to be or not to be", "whether to be"),
        ("port 7688", "it listens on 127.0.0.1:7688"),
    ],
)
def test_a_query_finds_a_text(query: str, text: str) -> None:
    assert finds(query, text)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("the migration", "the parser"),
        ("数据", "据数"),
        ("NOT parser", "the lexer"),
        ("parser*", "pars"),
        ("7", "1789"),
    ],
)
def test_a_query_does_not_find_a_text(query: str, text: str) -> None:
    assert not finds(query, text)


@given(NOISE)
def test_no_query_is_syntax(query: str) -> None:
    for expression in expressions(query, TODAY):
        found_by(expression, "text")
    assert len(expressions(query, TODAY)) <= TERMS


@given(st.text(LATIN, min_size=1, max_size=60))
def test_a_text_is_found_by_its_own_words(text: str) -> None:
    words = query_words(text)
    assert all(found_by(f'body : "{word}"', text) for word in words)


def test_stop_words_are_left_out_unless_there_is_nothing_else() -> None:
    assert query_words("What did you say about the parser?") == ("parser",)
    assert query_words("who are you") == ("who", "are", "you")
    assert {"the", "what", "don"} <= STOP_WORDS


def test_words_are_counted_once_and_bounded() -> None:
    assert query_words("parser Parser PARSER lexer") == ("parser", "lexer")
    assert len(query_words(" ".join(f"word{n}" for n in range(100)))) == TERMS


@pytest.mark.parametrize(
    ("query", "pieces"),
    [
        ("photographer", ['"pho" AND "hot" AND "oto" AND "tog" AND "ogr" AND "gra" AND "rap"']),
        ("the sql", ['"sql"']),
        ("ab", []),
        ("数据", []),
        ("数据库", ['"数据库"']),
    ],
)
def test_substrings(query: str, pieces: list[str]) -> None:
    assert list(substrings(query)) == pieces


@pytest.mark.parametrize(
    ("query", "days"),
    [
        ("on 2026-05-07", ["d20260507", "m202605"]),
        ("7 May 2026", ["d20260507", "m202605"]),
        ("7th of May, 2026", ["d20260507", "m202605"]),
        ("May 7, 2026", ["d20260507", "m202605"]),
        ("on May 7th", ["k0507"]),
        ("in May 2026", ["m202605"]),
        ("Sept. 2026", ["m202609"]),
        ("last March", ["march"]),
        ("in 2025", ["y2025"]),
        ("yesterday", ["d20261129"]),
        ("the day before yesterday", ["d20261128"]),
        ("today", ["d20261130"]),
        ("3 days ago", ["d20261127"]),
        ("a month ago", ["m202610"]),
        ("11 months ago", ["m202512"]),
        ("last year", ["y2025"]),
        ("this month", ["m202611"]),
        ("last friday", ["d20261127", "friday"]),
        ("on Monday", ["d20261123", "monday"]),
        ("may I march on?", []),
        ("version 3.11 at 10:30, 99/99/99, 2026-99-99", ["y2026"]),
    ],
)
def test_dates_in_a_query(query: str, days: list[str]) -> None:
    assert list(query_days(query, TODAY)[0]) == days


def test_last_week_is_its_seven_days() -> None:
    assert query_days("last week", TODAY)[0] == tuple(f"d202611{day}" for day in range(23, 30))


def test_what_names_a_day_relative_to_today_is_not_looked_for_as_words() -> None:
    assert expressions("yesterday", TODAY) == ('day : "d20261129"',)
    assert expressions("parser in May 2026", TODAY) == (
        'day : "m202605"',
        'body : "parser"',
        'body : "2026"',
    )


def test_a_date_finds_what_was_stored_on_it() -> None:
    assert finds("what did we do yesterday", "anything", day=20261129)
    assert not finds("what did we do yesterday", "anything", day=20261128)


@given(NOISE, st.integers(0, 2_000_000_000))
def test_any_query_on_any_day_names_days(query: str, now: int) -> None:
    words, rest = query_days(query, day_of(now))
    assert len(rest) == len(query)
    assert all(word.isalnum() for word in words)


@given(st.floats(allow_nan=False))
def test_every_time_has_a_day(seconds: float) -> None:
    day = day_of(seconds)
    assert len(iso_day(day)) == 10
    assert len(index_day(day).split()) == 6
