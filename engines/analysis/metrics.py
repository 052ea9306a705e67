"""What a run was like for those who waited: every figure of a comparison, from the run's events alone.

A `Recorder` takes the events in the order in which they happened (about a microsecond each, one integer row kept) and
computes everything vectorised in the end.  Times and costs stay integers until the last division, percentiles are
samples that occurred (nearest rank), so a replay gives the same figures bit by bit.
`engines.analysis.outcomes` says what each figure of a request means, `model.service.received` what service and its
gaps are.  Jain's index is (sum x)^2 / (n sum x^2) of the clients' service, each divided by its weight, over the
interval in which all clients are active.

Organisations and programs are seen as well: what all clients of an outermost group received together, and how far
groups were apart.

The run's figures are computed once more with every client renamed to its organisation, which waits whenever one of them
does; a client in no group is its own organisation.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import msgspec
import numpy as np

from fairsched.engines.analysis.assumptions import watched
from fairsched.engines.analysis.outcomes import EventTables, Measures, Outcomes
from fairsched.engines.analysis.series import KvSamples, Series
from fairsched.engines.analysis.worker_figures import WorkerMeasures, WorkerSeries, imbalance, worker_figures
from fairsched.model import service
from fairsched.model.events import Admitted, Event
from fairsched.model.machine import LatencyModel
from fairsched.model.monitor import ClusterMonitor, Finding
from fairsched.model.pricing import COMMON, multipliers
from fairsched.model.request import Client, Workload
from fairsched.model.shown import html_table, short_repr


@attrs.frozen
class Organisation:
    """One of them: how many clients it is, its `share` of all service (1 a computed input token, 2 an output token) of
    the times at which every organisation waited (None if there were none), and what is measured of its requests."""

    clients: int
    share: float | None
    measures: Measures


@attrs.frozen
class ByOrganisation:
    """All of them by name, the largest service gap between two, and its bound where the policy promises one."""

    each: Mapping[str, Organisation]
    gap: service.Gap
    bound: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the entry in a run's JSON document."""
        each = {name: attrs.asdict(organisation) for name, organisation in self.each.items()}
        return {"service_gap_max": self.gap.cost, "service_gap_bound": self.bound, "each": each}


def organisations(clients: tuple[Client, ...]) -> tuple[Client, ...]:
    """Return the outermost groups and the clients in none, as clients with weights; nothing without groups."""
    if not any(client.place for client in clients):
        return ()
    weights = dict(map(_outermost, clients))
    groups = {name for name, grouped in weights if grouped}
    # A client in no group may have the name of a group, and is beside it nevertheless.
    names = [name if grouped or name not in groups else f"{name} (in no group)" for name, grouped in weights]
    return tuple(Client(i, name, weight) for i, (name, weight) in enumerate(zip(names, weights.values(), strict=True)))


def _outermost(client: Client) -> tuple[tuple[str, bool], int]:
    """Return its outermost group, or itself: the name and whether that is a group's, and the weight."""
    (name, weight), grouped = client.place[0] if client.place else (client.name, client.weight), bool(client.place)
    return (name, grouped), weight


def by_organisation(
    workload: Workload,
    trace: service.Tables,
    charging: service.Charging,
    bound: int | None,
    latencies: Sequence[LatencyModel] = (),
) -> ByOrganisation | None:
    """Return the run by organisation; None if no client is in a group."""
    found = organisations(workload.clients)
    if not found:
        return None
    number = {key: i for i, key in enumerate(dict(map(_outermost, workload.clients)))}
    of = np.array([number[_outermost(client)[0]] for client in workload.clients], dtype=np.int64)
    renamed = {
        kind: {name: of[column] if name == "client" else column for name, column in table.items()}
        for kind, table in trace.items()
    }
    outcomes = Outcomes(_of(workload, found, of), renamed, latencies)
    charged = service.charges(renamed, attrs.evolve(charging, multipliers=multipliers([each.weight for each in found])))
    waited = service.backlogs(renamed)
    gap = service.service_gap(charged, waited, service.busiest(charged, len(found)))
    shares = _shares(
        service.charges(renamed, service.Charging(COMMON, "extend", (1,) * len(found))), waited, len(found)
    )
    sizes = np.bincount(of, minlength=len(found)).tolist()
    each = {one.name: Organisation(sizes[one.id], shares.get(one.id), outcomes.measures(one.id)) for one in found}
    return ByOrganisation(each, gap, bound)


