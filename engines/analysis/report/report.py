"""A comparison as one HTML file that needs nothing else: what was run, a summary, plots, and a table of clients a run.

Its first sentences say under which policies clients wait, which are slow, and whether bounds held.

Needs the `cli` extra (jinja2, matplotlib), imported when a report is written.
"""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fairsched.engines.analysis import figures
from fairsched.engines.analysis.figures import count
from fairsched.engines.analysis.metrics import Run
from fairsched.engines.analysis.outcomes import Measures
from fairsched.engines.analysis.report import page
from fairsched.engines.analysis.report.player import played_runs
from fairsched.engines.analysis.report.plots import is_served, plots
from fairsched.engines.analysis.table import (
    LEGEND,
    notes_of,
    organisation_cells,
    policy_lines,
    program_cells,
    simulated,
)
from fairsched.engines.analysis.verdict import broke_a_bound, others_wait_us, verdict
from fairsched.model.shown import html_table

CLIENTS_SHOWN = 32

_COLUMNS = (
    page.Heading("run"),
    page.Heading("finished", "requests"),
    page.Heading("throughput", "requests/s"),
    page.Heading("output", "tokens/s"),
    page.Heading("energy", "J per request, token"),
    page.Heading("TTFT", "p50, p99"),
    page.Heading("others' TTFT", "p99"),
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
        page.Cell(figures.rate(measures.joules_per_request), figures.rate(measures.joules_per_token)),
        page.Cell(figures.time(measures.ttft_us.p50), figures.time(measures.ttft_us.p99)),
        page.Cell(figures.time(others_wait_us(run))),
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
    heads = (f"{each.name} ({each.small})" if each.small else each.name for each in _COLUMNS)
    rows = (
        [f"{cell.text} ({cell.small})" if cell.small else cell.text for cell in _row(*pair)]
        for pair in comparison.named()
    )
    return html_table(heads, rows)


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
        *(played_runs(comparison) if is_served(comparison) else ()),
        *map(page.plot_part, plots(comparison)),
        page.Part(
            "Summary",
            [
                page.Table(_COLUMNS, [_row(label, run) for label, run in pairs]),
                page.Sentences([*policy_lines(comparison), *LEGEND], True),
            ],
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
        subtitle=f"{name}, {len(pairs)} run{'s' * (len(pairs) != 1)}, fairsched {comparison.version}. "
        + " ".join(simulated(comparison)),
        verdict=verdict(comparison),
        tone="bad" if broke_a_bound(comparison) else "",
        parts=parts,
        command=comparison.command,
        small=notes_of(comparison),
    )


def write_report(directory: Path, comparison: figures.Compared) -> Path:
    """Write `index.html` into `directory`, which is made if need be, and return its path.  Raises `OSError`."""
    return page_of(comparison).write(directory)
