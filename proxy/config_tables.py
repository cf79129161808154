"""Every key of the configuration, table by table: its type, its default, its one line.

A field's description is the line that the template and the documentation print; its default is
the only place where that default stands.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import platformdirs
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    Strict,
    model_validator,
)

from pipeline.limits import Budgets, Limits
from proxy.config_rules import kind_of, valid_base_url, valid_host, valid_name, valid_variable
from proxy.providers.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB: Final = 1024 * 1024
CODEX_URL: Final = KINDS["codex"].base_url
OPENAI_URL: Final = KINDS["responses"].base_url

Kind = Literal["responses", "codex", "openai_compat", "anthropic", "ollama"]
Texts = Annotated[tuple[str, ...], Strict(strict=False)]


def _none_if_empty(value: object) -> object:
    """TOML has no null: an empty text stands for a value that is not set."""
    return None if value == "" else value


def _full_path(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a path has no zero byte")
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        user = path.parts[0].removeprefix("~")
        raise ValueError(f"there is no home of {user or 'this user'}") from None


EmptyIsNone = BeforeValidator(_none_if_empty)
FilePath = Annotated[Path, Strict(strict=False), AfterValidator(_full_path)]
Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]


def default_state_dir() -> Path:
    """Return where state lives when nobody says otherwise."""
    return platformdirs.user_state_path("sottovoce", appauthor=False)


class Section(BaseModel):
    """A table: knows its keys only, takes no value of another type, shows no input in errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class ServerConfig(Section):
    """``[server]``: the side that clients see."""

    host: Annotated[str, AfterValidator(valid_host)] = Field(
        default="127.0.0.1",
        description="address to listen on; beyond loopback it takes --host and access tokens",
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=7688, description="port to listen on; 0 takes any that is free"
    )
    state_dir: FilePath = Field(
        default_factory=default_state_dir, description="where the memory lives"
    )
    access_token_env: Annotated[str | None, EmptyIsNone, AfterValidator(valid_variable)] = Field(
        default=None, description="variable that holds access tokens, name=svt_…, comma separated"
    )
    tenancy: Literal["single", "token", "credential"] = Field(
        default="single",
        description="whose memory is whose; token by default where access tokens are set",
    )
    allowed_hosts: Texts = Field(
        default=(), description="names, besides loopback and the bound address, that Host may give"
    )
    allowed_origins: Texts = Field(
        default=(), description="web origins that may call, besides our own"
    )
    max_request_bytes: Size = Field(default=64 * MIB, description="largest request body, decoded")
    drain_seconds: Seconds = Field(
        default=20.0, description="how long open turns may go on once a stop was asked for"
    )
    drain_notice_seconds: Seconds = Field(
        default=5.0,
        description="how long to accept while saying 'not ready' first; 0 on a terminal",
    )
    keepalive_seconds: Annotated[float, Field(gt=0)] = Field(
        default=15.0, description="silence after which a streaming client gets a sign of life"
    )


class BudgetsConfig(Section):
    """``[recall.budgets]``: what hidden calls may cost one client request; a 0 allows none."""

    rounds: Count = Field(default=10, description="hidden rounds, each with its continuation")
    executions: Count = Field(default=24, description="hidden calls that are run")
    result_bytes: Count = Field(default=512 * 1024, description="bytes of results for the model")
    extra_tokens: Count = Field(default=128_000, description="tokens spent by continuations")
    stalled_rounds: Size = Field(default=2, description="rounds in a row that bring nothing new")
    seconds: Seconds = Field(
        default=300.0, description="time for hidden calls and the start of continuations"
    )

    def as_budgets(self) -> Budgets:
        """Return the pipeline's own form."""
        return Budgets(**self.model_dump())


class RecallConfig(Section):
    """``[recall]``: the hidden tool and its memory."""

    enabled: bool = Field(default=True, description="whether the tool is declared at all")
    inject: Literal["with_tools", "always"] = Field(
        default="with_tools", description="declare it where the client declares tools, or always"
    )
    store: str = Field(default="sqlite", description="where memory is kept")
    anchor: bool = Field(
        default=False, description="show Responses clients one line in a turn that consulted memory"
    )
    report_usage: Literal["auto", "sum", "last"] = Field(
        default="auto", description="usage told to clients: the sum over hops, or the last hop's"
    )
    budgets: BudgetsConfig = Field(default_factory=BudgetsConfig)


