"""The order of one scheduler's waiting queue: SGLang's own first, and then the policy's.

Nothing that goes wrong here stops SGLang: a policy that fails leaves SGLang's order as it is, and so does, for good and
with one message, a tracker that meets something unforeseen.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from fairsched.engines.adapters.common import Chosen, Outputs, TrackerStatus, choose, probe, read_file
from fairsched.engines.adapters.sglang.settings import GATEWAY, VARIABLE, SglangSettings
from fairsched.engines.adapters.sglang.tracker import SglangRequest, SglangTracker
from fairsched.engines.gateway import CLIENT_HEADER
from fairsched.engines.serving import AdmissionGuard, EventBus, monitor_of
from fairsched.engines.settings import ConfigError
from fairsched.model.monitor import Monitor
from fairsched.policies.base import AnyLocalPolicy

TARGET = "sglang.srt.managers.schedule_policy.SchedulePolicy"
ROUTING_KEY = "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.extract_routing_key"
"""Where SGLang's server reads the header that its scheduler is told."""

_log = logging.getLogger("sglang.fairsched")


@attrs.frozen
class QueueConnection:
    """Where a scheduler is: `speaks` for its engine (of several ranks that decide alike, one does) as `worker`.

    `refused` says what of its configuration the hook does not cover, if anything.
    """

    worker: int = 0
    speaks: bool = True
    refused: str | None = None


@attrs.frozen
class PoolMemory:
    """SGLang's KV pool, behind its prefix cache.  Outputs are let in by an estimate, and are sure of nothing."""

    tree_cache: Any
    reserves: bool = False

    @property
    def capacity_tokens(self) -> int:
        return int(self.tree_cache.token_to_kv_pool_allocator.size)

    @property
    def free_tokens(self) -> int:
        """The tokens that are not in use; a cached prefix that no request uses is free."""
        pool = self.tree_cache.token_to_kv_pool_allocator
        return int(pool.available_size()) + int(self.tree_cache.evictable_size())

    @property
    def seats(self) -> int:
        """The most requests that may run at a time."""
        return int(self.tree_cache.req_to_token_pool.size)


class Shim:
    """The tracker and the policy of one scheduler.

    Raises `ConfigError` where the promise would be empty, `OSError` for a log or a port that cannot be had.
    """

    def __init__(self, settings: SglangSettings, chosen: Chosen, scheduling: Any, place: QueueConnection) -> None:
        if place.refused is None and scheduling.enable_priority_scheduling:
            place = attrs.evolve(place, refused="--enable-priority-scheduling")
        if place.refused is not None:
            raise ConfigError(f"fairsched does not cover {place.refused}")
        memory = PoolMemory(scheduling.tree_cache)
        self._broken = False
        self._speaks = place.speaks
        budget_ms = settings.decision_budget_ms
        guard = AdmissionGuard(chosen.policy, _log, "SGLang's own order holds", budget_ms=budget_ms)
        self.status = TrackerStatus(_monitor(chosen.policy, settings, memory))
        self._outputs = Outputs(settings, self.status, place.worker, _log)
        log = None
        if place.speaks:
            # What a reader holds the run to is SGLang's batch, not the one request that a decision lets in.
            log = self._outputs.event_log(chosen, "sglang", memory.capacity_tokens, max_running=memory.seats)
        bus = EventBus(log, [self.status.record])
        self.tracker = SglangTracker(guard, memory, settings.registry(), bus, settings)
        self.status.tracker = self.tracker
        if place.speaks:
            self._outputs.serve_metrics()
        asks = "orders the queue; set output_tokens_max to have its bound, if it has one, checked"
        nothing = asks if settings.output_tokens_max is None else "promises nothing"
        _log.info("fairsched: %s", self.status.promise_text(", while SGLang follows the order", nothing=nothing))

    def order(self, queue: list[SglangRequest], sort: Callable[[], None]) -> None:
        """Bring the queue into order, in place; `sort` is SGLang's own way."""
        if not self._guarded(lambda: self._look(queue)):
            sort()
            return
        sort()
        self._guarded(lambda: self._rank(queue))

    def _look(self, queue: list[SglangRequest]) -> None:
        self.tracker.put_back(queue)
        self.tracker.look(queue)
        if self._speaks:
            self._outputs.report(if_due=True)

    def _rank(self, queue: list[SglangRequest]) -> None:
        tracker = self.tracker
        calls = tracker.calls(queue)
        order = tracker.ranked(calls)
        tracker.leave_in(calls if order is None else order)
        if order is not None:
            queue[:] = [call.request for call in order]

    def _guarded(self, act: Callable[[], None]) -> bool:
        """Return whether it went well; after a failure nothing is done any more."""
        if not self._broken:
            try:
                act()
            except Exception:
                self._broken = True
                _log.exception("fairsched stops here, and SGLang's own order holds from now on")
        return not self._broken


