"""How cost grows: each figure at three sizes, as CPU per unit; linear is the same at all three."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from bench import replay, requests, stream
from pipeline.request import HiddenTool, declare, read_request
from recall import tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Work = Callable[[], object]

_RECALL: Final = HiddenTool(tool.NAME, tool.DECLARATION)


def records() -> Iterator[dict[str, Any]]:
    """Measure what a turn and a request cost at three sizes, and what renumbering costs."""
    for name, sizes, make in _SERIES:
        works = [make(size) for size in sizes]
        for size, took in zip(sizes, replay.seconds(works), strict=True):
            per_unit = took / size * 1e6
            yield {
                "part": "growth",
                "scenario": name,
                "size": size,
                "us": took * 1e6,
                "us_per_unit": per_unit,
            }
    yield {"part": "renumbered", "scenario": "in process", "ratio": renumbered()}


def renumbered() -> float:
    """Return what a turn whose every event is renumbered takes, against an untouched one.

    A hidden call comes first, so that every index and number behind it changes; a call of the
    client comes last, so that the turn ends without a continuation.
    """
    hidden = stream.call("fc_" + "4d" * 24, "call_hidden", "recall", '{"query":"decision"}')
    pad = "x" * 250
    text = stream.message("msg_" + "5a" * 24, pad, 300)
    visible = stream.call("fc_" + "6b" * 24, "call_shell", "shell", '{"command":["ls"]}')
    changed = b"".join(stream.turn(hidden, text, visible))
    untouched = b"".join(stream.turn(text, visible))
    return replay.ratio(partial(replay.play, changed), partial(replay.play, untouched))


def _events(count: int) -> Work:
    return partial(replay.play, b"".join(stream.frames(count)))


def _hidden(size: int) -> Work:
    arguments = orjson.dumps({"query": "decision", "ids": ["x" * 900] * (size // 1_000)}).decode()
    hidden = stream.call("fc_" + "4d" * 24, "call_hidden", "recall", arguments)
    shell = stream.call("fc_" + "6b" * 24, "call_shell", "shell", '{"command":["ls"]}')
    return partial(replay.play, b"".join(stream.turn(hidden, shell)))


def _items(count: int) -> Work:
    calls = [
        stream.call(f"fc_{number:048}", f"call_{number}", "shell", '{"command":["ls"]}')
        for number in range(count)
    ]
    return partial(replay.play, b"".join(stream.turn(*calls)))


def _argument(size: int) -> Work:
    return partial(replay.play, b"".join(stream.big(size)))


def _dripping(count: int) -> Work:
    return partial(replay.play, b"".join(stream.frames(count)), read=1)


def _history(items: int) -> Work:
    text, _ = requests.history(items, 4_000)
    return lambda: declare(read_request(text), _RECALL)


def _known_history(items: int) -> Work:
    text, _ = requests.history(items, 4_000)
    read = requests.next_of(items, 4_000)
    return lambda: declare(read(text), _RECALL)


_SERIES: Final[tuple[tuple[str, tuple[int, ...], Callable[[int], Work]], ...]] = (
    ("events", (308, 3_080, 30_800), _events),
    ("events, byte by byte", (77, 154, 308), _dripping),
    ("hidden bytes", (10_000, 100_000, 1_000_000), _hidden),
    ("items", (20, 200, 2_000), _items),
    ("bytes of an argument", (1 << 16, 1 << 18, 1 << 20), _argument),
    ("items of a history", (50, 500, 5_000), _history),
    ("items of a history that is known", (50, 500, 5_000), _known_history),
)
