"""``POST /v1/chat/completions``: a turn of a chat client, over whatever its upstream speaks.

The request is translated into a Responses request and run as any other turn; only the client's
side is a chat completion. Upstreams that speak chat completions get the client's own request, and
what they answer goes back as it came, but for what a turn has to add or to hide.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pipeline.join import OneMessageJoin
from pipeline.options import ClientForm
from proxy import headers as h
from proxy.chat.completion import Fallback
from proxy.chat.messages import UntranslatableError
from proxy.chat.native import NativeRequest
from proxy.chat.reading import CHAT_KIND
from proxy.chat.request import Manner, read_chat_request, translate, untranslated
from proxy.chat.splicing import SplicedChatAnswer, SplicedChatStream
from proxy.downstream import TurnResponse, read_request_body
from proxy.faults import report
from proxy.guard import check_loop
from proxy.homes import Errand
from proxy.lanes import RETRY_AFTER, BusyError
from proxy.prepare import prepare
from proxy.sessions import identify
from proxy.turns import Exchange, TurnRun

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pipeline.request import Request
    from proxy.chat.request import Translation
    from proxy.downstream import Channel
    from proxy.headers import Headers
    from proxy.services import Services
    from proxy.sessions import Identity

_RESPONSES: Final = b"/v1/responses"
"""The path that a translated request goes to."""
_SERVE_CHAT: Final = frozenset({"responses", CHAT_KIND})
"""The kinds of upstreams that serve chat completions: Codex backends have none."""
_UNTRANSLATED: Final = "untranslatable"
"""Why the tool is not declared in a request that Responses can't express."""
_STORED: Final = "stored"
"""Why it is not declared in a request whose completion a chat upstream keeps for its client."""


class ChatEndpoint:
    """The ASGI endpoint of a chat completion.

    Args:
        services: What the process owns.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the request, and run its turn."""

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
        translation = self._understand(chat, codex=_is_codex(headers))
        identity = identify(headers, translation.request.body, tenant, codex_path=False)
        undeclared = self._undeclared(chat, translation, codex=_is_codex(headers))
        if undeclared is not None:
            identity = replace(identity, recall_off=True)
        request = _Asked(
            f"turn_{secrets.token_hex(12)}",
            headers,
            scope["raw_path"],
            scope["query_string"],
            chat,
            translation,
            identity,
            undeclared,
        )
        try:
            async with services.lanes.turn(identity):
                await self._answer(request, channel)
        except BusyError as error:
            await channel.refuse(error, [(b"retry-after", RETRY_AFTER)])

    def _understand(self, chat: Request, *, codex: bool) -> Translation:
        """Translate a request, unless it can only pass.

        Raises:
            UntranslatableError: There is no upstream that it can pass to.
        """
        kinds = self._kinds(codex=codex)
        manner = Manner.ANY
        if kinds == {CHAT_KIND}:
            manner = Manner.CHAT
        elif kinds == {"codex"}:
            manner = Manner.CODEX
        try:
            return translate(chat, manner)
        except UntranslatableError as error:
            if kinds.isdisjoint(_SERVE_CHAT):
                raise error.at(kinds) from None
            return untranslated(chat, error)

    def _undeclared(self, chat: Request, translation: Translation, *, codex: bool) -> str | None:
        """Say why nothing is declared in a request, whatever else it says."""
        if translation.refusal is not None:
            return _UNTRANSLATED
        # Its client can read there what was asked and said, hop by hop: nothing may be hidden.
        if chat.body.get("store") is True and CHAT_KIND in self._kinds(codex=codex):
            return _STORED
        return None

    def _kinds(self, *, codex: bool) -> set[str]:
        return {one.config.kind for one in self._services.upstreams.group(codex=codex)}

    async def _answer(self, asked: _Asked, channel: Channel) -> None:
        services, identity, request = self._services, asked.identity, asked.translation.request
        endpoint = services.upstreams.choose(codex=_is_codex(asked.headers))
        stored = asked.undeclared == _STORED
        prepared = await prepare(services, request, identity, endpoint, restores=not stored)
        if asked.undeclared is not None:
            prepared = replace(prepared, undeclared=asked.undeclared)
        untouched = prepared.request.body.get("input") == request.body["input"]
        native = NativeRequest(
            asked.chat,
            asked.translation,
            raw_path=asked.raw_path,
            passes=untouched and not prepared.tools,
        )
        started = time.time()
        exchange = Exchange(
            turn_id=asked.turn_id,
            started=started,
            headers=asked.headers,
            raw_path=_RESPONSES,
            query=asked.query,
            request=request,
            identity=identity,
            endpoint=endpoint,
            errand=Errand(
                _is_codex(asked.headers),
                identity.tenant,
                identity.session,
                asked.headers,
                request.body,
            ),
            protocol="chat",
            form=self._form(asked, frozenset(tool.name for tool in prepared.tools), int(started)),
            native=native,
        )
        await TurnRun(services, exchange, prepared)(channel)

    def _form(self, asked: _Asked, names: frozenset[str], started: int) -> ClientForm:
        """Say how the client is answered."""
        fallback = Fallback(str(asked.translation.request.body.get("model") or ""), started)
        report = self._services.config.recall.report_usage
        sums = report == "sum" or (report == "auto" and not asked.identity.codex)
        if not asked.translation.request.body["stream"]:
            answer = partial(SplicedChatAnswer, fallback=fallback, names=names, sums=sums)
            return ClientForm(answer, OneMessageJoin, passes=True)
        stream = partial(
            SplicedChatStream,
            include_usage=asked.translation.include_usage,
            fallback=fallback,
            names=names,
            sums=sums,
            held_bytes=self._services.limits.deferred_bytes,
        )
        return ClientForm(stream, OneMessageJoin, passes=True)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One chat request.

    Attributes:
        turn_id: What the client is told in ``x-sottovoce-turn``.
        headers: The client's, without what was presented to us.
        raw_path: The path as it came.
        query: The query as it came.
        chat: The request as it came.
        translation: The same, understood.
        identity: Whose it is.
        undeclared: Why nothing is declared in it; None where it may be.
    """

    turn_id: str
    headers: Headers
    raw_path: bytes
    query: bytes
    chat: Request
    translation: Translation
    identity: Identity
    undeclared: str | None


def _is_codex(headers: Headers) -> bool:
    return h.find(headers, b"chatgpt-account-id") is not None
