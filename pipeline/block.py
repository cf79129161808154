"""Many deltas of one text at once: a read's frames that differ in nothing but their text.

The deltas of a text are the same bytes but for the delta, a padding that some providers add, and
the sequence number, which is known beforehand. So a ``DeltaForm`` is the constant text around
these values, and a frame of it is found by comparing: nothing of it is copied but its values, and
a run of them is forwarded as the one piece that it came as.

Why this is no guess
    A value ends at the first quote, and the constant text must follow; a frame with an escaped
    quote in it is none of the form. All values are then parsed as one array, with ``"␊,"`` between
    them. A raw line break is no part of a JSON string, so each of ours stands between two elements,
    and there are at least as many as values. If there are exactly as many, each value is the text
    of one string; and the constant text around such values makes the very object that the form was
    made of, with other values in it. What doesn't fit is not taken, and goes the way of every
    event.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

_TEXTS: Final = ("delta", "obfuscation")
_NUMBER: Final = "sequence_number"


class Block(NamedTuple):
    """Frames of one form in a row."""

    raw: bytes
    """Their bytes."""
    values: list[bytes]
    """JSON text of their values without quotes, frame by frame."""
    frames: int
    """How many they are."""
    text: str
    """Their deltas, joined."""


class _Constant(NamedTuple):
    """Constant text, with a number in it where ``after`` is not None."""

    before: bytes
    after: bytes | None

    def text(self, number: int) -> bytes:
        if self.after is None:
            return self.before
        return b"%b%d%b" % (self.before, number, self.after)


class DeltaForm:
    """What the frames of a text's deltas have in common.

    Attributes:
        numbered: Whether they have sequence numbers.
    """

    __slots__ = ("_ahead", "_delta", "_head", "_middle", "_seam", "_tail", "numbered")

    def __init__(self, head: _Constant, middle: bytes | None, tail: _Constant, delta: int) -> None:
        """Make a form of its constant texts; see ``of``."""
        self._head = head
        self._middle = middle
        self._tail = tail
        self._delta = delta  # the place of the delta among the values
        self._ahead = 0 if head.after is None else 1  # whose number stands between two frames
        if head.after is not None:
            self._seam = _Constant(tail.before + head.before, head.after)
        else:
            after = None if tail.after is None else tail.after + head.before
            before = tail.before if tail.after is not None else tail.before + head.before
            self._seam = _Constant(before, after)
        self.numbered = self._seam.after is not None

    @classmethod
    def of(cls, event: dict[str, Any]) -> DeltaForm | None:
        """Return the form of a delta like this one; None where there is none.

        Args:
            event: Its type is that of a known event.
        """
        names = [name for name in event if name in _TEXTS and type(event[name]) is str]
        number = event.get(_NUMBER)
        if "delta" not in names or (number is not None and type(number) is not int):
            return None
        texts: list[list[bytes]] = [[b"event: %b\ndata: " % event["type"].encode()]]
        opening = b"{"
        try:
            for name, value in event.items():
                texts[-1][-1] += b"%b%b:" % (opening, orjson.dumps(name))
                opening = b","
                if name in names:
                    texts[-1][-1] += b'"'
                    texts.append([b'"'])
                elif name == _NUMBER and number is not None:
                    texts[-1].append(b"")
                else:
                    texts[-1][-1] += orjson.dumps(value)
        except TypeError:  # the standard parser read what orjson can't write
            return None
        texts[-1][-1] += b"}\n\n"
        head, *middle, tail = texts
        if any(len(text) > 1 for text in middle):
            return None  # a number between two texts: nobody writes it so
        between = middle[0][0] if middle else None
        return cls(_constant(head), between, _constant(tail), names.index("delta"))

    def read(self, data: bytes, start: int, number: int) -> Block | None:
        """Return the block at an offset whose first number is this; None where there is none."""
        if not data.startswith(head := self._head.text(number), start):
            return None
        values, end = self._values(data, start + len(head), number)
        if not values or (texts := _strings(values)) is None:
            return None
        width = 1 if self._middle is None else 2
        text = "".join(texts[self._delta :: width])
        return Block(data[start:end], values, len(values) // width, text)

    def _values(self, data: bytes, at: int, number: int) -> tuple[list[bytes], int]:
        """Return the values from the first one's offset on, and where the last frame ends."""
        values: list[bytes] = []
        take, find, follows = values.append, data.find, data.startswith
        (seam, after), before, middle = self._seam, self._seam.before, self._middle
        ahead, skipped = self._ahead, len(middle or b"")
        while True:
            stop = second = find(b'"', at)
            if middle is not None:
                if not follows(middle, stop):
                    return values, self._end(at, number)
                second = find(b'"', stop + skipped)
            if after is not None:
                seam = b"%b%d%b" % (before, number + ahead, after)
            going_on = follows(seam, second)
            if not going_on and not follows(tail := self._tail.text(number), second):
                return values, self._end(at, number)
            take(data[at:stop])
            if middle is not None:
                take(data[stop + skipped : second])
            if not going_on:
                return values, second + len(tail)
            at = second + len(seam)
            number += 1

    def _end(self, at: int, number: int) -> int:
        """Return where the frame ends in front of the one whose first value is at an offset."""
        return at - len(self._head.text(number))

    def write(self, block: Block, number: int) -> bytes:
        """Return a block's frames in this form, with numbers from this one on."""
        (before, after), middle, ahead = self._seam, self._middle, self._ahead
        parts = [self._head.text(number)]
        add = parts.append
        for place, value in enumerate(block.values):
            add(value)
            if middle is not None and not place % 2:
                add(middle)
            else:
                add(before if after is None else b"%b%d%b" % (before, number + ahead, after))
                number += 1
        parts[-1] = self._tail.text(number - 1)
        return b"".join(parts)


def _constant(texts: list[bytes]) -> _Constant:
    return _Constant(texts[0], texts[1] if len(texts) > 1 else None)


def _strings(values: list[bytes]) -> list[str] | None:
    """Return values as the strings that they are the JSON text of; None where one is none."""
    try:
        texts: list[str] = orjson.loads(b'["%b"]' % b'"\n,"'.join(values))
    except ValueError:
        return None
    return texts if len(texts) == len(values) else None
