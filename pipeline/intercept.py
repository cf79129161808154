"""Which events of a hop the client sees, and when.

A call of a hidden tool is *hidden*: every event of it is suppressed and counted. A call whose
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
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import RETRYABLE, ProtocolError, SSEStreamLimitError
from pipeline.giveaways import Giveaways
from pipeline.lifecycle import ITEM_TYPES, RULES, ItemPhase, Rule
from pipeline.restored import NOTHING

if TYPE_CHECKING:
    from pipeline.accepted import Accepted
    from pipeline.response import ItemState, ResponseState
    from pipeline.restored import Restored

HIDEABLE: Final = frozenset({"function_call", "custom_tool_call"})
"""The item types that can be a call of a hidden tool."""
HELD_TEXT_BYTES: Final = 256 * 1024
"""How much is held for ``hold_text`` before it goes out after all."""
_SYNTHESIZED_BYTES: Final = 256
"""What an event of ours counts where it is held."""


class Verdict(StrEnum):
    """What happens to an event."""

    SHOW = "show"
    HIDE = "hide"
    HOLD = "hold"


_SHOW, _HIDE, _HOLD = Verdict


@dataclass(frozen=True, slots=True)
class HiddenCall:
    """A call of a hidden tool, complete and ready to be executed."""

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

    Args:
        names: Of the hidden tools; without one nothing is hidden.
        deferred_bytes: How much may be held.
        hidden_bytes: How much may be hidden.
        hold_text: Whether messages are held until the hop's end.
        restored: What was put back into the request: calls of earlier turns, and their answers.

    Attributes:
        parsed_recall_inputs: Output index → complete arguments of a hidden call.
        pending_recalls: Hidden calls that are complete and not yet executed.
        recall_indices: Output indices of hidden calls.
        secret_indices: Output indices of what is hidden and no call to execute.
        unresolved_tool_indices: Output indices of calls whose name is unknown.
        held_text_indices: Output indices of messages that are held for their format.
        unresolved_tool_bytes: Bytes that are held.
        other_tool_seen: Whether the client must answer a call of this hop.
        hidden_bytes: Bytes of hidden calls.
        dropped: Output indices of what was held and never went out.
        noise: Named data that is not JSON, held until nothing is busy.
    """

    def __init__(
        self,
        names: frozenset[str],
        *,
        deferred_bytes: int,
        hidden_bytes: int,
        hold_text: bool,
        restored: Restored = NOTHING,
    ) -> None:
        self.parsed_recall_inputs: dict[int, str] = {}
        self.pending_recalls: list[HiddenCall] = []
        self.recall_indices: set[int] = set()
        self.secret_indices: set[int] = set()
        self.unresolved_tool_indices: set[int] = set()
        self.held_text_indices: set[int] = set()
        self.unresolved_tool_bytes = 0
        self.other_tool_seen = False
        self.hidden_bytes = 0
        self.dropped: set[int] = set()
        self._names = names
        self._giveaways = Giveaways(names)
        self._deferred_limit = deferred_bytes
        self._hidden_limit = hidden_bytes
        self._hold_text = hold_text
        self._restored = restored
        self._shown: set[int] = set()
        self._buffers: dict[int, list[Accepted]] = {}
        self.noise: list[bytes] = []
        self._disagreeing: dict[int, ProtocolError] = {}

    # --- Deciding -------------------------------------------------------------------------

    def decide(self, accepted: Accepted, item: ItemState | None) -> Verdict:
        """Say what happens to an event that was just accumulated.

        Args:
            accepted: The event. Lifecycle events are not for this.
            item: The item that it belongs to, None for an event without one.

        Raises:
            SSEStreamLimitError: Held or hidden bytes reached their limit.
            ProtocolError: A hidden call's end disagrees with what was streamed of it.
        """
        if item is not None and item.index in self._shown:
            return _SHOW
        if item is not None:
            index = item.index
        else:
            data = accepted.data or b""
            mentioned = self._giveaways.mentioned(data)
            if mentioned is None and self._giveaways.names_a_tool(data):
                self._count_hidden(len(accepted.raw))
                return _HIDE
            if mentioned is None or mentioned in self._shown:
                return _SHOW
            index = mentioned
        if index in self.recall_indices:
            self._count_hidden(len(accepted.raw))
            if item is not None:
                self._collect(item)
            return _HIDE
        if index in self.secret_indices:
            self._count_hidden(len(accepted.raw))
            return _HIDE
        if index not in self._buffers and item is not None:
            verdict = self._first_sight(item, accepted)
            if verdict is not _HOLD:
                return verdict
            self._buffers[index] = []
        self._buffers[index].append(accepted)
        self._count_held(_size(accepted))
        if item is not None:
            self._try_resolve(item)
        return _HOLD

    def check_call(self, event: dict[str, Any], item: ItemState | None) -> None:
        """Compare the end of a call with what was streamed of it.

        To be called before the event is accumulated. Other arguments count only if the call is
        hidden, which may not be known yet.

        Raises:
            ProtocolError: A call would become a hidden one, or cease to be one.
        """
        if not self._names or item is None or item.type not in HIDEABLE:
            return
        value = event.get("item", event)
        name = value.get("name")
        renamed = isinstance(name, str) and name and item.name and name != item.name
        if renamed and not self._names.isdisjoint((name, item.name)):
            raise _broken(Rule.NAME_CHANGED, event["type"])
        final = value.get("input" if item.type == "custom_tool_call" else "arguments")
        if final and (streamed := item.arguments) and final != streamed:
            self._disagreeing[item.index] = _broken(Rule.ARGUMENTS_DISAGREE, event["type"])

    def _first_sight(self, item: ItemState, accepted: Accepted) -> Verdict:
        if item.type in HIDEABLE and self._names:
            if item.name in self._names:
                self.recall_indices.add(item.index)
                self._count_hidden(len(accepted.raw))
                self._collect(item)
                return _HIDE
            if not item.name:
                self.unresolved_tool_indices.add(item.index)
                return _HOLD
        if self._is_secret(item):
            self.secret_indices.add(item.index)
            self._count_hidden(len(accepted.raw))
            return _HIDE
        if item.is_client_call:
            self.other_tool_seen = True
        if self._hold_text and item.type == "message":
            self.held_text_indices.add(item.index)
            return _HOLD
        if self._buffers:
            return _HOLD
        self._shown.add(item.index)
        return _SHOW

    def _is_secret(self, item: ItemState) -> bool:
        """Say whether an item that is no call of ours tells of one all the same.

        It answers a hidden call, repeats one, or is of a kind that nobody knows and named like it.
        """
        if item.name in self._names and item.type not in ITEM_TYPES:
            return True
        if not item.call_id:
            return False
        if self._restored.has_call(item.value):
            return True
        if not item.type.endswith("_output"):
            return False
        index = self._giveaways.index_of(item.call_id)
        return self._giveaways.was_hidden(item.call_id) or (
            index is not None and self._is_hidden(index)
        )

    def _is_hidden(self, index: int) -> bool:
        """Say whether a call is hidden, or may turn out to be."""
        return index in self.recall_indices or index in self.unresolved_tool_indices

    def _try_resolve(self, item: ItemState) -> None:
        if item.index in self.unresolved_tool_indices:
            self._giveaways.note(item)
            if item.name:
                self._resolve(item)
        elif self.held_text_indices and self.unresolved_tool_bytes > HELD_TEXT_BYTES:
            self._hold_text = False
            self.held_text_indices.clear()

    def _resolve(self, item: ItemState) -> None:
        self.unresolved_tool_indices.discard(item.index)
        if item.name not in self._names:
            self.other_tool_seen = True
            return
        held = self._buffers.pop(item.index, [])
        self.unresolved_tool_bytes -= sum(map(_size, held))
        self.recall_indices.add(item.index)
        self._count_hidden(sum(len(one.raw) for one in held))
        self._collect(item)

    def _collect(self, item: ItemState) -> None:
        """Take a hidden call as pending once its arguments and its call id are complete."""
        self._giveaways.note(item)
        if error := self._disagreeing.get(item.index):
            raise error
        if item.phase is ItemPhase.OPEN or item.index in self.parsed_recall_inputs:
            return
        if not item.call_id or not item.name:
            return
        arguments = item.arguments
        self.parsed_recall_inputs[item.index] = arguments
        self.pending_recalls.append(
            HiddenCall(item.index, item.call_id, item.name, arguments, item.type)
        )

    def inherit(self, earlier: Interception) -> None:
        """Know what gives the hidden calls of the turn's earlier hops away."""
        self._giveaways.inherit(earlier._giveaways, earlier._is_hidden)

    def is_betrayed_by(self, raw: bytes) -> bool:
        """Say whether data that is not JSON is about a hidden call, or names a hidden tool."""
        giveaways = self._giveaways
        if giveaways.mentioned(raw) in self.recall_indices or giveaways.names_a_tool(raw):
            return True
        return giveaways.is_word_in(raw)

    # --- Releasing ------------------------------------------------------------------------

    @property
    def holding(self) -> bool:
        """Whether anything is held."""
        return bool(self._buffers or self.noise)

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
        self.noise.append(raw)
        self._count_held(len(raw))

    def release_noise(self) -> list[bytes]:
        """Return what ``hold_noise`` kept; the caller knows that nothing is busy."""
        noise, self.noise = self.noise, []
        self.unresolved_tool_bytes -= sum(map(len, noise))
        return [raw for raw in noise if not self.is_betrayed_by(raw)]

    def release(self) -> list[Accepted]:
        """Return the held events that may go out now, item by item in the order of opening."""
        released: list[Accepted] = []
        for index in list(self._buffers):
            if index in self.unresolved_tool_indices or index in self.held_text_indices:
                break
            released += self._buffers.pop(index)
            self._shown.add(index)
        self.unresolved_tool_bytes -= sum(map(_size, released))
        return released

    def settle(self, state: ResponseState) -> None:
        """Decide everything that is still unresolved, at a terminal that was accumulated.

        Afterwards ``release`` returns all that is held. Text that was held for its format is
        dropped where a continuation follows: the hop completed with hidden calls only.

        Raises:
            ProtocolError: The terminal names a call no better than the stream did, or disagrees
                with the arguments that were executed.
        """
        if not (self.unresolved_tool_indices or self.recall_indices or self.held_text_indices):
            return
        terminal = state.terminal or ""
        for index in sorted(self.unresolved_tool_indices):
            item = state.items[index]
            if item.name:
                self._resolve(item)
            elif terminal == "response.failed":
                self._drop(index)
            else:
                raise ProtocolError(
                    "the stream ended with a call that was never named", code=RETRYABLE
                )
        self.unresolved_tool_indices.clear()
        for index in sorted(self.recall_indices):
            item = state.items[index]
            self._collect(item)
            if item.arguments != self.parsed_recall_inputs.get(index, item.arguments):
                raise _broken(Rule.ARGUMENTS_DISAGREE, terminal)
        continues = self.recall_indices and not self.other_tool_seen
        if continues and terminal == "response.completed":
            for index in self.held_text_indices:
                self._drop(index)
        self.held_text_indices.clear()

    def _drop(self, index: int) -> None:
        self._buffers.pop(index, None)
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


def _size(accepted: Accepted) -> int:
    return len(accepted.raw) or _SYNTHESIZED_BYTES


def _broken(rule: Rule, kind: str) -> ProtocolError:
    return ProtocolError(RULES[rule].text.format(event=kind))
