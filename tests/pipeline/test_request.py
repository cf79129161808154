from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.echo import cut_echo
from pipeline.errors import RequestError
from pipeline.history import Insertion, ItemEdit
from pipeline.jsontext import dumps, loads
from pipeline.request import (
    Declared,
    HiddenTool,
    Request,
    Undeclared,
    client_tool_names,
    declaration_blocker,
    declare,
    input_items,
    is_compaction,
    read_request,
    with_array_input,
)
from pipeline.restore import restore
from tests.jsontexts import hostile_objects, objects, subsequence, texts, values

if TYPE_CHECKING:
    from pipeline.jsonspans import Json

DECLARATION = b'{"type":"function","name":"recall","parameters":{"type":"object"},"strict":false}'
TOOL = HiddenTool("recall", DECLARATION)
OURS = loads(DECLARATION)
READ = ("input", "tools", "stream")
SHELL = {"type": "function", "name": "shell", "parameters": {}}
WEB = {"type": "web_search"}
NAMESPACE = {"type": "namespace", "name": "mcp__x", "tools": [{"type": "function", "name": "find"}]}


def request(**body: Json) -> Request:
    return read_request(dumps(body))


def lite(*tools: Json, role: str = "developer") -> Json:
    return {"type": "additional_tools", "role": role, "tools": list(tools)}


def blocker(
    body: dict[str, Json],
    *,
    on: bool = True,
    inject: Literal["with_tools", "always"] = "with_tools",
    kind: str | None = "turn",
) -> Undeclared | None:
    return declaration_blocker(
        request(**body), "recall", enabled=on, inject=inject, request_kind=kind
    )


def agree(edited: Request) -> None:
    assert loads(edited.text) == edited.body
    assert list(loads(edited.text)) == list(edited.body)


class TestRead:
    def test_keeps_the_bytes(self) -> None:
        data = b' {"model": "m", "big": 123456789012345678901234567890, "a":1,"a":2}\n'
        got = read_request(data)
        assert got.text is data
        assert got.body["a"] == 2

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (b"", "could not be parsed as JSON"),
            (b'{"model":', "could not be parsed as JSON"),
            (b"\xff\xfe", "could not be parsed as JSON"),
            (b'{"a":NaN}', "could not be parsed as JSON"),
            (b"[" * 100_000 + b"]" * 100_000, "could not be parsed as JSON"),
            (b"[]", "The request body is an array, but"),
            (b"null", "The request body is null, but"),
            (b"1.5", "The request body is a number, but"),
            (b'{"input":5}', "'input' is a number, but has to be a string or an array of items"),
            (b'{"input":{}}', "'input' is an object"),
            (b'{"tools":{}}', "'tools' is an object, but has to be an array of tools"),
            (b'{"stream":"yes"}', "'stream' is a string, but has to be true or false"),
            (b'{"stream":1}', "'stream' is a number"),
            (b'{"tools":[],"tools":true}', "'tools' is a boolean"),
        ],
    )
    def test_says_what_is_wrong_and_what_to_do(self, data: bytes, words: str) -> None:
        with pytest.raises(RequestError) as caught:
            read_request(data)
        assert caught.value.status == 400
        assert words in caught.value.message
        assert "Send " in caught.value.message

    def test_never_repeats_the_body(self) -> None:
        with pytest.raises(RequestError) as caught:
            read_request(b'{"input":"secret", oops')
        assert "secret" not in caught.value.message

    @pytest.mark.parametrize("key", ["input", "tools", "stream"])
    def test_null_is_absent(self, key: str) -> None:
        assert read_request(dumps({key: None})).body == {key: None}

    @given(texts(objects))
    def test_reads_any_object(self, data: bytes) -> None:
        odd = {key: value for key, value in loads(data).items() if key not in READ}
        assert read_request(dumps(odd)).body == loads(dumps(odd))


