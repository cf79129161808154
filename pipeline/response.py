"""What a stream of events stands for: the accumulated response of one hop.

``apply_responses_event`` takes every event, also those that the client never sees: continuations,
memory, usage and telemetry are read from here and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.lifecycle import BARE_ITEMS, EVENTS, TERMINALS, Action, EventSpec, ItemPhase, Phase
from pipeline.matching import match_output
from pipeline.usage import usable_usage

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENT_CALLS: Final = frozenset(
    {
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "computer_call",
        "mcp_approval_request",
    }
)
"""Items whose output the client must supply. A ``tool_search_call`` joins them when it is the
client's (``execution`` is ``client``)."""

_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
_PHASES: Final = {
    kind: Phase(spec.leads_to) for kind, spec in EVENTS.items() if spec.action is Action.RESPONSE
}
_OPEN: Final = ItemPhase.OPEN
_DONE: Final = ItemPhase.DONE


class ItemState:
    """One output item as far as it has come.

    Attributes:
        index: The upstream's output index.
        id: The canonical id: the first that the upstream gave, or a minted one.
        type: The item's type.
        phase: Open, arguments done, or done.
        value: The item object of the newest ``added``, ``done`` or terminal event.
        texts: (field, part index) → deltas, until the whole text replaces them.
        parts: (member, part index) of the parts that were opened.
        size: Bytes that ``value`` and ``texts`` stand for.
        in_terminal: Whether the terminal's output has it; ``value`` is that version.
    """

    __slots__ = ("id", "in_terminal", "index", "parts", "phase", "size", "texts", "type", "value")

    def __init__(self, index: int, value: dict[str, Any]) -> None:
        self.index = index
        self.value = value
        identity = value.get("id")
        self.id: str = identity if isinstance(identity, str) else ""
        self.type: str = value["type"]
        self.phase: ItemPhase = _OPEN
        self.texts: dict[tuple[str, int], list[str]] = {}
        self.parts: set[tuple[str, int]] = set()
        self.size = 0
        self.in_terminal = False

    def __repr__(self) -> str:
        return f"<ItemState {self.index} {self.type} {self.phase} {self.id!r}>"

    @property
    def name(self) -> str:
        """The called tool's name, empty while it is unknown."""
        name = self.value.get("name")
        return name if isinstance(name, str) else ""

    @property
    def call_id(self) -> str:
        """The call's id, empty while it is unknown or where there is none."""
        call_id = self.value.get("call_id")
        return call_id if isinstance(call_id, str) else ""

    @property
    def arguments(self) -> str:
        """The arguments of a function call, or the input of a custom one."""
        field = "input" if self.type == "custom_tool_call" else "arguments"
        streamed = self.texts.get((field, 0))
        if streamed:
            return "".join(streamed)
        value = self.value.get(field)
        return value if isinstance(value, str) else ""

    @property
    def is_client_call(self) -> bool:
        """Whether the client must supply an output for it."""
        if self.type == "tool_search_call":
            return self.value.get("execution") == "client"
        return self.type in CLIENT_CALLS

    def may_stay_open(self, terminal: str) -> bool:
        """Whether it may be left without a done at this terminal.

        A call that is not complete must not be closed for the client: clients run it at once.
        """
        return self.is_client_call and terminal != "response.completed"

    def snapshot(self, status: str) -> dict[str, Any]:
        """Return the item as far as it has come, with the deltas in place and this status."""
        value = dict(self.value)
        if "status" in value or self.type in {"message", "function_call"}:
            value["status"] = status
        content: dict[str, dict[int, dict[str, Any]]] = {}
        for (field, part), deltas in sorted(self.texts.items()):
            text = "".join(deltas)
            match field:
                case "text":
                    part_value = {"type": "output_text", "text": text, "annotations": []}
                    content.setdefault("content", {})[part] = part_value
                case "refusal":
                    content.setdefault("content", {})[part] = {"type": field, "refusal": text}
                case "reasoning_text":
                    content.setdefault("content", {})[part] = {"type": field, "text": text}
                case "summary_text":
                    content.setdefault("summary", {})[part] = {"type": field, "text": text}
                case "arguments" | "input" | "code":
                    value[field] = text
                case _:  # a diff or a command: inside a member whose shape is the tool's own
                    pass
        for member, parts in content.items():
            value[member] = [parts[part] for part in sorted(parts)]
        return value


