"""What a request carries that its client never had: items put back, an id that was mapped.

An upstream may repeat or quote any of it, whether our tools are declared in that request or not.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pipeline.jsontext import loads

if TYPE_CHECKING:
    from collections.abc import Iterable


class Restored:
    """The hidden items that went back into a request, and the response that it continues.

    Nothing is parsed before it is asked for: most upstreams never say anything about it.

    Args:
        texts: The items, as JSON texts.
        continues: The id of a response as its client knows it, and the upstream's that took its
            place; None where they are the same.
    """

    def __init__(
        self, texts: Iterable[bytes] = (), continues: tuple[str, str] | None = None
    ) -> None:
        self.texts = tuple(texts)
        self.continues = continues

    def __repr__(self) -> str:
        return f"<Restored {len(self.texts)} items>"

    def __bool__(self) -> bool:
        return bool(self.texts) or self.continues is not None

    @cached_property
    def items(self) -> list[dict[str, Any]]:
        """The items that were put back."""
        values = map(loads, self.texts)
        return [value for value in values if isinstance(value, dict)]

    @cached_property
    def call_ids(self) -> frozenset[str]:
        """The call ids of hidden calls among them."""
        return _members(self.items, "call_id")

    @cached_property
    def ids(self) -> frozenset[str]:
        """Their own ids."""
        return _members(self.items, "id")

    @cached_property
    def names(self) -> frozenset[str]:
        """What the calls among them are named."""
        return _members(self.items, "name")

    def has_call(self, item: dict[str, Any]) -> bool:
        """Tell whether an output item is one of these calls, or answers one.

        Some providers give the same call ids in every response: a call has its name as well.
        """
        call_id = item.get("call_id")
        if not self.texts or not isinstance(call_id, str) or call_id not in self.call_ids:
            return False
        return str(item.get("type")).endswith("_output") or item.get("name") in self.names

    def is_of(self, item: object) -> bool:
        """Tell whether an item is one of them, or belongs to a call that is."""
        if not self.texts or not isinstance(item, dict):
            return False
        call_id, identity = item.get("call_id"), item.get("id")
        return (isinstance(call_id, str) and call_id in self.call_ids) or (
            isinstance(identity, str) and identity in self.ids
        )


def _members(items: Iterable[dict[str, Any]], key: str) -> frozenset[str]:
    return frozenset(text for one in items if isinstance(text := one.get(key), str) and text)


NOTHING: Final = Restored()
"""What most requests carry."""
