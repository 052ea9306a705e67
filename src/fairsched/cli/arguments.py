"""What several commands take: how workloads, clusters, policies and lengths of time are named in arguments.

--worker MODEL[:KV]         a worker of its own kind (repeat it; instead of --workers)
--split PREFILL:DECODE      so many workers that prefill and so many that decode (instead of --workers)
--fail WORKER@S[+DOWN]      the worker dies at S seconds, and comes back empty after DOWN (never without)
--restart WORKER@S[+DOWN]   it loses its memory and keeps its queue
--link-down WORKER@S[+DOWN] its link fails, and with it every transfer from and to the worker
--drain WORKER@S            it takes no more requests, and leaves when it is done
--join S[:KV]               another worker like the first, or with so much KV
"""

import math
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence

import attrs

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
from fairsched.engines.simulation import Cluster, Predictor, Reports, latency_model, predictor
from fairsched.engines.workloads import GRAMMAR, ONE_WORKER, WORKLOADS, ClientSpec, generate, load_trace
from fairsched.model.latency import DEFAULT_PRESET, PRESETS
from fairsched.model.request import Workload

DEFAULT_WORKLOAD = "demo"
EVERY_US = Reports().every_us

_AT = re.compile(r"(?P<worker>\d+)@(?P<at>[^+]+)(\+(?P<down>.+))?")
TIME = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|min|h)?")
NS = {"us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_NS_MAX = 2**62


def number(text: str, expected: str, fits: Callable[[float], bool], kind: Callable[[str], float] = float) -> float:
    """Return the number in a text; the error says what was expected if there is none, or it does not fit."""
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not fits(value):
        raise ArgumentTypeError(f"expected {expected}, found {text!r}")
    return value


def positive_int(text: str) -> int:
    """Return a positive whole number."""
    return int(number(text, "a positive whole number", lambda value: value >= 1, int))


def positive_number(text: str) -> float:
    """Return a positive number."""
    return number(text, "a positive number", lambda value: 0 < value < math.inf)


def names(text: str) -> list[str]:
    """Return names separated by commas."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise ArgumentTypeError("expected names separated by commas")
    if len(set(found)) < len(found):
        raise ArgumentTypeError(f"a name is given twice in {text!r}")
    return found


def output_limit(text: str) -> str | int:
    """Return `trace-max`, `oracle` or a positive whole number."""
    return text if text in ("trace-max", "oracle") else positive_int(text)


def rate_scales(text: str) -> list[float]:
    """Return numbers separated by commas, each once."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"expected numbers separated by commas, found {text!r}") from None
    if len(set(found)) < len(found):
        raise ArgumentTypeError(f"a rate scale is given twice in {text!r}")
    return found


def span_ns(text: str) -> int:
    """Return a length of time in nanoseconds, given as 5s, 500ms, 2min or a number of seconds."""
    found = TIME.fullmatch(text.strip())
    value = float(found[1]) * NS[found[2] or "s"] if found else 0.0
    if not 1 <= value <= _NS_MAX:
        raise ArgumentTypeError(f"expected a length of time as 5s, 500ms or 2min, found {text!r}")
    return round(value)


def assignment(text: str) -> tuple[str, str]:
    """Return the parameter and the value of `PARAM=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise ArgumentTypeError(f"expected PARAM=VALUE, found {text!r}")
    return name, value


def add_model_arguments(command: ArgumentParser) -> None:
    """Declare the arguments that say what a worker is like."""
    command.add_argument(
        "--latency-model",
        default=DEFAULT_PRESET,
        metavar="NAME|FILE",
        help=f"of {', '.join(PRESETS)}, or a file of `fairsched calibrate` (default: %(default)s)",
    )
    command.add_argument(
        "--kv-capacity-tokens", type=positive_int, metavar="N", help="KV tokens of a worker (default: the model's)"
    )


def add_workload_arguments(command: ArgumentParser, several_rates: bool = False) -> None:
    """Declare the arguments that name a workload; with `several_rates`, `rate_scale` is a list."""
    source = command.add_mutually_exclusive_group()
    source.add_argument(
        "--trace", metavar="FILE", help="a trace: Azure, BurstGPT or VTC arena CSV; Mooncake, Qwen-Bailian or our JSONL"
    )
    source.add_argument(
        "--workload",
        metavar="NAME[:PARAM=VALUE,...]",
        default=DEFAULT_WORKLOAD,
        help=f"a generated workload: {', '.join(WORKLOADS)} (default: %(default)s)",
    )
    command.add_argument(
        "--misbehave",
        choices=("none", "more-requests", "longer-prefix"),
        help="how client 0 of a generated workload misbehaves (default: the workload's own)",
    )
    command.add_argument("--format", help="the trace's format, if it should not be recognised")
    if several_rates:
        of_each = "multiply the arrival rate by X; several are runs of their own"
        command.add_argument("--rate-scale", type=rate_scales, default=[1.0], metavar="X[,X...]", help=of_each)
    else:
        command.add_argument(
            "--rate-scale", type=float, default=1.0, metavar="X", help="multiply the arrival rate by X"
        )
    command.add_argument("--limit", type=positive_int, metavar="N", help="only the first N requests")
    command.add_argument(
        "--clients", metavar="SPEC", help=f"client mix of a trace without clients, or weights: {GRAMMAR}"
    )
    command.add_argument(
        "--max-output-tokens",
        type=output_limit,
        default="trace-max",
        metavar="trace-max|N|oracle",
        help="declared output limit of a trace's requests; every bound rests on it (default: %(default)s)",
    )
    command.add_argument("--seed", type=int, default=0, metavar="S", help="seed of all random draws (default: 0)")


def workload_of(
    arguments: Namespace, workers: Sequence[WorkerSpec] = ONE_WORKER, rate_scale: float | None = None
) -> Workload:
    """Return the workload that the arguments name, at a rate that suits `workers` where it is `auto`.

    `rate_scale` is one of the arguments' where there are several.  Raises `ValueError` on anything that does not fit.
    """
    scale = arguments.rate_scale if rate_scale is None else rate_scale
    if arguments.trace is not None:
        if arguments.misbehave is not None:
            raise ValueError("--misbehave is for generated workloads, not for a trace")
        return load_trace(
            arguments.trace,
            format=arguments.format,
            limit=arguments.limit,
            rate_scale=scale,
            clients=None if arguments.clients is None else ClientSpec.parse(arguments.clients),
            max_output_tokens=arguments.max_output_tokens,
            seed=arguments.seed,
        )
    if arguments.clients is not None or arguments.max_output_tokens != "trace-max" or arguments.format is not None:
        raise ValueError("--clients, --max-output-tokens and --format are for traces; a generated workload has its own")
    name, _, text = arguments.workload.partition(":")
    first = WORKLOADS[name].first if name in WORKLOADS else None
    if first and text and "=" not in text.partition(",")[0]:
        text = f"{first}={text}"
    return generate(
        name,
        misbehave=arguments.misbehave,
        seed=arguments.seed,
        rate_scale=scale,
        limit=arguments.limit,
        workers=workers,
        **pairs(text),
    )


def pairs(text: str) -> dict[str, str]:
    """Return the parameters behind a workload's name, `PARAM=VALUE,...`."""
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or key in found:
            raise ValueError(f"expected PARAM=VALUE once each after the workload's name, found {part!r}")
        of, dot, param = key.rpartition(".")
        found[of + dot + param.replace("-", "_")] = value
    return found


def predictor_of(text: str) -> Predictor:
    """Return a length predictor, given as NAME or NAME:PARAM=VALUE,..."""
    name, _, params = text.partition(":")
    try:
        return predictor(name, pairs(params))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def add_cluster_arguments(command: ArgumentParser) -> None:
    """Declare the arguments that say what the cluster is."""
    command.add_argument("--workers", type=positive_int, metavar="N", help="number of equal workers (default: 1)")
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
        "--link-gb-per-s",
        type=positive_number,
        metavar="X",
        help=f"bandwidth of a worker's link to the others, for KV (default: {KvLink().bytes_per_s / 1e9:g})",
    )
    command.add_argument(
        "--link-latency-us", type=_whole, default=0, metavar="N", help="what each transfer takes beside its bytes"
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
        type=positive_int,
        metavar="N",
        help=f"routers see what workers report so often (default: all at once; {EVERY_US} with the options below)",
    )
    command.add_argument("--report-delay-us", type=_whole, metavar="N", help="reports are heard so much later")
    command.add_argument("--report-loss", type=float, metavar="P", help="this share of the reports is lost, 0 to 1")


def cluster_of(arguments: Namespace) -> Cluster:
    """Return the cluster that the arguments name; raises `ValueError` on anything that does not fit."""
    host = arguments.host_capacity_tokens
    specs = tuple(attrs.evolve(spec, host_capacity_tokens=host) for spec in _split_specs(arguments))
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
        latency_ns=arguments.link_latency_us * 1_000,
        contended=arguments.link_contended,
    )


def _split(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None:
        raise ArgumentTypeError(f"expected PREFILL:DECODE, such as 2:1, found {text!r}")
    prefill, decode = int(found[1]), int(found[2])
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
    name, colon, tokens = text.rpartition(":")
    if not colon:
        return WorkerSpec(latency_model(text), capacity)
    if not tokens.isdecimal():
        raise ValueError(f"--worker {text!r}: expected MODEL[:KV], KV a number of tokens")
    return WorkerSpec(latency_model(name), int(tokens))


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
    return round(number(text, "a time in seconds", lambda value: 0 <= value < 1e9) * 1e9)


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


def _link_down(text: str) -> Change:
    worker, at_ns, down_ns = _when(text, "WORKER@S[+DOWN]")
    return LinkDown(worker, at_ns, down_ns)


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
