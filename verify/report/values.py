"""What `fairsched verify` found out, as values: every theorem of every policy, the refutations, the mutants.

A theorem whose assumption a configuration breaks is not claimed there.  If breaking it lets other things happen (the
printed rejoin rule, a missing lift), everything is decided for that variant, and what its events break is not claimed.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter

import attrs
import msgspec

from fairsched.model.shown import short_repr
from fairsched.model.theorem import Theorem
from fairsched.verify import proofs
from fairsched.verify.logic import Claim, NotAWitness, SavedDocument, attained
from fairsched.verify.mutation import CodeEntry, MutationEntry, mutation_rows, mutation_tasks, recorded
from fairsched.verify.proofs import SUITE, claims_of
from fairsched.verify.report import refutations, registry
from fairsched.verify.report.binding import BindingLevel, Bound, bound_of
from fairsched.verify.report.deployment import Deployment, constant
from fairsched.verify.report.scope import HELD, UNDECIDED, Subject, fallen
from fairsched.verify.solvers import Progress, SolverDecision, Task, decide, followed, pool, silent, versions


class Constant(msgspec.Struct, frozen=True):
    """A theorem's constant: as it is stated, and in this deployment (see `deployment.Constant`)."""

    formula: str
    cost_units: int | None = None
    output_tokens: int | None = None
    seconds: float | None = None


class Tightness(msgspec.Struct, frozen=True):
    """How much of its bound a replayed run attains."""

    attained: int
    bound: int
    ratio: float


class TheoremEntry(msgspec.Struct, frozen=True):
    """One theorem about one policy; `worlds`: in how many it was tried, None if it was proved by solvers.

    `scope` is the weakest of the theorem and of all that it rests on, `level` what stands between it and shipped code
    (`binding.Level`).
    """

    policy: str
    id: str
    statement: str
    verdict: str
    scope: str
    bound: Constant | None
    tightness: Tightness | None
    assumptions: tuple[str, ...]
    cutoff: int | None
    solvers: tuple[str, ...]
    ms: float
    vacuous: bool
    worlds: int | None = None
    level: str = BindingLevel.CODE.value


class Report(SavedDocument, frozen=True):
    """All of it; its JSON is what `--json` writes."""

    __repr__ = short_repr

    fairsched: str
    solvers: dict[str, str]
    theorems: tuple[TheoremEntry, ...]
    refutations: tuple[refutations.RefutationEntry, ...]
    mutation: tuple[MutationEntry, ...]
    code: tuple[CodeEntry, ...]
    wall_s: float

    @property
    def proved(self) -> bool:
        """Whether every theorem was proved, or held in all worlds in which it was tried."""
        return all(entry.verdict in HELD for entry in self.theorems)


@attrs.frozen
class Planned:
    """A theorem about a policy, and the task that decides it."""

    subject: Subject
    theorem: Theorem
    task: Task


@attrs.frozen
class Plan:
    """What is to be decided; what a configuration does not have (policy, theorem, reason); and theorems that are listed
    and have no claim, a line each."""

    planned: tuple[Planned, ...]
    unclaimed: tuple[tuple[str, str, str], ...]
    missing: tuple[str, ...]


@attrs.frozen
class TheoremRow(Planned):
    """What was decided, and what the theorem is worth."""

    decision: SolverDecision
    bound: Bound

    @property
    def withdrawn(self) -> bool:
        """Whether the configuration is a variant whose events break the theorem's invariant."""
        return bool(self.task.dropped) and self.decision.verdict in ("refuted", "not inductive")


