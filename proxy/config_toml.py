"""Where the keys of a TOML text stand, which ``tomllib`` does not tell.

The scanner runs over text that ``tomllib`` has accepted already, so it checks nothing: it walks
from key to key, steps over values, and writes down the line of each header and each key.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""A key from the root; a number is an index into an array of tables."""

_KEY_PART: Final = re.compile(r"""[ \t]*(?:([A-Za-z0-9_-]+)|"((?:[^"\\]|\\.)*)"|'([^']*)')[ \t]*""")
_QUIET: Final = re.compile(r"[^\"'\[\]{}#\n]+")
_QUOTES: Final = ('"""', "'''", '"', "'")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line, counted from 1, of every table header and every key.

    Args:
        text: TOML that ``tomllib`` accepts. Keys inside of inline tables are not told apart from
            the key that holds the table.
    """
    return _Scanner(text).scan()


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int | None:
    """Return the line of a key, or of the nearest thing around it that has one."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._lines: dict[KeyPath, int] = {}
        self._table: KeyPath = ()
        self._counts: dict[KeyPath, int] = {}

    def scan(self) -> dict[KeyPath, int]:
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t\n":
                self._at += 1
            elif char == "#":
                self._skip_line()
            elif char == "[":
                self._header()
            else:
                self._note((*self._table, *self._key()))
                self._at += 1  # the equals sign
                self._skip_value()
        return self._lines

    def _header(self) -> None:
        array = self._text.startswith("[[", self._at)
        self._at += 2 if array else 1
        path = self._inside(self._key())
        if array:
            index = self._counts.get(path, -1) + 1
            self._counts[path] = index
            self._lines.setdefault(path, self._line())
            path = (*path, index)
        self._table = path
        self._note(path)
        self._skip_line()

    def _inside(self, key: tuple[str, ...]) -> KeyPath:
        """Return a header's path with the index of each array of tables that it runs through."""
        path: KeyPath = ()
        for depth, part in enumerate(key):
            path = (*path, part)
            if path in self._counts and depth < len(key) - 1:
                path = (*path, self._counts[path])
        return path

    def _key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while match := _KEY_PART.match(self._text, self._at):
            parts.append(next(part for part in match.groups() if part is not None))
            self._at = match.end()
            if not self._text.startswith(".", self._at):
                break
            self._at += 1
        return tuple(parts)

    def _note(self, path: KeyPath) -> None:
        self._lines.setdefault(path, self._line())

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _skip_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _skip_value(self) -> None:
        depth = 0
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "\n" and depth == 0:
                return
            if char == "#":
                self._skip_line()
            elif char in "\"'":
                self._skip_string()
            elif quiet := _QUIET.match(self._text, self._at):
                self._at = quiet.end()
            else:
                depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(char, 0)
                self._at += 1

    def _skip_string(self) -> None:
        quote = next(quote for quote in _QUOTES if self._text.startswith(quote, self._at))
        self._at += len(quote)
        while not self._text.startswith(quote, self._at):
            self._at += 2 if quote[0] == '"' and self._text[self._at] == "\\" else 1
        self._at += len(quote)
        while len(quote) == 3 and self._text.startswith(quote[0], self._at):
            self._at += 1  # up to two quotes may stand right before the closing three
