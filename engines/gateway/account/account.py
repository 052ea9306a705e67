"""The account: a window, its clients, and what listens to it.

After `place` a call ends with exactly one of `finish`, `cancel` and `give_back`.  These return at once.  `outcome` is
what the end is counted as in the status.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from fairsched.engines import serving
from fairsched.engines.gateway.account.quota import Budgets, Reservation
from fairsched.engines.gateway.account.recorded import Recorded
from fairsched.engines.gateway.config import GatewayConfig
from fairsched.engines.gateway.openai import CallError
from fairsched.engines.gateway.servers import Failure, Fleet, Upstream
from fairsched.engines.gateway.window import QueueShare, Window, credit, waits
from fairsched.engines.gateway.window.leases import Store, leasing_of
from fairsched.engines.settings import ConfigError
from fairsched.model.request import Client
from fairsched.policies.guarantees import NOTHING, SECOND_NS, Spent

_log = logging.getLogger("fairsched.gateway")

CLIENTS_SHOWN = 20
"""Clients that have a label of their own among the metrics: those that were served most."""
WORKER = "gateway"
"""The gateway's name among the metrics of workers."""
TICK_SECONDS = 0.03
"""What calls have and hold is charged so often: the bound does not care, and an event for each token costs more than
its bytes."""


class PlaceRequest(msgspec.Struct, frozen=True):
    """What a call wants of an account: a place for the client `name` within `wait_seconds`.

    `declared`: the caller named the outputs itself; `avoid`: servers that failed it already; `quota_tokens`: what of
    quotas its prompt reserves; `prompt_tokens_max`: what its prompt may be at most, where that is more.
    """

    name: str
    prompt_tokens: int
    max_output_tokens: int
    declared: bool = True
    wait_seconds: float = 600.0
    avoid: frozenset[int] = frozenset()
    quota_tokens: int = 0
    prompt_tokens_max: int = 0


class Placed(msgspec.Struct, frozen=True):
    """A call that may go: its number, where, its outputs at most, and headers that its caller is told."""

    request_id: int
    upstream: Upstream
    max_output_tokens: int
    headers: Mapping[str, str] = {}


class _Call(msgspec.Struct, frozen=True):
    """A call at a server: which one, its client, and what it holds of quotas."""

    server: int
    client: int
    reserved: Reservation | None


