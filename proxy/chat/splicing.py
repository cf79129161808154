"""The client's side of a turn whose upstream speaks chat completions as the client does.

Chunks go out as they came. What a turn has to hide or to join is changed in their text: parts of
hidden calls are cut out and the numbers of the others close up; the end of a hop that the turn
goes on behind is left out; a further hop goes on under the id, the time, the model and the
fingerprint of the first, without a role of its own, and its usage counts what came before.

A chunk is told once it is known of every part of it whether the client sees it. Where a tool was
declared, the end of a hop (``finish_reason`` and what follows) waits for the turn's decision.

Upstreams of other kinds send no chunks: then everything is written as in ``proxy.chat.render``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from pipeline.errors import SSEStreamLimitError
from pipeline.lifecycle import TERMINALS
from pipeline.splice import ClientStream
from pipeline.sse import encode_comment
from proxy.chat.completion import (
    SHOWN,
    error_of,
    finish_reason,
    has_calls,
    identity_of,
    refused,
    usage_of,
)
from proxy.chat.joint import Joint
from proxy.chat.reading import OPENING, Said
from proxy.chat.render import DONE, ChatAnswer, ChatStream, frame
from proxy.providers.chat_stream import first_choice

if TYPE_CHECKING:
    from pipeline.accepted import Accepted
    from pipeline.companion import Companion
    from pipeline.identity import Mint
    from pipeline.response import ItemState
    from proxy.chat.completion import Fallback
    from proxy.chat.messages import Json


class _AsItCame(ClientStream):
    """What both answers have that are as they came where the upstream speaks as the client does."""

    __slots__ = ()
    _chunked: bool  # it does: what it says comes beside the events

    @property
    def relayable(self) -> bool:
        """Whether the upstream speaks as the client does."""
        return self._chunked

    @property
    def one_text(self) -> bool:
        """Whether the texts of a hop are told as they come."""
        return self._chunked

    def _sees(self, index: int) -> bool:
        return self.index_of(index) is not None


class SplicedChatStream(_AsItCame, ChatStream):
    """The chunks of a completion, as they came as far as that is possible.

    Args:
        withhold_ciphertext: As for any stream; a chat client never sees any.
        include_usage: Whether the client asked for a chunk with the usage.
        fallback: What the chunks say of themselves where the upstream does not.
        names: Of the hidden tools.
        sums: Whether usage is that of all hops.
        held_bytes: How much may wait.
    """

    __slots__ = (
        "_chunked",
        "_ending",
        "_finished",
        "_held",
        "_held_bytes",
        "_hidden",
        "_joint",
        "_open",
        "_queue",
        "_usage_told",
    )

    def __init__(
        self,
        *,
        withhold_ciphertext: bool,
        include_usage: bool,
        fallback: Fallback,
        names: frozenset[str],
        sums: bool,
        held_bytes: int,
    ) -> None:
        super().__init__(
            withhold_ciphertext=withhold_ciphertext, include_usage=include_usage, fallback=fallback
        )
        self._hidden = names
        self._held_bytes = held_bytes
        self._joint = Joint(names, sums=sums)
        self._queue: deque[Said] = deque()
        self._held = 0
        self._chunked = False
        self._open = False  # the current hop has begun for the client
        self._ending = False  # what comes now is its end
        self._finished = False  # a finish reason was told
        self._usage_told = False

    # --- Hops -----------------------------------------------------------------------------

    def start_hop(self) -> None:
        """Take what follows as another hop's; of the one before, its end is left out."""
        if self._chunked:
            for said in self._queue:
                self._pass(said, going_on=True)
            self._forget()
            self._joint.begin_hop()
        super().start_hop()

    def _forget(self) -> None:
        self._queue.clear()
        self._held = 0
        self._open = self._ending = False

    def accompany(self, companion: Companion) -> None:
        """Take a chunk.

        Raises:
            SSEStreamLimitError: More waits than may.
        """
        said = companion.said
        if not isinstance(said, Said):
            return
        if said is OPENING:
            if self._chunked and self._queue:  # the first hop is tried again
                self._forget()
                self._joint.begin_hop(again=True)
            self._chunked = True
            return
        self._joint.take(said)
        self._queue.append(said)
        self._held += len(said.raw)
        self._pump()
        if self._hidden and self._held > self._held_bytes:
            raise SSEStreamLimitError(
                "recall stream exceeded deferred event limit", limit="deferred_bytes"
            )

    # --- Events of the upstream -----------------------------------------------------------

    def show(self, accepted: Accepted, item: ItemState | None, mint: Mint) -> None:
        """Let chunks out that waited for an item; without chunks write what an event says."""
        if not self._chunked:
            super().show(accepted, item, mint)
        elif item is not None:
            if item.type in SHOWN:
                self._see(accepted.event["type"], item, mint)
            self._open = True
            self._pump()

    def continue_text(self, event: dict[str, Any], data: bytes, item: ItemState, /) -> None:
        """Write a delta, unless its chunk comes."""
        if not self._chunked:
            super().continue_text(event, data, item)

    def write(
        self,
        kind: str,
        event: dict[str, Any],
        data: bytes | None,
        changes: frozenset[str],
        edits: dict[str, Any],
        /,
    ) -> None:
        """Take a lifecycle event: the beginning, or a terminal of ours."""
        if not self._chunked:
            super().write(kind, event, data, changes, edits)
        elif kind in TERMINALS:
            self._close(event["response"], ours=True)
        elif kind == "response.created":
            self._identity = self._identity or identity_of(event["response"], self._fallback)
            self._open = True
            self._pump()
        elif data is None:  # a sign of life
            self.out.append(encode_comment("keep-alive"))

    def write_response(self, accepted: Accepted, edits: dict[str, Any]) -> None:
        """Write the end.

        Raises:
            UpstreamRefusedError: The provider failed before there was anything to write.
        """
        if self._chunked:
            self._close({**accepted.event["response"], **edits}, ours=False)
        else:
            super().write_response(accepted, edits)

    def relay(self, raw: bytes) -> None:
        """Write bytes of an answer that only passes, behind all that waited."""
        while self._queue:
            self._pass(self._queue.popleft())
        self._begun = True
        super().relay(raw)

    # --- Chunks ---------------------------------------------------------------------------

    def _pump(self) -> None:
        """Tell what is decided, in order."""
        while self._queue and self._open and self._is_decided(said := self._queue[0]):
            if _is_error(said) or (self._hidden and (self._ending or _ends(said))):
                self._ending = True
                return
            self._queue.popleft()
            self._held -= len(said.raw)
            self._pass(said)

    def _is_decided(self, said: Said) -> bool:
        if said.message is not None and not self._sees(said.message):
            return False
        return all(
            call is None
            or self._joint.hides(call)
            or (call.written is not None and self._sees(call.written.index))
            for call in (*said.calls, said.legacy)
        )

    def _pass(self, said: Said, *, going_on: bool = False, reason: str | None = None) -> None:
        value = said.value
        if value is None:
            if not (said.done and going_on) and self._may_pass(said.raw):
                self.out.append(said.raw)
            return
        if self._hidden and not self._include_usage and _is_bill(value):
            return  # the client did not ask for it: we did
        text = self._joint.tell(said, self._sees, going_on=going_on, reason=reason)
        if text is None:
            return
        self._begun = True
        self.out.append(said.raw if text is said.data else self._reframed(said, text))
        self._finished = self._finished or (_ends(said) and not going_on)
        self._usage_told = self._usage_told or isinstance(value.get("usage"), dict)

    def _may_pass(self, raw: bytes) -> bool:
        """Say whether what is no chunk, like a comment, names nothing that is hidden."""
        return not self._hidden or self._joint.is_discreet(raw)

    def _reframed(self, said: Said, text: bytes) -> bytes:
        """Return the frame that came, with another text in it."""
        head, found, tail = said.raw.partition(said.data or b"")
        if found and self._may_pass(head + tail):
            return head + text + tail
        return b"data: " + text + b"\n\n"

    # --- The end --------------------------------------------------------------------------

    def _close(self, response: Json, *, ours: bool) -> None:
        if response.get("status") == "failed":
            self._fail(response, ours=ours)
            return
        reason = finish_reason(response, calls=False) if ours else None
        marks = [said for said in self._queue if said.done]
        for said in self._queue:
            if not said.done:
                self._pass(said, reason=reason)
        if self._joint.changed:
            self._end_chunks(response)
        for said in marks:
            self._pass(said)
        if self._joint.changed and not marks:
            self.out.append(DONE)
        self._queue.clear()

    def _end_chunks(self, response: Json) -> None:
        """Write what the last hop's chunks lack of an end."""
        head = self._head()
        if not self._finished:
            reason = finish_reason(response, calls=has_calls(response))
            choice = {"index": 0, "delta": {}, "finish_reason": reason}
            self.out.append(frame({**head, "choices": [choice]}))
        usage = response.get("usage")
        if self._include_usage and not self._usage_told and isinstance(usage, dict):
            self.out.append(frame({**head, "choices": [], "usage": usage_of(usage)}))

    def _head(self) -> Json:
        return {**super()._head(), **self._joint.identity}

    def _fail(self, response: Json, *, ours: bool) -> None:
        """Write what can still be told, and the error: the provider's as it came."""
        if not self._begun:
            raise refused(response)
        error, own = error_of(response), None
        for said in self._queue:
            if _is_error(said):
                own = said
            else:
                self._pass(said, going_on=True)
        self._queue.clear()
        # Unless it quotes what the client must not see: then the turn has other words for it.
        if own and not ours and own.error == error["message"] and self._joint.is_discreet(own.raw):
            self.out.append(own.raw)
        else:
            self.out.append(frame({"error": error}))


