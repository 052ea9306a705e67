"""Tokens of an issuer: whom they name, what they are refused for, and when the issuer's keys are read again."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.gateway import CallError
from fairsched.engines.gateway import config as gateway_config
from fairsched.engines.gateway.identity import CallerNames
from fairsched.engines.gateway.identity.names import NO_PEER
from fairsched.engines.gateway.identity.tokens import Issuer, UnknownKeyError
from fairsched.engines.serving import OTHERS
from fairsched.engines.settings import ConfigError, made
from tests.support.adapters.credentials import AUDIENCE, ISSUER, bearer, forged, jwk, jwks, secret_of, token
from tests.support.adapters.gateway_scenarios import Fake, faked
from tests.support.adapters.http import served
from tests.support.adapters.loops import in_loop, until

KEYS = jwks(jwk("rsa-1"), jwk("ec-1"), jwk("rsa-2"))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> gateway_config.JwtConfig:
    """An issuer whose keys are in a file."""
    path = tmp_path_factory.mktemp("jwks") / "keys.json"
    path.write_bytes(KEYS)
    return gateway_config.JwtConfig(str(path), ISSUER, AUDIENCE, leeway_seconds=0)


def names(config: gateway_config.JwtConfig, **fields: Any) -> CallerNames:
    """The names of callers with tokens."""
    policy = {"policy": "fcfs+hierarchical"} if config.organisation_claim else {}
    settings = {"identify": ("jwt", "key"), "jwt": config, **policy, **fields}
    return CallerNames(gateway_config.GatewayConfig((gateway_config.ServerConfig("http://a", 60),), **settings))


def refused(config: gateway_config.JwtConfig, shown: str) -> str:
    """What a call is told whose token is refused with 401."""
    with pytest.raises(CallError) as caught:
        names(config).of(bearer(shown))
    assert caught.value.status == 401
    return caught.value.message


@pytest.mark.parametrize("kid", ["rsa-1", "ec-1", "rsa-2"])
def test_a_token_names_its_client(keys: gateway_config.JwtConfig, kid: str) -> None:
    """Whichever key of the issuer signed it, in `Authorization` or in Anthropic's header."""
    assert names(keys).of(bearer(token(kid))) == "jwt:ann"
    assert names(keys).of({"x-api-key": token(kid)}) == "jwt:ann"
    assert names(keys).of(bearer(token("ec-1", aud=["other", AUDIENCE]))) == "jwt:ann"


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (lambda: token(exp=1), "the token has expired"),
        (lambda: token(exp=None), "the token has no claim exp"),
        (lambda: token(exp="soon"), "the token cannot be used"),
        (lambda: token(exp=float("inf")), "the token cannot be used"),
        (lambda: token(nbf=1e10), "the token is not valid yet"),
        (lambda: token(iss="https://other.test"), "the token is of another issuer"),
        (lambda: token(iss=None), "the token has no claim iss"),
        (lambda: token(aud="other"), "the token is for another audience"),
        (lambda: token(aud=None), "the token has no claim aud"),
        (lambda: token(aud=[]), "the token"),
        (lambda: token(sub=None), "the token's claim sub is missing"),
        (lambda: token(sub=7), "the token"),
        (lambda: token(sub=["ann"]), "the token"),
        (lambda: token(sub=""), "the token's claim sub is no text of 1 to 128"),
        (lambda: token(sub="a\nb"), "the token's claim sub is no text of 1 to 128 printable"),
        (lambda: token(sub="a" * 129), "the token's claim sub is no text of 1 to 128"),
        (lambda: token("rsa-3"), "the token's issuer has no such key (kid)"),
        (lambda: token("rsa-1", by="rsa-3"), "the token's signature is wrong"),
        (lambda: token("rsa-1", by="ec-1"), "the token's issuer has no such key (kid)"),
        (lambda: token(None), "the token does not say which key of its issuer signed it (kid)"),
        (lambda: token("ec-1", head={"crit": ["exp"]}), "the token"),
        (lambda: token("ed-1"), "a token is signed with RS256 or ES256, and this one is not"),
        (lambda: forged("none"), "a token is signed with RS256 or ES256, and this one is not"),
        (lambda: forged("nOnE"), "a token is signed with RS256 or ES256, and this one is not"),
        (lambda: forged("HS256"), "a token is signed with RS256 or ES256, and this one is not"),
        (lambda: forged("RS256"), "the token's signature is wrong"),
        (lambda: token() + "x", "the token"),
        (lambda: "eyJhbGciOiJSUzI1NiJ9..", "the token"),
        (lambda: "ey.ey.ey", "the token is no JSON Web Token"),
        (lambda: "eyJ" + "b" * 9000 + ".e.e", "the token is no JSON Web Token"),
    ],
)
def test_a_token_that_is_not_to_be_believed_is_refused(keys: gateway_config.JwtConfig, shown: Any, why: str) -> None:
    """With 401 and one line that says what is wrong with it, and names no client."""
    said = refused(keys, shown())
    assert said.startswith(why)
    assert "ann" not in said.split()
    assert "\n" not in said


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40), st.sampled_from(["", "ey", "eyJ"]))
def test_no_text_is_a_token_by_chance(text: str, start: str) -> None:
    """Whatever a caller shows, it is refused with 401, not with an error of ours."""
    issuer = ANY["issuer"]
    for shown in (start + text, f"{start}{text}.{text}.{text}"):
        with pytest.raises(CallError) as caught:
            issuer.of(bearer(shown))
        assert caught.value.status == 401


