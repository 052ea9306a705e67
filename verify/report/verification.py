"""Verifying policies: every theorem about them decided, for a deployment."""

import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from fairsched.policies import registry
from fairsched.policies.base import AnyClusterPolicy, AnyLocalPolicy
from fairsched.policies.local import ComposedPolicy
from fairsched.verify.proofs import SUITE
from fairsched.verify.report.deployment import Deployment, load
from fairsched.verify.report.scope import PARTS, Subject, part, subject
from fairsched.verify.report.values import Outcome, Report, run
from fairsched.verify.solvers import Progress, silent

KNOWN = (*registry.LOCAL_POLICIES, *registry.CLUSTER_POLICIES)
"""The names of shipped policies and routers."""

Given = str | AnyLocalPolicy | AnyClusterPolicy
"""A policy or a router, or its name."""


def verify(
    *policies: Given,
    deployment: Deployment | str | Path | None = None,
    quick: bool = False,
    jobs: int | None = None,
    counterexamples: Path | None = None,
) -> Report:
    """Decide every theorem about policies and routers, and return the verdicts.

    Policies are values, verified as they are, or names: NAME+GATE and `module:attribute` for your own, too (default:
    those of the deployment, or all that ship).  `deployment` (a value or the path of its TOML or JSON document) says
    how large workers and requests are and which parameters named policies have.  `quick` asks one solver and no
    mutants, `jobs` is the number of processes (default: one for each CPU), and worlds that break a claim are kept in
    the folder `counterexamples`.  Raises `ValueError`.

    >>> report = verify("fcfs", quick=True, jobs=1)
    >>> report.proved, len(report.theorems) > 0
    (True, True)
    """
    where = load(Path(deployment)) if isinstance(deployment, str | Path) else deployment or Deployment()
    return outcome_of(policies, where, quick=quick, jobs=jobs or cpus(), counterexamples=counterexamples).report


def outcome_of(
    policies: Sequence[Given],
    deployment: Deployment,
    *,
    quick: bool = False,
    jobs: int = 1,
    counterexamples: Path | None = None,
    progress: Progress = silent,
) -> Outcome:
    """Return the report with what certificates and tables need beside it; without policies, everything that ships.

    `progress` is told what is being decided.
    """
    subjects = [part for each in chosen(policies, deployment) for part in scopes_of(each, deployment)]
    if any(each.source == SUITE and each.policy and each.theorems for each in subjects):
        subjects.append(part("pricing"))
    if not policies:
        subjects += [part(name) for name in PARTS if name != "pricing"]
    return run(
        version("fairsched"),
        subjects,
        deployment,
        jobs=jobs,
        quick=quick,
        self_checks=not policies,
        worlds=counterexamples,
        progress=progress,
    )


def chosen(given: Sequence[Given], deployment: Deployment) -> list[Given]:
    """Return the policies to verify; raises `ValueError` for a name that is not there, in the deployment too."""
    configured = [name for name, _ in deployment.policies]
    for name in (*given, *configured):
        if isinstance(name, str) and ":" not in name and name not in KNOWN:
            if "+" not in name:
                raise registry.unknown("policy", name, KNOWN)
            registry.local_policy(name)
    found: dict[str, Given] = {}
    for each in given or configured or KNOWN:
        if found.setdefault(name_of(each), each) != each:
            raise ValueError(f"two policies are called {name_of(each)!r}: a report tells them apart by their names")
    return list(found.values())


def name_of(policy: Given) -> str:
    """Return the name under which a policy or router is reported."""
    return policy if isinstance(policy, str) else str(getattr(policy, "name", type(policy).__name__))


def scopes_of(name: Given, deployment: Deployment) -> list[Subject]:
    """Return the scope of a policy or router, and where both have the name, those of the router and of the workers."""
    found = [scope_of(name, deployment)]
    if isinstance(name, str) and name in registry.CLUSTER_POLICIES and name in registry.LOCAL_POLICIES:
        found.append(subject(f"{name} (workers)", registry.LOCAL_POLICIES[name]))
    return found


def scope_of(name: Given, deployment: Deployment) -> Subject:
    """Return what there is to prove about a policy or router: as it is, or by name with the deployment's parameters."""
    if not isinstance(name, str):
        return subject(name_of(name), name, source=f"{type(name).__module__}:{type(name).__qualname__}")
    params = deployment.parameters(name)
    if name in registry.CLUSTER_POLICIES:
        return subject(name, registry.router_with(registry.CLUSTER_POLICIES[name], params))
    if ":" in name and not isinstance(found := registry.imported(name), ComposedPolicy):
        if params:
            raise ValueError(f"{name} is no composed policy, and has no parameters to set")
        return subject(name, found)
    return subject(name, registry.with_parameters(registry.local_policy(name), params))


def cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
