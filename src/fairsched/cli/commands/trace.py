"""`fairsched trace`: look at a workload, keep one, make one out of a log, or order one as an offline batch."""

from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter

from fairsched.cli.options import Log, LogGivenError, ReadingOptions, WorkloadOptions, log_name
from fairsched.cli.output import apart, print_files, progress_bar, shown, writable, write_figures
from fairsched.cli.values import File, Json
from fairsched.engines.analysis import Column, print_lines, print_small, print_table, print_text, safe_text, share
from fairsched.engines.analysis.audit import logged_workload
from fairsched.engines.capacity import BatchSummary, order_batch
from fairsched.engines.logs.access import expanded
from fairsched.engines.workloads import CLIENTS_SHOWN_MAX, render_info, save_workload, trace_info
from fairsched.model.request import Workload
from fairsched.policies.offline import Grouping

_CLIENT_COLUMNS = (
    Column("client", kind="name"),
    Column("requests"),
    Column("share"),
    Column("weight", 2),
    Column("prompt\ntokens", 1),
    Column("output\ntokens", 1),
)


def trace(
    *workload: Annotated[Log, Parameter(metavar="WORKLOAD")],
    out: File | None = None,
    batch: Grouping | None = None,
    of_workload: WorkloadOptions = WorkloadOptions(),
    of_log: ReadingOptions = ReadingOptions(),
    json: Json = None,
) -> int:
    """Say what there is to know about a workload: counts, rates, lengths, clients, and how much of the prompts is
    shared.  A log becomes a workload: an access log of yours, or an event log of ours.

    Args:
        workload: a trace, a log or its files, or the name of a generated workload (default: demo)
        out: write it as a trace in our JSONL format; with --batch the order of its jobs
        batch: order the jobs of a file so that shared prefixes are computed once: one JSON line a job, with its id,
            its group and how many tokens the group shares.  exact saves most; greedy is BatchLLM's as printed,
            greedy-absorb-last as released
    """
    sources = workload or ("demo",)
    writable(out=out, json=json)
    apart([path for path in sources if Path(path).exists()], out=out, json=json)
    if batch is not None:
        if len(sources) > 1:
            raise ValueError("--batch orders the jobs of one file")
        return _order(sources[0], batch, out, json)
    found = _read(sources, of_workload, of_log)
    info = trace_info(found)
    write_figures(json, info)
    if out is not None:
        save_workload(found, out)
    with shown(json) as console:
        print_text(console, render_info(info))
        rows = [
            [
                safe_text(name),
                f"{each['requests']:,}",
                share(each["share"]),
                f"{each['weight']}",
                f"{each['prompt_tokens']:,}",
                f"{each['output_tokens']:,}",
            ]
            for name, each in list(info["clients"].items())[:CLIENTS_SHOWN_MAX]
        ]
        console.print()
        print_table(console, _CLIENT_COLUMNS, rows)
        if (more := len(info["clients"]) - len(rows)) > 0:
            print_lines(console, [f"{more:,} more clients are in the document of --json."])
        print_small(console, info["notes"])
        print_files(console, Trace=out, Figures=json)
    return 0


def _read(sources: tuple[str, ...], of_workload: WorkloadOptions, of_log: ReadingOptions) -> Workload:
    """Return the workload of a trace, a generator or a log."""
    reading = of_log.reading()
    if len(sources) == 1 and sources[0] != "-" and not any(reading.values()):
        try:
            return of_workload.workload(sources[0])
        except LogGivenError:
            pass
    logs = list(map(str, expanded(sources)))
    name = log_name(logs)
    with progress_bar() as progress:
        return logged_workload(logs, progress=lambda done, total: progress(f"reading {name}", done, total), **reading)


def _order(jobs: str, grouping: Grouping, out: Path | None, document: Path | None) -> int:
    """Order the jobs of a file."""
    with progress_bar() as progress:
        found = order_batch(Path(jobs), grouping=grouping, progress=lambda count: progress("jobs read", count, 0))
        if out is not None:
            found.write(out, lambda count: progress("jobs written", count, found.summary.jobs))
    write_figures(document, attrs.asdict(found.summary))
    with shown(document) as console:
        print_lines(console, _batch_lines(found.summary))
        print_files(console, Order=out, Figures=document)
    return 0


def _batch_lines(summary: BatchSummary) -> list[str]:
    return [
        f"{summary.jobs:,} jobs in {summary.groups:,} groups, {summary.shared_groups:,} of more than one",
        f"saving ratio {summary.saving_ratio:.2%}: {summary.saved_tokens:,} of {summary.prompt_tokens:,} prompt tokens",
        f"with sharing on all levels it would be {summary.saving_ratio_max:.2%}",
        f"read in {summary.read_s:.1f} s, grouped in {summary.group_s:.2f} s",
    ]
