"""Planning: what of a query is scored where, so that a search costs the same in a large memory.

Pure: probes in, passes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMON: Final = 3
"""How many common words still count among the entries that have a rare one."""
_TELLING: Final = 0.1
"""In how large a share of the entries a common word may be to tell anything beside a rare one."""


class Probe(NamedTuple):
    """How common a word is, found out by counting its newest entries up to the budget."""

    expression: str
    rows: int
    oldest: int
    """The oldest rowid that was counted."""


class Pass(NamedTuple):
    """One scored statement: an expression, and the oldest rowid it looks at."""

    expression: str
    floor: int


def plan(
    probes: Sequence[Probe], *, first: int, newest: int, budget: int, enough: int
) -> tuple[Pass, ...]:
    """Choose what is scored.

    Args:
        probes: One for each word.
        first: The oldest rowid in scope.
        newest: The newest one.
        budget: How many entries one pass may score, and where the probes stopped counting.
        enough: How many hits are wanted.

    Returns:
        None, if no word has an entry. One for all entries with any of the words, if the budget
        allows that. Else one for the entries with the rare words, where the common ones add to
        the score, and, if those are not enough, one for the newest entries with the common ones.
    """
    ordered = sorted((probe for probe in probes if probe.rows), key=_commonness)
    rare: list[str] = []
    total = 0
    for probe in ordered:
        if probe.rows >= budget or total + probe.rows > budget:
            break
        total += probe.rows
        rare.append(probe.expression)
    common = ordered[len(rare) :]
    passes: list[Pass] = []
    if rare:
        telling = [probe.expression for probe in common if _density(probe, newest) < _TELLING]
        passes.append(Pass(_any_of(rare, telling[:_COMMON]), first))
    if common and total < enough:
        density = sum(_density(probe, newest) for probe in common[:_COMMON])
        floor = max(first, newest - int(budget / density))
        passes.append(Pass(" OR ".join(probe.expression for probe in common[:_COMMON]), floor))
    return tuple(passes)


def conjunction(probes: Sequence[Probe], *, budget: int) -> str | None:
    """Return what finds the entries with all words, where every word is common."""
    found = sorted((probe for probe in probes if probe.rows), key=_commonness)
    if len(found) < 2 or found[0].rows < budget:
        return None
    return " AND ".join(probe.expression for probe in found[:_COMMON])


def _any_of(needed: Sequence[str], counting: Sequence[str]) -> str:
    """Return what finds entries with any of some words, where others add to the score.

    A word that is named twice counts twice; those are the needed ones, which tell more.
    """
    some = " OR ".join(needed)
    return f"({some}) AND ({' OR '.join((some, *counting))})" if counting else some


def _density(probe: Probe, newest: int) -> float:
    """Return which share of the newest entries has a word."""
    return probe.rows / (newest - probe.oldest + 1)


def _commonness(probe: Probe) -> tuple[int, int]:
    """Sort key: of words that the probe stopped counting, the commoner reached less far back."""
    return probe.rows, probe.oldest
