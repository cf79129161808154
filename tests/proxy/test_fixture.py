"""Fixtures lose no byte and say what is wrong with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.fixture import (
    Fixture,
    FixtureError,
    Header,
    Record,
    content,
    dump_fixture,
    parse_fixture,
    plain,
    stream_records,
)
from tests import builders

FRAMES = st.sampled_from(
    [
        frame
        for framing in builders.FRAMINGS.values()
        for frame in builders.frames(builders.stream(builders.message("你好🙂 you")), framing)
    ]
)


@given(st.lists(FRAMES | st.binary(max_size=20)).map(b"".join), st.data())
def test_a_stream_comes_back_byte_for_byte(data: bytes, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data)))
    records = [*stream_records("in", data[:cut]), *stream_records("in", data[cut:])]
    again = parse_fixture(dump_fixture(Fixture(Header("x"), tuple(records))).splitlines())
    assert again.records == tuple(records)
    assert b"".join(record.data() for record in again.records) == data


@given(st.binary() | st.sampled_from([b'{"a":1}', b'{"a": 1}', b'{"a":1,"a":2}', b"[]", b"1e400"]))
def test_a_body_comes_back_byte_for_byte(data: bytes) -> None:
    record = Record("in", "request", content(data, "body"))
    [again] = parse_fixture(dump_fixture(Fixture(Header("x"), (record,))).splitlines()).records
    assert again.data() == data
    assert Record("in", "bytes", plain(data)).data() == data


def test_events_in_our_form_are_readable() -> None:
    events = builders.stream(builders.message("hi"))
    records = list(stream_records("out", builders.body(events), 5))
    assert [record.members["event"] for record in records] == events
    assert {(record.side, record.kind, record.t) for record in records} == {("out", "event", 5)}


def test_the_header_says_only_what_is_special() -> None:
    header = Header("about", dialect="codex", limits={"frames": 3})
    text = dump_fixture(Fixture(header, ()))
    assert text == b'{"fixture":1,"about":"about","dialect":"codex","limits":{"frames":3}}\n'
    assert parse_fixture(text.splitlines()) == Fixture(header, ())


def test_comments_and_blank_lines_are_for_readers() -> None:
    lines = [b"# why", b"", b'{"fixture":1,"about":"x"}', b"# then", b'{"in":"end","t":3}']
    assert parse_fixture(lines).records == (Record("in", "end", {}, 3),)


HEAD = b'{"fixture":1}'


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "1: the header is missing"),
        ([b'{"fixture":9}'], '1: the header must say "fixture": 1'),
        ([b'{"fixture":1,"abuot":"x"}'], "1: the header has unknown members: abuot"),
        ([b'{"fixture":1,"dialect":"french"}'], "1: dialect is public or codex"),
        ([HEAD, b"{"], "2: not JSON"),
        ([HEAD, b"[]"], "2: not a JSON object"),
        ([HEAD, b"{}"], '2: a record has either "in" or "out"'),
        ([HEAD, b'{"in":"end","out":"end"}'], '2: a record has either "in" or "out"'),
        ([HEAD, b'{"in":"outcome"}'], '2: "in" is one of'),
        ([HEAD, b'{"in":"end","t":-1}'], "2: t is milliseconds"),
        ([HEAD, b'{"in":"end","t":true}'], "2: t is milliseconds"),
        ([HEAD, b'{"in":"event"}'], "2: a record of kind event has no event"),
        ([HEAD, b'{"in":"event","event":{}}'], "2: an event is an object with a type"),
        ([HEAD, b'{"in":"bytes","base64":"!"}'], "2: unreadable content"),
    ],
)
def test_what_is_wrong_is_said(lines: list[bytes], words: str) -> None:
    with pytest.raises(FixtureError, match="^" + words.replace("[", r"\[")):
        parse_fixture(lines)
