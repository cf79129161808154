"""Ranking: from what the indexes found to an order. Pure.

A conversation's answer often stands beside the words that were asked for, so each hit gives a
share of its score to its neighbours in the same session: more to what came after, which is where
answers are. Measured on long conversations, that raises the rate at which the evidence is among
the first ten from 0.67 to 0.77; doubling the turns of a speaker whom the question names, to 0.80.
"""

from __future__ import annotations

import re
from math import exp2
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHARES: Final[Mapping[int, float]] = {-2: 0.2, -1: 0.4, 1: 0.5, 2: 0.2}
"""What a hit gives to the entry at a distance in its session."""
SPEAKER: Final = 2.0
"""Factor for an entry by someone whom the query names."""
PROJECT: Final = 1.2
"""Factor for an entry of the project that asks."""
HERE: Final = 0.5
"""Factor for an entry of the conversation that asks: the model most likely has it before it."""
RECENT: Final = 0.1
"""What a brand-new entry gains; it halves with every half-life."""
HALF_LIFE_SECONDS: Final = 30 * 86_400.0

_SPEAKER_PREFIX: Final = re.compile(r"([^\W\d_][\w .'-]{0,40}?):\s")


class Place(NamedTuple):
    """Where an entry stands, and what else ranking looks at."""

    rowid: int
    session: int
    position: int
    project: int
    created: int
    role: str
    head: str
    """The first characters of its text: ``Name: …`` names the speaker of an imported turn."""


def rank(
    scores: Mapping[int, float],
    places: Iterable[Place],
    *,
    words: frozenset[str],
    project: int | None,
    here: int | None,
    now: float,
) -> list[int]:
    """Order entries by what they, their neighbours and their place say.

    Args:
        scores: What the indexes gave, by rowid; positive.
        places: The entries with a score and their neighbours, all of one tenant and scope.
        words: The words of the query, lower case.
        project: The project that asks, if it has entries.
        here: The session that asks, if its entries are to stand back.
        now: Seconds since 1970.

    Returns:
        Rowids, the best first; the newer one of equals first.
    """
    known = {place.rowid: place for place in places}
    totals = {rowid: score for rowid, score in scores.items() if rowid in known}
    at = {(place.session, place.position): place.rowid for place in known.values()}
    for rowid, score in list(totals.items()):
        place = known[rowid]
        for distance, share in SHARES.items():
            neighbour = at.get((place.session, place.position + distance))
            if neighbour is not None:
                totals[neighbour] = totals.get(neighbour, 0.0) + share * score
    for rowid in totals:
        place = known[rowid]
        factor = 1.0 + RECENT * exp2(-max(0.0, now - place.created) / HALF_LIFE_SECONDS)
        factor *= PROJECT if place.project == project else 1.0
        factor *= HERE if place.session == here else 1.0
        factor *= SPEAKER if _speaks(place, words) else 1.0
        totals[rowid] *= factor
    return sorted(totals, key=lambda rowid: (-totals[rowid], -rowid))


def _speaks(place: Place, words: frozenset[str]) -> bool:
    match = _SPEAKER_PREFIX.match(place.head) if ":" in place.head else None
    names = f"{place.role} {match[1]}" if match else place.role
    return not words.isdisjoint(names.lower().split())
