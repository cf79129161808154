"""Every verb with files, folders and addresses that can't be what it wants."""

from __future__ import annotations

import shutil
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proxy import cli
from recall.store import Store
from recall.trouble import DAMAGED
from tests.conftest import ROOT
from tests.proxy.commands import run

FOLDER = "it is a folder: name a file in it"
LONG = "a" * 300
SHORTER = "give it a shorter name"
ELSEWHERE = "--state-dir names another place"
MEMORY = (("search", "fact"), ("list",), ("show", "m1"), ("add", "more"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").write_text("")
    (tmp_path / "latin.toml").write_bytes(b"a = '\xff'")
    (tmp_path / "deep.jsonl").write_text('{"type":' + "[" * 100_000)
    (tmp_path / "circle").symlink_to("circle")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        (
            "validate none",
            "none can't be read: No such file or directory",
            "check the name, and that its folder is there",
        ),
        ("validate folder", "folder can't be read: Is a directory", FOLDER),
        ("validate circle", "circle can't be read: Too many levels of symbolic links", None),
        (f"validate {LONG}", f"{LONG} can't be read: File name too long", SHORTER),
        ("validate empty", "empty is empty", None),
        ("validate deep.jsonl", "deep.jsonl:1: no event", None),
        ("validate http://127.0.0.1:1/x", None, None),
        ("replay none", "none can't be read: No such file or directory", None),
        ("replay folder", "folder can't be read: Is a directory", FOLDER),
        ("replay file", None, None),
        ("replay deep.jsonl", None, None),
        ("replay --as-provider none", "none can't be read: No such file or directory", None),
        ("config show --config folder", "folder: can't be read: Is a directory", FOLDER),
        ("config check --config folder", "folder: can't be read: Is a directory", FOLDER),
        ("config path --config folder", "folder is a folder", None),
        (f"config path --config {LONG}", f"{LONG} can't be used: File name too long", SHORTER),
        ("config show --config latin.toml", "latin.toml: is not UTF-8 text", None),
        ("config init --config folder", "folder is a folder", None),
        ("config init --config folder --force", "folder is a folder", None),
        ("config init --config /dev/full --force", "/dev/full is no plain file", None),
        ("config init --config file/x", "file/x can't be written: File exists", None),
        (f"config init --config {LONG}", f"{LONG} can't be used: File name too long", SHORTER),
        ("serve --config folder", "folder: can't be read: Is a directory", FOLDER),
        ("serve --port 0 --state-dir file/x", None, ELSEWHERE),
        (f"serve --port 0 --state-dir {LONG}", None, ELSEWHERE),
        ("recall list --state-dir file/x", None, ELSEWHERE),
        (f"recall list --state-dir {LONG}", None, ELSEWHERE),
        ("ask --model m x --config folder", "folder: can't be read: Is a directory", FOLDER),
        ("chat --model m --config folder", "folder: can't be read: Is a directory", FOLDER),
    ],
)
def test_a_file_that_can_not_be_used(
    folder: Path, line: str, error: str | None, hint: str | None
) -> None:
    code, out, said = run(folder, *line.split())
    assert (code, out) == (1, "")
    first, last = said.splitlines()
    assert first.startswith("error: ")
    assert last.startswith("hint: ")
    assert "defect" not in last
    if error is not None:
        assert first == f"error: {error}"
    if hint is not None:
        assert last == f"hint: {hint}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", ""),
        ("replay", ""),
        ("replay", "--as-provider", ""),
        ("config", "show", "--config", ""),
        ("config", "init", "--config", ""),
        ("serve", "--state-dir", ""),
        ("recall", "list", "--state-dir", ""),
        ("recall", "list", "--state-dir", "file"),
        ("recall", "list", "--offset", "99999999999999999999"),
        ("serve", "--port", "65536"),
        ("serve", "--port", "-1"),
        ("replay", "--as-provider", "file", "--port", "65536"),
    ],
    ids=" ".join,
)
def test_what_names_nothing_is_usage(folder: Path, arguments: tuple[str, ...]) -> None:
    code, out, said = run(folder, *arguments)
    assert (code, out) == (2, "")
    assert said.startswith("error: ")
    assert "\nhint: `sottovoce" in said


@pytest.mark.parametrize("arguments", MEMORY, ids=" ".join)
def test_a_state_directory_that_is_a_file(folder: Path, arguments: tuple[str, ...]) -> None:
    more = {"SOTTOVOCE_SERVER__STATE_DIR": str(folder / "file")}
    code, out, said = run(folder, "recall", *arguments, more=more)
    assert (code, out) == (1, "")
    assert said.startswith(f"error: {folder}/file/memory.db can't be opened: ")
    assert said.endswith(f"hint: {ELSEWHERE}\n")


