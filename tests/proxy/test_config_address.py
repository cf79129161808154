from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from proxy.config_address import is_loopback, points_at_us, resolve_host

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMES = {
    "proxy.lan": ["192.0.2.7"],
    "alias.lan": ["127.0.0.1"],
    "both.lan": ["::1", "127.0.0.1"],
    "127.1": ["127.0.0.1"],
    "0x7f000001": ["127.0.0.1"],
    "elsewhere.example": ["203.0.113.9"],
    "odd.lan": ["not an address"],
}


def resolve(host: str) -> Iterable[str]:
    try:
        return NAMES[host]
    except KeyError:
        raise socket.gaierror(host) from None


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:7688/v1"),
        ("127.0.0.1", "http://localhost:7688/v1"),
        ("127.0.0.1", "http://LOCALHOST.:7688/v1"),
        ("127.0.0.1", "http://api.localhost:7688/v1"),
        ("127.0.0.1", "http://[::1]:7688/v1"),
        ("127.0.0.1", "http://[::ffff:127.0.0.1]:7688/v1"),
        ("127.0.0.1", "http://0.0.0.0:7688/v1"),
        ("127.0.0.1", "http://127.1:7688/"),
        ("127.0.0.1", "http://0x7f000001:7688/"),
        ("127.0.0.1", "http://alias.lan:7688/"),
        ("::1", "https://both.lan:7688/"),
        ("localhost", "http://127.0.0.1:7688"),
        ("0.0.0.0", "http://localhost:7688/v1"),
        ("::", "http://127.0.0.1:7688/v1"),
        ("192.0.2.7", "http://proxy.lan:7688/v1"),
        ("proxy.lan", "http://192.0.2.7:7688/v1"),
    ],
)
def test_every_form_of_our_own_address_is_known(host: str, url: str) -> None:
    assert points_at_us(url, host=host, port=7688, resolve=resolve)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:7689/v1"),
        ("127.0.0.1", "http://elsewhere.example:7688/v1"),
        ("127.0.0.1", "http://unknown.example:7688/v1"),
        ("127.0.0.1", "http://odd.lan:7688/v1"),
        ("0.0.0.0", "http://elsewhere.example:7688/v1"),
        ("192.0.2.7", "http://127.0.0.1:7688/v1"),
    ],
)
def test_other_addresses_are_not(host: str, url: str) -> None:
    assert not points_at_us(url, host=host, port=7688, resolve=resolve)


def test_a_url_without_a_port_has_that_of_its_scheme() -> None:
    assert points_at_us("http://localhost/v1", host="127.0.0.1", port=80, resolve=resolve)
    assert points_at_us("https://localhost/v1", host="127.0.0.1", port=443, resolve=resolve)
    assert not points_at_us("https://localhost/v1", host="127.0.0.1", port=80, resolve=resolve)


def test_names_are_asked_for_only_when_the_ports_agree() -> None:
    def refuse(host: str) -> Iterable[str]:
        raise AssertionError(host)

    assert not points_at_us(
        "https://api.openai.com/v1", host="127.0.0.1", port=7688, resolve=refuse
    )


def test_the_systems_resolver_reads_short_forms() -> None:
    assert list(resolve_host("127.1")) == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "a.localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "proxy.lan"])
def test_beyond_loopback(host: str) -> None:
    assert not is_loopback(host)
