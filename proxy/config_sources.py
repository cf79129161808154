"""Where settings come from: a TOML file, the environment, flags; each value keeps its source.

The later of file, environment and flag wins, key by key. Values of the environment are text, so
they are read by the kind of the key that they set: ``true``, ``15``, or a list with commas.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, get_args

from proxy.cli_files import hint_for
from proxy.config_errors import ConfigError, Problem, Schema, dotted, general
from proxy.config_toml import KeyPath, key_lines, line_of
from proxy.config_variables import PREFIX, judged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

FILE_NAME: Final = "sottovoce.toml"
MOST_UPSTREAMS: Final = 32

FLAGS: Final[dict[KeyPath, str]] = {
    ("server", "host"): "--host",
    ("server", "port"): "--port",
    ("server", "state_dir"): "--state-dir",
    ("upstream",): "--upstream",
    ("upstream", 0, "kind"): "--kind",
}
"""The flag that sets a key, for ``Source`` and for messages."""

_ADDRESS: Final = re.compile(r"\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(%[\w.-]+)?\](?=[\s:,]|$)")
"""An IPv6 address in brackets, as a host is written: no JSON."""
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


class Origin(StrEnum):
    """The kinds of places that a value comes from, the weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Source:
    """Where one value comes from."""

    origin: Origin
    detail: str = ""
    """``path:line``, the variable, or the flag; empty for a default."""

    def __str__(self) -> str:
        return self.detail or self.origin.value


DEFAULT: Final = Source(Origin.DEFAULT)


@dataclass(slots=True)
class Layers:
    """All settings that somebody gave, merged, with the source of each."""

    tree: dict[str, Any] = field(default_factory=dict)
    sources: dict[KeyPath, Source] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    """Variables with our prefix that are the twin of no key."""
    lines: dict[KeyPath, int] = field(default_factory=dict)
    file: Path | None = None

    def source(self, path: KeyPath) -> Source:
        """Return where a key, or the nearest thing around it that was given, comes from."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.sources:
                return self.sources[path[:end]]
        return DEFAULT

    def where(self, path: KeyPath) -> str | None:
        """Return the place to look at for a key: its own, or what was given nearest to it."""
        for end in range(len(path), 0, -1):
            near = path[:end]
            if near in self.sources:
                return self.sources[near].detail
            if near in self.lines:
                return f"{self.file}:{self.lines[near]}"
            below = (source for key, source in self.sources.items() if key[:end] == near)
            if (source := next(below, None)) is not None:
                return source.detail
        return None

    def set(self, path: KeyPath, value: object, source: Source) -> bool:
        """Set one value, opening the tables on its way; ``False`` where something bars it."""
        place: Any = self.tree
        for part, following in pairwise(path):
            place = _enter(place, part, following)
        if not isinstance(place, dict):
            if self.tree.get(str(path[0])) == []:
                del self.tree[str(path[0])]  # opened for nothing
            return False
        place[path[-1]] = value
        self.sources[path] = source
        return True


class BrokenListError(ValueError):
    """A list's text begins like JSON and is none."""


def find_file(directory: Path, user_directory: Path) -> Path | None:
    """Return the configuration file that is read when none is named."""
    candidates = (directory / FILE_NAME, user_directory / FILE_NAME)
    return next((path for path in candidates if path.is_file()), None)


