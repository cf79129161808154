"""The protocol of a provider: a Responses request out in its dialect, Responses events in.

``encode`` and ``reader`` are two halves of one thing: both take the ``StreamMode`` of the hop, so
that the form that is asked for is the form that is read.

What a request *requires* and an upstream lacks is refused with a 400 that says so. What it merely
offers is left out and counted, as a ``LeftOut`` each.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias, Unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.limits import Limits
    from pipeline.reader import Reader, Reading, StreamMode
    from pipeline.request import Request

Json: TypeAlias = dict[str, Any]
Headers: TypeAlias = list[tuple[bytes, bytes]]


class LeftOut(StrEnum):
    """What a request offers and its upstream does without: a closed list, a metric's label."""

    HOSTED_TOOL = "hosted_tool"
    PARALLEL_TOOL_CALLS = "parallel_tool_calls"
    STRICT = "strict"
    EFFORT = "effort"
    SAMPLING = "sampling"
    VERBOSITY = "verbosity"
    LOGPROBS = "logprobs"
    TRUNCATION = "truncation"
    SERVICE_TIER = "service_tier"
    CACHE_HINT = "cache_hint"
    METADATA = "metadata"
    IMAGE_DETAIL = "image_detail"
    REASONING = "reasoning"
    """Reasoning of another provider, which only that one can read."""
    OTHER = "other"
    """A member that we don't know."""


NOTHING: Final[Mapping[LeftOut, int]] = MappingProxyType({})
"""Nothing was left out."""


class ProviderRequest(NamedTuple):
    """A request in the dialect of its upstream.

    Attributes:
        path: What is appended to the base URL.
        headers: To add, in the place of others with their names.
        body: The body.
        left_out: What had no place in it, and how often.
    """

    path: bytes
    headers: Headers
    body: bytes
    left_out: Mapping[LeftOut, int] = NOTHING


class Provider(Protocol):
    """One kind of upstream.

    Attributes:
        kind: As the configuration calls it.
        translates: Whether it speaks another dialect than Responses, so that neither its paths
            nor its headers nor its errors are those of the client.
    """

    kind: ClassVar[str]
    translates: ClassVar[bool]

    def mode(self, *, streamed: bool) -> StreamMode:
        """Return in which form it is asked for an answer.

        Args:
            streamed: Whether the client wants a stream.
        """

    def encode(self, request: Request, mode: StreamMode) -> ProviderRequest:
        """Return a Responses request in this dialect, asking for its answer in one form.

        Raises:
            RequestError: It requires what the upstream lacks.
        """

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
        """Return the reader for the answer; a ``pipeline.reader.ReaderFactory``.

        Args:
            request: The Responses request that is answered: its echo, its tools.
            mode: In which form it was asked for.
            limits: Bounds what the reader keeps.
            created_at: Unix time of a response whose upstream does not tell.
            how: How the answer is read.
        """

    def credential_headers(self, key: str) -> Headers:
        """Return the headers that present a key."""


def bearer(key: str) -> Headers:
    """Return a key as a bearer token."""
    return [(b"authorization", b"Bearer " + key.encode())]
