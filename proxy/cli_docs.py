"""Writes what the documentation repeats from the code: help, the keys, the map of modules.

``python -m proxy.cli_docs docs`` writes, with ``--check`` it only says whether that would change
something. In the pages, generated text stands between two comments; around them people write.
"""

from __future__ import annotations

import ast
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from proxy.cli import PROGRAM, VERBS, command
from proxy.config_template import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WIDTH: Final = 88
_ROOT: Final = Path(__file__).parent.parent
_PACKAGES: Final = ("proxy", "pipeline", "recall", "telemetry")
_BLOCK: Final = re.compile(
    r"(<!-- generated: (\w+) -->\n).*?(<!-- end of generated -->)", re.DOTALL
)


def help_pages() -> str:
    """Return the help of the command and of every verb, as Markdown."""
    root = click.Context(
        command, info_name=PROGRAM, terminal_width=_WIDTH, **command.context_settings
    )
    return "\n".join(_pages(root, 2))


def module_map() -> str:
    """Return every module with the sentence that says what it is for, as Markdown."""
    return "\n".join(line for package in _PACKAGES for line in _modules(_ROOT / package)) + "\n"


PARTS: Final[dict[str, Callable[[], str]]] = {
    "help": help_pages,
    "keys": reference,
    "modules": module_map,
}
"""What can be generated, by the name in the comment."""


def renewed(page: str) -> str:
    """Return a page with its generated parts as they are now."""

    def renew(found: re.Match[str]) -> str:
        return f"{found[1]}{PARTS[found[2]]()}{found[3]}"

    return _BLOCK.sub(renew, page)


def main(arguments: list[str]) -> int:
    """Write the pages of a folder, or check them.

    Args:
        arguments: The folder, and ``--check``.

    Returns:
        1 if a checked page is out of date, else 0.
    """
    folder = Path(next(each for each in arguments if not each.startswith("-")))
    stale = 0
    for path in sorted(folder.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        fresh = renewed(page)
        if fresh != page and "--check" in arguments:
            stale += 1
            click.echo(f"{path} is out of date: `python -m proxy.cli_docs {folder}`", err=True)
        elif fresh != page:
            path.write_text(fresh, encoding="utf-8")
    return 1 if stale else 0


def _modules(package: Path) -> Iterator[str]:
    name = package.relative_to(_ROOT).as_posix()
    yield f"\n**`{name}/`** {_purpose(package / '__init__.py')}\n"
    yield from ("| module | what it is for |", "| --- | --- |")
    files = sorted(set(package.glob("*.py")) - {package / "__init__.py"})
    yield from (f"| `{file.name}` | {_purpose(file)} |" for file in files)
    for inner in sorted(package.glob("*/__init__.py")):
        yield from _modules(inner.parent)


def _purpose(file: Path) -> str:
    """Return the first line of a module's docstring."""
    told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return told.partition("\n")[0].replace("``", "`").replace("|", "\\|")


def _pages(context: click.Context, level: int) -> Iterator[str]:
    found = context.command
    title = f"{'#' * level} `{context.command_path}`"
    yield f"{title}\n\n```text\n{found.get_help(context).rstrip()}\n```\n"
    if isinstance(found, click.Group):
        for name in found.list_commands(context):
            if found is command and find_spec(VERBS[name].module) is None:
                continue  # a verb that is not part of this tree
            inner = found.get_command(context, name)
            if inner is not None:
                inside = click.Context(inner, parent=context, info_name=name)
                yield from _pages(inside, min(level + 1, 4))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
