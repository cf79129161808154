"""``POST /v1/chat/completions``: a turn of a chat client, over whatever its upstream speaks.

The request is translated into a Responses request and run as any other turn; only the client's
side is written as a chat completion. Where there is nothing to do for memory, and the upstream
speaks chat completions as well, the request passes as the bytes that came.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pipeline.join import OneMessageJoin
from pipeline.options import ClientForm
from proxy import headers as h
from proxy.chat.messages import UntranslatableError
from proxy.chat.native import CHAT_KIND, NativeRequest
from proxy.chat.render import ChatAnswer, ChatStream
from proxy.chat.request import Manner, read_chat_request, translate
from proxy.downstream import TurnResponse, read_request_body
from proxy.faults import report
from proxy.guard import check_loop
from proxy.homes import Errand
from proxy.lanes import RETRY_AFTER, BusyError
from proxy.passing import Passing, pass_on
from proxy.prepare import prepare
from proxy.sessions import identify
from proxy.turns import Exchange, TurnRun

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from proxy.chat.request import Translation
    from proxy.downstream import Channel
    from proxy.headers import Headers
    from proxy.services import Services
    from proxy.sessions import Identity
    from proxy.upstreams import Endpoint

_RESPONSES: Final = b"/v1/responses"
"""The path that a translated request goes to."""
_UNTRANSLATED: Final = "untranslatable"
"""Why the tool is not declared in a request that Responses can't express."""


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
        endpoint = services.upstreams.choose(codex=_is_codex(headers))
        passing = Passing(
            turn_id=f"turn_{secrets.token_hex(12)}",
            headers=headers,
            raw_path=scope["raw_path"],
            query=scope["query_string"],
            chat=chat,
            understood=None,
            identity=identify(headers, chat.body, tenant, codex_path=False),
            endpoint=endpoint,
            undeclared=_UNTRANSLATED,
        )
        try:
            translation = translate(chat, self._manner(endpoint, headers))
        except UntranslatableError:
            if not _speaks_chat(endpoint):
                raise
            await pass_on(services, passing, channel)
        else:
            await self._answer(passing, translation, tenant, channel)

    def _manner(self, endpoint: Endpoint, headers: Headers) -> Manner:
        """Say for whom a request is translated."""
        group = self._services.upstreams.group(codex=_is_codex(headers))
        if all(one.config.kind == CHAT_KIND for one in group):
            return Manner.CHAT
        return Manner.CODEX if endpoint.config.kind == "codex" else Manner.ANY

    async def _answer(
        self, passing: Passing, translation: Translation, tenant: str, channel: Channel
    ) -> None:
        """Run the turn, unless nothing of it is to be changed."""
        services, endpoint, asked = self._services, passing.endpoint, translation.request
        identity = identify(passing.headers, asked.body, tenant, codex_path=False)
        try:
            async with services.lanes.turn(identity):
                prepared = await prepare(services, asked, identity, endpoint)
                untouched = prepared.request.body.get("input") == asked.body["input"]
                if prepared.tools or not untouched or not _speaks_chat(endpoint):
                    exchange = _exchange(passing, translation, identity)
                    await TurnRun(services, exchange, prepared)(channel)
                    return
                passing = replace(
                    passing,
                    understood=asked.body,
                    identity=identity,
                    undeclared=prepared.undeclared,
                )
                await pass_on(services, passing, channel)
        except BusyError as error:
            await channel.refuse(error, [(b"retry-after", RETRY_AFTER)])


def _exchange(passing: Passing, translation: Translation, identity: Identity) -> Exchange:
    headers, request = passing.headers, translation.request
    errand = Errand(_is_codex(headers), identity.tenant, identity.session, headers, request.body)
    return Exchange(
        turn_id=passing.turn_id,
        started=time.time(),
        headers=headers,
        raw_path=_RESPONSES,
        query=passing.query,
        request=request,
        identity=identity,
        endpoint=passing.endpoint,
        errand=errand,
        protocol="chat",
        form=_form(translation),
        native=NativeRequest(passing.chat, translation),
    )


def _is_codex(headers: Headers) -> bool:
    return h.find(headers, b"chatgpt-account-id") is not None


def _form(translation: Translation) -> ClientForm:
    if translation.request.body["stream"]:
        stream = partial(ChatStream, include_usage=translation.include_usage)
        return ClientForm(stream, OneMessageJoin)
    return ClientForm(ChatAnswer, OneMessageJoin)


def _speaks_chat(endpoint: Endpoint) -> bool:
    """Say whether what an upstream serves includes chat completions of its own.

    Codex backends have none; the public API and its like have both.
    """
    return endpoint.config.kind in ("responses", CHAT_KIND)
