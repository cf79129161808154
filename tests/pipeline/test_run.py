"""The fast path for the deltas of one text: whatever differs in anything goes the whole way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import block
from pipeline.reader import responses_reader
from pipeline.reader_around import ReaderAround
from tests import builders, strategies
from tests.builders import body, frame, message, recall_call
from tests.playbook import limits, run_turn
from tests.sent import check_sent

if TYPE_CHECKING:
    import re

    from tests.builders import Event
    from tests.playbook import Played

FIRST = message("first")
SAID = message("some words more, so many that they are taken at once")
ABSENT = object()

VARIANTS: list[tuple[str, Any]] = [
    ("output_index", 0),
    ("output_index", True),
    ("output_index", 1.0),
    ("output_index", ABSENT),
    ("output_index", None),
    ("content_index", 1),
    ("content_index", False),
    ("content_index", 0.0),
    ("content_index", ABSENT),
    ("item_id", "msg_other"),
    ("item_id", ABSENT),
    ("item_id", None),
    ("logprobs", ABSENT),
    ("delta", ABSENT),
    ("delta", 5),
    ("delta", ""),
    ("delta", "é\ud83d"),
    ("sequence_number", 99),
    ("sequence_number", True),
    ("sequence_number", ABSENT),
    ("obfuscation", "xyz"),
    ("type", "response.refusal.delta"),
    ("type", ABSENT),
]


LONG = message("word " * 200)


def played(sent: bytes, *, fast: bool, **options: Any) -> Played:
    answer = builders.stream(message("hi"), response_id="resp_B")
    with pytest.MonkeyPatch.context() as patch:
        if not fast:
            patch.setattr("pipeline.view.begin_run", lambda *_: None)
        return run_turn(hops=[sent, answer], **options)


def both_ways(sent: bytes, **options: Any) -> Played:
    """Play a turn with the fast path and without, and hold the two against each other."""
    one, other = played(sent, fast=True, **options), played(sent, fast=False, **options)
    assert one.client_bytes == other.client_bytes
    assert one.outcome.message == other.outcome.message
    assert set(one.outcome.findings) == set(other.outcome.findings)
    for hop, same in zip(one.turn.hops, other.turn.hops, strict=True):
        assert hop.state.output() == same.state.output()
        assert hop.state.retained == same.state.retained
        assert hop.state.sequence == same.state.sequence
    return one


def stream(*, hidden: bool, numbers: bool = True) -> list[Event]:
    calls = builders.item_events(recall_call("c1", "{}"), 2) if hidden else []
    events = [
        *builders.opening(),
        *calls,
        *builders.item_events(FIRST, 0),
        *builders.item_events(SAID, 1),
        builders.terminal(output=[]),
    ]
    return builders.numbered(events) if numbers else events


def deltas(events: list[Event]) -> list[int]:
    return [
        number
        for number, event in enumerate(events)
        if event["type"].endswith("text.delta") and event["output_index"] == 1
    ]


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("numbers", [True, False])
@pytest.mark.parametrize(("member", "value"), VARIANTS)
def test_a_delta_that_differs_in_anything(
    hidden: bool,
    numbers: bool,
    member: str,
    value: Any,
) -> None:
    events = stream(hidden=hidden, numbers=numbers)
    at = deltas(events)[2]
    changed = {key: one for key, one in events[at].items() if key != member}
    if value is not ABSENT:
        changed[member] = value
    named = frame(changed | {"type": events[at]["type"]})
    text = builders.compact(changed).encode("utf-8", "surrogatepass")
    sent = named[: named.index(b"data: ")] + b"data: " + text + b"\n\n"
    both_ways(body(events[:at]) + sent + body(events[at + 1 :]))


@pytest.mark.parametrize("framing", builders.FRAMINGS.values(), ids=builders.FRAMINGS)
@pytest.mark.parametrize("hidden", [True, False])
def test_a_run_in_every_framing(framing: builders.Framing, hidden: bool) -> None:
    both_ways(body(stream(hidden=hidden), framing))


@pytest.mark.parametrize(
    "between",
    [
        b": still here\n\n",
        b"data:\n\n",
        b"data: [DONE]\n\n",
        b"event: note\ndata: no json\n\n",
        frame({"type": "acme:trace"}),
        frame({"type": "keepalive", "sequence_number": 40}),
    ],
)
def test_what_comes_between(between: bytes) -> None:
    events = stream(hidden=False)
    at = deltas(events)[2]
    both_ways(body(events[:at]) + between + body(events[at:]))


def test_interleaved_texts() -> None:
    runs = [builders.item_events(item, index) for index, item in enumerate((FIRST, SAID))]
    inner = builders.interleaved(*runs)
    both_ways(body([*builders.opening(), *inner, builders.terminal(output=[FIRST, SAID])]))


@pytest.mark.parametrize("size", range(200, 3000, 150))
def test_the_limit_is_seen_at_the_same_delta(size: int) -> None:
    sent = body(builders.stream(message("word " * 200)))
    for declared in (True, False):
        both_ways(sent, limits=limits(retained_bytes=size), declared=declared)


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("numbers", [True, False])
@pytest.mark.parametrize("size", [700, 1500, 4096, 16_384, 1 << 20])
def test_many_deltas_of_a_read(hidden: bool, numbers: bool, size: int) -> None:
    calls = builders.item_events(recall_call("c1", "{}"), 1) if hidden else []
    events = [*builders.opening(), *calls, *builders.item_events(LONG, 0)]
    events += [*builders.item_events(SAID, 2), builders.terminal(output=[])]
    sent = body(builders.numbered(events) if numbers else events)
    taken: list[int] = []

    class NotingReader(ReaderAround):
        def skip(self, frames: int, size: int, /) -> bool:
            taken.append(frames)
            return super().skip(frames, size)

    def reader(*args: Any, **how: Any) -> NotingReader:
        return NotingReader(responses_reader(*args, **how))

    both_ways(sent, chunking=lambda data: in_pieces(data, size), reader=reader)
    assert sum(taken) > 150 or size < 1024


def test_a_limit_of_frames_is_seen_at_the_same_delta() -> None:
    sent = body(builders.stream(LONG))
    for frames in (3, 50, 205, 206, 207, 208, 209, 300):
        for declared in (True, False):
            both_ways(sent, limits=limits(frames=frames), declared=declared)


@pytest.mark.parametrize("text", [r"\ud83d", r"\u00e9", r"\"", "\xe9", "\r", "\x00", r"\x"])
@pytest.mark.parametrize("hidden", [True, False])
def test_what_is_written_in_another_way(text: str, hidden: bool) -> None:
    sent = body(stream(hidden=hidden))
    both_ways(sent.replace(b'"delta":" many', b'"delta":"' + text.encode("latin-1")))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"delta":" many', b'"delta": " many'),
        (b'"delta":" many', b'"delta":" two","delta":" many'),
        (b"event: response.output_text.delta\n", b""),
        (b"event: response.output_text.delta\n", b"id: 5\nevent: response.output_text.delta\n"),
        (b"}\n\n", b"}\n\n\n"),
        (b"}\n\n", b"}\r\n\r\n"),
        (b"}\n\n", b"}\n: note\n\n"),
        (b"}\n\n", b"} \n\n"),
    ],
)
def test_a_frame_that_looks_otherwise(old: bytes, new: bytes) -> None:
    begun, _, rest = body(stream(hidden=False)).partition(b" so")
    both_ways(begun + b" so" + rest.replace(old, new, 1))


def test_frames_are_counted_once_where_the_client_numbers_otherwise() -> None:
    """Its first hop had no numbers, so that the second's deltas are written one by one."""
    hops = [
        strategies.no_numbers(builders.stream(recall_call("c1", "{}"))),
        builders.stream(LONG, response_id="resp_B"),
    ]
    frames = len(hops[1])
    result = run_turn(hops=hops, limits=limits(frames=frames))
    assert result.outcome.message is None
    assert result.turn.hop.frames == frames
    check_sent(result.client_bytes)


