"""JSON values, and texts that spell them in every odd way that is still JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from pipeline.jsontext import dumps

if TYPE_CHECKING:
    from random import Random

    from pipeline.jsonspans import Json

TRICKY = 'a{}[]",:\\/ \n\té🙂\ud83d'
"""Characters that look like structure, need an escape, or can't be encoded."""

strings = st.text(st.sampled_from(TRICKY), max_size=6) | st.text(max_size=6)
keys = st.sampled_from(["a", "b", "tools", "", ":", ' "', ",\\"]) | strings
numbers = (
    st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0, -0.0, 1.0, 1e16, 10**700])
)
scalars = st.none() | st.booleans() | numbers | strings
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(keys, values, max_size=5)


_names = (
    st.sampled_from(["type", "role", "id", "call_id", "name", "content", "status", "function"])
    | st.sampled_from(["input", "tools", "tool_choice", "mode", "include", "store"])
    | st.sampled_from(["conversation", "encrypted_content"])
)
_words = (
    st.sampled_from(["message", "reasoning", "function_call", "function_call_output"])
    | st.sampled_from(["function", "namespace", "additional_tools", "allowed_tools"])
    | st.sampled_from(["user", "recall", "auto", "msg_1", "compaction_trigger"])
)
hostile = st.recursive(
    _words | scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=5),
    max_leaves=15,
)
"""Values with the names that we read, and anything under them."""
hostile_objects = st.dictionaries(_names, hostile, max_size=6)


def spell(value: Json, random: Random) -> str:
    """Spell a value with random spacing, escapes, number forms and duplicate keys."""
    blank = random.choice(("", " ", "\n\t"))
    if isinstance(value, dict):
        members = [
            f"{spell(key, random)}{blank}:{_pad(item, random)}" for key, item in value.items()
        ]
        for key in list(value)[: random.randrange(3)]:  # what comes earlier doesn't count
            earlier = random.choice((value[key], None, {"tools": [1]}, '"'))
            members.insert(0, f"{spell(key, random)}:{_pad(earlier, random)}")
        return "{" + blank + ",".join(members) + blank + "}"
    if isinstance(value, list):
        return "[" + blank + ",".join(_pad(item, random) for item in value) + "]"
    if isinstance(value, str):
        return '"' + "".join(_character(each, random) for each in value) + '"'
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return f"{value:.1f}" + random.choice(("", "0", "e0", "00E+0"))
    return json.dumps(value)


def _pad(value: Json, random: Random) -> str:
    return random.choice(("", " ", "\r\n")) + spell(value, random) + random.choice(("", "", "  "))


def _character(character: str, random: Random) -> str:
    escaped = json.dumps(character)[1:-1]
    if ord(character) < 0x10000 and random.randrange(4) == 0:
        return f"\\u{ord(character):04x}"
    if character == "/":
        return random.choice(("/", "\\/"))
    return escaped if random.randrange(2) or not character.isprintable() else _bare(character)


def _bare(character: str) -> str:
    return json.dumps(character, ensure_ascii=False)[1:-1]


@st.composite
def texts(draw: st.DrawFn, source: st.SearchStrategy[Json] = values) -> bytes:
    """Draw a JSON text: as orjson and JSON.stringify write it, as Python does, or oddly."""
    value = draw(source)
    match draw(st.sampled_from(("compact", "spaced", "odd"))):
        case "compact":
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        case "spaced":
            text = json.dumps(value)
        case _:
            blank = draw(st.sampled_from(("", " ", "\n" * 70)))
            text = blank + spell(value, draw(st.randoms(use_true_random=False))) + blank
    return text.encode("utf-8", "surrogatepass")


def subsequence(part: bytes, whole: bytes) -> bool:
    """Tell whether a text is the other one with something taken out."""
    rest = iter(whole)
    return all(byte in rest for byte in part)


def call_output(call_id: str, text: str) -> bytes:
    """Return the item that answers a hidden call."""
    return dumps({"type": "function_call_output", "call_id": call_id, "output": text})
