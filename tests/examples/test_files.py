"""The example that reads files: never outside of the project, whatever the path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.plugins import load_plugins
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio
PLUGINS = load_plugins(["examples/files.py", "examples/clock.py"], ROOT)
PARTS = st.sampled_from(["..", ".", "a", "b.txt", ".env", "link", "/", "", "~", "\0", "a" * 300])


async def call(tool: str, folder: Path, **arguments: object) -> str:
    handler: Any = PLUGINS.handlers[tool].handler
    return str(await handler(arguments, {"work_dir": str(folder)}))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with all that may lead out of it beside what may be read."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret.txt").write_text("canary")
    inside = folder / "project"
    (inside / "a").mkdir(parents=True)
    (inside / "a" / "b.txt").write_text("one\ntwo\n")
    (inside / "b.txt").write_text("x" * 20_000)
    (inside / ".env").write_text("canary")
    (inside / "link").symlink_to(folder / "secret.txt")
    (inside / "a" / "link").symlink_to(folder)
    return inside


async def test_what_may_be_read(project: Path) -> None:
    assert await call("read_file", project, path="a/b.txt") == "one\ntwo\n"
    assert await call("read_file", project, path="a/b.txt", start_line=2) == "two\n"
    assert (await call("read_file", project, path="b.txt")).endswith("x\n[more follows]")
    assert await call("list_files", project) == "a/\nb.txt\nlink"


@given(st.lists(PARTS, max_size=5).map("/".join))
async def test_no_path_leads_out(project: Path, path: str) -> None:
    for tool in ("read_file", "list_files"):
        assert "canary" not in await call(tool, project, path=path)
        assert "secret" not in await call(tool, project, path=path)


@pytest.mark.parametrize("path", [None, 5, "link", "a/link/secret.txt", ".env", "../secret.txt"])
async def test_what_may_not_be_read(project: Path, path: object) -> None:
    got = await call("read_file", project, path=path)
    assert got == "There is no such file in the project."


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", 5, "\0"])
async def test_a_zone_that_is_none(project: Path, zone: object) -> None:
    assert "There is no time zone" in await call("current_time", project, zone=zone)
