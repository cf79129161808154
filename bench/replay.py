"""A turn replayed in this process: everything but the sockets, the same work every time.

``python -m bench.replay TIMES`` replays the measure of all streams so many times and says how much
came out, ``python -m bench.replay TIMES code`` one full of quotes; under callgrind this is what
``make bench-count`` counts.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from bench import stream
from pipeline import commands, events
from pipeline.lifecycle import Dialect
from pipeline.limits import Budgets, Limits
from pipeline.options import TurnOptions
from pipeline.reader import StreamMode
from pipeline.request import HiddenTool, declare, read_request
from pipeline.turn import Turn
from recall import tool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

READ_BYTES: Final = 16_384
"""How much an upstream's socket brings at once, where it sends as fast as it can."""
_ROOMY: Final = Limits(
    stream_bytes=1 << 30,
    retained_bytes=1 << 30,
    deferred_bytes=1 << 30,
    hidden_bytes=1 << 30,
    event_bytes=1 << 28,
    frames=1 << 30,
    items=65_535,
    error_bytes=1 << 16,
)
"""So wide that cost is seen to grow where the proxy would have ended the turn."""
_BUDGETS: Final = Budgets(
    rounds=10,
    executions=24,
    result_bytes=1 << 19,
    extra_tokens=128_000,
    stalled_rounds=2,
    seconds=300.0,
)
_RECALL: Final = HiddenTool(tool.NAME, tool.DECLARATION)
_ROUNDS: Final = 3


def play(body: bytes, *, follow_up: bytes = b"", read: int = READ_BYTES) -> int:
    """Play one turn with the tool declared; return how many bytes the client got.

    Args:
        body: The stream of its first hop.
        follow_up: That of a continuation.
        read: How many bytes come at once.
    """
    declared = declare(read_request(stream.request_body()), _RECALL)
    turn = Turn(declared.request, _options(withhold=declared.include_added))
    pending: deque[events.TurnEvent] = deque()
    bodies, sent = [follow_up, body], 0
    asked = turn.start()
    while asked or pending:
        for command in asked or turn.receive(pending.popleft()):
            match command:
                case commands.OpenUpstream():
                    pending += _answer(bodies.pop(), read)
                case commands.CloseUpstream():
                    pending = deque(e for e in pending if isinstance(e, events.ToolFinished))
                case commands.RunTool(call_id):
                    pending.append(events.ToolFinished(call_id, "nothing found", 0.0))
                case commands.Send(data):
                    sent += len(data)
                case _:
                    pass
        asked = []
    if turn.outcome is None or turn.fault is not None:
        raise RuntimeError(f"the replay did not end as it should: {turn!r}") from turn.fault
    return sent


def _answer(body: bytes, read: int) -> list[events.TurnEvent]:
    pieces = [body[at : at + read] for at in range(0, len(body), read)]
    return [
        events.UpstreamOpened(200, "text/event-stream", 0.0),
        *(events.UpstreamChunk(piece, 0.0) for piece in pieces),
        events.UpstreamEnded(0.0),
    ]


def _options(*, withhold: bool) -> TurnOptions:
    return TurnOptions(
        limits=_ROOMY,
        budgets=_BUDGETS,
        dialect=Dialect.PUBLIC,
        mode=StreamMode.SSE,
        streamed=True,
        tools=(_RECALL,),
        withhold_ciphertext=withhold,
        hold_text=False,
        report="sum",
        id_key=b"a key of the bench, 32 bytes long",
        turn_id="turn_bench",
        created_at=1_790_000_000,
        redact=str,
    )


def seconds(works: Sequence[Callable[[], object]], least: float = 0.05) -> list[float]:
    """Return what each of some works takes of the CPU, once: the best of rounds that take turns.

    The least of several is what the work takes; the rest is what other processes do to caches.

    Args:
        works: What is measured, in its order.
        least: How long one measurement takes at least, in seconds.
    """
    times = [_times(work, least) for work in works]
    best = [float("inf")] * len(works)
    for _ in range(_ROUNDS):
        for number, (work, count) in enumerate(zip(works, times, strict=True)):
            gc.collect()
            started = time.process_time()
            for _ in range(count):
                work()
            best[number] = min(best[number], (time.process_time() - started) / count)
    return best


def _times(work: Callable[[], object], least: float) -> int:
    started = time.process_time()
    work()  # also warms up
    once = time.process_time() - started
    return max(1, int(least / max(once, 1e-6)))


def ratio(one: Callable[[], object], other: Callable[[], object]) -> float:
    """Return how many times the other work one work takes: the median of rounds by turns."""
    found = []
    for _ in range(3):
        took = seconds([one, other])
        found.append(took[0] / took[1])
    return statistics.median(found)


def main() -> None:
    """Replay as often as the command line says."""
    body = b"".join(stream.code() if sys.argv[2:] == ["code"] else stream.frames())
    sys.stdout.write(f"{sum(play(body) for _ in range(int(sys.argv[1])))} bytes\n")


if __name__ == "__main__":
    main()
