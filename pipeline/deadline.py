"""How long a turn may still wait for its memory.

Time runs from the end of a hop with hidden calls to the head of the continuation that answers
them, and from the failure of one to the head of what is tried instead; a hop that streams costs
none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.budget import Spending


class Deadline:
    """Charges a turn's waiting to its budget. All times are of the events' clock, in seconds.

    Args:
        spending: The turn's; what was waited goes into its ``seconds``.
    """

    __slots__ = ("_since", "_spending")

    def __init__(self, spending: Spending) -> None:
        self._spending = spending
        self._since: float | None = None

    @property
    def due(self) -> float | None:
        """When the budget will be used up; None while no time runs, or none is left to run."""
        if self._since is None or self._spending.out_of_time:
            return None
        return self._since + self._spending.seconds_left

    def start(self, now: float) -> None:
        """Let time run, unless it does already."""
        if self._since is None:
            self._since = now

    def stop(self, now: float) -> None:
        """Charge what was waited, and let time stand still."""
        if self._since is not None:
            self._spending.seconds += now - self._since
            self._since = None
