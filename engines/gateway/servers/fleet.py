"""The servers of a window as they come and go, fail and work: who is there, who takes calls, and for which clients.

What a server says that it computed is held against what calls there were charged: bounds are about computed tokens.
"""

import asyncio
import logging
import math
import re
from collections.abc import Callable, Hashable, Set
from contextlib import suppress
from functools import partial

import aiohttp
import attrs

from fairsched.engines.gateway.config import GatewayConfig
from fairsched.engines.gateway.openai import CallError
from fairsched.engines.gateway.servers.health import Failure, ServerHealth
from fairsched.engines.gateway.servers.target import Servers, Upstream, addresses_of
from fairsched.engines.gateway.servers.upstream import new_session, probe, told
from fairsched.engines.gateway.tls import server_context
from fairsched.engines.gateway.window import SLOT_PATHS, Share, Slots, Window, load_in
from fairsched.engines.serving import Document

_log = logging.getLogger("fairsched.gateway")

SLICES = 20
"""A probe is given its time in so many slices."""
_SECOND = 10**9
SPAN_NS = 60 * 10**9
"""So long a time is compared at once."""
TOLERANCE = 8
"""A server may say an eighth more than was charged, and what is in flight at either end."""
_SAID = re.compile(
    rb"^(?:vllm|sglang):(?:prompt|generation)_tokens_total(?:\{[^\n]*\})? ([0-9]+(?:\.[0-9]+)?(?:e\+[0-9]+)?)\r?$",
    re.MULTILINE,
)


def computed_in(said: bytes) -> int | None:
    """Return the tokens of prompts, cached ones too, and of outputs that metrics of vLLM or SGLang count, of all
    replicas together; None where they say nothing."""
    found = _SAID.findall(said)
    return sum(int(float(value)) for value in found) if found else None


