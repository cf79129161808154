"""The fast path: a run of deltas of one text.

Nine events of ten continue the text that the event before them continued. Once such an event went
the whole way (normalized, checked, accumulated, shown as it came), the next one needs none of it
if it is the same in everything but its text and its number: then every step would find what it
found before. An event that differs in anything goes the whole way again, and ends the run.

Where a read brings many of them, they are taken at once (`pipeline.block`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from pipeline.block import DeltaForm
from pipeline.lifecycle import EVENTS, Action, ItemPhase
from pipeline.response import part_index, text_size

if TYPE_CHECKING:
    from pipeline.accepted import Accepted
    from pipeline.block import Block
    from pipeline.response import ItemState, ResponseState
    from pipeline.splice import ClientStream
    from pipeline.sse import Frame

_OPEN: Final = ItemPhase.OPEN


class TextRun:
    """A text that the client sees grow.

    Args:
        kind: Type of the deltas.
        event: The delta that began it.
        item: The item that the text belongs to.
        state: The response that the item belongs to.
        client: Where the deltas go.
    """

    __slots__ = (
        "_client",
        "_deltas",
        "_event",
        "_form",
        "_formless",
        "_index",
        "_item",
        "_item_id",
        "_kind",
        "_logprobs",
        "_part",
        "_part_name",
        "_state",
    )

    def __init__(
        self,
        kind: str,
        event: dict[str, Any],
        item: ItemState,
        state: ResponseState,
        client: ClientStream,
    ) -> None:
        spec = EVENTS[kind]
        self._kind = kind
        self._event = event
        self._form: DeltaForm | None = None
        self._formless = False
        self._index = event["output_index"]
        self._part_name = spec.part
        self._part = event.get(spec.part)
        self._item = item
        self._item_id = event.get("item_id")
        self._logprobs = "logprobs" in event
        self._state = state
        self._client = client
        self._deltas = item.texts[spec.field, part_index(spec, event)]

    def take(self, frame: Frame) -> bool:
        """Take the next frame if it continues the text; say whether it did."""
        raw, name, data, sound = frame
        if name != self._kind or data is None or not sound:
            return False
        try:
            event = orjson.loads(data)
        except ValueError:
            return False
        if type(event) is not dict:
            return False
        state, index, part = self._state, event.get("output_index"), event.get(self._part_name)
        if (
            event.get("type") != name
            or index != self._index
            or type(index) is not int  # true is 1 as well
            or event.get("item_id") != self._item_id
            or part != self._part
            or type(part) is not type(self._part)
            or ("logprobs" in event) is not self._logprobs
        ):
            return False
        delta, number = event.get("delta"), event.get("sequence_number")
        if type(delta) is not str:
            return False
        if state.numbered:
            if type(number) is not int or number != state.sequence + 1:
                return False
            state.sequence = number
        elif number is not None:
            return False
        self._deltas.append(delta)
        size = text_size(delta)
        self._item.size += size
        state.retained += size
        client = self._client
        if client.changed:
            client.continue_text(event, data, self._item)
        else:
            client.out.append(raw)
            if number is not None:
                client.sequence = number
        return True

    def match(self, data: bytes, start: int, end: int) -> tuple[Block, DeltaForm] | None:
        """Return the frames that continue the text, and in which form they leave.

        None where there are none, or where the client can't have many at once.

        Args:
            data: What one read brought.
            start: Where they begin.
            end: Where to stop looking.
        """
        if self._formless:
            return None
        form = self._form
        if form is None:
            form = self._form = DeltaForm.of(self._event)
            if form is None:
                self._formless = True
                return None
        state, client = self._state, self._client
        if form.numbered is not bool(state.numbered):
            return None
        shown = client.form_of(form, self._event, self._item)
        if shown is None:  # what is taken one by one must not be counted as many
            return None
        block = form.read(data, start, state.sequence + 1, end)
        return None if block is None else (block, shown)

    def take_block(self, block: Block, shown: DeltaForm) -> None:
        """Take what ``match`` has just found."""
        state = self._state
        self._client.continue_texts(block, shown, state.sequence + 1)
        if shown.numbered:
            state.sequence += block.frames
        self._deltas.append(block.text)
        size = text_size(block.text)
        self._item.size += size
        state.retained += size


BEGINS: Final = frozenset(kind for kind, spec in EVENTS.items() if spec.action is Action.APPEND)
"""The events with which a run may begin."""


def begin_run(
    accepted: Accepted, item: ItemState, state: ResponseState, client: ClientStream
) -> TextRun | None:
    """Return the run that begins with a delta that was just shown; None where none can follow it.

    Args:
        accepted: The event, one of ``BEGINS``.
        item: Its item.
        state: The response that the item belongs to.
        client: Where it was shown.
    """
    event = accepted.event
    spec = EVENTS[event["type"]]
    if not accepted.verbatim or item.phase is not _OPEN:
        return None
    if (spec.field, part_index(spec, event)) not in item.texts:
        return None
    return TextRun(event["type"], event, item, state, client)
