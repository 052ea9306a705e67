"""`fairsched search`: which fleet keeps the targets at the highest rate for each GPU, dollar or watt."""

import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from fairsched.cli.arguments import (
    WORKERS_MAX,
    add_jobs_arguments,
    add_workload_arguments,
    found,
    jobs_of,
    names,
    number,
    positive_int,
    span_ns,
    time_ns,
    whole,
    workload_of,
)
from fairsched.cli.output import command_line, folders, print_files, progress_bar, shown, writable, write_figures
from fairsched.engines.analysis import print_lines, print_small, print_table
from fairsched.engines.capacity import DELAY, METRICS, RESOLUTION, DriftDetector, SloTarget, nine_slos
from fairsched.engines.capacity.search import (
    LINK_BYTES_PER_S,
    OBJECTIVES,
    Candidate,
    Query,
    Sheet,
    Space,
    fleet_of,
    replan,
    replan_sheet,
    search_fleets,
    search_sheet,
)
from fairsched.engines.simulation import latency_model
from fairsched.model.latency import PRESETS
from fairsched.model.request import Workload

DEFAULT_MODEL = "opt-13b-a100"
SHOWN = 12
"""Rows of the table; the report and the figures have all."""
_TARGET = re.compile(r"[pP](?P<percent>[0-9]{1,3}):(?P<limits>.+)")


