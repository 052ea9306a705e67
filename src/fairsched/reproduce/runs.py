"""Runs that rows are made of: a generated workload, policies by name, and the figures of each."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from fairsched.cli_common import policy_of
from fairsched.engines.changes import WorkerSpec
from fairsched.engines.compare import Cluster, Run, run_one
from fairsched.engines.metrics import RunResult
from fairsched.engines.predictors import Predictor
from fairsched.engines.workloads.generate import generate
from fairsched.model.presets import PRESETS
from fairsched.model.workload import Workload
from fairsched.policies.registry import ROUTERS, router_with

A10G, A100 = "llama-3.2-3b-a10g", "llama-3.1-8b-a100"
"""The two workers of the DLPM paper's evaluation, as latency presets."""


@cache
def workload(
    name: str, misbehave: Any = None, *, workers: int = 1, latency: str = A10G, seed: int = 0, **params: Any
) -> Workload:
    """A generated workload, made once; a rate of `auto` is near what so many workers can do."""
    specs = (WorkerSpec(PRESETS[latency]),) * workers
    return generate(name, misbehave=misbehave, seed=seed, workers=specs, **params)


def run(
    jobs: Workload,
    policy: str,
    router: str = "round-robin",
    *,
    workers: int = 1,
    latency: str = A10G,
    kv_capacity_tokens: int | None = None,
    params: Mapping[str, object] | None = None,
    routing: Mapping[str, object] | None = None,
    predictor: Predictor | None = None,
) -> RunResult:
    """One simulated run, with parameters of the policy and of the router as on the command line."""
    given = {name: str(value) for name, value in (params or {}).items()}
    routed = {name: str(value) for name, value in (routing or {}).items()}
    chosen = Run(policy_of(policy, given), policy, given, router_with(ROUTERS[router], routed), routed, predictor)
    result, _, complete = run_one(jobs, chosen, Cluster(PRESETS[latency], workers, kv_capacity_tokens))
    if not complete:
        raise KeyboardInterrupt
    return result


def rate(result: RunResult) -> float:
    """Requests finished a second."""
    return measured(result.measures.throughput_rps, "a throughput")


def p99_s(result: RunResult, clients: Iterable[str]) -> float:
    """The worst of the clients' p99 program latency, in seconds."""
    return max(measured(result.clients[name].program_latency_us.p99, "a p99") for name in clients) / 1e6


def well_behaved(jobs: Workload) -> list[str]:
    """The clients that do nothing wrong."""
    return [client.name for client in jobs.clients if client.name != "misbehaving"]


def measured(value: float | None, what: str) -> float:
    """The figure; raises `ValueError` if a run has none, since a row cannot be judged without it."""
    if value is None:
        raise ValueError(f"a run gave no {what}")
    return value


def falls(values: Iterable[float], noise: float = 0.0) -> bool:
    """Whether no value is above one before it by more than the share `noise`.

    >>> falls([3.0, 2.0, 2.01], noise=0.01), falls([3.0, 2.0, 2.5])
    (True, False)
    """
    least = float("inf")
    for value in values:
        if value > least * (1 + noise):
            return False
        least = min(least, value)
    return True
