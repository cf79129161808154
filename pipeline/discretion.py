"""A provider's own words, without what the client must not learn from them.

A provider that fails says why, and often quotes what it was sent: the key that came with the
request, or the name, the id or the arguments of a call that is hidden from the client. The key is
replaced where it stands. A message that gives a hidden call away goes as a whole: what it is about
concerns nothing that the client has sent. Everything else passes as it came.

What was put back into a request counts whether our tools are declared in it or not. Words are
compared without regard to case. A hidden text is given away by the whole of it, or by a run of
``RUN`` characters of it: providers shorten what they quote, at either end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pipeline import jsontext
from pipeline.echo import hidden_call_ids, is_call_or_output
from pipeline.failures import MESSAGE_CHARACTERS
from pipeline.request import client_tool_names, input_items
from pipeline.restored import NOTHING
from pipeline.toolset import tools_place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pipeline.intercept import Interception
    from pipeline.jsonspans import Json
    from pipeline.options import TurnOptions
    from pipeline.request import Request
    from pipeline.response import ItemState, ResponseState
    from pipeline.restored import Restored

TELLING: Final = frozenset({"error", "response.failed", "response.done"})
"""The events in which a provider says in its own words what went wrong."""
INSTEAD: Final = "the provider reported an error"
"""What stands for a message that can't be shown."""
RUN: Final = 16
"""So many characters in a row of a hidden text are a quotation of it."""
_QUOTABLE: Final = 8
"""A whole text of so many characters is one too: shorter ones occur by chance."""
_NAMING: Final = 4
"""So long is an id that is looked for as a word."""
_PROBE: Final = RUN // 2
_STRIDE: Final = RUN - _PROBE + 1
"""In ``RUN`` characters stands at least one whole probe of those taken at this distance."""


