"""What the hops of a turn become for a client that speaks as its upstream does: one completion.

The first hop gives the completion its identity. Parts of hidden calls are cut out of what is told,
the numbers of other calls close up, texts of different hops are kept apart, and usage is summed in
the upstream's own words. What needs none of it is the text that came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.intercept import HIDEABLE
from pipeline.join import SEPARATOR
from pipeline.jsontext import dumps
from proxy.chat.discreet import (
    asks_elsewhere,
    cut_unread,
    may_name,
    names_one,
    quoted,
    readable_calls,
)
from proxy.chat.jsonedit import Edited
from proxy.providers.chat_stream import first_choice_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.jsonspans import Path
    from proxy.chat.messages import Json
    from proxy.chat.reading import Said
    from proxy.providers.chat_calls import Call

    Sees = Callable[[int], bool]
    """Output index of the current hop → whether the client sees that item."""

_IDENTITY: Final = ("id", "created", "model", "system_fingerprint")
_PROSE: Final = ("content", "refusal")
_SAID: Final = (*_PROSE, "reasoning_content", "reasoning")
_BESIDE_REASON: Final = ("native_finish_reason", "stop_reason")
"""What vendors put beside the finish reason, meaning the same."""
_KNOWN: Final = (*_IDENTITY, "object", "service_tier", "usage")
_BILLS: Final[tuple[Path, ...]] = (("usage",), ("x_groq", "usage"))


class Joint:
    """The hops of one turn.

    Args:
        names: Of the hidden tools.
        sums: Whether usage is that of all hops; else that of the last.

    Attributes:
        changed: Whether the completion is no longer the upstream's alone.
        identity: What says which completion it is, and of which model.
    """

    def __init__(self, names: frozenset[str], *, sums: bool) -> None:
        self.changed = False
        self._names = names
        self._quoted = quoted(names)
        self._first = True
        self.identity: Json = {}
        self._role = False
        self._ended = False
        self._saying: dict[str, str] = {}
        self._said: dict[str, str] = {}
        self._numbers: dict[Call, int] = {}
        self._next = 0
        self._secrets: set[bytes] = set()
        self._bills = [_Bill(place, sums=sums) for place in _BILLS]

    def begin_hop(self, *, again: bool = False) -> None:
        """Take what follows as another hop's; ``again`` if that of one that came to nothing."""
        for bill in self._bills:
            bill.close()
        self._first = again
        self._ended = False
        self.changed = self.changed or not again or any(bill.past for bill in self._bills)
        self._said |= self._saying
        self._saying = {}

    def take(self, said: Said) -> None:
        """Note what came, whether it will be told or not."""
        value = said.value
        if value is None:
            return
        for bill in self._bills:
            bill.note(value)
        if self._first:
            known = {name: value[name] for name in _IDENTITY if value.get(name)}
            self.identity = known | self.identity
        if self._names and (self._tells(said.data or b"", value) or asks_elsewhere(value)):
            self.changed = True
        for call in (*said.calls, said.legacy):
            if call is not None and self.hides(call):
                self.changed = True
                if call.call_id:
                    self._secrets.add(call.call_id.encode("utf-8", "surrogatepass"))

    def is_discreet(self, raw: bytes) -> bool:
        """Say whether what the upstream says of itself names nothing that is hidden."""
        words = [*self._secrets, *(name.encode() for name in self._names)]
        return not any(word in raw for word in words)

    def _tells(self, text: bytes, value: Json) -> bool:
        return may_name(text, self._quoted) and names_one(value, self._names)

    def hides(self, call: Call) -> bool:
        """Say whether a call is one of a hidden tool."""
        if call.written is None:
            return False
        value = call.written.value
        return value["type"] in HIDEABLE and value.get("name") in self._names

    def tell(
        self, said: Said, sees: Sees, *, going_on: bool = False, reason: str | None = None
    ) -> bytes | None:
        """Return the text of what the client is told; None where nothing is left to be told.

        Args:
            said: What came, with a value.
            sees: Tells what the client sees.
            going_on: The turn goes on behind this hop, or has failed: it has no end of its own.
            reason: The turn ends here, for another reason than the upstream gave.
        """
        data, value = said.data or b"", said.value or {}
        telling = _Telling(said, Edited(data, value))
        hidden = [at for at, call in enumerate(said.calls) if call and not _is_seen(call, sees)]
        if hidden:  # what is no call says nothing, or of one of them
            hidden += [at for at, call in enumerate(said.calls) if call is None]
        if self.changed or going_on or reason:
            if not self._first:
                telling.rename(self.identity)
            self._tell_calls(telling, hidden, sees)
            self._tell_words(telling, sees)
            # Some tell the finish twice; where the chunks are ours, once is enough.
            telling.end(going_on=going_on or self._ended, reason=None if self._ended else reason)
            for bill in self._bills:
                bill.tell(telling.edited, going_on=going_on)
            if self._names:
                telling.cut_unread()
            if telling.is_void(going_on=going_on):
                return None
            edited = telling.edited
            secret = any(secret in edited.text for secret in self._secrets)
            if secret or self._tells(edited.text, edited.value):
                telling.reduce()
        else:
            self._number(telling, sees)
        self._note(telling)
        return telling.edited.text

    # --- Parts ----------------------------------------------------------------------------

    def _number(self, telling: _Telling, sees: Sees) -> None:
        """Give the calls that the client sees their numbers among its own."""
        entries = telling.entries
        for entry, call in zip(entries, telling.said.calls, strict=False):
            if call is None or call in self._numbers or not _is_seen(call, sees):
                continue
            own = entry.get("index") if isinstance(entry, dict) else None
            number = own if type(own) is int and not self.changed else self._next
            self._numbers[call] = number
            self._next = max(self._next, number + 1)

    def _tell_calls(self, telling: _Telling, hidden: list[int], sees: Sees) -> None:
        self._number(telling, sees)
        for at, call in enumerate(telling.said.calls):
            if call is None or call not in self._numbers or call.written is None:
                continue
            entry = telling.entries[at]
            known: Json = {"index": self._numbers[call]} if "index" in entry else {}
            if entry.get("id"):  # another call may have the same
                known["id"] = call.written.value["call_id"]
            telling.edited.set((*telling.where, "tool_calls", at), known)
        legacy = telling.said.legacy
        telling.cut_calls(hidden, legacy=legacy is not None and not _is_seen(legacy, sees))

    def _tell_words(self, telling: _Telling, sees: Sees) -> None:
        message = telling.said.message
        if message is not None and not sees(message):
            telling.cut_words()
        if telling.said.whole:
            telling.join(self._said)
            return
        if self._role:
            telling.cut_role()
        for member, text in telling.words():
            if member in self._said and member not in self._saying:
                telling.edited.set(telling.where, {member: SEPARATOR + text})

    def _note(self, telling: _Telling) -> None:
        self._ended = self._ended or telling.is_end
        spoken = telling.edited.at(telling.where)
        self._role = self._role or (isinstance(spoken, dict) and bool(spoken.get("role")))
        for member, text in telling.words():
            # The text itself counts only where it has to be told once more, as a whole.
            self._saying[member] = text if telling.said.whole else ""


