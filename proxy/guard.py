"""Who may talk to this proxy at all: the rules about Host, Origin and forwarding headers.

A browser page must not reach a proxy on the user's own machine. DNS rebinding gives such a page a
name of its own for 127.0.0.1, so the Host must be one that is ours; any other page gives itself
away by its Origin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.errors import RequestError
from proxy import headers as h

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proxy.headers import Headers

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_WILDCARDS: Final = frozenset({"0.0.0.0", "[::]"})  # noqa: S104 - compared, not bound
_LOCAL_ONLY: Final = ("/ui", "/api")


class Guard:
    """Checks each request before anything else looks at it.

    Args:
        host: The bound address.
        port: The bound port.
        allowed_hosts: Further names that Host may give.
        allowed_origins: Origins that may call.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        allowed_hosts: Iterable[str],
        allowed_origins: Iterable[str],
    ) -> None:
        bound = f"[{host}]" if ":" in host and not host.startswith("[") else host
        own = _LOOPBACK | ({bound} - _WILDCARDS)
        self._hosts = frozenset(name.lower() for name in (*own, *allowed_hosts))
        self._origins = frozenset(
            [f"http://{name}:{port}" for name in own]
            + [origin.rstrip("/").lower() for origin in allowed_origins]
        )

    def check(self, headers: Headers, path: str) -> None:
        """Let a request in.

        Raises:
            RequestError: 403 with the reason.
        """
        hosts = [value for name, value in headers if name.lower() == b"host"]
        if len(hosts) != 1 or self._name(hosts[0]) not in self._hosts:
            raise RequestError(
                "the Host header names no address of this proxy; if it is one, add it to "
                "server.allowed_hosts",
                status=403,
                code="host_not_allowed",
            )
        for name, value in headers:
            if name.lower() == b"origin" and value.decode("latin-1").lower() not in self._origins:
                raise RequestError(
                    "this web origin may not call the proxy; if it should, add it to "
                    "server.allowed_origins",
                    status=403,
                    code="origin_not_allowed",
                )
        if path.startswith(_LOCAL_ONLY) and _is_forwarded(headers):
            raise RequestError(
                "this page is not served through another proxy", status=403, code="forwarded"
            )

    def _name(self, host: bytes) -> str:
        """Return the Host without its port."""
        text = host.decode("latin-1").strip().lower()
        name, colon, port = text.rpartition(":")
        if colon and port.isdigit() and not (text.startswith("[") and not name.endswith("]")):
            return name
        return text


def _is_forwarded(headers: Headers) -> bool:
    return any(
        name.lower() == b"forwarded" or name.lower().startswith(b"x-forwarded-")
        for name, _ in headers
    )


def check_loop(headers: Headers, via: bytes) -> None:
    """Refuse a request that went through this very proxy before.

    Args:
        headers: The request's.
        via: What names this proxy.

    Raises:
        RequestError: 508.
    """
    before = h.find(headers, b"via")
    if before is not None and via in [part.strip() for part in before.split(b",")]:
        raise RequestError(
            "this request came back to the proxy that sent it: an upstream's base_url leads to "
            "this proxy",
            status=508,
            code="loop_detected",
        )
