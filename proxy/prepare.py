"""From what a client sent to what an upstream gets: restored, declared, and read the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.anchor import without_anchors
from pipeline.history import Insertion, is_fresh, minted_ids, restorations
from pipeline.request import Request, Undeclared, declaration_blocker, declare, input_items
from pipeline.restore import restore
from pipeline.restored import NOTHING, Restored
from pipeline.survey import Survey
from proxy import headers as h
from proxy.sealed import expand_compactions
from proxy.services import RECALL
from proxy.sessions import conversation_hint
from recall.tool import ANCHOR

if TYPE_CHECKING:
    from pipeline.reader import StreamMode
    from pipeline.request import HiddenTool
    from proxy.headers import Headers
    from proxy.services import Services
    from proxy.sessions import Identity
    from proxy.upstreams import Endpoint


@dataclass(slots=True)
class Prepared:
    """A request that is ready for its upstream.

    Attributes:
        asked: What the client asks, what it continues by an id of ours included.
        request: What is sent.
        mode: How the answer comes; ``request`` says the same.
        tools: The hidden tools that were declared.
        undeclared: Why recall is not among them.
        withhold_ciphertext: Reasoning ciphertext was asked for by us alone.
        restored: What of the request the client never had.
    """

    asked: Request
    request: Request
    mode: StreamMode
    tools: tuple[HiddenTool, ...]
    undeclared: str | None
    withhold_ciphertext: bool
    restored: Restored = NOTHING


def read(services: Services, data: bytes, headers: Headers, tenant: str) -> Request:
    """Parse a request; what the one before it in its conversation said is known.

    Args:
        services: What the process owns.
        data: Its body.
        headers: Its headers, raw.
        tenant: Whose it is.

    Raises:
        RequestError: It can't be read.
    """
    owner = (tenant, conversation_hint(headers))
    keep = h.find(headers, b"x-sottovoce-no-store") != b"1"
    return services.prefixes.read(owner, data, keep=keep)


async def prepare(
    services: Services,
    request: Request,
    identity: Identity,
    endpoint: Endpoint,
    *,
    restores: bool = True,
) -> Prepared:
    """Prepare a request for its upstream.

    Restores summaries and hidden items of earlier turns, maps the response id that it continues,
    declares the hidden tools where that is possible, and settles how the answer is read.

    Args:
        services: What the process owns.
        request: As the client sent it.
        identity: Whose it is.
        endpoint: Where it goes first.
        restores: Whether hidden items may be in it at all.

    Raises:
        RequestError: It has a compaction that pretends to be one of ours.
    """
    asked = services.remembered.resume(identity.tenant, request)
    request, restored = await restore_kept(services, asked, identity.tenant, history=restores)
    mode = endpoint.provider.mode(streamed=request.body.get("stream") is True)
    if bool(request.body.get("stream")) is not mode.flag:
        request = request.with_members({"stream": mode.flag})
    tools, undeclared = _declarable(services, request, identity)
    withheld = False
    if tools:
        declared = declare(request, *tools)
        request, withheld = declared.request, declared.include_added
    return Prepared(
        asked, request, mode, tools, undeclared, withhold_ciphertext=withheld, restored=restored
    )


def _declarable(
    services: Services, request: Request, identity: Identity
) -> tuple[tuple[HiddenTool, ...], Undeclared | None]:
    """Return the hidden tools that a request can have, and why recall is not among them.

    The configuration can switch recall off alone; a client's header, and a budget of 0, mean
    every hidden tool.
    """
    recall = services.config.recall
    allowed = services.budgets.allow_calls

    def blocker(tool: HiddenTool, *, enabled: bool) -> Undeclared | None:
        return declaration_blocker(
            request,
            tool.name,
            enabled=enabled and allowed and not identity.recall_off,
            inject="always" if identity.recall_on else recall.inject,
            request_kind=identity.request_kind,
        )

    undeclared = blocker(RECALL, enabled=recall.enabled)
    own = [RECALL] if undeclared is None else []
    others = (tool for tool in services.plugins.tools if blocker(tool, enabled=True) is None)
    return (*own, *others), undeclared


async def restore_kept(
    services: Services, request: Request, tenant: str, *, history: bool = True
) -> tuple[Request, Restored]:
    """Put what was kept from the client back to its place, and tell what it is.

    Summaries and hidden items of turns go into its history; of a response that it continues by
    its id the provider gets the last hop's.

    A memory that can't be read leaves the request as it came: the turn must not fail for it.

    Args:
        services: What the process owns.
        request: As the client sent it.
        tenant: Whose it is.
        history: Whether hidden items may be in its history at all.

    Raises:
        RequestError: It has a compaction that pretends to be one of ours.
    """
    texts: list[bytes] = []
    if history:
        request, texts = await _restore_history(services, request, tenant)
    request, answers, continues = await _map_previous(services, request, tenant)
    if not texts and not answers and continues is None:
        return request, NOTHING
    return request, Restored((*texts, *answers), continues)


async def _restore_history(
    services: Services, request: Request, tenant: str
) -> tuple[Request, list[bytes]]:
    if is_fresh(request.body):
        return request, []
    request = expand_compactions(request, services.seal_key, tenant)
    request = without_anchors(request, services.id_key, ANCHOR)
    survey = Survey(input_items(request.body), services.id_key)
    keys = survey.lookup_keys
    groups = await services.joins.find_groups(tenant, keys) if keys else []
    found = restorations(survey, groups)
    texts = [text for one in found if isinstance(one, Insertion) for text in one.texts]
    return restore(request, [*minted_ids(survey), *found]), texts


async def _map_previous(
    services: Services, request: Request, tenant: str
) -> tuple[Request, tuple[bytes, ...], tuple[str, str] | None]:
    """Continue the last hop of the response that the client means.

    Where that hop also called for memory, its provider still lacks the answers.

    Returns:
        The request, the answers, and the two ids where they differ.
    """
    previous = request.body.get("previous_response_id")
    behind = None
    if isinstance(previous, str):
        behind = await services.joins.find_response_id(tenant, previous)
    if behind is None or not behind.hops:
        return request, (), None
    if behind.outputs:
        request = restore(request, [Insertion(0, behind.outputs)])
    last = behind.hops[-1]
    if last == previous:
        return request, behind.outputs, None
    request = request.with_members({"previous_response_id": last})
    return request, behind.outputs, (str(previous), last)
