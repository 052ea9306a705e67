"""`fairsched verify`: which bounds are proved, for your configuration, and the evidence.

Solvers are loaded by this command only.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fairsched.cli.output import STDOUT, command_line, print_files, progress_bar, shown, writable, write_figures
from fairsched.cli.values import Count, File, Folder, Json, each, folder, read
from fairsched.engines.analysis import print_lines, print_text
from fairsched.engines.files import write_whole
from fairsched.engines.simulation import cpus

if TYPE_CHECKING:
    from fairsched.engines.analysis.report import Page

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
    coq: Folder | None = None,
    replay: File | None = None,
    jobs: Count | None = None,
    report: Annotated[Path | None, read(folder, "DIR")] = None,
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
        coq: decide nothing: write the goals of a certificate as lemmas for the proof assistant Coq and let `coqc` check
            them; exits with 1 if it does not accept one
        replay: decide nothing: run a saved counterexample again on the kernel as it is now; exits with 1 if it is
            refuted no more
        jobs: processes (default: one for each core)
        report: write an HTML page that plays what --replay runs
    """
    if check is not None:
        return _check(check)
    if prove is not None:
        return _prove(prove, jobs or cpus())
    if coq is not None:
        return _coq(coq, jobs or cpus())
    if replay is not None:
        return _replay(replay, json, report)
    if report is not None:
        raise ValueError("--report plays what --replay runs")
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


def _coq(directory: Path, jobs: int) -> int:
    """Let Coq check a certificate's goals."""
    from fairsched.verify.report import ask_coq

    with progress_bar() as progress:
        try:
            goals, without = ask_coq(directory, jobs, progress)
        except FileNotFoundError as error:
            raise ValueError(f"{error.filename}: not found; Debian has Coq as the package coq") from error
    with shown() as console:
        said = [f"Not accepted: {goal}: {why}" for goal, why in without.items()]
        said.append(
            f"{directory}: coqc accepts {goals.proved} of {goals.asked} goals as lemmas about any type of clients"
        )
        print_lines(console, said)
    return FAILED if without else 0


def _replay(counterexample: Path, json: Path | None, report: Path | None) -> int:
    """Run a counterexample again."""
    from fairsched.verify.logic import replay_saved

    found = replay_saved(counterexample)
    if found is None:
        raise ValueError(f"{counterexample} is no counterexample; `fairsched audit --replay` takes a log")
    write_figures(json, found.to_json())
    page = None if report is None else _page(counterexample).write(report)
    with shown(json) as console:
        print_text(console, found.text())
        print_files(console, Report=page)
    return 0 if found.confirmed else FAILED


def _page(counterexample: Path) -> "Page":
    """Return the page that plays a counterexample: each vector of its state that changes, a moment an event."""
    import numpy as np

    from fairsched.engines.analysis.report import Page, Samples, played
    from fairsched.verify.logic import read_counterexample, replay_counterexample

    found = replay_counterexample(read_counterexample(counterexample))
    saved, system, states = found.document, found.claim.system, found.states
    vectors = [name for name in system.fields if isinstance(states[0][name], tuple)]
    courses = {name: np.array([state[name] for state in states], dtype=np.int64) for name in vectors}
    points = {name: states[0].get(name) for name in "fg"}
    lead = None
    if None not in points.values() and "W" in courses:
        lead = courses["W"][:, points["g"]] - courses["W"][:, points["f"]]
    names = [
        f"client {i}" + "".join(f" ({name})" for name in points if points[name] == i) for i in range(saved.clients)
    ]
    broken = f"Broken at the end: {'; '.join(found.broken)}" if found.broken else "Nothing is broken"
    part = played(
        f"A world of {saved.theorem}",
        f"{system.name.capitalize()}. {broken}.",
        names,
        [
            Samples(
                saved.theorem,
                np.arange(len(states), dtype=np.float64),
                {name: course for name, course in courses.items() if np.ptp(course, axis=0).any()},
                lead,
                said=["", *(each.event for each in saved.events)],
            )
        ],
        unit="events",
        gap="W of g less W of f",
    )
    return Page(
        title="A counterexample",
        verdict=[broken, f"{saved.theorem}: {found.claim.theorem.statement}"],
        parts=[part],
        tone="bad",
        command=command_line(),
    )
