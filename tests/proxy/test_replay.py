"""The verb ``replay``: every fixture of ours holds, differences are told, goldens are rewritten."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest
from click.testing import CliRunner
from openai.types.responses import Response as ResponseModel

from proxy import cli
from proxy.fixture import Record, dump_fixture, read_fixture
from proxy.playback import play
from tests import builders
from tests.conftest import ROOT
from tests.e2e import checks
from tests.e2e.client import Frame
from tests.proxy.chat.chunks import read_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FIXTURES = sorted((ROOT / "fixtures").glob("*.jsonl"))
DEMO = ROOT / "proxy" / "demo.jsonl"
SOUND = {"framing-no-space", "framing-comments", "framing-id-and-retry"}
"""Passed on as they came, which every client can read too."""
HIDDEN = ("recall", "call_hidden", "canary", "gAAAA")


def client_side(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Yield what the client of each turn got."""
    turn: list[Record] = []
    for record in [*records, Record("in", "request", {})]:
        if record.kind == "request" and turn:
            yield turn
            turn = []
        elif record.side == "out" and record.kind in {"event", "bytes"}:
            turn.append(record)


@pytest.mark.parametrize("path", [*FIXTURES, DEMO], ids=lambda path: path.stem)
def test_every_fixture_holds(path: Path) -> None:
    fixture = read_fixture(path)
    assert play(fixture) == fixture
    assert path.read_bytes() == dump_fixture(fixture)


@pytest.mark.parametrize("path", [*FIXTURES, DEMO], ids=lambda path: path.stem)
def test_every_fixture_is_right(path: Path) -> None:
    """A golden answer could be wrong: the rules of what clients read judge it once more."""
    fixture = read_fixture(path)
    for turn in client_side(fixture.records):
        data = b"".join(record.data() for record in turn)
        if "own-recall" not in path.stem:
            checks.knows_nothing_of(data, *HIDDEN)
        if data.startswith(b"{"):  # for a client that asked for JSON
            whole = ResponseModel.construct(**json.loads(data))  # as the SDK does
            assert (whole.status, whole.output_text) == ("completed", "hi")
            continue
        if fixture.header.client == "chat":
            read = read_chunks(data)
            assert read.done
            assert len(read.reasons) == 1
            checks.knows_nothing_of(data, "call_h", "canary")
            continue
        frames = [Frame(raw + b"\n\n") for raw in data.split(b"\n\n") if raw]
        if path.stem in SOUND:
            continue
        checks.well_formed(checks.written(frames))


HEAD = '{"fixture":1}\n{"in":"request","body":{"model":"m","input":"x","stream":true}}'


def run(*arguments: str | Path, expect: int) -> str:
    done = CliRunner().invoke(cli.command, ["replay", *(str(argument) for argument in arguments)])
    assert done.exit_code == expect, done.output
    return done.output


def test_a_difference_is_told_and_can_be_taken_over(tmp_path: Path) -> None:
    source = ROOT / "fixtures" / "one-lifecycle-sdk.jsonl"
    changed = tmp_path / "changed.jsonl"
    golden = source.read_bytes()
    changed.write_bytes(golden.replace(b'"total_tokens":265', b'"total_tokens":999'))
    said = run(source, changed, expect=1)
    assert f"ok       {source}" in said
    assert f"differs  {changed}" in said
    assert '"total_tokens":999' in said
    assert '"total_tokens":265' in said
    assert "updated" in run("--update", changed, expect=0)
    assert changed.read_bytes() == golden
    assert run(changed, expect=0) == f"ok       {changed}\n"


def test_times_of_the_golden_answer_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "timed.jsonl"
    path.write_bytes(
        (ROOT / "fixtures" / "own-recall.jsonl")
        .read_bytes()
        .replace(b'{"out":"event",', b'{"out":"event","t":7,')
    )
    run(path, expect=0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the header is missing"),
        ('{"fixture":1}\n{"in":"end"}', "end comes before any request"),
        ('{"fixture":1,"limits":{"teapots":1}}', "limits or budgets"),
        (f'{HEAD}\n{{"in":"failure","error":"rain"}}', "a failure is one of"),
    ],
)
def test_what_can_not_be_played_is_said(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(text)
    assert words in run(path, expect=1)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--port", "1", "x"],
        ["--realtime", "x"],
        ["--as-provider", "x", "y"],
        ["--as-provider", "x", "--update"],
    ],
)
def test_usage(arguments: list[str]) -> None:
    assert "Usage" in run(*arguments, expect=2)


def test_a_missing_file(tmp_path: Path) -> None:
    assert "can't be read" in run(tmp_path / "none.jsonl", expect=1)
    assert "can't be read" in run("--as-provider", tmp_path / "none.jsonl", expect=1)


def test_a_fixture_is_served_as_a_provider() -> None:
    path = ROOT / "fixtures" / "one-lifecycle-sdk.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "proxy.cli", "replay", "--as-provider", str(path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        with httpx.Client(trust_env=False) as client:
            data = client.post(f"{url}/responses", json={}).content
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in {0, 130}
    hop = builders.recall_call("call_hidden_1", {"query": "the canary"})
    assert hop["arguments"].replace('"', r"\"").encode() in data