class TestTools:
    def test_names_of_every_layout(self) -> None:
        body = {
            "tools": [SHELL, WEB, NAMESPACE, {"type": "custom", "name": "apply_patch"}, None, 3],
            "input": [
                lite({"type": "function", "name": "lite"}),
                "no item",
                {"type": "tool_search_output", "tools": [{"type": "function", "name": "found"}]},
                {"type": "message", "role": "user", "content": "x", "tools": [{"name": "no"}]},
            ],
        }
        expected = {"shell", "mcp__x", "find", "apply_patch", "lite", "found"}
        assert client_tool_names(body) == expected

    @pytest.mark.parametrize("body", [{}, {"tools": None}, {"input": "x"}, {"tools": [WEB]}])
    def test_no_names(self, body: dict[str, Json]) -> None:
        assert client_tool_names(body) == frozenset()

    @pytest.mark.parametrize(
        ("body", "kind", "expected"),
        [
            ({"input": [{"type": "compaction_trigger"}]}, None, True),
            ({"input": [{"type": "compaction_trigger"}, {"type": "message"}]}, "turn", False),
            ({"input": "x"}, "compaction", True),
            ({"input": []}, None, False),
            ({}, "turn", False),
        ],
    )
    def test_compaction(self, body: dict[str, Json], kind: str | None, *, expected: bool) -> None:
        assert is_compaction(body, kind) is expected


class TestBlocker:
    @pytest.mark.parametrize(
        "body",
        [
            {"tools": [SHELL]},
            {"tools": [WEB, {"type": "custom", "name": "x"}]},
            {"tools": [NAMESPACE]},
            {"input": [lite(SHELL)]},
            {"input": [{"type": "message"}, lite(NAMESPACE)], "tools": []},
            {"tools": [SHELL], "tool_choice": None},
            {"tools": [SHELL], "tool_choice": "auto"},
            {"tools": [SHELL], "tool_choice": "required"},
            {
                "tools": [SHELL],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []},
            },
            {
                "tools": [SHELL],
                "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [SHELL]},
            },
            {"tools": [SHELL], "conversation": None, "background": False},
            {"tools": [SHELL], "input": [{"type": "function_call", "name": "recall"}]},
        ],
    )
    def test_declares(self, body: dict[str, Json]) -> None:
        assert blocker(body) is None

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ({}, Undeclared.NO_CLIENT_TOOL),
            ({"tools": []}, Undeclared.NO_CLIENT_TOOL),
            ({"tools": [WEB]}, Undeclared.NO_CLIENT_TOOL),
            ({"input": [lite(WEB)]}, Undeclared.NO_CLIENT_TOOL),
            ({"tools": [SHELL, OURS]}, Undeclared.NAME_TAKEN),
            ({"tools": [{"type": "custom", "name": "recall"}]}, Undeclared.NAME_TAKEN),
            ({"tools": [SHELL], "input": [lite(OURS)]}, Undeclared.NAME_TAKEN),
            ({"tools": [{**NAMESPACE, "tools": [OURS]}]}, Undeclared.NAME_TAKEN),
            ({"tools": [{**NAMESPACE, "name": "recall"}]}, Undeclared.NAME_TAKEN),
            ({"input": [lite({**NAMESPACE, "tools": [OURS]})]}, Undeclared.NAME_TAKEN),
            (
                {"tools": [{"type": "function", "function": {"name": "recall"}}]},
                Undeclared.NAME_TAKEN,
            ),
            (
                {"tools": [SHELL], "input": [{"type": "tool_search_output", "tools": [OURS]}]},
                Undeclared.NAME_TAKEN,
            ),
            ({"tools": [SHELL], "tool_choice": "none"}, Undeclared.TOOL_CHOICE),
            ({"tools": [SHELL], "tool_choice": "any"}, Undeclared.TOOL_CHOICE),
            ({"tools": [SHELL], "tool_choice": SHELL}, Undeclared.TOOL_CHOICE),
            ({"tools": [SHELL], "tool_choice": WEB}, Undeclared.TOOL_CHOICE),
            (
                {"tools": [SHELL], "tool_choice": {"type": "function", "name": "recall"}},
                Undeclared.TOOL_CHOICE,
            ),
            ({"tools": [SHELL], "tool_choice": {"type": "allowed_tools"}}, Undeclared.TOOL_CHOICE),
            ({"tools": [SHELL], "tool_choice": ["auto"]}, Undeclared.TOOL_CHOICE),
            ({"tools": [SHELL], "conversation": "conv_1"}, Undeclared.CONVERSATION),
            ({"tools": [SHELL], "conversation": {"id": "c"}}, Undeclared.CONVERSATION),
            ({"tools": [SHELL], "background": True}, Undeclared.BACKGROUND),
            (
                {"tools": [SHELL], "input": [{"type": "compaction_trigger"}]},
                Undeclared.COMPACTION,
            ),
        ],
    )
    def test_does_not_declare(self, body: dict[str, Json], expected: Undeclared) -> None:
        assert blocker(body) is expected

    def test_off_and_kind(self) -> None:
        assert blocker({"tools": [SHELL]}, on=False) is Undeclared.OFF
        assert blocker({"tools": [SHELL]}, kind="compaction") is Undeclared.COMPACTION

    @pytest.mark.parametrize("body", [{}, {"tools": []}, {"tools": [WEB]}])
    def test_always_needs_no_client_tool(self, body: dict[str, Json]) -> None:
        assert blocker(body, inject="always") is None
        assert blocker({**body, "tool_choice": "none"}, inject="always") is Undeclared.TOOL_CHOICE


