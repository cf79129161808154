"""Compaction over upstreams that have none: asked for, kept by the client, read again."""

from __future__ import annotations

import base64
import json
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pytest
from openai import OpenAI

from pipeline.compaction import PROMPT
from pipeline.sealing import SEALED
from tests import builders
from tests.builders import function_call, message, output, user
from tests.dialects import CHAT, Dialect, each_dialect, usage
from tests.e2e import checks, replies
from tests.e2e.client import CODEX_HEADERS, SDK_HEADERS
from tests.e2e.conftest import Lab
from tests.e2e.process import Proxy
from tests.e2e.test_providers import HIDDEN, KEYS, PATHS, says
from tests.upstreams import Gate, ScriptedProvider, response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.builders import Event, Item
    from tests.e2e.conftest import StartLab
    from tests.upstreams import Received, Steps

TRIGGER: Final[Item] = {"type": "compaction_trigger"}
CANARY: Final = "Pip is a canary, and the cage is open."
IMAGE: Final = "data:image/png;base64,iVBORw0KGgo="
COMPACT: Final = "/v1/responses/compact"
PREFIX: Final = "[A summary of the conversation up to here"
TALK: Final = (user("Who is it?"), message("A bird."), user("What is its name?"))


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    """One process for each kind, started when it is first needed."""
    with ExitStack() as stack:

        @cache
        def lab_of(kind: str) -> Lab:
            provider = stack.enter_context(ScriptedProvider())
            folder = tmp_path_factory.mktemp(kind) / "proxy"
            url = f"{provider.url}/v1"
            config = "[sessions]\ncompress_on_overflow = true\n"
            proxy = Proxy(folder, upstream=url, kind=kind, environment=KEYS, config=config)
            return Lab(provider, stack.enter_context(proxy))

        yield lab_of


@pytest.fixture
def lab(labs: Callable[[str], Lab], dialect: Dialect) -> Iterator[Lab]:
    """The lab of a kind, with a script and a record of its own."""
    lab = labs(dialect.kind)
    yield lab
    lab.is_idle()
    lab.provider._replies.clear()
    lab.provider.requests.clear()


def refuses(status: int = 400, text: str = "the prompt exceeds the maximum context") -> Steps:
    body = json.dumps({"error": {"message": text, "type": "invalid_request_error"}}).encode()
    return response(status, body, headers=[("content-type", "application/json")])


