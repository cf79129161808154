"""Ids that we mint where a provider gave none, and how they are recognised.

A minted id looks like the provider's own, ``msg_`` and 48 hex digits, and proves itself: the
first half is a digest of what it was minted for, the second half a digest of the first. So when
a client sends it back, no record is needed to know that the provider has never seen it. Both are
keyed: a client can't make one up, and two installations don't take each other's for their own.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

_HALF: Final = 24


def mint_id(key: bytes, prefix: str, response_id: str, index: int) -> str:
    """Return the id of an item: the same for the same item, at every event and after a restart.

    Args:
        key: Secret of the installation.
        prefix: What ids of the item's type begin with, without the underscore: ``msg``.
        response_id: Id of the response that the item belongs to.
        index: Its ``output_index`` there.
    """
    first = _digest(key, f"{prefix}:{response_id}:{index}")
    return f"{prefix}_{first}{_digest(key, prefix + first)}"


def is_minted_id(key: bytes, id_: object) -> bool:
    """Tell whether ``id_`` is one that `mint_id` returned for this key."""
    if not isinstance(id_, str) or id_[-2 * _HALF - 1 : -2 * _HALF] != "_":
        return False
    prefix, digits = id_[: -2 * _HALF - 1], id_[-2 * _HALF :]
    expected = _digest(key, prefix + digits[:_HALF])
    return digits.isascii() and hmac.compare_digest(expected, digits[_HALF:])


def _digest(key: bytes, text: str) -> str:
    # Ids are the provider's words: a lone surrogate must not end a turn.
    message = text.encode("utf-8", "surrogatepass")
    return hmac.digest(key, message, hashlib.sha256).hex()[:_HALF]
