"""Errors of all dialects in the codes that Responses clients act upon.

Codex ends a turn at some codes, waits at others and tries again at the rest; the router tells by
them whether another upstream could do better. So what a provider means is said in these words,
and its own message goes along.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import UpstreamRefusedError
from pipeline.jsontext import dumps
from pipeline.reader import provider_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.providers.base import Json

OVERFLOW: Final = "context_length_exceeded"
RATE_LIMIT: Final = "rate_limit_exceeded"
OVERLOADED: Final = "server_is_overloaded"
SERVER: Final = "server_error"
INVALID: Final = "invalid_prompt"
QUOTA: Final = "insufficient_quota"

_MESSAGE_CHARACTERS: Final = 500
_TOO_LONG: Final = re.compile(
    r"context|too long|prompt .{0,40}(?:tokens|length)|exceeds? .{0,40}token limit",
    re.IGNORECASE,
)
_CODES: Final = {
    "overloaded_error": OVERLOADED,
    "rate_limit_error": RATE_LIMIT,
    "billing_error": QUOTA,
    "api_error": SERVER,
    "timeout_error": SERVER,
    "internal_server_error": SERVER,
    "server_error": SERVER,
    "engine_overloaded": OVERLOADED,
    "service_unavailable": OVERLOADED,
    "too_many_requests": RATE_LIMIT,
    "tokens": RATE_LIMIT,
    "requests": RATE_LIMIT,
    "400": INVALID,
    "402": QUOTA,
    "408": SERVER,
    "413": OVERFLOW,
    "429": RATE_LIMIT,
    "500": SERVER,
    "502": SERVER,
    "503": OVERLOADED,
    "504": SERVER,
    "529": OVERLOADED,
}
_INVALID: Final = frozenset({INVALID, "invalid_request_error", "invalid_request"})


def code_of(value: object) -> tuple[str, str]:
    """Return message and code of a provider's error, whatever its dialect.

    Args:
        value: A body, a line or an event with an ``error``.
    """
    message, given = provider_error(value)
    code = _CODES.get(str(given).lower(), given or SERVER)
    if code in _INVALID:
        code = OVERFLOW if _TOO_LONG.search(message) else INVALID
    elif code == SERVER and given is None and _TOO_LONG.search(message):
        code = OVERFLOW
    return message or "the provider gave no message", code


def told_by(value: object) -> tuple[str, str | None]:
    """Return message and code of a body that may be an error; an empty message where it is none."""
    return code_of(value) if provider_error(value)[0] else ("", None)


def refused(value: object, *, phase: str, redact: Callable[[str], str]) -> UpstreamRefusedError:
    """Return the error for a 2xx answer that begins with an error.

    Args:
        value: The body, line or event.
        phase: Which request it answers.
        redact: Takes secrets out of the provider's message.
    """
    message, code = code_of(value)
    return UpstreamRefusedError(
        f"{phase}: the upstream answered with an error: {cut(redact(message))}",
        status=502,
        code=code,
        upstream_body=dumps(value),
    )


def cut(message: str) -> str:
    """Return as much of a provider's message as is passed on."""
    return message[:_MESSAGE_CHARACTERS]


def error_body(value: object, *, redact: Callable[[str], str]) -> Json:
    """Return the body of an error answer in OpenAI's shape.

    Args:
        value: The parsed body of the provider's, None where it was no JSON.
        redact: Takes secrets out of its message.
    """
    message, code = code_of(value)
    error: Any = value.get("error") if isinstance(value, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    return {
        "error": {
            "message": cut(redact(message)),
            "type": kind if isinstance(kind, str) else "upstream_error",
            "code": code,
            "param": None,
        }
    }
