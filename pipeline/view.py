"""What the client gets to see of a turn.

Between the hops, which know everything, and the client stream, which only numbers and writes:
events are shown, hidden or held here, and the terminal is made whole.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from pipeline import jsontext
from pipeline.accepted import Accepted, named, synthesized
from pipeline.anchor import anchor_item
from pipeline.companion import Companion
from pipeline.dialect import DROP, UNCHANGED
from pipeline.echo import without_echo, without_output
from pipeline.errors import SSEStreamLimitError
from pipeline.identity import mint_id
from pipeline.intercept import Verdict
from pipeline.lifecycle import EVENTS, Action, ItemPhase
from pipeline.quota import QuotaLog
from pipeline.run import BEGINS, TextRun, begin_run
from pipeline.splice import ClientStream, JSONAnswer
from pipeline.sse import encode_comment
from pipeline.terminal import (
    bare_response,
    failed_event,
    fitting_edits,
    incomplete_event,
    response_edits,
)

if TYPE_CHECKING:
    from pipeline.errors import SottovoceError
    from pipeline.hop import Hop
    from pipeline.options import MakeAnswer, TurnOptions

    Json = dict[str, Any]

_QUOTA: Final = "codex.rate_limits"
_LIFECYCLE: Final = frozenset(one for one in EVENTS if EVENTS[one].action is Action.RESPONSE)
_SHOW: Final = Verdict.SHOW


class ClientView:
    """The client's side of a turn.

    Attributes:
        client: The stream that is written.
        quota: The provider's quota events of all hops.
        response: The response object of the newest lifecycle event that the client saw.
        output: The finished items that it saw, hop by hop.
        run: The text that the newest event continued, where the next may go on with it.
        head_sent: Whether the answer has begun, so that a failure must be told inside of it.
        relaying: Whether bytes only pass: nothing is accumulated any more.
    """

    def __init__(self, options: TurnOptions) -> None:
        answer: MakeAnswer = ClientStream if options.streamed else JSONAnswer
        if options.form is not None:
            answer = options.form.answer
        self.client: ClientStream = answer(withhold_ciphertext=options.withhold_ciphertext)
        self.quota = QuotaLog()
        self.response: Json = {}
        self.output: list[Json] = []
        self.head_sent = False
        self.run: TextRun | None = None
        self.relaying = False
        self._options = options
        self._held: list[Accepted] = []
        self._held_bytes = 0
        self._buffer: list[Accepted | Companion] | None = None
        self._quota_mark = self.quota.mark()

    @property
    def committed(self) -> bool:
        """Whether a failure can no longer be an answer of its own."""
        return self.head_sent or self.client.committed

    def take(self, *, all_of_it: bool) -> bytes:
        """Return what is ready to be sent.

        Comments alone don't begin the answer: until ``created`` it can still be an error.

        Args:
            all_of_it: Return it in any case.
        """
        if not (all_of_it or self.relaying or self.committed):
            return b""
        data = self.client.take()
        self.head_sent = self.head_sent or bool(data)
        return data

    def forget(self) -> None:
        """Drop what is ready: the answer will be another."""
        self.client.out.clear()

    # --- Events of the current hop --------------------------------------------------------

    def begin_hop(self, number: int, *, buffered: bool) -> None:
        """Take what follows as events of another hop, of which nothing was shown yet.

        Args:
            number: The hop's.
            buffered: Show nothing of it before ``release_buffer``.
        """
        if number > 1:
            self.client.start_hop()
        # What a hop that came to nothing told of the quota goes with it.
        self.quota.rollback(self._quota_mark)
        self._held, self._held_bytes = [], 0
        self._buffer = [] if buffered else None
        self.run = None

    def release_buffer(self, hop: Hop) -> None:
        """Show what a buffered hop brought."""
        buffered, self._buffer = self._buffer or [], None
        for one in buffered:
            if isinstance(one, Companion):
                self.client.accompany(one)
            else:
                self.decide(hop, one)

    def accompany(self, companion: Companion) -> None:
        """Take what the upstream said, of which the events in front of it were read."""
        if self._buffer is not None:
            self._buffer.append(companion)
        else:
            self.client.accompany(companion)

    def decide(self, hop: Hop, accepted: Accepted) -> None:
        """Show, hide or hold one accumulated event that is no terminal.

        Raises:
            SSEStreamLimitError: What is held or hidden reached its limit.
            ProtocolError: A hidden call is broken.
        """
        self.run = None
        if self._buffer is not None:
            self._buffer.append(accepted)
            return
        kind = accepted.event["type"]
        if kind in _LIFECYCLE:
            self._decide_lifecycle(hop, kind, accepted)
        elif kind == _QUOTA:
            self._decide_quota(hop, accepted)
        elif DROP in accepted.changes:
            self.client.begin_change()
        elif self.client.created:
            self._decide_item(hop, accepted)
        else:
            self._hold(accepted)

    def _decide_item(self, hop: Hop, accepted: Accepted) -> None:
        client = self.client
        item = hop.item_of(accepted.event)
        verdict = hop.interception.decide(accepted, item)
        if verdict is _SHOW:
            if item is not None:
                if not hop.visible:
                    self._become_visible(hop)
                client.show(accepted, item, hop.mint)
                if accepted.event["type"] in BEGINS:
                    self.run = begin_run(accepted, item, hop.state, client)
            elif _has_begun(hop):
                client.show(accepted, None, hop.mint)
            else:
                self._hold(accepted)
            return
        client.begin_change()
        self.release(hop)

    def release(self, hop: Hop) -> None:
        """Show what was held and whose turn has come."""
        interception = hop.interception
        if not interception.holding:
            return
        for held in interception.release():
            item = hop.item_of(held.event)
            self._become_visible(hop)
            self.client.show(named(held, item), item, hop.mint)
        self._release_noise(hop)

    def _release_noise(self, hop: Hop) -> None:
        interception = hop.interception
        if interception.noise and not interception.busy(hop.state):
            for raw in interception.release_noise():
                self.client.pass_through(raw)

    def _hold(self, accepted: Accepted) -> None:
        """Keep an event until its hop has begun for the client.

        The principal hop has with its ``created``. A continuation has with its first visible item:
        until then it may come to nothing, and its errors with it.
        """
        self._held.append(accepted)
        self._held_bytes += len(accepted.raw)
        if self._held_bytes > self._options.limits.deferred_bytes:
            raise SSEStreamLimitError(
                "recall stream exceeded deferred event limit", limit="deferred_bytes"
            )

    def _decide_quota(self, hop: Hop, accepted: Accepted) -> None:
        record = self.quota.append_codex_rate_limit_event(accepted.event)
        if record is None:
            return
        hop.quota.append(record)
        if not self.quota.publish(record):
            return
        rebuilt = Accepted(record, accepted.raw, jsontext.dumps(record), UNCHANGED, verbatim=False)
        if self.client.created and _has_begun(hop):
            self.client.show(rebuilt, None, hop.mint)
        else:
            self._hold(rebuilt)

    def _become_visible(self, hop: Hop) -> None:
        """Let what was held of a continuation go out with the first of its items."""
        if hop.visible:
            return
        hop.visible = True
        held, self._held = self._held, []
        for one in held:
            self.client.show(one, None, hop.mint)
        self._release_noise(hop)
        self._quota_mark = self.quota.mark()

    def foreign(self, hop: Hop, raw: bytes, *, comment: bool) -> None:
        """Take a frame that is no event of the state: a comment, or data that is not JSON."""
        client, interception = self.client, hop.interception
        if comment:
            # Comments keep their bytes where the stream is otherwise as it came.
            if not client.changed and not self._held:
                client.pass_through(raw)
        elif interception.busy(hop.state) or not (client.created and _has_begun(hop)):
            interception.hold_noise(raw)
        elif not interception.is_betrayed_by(raw):
            client.pass_through(raw)

    def _decide_lifecycle(self, hop: Hop, kind: str, accepted: Accepted) -> None:
        client = self.client
        if hop.number > 1:
            return  # the client has its created already
        accepted = without_echo(accepted, self._options.hidden_names, self._options.restored)
        if self._options.tools:
            accepted = without_output(accepted)
        if client.numbered is None:
            client.numbered = bool(hop.state.numbered)
        self.response = accepted.event["response"]
        if accepted.verbatim and not client.changed:
            client.show(accepted, None, hop.mint)
        else:
            client.write(kind, accepted.event, accepted.data, accepted.changes, {})
        if kind == "response.created" and not client.created:
            client.created = True
            self._show_early(hop)

    def _show_early(self, hop: Hop) -> None:
        early, self._held = self._held, []
        if any(one.event["type"] != _QUOTA for one in early):
            self.client.begin_change()
        for one in early:
            if one.event["type"] == _QUOTA:
                self.client.show(one, None, hop.mint)
            else:
                self._decide_item(hop, one._replace(verbatim=False))
        self.release(hop)

    def collect(self, hop: Hop) -> None:
        """Add the items of a hop that is over to the output, in the client's order."""
        client, visible = self.client, []
        for item in hop.state.ordered():
            index = client.index_of(item.index)
            if index is not None and (item.in_terminal or item.phase is ItemPhase.DONE):
                visible.append((index, client.visible(item.value, client.id_of(item) or None)))
        visible.sort(key=itemgetter(0))
        self.output += [value for _, value in visible]

    def begin_relay(self, hop: Hop) -> None:
        """Let bytes pass as they come from here on, those that were held first."""
        self.relaying = True
        self.run = None
        held, self._held = self._held, []
        for one in held:
            if one.event["type"] == _QUOTA:
                self.client.show(one, None, hop.mint)
            else:
                self.client.relay(one.raw)
        for raw in hop.interception.release_noise():
            self.client.relay(raw)

    def show_anchor(self, text: str) -> None:
        """Show a line of our own between two hops."""
        item = anchor_item(self._options.id_key, str(self.response.get("id") or ""), text)
        self.client.insert(item)
        self.output.append(item)

    # --- Endings --------------------------------------------------------------------------

    def finish(self, hop: Hop, accepted: Accepted, usage: Json | None, *, summed: bool) -> None:
        """Show the turn's terminal, made of the last hop's.

        Args:
            hop: The last hop, collected.
            accepted: Its terminal.
            usage: What is reported where the turn used more than this hop.
            summed: Whether it did.
        """
        client = self.client
        self._become_visible(hop)
        accepted = without_echo(accepted, self._options.hidden_names, self._options.restored)
        response = accepted.event["response"]
        keep = self._keeps_output(hop, accepted)
        edits = response_edits(
            response,
            output=response.get("output") if keep else self.output,
            first=self.response if hop.number > 1 else None,
            usage=usage,
            summed=summed,
        )
        if client.changed or (self._options.streamed and not accepted.verbatim):
            edits |= fitting_edits(accepted.event["type"], response, hop.words.error())
        if accepted.verbatim and not edits and not client.changed:
            client.show(accepted, None, hop.mint)
        else:
            client.write_response(accepted, edits)

    def _keeps_output(self, hop: Hop, accepted: Accepted) -> bool:
        """Say whether the output stays the provider's, although it may differ from the items.

        It does while the client saw the items as the provider wrote them, unless there is none.
        A failure's output is nobody's to read.
        """
        if self.client.changed or hop.state.mended or self._options.withhold_ciphertext:
            return False
        failed = accepted.event["type"] == "response.failed"
        return failed or bool(accepted.event["response"].get("output"))

    def stop(self, reason: str, usage: Json | None) -> None:
        """Show a ``response.incomplete`` of ours."""
        self._write(
            incomplete_event(reason, response=self.response, output=self.output, usage=usage)
        )

    def fail(self, error: SottovoceError, model: object, usage: Json | None) -> None:
        """Show a ``response.failed`` of ours; a ``created`` before it where none was."""
        if self.relaying and not self._options.streamed:
            return  # the body was begun by another: it can only be left unfinished
        self.client.leave_event()
        if not self.client.created:
            self._write_created(model)
        self._write(failed_event(error, response=self.response, output=self.output, usage=usage))

    def _write_created(self, model: object) -> None:
        options, client = self._options, self.client
        response_id = mint_id(options.id_key, "resp", options.turn_id, 0)
        self.response = bare_response(response_id, model, options.created_at)
        client.numbered = True
        client.created = True
        self._write({"type": "response.created", "response": self.response})

    def close_open_items(self, hop: Hop) -> None:
        """Close what the client saw begin, unless it is a call: clients run those at once."""
        if self.client.open_items:
            self.client.leave_event()
        for _, item in sorted(self.client.open_items.items()):
            if item.is_client_call or item.phase is ItemPhase.DONE:
                continue
            value = item.snapshot("incomplete")
            item.value, item.phase = value, ItemPhase.DONE
            done = {"type": "response.output_item.done", "output_index": item.index, "item": value}
            self.client.show(synthesized(done), item, hop.mint)

    def keep_alive(self) -> None:
        """Show a sign of life: a comment before ``created``, an event after it.

        Where bytes only pass, no event of ours can be numbered in: a comment it is, and inside of
        an event nothing.
        """
        if not self._options.streamed or self.client.cut:
            return
        if self.relaying or not self.client.created:
            self.client.pass_through(encode_comment("keep-alive"))
            self.head_sent = True
            return
        response = {**self.response, "status": "in_progress", "output": []}
        self._write({"type": "response.in_progress", "response": response})

    def _write(self, event: Json) -> None:
        self.client.write(event["type"], event, None, UNCHANGED, {})


def _has_begun(hop: Hop) -> bool:
    return hop.number == 1 or hop.visible
