"""One upstream response: from its frames to accumulated events, in the one order that holds.

``normalize_codex_event`` → ``validate_response_lifecycle`` → ``seed_implicit_codex_item`` →
``apply_responses_event`` → the conductor decides what the client sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from pipeline import jsontext
from pipeline.accepted import Accepted, synthesized
from pipeline.commands import OpenUpstream
from pipeline.dialect import UNCHANGED, normalize_codex_event, seed_implicit_codex_item
from pipeline.discretion import TELLING, OwnWords
from pipeline.failures import Refusal
from pipeline.identity import mint_id
from pipeline.lifecycle import TERMINALS, Checker, Mode, Rule, validate_response_lifecycle
from pipeline.response import ResponseState, apply_responses_event
from pipeline.sse import BOM, encode_data, is_comment, is_whole, sniff_type
from pipeline.usage import usable_usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.intercept import Interception
    from pipeline.options import TurnOptions
    from pipeline.reader import Reader
    from pipeline.request import Request
    from pipeline.response import ItemState
    from pipeline.sse import Frame


class Foreign(Protocol):
    """Takes a frame that holds no event of the state."""

    def __call__(self, hop: Hop, raw: bytes, *, comment: bool) -> None:
        """Take its hop, its bytes, and whether it is only a comment."""


_TOLERANT: Final = Mode.TOLERANT
_TYPE: Final = frozenset({"type"})
_DONE: Final = b"[DONE]"
_LATE_TERMINALS: Final = (*TERMINALS, "response.done")


class Hop:
    """One upstream request and what came back.

    Args:
        number: Its ordinal.
        request: What is sent. It says itself how it is to be answered, and ``options.mode``, the
            one value that decided that, chooses the reader.
        options: What is fixed for the turn.
        interception: Decides what of it is hidden and held.
        recovering: Whether it is the turn's recovery.

    Attributes:
        number: 1 for the principal request.
        phase: What messages of errors call it.
        request: What was sent.
        state: What was accumulated.
        check: The lifecycle checker; its findings.
        interception: What is hidden and held.
        reader: Turns bytes into frames.
        quota: ``codex.rate_limits`` records that this hop brought.
        closed: Whether nothing of it is read any more.
        opened: Whether a 2xx head came.
        refusal: The body of an answer that is none; None while there is no such head.
        frames: How many frames came.
        visible: Whether the client saw an item of it.
        words: What its provider says in its own words.
    """

    __slots__ = (
        "_options",
        "check",
        "closed",
        "frames",
        "interception",
        "number",
        "opened",
        "phase",
        "quota",
        "reader",
        "refusal",
        "request",
        "state",
        "visible",
        "words",
    )

    def __init__(
        self,
        number: int,
        request: Request,
        options: TurnOptions,
        interception: Interception,
        *,
        recovering: bool = False,
    ) -> None:
        phase = "principal" if number == 1 else f"continuation {number - 1}"
        self.number = number
        self.phase = "recovery" if recovering else phase
        self.request = request
        self.state = state = ResponseState()
        if not options.mode.flag:
            state.numbered = False  # one body has no numbers, and misses none
        self.check = Checker(options.dialect, _TOLERANT, items_limit=options.limits.items)
        self.interception = interception
        self.words = OwnWords(options, request, state, interception)
        self.reader: Reader = options.reader(
            request,
            options.mode,
            options.limits,
            observed=options.observed,
            phase=self.phase,
            redact=self.words.redact,
        )
        self.quota: list[dict[str, Any]] = []
        self.closed = False
        self.opened = False
        self.refusal: Refusal | None = None
        self.visible = False
        self.frames = 0
        self._options = options

    def __repr__(self) -> str:
        return f"<Hop {self.number} {self.state!r}>"

    def opening(self) -> OpenUpstream:
        """Return the command that sends its request."""
        return OpenUpstream(self.number, self.request, self._options.mode)

    # --- The head ------------------------------------------------------------------------

    def answered(self, content_type: str | None) -> None:
        """Take a 2xx head.

        Args:
            content_type: Its header of that name.
        """
        self.opened = True
        self.reader.head(content_type)

    def refused(self, status: int) -> None:
        """Take any other: what follows is an error's body."""
        limit = self._options.limits.error_bytes
        self.refusal = Refusal(status, phase=self.phase, limit=limit, redact=self.words.redact)

    # --- Events --------------------------------------------------------------------------

    def mint(self, prefix: str, index: int) -> str:
        """Return an id of ours for an item of this hop, always the same for the same item."""
        options = self._options
        seed = f"{self.state.id or options.turn_id}/{self.number}"
        return mint_id(options.id_key, prefix, seed, index)

    def accept(
        self,
        frame: Frame,
        decide: Callable[[Hop, Accepted], None],
        foreign: Foreign,
    ) -> None:
        """Take one frame: accumulate its event, and have it decided upon.

        Args:
            frame: The frame, as the decoder gave it.
            decide: Called with every event after it was accumulated, missing ones first.
            foreign: Called with a frame that holds no event of the state but may pass:
                comments, and named data that is not JSON.

        Raises:
            ProtocolError: The event breaks a rule that is rejected.
        """
        raw, name, data, sound = frame
        event = jsontext.loads_object(data) if data else None
        if event is None or data is None:
            self._take_no_event(frame, foreign)
            return
        kind, changes = event.get("type"), UNCHANGED
        if type(kind) is not str or not kind:
            kind, changes = self._type_of(event, name)
            if not kind:
                return
        verbatim = sound and name == kind
        if not verbatim:
            self._report_frame(name, kind, sound=sound)
        if kind in TELLING:
            shown, told = self.words.event(event, data)
            if shown is not event:
                event, data, verbatim = shown, told, False
        state, check, mint = self.state, self.check, self.mint
        changes |= normalize_codex_event(event, state, check, mint)
        validate_response_lifecycle(event, state, check)
        for missing in seed_implicit_codex_item(event, state, check, mint):
            apply_responses_event(missing, state)
            decide(self, synthesized(missing))
        if "item" in event or "arguments" in event or "input" in event:
            self.interception.check_call(event, self.item_of(event))
        apply_responses_event(event, state, len(data))
        decide(self, Accepted(event, raw, data, changes, verbatim and not changes))

    def _take_no_event(self, frame: Frame, foreign: Foreign) -> None:
        """Take a frame without an event: without data, or with data that is no JSON object."""
        raw, name, data, sound = frame
        if data is None and name is None and is_comment(raw):
            if is_whole(raw):
                foreign(self, raw.removeprefix(BOM), comment=True)
        elif not data:
            self.check.report(Rule.EMPTY_DATA, name or "")
        elif data.strip() == _DONE:
            self.check.report(Rule.DONE_MARKER, name or "")
        else:
            if name is not None and name.startswith("response."):
                self.check.report(Rule.MALFORMED_JSON, name)
            self.check.report(Rule.NOT_JSON, name or "")
            if name is not None and is_whole(raw):
                foreign(self, raw if sound else encode_data(name, data), comment=False)

    def _report_frame(self, name: str | None, kind: str, *, sound: bool) -> None:
        """Report how a frame's event line and its framing are not as they should be."""
        if name is None:
            self.check.report(Rule.EVENT_LINE_MISSING, kind)
        elif name != kind:
            rule = Rule.TYPE_MISMATCH if name[:9] == "response." else Rule.EVENT_LINE_FOREIGN
            self.check.report(rule, name)
        if not sound:
            self.check.report(Rule.FRAMING, kind)

    # --- Reading -------------------------------------------------------------------------

    def _type_of(self, event: dict[str, Any], name: str | None) -> tuple[str, frozenset[str]]:
        """Return the type of an event whose payload lacks it, and whether it was put there.

        An empty type is that of an object that nobody could read as an event.
        """
        if not name:
            # An error that a middlebox dropped into the stream is still the provider's error.
            if isinstance(event.get("error"), dict):
                event["type"] = "error"
                return "error", UNCHANGED
            self.check.report(Rule.TYPE_MISSING, "")
            return "", UNCHANGED
        event["type"] = name
        if not name.startswith("response."):
            return name, UNCHANGED
        self.check.report(Rule.TYPE_MISSING, name)
        return name, _TYPE

    def item_of(self, event: dict[str, Any]) -> ItemState | None:
        """Return the item that an event belongs to, None where it belongs to none."""
        items = self.state.items
        index = event.get("output_index")
        if type(index) is int:
            return items.get(index)
        if isinstance(index, str) and index.isdecimal() and len(index) < 8:
            return items.get(int(index))  # of an unknown event: it must not get past what is hidden
        identity = event.get("item_id")
        known = self.state.ids.get(identity) if isinstance(identity, str) else None
        return None if known is None else items[known]

    def late_terminal(self, frame: Frame) -> str | None:
        """Return the terminal's type if this frame is one; take its usage and model.

        For a hop whose accumulation has ended: its frames pass, but its end still counts.
        """
        data = frame.data or b""
        kind = frame.event or sniff_type(data)
        if kind is not None and kind not in _LATE_TERMINALS:
            return None
        event = jsontext.loads_object(data)
        if event is None:
            self.check.report(Rule.NOT_JSON, "")
            event = {}
        kind = kind or event.get("type")
        if kind not in _LATE_TERMINALS:
            return None
        response = event.get("response")
        if isinstance(response, dict):
            self.state.usage = usable_usage(response.get("usage")) or self.state.usage
            self.state.response = {**self.state.response, "model": response.get("model")}
        return kind
