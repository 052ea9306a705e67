"""The scheduler class of vLLM's V1 engine: vLLM's own, with another queue, and events of what it does.

vLLM keeps its batching: chunks, budgets, preemption, speculation, running a step ahead.  Which request enters the batch
next is the policy's.  A subclass says which policy that is (`fairsched.integrations.vllm`).
"""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import vllm
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request as VllmCall

from fairsched.engines.inside.decider import Decider
from fairsched.engines.inside.settings import SettingsError, own_file
from fairsched.engines.inside.status import Status, monitor_of
from fairsched.engines.serving_audience import Audience
from fairsched.engines.serving_certificate import require_certificate
from fairsched.engines.serving_log import ServingLog
from fairsched.engines.vllm.desk import Desk
from fairsched.engines.vllm.memory import KvMemory
from fairsched.engines.vllm.names import Names
from fairsched.engines.vllm.prefixes import Prefixes
from fairsched.engines.vllm.queue import FairQueue
from fairsched.engines.vllm.settings import Settings, read_settings
from fairsched.engines.vllm.version import TESTED
from fairsched.model.request import TOKENS_MAX, Client, Prompt, Request
from fairsched.policies.base import LocalPolicy

REPORT_SECONDS = 10.0
"""How often a report is written while the engine serves."""

_log = init_logger("vllm.fairsched")


@attrs.frozen
class Chosen:
    """A policy for one engine: one request a decision.  `parameters` are all that it has, for the log; `follows_cache`
    says whether its order looks at what is cached."""

    policy: LocalPolicy[Any]
    parameters: dict[str, object]
    follows_cache: bool


class PolicyScheduler(AsyncScheduler):  # type: ignore[misc]  # vLLM is not among what types are checked with.
    """vLLM's scheduler with a policy's order and gate.  A subclass says which (`choose`)."""

    @staticmethod
    def choose(settings: Settings, step_tokens: int) -> Chosen:
        """The policy of these settings in an engine with this token budget of a step.  Raises `ValueError`."""
        raise NotImplementedError

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = read_settings(self.vllm_config.additional_config, os.environ)
        TESTED.require(vllm.__version__, settings.accept_untested_version)
        _check(self, settings)
        chosen = type(self).choose(settings, self.max_num_scheduled_tokens)
        memory = KvMemory(self.kv_cache_manager, self.block_size, self.num_lookahead_tokens, settings.reserve_outputs)
        names = Names(settings)
        _check_policy(chosen.policy, self.max_model_len)
        _certify(settings, chosen.policy, names, memory.capacity_tokens, self.max_model_len)
        self.status = Status(monitor_of(chosen.policy, memory, self.max_model_len, self.max_num_running_reqs))
        self._settings = settings
        self._rank: int = self.parallel_config.data_parallel_index
        self._event_log = _event_log(settings, chosen, memory.capacity_tokens, self._rank)
        self.desk = Desk(
            Decider(chosen.policy, memory.capacity_tokens, _log),
            memory,
            names,
            Prefixes(memory, chosen.follows_cache and self.cache_config.enable_prefix_caching),
            Audience(self._event_log, [self.status.record]),
            self.max_model_len,
            _since_now(),
        )
        queue = self.waiting = FairQueue(self.desk, self._is_ready)
        self.status.desk, self.status.uncovered = self.desk, lambda: queue.uncovered
        self._stop_metrics = _serve_metrics(self.status, settings, self._rank)
        self._report_at = time.monotonic()
        _log.info("fairsched: %s", _promise_text(self.status))

    # --- steps ------------------------------------------------------------------------------------------------------

    def _is_ready(self, request: VllmCall) -> bool:
        """Whether the request could run now: what vLLM asks before it puts one off."""
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return False
        return bool(self._handle_blocked_waiting_request(request))

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        self.waiting.open_step(self.max_num_active_reqs - len(self.running))
        return super().schedule(*args, **kwargs)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        self.waiting.settle()
        self.desk.scheduled(id(scheduler_output), scheduler_output.num_scheduled_tokens)
        super()._update_after_schedule(scheduler_output)

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.desk.delivered(id(scheduler_output), scheduler_output.num_scheduled_tokens)
        if time.monotonic() >= self._report_at:
            self._report()
        return outputs

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: Any) -> list[VllmCall]:
        finished: list[VllmCall] = super().finish_requests(request_ids, finished_status)
        for request in finished:
            self.desk.leave(request)
        return finished

    def shutdown(self) -> None:
        if self._stop_metrics is not None:
            self._stop_metrics()
        if self._event_log is not None:
            self._event_log.complete(self.desk.decider.state)
        self._report()
        super().shutdown()

    def _report(self) -> None:
        """Write the report, if one is asked for; a process that is killed leaves the one of a few seconds ago."""
        self._report_at = time.monotonic() + REPORT_SECONDS
        if self._settings.report is None:
            return
        try:
            self.status.write(own_file(self._settings.report, self._rank))
        except Exception as error:  # No report is worth an engine.
            _log.warning("the report cannot be written: %s", error)


