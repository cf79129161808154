"""What every way to a provider has in common: what it is made with, and where a request goes."""

from __future__ import annotations

import asyncio
import os
from functools import cached_property
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from pipeline.errors import UpstreamError
from proxy.dial import environment_proxy, parse_url, tls_context
from proxy.exchange import request_head
from proxy.pool import Pool

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from proxy.dial import Origin, Proxy
    from proxy.upstream import UpstreamRequest

Held = TypeVar("Held")

CONNECT_SECONDS: Final = 10.0
"""How long name, socket, proxy and TLS may take together."""
CLOSE_SECONDS: Final = 1.0
"""How long a transport's ``close`` waits for its sockets to be gone."""


class Route(NamedTuple):
    """What one request needs to be sent, and until when its head may take, on the loop's clock."""

    origin: Origin
    proxy: Proxy | None
    target: bytes
    """As the one who is connected to gets it: a proxy on the way to ``http`` gets the whole URL."""
    head: bytes
    size: int | None
    due: float

    @property
    def near(self) -> Origin:
        """Who gets the request's head."""
        if self.proxy is None or self.origin.scheme == "https":
            return self.origin
        return self.proxy.origin


class BaseTransport(Generic[Held]):
    """A way to the providers of one upstream, which holds something for every open socket.

    Args:
        max_connections: How many exchanges there may be at once; the next one waits.
        head_seconds: How long a response head may take, waiting and connecting included.
        connect_seconds: How long opening a connection may take.
        tls: What ``https`` is checked with; the system's authorities by default.
        environment: Where ``HTTPS_PROXY`` and its like are looked up; the process's by default.

    Attributes:
        pool: Its slots, and the connections that idle.
    """

    def __init__(
        self,
        *,
        max_connections: int,
        head_seconds: float,
        connect_seconds: float = CONNECT_SECONDS,
        tls: ssl.SSLContext | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.pool = Pool(max_connections)
        self._head_seconds = head_seconds
        self._connect_seconds = connect_seconds
        self._given_tls = tls
        self._environment = os.environ.copy() if environment is None else environment
        self._held: set[Held] = set()
        self._peers: dict[Origin, _Peer] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {self.pool!r}>"

    def _route(self, request: UpstreamRequest) -> Route:
        """Return how a request is sent.

        Raises:
            UpstreamError: Its URL can't be requested, or a header would break out of its line.
        """
        origin, target = parse_url(request.url)
        peer = self._peers.get(origin)
        if peer is None:
            proxy = environment_proxy(origin, self._environment)
            peer = self._peers[origin] = _Peer(proxy, origin.host_header)
        proxy, host = peer
        headers = request.headers
        if proxy is not None and origin.scheme == "http":
            target = b"http://" + host + target
            headers = [*headers, *proxy.headers]
        head, size = request_head(request.method, target, host, headers, request.content)
        due = asyncio.get_running_loop().time() + self._head_seconds
        return Route(origin, proxy, target, head, size, due)

    def _late(self, route: Route, missing: str) -> UpstreamError:
        return late(route.origin, missing, self._head_seconds)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._given_tls or tls_context()


class _Peer(NamedTuple):
    """What every request to an origin has in common: the proxy on the way, and its ``host``."""

    proxy: Proxy | None
    host: bytes


def late(origin: Origin, missing: str, seconds: float) -> UpstreamError:
    """Return the error for what a provider did not do in time."""
    return UpstreamError(
        f"the provider at {origin.authority} {missing} within {seconds:g} s", status=504
    )