class TestDeclare:
    def test_the_text_of_a_classic_request(self) -> None:
        data = (
            b'{"model":"m","tools":[1],"input":[{"tools":[2]}],"tools": [ {"type":"function",'
            b'"name":"shell"} ] ,"tool_choice":"auto","store":false,"n":1.50}\n'
        )
        got = declare(read_request(data), TOOL)
        assert got.request.text == (
            b'{"model":"m","tools":[1],"input":[{"tools":[2]}],"tools": [ {"type":"function",'
            b'"name":"shell"},' + DECLARATION + b' ] ,"tool_choice":"auto","store":false,"n":1.50,'
            b'"include":["reasoning.encrypted_content"]}\n'
        )
        assert got.include_added
        agree(got.request)

    def test_the_text_of_a_lite_request(self) -> None:
        item = lite(SHELL)
        before = request(model="m", input=[item, {"type": "message"}], stream=True)
        got = declare(before, TOOL)
        tools = dumps(item["tools"])
        assert got.request.text == before.text.replace(
            tools, tools[:-1] + b"," + DECLARATION + b"]"
        )
        assert "tools" not in got.request.body
        assert not got.include_added
        agree(got.request)

    @pytest.mark.parametrize(
        ("body", "place"),
        [
            ({"tools": [SHELL], "input": [lite(WEB)]}, ("tools",)),
            ({"tools": [], "input": [lite(SHELL)]}, ("input", 0, "tools")),
            ({"tools": None, "input": [{"type": "message"}, lite()]}, ("input", 1, "tools")),
            ({"tools": None, "input": [{"type": "additional_tools"}]}, ("tools",)),
            ({"tools": []}, ("tools",)),
            ({"tools": None, "z": 1}, ("tools",)),
            ({}, ("tools",)),
        ],
    )
    def test_where(self, body: dict[str, Json], place: tuple[str | int, ...]) -> None:
        got = declare(request(**body), TOOL).request
        agree(got)
        value: Json = got.body
        for step in place:
            value = value[step]
        assert value[-1] == OURS
        assert got.text.count(DECLARATION) == 1

    @pytest.mark.parametrize(
        ("mode", "appended"), [("auto", True), ("required", False), (None, False)]
    )
    def test_allowed_tools(self, mode: str | None, *, appended: bool) -> None:
        listed = [{"type": "custom", "name": "a"}]
        choice = {"type": "allowed_tools", "mode": mode, "tools": listed}
        got = declare(request(tools=[SHELL], tool_choice=choice), TOOL).request
        agree(got)
        entry = [{"type": "function", "name": "recall"}]
        assert got.body["tool_choice"]["tools"] == listed + (entry if appended else [])
        assert got.body["tools"][-1] == OURS

    @pytest.mark.parametrize(
        ("body", "include", "added"),
        [
            ({"store": False}, ["reasoning.encrypted_content"], True),
            ({"store": False, "include": None}, ["reasoning.encrypted_content"], True),
            ({"store": False, "include": []}, ["reasoning.encrypted_content"], True),
            ({"store": False, "include": ["x"]}, ["x", "reasoning.encrypted_content"], True),
            (
                {"store": False, "include": ["reasoning.encrypted_content"]},
                ["reasoning.encrypted_content"],
                False,
            ),
            ({"store": False, "include": "odd"}, "odd", False),
            ({"store": True}, None, False),
            ({"store": None}, None, False),
            ({}, None, False),
        ],
    )
    def test_include(self, body: dict[str, Json], include: Json, *, added: bool) -> None:
        got = declare(request(tools=[SHELL], **body), TOOL)
        agree(got.request)
        assert got.request.body.get("include") == include
        assert got.include_added is added

    def test_several_new_members(self) -> None:
        got = declare(Request(b"{ }", {}), TOOL).request
        assert got.text == b'{"tools":[' + DECLARATION + b"] }"
        got = declare(read_request(b'{"store":false}'), TOOL).request
        assert list(got.body) == ["store", "tools", "include"]
        agree(got)

    @given(
        texts(
            st.fixed_dictionaries(
                {"tools": st.lists(values, max_size=3)},
                optional={
                    "store": st.sampled_from([False, True]),
                    "include": st.lists(st.just("x"), max_size=2),
                    "tool_choice": st.just({"type": "allowed_tools", "mode": "auto", "tools": [1]}),
                    "input": st.lists(values, max_size=2).map(lambda rest: [lite(SHELL), *rest]),
                    "z": values,
                },
            )
        )
    )
    def test_inserts_only(self, data: bytes) -> None:
        before = read_request(data)
        got: Declared = declare(before, TOOL)
        agree(got.request)
        assert subsequence(data, got.request.text)
        added = dumps("reasoning.encrypted_content") if got.include_added else b""
        assert len(got.request.text) - len(data) <= len(DECLARATION) + len(added) + 60
        tools = got.request.body["tools"] or got.request.body["input"][0]["tools"]
        assert tools[-1] == OURS
        assert before.body == loads(data)  # the client's value is left alone


