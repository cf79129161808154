from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.continuation import follow_up
from pipeline.jsontext import dumps, loads
from pipeline.request import Request, input_items, read_request
from tests.jsontexts import call_output, objects, texts, values

if TYPE_CHECKING:
    from pipeline.jsonspans import Json

CALL = b'{"type":"function_call","id":"fc_1","call_id":"c1","name":"recall","arguments":"{}"}'
OUTPUT = b'{"type":"function_call_output","call_id":"c1","output":"found"}'


def follow(data: bytes, *, left: int | None = None) -> Request:
    request = read_request(data)
    got = follow_up(request, items=[CALL, OUTPUT], max_output_tokens=left)
    assert loads(got.text) == got.body
    assert list(loads(got.text)) == list(got.body)
    return got


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"input":[1 ] ,"tools":[2]}', b'{"input":[1,%s,%s ] ,"tools":[2]}'),
        (b'{"input":[],"tools":[2]}', b'{"input":[%s,%s],"tools":[2]}'),
        (
            b'{"input": "\\u00e9","a":2}',
            b'{"input": [{"type":"message","role":"user","content":"\\u00e9"},%s,%s],"a":2}',
        ),
        (b'{"prompt":{"id":"p"} }', b'{"prompt":{"id":"p"},"input":[%s,%s] }'),
        (b'{"input":null}', b'{"input":[%s,%s]}'),
        (
            b'{"previous_response_id":"r","input":[1]}',
            b'{"previous_response_id":"r","input":[1,%s,%s]}',
        ),
        (b'{"input":[9],"input":[1]}', b'{"input":[9],"input":[1,%s,%s]}'),
    ],
)
def test_the_text(data: bytes, text: bytes) -> None:
    assert follow(data).text == text % (CALL, OUTPUT)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"max_output_tokens":100,"input":[]}', b'{"max_output_tokens":64,"input":[%s,%s]}'),
        (b'{"input":[]}', b'{"input":[%s,%s],"max_output_tokens":64}'),
    ],
)
def test_what_is_left(data: bytes, text: bytes) -> None:
    assert follow(data, left=64).text == text % (CALL, OUTPUT)


def test_a_result_may_be_any_text() -> None:
    text = 'quote " and \ud83d and é'
    assert loads(call_output("c1", text))["output"] == text


@given(
    texts(
        st.fixed_dictionaries(
            {},
            optional={"input": st.lists(values, max_size=3) | st.text() | st.none(), "z": values},
        )
    ),
    st.lists(st.lists(texts(objects), min_size=1, max_size=3), min_size=1, max_size=3),
    st.text(max_size=5),
)
def test_every_hop_begins_like_the_one_before(
    data: bytes, hops: list[list[bytes]], result: str
) -> None:
    request = read_request(data)
    for got in hops:
        items = [*got, *(call_output(f"c{number}", result) for number in range(len(got)))]
        following = follow_up(request, items=items, max_output_tokens=None)
        sent: list[Json] = list(map(loads, items))
        assert following.body["input"] == input_items(request.body) + sent
        assert loads(following.text) == following.body
        assert b",".join(items) in following.text
        if isinstance(request.body.get("input"), list):
            assert inserted_once(request.text, following.text)
        request = following


def inserted_once(before: bytes, after: bytes) -> bool:
    """Tell whether one piece was inserted, and nothing else changed."""
    same = next(
        (at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before)
    )
    return any(after.endswith(before[at:]) and before[:at] == after[:at] for at in range(same + 1))


def test_a_long_turn_stays_the_sum_of_its_parts() -> None:
    request = read_request(b'{"input":"hi","store":false}')
    for number in range(20):
        request = follow_up(
            request,
            items=[CALL, call_output(f"c{number}", "x")],
            max_output_tokens=1000 - number,
        )
    assert len(request.body["input"]) == 41
    assert request.text.endswith(b',"store":false,"max_output_tokens":981}')
    assert dumps(loads(request.text)) == request.text
