"""The one text of a custom tool, read out of arguments that are still coming.

Upstreams that know functions only get a custom tool as a function with one string, and call it with
``{"input": "…"}``, a piece at a time. The text inside is what the client waits for, so the pieces
are decoded as they come: whatever is a whole character of it goes on at once.
"""

from __future__ import annotations

import json
import re
from typing import Final

from pipeline.possessive import repeated

_START: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_HIGH: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
"""The first half of a character that takes two escapes: it waits for the second."""
_CUT: Final = r"[0-9a-fA-F]{0,3}\Z"
"""The digits of a long escape, as far as the pieces go."""
_WHOLE: Final = re.compile(
    repeated(
        rf"""
        [^"\\]++                             # plain characters
        | \\[^u]                             # a short escape
        | {_HIGH}(?!\\?\Z|\\u{_CUT})         # a first half, and it is known what follows
        | (?!{_HIGH})\\u[0-9a-fA-F]{{4}}     # any other long escape
        | \\u(?!{_CUT}|[0-9a-fA-F]{{4}})     # no escape at all
        """
    ),
    re.VERBOSE,
)
_UNKNOWN: Final = re.compile(r'(\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])|\\')
_DECODER: Final = json.JSONDecoder(strict=False)


class InputText:
    """Decodes the text of ``{"input": "…"}`` piece by piece.

    Attributes:
        begun: Whether the arguments have this form, so that their text is on its way.
    """

    def __init__(self) -> None:
        self.begun = False
        self._held = ""
        self._texts: list[str] = []
        self._ended = False

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def feed(self, piece: str) -> str:
        """Take a piece of the arguments; return the text that it completes."""
        if self._ended:
            return ""
        self._held += piece
        if not self.begun:
            start = _START.match(self._held)
            if start is None:
                return ""
            self.begun = True
            self._held = self._held[start.end() :]
        return self._decode()

    def _decode(self) -> str:
        match = _WHOLE.match(self._held)
        whole = match[0] if match is not None else ""
        self._held = self._held[len(whole) :]
        self._ended = self._held.startswith('"')
        if not whole:
            return ""
        # An escape that JSON does not know stands for itself: the model meant it so.
        known = _UNKNOWN.sub(lambda found: found[1] or r"\\", whole)
        text = _DECODER.decode(f'"{known}"')
        self._texts.append(text)
        return str(text)
