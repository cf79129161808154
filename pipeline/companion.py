"""What an answer of another dialect said, beside the events that it was read as."""

from __future__ import annotations

from pipeline.sse import Frame


class Companion(Frame):
    """What an answer of another dialect said, beside the events that it was read as.

    For a client that speaks that dialect itself. It is no event: nothing is accumulated of it. Its
    ``raw`` are the bytes as they came; ``said`` is what the reader and the client's side know.
    """

    said: object

    @classmethod
    def of(cls, raw: bytes, said: object) -> Companion:
        """Return the companion of some bytes."""
        companion = cls(raw, None, None, sound=False)
        companion.said = said
        return companion
