"""The one more try of a turn whose continuation failed, or whose model would not stop recalling.

A recovery is a hop like any other but for two things: its request lets the model call the
client's tools alone, and nothing of it is shown before it was checked as a whole. So it either
ends the turn well or leaves no trace of itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline import jsontext
from pipeline.errors import (
    FailureCategory,
    ProtocolError,
    RecallError,
    SottovoceError,
    UpstreamError,
    UpstreamRefusedError,
)
from pipeline.failures import FINAL_CODES, MESSAGE_CHARACTERS
from pipeline.intercept import HIDEABLE
from pipeline.outcome import is_empty_completion
from pipeline.reader import provider_error
from pipeline.usage import add_usage

if TYPE_CHECKING:
    from collections.abc import Collection

    from pipeline.hop import Hop
    from pipeline.options import TurnOptions
    from pipeline.request import Request
    from pipeline.response import ResponseState

SHORTENED_CHARACTERS: Final = 2000
"""What is left of each result where the upstream found the whole request too long."""
_SHORTENED: Final = "\n[shortened]"
_WHOLE: Final = (None, "completed")
"""The statuses of an item that is whole; many have none."""
_TOO_LONG: Final = frozenset({400, 413, 422})


class ResponsesTerminalError(SottovoceError):
    """A continuation's stream ended in a terminal that can't end the turn.

    Args:
        message: Phase and the provider's own words.
        state: What was parsed: its usage still counts.
        code: The provider's code.
    """

    def __init__(self, message: str, *, state: ResponseState, code: str | None) -> None:
        super().__init__(message, code=code)
        self.state = state


class NonStreamCompletionError(ResponsesTerminalError):
    """The same for an answer that came as one JSON body."""


def failed_terminal(hop: Hop, options: TurnOptions) -> ResponsesTerminalError:
    """Return the error for a hop that its provider failed, where nothing of it is visible."""
    state = hop.state
    failed = ResponsesTerminalError if options.mode.flag else NonStreamCompletionError
    message, code = provider_error({"error": state.error or {"message": "no reason given"}})
    text = hop.words.redact(message)[:MESSAGE_CHARACTERS]
    return failed(f"{hop.phase}: the upstream failed: {text}", state=state, code=code)


def merge_failed_continuation_metadata(
    spent: dict[str, Any] | None, context: dict[str, Any] | None, state: ResponseState
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Count what a hop has cost, also one that failed.

    Args:
        spent: Usage summed over the hops before it.
        context: Usage of the last of them that reported any.
        state: What was parsed of this one.

    Returns:
        Both, with this hop's.
    """
    usage = state.usage
    return add_usage(spent, usage), usage if usage is not None else context


def may_recover(error: SottovoceError) -> bool:
    """Say whether another request could do what this continuation could not."""
    return isinstance(error, UpstreamError | ProtocolError | ResponsesTerminalError)


def is_too_long(error: SottovoceError) -> bool:
    """Say whether the upstream refused the input itself, so that a shorter one may pass."""
    if error.code == "context_length_exceeded":
        return True
    return isinstance(error, UpstreamRefusedError) and error.upstream_status in _TOO_LONG


def shorten(output: bytes) -> bytes:
    """Return the item that answers a hidden call with less of its result."""
    item = jsontext.loads(output)
    text = item["output"]
    if len(text) <= SHORTENED_CHARACTERS:
        return output
    return jsontext.dumps({**item, "output": text[:SHORTENED_CHARACTERS] + _SHORTENED})


def restrict_tools(request: Request, names: Collection[str]) -> Request:
    """Return the request with the hidden tools declared as ever, but not to be called.

    The declarations stay, so that the provider's cached prefix does; the choice leaves them out,
    in the client's own mode.
    """
    body = request.body
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        mode, tools = choice.get("mode", "auto"), choice.get("tools") or []
    else:
        mode, tools = choice or "auto", [_as_choice(tool) for tool in _offered(body)]
    allowed = [tool for tool in tools if tool.get("name") not in names]
    restricted: Any = "none"
    if allowed and isinstance(mode, str):
        restricted = {"type": "allowed_tools", "mode": mode, "tools": allowed}
    return request.with_members({"tool_choice": restricted})


def _offered(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tools of either layout."""
    lists = [body.get("tools")]
    items = body.get("input")
    if isinstance(items, list):
        lists += [
            item.get("tools")
            for item in items
            if isinstance(item, dict) and item.get("type") == "additional_tools"
        ]
    return [
        tool
        for tools in lists
        if isinstance(tools, list)
        for tool in tools
        if isinstance(tool, dict) and isinstance(tool.get("type"), str)
    ]


def _as_choice(tool: dict[str, Any]) -> dict[str, Any]:
    """Return how a choice names a tool."""
    named = {"type": tool["type"]}
    for key in ("name", "server_label"):
        if isinstance(tool.get(key), str):
            named[key] = tool[key]
    return named


def check_recovered(state: ResponseState, names: Collection[str]) -> None:
    """Check that a recovery ended the turn: whole, usable, and without another hidden call.

    Args:
        state: Its accumulated response.
        names: Of the hidden tools.

    Raises:
        RecallError: It did not; the category is the caller's to replace.
    """
    problem = None
    if state.terminal != "response.completed" or state.error is not None:
        problem = "did not complete"
    elif any(item.type in HIDEABLE and item.name in names for item in state.items.values()):
        problem = "called for memory again"
    elif not state.id or not state.model:
        problem = "has no id or no model"
    elif any(item.get("status") not in _WHOLE for item in state.output()):
        problem = "left an item unfinished"
    elif is_empty_completion([i for i in state.output() if i.get("type") != "reasoning"]):
        problem = "said nothing"
    if problem is not None:
        raise RecallError(
            f"the recovery {problem}", category=FailureCategory.FOLLOW_UP_MISSING_OUTPUT
        )


def fail_recall(
    category: FailureCategory, error: SottovoceError, *, cause: SottovoceError | None
) -> RecallError:
    """Return the error that ends a turn whose recovery failed too.

    Args:
        category: Why there was a recovery.
        error: Why it failed.
        cause: The failure before it, if it was one. Where either is final for clients, so is this.
    """
    codes = [one.code for one in (error, cause) if one is not None and _is_providers(one)]
    final = next((code for code in codes if code in FINAL_CODES), None)
    return RecallError(
        f"memory was consulted, but the answer could not be continued ({category}): "
        f"{error.message}",
        category=category,
        code=final,
    )


def _is_providers(error: SottovoceError) -> bool:
    """Say whether an error's code is the provider's own."""
    return isinstance(error, UpstreamError | ResponsesTerminalError)
