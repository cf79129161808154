"""Requests that begin like one before: what was read of that one is not read again.

The next request of a conversation repeats the one before it and adds to the end of its ``input``;
what stands behind that, the tools above all, mostly comes again too. So the last request of each
conversation is kept as text and value, and of the next one only what is new is parsed. Where items
stand is known from then on as well.

Why this is no guess
    What is not parsed again is the same byte for byte. A past request up to the end of its last
    item is the beginning of a JSON text that waits for more elements of ``input``, whatever
    follows. What follows is parsed as just that: as elements of an array, alone, where the rest
    comes again; else as the rest of an object whose array has begun. Both parses fail where the
    whole text is no JSON. A second ``input`` behind the first, which would be the one that counts,
    is seen by where its elements stand.

A value that is kept is shared by all requests that begin with it. None of them changes it.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from pipeline.jsonplaces import ObjectText
from pipeline.jsonspans import NEXT, blank_start, matched
from pipeline.jsontext import loads
from pipeline.request import Request, checked, read_request

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pipeline.jsonspans import Json

    _Read = tuple[dict[str, Json], list[Json], int, int]
    """What a request says, its new items, where these end, and how many bytes were known."""

MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes of memory that all requests take which are kept, about."""
_VALUE_BYTES: Final = 64
"""Bytes of memory that a value takes beside its characters, about."""
LEAST: Final = 4096
"""A shorter request is parsed faster than it is compared."""
_LOOKS: Final = 16
"""Conversations of one owner that are kept, and compared."""
_INPUT: Final = "input"
_KEY: Final = b'"input"'
_COMMA: Final = ord(",")
_OPENING: Final = b'{"input":[[]'
"""What the rest of a request is the rest of, with an element of ours in the place of all before.

It is no number: what follows can't go on with it.
"""


class _Past:
    """A request that was read.

    Args:
        source: It, in its text.
        end: Where the last item of its input ends.
        known: How many bytes of it were not parsed.
        head: The members in front of its input; None where the end is not certain yet.
        values: How many values its items hold, and its other members; counted where that is not
            known.

    Attributes:
        size: Bytes of memory that it takes, about: its text, its characters, its values.
        beginning: Its text up to there.
        tail: Its text from there on.
    """

    __slots__ = ("_head", "_values", "beginning", "end", "known", "size", "source", "tail")

    def __init__(
        self,
        source: ObjectText,
        end: int,
        *,
        known: int = 0,
        head: dict[str, Json] | None = None,
        values: tuple[int, int | None] | None = None,
    ) -> None:
        view = memoryview(source.data)
        body = source.value
        items, others = values or (_count(body[_INPUT]), None)
        if others is None:
            others = _count([body[name] for name in body if name != _INPUT])
        self._values = items, others
        self.size = 2 * len(source.data) + _VALUE_BYTES * (items + others)
        self.source = source
        self.end = end
        self.known = known
        self._head = head
        self.beginning = view[:end]
        self.tail = view[end:]

    @classmethod
    def of(cls, request: Request) -> _Past | None:
        """Return what is kept of a request; None where it has no items, or none that are found."""
        source = request.source()
        items = source.value.get(_INPUT)
        end = source.array_end(_INPUT) if isinstance(items, list) and items else None
        return None if end is None else cls(source, end)

    def _prove(self) -> dict[str, Json] | None:
        """Return the members in front of the input, if that ends where it seems to."""
        if self._head is None:
            count = len(self.source.value[_INPUT])
            offsets = self.source.element_offsets(_INPUT, [0, count])
            if offsets[count] == self.end:
                self._head = _members_before(self.source.data, offsets[0])
        return self._head

    def read(self, data: bytes) -> _Past | None:
        """Read a request with the same beginning; None where that can't be done."""
        head = self._prove()
        if head is None:
            return None
        read = self._read_items(data) or self._read_rest(data, head)
        if read is None:
            return None
        value, added, end, known = read
        items, others = self._values
        items += _count(added)
        grown = ObjectText(data, value)
        grown.know_offsets(_INPUT, self._offsets(data, len(added), end))
        # What stands behind the items was the same if it was known.
        values = (items, others if known > self.end else None)
        return _Past(grown, end, known=known, head=head, values=values)

    def _read_items(self, data: bytes) -> _Read | None:
        """Read the new items of a request that also ends like this one."""
        stop = len(data) - len(self.tail)
        if stop < self.end or not data.endswith(self.tail):
            return None
        added = _elements(data[self.end : stop])
        if added is None:
            return None
        body = self.source.value
        value = {**body, _INPUT: [*body[_INPUT], *added]}
        return value, added, blank_start(data, stop), self.end + len(self.tail)

    def _read_rest(self, data: bytes, head: dict[str, Json]) -> _Read | None:
        """Read the new items of a request, and all that follows them."""
        text = _OPENING + data[self.end :]
        rest = _object(text)
        if rest is None or not isinstance(rest[_INPUT], list) or not rest[_INPUT]:
            return None
        count = len(rest[_INPUT])
        offsets = ObjectText(text, rest).element_offsets(_INPUT, [0, count])
        if offsets[0] != _OPENING.index(b"[") + 1:  # a second input follows
            return None
        added = rest[_INPUT][1:]
        value = {**head, **rest, _INPUT: [*self.source.value[_INPUT], *added]}
        return value, added, offsets[count] + self.end - len(_OPENING), self.end

    def _offsets(self, data: bytes, added: int, end: int) -> dict[int, int]:
        """Return where items of a request that begins with this one stand."""
        count = len(self.source.value[_INPUT])
        known = self.source.known_offsets(_INPUT)
        offsets = {at: known[at] for at in known if at < count}
        if added:
            offsets[count] = matched(NEXT, data, self.end).end()
        offsets[count + added] = end
        return offsets


