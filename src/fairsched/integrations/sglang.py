"""SGLang's plugin (entry point group `sglang.srt.plugins`): a shipped policy ranks the waiting queue.

It does nothing unless `FAIRSCHED_SGLANG_CONFIG` names a TOML file.  docs/sglang.md says what is promised then.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairsched.engines.sglang.settings import Settings
    from fairsched.engines.sglang.shim import Chosen, Place

VARIABLE = "FAIRSCHED_SGLANG_CONFIG"
TARGET = "sglang.srt.managers.schedule_policy.SchedulePolicy"


def register() -> None:
    """Register the hooks, if somebody asked for them.  Settings that cannot be used stop the engine with one line."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        _register(path)
    except (ImportError, ValueError) as error:
        # SGLang goes on without a plugin that raises; who asked for fairness must not be served without.
        sys.exit(str(error) if str(error).startswith("fairsched") else f"fairsched: {error}")


def _register(path: str) -> None:
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from fairsched.engines.inside.settings import read_file
    from fairsched.engines.sglang.settings import Settings
    from fairsched.engines.sglang.version import TESTED

    settings = read_file(Path(path), VARIABLE, Settings)
    TESTED.require(sglang.__version__, settings.accept_untested_version)
    policy = chosen(settings)

    def made(_: None, scheduling: Any, *args: Any, **kwargs: Any) -> None:
        from fairsched.engines.sglang.shim import Shim

        scheduling.fairsched = Shim(settings, policy, scheduling, _place())

    def ordered(original: Any, scheduling: Any, waiting_queue: Any, *args: Any, **kwargs: Any) -> None:
        shim = scheduling.fairsched
        shim.order(waiting_queue, lambda: original(scheduling, waiting_queue, *args, **kwargs))

    HookRegistry.register(f"{TARGET}.__init__", made, HookType.AFTER)
    HookRegistry.register(f"{TARGET}.calc_priority", ordered, HookType.AROUND)


def chosen(settings: "Settings") -> "Chosen":
    """The policy of these settings as the hook needs it: order and gate, one request a decision.

    Raises `SettingsError` for one that an order of the queue cannot follow.
    """
    from fairsched.engines.inside.settings import SettingsError
    from fairsched.engines.sglang.shim import Chosen
    from fairsched.policies.registry import local_policy, parameters, with_parameters

    try:
        policy = local_policy(settings.policy)
        given = {name: str(value) for name, value in settings.parameters.items()}
        own = {"batching": "iteration-level", "max_running": "1", "reserve": "optimistic"}
        if taken := sorted((own.keys() | {"max_batched_tokens"}) & given.keys()):
            raise ValueError(f"{taken[0]} is SGLang's")
        policy = with_parameters(policy, given | own)
    except ValueError as error:
        raise SettingsError(f"fairsched: {error}") from None
    if policy.order.displaces:
        raise SettingsError(f"fairsched: {settings.policy} preempts, which SGLang decides itself")
    if policy.order.follows_cache or policy.order.waits_for_prefix or policy.gate.splits:
        raise SettingsError(
            f"fairsched: {settings.policy} looks at what is cached, which SGLang keeps to itself; "
            'take its gate, such as "fcfs+deficit", with within_client = "sglang" and --schedule-policy lpm'
        )
    if getattr(policy.gate, "in_flight_cap_tokens", None) is not None:
        raise SettingsError(
            "fairsched: an order of the queue holds nobody back, so it cannot keep in_flight_cap_tokens"
        )
    return Chosen(policy, dict(parameters(policy)))


def _place() -> "Place":
    """Where this scheduler is, as SGLang's own context says."""
    from sglang.srt.runtime_context import get_disagg, get_exec, get_parallel

    from fairsched.engines.sglang.shim import Place

    mode = get_disagg().disaggregation_mode
    parallel = get_parallel()
    worker = (parallel.dp_rank or 0) * parallel.attn_dp_size + parallel.attn_dp_rank
    refused = None if mode == "null" else f"disaggregated {mode}"
    if get_exec().dllm.dllm_algorithm is not None:
        refused = "diffusion language models"
    return Place(worker, parallel.attn_tp_rank == 0 and parallel.pp_rank == 0, refused)
