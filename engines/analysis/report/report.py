"""A comparison as one HTML file that needs nothing else: what was run, a summary, plots, and a table of clients a run.

Its first sentences say which policy is fairest here and at what cost, which client gains and which pays, and whether
bounds held.

Needs the `cli` extra (jinja2, matplotlib), imported when a report is written.
"""

import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from fairsched.engines.analysis import figures
from fairsched.engines.analysis.figures import Compared, count, digits, rate, share, standing, time, who
from fairsched.engines.analysis.metrics import Run
from fairsched.engines.analysis.outcomes import Measures
from fairsched.engines.analysis.report import page
from fairsched.engines.analysis.report.plots import plots
from fairsched.engines.analysis.table import LEGEND, notes_of, organisation_cells, program_cells

SAME = 0.01
"""Gaps and throughputs that differ by less than this share are told as equal."""
Named = tuple[str, Run]


def verdict(comparison: Compared) -> list[str]:
    """Return the answer in sentences, the most important first.

    The fairest run has the smallest common gap: the only one in which all policies are charged alike.  Of several
    rates the highest counts, where policies differ most.
    """
    if not comparison.runs:
        return ["No run was completed."]
    top = max(run.rate_scale for run in comparison.runs)
    runs = [(label, run) for label, run in comparison.named() if run.rate_scale == top]
    said = _fairness(runs)
    if len({run.rate_scale for run in comparison.runs}) > 1:
        said[0] = f"At rate x{top:g}, the highest: {said[0]}"
    return [*said, _bounds(comparison)]


def broke_a_bound(comparison: Compared) -> bool:
    """Return whether the gap of a run is over its bound."""
    return any(standing(run) == "over bound" for run in comparison.runs)


def _fairness(runs: Sequence[Named]) -> list[str]:
    waited = [(label, run) for label, run in runs if run.common_gap.ahead is not None]
    if not waited:
        alone = "there is one client" if len(runs[0][1].names) < 2 else "no two clients ever waited at the same time"
        return [f"Nothing to be fair about: {alone}. {_fastest(runs)}"]
    ranked = sorted(waited, key=lambda row: (row[1].common_gap.cost, -(row[1].measures.throughput_rps or 0)))
    (best, fair), (worst, unfair) = ranked[0], ranked[-1]
    least, most = fair.common_gap.cost, unfair.common_gap.cost
    if len(ranked) == 1:
        return [f"Under {best}, {_pair(fair)}.", *_longest_ttft(fair)]
    if most - least <= SAME * most:
        return [
            f"The {len(ranked)} runs are equally fair: under each, one client received about {count(most)} cost units "
            f"more than another that waited, too. {_fastest(runs)}"
        ]
    times = f"{digits(most / least)} times as much" if least else "a gap where there is none"
    return [
        f"{best} is the fairest here{_cost(best, fair, runs)}: the largest gap between two waiting clients, all "
        f"policies charged alike, is {count(least)} cost units. Under {worst} it is {count(most)}, {times}.",
        f"Under {worst}, {_pair(unfair)}.",
        *_moved(best, fair, worst, unfair),
    ]


def _pair(run: Run) -> str:
    """Say who received how much more than whom, in the cost by which all policies are compared."""
    gap = run.common_gap
    assert gap.ahead is not None
    assert gap.behind is not None
    ahead, behind = who(run.names[gap.ahead]), who(run.names[gap.behind])
    return f"{ahead} received {count(gap.cost)} cost units more than {behind} while both waited"


def _cost(label: str, run: Run, runs: Sequence[Named]) -> str:
    """Return what the fairest run costs in throughput against the run with the most."""
    rated = [(other.measures.throughput_rps or 0.0, name) for name, other in runs]
    most, name = max(rated)
    mine = run.measures.throughput_rps or 0.0
    if not most or most - mine <= SAME * most:
        return f", at no cost in throughput ({rate(mine)} requests/s)"
    return (
        f", and costs {share(1 - mine / most)} of the throughput of {name} ({rate(mine)} for {rate(most)} requests/s)"
    )


