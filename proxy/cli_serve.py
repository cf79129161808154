"""``sottovoce serve``: from a command line to a listening proxy."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Final

import click

from proxy.cli_files import unusable
from proxy.cli_options import config_option, failure, load, state_dir_option
from proxy.cli_output import CliError

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.config import Config

KINDS: Final = ("responses", "codex", "openai_compat", "anthropic", "ollama")
BACKLOG: Final = 2048
_PORTS_TRIED: Final = 100
_FILES: Final = 65_536


@click.command("serve")
@click.option("--host", metavar="ADDRESS", help="Address to listen on (127.0.0.1).")
@click.option("--port", metavar="PORT", type=click.IntRange(0, 65535), help="Port (7688).")
@click.option("--upstream", metavar="URL", help="Send everything to this provider.")
@click.option("--kind", type=click.Choice(KINDS), help="Its dialect, if the URL does not tell.")
@click.option("--reuse-port", is_flag=True, help="Share the port with processes that do the same.")
@config_option
@state_dir_option
def command(
    *,
    config_file: Path | None,
    state_dir: Path | None,
    reuse_port: bool,
    **given: str | int | None,
) -> None:
    """Run the proxy.

    Without --upstream and configuration, requests of Codex go to the ChatGPT backend and all
    others to the public API, with the client's own credential. SIGTERM or Ctrl-C drains: open
    turns are finished, new connections refused.
    """
    if given["kind"] is not None and given["upstream"] is None:
        raise click.UsageError("--kind says what --upstream is, and needs it")
    config = load(
        config_file,
        {
            ("server", "host"): given["host"],
            ("server", "port"): given["port"],
            ("server", "state_dir"): None if state_dir is None else str(state_dir),
            ("upstream",): given["upstream"],
            ("upstream", 0, "kind"): given["kind"],
        },
    )
    refuse_exposure(config)
    make_state_dir(config.server.state_dir)
    with listen(config.server.host, config.server.port, shared=reuse_port) as listener:
        config = with_port(config, listener.getsockname()[1])
        refuse_ourselves(config)
        raise_file_limit()
        from proxy.cli_server import serve

        serve(config, listener)


def refuse_exposure(config: Config) -> None:
    """Refuse to listen beyond loopback unless a flag and access tokens ask for it.

    Raises:
        CliError: They don't.
    """
    from proxy.config_rules import exposure

    if problems := exposure(config):
        raise failure(problems)


def with_port(config: Config, port: int) -> Config:
    """Return the configuration with the port that was really bound, where it left that open."""
    return config.model_copy(update={"server": config.server.model_copy(update={"port": port})})


def refuse_ourselves(config: Config) -> None:
    """Refuse an upstream that is the address we have just bound.

    Raises:
        CliError: It is.
    """
    from proxy.config_address import resolve_host
    from proxy.config_rules import own_addresses

    if problems := own_addresses(config, resolve=resolve_host):
        raise failure(problems)


def make_state_dir(folder: Path) -> None:
    """Make the state directory, for its owner alone.

    Raises:
        CliError: It can't be made or written to.
    """
    hint = "--state-dir names another place"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(folder, "made", error, hint=hint) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CliError(f"{folder} can't be written to", hint=hint)


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a socket that listens already, so that nobody else gets the port meanwhile.

    Args:
        host: A name or an address.
        port: 0 lets the system choose one.
        shared: Other processes of the same user may listen there as well if they also ask for
            it; the system deals new connections out to all of them.

    Raises:
        CliError: The address can't be had; the hint names the next free port.
    """
    if shared and not hasattr(socket, "SO_REUSEPORT"):
        raise CliError("this system can't share a port between processes")
    family, address = _resolve(host, port)
    listener = _bound(family, address, shared=shared)
    if isinstance(listener, OSError):
        raise _refused(listener, host, port, family, address)
    return listener


def raise_file_limit() -> None:
    """Allow as many open sockets as the system lets us: a streamed turn takes two."""
    try:
        import resource  # not on every platform
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _resolve(host: str, port: int) -> tuple[int, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except (socket.gaierror, UnicodeError):
        raise CliError(f"the host {host} has no address", hint="--host 127.0.0.1") from None
    # `localhost` may be both: clients try the older family, or both.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, (str(address[0]), port)


def _bound(
    family: int, address: tuple[str, int], *, shared: bool = False
) -> socket.socket | OSError:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        return error
    return listener


def _refused(
    error: OSError, host: str, port: int, family: int, address: tuple[str, int]
) -> CliError:
    match error.errno:
        case errno.EADDRINUSE:
            free = _next_free(family, address)
            hint = None if free is None else f"the next free one is {free}: --port {free}"
            return CliError(f"port {port} is taken", hint=hint)
        case errno.EACCES | errno.EPERM:
            return CliError(f"port {port} takes more rights", hint="--port names another one")
        case errno.EADDRNOTAVAIL:
            hint = "--host 127.0.0.1 is this machine alone, --host 0.0.0.0 all of its addresses"
            return CliError(f"no interface of this machine has the address {host}", hint=hint)
        case _:
            message = f"{host} port {port} can't be listened on: {error.strerror}"
            return CliError(message, hint="--host and --port name another place")


def _next_free(family: int, address: tuple[str, int]) -> int | None:
    host, port = address
    for candidate in range(port + 1, min(port + _PORTS_TRIED, 65_535) + 1):
        found = _bound(family, (host, candidate))
        if not isinstance(found, OSError):
            found.close()
            return candidate
    return None