@attrs.define
class ComputedTokens:
    """A server's count against the account's, both from a start that does not matter.

    `computed` and `charged` are of the last whole span, `uncharged` what was beyond the tolerance in all of them.
    """

    computed: int = 0
    charged: int = 0
    uncharged: int = 0
    _begun: tuple[int, int, int, int] | None = None

    def tell(self, said: int | None, charged: int, in_flight: int, now_ns: int) -> int:
        """Take in what the server says while so many tokens are charged and in flight there; returns by how much a span
        that ends now is beyond the tolerance.  A server that begins to count anew is compared anew."""
        begun = self._begun
        if said is None or begun is None or said < begun[1]:
            self._begun = None if said is None else (now_ns, said, charged, in_flight)
            return 0
        if now_ns - begun[0] < SPAN_NS:
            return 0
        self.computed, self.charged = said - begun[1], charged - begun[2]
        beyond = max(self.computed - self.charged * (TOLERANCE + 1) // TOLERANCE - in_flight - begun[3], 0)
        self.uncharged += beyond
        self._begun = now_ns, said, charged, in_flight
        return beyond


class Fleet:
    """What an account knows of its servers.  `window` has those of the configuration that are no names to look up.

    `pump` is called when calls may go that could not before, and `hung` with a server that does not answer.
    """

    def __init__(
        self,
        config: GatewayConfig,
        window: Window,
        now_ns: Callable[[], int],
        pump: Callable[[], object],
    ) -> None:
        self.config = config
        self.hung: Callable[[int], object] = lambda place: None
        self.servers = Servers()
        self.health = ServerHealth(config.limits)
        self._slots = Slots()
        self._computed: dict[int, ComputedTokens] = {}
        self._window = window
        self._now_ns = now_ns
        self._pump = pump
        self._timer: asyncio.TimerHandle | None = None
        self._look = asyncio.Event()
        for place, target in enumerate(self.servers.wanted(config.servers)):
            self._joined(place, target)

    # --- who is there -----------------------------------------------------------------------------------------------

    def configure(self, config: GatewayConfig) -> None:
        """Take servers and limits from this configuration from now on; calls at servers that leave are finished."""
        self.config, self.health.limits = config, config.limits
        server_context.cache_clear()
        self._look.set()
        self._change()

    def _change(self) -> None:
        config = self.config
        leave, stay, join = self.servers.changes(self.servers.wanted(config.servers))
        now_ns = self._now_ns()
        for place in leave:
            _log.info("server %s leaves", self.servers[place].name)
            del self.servers[place]
            self.health.part(place)
            self._window.part(place, now_ns)
        for place, target in stay:
            self.servers[place] = attrs.evolve(target, server=place)
            self._window.resize(place, self._share(place), now_ns)
        for target in join:
            _log.info("server %s joins", target.name)
            self._joined(
                self._window.join(Share(target.config.window_tokens, target.config.window_requests), now_ns), target
            )
        if leave or join:
            self._pump()

    def _joined(self, place: int, target: Upstream) -> None:
        self.servers[place] = attrs.evolve(target, server=place)
        self.health.join(place)
        self._slots.pop(place, None)
        self._computed[place] = ComputedTokens()

    def _share(self, place: int) -> Share:
        config = self.servers[place].config
        requests = 1 if self.health.on_trial(place) else self._slots.of(place, config.window_requests)
        return Share(config.window_tokens, requests)

    def upstreams(self) -> tuple[Upstream, ...]:
        now_ns = self._now_ns()
        return tuple(target for place, target in self.servers.items() if self.health.up(place, now_ns))

    def allowed(self, client: Hashable, avoid: Set[int]) -> Set[int] | None:
        """Return the servers where a call of the client may go, without those to avoid if there are others; None: any.

        Raises `CallError` (429) where every server has refused the client for now.
        """
        there, now_ns = self.servers.keys(), self._now_ns()
        limited = self.health.limited(client, now_ns)
        avoid = avoid | self.health.doubted(client, now_ns).keys()
        if not (limited or avoid) or not there:
            return None
        free = there - limited.keys()
        if not free:
            seconds = math.ceil((min(limited.values()) - now_ns) / _SECOND)
            raise CallError(429, "every server has refused this client for now", seconds)
        found = free - avoid or free
        return None if len(found) == len(there) else found

    # --- what happened ----------------------------------------------------------------------------------------------

    def heard(self, place: int) -> None:
        """Take in that a server brought bytes."""
        self.health.heard(place, self._now_ns())

    def worked(self, place: int, client: Hashable) -> None:
        now_ns = self._now_ns()
        changes = self.health.doubted(client, now_ns) or (place in self.servers and self.health.on_trial(place))
        self.health.worked(place, client, now_ns)
        if changes:
            self._refresh()

    def failed(self, place: int, client: Hashable, failure: Failure) -> None:
        self.health.failed(place, client, failure, self._now_ns())
        self._refresh()

    def _refresh(self) -> None:
        """Let the window know which servers take calls, and come back when that changes by time alone."""
        now_ns, window = self._now_ns(), self._window
        for place, target in self.servers.items():
            up, share = self.health.up(place, now_ns), self._share(place)
            if window.servers[place].up != up:
                window.set_up(place, up)
                said = self.health.status(place, now_ns)["last_failure"]
                _log.warning("server %s %s", target.name, "takes calls again" if up else f"is left alone: {said}")
            if window.servers[place].share != share:
                window.resize(place, share, now_ns)
        next_ns = self.health.next_ns(now_ns)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_ns is not None:
            self._timer = asyncio.get_running_loop().call_later((next_ns - now_ns) / _SECOND, self._refresh)
        self._pump()

    def status(self) -> Document:
        now_ns = self._now_ns()
        return {
            target.name: {
                **self.health.status(place, now_ns),
                "window_tokens": target.config.window_tokens,
                "window_requests": self._share(place).requests,
                "computed_tokens": self._computed[place].computed,
                "charged_tokens": self._computed[place].charged,
                "uncharged_tokens": self._computed[place].uncharged,
            }
            for place, target in sorted(self.servers.items())
        }

    # --- what goes on beside calls ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look names up, ask health paths, and follow what servers say of their queues, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_up())
            group.create_task(self._probe())
            group.create_task(self._follow())

    async def _look_up(self) -> None:
        while True:
            self._look.clear()
            named = [server for server in self.config.servers if server.resolve]
            for server, found in zip(named, await asyncio.gather(*map(addresses_of, named)), strict=True):
                self.servers.resolved(server, found)
            if named:
                self._change()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.limits.resolve_seconds):
                    await self._look.wait()

    async def _probe(self) -> None:
        # Connections of their own: one that is open already says nothing of a server that takes no new ones.
        connector = aiohttp.TCPConnector(force_close=True, limit=0, use_dns_cache=False)
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:
            while True:
                seconds = self.config.limits.health_seconds
                await asyncio.sleep(seconds)
                await asyncio.gather(*(self._ask(http, *each, seconds) for each in tuple(self.servers.items())))

    async def _follow(self) -> None:
        async with new_session() as http:
            await self._slots.follow(lambda: self.servers, partial(self._follow_one, http))

    async def _follow_one(self, http: aiohttp.ClientSession, place: int, target: Upstream) -> None:
        said = load = None
        for path in SLOT_PATHS:
            said = await told(http, target, path)
            if said is None or (load := load_in(said)) is not None:
                break
        if said is not None and self.servers.get(place) == target:
            server = self._window.servers[place]
            self._slots.tell(place, load, server.requests)
            tokens = computed_in(said)
            beyond = self._computed[place].tell(tokens, server.charged, server.tokens, self._now_ns())
            if beyond:
                _log.warning(
                    "server %s says %d tokens more than calls there were charged in a minute: others use it too, or a "
                    "client is charged too little",
                    *(target.name, beyond),
                )
            if self._share(place) != server.share:
                self._refresh()

    async def _ask(self, http: aiohttp.ClientSession, place: int, target: Upstream, seconds: float) -> None:
        if not (path := target.config.health):
            return
        asked = asyncio.ensure_future(probe(http, target, path))
        try:
            # While the event loop stands still, so does the time of a probe.
            for _ in range(SLICES):
                await asyncio.wait((asked,), timeout=seconds / SLICES)
                if asked.done():
                    break
            late = not asked.done()
            failure = f"{path}: no answer in {seconds:g} seconds" if late else asked.result()
        except OSError:
            return
        finally:
            asked.cancel()
        if self.servers.get(place) == target:
            self.health.probed(place, failure, self._now_ns(), waited_seconds=seconds if late else None)
            if late and self.health.hangs(place):
                self.hung(place)
            self._refresh()
