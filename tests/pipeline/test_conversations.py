"""Whole conversations: what an upstream was sent and answered is what its next request begins with.

Each conversation has two to six user turns with random hidden calls, client calls and reasoning,
for clients that keep ids and clients that don't. After every hop the next request to the upstream
must start, in canonical form, with everything that the hop before was sent, answered and given.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pipeline import commands as c
from pipeline.history import HiddenGroup, input_keys, minted_ids, restorations
from pipeline.items import canonical
from pipeline.jsontext import loads
from pipeline.request import declare, input_items, read_request, restore
from pipeline.turn import Turn
from tests import builders
from tests.playbook import ID_KEY, OPTIONS, TOOL, chunk, found, opened

if TYPE_CHECKING:
    from pipeline.request import Request
    from tests.builders import Item

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
BLOCKS = 100 if DEEP else 4
BLOCK = 100 if DEEP else 50


@dataclass
class Conversation:
    """One client, one memory of hidden groups, one upstream that checks its prefix."""

    random: random.Random
    history: list[Item] = field(default_factory=list)
    groups: list[HiddenGroup] = field(default_factory=list)
    known: list[bytes] = field(default_factory=list)
    """Canonical items that the upstream has seen and said."""
    number: int = 0
    keeps_ids: bool = True
    hidden: int = 0

    def user_turn(self) -> None:
        self.number += 1
        self.history.append(builders.user(f"question {self.number}"))
        while self.request():
            pass

    def request(self) -> bool:
        """Send one request; say whether the client has to go on with outputs of its tools."""
        data = builders.compact(builders.request(*self.history, store=False)).encode()
        asked = read_request(data)
        items = input_items(asked.body)
        groups = [g for g in self.groups if set(g.lookup_keys()) & set(input_keys(asked.body))]
        restored = restore(asked, [*minted_ids(items, ID_KEY), *restorations(items, groups)])
        terminal = self.play(declare(restored, TOOL).request)
        shown = [item if self.keeps_ids else _without_id(item) for item in terminal["output"]]
        self.history += shown
        calls = [item for item in shown if item["type"] == "function_call"]
        self.random.shuffle(calls)
        self.history += [builders.output(call["call_id"], "done") for call in calls]
        return bool(calls)

    def play(self, request: Request) -> dict[str, Any]:
        """Play a turn; return its terminal's response."""
        turn = Turn(request, OPTIONS)
        pending = turn.start()
        sent = b""
        while pending:
            command = pending.pop(0)
            match command:
                case c.OpenUpstream():
                    pending += turn.receive(opened())
                    pending += turn.receive(chunk(self.answer(command.request, command.hop)))
                case c.RunTool():
                    pending += turn.receive(found(command.call_id, f"found {command.call_id}"))
                case c.SaveJoin():
                    if command.group is not None:
                        self.groups.append(HiddenGroup.from_json(command.group.to_json()))
                case c.Send():
                    sent += command.data
                case _:
                    pass
        last = sent.rstrip().rsplit(b"\ndata: ", 1)[1]
        response: dict[str, Any] = loads(last)["response"]
        assert response["status"] == "completed", response
        return response

    def answer(self, request: Request, hop: int) -> bytes:
        """Check that a request begins with what is known, and answer it."""
        items = [canonical(item) for item in request.body["input"]]
        assert items[: len(self.known)] == self.known, (self.number, hop)
        output = self.output(hop)
        self.known = items + [canonical(item) for item in output]
        sparse = self.random.random() < 0.8  # most of a stream is not what this is about
        response_id = f"resp_{self.random.getrandbits(64):x}"
        return builders.body(builders.stream(*output, response_id=response_id, sparse=sparse))

    def output(self, hop: int) -> list[Item]:
        chance, output = self.random.random, []
        for _ in range(self.random.randint(1, 4)):
            seed = f"{self.random.getrandbits(64):x}"
            if chance() < 0.3:
                output.append(builders.reasoning(f"thought {seed}", encrypted=f"cipher {seed}"))
            if chance() < 0.35 and hop < 4:
                output.append(builders.recall_call(f"call_{seed}", {"query": seed}))
                self.hidden += 1
            elif chance() < 0.25:
                output.append(builders.function_call(f"call_{seed}", "shell", {"command": seed}))
            else:
                output.append(builders.message(f"text {seed}"))
        if output[-1]["type"] == "reasoning":
            output.append(builders.message("end"))
        return output


def _without_id(item: Item) -> Item:
    """Return an item as clients send it back that strip ids: those of reasoning stay."""
    return item if item["type"] == "reasoning" else {k: v for k, v in item.items() if k != "id"}


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.timeout(300)
def test_the_prefix_is_stable(block: int) -> None:
    hidden = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        source = random.Random(seed)  # noqa: S311 - reproducible, not secret
        conversation = Conversation(source, keeps_ids=source.random() < 0.6)
        for _ in range(source.randint(2, 6)):
            conversation.user_turn()
        hidden += conversation.hidden
    assert hidden > BLOCK  # it was about hidden calls
