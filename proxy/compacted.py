"""``POST /v1/responses/compact`` over an upstream that has no such path: a turn of our own.

The request is that of a turn that asks for a compaction, said by the path instead of an item; the
answer is the same one item, in an object of its own.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from pipeline import jsontext
from pipeline.compaction import with_trigger
from pipeline.errors import UpstreamRefusedError
from pipeline.join import JoinRecord
from pipeline.options import ClientForm
from pipeline.splice import JSONAnswer
from proxy.homes import Errand
from proxy.turns import Exchange

if TYPE_CHECKING:
    from pipeline.accepted import Accepted
    from pipeline.request import Request
    from proxy.headers import Headers
    from proxy.sessions import Identity
    from proxy.upstreams import Endpoint

_NO_USAGE: Final = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
"""What is told where the upstream counts nothing: the object must have a usage."""


class CompactedAnswer(JSONAnswer):
    """The one JSON body of a compaction."""

    __slots__ = ()

    def write_response(self, accepted: Accepted, edits: dict[str, Any]) -> None:
        """Write the body.

        Raises:
            UpstreamRefusedError: The provider failed.
        """
        self._end({**accepted.event["response"], **edits})

    def _end(self, response: dict[str, Any]) -> None:
        if response.get("status") == "failed":
            error = response.get("error") or {}
            message, code = error.get("message"), error.get("code")
            raise UpstreamRefusedError(
                str(message or "the provider gave no message"), status=502, code=code
            )
        compacted = {
            "id": response.get("id"),
            "object": "response.compaction",
            "created_at": response.get("created_at"),
            "output": response.get("output"),
            "usage": response.get("usage") or _NO_USAGE,
        }
        self.out = [jsontext.dumps(compacted)]


def compaction_of(
    request: Request, identity: Identity, headers: Headers, endpoint: Endpoint, *, codex: bool
) -> Exchange:
    """Return a request to ``/responses/compact`` as the turn that answers it.

    Args:
        request: As it came.
        identity: Whose it is.
        headers: The client's, without what was presented to us.
        endpoint: The provider that it is meant for.
        codex: Which sort of upstreams it goes to.
    """
    asked = with_trigger(request)
    tenant, session = identity.tenant, identity.session
    return Exchange(
        turn_id=f"turn_{secrets.token_hex(12)}",
        started=time.time(),
        headers=headers,
        raw_path=b"/v1/responses",
        query=b"",
        request=asked,
        identity=identity,
        endpoint=endpoint,
        errand=Errand(codex, tenant, session, headers, asked.body, translated=True),
        protocol="codex" if codex else "responses",
        form=ClientForm(CompactedAnswer, JoinRecord),
    )
