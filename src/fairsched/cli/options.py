"""Options that several commands share: a workload, a worker, a cluster, where runs are computed, and how a log is read.

Each group is one frozen class, whose fields are options of every command that takes it.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import attrs
from cyclopts import Parameter
from msgspec.structs import replace

from fairsched.cli import values
from fairsched.cli.values import WORKERS_MAX
from fairsched.engines.logs.access import FIELDS, Columns, Filters, When, read_map
from fairsched.engines.simulation import Cluster, Predictor, Reports, cpus, latency_model, predictor
from fairsched.engines.workloads import (
    ONE_WORKER,
    WORKLOADS,
    Account,
    ClientSpec,
    TraceError,
    fleet,
    generate,
    load_trace,
    with_account,
    with_floors,
)
from fairsched.model.machine import DEFAULT_PRESET
from fairsched.model.request import Slo, Workload
from fairsched.policies.validators import found, meant

# --- workloads --------------------------------------------------------------------------------------------------------

Source = Annotated[str, Parameter(metavar="WORKLOAD")]
"""A trace, or the name of a generated workload with parameters."""


def _output_limit(text: str) -> str | int:
    return text if text in ("trace-max", "oracle") else values.positive_int(text)


def _rate_scale(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number, found {found(text)}") from None


def _rate_scales(text: str) -> tuple[float, ...]:
    """Return numbers separated by commas, each once."""
    try:
        scales = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"expected numbers separated by commas, found {found(text)}") from None
    if len(set(scales)) < len(scales):
        raise ValueError(f"a rate scale is given twice in {found(text)}")
    return scales


def _floor(text: str) -> tuple[str, int]:
    name, tokens = values.assignment(text, "CLIENT=TOKENS")
    return name, values.positive_int(tokens)


CacheFloors = Annotated[tuple[tuple[str, int], ...], values.each(_floor, "CLIENT=TOKENS")]
"""KV tokens of each worker that are a client's own, running or cached."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What is changed about a workload whose rate is given otherwise."""

    limit: values.PositiveInt | None = None
    """only the first N requests"""
    clients: Annotated[str | None, Parameter(metavar="SPEC")] = None
    """client mix of a trace without clients, or weights: `4`, `zipf:8:1.1`, `weights:gold=4,free=1`"""
    max_output_tokens: Annotated[str | int, values.read(_output_limit, "trace-max|N|oracle")] = "trace-max"
    """declared output limit of a trace's requests; every bound rests on it"""
    cache_floor: CacheFloors = ()
    """KV tokens of each worker that are a client's own, running or cached (repeat)"""
    seed: values.Seed = 0

    def at_rate(self, source: str, scale: float, workers: Sequence[fleet.WorkerSpec] = ONE_WORKER) -> Workload:
        """Return the workload at a rate, with the floors of its clients.  Raises `ValueError`."""
        workload = self._at_rate(source, scale, workers)
        if not self.cache_floor:
            return workload
        return replace(workload, clients=with_floors(workload.clients, dict(self.cache_floor)))

    def _at_rate(self, source: str, scale: float, workers: Sequence[fleet.WorkerSpec] = ONE_WORKER) -> Workload:
        """Return a trace, or a workload by name with `PARAM=VALUE,...`, at a rate that suits `workers` where that is
        `auto`.  Raises `ValueError` on anything that does not fit."""
        name, _, text = source.partition(":")
        if name not in WORKLOADS and (Path(source).exists() or "/" in source or "." in source or source == "-"):
            with _logs_are_no_traces(source):
                return load_trace(
                    source,
                    limit=self.limit,
                    rate_scale=scale,
                    clients=None if self.clients is None else ClientSpec.parse(self.clients),
                    max_output_tokens=self.max_output_tokens,
                    seed=self.seed,
                )
        if self.clients is not None or self.max_output_tokens != "trace-max":
            raise ValueError("--clients and --max-output-tokens are for traces; a generated workload has its own")
        first = WORKLOADS[name].first if name in WORKLOADS else None
        if first and text and "=" not in text.partition(",")[0]:
            text = f"{first}={text}"
        params: dict[str, Any] = {"misbehave": None, **values.pairs(text)}
        return generate(name, seed=self.seed, rate_scale=scale, limit=self.limit, workers=workers, **params)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(SourceOptions):
    """What is changed about a workload."""

    rate_scale: Annotated[float, values.read(_rate_scale, "X")] = 1.0
    """multiply the arrival rate by X"""

    def workload(self, source: str, workers: Sequence[fleet.WorkerSpec] = ONE_WORKER) -> Workload:
        """Return the workload; raises `ValueError`."""
        return self.at_rate(source, self.rate_scale, workers)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ComparedOptions(SourceOptions):
    """What is changed about a workload that is run at several rates."""

    rate_scale: Annotated[tuple[float, ...], values.read(_rate_scales, "X,...")] = (1.0,)
    """multiply the arrival rate by X; several are runs of their own"""
    account: Account = "client"
    """what a call is charged to: its client, or an account of its program or session"""

    def workloads(self, source: str, workers: Sequence[fleet.WorkerSpec]) -> dict[float, Workload]:
        """Return the workload at each rate; raises `ValueError`."""
        return {scale: with_account(self.at_rate(source, scale, workers), self.account) for scale in self.rate_scale}


