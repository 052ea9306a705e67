"""`fairsched plan` and `batch`: how many workers of which size keep the targets, and in which order offline jobs share
the most."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

import attrs

from fairsched.cli.arguments import (
    add_jobs_arguments,
    add_workload_arguments,
    found,
    jobs_of,
    names,
    number,
    positive_int,
    predictor_of,
    time_ns,
    whole,
    worker_count,
    workload_of,
)
from fairsched.cli.output import apart, command_line, folders, print_files, progress_bar, shown, writable, write_figures
from fairsched.engines.analysis import Column, print_lines, print_table, share, time
from fairsched.engines.capacity import BESIDE, BatchSummary, CapacityPlan, order_batch, plan, slo_text, worker_sizes
from fairsched.model.latency import DEFAULT_PRESET, PRESETS
from fairsched.model.request import Slo
from fairsched.policies.offline import GROUP_ORDERS, GROUPINGS
from fairsched.policies.registry import CLUSTER_POLICIES, unknown

EVERY = "all"
"""In place of routers: every one that there is."""


def _slo(text: str) -> Slo:
    """`ttft=2s,tpot=50ms`: both targets."""
    targets: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        target_ns = time_ns(value)
        if name not in ("ttft", "tpot") or name in targets or target_ns is None:
            raise ArgumentTypeError(f"expected ttft=TIME,tpot=TIME with TIME as 2s, 50ms or 800us, found {found(text)}")
        targets[name] = target_ns
    if len(targets) != 2 or not all(value >= 1_000 for value in targets.values()):
        raise ArgumentTypeError(
            f"expected a target for ttft and one for tpot, of 1us or more each, found {found(text)}"
        )
    return Slo(ttft_ns=targets["ttft"], tpot_ns=targets["tpot"])


def _attainment(text: str) -> float:
    """A share above 0, at most 1."""
    return number(text, "a share above 0 and at most 1", lambda value: 0 < value <= 1)


_gpu_count = whole("numbers of GPUs, as 4,8", 1, 1024)


def _gpu_counts(text: str) -> list[int]:
    """`4,8`: numbers of GPUs."""
    return [_gpu_count(each) for each in names(text)]


def add_plan(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Choose a worker size by Aladdin's equations, then simulate ever more workers of it until enough requests keep "
        "their targets, with Aladdin's placement and with other routers."
    )
    add_workload_arguments(command)
    command.add_argument(
        "--slo",
        type=_slo,
        required=True,
        metavar="ttft=TIME,tpot=TIME",
        help="targets of every request that names none, as ttft=2s,tpot=50ms (without a unit: seconds)",
    )
    command.add_argument(
        "--attainment",
        type=_attainment,
        default=0.99,
        metavar="X",
        help="share of requests that shall keep them (default: %(default)s)",
    )
    command.add_argument(
        "--latency-model",
        dest="sizes",
        type=names,
        default=[DEFAULT_PRESET],
        metavar="NAME|FILE[:GPUS],...",
        help=f"worker sizes to choose from: of {', '.join(PRESETS)}, or files of `fairsched calibrate`; a worker "
        f"has as many GPUs as its model says, or GPUS (default: {DEFAULT_PRESET})",
    )
    command.add_argument(
        "--scaled-to",
        type=_gpu_counts,
        default=[],
        metavar="GPUS,...",
        help="weigh workers of so many GPUs too, which were not timed, by equation 5 through the sizes given",
    )
    command.add_argument(
        "--kv-capacity-tokens", type=positive_int, metavar="N", help="KV tokens of a worker (default: the model's)"
    )
    command.add_argument(
        "--routers",
        type=names,
        default=list(BESIDE),
        metavar="A,B,...",
        help=f"what is compared with aladdin: of {', '.join(CLUSTER_POLICIES)}, or {EVERY} "
        f"(default: {','.join(BESIDE)})",
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="ROUTER.PARAM=VALUE",
        help="set a parameter of aladdin or of a router (repeat for more)",
    )
    command.add_argument(
        "--predictor",
        type=predictor_of,
        default="bucketed",
        metavar="NAME[:PARAM=VALUE,...]",
        help="what predicts outputs: oracle, bucketed, history or none (default: %(default)s)",
    )
    command.add_argument(
        "--policy", default="fcfs", metavar="NAME", help="the workers' own policy (default: %(default)s)"
    )
    command.add_argument(
        "--batching",
        default="eager-prefill",
        metavar="RULE",
        help="the workers' batching rule; Aladdin's workers compute new prompts at once (default: %(default)s)",
    )
    command.add_argument(
        "--workers-max", type=worker_count, default=64, metavar="N", help="look no further (default: %(default)s)"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.add_argument("--report", type=Path, metavar="DIR", help="write an HTML report with a plot")
    add_jobs_arguments(command, "placements")
    command.set_defaults(run=run_plan)


def run_plan(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    routers = arguments.routers
    if routers == [EVERY]:
        routers = [name for name in CLUSTER_POLICIES if name != "aladdin"]
    settings = _settings(arguments.set, ["aladdin", *routers])
    writable(json=arguments.json)
    folders(report=arguments.report)
    sizes = worker_sizes(
        arguments.sizes, scaled_to=arguments.scaled_to, kv_capacity_tokens=arguments.kv_capacity_tokens
    )
    workload = workload_of(arguments, [sizes[0].spec])
    with progress_bar() as progress:
        found = plan(
            workload,
            arguments.slo,
            sizes=sizes,
            attainment=arguments.attainment,
            routers=routers,
            settings=settings,
            predictor=arguments.predictor,
            policy=arguments.policy,
            batching=arguments.batching,
            workers_max=arguments.workers_max,
            jobs=jobs_of(arguments, len(routers) * len(workload.jobs)),
            ray=arguments.ray,
            progress=progress,
        )
    write_figures(arguments.json, found.to_dict())
    _show_plan(found, arguments.report, arguments.json)
    return 0


def _settings(texts: list[str], known: list[str]) -> dict[str, dict[str, str]]:
    """The parameters of `--set`, by router."""
    settings: dict[str, dict[str, str]] = {}
    for text in texts:
        target, equals, value = text.partition("=")
        router, dot, param = target.rpartition(".")
        if not equals or not dot:
            raise ValueError(f"--set {text!r}: expected ROUTER.PARAM=VALUE")
        if router not in known:
            raise unknown("router in --set (it is not among --routers)", router, known)
        settings.setdefault(router, {})[param] = value
    return settings


_SIZE_COLUMNS = (
    Column("size", kind="name"),
    Column("GPUs"),
    Column("tokens/s\nper GPU"),
    Column("bounded\nby", 1, "word"),
    Column("prefill line\noff (mean, worst)", 2),
    Column("decode line\noff", 3),
)
_ROUTER_COLUMNS = (
    Column("placement", kind="name"),
    Column("workers"),
    Column("attains"),
    Column("TTFT\np99", 1),
    Column("TPOT\np99", 2),
    Column("with aladdin's\nnumber", 3),
)


def _size_rows(found: CapacityPlan) -> list[list[str]]:
    rows = []
    for option in found.options:
        figures, chosen = option.figures, option is found.chosen and len(found.options) > 1
        rows.append(
            [
                option.size.name + (" (chosen)" if chosen else ""),
                f"{option.size.gpus}",
                "none" if figures is None else f"{float(figures.tokens_per_s):,.0f}",
                "" if figures is None else ("memory" if figures.by_memory <= figures.by_target else "tpot"),
                f"{share(option.fit.prefill.mean)}, {share(abs(option.fit.prefill.worst))}",
                f"{share(option.fit.decode.mean)}, {share(abs(option.fit.decode.worst))}",
            ]
        )
    return rows


def _placement_rows(found: CapacityPlan) -> list[list[str]]:
    rows = []
    for name, sizing in found.placements.items():
        at = found.workers_max if sizing.workers is None else sizing.workers
        measures = sizing.tried[at]
        rows.append(
            [
                name,
                f"more than {at}" if sizing.workers is None else f"{at}",
                share(sizing.attainment(at)),
                time(measures.ttft_us.p99),
                time(measures.tpot_us.p99),
                "" if found.workers is None else share(sizing.attainment(found.workers)),
            ]
        )
    return rows


def _show_plan(found: CapacityPlan, report: Path | None, document: Path | None) -> None:
    """Write the report, then print."""
    workload, chosen, workers = found.workload, found.chosen.size, found.workers
    with_gpus = f" ({workers * chosen.gpus} GPUs)" if workers is not None and chosen.gpus > 1 else ""
    number = f"more than {found.workers_max} workers" if workers is None else f"{workers} workers{with_gpus}"
    sized = {name: each.workers for name, each in found.placements.items() if each.workers is not None}
    best = min(sized, key=sized.__getitem__, default=None)
    fewer = best is not None and (workers is None or sized[best] < workers)
    lines = [
        f"{workload.name}, {len(workload.jobs):,} requests: {number} of {chosen.name} keep {slo_text(found.slo)} "
        f"for {share(found.attainment)} of the requests, placed as Aladdin does.",
        *([f"Under {best} it takes {sized[best]}."] if best is not None and fewer else []),
        *workload.notes,
        *found.notes,
        f"Outputs are foreseen by {found.predictor.title}; workers run {found.policy} with {found.batching}.",
    ]
    tables = [
        ("Worker sizes", _SIZE_COLUMNS, _size_rows(found)),
        ("Placements", _ROUTER_COLUMNS, _placement_rows(found)),
    ]
    page = None
    if report is not None:
        from fairsched.engines.analysis.report import Page, Part, plot_part
        from fairsched.engines.analysis.report import Table as Grid
        from fairsched.engines.capacity import attainment_plot

        page = Page(
            title="How many workers",
            verdict=lines,
            parts=[
                plot_part(attainment_plot(found.placements, found.attainment)),
                *(Part(title, [Grid(columns, rows)]) for title, columns, rows in tables),
            ],
            command=command_line(),
        ).write(report)
    with shown(document) as console:
        print_lines(console, lines)
        console.print()
        for title, columns, rows in tables:
            print_table(console, columns, rows, title=title)
        print_files(console, Figures=document, Report=page)


# --- batch ------------------------------------------------------------------------------------------------------------


def add_batch(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Group the prompts of a batch by prefixes and write the order in which to run them: one JSON line a job, with "
        "its id, its group and how many tokens the group shares."
    )
    command.add_argument("jobs", type=Path, metavar="JOBS.jsonl", help="the jobs, in any format of traces")
    command.add_argument("--out", type=Path, metavar="ORDER.jsonl", help="write the order")
    command.add_argument(
        "--grouping",
        choices=GROUPINGS,
        default="exact",
        help="exact saves most; greedy is BatchLLM's as printed, greedy-absorb-last as released (default: %(default)s)",
    )
    command.add_argument(
        "--order",
        choices=GROUP_ORDERS,
        default="per_request",
        help="which groups go first: most requests, or (known_lengths) most output tokens, for each token computed "
        "(default: %(default)s)",
    )
    command.add_argument("--format", help="the file's format, if it should not be recognised")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    command.set_defaults(run=run_batch)


def run_batch(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    out = arguments.out
    writable(out=out, json=arguments.json)
    apart([arguments.jobs], out=out, json=arguments.json)
    with progress_bar() as progress:
        found = order_batch(
            arguments.jobs,
            grouping=arguments.grouping,
            order=arguments.order,
            format=arguments.format,
            progress=lambda count: progress("jobs read", count, 0),
        )
        if out is not None:
            found.write(out, lambda count: progress("jobs written", count, found.summary.jobs))
    write_figures(arguments.json, attrs.asdict(found.summary))
    with shown(arguments.json) as console:
        print_lines(console, _batch_lines(found.summary))
        print_files(console, Order=out, Figures=arguments.json)
    return 0


def _batch_lines(summary: BatchSummary) -> list[str]:
    return [
        f"{summary.jobs:,} jobs in {summary.groups:,} groups, {summary.shared_groups:,} of more than one",
        f"saving ratio {summary.saving_ratio:.2%}: {summary.saved_tokens:,} of {summary.prompt_tokens:,} prompt tokens",
        f"with sharing on all levels it would be {summary.saving_ratio_max:.2%}",
        f"read in {summary.read_s:.1f} s, grouped in {summary.group_s:.2f} s",
    ]
