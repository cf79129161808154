"""How a turn ends: what is saved, what the client gets last, and the record of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.commands import CancelTools, Refuse, Relay, ReportEmpty
from pipeline.failures import categorize
from pipeline.intake import ENDINGS
from pipeline.outcome import Ending, TurnOutcome, is_empty_completion
from pipeline.recovery import fail_recall
from pipeline.terminal import stop_reason

if TYPE_CHECKING:
    from pipeline.accepted import Accepted
    from pipeline.attempts import Attempts
    from pipeline.commands import SaveJoin
    from pipeline.errors import SottovoceError
    from pipeline.hops import Hops
    from pipeline.joining import Joining
    from pipeline.outbox import Outbox
    from pipeline.request import Request
    from pipeline.rounds import Rounds
    from pipeline.view import ClientView


class Conclusion:
    """Ends a turn, once, in one of these ways; each returns the turn's outcome.

    Args:
        request: The principal request.
        hops: What was asked and answered.
        view: What the client sees.
        rounds: The hidden calls.
        attempts: Whether this was a recovery.
        joining: Makes the join record.
        out: Where the commands go.
    """

    __slots__ = ("_attempts", "_hops", "_joining", "_out", "_request", "_rounds", "_view")

    def __init__(
        self,
        request: Request,
        *,
        hops: Hops,
        view: ClientView,
        rounds: Rounds,
        attempts: Attempts,
        joining: Joining,
        out: Outbox,
    ) -> None:
        self._request = request
        self._hops = hops
        self._view = view
        self._rounds = rounds
        self._attempts = attempts
        self._joining = joining
        self._out = out

    def relay(self, status: int) -> TurnOutcome:
        """Pass a refusal on, where the client was told nothing yet."""
        self._out.add(Relay())
        return self._outcome(Ending.PROVIDER_FAILED, status=status)

    def deliver(self, accepted: Accepted) -> TurnOutcome:
        """Send the turn's terminal, made of the last hop's."""
        hop, used = self._hops.current, self._hops.used
        ending = ENDINGS[accepted.event["type"]]
        reason = stop_reason(accepted.event["response"])
        empty = ending is Ending.COMPLETED and is_empty_completion(hop.state.output())
        if empty:
            tokens = (hop.state.usage or {}).get("output_tokens")
            rounds = self._rounds.spending.rounds
            self._out.add(ReportEmpty(hop.state.model, reason, tokens, rounds))
        self._save_join(whole=ending is not Ending.PROVIDER_FAILED)
        summed = hop.number > 1 or used.aside
        self._view.finish(hop, accepted, used.reported, summed=summed)
        return self._end_body(ending, stop_reason=reason, empty=empty)

    def stop(self, reason: str) -> TurnOutcome:
        """End a turn that may not go on with a ``response.incomplete``."""
        self._save_join(whole=True)
        self._view.stop(reason, self._hops.used.reported)
        return self._end_body(Ending.INCOMPLETE, stop_reason=reason)

    def pass_on(self, ending: Ending) -> TurnOutcome:
        """End the body of an answer that only passed."""
        return self._end_body(ending)

    def give_up(self, error: SottovoceError, *, waiting: bool) -> TurnOutcome:
        """Fail, with the one terminal that the client can still get.

        Args:
            error: Why.
            waiting: Whether hidden calls have no result, and get none any more.
        """
        limit = error.limit
        if self._attempts.recovering is not None:
            error = fail_recall(self._attempts.recovering, error, cause=self._attempts.cause)
        category = categorize(error, principal=self._hops.current.number == 1)
        view, out, status = self._view, self._out, None
        out.add(CancelTools())
        if view.committed:
            view.close_open_items(self._hops.current)
            self._hops.close()
            self._save_join(whole=False, waiting=waiting)
            view.fail(error, self._request.body.get("model"), self._hops.used.reported)
            out.flush(last=True)
        else:
            self._hops.close()
            view.forget()
            out.add(Refuse(error))
            status = error.status
        return self._outcome(
            Ending.FAILED, category=category, message=error.message, limit=limit, status=status
        )

    def leave(self) -> TurnOutcome:
        """End a turn whose client left."""
        self._hops.close()
        return self._outcome(Ending.CLIENT_DISCONNECT)

    def record(self, *, whole: bool, waiting: bool = False) -> SaveJoin | None:
        """Return the join record of a turn that ends; None where there is nothing to join.

        Args:
            whole: Whether the current hop's response came to an end.
            waiting: As for ``give_up``.
        """
        return self._joining.final(self._hops.all, whole=whole, waiting=waiting)

    def _save_join(self, *, whole: bool, waiting: bool = False) -> None:
        """Ask for the join record before the terminal leaves."""
        record = self.record(whole=whole, waiting=waiting)
        if record is not None:
            self._out.flush()
            self._out.add(record)

    def _end_body(
        self, ending: Ending, *, stop_reason: str | None = None, empty: bool = False
    ) -> TurnOutcome:
        self._hops.close()
        self._out.flush(last=True)
        return self._outcome(ending, stop_reason=stop_reason, empty=empty)

    def _outcome(self, ending: Ending, **details: Any) -> TurnOutcome:
        hops, spending = self._hops, self._rounds.spending
        return TurnOutcome(
            ending,
            truncated_by=hops.intake.truncated_by,
            hops=hops.current.number if hops.all else 0,
            recovered_from=self._attempts.recovering,
            rounds=spending.rounds,
            recalls=spending.executions,
            hidden_bytes=hops.intake.hidden_bytes,
            spent=hops.used.spent,
            context=hops.used.context,
            model=hops.model,
            response_id=self._view.response.get("id"),
            findings=hops.findings(),
            **details,
        )
