"""What a provider repeats of a request: our tools, and the calls that we put back, are cut out.

A lifecycle event's response repeats the request's tools, its tool choice, and with some providers
its input. Tools stand in lists of their own, in items that add tools, and inside of namespaces,
into which providers sort also what was declared outside of one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pipeline.jsontext import cutting, dumps, set_members, splice
from pipeline.request import updated
from pipeline.restored import NOTHING
from pipeline.toolset import CARRIERS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pipeline.accepted import Accepted
    from pipeline.jsonspans import Json, Path
    from pipeline.restored import Restored

    Cut = tuple[Path, Callable[[Json], bool]]
    """Where an array stands, and which of its elements go."""

CALLS: Final = ("function_call", "custom_tool_call")
OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_PAIRED: Final = CALLS + OUTPUTS


def cut_echo(
    data: bytes,
    event: dict[str, Any],
    names: Collection[str],
    restored: Restored = NOTHING,
) -> tuple[bytes, dict[str, Any]]:
    """Cut our tools out of what a provider repeats of the request in a lifecycle event.

    Args:
        data: The event's JSON text.
        event: Its value, with the ``response`` object.
        names: Of the tools that were declared.
        restored: What the request carries that the client never had.

    Returns:
        Text and value without our tools and what was put back, and with the id that the client
        knows of the response that it continues; all else as the provider wrote it; the same objects
        where nothing of it was repeated.
    """
    response = event.get("response")
    if not isinstance(response, dict):
        return data, event
    if _is_choice(response.get("tool_choice"), names):
        data, event = _without_choice(data, event)
    if restored.continues is not None:
        data, event = _with_known_id(data, event, restored.continues)
    cuts = _cuts(event["response"], names, restored)
    if not cuts:
        return data, event
    value = event
    for path, gone in reversed(cuts):  # the inner ones first: their places are still the old ones
        value = updated(value, path, partial(_without, gone))
    if dumps(event) == data:
        return dumps(value), value
    return splice(data, [cut for path, gone in cuts for cut in cutting(data, event, gone, path)]), (
        value
    )


def without_echo(
    accepted: Accepted, names: Collection[str], restored: Restored = NOTHING
) -> Accepted:
    """Return a lifecycle event without what is ours in the provider's echo of the request.

    Args:
        accepted: The event; the same where nothing of ours is in it.
        names: Of the tools that were declared.
        restored: What the request carries that the client never had.
    """
    if not names and not restored:
        return accepted
    data = accepted.data
    if data is None or accepted.changes:
        data = dumps(accepted.event)
    cut, event = cut_echo(data, accepted.event, names, restored)
    if event is accepted.event:
        return accepted
    return accepted._replace(
        event=event,
        data=None if accepted.data is None else cut,
        changes=frozenset(),
        verbatim=False,
    )


def without_output(accepted: Accepted) -> Accepted:
    """Empty the output of a response that is not over: what is hidden could stand there."""
    response = accepted.event["response"]
    if not response.get("output"):
        return accepted
    event = {**accepted.event, "response": {**response, "output": []}}
    return accepted._replace(event=event, changes=accepted.changes | {"response"}, verbatim=False)


def _with_known_id(
    data: bytes, event: dict[str, Any], continues: tuple[str, str]
) -> tuple[bytes, dict[str, Any]]:
    """Name the response that the request continues as its client does."""
    response, key = event["response"], "previous_response_id"
    known, sent = continues
    if response.get(key) != sent:
        return data, event
    return set_members(data, event, {key: dumps(known)}, ("response",)), {
        **event,
        "response": {**response, key: known},
    }


def hidden_call_ids(items: list[Json], names: Collection[str]) -> set[str]:
    """Return the call ids of hidden calls among input items."""
    return {
        item["call_id"]
        for item in items
        if isinstance(item, dict)
        and item.get("type") in CALLS
        and isinstance(name := item.get("name"), str)
        and name in names
        and isinstance(item.get("call_id"), str)
    }


def _is_choice(choice: Json, names: Collection[str]) -> bool:
    """Tell whether a choice is one of our tools."""
    if isinstance(choice, str):
        return choice in names
    return isinstance(choice, dict) and _is_ours(choice, names)


def _without_choice(data: bytes, event: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Put ``auto`` where a provider says that one of our tools was chosen: no client asked that."""
    value = {**event, "response": {**event["response"], "tool_choice": "auto"}}
    if dumps(event) == data:
        return dumps(value), value
    return set_members(data, event, {"tool_choice": b'"auto"'}, ("response",)), value


def _without(gone: Callable[[Json], bool], array: list[Json]) -> list[Json]:
    return [each for each in array if not gone(each)]


def _cuts(response: dict[str, Any], names: Collection[str], restored: Restored) -> list[Cut]:
    cuts: list[Cut] = []
    for key in ("tools", "tool_choice", "additional_tools"):
        if tools := response.get(key):
            _add_tools(cuts, tools, ("response", key), names)
    items = response.get("input")
    if isinstance(items, list):
        _add_input(cuts, items, names, restored)
    return cuts


def _add_input(
    cuts: list[Cut], items: list[Json], names: Collection[str], restored: Restored
) -> None:
    """Add what goes out of a provider's echo of the input."""
    at: Path = ("response", "input")
    ids = hidden_call_ids(items, names)

    def is_hidden(item: Json) -> bool:
        return is_call_or_output(item, ids) or restored.is_of(item)

    if any(map(is_hidden, items)):
        cuts.append((at, is_hidden))
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") in CARRIERS:
            _add_tools(cuts, item, (*at, index), names)


def _add_tools(cuts: list[Cut], tools: Json, at: Path, names: Collection[str]) -> None:
    """Add the arrays of tools that have ours: this one, and behind it those of its elements."""
    if isinstance(tools, dict):
        tools, at = tools.get("tools"), (*at, "tools")
    if not isinstance(tools, list):
        return
    place, found = len(cuts), False
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            continue
        if _is_ours(tool, names):
            found = True
        elif "tools" in tool:
            _add_tools(cuts, tool, (*at, index), names)
    if found:
        cuts.insert(place, (at, partial(_is_ours, names=names)))


def _is_ours(entry: Json, names: Collection[str]) -> bool:
    """Tell whether an element is a tool of ours, or a namespace that has nothing else."""
    if not isinstance(entry, dict):
        return False
    kind = entry.get("type")
    if kind == "function":
        function = entry.get("function")  # the layout of chat completions
        name = (function if isinstance(function, dict) else entry).get("name")
        return isinstance(name, str) and name in names
    tools = entry.get("tools") if kind == "namespace" else None
    return isinstance(tools, list) and bool(tools) and all(_is_ours(one, names) for one in tools)


def is_call_or_output(item: Json, ids: Collection[str]) -> bool:
    """Tell whether an item is the call with one of some ids, or its output."""
    match item:
        case {"type": str() as kind, "call_id": str() as call_id}:
            return kind in _PAIRED and call_id in ids
        case _:
            return False
