"""What real providers leave out or get wrong, and how it is mended before it is accumulated.

Two steps, in this order around the lifecycle check:

``normalize_codex_event`` mends an event in itself: its type, its output index, the ids of its
item, the usage of a terminal. It changes the parsed event and says which members it changed, so
that the bytes for the client can be edited in the same places and nowhere else.

``seed_implicit_codex_item`` says which events are missing in front of it: the ``added`` of an
item whose deltas come unannounced, the part that a text belongs to, the ``done`` of items that
a terminal finds open, the items that only a terminal names.

Both serve every dialect: the sparse Codex backend made them necessary, but what they mend is
seen elsewhere too. Whether a deviation is a fault is the table's business (``lifecycle.RULES``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.attribution import id_of_implicit, index_of, index_of_done, type_of_implicit
from pipeline.closing import missing_items
from pipeline.lifecycle import (
    ADD,
    BARE_PARTS,
    EVENTS,
    FINISH,
    FREE,
    ITEM_DONE,
    ITEM_PREFIXES,
    NOT_BEGUN,
    OF_RESPONSE,
    TERMINALS,
    Action,
    Checker,
    EventSpec,
    ItemPhase,
    Rule,
)
from pipeline.members import bare_item, complete_event, complete_item
from pipeline.response import ItemState, ResponseState, completed_item, part_index
from pipeline.usage import is_complete_usage, usable_usage

if TYPE_CHECKING:
    from pipeline.identity import Mint

WHOLE: Final = "*"
"""Stands in a set of changes for the whole event: it is serialized anew."""
DROP: Final = "-"
"""Stands in a set of changes for: the client must not get this event."""
UNCHANGED: Final[frozenset[str]] = frozenset()
_TYPE: Final = frozenset({"type"})
_RESPONSE: Final = frozenset({"response"})
_ITEM: Final = frozenset({"item"})
_ITEM_ID: Final = frozenset({"item_id"})
_INDEX: Final = frozenset({"output_index"})

_APPEND: Final = Action.APPEND
_STAND_ALONE: Final = frozenset({Action.FREE, Action.ADD, Action.FINISH})
"""What never needs an event in front of it."""

TERMINAL_OF_STATUS: Final = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.failed",
}
"""Which terminal a response's status belongs to."""
_WITHOUT_ITEM_ID: Final = frozenset(
    f"response.shell_call_command.{phase}" for phase in ("added", "delta", "done")
)
"""Events that have no item id anywhere."""
_MESSAGE_PARTS: Final = {"text": "output_text", "refusal": "refusal"}


def normalize_codex_event(
    event: dict[str, Any], state: ResponseState, check: Checker, mint: Mint
) -> frozenset[str]:
    """Mend an event in itself, in place.

    Args:
        event: The parsed event; ``type`` is set.
        state: What was accumulated before it.
        check: Counts each repair under its rule.
        mint: Makes ids where the upstream gives none.

    Returns:
        The top-level members that were changed in a way the client must see, or ``DROP``.

    Raises:
        ProtocolError: The event can't be attributed to an item, or the mode rejects the repair.
    """
    spec = EVENTS.get(event["type"])
    if spec is None:
        return _normalize_unlisted(event, state, check, mint)
    action = spec.action
    if action is _APPEND:  # nine events of ten need nothing
        index = event.get("output_index")
        item = state.items.get(index) if type(index) is int else None
        if item is not None and (event.get("item_id") == item.id or spec.part == "command_index"):
            whole = event.get("delta") is not None
            if whole and (not spec.part or type(event.get(spec.part)) is int):
                return UNCHANGED
    if action is OF_RESPONSE:
        return _normalize_lifecycle(event, state, check, mint)
    if action is FREE:
        return _flatten_error(event, check) if event["type"] == "error" else UNCHANGED
    index = event.get("output_index")
    if type(index) is not int and index is not None:  # true would be taken for item 1
        check.report(Rule.INDEX_OUT_OF_RANGE, event["type"])
    if action is ADD:
        return _normalize_added(event, state, check, mint)
    if action is FINISH:
        return _normalize_done(event, state, check, mint)
    return _normalize_item_event(event, spec, state, check, mint)


def _normalize_unlisted(
    event: dict[str, Any], state: ResponseState, check: Checker, mint: Mint
) -> frozenset[str]:
    """Give ``response.done`` its proper type; leave unknown events alone."""
    if event["type"] != "response.done":
        return UNCHANGED
    response = event.get("response")
    if not isinstance(response, dict):
        response = dict(state.response, output=[])
        event["response"] = response
    check.report(Rule.RESPONSE_DONE, event["type"])
    event["type"] = TERMINAL_OF_STATUS.get(str(response.get("status")), "response.completed")
    return _normalize_lifecycle(event, state, check, mint) | _TYPE | _RESPONSE


