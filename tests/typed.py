"""Holds a JSON value to a type of an SDK, strictly: also what the type does not name is wrong."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import is_typeddict


def mismatch(value: Any, kind: Any, at: str = "$") -> str | None:
    """Return where and how a value is none of a type; None where it is one.

    Typed dicts may have no other members than their own. SDKs type arrays as iterables and leave
    them unchecked; here every element is checked.

    Args:
        value: A JSON value.
        kind: Typed dicts, unions, literals, arrays, mappings and plain types.
        at: Where the value stands.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or kind is object:
        return None
    if origin in (Required, NotRequired, Annotated):
        return mismatch(value, inner[0], at)
    if origin in (Union, types.UnionType):
        found = [mismatch(value, one, at) for one in inner]
        return None if None in found else max(filter(None, found), key=len)
    if origin is Literal:
        return None if value in inner else f"{at}: {value!r:.60} is none of {inner}"
    if is_typeddict(kind):
        return _typed_dict(value, kind, at)
    if origin in (list, Iterable, Sequence, *_SEQUENCES):
        return _array(value, inner[0], at)
    if origin in (dict, Mapping):
        return None if isinstance(value, dict) else f"{at}: {value!r:.60} is no object"
    return _plain(value, kind, at)


_SEQUENCES = tuple(
    one for one in (get_origin(list[int]), get_origin(Iterable[int])) if one is not None
)


def _typed_dict(value: Any, kind: Any, at: str) -> str | None:
    if not isinstance(value, dict):
        return f"{at}: {value!r:.60} is no object"
    hints = get_type_hints(kind, include_extras=True)
    if unknown := value.keys() - hints.keys():
        return f"{at}: {kind.__name__} has no {sorted(unknown)}"
    if missing := kind.__required_keys__ - value.keys():
        return f"{at}: {kind.__name__} lacks {sorted(missing)}"
    found = (mismatch(one, hints[name], f"{at}.{name}") for name, one in value.items())
    return next(filter(None, found), None)


def _array(value: Any, kind: Any, at: str) -> str | None:
    if not isinstance(value, list):
        return f"{at}: {value!r:.60} is no array"
    found = (mismatch(one, kind, f"{at}[{number}]") for number, one in enumerate(value))
    return next(filter(None, found), None)


def _plain(value: Any, kind: Any, at: str) -> str | None:
    if kind is type(None):
        fits = value is None
    elif kind is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    elif isinstance(kind, type):
        fits = type(value) is kind
    else:  # a protocol of the SDK, as for arrays that are no strings
        fits = isinstance(value, list)
    return None if fits else f"{at}: {value!r:.60} is no {kind}"
