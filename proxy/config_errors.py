"""What is wrong with a configuration, said so that it can be mended: where, what, and a hint."""

from __future__ import annotations

import json
import types
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr

from telemetry.redact import is_secret_name, redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

    from proxy.config_toml import KeyPath

EACH: Final = "*"
"""Stands in a schema's path for any index of an array of tables."""

_WORDS: Final[dict[object, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    SecretStr: "a text",
    Path: "a path",
    tuple: "a list of texts",
}
_BOUNDS: Final = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_TABLE_ERRORS: Final = frozenset({"model_type", "model_attributes_type", "dict_type"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    message: str
    where: str | None = None
    """File and line, variable or flag."""
    hint: str | None = None

    def __str__(self) -> str:
        return self.message if self.where is None else f"{self.where}: {self.message}"


class ConfigError(Exception):
    """The configuration can't be used.

    Args:
        problems: All that was found wrong, at least one.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


class Schema:
    """The keys that exist, each with the field that describes it.

    Args:
        model: The root model; nested models are tables, tuples of models arrays of tables.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        self.fields: dict[tuple[str, ...], FieldInfo] = {}
        self.tables: dict[tuple[str, ...], type[BaseModel]] = {}
        self._add(model, ())

    def _add(self, model: type[BaseModel], path: tuple[str, ...]) -> None:
        self.tables[path] = model
        for name, field in model.model_fields.items():
            inner = (*path, name)
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                self._add(field.annotation, inner)
            elif (element := element_model(field)) is not None:
                self._add(element, (*inner, EACH))
            else:
                self.fields[inner] = field

    def field(self, path: KeyPath) -> FieldInfo | None:
        """Return the field of a key, or of the nearest thing around it that has one."""
        plain = general(path)
        found = (self.fields.get(plain[:end]) for end in range(len(plain), 0, -1))
        return next((field for field in found if field is not None), None)

    def names(self, path: KeyPath) -> list[str]:
        """Return the keys of a table; none if there is no such table."""
        table = self.tables.get(general(path))
        return [] if table is None else list(table.model_fields)


def element_model(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of an array of tables, ``None`` for any other field."""
    for argument in get_args(field.annotation):
        if isinstance(argument, type) and issubclass(argument, BaseModel):
            return argument
    return None


def general(path: KeyPath) -> tuple[str, ...]:
    """Return the schema's path of a key: every index becomes ``*``."""
    return tuple(EACH if isinstance(part, int) else part for part in path)


def dotted(path: KeyPath) -> str:
    """Return a key as it is shown, ``upstream.0.base_url``."""
    return ".".join(map(str, path))


def describe_errors(
    errors: Iterable[ErrorDetails], schema: Schema, where: Callable[[KeyPath], str | None]
) -> list[Problem]:
    """Turn pydantic's errors into problems, one a key."""
    problems: dict[KeyPath, Problem] = {}
    for error in errors:
        path = _known(error["loc"], schema) if error["type"] != "extra_forbidden" else error["loc"]
        if path not in problems:
            message, hint = _say(error, path, schema)
            problems[path] = Problem(message, where(path), hint)
    return [found for path, found in problems.items() if not _has_inner(path, problems)]


def _has_inner(path: KeyPath, problems: Iterable[KeyPath]) -> bool:
    """Tell whether something inside of ``path`` is wrong: then that is what is told."""
    return any(len(other) > len(path) and other[: len(path)] == path for other in problems)


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the one of ``words`` that was probably meant."""
    return next(iter(get_close_matches(word, list(words), n=1)), None)


def expected(field: FieldInfo) -> str:
    """Say what values a key takes: ``a whole number, at least 0``."""
    bounds = [
        f"{word} {bound}"
        for rule in field.metadata
        for name, word in _BOUNDS.items()
        if (bound := getattr(rule, name, None)) is not None
    ]
    return ", ".join([_kind(field.annotation), *bounds])


def _known(path: KeyPath, schema: Schema) -> KeyPath:
    """Cut off what pydantic appends to a key: union branches and indices of a list of texts."""
    for end in range(len(path), 0, -1):
        if general(path[:end]) in schema.fields or general(path[:end]) in schema.tables:
            return path[:end]
    return path


def _say(error: ErrorDetails, path: KeyPath, schema: Schema) -> tuple[str, str | None]:
    key = dotted(path)
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key {key}", _hint_for_unknown(path, schema)
        case "missing":
            return f"{key} is missing", None
        case "value_error":
            return f"{key}: {error['ctx']['error']}" if key else str(error["ctx"]["error"]), None
        case kind if kind in _TABLE_ERRORS:
            return f"{key}: expected a table, got {_shown(path, error['input'])}", None
    field = schema.field(path)
    kind = "tables, each headed [[upstream]]" if field is None else expected(field)
    return f"{key}: expected {kind}, got {_shown(path, error['input'])}", None


def _hint_for_unknown(path: KeyPath, schema: Schema) -> str:
    *table, last = path
    known = schema.names(tuple(table))
    meant = nearest(str(last), known)
    if meant is not None:
        return f"did you mean {dotted((*table, meant))}?"
    elsewhere = [found for found in (*schema.fields, *schema.tables) if found[-1:] == (last,)]
    if elsewhere:
        return f"{dotted(elsewhere[0])} exists: the key stands in the wrong table"
    place = f"[{dotted(tuple(table))}]" if table else "the top level"
    return f"{place} knows {', '.join(known)}"


def _shown(path: KeyPath, value: object) -> str:
    if any(isinstance(part, str) and is_secret_name(part) for part in path):
        return "something else"
    match value:
        case dict():
            return "a table"
        case list() | tuple():
            return "a list"
    text = redact(json.dumps(value, default=str, ensure_ascii=False))
    return text if len(text) <= 60 else f"{text[:57]}…"


def _kind(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(annotation)))
    if origin in (Union, types.UnionType):
        kinds = [_kind(branch) for branch in get_args(annotation) if branch is not type(None)]
        return " or ".join(dict.fromkeys(kinds))
    return _WORDS.get(origin or annotation, "another value")
