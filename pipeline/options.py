"""What is fixed for a turn before its first byte."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from pipeline.reader import responses_reader
from pipeline.restored import NOTHING, Restored

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.join import JoinRecord
    from pipeline.lifecycle import Dialect
    from pipeline.limits import Budgets, Limits
    from pipeline.reader import ReaderFactory, StreamMode
    from pipeline.request import HiddenTool
    from pipeline.splice import ClientStream


class MakeAnswer(Protocol):
    """Makes what writes the client's side of a turn."""

    def __call__(self, *, withhold_ciphertext: bool) -> ClientStream:
        """Return it, with nothing written yet."""


@dataclass(frozen=True, slots=True)
class ClientForm:
    """How a client speaks that does not speak Responses.

    Attributes:
        answer: Makes what writes its side of the turn.
        join: The record of what it has to be given back, in the way it keeps a turn.
        passes: Whether an answer may be what it can read as it comes; its side says when it is.
    """

    answer: MakeAnswer
    join: type[JoinRecord]
    passes: bool = False


@dataclass(slots=True)
class TurnOptions:
    """What is fixed for a turn before its first byte.

    Attributes:
        limits: Buffer limits.
        budgets: What hidden calls may cost.
        dialect: The upstream's habits.
        mode: How the upstream answers: written into every request, and reads every answer.
        streamed: Whether the client asked for a stream.
        tools: The hidden tools that were declared in this request; nothing else is hidden.
        withhold_ciphertext: Reasoning ciphertext was asked for by us alone.
        hold_text: The client wants JSON of a schema: text beside hidden calls is held.
        report: What the terminal reports: usage summed, or of the last hop.
        id_key: Key of the ids that we mint.
        turn_id: Names the turn; ids are minted from it where the upstream gives none.
        created_at: Unix time for a response object that the upstream never gave.
        redact: Takes secrets out of a provider's message.
        cleanse: Takes our own secrets out of what a provider wrote, and leaves all else.
        reader: Makes what reads an answer: the provider's half that ``mode`` decides together
            with the flag in the request.
        form: How the client speaks; None for Responses.
        restored: What the request carries that the client never had.
        hidden_names: How hidden calls are named.
        early_names: Those of them that may run before their response completed.
        observed: Whether nothing was declared: limits then end the accumulation, never the stream.
    """

    limits: Limits
    budgets: Budgets
    dialect: Dialect
    mode: StreamMode
    streamed: bool
    tools: tuple[HiddenTool, ...]
    withhold_ciphertext: bool
    hold_text: bool
    report: Literal["sum", "last"]
    id_key: bytes
    turn_id: str
    created_at: int
    redact: Callable[[str], str]
    cleanse: Callable[[bytes], bytes] = bytes
    reader: ReaderFactory = responses_reader
    form: ClientForm | None = None
    restored: Restored = NOTHING

    hidden_names: frozenset[str] = field(init=False)
    early_names: frozenset[str] = field(init=False)
    observed: bool = field(init=False)

    def __post_init__(self) -> None:
        self.hidden_names = frozenset([tool.name for tool in self.tools])
        self.early_names = frozenset([tool.name for tool in self.tools if tool.early])
        # What the client can't read as it comes is not only observed.
        passes = self.form is None or self.form.passes
        self.observed = not self.tools and passes and self.streamed is self.mode.flag
