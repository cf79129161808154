"""The last event of a turn: the provider's terminal made whole, or a failure of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline import jsontext
from pipeline.dialect import TERMINAL_OF_STATUS, WHOLE
from pipeline.errors import RETRYABLE

if TYPE_CHECKING:
    from pipeline.accepted import Accepted
    from pipeline.errors import SottovoceError

_OF_FIRST_HOP: Final = (
    "id",
    "created_at",
    "max_output_tokens",
    "tool_choice",
    "previous_response_id",
)
"""What a spliced response keeps of its first hop: the client joins and compares on these."""


NO_MESSAGE: Final = "the provider gave no message"
"""What is said of a failure without words."""


def response_edits(
    response: dict[str, Any],
    *,
    output: list[dict[str, Any]] | None,
    first: dict[str, Any] | None,
    usage: dict[str, Any] | None,
    summed: bool,
) -> dict[str, Any]:
    """Return the members in which a terminal's response must differ from the provider's.

    Args:
        response: The provider's object.
        output: The items that the client saw, in its order; the provider's own to keep it.
        first: The object of hop 1 as the client saw it; None where this is hop 1.
        usage: What is reported where the turn used more than this hop.
        summed: Whether it did.
    """
    edits: dict[str, Any] = {}
    if response.get("output") != output:
        edits["output"] = output
    for name in _OF_FIRST_HOP:
        if first is not None and name in first and response.get(name) != first[name]:
            edits[name] = first[name]
    if summed and response.get("usage") != usage:
        edits["usage"] = usage
    return edits


def fitting_edits(
    kind: str, response: dict[str, Any], error: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the members that a terminal needs, so that clients find in it what its type says.

    Args:
        kind: Its type.
        response: The provider's object.
        error: What an ``error`` event before it said, if there was one.
    """
    edits: dict[str, Any] = {}
    status = response.get("status")
    if not isinstance(status, str) or TERMINAL_OF_STATUS.get(status) != kind:
        edits["status"] = kind.removeprefix("response.")
    if kind == "response.failed":
        told = _failure(response.get("error") or error)
        if told != response.get("error"):
            edits["error"] = told
    return edits


def _failure(error: object) -> dict[str, Any]:
    """Return a provider's error with a code and a message: its own, where it has them."""
    known = error if isinstance(error, dict) else {"message": error}
    code, message = known.get("code"), known.get("message")
    return {
        **known,
        "code": code if isinstance(code, str) and code else RETRYABLE,
        "message": message if isinstance(message, str) and message else NO_MESSAGE,
    }


def stop_reason(response: dict[str, Any]) -> str:
    """Return why a response stopped, in its own words."""
    details = response.get("incomplete_details")
    if isinstance(details, dict) and isinstance(details.get("reason"), str):
        return str(details["reason"])
    return str(response.get("status") or "completed")


def edit_response(
    accepted: Accepted, edits: dict[str, Any], outer: dict[str, Any]
) -> tuple[bytes, dict[str, Any]]:
    """Return data and value of a lifecycle event with members of its response replaced.

    Args:
        accepted: The event.
        edits: Members of its response to set.
        outer: Members of the event itself to set.
    """
    event, data, changes = accepted.event, accepted.data, accepted.changes
    response = event["response"]
    whole = {**event, "response": {**response, **edits}, **outer}
    if data is None or WHOLE in changes or (not changes and jsontext.dumps(event) == data):
        return jsontext.dumps(whole), whole
    members = {name: jsontext.dumps(whole[name]) for name in changes.union(outer)}
    if "response" in changes:
        return jsontext.set_members(data, event, members), whole
    inner = {name: jsontext.dumps(value) for name, value in edits.items()}
    splices = jsontext.setting(data, event, inner, ("response",))
    splices += jsontext.setting(data, event, members)
    return jsontext.splice(data, splices), whole


def failed_event(
    error: SottovoceError,
    *,
    response: dict[str, Any],
    output: list[dict[str, Any]],
    usage: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return a ``response.failed`` of ours.

    Args:
        error: What happened: its code and its client-safe message go into the event.
        response: The client's newest response object.
        output: The finished items that the client saw.
        usage: What is reported.
    """
    return {
        "type": "response.failed",
        "response": {
            **response,
            "status": "failed",
            "error": {"code": error.code, "message": error.message},
            "incomplete_details": None,
            "output": output,
            "usage": usage,
        },
    }


def incomplete_event(
    reason: str,
    *,
    response: dict[str, Any],
    output: list[dict[str, Any]],
    usage: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return a ``response.incomplete`` of ours, for a turn that must stop here for ``reason``."""
    return {
        "type": "response.incomplete",
        "response": {
            **response,
            "status": "incomplete",
            "error": None,
            "incomplete_details": {"reason": reason},
            "output": output,
            "usage": usage,
        },
    }


def bare_response(response_id: str, model: object, created_at: int) -> dict[str, Any]:
    """Return a response object for a turn that fails before the upstream gave one."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model if isinstance(model, str) else None,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
