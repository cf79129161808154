"""Days: the words under which an entry's day is indexed, and the days that a query names.

A day is a whole number ``yyyymmdd`` in the calendar of the machine that stored the entry: that is
the day its user saw. It is indexed as words (``d20260507 m202605 y2026 k0507 may thursday``), so a
date in a question weighs like any other word: the rarer, the more.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_MONTHS: Final = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
_WEEKDAYS: Final = (
    *("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
)
_MONTH_NUMBER: Final = {
    **{name: number for number, name in enumerate(_MONTHS, 1)},
    **{name[:3]: number for number, name in enumerate(_MONTHS, 1)},
    "sept": 9,
}
_MONTH: Final = "|".join(sorted(_MONTH_NUMBER, key=len, reverse=True))
_NUMBER_WORDS: Final = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5}
_LAST_SECOND: Final = 253_370_764_800
"""The start of the year 9999: later times can't be told as dates everywhere."""

_PATTERNS: Final = tuple(
    (name, re.compile(pattern, re.IGNORECASE | re.ASCII))
    for name, pattern in (
        ("iso", r"\b(?P<y>(?:19|20)\d\d)[-/.](?P<m>\d\d?)(?:[-/.](?P<d>\d\d?))?\b"),
        (
            "day_month",
            (
                rf"\b(?P<d>\d\d?)(?:st|nd|rd|th)?(?:\s+of)?\s+(?P<month>{_MONTH})\b\.?"
                r"(?:,?\s+(?P<y>(?:19|20)\d\d)\b)?"
            ),
        ),
        (
            "month_day",
            (
                rf"\b(?P<month>{_MONTH})\b\.?\s+(?P<d>\d\d?)(?:st|nd|rd|th)?\b(?!:)"
                r"(?:,?\s+(?P<y>(?:19|20)\d\d)\b)?"
            ),
        ),
        ("month_year", rf"\b(?P<month>{_MONTH})\b\.?,?\s+(?:of\s+)?(?P<y>(?:19|20)\d\d)\b"),
        (
            "month",
            (
                rf"\b(?:in|of|since|until|during|before|after|last|this|early|mid|late)\s+"
                rf"(?P<month>{_MONTH})\b"
            ),
        ),
        (
            "ago",
            r"\b(?P<n>\d{1,3}|an?|one|two|three|four|five)\s+(?P<unit>day|week|month)s?\s+ago\b",
        ),
        ("beside", r"\b(?P<which>last|this)\s+(?P<unit>week|month|year)\b"),
        ("near", r"\b(?:the\s+)?(?P<near>day\s+before\s+yesterday|yesterday|today|tonight)\b"),
        ("weekday", rf"\b(?:last\s+|on\s+)?(?P<weekday>{'|'.join(_WEEKDAYS)})\b"),
        ("year", r"\b(?P<y>(?:19|20)\d\d)\b"),
    )
)
_RELATIVE: Final = frozenset({"ago", "beside", "near"})
"""Kinds whose words say nothing about what was said."""


def day_of(seconds: float) -> int:
    """Return the local calendar day of a time in seconds since 1970, as ``yyyymmdd``."""
    bounded = min(max(seconds, 0.0), float(_LAST_SECOND))
    return _number(datetime.fromtimestamp(bounded, tz=UTC).astimezone().date())


def iso_day(day: int) -> str:
    """Write a day as ``yyyy-mm-dd``."""
    return f"{day // 10_000:04}-{day // 100 % 100:02}-{day % 100:02}"


def day_words(day: int) -> list[str]:
    """Return the words that stand for a day in the index."""
    when = _date(day)
    return [
        f"d{day}",
        f"m{day // 100}",
        f"y{when.year}",
        f"k{day % 10_000:04}",
        _MONTHS[when.month - 1],
        _WEEKDAYS[when.weekday()],
    ]


def query_days(query: str, today: int) -> tuple[tuple[str, ...], str]:
    """Find the dates that a query names.

    Args:
        query: The query, in any characters.
        today: The day that relative dates count from.

    Returns:
        Index words of the dates, and the query without what only names a day relative to today.
    """
    words: dict[str, None] = {}
    rest = query
    for kind, pattern in _PATTERNS:
        taken = query
        for match in pattern.finditer(query):
            found = list(_words(kind, match, _date(today)))
            words.update(dict.fromkeys(found))
            blank = " " * (match.end() - match.start())
            if found:
                # What one pattern has read, no later one reads again.
                taken = taken[: match.start()] + blank + taken[match.end() :]
                if kind in _RELATIVE:
                    rest = rest[: match.start()] + blank + rest[match.end() :]
        query = taken
    return tuple(words), rest


def _words(kind: str, match: re.Match[str], today: date) -> Iterator[str]:
    part = match.groupdict()
    match kind:
        case "iso" | "day_month" | "month_day" | "month_year" | "month" | "year":
            yield from _absolute(part)
        case "ago":
            yield from _ago(part["n"].lower(), part["unit"].lower(), today)
        case "beside":
            yield from _beside(part["which"].lower(), part["unit"].lower(), today)
        case "near":
            near = part["near"].lower()
            back = 0 if near in {"today", "tonight"} else 1 if near == "yesterday" else 2
            yield f"d{_number(today - timedelta(days=back))}"
        case "weekday":
            weekday = _WEEKDAYS.index(part["weekday"].lower())
            back = (today.weekday() - weekday - 1) % 7 + 1
            yield f"d{_number(today - timedelta(days=back))}"
            yield _WEEKDAYS[weekday]
        case _:  # pragma: no cover - the table above is closed
            raise AssertionError(kind)


def _absolute(part: dict[str, str | None]) -> Iterator[str]:
    year, day = part.get("y"), int(part.get("d") or 0)
    name = part.get("month")
    month = _MONTH_NUMBER[name.lower()] if name else int(part.get("m") or 0)
    if month > 12 or day > 31:
        return
    if year and month and day:
        yield f"d{year}{month:02}{day:02}"
    if year and month:
        yield f"m{year}{month:02}"
    elif month and day:
        yield f"k{month:02}{day:02}"
    elif month:
        yield _MONTHS[month - 1]
    elif year:
        yield f"y{year}"


def _ago(count: str, unit: str, today: date) -> Iterator[str]:
    number = _NUMBER_WORDS.get(count) or int(count)
    match unit:
        case "day":
            yield f"d{_number(today - timedelta(days=number))}"
        case "week":
            yield from _week(today - timedelta(weeks=number))
        case _:
            yield _month_before(today, number)


def _beside(which: str, unit: str, today: date) -> Iterator[str]:
    back = 1 if which == "last" else 0
    match unit:
        case "week":
            yield from _week(today - timedelta(weeks=back))
        case "month":
            yield _month_before(today, back)
        case _:
            yield f"y{today.year - back}"


def _week(day: date) -> Iterator[str]:
    monday = day - timedelta(days=day.weekday())
    for offset in range(7):
        yield f"d{_number(monday + timedelta(days=offset))}"


def _month_before(day: date, count: int) -> str:
    months = day.year * 12 + day.month - 1 - count
    return f"m{months // 12}{months % 12 + 1:02}"


def _number(day: date) -> int:
    return day.year * 10_000 + day.month * 100 + day.day


def _date(day: int) -> date:
    return date(day // 10_000, day // 100 % 100, day % 100)
