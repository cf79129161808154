"""The text of a custom tool, read while it comes."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.providers.inputs import InputText
from tests.dialects import CHAT, chat_chunk, sse
from tests.proxy.providers.reading import outcome, read

ODD = 'a"\\\n/\x01é🙂\ud83d\ude42'
texts = st.text(st.sampled_from(ODD), max_size=12) | st.text(max_size=12)
starts = st.sampled_from(['{"input":"', ' {\n "input" : "'])


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def joined(text: str) -> str:
    """Return a text whose halves of characters are whole ones."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def decoded(text: str, cuts: list[int]) -> tuple[str, InputText]:
    decoder = InputText()
    return "".join(decoder.feed(piece) for piece in pieces(text, cuts)), decoder


@given(texts, starts, st.lists(st.integers(0, 80), max_size=8), st.booleans())
def test_a_text_comes_out_however_it_is_cut_and_escaped(
    text: str,
    start: str,
    cuts: list[int],
    ascii_only: bool,
) -> None:
    inner = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
    told, decoder = decoded(f'{start}{inner}","more":"x"}}', cuts)
    assert decoder.begun
    assert told == decoder.text
    assert joined(told) == joined(text)


@given(st.text(st.sampled_from('a"\\ud83xn'), max_size=20))
def test_rubbish_means_the_same_whole_and_bytewise(text: str) -> None:
    arguments = f'{{"input":"{text}'
    told, decoder = decoded(arguments, [])
    assert decoded(arguments, list(range(99)))[0] == told == decoder.text


@pytest.mark.parametrize("arguments", ['{"patch":"x"}', '{"a":1,"input":"x"}', "x", ""])
def test_other_arguments_are_not_taken(arguments: str) -> None:
    told, decoder = decoded(arguments, [2, 5])
    assert (told, decoder.begun) == ("", False)


def test_escapes_that_json_does_not_know_stand_for_themselves() -> None:
    assert decoded(r'{"input":"a\d\x\u12g"}', [])[0] == r"a\d\x\u12g"


def test_a_custom_call_is_live() -> None:
    parts = ['{"inp', 'ut":"*** Be', "gin\\n", '+é"', "}"]
    first = {"index": 0, "id": "c1", "function": {"name": "patch", "arguments": ""}}
    deltas = [first, *({"index": 0, "function": {"arguments": part}} for part in parts)]
    chunks = [chat_chunk({"tool_calls": [delta]}) for delta in deltas]
    asked = {"model": "m", "input": "hi", "tools": [{"type": "custom", "name": "patch"}]}
    events = read(CHAT, sse(*chunks, chat_chunk({}, reason="stop"), "[DONE]"), asked)
    kind = "response.custom_tool_call_input.delta"
    assert [e["delta"] for e in events if e["type"] == kind] == ["*** Be", "gin\n", "+é"]
    assert outcome(events)[1][0]["input"] == "*** Begin\n+é"
