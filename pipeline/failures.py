"""Which failure it was: errors of a turn, their category, and the code that the client gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline import jsontext
from pipeline.errors import (
    FailureCategory,
    ProtocolError,
    RecallError,
    SottovoceError,
    SSEStreamLimitError,
    UpstreamError,
    UpstreamRefusedError,
)
from pipeline.reader import provider_error

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE_CHARACTERS: Final = 500
"""How much of a provider's message is passed on."""

FINAL_CODES: Final = frozenset(
    {
        "context_length_exceeded",
        "insufficient_quota",
        "invalid_prompt",
        "server_is_overloaded",
        "usage_not_included",
        "rate_limit_exceeded",
    }
)
"""Provider codes that clients act upon; any other means to them: try again."""


class MissingTerminalError(UpstreamError):
    """The upstream's body ended, as announced, before its terminal event."""


UNEXPECTED: Final = "the proxy failed unexpectedly; its log says why"
"""What the client is told of an error that nobody foresaw."""


class ShutdownError(SottovoceError):
    """The proxy ends what is left."""

    status = 503
    type = "server_error"


class UnexpectedError(SottovoceError):
    """A fault of ours: the client's stream still gets its end."""

    status = 500
    type = "server_error"


def categorize(error: SottovoceError, *, principal: bool) -> FailureCategory:
    """Return the category of a failure.

    Args:
        error: What ended the turn.
        principal: Whether that was in the principal hop.
    """
    match error:
        case RecallError():
            return error.category
        case SSEStreamLimitError():
            category = FailureCategory.PRINCIPAL_LIMIT, FailureCategory.RESOURCE_LIMIT
        case MissingTerminalError():
            category = (
                FailureCategory.PRINCIPAL_MISSING_TERMINAL,
                FailureCategory.FOLLOW_UP_TRANSPORT,
            )
        case ProtocolError():
            category = FailureCategory.PRINCIPAL_PROTOCOL, FailureCategory.FOLLOW_UP_PROTOCOL
        case UpstreamRefusedError():
            category = FailureCategory.PRINCIPAL_TRANSPORT, FailureCategory.FOLLOW_UP_FAILED
        case UpstreamError():
            category = FailureCategory.PRINCIPAL_TRANSPORT, FailureCategory.FOLLOW_UP_TRANSPORT
        case ShutdownError():
            return FailureCategory.DELIVERY
        case _:
            return FailureCategory.UNEXPECTED
    return category[0] if principal else category[1]


class Refusal:
    """A continuation that was answered without a 2xx.

    Args:
        status: The provider's.
        phase: Which continuation.
        limit: How much of the body is read.
        redact: Takes secrets out of the provider's message.
    """

    def __init__(
        self, status: int, *, phase: str, limit: int, redact: Callable[[str], str]
    ) -> None:
        self._status = status
        self._phase = phase
        self._limit = limit
        self._redact = redact
        self._body = bytearray()

    def add(self, data: bytes) -> bool:
        """Take bytes of the body; say whether no more are wanted."""
        self._body += data
        return len(self._body) >= self._limit

    def error(self) -> UpstreamRefusedError:
        """Return the error that it comes to."""
        body = bytes(self._body[: self._limit])
        try:
            message, code = provider_error(jsontext.loads(body))
        except ValueError:
            message, code = "", None
        text = self._redact(message)[:MESSAGE_CHARACTERS] or "no readable error"
        return UpstreamRefusedError(
            f"{self._phase}: the upstream answered {self._status}: {text}",
            status=502,
            code=code if code in FINAL_CODES else None,
            upstream_status=self._status,
            upstream_body=body,
        )


def missing_terminal(error: dict[str, Any] | None, redact: Callable[[str], str]) -> UpstreamError:
    """Return the error for a stream that ended early.

    Args:
        error: What an ``error`` event of the stream said, None where there was none.
        redact: Takes secrets out of the provider's message.
    """
    if error is None:
        return MissingTerminalError("the upstream's stream ended without a terminal event")
    code = error.get("code") or error.get("type")
    return UpstreamRefusedError(
        redact(str(error.get("message") or "the provider gave no message"))[:MESSAGE_CHARACTERS],
        status=502,
        code=code if isinstance(code, str) else None,
    )
