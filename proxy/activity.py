"""What hidden tools a turn runs, for the user's own terminal and on a way of its own.

Nothing of it is in the turn's answer. Who holds the turn's id, and is its tenant, may follow at
``GET /api/turns/ID/activity``: one JSON line for each call that starts or ends, until the turn is
over. A line has a tool's name and a time, never arguments or results.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import orjson
from starlette.responses import JSONResponse, StreamingResponse

from pipeline.errors import RequestError, SottovoceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from proxy.driver import ToolRunner
    from recall.tool import RecallResult

TURNS: Final = 256
"""Turns that are remembered; the oldest are forgotten first."""


class TurnActivity:
    """The hidden calls of one turn."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.lines: list[dict[str, object]] = []
        self.over = False
        self._changed: asyncio.Event | None = None  # nearly nobody follows

    def add(self, **line: object) -> None:
        """Tell who follows."""
        self.lines.append(line)
        self._tell()

    def end(self) -> None:
        """Tell who follows that the turn is over."""
        self.over = True
        self._tell()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def runners(self, runners: Mapping[str, ToolRunner]) -> dict[str, ToolRunner]:
        """Return what executes hidden tools, watched."""
        return {name: self._watched(name, run) for name, run in runners.items()}

    def _watched(self, name: str, run: ToolRunner) -> ToolRunner:
        async def watched(arguments: str) -> RecallResult:
            started = time.monotonic()
            self.add(tool=name, state="started")
            try:
                return await run(arguments)
            finally:
                seconds = round(time.monotonic() - started, 3)
                self.add(tool=name, state="ended", seconds=seconds)

        return watched

    async def follow(self) -> AsyncIterator[bytes]:
        """Yield all lines, from the first on, until the turn is over."""
        if self._changed is None:
            self._changed = asyncio.Event()
        told = 0
        while True:
            while told < len(self.lines):
                yield orjson.dumps(self.lines[told]) + b"\n"
                told += 1
            if self.over:
                return
            self._changed.clear()  # nothing happens between the look above and the wait
            await self._changed.wait()


class Activity:
    """The hidden calls of the last turns."""

    def __init__(self, *, turns: int = TURNS) -> None:
        self._most = turns
        self._turns: OrderedDict[str, TurnActivity] = OrderedDict()

    def begin(self, turn_id: str, tenant: str) -> TurnActivity:
        """Return the record of a turn that begins."""
        self._turns[turn_id] = found = TurnActivity(tenant)
        while len(self._turns) > self._most:
            _, oldest = self._turns.popitem(last=False)
            oldest.end()
        return found

    def find(self, turn_id: str, tenant: str) -> TurnActivity:
        """Return the record of a tenant's turn.

        Raises:
            RequestError: 404, there is none.
        """
        found = self._turns.get(turn_id)
        if found is None or found.tenant != tenant:
            raise RequestError("there is no such turn", status=404, code="not_found")
        return found


async def follow_activity(request: Request) -> Response:
    """Stream the hidden calls of a turn, one JSON line each."""
    services = request.app.state.services
    try:
        tenant, _ = services.tenants.admit(request.headers.raw)
        found = services.activity.find(request.path_params["turn"], tenant)
    except SottovoceError as error:
        return JSONResponse(error.body(), status_code=error.status)
    return StreamingResponse(found.follow(), media_type="application/x-ndjson")
