"""How the cluster of a comparison is named in arguments: its workers, what happens to them, and how they report.

--worker MODEL[:KV]         a worker of its own kind (repeat it; instead of --workers)
--fail WORKER@S[+DOWN]      the worker dies at S seconds, and comes back empty after DOWN (never without)
--restart WORKER@S[+DOWN]   it loses its memory and keeps its queue
--drain WORKER@S            it takes no more requests, and leaves when it is done
--join S[:KV]               another worker like the first, or with so much KV
"""

import math
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

import attrs

from fairsched.cli_common import add_model_arguments, latency_of, positive_int
from fairsched.engines.changes import (
    Change,
    Crash,
    Drain,
    Join,
    Restart,
    WorkerSpec,
    checked_changes,
    checked_workers,
)
from fairsched.engines.compare import Cluster
from fairsched.engines.head import Reports
from fairsched.model.presets import DEFAULT_PRESET

_AT = re.compile(r"(?P<worker>\d+)@(?P<at>[^+]+)(\+(?P<down>.+))?")
EVERY_US = Reports().every_us


def add_cluster_arguments(command: ArgumentParser) -> None:
    """The arguments that say what the cluster is."""
    command.add_argument("--workers", type=positive_int, metavar="N", help="number of equal workers (default: 1)")
    command.add_argument(
        "--worker",
        action="append",
        default=[],
        metavar="MODEL[:KV]",
        help="a worker with its own latency model and KV tokens (repeat for more; instead of --workers)",
    )
    add_model_arguments(command)
    command.add_argument(
        "--host-capacity-tokens",
        type=positive_int,
        default=0,
        metavar="N",
        help="KV tokens that fit into the host memory of a worker, for policies that swap (default: none)",
    )
    for name, kind, what in (
        ("fail", _crash, "the worker dies at S seconds, and comes back empty after DOWN seconds (without: never)"),
        ("restart", _restart, "the worker loses its memory at S seconds, and goes on with its queue after DOWN"),
    ):
        command.add_argument(
            f"--{name}", dest="changes", action="append", type=kind, metavar="WORKER@S[+DOWN]", help=f"{what} (repeat)"
        )
    command.add_argument(
        "--drain",
        dest="changes",
        action="append",
        type=_drain,
        metavar="WORKER@S",
        help="from S seconds on the worker takes no more requests, and leaves when it is done (repeat)",
    )
    command.add_argument(
        "--join", action="append", default=[], metavar="S[:KV]", help="a worker joins at S seconds (repeat)"
    )
    command.add_argument(
        "--report-every-us",
        type=positive_int,
        metavar="N",
        help=f"routers see what workers report so often (default: all at once; {EVERY_US} with the options below)",
    )
    command.add_argument("--report-delay-us", type=_whole, metavar="N", help="reports are heard so much later")
    command.add_argument("--report-loss", type=float, metavar="P", help="this share of the reports is lost, 0 to 1")


def cluster_of(arguments: Namespace) -> Cluster:
    """The cluster that the arguments name; raises `ValueError` on anything that does not fit."""
    host = arguments.host_capacity_tokens
    specs = tuple(attrs.evolve(spec, host_capacity_tokens=host) for spec in _specs(arguments))
    changes = [*(arguments.changes or ()), *(_join(text, specs[0]) for text in arguments.join)]
    cluster = Cluster(
        specs[0].latency, specs, changes=checked_changes(changes, len(specs)), reports=_reports(arguments)
    )
    checked_workers(cluster.all_specs)
    return cluster


def _specs(arguments: Namespace) -> tuple[WorkerSpec, ...]:
    model, capacity = arguments.latency_model, arguments.kv_capacity_tokens
    if not arguments.worker:
        return (WorkerSpec(latency_of(model), capacity),) * (arguments.workers or 1)
    for name, given in (("--workers", arguments.workers is not None), ("--latency-model", model != DEFAULT_PRESET)):
        if given:
            raise ValueError(f"{name} is for equal workers; with --worker each has its own")
    return tuple(_spec(text, capacity) for text in arguments.worker)


