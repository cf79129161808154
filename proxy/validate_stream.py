"""Checks a recorded stream: every deviation by rule and event, and which clients survive it.

The events run through the same hop that serves live turns, so what is told here is what the proxy
itself finds. A live hop leaves out what would cost time and mends nothing (sequence numbers,
log probabilities, a terminal's output compared with the items); those rules are looked at here.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pipeline import jsontext
from pipeline.errors import ProtocolError
from pipeline.hop import Hop
from pipeline.intercept import Interception
from pipeline.lifecycle import (
    EVENTS,
    RULES,
    TERMINALS,
    Action,
    Checker,
    Dialect,
    Mode,
    Phase,
    Rule,
    Severity,
    Wire,
)
from pipeline.options import TurnOptions
from pipeline.reader import StreamMode
from pipeline.request import Request
from pipeline.sse import Frame, SSEDecoder
from proxy.validate_sdk import SDKStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pipeline.accepted import Accepted
    from pipeline.limits import Budgets, Limits

CLIENTS: Final = {
    "codex": "Codex",
    "sdk": "OpenAI SDK, create(stream=True)",
    "stream": "OpenAI SDK, responses.stream()",
}
"""The clients whose limits are known, by the names that the table of rules gives them."""

_FOLLOWED: Final = frozenset(
    {
        Rule.RESPONSE_ID_CHANGED,
        Rule.INDEX_REUSED,
        Rule.WRONG_ITEM_KIND,
        Rule.ITEM_ID_MISSING,
        Rule.ITEM_ID_REUSED,
        Rule.INDEX_MISSING,
        Rule.ADDED_MISSING,
        Rule.PART_MISSING,
        Rule.PART_INDEX_MISSING,
        Rule.PART_INCOMPLETE,
        Rule.ITEM_INCOMPLETE,
        Rule.TEXT_MISSING,
        Rule.DONE_MISSING,
        Rule.OUTPUT_EMPTY,
        Rule.CREATED_MISSING,
        Rule.BEFORE_CREATED,
        Rule.ERROR_NESTED,
    }
)
"""Whether ``responses.stream()`` breaks on these is found by following it, see ``SDKStream``."""
_TEXTS: Final = frozenset({"response.output_text.delta", "response.output_text.done"})
_DONE: Final = b"[DONE]"
_ODD_BYTES: Final = re.compile(rb"\A\xef\xbb\xbf|\r")


@dataclass(slots=True)
class Finding:
    """One kind of deviation in one response."""

    rule: Rule
    kind: str
    """The type of the event that deviates."""
    event: int
    """Which event of the response it was first seen at, counted from 1."""
    line: int
    """On which line of the recording."""
    breaks: frozenset[str]
    """The clients that break on it."""
    count: int = 1
    last: int = 0
    """At which event it was last seen."""

    @property
    def message(self) -> str:
        """What is wrong, in words."""
        return RULES[self.rule].text.format(event=self.kind or "an event")

    def severity(self, dialect: Dialect, *, strict: bool) -> Severity:
        """Return what it means in a dialect; strict mode rejects all but what is native."""
        spec = RULES[self.rule]
        usual = spec.codex if dialect is Dialect.CODEX else spec.public
        return Severity.REJECT if strict and usual is not Severity.NATIVE else usual


@dataclass(slots=True)
class Report:
    """What was found in one response."""

    events: int = 0
    terminal: str | None = None
    findings: dict[tuple[Rule, str], Finding] = field(default_factory=dict)
    stream_breaks_at: int | None = None
    """The event at which ``responses.stream()`` breaks, by what it looks up."""

    @property
    def verbatim(self) -> bool:
        """Whether the proxy would pass it byte for byte."""
        return all(RULES[rule].wire is Wire.KEEP for rule, _ in self.findings)

    def survives(self, client: str) -> bool:
        """Tell whether a client reads it as it is, without a proxy that mends it."""
        if client == "stream" and self.stream_breaks_at is not None:
            return False
        return not any(client in found.breaks for found in self.findings.values())

    def rejected(self, dialect: Dialect, *, strict: bool) -> bool:
        """Tell whether the proxy would end a turn over it."""
        return any(
            found.severity(dialect, strict=strict) is Severity.REJECT
            for found in self.findings.values()
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded body, with the line on which each of its frames begins."""

    frames: tuple[tuple[int, Frame], ...]