def _moved(best: str, fair: Run, worst: str, unfair: Run) -> list[str]:
    """Return the client whose waits shrink most between two runs, and the one whose waits grow most."""
    changes = []
    for name in fair.names:
        before, after = (run.clients[name].ttft_us.p99 for run in (unfair, fair))
        if before is not None and after is not None:
            changes.append((after - before, name, before, after))
    if not changes:
        return []
    gains, pays = min(changes), max(changes)
    told = [
        f"{who(name)} {verb}: {time(before)} under {worst}, {time(after)} under {best}"
        for (change, name, before, after), verb, sign in ((gains, "gains", -1), (pays, "pays", 1))
        if change * sign > SAME * max(before, after)
    ]
    return [f"Time to first token, p99: {'; '.join(told)}."] if told else []


def _longest_ttft(run: Run) -> list[str]:
    """Return the client that waits longest."""
    waits = [(found.ttft_us.p99, name) for name, found in run.clients.items() if found.ttft_us.p99 is not None]
    if len(waits) < 2:
        return []
    (long, last), (short, first) = max(waits), min(waits)
    return [f"{who(last)} waits longest for a first token (p99 {time(long)}), {who(first)} shortest ({time(short)})."]


def _fastest(runs: Sequence[Named]) -> str:
    rated = [(run.measures.throughput_rps or 0.0, label) for label, run in runs]
    most, label = max(rated)
    return f"The most throughput has {label} ({rate(most)} requests/s)."


def why_over(run: Run) -> str:
    """Return what excuses a gap over its bound; nothing should not."""
    if run.unexplained:
        return "no assumption is broken: an error in fairsched"
    return f"broken: {', '.join(run.excuses)}"


def _bounds(comparison: Compared) -> str:
    """Return whether the bounds held that were promised."""
    bounded = [(label, standing(run)) for label, run in comparison.named() if run.service_gap_bound is not None]
    if not bounded:
        return "No policy here promises a bound."
    over = [f"{label} ({why_over(run)})" for label, run in comparison.named() if standing(run) == "over bound"]
    loose = sum(where == "not binding" for _, where in bounded)
    if over:
        return f"The bound is BROKEN under {'; '.join(over)}."
    runs = {1: "the one run", 2: "both runs"}.get(len(bounded), f"all {len(bounded)} runs")
    text = f"The proved bound held in {runs} that {'has' if len(bounded) == 1 else 'have'} one"
    if loose == len(bounded):
        return f"{text}, but was more than any client got: nothing here could break it."
    return text + (f"; in {loose} nothing could have broken it." if loose else ".")


CLIENTS_SHOWN = 32

_COLUMNS = (
    page.Heading("run"),
    page.Heading("finished", "requests"),
    page.Heading("throughput", "requests/s"),
    page.Heading("output", "tokens/s"),
    page.Heading("TTFT", "p50, p99"),
    page.Heading("latency", "p50, p99"),
    page.Heading("Jain", "client, charged"),
    page.Heading("service gap", "and bound"),
    page.Heading("common gap", "cost units"),
    page.Heading("cache hits"),
    page.Heading("preemptions"),
)
_CLIENT_COLUMNS: dict[str, Callable[[Measures], str]] = {
    "requests": lambda client: f"{client.requests:,}",
    "finished": lambda client: f"{client.finished:,}",
    "rejected": lambda client: f"{client.rejected:,}",
    "cancelled": lambda client: f"{client.cancelled:,}",
    "service/s": lambda client: figures.rate(client.client_service_rate),
    "TTFT p50": lambda client: figures.time(client.ttft_us.p50),
    "TTFT p99": lambda client: figures.time(client.ttft_us.p99),
    "TPOT p50": lambda client: figures.time(client.tpot_us.p50),
    "latency p50": lambda client: figures.time(client.latency_us.p50),
    "latency p99": lambda client: figures.time(client.latency_us.p99),
    "program p99": lambda client: figures.time(client.program_latency_us.p99),
    "cache hits": lambda client: figures.share(client.prefix_hit_ratio),
}


