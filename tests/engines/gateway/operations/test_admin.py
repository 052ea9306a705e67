"""What those who run a gateway see and do: why calls wait, weights that change, the drain."""

import asyncio
from pathlib import Path

import pytest

from fairsched.engines.gateway import gateway_policy
from fairsched.engines.gateway.config import ClientConfig, GatewayConfig, ServerConfig
from fairsched.engines.gateway.window import Share, Window, credit, waits
from fairsched.model.request import Client
from fairsched.policies.guarantees import SECOND_NS
from fairsched.policies.registry import ROUTERS
from tests.support.adapters.gateway_processes import ADMIN as PROCESS_ADMIN
from tests.support.adapters.gateway_processes import ask, caller, gateway, server, servers_text, status
from tests.support.adapters.gateway_scenarios import ADMIN, Fake, World, faked, world
from tests.support.adapters.http import Answered
from tests.support.adapters.loops import in_loop, until

KEY = {"authorization": f"Bearer {ADMIN}"}
CLIENTS = {"a": ClientConfig(), "b": ClientConfig(weight=2)}


async def weigh(here: World, weights: object, key: dict[str, str] = KEY) -> Answered:
    """Other weights."""
    return await here.http.post("/gateway/weights", json=weights, headers=key)


def test_the_reasons_are_the_windows() -> None:
    """Of two clients behind a call that fills the window: the one whose call that is has used its credit and owes, the
    other's first call is next and waits for room; a call that came later waits for the order."""
    policy = gateway_policy(GatewayConfig((ServerConfig("http://h:1", 100, 1),), quantum=4), Path("test.toml"))
    window = Window(policy, ROUTERS["join-shortest-queue"], [Share(100, 1)])
    a, b, c = clients = [Client(i, name) for i, name in enumerate("abc")]
    window.arrive(0, a.id, 8, 40, 0)
    assert [placement.request_id for placement in window.admit(0)] == [0]
    window.produced(0, 30, SECOND_NS)
    window.charge(SECOND_NS)
    for request_id, client in enumerate((a, b, b, c), 1):
        window.arrive(request_id, client.id, 8, 8, request_id * SECOND_NS)
    assert window.admit(4 * SECOND_NS) == []
    assert waits(window, clients, 6 * SECOND_NS) == {
        "a": {"calls": 1, "seconds": 5.0, "why": "credit"},
        "b": {"calls": 2, "seconds": 4.0, "why": "room"},
        "c": {"calls": 1, "seconds": 2.0, "why": "order"},
    }
    assert credit(window, clients)["a"] < -50 < credit(window, clients)["b"]
    window.finish(0, 8, 30, 6 * SECOND_NS)
    assert [placement.request_id for placement in window.admit(6 * SECOND_NS)] == [2]
    assert waits(window, clients, 6 * SECOND_NS)["b"]["calls"] == 1


@in_loop
async def test_the_status_says_why_calls_wait() -> None:
    """Behind a call that fills the window one of the same client waits for room; when all is served, none waits."""
    async with faked(Fake(held=True), clients=CLIENTS, window_requests=1) as (fake, here):
        calls = [asyncio.ensure_future(here.ask("a")) for _ in range(2)]
        await until(lambda: here.account.window.waiting == 1)
        assert {name: wait["why"] for name, wait in here.status["waits"].items()} == {"a": "room"}
        fake.answers.set()
        await asyncio.gather(*calls)
        await here.emptied()
        said = here.status
        assert said["waits"] == {}
        assert set(said["credit"]) >= {"a", "b"}


@in_loop
async def test_without_a_server_that_is_the_reason() -> None:
    """A call whose servers are all down waits for one."""
    async with faked(Fake(held=True), clients=CLIENTS, window_requests=1) as (fake, here):
        calls = [asyncio.ensure_future(here.ask("a")) for _ in range(2)]
        await until(lambda: here.account.window.waiting == 1)
        here.account.window.set_up(0, False)
        assert here.status["waits"]["a"]["why"] == "no server"
        here.account.window.set_up(0, True)
        fake.answers.set()
        await asyncio.gather(*calls)


@in_loop
async def test_weights_change_at_once_and_only_for_administrators() -> None:
    """A key of admin_keys sets weights of clients of the file; another key, another client, and what is no weight
    change nothing; without `admin` the path is not there."""
    async with faked(Fake(), clients=CLIENTS, admin=True) as (_, here):
        assert (await weigh(here, {"a": 5})).status == 200
        await here.ask("a")
        assert here.status["clients"]["a"]["weight"] == 5
        assert (await weigh(here, {"b": 9}, {"authorization": "Bearer sk-a"})).status == 401
        for body in ({"c": 1}, {"a": 0}, {"a": -1}, {"a": 1.5}, {"a": True}, {"b": 3, "a": 0}, [1], "b"):
            answer = await weigh(here, body)
            assert (answer.status, "error" in answer.json()) == (400, True), body
        assert (await here.http.post("/gateway/weights", content=b"\xff{", headers=KEY)).status == 400
        assert {name: client.weight for name, client in here.gateway.config.clients.items()} == {"a": 5, "b": 2}
    async with faked(Fake(), clients=CLIENTS) as (_, here):
        assert (await weigh(here, {"a": 5})).status == 404
        assert (await here.http.post("/gateway/drain", headers=KEY)).status == 404


@in_loop
async def test_an_administrator_drains_the_gateway() -> None:
    """What SIGTERM begins is begun once, by a key of admin_keys only."""
    async with world("http://127.0.0.1:9", admin=True) as here:
        drained: list[bool] = []
        here.gateway.drain = lambda: drained.append(True)
        assert (await here.http.post("/gateway/drain")).status == 401
        assert drained == []
        assert (await here.http.post("/gateway/drain", headers=KEY)).status == 202
        assert drained == [True]


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["one process", "two"])
@in_loop
async def test_weights_and_drain_reach_every_process(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Whichever process is asked, the weight is that of all, and all end."""
    key = {"authorization": f"Bearer {PROCESS_ADMIN}"}
    with server() as (_, one):
        text = "admin = true\n" + servers_text([one], 5000) + "[client.gold]\nweight = 2\n"
        with gateway(tmp_path, text, *options) as (started, url):
            for weight in (3, 4, 5):
                async with caller(url) as http:
                    answer = await http.post("/gateway/weights", json={"gold": weight}, headers=key)
                    assert answer.status == 200
                    assert (await ask(http, "gold", 2)).whole
                async with caller(url) as http:
                    said = await status(http)
                    found = [each["clients"].get("gold") for each in said.get("processes", {"0": said}).values()]
                    assert {each["weight"] for each in found if each is not None} == {weight}
            async with caller(url) as http:
                assert (await http.post("/gateway/weights", json={"none": 1}, headers=key)).status == 400
                assert (await http.post("/gateway/drain", headers=key)).status == 202
            assert await asyncio.to_thread(started.wait, 60) == 0
