"""``POST /v1/chat/completions``: a turn of a chat client, over whatever its upstream speaks.

The request is translated into a Responses request and run as any other turn; only the client's
side is written as a chat completion. Where there is nothing to do for memory, and the upstream
speaks chat completions as well, the request passes as the bytes that came.
"""

from __future__ import annotations

import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from pipeline.join import OneMessageJoin
from pipeline.options import ClientForm
from proxy import headers as h
from proxy.chat.messages import UntranslatableError
from proxy.chat.render import ChatAnswer, ChatStream
from proxy.chat.request import read_chat_request, translate
from proxy.downstream import TurnResponse, read_request_body
from proxy.faults import report
from proxy.guard import check_loop
from proxy.homes import Errand
from proxy.lanes import RETRY_AFTER, BusyError
from proxy.prepare import prepare
from proxy.relay import relay
from proxy.sessions import identify
from proxy.turns import Exchange, TurnRun
from proxy.upstream import UpstreamRequest

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pipeline.request import Request
    from proxy.chat.request import Translation
    from proxy.downstream import Channel
    from proxy.headers import Headers
    from proxy.services import Services
    from proxy.upstreams import Endpoint

_RESPONSES: Final = b"/v1/responses"
"""The path that a translated request goes to."""


class ChatEndpoint:
    """The ASGI endpoint of a chat completion.

    Args:
        services: What the process owns.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the request, and run its turn or pass it on."""

        async def run(channel: Channel) -> None:
            await self._run(scope, channel)

        await TurnResponse(run, on_error=report)(scope, receive, send)

    async def _run(self, scope: Scope, channel: Channel) -> None:
        services = self._services
        headers: Headers = scope["headers"]
        check_loop(headers, services.via)
        tenant, headers = services.tenants.admit(headers)
        data = await read_request_body(
            channel.receive, headers, limit=services.config.server.max_request_bytes
        )
        chat = read_chat_request(data)
        codex = h.find(headers, b"chatgpt-account-id") is not None
        endpoint = services.upstreams.choose(codex=codex)
        passed = partial(self._pass, scope, headers, endpoint, chat, channel)
        try:
            translation = translate(chat, codex=endpoint.config.kind == "codex")
        except UntranslatableError:
            if not _speaks_chat(endpoint):
                raise
            await passed()
            return
        exchange = self._exchange(scope, headers, endpoint, translation, tenant)
        try:
            async with services.lanes.turn(exchange.identity):
                prepared = await prepare(services, exchange.request, exchange.identity, endpoint)
                untouched = prepared.request.body.get("input") == exchange.request.body["input"]
                if not prepared.tools and untouched and _speaks_chat(endpoint):
                    await passed()
                    return
                await TurnRun(services, exchange, prepared)(channel)
        except BusyError as error:
            await channel.refuse(error, [(b"retry-after", RETRY_AFTER)])

    def _exchange(
        self,
        scope: Scope,
        headers: Headers,
        endpoint: Endpoint,
        translation: Translation,
        tenant: str,
    ) -> Exchange:
        request = translation.request
        identity = identify(headers, request.body, tenant, codex_path=False)
        codex = h.find(headers, b"chatgpt-account-id") is not None
        errand = Errand(codex, identity.tenant, identity.session, headers, request.body)
        return Exchange(
            turn_id=f"turn_{secrets.token_hex(12)}",
            started=time.time(),
            headers=headers,
            raw_path=_RESPONSES,
            query=scope["query_string"],
            request=request,
            identity=identity,
            endpoint=endpoint,
            errand=errand,
            protocol="chat",
            form=_form(translation),
        )

    async def _pass(
        self, scope: Scope, headers: Headers, endpoint: Endpoint, chat: Request, channel: Channel
    ) -> None:
        """Pass a request to an upstream that speaks chat itself, and its answer back."""
        passed = h.to_upstream(headers, body_decoded=True, via=self._services.via)
        url = endpoint.url(scope["raw_path"], scope["query_string"])
        request = UpstreamRequest("POST", url, endpoint.authorize(passed), chat.text)
        await relay(endpoint, request, channel)


def _form(translation: Translation) -> ClientForm:
    if translation.request.body["stream"]:
        stream = partial(ChatStream, include_usage=translation.include_usage)
        return ClientForm(stream, OneMessageJoin)
    return ClientForm(ChatAnswer, OneMessageJoin)


def _speaks_chat(endpoint: Endpoint) -> bool:
    """Say whether what an upstream serves includes chat completions of its own.

    Codex backends have none; the public API and its like have both.
    """
    return endpoint.config.kind == "responses"
