"""One client request up to its terminal event: the conductor.

``receive(event) -> commands``: what happens comes in, what is to be done goes out. A turn knows no
socket, no clock and no memory; whoever drives it can be a server, a test or a replay.

A turn consists of *hops*: the principal request, and one continuation after each round of hidden
calls. All of them feed one client stream with one ``created``, one numbering and one terminal.

::

    OPENING ──head──▶ STREAMING ──hidden calls──▶ RECALLING ──results──▶ CONTINUING ──head──┐
                          ▲                           │                                     │
                          └───────────────────────────┼─────────────────────────────────────┘
                          ▼                           ▼
                  FINISHED, FAILED            FINISHED (mixed), FAILED        ABORTED from anywhere

What the hops bring is accumulated in their states; what the client sees of it is ``view``'s
business, what hidden calls cost is ``rounds``'.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from pipeline import events
from pipeline.attempts import Attempts
from pipeline.commands import (
    CancelTools,
    CloseUpstream,
    Finish,
    OpenUpstream,
    Refuse,
    Relay,
    ReportEmpty,
    SaveJoin,
    Send,
)
from pipeline.errors import (
    FailureCategory,
    RecallError,
    SottovoceError,
    SSEStreamLimitError,
)
from pipeline.failures import (
    Refusal,
    ShutdownError,
    UnexpectedError,
    categorize,
    missing_terminal,
)
from pipeline.hop import Hop
from pipeline.intake import ENDINGS, Intake
from pipeline.intercept import Accepted, Interception
from pipeline.join import JoinRecord
from pipeline.lifecycle import TERMINALS
from pipeline.outcome import Ending, TurnOutcome, is_empty_completion
from pipeline.recovery import (
    check_recovered,
    fail_recall,
    failed_terminal,
    merge_failed_continuation_metadata,
)
from pipeline.rounds import Rounds
from pipeline.terminal import stop_reason
from pipeline.usage import add_usage
from pipeline.view import ClientView

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.commands import Command
    from pipeline.history import HiddenGroup
    from pipeline.options import TurnOptions
    from pipeline.request import Request

_MIN_OUTPUT_TOKENS: Final = 16
"""Fewer than these are no use for a continuation."""


class TurnPhase(StrEnum):
    """Where a turn is."""

    OPENING = "opening"
    STREAMING = "streaming"
    RECALLING = "recalling"
    CONTINUING = "continuing"
    FINISHED = "finished"
    FAILED = "failed"
    ABORTED = "aborted"


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
        spent: Usage summed over all hops.
        context: Usage of the last hop that reported any.
        outcome: How it ended; None while it runs.
        left: The join record of a turn whose client left, if there is something to join.
        fault: What should never have been raised; whoever drives the turn has to report it.
    """

    def __init__(self, request: Request, options: TurnOptions) -> None:
        self.phase = TurnPhase.OPENING
        self.hops: list[Hop] = []
        self.view = ClientView(options)
        self.rounds = Rounds(options.budgets, options.early_names)
        self.spent: dict[str, Any] | None = None
        self.context: dict[str, Any] | None = None
        self.outcome: TurnOutcome | None = None
        self.left: SaveJoin | None = None
        self.fault: Exception | None = None
        self._options = options
        self._request = request
        self._attempts = Attempts(request, options)
        join = JoinRecord if options.form is None else options.form.join
        self._join = join(request, options.id_key)
        self._commands: list[Command] = []
        self._terminal: Accepted | None = None
        self._unsent: tuple[bytes, ...] = ()
        self._refusal: Refusal | None = None
        self._intake = Intake(
            options, self.view, decide=self._decide, flush=self._flush, passed=self._end_body
        )
        self._waiting_since: float | None = None
        self._anchor: str | None = None
        self._anchored = False
        self._aside = False

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
        spending = self.rounds.spending
        if self._waiting_since is None or spending.out_of_time:
            return None
        return self._waiting_since + spending.seconds_left

    @property
    def reported_usage(self) -> dict[str, Any] | None:
        """The usage that this turn's client sees."""
        return self.spent if self._options.report == "sum" else self.context

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
        handler = HANDLERS.get((self.phase, type(event)))
        if handler is None:
            return []
        try:
            handler(self, event)
        except SottovoceError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - kept for a report; the client gets its terminal
            self.fault = error
            self._fail(UnexpectedError("the proxy failed unexpectedly; its log says why"))
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
                self._save_join(whole=False)
                left = (one for one in self._take_commands() if isinstance(one, SaveJoin))
                self.left = next(left, None)
        return self.outcome

    def _take_commands(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands

    def shown_refusal(self, body: bytes) -> bytes:
        """Return the body of a provider's error as the client may have it."""
        return self.hop.discretion.body(body)

    def _redact(self, text: str) -> str:
        return self.hop.redact(text)

    def _flush(self, *, last: bool = False) -> None:
        data = self.view.take(all_of_it=last)
        if data or last:
            self._commands.append(Send(data, last=last))

    # --- Hops -----------------------------------------------------------------------------

    def _open_hop(self, request: Request) -> None:
        self._flush()
        options, limits = self._options, self._options.limits
        number, recovering = self._attempts.number, self._attempts.recovering is not None
        phase = "principal" if number == 1 else f"continuation {number - 1}"
        if recovering:
            phase = "recovery"
        interception = Interception(
            options.hidden_names,
            deferred_bytes=limits.deferred_bytes,
            hidden_bytes=self._intake.hidden_room,
            hold_text=options.hold_text,
        )
        mode = options.mode  # the one value: it is asked for and read in the same form
        reader = options.reader(
            request, mode, limits, observed=options.observed, phase=phase, redact=self._redact
        )
        self._refusal = None
        self.hops.append(Hop(number, request, reader, interception, options))
        self.view.begin_hop(number, buffered=recovering)
        self._commands.append(OpenUpstream(number, request, mode))

    def _close_hop(self) -> None:
        """Count what the current hop brought; nothing of it is read any more."""
        if not self.hops or self.hop.closed:
            return
        hop = self.hop
        hop.closed = True
        self._intake.close(hop)
        self.spent, self.context = merge_failed_continuation_metadata(
            self.spent, self.context, hop.state
        )
        if len(self.hops) > 1:
            self.rounds.spending.count_continuation(hop.state.usage)
        self.view.collect(hop)
        self._commands.append(CloseUpstream())

    def _on_opened(self, event: events.UpstreamOpened) -> None:
        self._stop_clock(event.now)
        self._count_aside(event.spent)
        if 200 <= event.status < 300:
            self.phase = TurnPhase.STREAMING
            self.hop.opened = True
            self.hop.reader.head(event.content_type)
        elif len(self.hops) == 1 and not self.view.head_sent:
            self._commands.append(Relay())
            self._finish(Ending.PROVIDER_FAILED, status=event.status)
        else:
            self.phase = TurnPhase.STREAMING
            self._refusal = Refusal(
                event.status,
                phase=self.hop.phase,
                limit=self._options.limits.error_bytes,
                redact=self._redact,
            )

    def _on_chunk(self, event: events.UpstreamChunk) -> None:
        if self._refusal is None:
            self._intake.feed(self.hop, event.data)
            self._start_clock(event.now)
        elif self._refusal.add(event.data):
            raise self._refusal.error()

    def _on_ended(self, event: events.UpstreamEnded) -> None:
        if self._refusal is not None:
            raise self._refusal.error()
        self._intake.finish(self.hop)
        if self.phase is TurnPhase.STREAMING:
            reader = self.hop.reader
            raise reader.failure or missing_terminal(self.hop.state.error, self._redact)
        self._start_clock(event.now)

    def _on_failed(self, event: events.UpstreamFailed) -> None:
        self._stop_clock(event.now)
        self._count_aside(event.spent)
        if self._refusal is not None:  # what came of it says more
            raise self._refusal.error()
        raise event.error

    def _count_aside(self, usage: dict[str, Any] | None) -> None:
        """Count what was used for the turn and by none of its hops."""
        if usage is not None:
            self._aside = True
            self.spent = add_usage(self.spent, usage)

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
                self._commands.append(self._provisional())
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
        summed = hop.number > 1 or self._aside
        self.view.finish(hop, accepted, self.reported_usage, summed=summed)
        self._end_body(ending, stop_reason=reason, empty=empty)

    # --- Hidden calls ---------------------------------------------------------------------

    def _on_tool_finished(self, event: events.ToolFinished) -> None:
        self.rounds.finished(event.call_id, event.text)
        self._anchor = self._anchor or event.anchor
        if self.phase is TurnPhase.RECALLING:
            self._advance(event.now)

    def _on_deadline(self, event: events.DeadlineReached) -> None:
        self._stop_clock(event.now)
        self.rounds.expire()
        if self.phase is TurnPhase.CONTINUING:
            raise RecallError(
                "the time for memory lookups ended before the continuation began",
                category=FailureCategory.FOLLOW_UP_SETUP,
                status=504,
            )
        self._commands.append(CancelTools())
        self._advance(event.now)

    def _start_clock(self, now: float) -> None:
        """Let time run while hidden calls do, up to the head of the continuation."""
        if self._terminal is not None or self.phase is TurnPhase.CONTINUING:
            self._waiting_since = now

    def _stop_clock(self, now: float) -> None:
        if self._waiting_since is not None:
            self.rounds.spending.seconds += now - self._waiting_since
            self._waiting_since = None

    def _advance(self, now: float | None = None) -> None:
        """Go on once every hidden call of the current hop has its result."""
        terminal, hop = self._terminal, self.hop
        if terminal is None or not self.rounds.complete:
            return
        mixed = hop.interception.other_tool_seen
        last = self.rounds.last
        self._terminal = None
        outputs = self.rounds.close()
        self._join.add(hop, self.view.client, outputs)
        self._show_anchor()
        if mixed:
            self._unsent = tuple(outputs)
            self._deliver(terminal)
            return
        limit, left = self._request.body.get("max_output_tokens"), None
        if type(limit) is int:
            left = limit - int((self.spent or {}).get("output_tokens") or 0)
            if left < _MIN_OUTPUT_TOKENS:
                self._stop("max_output_tokens")
                return
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        self.phase = TurnPhase.CONTINUING
        self._open_hop(self._attempts.continuation(hop, outputs, max_output_tokens=left, last=last))

    def _show_anchor(self) -> None:
        """Show the client a line for its hidden calls, once a turn, where that is asked for."""
        options = self._options
        # A chat client's text is one, and JSON of a schema must parse: there is no place for it.
        if self._anchor and not self._anchored and options.form is None and not options.hold_text:
            self._anchored = True
            self.view.show_anchor(self._anchor)

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

    def _on_keep_alive(self, _: events.KeepAliveDue) -> None:
        self.view.keep_alive()

    def _on_shutdown(self, _: events.ShutdownDue) -> None:
        raise ShutdownError("the proxy is shutting down; try again")

    def _stop(self, reason: str) -> None:
        """End a turn that may not go on with a ``response.incomplete``."""
        self._save_join(whole=True)
        self.view.stop(reason, self.reported_usage)
        self._end_body(Ending.INCOMPLETE, stop_reason=reason)

    def _fail(self, error: SottovoceError) -> None:
        """End the turn with the one terminal that the client can still get."""
        if self.outcome is not None or self._try_again(error):
            return
        if self._attempts.recovering is not None:
            error = fail_recall(self._attempts.recovering, error, cause=self._attempts.cause)
        category = categorize(error, principal=self.hop.number == 1)
        limit = error.limit if isinstance(error, SSEStreamLimitError) else None
        view = self.view
        self._commands.append(CancelTools())
        status = None
        if view.committed:
            view.close_open_items(self.hop)
            self._close_hop()
            self._save_join(whole=False)
            view.fail(error, self._request.body.get("model"), self.reported_usage)
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

    def _provisional(self) -> SaveJoin:
        """Return the join record in case that no result of the running hidden calls comes."""
        outputs = self.rounds.unanswered()
        join = self._join.so_far()
        join.add(self.hop, self.view.client, outputs)
        return self._join_command(join.group(), tuple(outputs))

    def _save_join(self, *, whole: bool) -> None:
        """Ask for the join records before the terminal leaves, where there is something to join.

        Args:
            whole: Whether the current hop's response came to an end.
        """
        hop = self.hop
        hides = hop.interception.recall_indices or hop.interception.dropped
        if len(self.hops) == 1 and not hides and not self._withholds(hop):
            return  # most turns: nothing was kept from the client
        waiting = self._terminal is not None  # for results that won't come any more
        outputs = self.rounds.unanswered() if waiting else []
        self._join.add(hop, self.view.client, outputs, whole=whole or waiting)
        if not self._join.has_hidden and len(self.hops) == 1:
            return
        self._flush()
        group = self._join.group() if self._join.has_hidden else None
        self._commands.append(self._join_command(group, self._unsent))

    def _withholds(self, hop: Hop) -> bool:
        """Say whether the client gets an item of a hop without its ciphertext."""
        return self._options.withhold_ciphertext and any(
            "encrypted_content" in item.value for item in hop.state.items.values()
        )

    def _join_command(self, group: HiddenGroup | None, outputs: tuple[bytes, ...]) -> SaveJoin:
        return SaveJoin(
            group,
            str(self.view.response.get("id") or ""),
            tuple(hop.state.id for hop in self.hops if hop.state.id),
            outputs,
        )

    def _finish(self, ending: Ending, **details: Any) -> None:
        failed = ending in (Ending.FAILED, Ending.PROVIDER_FAILED)
        self.phase = TurnPhase.FAILED if failed else TurnPhase.FINISHED
        self.outcome = self._make_outcome(ending, **details)
        self._commands.append(Finish(self.outcome))

    def _make_outcome(self, ending: Ending, **details: Any) -> TurnOutcome:
        findings: dict[Any, int] = {}
        for hop in self.hops:
            for key, count in hop.check.findings.items():
                findings[key] = findings.get(key, 0) + count
        return TurnOutcome(
            ending,
            limit=details.pop("limit", None),
            truncated_by=self._intake.truncated_by,
            hops=len(self.hops),
            recovered_from=self._attempts.recovering,
            rounds=self.rounds.spending.rounds,
            recalls=self.rounds.spending.executions,
            hidden_bytes=self._intake.hidden_bytes,
            spent=self.spent,
            context=self.context,
            model=next((hop.state.model for hop in reversed(self.hops) if hop.state.model), None),
            response_id=self.view.response.get("id"),
            findings=findings,
            **details,
        )


_ANSWERED: Final = (TurnPhase.STREAMING, TurnPhase.RECALLING, TurnPhase.CONTINUING)
"""Where the upstream's head is known: the client's may go out only behind it."""

# ruff: noqa: SLF001 - the table below is part of the class, spelled where it can be read at once
HANDLERS: Final[dict[tuple[TurnPhase, type], Callable[[Turn, Any], None]]] = {
    (TurnPhase.OPENING, events.UpstreamOpened): Turn._on_opened,
    (TurnPhase.OPENING, events.UpstreamFailed): Turn._on_failed,
    (TurnPhase.STREAMING, events.UpstreamChunk): Turn._on_chunk,
    (TurnPhase.STREAMING, events.UpstreamEnded): Turn._on_ended,
    (TurnPhase.STREAMING, events.UpstreamFailed): Turn._on_failed,
    (TurnPhase.STREAMING, events.ToolFinished): Turn._on_tool_finished,
    (TurnPhase.RECALLING, events.ToolFinished): Turn._on_tool_finished,
    (TurnPhase.RECALLING, events.DeadlineReached): Turn._on_deadline,
    (TurnPhase.CONTINUING, events.UpstreamOpened): Turn._on_opened,
    (TurnPhase.CONTINUING, events.UpstreamFailed): Turn._on_failed,
    (TurnPhase.CONTINUING, events.DeadlineReached): Turn._on_deadline,
    **{(phase, events.KeepAliveDue): Turn._on_keep_alive for phase in _ANSWERED},
    **{(phase, events.ShutdownDue): Turn._on_shutdown for phase in (TurnPhase.OPENING, *_ANSWERED)},
}
"""Which phase takes what. Whatever is not here comes too late and is ignored."""
