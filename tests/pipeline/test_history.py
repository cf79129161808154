from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.continuation import follow_up
from pipeline.history import (
    HiddenGroup,
    Insertion,
    ItemEdit,
    Slot,
    hidden_group,
    hidden_slot,
    is_fresh,
    minted_ids,
    restorations,
    visible_slot,
)
from pipeline.identity import mint_id
from pipeline.items import canonical, same_item
from pipeline.jsontext import dumps, loads
from pipeline.request import Request, declare, input_items, read_request
from pipeline.restore import restore
from pipeline.survey import Survey
from tests.jsontexts import call_output, hostile, hostile_objects, objects, texts
from tests.pipeline.test_request import TOOL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.jsonspans import Json


def asked_for(body: dict[str, Json]) -> list[str]:
    return Survey(input_items(body)).lookup_keys


def user(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def answer(number: int, text: str = "ok") -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content}


def thought(number: int) -> Json:
    cipher = f"cipher {number}"
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": cipher}


def call(name: str, number: int) -> Json:
    call_id, arguments = f"{name}_{number}", '{"query":"x"}'
    fields = {"type": "function_call", "id": f"fc_{number}", "call_id": call_id}
    return {**fields, "name": name, "arguments": arguments}


def result(of: Json, text: str = "found") -> Json:
    return loads(call_output(of["call_id"], text))


def without(item: Json, *keys: str) -> Json:
    return {key: value for key, value in item.items() if key not in keys}


def group(before: Sequence[Json], items: Sequence[Json], *, withheld: bool = False) -> HiddenGroup:
    """The group of a turn: calls of recall and their results are what the client never saw."""
    slots = []
    hidden = {item["call_id"] for item in items if item.get("name") == "recall"}
    for item in items:
        if item.get("call_id") in hidden:
            slots.append(hidden_slot(dumps(item)))
        else:
            seen = without(item, "encrypted_content") if withheld else item
            slots.append(visible_slot(seen, dumps(item), withheld=withheld))
    return hidden_group(before, slots)


def put_back(items: Sequence[Json], *groups: HiddenGroup) -> list[Json]:
    before = read_request(dumps({"input": items}))
    keys = set(asked_for(before.body))
    known = [each for each in groups if keys.intersection(each.lookup_keys())]
    after = restore(before, restorations(Survey(before.body["input"]), known))
    assert loads(after.text) == after.body
    restored: list[Json] = after.body["input"]
    return restored


R1, C1, R2, A1, A2 = thought(1), call("recall", 1), thought(2), answer(1), answer(2)
O1, S1, S2, C2 = result(C1), call("shell", 3), call("shell", 4), call("recall", 2)
O2, SO1, SO2 = result(C2), result(S1, "a.txt"), result(S2, "b.txt")
U1, U2 = user("hi"), user("and?")
TURN = [R1, C1, O1, R2, A1]
MIXED = [R1, C1, S1, C2, S2, O1, O2]


