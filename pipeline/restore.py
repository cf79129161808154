"""Items put back into a request's input, edited there, or taken out of it, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from pipeline.history import Insertion, ItemEdit, Restoration
from pipeline.jsonspans import value_end
from pipeline.jsontext import Splice, drop_members, loads, set_members
from pipeline.request import Request, with_array_input, with_elements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.jsonspans import Json


def restore(request: Request, restorations: Sequence[Restoration]) -> Request:
    """Put what the client never had back into its ``input``.

    Args:
        request: The client's request.
        restorations: What `pipeline.history.restorations` found for its `input_items`.
    """
    if not restorations:
        return request
    request = with_array_input(request)
    inserted: dict[int, list[Insertion]] = {}
    edited: dict[int, list[ItemEdit]] = {}
    for restoration in restorations:
        if isinstance(restoration, Insertion):
            inserted.setdefault(restoration.index, []).append(restoration)
        elif isinstance(restoration, ItemEdit):
            edited.setdefault(restoration.index, []).append(restoration)
        else:
            assert_never(restoration)
    if not request.body["input"]:
        texts = [text for each in inserted[0] for text in each.texts]
        return with_elements(request, {"input": texts})
    source = request.source("input")
    text, items = source.data, source.value["input"]
    places = sorted(inserted.keys() | edited.keys())
    offsets = source.element_offsets("input", places)
    splices: list[Splice] = []
    restored: list[Json] = []
    done = 0
    for index in places:
        start = offsets[index]
        restored += items[done:index]
        done = index
        if index in inserted:
            texts = []
            for each in inserted[index]:
                texts += each.texts
                restored += each.values or [loads(text) for text in each.texts]
            joined = b",".join(texts)
            joined = joined + b"," if index < len(items) else b"," + joined
            splices.append(Splice(start, start, joined))
        if index in edited:
            end = value_end(text, start, items[index])
            item, value = _edited(text[start:end], items[index], edited[index])
            splices.append(Splice(start, end, item))
            restored.append(value)
            done = index + 1
    restored += items[done:]
    return request.edited(splices, {"input": restored})


def without_items(request: Request, indices: Sequence[int]) -> Request:
    """Take items out of the ``input``, with the commas that part them from the others.

    Args:
        request: One whose input is an array.
        indices: Which items, in order.
    """
    source = request.source("input")
    text, items = source.data, source.value["input"]
    gone = set(indices)
    kept = [at for at in range(len(items)) if at not in gone]
    # Up to the next one that stays; behind the last one that stays, from its end on.
    last = kept[-1] if kept else -1
    offsets = source.element_offsets("input", range(len(items)))
    ends = {at: value_end(text, offsets[at], items[at]) for at in {last, len(items) - 1} - {-1}}
    splices = [Splice(offsets[at], offsets[at + 1], b"") for at in indices if at < last]
    if last < len(items) - 1:
        start = ends[last] if kept else offsets[0]
        splices.append(Splice(start, ends[len(items) - 1], b""))
    return request.edited(splices, {"input": [items[at] for at in kept]})


def _edited(
    text: bytes, item: dict[str, Any], edits: Sequence[ItemEdit]
) -> tuple[bytes, dict[str, Any]]:
    for edit in edits:
        members = dict(edit.members)
        text = set_members(text, item, members)
        item = item | {key: loads(member) for key, member in members.items()}
        text = drop_members(text, item, edit.dropped)
        item = {key: item[key] for key in item if key not in edit.dropped}
    return text, item
