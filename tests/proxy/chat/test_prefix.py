"""The next request of a chat client begins with what its upstream was sent and said before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.history import HiddenGroup, restorations
from pipeline.items import canonical
from pipeline.jsontext import dumps
from pipeline.reader import StreamMode
from pipeline.request import declare, input_items
from pipeline.restore import restore
from pipeline.survey import Survey
from proxy.chat.native import NativeRequest, encoding
from proxy.chat.request import Manner, Translation, read_chat_request, translate
from proxy.providers.kinds import make_provider
from recall.tool import NAME
from tests.builders import function_call, message, reasoning, recall_call
from tests.dialects import CHAT, chat_stream, chat_whole
from tests.playbook import TOOL, Answer, run_turn, says
from tests.proxy.chat.chunks import read_chunks
from tests.proxy.chat.test_splicing import READER, form

if TYPE_CHECKING:
    from pipeline.request import Request
    from tests.builders import Item
    from tests.playbook import Played

ENCODE = encoding(
    lambda request: (
        make_provider("openai_compat", "http://localhost:8000/v1")
        .encode(request, StreamMode.SSE)
        .body
    )
)
USER = {"role": "user", "content": "hi", "name": "ann"}
TOOLS = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}]
LOOK, THEN, FOUND = message("Let me look."), message("Once more."), message("It is Pip.")
SHELL = function_call("call_1", "shell", {"command": "ls"})
HOPS: dict[str, list[list[Item]]] = {
    "no word before": [[recall_call("h1", {"query": "a"})], [FOUND]],
    "a word before": [[LOOK, recall_call("h1", {"query": "a"})], [FOUND]],
    "a thought before": [[reasoning("Hm."), LOOK, recall_call("h1", {"query": "a"})], [FOUND]],
    "two calls": [[LOOK, recall_call("h1", {"query": "a"}), recall_call("h2", {})], [FOUND]],
    "twice": [
        [LOOK, recall_call("h1", {"query": "a"})],
        [THEN, recall_call("h2", {"query": "b"})],
        [FOUND],
    ],
    "words before": [[LOOK, THEN, recall_call("h1", {"query": "a"})], [FOUND]],
    "words before, twice": [
        [LOOK, THEN, recall_call("h1", {"query": "a"})],
        [THEN, LOOK, FOUND, recall_call("h2", {"query": "b"})],
        [FOUND],
    ],
    "words before, and a call of the client alone": [
        [LOOK, THEN, recall_call("h1", {"query": "a"})],
        [SHELL],
    ],
    "words behind": [[recall_call("h1", {"query": "a"}), LOOK, THEN], [FOUND]],
    "the same word twice": [[FOUND, recall_call("h1", {"query": "a"})], [FOUND]],
    "a call of the client": [[LOOK, recall_call("h1", {"query": "a"})], [FOUND, SHELL]],
    "a call of the client alone": [[LOOK, recall_call("h1", {"query": "a"})], [SHELL]],
    "no word at all": [[recall_call("h1", {"query": "a"})], [SHELL]],
}
STREAMED = pytest.mark.parametrize("streamed", [True, False], ids=["stream", "json"])


def chat_request(*messages: Any, streamed: bool) -> tuple[Translation, NativeRequest]:
    body = {"messages": messages, "model": "m", "tools": TOOLS, "stream": streamed, "seed": 7}
    chat = read_chat_request(json.dumps(body).encode())
    translation = translate(chat, Manner.CHAT)
    return translation, NativeRequest(chat, translation)


def play(request: Request, hops: list[list[Item]], *, native: bool, streamed: bool) -> Played:
    mode = StreamMode.SSE if streamed else StreamMode.JSON
    answers: list[Any] = [says(*items, response_id=f"r_{n}") for n, items in enumerate(hops)]
    if native:
        write = chat_stream if streamed else chat_whole
        answers = [
            Answer(write(*items, identity=f"c_{n}"), content_type=mode.accept)
            for n, items in enumerate(hops)
        ]
    options: dict[str, Any] = {"reader": READER} if native else {}
    return run_turn(
        request.body,
        answers,
        "found",
        client="stream" if streamed else "json",
        form=form(streamed=streamed),
        **options,
    )


def kept_by(played: Played, *, streamed: bool) -> dict[str, Any]:
    """Return the message that the client keeps."""
    if not streamed:
        return dict(json.loads(played.client_bytes)["choices"][0]["message"])
    read = read_chunks(played.client_bytes)
    kept: dict[str, Any] = {"role": "assistant", "content": read.content or None, "vendor": 1.5}
    if read.calls:
        kept["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["said"]},
            }
            for call in read.calls.values()
        ]
    return kept


def going_on(kept: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the client sends behind its message."""
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "a.txt"}
        for call in kept.get("tool_calls") or ()
    ]
    return results or [{"role": "user", "content": "And then?"}]