def _check(scheduler: Any, settings: Settings) -> None:
    """Refuse what would make the promise empty.  Raises `SettingsError`."""
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
            raise SettingsError(f"fairsched does not cover {what}")
    groups = scheduler.kv_cache_config.kv_cache_groups
    plain = len(groups) == 1 and isinstance(groups[0].kv_cache_spec, FullAttentionSpec)
    if settings.reserve_outputs and not plain:
        raise SettingsError(
            "outputs can be reserved for models with full attention only; "
            '"reserve_outputs": false serves this one under the larger constant'
        )


def _check_policy(policy: LocalPolicy[Any], model_tokens_max: int) -> None:
    """Raise `SettingsError` for a policy that would never let in the longest request of the model."""
    longest = Request(0, 0, 0, Prompt(min(model_tokens_max, TOKENS_MAX) - 1), 1)
    if (refusal := policy.refuses(longest)) is not None:
        raise SettingsError(f"fairsched: a request as long as the model's context would wait for ever: {refusal}")


def _certify(settings: Settings, policy: LocalPolicy[Any], names: Names, capacity: int, model_tokens_max: int) -> None:
    """Raise `NotCertifiedError` or `SettingsError` unless the certificate, if one is asked for, covers this engine."""
    if settings.certificate is None:
        return
    certified = require_certificate(policy, Path(settings.certificate), capacity)
    for what, most in (("prompt", certified.prompt_tokens_max), ("max_output", certified.max_output_tokens)):
        if most < model_tokens_max - 1:
            raise SettingsError(f"{most} {what} tokens are certified, and the model takes {model_tokens_max - 1}")
    for client in (*names.configured, Client(0, "anybody")):
        certified.check_weight(client)


def _event_log(settings: Settings, chosen: Chosen, capacity: int, rank: int) -> ServingLog | None:
    if settings.log is None:
        return None
    name = getattr(chosen.policy, "name", type(chosen.policy).__name__)
    return ServingLog(own_file(settings.log, rank), name, chosen.parameters, kv_capacity_tokens=capacity, name="vllm")


def _serve_metrics(status: Status, settings: Settings, rank: int) -> Callable[[], None] | None:
    if settings.metrics_port is None:
        return None
    from fairsched.engines.inside.metrics import serve

    return serve(status, settings.metrics_host, settings.metrics_port + rank, rank)


def _promise_text(status: Status) -> str:
    said = status.document()
    text = f"policy {said['policy']}, {said['kv_capacity_tokens']:,} tokens of KV cache: "
    promise = said["promise"]
    if promise is None or promise["gap_bound"] is None:
        return text + "promises nothing"
    name = "U" if said["outputs_reserved"] else "U_dyn"
    return text + (
        f"two clients of equal weight that wait differ by at most {promise['gap_bound']:,} cost units, "
        f"{name} = {promise['charge_max']:,}"
    )


def _since_now() -> Callable[[], int]:
    start = time.monotonic_ns()
    return lambda: time.monotonic_ns() - start
