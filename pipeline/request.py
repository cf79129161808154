"""The client's request: what it says about tools, and our additions to its text.

Three decisions are made independently of each other: past hidden calls are put back
(`pipeline.restore`), our tools are declared (`declaration_blocker`, `declare`), calls of them are
hidden. Only what an addition needs is touched. It stands behind what the client wrote, with the
same bytes every time, so that the provider's prompt cache keeps its prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

from pipeline.errors import RequestError
from pipeline.jsonplaces import ObjectText
from pipeline.jsontext import (
    Splice,
    appending,
    dumps,
    extending,
    loads,
    setting_members,
    splice,
)
from pipeline.toolset import (
    is_allowed_tools,
    is_client_tool,
    leaves_a_choice,
    offered_tools,
    tool_names,
    tools_place,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pipeline.jsonspans import Json, Path

CIPHERTEXT: Final = "reasoning.encrypted_content"
"""What a request includes to get reasoning that it can send back unstored."""
_CIPHERTEXT: Final = dumps(CIPHERTEXT)

_SHAPES: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "input": ((str, list), "a string or an array of items"),
    "tools": ((list,), "an array of tools"),
    "stream": ((bool,), "true or false"),
}


@dataclass(frozen=True, slots=True)
class HiddenTool:
    """A tool that only the provider sees.

    Args:
        name: What its calls are named.
        declaration: A function tool as JSON text, the same bytes in every request.
        early: Whether a call may run before its response completed, because it changes nothing;
            any other waits for that, since the response may fail and take its calls with it.
    """

    name: str
    declaration: bytes
    early: bool = True


class Request:
    """A request: ``text`` is what is sent, ``body`` its value. Editing one edits both.

    A text may be long, and most requests get several edits. So a request keeps the text that it
    was made from, and makes all of them in one copy, when its own text is asked for.

    Args:
        text: JSON text of an object.
        body: Its value; never changed in place.
    """

    __slots__ = ("_edited", "_source", "_splices", "_text", "body")

    def __init__(self, text: bytes, body: dict[str, Any]) -> None:
        self.body = body
        self._text = text
        # What the splices are of; None where it is the text with this body.
        self._source: ObjectText | None = None
        self._splices: tuple[Splice, ...] = ()
        self._edited: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: ObjectText) -> Request:
        """Return the request that a text is, with what is known of its places."""
        request = cls(source.data, source.value)
        request._source = source
        return request

    def __repr__(self) -> str:
        return f"<Request with {len(self.body)} members, {len(self._splices)} edits to make>"

    @property
    def text(self) -> bytes:
        """The JSON text, as it is sent."""
        if self._splices:
            self._text = splice(self._text, self._splices)
            self._source, self._splices, self._edited = None, (), ()
        return self._text

    def source(self, *names: str) -> ObjectText:
        """Return a text and its value, in which some members are as they are in this request.

        Places in this text are what `edited` takes.

        Args:
            names: The top-level members that will be edited, or read.
        """
        source = self._source
        if (
            source is not None
            and self._splices
            and (not source.value or not set(names).isdisjoint(self._edited))
        ):
            source = None
        if source is None:
            source = self._source = ObjectText(self.text, self.body)
        return source

    def edited(self, splices: Iterable[Splice], members: Mapping[str, Json]) -> Request:
        """Return this request with some members changed or added.

        Args:
            splices: The edits, in the text that `source` returned for these members.
            members: Their new values.
        """
        changed = Request(self._text, {**self.body, **members})
        changed._source = self._source
        changed._splices = (*self._splices, *splices)
        changed._edited = (*self._edited, *members)
        return changed

    def with_members(self, values: Mapping[str, Json]) -> Request:
        """Return this request with members of these values."""
        texts = {name: dumps(value) for name, value in values.items()}
        return self.edited(setting_members(self.source(*values), texts), values)


@dataclass(slots=True)
class Declared:
    """A request with our tools in it.

    Args:
        request: The edited request.
        include_added: Whether ciphertext was asked for by us, so that the client must not see it.
    """

    request: Request
    include_added: bool


class Undeclared(StrEnum):
    """Why a tool of ours is not declared in a request."""

    OFF = "off"
    COMPACTION = "compaction"
    CONVERSATION = "conversation"
    BACKGROUND = "background"
    NO_CLIENT_TOOL = "no_client_tool"
    NAME_TAKEN = "name_taken"
    TOOL_CHOICE = "tool_choice"


def read_request(data: bytes) -> Request:
    """Parse a request body.

    Only what has to be understood is checked; the rest is the provider's to judge.

    Raises:
        RequestError: It is no JSON object, or ``input``, ``tools`` or ``stream`` can't be read.
    """
    try:
        body = loads(data)
    except ValueError as error:
        raise RequestError(
            f"The request body could not be parsed as JSON ({error}). "
            "Send one JSON object in UTF-8."
        ) from None
    if not isinstance(body, dict):
        raise RequestError(
            f"The request body is {_kind(body)}, but a request has named fields. "
            "Send one JSON object."
        )
    return checked(Request(data, body))


def checked(request: Request) -> Request:
    """Return a request whose members can be read.

    Raises:
        RequestError: ``input``, ``tools`` or ``stream`` can't.
    """
    for key, (types, expected) in _SHAPES.items():
        value = request.body.get(key)
        if value is not None and not isinstance(value, types):
            raise RequestError(
                f"'{key}' is {_kind(value)}, but has to be {expected} to be read. "
                f"Send {expected}, or leave it out."
            )
    return request


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"
        case _:
            return "a number"


def input_items(body: dict[str, Any]) -> list[Any]:
    """Return the items of a request; a string stands for one message of the user."""
    match body.get("input"):
        case str() as text:
            return [{"type": "message", "role": "user", "content": text}]
        case list() as items:
            return items
        case _:
            return []


def with_array_input(request: Request) -> Request:
    """Return the request with its input as an array, to which items can be added."""
    match request.body.get("input"):
        case list():
            return request
        case str():
            source = request.source("input")
            span = source.members(("input",))["input"]
            content = source.data[span.start : span.end]
            array = b'[{"type":"message","role":"user","content":' + content + b"}]"
        case _:
            source = request.source("input")
            array = b"[]"
    splices = setting_members(source, {"input": array})
    return request.edited(splices, {"input": input_items(request.body)})


def is_compaction(body: dict[str, Any], request_kind: str | None) -> bool:
    """Tell whether a request asks for a summary of its history.

    Args:
        body: The parsed request.
        request_kind: What the client's metadata call it, if they do.
    """
    return has_trigger(body) or request_kind == "compaction"


def has_trigger(body: dict[str, Any]) -> bool:
    """Tell whether a request ends with the item that asks for a compaction, not for a turn."""
    match body.get("input"):
        case [*_, {"type": "compaction_trigger"}]:
            return True
        case _:
            return False


def client_tool_names(body: dict[str, Any]) -> frozenset[str]:
    """Return the names of all tools that have one: those of the client, which hosted tools lack."""
    return tool_names(offered_tools(body))


def declaration_blocker(
    request: Request,
    tool_name: str,
    *,
    enabled: bool,
    inject: Literal["with_tools", "always"],
    request_kind: str | None,
) -> Undeclared | None:
    """Say why a tool of ours can't be declared in a request, or None if it can.

    Args:
        request: The client's request.
        tool_name: What it is named.
        enabled: Whether configuration and request allow it.
        inject: Whether requests without a client tool get ours too.
        request_kind: What the client's metadata call the request, if they do.
    """
    body = request.body
    if not enabled:
        return Undeclared.OFF
    if is_compaction(body, request_kind):
        return Undeclared.COMPACTION
    if body.get("conversation") is not None:
        return Undeclared.CONVERSATION
    if body.get("background"):
        return Undeclared.BACKGROUND
    tools = offered_tools(body)
    if inject == "with_tools" and not any(map(is_client_tool, tools)):
        return Undeclared.NO_CLIENT_TOOL
    if tool_name in tool_names(tools):
        return Undeclared.NAME_TAKEN
    return None if leaves_a_choice(body.get("tool_choice")) else Undeclared.TOOL_CHOICE


def declare(request: Request, *tools: HiddenTool) -> Declared:
    """Declare our tools: as the last ones where the client declares its own.

    Args:
        request: A request without a `declaration_blocker` for any of them.
        tools: Our tools, one at least, in the order in which they stand in every request.
    """
    body = request.body
    declarations = [tool.declaration for tool in tools]
    additions: dict[str, Sequence[bytes]] = {}
    path = tools_place(body)
    if len(path) == 1:
        additions["tools"] = declarations
    else:
        request = _appended(request, path, declarations)
    choice = body.get("tool_choice")
    if is_allowed_tools(choice) and choice.get("mode") == "auto":
        entries = [dumps({"type": "function", "name": tool.name}) for tool in tools]
        request = _appended(request, ("tool_choice", "tools"), entries)
    include_added = body.get("store") is False and _lacks_ciphertext(body.get("include"))
    if include_added:
        additions["include"] = [_CIPHERTEXT]
    return Declared(with_elements(request, additions, parse=_parse_declared), include_added)


@lru_cache(maxsize=64)
def _parse_declared(text: bytes) -> Json:
    """Return the value of what is declared with the same text in every request."""
    return loads(text)


def _lacks_ciphertext(include: Json) -> bool:
    return include is None or (isinstance(include, list) and CIPHERTEXT not in include)


def with_elements(
    request: Request,
    additions: Mapping[str, Sequence[bytes]],
    *,
    parse: Callable[[bytes], Json] = loads,
) -> Request:
    """Append elements to arrays of a request; one that is null or absent is made.

    Args:
        request: The request.
        additions: JSON texts by the name of their array, one at least of each.
        parse: Reads an element's text.
    """
    if not additions:
        return request
    source = request.source(*additions)
    values = {
        name: [*(source.value.get(name) or ()), *map(parse, elements)]
        for name, elements in additions.items()
    }
    return request.edited(extending(source, additions), values)


def _appended(request: Request, path: Path, elements: Sequence[bytes]) -> Request:
    """Append elements to an array further inside of a request."""
    name = str(path[0])
    source = request.source(name)
    added = [_parse_declared(element) for element in elements]
    value = updated(source.value[name], path[1:], lambda array: [*array, *added])
    return request.edited(appending(source.data, source.value, elements, path), {name: value})


def updated(value: Json, path: Path, change: Callable[[Json], Json]) -> Json:
    """Change what stands at ``path`` in a copy of a value."""
    if not path:
        return change(value)
    step, *rest = path
    copy = value.copy()
    copy[step] = updated(value[step], tuple(rest), change)
    return copy
