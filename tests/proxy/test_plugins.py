"""Loading plugins: every shape, and everything that can be wrong with one."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.plugins import Hook, Plugins, ProblemCode, load_plugins

if TYPE_CHECKING:
    from pathlib import Path

TOOL = (
    "async def run(arguments, context): return 'ran'\n"
    "TOOLS = [{'name': 'mine', 'description': 'Mine.', 'parameters': {'type': 'object'},\n"
    "          'handler': run}]\n"
)


MUTE = "class Mute(Exception):\n def __str__(self): raise RuntimeError('mute')\n"
RAISES = "(self, *_): raise RuntimeError('unreadable')\n"
UNREADABLE = [
    "name = 'p'\ntools = []\ndef __getattr__(self): raise ImportError('no')",
    "name = 'p'\ntools = []\ndef __getattr__(self): raise GeneratorExit",
    f"name = 'p'\nclass T(list):\n def __iter__{RAISES}tools = T([1])",
    f"name = 'p'\nclass T(dict):\n def items{RAISES}hooks = T(run_end=print)",
    f"name = 'p'\nclass T:\n def __str__{RAISES}hooks = {{T(): print}}",
    f"class default:\n def __getattr__{RAISES}default = default()",
    f"class T(dict):\n def get{RAISES}default = T(name='p', tools=[])",
]
"""Modules that raise while they are read."""


def load(folder: Path, *texts: str, reserved: tuple[str, ...] = ("recall",)) -> Plugins:
    for number, text in enumerate(texts):
        (folder / f"p{number}.py").write_text(text)
    entries = [f"./p{number}.py" for number in range(len(texts))]
    return load_plugins(entries, folder, reserved=reserved)


def codes(plugins: Plugins) -> list[str]:
    return [problem.code.value for problem in plugins.problems]


@pytest.mark.parametrize(
    "text",
    [
        "default = {'name': 'p', 'tools': TOOLS}",
        "plugin = {'name': 'p', 'tools': TOOLS}",
        "name = 'p'\ntools = TOOLS",
        "class default:\n    name = 'p'\n    tools = tuple(TOOLS)",
        "default = {'name': 'only a name'}\nplugin = {'name': 'p', 'tools': TOOLS}",
        "default = 5\nplugin = None\nname = ' p '\ntools = TOOLS",
    ],
    ids=["default", "plugin", "module", "an object", "the next that is one", "not taken"],
)
def test_the_three_shapes(tmp_path: Path, text: str) -> None:
    plugins = load(tmp_path, TOOL + text)
    assert plugins.problems == ()
    assert plugins.names == ("p",)
    (tool,) = plugins.tools
    assert json.loads(tool.declaration) == {
        "type": "function",
        "name": "mine",
        "description": "Mine.",
        "strict": False,
        "parameters": {"type": "object"},
    }
    assert not tool.early


def test_default_comes_before_plugin_before_the_module(tmp_path: Path) -> None:
    three = "default = {'name': 'a', 'tools': []}\nplugin = {'name': 'b', 'tools': []}\n"
    plugins = load(tmp_path, f"{three}name = 'c'\nhooks = {{}}")
    assert plugins.names == ("a",)


def test_order_is_that_of_the_entries_and_empty_ones_are_skipped(tmp_path: Path) -> None:
    for letter in "ba":
        (tmp_path / f"{letter}.py").write_text(f"name = '{letter}'\ntools = []")
    entries = ["", "b.py", "  ", str(tmp_path / "a.py")]
    assert load_plugins(entries, tmp_path).names == ("b", "a")


def test_a_package_is_a_module_too(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "words.py").write_text("NAME = 'packed'")
    (tmp_path / "pack" / "__init__.py").write_text(
        "from .words import NAME as name\nfrom dataclasses import dataclass\ntools = []\n"
        "@dataclass\nclass Some:\n    one: 'int | None' = None\n"
    )
    assert load_plugins(["pack"], tmp_path).names == ("packed",)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, ProblemCode.NOT_A_MODULE),
        ("raise RuntimeError('broken at\\nimport')", ProblemCode.IMPORT_FAILED),
        ("raise SystemExit(3)", ProblemCode.IMPORT_FAILED),
        ("raise GeneratorExit", ProblemCode.IMPORT_FAILED),
        ("import asyncio\nraise asyncio.CancelledError", ProblemCode.IMPORT_FAILED),
        ("raise BaseException", ProblemCode.IMPORT_FAILED),
        (f"{MUTE}raise Mute", ProblemCode.IMPORT_FAILED),
        (f"{MUTE.replace('RuntimeError', 'SystemExit')}raise Mute", ProblemCode.IMPORT_FAILED),
        ("raise StopIteration", ProblemCode.IMPORT_FAILED),
        ("def f(): f()\nf()", ProblemCode.IMPORT_FAILED),
        ("def (", ProblemCode.IMPORT_FAILED),
        ("import no_such_module_anywhere", ProblemCode.IMPORT_FAILED),
        ("", ProblemCode.NO_EXPORT),
        ("name = 'p'", ProblemCode.NO_EXPORT),
        ("tools = []", ProblemCode.NO_EXPORT),
        ("name = ''\ntools = []", ProblemCode.NO_EXPORT),
        ("name = 'p'\ntools = 'mine'", ProblemCode.NO_EXPORT),
        *((text, ProblemCode.NO_EXPORT) for text in UNREADABLE),
        ("name = 'first'\ntools = []", ProblemCode.DUPLICATE_NAME),
    ],
)
def test_what_is_wrong_is_data_and_stops_nothing(
    tmp_path: Path, text: str | None, code: ProblemCode
) -> None:
    before = set(sys.modules)
    (tmp_path / "first.py").write_text("name = 'first'\nhooks = {}")
    (tmp_path / "last.py").write_text("name = 'last'\nhooks = {}")
    if text is not None:
        (tmp_path / "bad.py").write_text(text)
    plugins = load_plugins(["first.py", "bad.py", "last.py"], tmp_path)
    assert plugins.names == ("first", "last")
    (problem,) = plugins.problems
    assert (problem.entry, problem.code) == ("bad.py", code)
    assert problem.reason
    assert "\n" not in problem.reason
    if code is ProblemCode.IMPORT_FAILED:
        assert not [name for name in set(sys.modules) - before if name.endswith("_bad")]


@pytest.mark.parametrize("entry", ["none.py", "text.txt", "folder", "nul\0.py", "x" * 5000])
def test_an_entry_that_is_no_module(tmp_path: Path, entry: str) -> None:
    (tmp_path / "text.txt").write_text("name = 'p'\ntools = []")
    (tmp_path / "folder").mkdir()
    assert codes(load_plugins([entry], tmp_path)) == ["plugin_entry_not_a_module"]


def test_the_codes() -> None:
    assert ProblemCode.NOT_A_MODULE == "plugin_entry_not_a_module"
    assert ProblemCode.DUPLICATE_NAME == "duplicate_plugin_name"


def test_a_tool_can_not_shadow_another(tmp_path: Path) -> None:
    ours = TOOL.replace("mine", "recall") + "name = 'a'\ntools = TOOLS"
    plugins = load(
        tmp_path, ours, f"{TOOL}name = 'b'\ntools = TOOLS", f"{TOOL}name = 'c'\ntools = TOOLS"
    )
    assert plugins.names == ("a", "b", "c")
    assert [each.plugin for each in plugins.handlers.values()] == ["b"]
    assert codes(plugins) == ["plugin_tool_shadows", "plugin_tool_shadows"]


BOTTOMLESS = (
    "own = {}\nown['a'] = own\ndeep = {}\nfor _ in range(100_000): deep = {'a': deep}\n"
    f"class Unreadable:\n def __getattr__{RAISES}"
)


@pytest.mark.parametrize(
    "tool",
    [
        "{}",
        "5",
        "{'name': 'has spaces', 'handler': run}",
        "{'name': 'x' * 65, 'handler': run}",
        "{'name': 'mine'}",
        "{'name': 'mine', 'handler': 'run'}",
        "{'name': 'mine', 'handler': run, 'parameters': 5}",
        "{'name': 'mine', 'handler': run, 'parameters': {'type': run}}",
        "{'name': 'mine', 'handler': run, 'parameters': [('type', 'object')]}",
        "{'name': 'mine', 'handler': run, 'parameters': {1: 'object'}}",
        "{'name': 'mine', 'handler': run, 'parameters': own}",
        "{'name': 'mine', 'handler': run, 'parameters': {'properties': {'a': own}}}",
        "{'name': 'mine', 'handler': run, 'parameters': deep}",
        "{'name': 'mine', 'handler': run, 'parameters': {'enum': list(range(100_000))}}",
        "{'name': 'mine', 'handler': run, 'description': 'x' * 100_000}",
        "Unreadable()",
    ],
)
def test_a_tool_that_is_none_is_left_out_alone(tmp_path: Path, tool: str) -> None:
    plugins = load(tmp_path, f"{TOOL}{BOTTOMLESS}name = 'p'\ntools = [{tool}, *TOOLS]")
    assert codes(plugins) == ["plugin_tool_invalid"]
    assert list(plugins.handlers) == ["mine"]


def test_hooks_of_a_mapping_and_of_an_object(tmp_path: Path) -> None:
    mapping = "name = 'a'\nhooks = {'run_start': print, 'run_stop': print, 'run_end': 5}"
    thing = "class hooks:\n    def run_end(*_): ...\nname = 'b'"
    plugins = load(tmp_path, mapping, thing)
    assert [(each.plugin, each.hook) for each in plugins.hooks] == [
        ("a", Hook.RUN_START),
        ("b", Hook.RUN_END),
    ]
    assert codes(plugins) == ["plugin_hook_invalid", "plugin_hook_invalid"]


def test_an_interrupt_ends_the_start(tmp_path: Path) -> None:
    before = set(sys.modules)
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path, "raise KeyboardInterrupt")
    assert not [name for name in set(sys.modules) - before if name.endswith("_p0")]


def test_texts_with_methods_of_their_own_are_plain_texts(tmp_path: Path) -> None:
    text = f"class T(str):\n __hash__ = str.__hash__\n def __eq__{RAISES} def strip{RAISES}"
    tool = "{'name': T('mine'), 'description': T('Mine.'), 'handler': run}"
    plugins = load(tmp_path, f"{TOOL}{text}name = T('p')\ntools = [{tool}]")
    assert plugins.problems == ()
    assert type(plugins.names[0]) is str
    assert list(plugins.handlers) == ["mine"]


NAMES = st.sampled_from(["default", "plugin", "name", "tools", "hooks"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just(print),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | st.sampled_from([*Hook, "handler", "parameters"]), inner)
    ),
    max_leaves=12,
)


@given(st.dictionaries(NAMES, VALUES))
def test_no_module_stops_the_start(tmp_path_factory: Any, members: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "p.py").write_text("import builtins\nglobals().update(builtins.plugin_under_test)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.plugin_under_test", members, raising=False)
        plugins = load_plugins(["p.py"], folder)
    assert bool(plugins.names) != any(
        problem.code in (ProblemCode.NO_EXPORT, ProblemCode.IMPORT_FAILED)
        for problem in plugins.problems
    )
