"""What a provider keeps of a conversation, as its client may see it.

A provider stores the requests that it got and the responses that it gave, with our tools and the
hidden calls in them. What comes back of that later is known by the ledger's groups, by their call
ids; and by our own declaration, which is the same in every request, so that it needs no record.
All else stays as the provider wrote it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline import jsontext
from pipeline.echo import cut_echo
from pipeline.restored import Restored
from pipeline.toolset import offered_tools

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pipeline.history import HiddenGroup, Slot
    from pipeline.jsonspans import Json, Path
    from pipeline.request import HiddenTool


class Concealed:
    """What the client never saw of some turns.

    Args:
        groups: Of these turns.
        names: Calls of these names are hidden as well, whatever the groups say.
    """

    def __init__(self, groups: Iterable[HiddenGroup] = (), names: Collection[str] = ()) -> None:
        self._names = frozenset(names)
        self._calls: dict[str, set[str]] = {}
        self._ids: set[str] = set()
        self._withheld: set[str] = set()
        for group in groups:
            for slot in group.slots:
                self._take(slot)

    def _take(self, slot: Slot) -> None:
        if slot.hidden is None:
            if slot.withheld:
                self._withheld.update(key for key in slot.keys if key.startswith("id:"))
            return
        item = jsontext.loads(slot.hidden)
        call_id, name = item.get("call_id"), item.get("name")
        if isinstance(call_id, str):
            known = self._calls.setdefault(call_id, set())
            if isinstance(name, str):
                known.add(name)
        else:
            self._ids.update(slot.keys)

    def names(self, items: Iterable[Json]) -> set[str]:
        """Return what the hidden calls among items are named."""
        return {item["name"] for item in items if _is_call(item) and self.hides(item)}

    def hides(self, item: Json) -> bool:
        """Tell whether the client never saw an item."""
        if not isinstance(item, dict):
            return False
        call_id, name = item.get("call_id"), item.get("name")
        if _is_call(item) and name in self._names:
            return True
        if isinstance(call_id, str):
            # Some providers give the same call ids in every response: a call has its name as well.
            known = self._calls.get(call_id)
            return known is not None and (_is_output(item) or name in known)
        return f"id:{item.get('id')}" in self._ids

    def withholds(self, item: Json) -> bool:
        """Tell whether the client saw an item without its ciphertext."""
        return (
            isinstance(item, dict)
            and "encrypted_content" in item
            and f"id:{item.get('id')}" in self._withheld
        )

    def shown(self, data: bytes, value: dict[str, Any], key: str) -> tuple[bytes, dict[str, Any]]:
        """Take what is hidden out of an array of items.

        Args:
            data: A JSON text.
            value: Its value, an object.
            key: The member that is an array; anything else stays as it is.

        Returns:
            Text and value; the same objects where nothing was hidden.
        """
        items = value.get(key)
        if not isinstance(items, list):
            return data, value
        hidden = {item["call_id"] for item in items if _is_named_call(item) and self.hides(item)}
        gone = partial(self._is_gone, hidden=hidden)
        if any(map(gone, items)):
            data = jsontext.cut_elements(data, value, gone, (key,))
            items = [item for item in items if not gone(item)]
            value = {**value, key: items}
        for index, item in enumerate(items):
            if self.withholds(item):
                at: Path = (key, index)
                data = jsontext.drop_members(data, value, ("encrypted_content",), at)
                rest = {name: one for name, one in item.items() if name != "encrypted_content"}
                items = [*items[:index], rest, *items[index + 1 :]]
                value = {**value, key: items}
        return data, value

    def _is_gone(self, item: Json, hidden: Collection[str]) -> bool:
        return self.hides(item) or (_is_output(item) and item.get("call_id") in hidden)


def declared_names(response: dict[str, Any], tools: Sequence[HiddenTool]) -> set[str]:
    """Return the names of our tools among those that a stored response was offered.

    A client may have a tool of the same name: ours is known by its parameters or its description,
    which providers repeat as they got them.
    """
    ours: dict[str, Mapping[str, Json]] = {
        tool.name: jsontext.loads(tool.declaration) for tool in tools
    }
    return {tool["name"] for tool in _offered(response) if _is_ours(tool, ours)}


def _offered(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from offered_tools(response)
    yield from offered_tools({"tools": response.get("additional_tools")})


def _is_ours(tool: dict[str, Any], ours: Mapping[str, Mapping[str, Json]]) -> bool:
    name = tool.get("name")
    declared = ours.get(name) if isinstance(name, str) else None
    return declared is not None and any(
        bool(declared.get(key)) and tool.get(key) == declared[key]
        for key in ("parameters", "description")
    )


def shown_response(
    data: bytes,
    response: dict[str, Any],
    *,
    names: Collection[str],
    concealed: Concealed,
    continues: tuple[str, str] | None = None,
) -> tuple[bytes, dict[str, Any]]:
    """Return a stored response object as its client may see it.

    Args:
        data: Its JSON text.
        response: Its value.
        names: Of our tools that it was offered.
        concealed: What is hidden in its output.
        continues: The id of the response before it as the client knows it, and the upstream's.

    Returns:
        Text and value; the same text where there was nothing of ours.
    """
    event = {"response": response}
    prefix = b'{"response":'
    text = prefix + data + b"}"
    cut, event = cut_echo(text, event, names, Restored((), continues))
    if cut is not text:
        data = cut[len(prefix) : -1]
    return concealed.shown(data, event["response"], "output")


def _is_call(item: Json) -> bool:
    return (
        isinstance(item, dict)
        and str(item.get("type")).endswith("_call")
        and isinstance(item.get("name"), str)
    )


def _is_named_call(item: Json) -> bool:
    return _is_call(item) and isinstance(item.get("call_id"), str)


def _is_output(item: Json) -> bool:
    return isinstance(item, dict) and str(item.get("type")).endswith("_output")
