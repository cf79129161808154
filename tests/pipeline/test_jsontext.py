from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pipeline.jsonplaces import ObjectText, find
from pipeline.jsonspans import (
    MemberSpan,
    Span,
    document_span,
    element_spans,
    member_elements,
    member_spans,
    skip_value,
    value_end,
    walk_members,
)
from pipeline.jsontext import (
    Splice,
    append_elements,
    cut_elements,
    drop_members,
    dumps,
    loads,
    set_members,
    splice,
)
from tests.jsontexts import keys, objects, strings, subsequence, texts, values

if TYPE_CHECKING:
    from pipeline.jsonspans import Json

ORACLE = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)


def oracle_end(data: bytes, start: int) -> int:
    """Where the standard parser sees the value end (offsets of latin-1 are those of bytes)."""
    return ORACLE.raw_decode(data.decode("latin-1"), start)[1]


def oracle_members(data: bytes, start: int) -> list[tuple[str, MemberSpan]]:
    position = start + 1
    members: list[tuple[str, MemberSpan]] = []
    while True:
        position = blank(data, position)
        if data[position : position + 1] in (b"}", b","):
            if data[position : position + 1] == b"}":
                return members
            position = blank(data, position + 1)
        name_end = oracle_end(data, position)
        begin = blank(data, blank(data, name_end) + 1)
        end = oracle_end(data, begin)
        members.append((loads(data[position:name_end]), MemberSpan(position, begin, end)))
        position = end


def blank(data: bytes, position: int) -> int:
    while data[position] in b" \t\r\n":
        position += 1
    return position


def pairs(data: bytes) -> Json:
    """The value with every member of every object, duplicates included."""
    text = data.decode("utf-8", "surrogatepass")
    return json.loads(text, object_pairs_hook=lambda members: ("object", members), parse_int=str)


def around(before: bytes, after: bytes, inserted: bytes) -> list[bytes]:
    """Every piece of ``before`` whose replacement by ``inserted`` makes it ``after``."""
    gone = len(before) - len(after) + len(inserted)
    return [
        before[start : start + gone]
        for start in range(len(before) + 1)
        if gone >= 0 and before[:start] + inserted + before[start + gone :] == after
    ]


class TestLoads:
    @given(texts())
    def test_reads_what_the_standard_parser_reads(self, data: bytes) -> None:
        def integer(digits: str) -> Json:
            return int(digits) if -(2**63) <= int(digits) < 2**64 else as_float(digits)

        text = data.decode("utf-8", "surrogatepass")
        assert loads(data) == json.loads(text, parse_int=integer)

    @given(texts())
    def test_the_same_whoever_reads(self, data: bytes) -> None:
        assert loads(b'["\\ud83d",' + data + b"]") == ["\ud83d", loads(data)]

    @pytest.mark.parametrize(
        ("data", "value"),
        [
            (b'"\\ud83d"', "\ud83d"),
            (b'"\xed\xa0\xbd"', "\ud83d"),
            (b"[1e400]", [Decimal("1e400")]),
            (b'["\\ud83d",' + b"1" * 5000 + b"]", ["\ud83d", Decimal("1" * 5000)]),
            (b'["\\ud83d",18446744073709551616]', ["\ud83d", 2.0**64]),
            (b'["\\ud83d",18446744073709551615]', ["\ud83d", 2**64 - 1]),
        ],
    )
    def test_reads_what_orjson_refuses(self, data: bytes, value: Json) -> None:
        assert loads(data) == value

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b" ",
            b"{",
            b"{} x",
            b"NaN",
            b"[Infinity]",
            b'["\\ud83d",-Infinity]',
            b"1e999999999999999999999",
            b"[" * 100_000 + b"]" * 100_000,
            b'"\xff"',
            b"\xef\xbb\xbf{}",
            b'"\x01"',
            '{"a":1}'.encode("utf-16"),
            '{"a":1}'.encode("utf-16-le"),
        ],
    )
    def test_refuses(self, data: bytes) -> None:
        with pytest.raises(ValueError, match=r"."):
            loads(data)


