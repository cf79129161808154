"""Ollama's own chat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.providers.base import bearer
from proxy.providers.ollama_request import encode_ollama
from proxy.providers.ollama_stream import OllamaStream
from proxy.providers.translating import TranslatingProvider

if TYPE_CHECKING:
    from pipeline.reader import StreamMode
    from proxy.providers.base import Headers
    from proxy.providers.conversation import Conversation


class OllamaProvider(TranslatingProvider):
    """An upstream with ``/api/chat``.

    Args:
        think: How the model thinks, whatever the client asks for.
        keep_alive: How long the model stays loaded.
    """

    kind = "ollama"
    lines = True
    stream = OllamaStream

    def __init__(
        self, *, think: bool | str | None = None, keep_alive: int | str | None = None
    ) -> None:
        self._think = think
        self._keep_alive = keep_alive

    def translate(self, conversation: Conversation, mode: StreamMode) -> tuple[bytes, bytes]:
        """Return the request for an answer.

        Raises:
            RequestError: It requires what Ollama lacks.
        """
        body = encode_ollama(conversation, mode, think=self._think, keep_alive=self._keep_alive)
        return b"/api/chat", body

    def credential_headers(self, key: str) -> Headers:
        """Return the key as a bearer token: a local Ollama needs none."""
        return bearer(key)
