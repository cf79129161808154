"""The real Codex CLI against the proxy, in both of its tool layouts.

Its model catalogue is its own, with two entries renamed: one that sends ``tools``, one ("lite")
that sends an ``additional_tools`` item. So no test depends on the names of this month's models.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.items import canonical
from tests import builders
from tests.builders import custom_call, function_call, message, reasoning, recall_call, usage
from tests.conftest import CODEX_VARIABLE
from tests.e2e.replies import says, streamed

if TYPE_CHECKING:
    from tests.builders import Item
    from tests.e2e.conftest import Lab

pytestmark = pytest.mark.codex

CLASSIC: Final = "test-classic"
LITE: Final = "test-lite"
LAYOUTS = pytest.mark.parametrize("model", [CLASSIC, LITE])
HIDDEN = recall_call("call_hidden_1", {"query": "canary"})
TIMEOUT: Final = 100
NOWHERE: Final = "http://127.0.0.1:9"
"""Where whatever is not the proxy leads to."""
CONFIG: Final = """
model = "{model}"
model_catalog_json = "{catalog}"
check_for_update_on_startup = false
approval_policy = "never"
sandbox_mode = "danger-full-access"
"""
BUILT_IN: Final = """
openai_base_url = "{url}/v1"

[analytics]
enabled = false
"""
CUSTOM: Final = """
model_provider = "sottovoce"

[analytics]
enabled = false

[model_providers.sottovoce]
name = "sottovoce"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "TEST_KEY"
request_max_retries = 0
stream_max_retries = 0
"""


@dataclass(frozen=True, slots=True)
class Codex:
    """A Codex installation with a home of its own."""

    lab: Lab
    home: Path

    def says(self, prompt: str, *, resume: bool = False) -> str:
        """Run one turn; return the answer that it prints."""
        verb = ["exec", "resume", "--last"] if resume else ["exec"]
        out = self._run(*verb, "--skip-git-repo-check", "--json", prompt)
        events = [json.loads(line) for line in out.splitlines()]
        assert events[-1]["type"] == "turn.completed", out
        items = [event["item"] for event in events if event["type"] == "item.completed"]
        assert not [item for item in items if item["type"] == "error"], out
        answers = [str(item["text"]) for item in items if item["type"] == "agent_message"]
        return answers[-1]

    def configure(self, model: str, *, built_in: bool = False, **members: object) -> None:
        """Write the config for a model, with changes to what its entry says.

        Args:
            model: Which one.
            built_in: Move the CLI's own provider to the proxy, instead of adding one.
            members: Of the model's entry.
        """
        catalog = self.home / "catalog.json"
        catalog.write_text(json.dumps({"models": self._entries(members)}))
        text = CONFIG + (BUILT_IN if built_in else CUSTOM)
        text = text.format(model=model, catalog=catalog, url=self.lab.proxy.url)
        (self.home / "config.toml").write_text(text)

    def _entries(self, members: dict[str, object]) -> list[dict[str, Any]]:
        known = json.loads(self._run("debug", "models"))["models"]
        entries = []
        for slug, lite in ((CLASSIC, False), (LITE, True)):
            entry = next(one for one in known if bool(one.get("use_responses_lite")) is lite)
            silent = {"upgrade": None, "availability_nux": None}
            entries.append(entry | silent | members | {"slug": slug, "display_name": slug})
        return entries

    def _run(self, *arguments: str) -> str:
        program = Path(os.environ[CODEX_VARIABLE]).absolute()
        folder = self.home / "work"
        folder.mkdir(exist_ok=True)
        # Node may have been installed beside the CLI (.ci/codex-cli).
        paths = [str(program.parent.parent.parent / "node" / "bin"), os.environ["PATH"]]
        done = subprocess.run(
            [str(program), *arguments],
            cwd=folder,
            env={
                "PATH": os.pathsep.join(paths),
                "HOME": str(self.home),
                "CODEX_HOME": str(self.home),
                "TEST_KEY": "sk-test",
                "CODEX_API_KEY": "sk-test",
                "HTTPS_PROXY": NOWHERE,
                "HTTP_PROXY": NOWHERE,
                "NO_PROXY": "127.0.0.1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            timeout=TIMEOUT,
        )
        assert done.returncode == 0, f"{done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def codex(lab: Lab, tmp_path: Path) -> Codex:
    home = tmp_path / "codex"
    home.mkdir()
    return Codex(lab, home)


def tool_call(model: str) -> Item:
    """Return a call of the shell in the layout's own way."""
    if model == CLASSIC:
        return function_call("call_tool_1", "exec_command", {"cmd": "echo tool-$((40+2))"})
    return custom_call("call_tool_1", "exec", 'text("tool-" + (40 + 2));')


