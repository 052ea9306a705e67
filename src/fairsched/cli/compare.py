"""`fairsched compare`: run policies over one workload and see who waits, who starves, what it costs, and how far each
policy stays inside its bound."""

import re
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from fairsched import __version__
from fairsched.cli_cluster import add_cluster_arguments, cluster_of, facts_of
from fairsched.cli_common import add_workload_arguments, folders, names, policy_of, predictor_of, workload_of, writable
from fairsched.engines.compare import Cluster, Run, run_one
from fairsched.engines.comparison import Comparison
from fairsched.engines.log_file import LogWriter, RunInfo, params_of
from fairsched.engines.metrics import RunResult
from fairsched.engines.predictors import PREDICTORS
from fairsched.engines.workloads.info import trace_info
from fairsched.model.workload import Workload
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import CLUSTER_POLICIES, GATES, LOCAL_POLICIES, parameters, router_with, unknown

DEFAULT_POLICIES = ["fcfs", "lpm", "vtc", "dlpm"]


def add_compare(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "compare",
        help="run policies over a workload and compare them",
        description="Run policies over one workload; lists of policies, routers and parameter values are multiplied.",
    )
    add_workload_arguments(command, several_rates=True)
    command.add_argument(
        "--policies",
        type=names,
        default=DEFAULT_POLICIES,
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
        help=f"who predicts outputs: {', '.join(PREDICTORS)} (default: the trace's own predictions, if any; repeat for "
        "runs of their own)",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.add_argument("--report", type=Path, metavar="DIR", help="write an HTML report with plots")
    command.add_argument("--log", type=Path, metavar="DIR", help="write each run's event log, for replay and explain")
    command.set_defaults(run=compare)


def compare(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    cluster = cluster_of(arguments)
    workloads = {scale: workload_of(arguments, cluster.specs, scale) for scale in arguments.rate_scale}
    runs = list(_runs(arguments))
    writable(json=arguments.json)
    folders(report=arguments.report, log=arguments.log)
    results, complete = _run_all(workloads, cluster, runs, arguments)
    comparison = Comparison(
        version=__version__, command=_command(), trace=_facts(workloads, cluster, runs, complete), runs=results
    )
    _show(comparison, arguments)
    if not complete:
        print(f"Interrupted: {len(results)} of {len(runs)} runs are shown, the last one in part.", file=sys.stderr)
    return 0 if complete else 130


def _runs(arguments: Namespace) -> Iterator[Run]:
    """Every policy with every combination of its parameter values, behind every router, with every predictor, at every
    rate."""
    settings = _settings(arguments.set)
    chosen = [*arguments.policies, *arguments.routers]
    for name in settings:
        if name not in chosen:
            raise unknown("policy in --set (it is not among --policies or --routers)", name, chosen)
    for name in arguments.routers:
        if name not in CLUSTER_POLICIES:
            raise unknown("router", name, CLUSTER_POLICIES)
    ways = product(arguments.rate_scale, arguments.predictor or [None], arguments.policies, arguments.routers)
    for scale, predicts, name, router in ways:
        for params, routing in product(_choices(settings, name), _choices(settings, router)):
            placing = router_with(CLUSTER_POLICIES[router], routing)
            yield Run(policy_of(name, params), name, params, placing, routing, predicts, scale)


def _choices(settings: dict[str, dict[str, list[str]]], name: str) -> list[dict[str, str]]:
    """Every combination of the parameter values that were given to a policy or router."""
    given = settings.get(name, {})
    return [dict(zip(given, values, strict=True)) for values in product(*given.values())]


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


def _run_all(
    workloads: dict[float, Workload], cluster: Cluster, runs: list[Run], arguments: Namespace
) -> tuple[list[RunResult], bool]:
    """Run them one after the other with a progress bar; an interrupt ends the list with a run in part."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    results: list[RunResult] = []
    jobs = len(workloads[arguments.rate_scale[0]].jobs)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        every = bar.add_task("all runs", total=jobs * len(runs))
        for number, run in enumerate(runs):
            workload = workloads[run.rate_scale]
            task = bar.add_task(run.title[:24], total=jobs)

            def progress(ended: int, task: Any = task, number: int = number) -> None:
                bar.update(task, completed=ended)
                bar.update(every, completed=number * jobs + ended)

            with ExitStack() as stack:
                sink = None
                if arguments.log is not None:
                    path = _log_path(arguments.log, number, run)
                    sink = stack.enter_context(LogWriter(path, __version__, _info(workload, cluster, run), workload))
                result, simulator, complete = run_one(workload, run, cluster, progress=progress, sink=sink)
                if sink is not None and complete:
                    sink.complete(result.log_sha256, [lane.policy_state for lane in simulator.lanes])
            results.append(result)
            bar.remove_task(task)
            if not complete:
                return results, False
    return results, True


def _log_path(folder: Path, number: int, run: Run) -> Path:
    """A file of its own for each run, in the order of the table."""
    params = "".join(f"-{key}={value}" for key, value in run.params.items())
    name = f"{number + 1:02}-{run.name}-{run.router_title}{params}"
    return folder / (re.sub(r"[^A-Za-z0-9=._-]", "_", name) + ".jsonl")


def _info(workload: Workload, cluster: Cluster, run: Run) -> RunInfo:
    assert isinstance(run.policy, ComposedPolicy)
    return RunInfo(
        policy=run.name,
        params=params_of(parameters(run.policy)),
        router=run.router_title,
        workers=len(cluster.all_specs),
        kv_capacity_tokens=cluster.capacity,
        latency=cluster.latency,
        workload=workload.name,
        latencies=tuple(spec.latency for spec in cluster.all_specs) if cluster.differ else (),
    )


def _command() -> str:
    return shlex.join(["fairsched", *sys.argv[1:]])


def _facts(workloads: dict[float, Workload], cluster: Cluster, runs: list[Run], complete: bool) -> dict[str, Any]:
    """What the report says of the trace (at the first rate) and of the workers."""
    scale, workload = next(iter(workloads.items()))
    facts = trace_info(workload)
    if len(workloads) > 1:
        facts["rate_scales"] = ", ".join(f"{each:g}" for each in workloads)
        facts["notes"] = [*facts["notes"], f"What is said of the workload is at rate scale {scale:g}."]
    if any(run.predictor for run in runs):
        facts["predictors"] = "; ".join(dict.fromkeys(run.predictor.title for run in runs if run.predictor))
    facts |= facts_of(cluster)
    facts["complete"] = complete
    return facts


def _show(comparison: Comparison, arguments: Namespace) -> None:
    """The table on the terminal, and the files that were asked for."""
    from fairsched.engines.table import print_comparison

    print_comparison(comparison)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(comparison.to_json()), indent=2))
        print(f"Figures: {arguments.json}")
    if arguments.report is not None:
        from fairsched.engines.report import write_report

        print(f"Report: {write_report(arguments.report, comparison)}")
    if arguments.log is not None:
        print(f"Logs: {arguments.log}")
