"""Content codings: every split, every chain, every way to be broken, bounded output."""

from __future__ import annotations

import gzip
import importlib
import itertools
import sys
import tracemalloc
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.encodings import (
    CODINGS,
    MAX_CODINGS,
    MAX_MEMBERS,
    PIECE,
    BodyTooLargeError,
    CorruptBodyError,
    Decoder,
    UnknownCodingError,
    codings_of,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def deflate_raw(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return engine.compress(data) + engine.flush()


def brotli(data: bytes) -> bytes:
    compressed: bytes = importlib.import_module("brotli").compress(data)
    return compressed


ENCODE = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
    "br": brotli,
}
NAMES = sorted(CODINGS)


def decode(codings: tuple[str, ...], *pieces: bytes, limit: int | None = None) -> bytes:
    decoder = Decoder(codings, limit=limit)
    decoded = b"".join(part for piece in pieces for part in decoder.feed(piece))
    decoder.finish()
    return decoded


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_every_size_comes_back_whole_and_in_small_pieces(name: str, size: int) -> None:
    body = bytes(size)
    decoder = Decoder((name,), limit=size)
    pieces = list(decoder.feed(ENCODE[name](body)))
    decoder.finish()
    assert b"".join(pieces) == body
    assert all(0 < len(piece) <= 2 * PIECE for piece in pieces)


@given(
    body=st.binary(max_size=300),
    codings=st.lists(st.sampled_from(NAMES), max_size=MAX_CODINGS),
    cuts=st.lists(st.integers(0, 400), max_size=6),
)
def test_any_chain_of_codings_cut_anywhere(
    body: bytes, codings: list[str], cuts: list[int]
) -> None:
    encoded = body
    for name in codings:
        encoded = ENCODE[name](encoded)
    edges = [0, *sorted(cuts), len(encoded)]
    pieces = [encoded[start:end] for start, end in itertools.pairwise(edges)]
    assert decode(tuple(codings), *pieces) == body


@pytest.mark.parametrize("name", NAMES)
def test_byte_by_byte(name: str) -> None:
    encoded = ENCODE[name](b"hello " * 100)
    assert decode((name,), *(bytes([byte]) for byte in encoded)) == b"hello " * 100


@given(st.binary(max_size=2000))
def test_deflate_with_and_without_its_header(body: bytes) -> None:
    assert decode(("deflate",), zlib.compress(body)) == body
    assert decode(("deflate",), deflate_raw(body)) == body


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_members_follow_each_other(name: str) -> None:
    encode = ENCODE[name]
    assert decode((name,), encode(b"one") + encode(b"") + encode(b"two")) == b"onetwo"


@pytest.mark.parametrize("name", NAMES)
def test_cut_anywhere_it_ends_too_early(name: str) -> None:
    encoded = ENCODE[name](b"hello, hello, hello")
    for end in range(1, len(encoded)):
        with pytest.raises(CorruptBodyError, match="ends too early"):
            decode((name,), encoded[:end])


@pytest.mark.parametrize("name", NAMES)
def test_rubbish_is_corrupt(name: str) -> None:
    with pytest.raises(CorruptBodyError):
        decode((name,), b'{"model": "not compressed at all"}')
    with pytest.raises(CorruptBodyError):
        decode((name,), ENCODE[name](b"hello") + b"rubbish")


@given(name=st.sampled_from(NAMES), data=st.binary(max_size=200))
def test_no_other_error_ever(name: str, data: bytes) -> None:
    with suppress(CorruptBodyError, BodyTooLargeError):
        assert len(decode((name,), data, limit=10_000)) <= 10_000


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_body_is_whole_whatever_its_header_says(name: str) -> None:
    assert decode((name,), b"") == b""


@pytest.mark.parametrize("name", NAMES)
def test_the_limit_is_exact(name: str) -> None:
    encoded = ENCODE[name](bytes(100_000))
    assert len(decode((name,), encoded, limit=100_000)) == 100_000
    with pytest.raises(BodyTooLargeError):
        decode((name,), encoded, limit=99_999)


@pytest.mark.parametrize("name", NAMES)
def test_a_bomb_costs_no_memory(name: str) -> None:
    bomb = ENCODE[name](bytes(64 << 20))
    decoder = Decoder((name,), limit=1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLargeError):
            sum(len(piece) for piece in decoder.feed(bomb))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20


def test_a_bomb_inside_counts_too() -> None:
    # The last stage yields next to nothing: a comment of four megabytes stands in its header.
    plain = gzip.compress(b"hello", mtime=0)
    inner = plain[:3] + b"\x10" + plain[4:10] + b"c" * (4 << 20) + b"\0" + plain[10:]
    assert decode(("gzip",), inner) == b"hello"
    with pytest.raises(BodyTooLargeError):
        decode(("gzip", "gzip"), gzip.compress(inner, mtime=0), limit=1 << 20)


def test_empty_members_are_counted() -> None:
    assert decode(("gzip",), gzip.compress(b"", mtime=0) * MAX_MEMBERS) == b""
    with pytest.raises(CorruptBodyError, match="goes on"):
        decode(("gzip",), gzip.compress(b"", mtime=0) * (MAX_MEMBERS + 1))


def test_a_window_above_eight_megabytes_is_refused() -> None:
    engine = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
    with pytest.raises(CorruptBodyError):
        decode(("zstd",), engine.compress(bytes(64)) + engine.flush())


@pytest.mark.parametrize(
    ("values", "codings"),
    [
        ([], ()),
        ([b"identity"], ()),
        ([b""], ()),
        ([b"GZIP"], ("gzip",)),
        ([b"gzip, identity ,zstd"], ("gzip", "zstd")),
        ([b"gzip", b"deflate"], ("gzip", "deflate")),
    ],
)
def test_header_lists(values: list[bytes], codings: tuple[str, ...]) -> None:
    headers = [(b"Content-Encoding", value) for value in values]
    assert codings_of([(b"content-type", b"gzip"), *headers]) == codings


@pytest.mark.parametrize("value", [b"lzma", b"gzip, exi", b"gz\xffip", b"gzip;q=1", b"gzip," * 5])
def test_unknown_codings_are_named(value: bytes) -> None:
    with pytest.raises(UnknownCodingError):
        codings_of([(b"content-encoding", value)])
