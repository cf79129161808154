from __future__ import annotations

import json
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.errors import RequestError
from pipeline.history import Insertion
from pipeline.jsonspans import document_span, member_elements
from pipeline.jsontext import dumps, loads
from pipeline.prefixes import PrefixCache
from pipeline.request import Request, read_request
from pipeline.restore import restore
from tests.jsontexts import texts, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.jsonspans import Json


def read(cache: PrefixCache, data: bytes, *, owner: str = "a", keep: bool = True) -> Request:
    return cache.read(owner, data, keep=keep)


def either(reader: Callable[[bytes], Request], data: bytes) -> Request | str:
    try:
        return reader(data)
    except RequestError as error:
        return error.message


def strictly(value: Json) -> str:
    """Spell a value so that 1, 1.0 and true differ, and the order of keys."""
    return repr(value)


def agrees(cache: PrefixCache, data: bytes) -> Request | None:
    """Read a request, and compare it with one that is read alone."""
    alone, request = (either(one, data) for one in (read_request, partial(read, cache)))
    if isinstance(alone, str) or isinstance(request, str):
        assert request == alone
        return None
    assert strictly(request.body) == strictly(alone.body)
    assert request.text == data
    items = request.body.get("input")
    if isinstance(items, list) and items:
        spans = member_elements(data, document_span(data).start, request.body, "input")
        starts = [*(span.start for span in spans), spans[-1].end]
        known = request.source("input").known_offsets("input")
        assert {at: starts[at] for at in known} == known
        inserted = [Insertion(at, (b'"x"',)) for at in (0, len(items) - 1, len(items))]
        assert restore(request, inserted).text == restore(alone, inserted).text
    return request


