"""The processes of a run: the provider and what stands before it, each on its core."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench import native, script
from pipeline import turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import ExitStack

_ROOT: Final = Path(__file__).parent.parent
_START_SECONDS: Final = 20
_NGINX: Final = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
    access_log {access};
    client_max_body_size 0;
    keepalive_requests 1000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {http}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{ {location} }}
    }}
}}
"""
_NGINX_PLAIN: Final = ("{folder}/access.log", "", "proxy_pass http://127.0.0.1:{upstream};")
"""nginx as it comes: its own buffers, an access log, a connection upstream for each request. Only
its clients, which are the bench's, may keep theirs for more than a thousand requests."""
_NGINX_TUNED: Final = (
    "off",
    """upstream provider {{
        server 127.0.0.1:{upstream};
        keepalive 256;
        keepalive_requests 1000000;
    }}""",
    'proxy_pass http://provider; proxy_http_version 1.1; proxy_set_header Connection "";',
)
"""nginx with its own buffers too, but without a log, and with connections that stay open."""


@dataclass(frozen=True, slots=True)
class Target:
    """A running proxy, or the provider itself.

    Attributes:
        name: How it is called in results.
        port: Where it listens on loopback.
        pid: The root of its processes.
    """

    name: str
    port: int
    pid: int


def is_compiled() -> bool:
    """Whether the pipeline of this process, and of those it starts, is compiled."""
    return not turn.__file__.endswith(".py")


def free_port() -> int:
    """Return a port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Whether something that speaks HTTP listens there."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as probe:
            probe.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            return probe.recv(5) == b"HTTP/"
    except OSError:
        return False


@contextmanager
def process(
    command: Sequence[str], port: int, core: int, path: Sequence[Path] = ()
) -> Iterator[int]:
    """Start a command on one core, wait until it answers, stop it at the end.

    Args:
        command: What is started.
        port: Where it will listen.
        core: Its core.
        path: Where its modules are looked for first, instead of where ours are.

    Yields:
        Its process id.
    """
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})  # inherited, also by what the child starts at once
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))} if path else None,
        )
    finally:
        os.sched_setaffinity(0, ours)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not answers(port):
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{' '.join(command)} did not start")
            time.sleep(0.02)
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a run takes place.

    Attributes:
        stack: Stops what was started.
        programs: Where compiled programs stay.
        core: The core of the proxy that is measured.
        others: The core of everything else.
    """

    stack: ExitStack
    programs: Path
    core: int
    others: int

    def folder(self) -> Path:
        """Return a new folder that is deleted at the end."""
        made = tempfile.TemporaryDirectory(prefix="sottovoce-bench-")
        return Path(self.stack.enter_context(made))

    @property
    def client(self) -> Path:
        """The load client."""
        return native.program("client", self.programs)

    def provider(self) -> Target:
        """Start the provider."""
        port, answer = free_port(), self.folder() / "script"
        answer.write_bytes(script.script())
        command = [str(native.program("provider", self.programs)), str(port), str(answer)]
        pid = self.stack.enter_context(process(command, port, self.others))
        return Target("direct", port, pid)

    def start(self, name: str, provider: Target) -> Target | None:
        """Start the target of this name before the provider; None where it is not installed."""
        port = free_port()
        path: tuple[Path, ...] = ()
        match name:
            case "direct":
                return provider
            case "nginx-default":
                return self._nginx(name, port, provider, _NGINX_PLAIN)
            case "nginx":
                return self._nginx(name, port, provider, _NGINX_TUNED)
            case "baseline":
                url = f"http://127.0.0.1:{provider.port}/v1"
                command = [sys.executable, "-m", "bench.baseline", str(port), url]
            case "sottovoce":
                command = sottovoce(port, provider, self.folder())
            case "sottovoce-interpreted" if is_compiled():
                command, path = sottovoce(port, provider, self.folder()), (_ROOT,)
            case "sottovoce-interpreted":
                return None
            case "sottovoce-httpx":
                command = self._over_httpx(port, provider)
            case _:
                raise SystemExit(f"unknown target {name}")
        running = process(command, port, self.core, path)
        return Target(name, port, self.stack.enter_context(running))

    def _over_httpx(self, port: int, provider: Target) -> list[str]:
        config = self.folder() / "sottovoce.toml"
        url = f"http://127.0.0.1:{provider.port}/v1"
        config.write_text(f'[[upstream]]\nbase_url = "{url}"\ntransport = "httpx"\n')
        command = [sys.executable, "-m", "proxy.cli", "serve", "--port", str(port)]
        return [*command, "--config", str(config), "--state-dir", str(self.folder())]

    def _nginx(
        self, name: str, port: int, provider: Target, setting: tuple[str, str, str]
    ) -> Target | None:
        found = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
        if found is None:
            return None
        folder = self.folder()
        config = folder / "nginx.conf"
        access, http, location = (
            part.format(folder=folder, upstream=provider.port) for part in setting
        )
        config.write_text(
            _NGINX.format(folder=folder, port=port, access=access, http=http, location=location)
        )
        if os.geteuid() == 0:  # its worker is nobody, and has to write into our folder
            folder.chmod(0o755)
        command = [found, "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")]
        return Target(name, port, self.stack.enter_context(process(command, port, self.core)))


def sottovoce(port: int, provider: Target, state: Path) -> list[str]:
    """Return the command that starts this project as its users start it."""
    url = f"http://127.0.0.1:{provider.port}/v1"
    command = [sys.executable, "-m", "proxy.cli", "serve", "--port", str(port)]
    return [*command, "--upstream", url, "--state-dir", str(state)]
