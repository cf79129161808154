r"""Where single members and elements stand in a JSON text, found without reading all of it.

**Backwards** from the closing brace the last members are found as predicted, or as a text that
parses to members of these names: what stands at the end of a request is found without reading the
history in front of it. Both are proofs. The first key's opening quote follows a comma, a brace or
space, so it is not escaped; and no string ends there, because a closing quote is never followed by
the key's first character (a key that begins with a space or one of ``,:]}``, or is empty, is given
up). From an opening quote on everything reads in one way only, as complete members up to the
brace; so the brace closes their object. Where the proof fails, the forward walk of
`pipeline.jsonspans` decides.

All functions expect valid JSON in UTF-8: a text that was parsed before.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import orjson

from pipeline.jsonspans import (
    BLANK,
    KEY,
    NEXT,
    Json,
    MemberSpan,
    Path,
    Span,
    blank_start,
    document_span,
    matched,
    member_elements,
    member_spans,
    predict,
    value_end,
    walk_elements,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_WINDOW: Final = 1 << 20
"""How far from the brace a member is searched that is not spelled as predicted."""
_PIECE: Final = 16
"""How many elements of an array are compared at once, at most."""
_TRIES: Final = 8
"""How many places that look like its key are tried: nested objects have the same keys."""
_BEFORE_KEY: Final = b",{" + BLANK
_AFTER_STRING: Final = BLANK + b',:]}"'
"""What may follow the closing quote of a string, or be the second quote of an empty one."""
_COMMA: Final = ord(",")
_CLOSING: Final = ord("]")


class ObjectText:
    """An object in its text, in which every member is looked for once.

    Args:
        data: The text.
        value: The parsed object; it must not change.
        span: Where the object stands; by default it is the outermost.
    """

    __slots__ = (
        "_edge",
        "_forward",
        "_known",
        "_left",
        "_names",
        "_stuck",
        "data",
        "end",
        "start",
        "value",
    )

    def __init__(self, data: bytes, value: dict[str, Any], span: Span | None = None) -> None:
        self.data = data
        self.value = value
        self.start, self.end = document_span(data) if span is None else span
        self._names = list(value)
        # The walk backwards: how many members are left, and where the one behind these begins.
        self._left = len(self._names)
        self._edge = self.end
        self._stuck = False
        self._forward: dict[str, MemberSpan] | None = None
        self._known: dict[str, dict[int, int]] = {}

    def __repr__(self) -> str:
        return f"<ObjectText of {len(self._names)} members>"

    def members(self, keys: Collection[str]) -> dict[str, MemberSpan]:
        """Return those of ``keys`` that the object has: backwards, else by the walk."""
        found = self.last_members(keys)
        if found is None:
            if self._forward is None:
                self._forward = member_spans(self.data, self.start, self.value)
            found = {key: self._forward[key] for key in self._forward if key in keys}
        return found

    def last_members(self, keys: Iterable[str]) -> dict[str, MemberSpan] | None:
        """Find members from the closing brace, without reading what precedes them.

        Args:
            keys: What to look for.

        Returns:
            Those of ``keys`` that the object has, or None where that can't be proved.
        """
        found: dict[str, MemberSpan] = {}
        for key in keys:
            if key in self.value:
                member = self._predicted_member(key) or self._parsed_member(key)
                if member is None:
                    return None
                found[key] = member
        return found

    def element_offsets(self, key: str, indices: Iterable[int]) -> dict[int, int]:
        """Return where elements of the array under ``key`` begin.

        Args:
            key: The key of an array that is not empty.
            indices: Which elements; the index behind the last stands for the end of the last.
        """
        known = self._known.setdefault(key, {})
        wanted = {at for at in indices if at not in known}
        if wanted:
            found = self._offsets_behind(key, wanted) if known else None
            found = found or self._predicted_offsets(key, wanted)
            if found is None:
                spans = member_elements(self.data, self.start, self.value, key)
                starts = [*(span.start for span in spans), spans[-1].end]
                found = {at: starts[at] for at in (0, *wanted)}
            known |= found
        return known

    def array_end(self, key: str) -> int | None:
        """Return where the last element of the array under ``key`` ends; None if that is not told.

        It is what stands in front of the next member. Of a key that occurs twice this is not
        certain: `element_offsets` proves it.

        Args:
            key: The key of an array that is not empty.
        """
        data, number = self.data, self._names.index(key) + 1
        place = self.end - 1
        if number < len(self._names):
            name = self._names[number]
            member = self._predicted_member(name) or self._parsed_member(name)
            place = blank_start(data, member.key) - 1 if member else 0
            if data[place] != _COMMA:
                return None
        place = blank_start(data, place) - 1
        return blank_start(data, place) if data[place] == _CLOSING else None

    def known_offsets(self, key: str) -> Mapping[int, int]:
        """Return where elements of the array under ``key`` begin, as far as that is known."""
        return self._known.get(key, {})

    def know_offsets(self, key: str, offsets: Mapping[int, int]) -> None:
        """Learn where elements of the array under ``key`` begin, or the last one ends."""
        self._known.setdefault(key, {}).update(offsets)

    def _offsets_behind(self, key: str, indices: Iterable[int]) -> dict[int, int] | None:
        """Find elements by a walk from the nearest one in front of each that is known."""
        data, array = self.data, self.value[key]
        known = self._known[key]
        places = sorted(known)
        found: dict[int, int] = {}
        at, position = -1, 0
        for index in sorted(indices):
            nearest = places[bisect_right(places, index) - 1]
            if nearest > at:
                at, position = nearest, known[nearest]
            if not 0 <= at <= index:
                return None
            while at < index:
                end = value_end(data, position, array[at])
                at += 1
                following = matched(NEXT, data, end)
                position = following.end() if following[1] == b"," else end
            found[index] = position
        return found

    def _predicted_offsets(self, key: str, indices: set[int]) -> dict[int, int] | None:
        """Prove that the text ends with this array and what follows it, spelled compactly."""
        name, array, data = predict(key), self.value[key], self.data
        position = self._begin_of(self._names.index(key) + 1) - 2
        if name is None or position < 0 or data[position] != _CLOSING:
            return None
        high = count = len(array)
        offsets = {high: position}
        indices.add(0)
        for low in sorted(indices, reverse=True):
            # In pieces: memory for a second copy of a history costs more than the work.
            while high > low:
                first = max(low, high - _PIECE)
                piece = predict(array[first:high])
                if piece is None:
                    return None
                if high < count:
                    position -= 1
                    if data[position] != _COMMA:
                        return None
                position -= len(piece) - 2
                if position < 0 or not data.startswith(memoryview(piece)[1:-1], position):
                    return None
                high = first
            offsets[low] = position
        begin = position - len(name) - 2
        proven = begin > 0 and data.startswith(name + b":[", begin) and _opens(data, begin)
        return offsets if proven else None

    def _predicted_member(self, key: str) -> MemberSpan | None:
        """Prove that the object ends with this member and what follows it, spelled compactly."""
        number = self._names.index(key)
        following = self._begin_of(number + 1)
        begin = self._begin_of(number) if following >= 0 else -1
        name = predict(key)
        if begin < 0 or name is None or not _opens(self.data, begin):
            return None
        return MemberSpan(begin, begin + len(name) + 1, following - 1)

    def _begin_of(self, number: int) -> int:
        """Return where a member begins if all from it on is spelled compactly, else -1.

        Args:
            number: Which one; the number behind the last stands for the end of the object.
        """
        if number == self._left:
            return self._edge
        names = self._names
        if number > self._left:  # it was compared with what stands in front of it
            if number == len(names):
                return self.end
            text = predict({name: self.value[name] for name in names[number:]})
            return -1 if text is None else self.end + 1 - len(text)
        if not self._stuck:
            text = predict({name: self.value[name] for name in names[number : self._left]})
            begin = -1 if text is None else self._edge + 1 - len(text)
            if text is not None and self._precedes(text, begin):
                self._left, self._edge = number, begin
                return begin
            self._stuck = True
        return -1

    def _precedes(self, text: bytes, begin: int) -> bool:
        """Tell whether the members of an object stand at ``begin``, in front of those known."""
        if begin <= 0:  # the first byte of the object is its brace
            return False
        if self._left == len(self._names):
            return self.data.startswith(memoryview(text)[1:], begin)
        return self.data[self._edge - 1] == _COMMA and self.data.startswith(
            memoryview(text)[1:-1], begin
        )

    def _parsed_member(self, key: str) -> MemberSpan | None:
        """Prove that it ends with this member and what follows it, spelled otherwise."""
        data, end = self.data, self.end
        names = self._names[self._names.index(key) :]
        begin = _parsed_tail(data, end, names)
        following = _parsed_tail(data, end, names[1:])
        if begin is None or following is None:
            return None
        start = matched(KEY, data, begin).end()
        stop = blank_start(data, following)
        stop = blank_start(data, stop - 1) if len(names) > 1 else stop  # in front of the comma
        # Were there a key twice, the rest would be found behind its last occurrence.
        return MemberSpan(begin, start, stop) if _parse(data[start:stop]) else None


def _parsed_tail(data: bytes, end: int, names: list[str]) -> int | None:
    """Find where the last members of an object begin, if they have these names."""
    if not names:
        return end - 1
    name = predict(names[0])
    begin = end
    for _ in range(_TRIES if name else 0):
        begin = data.rfind(name or b"", max(0, end - _WINDOW), begin)
        if begin <= 0:
            break
        if _opens(data, begin):
            tail = _parse(b"{" + data[begin:end])
            if tail and list(tail[0]) == names:
                return begin
    return None


def _opens(data: bytes, quote: int) -> bool:
    """Tell whether a quote certainly begins a string: not escaped, and not the end of one."""
    return data[quote - 1] in _BEFORE_KEY and data[quote + 1] not in _AFTER_STRING


def _parse(text: bytes) -> tuple[Json, ...]:
    """Return the value as the only element, or nothing if the text is none."""
    try:
        return (orjson.loads(text),)
    except ValueError:
        return ()


def find(data: bytes, value: Json, path: Path) -> tuple[Span, Json]:
    """Return where the value at ``path`` stands, and the value.

    Raises:
        LookupError: There is nothing at ``path``.
    """
    span = document_span(data)
    for step in path:
        match value, step:
            case dict(), str():
                member = ObjectText(data, value, span).members((step,))[step]
                span = Span(member.start, member.end)
                value = value[step]
            case list(), int():
                index = range(len(value))[step]
                span = next(islice(walk_elements(data, span.start, value), index, None))
                value = value[index]
            case _:
                raise LookupError(f"nothing at {step!r}")
    return span, value
