"""A client's connection: uvicorn's protocol, with what a proxy at the edge must also bear.

uvicorn reads requests and starts the application. Here is added::

    Upgrade: h2c and the like   the request is served as if it had not asked (RFC 9110, 7.8)
    half a head, then silence   the connection is closed
    half a body, then silence   408, then closed
    a head that is too long     431, then closed
    HTTP/1.0                    an answer of unknown length ends with the connection, unchunked
    bytes that are no HTTP      400 in OpenAI's shape, never into an answer that is on its way
    an answer that nobody reads the connection is cut, and the turn sees its client leave

The parser stops at the end of a head that asks for another protocol: what follows would no longer
be HTTP. As we never change the protocol, such a head is told once more to a fresh parser, without
the header, and what follows is read as the body that it is. An upgrade to WebSocket is put back
for the application, which answers it: clients wait for its answer before they go on over HTTP.

Silence is looked for by one timer for each connection. A client owes nothing while we ourselves
hold it back, or while its answer is on the way.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pipeline.errors import RequestError
from proxy.downstream import error_response

if TYPE_CHECKING:
    import asyncio

    from uvicorn._types import (
        ASGI3Application,
        ASGIReceiveCallable,
        ASGISendCallable,
        ASGISendEvent,
        Scope,
    )
    from uvicorn.config import Config
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from uvicorn.server import ServerState

    from pipeline.errors import SottovoceError
    from proxy.headers import Headers

HEAD_BYTES: Final = 256 * 1024
"""The most that a request's head may take, however it is cut on its way."""
LINGER_SECONDS: Final = 0.5
"""How long a client that was refused has to read that, and to leave by itself."""
_WITHOUT_CHUNKS: Final = ("0.9", "1.0")
_CHECKS: Final = 4
"""How often a silence is looked for within its bound."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may take, in seconds.

    Attributes:
        head: For a whole head, from its first byte; on a new connection from the beginning.
        body: From some bytes of a body to the next.
        answer: From the last byte of an answer that it took to the next.
    """

    head: float = 60.0
    body: float = 60.0
    answer: float = 600.0

    @property
    def check_every(self) -> float:
        """How long from one look at a connection to the next."""
        return min(self.head, self.body, self.answer) / _CHECKS


class Stage(enum.StrEnum):
    """What a client is to send next."""

    NOTHING = enum.auto()
    """Another request, if it likes: uvicorn's keep-alive time runs."""
    HEAD = enum.auto()
    BODY = enum.auto()


