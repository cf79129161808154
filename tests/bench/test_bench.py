"""The bench: its stream is one that clients accept, its client notices a broken one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from bench import load, provider, report, stream
from pipeline.sse import Frame, SSEDecoder

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_stream_is_what_it_says() -> None:
    body = b"".join(stream.frames())
    sse = SSEDecoder(event_bytes=4 << 20, frames=1000)
    frames = [frame for frame in sse.feed(body) + sse.finish() if isinstance(frame, Frame)]
    assert len(frames) == stream.EVENTS
    assert 0.99 * stream.BODY_BYTES < len(body) <= stream.BODY_BYTES
    assert all(frame.sound for frame in frames)
    events = [orjson.loads(frame.data or b"") for frame in frames]
    assert [event["type"] for event in events] == [frame.event for frame in frames]
    assert [event["sequence_number"] for event in events] == list(range(stream.EVENTS))
    deltas = "".join(event["delta"] for event in events if "delta" in event)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == deltas


async def driven(pace: str, streams: int, at_once: int) -> load.Tally:
    async with await provider.start(0, pace) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/v1"
        return await load.drive(url, streams=streams, at_once=at_once, stamped=pace == "paced")


@pytest.mark.parametrize("pace", ["fast", "each", "paced"])
def test_every_stream_is_counted_once(pace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "INTERVAL", 0)
    tally = asyncio.run(driven(pace, streams=7, at_once=3))
    assert tally.streams == len(tally.first_byte_s) == 7
    assert bool(tally.latency_s) == (pace == "paced")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda frames: frames[:-1], "no whole stream"),
        (lambda frames: [*frames[:9], *frames[10:]], "307 events"),
        (lambda frames: frames[:4], "no whole stream"),
    ],
)
def test_a_broken_stream_is_noticed(
    spoil: Callable[[list[bytes]], list[bytes]], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = spoil(stream.frames())
    monkeypatch.setattr(stream, "frames", lambda: broken)
    with pytest.raises(load.LoadError, match=message):
        asyncio.run(driven("fast", streams=1, at_once=1))


def test_the_table_compares_within_a_round() -> None:
    def run(number: int, target: str, cpu: float) -> dict[str, Any]:
        numbers = dict.fromkeys([key for key, _, _ in report._COLUMNS[:7]], 1.0)
        named = {"round": number, "target": target, "scenario": "fast:32"}
        return numbers | named | {"cpu_us_per_stream": cpu}

    runs = [run(n, t, c) for n, c in ((1, 1.0), (2, 2.0), (3, 9.0)) for t in ("baseline", "ours")]
    runs[-1]["cpu_us_per_stream"] = 1.0
    table = report.table(runs)
    assert "### fast:32" in table
    assert "latency p50" in table
    assert "| baseline | 2 |" in table
    assert "| ours | 1 |" in table
    assert table.endswith("| 1.00 |\n")
