"""Chat upstreams with the habits of their vendors, for clients of both dialects."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests import builders
from tests.dialects import sse
from tests.e2e import checks
from tests.e2e.conftest import Lab
from tests.e2e.process import Proxy
from tests.upstreams import ScriptedProvider, answer, response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.client import Exchange
    from tests.upstreams import Reply

Chunk = dict[str, Any]
USAGE: Final = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
ARGUMENTS: Final = {"shell": '{"a": {"b": 1}}', "recall": '{"query": "canary"}'}
TOOL: Final = {"name": "shell", "parameters": {"type": "object"}}
CONTENTS: Final[dict[str, list[list[str]]]] = {
    "a text": [["text"]],
    "a call": [["shell"]],
    "a recall": [["recall"], ["text"]],
    "text and a recall": [["text", "recall"], ["text"]],
    "a call, a recall": [["shell", "recall"]],
    "a recall, a call": [["recall", "shell"]],
}
"""What each hop says."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """How one streams and what its bodies look like."""

    first: tuple[Chunk, ...] = ()
    reasoning: bool = False
    whole: bool = False
    index: str = "from zero"
    ids: str = "own"
    later: tuple[tuple[str, str], ...] = ()
    name: str = "first"
    repeats_message: bool = False
    finishes: int = 1
    bills: int = 1
    marks: bool = True

    # --- Streams ----------------------------------------------------------------------------

    def stream(self, says: list[str]) -> bytes:
        calls = [name for name in says if name != "text"]
        deltas: list[Chunk] = [{"role": "assistant", "content": ""}]
        if self.reasoning:
            deltas += [{"reasoning_content": "Hm"}, {"reasoning_content": "."}]
        if "text" in says:
            deltas += [{"content": "It is "}, {"content": "fine."}]
        if self.whole:
            deltas.append({"tool_calls": [self._whole(at, one) for at, one in enumerate(calls)]})
        else:
            for at, one in enumerate(calls):
                deltas += [{"tool_calls": [piece]} for piece in self._pieces(at, one)]
        if not calls and self.whole:
            deltas.pop()
        chunks = [*self.first, *(_chunk(delta) for delta in deltas)]
        end = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}
        if self.repeats_message:
            end["message"] = self.message(says)
        chunks += [_chunk(None, choices=[end], usage=USAGE)] * (self.finishes if calls else 1)
        chunks += [_chunk(None, choices=[], usage=USAGE)] * (self.bills - 1)
        return sse(*chunks, *(["[DONE]"] if self.marks else []))

    def _whole(self, at: int, name: str) -> Chunk:
        function = {"name": name, "arguments": ARGUMENTS[name]}
        return {**self._place(at), **self._id(at), "type": "function", "function": function}

    def _pieces(self, at: int, name: str) -> list[Chunk]:
        text = ARGUMENTS[name]
        names = [name[:2], name[2:]] if self.name == "in pieces" else [name]
        pieces: list[Chunk] = []
        for piece in names:
            function = {"name": piece, "arguments": ""}
            pieces.append({**self._place(at), "type": "function", "function": function})
        pieces[0] |= self._id(at)
        told = {"name": name} if self.name == "always" else {}
        for piece in (text[:5], text[5:-1], text[-1:]):
            function = {**told, **dict(self.later[1:]), "arguments": piece}
            pieces.append({**self._place(at), **dict(self.later[:1]), "function": function})
        return pieces

    def _place(self, at: int) -> Chunk:
        places = {"from zero": at, "from one": at + 1, "one": 0}
        return {"index": places[self.index]} if self.index in places else {}

    def _id(self, at: int) -> Chunk:
        ids = {"own": f"call_{at}", "one": "call_0", "empty": ""}
        return {"id": ids[self.ids]} if self.ids in ids else {}

    # --- Bodies -----------------------------------------------------------------------------

    def message(self, says: list[str]) -> Chunk:
        calls = [one for one in says if one != "text"]
        entries = [self._whole(at, one) for at, one in enumerate(calls)]
        said: Chunk = {"role": "assistant", "content": "It is fine." if "text" in says else None}
        if self.reasoning:
            said["reasoning_content"] = "Hm."
        return {**said, "tool_calls": entries} if entries else said

    def body(self, says: list[str]) -> Chunk:
        reason = "stop" if says == ["text"] else "tool_calls"
        choice = {"index": 0, "message": self.message(says), "finish_reason": reason}
        return _chunk(None, choices=[choice], usage=USAGE, object="chat.completion")

    def reply(self, says: list[str], *, streamed: bool) -> Reply:
        if not streamed:
            return answer(self.body(says))
        form = [("content-type", "text/event-stream")]
        return response(200, self.stream(says), headers=form)


def _chunk(delta: Chunk | None, **members: object) -> Chunk:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    return {
        "id": "gen-1",
        "object": "chat.completion.chunk",
        "created": builders.CREATED_AT,
        "model": "m-1",
        "choices": choices,
    } | members


AZURE: Final = {"id": "", "object": "", "model": "", "choices": [], "prompt_filter_results": []}
VENDORS: Final = {
    "as OpenAI": Vendor(bills=2),
    "a first chunk without choices": Vendor(first=(AZURE,)),
    "whole calls in one chunk": Vendor(whole=True),
    "whole calls without an index": Vendor(whole=True, index="none"),
    "no index": Vendor(index="none"),
    "indices from one on": Vendor(index="from one"),
    "empty ids and names later": Vendor(later=(("id", ""), ("name", ""))),
    "one index, no ids": Vendor(index="one", ids="none"),
    "one index, empty ids, whole": Vendor(whole=True, index="one", ids="empty"),
    "one id, no index": Vendor(whole=True, index="none", ids="one"),
    "one id, one index": Vendor(whole=True, index="one", ids="one"),
    "one id, all in pieces": Vendor(ids="one"),
    "names in pieces": Vendor(name="in pieces"),
    "names with every piece": Vendor(name="always"),
    "usage twice": Vendor(bills=3),
    "a finish that is repeated": Vendor(finishes=2, bills=2),
    "no mark at the end": Vendor(marks=False),
    "reasoning": Vendor(reasoning=True),
    "the message at the end once more": Vendor(repeats_message=True),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("vendors") / "proxy"
    with ScriptedProvider() as provider:
        url = f"{provider.url}/v1"
        environment = {"OPENAI_API_KEY": "sk-env"}
        with Proxy(folder, upstream=url, kind="openai_compat", environment=environment) as proxy:
            yield Lab(provider, proxy)


def ask(lab: Lab, vendor: str, content: str, *, chat: bool, streamed: bool) -> Exchange:
    """Send a request of its own, so that no history of another one is found in it."""
    lab.provider.requests.clear()
    replies = [VENDORS[vendor].reply(says, streamed=streamed) for says in CONTENTS[content]]
    told = f"{vendor}, {content}, {chat}, {streamed}"
    body: Chunk = {"model": "m", "stream": streamed}
    if chat:
        body["messages"] = [{"role": "user", "content": told}]
        body["tools"] = [{"type": "function", "function": TOOL}]
        return lab.post(body, *replies, target="/v1/chat/completions")
    body |= {"input": told, "tools": [{"type": "function", **TOOL}]}
    return lab.post(body, *replies)


def expected(content: str) -> tuple[str, list[str]]:
    """Return the text and the arguments of calls that a client must get."""
    hops = CONTENTS[content]
    texts = ["It is fine." for says in hops if "text" in says]
    shells = [ARGUMENTS[one] for says in hops for one in says if one == "shell"]
    return "\n\n".join(texts), shells


def is_hidden(lab: Lab, content: str, data: bytes) -> bool:
    """Check that a client learns nothing of a recall; say whether there was one."""
    assert len(lab.provider.requests) == len(CONTENTS[content])
    for word in (b"recall", b"query", b"canary"):
        assert word not in data
    return any("recall" in says for says in CONTENTS[content])


def each(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test for every vendor with every content."""
    for mark in (
        pytest.mark.parametrize("content", CONTENTS),
        pytest.mark.parametrize("vendor", VENDORS),
    ):
        test = mark(test)
    return test