ANY: dict[str, CallerNames] = {}
"""An issuer, for properties."""


@pytest.fixture(scope="module", autouse=True)
def _issuer(keys: gateway_config.JwtConfig) -> None:
    ANY["issuer"] = names(keys)


def test_only_one_key_need_be_named(tmp_path: Path) -> None:
    """A token that names no key is its issuer's where one key only can have signed it."""
    path = tmp_path / "keys.json"
    path.write_bytes(jwks(jwk("rsa-1"), jwk("ec-1", alg="ES256")))
    config = gateway_config.JwtConfig(str(path), ISSUER, AUDIENCE)
    assert names(config).of(bearer(token(None))) == "jwt:ann"
    assert names(config).of(bearer(token(None, by="ec-1"))) == "jwt:ann"
    path.write_bytes(jwks(jwk("rsa-1", alg="RS384"), jwk("ec-1")))
    assert (
        refused(gateway_config.JwtConfig(str(path), ISSUER, AUDIENCE), token("rsa-1"))
        == "the token's issuer has no such key (kid)"
    )
    path.write_bytes(jwks(jwk("ed-1")))
    config = gateway_config.JwtConfig(str(path), ISSUER, AUDIENCE, algorithms=("EdDSA",))
    assert names(config).of(bearer(token("ed-1"))) == "jwt:ann"


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"{", "is no JSON Web Key Set"),
        (b"[]", "is no JSON Web Key Set"),
        (b"[" * 100_000, "is no JSON Web Key Set"),
        (b'{"keys": {}}', "has no public key"),
        (b'{"keys": [7, {"kty": "RSA"}, {"kty": "oct", "k": "c2VjcmV0"}, {"kty": []}]}', "has no public key"),
        (jwks(jwk("rsa-1", use="enc")), "has no public key"),
        (jwks(jwk("rsa-1", d="AQAB")), "has no public key"),
        (jwks(jwk("ec-1", d=secret_of("ec-1"))), "has no public key"),
        (jwks(jwk("rsa-1", n="!")), "has no public key"),
    ],
)
def test_keys_that_cannot_be_used_are_one_line(tmp_path: Path, document: bytes, why: str) -> None:
    """A file without a public key for signatures is refused by its name; a shared secret or a private key is none."""
    path = tmp_path / "keys.json"
    path.write_bytes(document)
    with pytest.raises(ConfigError, match=why) as caught:
        Issuer(gateway_config.JwtConfig(str(path), ISSUER, AUDIENCE))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"algorithms": ["none"]}, r"algorithms\[0\]: expected one of ES256, .*, not 'none'"),
        ({"algorithms": ["RS256", "HS256"]}, r"algorithms\[1\]: expected one of ES256, .*, not 'HS256'"),
        ({"algorithms": []}, "algorithms: expected a list of length >= 1"),
        ({"audience": ""}, "audience: expected a text of length >= 1"),
        ({"jwks": "https://me:secret@host/keys"}, "jwks is a file"),
        ({"user_claim": "sub"}, "organisation_claim is missing"),
        ({"leeway_seconds": float("nan")}, "leeway_seconds: expected float >= 0"),
        ({"leeway_seconds": -1}, "leeway_seconds: expected float >= 0"),
    ],
)
def test_an_issuer_that_would_let_any_caller_in_is_refused(fields: dict[str, Any], why: str) -> None:
    """No algorithm without a public key can be configured, and no token without an audience."""
    with pytest.raises(ValueError, match=why) as caught:
        made(gateway_config.JwtConfig, {"jwks": "keys.json", "issuer": ISSUER, "audience": AUDIENCE, **fields}, "jwt")
    assert "secret" not in str(caught.value)


