"""`fairsched tune`: quanta that fit the traffic, or a quantum and a cap with which no client waits too long."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import attrs

from fairsched.cli import values
from fairsched.cli.options import Jobs, ModelOptions, Source, WorkloadOptions, processes
from fairsched.cli.output import folders, print_files, progress_bar, show, shown, writable, write_figures
from fairsched.engines import capacity
from fairsched.engines.analysis import print_lines
from fairsched.engines.capacity import tune as tuned
from fairsched.engines.simulation import Cluster
from fairsched.model.request import Workload
from fairsched.policies.validators import found


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
    max_wait: values.Time | None = None,
    first_token: values.Time | None = None,
    wait_of: Literal["clients", "requests"] = "clients",
    require: Literal["measured", "proved"] = "measured",
    policy: str = "dlpm",
    set: values.Assignments = (),
    rate: values.PositiveNumber | None = None,
    quanta: Annotated[tuple[int, int], values.read(_quanta, "LEAST-MOST", show_default=values.joined("-"))] = (
        64,
        65536,
    ),
    workers: values.WorkerCount = 1,
    router: str = "round-robin",
    of_workload: WorkloadOptions = WorkloadOptions(),
    of_model: ModelOptions = ModelOptions(),
    jobs: Jobs = None,
    json: values.Json = None,
    report: values.Report = None,
) -> int:
    """Say which quanta, match threshold and in-flight cap fit the workload's prompts; with --max-wait, look for the
    quantum and the cap with the most throughput with which clients wait at most that long to be admitted (p99): what
    the simulator measures, and what is proved.  With --first-token, say which policy promises that time by theorem to
    as many clients with requests as long.

    Args:
        workload: a trace, or a generated workload
        max_wait: the longest wait (default: nothing is simulated; the quanta that fit are printed)
        first_token: the longest time to a first token, to be proved; nothing is simulated
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
    params = values.settings(set)
    if first_token is not None:
        if max_wait is not None or params or report is not None:
            raise ValueError("--first-token chooses the policy and what is set: leave out --max-wait, --set, --report")
        return _show_first_token(
            capacity.tune_first_token(first_token, capacity.Demand.of(jobs_of), cluster.latency, cluster.capacity), json
        )
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
    show(capacity.tuning_sheet(tuning), report, json, (spec.latency for spec in cluster.specs))
    if not tuning.complete:
        print("Interrupted: the choice is among the points that were run until then.", file=sys.stderr)
        return 130
    return 0 if tuning.chosen is not None else 1


def _show_first_token(found: capacity.FirstTokenTuning, json: Path | None) -> int:
    """Print what keeps the target."""
    write_figures(json, found.to_dict())
    with shown(json) as console:
        print_lines(console, found.text())
        print_files(console, Figures=json)
    return 0 if found.chosen is not None else 1


# --- what is shown ----------------------------------------------------------------------------------------------------


def _show_fitting(workload: Workload, cluster: Cluster, policy: str, params: dict[str, str], json: Path | None) -> int:
    """Print what fits the workload, and why."""
    traffic = capacity.Traffic.of(workload.jobs)
    fit = capacity.fitting_to(workload, cluster, policy, params)
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
