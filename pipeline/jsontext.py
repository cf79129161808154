"""JSON edited as text: what we don't change stays byte for byte.

A parse and a dump would lose what the sender wrote: big integers, duplicate keys, escapes, lone
surrogates, spacing. So the parsed value is only used to *find* places in the text
(`pipeline.jsonspans`, `pipeline.jsonplaces`), and an edit is a list of `Splice`: offsets, and the
bytes that take their place. The simple edits return the new text; the others return splices, so
that several edits of a large request copy it once.

Values are parsed by orjson; what it refuses but other parsers accept is left to the standard
library, both ways.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NoReturn

import orjson

from pipeline.jsonplaces import ObjectText, find
from pipeline.jsonspans import (
    Json,
    Path,
    Span,
    blank_start,
    element_spans,
    walk_members,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_INTEGERS: Final = range(-(2**63), 2**64)
"""What orjson reads as an int. Beyond it reads floats, and the standard parser has to agree."""
_INTEGER_DIGITS: Final = 20


@dataclass(slots=True)
class Splice:
    """One edit: ``text`` takes the place of ``data[start:end]``."""

    start: int
    end: int
    text: bytes


def loads(data: bytes) -> Json:
    """Parse JSON, also what orjson refuses but other parsers accept.

    Args:
        data: UTF-8 text; lone surrogates may be escaped or encoded.

    Returns:
        The value, the same whichever parser read it: integers beyond 64 bits are floats, and
        numbers beyond a float are `Decimal`.

    Raises:
        ValueError: It is no JSON: also NaN and Infinity, and nesting too deep to read.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    # Never the bytes themselves: the standard parser would take UTF-16 for JSON.
    text = data.decode("utf-8", "surrogatepass")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def loads_object(data: bytes) -> dict[str, Json] | None:
    """Parse a JSON object as `loads` does; None where the text is none, or no JSON."""
    try:
        value = orjson.loads(data)
    except ValueError:
        try:
            value = loads(data)
        except ValueError:
            return None
    return value if type(value) is dict else None


def dumps(value: Json, *, sort_keys: bool = False) -> bytes:
    """Serialize compactly: as orjson does, and in ASCII where it refuses.

    Args:
        value: What `loads` returns: also lone surrogates, big integers, decimals, any depth.
        sort_keys: Whether keys are sorted, for texts that are compared.

    Raises:
        TypeError: The value is none of these.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        return "".join(_encode(value, sort_keys=sort_keys)).encode()


def _integer(digits: str) -> float | Decimal:
    if len(digits) <= _INTEGER_DIGITS and int(digits) in _INTEGERS:
        return int(digits)
    return _number(digits)


def _number(text: str) -> float | Decimal:
    value = float(text)
    if not math.isinf(value):
        return value
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ValueError("a number's exponent is out of range") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


_DECODER: Final = json.JSONDecoder(parse_int=_integer, parse_float=_number, parse_constant=_refuse)


def _encode(value: Json, *, sort_keys: bool) -> Iterator[str]:
    """Yield a value in pieces, with a stack of our own: depth must not decide whether it works."""
    stack: list[tuple[Iterator[tuple[str, Json]], str]] = [(iter((("", value),)), "")]
    while stack:
        members, closing = stack[-1]
        for prefix, item in members:
            yield prefix
            if isinstance(item, dict):
                stack.append((_members(item, sort_keys=sort_keys), "}"))
                yield "{"
                break
            if isinstance(item, list):
                stack.append((_elements(item), "]"))
                yield "["
                break
            yield _scalar(item)
        else:
            stack.pop()
            yield closing


def _members(value: dict[str, Json], *, sort_keys: bool) -> Iterator[tuple[str, Json]]:
    comma = ""
    for key, item in sorted(value.items()) if sort_keys else value.items():
        yield f"{comma}{encode_basestring_ascii(key)}:", item
        comma = ","


def _elements(values: list[Json]) -> Iterator[tuple[str, Json]]:
    comma = ""
    for item in values:
        yield comma, item
        comma = ","


def _scalar(value: Json) -> str:
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, Decimal) or type(value) is int:
        return str(value)
    return orjson.dumps(value).decode()


_PLACE: Final = attrgetter("start", "end")


def splice(data: bytes, edits: Iterable[Splice]) -> bytes:
    """Apply edits that don't overlap; those at one offset in the given order."""
    view = memoryview(data)  # slices of bytes would copy a large request twice
    pieces: list[bytes | memoryview] = []
    position = 0
    for edit in sorted(edits, key=_PLACE):
        if edit.start < position:
            raise ValueError("edits overlap")
        pieces.append(view[position : edit.start])
        pieces.append(edit.text)
        position = edit.end
    if not pieces:
        return data
    pieces.append(view[position:])
    return b"".join(pieces)


