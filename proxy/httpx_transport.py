"""The way to a provider over httpx, behind the same seam as ``proxy.upstream.Transport``.

For whoever trusts a library that many use more than code of ours, or wants to know whether one of
the two is to blame. It costs several times the CPU, and differs where httpx does: the table stands
in docs/performance.md. Imported only where an upstream is configured with ``transport = "httpx"``.
"""

from __future__ import annotations

import asyncio
import os
from functools import cached_property
from typing import TYPE_CHECKING

import httpx

from pipeline.errors import UpstreamError
from proxy.dial import environment_proxy, parse_url, tls_context
from proxy.exchange import request_head
from proxy.httpx_exchange import Body, HttpxExchange, Plan, RawURL
from proxy.pool import Pool
from proxy.upstream import CLOSE_SECONDS, CONNECT_SECONDS, UpstreamResponse, late

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from proxy.upstream import UpstreamRequest


class HttpxTransport:
    """Exchanges with the providers of one upstream, each over a connection of its own.

    Args:
        max_connections: How many exchanges there may be at once; the next one waits.
        head_seconds: How long a response head may take, waiting and connecting included.
        connect_seconds: How long opening a connection may take.
        tls: What ``https`` is checked with; the system's authorities by default.
        environment: Where ``HTTPS_PROXY`` and its like are looked up; the process's by default.
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
        """Its slots alone: no connection idles in it."""
        self._head_seconds = head_seconds
        self._connect_seconds = connect_seconds
        self._given_tls = tls
        self._environment = os.environ.copy() if environment is None else environment
        self._exchanges: set[HttpxExchange] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<HttpxTransport with {self.pool!r}>"

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request and wait for the head of its response; nothing is ever sent twice.

        Raises:
            UpstreamError: 502 for refused, reset, unknown name, TLS, not HTTP; 504 for no
                connection or no head in time; 503 after ``close``.
            Exception: What the request's content raised.
        """
        plan = self._plan(request)
        timer = asyncio.timeout(self._head_seconds)
        missing = "had no connection free"
        try:
            async with timer:
                await self.pool.acquire()
                missing = "sent no answer"
                return await self._perform(plan)
        except TimeoutError as error:
            if not timer.expired():
                raise  # the content's own
            raise late(plan.origin, missing, self._head_seconds) from error

    async def close(self) -> None:
        """End every exchange, and wait a moment until its socket is closed."""
        self._closed = True
        tasks = {exchange.task for exchange in self._exchanges}
        for exchange in tuple(self._exchanges):
            exchange.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)

    async def _perform(self, plan: Plan) -> UpstreamResponse:
        """Perform an exchange; the held slot is free again as soon as it is over."""
        if self._closed:
            self.pool.free()
            raise UpstreamError("the proxy is shutting down", status=503)
        exchange = HttpxExchange(plan, on_end=self._forget)
        self._exchanges.add(exchange)
        try:
            await exchange.head()
        except BaseException:
            exchange.abort()
            await exchange.settle()
            raise
        return UpstreamResponse(exchange, reused=False)

    def _forget(self, exchange: HttpxExchange) -> None:
        self._exchanges.discard(exchange)
        self.pool.free()

    def _plan(self, request: UpstreamRequest) -> Plan:
        origin, target = parse_url(request.url)
        proxy = environment_proxy(origin, self._environment)
        headers, near = request.headers, origin
        if proxy is not None and origin.scheme == "http":
            target = b"http://" + origin.host_header + target
            headers = [*headers, *proxy.headers]
            near = proxy.origin
        # Framing and its checks have one author; httpx adds nothing where a stream is given.
        head, size = request_head(
            request.method, target, origin.host_header, headers, request.content
        )
        fields = [line.partition(b": ")[::2] for line in head[:-4].split(b"\r\n")[1:]]
        url = RawURL(near, target)
        stream = Body(request.content, size)
        built = httpx.Request(request.method, url, headers=fields, stream=stream)
        built.url = url  # it had made a copy, and quoted it
        return Plan(built, request.content, origin, proxy, self._tls, self._connect_seconds)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._given_tls or tls_context()
