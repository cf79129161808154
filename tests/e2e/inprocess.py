"""The application in this process, over real sockets: for tests that reach into it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

import uvicorn

from proxy.app import create_app
from proxy.config import load_config
from recall.search import run_recall
from tests.e2e.process import Reachable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from proxy.config_toml import KeyPath
    from tests.upstreams import Gate

BOUND = 30.0


class _Server(uvicorn.Server):
    """Leaves the signals of the test's process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class InProcess(Reachable):
    """An application on a thread of its own.

    Args:
        folder: For its state.
        upstream: Base URL; without one the config names its upstreams.
        config: Text of ``sottovoce.toml``.
        state: Another one's folder whose state it shares or takes over.
    """

    def __init__(
        self, folder: Path, upstream: str | None, config: str = "", state: Path | None = None
    ) -> None:
        folder.mkdir(parents=True)
        file = folder / "sottovoce.toml"
        file.write_text(config)
        self._listener = socket.create_server(("127.0.0.1", 0))
        super().__init__(self._listener.getsockname()[1])
        flags: dict[KeyPath, object] = {
            ("server", "state_dir"): str((state or folder) / "state"),
            ("server", "port"): self.port,
        }
        if upstream is not None:
            flags["upstream",] = upstream
        settings = load_config(config_file=file, flags=flags, environ={}, directory=folder)
        self.app: Any = create_app(settings)
        self._server = _Server(uvicorn.Config(self.app, lifespan="on", log_config=None, ws="none"))
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop.set_result(asyncio.get_running_loop())
        await self._server.serve(sockets=[self._listener])

    def tasks(self) -> int:
        """Return how many tasks there are, but for the one that counts."""

        async def count() -> int:
            return len(asyncio.all_tasks()) - 1

        return asyncio.run_coroutine_threadsafe(count(), self._loop.result(BOUND)).result(BOUND)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(BOUND)
        self._listener.close()
        assert not self._thread.is_alive(), "the application did not end"


def delay_recall(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """Let recalls wait for a gate."""

    async def waits(*arguments: Any, **options: Any) -> Any:  # run_recall's own
        await gate.reaches(1)
        return await run_recall(*arguments, **options)

    monkeypatch.setattr("proxy.turns.run_recall", waits)
