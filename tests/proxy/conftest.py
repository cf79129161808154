"""Fixtures of this folder."""

from __future__ import annotations

import pytest

from tests.proxy import transports


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what is marked with ``both_loops`` on asyncio's own loop and on uvloop."""
    marked = metafunc.definition.get_closest_marker("both_loops")
    if marked and "anyio_backend" in metafunc.fixturenames:
        loops = [("asyncio", {"use_uvloop": uvloop}) for uvloop in (False, True)]
        metafunc.parametrize("anyio_backend", loops, ids=["asyncio", "uvloop"])


@pytest.fixture(params=list(transports.KINDS))
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which transport ``transports.transport`` makes in this test."""
    name = str(request.param)
    monkeypatch.setitem(transports.chosen, "kind", name)
    return name
