"""Tools of every layout as plain functions, under names that lead back to what they were.

Responses knows more kinds of tools than other dialects: functions, custom tools that take one
text, both of them inside of namespaces, declared in ``tools`` or by items of the input, and the
client's own search for further tools. An upstream sees functions only:

- a namespace and a name are joined by two underscores,
- a custom tool is a function with one string, ``input``,
- whatever would break the rules for names (64 letters, digits, ``_`` and ``-``), or be there
  twice, gets a digest in the place of its end.

The names are functions of what they stand for, so that a history is named like the tools that it
used, turn after turn. Hosted tools have no place anywhere else and are left out.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pipeline.errors import RequestError
from pipeline.jsontext import dumps, loads
from proxy.providers.base import LeftOut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pipeline.request import Request
    from proxy.providers.base import Json

SEARCH: Final = "tool_search"
"""What the client's own search for tools is called."""
INPUT: Final = "input"
"""The one parameter of a custom tool."""
UNPARSEABLE: Final = "[unparseable tool arguments]"
"""Stands in front of a call whose arguments were no JSON object and became an empty one."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")
_KEPT: Final = 55
"""Characters of a name that are kept in front of a digest."""
_CARRIERS: Final = ("additional_tools", "tool_search_output")
_NO_PARAMETERS: Final[Json] = {"type": "object", "properties": {}}
_ONE_INPUT: Final[Json] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


class ToolKind(StrEnum):
    """What a function stands for."""

    FUNCTION = "function"
    CUSTOM = "custom"
    SEARCH = "tool_search"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as a function.

    Attributes:
        flat: What the upstream calls it.
        kind: What it is to the client.
        name: What the client calls it.
        namespace: Where the client has it, None for the top level.
        description: What it does.
        parameters: JSON schema of its arguments.
        strict: Whether the arguments must follow the schema.
    """

    flat: str
    kind: ToolKind
    name: str
    namespace: str | None = None
    description: str = ""
    parameters: Json | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tools the model may call.

    Attributes:
        mode: ``auto``, ``none``, ``required`` or ``named``.
        name: The flat name, where it is named.
    """

    mode: str = "auto"
    name: str | None = None


class Toolbox:
    """The tools of one request.

    Attributes:
        tools: In the order in which they are declared, each once.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self.tools = tuple(tools)
        self._by_flat = {tool.flat: tool for tool in self.tools}
        self._by_place = {(tool.namespace, tool.name): tool for tool in self.tools}

    def __repr__(self) -> str:
        return f"<Toolbox {[tool.flat for tool in self.tools]}>"

    def flat_name(self, name: str, namespace: str | None = None) -> str:
        """Return what the upstream calls a tool of the history, also one that is gone.

        A namespace that nobody declared changes nothing: some models add one to every call.
        """
        for place in ((namespace, name), (None, name)):
            if (tool := self._by_place.get(place)) is not None:
                return tool.flat
        named = [tool for tool in self.tools if tool.name == name]
        if namespace is None and len(named) == 1:
            return named[0].flat
        return _legal(_joined(namespace, name), namespace, name)

    def meant_by(self, flat: str) -> Tool:
        """Return what the client knows by the upstream's name; a function where nobody does."""
        return self._by_flat.get(flat) or Tool(flat, ToolKind.FUNCTION, flat)

    def only(self, flat_names: set[str]) -> Toolbox:
        """Return the toolbox with these tools alone."""
        return Toolbox(tool for tool in self.tools if tool.flat in flat_names)


def read_tools(body: Json, left_out: Counter[LeftOut]) -> Toolbox:
    """Return the tools of a request, wherever it declares them.

    Args:
        body: The request.
        left_out: Counts hosted tools.
    """
    tools: list[Tool] = []
    places: set[tuple[str | None, str]] = set()
    flats: set[str] = set()
    for value, namespace in _declarations(body):
        tool = _read_tool(value, namespace)
        if tool is None:
            left_out[LeftOut.HOSTED_TOOL] += 1
            continue
        place = tool.namespace, tool.name
        if place in places:
            continue
        if tool.flat in flats:
            tool = replace(tool, flat=_digested(tool.flat, tool.namespace, tool.name))
        places.add(place)
        flats.add(tool.flat)
        tools.append(tool)
    return Toolbox(tools)


def _declarations(body: Json) -> Iterator[tuple[Json, str | None]]:
    """Yield every tool with its namespace: those of ``tools``, then those of the input."""
    lists = [body.get("tools")]
    items = body.get("input")
    lists += [
        item.get("tools")
        for item in (items if isinstance(items, list) else ())
        if isinstance(item, dict) and item.get("type") in _CARRIERS
    ]
    for tools in lists:
        for tool in tools if isinstance(tools, list) else ():
            match tool:
                case {"type": "namespace", "tools": list() as members}:
                    name = tool.get("name")
                    namespace = name if isinstance(name, str) and name else None
                    yield from ((one, namespace) for one in members if isinstance(one, dict))
                case dict():
                    yield tool, None
                case _:
                    pass


def _read_tool(value: Json, namespace: str | None) -> Tool | None:
    """Return a tool as a function; None for one that only its provider can run."""
    described = value.get("function")
    if value.get("type") == "function" and isinstance(described, dict):
        value = {**described, "type": "function"}  # the layout of chat completions
    kind, name = value.get("type"), value.get("name")
    if kind == SEARCH and value.get("execution") == "client":
        kind, name = ToolKind.SEARCH, SEARCH
    elif kind not in (ToolKind.FUNCTION, ToolKind.CUSTOM) or not isinstance(name, str):
        return None
    parameters = value.get("parameters")
    if kind == ToolKind.CUSTOM:
        parameters = _ONE_INPUT
    elif not isinstance(parameters, dict) or not parameters:
        parameters = _NO_PARAMETERS
    elif "type" not in parameters:
        parameters = {"type": "object", **parameters}
    return Tool(
        flat=_legal(_joined(namespace, name), namespace, name),
        kind=ToolKind(kind),
        name=name,
        namespace=namespace,
        description=_description(value),
        parameters=parameters,
        strict=value.get("strict") is True,
    )


