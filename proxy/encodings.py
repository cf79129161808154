"""Content codings, undone piece by piece under a limit.

Both sides need it: clients send compressed bodies, and a provider may compress although
``identity`` was asked for. A small body may unfold into a huge one, so decoding is a generator:
each stage yields at most ``PIECE`` bytes at a time and all that it yields is counted, and who
stops pulling has stopped the work.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

PIECE: Final = 65536
"""The most bytes that one step of a stage yields."""
MAX_CODINGS: Final = 4
"""How many codings one body may be wrapped in; more is an attack, not a client."""
MAX_MEMBERS: Final = 4096
"""How many gzip members or zstd frames one body may have: empty ones yield nothing to count."""
ZSTD_WINDOW: Final = 23
"""2 ** 23 = 8 MiB, the largest window that RFC 9659 lets a sender use over HTTP."""


class CodingError(ValueError):
    """What is wrong with an encoded body: the root of the three below."""


class UnknownCodingError(CodingError):
    """A coding that can't be undone."""


class CorruptBodyError(CodingError):
    """The body is not what its coding says, or it ends too early."""


class BodyTooLargeError(CodingError):
    """A stage yields more than the limit."""


class Engine(Protocol):
    """What a standard decompressor looks like (``bz2``, ``lzma`` and ``zstd`` agree on it)."""

    @property
    def eof(self) -> bool:
        """Whether the end of the member, frame or stream was reached."""

    @property
    def needs_input(self) -> bool:
        """Whether nothing more comes out until something more goes in."""

    @property
    def unused_data(self) -> bytes:
        """What followed the end."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return at most ``max_length`` bytes."""


class _Zlib:
    """The engine of gzip and deflate."""

    def __init__(self, window_bits: int) -> None:
        self._engine = zlib.decompressobj(window_bits)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._engine.eof

    @property
    def unused_data(self) -> bytes:
        return self._engine.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._engine.decompress(self._engine.unconsumed_tail + data, max_length)
        # A full piece may hide more inside of zlib, although the input is used up.
        self.needs_input = len(piece) < max_length and not self._engine.unconsumed_tail
        return piece


class _BrotliError(Exception):
    """Stands for the package's own error, which only the package can name."""


class _Brotli:
    """The engine of br, over the package where there is one."""

    unused_data = b""  # the package refuses what follows the end

    def __init__(self) -> None:
        module = importlib.import_module("brotli")
        self._error: type[Exception] = module.error
        self._engine = module.Decompressor()
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return bool(self._engine.is_finished())

    def decompress(self, data: bytes, max_length: int) -> bytes:
        try:
            piece = bytes(self._engine.process(data, output_buffer_limit=max_length))
        except self._error as error:
            raise _BrotliError from error
        self.needs_input = len(piece) < max_length and self._engine.can_accept_more_data()
        return piece


def _zstd(_first: bytes) -> Engine:
    return zstd.ZstdDecompressor(
        options={int(zstd.DecompressionParameter.window_log_max): ZSTD_WINDOW}
    )


def _gzip(_first: bytes) -> Engine:
    return _Zlib(16 + zlib.MAX_WBITS)


def _deflate(first: bytes) -> Engine:
    """Tell a zlib header (RFC 9110) from the raw stream that many senders mean by deflate."""
    wrapped = first[0] & 0x0F == 8 and int.from_bytes(first[:2], "big") % 31 == 0
    return _Zlib(zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)


def _br(_first: bytes) -> Engine:
    return _Brotli()


class Coding(NamedTuple):
    """How to undo one coding."""

    engine: Callable[[bytes], Engine]
    """Makes an engine for a member that starts with these bytes."""
    members: int
    """How many may follow each other."""
    look_ahead: int = 1
    """How many first bytes it takes to make the engine."""


def _has_brotli() -> bool:
    """Say whether the package is there, and new enough to bound its output (1.2)."""
    try:
        module = importlib.import_module("brotli")
    except ImportError:
        return False
    return hasattr(module.Decompressor, "can_accept_more_data")


