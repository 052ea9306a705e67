"""`fairsched search`: which fleet keeps the targets at the highest rate for each GPU, dollar or joule."""

import re
import sys
from typing import Annotated

from cyclopts import Parameter

from fairsched.cli import values
from fairsched.cli.options import Jobs, Source, WorkloadOptions, processes
from fairsched.cli.output import folders, progress_bar, show, writable, write_figures
from fairsched.engines.capacity import DELAY, METRICS, RESOLUTION, SloTarget, nine_slos
from fairsched.engines.capacity import search as capacity_search
from fairsched.engines.simulation import latency_model as model_of
from fairsched.engines.simulation import router_of
from fairsched.model.machine import LatencyModel
from fairsched.policies.validators import found

SHOWN = 12
"""Rows of the table; the report and the figures have all."""
_TARGET = re.compile(r"[pP](?P<percent>[0-9]{1,3}):(?P<limits>.+)")
Limits = tuple[str, int, list[tuple[str, float, bool]]]
"""A target as it is written: its text, percentile, and limits in microseconds or (True) as multiples."""


def _limits(text: str) -> str | Limits:
    """`P90:ttft=1s,tpot=50ms`, or the name of targets."""
    if text in ("nine-slos", "delay"):
        return text
    matched = _TARGET.fullmatch(text.strip())
    limits = []
    for part in matched["limits"].split(",") if matched else ():
        name, _, value = (piece.strip() for piece in part.partition("="))
        limit_ns = values.time_ns(value)
        if name in METRICS and re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?x", value):
            limits.append((name, float(value[:-1]), True))
        elif name in METRICS and limit_ns is not None:
            limits.append((name, limit_ns / 1e3, False))
        else:
            matched = None
            break
    if matched is None or len({multiple for *_, multiple in limits}) > 1:
        raise ValueError(
            f"expected nine-slos, delay or Pn:METRIC=LIMIT,..., METRIC of {', '.join(METRICS)} and LIMIT as 2s, 50ms "
            f"or 3x, found {found(text)}"
        )
    return text, int(matched["percent"]), limits


def _share(text: str) -> float:
    return values.number(text, "a share above 0 and below 1", lambda value: 0 < value < 1)


def _windows(text: str) -> tuple[int, int]:
    """Length of a window, and percent of a drift."""
    window, comma, percent = text.partition(",")
    return values.span(window), values.positive_int(percent) if comma else 30


