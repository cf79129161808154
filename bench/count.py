"""``python -m bench.count``: instructions of fixed work, counted by callgrind.

Counted are replays of two turns in one process, the second full of quotes, and with ``--server`` a
stream through the whole proxy as well. Each is counted twice, with few turns and with more, and
subtracted, so that starting Python and importing is not in the figure; the hash seed is fixed. What
is left of the replay moves by less than one percent from run to run, whatever else the machine
does; that of the server by a few, as its threads meet differently.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import client, stream
from bench.targets import Bench, answers, free_port, sottovoce

if TYPE_CHECKING:
    from collections.abc import Callable

_REPLAYS: Final = (2, 12)
_STREAMS: Final = (16, 80)
_AT_ONCE: Final = 8
_START_SECONDS: Final = 300
_TOTAL: Final = re.compile(r"Collected : (\d+)")


def counted(work: Callable[[int], int], sizes: tuple[int, int]) -> int:
    """Return the instructions of one more turn."""
    few, more = map(work, sizes)
    return (more - few) // (sizes[1] - sizes[0])


class Counter:
    """Runs commands under callgrind.

    Args:
        valgrind: The path of valgrind.
        folder: Where programs stay, and what callgrind writes.
    """

    def __init__(self, valgrind: str, folder: Path) -> None:
        self._command = (valgrind, "--tool=callgrind", f"--callgrind-out-file={folder}/callgrind")
        self._folder = folder

    def replay(self, times: int, *which: str) -> int:
        """Return the instructions of a process that replays a stream so many times."""
        process = self._start([sys.executable, "-m", "bench.replay", str(times), *which])
        return _total(process.communicate()[1])

    def server(self, streams: int) -> int:
        """Return the instructions of a proxy that passes so many streams, start and end included.

        Raises:
            SystemExit: It does not start.
        """
        with ExitStack() as stack:
            cores = sorted(os.sched_getaffinity(0))
            bench = Bench(stack, self._folder, cores[0], cores[-1])
            provider, port = bench.provider(), free_port()
            process = self._start(sottovoce(port, provider, bench.folder()))
            deadline = time.monotonic() + _START_SECONDS
            while not answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    raise SystemExit(f"the proxy did not start:\n{process.communicate()[1]}")
                time.sleep(0.1)
            client.drive(bench.client, port, "fast", streams, _AT_ONCE)
            process.send_signal(signal.SIGTERM)
            return _total(process.communicate()[1])

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        env = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            [*self._command, *command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


def _total(said: str) -> int:
    found = _TOTAL.search(said)
    if found is None:
        raise SystemExit(f"callgrind said nothing that can be read:\n{said}")
    return int(found[1])


def main() -> None:
    """Count, and say what a stream and an event cost."""
    parser = argparse.ArgumentParser(prog="python -m bench.count", description=__doc__)
    parser.add_argument("--server", action="store_true", help="also count the whole proxy")
    parser.add_argument("--out", type=Path, help="also write records for bench.compare")
    options = parser.parse_args()
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise SystemExit("counting instructions takes valgrind: apt-get install valgrind")
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="sottovoce-bench-") as folder:
        counter = Counter(valgrind, Path(folder))
        works: list[tuple[str, Callable[[int], int], tuple[int, int]]] = [
            ("replay", counter.replay, _REPLAYS),
            ("replay, quoted", lambda times: counter.replay(times, "code"), _REPLAYS),
        ]
        works += [("server", counter.server, _STREAMS)] if options.server else []
        for name, work, sizes in works:
            found = counted(work, sizes)
            sys.stdout.write(
                f"{name}: {found:,} instructions a stream of {stream.EVENTS} events, "
                f"{found / stream.EVENTS:,.0f} an event\n"
            )
            records.append({"part": "count", "scenario": name, "instructions": found})
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("".join(json.dumps(each) + "\n" for each in records))


if __name__ == "__main__":
    main()
