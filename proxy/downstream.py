"""The client's side: its request body, and a response that ends when the client leaves.

uvicorn never cancels an application whose client is gone, and its ``send`` then returns as if all
were well. So ``TurnResponse`` runs what makes a response as a task, is itself the only reader of
``receive()``, and cancels the task at the moment of the disconnect::

    async def run(channel: Channel) -> None:
        await channel.start(200, headers)
        await channel.send(b"...", more=False)

    await TurnResponse(run)(scope, receive, send)
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, cast

import orjson
from starlette.requests import ClientDisconnect

from pipeline.errors import RequestError, SottovoceError
from pipeline.failures import UNEXPECTED
from proxy.encodings import (
    CODINGS,
    BodyTooLargeError,
    CodingError,
    Decoder,
    UnknownCodingError,
    codings_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from types import TracebackType

    from starlette.types import Message, Receive, Scope, Send

    Headers = list[tuple[bytes, bytes]]
    Run = Callable[["Channel"], Awaitable[None]]

PIECE_BYTES: Final = 64 * 1024
"""The most that one ``send`` carries: the server buffers any size without a murmur."""
_LAST_STATUS: Final = 599
INBOX: Final = 2
"""How many messages of a request body wait for a reader; the server is not asked for more."""
BREATH: Final = 16
"""After so many pieces of 64 KiB, decoded or sent, other tasks get their turn."""


async def stream_request_body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield a request body as it comes, encoded or not.

    Args:
        receive: The server's, or ``Channel.receive`` inside of a ``TurnResponse``.

    Raises:
        ClientDisconnect: The client left before its end.
    """
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if body := message.get("body", b""):
            yield body
        more = message.get("more_body", False)


async def read_request_body(receive: Receive, headers: Headers, *, limit: int) -> bytes:
    """Read a whole request body and undo its content encoding.

    Args:
        receive: The server's, or ``Channel.receive`` inside of a ``TurnResponse``.
        headers: The request's, raw.
        limit: The most bytes, decoded.

    Raises:
        RequestError: 413 above the limit, 415 for an encoding that can't be undone, 400 for a
            body that is not what its encoding says, or ends too early.
        ClientDisconnect: The client left before its end.
    """
    try:
        codings = codings_of(headers)
        if codings:
            return await _decoded_body(receive, codings, limit)
        if _declared_size(headers) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        room = limit
        async for piece in stream_request_body(receive):
            parts.append(piece)
            room -= len(piece)
            if room < 0:
                raise _too_large(limit)
    except BodyTooLargeError as error:
        raise _too_large(limit) from error
    except UnknownCodingError as error:
        accepted = ", ".join([*CODINGS, "identity"])
        raise RequestError(f"{error}: send one of {accepted}", status=415) from error
    except CodingError as error:
        raise RequestError(f"the request body can't be decoded: {error}") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _decoded_body(receive: Receive, codings: tuple[str, ...], limit: int) -> bytes:
    decoder = Decoder(codings, limit=limit)
    # Encoding may make an incompressible body a little longer.
    room = limit + limit // 64 + 1024
    parts: list[bytes] = []
    async for piece in stream_request_body(receive):
        room -= len(piece)
        if room < 0:
            raise _too_large(limit)
        for decoded in decoder.feed(piece):
            parts.append(decoded)
            if len(parts) % BREATH == 0:
                await asyncio.sleep(0)
    decoder.finish()
    return b"".join(parts)


def _too_large(limit: int) -> RequestError:
    return RequestError(f"request body exceeded {limit} byte limit", status=413)


def _declared_size(headers: Headers) -> int:
    for name, value in headers:
        if name.lower() == b"content-length" and value.isdigit():
            return int(value)
    return 0


def error_response(error: SottovoceError) -> tuple[Headers, bytes]:
    """Return headers and body of an error response in OpenAI's shape."""
    body = orjson.dumps(error.body())
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    return head, body


