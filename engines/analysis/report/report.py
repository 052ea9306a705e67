"""A comparison as one HTML file that needs nothing else: what was run, a summary, plots, and a table of clients a run.

Needs the `cli` extra (jinja2, matplotlib), imported when a report is written.
"""

import itertools
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path

import attrs

from fairsched.engines.analysis.figures import (
    Compared,
    count,
    digits,
    index,
    promised,
    rate,
    share,
    standing,
    time,
    worst,
)
from fairsched.engines.analysis.metrics import Run
from fairsched.engines.analysis.outcomes import Measures
from fairsched.engines.analysis.report.page import COMPARISON, rendered, write_page
from fairsched.engines.analysis.report.plots import plots
from fairsched.engines.analysis.table import LEGEND, notes_of, organisation_cells

CLIENTS_SHOWN = 32

_COLUMNS = (
    ("run", ""),
    ("finished", "requests"),
    ("throughput", "requests/s"),
    ("output", "tokens/s"),
    ("TTFT", "p50, p99"),
    ("latency", "p50, p99"),
    ("Jain", "client, charged"),
    ("service gap", "and bound"),
    ("common gap", "cost units"),
    ("cache hits", ""),
    ("preemptions", ""),
)
_CLIENT_COLUMNS: dict[str, Callable[[Measures], str]] = {
    "requests": lambda client: f"{client.requests:,}",
    "finished": lambda client: f"{client.finished:,}",
    "rejected": lambda client: f"{client.rejected:,}",
    "cancelled": lambda client: f"{client.cancelled:,}",
    "service/s": lambda client: rate(client.client_service_rate),
    "TTFT p50": lambda client: time(client.ttft_us.p50),
    "TTFT p99": lambda client: time(client.ttft_us.p99),
    "TPOT p50": lambda client: time(client.tpot_us.p50),
    "latency p50": lambda client: time(client.latency_us.p50),
    "latency p99": lambda client: time(client.latency_us.p99),
    "program p99": lambda client: time(client.program_latency_us.p99),
    "cache hits": lambda client: share(client.prefix_hit_ratio),
}


@attrs.frozen
class _Cell:
    text: str
    small: str = ""
    tone: str = ""


def _row(label: str, run: Run) -> list[_Cell]:
    measures = run.measures
    ends = ((measures.rejected, "rejected"), (measures.cancelled, "cancelled"))
    lost = [f"{number:,} {word}" for number, word in ends if number]
    where = standing(run)
    tone = {"over bound": "bad", "no bound": "", "not binding": ""}.get(where, "good")
    bound = "" if run.service_gap_bound is None else f"bound {count(run.service_gap_bound)}, "
    return [
        _Cell(label),
        _Cell(f"{measures.finished:,}", ", ".join(lost) or "all"),
        _Cell(rate(measures.throughput_rps)),
        _Cell(rate(measures.output_tokens_per_s)),
        _Cell(time(measures.ttft_us.p50), time(measures.ttft_us.p99)),
        _Cell(time(measures.latency_us.p50), time(measures.latency_us.p99)),
        _Cell(index(run.jain_client), index(run.jain_charged)),
        _Cell(count(run.gap.cost), bound + where, tone),
        _Cell(count(run.common_gap.cost)),
        _Cell(share(measures.prefix_hit_ratio)),
        _Cell(f"{measures.preemptions:,}", f"{measures.swaps:,} swapped" if measures.swaps else ""),
    ]


def _client_rows(run: Run) -> list[list[str]]:
    """The clients with the largest demand, the largest first."""
    names = [run.names[client] for client in run.series.clients[:CLIENTS_SHOWN]]
    return [[name, *(text(run.clients[name]) for text in _CLIENT_COLUMNS.values())] for name in names]


def _facts(trace: Mapping[str, object]) -> list[tuple[str, str]]:
    """The trace's plain facts by name; of nested ones the innermost level on one line."""
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
        return digits(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def summary_html(comparison: Compared) -> str:
    """Return the summary alone, as an HTML table without styles of its own."""
    heads = "".join(f"<th>{escape(name)}<br><small>{escape(small)}</small></th>" for name, small in _COLUMNS)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell.text)}<br><small>{escape(cell.small)}</small></td>' for cell in row)}</tr>"
        for row in itertools.starmap(_row, comparison.named())
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def render(comparison: Compared) -> str:
    """The report's HTML."""
    pairs = comparison.named()
    hidden = max((len(run.names) for run in comparison.runs), default=0) - CLIENTS_SHOWN
    more = f"{hidden} clients with less demand are in the JSON document." if hidden > 0 else ""
    return rendered(
        COMPARISON,
        title="Scheduling policies compared",
        version=comparison.version,
        command=comparison.command,
        name=comparison.trace.get("name", "a workload"),
        facts=[*_facts(comparison.trace), ("routers", ", ".join(dict.fromkeys(run.router for run in comparison.runs)))],
        notes=notes_of(comparison),
        columns=_COLUMNS,
        rows=[_row(label, run) for label, run in pairs],
        legend=LEGEND,
        worst=[(label, worst(run)) for label, run in pairs],
        assumptions=promised(comparison),
        plots=plots(comparison),
        organisations=organisation_cells(comparison, CLIENTS_SHOWN),
        client_columns=["client", *_CLIENT_COLUMNS],
        clients=[{"label": label, "rows": _client_rows(run), "more": more} for label, run in pairs],
    )


def write_report(directory: Path, comparison: Compared) -> Path:
    """Write `index.html` into `directory`, which is made if need be, and return its path.  Raises `OSError`."""
    return write_page(directory, render(comparison))
