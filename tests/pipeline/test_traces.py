"""Whole turns over streams that real providers sent.

That every single cut gives the same frames is shown in ``test_sse_corpus``; a turn sees frames and
the edges between chunks, so here the edges are moved: one byte at a time where that is affordable,
one event at a time, and at random.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.lifecycle import Rule
from pipeline.outcome import Ending
from pipeline.reader import StreamMode
from tests import corpus
from tests.playbook import Playbook, bytewise, chunk, framewise, limits, opened, run_turn, turn
from tests.sse import parse_stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.builders import Event
    from tests.playbook import Played

ROOMY: Final = limits(
    stream_bytes=64 << 20, retained_bytes=16 << 20, event_bytes=4 << 20, hidden_bytes=1 << 20
)
OPENROUTER: Final = "pydantic_ai/test_openai_responses_raw_cot_stream_openrouter.0.sse"
NESTED_ERROR: Final = "vercel_ai/openai__openai-error.1.jsonl"
SMALL: Final = 16 * 1024
TERMINALS: Final = ("response.completed", "response.incomplete", "response.failed")
ENDINGS: Final = {
    "response.completed": Ending.COMPLETED,
    "response.incomplete": Ending.INCOMPLETE,
    "response.failed": Ending.PROVIDER_FAILED,
}


def play(recorded: corpus.Recorded, **options: Any) -> Played:
    options = {"limits": ROOMY, "declared": False} | options
    return run_turn(recorded.request, [recorded.body], **options)


def up_to_the_terminal(data: bytes) -> bytes:
    """Return a stream as it was recorded, without what came after its terminal."""
    kept = []
    for part in framewise(data):
        kept.append(part)
        if any(f'"type":"{kind}"'.encode() in part for kind in TERMINALS):
            break
    return b"".join(kept)


def with_event_lines_and_a_steady_id(data: bytes) -> bytes:
    """Name each event; the terminal calls an item of that stream by another id than its events."""
    frames = []
    for part in framewise(data):
        _, found, text = part.partition(b"data: ")
        if found:
            frames.append(b"event: " + json.loads(text)["type"].encode() + b"\n")
        frames.append(part)
    return b"".join(frames).replace(b"rs_tmp_ku4i7pagjwn", b"rs_tmp_2kbe7x16sax")


def with_flat_error(data: bytes) -> bytes:
    before, _, rest = data.partition(b"event: error\n")
    error, _, after = rest.partition(b"\n\n")
    event = json.loads(error.removeprefix(b"data: "))
    nested = event.pop("error")
    flat = event | {key: nested[key] for key in ("message", "code", "param")}
    text = json.dumps(flat, ensure_ascii=False, separators=(",", ":")).encode()
    return before + b"event: error\ndata: " + text + b"\n\n" + after


REPAIRS: Final = {OPENROUTER: with_event_lines_and_a_steady_id, NESTED_ERROR: with_flat_error}
"""The only streams in which something has to be written, and what."""


def expected(recorded: corpus.Recorded) -> bytes:
    sent = up_to_the_terminal(recorded.body)
    return REPAIRS[recorded.name](sent) if recorded.name in REPAIRS else sent


# ------------------------------------------------------------------------------ byte by byte


@corpus.each
def test_a_recorded_stream_is_the_bytes_that_came(recorded: corpus.Recorded) -> None:
    played = play(recorded)
    assert played.client_bytes == expected(recorded)
    assert played.outcome.ending is ENDINGS[played.events[-1]["type"]]
    assert played.outcome.truncated_by is None

    hidden = play(recorded, declared=True, withhold_ciphertext=False)
    assert hidden.client_bytes == played.client_bytes  # hiding nothing changes nothing


@corpus.each
def test_only_ciphertext_is_withheld(recorded: corpus.Recorded) -> None:
    played = play(recorded, declared=True, withhold_ciphertext=True)
    shown = parse_stream(played.client_bytes)
    whole = parse_stream(expected(recorded))
    assert [name for name, _ in shown] == [name for name, _ in whole]
    assert [event for _, event in shown] == [without_ciphertext(event) for _, event in whole]


def without_ciphertext(value: Any) -> Any:
    if isinstance(value, list):
        return [without_ciphertext(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = value.items()
    if value.get("type") == "reasoning":
        kept = [(key, one) for key, one in kept if key != "encrypted_content"]
    return {key: without_ciphertext(one) for key, one in kept}


@corpus.each
def test_one_byte_or_one_event_at_a_time(recorded: corpus.Recorded) -> None:
    wanted = expected(recorded)
    if len(recorded.body) <= SMALL:
        assert play(recorded, chunking=bytewise).client_bytes == wanted
    script = Playbook(turn(recorded.request, limits=ROOMY, tools=())).skip().feed(opened())
    came = 0
    for part in framewise(up_to_the_terminal(recorded.body)):
        script.feed(chunk(part))
        came += len(part)
        sent = script.performer.sent
        # Bytes leave with the bytes that came; what is repaired may be shorter.
        assert len(sent) >= came or not sent or recorded.name in REPAIRS
    assert script.performer.sent == wanted


@corpus.each
def test_fifty_random_chunkings(recorded: corpus.Recorded) -> None:
    body, wanted = recorded.body, expected(recorded)
    chance = random.Random(recorded.name)

    def cut(data: bytes) -> Iterable[bytes]:
        pieces = chance.choice((1, 2, 5, 20, 100))
        edges = sorted(chance.randrange(len(body)) for _ in range(pieces))
        return [data[a:b] for a, b in pairwise([0, *edges, len(data)])]

    for _ in range(50 if len(body) <= SMALL else 5):
        assert play(recorded, chunking=cut).client_bytes == wanted


# ------------------------------------------------------------------------- what they stand for


@corpus.each
def test_the_accumulated_output_is_what_was_done(recorded: corpus.Recorded) -> None:
    script = Playbook(turn(recorded.request, limits=ROOMY, tools=())).skip()
    *parts, terminal = framewise(up_to_the_terminal(recorded.body))
    script.feed(opened(), chunk(b"".join(parts)))
    dones = [event for event in recorded.events if event["type"] == "response.output_item.done"]
    dones.sort(key=lambda event: event["output_index"])
    state = script.turn.hop.state
    assert state.output() == [event["item"] for event in dones]
    script.feed(chunk(terminal))
    assert [item["id"] for item in state.output()] == [event["item"]["id"] for event in dones]
    newest = parse_stream(expected(recorded))[-1][1]["response"].get("output") or []
    assert all(item in state.output() for item in newest)


@corpus.each
def test_deviations_are_counted(recorded: corpus.Recorded) -> None:
    findings = play(recorded).outcome.findings
    assert {rule for rule, _ in findings} == set(deviations(recorded))
    status = sum(n for (rule, _), n in findings.items() if rule is Rule.STATUS_MISSING)
    assert status == sum("status" not in event["item"] for event in with_items(recorded))


def with_items(recorded: corpus.Recorded) -> list[Event]:
    return [event for event in recorded.events if event["type"].startswith("response.output_item.")]


def deviations(recorded: corpus.Recorded) -> Iterable[Rule]:
    """Find, without any code of ours, the rules that a recorded stream breaks."""
    events = recorded.events
    if any("status" not in event["item"] for event in with_items(recorded)):
        yield Rule.STATUS_MISSING
    if any(e["type"] == "response.output_text.delta" and "logprobs" not in e for e in events):
        yield Rule.LOGPROBS_MISSING
    numbers = [event.get("sequence_number") for event in events]
    if None in numbers:
        yield Rule.SEQUENCE_MISSING
    elif numbers != list(range(len(numbers))):
        yield Rule.SEQUENCE_GAP
    if b"event: " not in recorded.body:
        yield Rule.EVENT_LINE_MISSING
    if any("error" in event for event in events if event["type"] == "error"):
        yield Rule.ERROR_NESTED
    added, dones = (
        {e["output_index"]: e["item"] for e in with_items(recorded) if e["type"].endswith(end)}
        for end in (".added", ".done")
    )
    if any(item.get("call_id") != added[index].get("call_id") for index, item in dones.items()):
        yield Rule.CALL_ID_CHANGED
    final = events[-1]["response"].get("output") or []
    streamed = [dones[index] for index in sorted(dones)]
    if len(final) == len(streamed) and [i["id"] for i in final] != [i["id"] for i in streamed]:
        yield Rule.ITEM_ID_ROTATED
    if final != streamed:
        yield Rule.OUTPUT_DIFFERS


@corpus.each
def test_a_json_client_gets_the_terminals_object(recorded: corpus.Recorded) -> None:
    played = play(recorded, client="json", mode=StreamMode.SSE)
    assert played.response == parse_stream(expected(recorded))[-1][1]["response"]


def test_the_corpus_is_whole() -> None:
    if not corpus.recordings():
        pytest.skip("no recorded streams here")
    names = {recorded.name for recorded in corpus.recordings()}
    assert len(names) == 134
    assert set(REPAIRS) <= names