async def send_error(
    send: Send, error: SottovoceError, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send an error as a whole response, where there is no ``Channel``.

    Args:
        send: The server's.
        error: Its status and body are sent.
        headers: Further headers.
    """
    head, body = error_response(error)
    start = {"type": "http.response.start", "status": error.status, "headers": [*head, *headers]}
    await send(start)
    await send(_body(body, more=False))


class Channel:
    """What a driver has of its client. Only one task may send.

    Args:
        send: The server's.
    """

    def __init__(self, send: Send) -> None:
        self.status: int | None = None
        """The status that was sent, None before the head."""
        self.blocked = False
        """A send waits for the client: it reads more slowly than we write."""
        self.ended = False
        """The last byte of the body was handed over."""
        self.delivered = False
        """The same, and the client had not been seen to leave before: more can't be known."""
        self.disconnected = False
        """The client left before the end."""
        self._send = send
        self._passed = 0
        self._inbox: deque[Message] = deque()
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        state = "delivered" if self.delivered else "gone" if self.disconnected else "open"
        return f"<Channel {state}, status {self.status}>"

    @property
    def started(self) -> bool:
        """Whether the head was sent."""
        return self.status is not None

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head.

        Args:
            status: The status. One that HTTP doesn't have is to be read as a server error (RFC
                9110, 15): it becomes a 502, as the server has no line for it.
            headers: Raw headers, names in lower case.
        """
        if status > _LAST_STATUS:
            status = 502
        self.status = status
        await self._pass({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, body: bytes, *, more: bool) -> None:
        """Send a part of the body, in pieces where it is long.

        Args:
            body: Bytes; may be empty.
            more: Whether more follows. Without it the last piece also ends the body.
        """
        last = 0
        while len(body) - last > PIECE_BYTES:
            await self._pass(_body(body[last : last + PIECE_BYTES], more=True))
            last += PIECE_BYTES
        await self._pass(_body(body[last:] if last else body, more=more))
        if not more:
            self.ended = True
            self.delivered = not self.disconnected

    async def refuse(
        self, error: SottovoceError, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Send an error as the whole response, in OpenAI's shape.

        Args:
            error: Its status and body are sent.
            headers: Further headers.
        """
        head, body = error_response(error)
        await self.start(error.status, [*head, *headers])
        await self.send(body, more=False)

    async def receive(self) -> Message:
        """Return the next message of the request's body, as the server's ``receive`` would."""
        while not self._inbox:
            self._changed.clear()
            await self._changed.wait()
        message = self._inbox.popleft()
        self._changed.set()
        return message

    def put(self, message: Message) -> None:
        """Take a message of the request's body from the server."""
        self._inbox.append(message)
        self._changed.set()

    @property
    def full(self) -> bool:
        """Whether the inbox takes no other message."""
        return len(self._inbox) >= INBOX

    async def room(self) -> None:
        """Wait until the inbox takes another message."""
        while self.full:
            self._changed.clear()
            await self._changed.wait()

    async def _pass(self, message: Message) -> None:
        self._passed += 1
        if self._passed % BREATH == 0:
            # The server's send does not wait for a client that is gone: a driver that only
            # sends would keep the loop, and with it the news of the disconnect, for ever.
            await asyncio.sleep(0)
        self.blocked = True
        try:
            await self._send(message)
        finally:
            self.blocked = False


class TurnResponse:
    """An ASGI response that is made by a driver, and ends when the client leaves.

    The driver is cancelled once, as soon as the client is seen to leave before the end of the
    body, and its clean-up is awaited. What it does after the end of the body is never cancelled
    by the client: clients drop the connection there.

    An error of ours that the driver raises before the head is sent as an error response; anything
    else it raises there is reported and becomes a 502. After the head nothing can be said any
    more: the error is reported and the connection is cut.

    Args:
        run: The driver.
        on_error: Gets what the driver should not have raised, to log it; without it the server
            gets it.
        error_headers: Headers of every error response.
    """

    def __init__(
        self,
        run: Run,
        *,
        on_error: Callable[[Exception], None] | None = None,
        error_headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        self._run = run
        self._on_error = on_error
        self._error_headers = tuple(error_headers)

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Perform the response; returns when the driver is done and no task is left."""
        channel = Channel(send)
        driver = asyncio.get_running_loop().create_task(self._drive(channel))
        try:
            with _Until(driver):
                await _attend(channel, receive, driver)
        except BaseException:  # the server cancelled us, or its receive failed
            driver.cancel()
            await asyncio.wait({driver})
            raise
        if not driver.done():
            await asyncio.wait({driver})
        if not driver.cancelled():
            driver.result()

    async def _drive(self, channel: Channel) -> None:
        try:
            await self._run(channel)
        except ClientDisconnect:
            channel.disconnected = True
        except SottovoceError as error:
            if channel.started:
                self._report(error)
            else:
                await channel.refuse(error, self._error_headers)
        except Exception as error:  # noqa: BLE001 - reported, and the client gets an answer
            await self._fail(channel, error)
        else:
            if not channel.ended:
                await self._fail(channel, RuntimeError("the driver left its response unfinished"))

    async def _fail(self, channel: Channel, error: Exception) -> None:
        if not channel.started:
            answer = SottovoceError(UNEXPECTED, code="unexpected")
            await channel.refuse(answer, self._error_headers)
        self._report(error)

    def _report(self, error: Exception) -> None:
        if self._on_error is None:
            raise error
        self._on_error(error)


async def _attend(channel: Channel, receive: Receive, driver: asyncio.Future[None]) -> None:
    """Be the only reader of ``receive`` until the client is gone."""
    while (message := await receive())["type"] != "http.disconnect":
        channel.put(message)
        if channel.full:
            await channel.room()
    if not channel.ended:
        channel.disconnected = True
        driver.cancel()


class _Until:
    """Leaves its block as soon as a future is done, as ``asyncio.timeout`` does in time.

    It costs neither a task nor a waiter, which every response would pay for.
    """

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future
        self._inside = False
        self._left = False

    def __enter__(self) -> None:
        self._task = cast("asyncio.Task[None]", asyncio.current_task())
        self._cancelling = self._task.cancelling()
        self._inside = True
        self._future.add_done_callback(self._leave)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._inside = False
        if not self._left:
            return False
        ours = self._task.uncancel() <= self._cancelling
        return ours and kind is asyncio.CancelledError

    def _leave(self, _future: asyncio.Future[None]) -> None:
        if self._inside:
            self._left = True
            self._task.cancel()


def _body(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}
