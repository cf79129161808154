"""The wheel with the compiled pipeline: what is in it, and what is said where it can't be made."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from typing import TYPE_CHECKING

import pytest

from native import COMPILED
from native.__main__ import check_tools, platform_tag, tag_as_compiled

if TYPE_CHECKING:
    from pathlib import Path

_WHEEL = """Wheel-Version: 1.0
Generator: a backend
Root-Is-Purelib: true
Tag: py3-none-any
"""


@pytest.mark.parametrize("name", COMPILED)
def test_a_module_is_what_the_run_is_about(name: str) -> None:
    compiled = "compiled" in os.environ.get("PYTHONPATH", "")
    path = importlib.import_module(f"pipeline.{name}").__file__
    assert path is not None
    assert path.endswith(str(sysconfig.get_config_var("EXT_SUFFIX")) if compiled else ".py")


def test_a_wheel_says_for_which_interpreter_and_machine_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "sottovoce-1.dist-info"
    folder.mkdir()
    (folder / "WHEEL").write_text(_WHEEL)
    tag_as_compiled(tmp_path)
    lines = (folder / "WHEEL").read_text().splitlines()
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert lines[:2] == ["Wheel-Version: 1.0", "Generator: a backend"]
    assert lines[2] == "Root-Is-Purelib: false"
    assert lines[3:] == [f"Tag: {platform_tag()}"]
    assert platform_tag().startswith(f"{python}-{python}-")
    assert "-" not in platform_tag().removeprefix(f"{python}-{python}-")


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(SystemExit, match=r"needs a C compiler, .* was not found\nhint: install"):
        check_tools()


def test_without_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(SystemExit, match=r"Python\.h is not there\nhint: install"):
        check_tools()
