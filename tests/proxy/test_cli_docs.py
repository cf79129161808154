from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.cli_docs import PARTS, main, renewed
from proxy.config import SCHEMA
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["cli", "configuration", "architecture"])
def test_a_page_says_what_the_code_says(name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert "<!-- generated: " in page
    assert renewed(page) == page, "run `python -m proxy.cli_docs docs`"


def test_the_map_has_every_module_and_a_purpose_for_each() -> None:
    rows = PARTS["modules"]().splitlines()
    for package in ("proxy", "pipeline", "recall", "telemetry"):
        for file in (ROOT / package).rglob("*.py"):
            wanted = (
                f"| `{file.name}` | " if file.stem != "__init__" else f"{file.parent.name}/`** "
            )
            assert any(wanted in row and not row.endswith("|  |") for row in rows), file


def test_the_reference_has_every_key() -> None:
    reference = PARTS["keys"]()
    for path, field in SCHEMA.fields.items():
        assert f"| `{path[-1]}` |" in reference
        assert str(field.description) in reference


def test_the_reference_depends_on_no_machine() -> None:
    assert "/home" not in PARTS["keys"]()
    assert "/root" not in PARTS["keys"]()


def test_checking_tells_and_writing_mends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- generated: help -->\nold\n<!-- end of generated -->\nafter\n")
    assert main([str(tmp_path), "--check"]) == 1
    assert "page.md is out of date" in capsys.readouterr().err
    assert "old" in page.read_text()
    assert main([str(tmp_path)]) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "Usage: sottovoce serve" in text
    assert main([str(tmp_path), "--check"]) == 0
