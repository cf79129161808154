"""A Responses request, understood: what all other dialects say in their own words.

Responses has items in a row; the others have turns. Reasoning, text and calls that follow each
other are one turn of the assistant; the outputs of its calls are one turn that stands right after
it, wherever the input has them; what users say in between comes after that. All system text, from
wherever it came, stands in front.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pipeline.errors import RequestError
from pipeline.request import input_items
from proxy.providers.base import LeftOut
from proxy.providers.parts import Part, Text, read_parts, unsent
from proxy.providers.replay import unwrap
from proxy.providers.tools import (
    SEARCH,
    Choice,
    Toolbox,
    arguments_of,
    read_choice,
    read_tools,
)

if TYPE_CHECKING:
    from pipeline.request import Request
    from proxy.providers.base import Json

_SYSTEM: Final = frozenset({"system", "developer"})
_NOT_ALONE: Final = {
    "background": "runs in the background",
    "conversation": "continues a conversation that the provider keeps",
    "previous_response_id": "continues a response that is not kept, or no longer",
    "prompt": "uses a prompt template that the provider keeps",
}
"""Members that only an upstream with a memory of its own can serve."""


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning of this very kind of upstream, as it wants it back."""

    replay: Json


@dataclass(frozen=True, slots=True)
class Call:
    """A call: the name as the upstream knows it, the arguments as JSON text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Result:
    """The output of a call; ``name`` is the called tool's, empty where the call is missing."""

    call_id: str
    name: str
    parts: tuple[Part, ...]
    failed: bool = False


@dataclass(slots=True)
class UserTurn:
    """What a user said."""

    parts: list[Part] = field(default_factory=list)


@dataclass(slots=True)
class AssistantTurn:
    """What the model said, in its order."""

    entries: list[Text | Thought | Call] = field(default_factory=list)

    @property
    def calls(self) -> list[Call]:
        """Its calls."""
        return [entry for entry in self.entries if isinstance(entry, Call)]

    @property
    def text(self) -> str:
        """Its texts, a line apart."""
        return "\n".join(entry.text for entry in self.entries if isinstance(entry, Text))

    @property
    def thoughts(self) -> list[Json]:
        """Its reasoning."""
        return [entry.replay for entry in self.entries if isinstance(entry, Thought)]


@dataclass(slots=True)
class ResultTurn:
    """The outputs of the calls of the assistant's turn before it, as they came."""

    results: list[Result] = field(default_factory=list)


