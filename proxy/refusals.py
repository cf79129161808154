"""Error answers of other dialects in the one shape that Responses clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.jsontext import dumps, loads
from proxy.providers.codes import error_body

if TYPE_CHECKING:
    from collections.abc import Callable


def in_openai_shape(body: bytes, *, redact: Callable[[str], str]) -> bytes:
    """Return the body of an error answer in OpenAI's shape.

    Args:
        body: The provider's, as far as it was read.
        redact: Takes secrets out of its message.
    """
    try:
        value = loads(body)
    except ValueError:
        value = None
    return dumps(error_body(value, redact=redact))
