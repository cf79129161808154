"""What else of a chunk tells of a hidden tool, beside the calls that a translator reads.

Upstreams put things where nobody looks for them: calls into choices that nobody asked for, a whole
message beside a delta, calls that are no array. Such parts are found by what they name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from proxy.providers.chat_stream import DELTA, MESSAGE, first_choice_at

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from proxy.chat.jsonedit import Edited
    from proxy.chat.messages import Json

_WORDS: Final = frozenset(
    {"arguments", "content", "reasoning", "reasoning_content", "refusal", "text", "token"}
)
"""Members whose text is the model's own: it may say any word."""
_ASKING: Final = ("tool_calls", "function_call")
_ESCAPED: Final = b"\\u00"
"""What stands in a text that writes plain letters as escapes."""


def quoted(names: Iterable[str]) -> tuple[bytes, ...]:
    """Return names as they stand in a JSON text that escapes no letter."""
    return tuple(f'"{name}"'.encode() for name in sorted(names))


def may_name(text: bytes, quoted_names: Iterable[bytes]) -> bool:
    """Say, at little cost, whether a JSON text may have one of some names as a string."""
    return _ESCAPED in text or any(name in text for name in quoted_names)


def names_one(value: object, names: Collection[str]) -> bool:
    """Say whether a value has one of some names anywhere but as a text of the model."""
    rest: list[tuple[str, Any]] = [("", value)]
    while rest:
        under, one = rest.pop()
        match one:
            case str() if one in names and under not in _WORDS:
                return True
            case dict():
                if not one.keys().isdisjoint(names):
                    return True
                rest += one.items()
            case list():
                rest += ((under, element) for element in one)
            case _:
                pass
    return False


def asks_elsewhere(value: Json) -> bool:
    """Say whether a choice that nobody asked for has calls."""
    at = first_choice_at(value)
    choices = value.get("choices")
    for place, choice in enumerate(choices if isinstance(choices, list) else ()):
        if place == at or not isinstance(choice, dict):
            continue
        for part in (choice.get(DELTA), choice.get(MESSAGE)):
            if isinstance(part, dict) and any(part.get(name) for name in _ASKING):
                return True
    return False


def cut_unread(edited: Edited, part: str) -> None:
    """Cut out what was not read of a chunk: other choices, and a message beside a delta.

    Args:
        edited: The chunk.
        part: The member of its choice that was read.
    """
    choices = edited.value.get("choices")
    if not isinstance(choices, list):
        if choices:
            edited.set((), {"choices": []})
        return
    at = first_choice_at(edited.value)
    others = [place for place in range(len(choices)) if place != at]
    if others and len(others) == len(choices):
        edited.set((), {"choices": []})
    elif others:
        edited.cut(("choices",), others)
    if at is not None:
        choice = edited.value["choices"][0]
        other = MESSAGE if part == DELTA else DELTA
        unread = [name for name in (DELTA, MESSAGE) if not isinstance(choice.get(name), dict)]
        edited.drop(("choices", 0), {other, *unread})


def readable_calls(entries: object) -> list[Json]:
    """Return the entries of calls with what is known of them, without anything else."""
    return [
        {name: entry[name] for name in ("index", "id", "type", "function") if name in entry}
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict)
    ]
