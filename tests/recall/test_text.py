from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.text import ENTRIES, ENTRY_CHARS, clean, excerpt, split, stored_name

LONG = st.text(st.sampled_from("ab .\n。"), max_size=4_000).map(lambda text: text * 4)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("  a\r\nb\rc\u2028d\x0be  ", "a\nb\nc\nd\ne"),
        ("a\x00b\x1b[31mc\x9b", "a b [31mc"),
        ("a\tb", "a\tb"),
        ("\ud83d x", "? x"),
        ("🙂", "🙂"),
    ],
)
def test_clean(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


@given(st.text())
def test_cleaning_is_done_once(text: str) -> None:
    assert clean(clean(text)) == clean(text)
    clean(text).encode()


def test_a_text_is_cut_where_it_breaks() -> None:
    paragraph = "word " * 300
    first, second = split(clean(f"{paragraph}\n\n{paragraph}"))
    assert first == second == paragraph.strip()


def test_a_text_without_breaks_is_cut_all_the_same() -> None:
    pieces = split("x" * (2 * ENTRY_CHARS + 1))
    assert [len(piece) for piece in pieces] == [ENTRY_CHARS, ENTRY_CHARS, 1]


def test_a_paste_without_end_is_cut_off() -> None:
    assert len(split("word " * 200_000)) == ENTRIES


@given(LONG)
def test_pieces_are_the_text(text: str) -> None:
    text = clean(text)
    pieces = split(text)
    assert all(0 < len(piece) <= ENTRY_CHARS for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


def test_an_excerpt_shows_the_first_word_found() -> None:
    text = f"{'before ' * 200}NEEDLE{' after' * 200}"
    shown, cut_before, cut_after = excerpt(text, ("missing", "needle"), 100)
    assert "NEEDLE" in shown
    assert cut_before
    assert cut_after


@given(st.text(), st.lists(st.text(min_size=1)), st.integers(1, 80))
def test_an_excerpt_keeps_its_size(text: str, words: list[str], size: int) -> None:
    shown, cut_before, cut_after = excerpt(text, words, size)
    assert len(shown) <= size
    assert shown in text
    assert (cut_before or cut_after) == (len(text) > size)


@given(st.text(), st.text())
def test_different_names_are_stored_differently(one: str, other: str) -> None:
    if "\\" not in one + other:
        assert (stored_name(one) == stored_name(other)) == (one == other)
    assert len(stored_name(one * 100)) <= 300