class ClientConnection(HttpToolsProtocol):
    """One connection, request after request."""

    patience: ClassVar[Patience] = Patience()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._stage = Stage.HEAD
        self._owed_since = 0.0
        self._head_bytes = 0
        self._heads = 0
        self._asked: Headers = []
        self._upgrades: Headers = []
        self._deaf = False
        self._unsent = 0
        self._taken_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<ClientConnection, owes {self._stage}>"

    # --- What the event loop calls ----------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # uvicorn's own
        """Take the socket; a client that connects has something to say."""
        super().connection_made(transport)
        self._owed_since = self._taken_at = self.loop.time()
        self._timer = self.loop.call_later(self.patience.check_every, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what a client sends."""
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        if self._stage is not Stage.HEAD:
            self._owed_since = self.loop.time()
            if self._stage is Stage.NOTHING and not self._answering:
                self._expect_head()
        try:
            self._read(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, RequestError):
                self._refuse(error.__context__)
            else:
                self.send_400_response("the request is not HTTP/1.1")

    def _read(self, data: bytes) -> None:
        """Feed the parser, of a head no more than it may take.

        Raises:
            httptools.HttpParserError: It is no HTTP, or has too long a head.
        """
        if self._stage is not Stage.HEAD:
            self._feed(data)
            return
        heads, room = self._heads, HEAD_BYTES - self._head_bytes
        if len(data) <= room:
            self._feed(data)
            if self._heads == heads:
                self._head_bytes += len(data)
            return
        self._feed(data[:room])
        if self._heads == heads:
            self._refuse(_head_too_long())
        else:
            self._feed(data[room:])

    def resume_writing(self) -> None:
        """Go on with an answer: the client has taken some of it."""
        self._taken_at = self.loop.time()
        super().resume_writing()

    # --- What the parser calls --------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """Start the application, unless the head is told once more.

        Raises:
            RequestError: The head is too long: it began behind another request, uncounted.
        """
        if self._length_of_head() > HEAD_BYTES:
            raise _head_too_long()
        self._heads += 1
        self._asked = self._protocols_asked_for()
        if self._asked:
            return
        self.headers += self._upgrades
        super().on_headers_complete()
        self._stage = Stage.BODY

    def on_message_complete(self) -> None:
        """End a request."""
        if self._asked:
            return
        self._stage = Stage.NOTHING
        super().on_message_complete()

    def _length_of_head(self) -> int:
        """Return how many bytes the head takes when it is written without needless blanks."""
        line = len(self.parser.get_method()) + len(self.url) + len("  HTTP/1.1\r\n")
        return line + sum([len(name) + len(value) + 4 for name, value in self.headers]) + 2

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.scope["http_version"] in _WITHOUT_CHUNKS:
            app = _until_close(cycle, app)
        super()._start_asgi_task(cycle, app)

    # --- Requests that ask for another protocol ---------------------------------------------

    def _protocols_asked_for(self) -> Headers:
        """Return the Upgrade headers at which the parser is about to stop."""
        if not self.parser.should_upgrade() or self.parser.get_method() == b"CONNECT":
            return []
        return [one for one in self.headers if one[0] == b"upgrade"]

    def _feed(self, rest: bytes) -> None:
        while not self._deaf:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as stop:
                rest = rest[stop.args[0] :]
            else:
                return
            if self._asked:
                self._tell_again()
            else:
                self._deaf = True  # CONNECT: what follows is for nobody here

    def _tell_again(self) -> None:
        """Tell a head to a fresh parser, without the protocols that it asks for."""
        version = self.parser.get_http_version().encode()
        head = [b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, version)]
        head += [b"%s: %s\r\n" % one for one in self.headers if one not in self._asked]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._upgrades = self._asked if _is_websocket(self._asked) else []
        self.parser.feed_data(b"".join([*head, b"\r\n"]))
        self._upgrades = []

    # --- Clients that don't keep to the rules -----------------------------------------------

    @property
    def _answering(self) -> bool:
        """Whether an answer is still to come, or on its way."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _expect_head(self) -> None:
        self._stage = Stage.HEAD
        self._head_bytes = 0
        self._owed_since = self.loop.time()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP.

        Args:
            msg: What the client is told.
        """
        self._refuse(RequestError(msg))

    def _check(self) -> None:
        """Look whether the client has been silent, or has not read, for too long."""
        self._timer = self.loop.call_later(self.patience.check_every, self._check)
        now = self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent < self._unsent:
            self._taken_at = now
        self._unsent = unsent
        if now - self._taken_at >= self.patience.answer:
            self.transport.abort()
        elif not self._owes:
            self._owed_since = now
        elif self._stage is Stage.HEAD:
            if now - self._owed_since >= self.patience.head:
                self.transport.close()
        elif now - self._owed_since >= self.patience.body:
            seconds = f"{self.patience.body:g}"
            self._refuse(
                RequestError(f"no byte of the request body within {seconds} seconds", status=408)
            )

    @property
    def _owes(self) -> bool:
        """Whether it is for the client to send something now."""
        if self._stage is Stage.NOTHING or self.flow.read_paused:
            return False
        if self._stage is Stage.HEAD or not self._answering:
            return not self._answering
        return not (self.cycle.response_started or self.cycle.waiting_for_100_continue)

    def _refuse(self, error: SottovoceError) -> None:
        """Listen no more: behind what is still to be answered, or else at once, with an error."""
        self._deaf = True
        if self._answering and self._stage is not Stage.BODY:
            self.cycle.keep_alive = False
        else:
            self._end_with(error)

    def end(self, error: SottovoceError) -> None:
        """End it, whatever it is about: with an error, or by a cut where an answer has begun."""
        self._deaf = True
        if not self._answering:
            self.transport.close()
        elif self.cycle.response_started or self.pipeline:
            self.transport.abort()
        else:
            self._end_with(error)

    @property
    def waits_for_body(self) -> bool:
        """Whether a request can't be answered yet, as its body is not here."""
        return self._stage is Stage.BODY and self._answering and not self.cycle.response_started

    def _end_with(self, error: SottovoceError) -> None:
        answering = self._answering
        begun = self._stage is Stage.BODY  # and over already
        if answering:
            begun = self.cycle.response_started or bool(self.pipeline)
            self.cycle.disconnected = self.cycle.response_complete = True
            self.cycle.message_event.set()
        if not begun:
            head, body = error_response(error)
            lines = [b"%s: %s\r\n" % field for field in (*head, (b"connection", b"close"))]
            self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body]))
        # Closed at once, with bytes of the client unread, TCP would take the error back.
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)


def _head_too_long() -> RequestError:
    return RequestError(f"request head exceeded {HEAD_BYTES} byte limit", status=431)


def _until_close(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """Let an answer without a length end with its connection: HTTP/1.0 knows no chunks.

    uvicorn closes the connection as it is; to write a piece as it comes it must only believe that
    just this piece was announced.
    """

    async def run(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        unannounced = False

        async def send_unframed(message: ASGISendEvent) -> None:
            nonlocal unannounced
            if message["type"] == "http.response.start":
                names = [name.lower() for name, _ in message.get("headers", ())]
                unannounced = b"content-length" not in names
                if unannounced:
                    cycle.chunked_encoding = False
            elif message["type"] == "http.response.body" and unannounced:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_unframed)

    return run


def _is_websocket(asked: Headers) -> bool:
    protocols = [part.strip().lower() for _, value in asked for part in value.split(b",")]
    return b"websocket" in protocols
