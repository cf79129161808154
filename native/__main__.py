"""``python -m native``: build a wheel whose pipeline is compiled for this machine."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from native import COMPILED

_ROOT: Final = Path(__file__).parent.parent
_GROUP: Final = "sottovoce"
"""Names the module that all compiled ones share."""


def main() -> None:
    """Build the wheel that the command line asks for; print its path."""
    parser = argparse.ArgumentParser(prog="python -m native", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder of the wheel")
    out: Path = parser.parse_args().out.absolute()
    check_tools()
    with tempfile.TemporaryDirectory(prefix="sottovoce-native-") as folder:
        unpacked = pure_wheel(Path(folder))
        extensions = compile_modules(Path(folder))
        for extension in extensions.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"):
            shutil.copy(extension, unpacked / extension.relative_to(extensions))
        tag_as_compiled(unpacked)
        out.mkdir(parents=True, exist_ok=True)
        before = set(out.iterdir())
        _run(sys.executable, "-m", "wheel", "pack", str(unpacked), "-d", str(out))
        made = set(out.glob("*.whl")) - before or set(out.glob(f"*{platform_tag()}.whl"))
    sys.stdout.write(f"{max(made, key=lambda path: path.stat().st_mtime)}\n")


def check_tools() -> None:
    """Say what is missing.

    Raises:
        SystemExit: There is no C compiler, or no headers of this Python.
    """
    command = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(os.environ.get("CC", command)) is None:
        raise SystemExit(
            f"error: compiling needs a C compiler, {command} was not found\n"
            "hint: install one (Debian and Ubuntu: apt install gcc), or name it: CC=clang;\n"
            "      without it the project runs as it is, interpreted"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise SystemExit(
            f"error: compiling needs the headers of this Python, {header} is not there\n"
            "hint: install them (Debian and Ubuntu: apt install python3-dev);\n"
            "      without them the project runs as it is, interpreted"
        )


def pure_wheel(folder: Path) -> Path:
    """Return the folder of the project's ordinary wheel, unpacked."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet")
    _run(*pip, "--no-deps", "--wheel-dir", str(folder / "pure"), str(_ROOT))
    (path,) = (folder / "pure").glob("*.whl")
    name, version, *_ = path.name.split("-")
    unpacked = folder / f"{name}-{version}"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(unpacked)
    return unpacked


def compile_modules(folder: Path) -> Path:
    """Return a folder with the extension modules, each where its module is in a wheel.

    Raises:
        SystemExit: A module can't be compiled.
    """
    # Of the group "compile", which this command alone needs.
    from mypyc.build import mypycify  # noqa: PLC0415
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.errors import CCompilerError  # noqa: PLC0415

    library, said = folder / "extensions", io.StringIO()
    try:
        with contextlib.chdir(_ROOT), contextlib.redirect_stdout(said):
            extensions = mypycify(
                [f"pipeline/{name}.py" for name in COMPILED],
                opt_level="3",
                debug_level="0",
                multi_file=True,  # less memory, and several compilers at once
                target_dir=str(folder / "c"),
                group_name=_GROUP,
            )
            distribution = Distribution({"name": _GROUP, "packages": [], "ext_modules": extensions})
            command = distribution.get_command_obj("build_ext")
            command.build_lib = str(library)
            command.build_temp = str(folder / "objects")
            command.parallel = os.cpu_count()
            distribution.run_command("build_ext")
    except (CCompilerError, SystemExit) as error:
        text = f"{said.getvalue()}error: the pipeline can't be compiled: {error}"
        raise SystemExit(text) from None
    return library


def tag_as_compiled(unpacked: Path) -> None:
    """Say in a wheel's folder for which interpreter and machine it is."""
    (path,) = unpacked.glob("*.dist-info/WHEEL")
    lines = [
        line
        for line in path.read_text().splitlines()
        if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))
    ]
    lines += ["Root-Is-Purelib: false", f"Tag: {platform_tag()}"]
    path.write_text("\n".join(lines) + "\n")


def platform_tag() -> str:
    """Return interpreter, binary interface and platform as a wheel's name has them."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"{python}-{python}-{platform}"


def _run(*command: str) -> None:
    done = subprocess.run(  # noqa: S603 - our own commands
        command, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}error: {' '.join(command)} failed")


if __name__ == "__main__":
    main()
