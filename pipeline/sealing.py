"""Texts that a client keeps for us and can neither read nor change.

A summary of a conversation may tell what memory told, which is private, and comes back from the
client as if the model knew it. So it goes out sealed: encrypted, authenticated, and bound to the
tenant for whom it was made.

The sealing is synthetic-IV encryption (SIV) over the two functions that the standard library has
for it. The tag is an HMAC-SHA-256 over tenant and text; it also is the initial vector of a key
stream that SHAKE-256 derives from a second key. Opening it decrypts, and then the tag must be that
of what came out. Equal texts give equal seals: nothing random is needed, and nothing is reused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

SEALED: Final = "sottovoce.compaction.1."
"""What a sealed text begins with, the version of its form included."""
_TAG_BYTES: Final = 32


def seal(key: bytes, tenant: str, text: str) -> str:
    """Return a text sealed for a tenant, in ASCII.

    Args:
        key: For this purpose alone, 32 bytes.
        tenant: Who alone may bring it back.
        text: Any text, lone surrogates included.
    """
    plain = text.encode("utf-8", "surrogatepass")
    tag = _tag(key, tenant, plain)
    return SEALED + base64.urlsafe_b64encode(tag + _crypt(key, tag, plain)).decode()


def unseal(key: bytes, tenant: str, sealed: str) -> str | None:
    """Return the text that was sealed; None if it was not, or not with this key for this tenant.

    Args:
        key: As it was sealed with.
        tenant: Who brings it.
        sealed: What came.
    """
    if not sealed.startswith(SEALED) or not sealed.isascii():
        return None
    try:
        data = base64.b64decode(sealed[len(SEALED) :], altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return None
    tag, body = data[:_TAG_BYTES], data[_TAG_BYTES:]
    plain = _crypt(key, tag, body)
    if not hmac.compare_digest(tag, _tag(key, tenant, plain)):
        return None
    return plain.decode("utf-8", "surrogatepass")


def _tag(key: bytes, tenant: str, plain: bytes) -> bytes:
    name = tenant.encode("utf-8", "surrogatepass")
    message = b"%d:%b%b" % (len(name), name, plain)
    return hmac.digest(_key(key, b"tag"), message, "sha256")


def _crypt(key: bytes, tag: bytes, data: bytes) -> bytes:
    """Encrypt or decrypt: the key stream is added without carry."""
    stream = hashlib.shake_256(_key(key, b"stream") + tag).digest(len(data))
    mixed = int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")
    return mixed.to_bytes(len(data), "big")


def _key(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, purpose, "sha256")
