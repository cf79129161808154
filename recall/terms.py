"""Words: how stored text is indexed, and what of a query is looked for.

Both sides of a search must see the same words, so both are here. Text in scripts without spaces
is indexed as overlapping pairs of characters, because the index would take each sentence for one
word; what is left to it is stemming English and dropping accents.
"""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import Final

from recall.dates import day_words, query_days

TERMS: Final = 24
"""How many different words of a query count."""

_STOP_WORDS: Final = """
    i me my mine myself we us our ours you your yours he him his she her hers it its they them
    their theirs this that these those a an the some any each every either neither both all
    one ones another other others such same own

    am is are was were be been being do does did done doing have has had having will would
    shall should can could may might must ought need let get got

    and or but nor if then else so than as at by for from in into of off on onto out over to
    up down with without about above below under between through during before after again
    against because until while once here there when where why how what which who whom whose

    not no yes only just also too very more most much many few less least ever never still
    please tell know remember recall said say says mention mentioned talk talked discuss
    discussed ask asked thing things something anything

    s t d ll m re ve don didn doesn isn wasn aren weren won wouldn couldn shouldn hasn haven hadn
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())
"""Words that find nothing: pronouns and determiners, grammar's verbs, joints, fillers and what
questions to a memory are made of, and what apostrophes leave behind."""

# Scripts that are written without spaces between words.
_UNSPACED: Final = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x4DBF),  # Han, extension A
    (0x4E00, 0x9FFF),  # Han
    (0xAC00, 0xD7AF),  # Hangul, whose particles stick to their words
    (0xF900, 0xFAFF),  # Han, compatibility
    (0x20000, 0x3FFFF),  # Han, the other extensions
)


def index_text(text: str) -> str:
    """Return what the word index gets for a text: runs of unspaced script as pairs.

    A run's last character stands alone too, so that a search for one character finds every run
    that has it, by prefix.
    """
    text = unicodedata.normalize("NFC", text)
    if text.isascii():
        return text
    pieces: list[str] = []
    for piece, unspaced in _runs(text):
        pieces.append(f" {' '.join((*_pairs(piece), piece[-1]))} " if unspaced else piece)
    return "".join(pieces)


def index_day(day: int) -> str:
    """Return the words under which a calendar day (``yyyymmdd``) is indexed."""
    return " ".join(day_words(day))


def query_words(query: str) -> tuple[str, ...]:
    """Return the different words of a query, without stop words unless there are no others."""
    words: dict[str, None] = {}
    for word in _split(unicodedata.normalize("NFC", query)):
        for piece, unspaced in _runs(word):
            pairs = _pairs(piece) if unspaced and len(piece) > 1 else (piece,)
            words.update(dict.fromkeys(pairs))
    telling = [word for word in words if word not in STOP_WORDS]
    return tuple((telling or list(words))[:TERMS])


def expressions(query: str, today: int) -> tuple[str, ...]:
    """Return one FTS5 expression for each word and each date of a query.

    Args:
        query: What the model asked for, in any characters.
        today: The calendar day (``yyyymmdd``) that "yesterday" counts from.

    Returns:
        Quoted, so that nothing in a query is ever syntax. Empty when nothing can be looked for.
    """
    days, rest = query_days(query, today)
    found = [f'day : "{word}"' for word in days]
    words = query_words(rest)
    if not found or any(word not in STOP_WORDS for word in words):
        found += [_body(word) for word in words]
    return tuple(found[:TERMS])


def substrings(query: str) -> tuple[str, ...]:
    """Return expressions for the trigram index: pieces that related forms of a word share.

    "photographer" is looked for as "photograp", which "photography" has too. A word without
    three characters is left to the word index.
    """
    found: dict[str, None] = {}
    for word in _split(unicodedata.normalize("NFC", query)):
        if word in STOP_WORDS:
            continue
        for piece, unspaced in _runs(word):
            stem = piece if unspaced or len(piece) < 6 else piece[: max(5, len(piece) - 3)]
            if len(stem) >= 3:
                threes = (stem[at : at + 3] for at in range(len(stem) - 2))
                found[" AND ".join(f'"{three}"' for three in threes)] = None
    return tuple(found)


def _body(word: str) -> str:
    prefix = " *" if len(word) == 1 and _is_unspaced(word) else ""
    return f'body : "{word}"{prefix}'


def _split(text: str) -> list[str]:
    """Split into folded runs of letters, digits and the marks that belong to them."""
    kept = (
        char if char.isalnum() or unicodedata.category(char)[0] == "M" else " "
        for char in text.lower()
    )
    return [word for word in "".join(kept).split() if any(map(str.isalnum, word))]


def _runs(text: str) -> list[tuple[str, bool]]:
    """Cut a text where it changes between spaced and unspaced script."""
    runs: list[tuple[str, bool]] = []
    start = 0
    for at in range(1, len(text) + 1):
        kind = _is_unspaced(text[start])
        if at == len(text) or _is_unspaced(text[at]) != kind:
            runs.append((text[start:at], kind))
            start = at
    return runs


def _pairs(run: str) -> tuple[str, ...]:
    return tuple(first + second for first, second in pairwise(run))


def _is_unspaced(char: str) -> bool:
    code = ord(char)
    return code >= 0x0E00 and any(first <= code <= last for first, last in _UNSPACED)
