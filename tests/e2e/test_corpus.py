"""Every recorded stream through the running proxy: the bytes that came, up to the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests import builders, corpus
from tests.pipeline.test_traces import expected
from tests.upstreams import stream

if TYPE_CHECKING:
    from tests.e2e.conftest import Lab

PIECE = 1460


@corpus.each
def test_a_recorded_stream_passes(shared_lab: Lab, recorded: corpus.Recorded) -> None:
    data = recorded.body
    pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
    with shared_lab.post(
        builders.request(tools=None, tool_choice=None), stream(*pieces)
    ) as exchange:
        assert exchange.body() == expected(recorded)
    assert exchange.status == 200
