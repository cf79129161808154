"""What most people would write: a Starlette route that passes an httpx stream on, nothing more.

``python -m bench.baseline PORT UPSTREAM``
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

_HOP_BY_HOP: Final = {"host", "content-length", "connection", "transfer-encoding"}


def application(upstream: str) -> Starlette:
    """Return the pass-through to ``upstream``."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, Any]]:
        limits = httpx.Limits(max_connections=1000, max_keepalive_connections=1000)
        async with httpx.AsyncClient(base_url=upstream, limits=limits, timeout=60) as client:
            yield {"client": client}

    async def responses(request: Request) -> StreamingResponse:
        client: httpx.AsyncClient = request.state.client
        headers = [(k, v) for k, v in request.headers.items() if k not in _HOP_BY_HOP]
        passed = client.build_request(
            "POST", "/responses", headers=headers, content=await request.body()
        )
        answer = await client.send(passed, stream=True)

        async def body() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.aiter_raw():
                    yield chunk
            finally:
                await answer.aclose()

        kept = {k: v for k, v in answer.headers.items() if k not in _HOP_BY_HOP}
        return StreamingResponse(body(), answer.status_code, kept)

    route = Route("/v1/responses", responses, methods=["POST"])
    return Starlette(routes=[route], lifespan=lifespan)


if __name__ == "__main__":
    uvicorn.run(
        application(sys.argv[2]),
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
    )
