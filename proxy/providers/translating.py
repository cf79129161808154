"""What the providers of all other dialects share.

A dialect is a function for its request, and a ``DialectStream`` for its answer, which is read in
the form in which it was asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Unpack

from pipeline.reader import StreamMode
from proxy.providers.base import ProviderRequest
from proxy.providers.codes import code_of, cut, refused
from proxy.providers.conversation import read_conversation
from proxy.providers.reading import TranslatingReader, source_of
from proxy.providers.replay import wrap
from proxy.providers.tools import toolbox_of
from proxy.providers.writer import ResponseWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.limits import Limits
    from pipeline.reader import Reader, Reading
    from pipeline.request import Request
    from proxy.providers.base import Headers, Json
    from proxy.providers.conversation import Conversation
    from proxy.providers.tools import Toolbox


@dataclass(frozen=True, slots=True)
class Answering:
    """What an answer is translated with.

    Attributes:
        writer: Writes the events.
        toolbox: The tools of the request.
        kind: The upstream's kind: whose reasoning it is.
        phase: What the messages of errors begin with.
        redact: Takes secrets out of the provider's message.
    """

    writer: ResponseWriter
    toolbox: Toolbox
    kind: str
    phase: str
    redact: Callable[[str], str]


class DialectStream(ABC):
    """Translates one answer.

    Args:
        answering: What it is translated with.
    """

    def __init__(self, answering: Answering) -> None:
        self.writer = answering.writer
        self.toolbox = answering.toolbox
        self.phase = answering.phase
        self._kind = answering.kind
        self._redact = answering.redact

    @abstractmethod
    def take(self, value: Json) -> None:
        """Take one event, chunk or line.

        Raises:
            UpstreamRefusedError: The answer begins with an error.
            ProtocolError: It can't be understood.
        """

    @abstractmethod
    def take_whole(self, value: Json) -> None:
        """Take an answer that is one JSON body.

        Raises:
            UpstreamRefusedError: It is an error.
            ProtocolError: It can't be understood.
        """

    @abstractmethod
    def end(self, *, marked: bool) -> None:
        """Take the end of the answer.

        Args:
            marked: It is marked as such; otherwise the body is over, and may have been cut.
        """

    @abstractmethod
    def usage(self) -> Json | None:
        """Return what was used as far as it was told, None where nothing was."""

    def fail(self, value: Json) -> None:
        """End the answer with the error that it holds.

        Args:
            value: What holds it: the answer's first value makes it an error of its own.

        Raises:
            UpstreamRefusedError: Nothing else had come.
        """
        if not self.writer.begun:
            raise refused(value, phase=self.phase, redact=self._redact)
        message, code = code_of(value)
        self.writer.fail(code, cut(self._redact(message)), self.usage())

    def close_reasoning(self, replay: Json) -> None:
        """Close the reasoning that is open.

        Args:
            replay: What the upstream must see of it again.
        """
        self.writer.reasoning().close("completed", wrap(self._kind, replay))
        self.writer.close_prose()


class TranslatingProvider(ABC):
    """A provider of another dialect."""

    kind: ClassVar[str]
    translates: ClassVar[bool] = True
    lines: ClassVar[bool] = False
    """Whether its streams are JSON lines, not events."""
    stream: ClassVar[type[DialectStream]]

    def mode(self, *, streamed: bool) -> StreamMode:
        """Return the form that the client wants."""
        return StreamMode.SSE if streamed else StreamMode.JSON

    def encode(self, request: Request, mode: StreamMode) -> ProviderRequest:
        """Return the request in this dialect.

        Raises:
            RequestError: It requires what the upstream lacks.
        """
        conversation = read_conversation(request, self.kind)
        path, body = self.translate(conversation, mode)
        accept = b"application/x-ndjson" if self.lines and mode.flag else mode.accept.encode()
        headers = [(b"content-type", b"application/json"), (b"accept", accept)]
        return ProviderRequest(path, headers, body, dict(conversation.left_out))

    @abstractmethod
    def translate(self, conversation: Conversation, mode: StreamMode) -> tuple[bytes, bytes]:
        """Return path and body of the request, asking for its answer in one form.

        Raises:
            RequestError: It requires what the upstream lacks.
        """

    def reader(
        self,
        request: Request,
        mode: StreamMode,
        limits: Limits,
        /,
        *,
        created_at: int = 0,
        **how: Unpack[Reading],
    ) -> Reader:
        """Return the reader of the answer."""
        writer = ResponseWriter(
            request, kind=self.kind, created_at=created_at, limit=limits.retained_bytes
        )
        phase = how["phase"]
        stream = self.stream(
            Answering(writer, toolbox_of(request), self.kind, phase, how["redact"])
        )
        source = source_of(mode, limits, lines=self.lines, **how)
        return TranslatingReader(source, stream, writer, whole=not mode.flag, phase=phase)

    @abstractmethod
    def credential_headers(self, key: str) -> Headers:
        """Return the headers that present a key."""
