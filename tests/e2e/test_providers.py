"""Upstreams that don't speak Responses, over real sockets: the process, a provider, a client."""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pytest
from openai import OpenAI

from tests import builders
from tests.builders import function_call, message, output, reasoning, recall_call, user
from tests.dialects import ANTHROPIC, CHAT, OLLAMA, Dialect, each_dialect, lines, ollama_line, usage
from tests.e2e import checks
from tests.e2e.client import CODEX_HEADERS, SDK_HEADERS
from tests.e2e.conftest import Lab
from tests.e2e.process import Proxy
from tests.proxy.providers.reading import opening
from tests.upstreams import Gate, ScriptedProvider, response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.builders import Item
    from tests.e2e.conftest import StartLab
    from tests.upstreams import Received, Step, Steps

KEYS: Final = {
    "OPENAI_API_KEY": "sk-env",
    "ANTHROPIC_API_KEY": "sk-ant-env",
    "OLLAMA_API_KEY": "ollama-env",
}
PATHS: Final = {
    CHAT.kind: b"/v1/chat/completions",
    ANTHROPIC.kind: b"/v1/messages",
    OLLAMA.kind: b"/api/chat",
}
HIDDEN: Final = recall_call("call_hidden", {"query": "the canary's name"})


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    """One process for each kind, started when it is first needed."""
    with ExitStack() as stack:

        @cache
        def lab_of(kind: str) -> Lab:
            provider = stack.enter_context(ScriptedProvider())
            folder = tmp_path_factory.mktemp(kind) / "proxy"
            url = f"{provider.url}/v1"
            proxy = Proxy(folder, upstream=url, kind=kind, environment=KEYS)
            return Lab(provider, stack.enter_context(proxy))

        yield lab_of


@pytest.fixture
def lab(labs: Callable[[str], Lab], dialect: Dialect) -> Iterator[Lab]:
    """The lab of a kind, with a script and a record of its own."""
    lab = labs(dialect.kind)
    yield lab
    lab.provider._replies.clear()
    lab.provider.requests.clear()


def says(dialect: Dialect, *items: Item, gate: Gate | None = None, **options: Any) -> Any:
    """Return a reply in the form that the request asks for."""

    def reply(received: Received) -> Steps:
        if not received.json()["stream"]:
            body: list[Step] = [dialect.whole(*items, **options)]
            form = "application/json"
        else:
            data = dialect.stream(*items, **options)
            middle = len(data) // 2
            body = [data[:middle], *([] if gate is None else [gate]), data[middle:]]
            form = dialect.form
        return response(200, *body, headers=[("content-type", form)], framing="chunked")

    return reply


@each_dialect
@pytest.mark.parametrize("headers", [SDK_HEADERS, CODEX_HEADERS], ids=["an SDK", "Codex"])
def test_a_recall_over_each_kind(lab: Lab, dialect: Dialect, headers: Any) -> None:
    """Case 1."""
    first = says(dialect, reasoning("Look it up."), HIDDEN, usage=usage(100, 10, cached=40))
    second = says(dialect, message("It is Pip."), identity="second", usage=usage(150, 5))
    with lab.post(builders.request(), first, second, headers=headers) as exchange:
        frames = list(exchange.frames())
        assert exchange.headers["content-type"] == "text/event-stream"
    events = checks.written(frames)
    checks.well_formed(events)
    raw = b"".join(frame.raw for frame in frames)
    checks.knows_nothing_of(raw, "call_hidden", "canary", "sottovoce")
    assert checks.answer_of(events) == "It is Pip."
    told = (150, 5, 155) if headers is CODEX_HEADERS else (250, 15, 265)
    assert checks.figures(events[-1]["response"]["usage"])[:3] == told
    assert [request.target for request in lab.provider.requests] == [PATHS[dialect.kind]] * 2
    heard = dialect.heard(lab.seen().json())
    assert heard.turns[1][2:] == ("Look it up.", [("recall", {"query": "the canary's name"})])
    assert heard.turns[2][1][0][0] == "recall"


@each_dialect
def test_json_over_each_kind(lab: Lab, dialect: Dialect) -> None:
    """Case 3: the flag of every hop is that of its reader."""
    asked = builders.request(stream=None)
    with lab.post(asked, says(dialect, HIDDEN), says(dialect, message("Pip."))) as exchange:
        assert exchange.status == 200
        assert exchange.headers["content-type"] == "application/json"
        answer = exchange.json()
    assert checks.text_of(answer["output"][0]) == "Pip."
    assert [request.json()["stream"] for request in lab.provider.requests] == [False, False]


@each_dialect
def test_the_second_turn_begins_like_the_first_ended(lab: Lab, dialect: Dialect) -> None:
    """Case 13, and what the upstream must see again of its reasoning."""
    first, second = says(dialect, reasoning("Hm."), HIDDEN), says(dialect, message("Pip."))
    asked = builders.request()
    with lab.post(asked, first, second) as exchange:
        events = checks.received(exchange)
    history = [*asked["input"], *events[-1]["response"]["output"], user("thanks")]
    with lab.post(asked | {"input": history}, says(dialect, message("Welcome."))) as exchange:
        checks.received(exchange)
    before, after = (dialect.heard(lab.seen(n).json()).turns for n in (1, 2))
    assert after[: len(before)] == before
    assert after[-1] == ("user", ["thanks"])


