"""Which call of a chat completion a delta belongs to, and what the call is named.

A delta's *place* is its index; where that is missing its id tells, else it goes on with the call
before. Several calls may share one place, and one id. So a name tells where another call begins:

- A name may come in pieces, which are joined while the call has not been announced: where what it
  has is no declared name yet, or where both together begin one (``read`` + ``_file``).
- The same name may be told again in every delta of a call. It is another call of that tool only
  behind arguments that are a whole object, and with arguments of its own (which may follow in
  deltas without a name); or where one chunk has both, and neither has any.
- The same id, name and arguments again are the same call, told once more.
- Any other name begins another call, and so does another id beside a name.

A call is announced once its name is known to be whole: while it is the beginning of a longer one
that was declared, that is at the first argument, and at the end where nobody declared it as it is.
An id that an earlier call has is not this one's: it gets one of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pipeline.jsontext import loads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from proxy.providers.base import Json
    from proxy.providers.items import ToolCall

Place: TypeAlias = int | str | None


class Call:
    """A call on its way: what came of it before it could be announced.

    Attributes:
        sign: The id that came.
        call_id: The same, if it is this call's alone; else empty.
        name: As far as it came.
        arguments: Those that came before it was announced.
        extra: What its upstream must see of it again.
        written: The call as it was announced; None before it was.
        ended: Its name came again behind whole arguments: further ones are another call's.
    """

    __slots__ = ("arguments", "call_id", "ended", "extra", "last", "name", "sign", "written")

    def __init__(self) -> None:
        self.sign = ""
        self.call_id = ""
        self.name = ""
        self.arguments = ""
        self.extra: Json = {}
        self.written: ToolCall | None = None
        self.ended = False
        self.last = ""

    @property
    def text(self) -> str:
        """All arguments so far."""
        return self.arguments if self.written is None else self.written.arguments

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are a whole object."""
        if not self.last.endswith("}"):  # spares most parses where a name comes with every delta
            return False
        try:
            value = loads(self.text.encode("utf-8", "surrogatepass"))
        except ValueError:
            return False
        return isinstance(value, dict)

    def note(self, arguments: str) -> None:
        """Note the last arguments that say something."""
        self.last = arguments.rstrip() or self.last


class Calls:
    """The calls of one completion.

    Args:
        names: Of the tools that were declared, as the upstream knows them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._calls: list[Call] = []
        self._at: dict[Place, Call] = {}
        self._ids: set[str] = set()

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def __bool__(self) -> bool:
        return bool(self._calls)

    def take(
        self, place: Place, sign: str, name: str, arguments: str, beside: Sequence[Call | None]
    ) -> tuple[Call, str]:
        """Return the call that a delta belongs to, and what it adds to the arguments.

        Args:
            place: Its index, None where that is missing.
            sign: Its id; empty where it brings none.
            name: Its name, or a piece of it; empty likewise.
            arguments: Its arguments.
            beside: The calls that the same chunk has told of before.
        """
        call = self._candidate(place, sign)
        if call is None:
            call = self._begin(place)
        elif _is_retold(call, sign, name, arguments):
            return call, ""
        elif self._is_other(call, sign, name, arguments, told=call in beside):
            call = self._begin(place, name or call.name)
        elif name:
            self._name(call, name)
        call.name = call.name or name
        self._sign(call, sign)
        call.note(arguments)
        return call, arguments

    def is_named(self, call: Call) -> bool:
        """Say whether the name of a call is known, and whole."""
        name = call.name
        if not name:
            return False
        if not any(other != name and other.startswith(name) for other in self._names):
            return True
        return name in self._names and bool(call.text)

    # --- Deciding -------------------------------------------------------------------------

    def _candidate(self, place: Place, sign: str) -> Call | None:
        if place is not None:
            return self._at.get(place)
        if sign:
            return next((one for one in reversed(self._calls) if one.sign == sign), None)
        return self._calls[-1] if self._calls else None

    def _is_other(self, call: Call, sign: str, name: str, arguments: str, *, told: bool) -> bool:
        says = bool(arguments.strip())
        if not name:
            return call.ended and says
        if sign and call.sign and sign != call.sign:
            return True
        if not call.name or self._continued(call, name) is not None:
            return False
        if name != call.name:
            return True
        if call.is_whole:
            call.ended = True
            return says or told
        return told and not says and not call.text.strip() and not sign

    def _continued(self, call: Call, piece: str) -> str | None:
        """Return the name of a call with another piece of it; None if the piece is none."""
        if call.written is not None:
            return None
        joined, declared = call.name + piece, call.name in self._names
        if not (declared and piece == call.name) and self._begins_one(joined):
            return joined
        # Some tell each time all of the name that they have.
        return piece if not declared and piece in self._names and piece != call.name else None

    def _begins_one(self, name: str) -> bool:
        return any(one.startswith(name) for one in self._names)

    # --- Noting ---------------------------------------------------------------------------

    def _begin(self, place: Place, name: str = "") -> Call:
        call = Call()
        call.name = name
        self._calls.append(call)
        if place is not None:
            self._at[place] = call
        return call

    def _name(self, call: Call, piece: str) -> None:
        if call.name:
            call.name = self._continued(call, piece) or call.name

    def _sign(self, call: Call, sign: str) -> None:
        if sign and not call.sign:
            call.sign = sign
            if sign not in self._ids:
                call.call_id = sign
                self._ids.add(sign)


def _is_retold(call: Call, sign: str, name: str, arguments: str) -> bool:
    """Say whether a delta tells a whole call once more."""
    same = bool(sign) and (sign, name) == (call.sign, call.name)
    return same and bool(arguments) and call.is_whole and arguments == call.text