class TestWhere:
    @pytest.mark.parametrize(
        ("turn", "history", "expected"),
        [
            (TURN, [U1, R1, R2, A1, U2], [U1, *TURN, U2]),
            (TURN, [U1, A1, U2], [U1, *TURN, U2]),
            (TURN, [U1, R2, A1, U2], [U1, *TURN, U2]),
            (TURN, [U1, R1, A1], [U1, *TURN]),
            ([C1, O1, A1], [U1, A1, U2], [U1, C1, O1, A1, U2]),
            ([C1, O1, A1], [A2, U1, A1], [A2, U1, C1, O1, A1]),
            ([A1, C1, O1, A2], [U1, A1, A2], [U1, A1, C1, O1, A2]),
            ([R1, C1, O1], [U1, R1], [U1, R1, C1, O1]),
            ([R1, C1, O1], [U1, R1, A2], [U1, R1, C1, O1, A2]),
            (MIXED, [U1, R1, S1, S2, SO1, SO2], [U1, *MIXED, SO1, SO2]),
            (MIXED, [U1, R1, S1, S2, SO2, SO1], [U1, *MIXED, SO2, SO1]),
            (MIXED, [U1, S1, S2, SO2, SO1, A2], [U1, *MIXED, SO2, SO1, A2]),
            (
                MIXED,
                [U1, R1, S1, SO1, S2, SO2],
                [U1, R1, C1, S1, C2, SO1, S2, O1, O2, SO2],
            ),
            ([C1, S1, O1], [U1, S1, SO1], [U1, C1, S1, O1, SO1]),
            ([S1, C1, O1], [U1, S1, SO1, U2], [U1, S1, C1, O1, SO1, U2]),
        ],
    )
    def test_goes_back(self, turn: list[Json], history: list[Json], expected: list[Json]) -> None:
        assert put_back(history, group([U1], turn)) == expected

    @pytest.mark.parametrize(
        "history",
        [
            [],
            [U1],
            [U1, U2],
            [U1, R1, R2],  # the answer is gone
            [U1, R1, R2, answer(1, "other") | {"id": "msg_7"}, U2],  # another answer
            [U1, R1, U2, A1],  # something in between
            [U1, R1, R2, A2, A1],
            [U2, A1],  # another question, and what stood in front of the answer is gone
            [A1, U2],
            [U1, U2, A1],
            [U1, C1, O1, A1],  # it is there already
            [U1, R1, R2, A1, U2, O1],
            [U1, "text", A1],
        ],
    )
    def test_an_edited_history_gets_nothing(self, history: list[Json]) -> None:
        assert put_back(history, group([U1], TURN)) == history

    @pytest.mark.parametrize(
        "history",
        [
            [U1, S1, SO1],  # one of the parallel calls is gone
            [U1, S2, S1, SO1, SO2],
            [U1, S1, U2, S2],
            [U1, S1, SO2, result(call("shell", 9)), S2],
        ],
    )
    def test_nor_does_an_edited_mixed_turn(self, history: list[Json]) -> None:
        assert put_back(history, group([U1], MIXED)) == history

    def test_texts_are_those_that_were_sent(self) -> None:
        odd = b'{ "type":"function_call","call_id":"h","n":1.50,"n":2 ,"name":"\\u0072ecall"}'
        slots = [hidden_slot(odd), hidden_slot(call_output("h", "é")), visible_slot(A1, dumps(A1))]
        found = restorations(Survey([U1, A1]), [hidden_group([U1], slots)])
        assert found == [Insertion(1, (odd, call_output("h", "é")))]

    @pytest.mark.parametrize(
        "shape",
        [
            lambda item: without(item, "id"),
            lambda item: {**item, "status": "completed", "phase": None},
            lambda item: {"role": "assistant", "content": "ok"} if "role" in item else item,
            lambda item: {"type": "item_reference", "id": item["id"]},
            lambda item: without(item, "id", "encrypted_content"),
        ],
    )
    def test_in_the_shapes_that_clients_send(self, shape: Json) -> None:
        history = [U1, *(shape(item) for item in (R1, R2, A1)), U2]
        restored = put_back(history, group([U1], TURN))
        assert restored == [U1, history[1], C1, O1, *history[2:]]

    def test_a_question_in_another_shape(self) -> None:
        history = [{"role": "user", "content": "hi"}, A1]
        assert put_back(history, group([U1], [C1, O1, A1])) == [history[0], C1, O1, A1]
        assert put_back([{**history[0], "id": "msg_x"}, A1], group([U1], [C1, O1, A1]))[1] == C1

    def test_parallel_results_in_front_in_another_order(self) -> None:
        later = group([U1, S1, S2, SO1, SO2], [C1, O1, A1])
        for results in ([SO1, SO2], [SO2, SO1]):
            history = [U1, S1, S2, *results]
            assert put_back([*history, A1], later) == [*history, C1, O1, A1]
        assert put_back([U1, S1, SO1, A1], later) == [U1, S1, SO1, A1]

    def test_a_turn_without_an_item_in_front(self) -> None:
        first = group([], [C1, O1, A1])
        assert put_back([A1, U1], first) == [C1, O1, A1, U1]
        assert put_back([U1, A1], first) == [U1, A1]