def _ends(said: Said) -> bool:
    return said.done or (
        said.value is not None and first_choice(said.value).get("finish_reason") is not None
    )


def _is_bill(value: Json) -> bool:
    return isinstance(value.get("usage"), dict) and not value.get("choices")


def _is_error(said: Said) -> bool:
    value = said.value
    return value is not None and bool(value.get("error") or first_choice(value).get("error"))


class SplicedChatAnswer(_AsItCame, ChatAnswer):
    """The one completion of a client that did not ask for a stream, as it came where possible.

    Args:
        withhold_ciphertext: As for any answer.
        fallback: What it says of itself where the upstream does not.
        names: Of the hidden tools.
        sums: Whether usage is that of all hops.
    """

    __slots__ = ("_chunked", "_joint", "_said")

    def __init__(
        self, *, withhold_ciphertext: bool, fallback: Fallback, names: frozenset[str], sums: bool
    ) -> None:
        super().__init__(withhold_ciphertext=withhold_ciphertext, fallback=fallback)
        self._chunked = False
        self._joint = Joint(names, sums=sums)
        self._said: Said | None = None

    def start_hop(self) -> None:
        """Take what follows as another hop's; what the one before said is kept for the end."""
        if self._said is not None:
            self._joint.tell(self._said, self._sees)
            self._said = None
        if self._chunked:
            self._joint.begin_hop()
        super().start_hop()

    def accompany(self, companion: Companion) -> None:
        """Take the body of a hop."""
        said = companion.said
        if said is OPENING:
            self._chunked = True
        elif isinstance(said, Said):
            self._said = said
            self._joint.take(said)

    def write(
        self,
        kind: str,
        event: dict[str, Any],
        data: bytes | None,
        changes: frozenset[str],
        edits: dict[str, Any],
        /,
    ) -> None:
        """Write the completion at a terminal of ours."""
        if self._said is None:
            super().write(kind, event, data, changes, edits)
        elif kind in TERMINALS:
            response = event["response"]
            self._close(self._said, response, reason=finish_reason(response, calls=False))

    def write_response(self, accepted: Accepted, edits: dict[str, Any]) -> None:
        """Write the completion.

        Raises:
            UpstreamRefusedError: The provider failed.
        """
        if self._said is None:
            super().write_response(accepted, edits)
        elif accepted.event["type"] in TERMINALS:
            self._close(self._said, {**accepted.event["response"], **edits})

    def _close(self, said: Said, response: Json, *, reason: str | None = None) -> None:
        if response.get("status") == "failed":
            raise refused(response)
        text = self._joint.tell(said, self._sees, reason=reason)
        self.out = [said.raw if text is None or text is said.data else text]