def test_keys_and_tokens_are_told_apart(keys: gateway_config.JwtConfig) -> None:
    """An opaque key is looked up as one whether it comes before tokens or after; an expired token is no key; a client
    that lists both is one account."""
    clients = {"ann": gateway_config.ClientConfig((gateway_config.hashed_key("sk-ann"),), jwt=("ann",))}
    for ways in (("jwt", "key"), ("key", "jwt")):
        known = names(keys, identify=ways, clients=clients)
        assert known.of(bearer("sk-ann")) == known.of(bearer(token())) == "ann"
        assert known.of(bearer(token(sub="bob"))) == "jwt:bob"
        for shown in ("sk-bob", token(exp=1), token(exp=1, sub="bob"), ""):
            with pytest.raises(CallError):
                known.of(bearer(shown))


def test_what_happens_to_those_who_are_not_listed_is_declared(keys: gateway_config.JwtConfig) -> None:
    """They are clients of their own, one client, or refused; keys that no client has are told apart from them."""
    clients = {"ann": gateway_config.ClientConfig(jwt=("ann",))}
    assert names(keys, clients=clients, verified_clients="together").of(bearer(token(sub="bob"))) == OTHERS
    strict = names(keys, clients=clients, verified_clients="reject", unknown_clients="together")
    assert strict.of(bearer(token())) == "ann"
    assert strict.of(bearer("sk-any")) == OTHERS
    with pytest.raises(CallError, match="does not know you by your jwt"):
        strict.of(bearer(token(sub="bob")))


ORGANISED: dict[str, Any] = {"organisation_claim": "org", "user_claim": "sub", "client_claim": "app"}


def test_claims_name_organisation_and_user(keys: gateway_config.JwtConfig) -> None:
    """Names say where callers belong, with the weights of the file; the same user of two organisations is two, and a
    client of the file is the caller whose claims name its own place."""
    config = replace(keys, **ORGANISED)
    known = names(
        config,
        organisations={"acme": gateway_config.OrganisationConfig(3, {"ann": 2})},
        clients={"ci": gateway_config.ClientConfig(jwt=("ci",), organisation="acme", user="ann")},
    )
    settings = known._config
    one = known.of(bearer(token(org="acme", app="ide")))
    two = known.of(bearer(token(org="evil", app="ide")))
    assert settings.groups(one) == (("acme", 3), ("ann", 2))
    assert settings.groups(two) == (("evil", 1), ("ann", 1))
    assert one != two
    assert known.of(bearer(token(org="acme", app="ci"))) == "ci"
    assert known.of(bearer(token(org="evil", app="ci"))) == "jwt/evil/ann:ci"
    assert known.of(bearer(token(org="acme", sub="bob", app="ci"))) == "jwt/acme/bob:ci"
    with pytest.raises(CallError, match="the token's claim org is missing"):
        known.of(bearer(token(app="ide")))


@in_loop
async def test_callers_with_tokens_are_served_and_share_by_organisation(keys: gateway_config.JwtConfig) -> None:
    """The server is told their names, the account has them below their organisations, and OpenAI's clients read the
    refusal."""
    config = replace(keys, organisation_claim="org")
    fields = {"identify": ("jwt",), "unknown_clients": "reject", "jwt": config, "policy": "fcfs+hierarchical"}
    async with faked(Fake(), organisations={"acme": gateway_config.OrganisationConfig(2)}, **fields) as (fake, here):
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
        for shown in (token(org="acme"), token(org="acme", sub="bob"), token(org="new")):
            assert (await here.http.post("/v1/chat/completions", json=body, headers=bearer(shown))).status == 200
        places = {client.name: client.place for client in here.account.clients.all}
        assert places["jwt/acme:ann"] == places["jwt/acme:bob"] == (("acme", 2),)
        assert places["jwt/new:ann"] == (("new", 1),)
        answer = await here.http.post("/v1/chat/completions", json=body, headers=bearer(token(org="acme", exp=1)))
        error = {"message": "the token has expired", "type": "invalid_request_error", "param": None}
        assert (answer.status, answer.json()) == (401, {"error": {**error, "code": "invalid_api_key"}})
        assert len(fake.asked) == 3
        assert here.account.outcomes["refused"] == 1


# --- the issuer's keys at a URL ---------------------------------------------------------------------------------------


class Published:
    """An issuer's keys at a URL: what it answers, how often it was asked, and what it waits for."""

    def __init__(self) -> None:
        self.body, self.status, self.asked = jwks(jwk("rsa-1")), 200, 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def get(self, _: web.Request) -> web.Response:
        """Answer as it is told."""
        self.asked += 1
        await self.answers.wait()
        return web.Response(body=self.body, status=self.status)


