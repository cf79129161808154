"""A chunk or a completion whose members are changed one by one, the rest as it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.jsonplaces import find
from pipeline.jsontext import cutting, drop_members, dumps, loads, set_members, splice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pipeline.jsonspans import Path
    from proxy.chat.messages import Json


class Edited:
    """A JSON object under change.

    Args:
        text: As it came.
        value: Its value.

    Attributes:
        text: As it is.
        value: Its value.
    """

    def __init__(self, text: bytes, value: Json) -> None:
        self.text = text
        self.value = value

    def at(self, path: Path) -> Any:
        """Return what stands at a path, None where nothing does."""
        found: Any = self.value
        for step in path:
            try:
                found = found[step]
            except (LookupError, TypeError):
                return None
        return found

    def set(self, path: Path, members: Mapping[str, object]) -> None:
        """Give members of the object at a path other values."""
        here = self.at(path)
        changed = {
            name: dumps(one)
            for name, one in members.items()
            if name not in here or here[name] != one
        }
        if changed:
            self._become(set_members(self.text, self.value, changed, path))

    def drop(self, path: Path, names: Iterable[str]) -> None:
        """Take members out of the object at a path."""
        here = self.at(path)
        gone = [name for name in names if name in here]
        if gone:
            self._become(drop_members(self.text, self.value, gone, path))

    def cut(self, path: Path, positions: Collection[int]) -> None:
        """Take elements out of the array at a path."""
        _, values = find(self.text, self.value, path)
        gone = {id(values[position]) for position in positions}
        edits = cutting(self.text, self.value, lambda one: id(one) in gone, path)
        self._become(splice(self.text, edits))

    def _become(self, text: bytes) -> None:
        self.text, self.value = text, loads(text)
