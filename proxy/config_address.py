"""Which addresses are our own: the guard against a proxy that is its own upstream."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, TypeAlias
from urllib.parse import urlsplit

Address: TypeAlias = IPv4Address | IPv6Address
Resolve: TypeAlias = Callable[[str], Iterable[str]]
"""Name to the texts of its addresses; raises ``OSError`` where there are none."""

LOOPBACK: Final = frozenset({ip_address("127.0.0.1"), ip_address("::1")})
_PORTS: Final = {"http": 80, "https": 443}


def resolve_host(host: str) -> Iterable[str]:
    """Ask the system's resolver, which also reads ``127.1`` and ``0x7f000001``."""
    return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}


def is_loopback(host: str) -> bool:
    """Tell whether listening on ``host`` is reachable from this machine alone."""
    return _is_loopback_name(host) or ((own := _literal(host)) is not None and own.is_loopback)


def points_at_us(url: str, *, host: str, port: int, resolve: Resolve = resolve_host) -> bool:
    """Tell whether an upstream's URL leads back to the address that we listen on.

    Args:
        url: An ``http`` or ``https`` URL with a host.
        host: What we listen on: an address or a name.
        port: The port that we listen on.
        resolve: Asked about names only, and only when the ports agree.
    """
    parts = urlsplit(url)
    if (parts.port or _PORTS[parts.scheme]) != port:
        return False
    theirs = _addresses(parts.hostname or "", resolve)
    ours = _addresses(host, resolve)
    if any(own.is_unspecified for own in ours):
        return any(_is_here(address) for address in theirs)
    if any(own.is_loopback for own in ours):
        return any(address.is_loopback or address.is_unspecified for address in theirs)
    return not ours.isdisjoint(theirs)


def _addresses(host: str, resolve: Resolve) -> frozenset[Address]:
    if _is_loopback_name(host):
        return LOOPBACK
    literal = _literal(host)
    if literal is not None:
        return frozenset({literal})
    try:
        return frozenset(filter(None, map(_literal, resolve(host))))
    except (OSError, UnicodeError):
        return frozenset()  # what has no address leads nowhere, least of all here


def _is_loopback_name(host: str) -> bool:
    name = host.rstrip(".").lower()
    return name == "localhost" or name.endswith(".localhost")


def _literal(host: str) -> Address | None:
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _is_here(address: Address) -> bool:
    """Tell whether an interface of this machine has the address: then it can be bound."""
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
