"""`fairsched tune`: a quantum and an in-flight cap with which nobody waits too long."""

import math
import shlex
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import attrs
import msgspec

from fairsched.cli_audit import WIDTH
from fairsched.cli_common import (
    add_model_arguments,
    add_workload_arguments,
    folders,
    latency_of,
    policy_of,
    positive_int,
    span_ns,
    workload_of,
    writable,
)
from fairsched.engines.compare import Cluster, Run, limits_of
from fairsched.engines.figures import count, rate, share, time
from fairsched.engines.tune import Point, Tuning, caps_for, quanta_for, search, simulated
from fairsched.model.workload import Workload
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import CLUSTER_POLICIES, parameters, unknown
from fairsched.policies.wait_bound import wait_bound_cost

_COLUMNS = ("quantum", "cap", "req/s", "lost", "wait p99", "TTFT p99", "gap", "proved wait,\ncost units", "in time", "")


def add_tune(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "tune",
        help="choose the quantum and in-flight cap for a longest wait",
        description="Look for the quantum and the in-flight cap with the most throughput with which clients wait at "
        "most --max-wait to be let in (p99): what the simulator measures, and what is proved.",
    )
    add_workload_arguments(command)
    command.add_argument(
        "--max-wait", type=span_ns, required=True, metavar="TIME", help="the longest wait, as 5s or 500ms"
    )
    command.add_argument(
        "--wait-of",
        choices=("clients", "requests"),
        default="clients",
        help="whose wait: of a client until it is let in (again), which is what is proved, p99 of the client that "
        "fares worst; or of all requests until each is let in (default: %(default)s)",
    )
    command.add_argument(
        "--require",
        choices=("measured", "proved"),
        default="measured",
        help="choose by what is measured, or only what is proved too (default: %(default)s)",
    )
    command.add_argument(
        "--policy", default="dlpm", metavar="NAME", help="a policy with a deficit gate (default: %(default)s)"
    )
    command.add_argument(
        "--set", action="append", default=[], metavar="PARAM=VALUE", help="another parameter of the policy (repeat)"
    )
    command.add_argument(
        "--rate",
        type=float,
        metavar="X",
        help="cost units a second that a worker charges while somebody waits; a proved wait is that of the theorem in "
        "cost units divided by it (default: what each run's worker charged on average while it had work)",
    )
    command.add_argument(
        "--quanta", metavar="LEAST-MOST", default="64-65536", help="where to look (default: %(default)s)"
    )
    command.add_argument("--workers", type=positive_int, default=1, metavar="N", help="equal workers (default: 1)")
    command.add_argument(
        "--router", default="round-robin", metavar="NAME", help="who places requests (default: %(default)s)"
    )
    add_model_arguments(command)
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.add_argument("--report", type=Path, metavar="DIR", help="write an HTML report with the Pareto front")
    command.set_defaults(run=tune)


def tune(arguments: Namespace) -> int:
    """Run the command; returns the exit status: 1 if nothing keeps the target, 130 after an interrupt."""
    writable(json=arguments.json)
    folders(report=arguments.report)
    if arguments.rate is not None and not 0 < arguments.rate < math.inf:
        raise ValueError(f"--rate: expected a positive number, found {arguments.rate:g}")
    if arguments.router not in CLUSTER_POLICIES:
        raise unknown("router", arguments.router, CLUSTER_POLICIES)
    params = dict(_setting(text) for text in arguments.set)
    _check(policy_of(arguments.policy, params), arguments.policy)
    quanta = _quanta(arguments.quanta)
    cluster = Cluster(latency_of(arguments.latency_model), arguments.workers, arguments.kv_capacity_tokens)
    workload = workload_of(arguments, cluster.specs)
    needs = [job.request.prompt.tokens + job.request.max_output_tokens for job in workload.jobs]
    if min(needs) > cluster.capacity:
        raise ValueError(f"every request needs more than the {cluster.capacity} KV tokens that a worker has")
    caps = caps_for(cluster.capacity, max(needs))
    tuning = _run(arguments, workload, cluster, params, quanta, caps)
    _show(arguments, workload, tuning)
    if not tuning.complete:
        print("Interrupted: the choice is among the points that were run until then.", file=sys.stderr)
        return 130
    return 0 if _chosen(arguments, tuning) is not None else 1


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value or name in ("quantum", "in_flight_cap_tokens"):
        raise ValueError(f"--set {text!r}: expected PARAM=VALUE for a parameter that is not tuned")
    return name, value


