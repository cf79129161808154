"""Which events of a hop the client sees, and when.

A call of the hidden tool is *hidden*: every event of it is suppressed and counted. A call whose
name is not known yet is *unresolved*: its events are held, and so is every item that opens after
it, so that the client still gets items in order; items that were open before go on live. Once the
name is known the held events are dropped (hidden) or released (a client's tool). A hidden call
itself defers nothing.

With ``hold_text`` (the client asked for JSON of a schema) messages are held in the same way until
the hop's end: text beside a hidden call would otherwise be joined with the final answer and the
whole would no longer parse.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.errors import ProtocolError, SSEStreamLimitError
from pipeline.lifecycle import ItemPhase

if TYPE_CHECKING:
    from pipeline.response import ItemState, ResponseState

HIDEABLE: Final = frozenset({"function_call", "custom_tool_call"})
"""The item types that can be a call of the hidden tool."""
HELD_TEXT_BYTES: Final = 256 * 1024
"""How much text is held for ``hold_text`` before it goes out after all."""


class Accepted(NamedTuple):
    """An event that went through normalization, check and accumulation.

    Attributes:
        event: The parsed event, normalized.
        raw: The bytes of its frame, empty for a synthesized event.
        data: Its data as the upstream sent it; None for a synthesized event.
        changes: The members that normalization changed.
        verbatim: Whether the frame may go out as it came.
    """

    event: dict[str, Any]
    raw: bytes
    data: bytes | None
    changes: frozenset[str]
    verbatim: bool


class Verdict(StrEnum):
    """What happens to an event."""

    SHOW = "show"
    HIDE = "hide"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class HiddenCall:
    """A call of the hidden tool, complete and ready to be executed."""

    index: int
    call_id: str
    name: str
    arguments: str
    item_type: str

    @property
    def key(self) -> tuple[str, str]:
        """What makes calls equal."""
        return self.name, self.arguments

    def output(self, text: str) -> dict[str, Any]:
        """Return the item that answers it."""
        return {"type": f"{self.item_type}_output", "call_id": self.call_id, "output": text}


class Interception:
    """The decisions of one hop.

    Attributes:
        parsed_recall_inputs: Output index → complete arguments of a hidden call.
        pending_recalls: Hidden calls that are complete and not yet executed.
        recall_indices: Output indices of hidden calls.
        unresolved_tool_indices: Output indices of calls whose name is unknown, and of held text.
        unresolved_tool_bytes: Bytes that are held.
        other_tool_seen: Whether the client must answer a call of this hop.
        hidden_bytes: Bytes of hidden calls.
        dropped: Output indices of held text that the client never got.
    """

    def __init__(
        self, tool_name: str | None, *, deferred_bytes: int, hidden_bytes: int, hold_text: bool
    ) -> None:
        self.parsed_recall_inputs: dict[int, str] = {}
        self.pending_recalls: list[HiddenCall] = []
        self.recall_indices: set[int] = set()
        self.unresolved_tool_indices: set[int] = set()
        self.unresolved_tool_bytes = 0
        self.other_tool_seen = False
        self.hidden_bytes = 0
        self.dropped: set[int] = set()
        self._tool_name = tool_name
        self._deferred_limit = deferred_bytes
        self._hidden_limit = hidden_bytes
        self._hold_text = hold_text
        self._shown: set[int] = set()
        self._buffers: dict[int, list[Accepted]] = {}
        self._noise: list[bytes] = []
        self._secrets: set[str] = set()
        self._disagreeing: set[int] = set()

    # --- Deciding -------------------------------------------------------------------------

    def decide(self, accepted: Accepted, item: ItemState | None) -> Verdict:
        """Say what happens to an event that was just accumulated.

        Args:
            accepted: The event. Lifecycle events are not for this.
            item: The item that it belongs to, None for an event without one.

        Raises:
            SSEStreamLimitError: Held or hidden bytes reached their limit.
            ProtocolError: A hidden call's streamed arguments disagree with its done.
        """
        if item is None:
            return Verdict.HIDE if self._names_hidden(accepted) else Verdict.SHOW
        index = item.index
        if index in self._shown:
            return Verdict.SHOW
        if index in self.recall_indices:
            self._count_hidden(len(accepted.raw))
            self._collect(item)
            return Verdict.HIDE
        if index not in self._buffers:
            verdict = self._first_sight(item, accepted)
            if verdict is not Verdict.HOLD:
                return verdict
            self._buffers[index] = []
        self._buffers[index].append(accepted)
        self._count_held(len(accepted.raw) or 256)
        if index in self.unresolved_tool_indices:
            self._try_resolve(item)
        return Verdict.HOLD

    def compare_arguments(self, event: dict[str, Any], item: ItemState | None) -> None:
        """Remember a call whose end gives other arguments than were streamed.

        To be called before the event is accumulated; it counts only if the call is hidden.
        """
        if self._tool_name is None or item is None or item.type not in HIDEABLE:
            return
        value = event.get("item", event)
        final = value.get("arguments") or value.get("input") if isinstance(value, dict) else None
        if final and (streamed := item.arguments) and final != streamed:
            self._disagreeing.add(item.index)

    def _first_sight(self, item: ItemState, accepted: Accepted) -> Verdict:
        if item.type in HIDEABLE and self._tool_name is not None:
            if item.name == self._tool_name:
                self.recall_indices.add(item.index)
                self._count_hidden(len(accepted.raw))
                self._collect(item)
                return Verdict.HIDE
            if not item.name:
                self.unresolved_tool_indices.add(item.index)
                return Verdict.HOLD
        if item.is_client_call:
            self.other_tool_seen = True
        if self._hold_text and item.type == "message":
            self.unresolved_tool_indices.add(item.index)
            return Verdict.HOLD
        if self._buffers:
            return Verdict.HOLD
        self._shown.add(item.index)
        return Verdict.SHOW

    def _try_resolve(self, item: ItemState) -> None:
        if item.type == "message":
            if self.unresolved_tool_bytes > HELD_TEXT_BYTES:
                self._hold_text = False
                self.unresolved_tool_indices.discard(item.index)
        elif item.name:
            self._resolve(item)

    def _resolve(self, item: ItemState) -> None:
        self.unresolved_tool_indices.discard(item.index)
        if item.name != self._tool_name:
            self.other_tool_seen = True
            return
        held = self._buffers.pop(item.index, [])
        self.unresolved_tool_bytes -= sum(len(one.raw) or 256 for one in held)
        self.recall_indices.add(item.index)
        self._count_hidden(sum(len(one.raw) for one in held))
        self._collect(item)

    def _collect(self, item: ItemState) -> None:
        """Take a hidden call as pending once its arguments and its call id are complete."""
        self._secrets |= {item.id, item.call_id}
        if item.phase is ItemPhase.OPEN or item.index in self.parsed_recall_inputs:
            return
        if not item.call_id or not item.name:
            return
        if item.index in self._disagreeing:
            raise ProtocolError("streamed arguments disagree with the call's end")
        arguments = item.arguments
        self.parsed_recall_inputs[item.index] = arguments
        self.pending_recalls.append(
            HiddenCall(item.index, item.call_id, item.name, arguments, item.type)
        )

    # --- Releasing ------------------------------------------------------------------------

    @property
    def holding(self) -> bool:
        """Whether anything is held."""
        return bool(self._buffers or self._noise)

    def busy(self, state: ResponseState) -> bool:
        """Whether a hidden or unresolved call is open: foreign data waits meanwhile."""
        if self.unresolved_tool_indices:
            return True
        return any(
            state.items[index].phase is not ItemPhase.DONE
            for index in self.recall_indices
            if index in state.items
        )

    def hold_noise(self, raw: bytes) -> None:
        """Keep named data that is not JSON until no hidden or unresolved call is open.

        Raises:
            SSEStreamLimitError: Held bytes reached their limit.
        """
        self._noise.append(raw)
        self._count_held(len(raw))

    def release_noise(self) -> list[bytes]:
        """Return what ``hold_noise`` kept; the caller knows that nothing is busy."""
        noise, self._noise = self._noise, []
        self.unresolved_tool_bytes -= sum(map(len, noise))
        return noise

    def release(self) -> list[Accepted]:
        """Return the held events that may go out now, item by item in the order of opening."""
        released: list[Accepted] = []
        for index in list(self._buffers):
            if index in self.unresolved_tool_indices:
                break
            released += self._buffers.pop(index)
            self._shown.add(index)
        if released:
            self.unresolved_tool_bytes -= sum(len(one.raw) or 256 for one in released)
        return released

    def settle(self, state: ResponseState) -> None:
        """Decide everything that is still unresolved, at a terminal that was accumulated.

        Afterwards ``release`` returns all that is held. Text that was held for its format is
        dropped where the hop ends in hidden calls only.

        Raises:
            ProtocolError: The terminal names a call no better than the stream did.
        """
        for index in sorted(self.unresolved_tool_indices):
            item = state.items[index]
            if item.type == "message":
                continue
            if not item.name:
                raise ProtocolError("the stream ended with a call that was never named")
            self._resolve(item)
        for index in sorted(self.recall_indices):
            self._collect(state.items[index])
        for index in [i for i in self._buffers if i in self.unresolved_tool_indices]:
            self.unresolved_tool_indices.discard(index)
            if self.recall_indices and not self.other_tool_seen:
                self._buffers.pop(index)
                self.dropped.add(index)

    # --- Counting -------------------------------------------------------------------------

    def _count_hidden(self, size: int) -> None:
        self.hidden_bytes += size
        if self.hidden_bytes > self._hidden_limit:
            raise SSEStreamLimitError(
                "recall stream exceeded hidden byte limit", limit="hidden_bytes"
            )

    def _count_held(self, size: int) -> None:
        self.unresolved_tool_bytes += size
        if self.unresolved_tool_bytes > self._deferred_limit:
            raise SSEStreamLimitError(
                "recall stream exceeded deferred event limit", limit="deferred_bytes"
            )

    def _names_hidden(self, accepted: Accepted) -> bool:
        """Say whether an event without an item mentions a hidden call all the same."""
        if not self.recall_indices or accepted.data is None:
            return False
        data = accepted.data
        return any(secret.encode() in data for secret in self._secrets if secret)
