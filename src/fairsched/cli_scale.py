"""`fairsched scale`: grow a cluster and the number of its clients, and see decisions a second, memory and fairness."""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import msgspec

from fairsched.cli_common import add_model_arguments, latency_of, pairs, policy_of, positive_int, writable
from fairsched.engines.changes import WorkerSpec
from fairsched.engines.compare import Cluster, Run
from fairsched.engines.figures import count, index, rate, share
from fairsched.engines.scale import ScaleRow, measure
from fairsched.engines.workloads.generate import WORKLOADS, generate
from fairsched.model.workload import Workload
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS, unknown

SIZED = tuple(
    name
    for name, spec in WORKLOADS.items()
    if {"clients", "documents", "requests"} <= {p.name for p in spec.parameters}
)
"""Workloads that can be had with any number of clients and requests."""

LEGEND = (
    "Decisions/s: one over the mean time that the router, and a worker's policy, takes to decide and to learn events.",
    "CPU s: seconds of one core that the whole simulation took here. Peak: memory of this process so far.",
    "Imbalance: the most work of a worker over the mean. Jain's index: of client service while all clients are active.",
    "Gap: the largest service gap between two clients at one worker; above 256 clients, between the busiest 256.",
)
WIDTH = 120
"""Columns of the output where it is no terminal, which has a width of its own."""


def sizes(text: str) -> list[int]:
    """Positive whole numbers separated by commas, each once, in order."""
    found = sorted({positive_int(part.strip()) for part in text.split(",")})
    if not found:
        raise ArgumentTypeError(f"expected whole numbers separated by commas, found {text!r}")
    return found


def add_scale(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "scale",
        help="grow workers and clients: decisions a second, memory, fairness",
        description="Simulate every number of workers with every number of clients, in this one process.",
    )
    command.add_argument(
        "--workers", type=sizes, default=[4, 16, 64], metavar="N,N,...", help="numbers of workers (default: 4,16,64)"
    )
    command.add_argument(
        "--clients", type=sizes, default=[10, 100], metavar="N,N,...", help="numbers of clients (default: 10,100)"
    )
    command.add_argument(
        "--router", default="e2", metavar="NAME", help=f"of {', '.join(ROUTERS)} (default: %(default)s)"
    )
    command.add_argument(
        "--policy",
        default="dlpm",
        metavar="NAME",
        help=f"of {', '.join(LOCAL_POLICIES)}, or module:attribute (default: %(default)s)",
    )
    command.add_argument(
        "--workload",
        default="toolbench",
        metavar="NAME[:PARAM=VALUE,...]",
        help=f"of {', '.join(SIZED)} (default: %(default)s)",
    )
    command.add_argument(
        "--requests-per-worker", type=positive_int, default=20, metavar="N", help="at least so many (default: 20)"
    )
    command.add_argument(
        "--requests-per-client", type=positive_int, default=2, metavar="N", help="at least so many (default: 2)"
    )
    command.add_argument("--rate-scale", type=float, default=1.0, metavar="X", help="multiply the arrival rate by X")
    add_model_arguments(command)
    command.add_argument("--seed", type=int, default=0, metavar="S", help="seed of whatever is drawn (default: 0)")
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.set_defaults(run=scale)


def scale(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    if arguments.router not in ROUTERS:
        raise unknown("router", arguments.router, ROUTERS)
    writable(json=arguments.json)
    run = Run(policy_of(arguments.policy, {}), arguments.policy, {}, ROUTERS[arguments.router])
    rows, complete = _measure_all(arguments, run)
    _show(rows, arguments)
    if not complete:
        print(f"Interrupted after {len(rows)} sizes.", file=sys.stderr)
    return 0 if complete else 130


def _measure_all(arguments: Namespace, run: Run) -> tuple[list[ScaleRow], bool]:
    """Every size from small to large, with a progress bar; an interrupt ends the list."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    latency = latency_of(arguments.latency_model)
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows: list[ScaleRow] = []
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        try:
            for workers, clients in sorted(product(arguments.workers, arguments.clients), key=lambda s: s[0] * s[1]):
                cluster = Cluster(latency, workers, arguments.kv_capacity_tokens)
                workload = _workload(arguments, WorkerSpec(latency, arguments.kv_capacity_tokens), workers, clients)
                jobs = len(workload.jobs)
                task = bar.add_task(f"{workers:,} workers, {clients:,} clients", total=jobs)

                def progress(ended: int, task: Any = task) -> None:
                    bar.update(task, completed=ended)

                rows.append(measure(workload, run, cluster, progress))
                progress(jobs)
        except KeyboardInterrupt:
            return rows, False
    return rows, True


def _workload(arguments: Namespace, worker: WorkerSpec, workers: int, clients: int) -> Workload:
    """The workload for one size: more requests, and with them documents, for more workers or clients."""
    name, _, text = arguments.workload.partition(":")
    if name not in SIZED:
        raise unknown("workload with any number of clients and requests", name, SIZED)
    requests = max(arguments.requests_per_worker * workers, arguments.requests_per_client * clients)
    defaults = {parameter.name: parameter.default for parameter in WORKLOADS[name].parameters}
    documents = max(round(requests / defaults["sharers"]), 1)
    given: dict[str, Any] = {"requests": requests, "documents": documents} | pairs(text) | {"clients": clients}
    return generate(
        name,
        seed=arguments.seed,
        rate_scale=arguments.rate_scale,
        workers=[worker] * workers,
        **given,
    )


def _show(rows: list[ScaleRow], arguments: Namespace) -> None:
    """The table on the terminal, and the file that was asked for."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), title=f"{arguments.policy} behind {arguments.router}", title_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="right", vertical="bottom")
    for row in rows:
        table.add_row(*_cells(row))
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    console.print(table)
    for line in LEGEND:
        console.print(f"[dim]{line}[/]", highlight=False)
    if arguments.json is not None:
        document = [attrs.asdict(row) | {"gap_over_bound": row.gap_over_bound} for row in rows]
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))
        print(f"Figures: {arguments.json}")


_COLUMNS = (
    *("workers", "clients", "requests", "CPU\ns", "router\ndecisions/s", "local\ndecisions/s", "peak\nMB"),
    *("served\nreq/s", "imbalance", "Jain", "gap", "gap /\nbound"),
)


def _cells(row: ScaleRow) -> tuple[str, ...]:
    """A row of the table."""
    return (
        f"{row.workers:,}",
        f"{row.clients:,}",
        f"{row.requests:,}",
        rate(row.cpu_s),
        count(row.router_decisions_per_s),
        count(row.local_decisions_per_s),
        f"{row.peak_rss_bytes / 1e6:,.0f}",
        rate(row.throughput_rps),
        rate(row.imbalance),
        index(row.jain),
        count(row.gap),
        share(row.gap_over_bound),
    )
