"""Two providers behind one proxy: who answers, who is asked, and what nobody gets to know."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests import builders, dialects
from tests.builders import failed, item_events, message, numbered, opening, recall_call
from tests.e2e import checks
from tests.e2e.client import SDK_HEADERS, Exchange
from tests.e2e.process import Proxy
from tests.e2e.replies import says, streamed
from tests.upstreams import Gate, ScriptedProvider, answer, stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.client import Headers
    from tests.e2e.conftest import Lab, StartLab
    from tests.upstreams import Reply

ANSWER = message("It is all fine.")
OVERLOADED = failed("server_is_overloaded", "Come back later.")
FAILS_INSIDE = streamed(numbered([*opening(), OVERLOADED]))
FAILS_LATER = streamed(numbered([*opening(), *item_events(ANSWER, 0)[:4], OVERLOADED]))
REFUSES = answer({"error": {"message": "No.", "type": "t", "code": "c", "param": None}}, status=401)
CONFIG = """
[[upstream]]
name = "one"
kind = "responses"
base_url = "{one}/v1"
api_key = "sk-key-of-one"

[[upstream]]
name = "two"
kind = "{kind}"
base_url = "{two}/v1"
api_key = "sk-key-of-two"
model = "model-of-two"
"""


@dataclass(slots=True)
class Pair:
    """Two providers, and the proxy in front of them."""

    one: ScriptedProvider
    two: ScriptedProvider
    proxy: Proxy
    conversations: int = 0

    def post(
        self,
        one: list[Reply],
        two: list[Reply],
        body: dict[str, Any] | None = None,
        *,
        headers: Headers = SDK_HEADERS,
        target: str = "/v1/responses",
    ) -> Exchange:
        """Begin a conversation in which the providers have these replies."""
        self.script(one, two)
        if body is None:
            self.conversations += 1
            body = builders.request(text=f"This is conversation {self.conversations}.")
        return Exchange(self.proxy.port, body, headers=headers, target=target)

    def script(self, one: list[Reply], two: list[Reply]) -> None:
        """Give the providers these replies, and forget what they were asked."""
        for provider, replies in ((self.one, one), (self.two, two)):
            provider._replies.clear()
            provider.script(replies)
            provider.requests.clear()

    @property
    def asked(self) -> tuple[int, int]:
        """How many requests each provider got since the last ``post``."""
        return len(self.one.requests), len(self.two.requests)


@contextmanager
def running(folder: Path, kind: str = "responses") -> Iterator[Pair]:
    """Run two providers, the second one of this kind, and the proxy."""
    with ScriptedProvider() as one, ScriptedProvider() as two:
        config = CONFIG.format(kind=kind, one=one.url, two=two.url)
        with Proxy(folder / "proxy", config=config) as proxy:
            yield Pair(one, two, proxy)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture
def pair(started: Pair) -> Iterator[Pair]:
    yield started
    started.proxy.reaches(0, "turns_in_flight")
    # An answer of the first one closes its circuit, so that no test shuts it for another.
    with started.post([says(ANSWER)], []) as exchange:
        exchange.body()


def test_a_failure_inside_a_200_is_the_next_ones_chance(pair: Pair) -> None:
    """Case 10: only the second provider's stream, and nobody hears of the first."""
    before = {
        name: pair.proxy.metric("upstream_requests_total", upstream=name) for name in ("one", "two")
    }
    replies = [says(ANSWER, response_id="resp_of_two")]
    with pair.post([FAILS_INSIDE], list(replies)) as exchange:
        frames = list(exchange.frames())
    events = checks.written(frames)
    checks.well_formed(events)
    assert checks.answer_of(events) == "It is all fine."
    assert {event["response"]["id"] for event in events if "response" in event} == {"resp_of_two"}
    assert pair.asked == (1, 1)
    for name, count in before.items():
        assert pair.proxy.metric("upstream_requests_total", upstream=name) == count + 1
    pair.proxy.reaches(0, "turns_in_flight")
    pair.proxy.tells('"attempts":2')


@pytest.mark.parametrize("form", ["observed", "json"])
def test_the_same_without_tools_and_without_a_stream(pair: Pair, form: str) -> None:
    changes: dict[str, Any] = {"tools": None, "tool_choice": None, "text": f"No tools, {form}."}
    if form == "json":
        changes["stream"] = None
        error = {"code": "server_is_overloaded", "message": "no"}
        first = answer({"id": "resp_A", "status": "failed", "output": [], "error": error})
        good = answer({"id": "resp_B", "status": "completed", "output": [ANSWER]})
    else:
        first, good = FAILS_INSIDE, says(ANSWER, response_id="resp_B")
    with pair.post([first], [good], builders.request(**changes)) as exchange:
        assert exchange.status == 200
        body = exchange.body()
    assert b"resp_B" in body
    assert b"resp_A" not in body
    assert pair.asked == (1, 1)


def test_a_failure_after_the_first_delta_is_the_clients(pair: Pair) -> None:
    """Case 10: the second provider is never called."""
    with pair.post([FAILS_LATER], [says(ANSWER)]) as exchange:
        events = checks.written(exchange.frames())
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == OVERLOADED["response"]["error"]
    assert pair.asked == (1, 0)


