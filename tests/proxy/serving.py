"""A real server on a loopback port, and raw connections to it."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import uvicorn

from proxy.client_connection import ClientConnection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp

SECONDS = 20.0
"""A bound that only a failing test reaches."""


@asynccontextmanager
async def served(
    app: ASGIApp, *, http: type[ClientConnection] = ClientConnection
) -> AsyncIterator[int]:
    """Serve an application as we serve ours; yields the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http=http, lifespan="off", access_log=False, log_config=None, ws="none"
    )
    server = uvicorn.Server(config)
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(SECONDS):
            while not server.started:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listener.close()
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
    assert not [name for name in names if "TurnResponse" in name or "receive" in name]


class Client:
    """A raw connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(SECONDS):
            return await self.reader.readuntil(end)

    async def rest(self) -> bytes:
        async with asyncio.timeout(SECONDS):
            return await self.reader.read()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def connected(port: int, *, limit: int = 1 << 20) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection("127.0.0.1", port, limit=limit))
    try:
        yield client
    finally:
        client.writer.transport.abort()
        await asyncio.sleep(0)
