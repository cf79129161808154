"""The verb ``demo``: what it shows is what happened."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from proxy.demo_turn import FIXTURE
from proxy.fixture import read_fixture
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = "http://127.0.0.1:9"


def test_it_shows_the_turn_twice(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "proxy.cli", "demo"],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            "HTTP_PROXY": NOWHERE,
            "HTTPS_PROXY": NOWHERE,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    client, wire = done.stdout.split("What really went on the wire")
    answer = "Signal yellow"
    assert answer in client
    assert answer in wire
    assert "recall" not in client
    assert "hidden" not in client
    assert "hidden ← response.function_call_arguments.delta" in wire
    assert "hidden ← response.completed" in wire
    for text in read_fixture(FIXTURE).header.memory:
        assert text in wire
    assert "added + function_call_output" in wire
    assert not list(tmp_path.iterdir())
