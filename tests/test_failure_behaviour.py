"""The table of failures says nothing that no test proves: every row names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "failure-behaviour.md"
_LINK = re.compile(r"`([\w/]*(?:\.py)?)::(\w+)`")


def rows() -> Iterator[str]:
    """Return the rows of all tables, without their heads."""
    lines = PAGE.read_text().splitlines()
    for number, line in enumerate(lines):
        head = number + 1 < len(lines) and lines[number + 1].startswith("| ---")
        if line.startswith("|") and not line.startswith("| ---") and not head:
            yield line


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row.split("|")[1].strip())
def test_every_row_names_its_tests(row: str) -> None:
    links = _LINK.findall(row.split("|")[-2])
    assert links, "the row names no test"
    path = ""
    for named, test in links:
        path = named or path
        assert test in names_in(path), f"{path} has no {test}"
        assert test.lower().startswith("test")
