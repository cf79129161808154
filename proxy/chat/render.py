"""The client's side of a turn for chat clients: a stream of chunks, or one completion.

Both stand where ``pipeline.splice`` has the answers for Responses clients and are fed in the same
way: with the events that the client is to see. Nothing is written before there is something to
say, so that a turn that fails at once is answered by an error of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pipeline.join import SEPARATOR
from pipeline.jsontext import dumps
from pipeline.lifecycle import TERMINALS
from pipeline.splice import ClientStream, JSONAnswer
from pipeline.sse import encode_comment
from proxy.chat.completion import (
    SHOWN,
    call_of,
    completion_of,
    error_of,
    finish_reason,
    identity_of,
    logprobs_of,
    reasoning_of,
    refusal_of,
    refused,
    text_of,
    usage_of,
)

if TYPE_CHECKING:
    from typing import Any

    from pipeline.accepted import Accepted
    from pipeline.block import DeltaForm
    from pipeline.identity import Mint
    from pipeline.response import ItemState
    from proxy.chat.completion import Fallback
    from proxy.chat.messages import Json

DONE: Final = b"data: [DONE]\n\n"
_PROSE: Final = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "refusal",
}
_THOUGHTS: Final = {
    "response.reasoning_summary_text.delta": "summary_index",
    "response.reasoning_text.delta": "content_index",
}
_DONE_ITEM: Final = "response.output_item.done"
_ARGUMENTS: Final = frozenset(
    {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
)


@dataclass(slots=True)
class _Progress:
    """What of an item went out.

    Attributes:
        call: The index of a call among the client's, -1 where it was not announced.
        told: Characters by member: ``content``, ``refusal``, ``reasoning_content``, ``arguments``.
        source: The events that reasoning is told by: its summary or its text, not both.
        part: The part of it that was told last.
        done: Whether a message is.
        waiting: What of a message waits for the end of another: member, text, probabilities.
    """

    call: int
    told: dict[str, int]
    source: str = ""
    part: int = 0
    done: bool = False
    waiting: list[tuple[str, str, Json | None]] = field(default_factory=list)


class ChatStream(ClientStream):
    """The chunks of a chat completion.

    Args:
        withhold_ciphertext: As for any stream; a chat client never sees any.
        include_usage: Whether the client asked for a chunk with the usage.
        fallback: What the chunks say of themselves where the upstream does not.
    """

    __slots__ = (
        "_begun",
        "_calls",
        "_fallback",
        "_identity",
        "_include_usage",
        "_members",
        "_progress",
        "_speaking",
    )

    def __init__(
        self, *, withhold_ciphertext: bool, include_usage: bool, fallback: Fallback
    ) -> None:
        super().__init__(withhold_ciphertext=withhold_ciphertext)
        self.changed = True  # nothing of it is as it came
        self._fallback = fallback
        self._include_usage = include_usage
        self._begun = False
        self._identity: Json = {}
        self._calls = 0
        self._members: set[str] = set()
        self._progress: dict[int, _Progress] = {}
        self._speaking: list[ItemState] = []
        """Messages that are not told to their end; only the first is told as it comes."""

    @property
    def committed(self) -> bool:
        """Whether a chunk was written."""
        return self._begun

    @property
    def relayable(self) -> bool:
        """Never: what comes is written anew."""
        return False

    def start_hop(self) -> None:
        """Take the events that follow as those of another hop."""
        super().start_hop()
        self._progress = {}
        self._speaking = []

    # --- Events of the upstream -----------------------------------------------------------

    def show(self, accepted: Accepted, item: ItemState | None, mint: Mint) -> None:
        """Write what an event adds to the completion."""
        if item is None:
            return
        if item.type in SHOWN:
            self._see(accepted.event["type"], item, mint)
        self._add(accepted.event, item)

    def continue_text(
        self,
        event: dict[str, Any],
        _data: bytes,
        item: ItemState,
        /,
    ) -> None:
        """Write a delta of an item that was shown."""
        self._add(event, item)

    def form_of(
        self,
        _form: DeltaForm,
        _event: dict[str, Any],
        _item: ItemState,
        /,
    ) -> DeltaForm | None:
        """Return none: each delta is a chunk of its own."""
        return None

    def _add(self, event: Json, item: ItemState) -> None:
        kind = event["type"]
        progress = self._progress_of(item)
        if item.type == "message":
            self._take_prose(kind, event, item)
        elif (part := _THOUGHTS.get(kind)) is not None:
            self._think(progress, kind, event.get(part), _delta(event))
        elif kind in _ARGUMENTS:
            self._announce(progress, item)
            self._argue(progress, item, _delta(event))
        elif kind == "response.output_item.added":
            self._announce(progress, item)
        elif kind == _DONE_ITEM:
            self._complete(progress, item)

    def _progress_of(self, item: ItemState) -> _Progress:
        return self._progress.setdefault(item.index, _Progress(-1, {}))

    def _take_prose(self, kind: str, event: Json, item: ItemState) -> None:
        """Write what a message says; one that begins beside another waits for its end."""
        progress = self._progress_of(item)
        if kind == _DONE_ITEM:
            progress.done = True
        elif (member := _PROSE.get(kind)) is not None:
            progress.waiting.append((member, _delta(event), logprobs_of(event.get("logprobs"))))
        if not any(one is item for one in self._speaking):
            self._speaking.append(item)
        while self._speaking:
            first = self._speaking[0]
            self._tell(first)
            if not self._progress_of(first).done:
                return
            self._speaking.pop(0)

    def _tell(self, item: ItemState) -> None:
        """Write what a message has said and was not written yet."""
        progress = self._progress_of(item)
        for member, text, logprobs in progress.waiting:
            self._say(progress, member, text, logprobs)
        progress.waiting.clear()
        if progress.done:
            for member, said in (("content", text_of), ("refusal", refusal_of)):
                self._say(progress, member, said(item.value)[progress.told.get(member, 0) :])

    def _complete(self, progress: _Progress, item: ItemState) -> None:
        """Write what was not streamed of an item that is done."""
        value = item.value
        match item.type:
            case "reasoning" if not progress.told:
                self._think(progress, "", 0, reasoning_of(value))
            case "function_call" | "custom_tool_call":
                self._announce(progress, item)
                told = progress.told.get("arguments", 0)
                self._argue(progress, item, item.arguments[told:])
            case _:
                pass

    def _say(
        self, progress: _Progress, member: str, text: str, logprobs: Json | None = None
    ) -> None:
        if not text:
            return
        told = progress.told.get(member, 0)
        progress.told[member] = told + len(text)
        if not told and member in self._members:
            text = SEPARATOR + text
        self._members.add(member)
        self._write_chunk({member: text}, logprobs=logprobs)

    def _think(self, progress: _Progress, kind: str, part: object, text: str) -> None:
        if not text or progress.source not in ("", kind):
            return
        at = part if type(part) is int else 0
        begun = "reasoning_content" in progress.told
        if (not begun and "reasoning_content" in self._members) or (begun and at != progress.part):
            text = SEPARATOR + text
        progress.source, progress.part = kind, at
        progress.told["reasoning_content"] = 1
        self._members.add("reasoning_content")
        self._write_chunk({"reasoning_content": text})

    def _announce(self, progress: _Progress, item: ItemState) -> None:
        """Begin a call once it is known whose it is."""
        if progress.call >= 0 or item.type == "message" or item.type not in SHOWN or not item.name:
            return
        progress.call = self._calls
        self._calls += 1
        call = call_of({**item.value, "arguments": "", "input": ""})
        self._write_chunk({"tool_calls": [{"index": progress.call, **call}]})

    def _argue(self, progress: _Progress, item: ItemState, text: str) -> None:
        if not text or progress.call < 0:
            return
        progress.told["arguments"] = progress.told.get("arguments", 0) + len(text)
        custom = item.type == "custom_tool_call"
        said: Json = {"custom": {"input": text}} if custom else {"function": {"arguments": text}}
        self._write_chunk({"tool_calls": [{"index": progress.call, **said}]})

    # --- Writing --------------------------------------------------------------------------

    def write(
        self,
        kind: str,
        event: dict[str, Any],
        data: bytes | None,
        _changes: frozenset[str],
        _edits: dict[str, Any],
        /,
    ) -> None:
        """Take a lifecycle event: the identity at the beginning, the end at a terminal."""
        if kind in TERMINALS:
            self._end(event["response"])
        elif kind == "response.created" and not self._begun:
            self._identity = identity_of(event["response"], self._fallback)
        elif data is None:  # a sign of life
            self.out.append(encode_comment("keep-alive"))

    def write_response(self, accepted: Accepted, edits: dict[str, Any]) -> None:
        """Write the end.

        Raises:
            UpstreamRefusedError: The provider failed before there was anything to write.
        """
        self._end({**accepted.event["response"], **edits})

    def pass_through(self, raw: bytes) -> None:
        """Write a comment; foreign data has no place among chunks."""
        if raw.startswith(b":"):
            self.out.append(raw)

    def _end(self, response: Json) -> None:
        if response.get("status") == "failed":
            if not self._begun:
                raise refused(response)
            self.out.append(frame({"error": error_of(response)}))
            return
        self._begin()
        if not self._identity:
            self._identity = identity_of(response, self._fallback)
        reason = finish_reason(response, calls=self._calls > 0)
        self._write_chunk({}, reason=reason)
        usage = response.get("usage")
        if self._include_usage and isinstance(usage, dict):
            self.out.append(frame({**self._head(), "choices": [], "usage": usage_of(usage)}))
        self.out.append(DONE)

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._write_chunk({"role": "assistant", "content": ""})

    def _write_chunk(
        self, delta: Json, *, reason: str | None = None, logprobs: Json | None = None
    ) -> None:
        self._begin()
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        usage = {"usage": None} if self._include_usage else {}
        self.out.append(frame({**self._head(), "choices": [choice], **usage}))

    def _head(self) -> Json:
        return {"object": "chat.completion.chunk", **self._identity}


class ChatAnswer(JSONAnswer):
    """The one chat completion of a client that did not ask for a stream.

    Args:
        withhold_ciphertext: As for any answer; a chat client never sees any.
        fallback: What it says of itself where the upstream does not.
    """

    __slots__ = ("_fallback", "_thoughts")

    def __init__(self, *, withhold_ciphertext: bool, fallback: Fallback) -> None:
        super().__init__(withhold_ciphertext=withhold_ciphertext)
        self._fallback = fallback
        self.changed = True  # nothing of it is as it came
        self._thoughts: list[str] = []

    @property
    def relayable(self) -> bool:
        """Never: what comes is written anew."""
        return False

    def show(self, accepted: Accepted, item: ItemState | None, mint: Mint) -> None:
        """Give an item its place, where a chat message has one for it."""
        if item is None:
            return
        if item.type in SHOWN:
            super().show(accepted, item, mint)
        elif item.type == "reasoning" and accepted.event["type"] == "response.output_item.done":
            self._thoughts.append(reasoning_of(item.value))

    def continue_text(self, event: dict[str, Any], data: bytes, item: ItemState) -> None:
        """Write nothing: deltas have no place in JSON."""

    def write_response(self, accepted: Accepted, edits: dict[str, Any]) -> None:
        """Write the completion.

        Raises:
            UpstreamRefusedError: The provider failed.
        """
        if accepted.event["type"] in TERMINALS:
            self._end({**accepted.event["response"], **edits})

    def _end(self, response: Json) -> None:
        if response.get("status") == "failed":
            raise refused(response)
        self.out = [dumps(completion_of(response, self._thoughts, self._fallback))]


def _delta(event: Json) -> str:
    delta = event.get("delta")
    return delta if isinstance(delta, str) else ""


def frame(value: Json) -> bytes:
    """Return a value as an event of a stream."""
    return b"data: " + dumps(value) + b"\n\n"
