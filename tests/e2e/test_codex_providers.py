"""The real Codex CLI over upstreams that don't speak Responses: a tool's round trip over each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests import builders
from tests.builders import function_call, message, reasoning, recall_call
from tests.dialects import Dialect, each_dialect
from tests.e2e.test_codex import CLASSIC, LAYOUTS, Codex
from tests.e2e.test_providers import KEYS, says

if TYPE_CHECKING:
    from pathlib import Path

    from tests.builders import Item
    from tests.e2e.conftest import StartLab

pytestmark = pytest.mark.codex

HIDDEN = recall_call("call_hidden", {"query": "canary"})


@pytest.fixture
def codex(start_lab: StartLab, tmp_path: Path, dialect: Dialect) -> Codex:
    home = tmp_path / "codex"
    home.mkdir()
    return Codex(start_lab(kind=dialect.kind, environment=KEYS), home)


def tool_call(model: str) -> Item:
    """Return a call of the shell as an upstream of functions makes it."""
    if model == CLASSIC:
        return function_call("call_tool_1", "exec_command", {"cmd": "echo tool-$((40+2))"})
    return function_call("call_tool_1", "functions__exec", {"input": 'text("tool-" + (40 + 2));'})


@each_dialect
@LAYOUTS
def test_a_tool_and_a_recall(codex: Codex, dialect: Dialect, model: str) -> None:
    codex.configure(model)
    provider = codex.lab.provider
    provider.script(
        [
            says(dialect, reasoning("Look it up."), HIDDEN, identity="one"),
            says(dialect, message("Let me see."), tool_call(model), identity="two"),
            says(dialect, message("The tool said 42."), identity="three"),
        ]
    )
    assert codex.says("What does the tool say?") == "The tool said 42."
    heard = [dialect.heard(request.json()) for request in provider.requests]
    assert len(heard) == 3
    *_, called, results = heard[-1].turns
    assert called[1] == "Let me see."
    assert [name for name, _ in called[3]] == [tool_call(model)["name"]]
    assert "tool-42" in results[1][0][1]
    hidden = next(turn for turn in heard[-1].turns if turn[0] == "assistant")
    assert hidden[2:] == ("Look it up.", [("recall", {"query": "canary"})])
    assert heard[-1].turns[: len(heard[1].turns)] == heard[1].turns
    assert "recall" in heard[0].tools
    assert heard[0].system


@each_dialect
def test_a_session_goes_on(codex: Codex, dialect: Dialect) -> None:
    codex.configure(CLASSIC)
    provider = codex.lab.provider
    provider.script([says(dialect, HIDDEN, identity="one"), says(dialect, message("Pip."))])
    assert codex.says("Who is it?") == "Pip."
    provider.script([says(dialect, message("Welcome."), identity="three")])
    assert codex.says("Thanks.", resume=True) == "Welcome."
    before, after = (dialect.heard(r.json()).turns for r in provider.requests[-2:])
    assert [turn for turn in after if turn[0] != "user"][:2] == [
        turn for turn in before if turn[0] != "user"
    ]
    assert json.dumps(after).count('"recall"') == json.dumps(before).count('"recall"')
    assert builders.compact(after[-1]).count("Thanks.") == 1
