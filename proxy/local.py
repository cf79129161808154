"""A proxy for the verbs that talk through one: the one that runs, or one in this process."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import httpx
import uvicorn

from pipeline.errors import SottovoceError
from proxy.cli_files import no_start
from proxy.cli_output import CliError
from proxy.cli_serve import with_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy.config import Config

_START_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 2.0
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where it can be reached


@dataclass(frozen=True, slots=True)
class Place:
    """Where a proxy is, and what it asks of its clients.

    Attributes:
        url: Without a path.
        headers: Of every request.
        running: Whether it was there before us.
    """

    url: str
    headers: dict[str, str] = field(repr=False)
    running: bool


@contextlib.contextmanager
def proxy(config: Config) -> Iterator[Place]:
    """Find the proxy of a configuration, or run one until the block ends.

    Raises:
        CliError: None runs, and none can be started.
    """
    host = _ANYWHERE.get(config.server.host, config.server.host)
    url = f"http://[{host}]" if ":" in host else f"http://{host}"
    running = f"{url}:{config.server.port}"
    headers = _headers(config)
    if config.server.port and _is_ours(running, headers):
        yield Place(running, headers, running=True)
        return
    with _started(config) as port:
        yield Place(f"http://127.0.0.1:{port}", headers, running=False)


def _headers(config: Config) -> dict[str, str]:
    headers = {}
    if token := next(iter(config.access_tokens.values()), None):
        headers["x-sottovoce-key"] = token.get_secret_value()
    if key := os.environ.get("OPENAI_API_KEY", "").strip():
        headers["authorization"] = f"Bearer {key}"
    return headers


def _is_ours(url: str, headers: dict[str, str]) -> bool:
    """Say whether a proxy of ours answers there: nobody else may see what is asked."""
    try:
        told = httpx.get(f"{url}/readyz", timeout=_LOOK_SECONDS, trust_env=False).json()
        key = {name: value for name, value in headers.items() if name == "x-sottovoce-key"}
        if isinstance(told, dict) and {"status", "upstreams"} <= told.keys():
            usage = httpx.get(f"{url}/usage", headers=key, timeout=_LOOK_SECONDS, trust_env=False)
            return usage.status_code == 200
    except (httpx.HTTPError, ValueError):
        pass
    return False


@contextlib.contextmanager
def _started(config: Config) -> Iterator[int]:
    """Run a proxy on a thread, on a free loopback port."""
    import logging

    from proxy.app import create_app
    from recall.migrations import StoreError
    from telemetry.logs import LogFormat, configure_logging

    log = configure_logging(log_format=LogFormat.AUTO, stream=sys.stderr, level=logging.WARNING)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
        server = config.server.model_copy(update={"host": "127.0.0.1"})
        config = with_port(config.model_copy(update={"server": server}), port)
        try:
            app = create_app(config)
        except (OSError, SottovoceError, StoreError) as error:
            raise no_start(error) from error
        started = threading.Event()
        running = _Server(uvicorn.Config(app, lifespan="on", log_config=None, ws="none"), started)
        thread = threading.Thread(target=running.run, args=([listener],), daemon=True)
        thread.start()
        try:
            if not started.wait(_START_SECONDS):
                raise CliError("the proxy did not start in time")
            yield port
        finally:
            running.should_exit = True
            thread.join(_START_SECONDS)
            log.close(1)


class _Server(uvicorn.Server):
    """Tells when it serves."""

    def __init__(self, config: uvicorn.Config, started_event: threading.Event) -> None:
        super().__init__(config)
        self._event = started_event

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self._event.set()