def _normalize_lifecycle(
    event: dict[str, Any], state: ResponseState, check: Checker, mint: Mint
) -> frozenset[str]:
    kind, changes = event["type"], UNCHANGED
    response: Any = event.get("response")
    if not isinstance(response, dict):
        check.report(Rule.MALFORMED_EVENT, kind)
    if not isinstance(response.get("id"), str) or not response["id"]:
        check.report(Rule.RESPONSE_ID_MISSING, kind)
        event["response"] = response = {**response, "id": state.id or mint("resp", 0)}
        changes |= _RESPONSE
    if kind not in TERMINALS:
        return changes
    proper = TERMINAL_OF_STATUS.get(str(response.get("status")))
    if proper is not None and proper != kind and kind == "response.completed":
        check.report(Rule.TERMINAL_STATUS, kind)
        event["type"] = proper
        changes |= _TYPE
    return changes | _normalize_usage(event, response, check)


def _normalize_usage(
    event: dict[str, Any], response: dict[str, Any], check: Checker
) -> frozenset[str]:
    usage = response.get("usage")
    if is_complete_usage(usage):
        return UNCHANGED
    check.report(Rule.USAGE_INCOMPLETE, event["type"])
    event["response"] = {**response, "usage": usable_usage(usage)}
    return _RESPONSE


def _flatten_error(event: dict[str, Any], check: Checker) -> frozenset[str]:
    nested = event.get("error")
    if not isinstance(nested, dict):
        return UNCHANGED
    check.report(Rule.ERROR_NESTED, "error")
    del event["error"]
    message = nested.get("message")
    event["message"] = message if isinstance(message, str) else "the provider reported an error"
    event["code"] = nested.get("code") or nested.get("type")
    event["param"] = nested.get("param")
    return frozenset({WHOLE})


def _normalize_added(
    event: dict[str, Any], state: ResponseState, check: Checker, mint: Mint
) -> frozenset[str]:
    value, changes = _item_in(event, check), UNCHANGED
    if _lacks_index(event, check):
        changes = _INDEX
        event["output_index"] = state.next_index
    changes |= _give_id(event, value, state, check, mint)
    return changes | complete_item(event, None, check)


def _lacks_index(event: dict[str, Any], check: Checker) -> bool:
    """Report that an event doesn't say to which item it belongs; say whether that is so."""
    if event.get("output_index") is not None:
        return False
    check.report(Rule.INDEX_MISSING, event["type"])
    return True


def _item_in(event: dict[str, Any], check: Checker) -> dict[str, Any]:
    """Return the item of an event; refuse what can't be one."""
    item: Any = event.get("item")
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        check.report(Rule.MALFORMED_EVENT, event["type"])
    value: dict[str, Any] = item
    return value


def _give_id(
    event: dict[str, Any],
    value: dict[str, Any],
    state: ResponseState,
    check: Checker,
    mint: Mint,
) -> frozenset[str]:
    """Mint an id for a new item that has none, or one that another item already has."""
    prefix = ITEM_PREFIXES.get(value["type"])
    identity = value.get("id")
    if isinstance(identity, str) and identity:
        if state.ids.get(identity, event["output_index"]) == event["output_index"]:
            return UNCHANGED
        check.report(Rule.ITEM_ID_REUSED, event["type"])
        state.reused[event["output_index"]] = identity
        prefix = prefix or identity.split("_", 1)[0]
    elif prefix is None:
        return UNCHANGED  # no client joins on the ids of types that we don't know
    else:
        check.report(Rule.ITEM_ID_MISSING, event["type"])
    event["item"] = {**value, "id": mint(prefix, event["output_index"])}
    return _ITEM


def _normalize_done(
    event: dict[str, Any], state: ResponseState, check: Checker, mint: Mint
) -> frozenset[str]:
    value, changes = _item_in(event, check), UNCHANGED
    if _lacks_index(event, check):
        changes = _INDEX
        event["output_index"] = index_of_done(value, state, check)
    item = state.items.get(event["output_index"])
    if item is None:
        changes |= _give_id(event, value, state, check, mint)
        return changes | complete_item(event, None, check)
    if value["type"] != item.type:
        return changes  # the checker's business
    if item.phase is ITEM_DONE:  # clients would have it twice
        check.report(Rule.DONE_TWICE, event["type"])
        return frozenset({DROP})
    changes |= complete_item(event, item, check)
    completed = completed_item(value := event["item"], item)
    if completed is not value:
        event["item"] = value = completed
        changes |= _ITEM
    if not item.id or value.get("id") == item.id:
        return changes
    rule = Rule.ITEM_ID_ROTATED if value.get("id") else Rule.ITEM_ID_MISSING
    check.report(rule, event["type"])
    event["item"] = {**value, "id": item.id}
    return changes | _ITEM


