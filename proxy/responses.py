"""``POST /v1/responses`` and its twins: one turn, streamed or as JSON."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from proxy import headers as h
from proxy.downstream import TurnResponse, read_request_body
from proxy.faults import report
from proxy.guard import check_loop
from proxy.homes import Errand
from proxy.lanes import RETRY_AFTER, BusyError
from proxy.prepare import prepare, read
from proxy.sessions import identify
from proxy.turns import Exchange, TurnRun
from proxy.upstreams import is_codex_path

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from proxy.downstream import Channel
    from proxy.headers import Headers
    from proxy.services import Services


class ResponsesEndpoint:
    """The ASGI endpoint of a Responses turn.

    Args:
        services: What the process owns.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the request, prepare it, and run its turn."""

        async def run(channel: Channel) -> None:
            await run_turn(self._services, await self._read(scope, channel.receive), channel)

        await TurnResponse(run, on_error=report)(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> Exchange:
        services = self._services
        headers: Headers = scope["headers"]
        raw_path: bytes = scope["raw_path"]
        check_loop(headers, services.via)
        tenant, headers = services.tenants.admit(headers)
        data = await read_request_body(
            receive, headers, limit=services.config.server.max_request_bytes
        )
        request = read(services, data, headers, tenant)
        codex_path = is_codex_path(raw_path)
        codex = codex_path or h.find(headers, b"chatgpt-account-id") is not None
        identity = identify(headers, request.body, tenant, codex_path=codex_path)
        errand = Errand(codex, identity.tenant, identity.session, headers, request.body)
        return Exchange(
            turn_id=f"turn_{secrets.token_hex(12)}",
            started=time.time(),
            headers=headers,
            raw_path=raw_path,
            query=scope["query_string"],
            request=request,
            identity=identity,
            endpoint=services.upstreams.choose(codex=codex),
            errand=errand,
            protocol="codex" if codex else "responses",
        )


async def run_turn(services: Services, exchange: Exchange, channel: Channel) -> None:
    """Run the turn of a request when it is its turn."""
    try:
        async with services.lanes.turn(exchange.identity):
            endpoint = exchange.endpoint
            prepared = await prepare(services, exchange.request, exchange.identity, endpoint)
            await TurnRun(services, exchange, prepared)(channel)
    except BusyError as error:
        await channel.refuse(error, [(b"retry-after", RETRY_AFTER)])