class TestRestore:
    def test_nothing(self) -> None:
        before = request(input=[1])
        assert restore(before, []) is before

    def test_everywhere(self) -> None:
        data = b'{"input":[0],"input" : [ {"a":1} , 2,\n3 ] ,"x":1e2}'
        got = restore(
            read_request(data),
            [
                Insertion(3, (b'"end"',)),
                Insertion(0, (b'"one"', b'"two"')),
                Insertion(1, (b'"three"',)),
                ItemEdit(0, members=(("a", b"9"), ("c", b"[ ]"))),
                Insertion(1, (b'"four"',)),
            ],
        )
        assert got.text == (
            b'{"input":[0],"input" : [ "one","two",{"a":9,"c":[ ]} , "three","four",2,\n3,"end" ] '
            b',"x":1e2}'
        )
        agree(got)

    def test_two_edits_of_one_item(self) -> None:
        before = request(input=[{"type": "reasoning", "id": "rs_1"}])
        edits = [
            ItemEdit(0, members=(("encrypted_content", b'"x"'),)),
            ItemEdit(0, dropped=("id",)),
        ]
        got = restore(before, edits)
        assert got.text == b'{"input":[{"type":"reasoning","encrypted_content":"x"}]}'
        agree(got)

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (b'{"input": [ ]}', b'{"input": [1,2 ]}'),
            (b'{"m":0}', b'{"m":0,"input":[1,2]}'),
            (
                b'{"input":"\\u0041"}',
                b'{"input":[1,2,{"type":"message","role":"user","content":"\\u0041"}]}',
            ),
        ],
    )
    def test_into_an_input_without_items(self, data: bytes, text: bytes) -> None:
        got = restore(read_request(data), [Insertion(0, (b"1", b"2"))])
        assert got.text == text
        agree(got)

    @given(
        texts(st.fixed_dictionaries({"input": st.lists(values, min_size=1, max_size=4)})),
        st.lists(st.tuples(st.integers(0, 4), st.lists(texts(), min_size=1, max_size=2))),
    )
    def test_inserts_only(self, data: bytes, insertions: list[tuple[int, list[bytes]]]) -> None:
        before = read_request(data)
        items = before.body["input"]
        places = [(min(index, len(items)), added) for index, added in insertions]
        got = restore(before, [Insertion(index, tuple(added)) for index, added in places])
        agree(got)
        assert subsequence(data, got.text)
        expected = []
        for index in range(len(items) + 1):
            expected += [loads(text) for at, added in places if at == index for text in added]
            expected += items[index : index + 1]
        assert got.body["input"] == expected
        for _, added in places:
            assert b",".join(added) in got.text

    def test_array_input(self) -> None:
        before = request(input=[1])
        assert with_array_input(before) is before
        got = with_array_input(read_request(b'{"input":null,"a":1}'))
        assert got.text == b'{"input":[],"a":1}'
        assert input_items({"input": "x"}) == [{"type": "message", "role": "user", "content": "x"}]


