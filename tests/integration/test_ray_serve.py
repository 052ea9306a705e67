"""Ray Serve with our router: replicas and the actor are killed, handles are in several processes, a client floods."""

import ast
import asyncio
import os
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve", reason="Ray Serve is not installed", exc_type=ImportError)

from fairsched.engines.adapters.ray_serve.actor import actor_name, found  # noqa: E402
from fairsched.integrations.ray_serve import configure, request_router_config, status  # noqa: E402
from tests.integration.ray_serve_parts import TOKENS, Caller, Replica, Web  # noqa: E402
from tests.support.ray_here import ray_here  # noqa: E402

pytestmark = pytest.mark.integration

SECONDS = 60.0
"""A test that waits longer hangs."""


@pytest.fixture(scope="module", autouse=True)
def started() -> Iterator[None]:
    """Ray and Serve on this machine alone, and gone afterwards."""
    with ray_here():
        serve.start(http_options={"host": "127.0.0.1", "port": 18642})
        yield
        serve.shutdown()


def deployed(name: str, replicas: int, ongoing: int, seconds: float, **settings: Any) -> Any:
    """A deployment, as an application of its own, and a handle that has found the actor."""
    config = settings.pop("config", None) or request_router_config(**{"patience_seconds": 30.0, **settings})
    made = serve.deployment(
        Replica,
        name=name,
        num_replicas=replicas,
        max_ongoing_requests=ongoing,
        ray_actor_options={"num_cpus": 0.1},
        request_router_config=config,
    )
    handle = serve.run(made.bind(seconds), name=name, route_prefix=None)
    handle.remote(0, client="first", **TOKENS).result(timeout_s=SECONDS)
    return handle


