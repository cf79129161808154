"""Plugins: files of the user that bring further hidden tools, and hooks around hidden calls.

Entries are loaded once, at start, in the order of the configuration. A plugin is the first of
these that a module has::

    default = {"name": …, "tools": […], "hooks": {…}}      # an attribute ``default``
    plugin = …                                             # an attribute ``plugin``
    name = …; tools = […]; hooks = {…}                     # the module itself

each a mapping or an object, with a name and at least one of tools and hooks. Nothing that is
wrong with a plugin stops the start: it becomes a ``Problem``, told in one line, and the rest goes
on without it. Only ``KeyboardInterrupt`` goes through, since one that a plugin raises can't be told
from Ctrl-C. ``docs/plugins.md`` tells the whole of it to who writes one.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.request import HiddenTool
from proxy.plugin_values import error_name, text_of, written

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from types import ModuleType

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What providers accept as the name of a tool."""
_TOLD_CHARACTERS: Final = 200
_DECLARED_CHARACTERS: Final = 65_536
"""How long what a provider is told of a tool may be: it goes into every request."""
_NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


class Hook(StrEnum):
    """The hooks that a plugin can have."""

    BEFORE_TOOL_CALL = "before_tool_call"
    AFTER_TOOL_CALL = "after_tool_call"
    RUN_START = "run_start"
    RUN_END = "run_end"


class ProblemCode(StrEnum):
    """Why a plugin, or a part of it, is left out."""

    NOT_A_MODULE = "plugin_entry_not_a_module"
    IMPORT_FAILED = "plugin_import_failed"
    NO_EXPORT = "plugin_not_exported"
    DUPLICATE_NAME = "duplicate_plugin_name"
    TOOL_SHADOWS = "plugin_tool_shadows"
    TOOL_INVALID = "plugin_tool_invalid"
    HOOK_INVALID = "plugin_hook_invalid"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is left out.

    Attributes:
        entry: As it stands in the configuration.
        code: The sort of it.
        reason: One sentence without a full stop.
    """

    entry: str
    code: ProblemCode
    reason: str


@dataclass(frozen=True, slots=True)
class PluginTool:
    """A hidden tool of a plugin.

    Attributes:
        plugin: Whose it is.
        tool: What the provider is told of it.
        handler: ``await handler(arguments, context)``: the result, a text or a JSON value.
    """

    plugin: str
    tool: HiddenTool
    handler: Callable[..., object]


@dataclass(frozen=True, slots=True)
class PluginHook:
    """One hook of a plugin."""

    plugin: str
    hook: Hook
    call: Callable[..., object]


@dataclass(frozen=True, slots=True)
class Plugins:
    """What was loaded.

    Attributes:
        work_dir: What entries were resolved against; tools and hooks are told.
        names: Of the plugins, in order.
        handlers: Their tools by name, in order.
        hooks: Their hooks, in order.
        problems: What was left out.
    """

    work_dir: Path
    names: tuple[str, ...]
    handlers: Mapping[str, PluginTool]
    hooks: tuple[PluginHook, ...]
    problems: tuple[Problem, ...]

    @property
    def tools(self) -> tuple[HiddenTool, ...]:
        """What requests declare, behind recall."""
        return tuple(each.tool for each in self.handlers.values())


class _SkipError(Exception):
    """An entry, a tool or a hook that is left out."""

    def __init__(self, code: ProblemCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def load_plugins(
    entries: Sequence[str], work_dir: Path, *, reserved: Iterable[str] = ()
) -> Plugins:
    """Load plugins; whatever is wrong with one is data.

    Args:
        entries: Paths of Python files or packages, relative to ``work_dir``; empty ones count as
            not given.
        work_dir: An absolute path.
        reserved: Names that no tool can have.
    """
    loader = _Loader(work_dir, reserved)
    for number, entry in enumerate(entries):
        if entry.strip():
            loader.load(number, entry.strip())
    return Plugins(
        work_dir,
        tuple(loader.names),
        loader.tools,
        tuple(loader.hooks),
        tuple(loader.problems),
    )


class _Loader:
    """Loads entry by entry, and remembers which names are taken."""

    def __init__(self, work_dir: Path, reserved: Iterable[str]) -> None:
        self.names: list[str] = []
        self.tools: dict[str, PluginTool] = {}
        self.hooks: list[PluginHook] = []
        self.problems: list[Problem] = []
        self._work_dir = work_dir
        self._taken = set(reserved)

    def load(self, number: int, entry: str) -> None:
        """Load one entry."""
        try:
            with _guard(ProblemCode.NOT_A_MODULE):
                file = _file(self._work_dir / Path(entry).expanduser())
            with _guard(ProblemCode.IMPORT_FAILED):
                module = _imported(file, number)
            with _guard(ProblemCode.NO_EXPORT):
                name, plugin = _exported(module)
                _refuse_taken(name, self.names, ProblemCode.DUPLICATE_NAME)
                tools, hooks = _members(plugin, "tools"), dict(_hooks(plugin))
        except _SkipError as error:
            self._skip(entry, error)
            return
        self.names.append(name)
        for tool in tools:
            self._add_tool(entry, name, tool)
        for hook, call in hooks.items():
            self._add_hook(entry, name, hook, call)

    def _add_tool(self, entry: str, plugin: str, given: object) -> None:
        try:
            with _guard(ProblemCode.TOOL_INVALID):
                tool = _tool(plugin, given)
            _refuse_taken(tool.tool.name, self._taken, ProblemCode.TOOL_SHADOWS)
        except _SkipError as error:
            self._skip(entry, error)
            return
        self._taken.add(tool.tool.name)
        self.tools[tool.tool.name] = tool

    def _add_hook(self, entry: str, plugin: str, name: str, call: object) -> None:
        if name not in set(Hook):
            reason = f"there is no hook {name!r}, only {', '.join(Hook)}"
        elif not callable(call):
            reason = f"the hook {name} is no function"
        else:
            self.hooks.append(PluginHook(plugin, Hook(name), call))
            return
        self._skip(entry, _SkipError(ProblemCode.HOOK_INVALID, reason))

    def _skip(self, entry: str, error: _SkipError) -> None:
        reason = " ".join(error.reason.split())[:_TOLD_CHARACTERS]
        self.problems.append(Problem(entry, error.code, reason))


@contextlib.contextmanager
def _guard(code: ProblemCode) -> Iterator[None]:
    """Make whatever a plugin raises, while it is imported or read, a reason to leave it out."""
    try:
        yield
    except (_SkipError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _SkipError(code, _reason(error)) from error


def _reason(error: BaseException) -> str:
    """Say what was raised; an error of a plugin's own may not be able to say it."""
    name = error_name(error)
    try:
        return f"{name}: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - then its name has to do
        return name