PIECES = [
    *rb"""word \n \" \\ \u0022 \u005c \ud83d\ude00 {\"a\":1} \",\"obfuscation\":\" """.split(),
    *(b"", b" ", "é𝄞".encode(), b"x" * 300, rb"\"" * 70),
]
DAMAGED = [
    *rb'''\ " \ud83d \ude00 \u12 \x ","delta":"b ","output_index":1,"a":"'''.split(),
    *(b"\xff", b"\xc3", b"\x00", b"\n", b"\r", b"\n\n", b'"}\n\n', b'"}\r\n\r\n'),
]


@given(
    st.lists(st.lists(st.sampled_from(PIECES), max_size=3).map(b"".join), max_size=60),
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from(DAMAGED)), max_size=2),
    st.permutations(["item_id", "output_index", "delta", "obfuscation", "sequence_number"]),
    st.sampled_from([1100, 2500, 1 << 20]),
    st.booleans(),
)
def test_any_text_is_the_same_both_ways(
    texts: list[bytes],
    damaged: list[tuple[int, bytes]],
    order: list[str],
    size: int,
    hidden: bool,
) -> None:
    for place, piece in damaged:
        texts[place : place + 1] = [texts[place] + piece] if place < len(texts) else [piece]
    calls = builders.item_events(recall_call("c1", "{}"), 1) if hidden else []
    opening = [*builders.opening(), *calls, *builders.item_events(LONG, 0)[:2]]
    begun, first = builders.numbered(opening), len(opening)
    like = builders.item_events(LONG, 0)[2]
    sent = [body(begun)]
    for number, text in enumerate(texts, first):
        known = like | {"obfuscation": "x" * (number % 7), "sequence_number": number}
        event = {name: known[name] for name in ("type", "content_index", "logprobs", *order)}
        data = orjson.dumps(event | {"delta": "DELTA"}).replace(b"DELTA", text)
        sent.append(b"event: %b\ndata: %b\n\n" % (like["type"].encode(), data))
    both_ways(b"".join(sent), chunking=lambda data: in_pieces(data, size))