def test_a_single_provider_is_not_held_back(lab: Lab) -> None:
    """Case 10: created reaches the client before anything else is sent."""
    gate = Gate("the client has seen created")
    frames = builders.frames(numbered([*opening(), OVERLOADED]))
    with lab.post(builders.request(), stream(frames[0], gate, *frames[1:])) as exchange:
        exchange.next_event("response.created")
        gate.open()
        assert exchange.next_event("response.failed")


def test_a_second_provider_holds_it_back_for_a_moment_only(pair: Pair) -> None:
    """Neither it nor anybody can know whether the first one will fail: after 2 s it is taken."""
    gate = Gate("the client has seen created")
    frames = builders.frames(numbered([*opening(), OVERLOADED]))
    with pair.post([stream(*frames[:2], gate, *frames[2:])], [says(ANSWER)]) as exchange:
        exchange.next_event("response.created")
        gate.open()
        assert exchange.next_event("response.failed")
    assert pair.asked == (1, 0)


def test_each_provider_gets_its_own_key_and_its_own_model(pair: Pair) -> None:
    headers = (*SDK_HEADERS, ("cookie", "session=1"), ("openai-organization", "org-1"))
    good = says(ANSWER, headers=[("openai-model", "model-of-two"), ("openai-version", "1")])
    with pair.post([REFUSES], [good], headers=headers) as exchange:
        checks.received(exchange)
        assert "openai-model" not in exchange.headers
        assert exchange.headers["openai-version"] == "1"
    one, two = pair.one.requests[0], pair.two.requests[0]
    assert one.header("authorization") == b"Bearer sk-key-of-one"
    assert two.header("authorization") == b"Bearer sk-key-of-two"
    assert two.header("cookie") is None
    assert two.header("openai-organization") is None
    assert one.json()["model"] == builders.MODEL
    assert two.json()["model"] == "model-of-two"
    assert {**one.json(), "model": 0} == {**two.json(), "model": 0}


def test_another_models_name_is_not_repeated_in_events(pair: Pair) -> None:
    events = builders.stream(ANSWER)
    headers = {"openai-model": "model-of-two", "x-request-id": "r"}
    for event in events:
        if "response" in event:
            event["response"]["headers"] = dict(headers)
    with pair.post([REFUSES], [streamed(events)]) as exchange:
        seen = checks.received(exchange)
    del headers["openai-model"]
    assert [one["response"]["headers"] for one in seen if "response" in one] == [headers] * 3


def test_the_model_that_the_client_asked_for_keeps_its_header(pair: Pair) -> None:
    good = says(ANSWER, headers=[("openai-model", builders.MODEL)])
    with pair.post([good], []) as exchange:
        checks.received(exchange)
        assert exchange.headers["openai-model"] == builders.MODEL


def test_a_hidden_call_is_continued_where_it_was_made(pair: Pair) -> None:
    hidden = recall_call("call_hidden_1", {"query": "canary"})
    replies: list[Reply] = [says(hidden), says(ANSWER, response_id="resp_B")]
    with pair.post([FAILS_INSIDE], replies) as exchange:
        events = checks.received(exchange)
    assert checks.answer_of(events) == "It is all fine."
    assert pair.asked == (1, 2)
    assert {one.header("authorization") for one in pair.two.requests} == {b"Bearer sk-key-of-two"}
    assert {one.json()["model"] for one in pair.two.requests} == {"model-of-two"}


def test_a_conversation_stays_with_the_provider_that_took_it(pair: Pair) -> None:
    first = builders.request(text="A conversation that stays.")
    with pair.post([FAILS_INSIDE], [says(ANSWER)], first) as exchange:
        checks.received(exchange)
    again = builders.request(*first["input"], ANSWER, builders.user("And?"))
    with pair.post([], [says(ANSWER)], again) as exchange:
        checks.received(exchange)
    assert pair.asked == (0, 1)


def test_what_is_about_a_conversation_goes_to_its_home(pair: Pair) -> None:
    first = builders.request(text="A conversation that is compacted.", store=True)
    good = says(ANSWER, response_id="resp_at_two")
    with pair.post([FAILS_INSIDE], [good], first) as exchange:
        checks.received(exchange)
    compact = {key: first[key] for key in ("model", "instructions", "input")}
    targets = {
        "/v1/responses/compact": compact,
        "/v1/responses/resp_at_two/cancel": {},
        "/v1/responses": builders.request(text="Go on.", previous_response_id="resp_at_two"),
    }
    for target, body in targets.items():
        reply: Reply = says(ANSWER) if target == "/v1/responses" else answer({"ok": True})
        with pair.post([], [reply], body, target=target) as exchange:
            assert exchange.status == 200
            exchange.body()
        assert pair.asked == (0, 1), target
        assert pair.two.requests[0].header("authorization") == b"Bearer sk-key-of-two"


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_the_last_refusal_is_the_answer_and_final(pair: Pair, status: int) -> None:
    error = {"error": {"message": "Not me.", "type": "t", "code": "c", "param": None}}
    refusal = answer(error, status=status, headers=[("x-should-retry", "true")])
    with pair.post([REFUSES], [refusal]) as exchange:
        assert exchange.status == status
        assert exchange.headers["x-should-retry"] == "false"
        assert exchange.headers["x-sottovoce-turn"].startswith("turn_")
        assert exchange.json() == error
    assert pair.asked == (1, 1)


