"""The real process: ``python -m proxy.cli serve`` on a free port, and what it tells of itself."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, Self

import openai

from tests.conftest import ROOT
from tests.e2e.client import SDK_HEADERS, Exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.e2e.client import Headers

STARTUP: Final = 60.0
"""Seconds until ``/readyz`` must have answered 200."""
SHUTDOWN: Final = 30.0
BOUND: Final = 20.0
"""Seconds until something that is due must be seen."""
_SAMPLE: Final = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'([a-z_]+)="([^"]*)"')


class Reachable:
    """A running proxy, as far as its port reaches.

    Args:
        port: On 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def sdk(self, *, max_retries: int = 0) -> openai.OpenAI:
        """Return a client of the official SDK."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="sk-test", max_retries=max_retries)

    def ask(self, method: str, target: str, headers: Headers = SDK_HEADERS) -> Exchange:
        return Exchange(self.port, method=method, target=target, headers=headers)

    def get(self, target: str, headers: Headers = SDK_HEADERS) -> Exchange:
        return Exchange(self.port, method="GET", target=target, headers=headers)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of all samples of a metric with these labels."""
        with self.get("/metrics") as exchange:
            text = exchange.body().decode()
        wanted = labels.items()
        return sum(
            float(value)
            for found, pairs, value in _SAMPLE.findall(text)
            if found == f"sottovoce_{name}" and wanted <= dict(_LABEL.findall(pairs)).items()
        )

    def reaches(self, value: float, name: str, **labels: str) -> None:
        """Wait until a metric has a value: records pass through a queue."""
        eventually(
            lambda: self.metric(name, **labels) == value, f"{name}{labels} is {value}", within=BOUND
        )


class Proxy(Reachable):
    """One running proxy with a state directory of its own.

    Args:
        folder: For the config, the state and what it says.
        upstream: Base URL; without one the config names its upstreams.
        kind: Of that upstream.
        config: Text of ``sottovoce.toml``.
        environment: Variables beside the few that every process needs.
        beside: A proxy whose state directory this one shares.
        shared_port: A port on which others listen as well.
    """

    def __init__(
        self,
        folder: Path,
        *,
        upstream: str | None = None,
        kind: str = "responses",
        config: str = "",
        environment: Mapping[str, str] | None = None,
        beside: Proxy | None = None,
        shared_port: int | None = None,
    ) -> None:
        super().__init__(shared_port or free_port())
        self.folder = folder
        self.state = folder / "state" if beside is None else beside.state
        self.config = folder / "sottovoce.toml"
        folder.mkdir(parents=True)
        self.config.write_text(config)
        self._said = folder / "stderr.txt"
        self._environment = process_environment(folder) | dict(environment or {})
        if "drain_notice_seconds" not in config:
            # Nobody has to be told of a stop, and every test would wait for it.
            self._environment["SOTTOVOCE_SERVER__DRAIN_NOTICE_SECONDS"] = "0"
        self._arguments = ["serve", "--port", str(self.port), *self.places]
        if upstream is not None:
            self._arguments += ["--upstream", upstream, "--kind", kind]
        if shared_port is not None:
            self._arguments.append("--reuse-port")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def places(self) -> list[str]:
        """The flags that name this proxy's state and config."""
        return ["--state-dir", str(self.state), "--config", str(self.config)]

    def __enter__(self) -> Self:
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "proxy.cli", *self._arguments],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
        try:
            eventually(self._is_ready, "the proxy is ready", within=STARTUP)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(SHUTDOWN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # Shown by pytest beside a test that failed.
        sys.stdout.write(f"the proxy ended with {self.process.returncode} and said:\n{self.said}\n")

    @property
    def said(self) -> str:
        """What the process has written to stderr so far."""
        return self._said.read_text(errors="replace") if self._said.exists() else ""

    def tells(self, text: str) -> None:
        """Wait until the process has written something to stderr: lines pass through a queue."""
        eventually(lambda: text in self.said, f"{text} is told", within=BOUND)

    def _is_ready(self) -> bool:
        assert self.process is not None
        code = self.process.poll()
        assert code is None, f"the proxy ended with {code}:\n{self.said}"
        with contextlib.suppress(OSError), self.get("/readyz") as exchange:
            return exchange.status == 200
        return False

    def command(self, *arguments: str, expect: int = 0) -> str:
        """Run another verb on the same state and config; return what it prints."""
        return run_command(*arguments, *self.places, folder=self.folder, expect=expect)[0]


def run_command(
    *arguments: str,
    folder: Path,
    expect: int = 0,
    environment: Mapping[str, str] | None = None,
) -> tuple[str, str]:
    """Run a verb to its end; return its stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "proxy.cli", *arguments],
        cwd=ROOT,
        env=process_environment(folder) | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.returncode == expect, f"{done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def process_environment(folder: Path) -> dict[str, str]:
    """Return an environment that leads to nobody's home, config or proxy."""
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return keep | {
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "PYTHONPATH": str(ROOT),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def eventually(true: Callable[[], bool], what: str, *, within: float = BOUND) -> None:
    """Wait until something that no event announces is seen; the bound only ends a failing test."""
    pause = threading.Event()
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline, f"not seen in time: {what}"
        pause.wait(0.02)
