"""A plugin with one tool: what time it is, anywhere.

``plugins = ["./examples/clock.py"]`` in ``sottovoce.toml`` loads it. The module itself is the
plugin: it has a ``name`` and ``tools``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


async def current_time(arguments: dict[str, Any], _context: dict[str, Any]) -> str:
    """Return the date and time in a zone, UTC where none is given."""
    zone = arguments.get("zone") or "UTC"
    try:
        now = datetime.now(ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        return f"There is no time zone {zone!r}: give an IANA name like Europe/Berlin."
    return f"{now:%A} {now.isoformat(timespec='seconds')} ({zone})"


name = "clock"
tools = [
    {
        "name": "current_time",
        "description": "The current date, weekday and time. Use it whenever the answer depends "
        "on now.",
        "parameters": {
            "type": "object",
            "properties": {
                "zone": {
                    "type": "string",
                    "description": "IANA time zone such as Europe/Berlin; UTC if left out.",
                }
            },
            "additionalProperties": False,
        },
        "handler": current_time,
    }
]