class TestSeveral:
    def test_turns_in_a_row(self) -> None:
        first = group([U1], [R1, C1, O1])  # failed behind its only visible item
        second = group([U1, R1], [C2, O2, A2])
        history = [U1, R1, A2, U2]
        for groups in ((first, second), (second, first)):
            assert put_back(history, *groups) == [U1, R1, C1, O1, C2, O2, A2, U2]

    def test_a_turn_behind_what_was_put_back(self) -> None:
        first = group([U1], [R1, C1, O1])
        second = group([U1, R1, C1, O1], [C2, O2, A2])
        history = [U1, R1, A2, U2]
        for groups in ((first, second), (second, first)):
            assert put_back(history, *groups) == [U1, R1, C1, O1, C2, O2, A2, U2]
        assert put_back(history, second) == history

    def test_never_twice(self) -> None:
        one = group([U1], [C1, O1, A1])
        other = group([U1], [C1, O1, answer(5)])
        history = [U1, A1, U1, answer(5)]
        assert put_back(history, one, one, other) == [U1, C1, O1, A1, U1, answer(5)]

    def test_one_place_takes_one_turn(self) -> None:
        one, other = group([U1], [C1, O1, A1]), group([U1], [C2, O2, A1])
        assert put_back([U1, A1], one, other) == [U1, C1, O1, A1]

    def test_an_id_comes_before_a_look_alike(self) -> None:
        bare = without(A2, "id")
        like = group([U1], [C1, O1, bare])
        named = group([U1], [C2, O2, A2])
        assert put_back([U1, A2], like, named) == [U1, C2, O2, A2]

    @pytest.mark.parametrize("recalls", [[0], [1], [2], [0, 2], [1, 2], [2, 0]])
    def test_look_alikes_are_told_apart_by_their_depth(self, recalls: list[int]) -> None:
        pairs = {0: (C1, O1), 1: (C2, O2), 2: (call("recall", 9), result(call("recall", 9)))}
        bare = without(A1, "id")
        history = [U1, bare] * 3
        groups = {}
        expected: list[Json] = []
        for at in range(3):
            expected += [U1]
            if at in recalls:
                groups[at] = group(expected, [*pairs[at], bare])
                expected += pairs[at]
            expected += [bare]
        assert put_back(history, *(groups[at] for at in recalls)) == expected

    def test_look_alikes_in_front_of_reasoning(self) -> None:
        bare = [without(item, "id") for item in (U1, A1, U1, R1, R2, A1)]
        known = group(bare[:3], [bare[3], C1, O1, bare[4], bare[5]])
        assert put_back(bare, known) == [*bare[:4], C1, O1, *bare[4:]]

    def test_reused_call_ids(self) -> None:
        shells = [{**S1, "call_id": "call_0", "arguments": str(at)} for at in range(2)]
        results = [result(each) for each in shells]
        history = [U1, shells[0], results[0], shells[1], results[1]]
        second = group(history[:3], [C1, shells[1], O1])
        assert put_back(history, second) == [*history[:3], C1, shells[1], O1, results[1]]


class TestReasoning:
    def test_withheld_ciphertext_goes_back(self) -> None:
        bare = [without(each, "encrypted_content") for each in (R1, R2)]
        known = group([U1], TURN, withheld=True)
        assert put_back([U1, *bare, A1], known) == [U1, *TURN]
        assert put_back([U1, R1, R2, A1], known) == [U1, *TURN]
        unnamed = [without(each, "id") for each in bare]
        restored = put_back([U1, *unnamed, A1], known)
        assert [item.get("encrypted_content") for item in restored] == [
            item.get("encrypted_content") for item in [U1, *TURN]
        ]

    def test_also_into_an_edited_history(self) -> None:
        bare = without(R2, "encrypted_content")
        restored = put_back([U2, bare, A1], group([U1], TURN, withheld=True))
        assert restored == [U2, R2, A1]

    def test_also_of_a_turn_that_hid_nothing_else(self) -> None:
        known = group([U1], [R1, A1], withheld=True)
        assert known.hides()
        assert put_back([U1, without(R1, "encrypted_content"), A1], known) == [U1, R1, A1]
        assert put_back([U1, A1], known) == [U1, A1]

    def test_dropped_reasoning_behind_the_last_hidden_item(self) -> None:
        plain = without(R2, "encrypted_content")
        assert put_back([U1, A1], group([U1], [C1, O1, plain, A1])) == [U1, C1, O1, A1]
        assert put_back([U1, A1], group([U1], [C1, O1, R2, A1])) == [U1, C1, O1, R2, A1]
        assert put_back([U1, A1], group([U1], [plain, C1, O1, A1])) == [U1, plain, C1, O1, A1]

    def test_moved_reasoning_is_not_doubled(self) -> None:
        restored = put_back([U1, A1, R1], group([U1], TURN))
        assert restored == [U1, C1, O1, R2, A1, R1]