def test_the_official_sdk_does_not_try_again(pair: Pair) -> None:
    conflict = answer({"error": {"message": "Not now.", "type": "t", "code": "c"}}, status=409)
    pair.script([conflict] * 3, [conflict] * 3)
    client = pair.proxy.sdk(max_retries=2)
    with client, pytest.raises(openai.ConflictError):
        client.responses.create(model="m", input="Is it now?")
    assert pair.asked == (1, 1)


def test_a_provider_that_asks_for_patience_is_left_to_the_client(pair: Pair) -> None:
    """Nobody could take it sooner: the client learns when to come again."""
    error = {"error": {"message": "Slow down.", "type": "t", "code": "c", "param": None}}
    busy = answer(error, status=429, headers=[("retry-after", "31")])
    with pair.post([busy], [busy]) as exchange:
        assert exchange.status == 429
        assert exchange.headers["retry-after"] == "31"
        assert "x-should-retry" not in exchange.headers
    assert pair.asked == (1, 1)


def test_what_passes_by_itself_is_tried_in_place(pair: Pair) -> None:
    with pair.post([answer({}, status=503), says(ANSWER)], []) as exchange:
        checks.received(exchange)
    assert pair.asked == (2, 0)


def test_no_sign_of_life_commits_the_answer_while_the_proxy_waits(start_lab: StartLab) -> None:
    """The client's head is an upstream's, however long that takes."""
    lab = start_lab(config="[server]\nkeepalive_seconds = 0.1\n")
    error = {"error": {"message": "Not me.", "type": "t", "code": "c", "param": None}}
    with lab.post(
        builders.request(), answer({}, status=503), answer(error, status=400)
    ) as exchange:
        assert exchange.status == 400
        assert exchange.json() == error
    assert len(lab.provider.requests) == 2


def test_a_client_that_leaves_while_the_proxy_waits(pair: Pair) -> None:
    exchange = pair.post([answer({}, status=503), says(ANSWER)], [])
    seen = pair.one.requests_seen
    seen.wait_for(seen.value + 1 - len(pair.one.requests))
    exchange.close()
    pair.proxy.reaches(0, "turns_in_flight")
    assert pair.asked == (1, 0)


def test_a_refused_history_is_healed(pair: Pair) -> None:
    sealed = builders.reasoning("why", encrypted="gAAAA")
    body = builders.request(builders.user("Sealed."), sealed, ANSWER, builders.user("And?"))
    refusal = answer({"error": {"message": "no", "code": "invalid_encrypted_content"}}, status=400)
    with pair.post([refusal, says(ANSWER)], [], body) as exchange:
        checks.received(exchange)
    assert pair.asked == (2, 0)
    first, second = (one.json()["input"] for one in pair.one.requests)
    assert first[1]["encrypted_content"] == "gAAAA"
    assert second[1] == {"type": "reasoning", "summary": sealed["summary"]}
    assert [*first[:1], *first[2:]] == [*second[:1], *second[2:]]


def test_an_upstream_that_keeps_failing_is_left_alone(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        for _ in range(5):
            with pair.post([REFUSES], [says(ANSWER)]) as exchange:
                checks.received(exchange)
            assert pair.asked == (1, 1)
        with pair.post([REFUSES], [says(ANSWER)]) as exchange:
            checks.received(exchange)
        assert pair.asked == (0, 1)
        with pair.proxy.get("/readyz") as exchange:
            assert exchange.status == 200
            states = {one["name"]: one["circuit"] for one in exchange.json()["upstreams"]}
        assert states == {"one": "open", "two": "closed"}
        assert pair.proxy.metric("upstream_circuit", upstream="one", state="open") == 1
        # What only the first one can know is asked there all the same.
        bound = builders.request(text="Go on.", previous_response_id="resp_1")
        with pair.post([says(ANSWER)], [], bound) as exchange:
            checks.received(exchange)
        assert pair.asked == (1, 0)


def test_a_provider_of_another_kind_takes_over(tmp_path: Path) -> None:
    with running(tmp_path, "openai_compat") as pair:
        chat = stream(dialects.chat_stream(ANSWER))
        with pair.post([FAILS_INSIDE], [chat]) as exchange:
            events = checks.received(exchange)
        assert checks.answer_of(events) == "It is all fine."
        assert pair.asked == (1, 1)
        seen = pair.two.requests[0]
        assert seen.target == b"/v1/chat/completions"
        assert seen.header("authorization") == b"Bearer sk-key-of-two"
        assert seen.json()["model"] == "model-of-two"
        error = answer({"error": {"message": "Not me.", "code": "c"}}, status=404)
        with pair.post([REFUSES], [error]) as exchange:
            assert exchange.status == 404
            assert exchange.headers["content-type"] == "application/json"
            assert exchange.json()["error"]["message"] == "Not me."
