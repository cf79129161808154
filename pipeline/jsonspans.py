r"""Where the parts of a JSON text stand, found with the help of its parsed value.

**The parsed value predicts its text.** JSON values are prefix-free: no complete value but a number
is the beginning of a longer one. So ``data.startswith(dumps(value), start)`` proves where the
value at ``start`` ends, whatever the guess came from, and costs a dump and a comparison instead of
a scan. Where the sender spells it differently, one regular expression skips the value.

**Forwards** an object is walked member by member; a key that occurs twice counts with its last
value, as it does for every parser.

**Backwards** from the closing brace the last members are found as predicted, or as a text that
parses to members of these names: what stands at the end of a request is found without reading the
history in front of it. Both are proofs. The first key's opening quote follows a comma, a brace or
space, so it is not escaped; and no string ends there, because a closing quote is never followed by
the key's first character (a key that begins with a space or one of ``,:]}``, or is empty, is given
up). From an opening quote on everything reads in one way only, as complete members up to the
brace; so the brace closes their object. Where the proof fails, the forward walk decides.

All functions expect valid JSON in UTF-8: a text that was parsed before.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
_STRING: Final = rb"""
    " (?: [^"]*+ " (?<= [^\\]\\" ) )*+         # up to quotes that one backslash escapes
    (?: [^"]*+ " (?<! \\" )                    # a quote without a backslash ends it,
      | [^"\\]*+ (?: \\. [^"\\]*+ )*+ "        # else escape by escape
    )
"""
_FLAGS: Final = re.VERBOSE | re.DOTALL
_SPACE: Final = re.compile(rb"[ \t\n\r]*+")
_SCALAR: Final = re.compile(_STRING + rb"| [-+.0-9A-Za-z]++", _FLAGS)
_BRACKET: Final = re.compile(
    rb'(?: [^"\[\]{}]++ |' + _STRING + rb")*+ ( [\[\]{}] )",  # the next one outside of strings
    _FLAGS,
)
_KEY: Final = re.compile(rb"(" + _STRING + rb") [ \t\n\r]*+ : [ \t\n\r]*+", _FLAGS)
_NEXT: Final = re.compile(rb"[ \t\n\r]*+ ( [,\]}] ) [ \t\n\r]*+", _FLAGS)

_BLANK: Final = b" \t\n\r"
_BACKWARD_STEP: Final = 64
_WINDOW: Final = 1 << 20
"""How far from the brace a member is searched that is not spelled as predicted."""
_PIECE: Final = 16
"""How many elements of an array are compared at once, at most."""
_TRIES: Final = 8
"""How many places that look like its key are tried: nested objects have the same keys."""
_AFTER_STRING: Final = b' \t\n\r,:]}"'
"""What may follow the closing quote of a string, or be the second quote of an empty one."""


def skip_value(data: bytes, start: int) -> int:
    """Return where the value that starts at ``start`` ends."""
    if data[start] not in b"[{":
        return _matched(_SCALAR, data, start).end()
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
        text = _predict(value)
        if text is not None and data.startswith(text, start):
            return start + len(text)
    return skip_value(data, start)


def _predict(value: object) -> bytes | None:
    try:
        return orjson.dumps(value)
    except TypeError:  # what it can't write it hasn't read: the text is spelled otherwise
        return None


def _matched(pattern: re.Pattern[bytes], data: bytes, start: int) -> re.Match[bytes]:
    match = pattern.match(data, start)
    if match is None:
        raise ValueError(f"no JSON at offset {start}")
    return match


def _blank_end(data: bytes, start: int) -> int:
    return _matched(_SPACE, data, start).end()


def blank_start(data: bytes, end: int) -> int:
    """Return where the white space in front of ``end`` begins."""
    while end and data[end - 1] in _BLANK:
        begin = max(0, end - _BACKWARD_STEP)
        end = begin + len(data[begin:end].rstrip(_BLANK))
    return end


def document_span(data: bytes) -> Span:
    """Return the outermost value without the white space around it."""
    if data and data[0] not in _BLANK and data[-1] not in _BLANK:
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
        name = _matched(_KEY, data, position)
        key = _decode_key(name[1])
        begin = name.end()
        end = end_of(begin, key) if end_of else value_end(data, begin, value.get(key))
        yield key, MemberSpan(position, begin, end)
        following = _matched(_NEXT, data, end)
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
        following = _matched(_NEXT, data, end)
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


def element_offsets(
    data: bytes, value: dict[str, Any], key: str, indices: Iterable[int]
) -> dict[int, int]:
    """Return where elements of the array under ``key`` of the outermost object begin.

    Args:
        data: The text.
        value: The parsed object.
        key: The key of an array that is not empty.
        indices: Which elements; the index behind the last stands for the end of the last.
    """
    wanted = {*indices}
    offsets = _predicted_offsets(data, value, key, wanted)
    if offsets is None:
        spans = member_elements(data, document_span(data).start, value, key)
        starts = [*(span.start for span in spans), spans[-1].end]
        offsets = {at: starts[at] for at in wanted}
    return offsets


def _predicted_offsets(
    data: bytes, value: dict[str, Any], key: str, indices: set[int]
) -> dict[int, int] | None:
    """Prove that the text ends with this array and what follows it, spelled compactly."""
    names = list(value)
    following = names[names.index(key) + 1 :]
    rest = _predict({name: value[name] for name in following})
    name = _predict(key)
    if name is None or rest is None:
        return None
    closing = b"]," + rest[1:] if following else b"]}"
    array, end = value[key], document_span(data).end - len(closing)
    if not data.startswith(closing, end):
        return None
    high, position = len(array), end
    offsets = {high: position}
    for low in sorted({0, *indices} - {high}, reverse=True):
        # In pieces: memory for a second copy of a history costs more than the work.
        while high > low:
            first = max(low, high - _PIECE)
            piece = _predict(array[first:high])
            if piece is None:
                return None
            if high < len(array):
                position -= 1
                if data[position] != ord(","):
                    return None
            position -= len(piece) - 2
            if position < 0 or not data.startswith(memoryview(piece)[1:-1], position):
                return None
            high = first
        offsets[low] = position
    begin = position - len(name) - 2
    proven = begin > 0 and data.startswith(name + b":[", begin) and _opens(data, begin)
    return offsets if proven else None


def last_members(
    data: bytes, end: int, value: dict[str, Any], keys: Iterable[str]
) -> dict[str, MemberSpan] | None:
    """Find members from the closing brace of their object, without reading what precedes them.

    Args:
        data: The text.
        end: Offset behind the closing brace.
        value: The parsed object.
        keys: What to look for.

    Returns:
        Those of ``keys`` that the object has, or None where that can't be proved.
    """
    found: dict[str, MemberSpan] = {}
    names = list(value)
    for key in keys:
        if key in value:
            last = names[names.index(key) :]
            member = _predicted_member(data, end, value, last) or _parsed_member(data, end, last)
            if member is None:
                return None
            found[key] = member
    return found


def _predicted_member(
    data: bytes, end: int, value: dict[str, Any], names: list[str]
) -> MemberSpan | None:
    """Prove that an object ends with these members, spelled compactly; return the first."""
    following = {key: value[key] for key in names[1:]}
    name, first, rest = _predict(names[0]), _predict(value[names[0]]), _predict(following)
    if name is None or first is None or rest is None:
        return None
    closing = b"," + rest[1:] if following else b"}"
    stop = end - len(closing)
    start = stop - len(first)
    begin = start - len(name) - 1
    text = b"%b:%b%b" % (name, first, closing)
    proven = begin > 0 and data.startswith(text, begin) and _opens(data, begin)
    return MemberSpan(begin, start, stop) if proven else None


def _parsed_member(data: bytes, end: int, names: list[str]) -> MemberSpan | None:
    """Prove the same of members that are spelled otherwise."""
    begin = _parsed_tail(data, end, names)
    following = _parsed_tail(data, end, names[1:])
    if begin is None or following is None:
        return None
    start = _matched(_KEY, data, begin).end()
    stop = blank_start(data, following)
    stop = blank_start(data, stop - 1) if len(names) > 1 else stop  # in front of the comma
    # Were there a key twice, the rest would be found behind its last occurrence.
    return MemberSpan(begin, start, stop) if _parse(data[start:stop]) else None


def _parsed_tail(data: bytes, end: int, names: list[str]) -> int | None:
    """Find where the last members of an object begin, if they have these names."""
    if not names:
        return end - 1
    name = _predict(names[0])
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
    return data[quote - 1] in b",{" + _BLANK and data[quote + 1] not in _AFTER_STRING


def _parse(text: bytes) -> tuple[Json, ...]:
    """Return the value as the only element, or nothing if the text is none."""
    try:
        return (orjson.loads(text),)
    except ValueError:
        return ()


def find_members(
    data: bytes, span: Span, value: dict[str, Any], keys: Iterable[str]
) -> dict[str, MemberSpan]:
    """Return those of ``keys`` that the object in ``span`` has: backwards, else by the walk."""
    wanted = [key for key in keys if key in value]
    if not wanted:
        return {}
    found = last_members(data, span.end, value, wanted)
    if found is None:
        members = member_spans(data, span.start, value)
        found = {key: members[key] for key in members if key in wanted}
    return found


def find(data: bytes, value: Json, path: Path) -> tuple[Span, Json]:
    """Return where the value at ``path`` stands, and the value.

    Raises:
        LookupError: There is nothing at ``path``.
    """
    span = document_span(data)
    for step in path:
        match value, step:
            case dict(), str():
                member = find_members(data, span, value, (step,))[step]
                span = Span(member.start, member.end)
                value = value[step]
            case list(), int():
                index = range(len(value))[step]
                span = next(islice(walk_elements(data, span.start, value), index, None))
                value = value[index]
            case _:
                raise LookupError(f"nothing at {step!r}")
    return span, value
