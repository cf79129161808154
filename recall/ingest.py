"""Ingest: what a turn adds to the memory.

Kept is what the user and the assistant said, once per session. Left out is what nobody said:
instructions and developer items, the blocks that clients write into user messages about their
environment, tool calls and their outputs (bulk that would drown what was said, and the place where
secrets turn up), encoded data, and what recall itself had answered.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from recall.entries import Draft, digest_of, index, insert, lacking_in
from recall.text import ENTRIES, ENTRY_CHARS, clean, split
from recall.tool import ANCHOR

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from recall.entries import Row, Scope

MESSAGES: Final = 8192
"""Messages of which the memory remembers what they became."""
_ROLES: Final = ("user", "assistant")
_TEXT_PARTS: Final = ("input_text", "output_text", "text")
_LOOKED_AT: Final = 4 * ENTRIES * ENTRY_CHARS
"""Characters of one part that are looked at; what is left of them may still be cut."""

_INJECTED: Final = frozenset(
    {
        *("environment_context", "user_instructions", "permissions instructions"),
        *("collaboration_mode", "apps_instructions", "skills_instructions"),
        *("plugins_instructions", "personality_spec", "additional_context", "model_switch"),
        *("user_shell_command", "turn_aborted", "subagent_notification", "goal_context"),
        *("recommended_plugins", "token_budget", "rollout_budget", "git_attribution"),
        *("codex_internal_context", "realtime_conversation", "skill", "plugins", "subagents"),
        *("system-reminder", "local-command-stdout", "local-command-stderr"),
        *("local-command-caveat", "task-notification", "ide_context", "ide_selection"),
        *("ide_opened_file", "INSTRUCTIONS"),
    }
)
"""Tags of blocks that clients put into user messages."""
_OPENING: Final = re.compile(
    r"^[ \t]*<([A-Za-z][\w-]*(?: instructions)?)(?:\s[^<>]*)?>", re.MULTILINE
)
_FENCE: Final = re.compile(r"^(?:\|?[ \t]*)<(memory-[0-9a-f]{12})>", re.MULTILINE)
_AGENTS: Final = re.compile(r"^# AGENTS\.md instructions\b.*$", re.MULTILINE)
_GAP: Final = re.compile(r"\n\s*\n\s*\n")
_ENCODED: Final = re.compile(
    r"data:[\w.+-]+/[\w.+-]+(?:;[\w.+-]+(?:=[\w.+-]+)?)*;base64,[A-Za-z0-9+/=_-]*"
    r"|(?<![A-Za-z0-9+/_-])(?:(?:[A-Za-z0-9+/_-]{56,}+={0,2}+\n){2,}[A-Za-z0-9+/_-]*={0,2}"
    r"|[A-Za-z0-9+/_-]{200,}+={0,2})"
)
_LONG: Final = 56
"""So many characters in a row all encoded data has that does not say that it is some."""
_RUNS: Final = bytes(
    ord("x") if chr(code).isalnum() or code in b"+/_-" else ord(" ") for code in range(128)
).ljust(256)
"""Makes text into runs of what encoded data is made of, and gaps."""


class Told(NamedTuple):
    """What was said in a turn."""

    scope: Scope
    """Whose turn it was, and in which project and session."""
    body: Mapping[str, Any]
    """The request as the client sent it."""
    output: Sequence[Mapping[str, Any]]
    """The items the client was given."""
    now: float
    """Seconds since 1970."""
    size: int = 0
    """About how many bytes the request took."""


def ingest_turns(connection: sqlite3.Connection, pieces: Pieces, turns: Iterable[Told]) -> int:
    """Store what the sessions of turns don't have yet.

    Args:
        connection: With a transaction open.
        pieces: The memory's.
        turns: In the order in which they ended.

    Returns:
        How many entries are new.
    """
    rows = [row for told in turns for row in _insert(connection, pieces, told)]
    index(connection, rows)
    return len(rows)


def _insert(connection: sqlite3.Connection, pieces: Pieces, told: Told) -> list[Row]:
    messages = [*_messages(told.body.get("input")), *_messages(list(told.output))]
    digests = [pieces.digests(*message) for message in messages]
    lacking = lacking_in(connection, told.scope, {one for each in digests for one in each})
    if not lacking:
        return []
    fresh = [
        draft
        for message, each in zip(messages, digests, strict=True)
        if not lacking.isdisjoint(each)
        for draft in _pieces(*message)
    ]
    return insert(connection, told.scope, fresh, told.now)


def drafts(
    request_body: Mapping[str, Any], output_items: Iterable[Mapping[str, Any]]
) -> list[Draft]:
    """Return what was said in a request and its answer, in order, cut into entries."""
    messages = [*_messages(request_body.get("input")), *_messages(list(output_items))]
    return [draft for message in messages for draft in _pieces(*message)]


class Pieces:
    """By what the memory knows the pieces of messages, of those that came of late.

    Clients send their whole history with every turn. To see that all of it is stored takes no more
    than a digest of each message, where it was cut before. Used by the writing thread alone.

    Args:
        most: How many messages; the one that did not come for longest is forgotten first.
    """

    def __init__(self, most: int = MESSAGES) -> None:
        self._most = most
        self._known: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def digests(self, role: str, texts: Sequence[str]) -> tuple[int, ...]:
        """Return the digests of the entries that a message becomes.

        Args:
            role: Who said it.
            texts: Of its parts.
        """
        parts = [text.encode("utf-8", "surrogatepass") for text in texts]
        sized = [b"%d:%b" % (len(part), part) for part in parts]
        key = hashlib.blake2b(b"".join([role.encode(), *sized]), digest_size=16).digest()
        found = self._known.get(key)
        if found is None:
            pieces = [(draft.role, clean(draft.text)) for draft in _pieces(role, texts)]
            found = tuple(digest_of(*piece) for piece in pieces)
            self._known[key] = found
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return found


def _messages(items: object) -> Iterator[tuple[str, list[str]]]:
    """Yield role and texts of what the user and the assistant said."""
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list):
        return
    for item in items:
        if not isinstance(item, dict) or item.get("type", "message") != "message":
            continue
        role = item.get("role")
        if role in _ROLES:
            yield role, _texts(item.get("content"))


def _pieces(role: str, texts: Iterable[str]) -> list[Draft]:
    """Return a message cut into entries."""
    said = "\n\n".join(filter(None, (_said(text, role) for text in texts)))
    # The line that shows a recall was said by nobody.
    return [] if said == ANCHOR else [Draft(piece, role) for piece in split(said)]


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    parts = [
        part.get("text")
        for part in content
        if isinstance(part, dict) and part.get("type") in _TEXT_PARTS
    ]
    return [text for text in parts if isinstance(text, str)]


def _said(text: str, role: str) -> str:
    """Return what of a text was said."""
    text = kept = clean(text[:_LOOKED_AT])
    if role == "user":
        kept = _AGENTS.sub("", kept)
        kept = _without_blocks(kept, _OPENING, _is_injected) if "<" in kept else kept
    if "<memory-" in kept:
        kept = _without_blocks(kept, _FENCE, lambda *_: True)
    if _may_be_encoded(kept):
        kept = _ENCODED.sub("[data]", kept)
    kept = _GAP.sub("\n\n", kept)
    return text if kept == text else clean(kept)


def _may_be_encoded(text: str) -> bool:
    """Tell whether it is worth the search for encoded data, which most texts have none of."""
    return "data:" in text or b"x" * _LONG in text.encode().translate(_RUNS)


def _is_injected(tag: str, text: str) -> bool:
    """Tell a client's block from markup that a user wrote.

    Besides the tags known, a text that is one element of a name that no markup language has is
    taken for a block of a newer client.
    """
    whole = text.startswith(f"<{tag}") and text.endswith(f"</{tag}>")
    return tag in _INJECTED or (whole and ("_" in tag or "-" in tag))


def _without_blocks(
    text: str, opening: re.Pattern[str], is_block: Callable[[str, str], bool]
) -> str:
    """Cut out the elements that are blocks, each up to its first closing tag."""
    kept: list[str] = []
    unclosed: set[str] = set()
    end = 0
    for match in opening.finditer(text):
        tag = match[1]
        closing = f"</{tag}>"
        if match.start() < end or tag in unclosed or not is_block(tag, text):
            continue
        close = text.find(closing, match.end())
        if close < 0:
            # None further on either: without this, text full of openings would cost its square.
            unclosed.add(tag)
            continue
        kept.append(text[end : match.start()])
        end = close + len(closing)
    return "".join((*kept, text[end:]))
