"""The bench: its streams are ones that clients accept, its client notices a broken one."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import orjson
import pytest

from bench import (
    client,
    compare,
    count,
    growth,
    native,
    plot,
    replay,
    report,
    requests,
    runs,
    script,
)
from bench import stream as streams
from bench.targets import Bench
from pipeline.request import read_request
from pipeline.sse import Frame, SSEDecoder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.report import Record

needs_compiler = pytest.mark.skipif(native.compiler() is None, reason="no C compiler")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the compiled programs."""
    return tmp_path_factory.mktemp("programs")


def events_of(frames: list[bytes]) -> list[dict[str, object]]:
    sse = SSEDecoder(event_bytes=4 << 20, frames=5000)
    read = [f for f in sse.feed(b"".join(frames)) + sse.finish() if isinstance(f, Frame)]
    assert all(frame.sound for frame in read)
    events = [orjson.loads(frame.data or b"") for frame in read]
    assert [event["type"] for event in events] == [frame.event for frame in read]
    return events


def test_the_measure_of_all_is_what_it_says() -> None:
    frames = streams.frames()
    assert 0.99 * streams.BODY_BYTES < len(b"".join(frames)) <= streams.BODY_BYTES
    events = events_of(frames)
    assert [event["sequence_number"] for event in events] == list(range(streams.EVENTS))
    deltas = "".join(str(event["delta"]) for event in events if "delta" in event)
    assert deltas in repr(events[-1])


def test_code_is_full_of_quotes() -> None:
    events = events_of(streams.code())
    assert len(events) == streams.EVENTS
    deltas = [str(event["delta"]) for event in events if "delta" in event]
    assert 0.3 < sum('"' in delta for delta in deltas) / len(deltas) < 0.4


@pytest.mark.parametrize(
    "frames", [streams.big(1 << 14), streams.code(), *streams.recall(), streams.renumbered()]
)
def test_the_other_turns_end_with_their_terminal(frames: list[bytes]) -> None:
    assert events_of(frames)[-1]["type"] == "response.completed"


# -------------------------------------------------------------------------- provider and client


@needs_compiler
@pytest.mark.parametrize("pace", sorted(script.PACES))
def test_every_answer_is_counted_once(
    pace: str, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paced = script.PACES["paced"]
    quick = script.Pace(paced.blocks, paced.events, interval_us=1)
    monkeypatch.setitem(script.PACES, "paced", quick)
    with ExitStack() as stack:
        bench = Bench(stack, programs, *runs_on())
        port = bench.provider().port
        tally = client.drive(bench.client, port, pace, streams=7, at_once=3)
    assert tally.streams == len(tally.first_s) == 7
    stamped = (streams.EVENTS - 8) * 7 if pace == "paced" else 0
    assert len(tally.latency_s) == stamped


@needs_compiler
def test_the_provider_tells_of_follow_ups(programs: Path) -> None:
    with ExitStack() as stack:
        bench = Bench(stack, programs, *runs_on())
        provider = bench.provider()
        assert runs.provider_stats(provider) == {"elsewhere": 0, "gaps_us": []}
        client.drive(bench.client, provider.port, "fast", streams=2, at_once=1)
        assert runs.provider_stats(provider) == {"elsewhere": 0, "gaps_us": []}


@needs_compiler
def test_what_is_no_answer_is_noticed(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        bench = Bench(stack, programs, *runs_on())
        port = bench.provider().port
        monkeypatch.setitem(script.PACES, "unknown", script.PACES["fast"])
        with pytest.raises(client.LoadError, match=r"no answer: HTTP/1\.1 404"):
            client.drive(bench.client, port, "unknown", streams=1, at_once=1)


def runs_on() -> tuple[int, int]:
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda frames: frames[:-1], "no whole stream"),
        (lambda frames: [*frames[:9], *frames[10:]], "307 events"),
        (lambda frames: [*frames[:9], frames[8], *frames[10:]], "not contiguous"),
        (lambda frames: frames[:0], "no whole stream"),
    ],
)
def test_a_broken_stream_is_noticed(
    spoil: Callable[[list[bytes]], list[bytes]], message: str
) -> None:
    client.check("fast", HEAD + b"".join(streams.frames()))
    with pytest.raises(client.LoadError, match=message):
        client.check("fast", HEAD + b"".join(spoil(streams.frames())))


