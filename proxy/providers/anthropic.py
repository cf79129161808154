"""The Anthropic Messages API, and whoever speaks like it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proxy.providers.anthropic_request import encode_messages
from proxy.providers.anthropic_stream import MessagesStream
from proxy.providers.translating import TranslatingProvider

if TYPE_CHECKING:
    from pipeline.reader import StreamMode
    from proxy.providers.base import Headers
    from proxy.providers.conversation import Conversation

VERSION: Final = b"2023-06-01"
"""The version of the API that this speaks."""


class AnthropicProvider(TranslatingProvider):
    """An upstream with ``/v1/messages``."""

    kind = "anthropic"
    stream = MessagesStream

    def translate(self, conversation: Conversation, mode: StreamMode) -> tuple[bytes, bytes]:
        """Return the request for a message.

        Raises:
            RequestError: It requires what the Messages API lacks.
        """
        return b"/v1/messages", encode_messages(conversation, mode)

    def credential_headers(self, key: str) -> Headers:
        """Return the key in the API's own header, beside the version that it is for."""
        return [(b"x-api-key", key.encode()), (b"anthropic-version", VERSION)]
