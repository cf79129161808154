"""The command started with a stream closed, full, or left by its reader."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.proxy.commands import TINY, environment, eventually, free_port, run

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs a POSIX shell and /dev/full")

RECORDING = next(iter(sorted((ROOT / "fixtures").rglob("*.jsonl"))))
PRINTING = (
    ("--help",),
    ("--version",),
    ("serve", "--help"),
    ("demo",),
    ("config", "show"),
    ("config", "show", "--json"),
    ("config", "path"),
    ("config", "check"),
    ("config", "init", "--print"),
    ("config", "init"),
    ("completion", "bash"),
    ("validate", str(RECORDING)),
    ("validate", "--json", str(RECORDING)),
    ("replay", str(RECORDING)),
    ("recall", "add", "a fact"),
    ("recall", "list", "--json"),
    ("recall", "search", "--json", "fact"),
)
NAMES = [" ".join(each).replace(str(RECORDING), "FILE") for each in PRINTING]


def shell(folder: Path, arguments: tuple[str, ...], redirection: str) -> tuple[int, str, str]:
    """Run a verb with its streams redirected as a shell does it."""
    done = subprocess.run(
        [
            "sh",
            "-c",
            f'exec "$@" {redirection}',
            "sh",
            sys.executable,
            "-m",
            "proxy.cli",
            *arguments,
        ],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    assert "defect" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", PRINTING, ids=NAMES)
def test_a_closed_output_is_told(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, _, said = shell(tmp_path, arguments, ">&-")
    assert code == 1
    assert said.splitlines()[-2:] == [
        "error: cannot write output: standard output is closed",
        "hint: leave standard output open, or send it to /dev/null",
    ]


@pytest.mark.parametrize("arguments", PRINTING, ids=NAMES)
def test_a_full_output_is_told(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, _, said = shell(tmp_path, arguments, ">/dev/full")
    assert code == 1
    assert said.splitlines()[-2:] == [
        "error: cannot write output: No space left on device",
        "hint: free some space there, or write to another place",
    ]


@pytest.mark.parametrize("arguments", PRINTING, ids=NAMES)
def test_a_reader_that_left_is_not_told(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "proxy.cli", *arguments],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(60) == 1
    assert "error" not in said
    assert "Exception ignored" not in said


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_what_nobody_hears_changes_nothing(tmp_path: Path, redirection: str) -> None:
    code, out, _ = run(tmp_path, "config", "path")
    assert shell(tmp_path, ("config", "path"), redirection) == (code, out, "")
    assert shell(tmp_path, ("config", "show", "--config", "none"), redirection)[0] == 1
    assert shell(tmp_path, ("serv",), redirection)[0] == 2
    assert shell(tmp_path, ("config", "path"), f">&- {redirection}")[0] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", "-"),
        ("recall", "add", "-"),
        ("ask", "--model", "m", "-"),
        ("chat", "--model", "m"),
    ],
    ids=" ".join,
)
def test_a_closed_input_is_told(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, out, said = shell(tmp_path, arguments, "<&-")
    assert (code, out) == (1, "")
    error, hint = said.splitlines()[-2:]
    assert error == "error: standard input can't be read: it is closed"
    assert hint.startswith("hint: pipe something into it")


def test_a_closed_stream_is_not_where_the_memory_lands(tmp_path: Path) -> None:
    assert shell(tmp_path, ("recall", "add", "a fact"), "<&- >&- 2>&-")[0] == 1
    code, out, _ = shell(tmp_path, ("recall", "list", "--json"), "<&-")
    assert code == 0
    assert [each["text"] for each in json.loads(out)["entries"]] == ["a fact"]


def test_input_that_is_no_text_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "proxy.cli", "recall", "add", "-"],
        cwd=tmp_path,
        env=environment(tmp_path),
        input=b"half \xff a text",
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "half \ufffd a text" in run(tmp_path, "recall", "list")[1]


def test_input_without_an_end_is_refused(tmp_path: Path) -> None:
    code, _, said = shell(tmp_path, ("recall", "add", "-"), "</dev/zero")
    assert code == 1
    assert said.startswith("error: standard input is longer than 16777216 bytes\nhint: ")


@pytest.mark.parametrize("redirection", ["<&- >&- 2>&-", ">/dev/full 2>/dev/full"])
def test_serving_needs_none_of_them(tmp_path: Path, redirection: str) -> None:
    port = free_port()
    arguments = ("serve", "--port", str(port))
    with subprocess.Popen(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", TINY, *arguments],
        cwd=tmp_path,
        env=environment(tmp_path, {"SOTTOVOCE_SERVER__DRAIN_NOTICE_SECONDS": "0"}),
    ) as process:
        eventually(lambda: _answers(port))
        process.terminate()
        assert process.wait(30) == 0


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            return connection.recv(12) == b"HTTP/1.1 200"
    except OSError:
        return False
