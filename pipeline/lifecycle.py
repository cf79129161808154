"""The lifecycle of a Responses stream: one table of events, one of rules, and their checker.

A response is *created*, may be *queued*, is *in progress*, and ends *completed*, *failed* or
*incomplete*. In between, items appear at output indices: each is added, grows by deltas inside
parts, and is done. ``EVENTS`` says which event needs which state and leads to which.

Real providers break these rules in ways that are known (see ``docs/lifecycle.md``), so a rule is
more than true or false. ``RULES`` gives each deviation two answers:

*Severity*: what we do about it.
    ``reject``    It would corrupt the client's stream or concerns a hidden call: the turn ends.
    ``repair``    Our state is mended, so that accumulation goes on as if it had been right.
    ``native``    The dialect is like that: mended as well, and no fault even in strict mode.
    ``tolerate``  Counted, and otherwise left alone.
*Wire*: what the client gets.
    ``keep``      The bytes that came. The mended state is ours alone.
    ``write``     A rewritten event, because a real client would break on the original.

The distinction is the heart of the proxy: a stream in which every deviation is ``keep`` passes
byte for byte, whatever we had to mend to understand it.

Modes: ``tolerant`` as the table says; ``strict`` rejects what would be repaired or tolerated (to
test a provider); ``sent`` holds what we send to the rules that real clients need, unknown events
allowed.

The checker is a pure function over explicit state: ``validate_response_lifecycle(event, state,
check)`` changes nothing and raises ``ProtocolError`` for what is rejected.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.errors import ProtocolError
from pipeline.native import mypyc_attr

if TYPE_CHECKING:
    from pipeline.response import ItemState, ResponseState


class Dialect(StrEnum):
    """Whose habits a stream has."""

    PUBLIC = "public"
    CODEX = "codex"


class Mode(StrEnum):
    """How the rules are applied."""

    TOLERANT = "tolerant"
    STRICT = "strict"
    SENT = "sent"


class Severity(StrEnum):
    """What a deviation means to us."""

    REJECT = "reject"
    REPAIR = "repair"
    NATIVE = "native"
    TOLERATE = "tolerate"


class Wire(StrEnum):
    """What a deviation means to the bytes for the client."""

    KEEP = "keep"
    WRITE = "write"


# --- Events ---------------------------------------------------------------------------------


class Phase(StrEnum):
    """Where a response is."""

    NONE = "none"
    CREATED = "created"
    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    INCOMPLETE = "incomplete"


TERMINAL_PHASES: Final = frozenset({Phase.COMPLETED, Phase.FAILED, Phase.INCOMPLETE})


class ItemPhase(StrEnum):
    """Where an item is."""

    OPEN = "open"
    ARGUMENTS_DONE = "arguments_done"
    DONE = "done"


class Action(StrEnum):
    """What an event does to the accumulated state."""

    RESPONSE = "response"  # moves the response to another phase
    ADD = "add"  # opens an item
    FINISH = "finish"  # closes an item, with its final value
    OPEN_PART = "open_part"  # opens a part of an item
    CLOSE_PART = "close_part"  # closes a part, with its final value
    APPEND = "append"  # adds a delta to a text of an item
    SETTLE = "settle"  # gives the whole text, which replaces the deltas
    ANNOTATE = "annotate"  # adds an annotation to a part
    PROGRESS = "progress"  # a hosted tool's phase, nothing to accumulate
    FREE = "free"  # belongs to no item


class EventSpec(NamedTuple):
    """One row of the table of events."""

    action: Action
    item_types: frozenset[str] | None = None
    """The item types that it may belong to; None for any."""
    needs: str = ""
    leads_to: str = ""
    field: str = ""
    """Which text of the item it concerns: ``text``, ``refusal``, ``arguments``, ``diff`` …"""
    value: str = ""
    """The member of the event that carries the delta, or the whole text."""
    part: str = ""
    """The member that numbers the part: ``content_index``, ``summary_index``, ``command_index``."""


def _response(needs: str, leads_to: Phase) -> EventSpec:
    return EventSpec(Action.RESPONSE, needs=needs, leads_to=leads_to.value)


def _texts(
    prefix: str,
    item_type: str,
    *,
    field: str = "text",
    part: str = "content_index",
    delta: str = "delta",
    whole: str | None = None,
) -> dict[str, EventSpec]:
    """Return the pair of rows of a text that comes in deltas and is then given as a whole."""
    types = frozenset({item_type})
    where = "part open" if part else "item open"
    after = "part text done" if part else "item arguments done"
    return {
        f"{prefix}.delta": EventSpec(Action.APPEND, types, where, where, field, delta, part),
        f"{prefix}.done": EventSpec(
            Action.SETTLE, types, where, after, field, whole or field, part
        ),
    }


def _progress(item_type: str, *phases: str) -> dict[str, EventSpec]:
    types = frozenset({item_type})
    return {
        f"response.{item_type}.{phase}": EventSpec(
            Action.PROGRESS, types, "item open", f"item open ({phase})"
        )
        for phase in phases
    }


_MESSAGE_OR_REASONING = frozenset({"message", "reasoning"})
_REASONING = frozenset({"reasoning"})
_STARTED = "response created, queued or in progress"

EVENTS: Final[dict[str, EventSpec]] = {
    "response.created": _response("no response yet", Phase.CREATED),
    "response.queued": _response("response created", Phase.QUEUED),
    "response.in_progress": _response("response created or queued", Phase.IN_PROGRESS),
    "response.completed": _response(_STARTED, Phase.COMPLETED),
    "response.failed": _response(_STARTED, Phase.FAILED),
    "response.incomplete": _response(_STARTED, Phase.INCOMPLETE),
    "response.output_item.added": EventSpec(
        Action.ADD, None, "response in progress, index unused", "item open"
    ),
    "response.output_item.done": EventSpec(
        Action.FINISH, None, "item open, or index unused (a lone done)", "item done"
    ),
    "response.content_part.added": EventSpec(
        Action.OPEN_PART, _MESSAGE_OR_REASONING, "item open", "part open", part="content_index"
    ),
    "response.content_part.done": EventSpec(
        Action.CLOSE_PART, _MESSAGE_OR_REASONING, "part open", "part closed", part="content_index"
    ),
    "response.reasoning_part.added": EventSpec(
        Action.OPEN_PART, _REASONING, "item open", "part open", part="content_index"
    ),
    "response.reasoning_part.done": EventSpec(
        Action.CLOSE_PART, _REASONING, "part open", "part closed", part="content_index"
    ),
    "response.reasoning_summary_part.added": EventSpec(
        Action.OPEN_PART, _REASONING, "item open", "part open", part="summary_index"
    ),
    "response.reasoning_summary_part.done": EventSpec(
        Action.CLOSE_PART, _REASONING, "part open", "part closed", part="summary_index"
    ),
    **_texts("response.output_text", "message"),
    **_texts("response.refusal", "message", field="refusal"),
    **_texts("response.reasoning_text", "reasoning", field="reasoning_text", whole="text"),
    **_texts("response.reasoning", "reasoning", field="reasoning_text", whole="text"),
    **_texts(
        "response.reasoning_summary_text",
        "reasoning",
        field="summary_text",
        part="summary_index",
        whole="text",
    ),
    "response.output_text.annotation.added": EventSpec(
        Action.ANNOTATE, frozenset({"message"}), "part open", "part open", part="content_index"
    ),
    **_texts("response.function_call_arguments", "function_call", field="arguments", part=""),
    **_texts("response.mcp_call_arguments", "mcp_call", field="arguments", part=""),
    **_texts("response.custom_tool_call_input", "custom_tool_call", field="input", part=""),
    **_texts("response.code_interpreter_call_code", "code_interpreter_call", field="code", part=""),
    **_texts("response.apply_patch_call_operation_diff", "apply_patch_call", field="diff", part=""),
    **_texts("response.shell_call_command", "shell_call", field="command", part="command_index"),
    "response.shell_call_command.added": EventSpec(
        Action.PROGRESS, frozenset({"shell_call"}), "item open", "item open"
    ),
    "response.shell_call_output_content.delta": EventSpec(
        Action.PROGRESS, frozenset({"shell_call_output"}), "item open", "item open"
    ),
    "response.shell_call_output_content.done": EventSpec(
        Action.PROGRESS, frozenset({"shell_call_output"}), "item open", "item open"
    ),
    **_progress("web_search_call", "in_progress", "searching", "completed"),
    **_progress("file_search_call", "in_progress", "searching", "completed"),
    **_progress("code_interpreter_call", "in_progress", "interpreting", "completed"),
    **_progress("image_generation_call", "in_progress", "generating", "partial_image", "completed"),
    **_progress("mcp_call", "in_progress", "completed", "failed"),
    **_progress("mcp_list_tools", "in_progress", "completed", "failed"),
    **_progress("compaction", "compacting"),
    "response.audio.delta": EventSpec(Action.FREE),
    "response.audio.done": EventSpec(Action.FREE),
    "response.audio.transcript.delta": EventSpec(Action.FREE),
    "response.audio.transcript.done": EventSpec(Action.FREE),
    "response.metadata": EventSpec(Action.FREE),
    "error": EventSpec(Action.FREE, needs="no terminal yet"),
    "codex.rate_limits": EventSpec(Action.FREE),
    "codex.response.metadata": EventSpec(Action.FREE),
    "responsesapi.websocket_timing": EventSpec(Action.FREE),
    "keepalive": EventSpec(Action.FREE),
}
"""Event type → what it needs, where it leads, what it does. Any other type is tolerated."""

TERMINALS: Final = frozenset({"response.completed", "response.failed", "response.incomplete"})
"""After normalization; ``response.done`` is one of these under another name."""

ITEM_PREFIXES: Final[dict[str, str]] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "computer_call": "cu",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "local_shell_call": "lsh",
    "shell_call": "sh",
    "apply_patch_call": "apc",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "tool_search_call": "tsc",
    "compaction": "cmp",
}
"""Item type → prefix of its ids, which providers and clients check."""

BARE_ITEMS: Final[dict[str, dict[str, str | tuple[()]]]] = {
    "message": {"content": ()},
    "reasoning": {"summary": ()},
    "function_call": {"arguments": ""},
    "custom_tool_call": {"input": ""},
    "mcp_call": {"arguments": ""},
    "code_interpreter_call": {"code": ""},
}
"""Item type → the members that its deltas append to, as they are before the first one."""

BARE_PARTS: Final[dict[str, dict[str, str]]] = {
    "output_text": {"text": ""},
    "refusal": {"refusal": ""},
    "reasoning_text": {"text": ""},
    "summary_text": {"text": ""},
}
"""Part type → the same of a part."""

ITEM_TYPES: Final = frozenset(ITEM_PREFIXES) | {
    "function_call_output",
    "custom_tool_call_output",
    "computer_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
    "tool_search_output",
    "mcp_approval_response",
    "program",
    "program_output",
    "additional_tools",
}
"""The item types that are known; others are tolerated."""

ITEM_STATUSES: Final = frozenset(
    {"in_progress", "completed", "incomplete", "failed"}
    | {"searching", "generating", "interpreting", "calling"}
)


# --- Rules ----------------------------------------------------------------------------------


class Rule(StrEnum):
    """The name of a deviation: what ``sottovoce validate`` and the metrics call it."""

    MALFORMED_JSON = "malformed_json"
    TYPE_MISMATCH = "type_mismatch"
    RESPONSE_ID_CHANGED = "response_id_changed"
    INDEX_REUSED = "index_reused"
    KIND_CHANGED = "kind_changed"
    INDEX_OUT_OF_RANGE = "index_out_of_range"
    WRONG_ITEM_KIND = "wrong_item_kind"
    ARGUMENTS_DISAGREE = "arguments_disagree"
    NAME_CHANGED = "name_changed"
    AMBIGUOUS_ITEM = "ambiguous_item"
    MALFORMED_EVENT = "malformed_event"
    RESPONSE_ID_MISSING = "response_id_missing"
    ITEM_ID_MISSING = "item_id_missing"
    ITEM_ID_ROTATED = "item_id_rotated"
    ITEM_ID_REUSED = "item_id_reused"
    INDEX_MISSING = "index_missing"
    ADDED_MISSING = "added_missing"
    LONE_DONE = "lone_done"
    PART_MISSING = "part_missing"
    PART_INDEX_MISSING = "part_index_missing"
    PART_INCOMPLETE = "part_incomplete"
    ITEM_INCOMPLETE = "item_incomplete"
    TEXT_MISSING = "text_missing"
    DONE_TWICE = "done_twice"
    AFTER_DONE = "after_done"
    DONE_MISSING = "done_missing"
    ITEM_UNSEEN = "item_unseen"
    STATUS_MISSING = "status_missing"
    OUTPUT_EMPTY = "output_empty"
    OUTPUT_DIFFERS = "output_differs"
    RESPONSE_DONE = "response_done"
    TERMINAL_STATUS = "terminal_status"
    USAGE_INCOMPLETE = "usage_incomplete"
    CREATED_MISSING = "created_missing"
    CREATED_TWICE = "created_twice"
    BEFORE_CREATED = "before_created"
    TERMINAL_MISSING = "terminal_missing"
    AFTER_TERMINAL = "after_terminal"
    SEQUENCE_MISSING = "sequence_missing"
    SEQUENCE_GAP = "sequence_gap"
    EVENT_LINE_MISSING = "event_line_missing"
    EVENT_LINE_FOREIGN = "event_line_foreign"
    TYPE_MISSING = "type_missing"
    FRAMING = "framing"
    EMPTY_DATA = "empty_data"
    DONE_MARKER = "done_marker"
    NOT_JSON = "not_json"
    ERROR_NESTED = "error_nested"
    RATE_LIMITS = "rate_limits"
    CALL_ID_CHANGED = "call_id_changed"
    LOGPROBS_MISSING = "logprobs_missing"
    UNKNOWN_EVENT = "unknown_event"
    UNKNOWN_ITEM_TYPE = "unknown_item_type"
    UNKNOWN_STATUS = "unknown_status"


class RuleSpec(NamedTuple):
    """One row of the table of rules."""

    public: Severity
    codex: Severity
    wire: Wire
    sent: bool
    """Whether what we send may not deviate so (mode ``sent``)."""
    text: str
    """The message of the error; ``{event}`` is the event's type."""
    breaks: str = ""
    """Which clients break on it when it is left as it is: ``codex``, ``sdk`` (the SDK's
    ``create(stream=True)``) and ``stream`` (its ``responses.stream()``)."""


