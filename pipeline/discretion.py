"""A provider's own words, without what the client must not learn from them.

A provider that fails says why, and often quotes what it was sent: the key that came with the
request, or the name, the id or the arguments of a call that is hidden from the client. The key is
replaced where it stands. A message that gives a hidden call away goes as a whole: what it is about
concerns nothing that the client has sent. Everything else passes as it came.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pipeline import jsontext
from pipeline.echo import CALLS, OUTPUTS, hidden_call_ids
from pipeline.request import input_items
from pipeline.toolset import tools_place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pipeline.jsonspans import Json
    from pipeline.response import ItemState

TELLING: Final = frozenset({"error", "response.failed", "response.done"})
"""The events in which a provider says in its own words what went wrong."""
INSTEAD: Final = "the provider reported an error"
"""What stands for a message that can't be shown."""
_QUOTABLE: Final = 8
"""So many characters make a quotation: shorter arguments occur by chance."""
_QUOTED: Final = 64
"""How much of a long text is looked for: providers shorten what they quote."""


class Discretion:
    """Knows what gives the hidden calls of a turn away.

    Args:
        names: Of the hidden tools; without one nothing is hidden.
        body: The request that the provider answered: hidden calls of earlier hops and turns are
            part of its input.
        calls: Hidden calls, or such as may be, that it has made since.
    """

    def __init__(
        self, names: Collection[str], body: dict[str, Any], calls: Iterable[ItemState]
    ) -> None:
        self._pattern: re.Pattern[str] | None = None
        if not names:
            return
        words = [*names]
        quotes = [f"tools[{index}]" for index in _places(body, names)]
        items = input_items(body)
        ids = hidden_call_ids(items, names)
        quotes += [text for item in items for text in _texts(item, ids)]
        for call in calls:
            quotes += [call.id, call.call_id, call.arguments]
        self._pattern = re.compile(
            "|".join(
                [rf"(?<!\w){re.escape(word)}(?!\w)" for word in words]
                + [re.escape(form) for text in quotes for form in _forms(text)]
            )
        )

    def is_betrayed_by(self, text: str) -> bool:
        """Tell whether a text gives a hidden call away."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def message(self, text: str) -> str:
        """Return a provider's message, or what stands for it."""
        return INSTEAD if self.is_betrayed_by(text) else text

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
            return INSTEAD.encode() if self.is_betrayed_by(text) else body
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


def _places(body: dict[str, Any], names: Collection[str]) -> Iterator[int]:
    """Yield where our tools stand among the request's."""
    tools: Json = body
    for step in tools_place(body):
        tools = tools.get(step) if isinstance(tools, dict) else tools[step]
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and tool.get("type") == "function" and tool.get("name") in names:
            yield index


def _texts(item: Json, ids: Collection[str]) -> Iterator[str]:
    """Yield what a hidden call, or what answered it, could be quoted by."""
    if not isinstance(item, dict) or item.get("type") not in (*CALLS, *OUTPUTS):
        return
    call_id = item.get("call_id")
    if isinstance(call_id, str) and call_id in ids:
        for key in ("id", "call_id", "arguments", "input", "output"):
            if isinstance(text := item.get(key), str):
                yield text


def _forms(text: str) -> Iterator[str]:
    """Yield a text as it may be quoted: plain, or once more as JSON."""
    if len(text) < _QUOTABLE:
        return
    text = text[:_QUOTED]
    yield text
    quoted = jsontext.dumps(text)[1:-1].decode("utf-8", "surrogatepass")
    if quoted != text:
        yield quoted