class TestGroup:
    def test_lookup(self) -> None:
        known = group([U1], MIXED)
        assert known.lookup_keys() == (
            "id:rs_1",
            "call:shell_3",
            "id:fc_3",
            "call:shell_4",
            "id:fc_4",
        )
        assert "sha:" in "".join(group([U1], TURN).lookup_keys())

    def test_input_keys(self) -> None:
        assert asked_for({"input": "x"}) == []
        assert asked_for({}) == []
        keys = asked_for({"input": [U1, R1, S1, SO1, A1, without(A1, "id"), 3, S1]})
        assert keys[:-1] == ["id:rs_1", "call:shell_3", "id:msg_1"]
        assert keys[-1].startswith("sha:")
        assert asked_for({"input": [A1]}) == ["id:msg_1"]
        other, digest = asked_for({"input": [A1 | {"id": "made up"}]})
        assert (other, digest) == ("id:made up", keys[-1])

    def test_fresh(self) -> None:
        assert is_fresh({})
        assert is_fresh({"input": "x"})
        assert is_fresh({"input": [U1, {"role": "developer", "type": "additional_tools"}]})
        for item in (A1, S1, SO1, R1, 3, U1 | {"id": "msg_1"}, U1 | {"encrypted_content": "x"}):
            assert not is_fresh({"input": [U1, item]})

    def test_pending_outputs(self) -> None:
        assert group([U1], MIXED).pending_outputs() == (dumps(O1), dumps(O2))
        assert group([U1], [C1, O1, R2, C2, S1, O2]).pending_outputs() == (dumps(O2),)
        assert group([U1], TURN).pending_outputs() == ()
        assert group([U1], [S1]).pending_outputs() == ()
        chained = read_request(dumps({"previous_response_id": "r", "input": [SO1]}))
        outputs = Insertion(0, group([U1], MIXED).pending_outputs())
        assert restore(chained, [outputs]).body["input"] == [O1, O2, SO1]

    def test_hides(self) -> None:
        assert group([U1], TURN).hides()
        assert not group([U1], [R1, A1]).hides()

    @given(
        hidden=st.lists(texts(objects).map(bytes.strip), max_size=4),
        before=st.lists(st.text(), max_size=2),
        reasoning=st.lists(texts(objects).map(bytes.strip), max_size=3),
        withheld=st.booleans(),
    )
    def test_survives_storage(
        self, hidden: list[bytes], before: list[str], reasoning: list[bytes], *, withheld: bool
    ) -> None:
        slots = [Slot(text, tuple(before), value=loads(text)) for text in hidden]
        slots += [Slot(None, ("a",), text, withheld) for text in reasoning]
        known = HiddenGroup(tuple(slots), tuple(before), 7)
        assert HiddenGroup.from_json(known.to_json()) == known
        assert loads(known.to_json())["depth"] == 7

    def test_cipher_is_the_providers_text(self) -> None:
        text = b'{"type":"reasoning","encrypted_content": "a\\/b" }'
        assert visible_slot(loads(text), text, withheld=True).cipher == b'"a\\/b"'
        assert visible_slot(loads(text), text).cipher is None
        assert visible_slot(R1, b'{"type":"reasoning"}', withheld=True).cipher is None
        assert visible_slot(A1, dumps(A1), withheld=True).cipher is None


class TestHostile:
    @given(st.lists(hostile | hostile_objects, max_size=5), st.lists(hostile_objects, max_size=3))
    @example([], [{"id": "\ud83d"}])
    def test_no_item_is_too_odd(self, items: list[Json], turn: list[dict[str, Json]]) -> None:
        body = loads(dumps({"input": [*items, *turn]}))
        slots = [visible_slot(item, dumps(item), withheld=True) for item in turn]
        for known in (
            hidden_group(items, slots),
            hidden_group([], [hidden_slot(dumps(C1)), *slots]),
        ):
            assert HiddenGroup.from_json(known.to_json()) == known
            found = restorations(Survey(body["input"]), [known])
            found += minted_ids(Survey(body["input"], b"k" * 32))
            before = Request(dumps(body), body)
            after = restore(before, found)
            assert loads(after.text) == after.body
            keys = asked_for(body)
            assert len(set(keys)) == len(keys)


