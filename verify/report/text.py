"""The report as text: a block a policy, a line a theorem, what it says below it; refutations and mutants apart.

What batching rules promise is about the worker and the same for every policy, so it is shown once, below them.
"""

from collections.abc import Iterator, Mapping
from textwrap import wrap

from fairsched.verify.report.binding import BindingLevel, counted
from fairsched.verify.report.deployment import Deployment
from fairsched.verify.report.scope import HELD, LEASES, PRICING, SECONDS, SLOTS, VARIANTS, WINDOW
from fairsched.verify.report.values import Constant, Outcome, TheoremEntry, TheoremRow

TEXT_WIDTH = 118
"""Columns of the text where it is not for a terminal, and at most."""
_INDENT = " " * 4
_COLUMNS = (
    ("verdict", "{:<9}", 0),
    ("scope", "{:<7}", 3),
    ("bound", "{:<42}", 4),
    ("attained", "{:>12}", 2),
    ("clients", "{:>8}", 5),
    ("solvers", "  {:<8}", 1),
    ("ms", "{:>7}", 6),
)
"""Heads, how wide they are, and which goes first where the width is short: the one with the largest number."""
_HEADINGS = {
    PRICING: "pricing (every gate)",
    WINDOW: "window (the gateway's)",
    SLOTS: "slots (of adapters)",
    SECONDS: "waits in seconds",
    LEASES: "shared account (of several gateways)",
    VARIANTS: "variants (rules of no policy above)",
}

_Line = tuple[TheoremRow, TheoremEntry]


class _Columns:
    """The columns of theorems that a width has room for, beside their names."""

    def __init__(self, name_width: int, width: int) -> None:
        kept = list(_COLUMNS)
        while len(kept) > 1 and name_width + sum(len(form.format("")) for _, form, _ in kept) > width:
            kept.remove(max(kept, key=lambda column: column[2]))
        self.heads = [head for head, _, _ in kept]
        self.left_out = [head for head, _, _ in _COLUMNS if head not in self.heads]
        self._form = f"{{:<{name_width}}}" + "".join(form for _, form, _ in kept)

    def line(self, name: str, cells: Mapping[str, object]) -> str:
        """Return the line of a theorem, by the heads of its cells."""
        return self._form.format(name, *(cells[head] for head in self.heads)).rstrip()


def as_text(outcome: Outcome, deployment: Deployment, width: int = TEXT_WIDTH) -> str:
    """Return the whole report in lines of at most `width` columns, but for commands that are to be copied."""
    lines = _lines(outcome, deployment, width)
    return "\n".join(piece for line in lines for piece in _broken(line, width)) + "\n"


def _lines(outcome: Outcome, deployment: Deployment, width: int) -> Iterator[str]:
    yield from _deployment(deployment)
    shown = [row for row in outcome.rows if not row.withdrawn]
    columns = _Columns(max([len("theorem"), *(len(row.theorem.id) for row in shown)]) + 2, width)
    if columns.left_out:
        yield f"Left out at {width} columns: {', '.join(columns.left_out)}; --json has them."
    for heading, lines in _tables(list(zip(shown, outcome.report.theorems, strict=True))):
        row, _ = lines[0]
        yield ""
        yield heading
        if heading == row.subject.name:
            yield from _bound_terms(row, deployment)
        yield columns.line("theorem", {head: head for head in columns.heads})
        for row, entry in lines:
            yield from _theorem(row, entry, columns)
            if replay := outcome.replays.get((row.subject.name, entry.id)):
                yield from _wrapped(replay)
        if heading == row.subject.name:
            yield from _unclaimed(outcome, row.subject.name)
    yield from _refutations(outcome)
    yield from _mutation(outcome, width)
    yield from _code(outcome, width)
    yield from _summary(outcome)


def _tables(lines: list[_Line]) -> Iterator[tuple[str, list[_Line]]]:
    """Yield the lines by heading: policies, then the worker, then what is about no policy."""
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


def _about_worker(row: TheoremRow) -> bool:
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


