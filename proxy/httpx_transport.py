"""The way to a provider over httpx, behind the same seam as ``proxy.upstream.Transport``.

For whoever trusts a library that many use more than code of ours, or wants to know whether one of
the two is to blame. It costs several times the CPU, and differs where httpx does: the table stands
in docs/performance.md. Imported only where an upstream is configured with ``transport = "httpx"``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx

from pipeline.errors import UpstreamError
from proxy.httpx_exchange import Body, HttpxExchange, Plan, RawURL
from proxy.transport import CLOSE_SECONDS, BaseTransport
from proxy.upstream import UpstreamResponse

if TYPE_CHECKING:
    from proxy.transport import Route
    from proxy.upstream import UpstreamRequest


class HttpxTransport(BaseTransport[HttpxExchange]):
    """Exchanges with the providers of one upstream, each over a connection of its own.

    No connection idles in its pool: it counts slots alone.
    """

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request and wait for the head of its response; nothing is ever sent twice.

        Raises:
            UpstreamError: 502 for refused, reset, unknown name, TLS, not HTTP; 504 for no
                connection or no head in time; 503 after ``close``.
            Exception: What the request's content raised.
        """
        route = self._route(request)
        plan = self._plan(request, route)
        timer = asyncio.timeout(self._head_seconds)  # the authorities are read by now
        missing = "had no connection free"
        try:
            async with timer:
                await self.pool.acquire()
                missing = "sent no answer"
                return await self._perform(plan)
        except TimeoutError as error:
            if not timer.expired():
                raise  # the content's own
            raise self._late(route, missing) from error

    async def close(self) -> None:
        """End every exchange, and wait a moment until its socket is closed."""
        self._closed = True
        tasks = {exchange.task for exchange in self._held}
        for exchange in tuple(self._held):
            exchange.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)

    async def _perform(self, plan: Plan) -> UpstreamResponse:
        """Perform an exchange; the held slot is free again as soon as it is over."""
        if self._closed:
            self.pool.free()
            raise UpstreamError("the proxy is shutting down", status=503)
        exchange = HttpxExchange(plan, on_end=self._forget)
        self._held.add(exchange)
        try:
            await exchange.head()
        except BaseException:
            exchange.abort()
            await exchange.settle()
            raise
        return UpstreamResponse(exchange, reused=False)

    def _forget(self, exchange: HttpxExchange) -> None:
        self._held.discard(exchange)
        self.pool.free()

    def _plan(self, request: UpstreamRequest, route: Route) -> Plan:
        # Framing and its checks have one author; httpx adds nothing where a stream is given.
        fields = [line.partition(b": ")[::2] for line in route.head[:-4].split(b"\r\n")[1:]]
        url = RawURL(route.near, route.target)
        stream = Body(request.content, route.size)
        built = httpx.Request(request.method, url, headers=fields, stream=stream)
        built.url = url  # it had made a copy, and quoted it
        return Plan(
            built, request.content, route.origin, route.proxy, self._tls, self._connect_seconds
        )
