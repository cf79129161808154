"""A chat request put to an upstream that speaks chat completions itself.

The turn runs on a Responses request, but such an upstream gets the client's own request: the text
that came, with every member that only the two of them know. What a turn has to add is added to it:
the tool, the hidden items of earlier turns, and behind the last message what a hop brought.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.jsonspans import document_span, member_elements
from pipeline.jsontext import dumps, loads, set_members
from pipeline.request import Request
from proxy.chat.reading import CHAT_KIND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.chat.messages import Json
    from proxy.chat.request import Translation

    Encode = Callable[[Json], Json]
    """Responses request → chat request, as the upstream's provider translates it."""

_LIMITS: Final = ("max_completion_tokens", "max_tokens")


class NativeRequest:
    """The request of one client.

    Args:
        chat: As it came.
        translation: What a turn makes of it.
        raw_path: The path as it came.
        passes: Whether nothing is declared in it and nothing goes back into it.

    Attributes:
        left_out: What the translation has no place for.
        refusal: Why it can't be translated; None where it can.
    """

    def __init__(
        self,
        chat: Request,
        translation: Translation,
        *,
        raw_path: bytes = b"/v1/chat/completions",
        passes: bool = False,
    ) -> None:
        self.left_out = translation.left_out
        self.refusal = translation.refusal
        self.raw_path = raw_path
        self._passes = passes
        self._chat = chat
        self._base = translation.request.body
        self._origins = translation.origins

    def suits(self, kind: str) -> bool:
        """Say whether an upstream of this kind gets the client's own request.

        The public API and its like serve chat completions beside Responses; a turn of ours runs
        there as one of Responses all the same, because that keeps the model's reasoning.
        """
        return kind == CHAT_KIND or (self._passes and kind == "responses")

    def put(self, request: Request, encode: Encode) -> bytes:
        """Return the body that says to a chat upstream what a hop's request says.

        Args:
            request: The hop's request.
            encode: How the upstream's provider puts what only it has.
        """
        chat, body = self._chat, request.body
        changes: Json = {}
        if body["input"] != self._base["input"]:
            changes["messages"] = self._messages(body, encode)
        changes |= self._tools(body, encode)
        if body.get("max_output_tokens") != self._base.get("max_output_tokens"):
            name = next(name for name in _LIMITS if chat.body.get(name) is not None)
            changes[name] = dumps(body["max_output_tokens"])
        for name in ("model", "stream"):
            if body.get(name) != self._base.get(name):
                changes[name] = dumps(body[name])
        if body["stream"] and not self._passes:
            options = chat.body.get("stream_options") or {}
            if options.get("include_usage") is not True:
                changes["stream_options"] = dumps({**options, "include_usage": True})
        return set_members(chat.text, chat.body, changes) if changes else chat.text

    # --- Tools ----------------------------------------------------------------------------

    def _tools(self, body: Json, encode: Encode) -> dict[str, bytes]:
        """Return the tools with those that a turn adds, where they may be called."""
        added = [tool for tool in body.get("tools") or () if tool not in self._own_tools]
        if not added:
            return {}
        choice, own = body.get("tool_choice"), self._chat.body.get("tool_choice")
        if choice == "none":
            return {"tool_choice": dumps("none")}
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            allowed = [tool.get("name") for tool in choice.get("tools") or ()]
            added = [tool for tool in added if tool["name"] in allowed]
        if not added:
            return {}
        declared = encode({"model": "m", "input": [], "tools": added})["tools"]
        changes = {"tools": dumps([*(self._chat.body.get("tools") or ()), *declared])}
        match own:
            case {"allowed_tools": {"tools": list() as tools, **inner}, **more}:
                names = [_named(tool["name"]) for tool in added]
                widened = {**inner, "tools": [*tools, *names]}
                changes["tool_choice"] = dumps({**more, "allowed_tools": widened})
            case _:
                pass
        return changes

    @property
    def _own_tools(self) -> list[Json]:
        return self._base.get("tools") or []

    # --- Messages -------------------------------------------------------------------------

    def _messages(self, body: Json, encode: Encode) -> bytes:
        text, own = self._chat.text, self._chat.body
        spans = member_elements(text, document_span(text).start, own, "messages")
        merge = _Merge([text[start:end] for start, end in spans], own["messages"], encode)
        base, at = self._base["input"], 0
        for item in body["input"]:
            if at < len(base) and item == base[at]:
                merge.take_own(self._origins[at])
                at += 1
            else:
                merge.take_added(item)
        return merge.finish()


class _Merge:
    """Puts added items among messages.

    Args:
        texts: The messages as they came.
        values: The same, parsed.
        encode: Makes messages of items.
    """

    def __init__(self, texts: Sequence[bytes], values: Sequence[Json], encode: Encode) -> None:
        self._texts = texts
        self._values = values
        self._encode = encode
        self._out: list[bytes] = []
        self._next = 0
        self._last: tuple[int, Json] | None = None
        self._added: list[Json] = []

    def take_own(self, origin: int) -> None:
        """Take an item of the client's message ``origin``."""
        while self._next < origin:
            self._emit()
        added, self._added = self._added, []
        answered = {item["call_id"] for item in added if item["type"].endswith("_output")}
        waiting = [item for item in added if _is_call(item) and item["call_id"] not in answered]
        self._put([item for item in added if item not in waiting])
        if self._next == origin:
            self._emit()
        if waiting:  # their results come later: they are calls of this very message
            self._join(waiting, before=True)

    def take_added(self, item: Json) -> None:
        """Take an item that the client does not have."""
        self._added.append(item)

    def finish(self) -> bytes:
        """Return the array."""
        added, self._added = self._added, []
        while self._next < len(self._texts):
            self._emit()
        self._put(added)
        return b"[" + b",".join(self._out) + b"]"

    def _emit(self) -> None:
        value = self._values[self._next]
        self._out.append(self._texts[self._next])
        self._next += 1
        # Results follow the message that has their calls, and nothing else comes between.
        asking = value.get("role") == "assistant" and value.get("tool_calls")
        self._last = (len(self._out) - 1, value) if asking else None

    def _put(self, items: list[Json]) -> None:
        if self._last is not None:
            calls = [item for item in items if _is_call(item)]
            items = [item for item in items if item["type"].endswith("_output")]
            self._join(calls, before=False)
        if items:
            said = self._encode({"model": "m", "input": items})["messages"]
            self._out += [dumps(message) for message in said]

    def _join(self, items: list[Json], *, before: bool) -> None:
        """Add calls to those of the last message."""
        if self._last is None or not items:
            return
        at, value = self._last
        asked = self._encode({"model": "m", "input": items})["messages"][0]["tool_calls"]
        own = value["tool_calls"]
        value = {**value, "tool_calls": [*asked, *own] if before else [*own, *asked]}
        self._out[at] = dumps(value)
        self._last = (at, value)


def _is_call(item: Json) -> bool:
    return item["type"] in ("function_call", "custom_tool_call")


def _named(name: str) -> Json:
    return {"type": "function", "function": {"name": name}}


def encoding(encode: Callable[[Request], bytes]) -> Encode:
    """Return ``encode`` as a function of values."""

    def parsed(body: Json) -> Any:  # noqa: ANN401 - a chat request
        return loads(encode(Request(dumps(body), body)))

    return parsed
