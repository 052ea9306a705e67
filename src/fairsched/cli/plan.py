"""`fairsched plan`: how many workers of which size keep the targets, and how many other routers would need."""

import re
import shlex
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import attrs
import msgspec

from fairsched.cli_common import (
    add_workload_arguments,
    folders,
    latency_of,
    names,
    policy_of,
    positive_int,
    predictor_of,
    workload_of,
    writable,
)
from fairsched.engines.changes import WorkerSpec
from fairsched.engines.compare import Cluster, Run
from fairsched.engines.fidelity import with_slo
from fairsched.engines.figures import share, time
from fairsched.engines.performance_fit import PerformanceFit, asked, fit_performance, scaled_latency
from fairsched.engines.sizing import Sizing, fewest, measured
from fairsched.model.latency import LatencyModel
from fairsched.model.presets import DEFAULT_PRESET, PRESETS
from fairsched.model.request import Slo
from fairsched.model.workload import Workload
from fairsched.policies.aladdin import Aladdin
from fairsched.policies.aladdin_size import Demand, Size, SizeFigures, size_figures
from fairsched.policies.base import ClusterPolicy
from fairsched.policies.registry import CLUSTER_POLICIES, router_with, unknown

_TIME = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")
WIDTH = 110
"""Columns of the output where it is no terminal, which has a width of its own."""
_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
EVERY = "all"
"""In place of routers: every one that there is."""
BESIDE = ("join-shortest-queue", "power-of-two")
"""Routers that are compared with Aladdin unless others are asked for."""
_GPUS = re.compile(r"-tp(\d+)$")


def slo_of(text: str) -> Slo:
    """`ttft=2s,tpot=50ms`: both targets."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        matched = _TIME.fullmatch(value.strip())
        if name not in ("ttft", "tpot") or name in found or matched is None:
            raise ArgumentTypeError(f"expected ttft=TIME,tpot=TIME with TIME as 2s, 50ms or 800us, found {text!r}")
        found[name] = round(float(matched[1]) * _NS[matched[2]])
    if len(found) != 2 or not all(value >= 1_000 for value in found.values()):
        raise ArgumentTypeError(f"expected a target for ttft and one for tpot, of 1us or more each, found {text!r}")
    return Slo(ttft_ns=found["ttft"], tpot_ns=found["tpot"])


def attainment_of(text: str) -> float:
    """A share above 0, at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ArgumentTypeError(f"expected a share above 0 and at most 1, found {text!r}")
    return value


def gpu_counts(text: str) -> list[int]:
    """`4,8`: numbers of GPUs."""
    counts = names(text)
    if not all(count.isdecimal() and int(count) > 0 for count in counts):
        raise ArgumentTypeError(f"expected numbers of GPUs, as 4,8, found {text!r}")
    return [int(count) for count in counts]


