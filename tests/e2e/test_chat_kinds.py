"""Chat clients over every kind of upstream: the real ``openai`` SDK, real sockets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests import builders
from tests.builders import failed, function_call, message, numbered, opening, recall_call
from tests.dialects import DIALECTS
from tests.e2e.client import Exchange
from tests.e2e.process import Proxy, eventually
from tests.e2e.replies import says, streamed
from tests.upstreams import ScriptedProvider, answer, response, stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import openai

    from tests.builders import Item
    from tests.dialects import Dialect
    from tests.e2e.conftest import Lab, StartLab
    from tests.upstreams import Reply

HIDDEN = recall_call("call_hidden_1", {"query": "canary"})
SHELL = function_call("call_1", "shell", {"command": "ls"})
LOOK, ANSWER = message("Let me look."), message("你好🙂, it is fine.")
TOOLS: Any = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}]
USER: Any = {"role": "user", "content": "hi"}
SAID = "Let me look.\n\n你好🙂, it is fine."
PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of upstream, and how it answers."""

    name: str
    dialect: Dialect | None = None

    def reply(self, *items: Item, streamed: bool) -> Reply:
        if self.dialect is None:
            if streamed or self.name == "codex":
                return says(*items, sparse=self.name == "codex")
            return answer(builders.response("resp_A", "completed", output=[*items]))
        body = self.dialect.stream(*items) if streamed else self.dialect.whole(*items)
        form = self.dialect.form if streamed else "application/json"
        return response(200, body, headers=[("content-type", form)])

    def failure(self) -> Reply:
        """Return a failure inside a 200."""
        if self.dialect is None:
            error = failed("server_is_overloaded", "Come back later.")
            return streamed(numbered([*opening(), error]))
        body = self.dialect.error("overloaded_error", "Come back later.")
        return response(200, body, headers=[("content-type", self.dialect.form)])

    @property
    def config(self) -> str:
        return f'[[upstream]]\nkind = "{self.name}"\nbase_url = "{{url}}"\napi_key = "sk-ant-k"\n'


KINDS = [Kind("responses"), Kind("codex"), *(Kind(one.kind, one) for one in DIALECTS)]
OTHERS = [one for one in KINDS if one.name != "codex"]
"""Those that can take over: requests for Codex backends have a line of their own."""


@pytest.fixture(params=KINDS, ids=[one.name for one in KINDS])
def over(request: pytest.FixtureRequest, start_lab: StartLab) -> tuple[Kind, Lab]:
    kind: Kind = request.param
    return kind, start_lab(config=kind.config)


@pytest.fixture
def sdk(over: tuple[Kind, Lab]) -> Iterator[openai.OpenAI]:
    with over[1].proxy.sdk() as client:
        yield client


def asks(client: openai.OpenAI, manner: str, *messages: Any) -> Any:
    """Ask in one of the ways that the SDK has; return the final completion."""
    asked: Any = {"model": "m", "messages": [*messages], "tools": TOOLS}
    if manner == "json":
        return client.chat.completions.create(**asked)
    if manner == "helper":
        with client.chat.completions.stream(**asked) as events:
            return events.get_final_completion()
    state: Any = ChatCompletionStreamState()
    with client.chat.completions.create(**asked, stream=True) as chunks:
        for chunk in chunks:
            state.handle_chunk(chunk)
    return state.get_final_completion()


@pytest.mark.parametrize("manner", ["json", "chunks", "helper"])
def test_a_hidden_recall(over: tuple[Kind, Lab], sdk: openai.OpenAI, manner: str) -> None:
    kind, lab = over
    live = manner != "json"
    hops = [kind.reply(LOOK, HIDDEN, streamed=live), kind.reply(ANSWER, streamed=live)]
    lab.provider.script(hops)
    completion = asks(sdk, manner, USER)
    said = completion.choices[0].message
    assert said.content == SAID
    assert not said.tool_calls
    assert completion.choices[0].finish_reason == "stop"
    for word in ("recall", "call_hidden_1", "canary"):
        assert word not in completion.to_json()
    # The next request begins with what was sent and said before.
    back = {"role": "assistant", "content": said.content}
    lab.provider.script([kind.reply(message("Bye."), streamed=live)])
    asks(sdk, manner, USER, back, {"role": "user", "content": "And then?"})
    before, after = (lab.seen(number).json() for number in (-2, -1))
    name = "input" if kind.dialect is None else "messages"
    count = len(before[name])
    assert _bare(after[name][:count]) == _bare(before[name])


def _bare(value: Any) -> Any:
    """Leave out where a cache is marked: that moves on with the conversation."""
    if isinstance(value, list):
        return [_bare(one) for one in value]
    if isinstance(value, dict):
        return {name: _bare(one) for name, one in value.items() if name != "cache_control"}
    return value


@pytest.mark.parametrize("manner", ["json", "chunks", "helper"])
def test_hidden_and_other_calls(over: tuple[Kind, Lab], sdk: openai.OpenAI, manner: str) -> None:
    kind, lab = over
    lab.provider.script([kind.reply(HIDDEN, SHELL, streamed=manner != "json")])
    choice = asks(sdk, manner, USER).choices[0]
    (call,) = choice.message.tool_calls
    assert call.function.name == "shell"
    assert json.loads(call.function.arguments) == {"command": "ls"}
    assert choice.finish_reason == "tool_calls"


