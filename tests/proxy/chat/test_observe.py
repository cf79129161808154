from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.outcome import Ending
from proxy.chat.observe import ChatObserver
from tests.playbook import limits

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
DONE = b"data: [DONE]\n\n"


def frame(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": reason}
    return frame({"model": "m-1", "choices": [choice]})


def observed(*parts: bytes, streamed: bool = True, **bounds: int) -> ChatObserver:
    observer = ChatObserver(streamed=streamed, limits=limits(**bounds))
    for part in parts:
        observer.feed(part)
    observer.finish()
    return observer


def text(observer: ChatObserver) -> str:
    return "".join(part["text"] for item in observer.output() for part in item["content"])


def test_a_stream() -> None:
    observer = observed(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hel"}),
        chunk({"content": "other"}, index=1),
        chunk({"content": "lo"}),
        chunk({}, "stop"),
        frame({"choices": [], "usage": USAGE}),
        DONE,
    )
    assert text(observer) == "Hello"
    outcome = observer.outcome(200, delivered=True)
    assert (outcome.ending, outcome.model, outcome.stop_reason) == ("completed", "m-1", "stop")
    assert outcome.spent is not None
    assert outcome.spent["input_tokens"] == 7
    assert not outcome.empty


def test_a_body() -> None:
    message = {"role": "assistant", "content": "hi"}
    whole = {"model": "m-1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    observer = observed(json.dumps(whole).encode(), streamed=False)
    assert text(observer) == "hi"
    assert observer.outcome(200, delivered=True).ending is Ending.COMPLETED


@pytest.mark.parametrize(
    ("parts", "status", "delivered", "ending"),
    [
        ((), None, False, Ending.PROVIDER_FAILED),
        ((), 401, True, Ending.PROVIDER_FAILED),
        ((chunk({"content": "x"}),), 200, True, Ending.PROVIDER_FAILED),
        ((chunk({"content": "x"}),), 200, False, Ending.CLIENT_DISCONNECT),
        ((chunk({"content": "x"}, "length"), DONE), 200, True, Ending.INCOMPLETE),
        ((frame({"error": {"message": "no"}}),), 200, True, Ending.PROVIDER_FAILED),
        ((DONE,), 200, True, Ending.COMPLETED),
    ],
)
def test_endings(
    parts: tuple[bytes, ...], status: int | None, *, delivered: bool, ending: Ending
) -> None:
    assert observed(*parts).outcome(status, delivered=delivered).ending is ending


def test_an_empty_completion() -> None:
    assert observed(chunk({}, "stop"), DONE).outcome(200, delivered=True).empty
    called = observed(chunk({"tool_calls": [{"index": 0}]}, "tool_calls"), DONE)
    assert not called.outcome(200, delivered=True).empty


@pytest.mark.parametrize(
    ("bounds", "limit"),
    [({"retained_bytes": 20}, "retained_bytes"), ({"event_bytes": 20}, "event_bytes")],
)
def test_a_limit_ends_the_observation_alone(bounds: dict[str, int], limit: str) -> None:
    observer = observed(chunk({"content": "x" * 40}), DONE, **bounds)
    outcome = observer.outcome(200, delivered=True)
    assert (outcome.ending, outcome.truncated_by) == (Ending.COMPLETED, limit)
    assert not outcome.empty


@given(data=st.binary(max_size=300), streamed=st.booleans(), size=st.integers(1, 50))
def test_nothing_that_comes_is_an_error(data: bytes, *, streamed: bool, size: int) -> None:
    observer = observed(
        *(data[at : at + size] for at in range(0, len(data), size)), streamed=streamed
    )
    observer.outcome(200, delivered=True)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "message", "content", "usage", "index", "error"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values, st.integers(1, 30))
def test_any_value_is_read_in_any_pieces(value: object, size: int) -> None:
    data = frame(value) + chunk({"content": "end"}) + DONE
    whole = observed(data)
    pieces = observed(*(data[at : at + size] for at in range(0, len(data), size)))
    assert pieces.output() == whole.output()
    assert pieces.outcome(200, delivered=True) == whole.outcome(200, delivered=True)