def add_plan(commands: Any) -> None:
    """Declare the command."""
    command: ArgumentParser = commands.add_parser(
        "plan",
        help="how many workers of which size keep the targets",
        description="Choose a worker size by Aladdin's equations, then simulate ever more workers of it until enough "
        "requests keep their targets, with Aladdin's placement and with other routers.",
    )
    add_workload_arguments(command)
    command.add_argument(
        "--slo",
        type=slo_of,
        required=True,
        metavar="ttft=TIME,tpot=TIME",
        help="targets of every request that names none, as ttft=2s,tpot=50ms",
    )
    command.add_argument(
        "--attainment",
        type=attainment_of,
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
        help=f"worker sizes to choose from: of {', '.join(PRESETS)}, or files of `fairsched calibrate`; a name in "
        f"-tpN has N GPUs, others one, unless they say (default: {DEFAULT_PRESET})",
    )
    command.add_argument(
        "--scaled-to",
        type=gpu_counts,
        default=[],
        metavar="GPUS,...",
        help="weigh workers of so many GPUs too, which nobody timed, by equation 5 through the sizes given",
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
        help="who predicts outputs: oracle, bucketed, history or none (default: %(default)s)",
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
        "--workers-max", type=positive_int, default=64, metavar="N", help="look no further (default: %(default)s)"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.add_argument("--report", type=Path, metavar="DIR", help="write an HTML report with a plot")
    command.set_defaults(run=plan)


@attrs.frozen
class Option:
    """A worker size: its model, accelerators, Aladdin's lines, and what equation 6 says (None: it serves nobody)."""

    name: str
    spec: WorkerSpec
    gpus: int
    fit: PerformanceFit
    figures: SizeFigures | None


def plan(arguments: Namespace) -> int:
    """Run the command; returns the exit status."""
    if arguments.routers == [EVERY]:
        arguments.routers = [name for name in CLUSTER_POLICIES if name != "aladdin"]
    for name in arguments.routers:
        if name not in CLUSTER_POLICIES:
            raise unknown("router", name, CLUSTER_POLICIES)
    settings = _settings(arguments)
    writable(json=arguments.json)
    folders(report=arguments.report)
    sizes = [_size(text, arguments) for text in arguments.sizes]
    sizes += _scaled(sizes, arguments)
    workload = with_slo(workload_of(arguments, [sizes[0][1]]), arguments.slo)
    if not workload.jobs:
        raise ValueError("the workload has no requests")
    options = [_option(*size, workload, arguments.slo) for size in sizes]
    serving = [option for option in options if option.figures is not None]
    if not serving:
        raise ValueError(
            f"no size keeps {_slo_text(arguments.slo)} even for one request; a step that decodes one takes "
            + ", ".join(f"{time(option.spec.latency.decode_ns(1, 1) / 1e3)} on {option.name}" for option in options)
        )
    chosen = max(serving, key=lambda option: (option.figures.tokens_per_s if option.figures else 0, -option.gpus))
    sizings = _sizings(workload, chosen, arguments, settings)
    _show(arguments, workload, options, chosen, sizings)
    return 0


def _size(text: str, arguments: Namespace) -> tuple[str, WorkerSpec, int]:
    """A size as it is given: its name, the worker, and its accelerators."""
    name, colon, gpus = text.rpartition(":")
    if not colon or not gpus.isdecimal():
        name, gpus = text, ""
    latency = latency_of(name)
    told = _GPUS.search(latency.name)
    count = int(gpus) if gpus else int(told[1]) if told else 1
    if count < 1:
        raise ValueError(f"--latency-model {text!r}: a worker has at least one GPU")
    return name, WorkerSpec(latency, arguments.kv_capacity_tokens), count


def _option(name: str, spec: WorkerSpec, gpus: int, workload: Workload, slo: Slo) -> Option:
    fit = fit_performance(asked(spec.latency))
    kv = mean(job.request.prompt.tokens + job.output_tokens / 2 for job in workload.jobs)
    demand = Demand(kv=max(round(kv), 1), context_tokens=max(round(kv), 1))
    assert slo.tpot_ns is not None
    figures = size_figures(Size(gpus, fit.performance, spec.capacity), demand, slo.tpot_ns)
    return Option(name, spec, gpus, fit, figures)


def _settings(arguments: Namespace) -> dict[str, dict[str, str]]:
    """The parameters of `--set`, by router."""
    settings: dict[str, dict[str, str]] = {}
    for text in arguments.set:
        target, equals, value = text.partition("=")
        router, dot, param = target.rpartition(".")
        if not equals or not dot:
            raise ValueError(f"--set {text!r}: expected ROUTER.PARAM=VALUE")
        if router not in ("aladdin", *arguments.routers):
            raise unknown("router in --set (it is not among --routers)", router, ["aladdin", *arguments.routers])
        settings.setdefault(router, {})[param] = value
    return settings


def _scaled(sizes: list[tuple[str, WorkerSpec, int]], arguments: Namespace) -> list[tuple[str, WorkerSpec, int]]:
    """The sizes that nobody timed."""
    if not arguments.scaled_to:
        return []
    timed = {gpus: spec.latency for _, spec, gpus in sizes}
    if len(timed) < len(sizes) or len(timed) < 2:
        raise ValueError(
            "--scaled-to goes by two or more sizes in --latency-model, each with another number of GPUs, not by "
            + ", ".join(f"{name} ({gpus})" for name, _, gpus in sizes)
        )
    for gpus in arguments.scaled_to:
        if gpus in timed:
            raise ValueError(f"--scaled-to {gpus}: {timed[gpus].name} has {gpus} GPUs, and was timed")
    found = [(scaled_latency(timed, gpus), gpus) for gpus in arguments.scaled_to]
    return [(latency.name, WorkerSpec(latency, arguments.kv_capacity_tokens), gpus) for latency, gpus in found]


def placing_for(
    name: str, workload: Workload, latency: LatencyModel, slo: Slo, settings: Mapping[str, str]
) -> ClusterPolicy[Any]:
    """The router of that name; Aladdin and its variants with these targets, and lines that cover the longest prompt."""
    router = CLUSTER_POLICIES[name]
    if isinstance(router, Aladdin):
        assert slo.ttft_ns is not None
        assert slo.tpot_ns is not None
        longest = max(job.request.prompt.tokens for job in workload.jobs)
        router = attrs.evolve(
            router, ttft_us=slo.ttft_ns // 1_000, tpot_us=slo.tpot_ns // 1_000, prompt_tokens_max=longest
        )
        router = router_with(router, settings).fitted(latency)
        return router
    return router_with(router, settings)


def _sizings(
    workload: Workload, chosen: Option, arguments: Namespace, settings: Mapping[str, Mapping[str, str]]
) -> dict[str, Sizing]:
    """For aladdin and each router, the fewest workers; and each router beside aladdin with aladdin's number."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    local = policy_of(arguments.policy, {"batching": arguments.batching, "reserve": "optimistic"})
    placing: dict[str, ClusterPolicy[Any]] = {
        name: placing_for(name, workload, chosen.spec.latency, arguments.slo, settings.get(name, {}))
        for name in dict.fromkeys(("aladdin", *arguments.routers))
    }
    cluster = Cluster(chosen.spec.latency, kv_capacity_tokens=arguments.kv_capacity_tokens)
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn())
    found: dict[str, Sizing] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        for name, router in placing.items():
            task = bar.add_task(name, total=len(workload.jobs))
            run = Run(local, arguments.policy, {}, router, predictor=arguments.predictor)
            simulated = measured(workload, run, cluster, lambda ended, task=task: bar.update(task, completed=ended))  # type: ignore[misc]

            def measure(workers: int, simulated: Any = simulated, task: Any = task, name: str = name) -> Any:
                bar.update(task, description=f"{name}, {workers} workers", completed=0)
                return simulated(workers)

            sizing = fewest(measure, arguments.attainment, at_most=arguments.workers_max)
            common = found["aladdin"].workers if found else None
            if common is not None and common not in sizing.tried:
                sizing = attrs.evolve(sizing, tried=dict(sorted({**sizing.tried, common: measure(common)}.items())))
            found[name] = sizing
            bar.remove_task(task)
    return found


# --- what is shown ----------------------------------------------------------------------------------------------------


def _slo_text(slo: Slo) -> str:
    return f"ttft={time((slo.ttft_ns or 0) / 1e3)}, tpot={time((slo.tpot_ns or 0) / 1e3)}"


def _rows_of_sizes(options: list[Option], chosen: Option) -> list[list[str]]:
    rows = []
    for option in options:
        said = option.figures
        rows.append(
            [
                option.name + (" (chosen)" if option is chosen and len(options) > 1 else ""),
                f"{option.gpus}",
                "none" if said is None else f"{float(said.tokens_per_s):,.0f}",
                "" if said is None else ("memory" if said.by_memory <= said.by_target else "tpot"),
                f"{share(option.fit.prefill.mean)}, {share(abs(option.fit.prefill.worst))}",
                f"{share(option.fit.decode.mean)}, {share(abs(option.fit.decode.worst))}",
            ]
        )
    return rows


_SIZE_COLUMNS = (
    "size",
    "GPUs",
    "tokens/s\nper GPU",
    "bounded\nby",
    "prefill line\noff (mean, worst)",
    "decode line\noff",
)
_ROUTER_COLUMNS = ("placement", "workers", "attains", "TTFT\np99", "TPOT\np99", "with aladdin's\nnumber")


def _rows_of_placements(sizings: dict[str, Sizing], workers_max: int) -> list[list[str]]:
    common = sizings["aladdin"].workers
    rows = []
    for name, sizing in sizings.items():
        at = workers_max if sizing.workers is None else sizing.workers
        measures = sizing.tried[at]
        rows.append(
            [
                name,
                f"more than {workers_max}" if sizing.workers is None else f"{sizing.workers}",
                share(sizing.attainment(at)),
                time(measures.ttft_us.p99),
                time(measures.tpot_us.p99),
                "" if common is None else share(sizing.attainment(common)),
            ]
        )
    return rows


def _show(
    arguments: Namespace, workload: Workload, options: list[Option], chosen: Option, sizings: dict[str, Sizing]
) -> None:
    from rich.console import Console
    from rich.table import Table

    aim, found = arguments.attainment, sizings["aladdin"].workers
    with_gpus = "" if found is None else f" ({found * chosen.gpus} GPUs)" if chosen.gpus > 1 else ""
    number = f"more than {arguments.workers_max} workers" if found is None else f"{found} workers{with_gpus}"
    lines = [
        f"{workload.name}, {len(workload.jobs):,} requests: {number} of {chosen.name} keep {_slo_text(arguments.slo)} "
        f"for {share(aim)} of the requests.",
        *workload.notes,
        f"Outputs are foreseen by {arguments.predictor.title}; workers run {arguments.policy} with "
        f"{arguments.batching}.",
    ]
    tables = [
        ("Worker sizes", _SIZE_COLUMNS, _rows_of_sizes(options, chosen)),
        ("Placements", _ROUTER_COLUMNS, _rows_of_placements(sizings, arguments.workers_max)),
    ]
    # No terminal has a width of its own.
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for line in lines:
        console.print(line, highlight=False, markup=False)
    for title, columns, rows in tables:
        table = Table(*columns, title=title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if arguments.json is not None:
        document = _document(arguments, workload, options, chosen, sizings)
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))
        print(f"Figures: {arguments.json}")
    if arguments.report is not None:
        from fairsched.engines.report.plan_page import attainment_plot, write_plan

        command = shlex.join(["fairsched", *sys.argv[1:]])
        plot = attainment_plot(sizings, aim)
        print(f"Report: {write_plan(arguments.report, command=command, lines=lines, tables=tables, plot=plot)}")


def _document(
    arguments: Namespace, workload: Workload, options: list[Option], chosen: Option, sizings: dict[str, Sizing]
) -> dict[str, Any]:
    """Every figure, as plain values."""
    return {
        "workload": workload.name,
        "requests": len(workload.jobs),
        "slo": {"ttft_us": arguments.slo.ttft_ns / 1e3, "tpot_us": arguments.slo.tpot_ns / 1e3},
        "attainment": arguments.attainment,
        "predictor": arguments.predictor.title,
        "size": chosen.name,
        "gpus_per_worker": chosen.gpus,
        "workers": sizings["aladdin"].workers,
        "sizes": [
            {
                "name": option.name,
                "gpus": option.gpus,
                "tokens_per_s_per_gpu": None if option.figures is None else float(option.figures.tokens_per_s),
                "lines": attrs.asdict(option.fit.performance),
                "errors": {"prefill": attrs.asdict(option.fit.prefill), "decode": attrs.asdict(option.fit.decode)},
            }
            for option in options
        ],
        "placements": {
            name: {
                "workers": sizing.workers,
                "tried": {str(n): attrs.asdict(measures) for n, measures in sizing.tried.items()},
            }
            for name, sizing in sizings.items()
        },
    }
