"""Why calls wait, as the status tells those who run a gateway."""

import asyncio
from pathlib import Path

from fairsched.engines.gateway import gateway_policy
from fairsched.engines.gateway.config import ClientConfig, GatewayConfig, ServerConfig
from fairsched.engines.gateway.window import Share, Window, credit, waits
from fairsched.model.request import Client
from fairsched.policies.guarantees import SECOND_NS
from fairsched.policies.registry import ROUTERS
from tests.support.adapters.gateway_scenarios import Fake, faked
from tests.support.adapters.loops import in_loop, until

CLIENTS = {"a": ClientConfig(), "b": ClientConfig(weight=2)}


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
    """Behind a call that fills the window one of the same client waits for room, or for a server while all are down;
    when all is served, none waits."""
    async with faked(Fake(held=True), clients=CLIENTS, window_requests=1) as (fake, here):
        calls = [asyncio.ensure_future(here.ask("a")) for _ in range(2)]
        await until(lambda: here.account.window.waiting == 1)
        assert {name: wait["why"] for name, wait in here.status["waits"].items()} == {"a": "room"}
        here.account.window.set_up(0, False)
        assert here.status["waits"]["a"]["why"] == "no server"
        here.account.window.set_up(0, True)
        fake.answers.set()
        await asyncio.gather(*calls)
        await here.emptied()
        said = here.status
        assert said["waits"] == {}
        assert set(said["credit"]) >= {"a", "b"}
