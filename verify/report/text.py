"""The report as text: a block a policy, a line a theorem, what it says below it; refutations and mutants apart.

What batching rules promise is about the worker and the same for every policy, so it is shown once, below them.
"""

from collections.abc import Iterator
from textwrap import wrap

from fairsched.verify.report.deployment import Deployment
from fairsched.verify.report.scope import HELD, PRICING, VARIANTS, WINDOW
from fairsched.verify.report.values import Bound, Outcome, Row, TheoremEntry

WIDTH = 118
_INDENT = " " * 4
_COLUMNS = "{:<9}{:<7}{:<42}{:>12}{:>8}  {:<8}{:>7}"
_HEADINGS = {
    PRICING: "pricing (every gate)",
    WINDOW: "window (the gateway's)",
    VARIANTS: "variants (rules of no policy above)",
}

_Line = tuple[Row, TheoremEntry]


def as_text(outcome: Outcome, deployment: Deployment) -> str:
    """The whole report."""
    return "\n".join(_lines(outcome, deployment)) + "\n"


def _lines(outcome: Outcome, deployment: Deployment) -> Iterator[str]:
    yield from _deployment(deployment)
    shown = [row for row in outcome.rows if not row.withdrawn]
    width = max([len("theorem"), *(len(row.theorem.id) for row in shown)]) + 2
    for heading, lines in _tables(list(zip(shown, outcome.report.theorems, strict=True))):
        row, _ = lines[0]
        yield ""
        yield heading
        if heading == row.subject.name:
            yield from _bound_terms(row, deployment)
        columns = _COLUMNS.format("verdict", "scope", "bound", "attained", "clients", "solvers", "ms")
        yield "theorem".ljust(width) + columns
        for row, entry in lines:
            yield from _theorem(row, entry, width)
            if replay := outcome.replays.get((row.subject.name, entry.id)):
                yield from _wrapped(replay)
        if heading == row.subject.name:
            yield from _unclaimed(outcome, row.subject.name)
    yield from _refutations(outcome)
    yield from _mutation(outcome)
    yield from _summary(outcome)


def _tables(lines: list[_Line]) -> Iterator[tuple[str, list[_Line]]]:
    """The lines by heading: policies, then the worker, then what is about no policy."""
    policies = dict.fromkeys(row.subject.name for row, _ in lines if row.subject.name not in _HEADINGS)
    for name in policies:
        if own := [line for line in lines if line[0].subject.name == name and not _about_worker(line[0])]:
            yield name, own
    if about := {entry.id: (row, entry) for row, entry in reversed(lines) if _about_worker(row)}:
        having = {row.subject.name for row, _ in lines if _about_worker(row)}
        heading = f"worker ({'every policy' if having == set(policies) else ', '.join(sorted(having))})"
        yield heading, list(reversed(about.values()))
    for name, heading in _HEADINGS.items():
        if own := [line for line in lines if line[0].subject.name == name]:
            yield heading, own


def _about_worker(row: Row) -> bool:
    policy = row.subject.policy
    return policy is not None and row.theorem in policy.batching.theorems


def _deployment(deployment: Deployment) -> Iterator[str]:
    weights = ", ".join(f"{name} {weight}" for name, weight in deployment.weights)
    yield (
        f"M = {deployment.kv_capacity_tokens:,} KV tokens, L = {deployment.prompt_tokens_max:,} prompt tokens, "
        f"weights {weights}, {deployment.latency.name}"
    )
    yield from _wrapped(
        "A bound is in cost units of the client of larger weight; seconds are how long one worker takes to serve one "
        "client that much while it decodes for no other, batch and KV full.",
        "",
    )


def _theorem(row: Row, entry: TheoremEntry, name_width: int) -> Iterator[str]:
    tight = f"{entry.tightness.attained}/{entry.tightness.bound} {entry.tightness.ratio:.3f}" if entry.tightness else ""
    columns = _COLUMNS.format(
        entry.verdict if entry.verdict in HELD else entry.verdict.upper(),
        entry.scope,
        _number(entry.bound),
        tight,
        "" if entry.cutoff is None else entry.cutoff,
        "+".join(entry.solvers) if entry.worlds is None else f"{entry.worlds:,} worlds",
        f"{entry.ms:.0f}",
    )
    yield f"{entry.id:<{name_width}}{columns}".rstrip()
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


def _bound_terms(row: Row, deployment: Deployment) -> Iterator[str]:
    """What the symbols of the policy's bounds stand for."""
    if row.subject.policy is None:
        return
    u = "U" if row.subject.policy.batching.reserve == "static" else "U_dyn (outputs are not reserved)"
    terms = deployment.bound_terms(row.subject.policy)
    for (name, _), (_, term) in zip(deployment.weights, terms, strict=False):
        quantum = f"Q = {term.quantum:,}, " if term.quantum else ""
        yield f"{name}: {quantum}{u} = {term.charge_max // term.scale:,} cost units"


def _unclaimed(outcome: Outcome, name: str) -> Iterator[str]:
    """What the configuration does not have, by reason; where a world shows it, the command that replays that."""
    reasons: dict[str, list[str]] = {}
    for policy, theorem, reason in outcome.unclaimed:
        if policy == name:
            reasons.setdefault(reason, []).append(theorem)
    for reason, theorems in reasons.items():
        replays = {theorem: outcome.replays.get((name, theorem)) for theorem in theorems}
        width = max(map(len, theorems)) + 2
        yield from _wrapped(f"not claimed ({reason}): {', '.join(theorems)}", "")
        yield from (f"{_INDENT}{theorem + ':':<{width}}{at}" for theorem, at in replays.items() if at)


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
    decided = {row.task: row.decision.verdict for row in outcome.rows if not row.withdrawn}
    proved, tested = (sum(verdict == each for verdict in decided.values()) for each in HELD)
    solvers = ", ".join(f"{name} {version}" for name, version in report.solvers.items())
    yield ""
    yield f"{proved} of {len(decided) - tested} theorems proved by {solvers} in {report.wall_s:.1f} s"
    if tested:
        yield f"{tested} more held in all worlds that were drawn, which is no proof"
    yield from (f"FAILED: {failure}" for failure in outcome.failures)


def _wrapped(line: str, indent: str = _INDENT) -> Iterator[str]:
    """Lines of text; a command stays one that can be copied."""
    yield from wrap(
        line, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
