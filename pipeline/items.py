"""What makes an item the same when it comes back: canonical form and join keys.

Clients send back what they were sent, but not always as they were sent it: they drop ids, nulls,
statuses and annotations, and write a message's text in a shorter form. The canonical form is what
survives of an item. Join keys are by what one is found among many; strongest first:

- ``call:ID`` or ``result:ID``: a call, or the output of one, by its ``call_id``.
- ``id:ID``: the item's id. Clients strip ids; some make up new ones.
- ``sha:DIGEST``: the canonical content, of items that are no calls.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pipeline.jsontext import dumps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.jsonspans import Json

# Tuples, not sets: what is sent as a type or a role may be unhashable.
INPUT_ROLES: Final = ("user", "system", "developer")
"""Roles of messages that clients write. Ids of these are theirs, and new ones every time."""
_IGNORED: Final = ("id", "status", "annotations", "logprobs")
"""What clients drop or add without changing what an item says."""
_FIELDS: Final = {
    "reasoning": ("summary", "content", "encrypted_content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
}
"""What the known types say. Of any other type all fields count."""
_TEXT_PARTS: Final = ("input_text", "output_text")
_PLAIN: Final = frozenset({"type", "text", "annotations", "logprobs"})
_LASTING_IDS: Final = ("msg_", "rs_", "fc_", "ctc_")
"""How ids begin that clients send back as they are: another id is another item."""
_LASTING: Final = ("call:", "result:", *["id:" + prefix for prefix in _LASTING_IDS])
"""The same of keys."""
_USUAL: Final = 1 << 14
"""Characters of the longest text whose digest is remembered."""
_REMEMBERED: Final = 256
"""Of how many texts the digest is remembered."""


def item_type(item: dict[str, Any]) -> str:
    """Return the type of an item; messages may lack it."""
    kind = item.get("type")
    return kind if isinstance(kind, str) else "message"


def was_answered(item: dict[str, Any]) -> bool:
    """Tell whether a provider made an item: it is no message and no result of the client."""
    return item.get("role") not in INPUT_ROLES and not item_type(item).endswith("_output")


def canonical(item: dict[str, Any]) -> bytes:
    """Return what an item says, in a form that equal items share: the measure of a prefix.

    Ids are left out, as clients drop them: compare with `same_item`.
    """
    kind = item_type(item)
    if kind == "message":
        return dumps([kind, item.get("role"), _spoken(item.get("content"))], sort_keys=True)
    fields = _FIELDS.get(kind) or [key for key in item if key not in _IGNORED]
    said = {key: _parts(item.get(key)) for key in fields}
    return dumps(
        [kind, {key: each for key, each in said.items() if each is not None}], sort_keys=True
    )


def _spoken(content: Json) -> Json:
    """Return the parts of a message; a string stands for one text."""
    return [content] if isinstance(content, str) else _parts(content)


def _parts(value: Json) -> Json:
    return [_part(each) for each in value] or None if isinstance(value, list) else value


def _part(part: Json) -> Json:
    """Return a text as such, and of any other part what clients don't drop."""
    if not isinstance(part, dict):
        return [part]
    if part.get("type") in _TEXT_PARTS and part.keys() <= _PLAIN:
        return part.get("text")
    kept = {key: part[key] for key in part if key not in _IGNORED and part[key] is not None}
    if kept.get("type") in _TEXT_PARTS:
        return kept["text"] if kept.keys() == {"type", "text"} else kept | {"type": "text"}
    return kept


def same_item(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether two items are the same: equal content, and equal ids where both have one."""
    ids = {item["id"] for item in (one, other) if isinstance(item.get("id"), str)}
    return len(ids) < 2 and canonical(one) == canonical(other)


def has_lasting_id(item: dict[str, Any]) -> bool:
    """Tell whether an item has an id by which alone it is the same."""
    id_ = item.get("id")
    return isinstance(id_, str) and id_.startswith(_LASTING_IDS)


def join_keys(item: dict[str, Any], *, digest: bool = True) -> tuple[str, ...]:
    """Return by what an item is recognised, strongest first.

    Args:
        item: An input or output item.
        digest: Whether to digest content; it costs a pass over the item.
    """
    call_id = item.get("call_id")
    if isinstance(call_id, str) and call_id:
        scheme = "result:" if item_type(item).endswith("_output") else "call:"
        keys = [scheme + call_id]
        digest = False
    else:
        keys = []
    id_ = item.get("id")
    if isinstance(id_, str) and id_ and item.get("role") not in INPUT_ROLES:
        keys.append("id:" + id_)
    if digest:
        keys.append("sha:" + _digest(item))
    return tuple(keys)


def _digest(item: dict[str, Any]) -> str:
    if item_type(item) == "message":
        match item.get("role"), _spoken(item.get("content")):
            # It comes again with every request of its conversation.
            case str() as role, [str() as text] if len(text) <= _USUAL:
                return _digest_of_text(role, text)
            case _:
                pass
    # Providers encrypt the same reasoning anew in every event: ciphertext tells nothing.
    told = item | {"encrypted_content": None} if "encrypted_content" in item else item
    return _hexdigest(canonical(told))


@lru_cache(maxsize=_REMEMBERED)
def _digest_of_text(role: str, text: str) -> str:
    return _hexdigest(canonical({"role": role, "content": text}))


def _hexdigest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def keys_match(known: tuple[str, ...], keys: tuple[str, ...]) -> bool:
    """Tell whether an item is the one that is known by its join keys.

    Args:
        known: Keys of the item that was sent to the client.
        keys: Keys of the item that came back.
    """
    for key in known:
        if key in keys:
            return True
        scheme = key[: key.index(":") + 1]
        if key.startswith(_LASTING) and any(other.startswith(scheme) for other in keys):
            return False
    return False


def is_output(keys: Iterable[str]) -> bool:
    """Tell whether keys are those of a call's output."""
    return any(key.startswith("result:") for key in keys)
