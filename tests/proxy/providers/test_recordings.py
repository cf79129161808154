"""Recorded streams of real upstreams: provider → turn → client, equal to the recording."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.commands import Finish
from pipeline.outcome import Ending
from tests import builders
from tests.conftest import CORPUS_VARIABLE, corpus_folder
from tests.dialects import ANTHROPIC, CHAT, OLLAMA, Dialect, lines, sse
from tests.playbook import Answer, bytewise, run_turn, whole
from tests.proxy.providers.reading import faultless
from tests.sent import check_sent

if TYPE_CHECKING:
    from pathlib import Path

    from tests.playbook import Chunking, Played

TOOLS: Final = [
    {"type": "function", "name": name, "parameters": {"type": "object"}}
    for name in ("weather", "updateIssueList", "get_current_weather")
]


def _recordings() -> list[Any]:
    folder = corpus_folder()
    if folder is None or not (folder / "catalogue_upstream.json").is_file():
        reason = f"no recorded streams here (set {CORPUS_VARIABLE} to their folder)"
        return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=reason))]
    entries = json.loads((folder / "catalogue_upstream.json").read_bytes())
    return [pytest.param(folder / one["file"], id=one["file"].split("/")[-1]) for one in entries]


def _dialect(path: Path) -> Dialect:
    sort = path.name.split("__")[0]
    return {"anthropic": ANTHROPIC, "ollama": OLLAMA}.get(sort, CHAT)


def _values(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]


def _body(dialect: Dialect, values: list[dict[str, Any]]) -> bytes:
    if dialect is OLLAMA:
        return lines(*values)
    return sse(*values, *([] if dialect is ANTHROPIC else ["[DONE]"]))


def _play(dialect: Dialect, body: bytes, *, chunking: Chunking, declared: bool) -> Played:
    return run_turn(
        builders.request(tools=TOOLS),
        [Answer(body, content_type=dialect.form)],
        chunking=chunking,
        declared=declared,
        reader=dialect.provider.reader,
    )


def _said(dialect: Dialect, values: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a recording says, read by hand: text, reasoning, calls, usage."""
    said: dict[str, Any] = {"text": "", "reasoning": "", "calls": {}, "usage": None}
    for value in values:
        {CHAT: _hear_chat, ANTHROPIC: _hear_anthropic, OLLAMA: _hear_ollama}[dialect](value, said)
    return said


def _hear_chat(value: dict[str, Any], said: dict[str, Any]) -> None:
    for choice in value["choices"]:
        delta = choice["delta"]
        said["text"] += delta.get("content") or ""
        said["reasoning"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", []):
            known = said["calls"].setdefault(call.get("index", 0), ["", ""])
            known[0] = call["function"].get("name") or known[0]
            known[1] += call["function"].get("arguments") or ""
    if (usage := value.get("usage")) is not None:
        said["usage"] = usage["prompt_tokens"], usage["total_tokens"]


def _hear_anthropic(value: dict[str, Any], said: dict[str, Any]) -> None:
    match value:
        case {"type": "content_block_start", "content_block": {"type": "tool_use", "name": name}}:
            said["calls"][value["index"]] = [name, ""]
        case {"delta": {"type": "text_delta", "text": text}}:
            said["text"] += text
        case {"delta": {"type": "input_json_delta", "partial_json": text}}:
            said["calls"][value["index"]][1] += text
        case {"type": "message_delta", "usage": usage}:
            total = usage["input_tokens"] + usage["output_tokens"]
            said["usage"] = usage["input_tokens"], total


def _hear_ollama(value: dict[str, Any], said: dict[str, Any]) -> None:
    said["text"] += value["message"]["content"]
    if value["done"]:
        prompt = value["prompt_eval_count"]
        said["usage"] = prompt, prompt + value["eval_count"]


@pytest.mark.parametrize("chunking", [whole, bytewise])
@pytest.mark.parametrize("declared", [False, True], ids=["observed", "declared"])
@pytest.mark.parametrize("path", _recordings())
def test_a_recording_comes_out_as_it_was_said(
    path: Path, chunking: Chunking, *, declared: bool
) -> None:
    dialect, values = _dialect(path), _values(path)
    played = _play(dialect, _body(dialect, values), chunking=chunking, declared=declared)
    faultless(played.client_bytes)
    check_sent(played.client_bytes)
    said = _said(dialect, values)
    output = played.response["output"]
    assert played.text == said["text"]
    summaries = [part["text"] for item in output for part in item.get("summary", [])]
    assert "".join(summaries) == said["reasoning"]
    calls = [item for item in output if item["type"] == "function_call"]
    assert [[call["name"], call["arguments"]] for call in calls] == [
        [name, arguments or "{}"] for name, arguments in said["calls"].values()
    ]
    usage = played.response["usage"]
    assert (usage["input_tokens"], usage["total_tokens"]) == said["usage"]
    assert isinstance(played.commands[-1], Finish)
    assert played.outcome.ending is Ending.COMPLETED
    assert not played.outcome.findings


@pytest.mark.parametrize("path", _recordings())
def test_a_cut_recording_fails_and_never_completes(path: Path) -> None:
    dialect, values = _dialect(path), _values(path)
    for kept in range(1, len(values)):
        if kept > 8 and kept % 37:
            continue
        cut = _body(dialect, values[:kept]).removesuffix(b"data: [DONE]\n\n")
        played = run_turn(
            builders.request(tools=TOOLS),
            [Answer(cut, content_type=dialect.form)] * 2,
            reader=dialect.provider.reader,
        )
        ended = b"finish_reason" in cut or b'stop_reason":"' in cut
        if played.performer.refused is None and not ended:
            assert played.events[-1]["type"] == "response.failed"
            check_sent(played.client_bytes)
