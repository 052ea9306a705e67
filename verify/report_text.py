"""The report as text: a block a policy, a line a theorem, what it says below it; refutations and mutants apart."""

from collections.abc import Iterator
from itertools import groupby
from textwrap import wrap

from fairsched.verify.deployment import Deployment
from fairsched.verify.report import Bound, Outcome, Row, TheoremEntry

WIDTH = 118
_INDENT = " " * 4
_COLUMNS = "{:<14}{:<9}{:<7}{:<42}{:>12}{:>8}  {:<8}{:>7}"


def text(outcome: Outcome, deployment: Deployment) -> str:
    """The whole report."""
    return "\n".join(_lines(outcome, deployment)) + "\n"


def _lines(outcome: Outcome, deployment: Deployment) -> Iterator[str]:
    yield from _deployment(deployment)
    shown = [row for row in outcome.rows if not row.withdrawn]
    for (name, rows), entries in zip(
        ((name, list(rows)) for name, rows in groupby(shown, key=lambda row: row.subject.name)),
        (list(entries) for _, entries in groupby(outcome.report.theorems, key=lambda entry: entry.policy)),
        strict=True,
    ):
        yield ""
        yield name
        yield from _stakes(rows[0], deployment)
        yield _COLUMNS.format("theorem", "verdict", "scope", "bound", "attained", "clients", "solvers", "ms")
        for row, entry in zip(rows, entries, strict=True):
            yield from _theorem(row, entry)
            if replay := outcome.replays.get((name, entry.id)):
                yield from _wrapped(replay)
        yield from _unclaimed(outcome, name)
    yield from _refutations(outcome)
    yield from _mutation(outcome)
    yield from _summary(outcome)


def _deployment(deployment: Deployment) -> Iterator[str]:
    weights = ", ".join(f"{name} {weight}" for name, weight in deployment.weights)
    yield (
        f"M = {deployment.kv_capacity_tokens:,} KV tokens, L = {deployment.prompt_tokens_max:,} prompt tokens, "
        f"weights {weights}, {deployment.latency.name}"
    )
    yield from _wrapped(
        "A bound is in cost units of the client of larger weight; seconds are how long one worker takes to serve one "
        "client that much while it decodes for nobody else, batch and KV full.",
        "",
    )


def _theorem(row: Row, entry: TheoremEntry) -> Iterator[str]:
    tight = f"{entry.tightness.attained}/{entry.tightness.bound} {entry.tightness.ratio:.3f}" if entry.tightness else ""
    yield _COLUMNS.format(
        entry.id,
        entry.verdict if entry.verdict == "proved" else entry.verdict.upper(),
        entry.scope,
        _number(entry.bound),
        tight,
        "" if entry.cutoff is None else entry.cutoff,
        "+".join(entry.solvers),
        f"{entry.ms:.0f}",
    ).rstrip()
    yield from _wrapped(entry.statement)
    if entry.bound is not None:
        yield from _wrapped(f"bound {entry.bound.formula}")
    if entry.assumptions:
        yield from _wrapped(f"needs {', '.join(entry.assumptions)}")
    yield from _wrapped(f"source: {row.theorem.source}")
    if row.decision.why:
        yield from _wrapped(row.decision.why)


def _number(bound: Bound | None) -> str:
    if bound is None or bound.cost_units is None or bound.seconds is None:
        return ""
    return f"{bound.cost_units:,} = {bound.output_tokens:,} tok, {bound.seconds:,.1f} s"


def _stakes(row: Row, deployment: Deployment) -> Iterator[str]:
    """What the symbols of the policy's bounds stand for."""
    if row.subject.policy is None:
        return
    u = "U" if row.subject.policy.batching.reserve == "static" else "U_dyn (outputs are not reserved)"
    stakes = deployment.stakes(row.subject.policy)
    for (name, _), (_, stake) in zip(deployment.weights, stakes, strict=False):
        quantum = f"Q = {stake.quantum:,}, " if stake.quantum else ""
        yield f"{name}: {quantum}{u} = {stake.charge_max // stake.scale:,} cost units"


def _unclaimed(outcome: Outcome, name: str) -> Iterator[str]:
    for policy, theorem, reason in outcome.unclaimed:
        if policy == name:
            yield from _wrapped(f"not claimed: {theorem} ({reason})", "")


def _refutations(outcome: Outcome) -> Iterator[str]:
    if outcome.report.refutations:
        yield ""
        yield "Refuted: false of the variant named"
        for entry in outcome.report.refutations:
            yield from _wrapped(f"{entry.id} ({entry.variant}): {entry.claim}", "  ")
            shown = entry.replay or ""
            yield from _wrapped(f"fairsched replay {shown}" if shown.endswith(".json") else shown)
            if not entry.found:
                yield from _wrapped("NOT FOUND")


def _mutation(outcome: Outcome) -> Iterator[str]:
    if outcome.report.mutation:
        yield ""
        yield f"{'Mutants of':<44}{'mutants':>9}{'killed':>9}{'equivalent':>12}{'unknown':>9}"
        for entry in outcome.report.mutation:
            yield f"  {entry.kernel:<42}{entry.mutants:>9}{entry.killed:>9}{entry.equivalent:>12}{entry.unknown:>9}"


def _summary(outcome: Outcome) -> Iterator[str]:
    report = outcome.report
    proved = sum(entry.verdict == "proved" for entry in report.theorems)
    solvers = ", ".join(f"{name} {version}" for name, version in report.solvers.items())
    yield ""
    yield f"{proved} of {len(report.theorems)} theorems proved by {solvers} in {report.wall_s:.1f} s"
    yield from (f"FAILED: {failure}" for failure in outcome.failures)


def _wrapped(line: str, indent: str = _INDENT) -> Iterator[str]:
    yield from wrap(line, WIDTH, initial_indent=indent, subsequent_indent=indent)