def recording(body: bytes, limits: Limits, *, line: int = 1) -> Recording:
    """Decode a body of server-sent events.

    Raises:
        SSEStreamLimitError: An event, or their number, is above its limit.
    """
    decoder = SSEDecoder(event_bytes=limits.event_bytes, frames=limits.frames)
    frames: list[tuple[int, Frame]] = []
    for frame in (*decoder.feed(body), *decoder.finish()):
        if isinstance(frame, Frame):
            frames.append((line, frame))
        line += _line_ends(frame.raw)
    return Recording(tuple(frames))


def inspect(
    recorded: Recording, dialect: Dialect, limits: Limits, budgets: Budgets
) -> Iterator[Report]:
    """Yield a report for each response of a recording: a new one begins after a terminal."""
    inspection = _Inspection(dialect, limits, budgets)
    for line, frame in recorded.frames:
        if inspection.ended and _begins_response(frame):
            yield inspection.finish()
            inspection = _Inspection(dialect, limits, budgets)
        inspection.take(frame, line)
    yield inspection.finish()


class _Recorder(Checker):
    """A checker that also tells each deviation when it is seen."""

    __slots__ = ("_tell",)

    def __init__(
        self, dialect: Dialect, *, items_limit: int, tell: Callable[[Rule, str], None]
    ) -> None:
        super().__init__(dialect, Mode.TOLERANT, items_limit=items_limit)
        self._tell = tell

    def report(self, rule: Rule, kind: str, *, limit: str | None = None) -> None:
        """Tell a deviation, then treat it as a live turn would."""
        self._tell(rule, kind)
        super().report(rule, kind, limit=limit)


class _Inspection:
    """One response on its way through a hop."""

    def __init__(self, dialect: Dialect, limits: Limits, budgets: Budgets) -> None:
        options = _options(dialect, limits, budgets)
        interception = Interception(
            frozenset(),
            deferred_bytes=limits.deferred_bytes,
            hidden_bytes=limits.hidden_bytes,
            hold_text=False,
        )
        self._hop = Hop(1, Request(b"{}", {}), options, interception)
        self._hop.check = _Recorder(dialect, items_limit=limits.items, tell=self._found)
        self._report = Report()
        self._client = SDKStream()
        self._line = 0
        self._raw = b""

    @property
    def ended(self) -> bool:
        """Whether the terminal was seen."""
        return self._report.terminal is not None

    def take(self, frame: Frame, line: int) -> None:
        """Check one frame; what is rejected is told and left out of the state."""
        if frame.data is None and frame.event is None:
            return
        self._line, self._raw = line, frame.raw
        if self.ended:
            if frame.data and frame.data.strip() != _DONE:
                self._found(Rule.AFTER_TERMINAL, str((_value(frame) or {}).get("type", "")))
            return
        self._report.events += 1
        event = _value(frame)
        if event is not None:
            self._look(event, str(event.get("type") or frame.event or ""))
        breaks = event is not None and self._client.take(event)
        with contextlib.suppress(ProtocolError):  # the recorder has told it
            self._hop.accept(frame, _ignore, _pass_by)
        self._report.terminal = self._hop.state.terminal
        if breaks:
            self._blame()

    def finish(self) -> Report:
        """Return the report of a response that has come to its end, or was cut."""
        if not self.ended:
            self._found(Rule.TERMINAL_MISSING, "")
        return self._report

    def _found(self, rule: Rule, kind: str) -> None:
        breaks = breaking(rule, self._raw)
        known = self._report.findings.get((rule, kind))
        if known is None:
            found = Finding(rule, kind, self._report.events, self._line, breaks)
            found.last = found.event
            self._report.findings[rule, kind] = found
        else:
            known.count += 1
            known.breaks |= breaks
            known.last = self._report.events

    def _blame(self) -> None:
        """Say which deviation ``responses.stream()`` breaks on: of this event, else the last."""
        report = self._report
        report.stream_breaks_at = report.events
        followed = [found for found in report.findings.values() if found.rule in _FOLLOWED]
        here = [found for found in followed if found.last == report.events]
        for found in here or followed[-1:]:
            found.breaks |= {"stream"}

    def _look(self, event: dict[str, Any], kind: str) -> None:
        """Look at what a live hop has no reason to."""
        state = self._hop.state
        spec = EVENTS.get(kind)
        if kind == "codex.rate_limits":
            self._found(Rule.RATE_LIMITS, kind)
        lifecycle = spec is not None and spec.action is Action.RESPONSE
        if state.phase is Phase.NONE and not lifecycle and kind != "response.done":
            self._found(Rule.BEFORE_CREATED, kind)
        if kind.startswith("response."):
            self._look_at_number(event.get("sequence_number"), kind)
        if kind in _TEXTS and "logprobs" not in event:
            self._found(Rule.LOGPROBS_MISSING, kind)
        if spec is not None and spec.action in (Action.SETTLE, Action.FINISH):
            self._look_at_arguments(event, kind)
        if kind in TERMINALS or kind == "response.done":
            self._look_at_output(event.get("response"), kind)

    def _look_at_number(self, number: object, kind: str) -> None:
        state = self._hop.state
        if type(number) is not int:
            self._found(Rule.SEQUENCE_MISSING, kind)
        elif state.numbered and number != state.sequence + 1:
            self._found(Rule.SEQUENCE_GAP, kind)

    def _look_at_arguments(self, event: dict[str, Any], kind: str) -> None:
        item = self._hop.item_of(event)
        value = event.get("item", event)
        if item is None or not isinstance(value, dict):
            return
        final = value.get("arguments") or value.get("input")
        if final and item.arguments and final != item.arguments:
            self._found(Rule.ARGUMENTS_DISAGREE, kind)

    def _look_at_output(self, response: object, kind: str) -> None:
        streamed = self._hop.state.output()
        output = response.get("output") if isinstance(response, dict) else None
        if not output and streamed and kind != "response.failed":
            self._found(Rule.OUTPUT_EMPTY, kind)
        elif output and output != streamed:
            self._found(Rule.OUTPUT_DIFFERS, kind)


