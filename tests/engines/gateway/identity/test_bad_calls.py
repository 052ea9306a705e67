"""Bad calls of callers of every way: each is refused as a call with a key is, and leaves nothing behind."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import IPv4Address
from typing import Any

import attrs
import pytest

from fairsched.engines.gateway import config as gateway_config
from tests.support.adapters.credentials import AUDIENCE, ISSUER, bearer, jwk, jwks, made, token
from tests.support.adapters.gateway_scenarios import Fake, World, faked
from tests.support.adapters.http import Caller
from tests.support.adapters.loops import in_loop

BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
CHAT = "/v1/chat/completions"


@attrs.frozen
class Known:
    """A way to be known: what a gateway is told of it, and what a good caller and a bad one show."""

    fields: dict[str, Any]
    good: dict[str, str]
    bad: dict[str, str]
    tls: ssl.SSLContext | None = None

    @asynccontextmanager
    async def gateway(self, fake: Fake, **fields: Any) -> AsyncIterator[tuple[World, Caller]]:
        """A gateway that knows its callers so, and one of them."""
        limits = gateway_config.LimitConfig(body_bytes=2000, header_bytes=4096)
        settings = {"unknown_clients": "reject", "limits": limits, **self.fields, **fields}
        async with faked(fake, **settings) as (_, here), AsyncExitStack() as stack:
            scheme = "http" if self.tls is None else "https"
            url = f"{scheme}://127.0.0.1:{here.http.url.port}"
            yield here, await stack.enter_async_context(Caller(url, tls=self.tls))


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Known]:
    """Each way, by its name."""
    folder = tmp_path_factory.mktemp("ways")
    (folder / "keys.json").write_bytes(jwks(jwk("ec-1")))
    made(folder, "authority", common=("authority",))
    gateway = made(folder, "gateway", common=("gateway",), server=IPv4Address("127.0.0.1"), by="authority")
    ann = made(folder, "ann", common=("ann",), by="authority")
    context = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    context.load_cert_chain(ann.certificate, ann.key)
    tls = gateway_config.TlsConfig(gateway.certificate, gateway.key, str(folder / "authority.pem"))
    config = gateway_config.JwtConfig(str(folder / "keys.json"), ISSUER, AUDIENCE)
    clients = {"ann": gateway_config.ClientConfig((gateway_config.hashed_key("sk-ann"),))}
    proxy = {"identify": "header", "header_from": ("127.0.0.0/8",)}
    return {
        "key": Known({"identify": "key", "clients": clients}, bearer("sk-ann"), bearer("sk-bob")),
        "jwt": Known({"identify": "jwt", "jwt": config}, bearer(token("ec-1")), bearer(token("ec-1", exp=1))),
        "header": Known(proxy, {"x-client": "ann"}, {"x-client": "a" * 129}),
        "certificate": Known({"identify": ("certificate", "key"), "tls": tls}, {}, bearer("sk-bob"), context),
    }


EACH_WAY = pytest.mark.parametrize("way", ["key", "jwt", "header", "certificate"])


@EACH_WAY
def test_bad_callers_are_refused_before_their_bodies_are_read(ways: dict[str, Known], way: str) -> None:
    """With 401 in the form of their endpoint, and no place among the clients; two headers of a kind get 400, as
    one that is too long."""
    known = ways[way]
    context = None if known.tls is None else ssl.create_default_context(cafile=known.fields["tls"].client_ca)
    shown = [f"{name}: {value}\r\n" for name, value in known.bad.items()]
    heads = [
        (b"401", "".join(shown)),
        (b"400", "".join(shown) * 2),
        (b"400", f"authorization: Bearer {'a' * 5000}\r\n"),
    ]

    @in_loop
    async def run() -> None:
        async with known.gateway(Fake()) as (here, http):
            before = [client.name for client in here.account.clients.all]
            for status, head in heads:
                text = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{head}content-length: 1500\r\n\r\n"
                reader, writer = await asyncio.open_connection("127.0.0.1", http.url.port, ssl=context)
                writer.write(text.encode())
                async with asyncio.timeout(60):
                    assert (await reader.readline()).split()[1] == status
                writer.close()
            assert [client.name for client in here.account.clients.all] == before

    run()


@in_loop
async def test_anthropics_clients_read_why_a_token_is_refused(ways: dict[str, Known]) -> None:
    """At `/v1/messages` a refusal has their form."""
    async with ways["jwt"].gateway(Fake()) as (_, http):
        answer = await http.post("/v1/messages", json=BODY, headers={"x-api-key": token("ec-1", exp=1)})
        said = {"type": "authentication_error", "message": "the token has expired"}
        assert (answer.status, answer.json()) == (401, {"type": "error", "error": said})