def setting(data: bytes, parsed: Json, changes: Mapping[str, bytes], at: Path = ()) -> list[Splice]:
    """Give members of an object new values; new ones go to its end, in the given order.

    Args:
        data: The text.
        parsed: Its value.
        changes: JSON texts by key. An existing key gets a new value (its last occurrence, which
            counts); a new one is added before the closing brace.
        at: Where the object stands.

    Raises:
        LookupError: There is nothing at ``at``.
    """
    span, value = find(data, parsed, at)
    return setting_members(ObjectText(data, value, span), changes)


def setting_members(source: ObjectText, changes: Mapping[str, bytes]) -> list[Splice]:
    """Do the same with an object in its text."""
    found = source.members(changes)
    edits = [Splice(member.start, member.end, changes[key]) for key, member in found.items()]
    added = b",".join([dumps(key) + b":" + changes[key] for key in changes if key not in found])
    if added:
        edits.append(_adding(source, added))
    return edits


def _adding(source: ObjectText, members: bytes) -> Splice:
    """Add members, as JSON text, to the end of an object."""
    place = blank_start(source.data, source.end - 1)
    return Splice(place, place, b"," + members if source.value else members)


def appending(data: bytes, parsed: Json, texts: Sequence[bytes], at: Path) -> list[Splice]:
    """Append elements to an array, right behind its last one.

    Args:
        data: The text.
        parsed: Its value.
        texts: JSON texts.
        at: Where the array stands.

    Raises:
        LookupError: There is nothing at ``at``.
    """
    if not texts:
        return []
    span, value = find(data, parsed, at)
    place = blank_start(data, span.end - 1)
    text = b",".join(texts)
    return [Splice(place, place, b"," + text if value else text)]


def extending(source: ObjectText, additions: Mapping[str, Sequence[bytes]]) -> list[Splice]:
    """Append elements to arrays of an object; one that is null or absent is made.

    Args:
        source: The object.
        additions: JSON texts by the key of their array, one at least of each.
    """
    found = source.members(additions)
    edits: list[Splice] = []
    made: list[bytes] = []
    for key, texts in additions.items():
        text, member = b",".join(texts), found.get(key)
        if member is None:
            made.append(b"%b:[%b]" % (dumps(key), text))
        elif source.value[key] is None:
            edits.append(Splice(member.start, member.end, b"[%b]" % text))
        else:
            place = blank_start(source.data, member.end - 1)
            edits.append(Splice(place, place, b"," + text if source.value[key] else text))
    if made:
        edits.append(_adding(source, b",".join(made)))
    return edits


def dropping(data: bytes, parsed: Json, keys: Iterable[str], at: Path = ()) -> list[Splice]:
    """Take members out of an object, every occurrence of their keys.

    Raises:
        LookupError: There is nothing at ``at``.
    """
    span, value = find(data, parsed, at)
    gone = frozenset(keys).intersection(value)
    if not gone:
        return []
    members = list(walk_members(data, span.start, value))
    spans = [Span(member.key, member.end) for _, member in members]
    return _cut(spans, [key in gone for key, _ in members])


def cutting(data: bytes, parsed: Json, gone: Callable[[Json], bool], at: Path) -> list[Splice]:
    """Take those elements out of an array for which ``gone`` is true.

    Raises:
        LookupError: There is nothing at ``at``.
    """
    span, values = find(data, parsed, at)
    cut = [gone(value) for value in values]
    return _cut(element_spans(data, span.start, values), cut) if any(cut) else []


def _cut(spans: Sequence[Span], gone: Sequence[bool]) -> list[Splice]:
    """Cut elements or members out, each with one comma."""
    edits = []
    kept_before = False
    for index, (start, end) in enumerate(spans):
        if not gone[index]:
            kept_before = True
        elif kept_before:
            edits.append(Splice(spans[index - 1].end, end, b""))
        else:
            following = spans[index + 1].start if index + 1 < len(spans) else end
            edits.append(Splice(start, following, b""))
    return edits


def set_members(data: bytes, parsed: Json, changes: Mapping[str, bytes], at: Path = ()) -> bytes:
    """Return the text after `setting`."""
    return splice(data, setting(data, parsed, changes, at))


def append_elements(data: bytes, parsed: Json, texts: Sequence[bytes], at: Path) -> bytes:
    """Return the text after `appending`."""
    return splice(data, appending(data, parsed, texts, at))


def drop_members(data: bytes, parsed: Json, keys: Iterable[str], at: Path = ()) -> bytes:
    """Return the text after `dropping`."""
    return splice(data, dropping(data, parsed, keys, at))


def cut_elements(data: bytes, parsed: Json, gone: Callable[[Json], bool], at: Path) -> bytes:
    """Return the text after `cutting`."""
    return splice(data, cutting(data, parsed, gone, at))