class ResponseState:
    """The accumulated response of one hop.

    Attributes:
        id: The upstream's response id.
        phase: Where the response is.
        response: The object of the newest lifecycle event.
        items: Output index → item.
        terminal: Type of the terminal event, after normalization.
        usage: The usable usage of the newest lifecycle event that had one.
        error: ``error`` of a failed response, else of an ``error`` event.
        numbered: Whether the stream has sequence numbers; None before the first event.
        sequence: The last sequence number.
        retained: Bytes of event data that this state holds.
        reused: Output index → the id that the upstream had given to another item before.
        truncated: Accumulation was ended by a limit; the state is not complete.
        mended: The terminal's output gives a streamed item another id or name than it has.
    """

    __slots__ = (
        "error",
        "id",
        "ids",
        "items",
        "mended",
        "numbered",
        "phase",
        "response",
        "retained",
        "reused",
        "sequence",
        "terminal",
        "truncated",
        "usage",
    )

    def __init__(self) -> None:
        self.id: str | None = None
        self.phase = Phase.NONE
        self.response: dict[str, Any] = {}
        self.items: dict[int, ItemState] = {}
        self.ids: dict[str, int] = {}
        self.terminal: str | None = None
        self.usage: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.numbered: bool | None = None
        self.sequence = -1
        self.retained = 0
        self.truncated = False
        self.reused: dict[int, str] = {}
        self.mended = False

    def __repr__(self) -> str:
        return f"<ResponseState {self.id!r} {self.phase} {list(self.items.values())}>"

    @property
    def model(self) -> str | None:
        """The model as the upstream reported it."""
        model = self.response.get("model")
        return model if isinstance(model, str) else None

    @property
    def status(self) -> str | None:
        """The response's status in its own words."""
        status = self.response.get("status")
        return status if isinstance(status, str) else None

    def ordered(self) -> list[ItemState]:
        """Return the items in index order."""
        items = self.items
        return [items[index] for index in sorted(items)] if len(items) > 1 else [*items.values()]

    @property
    def next_index(self) -> int:
        """The index of an item that the upstream gave none."""
        return max(self.items, default=-1) + 1

    def output(self) -> list[dict[str, Any]]:
        """Return the finished items in index order, each in its newest version."""
        return [item.value for item in self.ordered() if item.phase is _DONE]


def apply_responses_event(event: dict[str, Any], state: ResponseState, size: int = 0) -> None:
    """Accumulate one normalized and validated event.

    Args:
        event: The parsed event. Its nested objects are kept, its top level is not.
        state: What it is added to.
        size: Bytes of the event's data, counted as retained where the state keeps it. A
            synthesized event has none: it is made of what is there.
    """
    if (number := event.get("sequence_number")) is not None:
        if type(number) is int:
            state.sequence = number
            state.numbered = True
    elif state.numbered is None:
        state.numbered = False
    spec = EVENTS.get(event["type"])
    apply = None if spec is None else _APPLIED.get(spec.action)
    if spec is not None and apply is not None:
        apply(spec, event, state, size)


def part_index(spec: EventSpec, event: dict[str, Any]) -> int:
    """Return the number of the part that an event concerns; 0 where it has none."""
    part = event.get(spec.part) if spec.part else 0
    return part if type(part) is int else 0


def _append(spec: EventSpec, event: dict[str, Any], state: ResponseState, _size: int) -> None:
    delta = event.get(spec.value)
    item = state.items.get(event["output_index"])
    if item is None or not isinstance(delta, str) or item.phase is not _OPEN:
        return
    _retain(state, item, text_size(delta))
    key = (spec.field, part_index(spec, event))
    deltas = item.texts.get(key)
    if deltas is None:
        item.texts[key] = [delta]
    else:
        deltas.append(delta)


