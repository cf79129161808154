"""One place that takes secrets out: of text, of headers, of structured values.

A secret is what shows by its own form that it is one (``sk-…``, ``svt_…``, JSON web tokens and the
like), what follows an authentication scheme, what stands inside a URL for a user or a key, and the
value of anything that is named like a credential: a header, a JSON member, a variable, a query
parameter. Names and mail addresses are no secrets, token *counts* neither.

The steps run in a fixed order over text of any kind. None can fail, each is linear, and what a
step leaves behind is recognised by none of them, so a second pass changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

REDACTED: Final = "[redacted]"

_MEMO_CHARS: Final = 64
"""Names and words up to this length are remembered: lines have the same ones again and again."""
_MAX_DEPTH: Final = 8
"""How deep ``redact_value`` looks; what lies below is replaced whole."""

_BY_FORM: Final = re.compile(
    r"""(?<![A-Za-z0-9_-])(?:
      (?:sk|rk|pk|sess|xai|svt|gsk|hf|gh[oprsu]|github_pat|glpat|pplx|nvapi|csk)[_-][\w*-]{8,}
    | AIza[\w-]{20,}
    | (?:AKIA|ASIA)[A-Z0-9]{12,}[\w-]*
    | xox[abeprs]-[\w-]{8,}
    | eyJ[\w-]{8,}(?:\.[\w-]+){1,4}\.?
    )""",
    re.VERBOSE | re.ASCII,
)
"""Tokens of the providers and of ours, and JSON web tokens (ChatGPT's sign-in among them)."""

_BY_SCHEME: Final = re.compile(
    r"\b(Bearer|Basic|Digest|Negotiate)(\s+)[A-Za-z0-9._~+/=*-]{6,}", re.IGNORECASE
)
_IN_COOKIE: Final = re.compile(r"\b((?:set-)?cookie2?\s*:[ \t]*)[^\s\"'][^\r\n\"']*", re.IGNORECASE)
_IN_USERINFO: Final = re.compile(r"(?<=://)[^\s/\"'<>?#]*@")
_IN_QUERY: Final = re.compile(
    r"([?&](?:key|token|sig|signature|code|auth)=)[^&\s\"'#<>]+", re.IGNORECASE
)

_NAME: Final = (
    r"(?:[a-z0-9]+[_-])*?(?:authorization|cookie2?|api[_-]?key|credentials?"
    r"|(?:secret|private|access|sottovoce)[_-]key|secret|passw(?:or)?d|passphrase"
    r"|(?:access|refresh|id|auth|api|session|bearer|csrf|security)[_-]?token)"
)
_SECRET_NAME: Final = re.compile(rf"{_NAME}|token|chatgpt-account-id", re.IGNORECASE)
_BY_NAME: Final = re.compile(
    rf"""(?P<name>(?<![A-Za-z0-9_-]){_NAME})
    (?:
      (?P<quoted>\\*["']\s*[:=,]\s*b?|\s*[:=][ \t]*b?)(?P<open>\\*["'])
        (?:(?!(?<!\\)(?P=open))[^\r\n])+
    | (?P<plain>[ \t]*[:=][ \t]*) (?!(?:Bearer|Basic|Digest|Negotiate)\s) [^\s"'&,;<>\\]+
    )""",
    re.IGNORECASE | re.VERBOSE,
)

_PLAIN: Final = re.compile(r"[a-z]*|(?:turn_)?[0-9a-f-]*|[0-9TZ:.+-]*")
"""What most values of a log line are, a word, an id, a time: no step can change one."""
_NO_TEXT: Final = frozenset({int, float, bool, type(None)})
"""Types of values that hold no text, nor anything that could."""
_ROOTS: Final = ("authorization", "cookie", "key", "credential", "secret", "pass", "token")
"""One of these is part of every name above: looking for them first saves the dear expression."""

_FORM_MARKS: Final = ("-", "_", "AIza", "AKIA", "ASIA", "eyJ")
_SCHEMES: Final = ("bearer", "basic", "digest", "negotiate")


def redact(text: str) -> str:
    """Return ``text`` with every secret replaced by ``[redacted]``; never raises."""
    return text if _PLAIN.fullmatch(text) else _searched(text)


def redact_word(text: str) -> str:
    """Return the same as `redact`, for texts that are few and come again: names of models, words.

    The last that came are remembered, so this is for nothing that holds a client's content.
    """
    return _known_word(text) if len(text) <= _MEMO_CHARS else redact(text)


def _searched(text: str) -> str:
    # What a step needs is looked for first: that is a tenth of the step. Letters beyond ASCII may
    # be another's small ones, so such a text takes every step.
    sure, lowered = not text.isascii(), text.lower()
    if sure or any(mark in text for mark in _FORM_MARKS):
        text = _BY_FORM.sub(REDACTED, text)
    if sure or any(scheme in lowered for scheme in _SCHEMES):
        text = _BY_SCHEME.sub(rf"\1\2{REDACTED}", text)
    if sure or "cookie" in lowered:
        text = _IN_COOKIE.sub(rf"\1{REDACTED}", text)
    if "://" in text:
        text = _IN_USERINFO.sub(f"{REDACTED}@", text)
    if "=" in text:
        text = _IN_QUERY.sub(rf"\1{REDACTED}", text)
    if any(root in text.lower() for root in _ROOTS):
        text = _BY_NAME.sub(_replace_named, text)
    return text


def redact_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return raw headers as they came, in order, without their secrets.

    A header that is named like a credential loses its value but for the scheme in front of it
    (``Bearer [redacted]``); of the others the text is redacted. The account id of a ChatGPT
    sign-in counts as a credential here, since it names a person.
    """
    return [(name, _header_value(name, value)) for name, value in headers]


def redact_value(value: object) -> object:
    """Return a copy of a structured value in which strings, and secret members, are redacted.

    Mappings and sequences become plain dicts and lists, bytes become text; what is nested deeper
    than eight levels is replaced whole. Other values are returned as they are.
    """
    return _redact_value(value, _MAX_DEPTH)


def is_secret_name(name: str) -> bool:
    """Tell whether a header, key or variable of this name holds a credential."""
    return _SECRET_NAME.fullmatch(name) is not None


def _is_secret_member(name: str) -> bool:
    return _known_name(name) if len(name) <= _MEMO_CHARS else is_secret_name(name)


@lru_cache(maxsize=512)
def _known_name(name: str) -> bool:
    return is_secret_name(name)


@lru_cache(maxsize=512)
def _known_word(text: str) -> str:
    return redact(text)


def _replace_named(match: re.Match[str]) -> str:
    if match["open"] is not None:
        return f"{match['name']}{match['quoted']}{match['open']}{REDACTED}"
    return f"{match['name']}{match['plain']}{REDACTED}"


def _header_value(name: bytes, value: bytes) -> bytes:
    text = value.decode("latin-1")
    if not is_secret_name(name.decode("latin-1")):
        return redact(text).encode("latin-1")
    scheme, space, rest = text.partition(" ")
    kept = f"{scheme} " if space and rest and scheme.isalpha() and len(scheme) <= 10 else ""
    return f"{kept}{REDACTED}".encode("latin-1")


def _redact_value(value: object, depth: int) -> object:
    if type(value) in _NO_TEXT:
        return value
    match value:
        case str():
            return redact(value)
        case bytes():
            return redact(value.decode("utf-8", "backslashreplace"))
        case Mapping() | list() | tuple() | set() | frozenset() if depth == 0:
            return REDACTED
        case Mapping():
            return {
                key: REDACTED
                if isinstance(key, str) and _is_secret_member(key)
                else _redact_value(member, depth - 1)
                for key, member in value.items()
            }
        case list() | tuple() | set() | frozenset():
            return [_redact_value(member, depth - 1) for member in value]
        case _:
            return value
