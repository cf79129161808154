"""Transcripts: each message once, each turn with its beginning and end, and caps on memory."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.outcome import Ending, TurnOutcome
from pipeline.request import Request
from proxy.scribe import Histories, Scribe, conversation
from proxy.sessions import identify
from telemetry.capture import Door, EmptyCompletion, Loss, TranscriptLines
from telemetry.transcript import Transcripts
from tests.playbook import turn

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.turn import Turn
    from proxy.headers import Headers
    from proxy.turns import Exchange

Item = dict[str, Any]
SESSION: Headers = [(b"x-sottovoce-session", b"../../s")]


def user(text: str) -> Item:
    return {"role": "user", "content": text}


def answer(text: str, id_: str = "msg_1") -> Item:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": id_, "role": "assistant", "content": [part]}


def exchange(items: list[Item], headers: Headers = SESSION, *, no_store: bool = False) -> Exchange:
    """Return as much of an exchange as a scribe looks at."""
    body: dict[str, Any] = {"model": "m", "input": items}
    identity = identify(headers, body, "local", codex_path=False)
    seen = SimpleNamespace(
        turn_id="turn_1",
        started=1.5,
        request=Request(b"", body),
        identity=replace(identity, no_store=no_store),
        protocol="responses",
    )
    return cast("Exchange", seen)


def ended(*output: Item, ending: Ending = Ending.COMPLETED, last: bool = False) -> Turn:
    over = turn()
    over.view.output = list(output)
    over.rounds.last = last
    over.outcome = TurnOutcome(ending, hops=2, model="m-1", spent={"total_tokens": 3})
    return over


class Written:
    """A scribe with a folder of its own."""

    def __init__(self, folder: Path, *, switched_on: bool = True) -> None:
        self.folder = folder / "sessions"
        self.door = Door({"transcripts": Transcripts(self.folder)})
        self.scribe = Scribe(self.door, switched_on=switched_on)

    def turn(self, asked: Exchange, over: Turn) -> None:
        self.scribe.begin(asked)
        self.scribe.end(asked, over)

    def lines(self) -> list[Any]:
        assert self.door.drain(10)
        return [
            json.loads(line)
            for file in sorted(self.folder.glob("*"))
            for line in file.read_text().splitlines()
        ]

    def told(self) -> list[str]:
        return [
            line["type"] if line["type"] != "message" else said(line["item"])
            for line in self.lines()
        ]


def said(item: Item) -> str:
    content = item.get("content", item.get("output", item.get("name")))
    return content if isinstance(content, str) else str(content[0]["text"])


def test_a_transcript(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.turn(exchange([user("hello")]), ended(answer("hi")))
    start, one, two, end = written.lines()
    assert start == {
        "type": "run_start",
        "at": 1.5,
        "turn": "turn_1",
        "tenant": "local",
        "project": "default",
        "session": "../../s",
        "protocol": "responses",
        "model": "m",
        "input_chars": 5,
    }
    assert one == {"type": "message", "at": 1.5, "turn": "turn_1", "item": user("hello")}
    assert two["item"] == answer("hi")
    assert end.pop("at") > 1.5
    assert end == {
        "type": "run_end",
        "turn": "turn_1",
        "outcome": "completed",
        "stopped_reason": "final",
        "turns_used": 2,
        "model": "m-1",
        "usage": {"total_tokens": 3},
    }


def test_files_are_for_their_owner_and_named_by_us(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.turn(exchange([user("hello")]), ended())
    written.turn(exchange([user("hello")], [(b"x-sottovoce-session", b"other")]), ended())
    written.lines()
    files = list(written.folder.iterdir())
    assert len(files) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(written.folder.stat().st_mode) == 0o700
    assert f"{conversation(exchange([]).identity)}.jsonl" in {file.name for file in files}


def test_every_message_once(tmp_path: Path) -> None:
    written = Written(tmp_path)
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "ls", "arguments": ""}
    output = {"type": "function_call_output", "call_id": "c1", "output": "a.txt"}
    written.turn(exchange([user("yes")]), ended(thought, answer("yes?"), call))
    back = replace_id(answer("yes?"))
    history = [user("yes"), back, {**call, "status": None}, output]
    written.turn(exchange(history), ended(answer("so", "msg_2")))
    written.turn(exchange([*history, answer("so"), user("yes")]), ended())
    assert written.told() == [
        *("run_start", "yes", "yes?", "ls", "run_end"),
        *("run_start", "a.txt", "so", "run_end"),
        *("run_start", "yes", "run_end"),
    ]


def replace_id(item: Item) -> Item:
    return {key: value for key, value in item.items() if key not in ("id", "type")}


def test_the_end_of_a_budget_is_called_so(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.turn(exchange([user("a")]), ended(last=True))
    written.turn(exchange([user("a")]), ended(ending=Ending.CLIENT_DISCONNECT))
    kinds = [line["type"] for line in written.lines()]
    assert kinds == ["run_start", "message", "budget_exhausted", "run_start", "run_end"]
    assert written.lines()[-1]["stopped_reason"] == "aborted"


@pytest.mark.parametrize("how", ["off", "no store"])
def test_nothing_is_written_where_nobody_asked(tmp_path: Path, how: str) -> None:
    written = Written(tmp_path, switched_on=how != "off")
    written.turn(exchange([user("a")], no_store=how == "no store"), ended(answer("b")))
    assert written.lines() == []
    assert not written.folder.exists()


def test_a_folder_that_can_not_be_written_to_costs_a_count(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("a file stands there")
    written = Written(tmp_path)
    written.turn(exchange([user("a")]), ended())
    assert written.door.drain(10)
    assert written.door.losses()["transcripts", Loss.RAISED] == 2


def test_other_records_are_not_its_business(tmp_path: Path) -> None:
    sink = Transcripts(tmp_path / "sessions")
    sink(EmptyCompletion("responses", None, None, None, None, 0))
    assert not (tmp_path / "sessions").exists()


def test_what_can_not_be_written_down_is_no_failure_of_the_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_: object) -> int:
        raise RuntimeError("canary")

    monkeypatch.setattr("proxy.scribe.input_characters", breaks)
    written = Written(tmp_path)
    written.turn(exchange([user("a")]), ended())
    assert written.told() == ["run_end"]


def test_lone_surrogates_are_kept(tmp_path: Path) -> None:
    Transcripts(tmp_path)(TranscriptLines("c", ({"item": user("\ud800")},)))
    assert json.loads((tmp_path / "c.jsonl").read_text())["item"]["content"] == "\ud800"


# ---------------------------------------------------------------------------- what is remembered


def test_the_oldest_conversation_is_forgotten_first() -> None:
    histories = Histories(conversations=2)
    for name in ("a", "b", "a", "c"):
        histories.add(name, [user("x")])
    assert len(histories) == 2
    assert histories.new("b", [user("x")]) == [user("x")]
    assert histories.new("a", [user("x")]) == histories.new("c", [user("x")]) == []


def test_the_defaults() -> None:
    histories = Histories()
    for number in range(300):
        histories.add(str(number), [user(str(n)) for n in range(100)])
    assert len(histories) == 200
    assert {len(marks) for marks in histories._known.values()} == {40}


@given(
    st.lists(st.sampled_from("abc"), max_size=100),
    st.lists(st.sampled_from("abc"), max_size=8),
    st.integers(1, 50),
)
def test_a_history_that_only_grows_is_never_told_twice(
    past: list[str], added: list[str], messages: int
) -> None:
    histories = Histories(messages=messages)
    known = [user(text) for text in past]
    histories.add("a", known)
    more = [user(text) for text in added]
    new = histories.new("a", [*known, {"type": "reasoning"}, *more])
    whole = known + more
    assert new == whole[len(whole) - len(new) :]
    if len(past) <= messages and past:
        assert len(new) <= len(added)


def test_an_edited_history_is_new() -> None:
    histories = Histories()
    histories.add("a", [user("one"), user("two")])
    assert histories.new("a", [user("summary")]) == [user("summary")]