@asynccontextmanager
async def published() -> AsyncIterator[tuple[Published, str]]:
    """An issuer, and the URL of its keys."""
    here, app = Published(), web.Application()
    app.router.add_get("/keys", here.get)
    async with served(app) as url:
        yield here, f"{url}/keys"


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return what time it is."""
        return self.now


async def told(issuer: Issuer, shown: str) -> Any:
    """The status and message of a refusal, or the client, after the keys were read again if need be."""
    for last in (False, True):
        try:
            return issuer.claims(shown)["sub"]
        except UnknownKeyError as error:
            if last:
                return error.status
            await issuer.refresh()
        except CallError as error:
            return error.status
    raise AssertionError


@in_loop
async def test_an_unknown_key_has_the_keys_read_again_at_a_bounded_rate() -> None:
    """A new key of the issuer works at once; a thousand tokens of unknown keys ask the URL once each `retry_seconds`;
    and a key that the issuer has withdrawn works no more once they are read."""
    async with published() as (source, url):
        clock = Clock()
        issuer = Issuer(gateway_config.JwtConfig(url, ISSUER, AUDIENCE, retry_seconds=10), clock)
        assert await told(issuer, token("rsa-1")) == "ann"
        source.body = jwks(jwk("rsa-2"))
        clock.now = 11
        assert await told(issuer, token("rsa-2")) == "ann"
        assert await told(issuer, token("rsa-1")) == 401
        assert source.asked == 2
        assert {await told(issuer, token("rsa-3")) for _ in range(1000)} == {401}
        assert source.asked == 2
        clock.now = 22
        source.answers.clear()
        waiting = [asyncio.ensure_future(told(issuer, token("rsa-3"))) for _ in range(20)]
        await until(lambda: source.asked == 3)
        waiting[0].cancel()
        source.answers.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert results[1:] == [401] * 19
        assert source.asked == 3


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 500), (b"{", 200), (jwks(), 200), (KEYS + b" " * (2 << 20), 200), (KEYS, 302)],
)
def test_keys_stay_while_the_url_is_away(body: bytes, status: int) -> None:
    """Failed answers, documents without keys and ones that are too long change nothing."""

    @in_loop
    async def run() -> None:
        async with published() as (source, url):
            clock = Clock()
            issuer = Issuer(gateway_config.JwtConfig(url, ISSUER, AUDIENCE), clock)
            assert await told(issuer, token()) == "ann"
            source.body, source.status = body, status
            clock.now = 1000
            await issuer.refresh()
            assert source.asked == 2
            assert await told(issuer, token()) == "ann"
            assert await told(issuer, token("rsa-2")) == 401

    run()


@in_loop
async def test_no_caller_is_blamed_for_an_issuer_that_was_never_there() -> None:
    """While no key was ever read, a token gets 503 with `Retry-After`, not 401, whatever it says."""
    issuer = Issuer(gateway_config.JwtConfig("http://127.0.0.1:1/keys", ISSUER, AUDIENCE))
    assert await told(issuer, token()) == 503
    assert await told(issuer, forged("none")) == 401


@in_loop
async def test_a_gateway_reads_the_keys_of_a_url(keys: gateway_config.JwtConfig) -> None:
    """It has them before the first token comes, and asks for them again when one names another key."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
    async with published() as (source, url):
        fields = {"identify": "jwt", "jwt": replace(keys, jwks=url, retry_seconds=1e-3)}
        async with faked(Fake(), **fields) as (_, here):
            await until(lambda: source.asked == 1)
            source.body = jwks(jwk("ec-1"))
            await asyncio.sleep(0.01)
            for kid in ("ec-1", "ec-1"):
                answer = await here.http.post("/v1/chat/completions", json=body, headers=bearer(token(kid)))
                assert answer.status == 200
            answer = await here.http.post("/v1/chat/completions", json=body, headers=bearer(token("rsa-1")))
            assert answer.status == 401


def test_a_file_of_keys_is_read_again_with_the_configuration(tmp_path: Path) -> None:
    """New keys are there, withdrawn ones are not; a file that cannot be used leaves the keys as they were."""
    path = tmp_path / "keys.json"
    path.write_bytes(jwks(jwk("rsa-1")))
    known = names(gateway_config.JwtConfig(str(path), ISSUER, AUDIENCE))
    config = known._config
    for document, kid in ((jwks(jwk("ec-1")), "ec-1"), (b"nothing", "ec-1")):
        path.write_bytes(document)
        known.configure(config)
        assert known.of(bearer(token(kid))) == "jwt:ann"
        with pytest.raises(CallError):
            known.of(bearer(token("rsa-1")))


@in_loop
async def test_an_unknown_key_in_a_file_is_looked_for_again(tmp_path: Path) -> None:
    """A file that was replaced counts without a signal, when a token names a key that was not there."""
    path = tmp_path / "keys.json"
    path.write_bytes(jwks(jwk("rsa-1")))
    known = names(gateway_config.JwtConfig(str(path), ISSUER, AUDIENCE))
    path.write_bytes(json.dumps({"keys": [jwk("ec-1")]}).encode())
    assert await known.named(bearer(token("ec-1")), NO_PEER) == "jwt:ann"
