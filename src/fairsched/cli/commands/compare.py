"""`fairsched compare`: run policies over one workload and see which clients wait and starve, what it costs, and how far
each policy stays inside its bound."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from fairsched.cli.arguments import (
    add_cluster_arguments,
    add_jobs_arguments,
    add_workload_arguments,
    cluster_of,
    jobs_of,
    names,
    predictor_of,
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
from fairsched.engines.simulation import DEFAULT_POLICIES, PREDICTORS, compare
from fairsched.policies.registry import CLUSTER_POLICIES, GATES, LOCAL_POLICIES


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
