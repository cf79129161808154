"""Plugins in the real process: the two examples at work, and broken ones that only warn."""

from __future__ import annotations

import json
from contextlib import ExitStack
from select import select
from typing import TYPE_CHECKING, Any

import pytest

from tests import builders
from tests.builders import function_call, message, recall_call
from tests.conftest import ROOT
from tests.e2e import checks
from tests.e2e.client import SDK_HEADERS, Exchange
from tests.e2e.inprocess import InProcess
from tests.e2e.process import BOUND, eventually
from tests.e2e.replies import says
from tests.upstreams import Gate, ScriptedProvider, answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.conftest import StartLab
    from tests.upstreams import Received, Steps

EXAMPLES = ["./examples/clock.py", "./examples/files.py"]
BROKEN = {
    "missing": (None, "plugin_entry_not_a_module"),
    "raises": ("raise RuntimeError('canary \\ud800')", "plugin_import_failed"),
    "exits": ("import sys; sys.exit(3)", "plugin_import_failed"),
    "closes": ("raise GeneratorExit", "plugin_import_failed"),
    "cancels": ("import asyncio\nraise asyncio.CancelledError", "plugin_import_failed"),
    "unreadable": (
        "name = 'unreadable'\ntools = []\ndef __getattr__(name): raise ImportError(name)",
        "plugin_not_exported",
    ),
    "own": (
        "o = {}\no['a'] = o\nname = 'o'\ntools = [dict(name='o', handler=print, parameters=o)]",
        "plugin_tool_invalid",
    ),
    "empty": ("", "plugin_not_exported"),
    "only_a_name": ("name = 'p'", "plugin_not_exported"),
    "twin": ("name = 'clock'\ntools = []", "duplicate_plugin_name"),
    "shadows": (
        "name = 'shadow'\ntools = [{'name': 'recall', 'handler': print}]",
        "plugin_tool_shadows",
    ),
    "toolless": ("name = 'toolless'\ntools = [{'name': 'x'}]", "plugin_tool_invalid"),
    "hookless": ("name = 'hookless'\nhooks = {'run_start': 5}", "plugin_hook_invalid"),
}
NOW = function_call("call_now", "current_time", {"zone": "Europe/Berlin"})
READ = function_call("call_read", "read_file", {"path": "pyproject.toml"})
OUTSIDE = function_call("call_out", "read_file", {"path": "../../etc/passwd"})
LOOK = recall_call("call_look", {"query": "marmalade"})
HIDDEN = (NOW, READ, OUTSIDE, LOOK)
WORDS = ("current_time", "read_file", "recall", "call_now", "call_read", "call_out", "Berlin")


def config(*entries: str, more: str = "") -> str:
    return f"plugins = {json.dumps(entries)}\n{more}"


def outputs(request: Any) -> dict[str, str]:
    return {
        item["call_id"]: item["output"]
        for item in request["input"]
        if item.get("type") == "function_call_output"
    }


def test_the_examples_at_work_and_the_broken_ones_told(tmp_path: Path, start_lab: StartLab) -> None:
    for name, (text, _) in BROKEN.items():
        if text is not None:
            (tmp_path / f"{name}.py").write_text(text)
    entries = [*EXAMPLES, "", *(str(tmp_path / f"{name}.py") for name in BROKEN)]
    lab = start_lab(config=config(*entries))
    second = says(message("hi"), response_id="resp_B")
    with lab.post(builders.request(), says(*HIDDEN), second) as exchange:
        frames = list(exchange.frames())
    events = checks.written(frames)
    checks.well_formed(events)
    checks.knows_nothing_of(b"".join(frame.raw for frame in frames), *WORDS)
    assert checks.answer_of(events) == "hi"
    first, follow_up = (request.json() for request in lab.provider.requests)
    assert [tool["name"] for tool in first["tools"]] == [
        *("shell", "recall", "current_time", "read_file", "list_files")
    ]
    got = outputs(follow_up)
    assert list(got) == ["call_now", "call_read", "call_out", "call_look"]
    assert got["call_now"].endswith("(Europe/Berlin)")
    assert got["call_read"].startswith("[build-system]")
    assert got["call_out"].startswith("blocked_by_plugin: give a path inside the project")
    warned = [line for line in lab.proxy.said.splitlines() if "plugin left out" in line]
    assert [json.loads(line)["code"] for line in warned] == [code for _, code in BROKEN.values()]
    lab.proxy.reaches(1, "turns_total", outcome="completed")


def test_hidden_pairs_of_plugins_come_back_with_the_next_request(start_lab: StartLab) -> None:
    lab = start_lab(config=config(*EXAMPLES))
    answer = message("hi")
    second = says(answer, response_id="resp_B")
    with lab.post(builders.request(text="now?"), says(NOW), second) as exchange:
        checks.received(exchange)
    following = builders.request(builders.user("now?"), answer, builders.user("again?"))
    with lab.post(following, says(message("so"), response_id="resp_C")) as exchange:
        checks.received(exchange)
    kinds = [item.get("type", "message") for item in lab.seen().json()["input"]]
    assert kinds == [*("message", "function_call", "function_call_output", "message", "message")]


def whole(*items: builders.Item, response_id: str = "resp_A") -> Callable[[Received], Steps]:
    """Reply in JSON."""

    def reply(received: Received) -> Steps:
        echo = received.json()
        return answer(builders.response(response_id, "completed", echo=echo, output=[*items]))

    return reply