class Counting:
    """A pattern that notes how much it was given."""

    def __init__(self, pattern: re.Pattern[bytes], looked: list[int]) -> None:
        self._pattern = pattern
        self._looked = looked

    def split(self, text: bytes) -> list[Any]:
        self._looked.append(len(text))
        return self._pattern.split(text)


def in_turns(size: int, run: int) -> list[Event]:
    """Return the deltas of two messages, so many of each before those of the other."""
    one, other = (builders.item_events(message("word " * size), index) for index in (0, 1))
    events = [*one[:2], *other[:2]]
    for at in range(2, 2 + size, run):
        events += one[at : min(at + run, 2 + size)] + other[at : min(at + run, 2 + size)]
    return [*events, *one[2 + size :], *other[2 + size :]]


def never_the_same(size: int) -> list[Event]:
    events = builders.item_events(message("word " * size), 0)
    return [
        event | {"logprobs": [{"token": f"{place:05}"}]} if "delta" in event else event
        for place, event in enumerate(events)
    ]


def broken_strings(size: int) -> list[Event]:
    events = builders.item_events(message("word " * size), 0)
    return [
        event | {"delta": "DELTA"} if "delta" in event and place % 9 == 0 else event
        for place, event in enumerate(events)
    ]


ROOMY = {"stream_bytes": 1 << 24, "retained_bytes": 1 << 24, "event_bytes": 1 << 22}
MIXED = {
    "in turns of one": lambda size: in_turns(size, 1),
    "in turns of three": lambda size: in_turns(size, 3),
    "in turns of ten": lambda size: in_turns(size, 10),
    "in turns of a hundred": lambda size: in_turns(size, 100),
    "never the same": never_the_same,
    "broken strings": broken_strings,
    "one text": lambda size: builders.item_events(message("word " * size), 0),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("bound", [{}, {"event_bytes": 3000}])
def test_what_is_looked_at_grows_with_what_comes(
    name: str, bound: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: bytes that the pattern is given, in one read that is ever larger."""
    looked: list[int] = []
    make = block._pattern
    monkeypatch.setattr(block, "_pattern", lambda *args: Counting(make(*args), looked))
    for size in (500, 1000, 2000):
        looked.clear()
        middle = MIXED[name](size)
        events = [*builders.opening(), *middle, builders.terminal(output=[])]
        sent = body(builders.numbered(events)).replace(b"DELTA", rb"\ud83d")
        roomy = limits(**{**ROOMY, **bound})
        run_turn(hops=[sent], limits=roomy)
        assert looked
        assert sum(looked) <= 16 * len(sent)
