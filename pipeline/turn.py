"""One client request up to its terminal event: the conductor.

``receive(event) -> commands``: what happens comes in, what is to be done goes out. A turn knows no
socket, no clock and no memory; whoever drives it can be a server, a test or a replay.

A turn consists of *hops*: the principal request, and one continuation after each round of hidden
calls. All of them feed one client stream with one ``created``, one numbering and one terminal.

Where a turn can be is in ``phases``. What the hops bring is accumulated in their states; what the
client sees of it is ``view``'s business, which request comes next ``attempts``', what hidden calls
cost ``rounds``', what the next request needs of them ``joining``'s.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, assert_never

from pipeline import events
from pipeline.anchor import Anchor
from pipeline.attempts import Attempts
from pipeline.commands import (
    CancelTools,
    CloseUpstream,
    Finish,
    OpenUpstream,
    Refuse,
    Relay,
    ReportEmpty,
    Send,
)
from pipeline.deadline import Deadline
from pipeline.errors import (
    FailureCategory,
    RecallError,
    SottovoceError,
)
from pipeline.failures import (
    UNEXPECTED,
    ShutdownError,
    UnexpectedError,
    categorize,
    missing_terminal,
)
from pipeline.hop import open_hop
from pipeline.intake import ENDINGS, Intake
from pipeline.joining import Joining
from pipeline.lifecycle import TERMINALS
from pipeline.outcome import Ending, TurnOutcome, is_empty_completion
from pipeline.phases import TAKES, TurnPhase
from pipeline.recovery import check_recovered, fail_recall, failed_terminal
from pipeline.rounds import Rounds
from pipeline.tally import Tally
from pipeline.terminal import stop_reason
from pipeline.view import ClientView

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.commands import Command, SaveJoin
    from pipeline.hop import Hop
    from pipeline.intercept import Accepted
    from pipeline.lifecycle import Rule
    from pipeline.options import TurnOptions
    from pipeline.request import Request

_MIN_OUTPUT_TOKENS: Final = 16
"""Fewer than these are no use for a continuation."""


P = ParamSpec("P")
T = TypeVar("T")


class Turn:
    """One turn. Feed it with ``receive`` and perform what it returns, in order.

    Args:
        request: The prepared principal request.
        options: What is fixed for the turn.

    Attributes:
        phase: Where it is.
        hops: The hops so far; the last one is current.
        view: What the client sees.
        rounds: Its hidden calls.
        used: What it has used.
        outcome: How it ended; None while it runs.
        left: The join record of a turn whose client left, if there is something to join.
        fault: What should never have been raised; whoever drives the turn has to report it.
    """

    def __init__(self, request: Request, options: TurnOptions) -> None:
        self.phase = TurnPhase.OPENING
        self.hops: list[Hop] = []
        self.view = ClientView(options)
        self.rounds = Rounds(options.budgets, options.early_names)
        self.used = Tally(options.report)
        self.outcome: TurnOutcome | None = None
        self.left: SaveJoin | None = None
        self.fault: Exception | None = None
        self._options = options
        self._request = request
        self._attempts = Attempts(request, options)
        self._joining = Joining(request, options, self.view, self.rounds)
        self._deadline = Deadline(self.rounds.spending)
        self._commands: list[Command] = []
        self._terminal: Accepted | None = None
        self._intake = Intake(
            options,
            self.view,
            decide=_unowned(self, Turn._decide),
            flush=_unowned(self, Turn._flush),
            passed=_unowned(self, Turn._end_body),
        )
        self._anchor = Anchor(options)

    def __repr__(self) -> str:
        return f"<Turn {self._options.turn_id} {self.phase} {self.hops}>"

    @property
    def hop(self) -> Hop:
        """The current hop."""
        return self.hops[-1]

    @property
    def streamed(self) -> bool:
        """Whether the client gets a stream."""
        return self._options.streamed

    @property
    def deadline(self) -> float | None:
        """When ``DeadlineReached`` is due, on the events' clock; None while no time runs."""
        return self._deadline.due

    # --- In and out -----------------------------------------------------------------------

    def start(self) -> list[Command]:
        """Return the commands that begin the turn."""
        self._open_hop(self._request)
        return self._take_commands()

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
        self._start_clock(event)
        self._flush()
        return self._take_commands()

    def _take(self, event: events.TurnEvent) -> None:
        match event:
            case events.UpstreamChunk():
                self._on_chunk(event)
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
            self._flush()
        return self._take_commands()

    def abort(self) -> TurnOutcome:
        """End a turn whose client left; return its outcome.

        The client keeps what it saw of finished items: the record of what belongs between them
        is in ``left``.
        """
        if self.outcome is None:
            self._close_hop()
            self.phase = TurnPhase.ABORTED
            self.outcome = self._make_outcome(Ending.CLIENT_DISCONNECT)
            if self.streamed and self.view.committed:
                self.left = self._join_record(whole=False)
        return self.outcome

    def _take_commands(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands

    def shown_refusal(self, body: bytes) -> bytes:
        """Return the body of a provider's error as the client may have it."""
        return self.hop.discretion.body(body)

    def hidden_ids(self) -> set[str]:
        """Return the ids of hidden calls, as far as they are known now."""
        calls = [call for hop in self.hops for call in hop.secret_calls()]
        ids = {known for call in calls for known in (call.id, call.call_id) if known}
        return ids | self._options.restored.call_ids

    def _is_kept(self, item: dict[str, Any]) -> bool:
        """Say whether an item answers a hidden call, or repeats one of an earlier turn."""
        if self._options.restored.has_call(item):
            return True
        return item["type"].endswith("_output") and item["call_id"] in self.hidden_ids()

    def _redact(self, text: str) -> str:
        return self.hop.redact(text)

    def _flush(self, *, last: bool = False) -> None:
        data = self.view.take(all_of_it=last)
        if data or last:
            self._commands.append(Send(data, last=last))

    # --- Hops -----------------------------------------------------------------------------

    def _open_hop(self, request: Request) -> None:
        self._flush()
        number, recovering = self._attempts.number, self._attempts.recovering is not None
        hop = open_hop(
            number,
            request,
            self._options,
            recovering=recovering,
            hidden_room=self._intake.hidden_room,
            redact=_unowned(self, Turn._redact),
            is_kept=_unowned(self, Turn._is_kept),
        )
        if self.hops:
            hop.interception.inherit(self.hop.interception)
        self.hops.append(hop)
        self.view.begin_hop(number, buffered=recovering)
        self._commands.append(OpenUpstream(number, request, self._options.mode))

    def _close_hop(self) -> None:
        """Count what the current hop brought; nothing of it is read any more."""
        if not self.hops or self.hop.closed:
            return
        hop = self.hop
        hop.closed = True
        self._intake.close(hop)
        self.used.count_hop(hop.state)
        if hop.number > 1:
            self.rounds.spending.count_continuation(hop.state.usage)
        self.view.collect(hop)
        self._commands.append(CloseUpstream())

    def _on_opened(self, event: events.UpstreamOpened) -> None:
        self._deadline.stop(event.now)
        self.used.count_aside(event.spent)
        refused = not 200 <= event.status < 300
        if refused and self.hop.number == 1 and not self.view.head_sent:
            self._commands.append(Relay())
            self._finish(Ending.PROVIDER_FAILED, status=event.status)
            return
        self.phase = TurnPhase.STREAMING
        if refused:
            self.hop.refused(event.status)
        else:
            self.hop.answered(event.content_type)

    def _on_chunk(self, event: events.UpstreamChunk) -> None:
        self._intake.feed(self.hop, event.data)

    def _on_ended(self) -> None:
        self._intake.finish(self.hop)
        if self.phase is TurnPhase.STREAMING:
            raise self.hop.reader.failure or missing_terminal(self.hop.state.error, self._redact)

    def _on_failed(self, event: events.UpstreamFailed) -> None:
        self._deadline.stop(event.now)
        self.used.count_aside(event.spent)
        # Where a refusal's body broke off, what came of it says more.
        raise event.error if self.hop.refusal is None else self.hop.refusal.error()

    def _decide(self, accepted: Accepted) -> None:
        """Take one accumulated event. Called in the stream's order."""
        if accepted.event["type"] in TERMINALS:
            self._on_terminal(accepted)
            return
        self.view.decide(self.hop, accepted)
        if pending := self.hop.interception.pending_recalls:
            self._commands += self.rounds.start(pending)

    # --- The upstream's terminal ----------------------------------------------------------

    def _on_terminal(self, accepted: Accepted) -> None:
        hop, interception = self.hop, self.hop.interception
        if self._attempts.recovering is not None:
            self._end_recovery(accepted)
            return
        if hop.number > 1 and not hop.visible and accepted.event["type"] == "response.failed":
            raise failed_terminal(self.hop, self._options)
        interception.settle(hop.state)
        self.view.release(hop)
        hidden = interception.recall_indices
        whole = len(interception.parsed_recall_inputs) == len(hidden)
        completed = accepted.event["type"] == "response.completed"
        self._commands += self.rounds.start(
            interception.pending_recalls, completed=completed and whole
        )
        self._close_hop()
        if not hidden:
            self._deliver(accepted)
        elif not completed:
            self._commands.append(CancelTools())
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
                self._commands.append(self._joining.provisional(self.hops))
            self._advance()

    def _deliver(self, accepted: Accepted) -> None:
        """Send the turn's terminal, made of the last hop's, and finish."""
        hop, response = self.hop, accepted.event["response"]
        ending = ENDINGS[accepted.event["type"]]
        reason = stop_reason(response)
        empty = ending is Ending.COMPLETED and is_empty_completion(hop.state.output())
        if empty:
            usage = hop.state.usage or {}
            rounds = self.rounds.spending.rounds
            self._commands.append(
                ReportEmpty(hop.state.model, reason, usage.get("output_tokens"), rounds)
            )
        self._save_join(whole=ending is not Ending.PROVIDER_FAILED)
        summed = hop.number > 1 or self.used.aside
        self.view.finish(hop, accepted, self.used.reported, summed=summed)
        self._end_body(ending, stop_reason=reason, empty=empty)

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
        self._commands.append(CancelTools())
        self._advance()

    def _start_clock(self, event: events.TurnEvent) -> None:
        """Let time run while hidden calls do, up to the head of the continuation.

        That is one event's end whatever it led to: a second try or a recovery has to begin, too.
        """
        if self.phase in (TurnPhase.RECALLING, TurnPhase.CONTINUING) and not isinstance(
            event, events.KeepAliveDue | events.ShutdownDue
        ):
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
            left = limit - self.used.output_tokens
            if left < _MIN_OUTPUT_TOKENS:
                self._stop("max_output_tokens")
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
        self._commands.append(CancelTools())
        self._close_hop()
        self.phase = TurnPhase.OPENING if hop.number == 1 else TurnPhase.CONTINUING
        self._open_hop(request)
        return True

    def _end_recovery(self, accepted: Accepted) -> None:
        """Show a recovery that ended the turn well."""
        hop = self.hop
        if accepted.event["type"] == "response.failed":
            raise failed_terminal(hop, self._options)
        check_recovered(hop.state, self._options.hidden_names)
        self.view.release_buffer(hop)
        hop.interception.settle(hop.state)
        self.view.release(hop)
        self._close_hop()
        self._deliver(accepted)

    # --- Endings --------------------------------------------------------------------------

    def _stop(self, reason: str) -> None:
        """End a turn that may not go on with a ``response.incomplete``."""
        self._save_join(whole=True)
        self.view.stop(reason, self.used.reported)
        self._end_body(Ending.INCOMPLETE, stop_reason=reason)

    def _fail(self, error: SottovoceError) -> None:
        """Go on in another way, or end the turn."""
        if self.outcome is None and not self._try_again(error):
            self._give_up(error)

    def _give_up(self, error: SottovoceError) -> None:
        """End the turn with the one terminal that the client can still get."""
        limit = error.limit
        if self._attempts.recovering is not None:
            error = fail_recall(self._attempts.recovering, error, cause=self._attempts.cause)
        category = categorize(error, principal=self.hop.number == 1)
        view = self.view
        self._commands.append(CancelTools())
        status = None
        if view.committed:
            view.close_open_items(self.hop)
            self._close_hop()
            self._save_join(whole=False)
            view.fail(error, self._request.body.get("model"), self.used.reported)
            self._flush(last=True)
        else:
            self._close_hop()
            view.forget()
            self._commands.append(Refuse(error))
            status = error.status
        self._finish(
            Ending.FAILED, category=category, message=error.message, limit=limit, status=status
        )

    def _end_body(
        self, ending: Ending, *, stop_reason: str | None = None, empty: bool = False
    ) -> None:
        self._close_hop()
        self._flush(last=True)
        self._finish(ending, stop_reason=stop_reason, empty=empty)

    def _save_join(self, *, whole: bool) -> None:
        """Ask for the join record before the terminal leaves, where there is something to join.

        Args:
            whole: Whether the current hop's response came to an end.
        """
        record = self._join_record(whole=whole)
        if record is not None:
            self._flush()
            self._commands.append(record)

    def _join_record(self, *, whole: bool) -> SaveJoin | None:
        waiting = self._terminal is not None  # for results that won't come any more
        return self._joining.final(self.hops, whole=whole, waiting=waiting)

    def _finish(self, ending: Ending, **details: Any) -> None:
        failed = ending in (Ending.FAILED, Ending.PROVIDER_FAILED)
        self.phase = TurnPhase.FAILED if failed else TurnPhase.FINISHED
        self.outcome = self._make_outcome(ending, **details)
        self._commands.append(Finish(self.outcome))

    def _make_outcome(self, ending: Ending, **details: Any) -> TurnOutcome:
        findings: Counter[tuple[Rule, str]] = Counter()
        for hop in self.hops:
            findings.update(hop.check.findings)
        return TurnOutcome(
            ending,
            truncated_by=self._intake.truncated_by,
            hops=self.hop.number if self.hops else 0,
            recovered_from=self._attempts.recovering,
            rounds=self.rounds.spending.rounds,
            recalls=self.rounds.spending.executions,
            hidden_bytes=self._intake.hidden_bytes,
            spent=self.used.spent,
            context=self.used.context,
            model=next((hop.state.model for hop in reversed(self.hops) if hop.state.model), None),
            response_id=self.view.response.get("id"),
            findings=dict(findings),
            **details,
        )


def _unowned(turn: Turn, method: Callable[Concatenate[Turn, P], T]) -> Callable[P, T]:
    """Return a method of a turn for the parts that call it back, without their holding the turn.

    So a turn that is over is freed with the last who needs it, and no collector has to find it
    among all that are open.
    """
    reference = weakref.ref(turn)

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        held = reference()
        if held is None:
            raise ReferenceError("the turn is gone")
        return method(held, *args, **kwargs)

    return call
