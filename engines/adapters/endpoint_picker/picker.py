"""Which endpoint takes a call, and when: a policy's gate over the windows of a pool's endpoints.

No gRPC: `engines.adapters.endpoint_picker.exchange` speaks to Envoy.  A call waits until the policy lets it in and an
endpoint has room; it is booked there until its answer ends.  It belongs to one event loop.

Several pickers before one pool share the credit of clients as gateways do (`engines.gateway.window.leases`).
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import attrs

from fairsched.engines import gateway
from fairsched.engines.adapters.endpoint_picker.config import PickerConfig
from fairsched.engines.gateway.window.leases import Store, leasing_of
from fairsched.engines.serving import ClientRegistry, Document
from fairsched.model.request import Client
from fairsched.policies.guarantees import window_limits

_log = logging.getLogger("fairsched.endpoint_picker")

TICK_SECONDS = 0.05


@attrs.frozen
class Picked:
    """A call's place: its number, the endpoint as `IP:PORT`, and those that a proxy may try after it."""

    id: int
    endpoint: str
    fallbacks: tuple[str, ...] = ()


class Picker:
    """Queue, gate and windows of one pool.

    `store` is used instead of the one that the configuration names, if it names one.  Raises `ValueError` for a policy,
    router or store that cannot be used.
    """

    def __init__(self, config: PickerConfig, *, store: Store | None = None) -> None:
        self.config = config
        policy, router = gateway.window_policy(config.policy, config.quantum), gateway.window_router(config.router)
        kind: type[gateway.Window] = gateway.Window
        if config.store is not None:
            policy, kind = gateway.leased_policy(policy, config.store), gateway.LeasedWindow
        self.window = kind(policy, router, budget_ms=config.decision_budget_ms)
        self.clients = ClientRegistry(unknown_max=config.limits.clients)
        self.slots = gateway.Slots()
        self.outcomes: Counter[str] = Counter()
        self._begun_ns = time.monotonic_ns()
        self._places: dict[str, int] = {}
        self._endpoints: dict[int, str] = {}
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._next_id = 0
        self.leasing = leasing_of(config.store, self.window, self.clients, self.pump, self.now_ns, store=store)
        self._weigh(config.weights)

    def _weigh(self, weights: Mapping[str, int]) -> None:
        for client in self.clients.configure(weights):
            self.window.configure(client, self.now_ns())

    def now_ns(self) -> int:
        """Time since the start."""
        return time.monotonic_ns() - self._begun_ns

    # --- the pool ---------------------------------------------------------------------------------------------------

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(sorted(self._places))

    def configure(self, config: PickerConfig) -> None:
        """Set clients, limits and windows; `see` sets the endpoints."""
        self.config = config
        self._weigh(config.weights)
        self.see(self.endpoints)

    def see(self, endpoints: Iterable[str]) -> None:
        """Set the endpoints of the pool; what is in flight at others goes on there."""
        now, there = self.now_ns(), set(endpoints)
        for endpoint in sorted(there):
            if (at := self._places.get(endpoint)) is not None:
                self.window.resize(at, self._share(at), now)
            else:
                self._places[endpoint] = place = self.window.join(self._share(), now)
                self._endpoints[place] = endpoint
        for endpoint in sorted(self._places.keys() - there):
            self.slots.pop(self._places[endpoint], None)
            self.window.part(self._places.pop(endpoint), now)
        for request_id in self.window.stranded():
            gone = gateway.CallError(503, "none of the endpoints that the proxy named is there any more")
            self._refuse(request_id, "no endpoint", gone)
        for request_id, why in self.window.outgrown():
            self._refuse(request_id, "too large", gateway.CallError(413, why))
        self.pump()

    def _share(self, place: int = -1) -> gateway.Share:
        pool = self.config.pool
        return gateway.Share(pool.window_tokens, self.slots.of(place, pool.window_requests))

    async def follow(self) -> None:
        """Let in as many calls at an endpoint as it says that it runs, until cancelled."""
        await self.slots.follow(lambda: {place: each for each, place in self._places.items()}, self._ask)

    async def _ask(self, place: int, endpoint: str) -> None:
        try:
            load = await asyncio.to_thread(gateway.load_at, f"http://{endpoint}")
        except OSError:
            return
        if self._places.get(endpoint) == place:
            self.slots.tell(place, load, self.window.servers[place].requests)
            if self._share(place) != self.window.servers[place].share:
                self.window.resize(place, self._share(place), self.now_ns())
                self.pump()

    # --- calls ------------------------------------------------------------------------------------------------------

    async def pick(
        self,
        client: str,
        prompt_tokens: int,
        max_output_tokens: int,
        subset: Collection[str] | None = None,
        prompt_tokens_max: int = 0,
    ) -> Picked:
        """Return an endpoint, once one may take the call; of `subset` if that is given.

        Raises `CallError`.  When it is cancelled the call is out of the queue.
        """
        number, limits = self.clients.resolve(client)[0].id, self.config.limits
        places = self._eligible(subset)
        too_large = self.window.refuses(prompt_tokens, max_output_tokens)
        if too_large is not None:
            raise self._counted("too large", gateway.CallError(413, too_large))
        for waiting, most in (
            (self.window.waiting_of(number), limits.waiting_per_client),
            (self.window.waiting, limits.waiting),
        ):
            if waiting >= most:
                message = f"{waiting} calls wait, and {most} may"
                raise self._counted("limited", gateway.CallError(429, message, limits.retry_after_seconds))
        request_id = self._next_id
        self._next_id += 1
        tokens = prompt_tokens, max_output_tokens
        self.window.arrive(request_id, number, *tokens, self.now_ns(), prompt_tokens_max)
        if self.leasing is not None:
            self.leasing.arrived(number)
        if places is not None:
            self.window.only(request_id, places)
        place = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        try:
            self.pump()
            async with asyncio.timeout(limits.wait_seconds):
                endpoint = await place
                return Picked(request_id, endpoint, self._fallbacks(endpoint, places))
        except BaseException as error:
            # It waits no more; if it was let in just now, nothing was sent.
            self.window.withdraw(request_id, self.now_ns())
            self.pump()
            if not isinstance(error, TimeoutError):
                raise
            refusal = gateway.CallError(503, "no endpoint had room in time", limits.retry_after_seconds)
            raise self._counted("waited too long", refusal) from None
        finally:
            del self._waiting[request_id]

    def _fallbacks(self, endpoint: str, places: Collection[int] | None) -> tuple[str, ...]:
        """Return where else a call may go that has its place: endpoints that are there, the emptiest first."""
        others = [
            (self.window.servers[place].requests, other)
            for other, place in self._places.items()
            if other != endpoint and (places is None or place in places)
        ]
        return tuple(other for _, other in sorted(others)[: self.config.pool.fallbacks])

    def around(self, subset: Collection[str] | None) -> str:
        """Return the endpoint with the fewest calls, for one that could not be queued; it is not booked.  Raises
        `CallError`."""
        places = self._eligible(subset) or list(self._places.values())
        self.outcomes["around the policy"] += 1
        return self._endpoints[min(places, key=lambda place: self.window.servers[place].requests)]

    def _eligible(self, subset: Collection[str] | None) -> list[int] | None:
        """Return the places of a subset; None for all."""
        if subset is None and self._places:
            return None
        places = [self._places[each] for each in subset or () if each in self._places]
        if not places:
            raise self._counted("no endpoint", gateway.CallError(503, "no endpoint is there"))
        return None if len(places) == len(self._places) else places

    def _counted(self, outcome: str, error: gateway.CallError) -> gateway.CallError:
        self.outcomes[outcome] += 1
        return error

    def _refuse(self, request_id: int, outcome: str, error: gateway.CallError) -> None:
        """End a call that waits; its place in the queue is free at once, so that no other call waits for it."""
        self.window.withdraw(request_id, self.now_ns())
        place = self._waiting.get(request_id)
        if place is not None and not place.done():
            place.set_exception(self._counted(outcome, error))

    async def run(self) -> None:
        """Charge what comes and is held, and renew leases, until cancelled; then the leases are returned."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._charge())
            if self.leasing is not None:
                tasks.create_task(self.leasing.run())

    async def _charge(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                if self.window.in_flight:
                    self.window.charge(self.now_ns())
            except Exception:
                _log.exception("what is in flight could not be charged; it is again")

    def pump(self) -> None:
        placements = self.window.admit(self.now_ns())
        if self.leasing is not None:
            self.leasing.pumped()
        for placement in placements:
            place = self._waiting[placement.request_id]
            if not place.done():
                place.set_result(self._endpoints[placement.server])

    # --- answers ----------------------------------------------------------------------------------------------------

    def served(self, picked: Picked, endpoint: str) -> None:
        """Count a call that was served by another endpoint than the picked one."""
        if endpoint != picked.endpoint:
            self.outcomes["served elsewhere"] += 1

    def produced(self, picked: Picked, tokens: int) -> None:
        self.window.produced(picked.id, tokens, self.now_ns())

    def finish(self, picked: Picked, usage: gateway.Usage) -> None:
        """End a call whose answer is whole."""
        self.outcomes["finished"] += 1
        said = usage.computed_tokens, usage.output_tokens
        self.window.finish(picked.id, *said, self.now_ns(), usage.cached_tokens)
        self.pump()

    def give_back(self, picked: Picked) -> None:
        """End a call that the endpoint refused, and of which it computed nothing."""
        self.outcomes["refused by endpoint"] += 1
        self.window.give_back(picked.id, self.now_ns())
        self.pump()

    def leave(self, picked: Picked, usage: gateway.Usage | None = None) -> None:
        """End a call whose answer broke off, or whose caller left: the prompt stays charged."""
        self.outcomes["left"] += 1
        said = () if usage is None else (usage.computed_tokens, usage.cached_tokens)
        self.window.cancel(picked.id, self.now_ns(), *said)
        self.pump()

    def promises(self) -> list[str]:
        """Return what the policy promises with the configured windows, and its cautions, a line each."""
        policy, count = self.window.guard.policy, max(len(self.config.pool.endpoints), 1)
        tokens = count * self.config.pool.window_tokens
        clients = tuple(Client(i, name, weight) for i, (name, weight) in enumerate(self.config.weights.items()))
        clients = clients if len(clients) > 1 else (Client(0, "a"), Client(1, "b"))
        bound = policy.guarantee.service_gap_bound(clients, window_limits(policy.guarantee, tokens, self.window.terms))
        promise = "nothing" if bound is None else f"{bound:,} cost units between two clients that wait"
        window = f"{tokens:,} tokens in {count} endpoint{'s' * (count > 1)}"
        return [f"policy {self.config.policy}, {window}: it promises {promise}", *policy.guarantee.cautions(tokens)]

    # --- status -----------------------------------------------------------------------------------------------------

    def status(self) -> Document:
        document: Document = {
            "endpoints": list(self.endpoints),
            "outcomes": dict(sorted(self.outcomes.items())),
            **self.window.status(self.clients.all),
        }
        return document if self.leasing is None else document | {"store": self.leasing.status()}