def _settle(spec: EventSpec, event: dict[str, Any], state: ResponseState, _size: int) -> None:
    item = state.items.get(event["output_index"])
    if item is None or item.phase is _DONE:
        return
    whole = event.get(spec.value)
    if isinstance(whole, str):
        key = (spec.field, part_index(spec, event))
        _retain(state, item, text_size(whole) - sum(map(text_size, item.texts.get(key, ()))))
        item.texts[key] = [whole]
    if not spec.part:
        item.phase = ItemPhase.ARGUMENTS_DONE
        if isinstance(name := event.get("name"), str) and name and not item.name:
            item.value = {**item.value, "name": name}


def _open_part(spec: EventSpec, event: dict[str, Any], state: ResponseState, _size: int) -> None:
    state.items[event["output_index"]].parts.add((spec.part, part_index(spec, event)))


def _add(_spec: EventSpec, event: dict[str, Any], state: ResponseState, size: int) -> None:
    index = event["output_index"]
    item = ItemState(index, event["item"])
    state.items[index] = item
    if item.id:
        state.ids[item.id] = index
    _retain(state, item, size)


def _finish(_spec: EventSpec, event: dict[str, Any], state: ResponseState, size: int) -> None:
    index = event["output_index"]
    value = event["item"]
    item = state.items.get(index)
    if item is None:
        item = ItemState(index, value)
        state.items[index] = item
        if item.id:
            state.ids[item.id] = index
    elif item.phase is _DONE:
        return
    item.value = value
    item.phase = _DONE
    item.texts.clear()
    _retain(state, item, size - item.size if size else 0)


def completed_item(value: dict[str, Any], item: ItemState) -> dict[str, Any]:
    """Return an item's final value with what was streamed where it leaves members out.

    A call's members count as left out where they are empty.
    """
    if item.type not in _CALLS:
        absent = [name for name in BARE_ITEMS.get(item.type, ()) if value.get(name) is None]
        if not absent:
            return value
        known = item.snapshot("")
        found = {name: known[name] for name in absent if known.get(name) is not None}
        return {**value, **found} if found else value
    field = "input" if item.type == "custom_tool_call" else "arguments"
    missing = {
        key: known
        for key, known in ((field, item.arguments), ("name", item.name), ("call_id", item.call_id))
        if known and not value.get(key)
    }
    return {**value, **missing} if missing else value


def _note_error(_spec: EventSpec, event: dict[str, Any], state: ResponseState, _size: int) -> None:
    if event["type"] == "error":
        error = event.get("error")
        state.error = error if isinstance(error, dict) else event


def _apply_lifecycle(
    _spec: EventSpec, event: dict[str, Any], state: ResponseState, size: int
) -> None:
    response = event["response"]
    if state.id is None and isinstance(response.get("id"), str):
        state.id = response["id"]
    state.phase = _PHASES[event["type"]]
    state.response = response
    if (usage := usable_usage(response.get("usage"))) is not None:
        state.usage = usage
    if isinstance(error := response.get("error"), dict):
        state.error = error
    if event["type"] not in TERMINALS:
        return
    state.terminal = event["type"]
    state.retained += size
    output = response.get("output")
    if not isinstance(output, list):
        return
    for item, value in match_output(state, output):
        if item is not None and value["type"] == item.type:
            # The newest version counts: providers re-encrypt reasoning up to the terminal. Only
            # the name of a call is fixed once it was streamed.
            if item.name and value.get("name") not in (None, "", item.name):
                state.mended = True
                continue
            item.in_terminal = True
            final = completed_item(value, item)
            if final.get("id") != item.id and item.id:
                final = {**final, "id": item.id}
            state.mended = state.mended or final is not value
            item.value = final
            _retain(state, item, -item.size)  # it is part of the terminal now


_APPLIED: Final[dict[Action, Callable[[EventSpec, dict[str, Any], ResponseState, int], None]]] = {
    Action.RESPONSE: _apply_lifecycle,
    Action.ADD: _add,
    Action.FINISH: _finish,
    Action.OPEN_PART: _open_part,
    Action.APPEND: _append,
    Action.SETTLE: _settle,
    Action.FREE: _note_error,
}
"""What events do to the state; annotations and closed parts come again with the done item."""


def _retain(state: ResponseState, item: ItemState, size: int) -> None:
    item.size += size
    state.retained += size


def text_size(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
