"""The SSE decoder: same frames for every cut, no byte lost, limits by their exact texts."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from httpx_sse._decoders import SSEDecoder as OracleDecoder
from httpx_sse._decoders import SSELineDecoder
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.errors import SSEStreamLimitError
from pipeline.sse import Fragment, Frame, SSEDecoder, encode_comment, encode_event

if TYPE_CHECKING:
    from collections.abc import Iterable

BOM = b"\xef\xbb\xbf"
DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta"}\n\n'

PIECES = [
    *(b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b"\r\r", b": ping", b":", b"id: 7", b"retry: 9"),
    *(b"event: response.created", b"event:x", b"event", b"event: ", b"event:  two"),
    *(b"data: {}", b"data:{}", b"data", b"data:", b"data: ", b"data: a:b", b" data: no", b"\xff"),
    *("data: 你好🙂".encode(), b"other: field", b"dataset: no", DELTA, DELTA * 3, b"data: {}\n\n"),
    b"event: response.created\ndata: {}\n\n",
]
streams = st.builds(
    bytes.__add__,
    st.sampled_from([b"", BOM, BOM[:2]]),
    st.lists(st.sampled_from(PIECES)).map(b"".join),
)
cuts = st.lists(st.integers(0, 400), max_size=12)


def decoder(**limits: int) -> SSEDecoder:
    return SSEDecoder(**{"event_bytes": 4 << 20, "frames": 100_000, **limits})


def relaying(event_bytes: int) -> SSEDecoder:
    return SSEDecoder(event_bytes=event_bytes, frames=1, relay_oversize=True)


def decode(chunks: Iterable[bytes], sse: SSEDecoder | None = None) -> list[Frame | Fragment]:
    sse = sse or decoder()
    frames = [frame for chunk in chunks for frame in sse.feed(chunk)]
    return frames + sse.finish()


def outcome(chunks: Iterable[bytes], sse: SSEDecoder) -> tuple[list[Frame | Fragment], str]:
    """What came, and the error that ended it."""
    frames: list[Frame | Fragment] = []
    try:
        for chunk in chunks:
            frames += sse.feed(chunk)
        frames += sse.finish()
    except SSEStreamLimitError as error:
        return frames, f"{error.limit}: {error.message}"
    return frames, ""


def cut(stream: bytes, at: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(min(i, len(stream)) for i in at), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


def single_bytes(stream: bytes) -> list[bytes]:
    return [stream[i : i + 1] for i in range(len(stream))]


@pytest.mark.parametrize(
    ("stream", "frames"),
    [
        (b"", []),
        (DELTA, [Frame(DELTA, "response.output_text.delta", DELTA[40:-2], sound=True)]),
        (b"data: {}\n\n", [Frame(b"data: {}\n\n", None, b"{}", sound=True)]),
        (b"data:{}\n\n", [Frame(b"data:{}\n\n", None, b"{}", sound=True)]),
        (b"data:  {}\n\n", [Frame(b"data:  {}\n\n", None, b" {}", sound=True)]),
        (b"event: x\n\n", [Frame(b"event: x\n\n", "x", None, sound=True)]),
        (b"event\ndata\n\n", [Frame(b"event\ndata\n\n", "", b"", sound=True)]),
        (b"event: a\nevent: b\n\n", [Frame(b"event: a\nevent: b\n\n", "b", None, sound=True)]),
        (b": hi\n\n", [Frame(b": hi\n\n", None, None, sound=True)]),
        (b"id: 1\nretry: 2\n\n", [Frame(b"id: 1\nretry: 2\n\n", None, None, sound=True)]),
        (b"data: a\ndata: b\n\n", [Frame(b"data: a\ndata: b\n\n", None, b"a\nb", sound=False)]),
        (b"data: a\r\n\r\n", [Frame(b"data: a\r\n\r\n", None, b"a", sound=False)]),
        (b"data: a\r\r", [Frame(b"data: a\r\r", None, b"a", sound=False)]),
        (b"data: a\n\r", [Frame(b"data: a\n\r", None, b"a", sound=False)]),
        (b"data: a", [Frame(b"data: a", None, b"a", sound=False)]),
        (b"data: a\n", [Frame(b"data: a\n", None, b"a", sound=False)]),
        (b"\r", [Frame(b"\r", None, None, sound=False)]),
        (BOM, [Frame(BOM, None, None, sound=False)]),
        (BOM[:2], [Frame(BOM[:2], None, None, sound=False)]),
        (BOM + b"data: a\n\n", [Frame(BOM + b"data: a\n\n", None, b"a", sound=False)]),
        (
            b"event: \xff\n\n",
            [Frame(b"event: \xff\n\n", "\N{REPLACEMENT CHARACTER}", None, sound=True)],
        ),
    ],
)
def test_one_frame(stream: bytes, frames: list[Frame]) -> None:
    assert decode([stream]) == frames
    assert decode(single_bytes(stream)) == frames


@pytest.mark.parametrize(
    ("stream", "raws"),
    [
        (b"a\n\n\nb\n\n", [b"a\n\n", b"\n", b"b\n\n"]),
        (b"a\r\n\r\n\r\nb", [b"a\r\n\r\n", b"\r\n", b"b"]),
        (b"a\r\rb\r\r", [b"a\r\r", b"b\r\r"]),
        (b"a\r\r\nb\n\n", [b"a\r\r", b"\n", b"b\n\n"]),
        (b"a\n\r\nb\n\n", [b"a\n\r\n", b"b\n\n"]),
        (b"a\r\n\rb\r\n\r\n", [b"a\r\n\r", b"b\r\n\r\n"]),
        (b"\n\n" + DELTA, [b"\n", b"\n", DELTA]),
        (DELTA + b": c\n\n" + DELTA, [DELTA, b": c\n\n", DELTA]),
        (DELTA + b"data: x\n\n" + DELTA, [DELTA, b"data: x\n\n", DELTA]),
        (DELTA + b"id: 1\ndata: x\n\n" + DELTA, [DELTA, b"id: 1\ndata: x\n\n", DELTA]),
        (BOM + b"\n" + BOM + b"a\n\n", [BOM + b"\n", BOM + b"a\n\n"]),
    ],
)
def test_where_frames_end(stream: bytes, raws: list[bytes]) -> None:
    assert [frame.raw for frame in decode([stream])] == raws
    assert [frame.raw for frame in decode(single_bytes(stream))] == raws


def test_a_frame_is_there_as_soon_as_its_blank_line_is() -> None:
    assert len(decoder().feed(DELTA)) == 1
    assert [len(sse.feed(DELTA)) for sse in [decoder()] for _ in range(3)] == [1, 1, 1]
    assert len(decoder().feed(b"data: a\r\n\r\n")) == 1
    assert len(decoder().feed(b"data: a\r\r")) == 1  # an LF after it would be a frame of its own
    assert decoder().feed(b"data: a\r\n\r") == []  # an LF after it belongs to it


@given(streams, cuts)
@example(b"data: a\r\n\r\ndata: b\r\n\r\n", [8, 9, 10, 11])
def test_every_cut_gives_the_same_frames(stream: bytes, at: list[int]) -> None:
    whole = decode([stream])
    assert decode(cut(stream, at)) == whole
    assert decode(single_bytes(stream)) == whole
    assert b"".join(frame.raw for frame in whole) == stream


@given(st.lists(st.sampled_from([*PIECES, b"", b"event: data: x\n\n", b"event: xdata: y\n\n"])))
@example([DELTA, b"data: {", b"", b"}\n\n"])
@example([DELTA, b"data: a\ndata: b\n\n", b"data: a\r\n\n", b"id: 1\ndata: a\n\n", DELTA])
@example([DELTA, b"\n", DELTA, b"data: \n\n", BOM + DELTA])
def test_reads_that_are_frames_give_the_same(chunks: list[bytes]) -> None:
    assert decode(chunks) == decode([b"".join(chunks)])


@given(streams, cuts)
def test_a_plain_parser_agrees(stream: bytes, at: list[int]) -> None:
    stream = stream.removeprefix(BOM)
    if not stream.isascii():
        stream = stream.decode(errors="replace").encode()
    lines, oracle = SSELineDecoder(), OracleDecoder()
    texts = [*lines.decode(stream.decode() + "\n\n"), *lines.flush()]
    theirs = [event for event in map(oracle.decode, texts) if event is not None]
    ours = decode(cut(stream, at))
    assert [(e.event, e.data) for e in theirs if e.event != "message" or e.data] == [
        (frame.event or "message", frame.data.decode() if frame.data else "")
        for frame in ours
        if isinstance(frame, Frame) and (frame.event or frame.data)
    ]


@given(streams, cuts, st.integers(1, 60), st.integers(0, 6))
def test_a_limit_is_the_same_for_every_cut(
    stream: bytes, at: list[int], event_bytes: int, frames: int
) -> None:
    limits = {"event_bytes": event_bytes, "frames": frames}
    whole, error = outcome([stream], decoder(**limits))
    assert outcome(cut(stream, at), decoder(**limits)) == (whole, error)
    assert outcome(single_bytes(stream), decoder(**limits)) == (whole, error)
    assert len(whole) <= frames
    assert all(len(frame.raw.removeprefix(BOM)) <= event_bytes for frame in whole)
    if not error:
        assert whole == decode([stream])


def test_the_texts_of_the_limits() -> None:
    sse = decoder(event_bytes=20)
    with pytest.raises(SSEStreamLimitError, match=r"^SSE event exceeded 20 byte limit$") as large:
        sse.feed(b"data: " + b"x" * 20)
    assert large.value.limit == "event_bytes"
    sse = decoder(frames=2)
    assert len(sse.feed(b"\n\n")) == 2
    with pytest.raises(SSEStreamLimitError, match=r"^SSE stream exceeded frame limit$") as many:
        sse.feed(b"\n")
    assert many.value.limit == "frames"
    with pytest.raises(SSEStreamLimitError, match=r"^SSE stream exceeded frame limit$"):
        sse.finish()


def test_frames_in_front_of_a_limit_are_returned_first() -> None:
    sse = decoder(event_bytes=len(DELTA))
    assert len(sse.feed(DELTA + DELTA + b"data: " + b"x" * len(DELTA) + b"\n\n" + DELTA)) == 2
    assert sse.failure is not None
    with pytest.raises(SSEStreamLimitError):
        sse.feed(b"")


@given(streams, cuts, st.integers(1, 60))
def test_relaying_ends_no_stream_and_loses_no_byte(
    stream: bytes, at: list[int], event_bytes: int
) -> None:
    whole = decode([stream])
    for chunks in ([stream], cut(stream, at), single_bytes(stream)):
        sse = relaying(event_bytes)
        relayed = decode(chunks, sse)
        assert b"".join(frame.raw for frame in relayed) == stream
        assert sse.count == len(whole)
        assert sum(not isinstance(f, Fragment) or f.last for f in relayed) == len(whole)
        small = [f for f in whole if len(f.raw.removeprefix(BOM)) <= event_bytes]
        assert [f for f in relayed if isinstance(f, Frame)] == small


@pytest.mark.parametrize(
    ("head", "event"),
    [
        (b"event: response.image\ndata: {", "response.image"),
        (b"id: 1\nevent:response.image\ndata: {", "response.image"),
        (b'data: {"type":"response.image","b64":"', "response.image"),
        (b'data:{ "n": 4, "s":"", "b":true,"type" : "response.image","b64":"', "response.image"),
        (b'event: named\ndata: {"type":"response.image","b64":"', "named"),
        (b'data: {"item":{"type":"nested"},"b64":"', None),
        (b'data: {"b64":"', None),
        (b"event: resp", None),
        (b": comment\n", None),
    ],
)
def test_the_type_of_an_event_that_is_relayed(head: bytes, event: str | None) -> None:
    stream = head + b"A" * 200 + b'"}\n\n' + DELTA
    if head == b"event: resp":
        stream = head + b"A" * 200
    for size in (1, 7, len(stream)):
        chunks = [stream[i : i + size] for i in range(0, len(stream), size)]
        pieces = [f for f in decode(chunks, relaying(150)) if isinstance(f, Fragment)]
        assert {piece.event for piece in pieces} == {event}
        assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_dripped_megabyte_is_kept_once() -> None:
    sse = decoder()
    for _ in range(1 << 20):
        assert sse.feed(b"x") == []
    held = sse._held
    assert len(held) == 1 << 20
    sse.feed(b"x")
    assert sse._held is held  # grown in place: no step copies what is there
    (frame,) = sse.feed(b"\n\n")
    assert len(frame.raw) == (1 << 20) + 3


def test_many_event_names_do_not_pile_up() -> None:
    names = [f"n{i}" for i in range(2000)]
    frames = decode([b"".join(encode_event(name, b"{}") for name in names)])
    assert [frame.event for frame in frames] == names


@given(
    st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), min_size=1),
    st.binary().map(lambda data: data.replace(b"\n", b"").replace(b"\r", b"")),
)
def test_an_encoded_event_is_sound(type_: str, data: bytes) -> None:
    raw = encode_event(type_, data)
    assert decode([raw]) == [Frame(raw, type_, data, sound=True)]


def test_encoding_cannot_be_broken_out_of() -> None:
    assert encode_event("x", b'{\n"a":\r\n1}') == b'event: x\ndata: { "a":  1}\n\n'
    assert encode_event("x\ndata: evil", b"{}") == b"data: {}\n\n"
    assert encode_event("\ud83d", b"{}") == b"event: ?\ndata: {}\n\n"
    assert encode_comment("keep-alive") == b": keep-alive\n\n"
    assert encode_comment("a\ndata: evil\r") == b": a data: evil \n\n"
