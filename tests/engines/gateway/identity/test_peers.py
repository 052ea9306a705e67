"""Callers that their connection vouches for: certificates, and a proxy of declared networks that says who they are."""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from fairsched.engines.gateway import CallError
from fairsched.engines.gateway.config import ClientConfig, GatewayConfig, ServerConfig, TlsConfig, hashed_key
from fairsched.engines.gateway.identity import CallerNames, Peer
from fairsched.engines.gateway.servers.upstream import probe
from fairsched.engines.serving import OTHERS
from tests.support.adapters.credentials import Pair, bearer, made
from tests.support.adapters.gateway_scenarios import Fake, faked, world
from tests.support.adapters.http import LOG, LOST, Caller, served
from tests.support.adapters.loops import in_loop

SERVERS = (ServerConfig("http://a", 60),)
KEY = "sk-gold"
CLIENTS = {"gold": ClientConfig((hashed_key(KEY),)), "free": ClientConfig((), certificates=("ann.test",))}
PROXIED: dict[str, Any] = {
    "identify": ("header", "key"),
    "header_from": ("10.0.0.0/8", "::1/128"),
    "clients": {"gold": CLIENTS["gold"]},
}


def names(**fields: Any) -> CallerNames:
    """The names of callers by these settings."""
    return CallerNames(GatewayConfig(SERVERS, **fields))


def proxied(**fields: Any) -> CallerNames:
    """The names of callers behind a proxy."""
    return names(**{**PROXIED, **fields})


# --- the header of a proxy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["10.0.0.1", "10.255.255.255", "::1", "::ffff:10.1.2.3", "::1%lo"])
def test_a_declared_proxy_says_who_calls(address: str) -> None:
    """A client of the file by its name, and others by a name of their own."""
    peer = Peer(address)
    assert proxied().of({"x-client": "gold"}, peer) == "gold"
    assert proxied().of({"x-client": "ann"}, peer) == "header:ann"
    assert proxied(verified_clients="together").of({"x-client": "ann"}, peer) == OTHERS
    with pytest.raises(CallError):
        proxied(verified_clients="reject").of({"x-client": "ann"}, peer)


@pytest.mark.parametrize("address", ["11.0.0.1", "::2", "::ffff:11.1.2.3", "9.255.255.255", "", "here", "10.0.0", None])
def test_from_any_other_peer_the_header_counts_for_nothing(address: str | None) -> None:
    """Without a key the call is refused, and with one it is the key's, whatever its header says, twice too."""
    peer = Peer(address)
    for said in ("gold", "ann"):
        with pytest.raises(CallError, match="does not know you"):
            proxied().of({"x-client": said}, peer)
    headers = CIMultiDict([("X-Client", "free"), ("x-client", "other"), ("authorization", f"Bearer {KEY}")])
    assert proxied().of(headers, peer) == "gold"


def test_a_proxy_that_says_nothing_or_two_things() -> None:
    """Without the header the key decides; two of it are refused, as is a value that is no name."""
    peer = Peer("10.0.0.1")
    assert proxied().of(bearer(KEY), peer) == "gold"
    assert proxied().of({**bearer(KEY), "x-client": " "}, peer) == "gold"
    with pytest.raises(CallError, match="more than one header"):
        proxied().of(CIMultiDict([("x-client", "gold"), ("x-client", "free")]), peer)
    for bad in ("a" * 129, "a\x00b", "\udcff"):
        with pytest.raises(CallError, match="the header x-client is no text of 1 to 128 printable characters"):
            proxied().of({**bearer(KEY), "x-client": bad}, peer)


@given(st.ip_addresses())
def test_the_header_counts_from_declared_networks_only(address: Any) -> None:
    """For any address, by the networks' own arithmetic."""
    first = getattr(address, "ipv4_mapped", None) or address
    inside = str(address) == "::1" or (first.version == 4 and first.packed[0] == 10)
    known = proxied(unknown_clients="together")
    assert known.of({"x-client": "gold"}, Peer(str(address))) == ("gold" if inside else OTHERS)


