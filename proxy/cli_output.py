"""How the command speaks: data on stdout, talk on stderr, errors with a hint, JSON with a version.

Nothing here imports more than ``click``: this module stands in the way of every ``--help``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA_VERSION: Final = 1
"""Of everything that ``--json`` prints: raised when a field changes its meaning or goes away."""

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class CliError(click.ClickException):
    """An expected failure: what failed and why, and what to do about it. Exit code 1.

    Args:
        message: One sentence without a full stop.
        hint: What to try.
        more: Further failures of the same run, each with its hint.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        more: Sequence[tuple[str, str | None]] = (),
    ) -> None:
        super().__init__(message)
        self.failures = ((message, hint), *more)


def tell(message: str) -> None:
    """Print a line of talk: it goes to stderr."""
    click.echo(message, err=True)


def tell_failure(message: str, hint: str | None = None) -> None:
    """Print ``error: …`` and, where there is one, ``hint: …``."""
    tell(f"error: {message}")
    if hint is not None:
        tell(f"hint: {hint}")


def print_json(fields: Mapping[str, object]) -> None:
    """Print a JSON object that begins with its schema's version."""
    import json

    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **fields}, indent=2, default=str))


def printable(text: str) -> str:
    """Return text as a terminal may see it: lines and tabs stay, other controls are escaped."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def byte_size(size: int) -> str:
    """Return a size for people: ``512 B``, ``1.2 MB``."""
    value = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{size} B"