def add_file(layers: Layers, path: Path) -> None:
    """Read a TOML file.

    Raises:
        ConfigError: It can't be read, or is not TOML.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
        tree = tomllib.loads(text)
    except FileNotFoundError:
        hint = "`sottovoce config init` writes one"
        raise ConfigError([Problem("there is no such file", str(path), hint)]) from None
    except OSError as error:
        problem = Problem(f"can't be read: {error.strerror}", str(path), hint_for(error))
        raise ConfigError([problem]) from None
    except UnicodeDecodeError:
        hint = "save it as UTF-8, the only encoding of TOML"
        raise ConfigError([Problem("is not UTF-8 text", str(path), hint)]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([_syntax_problem(path, text, str(error))]) from None
    layers.file = path
    layers.lines = key_lines(text)
    layers.tree = tree
    for key in _leaves(tree, ()):
        line = line_of(layers.lines, key)
        layers.sources[key] = Source(Origin.FILE, f"{path}:{line}")


def add_environment(layers: Layers, environ: Mapping[str, str], schema: Schema) -> None:
    """Read the variables that are twins of keys; an empty one counts as not set."""
    for name in sorted(environ):
        if not name.startswith(PREFIX) or not environ[name]:
            continue
        path = variable_path(name)
        if len(path) == 1 and general(path) not in schema.fields:
            layers.strangers.append(name)
            continue
        found = schema.fields.get(general(path))
        try:
            value = environ[name] if found is None else from_text(environ[name], found.annotation)
        except BrokenListError:
            problem = Problem(f"{dotted(path)}: is no JSON list", name, 'write a,b or ["a","b"]')
            layers.problems.append(problem)
            continue
        if not layers.set(path, value, Source(Origin.ENVIRONMENT, name)):
            layers.problems.append(Problem(f"there is no place for {dotted(path)}", name))


def add_flags(layers: Layers, flags: Mapping[KeyPath, object]) -> None:
    """Set what was given on the command line; ``--upstream`` replaces the whole list."""
    if flags.get(("upstream",)) is not None:
        layers.tree["upstream"] = [{}]
        layers.sources = {
            path: source for path, source in layers.sources.items() if path[0] != "upstream"
        }
        layers.sources[("upstream",)] = Source(Origin.FLAG, FLAGS["upstream",])
    for path, value in flags.items():
        source = Source(Origin.FLAG, FLAGS.get(path, dotted(path)))
        target = ("upstream", 0, "base_url") if path == ("upstream",) else path
        if value is not None and not layers.set(target, value, source):
            layers.problems.append(Problem(f"there is no place for {dotted(path)}", str(source)))


def judge_strangers(layers: Layers, environ: Mapping[str, str], schema: Schema) -> None:
    """Say what becomes of variables with our prefix that set nothing, once all else is read."""
    wrong, strange = judged(layers.strangers, environ, layers.tree, schema)
    layers.problems += wrong
    layers.warnings += strange


def variable_path(name: str) -> KeyPath:
    """Return the key that a variable is the twin of."""
    parts = name.removeprefix(PREFIX).lower().split("__")
    return tuple(int(part) if re.fullmatch(r"[0-9]{1,3}", part) else part for part in parts)


def from_text(text: str, annotation: object) -> object:
    """Read a variable's text by the kind of its key; what does not fit stays the text.

    Raises:
        BrokenListError: A list is wanted, and the text is a part of a JSON one.
    """
    kinds = get_args(annotation) or (annotation,)
    if annotation is bool or (bool in kinds and text.lower() in _TRUE | _FALSE):
        return True if text.lower() in _TRUE else False if text.lower() in _FALSE else text
    if int in kinds and re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
        return int(text)
    if float in kinds and re.fullmatch(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?", text.strip()):
        return float(text)
    if getattr(annotation, "__origin__", None) is tuple:
        return _list_from_text(text)
    return text


def _list_from_text(text: str) -> list[object]:
    """Read a list with commas, or JSON where the text begins like it.

    Raises:
        BrokenListError: It begins like JSON, and is no list.
    """
    if text.lstrip()[:1] in ("[", "{", '"') and not _ADDRESS.match(text.lstrip()):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, list):
            raise BrokenListError
        return value
    return [part.strip() for part in text.split(",") if part.strip()]


def _enter(place: Any, part: str | int, following: str | int) -> Any:
    """Return what stands at ``part``, made if it is not there yet; ``None`` if it can't be."""
    made: object = [] if isinstance(following, int) else {}
    if isinstance(place, dict):
        return place.setdefault(part, made)
    if isinstance(place, list) and isinstance(part, int) and part <= len(place) < MOST_UPSTREAMS:
        if part == len(place):
            place.append(made)
        return place[part]
    return None


def _leaves(value: object, path: KeyPath) -> Iterable[KeyPath]:
    """Yield every key whose value is no table; lists of tables are entered."""
    if isinstance(value, dict):  # an empty table says nothing about its keys
        for key, member in value.items():
            yield from _leaves(member, (*path, key))
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        for index, member in enumerate(value):
            yield from _leaves(member, (*path, index))
    else:
        yield path


def _syntax_problem(path: Path, text: str, message: str) -> Problem:
    found = re.search(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$", message)
    if found is None:
        return Problem(f"is not TOML: {message}", str(path))
    line = found[1] or len(text.splitlines())
    return Problem(f"is not TOML: {message[: found.start()]}", f"{path}:{line}")
