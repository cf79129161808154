"""The one stream that the client sees, whatever many hops it is made of.

While nothing was hidden, inserted, synthesized or dropped, frames go out as they came. The first
such *change* starts renumbering: from then on every event gets the next sequence number and its
item's place in the client's own numbering. A stream that came without numbers stays without.

Renumbering edits an event's text and keeps the rest of its bytes: where serializing the parsed
event gives the text that came, the numbers are set in the parsed event and it is serialized
again; elsewhere the members are replaced in the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline import jsonplaces, jsontext
from pipeline.anchor import anchor_events
from pipeline.block import DeltaForm
from pipeline.dialect import UNCHANGED, WHOLE
from pipeline.lifecycle import EVENTS, ITEM_PREFIXES, TERMINALS, Action, ItemPhase
from pipeline.native import mypyc_attr
from pipeline.reader import terminal_prefix
from pipeline.sse import encode_event, is_whole
from pipeline.terminal import edit_response

if TYPE_CHECKING:
    from pipeline.accepted import Accepted
    from pipeline.block import Block
    from pipeline.companion import Companion
    from pipeline.identity import Mint
    from pipeline.response import ItemState

_NUMBERED: Final = frozenset(
    kind for kind, spec in EVENTS.items() if spec.action is not Action.FREE
)
"""The events that have a number in every stream that has numbers."""
_ANNOUNCES: Final = frozenset({"response.output_item.added", "response.output_item.done"})


def edit_event(
    event: dict[str, Any], data: bytes | None, changes: frozenset[str], edits: dict[str, Any]
) -> bytes:
    """Return an event's data with some members replaced and every other byte as it came.

    Args:
        event: The parsed event; its members named in ``changes`` differ from ``data`` already.
        data: The text that came; None for a synthesized event.
        changes: Members that normalization changed, or ``WHOLE``.
        edits: Further members to set.
    """
    if data is None or WHOLE in changes:
        return jsontext.dumps({**event, **edits})
    if not changes and jsontext.dumps(event) == data:
        return jsontext.dumps({**event, **edits})
    members = {name: jsontext.dumps(event[name]) for name in changes}
    members |= {name: jsontext.dumps(value) for name, value in edits.items()}
    return jsontext.set_members(data, event, members)


def _without_number(
    event: dict[str, Any], data: bytes | None
) -> tuple[dict[str, Any], bytes | None]:
    """Take the sequence number out of an event for a stream that has none."""
    if data is not None:
        data = jsontext.drop_members(data, event, ("sequence_number",))
    return {name: one for name, one in event.items() if name != "sequence_number"}, data


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientStream:
    """The client's numbering, and what is ready to be sent.

    Attributes:
        changed: Whether the stream differs from the upstream's, so that numbers are ours.
        numbered: Whether events carry sequence numbers.
        sequence: The last number that went out.
        created: Whether ``response.created`` went out.
        open_items: Client index → item that is visible and not done.
        out: Bytes that are ready.
        cut: Whether what was relayed ends inside of an event.
    """

    __slots__ = (
        "_ids",
        "_indices",
        "_names",
        "_next_index",
        "_withhold",
        "changed",
        "created",
        "cut",
        "numbered",
        "open_items",
        "out",
        "sequence",
    )

    def __init__(self, *, withhold_ciphertext: bool) -> None:
        self.changed = False
        self.numbered: bool | None = None
        self.sequence = -1
        self.created = False
        self.open_items: dict[int, ItemState] = {}
        self.out: list[bytes] = []
        self.cut = False
        self._withhold = withhold_ciphertext
        self._ids: set[str] = set()
        self._next_index = 0
        self._indices: dict[int, int] = {}
        self._names: dict[int, str] = {}

    def start_hop(self) -> None:
        """Take the events that follow as those of another hop: its indices start anew."""
        self.changed = True
        self._indices = {}
        self._names = {}

    def index_of(self, index: int) -> int | None:
        """Return the client's index for one of the current hop's, None where it is not visible."""
        return self._indices.get(index)

    def id_of(self, item: ItemState) -> str:
        """Return the id that the client knows an item of the current hop by."""
        return self._names.get(item.index) or item.id

    # --- Events of the upstream -----------------------------------------------------------

    def show(self, accepted: Accepted, item: ItemState | None, mint: Mint) -> None:
        """Append an event that the client is to see.

        Args:
            accepted: The event.
            item: Its item, None for an event without one.
            mint: Makes an id where an earlier hop already showed an item with this one.
        """
        event = accepted.event
        kind = event["type"]
        if item is not None:
            self._see(kind, item, mint)
        if accepted.verbatim and not self.changed:
            if type(number := event.get("sequence_number")) is int:
                self.sequence = number
            if not self._withhold or item is None or not self._is_withheld(event, item):
                self.out.append(accepted.raw)
                return
        edits = self._item_edits(event, item) if item is not None else {}
        self.write(kind, event, accepted.data, accepted.changes, edits)

    def continue_text(self, event: dict[str, Any], data: bytes, item: ItemState, /) -> None:
        """Append a delta of a text that is shown, of an item that has its place."""
        self.write(event["type"], event, data, UNCHANGED, self._item_edits(event, item))

    def form_of(
        self, form: DeltaForm, event: dict[str, Any], item: ItemState, /
    ) -> DeltaForm | None:
        """Return the form in which many deltas leave at once; None where none can.

        Args:
            form: In which they come.
            event: The event that it was made of.
            item: Their item.
        """
        if not self.changed:
            return form
        if form.numbered is not bool(self.numbered):
            return None
        edits = self._item_edits(event, item)
        return DeltaForm.of({**event, **edits}) if edits else form

    def continue_texts(self, block: Block, form: DeltaForm, first: int) -> None:
        """Append deltas as ``continue_text`` does, all at once.

        Args:
            block: The deltas.
            form: As ``form_of`` returned it.
            first: The first one's number, where they have numbers.
        """
        if self.changed:
            self.out.append(form.write(block.columns, block.frames, self.sequence + 1))
            first = self.sequence + 1
        else:
            self.out.append(block.raw)
        if form.numbered:
            self.sequence = first + block.frames - 1

    def insert(self, item: dict[str, Any]) -> None:
        """Append a finished message of ours, as if it came from the upstream."""
        index, self._next_index = self._next_index, self._next_index + 1
        self._ids.add(item["id"])
        for event in anchor_events(item, index):
            self.write(event["type"], event, None, UNCHANGED, {})

    def _see(self, kind: str, item: ItemState, mint: Mint) -> None:
        """Give an item its place with its first event, and note when it is open and done."""
        if item.index not in self._indices:
            self._place(item, mint)
        if kind in _ANNOUNCES:
            self._track(kind, item)

    def _place(self, item: ItemState, mint: Mint) -> None:
        index = self._next_index if self.changed else item.index
        self._indices[item.index] = index
        self._next_index = max(self._next_index, index + 1)
        if item.id and item.id in self._ids:
            prefix = ITEM_PREFIXES.get(item.type) or item.id.split("_", 1)[0]
            self._names[item.index] = mint(prefix, index)
        self._ids.add(self.id_of(item))

    def _track(self, kind: str, item: ItemState) -> None:
        index = self._indices[item.index]
        if item.phase is ItemPhase.DONE:
            self.open_items.pop(index, None)
        elif kind == "response.output_item.added":
            self.open_items[index] = item

    def _is_withheld(self, event: dict[str, Any], item: ItemState) -> bool:
        return (
            item.type == "reasoning"
            and isinstance(value := event.get("item"), dict)
            and "encrypted_content" in value
        )

    def _item_edits(self, event: dict[str, Any], item: ItemState) -> dict[str, Any]:
        edits: dict[str, Any] = {}
        index = self._indices[item.index]
        if event.get("output_index", index) != index:
            edits["output_index"] = index
        name = self._names.get(item.index)
        if isinstance(value := event.get("item"), dict):
            shown = self.visible(value, name)
            if shown is not value:
                edits["item"] = shown
        elif name is not None and "item_id" in event:
            edits["item_id"] = name
        return edits

    def visible(self, value: dict[str, Any], name: str | None) -> dict[str, Any]:
        """Return an item as the client sees it: under our id, without withheld ciphertext."""
        if self._withhold and value.get("type") == "reasoning" and "encrypted_content" in value:
            value = {key: one for key, one in value.items() if key != "encrypted_content"}
        if name is not None and value.get("id") != name:
            value = {**value, "id": name}
        return value

    # --- Writing --------------------------------------------------------------------------

    def begin_change(self) -> None:
        """Let numbers be ours from here on."""
        self.changed = True

    def write(
        self,
        kind: str,
        event: dict[str, Any],
        data: bytes | None,
        changes: frozenset[str],
        edits: dict[str, Any],
        /,
    ) -> None:
        """Append a rewritten event, numbered where that is ours to do.

        An event of ours (``data`` is None) is inserted: it starts renumbering.
        """
        if data is None:
            self.changed = True
        if not self.changed:
            if type(number := event.get("sequence_number")) is int:
                self.sequence = number
        elif self.numbered:
            if "sequence_number" in event or data is None or kind in _NUMBERED:
                self.sequence += 1
                edits["sequence_number"] = self.sequence
        elif "sequence_number" in event:
            event, data = _without_number(event, data)
        self.out.append(encode_event(kind, edit_event(event, data, changes, edits)))

    def write_response(self, accepted: Accepted, edits: dict[str, Any]) -> None:
        """Append a lifecycle event with members of its response replaced."""
        outer: dict[str, Any] = {}
        event, data = accepted.event, accepted.data
        if data is None:
            self.changed = True
        if self.changed and self.numbered:
            self.sequence += 1
            outer["sequence_number"] = self.sequence
        elif self.changed and "sequence_number" in event:
            event, data = _without_number(event, data)
            accepted = accepted._replace(event=event, data=data)
        text, _ = edit_response(accepted, edits, outer)
        self.out.append(encode_event(event["type"], text))

    def pass_through(self, raw: bytes) -> None:
        """Append a frame as it is: a comment, or foreign data that is not JSON."""
        self.out.append(raw)

    def accompany(self, companion: Companion) -> None:
        """Take what was said in another dialect: nothing to a client that reads the events."""

    @property
    def relayable(self) -> bool:
        """Whether the client can read the answer as it comes."""
        return True

    @property
    def one_text(self) -> bool:
        """Whether the client has the texts of one hop without anything between them."""
        return False

    def relay(self, raw: bytes) -> None:
        """Append bytes of an answer that is only passed on."""
        if raw:
            self.cut = not is_whole(raw)
        self.out.append(raw)

    def leave_event(self) -> None:
        """End an event that was relayed in part, so that one of ours can follow."""
        if self.cut:
            self.relay(b"\n\n")

    @property
    def committed(self) -> bool:
        """Whether a failure must be told inside the stream."""
        return self.created

    def take(self) -> bytes:
        """Return what is ready and forget it."""
        data = b"".join(self.out)
        self.out.clear()
        return data


@mypyc_attr(allow_interpreted_subclasses=True)
class JSONAnswer(ClientStream):
    """The one JSON body of a client that did not ask for a stream.

    Places and names are given as in a stream, so that the output is the same; of all events only
    the terminal's response is written.
    """

    __slots__ = ()

    @property
    def committed(self) -> bool:
        """Never: until the terminal the answer can still be an error."""
        return False

    def show(self, accepted: Accepted, item: ItemState | None, mint: Mint) -> None:
        """Give an item its place; write the response of a terminal."""
        if accepted.event["type"] in TERMINALS:
            self.write_response(accepted, {})
        elif item is not None and item.index not in self._indices:
            self._place(item, mint)

    def form_of(
        self,
        form: DeltaForm,
        _event: dict[str, Any],
        _item: ItemState,
        /,
    ) -> DeltaForm | None:
        """Take any: the item will have its text."""
        return form

    def continue_texts(self, block: Block, form: DeltaForm, first: int) -> None:
        """Write nothing."""

    def write(
        self,
        kind: str,
        event: dict[str, Any],
        _data: bytes | None,
        _changes: frozenset[str],
        _edits: dict[str, Any],
        /,
    ) -> None:
        """Write the response of a terminal of ours; other events have no place in JSON."""
        if kind in TERMINALS:
            self._end(event["response"])

    def _end(self, response: dict[str, Any]) -> None:
        """Write the body that a response of ours stands for."""
        self.out = [jsontext.dumps(response)]

    def write_response(self, accepted: Accepted, edits: dict[str, Any]) -> None:
        """Write a terminal's response with some members replaced."""
        data, event = accepted.data, accepted.event
        if edits or data is None or accepted.changes:
            data, event = edit_response(accepted, edits, {})
        prefix = terminal_prefix(event["type"])
        if data.startswith(prefix) and event.keys() == {"type", "response"}:
            self.out = [data[len(prefix) : -1]]
            return
        span, _ = jsonplaces.find(data, event, ("response",))
        self.out = [data[span.start : span.end]]

    def pass_through(self, raw: bytes) -> None:
        """Write nothing: frames have no place in JSON."""
