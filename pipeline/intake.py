"""From the bytes of a turn's answers to its events, within the limits of the turn.

A limit ends a turn in which the hidden tool was declared. In one that is only observed it ends the
accumulation: from there on bytes pass as they come, so that what works without us works with us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from pipeline.companion import Companion
from pipeline.errors import SSEStreamLimitError
from pipeline.outcome import Ending
from pipeline.quota import EVENT as QUOTA
from pipeline.sse import Fragment, Frame, sniff_type

if TYPE_CHECKING:
    from pipeline.accepted import Accepted
    from pipeline.hop import Hop
    from pipeline.options import TurnOptions
    from pipeline.view import ClientView


class Listener(Protocol):
    """Hears what is read: a turn, for as long as it waits for that."""

    def decide(self, hop: Hop, accepted: Accepted) -> None:
        """Take an accumulated event of a hop, in order; the terminal closes it."""

    def flush(self) -> None:
        """Send what is ready for the client."""

    def passed(self, ending: Ending) -> None:
        """Take how an answer ended that only passed."""


_WRITE_EVENTS: Final = 64
"""Events after which bytes go out although more of the same read are to come."""

_BLOCK_BYTES: Final = 1024
"""A read with less than this left is not worth being looked at for many deltas at once."""
_REACH: Final = 4
"""How many times as far as what was last taken a look goes at least."""
_GAP: Final = 64
"""How many bytes more than a frame pass after a second look in vain; then ever four times."""
_DELTA: Final = b".delta"
"""How the line ends that names a delta."""

ENDINGS: Final = {
    "response.completed": Ending.COMPLETED,
    "response.incomplete": Ending.INCOMPLETE,
    "response.failed": Ending.PROVIDER_FAILED,
    "response.done": Ending.COMPLETED,
}
"""The terminals, also as they came where accumulation had ended."""


class Intake:
    """Reads the answers of a turn, hop by hop.

    Args:
        options: What is fixed for the turn.
        view: What the client sees.

    Attributes:
        truncated_by: The limit that ended the accumulation of an observed turn.
        hidden_bytes: Bytes of hidden calls, of the hops that are over.
    """

    def __init__(self, options: TurnOptions, view: ClientView) -> None:
        self.truncated_by: str | None = None
        self.hidden_bytes = 0
        self._options = options
        self._view = view
        self._stream_bytes = 0
        self._retained = 0

    @property
    def hidden_room(self) -> int:
        """How many bytes of hidden calls the next hop may bring."""
        return self._options.limits.hidden_bytes - self.hidden_bytes

    def feed(self, hop: Hop, data: bytes, listener: Listener) -> None:
        """Take bytes of the current hop's answer.

        Args:
            hop: The hop.
            data: The bytes.
            listener: Hears what is in them.

        Raises:
            SottovoceError: The answer is none, or breaks a rule or a limit.
        """
        if hop.refusal is not None:
            if hop.refusal.add(data):
                raise hop.refusal.error()
            return
        room = max(0, self._options.limits.stream_bytes - self._stream_bytes)
        self._stream_bytes += len(data)
        if len(data) <= room or self._view.relaying:
            self._read(hop, data, listener)
            return
        self._read(hop, data[:room], listener)
        if not hop.closed:
            self._exceed(hop, "Responses stream exceeded byte limit", "stream_bytes")
            self._read(hop, data[room:], listener)

    def finish(self, hop: Hop, listener: Listener) -> None:
        """Take the end of the current hop's answer.

        Raises:
            SottovoceError: As ``feed`` does.
        """
        if hop.refusal is not None:
            raise hop.refusal.error()
        self._take(hop, hop.reader.finish(), listener)

    def close(self, hop: Hop) -> None:
        """Count what a hop that is over has brought."""
        self.hidden_bytes += hop.interception.hidden_bytes
        self._retained += hop.state.retained

    def _read(self, hop: Hop, data: bytes, listener: Listener) -> None:
        """Take a read in turns: many deltas at once where there are, else up to the next look.

        A look goes half as far as the one before it, and ``_REACH`` times as far as what came
        between them. So all that is looked at is at most 16 times the read, however little of it is
        taken: where the deltas of two items take turns, or where a limit refuses them.
        """
        at = gap = 0
        reach = _REACH * len(data)
        while at < len(data) and not hop.closed:
            size, end = 0, len(data)
            if end - at >= _BLOCK_BYTES and not self._view.relaying:
                size = self._take_block(hop, data, at, at + reach)
                if not size:
                    end = self._next_look(data, at + gap)
                    gap = 4 * gap + _GAP
                elif size >= _BLOCK_BYTES:
                    gap = 0
            if not size:
                size = end - at
                piece = data[at:end] if size < len(data) else data
                self._take(hop, hop.reader.feed(piece), listener)
                if hop.reader.failure is not None and not hop.closed:
                    raise hop.reader.failure
            at += size
            reach = reach // 2 + _REACH * size

    def _take_block(self, hop: Hop, data: bytes, at: int, end: int) -> int:
        """Take frames that continue a text; return how many bytes they are.

        Args:
            hop: The hop.
            data: The read.
            at: What is next in it.
            end: Where to stop looking.
        """
        run, limits = self._view.run, self._options.limits
        if run is None:
            return 0
        found = run.match(data, at, end)
        if found is None:
            return 0
        block, shown = found
        frames, size = block.frames, len(block.raw)
        if (
            hop.frames + frames > limits.frames
            or hop.state.retained + size > limits.retained_bytes - self._retained
            or not hop.reader.skip(frames, size)
        ):
            return 0
        run.take_block(block, shown)
        hop.frames += frames
        return size

    def _next_look(self, data: bytes, start: int) -> int:
        """Return the end of the frame, from an offset on, behind which a text may go on in many."""
        if self._view.run is None:
            start = _delta_line(data, start)
        end = data.find(b"\n\n", start) if start >= 0 else -1
        return end + 2 if end >= 0 else len(data)

    def _take(self, hop: Hop, frames: list[Frame | Fragment], listener: Listener) -> None:
        view, limits = self._view, self._options.limits
        out, room = view.client.out, limits.retained_bytes - self._retained
        for frame in frames:
            hop.frames += 1
            if hop.frames > limits.frames and self._may_relay:
                self._begin_relay(hop, "frames")
            if view.run is not None and type(frame) is Frame and view.run.take(frame):
                pass
            elif type(frame) is not Frame:
                self._take_other(hop, frame, listener)
            elif view.relaying:
                self._relay_frame(hop, frame, listener)
            else:
                self._accept(hop, frame, listener)
            if hop.closed:
                return
            if hop.state.retained > room and not view.relaying:
                self._exceed(hop, "Responses retained state exceeded byte limit", "retained_bytes")
            if len(out) >= _WRITE_EVENTS:
                listener.flush()

    def _accept(self, hop: Hop, frame: Frame, listener: Listener) -> None:
        try:
            hop.accept(frame, listener.decide, self._view.foreign)
        except SSEStreamLimitError as error:
            self._exceed(hop, error.message, error.limit)

    def _take_other(self, hop: Hop, frame: Frame | Fragment, listener: Listener) -> None:
        """Take what is no event."""
        if isinstance(frame, Fragment):
            self._relay_fragment(hop, frame, listener)
        elif self._view.relaying:
            self._relay_frame(hop, frame, listener)
        elif isinstance(frame, Companion):
            self._view.accompany(frame)

    # --- What only passes in an observed turn ----------------------------------------------

    @property
    def _may_relay(self) -> bool:
        return self._options.observed and self._view.client.relayable

    def _exceed(self, hop: Hop, message: str, limit: str) -> None:
        if not self._may_relay:
            raise SSEStreamLimitError(message, limit=limit)
        self._begin_relay(hop, limit)

    def _begin_relay(self, hop: Hop, limit: str | None) -> None:
        if not self._view.relaying:
            self.truncated_by = limit
            hop.state.truncated = limit is not None
            self._view.begin_relay(hop)

    def _relay_fragment(self, hop: Hop, fragment: Fragment, listener: Listener) -> None:
        """Pass a piece of what is not accumulated: it is too large, or no response at all."""
        self._begin_relay(hop, hop.reader.relayed_by)
        self._view.client.relay(fragment.raw)
        if fragment.last:
            if fragment.event in ENDINGS:
                listener.passed(ENDINGS[fragment.event])
            elif not self._options.mode.flag:
                listener.passed(Ending.COMPLETED)

    def _relay_frame(self, hop: Hop, frame: Frame, listener: Listener) -> None:
        """Pass a frame after accumulation has ended; its terminal still ends the turn."""
        kind = frame.event or sniff_type(frame.data or b"")
        if kind == QUOTA:  # never as it came
            self._accept(hop, frame, listener)
            return
        self._view.client.relay(frame.raw)
        terminal = hop.late_terminal(frame)
        if terminal is not None:
            listener.passed(ENDINGS[terminal])


def _delta_line(data: bytes, at: int) -> int:
    """Return where the next line ends that names a delta; -1 where there is none.

    From line end to line end: a single byte is found ten times as fast as a text.
    """
    end = data.find(b"\n", at)
    while end >= 0 and not data.endswith(_DELTA, at, end):
        at = end + 1
        end = data.find(b"\n", at)
    return end
