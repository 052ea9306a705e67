"""The conformance suite in virtual time: our gateway passes, a careless one fails, and each failure plays again."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from fractions import Fraction
from functools import partial, wraps
from pathlib import Path
from typing import ParamSpec

import jwt
import pytest

from fairsched.engines import conformance
from fairsched.engines.conformance.script import (
    CERTIFICATE_FLAWS,
    TOKEN_FLAWS,
    HeardAnswer,
    Record,
    ScenarioVerdict,
    ScriptedCall,
    Send,
)
from fairsched.engines.conformance.suite import MockServers, Suite
from fairsched.engines.gateway.config import hashed_key
from fairsched.engines.gateway.identity import CallerNames, Peer
from fairsched.engines.gateway.window.leases import MemoryStore, Store
from tests.support.adapters.careless_gateway import Careless
from tests.support.adapters.http import served
from tests.support.adapters.loops import VirtualLoop
from tests.support.attacks.virtual import gateway

KEYS = conformance.Keys({client: f"sk-{client}" for client in conformance.CLIENTS})
KNOWN_BY_KEYS = "".join(
    f'[client.{client}]\nweight = {weight}\nkeys = ["{hashed_key(KEYS.keys[client])}"]\n'
    for client, weight in conformance.CLIENTS.items()
)
LIMITS = conformance.ScenarioLimits.of(4)
Instance = Callable[[AsyncExitStack, tuple[str, ...], Path], Awaitable[str]]


async def ours(
    stack: AsyncExitStack,
    urls: tuple[str, ...],
    folder: Path,
    store: Store | None = None,
    known: str = KNOWN_BY_KEYS,
    top: str = "",
) -> str:
    """Our gateway with a window of as many calls as the servers work on; of half as many where it shares an account."""
    calls = 2 if store is None else 1
    servers = "".join(
        f'[[server]]\nurl = "{url}"\nwindow_tokens = {50 * calls}\nwindow_requests = {calls}\n' for url in urls
    )
    path = folder / "gateway.toml"
    shared = "" if store is None else '[store]\nurl = "file:///nowhere"\n'
    path.write_text(f'listen = "127.0.0.1:0"\nquantum = 64\n{top}{servers}{known}{shared}')
    url, _ = await stack.enter_async_context(gateway(path, store))
    return url


async def passing(stack: AsyncExitStack, urls: tuple[str, ...], _: Path) -> str:
    """A proxy that passes calls on at once."""
    return await stack.enter_async_context(served(Careless(urls).app()))


async def wrong(stack: AsyncExitStack, urls: tuple[str, ...], _: Path) -> str:
    """A proxy that does all wrong."""
    return await stack.enter_async_context(served(Careless(urls, wrong=True).app()))


@asynccontextmanager
async def standing(folder: Path, *instances: Instance, shows: conformance.Credentials = KEYS) -> AsyncIterator[Suite]:
    """A suite before instances of a gateway, before two mock servers."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(MockServers.serve(2, LIMITS.at_once))
        urls = [await instance(stack, servers.urls, folder) for instance in instances]
        suite = Suite(conformance.Gateways(tuple(urls), shows), servers, LIMITS)
        await suite.ready(5)
        yield suite


P = ParamSpec("P")