def _of(workload: Workload, found: tuple[Client, ...], of: service.Ints) -> Workload:
    jobs = tuple(
        msgspec.structs.replace(job, request=msgspec.structs.replace(job.request, client=int(of[job.request.client])))
        for job in workload.jobs
    )
    return msgspec.structs.replace(workload, jobs=jobs, clients=found)


def _shares(charged: service.Table, waited: service.Table, size: int) -> dict[int, float]:
    """Return each one's part of all service of the times at which every one waits; nothing if they never all do."""
    received = np.zeros(size, dtype=np.int64)
    for start, stop in _together(waited, size):
        received += service.service(charged, size, start, stop)
    total = int(received.sum())
    return {number: amount / total for number, amount in enumerate(received.tolist())} if total else {}


def _together(waited: service.Table, size: int) -> Iterator[tuple[int, int]]:
    """Yield the times at which every one of so many waits somewhere, as half-open intervals."""
    columns = ("start_ns", "stop_ns", "client")
    edges = []
    for start, stop, one in zip(*(waited[name].tolist() for name in columns), strict=True):
        edges += [(start, 1, one), (stop, -1, one)]
    places, waiting, since = Counter[int](), 0, 0
    for time_ns, change, one in sorted(edges):
        before = places[one] > 0
        places[one] += change
        waiting += (places[one] > 0) - before
        if waiting == size and change > 0 and not before:
            since = time_ns
        elif before and not places[one] and waiting == size - 1 and since < time_ns:
            yield since, time_ns


# --- programs ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class ProgramFigures:
    """One of them: its latency, None unless every call finished, what its calls `received` that finished while all
    programs were under way, in cost units, and its `share` of that, None if none did."""

    latency_ns: int | None
    received: int
    share: float | None


def by_program(outcomes: Outcomes) -> dict[int, ProgramFigures]:
    """Return the programs of a run by their numbers.

    Decode steps say which clients they served, and a client may run several programs, so a call counts as served when
    it has finished: its output and what was computed of its prompt, each time that it was let in.
    """
    called = np.flatnonzero(outcomes.program >= 0)
    spans = outcomes.program_spans(called)
    numbers, of, first, last, whole = spans.numbers, spans.of, spans.first, spans.last, spans.whole
    cost = COMMON.output * outcomes.output
    admitted = outcomes.trace[Admitted]
    np.add.at(cost, outcomes.row(admitted["request_id"]), COMMON.input * admitted["extend_tokens"])
    ended = outcomes.finish[called]
    # A program that did not end is under way to the last.
    last[~whole] = outcomes.last_ns + 1
    begun, over = (first.max(), last.min()) if len(numbers) else (0, 0)
    together = outcomes.finished[called] & (ended >= begun) & (ended < over)
    received = np.zeros(len(numbers), np.int64)
    np.add.at(received, of[together], cost[called][together])
    total = int(received.sum())
    return {
        number: ProgramFigures(end - start if done else None, mine, mine / total if total else None)
        for number, start, end, done, mine in zip(
            *(each.tolist() for each in (numbers, first, last, whole, received)), strict=True
        )
    }


@attrs.frozen
class Programs:
    """The programs of a run: how many there are, how many finished with all their calls, and how the service of calls
    that finished while all of them were under way was shared: the largest share, and Jain's index; None if none did."""

    programs: int
    finished: int
    share_max: float | None
    jain: float | None

    @classmethod
    def of(cls, outcomes: Outcomes) -> "Programs | None":
        """Return those of a run; None where no call belongs to one."""
        if (outcomes.program < 0).all():
            return None
        found = by_program(outcomes).values()
        shares = [program.share for program in found if program.share is not None]
        received = np.array([program.received for program in found], dtype=np.int64)
        finished = sum(program.latency_ns is not None for program in found)
        return cls(len(found), finished, max(shares, default=None), jain(received))


