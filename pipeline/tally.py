"""What a turn has used, in its two figures.

*Spent* is summed over everything that was asked for the turn. *Context* is the usage of the last
hop that reported any: clients that take it as the fill of their window would shrink a
conversation too early on a sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pipeline.recovery import merge_failed_continuation_metadata
from pipeline.usage import add_usage

if TYPE_CHECKING:
    from pipeline.response import ResponseState


class Tally:
    """Counts a turn's usage.

    Args:
        report: Which of the two the client sees.

    Attributes:
        spent: Usage summed over all hops, and over what was used for none of them.
        context: Usage of the last hop that reported any.
        aside: Whether something was used for the turn and by none of its hops.
    """

    __slots__ = ("_report", "aside", "context", "spent")

    def __init__(self, report: Literal["sum", "last"]) -> None:
        self.spent: dict[str, Any] | None = None
        self.context: dict[str, Any] | None = None
        self.aside = False
        self._report = report

    @property
    def reported(self) -> dict[str, Any] | None:
        """The usage that the client sees."""
        return self.spent if self._report == "sum" else self.context

    @property
    def output_tokens(self) -> int:
        """How many tokens the upstreams have written."""
        return int((self.spent or {}).get("output_tokens") or 0)

    def count_hop(self, state: ResponseState) -> None:
        """Count what a hop has used, also one that failed."""
        self.spent, self.context = merge_failed_continuation_metadata(
            self.spent, self.context, state
        )

    def count_aside(self, usage: dict[str, Any] | None) -> None:
        """Count what was used for the turn and by none of its hops."""
        if usage is not None:
            self.aside = True
            self.spent = add_usage(self.spent, usage)
