"""A comparison in the terminal: one row a run, footnotes that say what the figures mean, and who fares worst.

Needs the `cli` extra (rich), imported when a table is printed.
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fairsched.engines.analysis.figures import Compared, count, index, promised, rate, share, standing, time, who, worst
from fairsched.engines.analysis.metrics import Run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LEGEND = (
    "Service gap: the largest difference of charged service between two clients while both waited at one worker, on "
    "the worst worker. Each policy charges by its own gate, divided by weight.",
    "Cluster gap: the same over all workers together, between clients that waited at any of them.",
    "Common gap: the same for one cost (1 a computed input token, 2 an output token), to compare policies by.",
    "Not binding: the bound exceeds all that the busiest client was charged on a worker, so nothing could break it.",
    "Jain's index: 1 when all clients received the same per weight while all were active, 1/n when one took all.",
)
_CLIENTS_SHOWN = 8
_WIDTH = 110
"""Columns of the output where it is no terminal, which has a width of its own."""
_SPARED = ("latency\np99", "2nd token\np99", "common\ngap", "bound", "cache\nhits")
"""Columns that a narrow terminal goes without, the first that is not needed first; the report has them all."""


def notes_of(comparison: Compared) -> list[str]:
    """Sentences that must be read with the figures: the trace's, then the runs', each once."""
    notes = [str(note) for note in comparison.trace.get("notes", ())]
    notes += [note for run in comparison.runs for note in run.notes]
    return list(dict.fromkeys(notes))


def _cells(run: Run) -> dict[str, str]:
    """A run's figures by column."""
    measures = run.measures
    lost = measures.rejected + measures.cancelled
    where = standing(run)
    style = {"over bound": "bold red", "not binding": "dim", "no bound": "dim"}.get(where, "green")
    return {
        "done": f"{measures.finished:,}",
        "lost": f"{lost:,}" if lost else "",
        "req/s": rate(measures.throughput_rps),
        "TTFT\np50": time(measures.ttft_us.p50),
        "TTFT\np99": time(measures.ttft_us.p99),
        "latency\np99": time(measures.latency_us.p99),
        "TBT\np99": time(measures.tbt_us.p99) if measures.transfers else "",
        "2nd token\np99": time(measures.second_token_us.p99) if measures.transfers else "",
        "Jain": index(run.jain_client),
        "gap": count(run.gap.cost),
        "cluster\ngap": "" if run.cluster_gap is None else count(run.cluster_gap.cost),
        "bound": count(run.service_gap_bound),
        "": f"[{style}]{where}[/]",
        "common\ngap": count(run.common_gap.cost),
        "cache\nhits": share(measures.prefix_hit_ratio),
        "pre-\nempted": f"{measures.preemptions:,}" if measures.preemptions else "",
        "of these\nswapped": f"{measures.swaps:,}" if measures.swaps else "",
    }


def summary_table(comparison: Compared, width: int = _WIDTH) -> "Table":
    """One row a run; columns in which no run has anything are left out, and some where the width does not hold all."""
    from rich.console import Console

    rows = [_cells(run) for run in comparison.runs]
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    for spared in (None, *_SPARED):
        columns = [name for name in columns if name != spared]
        table = plain_table()
        table.add_column("run", overflow="fold", min_width=8)
        for name in columns:
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        for label, row in zip(comparison.labels(), rows, strict=True):
            table.add_row(_escape(label), *(row[name] for name in columns))
        if Console(width=1_000).measure(table).maximum <= width:
            break
    return table


def plain_table() -> "Table":
    """An empty table with a line under its head."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")


def client_table(comparison: Compared) -> "Table":
    """The clients with the largest demand: their p99 TTFT under each run, the first eight runs."""
    runs = comparison.named()[:_CLIENTS_SHOWN]
    table = plain_table()
    table.add_column("TTFT p99 of", overflow="fold")
    table.add_column("requests", justify="right")
    for label, _ in runs:
        table.add_column(_escape(label), justify="right", overflow="fold")
    for client in runs[0][1].series.clients[:_CLIENTS_SHOWN]:
        name = runs[0][1].names[client]
        figures = [time(run.clients[name].ttft_us.p99) for _, run in runs]
        table.add_row(_escape(who(name)), f"{runs[0][1].clients[name].requests:,}", *figures)
    return table


def organisation_cells(comparison: Compared, most: int) -> tuple[list[str], list[list[str]]]:
    """Heads and rows, where clients are in groups: each organisation's share of service and p99 TTFT under each run,
    and the gap between two beside its bound; at most so many organisations.  Nothing where no client is in a group."""
    runs = [(label, run.organisations) for label, run in comparison.named()]
    shown = [(label, found) for label, found in runs if found is not None]
    if not shown:
        return [], []
    rows = []
    for name, first in list(shown[0][1].each.items())[:most]:
        ones = [found.each[name] for _, found in shown]
        figures = [f"{share(one.share)}  {time(one.measures.ttft_us.p99)}" for one in ones]
        rows.append([who(name), f"{first.clients:,}", *figures])
    gaps = [count(found.gap.cost) + (f" of {count(found.bound)}" if found.bound else "") for _, found in shown]
    rows.append(["largest gap (of its bound)", "", *gaps])
    return ["share and TTFT p99 of", "clients", *(label for label, _ in shown)], rows


def organisation_table(comparison: Compared) -> "Table | None":
    """Organisations under the first eight runs, where clients are in groups."""
    heads, rows = organisation_cells(comparison, _CLIENTS_SHOWN)
    if not rows:
        return None
    table = plain_table()
    for i, head in enumerate(heads[: 2 + _CLIENTS_SHOWN]):
        table.add_column(_escape(head), justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_escape, row[: 2 + _CLIENTS_SHOWN]))
    return table


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def print_comparison(comparison: Compared, console: "Console | None" = None) -> None:
    """Print the comparison: its table, its clients where there are several, the worst gaps, and what all that means."""
    from rich.console import Console

    if console is None:
        console = Console()
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = _WIDTH
    if not comparison.runs:
        console.print("No run was completed.")
        return
    console.print(summary_table(comparison, console.width))
    if len(comparison.runs[0].names) > 1:
        console.print(client_table(comparison))
        if (grouped := organisation_table(comparison)) is not None:
            console.print(grouped)
        print_section(console, "Largest gaps", [f"{label}: {worst(run)}" for label, run in comparison.named()])
        console.print()
    if told := [f"{label}: {sentence}" for label, sentences in promised(comparison) for sentence in sentences]:
        print_section(console, "Assumptions of the theorems", told)
        console.print()
    print_small(console, (*LEGEND, *notes_of(comparison)))


def print_section(console: "Console", heading: str, sentences: Iterable[str]) -> None:
    """Print sentences under a heading."""
    console.print(f"[bold]{heading}[/]")
    for sentence in sentences:
        console.print(f"  {_escape(sentence)}.", highlight=False)


def print_small(console: "Console", lines: Iterable[str]) -> None:
    """Print what figures mean and rest on."""
    for line in lines:
        console.print(f"[dim]{_escape(line)}[/]", highlight=False)