def _row(label: str, run: Run) -> list[page.Cell]:
    measures = run.measures
    ends = ((measures.rejected, "rejected"), (measures.cancelled, "cancelled"))
    lost = [f"{number:,} {word}" for number, word in ends if number]
    where = figures.standing(run)
    tones: dict[str, page.Tone] = {"over bound": "bad", "no bound": "", "not binding": ""}
    bound = "" if run.service_gap_bound is None else f"bound {count(run.service_gap_bound)}, "
    also = (("swapped", measures.swaps), ("paused", measures.pauses))
    return [
        page.Cell(label),
        page.Cell(f"{measures.finished:,}", ", ".join(lost) or "all"),
        page.Cell(figures.rate(measures.throughput_rps)),
        page.Cell(figures.rate(measures.output_tokens_per_s)),
        page.Cell(figures.time(measures.ttft_us.p50), figures.time(measures.ttft_us.p99)),
        page.Cell(figures.time(measures.latency_us.p50), figures.time(measures.latency_us.p99)),
        page.Cell(figures.index(run.jain_client), figures.index(run.jain_charged)),
        page.Cell(count(run.gap.cost), bound + where, tones.get(where, "good")),
        page.Cell(count(run.common_gap.cost)),
        page.Cell(figures.share(measures.prefix_hit_ratio)),
        page.Cell(f"{measures.preemptions:,}", ", ".join(f"{count:,} {what}" for what, count in also if count)),
    ]


def _client_rows(run: Run, place: int) -> list[list[str | page.Cell]]:
    """Return the clients with the largest demand, the largest first, each with the way to the request that waited
    longest."""
    there = {client for client, _ in _longest(run)}
    rows: list[list[str | page.Cell]] = []
    for client in run.series.clients[:CLIENTS_SHOWN]:
        name = run.names[client]
        link = f"#run-{place}-client-{client}" if client in there else ""
        rows.append([page.Cell(name, href=link), *(text(run.clients[name]) for text in _CLIENT_COLUMNS.values())])
    return rows


def _longest(run: Run) -> list[tuple[int, int]]:
    """Return clients that are shown, each with the row of its request that waited longest until it was admitted."""
    table = run.requests
    if not table:
        return []
    waits = table["admitted_ns"] - table["arrival_ns"]
    found = []
    for client in run.series.clients[:CLIENTS_SHOWN]:
        rows = np.flatnonzero((table["client"] == client) & (table["admitted_ns"] >= 0))
        if rows.size:
            found.append((client, int(rows[waits[rows].argmax()])))
    return found


def _longest_waits(run: Run, place: int, log: str | None) -> list[page.Block]:
    """Return the request of each client that waited longest, and how to ask for its life."""
    table, found = run.requests, _longest(run)
    if not found:
        return []

    def since(row: int, column: str, start_ns: int) -> str:
        return figures.time((int(table[column][row]) - start_ns) / 1e3 if table[column][row] >= 0 else None)

    rows: list[list[str | page.Cell]] = []
    for client, row in found:
        came = int(table["arrival_ns"][row])
        times = [since(row, column, came) for column in ("admitted_ns", "first_token_ns", "end_ns")]
        number = f"{int(table['request'][row])}"
        name = page.Cell(figures.who(run.names[client]), id=f"run-{place}-client-{client}")
        rows.append([name, number, figures.time((came - run.origin_ns) / 1e3), *times])
    heads: list[str | page.Heading] = [
        "client",
        "request",
        "came",
        page.Heading("waited", "until admitted"),
        "TTFT",
        "latency",
    ]
    blocks: list[page.Block] = ["The request of each client that waited longest:", page.Table(heads, rows)]
    if log is not None:
        worst_row = max((row for _, row in found), key=lambda row: table["admitted_ns"][row] - table["arrival_ns"][row])
        number = str(int(table["request"][worst_row]))
        blocks += ["Why it waited:", page.Code(shlex.join(["fairsched", "audit", log, "--explain", number]))]
    return blocks


