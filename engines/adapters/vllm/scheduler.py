"""The scheduler class of vLLM's V1 engine: vLLM's own, with another queue, and events of what it does.

vLLM keeps its batching: chunks, budgets, preemption, speculation, running a step ahead.  Which request enters the batch
next is the policy's: `--scheduler-cls fairsched.integrations.vllm.FairScheduler`.
"""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import vllm
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request as VllmCall

from fairsched.engines.adapters.common import Outputs, TrackerStatus, probe
from fairsched.engines.adapters.vllm.memory import KvMemory, Prefixes
from fairsched.engines.adapters.vllm.protocol import VllmRequest
from fairsched.engines.adapters.vllm.queue import FairQueue
from fairsched.engines.adapters.vllm.settings import VllmSettings, chosen, read_settings, unreserved_tokens
from fairsched.engines.adapters.vllm.tracker import VllmTracker
from fairsched.engines.serving import AdmissionGuard, ClientRegistry, EventBus, monitor_of, require_certificate
from fairsched.engines.settings import ConfigError
from fairsched.model.request import TOKENS_MAX, Client, Prompt, Request
from fairsched.policies.base import AnyLocalPolicy

_log = init_logger("vllm.fairsched")


class FairScheduler(AsyncScheduler):  # type: ignore[misc]  # vLLM is not among what types are checked with.
    """vLLM's scheduler with the order and gate of the policy that its settings name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = read_settings(self.vllm_config.additional_config, os.environ)
        _probe(self)
        _check(self, settings)
        policy = chosen(settings, self.max_num_scheduled_tokens)
        memory = KvMemory(self.kv_cache_manager, self.block_size, self.num_lookahead_tokens, settings.reserve_outputs)
        clients = settings.registry()
        _check_policy(policy.policy, self.max_model_len)
        _certify(settings, policy.policy, clients, memory.capacity_tokens, self.max_model_len)
        unreserved = unreserved_tokens(settings, memory.capacity_tokens)
        guard = AdmissionGuard(policy.policy, _log, budget_ms=settings.decision_budget_ms)
        monitor = monitor_of(
            *(policy.policy, memory.capacity_tokens, self.max_model_len),
            running_max=self.max_num_running_reqs * (self._tokens_ahead() if guard.pauses else 1),
            request_tokens_max=self.max_model_len,
            unreserved_tokens=unreserved,
        )
        self.status = TrackerStatus(monitor)
        self._outputs = Outputs(settings, self.status, self.parallel_config.data_parallel_index, _log)
        self._event_log = self._outputs.event_log(policy, "vllm", memory.capacity_tokens)
        self.tracker = VllmTracker(
            guard,
            memory,
            clients,
            Prefixes(memory, policy.looks_at_cache and self.cache_config.enable_prefix_caching),
            EventBus(self._event_log, [self.status.record]),
            self.max_model_len,
            _since_now(),
            settings.client_key,
            unreserved,
        )
        queue = self.waiting = FairQueue(self.tracker, self._is_ready)
        self.status.tracker, self.status.uncovered = self.tracker, lambda: queue.uncovered
        self._stop_metrics = self._outputs.serve_metrics()
        _log.info("fairsched: %s", self.status.promise_text())
        for caution in policy.policy.guarantee.cautions(memory.capacity_tokens):
            _log.warning("fairsched: %s", caution)

    def _tokens_ahead(self) -> int:
        """Return how many tokens a request may produce before the policy learns of the first of them."""
        return int(self.vllm_config.max_concurrent_batches * (1 + self.num_spec_tokens))

    # --- steps ------------------------------------------------------------------------------------------------------

    def _is_ready(self, request: VllmCall) -> bool:
        """Return whether the request could run now: what vLLM asks before it puts one off."""
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return False
        return bool(self._handle_blocked_waiting_request(request))

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        self.tracker.pause()
        while (request := self.tracker.in_the_way(self.max_num_active_reqs - len(self.running))) is not None:
            self.running.remove(request)
            self._preempt_request(request, time.monotonic())
        self.waiting.open_step(self.max_num_active_reqs - len(self.running))
        return super().schedule(*args, **kwargs)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        self.waiting.settle()
        self.tracker.scheduled(id(scheduler_output), scheduler_output.num_scheduled_tokens)
        super()._update_after_schedule(scheduler_output)

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.tracker.delivered(id(scheduler_output), scheduler_output.num_scheduled_tokens)
        self._outputs.report(if_due=True)
        return outputs

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: object) -> list[VllmCall]:
        finished: list[VllmCall] = super().finish_requests(request_ids, finished_status)
        for request in finished:
            self.tracker.leave(request)
        return finished

    def shutdown(self) -> None:
        self._stop_metrics()
        if self._event_log is not None:
            self._event_log.complete(self.tracker.guard.state)
        self._outputs.report()
        super().shutdown()


def _probe(scheduler: Any) -> None:
    """Refuse a release without what is used of it.  Raises `ConfigError`."""
    manager = scheduler.kv_cache_manager
    probe(
        f"vLLM {vllm.__version__}",
        (VllmCall, VllmRequest),
        (VllmCall, "num_stale_output_tokens drop_stale_output"),
        (AsyncScheduler, "schedule _update_after_schedule/1 update_from_output/2 finish_requests/2 shutdown/0"),
        (AsyncScheduler, "_preempt_request/2 _handle_blocked_waiting_request/1"),
        (scheduler, "waiting running max_num_active_reqs max_num_running_reqs max_num_scheduled_tokens max_model_len"),
        (scheduler, "block_size num_lookahead_tokens num_spec_tokens kv_cache_config is_encoder_decoder policy"),
        (manager, "get_computed_blocks/1 get_blocks/1 block_pool"),
        (manager.block_pool, "get_num_free_blocks/0"),
        (FairQueue, " ".join(RequestQueue.__abstractmethods__)),
    )


def _check(scheduler: Any, settings: VllmSettings) -> None:
    """Refuse what would make the promise empty.  Raises `ConfigError`."""
    config = scheduler.vllm_config
    refused = [
        (config.kv_transfer_config is not None, "KV transfer (disaggregated prefill, offloading)"),
        (config.ec_transfer_config is not None, "encoder cache transfer"),
        (scheduler.policy.value != "fcfs", "--scheduling-policy priority"),
        (scheduler.is_encoder_decoder, "encoder-decoder models"),
        (config.model_config.runner_type == "pooling", "pooling models"),
        (config.model_config.is_diffusion, "diffusion models"),
    ]
    for present, what in refused:
        if present:
            raise ConfigError(f"fairsched does not cover {what}")
    groups = scheduler.kv_cache_config.kv_cache_groups
    plain = len(groups) == 1 and isinstance(groups[0].kv_cache_spec, FullAttentionSpec)
    if settings.reserve_outputs and not plain:
        raise ConfigError(
            "outputs can be reserved for models with full attention only; "
            '"reserve_outputs": false serves this one under the larger constant'
        )


def _check_policy(policy: AnyLocalPolicy, model_tokens_max: int) -> None:
    """Raise `ConfigError` for a policy that would never let in the longest request of the model."""
    longest = Request(0, 0, 0, Prompt(min(model_tokens_max, TOKENS_MAX) - 1), 1)
    if (refusal := policy.refuses(longest)) is not None:
        raise ConfigError(f"fairsched: a request as long as the model's context would wait for ever: {refusal}")


def _certify(
    settings: VllmSettings, policy: AnyLocalPolicy, clients: ClientRegistry, capacity: int, model_tokens_max: int
) -> None:
    """Raise `NotCertifiedError` or `ConfigError` unless the certificate, if one is asked for, covers this engine."""
    if settings.certificate is None:
        return
    certified = require_certificate(policy, Path(settings.certificate), capacity)
    for what, most in (("prompt", certified.prompt_tokens_max), ("max_output", certified.max_output_tokens)):
        if most < model_tokens_max - 1:
            raise ConfigError(f"{most} {what} tokens are certified, and the model takes {model_tokens_max - 1}")
    for client in (*clients.all, Client(0, "an unknown one")):
        certified.check_weight(client)


def _since_now() -> Callable[[], int]:
    start = time.monotonic_ns()
    return lambda: time.monotonic_ns() - start
