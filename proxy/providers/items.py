"""The events of one item, from its announcement to its end.

An item is written as the public API writes it: added, its parts or arguments as deltas, each of
them done with its whole text, and done with all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.jsontext import loads
from proxy.providers.inputs import InputText
from proxy.providers.tools import Tool, ToolKind, input_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.providers.base import Json

    Emit = Callable[..., None]
    """(event type, members) → the event is written."""

IN_PROGRESS: Final = "in_progress"


class Item:
    """What all items share.

    Args:
        index: Its place in the output.
        value: The item as it is announced.
        emit: Writes an event.

    Attributes:
        value: The item as it was told last.
        open: Whether it is not done.
    """

    def __init__(self, index: int, value: Json, emit: Emit) -> None:
        self.index = index
        self.value = value
        self.open = True
        self._at: Json = {"item_id": value["id"], "output_index": index}
        self._emit = emit
        emit("response.output_item.added", output_index=index, item=value)

    def finish(self, status: str, **members: Any) -> None:
        """Tell the whole item, which is its end."""
        self.open = False
        self.value = {**self.value, "status": status, **members}
        self._emit("response.output_item.done", output_index=self.index, item=self.value)


class Message(Item):
    """A message of the assistant: texts and refusals, a part each."""

    def __init__(self, index: int, identity: str, emit: Emit) -> None:
        value = {
            "id": identity,
            "type": "message",
            "status": IN_PROGRESS,
            "role": "assistant",
            "content": [],
        }
        super().__init__(index, value, emit)
        self._parts: list[Json] = []
        self._texts: list[str] = []
        self._kind = ""

    def text(self, delta: str) -> None:
        """Add to its text."""
        self._open("output_text")
        self._texts.append(delta)
        self._emit("response.output_text.delta", **self._place, delta=delta, logprobs=[])

    def refusal(self, delta: str) -> None:
        """Add to its refusal."""
        self._open("refusal")
        self._texts.append(delta)
        self._emit("response.refusal.delta", **self._place, delta=delta)

    def end_part(self) -> None:
        """End the part that is open, if there is one."""
        kind, self._kind = self._kind, ""
        if not kind:
            return
        text = "".join(self._texts)
        self._texts.clear()
        part = _part(kind, text)
        if kind == "output_text":
            self._emit("response.output_text.done", **self._place, text=text, logprobs=[])
        else:
            self._emit("response.refusal.done", **self._place, refusal=text)
        self._emit("response.content_part.done", **self._place, part=part)
        self._parts.append(part)

    def close(self, status: str) -> None:
        """End the message."""
        self.end_part()
        self.finish(status, content=self._parts)

    @property
    def _place(self) -> Json:
        return {**self._at, "content_index": len(self._parts)}

    def _open(self, kind: str) -> None:
        if self._kind == kind:
            return
        self.end_part()
        self._kind = kind
        self._emit("response.content_part.added", **self._place, part=_part(kind, ""))


def _part(kind: str, text: str) -> Json:
    if kind == "output_text":
        return {"type": kind, "text": text, "annotations": [], "logprobs": []}
    return {"type": kind, "refusal": text}


class Reasoning(Item):
    """Reasoning: its text as a summary, and what the upstream must see again."""

    def __init__(self, index: int, identity: str, emit: Emit) -> None:
        value = {"id": identity, "type": "reasoning", "status": IN_PROGRESS, "summary": []}
        super().__init__(index, value, emit)
        self._texts: list[str] = []

    def text(self, delta: str) -> None:
        """Add to its text."""
        place = {**self._at, "summary_index": 0}
        if not self._texts:
            part = {"type": "summary_text", "text": ""}
            self._emit("response.reasoning_summary_part.added", **place, part=part)
        self._texts.append(delta)
        self._emit("response.reasoning_summary_text.delta", **place, delta=delta)

    def close(self, status: str, encrypted_content: str | None = None) -> None:
        """End the reasoning.

        Args:
            status: The item's.
            encrypted_content: What its upstream must see again, wrapped.
        """
        members: Json = {}
        if self._texts:
            place = {**self._at, "summary_index": 0}
            text = "".join(self._texts)
            part = {"type": "summary_text", "text": text}
            self._emit("response.reasoning_summary_text.done", **place, text=text)
            self._emit("response.reasoning_summary_part.done", **place, part=part)
            members["summary"] = [part]
        if encrypted_content is not None:
            members["encrypted_content"] = encrypted_content
        self.finish(status, **members)


class ToolCall(Item):
    """A call, as the client knows its tool."""

    def __init__(self, index: int, identity: str, tool: Tool, call_id: str, emit: Emit) -> None:
        self._tool = tool
        self._texts: list[str] = []
        self._input = InputText()
        super().__init__(index, _announced(identity, tool, call_id), emit)

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self._texts)

    def add(self, delta: str) -> None:
        """Add to its arguments, as JSON text."""
        self._texts.append(delta)
        match self._tool.kind:
            case ToolKind.FUNCTION:
                self._emit("response.function_call_arguments.delta", **self._at, delta=delta)
            case ToolKind.CUSTOM:
                self._add_input(self._input.feed(delta))
            case ToolKind.SEARCH:  # told as a whole, at its end
                pass

    def _add_input(self, delta: str) -> None:
        if delta:
            self._emit("response.custom_tool_call_input.delta", **self._at, delta=delta)

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are a whole JSON value, or there are none."""
        return not self.arguments.strip() or _parsed(self.arguments) is not None

    def close(self) -> None:
        """End the call. A tool without parameters may get no arguments: that is an empty object."""
        if not self.arguments.strip():
            self._texts.clear()
            self.add("{}")
        arguments = self.arguments
        match self._tool.kind:
            case ToolKind.FUNCTION:
                name = self._tool.name
                self._emit(
                    "response.function_call_arguments.done",
                    **self._at,
                    name=name,
                    arguments=arguments,
                )
                self.finish("completed", arguments=arguments)
            case ToolKind.CUSTOM:
                text = self._input.text
                if not self._input.begun:
                    text = input_of(arguments)
                    self._add_input(text)
                self._emit("response.custom_tool_call_input.done", **self._at, input=text)
                self.finish("completed", input=text)
            case ToolKind.SEARCH:
                self.finish("completed", arguments=_parsed(arguments) or {})


def _announced(identity: str, tool: Tool, call_id: str) -> Json:
    value: Json = {"id": identity, "type": TYPES[tool.kind], "status": IN_PROGRESS}
    value["call_id"] = call_id
    match tool.kind:
        case ToolKind.SEARCH:
            return {**value, "execution": "client", "arguments": {}}
        case ToolKind.CUSTOM:
            value |= {"name": tool.name, "input": ""}
        case ToolKind.FUNCTION:
            value |= {"name": tool.name, "arguments": ""}
    return value if tool.namespace is None else {**value, "namespace": tool.namespace}


TYPES: Final = {
    ToolKind.FUNCTION: "function_call",
    ToolKind.CUSTOM: "custom_tool_call",
    ToolKind.SEARCH: "tool_search_call",
}


def _parsed(text: str) -> Any:
    """Return the value of a JSON text, None where it is none."""
    try:
        return loads(text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return None