class Discretion:
    """Knows what gives the hidden calls of a turn away.

    Args:
        names: Of the hidden tools that were declared.
        body: The request that the provider answered: hidden calls of earlier hops and turns are
            part of its input.
        calls: Hidden calls, or such as may be, that it has made since.
        restored: What was put back into the request.
    """

    def __init__(
        self,
        names: Collection[str],
        body: dict[str, Any],
        calls: Iterable[ItemState],
        restored: Restored = NOTHING,
    ) -> None:
        self._pattern: re.Pattern[str] | None = None
        self._texts: list[str] = []
        self._continues = restored.continues
        if not names and not restored:
            return
        own = client_tool_names(body) - set(names)
        words = [*names, *(restored.names - own)]
        quotes = [f"tools[{index}]" for index in _places(body, names)]
        items = input_items(body)
        ids = hidden_call_ids(items, names) if names else set()
        told = [*(item for item in items if is_call_or_output(item, ids)), *restored.items]
        told += [call.value | {"arguments": call.arguments} for call in calls]
        for item in told:
            words += [item[key] for key in ("id", "call_id") if _is_id(item.get(key))]
            quotes += _texts(item)
        folded = {text.casefold() for text in quotes}
        self._texts = [form for text in folded for form in _forms(text)]
        whole = (re.escape(text) for text in self._texts if len(text) < RUN)
        named = (rf"(?<!\w){re.escape(word.casefold())}(?!\w)" for word in set(words))
        self._pattern = re.compile("|".join([*named, *whole]) or r"(?!)")

    def is_betrayed_by(self, text: str) -> bool:
        """Tell whether a text gives a hidden call away."""
        if self._pattern is None:
            return False
        text = text.casefold()
        return self._pattern.search(text) is not None or self._is_quoted_in(text)

    def _is_quoted_in(self, text: str) -> bool:
        """Tell whether a run of a hidden text stands in a text."""
        if len(text) < RUN:
            return False
        probes = {text[at : at + _PROBE] for at in range(len(text) - _PROBE + 1)}
        runs = {text[at : at + RUN] for at in range(len(text) - RUN + 1)}
        return any(
            hidden[at : at + RUN] in runs
            for hidden in self._texts
            for start in range(0, len(hidden) - _PROBE + 1, _STRIDE)
            if hidden[start : start + _PROBE] in probes
            for at in range(max(0, start - _PROBE), start + 1)
        )

    def message(self, text: str) -> str:
        """Return a provider's message, or what stands for it.

        A response that the client continues has the id in it that the client knows.
        """
        if self.is_betrayed_by(text):
            return INSTEAD
        if self._continues is not None:
            known, sent = self._continues
            return text.replace(sent, known)
        return text

    def value(self, value: Json) -> Json:
        """Return a JSON value with every text in it that gives a call away replaced.

        The same object where there is none. What is named ``param`` becomes null.
        """
        match value:
            case str():
                return self.message(value)
            case list():
                shown: Json = [self.value(one) for one in value]
            case dict():
                shown = {
                    key: None
                    if key == "param" and isinstance(one, str) and self.is_betrayed_by(one)
                    else self.value(one)
                    for key, one in value.items()
                    if not self.is_betrayed_by(key)
                }
            case _:
                return value
        return value if shown == value else shown

    def body(self, body: bytes) -> bytes:
        """Return the body of an error answer; the same object where it gives nothing away."""
        if self._pattern is None:
            return body
        try:
            value = jsontext.loads(body)
        except ValueError:
            text = body.decode("utf-8", "replace")
            told = self.message(text)
            return body if told == text else told.encode()
        shown = self.value(value)
        return body if shown is value else jsontext.dumps(shown)

    def event(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event of ``TELLING``; the same object where it gives nothing away."""
        if self._pattern is None:
            return event
        response = event.get("response")
        if not isinstance(response, dict):
            shown: dict[str, Any] = self.value(event)
            return shown
        error = self.value(response.get("error"))
        if error is response.get("error"):
            return event
        return {**event, "response": {**response, "error": error}}


class OwnWords:
    """What the provider of a hop says in its own words, as the client may read it.

    Args:
        options: What is fixed for the turn.
        request: What was sent.
        state: What has come.
        interception: Which of it is hidden.
    """

    __slots__ = ("_interception", "_options", "_request", "_state")

    def __init__(
        self,
        options: TurnOptions,
        request: Request,
        state: ResponseState,
        interception: Interception,
    ) -> None:
        self._options = options
        self._request = request
        self._state = state
        self._interception = interception

    def secret_calls(self) -> list[ItemState]:
        """Return its hidden calls, and such as may turn out to be, as far as they have come."""
        hidden = self._interception.recall_indices | self._interception.unresolved_tool_indices
        items = self._state.items
        return [items[index] for index in hidden if index in items]

    @property
    def discretion(self) -> Discretion:
        """What must not be given away: as far as it is known now."""
        options = self._options
        calls = self.secret_calls()
        return Discretion(options.hidden_names, self._request.body, calls, options.restored)

    def redact(self, text: str) -> str:
        """Return a message as the client may read it."""
        return self.discretion.message(self._options.redact(text))

    def error(self) -> dict[str, Any] | None:
        """Return what an ``error`` event said, as far as a terminal repeats it."""
        error = self._state.error
        if error is None:
            return None
        message = error.get("message")
        text = self.redact(message)[:MESSAGE_CHARACTERS] if isinstance(message, str) else None
        return {"code": error.get("code"), "message": text}

    def event(self, event: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Return an event of ``TELLING`` and its data; the same objects where nothing is told."""
        told = self._options.cleanse(data)
        shown = event
        if told is not data:
            shown = {**jsontext.loads(told), "type": event["type"]}
        discreet = self.discretion.event(shown)
        if discreet is not shown:
            return discreet, jsontext.dumps(discreet)
        return shown, told


def _places(body: dict[str, Any], names: Collection[str]) -> Iterator[int]:
    """Yield where our tools stand among the request's."""
    tools: Json = body
    for step in tools_place(body):
        tools = tools.get(step) if isinstance(tools, dict) else tools[step]
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and tool.get("type") == "function" and tool.get("name") in names:
            yield index


def _is_id(value: Json) -> bool:
    return isinstance(value, str) and len(value) >= _NAMING


def _texts(item: dict[str, Any]) -> Iterator[str]:
    """Yield what a hidden item could be quoted by, besides its ids."""
    for key in ("arguments", "input", "output", "summary", "content", "encrypted_content"):
        value = item.get(key)
        yield from _strings(value)
        if key == "arguments" and isinstance(value, str):
            try:
                yield from _strings(jsontext.loads(value.encode("utf-8", "surrogatepass")))
            except ValueError:
                continue


def _strings(value: Json) -> Iterator[str]:
    """Yield every text in a value that is long enough to be a quotation."""
    stack = [value]
    while stack:
        match stack.pop():
            case str() as text if len(text) >= _QUOTABLE:
                yield text
            case list() as values:
                stack += values
            case dict() as members:
                stack += members.values()
            case _:
                pass


def _forms(text: str) -> Iterator[str]:
    """Yield a text as it may be quoted: plain, or once more as JSON."""
    yield text
    quoted = jsontext.dumps(text)[1:-1].decode("utf-8", "surrogatepass")
    if quoted != text:
        yield quoted
