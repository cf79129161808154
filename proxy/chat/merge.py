"""Items that a turn adds, put among the messages of a chat client.

A client keeps a whole turn as one message. Where hidden calls of the turn go back, what was said in
front of them stands in a message of its own again, as the upstream was sent it when the turn ran;
the client's message, with every member that only the two of them know, is what remains behind.

Items in a row become messages where results end them: a *segment* is what one message of the
assistant says, and the results of its calls.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.join import SEPARATOR
from pipeline.jsonplaces import find
from pipeline.jsonspans import element_spans
from pipeline.jsontext import dumps, loads, set_members

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from proxy.chat.messages import Json

    Encode = Callable[[Json], Json]
    """Responses request → chat request, as the upstream's provider translates it."""


class Entry(NamedTuple):
    """One input item of a hop's request.

    Attributes:
        item: The item.
        origin: Index of the client's message that it comes from; None for one that a turn added.
        cut: Whether something was taken out of it that stands in front of it now.
    """

    item: Json
    origin: int | None
    cut: bool = False


def is_rest(item: Json, whole: Json) -> bool:
    """Say whether an item is a message of the client without what was said before."""
    if item.keys() != whole.keys() or item.get("role") != "assistant":
        return False
    said, told = _plain(item), _plain(whole)
    return bool(said) and told.endswith(SEPARATOR + said)


def _plain(item: Json) -> str:
    parts = item.get("content")
    texts = [part.get("text") or part.get("refusal") for part in parts or () if part]
    return "".join(text for text in texts if isinstance(text, str))


def merge(
    texts: Sequence[bytes], values: Sequence[Json], entries: Iterable[Entry], encode: Encode
) -> bytes:
    """Return the array of messages.

    Args:
        texts: The client's messages as they came.
        values: The same, parsed.
        entries: The items of a hop's request.
        encode: Makes messages of items.
    """
    merging = _Merge(texts, values, encode)
    for origin, stretch in _stretches(list(entries)):
        merging.take(origin, stretch)
    return merging.finish()


def _stretches(entries: list[Entry]) -> Iterable[tuple[int | None, list[Entry]]]:
    """Yield the items of each message of the client, and those added in front and in between."""
    last = {entry.origin: at for at, entry in enumerate(entries) if entry.origin is not None}
    start = 0
    for origin, at in last.items():
        yield origin, entries[start : at + 1]
        start = at + 1
    if start < len(entries):
        yield None, entries[start:]


