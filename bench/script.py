"""What the provider answers to which request, as the one file that it is started with.

Every pace is an answer of its own, chosen by the model that a request names: ``fast`` is the text
turn in one write, ``each`` makes one write of every event, ``paced`` sends 50 events a second, each
with the time of its writing in it. In all of them an event is one HTTP chunk, as real providers
send it. The first answer is the continuation: it goes to any request that brings the output of a
call.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench import stream

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL_US: Final = 20_000
"""Microseconds between two events of a paced stream."""
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"x-request-id: bench\r\ntransfer-encoding: chunked\r\n\r\n"
)
_JSON_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: bench\r\n"
    b"content-length: %d\r\n\r\n"
)
END: Final = b"0\r\n\r\n"
_FOLLOW_UP: Final = b"function_call_output"


@dataclass(frozen=True, slots=True)
class Pace:
    """One kind of answer.

    Attributes:
        blocks: Makes what is written, head included; each block is one write.
        interval_us: Between two blocks; 0: none.
        events: Events of the answer that a client of the proxy gets; 1 for a body of JSON.
        stream: The stream flag of its requests.
        proxied: Whether it means something to a proxy that only passes bytes.
    """

    blocks: Callable[[], list[bytes]]
    events: int
    interval_us: int = 0
    stream: bool = True
    proxied: bool = True


def chunks(frames: list[bytes]) -> list[bytes]:
    """Return the writes of an answer: its head, one HTTP chunk a frame, the end."""
    return [_HEAD, *(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames), END]


def whole(frames: list[bytes]) -> list[bytes]:
    """Return an answer as one write."""
    return [b"".join(chunks(frames))]


def _json() -> list[bytes]:
    body = stream.answer()
    return [_JSON_HEAD % len(body) + body]


PACES: Final = {
    "fast": Pace(lambda: whole(stream.frames()), stream.EVENTS),
    "each": Pace(lambda: chunks(stream.frames()), stream.EVENTS),
    "paced": Pace(lambda: chunks(stream.frames()), stream.EVENTS, interval_us=INTERVAL_US),
    "json": Pace(_json, 1, stream=False),
    "big": Pace(lambda: whole(stream.big()), len(stream.big())),
    "code": Pace(lambda: whole(stream.code()), stream.EVENTS),
    "recall": Pace(lambda: whole(stream.recall()[0]), stream.EVENTS + 5, proxied=False),
    "renumbered": Pace(lambda: whole(stream.renumbered()), stream.EVENTS, proxied=False),
}


def model(pace: str) -> str:
    """Return the model that a request for this pace names."""
    return f"bench-{pace}"


def request(pace: str, authority: str) -> bytes:
    """Return the bytes of a request for this pace to ``/v1/responses`` at an authority."""
    return post(stream.request_body(model(pace), stream=PACES[pace].stream), authority)


def post(body: bytes, authority: str) -> bytes:
    """Return the bytes of a request with this body."""
    head = (
        f"POST /v1/responses HTTP/1.1\r\nhost: {authority}\r\n"
        "authorization: Bearer bench\r\ncontent-type: application/json\r\n"
        f"accept: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def script() -> bytes:
    """Return all answers in the form that the provider reads."""
    follow_up = _answer(_FOLLOW_UP, 0, whole(stream.recall()[1]))
    return follow_up + b"".join(
        _answer(f'"{model(name)}"'.encode(), pace.interval_us, pace.blocks())
        for name, pace in PACES.items()
    )


def _answer(key: bytes, interval_us: int, blocks: list[bytes]) -> bytes:
    head = struct.pack("<I", len(key)) + key + struct.pack("<II", interval_us, len(blocks))
    return head + b"".join(struct.pack("<I", len(block)) + block for block in blocks)