def _facts(trace: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the trace's plain facts by name; of nested ones the innermost level on one line."""
    items: list[tuple[str, str]] = []
    for key, value in trace.items():
        if isinstance(value, Mapping):
            value = ", ".join(
                f"{name.replace('_', ' ')} {_text(one)}"
                for name, one in value.items()
                if not isinstance(one, Mapping | list | tuple)
            )
        if key not in ("name", "notes") and value not in (None, "") and not isinstance(value, list | tuple):
            items.append((key.replace("_", " "), _text(value)))
    return items


def _text(value: object) -> str:
    if isinstance(value, float):
        return figures.digits(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def summary_html(comparison: figures.Compared) -> str:
    """Return the summary alone, as an HTML table without styles of its own."""
    heads = "".join(f"<th>{escape(each.name)}<br><small>{escape(each.small)}</small></th>" for each in _COLUMNS)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell.text)}<br><small>{escape(cell.small)}</small></td>' for cell in row)}</tr>"
        for row in itertools.starmap(_row, comparison.named())
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def page_of(comparison: figures.Compared) -> page.Page:
    """Return the report."""
    pairs = comparison.named()
    hidden = max((len(run.names) for run in comparison.runs), default=0) - CLIENTS_SHOWN
    more = f"{hidden:,} clients with less demand are in the JSON document." if hidden > 0 else ""
    heads = ["client", *_CLIENT_COLUMNS]
    logs = comparison.trace.get("logs") or [None] * len(pairs)
    tables = [
        page.Folded(label, [page.Table(heads, _client_rows(run, i), more), *_longest_waits(run, i, logs[i])], not i)
        for i, (label, run) in enumerate(pairs)
    ]
    name = comparison.trace.get("name", "a workload")
    routers = ", ".join(dict.fromkeys(run.router for run in comparison.runs))
    parts = [
        *map(page.plot_part, plots(comparison)),
        page.Part(
            "Summary", [page.Table(_COLUMNS, [_row(label, run) for label, run in pairs]), page.Sentences(LEGEND, True)]
        ),
        page.Part("Largest gaps", [page.Sentences([f"{label}: {figures.worst(run)}." for label, run in pairs])]),
    ]
    if promises := figures.promised(comparison):
        told = [f"{label}: {sentence}." for label, sentences in promises for sentence in sentences]
        parts.append(page.Part("Assumptions of the theorems", [page.Sentences(told)]))
    organisations = organisation_cells(comparison, CLIENTS_SHOWN)
    if organisations[1]:
        parts.append(page.Part("Organisations", [page.Table(*organisations)]))
    programs = program_cells(comparison)
    if programs[1]:
        parts.append(page.Part("Programs", [page.Table(*programs)]))
    parts.append(page.Part("Clients", tables))
    parts.append(page.Part("What was run", [page.Facts([*_facts(comparison.trace), ("routers", routers)])]))
    return page.Page(
        title="Scheduling policies compared",
        subtitle=f"{name}, {len(pairs)} run{'s' * (len(pairs) != 1)}, fairsched {comparison.version}",
        verdict=verdict(comparison),
        tone="bad" if broke_a_bound(comparison) else "",
        parts=parts,
        command=comparison.command,
        small=notes_of(comparison),
    )


def write_report(directory: Path, comparison: figures.Compared) -> Path:
    """Write `index.html` into `directory`, which is made if need be, and return its path.  Raises `OSError`."""
    return page_of(comparison).write(directory)
