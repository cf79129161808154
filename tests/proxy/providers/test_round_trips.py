"""A Responses request in another dialect is understood as it was meant, whatever it holds."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.reader import StreamMode
from proxy.providers.replay import wrap
from tests import builders, strategies
from tests.builders import custom_call, function_call, message, output, user
from tests.dialects import ANTHROPIC, DIALECTS, Dialect
from tests.proxy.providers.reading import encoded, outcome, read

if TYPE_CHECKING:
    from tests.builders import Item

SCHEMA = builders.CLIENT_TOOL["parameters"]
ONE_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
TOOLS = {
    "shell": {"type": "function", "name": "shell", "parameters": SCHEMA},
    "patch": {"type": "custom", "name": "patch", "description": "Patch."},
    "git__log": {
        "type": "namespace",
        "name": "git",
        "tools": [{"type": "function", "name": "log", "parameters": SCHEMA}],
    },
}
SCHEMAS = {"shell": SCHEMA, "patch": ONE_INPUT, "git__log": SCHEMA}

texts = strategies.texts
values = st.dictionaries(texts, texts | st.integers(0, 9) | st.none(), max_size=2)


@dataclass(slots=True)
class Meant:
    """A request, and what it means."""

    items: list[Item] = field(default_factory=list)
    system: list[str] = field(default_factory=list)
    turns: list[tuple[Any, ...]] = field(default_factory=list)


@st.composite
def conversations(draw: st.DrawFn, kind: str) -> Meant:
    """Draw a conversation: what users, developers, models and tools said, in any order."""
    meant = Meant()
    ids = (f"call_{number}" for number in itertools.count())
    for _ in range(draw(st.integers(1, 4))):
        match draw(st.sampled_from(["system", "user", "hop", "hop"])):
            case "system":
                role, text = draw(st.sampled_from(["system", "developer"])), draw(texts)
                meant.system.append(text)
                meant.items.append({"role": role, "content": text})
            case "user":
                text = draw(texts)
                meant.turns.append(("user", [text]))
                meant.items.append(user(text))
            case _:
                _add_hop(draw, meant, kind, ids)
    return meant


def _add_hop(draw: st.DrawFn, meant: Meant, kind: str, ids: Any) -> None:
    if meant.turns and meant.turns[-1][0] == "assistant":
        return  # nobody answers himself
    thought, text = draw(st.just("") | texts), draw(st.just("") | texts)
    asked: list[tuple[str, Any]] = []
    answers: list[tuple[str, Item, str]] = []
    if thought:
        meant.items.append(_thought(kind, thought))
    if text:
        meant.items.append(message(text))
    for _ in range(draw(st.integers(0 if text else 1, 3))):
        item, name, arguments = draw(_calls(next(ids)))
        told = draw(texts)
        meant.items.append(item)
        asked.append((name, arguments))
        kind_of_output = item["type"] + "_output"
        answers.append((name, output(item["call_id"], told) | {"type": kind_of_output}, told))
    meant.turns.append(("assistant", text, thought, asked))
    if not answers:
        return
    ordered = draw(st.permutations(answers))
    meant.items += [item for _, item, _ in ordered]
    # Where results are told by their place alone they have to be in the order of the calls.
    shown = answers if kind == "ollama" else ordered
    meant.turns.append(("results", [(name, told) for name, _, told in shown]))


@st.composite
def _calls(draw: st.DrawFn, call_id: str) -> tuple[Item, str, Any]:
    match draw(st.sampled_from(["shell", "patch", "log"])):
        case "patch":
            text = draw(texts)
            return custom_call(call_id, "patch", text), "patch", {"input": text}
        case "log":
            value = draw(values)
            item = function_call(call_id, "log", value) | {"namespace": "git"}
            return item, "git__log", value
        case name:
            value = draw(values)
            return function_call(call_id, name, value), name, value


def _thought(kind: str, text: str) -> Item:
    replay = {
        "openai_compat": {"reasoning_content": text},
        "anthropic": {"type": "thinking", "thinking": text, "signature": "sig"},
        "ollama": {"thinking": text},
    }[kind]
    return builders.reasoning("a summary", encrypted=wrap(kind, replay))


def _merged(turns: list[tuple[Any, ...]], dialect: Dialect) -> list[tuple[Any, ...]]:
    """Join users' turns in a row, which are one message to Anthropic."""
    merged: list[tuple[Any, ...]] = []
    for turn in turns:
        if dialect is ANTHROPIC and turn[0] == "user" and merged and merged[-1][0] == "user":
            merged[-1] = ("user", merged[-1][1] + turn[1])
        else:
            merged.append(turn)
    return merged


@given(
    data=st.data(),
    dialect=st.sampled_from(DIALECTS),
    instructed=st.booleans(),
    mode=st.sampled_from(StreamMode),
)
def test_a_conversation_is_understood_the_same(
    data: st.DataObject,
    dialect: Dialect,
    mode: StreamMode,
    *,
    instructed: bool,
) -> None:
    meant = data.draw(conversations(dialect.kind))
    request = builders.request(
        *meant.items,
        instructions="Be brief." if instructed else None,
        tools=list(TOOLS.values()),
    )
    if not meant.turns:
        request["input"].append(user("x"))
        meant.turns.append(("user", ["x"]))
    heard = dialect.heard(encoded(dialect, request, mode))
    assert heard.system == "\n".join(["Be brief."] * instructed + meant.system)
    assert heard.tools == SCHEMAS
    assert heard.turns == _merged(meant.turns, dialect)


@given(st.data(), st.sampled_from(DIALECTS))
def test_what_is_added_at_the_end_leaves_the_start_as_it_was(
    data: st.DataObject, dialect: Dialect
) -> None:
    """The provider's prompt cache lives off it."""
    meant = data.draw(conversations(dialect.kind))
    before = [user("first"), *meant.items, user("last")]
    call = function_call("call_x", "shell", {"command": "ls"})
    after = [*before, message("on it"), call, output("call_x", "a file")]
    short, long = (
        encoded(dialect, builders.request(*items))["messages"] for items in (before, after)
    )
    unmarked = json.loads(json.dumps(short).replace(', "cache_control": {"type": "ephemeral"}', ""))
    assert long[: len(short)] == unmarked
    assert len(long) == len(short) + 2


@given(st.data(), st.sampled_from(DIALECTS))
def test_the_lite_layout_says_the_same(data: st.DataObject, dialect: Dialect) -> None:
    meant = data.draw(conversations(dialect.kind))
    classic = builders.request(user("x"), *meant.items, tools=list(TOOLS.values()))
    layout = {"type": "additional_tools", "role": "developer", "tools": list(TOOLS.values())}
    lite = builders.request(layout, user("x"), *meant.items, tools=None)
    assert encoded(dialect, lite) == encoded(dialect, classic)


@given(st.data(), st.sampled_from(DIALECTS))
def test_an_answer_goes_back_as_it_came(data: st.DataObject, dialect: Dialect) -> None:
    """What a provider reads it also writes: the output of a hop is the input of the next one."""

    thought, text = data.draw(texts), data.draw(texts)
    call = function_call("toolu_1", "shell", data.draw(values))
    body = dialect.stream(builders.reasoning(thought), message(text), call)
    items = outcome(read(dialect, body))[1]
    answer = output(items[2]["call_id"], "done")
    heard = dialect.heard(encoded(dialect, builders.request(user("x"), *items, answer)))
    asked = [("shell", json.loads(call["arguments"]))]
    assert heard.turns[1:] == [
        ("assistant", text, thought, asked),
        ("results", [("shell", "done")]),
    ]
