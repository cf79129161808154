"""What holds for every turn, whatever providers send and however it arrives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.lifecycle import Dialect
from pipeline.usage import add_usage
from tests import builders, strategies
from tests.builders import message, recall_call
from tests.playbook import framewise, limits, run_turn
from tests.sent import TERMINALS, check_sent, check_usage
from tests.sse import parse_stream

if TYPE_CHECKING:
    from tests.playbook import Chunking, Played
    from tests.strategies import Script

CANARY = "canary-5f1c"


RECOVERED = builders.stream(message("recovered"), response_id="resp_R", usage=None)
"""What a recovery gets, where a script's last hop fails before anything of it is visible."""


def play(script: Script, **options: Any) -> Played:
    return run_turn(hops=[*script.hops, RECOVERED], results=script.results, **options)


@given(strategies.turns, strategies.chunkings(), st.booleans())
def test_any_chunking_gives_the_same_bytes(
    script: Script,
    chunking: Chunking,
    late: bool,
) -> None:
    one, other = play(script), play(script, chunking=chunking, late=late)
    assert one.client_bytes == other.client_bytes
    assert [r.text for r in one.requests] == [r.text for r in other.requests]
    assert one.outcome == other.outcome


@given(strategies.turns, st.sampled_from(Dialect), st.booleans())
def test_what_was_changed_satisfies_every_client(
    script: Script,
    dialect: Dialect,
    hold_text: bool,
) -> None:
    played = play(script, dialect=dialect, hold_text=hold_text)
    if played.turn.view.client.changed:
        check_sent(played.client_bytes)
    check_usage(played.response["usage"])
    kinds = [event["type"] for event in played.events]
    assert [kind for kind in kinds if kind in TERMINALS] == kinds[-1:]


@given(strategies.turns, st.data())
def test_the_fast_path_is_only_faster(script: Script, data: st.DataObject) -> None:
    hops = list(script.hops)
    if data.draw(st.booleans()):
        events = data.draw(strategies.hop_events(script.items[0]))
        hops[0] = strategies.damaged_body(data.draw(strategies.damaged(events)))
    options: dict[str, Any] = {
        "chunking": data.draw(strategies.chunkings()),
        "declared": data.draw(st.booleans()),
        "limits": limits(retained_bytes=data.draw(st.sampled_from([900, 2000, 1 << 19]))),
        "results": CANARY,
    }
    fast = run_turn(hops=[*hops, RECOVERED, RECOVERED], **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.view.begin_run", lambda *_: None)
        slow = run_turn(hops=[*hops, RECOVERED, RECOVERED], **options)
    assert fast.client_bytes == slow.client_bytes
    assert [r.text for r in fast.requests] == [r.text for r in slow.requests]
    for one, other in zip(fast.turn.hops, slow.turn.hops, strict=True):
        assert one.state.output() == other.state.output()
        assert one.state.retained == other.state.retained
        assert one.state.sequence == other.state.sequence
    assert fast.outcome.message == slow.outcome.message
    assert set(fast.outcome.findings) == set(slow.outcome.findings)


@given(strategies.scripts(rounds=st.just(0), habits=False, stray=False), st.booleans())
def test_what_needs_nothing_is_the_bytes_that_came(script: Script, declared: bool) -> None:
    plain = builders.body(parse_plain(script.hops[0]))
    assume(b"gAAAA" not in plain)
    assert run_turn(hops=[plain], declared=declared).client_bytes == plain


def parse_plain(data: bytes) -> list[builders.Event]:
    """Return the events of a body in any framing."""
    played = run_turn(hops=[data], declared=False)
    return [event for _, event in parse_stream(played.client_bytes)]


@given(strategies.scripts(rounds=st.integers(1, 2), end="completed"))
def test_hiding_does_not_change_what_is_accumulated(script: Script) -> None:
    hidden, seen = play(script), [run_turn(hops=[hop], declared=False) for hop in script.hops]
    for hop, alone in zip(hidden.turn.hops, seen, strict=True):
        state, other = hop.state, alone.turn.hop.state
        assert state.output() == other.output()
        assert (state.id, state.usage, state.terminal) == (other.id, other.usage, other.terminal)
        assert {i: item.phase for i, item in state.items.items()} == {
            i: item.phase for i, item in other.items.items()
        }


@given(strategies.scripts(rounds=st.integers(1, 2), habits=False, stray=False))
def test_the_client_sees_all_that_is_visible_and_nothing_else(script: Script) -> None:
    played = play(script)
    seen = [builders.plain(item) for item in played.response["output"]]
    assert seen == [builders.plain(item) for item in script.visible]


@given(strategies.turns)
def test_usage_is_the_sum(script: Script) -> None:
    played = play(script)
    spent = None
    for usage in script.usages[: len(played.requests)]:
        spent = add_usage(spent, usage)
    assert played.outcome.spent == spent
    last = [usage for usage in script.usages[: len(played.requests)] if usage is not None]
    assert played.outcome.context == (last[-1] if last else None)
    assert played.response["usage"] == spent


@given(strategies.turns)
def test_a_hops_request_begins_with_everything_before_it(script: Script) -> None:
    played = play(script)
    for hop, before, after in zip(
        played.turn.hops, played.requests, played.requests[1:], strict=False
    ):
        pairs = enumerate(zip(before.text, after.text, strict=False))
        same = next(at for at, (one, other) in pairs if one != other)
        assert after.text.endswith(before.text[same:])  # nothing but an insertion
        old, new = before.body["input"], after.body["input"]
        assert new[: len(old)] == old
        items = hop.state.output()
        assert [i.get("call_id") for i in new[len(old) :][: len(items)]] == [
            i.get("call_id") for i in items
        ]
        calls = [i["call_id"] for i in items if i.get("name") == strategies.RECALL]
        outputs = new[len(old) + len(items) :]
        assert [output["call_id"] for output in outputs] == calls
        assert {key: value for key, value in before.body.items() if key != "input"} == {
            key: value for key, value in after.body.items() if key != "input"
        }


@given(strategies.scripts(rounds=st.integers(1, 2), mixed=True, stray=False), st.data())
def test_nothing_of_a_hidden_call_reaches_the_client(script: Script, data: st.DataObject) -> None:
    hops = []
    for hop in script.hops:
        text = hop.decode()
        for old in ("call_1_", "call_2_", "call_3_"):
            text = text.replace(old, f"{CANARY}{old}")
        hops.append(text.encode())
    hidden = [f"{CANARY}{call}" for call in script.results]
    results = dict.fromkeys(hidden, f"{CANARY} in a result")
    played = run_turn(hops=hops, results=results, chunking=data.draw(strategies.chunkings()))
    shown = played.client_bytes.decode()
    assert not any(f'"{call}"' in shown for call in hidden)
    assert "in a result" not in shown
    assert strategies.RECALL + '"' not in shown
    for call in played.calls:
        assert call.call_id in hidden


@given(
    st.text(st.sampled_from('abc\\"é'), min_size=1, max_size=8), strategies.framings, st.booleans()
)
def test_a_query_is_never_shown(query: str, framing: builders.Framing, late: bool) -> None:
    call = recall_call(CANARY, {"query": CANARY + query}) | {"id": f"fc_{CANARY}"}
    hops = [
        builders.body(builders.stream(message("so"), call), framing),
        builders.stream(message("hi"), response_id="resp_B"),
    ]
    played = run_turn(hops=hops, results=f"{CANARY} found", late=late, chunking=framewise)
    assert CANARY.encode() not in played.client_bytes
    assert json.loads(played.calls[0].arguments) == {"query": CANARY + query}
