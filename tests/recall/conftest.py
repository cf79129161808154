"""Memories to test with: on disk, and without a file."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from recall.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "memory.db"


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, path: Path) -> Iterator[Store]:
    """A memory of each kind; afterwards none of its threads is left."""
    with Store.open(path if request.param == "file" else None) as store:
        yield store
    assert not [each for each in threading.enumerate() if each.name.startswith("memory-")]
