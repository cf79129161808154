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

from typing import TYPE_CHECKING, Self

from proxy import headers as h

if TYPE_CHECKING:
    from proxy.headers import Headers
    from proxy.sessions import Identity


class Attempt:
    """One run of a request: it goes on while the block runs that it is entered with.

    Attributes:
        superseded: Whether the client has sent the request again since.
    """

    __slots__ = ("_asked", "_count", "_headers", "_identity", "_runs", "superseded")

    def __init__(self, runs: _Runs, identity: Identity, headers: Headers, asked: object) -> None:
        self.superseded = False
        self._runs = runs
        self._identity = identity
        self._headers = headers
        self._asked = asked
        self._count: int | None = None  # nearly nobody asks

    def __enter__(self) -> Self:
        running = self._runs.setdefault(self._conversation, [])
        for older in running:
            older.superseded = older.superseded or self._repeats(older)
        running.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        running = self._runs[self._conversation]
        running.remove(self)
        if not running:
            del self._runs[self._conversation]

    @property
    def _conversation(self) -> tuple[str, str]:
        return self._identity.tenant, self._identity.session

    def _repeats(self, other: Attempt) -> bool:
        """Say whether this is a retry of an attempt that came before it."""
        turn_id = self._identity.turn_id
        same = turn_id == other._identity.turn_id
        marked = turn_id is not None or self._retry > other._retry
        return same and marked and bool(self._asked == other._asked)

    @property
    def _retry(self) -> int:
        """Which retry its client says that it is; 0 is none."""
        if self._count is None:
            self._count = _count(self._headers)
        return self._count


_Runs = dict[tuple[str, str], list[Attempt]]


class Retries:
    """The runs that go on now, by conversation."""

    def __init__(self) -> None:
        self._running: _Runs = {}

    def __len__(self) -> int:
        return len(self._running)

    def attempt(self, identity: Identity, headers: Headers, asked: object) -> Attempt:
        """Return a run, counted in once it is entered; it supersedes older ones of its request.

        Args:
            identity: Whose request it is.
            headers: The request's headers.
            asked: Its input.
        """
        return Attempt(self._running, identity, headers, asked)


def _count(headers: Headers) -> int:
    """Return which retry the OpenAI SDKs say that a request is."""
    count = h.text(headers, b"x-stainless-retry-count") or ""
    return int(count) if count.isascii() and count.isdecimal() and len(count) < 8 else 0
