"""Where conversations live: what one upstream has begun, it goes on with.

It alone can read its reasoning, has its prefix in the cache, and knows the responses that it
stored. Homes are kept in memory, so a proxy that was started anew asks in the configured order.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from proxy.headers import Headers

HOMES: Final = 10_000
"""Conversations whose upstream is remembered; the one that was longest silent goes first."""


class Homes:
    """Where conversations live: upstreams by what names a conversation."""

    def __init__(self, most: int = HOMES) -> None:
        self._most = most
        self._names: OrderedDict[Hashable, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def find(self, keys: Iterable[Hashable]) -> str | None:
        """Return the upstream of the first key that has one."""
        return next((self._names[key] for key in keys if key in self._names), None)

    def put(self, key: Hashable, name: str) -> None:
        """Remember an upstream."""
        self._names[key] = name
        self._names.move_to_end(key)
        while len(self._names) > self._most:
            self._names.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Errand:
    """Whose requests a route is for.

    Attributes:
        codex: Which sort of upstreams they go to.
        tenant: Conversations don't cross it.
        session: The conversation.
        headers: The client's, with the credential that it presented.
        body: The client's request.
        translated: Only upstreams of other dialects than Responses may take them.
    """

    codex: bool
    tenant: str
    session: str
    headers: Headers
    body: dict[str, Any]
    translated: bool = False

    @property
    def conversation(self) -> tuple[str, ...]:
        """What names the conversation."""
        return (self.tenant, "session", self.session)

    @property
    def keys(self) -> list[tuple[str, ...]]:
        """What its home is known by: the response that it continues, then the conversation."""
        previous = self.body.get("previous_response_id")
        continued = [response_key(self.tenant, previous)] if isinstance(previous, str) else []
        return [*continued, self.conversation]

    @property
    def bound(self) -> bool:
        """Whether it continues something that only one upstream knows of."""
        return any(
            self.body.get(name) is not None for name in ("previous_response_id", "conversation")
        )


def response_key(tenant: str, response_id: str) -> tuple[str, ...]:
    """Return what names a response."""
    return (tenant, "response", response_id)
