"""A reader around another one: for what is read differently once it was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.errors import SottovoceError
    from pipeline.reader import Reader
    from pipeline.sse import Fragment, Frame


class ReaderAround:
    """A reader that leaves the reading to another one; a ``pipeline.reader.Reader``.

    What a subclass changes of the frames, it changes in ``told``.

    Args:
        reader: The other one.
    """

    def __init__(self, reader: Reader) -> None:
        self.phase = reader.phase
        self._reader = reader

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._reader!r}>"

    @property
    def relayed_by(self) -> str | None:
        """The limit for which it returns fragments; None where there is none."""
        return self._reader.relayed_by

    @property
    def failure(self) -> SottovoceError | None:
        """What ended the reading, after the frames in front of it."""
        return self._reader.failure

    def head(self, content_type: str | None) -> None:
        """Take the content type of the head, None where the header is absent."""
        self._reader.head(content_type)

    def feed(self, data: bytes) -> list[Frame | Fragment]:
        """Return the frames that these bytes complete."""
        return self.told(self._reader.feed(data))

    def skip(self, frames: int, size: int, /) -> bool:
        """Count frames that were read past it; see ``Reader``."""
        return self._reader.skip(frames, size)

    def finish(self) -> list[Frame | Fragment]:
        """Return what the end of the body completes."""
        return self.told(self._reader.finish())

    def told(self, frames: list[Frame | Fragment]) -> list[Frame | Fragment]:
        """Return what is read for frames of the other one: the same, unless a subclass knows."""
        return frames
