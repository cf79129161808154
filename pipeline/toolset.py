"""What a request says about tools, wherever it says it.

There are two layouts: ``tools`` of the request, or an ``additional_tools`` item of its input.
Searches for tools add more items, and namespaces hold tools of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.jsonspans import Json, Path

# Tuples, not sets: what a client sends as a type may be unhashable.
_CLIENT_KINDS: Final = ("function", "custom", "namespace")
CARRIERS: Final = ("additional_tools", "tool_search_output")
"""Input items that declare tools, beside the request's own ``tools``."""


def offered_tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every tool that the model is offered: in each layout, and inside of namespaces."""
    lists = [body.get("tools")]
    items = body.get("input")
    if isinstance(items, list):
        lists += [
            item.get("tools")
            for item in items
            if isinstance(item, dict) and item.get("type") in CARRIERS
        ]
    offered = []
    for tools in lists:  # grows, as namespaces are found
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict):
                offered.append(tool)
                if "tools" in tool:
                    lists.append(tool["tools"])
    return offered


def tool_names(tools: Iterable[dict[str, Any]]) -> frozenset[str]:
    """Return the names of tools: the client's have one, hosted tools lack it."""
    names = set()
    for tool in tools:
        if isinstance(name := tool.get("name"), str):
            names.add(name)
        function = tool.get("function")  # the layout of chat completions
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            names.add(name)
    return frozenset(names)


def is_client_tool(tool: dict[str, Any]) -> bool:
    """Tell whether the client answers the tool's calls."""
    return tool.get("type") in _CLIENT_KINDS


def leaves_a_choice(tool_choice: Json) -> bool:
    """Tell whether the model may call a tool that the choice doesn't name."""
    return tool_choice in (None, "auto", "required") or is_allowed_tools(tool_choice)


def is_allowed_tools(tool_choice: Json) -> TypeGuard[dict[str, Any]]:
    """Tell whether a choice lists the tools that may be called, in ``tools``."""
    match tool_choice:
        case {"type": "allowed_tools", "tools": list()}:
            return True
        case _:
            return False


def tools_place(body: dict[str, Any]) -> Path:
    """Return the array in which the client declares its tools."""
    items = body.get("input")
    if not body.get("tools") and isinstance(items, list):
        for index, item in enumerate(items):
            match item:
                case {"type": "additional_tools", "tools": list()}:
                    return ("input", index, "tools")
                case _:
                    pass
    return ("tools",)
