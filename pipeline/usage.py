"""Token usage: what clients can read, and how it adds up.

Codex parses ``usage`` strictly: without ``total_tokens``, with ``{}`` as details or with a float
it drops the terminal event and asks again, after the answer was shown. So what it would refuse is
repaired where the meaning is plain, and replaced by null, which it accepts, where it isn't. Only
the fields that clients know are held to this; a provider's own ones (cost, tool counts) pass as
they are.
"""

from __future__ import annotations

from typing import Any, Final

_COUNT_LIMIT: Final = 1 << 63
"""Clients read counts into signed 64 bits."""
_DETAILS: Final = (
    ("input_tokens_details", "cached_tokens"),
    ("output_tokens_details", "reasoning_tokens"),
)
"""Detail objects, each with the counter that clients require inside it."""
_OPTIONAL_DETAIL: Final = "cache_write_tokens"


def is_complete_usage(value: object) -> bool:
    """Whether every client reads ``value`` as it is: null, or all counts there as integers."""
    if value is None:
        return True
    if not isinstance(value, dict):
        return False
    for count in (
        value.get("input_tokens"),
        value.get("output_tokens"),
        value.get("total_tokens"),
    ):
        if type(count) is not int or not 0 <= count < _COUNT_LIMIT:
            return False
    return _is_complete_detail(
        value.get("input_tokens_details"), "cached_tokens"
    ) and _is_complete_detail(value.get("output_tokens_details"), "reasoning_tokens")


def usable_usage(value: object) -> dict[str, Any] | None:
    """Return ``value`` as every client reads it, None where that takes guessing.

    Whole floats become integers; a missing total is the sum of input and output; missing details,
    or counters missing in them, are zero. A complete value is returned unchanged, fields and order
    included.
    """
    if not isinstance(value, dict):
        return None
    if is_complete_usage(value):
        return value
    usage = dict(value)
    for key in ("input_tokens", "output_tokens"):
        count = _whole(value.get(key))
        if count is None:
            return None
        usage[key] = count
    total = value.get("total_tokens")
    if total is None:
        total = usage["input_tokens"] + usage["output_tokens"]
    usage["total_tokens"] = _whole(total)
    for name, required in _DETAILS:
        usage[name] = _whole_detail(value.get(name), required)
    return usage if is_complete_usage(usage) else None


def add_usage(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the field-wise sum of two usages, details and unknown numbers included.

    Where a field is no number on both sides, the later one stays unless it is null.
    """
    if first is None or second is None:
        return second if first is None else first
    total = dict(first)
    for key, value in second.items():
        total[key] = _add(first.get(key), value, nested=True)
    return total


def _add(first: object, second: object, *, nested: bool) -> object:
    if type(first) is int and type(second) is int:  # as nearly all are
        return first + second
    if second is None:
        return first
    if nested and isinstance(first, dict) and isinstance(second, dict):
        return first | {
            key: _add(first.get(key), value, nested=False) for key, value in second.items()
        }
    one, other = _number(first), _number(second)
    return second if one is None or other is None else one + other


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _COUNT_LIMIT


def _is_complete_detail(value: object, required: str) -> bool:
    """Clients accept null for a whole detail object, but not for the counter inside one."""
    if value is None:
        return True
    if not isinstance(value, dict) or not _is_count(value.get(required)):
        return False
    optional = value.get(_OPTIONAL_DETAIL)
    return optional is None or _is_count(optional)


def _whole(value: object) -> int | None:
    """Return a count as an integer, None if it is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and _is_count(value) else None


def _whole_detail(value: object, required: str) -> object:
    """Return a detail object with whole counters; what can't be repaired is returned as it is."""
    if value is None:
        return {required: 0}
    if not isinstance(value, dict):
        return value
    detail = dict(value)
    for key in (required, _OPTIONAL_DETAIL):
        if detail.get(key) is not None:
            detail[key] = _whole(detail[key])
            if detail[key] is None:
                return value
    if detail.get(required) is None:
        detail[required] = 0
    return detail
