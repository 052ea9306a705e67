"""A discrete-event simulator of a cluster, and runs of it. Read `simulator` first, then `event_loop` and
`simulated_worker`.
"""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.simulation.calls import CallGraph
    from fairsched.engines.simulation.control_plane import Reports
    from fairsched.engines.simulation.predictors import Bucketed, Oracle, Predictor, predictor
    from fairsched.engines.simulation.runs import (
        NOTHING,
        Cluster,
        RunSpec,
        latency_model,
        limits_of,
        router_of,
        simulate,
    )
    from fairsched.engines.simulation.simulator import Simulator, simulate_events
    from fairsched.engines.simulation.sweep import DEFAULT_POLICIES, Progress, compare
    from fairsched.engines.simulation.tasks import cpus, raised_at, run_tasks, tell
    from fairsched.engines.simulation.vllm import VllmOptions, simulate_vllm
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "DEFAULT_POLICIES", "NOTHING", "Bucketed", "CallGraph", "Cluster", "Oracle", "Predictor", "Progress", "Reports",
    "RunSpec", "Simulator", "VllmOptions", "compare", "cpus", "latency_model", "limits_of", "predictor", "raised_at",
    "router_of", "run_tasks", "simulate", "simulate_events", "simulate_vllm", "tell"
]  # fmt: skip
