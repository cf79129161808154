"""What should not have happened: told in the log, without a word of anybody's text."""

from __future__ import annotations

import traceback

import structlog

log = structlog.get_logger("sottovoce")


def report(error: Exception) -> None:
    """Log an error that no answer could be made of: its type and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    log.error(
        "request failed",
        error=type(error).__name__,
        where=[f"{frame.name}:{frame.lineno}" for frame in frames],
    )