@attrs.frozen
class Outcome:
    """The report, and what the table says beside it.

    `unclaimed` are policy, theorem and reason where a configuration does not have a theorem, `replays` the commands
    that show worlds in which a claim breaks, by policy and theorem; `breaches` whatever else is not as it must be: an
    event without an obligation, a run that is no witness.
    """

    report: Report
    subjects: tuple[Subject, ...]
    rows: tuple[TheoremRow, ...]
    unclaimed: tuple[tuple[str, str, str], ...]
    replays: dict[tuple[str, str], str]
    breaches: tuple[str, ...]

    @property
    def failures(self) -> list[str]:
        """Everything that should hold and was not shown, one line each."""
        shown = [(row, row.decision) for row in self.rows if not row.withdrawn and row.decision.verdict not in HELD]
        found = [
            f"{row.subject.name} {row.theorem.id} is {said.verdict}{f': {said.why}' * (said.verdict in UNDECIDED)}"
            for row, said in shown
        ]
        found += [f"{e.id}: no counterexample was found" for e in self.report.refutations if not e.found]
        found += [f"{e.kernel}: {e.unknown} mutants undecided" for e in self.report.mutation if e.unknown]
        return [*found, *self.breaches]


def run(
    version: str,
    subjects: Sequence[Subject],
    deployment: Deployment,
    *,
    jobs: int = 1,
    quick: bool = False,
    self_checks: bool = True,
    worlds: Path | None = None,
    progress: Progress = silent,
) -> Outcome:
    """Decide every theorem of the subjects.

    `quick` asks one solver only.  `self_checks` adds what is about the shipped kernels as a whole: refutations of
    published variants and mutants (not when quick).  Worlds that break a claim are kept in the folder `worlds`.
    """
    begun = perf_counter()
    wanted = plan(subjects, quick)
    tasks = list(dict.fromkeys(each.task for each in wanted.planned))
    whole = self_checks and not quick
    mutating = mutation_tasks() if whole else []
    if worlds is not None and whole:
        worlds.mkdir(parents=True, exist_ok=True)
    with pool(jobs) as executor:
        # What takes longest begins first.
        mutants = executor.map(mutation_rows, mutating)
        refuted = executor.submit(refutations.report, worlds) if whole else None
        verdicts = executor.map(decide, tasks)
        found = followed([f"mutants of {task[:2][-1]}" for task in mutating], mutants, progress)
        fates = tuple(row for rows in found for row in rows)
        decided = followed([f"theorem {task.theorem}" for task in tasks], verdicts, progress)
        decisions = dict(zip(tasks, decided, strict=True))
        progress("runs that attain bounds", 0, 0)
        tight, no_witnesses = executor.submit(tightness).result()
        false = refuted.result() if refuted else ()
        asked = list(dict.fromkeys((each.task.source, each.task.theorem) for each in wanted.planned))
        bounds = dict(zip(asked, executor.map(bound_of, *zip(*asked, strict=True)), strict=True)) if asked else {}
    rows = tuple(
        _standing(
            TheoremRow(
                each.subject, each.theorem, each.task, decisions[each.task], bounds[each.task.source, each.task.theorem]
            )
            for each in wanted.planned
        )
    )
    replays = dict(_kept(rows, worlds)) if worlds else {}
    report = Report(
        version,
        versions(quick),
        tuple(
            _entry(row, deployment, tight.get(row.theorem.id) if row.task.source == SUITE else None)
            for row in rows
            if not row.withdrawn
        ),
        false,
        fates,
        recorded() if whole else (),
        round(perf_counter() - begun, 3),
    )
    sources = dict.fromkeys(subject.source for subject in subjects)
    breaches = (*wanted.missing, *registry.breaches(sources), *no_witnesses)
    withdrawn = (
        (row.subject.name, row.theorem.id, f"without {', '.join(sorted(row.task.dropped))} its invariant breaks")
        for row in rows
        if row.withdrawn
    )
    return Outcome(report, tuple(subjects), rows, (*wanted.unclaimed, *withdrawn), replays, breaches)


