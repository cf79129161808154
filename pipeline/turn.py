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
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

from pipeline import events, jsontext
from pipeline.budget import OUT_OF_TIME, SPENT, Spending
from pipeline.commands import (
    CancelTools,
    CloseUpstream,
    Command,
    Finish,
    OpenUpstream,
    Refuse,
    Relay,
    ReportEmpty,
    RunTool,
    SaveJoin,
    Send,
)
from pipeline.continuation import follow_up
from pipeline.dialect import UNCHANGED
from pipeline.errors import (
    FailureCategory,
    ProtocolError,
    RecallError,
    SottovoceError,
    SSEStreamLimitError,
    UpstreamError,
    UpstreamRefusedError,
)
from pipeline.hop import Hop
from pipeline.identity import is_minted_id, mint_id
from pipeline.intercept import Accepted, HiddenCall, Interception, Verdict
from pipeline.join import JoinRecord
from pipeline.lifecycle import EVENTS, TERMINALS, Action, Dialect, ItemPhase
from pipeline.outcome import Ending, TurnOutcome, is_empty_completion
from pipeline.quota import QuotaLog
from pipeline.reader import StreamMode, provider_error
from pipeline.request import HiddenTool, Request, cut_echo
from pipeline.splice import ClientStream, JSONAnswer
from pipeline.sse import Fragment, Frame, encode_comment
from pipeline.terminal import (
    bare_response,
    edit_response,
    failed_event,
    incomplete_event,
    response_edits,
)
from pipeline.usage import add_usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.limits import Budgets, Limits

_WRITE_EVENTS: Final = 64
"""Events after which bytes go out although more of the same read are to come."""
_MIN_OUTPUT_TOKENS: Final = 16
"""Fewer than these are no use for a continuation."""
_MESSAGE_CHARACTERS: Final = 500


class TurnPhase(StrEnum):
    """Where a turn is."""

    OPENING = "opening"
    STREAMING = "streaming"
    RECALLING = "recalling"
    CONTINUING = "continuing"
    FINISHED = "finished"
    FAILED = "failed"
    ABORTED = "aborted"


_OVER: Final = frozenset({TurnPhase.FINISHED, TurnPhase.FAILED, TurnPhase.ABORTED})


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """What is fixed for a turn before its first byte.

    Attributes:
        limits: Buffer limits.
        budgets: What hidden calls may cost.
        dialect: The upstream's habits.
        mode: How the upstream answers: written into every request, and reads every answer.
        streamed: Whether the client asked for a stream.
        tool: The hidden tool if it was declared in this request; nothing is hidden without it.
        withhold_ciphertext: Reasoning ciphertext was asked for by us alone.
        hold_text: The client wants JSON of a schema: text beside hidden calls is held.
        report: What the terminal reports: usage summed, or of the last hop.
        id_key: Key of the ids that we mint.
        turn_id: Names the turn; ids are minted from it where the upstream gives none.
        created_at: Unix time for a response object that the upstream never gave.
        redact: Takes secrets out of a provider's message.
    """

    limits: Limits
    budgets: Budgets
    dialect: Dialect
    mode: StreamMode
    streamed: bool
    tool: HiddenTool | None
    withhold_ciphertext: bool
    hold_text: bool
    report: Literal["sum", "last"]
    id_key: bytes
    turn_id: str
    created_at: int
    redact: Callable[[str], str]


