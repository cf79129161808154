"""Starting, and what must never start or go round for ever."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests import builders
from tests.e2e.client import Exchange
from tests.e2e.process import Proxy, free_port, run_command

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Lab


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_it_does_not_start_as_its_own_upstream(tmp_path: Path, host: str) -> None:
    """Case 18."""
    port = str(free_port())
    _, said = run_command(
        *("serve", "--port", port, "--state-dir", str(tmp_path / "state")),
        folder=tmp_path,
        environment={"OPENAI_BASE_URL": f"http://{host}:{port}/v1"},
        expect=1,
    )
    assert "hint:" in said
    assert "Traceback" not in said


def test_a_loop_over_two_proxies_ends(tmp_path: Path) -> None:
    """Case 18."""
    with ExitStack() as stack:
        first = Proxy(tmp_path / "first", upstream=f"http://127.0.0.1:{free_port()}/v1")
        second = Proxy(tmp_path / "second", upstream=f"{first.url}/v1")
        place = first._arguments.index("--upstream") + 1
        first._arguments[place] = f"{second.url}/v1"
        stack.enter_context(first)
        stack.enter_context(second)
        with Exchange(first.port, builders.request()) as exchange:
            assert exchange.status == 508
            assert exchange.json()["error"]["message"]


def test_a_taken_port_is_said_with_the_next_free_one(lab: Lab, tmp_path: Path) -> None:
    _, said = run_command(
        *("serve", "--port", str(lab.proxy.port), "--state-dir", str(tmp_path / "other")),
        folder=tmp_path,
        expect=1,
    )
    assert "hint:" in said
    assert "Traceback" not in said


def test_the_greeting_is_short_and_useful(lab: Lab) -> None:
    lines = lab.proxy.said.splitlines()
    assert 0 < len(lines) <= 6
    text = "\n".join(lines)
    for word in (f"127.0.0.1:{lab.proxy.port}", lab.provider.url, str(lab.proxy.state)):
        assert word in text


def test_state_is_for_its_owner_only(lab: Lab) -> None:
    files = [path for path in lab.proxy.state.rglob("*") if path.is_file()]
    assert files
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}


def test_health(lab: Lab) -> None:
    for target in ("/healthz", "/readyz", "/metrics", "/usage"):
        with lab.proxy.get(target) as exchange:
            assert exchange.status == 200, target
