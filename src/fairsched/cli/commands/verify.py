"""`fairsched verify`: which bounds are proved, for your configuration, and the evidence.

Solvers are loaded by this command only.
"""

import sys
from pathlib import Path
from typing import Annotated

from fairsched.cli.output import STDOUT, print_files, progress_bar, shown, writable, write_figures
from fairsched.cli.values import Count, File, Folder, Json, each
from fairsched.engines.analysis import print_lines, print_text
from fairsched.engines.files import write_whole
from fairsched.engines.simulation import cpus

FAILED = 1
"""Exit status when something that is claimed was not proved, or a replay or a certificate differs."""
COUNTEREXAMPLES = Path("out", "counterexamples")
"""The folder for worlds that break a claim."""


def verify(
    *,
    policy: Annotated[tuple[str, ...], each(str, "NAME|module:Class")] = (),
    config: File | None = None,
    quick: bool = False,
    json: Json = None,
    certificate: Folder | None = None,
    check: Folder | None = None,
    prove: Folder | None = None,
    replay: File | None = None,
    jobs: Count | None = None,
) -> int:
    """Decide every theorem of the policies with two solvers and print what each bound is worth in your configuration.
    Exits with 1 if anything that is claimed is not proved.

    Args:
        policy: a policy or router of `fairsched policies`, or your own (repeat; default: those of --config, or all)
        config: your deployment, as TOML or JSON
        quick: ask one solver, and no mutants
        certificate: write the evidence for any SMT solver
        check: decide nothing: check every hash of a certificate, every answer with both solvers and every proof step by
            step, and that it is about the code that is installed; exits with 1 if anything differs
        prove: decide nothing: add to a certificate proofs that no solver is needed to believe; one that was stopped
            goes on where it was
        replay: decide nothing: run a saved counterexample again on the kernel as it is now; exits with 1 if it is
            refuted no more
        jobs: processes (default: one for each core)
    """
    if check is not None:
        return _check(check)
    if prove is not None:
        return _prove(prove, jobs or cpus())
    if replay is not None:
        return _replay(replay, json)
    if quick and certificate is not None:
        raise ValueError("--certificate needs both solvers, and --quick asks one")
    writable(json=json)
    return _verify(policy, config, quick, json, certificate, jobs or cpus())


def _verify(
    policies: tuple[str, ...], config: Path | None, quick: bool, json: Path | None, certificate: Path | None, jobs: int
) -> int:
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

    deployment = Deployment() if config is None else load(config)
    if certificate is not None:
        check_free(certificate)
    with progress_bar() as progress:
        outcome = outcome_of(
            policies, deployment, quick=quick, jobs=jobs, counterexamples=COUNTEREXAMPLES, progress=progress
        )
    if json == STDOUT:
        with shown():
            print(outcome.report.to_json().decode())
    elif json is not None:
        write_whole(json, outcome.report.to_json())
    said = []
    if without := list(ungated(outcome.subjects)):
        said.append(f"About fairness there is no theorem for {', '.join(without)}: an open gate promises nothing.")
    if without := list(unstated(outcome.subjects)):
        said.append(f"No theorem is about {', '.join(without)}.")
    if certificate is not None:
        count = write_certificate(certificate, outcome, deployment)
        said.append(f"{count} questions to ask again: sh {certificate / 'check.sh'} SOLVER")
        said.append(f"Proofs that need no solver: fairsched verify --prove {certificate}")
    with shown(json) as console:
        text = as_text(outcome, deployment, TEXT_WIDTH if console.soft_wrap else min(console.width, TEXT_WIDTH))
        for line in text.splitlines():
            # It has its width already; a command in it stays one that can be copied.
            console.print(Text(line), soft_wrap=True)
        print_lines(console, said)
        print_files(console, Figures=json)
    return FAILED if outcome.failures else 0


def _check(directory: Path) -> int:
    """Check a certificate again."""
    from fairsched.verify.report import check_certificate, scope_of

    with progress_bar() as progress:
        found = check_certificate(directory, scope_of, jobs=cpus(), progress=progress)
    for problem in found.problems:
        print(problem, file=sys.stderr)
    count = len(found.problems)
    with shown() as console:
        said = f"{directory}: {found.questions} questions, {count or 'no'} problem{'s' * (count != 1)}"
        print_lines(console, [*map(str, found.evidence), said])
    return FAILED if count else 0


def _prove(directory: Path, jobs: int) -> int:
    """Add proofs to a certificate."""
    from fairsched.verify.report import write_proofs

    with progress_bar() as progress:
        goals, without = write_proofs(directory, jobs, progress)
    with shown() as console:
        said = [f"No proof of {goal}: {why}" for goal, why in without.items()]
        said.append(f"{directory}: {goals.proved} of {goals.asked} goals have a proof that the checker accepts")
        said.append(f"To read them: python {directory / 'checker' / 'proof.py'} {directory}")
        print_lines(console, said)
    return 0


def _replay(counterexample: Path, json: Path | None) -> int:
    """Run a counterexample again."""
    from fairsched.verify.logic import replay_saved

    found = replay_saved(counterexample)
    if found is None:
        raise ValueError(f"{counterexample} is no counterexample; `fairsched audit --replay` takes a log")
    write_figures(json, found.to_json())
    with shown(json) as console:
        print_text(console, found.text())
    return 0 if found.confirmed else FAILED
