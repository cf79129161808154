"""Streams as hypothesis strategies: what providers send, how they frame it, how it arrives.

``items`` and ``hops`` are sound; ``sparse``, ``framings`` and ``noise`` are what real providers do
all the same; ``damaged`` is what none should.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from tests import builders
from tests.jsontexts import values as json_values
from tests.playbook import bytewise, cut_at, framewise, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.builders import Event, Framing, Item
    from tests.playbook import Chunking

    Draw = st.DrawFn

RECALL: Final = "recall"

# --------------------------------------------------------------------------------------- items

texts: Final = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00") | st.sampled_from(' .é🙂"\\\n'),
    min_size=1,
    max_size=24,
)
identities: Final = st.integers(0, 2**64).map(lambda number: f"{number:048x}")
arguments: Final = st.fixed_dictionaries({"query": texts}).map(builders.compact) | st.just("{}")

messages: Final = st.builds(builders.message, texts)
refusals: Final = st.builds(builders.refusal, texts)
reasonings: Final = st.builds(
    builders.reasoning, texts | st.just(""), encrypted=st.none() | st.just("gAAAA")
)
client_calls: Final = st.builds(
    builders.function_call, st.just("c"), st.sampled_from(["shell", "lookup", "recall_"]), arguments
) | st.builds(builders.custom_call, st.just("c"), st.sampled_from(["patch", "shell"]), texts)
recalls: Final = st.builds(builders.recall_call, st.just("c"), arguments)
hosted: Final = st.sampled_from(
    [
        {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"query": "q"}},
        {"id": "zz_1", "type": "brand_new_item", "payload": [1, {"a": None}]},
    ]
)
answers: Final = messages | refusals | reasonings | hosted


def as_hop(items: Sequence[Item], hop: int) -> list[Item]:
    """Give items the ids and call ids of their hop, all different."""
    placed = []
    for number, item in enumerate(items):
        prefix = item["id"].split("_", 1)[0]
        own = {"id": f"{prefix}_{hop:02x}{number:02x}{'0' * 44}"}
        if "call_id" in item:
            own["call_id"] = f"call_{hop}_{number}"
        placed.append(item | own)
    return placed


@st.composite
def outputs(
    draw: Draw, hop: int, *, recall: bool, client: bool = False, least: int = 0
) -> list[Item]:
    """Draw the items of one hop.

    Args:
        draw: Hypothesis.
        hop: Its number, from which ids are made.
        recall: Whether one to three calls of the hidden tool are among them, anywhere.
        client: Whether calls of the client's tools are among them.
        least: How many other items there are at least.
    """
    items = draw(st.lists(answers, min_size=least, max_size=3))
    if client:
        items += draw(st.lists(client_calls, min_size=1, max_size=2))
    if recall:
        items += draw(st.lists(recalls, min_size=1, max_size=3))
    return as_hop(draw(st.permutations(items)), hop)


# -------------------------------------------------------------------------------------- events


@st.composite
def merged(draw: Draw, runs: Sequence[Sequence[Event]]) -> list[Event]:
    """Merge the events of several items: each in its own order, opened in index order."""
    waiting = [list(run) for run in runs]
    started: list[list[Event]] = []
    events: list[Event] = []
    while waiting or started:
        choice = draw(st.integers(0, len(started))) if waiting else None
        if not started or choice == len(started):
            started.append(waiting.pop(0))
            choice = len(started) - 1
        elif choice is None:
            choice = draw(st.integers(0, len(started) - 1))
        run = started[choice]
        events.append(run.pop(0))
        if not run:
            started.pop(choice)
    return events


@st.composite
def hop_events(
    draw: Draw,
    items: Sequence[Item],
    *,
    response_id: str = "resp_A",
    usage: dict[str, Any] | None = builders.USAGE,
    end: str = "completed",
    numbers: bool | None = None,
) -> list[Event]:
    """Draw the whole stream of one hop: its items interleaved, numbered or not."""
    runs = [builders.item_events(item, index) for index, item in enumerate(items)]
    inner = draw(merged(runs)) if draw(st.booleans()) else [e for run in runs for e in run]
    extra = {"incomplete_details": {"reason": "max_output_tokens"}} if end == "incomplete" else {}
    if end == "failed":
        extra = {"error": {"code": "server_error", "message": "The provider failed."}}
    last = builders.terminal(response_id, end, usage=usage, output=list(items), **extra)
    events = [*builders.opening(response_id), *inner, last]
    if numbers is None:
        numbers = draw(st.booleans())
    return builders.numbered(events) if numbers else events


def no_numbers(events: Sequence[Event]) -> list[Event]:
    return [builders.without(event, "sequence_number") for event in events]


def no_item_ids(events: Sequence[Event]) -> list[Event]:
    return [builders.without(event, "item_id") for event in events]


def rotated_ids(events: Sequence[Event]) -> list[Event]:
    """Give an item another id at every event."""
    rotated = []
    for number, event in enumerate(events):
        changed = dict(event)
        if "item_id" in event:
            changed["item_id"] = f"{event['item_id']}{number}"
        elif event["type"] == "response.output_item.done":
            changed["item"] = event["item"] | {"id": f"{event['item']['id']}{number}"}
        rotated.append(changed)
    return rotated


def empty_output(events: Sequence[Event]) -> list[Event]:
    last = events[-1]
    return [*events[:-1], last | {"response": last["response"] | {"output": []}}]


def absent_output(events: Sequence[Event]) -> list[Event]:
    last = events[-1]
    return [*events[:-1], last | {"response": builders.without(last["response"], "output")}]


def _renumbered(events: Sequence[Event]) -> list[Event]:
    if "sequence_number" not in events[0]:
        return list(events)
    return builders.numbered(events)


def no_deltas(events: Sequence[Event]) -> list[Event]:
    return _renumbered([event for event in events if not event["type"].endswith(".delta")])


def no_logprobs(events: Sequence[Event]) -> list[Event]:
    return [builders.without(event, "logprobs") for event in events]


def no_parts(events: Sequence[Event]) -> list[Event]:
    return _renumbered([event for event in events if "_part." not in event["type"]])


def lone_dones(events: Sequence[Event]) -> list[Event]:
    """Leave only the finished items, in their order."""
    dones = [event for event in events if event["type"] == "response.output_item.done"]
    dones.sort(key=lambda event: event["output_index"])
    return _renumbered([events[0], *dones, events[-1]])


def float_usage(events: Sequence[Event]) -> list[Event]:
    last = events[-1]
    usage = last["response"].get("usage")
    if usage is None:
        return list(events)
    floats = {key: float(count) for key, count in usage.items() if isinstance(count, int)}
    changed = builders.without(usage | floats, "total_tokens")
    return [*events[:-1], last | {"response": last["response"] | {"usage": changed}}]


def done_terminal(events: Sequence[Event]) -> list[Event]:
    return [*events[:-1], events[-1] | {"type": "response.done"}]


LOSABLE: Final = (
    *((name,) for name in ("content_index", "summary_index", "output_index", "item_id")),
    *((name,) for name in ("delta", "text", "refusal", "arguments", "input", "part")),
    *(("item", name) for name in ("content", "summary", "arguments", "input", "id")),
    *(("part", name) for name in ("type", "text", "refusal")),
)
"""Where the members stand that clients append to, or look up by."""


@st.composite
def lossy(draw: Draw, events: Sequence[Event]) -> list[Event]:
    """Take members of ``LOSABLE`` out of some events, or make them null."""
    events = copy.deepcopy(list(events))
    for _ in range(draw(st.integers(1, 4))):
        places = [
            (holder, name)
            for event in events
            for *path, name in LOSABLE
            for holder in ([event.get(path[0])] if path else [event])
            if isinstance(holder, dict) and name in holder
            if (name, holder.get("type")) != ("id", "brand_new_item")  # its own is all it has
        ]
        if not places:
            break
        holder, name = draw(st.sampled_from(places))
        if draw(st.booleans()):
            del holder[name]
        else:
            holder[name] = None
    return events


HABITS: Final[dict[str, Callable[[Sequence[Event]], list[Event]]]] = {
    "no numbers": no_numbers,
    "no item ids": no_item_ids,
    "rotated ids": rotated_ids,
    "empty output": empty_output,
    "absent output": absent_output,
    "no deltas": no_deltas,
    "no logprobs": no_logprobs,
    "no parts": no_parts,
    "lone dones": lone_dones,
    "float usage": float_usage,
    "response.done": done_terminal,
    "nameless calls": builders.nameless,
    "late arguments": lambda events: _renumbered(
        builders.nameless(events, arguments_only_in_done=True)
    ),
}
"""What real providers do, as functions of a sound stream that keep what it says."""


@st.composite
def habitual(draw: Draw, events: Sequence[Event]) -> list[Event]:
    """Give a stream up to three habits of real providers."""
    names = draw(st.lists(st.sampled_from(sorted(HABITS)), max_size=3, unique=True))
    for name in names:
        events = HABITS[name](events)
    return list(events)


# --------------------------------------------------------------------------------------- bytes

framings: Final = st.sampled_from(sorted(builders.FRAMINGS)).map(builders.FRAMINGS.__getitem__)

vendor_events: Final[st.SearchStrategy[Event]] = st.sampled_from(
    [
        {"type": "codex.rate_limits", "rate_limits": {"primary": {"used_percent": 3.5}}},
        {"type": "codex.rate_limits", "plan_type": "plus", "secret_field": "account"},
        {"type": "response.brand_new", "output_index": 0, "value": {"a": [1]}},
        {"type": "response.metadata", "headers": {"x": "y"}},
        {"type": "keepalive"},
        {"type": "acme:trace", "id": "t1"},
    ]
)
stray_frames: Final = st.sampled_from(
    [
        b": still here\n\n",
        b"\n",
        b"id: 7\nretry: 10\n\n",
        b"event: ping\n\n",
        b"data:\n\n",
        b"data: [DONE]\n\n",
        b"event: note\ndata: no json\n\n",
        b"data: no json\n\n",
    ]
)


@st.composite
def bodies(
    draw: Draw, events: Sequence[Event], *, framing: Framing | None = None, stray: bool = True
) -> bytes:
    """Write a stream down in some framing, with foreign events and frames in between."""
    framing = framing or draw(framings)
    frames = builders.frames(events, framing)
    if stray:
        for _ in range(draw(st.integers(0, 3))):
            at = draw(st.integers(1, len(frames) - 1))
            foreign = draw(vendor_events.map(builders.frame) | stray_frames)
            frames.insert(at, foreign)
    return b"".join(frames)


@st.composite
def chunkings(draw: Draw) -> Chunking:
    """Draw a way to cut bodies into pieces."""
    kind = draw(st.sampled_from(["whole", "framewise", "bytewise", "cut"]))
    if kind == "cut":
        return cut_at(*draw(st.lists(st.integers(0, 6000), min_size=1, max_size=8)))
    return {"whole": whole, "framewise": framewise, "bytewise": bytewise}[kind]


# --------------------------------------------------------------------------------------- turns


@dataclass(frozen=True, slots=True)
class Script:
    """A turn: what the upstream answers, and what the hidden calls find."""

    hops: list[bytes]
    items: list[list[Item]]
    usages: list[dict[str, Any] | None]
    results: dict[str, str] = field(default_factory=dict)

    @property
    def visible(self) -> list[Item]:
        """The items that the client is to see, in order."""
        return [item for hop in self.items for item in hop if item.get("name") != RECALL]


usages: Final = st.none() | st.builds(
    builders.usage,
    st.integers(0, 4000),
    st.integers(0, 900),
    cached=st.integers(0, 50),
    reasoning_tokens=st.integers(0, 50),
)


@st.composite
def scripts(
    draw: Draw,
    *,
    rounds: st.SearchStrategy[int] | None = None,
    mixed: bool = False,
    habits: bool = True,
    stray: bool = True,
    framing: Framing | None = None,
    end: str = "completed",
) -> Script:
    """Draw a turn: hops of hidden calls, then one that ends it.

    Args:
        draw: Hypothesis.
        rounds: How many hops have hidden calls.
        mixed: Whether the last hop has hidden calls beside calls of the client.
        habits: Whether hops deviate as real providers do.
        stray: Whether foreign events and frames are in between.
        framing: How events are written down; some way by default.
        end: The last hop's terminal.
    """
    count = draw(rounds if rounds is not None else st.integers(0, 2))
    numbers = draw(st.booleans())
    hops, all_items, all_usages = [], [], []
    for hop in range(1, count + 2):
        last = hop == count + 1
        items = draw(
            outputs(
                hop,
                recall=not last or mixed,
                client=last and (mixed or draw(st.booleans())),
                least=int(last and not mixed),
            )
        )
        usage = draw(usages)
        events = draw(
            hop_events(
                items,
                response_id=f"resp_{hop}",
                usage=usage,
                end=end if last else "completed",
                numbers=numbers,
            )
        )
        if habits:
            events = draw(habitual(events))
        hops.append(draw(bodies(events, framing=framing, stray=stray)))
        all_items.append(items)
        all_usages.append(usage)
    calls = [one["call_id"] for hop in all_items for one in hop if one.get("name") == RECALL]
    results = {call: draw(texts) for call in calls}
    return Script(hops, all_items, all_usages, results)


ends: Final = st.sampled_from(["completed", "completed", "incomplete", "failed"])
turns: Final = st.builds(dict, mixed=st.booleans(), end=ends).flatmap(lambda how: scripts(**how))
"""Turns of every kind, with any end."""


# -------------------------------------------------------------------------------------- damage


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where something stands in a JSON value."""
    places = [path] if path else []
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            places += _places(child, (*path, key))
    return places