class TestDumps:
    @given(values)
    def test_round_trip(self, value: Json) -> None:
        assert pairs(dumps(value)) == pairs(json.dumps(value).encode())

    @given(texts())
    def test_writes_all_that_was_read(self, data: bytes) -> None:
        value = loads(data)
        assert loads(dumps(value)) == value

    @given(values)
    def test_sorted_keys(self, value: Json) -> None:
        expected = json.dumps(value, sort_keys=True).encode()
        assert pairs(dumps(value, sort_keys=True)) == pairs(expected)

    def test_depth_does_not_matter(self) -> None:
        value: Json = "\ud83d"
        for _ in range(5000):
            value = {"a": [value]}
        assert dumps(value) == b'{"a":[' * 5000 + b'"\\ud83d"' + b"]}" * 5000

    def test_refuses_what_is_no_json(self) -> None:
        with pytest.raises(TypeError):
            dumps({"a": object()})


class TestSpans:
    @given(texts(), st.sampled_from([b"", b" ", b",1", b"]", b"}"]))
    def test_skip_finds_the_end(self, data: bytes, tail: bytes) -> None:
        start, end = document_span(data)
        assert skip_value(data + tail, start) == end == oracle_end(data, start)

    @given(texts(), values)
    @example(b"1.00", 1.0)
    @example(b"12", 1)
    def test_a_wrong_guess_changes_nothing(self, data: bytes, guess: Json) -> None:
        start, end = document_span(data)
        assert value_end(data, start, guess) == value_end(data, start, loads(data)) == end

    @pytest.mark.parametrize("data", [b"[", b'{"a":[', b'"a', b"!"])
    def test_skip_refuses_broken_text(self, data: bytes) -> None:
        with pytest.raises(ValueError, match="JSON"):
            skip_value(data, 0)

    def test_skip_is_not_recursive(self) -> None:
        assert skip_value(b"[" * 100_000 + b"]" * 100_000, 0) == 200_000

    @given(texts(objects))
    def test_members(self, data: bytes) -> None:
        start, end = document_span(data)
        value = loads(data)
        expected = oracle_members(data, start)
        assert list(walk_members(data, start, value)) == expected
        assert member_spans(data, start, value) == dict(expected)
        assert {key: loads(data[at.start : at.end]) for key, at in expected} == value
        assert ObjectText(data, value, Span(start, end)).members(value) == dict(expected)

    @given(texts(objects), st.lists(keys, max_size=2))
    @example(b'{"a":{"tools":1},"b":"x"}', ["tools"])
    @example(b'{"tools":1,"a":",\\"tools\\":1"}', ["tools"])
    @example(b'{"tools":1,"x":2,"tools":1}', ["tools"])
    @example(b'{"tools":1,"x":2,"x":3}', ["tools"])
    @example(b'{"\\":1,\\"a":1}', ['":1,"a'])
    @example(b'{"a":11}', ["a"])
    def test_backwards_is_never_wrong(self, data: bytes, wanted: list[str]) -> None:
        start, end = document_span(data)
        value = loads(data)
        wanted += list(value)[:2]
        forward = dict(oracle_members(data, start))
        found = ObjectText(data, value, Span(start, end)).last_members(wanted)
        assert found is None or found == {key: forward[key] for key in wanted if key in forward}

    @given(objects, st.sampled_from(["", " ", "\n" * 100]))
    def test_backwards_finds_what_is_predicted(self, value: dict[str, Json], space: str) -> None:
        value = {key: item for key, item in value.items() if key and key[0] not in ",: ]}"}
        assume(predictable(value))
        members = [dumps(key) + b":" + dumps(item) for key, item in value.items()]
        gap = space.encode()
        spaced = b"{" + gap + (gap + b"," + gap).join(members) + gap + b"}"
        found = ObjectText(spaced, value).last_members(value)
        assert (found is None and gap) or found == member_spans(spaced, 0, value)

    @pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", " :\t")])
    def test_backwards_reads_the_tail_only(self, separators: tuple[str, str]) -> None:
        tools = [{"type": "namespace", "tools": [{"tools": []}]}, {"tools": 1}]
        value = {"model": "m", "input": [], "tools": tools, "include": None, "x": {"include": 1}}
        data = json.dumps(value, separators=separators).encode()
        expected = member_spans(data, 0, value)
        broken = data.replace(b'"input"', b"!!!!!!!")
        found = ObjectText(broken, value).last_members(["tools", "include"])
        assert found == {key: expected[key] for key in ("tools", "include")}

    @given(texts(objects), st.data())
    @example(b'{"a":1,"b":[2],"c":3}', None)
    @example(b'{"a":1,"b":[2],"a":1}', None)
    @example(b'{"a":1, "b":[2],"c":3}', None)
    def test_no_answer_depends_on_what_was_asked_before(
        self, data: bytes, drawn: st.DataObject | None
    ) -> None:
        start, _ = document_span(data)
        value = loads(data)
        forward = dict(oracle_members(data, start))
        names = list(value)
        order = st.lists(st.sampled_from(names), max_size=6) if names else st.just(names)
        asked = [*names[1:], *names, *reversed(names)] if drawn is None else drawn.draw(order)
        source = ObjectText(data, value)
        for key in asked:
            if isinstance(value[key], list) and value[key]:
                spans = element_spans(data, forward[key].start, value[key])
                offsets = source.element_offsets(key, [len(spans) - 1])
                assert offsets[len(spans) - 1] == spans[-1].start
            found = source.last_members([key])
            assert found is None or found == {key: forward[key]}
            assert source.members([key]) == {key: forward[key]}

    @given(texts(st.lists(values, max_size=4)), st.lists(values, max_size=2))
    def test_elements(self, data: bytes, guesses: list[Json]) -> None:
        start, _ = document_span(data)
        value = loads(data)
        spans = element_spans(data, start, value)
        assert [loads(data[begin:end]) for begin, end in spans] == value
        assert element_spans(data, start, guesses) == spans

    @given(texts(st.fixed_dictionaries({"in": st.lists(values, max_size=3), "a": values})))
    def test_elements_of_a_member(self, data: bytes) -> None:
        start, _ = document_span(data)
        value = loads(data)
        member = member_spans(data, start, value)["in"]
        expected = element_spans(data, member.start, value["in"])
        assert member_elements(data, start, value, "in") == expected

    @given(
        texts(
            st.fixed_dictionaries(
                {"in": st.lists(values, min_size=1, max_size=5)},
                optional={"a": values, "b": values},
            )
        ),
        st.sets(st.integers(0, 5)),
    )
    @example(b'{"in":[1.00,2]}', {1})
    @example(b'{"in":[1e9,1e9,1e9]}', {1})
    @example(b'{"in":[1,2.0]} ', {0, 2})
    @example(b'{"in":[1],"in":[1]}', {0, 1})
    @example(b'{"in":[[1],2],"a":[],"in":[[1],2]}', {0, 1, 2})
    def test_offsets(self, data: bytes, indices: set[int]) -> None:
        value = loads(data)
        indices = {min(index, len(value["in"])) for index in indices}
        spans = member_elements(data, document_span(data).start, value, "in")
        starts = [*(span.start for span in spans), spans[-1].end]
        offsets = ObjectText(data, value).element_offsets("in", indices)
        assert {index: offsets[index] for index in indices} == {at: starts[at] for at in indices}

    @pytest.mark.parametrize("path", [("b",), ("a", 2), ("a", "b"), (0,), ("a", 0, "c")])
    def test_find_says_that_nothing_is_there(self, path: tuple[str | int, ...]) -> None:
        data = b'{"a": [1, 2]}'
        with pytest.raises(LookupError):
            find(data, loads(data), path)

    def test_find_descends(self) -> None:
        data = b'{"a":1,"a" : [ {"b": [ 10 , 20 ]} ] }'
        span, value = find(data, loads(data), ("a", 0, "b", -1))
        assert (data[span.start : span.end], value) == (b"20", 20)