@each_dialect
def test_events_are_live_and_created_is_not_held_back(lab: Lab, dialect: Dialect) -> None:
    gate = Gate()
    with lab.post(
        builders.request(), says(dialect, message("one two three four"), gate=gate)
    ) as exchange:
        exchange.next_event("response.created")
        exchange.next_event("response.output_text.delta")
        gate.open()
        assert exchange.next_event("response.completed")


@each_dialect
def test_a_tool_of_the_client_makes_its_round_trip(lab: Lab, dialect: Dialect) -> None:
    asked = builders.request()
    call = function_call("toolu_1", "shell", {"command": "ls"})
    with lab.post(asked, says(dialect, message("Let me look."), call)) as exchange:
        items = checks.received(exchange)[-1]["response"]["output"]
    assert [item["type"] for item in items] == ["message", "function_call"]
    answer = output(items[1]["call_id"], "a file")
    history = [*asked["input"], *items, answer]
    with lab.post(asked | {"input": history}, says(dialect, message("There."))) as exchange:
        assert checks.answer_of(checks.received(exchange)) == "There."
    assert dialect.heard(lab.seen().json()).turns == [
        ("user", ["hello"]),
        ("assistant", "Let me look.", "", [("shell", {"command": "ls"})]),
        ("results", [("shell", "a file")]),
    ]


@each_dialect
def test_what_an_upstream_gets_to_see_of_the_client(lab: Lab, dialect: Dialect) -> None:
    headers = (
        ("authorization", "Bearer sk-client"),
        ("cookie", "a=b"),
        ("openai-organization", "org"),
        ("x-codex-turn-metadata", "{}"),
        ("user-agent", "me"),
    )
    with lab.post(builders.request(), says(dialect, message("hi")), headers=headers) as exchange:
        checks.received(exchange)
    seen = lab.seen()
    key = {
        CHAT.kind: ("authorization", b"Bearer sk-client"),
        ANTHROPIC.kind: ("x-api-key", b"sk-ant-env"),
        OLLAMA.kind: ("authorization", b"Bearer ollama-env"),
    }[dialect.kind]
    assert seen.header(key[0]) == key[1]
    assert seen.header("user-agent") == b"me"
    for name in ("cookie", "openai-organization", "x-codex-turn-metadata"):
        assert seen.header(name) is None
    if dialect is ANTHROPIC:
        assert seen.header("anthropic-version") == b"2023-06-01"
        assert seen.header("authorization") is None


@each_dialect
def test_errors_are_told_in_one_shape(lab: Lab, dialect: Dialect) -> None:
    inner: object = {"type": "rate_limit_error", "message": "Slow down"}
    error = {"error": "Slow down" if dialect is OLLAMA else inner}
    headers = [("content-type", "application/json"), ("retry-after", "60")]
    refusal = response(429, json.dumps(error).encode(), headers=headers)
    with lab.post(builders.request(), refusal) as exchange:
        assert exchange.status == 429
        assert exchange.headers["retry-after"] == "60"
        told = exchange.json()["error"]
    assert told["message"] == "Slow down"
    assert told["code"] == ("server_error" if dialect is OLLAMA else "rate_limit_exceeded")


@each_dialect
def test_a_response_is_continued_by_its_id(lab: Lab, dialect: Dialect) -> None:
    """The upstream keeps nothing, so the history is kept for it, hidden calls and all."""
    first, second = says(dialect, reasoning("Hm."), HIDDEN), says(dialect, message("Pip."))
    asked = builders.request(store=None)
    with lab.post(asked, first, second) as exchange:
        one = checks.received(exchange)[-1]["response"]["id"]
    more = asked | {"input": "And its colour?", "previous_response_id": one}
    with lab.post(more, says(dialect, message("Yellow."))) as exchange:
        two = checks.received(exchange)[-1]["response"]["id"]
    last = asked | {"input": "Thanks.", "previous_response_id": two}
    with lab.post(last, says(dialect, message("Welcome."))) as exchange:
        checks.received(exchange)
    heard = [dialect.heard(request.json()).turns for request in lab.provider.requests]
    assert heard[3][: len(heard[1])] == heard[1]
    assert heard[3][len(heard[1]) :] == [
        ("assistant", "Pip.", "", []),
        ("user", ["And its colour?"]),
        ("assistant", "Yellow.", "", []),
        ("user", ["Thanks."]),
    ]
    unstored = asked | {"store": False}
    with lab.post(unstored, says(dialect, message("hi"))) as exchange:
        gone = checks.received(exchange)[-1]["response"]["id"]
    with lab.post(asked | {"previous_response_id": gone}) as exchange:
        assert exchange.status == 400


