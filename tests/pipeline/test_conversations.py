"""Whole conversations: what an upstream was sent and answered is what its next request begins with.

Each conversation has two to six user turns with random hidden calls, client calls and reasoning.
After every hop the next request to the upstream must start, in canonical form, with everything
that the hop before was sent, answered and given. Its client may keep ids or strip them, have
reasoning with or without ciphertext, send its history or continue by an id, switch recall off or
send no tools; its turns may fail; and it may compact, cut or edit its history. Then there is no
prefix to keep: nothing is to be inserted that doesn't belong, and nothing to be broken.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from pipeline import commands as c
from pipeline.errors import UpstreamError
from pipeline.history import HiddenGroup, Insertion, minted_ids, restorations
from pipeline.items import canonical
from pipeline.jsontext import dumps, loads
from pipeline.request import declare, input_items, read_request
from pipeline.restore import restore
from pipeline.survey import Survey
from pipeline.turn import Turn
from tests import builders
from tests.histories import only_whole_pairs_came_in
from tests.playbook import ID_KEY, OPTIONS, TOOL, broken, chunk, found, opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.outcome import TurnOutcome
    from pipeline.request import Request
    from tests.builders import Item

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
BLOCKS = 100 if DEEP else 4
BLOCK = 100 if DEEP else 50
_DONE = b"event: response.output_item.done\ndata: "


@dataclass
class Memory:
    """What turns left, found as the ledger finds it."""

    groups: list[HiddenGroup] = field(default_factory=list)
    by_key: dict[str, list[int]] = field(default_factory=dict)
    ids: dict[str, c.SaveJoin] = field(default_factory=dict)

    def save(self, join: c.SaveJoin) -> None:
        self.ids[join.response_id] = join
        if join.group is None:
            return
        group = HiddenGroup.from_json(join.group.to_json())
        for key in group.lookup_keys():
            self.by_key.setdefault(key, []).append(len(self.groups))
        self.groups.append(group)

    def find(self, keys: Sequence[str]) -> list[HiddenGroup]:
        numbers = {number for key in keys for number in self.by_key.get(key, ())}
        return [self.groups[number] for number in sorted(numbers)]


@dataclass
class Conversation:
    """One client, one memory, one upstream that checks its prefix."""

    random: random.Random
    keeps_ids: bool = True
    withheld: bool = False
    """Reasoning ciphertext is asked for by us, not by the client."""
    stored: bool = False
    """It continues responses by their ids."""
    history: list[Item] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    known: list[Item] | None = field(default_factory=list)
    """What the upstream has seen and said; None where the client changed it."""
    kept: dict[str, list[Item]] = field(default_factory=dict)
    """What the upstream keeps, by response id."""
    asked: list[Item] = field(default_factory=list)
    """What the upstream was sent last, with what it keeps."""
    previous: str | None = None
    number: int = 0
    fails: bool = False
    declared: bool = True
    seen: Counter[str] = field(default_factory=Counter)
    """What it was about."""

    # --- The client -----------------------------------------------------------------------

    def user_turn(self) -> None:
        self.number += 1
        if self.history and not self.stored and self.chance(0.1):
            self.compact()
        elif self.history and not self.stored and self.chance(0.1):
            self.damage()
        self.history.append(builders.user(f"question {self.number}"))
        while self.request():
            pass

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def compact(self) -> None:
        """Ask for a summary, and go on with that alone."""
        self.seen["compactions"] += 1
        self.history.append({"type": "compaction_trigger"})
        self.declared = False
        self.play(self.restored(tools=None))
        self.history = [builders.user(f"summary {self.number}")]
        self.known = []

    def damage(self) -> None:
        """Cut the history's beginning off, take one item out, or say another thing."""
        self.seen["edits"] += 1
        self.known = None
        at = self.random.randrange(len(self.history))
        match self.random.choice(["cut", "drop", "edit"]):
            case "cut":
                self.history = self.history[at:]
            case "drop":
                del self.history[at]
            case _:
                self.history[at] = builders.message("something else")
        self.history = _answered(self.history)

    def request(self) -> bool:
        """Send one request; say whether the client has to go on with outputs of its tools."""
        tools = None if self.chance(0.1) else [builders.CLIENT_TOOL]
        self.declared = tools is not None and not self.chance(0.1)
        self.seen["undeclared"] += not self.declared
        before, fails = self.known, self.chance(0.1)
        self.fails = fails
        outcome, shown, response = self.play(self.restored(tools=tools))
        shown = [item if self.keeps_ids else _without_id(item) for item in shown]
        calls = [item for item in shown if item["type"] == "function_call"]
        done = outcome.ending == "completed"
        self.seen[outcome.ending] += 1
        if self.stored and not done:
            self.known = before  # it goes on from the last response that it has
            return False
        if self.stored:
            self.previous, self.history = response["id"], []
        elif shown:
            self.history += shown
            if not done and before is not None:  # of what was said last, the client has some
                self.known = self.asked
        else:
            self.known = before  # nothing of the turn is in the client's history
        self.random.shuffle(calls)
        self.history += [builders.output(call["call_id"], "done") for call in calls]
        return bool(calls)

    # --- The proxy ------------------------------------------------------------------------

    def restored(self, tools: list[Any] | None) -> Request:
        """Return the client's request as `proxy.prepare` makes it ready."""
        members: dict[str, Any] = {"tools": tools, "store": self.stored}
        if not (self.withheld or self.stored):
            members["include"] = ["reasoning.encrypted_content"]
        behind = None
        if self.previous is not None:
            behind = self.memory.ids.get(self.previous)
            members["previous_response_id"] = behind.hop_ids[-1] if behind else self.previous
        asked = read_request(dumps(builders.request(*self.history, **members)))
        items = input_items(asked.body)
        survey = Survey(items, ID_KEY)
        groups = self.memory.find(survey.lookup_keys)
        restored = restore(asked, [*minted_ids(survey), *restorations(survey, groups)])
        only_whole_pairs_came_in(items, restored.body["input"])
        if behind is not None and behind.outputs:
            restored = restore(restored, [Insertion(0, behind.outputs)])
        return restored

    def play(self, restored: Request) -> tuple[TurnOutcome, list[Item], dict[str, Any]]:
        """Play a turn; return its outcome, the items that the client got, and the response."""
        tools, withheld = (), False
        request = restored
        if self.declared:
            declared = declare(restored, TOOL)
            request, tools, withheld = declared.request, (TOOL,), declared.include_added
        turn = Turn(request, replace(OPTIONS, tools=tools, withhold_ciphertext=withheld))
        pending = turn.start()
        sent = b""
        while pending:
            command = pending.pop(0)
            match command:
                case c.OpenUpstream():
                    pending += turn.receive(opened())
                    pending += turn.receive(chunk(self.answer(command.request, command.hop)))
                    if turn.phase == "streaming":
                        pending += turn.receive(broken(UpstreamError("cut")))
                case c.RunTool():
                    pending += turn.receive(found(command.call_id, f"found {command.call_id}"))
                case c.SaveJoin():
                    self.memory.save(command)
                case c.Send():
                    sent += command.data
                case _:
                    pass
        assert turn.outcome is not None
        done = [f.removeprefix(_DONE) for f in sent.split(b"\n\n") if f.startswith(_DONE)]
        shown = [loads(each)["item"] for each in done]
        if self.random.random() < 0.5:  # some keep what was cut short, some don't
            shown = [item for item in shown if item.get("status") != "incomplete"]
        last = loads(sent.rstrip().rsplit(b"\ndata: ", 1)[1])["response"] if sent else {}
        return turn.outcome, shown, last

    # --- The upstream ---------------------------------------------------------------------

    def answer(self, request: Request, hop: int) -> bytes:
        """Check that a request begins with what is known, and answer it."""
        previous = request.body.get("previous_response_id")
        items = [*self.kept.get(previous, ()), *request.body["input"]]
        if self.known is not None:
            where = (self.number, hop, dict(self.seen))
            assert len(items) >= len(self.known), where
            for one, other in zip(items, self.known, strict=False):
                assert one == other or canonical(one) == canonical(other), where
        self.asked = items
        output = self.output(hop)
        response_id = f"resp_{self.random.getrandbits(64):x}"
        sparse = self.chance(0.9)  # most of a stream is not what this is about
        fails = self.fails and self.chance(0.5)
        end = "incomplete" if fails and self.chance(0.3) else "completed"
        events = builders.stream(*output, response_id=response_id, sparse=sparse, end=end)
        if fails and end == "completed":
            events = events[: self.random.randrange(len(events))]
        if fails:
            self.known = items  # of what it said the client has what it saw
            self.seen["failures"] += 1
        else:
            self.known = [*items, *output]
            self.kept[response_id] = self.known
        return builders.body(events)

    def output(self, hop: int) -> list[Item]:
        output = []
        for _ in range(self.random.randint(1, 4)):
            seed = f"{self.random.getrandbits(64):x}"
            if self.chance(0.3):
                output.append(builders.reasoning(f"thought {seed}", encrypted=f"cipher {seed}"))
            if self.declared and hop < 4 and self.chance(0.35):
                output.append(builders.recall_call(f"call_{seed}", {"query": seed}))
                self.seen["hidden"] += 1
            elif self.chance(0.25):
                output.append(builders.function_call(f"call_{seed}", "shell", {"command": seed}))
            else:
                output.append(builders.message(f"text {seed}"))
        kinds = {"hidden" if item.get("name") == TOOL.name else item["type"] for item in output}
        self.seen["mixed"] += {"hidden", "function_call"} <= kinds
        if output[-1]["type"] == "reasoning":
            output.append(builders.message("end"))
        return output


def _answered(items: list[Item]) -> list[Item]:
    """Return a history without calls and outputs that lost their other half: clients do that."""
    calls = {item["call_id"] for item in items if item["type"] == "function_call"}
    outputs = {item["call_id"] for item in items if item["type"] == "function_call_output"}
    return [item for item in items if item.get("call_id") in {None, *(calls & outputs)}]


def _without_id(item: Item) -> Item:
    """Return an item as clients send it back that strip ids: those of reasoning stay."""
    return item if item["type"] == "reasoning" else {k: v for k, v in item.items() if k != "id"}


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.timeout(300)
def test_the_prefix_is_stable(block: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        source = random.Random(seed)
        conversation = Conversation(
            source,
            keeps_ids=source.random() < 0.6,
            withheld=source.random() < 0.5,
            stored=source.random() < 0.2,
        )
        for _ in range(source.randint(2, 6)):
            conversation.user_turn()
        seen += conversation.seen
    assert seen["hidden"] > BLOCK  # it was about hidden calls, and about everything else
    about = ("mixed", "undeclared", "compactions", "edits", "failures", "failed", "incomplete")
    assert all(seen[each] for each in about), seen