class Turn:
    """One turn. Feed it with ``receive`` and perform what it returns, in order.

    Args:
        request: The prepared principal request.
        options: What is fixed for the turn.

    Attributes:
        phase: Where it is.
        hops: The hops so far; the last one is current.
        spending: What hidden calls have cost.
        quota: The provider's quota events of all hops.
        spent: Usage summed over all hops.
        context: Usage of the last hop that reported any.
        output: The finished items that the client saw.
        outcome: How it ended; None while it runs.
    """

    def __init__(self, request: Request, options: TurnOptions) -> None:
        self.phase = TurnPhase.OPENING
        self.hops: list[Hop] = []
        self.spending = Spending(options.budgets)
        self.quota = QuotaLog()
        self.spent: dict[str, Any] | None = None
        self.context: dict[str, Any] | None = None
        self.output: list[dict[str, Any]] = []
        self.outcome: TurnOutcome | None = None
        self._options = options
        self._request = request
        self._join = JoinRecord(request)
        answer = ClientStream if options.streamed else JSONAnswer
        self._client = answer(withhold_ciphertext=options.withhold_ciphertext)
        self._commands: list[Command] = []
        self._head_sent = False
        self._early: list[Accepted] = []
        self._response: dict[str, Any] = {}
        self._calls: dict[str, HiddenCall] = {}
        self._results: dict[tuple[str, str], str] = {}
        self._running: set[tuple[str, str]] = set()
        self._final_hop = False
        self._terminal: Accepted | None = None
        self._refusal: bytearray | None = None
        self._refusal_status = 0
        self._stream_bytes = 0
        self._hidden_bytes = 0
        self._retained = 0
        self._waiting_since: float | None = None
        self._truncated_by: str | None = None

    def __repr__(self) -> str:
        return f"<Turn {self._options.turn_id} {self.phase} {self.hops}>"

    @property
    def hop(self) -> Hop:
        """The current hop."""
        return self.hops[-1]

    @property
    def deadline(self) -> float | None:
        """When ``DeadlineReached`` is due, on the events' clock; None while no time runs."""
        if self._waiting_since is None or self.spending.out_of_time:
            return None
        return self._waiting_since + self.spending.seconds_left

    # --- Coming in ------------------------------------------------------------------------

    def start(self) -> list[Command]:
        """Return the commands that begin the turn."""
        self._open_hop(self._request)
        return self._take_commands()

    def receive(self, event: events.TurnEvent) -> list[Command]:
        """Take what happened and return what is to be done, in order.

        What comes too late for its phase is ignored. No error leaves this method: a turn that
        fails ends with the one terminal that its client can still get.
        """
        handler = _HANDLERS.get((self.phase, type(event)))
        if handler is None:
            return []
        try:
            handler(self, event)
        except SottovoceError as error:
            self._fail(error)
        self._flush()
        return self._take_commands()

    def abort(self) -> TurnOutcome:
        """End a turn whose client left; return its outcome."""
        if self.outcome is None:
            self.phase = TurnPhase.ABORTED
            self._close_hop()
            self.outcome = self._make_outcome(Ending.CLIENT_DISCONNECT)
        return self.outcome

    def _take_commands(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands

    # --- The upstream ---------------------------------------------------------------------

    def _open_hop(self, request: Request) -> None:
        self._flush()
        options, limits = self._options, self._options.limits
        number = len(self.hops) + 1
        reader = options.mode.reader(
            limits,
            observed=options.tool is None,
            phase="principal" if number == 1 else f"continuation {number - 1}",
            redact=options.redact,
        )
        interception = Interception(
            options.tool.name if options.tool is not None else None,
            deferred_bytes=limits.deferred_bytes,
            hidden_bytes=limits.hidden_bytes - self._hidden_bytes,
            hold_text=options.hold_text,
        )
        self.hops.append(
            Hop(
                number,
                request,
                reader,
                interception,
                dialect=options.dialect,
                limits=limits,
                id_key=options.id_key,
                turn_id=options.turn_id,
            )
        )
        if number > 1:
            self._client.start_hop()
        self._commands.append(OpenUpstream(number, request, options.mode))

    def _on_opened(self, event: events.UpstreamOpened) -> None:
        self._stop_clock(event.now)
        if 200 <= event.status < 300:
            self.hop.opened = True
            self.phase = TurnPhase.STREAMING
            self.hop.reader.head(event.content_type)
        elif self.hop.number == 1 and not self._head_sent:
            self._commands.append(Relay())
            self._finish(Ending.PROVIDER_FAILED, status=event.status)
        else:
            self.phase = TurnPhase.STREAMING
            self._refusal = bytearray()
            self._refusal_status = event.status

    def _on_chunk(self, event: events.UpstreamChunk) -> None:
        data = event.data
        if self._refusal is not None:
            self._refusal += data
            if len(self._refusal) >= self._options.limits.error_bytes:
                raise self._refused()
            return
        self._stream_bytes += len(data)
        if self._stream_bytes > self._options.limits.stream_bytes:
            self._exceed("Responses stream exceeded byte limit", "stream_bytes")
        reader = self.hop.reader
        self._take_frames(reader.feed(data), event.now)
        if reader.failure is not None and self.phase is TurnPhase.STREAMING:
            raise reader.failure

    def _on_ended(self, event: events.UpstreamEnded) -> None:
        if self._refusal is not None:
            raise self._refused()
        self._take_frames(self.hop.reader.finish(), event.now)
        if self.phase is not TurnPhase.STREAMING:
            return
        raise self._missing_terminal()

    def _on_failed(self, event: events.UpstreamFailed) -> None:
        self._stop_clock(event.now)
        raise event.error

    def _take_frames(self, frames: list[Frame | Fragment], now: float) -> None:
        hop, client = self.hop, self._client
        for frame in frames:
            if type(frame) is Fragment:
                self._relay_fragment(frame)
            elif self._truncated_by is not None:
                self._relay_frame(frame)
            else:
                hop.accept(frame, self._decide, self._foreign)  # type: ignore[arg-type]
                if self._retained + hop.state.retained > self._options.limits.retained_bytes:
                    self._exceed("Responses retained state exceeded byte limit", "retained_bytes")
            if self.phase is not TurnPhase.STREAMING:
                if self.phase in (TurnPhase.RECALLING, TurnPhase.CONTINUING):
                    self._waiting_since = now
                return
            if len(client.out) >= _WRITE_EVENTS:
                self._flush()

    def _refused(self) -> UpstreamRefusedError:
        """Return the error for a continuation that the upstream answered without a 2xx."""
        body = bytes(self._refusal or b"")[: self._options.limits.error_bytes]
        try:
            message, code = provider_error(jsontext.loads(body))
        except ValueError:
            message, code = "", None
        text = self._options.redact(message)[:_MESSAGE_CHARACTERS] or "no readable error"
        return UpstreamRefusedError(
            f"continuation {self.hop.number - 1}: the upstream answered "
            f"{self._refusal_status}: {text}",
            status=502,
            code=code,
            upstream_body=body,
        )

    def _missing_terminal(self) -> SottovoceError:
        error = self.hop.state.error
        if error is not None:
            message = self._options.redact(str(error.get("message")))[:_MESSAGE_CHARACTERS]
            code = error.get("code") or error.get("type")
            return UpstreamError(message, code=code if isinstance(code, str) else None)
        return _MissingTerminalError("the upstream's stream ended without a terminal event")

    # --- Limits ---------------------------------------------------------------------------

    def _exceed(self, message: str, limit: str) -> None:
        """End a declared turn, or only the accumulation of an observed one."""
        if self._options.tool is not None:
            raise SSEStreamLimitError(message, limit=limit)
        self._truncate(limit)

    def _truncate(self, limit: str) -> None:
        if self._truncated_by is None:
            self._truncated_by = limit
            self.hop.state.truncated = True

    def _relay_fragment(self, fragment: Fragment) -> None:
        """Pass a piece of an oversized event of an observed turn on."""
        if self._options.mode is StreamMode.SSE:
            self._truncate("event_bytes")
        elif not fragment.last:
            self._truncate("retained_bytes")
        self._client.pass_through(fragment.raw)
        if fragment.last and fragment.event in TERMINALS:
            self._end_body(_ENDINGS[fragment.event])
        elif fragment.last and self._options.mode is StreamMode.JSON:
            self._end_body(Ending.COMPLETED)

    def _relay_frame(self, frame: Frame) -> None:
        """Pass a frame on after accumulation ended; its terminal still ends the turn."""
        self._client.pass_through(frame.raw)
        kind = frame.event
        if kind is None and frame.data is not None and b'"response.' in frame.data[:200]:
            try:
                kind = jsontext.loads(frame.data).get("type")
            except (ValueError, AttributeError):
                kind = None
        if kind not in TERMINALS:
            return
        self._read_late_usage(frame)
        self._end_body(_ENDINGS[kind])

    def _read_late_usage(self, frame: Frame) -> None:
        try:
            response = jsontext.loads(frame.data or b"")["response"]
            usage, model = response.get("usage"), response.get("model")
        except (ValueError, LookupError, TypeError, AttributeError):
            return
        if isinstance(usage, dict):
            self.hop.state.usage = usage
        if isinstance(model, str):
            self.hop.state.response = {**self.hop.state.response, "model": model}

    # --- Deciding what the client sees ----------------------------------------------------

    def _decide(self, accepted: Accepted) -> None:
        """Show, hide or hold one accumulated event. Called in the stream's order."""
        event = accepted.event
        kind = event["type"]
        spec = EVENTS.get(kind)
        if spec is not None and spec.action is Action.RESPONSE:
            self._decide_lifecycle(kind, accepted)
            return
        if kind == "codex.rate_limits":
            self._decide_quota(accepted)
            return
        if not self._client.created:
            self._hold_early(accepted)
            return
        self._decide_item(accepted)

    def _decide_item(self, accepted: Accepted) -> None:
        hop, client = self.hop, self._client
        item = hop.item_of(accepted.event)
        verdict = hop.interception.decide(accepted, item)
        if verdict is Verdict.SHOW:
            client.show(accepted, item, hop.mint)
            return
        client.begin_change()
        if verdict is Verdict.HOLD:
            self._release()
        self._start_pending()
        if not hop.interception.busy(hop.state):
            for raw in hop.interception.release_noise():
                client.pass_through(raw)

    def _release(self) -> None:
        hop = self.hop
        for held in hop.interception.release():
            self._client.show(held._replace(verbatim=False), hop.item_of(held.event), hop.mint)

    def _hold_early(self, accepted: Accepted) -> None:
        """Keep an event that came before ``response.created`` until after it."""
        self._early.append(accepted)
        if sum(len(one.raw) for one in self._early) > self._options.limits.deferred_bytes:
            raise SSEStreamLimitError(
                "recall stream exceeded deferred event limit", limit="deferred_bytes"
            )

    def _decide_quota(self, accepted: Accepted) -> None:
        record = self.quota.append_codex_rate_limit_event(accepted.event)
        if record is None:
            return
        self.hop.quota.append(record)
        rebuilt = Accepted(record, accepted.raw, jsontext.dumps(record), UNCHANGED, verbatim=False)
        if self._client.created:
            self._client.show(rebuilt, None, self.hop.mint)
        else:
            self._hold_early(rebuilt)

    def _foreign(self, raw: bytes, *, comment: bool) -> None:
        """Take a frame that is no event of the state: a comment, or data that is not JSON."""
        client, interception = self._client, self.hop.interception
        if comment:
            if not client.changed and not self._early:
                client.pass_through(raw)
        elif interception.busy(self.hop.state) or not client.created:
            interception.hold_noise(raw)
        else:
            client.pass_through(raw)

    def _decide_lifecycle(self, kind: str, accepted: Accepted) -> None:
        client = self._client
        if kind in TERMINALS:
            self._on_terminal(accepted)
            return
        if self.hop.number > 1:
            return
        accepted = self._without_echo(accepted)
        if client.numbered is None:
            client.numbered = bool(self.hop.state.numbered)
        self._show_lifecycle(accepted)
        if kind == "response.created" and not client.created:
            client.created = True
            self._show_early()

    def _show_early(self) -> None:
        early, self._early = self._early, []
        if any(one.event["type"] != "codex.rate_limits" for one in early):
            self._client.begin_change()
        for one in early:
            if one.event["type"] == "codex.rate_limits":
                self._client.show(one, None, self.hop.mint)
            else:
                self._decide_item(one._replace(verbatim=False))
        for raw in self.hop.interception.release_noise():
            self._client.pass_through(raw)

    def _show_lifecycle(self, accepted: Accepted) -> None:
        self._response = accepted.event["response"]
        client = self._client
        if accepted.verbatim and not client.changed:
            client.show(accepted, None, self.hop.mint)
        else:
            client.write(
                accepted.event["type"], accepted.event, accepted.data, accepted.changes, {}
            )

    def _without_echo(self, accepted: Accepted) -> Accepted:
        """Cut our tool out of the provider's echo of the request."""
        tool = self._options.tool
        if tool is None:
            return accepted
        data = accepted.data
        if data is None or accepted.changes:
            data = jsontext.dumps(accepted.event)
        cut, event = cut_echo(data, accepted.event, tool)
        if event is accepted.event:
            return accepted
        return Accepted(
            event, accepted.raw, None if accepted.data is None else cut, UNCHANGED, verbatim=False
        )

    # --- The upstream's terminal ----------------------------------------------------------

    def _on_terminal(self, accepted: Accepted) -> None:
        hop = self.hop
        interception = hop.interception
        interception.settle(hop.state)
        self._release()
        self._start_pending()
        self._close_hop()
        kind = accepted.event["type"]
        hidden = [hop.state.items[index] for index in sorted(interception.recall_indices)]
        if not hidden or kind != "response.completed":
            if hidden:
                self._commands.append(CancelTools())
            self._deliver(accepted)
            return
        if len(interception.parsed_recall_inputs) < len(hidden):
            raise RecallError(
                "the upstream completed a call without its arguments or its id",
                category=FailureCategory.FOLLOW_UP_INCOMPLETE_ARGUMENTS,
            )
        self._terminal = accepted
        self.phase = TurnPhase.RECALLING
        self._advance()

    def _close_hop(self) -> None:
        """Count what the current hop brought; nothing of it is read any more."""
        if not self.hops or self.hop.closed:
            return
        self._flush()
        hop = self.hop
        usage = hop.state.usage
        hop.closed = True
        self._hidden_bytes += hop.interception.hidden_bytes
        self._retained += hop.state.retained
        self.spent = add_usage(self.spent, usage)
        if usage is not None:
            self.context = usage
        if hop.number > 1:
            self.spending.count_continuation(usage)
        self._commands.append(CloseUpstream())
        visible: list[tuple[int, dict[str, Any]]] = []
        for item in hop.state.ordered():
            index = self._client.index_of(item.index)
            if index is not None and (item.phase is ItemPhase.DONE or item.in_terminal):
                name = self._client.id_of(item)
                visible.append((index, self._client.visible(item.value, name or None)))
        self.output += [value for _, value in sorted(visible, key=lambda one: one[0])]

    def _deliver(self, accepted: Accepted) -> None:
        """Send the turn's terminal, made of the last hop's, and finish."""
        hop = self.hop
        accepted = self._without_echo(accepted)
        response = accepted.event["response"]
        edits = response_edits(
            response,
            output=self.output,
            first=self._response if hop.number > 1 else None,
            usage=self.reported_usage,
        )
        kind = accepted.event["type"]
        ending = _ENDINGS[kind]
        empty = ending is Ending.COMPLETED and is_empty_completion(hop.state.output())
        if empty:
            self._commands.append(
                ReportEmpty("completed", (self.context or {}).get("output_tokens"), hop.number - 1)
            )
        self._save_join()
        client = self._client
        if accepted.verbatim and not edits and not client.changed:
            client.show(accepted, None, hop.mint)
        else:
            client.write_response(accepted, edits)
        self._end_body(ending, stop_reason=_stop_reason(response), empty=empty)

    @property
    def reported_usage(self) -> dict[str, Any] | None:
        """The usage that this turn's client sees."""
        return self.spent if self._options.report == "sum" else self.context

    # --- Hidden calls ---------------------------------------------------------------------

    def _start_pending(self) -> None:
        """Execute hidden calls that became complete; equal ones once in a turn."""
        pending = self.hop.interception.pending_recalls
        while pending:
            call = pending.pop(0)
            if call.call_id in self._calls:
                raise ProtocolError("the upstream used one call id for two calls")
            self._calls[call.call_id] = call
            if call.key in self._results or call.key in self._running:
                continue
            if self._final_hop or not self.spending.may_execute():
                self._results[call.key] = SPENT
                continue
            self._running.add(call.key)
            self._commands.append(RunTool(call.call_id, call.name, call.arguments))

    def _on_tool_finished(self, event: events.ToolFinished) -> None:
        call = self._calls.get(event.call_id)
        if call is None:
            return
        self._running.discard(call.key)
        self._results.setdefault(call.key, event.text)
        if self.phase is TurnPhase.RECALLING:
            self._advance(event.now)

    def _on_deadline(self, event: events.DeadlineReached) -> None:
        self._stop_clock(event.now)
        self.spending.out_of_time = True
        if self.phase is TurnPhase.CONTINUING:
            raise RecallError(
                "the time for memory lookups ended before the continuation began",
                category=FailureCategory.FOLLOW_UP_SETUP,
                status=504,
            )
        self._commands.append(CancelTools())
        for call in self._calls.values():
            self._results.setdefault(call.key, OUT_OF_TIME)
        self._advance(event.now)

    def _stop_clock(self, now: float) -> None:
        if self._waiting_since is not None:
            self.spending.seconds += now - self._waiting_since
            self._waiting_since = None

    def _advance(self, now: float | None = None) -> None:
        """Go on once every hidden call of the current hop has its result."""
        hop, terminal = self.hop, self._terminal
        calls = sorted(self._calls.values(), key=lambda call: call.index)
        if terminal is None or any(call.key not in self._results for call in calls):
            return
        mixed = hop.interception.other_tool_seen
        if self._final_hop and not mixed:
            raise RecallError(
                "the model kept calling for memory after its last lookup",
                category=FailureCategory.DEPTH_EXHAUSTED,
            )
        texts = [self._results[call.key] for call in calls]
        outputs = [
            jsontext.dumps(call.output(text))
            for call, text in zip(calls, self.spending.finish_round(texts), strict=True)
        ]
        self._join.add_hop(hop, self._client, outputs, self._options.id_key)
        self._calls.clear()
        self._final_hop = self.spending.exhausted
        if mixed:
            self._deliver(terminal)
            return
        self._continue(outputs, now)

    def _continue(self, outputs: list[bytes], now: float | None) -> None:
        limit = self._request.body.get("max_output_tokens")
        left = None
        if type(limit) is int:
            left = limit - int((self.spent or {}).get("output_tokens") or 0)
            if left < _MIN_OUTPUT_TOKENS:
                self._stop_incomplete("max_output_tokens")
                return
        items = [
            jsontext.dumps(_as_sent(item.value, self._options.id_key))
            for item in self.hop.state.ordered()
            if item.phase is ItemPhase.DONE
        ]
        request = follow_up(
            self.hop.request, items=[*items, *outputs], outputs=(), max_output_tokens=left
        )
        self._terminal = None
        self.phase = TurnPhase.CONTINUING
        self._open_hop(request)
        if now is not None and self._waiting_since is None:
            self._waiting_since = now

    # --- Endings --------------------------------------------------------------------------

    def _stop_incomplete(self, reason: str) -> None:
        event = incomplete_event(
            reason, response=self._response, output=self.output, usage=self.reported_usage
        )
        self._save_join()
        self._client.write(event["type"], event, None, UNCHANGED, {})
        self._end_body(Ending.INCOMPLETE, stop_reason=reason)

    def _fail(self, error: SottovoceError) -> None:
        """End the turn with the one terminal that the client can still get."""
        if self.phase in _OVER:
            return
        category = self._categorize(error)
        if self.hops and self.hop.number > 1 and isinstance(error, UpstreamRefusedError):
            error = self._retryable_unless_final(error)
        self._commands.append(CancelTools())
        client = self._client
        if not self._head_sent and not client.committed:
            self._close_hop()
            client.out.clear()
            self._commands.append(Refuse(error))
            self._finish_failed(error, category, status=error.status)
            return
        self._close_open_items()
        self._close_hop()
        if not client.created:
            self._write_created()
        event = failed_event(
            error, response=self._response, output=self.output, usage=self.reported_usage
        )
        self._save_join()
        client.write(event["type"], event, None, UNCHANGED, {})
        self._flush(last=True)
        self._finish_failed(error, category)

    def _retryable_unless_final(self, error: UpstreamRefusedError) -> SottovoceError:
        """Keep the provider's code only where clients know it as final."""
        if error.code in _FINAL_CODES:
            return error
        return UpstreamError(error.message, status=502)

    def _close_open_items(self) -> None:
        """Close what the client saw begin, unless it is a call: clients run those at once."""
        hop, client = self.hop, self._client
        for _, item in sorted(client.open_items.items()):
            if item.is_client_call or item.phase is ItemPhase.DONE:
                continue
            value = item.snapshot("incomplete")
            item.value, item.phase = value, ItemPhase.DONE
            done = {
                "type": "response.output_item.done",
                "output_index": item.index,
                "item": value,
            }
            client.show(Accepted(done, b"", None, UNCHANGED, verbatim=False), item, hop.mint)
        client.open_items.clear()

    def _write_created(self) -> None:
        options = self._options
        response_id = mint_id(options.id_key, "resp", options.turn_id, 0)
        self._response = bare_response(
            response_id, self._request.body.get("model"), options.created_at
        )
        client = self._client
        client.numbered = True
        client.created = True
        event = {"type": "response.created", "response": self._response}
        client.write("response.created", event, None, UNCHANGED, {})

    def _categorize(self, error: SottovoceError) -> FailureCategory:
        principal = not self.hops or self.hop.number == 1
        match error:
            case RecallError():
                return error.category
            case SSEStreamLimitError():
                return (
                    FailureCategory.PRINCIPAL_LIMIT if principal else FailureCategory.RESOURCE_LIMIT
                )
            case _MissingTerminalError() if principal:
                return FailureCategory.PRINCIPAL_MISSING_TERMINAL
            case ProtocolError():
                return (
                    FailureCategory.PRINCIPAL_PROTOCOL
                    if principal
                    else FailureCategory.FOLLOW_UP_PROTOCOL
                )
            case UpstreamRefusedError() if not principal:
                return FailureCategory.FOLLOW_UP_FAILED
            case UpstreamError():
                return (
                    FailureCategory.PRINCIPAL_TRANSPORT
                    if principal
                    else FailureCategory.FOLLOW_UP_TRANSPORT
                )
            case _:
                return FailureCategory.UNEXPECTED

    def _end_body(
        self, ending: Ending, *, stop_reason: str | None = None, empty: bool = False
    ) -> None:
        self._flush(last=True)
        self._close_hop()
        self._finish(ending, stop_reason=stop_reason, empty=empty)

    def _finish_failed(
        self, error: SottovoceError, category: FailureCategory, status: int | None = None
    ) -> None:
        limit = error.limit if isinstance(error, SSEStreamLimitError) else None
        self._finish(
            Ending.FAILED, category=category, message=error.message, limit=limit, status=status
        )

    def _finish(self, ending: Ending, **details: Any) -> None:  # noqa: ANN401 - outcome's fields
        self.phase = (
            TurnPhase.FAILED
            if ending in (Ending.FAILED, Ending.PROVIDER_FAILED)
            else TurnPhase.FINISHED
        )
        self.outcome = self._make_outcome(ending, **details)
        self._commands.append(Finish(self.outcome))

    def _make_outcome(self, ending: Ending, **details: Any) -> TurnOutcome:  # noqa: ANN401
        findings: dict[Any, int] = {}
        for hop in self.hops:
            for key, count in hop.check.findings.items():
                findings[key] = findings.get(key, 0) + count
        limit = details.pop("limit", None) or self._truncated_by
        first = self.hops[0].state if self.hops else None
        return TurnOutcome(
            ending,
            limit=limit,
            hops=len(self.hops),
            rounds=self.spending.rounds,
            recalls=self.spending.executions,
            hidden_bytes=self._hidden_bytes,
            spent=self.spent,
            context=self.context,
            model=next((hop.state.model for hop in reversed(self.hops) if hop.state.model), None),
            response_id=first.id if first is not None else None,
            findings=findings,
            **details,
        )

    def _save_join(self) -> None:
        """Ask for the join records before the terminal leaves, where there is something to join."""
        if not self._join.has_hidden and len(self.hops) == 1:
            return
        self._flush()
        self._join.add_last_hop(self.hop, self._client, self._options.id_key)
        self._commands.append(
            SaveJoin(
                self._join.group() if self._join.has_hidden else None,
                str(self._response.get("id") or ""),
                tuple(hop.state.id for hop in self.hops if hop.state.id),
            )
        )

    # --- Going out ------------------------------------------------------------------------

    def _on_keep_alive(self, _: events.KeepAliveDue) -> None:
        client = self._client
        if not self._options.streamed:
            return
        if not client.created or self._truncated_by is not None:
            client.pass_through(encode_comment("keep-alive"))
            self._head_sent = True
            return
        event = {
            "type": "response.in_progress",
            "response": {**self._response, "status": "in_progress", "output": []},
        }
        client.write(event["type"], event, None, UNCHANGED, {})

    def _on_shutdown(self, _: events.ShutdownDue) -> None:
        raise _ShutdownError("the proxy is shutting down; try again", status=503)

    def _flush(self, *, last: bool = False) -> None:
        """Send what is ready. Comments alone don't commit the head before ``created``."""
        client = self._client
        if not (last or client.committed or self._head_sent or self._truncated_by):
            return
        data = client.take()
        if data or last:
            self._commands.append(Send(data, last=last))
            self._head_sent = True


class _MissingTerminalError(UpstreamError):
    """The upstream's body ended, as announced, before its terminal event."""


class _ShutdownError(SottovoceError):
    """The proxy ends what is left."""

    type = "server_error"


_FINAL_CODES: Final = frozenset(
    {
        "context_length_exceeded",
        "insufficient_quota",
        "invalid_prompt",
        "server_is_overloaded",
        "usage_not_included",
        "rate_limit_exceeded",
    }
)
"""Provider codes that clients act upon; any other means to them: try again."""

_ENDINGS: Final = {
    "response.completed": Ending.COMPLETED,
    "response.incomplete": Ending.INCOMPLETE,
    "response.failed": Ending.PROVIDER_FAILED,
}


def _stop_reason(response: dict[str, Any]) -> str:
    details = response.get("incomplete_details")
    if isinstance(details, dict) and isinstance(details.get("reason"), str):
        return str(details["reason"])
    return str(response.get("status") or "completed")


def _as_sent(value: dict[str, Any], id_key: bytes) -> dict[str, Any]:
    """Return an output item as the upstream gave it: without an id that we minted."""
    identity = value.get("id")
    if isinstance(identity, str) and is_minted_id(id_key, identity):
        return {name: one for name, one in value.items() if name != "id"}
    return value


_LIVE: Final = (
    TurnPhase.OPENING,
    TurnPhase.STREAMING,
    TurnPhase.RECALLING,
    TurnPhase.CONTINUING,
)

_HANDLERS: Final[dict[tuple[TurnPhase, type], Callable[[Turn, Any], None]]] = {
    (TurnPhase.OPENING, events.UpstreamOpened): Turn._on_opened,
    (TurnPhase.CONTINUING, events.UpstreamOpened): Turn._on_opened,
    (TurnPhase.STREAMING, events.UpstreamChunk): Turn._on_chunk,
    (TurnPhase.STREAMING, events.UpstreamEnded): Turn._on_ended,
    (TurnPhase.OPENING, events.UpstreamFailed): Turn._on_failed,
    (TurnPhase.STREAMING, events.UpstreamFailed): Turn._on_failed,
    (TurnPhase.CONTINUING, events.UpstreamFailed): Turn._on_failed,
    (TurnPhase.STREAMING, events.ToolFinished): Turn._on_tool_finished,
    (TurnPhase.RECALLING, events.ToolFinished): Turn._on_tool_finished,
    (TurnPhase.RECALLING, events.DeadlineReached): Turn._on_deadline,
    (TurnPhase.CONTINUING, events.DeadlineReached): Turn._on_deadline,
    **{(phase, events.KeepAliveDue): Turn._on_keep_alive for phase in _LIVE},
    **{(phase, events.ShutdownDue): Turn._on_shutdown for phase in _LIVE},
}
"""Which phase takes what. Whatever is not here comes too late and is ignored."""
