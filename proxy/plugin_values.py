"""What a plugin hands over, read within bounds: texts, JSON, and the names of its errors.

A value of a plugin may be of any size, contain itself, or bring methods of its own. So it is
written piece by piece up to a number of characters, never deeper than ``DEPTH``, and the
containers and texts in it are read as what they are built on: a list that overrides its iterator
isn't asked.
"""

from __future__ import annotations

import dataclasses
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from pipeline import jsontext

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DEPTH: Final = 200
"""How deep lists and objects may be nested in one another."""
_NAME_CHARACTERS: Final = 80
_SCALARS: Final = (int, float, Decimal, date, time, UUID, type(None))


def text_of(value: object) -> str | None:
    """Return a text as a plain one, without methods of its own; None if it is no text."""
    return str.__str__(value) if isinstance(value, str) else None


def error_name(error: BaseException) -> str:
    """Return the name of an error's type, in one short line: a plugin may have given any."""
    return " ".join(type(error).__name__.split())[:_NAME_CHARACTERS] or "an error without a name"


def written(value: object, limit: int) -> str:
    """Write a value as JSON, as far as it goes.

    Args:
        value: Lists, tuples, dicts and dataclasses of texts, numbers, dates and the like.
        limit: How many characters are wanted.

    Returns:
        The JSON text; where it is longer than ``limit``, only its beginning, longer than
        ``limit`` by at most one value.

    Raises:
        TypeError: Something in that part is no JSON value.
        ValueError: It is nested deeper than ``DEPTH``, or has a number of too many digits.
    """
    pieces = []
    length = 0
    for piece in _pieces(value, limit + 1):
        pieces.append(piece)
        length += len(piece)
        if length > limit:
            break
    return "".join(pieces)


def _pieces(value: object, longest: int) -> Iterator[str]:
    """Yield the text in pieces, each value at least one character; texts are cut at ``longest``."""
    stack: list[tuple[Iterator[tuple[str, object]], str]] = [(iter((("", value),)), "")]
    while stack:
        members, closing = stack[-1]
        for prefix, item in members:
            yield prefix
            inner = _container(item, longest)
            if inner is None:
                yield _scalar(item, longest)
                continue
            if len(stack) > DEPTH:
                raise ValueError("the value is nested too deeply")
            yield inner[1][0]
            stack.append((inner[0], inner[1][1]))
            break
        else:
            stack.pop()
            yield closing


def _container(item: object, longest: int) -> tuple[Iterator[tuple[str, object]], str] | None:
    """Return what a container holds, each behind its prefix, and its brackets."""
    if isinstance(item, dict):
        return _members(dict.items(item), longest), "{}"
    if isinstance(item, list):
        return _elements(list.__iter__(item)), "[]"
    if isinstance(item, tuple):
        return _elements(tuple.__iter__(item)), "[]"
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        fields = (field.name for field in dataclasses.fields(item))
        return _members(((name, getattr(item, name)) for name in fields), longest), "{}"
    return None


def _members(items: Iterable[tuple[object, object]], longest: int) -> Iterator[tuple[str, object]]:
    comma = ""
    for key, item in items:
        if not isinstance(key, str):
            raise TypeError("the keys of an object are texts")
        yield f"{comma}{_text(key, longest)}:", item
        comma = ","


def _elements(items: Iterable[object]) -> Iterator[tuple[str, object]]:
    comma = ""
    for item in items:
        yield comma, item
        comma = ","


def _scalar(item: object, longest: int) -> str:
    plain = item.value if isinstance(item, Enum) else item
    if isinstance(plain, str):
        return _text(plain, longest)
    finite = not isinstance(plain, Decimal) or plain.is_finite()
    if not isinstance(plain, _SCALARS) or not finite:
        raise TypeError("a value is none of JSON")
    return jsontext.dumps(plain).decode()


def _text(value: str, longest: int) -> str:
    return jsontext.dumps(str.__str__(value)[:longest]).decode()
