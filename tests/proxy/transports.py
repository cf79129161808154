"""Both transports behind the seam, for tests that hold for each.

A module that uses the fixture ``kind`` runs every test over either of them. What only one of them
does is marked.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from proxy.httpx_transport import HttpxTransport
from proxy.upstream import Transport

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Mapping

    from proxy.upstream import UpstreamResponse
    from tests.upstreams import Gate

AnyTransport = Transport | HttpxTransport

SECONDS = 20.0
"""A bound that only a failing test reaches."""

KINDS: dict[str, type[AnyTransport]] = {"own": Transport, "httpx": HttpxTransport}
only_own = pytest.mark.parametrize("kind", ["own"], indirect=True)

chosen = {"kind": "own"}
"""What ``transport`` makes; set by the fixture ``kind``."""


@asynccontextmanager
async def transport(
    *,
    max_connections: int = 4,
    seconds: float = SECONDS,
    connect_seconds: float = SECONDS,
    tls: ssl.SSLContext | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[AnyTransport]:
    """Make a transport that must have no slot taken in the end.

    It looks at no environment variable but those that are given.
    """
    built = chosen_class()(
        max_connections=max_connections,
        head_seconds=seconds,
        connect_seconds=connect_seconds,
        tls=tls,
        environment=environment or {},
    )
    try:
        yield built
        assert built.pool.in_use == 0
    finally:
        await built.close()


def chosen_class() -> type[AnyTransport]:
    """Return the class of this test's transport."""
    return KINDS[chosen["kind"]]


def connections(kind: str, requests: int) -> int:
    """Return how many connections so many requests take, where they can share one."""
    return requests if kind == "httpx" else 1


async def whole(answer: UpstreamResponse) -> bytes:
    """Read a body to its end."""
    parts = []
    try:
        while (piece := await answer.read()) is not None:
            parts.append(piece)
    finally:
        await answer.close()
    return b"".join(parts)


async def endless(closed: Gate) -> AsyncIterator[bytes]:
    """Be a body without end; tell when nobody wants it any more."""
    try:
        while True:
            yield bytes(65536)
    finally:
        closed.open()
