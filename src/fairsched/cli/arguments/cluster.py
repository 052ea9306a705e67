"""How a cluster is described in arguments.

--worker MODEL[:KV]         a worker of its own kind (repeat it; instead of --workers)
--split PREFILL:DECODE      so many workers that prefill and so many that decode (instead of --workers)
--fail WORKER@S[+DOWN]      the worker dies at S seconds, and comes back empty after DOWN (never without)
--restart WORKER@S[+DOWN]   it loses its memory and keeps its queue
--link-down WORKER@S[+DOWN] its link fails, and with it every transfer from and to the worker
--drain WORKER@S            it takes no more requests, and leaves when it is done
--join S[:KV]               another worker like the first, or with so much KV
"""

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace

import attrs

from fairsched.cli.arguments.values import (
    WORKERS_MAX,
    found,
    positive_int,
    positive_number,
    share,
    span,
    time_ns,
    worker_count,
)
from fairsched.cli.arguments.workload import add_model_arguments
from fairsched.engines.fleet import (
    Change,
    Crash,
    Drain,
    Join,
    KvLink,
    LinkDown,
    Restart,
    WorkerSpec,
    checked_changes,
    checked_workers,
    kv_link,
)
from fairsched.engines.simulation import Cluster, Reports, latency_model
from fairsched.model.latency import DEFAULT_PRESET

EVERY_US = Reports().every_us

_AT = re.compile(r"(?P<worker>[0-9]{1,9})@(?P<at>[^+]+)(\+(?P<down>.+))?")
_MOMENT_MAX_NS = 10**18
"""Later than about thirty years nothing happens."""


def add_cluster_arguments(command: ArgumentParser) -> None:
    """Declare the arguments that say what the cluster is."""
    command.add_argument("--workers", type=worker_count, metavar="N", help="number of equal workers (default: 1)")
    command.add_argument(
        "--worker",
        action="append",
        default=[],
        metavar="MODEL[:KV]",
        help="a worker with its own latency model and KV tokens (repeat for more; instead of --workers)",
    )
    command.add_argument(
        "--split",
        type=_split,
        metavar="PREFILL:DECODE",
        help="so many workers that prefill and so many that decode, for routers that split phases (instead of "
        "--workers; with --worker, the first so many and the others)",
    )
    add_model_arguments(command)
    command.add_argument(
        "--host-capacity-tokens",
        type=positive_int,
        default=0,
        metavar="N",
        help="KV tokens that fit into the host memory of a worker, for policies that swap (default: none)",
    )
    command.add_argument(
        "--keep-s",
        type=positive_number,
        default=0.0,
        metavar="S",
        help="the KV of a call that others of its program follow counts as used so many seconds after its end, and "
        "gives way to whatever needs memory (default: 0)",
    )
    command.add_argument(
        "--adapter-slots",
        type=positive_int,
        default=0,
        metavar="N",
        help="a worker's running requests have at most N different LoRA adapters (default: none, and requests that "
        "name one are rejected)",
    )
    command.add_argument(
        "--link-gb-per-s",
        type=positive_number,
        metavar="X",
        help=f"bandwidth of a worker's link to the others, for KV (default: {KvLink().bytes_per_s / 1e9:g})",
    )
    command.add_argument(
        "--link-latency-us",
        dest="link_latency_ns",
        type=span("us", 0),
        default=0,
        metavar="TIME",
        help="what each transfer takes beside its bytes (without a unit: microseconds)",
    )
    command.add_argument(
        "--link-contended", action="store_true", help="transfers from and to one worker go one after the other"
    )
    for name, kind, what in (
        ("fail", _crash, "the worker dies at S seconds, and comes back empty after DOWN seconds (without: never)"),
        ("restart", _restart, "the worker loses its memory at S seconds, and goes on with its queue after DOWN"),
        ("link-down", _link_down, "the worker's link fails at S seconds, for DOWN seconds (without: for good)"),
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
        dest="report_every_ns",
        type=span("us", 1_000),
        metavar="TIME",
        help=f"routers see what workers report so often (default: all at once; {EVERY_US} us with the options below; "
        "without a unit: microseconds)",
    )
    command.add_argument(
        "--report-delay-us",
        dest="report_delay_ns",
        type=span("us", 0),
        metavar="TIME",
        help="reports are heard so much later (without a unit: microseconds)",
    )
    command.add_argument("--report-loss", type=share, metavar="P", help="this share of the reports is lost, 0 to 1")


def cluster_of(arguments: Namespace) -> Cluster:
    """Return the cluster that the arguments name; raises `ValueError` on anything that does not fit."""
    kept = {name: getattr(arguments, name) for name in ("host_capacity_tokens", "adapter_slots")}
    kept["keep_ns"] = round(arguments.keep_s * 1e9)
    specs = tuple(attrs.evolve(spec, **kept) for spec in _split_specs(arguments))
    changes = [*(arguments.changes or ()), *(_join(text, specs[0]) for text in arguments.join)]
    cluster = Cluster(
        specs[0].latency,
        specs,
        changes=checked_changes(changes, len(specs)),
        reports=_reports(arguments),
        link=_link(arguments, specs[0]),
    )
    checked_workers(cluster.all_specs)
    return cluster