WRONG = {
    "interrupts": ("raise KeyboardInterrupt", "PluginError"),
    "exits": ("raise SystemExit(3)", "PluginError"),
    "closes": ("raise GeneratorExit", "PluginError"),
    "cancels": ("raise asyncio.CancelledError", "PluginError"),
    "itself": ("own = []; own.append(own); return own", "ValueError"),
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
def test_a_tool_that_goes_wrong_costs_its_result_alone(
    tmp_path: Path, start_lab: StartLab, *, stream: bool
) -> None:
    handlers = "".join(f"async def {name}(*_): {text}\n" for name, (text, _) in WRONG.items())
    tools = ", ".join(f"{{'name': {name!r}, 'handler': {name}}}" for name in WRONG)
    (tmp_path / "wrong.py").write_text(
        f"import asyncio\n{handlers}name = 'wrong'\ntools = [{tools}]\n"
        "hooks = {'before_tool_call': interrupts, 'after_tool_call': closes, 'run_end': exits}\n"
    )
    lab = start_lab(config=config(str(tmp_path / "wrong.py")))
    calls = [function_call(f"call_{name}", name, {}) for name in WRONG]
    said = message("hi")
    reply = says if stream else whole
    replies = (reply(*calls), reply(said, response_id="resp_B"))
    with lab.post(builders.request(stream=stream), *replies) as exchange:
        if stream:
            assert checks.answer_of(checks.received(exchange)) == "hi"
        else:
            assert exchange.json()["output"] == [said]
    assert outputs(lab.seen().json()) == {
        f"call_{name}": f"[{name} failed: {error}.]" for name, (_, error) in WRONG.items()
    }
    lab.proxy.reaches(1, "turns_total", outcome="completed")


def test_a_client_switches_all_of_them_off(start_lab: StartLab) -> None:
    lab = start_lab(config=config(*EXAMPLES))
    headers = (*SDK_HEADERS, ("x-sottovoce-recall", "off"))
    with lab.post(builders.request(), says(message("hi")), headers=headers) as exchange:
        checks.received(exchange)
    assert [tool["name"] for tool in lab.seen().json()["tools"]] == ["shell"]


def test_tools_of_plugins_work_without_recall(start_lab: StartLab) -> None:
    lab = start_lab(config=config(*EXAMPLES, more="[recall]\nenabled = false\n"))
    second = says(message("hi"), response_id="resp_B")
    with lab.post(builders.request(), says(NOW), second) as exchange:
        assert checks.answer_of(checks.received(exchange)) == "hi"
    names = [tool["name"] for tool in lab.seen().json()["tools"]]
    assert names == ["shell", "current_time", "read_file", "list_files"]


def test_a_run_that_is_aborted_is_told_too(tmp_path: Path) -> None:
    heard = tmp_path / "heard.txt"
    (tmp_path / "listener.py").write_text(
        "import json\n"
        "def tell(*told):\n"
        f"    with open({str(heard)!r}, 'a') as file: print(json.dumps(told), file=file)\n"
        "name = 'listener'\nhooks = {'run_start': tell, 'run_end': tell}\n"
    )
    gate = Gate()
    with ScriptedProvider() as provider:
        provider.script([says(message("hi"), before={2: gate})])
        text = config(str(tmp_path / "listener.py"))
        with InProcess(tmp_path / "app", f"{provider.url}/v1", text) as proxy:
            exchange = Exchange(proxy.port, builders.request(text="hello"))
            exchange.next_event("response.created")
            exchange.close()
            eventually(lambda: heard.exists() and heard.read_text().count("\n") == 2, "both told")
            gate.open()
    start, end = map(json.loads, heard.read_text().splitlines())
    assert start == [{"input_chars": 5}, {"work_dir": str(ROOT)}]
    assert end == [{"stopped_reason": "aborted", "turns_used": 1}, {"work_dir": str(ROOT)}]


def test_transcripts_are_written_where_they_are_asked_for(start_lab: StartLab) -> None:
    lab = start_lab(config="[telemetry]\ntranscripts = true\n")
    second = says(message("hi"), response_id="resp_B")
    with lab.post(builders.request(text="hello"), says(LOOK), second) as exchange:
        checks.received(exchange)
    folder = lab.proxy.state / "sessions"
    eventually(lambda: any("run_end" in f.read_text() for f in folder.glob("*.jsonl")), "the end")
    (file,) = folder.glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["type"] for line in lines] == ["run_start", "message", "message", "run_end"]
    assert "marmalade" not in file.read_text()
    assert lines[-1]["turns_used"] == 2


def test_one_turn_at_a_time_where_that_is_asked_for(start_lab: StartLab) -> None:
    lab = start_lab(config="[sessions]\nserialize = true\n")
    gate = Gate()
    headers = (*SDK_HEADERS, ("x-sottovoce-session", "one"))
    lab.provider.default = says(message("later"))
    with ExitStack() as stack:
        held = says(message("first"), before={2: gate})
        first = stack.enter_context(lab.post(builders.request(), held, headers=headers))
        first.next_event("response.created")
        waiting = [
            stack.enter_context(Exchange(lab.proxy.port, builders.request(), headers=headers))
            for _ in range(9)
        ]
        answered, _, _ = select([one._socket for one in waiting], [], [], BOUND)
        (busy,) = (one for one in waiting if one._socket in answered)
        assert busy.status == 429
        assert busy.headers["retry-after"] == "5"
        assert busy.json()["error"]["code"] == "conversation_busy"
        assert len(lab.provider.requests) == 1
        gate.open()
        assert [one.status for one in waiting if one is not busy] == [200] * 8
