"""`fairsched verify` and `fairsched certificate`: which bounds are proved, for your configuration, and the evidence.

Solvers are loaded by these commands only.
"""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from fairsched.cli.arguments import job_count
from fairsched.cli.output import STDOUT, print_files, progress_bar, shown, writable
from fairsched.engines.analysis import print_lines
from fairsched.engines.files import write_whole
from fairsched.engines.simulation import cpus
from fairsched.policies.registry import CLUSTER_POLICIES, LOCAL_POLICIES

KNOWN = (*LOCAL_POLICIES, *CLUSTER_POLICIES)
NOT_PROVED = 1
"""Exit status when something that is claimed was not proved."""
COUNTEREXAMPLES = Path("out", "counterexamples")
"""The folder for worlds that break a claim."""


def add_verify(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Decide every theorem of the policies with two solvers and print what each bound is worth in your "
        "configuration.  Exits with 1 if anything that is claimed is not proved."
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
    command.add_argument("--jobs", type=job_count, default=cpus(), metavar="N", help="processes (default: %(default)s)")
    command.set_defaults(run=run_verify)


def add_certificate(command: ArgumentParser) -> None:
    """Declare the command."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="check a certificate of `verify --certificate` again",
        description="Check every hash, every answer with both solvers, every proof step by step, and that the "
        "certificate is about the code that is installed, and say how each theorem is shown.  Exits with 1 if anything "
        "differs.",
    )
    check.add_argument("directory", type=Path, metavar="DIR", help="the certificate")
    check.set_defaults(run=run_check, jobs=cpus())
    prove = actions.add_parser(
        "prove",
        help="add proofs to a certificate, which no solver is needed to believe",
        description="Write a proof by cvc5, step by step, beside each goal that has none yet, if the checker in the "
        "certificate accepts it.  A command that was stopped goes on where it was.",
    )
    prove.add_argument("directory", type=Path, metavar="DIR", help="the certificate")
    prove.add_argument("--jobs", type=job_count, default=cpus(), metavar="N", help="processes (default: %(default)s)")
    prove.set_defaults(run=run_prove)


def run_verify(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    if arguments.quick and arguments.certificate is not None:
        raise ValueError("--certificate needs both solvers, and --quick asks one")
    writable(json=arguments.json)
    from rich.text import Text

    from fairsched.verify.report import (
        TEXT_WIDTH,
        Deployment,
        as_text,
        check_free,
        load,
        outcome_of,
        ungated,
        unstated,
        write_certificate,
    )

    deployment = Deployment() if arguments.config is None else load(arguments.config)
    if arguments.certificate is not None:
        check_free(arguments.certificate)
    with progress_bar() as progress:
        outcome = outcome_of(
            arguments.policy or (),
            deployment,
            quick=arguments.quick,
            jobs=arguments.jobs,
            counterexamples=COUNTEREXAMPLES,
            progress=progress,
        )
    if arguments.json == STDOUT:
        with shown():
            print(outcome.report.to_json().decode())
    elif arguments.json is not None:
        write_whole(arguments.json, outcome.report.to_json())
    said = []
    if without := list(ungated(outcome.subjects)):
        said.append(f"About fairness there is no theorem for {', '.join(without)}: an open gate promises nothing.")
    if without := list(unstated(outcome.subjects)):
        said.append(f"No theorem is about {', '.join(without)}.")
    if arguments.certificate is not None:
        count = write_certificate(arguments.certificate, outcome, deployment)
        said.append(f"{count} questions to ask again: sh {arguments.certificate / 'check.sh'} SOLVER")
        said.append(f"Proofs that need no solver: fairsched certificate prove {arguments.certificate}")
    with shown(arguments.json) as console:
        text = as_text(outcome, deployment, TEXT_WIDTH if console.soft_wrap else min(console.width, TEXT_WIDTH))
        for line in text.splitlines():
            # It has its width already; a command in it stays one that can be copied.
            console.print(Text(line), soft_wrap=True)
        print_lines(console, said)
        print_files(console, Figures=arguments.json)
    return NOT_PROVED if outcome.failures else 0


def run_check(arguments: Namespace) -> int:
    """Check a certificate again; returns the exit status."""
    from fairsched.verify.report import check_certificate, scope_of

    with progress_bar() as progress:
        found = check_certificate(arguments.directory, scope_of, jobs=arguments.jobs, progress=progress)
    for problem in found.problems:
        print(problem, file=sys.stderr)
    count = len(found.problems)
    with shown() as console:
        said = f"{arguments.directory}: {found.questions} questions, {count or 'no'} problem{'s' * (count != 1)}"
        print_lines(console, [*map(str, found.evidence), said])
    return NOT_PROVED if count else 0


def run_prove(arguments: Namespace) -> int:
    """Add proofs to a certificate; returns the exit status."""
    from fairsched.verify.report import write_proofs

    with progress_bar() as progress:
        goals, without = write_proofs(arguments.directory, arguments.jobs, progress)
    with shown() as console:
        said = [f"No proof of {goal}: {why}" for goal, why in without.items()]
        said.append(
            f"{arguments.directory}: {goals.proved} of {goals.asked} goals have a proof that the checker accepts"
        )
        said.append(f"To read them: python {arguments.directory / 'checker' / 'proof.py'} {arguments.directory}")
        print_lines(console, said)
    return 0
