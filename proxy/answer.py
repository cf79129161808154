"""An upstream's answer whose beginning may have been read already."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final

from pipeline.errors import SottovoceError, UpstreamError
from proxy import headers as h
from proxy.encodings import CodingError, Decoder, codings_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from proxy.headers import Headers
    from proxy.upstream import UpstreamResponse

ERROR_SECONDS: Final = 10.0
"""How long the body of an error may take: its head has told the essence."""
BURST_BYTES: Final = 16 * 1024
"""From this size on a piece is a burst."""
LEAD_BYTES: Final = 4 * 1024
"""How much of a burst may go ahead of the rest."""
_DECODED: Final = 16
"""How much longer than its limit an error may be without its encoding."""


class Answer:
    """What an upstream answered, decoded. What was read ahead of the turn is read again by it.

    Args:
        response: The upstream's, at its head.

    Attributes:
        status: HTTP status.
        headers: Its headers, but for an encoding that has been undone.
        content_type: The value of that header, None where it is absent.
    """

    def __init__(self, response: UpstreamResponse) -> None:
        self.status = response.status
        self.headers: Headers = response.headers
        self.content_type = h.text(response.headers, b"content-type")
        self._response = response
        self._taken: deque[bytes] = deque()
        self._broken: SottovoceError | None = None
        self._whole = False

    def __repr__(self) -> str:
        return f"<Answer {self.status} with {len(self._taken)} pieces read ahead>"

    @property
    def successful(self) -> bool:
        """Whether it is a 2xx."""
        return 200 <= self.status < 300

    def decode(self, *, limit: int) -> None:
        """Undo the content encoding of what is read from now on.

        Raises:
            UpstreamError: It is an encoding that can't be undone.
        """
        if h.find(self.headers, b"content-encoding") is None:
            return
        self._response.decode(limit=limit)
        self.headers = [one for one in self.headers if one[0].lower() != b"content-encoding"]

    def read(self) -> Awaitable[bytes | None]:
        """Return the next piece of the body, None at its end; cancel-safe.

        Raises:
            SottovoceError: As ``UpstreamResponse.read``.
        """
        ahead = self._taken or self._whole or self._broken is not None
        return self._read_again() if ahead else self._response.read()

    async def _read_again(self) -> bytes | None:
        if self._taken:
            return self._taken.popleft()
        if self._broken is not None:
            raise self._broken
        return None

    def lead(self, piece: bytes) -> bytes:
        """Return the first events of a piece that was read; the next ``read`` returns the rest.

        A client of an answer that comes in one burst needn't wait for its first event until its
        last one was looked at. What is no burst, or has no event so early, is returned as it is.
        """
        end = piece.rfind(b"\n\n", 0, LEAD_BYTES) + 2
        if end < 2 or len(piece) < BURST_BYTES:
            return piece
        self._taken.appendleft(piece[end:])
        return piece[:end]

    async def read_ahead(self) -> bytes | None:
        """Return the next piece that was not read yet, and keep it for ``read``; cancel-safe.

        Raises:
            SottovoceError: As ``UpstreamResponse.read``; ``read`` raises it again.
        """
        try:
            piece = await self._response.read()
        except SottovoceError as error:
            self._broken = error
            raise
        if piece is None:
            self._whole = True
        else:
            self._taken.append(piece)
        return piece

    async def cleanse(self, cleanse: Callable[[bytes], bytes], *, limit: int) -> None:
        """Take secrets out of a body that is an error's, and leave it as it came without one.

        What comes after ``limit`` bytes or after ``ERROR_SECONDS`` is not looked at; of a body
        with a content encoding nothing is, unless it ends before.

        Args:
            cleanse: Returns bytes without secrets, the same object where there was none.
            limit: How much is read ahead.
        """
        await self._read_up_to(limit)
        codings = codings_of(self.headers)
        if codings and not self._whole:
            return
        came = b"".join(self._taken)
        try:
            decoder = Decoder(codings, limit=_DECODED * limit)
            plain = b"".join(decoder.feed(came)) if codings else came
        except CodingError:
            return
        told = cleanse(plain)
        if told is not plain:
            self._taken = deque([told])
            dropped = {b"content-length", b"content-encoding"}
            self.headers = [one for one in self.headers if one[0].lower() not in dropped]

    async def read_whole(self, limit: int, cleanse: Callable[[bytes], bytes]) -> bytes:
        """Read a body that is an error's to its end, and keep it; close the response.

        What comes after ``limit`` bytes or after ``ERROR_SECONDS`` is cut off, and so is what an
        upstream that breaks off doesn't send: an error is told by what there is of it.

        Args:
            limit: The most bytes.
            cleanse: Takes secrets out of it.
        """
        await self._read_up_to(limit)
        self._broken = None
        body = cleanse(b"".join(self._taken))[:limit]
        self._taken = deque([body] if body else [])
        await self._response.close()
        self._whole = True
        return body

    async def read_all(self, limit: int) -> bytes:
        """Return a body to its end.

        Raises:
            SottovoceError: As ``UpstreamResponse.read``; an UpstreamError where it is longer.
        """
        parts: list[bytes] = []
        size = 0
        while (piece := await self.read()) is not None:
            parts.append(piece)
            size += len(piece)
            if size > limit:
                raise UpstreamError(f"the upstream's answer exceeded {limit} byte limit")
        return b"".join(parts)

    async def _read_up_to(self, limit: int) -> None:
        size = 0
        with contextlib.suppress(TimeoutError, SottovoceError):
            async with asyncio.timeout(ERROR_SECONDS):
                while size < limit and (piece := await self.read_ahead()) is not None:
                    size += len(piece)

    def replace(self, body: bytes) -> None:
        """Put a JSON body in the place of one that was read as a whole."""
        self._taken = deque([body])
        dropped = {b"content-type", b"content-length", b"content-encoding"}
        kept = [one for one in self.headers if one[0].lower() not in dropped]
        self.headers = [*kept, (b"content-type", b"application/json")]
        self.content_type = "application/json"

    def drain(self, seconds: float) -> None:
        """Stop reading, but let the body end in the background for so many seconds."""
        self._response.drain(seconds)

    async def close(self) -> None:
        """End it; idempotent, and never waits for the network."""
        await self._response.close()