class Account:
    """An account of one event loop.

    `window` has a server for each of the configuration's that is no name to look up, in order.  A `LeasedWindow` has
    its credit from `store` (`leasing_of`).  `log` must know a client before events name it.
    Budgets of quotas are in `quota_store`.
    """

    def __init__(
        self,
        config: GatewayConfig,
        window: Window,
        *,
        log: Recorded | None = None,
        store: Store | None = None,
        quota_store: Store | None = None,
    ) -> None:
        self.config = config
        self.window = window
        self.outcomes: Counter[str] = Counter()
        self.retries = 0
        self.quotas: Budgets | None = None
        self._log = log
        self._begun_ns = time.monotonic_ns()
        self._next_id = 0
        self._places: dict[int, asyncio.Future[int]] = {}
        self._usual_wait_ns = 0.0
        self._queue = QueueShare()
        self._calls: dict[int, _Call] = {}
        self._quota_tokens: Counter[tuple[int, str]] = Counter()
        self._quota_labels = serving.ClientLabels(CLIENTS_SHOWN)
        self.fleet = Fleet(config, window, self.now_ns, self.pump)
        self._produced: Counter[int] = Counter()
        self._ticking: asyncio.TimerHandle | None = None
        self._labels = serving.ClientLabels(CLIENTS_SHOWN)
        self._decided: Callable[[float], object] = lambda seconds: None
        self._registry: Any = None
        if config.metrics:
            # Only here, since it needs the extra `metrics`.
            from prometheus_client import CollectorRegistry

            from fairsched.engines.serving import Samples, decision_seconds

            self._registry = CollectorRegistry()
            self._decided = decision_seconds(self._registry).labels(WORKER).observe
            Samples(self._registry).add(WORKER, self.samples)
        self.clients = serving.ClientRegistry()
        self.configure(config)
        if quota_store is not None:
            self.quotas = Budgets(config, quota_store)
        self.leasing = leasing_of(config.store, window, self.clients, self.pump, self.now_ns, store=store)

    def close(self) -> None:
        """Write what remains to be written: no call is left."""
        if self._log is not None:
            self._log.drain(self.window)

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._begun_ns

    # --- clients ----------------------------------------------------------------------------------------------------

    def configure(self, config: GatewayConfig) -> None:
        """Take clients, weights and limits from this configuration from now on.

        Raises `ConfigError` where that moves a client that was here before to another organisation; then nothing
        changes.
        """
        for client in self.clients.all:
            _check_place(client, config)
        self.config = config
        before = tuple(self.clients.all)
        self.clients.unknown_max = max(config.limits.clients - len(config.clients), 0)
        self.clients.configure({name: client.weight for name, client in config.clients.items()})
        for client in tuple(self.clients.all):
            self._place_in_groups(client, before[client.id] if client.id < len(before) else None)
        self.fleet.configure(config)
        if self.quotas is not None:
            self.quotas.configure(config)

    def _place_in_groups(self, client: Client, before: Client | None) -> None:
        """Put a client into its groups; the logs hear of a new one, and the window of all that is not plain."""
        configured = client.name in self.config.clients
        # What a new client's name says of it, its groups too, stays as it was however names are made later.
        known = configured or before is None
        groups = self.config.groups(client.name) if known else self.config.weighed(client.place)
        client = Client(client.id, client.name, client.weight, groups)
        self.clients.put(client)
        if before is None and self._log is not None:
            self._log.client(client)
        if client != (before or Client(client.id, client.name)):
            self.window.configure(client, self.now_ns())

    def client(self, name: str) -> Client:
        """Return the client that a name stands for, which may share it with others."""
        client, new = self.clients.resolve(name)
        if new:
            self._place_in_groups(client, None)
        return client

    # --- a call -----------------------------------------------------------------------------------------------------

    async def place(self, wanted: PlaceRequest) -> Placed:
        """Return where a call goes, once it may.  Cancelling this withdraws it, and counts it as "left".

        Raises `CallError` for a call that is too large, over a quota, of which too many wait, or that waited too long.
        """
        # A call that declares nothing is given what fits.
        refusal = self.window.refuses(wanted.prompt_tokens, wanted.max_output_tokens if wanted.declared else 1)
        if refusal is not None:
            self.count("too large")
            raise CallError(413, refusal)
        client, prompt_tokens, most = self.client(wanted.name), wanted.prompt_tokens, wanted.max_output_tokens
        if not wanted.declared:
            most = self.window.ample_outputs(client.id, prompt_tokens, most)
        most, reserved = await self._reserve(client, wanted, most)
        try:
            places = self.fleet.allowed(client.id, wanted.avoid)
            self._check_limits(client)
            request_id = self._next_id
            self._next_id += 1
            self.window.arrive(request_id, client.id, prompt_tokens, most, self.now_ns(), wanted.prompt_tokens_max)
            if self.leasing is not None:
                self.leasing.arrived(client.id)
            if places is not None:
                self.window.only(request_id, places)
            server = await self._wait(request_id, client, wanted.wait_seconds)
        except BaseException:
            if self.quotas is not None and reserved is not None:
                self.quotas.end(reserved, NOTHING)
            raise
        self._calls[request_id] = _Call(server, client.id, reserved)
        self._tick_later()
        return Placed(request_id, self.fleet.servers[server], most, {} if reserved is None else reserved.headers)

    async def _reserve(self, client: Client, wanted: PlaceRequest, most: int) -> tuple[int, Reservation | None]:
        """Reserve what a call of so many outputs may come to, and return these, made to fit where its caller leaves
        them open.  Raises `CallError` (429) for a call over a quota."""
        if self.quotas is None or not (quotas := self.quotas.quotas_of(client.name)):
            return most, None
        if not wanted.declared:
            most = self.quotas.fitted(quotas, wanted.quota_tokens, most)
        try:
            return most, await self.quotas.reserve(client.name, wanted.quota_tokens + most, quotas)
        except CallError:
            self.count("over quota")
            raise
        except asyncio.CancelledError:
            self.count("left")
            raise

    async def _wait(self, request_id: int, client: Client, wait_seconds: float) -> int:
        place: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        begun_ns, self._places[request_id] = self.now_ns(), place
        self._queue.enter(client, request_id)
        try:
            self.pump()
            while len(self._queue) > self.config.limits.waiting:
                self._lose(self._queue.loser())
            async with asyncio.timeout(None if place.done() else wait_seconds):
                server = await place
            self._usual_wait_ns += (self.now_ns() - begun_ns - self._usual_wait_ns) / 8
            return server
        except CallError:
            raise
        except BaseException as error:
            # It may have been let in just now; nothing was sent.
            late = isinstance(error, TimeoutError)
            self._withdraw(request_id, "waited too long" if late else "left")
            if not late:
                raise
            raise CallError(503, "no server had room in time", self._again_seconds) from None
        finally:
            del self._places[request_id]

    def _lose(self, request_id: int) -> None:
        """Refuse a call that waits, since there is no room and its client has most of the queue."""
        place, limits = self._places[request_id], self.config.limits
        if place.done():
            # Its caller has just left, and it is about to withdraw itself.
            self._queue.leave(request_id)
            return
        place.set_exception(CallError(429, f"{limits.waiting} requests wait, many of yours", self._again_seconds))
        self._withdraw(request_id, "limited")

    def make_room(self) -> bool:
        """Refuse the newest waiting call of the client with most of the queue, if that has several: each keeps a
        connection that another caller has none of.  Returns whether there was one."""
        if (request_id := self._queue.crowded()) is None:
            return False
        self._lose(request_id)
        return True

    def _withdraw(self, request_id: int, outcome: str) -> None:
        self._queue.leave(request_id)
        self.window.withdraw(request_id, self.now_ns())
        self.count(outcome)
        self.pump()

    def _check_limits(self, client: Client) -> None:
        limits = self.config.limits
        waiting, most = self.window.waiting_of(client.id), limits.waiting_per_client
        if waiting >= most:
            self.count("limited")
            raise CallError(429, f"{waiting} requests of yours wait, and {most} may", self._again_seconds)

    @property
    def _again_seconds(self) -> int:
        """When a call that is refused may come again: after what the last calls waited."""
        return max(self.config.limits.retry_after_seconds, math.ceil(self._usual_wait_ns / SECOND_NS))

    def pump(self) -> None:
        begun = time.perf_counter()
        placements = self.window.admit(self.now_ns())
        if placements:
            self._decided(time.perf_counter() - begun)
        if self.leasing is not None:
            self.leasing.pumped()
        for placement in placements:
            self._queue.leave(placement.request_id)
            place = self._places[placement.request_id]
            if not place.done():
                place.set_result(placement.server)

    def produced(self, request_id: int, tokens: int) -> None:
        """Count output tokens that passed by.  They are charged within a tick."""
        self._produced[request_id] += tokens

    def _tick_later(self) -> None:
        """Tick as long as calls are at servers."""
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().call_later(TICK_SECONDS, self._ticked)

    def _ticked(self) -> None:
        """Charge the outputs since the last tick, and the memory that was held."""
        self._ticking = None
        self._hand_over()
        self.window.charge(self.now_ns())
        if self._calls:
            self._tick_later()

    def _hand_over(self) -> None:
        """Tell the window of the outputs since the last time; a tick or an end charges them."""
        produced, self._produced = self._produced, Counter()
        for request_id, tokens in produced.items():
            self.fleet.heard(self._calls[request_id].server)
            self.window.produced(request_id, tokens, self.now_ns())

    def finish(
        self, request_id: int, computed_tokens: int | None, output_tokens: int | None, cached_tokens: int = 0
    ) -> None:
        """End a call whose answer is whole, of which the server says so much (None: it does not say)."""
        said = computed_tokens is not None and output_tokens is not None
        spent = Spent(computed_tokens or 0, cached_tokens, output_tokens or 0) if said else None
        end = partial(self.window.finish, request_id, computed_tokens, output_tokens, cached_tokens=cached_tokens)
        self._end(request_id, end, "finished", spent)

    def cancel(
        self,
        request_id: int,
        outcome: str,
        *,
        billed: bool = True,
        computed_tokens: int | None = None,
        cached_tokens: int = 0,
    ) -> None:
        """End a call that was sent, and whose usage is not known but for its prompt's, if that was said: it is charged
        by estimate, in quotas if `billed`."""
        end = partial(self.window.cancel, request_id, computed_tokens=computed_tokens, cached_tokens=cached_tokens)
        self._end(request_id, end, outcome, None if billed else NOTHING)

    def give_back(self, request_id: int, outcome: str, *, sent: bool = False) -> None:
        """End a call of which the server computed nothing: it was never there, or was `sent` and refused."""
        self._end(request_id, partial(self.window.give_back, request_id, sent=sent), outcome, NOTHING)

    def count(self, outcome: str, calls: int = 1) -> None:
        """Count calls that ended before they had a place."""
        self.outcomes[outcome] += calls

    def _end(self, request_id: int, end: Callable[[int], object], outcome: str, spent: Spent | None) -> None:
        """Tell the window of an end."""
        self._hand_over()
        call = self._calls.pop(request_id)
        if self.quotas is not None and call.reserved is not None:
            self.quotas.end(call.reserved, spent)
            charged = Spent(unsaid=call.reserved.tokens) if spent is None else spent
            for kind, tokens in msgspec.structs.asdict(charged).items():
                self._quota_tokens[call.client, kind] += tokens
        self.count(outcome)
        self.retries += outcome.startswith("tried again")
        end(self.now_ns())
        self.pump()

    # --- servers ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look after the servers and the leases, until cancelled; then tell the budgets what ended."""
        try:
            # Unlike `gather`, a group that is cancelled waits until the leases are returned.
            async with asyncio.TaskGroup() as group:
                group.create_task(self.fleet.run())
                if self.leasing is not None:
                    group.create_task(self.leasing.run())
        finally:
            if self.quotas is not None:
                await self.quotas.close()

    def upstreams(self) -> tuple[Upstream, ...]:
        """Return the servers that take calls."""
        return self.fleet.upstreams()

    def failed(self, server: int, name: str, failure: Failure) -> None:
        """Tell that a server failed a call of a client."""
        self.fleet.failed(server, self.client(name).id, failure)

    def may_retry(self, name: str) -> bool:
        """Return whether a client may try again, and take that from its retries."""
        return self.fleet.health.may_retry(self.client(name).id)

    def worked(self, server: int, name: str) -> None:
        """Tell that a server gave the client an answer."""
        self.fleet.worked(server, self.client(name).id)

    # --- what is told -----------------------------------------------------------------------------------------------

    async def status(self) -> serving.Document:
        """Return plain JSON values: service by client, the gap against its bound, servers, ends."""
        document = self.document()
        return document if self.quotas is None else {**document, "quota": self.quotas.status()}

    def document(self) -> serving.Document:
        said, window = self.window.status(self.clients.all), self.window
        gives_none = self.leasing is not None and self.leasing.gives_none
        document: serving.Document = {
            **said,
            "waits": waits(window, self.clients.all, self.now_ns(), store_away=gives_none),
            "credit": credit(window, self.clients.all),
            "servers": self.fleet.status(),
            "outcomes": dict(sorted(self.outcomes.items())),
            "retries": self.retries,
        }
        if self._log is not None:
            document |= self._log.status()
        if self.leasing is not None:
            document["store"] = self.leasing.status()
        return document

    async def usage(self) -> serving.Document:
        """Return plain JSON values: what clients, users and organisations used, and their quotas; empty without."""
        return {} if self.quotas is None else await self.quotas.usage()

    async def metrics(self) -> bytes:
        if self._registry is None:
            return b""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def samples(self) -> Iterator[serving.Sample]:
        """Yield the samples for Prometheus; prompts are counted as they are charged."""
        window, usage = self.window, self.window.usage
        tokens = {(client, "prefill"): count for client, count in usage.prompt_tokens.items()}
        tokens |= {(client, "decode"): count for client, count in usage.output_tokens.items()}
        yield from self._labels.samples(tokens, lambda client: self.clients.all[client].name)
        if usage.monitor is not None:
            yield from serving.promise_samples(usage.monitor, usage.monitor.report())
        if self.leasing is not None:
            yield from self.leasing.samples()
        if self.quotas is not None:
            yield from self.quotas.samples()
            used = {key: count for key, count in self._quota_tokens.items() if count}
            for _, labels, count in self._quota_labels.samples(used, lambda client: self.clients.all[client].name):
                yield "quota_tokens_total", {"client": labels["client"], "kind": labels["phase"]}, count
        for outcome, count in sorted(self.outcomes.items()):
            yield "requests_total", {"outcome": outcome}, count
        yield "retries_total", {}, self.retries
        yield "overrun_tokens_total", {}, window.overrun_tokens
        yield "waiting_requests", {}, window.waiting
        yield "running_requests", {}, window.in_flight
        yield "window_free_tokens", {}, window.tokens - window.in_flight_tokens
        yield "policy_set_aside", {}, window.guard.set_aside is not None
        for server, said in self.fleet.status().items():
            yield "server_up", {"server": server}, bool(said["up"])
            yield "server_window_requests", {"server": server}, said["window_requests"]
            yield "uncharged_tokens_total", {"server": server}, said["uncharged_tokens"]


def _check_place(client: Client, config: GatewayConfig) -> None:
    """Raise `ConfigError` where the configuration puts a client elsewhere than it was.  One that is not in the
    configuration any more stays where it was, with what it owes."""
    if client.name not in config.clients:
        return
    here, there = ("/".join(name for name, _ in place) for place in (config.groups(client.name), client.place))
    if here != there:
        raise ConfigError(
            f"client.{client.name} is in {here or 'no organisation'}, and was in {there or 'none'}, which is charged "
            "with what it owes: give it another name there"
        )