_REJECT, _REPAIR, _NATIVE, _TOLERATE = Severity
_KEEP, _WRITE = Wire


def _rejected(text: str, *, sent: bool = True, breaks: str = "") -> RuleSpec:
    return RuleSpec(_REJECT, _REJECT, _WRITE, sent, text, breaks)


def _repaired(
    text: str, wire: Wire, *, native: bool = False, sent: bool = False, breaks: str = ""
) -> RuleSpec:
    return RuleSpec(_REPAIR, _NATIVE if native else _REPAIR, wire, sent, text, breaks)


def _tolerated(text: str, *, native: bool = False, breaks: str = "") -> RuleSpec:
    return RuleSpec(
        _TOLERATE, _NATIVE if native else _TOLERATE, _KEEP, sent=False, text=text, breaks=breaks
    )


RULES: Final[dict[Rule, RuleSpec]] = {
    Rule.MALFORMED_JSON: _rejected(
        "malformed JSON in Responses event {event}", breaks="sdk stream"
    ),
    Rule.TYPE_MISMATCH: _rejected("Responses payload type does not match {event}"),
    Rule.RESPONSE_ID_CHANGED: _rejected("response id changed at {event}", breaks="stream"),
    Rule.INDEX_REUSED: _rejected("output index added twice at {event}", breaks="stream"),
    Rule.KIND_CHANGED: _rejected("item done as another kind than it was added at {event}"),
    Rule.INDEX_OUT_OF_RANGE: _rejected("output index out of range at {event}"),
    Rule.WRONG_ITEM_KIND: _rejected("{event} for an item of another kind", breaks="stream"),
    Rule.ARGUMENTS_DISAGREE: _rejected(
        "streamed arguments of a hidden call disagree with {event}", sent=False
    ),
    Rule.NAME_CHANGED: _rejected("the name of a hidden call changed at {event}", sent=False),
    Rule.AMBIGUOUS_ITEM: _rejected("{event} names no item and several could be meant"),
    Rule.MALFORMED_EVENT: _rejected("{event} lacks what its type requires"),
    Rule.RESPONSE_ID_MISSING: _repaired(
        "response has no id at {event}", _WRITE, sent=True, breaks="codex"
    ),
    Rule.ITEM_ID_MISSING: _repaired(
        "item has no id at {event}", _WRITE, native=True, sent=True, breaks="stream"
    ),
    Rule.ITEM_ID_ROTATED: _repaired("item id changed at {event}", _WRITE, sent=True),
    Rule.ITEM_ID_REUSED: _repaired(
        "two items with one id at {event}", _WRITE, sent=True, breaks="stream"
    ),
    Rule.INDEX_MISSING: _repaired(
        "no output index at {event}", _WRITE, native=True, sent=True, breaks="stream"
    ),
    Rule.ADDED_MISSING: _repaired(
        "{event} for an item that was never added",
        _WRITE,
        native=True,
        sent=True,
        breaks="codex stream",
    ),
    Rule.LONE_DONE: _repaired("{event} without an added", _KEEP, native=True),
    Rule.PART_MISSING: _repaired(
        "{event} for a part that was never added", _WRITE, native=True, sent=True, breaks="stream"
    ),
    Rule.PART_INDEX_MISSING: _repaired(
        "no part index at {event}", _WRITE, native=True, sent=True, breaks="stream"
    ),
    Rule.PART_INCOMPLETE: _repaired(
        "part without what deltas append to at {event}",
        _WRITE,
        native=True,
        sent=True,
        breaks="stream",
    ),
    Rule.ITEM_INCOMPLETE: _repaired(
        "item without what deltas append to at {event}",
        _WRITE,
        native=True,
        sent=True,
        breaks="stream",
    ),
    Rule.TEXT_MISSING: _repaired(
        "{event} has no text", _WRITE, native=True, sent=True, breaks="stream"
    ),
    Rule.DONE_TWICE: _repaired("item done twice at {event}", _WRITE, sent=True, breaks="codex"),
    Rule.AFTER_DONE: _tolerated("{event} for an item that is done"),
    Rule.DONE_MISSING: _repaired(
        "item never done before {event}", _WRITE, native=True, sent=True, breaks="codex stream"
    ),
    Rule.ITEM_UNSEEN: _repaired(
        "{event} has an item that was not streamed", _WRITE, native=True, sent=True, breaks="codex"
    ),
    Rule.STATUS_MISSING: _repaired("item without status at {event}", _KEEP, native=True),
    Rule.OUTPUT_EMPTY: _repaired(
        "{event} has no output although items were streamed",
        _WRITE,
        native=True,
        sent=True,
        breaks="stream",
    ),
    Rule.OUTPUT_DIFFERS: _tolerated("output of {event} differs from the streamed items"),
    Rule.RESPONSE_DONE: _repaired(
        "response.done as terminal event", _WRITE, native=True, sent=True, breaks="codex sdk stream"
    ),
    Rule.TERMINAL_STATUS: _repaired(
        "{event} carries the status of another terminal", _WRITE, native=True, sent=True
    ),
    Rule.USAGE_INCOMPLETE: _repaired(
        "usage is incomplete or not integer at {event}", _WRITE, sent=True, breaks="codex"
    ),
    Rule.CREATED_MISSING: _repaired(
        "{event} before any response.created", _WRITE, sent=True, breaks="stream"
    ),
    Rule.CREATED_TWICE: _tolerated("{event} came again"),
    Rule.BEFORE_CREATED: _repaired(
        "{event} came before response.created", _WRITE, native=True, sent=True, breaks="stream"
    ),
    Rule.TERMINAL_MISSING: _rejected(
        "stream ended without a terminal event", breaks="codex sdk stream"
    ),
    Rule.AFTER_TERMINAL: _repaired("{event} after the terminal event", _WRITE, sent=True),
    Rule.SEQUENCE_MISSING: _repaired("no sequence number at {event}", _KEEP, native=True),
    Rule.SEQUENCE_GAP: _tolerated("sequence number out of order at {event}"),
    Rule.EVENT_LINE_MISSING: _repaired("no event line at {event}", _WRITE, sent=True),
    Rule.EVENT_LINE_FOREIGN: _repaired("event line is not the type at {event}", _WRITE, sent=True),
    Rule.TYPE_MISSING: _repaired(
        "payload has no type at {event}", _WRITE, sent=True, breaks="codex sdk stream"
    ),
    Rule.FRAMING: _repaired(
        "framing that not every client reads at {event}", _WRITE, sent=True, breaks="codex"
    ),
    Rule.EMPTY_DATA: _repaired("event without data", _WRITE, sent=True, breaks="sdk stream"),
    Rule.DONE_MARKER: _repaired(
        "[DONE] before the terminal event", _WRITE, sent=True, breaks="sdk stream"
    ),
    Rule.NOT_JSON: _tolerated("data of {event} is not JSON", breaks="sdk stream"),
    Rule.ERROR_NESTED: _repaired(
        "error event with a nested error object", _WRITE, sent=True, breaks="sdk stream"
    ),
    Rule.RATE_LIMITS: _repaired("codex.rate_limits is always rebuilt", _WRITE, native=True),
    Rule.CALL_ID_CHANGED: _tolerated("call id changed at {event}"),
    Rule.LOGPROBS_MISSING: _tolerated("no logprobs at {event}", native=True),
    Rule.UNKNOWN_EVENT: _tolerated("unknown event type"),
    Rule.UNKNOWN_ITEM_TYPE: _tolerated("unknown item type at {event}"),
    Rule.UNKNOWN_STATUS: _tolerated("unknown status at {event}"),
}
"""Every deviation that we know: severity for each dialect, wire, and the text that names it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Checker:
    """Applies ``RULES`` in one mode for one dialect, and counts what it let pass.

    Attributes:
        findings: (rule, event type) → how often; event types that we don't know count as one.
        items_limit: The largest output index that is accepted.
    """

    __slots__ = ("_severity", "dialect", "findings", "items_limit", "mode")

    def __init__(self, dialect: Dialect, mode: Mode, *, items_limit: int) -> None:
        self.dialect = dialect
        self.mode = mode
        self.items_limit = items_limit
        self.findings: dict[tuple[Rule, str], int] = {}
        self._severity = _SEVERITIES[dialect, mode]

    def report(self, rule: Rule, kind: str, *, limit: str | None = None) -> None:
        """Count a deviation.

        Args:
            rule: Which.
            kind: The event's type.
            limit: The name of the limit that was passed, where the rule is one.

        Raises:
            ProtocolError: The rule rejects in this mode.
        """
        if self._severity[rule] is Severity.REJECT:
            raise ProtocolError(RULES[rule].text.format(event=kind), limit=limit)
        key = (rule, kind if kind in EVENTS else "unknown")
        self.findings[key] = self.findings.get(key, 0) + 1


def _severity(rule: Rule, dialect: Dialect, mode: Mode) -> Severity:
    spec = RULES[rule]
    usual = spec.codex if dialect is Dialect.CODEX else spec.public
    if mode is Mode.STRICT:
        return usual if usual is Severity.NATIVE else Severity.REJECT
    if mode is Mode.SENT:
        return Severity.REJECT if spec.sent else Severity.TOLERATE
    return usual


_SEVERITIES: Final = {
    (dialect, mode): {rule: _severity(rule, dialect, mode) for rule in Rule}
    for dialect in Dialect
    for mode in Mode
}


# --- The checker ----------------------------------------------------------------------------

# By names of their own: to look a member up in its class costs more than what is done with it.
FREE: Final = Action.FREE
OF_RESPONSE: Final = Action.RESPONSE
ADD: Final = Action.ADD
FINISH: Final = Action.FINISH
NOT_BEGUN: Final = Phase.NONE
ITEM_DONE: Final = ItemPhase.DONE


def validate_response_lifecycle(
    event: dict[str, Any], state: ResponseState, check: Checker
) -> None:
    """Check a normalized event against the state before it is accumulated. Changes nothing.

    Args:
        event: The parsed event; ``type`` is set.
        state: What was accumulated so far.
        check: Mode and dialect; counts the deviations.

    Raises:
        ProtocolError: The event breaks a rule that is rejected in this mode.
    """
    kind = event["type"]
    spec = EVENTS.get(kind)
    if spec is None or spec.action is FREE:
        _check_free(kind, spec, state, check)
        return
    if event.get("sequence_number") != state.sequence + 1:
        _check_sequence(kind, event, state, check)
    if spec.action is OF_RESPONSE:
        _check_response(kind, event, state, check)
        return
    if kind == "response.output_text.delta" and "logprobs" not in event:
        check.report(Rule.LOGPROBS_MISSING, kind)
    if state.phase is NOT_BEGUN or state.terminal is not None:
        _check_place(kind, state, check)
    item = state.items.get(event["output_index"])
    if item is None or spec.action is ADD or spec.action is FINISH:
        _check_index(kind, event["output_index"], check)
    if spec.action is ADD or spec.action is FINISH:
        _check_whole_item(kind, spec, event["item"], item, check)
    elif item is None:
        check.report(Rule.ADDED_MISSING, kind)
    else:
        if spec.item_types is not None and item.type not in spec.item_types:
            check.report(Rule.WRONG_ITEM_KIND, kind)
        if item.phase is ITEM_DONE:
            check.report(Rule.AFTER_DONE, kind)


def validate_stream_end(state: ResponseState, check: Checker) -> None:
    """Check that a stream which ended was at its end.

    Raises:
        ProtocolError: No terminal event came.
    """
    if state.terminal is None:
        check.report(Rule.TERMINAL_MISSING, "")


def _check_free(kind: str, spec: EventSpec | None, state: ResponseState, check: Checker) -> None:
    if spec is None:
        check.report(Rule.UNKNOWN_EVENT, kind)
    elif kind == "codex.rate_limits":
        check.report(Rule.RATE_LIMITS, kind)
    _check_place(kind, state, check)


def _check_place(kind: str, state: ResponseState, check: Checker) -> None:
    """Check that an event stands between ``created`` and the terminal."""
    if state.phase is NOT_BEGUN:
        check.report(Rule.BEFORE_CREATED, kind)
    elif state.terminal is not None:
        check.report(Rule.AFTER_TERMINAL, kind)


def _check_sequence(kind: str, event: dict[str, Any], state: ResponseState, check: Checker) -> None:
    """Count a gap, and a stream without numbers once."""
    if type(event.get("sequence_number")) is int:
        if state.numbered:
            check.report(Rule.SEQUENCE_GAP, kind)
    elif state.numbered is not False:
        check.report(Rule.SEQUENCE_MISSING, kind)


def _check_response(kind: str, event: dict[str, Any], state: ResponseState, check: Checker) -> None:
    if state.id is not None and event["response"].get("id") not in (None, state.id):
        check.report(Rule.RESPONSE_ID_CHANGED, kind)
    if kind == "response.created":
        if state.phase is not NOT_BEGUN:
            check.report(Rule.CREATED_TWICE, kind)
    elif state.phase is NOT_BEGUN:
        check.report(Rule.CREATED_MISSING, kind)
    if state.terminal is not None:
        check.report(Rule.AFTER_TERMINAL, kind)
    if kind in TERMINALS:
        _check_terminal(kind, event["response"].get("output"), state, check)


def _check_terminal(kind: str, output: object, state: ResponseState, check: Checker) -> None:
    if check.mode is not Mode.TOLERANT:  # which counts them where it closes them
        for item in state.items.values():
            if item.phase is not ItemPhase.DONE and not item.may_stay_open(kind):
                check.report(Rule.DONE_MISSING, kind)
    streamed = state.output()
    if streamed and not output:
        if kind != "response.failed":  # whose output is nobody's to read
            check.report(Rule.OUTPUT_EMPTY, kind)
    elif (output or []) != streamed:
        check.report(Rule.OUTPUT_DIFFERS, kind)


def _check_index(kind: str, index: int, check: Checker) -> None:
    if not 0 <= index <= check.items_limit:
        check.report(Rule.INDEX_OUT_OF_RANGE, kind, limit="items" if index > 0 else None)


def _check_whole_item(
    kind: str, spec: EventSpec, value: dict[str, Any], item: ItemState | None, check: Checker
) -> None:
    _check_item_value(kind, value, check)
    if spec.action is ADD:
        if item is not None:
            check.report(Rule.INDEX_REUSED, kind)
    elif item is None:
        check.report(Rule.LONE_DONE, kind)
    else:
        _check_done(kind, value, item, check)


def _check_item_value(kind: str, value: dict[str, Any], check: Checker) -> None:
    if value["type"] not in ITEM_TYPES:
        check.report(Rule.UNKNOWN_ITEM_TYPE, kind)
    status = value.get("status")
    if status is None:
        check.report(Rule.STATUS_MISSING, kind)
    elif not isinstance(status, str) or status not in ITEM_STATUSES:
        check.report(Rule.UNKNOWN_STATUS, kind)


def _check_done(kind: str, value: dict[str, Any], item: ItemState, check: Checker) -> None:
    if value["type"] != item.type:
        check.report(Rule.KIND_CHANGED, kind)
    if item.call_id and value.get("call_id") not in (None, item.call_id):
        check.report(Rule.CALL_ID_CHANGED, kind)