def _split_specs(arguments: Namespace) -> tuple[WorkerSpec, ...]:
    """The workers, with roles if they are split."""
    if arguments.split is None:
        return _specs(arguments)
    prefill, decode = arguments.split
    if arguments.workers is not None:
        raise ValueError("--split says how many workers there are; leave out --workers")
    specs = _specs(arguments)
    if arguments.worker and len(specs) != prefill + decode:
        raise ValueError(
            f"--split {prefill}:{decode} is of {prefill + decode} workers, and --worker names {len(specs)}"
        )
    several = specs if arguments.worker else specs * (prefill + decode)
    return tuple(attrs.evolve(spec, role="prefill" if i < prefill else "decode") for i, spec in enumerate(several))


def _link(arguments: Namespace, first: WorkerSpec) -> KvLink:
    rate = arguments.link_gb_per_s
    return attrs.evolve(
        kv_link(first.latency) if rate is None else kv_link(first.latency, round(rate * 1e9)),
        latency_ns=arguments.link_latency_ns,
        contended=arguments.link_contended,
    )


def _split(text: str) -> tuple[int, int]:
    matched = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
    if matched is None:
        raise ArgumentTypeError(f"expected PREFILL:DECODE, such as 2:1, found {found(text)}")
    prefill, decode = int(matched[1]), int(matched[2])
    if prefill + decode > WORKERS_MAX:
        raise ArgumentTypeError(f"expected at most {WORKERS_MAX:,} workers, found {prefill + decode:,}")
    for count, other, does in ((prefill, decode, "prefills"), (decode, prefill, "decodes")):
        if not count:
            raise ArgumentTypeError(f"no worker of {text!r} {does}, and {other} would wait for one that does")
    return prefill, decode


def _specs(arguments: Namespace) -> tuple[WorkerSpec, ...]:
    model, capacity = arguments.latency_model, arguments.kv_capacity_tokens
    if not arguments.worker:
        return (WorkerSpec(latency_model(model), capacity),) * (arguments.workers or 1)
    for name, given in (("--workers", arguments.workers is not None), ("--latency-model", model != DEFAULT_PRESET)):
        if given:
            raise ValueError(f"{name} is for equal workers; with --worker each has its own")
    return tuple(_spec(text, capacity) for text in arguments.worker)


def _spec(text: str, capacity: int | None) -> WorkerSpec:
    name, colon, _ = text.rpartition(":")
    if not colon:
        return WorkerSpec(latency_model(text), capacity)
    return WorkerSpec(latency_model(name), _tokens("--worker", text, "MODEL"))


def _tokens(option: str, text: str, before: str) -> int:
    """The KV tokens behind the last colon."""
    try:
        return positive_int(text.rpartition(":")[2])
    except ArgumentTypeError as error:
        raise ValueError(f"{option} {text!r}: expected {before}[:KV], KV a number of tokens: {error}") from None


def _reports(arguments: Namespace) -> Reports | None:
    every, delay, loss = arguments.report_every_ns, arguments.report_delay_ns, arguments.report_loss
    if every is None and delay is None and loss is None:
        return None
    return Reports((every or EVERY_US * 1_000) // 1_000, (delay or 0) // 1_000, loss or 0.0, arguments.seed)


def _moment(text: str) -> int:
    """Nanoseconds of a time, in seconds unless it has a unit."""
    at_ns = time_ns(text)
    if at_ns is None or at_ns > _MOMENT_MAX_NS:
        raise ArgumentTypeError(f"expected a time in seconds, found {found(text)}")
    return at_ns


def _when(text: str, form: str) -> tuple[int, int, int | None]:
    """Worker, time and how long, in nanoseconds."""
    matched = _AT.fullmatch(text)
    if matched is None or (matched["down"] is not None and "DOWN" not in form):
        raise ArgumentTypeError(f"expected {form}, such as 0@30, found {found(text)}")
    down = matched["down"]
    return int(matched["worker"]), _moment(matched["at"]), None if down is None else _moment(down)


def _crash(text: str) -> Change:
    return Crash(*_when(text, "WORKER@S[+DOWN]"))


def _restart(text: str) -> Change:
    worker, at_ns, down_ns = _when(text, "WORKER@S[+DOWN]")
    return Restart(worker, at_ns, down_ns or 0)


def _link_down(text: str) -> Change:
    worker, at_ns, down_ns = _when(text, "WORKER@S[+DOWN]")
    return LinkDown(worker, at_ns, down_ns)


def _drain(text: str) -> Change:
    return Drain(*_when(text, "WORKER@S")[:2])


def _join(text: str, like: WorkerSpec) -> Join:
    _, colon, _ = text.partition(":")
    try:
        at_ns = _moment(text.partition(":")[0])
    except ArgumentTypeError as error:
        raise ValueError(f"--join {text!r}: {error}") from None
    return Join(at_ns, attrs.evolve(like, kv_capacity_tokens=_tokens("--join", text, "S")) if colon else like)