def message(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def body(*items: Json, **members: Json) -> bytes:
    tail = {"tools": [{"type": "function", "name": "shell"}], "stream": True} | members
    return dumps({"model": "m", "input": list(items), **tail})


FIRST = body(message("one"), message("two"))
NEXT = body(message("one"), message("two"), message("three"))
SPACED = json.dumps(loads(FIRST)).encode()
SPACED_NEXT = json.dumps(loads(NEXT)).encode()


class TestWhatIsKnown:
    """Bytes that an earlier request had brought are not parsed again."""

    def known(self, *texts: bytes) -> int:
        cache = PrefixCache(least=0)
        for data in texts[:-1]:
            agrees(cache, data)
        before = cache.known
        agrees(cache, texts[-1])
        assert cache.known + cache.parsed == sum(map(len, texts))
        return cache.known - before

    def test_of_the_next_request_all_but_its_new_items(self) -> None:
        added = len(NEXT) - len(FIRST)
        assert self.known(FIRST, NEXT) == len(FIRST) == len(NEXT) - added

    def test_of_the_one_after_that_too(self) -> None:
        third = body(*map(message, ("one", "two", "three", "four", "five")))
        assert self.known(FIRST, NEXT, third) == len(NEXT)

    def test_of_the_same_request_everything(self) -> None:
        assert self.known(FIRST, FIRST) == len(FIRST)

    def test_where_what_follows_the_items_differs_all_in_front_of_it(self) -> None:
        other = body(message("one"), message("two"), message("three"), stream=False)
        assert self.known(FIRST, other) == FIRST.index(b'],"tools"')

    @pytest.mark.parametrize("model", ["a", "b"])
    def test_where_items_come_first(self, model: str) -> None:
        first, then = loads(FIRST), loads(NEXT)
        for request in (first, then):
            del request["model"]
        then["model"] = model
        first["model"] = "a"
        assert self.known(dumps(first), dumps(then)) >= dumps(first).index(b'],"tools"')

    def test_where_items_come_last(self) -> None:
        first, then = [{"tools": [], "input": loads(one)["input"]} for one in (FIRST, NEXT)]
        assert self.known(dumps(first), dumps(then)) == len(dumps(first))

    def test_in_the_spelling_of_python(self) -> None:
        assert self.known(SPACED, SPACED_NEXT) == len(SPACED)

    def test_of_what_orjson_refuses_as_of_the_rest(self) -> None:
        odd = FIRST.replace(b"one", b"\\ud83d")
        more = odd.replace(b'],"tools"', b',"\\ud83d"],"tools"')
        assert self.known(odd, more) == len(odd)

    @pytest.mark.parametrize(
        ("before", "then"),
        [
            pytest.param(FIRST, NEXT.replace(b"one", b"One"), id="edited"),
            pytest.param(NEXT, FIRST, id="shorter"),
            pytest.param(FIRST, NEXT.replace(b'"model":"m"', b'"model":"n"'), id="another model"),
            pytest.param(FIRST, SPACED_NEXT, id="spelled otherwise"),
            pytest.param(b'{"input":"one","a":1}', b'{"input":"one","a":1,"b":2}', id="a string"),
            pytest.param(b'{"input":[],"a":1}', b'{"input":[5],"a":1}', id="no items before"),
            pytest.param(b'{"a":[1]}', b'{"a":[1,2]}', id="no input"),
            pytest.param(
                b'{"input":[1],"a":[2],"a":[3]}', b'{"input":[1],"a":[2,9],"a":[3]}', id="twice"
            ),
            pytest.param(
                b'{"input":[1],"a":2,"input":[3]}', b'{"input":[1],"a":2,"input":[3,4]}', id="again"
            ),
        ],
    )
    def test_of_what_is_no_next_request_nothing(self, before: bytes, then: bytes) -> None:
        assert self.known(before, then) == 0

    @pytest.mark.parametrize(
        "rest",
        [
            b',7],"input":[0,1]}',
            b',7],"input":[8]}',
            b'],"input":[0]}',
            b'],"\\u0069nput":[0,1]}',
            b'],"input":null}',
            b'],"input":[]}',
            b'],"model":"again","input":"text"}',
        ],
    )
    def test_a_second_input_counts(self, rest: bytes) -> None:
        cache = PrefixCache(least=0)
        agrees(cache, b'{"model":"m","input":[1,2],"a":1}')
        agrees(cache, b'{"model":"m","input":[1,2,3],"a":1}')
        agrees(cache, b'{"model":"m","input":[1,2,3' + rest)

    @pytest.mark.parametrize(
        "rest", [b"", b",", b",]", b",7", b",7]", b'],"a":1}}', b",7]]", b"]}x", b',"', b",7},"]
    )
    def test_what_is_no_json_is_refused(self, rest: bytes) -> None:
        cache = PrefixCache(least=0)
        agrees(cache, b'{"input":[1,2],"a":1}')
        agrees(cache, b'{"input":[1,2' + rest)
        agrees(cache, b'{"input":[1,2' + rest + b'],"a":1}')

    @pytest.mark.parametrize("rest", [b',2],"a":3}', b',2],"b":3}', b"]}"])
    @pytest.mark.parametrize(
        "beginning",
        [
            b'{"input":[1],"a":2,"input":[1',
            b'{"a":2,"input":[1',
            b'{"b":0,"a":2,"a":4,"input":[1',
            b'{ "input" : 7 , "a" : 2 , "input" : [ 1 ',
            b'{"a":2,"\\u0069nput":[1',
        ],
    )
    def test_of_a_key_that_comes_twice_the_last_counts(self, beginning: bytes, rest: bytes) -> None:
        cache = PrefixCache(least=0)
        agrees(cache, beginning + b'],"a":[1]}')
        agrees(cache, beginning + rest)

    @pytest.mark.parametrize("rest", [b".5", b"e1", b"1", b"1,2", b".5,2", b" ,2", b" 2"])
    @pytest.mark.parametrize("tail", [b'],"a":1}', b'],"a":2}', b' ] , "a":1}'])
    def test_a_number_that_goes_on_is_another(self, rest: bytes, tail: bytes) -> None:
        cache = PrefixCache(least=0)
        agrees(cache, b'{"a":0,"input":[0],"a":1}')
        agrees(cache, b'{"input":[0],"a":1}')
        agrees(cache, b'{"input":[0' + rest + tail)

    def test_a_tail_that_overlaps_the_beginning_is_none(self) -> None:
        cache = PrefixCache(least=0)
        agrees(cache, b'{"input":[{"b":[2]}]}')
        agrees(cache, b'{"input":[{"b":[2]}')

    @pytest.mark.parametrize("rest", [b'],"tools":{}}', b'],"stream":1}', b'],"tools":"x"}'])
    def test_what_cannot_be_read_is_refused(self, rest: bytes) -> None:
        cache = PrefixCache(least=0)
        agrees(cache, b'{"input":[1,2],"a":1}')
        agrees(cache, b'{"input":[1,2,3' + rest)


def size_of(*texts: bytes) -> int:
    """Return what a conversation of these requests takes at its end."""
    cache = PrefixCache(least=0)
    for data in texts:
        read(cache, data)
    return cache.size


class TestWhatIsKept:
    @pytest.mark.parametrize("value", [b"{}", b"[]", b"1.5", b'"ab"', b'{"a":[]}', b"[[[[]]]]"])
    def test_values_take_memory_however_short_they_are(self, value: bytes) -> None:
        few, many = (b'{"input":[' + b",".join([value] * n) + b"]}" for n in (100, 1_100))
        assert size_of(many) - size_of(few) >= 1000 * (2 * len(value) + 64)

    def test_a_conversation_takes_what_its_last_request_takes(self) -> None:
        other = body(message("one"), message("two"), message("three"), stream=False, tools=[1, 2])
        for then in (NEXT, FIRST, other):
            assert size_of(FIRST, then) == size_of(then)
            assert size_of(FIRST, then, then) == size_of(then)

    def test_one_request_of_a_conversation(self) -> None:
        cache = PrefixCache(least=0)
        for data in (FIRST, NEXT, NEXT):
            read(cache, data)
        assert len(cache) == 1

    def test_conversations_of_one_owner(self) -> None:
        cache = PrefixCache(least=0)
        others = [body(message(f"one {number}")) for number in range(10)]
        for data in others:
            read(cache, data)
        for data in others:
            read(cache, data.replace(b'],"tools"', b',5],"tools"'))
        assert cache.known == sum(map(len, others))

    def test_never_those_of_another_owner(self) -> None:
        cache = PrefixCache(least=0)
        read(cache, FIRST)
        read(cache, NEXT, owner="b")
        assert cache.known == 0

    def test_the_last_ones_of_an_owner(self) -> None:
        cache = PrefixCache(least=0)
        for number in range(100):
            read(cache, body(message(f"one {number}")))
        assert len(cache) == 16
        read(cache, body(message("one 99"), message("two")))
        read(cache, body(message("one 0"), message("two")))
        assert cache.known == len(body(message("one 99")))

    def test_the_last_ones_of_all_up_to_a_size(self) -> None:
        cache = PrefixCache(least=0, most_bytes=10 * size_of(FIRST))
        for number in range(30):
            read(cache, FIRST, owner=f"owner {number}")
        assert len(cache) == 10
        read(cache, NEXT, owner="owner 29")
        assert cache.known == len(FIRST)
        read(cache, NEXT, owner="owner 0")
        assert cache.known == len(FIRST)

    def test_nothing_that_is_larger_than_all(self) -> None:
        cache = PrefixCache(least=0, most_bytes=size_of(FIRST))
        read(cache, FIRST)
        read(cache, NEXT)
        assert (len(cache), cache.size, cache.known) == (0, 0, len(FIRST))
        read(cache, FIRST)
        assert len(cache) == 1

    def test_nothing_that_is_short(self) -> None:
        cache = PrefixCache(least=len(NEXT))
        read(cache, FIRST)
        assert len(cache) == 0
        read(cache, NEXT)
        assert len(cache) == 1

    def test_nothing_that_is_not_to_be_kept(self) -> None:
        cache = PrefixCache(least=0)
        read(cache, FIRST, keep=False)
        assert len(cache) == 0
        read(cache, FIRST)
        read(cache, NEXT, keep=False)
        read(cache, NEXT)
        assert cache.known == 2 * len(FIRST)

    def test_a_request_that_was_refused_forgets_nothing(self) -> None:
        cache = PrefixCache(least=0)
        read(cache, FIRST)
        with pytest.raises(RequestError):
            read(cache, FIRST.replace(b'"stream":true', b'"stream":1'))
        read(cache, NEXT)
        assert cache.known == len(FIRST)

    def test_no_text_is_told(self) -> None:
        cache = PrefixCache(least=0)
        read(cache, FIRST)
        assert "one" not in repr(cache)


BEGINNINGS = (
    b'{"input":[1',
    b'{"model":"m","input":[{"a":1},{"b":[2]}',
    b'{"a":[0],"input":[1,2',
    b'{ "a" : 1, "input" : [ 1 , "x" ',
    b'{"input":[1],"input":[1',
    b'{"input":[1],"a":2,"input":[1',
    b'{"a":1,"input":[1],"a":[1',
    b'{"a":[1',
)
ITEMS = (
    b",5",
    b", 5 ",
    b".5",
    b"0",
    b",[0",
    b',{"type":"message","role":"user","content":"a ] , } b"}',
    b',[{"input":[0,[1]]}]',
    b',"],\\"input\\":[0"',
    b',"\\ud83d"',
    b",1e999",
    b",99999999999999999999999",
)
TAILS = (
    b"]}",
    b" ] } ",
    b"}",
    b"",
    b'],"a":[1]}',
    b'],"a":[1,5]}',
    b'],"a":[1],"a":[1]}',
    b'], "a" : [1,2] }',
    b'],"a":1,"b":2}',
    b'],"tools":[{"type":"function","name":"x"}],"stream":true}',
    b'],"input":"x"}',
    b'],"input":[]}',
    b'],"input":[0]}',
    b'],"input":[[],1],"a":2}',
    b'],"\\u0069nput":[0]}',
    b'],"b":[0],"input":[1]}',
    b'],"model":[1],"model":[2]}',
)
items = st.lists(st.sampled_from(ITEMS), max_size=3).map(b"".join)
pieces = st.lists(st.sampled_from(ITEMS + TAILS), max_size=4).map(b"".join)


class TestAlone:
    """A request reads as it does alone, whatever was read before."""

    @given(
        st.sampled_from(BEGINNINGS),
        st.lists(st.tuples(items, st.sampled_from(TAILS)), min_size=2, max_size=6),
    )
    @example(b'{"input":[1', [(b'],"a":[1,2],"a":[1', b"]}")] * 2)
    @example(b'{"input":[1],"a":[1,2', [(b'],"a":[1', b"]}"), (b",5", b'],"a":[1]}')])
    def test_of_any_requests_that_begin_alike(
        self, beginning: bytes, rests: list[tuple[bytes, bytes]]
    ) -> None:
        cache = PrefixCache(least=0)
        for added, tail in rests:
            agrees(cache, beginning + added + tail)

    @given(
        texts(
            st.fixed_dictionaries(
                {"input": st.lists(values, min_size=1, max_size=4)},
                optional={"a": values, "tools": st.lists(values, max_size=2), "b": values},
            )
        ),
        st.lists(st.tuples(st.floats(0, 1), pieces), max_size=4),
    )
    def test_of_any_text_that_goes_on_anywhere(
        self, data: bytes, changes: list[tuple[float, bytes]]
    ) -> None:
        cache = PrefixCache(least=0)
        agrees(cache, data)
        for place, added in changes:
            at = int(place * len(data))
            changed = data[:at] + added + data[at:]
            if agrees(cache, changed) is not None:
                data = changed

    @given(
        st.lists(values, min_size=1, max_size=3),
        st.lists(st.lists(values, max_size=3), max_size=4),
        st.dictionaries(st.sampled_from(["tools", "a", "z"]), st.lists(values, max_size=2)),
        st.booleans(),
    )
    def test_of_a_conversation_that_grows(
        self,
        items: list[Json],
        turns: list[list[Json]],
        members: dict[str, Json],
        spaced: bool,
    ) -> None:
        cache, before = PrefixCache(least=0), []
        for number, turn in enumerate(([], *turns)):
            items = [*items, *turn]
            request = {"model": "m", "input": items, **members, "turn": number // 2}
            text = json.dumps(request).encode() if spaced else dumps(request)
            read_now = agrees(cache, text)
            assert read_now is not None
            before.append((read_now, deepcopy(read_now.body)))
        for request_before, then in before:
            assert strictly(request_before.body) == strictly(then)


def test_depth_is_that_of_the_whole() -> None:
    """Nesting is refused, or not, as it is in the whole text."""
    taken = set()
    for depth in range(1015, 1030):
        nested = b"[" * depth + b"]" * depth
        for rest in (b'],"a":1}', b'],"a":2}'):
            cache = PrefixCache(least=0)
            read(cache, b'{"input":[1],"a":1}')
            text = b'{"input":[1,' + nested + rest
            alone, request = (either(one, text) for one in (read_request, partial(read, cache)))
            assert isinstance(alone, str) == isinstance(request, str)
            taken.add(isinstance(request, str))
    assert taken == {False, True}
