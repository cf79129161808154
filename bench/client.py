"""One run of the load client: many streams at once against one address, counted and checked."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from bench import script

if TYPE_CHECKING:
    from collections.abc import Callable

_TOO_LONG: Final = 300
"""Seconds; a run takes a few."""
_LOOK_SECONDS: Final = 0.1
_SHORT: Final = 0.8
"""A proxy may write other chunks than the provider did; what is shorter than this was cut."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What one run saw.

    Attributes:
        streams: How many answers came.
        wall_s: How long all of them took.
        cpu_s: What the client itself took of its core.
        first_s: From a request's last byte to the first of the answer's body, one a stream.
        latency_s: From the provider's write of an event to its arrival (paced streams only).
        reply: The first answer, as it came.
    """

    streams: int
    wall_s: float
    cpu_s: float
    first_s: list[float]
    latency_s: list[float]
    reply: bytes


class LoadError(Exception):
    """The target did not answer with the whole stream."""


def drive(  # what one run is
    program: Path,
    port: int,
    pace: str,
    streams: int,
    at_once: int,
    *,
    watch: Callable[[], None] | None = None,
) -> Tally:
    """Run ``streams`` streams, ``at_once`` of them at a time, against a port on loopback.

    Args:
        program: The compiled client.
        port: The target's.
        pace: What is asked for.
        streams: How many in all.
        at_once: How many at a time.
        watch: Called ten times a second meanwhile.

    Raises:
        LoadError: The target refused, cut, or changed a stream, or hangs.
    """
    with tempfile.TemporaryDirectory(prefix="sottovoce-bench-") as folder:
        asked, reply = Path(folder, "request"), Path(folder, "reply")
        asked.write_bytes(script.request(pace, f"127.0.0.1:{port}"))
        least = int(sum(map(len, script.PACES[pace].blocks())) * _SHORT)
        numbers = (port, asked, streams, at_once, least, reply)
        out = _output([str(program), *map(str, numbers)], watch)
        body = reply.read_bytes()
    check(pace, body)
    fields = {name: values for name, *values in map(str.split, out.splitlines())}
    seconds = {name: [int(value) / 1e9 for value in values] for name, values in fields.items()}
    (wall,), (cpu,) = seconds["wall"], seconds["cpu"]
    return Tally(streams, wall, cpu, seconds["first"], seconds["latency"], body)


def _output(command: list[str], watch: Callable[[], None] | None) -> str:
    deadline = time.monotonic() + _TOO_LONG
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while True:
            try:
                out, complaint = process.communicate(timeout=_LOOK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    process.kill()
                    raise LoadError("the target hangs") from None
                if watch is not None:
                    watch()
    if process.returncode:
        raise LoadError(complaint.strip())
    return out


_NUMBER: Final = re.compile(rb'"sequence_number":(\d+)')


def check(pace: str, reply: bytes) -> None:
    """Look at one answer closely: all events, contiguous numbers, the terminal once and last.

    Raises:
        LoadError: It is not what it should be.
    """
    head, _, body = reply.partition(b"\r\n\r\n")
    expected = script.PACES[pace]
    if b"transfer-encoding: chunked" in head.lower():
        body = unchunked(body)
    if not expected.stream:
        status = orjson.loads(body).get("status")
        if status != "completed":
            raise LoadError(f"the answer's status is {status}")
        return
    events = [frame for frame in body.split(b"\n\n") if frame.startswith(b"event: ")]
    if not events or not events[-1].startswith(b"event: response.completed\n"):
        raise LoadError(f"no whole stream: {reply[:300]!r}")
    if len(events) != expected.events and expected.proxied:
        raise LoadError(f"{len(events)} events instead of {expected.events}")
    numbers = [int(found[-1]) for found in map(_NUMBER.findall, events)]
    if numbers != list(range(len(events))):
        raise LoadError("the events' numbers are not contiguous")


def unchunked(body: bytes) -> bytes:
    """Return a body without its HTTP chunks."""
    parts: list[bytes] = []
    rest = body
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        if not length:
            return b"".join(parts)
        parts.append(rest[:length])
        rest = rest[length + 2 :]