def test_a_failure_inside_a_200(over: tuple[Kind, Lab]) -> None:
    """Case 10, with nobody to take over: it is the client's to know, and nothing hangs."""
    kind, lab = over
    body = {"messages": [USER], "model": "m", "tools": TOOLS, "stream": True}
    with lab.post(body, kind.failure(), target=PATH) as exchange:
        data = exchange.body()
        assert exchange.status >= 500 or b'"error"' in data
    assert b"Come back later." in data
    lab.is_idle()


@pytest.mark.parametrize("live", [True, False], ids=["stream", "json"])
def test_an_empty_completion(over: tuple[Kind, Lab], *, live: bool) -> None:
    """Case 14."""
    kind, lab = over
    body = {"messages": [USER], "model": "m", "tools": TOOLS, "stream": live}
    with lab.post(body, kind.reply(streamed=live), target=PATH) as exchange:
        assert exchange.status == 200
        assert b'"finish_reason":"stop"' in exchange.body()
    lab.proxy.reaches(1, "empty_completions_total", protocol="chat")


def test_what_has_no_place_is_counted(start_lab: StartLab) -> None:
    lab = start_lab()
    body = {"messages": [USER], "model": "m", "tools": TOOLS, "seed": 7, "vendor": 1}
    with lab.post(body, KINDS[0].reply(ANSWER, streamed=False), target=PATH) as exchange:
        assert exchange.status == 200
    name = "request_parts_left_out_total"
    lab.proxy.reaches(1, name, kind="responses", part="sampling")
    lab.proxy.reaches(1, name, kind="responses", part="other")


# ----------------------------------------------------- two upstreams, and nothing to be changed

CONFIG = """
[[upstream]]
name = "one"
kind = "openai_compat"
base_url = "{one}/v1"
api_key = "sk-ant-one"

[[upstream]]
name = "two"
kind = "{kind}"
base_url = "{two}/v1"
api_key = "sk-ant-two"

[telemetry]
transcripts = true
"""
CHUNKS = [
    {"id": "a", "model": "m-1", "choices": [{"index": 0, "delta": {"content": "Hi."}}], "x": 1},
    {"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]
BODY = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in CHUNKS) + b"data: [DONE]\n\n"
PLAIN = {"messages": [USER], "model": "m", "stream": True}


@pytest.mark.parametrize(
    "failing",
    [
        answer({"error": {"message": "Come back later."}}, status=503),
        stream(b'data: {"error": {"message": "Come back later.", "code": "overloaded"}}\n\n'),
    ],
    ids=["before the head", "inside a 200"],
)
@pytest.mark.parametrize("kind", OTHERS, ids=[one.name for one in OTHERS])
def test_what_passes_is_taken_over_as_well(tmp_path: Path, kind: Kind, failing: Reply) -> None:
    with ScriptedProvider() as one, ScriptedProvider() as two:
        config = CONFIG.format(one=one.url, two=two.url, kind=kind.name)
        with Proxy(tmp_path / "proxy", config=config) as proxy:
            one.script([failing])
            chunks = kind.name in ("openai_compat", "responses")
            two.script([stream(BODY) if chunks else kind.reply(ANSWER, streamed=True)])
            with Exchange(proxy.port, PLAIN, target=PATH) as exchange:
                data = exchange.body()
            assert data == BODY if chunks else "你好🙂" in data.decode()
            proxy.reaches(1, "turns_total", protocol="chat", outcome="completed")
            proxy.reaches(1, "failovers_total", upstream="one")


def test_what_passes_is_tried_in_place_and_told(start_lab: StartLab) -> None:
    """Three attempts, one transcript, one record: as of any other turn."""
    lab = start_lab(config=KINDS[2].config + "[telemetry]\ntranscripts = true\n")
    busy = answer({"error": {"message": "Slow down."}}, status=429, headers=[("retry-after", "0")])
    with lab.post(PLAIN, busy, stream(BODY), target=PATH) as exchange:
        assert exchange.body() == BODY
    assert len(lab.provider.requests) == 2
    lab.is_idle()
    folder = lab.proxy.state / "sessions"
    eventually(lambda: any("run_end" in f.read_text() for f in folder.glob("*.jsonl")), "the end")
    (file,) = folder.glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["type"] for line in lines] == ["run_start", "message", "message", "run_end"]
    lab.proxy.reaches(1, "turns_total", protocol="chat", outcome="completed")


@pytest.mark.parametrize("name", ["audio", "prediction", "web_search_options"])
def test_what_a_kind_lacks_is_refused_by_its_name(over: tuple[Kind, Lab], name: str) -> None:
    """An empty object asks for it as well as a full one."""
    kind, lab = over
    body = {"messages": [USER], "model": "m", name: {}}
    with lab.post(body, kind.reply(ANSWER, streamed=False), target=PATH) as exchange:
        data = exchange.body()
        if kind.name in ("openai_compat", "responses"):  # they serve chat completions themselves
            assert lab.seen(-1).json()[name] == {}
            return
        assert exchange.status == 400
    error = json.loads(data)["error"]
    assert f"kind {kind.name}: '{name}' can't be translated" in error["message"]
    assert not lab.provider.requests
