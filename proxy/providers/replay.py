"""What a dialect must see again of its reasoning, kept in ``encrypted_content`` meanwhile.

Anthropic wants its thinking blocks back with their signatures, chat upstreams the reasoning in the
very field it came in. Clients keep a reasoning item's ``encrypted_content`` as it is and send it
back, so it carries that: ``sottovoce.1.KIND.BASE64``, where the version says how to read it and
the kind whose it is. It hides nothing from who holds it; it only survives the way.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final

from pipeline.jsontext import dumps, loads
from pipeline.request import Request, input_items

if TYPE_CHECKING:
    from proxy.providers.base import Json

_FORM: Final = "sottovoce."
_QUOTED: Final = f'"{_FORM}'.encode()
_VERSION: Final = "1"


def wrap(kind: str, value: Json) -> str:
    """Return the form in which a client keeps ``value`` for a provider of ``kind``."""
    return f"{_FORM}{_VERSION}.{kind}.{base64.b64encode(dumps(value)).decode()}"


def unwrap(kind: str, text: object) -> Json | None:
    """Return what ``wrap`` put into ``text`` for this kind; None if it is not of this form."""
    prefix = f"{_FORM}{_VERSION}.{kind}."
    if not isinstance(text, str) or not text.startswith(prefix):
        return None
    try:
        value = loads(base64.b64decode(text[len(prefix) :], validate=True))
    except (ValueError, binascii.Error):
        return None
    return value if isinstance(value, dict) else None


def is_ours(text: object) -> bool:
    """Say whether ``text`` is of this form, whatever its version and kind."""
    return isinstance(text, str) and text.startswith(_FORM)


def without_ours(request: Request) -> tuple[Request, int]:
    """Take reasoning of this form out of a request for an upstream that makes its own.

    Such an item is of a conversation that changed its provider; none but its own could read it.

    Returns:
        The request, unchanged to the byte where there is none, and how many were taken out.
    """
    if _QUOTED not in request.text:
        return request, 0
    items = input_items(request.body)
    kept = [
        item
        for item in items
        if not (isinstance(item, dict) and is_ours(item.get("encrypted_content")))
    ]
    if len(kept) == len(items):
        return request, 0
    body = {**request.body, "input": kept}
    return Request(dumps(body), body), len(items) - len(kept)
