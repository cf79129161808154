"""Planning: what of a query is scored where, so that a search costs the same in a large memory.

Pure: probes in, passes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMON: Final = 3
"""How many common words still count among the entries that have a rare one."""


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


def plan(probes: Sequence[Probe], *, first: int, newest: int, budget: int) -> tuple[Pass, ...]:
    """Choose what is scored.

    Args:
        probes: One for each word.
        first: The lowest rowid of the tenant.
        newest: The highest rowid in use.
        budget: How many entries may be scored, and where the probes stopped counting.

    Returns:
        None, if no word has an entry. One for all entries with any of the words, if the budget
        allows that. Else one for the entries with the rare words, where the common ones add to
        the score; or, if there are no rare ones, one for the newest entries.
    """
    ordered = sorted((probe for probe in probes if probe.rows), key=_commonness)
    rare: list[str] = []
    total = 0
    for probe in ordered:
        total += probe.rows
        if probe.rows < budget and total <= budget:
            rare.append(probe.expression)
    common = ordered[len(rare) :]
    if not common:
        return (Pass(" OR ".join(rare), first),) if rare else ()
    if rare:
        some = " OR ".join(rare)
        both = " OR ".join((some, *(probe.expression for probe in common[:_COMMON])))
        # Named twice, a rare word counts twice against a common one: it is the one that tells.
        return (Pass(f"({some}) AND ({both})", first),)
    density = sum(probe.rows / (newest - probe.oldest + 1) for probe in common[:_COMMON])
    floor = max(first, newest - int(budget / density))
    return (Pass(" OR ".join(probe.expression for probe in common[:_COMMON]), floor),)


def conjunction(probes: Sequence[Probe], *, budget: int) -> str | None:
    """Return what finds the entries with all words, where every word is common."""
    found = sorted((probe for probe in probes if probe.rows), key=_commonness)
    if len(found) < 2 or found[0].rows < budget:
        return None
    return " AND ".join(probe.expression for probe in found[:_COMMON])


def _commonness(probe: Probe) -> tuple[int, int]:
    """Sort key: among words that the probe stopped counting, the denser is the commoner."""
    return probe.rows, probe.oldest