def history(lab: Lab, number: int = -1) -> list[Item]:
    """Return the input of a request without what only describes the client and its tools."""
    body = lab.seen(number).json()
    return [
        item
        for item in body["input"]
        if item["type"] != "additional_tools" and item.get("role") not in {"developer", "system"}
    ]


def calls(items: list[Item]) -> list[tuple[str, str]]:
    """Return type and call id of all calls and outputs."""
    return [(item["type"], item["call_id"]) for item in items if "call_id" in item]


@LAYOUTS
def test_a_text_turn(codex: Codex, model: str) -> None:
    codex.configure(model)
    codex.lab.provider.script([says(message("Hello from the harbour."))])
    assert codex.says("Say hello.") == "Hello from the harbour."
    body = codex.lab.seen().json()
    if model == CLASSIC:
        tools = body["tools"]
    else:
        assert "tools" not in body
        tools = body["input"][0]["tools"]
    assert tools[-1].get("name") == "recall"
    assert sum(tool.get("name") == "recall" for tool in tools) == 1


@LAYOUTS
def test_a_tool_round_trip(codex: Codex, model: str) -> None:
    codex.configure(model)
    codex.lab.provider.script([says(tool_call(model)), says(message("It said tool-42."))])
    assert codex.says("Run it.") == "It said tool-42."
    assert len(codex.lab.provider.requests) == 2
    result = history(codex.lab)[-1]
    assert result["call_id"] == "call_tool_1"
    assert "tool-42" in json.dumps(result["output"])


@LAYOUTS
def test_a_hidden_recall(codex: Codex, model: str) -> None:
    codex.configure(model)
    lab = codex.lab
    hidden = HIDDEN if model == CLASSIC else HIDDEN | {"namespace": "functions"}
    lab.provider.script(
        [
            says(hidden),
            says(message("I remember."), response_id="resp_B"),
            says(message("Still."), response_id="resp_C"),
        ]
    )
    assert codex.says("What was it?") == "I remember."
    assert codex.says("And now?", resume=True) == "Still."
    assert len(lab.provider.requests) == 3

    hop, after = history(lab, 1), history(lab, 2)
    assert calls(hop) == [
        ("function_call", "call_hidden_1"),
        ("function_call_output", "call_hidden_1"),
    ]
    assert hop[-2:] == after[len(hop) - 2 : len(hop)]
    assert calls(after) == calls(hop)
    texts = [
        part["text"] for item in after if item["type"] == "message" for part in item["content"]
    ]
    assert texts[-2:] == ["I remember.", "And now?"]
    assert knows_of_recall(codex.home / "sessions") == []