@in_loop
async def test_the_peer_is_the_connections_and_no_headers() -> None:
    """A gateway on loopback believes a header of loopback and none that says where a call came from before."""
    for network, status in (("127.0.0.0/8", 200), ("10.0.0.0/8", 401)):
        fields = {"identify": "header", "header_from": (network,), "unknown_clients": "reject"}
        async with faked(Fake(), **fields) as (_, here):
            body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
            headers = {"x-client": "ann", "x-forwarded-for": "10.0.0.1", "forwarded": "for=10.0.0.1"}
            assert (await here.http.post("/v1/chat/completions", json=body, headers=headers)).status == status


# --- certificates -----------------------------------------------------------------------------------------------------


def shown(*common: str, others: tuple[tuple[str, str], ...] = ()) -> Peer:
    """A peer with a certificate, as TLS tells it."""
    return Peer("1.2.3.4", {"subject": tuple((("commonName", each),) for each in common), "subjectAltName": others})


def certified(kind: str = "CN", **fields: Any) -> CallerNames:
    """The names of callers with certificates."""
    tls = TlsConfig("a.pem", "a.key", "ca.pem", kind)  # type: ignore[arg-type]
    return names(**{"identify": ("certificate", "key"), "tls": tls, "clients": CLIENTS, **fields})


def test_the_declared_name_of_a_certificate_is_the_client() -> None:
    """Its common name or one of its alternative names, of which there is one; a client of the file lists it."""
    assert certified().of({}, shown("bob.test")) == "certificate:bob.test"
    assert certified().of({}, shown("ann.test")) == "free"
    for kind, value in (("DNS", "ann.test"), ("URI", "spiffe://test/ann"), ("email", "ann@test")):
        known = certified(kind, clients={})
        others = (("IP Address", "1.2.3.4"), (kind, value))
        assert known.of({}, shown("bob.test", others=others)) == f"certificate:{value}"
        with pytest.raises(CallError, match=f"the certificate has no names of kind {kind}"):
            known.of({}, shown("bob.test"))
        with pytest.raises(CallError, match=f"the certificate has 2 names of kind {kind}"):
            known.of({}, shown(others=((kind, "a"), (kind, "b"))))
    for peer in (shown(), shown("a", "b"), shown(""), shown("a\nb"), shown("a" * 129)):
        with pytest.raises(CallError) as caught:
            certified().of(bearer(KEY), peer)
        assert caught.value.status == 401


def test_a_caller_without_a_certificate_may_show_something_else() -> None:
    """A key, where keys are a way; otherwise it is refused.  Of a key and a certificate the first way decides."""
    assert certified().of(bearer(KEY), Peer("1.2.3.4", {})) == "gold"
    assert certified().of(bearer(KEY), shown("bob.test")) == "certificate:bob.test"
    assert certified(identify=("key", "certificate")).of(bearer(KEY), shown("bob.test")) == "gold"
    with pytest.raises(CallError, match="does not know you"):
        certified(identify="certificate").of(bearer(KEY), Peer())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a gateway's certificate, and certificates of callers."""
    folder = tmp_path_factory.mktemp("certificates")
    here = IPv4Address("127.0.0.1")
    made(folder, "authority", common=("authority",))
    made(folder, "other", common=("other",))
    made(folder, "gateway", common=("gateway",), server=here, by="authority")
    made(folder, "ann", common=("ann.test",), by="authority")
    made(folder, "bob", common=("bob.test",), by="authority")
    made(folder, "old", common=("ann.test",), by="authority", days=-1)
    made(folder, "stranger", common=("ann.test",), by="other")
    made(folder, "posing", common=("authority",))
    return folder


