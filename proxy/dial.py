"""How a connection to a provider comes about: URL, proxy, name, socket, tunnel, TLS."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
import socket
import ssl
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

import aiohappyeyeballs
import certifi

from pipeline.errors import UpstreamError
from proxy.connection import Connection
from proxy.exchange import request_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from aiohappyeyeballs import AddrInfoType

EYEBALLS_DELAY: Final = 0.25
"""Seconds until the next address of a name is tried beside the last (RFC 8305)."""
KEEPALIVE_IDLE: Final = 60
"""Seconds of silence until TCP probes the peer: models think for minutes, NATs forget sooner."""
PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}

_URL = re.compile(
    rb"(?P<scheme>[^:/?#]+)://(?P<authority>[^/?#]*)(?P<target>[^#]*)(?:#.*)?", re.DOTALL
)
_UNSAFE_TARGET = re.compile(rb"[\x00-\x20\x7f]")


class Origin(NamedTuple):
    """Who answers: scheme, host (an IPv6 address without brackets) and port."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Host and port, as CONNECT and errors name them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def host_header(self) -> bytes:
        """The value of ``host``: without the port that the scheme implies."""
        authority = self.authority
        if self.port == PORTS[self.scheme]:
            authority = authority.rpartition(":")[0]
        return authority.encode("ascii")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy on the way, from the environment.

    Args:
        origin: Where it is.
        authorization: The value of ``proxy-authorization``, if its URL has credentials.
    """

    origin: Origin
    authorization: bytes | None

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What every request to it carries."""
        if self.authorization is None:
            return []
        return [(b"proxy-authorization", self.authorization)]


@lru_cache(maxsize=256)
def parse_url(url: bytes | str) -> tuple[Origin, bytes]:
    """Split an absolute URL into its origin and its raw request target.

    The target is everything after the authority, byte for byte: nothing is decoded, quoted,
    reordered or normalized. Only a fragment is cut off, and an empty path becomes ``/``.

    Args:
        url: ``http`` or ``https``.

    Raises:
        UpstreamError: It is no such URL, has credentials, or a byte that would break the request.
    """
    match = _URL.fullmatch(url.encode() if isinstance(url, str) else url)
    if match is None or _UNSAFE_TARGET.search(match["target"]):
        raise UpstreamError("the provider's URL is not one that can be requested")
    target = match["target"]
    origin = _origin(match["scheme"].decode("latin-1").lower(), match["authority"])
    return origin, target if target.startswith(b"/") else b"/" + target


@lru_cache(maxsize=64)
def _origin(scheme: str, authority: bytes) -> Origin:
    if scheme not in PORTS:
        raise UpstreamError("the provider's URL starts neither with http:// nor with https://")
    if b"@" in authority:
        raise UpstreamError("the provider's URL has credentials in it: use api_key instead")
    try:
        parts = urlsplit("//" + authority.decode())
        host, port = parts.hostname, parts.port
        host = host and (host if ":" in host else host.encode("idna").decode("ascii"))
    except ValueError as error:
        raise UpstreamError("the provider's URL has no valid host and port") from error
    if not host:
        raise UpstreamError("the provider's URL has no host")
    return Origin(scheme, host, port or PORTS[scheme])


