"""Many deltas of one text at once: a read's frames that differ in nothing but their text.

The deltas of a text are the same bytes but for the delta, a padding that some providers add, and
the sequence number, which is known beforehand. A ``DeltaForm`` is the constant text around these
values. It takes from a read what would be the values if frames of the form stood there, by the
lengths of its constants alone; then it writes the frames of these values, and compares. A run of
them is forwarded as the one piece that it came as.

Why this is no guess
    Frames are taken only where the bytes that came are those that were written. Their values,
    which have no quotes in them, are parsed as one string with blanks between them. No escape and
    no character of several bytes goes on over a blank: so each value is the text of a string, and
    the constant text around it makes the very object that the form was made of, with another value
    in it. What doesn't fit is not taken, and goes the way of every event; so does a frame with an
    escaped quote.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

_DELTA: Final = "delta"
_TEXTS: Final = (_DELTA, "obfuscation")
_NUMBER: Final = "sequence_number"
_LARGEST: Final = 1 << 53
"""The largest sequence number of a form: what comes after it can still be written."""
_MARK: Final = "\0"
_MARKED: Final = orjson.dumps(_MARK)


class Block(NamedTuple):
    """Frames of one form in a row."""

    raw: bytes
    """Their bytes."""
    columns: list[tuple[bytes, ...]]
    """JSON text of their strings without quotes: for each one of the form, frame by frame."""
    frames: int
    """How many they are."""
    text: str
    """Their deltas, joined."""


class DeltaForm:
    """What the frames of a text's deltas have in common.

    Args:
        names: The members that are not constant, in their order.
        constants: The text before, between and after their values; quotes are constant.

    Attributes:
        numbered: Whether they have sequence numbers.
    """

    __slots__ = ("_delta", "_frame", "_head", "_number", "_pattern", "_texts", "numbered")

    def __init__(self, names: list[str], constants: list[bytes]) -> None:
        self._head = head = constants[0]
        line = head[: head.index(b"\n") + 1]
        sizes = [len(constant) for constant in constants]
        self._pattern = _pattern(line, tuple(names), (sizes[0] - len(line), *sizes[1:]))
        self._frame = [b""] * (2 * len(names) + 1)
        self._frame[::2] = constants
        texts = [name for name in names if name != _NUMBER]
        self._delta = texts.index(_DELTA)
        self._texts = [2 * names.index(name) + 1 for name in texts]
        self.numbered = _NUMBER in names
        self._number = 2 * names.index(_NUMBER) + 1 if self.numbered else 0

    @classmethod
    def of(cls, event: dict[str, Any]) -> DeltaForm | None:
        """Return the form of a delta like this one; None where there is none.

        Args:
            event: Its type is that of a known event.
        """
        number = event.get(_NUMBER)
        if number is not None and (type(number) is not int or number > _LARGEST):
            return None
        names = [
            name
            for name, value in event.items()
            if (name in _TEXTS and type(value) is str) or (name == _NUMBER and value is not None)
        ]
        if _DELTA not in names:
            return None
        try:
            marked = orjson.dumps({**event, **dict.fromkeys(names, _MARK)})
        except TypeError:  # the standard parser read what orjson can't write
            return None
        constants = (b"event: %b\ndata: %b\n\n" % (event["type"].encode(), marked)).split(_MARKED)
        if len(constants) != len(names) + 1:
            return None  # one that is constant says the same as the mark
        for place, name in enumerate(names):
            if name != _NUMBER:
                constants[place] += b'"'
                constants[place + 1] = b'"' + constants[place + 1]
        return cls(names, constants)

    def read(self, data: bytes, start: int, number: int) -> Block | None:
        """Return the block at an offset whose first number is this; None where there is none."""
        if not data.startswith(self._head, start):
            return None
        rows = self._pattern.findall(data, start)
        if rows and rows[-1][-1]:
            del rows[-1]
        if not rows:
            return None
        *columns, _ = zip(*rows, strict=True)
        frames = len(rows)
        raw = self.write(columns, frames, number)
        if not data.startswith(raw, start):
            frames = self._agreeing(data, start, columns, number)
            if not frames:
                return None
            columns = [column[:frames] for column in columns]
            raw = self.write(columns, frames, number)
        try:
            for column in columns:
                orjson.loads(b'"%b"' % b" ".join(column))
        except ValueError:
            return None
        return Block(raw, columns, frames, orjson.loads(b'"%b"' % b"".join(columns[self._delta])))

    def _agreeing(
        self, data: bytes, start: int, columns: list[tuple[bytes, ...]], number: int
    ) -> int:
        """Return how many frames at an offset are those that have these values."""
        for place in range(len(columns[0])):
            frame = self.write([(column[place],) for column in columns], 1, number + place)
            if not data.startswith(frame, start):
                return place
            start += len(frame)
        return len(columns[0])

    def write(self, columns: list[tuple[bytes, ...]], frames: int, number: int) -> bytes:
        """Return frames in this form.

        Args:
            columns: A block's strings.
            frames: How many.
            number: The first one's, where they have numbers.
        """
        width = len(self._frame)
        parts = self._frame * frames
        for place, column in zip(self._texts, columns, strict=True):
            parts[place::width] = column
        if self.numbered:
            numbers = orjson.dumps(list(range(number, number + frames)))
            parts[self._number :: width] = numbers[1:-1].split(b",")
        return b"".join(parts)


@lru_cache(maxsize=256)
def _pattern(line: bytes, names: tuple[str, ...], sizes: tuple[int, ...]) -> re.Pattern[bytes]:
    """Return what finds the strings of frames in a row, and then the first byte of the rest.

    Of the constant text it knows hardly more than lengths, so the same few serve all responses.

    Args:
        line: The line that names the event. Others differ where that of a delta ends.
        names: The members that are not constant.
        sizes: How long the constant texts are, the line left out.
    """
    parts = [rb".{%d}%b.{%d}" % (len(line) - 6, re.escape(line[-6:]), sizes[0])]
    for name, size in zip(names, sizes[1:], strict=True):
        parts += [rb"\d++" if name == _NUMBER else rb'([^"]*+)', b".{%d}" % size]
    return re.compile(b"%b|(.).*+" % b"".join(parts), re.DOTALL)
