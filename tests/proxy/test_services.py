"""What the process owns: the secret that processes on one state directory share."""

from __future__ import annotations

import secrets
import stat
from typing import TYPE_CHECKING

import pytest

from proxy.services import read_secret
from recall.migrations import StoreError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_secret_stays(tmp_path: Path) -> None:
    secret = read_secret(tmp_path)
    assert len(secret) == 32
    assert read_secret(tmp_path) == secret
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_two_that_start_together_have_one_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, others = secrets.token_bytes, []

    def meanwhile(size: int) -> bytes:
        monkeypatch.setattr(secrets, "token_bytes", made)
        others.append(read_secret(tmp_path))
        return made(size)

    monkeypatch.setattr(secrets, "token_bytes", meanwhile)
    assert [read_secret(tmp_path)] == others


def test_a_damaged_secret_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(StoreError, match="is damaged"):
        read_secret(tmp_path)
