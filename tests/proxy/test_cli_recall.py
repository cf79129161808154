from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.proxy.commands import run

if TYPE_CHECKING:
    from pathlib import Path


def recall(folder: Path, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    return run(folder, "recall", *arguments, "--state-dir", str(folder / "state"), stdin=stdin)


def test_what_is_added_is_found_listed_and_shown(tmp_path: Path) -> None:
    code, added, said = recall(tmp_path, "add", "The deploy key lives in the blue drawer.")
    assert (code, said) == (0, "")
    (id_,) = added.split()
    code, out, said = recall(tmp_path, "search", "blue drawer")
    assert (code, said) == (0, "")
    assert out.startswith(f"{id_}  ")
    assert "    The deploy key lives in the blue drawer.\n" in out
    assert recall(tmp_path, "list")[1] == out
    code, text, heading = recall(tmp_path, "show", id_)
    assert (code, text) == (0, "The deploy key lives in the blue drawer.\n")
    assert "default/notes" in heading


def test_text_may_come_on_stdin(tmp_path: Path) -> None:
    assert recall(tmp_path, "add", "-", stdin="from a pipe\n")[0] == 0
    assert "from a pipe" in recall(tmp_path, "search", "pipe")[1]


def test_the_same_text_is_stored_once(tmp_path: Path) -> None:
    recall(tmp_path, "add", "once")
    code, out, said = recall(tmp_path, "add", "once")
    assert (code, out) == (0, "")
    assert "has it already" in said


def test_tenants_projects_and_sessions_keep_apart(tmp_path: Path) -> None:
    recall(tmp_path, "add", "the walrus", "--tenant", "bob")
    recall(tmp_path, "add", "the walrus too", "--project", "zoo", "--session", "s1")
    assert "nothing found" in recall(tmp_path, "search", "walrus", "--tenant", "eve")[2]
    assert "too" not in recall(tmp_path, "search", "walrus", "--tenant", "bob")[1]
    assert "nothing found" in recall(tmp_path, "search", "walrus", "--scope", "project")[2]
    found = recall(tmp_path, "search", "walrus", "--scope", "project", "--project", "zoo")
    assert "zoo/s1" in found[1]


def test_json_has_a_schema_version(tmp_path: Path) -> None:
    (id_,) = recall(tmp_path, "add", "a fact")[1].split()
    searched = json.loads(recall(tmp_path, "search", "fact", "--json")[1])
    listed = json.loads(recall(tmp_path, "list", "--json")[1])
    shown = json.loads(recall(tmp_path, "show", id_, "--json")[1])
    assert searched["schema_version"] == listed["schema_version"] == shown["schema_version"] == 1
    assert searched["entries"] == listed["entries"] == [shown["entry"]]
    assert (listed["count"], searched["more"]) == (1, False)
    entry = shown["entry"]
    assert (entry["id"], entry["text"], entry["source"]) == (id_, "a fact", "add")
    assert entry["created"].endswith("+00:00")


def test_a_page_says_whether_another_follows(tmp_path: Path) -> None:
    for number in range(3):
        recall(tmp_path, "add", f"fact number {number}")
    code, out, said = recall(tmp_path, "search", "fact", "--limit", "2")
    assert code == 0
    assert out.count("    fact number") == 2
    assert said == "more: --offset 2\n"
    assert recall(tmp_path, "list", "--limit", "2", "--offset", "2")[2] == "1 of 3\n"


def test_reading_makes_no_memory(tmp_path: Path) -> None:
    for arguments in (("search", "x"), ("list",)):
        code, out, said = recall(tmp_path, *arguments)
        assert (code, out) == (0, "")
        assert "there is no memory yet" in said
    assert recall(tmp_path, "show", "m1")[0] == 1
    assert json.loads(recall(tmp_path, "search", "x", "--json")[1])["entries"] == []
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", " \n"),
        ("search", "x" * 513),
        ("search", "x", "--limit", "0"),
        ("search", "x", "--limit", "21"),
        ("search", "x", "--scope", "world"),
        ("list", "--offset", "-1"),
    ],
)
def test_what_makes_no_sense_is_usage(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, out, said = recall(tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert said.startswith("error: ")


def test_an_unknown_id_is_an_error_with_a_hint(tmp_path: Path) -> None:
    recall(tmp_path, "add", "x")
    code, _, said = recall(tmp_path, "show", "m99")
    assert code == 1
    assert said.splitlines() == [
        "error: there is no entry m99 of tenant local",
        "hint: `sottovoce recall list` prints the ids",
    ]


def test_stored_controls_do_not_reach_the_terminal(tmp_path: Path) -> None:
    recall(tmp_path, "add", "-", stdin="a\x1b[2Jb")
    assert "\x1b" not in recall(tmp_path, "list")[1]


def test_a_memory_that_can_not_be_used_is_one_error(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "memory.db").write_bytes(b"this is no database, but long enough to be looked at" * 99)
    code, _, said = recall(tmp_path, "list")
    assert code == 1
    assert said.startswith("error: ")
    (tmp_path / "file").write_text("")
    code, _, said = run(tmp_path, "recall", "add", "x", "--state-dir", str(tmp_path / "file" / "s"))
    assert code == 1
    assert said.endswith("hint: --state-dir names another place\n")
