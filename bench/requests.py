"""What it takes to prepare a request: parse it, put hidden items back, declare the tool.

Once as the first that a process sees of a conversation, and once as the next one of a conversation,
which adds a call and its output to the request before.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from bench import replay, stream
from pipeline.history import (
    HiddenGroup,
    hidden_group,
    hidden_slot,
    minted_ids,
    restorations,
    visible_slot,
)
from pipeline.prefixes import PrefixCache
from pipeline.request import HiddenTool, declare, input_items, read_request
from pipeline.restore import restore
from pipeline.survey import Survey
from recall import tool
from recall.glance import MOST_BYTES, Glance, Mark
from recall.ledger import find_groups, save_group
from recall.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline.request import Request

    Read = Callable[[bytes], Request]

SIZES: Final = {"40 KB": (10, 4_000), "1 MB": (250, 4_000), "20 MB": (5_000, 4_000)}
"""Items of a history, and bytes of each."""
_TENANT: Final = "local"
_KEY: Final = b"a key of the bench, 32 bytes long"
_RECALL: Final = HiddenTool(tool.NAME, tool.DECLARATION)
_ADDED: Final = 2
"""Items that a request has more than the one before it."""
_EVERY: Final = 20
"""One in so many items has a hidden call before it, where pairs are restored."""


def history(items: int, size: int) -> tuple[bytes, list[HiddenGroup]]:
    """Return a request with so many items of so many bytes, and the groups that belong into it.

    As an agent's history is: a question, then calls of the client's tool and their outputs, an
    answer now and then.
    """
    made: list[dict[str, Any]] = []
    groups: list[HiddenGroup] = []
    for number in range(items):
        item = _item(number, size)
        if number % _EVERY == 1:
            groups.append(_group(made, item, number))
        made.append(item)
    body = orjson.loads(stream.request_body())
    return orjson.dumps({**body, "input": made}), groups


def _item(number: int, size: int) -> dict[str, Any]:
    filler = f"line {number} of a file that some tool has read\n"
    text = filler * (size // len(filler))
    call_id = f"call_{number // 2:08}"
    if number % _EVERY == 0:
        content = [{"type": "input_text", "text": text}]
        return {"type": "message", "role": "user", "content": content}
    if number % _EVERY == _EVERY - 1:
        part = {"type": "output_text", "text": text, "annotations": []}
        return {"type": "message", "role": "assistant", "id": f"msg_{number}", "content": [part]}
    if number % 2:
        arguments = orjson.dumps({"command": ["cat", text]}).decode()
        call = {"call_id": call_id, "name": "shell", "arguments": arguments}
        return {"type": "function_call", "id": f"fc_{number}", **call}
    call_id = f"call_{(number - 1) // 2:08}"
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def _group(before: list[dict[str, Any]], item: dict[str, Any], number: int) -> HiddenGroup:
    """Return what a turn left that asked its memory before it made an item."""
    call_id = f"call_hidden_{number}"
    asked = {"type": "function_call", "call_id": call_id, "name": "recall"}
    call = asked | {"id": f"fc_hidden_{number}", "arguments": '{"query":"the decision"}'}
    output = {"type": "function_call_output", "call_id": call_id, "output": "a memory " * 40}
    text = orjson.dumps(item)
    hidden = [hidden_slot(orjson.dumps(each)) for each in (call, output)]
    return hidden_group(before, [*hidden, visible_slot(item, text)])


def next_of(items: int, size: int) -> Read:
    """Return what reads the request that `history` makes, the one before it having been prepared.

    That one stays what is known, or a second measurement would be of a request that is repeated:
    so replacing it, under a microsecond, is not measured.
    """
    prefixes = PrefixCache()
    text, groups = history(items - _ADDED, size)
    _prepared(partial(prefixes.read, _TENANT), text, groups)
    return partial(prefixes.read, _TENANT, keep=False)


def _prepared(read: Read, text: bytes, groups: list[HiddenGroup]) -> bytes:
    """Do what the proxy does with a request before it goes upstream, the look-up aside."""
    request = read(text)
    return _edited(request, Survey(input_items(request.body), _KEY), groups)


async def _looked_up(read: Read, store: Store, text: bytes) -> bytes:
    """Do the same with the groups that the memory has."""
    request = read(text)
    survey = Survey(input_items(request.body), _KEY)
    keys = survey.lookup_keys
    return _edited(request, survey, await find_groups(store, _TENANT, keys) if keys else [])


def _edited(request: Request, survey: Survey, groups: list[HiddenGroup]) -> bytes:
    request = restore(request, [*minted_ids(survey), *restorations(survey, groups)])
    return declare(request, _RECALL).request.text


def records() -> Iterator[dict[str, Any]]:
    """Measure every size: without hidden items, with them, and with their look-up in the memory."""
    for name, (items, size) in SIZES.items():
        text, groups = history(items, size)
        with Store.open(None) as store, asyncio.Runner() as runner:
            for group in groups:
                runner.run(save_group(store, _TENANT, group, 1.79e9))
            for which, read in (("first", read_request), ("next", next_of(items, size))):
                # The first one finds no answer of the memory to an earlier one.
                store.glance = Glance(Mark(None), most_bytes=MOST_BYTES if which == "next" else 0)
                ways: dict[str, Callable[[], bytes]] = {
                    f"{which}, declare": partial(_prepared, read, text, []),
                    f"{which}, restore": partial(_prepared, read, text, groups),
                    f"{which}, look up": partial(_run, runner, read, store, text),
                }
                for way, prepare in ways.items():
                    pairs = prepare().count(b'"fc_hidden_')
                    if pairs != (0 if "declare" in way else len(groups)):
                        raise RuntimeError(f"{way} of {name} put {pairs} pairs back")
                    yield {
                        "part": "requests",
                        "scenario": f"{way} {name}",
                        "bytes": len(text),
                        "items": items,
                        "pairs": pairs,
                        "ratio": replay.ratio(prepare, partial(orjson.loads, text)),
                    }


def _run(runner: asyncio.Runner, read: Read, store: Store, text: bytes) -> bytes:
    # Not by ``run``: restoring the signal handler, it writes the whole result into a message.
    return runner.get_loop().run_until_complete(_looked_up(read, store, text))