def _refuse_taken(name: str, taken: Collection[str], code: ProblemCode) -> None:
    if name in taken:
        raise _SkipError(code, f"another one is called {name} already")


def _file(path: Path) -> Path:
    """Return the Python file that an entry means."""
    try:
        if path.is_dir():
            path /= "__init__.py"
        found = path.suffix == ".py" and path.is_file()
    except (OSError, ValueError):  # a path that no file system takes
        found = False
    if not found:
        reason = "there is no Python file or package at this path"
        raise _SkipError(ProblemCode.NOT_A_MODULE, reason)
    return path.resolve()


def _imported(file: Path, number: int) -> ModuleType:
    """Import a file under a name of ours, so that it can't stand in the way of any other."""
    package = file.name == "__init__.py"
    stem = re.sub(r"\W", "_", file.parent.name if package else file.stem)
    name = f"sottovoce_plugin_{number}_{stem}"
    spec = spec_from_file_location(
        name, file, submodule_search_locations=[str(file.parent)] if package else None
    )
    if spec is None or spec.loader is None:
        raise _SkipError(ProblemCode.NOT_A_MODULE, "Python has no loader for this file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _exported(module: ModuleType) -> tuple[str, object]:
    """Return the plugin of a module, and its name."""
    for candidate in (_member(module, "default"), _member(module, "plugin"), module):
        name = (text_of(_member(candidate, "name")) or "").strip()
        has_parts = any(_member(candidate, part) is not None for part in ("tools", "hooks"))
        if name and has_parts:
            return name, candidate
    reason = "no default, plugin or the module itself has a name with tools or hooks"
    raise _SkipError(ProblemCode.NO_EXPORT, reason)


def _member(owner: object, name: str) -> Any:
    """Return a member of a mapping or an object; None if it has none. To be called in a guard."""
    return owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)


def _members(plugin: object, name: str) -> list[object]:
    value = _member(plugin, name)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise _SkipError(ProblemCode.NO_EXPORT, f"its {name} are no list")
    return list(value)


def _hooks(plugin: object) -> Iterator[tuple[str, object]]:
    """Yield the hooks of a mapping, all of them, or those that an object has."""
    hooks = _member(plugin, "hooks")
    if isinstance(hooks, Mapping):
        yield from ((str.__str__(str(name)), call) for name, call in hooks.items())
    elif hooks is not None:
        for hook in Hook:
            if (call := _member(hooks, hook)) is not None:
                yield hook, call


def _tool(plugin: str, given: object) -> PluginTool:
    """Check a tool, and write down what the provider is told of it."""
    name, handler = text_of(_member(given, "name")), _member(given, "handler")
    if name is None or not _NAME.fullmatch(name):
        reason = "a tool has no name of up to 64 letters, digits, dashes and underscores"
        raise _SkipError(ProblemCode.TOOL_INVALID, reason)
    if not callable(handler):
        raise _SkipError(ProblemCode.TOOL_INVALID, f"the tool {name} has no handler")
    declaration = _declaration(name, _member(given, "description"), _member(given, "parameters"))
    return PluginTool(plugin, HiddenTool(name, declaration, early=False), handler)


def _declaration(name: str, description: object, parameters: object) -> bytes:
    if parameters is None:
        parameters = _NO_PARAMETERS
    reason = f"the parameters of the tool {name} are no JSON schema"
    if not isinstance(parameters, Mapping):
        raise _SkipError(ProblemCode.TOOL_INVALID, reason)
    told = {
        "type": "function",
        "name": name,
        "description": text_of(description) or "",
        "strict": False,
        "parameters": dict(parameters),
    }
    try:
        text = written(told, _DECLARED_CHARACTERS)
    except (TypeError, ValueError) as error:
        raise _SkipError(ProblemCode.TOOL_INVALID, reason) from error
    if len(text) > _DECLARED_CHARACTERS:
        reason = f"the tool {name} is described by more than {_DECLARED_CHARACTERS} characters"
        raise _SkipError(ProblemCode.TOOL_INVALID, reason)
    return text.encode()