@pytest.mark.parametrize("arguments", MEMORY, ids=" ".join)
@pytest.mark.parametrize("kind", ["garbage", "a folder"])
def test_a_memory_that_is_none(folder: Path, arguments: tuple[str, ...], kind: str) -> None:
    memory = folder / "folder" / "memory.db"
    if kind == "garbage":
        memory.write_bytes(b"no database, but long enough to be looked at " * 99)
    else:
        memory.mkdir()
    state = str(folder / "folder")
    code, out, said = run(folder, "recall", *arguments, "--state-dir", state)
    assert (code, out) == (1, "")
    error, hint = said.splitlines()
    reason = {"garbage": "file is not a database", "a folder": "Is a directory"}[kind]
    assert error == f"error: the memory file {memory} can't be used: {reason}"
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("arguments", MEMORY, ids=" ".join)
def test_a_damaged_memory(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = tmp_path / "state" / "memory.db"
    with Store.open(path) as store:
        for number in range(50):
            store.add_text("local", "default", "notes", f"fact {number} " * 200, 0)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    code, out, said = run(tmp_path, "recall", *arguments, "--state-dir", str(path.parent))
    assert (code, out) == (1, "")
    error, hint = said.splitlines()
    assert error.startswith("error: the memory ")
    assert str(path) in error
    assert hint == f"hint: {DAMAGED.remedy}"


def test_a_damaged_index(tmp_path: Path) -> None:
    path = tmp_path / "state" / "memory.db"
    with Store.open(path) as store:
        store.add_text("local", "default", "notes", "a fact", 0)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE words_data SET block = x'ff00ff' WHERE id > 1000")
    code, out, said = run(tmp_path, "recall", "search", "fact", "--state-dir", str(path.parent))
    assert (code, out) == (1, "")
    assert said.splitlines() == [
        f"error: the memory {path} can't be used: it is damaged",
        f"hint: {DAMAGED.remedy}",
    ]


def test_a_locked_memory(tmp_path: Path) -> None:
    path = tmp_path / "state" / "memory.db"
    Store.open(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        code, out, said = run(tmp_path, "recall", "add", "x", "--state-dir", str(path.parent))
    assert (code, out) == (1, "")
    error, hint = said.splitlines()
    assert error == f"error: the memory {path} can't be used: another process holds it locked"
    assert hint.startswith("hint: end the process")


@pytest.mark.parametrize("kind", ["damaged", "a folder"])
def test_a_secret_that_is_none(folder: Path, kind: str) -> None:
    secret = folder / "folder" / "secret"
    if kind == "damaged":
        secret.write_text("x")
    else:
        secret.mkdir()
    line = ("serve", "--port", "0", "--state-dir", str(folder / "folder"))
    code, out, said = run(folder, *line)
    assert (code, out) == (1, "")
    error, hint = said.splitlines()
    reason = {"damaged": "is damaged", "a folder": "can't be used: Is a directory"}[kind]
    assert error == f"error: the proxy can't start: {secret} {reason}"
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    "line", ["serve --upstream foo", "serve --host a/b", "serve --upstream http://\udcff/v1"]
)
def test_a_value_that_can_not_be_is_told_with_a_hint(folder: Path, line: str) -> None:
    code, _, said = run(folder, *line.split())
    assert code == 1
    assert said.splitlines()[1:] == ["hint: `sottovoce config init --print` explains every key"]


def test_a_taken_port_of_a_fixtures_provider_has_the_next_free_one(folder: Path) -> None:
    fixture = str(min((ROOT / "fixtures").glob("*.jsonl")))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, said = run(folder, "replay", "--as-provider", fixture, "--port", port)
    assert code == 1
    error, hint = said.splitlines()
    assert error == f"error: port {port} is taken"
    assert hint.startswith("hint: the next free one is ")


def test_usage_is_told_in_two_lines(folder: Path) -> None:
    code, _, said = run(folder, "completion")
    assert code == 2
    assert len(said.splitlines()) == 2


def test_a_fixture_that_can_not_be_written_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = next(iter(sorted((ROOT / "fixtures").glob("*.jsonl"))))
    fixture = Path(shutil.copy(source, tmp_path / "changed.jsonl"))
    lines = fixture.read_text().splitlines(keepends=True)
    fixture.write_text("".join(line for line in lines if '"out":"outcome"' not in line))

    def full(_path: Path, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert cli.run(["replay", "--update", str(fixture)]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: {fixture} can't be written: No space left on device"
    assert hint == "hint: free some space there, or name another place"