def _count(values: list[Json]) -> int:
    """Return how many values some values hold, themselves included."""
    count, level = 0, values
    while level:
        count += len(level)
        level = gc.get_referents(*level)
    return count


def _elements(text: bytes) -> list[Json] | None:
    """Read what stands behind an element of an array; None where it is no further elements."""
    if not text:
        return []
    try:
        # As deep as they stand in a request: a parser has its limit there.
        array: list[Json]
        array, *others = loads(b"[[[]%b]]" % text)
    except ValueError:
        return None
    return None if others else array[1:]


def _object(text: bytes) -> dict[str, Json] | None:
    try:
        value: dict[str, Json] = loads(text)
    except ValueError:
        return None
    return value


def _members_before(data: bytes, first: int) -> dict[str, Json] | None:
    """Return the members in front of the input, as the text has them up to there.

    Args:
        data: The text.
        first: Where the input's first item begins.

    Returns:
        None where the key is spelled in an unusual way.
    """
    place = blank_start(data, blank_start(data, first) - 1)  # in front of the bracket
    place = blank_start(data, place - 1)  # in front of the colon
    if not data.endswith(_KEY, 0, place):
        return None
    place = blank_start(data, place - len(_KEY))
    if data[place - 1] == _COMMA:
        place -= 1
    return _object(data[:place] + b"}")


class PrefixCache:
    """The last request of each conversation, as text and value.

    Args:
        most_bytes: How many bytes of memory what is kept may take; the conversation that was not
            used for longest goes first.
        least: How long a request is at least that is kept, or compared.

    Attributes:
        size: Bytes of memory that what is kept takes, about.
        known: Bytes of all requests that did not have to be parsed.
        parsed: Bytes of all that had.
    """

    def __init__(self, *, most_bytes: int = MOST_BYTES, least: int = LEAST) -> None:
        self.known = 0
        self.parsed = 0
        self._most_bytes = most_bytes
        self._least = least
        self.size = 0
        self._kept: OrderedDict[Hashable, list[_Past]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def __repr__(self) -> str:
        return f"<PrefixCache of {len(self)} requests, {self.size} bytes>"

    def read(self, owner: Hashable, data: bytes, *, keep: bool = True) -> Request:
        """Parse a request body as `pipeline.request.read_request` does.

        Args:
            owner: Whose it is: requests of different owners are never compared.
            data: The body.
            keep: Whether the next one may be compared with it.

        Raises:
            RequestError: As `read_request` does.
        """
        if len(data) < self._least:
            self.parsed += len(data)
            return read_request(data)
        before = self._find(owner, data)
        past = before.read(data) if before is not None else None
        if past is not None:
            request = checked(Request.of(past.source))
        else:
            request = read_request(data)
            past = _Past.of(request) if keep else None
        known = past.known if past is not None else 0
        self.known += known
        self.parsed += len(data) - known
        if keep and past is not None:
            self._keep(owner, past, before)
        return request

    def _find(self, owner: Hashable, data: bytes) -> _Past | None:
        """Return the longest request whose beginning is that of another one."""
        found = None
        for past in reversed(self._kept.get(owner, ())):
            if (found is None or past.end > found.end) and data.startswith(past.beginning):
                found = past
        return found

    def _keep(self, owner: Hashable, past: _Past, before: _Past | None) -> None:
        """Keep a request in the place of the one that it begins with."""
        pasts = self._kept.setdefault(owner, [])
        self._kept.move_to_end(owner)
        if before is not None:
            self._drop(pasts, pasts.index(before))
        elif len(pasts) == _LOOKS:
            self._drop(pasts, 0)
        pasts.append(past)
        self.size += past.size
        while self.size > self._most_bytes:
            oldest, pasts = next(iter(self._kept.items()))
            self._drop(pasts, 0)
            if not pasts:
                del self._kept[oldest]

    def _drop(self, pasts: list[_Past], at: int) -> None:
        self.size -= pasts.pop(at).size