def until(said: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + SECONDS
    while not said():
        assert time.monotonic() < deadline, "this takes too long"
        time.sleep(0.05)


def empty(name: str) -> bool:
    """Whether nothing waits and nothing is in flight."""
    now = status(name, name)
    return (now["waiting"], now["in_flight"], now["in_flight_tokens"]) == (0, 0, 0)


def test_a_replica_is_killed_and_no_request_is_lost() -> None:
    """Of three replicas one is killed with requests on it.  Serve tells the callers of those that the replica died, and
    they ask again; all others are answered, nobody waits for ever, and the books are empty at the end."""
    handle = deployed("Kill", 3, 4, 0.05, window_tokens=80)
    died: Counter[int] = Counter()
    pids: Counter[int] = Counter()

    async def call(i: int) -> None:
        while True:
            try:
                pids[await handle.remote(i, client=f"c{i % 3}", **TOKENS)] += 1
                return
            except ray.exceptions.RayActorError:
                died[i] += 1

    async def work() -> None:
        calls = [asyncio.create_task(call(i)) for i in range(120)]
        while not pids:
            await asyncio.sleep(0.01)
        os.kill(next(iter(pids)), signal.SIGKILL)
        await asyncio.wait_for(asyncio.gather(*calls), SECONDS)

    asyncio.run(work())
    assert pids.total() == 120
    assert died.total() <= 4  # What one replica had at a time.
    until(lambda: empty("Kill"))
    now = status("Kill", "Kill")
    assert now["outcomes"]["answered"] + now["outcomes"].get("lost with its replica", 0) >= 120
    assert now["outcomes"]["around the policy"] == 0
    assert now["set_aside"] is None
    assert now["promise"]["bound_violations"] == 0
    serve.delete("Kill")


def test_handles_in_two_processes_share_four_to_one_as_one_policy() -> None:
    """Two clients with weights 4 and 1, each in a process of its own: the actor gives them 4 : 1.  (With a state for
    each router they get 1 : 1, as tests without Ray show.)"""
    handle = deployed("One", 1, 8, 0.02, window_tokens=40, weights={"gold": 4}, quantum=20)
    callers = [Caller.remote("One", "One", client) for client in ("gold", "free")]  # type: ignore[attr-defined]
    ray.get([caller.warm.remote() for caller in callers], timeout=SECONDS)
    now = time.time()
    gold, free = ray.get([each.run.remote(6, now + 1.5, now + 6.5) for each in callers], timeout=SECONDS)
    for caller in callers:
        ray.kill(caller)
    assert 3 <= gold / free <= 5, (gold, free)
    assert status("One", "One")["promise"]["bound_violations"] == 0
    configure("One", "One", weights={"free": 3})
    assert status("One", "One")["clients"]["free"]["weight"] == 3
    del handle
    serve.delete("One")


@pytest.mark.parametrize("policy", ["fcfs+deficit", "fcfs"])
def test_a_flooding_client_does_not_delay_a_light_one(policy: str) -> None:
    """A client asks 80 times at once, then another one 4 times.  Under the deficit gate the light client is done while
    most of the flood waits; first come, first served makes it wait for all of it."""
    name = f"Flood{len(policy)}"
    handle = deployed(name, 1, 2, 0.02, window_tokens=40, policy=policy, quantum=20)
    order: list[str] = []

    async def call(client: str) -> None:
        await handle.remote(0, client=client, **TOKENS)
        order.append(client)

    async def work() -> None:
        flood = [asyncio.create_task(call("flood")) for _ in range(80)]
        while not order:
            await asyncio.sleep(0.005)
        await asyncio.gather(*(call("light") for _ in range(4)))
        await asyncio.gather(*flood)

    asyncio.run(asyncio.wait_for(work(), SECONDS))
    assert len(order) == 84
    last = max(i for i, client in enumerate(order) if client == "light")
    assert last < 40 if policy == "fcfs+deficit" else last > 75
    serve.delete(name)


def test_the_actor_is_killed_and_goes_on() -> None:
    """Killed in the middle, it is started again by Ray; every call is answered, and it knows who is there."""
    handle = deployed("Actor", 2, 4, 0.05, window_tokens=80)

    async def work() -> int:
        calls = [asyncio.ensure_future(_answered(handle, i)) for i in range(100)]
        while sum(call.done() for call in calls) < 20:
            await asyncio.sleep(0.01)
        ray.kill(found(actor_name("Actor", "Actor")), no_restart=False)
        return sum(await asyncio.wait_for(asyncio.gather(*calls), SECONDS))

    assert asyncio.run(work()) == 100
    until(lambda: empty("Actor"))
    now = status("Actor", "Actor")
    assert now["outcomes"]["around the policy"] == 0
    assert 0 < now["outcomes"]["answered"] <= 82  # The others were answered in its first life.
    assert now["handles"] >= 1
    serve.delete("Actor")


async def _answered(handle: Any, i: int) -> int:
    return int(await handle.remote(i, client=f"c{i % 2}", **TOKENS) > 0)


def test_the_page_that_tells_how_to_begin_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    """The application of docs/how-to/integrate/ray-serve.md runs as it stands, and its status has both clients."""
    app = (Path(__file__).parents[2] / "docs/examples/ray_serve_app.py").read_text()
    exec(compile(app, "app.py", "exec"), {"__name__": "app"})
    answers, told = capsys.readouterr().out.strip().splitlines()[-2:]
    assert answers == "['HELLO', 'HELLO']"
    assert {"gold", "free"} <= set(ast.literal_eval(told)["clients"])
    serve.delete("default")


def test_settings_that_cannot_be_lose_nobody() -> None:
    """With a policy that does not exist, which only the router finds out, calls go as Serve's own router sends them."""
    config = request_router_config(window_tokens=40)
    config.request_router_kwargs = {"window_tokens": 40, "policy": "no-such-policy"}
    handle = deployed("Bad", 2, 4, 0.01, config=config)

    async def work() -> int:
        return sum(await asyncio.gather(*(_answered(handle, i) for i in range(20))))

    assert asyncio.run(asyncio.wait_for(work(), SECONDS)) == 20
    with pytest.raises(ValueError, match="Bad"):
        status("Bad", "Bad")
    serve.delete("Bad")


def test_http_calls_are_counted_to_the_client_of_their_header() -> None:
    """The proxy's router reads the client from a header, and the prompt's size from the body's length."""
    made = serve.deployment(
        Web,
        name="Web",
        ray_actor_options={"num_cpus": 0.1},
        request_router_config=request_router_config(window_tokens=4096),
    )
    serve.run(made.bind(), name="Web", route_prefix="/web")
    call = urllib.request.Request("http://127.0.0.1:18642/web", b"x" * 400, {"x-client": "somebody"})
    with urllib.request.urlopen(call, timeout=SECONDS) as answer:
        assert len(answer.read()) >= 400
    until(lambda: empty("Web"))
    client = status("Web", "Web")["clients"]["somebody"]
    assert (client["requests"], client["prompt_tokens"], client["output_tokens"]) == (1, 100, 1024)
    serve.delete("Web")