@st.composite
def damaged(draw: Draw, events: Sequence[Event], *, strokes: int = 3) -> list[Event]:
    """Damage a stream: members replaced or taken out, events dropped, doubled, moved."""
    events = copy.deepcopy(list(events))
    for _ in range(draw(st.integers(1, strokes))):
        at = draw(st.integers(0, len(events) - 1))
        match draw(st.sampled_from(["member", "member", "member", "drop", "double", "move"])):
            case "member":
                _damage_member(draw, events[at])
            case "drop" if len(events) > 1:
                del events[at]
            case "double":
                events.insert(draw(st.integers(0, len(events))), copy.deepcopy(events[at]))
            case _:
                moved = events.pop(at)
                events.insert(draw(st.integers(0, len(events))), moved)
    return events


def _damage_member(draw: Draw, event: Event) -> None:
    *path, last = draw(st.sampled_from(_places(event) or [("type",)]))
    holder: Any = event
    for step in path:
        holder = holder[step]
    if draw(st.booleans()):
        small = st.sampled_from([None, True, 0, 1, 1.0, -1, 70_000, "", "x", [], [[]], {}])
        holder[last] = draw(small | json_values)
    elif isinstance(holder, dict):
        holder.pop(last, None)


def damaged_body(events: Sequence[Event]) -> bytes:
    """Write damaged events down: the event line is the type where that still is one."""
    frames = []
    for event in events:
        data = json.dumps(event, ensure_ascii=True).encode()
        kind = event.get("type")
        name = b"event: " + kind.encode() + b"\n" if _is_plain(kind) else b""
        frames.append(name + b"data: " + data + b"\n\n")
    return b"".join(frames)


def _is_plain(kind: object) -> bool:
    return isinstance(kind, str) and kind.isascii() and kind.isprintable() and bool(kind)
