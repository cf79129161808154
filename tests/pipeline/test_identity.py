from __future__ import annotations

import hashlib
import hmac
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.identity import is_minted_id, mint_id

KEY = b"k" * 32
prefixes = st.sampled_from(["msg", "rs", "fc", "ctc", "a_b", ""])


@given(prefixes, st.text(), st.integers(0, 65_535))
def test_a_minted_id_proves_itself(prefix: str, response: str, index: int) -> None:
    minted = mint_id(KEY, prefix, response, index)
    assert re.fullmatch(rf"{prefix}_[0-9a-f]{{48}}", minted)
    assert minted == mint_id(KEY, prefix, response, index)
    assert is_minted_id(KEY, minted)
    assert not is_minted_id(b"another key", minted)


def test_both_halves_are_what_they_say() -> None:
    first = hmac.new(KEY, b"msg:resp_1:7", hashlib.sha256).hexdigest()[:24]
    second = hmac.new(KEY, b"msg" + first.encode(), hashlib.sha256).hexdigest()[:24]
    assert mint_id(KEY, "msg", "resp_1", 7) == f"msg_{first}{second}"


def test_items_have_different_ids() -> None:
    ids = {mint_id(KEY, p, r, i) for p in ("msg", "fc") for r in ("a", "b") for i in range(9)}
    assert len(ids) == 36


@given(st.data())
def test_a_changed_id_is_none_of_ours(data: st.DataObject) -> None:
    minted = mint_id(KEY, "msg", "resp_1", 0)
    at = data.draw(st.integers(0, len(minted) - 1))
    other = data.draw(st.characters().filter(lambda each: each != minted[at]))
    assert not is_minted_id(KEY, minted[:at] + other + minted[at + 1 :])


@pytest.mark.parametrize(
    "id_",
    [
        None,
        7,
        "",
        "msg",
        "_",
        "msg_" + "0" * 48,
        "msg_68af4030592c81938ec0a5fbab4a3e9f05438e46b5f69a3b",
    ],
)
def test_foreign_ids(id_: object) -> None:
    assert not is_minted_id(KEY, id_)
