"""Tools as plain functions, and back."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.providers.base import LeftOut
from proxy.providers.replay import is_ours, unwrap, wrap
from proxy.providers.tools import Toolbox, ToolKind, input_of, object_of, read_tools
from tests import builders
from tests.builders import compact

NAMES = st.text(st.sampled_from("ab_-. é"), min_size=1, max_size=80)
FUNCTION = builders.CLIENT_TOOL


def toolbox(*tools: object, **body: object) -> Toolbox:
    return read_tools({"tools": list(tools), **body}, Counter())


def named(name: str, **members: object) -> dict[str, Any]:
    return FUNCTION | {"name": name} | members


def space(name: str, *tools: object) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": "d", "tools": list(tools)}


# --------------------------------------------------------------------------------------- names


@given(st.lists(st.tuples(st.none() | NAMES, NAMES), max_size=8))
def test_names_are_legal_unique_and_lead_back(places: list[tuple[str | None, str]]) -> None:
    tools = [named(n) if s is None else space(s, named(n)) for s, n in places]
    box = toolbox(*tools)
    assert len(box.tools) == len(set(places))
    flats = [tool.flat for tool in box.tools]
    assert len(set(flats)) == len(flats)
    for tool in box.tools:
        assert re.fullmatch("[A-Za-z0-9_-]{1,64}", tool.flat)
        assert box.meant_by(tool.flat) is tool
        assert box.flat_name(tool.name, tool.namespace) == tool.flat
    assert [tool.flat for tool in toolbox(*tools).tools] == flats


def test_names_are_joined() -> None:
    box = toolbox(space("git", named("log")), space("mcp__hub__", named("find")), named("plain"))
    assert [tool.flat for tool in box.tools] == ["git__log", "mcp__hub__find", "plain"]


def test_a_name_that_is_taken_gets_a_digest() -> None:
    one, other = toolbox(named("git__log"), space("git", named("log"))).tools
    assert one.flat == "git__log"
    assert re.fullmatch("git__log_[0-9a-f]{8}", other.flat)


def test_names_of_a_history() -> None:
    box = toolbox(space("git", named("log")), named("shell"))
    assert box.flat_name("shell", "functions") == "shell"  # as lite models call it
    assert box.flat_name("log") == "git__log"
    assert box.flat_name("gone", "git") == "git__gone"
    assert box.flat_name("gone") == "gone"
    assert box.flat_name("shell", "shell") == "shell"


# -------------------------------------------------------------------------------- declarations


def test_tools_of_every_layout_each_once() -> None:
    layout = {"type": "additional_tools", "tools": [named("b"), named("a")]}
    found = {"type": "tool_search_output", "tools": [space("n", named("c"))]}
    box = toolbox(named("a"), input=[layout, {"role": "user"}, 7, found])
    assert [tool.flat for tool in box.tools] == ["a", "b", "n__c"]


def test_the_layout_of_chat_completions_is_read_too() -> None:
    function = {key: FUNCTION[key] for key in ("name", "description", "parameters")}
    [tool] = toolbox({"type": "function", "function": function}).tools
    assert (tool.flat, tool.parameters) == ("shell", FUNCTION["parameters"])


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
    [tool] = toolbox({"type": "custom", "name": "p", "description": "Do.", "format": grammar}).tools
    assert tool.kind is ToolKind.CUSTOM
    assert tool.parameters is not None
    assert tool.parameters["properties"] == {"input": {"type": "string"}}
    assert tool.description.startswith("Do.\n\n")
    assert tool.description.endswith("lark grammar:\nstart: /x/")


@pytest.mark.parametrize("parameters", [None, {}, 7])
def test_no_parameters_are_an_empty_object(parameters: object) -> None:
    [tool] = toolbox(named("a", parameters=parameters)).tools
    assert tool.parameters == {"type": "object", "properties": {}}


def test_a_schema_without_a_type_is_an_objects() -> None:
    [tool] = toolbox(named("a", parameters={"properties": {}})).tools
    assert tool.parameters == {"type": "object", "properties": {}}


def test_what_only_its_provider_can_run_is_counted() -> None:
    left_out: Counter[LeftOut] = Counter()
    hosted = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "function"}, {}]
    assert read_tools({"tools": [*hosted, 7, "x"]}, left_out).tools == ()
    assert left_out == {LeftOut.HOSTED_TOOL: 4}


# ----------------------------------------------------------------------------------- arguments


@given(st.text(max_size=30))
def test_the_input_of_a_custom_tool_comes_back(text: str) -> None:
    assert input_of(compact({"input": text})) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"patch": "x"}', "x"),
        ('"x"', "x"),
        ("{}", ""),
        ('{"a": 1}', '{"a": 1}'),
        ('{"input": 7}', '{"input": 7}'),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"input": "cut', '{"input": "cut'),
    ],
)
def test_the_input_of_a_custom_tool_however_it_is_written(arguments: str, text: str) -> None:
    assert input_of(arguments) == text


def test_arguments_as_objects() -> None:
    assert object_of("") == object_of("  ") == object_of("{}") == {}
    assert object_of('{"a": 1}') == {"a": 1}
    for other in ("[]", "null", '"a"', "{", '{"a": NaN}'):
        assert object_of(other) is None


# -------------------------------------------------------------------------------------- replay


@given(st.dictionaries(st.text(), st.text() | st.integers(0, 9) | st.none()))
def test_what_is_kept_for_an_upstream_comes_back(value: dict[str, Any]) -> None:
    text = wrap("anthropic", value)
    assert text.isascii()
    assert is_ours(text)
    assert unwrap("anthropic", text) == value
    assert unwrap("ollama", text) is None


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "gAAAA",
        "sottovoce.1.anthropic.",
        "sottovoce.1.anthropic.!!!",
        "sottovoce.1.anthropic.W10=",
        "sottovoce.2.anthropic.e30=",
    ],
)
def test_what_is_not_of_this_form_is_nothing(text: object) -> None:
    assert unwrap("anthropic", text) is None
