"""The client behind ``ask`` and ``chat``: what it sends again, and what it makes of answers."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import headers as h
from proxy.cli_output import CliError
from proxy.talk import MESSAGES, events, header_value, kept, refused
from tests import builders, strategies

ITEMS = st.lists(
    st.sampled_from(
        [
            {"role": "user", "content": "a"},
            {"type": "message", "role": "assistant", "content": []},
            {"type": "reasoning", "id": "rs_1"},
        ]
    ),
    max_size=120,
)


@given(ITEMS)
def test_what_is_sent_again_begins_with_the_user_and_has_an_end(history: list[Any]) -> None:
    got = kept(history)
    assert len(got) <= MESSAGES
    assert got == history[len(history) - len(got) :]
    if got:
        assert got[0]["role"] == "user"


@given(st.data())
def test_events_come_whole_however_they_are_cut(data: st.DataObject) -> None:
    stream = builders.stream(builders.message("hello"))
    chunking = data.draw(strategies.chunkings())
    pieces = [*chunking(builders.body(stream)), b": a comment\n\n", b"data: [DONE]\n\n"]
    assert list(events(iter(pieces))) == stream


@given(st.lists(st.binary(max_size=60)))
def test_no_bytes_are_more_than_an_error(pieces: list[bytes]) -> None:
    got: list[Any] = []
    with contextlib.suppress(CliError):
        got.extend(events(iter([*pieces, b"\n\n"])))
    assert all(isinstance(event["type"], str) for event in got)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"bad key sk-abcdefghijklmnopqrstuvwx"}}', "bad key"),
        (b'{"error":"plain"}', "plain"),
        (b"<html>", "no reason was given"),
        (b'{"detail":1}', "no reason was given"),
        (b"[]", "no reason was given"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(body: bytes, words: str) -> None:
    error = refused(401, body)
    assert error.message.startswith(f"refused with 401: {words}")
    assert "sk-abcdef" not in error.message
    ((_, hint),) = error.failures
    assert hint is not None
    assert "OPENAI_API_KEY" in hint


@pytest.mark.parametrize(
    ("name", "told"), [("x-sottovoce-project", "--project"), ("authorization", "OPENAI_API_KEY")]
)
def test_a_header_is_one_line(name: str, told: str) -> None:
    assert header_value(name, "B\u00fcro") == "B\u00fcro".encode()
    assert header_value(name, "\udcff") == b"\xff"
    with pytest.raises(CliError, match=f"^{told} has a line break"):
        header_value(name, "a\r\nb")


def test_a_header_is_read_as_it_is_written() -> None:
    written = [(b"x", header_value("x", "B\u00fcro")), (b"y", b"B\xfcro")]
    assert h.text(written, b"x") == h.text(written, b"y") == "B\u00fcro"
