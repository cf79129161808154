"""The server under ``sottovoce serve``: uvicorn, with a drain that lets open turns end.

::

    SIGTERM ──> drain.begin()        /readyz says no, answers say `connection: close`
       │ drain_notice_seconds        still accepting: a load balancer needs time to notice
       ├──> stop accepting
       │ drain_seconds - 2           open turns go on
       ├──> drain.deadline()         turns end with `response.failed`, half requests with 503
       │ 1 second
       ├──> what has not ended is cut off
       │ 1 second
       └──> exit 0
"""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

import uvicorn

from pipeline.errors import SottovoceError
from pipeline.failures import ShutdownError
from proxy.cli_files import no_start
from proxy.cli_output import CliError, byte_size, tell
from proxy.cli_serve import BACKLOG
from proxy.client_connection import ClientConnection
from proxy.config_sources import Origin
from proxy.version import VERSION
from telemetry.logs import LogFormat, configure_logging
from telemetry.redact import redact

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, MutableMapping
    from types import FrameType

    from starlette.applications import Starlette

    from proxy.config import Config

    Message = MutableMapping[str, Any]
    Send = Callable[[Message], Awaitable[None]]
    Receive = Callable[[], Awaitable[Message]]
    App = Callable[[Message, Receive, Send], Awaitable[None]]

LAST_SECONDS: Final = 2.0
"""How long before the end of the drain what is still open is told to end."""
KEEP_ALIVE_SECONDS: Final = 75
"""How long an idle connection of a client stays: longer than clients keep theirs."""
_LOG_SECONDS: Final = 2.0
_FREED: Final = 1 << 20
GC_THRESHOLDS: Final = (10_000, 20, 50)
"""How many more objects there have to be before the collector looks at the young ones, and how
often at the older: the interpreter's 700 are what a few streams at once keep for a moment."""


class Drain(Protocol):
    """What the app offers to the server: ``app.state.drain``."""

    def begin(self) -> None:
        """Say no to readiness and ``connection: close`` to clients; go on serving."""

    def deadline(self) -> None:
        """End what is still open."""


def serve(config: Config, listener: socket.socket) -> None:
    """Serve on a socket that listens already, until a signal has drained us.

    Raises:
        CliError: The app can't start; the text says why.
    """
    channel = configure_logging(
        log_format=LogFormat(config.telemetry.log_format), stream=sys.stderr
    )
    try:
        _serve(config, listener)
    finally:
        channel.close(_LOG_SECONDS)


def _serve(config: Config, listener: socket.socket) -> None:
    _keep_freed_memory()
    app = _app(config)
    guard = LifespanGuard(app)
    server = DrainingServer(
        uvicorn_config(config, guard),
        drain=app.state.drain,
        notice=notice_seconds(config, on_terminal=sys.stderr.isatty()),
        grace=config.server.drain_seconds,
        started=lambda: _started(config, listener.getsockname()[1]),
    )
    try:
        server.run([listener])
    except StartupError:
        reason = guard.failure or "the app ended before it had started"
        raise CliError(redact(f"the proxy can't start: {reason}")) from guard.failure
    if guard.failure is not None:
        raise CliError(redact(f"the proxy did not end cleanly: {guard.failure}")) from guard.failure


def _keep_freed_memory() -> None:
    """Let what a turn frees serve the next turn, instead of going back to the system at once.

    glibc gives the end of its heap back as soon as 128 KiB of it are free, and gets it again page
    by page: for each turn anew. It lets twice as much lie as the largest block of its own that it
    saw freed.
    """
    bytes(_FREED)


def _started(config: Config, port: int) -> None:
    """Say that we listen, and leave what is there by now out of every search for garbage.

    Turns hold no cycles and need no collector, but their objects are looked through by it, and
    everything that was imported as well: a tenth of a stream's CPU, and all streams wait for it.
    """
    tell(banner(config, port))
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _app(config: Config) -> Starlette:
    from proxy.app import create_app
    from recall.migrations import StoreError

    try:
        return create_app(config)
    except (OSError, SottovoceError, StoreError) as error:
        raise no_start(error) from error


def uvicorn_config(config: Config, app: App) -> uvicorn.Config:
    """Return how uvicorn is run: as a plain HTTP/1.1 server that adds nothing of its own."""
    return uvicorn.Config(
        app,
        interface="asgi3",
        http=ClientConnection,
        loop="auto" if sys.platform == "win32" else "uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(config.server.drain_seconds),
    )


