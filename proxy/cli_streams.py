"""The command's own three streams, also where the one who called it has closed or filled them.

A shell may start us with a stream closed (``>&-``). Its number would go to the next file that is
opened, and what is printed into the memory; so every stream gets a place of its own first. What
can't be written to stdout is an :class:`OutputError`, whichever verb printed it, which
``proxy.cli.run`` tells in one place. What can't be written to stderr is talk that nobody hears.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from proxy.cli_output import CliError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MOST_TEXT: Final = 16 * 1024 * 1024
"""Bytes that are taken from stdin as one text."""
_HINTS: Final = {
    errno.EBADF: "leave standard output open, or send it to /dev/null",
    errno.ENOSPC: "free some space there, or write to another place",
}


class OutputError(Exception):
    """Standard output takes nothing more.

    It is no ``OSError``: a verb that handles those of its files must not take this for one.

    Args:
        error: What the system said.
    """

    def __init__(self, error: OSError) -> None:
        closed = error.errno == errno.EBADF
        reason = "standard output is closed" if closed else error.strerror or str(error)
        super().__init__(f"cannot write output: {reason}")
        self.hint = _HINTS.get(error.errno or 0, "write to another place")
        self.unheard = isinstance(error, BrokenPipeError)
        """Whoever read us has seen enough: there is nothing to tell."""


class _Data(io.BufferedWriter):
    """Standard output, whose errors are told apart from those of all other files."""

    def write(self, buffer: ReadableBuffer, /) -> int:
        """Write, or hold for the next flush."""
        try:
            return super().write(buffer)
        except OSError as error:
            raise OutputError(error) from error

    def flush(self) -> None:
        """Write what was held."""
        try:
            super().flush()
        except OSError as error:
            raise OutputError(error) from error


class _Talk(io.BufferedWriter):
    """Standard error, which never fails: nobody could be told of it."""

    def write(self, buffer: ReadableBuffer, /) -> int:
        """Write, or do without."""
        with contextlib.suppress(OSError):
            return super().write(buffer)
        return memoryview(buffer).nbytes

    def flush(self) -> None:
        """Write what was held, or go on holding it."""
        with contextlib.suppress(OSError):
            super().flush()


def attach() -> None:
    """Give the process three streams that can be used, before it opens anything else.

    A closed one is opened in the direction in which nobody uses it, so that using it fails as it
    should; a closed stderr takes talk and forgets it.
    """
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_unusable("r", os.O_WRONLY)), "utf-8")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    sys.stdout = _over(_Data, sys.stdout, os.O_RDONLY)
    sys.stderr = _over(_Talk, sys.stderr, os.O_WRONLY)


def mute(stream: TextIO) -> None:
    """Send what a stream holds, and gets from now on, to nowhere: it must not fail at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def settle() -> None:
    """Let go of what can't be written, at the very end: Python would complain about it at exit."""
    try:
        sys.stdout.flush()
    except OutputError:
        mute(sys.stdout)
    raw = getattr(sys.stderr, "buffer", None)
    if isinstance(raw, _Talk):
        try:
            io.BufferedWriter.flush(raw)
        except OSError:
            mute(sys.stderr)


def read_bytes(most: int) -> bytes:
    """Return standard input to its end, or one byte more than was asked for.

    Raises:
        CliError: It can't be read.
    """
    try:
        return sys.stdin.buffer.read(most + 1)
    except OSError as error:
        raise _unreadable(error) from None


def read_text() -> str:
    """Return standard input as text; what is no UTF-8 is replaced.

    Raises:
        CliError: It can't be read, or is longer than :data:`MOST_TEXT`.
    """
    data = read_bytes(MOST_TEXT)
    if len(data) > MOST_TEXT:
        hint = "give it in parts"
        raise CliError(f"standard input is longer than {MOST_TEXT} bytes", hint=hint)
    return data.decode("utf-8", "replace")


def read_line() -> str:
    """Return the next line of standard input, empty at its end.

    Raises:
        CliError: It can't be read.
    """
    try:
        return sys.stdin.readline()
    except OSError as error:
        raise _unreadable(error) from None


def _unreadable(error: OSError) -> CliError:
    reason = "it is closed" if error.errno == errno.EBADF else error.strerror
    hint = "pipe something into it, as in `… | sottovoce …`, or send a file with `< FILE`"
    return CliError(f"standard input can't be read: {reason}", hint=hint)


def _unusable(mode: str, direction: int) -> io.FileIO:
    # The lowest free number is given, and the lower streams have theirs already: it is the
    # stream's own, which with that can't become anything else.
    return io.FileIO(os.open(os.devnull, direction), mode, closefd=False)


def _over(kind: type[_Data | _Talk], stream: TextIO | None, direction: int) -> TextIO:
    """Return a stream to the same file, or to none, whose buffer is of our kind."""
    encoding = "utf-8" if stream is None else stream.encoding
    if stream is None:
        raw: Any = _unusable("w", direction)
    else:  # with `python -u` there is no buffer above the file
        raw = getattr(stream.buffer, "raw", stream.buffer)
    interactive = raw.isatty() or kind is _Talk
    return io.TextIOWrapper(
        kind(raw), encoding, errors="backslashreplace", line_buffering=interactive
    )