def compacted(events: list[Event]) -> Item:
    """Return the one item of a stream that compacts, which must be whole."""
    checks.well_formed(events)
    assert [event["type"] for event in events if "in_progress" not in event["type"]] == [
        "response.created",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    (item,) = events[-1]["response"]["output"]
    assert item["type"] == "compaction"
    assert item["id"].startswith("cmp_")
    assert events[-2]["item"] == item
    assert isinstance(item, dict)
    return item


def compact(lab: Lab, dialect: Dialect, *items: Item, **members: object) -> Item:
    """Let a conversation be compacted; return what the client keeps of it."""
    asked = builders.request(*(items or TALK), TRIGGER, **members)
    with lab.post(asked, says(dialect, message(CANARY))) as exchange:
        return compacted(checks.received(exchange))


def texts_of(turn: tuple[Any, ...]) -> str:
    assert turn[0] == "user"
    return "\n".join(turn[1])


def heard(lab: Lab, dialect: Dialect, number: int = -1) -> Any:
    return dialect.heard(lab.seen(number).json())


# ------------------------------------------------------------------------------ asked for


@each_dialect
@pytest.mark.parametrize("headers", [SDK_HEADERS, CODEX_HEADERS], ids=["an SDK", "Codex"])
def test_a_stream(lab: Lab, dialect: Dialect, headers: Any) -> None:
    asked = builders.request(*TALK, TRIGGER)
    reply = says(dialect, message(CANARY), usage=usage(100, 10))
    with lab.post(asked, reply, headers=headers) as exchange:
        frames = list(exchange.frames())
    item = compacted(checks.written(frames))
    raw = b"".join(frame.raw for frame in frames)
    checks.knows_nothing_of(raw, "canary", "cage")
    assert "canary" not in str(base64.urlsafe_b64decode(item["encrypted_content"][len(SEALED) :]))
    assert checks.figures(frames[-1].event["response"]["usage"])[:3] == (100, 10, 110)
    (request,) = lab.provider.requests
    assert request.target == PATHS[dialect.kind]
    assert request.json()["stream"] is True
    *talk, prompt = heard(lab, dialect).turns
    assert PROMPT in texts_of(prompt) or PROMPT in texts_of(talk[-1])
    assert b"recall" not in request.body
    assert b"compaction_trigger" not in request.body


@each_dialect
def test_json(lab: Lab, dialect: Dialect) -> None:
    asked = builders.request(*TALK, TRIGGER, stream=None)
    with lab.post(asked, says(dialect, message(CANARY))) as exchange:
        assert exchange.status == 200
        assert exchange.headers["content-type"] == "application/json"
        answer = exchange.json()
    assert answer["object"] == "response"
    assert answer["status"] == "completed"
    assert [item["type"] for item in answer["output"]] == ["compaction"]
    assert lab.seen().json()["stream"] is False


@each_dialect
def test_the_path_of_its_own(lab: Lab, dialect: Dialect) -> None:
    lab.provider.script([says(dialect, message(CANARY), usage=usage(100, 10))])
    with OpenAI(base_url=f"{lab.proxy.url}/v1", api_key="sk-test", max_retries=0) as client:
        done = client.responses.compact(model="m", input="Who is it?", instructions="Be brief.")
    assert done.object == "response.compaction"
    assert [item.type for item in done.output] == ["compaction"]
    assert done.usage.total_tokens == 110
    assert "Who is it?" in texts_of(heard(lab, dialect).turns[0])


@each_dialect
def test_the_summary_stands_in_its_place_from_then_on(lab: Lab, dialect: Dialect) -> None:
    item = compact(lab, dialect)
    history = [user("Who is it?"), item, message("Pip."), user("Its colour?")]
    with lab.post(builders.request(*history), says(dialect, message("Yellow."))) as exchange:
        assert checks.answer_of(checks.received(exchange)) == "Yellow."
    told = json.dumps(heard(lab, dialect).turns)
    assert told.count(PREFIX) == 1
    assert told.count(CANARY) == 1
    assert told.index("Who is it?") < told.index(CANARY) < told.index("Pip.")
    assert SEALED not in lab.seen().body.decode()


@each_dialect
def test_a_compaction_can_be_compacted(lab: Lab, dialect: Dialect) -> None:
    item = compact(lab, dialect)
    again = compact(lab, dialect, item, user("And?"))
    assert again["encrypted_content"] == item["encrypted_content"]  # it says the same
    assert CANARY in json.dumps(heard(lab, dialect).turns)


@each_dialect
def test_tools_and_images(lab: Lab, dialect: Dialect) -> None:
    seen = {"type": "input_image", "image_url": IMAGE, "detail": "auto"}
    looks = {"type": "message", "role": "user", "content": [seen]}
    call = function_call("call_1", builders.CLIENT_TOOL["name"], {"command": "ls"})
    compact(lab, dialect, looks, call, output("call_1", "a file"), user("Go on."))
    understood = heard(lab, dialect)
    at = next(n for n, turn in enumerate(understood.turns) if turn[0] == "assistant")
    called, results = understood.turns[at : at + 2]
    assert [name for name, _ in called[3]] == [builders.CLIENT_TOOL["name"]]
    assert results[1][0][1] == "a file"
    assert b"iVBORw0KGgo=" in lab.seen().body
    assert understood.choice in (None, "none", {"type": "none"})


@each_dialect
def test_hidden_pairs_are_summarized_as_well(lab: Lab, dialect: Dialect) -> None:
    """Case 13."""
    asked = builders.request(user("Who is it?"))
    with lab.post(asked, says(dialect, HIDDEN), says(dialect, message("Pip."))) as exchange:
        events = checks.received(exchange)
    history = [*asked["input"], *events[-1]["response"]["output"]]
    compact(lab, dialect, *history)
    before, after = heard(lab, dialect, 1).turns, heard(lab, dialect, 2).turns
    assert after[: len(before)] == before
    assert "recall" in json.dumps(before)


@each_dialect
def test_what_follows_by_id_follows_the_summary(lab: Lab, dialect: Dialect) -> None:
    asked = builders.request(*TALK, TRIGGER, store=None)
    with lab.post(asked, says(dialect, message(CANARY))) as exchange:
        identity = checks.received(exchange)[-1]["response"]["id"]
    then = builders.request(user("And?"), previous_response_id=identity)
    with lab.post(then, says(dialect, message("Yes."))) as exchange:
        checks.received(exchange)
    told = json.dumps(heard(lab, dialect).turns)
    assert CANARY in told
    assert "Who is it?" not in told


def test_after_a_restart(tmp_path: Any) -> None:
    with ScriptedProvider() as provider:
        url = f"{provider.url}/v1"
        make = Proxy(tmp_path / "one", upstream=url, kind=CHAT.kind)
        headers = (*SDK_HEADERS, ("x-sottovoce-no-store", "1"))
        with make as proxy:
            lab = Lab(provider, proxy)
            asked = builders.request(*TALK, TRIGGER)
            with lab.post(asked, says(CHAT, message(CANARY)), headers=headers) as exchange:
                item = compacted(checks.received(exchange))
        with make as proxy:
            lab = Lab(provider, proxy)
            with lab.post(builders.request(item), says(CHAT, message("hi"))) as exchange:
                checks.received(exchange)
            assert CANARY in texts_of(heard(lab, CHAT).turns[0])


def test_another_kind_of_upstream_reads_it_too(start_lab: StartLab) -> None:
    """Also one that speaks Responses, which could not read ours."""
    config = """
[[upstream]]
name = "one"
kind = "openai_compat"
base_url = "{url}"
[[upstream]]
name = "two"
kind = "responses"
api_key = "k"
base_url = "{url}"
"""
    lab = start_lab(config=config)
    item = compact(lab, CHAT)
    odd = builders.request(item, user("And?"), big=12345678901234567890)

    with lab.post(odd, refuses(401, "no"), replies.says(message("hi"))) as exchange:
        checks.received(exchange)
    assert lab.seen().target == b"/v1/responses"
    summary, question = lab.seen().json()["input"]
    assert summary["content"][0]["text"].startswith(PREFIX)
    assert summary["content"][0]["text"].endswith(CANARY)
    assert set(summary) == {"type", "role", "content"}
    assert question == user("And?")
    assert b'"big": 12345678901234567890' in lab.seen().body


# ------------------------------------------------------------------------------ refused


@pytest.mark.parametrize("dialect", [CHAT], ids=["chat"])
def test_who_may_bring_it(start_lab: StartLab, dialect: Dialect) -> None:
    lab = start_lab(kind=dialect.kind, config='[server]\ntenancy = "credential"\n')
    item = compact(lab, dialect)
    with lab.post(builders.request(item), says(dialect, message("hi"))) as exchange:
        checks.received(exchange)
    sealed = item["encrypted_content"]
    middle = len(sealed) // 2
    other = "A" if sealed[middle] != "A" else "B"
    forged = [sealed[:middle] + other + sealed[middle + 1 :], sealed[:-4], SEALED, SEALED + "é"]
    for text in forged:
        with lab.post(builders.request(item | {"encrypted_content": text})) as exchange:
            assert exchange.status == 400
            error = exchange.json()["error"]
        assert error["code"] == "invalid_encrypted_content"
        assert "input[0]" in error["message"]
    stranger = (("authorization", "Bearer sk-other"),)
    with lab.post(builders.request(item), headers=stranger) as exchange:
        assert exchange.status == 400
        assert exchange.json()["error"]["code"] == "invalid_encrypted_content"
    assert len(lab.provider.requests) == 2


@each_dialect
def test_a_compaction_of_another_provider_is_refused(lab: Lab) -> None:
    foreign = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAABo"}
    with lab.post(builders.request(foreign, user("And?"))) as exchange:
        assert exchange.status == 400
        assert "another provider" in exchange.json()["error"]["message"]
    assert lab.provider.requests == []


@each_dialect
@pytest.mark.parametrize("target", ["/v1/responses", COMPACT])
def test_nothing_to_compact(lab: Lab, target: str) -> None:
    asked = builders.request(TRIGGER) if target != COMPACT else {"model": "m", "input": []}
    with lab.post(asked, target=target) as exchange:
        assert exchange.status == 400
        assert "no conversation to compact" in exchange.json()["error"]["message"]
    assert lab.provider.requests == []


@each_dialect
def test_an_upstream_that_tells_no_summary(lab: Lab, dialect: Dialect) -> None:
    call = function_call("call_1", builders.CLIENT_TOOL["name"], {"command": "ls"})
    with lab.post(builders.request(*TALK, TRIGGER), says(dialect, call)) as exchange:
        assert exchange.status in (200, 502)
        told = exchange.body().decode()
    assert "answered without one" in told
    assert "compaction_trigger" not in told
    assert len(lab.provider.requests) == 1


@each_dialect
@pytest.mark.parametrize("target", ["/v1/responses", COMPACT])
def test_an_upstream_that_fails(lab: Lab, dialect: Dialect, target: str) -> None:
    asked = builders.request(*TALK, TRIGGER) if target != COMPACT else builders.request(*TALK)
    with lab.post(asked, refuses(403, "not you"), target=target) as exchange:
        assert exchange.status == 403
        assert exchange.json()["error"]["message"] == "not you"
    name = "compactions_total"
    assert lab.proxy.metric(name, reason="asked", result="failed") >= 1
    del dialect


@each_dialect
def test_an_upstream_that_breaks_in_the_middle(lab: Lab, dialect: Dialect) -> None:
    whole = dialect.stream(message(CANARY))
    broken = whole[: len(whole) // 2] + dialect.error("overloaded_error", "Overloaded")
    reply = response(200, broken, headers=[("content-type", dialect.form)], framing="chunked")
    with lab.post(builders.request(*TALK, TRIGGER), reply) as exchange:
        frames = list(exchange.frames())
    checks.knows_nothing_of(b"".join(frame.raw for frame in frames), "Pip", "canary")
    events = checks.written(frames)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["output"] == []


def test_signs_of_life_until_the_summary_is_there(start_lab: StartLab) -> None:
    """Case 9."""
    lab = start_lab(kind=CHAT.kind, config="[server]\nkeepalive_seconds = 0.1\n")
    gate = Gate()
    reply = says(CHAT, message(CANARY), gate=gate)
    with lab.post(builders.request(*TALK, TRIGGER), reply) as exchange:
        events = [exchange.next_event("response.created")]
        events += [exchange.next_event("response.in_progress") for _ in range(4)]
        gate.open()
        events += [frame.event for frame in exchange.frames()]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    compacted(events)


@each_dialect
def test_a_client_that_leaves_takes_the_summary_with_it(lab: Lab, dialect: Dialect) -> None:
    gate = Gate()
    reply = says(dialect, message(CANARY), gate=gate)
    with lab.post(builders.request(*TALK, TRIGGER), reply) as exchange:
        exchange.next_event("response.created")
        exchange.reset()
    lab.is_idle()
    gate.open()


@each_dialect
def test_a_recall_right_behind_a_compaction(lab: Lab, dialect: Dialect) -> None:
    """Case 13, where what stood in front is the summary."""
    item = compact(lab, dialect)
    replies = [says(dialect, HIDDEN), says(dialect, message("Pip."))]
    with lab.post(builders.request(item), *replies) as exchange:
        events = checks.received(exchange)
    history = [item, *events[-1]["response"]["output"], user("Thanks.")]
    with lab.post(builders.request(*history), says(dialect, message("Welcome."))) as exchange:
        checks.received(exchange)
    before, after = heard(lab, dialect, 2).turns, heard(lab, dialect, 3).turns
    assert after[: len(before)] == before
    assert json.dumps(after).count('"recall"') == json.dumps(before).count('"recall"') > 0


# ------------------------------------------------------------------------------ several steps


LONG: Final = tuple(
    item for n in range(8) for item in (user(f"ask-{n} " + "x" * 2000), message(f"told-{n}"))
)


def test_a_long_history_is_summarized_older_first(start_lab: StartLab) -> None:
    lab = start_lab(
        kind=CHAT.kind,
        config='[sessions]\ncompaction_tokens = 2500\ncompaction_prompt = "Sum it up."\n',
    )

    def tells(received: Received) -> Steps:
        number = len(lab.provider.requests)
        return says(CHAT, message(f"summary-{number}"), usage=usage(10, 1))(received)

    lab.provider.default = tells
    with lab.post(builders.request(*LONG, TRIGGER)) as exchange:
        item = compacted(events := checks.received(exchange))
    count = len(lab.provider.requests)
    assert count > 1
    assert checks.figures(events[-1]["response"]["usage"])[:2] == (10 * count, count)
    told = [json.dumps(heard(lab, CHAT, number).turns) for number in range(count)]
    assert all("Sum it up." in one for one in told)
    for number in range(8):
        assert sum(f"ask-{number} " in one for one in told) == 1
    assert [f"summary-{n}" in told[n] for n in range(1, count)] == [True] * (count - 1)
    with lab.post(builders.request(item)) as exchange:
        checks.received(exchange)
    assert f"summary-{count}" in texts_of(heard(lab, CHAT).turns[0])
    assert lab.proxy.metric("compactions_total", reason="asked", result="ok") == 1


@pytest.mark.parametrize("trigger", [True, False], ids=["asked for", "an overflow"])
def test_a_client_that_leaves_takes_an_early_step_with_it(
    start_lab: StartLab,
    trigger: bool,
) -> None:
    config = "[sessions]\ncompaction_tokens = 2500\ncompress_on_overflow = true\n"
    lab = start_lab(kind=CHAT.kind, config=config)
    gate = Gate()
    replies = [says(CHAT, message("summary-1"), gate=gate)]
    items = [*LONG, TRIGGER] if trigger else LONG
    lab.provider.script(replies if trigger else [refuses(), *replies])
    with lab.post(builders.request(*items)) as exchange:
        lab.provider.requests_seen.wait_for(1 if trigger else 2)
        exchange.reset()
    lab.is_idle()
    lab.provider.connections_closed.wait_for(1)
    gate.open()
    lab.provider.script([says(CHAT, message("hi"))])
    with lab.post(builders.request(user("hello"))) as exchange:
        assert checks.answer_of(checks.received(exchange)) == "hi"


@each_dialect
def test_a_step_that_is_too_long_is_halved(lab: Lab, dialect: Dialect) -> None:
    limit = 9_000

    def counts(received: Received) -> Steps:
        if len(received.body) > limit:
            return refuses()
        return says(dialect, message("short"))(received)

    lab.provider.default = counts
    try:
        with lab.post(builders.request(*LONG, TRIGGER, tools=None)) as exchange:
            compacted(checks.received(exchange))
    finally:
        lab.provider.default = None
    sizes = [len(request.body) for request in lab.provider.requests]
    assert sizes[0] > limit
    assert sizes[-1] <= limit


@each_dialect
def test_halving_ends(lab: Lab, dialect: Dialect) -> None:
    lab.provider.default = refuses()
    try:
        with lab.post(builders.request(*LONG, TRIGGER)) as exchange:
            assert exchange.status == 400
            assert "context" in exchange.json()["error"]["message"]
    finally:
        lab.provider.default = None
    assert len(lab.provider.requests) <= 6
    del dialect


# ------------------------------------------------------------------------------ an overflow


def fits(lab: Lab, dialect: Dialect, limit: int, *answers: Item) -> Callable[[Received], Steps]:
    """Return an upstream with a small context: it summarizes when asked to, else it answers."""
    left = list(answers)

    def reply(received: Received) -> Steps:
        if len(received.body) > limit:
            return refuses()
        if PROMPT.splitlines()[0] in received.body.decode():
            return says(dialect, message("THE SUMMARY"), usage=usage(50, 5))(received)
        return says(dialect, left.pop(0), usage=usage(7, 2))(received)

    del lab
    return reply


@each_dialect
@pytest.mark.parametrize("stream", [True, None], ids=["stream", "JSON"])
def test_an_overflow_is_healed_once(lab: Lab, dialect: Dialect, stream: bool | None) -> None:
    name, labels = "compactions_total", {"reason": "overflow", "result": "ok"}
    before = lab.proxy.metric(name, **labels)
    call = function_call("call_1", builders.CLIENT_TOOL["name"], {"command": "ls"})
    asked = builders.request(
        *LONG, user("The last question."), call, output("call_1", "a file"), stream=stream
    )
    lab.provider.default = fits(lab, dialect, 12_000, HIDDEN, message("Here."))
    try:
        with lab.post(asked) as exchange:
            assert exchange.status == 200
            if stream:
                events = checks.received(exchange)
                answer = events[-1]["response"]
            else:
                answer = exchange.json()
    finally:
        lab.provider.default = None
    assert checks.text_of(answer["output"][-1]) == "Here."
    last = heard(lab, dialect)
    told = json.dumps(last.turns)
    assert told.count("THE SUMMARY") == 1
    assert "The last question." in told
    assert "a file" in told
    assert "ask-0 " not in told
    assert '"recall"' in told
    assert lab.proxy.metric(name, **labels) == before + 1
    assert answer["usage"]["output_tokens"] > 5  # the summaries count
    answered = [request for request in lab.provider.requests if len(request.body) <= 12_000]
    assert sum(b"THE SUMMARY" in request.body for request in answered) >= 2


@each_dialect
def test_an_overflow_that_a_summary_can_not_heal_is_the_clients(lab: Lab, dialect: Dialect) -> None:
    lab.provider.default = refuses()
    try:
        with lab.post(builders.request(user("x" * 4000))) as exchange:
            assert exchange.status == 400
        assert len(lab.provider.requests) == 1  # there is nothing older than it
        with lab.post(builders.request(*LONG)) as exchange:
            assert exchange.status == 400
    finally:
        lab.provider.default = None
    assert len(lab.provider.requests) <= 9
    del dialect


def test_an_overflow_inside_a_200(start_lab: StartLab) -> None:
    lab = start_lab(kind=CHAT.kind, config="[sessions]\ncompress_on_overflow = true\n")
    error = CHAT.error("context_length_exceeded", "too long")
    inside = response(200, error, headers=[("content-type", CHAT.form)])
    told = [inside, says(CHAT, message("THE SUMMARY")), says(CHAT, message("Here."))]
    with lab.post(builders.request(*LONG), *told) as exchange:
        assert checks.answer_of(checks.received(exchange)) == "Here."
    assert "THE SUMMARY" in json.dumps(heard(lab, CHAT).turns)
    lab.proxy.tells("history compacted")
    checks.knows_nothing_of(lab.proxy.said.encode(), "THE SUMMARY", "ask-0")


def test_an_overflow_is_the_clients_where_nothing_is_switched_on(start_lab: StartLab) -> None:
    lab = start_lab(kind=CHAT.kind)
    with lab.post(builders.request(*LONG), refuses()) as exchange:
        assert exchange.status == 400
    assert len(lab.provider.requests) == 1


# ------------------------------------------------------------------------------ the upstream's own


@pytest.mark.parametrize("target", ["/v1/responses", COMPACT])
def test_an_upstream_that_compacts_itself_gets_what_came(shared_lab: Lab, target: str) -> None:
    body = b'{"model": "m",  "stream":true, "input": [{"type":"compaction_trigger"}]}'
    reply = response(200, b"data: 1\n\n", headers=[("content-type", "text/event-stream")])
    with shared_lab.post(body, reply, target=target) as exchange:
        exchange.body()
    assert shared_lab.seen().body == body
    assert shared_lab.seen().target == target.encode()


def chunked(told: str) -> str:
    """Return the text of a chat client's stream."""
    chunks = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.parametrize("tools", [True, False], ids=["recall", "nothing of ours"])
@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "JSON"])
def test_a_chat_clients_overflow_is_healed_as_well(
    start_lab: StartLab,
    tools: bool,
    streamed: bool,
) -> None:
    lab = start_lab(kind=CHAT.kind, config="[sessions]\ncompress_on_overflow = true\n")
    lab.provider.default = fits(lab, CHAT, 12_000, message("Here."))
    function = {"name": "shell", "parameters": {"type": "object"}}
    asked: dict[str, Any] = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            *(
                {"role": role, "content": f"{role}-{n} " + "x" * 2000}
                for n in range(8)
                for role in ("user", "assistant")
            ),
            {"role": "user", "content": "The last question."},
        ],
        "stream": streamed,
        **({"tools": [{"type": "function", "function": function}]} if tools else {}),
    }
    with lab.post(asked, target="/v1/chat/completions") as exchange:
        assert exchange.status == 200
        told = exchange.body().decode()
    assert ("data: [DONE]" in told) is streamed
    assert "THE SUMMARY" not in told
    said = chunked(told) if streamed else json.loads(told)["choices"][0]["message"]["content"]
    assert said == "Here."
    understood = heard(lab, CHAT)
    turns = json.dumps(understood.turns)
    assert understood.system == "Be brief."
    assert turns.count("THE SUMMARY") == 1
    assert "The last question." in turns
    assert "user-0 " not in turns
