"""How a turn ended: one record for telemetry, transcripts and tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.errors import FailureCategory
    from pipeline.lifecycle import Rule


class Ending(StrEnum):
    """What the turn's terminal was."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    PROVIDER_FAILED = "provider_failed"
    """The provider's own failure, passed on."""
    FAILED = "failed"
    """A failure that we found, with a category."""
    CLIENT_DISCONNECT = "client_disconnect"


@dataclass(slots=True)
class TurnOutcome:
    """How a turn ended.

    Attributes:
        ending: What its terminal was.
        category: Why it failed, where we failed it.
        limit: The limit that ended it, by its name in ``Limits``.
        truncated_by: The limit that ended the accumulation of an observed turn.
        message: The client-safe message of a failure.
        status: HTTP status where the turn ended before a head was sent.
        recovered_from: Why there was a recovery; its failure if the turn failed.
        hops: The principal request and the continuations that were made, each of them once: a
            second try and a recovery take the place of what failed.
        rounds: Executions of hidden calls that a continuation followed.
        recalls: Hidden calls that were executed.
        hidden_bytes: Bytes of hidden calls that were kept from the client.
        spent: Usage summed over all hops.
        context: Usage of the last hop that reported any.
        model: As the upstream reported it.
        response_id: What the client knows the response by.
        stop_reason: ``completed``, or why it is incomplete.
        empty: The completion had neither text nor calls nor reasoning.
        findings: (rule, event type) → how often the stream deviated.
    """

    ending: Ending
    category: FailureCategory | None = None
    limit: str | None = None
    truncated_by: str | None = None
    message: str | None = None
    status: int | None = None
    recovered_from: FailureCategory | None = None
    hops: int = 0
    rounds: int = 0
    recalls: int = 0
    hidden_bytes: int = 0
    spent: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    model: str | None = None
    response_id: str | None = None
    stop_reason: str | None = None
    empty: bool = False
    findings: dict[tuple[Rule, str], int] = field(default_factory=dict)


def is_empty_completion(output: list[dict[str, Any]]) -> bool:
    """Say whether a completed response gave the client nothing: no text, no call, no reasoning.

    Args:
        output: The items of the terminal as the upstream completed them.
    """
    return not any(map(_has_substance, output))


def _has_substance(item: dict[str, Any]) -> bool:
    kind = item.get("type")
    if kind == "message":
        return _has_text(item.get("content"))
    if kind == "reasoning":
        return bool(
            _has_text(item.get("summary"))
            or _has_text(item.get("content"))
            or item.get("encrypted_content")
        )
    return True


def _has_text(parts: object) -> bool:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and (part.get("text") or part.get("refusal")):
            return True
    return False
