"""A summary in the place of a history that is too long: what goes into it, and in which steps.

Where an upstream has no compaction of its own, it is asked for a summary instead: with the request
of the client, as far as the history fits, and our prompt behind it. A history that does not fit is
summarized in several steps, the older part first::

    step 1   instructions, tools │                   older items    │ prompt  →  summary 1
    step 2   instructions, tools │ summary 1         newer items    │ prompt  →  summary 2 …

How much fits is estimated, at four characters a token, and found out: where the upstream calls a
step too long, half of it is tried. A history is divided only where no call waits for its output and
no reasoning for what follows it. The summary comes back as a message that says what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.errors import RequestError
from pipeline.items import item_type
from pipeline.jsontext import dumps
from pipeline.request import Request, input_items

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.jsonspans import Json

PROMPT: Final = """\
Write a summary of the conversation above. It will take the place of the conversation: whoever goes
on with the work has this summary, and nothing else of it.

Include:
- what the user asked for, with every requirement and preference, in the user's own words where
  they matter;
- what has been done, what was found out, which decisions were made and why;
- the exact names, paths, commands, numbers and error texts that are needed later;
- what is unfinished, what was about to be done next, and which questions are open.

Leave out what no longer matters. Write plain text, call no tools, and don't answer or continue
anything: only summarize. Begin with the summary itself."""
"""What an upstream is asked with, unless the configuration says otherwise."""
_MARK: Final = (
    "[A summary of the conversation up to here, in whose place it stands because the conversation "
    "had become too long. It is what is known so far, not a new request.]"
)
CHARACTERS: Final = 4
"""Characters that are taken for a token."""
HALVINGS: Final = 5
"""How often a step that the upstream calls too long is halved."""
_MEDIA_TOKENS: Final = 1_500
"""What an image, a file or a recording is taken for, however long its text is."""
_LEAST_TOKENS: Final = 256
"""The smallest part of a history that is worth a step."""
_LEAST_CHARACTERS: Final = 200
"""What is left of an item at least, however short of room its step is."""
_TRIGGER: Final = "compaction_trigger"
_MEDIA: Final = ("input_image", "input_file", "input_audio")
_INSTRUCTING: Final = ("system", "developer")
_UNASKED: Final = ("text", "max_output_tokens", "max_tool_calls", "top_logprobs", "truncation")
"""Members that are about the answer to the client, not about a summary."""


# --- Requests and answers ----------------------------------------------------------------------


def with_trigger(request: Request) -> Request:
    """Return a request to ``/responses/compact`` as the turn that asks for the same."""
    body = {key: value for key, value in request.body.items() if key != "stream"}
    body["input"] = [*input_items(body), {"type": _TRIGGER}]
    return Request(dumps(body), body)


def summary_message(text: str) -> dict[str, Any]:
    """Return the item that stands in an input for everything that a summary tells."""
    part = {"type": "input_text", "text": f"{_MARK}\n\n{text}"}
    return {"type": "message", "role": "user", "content": [part]}


# --- Measuring and dividing --------------------------------------------------------------------


def estimate(value: Json) -> int:
    """Return about how many tokens a JSON value takes: four characters each, media apart."""
    characters = tokens = 0
    left: list[Json] = [value]
    while left:
        match left.pop():
            case str() as text:
                characters += len(text)
            case dict() as members if members.get("type") in _MEDIA:
                tokens += _MEDIA_TOKENS
            case dict() as members:
                characters += sum(map(len, members))
                left += members.values()
            case list() as elements:
                left += elements
            case _:
                characters += CHARACTERS
    return tokens + -(-characters // CHARACTERS)


def cuts(items: Sequence[Json]) -> list[int]:
    """Return where a history can be divided: how many items then stand in front.

    No call is parted from its output, and no reasoning from the item that follows it. The end is
    always among them, the beginning never.
    """
    answered = {
        _call_id(item): index for index, item in enumerate(items) if _kind(item).endswith("_output")
    }
    places: list[int] = []
    waits_until = -1
    for index, item in enumerate(items[:-1]):
        if _call_id(item) is not None:
            waits_until = max(waits_until, answered.get(_call_id(item), -1))
        if index >= waits_until and _kind(item) != "reasoning":
            places.append(index + 1)
    return [*places, len(items)] if items else []


def _kind(item: Json) -> str:
    return item_type(item) if isinstance(item, dict) else ""


def _call_id(item: Json) -> str | None:
    value = item.get("call_id") if isinstance(item, dict) else None
    return value if isinstance(value, str) else None


def is_fixed(item: Json) -> bool:
    """Say whether an item is no part of what was said: instructions, and the tools of a request."""
    return _kind(item) == "additional_tools" or (
        _kind(item) == "message" and item.get("role") in _INSTRUCTING
    )


class Division(NamedTuple):
    """A history, divided.

    Attributes:
        length: How many items at its beginning it is about.
        older: Those of them that a summary can stand for.
        fixed: Those that stay in front of the summary: instructions and tools.
        asked: The last message of the user, where it is one of them: it stays behind the summary.
    """

    length: int
    older: list[Json]
    fixed: list[Json]
    asked: list[Json]


def divide(items: Sequence[Json], tokens: int) -> Division | None:
    """Divide a history into what a summary can stand for and what stays as it is.

    What stays is the newest part, the last message of the user wherever it stands, and what is
    no part of the conversation.

    Args:
        items: The history.
        tokens: How much of its end stays, by estimate.

    Returns:
        The division; None where a summary could stand for nothing.
    """
    last = max((at for at, item in enumerate(items) if _is_users(item)), default=-1)
    sizes = [estimate(item) for item in items]
    count = next((place for place in cuts(items) if sum(sizes[place:]) <= tokens), 0)
    older = [item for at, item in enumerate(items[:count]) if at != last and not is_fixed(item)]
    if not older:
        return None
    fixed = [item for item in items[:count] if is_fixed(item)]
    return Division(count, older, fixed, list(items[last : last + 1]) if 0 <= last < count else [])


def _is_users(item: Json) -> bool:
    return _kind(item) == "message" and item.get("role") == "user"


# --- The steps ---------------------------------------------------------------------------------


class Summing:
    """A history on its way into a summary, step by step.

    Args:
        asked: The client's request: its model, instructions and tools are the steps' as well.
        items: What is summarized, in its order.
        prompt: What asks for the summary.
        tokens: How much one step may take, by estimate.

    Attributes:
        steps: How many were taken.
        summary: What the last of them told.

    Raises:
        RequestError: There is nothing to summarize.
    """

    def __init__(self, asked: Request, items: Sequence[Json], *, prompt: str, tokens: int) -> None:
        self.steps = 0
        self.summary = ""
        self._fixed = [item for item in items if is_fixed(item)]
        self._left = [item for item in items if not is_fixed(item)]
        if not self._left:
            raise RequestError(
                "The request asks for a compaction and has no conversation to compact. "
                "Send the conversation as 'input'."
            )
        self._members = {key: value for key, value in asked.body.items() if key not in _UNASKED} | {
            "tool_choice": "none",
            "store": False,
        }
        self._prompt = {"type": "message", "role": "user", "content": prompt}
        around = {**self._members, "input": [*self._fixed, self._prompt]}
        self._room = max(tokens - estimate(around), _LEAST_TOKENS)
        self._halvings = 0
        self._run: list[Json] = []
        self._plan()

    def __repr__(self) -> str:
        return f"<Summing after {self.steps} steps, {len(self._left)} items left>"

    @property
    def is_last(self) -> bool:
        """Whether the current step is the last one."""
        return len(self._run) == len(self._left)

    def request(self) -> Request:
        """Return the request of the current step."""
        before = [summary_message(self.summary)] if self.steps else []
        body = {**self._members, "input": [*self._fixed, *before, *self._sent(), self._prompt]}
        return Request(dumps(body), body)

    def take(self, summary: str) -> None:
        """Take what the current step told, and go on with the next."""
        self.steps += 1
        self.summary = summary
        self._left = self._left[len(self._run) :]
        self._plan()

    def halve(self) -> bool:
        """Try less in one step, as the upstream called it too long; say whether there is less."""
        size = min(estimate(self._run), self._room)
        if self._halvings == HALVINGS or size // 2 < _LEAST_TOKENS // 2:
            return False
        self._halvings += 1
        self._room = size // 2
        self._plan()
        return True

    @property
    def _free(self) -> int:
        """Tokens that the run of a step may take: a summary takes some of them, never most."""
        return self._room - min(estimate(self.summary), self._room // 2)

    def _plan(self) -> None:
        """Choose what the next step is about: as much as fits, and one whole exchange at least."""
        size, start, end = 0, 0, 0
        for place in cuts(self._left):
            size += estimate(self._left[start:place])
            if end and size > self._free:
                break
            start = end = place
        self._run = self._left[:end]

    def _sent(self) -> list[Json]:
        """Return the run as it is sent: shortened where one exchange alone is too long."""
        if estimate(self._run) <= self._free:
            return self._run
        said = [item for item in self._run if _kind(item) != "reasoning"]
        limit = max(self._free * CHARACTERS // max(len(said), 1), _LEAST_CHARACTERS)
        return [_shortened(item, limit) if isinstance(item, dict) else item for item in said]


def _shortened(item: dict[str, Any], limit: int) -> dict[str, Any]:
    """Shorten what an item says; a call's arguments stay JSON."""
    changed = dict(item)
    for name in ("content", "output", "input"):
        if name in item:
            changed[name] = _cut(item[name], limit)
    arguments = item.get("arguments")
    if isinstance(arguments, str) and len(arguments) > limit:
        changed["arguments"] = dumps({"shortened": _cut(arguments, limit)}).decode()
    return changed


def _cut(value: Json, limit: int) -> Json:
    match value:
        case str() if len(value) > limit:
            half = limit // 2
            gone = len(value) - 2 * half
            return f"{value[:half]}\n[… {gone} characters left out …]\n{value[-half:]}"
        case list():
            return [_cut(each, limit // max(len(value), 1)) for each in value]
        case {"text": str() as text, **rest}:
            return {**rest, "text": _cut(text, limit)}
        case _:
            return value
