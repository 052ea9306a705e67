"""The order of one scheduler's waiting queue: SGLang's own first, and then the policy's.

Nothing that goes wrong here stops SGLang: a policy that fails leaves SGLang's order as it is, and so do, for good and
with one message, books that meet something unforeseen.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from fairsched.engines.inside.decider import Decider
from fairsched.engines.inside.names import Names
from fairsched.engines.inside.settings import SettingsError, own_file
from fairsched.engines.inside.status import Status, monitor_of
from fairsched.engines.serving_audience import Audience
from fairsched.engines.serving_log import ServingLog
from fairsched.engines.sglang.desk import Desk
from fairsched.engines.sglang.protocol import SglangRequest
from fairsched.engines.sglang.ranking import ranked
from fairsched.engines.sglang.settings import Settings
from fairsched.model.monitor import Monitor
from fairsched.policies.base import LocalPolicy

REPORT_SECONDS = 10.0
"""How often a report is written."""
ROOM_TOKENS = 1 << 40
"""What the policy is shown: what fits is SGLang's to say."""

_log = logging.getLogger("sglang.fairsched")


@attrs.frozen
class Chosen:
    """A policy for one engine: one request a decision.  `parameters` are all that it has, for the log."""

    policy: LocalPolicy[Any]
    parameters: dict[str, object]


@attrs.frozen
class Place:
    """Where a scheduler is: `speaks` for its engine (of several ranks that decide alike, one does) as `worker`.

    `refused` says what of its configuration the hook does not cover, if anything.
    """

    worker: int = 0
    speaks: bool = True
    refused: str | None = None

    def own(self, name: str) -> Path:
        """The scheduler's own file: data-parallel ranks beyond the first have their number in the name."""
        return own_file(name, self.worker)


@attrs.frozen
class PoolMemory:
    """SGLang's KV pool, behind its prefix cache.  Outputs are let in by an estimate, and are sure of nothing."""

    tree_cache: Any
    reserves: bool = False

    @property
    def capacity_tokens(self) -> int:
        """What the pool holds in all."""
        return int(self.tree_cache.token_to_kv_pool_allocator.size)

    @property
    def free_tokens(self) -> int:
        """What nobody uses; a cached prefix that nobody uses is free."""
        pool = self.tree_cache.token_to_kv_pool_allocator
        return int(pool.available_size()) + int(self.tree_cache.evictable_size())

    @property
    def seats(self) -> int:
        """The most requests that may run at a time."""
        return int(self.tree_cache.req_to_token_pool.size)


class Shim:
    """The books and the policy of one scheduler.

    Raises `SettingsError` where the promise would be empty, `OSError` for a log or a port that cannot be had.
    """

    def __init__(self, settings: Settings, chosen: Chosen, scheduling: Any, place: Place) -> None:
        if place.refused is None and scheduling.enable_priority_scheduling:
            place = attrs.evolve(place, refused="--enable-priority-scheduling")
        if place.refused is not None:
            raise SettingsError(f"fairsched does not cover {place.refused}")
        memory = PoolMemory(scheduling.tree_cache)
        self._settings = settings
        self._broken = False
        self._place = place
        self._report_at = time.monotonic()
        decider = Decider(chosen.policy, ROOM_TOKENS, _log, "SGLang's own order holds")
        self.status = Status(_monitor(chosen.policy, settings, memory))
        log = _event_log(settings, chosen, memory, place) if place.speaks else None
        names = Names(settings.default_client, settings.clients, settings.clients_max)
        self.desk = Desk(decider, names, settings, Audience(log, [self.status.record]), memory)
        self.status.desk = self.desk
        if place.speaks and settings.metrics_port is not None:
            from fairsched.engines.inside.metrics import serve

            serve(self.status, settings.metrics_host, settings.metrics_port + place.worker, place.worker)
        _log.info("fairsched: %s", self._promise_text())

    def order(self, queue: list[SglangRequest], sort: Callable[[], None]) -> None:
        """Bring the queue into order, in place; `sort` is SGLang's own way."""
        if not self._guarded(lambda: self._look(queue)):
            sort()
            return
        sort()
        self._guarded(lambda: self._rank(queue))

    def _look(self, queue: list[SglangRequest]) -> None:
        self.desk.put_back(queue)
        self.desk.look(queue)
        if self._place.speaks and time.monotonic() >= self._report_at:
            self._report()

    def _rank(self, queue: list[SglangRequest]) -> None:
        desk, settings = self.desk, self._settings
        calls = desk.calls(queue)
        keeps = settings.within_client == "sglang"
        order = ranked(desk.decider, calls, desk.now_ns, settings.ranked_max, keeps)
        if order is None:
            desk.leave_in(calls)
            return
        desk.leave_in(order)
        queue[:] = [call.request for call in order]

    def _guarded(self, act: Callable[[], None]) -> bool:
        """Whether it went well; after a failure nothing is done any more."""
        if not self._broken:
            try:
                act()
            except Exception:
                self._broken = True
                _log.exception("fairsched stops here, and SGLang's own order holds from now on")
        return not self._broken

    def _report(self) -> None:
        self._report_at = time.monotonic() + REPORT_SECONDS
        if self._settings.report is None:
            return
        try:
            self.status.write(self._place.own(self._settings.report))
        except OSError as error:
            _log.warning("the report cannot be written: %s", error)

    def _promise_text(self) -> str:
        said = self.status.document()
        text = f"policy {said['policy']}, {said['kv_capacity_tokens']:,} tokens of KV cache: "
        promise = said["promise"]
        if promise is not None and promise["gap_bound"] is not None:
            return text + (
                f"two clients of equal weight that wait differ by at most {promise['gap_bound']:,} cost units, "
                f"U_dyn = {promise['charge_max']:,}, while SGLang follows the order"
            )
        if self._settings.output_tokens_max is None:
            return text + "orders the queue; set output_tokens_max to have its bound, if it has one, checked"
        return text + "promises nothing"


def _monitor(policy: LocalPolicy[Any], settings: Settings, memory: PoolMemory) -> Monitor | None:
    """What the policy promises, if it is said how long an output may be: none is reserved."""
    most = settings.output_tokens_max
    return None if most is None else monitor_of(policy, memory, most, memory.seats)


def _event_log(settings: Settings, chosen: Chosen, memory: PoolMemory, place: Place) -> ServingLog | None:
    if settings.log is None:
        return None
    name = getattr(chosen.policy, "name", type(chosen.policy).__name__)
    # What a reader holds the run to is SGLang's batch, not the one request that a decision lets in.
    parameters = chosen.parameters | {"max_running": memory.seats}
    path = place.own(settings.log)
    return ServingLog(path, name, parameters, kv_capacity_tokens=memory.capacity_tokens, name="sglang")
