"""Everything that can go wrong with a turn, one class for each thing to do about it.

::

    SottovoceError
    ├── RequestError               the client sent what can't be served
    ├── UpstreamError              the provider was not there, or not in time
    │   └── UpstreamRefusedError        it answered with an error of its own
    ├── ProtocolError              it answered what no client could read
    │   └── StreamFlagError     in the other form than it was asked for
    ├── SSEStreamLimitError        it sent more than a limit allows
    └── RecallError                a hidden call, or what followed it, failed

Each knows three things: the ``status`` of an HTTP answer while no head was sent, the ``code`` of a
``response.failed`` event afterwards, and a ``message`` that is safe to show to the client. Codes
matter: clients retry ``server_error`` and end the turn at ``invalid_prompt``, so the second
stands for whatever would fail again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Final

RETRYABLE: Final = "server_error"
"""The code that makes clients try again."""
FINAL: Final = "invalid_prompt"
"""The code that makes clients show the message and stop."""


class FailureCategory(StrEnum):
    """Why a turn failed: a closed list, used in outcomes and as a metric label."""

    PRINCIPAL_TRANSPORT = "principal_transport"
    PRINCIPAL_PROTOCOL = "principal_protocol"
    PRINCIPAL_LIMIT = "principal_limit"
    PRINCIPAL_MISSING_TERMINAL = "principal_missing_terminal"
    RECALL_EXECUTION = "recall_execution"
    FOLLOW_UP_SETUP = "follow_up_setup"
    FOLLOW_UP_TRANSPORT = "follow_up_transport"
    FOLLOW_UP_PROTOCOL = "follow_up_protocol"
    FOLLOW_UP_FAILED = "follow_up_failed"
    FOLLOW_UP_MISSING_OUTPUT = "follow_up_missing_output"
    FOLLOW_UP_INCOMPLETE_ARGUMENTS = "follow_up_incomplete_arguments"
    DEPTH_EXHAUSTED = "depth_exhausted"
    RESOURCE_LIMIT = "resource_limit"
    DELIVERY = "delivery"
    UNEXPECTED = "unexpected"


class SottovoceError(Exception):
    """The root of all errors of ours.

    Args:
        message: What is wrong, safe for the client's eyes: never a secret, never memory content.
        status: HTTP status while no head was sent.
        code: ``error.code`` of the answer, or of ``response.failed`` after the head.

    Attributes:
        limit: The limit that was reached, by its name in ``Limits``; None where it was none.
    """

    status: int = 502
    code: str = RETRYABLE
    limit: str | None = None
    type: ClassVar[str] = "upstream_error"

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if status is not None:
            self.status = status
        if code is not None:
            self.code = code

    def body(self) -> dict[str, Any]:
        """Return the error in OpenAI's shape."""
        return {
            "error": {"message": self.message, "type": self.type, "code": self.code, "param": None}
        }


class RequestError(SottovoceError):
    """The client's request can't be served as it is: 400, 403, 404, 413, 415, 508."""

    status = 400
    code = "invalid_request"
    type = "invalid_request_error"


class UpstreamError(SottovoceError):
    """The provider could not be reached (502), or did not answer in time (504)."""


class UpstreamRefusedError(UpstreamError):
    """The provider answered with an error of its own.

    Args:
        message: Phase and the provider's own words, redacted and cut.
        status: What the client gets while no head was sent.
        code: The provider's code, where it gave one.
        upstream_status: The provider's own status.
        upstream_body: Its body as received, up to ``Limits.error_bytes``.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str | None = None,
        upstream_status: int | None = None,
        upstream_body: bytes = b"",
    ) -> None:
        super().__init__(message, status=status, code=code)
        self.upstream_status = upstream_status
        self.upstream_body = upstream_body


class ProtocolError(SottovoceError):
    """The provider's stream breaks a rule that no client would survive.

    Args:
        message: Rule and event.
        code: Another than that of what would fail again.
        limit: The name of the field in ``Limits``, where the rule is one.
    """

    code = FINAL

    def __init__(self, message: str, *, code: str | None = None, limit: str | None = None) -> None:
        super().__init__(message, code=code)
        self.limit = limit


class StreamFlagError(ProtocolError):
    """A stream was asked for and JSON came, or the reverse."""


class SSEStreamLimitError(SottovoceError):
    """A buffer reached its limit.

    Args:
        message: The exact text that names the limit.
        limit: The name of the field in ``Limits``; the metric's label.
    """

    code = FINAL

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit: str = limit


class RecallError(SottovoceError):
    """A hidden call, or the continuation after it, failed for the reason in ``category``."""

    def __init__(
        self,
        message: str,
        *,
        category: FailureCategory,
        status: int | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, status=status, code=code)
        self.category = category
