"""Chat client and chat upstream: what came is what goes out, but for what has to be hidden."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UpstreamError
from pipeline.join import OneMessageJoin
from pipeline.options import ClientForm
from pipeline.outcome import Ending
from pipeline.peek import Peek
from pipeline.reader import StreamMode
from pipeline.request import read_request
from pipeline.taxonomy import ErrorKind
from proxy.chat.completion import Fallback
from proxy.chat.reading import chat_reader
from proxy.chat.splicing import SplicedChatAnswer, SplicedChatStream
from recall.tool import NAME
from tests import builders
from tests.builders import compact
from tests.conftest import corpus_folder
from tests.dialects import sse
from tests.playbook import TOOL, Answer, bytewise, cut_at, limits, run_turn, whole
from tests.proxy.chat.chunks import read_chunks

if TYPE_CHECKING:
    from tests.playbook import Chunking, Played

NAMES = frozenset({NAME})
FALLBACK = Fallback("m-asked", 7)
READER = partial(chat_reader, created_at=builders.CREATED_AT)
USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 4,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": 0},
    "cost": 0.5,
    "queue": "fast",
}
SHELL = {"id": "call_1", "type": "function", "function": {"name": "shell", "arguments": ""}}
HIDDEN = {"id": "call_h", "type": "function", "function": {"name": NAME, "arguments": ""}}


def form(*, declared: bool = True, include_usage: bool = True, streamed: bool = True) -> ClientForm:
    names = NAMES if declared else frozenset[str]()
    if not streamed:
        answer = partial(SplicedChatAnswer, fallback=FALLBACK, names=names, sums=True)
        return ClientForm(answer, OneMessageJoin, passes=True)
    stream = partial(
        SplicedChatStream,
        include_usage=include_usage,
        fallback=FALLBACK,
        names=names,
        sums=True,
        held_bytes=1 << 17,
    )
    return ClientForm(stream, OneMessageJoin, passes=True)


def said(
    delta: dict[str, Any] | None, reason: str | None = None, *, hop: int = 1, **members: object
) -> dict[str, Any]:
    """Return a chunk with what vendors put into theirs; without a delta one without choices."""
    choice = {
        "index": 0,
        "delta": delta,
        "logprobs": None,
        "finish_reason": reason,
        "native_finish_reason": reason,
    }
    return {
        "id": f"gen-{hop}",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000 + hop,
        "model": f"m-{hop}",
        "system_fingerprint": f"fp_{hop}",
        "service_tier": "default",
        "provider": "Somebody",
        "choices": [] if delta is None else [choice],
    } | members


def call(index: int | None, entry: dict[str, Any], **function: str) -> dict[str, Any]:
    at = {} if index is None else {"index": index}
    merged = {**entry, "function": {**entry["function"], **function}}
    return {"tool_calls": [at | merged]}


def more(index: int, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


def recalling(hop: int = 1, *before: dict[str, Any]) -> list[Any]:
    """Return the chunks of a hop that only consults memory."""
    deltas = [
        {"role": "assistant", "content": ""},
        *before,
        call(0, HIDDEN),
        more(0, '{"query":'),
        more(0, '"canary"}'),
    ]
    chunks = [said(delta, hop=hop) for delta in deltas]
    return [*chunks, said({}, "tool_calls", hop=hop), said(None, hop=hop, usage=USAGE), "[DONE]"]


def saying(*deltas: dict[str, Any], hop: int = 1, reason: str = "stop") -> list[Any]:
    begun = [said({"role": "assistant", "content": ""}, hop=hop)]
    chunks = [said(delta, hop=hop) for delta in deltas]
    end = [said({}, reason, hop=hop), said(None, hop=hop, usage=USAGE), "[DONE]"]
    return [*begun, *chunks, *end]


def play(*hops: list[Any] | bytes | Answer, declared: bool = True, **options: Any) -> Played:
    answers = [
        hop if isinstance(hop, Answer) else Answer(hop if isinstance(hop, bytes) else sse(*hop))
        for hop in hops
    ]
    options.setdefault("form", form(declared=declared))
    tools = (TOOL,) if declared else ()
    return run_turn(hops=answers, reader=READER, tools=tools, **options)


def knows_nothing(played: Played) -> None:
    for word in (NAME, "call_h", "canary"):
        assert word.encode() not in played.client_bytes


# -------------------------------------------------------------------------------- no answer

NO_ANSWER: dict[str, bytes] = {
    "a mark": sse("[DONE]"),
    "comments and a mark": b": OPENROUTER PROCESSING\n\n" * 3 + sse("[DONE]"),
    "no choice": sse(said(None), said(None, usage=USAGE), "[DONE]"),
    "no choices member": sse({"id": "gen-1", "model": "m"}, "[DONE]"),
    "comments": b": OPENROUTER PROCESSING\n\n" * 3,
    "no choice and no mark": sse(said(None), said(None, usage=USAGE)),
}


@pytest.mark.parametrize("name", sorted(NO_ANSWER))
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("chunking", [whole, bytewise])
def test_a_stream_without_a_message_is_no_answer(
    name: str, chunking: Chunking, *, declared: bool
) -> None:
    """As a body without one, it is an error while the client has nothing."""
    body = Answer(NO_ANSWER[name])
    marked = name not in ("comments", "no choice and no mark")
    hops = [body] if marked else [body, body]  # what may have been cut is asked for once more
    played = play(*hops, declared=declared, chunking=chunking)
    assert played.client_bytes == b""
    assert played.error.status == 502
    assert ("has no message" in played.error.message) is marked
    assert played.outcome.ending is Ending.FAILED


@pytest.mark.parametrize("name", sorted(NO_ANSWER))
def test_another_upstream_is_asked_where_there_was_no_message(name: str) -> None:
    how: Any = {"observed": True, "phase": "principal", "redact": str}
    request = read_request(json.dumps(builders.request()).encode())
    peek = Peek(READER(request, StreamMode.SSE, limits(), **how), byte_limit=1 << 16, redact=str)
    peek.head("text/event-stream")
    peek.feed(NO_ANSWER[name])
    if not peek.over:
        peek.finish()
    assert peek.failure is not None
    assert peek.failure.kind in (ErrorKind.BAD_REQUEST, ErrorKind.NETWORK)


def test_a_follow_up_without_a_message_is_recovered() -> None:
    played = play(recalling(), NO_ANSWER["a mark"], saying({"content": "Hi."}, hop=3))
    assert read_chunks(played.client_bytes).content == "Hi."
    knows_nothing(played)


UNFINISHED = sse(*saying({"content": "x"})[:-3], "[DONE]")


@pytest.mark.parametrize("declared", [True, False])
def test_a_finish_that_never_came_is_the_upstreams_own(*, declared: bool) -> None:
    """Nothing had to be changed: it goes back as it came, whether a tool was declared or not."""
    assert play(UNFINISHED, declared=declared).client_bytes == UNFINISHED


def test_a_finish_that_never_came_is_told_where_something_was_changed() -> None:
    read = read_chunks(play(recalling(), UNFINISHED).client_bytes)
    assert (read.content, read.reasons, read.done) == ("x", ["stop"], True)


# --------------------------------------------------------------------------- nothing to change

PLAIN: dict[str, bytes] = {
    "vendor members": sse(*saying({"reasoning_content": "Hm."}, {"content": "Hi 你🙂"})),
    "a call": sse(*saying(call(0, SHELL), more(0, '{"a":1}'), reason="tool_calls")),
    "calls from one on": sse(*saying(call(1, SHELL), more(1, "{}"), reason="tool_calls")),
    "a call without a number": sse(*saying(call(None, SHELL, arguments="{}"), reason="stop")),
    "odd framing": b": hello\r\n\r\nid: 7\r\ndata:"
    + compact(said({"content": "x"})).encode()
    + b"\r\n\r\ndata: "
    + json.dumps(said({}, "stop"), indent=1).replace("\n", "\ndata: ").encode()
    + b"\n\ndata: [DONE]\n\n",
    "a role in every chunk": sse(
        *[said({"role": "assistant", "content": text}) for text in "abc"], said({}, "stop")
    ),
    "an empty beginning": sse(
        {"id": "", "model": "", "choices": [], "prompt_filter_results": [1]},
        *saying({"content": "x"}),
    ),
    "no mark at the end": sse(*saying({"content": "x"})[:-1]),
    "big numbers": b'data: {"id":"a","n":123456789012345678901234567890,"choices":[{"index":0,'
    b'"delta":{"content":"\\ud83d","a":1,"a":2}}]}\n\n' + sse(said({}, "stop"), "[DONE]"),
    "nothing said": sse(*saying()),
    "a late name": sse(
        said({"tool_calls": [{"index": 0, "id": "call_1", "function": {"arguments": "{"}}]}),
        said({"tool_calls": [{"index": 0, "function": {"name": "shell", "arguments": "}"}}]}),
        said({}, "tool_calls"),
        "[DONE]",
    ),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("chunking", [whole, bytewise])
def test_what_needs_no_change_passes(name: str, *, declared: bool, chunking: Chunking) -> None:
    played = play(PLAIN[name], declared=declared, chunking=chunking)
    assert played.client_bytes == PLAIN[name]
    assert played.outcome.ending is Ending.COMPLETED


def _recordings() -> list[Any]:
    folder = corpus_folder()
    found = [] if folder is None else sorted((folder / "upstream_dialects").glob("*.jsonl"))
    chat = [path for path in found if not path.name.startswith("anthropic")]
    if not chat:
        return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason="no corpus"))]
    return [pytest.param(path, id=path.stem) for path in chat]


@pytest.mark.parametrize("path", _recordings())
@pytest.mark.parametrize("declared", [True, False])
@given(data=st.data())
def test_recorded_streams_pass(path: Any, *, declared: bool, data: st.DataObject) -> None:
    lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    body = b"".join(b"data: %b\n\n" % line for line in [*lines, b"[DONE]"])
    places = data.draw(st.lists(st.integers(0, len(body)), max_size=9))
    played = play(body, declared=declared, chunking=cut_at(*places))
    assert played.client_bytes == body
    assert played.outcome.ending is Ending.COMPLETED


def test_the_usage_that_only_we_asked_for_stays_with_us() -> None:
    chunks = saying({"content": "x"})
    played = play(chunks, form=form(include_usage=False))
    assert played.client_bytes == sse(*chunks[:-2], "[DONE]")
    assert played.outcome.spent is not None
    assert played.outcome.spent["input_tokens"] == 10


# ------------------------------------------------------------------------------------- recalls


@pytest.mark.parametrize("chunking", [whole, bytewise])
def test_a_recall_is_cut_out(chunking: Chunking) -> None:
    words = [{"content": "It is "}, {"content": "Pip.", "annotations": [{"a": 1}]}]
    played = play(recalling(), saying(*words, hop=2), chunking=chunking)
    knows_nothing(played)
    first = {"id": "gen-1", "created": 1_790_000_001, "model": "m-1", "system_fingerprint": "fp_1"}
    told = {**USAGE, "prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28, "cost": 1.0}
    told["prompt_tokens_details"] = {"cached_tokens": 6, "audio_tokens": 0}
    assert played.client_bytes == sse(
        said({"role": "assistant", "content": ""}),
        *[said(delta, hop=2) | first for delta in words],
        said({}, "stop", hop=2) | first,
        said(None, hop=2, usage=told) | first,
        "[DONE]",
    )
    assert [call.arguments for call in played.calls] == ['{"query":"canary"}']


@given(data=st.data())
def test_any_cut_gives_the_same_bytes(data: st.DataObject) -> None:
    first, second = sse(*recalling(1, {"content": "Hm."})), sse(*saying({"content": "你🙂"}, hop=2))
    places = data.draw(st.lists(st.integers(0, len(first)), max_size=9))
    whole_bytes = play(first, second).client_bytes
    assert play(first, second, chunking=cut_at(*places)).client_bytes == whole_bytes


def test_every_other_byte_of_a_changed_chunk_stays() -> None:
    raw = (
        b'data:  {"id" : "gen-2","n":12345678901234567890123, "choices":[{"index":0,'
        b'"delta":{"content":"\\u0041"}, "x":1.50}]}\n\n'
    )
    played = play(recalling(), raw + sse(said({}, "stop", hop=2), "[DONE]"))
    assert raw.replace(b'"gen-2"', b'"gen-1"') in played.client_bytes


def test_text_on_both_sides_of_a_recall_is_kept_apart() -> None:
    look = [{"content": "Let me "}, {"content": "look."}]
    played = play(recalling(1, *look), saying({"content": "It is "}, {"content": "Pip."}, hop=2))
    read = read_chunks(played.client_bytes)
    assert read.content == "Let me look.\n\nIt is Pip."
    assert read.reasons == ["stop"]
    assert read.done
    knows_nothing(played)


def test_numbers_close_up_where_a_call_is_hidden() -> None:
    deltas = [
        {"role": "assistant", "content": None},
        call(0, HIDDEN),
        call(1, SHELL),
        more(0, '{"query":"canary"}'),
        {"tool_calls": [*more(1, '{"a"')["tool_calls"]]},
        more(1, ":1}"),
        call(2, {**HIDDEN, "id": "call_h2"}, arguments='{"query":"canary 2"}'),
    ]
    chunks = [*map(said, deltas), said({}, "tool_calls"), said(None, usage=USAGE), "[DONE]"]
    played = play(chunks)
    knows_nothing(played)
    read = read_chunks(played.client_bytes)
    assert read.calls == {
        0: {"id": "call_1", "type": "function", "name": "shell", "said": '{"a":1}'}
    }
    assert read.reasons == ["tool_calls"]
    assert read.usage == USAGE


def test_hidden_and_other_calls_of_one_chunk() -> None:
    both = [
        {"index": 0, **HIDDEN, "function": {"name": NAME, "arguments": '{"query":"canary"}'}},
        {"index": 1, **SHELL, "function": {"name": "shell", "arguments": "{}"}, "vendor": 1},
    ]
    delta = {"role": "assistant", "content": "Both.", "tool_calls": both}
    played = play([said(delta, "tool_calls", usage=USAGE), "[DONE]"])
    left = {**delta, "tool_calls": [{**both[1], "index": 0}]}
    assert played.client_bytes == sse(said(left, "tool_calls", usage=USAGE), "[DONE]")


def test_a_chunk_with_text_and_a_hidden_call() -> None:
    delta = {"role": "assistant", "content": "Hm.", **call(0, HIDDEN, arguments='{"query":"x"}')}
    chunk = said(delta, "tool_calls", usage=USAGE)
    chunk["choices"][0]["logprobs"] = {"content": [{"token": "canary"}]}
    played = play([chunk, "[DONE]"], saying({"content": "Pip."}, hop=2))
    knows_nothing(played)
    read = read_chunks(played.client_bytes)
    assert read.content == "Hm.\n\nPip."
    assert read.reasons == ["stop"]
    assert read.usage is not None
    assert read.usage["prompt_tokens"] == 20


def test_what_else_names_a_hidden_call_is_cut_too() -> None:
    details = [{"type": "reasoning.encrypted", "id": "call_h", "data": "sig"}]
    beside = said({"content": "Hm.", "reasoning_details": details})
    chunks = recalling()
    chunks.insert(3, beside)
    played = play(chunks, saying({"content": "Pip."}, hop=2))
    knows_nothing(played)
    assert read_chunks(played.client_bytes).content == "Hm.\n\nPip."


def test_three_hops_and_a_call_of_the_client() -> None:
    second = [c if isinstance(c, str) else json.loads(json.dumps(c)) for c in recalling(2)]
    text = json.dumps(second).replace("call_h", "call_h_2").replace("canary", "canary 2")
    asked = saying(call(0, SHELL), more(0, "{}"), hop=3, reason="tool_calls")
    played = play(recalling(), json.loads(text), asked)
    knows_nothing(played)
    read = read_chunks(played.client_bytes)
    assert read.calls[0]["id"] == "call_1"
    assert read.usage is not None
    assert read.usage["total_tokens"] == 42
    assert {chunk["id"] for chunk in read.chunks} == {"gen-1"}


def test_the_beginning_reaches_the_client_before_the_follow_up() -> None:
    played = play(recalling(), saying({"content": "Pip."}, hop=2))
    kinds = [type(command).__name__ for command in played.commands]
    assert kinds.index("Send") < len(kinds) - 1 - kinds[::-1].index("OpenUpstream")


def test_text_that_must_parse_is_the_last_alone() -> None:
    played = play(
        recalling(1, {"content": "Let me look."}),
        saying({"content": '{"a"'}, {"content": ":1}"}, hop=2),
        hold_text=True,
    )
    assert read_chunks(played.client_bytes).content == '{"a":1}'
    knows_nothing(played)


def test_text_that_must_parse_passes_where_nothing_is_hidden() -> None:
    body = sse(*saying({"content": '{"a"'}, {"content": ":1}"}))
    assert play(body, hold_text=True).client_bytes == body


# ------------------------------------------------------------------------------------ failures


def test_an_error_before_anything_is_an_answer_of_its_own() -> None:
    played = play(sse({"error": {"message": "Busy.", "code": "server_is_overloaded"}}))
    assert "Busy." in played.error.message


@pytest.mark.parametrize("declared", [True, False])
def test_an_error_in_the_middle_passes_as_it_came(*, declared: bool) -> None:
    body = sse(*saying({"content": "Hm."})[:2], {"error": {"message": "Busy.", "x": 1}, "y": 2})
    played = play(body, declared=declared)
    assert played.client_bytes == body
    assert played.outcome.ending is Ending.PROVIDER_FAILED


@pytest.mark.parametrize(
    "error",
    [
        {"message": "Incorrect API key: sk-secret."},
        {"message": "Busy.", "metadata": {"raw": "Incorrect API key: sk-secret."}},
        {"message": f"No tool called {NAME}."},
        {"message": "Busy.", "param": f"tools[1].{NAME}"},
    ],
    ids=["a key", "a key beside it", "a hidden tool", "a hidden tool beside it"],
)
def test_an_error_that_tells_too_much(error: dict[str, Any]) -> None:
    played = play(sse(*saying({"content": "Hm."})[:2], {"error": error}))
    assert b"sk-secret" not in played.client_bytes
    assert NAME.encode() not in played.client_bytes
    assert read_chunks(played.client_bytes).error is not None


def test_a_stream_that_is_cut_is_no_silent_end() -> None:
    body = sse(*saying({"content": "Hm."})[:2])
    played = play(Answer(body, cut=UpstreamError("reset")))
    assert played.client_bytes.startswith(body)
    error = read_chunks(played.client_bytes).error
    assert error is not None
    assert error["message"] == "reset"


def test_a_follow_up_that_fails_is_recovered() -> None:
    failing = sse({"error": {"message": "Busy.", "code": "server_is_overloaded"}})
    played = play(recalling(), failing, saying({"content": "Pip."}, hop=3))
    read = read_chunks(played.client_bytes)
    assert read.content == "Pip."
    assert read.reasons == ["stop"]
    assert {chunk["id"] for chunk in read.chunks} == {"gen-1"}
    knows_nothing(played)


def test_a_hop_that_was_cut_off_by_a_limit_with_a_hidden_call() -> None:
    chunks = [said({"role": "assistant", "content": "Hm."}), said(call(0, HIDDEN, arguments="{"))]
    played = play([*chunks, said({}, "length"), said(None, usage=USAGE), "[DONE]"])
    knows_nothing(played)
    read = read_chunks(played.client_bytes)
    assert read.reasons == ["length"]
    assert read.content == "Hm."
    assert played.outcome.ending is Ending.INCOMPLETE


def test_a_turn_that_may_not_go_on_says_so() -> None:
    request = builders.request(max_output_tokens=12)
    played = play(recalling(), request=request)
    read = read_chunks(played.client_bytes)
    assert read.reasons == ["length"]
    assert read.done
    knows_nothing(played)


# ------------------------------------------------------------------------- what can't be read


@pytest.mark.parametrize(
    "odd",
    [b"data: {not json\n\n", b"data: 7\n\n", b'data: {"vendor":true}\n\n'],
    ids=["no json", "no object", "no completion"],
)
def test_what_cannot_be_read_passes_where_nothing_is_declared(odd: bytes) -> None:
    body = sse(said({"content": "x"})) + odd + sse(said({}, "stop"), "[DONE]")
    played = play(body, declared=False)
    assert played.client_bytes == body
    assert played.outcome.ending is Ending.COMPLETED


@pytest.mark.parametrize("limit", ["event_bytes", "retained_bytes", "stream_bytes", "frames"])
@pytest.mark.parametrize("chunking", [whole, bytewise])
def test_a_limit_ends_the_reading_only(limit: str, chunking: Chunking) -> None:
    body = sse(*saying(*[{"content": "x" * 40} for _ in range(30)]))
    small = {"frames": 9}.get(limit, 600 if limit == "event_bytes" else 900)
    if limit == "event_bytes":
        body = body.replace(b"x" * 40, b"y" * 900, 1)
    played = play(body, declared=False, limits=limits(**{limit: small}), chunking=chunking)
    assert played.client_bytes == body
    assert played.outcome.truncated_by == limit


def test_a_limit_ends_a_turn_with_the_tool() -> None:
    body = sse(*saying(*[{"content": "x" * 40} for _ in range(30)]))
    played = play(body, limits=limits(retained_bytes=900))
    assert read_chunks(played.client_bytes).error is not None


def test_choices_of_which_only_the_first_is_read() -> None:
    both = [{"index": n, "delta": {"content": f"text {n}"}, "finish_reason": None} for n in (1, 0)]
    ends = [{"index": n, "delta": {}, "finish_reason": "stop"} for n in (1, 0)]
    body = sse(*[{"id": "a", "model": "m", "choices": [one]} for one in (*both, *ends)], "[DONE]")
    played = play(body, declared=False)
    assert played.client_bytes == body
    assert played.turn.view.output[0]["content"][0]["text"] == "text 0"


# ---------------------------------------------------------------------------------------- JSON


def completed(message: dict[str, Any], reason: str = "stop", hop: int = 1) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    value = said(None, hop=hop, usage=USAGE, object="chat.completion")
    return {**value, "choices": [choice]}


def in_json(*bodies: object, declared: bool = True, **options: Any) -> Played:
    answers = [
        Answer(
            body if isinstance(body, bytes) else compact(body).encode(),
            content_type="application/json",
        )
        for body in bodies
    ]
    return play(
        *answers,
        declared=declared,
        form=form(declared=declared, streamed=False),
        mode=StreamMode.JSON,
        streamed=False,
        **options,
    )


@pytest.mark.parametrize("declared", [True, False])
def test_a_completion_passes(*, declared: bool) -> None:
    body = b'{ "id":"a", "choices":[{"message":{"content":"x","vendor":1.50}}],"n":1 }'
    assert in_json(body, declared=declared).client_bytes == body


@pytest.mark.parametrize("body", [b'{"choices": []}', b"<html>", b'{"error": {"message": "x"}}'])
def test_any_body_passes_where_nothing_is_declared(body: bytes) -> None:
    assert in_json(body, declared=False).client_bytes == body


def test_a_recall_in_json() -> None:
    asked = [{**HIDDEN, "function": {"name": NAME, "arguments": '{"query":"canary"}'}}]
    first = completed({"content": "Let me look.", "tool_calls": asked}, "tool_calls")
    second = completed({"content": "Pip.", "reasoning_content": "Hm.", "audio": {"a": 1}}, hop=2)
    played = in_json(first, second)
    knows_nothing(played)
    value = json.loads(played.client_bytes)
    assert value["id"] == "gen-1"
    assert value["system_fingerprint"] == "fp_1"
    assert value["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Let me look.\n\nPip.",
        "reasoning_content": "Hm.",
        "audio": {"a": 1},
    }
    assert value["usage"]["total_tokens"] == 28
    assert value["usage"]["cost"] == 1.0


def test_hidden_and_other_calls_in_json() -> None:
    asked = [
        {**HIDDEN, "function": {"name": NAME, "arguments": '{"query":"canary"}'}},
        {**SHELL, "function": {"name": "shell", "arguments": "{}"}},
    ]
    first = completed({"content": None, "tool_calls": asked}, "tool_calls")
    value = json.loads(in_json(first).client_bytes)
    left = completed({"content": None, "tool_calls": asked[1:]}, "tool_calls")
    assert value == left
