"""A plugin that lets the model read the files of the project that the proxy was started in.

``plugins = ["./examples/files.py"]`` in ``sottovoce.toml`` loads it. It reads and never writes,
and never outside of the working directory: paths are resolved first, links included, and what
then lies elsewhere is refused. So are hidden files and folders, where keys are kept. An attribute
``plugin`` is the plugin here; its hook shows how a call can be blocked.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import Any

CHARACTERS = 16_000
ENTRIES = 200


async def read_file(arguments: dict[str, Any], context: dict[str, Any]) -> str:
    """Return a part of a text file."""
    start = arguments.get("start_line") or 1
    if type(start) is not int or start < 1:
        return "`start_line` must be a whole number from 1."
    path = confined(arguments.get("path"), context["work_dir"])
    if path is None or not path.is_file():
        return "There is no such file in the project."
    return await asyncio.to_thread(_read, path, start)


async def list_files(arguments: dict[str, Any], context: dict[str, Any]) -> str:
    """Return the names in a folder, one a line; those of folders end in a slash."""
    path = confined(arguments.get("path") or ".", context["work_dir"])
    if path is None or not path.is_dir():
        return "There is no such folder in the project."
    return await asyncio.to_thread(_list, path)


def confined(given: object, work_dir: str) -> Path | None:
    """Return where a path leads, or None if that is not an open place of the project."""
    if not isinstance(given, str):
        return None
    root = Path(work_dir).resolve()
    try:
        path = (root / given).resolve(strict=True)
        inside = path.relative_to(root)
    except (OSError, ValueError, RuntimeError):  # nothing, elsewhere, a loop of links, a NUL
        return None
    return None if any(part.startswith(".") for part in inside.parts) else path


def _read(path: Path, start: int) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        for _ in islice(file, start - 1):
            pass
        text = file.read(CHARACTERS + 1)
    return text if len(text) <= CHARACTERS else text[:CHARACTERS] + "\n[more follows]"


def _list(path: Path) -> str:
    names = sorted(
        f"{one.name}/" if one.is_dir() else one.name
        for one in path.iterdir()
        if not one.name.startswith(".")
    )
    more = ["[more follow]"] if len(names) > ENTRIES else []
    return "\n".join([*names[:ENTRIES], *more])


def before_tool_call(call: dict[str, Any], _context: dict[str, Any]) -> dict[str, Any]:
    """Block what asks for a path outside of the project before it is even looked at."""
    path = str(call["arguments"].get("path") or "")
    if call["name"] in ("read_file", "list_files") and (path.startswith("/") or ".." in path):
        return {"allow": False, "reason": "give a path inside the project, relative to its root"}
    return {"allow": True}


def _path(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


plugin = {
    "name": "files",
    "tools": [
        {
            "name": "read_file",
            "description": "Read a text file of the project.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": _path("Relative to the project's root."),
                    "start_line": {
                        "type": "integer",
                        "minimum": 1,
                        "description": "The first line to return (default 1).",
                    },
                },
                "required": ["path"],
                "additionalProperties": False,
            },
            "handler": read_file,
        },
        {
            "name": "list_files",
            "description": "List a folder of the project.",
            "parameters": {
                "type": "object",
                "properties": {"path": _path("Relative to the project's root (the default).")},
                "additionalProperties": False,
            },
            "handler": list_files,
        },
    ],
    "hooks": {"before_tool_call": before_tool_call},
}