class TestEdits:
    """Edits wait until the text is asked for; it must not matter for how many of them it waited."""

    ITEMS = Insertion(0, (b'{"a":1}',))

    def test_of_different_members(self) -> None:
        asked = read_request(b'{ "input": [2], "tools": [{"type":"function"}], "stream": false }')
        edited = restore(asked, [self.ITEMS]).with_members({"stream": True})
        assert declare(edited, TOOL).request.text == (
            b'{ "input": [{"a":1},2], "tools": [{"type":"function"},'
            + DECLARATION
            + b'], "stream": true }'
        )
        assert asked.text == b'{ "input": [2], "tools": [{"type":"function"}], "stream": false }'

    def test_of_one_member(self) -> None:
        edited = restore(request(input=[2], stream=False), [self.ITEMS])
        edited = restore(edited, [Insertion(2, (b"3",))]).with_members({"stream": 1})
        assert (
            edited.with_members({"stream": True}).text == b'{"input":[{"a":1},2,3],"stream":true}'
        )

    def test_of_a_request_that_is_used_twice(self) -> None:
        base = restore(request(input=[2], a=1), [self.ITEMS])
        one, other = base.with_members({"a": 3}), base.with_members({"a": 4})
        assert other.text == b'{"input":[{"a":1},2],"a":4}'
        assert base.text == b'{"input":[{"a":1},2],"a":1}'
        assert one.text == b'{"input":[{"a":1},2],"a":3}'

    def test_of_an_empty_object(self) -> None:
        edited = read_request(b"{ }").with_members({"a": 1}).with_members({"b": 2})
        assert edited.text == b'{"a":1,"b":2 }'

    def test_of_an_array_further_inside(self) -> None:
        asked = request(input=[lite(SHELL)], store=False)
        got = declare(restore(asked, [self.ITEMS]), TOOL).request
        agree(got)
        assert got.body["input"] == [{"a": 1}, lite(SHELL, OURS)]

    @given(
        texts(objects.map(lambda value: value | {"input": [1, "x"]})),
        st.lists(st.tuples(st.sampled_from(["a", "b", "tools", "input"]), values), max_size=4),
    )
    def test_in_any_order(self, text: bytes, changes: list[tuple[str, Json]]) -> None:
        late = early = Request(text, loads(text))
        for name, value in ((name, loads(dumps(value))) for name, value in changes):
            if name == "input":
                late, early = (restore(one, [self.ITEMS]) for one in (late, early))
            else:
                late, early = (one.with_members({name: value}) for one in (late, early))
            assert early.text
        assert late.text == early.text
        agree(late)


