"""Many deltas at once: what is taken is what each of its frames says, whatever stands in it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.block import Block, DeltaForm
from pipeline.sse import Frame, SSEDecoder

KIND = "response.output_text.delta"
ORDERS = {
    "number first": ("type", "sequence_number", "item_id", "output_index", "delta", "obfuscation"),
    "number last": ("type", "item_id", "output_index", "delta", "obfuscation", "sequence_number"),
    "padding first": ("type", "obfuscation", "delta", "logprobs", "sequence_number"),
    "no padding": ("type", "item_id", "delta", "logprobs", "sequence_number"),
    "no number": ("type", "item_id", "delta", "obfuscation"),
    "number between": ("type", "delta", "sequence_number", "obfuscation", "output_index"),
    "delta alone": ("type", "delta"),
}
DELTAS = ["", " a", "é", "\\", "\n", "𝄞", '"', "x" * 300]
PIECES = [
    *rb'''a \n \" \\ \u0022 \u005c \ud83d\ude00 \ " \ud83d \u12 ","obfuscation":"'''.split(),
    *(b" ", "é𝄞".encode(), b"\xc3", b"\x1f", b"\n\n"),
]
HOSTILE = [*b'"\\\n\r ,:[]{}0123456789-.eEux\xc3\xff\x00']


def event(number: int, delta: str, order: tuple[str, ...]) -> dict[str, Any]:
    whole = {
        "type": KIND,
        "sequence_number": number,
        "item_id": "msg_1",
        "output_index": 0,
        "delta": delta,
        "logprobs": [],
        "obfuscation": "x" * (number % 5),
    }
    return {name: whole[name] for name in order}


def frames(deltas: list[str], order: tuple[str, ...], start: int = 7) -> list[bytes]:
    events = [event(number, delta, order) for number, delta in enumerate(deltas, start)]
    return [b"event: %b\ndata: %b\n\n" % (KIND.encode(), orjson.dumps(one)) for one in events]


def form(order: tuple[str, ...]) -> DeltaForm:
    found = DeltaForm.of(event(6, "first", order))
    assert found is not None
    return found


def decoded(raw: bytes) -> list[dict[str, Any]]:
    found = SSEDecoder(event_bytes=1 << 20, frames=1 << 20).feed(raw)
    assert all(isinstance(frame, Frame) and frame.sound for frame in found)
    assert {frame.event for frame in found} == {KIND}
    return [orjson.loads(frame.data) for frame in found if isinstance(frame, Frame) and frame.data]


def check(block: Block, order: tuple[str, ...], start: int = 7) -> None:
    """Hold a block against what its frames say when each is read alone."""
    events = decoded(block.raw)
    assert len(events) == block.frames
    assert block.text == "".join(one["delta"] for one in events)
    for number, one in enumerate(events, start):
        same = event(number, one["delta"], order) | {"obfuscation": one.get("obfuscation")}
        assert one == {name: same[name] for name in order}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_block_is_what_its_frames_say(order: tuple[str, ...]) -> None:
    deltas = ["a", "", " b", "é𝄞", "\\", "c\n"]
    sent = b"".join(frames(deltas, order))
    block = form(order).read(b"before" + sent + b"event: other\n", len(b"before"), 7)
    assert block is not None
    assert (block.raw, block.frames, block.text) == (sent, 6, "".join(deltas))
    check(block, order)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_quotes_are_part_of_a_block(order: tuple[str, ...]) -> None:
    deltas = ['"', '{"a": "b"}', "c", "\\", '\\"', '"\\', '","obfuscation":"', '"' * 99, '"}\n\n']
    sent = b"".join(frames(deltas, order))
    block = form(order).read(sent, 0, 7)
    assert block is not None
    assert (block.raw, block.frames, block.text) == (sent, len(deltas), "".join(deltas))
    check(block, order)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_block_ends_where_the_look_does(order: tuple[str, ...]) -> None:
    one, two, three = frames(['"a"', '"b"', '"c"'], order)
    for end in range(len(one + two + three)):
        block = form(order).read(one + two + three, 0, 7, end)
        whole = b"" if end < len(one) else one if end < len(one + two) else one + two
        assert (b"" if block is None else block.raw) == whole


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_block_ends_where_a_frame_is_not_whole(order: tuple[str, ...]) -> None:
    one, two, three = frames(["a", "b", "c"], order)
    for size in range(len(three)):
        block = form(order).read(one + two + three[:size], 0, 7)
        assert block is not None
        assert block.raw == one + two
        short = form(order).read(one[:size], 0, 7) if size < len(one) else None
        assert short is None


@pytest.mark.parametrize("order", [one for one in ORDERS.values() if "sequence_number" in one])
@pytest.mark.parametrize("number", [6, 8, 70])
def test_another_number_ends_it(order: tuple[str, ...], number: int) -> None:
    sent = b"".join(frames(["a"], order) + frames(["b"], order, number + (number == 8)))
    block = form(order).read(sent, 0, 7)
    assert block is not None
    assert block.frames == 1
    assert form(order).read(sent, 0, number) is None


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("start", [0, 7, 95])
def test_a_block_is_written_with_other_numbers_and_names(
    order: tuple[str, ...], start: int
) -> None:
    sent = frames(["a", "", "é", "\\"], order)
    block = form(order).read(b"".join(sent), 0, 7)
    assert block is not None
    ours = event(6, "first", order) | ({"item_id": "msg_2"} if "item_id" in order else {})
    shown = DeltaForm.of(ours)
    assert shown is not None
    written = shown.write(block.columns, block.frames, start)
    padding = [orjson.loads(one.split(b"data: ")[1]).get("obfuscation") for one in sent]
    for number, (one, delta) in enumerate(zip(decoded(written), ["a", "", "é", "\\"], strict=True)):
        expected = ours | {"delta": delta}
        if "sequence_number" in order:
            expected["sequence_number"] = start + number
        if "obfuscation" in order:
            expected["obfuscation"] = padding[number]
        assert one == expected
        assert list(one) == list(order)


@pytest.mark.parametrize(
    "event",
    [
        {"type": KIND},
        {"type": KIND, "delta": 5},
        {"type": KIND, "delta": "a", "sequence_number": True},
        {"type": KIND, "delta": "a", "sequence_number": 1.0},
        {"type": KIND, "delta": "a", "logprobs": [{"token": "\ud83d"}]},
        {"type": KIND, "delta": "a", "more": 10**30},
        {"type": KIND, "delta": "a", "sequence_number": 1 << 63},
        {"type": KIND, "delta": "a", "more": "\0"},
    ],
)
def test_what_has_no_form(event: dict[str, Any]) -> None:
    assert DeltaForm.of(event) is None


@given(st.data(), st.sampled_from(list(ORDERS.values())))
def test_what_was_damaged_is_taken_only_for_what_it_is(
    data: st.DataObject, order: tuple[str, ...]
) -> None:
    deltas = data.draw(st.lists(st.sampled_from(DELTAS), min_size=2, max_size=5))
    sent = bytearray(b"".join(frames(deltas, order)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(sent) - 1))
        put = bytes(data.draw(st.lists(st.sampled_from(HOSTILE), max_size=4)))
        sent[at : at + data.draw(st.integers(0, 3))] = put
    block = form(order).read(bytes(sent), 0, 7)
    if block is not None:
        check(block, order)


@pytest.mark.parametrize(
    ("delta", "padding"),
    [
        (b"a\\", b"x"),
        (b"a\\", b',"b'),
        (b"a", b"\\"),
        (b"a\nb", b"x"),
        (b"a\n\nevent: x", b"x"),
        (b"a\rb", b"x"),
        (b"a\x00", b"x"),
        (b"\xff", b"x"),
        (b"\\ud83d", b"x"),
        (b"\\x", b"x"),
    ],
)
@pytest.mark.parametrize("order", [one for one in ORDERS.values() if "obfuscation" in one])
def test_a_value_that_is_no_string(delta: bytes, padding: bytes, order: tuple[str, ...]) -> None:
    sent = b"".join(frames(["DELTA", "b", "c"], order))
    sent = sent.replace(b"DELTA", delta).replace(b'"xx"', b'"%b"' % padding)
    assert form(order).read(sent, 0, 7) is None


@given(
    st.lists(
        st.lists(
            st.sampled_from(PIECES),
            max_size=4,
        ).map(b"".join)
        | st.binary(max_size=4),
        min_size=1,
        max_size=9,
    ),
    st.sampled_from(list(ORDERS.values())),
)
def test_values_are_taken_where_each_is_the_text_of_a_string(
    values: list[bytes], order: tuple[str, ...]
) -> None:
    sent = frames([f"DELTA {place}" for place in range(len(values))], order)
    for place, value in enumerate(values):
        sent[place] = sent[place].replace(b"DELTA %d" % place, value)
    whole = [is_text(value) for value in values]
    sound = whole.index(False) if False in whole else len(values)
    block = form(order).read(b"".join(sent), 0, 7)
    assert (block is not None) is (sound > 0)
    if block is not None:
        assert block.frames == sound or (sound < len(values) and block.frames > sound // 3)
        assert block.raw == b"".join(sent[: block.frames])
        check(block, order)


def is_text(value: bytes) -> bool:
    try:
        orjson.loads(b'"%b"' % value)
    except ValueError:
        return False
    return True
