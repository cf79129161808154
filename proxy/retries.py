"""Requests that a client sends again while the first is still being answered.

A client gives an answer up before the proxy can see that it did: its retry is here while the first
run still goes on, and both may end well. Only one of them is read, the newest; so an older run
leaves nothing: no entries in memory, no join record.

What marks a retry: the same conversation and input, and either the same ``turn_id`` (Codex keeps
it over the retries of a user's turn) or a retry count above the first one's (the OpenAI SDKs send
one). Equal requests without either are what they seem, two requests: some clients sample twice.
What both of them leave is stored once where it is equal.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proxy import headers as h

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy.headers import Headers
    from proxy.sessions import Identity


@dataclass(eq=False, slots=True)
class Attempt:
    """One run of a request.

    Attributes:
        turn_id: The client's id of the user's turn; None where it names none.
        count: Which retry the client says that it is; 0 is none.
        input: What it asks.
        superseded: Whether the client has sent the request again since.
    """

    turn_id: str | None
    count: int
    input: Any
    superseded: bool = False

    def repeats(self, other: Attempt) -> bool:
        """Say whether this is a retry of an attempt that came before it."""
        marked = self.turn_id is not None or self.count > other.count
        return marked and self.turn_id == other.turn_id and bool(self.input == other.input)


class Retries:
    """The runs that go on now, by conversation."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], list[Attempt]] = {}

    def __len__(self) -> int:
        return len(self._running)

    @contextmanager
    def attempt(self, identity: Identity, headers: Headers, asked: object) -> Iterator[Attempt]:
        """Count a run in while the block runs; older runs of the same request are superseded.

        Args:
            identity: Whose request it is.
            headers: The request's headers.
            asked: Its input.
        """
        key = identity.tenant, identity.session
        attempt = Attempt(identity.turn_id, _count(headers), asked)
        running = self._running.setdefault(key, [])
        for older in running:
            older.superseded = older.superseded or attempt.repeats(older)
        running.append(attempt)
        try:
            yield attempt
        finally:
            running.remove(attempt)
            if not running:
                del self._running[key]


def _count(headers: Headers) -> int:
    """Return which retry the OpenAI SDKs say that a request is."""
    count = h.text(headers, b"x-stainless-retry-count") or ""
    return int(count) if count.isascii() and count.isdecimal() and len(count) < 8 else 0
