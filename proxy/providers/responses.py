"""Upstreams that speak Responses: what came in goes out, and what comes back is read as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from pipeline.reader import StreamMode
from proxy.providers.base import NOTHING, Headers, LeftOut, ProviderRequest, bearer
from proxy.providers.replay import without_ours

if TYPE_CHECKING:
    from pipeline.limits import Limits
    from pipeline.reader import Reader, Reading
    from pipeline.request import Request


class ResponsesProvider:
    """The public API, and whatever speaks like it."""

    kind: ClassVar[str] = "responses"
    translates: ClassVar[bool] = False

    def mode(self, *, streamed: bool) -> StreamMode:
        """Return the form that the client wants."""
        return StreamMode.SSE if streamed else StreamMode.JSON

    def encode(self, request: Request, mode: StreamMode) -> ProviderRequest:
        """Return the request as it is, but for the flag where it says something else."""
        request, dropped = without_ours(with_flag(request, mode))
        left_out = {LeftOut.REASONING: dropped} if dropped else NOTHING
        return ProviderRequest(b"/responses", [], request.text, left_out)

    def reader(
        self,
        request: Request,
        mode: StreamMode,
        limits: Limits,
        /,
        *,
        created_at: int = 0,
        **how: Unpack[Reading],
    ) -> Reader:
        """Return the reader that ``mode`` stands for."""
        del request, created_at  # the upstream's own answer has all of it
        return mode.reader(limits, **how)

    def credential_headers(self, key: str) -> Headers:
        """Return the key as a bearer token."""
        return bearer(key)


def with_flag(request: Request, mode: StreamMode) -> Request:
    """Return the request with the flag of ``mode``: as it came where it says that already."""
    if bool(request.body.get("stream")) is mode.flag:
        return request
    return request.with_members({"stream": mode.flag})