class LogGivenError(ValueError):
    """A log was given for a trace."""


@contextmanager
def _logs_are_no_traces(path: str) -> Iterator[None]:
    """Say how a log becomes a trace, where one was given for a trace."""
    try:
        yield
    except TraceError:
        from fairsched.engines.analysis.audit import is_log

        if not is_log(Path(path)):
            raise
        convert = f"fairsched trace {shlex.quote(path)} --out trace.jsonl"
        raise LogGivenError(f"{path} is a log and no trace; {convert} makes a trace of it") from None


def _predictor(text: str) -> Predictor:
    name, _, params = text.partition(":")
    return predictor(name, values.pairs(params))


PREDICTOR = "NAME[:PARAM=VALUE,...]"
OnePredictor = Annotated[Predictor | None, values.read(_predictor, PREDICTOR)]
Predictors = Annotated[tuple[Predictor, ...], values.each(_predictor, PREDICTOR)]


def _slo(text: str) -> Slo:
    targets: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        target_ns = values.time_ns(value)
        if name not in ("ttft", "tpot") or name in targets or target_ns is None:
            raise ValueError(f"expected ttft=TIME,tpot=TIME with TIME as 2s, 50ms or 800us, found {found(text)}")
        targets[name] = target_ns
    if len(targets) != 2 or not all(value >= 1_000 for value in targets.values()):
        raise ValueError(f"expected a target for ttft and one for tpot, of 1us or more each, found {found(text)}")
    return Slo(ttft_ns=targets["ttft"], tpot_ns=targets["tpot"])


Targets = Annotated[Slo, values.read(_slo, "ttft=TIME,tpot=TIME")]