class _Merge:
    """Puts added items among messages."""

    def __init__(self, texts: Sequence[bytes], values: Sequence[Json], encode: Encode) -> None:
        self._texts = texts
        self._values = values
        self._encode = encode
        self._out: list[bytes] = []
        self._next = 0
        self._asking: tuple[int, Json] | None = None

    def take(self, origin: int | None, stretch: list[Entry]) -> None:
        """Take the items of one message, and what was added to them."""
        while self._next < (len(self._texts) if origin is None else origin):
            self._emit()
        added = [entry.item for entry in stretch if entry.origin is None]
        if origin is None:
            self._put(added)
        elif not added and not any(entry.cut for entry in stretch):
            self._emit()
        elif self._values[origin].get("role") == "assistant":
            self._take_turn(origin, stretch)
        else:
            self._put(added)
            self._emit()

    def finish(self) -> bytes:
        """Return the array."""
        while self._next < len(self._texts):
            self._emit()
        return b"[" + b",".join(self._out) + b"]"

    def _emit(self) -> None:
        """Write the next message as it came."""
        value = self._values[self._next]
        self._write(self._texts[self._next], value)
        self._next += 1

    def _write(self, text: bytes, value: Json) -> None:
        self._out.append(text)
        # Results follow the message that has their calls, and nothing else comes between.
        asking = value.get("role") == "assistant" and value.get("tool_calls")
        self._asking = (len(self._out) - 1, value) if asking else None

    def _put(self, items: list[Json]) -> None:
        """Write added items: beside a message that asks they are more of its calls and results."""
        if self._asking is not None:
            self._join([item for item in items if is_call(item)])
            items = [item for item in items if is_result(item)]
        if items:
            said = self._encode({"model": "m", "input": items})["messages"]
            self._out += [dumps(message) for message in said]

    def _join(self, calls: list[Json]) -> None:
        if self._asking is None or not calls:
            return
        at, value = self._asking
        asked = self._encode({"model": "m", "input": calls})["messages"][0]["tool_calls"]
        joined = [*value["tool_calls"], *asked]
        text = set_members(self._out[at], value, {"tool_calls": dumps(joined)})
        self._out[at] = text
        self._asking = (at, {**value, "tool_calls": joined})

    # --- The turn of a client's message -----------------------------------------------------

    def _take_turn(self, origin: int, stretch: list[Entry]) -> None:
        segments = list(_segments(stretch))
        own = [at for at, one in enumerate(segments) if any(e.origin is not None for e in one)]
        for at, segment in enumerate(segments):
            if at == own[-1]:
                self._take_own(origin, segment, begun=len(own) > 1)
                continue
            self._asking = None
            items = [entry.item for entry in segment]
            said = self._encode({"model": "m", "input": items})["messages"]
            self._out += [dumps(message) for message in said]
        self._next = origin + 1

    def _take_own(self, origin: int, segment: list[Entry], *, begun: bool) -> None:
        """Write what remains of the client's message.

        Args:
            origin: Its index.
            segment: What it says.
            begun: Its text was said in a message before it.
        """
        text, value = self._texts[origin], self._values[origin]
        changes: dict[str, Any] = {}
        if begun and not any(_is_message(entry.item) for entry in segment):
            changes["content"] = None
        for entry in segment:
            if entry.cut:
                changes |= _cut(value, entry.item)
        calls = [entry for entry in segment if is_call(entry.item)]
        said = {name: dumps(one) for name, one in changes.items()}
        if any(entry.origin is None for entry in calls):
            said["tool_calls"] = self._calls(text, value, calls)
        text = set_members(text, value, said)
        self._write(text, value | changes | _parsed_calls(said))
        results = [entry.item for entry in segment if is_result(entry.item)]
        if results:
            self._put(results)

    def _calls(self, text: bytes, value: Json, calls: list[Entry]) -> bytes:
        """Return an array of calls, the client's as they came."""
        span, own = find(text, value, ("tool_calls",)) if value.get("tool_calls") else (None, [])
        spans = [] if span is None else element_spans(text, span.start, own)
        known = {one["id"]: text[a:b] for one, (a, b) in zip(own, spans, strict=True)}
        array = []
        for entry in calls:
            if entry.origin is not None:
                array.append(known[entry.item["call_id"]])
                continue
            asked = self._encode({"model": "m", "input": [entry.item]})["messages"][0]
            array.append(dumps(asked["tool_calls"][0]))
        return b"[" + b",".join(array) + b"]"


def _segments(stretch: list[Entry]) -> Iterable[list[Entry]]:
    """Split items behind results."""
    segment: list[Entry] = []
    for results, entries in groupby(stretch, lambda entry: is_result(entry.item)):
        segment += entries
        if results:
            yield segment
            segment = []
    if segment:
        yield segment


def _cut(value: Json, item: Json) -> Json:
    """Return the members of a message that say no more than an item of it does."""
    content = item["content"]
    texts = [part["text"] for part in content if "text" in part]
    refusals = [part["refusal"] for part in content if "refusal" in part]
    changes: Json = {}
    if isinstance(value.get("content"), list):
        changes["content"] = [{"type": "text", "text": text} for text in texts]
    elif value.get("content") is not None:
        changes["content"] = "".join(texts) or None
    if value.get("refusal") is not None:
        changes["refusal"] = "".join(refusals) or None
    return changes


def _parsed_calls(said: dict[str, bytes]) -> Json:
    return {"tool_calls": loads(said["tool_calls"])} if "tool_calls" in said else {}


def _is_message(item: Json) -> bool:
    return item.get("type") == "message"


def is_call(item: Json) -> bool:
    """Say whether an item is a call."""
    return item.get("type") in ("function_call", "custom_tool_call")


def is_result(item: Json) -> bool:
    """Say whether an item is the output of a call."""
    return str(item.get("type")).endswith("_output")