def _normalize_item_event(
    event: dict[str, Any], spec: EventSpec, state: ResponseState, check: Checker, mint: Mint
) -> frozenset[str]:
    changes = UNCHANGED
    if _lacks_index(event, check):
        changes = _INDEX
        event["output_index"] = index_of(event, spec, state, check)
    item = state.items.get(event["output_index"])
    changes |= complete_event(event, spec, item, check)
    identity = event.get("item_id")
    if item is None:
        canonical = id_of_implicit(event, spec, mint)
    elif not item.id:
        return changes
    else:
        canonical = item.id
    if identity == canonical:
        return changes
    if identity:
        check.report(Rule.ITEM_ID_ROTATED, event["type"])
    elif event["type"] in _WITHOUT_ITEM_ID:
        return changes
    else:
        check.report(Rule.ITEM_ID_MISSING, event["type"])
    event["item_id"] = canonical
    return changes | _ITEM_ID


# --- What is missing in front of an event ------------------------------------------------------


def seed_implicit_codex_item(
    event: dict[str, Any], state: ResponseState, check: Checker, mint: Mint
) -> list[dict[str, Any]]:
    """Return the events that should have come before this one, in order.

    Each is to be accumulated and decided upon like an event of the upstream. They carry no
    sequence number: whoever writes them for a client numbers them.

    Args:
        event: The normalized and validated event.
        state: What was accumulated before it.
        check: Counts each repair under its rule.
        mint: Makes ids for items that have none.

    Raises:
        ProtocolError: The mode rejects the repair.
    """
    kind = event["type"]
    spec = EVENTS.get(kind)
    if spec is None or spec.action in _STAND_ALONE:
        return []
    if spec.action is OF_RESPONSE:
        return _missing_before_lifecycle(event, state, check, mint)
    item = state.items.get(event["output_index"])
    if item is None:
        added = _added_for(event, spec, mint)
        return [added, *_missing_part(event, spec, None, added["item"]["id"], check)]
    return _missing_part(event, spec, item, item.id, check)


def _added_for(event: dict[str, Any], spec: EventSpec, mint: Mint) -> dict[str, Any]:
    item_type = type_of_implicit(event, spec)
    identity = id_of_implicit(event, spec, mint)
    item: dict[str, Any] = {"id": identity, "type": item_type, "status": "in_progress"}
    match item_type:
        case "message":
            item |= {"role": "assistant"}
        case "function_call" | "custom_tool_call":
            item |= {"name": "", "call_id": ""}
        case _:
            pass
    item |= bare_item(item_type)
    return {
        "type": "response.output_item.added",
        "output_index": event["output_index"],
        "item": item,
    }


def _missing_part(
    event: dict[str, Any],
    spec: EventSpec,
    item: ItemState | None,
    identity: str,
    check: Checker,
) -> list[dict[str, Any]]:
    """Open the content part that a text belongs to: the SDK's accumulation looks it up."""
    part_type = _MESSAGE_PARTS.get(spec.field)
    if part_type is None or spec.part != "content_index":
        return []
    if item is not None:
        if (spec.part, part_index(spec, event)) in item.parts:
            return []
        if item.phase is ItemPhase.DONE or item.type != "message":
            return []
    index = part_index(spec, event)
    check.report(Rule.PART_MISSING, event["type"])
    part: dict[str, Any] = {"type": part_type, **BARE_PARTS[part_type]}
    if part_type == "output_text":
        part["annotations"] = []
    return [
        {
            "type": "response.content_part.added",
            "item_id": identity,
            "output_index": event["output_index"],
            "content_index": index,
            "part": part,
        }
    ]


def _missing_before_lifecycle(
    event: dict[str, Any], state: ResponseState, check: Checker, mint: Mint
) -> list[dict[str, Any]]:
    kind = event["type"]
    missing: list[dict[str, Any]] = []
    if state.phase is NOT_BEGUN and kind != "response.created":
        response = {**event["response"], "status": "in_progress", "output": [], "usage": None}
        missing.append({"type": "response.created", "response": response})
    if kind in TERMINALS:
        missing += missing_items(event, state, check, mint)
    return missing