@each_dialect
def test_what_can_not_be_asked_for_is_refused_and_nothing_is_sent(lab: Lab) -> None:
    with lab.post(builders.request(previous_response_id="resp_1")) as exchange:
        assert exchange.status == 400
        assert "this upstream keeps nothing itself" in exchange.json()["error"]["message"]
    with lab.proxy.get("/v1/responses/resp_1") as exchange:
        assert exchange.status == 404
        assert "does not speak Responses" in exchange.json()["error"]["message"]
    assert lab.provider.requests == []
    lab.is_idle()


@each_dialect
def test_what_is_left_out_is_counted(lab: Lab, dialect: Dialect) -> None:
    asked = builders.request(tools=[builders.CLIENT_TOOL, {"type": "web_search"}])
    name, labels = "request_parts_left_out_total", {"kind": dialect.kind, "part": "hosted_tool"}
    before = lab.proxy.metric(name, **labels)
    with lab.post(asked, says(dialect, HIDDEN), says(dialect, message("hi"))) as exchange:
        checks.received(exchange)
    lab.proxy.reaches(before + 1, name, **labels)


@each_dialect
def test_the_sdk_reads_it(lab: Lab, dialect: Dialect) -> None:
    lab.provider.script([says(dialect, reasoning("Hm."), HIDDEN), says(dialect, message("Pip."))])
    with (
        OpenAI(base_url=f"{lab.proxy.url}/v1", api_key="sk-test", max_retries=0) as client,
        client.responses.stream(
            model="m", input="hello", tools=[builders.CLIENT_TOOL], store=False
        ) as stream,
    ):
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(texts) == final.output_text == "Pip."
    assert final.usage is not None
    assert final.usage.input_tokens_details.cache_write_tokens == 0


def test_a_missing_key_fails_before_anything_is_sent(start_lab: StartLab) -> None:
    lab = start_lab(kind="anthropic")
    with lab.post(builders.request(), headers=()) as exchange:
        assert exchange.status == 401
        error = exchange.json()["error"]
    assert error["code"] == "missing_api_key"
    assert "ANTHROPIC_API_KEY" in error["message"]
    assert lab.provider.requests == []


@pytest.mark.parametrize(
    ("kind", "target"), [("anthropic", b"/v1/models"), ("ollama", b"/v1/models")]
)
def test_other_paths_pass_with_the_credential_of_the_upstream(
    start_lab: StartLab, kind: str, target: bytes
) -> None:
    lab = start_lab(kind=kind, environment=KEYS)
    lab.provider.script([response(200, b'{"data":[]}')])
    with lab.proxy.get("/v1/models") as exchange:
        assert exchange.body() == b'{"data":[]}'
    assert lab.seen().target == target
    assert lab.seen().header("cookie") is None


# ------------------------------------------------------------------- several kinds behind one


TWO_KINDS = """
[[upstream]]
kind = "{one}"
base_url = "{url}"
[[upstream]]
kind = "{other}"
base_url = "{url}"
"""
PAIRS = [(CHAT, ANTHROPIC), (ANTHROPIC, OLLAMA), (OLLAMA, CHAT)]


def two(start_lab: StartLab, one: Dialect, other: Dialect) -> Lab:
    """Start a proxy with two upstreams of two kinds, both of them the same provider."""
    config = TWO_KINDS.replace("{one}", one.kind).replace("{other}", other.kind)
    keyed = config.replace("[[upstream]]", '[[upstream]]\napi_key = "k"')
    return start_lab(config=keyed, environment=KEYS)


def fails(dialect: Dialect, *items: Item) -> Steps:
    """Return an answer that says these items and then fails."""
    start = dialect.stream(*items)
    told = opening(dialect, start) if items else _begun(dialect)
    body = told + dialect.error("overloaded_error", "Overloaded")
    return response(200, body, headers=[("content-type", dialect.form)], framing="chunked")


def _begun(dialect: Dialect) -> bytes:
    """Return as much of an answer as makes a response begin."""
    gap = b"\n" if dialect is OLLAMA else b"\n\n"
    if dialect is OLLAMA:
        return lines(ollama_line({}))
    return dialect.stream(message("hi")).split(gap)[0] + gap


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda d: d.kind)
def test_an_upstream_of_another_kind_takes_over(
    start_lab: StartLab, one: Dialect, other: Dialect
) -> None:
    """Case 10, with a recall in the second upstream's answer."""
    lab = two(start_lab, one, other)
    replies = [fails(one), says(other, HIDDEN), says(other, message("Pip."))]
    with lab.post(builders.request(), *replies) as exchange:
        events = checks.received(exchange)
    assert checks.answer_of(events) == "Pip."
    targets = [request.target for request in lab.provider.requests]
    assert targets[0].endswith(PATHS[one.kind].removeprefix(b"/v1"))
    assert targets[1] == targets[2]
    assert targets[1].endswith(PATHS[other.kind].removeprefix(b"/v1"))


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda d: d.kind)
def test_after_the_first_text_nobody_takes_over(
    start_lab: StartLab, one: Dialect, other: Dialect
) -> None:
    """Case 10."""
    lab = two(start_lab, one, other)
    with lab.post(builders.request(), fails(one, message("hi"))) as exchange:
        events = checks.received(exchange)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["message"] == "Overloaded"
    assert len(lab.provider.requests) == 1
