"""Verifying policies: every theorem about them decided, for a deployment."""

import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from fairsched.policies.base import ClusterPolicy
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import (
    CLUSTER_POLICIES,
    LOCAL_POLICIES,
    imported,
    local_policy,
    router_with,
    unknown,
    with_parameters,
)
from fairsched.verify.proofs import SUITE
from fairsched.verify.report.deployment import Deployment, load
from fairsched.verify.report.scope import Subject, pricing, subject, variants, window
from fairsched.verify.report.values import Outcome, Report, run

KNOWN = (*LOCAL_POLICIES, *CLUSTER_POLICIES)
"""The names of shipped policies and routers."""


def verify(
    *policies: str,
    deployment: Deployment | str | Path | None = None,
    quick: bool = False,
    jobs: int | None = None,
    counterexamples: Path | None = None,
) -> Report:
    """Decide every theorem about policies and routers, and return the verdicts.

    Policies are names, NAME+GATE or `module:attribute` for your own (default: those of the deployment, or all that
    ship).  `deployment` (a value or the path of its TOML or JSON document) says how large workers and requests are and
    which parameters are set.  `quick` asks one solver and no mutants, `jobs` is the number of processes (default: one
    for each CPU), and worlds that break a claim are kept in the folder `counterexamples`.  Raises `ValueError`.

    >>> report = verify("fcfs", quick=True, jobs=1)
    >>> report.proved, len(report.theorems) > 0
    (True, True)
    """
    where = load(Path(deployment)) if isinstance(deployment, str | Path) else deployment or Deployment()
    return outcome_of(policies, where, quick=quick, jobs=jobs or cpus(), counterexamples=counterexamples).report


def outcome_of(
    policies: Sequence[str],
    deployment: Deployment,
    *,
    quick: bool = False,
    jobs: int = 1,
    counterexamples: Path | None = None,
) -> Outcome:
    """Return the report with what certificates and tables need beside it; without policies, everything that ships."""
    subjects = [scope_of(name, deployment) for name in policy_names(policies, deployment)]
    if any(each.source == SUITE and each.policy and each.theorems for each in subjects):
        subjects.append(pricing())
    if not policies:
        subjects += [window(), variants()]
    return run(
        version("fairsched"),
        subjects,
        deployment,
        jobs=jobs,
        quick=quick,
        self_checks=not policies,
        worlds=counterexamples,
    )


def policy_names(given: Sequence[str], deployment: Deployment) -> list[str]:
    """Return the policies to verify; raises `ValueError` for a name that is not there, in the deployment too."""
    configured = [name for name, _ in deployment.policies]
    for name in (*given, *configured):
        if ":" not in name and name not in KNOWN:
            if "+" not in name:
                raise unknown("policy", name, KNOWN)
            local_policy(name)
    return list(dict.fromkeys(given or configured or KNOWN))


def scope_of(name: str, deployment: Deployment) -> Subject:
    """Return what there is to prove about the policy or router of that name, with the deployment's parameters."""
    params = deployment.parameters(name)
    if name in CLUSTER_POLICIES:
        return subject(name, router_with(CLUSTER_POLICIES[name], params))
    if ":" in name and not isinstance(found := imported(name), ComposedPolicy):
        if params:
            raise ValueError(f"{name} is no composed policy, and has no parameters to set")
        if isinstance(found, type) and issubclass(found, ClusterPolicy) and not hasattr(found, "claims"):
            found = found()
        return subject(name, found)
    return subject(name, with_parameters(local_policy(name), params))


def cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
