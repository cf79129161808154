"""What hidden calls have cost a turn, and what the model is told when it gets close to the end.

A *round* is one execution of a hop's hidden calls plus the continuation that answers them. The
outputs of the last round tell the model to answer with what it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pipeline.limits import Budgets

LAST_ROUND: Final = (
    "\n\n[This was the last memory lookup of this turn. Answer now with what you have; do not "
    "call this tool again.]"
)
SPENT: Final = (
    "[Not executed: the memory lookups of this turn are used up. Answer with what you have; do "
    "not call this tool again.]"
)
OUT_OF_TIME: Final = (
    "[The lookup did not finish: the time for memory lookups of this turn is used up. Answer "
    "with what you have; do not call this tool again.]"
)
UNANSWERED: Final = (
    "[The lookup was interrupted before it had a result; nothing can be said about what is stored.]"
)
SHORTENED: Final = "\n[shortened]"


class Spending:
    """What a turn has spent of its budgets.

    Attributes:
        rounds: Rounds so far.
        executions: Hidden calls that were executed.
        seconds: Time for hidden calls and the start of continuations so far.
        out_of_time: Whether the deadline was reached.
    """

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self.rounds = 0
        self.executions = 0
        self.seconds = 0.0
        self.out_of_time = False
        self._result_bytes = 0
        self._extra_tokens = 0
        self._stalled = 0
        self._known: set[str] = set()

    def may_execute(self) -> bool:
        """Count an execution; False once they are used up."""
        if self.executions >= self._budgets.executions or self.out_of_time:
            return False
        self.executions += 1
        return True

    @property
    def seconds_left(self) -> float:
        """How much of the time budget is left."""
        return max(0.0, self._budgets.seconds - self.seconds)

    @property
    def exhausted(self) -> bool:
        """Whether another round is not allowed any more."""
        budgets = self._budgets
        return (
            self.rounds >= budgets.rounds
            or self._stalled >= budgets.stalled_rounds
            or self._extra_tokens >= budgets.extra_tokens
            or self._result_bytes >= budgets.result_bytes
            or self.out_of_time
            or self.seconds_left <= 0
        )

    def count_continuation(self, usage: dict[str, Any] | None) -> None:
        """Add what a continuation cost."""
        if usage is not None and isinstance(total := usage.get("total_tokens"), int):
            self._extra_tokens += total

    def finish_round(self, results: list[str]) -> list[str]:
        """Close a round: count its results and return them as the model gets them.

        Args:
            results: The texts of the round's outputs, in call order.

        Returns:
            The same, shortened to what is left of the bytes, with guidance where it was the last.
        """
        self.rounds += 1
        fresh = [text for text in results if text not in self._known]
        self._known.update(fresh)
        self._stalled = 0 if fresh else self._stalled + 1
        shortened = [self._shorten(text) for text in results]
        if self.exhausted:
            shortened = [
                text if text in (SPENT, OUT_OF_TIME) else text + LAST_ROUND for text in shortened
            ]
        return shortened

    def _shorten(self, text: str) -> str:
        encoded = text.encode("utf-8", "replace")
        left = max(0, self._budgets.result_bytes - self._result_bytes)
        self._result_bytes += len(encoded)
        if len(encoded) <= left:
            return text
        return encoded[:left].decode("utf-8", "ignore") + SHORTENED
