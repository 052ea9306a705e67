"""`fairsched tune`: quanta that fit the traffic, or a quantum and a cap with which no client waits too long."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import attrs

from fairsched.cli.options import Jobs, ModelOptions, Source, WorkloadOptions, processes
from fairsched.cli.output import command_line, folders, print_files, progress_bar, shown, writable, write_figures
from fairsched.cli.values import (
    Assignments,
    Json,
    PositiveNumber,
    Report,
    Time,
    WorkerCount,
    found,
    joined,
    read,
    settings,
)
from fairsched.engines.analysis import Column, count, print_lines, print_small, print_table, share, time
from fairsched.engines.analysis import rate as rate_text
from fairsched.engines.capacity import Traffic, TunedPoint, Tuning, fitting_to
from fairsched.engines.capacity import tune as tuned
from fairsched.engines.simulation import Cluster
from fairsched.model.request import Workload
from fairsched.policies.guarantees import T_WAIT


def _quanta(text: str) -> tuple[int, int]:
    """`LEAST-MOST`, two positive numbers in order."""
    least, dash, most = text.partition("-")
    if not dash or not least.isdecimal() or not most.isdecimal() or not 1 <= int(least) <= int(most) <= 1 << 40:
        raise ValueError(f"expected LEAST-MOST, two positive numbers in order, found {found(text)}")
    return int(least), int(most)


def tune(
    workload: Source = "demo",
    /,
    *,
    max_wait: Time | None = None,
    wait_of: Literal["clients", "requests"] = "clients",
    require: Literal["measured", "proved"] = "measured",
    policy: str = "dlpm",
    set: Assignments = (),
    rate: PositiveNumber | None = None,
    quanta: Annotated[tuple[int, int], read(_quanta, "LEAST-MOST", show_default=joined("-"))] = (64, 65536),
    workers: WorkerCount = 1,
    router: str = "round-robin",
    of_workload: WorkloadOptions = WorkloadOptions(),
    of_model: ModelOptions = ModelOptions(),
    jobs: Jobs = None,
    json: Json = None,
    report: Report = None,
) -> int:
    """Say which quanta, match threshold and in-flight cap fit the workload's prompts; with --max-wait, look for the
    quantum and the cap with the most throughput with which clients wait at most that long to be admitted (p99): what
    the simulator measures, and what is proved.

    Args:
        workload: a trace, or a generated workload
        max_wait: the longest wait (default: nothing is simulated; the quanta that fit are printed)
        wait_of: which waits: of a client until it is admitted (again), which is what is proved, p99 of the client that
            fares worst; or of all requests until each is admitted
        require: choose by what is measured, or only among what is proved too
        policy: a policy with a deficit gate
        set: another parameter of the policy (repeat)
        rate: cost units a second that a worker charges while a client waits; a proved wait is that of the theorem in
            cost units divided by it (default: by the latency model, and where that proves nothing, by what each run's
            worker charged on average while it had work)
        quanta: where to look
        workers: equal workers
        router: what places requests
    """
    writable(json=json)
    folders(report=report)
    cluster = of_model.cluster(workers)
    jobs_of = of_workload.workload(workload, cluster.specs)
    params = settings(set)
    if max_wait is None:
        if report is not None or require == "proved":
            raise ValueError("--report and --require are about waits: give --max-wait")
        return _show_fitting(jobs_of, cluster, policy, params, json)
    with progress_bar() as progress:
        tuning = tuned(
            jobs_of,
            max_wait,
            policy=policy,
            params=params,
            router=router,
            cluster=cluster,
            quanta=quanta,
            wait_of=wait_of,
            require=require,
            rate=rate,
            progress=progress,
            **processes(jobs, len(jobs_of.jobs)),
        )
    write_figures(json, tuning.to_dict())
    _show(tuning, report, json)
    if not tuning.complete:
        print("Interrupted: the choice is among the points that were run until then.", file=sys.stderr)
        return 130
    return 0 if tuning.chosen is not None else 1


# --- what is shown ----------------------------------------------------------------------------------------------------


def _show_fitting(workload: Workload, cluster: Cluster, policy: str, params: dict[str, str], json: Path | None) -> int:
    """Print what fits the workload, and why."""
    traffic = Traffic.of(workload.jobs)
    fit = fitting_to(workload, cluster, policy, params)
    fitting = ",".join(f"{name}={value}" for name, value in fit.params.items())
    router = ",".join(f"{name}={value}" for name, value in fit.router_params.items())
    lines = [
        f"{workload.name}, {traffic.requests:,} requests of {traffic.clients:,} clients: {policy} {fitting}; "
        f"d2lpm {router}.",
        *fit.reasons(traffic, cluster.capacity),
        *workload.notes,
    ]
    write_figures(
        json,
        {
            "workload": workload.name,
            "policy": policy,
            "kv_capacity_tokens": cluster.capacity,
            "traffic": attrs.asdict(traffic),
            "params": fit.params,
            "router_params": fit.router_params,
        },
    )
    with shown(json) as console:
        print_lines(console, lines)
        print_files(console, Figures=json)
    return 0


def _name(point: TunedPoint) -> str:
    return f"quantum {point.quantum}, in_flight_cap_tokens {'none' if point.cap is None else point.cap}"


def _figures(tuning: Tuning, point: TunedPoint) -> str:
    lost = tuning.lost(point)
    return (
        f"measured p99 wait {time(point.wait_us.p99)} ({point.waits_longest}), {rate_text(point.throughput)} "
        "requests/s, " + (f"{share(lost)} below the best" if lost > 0.0005 else "as much as the best")
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
    Column("req/s", 1): lambda tuning, point: rate_text(point.throughput),
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