def in_virtual_time(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run the test in a loop whose time passes only while everything waits, for callers that look at the clock, too."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = VirtualLoop()

        async def main() -> None:
            await test(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=lambda: loop) as runner:
            patch.setattr(time, "monotonic", loop.time)
            patch.setattr(time, "monotonic_ns", loop.now_ns)
            runner.run(main())

    return run


def results(found: list[conformance.CheckedScenario]) -> Mapping[str, str]:
    """The results, by scenario."""
    return {each.scenario.name: each.verdict.result for each in found}


@in_virtual_time
async def test_our_gateway_passes_all_that_applies_to_one(tmp_path: Path) -> None:
    """One instance passes each scenario but those of two."""
    async with standing(tmp_path, ours) as suite:
        found = results(await suite.run())
    others = ("two-instances", "two-instances-flood", "tokens", "certificates")
    assert found == dict.fromkeys(conformance.SCENARIOS, "passes") | dict.fromkeys(others, "not applicable")


@in_virtual_time
async def test_two_gateways_without_a_shared_account_fail_and_the_file_plays_again(tmp_path: Path) -> None:
    """Two of ours share no credit: weights of 4 and 1 are lost between them, and a flood through both gets more.  The
    file of the failure has the calls, which fail again."""
    path = tmp_path / "failure.json"
    async with standing(tmp_path, ours, ours) as suite:
        found = await suite.run(("weights", "flood", "two-instances", "two-instances-flood"))
        assert results(found) == {
            **dict.fromkeys(("flood", "weights"), "passes"),
            **dict.fromkeys(("two-instances", "two-instances-flood"), "fails"),
        }
        conformance.write_failure(path, found[2], suite.limits, "0")
        script, limits = conformance.read_failure(path)
        assert (script, limits) == (found[2].script, LIMITS)
        assert (await suite.play(script)).verdict.result == "fails"


@in_virtual_time
async def test_two_gateways_with_one_account_pass(tmp_path: Path) -> None:
    """With one account the same two hold weights and shares, wherever the calls of a client come in."""
    instance = partial(ours, store=MemoryStore())
    async with standing(tmp_path, instance, instance) as suite:
        chosen = ("flood", "weights", "two-instances", "two-instances-flood")
        assert results(await suite.run(chosen)) == dict.fromkeys(chosen, "passes")


@in_virtual_time
async def test_a_proxy_without_a_queue_is_unfair_and_otherwise_right(tmp_path: Path) -> None:
    """First come first served fails what is about shares; what passes says that it does; what would show nothing is not
    tried."""
    async with standing(tmp_path, passing) as suite:
        found = await suite.run()
    unfair = ("flood", "weights", "starvation", "outputs")
    assert [name for name, result in results(found).items() if result == "fails"] == list(unfair)
    by_name = {each.scenario.name: each.verdict for each in found}
    assert by_name["starvation"].measured == f"{8 * LIMITS.at_once} calls"
    assert by_name["identity"].reason == "flood does not pass, so that this would show nothing"


@in_virtual_time
async def test_each_fault_of_a_gateway_is_found(tmp_path: Path) -> None:
    """A gateway that does all wrong fails everything that applies, each for its own reason."""
    async with standing(tmp_path, wrong) as suite:
        found = await suite.run(("keys", "cancellation", "streaming", "usage", "stream-errors", "exactly-once"))
    said = {each.scenario.name: (each.verdict.result, each.verdict.measured) for each in found}
    # Of each call that is left two are computed: itself and its twin; calls, not sequences, are counted.
    assert said["keys"] == ("fails", "2 of 2 calls")
    assert said["cancellation"] == ("fails", f"{2 * LIMITS.at_once} of {2 * LIMITS.at_once} calls")
    assert said["streaming"] == ("fails", "0 tokens")
    assert said["usage"] == ("fails", "1 of 2 calls")
    assert said["stream-errors"] == ("fails", "a whole answer")
    assert said["exactly-once"][0] == "fails"
    assert "computed twice" in {each.scenario.name: each.verdict.reason for each in found}["exactly-once"]


@in_virtual_time
async def test_a_gateway_that_believes_headers_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a header makes a caller another client, a flood by many names gets more than its share."""
    believed = CallerNames.of

    def of(self: CallerNames, headers: Mapping[str, str], peer: Peer) -> str:
        return f"~{headers['x-user']}" if "x-user" in headers else believed(self, headers, peer)

    monkeypatch.setattr(CallerNames, "of", of)
    async with standing(tmp_path, ours) as suite:
        assert results(await suite.run(("flood", "identity"))) == {"flood": "passes", "identity": "fails"}


@in_virtual_time
async def test_before_servers_that_are_not_ours_what_callers_hear_is_judged(tmp_path: Path) -> None:
    """Without mock servers of the suite the same gateway passes by the tokens that callers hear, and what only servers
    see does not apply."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(MockServers.serve(2, LIMITS.at_once))
        url = await ours(stack, servers.urls, tmp_path)
        suite = Suite(conformance.Gateways((url,), KEYS), None, LIMITS)
        await suite.ready(5)
        found = results(await suite.run(("flood", "starvation", "cancellation", "exactly-once")))
    assert found == {
        **dict.fromkeys(("flood", "starvation", "exactly-once"), "passes"),
        "cancellation": "not applicable",
    }


@in_virtual_time
async def test_a_gateway_that_refuses_a_client_is_named(tmp_path: Path) -> None:
    """A key that the gateway does not know is said before anything is measured."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(MockServers.serve(2, LIMITS.at_once))
        url = await ours(stack, servers.urls, tmp_path)
        suite = Suite(
            conformance.Gateways((url,), conformance.Keys({**KEYS.keys, "bronze": "sk-other"})), servers, LIMITS
        )
        with pytest.raises(ValueError, match=r"does not answer bronze: HTTP 401"):
            await suite.ready(2)


# --- tokens and certificates ------------------------------------------------------------------------------------------

LISTED = {"token": "jwt", "certificate": "certificates"}


def shown(way: str, folder: Path) -> tuple[conformance.Credentials, Instance]:
    """What callers show, and our gateway that is told of it."""
    known = "".join(
        f'[client.{client}]\nweight = {weight}\n{LISTED[way]} = ["{client}"]\n'
        for client, weight in conformance.CLIENTS.items()
    )
    if way == "token":
        shows: conformance.Credentials = conformance.Tokens(folder)
        known += f'[jwt]\njwks = "{folder}/jwks.json"\nissuer = "https://conform.test"\naudience = "conform"\n'
    else:
        shows = conformance.Certificates(folder, conformance.CLIENTS, ("127.0.0.1",))
        known += f'[tls]\ncertificate = "{folder}/gateway.pem"\nkey = "{folder}/gateway.key"\n'
        known += f'client_ca = "{folder}/authority.pem"\n'
    identify = "jwt" if way == "token" else way
    return shows, partial(ours, known=known, top=f'identify = "{identify}"\n')


@pytest.mark.parametrize("way", LISTED)
@in_virtual_time
async def test_our_gateway_knows_clients_by_tokens_and_by_certificates(way: str, tmp_path: Path) -> None:
    """New tokens with each call, and several certificates, are one client with one share, whatever headers claim; all
    that is wrong is refused; and the same folder is good for the next run."""
    chosen = ("flood", "weights", "identity", "keys", "tokens", "certificates")
    applies = {"flood", "weights", "identity", f"{way}s"}
    shows, instance = shown(way, tmp_path)
    async with standing(tmp_path, instance, shows=shows) as suite:
        found = results(await suite.run(chosen))
    assert found == {name: "passes" if name in applies else "not applicable" for name in chosen}
    again, _ = shown(way, tmp_path)
    async with standing(tmp_path, instance, shows=again) as suite:
        assert results(await suite.run((f"{way}s",))) == {f"{way}s": "passes"}


@pytest.mark.parametrize("way", LISTED)
@in_virtual_time
async def test_a_gateway_that_checks_neither_fails_and_the_file_plays_again(way: str, tmp_path: Path) -> None:
    """One that takes any caller answers every wrong token and certificate; the file of it says what was wrong with
    each, and no token; for callers that are known otherwise it does not apply."""
    path, (shows, _) = tmp_path / "failure.json", shown(way, tmp_path)

    async def secured(stack: AsyncExitStack, urls: tuple[str, ...], folder: Path) -> str:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(folder / "gateway.pem", folder / "gateway.key")
        return await stack.enter_async_context(served(Careless(urls, wrong=True).app(), tls))

    async with standing(tmp_path, wrong if way == "token" else secured, shows=shows) as suite:
        (found,) = await suite.run((f"{way}s",))
        count = len({"token": TOKEN_FLAWS, "certificate": CERTIFICATE_FLAWS}[way])
        assert (found.verdict.result, found.verdict.measured) == ("fails", f"{count} of {count} calls")
        assert "expired: HTTP 200" in found.verdict.reason
        conformance.write_failure(path, found, suite.limits, "0")
        assert "ey" + "J" not in path.read_text()
        script, _ = conformance.read_failure(path)
        assert (await suite.play(script)).verdict == found.verdict
    async with standing(tmp_path, wrong) as suite:
        assert (await suite.play(script)).verdict.reason == "clients are known by keys"


@in_virtual_time
async def test_a_gateway_that_takes_a_token_for_the_client_gives_a_flood_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each token is a client of its own, a flood with a new one for each call is many."""
    shows, instance = shown("token", tmp_path)
    monkeypatch.setattr(CallerNames, "of", lambda self, headers, peer: f"~{headers['authorization'][-16:]}")
    async with standing(tmp_path, instance, shows=shows) as suite:
        assert results(await suite.run(("flood",))) == {"flood": "fails"}


def test_each_wrong_token_is_wrong_in_what_it_says(tmp_path: Path) -> None:
    """A check of all but the one thing takes it, and a whole check takes none but the good one."""
    shows = conformance.Tokens(tmp_path)
    (key,) = jwt.PyJWKSet.from_json((tmp_path / "jwks.json").read_text()).keys
    skipped = {
        "expired": "verify_exp",
        "not valid yet": "verify_nbf",
        "of another issuer": "verify_iss",
        "for another audience": "verify_aud",
        **dict.fromkeys(TOKEN_FLAWS[5:], "verify_signature"),
    }
    assert skipped.keys() == set(TOKEN_FLAWS) - {"missing"}

    def taken(flaw: str, **options: bool) -> bool:
        token = shows.headers(ScriptedCall(1, "gold", 1, flaw=flaw))["authorization"].removeprefix("Bearer ")
        good = {"key": key.key, "algorithms": ["RS256"], "audience": "conform", "issuer": "https://conform.test"}
        if "verify_signature" in options:
            # Only the signature is not looked at.
            options |= dict.fromkeys(("verify_exp", "verify_nbf", "verify_iss", "verify_aud"), True)
        try:
            claims = jwt.decode(token, **good, options=options)  # type: ignore[arg-type]
        except jwt.PyJWTError:
            return False
        return bool(claims["sub"] == "gold")

    assert taken("")
    assert [flaw for flaw in skipped if taken(flaw)] == []
    assert [flaw for flaw, check in skipped.items() if not taken(flaw, **{check: False})] == []
    assert shows.headers(ScriptedCall(1, "gold", 1, flaw="missing")) == {}
    (tmp_path / "issuer.key").write_text("none")
    with pytest.raises(ValueError, match="no private key"):
        conformance.Tokens(tmp_path)


# --- values -----------------------------------------------------------------------------------------------------------


def recorded(*journal: tuple[str, int]) -> Record:
    """A record of calls of "a" (odd) and "b" (even) with this journal."""
    numbers = sorted({number for _, number in journal})
    calls = tuple(ScriptedCall(number, "a" if number % 2 else "b", 4) for number in numbers)
    heard = {number: HeardAnswer(200, done=1) for number in numbers}
    return Record(conformance.CallScript("flood", 0, (Send(calls),)), list(journal), heard, True)


def test_the_gap_is_counted_only_while_both_wait() -> None:
    """Tokens before the second client waits, and after it waits no more, move nothing; weights divide; prompts count
    where they have a price."""
    waits = [("sent", 1), ("sent", 3), ("token", 1), ("sent", 2), ("sent", 4)]
    served_ = [("begun", 1), ("token", 1), ("token", 1), ("token", 1), ("begun", 2), ("token", 2)]
    after = [("begun", 4), ("token", 1), ("token", 1)]
    record = recorded(*waits, *served_, *after)
    assert record.service_gap("a", "b", {"a": 1, "b": 1}) == (Fraction(3), {"a": 3, "b": 1})
    assert record.service_gap("a", "b", {"a": 2, "b": 1}) == (Fraction(3, 2), {"a": 3, "b": 1})
    record.heard[1].prompt_tokens, record.heard[2].prompt_tokens = 5, 30
    assert record.service_gap("a", "b", {"a": 1, "b": 1}, (1, 2)) == (Fraction(32), {"a": 11, "b": 32})
    assert recorded(("sent", 1), ("begun", 1), ("sent", 2)).service_gap("a", "b", {"a": 1, "b": 1})[0] is None


def test_scripts_are_drawn_by_their_seed() -> None:
    """The same seed draws the same calls, another one others; numbers are unique."""
    for scenario in conformance.SCENARIOS.values():
        script = scenario.script(1, LIMITS)
        assert script == scenario.script(1, LIMITS)
        assert len(script.calls) == sum(len(step.calls) for step in script.steps if isinstance(step, Send))
    assert conformance.SCENARIOS["flood"].script(1, LIMITS) != conformance.SCENARIOS["flood"].script(2, LIMITS)


@pytest.mark.parametrize(("field", "value"), [("client", "stranger"), ("flaw", "rotten")])
def test_a_file_with_a_call_that_nobody_can_make_is_refused(field: str, value: str, tmp_path: Path) -> None:
    """By the call's number and what it would show; the same file is read without it."""
    scenario, path = conformance.SCENARIOS["tokens"], tmp_path / "failure.json"
    script = scenario.script(0, LIMITS)
    found = conformance.CheckedScenario(scenario, ScenarioVerdict("fails"), script, Record(script, [], {}, True))
    conformance.write_failure(path, found, LIMITS, "0")
    assert conformance.read_failure(path) == (script, LIMITS)
    document = json.loads(path.read_text())
    document["script"]["steps"][0]["calls"][1][field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=f"call 2: .*{value}"):
        conformance.read_failure(path)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"fairsched": 1}', "\xff", '{"script": {"scenario": "x", "seed": 0, "steps": []}}']
)
def test_a_file_that_is_no_failure_is_refused(text: str, tmp_path: Path) -> None:
    """Its name is said."""
    path = tmp_path / "failure.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"failure\.json"):
        conformance.read_failure(path)
