"""The events of one response, written one after the other, as the public API writes them.

A translator says what came (text, reasoning, a call, the end); the writer knows what that takes:
``created`` and ``in_progress`` first, items that are announced, grow and are done, numbers without
a gap, one terminal with everything in it. So every dialect gives streams of the same form.

At most one message or reasoning item is open at a time, beside any number of calls: upstreams
switch between them without a word, and clients want each of them closed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import SSEStreamLimitError
from pipeline.jsontext import dumps
from pipeline.lifecycle import ITEM_PREFIXES
from pipeline.sse import Frame, encode_event
from proxy.providers.items import TYPES, Item, Message, Reasoning, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.request import Request
    from pipeline.sse import Fragment
    from proxy.providers.base import Json
    from proxy.providers.tools import Tool

_ID_BYTES: Final = 24
_ECHOED: Final = (
    "background",
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "truncation",
    "user",
)
"""Members of the request that a response repeats, as the public API does."""
_DEFAULTS: Final[Json] = {
    "background": False,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "store": False,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
}


class ResponseWriter:
    """Writes one response.

    Args:
        request: The Responses request that is answered.
        kind: The upstream's kind.
        created_at: Unix time of a response whose upstream does not tell.
        limit: Bytes of text that may be kept: the ends of items repeat all of it.

    Attributes:
        begun: Whether ``response.created`` was written.
        ended: Whether the terminal was.
    """

    def __init__(self, request: Request, *, kind: str, created_at: int, limit: int) -> None:
        self.begun = False
        self.ended = False
        self._request = request
        self._kind = kind
        self._created_at = created_at
        self._limit = limit
        self._kept = 0
        self._seed = b""
        self._response: Json = {}
        self._frames: list[Frame | Fragment] = []
        self._number = 0
        self._items: list[Item] = []
        self._prose: Message | Reasoning | None = None

    def take(self) -> list[Frame | Fragment]:
        """Return the frames that were written, and forget them."""
        frames, self._frames = self._frames, []
        return frames

    # --- The response ---------------------------------------------------------------------

    def begin(self, source: object, *, model: object, created_at: object = None) -> None:
        """Write ``created`` and ``in_progress``.

        Args:
            source: What tells this answer from any other: the upstream's id for it, else the
                first that came of it. Ids are digests of it and of the request.
            model: The model as the upstream calls it; the request's where it does not say.
            created_at: Unix time, if the upstream tells.
        """
        digest = hashlib.blake2b(self._request.text, digest_size=_ID_BYTES)
        digest.update(dumps([self._kind, source]))
        self._seed = digest.digest()
        body = self._request.body
        if not isinstance(model, str) or not model:
            model = body.get("model")
        self._response = {
            "id": self._identity("resp", -1),
            "object": "response",
            "created_at": created_at if type(created_at) is int else self._created_at,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "usage": None,
            **_echo(body),
        }
        self.begun = True
        self._emit("response.created", response=self._response)
        self._emit("response.in_progress", response=self._response)

    def finish(self, reason: str | None, usage: Json | None) -> None:
        """Close what is open and write the terminal.

        A call that was cut off is not closed: clients run a call as soon as it is done.

        Args:
            reason: Why it is incomplete, None where it is complete.
            usage: What was used, None where the upstream did not say.
        """
        self.close_calls(cut_off=reason is not None)
        status = "completed" if reason is None else "incomplete"
        self.close_prose("completed" if reason is None else "incomplete")
        details = None if reason is None else {"reason": reason}
        self._end(status, usage, incomplete_details=details)

    def fail(self, code: str, message: str, usage: Json | None) -> None:
        """Close what was said and write ``response.failed``; open calls stay open."""
        self.close_prose("incomplete")
        self._end("failed", usage, error={"code": code, "message": message})

    def _end(self, status: str, usage: Json | None, **members: Any) -> None:
        output = [item.value for item in self._items if not item.open]
        response = {**self._response, "status": status, **members, "output": output, "usage": usage}
        self.ended = True
        self._emit(f"response.{status}", response=response)

    # --- Text and reasoning ---------------------------------------------------------------

    def text(self, delta: str) -> None:
        """Write text of the assistant."""
        if delta:
            self._keep(delta)
            self._message().text(delta)

    def refusal(self, delta: str) -> None:
        """Write a refusal."""
        if delta:
            self._keep(delta)
            self._message().refusal(delta)

    @property
    def said(self) -> bool:
        """Whether any item was announced."""
        return bool(self._items)

    @property
    def speaking(self) -> int | None:
        """The output index of the message that is open, None where none is."""
        return self._prose.index if isinstance(self._prose, Message) else None

    def end_part(self) -> None:
        """Let further text be a part of its own in the same message."""
        if isinstance(self._prose, Message):
            self._prose.end_part()

    def think(self, delta: str) -> None:
        """Write reasoning."""
        if delta:
            self._keep(delta)
            self.reasoning().text(delta)

    def reasoning(self) -> Reasoning:
        """Return the reasoning that is open, a new one where none is."""
        if not isinstance(self._prose, Reasoning):
            self.close_prose()
            index = len(self._items)
            self._prose = Reasoning(index, self._identity("rs", index), self._emit)
            self._items.append(self._prose)
        return self._prose

    def close_prose(self, status: str = "completed") -> None:
        """Close the message or reasoning that is open."""
        if self._prose is not None and self._prose.open:
            self._prose.close(status)
        self._prose = None

    def _message(self) -> Message:
        if not isinstance(self._prose, Message):
            self.close_prose()
            index = len(self._items)
            self._prose = Message(index, self._identity("msg", index), self._emit)
            self._items.append(self._prose)
        return self._prose

    # --- Calls ----------------------------------------------------------------------------

    def call(self, tool: Tool, call_id: str) -> ToolCall:
        """Announce a call.

        Args:
            tool: What the client knows it as.
            call_id: The upstream's id; empty where it gave none and one has to be made.
        """
        self.close_prose()
        index = len(self._items)
        kind = TYPES[tool.kind]
        call_id = call_id or self._identity("call", index)
        prefix = ITEM_PREFIXES[kind]
        call = ToolCall(index, self._identity(prefix, index), tool, call_id, self._emit)
        self._items.append(call)
        return call

    def add(self, call: ToolCall, delta: str) -> None:
        """Write arguments of a call."""
        if delta and call.open:
            self._keep(delta)
            call.add(delta)

    def close_calls(self, *, cut_off: bool = False) -> None:
        """Close the calls that are open, in their order.

        Args:
            cut_off: The upstream stopped in the middle: one that is not whole stays open.
        """
        for item in self._items:
            if isinstance(item, ToolCall) and item.open and (item.is_whole or not cut_off):
                item.close()

    @property
    def has_whole_call(self) -> bool:
        """Whether there are calls, and all of them are whole."""
        calls = [item for item in self._items if isinstance(item, ToolCall)]
        return bool(calls) and all(call.is_whole for call in calls)

    # --- Writing --------------------------------------------------------------------------

    def _emit(self, kind: str, **members: Any) -> None:
        data = dumps({"type": kind, **members, "sequence_number": self._number})
        self._number += 1
        self._frames.append(Frame(encode_event(kind, data), kind, data, sound=True))

    def _keep(self, delta: str) -> None:
        self._kept += len(delta)
        if self._kept > self._limit:
            raise SSEStreamLimitError(
                "Responses retained state exceeded byte limit", limit="retained_bytes"
            )

    def _identity(self, prefix: str, index: int) -> str:
        place = b"%s/%d" % (prefix.encode(), index)
        digest = hashlib.blake2b(place, key=self._seed, digest_size=_ID_BYTES)
        return f"{prefix}_{digest.hexdigest()}"


def _echo(body: Mapping[str, Any]) -> Json:
    """Return what a response repeats of its request."""
    given = {name: body[name] for name in _ECHOED if body.get(name) is not None}
    absent = dict.fromkeys(name for name in _ECHOED if name not in given)
    return {**absent, **_DEFAULTS, **given}
