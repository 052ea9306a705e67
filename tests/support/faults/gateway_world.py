"""Gateways as processes, one Redis, mock servers, and callers that always have a call: what servers compute is counted.

Nothing here measures time.  A world waits for what must come, and bounds are in cost units.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import aiohttp
import attrs

from fairsched.engines.conformance.suite import MockServers
from fairsched.engines.gateway import bound_text, gateway_policy, read_config
from fairsched.engines.gateway.config import hashed_key
from fairsched.engines.gateway.policy import window_terms
from fairsched.engines.gateway.window.leases.leasing import _decoded
from fairsched.policies.gates.leased import LeasedGate, SharedAccount
from fairsched.policies.guarantees import charged_at_once, window_limits
from tests.support.adapters.gateway_processes import ADMIN, COMMAND, LISTENING, ROOT
from tests.support.faults.redis_server import Line, RedisServer, redis

WEIGHTS = {"heavy": 4, "light": 1}
CALLERS = ({"heavy": 3, "light": 10}, {"heavy": 10, "light": 3}, {"heavy": 8, "light": 8})
"""Callers of each gateway: with an account for each, a client would be served by who calls where."""
SERVERS, REQUESTS = 2, 2
PROMPT, OUTPUT = 3, 12
"""Tokens of a call, as the mock servers count them and gateways estimate them."""
RESERVED = len("[call 00000]") + OUTPUT
"""Tokens that a call reserves of a quota: one for each byte of its prompt, and its outputs."""
QUANTUM = 64
GONE_SECONDS = 2.0
PATIENCE = 300.0
"""What must come and does not within so many seconds never will."""
CALL_SECONDS = 20.0
"""Under quotas no call takes longer to wait, or at a server: one of a gateway that was killed is charged a minute after
both."""
REFUSED_SECONDS = 0.25
"""A caller that was refused calls again after so long."""
KEY = "fairsched.default.account"


class Ledger:
    """What servers computed for each client, in cost units, and how far apart that moved while both waited."""

    def __init__(self) -> None:
        self.gap = 0
        """The most by which services by weight moved apart in any interval in which calls of both waited; times 4."""
        self.served: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        """What servers computed, in tokens as they count them."""
        self.begun: Counter[int] = Counter()
        self._client: dict[int, str] = {}
        self._waiting: dict[str, set[int]] = {name: set() for name in WEIGHTS}
        self._both = False
        self._lead = self._least = self._most = 0

    def sent(self, call: int, client: str) -> None:
        """A caller has sent a call."""
        self._client[call] = client
        self._waiting[client].add(call)
        self._look()

    def ended(self, call: int) -> None:
        """A call has ended, however."""
        self._waiting[self._client[call]].discard(call)
        self._look()

    def tell(self, what: str, call: int) -> None:
        """A server says what happened to a call."""
        client = self._client[call]
        if what == "begun":
            self.begun[call] += 1
            self._waiting[client].discard(call)
        units = {"begun": PROMPT, "token": 2}.get(what, 0)
        self.served[client] += units
        self.tokens[client] += {"begun": PROMPT, "token": 1}.get(what, 0)
        self._lead += units * (4 // WEIGHTS[client]) * (1 if client == "heavy" else -1)
        self._look()

    def _look(self) -> None:
        both = all(self._waiting.values())
        if both:
            again = self._both
            self._least = min(self._least, self._lead) if again else self._lead
            self._most = max(self._most, self._lead) if again else self._lead
            self.gap = max(self.gap, self._most - self._least)
        self._both = both

    @property
    def total(self) -> int:
        """What servers computed in all, in cost units."""
        return self.served.total()

    def again(self) -> None:
        """Count the gap from now on."""
        self.gap, self._both = 0, False
        self._look()


@attrs.define
class Callers:
    """What came of the calls."""

    sent: int = 0
    answered: int = 0
    refused: int = 0
    """The gateway said that it takes none, or was not there."""
    cut: int = 0
    """The gateway was killed."""
    lost: list[str] = attrs.field(factory=list)
    """All else."""


class GatewayProcess:
    """`fairsched gateway`, which may be started, killed, stopped and drained again and again."""

    def __init__(self, path: Path, line: Line | None) -> None:
        self.path = path
        self.line = line
        self.url = ""
        self.up = asyncio.Event()
        """Callers may call; cleared before it is killed."""
        self.kills = 0
        self.open: set[int] = set()
        """Its calls that have not ended."""
        self.process: asyncio.subprocess.Process | None = None

    @property
    def errors(self) -> Path:
        """What it says on standard error."""
        return self.path.with_suffix(".log")

    async def start(self) -> None:
        """Start it, and let callers call."""
        with self.errors.open("ab") as errors:
            self.process = await asyncio.create_subprocess_exec(
                *(*COMMAND, str(self.path)), stdout=asyncio.subprocess.PIPE, stderr=errors, cwd=ROOT
            )
        assert self.process.stdout is not None
        said = (await self.process.stdout.readline()).decode()
        found = LISTENING.search(said)
        assert found is not None, said
        self.url = found[1]
        self.up.set()

    def tell(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    async def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        assert self.process is not None
        self.up.clear()
        self.kills += 1
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


Quotas = Mapping[str, Mapping[str, int]]


class World:
    """Three gateways, Redis, mock servers, and floods of both clients at all three.

    The flood does not end before the world does.  `shared` False: each gateway has an account of its own.  `quotas`
    are the settings of clients' quotas by name, which are in the same Redis.
    """

    def __init__(
        self, folder: Path, store: RedisServer, servers: tuple[str, ...], ledger: Ledger, quotas: Quotas
    ) -> None:
        self.redis = store
        self.quotas = quotas
        self.ledger = ledger
        self.callers = Callers()
        self.gateways: list[GatewayProcess] = []
        self.promises = folder / "promises.toml"
        """The configuration of gateways that share an account."""
        self._servers = servers
        self._http: aiohttp.ClientSession | None = None
        self._floods: list[asyncio.Task[None]] = []
        self._ending = False

    @classmethod
    @asynccontextmanager
    async def serving(
        cls, folder: Path, *, shared: bool = True, quotas: Quotas | None = None, durable: bool = False
    ) -> "AsyncIterator[World]":
        """All of it, when each gateway has had calls of both clients; a `durable` Redis writes before it answers."""
        ledger = Ledger()
        at_once = len(CALLERS) * SERVERS * REQUESTS
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(redis(folder, durable=durable))
            servers = await stack.enter_async_context(MockServers.serve(SERVERS, at_once))
            for engine in servers.engines:
                engine.tell = ledger.tell
            here = cls(folder, store, servers.urls, ledger, quotas or {})
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            patience = aiohttp.ClientTimeout(total=None)
            here._http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=patience))
            for number in range(len(CALLERS)):
                line = await stack.enter_async_context(Line(folder / f"line{number}.sock", store.path).open())
                path = folder / f"gateway{number}.toml"
                here._configure(path, line if shared else None)
                here.gateways.append(GatewayProcess(path, line))
            here._configure(here.promises, line)
            stack.push_async_callback(here._killed)
            await asyncio.gather(*(gateway.start() for gateway in here.gateways))
            for gateway, clients in zip(here.gateways, CALLERS, strict=True):
                for client, count in clients.items():
                    here._floods += [asyncio.ensure_future(here._flood(gateway, client)) for _ in range(count)]
            stack.push_async_callback(here._stopped)
            await here.serves(here.bound // 2)
            ledger.again()
            yield here

    def _configure(self, path: Path, line: Line | None) -> None:
        lines = ['listen = "127.0.0.1:0"', 'identify = "header"', f"quantum = {QUANTUM}", "unreserved_tokens = 0"]
        if self.quotas:
            lines += [f"call_seconds = {CALL_SECONDS}", f"limits.wait_seconds = {CALL_SECONDS}"]
            lines += ["quota.template_tokens = 0"]
        lines += ["hold_seconds = 1e6", "status = true", f'admin_keys = ["{hashed_key(ADMIN)}"]']
        if line is not None:
            lines += ["[store]", f'url = "unix://{line.path}"', f"gateways = {len(CALLERS)}"]
            lines += [f"gone_seconds = {GONE_SECONDS}"]
        for name, weight in WEIGHTS.items():
            lines += [f"[client.{name}]", f"weight = {weight}"]
        for name, quota in self.quotas.items():
            lines += [f"[quota.client.{name}]", *(f"{window} = {most}" for window, most in quota.items())]
        for url in self._servers:
            tokens = REQUESTS * (PROMPT + OUTPUT)
            lines += ["[[server]]", f'url = "{url}"', f"window_tokens = {tokens}", f"window_requests = {REQUESTS}"]
        path.write_text("\n".join(lines) + "\n")

    async def _killed(self) -> None:
        for gateway in self.gateways:
            if gateway.process is not None:
                await gateway.kill()

    async def _stopped(self) -> None:
        for task in self._floods:
            task.cancel()
        await asyncio.gather(*self._floods, return_exceptions=True)

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _flood(self, gateway: GatewayProcess, client: str) -> None:
        while not self._ending:
            await gateway.up.wait()
            if not await self._call(gateway, client):
                await asyncio.sleep(REFUSED_SECONDS)

    async def _call(self, gateway: GatewayProcess, client: str) -> bool:
        """Return whether the call was taken."""
        assert self._http is not None
        call, kills, refused = self.callers.sent, gateway.kills, False
        self.callers.sent += 1
        self.ledger.sent(call, client)
        gateway.open.add(call)
        body = {"model": "made-up", "prompt": f"[call {call:05}]", "max_tokens": OUTPUT}
        if call % 2:
            body |= {"stream": True}
        said = "no whole answer"
        try:
            headers = {"x-client": client}
            async with self._http.post(f"{gateway.url}/v1/completions", json=body, headers=headers) as answer:
                text, said = await answer.text(), f"HTTP {answer.status}"
                if answer.status == 200 and (text.count("data: [DONE]") == 1 if call % 2 else '"usage"' in text):
                    self.callers.answered += 1
                elif answer.status in (429, 503):
                    refused = True
                else:
                    self.callers.lost.append(f"{call}: {said} {text[:200]}")
        except (aiohttp.ClientError, OSError) as error:
            if gateway.kills > kills:
                self.callers.cut += 1
            elif isinstance(error, aiohttp.ClientConnectorError):
                refused = True
            else:
                self.callers.lost.append(f"{call}: {said}, {error!r}")
        finally:
            gateway.open.discard(call)
            self.ledger.ended(call)
        self.callers.refused += refused
        return not refused

    async def end(self) -> None:
        """Let no caller call again, and wait until all calls have ended."""
        self._ending = True
        for gateway in self.gateways:
            gateway.up.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self._floods)

    # --- what is waited for -----------------------------------------------------------------------------------------

    async def until(self, over: Callable[[], Any], what: str) -> None:
        """Wait until something is so: a value, or what a coroutine returns."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    found = over()
                    if await found if asyncio.iscoroutine(found) else found:
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"this never came: {what}") from None

    async def until_all(self, over: Callable[[int], Any], what: str) -> None:
        """Wait until something is so of each gateway, one after the other."""
        for number in range(len(self.gateways)):
            await self.until(partial(over, number), what)

    async def serves(self, units: int) -> None:
        """Wait until servers have computed so many cost units more."""
        enough = self.ledger.total + units
        await self.until(lambda: self.ledger.total >= enough, f"{units} units of service")

    async def status(self, number: int, what: str = "status") -> dict[str, Any]:
        """What a gateway says of itself, or of what clients used."""
        assert self._http is not None
        headers = {"authorization": f"Bearer {ADMIN}"}
        async with self._http.get(f"{self.gateways[number].url}/gateway/{what}", headers=headers) as answer:
            said: dict[str, Any] = await answer.json()
        return said

    async def budgets(self) -> dict[str, dict[str, Any]]:
        """What clients used of their quotas, by name."""
        budgets = (await self.status(0, "usage"))["budgets"]
        return {name: budgets[f"client/{name}"] for name in self.quotas}

    async def account(self) -> SharedAccount | None:
        """The account as Redis has it, if it has one; behind the stamp of the writer."""
        value = await self.redis.ask("GET", KEY)
        return _decoded(value[16:]) if value else None

    async def is_up(self, number: int) -> bool:
        """Whether the store has taken the gateway's last renewal."""
        return bool((await self.status(number))["store"]["up"])

    async def is_without_quotas(self, number: int) -> bool:
        """Whether the store does not take what a gateway says of quotas."""
        return not (await self.status(number))["quota"]["up"]

    async def has_refused_for_its_store(self, number: int) -> bool:
        """Whether a gateway refused a call since the store of quotas did not answer in time."""
        return bool((await self.status(number))["quota"]["refused"].get("store"))

    async def has_spent(self, number: int) -> bool:
        """Whether a gateway that the store does not hear has spent its leases, and lets no call in."""
        said = await self.status(number)
        return not said["store"]["up"] and not said["in_flight"] and said["waiting"]

    async def has_gateways(self, count: int) -> bool:
        """Whether the account knows so many gateways."""
        account = await self.account()
        return account is not None and len(account.holders) == count

    async def counted(self, outcome: str) -> int:
        """How many renewals of all gateways ended so."""
        said = [await self.status(number) for number in range(len(self.gateways))]
        return sum(each["store"]["renewals"].get(outcome, 0) for each in said)

    # --- what is promised -------------------------------------------------------------------------------------------

    @cached_property
    def _gate(self) -> tuple[str, int, int]:
        config = read_config(self.promises)
        policy = gateway_policy(config, self.promises)
        windows = [server.window_tokens for server in config.servers]
        limits = window_limits(policy.guarantee, sum(windows), window_terms(config))
        gate = policy.gate
        assert isinstance(gate, LeasedGate)
        return bound_text(config, policy), gate.charge_max(limits), gate.lease

    @property
    def bound(self) -> int:
        """The gap that `fairsched gateway --check` prints, in cost units times 4 by weight."""
        text = self._gate[0]
        return int(text.rpartition("differ by at most ")[2].partition(" ")[0].replace(",", ""))

    @property
    def lease(self) -> int:
        """S: what one gateway may have of a client's credit."""
        return self._gate[2]

    @property
    def debt(self) -> int:
        """U - 1: what a client may owe at one gateway."""
        others = len(CALLERS) - 1
        return (self._gate[1] - 1 - others * self.lease) // len(CALLERS)

    def hidden(self, client: str) -> int:
        """Q + (n - 1) S: what an account that forgets is wrong by."""
        return QUANTUM * WEIGHTS[client] + (len(CALLERS) - 1) * self.lease

    @property
    def ahead(self) -> int:
        """What all clients may be charged and servers have not computed: gateways charge half a prompt before its call
        is sent."""
        calls = len(CALLERS) * SERVERS * REQUESTS
        return sum(4 // weight for weight in WEIGHTS.values()) * calls * charged_at_once(PROMPT)


def weighed(units: Callable[[str], int]) -> int:
    """Return what so many units of each client are in the gap."""
    return sum(units(client) * 4 // weight for client, weight in WEIGHTS.items())


__all__ = ["CALLERS", "OUTPUT", "PROMPT", "RESERVED", "WEIGHTS", "Quotas", "World", "weighed"]