class TestEdits:
    @given(texts(objects), keys, texts())
    def test_set(self, data: bytes, key: str, text: bytes) -> None:
        value = loads(data)
        after = set_members(data, value, {key: text})
        assert loads(after) == {**value, key: loads(text)}
        if key in value:
            assert value[key] in [loads_or_none(piece) for piece in around(data, after, text)]
        else:
            comma = b"," if value else b""
            assert b"" in around(data, after, comma + dumps(key) + b":" + text)

    @given(texts(objects), st.dictionaries(keys, values, max_size=4))
    def test_set_several(self, data: bytes, changes: dict[str, Json]) -> None:
        value = loads(data)
        after = set_members(data, value, {key: dumps(item) for key, item in changes.items()})
        expected = {**value, **{key: loads(dumps(item)) for key, item in changes.items()}}
        assert loads(after) == expected
        assert list(loads(after)) == list(expected)

    @given(texts(objects), st.sets(keys))
    def test_drop(self, data: bytes, gone: set[str]) -> None:
        value = loads(data)
        after = drop_members(data, value, gone)
        kept = [(key, member) for key, member in pairs(data)[1] if key not in gone]
        assert pairs(after) == ("object", kept)
        assert subsequence(after, data)
        if not gone.intersection(value):
            assert after is data

    @given(texts(st.fixed_dictionaries({"a": st.lists(values, max_size=4)})), st.lists(texts()))
    def test_append(self, data: bytes, added: list[bytes]) -> None:
        value = loads(data)
        after = append_elements(data, value, added, ("a",))
        assert loads(after) == {"a": value["a"] + [loads(text) for text in added]}
        text = b",".join(added)
        assert b"" in around(data, after, b"," + text if value["a"] and added else text)

    @given(texts(st.fixed_dictionaries({"a": st.lists(st.integers(0, 3), max_size=6)})))
    def test_cut(self, data: bytes) -> None:
        value = loads(data)
        after = cut_elements(data, value, lambda item: item > 1, ("a",))
        assert loads(after) == {"a": [item for item in value["a"] if item <= 1]}
        assert subsequence(after, data)

    def test_nested(self) -> None:
        data = b'{"r":{"x":0},"r": {"tools" :[1, 2],"x":1.50}}'
        value = loads(data)
        assert set_members(data, value, {"x": b"3"}, ("r",)) == data.replace(b"1.50", b"3")
        assert drop_members(data, value, ["tools"], ("r",)) == b'{"r":{"x":0},"r": {"x":1.50}}'
        after = append_elements(data, value, [b"3"], ("r", "tools"))
        assert after == data.replace(b"2]", b"2,3]")

    def test_splice_keeps_the_order_at_one_place(self) -> None:
        assert splice(b"ab", [Splice(1, 1, b"1"), Splice(1, 1, b"2")]) == b"a12b"

    def test_splice_refuses_overlaps(self) -> None:
        with pytest.raises(ValueError, match="overlap"):
            splice(b"abc", [Splice(0, 2, b""), Splice(1, 3, b"")])

    @given(strings, strings)
    def test_keys_that_look_like_structure(self, key: str, other: str) -> None:
        assume(key != other)
        data = b"{%s:[],%s:%s}" % (dumps(key), dumps(other), dumps(f'",{key}":1'))
        value = loads(data)
        after = append_elements(data, value, [b"1"], (key,))
        assert loads(after) == {**value, key: [1]}


def as_float(digits: str) -> float | Decimal:
    value = float(digits)
    return Decimal(digits) if math.isinf(value) else value


def predictable(value: Json) -> bool:
    try:
        return bool(orjson.loads(orjson.dumps(value)) == value)
    except TypeError:
        return False


def loads_or_none(data: bytes) -> Json:
    try:
        return loads(data)
    except ValueError:
        return None
