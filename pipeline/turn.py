"""One client request up to its terminal event: the conductor.

``receive(event) -> commands``: what happens comes in, what is to be done goes out. A turn knows no
socket, no clock and no memory; whoever drives it can be a server, a test or a replay.

A turn consists of *hops*: the principal request, and one continuation after each round of hidden
calls. All of them feed one client stream with one ``created``, one numbering and one terminal.

Where a turn can be is in ``phases``. What the hops bring is accumulated in their states; what the
client sees of it is ``view``'s business, which request comes next ``attempts``', what hidden calls
cost ``rounds``', what the next request needs of them ``joining``'s, and how it all ends
``conclusion``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from pipeline import events
from pipeline.anchor import Anchor
from pipeline.attempts import Attempts
from pipeline.commands import CancelTools, Finish
from pipeline.conclusion import Conclusion
from pipeline.deadline import Deadline
from pipeline.errors import FailureCategory, RecallError, SottovoceError
from pipeline.failures import UNEXPECTED, ShutdownError, UnexpectedError, missing_terminal
from pipeline.hops import Hops
from pipeline.joining import Joining
from pipeline.lifecycle import TERMINALS
from pipeline.outbox import Outbox
from pipeline.outcome import Ending
from pipeline.phases import TAKES, WAITING, TurnPhase
from pipeline.recovery import check_recovered, failed_terminal
from pipeline.rounds import Rounds
from pipeline.view import ClientView

if TYPE_CHECKING:
    from pipeline.accepted import Accepted
    from pipeline.commands import Command, SaveJoin
    from pipeline.hop import Hop
    from pipeline.intercept import Interception
    from pipeline.options import TurnOptions
    from pipeline.outcome import TurnOutcome
    from pipeline.request import Request

_MIN_OUTPUT_TOKENS: Final = 16
"""Fewer than these are no use for a continuation."""
_FAILURES: Final = frozenset({Ending.FAILED, Ending.PROVIDER_FAILED})


class Turn:
    """One turn. Feed it with ``receive`` and perform what it returns, in order.

    Args:
        request: The prepared principal request.
        options: What is fixed for the turn.

    Attributes:
        phase: Where it is.
        view: What the client sees.
        rounds: Its hidden calls.
        outcome: How it ended; None while it runs.
        left: The join record of a turn whose client left, if there is something to join.
        fault: What should never have been raised; whoever drives the turn has to report it.
    """

    def __init__(self, request: Request, options: TurnOptions) -> None:
        self.phase = TurnPhase.OPENING
        self.view = view = ClientView(options)
        self.rounds = rounds = Rounds(options.budgets, options.early_names)
        self.outcome: TurnOutcome | None = None
        self.left: SaveJoin | None = None
        self.fault: Exception | None = None
        self._options = options
        self._request = request
        self._out = out = Outbox(view)
        self._hops = hops = Hops(options, view, rounds.spending, out)
        self._attempts = attempts = Attempts(request, options)
        self._joining = joining = Joining(request, options, view, rounds)
        self._conclusion = Conclusion(
            request,
            hops=hops,
            view=view,
            rounds=rounds,
            attempts=attempts,
            joining=joining,
            out=out,
        )
        self._deadline = Deadline(rounds.spending)
        self._anchor = Anchor(options)
        self._terminal: Accepted | None = None

    def __repr__(self) -> str:
        return f"<Turn {self._options.turn_id} {self.phase} {self.hops}>"

    @property
    def hops(self) -> list[Hop]:
        """The hops so far; the last one is current."""
        return self._hops.all

    @property
    def hop(self) -> Hop:
        """The current hop."""
        return self._hops.all[-1]

    @property
    def streamed(self) -> bool:
        """Whether the client gets a stream."""
        return self._options.streamed

    @property
    def deadline(self) -> float | None:
        """When ``DeadlineReached`` is due, on the events' clock; None while no time runs."""
        return self._deadline.due

    def shown_refusal(self, body: bytes) -> bytes:
        """Return the body of a provider's error as the client may have it."""
        return self.hop.words.discretion.body(body)

    def hidden_ids(self) -> set[str]:
        """Return the ids of hidden calls, as far as they are known now."""
        return self._hops.hidden_ids() | self._options.restored.call_ids

    # --- In and out -----------------------------------------------------------------------

    def start(self) -> list[Command]:
        """Return the commands that begin the turn."""
        self._open_hop(self._request)
        return self._out.take()

    def receive(self, event: events.TurnEvent) -> list[Command]:
        """Take what happened and return what is to be done, in order.

        What comes too late for its phase is ignored. No error leaves this method: a turn that
        fails ends with the one terminal that its client can still get.
        """
        if type(event) not in TAKES[self.phase]:
            return []
        try:
            self._take(event)
        except SottovoceError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - kept for a report; the client gets its terminal
            self.fault = error
            self._fail(UnexpectedError(UNEXPECTED))
        if self.phase in WAITING:
            self._start_clock(event)
        self._out.flush()
        return self._out.take()

    def _take(self, event: events.TurnEvent) -> None:
        match event:
            case events.UpstreamChunk():
                self._hops.intake.feed(self.hop, event.data, self)
            case events.UpstreamOpened():
                self._on_opened(event)
            case events.UpstreamEnded():
                self._on_ended()
            case events.UpstreamFailed():
                self._on_failed(event)
            case events.ToolFinished():
                self._on_tool_finished(event)
            case events.DeadlineReached():
                self._on_deadline(event)
            case events.KeepAliveDue():
                self.view.keep_alive()
            case events.ShutdownDue():
                raise ShutdownError("the proxy is shutting down; try again")
            case _:
                assert_never(event)

    def break_off(self, fault: Exception) -> list[Command]:
        """End a turn that can't be driven on; return what is still to be done.

        Args:
            fault: What should never have been raised while its commands were performed.
        """
        if self.outcome is None:
            self.fault = fault
            self._give_up(UnexpectedError(UNEXPECTED))
            self._out.flush()
        return self._out.take()

    def abort(self) -> TurnOutcome:
        """End a turn whose client left; return its outcome.

        The client keeps what it saw of finished items: the record of what belongs between them
        is in ``left``.
        """
        if self.outcome is None:
            self.phase = TurnPhase.ABORTED
            self.outcome = self._conclusion.leave()
            if self.streamed and self.view.committed:
                self.left = self._conclusion.record(whole=False, waiting=self._is_waiting)
        return self.outcome

    # --- Hops -----------------------------------------------------------------------------

    def _open_hop(self, request: Request) -> None:
        attempts = self._attempts
        recovering = attempts.recovering is not None
        self._hops.open(attempts.number, request, recovering=recovering)

    def _on_opened(self, event: events.UpstreamOpened) -> None:
        self._deadline.stop(event.now)
        self._hops.used.count_aside(event.spent)
        hop = self.hop
        if 200 <= event.status < 300:
            self.phase = TurnPhase.STREAMING
            hop.answered(event.content_type)
        elif hop.number == 1 and not self.view.head_sent:
            self._end(self._conclusion.relay(event.status))
        else:
            self.phase = TurnPhase.STREAMING
            hop.refused(event.status)

    def _on_ended(self) -> None:
        hop = self.hop
        self._hops.intake.finish(hop, self)
        if self.phase is TurnPhase.STREAMING:
            raise hop.reader.failure or missing_terminal(hop.state.error, hop.words.redact)

    def _on_failed(self, event: events.UpstreamFailed) -> None:
        self._deadline.stop(event.now)
        self._hops.used.count_aside(event.spent)
        # Where a refusal's body broke off, what came of it says more.
        raise event.error if self.hop.refusal is None else self.hop.refusal.error()

    # --- What is read of their answers: the turn listens to its intake -----------------------

    def decide(self, hop: Hop, accepted: Accepted) -> None:
        """Take one accumulated event of the current hop, in the stream's order."""
        if accepted.event["type"] in TERMINALS:
            self._on_terminal(hop, accepted)
            return
        self.view.decide(hop, accepted)
        if pending := hop.interception.pending_recalls:
            self._out.extend(self.rounds.start(pending))

    def flush(self) -> None:
        """Send what is ready for the client: more of the same read is to come."""
        self._out.flush()

    def passed(self, ending: Ending) -> None:
        """Take how an answer ended that only passed."""
        self._end(self._conclusion.pass_on(ending))

    # --- The upstream's terminal ----------------------------------------------------------

    def _on_terminal(self, hop: Hop, accepted: Accepted) -> None:
        if self._attempts.recovering is not None:
            self._end_recovery(hop, accepted)
            return
        if hop.number > 1 and not hop.visible and accepted.event["type"] == "response.failed":
            raise failed_terminal(hop, self._options)
        hop.interception.settle(hop.state)
        self.view.release(hop)
        if hop.interception.recall_indices:
            self._end_round(hop.interception, accepted)
        else:
            self._hops.close()
            self._deliver(accepted)

    def _end_round(self, interception: Interception, accepted: Accepted) -> None:
        """Take the terminal of a hop with hidden calls."""
        whole = len(interception.parsed_recall_inputs) == len(interception.recall_indices)
        completed = accepted.event["type"] == "response.completed"
        pending = interception.pending_recalls
        self._out.extend(self.rounds.start(pending, completed=completed and whole))
        self._hops.close()
        if not completed:
            self._out.add(CancelTools())
            self._deliver(accepted)
        elif not whole:
            raise RecallError(
                "the upstream completed a call without its arguments or its id",
                category=FailureCategory.FOLLOW_UP_INCOMPLETE_ARGUMENTS,
            )
        else:
            self._terminal = accepted
            self.phase = TurnPhase.RECALLING
            if interception.other_tool_seen and self.streamed and not self.rounds.complete:
                # The client has its own calls already, and may go on with them come what may.
                self._out.add(self._joining.provisional(self.hops))
            self._advance()

    # --- Hidden calls ---------------------------------------------------------------------

    def _on_tool_finished(self, event: events.ToolFinished) -> None:
        self.rounds.finished(event.call_id, event.text)
        self._anchor.hear(event.anchor)
        if self.phase is TurnPhase.RECALLING:
            self._advance()

    def _on_deadline(self, event: events.DeadlineReached) -> None:
        self._deadline.stop(event.now)
        self.rounds.expire()
        if self.phase is TurnPhase.CONTINUING:
            raise RecallError(
                "the time for memory lookups ended before the continuation began",
                category=FailureCategory.FOLLOW_UP_SETUP,
                status=504,
            )
        self._out.add(CancelTools())
        self._advance()

    def _start_clock(self, event: events.TurnEvent) -> None:
        """Let time run while hidden calls do, up to the head of the continuation.

        That is one event's end whatever it led to: a second try or a recovery has to begin, too.
        """
        if not isinstance(event, events.KeepAliveDue | events.ShutdownDue):
            self._deadline.start(event.now)

    def _advance(self) -> None:
        """Go on once every hidden call of the current hop has its result."""
        terminal, hop = self._terminal, self.hop
        if terminal is None or not self.rounds.complete:
            return
        mixed = hop.interception.other_tool_seen
        last = self.rounds.last
        self._terminal = None
        outputs = self.rounds.close()
        self._joining.answer(hop, outputs, sent=not mixed)
        if line := self._anchor.take():
            self.view.show_anchor(line)
        if mixed:
            self._deliver(terminal)
            return
        limit, left = self._request.body.get("max_output_tokens"), None
        if type(limit) is int:
            left = limit - self._hops.used.output_tokens
            if left < _MIN_OUTPUT_TOKENS:
                self._end(self._conclusion.stop("max_output_tokens"))
                return
        self.phase = TurnPhase.CONTINUING
        self._open_hop(self._attempts.continuation(hop, outputs, max_output_tokens=left, last=last))

    # --- Second tries ---------------------------------------------------------------------

    def _try_again(self, error: SottovoceError) -> bool:
        """Answer a failure with another request, where that can't be noticed; say whether."""
        hop, view = self.hop, self.view
        if self.phase not in (TurnPhase.STREAMING, TurnPhase.CONTINUING):
            return False
        request = self._attempts.after(error, hop, committed=view.committed)
        if request is None:
            return False
        if not view.committed:
            view.forget()
        self.rounds.forget()
        self._out.add(CancelTools())
        self._hops.close()
        self.phase = TurnPhase.OPENING if hop.number == 1 else TurnPhase.CONTINUING
        self._open_hop(request)
        return True

    def _end_recovery(self, hop: Hop, accepted: Accepted) -> None:
        """Show a recovery that ended the turn well."""
        if accepted.event["type"] == "response.failed":
            raise failed_terminal(hop, self._options)
        check_recovered(hop.state, self._options.hidden_names)
        self.view.release_buffer(hop)
        hop.interception.settle(hop.state)
        self.view.release(hop)
        self._hops.close()
        self._deliver(accepted)

    # --- Endings --------------------------------------------------------------------------

    @property
    def _is_waiting(self) -> bool:
        """Whether the upstream's terminal came and hidden calls have no result yet."""
        return self._terminal is not None

    def _fail(self, error: SottovoceError) -> None:
        """Go on in another way, or end the turn."""
        if self.outcome is None and not self._try_again(error):
            self._give_up(error)

    def _give_up(self, error: SottovoceError) -> None:
        self._end(self._conclusion.give_up(error, waiting=self._is_waiting))

    def _deliver(self, accepted: Accepted) -> None:
        self._end(self._conclusion.deliver(accepted))

    def _end(self, outcome: TurnOutcome) -> None:
        failed = outcome.ending in _FAILURES
        self.phase = TurnPhase.FAILED if failed else TurnPhase.FINISHED
        self.outcome = outcome
        self._out.add(Finish(outcome))
