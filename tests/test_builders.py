"""The builders themselves, against readers that are not ours."""

from __future__ import annotations

import json

import pytest
from httpx_sse._decoders import SSEDecoder
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests import builders

ITEMS = (
    builders.reasoning("Look it up.", encrypted="gAAAA"),
    builders.recall_call("c1", {"query": "你好🙂"}),
    builders.custom_call("c2", "patch", "*** Begin"),
    builders.message("你好🙂, said the\nfox"),
    builders.refusal("No."),
)


def test_the_sdk_knows_every_event() -> None:
    adapter: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
    # Its type for usage asks for a field that no recorded stream has, so none is sent here.
    for event in builders.stream(*ITEMS, echo=builders.request(), usage=None):
        assert adapter.validate_python(event).type == event["type"]


@pytest.mark.parametrize("name", sorted(set(builders.FRAMINGS) - {"no last blank line"}))
def test_every_framing_says_the_same(name: str) -> None:
    events = builders.stream(*ITEMS)
    text = builders.body(events, builders.FRAMINGS[name]).decode("utf-8-sig")
    decoder = SSEDecoder()
    decoded = [decoder.decode(line) for line in text.replace("\r\n", "\n").splitlines()]
    data = [sse.data for sse in decoded if sse is not None and sse.data not in {"", "[DONE]"}]
    assert [json.loads(one) for one in data] == events


def test_deltas_add_up() -> None:
    for text in ("你好🙂, said the\n fox  ", "", "   ", '{"query":"x"}', "abcdefghi"):
        assert "".join(builders.pieces(text)) == text


def test_interleaved_items_keep_their_own_order() -> None:
    runs = [builders.item_events(item, index) for index, item in enumerate(ITEMS)]
    mixed = builders.interleaved(*runs)
    for index, run in enumerate(runs):
        assert [event for event in mixed if event["output_index"] == index] == run
