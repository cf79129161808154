"""``ask`` and ``chat``: a terminal that talks through the proxy, and sees memory at work."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.builders import failed, message, opening, recall_call
from tests.conftest import ROOT
from tests.e2e.process import BOUND, free_port, process_environment, run_command
from tests.e2e.replies import says, streamed
from tests.upstreams import Gate, ScriptedProvider, answer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.conftest import Lab

LOOK = recall_call("call_look", {"query": "marmalade"})
ANSWER = says(message("Orange, as ever."), response_id="resp_B")
MODEL = ("--model", "gpt-test")


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider() as running:
        yield running


class Terminal:
    """Verbs with a proxy of their own before a provider."""

    def __init__(self, folder: Path, provider: ScriptedProvider, model: str = "") -> None:
        self.folder = folder
        config = folder / "sottovoce.toml"
        named = f"model = '{model}'\n" if model else ""
        config.write_text(
            f"[server]\nport = {free_port()}\nstate_dir = '{folder / 'state'}'\n"
            f"[[upstream]]\nbase_url = '{provider.url}/v1'\n{named}"
        )
        self.config = ("--config", str(config))

    def run(self, *arguments: str, expect: int = 0) -> tuple[str, str]:
        return run_command(*arguments, *self.config, folder=self.folder, expect=expect)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "proxy.cli", *arguments, *self.config],
            cwd=ROOT,
            env=process_environment(self.folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@pytest.fixture
def terminal(tmp_path: Path, provider: ScriptedProvider) -> Terminal:
    return Terminal(tmp_path, provider)


def test_ask_shows_the_answer_and_the_memory_at_work(
    terminal: Terminal, provider: ScriptedProvider
) -> None:
    provider.script([says(LOOK), ANSWER])
    said, told = terminal.run("ask", "Which jam?", *MODEL, "--project", "kitchen")
    assert said == "Orange, as ever.\n"
    assert "  · recall …" in told
    assert "  · recall took 0." in told
    first = provider.requests[0].json()
    assert [tool["name"] for tool in first["tools"]] == ["recall"]
    assert (first["model"], first["store"]) == ("gpt-test", False)
    assert first["input"] == [{"role": "user", "content": "Which jam?"}]


def test_ask_as_json(terminal: Terminal, provider: ScriptedProvider) -> None:
    provider.script([says(LOOK), ANSWER])
    said, _ = terminal.run("ask", "Which jam?", *MODEL, "--json", "--session", "s1")
    got = json.loads(said)
    (tool,) = got.pop("tools")
    assert tool["tool"] == "recall"
    assert got.pop("turn").startswith("turn_")
    assert got.pop("usage")["total_tokens"] > 0
    assert got == {
        "schema_version": 1,
        "answer": "Orange, as ever.",
        "status": "completed",
        "reason": None,
        "model": "gpt-test",
        "session": "s1",
    }


def test_ask_uses_the_proxy_that_runs(lab: Lab) -> None:
    lab.provider.script([says(message("from there"))])
    port = lab.proxy.port
    lab.proxy.config.write_text(f"[server]\nport = {port}\n")
    said = lab.proxy.command("ask", "Where are you?", *MODEL)
    assert said == "from there\n"
    lab.proxy.reaches(1, "turns_total", outcome="completed")


def test_the_model_of_the_configuration(tmp_path: Path, provider: ScriptedProvider) -> None:
    provider.script([says(message("hi"))])
    Terminal(tmp_path, provider, model="gpt-configured").run("ask", "hello")
    assert provider.requests[0].json()["model"] == "gpt-configured"


def test_without_a_model_nothing_is_asked(terminal: Terminal, provider: ScriptedProvider) -> None:
    _, told = terminal.run("ask", "hello", expect=1)
    assert told.startswith("error: no model is named\nhint: --model NAME")
    assert provider.requests == []


def test_a_failure_is_told_with_a_hint(terminal: Terminal, provider: ScriptedProvider) -> None:
    provider.script([streamed([*opening(), failed("server_error", "the cook is ill")])])
    said, told = terminal.run("ask", "hello", *MODEL, expect=1)
    assert said == ""
    assert "error: the model failed: the cook is ill\nhint: " in told


def test_a_refusal_is_told_with_a_hint(terminal: Terminal, provider: ScriptedProvider) -> None:
    provider.script([answer({"error": {"message": "no such key"}}, status=401)])
    _, told = terminal.run("ask", "hello", *MODEL, expect=1)
    assert "error: refused with 401: no such key\nhint: set OPENAI_API_KEY" in told


def test_ctrl_c_stops_ask_and_the_provider_hears_of_it(
    terminal: Terminal, provider: ScriptedProvider
) -> None:
    gate = Gate()
    provider.script([says(message("hi there"), before={6: gate})])
    with terminal.start("ask", "hello", *MODEL) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=BOUND)
    assert process.returncode == 130
    assert told.decode().endswith("aborted\n")
    assert "Traceback" not in told.decode()
    provider.connections_closed.wait_for(1)
    gate.open()


def test_a_chat_goes_on_and_begins_again(terminal: Terminal, provider: ScriptedProvider) -> None:
    texts = [message("one"), message("two"), message("three")]
    provider.script([says(each, response_id=f"resp_{n}") for n, each in enumerate(texts)])
    with terminal.start("chat", *MODEL) as process:
        said, told = process.communicate(b"a\n\nb\n/new\nc\n/exit\nnever\n", timeout=BOUND)
    assert process.returncode == 0, told
    assert said == b"one\ntwo\nthree\n"
    asked = [request.json()["input"] for request in provider.requests]
    words = [[item["content"] for item in one if item["role"] == "user"] for one in asked]
    assert words == [["a"], ["a", "b"], ["c"]]
    assert asked[1][1]["content"][0]["text"] == "one"


def test_a_failure_does_not_end_a_chat(terminal: Terminal, provider: ScriptedProvider) -> None:
    provider.script(
        [
            streamed([*opening(), failed("server_error", "the cook is ill")]),
            says(message("back")),
        ]
    )
    with terminal.start("chat", *MODEL) as process:
        said, told = process.communicate(b"a\nb\n", timeout=BOUND)
    assert process.returncode == 0
    assert said.split() == [b"back"]
    assert b"error: the model failed: the cook is ill" in told
    assert [len(one.json()["input"]) for one in provider.requests] == [1, 1]


def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(
    terminal: Terminal, provider: ScriptedProvider
) -> None:
    gate = Gate()
    provider.script([says(message("hi there"), before={6: gate}), says(message("next"))])
    with terminal.start("chat", *MODEL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"a\n")
        process.stdin.flush()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        provider.connections_closed.wait_for(1)
        with contextlib.suppress(BrokenPipeError):
            said, told = process.communicate(b"b\n", timeout=BOUND)
    gate.open()
    assert process.returncode == 0, told
    assert said.endswith(b"\nnext\n")
    assert b"stopped\n" in told
