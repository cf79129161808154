"""Fixtures of this folder."""

from __future__ import annotations

import pytest

from tests.proxy import transports


@pytest.fixture(params=list(transports.KINDS))
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which transport ``transports.transport`` makes in this test."""
    name = str(request.param)
    monkeypatch.setitem(transports.chosen, "kind", name)
    return name
