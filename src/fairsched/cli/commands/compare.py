"""`fairsched compare` and `scale`: run policies over one workload and see which clients wait and starve, what it costs,
and how far each policy stays inside its bound; and what a growing cluster costs its scheduler."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import attrs

from fairsched.cli.arguments import (
    add_cluster_arguments,
    add_jobs_arguments,
    add_model_arguments,
    add_workload_arguments,
    cluster_of,
    jobs_of,
    names,
    pairs,
    positive_int,
    predictor_of,
    seed,
    worker_count,
    workload_of,
)
from fairsched.cli.output import (
    command_line,
    folders,
    print_files,
    progress_bar,
    shown,
    unexplained,
    writable,
    write_figures,
)
from fairsched.engines.analysis import Column, count, index, print_small, print_table, rate, share
from fairsched.engines.simulation import (
    DEFAULT_POLICIES,
    PREDICTORS,
    SIZED,
    STATE_SIZES,
    Cluster,
    Growth,
    ScaleRow,
    StateCost,
    compare,
    growth,
    latency_model,
    scale,
    state_costs,
)
from fairsched.policies.registry import CLUSTER_POLICIES, GATES, LOCAL_POLICIES, ROUTERS, local_policy

_Shown = TypeVar("_Shown", ScaleRow, StateCost)

LEGEND = (
    "Decisions/s: one over the mean time that the router, and a worker's policy, takes to decide and to learn events.",
    "CPU s: seconds of one core that the whole simulation took here. Peak: memory of this process so far.",
    "Imbalance: the most work of a worker over the mean. Jain's index: of client service while all clients are active.",
    "Gap: the largest service gap between two clients at one worker; above 256 clients, between the busiest 256.",
    "Bytes each: what one more takes in the state of the policy or the router alone. Decision: with one arrival told.",
)


def add_compare(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Run policies over one workload; lists of policies, routers and parameter values are multiplied."
    )
    add_workload_arguments(command, several_rates=True)
    command.add_argument(
        "--policies",
        type=names,
        default=list(DEFAULT_POLICIES),
        metavar="A,B,...",
        help=f"of {', '.join(LOCAL_POLICIES)}, NAME+GATE for a policy under another gate ({', '.join(GATES)}), or "
        f"module:attribute (default: {','.join(DEFAULT_POLICIES)})",
    )
    command.add_argument(
        "--routers", type=names, default=["round-robin"], metavar="A,B,...", help=f"of {', '.join(CLUSTER_POLICIES)}"
    )
    add_cluster_arguments(command)
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="POLICY.PARAM=VALUE[,VALUE...]",
        help="set a parameter of a policy or router (repeat for more); several values are runs of their own; see "
        "`fairsched policies`",
    )
    command.add_argument(
        "--predictor",
        action="append",
        type=predictor_of,
        metavar="NAME[:PARAM=VALUE,...]",
        help=f"what predicts outputs: {', '.join(PREDICTORS)} (default: the trace's own predictions, if any; repeat "
        "for runs of their own)",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.add_argument("--report", type=Path, metavar="DIR", help="write an HTML report with plots")
    command.add_argument("--log", type=Path, metavar="DIR", help="write each run's event log, for replay and explain")
    command.add_argument(
        "--to-frame",
        type=Path,
        metavar="DIR|FILE.parquet",
        help="write requests and events of all runs as parquet files into a folder, or the requests into a file",
    )
    add_jobs_arguments(command)
    command.set_defaults(run=run_compare)


def run_compare(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    from fairsched.engines.analysis import print_comparison

    cluster = cluster_of(arguments)
    workloads = {scale: workload_of(arguments, cluster.specs, scale) for scale in arguments.rate_scale}
    settings = _settings(arguments.set)
    writable(json=arguments.json)
    folders(report=arguments.report, log=arguments.log)
    several = len(arguments.policies) * len(arguments.routers)
    jobs = jobs_of(arguments, several * sum(len(each.jobs) for each in workloads.values()))
    with progress_bar() as progress:
        comparison = compare(
            workloads,
            arguments.policies,
            arguments.routers,
            cluster=cluster,
            settings=settings,
            predictors=arguments.predictor or [None],
            logs=arguments.log,
            frames=arguments.to_frame,
            jobs=jobs,
            ray=arguments.ray,
            progress=progress,
            command=command_line(),
        )
    write_figures(arguments.json, comparison.to_dict())
    page = None if arguments.report is None else comparison.report(arguments.report)
    with shown(arguments.json) as console:
        print_comparison(comparison, console)
        print_files(console, Figures=arguments.json, Report=page, Logs=arguments.log, Frames=arguments.to_frame)
    if not comparison.complete:
        part = ", the last one in part" if jobs == 1 else ""
        print(f"Interrupted: {len(comparison.runs)} runs are shown{part}.", file=sys.stderr)
        return 130
    return unexplained(label for label, run in comparison.named() if run.unexplained)


def _settings(texts: list[str]) -> dict[str, dict[str, list[str]]]:
    settings: dict[str, dict[str, list[str]]] = {}
    for text in texts:
        target, equals, values = text.partition("=")
        policy, dot, param = target.rpartition(".")
        if not equals or not dot or not policy or not param:
            raise ValueError(f"--set {text!r}: expected POLICY.PARAM=VALUE[,VALUE...]")
        if param in settings.get(policy, {}):
            raise ValueError(f"--set {text!r}: {target} is set twice")
        settings.setdefault(policy, {})[param] = names(values) if values else [""]
    return settings


# --- scale ------------------------------------------------------------------------------------------------------------


def _workers(text: str) -> list[int]:
    """Numbers of workers separated by commas, each once, in order."""
    return sorted({worker_count(part) for part in text.split(",")})


def _numbers(text: str) -> list[int]:
    """Numbers separated by commas, each once, in order."""
    return sorted({positive_int(part) for part in text.split(",")})


def add_scale(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Simulate every number of workers with every number of clients and requests, then measure what the states of "
        "policy and router take for each client, waiting request, cached block and ended request."
    )
    command.add_argument(
        "--workers", type=_workers, default=[4, 16, 64], metavar="N,N,...", help="numbers of workers (default: 4,16,64)"
    )
    command.add_argument(
        "--clients", type=_numbers, default=[10, 100], metavar="N,N,...", help="numbers of clients (default: 10,100)"
    )
    command.add_argument(
        "--requests",
        type=_numbers,
        default=[],
        metavar="N,N,...",
        help="numbers of requests (default: one, by workers and clients)",
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
    command.add_argument(
        "--state-sizes",
        type=_numbers,
        default=list(STATE_SIZES),
        metavar="N,N,...",
        help="so many clients, requests and blocks in a state that is measured: two numbers or more (default: "
        f"{','.join(map(str, STATE_SIZES))})",
    )
    add_model_arguments(command)
    command.add_argument("--seed", type=seed, default=0, metavar="S", help="seed of all random draws (default: 0)")
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    add_jobs_arguments(command, "sizes", 1)
    command.set_defaults(run=run_scale)


def run_scale(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    writable(json=arguments.json)
    name, _, params = arguments.workload.partition(":")
    if len(arguments.state_sizes) < 2:
        raise ValueError("--state-sizes: what one more costs takes two numbers or more")
    rows: list[ScaleRow] = []
    costs: list[StateCost] = []
    complete = True
    with progress_bar() as progress:
        try:
            for row in scale(
                arguments.workers,
                arguments.clients,
                arguments.requests,
                policy=arguments.policy,
                router=arguments.router,
                workload=name,
                params=pairs(params),
                requests_per_worker=arguments.requests_per_worker,
                requests_per_client=arguments.requests_per_client,
                rate_scale=arguments.rate_scale,
                cluster=Cluster(
                    latency_model(arguments.latency_model), kv_capacity_tokens=arguments.kv_capacity_tokens
                ),
                seed=arguments.seed,
                jobs=arguments.jobs,
                ray=arguments.ray,
                progress=progress,
            ):
                rows.append(row)
            for policy in (local_policy(arguments.policy), ROUTERS[arguments.router]):
                costs += state_costs(policy, arguments.state_sizes, progress)
        except KeyboardInterrupt:
            complete = False
    grown = growth(rows)
    document = {
        "sizes": [attrs.asdict(row) | {"gap_over_bound": row.gap_over_bound} for row in rows],
        "growth": [attrs.asdict(each) for each in grown],
        "state": [attrs.asdict(each) | {"bytes_each": each.bytes_each, "exponent": each.exponent} for each in costs],
    }
    write_figures(arguments.json, document)
    _show_scale(rows, grown, costs, f"{arguments.policy} behind {arguments.router}", arguments.json)
    if not complete:
        print(f"Interrupted after {len(rows)} sizes.", file=sys.stderr)
    return 0 if complete else 130


_SCALE_COLUMNS: dict[Column, Callable[[ScaleRow], str]] = {
    Column("workers"): lambda row: f"{row.workers:,}",
    Column("clients"): lambda row: f"{row.clients:,}",
    Column("requests", 4): lambda row: f"{row.requests:,}",
    Column("CPU\ns", 3): lambda row: rate(row.cpu_s),
    Column("router\ndecisions/s"): lambda row: count(row.router_decisions_per_s),
    Column("local\ndecisions/s"): lambda row: count(row.local_decisions_per_s),
    Column("peak\nMB", 3): lambda row: f"{row.peak_rss_bytes / 1e6:,.0f}",
    Column("served\nreq/s", 5): lambda row: rate(row.throughput_rps),
    Column("imbalance", 2): lambda row: rate(row.imbalance),
    Column("Jain", 1): lambda row: index(row.jain),
    Column("gap", 2): lambda row: count(row.gap),
    Column("gap /\nbound", 1): lambda row: share(row.gap_over_bound),
}


def _cells(columns: Mapping[Column, Callable[[_Shown], str]], shown: _Shown) -> list[str]:
    return [text(shown) for text in columns.values()]


def _growth_text(grows: Growth) -> str:
    powers = ", ".join(f"{name} as {grows.by}^{power:.2f}" for name, power in grows.exponents.items())
    return f"CPU time, {grows.sizes[0]:,} to {grows.sizes[-1]:,} {grows.by}: {powers}."


_STATE_COLUMNS: dict[Column, Callable[[StateCost], str]] = {
    Column("state of", kind="name"): lambda cost: cost.policy,
    Column("for each", kind="name"): lambda cost: cost.kept,
    Column("bytes\neach"): lambda cost: f"{max(cost.bytes_each, 0):,.0f}",
    Column("decision\nus"): lambda cost: rate(cost.decision_us[-1]),
    Column("grows as\npower"): lambda cost: f"{cost.exponent:.2f}",
}


def _show_scale(
    rows: list[ScaleRow], grown: Sequence[Growth], costs: list[StateCost], title: str, document: Path | None
) -> None:
    with shown(document) as console:
        print_table(console, list(_SCALE_COLUMNS), [_cells(_SCALE_COLUMNS, row) for row in rows], title=title)
        print_small(console, [_growth_text(each) for each in grown])
        if costs:
            sizes = costs[0].sizes
            title = f"State with {sizes[0]:,} to {sizes[-1]:,} of each; decisions with {sizes[-1]:,}"
            print_table(console, list(_STATE_COLUMNS), [_cells(_STATE_COLUMNS, cost) for cost in costs], title=title)
        print_small(console, LEGEND)
        print_files(console, Figures=document)
