"""Everything that is not a turn: passed through untouched, streamed both ways, never parsed."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote_to_bytes

import orjson

from pipeline.errors import RequestError
from proxy import headers as h
from proxy.answer import Answer
from proxy.compacted import compaction_of
from proxy.disclosure import Disclosure
from proxy.downstream import (
    TurnResponse,
    read_request_body,
    stream_request_body,
)
from proxy.faults import report
from proxy.guard import check_loop
from proxy.homes import Errand, response_key
from proxy.prepare import read, restore_kept
from proxy.responses import run_turn
from proxy.restored_relay import RestoredRequest, relay_restored
from proxy.services import RECALL
from proxy.sessions import identify
from proxy.stored import LoneResponse, StoredResponse
from proxy.turns import Exchange
from proxy.upstream import UpstreamRequest
from proxy.upstreams import is_codex_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from proxy.downstream import Channel
    from proxy.headers import Headers
    from proxy.services import Services
    from proxy.upstreams import Endpoint

    Asked = tuple[Endpoint, UpstreamRequest] | RestoredRequest | Exchange

Keys: TypeAlias = list[tuple[str, ...]]

_COMPACT: Final = b"/responses/compact"
_RESTORED: Final = (_COMPACT, b"/responses/input_tokens")
_STORED: Final = re.compile(rb"/responses/([^/?]+)(/.*)?\Z")
_OF_RESPONSES: Final = re.compile(rb"/responses(?:/|\Z)")
_MODELS: Final = re.compile(rb"/models\Z")
_MODELS_BYTES: Final = 4 * 1024 * 1024


class RelayEndpoint:
    """The ASGI endpoint of every path that is passed through.

    Args:
        services: What the process owns.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back."""

        async def run(channel: Channel) -> None:
            method, query = scope["method"], scope["query_string"]
            match await self._stored(scope):
                case StoredResponse() as stored:
                    await stored.answer(method, query, channel)
                    return
                case LoneResponse() as lone:
                    await lone.answer(method, scope["raw_path"], query, channel)
                    return
                case None:
                    pass
            asked = await self._read(scope, channel.receive)
            if isinstance(asked, Exchange):
                await run_turn(self._services, asked, channel)
                return
            if isinstance(asked, RestoredRequest):
                await relay_restored(self._services, asked, channel)
                return
            relay = _relay_models if _wants_codex_models(scope) else _relay
            await relay(self._services, *asked, channel)

        await TurnResponse(run, on_error=report)(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> Asked:
        """Return where the request goes, and as what; the turn where it is ours to answer."""
        services = self._services
        headers: Headers = scope["headers"]
        raw_path: bytes = scope["raw_path"]
        check_loop(headers, services.via)
        tenant, headers = services.tenants.admit(headers)
        codex = is_codex_path(raw_path) or h.find(headers, b"chatgpt-account-id") is not None
        if scope["method"] == "POST" and raw_path.endswith(_RESTORED):
            return await self._read_restored(scope, headers, receive, tenant, codex=codex)
        endpoint = services.router.home(_response_keys(tenant, raw_path), codex=codex)
        _speaks_responses(endpoint, raw_path)
        content = stream_request_body(receive)
        return endpoint, self._request(scope, headers, endpoint, content, decoded=False)

    async def _read_restored(
        self, scope: Scope, headers: Headers, receive: Receive, tenant: str, *, codex: bool
    ) -> Asked:
        """Read a request about a history: what was kept from its client belongs to that.

        Where the body is none that we understand it goes on as the bytes that came.
        """
        services = self._services
        raw_path: bytes = scope["raw_path"]
        data = await read_request_body(
            receive, headers, limit=services.config.server.max_request_bytes
        )
        try:
            request = read(services, data, headers, tenant)
        except RequestError:  # the provider's to judge
            endpoint = services.router.home([], codex=codex)
            _speaks_responses(endpoint, raw_path)
            return endpoint, self._request(scope, headers, endpoint, data, decoded=True)
        identity = identify(headers, request.body, tenant, codex_path=is_codex_path(raw_path))
        errand = Errand(codex, tenant, identity.session, headers, request.body)
        endpoint = services.router.home(errand.keys, codex=codex)
        if endpoint.provider.translates and raw_path.endswith(_COMPACT):
            return compaction_of(request, identity, headers, endpoint, codex=codex)
        _speaks_responses(endpoint, raw_path)
        sent, restored = await restore_kept(services, request, tenant)
        passed = self._request(scope, headers, endpoint, sent.text, decoded=True)
        if restored:
            return RestoredRequest(endpoint, passed, sent, restored)
        return endpoint, passed

    async def _stored(self, scope: Scope) -> StoredResponse | LoneResponse | None:
        """Return the response that a path names, where something of it is not for its client."""
        services = self._services
        path = _plain(scope["raw_path"])
        match = _STORED.search(path)
        if match is None or path.endswith(_RESTORED):
            return None
        tenant, headers = services.tenants.admit(scope["headers"])
        public_id = match[1].decode("latin-1")
        behind = await services.joins.find_response_id(tenant, public_id)
        method, rest = scope["method"], match[2] or b""
        if behind is None and not LoneResponse.answers(method, rest):
            return None
        check_loop(headers, services.via)
        endpoint = services.router.home(
            [response_key(tenant, public_id)], codex=is_codex_path(scope["raw_path"])
        )
        passed = h.to_upstream(headers, body_decoded=True, via=services.via)
        tools = (RECALL, *services.plugins.tools)
        disclosure = Disclosure(services.joins, tenant, tools)
        if behind is None:
            _speaks_responses(endpoint, scope["raw_path"])
            return LoneResponse(
                disclosure,
                rest,
                endpoint=endpoint,
                headers=endpoint.authorize(passed),
                limits=services.limits,
                cleanse=services.secrets.cleanse,
            )
        return StoredResponse(
            public_id,
            behind,
            rest,
            endpoint=endpoint,
            headers=endpoint.authorize(passed),
            prefix=path[: match.start(1)],
            cleanse=services.secrets.cleanse,
            disclosure=disclosure,
        )

    def _request(
        self,
        scope: Scope,
        headers: Headers,
        endpoint: Endpoint,
        content: bytes | AsyncIterator[bytes],
        *,
        decoded: bool,
    ) -> UpstreamRequest:
        passed = h.to_upstream(headers, body_decoded=decoded, via=self._services.via)
        length = h.find(headers, b"content-length")
        if not _has_body(headers):
            content = b""
        elif not isinstance(content, bytes) and length is not None:
            passed.append((b"content-length", length))
        return UpstreamRequest(
            scope["method"],
            endpoint.url(scope["raw_path"], scope["query_string"]),
            endpoint.authorize(passed),
            content,
        )


def _speaks_responses(endpoint: Endpoint, raw_path: bytes) -> None:
    """Refuse a path of Responses where the upstream has none.

    Raises:
        RequestError: 404.
    """
    if endpoint.provider.translates and _OF_RESPONSES.search(raw_path):
        raise RequestError(
            f"upstream {endpoint.config.name} does not speak Responses, and keeps none; only "
            "POST to the path of Responses itself, and to its /compact, is translated for it",
            status=404,
            code="not_found",
        )


def _response_keys(tenant: str, raw_path: bytes) -> Keys:
    """Return what names the response that a path is about."""
    match = _STORED.search(raw_path)
    return [] if match is None else [response_key(tenant, match[1].decode("latin-1"))]


def _plain(raw_path: bytes) -> bytes:
    """Return a path as a provider may understand it: an id has more than one spelling."""
    return posixpath.normpath(unquote_to_bytes(raw_path).replace(b"//", b"/"))


def _has_body(headers: Headers) -> bool:
    length = h.find(headers, b"content-length")
    return h.find(headers, b"transfer-encoding") is not None or (
        length is not None and length.strip() != b"0"
    )


async def _relay(
    services: Services, endpoint: Endpoint, request: UpstreamRequest, channel: Channel
) -> None:
    answer = Answer(await endpoint.open(request))
    try:
        await _pass_on(services, answer, channel)
    finally:
        await answer.close()


async def _pass_on(services: Services, answer: Answer, channel: Channel) -> None:
    """Send an answer as it comes, an error without what is ours alone."""
    if not answer.successful:
        await answer.cleanse(services.secrets.cleanse, limit=services.limits.error_bytes)
    await channel.start(answer.status, h.to_client(answer.headers))
    while (data := await answer.read()) is not None:
        await channel.send(data, more=True)
    await channel.send(b"", more=False)


def _wants_codex_models(scope: Scope) -> bool:
    return (
        scope["method"] == "GET"
        and _MODELS.search(scope["raw_path"]) is not None
        and b"client_version=" in scope["query_string"]
    )


async def _relay_models(
    services: Services, endpoint: Endpoint, request: UpstreamRequest, channel: Channel
) -> None:
    """Answer Codex's question for models with a list that it can read.

    Other providers have another list under this path, or none; Codex then knows its own.
    """
    response = await endpoint.open(request)
    try:
        if response.status not in (200, 404):
            await _pass_on(services, Answer(response), channel)
            return
        body = await response.read_body(_MODELS_BYTES)
        if response.status == 404 or (
            response.status == 200 and not _has_models(body, response.headers)
        ):
            await channel.start(200, [(b"content-type", b"application/json")])
            await channel.send(b'{"models":[]}', more=False)
            return
        await channel.start(response.status, h.to_client(response.headers))
        await channel.send(body, more=False)
    finally:
        await response.close()


def _has_models(body: bytes, headers: Headers) -> bool:
    if h.find(headers, b"content-encoding") not in (None, b"identity"):
        return True  # encoded: nothing to look into, and nothing to break
    try:
        value = orjson.loads(body)
    except ValueError:
        return False
    return isinstance(value, dict) and "models" in value
