"""Secrets that are known by heart, wherever a provider repeats them.

``telemetry.redact`` knows secrets by their form. The keys and tokens of the configuration may have
any: they are looked for as such, in each spelling that JSON, or JSON inside of JSON, has for them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from telemetry.redact import REDACTED, redact

if TYPE_CHECKING:
    from collections.abc import Iterable

SHORTEST: Final = 8
"""Shorter ones are no secrets: what local servers get that ask for none."""
_SHORT_ESCAPES: Final = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_BEHIND_BACKSLASHES: Final = '"\\/'


class KnownSecrets:
    """Takes the secrets of the configuration out of what is told to a client.

    Args:
        values: The secrets.
    """

    def __init__(self, values: Iterable[str]) -> None:
        # A longer one first: another may be its beginning.
        known = sorted({one for one in values if len(one) >= SHORTEST}, key=len, reverse=True)
        spellings = "|".join(map(_spellings, known))
        self._text = re.compile(spellings) if known else None
        self._bytes = re.compile(spellings.encode()) if known else None
        self._count = len(known)

    def __repr__(self) -> str:
        return f"<KnownSecrets, {self._count}>"

    def cleanse(self, data: bytes) -> bytes:
        """Return bytes with ``[redacted]`` for each secret; the same object where there is none."""
        return data if self._bytes is None else self._bytes.sub(REDACTED.encode(), data)

    def redact(self, text: str) -> str:
        """Return a text without these secrets, and without any that shows by its form."""
        return redact(text if self._text is None else self._text.sub(REDACTED, text))


def _spellings(secret: str) -> str:
    r"""Return a pattern of every spelling.

    Each character stands for itself, behind backslashes where JSON allows that, or as ``\u0041``.
    """
    return "".join(map(_spelling, secret))


def _spelling(character: str) -> str:
    plain = re.escape(character)
    units = character.encode("utf-16-be").hex()
    escaped = "".join(rf"\\+u(?i:{units[i : i + 4]})" for i in range(0, len(units), 4))
    short = ""
    if character in _SHORT_ESCAPES:
        short = rf"|\\+{_SHORT_ESCAPES[character]}"
    elif character in _BEHIND_BACKSLASHES:
        plain = rf"\\*{plain}"
    return rf"(?:{plain}|{escaped}{short})"