Turn: TypeAlias = UserTurn | AssistantTurn | ResultTurn


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request, understood.

    Attributes:
        body: The Responses request.
        system: All system text.
        turns: The turns.
        toolbox: The tools that may be called.
        known: All tools that it declares, also those that may not be called now.
        choice: Which of them must be.
        left_out: What has no place in other dialects; translators count on.
    """

    body: Json
    system: str
    turns: tuple[Turn, ...]
    toolbox: Toolbox
    known: Toolbox
    choice: Choice
    left_out: Counter[LeftOut]

    @property
    def model(self) -> str:
        """The model.

        Raises:
            RequestError: There is none.
        """
        model = self.body.get("model")
        if isinstance(model, str) and model:
            return model
        raise RequestError(
            "The request names no model, and this upstream has no default. Send 'model'."
        )

    def number(self, name: str) -> Any:  # an int or a float, as it came
        """Return a number of the request, None where it has none."""
        value = self.body.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def effort(self) -> str | None:
        """How much reasoning is asked for."""
        reasoning = self.body.get("reasoning")
        effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
        return effort if isinstance(effort, str) else None

    @property
    def text_format(self) -> Json:
        """The form that the text must have; ``{"type": "text"}`` where it is free."""
        text = self.body.get("text")
        form = text.get("format") if isinstance(text, dict) else None
        return form if isinstance(form, dict) else {"type": "text"}

    def count_unused(self, used: frozenset[str]) -> None:
        """Count the members of the request that a dialect did not use."""
        for name, value in self.body.items():
            if value is not None and name not in used and name not in _EVERYWHERE:
                self.left_out[_COUNTED.get(name, LeftOut.OTHER)] += 1


_EVERYWHERE: Final = frozenset(
    {"model", "input", "instructions", "stream", "tools", "tool_choice", "text", "reasoning"}
    | {"store", "include", "client_metadata", "stream_options", "generate"}
    | _NOT_ALONE.keys()
)
"""Members that every translation takes care of, or that mean nothing where nothing is kept."""
_COUNTED: Final = {
    "parallel_tool_calls": LeftOut.PARALLEL_TOOL_CALLS,
    "temperature": LeftOut.SAMPLING,
    "top_p": LeftOut.SAMPLING,
    "top_logprobs": LeftOut.LOGPROBS,
    "truncation": LeftOut.TRUNCATION,
    "service_tier": LeftOut.SERVICE_TIER,
    "prompt_cache_key": LeftOut.CACHE_HINT,
    "prompt_cache_options": LeftOut.CACHE_HINT,
    "prompt_cache_retention": LeftOut.CACHE_HINT,
    "metadata": LeftOut.METADATA,
    "user": LeftOut.METADATA,
    "safety_identifier": LeftOut.METADATA,
}


def read_conversation(request: Request, kind: str) -> Conversation:
    """Understand a request.

    Args:
        request: A Responses request.
        kind: The upstream's kind: whose reasoning can go back.

    Raises:
        RequestError: It requires what no upstream but a Responses one has, or can't be read.
    """
    body = request.body
    for name, does in _NOT_ALONE.items():
        if body.get(name):
            raise RequestError(
                f"The request {does} ('{name}'), and this upstream keeps nothing itself. "
                "Send the whole input instead, or use an upstream that speaks Responses."
            )
    left_out: Counter[LeftOut] = Counter()
    known = read_tools(body, left_out)
    toolbox, choice = read_choice(body, known)
    reader = _Reader(known, kind, left_out)
    instructions = body.get("instructions")
    if isinstance(instructions, str) and instructions:
        reader.system.append(instructions)
    for item in input_items(body):
        reader.take(item)
    turns = tuple(turn for turn in reader.turns if not _is_empty(turn))
    return Conversation(body, "\n".join(reader.system), turns, toolbox, known, choice, left_out)


def _is_empty(turn: Turn) -> bool:
    match turn:
        case UserTurn(parts):
            return not parts
        case AssistantTurn(entries):
            return all(isinstance(entry, Thought) for entry in entries)
        case ResultTurn(results):
            return not results


class _Reader:
    """Takes the items of an input, one after the other."""

    def __init__(self, toolbox: Toolbox, kind: str, left_out: Counter[LeftOut]) -> None:
        self.system: list[str] = []
        self.turns: list[Turn] = []
        self._toolbox = toolbox
        self._kind = kind
        self._left_out = left_out
        self._answers: dict[str, tuple[ResultTurn, str]] = {}

    def take(self, item: Any) -> None:
        match item:
            case {"type": "reasoning"}:
                self._reasoning(item)
            case {"type": "function_call" | "custom_tool_call", "call_id": str() as call_id}:
                namespace = item.get("namespace")
                name = self._toolbox.flat_name(
                    str(item.get("name")), namespace if isinstance(namespace, str) else None
                )
                self._call(item, call_id, name)
            case {"type": "function_call_output" | "custom_tool_call_output"}:
                self._result(item, item.get("output"))
            case {"type": "tool_search_call" | "tool_search_output"}:
                self._search(item)
            case {"type": "additional_tools"}:  # declared with the others
                pass
            case {"role": str() as role} if item.get("type") in (None, "message"):
                self._message(item, role)
            case {"type": "item_reference", "id": identity}:
                raise RequestError(
                    f"The input refers to the stored item {identity!r:.80}, but this upstream "
                    "stores nothing. Send the item itself."
                )
            case {"type": "compaction"}:
                raise RequestError(
                    "The input has an item of type 'compaction' that another provider made, which "
                    "only that one can read. Leave it out, or use an upstream of that provider."
                )
            case {"type": kind}:
                raise RequestError(
                    f"The input has an item of type {kind!r:.80}, which only an upstream that "
                    "speaks Responses can read. Leave it out, or use such an upstream."
                )
            case _:
                raise RequestError(
                    "The input has an item without a type. Send items with their type."
                )

    def _message(self, item: Json, role: str) -> None:
        parts = read_parts(item.get("content"), where=f"a {role} message")
        if role in _SYSTEM:
            if any(not isinstance(part, Text) for part in parts):
                raise RequestError(
                    f"A {role} message has more than text, which this upstream can't take there. "
                    "Move it into a user message."
                )
            self.system += [part.text for part in parts if isinstance(part, Text)]
        elif role == "assistant":
            if any(not isinstance(part, Text) for part in parts):
                raise RequestError("An assistant message has more than text. Send its text alone.")
            self._assistant().entries += [part for part in parts if isinstance(part, Text)]
        else:
            self.turns.append(UserTurn(parts))

    def _reasoning(self, item: Json) -> None:
        replay = unwrap(self._kind, item.get("encrypted_content"))
        if replay is None:
            self._left_out[LeftOut.REASONING] += 1
        else:
            self._assistant().entries.append(Thought(replay))

    def _call(self, item: Json, call_id: str, name: str) -> None:
        self._assistant().entries.append(Call(call_id, name, arguments_of(item)))
        match self.turns:
            case [*_, ResultTurn() as answers]:
                pass
            case _:
                answers = ResultTurn()
                self.turns.append(answers)
        self._answers[call_id] = answers, name

    def _result(self, item: Json, output: object) -> None:
        call_id = str(item.get("call_id"))
        parts = (
            read_parts(output, where="a tool's output")
            if isinstance(output, str | list)
            else [Text(unsent(output))]
        )
        failed = item.get("status") in ("incomplete", "failed") or item.get("success") is False
        answers, name = self._answers.get(call_id, (None, ""))
        if answers is None:
            answers = ResultTurn()
            self.turns.append(answers)
        answers.results.append(Result(call_id, name, tuple(parts), failed=failed))

    def _search(self, item: Json) -> None:
        """Take the client's own search for tools; that of a provider was its own affair."""
        call_id = item.get("call_id")
        if item.get("execution") != "client" or not isinstance(call_id, str):
            self._left_out[LeftOut.HOSTED_TOOL] += 1
        elif item["type"] == "tool_search_call":
            self._call(item, call_id, SEARCH)
        else:
            found = read_tools({"tools": item.get("tools")}, Counter()).tools
            names = ", ".join(tool.flat for tool in found) or "none"
            self._result(item, f"Tools found: {names}")

    def _assistant(self) -> AssistantTurn:
        """Return the assistant's turn that goes on, a new one where it was answered."""
        match self.turns:
            case [*_, AssistantTurn() as turn] | [*_, AssistantTurn() as turn, ResultTurn([])]:
                return turn
            case _:
                turn = AssistantTurn()
                self.turns.append(turn)
                return turn