class TestMintedIds:
    KEY = b"k" * 32

    def test_are_taken_out(self) -> None:
        minted = mint_id(self.KEY, "msg", "resp_1", 0)
        items = [
            {**A1, "id": minted},
            A1,
            {"type": "item_reference", "id": minted},
            {"id": minted},
            "x",
            {**R1, "id": mint_id(self.KEY, "rs", "resp_1", 1)},
            {**A1, "id": mint_id(b"other", "msg", "resp_1", 0)},
        ]
        edits = minted_ids(Survey(items, self.KEY))
        assert edits == [ItemEdit(0, dropped=("id",)), ItemEdit(5, dropped=("id",))]
        restored = restore(read_request(dumps({"input": items})), edits).body["input"]
        assert restored == [without(A1, "id"), *items[1:5], without(R1, "id"), items[6]]

    def test_together_with_ciphertext(self) -> None:
        minted = mint_id(self.KEY, "rs", "resp_1", 0)
        seen = without({**R1, "id": minted}, "encrypted_content")
        slots = [visible_slot(seen, dumps(without(R1, "id")), withheld=True)]
        before = read_request(dumps({"input": [U1, seen]}))
        found = restorations(Survey(before.body["input"]), [hidden_group([U1], slots)])
        after = restore(before, [*found, *minted_ids(Survey(before.body["input"], self.KEY))])
        assert after.body["input"] == [U1, without(R1, "id")]


# --- generated conversations -------------------------------------------------------------------


@dataclass(frozen=True)
class Client:
    """How a client keeps what it was sent."""

    ids: bool
    reasoning: bool
    plain: bool
    withheld: bool

    def keeps(self, item: Json) -> list[Json]:
        if item["type"] == "reasoning" and not self.reasoning:
            return []
        if not self.ids:
            item = without(item, "id")
        if self.withheld:
            item = without(item, "encrypted_content")
        if self.plain and item["type"] == "message":
            return [{"role": "assistant", "content": item["content"][0]["text"]}]
        return [item]


@dataclass
class Talk:
    """A conversation: what the provider knows, what the client knows, what the ledger knows."""

    client: Client
    upstream: list[Json] = field(default_factory=list)
    history: list[Json] = field(default_factory=list)
    groups: list[HiddenGroup] = field(default_factory=list)
    number: int = 0

    def next(self) -> int:
        self.number += 1
        return self.number

    def request(self) -> Request:
        """Prepare the client's next request as the proxy does."""
        body = {"model": "m", "input": self.history, "tools": [S1], "store": False}
        before = read_request(dumps(body))
        keys = set(asked_for(before.body))
        known = [each for each in self.groups if keys.intersection(each.lookup_keys())]
        return declare(restore(before, restorations(Survey(self.history), known)), TOOL).request

    def hop(self, data: st.DataObject, kinds: Sequence[str]) -> list[Json]:
        items = []
        for kind in kinds:
            if data.draw(st.booleans()):
                items.append(thought(self.next()))
            match kind:
                case "answer":
                    text = data.draw(st.sampled_from(["ok", "done"]))
                    items.append(answer(self.next(), text))
                case name:
                    items.append(call(name, self.next()))
        return items

    def turn(self, data: st.DataObject) -> None:
        request = self.request()
        before = request.body["input"]
        expected = list(self.upstream)
        assert_same(request.body["input"], expected)
        slots: list[Slot] = []
        for _ in range(data.draw(st.integers(0, 2))):
            items = self.hop(data, data.draw(st.sampled_from([["recall"], ["recall", "recall"]])))
            items = [*self.hop(data, ["answer"] * data.draw(st.integers(0, 1))), *items]
            request, sent = self.answered(request, items)
            slots += self.slots(items + sent)
            expected += items + sent
            assert_same(request.body["input"], expected)
        last = self.hop(
            data,
            data.draw(
                st.sampled_from(
                    [
                        ["answer"],
                        ["shell"],
                        ["recall", "shell"],
                        ["shell", "recall", "shell"],
                        ["recall", "shell", "shell", "recall"],
                        ["answer", "shell", "recall"],
                    ]
                )
            ),
        )
        _, sent = self.answered(request, last)
        slots += self.slots(last + sent)
        known = hidden_group(before, slots)
        if known.hides():
            self.groups.append(HiddenGroup.from_json(known.to_json()))
        self.remember(slots, expected[len(self.upstream) :] + last + sent)
        shells = [item for item in last if item.get("name") == "shell"]
        results = data.draw(st.permutations([result(each, "done") for each in shells]))
        follow = results or [user(data.draw(st.sampled_from(["hi", "go on"])))]
        self.upstream += follow
        self.history += follow

    def answered(self, request: Request, items: list[Json]) -> tuple[Request, list[Json]]:
        recalls = [item for item in items if item.get("name") == "recall"]
        outputs = [call_output(each["call_id"], "found") for each in recalls]
        after = follow_up(request, items=[*map(dumps, items), *outputs], max_output_tokens=None)
        return after, [result(each) for each in recalls]

    def slots(self, items: list[Json]) -> list[Slot]:
        seen = replace(self.client, ids=True, reasoning=True, plain=False)
        hidden = {item["call_id"] for item in items if item.get("name") == "recall"}
        return [
            hidden_slot(dumps(item))
            if item.get("call_id") in hidden
            else visible_slot(seen.keeps(item)[0], dumps(item), withheld=self.client.withheld)
            for item in items
        ]

    def remember(self, slots: list[Slot], items: list[Json]) -> None:
        hid = any(slot.hidden is not None for slot in slots)
        for slot, item in zip(slots, items, strict=True):
            kept = self.client.keeps(item) if slot.hidden is None else []
            self.history += kept
            # Who drops its reasoning doesn't get it back where nothing was hidden.
            if kept or hid:
                self.upstream.append(item)