@attrs.frozen
class Run:
    """One policy over one workload.

    `gap` and `common_gap` carry their witnesses, on the clock of the trace, which starts at `origin_ns`; `series` and
    `worker_series` are what plots show; `names[i]` is client i, `workers[i]` worker i; `assumptions` are those of the
    policy's theorems, by name, and `excuses` those broken ones on which the bound rests.  `cluster_gap` is between
    clients that waited at any workers, for the service of all of them; None where one worker did everything.
    `predictor` is the predictor of outputs (None: predictions of
    the workload, if any), and `rate_scale` how much faster than the workload's own rate requests came.
    `organisations` is there where clients are in groups, `programs` where calls belong to some.  `requests` is what
    became of each request, as columns, and `refusal` why the first that was rejected was.
    """

    __repr__ = short_repr

    policy: str
    router: str
    params: Mapping[str, object]
    measures: Measures
    jain_client: float | None
    jain_charged: float | None
    gap: service.Gap
    service_gap_bound: int | None
    gap_scope: str
    bound_over_busiest: float | None
    common_gap: service.Gap
    cluster_gap: service.Gap | None
    clients: Mapping[str, Measures]
    wall_s: float
    log_sha256: str
    notes: tuple[str, ...]
    names: tuple[str, ...]
    origin_ns: int
    workers: tuple[WorkerMeasures, ...]
    series: Series = attrs.field(eq=False, repr=False)
    worker_series: WorkerSeries = attrs.field(eq=False, repr=False)
    assumptions: Mapping[str, Finding] = attrs.field(factory=dict)
    excuses: tuple[str, ...] = ()
    moves: Mapping[str, int] = attrs.field(factory=dict)
    predictor: str | None = None
    rate_scale: float = 1.0
    refusal: str | None = None
    organisations: ByOrganisation | None = None
    programs: Programs | None = None
    requests: service.Table = attrs.field(factory=dict, eq=False, repr=False)

    def _repr_html_(self) -> str:
        """Return a table of the clients, which notebooks show."""
        rows = []
        for name, one in self.clients.items():
            waits = [f"{(us or 0) / 1e6:.2f} s" for us in (one.ttft_us.p50, one.ttft_us.p99)]
            rows.append((name, f"{one.requests:,}", f"{one.finished:,}", *waits))
        return html_table((self.policy, "requests", "finished", "TTFT p50", "TTFT p99"), rows)

    @property
    def is_binding(self) -> bool | None:
        """Whether anything could break the bound at all: it is below the busiest client's service, where it holds."""
        return None if self.bound_over_busiest is None else self.bound_over_busiest < 1

    @property
    def unexplained(self) -> bool:
        """Whether the gap is over its bound and no assumption of the theorem is broken: an error of this library."""
        over = self.service_gap_bound is not None and self.bounded_gap.cost > self.service_gap_bound
        return over and not self.excuses

    @property
    def bounded_gap(self) -> service.Gap:
        """The gap that the bound is about: of a worker, or of the cluster for a policy whose workers share credit."""
        return self.cluster_gap if self.gap_scope == "cluster" and self.cluster_gap is not None else self.gap

    @property
    def imbalance(self) -> float | None:
        """The most work of a worker over the mean of all."""
        return imbalance(self.workers)

    def to_json(self) -> dict[str, Any]:
        """Return the run's entry in a comparison's JSON document."""
        measures = attrs.asdict(self.measures)
        if measures["slo_attainment"] is None:
            del measures["slo_attainment"]
        entry: dict[str, Any] = {"policy": self.policy, "router": self.router, "params": dict(self.params)}
        entry |= {"predictor": self.predictor, "rate_scale": self.rate_scale} | measures
        entry |= {
            "jain_client": self.jain_client,
            "jain_charged": self.jain_charged,
            "service_gap_max": self.gap.cost,
            "service_gap_bound": self.service_gap_bound,
            "gap_scope": self.gap_scope,
            "gap_excuses": list(self.excuses),
            "bound_over_busiest": self.bound_over_busiest,
            "service_gap_common_max": self.common_gap.cost,
            "service_gap_cluster_max": None if self.cluster_gap is None else self.cluster_gap.cost,
            "assumptions": {name: attrs.asdict(finding) for name, finding in self.assumptions.items()},
            "imbalance": self.imbalance,
            "moves": dict(self.moves),
            "workers": [attrs.asdict(worker) for worker in self.workers],
            "clients": {name: attrs.asdict(measures) for name, measures in self.clients.items()},
            "wall_s": self.wall_s,
            "log_sha256": self.log_sha256,
        }
        if self.organisations is not None:
            entry["organisations"] = self.organisations.to_json()
        if self.programs is not None:
            entry["programs"] = attrs.asdict(self.programs)
        if "slo_attainment" not in measures:
            for client in entry["clients"].values():
                del client["slo_attainment"]
        return entry


