"""Ids that we mint where a provider gave none, and how they are recognised.

A minted id looks like the provider's own, ``msg_`` and 48 hex digits, and proves itself: the
first half is a digest of what it was minted for, the second half a digest of the first. So when
a client sends it back, no record is needed to know that the provider has never seen it. Both are
keyed: a client can't make one up, and two installations don't take each other's for their own.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    Mint = Callable[[str, int], str]
    """(prefix, output index) → an id that its stream has not used."""

_HALF: Final = 24
_START: Final = -2 * _HALF - 1
_DIGITS: Final = re.compile(rf"[0-9a-f]{{{2 * _HALF}}}")
MINTED_LENGTH: Final = -_START
"""No shorter id is one of ours."""
_USUAL: Final = 80
"""The longest id of which it is remembered whether it is one of ours."""


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
    if not isinstance(id_, str) or id_[_START : _START + 1] != "_":
        return False
    if not _DIGITS.fullmatch(id_, len(id_) + _START + 1):
        return False
    # A provider's own ids have this form too, and come again with every request.
    return (_proves_itself if len(id_) <= _USUAL else _proves_itself.__wrapped__)(key, id_)


@lru_cache(maxsize=1 << 15)
def _proves_itself(key: bytes, id_: str) -> bool:
    prefix, digits = id_[:_START], id_[_START + 1 :]
    return hmac.compare_digest(_digest(key, prefix + digits[:_HALF]), digits[_HALF:])


def _digest(key: bytes, text: str) -> str:
    # Ids are the provider's words: a lone surrogate must not end a turn.
    message = text.encode("utf-8", "surrogatepass")
    return hmac.digest(key, message, hashlib.sha256).hex()[:_HALF]
