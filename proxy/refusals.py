"""Error answers of other dialects in the one shape that Responses clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.jsontext import dumps, loads
from proxy.providers.codes import error_body
from proxy.upstream import UpstreamResponse

if TYPE_CHECKING:
    from collections.abc import Callable


class Refusal(UpstreamResponse):
    """A provider's error: its status, its headers, its message, in OpenAI's shape.

    Args:
        response: What the provider answered.
        body: Its body, as far as it was read.
        redact: Takes secrets out of its message.
    """

    def __init__(
        self, response: UpstreamResponse, body: bytes, *, redact: Callable[[str], str]
    ) -> None:
        super().__init__(response._exchange, reused=response.reused)  # noqa: SLF001 - one class
        try:
            value = loads(body)
        except ValueError:
            value = None
        self._body: bytes | None = dumps(error_body(value, redact=redact))
        dropped = {b"content-type", b"content-length", b"content-encoding"}
        kept = [one for one in response.headers if one[0].lower() not in dropped]
        self.headers = [*kept, (b"content-type", b"application/json")]

    async def read(self) -> bytes | None:
        """Return the body, then None."""
        body, self._body = self._body, None
        return body


async def in_openai_shape(
    response: UpstreamResponse, *, limit: int, redact: Callable[[str], str]
) -> Refusal:
    """Read an error answer of another dialect; return it in OpenAI's shape.

    Args:
        response: The answer, not a 2xx.
        limit: How many bytes of it are read.
        redact: Takes secrets out of its message.

    Raises:
        UpstreamError: It broke off.
    """
    response.decode(limit=None)
    return Refusal(response, await response.read_body(limit), redact=redact)
