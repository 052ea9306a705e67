"""The runs that rows are made of: a workload, a run on a platform, and the figures that papers print."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec.structs import replace

from fairsched.engines.analysis import Run
from fairsched.engines.simulation import NOTHING, Predictor, simulate
from fairsched.engines.workloads import generate
from fairsched.model.request import Prompt, Workload
from fairsched.policies.base import AnyClusterPolicy, AnyLocalPolicy
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES
from fairsched.reproduce.row import Platform

A10G, A100 = "llama-3.2-3b-a10g", "llama-3.1-8b-a100"
"""The two workers of the DLPM paper's evaluation, as latency presets."""


@lru_cache(maxsize=4)
def workload(name: str, misbehave: str | None = None, *, on: Platform, seed: int, **params: Any) -> Workload:
    """Return a generated workload; a rate of `auto` is near what the platform's workers can do.

    The last few are kept, since a row runs one under several systems.
    """
    return generate(name, misbehave=misbehave, seed=seed, workers=on.cluster.specs, **params)


def run(
    jobs: Workload,
    policy: str | AnyLocalPolicy,
    router: str | AnyClusterPolicy = "round-robin",
    *,
    on: Platform,
    params: Mapping[str, object] = NOTHING,
    routing: Mapping[str, object] = NOTHING,
    predictor: Predictor | None = None,
) -> Run:
    """Return the figures of a simulated run, with parameters of policy and router as on the command line."""
    steps = {"max_batched_tokens": on.step_tokens} if on.step_tokens and _batches(policy) else {}
    return simulate(
        jobs, policy, router, cluster=on.cluster, params={**steps, **params}, router_params=routing, predictor=predictor
    )


def _batches(policy: str | AnyLocalPolicy) -> bool:
    """Return whether the policy is a composed one, whose steps have a budget of tokens."""
    return isinstance(LOCAL_POLICIES[policy] if isinstance(policy, str) else policy, ComposedPolicy)


def alike(jobs: Workload, *, outputs: bool = True) -> Workload:
    """Return the workload with every prompt, and every output if wanted, as long as the mean one."""
    prompt = Prompt(round(sum(job.request.prompt.tokens for job in jobs.jobs) / len(jobs.jobs)))
    output = round(sum(job.output_tokens for job in jobs.jobs) / len(jobs.jobs))
    made = (
        replace(
            job, request=replace(job.request, prompt=prompt), output_tokens=output if outputs else job.output_tokens
        )
        for job in jobs.jobs
    )
    return replace(jobs, jobs=tuple(made))


def rate(result: Run) -> float:
    """Return the requests finished a second."""
    return measured(result.measures.throughput_rps, "a throughput")


def well_behaved(jobs: Workload) -> list[str]:
    """Return the clients that do nothing wrong."""
    return [client.name for client in jobs.clients if client.name != "misbehaving"]


def measured(value: float | None, what: str) -> float:
    """Return the figure; raises `ValueError` if a run has none, since a row cannot be judged without it."""
    if value is None or not np.isfinite(value):
        raise ValueError(f"a run gave no {what}")
    return float(value)