class LimitsConfig(Section):
    """``[limits]``: what bounds the buffers of one turn."""

    stream_bytes: Size = Field(default=64 * MIB, description="read from the upstream over all hops")
    retained_bytes: Size = Field(default=16 * MIB, description="accumulated state of all hops")
    deferred_bytes: Size = Field(default=MIB, description="held back while a call has no name")
    hidden_bytes: Size = Field(default=MIB, description="events of hidden calls")
    event_bytes: Size = Field(default=4 * MIB, description="one server-sent event")
    frames: Size = Field(default=100_000, description="events of one hop")
    items: Size = Field(default=65_535, description="largest output index")
    error_bytes: Size = Field(default=64 * 1024, description="read of an upstream's error body")

    def as_limits(self) -> Limits:
        """Return the pipeline's own form."""
        return Limits(**self.model_dump())


class TelemetryConfig(Section):
    """``[telemetry]``: what can be watched."""

    log_format: Literal["auto", "console", "json"] = Field(
        default="auto", description="auto means console on a terminal, JSON lines otherwise"
    )
    metrics: bool = Field(default=True, description="serve /metrics")
    transcripts: bool = Field(default=False, description="keep every session as a JSONL file")
    otlp_endpoint: Annotated[str | None, EmptyIsNone] = Field(
        default=None, description="OpenTelemetry collector to send traces to"
    )


class SessionsConfig(Section):
    """``[sessions]``: conversations that go on."""

    serialize: bool = Field(default=False, description="one turn at a time per conversation")
    compress_on_overflow: bool = Field(
        default=False,
        description="summarize older turns when an upstream without Responses finds them too long",
    )
    compaction_tokens: Size = Field(
        default=100_000,
        description="tokens of one request for a summary, estimated at four characters each",
    )
    compaction_prompt: Annotated[str | None, EmptyIsNone] = Field(
        default=None, description="what asks for a summary, instead of our own words"
    )


class UpstreamConfig(Section):
    """``[[upstream]]``: one provider."""

    name: Annotated[str, AfterValidator(valid_name)] = Field(
        description="what logs and metrics call it; its kind if not given"
    )
    kind: Kind = Field(description="its dialect; read from the URL if not given")
    base_url: Annotated[str, AfterValidator(valid_base_url)] = Field(
        description="what paths are appended to; the kind's own place if a kind is given"
    )
    api_key: Annotated[SecretStr | None, EmptyIsNone] = Field(
        default=None, description="key sent instead of the client's own; better kept in api_key_env"
    )
    api_key_env: Annotated[str | None, EmptyIsNone, AfterValidator(valid_variable)] = Field(
        default=None, description="variable that holds such a key; api_key comes before it"
    )
    model: Annotated[str | None, EmptyIsNone] = Field(
        default=None, description="model asked for instead of the client's"
    )
    timeout_ms: Size = Field(default=600_000, description="until the response head")
    idle_timeout_ms: Size = Field(
        default=600_000, description="silence after which a stream is given up"
    )
    max_connections: Size = Field(
        default=10_000, description="requests at a time; the next one waits"
    )
    transport: Literal["own", "httpx"] = Field(
        default="own", description="what carries requests to it; docs/performance.md compares them"
    )
    think: Annotated[bool | str | None, EmptyIsNone] = Field(
        default=None, description="thinking of an Ollama model"
    )
    keep_alive: Annotated[int | str | None, EmptyIsNone] = Field(
        default=None, description="how long Ollama keeps a model loaded"
    )
    ca_file: Annotated[FilePath | None, EmptyIsNone] = Field(
        default=None, description="PEM file with the authorities to trust instead of the system's"
    )
    cert_file: Annotated[FilePath | None, EmptyIsNone] = Field(
        default=None, description="PEM file with our client certificate"
    )
    key_file: Annotated[FilePath | None, EmptyIsNone] = Field(
        default=None, description="PEM file with its key, where it is not in cert_file"
    )

    _key: SecretStr | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        kind = given.get("kind") or kind_of(str(given.get("base_url")))
        known = {"name": kind if isinstance(kind, str) else ""}
        if given.get("kind") in KINDS:
            known["base_url"] = KINDS[kind].base_url
        return {**known, **given, "kind": kind}

    @property
    def credential(self) -> SecretStr | None:
        """The configured key, wherever it is kept; ``None`` lets the client's own pass."""
        return self.api_key or self._key

    def take_key(self, environ: Mapping[str, str]) -> None:
        """Take the key out of the variable that is named for it, where there is one."""
        if self.api_key_env is not None and environ.get(self.api_key_env):
            self._key = SecretStr(environ[self.api_key_env])


def default_upstreams(openai_url: str = OPENAI_URL) -> tuple[UpstreamConfig, ...]:
    """Return the pair that serves when none is configured."""
    return (
        UpstreamConfig(name="openai", kind="responses", base_url=openai_url),
        UpstreamConfig(name="codex", kind="codex", base_url=CODEX_URL),
    )
