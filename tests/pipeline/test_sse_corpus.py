"""The SSE decoder over streams that real providers sent, cut in every way."""

from __future__ import annotations

import json
import random
from itertools import pairwise

from pipeline.sse import Fragment, Frame, SSEDecoder, encode_event
from tests import corpus

SMALL = 16 * 1024


def decode(*chunks: bytes) -> list[Frame | Fragment]:
    sse = SSEDecoder(event_bytes=4 << 20, frames=100_000)
    frames: list[Frame | Fragment] = []
    for chunk in chunks:
        frames += sse.feed(chunk)
    return frames + sse.finish()


@corpus.each
def test_no_byte_and_no_event_is_lost(recorded: corpus.Recorded) -> None:
    frames = [frame for frame in decode(recorded.body) if isinstance(frame, Frame)]
    assert b"".join(frame.raw for frame in frames) == recorded.body
    data = [frame.data for frame in frames if frame.data not in (None, b"[DONE]")]
    assert [json.loads(text or b"") for text in data] == recorded.events
    assert all(frame.sound for frame in frames)
    for frame in frames:
        if frame.raw.startswith(b"event:") and frame.event and frame.data:
            assert encode_event(frame.event, frame.data) == frame.raw


@corpus.each
def test_one_byte_at_a_time(recorded: corpus.Recorded) -> None:
    body = recorded.body
    assert decode(*(body[i : i + 1] for i in range(len(body)))) == decode(body)


@corpus.each
def test_every_single_cut(recorded: corpus.Recorded) -> None:
    # Between two frames the decoder keeps nothing (the first of the stream aside), so a cut is
    # felt in its own frame and its neighbours only: these three are decoded anew for each.
    # Large streams are cut around their line ends, where it matters.
    small = len(recorded.body) <= SMALL
    frames = decode(recorded.body)
    for position in range(len(frames)):
        window = frames[max(position - 1, 0) : position + 2]
        text = b"".join(frame.raw for frame in window)
        start = len(window[0].raw) if position else 0
        for cut in range(start, start + len(frames[position].raw) + 1):
            if small or b"\n" in text[max(cut - 2, 0) : cut + 2]:
                assert decode(text[:cut], text[cut:]) == window


@corpus.each
def test_fifty_random_chunkings(recorded: corpus.Recorded) -> None:
    body = recorded.body
    frames = decode(body)
    chance = random.Random(recorded.name)
    for _ in range(50):
        pieces = chance.choice((1, 2, 5, 20, 100))
        edges = sorted(chance.randrange(len(body)) for _ in range(pieces))
        assert decode(*(body[a:b] for a, b in pairwise([0, *edges, len(body)]))) == frames