def notice_seconds(config: Config, *, on_terminal: bool) -> float:
    """Return how long to go on accepting after a stop was asked for.

    On a terminal nobody balances loads: there it is 0 unless it was configured.
    """
    given = config.source("server", "drain_notice_seconds").origin is not Origin.DEFAULT
    return config.server.drain_notice_seconds if given or not on_terminal else 0.0


def banner(config: Config, port: int) -> str:
    """Return what is said when the server has started, five lines."""
    host = config.server.host
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(  # noqa: S104 - told, not bound
        host, f"[{host}]" if ":" in host else host
    )
    base = f"http://{shown}:{port}/v1"
    upstreams = ", ".join(f"{each.kind} {each.base_url}" for each in config.upstream)
    memory = config.memory_file
    files = (memory, memory.with_name(f"{memory.name}-wal"))
    size = byte_size(sum(file.stat().st_size for file in files if file.is_file()))
    return "\n".join(
        (
            f"sottovoce {VERSION} listens on {base}",
            f"upstream   {upstreams}",
            f"memory     {memory} ({size})",
            f"clients    codex -c openai_base_url={base}, or OPENAI_BASE_URL={base}",
            "trouble    sottovoce config check",
        )
    )


class StartupError(Exception):
    """The app's lifespan did not start."""


class LifespanGuard:
    """The app as uvicorn gets it: keeps what went wrong at its start, and its traceback unlogged.

    Args:
        app: The ASGI app. Its requests pass through without a frame of ours.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self.failure: Exception | None = None

    def __call__(self, scope: Message, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one scope."""
        if scope["type"] == "lifespan":
            return self._lifespan(scope, receive, send)
        return self._app(scope, receive, send)

    async def _lifespan(self, scope: Message, receive: Receive, send: Send) -> None:
        answered = False

        async def without_text(message: Message) -> None:
            nonlocal answered
            answered = True
            failed = message["type"].endswith(".failed")
            await send({"type": message["type"], "message": ""} if failed else message)

        try:
            await self._app(scope, receive, without_text)
        except Exception as error:
            self.failure = error
            if not answered:
                await send({"type": "lifespan.startup.failed", "message": ""})
            raise


class DrainingServer(uvicorn.Server):
    """A server that a signal drains instead of stopping.

    Args:
        config: uvicorn's.
        drain: The app's side of it.
        notice: Seconds to go on accepting.
        grace: Seconds for open turns afterwards.
        started: Called once when connections are accepted.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        drain: Drain,
        notice: float,
        grace: float,
        started: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._notice = notice
        self._grace = grace
        self._started = started
        self._signalled = False
        self._stop_at: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the app and accept connections.

        Raises:
            StartupError: The app did not start.
        """
        try:
            await super().startup(sockets)
        except SystemExit:
            raise StartupError from None
        self._started()

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        """Note a signal; the second Ctrl-C ends everything at once."""
        if self._signalled and sig == signal.SIGINT:
            self.force_exit = self.should_exit = True
        self._signalled = True

    async def on_tick(self, counter: int) -> bool:
        """Look, every tenth of a second, whether it is time to stop accepting."""
        now = asyncio.get_running_loop().time()
        if self._signalled and self._stop_at is None:
            self._drain.begin()
            self._stop_at = now + self._notice
        if self._stop_at is not None and now >= self._stop_at:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let open turns end, tell the rest to end shortly before the last."""
        last_call = max(self._grace - LAST_SECONDS, 0.0)
        loop = asyncio.get_running_loop()
        timers = [
            loop.call_later(last_call, self._last_call),
            loop.call_later((last_call + self._grace) / 2, self._cut),
        ]
        try:
            await super().shutdown(sockets)
        finally:
            for timer in timers:
                timer.cancel()

    def _last_call(self) -> None:
        """Let what is open end: turns by their terminal, requests by an error."""
        self._drain.deadline()
        self._end(lambda connection: connection.waits_for_body)

    def _cut(self) -> None:
        """End what did not take the last call, before uvicorn cancels it with a traceback."""
        self._end(lambda _: True)

    def _end(self, which: Callable[[ClientConnection], bool]) -> None:
        error = ShutdownError("the proxy is shutting down")
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, ClientConnection) and which(connection):
                connection.end(error)
