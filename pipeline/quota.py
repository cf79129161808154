"""The provider's quota events, rebuilt from a list of what may be in them.

``codex.rate_limits`` is the only event that tells a client about the account behind a turn. So it
never passes as it came: each field is copied only if its name and its kind are known, everything
else stays behind. A turn keeps two lists of them, in order of arrival over all its hops: all
that came (for its responses and the usage page), and those that the client was shown, from which
a hop's are taken back together with the hop's content.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

EVENT: Final = "codex.rate_limits"
MAX_EVENTS: Final = 64
MAX_BYTES: Final = 16 * 1024
"""Of one list, as JSON texts."""

Record = dict[str, Any]
"""A rebuilt event."""

_MAX_TEXT: Final = 256
_MAX_ENTRIES: Final = 16
_MAX_NUMBER: Final = 1 << 53
_DEFAULT_BUCKET: Final = "codex"


class QuotaLog:
    """The quota events of one turn."""

    __slots__ = ("_events", "_public")

    def __init__(self) -> None:
        self._events: tuple[Record, ...] = ()
        self._public: tuple[Record, ...] = ()

    @property
    def events(self) -> tuple[Record, ...]:
        """All accepted events, in order of arrival: for the turn's responses."""
        return self._events

    @property
    def public(self) -> tuple[Record, ...]:
        """The events that the client was shown, in that order."""
        return self._public

    def append_codex_rate_limit_event(self, event: dict[str, Any]) -> Record | None:
        """Rebuild ``event`` and keep it.

        Returns:
            The record, None where it says nothing new: a repetition of the one before it, or an
            event without any field that may pass.
        """
        record = rebuild(event)
        if record is None or (self._events and self._events[-1] == record):
            return None
        self._events = _within_caps((*self._events, record))
        return record

    def publish(self, record: Record) -> bool:
        """Decide whether the client is shown ``record``: not if it would see it twice in a row."""
        if self._public and self._public[-1] == record:
            return False
        self._public = _within_caps((*self._public, record))
        return True

    def mark(self) -> tuple[Record, ...]:
        """Return a point of the public list to which ``rollback`` leads back."""
        return self._public

    def rollback(self, mark: tuple[Record, ...]) -> None:
        """Take back what was made public since ``mark``; the internal list keeps it."""
        self._public = mark

    def newest(self) -> dict[str, Record]:
        """Return per bucket its newest record, with the newest of each of its windows."""
        newest: dict[str, Record] = {}
        for record in self._events:
            name = bucket(record)
            limits = [r.get("rate_limits") or {} for r in (newest.get(name, {}), record)]
            newest[name] = newest.get(name, {}) | record
            if any(limits):
                newest[name]["rate_limits"] = limits[0] | limits[1]
        return newest


def bucket(record: Record) -> str:
    """Return the name of the limit that ``record`` is about."""
    return record.get("metered_limit_name") or record.get("limit_name") or _DEFAULT_BUCKET


def rebuild(event: dict[str, Any]) -> Record | None:
    """Return a new event with the fields of ``event`` that may pass, None if there is none.

    Fields stand in a fixed order. Null passes under a known name: it says that a window is absent.
    """
    fields = _allowed(event, _EVENT)
    if not isinstance(fields, dict) or not fields:
        return None
    record = {"type": EVENT, **fields}
    return record if _size(record) <= MAX_BYTES else None


def _within_caps(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """Drop the oldest until the caps hold; last of all those that are the newest of a window."""
    sizes = [_size(record) for record in records]
    kept = list(range(len(records)))
    while len(kept) > MAX_EVENTS or sum(sizes[i] for i in kept) > MAX_BYTES:
        newest = {window: i for i in kept for window in _windows(records[i])}
        needed = set(newest.values())
        kept.remove(next((i for i in kept if i not in needed), kept[0]))
    return tuple(records[i] for i in kept)


def _windows(record: Record) -> list[tuple[str, str]]:
    """Return what ``record`` tells about: (bucket, field or window) pairs."""
    name = bucket(record)
    parts = [key for key, value in record.items() if value is not None and key != "rate_limits"]
    parts += [key for key, value in (record.get("rate_limits") or {}).items() if value is not None]
    return [(name, part) for part in parts]


def _size(record: Record) -> int:
    return len(orjson.dumps(record))


# What may pass. A field's rule is a checker, or the fields of the object that it may be.

_DROPPED: Final = object()


def _flag(value: object) -> object:
    return value if isinstance(value, bool) else _DROPPED


def _number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _DROPPED
    return value if abs(value) <= _MAX_NUMBER else _DROPPED


def _text(value: object) -> object:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        return _DROPPED
    return value if value.isprintable() else _DROPPED


def _amount(value: object) -> object:
    return _text(value) if isinstance(value, str) else _number(value)


def _additional(value: object) -> object:
    """Further limits: a list of them, or an object by their names."""
    if isinstance(value, list):
        entries = (_allowed(entry, _ADDITIONAL) for entry in value[:_MAX_ENTRIES])
        return [entry for entry in entries if isinstance(entry, dict)]
    if not isinstance(value, dict):
        return _DROPPED
    names = [name for name in value if _text(name) is not _DROPPED][:_MAX_ENTRIES]
    named = {name: _allowed(value[name], _ADDITIONAL) for name in names}
    return {name: entry for name, entry in named.items() if entry is not _DROPPED}


def _promo(value: object) -> object:
    return _text(value) if isinstance(value, str) else _allowed(value, _PROMO)


def _allowed(value: object, rule: _Rule) -> object:
    """Return what may pass of ``value``, ``_DROPPED`` if nothing may."""
    if value is None:
        return None
    if callable(rule):
        return rule(value)
    if not isinstance(value, dict):
        return _DROPPED
    fields = {key: _allowed(value[key], inner) for key, inner in rule.items() if key in value}
    return {key: field for key, field in fields.items() if field is not _DROPPED}


_Rule = Callable[[object], object] | dict[str, Any]
_WINDOW: Final[_Rule] = {
    "used_percent": _number,
    "window_minutes": _number,
    "limit_window_seconds": _number,
    "reset_after_seconds": _number,
    "reset_at": _amount,
    "resets_at": _amount,
    "resets_in_seconds": _number,
}
_LIMITS: Final[dict[str, Any]] = {
    "allowed": _flag,
    "limit_reached": _flag,
    "primary": _WINDOW,
    "secondary": _WINDOW,
    "primary_window": _WINDOW,
    "secondary_window": _WINDOW,
}
_ADDITIONAL: Final[_Rule] = {
    "limit_name": _text,
    "metered_limit_name": _text,
    "metered_feature": _text,
    **_LIMITS,
    "rate_limit": _LIMITS,
    "rate_limits": _LIMITS,
}
_PROMO: Final[_Rule] = {"campaign_id": _text, "title": _text, "message": _text}
_EVENT: Final[_Rule] = {
    "plan_type": _text,
    "rate_limits": _LIMITS,
    "code_review_rate_limits": _LIMITS,
    "additional_rate_limits": _additional,
    "credits": {"has_credits": _flag, "unlimited": _flag, "balance": _amount},
    "metered_limit_name": _text,
    "limit_name": _text,
    "promo": _promo,
}
