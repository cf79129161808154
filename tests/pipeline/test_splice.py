"""The one stream that the client sees: numbers, places and ids that are ours once it changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import jsontext
from pipeline.accepted import Accepted
from pipeline.dialect import UNCHANGED, WHOLE
from pipeline.response import ItemState, ResponseState, apply_responses_event
from pipeline.splice import ClientStream, JSONAnswer, edit_event
from tests import builders, jsontexts
from tests.builders import frame, message, reasoning
from tests.sse import parse_stream

if TYPE_CHECKING:
    from tests.builders import Event


def accepted(event: Event, *, verbatim: bool = True, **extra: Any) -> Accepted:
    data = builders.compact(event).encode()
    made = Accepted(event, frame(event), data, UNCHANGED, verbatim)
    return made._replace(**extra) if extra else made


def mint(prefix: str, index: int) -> str:
    return f"{prefix}_minted{index}"


class Client:
    """A client stream that is fed with the events of hops."""

    def __init__(self, **options: Any) -> None:
        self.stream = ClientStream(**({"withhold_ciphertext": False} | options))
        self.stream.numbered = True
        self.state = ResponseState()

    def show(self, *events: Event) -> Client:
        for event in events:
            apply_responses_event(event, self.state)
            item = self.state.items.get(event.get("output_index", -1))
            self.stream.show(accepted(event), item, mint)
        return self

    def next_hop(self) -> Client:
        self.state = ResponseState()
        self.stream.start_hop()
        return self

    def take(self) -> list[Event]:
        return [event for _, event in parse_stream(self.stream.take())]


SAID = builders.numbered(builders.item_events(message("hi"), 0), start=2)


def test_unchanged_events_are_the_bytes_that_came() -> None:
    client = Client().show(*SAID)
    assert client.stream.take() == builders.body(SAID)
    assert client.stream.sequence == 7
    assert client.stream.take() == b""


def test_the_first_change_starts_the_numbers() -> None:
    client = Client().show(*SAID[:2])
    client.stream.begin_change()
    client.show(*SAID[3:])
    assert [event["sequence_number"] for event in client.take()] == [2, 3, 4, 5, 6]


def test_places_are_the_clients_own() -> None:
    client = Client()
    client.stream.begin_change()
    client.show(*builders.item_events(message("hi"), 5), *builders.item_events(message("b"), 3))
    assert [e["output_index"] for e in client.take()] == [0] * 6 + [1] * 6
    assert client.stream.index_of(5) == 0
    assert client.stream.index_of(4) is None


def test_places_of_before_stay() -> None:
    client = Client().show(*builders.item_events(message("hi"), 2))
    client.stream.begin_change()
    client.show(*builders.item_events(message("b"), 0))
    assert [e["output_index"] for e in client.take()] == [2] * 6 + [3] * 6


def test_the_next_hop_goes_on_behind_the_last() -> None:
    client = Client().show(*SAID).next_hop().show(*builders.item_events(reasoning("why"), 0))
    added = client.take()[6]
    assert (added["output_index"], added["sequence_number"]) == (1, 8)


def test_an_id_that_was_there_gets_another() -> None:
    client = Client().show(*SAID).next_hop().show(*SAID)
    events = client.take()[6:]
    ids = {e.get("item_id") or e["item"]["id"] for e in events}
    assert ids == {"msg_minted1"}
    assert client.stream.id_of(client.state.items[0]) == "msg_minted1"


def test_items_without_an_id_dont_collide() -> None:
    new = builders.item_done({"type": "brand_new", "status": "completed"}, 0)
    client = Client().show(new).next_hop().show(new)
    assert ["id" in event["item"] for event in client.take()] == [False, False]


def test_foreign_events_keep_what_they_have() -> None:
    client = Client().show(*SAID)
    client.stream.begin_change()
    client.show({"type": "acme:trace", "item_id": message("hi")["id"]})
    client.show({"type": "acme:trace", "sequence_number": 99})
    assert client.take()[6:] == [
        {"type": "acme:trace", "item_id": message("hi")["id"]},
        {"type": "acme:trace", "sequence_number": 8},
    ]


def test_events_of_a_numbered_stream_are_numbered() -> None:
    client = Client().show(*SAID).next_hop().show(*builders.item_events(message("b"), 0))
    assert [e["sequence_number"] for e in client.take()] == list(range(2, 14))


def test_a_stream_without_numbers_stays_without() -> None:
    client = Client()
    client.stream.numbered = False
    client.show(*builders.item_events(message("hi"), 0)).next_hop().show(*SAID)
    assert all("sequence_number" not in event for event in client.take())


def test_taking_a_number_out_keeps_the_rest() -> None:
    client = Client()
    client.stream.numbered = False
    client.stream.begin_change()
    event = {"type": "acme:trace", "sequence_number": 5, "x": 1.0}
    text = b'{ "type":"acme:trace" ,"sequence_number": 5, "x":1.00 }'
    client.stream.show(accepted(event, data=text), None, mint)
    assert client.stream.take() == b'event: acme:trace\ndata: { "type":"acme:trace", "x":1.00 }\n\n'


def test_our_own_events_start_the_numbers() -> None:
    client = Client().show(*SAID)
    client.stream.write("response.in_progress", {"type": "x"}, None, UNCHANGED, {})
    assert client.stream.changed
    assert client.take()[-1]["sequence_number"] == 8


def test_open_items_are_known() -> None:
    client = Client().show(*SAID[:3])
    assert list(client.stream.open_items) == [0]
    client.show(*SAID[3:])
    assert client.stream.open_items == {}


def test_withheld_ciphertext_is_cut_where_it_stands() -> None:
    thought = reasoning("why", encrypted="gAAAA")
    events = builders.item_events(thought, 0)
    client = Client(withhold_ciphertext=True).show(*events)
    sent = client.stream.take()
    assert b"gAAAA" not in sent
    assert not client.stream.changed
    assert [event for _, event in parse_stream(sent)][-1]["item"] == reasoning("why")
    assert Client().show(*events).take()[-1]["item"] == thought


# ------------------------------------------------------------------------------ editing a text


@given(jsontexts.objects, jsontexts.objects, st.data())
def test_only_what_changes_changes(value: Any, edits: Any, data: st.DataObject) -> None:
    event = {"type": "x", "keep": 1} | value
    text = data.draw(jsontexts.texts(st.just(event)))
    parsed = jsontext.loads(text)
    result = edit_event(parsed, text, UNCHANGED, dict(edits))
    assert jsontext.loads(result) == jsontext.loads(jsontext.dumps({**parsed, **edits}))
    if not edits:
        assert result == text or jsontext.dumps(parsed) == text


def test_members_that_were_mended_are_written() -> None:
    event = {"type": "response.x", "item_id": "new", "output_index": 3}
    data = b'{"type":"response.x", "item_id":"old","output_index":1}'
    assert edit_event(event, data, frozenset({"item_id"}), {"output_index": 0}) == (
        b'{"type":"response.x", "item_id":"new","output_index":0}'
    )
    assert edit_event(event, data, frozenset({WHOLE}), {}) == (
        b'{"type":"response.x","item_id":"new","output_index":3}'
    )


# --------------------------------------------------------------------------------- one JSON body


def answer() -> JSONAnswer:
    return JSONAnswer(withhold_ciphertext=False)


def test_an_answer_is_the_terminals_response() -> None:
    one = answer()
    item = ItemState(0, message("hi"))
    one.show(accepted(SAID[-1]), item, mint)
    one.pass_through(b": comment\n\n")
    one.write("response.in_progress", builders.opening()[1], None, UNCHANGED, {})
    assert one.take() == b""
    assert one.index_of(0) == 0
    assert not one.committed
    terminal = builders.terminal(output=[message("hi")])
    one.show(accepted(terminal), None, mint)
    assert json.loads(one.take()) == terminal["response"]


@pytest.mark.parametrize(
    "text",
    [
        b'{"type":"response.completed","response":{ "a": 1.00 }}',
        b'{"sequence_number":3, "response":{ "a": 1.00 },"type":"response.completed"}',
    ],
)
def test_an_answers_bytes_are_the_providers(text: bytes) -> None:
    event = json.loads(text)
    one = answer()
    one.write_response(accepted(event, data=text), {})
    assert one.take() == b'{ "a": 1.00 }'
    one.write_response(accepted(event, data=text), {"b": [2]})
    assert one.take() == b'{ "a": 1.00,"b":[2] }'
    one.write_response(accepted(event, data=None), {"b": 2})
    assert one.take() == b'{"a":1.0,"b":2}'


def test_an_answer_that_only_passes_is_its_bytes() -> None:
    one = answer()
    one.relay(b"<html>")
    one.relay(b"</html>")
    assert one.take() == b"<html></html>"