# --- workers ----------------------------------------------------------------------------------------------------------


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What a worker is like."""

    latency_model: Annotated[str, Parameter(metavar="NAME|FILE")] = DEFAULT_PRESET
    """step times: a preset of `fairsched policies`, or a file of `fairsched calibrate`"""
    kv_capacity_tokens: values.PositiveInt | None = None
    """KV tokens of a worker (default: the model's)"""

    def cluster(self, workers: int = 1) -> Cluster:
        """Return so many equal workers; raises `ValueError`."""
        return Cluster(latency_model(self.latency_model), workers, self.kv_capacity_tokens)


_AT = re.compile(r"(?P<worker>[0-9]{1,9})@(?P<at>[^+]+)(\+(?P<down>.+))?")
_MOMENT_MAX_NS = 10**18
"""Later than about thirty years nothing happens."""
CHANGES = {"fail": fleet.Crash, "restart": fleet.Restart, "link-down": fleet.LinkDown, "drain": fleet.Drain}
_SPLIT = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


def _moment(text: str) -> int:
    at_ns = values.time_ns(text)
    if at_ns is None or at_ns > _MOMENT_MAX_NS:
        raise ValueError(f"expected a time in seconds, found {found(text)}")
    return at_ns


def _tokens(text: str, before: str) -> int:
    """Return the KV tokens behind the last colon."""
    try:
        return values.positive_int(text.rpartition(":")[2])
    except ValueError as error:
        raise ValueError(f"expected {before}[:KV], KV a number of tokens: {error}") from None


def _change(text: str) -> fleet.Change | tuple[int, int | None]:
    """A change of a worker; of one that joins the time and its KV tokens."""
    kind, _, rest = text.partition(":")
    if kind == "join":
        return _moment(rest.partition(":")[0]), _tokens(rest, "join:S") if ":" in rest else None
    if kind not in CHANGES:
        raise ValueError(meant("change", kind, [*CHANGES, "join"]))
    form = "WORKER@S" if kind == "drain" else "WORKER@S[+DOWN]"
    matched = _AT.fullmatch(rest)
    if matched is None or (matched["down"] is not None and kind == "drain"):
        raise ValueError(f"expected {kind}:{form}, such as {kind}:0@30, found {found(text)}")
    worker, at_ns = int(matched["worker"]), _moment(matched["at"])
    down_ns = None if matched["down"] is None else _moment(matched["down"])
    match kind:
        case "fail":
            return fleet.Crash(worker, at_ns, down_ns)
        case "restart":
            return fleet.Restart(worker, at_ns, down_ns or 0)
        case "link-down":
            return fleet.LinkDown(worker, at_ns, down_ns)
    return fleet.Drain(worker, at_ns)


def _workers(text: str) -> int | tuple[str, ...]:
    """A number of equal workers, or the model of each."""
    if text.lstrip("-")[:1].isdigit() and "," not in text:
        return values.worker_count(text)
    return tuple(part.strip() for part in text.split(","))


def _split(text: str) -> tuple[int, int]:
    matched = _SPLIT.fullmatch(text)
    if matched is None:
        raise ValueError(f"expected PREFILL:DECODE, such as 2:1, found {found(text)}")
    prefill, decode = int(matched[1]), int(matched[2])
    if prefill + decode > WORKERS_MAX:
        raise ValueError(f"expected at most {WORKERS_MAX:,} workers, found {prefill + decode:,}")
    for count, other, does in ((prefill, decode, "prefills"), (decode, prefill, "decodes")):
        if not count:
            raise ValueError(f"no worker of {text!r} {does}, and {other} would wait for one that does")
    return prefill, decode


def _link(text: str) -> tuple[float | None, int, bool]:
    """Bandwidth, latency and whether transfers of a worker wait for each other."""
    rate, latency_ns, contended = None, 0, False
    for part in values.names(text):
        if part == "contended":
            contended = True
        elif part.endswith("s") and part[:1].isdigit():
            latency_ns = values.span(part, 0)
        else:
            rate = values.positive_number(part)
    return rate, latency_ns, contended


def _reports(text: str) -> tuple[int, int, float]:
    """Every how many nanoseconds, how late, and which share is lost."""
    given = values.pairs(text)
    if unknown := set(given) - {"every", "delay", "loss"}:
        raise ValueError(meant("part", min(unknown), ("every", "delay", "loss")))
    every_ns = values.span(given["every"], 1_000) if "every" in given else Reports().every_us * 1_000
    return every_ns, values.span(given.get("delay", "0"), 0), values.share(given.get("loss", "0"))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ClusterOptions(ModelOptions):
    """What the cluster is, and what happens to it."""

    workers: Annotated[int | tuple[str, ...], values.read(_workers, "N|MODEL[:KV],...")] = 1
    """equal workers, or the latency model of each with its KV tokens"""
    split: Annotated[tuple[int, int] | None, values.read(_split, "PREFILL:DECODE")] = None
    """so many workers that prefill and so many that decode, for routers that split phases (instead of a number of
    workers; of named ones the first so many and the others)"""
    host_capacity_tokens: values.PositiveInt = 0
    """KV tokens that fit into the host memory of a worker, for policies that swap"""
    keep_s: values.PositiveNumber = 0.0
    """KV of a call that others of its program follow counts as used so many seconds after its end, and gives way to
    whatever needs memory"""
    adapter_slots: values.PositiveInt = 0
    """most different LoRA adapters of a worker's running requests (default: requests that name one are rejected)"""
    link: Annotated[tuple[float | None, int, bool] | None, values.read(_link, "GB_PER_S,TIME,contended")] = None
    """a worker's link to the others, for KV: its bandwidth (default: 25), what each transfer takes beside its bytes,
    and whether transfers from and to one worker go one after the other; each part may be left out"""
    change: Annotated[
        tuple[fleet.Change | tuple[int, int | None], ...], values.each(_change, "KIND:WORKER@S[+DOWN]")
    ] = ()
    """what happens to a worker S seconds after the start: `fail` (it dies), `restart` (it loses its memory and keeps
    its queue), `link-down`, each for DOWN seconds; `drain`, after which it leaves; or `join:S[:KV]` (repeat)"""
    reports: Annotated[tuple[int, int, float] | None, values.read(_reports, "every=TIME,delay=TIME,loss=P")] = None
    """routers see what workers report so often (100ms), so late, and this share is lost (default: all at once)"""

    def several(self, seed: int) -> Cluster:
        """Return the cluster; lost reports are drawn by `seed`.  Raises `ValueError` on anything that does not fit."""
        specs = tuple(
            attrs.evolve(
                spec,
                host_capacity_tokens=self.host_capacity_tokens,
                adapter_slots=self.adapter_slots,
                keep_ns=round(self.keep_s * 1e9),
            )
            for spec in self._split_specs()
        )
        changes = [
            fleet.Join(each[0], specs[0] if each[1] is None else attrs.evolve(specs[0], kv_capacity_tokens=each[1]))
            if isinstance(each, tuple)
            else each
            for each in self.change
        ]
        rate, latency_ns, contended = self.link or (None, 0, False)
        link = fleet.kv_link(specs[0].latency) if rate is None else fleet.kv_link(specs[0].latency, round(rate * 1e9))
        every_ns, delay_ns, loss = self.reports or (0, 0, 0.0)
        cluster = Cluster(
            specs[0].latency,
            specs,
            changes=fleet.checked_changes(changes, len(specs)),
            reports=None if self.reports is None else Reports(every_ns // 1_000, delay_ns // 1_000, loss, seed),
            link=attrs.evolve(link, latency_ns=latency_ns, contended=contended),
        )
        fleet.checked_workers(cluster.all_specs)
        return cluster

    def _split_specs(self) -> tuple[fleet.WorkerSpec, ...]:
        """Return the workers, with roles if they are split."""
        specs = self._specs()
        if self.split is None:
            return specs
        prefill, decode = self.split
        if isinstance(self.workers, tuple):
            if len(specs) != prefill + decode:
                raise ValueError(
                    f"--split {prefill}:{decode} is of {prefill + decode} workers, and --workers names {len(specs)}"
                )
        elif self.workers != 1:
            raise ValueError("--split says how many workers there are; leave out --workers")
        else:
            specs *= prefill + decode
        return tuple(attrs.evolve(spec, role="prefill" if i < prefill else "decode") for i, spec in enumerate(specs))

    def _specs(self) -> tuple[fleet.WorkerSpec, ...]:
        if isinstance(self.workers, int):
            return (fleet.WorkerSpec(latency_model(self.latency_model), self.kv_capacity_tokens),) * self.workers
        if self.latency_model != DEFAULT_PRESET:
            raise ValueError("--latency-model is for equal workers; in --workers each names its own")
        return tuple(self._spec(text) for text in self.workers)

    def _spec(self, text: str) -> fleet.WorkerSpec:
        name, colon, _ = text.rpartition(":")
        if not colon:
            return fleet.WorkerSpec(latency_model(text), self.kv_capacity_tokens)
        return fleet.WorkerSpec(latency_model(name), _tokens(text, "--workers MODEL"))


# --- where runs are computed ------------------------------------------------------------------------------------------

REQUESTS = 1_000
"""A process is worth its start where it simulates so many requests."""


def _jobs(text: str) -> int | str:
    """Processes, or the address of a Ray cluster."""
    return text.partition(":")[2] or "auto" if text.partition(":")[0] == "ray" else values.job_count(text)


Jobs = Annotated[
    int | str | None,
    values.read(
        _jobs,
        "N|ray[:ADDRESS]",
        help="runs at a time, each in a process of its own, or on the cores of a Ray cluster (default: one for each "
        "core)",
    ),
]


class Processes(TypedDict):
    """Where runs are computed, as functions of the library take it."""

    jobs: int
    ray: str | None


def processes(jobs: int | str | None, requests: int) -> Processes:
    """Return where to compute so many requests in all runs together."""
    usual = max(min(cpus(), requests // REQUESTS), 1)
    return {"jobs": jobs if isinstance(jobs, int) else usual, "ray": jobs if isinstance(jobs, str) else None}


# --- logs -------------------------------------------------------------------------------------------------------------


def _log(text: str) -> str:
    if text.startswith("-") and text != "-":
        raise ValueError(f"expected a log or an option, found {found(text)}")
    return text


Log = Annotated[
    str,
    values.read(
        _log,
        "LOG",
        help="the log: a file, - for standard input, or several files or patterns, as 'access.log*', of one access log "
        "that was rotated or comes from several servers, or the event logs of several gateways; .gz, .bz2, .xz and "
        ".zst are unpacked",
    ),
]


def _filter(text: str) -> tuple[str, str]:
    name, value = values.assignment(text)
    if name not in ("model", "status", "from", "until"):
        raise ValueError(meant("filter", name, ("model", "status", "from", "until")))
    if name in ("from", "until"):
        When.parse(value)
    return name, value


class Reading(TypedDict):
    """How an access log is read, as functions that read one take it."""

    columns: Columns | None
    skip_malformed: bool
    filters: Filters | None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How an access log is read, and which of its requests are looked at."""

    map: Annotated[
        values.File | None, Parameter(help=f"which column is what, where it is not guessed: {', '.join(FIELDS)}")
    ] = None
    skip_malformed: bool = False
    """leave out rows that cannot be read, and say how many"""
    only: Annotated[tuple[tuple[str, str], ...], values.each(_filter, "model|status|from|until=VALUE")] = ()
    """only requests for these models (`model=a,b`), with these statuses (`status=200,5xx,cancelled`), that came from or
    until a date and time, or so long after the first request (`from=10m`) (repeat)"""

    def reading(self) -> Reading:
        """Return how functions are told to read a log."""
        given = dict(self.only)
        if len(given) < len(self.only):
            raise ValueError("--only: one of its kinds is given twice")
        filters = Filters(
            models=values.names(given["model"]) if "model" in given else (),
            start=When.parse(given["from"]) if "from" in given else None,
            until=When.parse(given["until"]) if "until" in given else None,
            statuses=values.names(given["status"]) if "status" in given else (),
        )
        return {
            "columns": None if self.map is None else read_map(self.map),
            "skip_malformed": self.skip_malformed,
            "filters": None if filters == Filters() else filters,
        }


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """The clients of an access log, and when one starves."""

    clients: Annotated[str | None, Parameter(metavar="weights:NAME=W,...")] = None
    """weights of clients of an access log (default: equal)"""
    starved_after: values.Time = 10 * 10**9
    """a client starves that waits so long without service while others are served"""

    def weights(self) -> dict[str, int] | None:
        """Return the weights of the clients that have one."""
        if self.clients is None:
            return None
        spec = ClientSpec.parse(self.clients)
        if not spec.names_trace or spec.paths:
            raise ValueError("--clients sets weights of the log's own clients, as weights:gold=4,free=1")
        return dict(zip(spec.names, spec.weights, strict=True))


def log_name(logs: Sequence[str]) -> str:
    """Return the name of the logs for a progress bar."""
    return Path(logs[0]).name if len(logs) == 1 else f"{len(logs)} logs"
