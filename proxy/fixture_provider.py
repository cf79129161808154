"""A provider that answers from a fixture: for clients, demonstrations and tests without a network.

Each ``head`` record of the fixture begins the answer to one request; the records after it, up to
the next head or request, are its body. After the last answer the first one comes again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from proxy.fixture import Fixture, FixtureError, Record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

EVENT_STREAM: Final = "text/event-stream"
_NOT_FOUND: Final = b'{"error":{"message":"a fixture answers POST requests only","code":null}}'


@dataclass(frozen=True, slots=True)
class Answer:
    """What the provider sends for one request."""

    head: Record
    body: tuple[Record, ...]

    @property
    def status(self) -> int:
        """The status, 200 unless the head says otherwise."""
        return int(self.head.members.get("status", 200))

    @property
    def content_type(self) -> str | None:
        """The content type; an event stream unless the head says otherwise, None for none."""
        value = self.head.members.get("content_type", EVENT_STREAM)
        return None if value is None else str(value)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """All header fields."""
        named = dict(self.head.members.get("headers", {}))
        if self.content_type is not None:
            named["content-type"] = self.content_type
        return [(name.lower().encode(), str(value).encode()) for name, value in named.items()]


def answers(fixture: Fixture) -> list[Answer]:
    """Return the answers in a fixture, one for each head.

    Raises:
        FixtureError: There are none.
    """
    found: list[Answer] = []
    head: Record | None = None
    body: list[Record] = []
    for record in [*fixture.records, Record("in", "request", {})]:
        if record.side == "out":
            continue
        if record.kind in {"head", "request"}:
            if head is not None:
                found.append(Answer(head, tuple(body)))
            head, body = (record, []) if record.kind == "head" else (None, [])
        elif record.kind in {"event", "bytes", "failure"}:
            body.append(record)
    if not found:
        raise FixtureError("the fixture has no answer to serve: no head record")
    return found


class FixtureProvider:
    """An ASGI app that serves a fixture's answers, one after the other.

    Args:
        fixture: Where the answers come from.
        pause: Waits for so many seconds between records whose times differ; None to send at once.

    Attributes:
        requests: The bodies of the requests so far.
    """

    def __init__(
        self, fixture: Fixture, *, pause: Callable[[float], Awaitable[None]] | None = None
    ) -> None:
        self._answers = answers(fixture)
        self._pause = pause
        self.requests: list[bytes] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        body = await _read(receive)
        if scope["method"] != "POST":
            head = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 404, "headers": head})
            await send({"type": "http.response.body", "body": _NOT_FOUND})
            return
        answer = self._answers[len(self.requests) % len(self._answers)]
        self.requests.append(body)
        await send(
            {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
        )
        if await self._send_body(answer, send):
            await send({"type": "http.response.body", "body": b""})

    async def _send_body(self, answer: Answer, send: Send) -> bool:
        """Send the body; False where the fixture cuts it, so that it gets no regular end."""
        now = answer.head.t
        for record in answer.body:
            if self._pause is not None and record.t is not None:
                if now is not None and record.t > now:
                    await self._pause((record.t - now) / 1000)
                now = record.t
            if record.kind == "failure":
                return False
            await send({"type": "http.response.body", "body": record.data(), "more_body": True})
        return True


async def _read(receive: Receive) -> bytes:
    pieces = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            break
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    return b"".join(pieces)
