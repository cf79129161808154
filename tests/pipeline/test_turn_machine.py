"""A conversation in which everything happens that may happen, at any time and in any order.

Bytes come and end and break, results come or don't, the client reads as much as it likes and
leaves, times run out, the proxy shuts down or is gone from one moment to the next; and whatever
came of it, the client goes on with what it has. After each step everything has to hold that holds
for every turn.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline.errors import SottovoceError, UpstreamError
from pipeline.events import DeadlineReached, KeepAliveDue, ShutdownDue
from pipeline.history import HiddenGroup, minted_ids, restorations
from pipeline.jsontext import dumps, loads
from pipeline.outcome import Ending
from pipeline.request import input_items, read_request
from pipeline.restore import restore
from pipeline.survey import Survey
from tests import builders, strategies
from tests.histories import answered, kept, only_whole_pairs_came_in, readable
from tests.playbook import (
    ID_KEY,
    LIMITS,
    Performer,
    chunk,
    ended,
    found,
    opened,
    turn,
)
from tests.playbook import broken as failed
from tests.sent import TERMINALS, check_sent

if TYPE_CHECKING:
    from tests.builders import Event, Item
    from tests.strategies import Script

CANARY: Final = "canary-5f1c"
_ID: Final = re.compile(rb"\b(?:call|resp)_(?=\d)")
_ITEM_ID: Final = re.compile(rb"\b((?:msg|fc|rs|ctc)_[0-9a-f]{44})[0-9a-f]{4}\b")


def of_turn(script: Script, number: int) -> Script:
    """Return a script whose ids are those of one turn only."""

    def renamed(data: bytes) -> bytes:
        data = _ID.sub(rb"\g<0>t%d_" % number, data)
        return _ITEM_ID.sub(rb"\g<1>%04x" % number, data)

    results = {call.replace("call_", f"call_t{number}_"): CANARY for call in script.results}
    return replace(script, hops=[renamed(hop) for hop in script.hops], results=results)


class Conversations(RuleBasedStateMachine):
    """One client, one memory that outlives the process, one turn after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.performer: Performer
        self.script: Script
        self.streamed = True
        self.now = 0.0
        self.number = 0
        self.asked = 0
        self.rest = b""
        self.opened = False
        self.read = 0
        self.saved = 0
        self.over = True
        self.client: list[Item] = []
        self.memory: list[HiddenGroup] = []

    # --- The client -----------------------------------------------------------------------

    @initialize(script=strategies.turns, streamed=st.booleans())
    def first_turn(self, script: Script, streamed: bool) -> None:
        self.begin(script, streamed=streamed)

    @precondition(lambda self: self.over)
    @rule(script=strategies.turns, streamed=st.booleans())
    def next_turn(self, script: Script, streamed: bool) -> None:
        self.begin(script, streamed=streamed)

    def begin(self, script: Script, *, streamed: bool) -> None:
        """Send a question behind everything that the client has."""
        self.number += 1
        self.client.append(builders.user(f"question {self.number}"))
        asked = read_request(dumps(builders.request(*self.client)))
        survey = Survey(input_items(asked.body), ID_KEY)
        keys = set(survey.lookup_keys)
        groups = [group for group in self.memory if not keys.isdisjoint(group.lookup_keys())]
        changes = [*minted_ids(survey), *restorations(survey, groups)]
        request = restore(asked, changes).body
        only_whole_pairs_came_in(self.client, request["input"])
        again = restore(read_request(asked.text), changes).body
        assert again == request
        self.script, self.streamed = of_turn(script, self.number), streamed
        self.performer = Performer(turn(request, streamed=streamed))
        self.opened, self.over, self.read, self.saved = False, False, 0, 0
        self.performer.start()
        self.asked = 1

    @precondition(lambda self: not self.over)
    @rule(share=st.floats(0, 1))
    def the_client_reads(self, share: float) -> None:
        self.read += int((len(self.performer.sent) - self.read) * share)
        if self.performer.ended and share > 0.5:
            self.read = len(self.performer.sent)
            self.goes_on()

    @precondition(lambda self: not self.over)
    @rule(really=st.integers(0, 9))
    def the_client_leaves(self, really: int) -> None:
        if really:
            return
        performer = self.performer
        outcome = performer.turn.abort()
        assert performer.outcome is outcome or outcome.ending is Ending.CLIENT_DISCONNECT
        for event in (opened(), ended(), chunk(b"x"), KeepAliveDue(), ShutdownDue()):
            assert performer.turn.receive(event) == []
        if performer.turn.left is not None:
            self.remember(performer.turn.left.group)
        self.goes_on()

    @precondition(lambda self: not self.over)
    @rule(really=st.integers(0, 19))
    def the_proxy_is_gone(self, really: int) -> None:
        """Of what ran nothing is left but the bytes that went out and what was durable."""
        if not really:
            self.goes_on()

    def goes_on(self) -> None:
        """Take over what the client has of the turn, with outputs for its own calls."""
        self.over = True
        data = self.performer.sent[: self.read]
        if self.streamed:
            items = kept(readable(data))
        elif self.performer.refused is None and self.read == len(self.performer.sent) > 0:
            items = loads(data).get("output") or []
        else:
            items = []
        self.client += [*items, *answered(items)]

    # --- The upstream, the tools, the clock ------------------------------------------------

    @property
    def running(self) -> bool:
        return not self.over and self.performer.outcome is None

    def happen(self, event: Any) -> None:
        self.performer.happen(event)
        if len(self.performer.requests) != self.asked:
            self.asked = len(self.performer.requests)
            self.opened = False
        for join in self.performer.saved[self.saved :]:
            self.remember(join.group)
        self.saved = len(self.performer.saved)

    def remember(self, group: HiddenGroup | None) -> None:
        if group is not None:
            self.memory.append(HiddenGroup.from_json(group.to_json()))

    def awaiting_head(self) -> bool:
        return self.running and self.performer.open and not self.opened

    def streaming(self) -> bool:
        return self.running and self.performer.open and self.opened

    @precondition(lambda self: self.running)
    @rule()
    def all_goes_well(self) -> None:
        """The turn comes to its end, and the client has all of it: most of them do."""
        while self.running:
            if self.performer.running:
                self.happen(found(min(self.performer.running), f"{CANARY} found", self.tick()))
            elif not self.opened:
                self.answer(200)
            elif self.rest:
                piece, self.rest = self.rest, b""
                self.happen(chunk(piece, self.tick()))
            else:
                self.happen(ended(self.tick()))
        self.read = len(self.performer.sent)
        self.goes_on()

    @precondition(awaiting_head)
    @rule(status=st.sampled_from([200, 200, 200, 200, 500]))
    def head(self, status: int) -> None:
        self.answer(status)

    def answer(self, status: int) -> None:
        bodies = self.script.hops
        self.rest = bodies[min(self.performer.hop, len(bodies)) - 1]
        self.opened = True
        self.happen(opened(status, now=self.tick()))

    @precondition(streaming)
    @rule(size=st.integers(1, 4000))
    def bytes_come(self, size: int) -> None:
        if not self.rest:
            self.happen(ended(self.tick()))
            return
        piece, self.rest = self.rest[:size], self.rest[size:]
        self.happen(chunk(piece, self.tick()))

    @precondition(streaming)
    @rule()
    def all_of_it_comes(self) -> None:
        piece, self.rest = self.rest, b""
        self.happen(chunk(piece, self.tick()))

    @precondition(streaming)
    @rule(really=st.integers(0, 4))
    def it_ends(self, really: int) -> None:
        if not really:
            self.happen(ended(self.tick()))

    @precondition(lambda self: self.running and self.performer.open)
    @rule(
        really=st.integers(0, 4),
        error=st.sampled_from([UpstreamError("cut"), UpstreamError("late", status=504)]),
    )
    def it_breaks(self, really: int, error: SottovoceError) -> None:
        if not really:
            self.happen(failed(error, self.tick()))

    @precondition(lambda self: self.running and self.performer.running)
    @rule(data=st.data())
    def a_result_comes(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(sorted(self.performer.running)))
        text = data.draw(strategies.texts)
        self.happen(found(call, f"{CANARY} in a result {text}", self.tick()))

    @precondition(lambda self: not self.over)
    @rule()
    def a_result_of_nobody(self) -> None:
        self.happen(found("call_9_9", CANARY, self.tick()))

    @precondition(lambda self: not self.over)
    @rule()
    def silence(self) -> None:
        self.happen(KeepAliveDue())

    @precondition(lambda self: self.running and self.performer.turn.deadline is not None)
    @rule()
    def time_is_up(self) -> None:
        self.now = max(self.now, self.performer.turn.deadline or 0.0)
        self.happen(DeadlineReached(self.now))

    @precondition(lambda self: self.running)
    @rule(really=st.integers(0, 9))
    def shutdown(self, really: int) -> None:
        if not really:
            self.happen(ShutdownDue())

    def tick(self) -> float:
        self.now += 0.5
        return self.now

    # --- What holds -----------------------------------------------------------------------

    @invariant()
    def something_can_happen(self) -> None:
        """Until it is over a turn waits for an upstream, a result or a deadline."""
        if self.running:
            assert self.performer.open or self.performer.running

    @invariant()
    def nothing_hidden_is_shown(self) -> None:
        if self.number:
            sent = self.performer.sent
            assert CANARY.encode() not in sent
            assert not [call for call in self.script.results if f'"{call}"'.encode() in sent]

    @invariant()
    def every_request_begins_with_the_first(self) -> None:
        if self.number:
            inputs = [request.body["input"] for request in self.performer.requests]
            assert all(one[: len(inputs[0])] == inputs[0] for one in inputs)

    @invariant()
    def no_buffer_is_above_its_limit(self) -> None:
        if not self.number:
            return
        for hop in self.performer.turn.hops:
            held, state = hop.interception, hop.state
            if self.running:
                assert held.unresolved_tool_bytes <= LIMITS.deferred_bytes
                assert held.hidden_bytes <= LIMITS.hidden_bytes
                assert state.retained <= LIMITS.retained_bytes

    @invariant()
    def there_is_one_terminal_and_it_is_the_last(self) -> None:
        if self.number:
            kinds = [event.get("type") for event in self.events()]
            terminals = [kind for kind in kinds if kind in TERMINALS]
            assert terminals == kinds[len(kinds) - len(terminals) :]
            assert len(terminals) <= int(self.performer.ended)

    @invariant()
    def numbers_grow(self) -> None:
        if self.number and self.performer.turn.view.client.numbered:
            events = self.events()
            numbers = [e["sequence_number"] for e in events if "sequence_number" in e]
            assert numbers == sorted(set(numbers))

    def events(self) -> list[Event]:
        if not self.streamed or self.performer.refused is not None or self.performer.relayed:
            return []
        return readable(self.performer.sent)

    def teardown(self) -> None:
        if not self.number or self.performer.outcome is None:
            return
        outcome, client = self.performer.outcome, self.performer.turn.view.client
        if self.streamed and self.performer.sent and client.changed:
            check_sent(self.performer.sent)
        if outcome.ending is Ending.FAILED:
            assert outcome.category is not None
            assert outcome.message


TestConversations = Conversations.TestCase