def _is_seen(call: Call, sees: Sees) -> bool:
    return call.written is not None and sees(call.written.index)


class _Telling:
    """One chunk, or one completion, on its way to the client."""

    def __init__(self, said: Said, edited: Edited) -> None:
        self.said = said
        self.edited = edited
        self._lost = False
        at = first_choice_at(edited.value)
        self._choice: Path = ("choices", 0 if at is None else at)
        self.where: Path = (*self._choice, said.part)

    @property
    def entries(self) -> list[Any]:
        """The entries of its calls."""
        found = self.edited.at((*self.where, "tool_calls"))
        return found if isinstance(found, list) else []

    def words(self) -> list[tuple[str, str]]:
        """Return its texts by member."""
        spoken = self.edited.at(self.where)
        if not isinstance(spoken, dict):
            return []
        return [(m, spoken[m]) for m in _SAID if isinstance(spoken.get(m), str) and spoken[m]]

    def rename(self, identity: Json) -> None:
        """Let it be of the first hop's completion."""
        here = self.edited.value
        self.edited.set((), {name: one for name, one in identity.items() if name in here})

    def cut_calls(self, hidden: list[int], *, legacy: bool) -> None:
        """Cut calls out, and what else could tell of them."""
        if hidden and len(hidden) == len(self.entries):
            self.edited.drop(self.where, ("tool_calls",))
        elif hidden:
            self.edited.cut((*self.where, "tool_calls"), hidden)
        if legacy:
            self.edited.drop(self.where, ("function_call",))
        if hidden or legacy:
            self._lost = True
            if self.edited.at((*self._choice, "logprobs")) is not None:
                self.edited.set(self._choice, {"logprobs": None})

    def cut_words(self) -> None:
        """Cut the text of a message out that the client doesn't see."""
        self._lost = True
        if self.said.whole:
            gone = {name: None for name in _PROSE if self.edited.at((*self.where, name))}
            self.edited.set(self.where, gone)
        else:
            self.edited.drop(self.where, _PROSE)

    def cut_role(self) -> None:
        """Cut the role out: it was told."""
        spoken = self.edited.at(self.where)
        if isinstance(spoken, dict) and "role" in spoken:
            self._lost = True
            self.edited.drop(self.where, ("role",))

    def join(self, before: Json) -> None:
        """Put what earlier hops said in front of what this one says."""
        own = dict(self.words())
        texts = {
            member: SEPARATOR.join(filter(None, (text, own.get(member, ""))))
            for member, text in before.items()
        }
        if isinstance(self.edited.at(self.where), dict):
            self.edited.set(self.where, texts)
        elif texts and isinstance(self.edited.at(self._choice), dict):
            self.edited.set(self._choice, {"message": {"role": "assistant", **texts}})

    def cut_unread(self) -> None:
        """Cut out what nobody read: it could tell of a hidden call, too."""
        count = len(self.edited.text)
        cut_unread(self.edited, self.said.part)
        self._lost = self._lost or len(self.edited.text) != count
        at = first_choice_at(self.edited.value)
        self._choice = ("choices", 0 if at is None else at)
        self.where = (*self._choice, self.said.part)

    def end(self, *, going_on: bool, reason: str | None) -> None:
        """Take the end of the hop for no end, or for another one."""
        choice = self.edited.at(self._choice)
        if not isinstance(choice, dict) or not (going_on or reason):
            return
        if choice.get("finish_reason") is not None:
            self._lost = True
            self.edited.set(self._choice, {"finish_reason": reason})
        self.edited.drop(self._choice, _BESIDE_REASON)

    @property
    def is_end(self) -> bool:
        """Whether it tells why the completion ended."""
        choice = self.edited.at(self._choice)
        return isinstance(choice, dict) and choice.get("finish_reason") is not None

    def is_void(self, *, going_on: bool) -> bool:
        """Say whether it says nothing any more."""
        value = self.edited.value
        spoken = self.edited.at(self.where)
        says = isinstance(spoken, dict) and any(map(_is_something, spoken.values()))
        if self.said.whole or says or self.is_end:
            return False
        return going_on or (self._lost and not isinstance(value.get("usage"), dict))

    def reduce(self) -> None:
        """Leave only what is known: something else of it tells of a hidden call."""
        value = self.edited.value
        choice = self.edited.at(self._choice)
        reduced: Json = {name: value[name] for name in _KNOWN if name in value}
        reduced["choices"] = []
        if isinstance(choice, dict):
            spoken = self.edited.at(self.where)
            spoken = spoken if isinstance(spoken, dict) else {}
            kept = {n: spoken[n] for n in ("role", *_SAID) if n in spoken}
            if calls := readable_calls(spoken.get("tool_calls")):
                kept["tool_calls"] = calls
            told = {n: choice[n] for n in ("index", "finish_reason") if n in choice}
            reduced["choices"] = [{**told, self.where[-1]: kept}]
            self._choice = ("choices", 0)
            self.where = (*self._choice, self.where[-1])
        self.edited = Edited(dumps(reduced), reduced)