def breaking(rule: Rule, raw: bytes) -> frozenset[str]:
    """Return the clients that break on a deviation in a frame with these bytes.

    The table of rules says it for all but two, and those on which ``responses.stream()`` breaks
    or not by what else comes: every client reads CRLF and several data lines,
    but not a bare CR, a byte order mark or an end without a blank line; and no SDK reads named
    data that is not JSON.
    """
    if rule is Rule.NOT_JSON:
        return frozenset({"sdk", "stream"})
    plain = raw.replace(b"\r\n", b"\n")
    if rule is Rule.FRAMING and plain.endswith(b"\n\n") and not _ODD_BYTES.search(plain):
        return frozenset()
    return frozenset(RULES[rule].breaks.split()) - ({"stream"} if rule in _FOLLOWED else set())


def _ignore(_hop: Hop, _accepted: Accepted) -> None:
    """Decide nothing: nobody is sent anything."""


def _pass_by(hop: Hop, raw: bytes, *, comment: bool) -> None:
    """Leave alone what is no event of the state."""


def _options(dialect: Dialect, limits: Limits, budgets: Budgets) -> TurnOptions:
    return TurnOptions(
        limits=limits,
        budgets=budgets,
        dialect=dialect,
        mode=StreamMode.SSE,
        streamed=True,
        tools=(),
        withhold_ciphertext=False,
        hold_text=False,
        report="sum",
        id_key=b"validate",
        turn_id="validate",
        created_at=0,
        redact=str,
    )


def _value(frame: Frame) -> dict[str, Any] | None:
    try:
        value = jsontext.loads(frame.data or b"")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _begins_response(frame: Frame) -> bool:
    return (_value(frame) or {}).get("type") == "response.created"


def _line_ends(raw: bytes) -> int:
    return raw.count(b"\n") or raw.count(b"\r")


def joined(bodies: Iterable[tuple[int, bytes]], limits: Limits) -> Recording:
    """Decode pieces that each begin on a line of their own, as one recording."""
    frames: list[tuple[int, Frame]] = []
    for line, body in bodies:
        frames += recording(body, limits, line=line).frames
    return Recording(tuple(frames))