def _spec(text: str, capacity: int | None) -> WorkerSpec:
    name, colon, tokens = text.rpartition(":")
    if not colon:
        return WorkerSpec(latency_of(text), capacity)
    if not tokens.isdecimal():
        raise ValueError(f"--worker {text!r}: expected MODEL[:KV], KV a number of tokens")
    return WorkerSpec(latency_of(name), int(tokens))


def _reports(arguments: Namespace) -> Reports | None:
    every, delay, loss = arguments.report_every_us, arguments.report_delay_us, arguments.report_loss
    if every is None and delay is None and loss is None:
        return None
    return Reports(every or EVERY_US, delay or 0, loss or 0.0, arguments.seed)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"expected a whole number, found {text!r}")
    return int(text)


def _seconds(text: str) -> int:
    """Nanoseconds of so many seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e9:
        raise ArgumentTypeError(f"expected a time in seconds, found {text!r}")
    return round(value * 1e9)


def _when(text: str, form: str) -> tuple[int, int, int | None]:
    """Worker, time and how long, in nanoseconds."""
    found = _AT.fullmatch(text)
    if found is None or (found["down"] is not None and "DOWN" not in form):
        raise ArgumentTypeError(f"expected {form}, such as 0@30, found {text!r}")
    return int(found["worker"]), _seconds(found["at"]), None if found["down"] is None else _seconds(found["down"])


def _crash(text: str) -> Change:
    return Crash(*_when(text, "WORKER@S[+DOWN]"))


def _restart(text: str) -> Change:
    worker, at_ns, down_ns = _when(text, "WORKER@S[+DOWN]")
    return Restart(worker, at_ns, down_ns or 0)


def _drain(text: str) -> Change:
    return Drain(*_when(text, "WORKER@S")[:2])


def _join(text: str, like: WorkerSpec) -> Join:
    seconds, colon, tokens = text.partition(":")
    try:
        at_ns = _seconds(seconds)
    except ArgumentTypeError as error:
        raise ValueError(f"--join {text!r}: {error}") from None
    if colon and not tokens.isdecimal():
        raise ValueError(f"--join {text!r}: expected S[:KV], KV a number of tokens")
    return Join(at_ns, attrs.evolve(like, kv_capacity_tokens=int(tokens)) if colon else like)


def facts_of(cluster: Cluster) -> dict[str, Any]:
    """What a report says of the cluster."""
    facts: dict[str, Any] = {
        "workers": cluster.count,
        "latency_model": cluster.latency.name,
        "latency_source": cluster.latency.source,
        "kv_capacity_tokens": cluster.capacity,
    }
    if any(spec.host_capacity_tokens for spec in cluster.all_specs):
        first = cluster.specs[0]
        facts["host_capacity_tokens"] = max(spec.host_capacity_tokens for spec in cluster.all_specs)
        facts["host_link"] = f"{first.link.bytes_per_token} bytes a token at {first.link.bytes_per_s / 1e9:g} GB/s"
    if cluster.differ:
        facts["worker_kinds"] = [f"{spec.latency.name}:{spec.capacity}" for spec in cluster.specs]
    if cluster.changes:
        facts["changes"] = [_said(change) for change in sorted(cluster.changes, key=lambda change: change.at_ns)]
    if cluster.reports is not None:
        reports = cluster.reports
        facts["reports"] = f"every {reports.every_us} us, {reports.delay_us} us late, {reports.loss:.4g} of them lost"
    return facts


def _said(change: Change) -> str:
    """A change in a few words."""
    at = f"at {change.at_ns / 1e9:g} s"
    if isinstance(change, Join):
        return f"a worker joins {at}"
    if isinstance(change, Drain):
        return f"worker {change.worker} drains {at}"
    does = "dies" if isinstance(change, Crash) else "restarts"
    down = "" if change.down_ns is None else f", back after {change.down_ns / 1e9:g} s"
    return f"worker {change.worker} {does} {at}{down}"