def assert_same(got: Sequence[Json], expected: Sequence[Json]) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert same_item(one, other)
        if other.get("name") == "recall" or other.get("output") == "found":
            assert dumps(one) == dumps(other)
        assert canonical(one) == canonical(other)


clients = st.builds(Client, st.booleans(), st.booleans(), st.booleans(), st.booleans())


@given(clients, st.data(), st.integers(1, 4))
def test_every_request_begins_with_what_was_sent_and_got(
    client: Client, data: st.DataObject, turns: int
) -> None:
    talk = Talk(client)
    talk.history.append(U1)
    talk.upstream.append(U1)
    for _ in range(turns):
        talk.turn(data)
    assert_same(talk.request().body["input"], talk.upstream)


@given(clients, st.data())
def test_a_compacted_history_gets_nothing_wrong(client: Client, data: st.DataObject) -> None:
    talk = Talk(client)
    talk.history.append(U1)
    talk.upstream.append(U1)
    for _ in range(3):
        talk.turn(data)
    dropped = data.draw(st.sets(st.integers(0, len(talk.history) - 1), min_size=1))
    talk.history = [item for at, item in enumerate(talk.history) if at not in dropped]
    got = talk.request().body["input"]
    calls = [item["call_id"] for item in got if item.get("name") == "recall"]
    assert len(set(calls)) == len(calls)
    assert [item["call_id"] for item in got if item.get("output") == "found"] == calls
    rest = iter(got)  # all that the client sent is there, in its order
    assert all(any(told(item) == told(each) for each in rest) for item in talk.history)


def told(item: Json) -> bytes:
    return canonical(without(item, "encrypted_content"))


class TestCases:
    def test_two_turn_prefix(self) -> None:
        """Case 13: the next request begins with the input of the last hop."""
        data = dumps({"input": [U1], "tools": [S1], "stream": True})
        first = read_request(data)
        hop1 = declare(first, TOOL).request
        answer = call_output("recall_1", "found é")
        hop2 = follow_up(hop1, items=[dumps(R1), dumps(C1), answer], max_output_tokens=None)
        slots = [
            visible_slot(R1, dumps(R1)),
            hidden_slot(dumps(C1)),
            hidden_slot(call_output("recall_1", "found é")),
            visible_slot(A1, dumps(A1)),
        ]
        known = [hidden_group(input_items(first.body), slots)]
        for extra in ({"tools": [S1]}, {}, {"tools": [S1], "tool_choice": "none"}):
            for tail in ([U2], [U2, {"type": "compaction_trigger"}]):
                body = {"input": [U1, R1, {**A1, "status": "completed"}, *tail], **extra}
                request = read_request(dumps(body))
                got = restore(request, restorations(Survey(request.body["input"]), known))
                items = got.body["input"]
                prefix = hop2.body["input"]
                assert_same(items[: len(prefix)], prefix)
                assert_same(items[len(prefix) :], [A1, *tail])
                assert dumps(C1) + b"," + call_output("recall_1", "found é") in got.text
                assert loads(got.text) == got.body

    def test_mixed_and_parallel(self) -> None:
        """Case 7: the next request has the calls in upstream order, the client's output last."""
        c1, c2, c3 = call("recall", 1), call("shell", 2), call("recall", 3)
        turn = [c1, c2, c3, result(c1), result(c3)]
        got = put_back([U1, c2, result(c2, "files")], group([U1], turn))
        assert got == [U1, *turn, result(c2, "files")]