def context(folder: Path, name: str | None) -> ssl.SSLContext:
    """What a caller with this certificate has."""
    found = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    if name is not None:
        found.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return found


@in_loop
async def test_callers_are_known_by_their_certificates(folder: Path) -> None:
    """Through TLS: the file's client, a caller with a name of its own, one without a certificate, who gets 401; one
    that another authority signed, that has expired, or that is a server's gets no answer at all."""
    gateway = Pair(str(folder / "gateway.pem"), str(folder / "gateway.key"))
    tls = TlsConfig(gateway.certificate, gateway.key, str(folder / "authority.pem"))
    fields = {"identify": "certificate", "unknown_clients": "reject", "clients": {"free": CLIENTS["free"]}, "tls": tls}
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
    async with faked(Fake(), **fields) as (_, here):
        url = f"https://127.0.0.1:{here.http.url.port}"
        statuses: dict[str, int | None] = {}
        for name in (None, "ann", "bob", "old", "stranger", "posing", "gateway"):
            async with Caller(url, tls=context(folder, name)) as http:
                try:
                    answer = await http.post("/v1/chat/completions", json=body, headers={"x-client": "free"})
                    statuses[str(name)] = answer.status
                except LOST:
                    statuses[str(name)] = None
        refused = dict.fromkeys(("old", "stranger", "posing", "gateway"))
        assert statuses == {"None": 401, "ann": 200, "bob": 200, **refused}
        served = {client.name for client in here.account.clients.all}
        assert served == {"free", "certificate:bob.test"}


# --- the other side: servers ------------------------------------------------------------------------------------------


@asynccontextmanager
async def secured(folder: Path, app: web.Application) -> AsyncIterator[int]:
    """The port of a server that wants a certificate of the authority."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "authority.pem"))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(folder / "gateway.pem", folder / "gateway.key")
    runner = web.AppRunner(app, access_log=None, logger=LOG, shutdown_timeout=1.0)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await web.SockSite(runner, listener, ssl_context=tls).start()
        try:
            yield listener.getsockname()[1]
        finally:
            await runner.cleanup()


@in_loop
async def test_servers_with_an_authority_of_their_own_are_called(folder: Path) -> None:
    """With its authority and a certificate that it takes, a server answers calls and its health path; without either a
    call ends with 502, and no byte of it is sent."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
    ca, ann, stranger = (str(folder / f"{name}.pem") for name in ("authority", "ann", "stranger"))
    fake = Fake()
    async with secured(folder, fake.app) as port:
        url = f"https://127.0.0.1:{port}"
        for files, well in (
            ((ca, ann, str(folder / "ann.key")), True),
            ((ca, None, None), False),
            ((ca, stranger, str(folder / "stranger.key")), False),
            ((None, ann, str(folder / "ann.key")), False),
            ((stranger, ann, str(folder / "ann.key")), False),
        ):
            server = ServerConfig(url, 1000, 64, None, "/v1/models", False, *files)
            async with world(url, servers=(server,)) as here:
                (upstream,) = here.account.upstreams()
                async with ClientSession() as http:
                    assert (await probe(http, upstream, "/v1/models") is None) == well
                answer = await here.http.post("/v1/chat/completions", json=body, headers={"x-client": "a"})
                assert answer.status == (200 if well else 502)
        assert len(fake.asked) == 1


@in_loop
async def test_files_that_are_gone_are_the_gateways_fault_and_no_callers(folder: Path, tmp_path: Path) -> None:
    """A call gets 502 as from a server that failed, and another server is tried."""
    server = ServerConfig("https://127.0.0.1:1", 1000, 64, health="", ca=str(tmp_path / "gone.pem"))
    fake = Fake()
    async with served(fake.app) as url:
        both = (server, ServerConfig(url, 1000, 64, health=""))
        async with world(url, servers=both, router="round-robin") as here:
            for _ in range(4):
                assert (await here.ask()).status == 200
    assert len(fake.asked) == 4
