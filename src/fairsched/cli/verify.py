"""`fairsched verify` and `fairsched certificate`: which bounds are proved, about your configuration, and the evidence.

Solvers are loaded by these commands only.
"""

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairsched import __version__
from fairsched.cli_common import imported, policy_of, positive_int, writable
from fairsched.policies.base import ClusterPolicy
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import CLUSTER_POLICIES, LOCAL_POLICIES, local_policy, router_with, unknown

if TYPE_CHECKING:
    from fairsched.verify.deployment import Deployment
    from fairsched.verify.subject import Subject

NOT_PROVED = 1
"""Exit status when something that is claimed was not proved."""
KNOWN = (*LOCAL_POLICIES, *CLUSTER_POLICIES)
"""The names of shipped policies and routers."""
COUNTEREXAMPLES = Path("out", "counterexamples")
"""Where worlds that break a claim are kept."""


def add_verify(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "verify",
        help="prove the bounds of policies, for your configuration",
        description="Decide every theorem of the policies with two solvers and say what each bound is worth in your "
        "configuration.  Exits with 1 if anything that is claimed is not proved.",
    )
    command.add_argument(
        "--policy",
        action="append",
        metavar="NAME|module:Class",
        help=f"of {', '.join(KNOWN)}, or your own (repeat for more; default: those of --config, or all)",
    )
    command.add_argument("--config", type=Path, metavar="FILE", help="your deployment, as TOML or JSON")
    command.add_argument("--quick", action="store_true", help="one solver, no mutants")
    command.add_argument("--json", type=Path, metavar="FILE", help="write every verdict")
    command.add_argument("--certificate", type=Path, metavar="DIR", help="write the evidence for any SMT solver")
    command.add_argument(
        "--jobs", type=positive_int, default=_cpus(), metavar="N", help="processes (default: %(default)s)"
    )
    command.set_defaults(run=verify)


def add_certificate(commands: Any) -> None:
    """Declare the command."""
    certificate: ArgumentParser = commands.add_parser("certificate", help="re-check a certificate")
    actions = certificate.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="re-check a certificate of `verify --certificate`",
        description="Re-check every hash, every answer with both solvers, and that the certificate is about the code "
        "that is installed.  Exits with 1 if anything differs.",
    )
    check.add_argument("directory", type=Path, metavar="DIR", help="the certificate")
    check.set_defaults(run=check_certificate)


def verify(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    if arguments.quick and arguments.certificate is not None:
        raise ValueError("--certificate needs both solvers, and --quick asks one")
    writable(json=arguments.json)
    deployment = _deployment(arguments.config)
    names = _names(arguments.policy, deployment)
    from fairsched.verify import certificate, report, report_text
    from fairsched.verify.subject import SUITE, pricing, variants, window

    subjects = [_subject(name, deployment) for name in names]
    if any(subject.source == SUITE and subject.policy and subject.theorems for subject in subjects):
        subjects.append(pricing())
    if arguments.policy is None:
        subjects += [window(), variants()]
    if arguments.certificate is not None:
        certificate.check_free(arguments.certificate)
    outcome = report.run(
        __version__,
        subjects,
        deployment,
        jobs=arguments.jobs,
        quick=arguments.quick,
        self_checks=arguments.policy is None,
        worlds=COUNTEREXAMPLES,
    )
    print(report_text.text(outcome, deployment), end="")
    ungated = list(report.ungated(subjects))
    if ungated:
        print(f"About fairness there is no theorem for {', '.join(ungated)}: an open gate promises nothing.")
    unstated = list(report.unstated(subjects))
    if unstated:
        print(f"No theorem is about {', '.join(unstated)}.")
    if arguments.json is not None:
        arguments.json.write_bytes(outcome.report.to_json())
    if arguments.certificate is not None:
        count = certificate.write(arguments.certificate, outcome, deployment)
        print(f"{count} questions to ask again: sh {arguments.certificate / 'check.sh'} SOLVER")
    return NOT_PROVED if outcome.failures else 0


def check_certificate(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    from fairsched.verify import certificate_check

    found = certificate_check.check(arguments.directory, _subject, jobs=_cpus())
    for problem in found.problems:
        print(problem, file=sys.stderr)
    count = len(found.problems)
    print(f"{arguments.directory}: {found.questions} questions, {count or 'no'} problem{'s' * (count != 1)}")
    return NOT_PROVED if count else 0


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _deployment(path: Path | None) -> "Deployment":
    from fairsched.verify.deployment import Deployment, load

    return Deployment() if path is None else load(path)


def _names(given: list[str] | None, deployment: "Deployment") -> list[str]:
    """The policies to verify; raises `ValueError` for a name that is not there, in the configuration too."""
    configured = [name for name, _ in deployment.policies]
    for name in (*(given or ()), *configured):
        if ":" not in name and name not in KNOWN:
            if "+" not in name:
                raise unknown("policy", name, KNOWN)
            local_policy(name)
    return list(dict.fromkeys(given or configured or KNOWN))


def _subject(name: str, deployment: "Deployment") -> "Subject":
    from fairsched.verify.subject import subject

    params = deployment.parameters(name)
    if name in CLUSTER_POLICIES:
        return subject(name, router_with(CLUSTER_POLICIES[name], params))
    if ":" in name and not isinstance(found := imported(name), ComposedPolicy):
        if params:
            raise ValueError(f"{name} is no composed policy, and has no parameters to set")
        if isinstance(found, type) and issubclass(found, ClusterPolicy) and not hasattr(found, "claims"):
            found = found()
        return subject(name, found)
    return subject(name, policy_of(name, params))
