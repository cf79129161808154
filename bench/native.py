"""The provider and the load client: C programs, compiled here when they are first needed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

_SOURCES: Final = Path(__file__).with_name("native")
_FLAGS: Final = ("-O2", "-std=gnu11", "-Wall", "-Wextra")


class MissingCompilerError(Exception):
    """There is no C compiler here."""


def compiler() -> str | None:
    """Return the path of a C compiler, or None."""
    return shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")


def program(name: str, folder: Path) -> Path:
    """Return the compiled program of this name, from ``folder`` where it is there already.

    Raises:
        MissingCompilerError: It has to be compiled, and there is nothing to compile it with.
        subprocess.CalledProcessError: It does not compile.
    """
    source = _SOURCES / f"{name}.c"
    texts = source.read_bytes() + (_SOURCES / "wire.h").read_bytes()
    target = folder / f"{name}-{hashlib.sha256(texts).hexdigest()[:12]}"
    if not target.exists():
        command = compiler()
        if command is None:
            raise MissingCompilerError("the bench needs a C compiler: apt-get install gcc")
        folder.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        subprocess.run([command, *_FLAGS, "-o", fresh, source], check=True)
        fresh.rename(target)
    return target
