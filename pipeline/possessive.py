"""Groups that a regular expression repeats without ever going back.

Possessive repeats of a *group* are broken in the engine of Python 3.11.0 to 3.11.4: where one more
repetition fails in its middle, it goes on from there instead of from where that began. There the
same is written as an atomic group, which keeps each repetition in memory until it ends. Repeats of
a single character are sound everywhere.
"""

from __future__ import annotations

import re
from typing import Final

_BROKEN: Final = re.match("(?:ab?c)*+abd", "abd") is None
"""Whether this interpreter's are."""


def repeated(group: str, *, broken: bool = _BROKEN) -> str:
    """Return what repeats a group as often as it can, and never gives one of these up.

    Args:
        group: A regular expression that never matches nothing.
        broken: Whether possessive repeats of groups can't be relied on.
    """
    return f"(?>(?:{group})*)" if broken else f"(?:{group})*+"
