"""`fairsched compare`: run policies over one workload and see which clients wait and starve, what it costs, and how far
each policy stays inside its bound."""

import sys
from typing import Annotated

from cyclopts import Parameter

from fairsched.cli import output
from fairsched.cli.options import ClusterOptions, ComparedOptions, Jobs, Predictors, Source, processes
from fairsched.cli.values import File, Folder, Json, Names, Report, Texts, names, settings_by_name
from fairsched.engines.simulation import DEFAULT_POLICIES
from fairsched.engines.simulation import compare as compared


def compare(
    workload: Source = "demo",
    /,
    *,
    policies: Names = DEFAULT_POLICIES,
    routers: Names = ("round-robin",),
    set: Annotated[Texts, Parameter(metavar="POLICY.PARAM=VALUE,...")] = (),
    predictor: Predictors = (),
    of_workload: ComparedOptions = ComparedOptions(),
    of_cluster: ClusterOptions = ClusterOptions(),
    jobs: Jobs = None,
    json: Json = None,
    report: Report = None,
    log: Folder | None = None,
    to_frame: Annotated[File | None, Parameter(metavar="DIR|FILE.parquet")] = None,
) -> int:
    """Run policies over one workload; lists of policies, routers and parameter values are multiplied.
    Exits with 1 if no request finished.

    Args:
        workload: a trace (Azure, BurstGPT or VTC arena CSV; Mooncake, Qwen-Bailian or our JSONL), or a generated
            workload, as `azure-chat:requests=200,rate=2`
        policies: what workers do: names of `fairsched policies`, NAME+GATE for a policy under another gate, or
            module:attribute
        routers: what places requests: names of `fairsched policies`
        set: set a parameter of a policy or router (repeat); several values are runs of their own
        predictor: what predicts outputs: oracle, bucketed, history or none (default: the trace's own predictions, if
            any; repeat for runs of their own)
        log: write each run's event log, for `fairsched audit`
        to_frame: write requests and events of all runs as parquet files into a folder, or the requests into a file
    """
    from fairsched.engines.analysis import print_comparison

    cluster = of_cluster.several(of_workload.seed)
    workloads = of_workload.workloads(workload, cluster.specs)
    given = settings_by_name(set, "POLICY.PARAM=VALUE[,VALUE...]")
    settings = {
        name: {param: names(text) if text else ("",) for param, text in each.items()} for name, each in given.items()
    }
    output.writable(json=json)
    output.folders(report=report, log=log)
    several = len(policies) * len(routers)
    where = processes(jobs, several * sum(len(each.jobs) for each in workloads.values()))
    with output.progress_bar() as progress:
        comparison = compared(
            workloads,
            policies,
            routers,
            cluster=cluster,
            settings=settings,
            predictors=predictor or [None],
            logs=log,
            frames=to_frame,
            progress=progress,
            command=output.command_line(),
            **where,
        )
    output.write_figures(json, comparison.to_dict())
    page = None if report is None else comparison.report(report)
    with output.shown(json) as console:
        print_comparison(comparison, console)
        output.print_files(console, Figures=json, Report=page, Logs=log, Frames=to_frame)
    if not comparison.complete:
        part = ", the last one in part" if where["jobs"] == 1 else ""
        print(f"Interrupted: {len(comparison.runs)} runs are shown{part}.", file=sys.stderr)
        return 130
    status = output.unexplained(label for label, run in comparison.named() if run.unexplained)
    return status or (0 if any(run.measures.finished for run in comparison.runs) else 1)
