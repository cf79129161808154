"""The commented template that ``config init`` writes, and the reference for the documentation.

Both are read off the models, so they can't drift from what is parsed. In the template an
explanation begins with ``# `` and a setting with ``#``: taking that one character away switches
the setting on, and with all of them switched on the result is the defaults.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxy.config import Config
from proxy.config_errors import element_model, expected
from proxy.config_tables import Section, default_state_dir, default_upstreams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

_PREAMBLE: Final = """\
# Configuration of Sottovoce. Each key stands here with its default: take the # away to set it.
# The variable SOTTOVOCE_TABLE__KEY, as in SOTTOVOCE_SERVER__PORT=8000, overrules this file, and a
# flag overrules both. `sottovoce config show` tells what is in effect and where it comes from.
"""
_UPSTREAMS: Final = """\
# Without an [[upstream]] there are the two below: requests of Codex go to the ChatGPT backend, all
# others to the public API (or to OPENAI_BASE_URL), each with the client's own credential.
"""
_STATE_DIR: Final = "the user's state directory, `~/.local/state/sottovoce` on Linux"


def template() -> str:
    """Return the template; all of it is TOML as it stands, and without its comment signs."""
    top = Config.model_fields
    parts = [_PREAMBLE, "".join(_setting("plugins", top["plugins"]))]
    parts += [_table(path, model) for path, model in tables() if path[0] != "upstream"]
    return "\n".join([*parts, _upstream_tables()])


def reference() -> str:
    """Return Markdown tables of every key: default, values, meaning."""
    parts = [_reference_table("Top level", Config, ("plugins",))]
    for path, model in tables():
        title = f"`[[{path[0]}]]`" if path == ("upstream",) else f"`[{'.'.join(path)}]`"
        parts.append(_reference_table(title, model, tuple(_plain_fields(model))))
    return "\n".join(parts)


def tables() -> Iterator[tuple[tuple[str, ...], type[Section]]]:
    """Yield every table below the top level with its model, outer ones first."""
    yield from _tables(Config, ())


def toml_value(value: object) -> str:
    """Return a value as TOML writes it; what is not set becomes an empty text."""
    match value:
        case None:
            return '""'
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:_}" if isinstance(value, int) and value >= 100_000 else str(value)
        case tuple():
            return "[" + ", ".join(map(toml_value, value)) + "]"
        case _:
            return json.dumps(str(value), ensure_ascii=False)


def _tables(
    model: type[Section], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], type[Section]]]:
    for name, field in model.model_fields.items():
        inner = _section(field)
        if inner is not None:
            yield (*path, name), inner
            yield from _tables(inner, (*path, name))


def _section(field: FieldInfo) -> type[Section] | None:
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    element = element_model(field)
    return element if element is not None and issubclass(element, Section) else None


def _plain_fields(model: type[Section]) -> dict[str, FieldInfo]:
    return {name: field for name, field in model.model_fields.items() if _section(field) is None}


def _setting(name: str, field: FieldInfo) -> Iterator[str]:
    yield f"# {field.description}\n"
    yield f"#{name} = {toml_value(field.get_default(call_default_factory=True))}\n"


def _table(path: tuple[str, ...], model: type[Section]) -> str:
    lines = [f"[{'.'.join(path)}]  # {_purpose(model)}\n"]
    for name, field in _plain_fields(model).items():
        lines += _setting(name, field)
    return "".join(lines)


def _upstream_tables() -> str:
    first, *others = default_upstreams()
    lines = [_UPSTREAMS, "#[[upstream]]\n"]
    for name, field in _plain_fields(type(first)).items():
        lines.append(f"# {field.description}\n")
        lines.append(f"#{name} = {toml_value(getattr(first, name))}\n")
    for other in others:
        lines.append("\n#[[upstream]]\n")
        lines += [f"#{name} = {toml_value(value)}\n" for name, value in _given(other)]
    return "".join(lines)


def _given(section: Section) -> Iterator[tuple[str, object]]:
    for name, value in section:
        if name in section.model_fields_set:
            yield name, value


def _purpose(model: type[Section]) -> str:
    first, _, _ = (model.__doc__ or "").partition("\n")
    return first.partition(": ")[2].rstrip(".")


def _reference_table(title: str, model: type[Section], names: tuple[str, ...]) -> str:
    purpose = "" if model is Config else f"{_purpose(model).capitalize()}.\n\n"
    lines = [f"### {title}\n\n{purpose}| key | default | values | meaning |\n|---|---|---|---|\n"]
    for name in names:
        field = model.model_fields[name]
        kinds = expected(field).replace("|", "\\|")
        lines.append(f"| `{name}` | {_default(field)} | {kinds} | {field.description} |\n")
    return "".join(lines)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "derived"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Path) and value == default_state_dir():
        return _STATE_DIR
    return "none" if value is None else f"`{toml_value(value)}`"
