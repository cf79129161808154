"""Which headers travel, in which direction. Header lists are raw: (lower-case name, value)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Headers: TypeAlias = list[tuple[bytes, bytes]]

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_OURS: Final = b"x-sottovoce-"
_SHORTEST_ID: Final = 4
_NEVER_UPSTREAM: Final = HOP_BY_HOP | {b"host", b"content-length", b"via", b"expect"}
_INTERCEPTED: Final = _NEVER_UPSTREAM | {b"content-encoding", b"accept-encoding"}
"""What does not go on where the body goes out plain, and the answer must come plain."""
_TURN_NAMES: Final = frozenset(
    {
        b"content-type",
        b"retry-after",
        b"retry-after-ms",
        b"x-models-etag",
        b"x-reasoning-included",
        b"x-codex-turn-state",
        b"x-request-id",
        b"x-oai-request-id",
    }
)
_TRANSLATED: Final = frozenset(
    {
        b"accept-encoding",
        b"anthropic-beta",
        b"api-key",
        b"authorization",
        b"chatgpt-account-id",
        b"http-referer",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"via",
        b"x-api-key",
        b"x-title",
    }
)
_TURN_PREFIXES: Final = (b"x-codex-", b"x-ratelimit-", b"openai-")


def find(headers: Headers, name: bytes) -> bytes | None:
    """Return the first value of a header, None where it is absent."""
    size = len(name)
    for one, value in headers:  # asked a dozen times in each request: most are told by their size
        if len(one) == size and one.lower() == name:
            return value
    return None


def text(headers: Headers, name: bytes) -> str | None:
    """Return the first value of a header as text: UTF-8, or what else its bytes are."""
    value = find(headers, name)
    return None if value is None else decoded(value)


def decoded(value: bytes) -> str:
    """Return a header's value as text: UTF-8, or what else its bytes are."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _dropped(headers: Headers, always: frozenset[bytes]) -> frozenset[bytes]:
    """Return which headers end here: some always, and those that a Connection header names."""
    named = [value for name, value in headers if name.lower() == b"connection"]
    if not named:
        return always
    return always | {token.strip().lower() for token in b",".join(named).split(b",")}


def to_upstream(headers: Headers, *, body_decoded: bool, via: bytes) -> Headers:
    """Return the headers of a request for the upstream.

    Args:
        headers: The client's.
        body_decoded: The body goes out plain and the answer must come plain: an intercepted
            request. Otherwise encodings pass as they are.
        via: What names this proxy.
    """
    dropped = _dropped(headers, _INTERCEPTED if body_decoded else _NEVER_UPSTREAM)
    kept = [
        one
        for one in headers
        if (lower := one[0].lower()) not in dropped and not lower.startswith(_OURS)
    ]
    if body_decoded:
        kept.append((b"accept-encoding", b"identity"))
    before = find(headers, b"via")
    kept.append((b"via", via if before is None else before + b", " + via))
    return kept


def to_translated(headers: Headers, *, via: bytes) -> Headers:
    """Return the headers of a request that goes out in another dialect.

    What a client says beside the body it says to the API that it knows: only what means the same
    to every upstream passes. Its credential is chosen by who knows the upstream.

    Args:
        headers: The client's.
        via: What names this proxy.
    """
    passed = to_upstream(headers, body_decoded=True, via=via)
    return [one for one in passed if one[0].lower() in _TRANSLATED]


def replaced(headers: Headers, by: Headers) -> Headers:
    """Return headers with some in the place of those of the same name."""
    if not by:
        return headers
    names = {name.lower() for name, _ in by}
    return [*(one for one in headers if one[0].lower() not in names), *by]


def to_client(headers: Headers) -> Headers:
    """Return every end-to-end header of an answer that passes unchanged."""
    dropped = _dropped(headers, HOP_BY_HOP)
    return [one for one in headers if one[0].lower() not in dropped]


def without_ids(headers: Headers, ids: Iterable[str]) -> Headers:
    """Return headers without those whose value names one of some ids, in either case.

    Very short ids occur by chance, and are left.
    """
    known = [one.lower().encode("utf-8", "replace") for one in ids if len(one) >= _SHORTEST_ID]
    if not known:
        return headers
    return [one for one in headers if not any(each in one[1].lower() for each in known)]


def of_turn(headers: Headers, *, declared: bool) -> Headers:
    """Return the headers of a streamed turn's answer.

    Args:
        headers: Those of the first hop's answer.
        declared: Whether the tool was declared, so that the body is ours to write.
    """
    if not declared:
        return [(n, v) for n, v in to_client(headers) if n.lower() != b"content-length"]
    return [
        one
        for one in headers
        if (lower := one[0].lower()) in _TURN_NAMES or lower.startswith(_TURN_PREFIXES)
    ]