def _description(value: Json) -> str:
    text = value.get("description")
    text = text if isinstance(text, str) else ""
    match value.get("format"):
        case {"type": "grammar", "definition": str() as definition, **rest}:
            syntax = rest.get("syntax") or "following"
            rule = f'"{INPUT}" must match this {syntax} grammar:\n{definition}'
            return f"{text}\n\n{rule}" if text else rule
        case _:
            return text


def _joined(namespace: str | None, name: str) -> str:
    return name if namespace is None else f"{namespace.removesuffix('__')}__{name}"


def _legal(flat: str, namespace: str | None, name: str) -> str:
    return flat if _NAME.fullmatch(flat) else _digested(flat, namespace, name)


def _digested(flat: str, namespace: str | None, name: str) -> str:
    place = dumps([namespace, name])
    digest = hashlib.blake2b(place, digest_size=4).hexdigest()
    return f"{_FOREIGN.sub('_', flat)[:_KEPT]}_{digest}"


def toolbox_of(request: Request) -> Toolbox:
    """Return all tools of a request: what the calls of its answer are named after."""
    return read_tools(request.body, Counter())


# --- Choice -----------------------------------------------------------------------------------


def read_choice(body: Json, toolbox: Toolbox) -> tuple[Toolbox, Choice]:
    """Return the tools that may be called, and how.

    ``allowed_tools`` is told by declaring nothing else: other dialects have no such form, or not
    all of their upstreams.

    Raises:
        RequestError: It forces a call that the upstream can't make.
    """
    match body.get("tool_choice"):
        case None | "auto":
            return toolbox, Choice()
        case "none":
            return toolbox, Choice("none")
        case "required":
            return toolbox, _required(toolbox)
        case {"type": "function" | "custom"} as named:
            return toolbox, Choice("named", _named(named, toolbox))
        case {"type": "allowed_tools", "tools": list() as tools, **rest}:
            allowed = toolbox.only(_allowed(tools, toolbox))
            forced = rest.get("mode") == "required"
            return allowed, _required(allowed) if forced else Choice()
        case {"type": str() as kind}:
            raise RequestError(
                f"'tool_choice' forces {kind}, a hosted tool that this upstream does not have. "
                "Choose 'auto' or a function, or use an upstream that speaks Responses."
            )
        case other:
            raise RequestError(
                f"'tool_choice' is {other!r:.80}, which is none that can be translated. "
                "Send 'auto', 'none', 'required' or a function."
            )


def _required(toolbox: Toolbox) -> Choice:
    if toolbox.tools:
        return Choice("required")
    raise RequestError(
        "'tool_choice' requires a call, but the request offers no function that this upstream "
        "could call. Declare one, or choose 'auto'."
    )


def _named(choice: Json, toolbox: Toolbox) -> str:
    described = choice.get("function")
    name = (described if isinstance(described, dict) else choice).get("name")
    namespace = choice.get("namespace")
    flat = toolbox.flat_name(str(name), namespace if isinstance(namespace, str) else None)
    if any(tool.flat == flat for tool in toolbox.tools):
        return flat
    raise RequestError(
        f"'tool_choice' names {name!r:.80}, but the request declares no function of that name. "
        "Declare it, or choose 'auto'."
    )


def _allowed(entries: list[object], toolbox: Toolbox) -> set[str]:
    """Return the flat names that ``allowed_tools`` names; a namespace stands for all it has."""
    allowed = set()
    for entry in entries:
        match entry:
            case {"type": "namespace", "name": str() as name}:
                allowed |= {tool.flat for tool in toolbox.tools if tool.namespace == name}
            case {"name": str() as name, **rest}:
                namespace = rest.get("namespace")
                allowed.add(
                    toolbox.flat_name(name, namespace if isinstance(namespace, str) else None)
                )
            case {"type": "tool_search"}:
                allowed.add(SEARCH)
            case _:  # a hosted one
                pass
    return allowed


# --- Arguments --------------------------------------------------------------------------------


def arguments_of(item: Json) -> str:
    """Return the arguments of a call in a history, as the text of a JSON value."""
    match item:
        case {"type": "custom_tool_call"}:
            return dumps({INPUT: _text(item.get("input"))}).decode()
        case {"arguments": str() as arguments}:
            return arguments
        case _:
            return dumps(item.get("arguments") or {}).decode()


def object_of(arguments: str) -> Json | None:
    """Return arguments as the object that they are; none at all are an empty one.

    None where they are something else: dialects with arguments that are objects then send an
    empty one and say so, with ``UNPARSEABLE``.
    """
    if not arguments.strip():
        return {}
    try:
        value = loads(arguments.encode("utf-8", "surrogatepass"))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else dumps(value).decode()


def input_of(arguments: str) -> str:
    """Return the one text of a custom tool from the arguments that the model gave.

    Where the model did not keep to the one parameter, a single string counts as what it meant,
    and anything else is passed as it wrote it.
    """
    try:
        value = loads(arguments.encode("utf-8", "surrogatepass"))
    except ValueError:
        return arguments
    match value:
        case {"input": str() as text}:
            return text
        case str() as text:
            return text
        case {**members} if not members:
            return ""
        case dict() if len(value) == 1 and isinstance(text := next(iter(value.values())), str):
            return text
        case _:
            return arguments
