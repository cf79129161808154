"""Many deltas of one text at once: a read's frames that differ in nothing but their text.

The deltas of a text are the same bytes but for the delta, a padding that some providers add, and
the sequence number, which is known beforehand. A ``DeltaForm`` is the constant text around these
values. It takes from a read what would be the values if frames of the form stood there, by hardly
more than the lengths of its constants; then it writes the frames of these values, and compares. A
run of them is forwarded as the one piece that it came as.

Why this is no guess
    Frames are taken only where the bytes that came are those that were written, and where their
    values, joined with blanks, are the text of one string. A quote without a backslash would end
    that string before its end, and so would a backslash before the end go on over it: the parser
    refuses both. No escape and no character of several bytes goes on over a blank: so each value
    is the text of a string by itself, whatever quotes are in it, and ends where the constant says.
    The text around the values then makes the very object that the form was made of, with other
    values in it. How the values were found, and how many frames are tried, is of no concern to
    this. What doesn't fit is not taken, and goes the way of every event.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

from pipeline.possessive import repeated

_DELTA: Final = "delta"
_TEXTS: Final = (_DELTA, "obfuscation")
_NUMBER: Final = "sequence_number"
_LARGEST: Final = 1 << 53
"""The largest sequence number of a form: what comes after it can still be written."""
_MARK: Final = "\0"
_MARKED: Final = orjson.dumps(_MARK)

_PADDING: Final = rb'([^"]*+)'
_VALUE: Final = rb'([^"]*+(?:|(?<=\\)"[^"\\]*+%b))' % repeated(r'\\.[^"\\]*+').encode()
"""A delta: up to its first quote; where that is no end, on over what backslashes stand before."""


class Block(NamedTuple):
    """Frames of one form in a row."""

    raw: bytes
    """Their bytes."""
    columns: list[list[bytes]]
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

    __slots__ = (
        "_columns",
        "_delta",
        "_end",
        "_frame",
        "_head",
        "_number",
        "_pattern",
        "_places",
        "_width",
        "numbered",
    )

    def __init__(self, names: list[str], constants: list[bytes]) -> None:
        self._head = head = constants[0]
        line = head[: head.index(b"\n") + 1]
        sizes = [len(constant) for constant in constants]
        self._pattern = _pattern(line, tuple(names), (sizes[0] - len(line), *sizes[1:]))
        self._end = constants[-1]
        self._frame = [b""] * (2 * len(names))
        self._frame[::2] = [self._end + head, *constants[1:-1]]
        texts = [name for name in names if name != _NUMBER]
        self._delta = texts.index(_DELTA)
        self._width = 1 + len(texts)
        self._columns = [slice(at, None, self._width) for at in range(1, self._width)]
        places = {name: slice(2 * at + 1, None, 2 * len(names)) for at, name in enumerate(names)}
        self._places = [places[name] for name in texts]
        self._number = places.get(_NUMBER)
        self.numbered = self._number is not None

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

    def read(self, data: bytes, start: int, number: int, end: int | None = None) -> Block | None:
        """Return the block at an offset; None where there is none.

        Args:
            data: What one read brought.
            start: The offset.
            number: The first one's, where they have numbers.
            end: Where to stop looking; by default the end of the data.
        """
        if not data.startswith(self._head, start, end):
            return None
        values = self._pattern.split(memoryview(data)[start:end])
        if values[-2] is None:  # of the rest
            del values[-self._width :]
        frames = len(values) // self._width
        if not frames:
            return None
        columns = [values[column] for column in self._columns]
        while frames:
            raw = self.write(columns, frames, number)
            if data.startswith(raw, start):
                if _are_strings(values):
                    text = orjson.loads(b'"%b"' % b"".join(columns[self._delta]))
                    return Block(raw, columns, frames, text)
                same = frames
            else:  # what is counted may be inside of a value: then half of them are tried as well
                same = raw.count(self._end, 0, _agreeing(raw, data, start))
            frames = same if same < frames else frames // 2
            values = values[: self._width * frames]
            columns = [column[:frames] for column in columns]
        return None

    def write(self, columns: list[list[bytes]], frames: int, number: int) -> bytes:
        """Return frames in this form.

        Args:
            columns: A block's strings.
            frames: How many.
            number: The first one's, where they have numbers.
        """
        parts = self._frame * frames
        parts[0] = self._head
        parts.append(self._end)
        for at, place in enumerate(self._places):
            parts[place] = columns[at]
        if self._number is not None:
            numbers = orjson.dumps(list(range(number, number + frames)))
            parts[self._number] = numbers[1:-1].split(b",")
        return b"".join(parts)


def _agreeing(raw: bytes, data: bytes, start: int) -> int:
    """Return how many bytes stand at an offset of the data as they do here."""
    low, high = 0, len(raw)
    while low < high:
        middle = (low + high + 1) // 2
        if data.startswith(raw[low:middle], start + low):
            low = middle
        else:
            high = middle - 1
    return low


def _are_strings(values: list[bytes]) -> bool:
    """Return whether each value is the text of a string.

    Without a backslash they are if they are written as they were read: faster than the parse.
    """
    text = b" ".join(values)
    try:
        if b"\\" not in text:
            return len(orjson.dumps(text.decode())) == len(text) + 2
        orjson.loads(b'"%b"' % text)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=256)
def _pattern(line: bytes, names: tuple[str, ...], sizes: tuple[int, ...]) -> re.Pattern[bytes]:
    """Return what finds the strings of frames in a row, and then the rest, which has none.

    Of the constant text it knows hardly more than lengths, so the same few serve all responses.

    Args:
        line: The line that names the event. Others differ where that of a delta ends.
        names: The members that are not constant.
        sizes: How long the constant texts are, the line left out.
    """
    values = {_NUMBER: rb"\d++", _DELTA: _VALUE}
    parts = [rb".{%d}%b.{%d}" % (len(line) - 6, re.escape(line[-6:]), sizes[0])]
    for name, size in zip(names[:-1], sizes[1:-1], strict=True):
        parts += [values.get(name, _PADDING), b".{%d}" % size]
    parts += [values.get(names[-1], _PADDING), b".{%d}\n\n" % (sizes[-1] - 2)]
    return re.compile(b"%b|.++" % b"".join(parts), re.DOTALL)
