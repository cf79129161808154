"""Planning: what of a query is scored where, so that a search costs the same in a large memory.

Pure: probes in, passes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOGETHER: Final = 3
"""How many words are looked for where all of them are common."""
_TELLING: Final = 0.1
"""In how large a share of the entries a common word may be to tell anything beside a rare one."""
_WEIGHED: Final = 25
"""In how many budgets of entries all common words together may be: to weigh a word, the index reads
on through all its entries, if twenty times faster than it scores them."""


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
    weighed = _worth_weighing(common, first, newest, budget)
    if rare:
        telling = [each.expression for each in weighed if _density(each, newest) < _TELLING]
        passes.append(Pass(_any_of(rare, telling), first))
    if common and total < enough:
        weighed = weighed[:_TOGETHER] or common[:1]
        density = sum(_density(probe, newest) for probe in weighed)
        floor = max(first, newest - int(budget / density))
        passes.append(Pass(" OR ".join(probe.expression for probe in weighed), floor))
    return tuple(passes)


def conjunction(probes: Sequence[Probe], *, first: int, newest: int, budget: int) -> str | None:
    """Return what finds the entries with all words, where every word is common."""
    found = sorted((probe for probe in probes if probe.rows), key=_commonness)
    if not found or found[0].rows < budget:
        return None
    weighed = _worth_weighing(found, first, newest, budget)[:_TOGETHER]
    return " AND ".join(probe.expression for probe in weighed) if len(weighed) > 1 else None


def _worth_weighing(
    common: Sequence[Probe], first: int, newest: int, budget: int
) -> Sequence[Probe]:
    """Return the rarer ones of common words, as many as can be weighed at a bearable cost."""
    places = _WEIGHED * budget
    for at, probe in enumerate(common):
        places -= int(_density(probe, newest) * (newest - first + 1))
        if places < 0:
            return common[:at]
    return common


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