def _is_something(value: object) -> bool:
    return value not in (None, "", [], {})


class _Bill:
    """Usage at one place, hop by hop.

    Attributes:
        past: That of the hops that are over; None where none told any.
    """

    def __init__(self, place: Path, *, sums: bool) -> None:
        self.past: Json | None = None
        self._place = place
        self._sums = sums
        self._now: Json | None = None

    def note(self, value: Json) -> None:
        """Take what a chunk says of the hop's usage; the last one counts."""
        if (usage := _found(value, self._place)) is not None:
            self._now = usage

    def close(self) -> None:
        """Take the hop's usage as past."""
        if self._now is not None and self._sums:
            self.past = self._now if self.past is None else added(self.past, self._now)
        self._now = None

    def tell(self, edited: Edited, *, going_on: bool) -> None:
        """Put the usage of all hops so far in the place of one hop's."""
        usage = _found(edited.value, self._place)
        *where, name = self._place
        if usage is None:
            return
        if going_on:
            edited.drop(tuple(where), (str(name),))
        elif self.past is not None:
            edited.set(tuple(where), {str(name): added(self.past, usage)})


def _found(value: Json, place: Iterable[str | int]) -> Json | None:
    found: Any = value
    for step in place:
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def added(one: Json, other: Json) -> Json:
    """Return the sum of two usages, field by field; what is no number is the later one's."""
    total = {**one, **other}
    for name in one.keys() & other.keys():
        first, second = one[name], other[name]
        if isinstance(first, dict) and isinstance(second, dict):
            total[name] = added(first, second)
        elif _is_number(first) and _is_number(second):
            total[name] = first + second
        elif second is None:
            total[name] = first
    return total


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
