"""The small endpoints: liveness, readiness, metrics, usage, and the upgrade that is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson
from starlette.responses import JSONResponse, Response

from pipeline.errors import RequestError, SottovoceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from proxy.services import Services

_PATH_SHOWN: Final = 200
"""Characters of a path that are told back."""


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def health(_: Request) -> Response:
    """Say that the process lives."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Say whether requests are welcome: the memory can be used and nothing drains.

    What is wrong with the memory is told without its path: whoever can connect can ask.
    """
    services = _services(request)
    if services.drain.draining:
        return JSONResponse(
            {"status": "draining"}, status_code=503, headers={"connection": "close"}
        )
    trouble = await services.store.database.condition()
    told = (
        {"status": "ready"}
        if trouble is None
        else {
            "status": "not_ready",
            "detail": f"the memory can't be used: {trouble.cause}",
            "hint": trouble.remedy,
        }
    )
    circuits = services.router.circuit_states()
    upstreams = [
        {"name": one.name, "kind": one.kind, "circuit": circuits[one.name]}
        for one in services.config.upstream
    ]
    return JSONResponse(
        {**told, "turns_in_flight": len(services.drain.turns), "upstreams": upstreams},
        status_code=200 if trouble is None else 503,
    )


async def metrics(request: Request) -> Response:
    """Return what is counted, in Prometheus' text format."""
    services = _services(request)
    return Response(
        services.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8"
    )


async def usage(request: Request) -> Response:
    """Return the newest quota windows and the usage of the caller's tenant."""
    services = _services(request)
    try:
        tenant, _ = services.tenants.admit(request.headers.raw)
    except SottovoceError as error:
        return JSONResponse(error.body(), status_code=error.status)
    return Response(orjson.dumps(services.usage.show(tenant)), media_type="application/json")


async def wrong_method(request: Request, refused: Exception) -> Response:
    """Answer a method that a path does not take, with the ones that it takes.

    Args:
        request: The client's.
        refused: The router's error, with its ``Allow``.
    """
    allow = (getattr(refused, "headers", None) or {}).get("Allow", "GET")
    methods = sorted(allow.split(", "))
    error = method_refusal(request.method, request.url.path, methods)
    headers = {"allow": ", ".join(methods)}
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


def method_refusal(method: str, path: str, methods: Sequence[str]) -> RequestError:
    """Return the error for a method that a path does not take.

    Args:
        method: The client's.
        path: The path.
        methods: The ones that it takes.
    """
    message = f"{method} is not answered at {_shown(path)}: use {methods[0]}"
    return RequestError(message, status=405, code="method_not_allowed")


async def wrong_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a path where nothing is."""
    path = _shown(scope["path"])
    message = f"nothing is served at {path}; OpenAI clients use the base URL …/v1"
    error = RequestError(message, status=404, code="not_found")
    await JSONResponse(error.body(), status_code=error.status)(scope, receive, send)


def _shown(path: str) -> str:
    return path if len(path) <= _PATH_SHOWN else f"{path[:_PATH_SHOWN]}…"


async def websocket_refusal(scope: Scope, send: Send, error: SottovoceError | None = None) -> None:
    """Refuse an upgrade to WebSocket.

    426 with ``Connection: close`` is the only refusal after which Codex goes on over HTTP at
    once. Which messages say so depends on whether the server speaks WebSocket itself.
    """
    if error is None:
        error = RequestError(
            "WebSocket is not served here; use HTTP", status=426, code="upgrade_required"
        )
    body = orjson.dumps(error.body())
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if error.status == 426:
        headers.append((b"upgrade", b"HTTP/1.1"))
    prefix = "websocket.http" if scope["type"] == "websocket" else "http"
    await send({"type": f"{prefix}.response.start", "status": error.status, "headers": headers})
    await send({"type": f"{prefix}.response.body", "body": body, "more_body": False})
