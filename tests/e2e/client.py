"""A client that hides nothing: one HTTP exchange over a raw socket, events as they arrive."""

from __future__ import annotations

import json
import re
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import h11

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.builders import Event

BOUND: Final = 20.0
"""Seconds without a byte after which a read fails the test."""
Headers = tuple[tuple[str, str], ...]
SDK_HEADERS: Final[Headers] = (
    ("authorization", "Bearer sk-test"),
    ("user-agent", "OpenAI/Python"),
)
CODEX_HEADERS: Final[Headers] = (
    ("authorization", "Bearer sk-test"),
    ("originator", "codex_exec"),
    ("user-agent", "codex_exec/0.171.0"),
)

_BLANK: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event as it came."""

    raw: bytes

    @property
    def is_comment(self) -> bool:
        return self.raw.startswith(b":")

    @property
    def event(self) -> Event:
        """The JSON of the data lines; the test fails where there is none."""
        text = self.raw.decode("utf-8-sig").replace("\r\n", "\n")
        lines = [x[5:].removeprefix(" ") for x in text.splitlines() if x.startswith("data:")]
        value = json.loads("\n".join(lines))
        assert isinstance(value, dict)
        return value


class Exchange:
    """One request and its answer on a connection of its own.

    Args:
        port: Of the proxy, on 127.0.0.1.
        body: Bytes as they are, or an object that is sent as JSON.
        headers: Beside ``host`` and ``content-length``.
    """

    def __init__(
        self,
        port: int,
        body: bytes | dict[str, Any] | None = None,
        *,
        method: str = "POST",
        target: str = "/v1/responses",
        headers: Headers = SDK_HEADERS,
        host: str | None = None,
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=BOUND)
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        self._buffer = b""
        self._response: h11.Response | None = None
        self.ended = False
        """The body came to its regular end."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body or b""
        fields = [("host", host or f"127.0.0.1:{port}"), *headers]
        if body is not None:
            fields += [("content-type", "application/json"), ("content-length", str(len(data)))]
        self._send(h11.Request(method=method, target=target, headers=fields))
        if data:
            self._send(h11.Data(data=data))
        self._send(h11.EndOfMessage())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def status(self) -> int:
        return self._head().status_code

    @property
    def headers(self) -> dict[str, str]:
        """Header fields of the answer; a repeated one fails the test."""
        fields: dict[str, str] = {}
        for name, value in self._head().headers:
            assert name.decode() not in fields, f"{name!r} came twice"
            fields[name.decode()] = value.decode()
        return fields

    def frames(self) -> Iterator[Frame]:
        """Yield frames as they arrive, until the body ends."""
        while True:
            while match := _BLANK.search(self._buffer):
                yield Frame(self._take(match.end()))
            data = self._piece()
            if data is None:
                break
            self._buffer += data
        if rest := self._take(len(self._buffer)):
            yield Frame(rest)

    def next_event(self, type_: str) -> Event:
        """Read up to the next event of a type."""
        for frame in self.frames():
            if not frame.is_comment and frame.event["type"] == type_:
                return frame.event
        raise AssertionError(f"the stream ended without {type_}")

    def body(self) -> bytes:
        """Read the rest of the answer."""
        while (data := self._piece()) is not None:
            self._buffer += data
        return self._take(len(self._buffer))

    def json(self) -> dict[str, Any]:
        value = json.loads(self.body())
        assert isinstance(value, dict)
        return value

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        """Leave without a goodbye: a TCP reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        data = self._connection.send(event)
        if data:
            self._socket.sendall(data)

    def _head(self) -> h11.Response:
        while self._response is None:
            event = self._next()
            if isinstance(event, h11.Response):
                self._response = event
        return self._response

    def _piece(self) -> bytes | None:
        """Return the next bytes of the body, None at its end."""
        self._head()
        while not self.ended:
            match self._next():
                case h11.Data(data=data):
                    return bytes(data)
                case h11.EndOfMessage():
                    self.ended = True
        return None

    def _next(self) -> h11.Event:
        while (event := self._connection.next_event()) is h11.NEED_DATA:
            self._connection.receive_data(self._socket.recv(65536))
        assert not isinstance(event, type), f"the connection is {event}"
        return event

    def _take(self, size: int) -> bytes:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken
