"""What the SDK's ``responses.stream()`` looks up in a stream as it accumulates it.

A rule says that a member is missing; whether this client breaks on it depends on what comes after:
an item without ``arguments`` does no harm before the first delta. So the verdict is not read from
the table of rules but found as the client itself finds it, by following its look-ups.
"""

from __future__ import annotations

from typing import Any, Final

from pipeline.lifecycle import BARE_ITEMS, EVENTS, Action

Json = dict[str, Any]

_BY_CALL: Final = ("function_call", "custom_tool_call", "shell_call", "shell_call_output")
"""The item types that it knows by their call id alone."""
_MAY_GET_AN_ID: Final = ("function_call", "custom_tool_call")
_BEGINNINGS: Final = ("response.created", "response.queued", "response.in_progress")


class SDKStream:
    """The client, as far as it has read.

    Attributes:
        broken: Whether it has raised an error, or ended with an empty value.
    """

    def __init__(self) -> None:
        self.broken = False
        self._id: object = None
        self._begun = False
        self._items: dict[object, Json] = {}
        self._done: dict[object, Json] = {}

    def take(self, event: Json) -> bool:
        """Take an event as the provider sent it; say whether the client breaks on it."""
        if not self.broken:
            try:
                self._accumulate(event)
            except (AttributeError, LookupError, TypeError, ValueError):  # as the client itself
                self.broken = True
                return True
        return False

    def _accumulate(self, event: Json) -> None:
        kind = event.get("type")
        _require(not event.get("error"))
        if not self._begun:
            _require(kind == "response.created")
            self._begin(event["response"])
            return
        spec = EVENTS.get(kind) if isinstance(kind, str) else None
        if spec is not None and spec.action is Action.RESPONSE:
            self._take_response(str(kind), event["response"])
            return
        match kind:
            case "response.output_item.added":
                self._add(event)
            case "response.output_item.done":
                self._finish(event.get("output_index"), event["item"])
            case "response.content_part.added":
                item = self._items[event.get("output_index")]
                part = dict(event["part"])
                if item.get("type") == "message":
                    item["content"].append(part)
            case "response.output_text.delta" | "response.output_text.done":
                self._take_text(event, grows=kind.endswith("delta"))
            case "response.function_call_arguments.delta":
                item = self._items[event.get("output_index")]
                _require(item.get("type") == "function_call")
                item["arguments"] += event["delta"]
            case _:
                pass

    def _begin(self, response: Json) -> None:
        self._begun, self._id = True, response.get("id")
        self._items = dict(enumerate(map(_copy, response.get("output") or [])))

    def _add(self, event: Json) -> None:
        if event.get("item") is None:
            return
        index = event.get("output_index")
        _require(index not in self._items)
        self._items[index] = _copy(event["item"])

    def _take_text(self, event: Json, *, grows: bool) -> None:
        item = self._items[event.get("output_index")]
        _require(item.get("type") == "message")
        part = item["content"][event["content_index"]]
        _require(part.get("type") == "output_text")
        if grows:
            part["text"] += event["delta"]

    def _finish(self, index: object, item: Json) -> None:
        added = self._items.get(index)
        if added is not None:
            _require(_identity(added) == _identity(item) and _may_become(added, item))
        others = (_identity(one) for place, one in self._done.items() if place != index)
        _require(_identity(item) not in others)
        self._done[index] = item

    def _take_response(self, kind: str, response: Json) -> None:
        _require(response.get("id") == self._id)
        output = response.get("output")
        final = {_identity(item): item for item in output or []}
        if kind in _BEGINNINGS:
            _require(len(final) == len(output or []))
        if kind != "response.completed":
            return
        for item in self._done.values():
            _require(_may_become(item, final.get(_identity(item), item)))
        for index, item in self._items.items():
            if index not in self._done:
                _require(_may_become(item, final[_identity(item)]))
        _require(output is None or bool(output) or not self._done)  # or its final value is empty


def _require(met: object) -> None:
    if not met:
        raise ValueError


def _copy(item: Json) -> Json:
    """Return an item to which parts can be appended."""
    lists = {
        name: [dict(one) for one in item[name]]
        for name in BARE_ITEMS.get(str(item.get("type")), ())
        if isinstance(item.get(name), list)
    }
    return {**item, **lists}


def _identity(item: Json) -> tuple[object, object, object]:
    kind = item.get("type")
    return kind, None if kind in _BY_CALL else item.get("id"), item.get("call_id")


def _may_become(item: Json, later: Json) -> bool:
    identity = item.get("id")
    return identity == later.get("id") or (identity is None and item["type"] in _MAY_GET_AN_ID)
