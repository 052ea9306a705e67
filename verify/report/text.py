"""The report as text: a block a policy, a line a theorem, what it says below it; refutations and mutants apart.

What batching rules promise is about the worker and the same for every policy, so it is shown once, below them.
"""

from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap

from fairsched.verify.report.binding import APART, BindingLevel, counted
from fairsched.verify.report.deployment import Deployment
from fairsched.verify.report.scope import HELD, PARTS
from fairsched.verify.report.values import Constant, Outcome, TheoremEntry, TheoremRow

TEXT_WIDTH = 118
"""Columns of the text where it is not for a terminal, and at most."""
_INDENT = " " * 4
_COLUMNS = {"verdict": 0, "scope": 3, "bound": 4, "attained": 2, "clients": 5, "solvers": 1, "ms": 6}
"""What is said of a theorem, and which goes first where the width is short: the one with the largest number."""
_Line = tuple[TheoremRow, TheoremEntry]


class _Columns:
    """Columns that are two apart, each as wide as its widest cell; figures are aligned to the right."""

    def __init__(self, rows: list[Mapping[str, str]], heads: Iterable[str]) -> None:
        columns = {head: [row[head] for row in rows] for head in heads}
        self.widths = {head: max(map(len, (head, *cells))) for head, cells in columns.items()}
        self._figures = {head for head, cells in columns.items() if all(each[:1].isdigit() for each in cells if each)}

    @property
    def width(self) -> int:
        return sum(self.widths.values()) + 2 * (len(self.widths) - 1)

    def line(self, cells: Mapping[str, str] | None = None) -> str:
        said = cells or {head: head for head in self.widths}
        parts = (f"{said[head]:{'>' if head in self._figures else '<'}{wide}}" for head, wide in self.widths.items())
        return "  ".join(parts).rstrip()


def as_text(outcome: Outcome, deployment: Deployment, width: int = TEXT_WIDTH) -> str:
    """Return the whole report in lines of at most `width` columns, but for commands that are to be copied."""
    lines = _lines(outcome, deployment, width)
    return "\n".join(piece for line in lines for piece in _broken(line, width)) + "\n"


def _lines(outcome: Outcome, deployment: Deployment, width: int) -> Iterator[str]:
    yield from _deployment(deployment)
    shown = [row for row in outcome.rows if not row.withdrawn]
    columns = _Columns(list(map(_cells, outcome.report.theorems)), ("theorem", *_COLUMNS))
    while columns.width > width and len(columns.widths) > 2:
        del columns.widths[max(columns.widths, key=lambda head: _COLUMNS.get(head, -1))]
    if left_out := [head for head in _COLUMNS if head not in columns.widths]:
        yield f"Left out at {width} columns: {', '.join(left_out)}; --json has them."
    for heading, lines in _tables(list(zip(shown, outcome.report.theorems, strict=True))):
        row, _ = lines[0]
        yield ""
        yield heading
        if heading == row.subject.name:
            yield from _bound_terms(row, deployment)
        yield columns.line()
        for row, entry in lines:
            yield from _theorem(row, entry, columns)
            if replay := outcome.replays.get((row.subject.name, entry.id)):
                yield from _wrapped(replay)
        if heading == row.subject.name:
            yield from _unclaimed(outcome, row.subject.name)
            yield from row.subject.returns()
    yield from _refutations(outcome)
    yield from _mutation(outcome, width)
    yield from _code(outcome, width)
    yield from _summary(outcome)


def _tables(lines: list[_Line]) -> Iterator[tuple[str, list[_Line]]]:
    """Yield the lines by heading: policies, then the worker, then what is about no policy."""
    policies = dict.fromkeys(row.subject.name for row, _ in lines if row.subject.name not in PARTS)
    for name in policies:
        if own := [line for line in lines if line[0].subject.name == name and not _about_worker(line[0])]:
            yield name, own
    if about := {entry.id: (row, entry) for row, entry in reversed(lines) if _about_worker(row)}:
        having = {row.subject.name for row, _ in lines if _about_worker(row)}
        heading = f"worker ({'every policy' if having == set(policies) else ', '.join(sorted(having))})"
        yield heading, list(reversed(about.values()))
    for name, (heading, _) in PARTS.items():
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


def _cells(entry: TheoremEntry) -> Mapping[str, str]:
    """Return what the table says of a theorem, by column."""
    tight = entry.tightness
    return {
        "theorem": entry.id,
        "verdict": entry.verdict if entry.verdict in HELD else entry.verdict.upper(),
        "scope": entry.scope,
        "bound": _number(entry.bound),
        "attained": f"{tight.attained}/{tight.bound} {tight.ratio:.3f}" if tight else "",
        "clients": "" if entry.cutoff is None else str(entry.cutoff),
        "solvers": "+".join(entry.solvers) if entry.worlds is None else f"{entry.worlds:,} worlds",
        "ms": f"{entry.ms:.0f}",
    }


def _theorem(row: TheoremRow, entry: TheoremEntry, columns: _Columns) -> Iterator[str]:
    number = _number(entry.bound)
    yield columns.line(_cells(entry))
    yield from _wrapped(entry.statement)
    if entry.bound is not None:
        worth = f": {number}" if number and "bound" not in columns.widths else ""
        yield from _wrapped(f"bound {entry.bound.formula}{worth}")
    if entry.assumptions:
        yield from _wrapped(f"needs {', '.join(entry.assumptions)}")
    if row.theorem.rests_on:
        yield from _wrapped(f"rests on {', '.join(row.theorem.rests_on)}")
    if words := APART.get(BindingLevel(entry.level)):
        yield from _wrapped(f"{entry.level}: {words}")
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
    fates = ("mutants", "killed", "equivalent", "unknown")
    rows = [(f"  {entry.kernel}", *(str(getattr(entry, fate)) for fate in fates)) for entry in outcome.report.mutation]
    yield from _named(("Mutants of", *fates), rows, width)
    if kept := sum(entry.kept for entry in outcome.report.mutation):
        yield from _wrapped(f"{kept} of {len(rows)} rows were kept of a run on the same text with the same solver", "")


def _code(outcome: Outcome, width: int) -> Iterator[str]:
    """Yield what tests notice of changes to the code around the kernels, as it was recorded."""
    rows = []
    for each in outcome.report.code:
        counts = map(str, (each.mutants, each.noticed, each.same, each.unnoticed, each.every))
        since = "" if each.current else "changed"
        rows.append((f"  {each.module.removeprefix('fairsched.')}", *counts, each.date, since))
    heads = ("Code around kernels", "changes", "noticed", "the same", "not", "one of", "on", "since")
    yield from _named(heads, rows, width)


def _named(heads: tuple[str, ...], rows: list[tuple[str, ...]], width: int) -> Iterator[str]:
    """Yield a table of rows, if there are any; a name that has no room stands on a line of its own."""
    if not rows:
        return
    lines = [dict(zip(heads, row, strict=True)) for row in (heads, *rows)]
    columns = _Columns(list[Mapping[str, str]](lines[1:]), heads)
    room = columns.widths[heads[0]] = max(columns.widths[heads[0]] + min(width - columns.width, 0), 12)
    yield ""
    for line in lines:
        if len(name := line[heads[0]]) > room:
            yield name
            line[heads[0]] = ""
        yield columns.line(line)


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
