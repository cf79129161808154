r"""Where the parts of a JSON text stand, found with the help of its parsed value.

**The parsed value predicts its text.** JSON values are prefix-free: no complete value but a number
is the beginning of a longer one. So ``data.startswith(dumps(value), start)`` proves where the
value at ``start`` ends, whatever the guess came from, and costs a dump and a comparison instead of
a scan. Where the sender spells it differently, one regular expression skips the value.

An object is walked member by member; a key that occurs twice counts with its last value, as it
does for every parser. `pipeline.jsonplaces` looks for single members from the end.

All functions expect valid JSON in UTF-8: a text that was parsed before.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import orjson

from pipeline.possessive import repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Json: TypeAlias = Any
"""Any JSON value: objects are dicts, arrays lists."""
Path: TypeAlias = tuple[str | int, ...]
"""Where a value stands: keys of objects and indices of arrays, from the outermost value on."""


class Span(NamedTuple):
    """The bytes of a value: ``data[start:end]``."""

    start: int
    end: int


class MemberSpan(NamedTuple):
    """A member of an object: its key begins at ``key``, its value is ``data[start:end]``."""

    key: int
    start: int
    end: int


# A string ends at the first quote that is not escaped. Quotes are searched with the cheapest loop
# of the engine; the parity of backslashes in front of one is counted only where two of them meet.
_TO_ESCAPED: Final = repeated(r'[^"]*+ " (?<= [^\\]\\" )')
_ESCAPES: Final = repeated(r'\\. [^"\\]*+')
_STRING: Final = rf"""
    " {_TO_ESCAPED}                    # up to quotes that one backslash escapes
    (?: [^"]*+ " (?<! \\" )          # a quote without a backslash ends it,
      | [^"\\]*+ {_ESCAPES} "        # else escape by escape
    )
""".encode()
_FLAGS: Final = re.VERBOSE | re.DOTALL
_SPACE: Final = re.compile(rb"[ \t\n\r]*+")
_SCALAR: Final = re.compile(_STRING + rb"| [-+.0-9A-Za-z]++", _FLAGS)
_BRACKET: Final = re.compile(
    # The next one outside of strings.
    repeated(rf'[^"\[\]{{}}]++ | {_STRING.decode()}').encode() + rb" ( [\[\]{}] )",
    _FLAGS,
)
KEY: Final = re.compile(rb"(" + _STRING + rb") [ \t\n\r]*+ : [ \t\n\r]*+", _FLAGS)
NEXT: Final = re.compile(rb"[ \t\n\r]*+ ( [,\]}] ) [ \t\n\r]*+", _FLAGS)
"""What follows a member or an element: a comma, or the bracket behind the last one."""

BLANK: Final = b" \t\n\r"
_BACKWARD_STEP: Final = 64


def skip_value(data: bytes, start: int) -> int:
    """Return where the value that starts at ``start`` ends."""
    if data[start] not in b"[{":
        return matched(_SCALAR, data, start).end()
    depth = 0
    for bracket in _BRACKET.finditer(data, start):
        depth += 1 if bracket[1] in b"[{" else -1
        if not depth:
            return bracket.end()
    raise ValueError("JSON ends inside of a value")


def value_end(data: bytes, start: int, value: object) -> int:
    """Return where the value at ``start`` ends.

    Args:
        data: The text.
        start: Offset of the value's first byte.
        value: What it probably is; a wrong guess costs time only.
    """
    # Numbers are not prefix-free (1.0 begins 1.05) and short: they are always skipped.
    if isinstance(value, (str, dict, list)):
        text = predict(value)
        if text is not None and data.startswith(text, start):
            return start + len(text)
    return skip_value(data, start)


def predict(value: object) -> bytes | None:
    """Return how a value is probably spelled; None where that can't be told."""
    try:
        return orjson.dumps(value)
    except TypeError:  # what it can't write it hasn't read: the text is spelled otherwise
        return None


def matched(pattern: re.Pattern[bytes], data: bytes, start: int) -> re.Match[bytes]:
    """Match a pattern of this module at ``start``, where JSON can't be anything else."""
    match = pattern.match(data, start)
    if match is None:
        raise ValueError(f"no JSON at offset {start}")
    return match


def _blank_end(data: bytes, start: int) -> int:
    return matched(_SPACE, data, start).end()


def blank_start(data: bytes, end: int) -> int:
    """Return where the white space in front of ``end`` begins."""
    while end and data[end - 1] in BLANK:
        begin = max(0, end - _BACKWARD_STEP)
        end = begin + len(data[begin:end].rstrip(BLANK))
    return end


def document_span(data: bytes) -> Span:
    """Return the outermost value without the white space around it."""
    if data and data[0] not in BLANK and data[-1] not in BLANK:
        return Span(0, len(data))
    return Span(_blank_end(data, 0), blank_start(data, len(data)))


def walk_members(
    data: bytes,
    start: int,
    value: dict[str, Any],
    *,
    end_of: Callable[[int, str], int] | None = None,
) -> Iterator[tuple[str, MemberSpan]]:
    """Yield every member of an object in text order, duplicates included.

    Args:
        data: The text.
        start: Offset of the opening brace.
        value: The parsed object.
        end_of: Finds the end of a member's value from its offset and key; by default ``value``
            predicts it.
    """
    position = _blank_end(data, start + 1)
    while data[position] != ord("}"):
        name = matched(KEY, data, position)
        key = _decode_key(name[1])
        begin = name.end()
        end = end_of(begin, key) if end_of else value_end(data, begin, value.get(key))
        yield key, MemberSpan(position, begin, end)
        following = matched(NEXT, data, end)
        if following[1] != b",":
            return
        position = following.end()


def _decode_key(token: bytes) -> str:
    text = token.decode("utf-8", "surrogatepass")
    return str(json.loads(text)) if "\\" in text else text[1:-1]


def member_spans(data: bytes, start: int, value: dict[str, Any]) -> dict[str, MemberSpan]:
    """Return the members of the object at ``start``; of duplicate keys the last, which counts."""
    return dict(walk_members(data, start, value))


def walk_elements(data: bytes, start: int, values: Sequence[Any]) -> Iterator[Span]:
    """Yield every element of the array at ``start``. ``values`` are guesses and may be fewer."""
    position = _blank_end(data, start + 1)
    index = 0
    while data[position] != ord("]"):
        end = value_end(data, position, values[index] if index < len(values) else None)
        yield Span(position, end)
        index += 1
        following = matched(NEXT, data, end)
        if following[1] != b",":
            return
        position = following.end()


def element_spans(data: bytes, start: int, values: Sequence[Any]) -> list[Span]:
    """Return the elements of the array at ``start``."""
    return list(walk_elements(data, start, values))


def member_elements(data: bytes, start: int, value: dict[str, Any], key: str) -> list[Span]:
    """Return the elements of the array under ``key`` of the object at ``start``, in one walk."""
    spans: list[Span] = []

    def end_of(begin: int, name: str) -> int:
        if name != key or data[begin] != ord("["):
            return value_end(data, begin, value.get(name))
        spans[:] = walk_elements(data, begin, value[key])
        return _blank_end(data, spans[-1].end if spans else begin + 1) + 1

    for _ in walk_members(data, start, value, end_of=end_of):
        pass
    return spans
