"""Files that a command line names: what is wrong with one, and what to do about it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from proxy.cli_output import CliError

if TYPE_CHECKING:
    from os import PathLike

_HINTS: Final = {
    errno.ENOENT: "check the name, and that its folder is there",
    errno.EISDIR: "it is a folder: name a file in it",
    errno.ENOTDIR: "a file stands where a folder is meant: check each part of the name",
    errno.EEXIST: "a file stands where a folder is meant: check each part of the name",
    errno.EACCES: "give this user the right to it, or name another place",
    errno.EPERM: "give this user the right to it, or name another place",
    errno.EROFS: "the file system can only be read: name another place",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.ELOOP: "its links lead in a circle: name the file itself",
    errno.ENOSPC: "free some space there, or name another place",
    errno.EDQUOT: "free some space there, or name another place",
    errno.EMFILE: "allow more open files: `ulimit -n 4096`",
}


class Name(click.Path):
    """A path on the command line; an empty one, as from a variable that is not set, is usage."""

    def __init__(self, *, file_okay: bool = True) -> None:
        super().__init__(path_type=Path, file_okay=file_okay)

    def convert(
        self,
        value: str | PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | PathLike[str]:
        """Return the path."""
        if value == "":
            self.fail("it is empty; is a variable in it not set?", param, ctx)
        return super().convert(value, param, ctx)


def unusable(path: object, doing: str, error: OSError, *, hint: str | None = None) -> CliError:
    """Return the error for a file that can't be used.

    Args:
        path: As it was named.
        doing: What can't be done: ``read``, ``written``.
        error: What the system said.
        hint: What to do, if that is known better than by the kind of the error.
    """
    reason = error.strerror or str(error)
    return CliError(f"{path} can't be {doing}: {reason}", hint=hint or hint_for(error))


def no_start(error: Exception) -> CliError:
    """Return the error for a proxy that can't start, with what to do where that is known."""
    from telemetry.redact import redact

    reason, hint = str(error), getattr(error, "hint", None)
    if isinstance(error, OSError) and error.errno is not None:
        reason, hint = f"{error.filename} can't be used: {error.strerror}", hint_for(error)
    return CliError(redact(f"the proxy can't start: {reason}"), hint=hint)


def hint_for(error: OSError) -> str:
    """Return what to do about an error of a file."""
    return _HINTS.get(error.errno or 0, "check the file and its disk, or name another one")
