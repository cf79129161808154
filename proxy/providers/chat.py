"""Chat completions: OpenAI's own, and whoever speaks like it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from proxy.providers.base import bearer
from proxy.providers.chat_request import encode_chat
from proxy.providers.chat_stream import ChatStream
from proxy.providers.translating import TranslatingProvider

if TYPE_CHECKING:
    from pipeline.reader import StreamMode
    from proxy.providers.base import Headers
    from proxy.providers.conversation import Conversation

OPENAI_HOST: Final = "api.openai.com"
_AZURE: Final = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")


class ChatProvider(TranslatingProvider):
    """An upstream with ``/chat/completions``.

    Args:
        base_url: Where it is: OpenAI and Azure take members that others refuse.
    """

    kind = "openai_compat"
    stream = ChatStream

    def __init__(self, base_url: str) -> None:
        host = urlsplit(base_url).hostname or ""
        self._azure = host.endswith(_AZURE)
        self._openai = self._azure or host == OPENAI_HOST

    def translate(self, conversation: Conversation, mode: StreamMode) -> tuple[bytes, bytes]:
        """Return the request for a chat completion.

        Raises:
            RequestError: It requires what chat completions lack.
        """
        return b"/chat/completions", encode_chat(conversation, mode, openai=self._openai)

    def credential_headers(self, key: str) -> Headers:
        """Return the key as a bearer token; Azure has a header of its own."""
        return [(b"api-key", key.encode())] if self._azure else bearer(key)