def plan(subjects: Iterable[Subject], quick: bool = False) -> Plan:
    """Return what is to be decided about the subjects."""
    planned, unclaimed, missing = [], [], []
    for subject in subjects:
        claims = claims_of(subject.source)
        for theorem in subject.theorems:
            broken = subject.broken.intersection(subject.assumptions(theorem))
            claim = claims.get(theorem.id)
            if claim is None:
                missing.append(f"{subject.name}: theorem {theorem.id} has no claim, so nothing can be shown of it")
                continue
            dropped = subject.broken & claim.excluding if isinstance(claim, Claim) else frozenset()
            if lacking := broken - dropped:
                unclaimed.append((subject.name, theorem.id, f"no {', '.join(sorted(a.name for a in lacking))}"))
                continue
            task = Task(subject.source, theorem.id, frozenset(a.name for a in dropped), quick)
            planned.append(Planned(subject, theorem, task))
    return Plan(tuple(planned), tuple(unclaimed), tuple(missing))


def _standing(rows: Iterable[TheoremRow]) -> Iterator[TheoremRow]:
    """Yield the rows, where a proof that rests on what is not proved of the same subject is none."""
    decided = list(rows)
    verdicts: dict[str, dict[str, str]] = {}
    for row in decided:
        verdicts.setdefault(row.subject.name, {})[row.theorem.id] = row.decision.verdict
    for row in decided:
        why = fallen(row.theorem, row.subject.theorems, verdicts[row.subject.name])
        if why and row.decision.verdict in HELD:
            decision = msgspec.structs.replace(row.decision, verdict="unknown", why=why, solvers=(), files=())
            yield attrs.evolve(row, decision=decision)
        else:
            yield row


def _entry(row: TheoremRow, deployment: Deployment, tight: tuple[int, int] | None) -> TheoremEntry:
    theorem, decision = row.theorem, row.decision
    number = row.subject.policy and constant(theorem, row.subject.policy, deployment)
    bound = Constant(theorem.bound, *(attrs.astuple(number) if number else ())) if theorem.bound or number else None
    return TheoremEntry(
        row.subject.name,
        theorem.id,
        theorem.statement,
        decision.verdict,
        row.bound.scope.value,
        bound,
        Tightness(*tight, tight[0] / tight[1]) if tight else None,
        tuple(a.name for a in row.subject.assumptions(theorem) if a.name not in row.task.dropped),
        decision.cutoff,
        decision.solvers,
        round(decision.ms, 1),
        decision.vacuous,
        decision.worlds,
        row.bound.level.value,
    )


def _kept(rows: Iterable[TheoremRow], worlds: Path) -> Iterator[tuple[tuple[str, str], str]]:
    for row in rows:
        if world := row.decision.counterexample:
            path = worlds / f"{slug(f'{row.subject.name} {row.theorem.id}')}.json"
            worlds.mkdir(parents=True, exist_ok=True)
            path.write_bytes(world)
            yield (row.subject.name, row.theorem.id), f"fairsched verify --replay {path}"


def tightness() -> tuple[dict[str, tuple[int, int]], tuple[str, ...]]:
    """Return what runs attain of a theorem's bound, by theorem, and what is wrong with runs that are no witnesses."""
    found, wrong = {}, []
    for claim in proofs.claims():
        if not isinstance(claim, Claim) and claim.attained is not None:
            found[claim.theorem.id] = claim.attained()
    for witness in proofs.witnesses():
        try:
            found[witness.theorem.id] = (attained(witness), witness.bound_cost)
        except NotAWitness as error:
            wrong.append(f"witness of {error}")
    return found, tuple(wrong)


def slug(text: str) -> str:
    """Return the text as a name for a file."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")


def ungated(subjects: Iterable[Subject]) -> Iterator[str]:
    """Yield the policies whose gate is open: they promise nothing."""
    return (subject.name for subject in subjects if subject.policy and not subject.policy.gate.grouped)


def unstated(subjects: Iterable[Subject]) -> Iterator[str]:
    """Yield the routers that have no theorem."""
    return (subject.name for subject in subjects if subject.router and not subject.theorems)