def search(
    workload: Source = "demo",
    /,
    *,
    target: Annotated[tuple[str | Limits, ...], values.each(_limits, "Pn:METRIC=LIMIT,...")] = (),
    reference: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    latency_model: Annotated[values.Names, Parameter(metavar="NAME|FILE,...")] = ("opt-13b-a100",),
    stages: values.Counts = (1,),
    gpus: values.Counts = (4,),
    fleet: Annotated[values.Texts, Parameter(metavar="NxMODEL/STAGES:ROLE+...")] = (),
    policies: values.Names = ("fcfs-optimistic",),
    batching: values.Names = ("chunked",),
    batches: values.Counts = (),
    routers: values.Names = ("join-shortest-queue", "distserve"),
    per: capacity_search.Objective = "gpu",
    resolution: Annotated[float, values.read(_share, "X")] = RESOLUTION,
    journal: values.File | None = None,
    replan: Annotated[tuple[int, int] | None, values.read(_windows, "WINDOW[,PERCENT]")] = None,
    of_workload: WorkloadOptions = WorkloadOptions(),
    jobs: Jobs = None,
    json: values.Json = None,
    report: values.Report = None,
) -> int:
    """Look for the fleet with the highest rate that keeps the targets, for each GPU, dollar or joule: over kinds of
    workers, pipelines, phases together or split, batching rules, policies and routers.  Exits with 1 if no fleet keeps
    them.

    Args:
        workload: a trace, or a generated workload
        target: at the n-th percentile of requests all of ttft, tpot and others are at most these, as
            P90:ttft=1s,tpot=50ms (repeat); with --reference as multiples of what a request takes there alone, as
            P90:ttft=3x; `nine-slos` are Splitwise's nine targets against --reference, `delay` is Vidur's, the wait for
            the first admission
        reference: the idle machine that multiples and nine targets are of
        latency_model: kinds of workers, GPU and tensor parallelism: presets, or files of `fairsched calibrate`
        stages: stages of pipelines
        gpus: sizes of fleets
        fleet: weigh this fleet, as 3xopt-13b-a100:prefill+1xopt-13b-a100:decode (repeat; instead of --gpus)
        policies: workers' policies
        batching: batching rules, and a number of tokens for each size of a step (default: the policy's)
        batches: most requests of a batch, as 32,64,128,256,512 (default: the policy's)
        routers: those that split phases are for split fleets, the others for unsplit ones; without one of a kind there
            is no such fleet
        per: what the rate is divided by
        resolution: how close a rate is found
        journal: keep each finished candidate, and go on from there next time
        replan: follow the trace in windows of this length, as 5min, and say when the fleet should change: where the
            rate or a mean length differs by more than so many percent (30)
    """
    writable(json=json, journal=journal)
    folders(report=report)
    targets = _targets(target, None if reference is None else model_of(reference))
    fleets = [capacity_search.fleet_of(text) for text in fleet]
    splitting = {name: router_of(name).splits_phases for name in routers}
    space = capacity_search.Space(
        latencies=tuple(model_of(name) for name in latency_model),
        gpus=gpus,
        stages=stages,
        splitting="both" if len({*splitting.values()}) > 1 else "only" if all(splitting.values()) else "never",
        policies=policies,
        batchings=tuple(name for name in batching if not name[:1].isdigit()) or ("chunked",),
        chunks=tuple(values.positive_int(name) for name in batching if name[:1].isdigit()) or (0,),
        batches=batches or (0,),
        routers=tuple(name for name in routers if not splitting[name]) or ("join-shortest-queue",),
        split_routers=tuple(name for name in routers if splitting[name]) or ("distserve",),
    )
    requests = of_workload.workload(workload)
    if not requests.jobs:
        raise ValueError("the workload has no requests")
    candidates = space.candidates(requests, fleets)
    machines = [pool.latency for candidate in candidates for pool in candidate.fleet.pools]
    where = processes(jobs, len(candidates) * len(requests.jobs))
    if replan is not None:
        if journal is not None:
            raise ValueError("--journal is for a search; --replan keeps none")
        detector = capacity_search.DriftDetector(window_us=replan[0] // 1_000, change_percent=replan[1])
        with progress_bar() as progress:
            followed = capacity_search.replan(
                requests, candidates, targets, detector, objective=per, progress=progress, **where
            )
        write_figures(json, followed.to_dict())
        show(capacity_search.replan_sheet(followed), report, json, machines, SHOWN)
        return 0
    with progress_bar() as progress:
        best = capacity_search.search_fleets(
            capacity_search.Query(requests, targets, resolution),
            candidates,
            objective=per,
            journal=journal,
            progress=progress,
            **where,
        )
    write_figures(json, best.to_dict())
    show(capacity_search.search_sheet(best), report, json, machines, SHOWN)
    if not best.complete:
        print(f"Interrupted: {len(best.found)} of {best.candidates} candidates were tried.", file=sys.stderr)
        return 130
    return 0 if best.best is not None else 1


def _targets(given: tuple[str | Limits, ...], reference: LatencyModel | None) -> tuple[SloTarget, ...]:
    targets: list[SloTarget] = []
    for target in given:
        if target == "delay":
            targets.append(DELAY)
        elif isinstance(target, str):
            if reference is None:
                raise ValueError(
                    "--target nine-slos: the targets are of what a request takes alone on --reference MODEL"
                )
            targets += nine_slos(reference)
        else:
            text, percent, limits = target
            multiples = limits[0][2]
            if multiples and reference is None:
                raise ValueError(f"--target {text}: multiples are of what a request takes alone on --reference MODEL")
            named = tuple((name, limit) for name, limit, _ in limits)
            targets.append(SloTarget(percent, named, reference if multiples else None))
    if not targets:
        raise ValueError("a search needs targets: --target P90:ttft=1s,tpot=50ms, nine-slos or delay")
    return tuple(targets)
