"""Responses that are continued by their id, where the upstream keeps none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.request import Request, read_request
from proxy.remembered import Remembered
from tests import builders
from tests.builders import compact, message, user


def asking(*items: object, **members: object) -> Request:
    return read_request(compact(builders.request(*items, **members)).encode())


def resumed(kept: Remembered, previous: str, *items: object, tenant: str = "t") -> dict[str, Any]:
    """Return what a request becomes that continues a response."""
    request = kept.resume(tenant, asking(*items, previous_response_id=previous))
    assert read_request(request.text).body == request.body
    return request.body


def test_a_history_stands_in_front_of_what_is_new() -> None:
    kept = Remembered()
    kept.put("t", "resp_1", asking(user("one")), [message("two")])
    body = resumed(kept, "resp_1", user("three"))
    assert body["input"] == [user("one"), message("two"), user("three")]
    assert "previous_response_id" not in body
    assert body["instructions"] == "Be brief."


@pytest.mark.parametrize("given", ["plain text", None, []])
def test_every_form_of_input_has_its_place(given: object) -> None:
    kept = Remembered()
    asked = asking(input=given)
    kept.put("t", "resp_1", asked, [message("two")])
    said = [{"type": "message", "role": "user", "content": given}] if given == "plain text" else []
    request = asking(input=given, previous_response_id="resp_1")
    assert kept.resume("t", request).body["input"] == [*said, message("two"), *said]


def test_the_texts_stay_as_they_were_written() -> None:
    kept = Remembered()
    text = b'{"input": [ {"role":"user", "content":"\\ud83d", "n": 1e400} ],"store":true}'
    kept.put("t", "resp_1", read_request(text), [])
    request = kept.resume("t", read_request(b'{"input":[],"previous_response_id":"resp_1"}'))
    assert request.text == b'{"input":[{"role":"user", "content":"\\ud83d", "n": 1e400}]}'


def test_responses_are_their_tenants_own() -> None:
    kept = Remembered()
    kept.put("t", "resp_1", asking(user("one")), [])
    for previous, tenant in (("resp_1", "other"), ("resp_2", "t")):
        asked = asking(user("two"), previous_response_id=previous)
        assert kept.resume(tenant, asked) is asked
    plain = asking(user("two"))
    assert kept.resume("t", plain) is plain


def test_nothing_said_is_nothing_added() -> None:
    kept = Remembered()
    kept.put("t", "resp_1", asking(input=[]), [])
    assert resumed(kept, "resp_1", user("x"))["input"] == [user("x")]


def test_the_one_that_was_not_used_for_longest_goes_first() -> None:
    kept = Remembered(most=2)
    for name in ("a", "b"):
        kept.put("t", name, asking(user(name)), [])
    resumed(kept, "a", user("x"))
    kept.put("t", "c", asking(user("c")), [])
    assert len(kept) == 2
    assert "previous_response_id" in resumed(kept, "b", user("x"))
    assert "previous_response_id" not in resumed(kept, "a", user("x"))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=30))
def test_the_bytes_stay_below_their_limit(puts: list[tuple[int, int]]) -> None:
    kept = Remembered(most=4, most_bytes=400)
    for name, size in puts:
        kept.put("t", str(name), asking(user("x" * size)), [])
        assert len(kept) <= 4
        assert 0 <= kept._size <= 400
        assert kept._size == sum(len(text) for texts in kept._items.values() for text in texts)


def test_what_is_larger_than_all_is_not_kept() -> None:
    kept = Remembered(most_bytes=10)
    kept.put("t", "a", asking(user("a long text")), [])
    assert len(kept) == 0
    assert repr(kept) == "<Remembered 0 responses, 0 bytes>"
