"""An attack played in virtual time: engines, gateway, flood and the polite client in one event loop, over sockets.

Time passes only while everything waits, so that a busy machine changes nothing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest
from aiohttp import web

from fairsched.engines.conformance.mock_server import MockEngine, MockServer, serving
from fairsched.engines.gateway import gateway_policy, listening, read_config
from fairsched.engines.gateway.app import application
from fairsched.engines.gateway.gateway import Gateway
from fairsched.engines.gateway.server import Connections
from fairsched.engines.gateway.server.process import build_account
from fairsched.engines.gateway.tls import tls_context
from fairsched.engines.gateway.window.leases import MemoryStore, Store
from tests.support.adapters.loops import VirtualLoop
from tests.support.attacks.floods import POLITE, Flood, World, polite_client
from tests.support.attacks.table import Attack

STEP_SECONDS = 0.012
PREFILL_SECONDS = 20e-6
WARM_SECONDS = 3.0
"""The flood is there for so long before the polite client comes."""


@attrs.frozen
class Played:
    """What came of a run."""

    answered: int
    refused: Counter[str]
    seen: Counter[str]
    """What the flood saw."""
    status: dict[str, Any]
    computed: Counter[str]
    """Output tokens that the engines computed, by client."""

    def charged(self, client: str) -> int:
        """Output tokens that a client was charged."""
        return int(self.status["clients"][client]["output_tokens"]) if client in self.status["clients"] else 0


class TellingServer(MockServer):
    """A server that says what runs, what waits and what it computed, as vLLM does."""

    def app(self) -> web.Application:
        """Return the application."""
        app = super().app()
        app.router.add_get("/metrics", self.metrics)
        return app

    async def metrics(self, _: web.Request) -> web.Response:
        """Say it."""
        said = {
            "num_requests_running": len(self.engine.running),
            "num_requests_waiting": len(self.engine.waiting),
            "prompt_tokens_total": sum(each.prompt_tokens for each in self.ledger.values()),
            "generation_tokens_total": sum(each.output_tokens for each in self.ledger.values()),
        }
        return web.Response(text="".join(f'vllm:{name}{{engine="0"}} {value}.0\n' for name, value in said.items()))


@asynccontextmanager
async def engine(attack: Attack) -> AsyncIterator[tuple[str, MockServer]]:
    """An engine that serves: its address."""
    server = MockServer(MockEngine(attack.slots, STEP_SECONDS, PREFILL_SECONDS), attack.interval)
    async with serving(server) as url:
        yield url, server


@asynccontextmanager
async def gateway(path: Path, store: Store | None = None) -> AsyncIterator[tuple[str, Gateway]]:
    """The gateway of a configuration: its address.  `store` is instead of the one that the configuration names."""
    config = read_config(path)
    sockets = listening(config)
    made = Gateway(config, build_account(config, gateway_policy(config, path), store=store))
    connections = Connections(config.limits, None if config.tls is None else tls_context(config.tls))
    await connections.start(application(made), sockets)
    scheme = "http" if config.tls is None else "https"
    try:
        yield f"{scheme}://127.0.0.1:{sockets[0].getsockname()[1]}", made
    finally:
        await connections.stop(0.01)
        for each in sockets:
            each.close()


def _together(said: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what gateways say as if one had said it: what clients were charged, how calls ended, whether a policy was
    set aside; the promise is that of one alone."""
    clients: dict[str, Counter[str]] = {}
    for name, counts in (item for each in said for item in each["clients"].items()):
        clients.setdefault(name, Counter()).update(counts)
    outcomes = sum((Counter(each["outcomes"]) for each in said), Counter[str]())
    set_aside = next(filter(None, (each["set_aside"] for each in said)), None)
    return {**said[0], "clients": clients, "outcomes": outcomes, "set_aside": set_aside}


async def _play(attack: Attack, seconds: float, folder: Path, gateways: int) -> Played:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine(attack)) for _ in range(attack.engines)]
        path = folder / "gateway.toml"
        path.write_text(attack.config([url for url, _ in engines], gateways=gateways))
        store = MemoryStore() if gateways > 1 else None
        served = [await stack.enter_async_context(gateway(path, store)) for _ in range(gateways)]
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_connect=5)
            )
        )
        world = World([url for url, _ in served], [url for url, _ in engines], http)
        flood = asyncio.ensure_future(attack.flood(world))
        await asyncio.sleep(WARM_SECONDS)
        await polite_client(world, attack.polite_key, attack.polite_at_once, attack.polite_tokens, seconds)
        if flood.done():
            flood.result()
        seen, said = world.seen.copy(), [await made.account.status() for _, made in served]
        flood.cancel()
        with suppress(asyncio.CancelledError):
            await flood
        computed: Counter[str] = Counter()
        for _, server in engines:
            for key, spent in server.ledger.items():
                computed[key.removeprefix("sk-")] += spent.output_tokens
    return Played(world.polite.answered, world.polite.refused, seen, _together(said), computed)


def stands_still(seconds: float) -> Flood:
    """Return what keeps the loop busy for so long: all that is due comes at once afterwards, and late."""

    async def flood(_: World) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop._virtual.now += seconds

    return flood


def play(attack: Attack, *, seconds: float, folder: Path, gateways: int = 1) -> Played:
    """Return what came of an attack on gateways that share an account in so many seconds of the polite client."""
    loop = VirtualLoop()
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=lambda: loop) as runner:
        patch.setattr(time, "monotonic", loop.time)
        patch.setattr(time, "monotonic_ns", loop.now_ns)
        return runner.run(_play(attack, seconds, folder, gateways))


__all__ = ["POLITE", "Played", "play", "stands_still"]