def add_search(command: ArgumentParser) -> None:
    """Declare the command."""
    command.description = (
        "Look for the fleet with the highest rate that keeps the targets, for each GPU, dollar or watt: over kinds "
        "of workers, pipelines, phases together or split, batching rules, policies and routers.  With --replan, follow "
        "the trace in windows and say when the fleet should change."
    )
    add_workload_arguments(command)
    command.add_argument(
        "--target",
        action="append",
        type=_limits,
        default=[],
        metavar="Pn:METRIC=LIMIT,...",
        help=f"at the n-th percentile of requests all of {', '.join(METRICS)} are at most these, as "
        "P90:ttft=1s,tpot=50ms (repeat); with --reference as multiples of what a request takes there alone, as "
        "P90:ttft=3x (without a unit: seconds)",
    )
    command.add_argument("--reference", metavar="MODEL", help="the idle machine that multiples and nine targets are of")
    command.add_argument(
        "--nine-slos",
        action="store_true",
        help="Splitwise's nine targets against --reference (its DGX-A100 in the paper)",
    )
    command.add_argument(
        "--delay", action="store_true", help=f"Vidur's target: {DELAY.text}, the wait for the first admission"
    )
    command.add_argument(
        "--latency-model",
        dest="models",
        type=names,
        default=[DEFAULT_MODEL],
        metavar="NAME|FILE,...",
        help=f"kinds of workers, GPU and tensor parallelism: of {', '.join(PRESETS)}, or files of `fairsched "
        "calibrate` (default: %(default)s)",
    )
    command.add_argument(
        "--stages", type=_counts, default=(1,), metavar="N,...", help="stages of pipelines (default: 1)"
    )
    command.add_argument("--gpus", type=_counts, default=(4,), metavar="N,...", help="sizes of fleets (default: 4)")
    command.add_argument(
        "--split",
        choices=("both", "only", "never"),
        default="both",
        help="fleets whose phases have workers of their own: beside the others, only those, or none "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--fleet",
        action="append",
        type=str,
        default=[],
        metavar="NxMODEL[/STAGES][:ROLE]+...",
        help="weigh this fleet, as 3xopt-13b-a100:prefill+1xopt-13b-a100:decode (repeat; instead of --gpus)",
    )
    command.add_argument(
        "--policies",
        type=names,
        default=["fcfs-optimistic"],
        metavar="A,B,...",
        help="workers' policies (default: %(default)s)",
    )
    command.add_argument("--batching", type=names, default=["chunked"], metavar="A,B,...", help="batching rules")
    command.add_argument(
        "--chunk", type=_chunks, default=(0,), metavar="N,...", help="tokens a step (default: the policy's)"
    )
    command.add_argument(
        "--routers", type=names, default=["join-shortest-queue"], metavar="A,B,...", help="routers of unsplit fleets"
    )
    command.add_argument(
        "--split-routers", type=names, default=["distserve"], metavar="A,B,...", help="routers of split fleets"
    )
    command.add_argument(
        "--per", choices=OBJECTIVES, default="gpu", help="what the rate is divided by (default: %(default)s)"
    )
    command.add_argument(
        "--link-gbytes",
        type=_rate,
        default=LINK_BYTES_PER_S,
        metavar="X",
        help="GB/s of KV between workers (default: 25)",
    )
    command.add_argument(
        "--resolution",
        type=_share,
        default=RESOLUTION,
        metavar="X",
        help="how close a rate is found (default: %(default)s)",
    )
    add_jobs_arguments(command, "candidates")
    command.add_argument(
        "--journal", type=Path, metavar="FILE", help="keep each finished candidate, and go on from there next time"
    )
    command.add_argument("--replan", action="store_true", help="follow the trace in windows instead")
    command.add_argument(
        "--window",
        type=span_ns,
        default="5min",
        metavar="TIME",
        help="of --replan, as 5min or a number of seconds (default: %(default)s)",
    )
    command.add_argument(
        "--drift",
        type=positive_int,
        default=30,
        metavar="PERCENT",
        help="plan again where the rate or a mean length differs by more than this (default: %(default)s)",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    command.add_argument("--report", type=Path, metavar="DIR", help="write an HTML report with the frontier")
    command.set_defaults(run=run_search)


def _limits(text: str) -> tuple[str, int, list[tuple[str, float, bool]]]:
    """`P90:ttft=1s,tpot=50ms`: percentile, and limits in microseconds or (True) as multiples."""
    matched = _TARGET.fullmatch(text.strip())
    limits = []
    for part in matched["limits"].split(",") if matched else ():
        name, _, value = (piece.strip() for piece in part.partition("="))
        limit_ns = time_ns(value)
        if name in METRICS and re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?x", value):
            limits.append((name, float(value[:-1]), True))
        elif name in METRICS and limit_ns is not None:
            limits.append((name, limit_ns / 1e3, False))
        else:
            matched = None
            break
    if matched is None or len({multiple for *_, multiple in limits}) > 1:
        raise ArgumentTypeError(
            f"expected Pn:METRIC=LIMIT,..., METRIC of {', '.join(METRICS)} and LIMIT as 2s, 50ms or 3x, "
            f"found {found(text)}"
        )
    return text, int(matched["percent"]), limits


_count = whole("positive whole numbers", 1, WORKERS_MAX)


def _counts(text: str) -> tuple[int, ...]:
    """`1,2,4`: positive whole numbers."""
    return tuple(_count(each) for each in names(text))


def _chunks(text: str) -> tuple[int, ...]:
    """`512,2k`: tokens a step."""
    return tuple(positive_int(each) for each in names(text))


def _share(text: str) -> float:
    return number(text, "a share above 0 and below 1", lambda value: 0 < value < 1)


def _rate(text: str) -> int:
    return round(number(text, "a number of GB/s above 0", lambda value: 1e-9 <= value < 1e9) * 1e9)


def _targets(arguments: Namespace) -> tuple[SloTarget, ...]:
    reference = None if arguments.reference is None else latency_model(arguments.reference)
    found = []
    for text, percent, limits in arguments.target:
        multiples = limits[0][2]
        if multiples and reference is None:
            raise ValueError(f"--target {text}: multiples are of what a request takes alone on --reference MODEL")
        named = tuple((name, limit) for name, limit, _ in limits)
        found.append(SloTarget(percent, named, reference if multiples else None))
    if arguments.nine_slos:
        if reference is None:
            raise ValueError("--nine-slos: the targets are of what a request takes alone on --reference MODEL")
        found += nine_slos(reference)
    if arguments.delay:
        found.append(DELAY)
    if not found:
        raise ValueError("a search needs targets: --target P90:ttft=1s,tpot=50ms, --nine-slos or --delay")
    return tuple(found)


def run_search(arguments: Namespace) -> int:
    """Run the command; returns the exit status: 1 if no fleet keeps the targets, 130 after an interrupt."""
    writable(json=arguments.json, journal=arguments.journal)
    folders(report=arguments.report)
    targets = _targets(arguments)
    fleets = [fleet_of(text) for text in arguments.fleet]
    space = Space(
        latencies=tuple(latency_model(name) for name in arguments.models),
        gpus=arguments.gpus,
        stages=arguments.stages,
        splitting=arguments.split,
        policies=tuple(arguments.policies),
        batchings=tuple(arguments.batching),
        chunks=arguments.chunk,
        routers=tuple(arguments.routers),
        split_routers=tuple(arguments.split_routers),
    )
    workload = workload_of(arguments)
    if not workload.jobs:
        raise ValueError("the workload has no requests")
    candidates = space.candidates(workload, fleets)
    if arguments.replan:
        return _run_replan(arguments, workload, candidates, targets)
    with progress_bar() as progress:
        found = search_fleets(
            Query(workload, targets, arguments.resolution, arguments.link_gbytes),
            candidates,
            objective=arguments.per,
            jobs=jobs_of(arguments, len(candidates) * len(workload.jobs)),
            ray=arguments.ray,
            journal=arguments.journal,
            progress=progress,
        )
    write_figures(arguments.json, found.to_dict())
    _show(search_sheet(found), arguments.report, arguments.json)
    if not found.complete:
        print(f"Interrupted: {len(found.found)} of {found.candidates} candidates were tried.", file=sys.stderr)
        return 130
    return 0 if found.best is not None else 1


def _run_replan(
    arguments: Namespace, workload: Workload, candidates: list[Candidate], targets: tuple[SloTarget, ...]
) -> int:
    if arguments.journal is not None:
        raise ValueError("--journal is for a search; --replan keeps none")
    with progress_bar() as progress:
        found = replan(
            workload,
            candidates,
            targets,
            DriftDetector(window_us=arguments.window // 1_000, change_percent=arguments.drift),
            objective=arguments.per,
            jobs=jobs_of(arguments, len(candidates) * len(workload.jobs)),
            ray=arguments.ray,
            progress=progress,
        )
    write_figures(arguments.json, found.to_dict())
    _show(replan_sheet(found), arguments.report, arguments.json)
    return 0


def _show(sheet: Sheet, report: Path | None, document: Path | None) -> None:
    """Write the report, then print."""
    page = None
    if report is not None:
        from fairsched.engines.analysis.report import Page, Part, Table, plot_part

        page = Page(
            title=sheet.title,
            verdict=sheet.lines,
            parts=[
                *map(plot_part, sheet.draw()),
                Part(sheet.heading, [Table(sheet.columns, sheet.rows)]),
            ],
            command=command_line(),
            small=sheet.small,
        ).write(report)
    with shown(document) as console:
        print_lines(console, sheet.lines)
        console.print()
        print_table(console, sheet.columns, sheet.rows[:SHOWN])
        if len(sheet.rows) > SHOWN:
            print_lines(console, [f"{len(sheet.rows) - SHOWN} more rows are in --json and --report."])
        print_small(console, sheet.small)
        print_files(console, Figures=document, Report=page)
