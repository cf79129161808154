"""The hidden calls of a turn: what runs, what came back, and what the model is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline import jsontext
from pipeline.budget import OUT_OF_TIME, SPENT, UNANSWERED, Spending
from pipeline.commands import RunTool
from pipeline.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.intercept import HiddenCall
    from pipeline.limits import Budgets


class Rounds:
    """Executes hidden calls round by round; equal calls of a round run once.

    Args:
        budgets: What they may cost.
        early: The tools that change nothing: their calls run as soon as they are complete, and
            once in a turn. Those of others wait until their response has completed.

    Attributes:
        spending: What they have cost.
        last: Whether the model was told that there is no further round.
        used: The calls (name and arguments) whose results went into an output.
    """

    def __init__(self, budgets: Budgets, early: frozenset[str]) -> None:
        self.spending = Spending(budgets)
        self.last = False
        self.used: set[tuple[str, str]] = set()
        self._early = early
        self._waiting: list[HiddenCall] = []
        self._calls: dict[str, HiddenCall] = {}
        self._results: dict[tuple[str, str], str] = {}
        self._running: set[tuple[str, str]] = set()

    def start(self, pending: list[HiddenCall], *, completed: bool = False) -> list[RunTool]:
        """Take calls that became complete, and return which of them are to be executed.

        Args:
            pending: The calls; emptied.
            completed: Whether their response is, so that what waited for that runs now.

        Raises:
            ProtocolError: Two calls of a hop have one id.
        """
        for call in pending:
            if call.call_id in self._calls:
                raise ProtocolError("the upstream used one call id for two calls")
            self._calls[call.call_id] = call
        due = [*self._waiting, *pending]
        pending.clear()
        self._waiting.clear()
        if not completed:
            self._waiting = [call for call in due if call.name not in self._early]
            due = [call for call in due if call.name in self._early]
        return self._commands(due)

    def _commands(self, due: list[HiddenCall]) -> list[RunTool]:
        commands = []
        for call in due:
            if call.key in self._results or call.key in self._running:
                continue
            if self.last or not self.spending.may_execute():
                self._results[call.key] = SPENT
                continue
            self._running.add(call.key)
            commands.append(RunTool(call.call_id, call.name, call.arguments))
        return commands

    def finished(self, call_id: str, text: str) -> None:
        """Take a result; one that comes too late is dropped."""
        call = self._calls.get(call_id)
        if call is not None:
            self._running.discard(call.key)
            self._results.setdefault(call.key, text)

    def forget(self) -> None:
        """Drop the calls of a hop that is tried again; results that are there stay."""
        self._calls.clear()
        self._waiting.clear()
        self._running.clear()

    def expire(self) -> None:
        """Give every call that still runs a result that says that the time is up."""
        self.spending.out_of_time = True
        for call in self._calls.values():
            self._results.setdefault(call.key, OUT_OF_TIME)

    @property
    def complete(self) -> bool:
        """Whether every call of the round has its result."""
        return all(call.key in self._results for call in self._calls.values())

    def unanswered(self) -> list[bytes]:
        """Return the items that answer the round's calls if no result comes any more."""
        texts = (self._results.get(call.key, UNANSWERED) for call in self._in_order())
        return _outputs(self._in_order(), texts)

    def close(self) -> list[bytes]:
        """End the round; return the items that answer its calls, in call order."""
        calls = self._in_order()
        self.used.update(call.key for call in calls)
        texts = self.spending.finish_round([self._results[call.key] for call in calls])
        self._calls.clear()
        self._results = {key: text for key, text in self._results.items() if key[0] in self._early}
        self.last = self.spending.exhausted
        return _outputs(calls, texts)

    def _in_order(self) -> list[HiddenCall]:
        return sorted(self._calls.values(), key=lambda call: call.index)


def _outputs(calls: list[HiddenCall], texts: Iterable[str]) -> list[bytes]:
    return [jsontext.dumps(call.output(text)) for call, text in zip(calls, texts, strict=True)]
