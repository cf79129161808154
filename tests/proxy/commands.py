"""The command as a process, and a small app that stands in for ours where only serving counts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final, Self

from tests.conftest import ROOT

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping
    from pathlib import Path

BOUND: Final = 30.0
"""Seconds until something that is due must be seen; they only end a failing test."""

TINY: Final = """
import asyncio, os, sys, types
from starlette.applications import Starlette

class Drain:
    def __init__(self):
        self.draining, self.over = False, asyncio.Event()
    def begin(self):
        self.draining = True
    def deadline(self):
        self.over.set()

async def whole_body(receive):
    while (await receive()).get("more_body"):
        pass

class App(Starlette):
    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            if os.environ.get("TINY_FAILS"):
                raise RuntimeError(os.environ["TINY_FAILS"])
            await super().__call__(scope, receive, send)
            if os.environ.get("TINY_ENDS_BADLY"):
                raise RuntimeError(os.environ["TINY_ENDS_BADLY"])
            return
        drain = self.state.drain
        status = 503 if drain.draining and scope["path"] == "/readyz" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
        if scope["path"] == "/hold":
            await whole_body(receive)
        if scope["path"] == "/slow":
            await drain.over.wait()
        await send({"type": "http.response.body", "body": b"ended"})

def create_app(config):
    if os.environ.get("TINY_REFUSES"):
        raise OSError(os.environ["TINY_REFUSES"])
    app = App()
    app.state.drain = Drain()
    return app

sys.modules["proxy.app"] = types.SimpleNamespace(create_app=create_app)
from proxy.cli import main
main()
"""


def environment(folder: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment that leads to nobody's home or configuration."""
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    return keep | home | {"PYTHONPATH": str(ROOT), **(more or {})}


def run(
    folder: Path,
    *arguments: str,
    stdin: str = "",
    more: Mapping[str, str] | None = None,
    tiny: bool = False,
) -> tuple[int, str, str]:
    """Run a verb to its end in a folder; return exit code, stdout and stderr."""
    program = ["-c", TINY] if tiny else ["-m", "proxy.cli"]
    done = subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=folder,
        env=environment(folder, more),
        input=stdin,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


class Serving:
    """``sottovoce serve`` over the small app, on a free port of its own.

    Args:
        folder: For its home, state and words.
        arguments: More of them.
        more: Variables.
    """

    def __init__(
        self, folder: Path, *arguments: str, more: Mapping[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self._said = folder / "said.txt"
        self._folder = folder
        self._environment = environment(folder, more)
        self._arguments = ("serve", "--port", str(self.port), *arguments)
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-c", TINY, *self._arguments],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
        eventually(lambda: "listens on" in self.said)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def said(self) -> str:
        return self._said.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        return self.process.wait(BOUND)

    def request(self, path: str, *, length: int = 0) -> socket.socket:
        """Send a request's head, and no byte of its body."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=BOUND)
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode()
        )
        return connection

    def status(self, path: str) -> int | None:
        """Return the status of a whole request, ``None`` where nobody accepts it."""
        try:
            with self.request(path) as connection:
                return int(connection.recv(4096).split()[1])
        except (ConnectionError, IndexError):
            return None


def until(connection: socket.socket, part: bytes) -> bytes:
    """Read until a part has come; fail where the connection ends before."""
    data = b""
    while part not in data:
        piece = connection.recv(4096)
        assert piece, f"ended after {data!r}"
        data += piece
    return data


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(true: Callable[[], bool]) -> None:
    """Wait for what no event announces."""
    deadline = time.monotonic() + BOUND
    while not true():
        assert time.monotonic() < deadline, "not seen in time"
        time.sleep(0.02)
