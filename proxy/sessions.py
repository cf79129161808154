"""Whose request it is: tenant, project and session, and what marks a retry."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from pipeline.errors import RequestError
from proxy import headers as h

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import SecretStr

    from proxy.headers import Headers

LOCAL_TENANT: Final = "local"
DEFAULT_PROJECT: Final = "default"
_NAME_CHARACTERS: Final = 256
_CWD: Final = re.compile(r"<cwd>\s*(.*?)\s*</cwd>", re.DOTALL)
_BEARER: Final = re.compile(r"(?i)bearer\s+(\S+)")
_OUR_PREFIX: Final = "svt_"
_CODEX_HEADER: Final = re.compile(rb"x-codex-")
_CONVERSATION_HEADERS: Final = (b"x-sottovoce-session", b"thread-id", b"session-id")
_TURN_METADATA: Final = b"x-codex-turn-metadata"


@dataclass(slots=True)
class Identity:
    """Whose request it is.

    Attributes:
        tenant: Memory, ledger and ids never cross it.
        project: Ranks and scopes memory.
        session: The conversation.
        no_store: Nothing of this request is kept on disk.
        recall_off: The client switched recall off for this request.
        recall_on: It asked for it even if it has no tools of its own.
        request_kind: ``turn``, ``compaction`` …, as Codex says.
        turn_id: Codex's own id of the user turn, stable over retries.
        codex: Whether a Codex client asks.
    """

    tenant: str
    project: str
    session: str
    no_store: bool
    recall_off: bool
    recall_on: bool
    request_kind: str | None
    turn_id: str | None
    codex: bool


class Tenants:
    """Finds the tenant of a request, and refuses who is none.

    Args:
        tenancy: ``single``, ``token`` or ``credential``.
        tokens: Access tokens by name; empty where none are asked for.
        key: Key of the digest that names a credential's tenant.
    """

    def __init__(self, tenancy: str, tokens: Mapping[str, SecretStr], key: bytes) -> None:
        self._tenancy = tenancy
        self._tokens = {name: token.get_secret_value() for name, token in tokens.items()}
        self._key = key

    def admit(self, headers: Headers) -> tuple[str, Headers]:
        """Return the tenant and the headers without what was presented to us.

        Raises:
            RequestError: 401, no valid access token was presented.
        """
        name = None
        if self._tokens:
            name, headers = self._authenticate(headers)
        match self._tenancy:
            case "token":
                return name or LOCAL_TENANT, headers
            case "credential":
                return self._of_credential(headers), headers
            case _:
                return LOCAL_TENANT, headers

    def _authenticate(self, headers: Headers) -> tuple[str, Headers]:
        presented = h.text(headers, b"x-sottovoce-key")
        if presented is not None and (name := self._name_of(presented)):
            return name, [one for one in headers if one[0].lower() != b"x-sottovoce-key"]
        bearer = _BEARER.fullmatch((h.text(headers, b"authorization") or "").strip())
        if bearer and bearer[1].startswith(_OUR_PREFIX) and (name := self._name_of(bearer[1])):
            return name, [one for one in headers if one[0].lower() != b"authorization"]
        raise RequestError(
            "this proxy asks for an access token: present it as x-sottovoce-key, or as "
            "Authorization: Bearer svt_…",
            status=401,
            code="invalid_access_token",
        )

    def _name_of(self, presented: str) -> str | None:
        found = None
        for name, token in self._tokens.items():  # no early exit: time must not tell
            if hmac.compare_digest(token.encode(), presented.encode()):
                found = name
        return found

    def _of_credential(self, headers: Headers) -> str:
        account = h.find(headers, b"chatgpt-account-id")
        credential = account or h.find(headers, b"authorization") or h.find(headers, b"x-api-key")
        if credential is None:
            return "anonymous"
        return hmac.new(self._key, credential, hashlib.sha256).hexdigest()[:32]


def identify(headers: Headers, body: dict[str, Any], tenant: str, *, codex_path: bool) -> Identity:
    """Say whose request it is.

    Args:
        headers: The request's headers.
        body: Its parsed body.
        tenant: As ``Tenants.admit`` found it.
        codex_path: Whether it came on a Codex path.
    """
    said = _Said(headers)
    metadata = body.get("client_metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    turn = _turn_metadata(said, metadata)
    recall = (said.text(b"x-sottovoce-recall") or "").strip().lower()
    return Identity(
        tenant,
        _project(said, body),
        _session(said, body, metadata),
        no_store=said.text(b"x-sottovoce-no-store") == "1",
        recall_off=recall == "off",
        recall_on=recall == "on",
        request_kind=_text(turn.get("request_kind")),
        turn_id=_text(metadata.get("turn_id")) or _text(turn.get("turn_id")),
        codex=codex_path or said.is_codex(),
    )


def conversation_hint(headers: Headers) -> bytes:
    """Return what the headers alone tell of the conversation, before the body is read."""
    for name in _CONVERSATION_HEADERS:
        if value := h.find(headers, name):
            return value
    return b""


class _Said:
    """The headers of one request by name; of several of one name the first."""

    def __init__(self, headers: Headers) -> None:
        self._values = {name.lower(): value for name, value in reversed(headers)}

    def text(self, name: bytes) -> str | None:
        value = self._values.get(name)
        return None if value is None else h.decoded(value)

    def is_codex(self) -> bool:
        """Tell whether a Codex client says who it is."""
        originator = self.text(b"originator")
        if originator is not None and originator.lower().startswith("codex"):
            return True
        return any(map(_CODEX_HEADER.match, self._values))


def _turn_metadata(said: _Said, metadata: dict[str, Any]) -> dict[str, Any]:
    for source in (said.text(_TURN_METADATA), metadata.get(_TURN_METADATA.decode())):
        if isinstance(source, str):
            try:
                value = orjson.loads(source)
            except ValueError:
                continue
            if isinstance(value, dict):
                return value
    return {}


def _project(said: _Said, body: dict[str, Any]) -> str:
    named = said.text(b"x-sottovoce-project")
    if named:
        return named[:_NAME_CHARACTERS]
    items = body.get("input")
    for item in items if isinstance(items, list) else []:
        if isinstance(item, dict) and item.get("role") in ("user", "developer"):
            for text in _texts(item):
                if "<environment_context>" in text and (found := _CWD.search(text)):
                    return found[1][:_NAME_CHARACTERS] or DEFAULT_PROJECT
    return DEFAULT_PROJECT


def _session(said: _Said, body: dict[str, Any], metadata: dict[str, Any]) -> str:
    conversation = body.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    for candidate in (
        said.text(b"x-sottovoce-session"),
        metadata.get("thread_id"),
        said.text(b"thread-id"),
        said.text(b"session-id"),
        body.get("prompt_cache_key"),
        conversation,
        body.get("previous_response_id"),
    ):
        if isinstance(candidate, str) and candidate:
            return candidate[:_NAME_CHARACTERS]
    return _digest_of_beginning(body)


def _digest_of_beginning(body: dict[str, Any]) -> str:
    """Name a conversation by its first user message: the history grows behind it."""
    items = body.get("input")
    beginning = items if isinstance(items, str) else ""
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("role") == "user":
            beginning = "\n".join(_texts(item))
            break
    instructions = body.get("instructions")
    seed = f"{instructions if isinstance(instructions, str) else ''}\0{beginning}"
    return hashlib.sha256(seed.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _texts(item: dict[str, Any]) -> list[str]:
    content = item.get("content")
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    return [
        part["text"]
        for part in content
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
