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
from proxy.chat.merge import Entry, is_rest, merge
from proxy.chat.reading import CHAT_KIND

if TYPE_CHECKING:
    from collections.abc import Callable

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
            changes |= self._asking_for_usage()
        return set_members(chat.text, chat.body, changes) if changes else chat.text

    def _asking_for_usage(self) -> dict[str, bytes]:
        """Return the options with which an upstream tells usage, unless the client's do."""
        options = self._chat.body.get("stream_options") or {}
        if options.get("include_usage") is True:
            return {}
        return {"stream_options": dumps({**options, "include_usage": True})}

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
        texts = [text[start:end] for start, end in spans]
        entries: list[Entry] = []
        base, at = self._base["input"], 0
        for item in body["input"]:
            if at < len(base) and (item == base[at] or is_rest(item, base[at])):
                entries.append(Entry(item, self._origins[at], cut=item != base[at]))
                at += 1
            else:
                entries.append(Entry(item, None))
        return merge(texts, own["messages"], entries, encode)


def _named(name: str) -> Json:
    return {"type": "function", "function": {"name": name}}


def encoding(encode: Callable[[Request], bytes]) -> Encode:
    """Return ``encode`` as a function of values."""

    def parsed(body: Json) -> Any:
        return loads(encode(Request(dumps(body), body)))

    return parsed
