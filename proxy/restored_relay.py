"""A request about a history into which hidden items went back, and what its answer may say of it.

``/responses/compact`` and ``/responses/input_tokens`` are answered by the provider itself: no turn
is made of them. But a compaction may retain what was put back, and an error may quote it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline import jsontext
from pipeline.discretion import Discretion
from pipeline.echo import cut_echo
from pipeline.sse import Fragment, SSEDecoder, encode_event
from proxy import headers as h
from proxy.answer import Answer

if TYPE_CHECKING:
    from pipeline.limits import Limits
    from pipeline.request import Request
    from pipeline.restored import Restored
    from proxy.downstream import Channel
    from proxy.services import Services
    from proxy.upstream import UpstreamRequest
    from proxy.upstreams import Endpoint

    Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RestoredRequest:
    """A request that carries what its client never had.

    Attributes:
        endpoint: Where it goes.
        passed: What goes there.
        sent: The same, as it was understood.
        restored: What of it the client never had.
    """

    endpoint: Endpoint
    passed: UpstreamRequest
    sent: Request
    restored: Restored


async def relay_restored(services: Services, asked: RestoredRequest, channel: Channel) -> None:
    """Pass it on, and its answer back without what was put into it."""
    answer, limits = Answer(await asked.endpoint.open(asked.passed)), services.limits
    try:
        answer.decode(limit=limits.stream_bytes)
        kind = (answer.content_type or "").partition(";")[0].strip().lower()
        if answer.successful and kind == "text/event-stream":
            await _stream(answer, asked.restored, limits, channel)
            return
        if answer.successful:
            body = _shown(await answer.read_all(limits.stream_bytes), asked.restored)
        else:
            discretion = Discretion((), asked.sent.body, (), asked.restored)
            body = await answer.read_whole(
                limits.error_bytes,
                lambda told: discretion.body(services.secrets.cleanse(told)),
            )
        headers = _headers(answer, asked.restored)
        headers.append((b"content-length", str(len(body)).encode()))
        await channel.start(answer.status, headers)
        await channel.send(body, more=False)
    finally:
        await answer.close()


def _headers(answer: Answer, restored: Restored) -> h.Headers:
    kept = [one for one in h.to_client(answer.headers) if one[0].lower() != b"content-length"]
    return h.without_ids(kept, restored.call_ids)


def _shown(data: bytes, restored: Restored) -> bytes:
    """Return the body of an answer without what was put into the request."""
    try:
        value = jsontext.loads(data)
    except ValueError:
        return data
    output = value.get("output") if isinstance(value, dict) else None
    if isinstance(output, list) and any(map(restored.is_of, output)):
        return jsontext.cut_elements(data, value, restored.is_of, ("output",))
    return data


async def _stream(answer: Answer, restored: Restored, limits: Limits, channel: Channel) -> None:
    await channel.start(answer.status, _headers(answer, restored))
    stream = _Stream(restored, limits)
    while (data := await answer.read()) is not None:
        if shown := stream.feed(data):
            await channel.send(shown, more=True)
    await channel.send(stream.feed(None), more=False)


class _Stream:
    """The events of such an answer: hidden items are taken out, and the numbers close up."""

    def __init__(self, restored: Restored, limits: Limits) -> None:
        self._restored = restored
        self._decoder = SSEDecoder(
            event_bytes=limits.event_bytes, frames=limits.frames, relay_oversize=True
        )
        self._hidden: set[int] = set()
        self._dropped = 0

    def feed(self, data: bytes | None) -> bytes:
        """Return what can go on; None ends it."""
        frames = self._decoder.finish() if data is None else self._decoder.feed(data)
        return b"".join(
            one.raw if isinstance(one, Fragment) or not one.data else self._frame(one.raw, one.data)
            for one in frames
        )

    def _frame(self, raw: bytes, data: bytes) -> bytes:
        try:
            event = jsontext.loads(data)
        except ValueError:
            return raw
        if not isinstance(event, dict):
            return raw
        index = event.get("output_index")
        if type(index) is int and self._restored.is_of(event.get("item")):
            self._hidden.add(index)
        if type(index) is int and index in self._hidden:
            self._dropped += 1
            return b""
        shown, value = self._without_items(data, event)
        changes = {
            key: jsontext.dumps(number)
            for key, number in self._numbers(event).items()
            if event[key] != number
        }
        if changes:
            shown = jsontext.set_members(shown, value, changes)
        return raw if shown is data else encode_event(str(event.get("type")), shown)

    def _numbers(self, event: Json) -> dict[str, int]:
        numbers: dict[str, int] = {}
        if type(number := event.get("sequence_number")) is int:
            numbers["sequence_number"] = number - self._dropped
        if type(index := event.get("output_index")) is int:
            numbers["output_index"] = index - sum(each < index for each in self._hidden)
        return numbers

    def _without_items(self, data: bytes, event: Json) -> tuple[bytes, Json]:
        data, event = cut_echo(data, event, (), self._restored)
        response = event.get("response")
        output = response.get("output") if isinstance(response, dict) else None
        if not isinstance(output, list) or not any(map(self._restored.is_of, output)):
            return data, event
        kept = [item for item in output if not self._restored.is_of(item)]
        data = jsontext.cut_elements(data, event, self._restored.is_of, ("response", "output"))
        return data, {**event, "response": {**event["response"], "output": kept}}