def _monitor(policy: AnyLocalPolicy, settings: SglangSettings, memory: PoolMemory) -> Monitor | None:
    """Return what the policy promises, if it is said how long an output may be: none is reserved."""
    most = settings.output_tokens_max
    return None if most is None else monitor_of(policy, memory.capacity_tokens, most, running_max=memory.seats)


# --- the plugin -----------------------------------------------------------------------------------------------------


def register() -> None:
    """Register the hooks with the settings that the environment names.

    Raises `ConfigError` or `ValueError` for what cannot be used.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    settings = read_file(Path(os.environ[VARIABLE]), VARIABLE, SglangSettings)
    policy = chosen(settings)

    def made(_: None, scheduling: Any, *args: Any, **kwargs: Any) -> None:
        import sglang
        from sglang.srt.managers.schedule_batch import Req

        cache = "token_to_kv_pool_allocator req_to_token_pool evictable_size/0"
        queue = (scheduling, "calc_priority enable_priority_scheduling")
        probe(f"SGLang {sglang.__version__}", (Req, SglangRequest), queue, (scheduling.tree_cache, cache))
        scheduling.fairsched = Shim(settings, policy, scheduling, _place())

    def ordered(original: Any, scheduling: Any, waiting_queue: Any, *args: Any, **kwargs: Any) -> None:
        shim = scheduling.fairsched
        shim.order(waiting_queue, lambda: original(scheduling, waiting_queue, *args, **kwargs))

    def key(_: Any, serving: Any, raw_request: Any) -> str | None:
        found: str | None = None if raw_request is None else raw_request.headers.get(CLIENT_HEADER)
        return found

    if settings.client_from == GATEWAY:
        HookRegistry.register(ROUTING_KEY, key, HookType.AROUND)
    HookRegistry.register(f"{TARGET}.__init__", made, HookType.AFTER)
    HookRegistry.register(f"{TARGET}.calc_priority", ordered, HookType.AROUND)


def chosen(settings: SglangSettings) -> Chosen:
    """Return the policy of these settings as the hook needs it: order and gate, one request a decision.

    Raises `ConfigError` for one that an order of the queue cannot follow.
    """
    own = {"batching": "iteration-level", "max_running": "1", "reserve": "optimistic"}
    if "max_batched_tokens" in settings.parameters:
        raise ConfigError("fairsched: max_batched_tokens is SGLang's")
    found = choose(settings, "SGLang", own, "SGLang's")
    policy = found.policy
    if found.looks_at_cache:
        raise ConfigError(
            f"fairsched: {settings.policy} looks at what is cached, which SGLang keeps to itself; "
            'take its gate, such as "fcfs+deficit", with within_client = "sglang" and --schedule-policy lpm'
        )
    if getattr(policy.gate, "in_flight_cap_tokens", None) is not None:
        raise ConfigError(
            "fairsched: an order of the queue holds no request back, so it cannot keep in_flight_cap_tokens"
        )
    return found


def _place() -> QueueConnection:
    """Return where this scheduler is, as SGLang's own context says."""
    from sglang.srt.runtime_context import get_disagg, get_exec, get_parallel

    mode = get_disagg().disaggregation_mode
    parallel = get_parallel()
    worker = (parallel.dp_rank or 0) * parallel.attn_dp_size + parallel.attn_dp_rank
    refused = None if mode == "null" else f"disaggregated {mode}"
    if get_exec().dllm.dllm_algorithm is not None:
        refused = "diffusion language models"
    return QueueConnection(worker, parallel.attn_tp_rank == 0 and parallel.pp_rank == 0, refused)