def _check(policy: ComposedPolicy, name: str) -> None:
    known = parameters(policy)
    if "quantum" not in known or "in_flight_cap_tokens" not in known:
        raise ValueError(
            f"policy {name!r} has no quantum and in-flight cap: choose one with a deficit gate, as dlpm or fcfs+deficit"
        )


def _quanta(text: str) -> list[int]:
    least, dash, most = text.partition("-")
    if not dash or not least.isdecimal() or not most.isdecimal() or not 1 <= int(least) <= int(most) <= 1 << 40:
        raise ValueError(f"--quanta: expected LEAST-MOST, two positive numbers in order, found {text!r}")
    found = quanta_for(int(least), int(most))
    if not found:
        raise ValueError(f"--quanta: there is no power of two from {least} to {most}")
    return found


def _run(
    arguments: Namespace,
    workload: Workload,
    cluster: Cluster,
    params: dict[str, str],
    quanta: list[int],
    caps: list[int | None],
) -> Tuning:
    """The search, with a progress bar for each simulation."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<44}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(workload.jobs))
        runs = 0

        def measure(quantum: int, cap: int | None) -> Point:
            nonlocal runs
            runs += 1
            text = "none" if cap is None else str(cap)
            bar.update(task, description=f"run {runs}: quantum {quantum}, cap {text}", completed=0)
            policy = policy_of(arguments.policy, params | {"quantum": str(quantum), "in_flight_cap_tokens": text})
            run = Run(policy, arguments.policy, {}, CLUSTER_POLICIES[arguments.router])
            found = simulated(
                workload, run, cluster, arguments.wait_of, lambda ended: bar.update(task, completed=ended)
            )
            bound = wait_bound_cost(policy.gate, workload.clients, limits_of(workload, cluster, policy))
            at = arguments.rate or found.rate
            return Point(
                quantum=quantum,
                cap=cap,
                measures=found.measures,
                wait_us=found.wait_us,
                waits_longest=found.waits_longest,
                gap=found.gap,
                rate=at,
                bound_cost=bound,
                bound_us=bound / at * 1e6 if bound is not None and at else None,
            )

        return search(measure, quanta, caps, arguments.max_wait / 1e3)


# --- what is shown ----------------------------------------------------------------------------------------------------


def _chosen(arguments: Namespace, tuning: Tuning) -> Point | None:
    return tuning.proved if arguments.require == "proved" else tuning.measured


def _name(point: Point) -> str:
    return f"quantum {point.quantum}, in_flight_cap_tokens {'none' if point.cap is None else point.cap}"


def _figures(tuning: Tuning, point: Point) -> str:
    lost = tuning.lost(point)
    return (
        f"measured p99 wait {time(point.wait_us.p99)} ({point.waits_longest}), {rate(point.throughput)} requests/s, "
        + (f"{share(lost)} below the best" if lost > 0.0005 else "as much as the best")
    )


def _proof(point: Point) -> str:
    if point.bound_cost is None:
        return "Nothing is proved about waits in this configuration."
    at = "at that rate" if point.bound_us is None else f"{time(point.bound_us)} at {point.rate:,.0f} cost units/s"
    return f"Proved (D-A.2-time): whoever waits is let in before {point.bound_cost:,} cost units are charged; {at}."


def _lines(arguments: Namespace, workload: Workload, tuning: Tuning) -> list[str]:
    """The answer in sentences."""
    target = time(tuning.max_wait_us)
    chosen = _chosen(arguments, tuning)
    head = f"{workload.name}, {len(workload.jobs):,} requests, {arguments.policy}: "
    if chosen is not None:
        said = [head + f"{_name(chosen)}.", f"Chosen: {_figures(tuning, chosen)}.", _proof(chosen)]
        if arguments.require == "measured" and tuning.proved is not None and tuning.proved != chosen:
            said.append(f"Proved within {target}, too: {_name(tuning.proved)}; {_figures(tuning, tuning.proved)}.")
        elif arguments.require == "measured" and tuning.proved is None:
            said += _nearest_proof(tuning, target)
        return said
    nearest = tuning.nearest
    what = "is proved to keep" if arguments.require == "proved" else "keeps"
    said = [head + f"nothing {what} a wait of {target}."]
    if arguments.require == "proved":
        said += _nearest_proof(tuning, target)
    return [*said, f"The shortest that was measured: {_name(nearest)}; {_figures(tuning, nearest)}."]


def _nearest_proof(tuning: Tuning, target: str) -> list[str]:
    nearest = tuning.nearest_proved
    if nearest is None or nearest.bound_us is None:
        return ["No wait is proved in any of these configurations."]
    return [
        f"No wait of {target} is proved in any; the shortest is {time(nearest.bound_us)} with {_name(nearest)}: a "
        "proof holds whatever comes, so it counts all clients as they could be at worst."
    ]


def _rows(arguments: Namespace, tuning: Tuning) -> list[list[str]]:
    rows = []
    order = sorted(tuning.points, key=lambda point: (point.cap is not None, -(point.cap or 0), point.quantum))
    for point in order:
        marks = ["chosen"] if point == _chosen(arguments, tuning) else []
        if point.keeps(tuning.max_wait_us):
            marks.append("proved" if point.bound_us is not None and point.bound_us <= tuning.max_wait_us else "kept")
        rows.append(
            [
                f"{point.quantum:,}",
                "none" if point.cap is None else f"{point.cap:,}",
                rate(point.throughput),
                share(tuning.lost(point)),
                time(point.wait_us.p99),
                time(point.measures.ttft_us.p99),
                count(point.gap),
                count(point.bound_cost),
                time(point.bound_us),
                ", ".join(marks),
            ]
        )
    return rows


def _scope(arguments: Namespace, workload: Workload, tuning: Tuning) -> list[str]:
    """What the figures are about."""
    whose = (
        "Wait: of a client that has requests waiting, until it is let in (again); p99, of the client that fares worst."
        if arguments.wait_of == "clients"
        else "Wait: of each request from its arrival until it is let in; p99 of all."
    )
    stated = (
        "The rate was stated (--rate)."
        if arguments.rate is not None
        else "The rate is what a worker charged on average while it had work, in each run; --rate states another."
    )
    rejected = tuning.points[0].measures.rejected
    return [
        f"{len(tuning.points)} configurations were simulated.",
        whose,
        "Proved wait: what may be charged to all before a waiting client is let in, whatever comes (docs/theorems.md); "
        "in time as long as the worker charges at that rate.",
        stated,
        "kept: within --max-wait as measured; proved: by theorem, too.",
        *([f"Requests that no worker has memory for, and that were rejected: {rejected:,}."] if rejected else []),
        *workload.notes,
    ]


def _show(arguments: Namespace, workload: Workload, tuning: Tuning) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    lines, rows = _lines(arguments, workload, tuning), _rows(arguments, tuning)
    for line in lines:
        console.print(line, highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    small = _scope(arguments, workload, tuning)
    for line in small:
        console.print(f"[dim]{line}[/]", highlight=False)
    if arguments.json is not None:
        document = _document(arguments, workload, tuning)
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))
        print(f"Figures: {arguments.json}")
    if arguments.report is not None:
        from fairsched.engines.report.tune_page import write_tuning

        command = shlex.join(["fairsched", *sys.argv[1:]])
        shown = ("Every configuration that was run", [name.replace("\n", " ") for name in _COLUMNS], rows)
        path = write_tuning(
            arguments.report,
            command=command,
            lines=lines,
            table=shown,
            small=small,
            tuning=tuning,
            chosen=_chosen(arguments, tuning),
        )
        print(f"Report: {path}")


def _document(arguments: Namespace, workload: Workload, tuning: Tuning) -> dict[str, Any]:
    """Every figure, as plain values."""
    chosen = _chosen(arguments, tuning)

    def key(point: Point | None) -> dict[str, Any] | None:
        return None if point is None else {"quantum": point.quantum, "in_flight_cap_tokens": point.cap}

    return {
        "workload": workload.name,
        "requests": len(workload.jobs),
        "policy": arguments.policy,
        "max_wait_us": tuning.max_wait_us,
        "wait_of": arguments.wait_of,
        "require": arguments.require,
        "chosen": key(chosen),
        "measured": key(tuning.measured),
        "proved": key(tuning.proved),
        "nearest": key(tuning.nearest),
        "nearest_proved": key(tuning.nearest_proved),
        "complete": tuning.complete,
        "points": [
            {
                "quantum": point.quantum,
                "in_flight_cap_tokens": point.cap,
                "throughput_rps": point.throughput,
                "throughput_lost": tuning.lost(point),
                "wait_us": attrs.asdict(point.wait_us),
                "wait_of": point.waits_longest,
                "ttft_us": attrs.asdict(point.measures.ttft_us),
                "service_gap_max": point.gap,
                "rate": point.rate,
                "wait_bound_cost": point.bound_cost,
                "wait_bound_us": point.bound_us,
            }
            for point in tuning.points
        ],
        "notes": list(workload.notes),
    }
