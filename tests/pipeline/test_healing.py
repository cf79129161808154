"""What is taken out of a request that was refused for its reasoning."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.healing import Ailment, Healing, diagnose
from pipeline.request import Request

REFUSED = "The encrypted content gAAA...Rg== could not be verified."
ORPHANED = "Item 'rs_2' of type 'reasoning' was provided without its required following item."
USER = {"type": "message", "role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def reasoning(name: str, cipher: str | None = "gAAA", summary: str = "") -> dict[str, Any]:
    item = {
        "type": "reasoning",
        "id": name,
        "summary": [{"type": "summary_text", "text": summary}] if summary else [],
    }
    return item if cipher is None else item | {"encrypted_content": cipher}


def request(*items: object, **members: object) -> Request:
    body = {"model": "m", "input": list(items), "store": False} | members
    return Request(json.dumps(body, indent=1).encode(), body)


def heal(asked: Request, message: str = REFUSED, code: str | None = None) -> tuple[Healing, bool]:
    healing = Healing()
    ailment = diagnose(code, message)
    assert ailment is not None
    return healing, healing.treat(ailment, message, asked)


def healed(asked: Request, message: str = REFUSED) -> list[Any]:
    healing, worth_it = heal(asked, message)
    assert worth_it
    result = healing.apply(asked)
    assert json.loads(result.text) == result.body
    assert {**result.body, "input": 0} == {**asked.body, "input": 0}
    items = result.body["input"]
    assert isinstance(items, list)
    return items


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        ("invalid_encrypted_content", "", Ailment.CIPHERTEXT),
        ("thinking_signature_invalid", "", Ailment.CIPHERTEXT),
        (None, REFUSED, Ailment.CIPHERTEXT),
        ("0", "The encrypted content for item rs_1 could not be decrypted", Ailment.CIPHERTEXT),
        (None, "Could not decrypt the provided encrypted_content.", Ailment.CIPHERTEXT),
        (None, "messages.1.content.0: Invalid `signature` in `thinking` block", Ailment.CIPHERTEXT),
        (None, ORPHANED, Ailment.ORPHAN),
        ("invalid_request_error", ORPHANED.upper(), Ailment.ORPHAN),
        (None, "Item 'fc_1' was provided without its required 'reasoning' item", None),
        ("rate_limit_exceeded", "Try again in 2 s", None),
        (None, "", None),
    ],
)
def test_which_refusals(code: str | None, message: str, expected: Ailment | None) -> None:
    assert diagnose(code, message) is expected


def test_ciphertext_goes_and_words_stay() -> None:
    asked = request(USER, reasoning("rs_1", summary="why"), CALL)
    assert healed(asked) == [
        USER,
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}]},
        CALL,
    ]


def test_where_items_are_stored_the_id_stays() -> None:
    asked = request(reasoning("rs_1", summary="why"), store=True)
    assert healed(asked) == [reasoning("rs_1", None, "why")]


def test_what_would_be_left_empty_goes() -> None:
    assert healed(request(USER, reasoning("rs_1"), CALL)) == [USER, CALL]


def test_ciphertext_that_came_since_stays() -> None:
    first = request(USER, reasoning("rs_1"))
    healing, _ = heal(first)
    later = request(USER, reasoning("rs_1"), reasoning("rs_2", "gBBB"), CALL)
    assert healing.apply(later).body["input"] == [USER, reasoning("rs_2", "gBBB"), CALL]


def test_the_named_orphan_goes() -> None:
    asked = request(reasoning("rs_1"), CALL, reasoning("rs_2"), USER)
    assert healed(asked, ORPHANED) == [reasoning("rs_1"), CALL, USER]


@pytest.mark.parametrize("message", [REFUSED, ORPHANED])
def test_each_is_treated_once(message: str) -> None:
    asked = request(reasoning("rs_2"), USER)
    healing, worth_it = heal(asked, message)
    assert worth_it
    ailment = diagnose(None, message)
    assert ailment is not None
    assert not healing.treat(ailment, message, asked)


@pytest.mark.parametrize("message", [REFUSED, ORPHANED])
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(request(USER, CALL), id="no reasoning"),
        pytest.param(request(input="hi"), id="a text"),
        pytest.param(request(input=None), id="no input"),
        pytest.param(
            request(None, 7, {"type": "reasoning", "id": ["rs_2"], "encrypted_content": {"a": 1}}),
            id="odd items",
        ),
    ],
)
def test_what_can_not_be_healed(asked: Request, message: str) -> None:
    healing, worth_it = heal(asked, message)
    assert not worth_it
    assert healing.apply(asked) is asked


def test_what_needs_nothing_is_left_alone() -> None:
    asked = request(USER, CALL)
    assert Healing().apply(asked) is asked
    healing, _ = heal(request(reasoning("rs_1")))
    assert healing.apply(asked) is asked


items = st.lists(
    st.one_of(
        st.just(USER),
        st.just(CALL),
        st.builds(
            reasoning,
            st.sampled_from(["rs_1", "rs_2", "rs_3"]),
            st.none() | st.sampled_from(["gAAA", "gBBB", "\ud83d"]),
            st.sampled_from(["", "why"]),
        ),
    ),
    max_size=8,
)


@given(items)
def test_no_ciphertext_survives_and_nothing_else_changes(history: list[dict[str, Any]]) -> None:
    asked = request(*history)
    healing, worth_it = heal(asked)
    assert worth_it is any("encrypted_content" in item for item in history)
    result = healing.apply(asked)
    assert json.loads(result.text) == result.body
    left = result.body["input"]
    assert not any("encrypted_content" in item for item in left)
    untouched = [item for item in history if "encrypted_content" not in item]
    assert [item for item in left if item in untouched] == untouched
