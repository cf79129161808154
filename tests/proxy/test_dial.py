"""Ways to a provider: proxies from the environment, names, tunnels, TLS. On both event loops."""

from __future__ import annotations

import socket
import ssl
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import proxy.dial
from pipeline.errors import UpstreamError
from proxy.dial import Origin, environment_proxy, parse_url, tls_context
from proxy.upstream import UpstreamRequest
from tests import pki
from tests.proxy import transports
from tests.upstreams import Close, Reset, ScriptedProvider, Stall, Step, Tunnel, head, response

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.both_loops

transport = partial(transports.transport, max_connections=1)


async def fetch(client: transports.AnyTransport, url: str) -> bytes:
    asked = UpstreamRequest("POST", url, [(b"x", b"1")], b"body")
    return await transports.whole(await client.open(asked))


@pytest.mark.anyio
@pytest.mark.usefixtures("kind")
class TestTLS:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    async def test_a_private_authority(self, kind: str, tmp_path: Path, host: str) -> None:
        serving = pki.serving(tmp_path)
        context = tls_context(ca_file=tmp_path / "ca.pem")
        replies = [response(200, bytes(1 << 20)), response(200, b"again")]
        async with (
            ScriptedProvider(replies, tls=serving) as provider,
            transport(tls=context) as client,
        ):
            url = f"https://{host}:{provider.port}"
            assert await fetch(client, url) == bytes(1 << 20)
            assert await fetch(client, url) == b"again"
            assert provider.connections_opened.value == transports.connections(kind, 2)

    async def test_an_upload_over_tls(self, tmp_path: Path) -> None:
        serving = pki.serving(tmp_path)
        context = tls_context(ca_file=tmp_path / "ca.pem")
        body = bytes(range(256)) * (32 << 10)
        async with (
            ScriptedProvider([response()], tls=serving) as provider,
            transport(tls=context) as client,
        ):
            answer = await client.open(UpstreamRequest("POST", provider.url, [], body))
            await answer.close()
            assert provider.requests[0].body == body

    async def test_a_client_certificate(self, tmp_path: Path) -> None:
        serving = pki.serving(tmp_path, ask_client=True)
        _, _, certificate = pki.write(tmp_path)
        context = tls_context(ca_file=tmp_path / "ca.pem", certificate=certificate)
        async with ScriptedProvider(default=response(200, b"ok"), tls=serving) as provider:
            async with transport(tls=context) as client:
                assert await fetch(client, provider.url) == b"ok"
            async with transport(tls=tls_context(ca_file=tmp_path / "ca.pem")) as client:
                with pytest.raises(UpstreamError):
                    await fetch(client, provider.url)

    async def test_an_unknown_authority(self, tmp_path: Path) -> None:
        async with (
            ScriptedProvider(tls=pki.serving(tmp_path)) as provider,
            transport() as client,
        ):
            with pytest.raises(UpstreamError, match="no TLS with the provider at") as caught:
                await fetch(client, provider.url)
            assert "issuer" in caught.value.message or "self" in caught.value.message

    async def test_another_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        serving = pki.serving(tmp_path)
        async with ScriptedProvider(tls=serving) as provider:
            resolve(monkeypatch, None)
            async with transport(tls=tls_context(ca_file=tmp_path / "ca.pem")) as client:
                with pytest.raises(UpstreamError, match="Hostname mismatch"):
                    await fetch(client, f"https://elsewhere.test:{provider.port}")

    async def test_no_tls_at_all(self) -> None:
        async with ScriptedProvider(greeting=head(400)) as provider, transport() as client:
            with pytest.raises(UpstreamError, match="no TLS with the provider at"):
                await fetch(client, f"https://127.0.0.1:{provider.port}")
            await provider.connections_closed.reaches(1)

    async def test_a_handshake_that_never_ends(self) -> None:
        context = tls_context()  # reading its files takes part of the time
        async with ScriptedProvider([[Stall()]]) as provider:
            async with transport(tls=context, connect_seconds=0.5) as client:
                with pytest.raises(UpstreamError, match="did not accept a connection") as caught:
                    await fetch(client, f"https://127.0.0.1:{provider.port}")
                assert caught.value.status == 504
            await provider.connections_closed.reaches(1)

    def test_files_that_are_not_there_or_not_pem(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="No such file"):
            tls_context(ca_file=tmp_path / "missing.pem")
        (tmp_path / "odd.pem").write_text("rubbish")
        with pytest.raises(ssl.SSLError):
            tls_context(ca_file=tmp_path / "odd.pem")

    def test_the_default_trusts_somebody_and_checks_names(self) -> None:
        context = tls_context()
        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED


def resolve(monkeypatch: pytest.MonkeyPatch, result: OSError | None) -> None:
    """Let every name stand for loopback, or for an error."""

    async def addresses(host: object, *_: object, **__: object) -> list[tuple[object, ...]]:
        if result is not None:
            raise result
        port = host.port if isinstance(host, Origin) else 0  # httpx keeps the one it asked for
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(proxy.dial, "_addresses", addresses)
    monkeypatch.setattr(anyio._core._sockets, "getaddrinfo", addresses)


@pytest.mark.anyio
@pytest.mark.usefixtures("kind")
class TestNames:
    async def test_a_name_that_does_not_resolve(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resolve(monkeypatch, socket.gaierror(socket.EAI_NONAME, "unknown"))
        async with transport() as client:
            with pytest.raises(UpstreamError, match="could not be resolved") as caught:
                await fetch(client, "http://provider.test")
            assert caught.value.status == 502

    async def test_localhost_resolves_and_ipv6_is_tried(self) -> None:
        async with ScriptedProvider([response(200, b"ok")]) as provider, transport() as client:
            assert await fetch(client, f"http://localhost:{provider.port}") == b"ok"
            assert provider.requests[0].header("host") == f"localhost:{provider.port}".encode()

    async def test_no_route(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resolve(monkeypatch, OSError(113, "No route to host"))
        async with transport() as client:
            with pytest.raises(UpstreamError, match=r"no connection to .*: No route to host"):
                await fetch(client, "http://provider.test")


@pytest.mark.anyio
@pytest.mark.usefixtures("kind")
class TestProxies:
    async def test_plain_http_goes_as_a_whole_url(self) -> None:
        async with ScriptedProvider(default=response(200, b"ok")) as near:
            url = f"http://user:p%40ss@127.0.0.1:{near.port}"
            async with transport(environment={"HTTP_PROXY": url}) as client:
                assert await fetch(client, "http://provider.test/v1//x%2F?q") == b"ok"
                assert await fetch(client, "http://provider.test:8080") == b"ok"
            request = near.requests[0]
            assert request.target == b"http://provider.test/v1//x%2F?q"
            assert request.header("host") == b"provider.test"
            assert request.header("proxy-authorization") == b"Basic dXNlcjpwQHNz"
            assert near.requests[1].target == b"http://provider.test:8080/"

    async def test_https_goes_through_a_tunnel(self, kind: str, tmp_path: Path) -> None:
        serving = pki.serving(tmp_path)
        replies = [response(200, b"one"), response(200, b"two")]
        async with ScriptedProvider(replies, tls=serving) as far:
            tunnel = [head(200, [("connection", "close")]), Tunnel(far.port)]
            async with ScriptedProvider([tunnel, tunnel]) as near:
                environment = {"https_proxy": f"http://u:p@127.0.0.1:{near.port}/"}
                context = tls_context(ca_file=tmp_path / "ca.pem")
                async with transport(tls=context, environment=environment) as client:
                    assert await fetch(client, "https://provider.test/a?b") == b"one"
                    assert await fetch(client, "https://provider.test/a?b") == b"two"
                connect = near.requests[0]
                assert (connect.method, connect.target) == ("CONNECT", b"provider.test:443")
                accept = [] if kind == "own" else [(b"accept", b"*/*")]
                assert [(name.lower(), value) for name, value in connect.headers] == [
                    (b"host", b"provider.test:443"),
                    *accept,
                    (b"proxy-authorization", b"Basic dTpw"),
                ]
                assert far.requests[0].target == b"/a?b"
                assert far.requests[0].header("proxy-authorization") is None
                assert near.connections_opened.value == transports.connections(kind, 2)

    async def test_tls_inside_of_tls(self, tmp_path: Path) -> None:
        serving = pki.serving(tmp_path)
        async with ScriptedProvider([response(200, b"far")], tls=serving) as far:
            tunnel: list[Step] = [head(200), Tunnel(far.port)]
            async with ScriptedProvider([tunnel], tls=serving) as near:
                environment = {"ALL_PROXY": f"https://localhost:{near.port}"}
                context = tls_context(ca_file=tmp_path / "ca.pem")
                async with transport(tls=context, environment=environment) as client:
                    assert await fetch(client, "https://provider.test/") == b"far"

    @pytest.mark.parametrize(
        ("reply", "message"),
        [
            (response(407, b"who are you?"), r"the proxy at .* refused a tunnel to .* \(407\)"),
            (response(302), r"refused a tunnel to provider.test:443 \(302\)"),
            ([Close()], "the proxy at .* closed the connection before its answer"),
            ([Reset()], "the proxy at .* reset the connection before its answer"),
            ([b"rubbish\r\n\r\n"], "the proxy at .* sent what is not HTTP"),
        ],
    )
    async def test_tunnels_that_do_not_come_about(self, reply: list[Step], message: str) -> None:
        async with ScriptedProvider([reply]) as near:
            environment = {"https_proxy": f"http://user:secret@127.0.0.1:{near.port}"}
            async with transport(environment=environment) as client:
                with pytest.raises(UpstreamError, match=message) as caught:
                    await fetch(client, "https://provider.test/")
                assert "secret" not in caught.value.message
            await near.connections_closed.reaches(1)

    async def test_a_local_provider_is_never_proxied(self) -> None:
        async with ScriptedProvider([response(200, b"ok")]) as provider:
            environment = {"all_proxy": "http://127.0.0.1:1"}
            async with transport(environment=environment) as client:
                assert await fetch(client, provider.url) == b"ok"


class TestEnvironment:
    ORIGIN = Origin("https", "api.provider.test", 443)

    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({}, None),
            ({"HTTPS_PROXY": "http://p:1"}, "p:1"),
            ({"https_proxy": "http://a:1", "HTTPS_PROXY": "http://b:1"}, "a:1"),
            ({"https_proxy": "", "HTTPS_PROXY": "http://b:1"}, "b:1"),
            ({"HTTP_PROXY": "http://p:1"}, None),
            ({"ALL_PROXY": "p"}, "p:80"),
            ({"ALL_PROXY": "https://[::1]:3128/"}, "[::1]:3128"),
            ({"ALL_PROXY": "p:1", "NO_PROXY": "*"}, None),
            ({"ALL_PROXY": "p:1", "NO_PROXY": "other, provider.test"}, None),
            ({"ALL_PROXY": "p:1", "no_proxy": ".PROVIDER.test"}, None),
            ({"ALL_PROXY": "p:1", "no_proxy": "api.provider.test:443"}, None),
            ({"ALL_PROXY": "p:1", "no_proxy": "api.provider.test:80"}, "p:1"),
            ({"ALL_PROXY": "p:1", "no_proxy": "vider.test,,test.api"}, "p:1"),
        ],
    )
    def test_what_counts(self, environment: dict[str, str], expected: str | None) -> None:
        proxy_ = environment_proxy(self.ORIGIN, environment)
        assert (proxy_ and proxy_.origin.authority) == expected

    @pytest.mark.parametrize(
        ("host", "no_proxy", "proxied"),
        [
            ("10.1.2.3", "10.0.0.0/8", False),
            ("10.1.2.3", "11.0.0.0/8,x/y,10.1.2.4", True),
            ("10.1.2.3", "10.1.2.3", False),
            ("fd00::1", "fd00::/8", False),
            ("127.0.0.1", "", False),
            ("::1", "", False),
            ("localhost", "", False),
            ("my.localhost", "", False),
            ("notlocalhost", "", True),
        ],
    )
    def test_addresses_and_networks(self, host: str, no_proxy: str, *, proxied: bool) -> None:
        environment = {"http_proxy": "http://p", "no_proxy": no_proxy}
        found = environment_proxy(Origin("http", host, 80), environment)
        assert (found is not None) == proxied

    @pytest.mark.parametrize("url", ["socks5://p:1", "http://", "http://u:secret@:1", "http://p:x"])
    def test_proxies_that_can_not_be_used(self, url: str) -> None:
        with pytest.raises(UpstreamError, match="the environment names for https") as caught:
            environment_proxy(self.ORIGIN, {"ALL_PROXY": url})
        assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "origin", "target"),
    [
        ("HTTP://Provider.TEST/A", Origin("http", "provider.test", 80), b"/A"),
        ("https://x:8443?q", Origin("https", "x", 8443), b"/?q"),
        ("https://[2001:db8::1]/", Origin("https", "2001:db8::1", 443), b"/"),
        ("http://bücher.test/ü", Origin("http", "xn--bcher-kva.test", 80), "/ü".encode()),
    ],
)
def test_urls(url: str, origin: Origin, target: bytes) -> None:
    assert parse_url(url) == (origin, target)
    assert parse_url(url.encode()) == (origin, target)


@pytest.mark.parametrize(
    ("origin", "host", "authority"),
    [
        (Origin("http", "x", 80), b"x", "x:80"),
        (Origin("https", "x", 80), b"x:80", "x:80"),
        (Origin("https", "::1", 443), b"[::1]", "[::1]:443"),
    ],
)
def test_origins_name_themselves(origin: Origin, host: bytes, authority: str) -> None:
    assert (origin.host_header, origin.authority) == (host, authority)


@given(st.binary(max_size=40))
def test_every_target_survives_or_is_refused(path: bytes) -> None:
    try:
        _, target = parse_url(b"http://x/" + path)
    except UpstreamError:
        assert min(path) <= 0x20 or 0x7F in path
    else:
        assert target == b"/" + path.partition(b"#")[0]
