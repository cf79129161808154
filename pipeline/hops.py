"""The hops of a turn: opened one after the other, and counted when they are over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.commands import CloseUpstream
from pipeline.hop import Hop
from pipeline.intake import Intake
from pipeline.intercept import Interception
from pipeline.tally import Tally

if TYPE_CHECKING:
    from pipeline.budget import Spending
    from pipeline.lifecycle import Rule
    from pipeline.options import TurnOptions
    from pipeline.outbox import Outbox
    from pipeline.request import Request
    from pipeline.view import ClientView


class Hops:
    """What was asked for a turn, what came of it, and what it cost.

    Args:
        options: What is fixed for the turn.
        view: What the client sees of them.
        spending: The budgets that continuations are charged to.
        out: Where their commands go.

    Attributes:
        all: The hops so far; the last one is current.
        intake: Reads their answers.
        used: What they have used.
    """

    __slots__ = ("_options", "_out", "_spending", "_view", "all", "intake", "used")

    def __init__(
        self, options: TurnOptions, view: ClientView, spending: Spending, out: Outbox
    ) -> None:
        self.all: list[Hop] = []
        self.intake = Intake(options, view)
        self.used = Tally(options.report)
        self._options = options
        self._view = view
        self._spending = spending
        self._out = out

    @property
    def current(self) -> Hop:
        """The hop that is open, or was last."""
        return self.all[-1]

    def open(self, number: int, request: Request, *, recovering: bool) -> None:
        """Begin a hop by asking for its answer.

        Args:
            number: Its ordinal: that of the hop before it where it is tried again.
            request: What is sent.
            recovering: Whether it is the turn's recovery, of which nothing is shown for now.
        """
        options = self._options
        interception = Interception(
            options.hidden_names,
            deferred_bytes=options.limits.deferred_bytes,
            hidden_bytes=self.intake.hidden_room,
            hold_text=options.hold_text,
            restored=options.restored,
        )
        if self.all:
            interception.inherit(self.current.interception)
        hop = Hop(number, request, options, interception, recovering=recovering)
        self.all.append(hop)
        self._out.flush()
        self._view.begin_hop(number, buffered=recovering)
        self._out.add(hop.opening())

    def close(self) -> None:
        """Count what the current hop brought; nothing of it is read any more."""
        if not self.all or self.current.closed:
            return
        hop = self.current
        hop.closed = True
        self.intake.close(hop)
        self.used.count_hop(hop.state)
        if hop.number > 1:
            self._spending.count_continuation(hop.state.usage)
        self._view.collect(hop)
        self._out.add(CloseUpstream())

    # --- All of them ----------------------------------------------------------------------

    @property
    def model(self) -> str | None:
        """The model as the upstream reported it last."""
        for hop in reversed(self.all):
            if model := hop.state.model:
                return model
        return None

    def findings(self) -> dict[tuple[Rule, str], int]:
        """Return how often their streams deviated, by rule and event type."""
        found: dict[tuple[Rule, str], int] = {}
        for hop in self.all:
            for key, count in hop.check.findings.items():
                found[key] = found.get(key, 0) + count
        return found

    def hidden_ids(self) -> set[str]:
        """Return the ids of hidden calls, as far as they are known now."""
        calls = [call for hop in self.all for call in hop.words.secret_calls()]
        return {known for call in calls for known in (call.id, call.call_id) if known}
