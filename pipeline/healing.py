"""What is taken out of a request when an upstream refuses it for the reasoning in its history.

Two refusals are healed, each once in a turn: reasoning ciphertext that another account or provider
made, and reasoning whose follower is missing. What was taken out of one hop's request is taken out
of the following ones as well, which repeat it; reasoning that came since is left alone.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from pipeline import jsontext
from pipeline.history import ItemEdit
from pipeline.request import Request, input_items
from pipeline.restore import restore

if TYPE_CHECKING:
    from collections.abc import Iterator

_CIPHERTEXT_CODES: Final = frozenset({"invalid_encrypted_content", "thinking_signature_invalid"})
_CIPHERTEXT: Final = re.compile(
    r"invalid_encrypted_content"
    r"|encrypted.content\b.*\bcould not be (?:verified|decrypted)"
    r"|could not decrypt\b.*\bencrypted.content"
    r"|invalid\b.*\bsignature\b.*\bthinking\b",
    re.IGNORECASE | re.DOTALL,
)
_ORPHAN: Final = re.compile(r"without its required following item", re.IGNORECASE)
_NAMED: Final = re.compile(r"\brs_[A-Za-z0-9_-]+")


class Ailment(StrEnum):
    """Why a request was refused, where that can be healed."""

    CIPHERTEXT = "ciphertext"
    ORPHAN = "orphan"


def diagnose(code: str | None, message: str) -> Ailment | None:
    """Say which ailment an error of a provider is about, None for any other error.

    Args:
        code: Its code. Gateways tend to lose it, so the message decides as well.
        message: Its message.
    """
    if code in _CIPHERTEXT_CODES or _CIPHERTEXT.search(message):
        return Ailment.CIPHERTEXT
    return Ailment.ORPHAN if _ORPHAN.search(message) else None


class Healing:
    """What was taken out of the requests of one turn."""

    def __init__(self) -> None:
        self._treated: set[Ailment] = set()
        self._ciphertexts: set[str] = set()
        self._orphans: set[str] = set()

    def __repr__(self) -> str:
        return f"<Healing {sorted(self._treated)}>"

    def treat(self, ailment: Ailment, message: str, request: Request) -> bool:
        """Learn what is to be taken out; say whether ``apply`` now gives another request.

        Args:
            ailment: What the request was refused for.
            message: The provider's message: it names the orphan.
            request: As it was sent.
        """
        if ailment in self._treated:
            return False
        self._treated.add(ailment)
        found = [item for _, item in _reasoning(request)]
        if ailment is Ailment.CIPHERTEXT:
            learned = {text for item in found if (text := _text(item, "encrypted_content"))}
            self._ciphertexts |= learned
        else:
            named = set(_NAMED.findall(message))
            learned = named.intersection(filter(None, (_text(item, "id") for item in found)))
            self._orphans |= learned
        return bool(learned)

    def apply(self, request: Request) -> Request:
        """Return a request without what was refused; the same object where it has none of it."""
        if not self._treated:
            return request
        return self._stripped(self._without_dead(request))

    def _without_dead(self, request: Request) -> Request:
        """Take items out: orphans, and what would be left empty without its ciphertext."""
        if not any(self._is_dead(item) for _, item in _reasoning(request)):
            return request
        text = jsontext.cut_elements(request.text, request.body, self._is_dead, ("input",))
        kept = [item for item in request.body["input"] if not self._is_dead(item)]
        return Request(text, {**request.body, "input": kept})

    def _is_dead(self, item: Any) -> bool:
        if not isinstance(item, dict) or item.get("type") != "reasoning":
            return False
        if _text(item, "id") in self._orphans:
            return True
        return self._is_refused(item) and not (item.get("summary") or item.get("content"))

    def _is_refused(self, item: dict[str, Any]) -> bool:
        return _text(item, "encrypted_content") in self._ciphertexts

    def _stripped(self, request: Request) -> Request:
        """Take ciphertext out of items that stay.

        Without the ciphertext an id can only be looked up, so where nothing is stored it goes too.
        """
        stored = request.body.get("store") is not False
        gone = ("encrypted_content",) if stored else ("encrypted_content", "id")
        edits = [
            ItemEdit(index, dropped=gone)
            for index, item in _reasoning(request)
            if self._is_refused(item)
        ]
        return restore(request, edits)


def _reasoning(request: Request) -> Iterator[tuple[int, dict[str, Any]]]:
    for index, item in enumerate(input_items(request.body)):
        if isinstance(item, dict) and item.get("type") == "reasoning":
            yield index, item


def _text(item: dict[str, Any], key: str) -> str | None:
    value = item.get(key)
    return value if isinstance(value, str) else None
