"""What a client keeps for us: it opens for whom it was made, and for nobody else."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sealing import SEALED, seal, unseal

KEY = b"k" * 32
TEXTS = st.text(st.characters(codec=None), max_size=200)


@given(TEXTS, st.text(max_size=20))
def test_what_is_sealed_opens(text: str, tenant: str) -> None:
    sealed = seal(KEY, tenant, text)
    assert sealed.startswith(SEALED)
    assert sealed.isascii()
    assert unseal(KEY, tenant, sealed) == text
    assert seal(KEY, tenant, text) == sealed


@given(TEXTS, st.data())
def test_no_bit_of_it_can_be_changed(text: str, data: st.DataObject) -> None:
    held = bytearray(base64.urlsafe_b64decode(seal(KEY, "a", text)[len(SEALED) :]))
    held[data.draw(st.integers(0, len(held) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert unseal(KEY, "a", SEALED + base64.urlsafe_b64encode(held).decode()) is None


@given(TEXTS, st.integers(0, 60))
def test_nothing_can_be_cut_off(text: str, left: int) -> None:
    sealed = seal(KEY, "a", text)
    if left < len(sealed):
        assert unseal(KEY, "a", sealed[:left]) is None
    assert unseal(KEY, "a", sealed + "AAAA") is None


@pytest.mark.parametrize(
    ("key", "tenant"), [(b"j" * 32, "a"), (KEY, "b"), (KEY, ""), (KEY, "a "), (KEY, "1:a")]
)
def test_for_nobody_else(key: bytes, tenant: str) -> None:
    assert unseal(key, tenant, seal(KEY, "a", "text")) is None


def test_tenant_and_text_are_told_apart() -> None:
    assert unseal(KEY, "ab", seal(KEY, "a", "bc")) is None
    assert unseal(KEY, "a", seal(KEY, "ab", "c")) is None


@pytest.mark.parametrize("text", ["", "x", SEALED, f"{SEALED}é", f"{SEALED}====", f"{SEALED}A-_"])
def test_what_is_no_seal(text: str) -> None:
    assert unseal(KEY, "a", text) is None


def test_it_hides_the_text() -> None:
    text = "the canary is called Pip " * 40
    held = base64.urlsafe_b64decode(seal(KEY, "a", text)[len(SEALED) :])
    assert b"canary" not in held
    assert len(set(held)) > 200  # of 256: no period of the text shows
    assert held != base64.urlsafe_b64decode(seal(KEY, "b", text)[len(SEALED) :])