CODINGS: Final[Mapping[str, Coding]] = {
    "gzip": Coding(_gzip, members=MAX_MEMBERS),
    "x-gzip": Coding(_gzip, members=MAX_MEMBERS),
    "deflate": Coding(_deflate, members=1, look_ahead=2),
    "zstd": Coding(_zstd, members=MAX_MEMBERS),
} | ({"br": Coding(_br, members=1)} if _has_brotli() else {})
"""What can be undone here, by name; ``identity`` needs no undoing."""


def codings_of(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, ...]:
    """Return the codings of a body in the order they were applied, ``identity`` left out.

    Args:
        headers: Raw headers, names in any case.

    Raises:
        UnknownCodingError: One can't be undone, or there are more than ``MAX_CODINGS``.
    """
    lists = [value for name, value in headers if name.lower() == b"content-encoding"]
    if not lists:
        return ()
    names = [name.strip().lower() for name in b",".join(lists).decode("latin-1").split(",")]
    codings = tuple(name for name in names if name not in {"", "identity"})
    for name in codings:
        if name not in CODINGS:
            raise UnknownCodingError(f"unknown content encoding {name[:40]!r}")
    if len(codings) > MAX_CODINGS:
        raise UnknownCodingError(f"more than {MAX_CODINGS} content encodings")
    return codings


class _Stage:
    """One coding of one body."""

    def __init__(self, name: str, limit: int | None) -> None:
        self._name = name
        self._coding = CODINGS[name]
        self._room = limit
        self._held = b""
        self._engine: Engine | None = None
        self._members = 0

    def decode(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield what the pieces decode to."""
        for piece in pieces:
            data = self._held + piece
            while data:
                engine = self._engine or self._start(data)
                if engine is None:
                    break
                for decoded in self._pull(engine, data):
                    yield self._counted(decoded)
                data = self._next_member(engine)

    def finish(self) -> None:
        """Raise CorruptBodyError if the body stopped in the middle."""
        if self._held or self._engine is not None:
            raise CorruptBodyError(f"the {self._name} body ends too early")

    def _start(self, data: bytes) -> Engine | None:
        """Begin a member; without enough of its first bytes hold what there is."""
        if self._members == self._coding.members:
            raise CorruptBodyError(f"the {self._name} body goes on after its end")
        size = self._coding.look_ahead
        self._held = data if len(data) < size else b""
        if not self._held:
            self._engine = self._coding.engine(data[:size])
        return self._engine

    def _next_member(self, engine: Engine) -> bytes:
        """Leave a member that has ended; return what follows it."""
        if not engine.eof:
            return b""
        self._engine = None
        self._members += 1
        return engine.unused_data

    def _pull(self, engine: Engine, data: bytes) -> Iterator[bytes]:
        try:
            yield engine.decompress(data, PIECE)
            while not engine.eof and not engine.needs_input:
                yield engine.decompress(b"", PIECE)
        except (zlib.error, zstd.ZstdError, _BrotliError) as error:
            raise CorruptBodyError(f"the {self._name} body is corrupt") from error

    def _counted(self, decoded: bytes) -> bytes:
        if self._room is not None:
            self._room -= len(decoded)
            if self._room < 0:
                raise BodyTooLargeError(f"the {self._name} body decodes to more than the limit")
        return decoded


class Decoder:
    """Undoes all codings of one body.

    Args:
        codings: In the order they were applied, as ``codings_of`` returns them.
        limit: The most bytes that any stage may yield; None where the caller counts.
    """

    def __init__(self, codings: Sequence[str], *, limit: int | None) -> None:
        self._stages = [_Stage(name, limit) for name in reversed(codings)]
        self._empty = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what one piece of the body decodes to, none longer than about ``PIECE``.

        The iterator must be used up before the next piece is fed.

        Raises:
            CodingError: The body is corrupt, or unfolds beyond the limit.
        """
        self._empty = self._empty and not data
        pieces: Iterable[bytes] = (data,)
        for stage in self._stages:
            pieces = stage.decode(pieces)
        return (piece for piece in pieces if piece)

    def finish(self) -> None:
        """Check that the body was whole; an empty one is, whatever its header says.

        Raises:
            CorruptBodyError: It ends too early.
        """
        if not self._empty:
            for stage in self._stages:
                stage.finish()
