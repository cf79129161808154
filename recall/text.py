"""Text: cleaning what comes in, cutting what is long. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

ENTRY_CHARS: Final = 2_000
"""The longest entry: about what a model reads as one thought, and what one id may cost."""
ENTRIES: Final = 32
"""How many entries one text becomes at most. What is longer is a paste, not something said."""
NAME_CHARS: Final = 200
"""The longest name of a tenant, project or session that is stored as it is."""

_UNPRINTABLE: Final = {code: " " for code in (*range(32), *range(127, 160)) if code not in {9, 10}}
_BREAKS: Final = tuple(
    re.compile(rf".*(?:{pattern})", re.DOTALL)  # greedy: up to the last one
    for pattern in (r"\n\s*\n", r"\n", r"[.!?](?=\s)|[\u3002\uff01\uff1f]", r"\s")
)


def clean(text: str) -> str:
    """Return a text as it is stored: valid Unicode, plain line ends, no control characters."""
    text = text.encode("utf-8", "replace").decode()
    return "\n".join(text.splitlines()).translate(_UNPRINTABLE).strip()


def stored_name(name: str) -> str:
    """Return a name as it is stored: valid Unicode of bounded length, different for different."""
    name = name.encode("utf-8", "backslashreplace").decode()
    if len(name) <= NAME_CHARS:
        return name
    return f"{name[:NAME_CHARS]}#{hashlib.sha256(name.encode()).hexdigest()}"


def split(text: str) -> list[str]:
    """Cut a long text into entries, at paragraphs, lines, sentences or words, best first."""
    pieces: list[str] = []
    start = 0
    while start < len(text) and len(pieces) < ENTRIES:
        end = start + ENTRY_CHARS
        if end < len(text):
            end = start + _cut(text[start:end])
        if piece := text[start:end].strip():
            pieces.append(piece)
        start = end
    return pieces


def excerpt(text: str, words: Iterable[str], size: int) -> tuple[str, bool, bool]:
    """Return the part of a text around the first word that it has.

    Returns:
        At most ``size`` characters, and whether something is missing before and after.
    """
    if len(text) <= size:
        return text, False, False
    lowered = text.lower()
    # Lowering changes the length of a few exotic letters; then this is off by as many.
    found = [at for word in words if (at := lowered.find(word)) >= 0]
    start = max(0, min(min(found, default=0) - size // 3, len(text) - size))
    return text[start : start + size].strip(), start > 0, start + size < len(text)


def _cut(text: str) -> int:
    """Return where to cut a full piece: the last good break in its second half."""
    for pattern in _BREAKS:
        if match := pattern.match(text, len(text) // 2):
            return match.end()
    return len(text)