class TestEcho:
    def event(self, **response: Json) -> dict[str, Json]:
        return {"type": "response.created", "response": {"id": "r", **response}, "n": 7}

    def test_without_an_echo_the_same_objects(self) -> None:
        for event in (
            self.event(),
            self.event(tools=[SHELL], tool_choice="auto"),
            self.event(tools=None, tool_choice={"type": "function", "name": "shell"}),
            {"type": "x", "response": None},
            {"type": "x"},
        ):
            data = dumps(event)
            text, value = cut_echo(data, event, {TOOL.name})
            assert text is data
            assert value is event

    @pytest.mark.parametrize("space", ["", " "])
    @pytest.mark.parametrize(
        "choice",
        [
            "recall",
            {"type": "function", "name": "recall"},
            {"type": "function", "function": {"name": "recall"}},
        ],
    )
    def test_a_choice_of_ours_is_none_that_a_client_made(self, choice: Json, space: str) -> None:
        event = self.event(tools=[SHELL, OURS], tool_choice=choice, top_p=1.0)
        data = dumps(event).replace(b":", b":" + space.encode())
        text, value = cut_echo(data, event, {TOOL.name})
        assert loads(text) == value
        assert value == self.event(tools=[SHELL], tool_choice="auto", top_p=1.0)
        assert b'"top_p":' + space.encode() + b"1.0" in text
        assert event["response"]["tool_choice"] == choice

    @pytest.mark.parametrize("space", ["", " "])
    @pytest.mark.parametrize("tools", [[OURS], [SHELL, OURS], [OURS, WEB], [WEB, OURS, SHELL]])
    def test_cut(self, tools: list[Json], space: str) -> None:
        choice = {"type": "allowed_tools", "tools": [{"type": "function", "name": "recall"}, WEB]}
        event = self.event(tools=tools, tool_choice=choice, temperature=1.0)
        data = dumps(event).replace(b":", b":" + space.encode())
        text, value = cut_echo(data, event, {TOOL.name})
        assert b"recall" not in text
        assert loads(text) == value
        rest = [tool for tool in tools if tool is not OURS]
        assert value == self.event(
            tools=rest, tool_choice={**choice, "tools": [WEB]}, temperature=1.0
        )
        assert subsequence(text, data)
        assert event["response"]["tools"] == tools

    NAMESPACED: ClassVar = {"type": "function", "name": "recall", "namespace": "memory"}
    IN_CHAT: ClassVar = {"type": "function", "function": {"name": "recall"}}
    PLACES: ClassVar[dict[str, tuple[dict[str, Json], dict[str, Json]]]] = {
        "with a namespace": ({"tools": [SHELL, NAMESPACED]}, {"tools": [SHELL]}),
        "as in chat": ({"tools": [IN_CHAT, SHELL]}, {"tools": [SHELL]}),
        "inside of a namespace": (
            {"tools": [{"type": "namespace", "name": "a", "tools": [SHELL, OURS]}, OURS]},
            {"tools": [{"type": "namespace", "name": "a", "tools": [SHELL]}]},
        ),
        "in a namespace of its own": (
            {"tools": [SHELL, {"type": "namespace", "name": "recall", "tools": [OURS]}]},
            {"tools": [SHELL]},
        ),
        "deep": (
            {"tools": [{"tools": [{"tools": [OURS, WEB], "type": "namespace"}, SHELL]}]},
            {"tools": [{"tools": [{"tools": [WEB], "type": "namespace"}, SHELL]}]},
        ),
        "additional": ({"additional_tools": [OURS, SHELL]}, {"additional_tools": [SHELL]}),
        "additional, as an item": (
            {"additional_tools": {"type": "additional_tools", "tools": [SHELL, OURS]}},
            {"additional_tools": {"type": "additional_tools", "tools": [SHELL]}},
        ),
        "in the input": (
            {"input": [{"type": "additional_tools", "tools": [SHELL, OURS]}, "x"]},
            {"input": [{"type": "additional_tools", "tools": [SHELL]}, "x"]},
        ),
        "calls in the input": (
            {
                "input": [
                    {"type": "function_call", "name": "recall", "call_id": "c1"},
                    {"type": "additional_tools", "tools": [OURS, SHELL]},
                    {"type": "function_call", "name": "shell", "call_id": "c2"},
                    {"type": "function_call_output", "call_id": "c1", "output": "o"},
                    {"type": "function_call_output", "call_id": "c2", "output": "o"},
                ]
            },
            {
                "input": [
                    {"type": "additional_tools", "tools": [SHELL]},
                    {"type": "function_call", "name": "shell", "call_id": "c2"},
                    {"type": "function_call_output", "call_id": "c2", "output": "o"},
                ]
            },
        ),
    }

    @pytest.mark.parametrize("space", ["", " "])
    @pytest.mark.parametrize("place", sorted(PLACES))
    def test_cut_wherever_it_stands(self, place: str, space: str) -> None:
        echoed, left = self.PLACES[place]
        event = self.event(**echoed)
        data = dumps(event).replace(b":", b":" + space.encode())
        text, value = cut_echo(data, event, {TOOL.name})
        assert value == self.event(**left)
        assert loads(text) == value
        assert subsequence(text, data)

    def test_keeps_how_the_provider_wrote_it(self) -> None:
        data = (
            b'{"response":{"temperature":1.00,"id":"\\u0041", "tools":[{"name":"recall","type":'
            b'"function"} , {"type":"custom","name":"recall"}],"big":12345678901234567890123}}'
        )
        text, value = cut_echo(data, loads(data), {TOOL.name})
        assert text == (
            b'{"response":{"temperature":1.00,"id":"\\u0041", "tools":['
            b'{"type":"custom","name":"recall"}],"big":12345678901234567890123}}'
        )
        assert loads(text) == value

    @given(
        texts(
            st.fixed_dictionaries(
                {
                    "response": st.fixed_dictionaries(
                        {"tools": st.lists(st.sampled_from([OURS, SHELL, WEB]), max_size=4)}
                    )
                },
                optional={"a": values},
            )
        )
    )
    def test_cuts_only(self, data: bytes) -> None:
        event = loads(data)
        text, value = cut_echo(data, event, {TOOL.name})
        kept = [tool for tool in event["response"]["tools"] if tool != OURS]
        assert loads(text) == value == {**event, "response": {"tools": kept}}
        assert subsequence(text, data)