@attrs.frozen
class Shared:
    """How a run's service was shared, and how much there was: the figures of a `Run`, None where nothing is known."""

    throughput_rps: float | None = None
    imbalance: float | None = None
    jain_client: float | None = None
    gap: service.Gap | None = None


class Recorder:
    """Takes a run's events and turns them into a `Run`.

    A `monitor` is shown them too, piece by piece, and the result holds what it found of assumptions.  With the workers'
    `latencies` the result has the times between tokens.
    """

    def __init__(
        self, workload: Workload, monitor: ClusterMonitor | None = None, latencies: Sequence[LatencyModel] = ()
    ) -> None:
        self._workload = workload
        self._latencies = latencies
        self._monitor = monitor
        self._events = EventTables(None if monitor is None else monitor.observe_all)
        self._kv: dict[int, KvSamples] = {}

    def record(self, events: Iterable[Event]) -> None:
        self._events.add(events)

    def trace(self) -> service.Tables:
        """Return all events so far, as columns."""
        return self._events.whole()

    def kv_samples(self, worker: int) -> KvSamples:
        """Return where samples of a worker's KV tokens go."""
        samples = self._kv.get(worker)
        if samples is None:
            samples = self._kv[worker] = KvSamples()
        return samples

    def shared(self, charging: service.Charging | None, workers: int) -> Shared:
        """Return what takes no figures of each client, of whom there may be many; the arguments are `result`'s."""
        trace, clients = self.trace(), self._workload.clients
        shares = multipliers([client.weight for client in clients])
        outcomes = Outcomes(self._workload, trace)
        charged = service.charges(trace, charging or service.Charging(COMMON, "extend", shares))
        return Shared(
            outcomes.measures(None).throughput_rps,
            imbalance(worker_figures(trace, workers, outcomes.origin, outcomes.last_ns)[0]),
            _jain_while_all_active(outcomes, outcomes.client_service, shares),
            service.service_gap(charged, service.backlogs(trace), service.busiest(charged, len(clients))),
        )

    def result(
        self,
        *,
        policy: str,
        router: str = "",
        params: Mapping[str, object] | None = None,
        charging: service.Charging | None = None,
        service_gap_bound: int | None = None,
        gap_scope: str = "worker",
        organisation_gap_bound: int | None = None,
        wall_s: float = 0.0,
        log_sha256: str = "",
        workers: int = 1,
        moves: Mapping[str, int] | None = None,
    ) -> Run:
        """Return all figures of what was recorded so far, also of a run that was interrupted.

        `charging` is how the policy's gate charges (default: computed tokens at rates 1 and 2, by weight), and
        `service_gap_bound` is in the same cost units, for clients that wait at one "worker" or anywhere in the
        "cluster", as `gap_scope` says; `organisation_gap_bound` is for organisations.  Both are those of a run in which
        nothing is given back, and grow by what was.  `workers` is how many there were, also without anything to do.
        """
        trace = self.trace()
        clients = self._workload.clients
        shares = multipliers([client.weight for client in clients])
        common = service.Charging(COMMON, "extend", shares)
        charging = charging or common
        outcomes = Outcomes(self._workload, trace, self._latencies)
        charged, waited = service.charges(trace, charging), service.backlogs(trace)
        gap, cluster_gap, notes = gaps(charged, waited, len(clients))
        common_gap = gap
        if charging != common:
            costs = service.charges(trace, common)
            common_gap = service.service_gap(costs, waited, service.busiest(costs, len(clients)))
        weights = [each.weight for each in organisations(clients)]
        found = watched(self._monitor, gap_scope, max(multipliers(weights), default=1))
        if service_gap_bound is not None:
            service_gap_bound += found.widening
        if organisation_gap_bound is not None:
            organisation_gap_bound += found.group_widening
        most = most_charged(charged, gap_scope)
        worked, worker_series = worker_figures(trace, workers, outcomes.origin, outcomes.last_ns, self._latencies)
        return Run(
            policy=policy,
            router=router,
            params=params or {},
            measures=_with_energy(outcomes.measures(None), worked),
            jain_client=_jain_while_all_active(outcomes, outcomes.client_service, shares),
            jain_charged=_jain_while_all_active(outcomes, charged, ()),
            gap=gap,
            service_gap_bound=service_gap_bound,
            gap_scope=gap_scope,
            bound_over_busiest=service_gap_bound / most if service_gap_bound is not None and most else None,
            common_gap=common_gap,
            cluster_gap=cluster_gap,
            clients={client.name: outcomes.measures(client.id) for client in clients},
            wall_s=wall_s,
            log_sha256=log_sha256,
            notes=notes,
            names=tuple(client.name for client in clients),
            origin_ns=outcomes.origin,
            workers=worked,
            worker_series=worker_series,
            moves=moves or {},
            organisations=by_organisation(self._workload, trace, charging, organisation_gap_bound, self._latencies),
            programs=Programs.of(outcomes),
            requests=outcomes.requests(),
            series=outcomes.series(gap, {worker: samples.rows() for worker, samples in sorted(self._kv.items())}),
            assumptions=found.findings,
            excuses=found.excuses(),
        )