@each
def test_streams_for_chat_clients(lab: Lab, vendor: str, content: str) -> None:
    with ask(lab, vendor, content, chat=True, streamed=True) as exchange:
        data = exchange.body()
    if not is_hidden(lab, content, data):
        # We ask for usage that the client doesn't; the rest is what came.
        bill = sse(_chunk(None, choices=[], usage=USAGE))
        assert data == VENDORS[vendor].stream(CONTENTS[content][0]).replace(bill, b"")
        return
    frames = [frame.removeprefix(b"data: ") for frame in data.split(b"\n\n")[:-1]]
    assert frames.count(b"[DONE]") == 1
    assert frames.pop() == b"[DONE]"
    choices = [choice for frame in frames for choice in json.loads(frame)["choices"]]
    text, shells = expected(content)
    reasons = [one["finish_reason"] for one in choices if one["finish_reason"]]
    assert reasons == ["tool_calls" if shells else "stop"]
    assert "".join(one["delta"].get("content") or "" for one in choices) == text
    entries = [entry for one in choices for entry in one["delta"].get("tool_calls") or ()]
    assert "".join(entry["function"].get("arguments", "") for entry in entries) == "".join(shells)
    assert {entry.get("index", 0) for entry in entries} <= {0, 1}
    assert not any(choice.get("message", {}).get("content") for choice in choices[:-1])


@each
def test_bodies_for_chat_clients(lab: Lab, vendor: str, content: str) -> None:
    with ask(lab, vendor, content, chat=True, streamed=False) as exchange:
        data = exchange.body()
    if not is_hidden(lab, content, data):
        assert data == json.dumps(VENDORS[vendor].body(CONTENTS[content][0])).encode()
    (choice,) = json.loads(data)["choices"]
    text, shells = expected(content)
    assert (choice["message"]["content"] or "") == text
    calls = choice["message"].get("tool_calls") or []
    assert [call["function"]["arguments"] for call in calls] == shells
    assert choice["finish_reason"] == ("tool_calls" if shells else "stop")


@each
def test_streams_for_clients_of_responses(lab: Lab, vendor: str, content: str) -> None:
    with ask(lab, vendor, content, chat=False, streamed=True) as exchange:
        frames = list(exchange.frames())
    events = checks.written(frames)
    checks.well_formed(events)
    is_hidden(lab, content, b"".join(frame.raw for frame in frames))
    _says(events[-1]["response"], content)


@each
def test_bodies_for_clients_of_responses(lab: Lab, vendor: str, content: str) -> None:
    with ask(lab, vendor, content, chat=False, streamed=False) as exchange:
        data = exchange.body()
    is_hidden(lab, content, data)
    _says(json.loads(data), content)


def _says(response: Chunk, content: str) -> None:
    assert response["status"] == "completed"
    text, shells = expected(content)
    texts = [checks.text_of(item) for item in response["output"] if item["type"] == "message"]
    assert "\n\n".join(filter(None, texts)) == text
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert [(call["name"], call["arguments"]) for call in calls] == [("shell", a) for a in shells]
    assert all(call["call_id"].startswith("call_") for call in calls)
