"""Whole turns over every kind of upstream: hidden recalls, failures, empty completions."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.commands import ReportEmpty
from pipeline.outcome import Ending
from pipeline.reader import StreamMode
from tests import builders, strategies
from tests.builders import function_call, message, output, reasoning, recall_call, user
from tests.dialects import ANTHROPIC, CHAT, DIALECTS, OLLAMA, USAGE, Dialect, each_dialect, usage
from tests.playbook import TOOL, Answer, Played, bytewise, run_turn, whole
from tests.proxy.providers.reading import encoded, opening
from tests.sent import check_sent

if TYPE_CHECKING:
    from tests.builders import Item
    from tests.playbook import Chunking

clients = pytest.mark.parametrize("client", ["stream", "json"])
Client = Literal["stream", "json"]
CLIENTS: tuple[Client, ...] = ("stream", "json")
FOUND = "the canary is called Pip"


def play(
    dialect: Dialect,
    *hops: list[Item] | Answer,
    client: Client = "stream",
    request: dict[str, Any] | None = None,
    chunking: Chunking = whole,
    **options: Any,  # members of TurnOptions
) -> Played:
    """Play a turn whose upstream answers these items, hop by hop."""
    mode = StreamMode.JSON if client == "json" else StreamMode.SSE
    answers = [
        hop
        if isinstance(hop, Answer)
        else dialect.answer(*hop, mode=mode, identity=f"answer_{number}")
        for number, hop in enumerate(hops)
    ]
    return run_turn(
        request,
        answers,
        FOUND,
        client=client,
        chunking=chunking,
        reader=dialect.provider.reader,
        **options,
    )


def asked(dialect: Dialect, played: Played, hop: int) -> Any:
    """Return what the upstream heard in a hop."""
    return dialect.heard(encoded(dialect, played.requests[hop].body))


# ------------------------------------------------------------------------------------- recalls


@each_dialect
@clients
@pytest.mark.parametrize("chunking", [whole, bytewise])
def test_a_recall_is_hidden_and_answered(
    dialect: Dialect, client: Client, chunking: Chunking
) -> None:
    """Case 1."""
    hidden = recall_call("call_hidden", {"query": "the canary's name"})
    played = play(
        dialect,
        [reasoning("Look it up."), hidden],
        [message("It is Pip.")],
        client=client,
        chunking=chunking,
    )
    assert played.text == "It is Pip."
    if client == "stream":
        check_sent(played.client_bytes)
    for word in (b"recall", b"call_hidden", b"canary", b"sottovoce"):
        assert word not in played.client_bytes
    assert [item["type"] for item in played.response["output"]] == ["reasoning", "message"]
    assert played.response["usage"] == usage(24, 6)
    assert [json.loads(call.arguments) for call in played.calls] == [{"query": "the canary's name"}]
    heard = asked(dialect, played, 1)
    assert list(heard.tools) == ["shell", "recall"]
    assert heard.turns == [
        ("user", ["hello"]),
        ("assistant", "", "Look it up.", [("recall", {"query": "the canary's name"})]),
        ("results", [("recall", FOUND)]),
    ]
    assert played.outcome.ending is Ending.COMPLETED
    assert not played.outcome.findings


@each_dialect
def test_the_next_hop_begins_with_what_was_sent_before(dialect: Dialect) -> None:
    hops = [[recall_call(f"call_{n}", {"query": f"{n}"})] for n in range(3)]
    played = play(dialect, *hops, [message("Done.")])
    texts = [encoded(dialect, request.body)["messages"] for request in played.requests]
    for before, after in pairwise(texts):
        marked = ', "cache_control": {"type": "ephemeral"}'
        assert json.loads(json.dumps(before).replace(marked, "")) == after[: len(before)]


@each_dialect
def test_parallel_recalls_are_answered_in_the_order_of_their_calls(dialect: Dialect) -> None:
    pair = [recall_call(f"call_{n}", {"query": f"{n}"}) for n in range(2)]
    played = play(dialect, pair, [message("Done.")])
    results = asked(dialect, played, 1).turns[-1]
    assert results == ("results", [("recall", FOUND), ("recall", FOUND)])


@each_dialect
@clients
def test_mixed_calls_end_the_turn_with_the_clients(dialect: Dialect, client: Client) -> None:
    """Case 7."""
    calls = [
        recall_call("call_1", {"query": "a"}),
        function_call("call_2", "shell", {"command": "ls"}),
        recall_call("call_3", {"query": "b"}),
    ]
    played = play(dialect, calls, client=client)
    [call] = played.response["output"]
    assert (call["name"], json.loads(call["arguments"])) == ("shell", {"command": "ls"})
    assert b"recall" not in played.client_bytes
    assert len(played.requests) == 1
    saved = played.performer.saved[-1]  # the one with the results replaces the one before them
    assert saved.group is not None
    # What the ledger puts back stands where the calls stood, so every result finds its call.
    slots = [json.loads(slot.hidden or b"null") for slot in saved.group.slots]
    answer = output(call["call_id"], "a file")
    items = [user("hello"), *(slot or call for slot in slots), answer]
    heard = dialect.heard(encoded(dialect, builders.request(*items)))
    names = [name for name, _ in heard.turns[-1][1]]
    expected = ["recall", "shell", "recall"] if dialect is OLLAMA else ["recall", "recall", "shell"]
    assert names == expected


@given(st.sampled_from(DIALECTS), strategies.chunkings(), st.booleans())
def test_text_before_a_recall_stays_and_ids_never_collide(
    dialect: Dialect,
    chunking: Chunking,
    same: bool,
) -> None:
    hop = [message("Let me see."), recall_call("call_1", {"query": "x"})]
    answers = [
        dialect.answer(*one, identity="same" if same else f"{n}")
        for n, one in enumerate((hop, [message("Let me see.")]))
    ]
    played = play(dialect, *answers, chunking=chunking)
    check_sent(played.client_bytes)
    assert played.text == "Let me see.Let me see."


@each_dialect
def test_reasoning_that_the_client_did_not_ask_for_goes_back_all_the_same(dialect: Dialect) -> None:
    request = builders.request(store=True)
    hidden = recall_call("call_1", {"query": "x"})
    played = play(dialect, [reasoning("Hm."), hidden], [message("hi")], request=request)
    assert asked(dialect, played, 1).turns[1][2] == "Hm."
    kept = played.response["output"][0]["encrypted_content"]
    assert kept.startswith(f"sottovoce.1.{dialect.kind}.")


# ------------------------------------------------------------------------------------ failures


def error_of(dialect: Dialect) -> bytes:
    return dialect.error("overloaded_error", "Overloaded")


@each_dialect
def test_a_failure_at_once_is_an_answer_of_its_own(dialect: Dialect) -> None:
    """Case 10: nothing was shown, so another upstream could still be asked."""
    played = play(dialect, Answer(error_of(dialect), content_type=dialect.form))
    assert played.client_bytes == b""
    code = "server_error" if dialect is OLLAMA else "server_is_overloaded"
    assert (played.error.status, played.error.code) == (502, code)
    assert "Overloaded" in played.error.message


BODIES = [
    (ANTHROPIC, {"type": "error", "error": {"type": "overloaded_error", "message": "Later."}}),
    (CHAT, {"error": {"message": "Later.", "code": 503}}),
    (OLLAMA, {"error": "Later."}),
]


@pytest.mark.parametrize(("dialect", "body"), BODIES, ids=lambda one: getattr(one, "kind", ""))
@pytest.mark.parametrize("declared", [True, False])
def test_an_error_body_has_one_code_streamed_or_not(
    dialect: Dialect, body: dict[str, Any], *, declared: bool
) -> None:
    """It comes as JSON also where a stream was asked for."""
    answer = Answer(json.dumps(body).encode(), content_type="application/json")
    tools = (TOOL,) if declared else ()
    live, at_once = (play(dialect, answer, client=one, tools=tools) for one in CLIENTS)
    assert (live.error.status, live.error.code) == (at_once.error.status, at_once.error.code)
    assert live.error.code == ("server_error" if dialect is OLLAMA else "server_is_overloaded")
    assert "Later." in live.error.message


@each_dialect
def test_a_failure_after_text_is_the_streams_own(dialect: Dialect) -> None:
    """Case 10."""
    body = opening(dialect, dialect.stream(message("hi"))) + error_of(dialect)
    played = play(dialect, Answer(body, content_type=dialect.form))
    check_sent(played.client_bytes)
    assert played.kinds[0] == "response.created"
    assert played.kinds[-1] == "response.failed"
    assert played.response["error"]["message"] == "Overloaded"
    assert played.outcome.ending is Ending.PROVIDER_FAILED


@each_dialect
def test_created_is_not_held_back(dialect: Dialect) -> None:
    """Case 10: with one upstream alone ``created`` reaches the client at once."""
    reader = dialect.provider.reader
    start = opening(dialect, dialect.stream(message("hi")))
    played = run_turn(
        None,
        [Answer(start, content_type=dialect.form)] * 2,
        reader=reader,
    )
    assert played.kinds[0] == "response.created"
    assert played.kinds[-1] == "response.failed"


@each_dialect
@clients
def test_a_follow_up_that_fails_is_recovered(dialect: Dialect, client: Client) -> None:
    """Case 2."""
    hidden = recall_call("call_1", {"query": "x"})
    refused = Answer(b'{"error":{"message":"no"}}', status=400, content_type="application/json")
    played = play(dialect, [hidden], refused, [message("Without it, then.")], client=client)
    assert played.text == "Without it, then."
    assert played.response["usage"] == usage(24, 6)
    heard = asked(dialect, played, 2)
    assert list(heard.tools) == ["shell"]


@each_dialect
def test_a_limit_is_told_in_its_own_words(dialect: Dialect) -> None:
    body = dialect.stream(message("hi")).replace(b'"hi"', b'"' + b"x" * (1 << 19) + b'"')
    played = play(dialect, Answer(body, content_type=dialect.form))
    text = "SSE event exceeded 262144 byte limit"
    messages = [event["response"]["error"]["message"] for event in played.events[-1:]]
    assert [(played.performer.refused and played.error.message) or messages[0]] == [text]
    assert played.outcome.limit == "event_bytes"


# ------------------------------------------------------------------------------------- endings


@each_dialect
@clients
def test_an_empty_completion_passes_and_is_told_once(dialect: Dialect, client: Client) -> None:
    """Case 14."""
    played = play(dialect, [], client=client)
    assert played.response["output"] == []
    assert played.outcome.ending is Ending.COMPLETED
    [report] = [one for one in played.commands if isinstance(one, ReportEmpty)]
    model = {CHAT: "chat-test", ANTHROPIC: "claude-test", OLLAMA: "ollama-test"}[dialect]
    assert report == ReportEmpty(model, "completed", USAGE["output_tokens"], 0)


@each_dialect
@clients
def test_usage_of_an_incomplete_answer_counts(dialect: Dialect, client: Client) -> None:
    """Case 11."""
    reason = "max_tokens" if dialect is ANTHROPIC else "length"
    mode = StreamMode.JSON if client == "json" else StreamMode.SSE
    answer = dialect.answer(message("hi"), mode=mode, reason=reason, usage=usage(64, 1500))
    played = play(dialect, answer, client=client)
    assert played.response["status"] == "incomplete"
    assert played.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert played.response["usage"] == played.outcome.spent == usage(64, 1500)


@each_dialect
def test_an_observed_turn_passes_verbatim(dialect: Dialect) -> None:
    played = play(dialect, [reasoning("Hm."), message("hi")], declared=False)
    check_sent(played.client_bytes)
    assert not played.turn.view.client.changed
    assert not played.outcome.findings
