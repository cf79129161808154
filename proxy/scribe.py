"""What of a turn goes into its conversation's transcript: only what is new.

A client sends its whole history with every request. The scribe remembers, for the conversations
of late, marks of the last messages that are written down already, and finds in each request where
the new ones begin. A history that was edited or compacted matches nowhere and is written anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import structlog

from pipeline import jsontext
from pipeline.request import input_items
from proxy.plugin_run import input_characters, stopped_reason
from telemetry.capture import TranscriptLines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pipeline.outcome import TurnOutcome
    from pipeline.turn import Turn
    from proxy.sessions import Identity
    from proxy.turns import Exchange
    from telemetry.capture import Door

log = structlog.get_logger("sottovoce.transcripts")

MESSAGES: Final = 40
"""Messages of a conversation that are remembered; the oldest are forgotten first."""
CONVERSATIONS: Final = 200
"""Conversations that are remembered; the one that was silent for longest is forgotten first."""
_UNSAID: Final = ("reasoning", "additional_tools", "compaction_trigger", "item_reference")
"""Items that are nobody's words, and that clients may leave out of a history."""


class Histories:
    """The last messages of the last conversations, as marks.

    Args:
        messages: How many of a conversation.
        conversations: How many conversations.
    """

    def __init__(self, *, messages: int = MESSAGES, conversations: int = CONVERSATIONS) -> None:
        self._messages = messages
        self._conversations = conversations
        self._known: OrderedDict[str, tuple[bytes, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def new(self, conversation: str, items: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the messages behind the last one that is known."""
        said = [item for item in items if is_said(item)]
        return said[_known_part([mark(item) for item in said], self._of(conversation)) :]

    def add(self, conversation: str, items: Sequence[Mapping[str, Any]]) -> None:
        """Remember messages."""
        marks = (*self._of(conversation), *(mark(item) for item in items))
        self._known[conversation] = marks[-self._messages :]
        self._known.move_to_end(conversation)
        while len(self._known) > self._conversations:
            self._known.popitem(last=False)

    def _of(self, conversation: str) -> tuple[bytes, ...]:
        return self._known.get(conversation, ())


def _known_part(marks: list[bytes], known: tuple[bytes, ...]) -> int:
    """Return how many marks at the beginning end in what is known."""
    for end in range(len(marks), 0, -1):
        size = min(end, len(known))
        if size and tuple(marks[end - size : end]) == known[-size:]:
            return end
    return 0


def is_said(item: object) -> bool:
    """Say whether an item belongs into a transcript."""
    return isinstance(item, dict) and item.get("type", "message") not in _UNSAID


def mark(item: Mapping[str, Any]) -> bytes:
    """Return what makes a message the same when its client sends it back."""
    kind, call = item.get("type", "message"), item.get("call_id")
    if isinstance(call, str):
        essence: object = [kind, call]
    elif kind == "message":
        essence = [item.get("role"), _words(item.get("content"))]
    else:
        essence = [kind, item.get("id") or dict(item)]
    return hashlib.sha256(jsontext.dumps(essence)).digest()[:16]


def _words(content: object) -> object:
    """Return the texts of a message; what has none stands for itself."""
    if not isinstance(content, list):
        return [content]
    return [
        part.get("text", part.get("refusal", part)) if isinstance(part, dict) else part
        for part in content
    ]


class Scribe:
    """Hands the new lines of each turn to the door.

    Args:
        door: Where the transcripts' sink stands.
        switched_on: Without it nothing is looked at.
        histories: What is written down already.
    """

    def __init__(
        self, door: Door, *, switched_on: bool, histories: Histories | None = None
    ) -> None:
        self._door = door
        self._switched_on = switched_on
        self._histories = Histories() if histories is None else histories

    def begin(self, exchange: Exchange) -> None:
        """Write down that a turn begins, and what its client has said since the last."""
        if self._writes(exchange.identity):
            with _best_effort():
                self._begin(exchange)

    def end(self, exchange: Exchange, turn: Turn) -> None:
        """Write down what the client was answered, and how the turn ended."""
        if self._writes(exchange.identity) and turn.outcome is not None:
            with _best_effort():
                self._end(exchange, turn, turn.outcome)

    def _begin(self, exchange: Exchange) -> None:
        identity = exchange.identity
        body = exchange.request.body
        name = conversation(identity)
        said = self._histories.new(name, input_items(body))
        self._histories.add(name, said)
        start = {
            "type": "run_start",
            "at": exchange.started,
            "turn": exchange.turn_id,
            "tenant": identity.tenant,
            "project": identity.project,
            "session": identity.session,
            "protocol": exchange.protocol,
            "model": body.get("model"),
            "input_chars": input_characters(body),
        }
        self._post(name, [start, *_messages(exchange, said, exchange.started)])

    def _end(self, exchange: Exchange, turn: Turn, outcome: TurnOutcome) -> None:
        name, now, reason = conversation(exchange.identity), time.time(), stopped_reason(turn)
        said = [item for item in turn.view.output if is_said(item)]
        self._histories.add(name, said)
        end = {
            "type": "budget_exhausted" if reason == "budget" else "run_end",
            "at": now,
            "turn": exchange.turn_id,
            "outcome": outcome.ending.value,
            "stopped_reason": reason,
            "turns_used": outcome.hops,
            "model": outcome.model,
            "usage": outcome.spent,
        }
        self._post(name, [*_messages(exchange, said, now), end])

    def _writes(self, identity: Identity) -> bool:
        return self._switched_on and not identity.no_store

    def _post(self, name: str, lines: list[dict[str, Any]]) -> None:
        self._door.post(TranscriptLines(name, tuple(lines)))


@contextlib.contextmanager
def _best_effort() -> Iterator[None]:
    """Keep what goes wrong with a transcript away from its turn."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - no transcript is worth a turn
        log.warning("transcript not written", error=type(error).__name__)


def conversation(identity: Identity) -> str:
    """Return the name of a conversation's file: clients have no say in it."""
    whole = jsontext.dumps([identity.tenant, identity.session])
    return hashlib.sha256(whole).hexdigest()[:32]


def _messages(
    exchange: Exchange, items: Sequence[dict[str, Any]], now: float
) -> list[dict[str, Any]]:
    return [
        {"type": "message", "at": now, "turn": exchange.turn_id, "item": item} for item in items
    ]
