"""`fairsched tune`: quanta that fit the traffic, or a quantum and a cap with which no client waits too long."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path

import attrs

from fairsched.cli.arguments import (
    add_jobs_arguments,
    add_model_arguments,
    add_workload_arguments,
    assignment,
    jobs_of,
    positive_number,
    span_ns,
    worker_count,
    workload_of,
)
from fairsched.cli.output import command_line, folders, print_files, progress_bar, shown, writable, write_figures
from fairsched.engines.analysis import Column, count, print_lines, print_small, print_table, rate, share, time
from fairsched.engines.capacity import Traffic, TunedPoint, Tuning, fitting_to, tune
from fairsched.engines.simulation import Cluster, latency_model
from fairsched.model.request import Workload
from fairsched.policies.guarantees import T_WAIT


def add_tune(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Say which quanta, match threshold and in-flight cap fit the workload's prompts; with --max-wait, look for "
        "the quantum and the cap with the most throughput with which clients wait at most that long to be admitted "
        "(p99): what the simulator measures, and what is proved."
    )
    add_workload_arguments(command)
    command.add_argument(
        "--max-wait",
        type=span_ns,
        metavar="TIME",
        help="the longest wait, as 5s, 500ms or a number of seconds (default: nothing is simulated; the "
        "quanta that fit are printed)",
    )
    command.add_argument(
        "--wait-of",
        choices=("clients", "requests"),
        default="clients",
        help="which waits: of a client until it is admitted (again), which is what is proved, p99 of the client that "
        "fares worst; or of all requests until each is admitted (default: %(default)s)",
    )
    command.add_argument(
        "--require",
        choices=("measured", "proved"),
        default="measured",
        help="choose by what is measured, or only among what is proved too (default: %(default)s)",
    )
    command.add_argument(
        "--policy", default="dlpm", metavar="NAME", help="a policy with a deficit gate (default: %(default)s)"
    )
    command.add_argument(
        "--set",
        action="append",
        type=assignment,
        default=[],
        metavar="PARAM=VALUE",
        help="another parameter of the policy (repeat)",
    )
    command.add_argument(
        "--rate",
        type=positive_number,
        metavar="X",
        help="cost units a second that a worker charges while a client waits; a proved wait is that of the theorem in "
        "cost units divided by it (default: by the latency model, and where that proves nothing, by what each run's "
        "worker charged on average while it had work)",
    )
    command.add_argument(
        "--quanta", type=_quanta, metavar="LEAST-MOST", default="64-65536", help="where to look (default: %(default)s)"
    )
    command.add_argument("--workers", type=worker_count, default=1, metavar="N", help="equal workers (default: 1)")
    command.add_argument(
        "--router", default="round-robin", metavar="NAME", help="what places requests (default: %(default)s)"
    )
    add_model_arguments(command)
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.add_argument("--report", type=Path, metavar="DIR", help="write an HTML report with the Pareto front")
    add_jobs_arguments(command, "caps")
    command.set_defaults(run=run_tune)


def _quanta(text: str) -> tuple[int, int]:
    """`LEAST-MOST`, two positive numbers in order."""
    least, dash, most = text.partition("-")
    if not dash or not least.isdecimal() or not most.isdecimal() or not 1 <= int(least) <= int(most) <= 1 << 40:
        raise ArgumentTypeError(f"expected LEAST-MOST, two positive numbers in order, found {text!r}")
    return int(least), int(most)


def run_tune(arguments: Namespace) -> int:
    """Run the command; returns the exit status: 1 if nothing keeps the target, 130 after an interrupt."""
    writable(json=arguments.json)
    folders(report=arguments.report)
    cluster = Cluster(latency_model(arguments.latency_model), arguments.workers, arguments.kv_capacity_tokens)
    workload = workload_of(arguments, cluster.specs)
    if arguments.max_wait is None:
        return _show_fitting(arguments, workload, cluster)
    with progress_bar() as progress:
        tuning = tune(
            workload,
            arguments.max_wait,
            policy=arguments.policy,
            params=dict(arguments.set),
            router=arguments.router,
            cluster=cluster,
            quanta=arguments.quanta,
            wait_of=arguments.wait_of,
            require=arguments.require,
            rate=arguments.rate,
            jobs=jobs_of(arguments, len(workload.jobs)),
            ray=arguments.ray,
            progress=progress,
        )
    write_figures(arguments.json, tuning.to_dict())
    _show(tuning, arguments.report, arguments.json)
    if not tuning.complete:
        print("Interrupted: the choice is among the points that were run until then.", file=sys.stderr)
        return 130
    return 0 if tuning.chosen is not None else 1


# --- what is shown ----------------------------------------------------------------------------------------------------


def _show_fitting(arguments: Namespace, workload: Workload, cluster: Cluster) -> int:
    """Print what fits the workload, and why."""
    if arguments.report is not None or arguments.require == "proved":
        raise ValueError("--report and --require are about waits: give --max-wait")
    traffic = Traffic.of(workload.jobs)
    fit = fitting_to(workload, cluster, arguments.policy, dict(arguments.set))
    policy = ",".join(f"{name}={value}" for name, value in fit.params.items())
    router = ",".join(f"{name}={value}" for name, value in fit.router_params.items())
    lines = [
        f"{workload.name}, {traffic.requests:,} requests of {traffic.clients:,} clients: {arguments.policy} {policy}; "
        f"d2lpm {router}.",
        *fit.reasons(traffic, cluster.capacity),
        *workload.notes,
    ]
    write_figures(
        arguments.json,
        {
            "workload": workload.name,
            "policy": arguments.policy,
            "kv_capacity_tokens": cluster.capacity,
            "traffic": attrs.asdict(traffic),
            "params": fit.params,
            "router_params": fit.router_params,
        },
    )
    with shown(arguments.json) as console:
        print_lines(console, lines)
        print_files(console, Figures=arguments.json)
    return 0


def _name(point: TunedPoint) -> str:
    return f"quantum {point.quantum}, in_flight_cap_tokens {'none' if point.cap is None else point.cap}"


def _figures(tuning: Tuning, point: TunedPoint) -> str:
    lost = tuning.lost(point)
    return (
        f"measured p99 wait {time(point.wait_us.p99)} ({point.waits_longest}), {rate(point.throughput)} requests/s, "
        + (f"{share(lost)} below the best" if lost > 0.0005 else "as much as the best")
    )


def _proof(point: TunedPoint) -> str:
    if point.bound_cost is None:
        return "Nothing is proved about waits in this configuration."
    said = f"Proved ({point.bound_by}): a client is admitted before {point.bound_cost:,} cost units are charged"
    if point.bound_us is None:
        return f"{said}."
    by = "by the latency model" if point.bound_by == T_WAIT.id else f"at {point.rate:,.0f} cost units/s"
    return f"{said}, and within {time(point.bound_us)} {by}."


def _lines(tuning: Tuning) -> list[str]:
    """The answer in sentences."""
    target = time(tuning.max_wait_us)
    chosen = tuning.chosen
    head = f"{tuning.workload}, {tuning.requests:,} requests, {tuning.policy}: "
    if chosen is not None:
        keeps = f"{_name(chosen)} keeps waits within {target}: {_figures(tuning, chosen)}."
        said = [head + keeps, _proof(chosen)]
        if tuning.require == "measured" and tuning.proved is not None and tuning.proved != chosen:
            said.append(f"Proved within {target}, too: {_name(tuning.proved)}; {_figures(tuning, tuning.proved)}.")
        elif tuning.require == "measured" and tuning.proved is None:
            said += _nearest_proof(tuning, target)
        return said
    nearest = tuning.nearest
    what = "is proved to keep" if tuning.require == "proved" else "keeps"
    said = [head + f"nothing {what} a wait of {target}."]
    if tuning.require == "proved":
        said += _nearest_proof(tuning, target)
    return [*said, f"The shortest that was measured: {_name(nearest)}; {_figures(tuning, nearest)}."]


def _nearest_proof(tuning: Tuning, target: str) -> list[str]:
    nearest = tuning.nearest_proved
    if nearest is None or nearest.bound_us is None:
        return ["No wait is proved in any of these configurations."]
    return [
        f"No wait of {target} is proved in any; the shortest is {time(nearest.bound_us)} with {_name(nearest)}: a "
        "proof holds for all traffic, so it counts all clients as they could be at worst."
    ]


_COLUMNS: dict[Column, Callable[[Tuning, TunedPoint], str]] = {
    Column("quantum"): lambda tuning, point: f"{point.quantum:,}",
    Column("cap"): lambda tuning, point: "none" if point.cap is None else f"{point.cap:,}",
    Column("req/s", 1): lambda tuning, point: rate(point.throughput),
    Column("lost", 2): lambda tuning, point: share(tuning.lost(point)),
    Column("wait\np99"): lambda tuning, point: time(point.wait_us.p99),
    Column("TTFT\np99", 5): lambda tuning, point: time(point.measures.ttft_us.p99),
    Column("gap", 4): lambda tuning, point: count(point.gap),
    Column("proved wait\n(cost units)", 3): lambda tuning, point: count(point.bound_cost),
    Column("in time", 1): lambda tuning, point: time(point.bound_us),
    Column("", kind="word"): lambda tuning, point: ", ".join(_marks(tuning, point)),
}


def _marks(tuning: Tuning, point: TunedPoint) -> list[str]:
    """What a row says of its point."""
    marks = ["chosen"] if point == tuning.chosen else []
    if point.keeps(tuning.max_wait_us):
        marks.append("proved" if point.bound_us is not None and point.bound_us <= tuning.max_wait_us else "kept")
    return marks


def _scope(tuning: Tuning) -> list[str]:
    """What the figures are about."""
    whose = (
        "Wait: of a client with requests waiting, until it is admitted (again); p99, of the client that fares worst."
        if tuning.wait_of == "clients"
        else "Wait: of each request from its arrival until it is admitted; p99 of all."
    )
    stated = (
        "The rate was stated (--rate)."
        if tuning.stated_rate is not None
        else "In time by the latency model (T-wait); where that proves nothing, at the rate that a worker charged on "
        "average while it had work. --rate states one."
    )
    rejected = tuning.points[0].measures.rejected
    return [
        f"{len(tuning.points)} configurations were simulated.",
        whose,
        "Proved wait: what may be charged to all before a waiting client is admitted, on any traffic "
        "(docs/reference/theorems.md).",
        stated,
        "kept: within --max-wait as measured; proved: by theorem, too.",
        *([f"Requests that no worker has memory for, and that were rejected: {rejected:,}."] if rejected else []),
        *tuning.notes,
    ]


def _show(tuning: Tuning, report: Path | None, document: Path | None) -> None:
    """Write the report, then print."""
    lines, small, page = _lines(tuning), _scope(tuning), None
    points = sorted(tuning.points, key=lambda point: (point.cap is not None, -(point.cap or 0), point.quantum))
    rows = [[text(tuning, point) for text in _COLUMNS.values()] for point in points]
    if report is not None:
        from fairsched.engines.analysis.report import Page, Part, Table, plot_part
        from fairsched.engines.capacity import pareto_plot

        page = Page(
            title="Quantum and in-flight cap",
            verdict=lines,
            parts=[
                plot_part(pareto_plot(tuning)),
                Part("Every configuration that was run", [Table(list(_COLUMNS), rows)]),
            ],
            command=command_line(),
            small=small,
        ).write(report)
    with shown(document) as console:
        print_lines(console, lines)
        console.print()
        print_table(console, list(_COLUMNS), rows)
        print_small(console, small)
        print_files(console, Figures=document, Report=page)
