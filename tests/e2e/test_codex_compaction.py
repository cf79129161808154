"""The real Codex CLI with its built-in provider compacts over upstreams that can't, and goes on.

The CLI believes that it talks to OpenAI, so it asks for a remote compaction: the same request as
for a turn, with a ``compaction_trigger`` behind the history. It then sends what it kept of the
history, with the compaction that it was given, in every request.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.compaction import PROMPT
from pipeline.sealing import SEALED
from tests.builders import message
from tests.dialects import DIALECTS, Dialect, each_dialect, usage
from tests.e2e.test_codex import CLASSIC, LAYOUTS, Codex
from tests.e2e.test_codex_providers import tool_call
from tests.e2e.test_providers import KEYS, says

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import StartLab

pytestmark = pytest.mark.codex

SUMMARY: Final = "The harbour master wants the tool run, and it was."
WINDOW: Final = {
    "context_window": 20_000,
    "max_context_window": 20_000,
    "auto_compact_token_limit": 15_000,
}
FULL: Final = usage(15_900, 100)
FEW: Final = usage(900, 100)


@pytest.fixture
def codex(start_lab: StartLab, tmp_path: Path, dialect: Dialect) -> Codex:
    home = tmp_path / "codex"
    home.mkdir()
    return Codex(start_lab(kind=dialect.kind, environment=KEYS), home)


def heard(codex: Codex, dialect: Dialect, number: int) -> str:
    """Return what a request said to the model, without what only describes the client."""
    return json.dumps(dialect.heard(codex.lab.seen(number).json()).turns)


@each_dialect
@LAYOUTS
def test_it_compacts_and_goes_on(codex: Codex, dialect: Dialect, model: str) -> None:
    codex.configure(model, built_in=True, **WINDOW)
    provider = codex.lab.provider
    provider.script(
        [
            says(dialect, message("Let me see."), tool_call(model), usage=FULL, identity="one"),
            says(dialect, message(SUMMARY), usage=FULL, identity="two"),
            says(dialect, message("The tool said 42."), usage=FEW, identity="three"),
            says(dialect, message("Farewell."), usage=FEW, identity="four"),
        ]
    )
    assert codex.says("Run the tool.") == "The tool said 42."
    assert codex.says("Goodbye.", resume=True) == "Farewell."
    assert len(provider.requests) == 4
    first = json.dumps(PROMPT.splitlines()[0])[1:-1]
    asked = heard(codex, dialect, 1)
    assert first in asked
    assert "tool-42" in asked
    for number in (2, 3):
        told = heard(codex, dialect, number)
        assert told.count(SUMMARY) == 1
        assert first not in told
        assert "tool-42" not in told
    assert "The tool said 42." in heard(codex, dialect, 3)
    kept = [path.read_text() for path in (codex.home / "sessions").rglob("*.jsonl")]
    assert any(SEALED in text for text in kept)
    assert not any(SUMMARY in text for text in kept)
    assert codex.lab.proxy.metric("compactions_total", reason="asked", result="ok") == 1


@pytest.mark.parametrize("dialect", DIALECTS[:1], ids=["openai_compat"])
def test_it_compacts_more_than_once(codex: Codex, dialect: Dialect) -> None:
    codex.configure(CLASSIC, built_in=True, **WINDOW)
    provider = codex.lab.provider
    provider.script(
        [
            says(dialect, tool_call(CLASSIC), usage=FULL, identity="one"),
            says(dialect, message("summary-1"), usage=FULL, identity="two"),
            says(dialect, message("One."), usage=FULL, identity="three"),
            says(dialect, message("summary-2"), usage=FULL, identity="four"),
            says(dialect, message("Two."), usage=FEW, identity="five"),
        ]
    )
    assert codex.says("Run the tool.") == "One."
    assert codex.says("And again.", resume=True) == "Two."
    again, last = heard(codex, dialect, 3), heard(codex, dialect, 4)
    assert "summary-1" in again
    assert "summary-2" in last
    assert "summary-1" not in last