@LAYOUTS
def test_three_turns_keep_their_prefix(codex: Codex, model: str) -> None:
    """Recalls in the first two, in the second one also beside a call of Codex's own."""
    codex.configure(model)
    lab = codex.lab
    answers: list[list[Item]] = [
        [reasoning("Look it up.", encrypted="gAAAA-1"), HIDDEN],
        [reasoning("Found.", encrypted="gAAAA-2"), message("I remember.")],
        [recall_call("call_hidden_2", {"query": "more"})],
        [recall_call("call_hidden_3", {"query": "rest"}), tool_call(model)],
        [message("Both done.")],
        [message("Still.")],
    ]
    lab.provider.script(
        [says(*items, response_id=f"resp_{number}") for number, items in enumerate(answers)]
    )
    assert codex.says("What was it?") == "I remember."
    assert codex.says("And more?", resume=True) == "Both done."
    assert codex.says("And now?", resume=True) == "Still."

    sent = [request.json()["input"] for request in lab.provider.requests]
    assert len(sent) == len(answers)
    for number, (before, said) in enumerate(zip(sent[:-1], answers[:-1], strict=True)):
        known, after = [*before, *said], sent[number + 1]
        same = [
            canonical(one) == canonical(other) for one, other in zip(known, after, strict=False)
        ]
        assert same == [True] * len(known), f"request {number + 1} at item {same.index(False)}"
    assert [identity for _, identity in calls(history(lab))] == [
        *["call_hidden_1"] * 2,
        *["call_hidden_2"] * 2,
        *["call_hidden_3", "call_tool_1", "call_hidden_3", "call_tool_1"],
    ]
    assert knows_of_recall(codex.home / "sessions") == []
    # What Codex repeats of its history is not read again.
    read = [lab.proxy.metric("request_bytes_total", read=each) for each in ("known", "parsed")]
    assert read[0] > read[1] > 0


def knows_of_recall(folder: Path) -> list[Path]:
    """Return the session files in which the hidden call left a trace."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if b"call_hidden_" in path.read_bytes()]


@LAYOUTS
def test_a_tool_after_a_hidden_recall(codex: Codex, model: str) -> None:
    codex.configure(model)
    lab = codex.lab
    lab.provider.script(
        [
            says(HIDDEN),
            says(tool_call(model), response_id="resp_B"),
            says(message("Both done."), response_id="resp_C"),
        ]
    )
    assert codex.says("Remember, then run.") == "Both done."
    kinds = [identity for _, identity in calls(history(lab))]
    assert kinds == ["call_hidden_1", "call_hidden_1", "call_tool_1", "call_tool_1"]


@LAYOUTS
def test_two_hops_are_no_reason_to_compact(codex: Codex, model: str) -> None:
    """Codex takes the reported total as the fill of its window: it must see one hop's."""
    codex.configure(
        model, context_window=20_000, max_context_window=20_000, auto_compact_token_limit=15_000
    )
    lab = codex.lab
    eight = usage(7_900, 100)
    lab.provider.script(
        [
            says(HIDDEN, usage=eight),
            says(tool_call(model), response_id="resp_B", usage=eight),
            says(message("One."), response_id="resp_C", usage=eight),
            says(message("Two."), response_id="resp_D", usage=eight),
        ]
    )
    assert codex.says("Go.") == "One."
    assert codex.says("And again.", resume=True) == "Two."
    kinds = [
        json.loads(request.header("x-codex-turn-metadata") or b"{}").get("request_kind")
        for request in lab.provider.requests
    ]
    assert kinds == ["turn"] * 4


def test_a_sum_would_be_a_reason_to_compact(codex: Codex) -> None:
    """The same with a total above the limit: so the test above can fail."""
    codex.configure(
        CLASSIC, context_window=20_000, max_context_window=20_000, auto_compact_token_limit=15_000
    )
    sixteen = usage(15_900, 100)
    codex.lab.provider.script([says(tool_call(CLASSIC), usage=sixteen)])
    codex.lab.provider.default = says(message("Summary."), response_id="resp_Z")
    codex.says("Go.")
    kinds = [
        json.loads(request.header("x-codex-turn-metadata") or b"{}").get("request_kind")
        for request in codex.lab.provider.requests
    ]
    assert "compaction" in kinds


def test_a_failure_is_shown_and_not_retried_for_ever(codex: Codex) -> None:
    codex.configure(CLASSIC)
    events = builders.stream(HIDDEN)[:-1]
    end = builders.failed("context_length_exceeded", "It is all too long.")
    codex.lab.provider.script([streamed([*events, end])])
    with pytest.raises(AssertionError):
        codex.says("Go.")
    assert len(codex.lab.provider.requests) == 1
