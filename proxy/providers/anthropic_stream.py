"""Anthropic messages back: events, or a whole message, as the events of a response.

A message has blocks, one after the other, each with its start, deltas and stop. Text blocks in a
row are parts of one message item; every thinking block is a reasoning item that carries the block
itself, signature and all, for its way back; every tool use is a call, closed at its stop.

``ping`` comes anywhere, the first piece of arguments is empty, usage is told at the start and
again at the end, where it counts; a refusal may come without any block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import ProtocolError
from pipeline.jsontext import dumps
from proxy.providers import counts
from proxy.providers.translating import DialectStream

if TYPE_CHECKING:
    from proxy.providers.base import Json
    from proxy.providers.items import ToolCall
    from proxy.providers.translating import Answering

_REASONS: Final = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "refusal": "content_filter",
}


class _Block:
    """A block on its way."""

    __slots__ = ("call", "given", "texts", "value")

    def __init__(self, value: Json) -> None:
        self.value = value
        self.texts: dict[str, list[str]] = {}  # what came of its members as deltas
        self.call: ToolCall | None = None
        self.given = False  # whether arguments came as deltas

    def whole(self) -> Json:
        """Return the block with all that came of it."""
        grown = {
            name: _string(self.value.get(name)) + "".join(texts)
            for name, texts in self.texts.items()
        }
        return {**self.value, **grown}


class MessagesStream(DialectStream):
    """Translates one message."""

    def __init__(self, answering: Answering) -> None:
        super().__init__(answering)
        self._blocks: dict[int, _Block] = {}
        self._usage: Json = {}
        self._stop_reason: str | None = None

    def take(self, value: Json) -> None:
        """Take one event.

        Raises:
            UpstreamRefusedError: The answer begins with an error.
        """
        match value:
            case {"type": "error"} | {"error": dict()}:
                self.fail(value)
            case {"type": "message_start", "message": dict() as message}:
                self._begin(message)
            case {"type": "content_block_start", "content_block": dict() as block}:
                self._start(_index(value), block)
            case {"type": "content_block_delta", "delta": dict() as delta}:
                self._grow(_index(value), delta)
            case {"type": "content_block_stop"}:
                self._stop(_index(value))
            case {"type": "message_delta", "delta": dict() as delta}:
                self._end_message(delta, value.get("usage"))
            case {"type": "message_stop"}:
                self.end(marked=True)
            case _:  # ping, and whatever will be
                pass

    def take_whole(self, value: Json) -> None:
        """Take a message that is one body.

        Raises:
            UpstreamRefusedError: It is an error.
            ProtocolError: It is no message.
        """
        content = value.get("content")
        if value.get("type") == "error" or value.get("error"):
            self.fail(value)
        if not isinstance(content, list):
            raise ProtocolError(f"{self.phase}: the upstream's answer has no message")
        self._begin(value)
        for index, block in enumerate(content):
            if isinstance(block, dict):
                self._start(index, block)
                self._stop(index)
        self._end_message(value, value.get("usage"))
        self.end(marked=True)

    def end(self, *, marked: bool) -> None:
        """Take the end of the answer; without ``message_stop`` or a stop reason it was cut."""
        if self.writer.ended or not self.writer.begun:
            return
        if marked or self._stop_reason is not None:
            for index in list(self._blocks):
                self._stop(index)
            self.writer.finish(self._reason(), self.usage())

    # --- Message --------------------------------------------------------------------------

    def _begin(self, message: Json) -> None:
        if not self.writer.begun:
            self.writer.begin(message.get("id") or message, model=message.get("model"))
        self._count(message.get("usage"))

    def _end_message(self, delta: Json, usage: object) -> None:
        self._count(usage)
        if isinstance(reason := delta.get("stop_reason"), str):
            self._stop_reason = reason
            if reason in _REASONS:
                self.writer.close_prose("incomplete")

    def _count(self, usage: object) -> None:
        """Take counts; what is told again counts, what is not told stays."""
        if isinstance(usage, dict):
            self._usage |= {name: count for name, count in usage.items() if count is not None}

    def usage(self) -> Json | None:
        """Return what the counts of the start and of the end make."""
        return counts.of_messages(self._usage)

    def _reason(self) -> str | None:
        """Return why the answer is incomplete; whole calls are worth more than any reason."""
        reason = _REASONS.get(self._stop_reason or "")
        return None if reason is None or self.writer.has_whole_call else reason

    # --- Blocks ---------------------------------------------------------------------------

    def _start(self, index: int, value: Json) -> None:
        if not self.writer.begun:
            self._begin({})
        block = self._blocks[index] = _Block(value)
        match value:
            case {"type": "text"}:
                self.writer.text(_string(value.get("text")))
            case {"type": "thinking"}:
                self.writer.close_prose()
                self.writer.think(_string(value.get("thinking")))
            case {"type": "tool_use"}:
                tool = self.toolbox.meant_by(_string(value.get("name")))
                block.call = self.writer.call(tool, _string(value.get("id")))
            case _:
                pass

    def _grow(self, index: int, delta: Json) -> None:
        block = self._blocks.get(index)
        if block is None:
            return
        match delta:
            case {"type": "text_delta", "text": str() as text}:
                self.writer.text(text)
            case {"type": "thinking_delta", "thinking": str() as text}:
                block.texts.setdefault("thinking", []).append(text)
                self.writer.think(text)
            case {"type": "signature_delta", "signature": str() as text}:
                block.texts.setdefault("signature", []).append(text)
            case {"type": "input_json_delta", "partial_json": str() as text}:
                if block.call is not None and text:
                    block.given = True
                    self.writer.add(block.call, text)
            case _:
                pass

    def _stop(self, index: int) -> None:
        block = self._blocks.pop(index, None)
        if block is None:
            return
        match block.value:
            case {"type": "text"}:
                self.writer.end_part()
            case {"type": "thinking" | "redacted_thinking"}:
                self.close_reasoning(block.whole())
            case _ if block.call is not None:
                self._close(block, block.call)
            case _:
                pass

    def _close(self, block: _Block, call: ToolCall) -> None:
        """Close a call, unless the answer's limit may have cut it off: its reason comes later."""
        if not block.given and block.value.get("input"):
            self.writer.add(call, dumps(block.value["input"]).decode())
        if call.is_whole:
            call.close()


def _index(value: Json) -> int:
    index = value.get("index")
    return index if type(index) is int else 0


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