def _theorem(row: TheoremRow, entry: TheoremEntry, columns: _Columns) -> Iterator[str]:
    tight = f"{entry.tightness.attained}/{entry.tightness.bound} {entry.tightness.ratio:.3f}" if entry.tightness else ""
    number = _number(entry.bound)
    cells = {
        "verdict": entry.verdict if entry.verdict in HELD else entry.verdict.upper(),
        "scope": entry.scope,
        "bound": number,
        "attained": tight,
        "clients": "" if entry.cutoff is None else entry.cutoff,
        "solvers": "+".join(entry.solvers) if entry.worlds is None else f"{entry.worlds:,} worlds",
        "ms": f"{entry.ms:.0f}",
    }
    yield columns.line(entry.id, cells)
    yield from _wrapped(entry.statement)
    if entry.bound is not None:
        worth = f": {number}" if number and "bound" in columns.left_out else ""
        yield from _wrapped(f"bound {entry.bound.formula}{worth}")
    if entry.assumptions:
        yield from _wrapped(f"needs {', '.join(entry.assumptions)}")
    if row.theorem.rests_on:
        yield from _wrapped(f"rests on {', '.join(row.theorem.rests_on)}")
    if entry.level == BindingLevel.ARITHMETIC.value:
        yield from _wrapped("arithmetic: about this statement only, no shipped code takes part in its proof")
    yield from _wrapped(f"source: {row.theorem.source}")
    if row.decision.why:
        yield from _wrapped(row.decision.why)


def _number(bound: Constant | None) -> str:
    if bound is None or bound.cost_units is None or bound.seconds is None:
        return ""
    return f"{bound.cost_units:,} = {bound.output_tokens:,} tok, {bound.seconds:,.1f} s"


def _bound_terms(row: TheoremRow, deployment: Deployment) -> Iterator[str]:
    """Yield what the symbols of the policy's bounds stand for."""
    if row.subject.policy is None:
        return
    u = "U" if row.subject.policy.batching.reserve == "static" else "U_dyn (outputs are not reserved)"
    terms = deployment.bound_terms(row.subject.policy)
    for (name, _), (_, term) in zip(deployment.weights, terms, strict=False):
        quantum = f"Q = {term.quantum:,}, " if term.quantum else ""
        yield f"{name}: {quantum}{u} = {term.charge_max // term.scale:,} cost units"


def _unclaimed(outcome: Outcome, name: str) -> Iterator[str]:
    """Yield what the configuration does not have, by reason; where a world shows it, the command that replays that."""
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
            yield from _wrapped(f"fairsched verify --replay {shown}" if shown.endswith(".json") else shown)
            if not entry.found:
                yield from _wrapped("NOT FOUND")


def _mutation(outcome: Outcome, width: int) -> Iterator[str]:
    if outcome.report.mutation:
        room = max(min(width - 39, 44), 12)
        yield ""
        yield f"{'Mutants of':<{room}}{'mutants':>9}{'killed':>9}{'equivalent':>12}{'unknown':>9}"
        for entry in outcome.report.mutation:
            name = f"  {entry.kernel}"
            if len(name) > room:
                yield name
                name = ""
            yield f"{name:<{room}}{entry.mutants:>9}{entry.killed:>9}{entry.equivalent:>12}{entry.unknown:>9}"


def _code(outcome: Outcome, width: int) -> Iterator[str]:
    """Yield what tests notice of changes to the code around the kernels, as it was recorded."""
    if not outcome.report.code:
        return
    room = max(min(width - 49, 44), 12)
    yield ""
    what = "Code around kernels, by make mutation"
    yield f"{what:<{room}}{'changes':>9}{'noticed':>9}{'the same':>10}{'not':>5}  on"
    for entry in outcome.report.code:
        name = f"  {entry.module.removeprefix('fairsched.')}"
        if len(name) > room:
            yield name
            name = ""
        since = "" if entry.current else ", changed since"
        each = f", one of {entry.every}" if entry.every > 1 else ""
        figures = f"{entry.mutants:>9}{entry.noticed:>9}{entry.same:>10}{entry.unnoticed:>5}"
        yield f"{name:<{room}}{figures}  {entry.date}{each}{since}"


def _summary(outcome: Outcome) -> Iterator[str]:
    report = outcome.report
    rows = {row.task: row for row in outcome.rows if not row.withdrawn}
    proved, tested = (sum(row.decision.verdict == each for row in rows.values()) for each in HELD)
    solvers = ", ".join(f"{name} {version}" for name, version in report.solvers.items())
    yield ""
    yield f"{proved} of {len(rows) - tested} theorems proved by {solvers} in {report.wall_s:.1f} s"
    if tested:
        yield f"{tested} more held in all worlds that were drawn, which is no proof"
    if held := [row.bound for row in rows.values() if row.decision.verdict in HELD]:
        yield from _wrapped(f"By scope: {counted(held)}", "")
    yield from (f"FAILED: {failure}" for failure in outcome.failures)


def _wrapped(line: str, indent: str = _INDENT) -> Iterator[str]:
    """Yield a line of text that may be broken."""
    yield indent + line


def _broken(line: str, width: int) -> list[str]:
    """Return the line in pieces that fit; a command stays one that can be copied."""
    if len(line) <= width or "fairsched verify --replay " in line:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return wrap(
        line.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