def test_chunks_of_a_proxy_are_joined() -> None:
    assert client.unchunked(b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n") == b"abc0123456789"


# ------------------------------------------------------------------------------ in this process


def test_a_replay_plays_whole_turns() -> None:
    body = b"".join(streams.frames())
    assert replay.play(body) == replay.play(body, read=7) > 0.9 * len(body)
    first, second = map(b"".join, streams.recall())
    assert replay.play(first, follow_up=second) > len(second)


def test_growth_has_three_sizes_each() -> None:
    assert {len(sizes) for _, sizes, _ in growth._SERIES} == {3}
    for _, (least, *_), make in growth._SERIES:
        make(least)()


def test_prepared_requests_get_their_pairs() -> None:
    text, groups = requests.history(41, 300)
    assert len(groups) == 2
    prepared = requests._prepared(read_request, text, groups)
    assert prepared.count(b'"fc_hidden_') == 2
    assert b"fc_hidden_" not in requests._prepared(read_request, text, [])
    read = requests.next_of(41, 300)
    for _ in range(2):
        assert requests._prepared(read, text, groups) == prepared
        assert read(text).source("input").known_offsets("input").keys() >= {0, 1, 21, 39, 41}


# ---------------------------------------------------------------------------------- its results


def run(number: int, target: str, cpu: float, scenario: str = "fast:32") -> Record:
    place = {"part": "streams", "round": number, "target": target, "scenario": scenario}
    return place | {"streams": 1, "cpu_us_per_stream": cpu, "events_per_s": 1.0}


RECORDS = [
    {"part": "run", "machine": "a machine"},
    *(run(n, "nginx", cpu) for n, cpu in ((1, 1.0), (2, 2.0), (3, 9.0))),
    *(run(n, "nginx-default", cpu) for n, cpu in ((1, 2.0), (2, 2.0), (3, 9.0))),
    *(run(n, "sottovoce", cpu) for n, cpu in ((1, 10.0), (2, 10.0), (3, 9.0))),
    {"part": "footprint", "scenario": "growth", "mib": 9.0},
    {"part": "growth", "scenario": "events", "size": 308, "us": 616.0, "us_per_unit": 2.0},
]


def test_ratios_are_of_one_round() -> None:
    figures = report.Figures(RECORDS)
    assert figures.median("fast:32", "sottovoce", "cpu_us_per_stream") == 10
    assert figures.ratio(("fast:32", "sottovoce"), ("fast:32", "nginx")) == 5
    assert figures.ratio(("fast:32", "sottovoce"), ("fast:32", "baseline")) is None


def test_the_report_holds_figures_to_their_bars() -> None:
    text = report.markdown(RECORDS)
    assert "- machine: a machine\n" in text
    assert "| CPU ÷ nginx as it comes, fast:32 | 5.00 | 7.00 | 3.50 | yes |" in text
    assert "| memory growth, 200 open streams, MiB | 9.0 | 20.0 | 8.0 | yes |" in text
    assert "| `--help` after, s | - | 0.10 | 0.10 | - |" in text
    assert "| sottovoce | 10 | 1 | 5.00 | 5.00 | - |" in text


def test_the_plot_is_well_formed() -> None:
    tree = ET.fromstring(plot.svg(RECORDS))
    assert "fast:32" in "".join(tree.itertext())
    ET.fromstring(plot.svg([]))


def test_results_are_compared_by_ratio(tmp_path: Path) -> None:
    faster = [
        record | {"cpu_us_per_stream": record["cpu_us_per_stream"] / 2}
        if record.get("target") == "sottovoce"
        else record
        for record in RECORDS
    ]
    files = []
    for name, records in (("old", RECORDS), ("new", faster)):
        files.append(tmp_path / name)
        files[-1].write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in records))
    found = list(compare.comparison(*map(compare.load, files)))
    assert found == [
        ("fast:32, CPU a stream, ÷ nginx", 5.0, 2.5),
        ("footprint growth mib", 9.0, 9.0),
        ("growth events 308 us_per_unit", 2.0, 2.0),
    ]


def test_a_page_gets_the_figures_of_a_run() -> None:
    page = "before <!-- figures -->old<!-- end of figures --> after"
    written = report.page(page, RECORDS)
    assert written.startswith("before <!-- figures -->\n- machine: a machine\n")
    assert written.endswith("<!-- end of figures --> after")
    assert "old" not in written
    assert report.page(written, RECORDS) == written
    with pytest.raises(ValueError, match="the page lacks"):
        report.page("nothing", RECORDS)


def test_instructions_are_those_of_one_more_turn() -> None:
    assert count.counted(lambda turns: 1_000 + 7 * turns, (2, 12)) == 7


def test_without_valgrind_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["count"])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="takes valgrind"):
        count.main()
