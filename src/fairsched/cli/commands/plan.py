"""`fairsched plan`: how many workers of which size keep the targets."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fairsched.cli import values
from fairsched.cli.options import Jobs, OnePredictor, Source, Targets, WorkloadOptions, processes
from fairsched.cli.output import command_line, folders, print_files, progress_bar, shown, writable, write_figures
from fairsched.cli.values import number
from fairsched.engines.analysis import Column, print_lines, print_table, share, time
from fairsched.engines.capacity import BESIDE, CapacityPlan, slo_text, worker_sizes
from fairsched.engines.capacity import plan as planned
from fairsched.model.latency import DEFAULT_PRESET
from fairsched.policies.registry import CLUSTER_POLICIES, unknown

EVERY = "all"
"""In place of routers: every one that there is."""


def _attainment(text: str) -> float:
    """A share above 0, at most 1."""
    return number(text, "a share above 0 and at most 1", lambda value: 0 < value <= 1)


def plan(
    workload: Source = "demo",
    /,
    *,
    slo: Targets,
    attainment: Annotated[float, values.read(_attainment, "X")] = 0.99,
    latency_model: Annotated[values.Names, Parameter(metavar="NAME|FILE[:GPUS],...")] = (DEFAULT_PRESET,),
    scaled_to: values.Counts = (),
    kv_capacity_tokens: values.PositiveInt | None = None,
    routers: values.Names = BESIDE,
    set: Annotated[values.Texts, Parameter(metavar="ROUTER.PARAM=VALUE")] = (),
    predictor: OnePredictor = None,
    policy: str = "fcfs",
    workers_max: values.WorkerCount = 64,
    of_workload: WorkloadOptions = WorkloadOptions(),
    jobs: Jobs = None,
    json: values.Json = None,
    report: values.Report = None,
) -> int:
    """Choose a worker size by Aladdin's equations, then simulate ever more workers of it until enough requests keep
    their targets, with Aladdin's placement and with other routers.

    Args:
        workload: a trace, or a generated workload
        slo: targets of every request that names none, as ttft=2s,tpot=50ms (without a unit: seconds)
        attainment: share of requests that shall keep them
        latency_model: worker sizes to choose from: presets, or files of `fairsched calibrate`; a worker has as many
            GPUs as its model says, or GPUS
        scaled_to: weigh workers of so many GPUs too, which were not timed, by equation 5 through the sizes given
        kv_capacity_tokens: KV tokens of a worker (default: the model's)
        routers: what is compared with aladdin, or `all`
        set: set a parameter of aladdin or of a router (repeat)
        predictor: what predicts outputs: oracle, bucketed, history or none (default: bucketed)
        policy: the workers' own policy; they compute new prompts at once, as Aladdin's do
        workers_max: look no further
    """
    if routers == (EVERY,):
        routers = tuple(name for name in CLUSTER_POLICIES if name != "aladdin")
    settings = _settings(set, ["aladdin", *routers])
    writable(json=json)
    folders(report=report)
    sizes = worker_sizes(latency_model, scaled_to=scaled_to, kv_capacity_tokens=kv_capacity_tokens)
    requests = of_workload.workload(workload, [sizes[0].spec])
    with progress_bar() as progress:
        found = planned(
            requests,
            slo,
            sizes=sizes,
            attainment=attainment,
            routers=routers,
            settings=settings,
            predictor=predictor,
            policy=policy,
            workers_max=workers_max,
            progress=progress,
            **processes(jobs, len(routers) * len(requests.jobs)),
        )
    write_figures(json, found.to_dict())
    _show(found, report, json)
    return 0


def _settings(texts: tuple[str, ...], known: list[str]) -> dict[str, dict[str, str]]:
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


def _show(found: CapacityPlan, report: Path | None, document: Path | None) -> None:
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