class TestHostile:
    @given(texts(hostile_objects), hostile_objects)
    def test_no_value_is_too_odd(self, data: bytes, event: dict[str, Json]) -> None:
        value = loads(data)
        for key, types in (("input", (str, list)), ("tools", list), ("stream", bool)):
            if value.get(key) is not None and not isinstance(value[key], types):
                with pytest.raises(RequestError):
                    read_request(data)
                return
        before = read_request(data)
        assert isinstance(client_tool_names(before.body), frozenset)
        is_compaction(before.body, None)
        declaration_blocker(before, "recall", enabled=True, inject="with_tools", request_kind=None)
        got = declare(before, TOOL).request
        agree(got)
        assert got.text.count(DECLARATION) == data.count(DECLARATION) + 1
        echo = {"type": "response.created", "response": event}
        text, cut = cut_echo(dumps(echo), echo, {TOOL.name})
        assert loads(text) == loads(dumps(cut))


class TestCases:
    def test_text_edits_only(self) -> None:
        """Case 16: odd texts reach the provider with our additions and nothing else."""
        data = (
            b'{ "model":"m", "seed":123456789012345678901234567890 ,"temperature":1.0e0,\n'
            b'"input" : [ {"type":"message","role":"user","content":"\\ud83d \\u00e9 \\/"} ,\n'
            b'{"type":"function_call","call_id":"c2","name":"shell","arguments":"{}"} ],\n'
            b'"tools":[],"store":true,"\\u0074ools" : [{"type":"function","name":"shell"}],'
            b'"store": false , "x":{"tools":[{"name":"recall"}]} }'
        )
        before = read_request(data)
        assert before.text is data
        assert blocker(before.body) is None
        pair = (b'{"type":"function_call","call_id":"c1"}', b'{"call_id":"c1"}')
        got = declare(restore(before, [Insertion(1, pair)]), TOOL)
        assert got.request.text == data.replace(
            b'"} ,\n{"type":"function_call"',
            b'"} ,\n' + b",".join(pair) + b',{"type":"function_call"',
        ).replace(
            b'"name":"shell"}],"store"', b'"name":"shell"},' + DECLARATION + b'],"store"'
        ).replace(b"]} }", b']},"include":["reasoning.encrypted_content"] }')
        agree(got.request)

    def test_whose_recall(self) -> None:
        """Case 15: a client's own tool of our name keeps ours out."""
        own = {"type": "function", "name": "recall", "description": "mine"}
        for body in (
            {"tools": [own, SHELL]},
            {"input": [lite(own)]},
            {"tools": [{**NAMESPACE, "tools": [own]}]},
        ):
            assert blocker(body) is Undeclared.NAME_TAKEN
            assert blocker(body, inject="always") is Undeclared.NAME_TAKEN
