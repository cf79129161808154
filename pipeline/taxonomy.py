"""What sort of failure it was: the error taxonomy of upstreams.

An upstream fails before its answer (``unreached``), with its answer (``refused``), or inside an
answer that had begun well (``failed_inside``). Each becomes a ``Failure`` of one ``ErrorKind``, and
what happens next (``pipeline.failover``, ``pipeline.circuit``) depends on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from pipeline import jsontext
from pipeline.errors import RequestError, UpstreamError, UpstreamRefusedError
from pipeline.reader import provider_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.errors import SottovoceError

PATIENCE_MS: Final = 30_000
"""The longest ``Retry-After`` that is waited for."""
MESSAGE_CHARACTERS: Final = 500
"""How much of a provider's message is passed on."""

_OVERFLOW: Final = {
    "anthropic": (b"context", b"token", b"maximum"),
    "ollama": (b"context", b"token", b"maximum", b"too long"),
}
_OVERFLOW_OPENAI: Final = (b"context", b"token", b"length")
_LOOP: Final = 508
"""The way to the provider leads back to us, and will at the next attempt."""
_SPENT: Final = frozenset({"insufficient_quota", "usage_limit_reached"})


class ErrorKind(StrEnum):
    """What sort of failure it was: what to do next depends on nothing else."""

    AUTH = "auth"
    RATE_LIMIT = "rate_limit"
    OVERFLOW = "overflow"
    BAD_REQUEST = "bad_request"
    NETWORK = "network"
    UNKNOWN = "unknown"


_CODES: Final = {
    "rate_limit_exceeded": ErrorKind.RATE_LIMIT,
    "server_is_overloaded": ErrorKind.RATE_LIMIT,
    "context_length_exceeded": ErrorKind.OVERFLOW,
}
_IN_PLACE: Final = frozenset({ErrorKind.RATE_LIMIT, ErrorKind.NETWORK})


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt that failed.

    Attributes:
        kind: What sort of failure it was.
        error: The error, safe for the client's eyes.
        retry_after_ms: How long the upstream asks to wait; None where it says nothing.
        spent: A quota is used up: trying again soon can't help.
        inside: The answer had begun well.
        personal: It may be due to whose credential was used, not to the upstream.
    """

    kind: ErrorKind
    error: SottovoceError
    retry_after_ms: int | None = None
    spent: bool = False
    inside: bool = False
    personal: bool = False

    @property
    def asks_for_patience(self) -> bool:
        """Whether the upstream wants to be left alone for longer than we wait."""
        return self.retry_after_ms is not None and self.retry_after_ms > PATIENCE_MS

    @property
    def may_pass(self) -> bool:
        """Whether the same upstream is worth another attempt."""
        hopeless = self.inside or self.spent or self.asks_for_patience
        return self.kind in _IN_PLACE and not hopeless and self.error.status != _LOOP


def classify(provider: str, status: int, body: bytes) -> ErrorKind:
    """Return the kind of an answer that is no 2xx.

    Args:
        provider: The provider's kind: each has its own words for an overflow.
        status: HTTP status.
        body: The beginning of its body.
    """
    if status in (401, 403):
        return ErrorKind.AUTH
    if status in (429, 529) or status >= 500:
        return ErrorKind.RATE_LIMIT
    if status == 400:
        lowered = body.lower()
        if any(word in lowered for word in _OVERFLOW.get(provider, _OVERFLOW_OPENAI)):
            return ErrorKind.OVERFLOW
    return ErrorKind.BAD_REQUEST


def classify_code(code: object) -> ErrorKind:
    """Return the kind of a failure inside a 2xx by its code."""
    return _CODES.get(code, ErrorKind.UNKNOWN) if isinstance(code, str) else ErrorKind.UNKNOWN


def refused(
    provider: str,
    upstream: str,
    status: int,
    body: bytes,
    *,
    retry_after_ms: int | None,
    redact: Callable[[str], str],
) -> Failure:
    """Return the failure that an answer without 2xx is.

    Args:
        provider: The provider's kind.
        upstream: Its configured name, for the message.
        status: HTTP status.
        body: Its body, cut.
        retry_after_ms: What its headers say, see ``retry_after_ms``.
        redact: Takes secrets out of the provider's message.
    """
    try:
        value: Any = jsontext.loads(body)
    except ValueError:
        value = None
    message, code = provider_error(value)
    text = redact(message)[:MESSAGE_CHARACTERS] or "no readable error"
    error = UpstreamRefusedError(
        f"upstream {upstream} answered {status}: {text}",
        status=status,
        code=code,
        upstream_body=body,
    )
    kind = classify(provider, status, body)
    return Failure(
        kind,
        error,
        retry_after_ms,
        spent=kind is ErrorKind.RATE_LIMIT and not _SPENT.isdisjoint(_codes(value)),
        personal=kind is ErrorKind.AUTH or status == 429,
    )


def _codes(value: Any) -> set[str]:
    """Return what a provider calls its error: some use ``code`` for it, some ``type``."""
    outer = value if isinstance(value, dict) else {}
    inner = outer.get("error")
    objects = (outer, inner if isinstance(inner, dict) else {})
    return {
        name
        for each in objects
        for key in ("code", "type")
        if isinstance(name := each.get(key), str)
    }


def unreached(error: SottovoceError) -> Failure:
    """Return the failure that an attempt without any answer is.

    Args:
        error: What it raised: a request that can't be put into the upstream's dialect, a missing
            key, an upstream that can't be reached or was not in time.
    """
    match error:
        case RequestError(status=401) | UpstreamError(status=401):
            return Failure(ErrorKind.AUTH, error, personal=True)
        case RequestError():
            return Failure(ErrorKind.BAD_REQUEST, error)
        case UpstreamError(status=502 | 504):
            return Failure(ErrorKind.NETWORK, error)
        case _:
            return Failure(ErrorKind.UNKNOWN, error)


def failed_inside(error: SottovoceError, kind: ErrorKind) -> Failure:
    """Return the failure that an answer with a 2xx head turned out to be."""
    personal = kind is ErrorKind.AUTH or error.code == "rate_limit_exceeded"
    return Failure(kind, error, inside=True, personal=personal)