def environment_proxy(origin: Origin, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that the environment names for an origin.

    ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` count, and before each its twin
    in lower case. Loopback addresses are never proxied: a local provider is not behind the
    company's proxy.

    Raises:
        UpstreamError: The variable names no proxy that can be used (SOCKS, for one).
    """

    def variable(name: str) -> str:
        return environment.get(name) or environment.get(name.upper()) or ""

    url = variable(f"{origin.scheme}_proxy") or variable("all_proxy")
    if not url or _is_loopback(origin.host) or _is_exempt(origin, variable("no_proxy")):
        return None
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "http", url
    credentials, _, authority = rest.rpartition("@")
    try:
        proxy = _origin(scheme.lower(), authority.partition("/")[0].encode())
    except UpstreamError as error:
        raise UpstreamError(
            f"the proxy that the environment names for {origin.scheme} can't be used:"
            " it must be http://host:port or https://host:port"
        ) from error
    encoded = base64.b64encode(unquote_to_bytes(credentials))
    return Proxy(proxy, b"Basic " + encoded if credentials else None)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return address.is_loopback if address else (host == "localhost" or host.endswith(".localhost"))


def _is_exempt(origin: Origin, no_proxy: str) -> bool:
    """Match a list of names (and what is below them), ``name:port``, addresses and networks."""
    address = _address(origin.host)
    for entry in (entry.strip().lower().lstrip(".") for entry in no_proxy.split(",")):
        if entry == "*" or entry in {origin.host, origin.authority}:
            return True
        if address is None:
            if entry and f".{origin.host}".endswith(f".{entry}"):
                return True
        elif "/" in entry:
            with suppress(ValueError):
                if address in ipaddress.ip_network(entry, strict=False):
                    return True
    return False


def tls_context(
    *,
    ca_file: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
) -> ssl.SSLContext:
    """Return what TLS to a provider is checked with; made once, it reads files.

    Args:
        ca_file: PEM of the only authorities to trust; the system's without it (where the
            system names none, the ones that come with ``certifi``).
        certificate: PEM of the client certificate that an upstream asks for.
        key: PEM of its key, where that is a file of its own.

    Raises:
        OSError: A file can't be read, or is not what it should be (``ssl.SSLError``).
    """
    paths = ssl.get_default_verify_paths()
    if ca_file is None and not (paths.cafile or paths.capath):
        context = ssl.create_default_context(cafile=certifi.where())
    else:
        context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


async def dial(
    origin: Origin,
    proxy: Proxy | None,
    *,
    tls: Callable[[], ssl.SSLContext],
    on_lost: Callable[[Connection], None],
) -> Connection:
    """Open a connection over which requests to an origin can be sent.

    Args:
        origin: Who is to answer.
        proxy: What stands in between; it gets a CONNECT for ``https``, else whole URLs.
        tls: Returns the TLS context, where one is needed.
        on_lost: For the connection.

    Raises:
        UpstreamError: It could not be opened; the message names the phase.
    """
    near = proxy.origin if proxy else origin
    connection = await _open(near, "proxy" if proxy else "provider", on_lost)
    try:
        if near.scheme == "https":
            await _start_tls(connection, near, tls())
        if proxy is not None and origin.scheme == "https":
            await _tunnel(connection, origin, proxy)
            connection.peer = f"the provider at {origin.authority}"
            await _start_tls(connection, origin, tls())
    except BaseException:
        connection.abort()
        raise
    connection.peer = f"the provider at {origin.authority}"
    return connection


async def _open(origin: Origin, who: str, on_lost: Callable[[Connection], None]) -> Connection:
    peer = f"the {who} at {origin.authority}"
    with named_errors(peer):
        sock = await aiohappyeyeballs.start_connection(
            await _addresses(origin), happy_eyeballs_delay=EYEBALLS_DELAY
        )
        try:
            _keep_alive(sock)
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(peer, on_lost=on_lost), sock=sock
            )
        except BaseException:
            sock.close()  # uvloop leaves it open where it did not get to take it over
            raise
    return connection


async def _addresses(origin: Origin) -> Sequence[AddrInfoType]:
    """Resolve the host; a literal address needs no resolver."""
    if _address(origin.host) is not None and "%" not in origin.host:
        family = socket.AF_INET6 if ":" in origin.host else socket.AF_INET
        place: tuple[Any, ...] = (origin.host, origin.port)
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place)]
    return await asyncio.get_running_loop().getaddrinfo(
        origin.host, origin.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    )


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    option = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
    if option is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, KEEPALIVE_IDLE)


async def _start_tls(connection: Connection, origin: Origin, context: ssl.SSLContext) -> None:
    if not connection.is_open:  # uvloop would wait for ever for a closed one
        raise UpstreamError(f"no TLS with {connection.peer}: it spoke first, or is gone")
    with named_errors(connection.peer):
        transport = await asyncio.get_running_loop().start_tls(
            connection.transport, connection, context, server_hostname=origin.host
        )
        if transport is None:
            raise ConnectionResetError
        connection.transport = transport


async def _tunnel(connection: Connection, origin: Origin, proxy: Proxy) -> None:
    authority = origin.authority.encode()
    head, size = request_head("CONNECT", authority, authority, proxy.headers, b"")
    exchange = connection.begin(method="CONNECT", on_end=lambda _: None)
    exchange.send(head, b"", size=size)
    try:
        await exchange.head()
    except BaseException:
        exchange.abort()
        raise
    if not 200 <= exchange.status < 300:
        raise UpstreamError(
            f"{connection.peer} refused a tunnel to {origin.authority} ({exchange.status})"
        )


@contextmanager
def named_errors(peer: str) -> Iterator[None]:
    """Turn what the operating system and TLS say into an error that names the phase."""
    try:
        yield
    except socket.gaierror as error:
        raise UpstreamError(f"the name of {peer} could not be resolved") from error
    except ssl.SSLCertVerificationError as error:
        raise UpstreamError(f"no TLS with {peer}: {error.verify_message}") from error
    except ssl.SSLError as error:
        raise UpstreamError(f"no TLS with {peer}: {error.reason or 'handshake failed'}") from error
    except ConnectionRefusedError as error:
        raise UpstreamError(f"{peer} refused the connection") from error
    except (ConnectionError, EOFError) as error:
        raise UpstreamError(f"{peer} reset the connection while it was opened") from error
    except (OSError, RuntimeError) as error:  # uvloop reports some failures as RuntimeError
        reason = getattr(error, "strerror", None) or "no route"
        raise UpstreamError(f"no connection to {peer}: {reason}") from error