def restored(translation: Translation, played: Played) -> Request:
    group = played.performer.saved[-1].group
    assert group is not None
    group = HiddenGroup.from_json(group.to_json())
    request = translation.request
    return restore(request, restorations(Survey(input_items(request.body)), [group]))


def plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: one for name, one in each.items() if name != "vendor"} for each in messages]


@STREAMED
@pytest.mark.parametrize("name", HOPS)
def test_over_a_chat_upstream(name: str, *, streamed: bool) -> None:
    """Case 13."""
    translation, native = chat_request(USER, streamed=streamed)
    played = play(translation.request, HOPS[name], native=True, streamed=streamed)
    sent = json.loads(native.put(played.requests[-1], ENCODE))["messages"]
    kept = kept_by(played, streamed=streamed)
    assert NAME not in json.dumps(kept)
    then, native = chat_request(USER, kept, *going_on(kept), streamed=streamed)
    again = json.loads(native.put(restored(then, played), ENCODE))
    messages = again["messages"]
    assert messages[: len(sent)] == sent
    last = HOPS[name][-1]
    said = CHAT.heard({"messages": [USER, *messages[len(sent) :]], "tools": []}).turns[1]
    assert said[1] == ("It is Pip." if FOUND in last else "")
    assert [call[0] for call in said[3]] == (["shell"] if SHELL in last else [])
    assert messages[len(sent) + 1 :] == going_on(kept)
    if streamed:
        assert messages[len(sent)]["vendor"] == 1.5
    assert again["seed"] == 7


@STREAMED
@pytest.mark.parametrize("name", HOPS)
def test_over_a_responses_upstream(name: str, *, streamed: bool) -> None:
    """Case 13."""
    translation, _ = chat_request(USER, streamed=streamed)
    played = play(translation.request, HOPS[name], native=False, streamed=streamed)
    sent = input_items(played.requests[-1].body)
    kept = kept_by(played, streamed=streamed)
    then, _ = chat_request(USER, kept, *going_on(kept), streamed=streamed)
    items = input_items(restored(then, played).body)
    # Reasoning that can't be read again does not come back.
    lasting = [item for item in sent if item.get("type") != "reasoning"]
    assert list(map(canonical, items[: len(lasting)])) == list(map(canonical, lasting))
    behind = [canonical(item) for item in items[len(lasting) :]]
    said = [canonical(item) for item in HOPS[name][-1]]
    assert behind[: len(said)] == said


@STREAMED
@pytest.mark.parametrize("edit", ["It is Pip!", "Let me look.", "It is Pip."])
def test_an_edited_answer_gets_nothing(edit: str, *, streamed: bool) -> None:
    translation, _ = chat_request(USER, streamed=streamed)
    played = play(translation.request, HOPS["a word before"], native=True, streamed=streamed)
    then, native = chat_request(
        USER, {"role": "assistant", "content": edit}, USER, streamed=streamed
    )
    request = restored(then, played)
    assert request.text == then.request.text
    assert json.loads(native.put(request, ENCODE))["messages"] == [
        USER,
        {"role": "assistant", "content": edit},
        USER,
    ]


def test_a_text_in_parts_stays_in_parts() -> None:
    translation, native = chat_request(USER, streamed=True)
    played = play(translation.request, HOPS["a word before"], native=True, streamed=True)
    kept = kept_by(played, streamed=True)
    parts = {**kept, "content": [{"type": "text", "text": kept["content"]}]}
    then, native = chat_request(USER, parts, USER, streamed=True)
    declared = declare(restored(then, played), TOOL).request
    messages = json.loads(native.put(declared, ENCODE))["messages"]
    assert messages[3]["content"] == [{"type": "text", "text": "It is Pip."}]
    assert dumps(messages[3]["vendor"]) == b"1.5"