def _with_energy(measures: Measures, workers: Sequence[WorkerMeasures]) -> Measures:
    """Return the run's measures with what its workers drew, if that is known of all."""
    energy = [worker.energy_j for worker in workers]
    drawn, tokens = sum(each or 0.0 for each in energy), sum(worker.output_tokens for worker in workers)
    if None in energy or not measures.finished:
        return measures
    return attrs.evolve(measures, joules_per_request=drawn / measures.finished, joules_per_token=drawn / tokens)


def _jain_while_all_active(outcomes: Outcomes, served: service.Table, shares: tuple[int, ...]) -> float | None:
    """Return Jain's index of service times each client's share, while all who sent something are active."""
    interval = outcomes.all_active()
    if interval is None:
        return None
    received = service.service(served, outcomes.n_clients, *interval)
    if shares:
        received *= np.array(shares, dtype=np.int64)
    return jain(received[outcomes.senders])


def jain(values: service.Ints) -> float | None:
    """Return Jain's index of fairness, 1/n to 1; None when no client received anything.

    >>> jain(np.array([3, 3, 0]))
    0.6666666666666666
    """
    rows: list[int] = values.tolist()  # squares of large services pass 64 bits
    squares = sum(value * value for value in rows)
    return sum(rows) ** 2 / (len(rows) * squares) if squares else None


def gaps(
    charged: service.Table, waited: service.Table, clients: int
) -> tuple[service.Gap, service.Gap | None, tuple[str, ...]]:
    """Return the largest gap at a worker, that of all workers together (None: one did everything), and notes on
    both."""
    compared = service.busiest(charged, clients)
    several, cluster_gap = bool((charged["worker"] > 0).any()), None
    if several:
        cluster_gap = attrs.evolve(service.service_gap(*service.anywhere(charged, waited), compared), worker=None)
    notes = (
        () if compared is None else (f"Service gaps are over the {service.CLIENTS_MAX} busiest of {clients} clients.",)
    )
    return service.service_gap(charged, waited, compared), cluster_gap, notes


def most_charged(charged: service.Table, scope: str) -> int:
    """Return the most that one client was charged on one "worker" or, as `scope` says, in the "cluster"."""
    worker = charged["worker"] if scope == "worker" else np.zeros_like(charged["worker"])
    somewhere = worker >= 0  # a call that was never sent is cancelled nowhere, and was charged nothing
    if not somewhere.any():
        return 0
    worker, client = worker[somewhere], charged["client"][somewhere]
    total = np.zeros((int(worker.max()) + 1, int(client.max()) + 1), dtype=np.int64)
    np.add.at(total, (worker, client), charged["amount"][somewhere])
    return int(total.max())
