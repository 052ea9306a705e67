"""Choosing a quantum and an in-flight cap: the most throughput with which the p99 of waits is what is allowed.

**What is searched.**  Throughput grows with the quantum, since locality does.  Waits grow with it too, since turns do,
but where little locality is left everything takes longer: so for a cap the shortest wait lies at some quantum, and
above it the largest that keeps the target is looked for by bisection over powers of two.  Caps are tried from none at
all downwards; a smaller one means fewer requests at a time, and when even the largest quantum cannot reach what was
found already, smaller caps are not tried.  None of this is a law of nature: all points that were run are kept, so that
an exception is seen.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs
import numpy as np

from fairsched.engines.capacity.point import PointRun, TunedPoint, WaitOf
from fairsched.engines.capacity.quantum import STEP_TOKENS, Quanta, Traffic, fitting
from fairsched.engines.capacity.sizing import largest_need, last_place
from fairsched.engines.simulation import NOTHING, Cluster, Progress, RunSpec, run_tasks, tell
from fairsched.model.request import Workload
from fairsched.model.shown import short_repr
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import parameters
from fairsched.policies.routers import D2LPM

Require = Literal["measured", "proved"]
SAME = 0.99
"""Throughput within one per cent is taken for the same."""


@attrs.frozen
class Tuning:
    """Every point that was run, in that order, the best by measurement and by proof, and the largest throughput seen.

    `measured` keeps the target in the simulation, `proved` also by theorem at the stated rate; None where none does.
    `nearest` and `nearest_proved` come closest to it; `require` says which of the first two is `chosen`.
    """

    __repr__ = short_repr

    points: tuple[TunedPoint, ...]
    max_wait_us: float
    measured: TunedPoint | None
    proved: TunedPoint | None
    complete: bool = True
    workload: str = ""
    requests: int = 0
    notes: tuple[str, ...] = ()
    policy: str = ""
    wait_of: WaitOf = "clients"
    require: Require = "measured"
    stated_rate: float | None = None

    @property
    def chosen(self) -> TunedPoint | None:
        return self.proved if self.require == "proved" else self.measured

    @property
    def best_throughput(self) -> float:
        return max((point.throughput for point in self.points), default=0.0)

    def lost(self, point: TunedPoint) -> float:
        """Return the share of the largest throughput that a point gives up."""
        return 1 - point.throughput / self.best_throughput if self.best_throughput else 0.0

    @property
    def nearest(self) -> TunedPoint:
        return min(self.points, key=lambda point: (point.wait_us.p99 or 0.0, -point.throughput))

    @property
    def nearest_proved(self) -> TunedPoint | None:
        return min((p for p in self.points if p.bound_us is not None), key=lambda p: p.bound_us or 0.0, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `fairsched tune --json`."""
        named = ("chosen", "measured", "proved", "nearest", "nearest_proved")
        points: dict[str, TunedPoint | None] = {name: getattr(self, name) for name in named}
        return {
            "workload": self.workload,
            "requests": self.requests,
            "policy": self.policy,
            "max_wait_us": self.max_wait_us,
            "wait_of": self.wait_of,
            "require": self.require,
            **{name: None if p is None else _key(p) for name, p in points.items()},
            "complete": self.complete,
            "points": [
                _key(point)
                | {
                    "throughput_rps": point.throughput,
                    "throughput_lost": self.lost(point),
                    "wait_us": attrs.asdict(point.wait_us),
                    "wait_of": point.waits_longest,
                    "ttft_us": attrs.asdict(point.measures.ttft_us),
                    "service_gap_max": point.gap,
                    "rate": point.rate,
                    "wait_bound_cost": point.bound_cost,
                    "wait_bound_us": point.bound_us,
                    "wait_bound_by": point.bound_by,
                }
                for point in self.points
            ],
            "notes": list(self.notes),
        }


def _key(point: TunedPoint) -> dict[str, Any]:
    return {"quantum": point.quantum, "in_flight_cap_tokens": point.cap}


def tune(
    workload: Workload,
    max_wait_ns: int,
    *,
    policy: str = "dlpm",
    params: Mapping[str, object] = NOTHING,
    router: str = "round-robin",
    cluster: Cluster | None = None,
    quanta: tuple[int, int] = (64, 65_536),
    wait_of: WaitOf = "clients",
    require: Require = "measured",
    rate: float | None = None,
    capped: bool = True,
    jobs: int = 1,
    ray: str | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Return the quantum and the in-flight cap with the most throughput whose waits are at most `max_wait_ns` at p99.

    `policy` has a deficit gate, and other parameters `params`; D2LPM has those that fit the workload.  Quanta are
    powers of two between `quanta`.  `wait_of` says which waits count, `require` whether the wait must be proved as well
    as measured.  A proved wait becomes a time by the latency model (T-wait), or by a `rate`, the cost units a second
    that a worker charges, if one is stated; where T-wait proves nothing, by what the run's worker charged.  Without
    `capped` no cap is tried.  `jobs` processes or the cores of a `ray` cluster try caps at the same time (`run_tasks`
    says what it raises); what comes out is the same.  An interrupt ends the search with what there is.

    Raises `ValueError` for a policy without quantum and cap, quanta that hold no power of two, or a workload that fits
    no worker.

    >>> from fairsched.engines.workloads import generate
    >>> found = tune(generate("demo", limit=20), 60 * 10**9, quanta=(1_024, 2_048))
    >>> found.chosen.wait_us.p99 <= 60e6
    True
    """
    cluster = cluster or Cluster()
    for name in ("quantum", "in_flight_cap_tokens"):
        if name in params:
            raise ValueError(f"{name} is tuned: expected a parameter that is not tuned")
    fit = fitting_to(workload, cluster, policy, params)
    routing = fit.router_params if router == D2LPM.name else {}
    if not (sizes := quanta_for(*quanta)):
        raise ValueError(f"--quanta: there is no power of two from {quanta[0]} to {quanta[1]}")

    def told(what: str, ended: int) -> None:
        if progress is not None:
            progress(what, ended, len(workload.jobs))

    same = PointRun(workload, cluster, policy, params, router, routing, wait_of, rate)
    caps = caps_for(cluster.capacity, largest_need(workload, cluster.capacity)) if capped else [None]
    chains = [_Chain(same, cap, sizes, max_wait_ns / 1e3) for cap in caps] if ray or jobs > 1 else []
    done = run_tasks(
        _Chain.points,
        chains,
        jobs=jobs,
        ray=ray,
        title=_Chain.title,
        heard=lambda place, ended: told(chains[place].title(), ended),
    )
    ahead = _Ahead(same, done, told)
    found = search(ahead.measure, sizes, caps, max_wait_ns / 1e3)
    return attrs.evolve(
        found,
        workload=workload.name,
        requests=len(workload.jobs),
        notes=workload.notes,
        policy=policy,
        wait_of=wait_of,
        require=require,
        stated_rate=rate,
    )


def fitting_to(
    workload: Workload, cluster: Cluster, policy: str = "dlpm", params: Mapping[str, object] = NOTHING
) -> Quanta:
    """Return the quanta that fit a workload under a policy with a deficit gate; nothing is simulated.

    Raises `ValueError` for a policy without quantum and cap, or if no request fits a worker.

    >>> from fairsched.engines.workloads import generate
    >>> fitting_to(generate("long-context-qa", clients=2, documents=2), Cluster()).quantum > 40_000
    True
    """
    known = RunSpec.of(policy, params=params).policy
    if not isinstance(known, ComposedPolicy) or not {"quantum", "in_flight_cap_tokens"} <= set(parameters(known)):
        raise ValueError(
            f"policy {policy!r} has no quantum and in-flight cap: choose one with a deficit gate, "
            "as dlpm or fcfs+deficit"
        )
    largest_need(workload, cluster.capacity)
    steps = parameters(known).get("max_batched_tokens")
    return fitting(
        Traffic.of(workload.jobs),
        cluster.capacity,
        step_tokens=steps if isinstance(steps, int) else STEP_TOKENS,
        input_rate=known.gate.rates.input,
    )


@attrs.frozen
class _Chain:
    """The points of one cap that the search asks for before it has seen another cap's."""

    same: PointRun
    cap: int | None
    quanta: Sequence[int]
    max_wait_us: float

    def title(self) -> str:
        return f"cap {'none' if self.cap is None else self.cap}"

    def points(self) -> list[TunedPoint]:
        known: dict[int, TunedPoint] = {}

        def at(k: int) -> TunedPoint:
            if k not in known:
                known[k] = self.same.point(self.quanta[k], self.cap, tell)
            return known[k]

        _largest(at, len(self.quanta) - 1, lambda point: point.keeps(self.max_wait_us))
        return list(known.values())


@attrs.define(eq=False)
class _Ahead:
    """Points that the search asks for: those that other processes ran ahead of it, and the others, run here."""

    same: PointRun
    chains: Iterator[tuple[int, list[TunedPoint]]]
    told: Callable[[str, int], None]
    caps: set[int | None] = attrs.field(factory=set)
    points: dict[tuple[int, int | None], TunedPoint] = attrs.field(factory=dict)
    runs: int = 0

    def measure(self, quantum: int, cap: int | None) -> TunedPoint:
        self.runs += 1
        while cap not in self.caps and (found := next(self.chains, None)) is not None:
            self.points.update({(point.quantum, point.cap): point for point in found[1]})
            self.caps.add(found[1][0].cap)
        if (point := self.points.get((quantum, cap))) is not None:
            return point
        title = f"run {self.runs}: quantum {quantum}, cap {'none' if cap is None else cap}"
        return self.same.point(quantum, cap, lambda ended: self.told(title, ended))


# --- the search -------------------------------------------------------------------------------------------------------

Measure = Callable[[int, int | None], TunedPoint]


def caps_for(capacity: int, largest: int) -> list[int | None]:
    """Return caps to try: none, then ever smaller ones down to what the largest request needs, in equal steps of a
    factor."""
    if largest >= capacity:
        return [None]
    steps = np.geomspace(capacity, largest, 5)[1:]
    return [None, *dict.fromkeys(int(np.ceil(step)) for step in steps)]


def quanta_for(least: int, most: int) -> list[int]:
    """Return powers of two from `least` to `most`."""
    return [1 << k for k in range((least - 1).bit_length(), most.bit_length())]


def search(measure: Measure, quanta: Sequence[int], caps: Sequence[int | None], max_wait_us: float) -> Tuning:
    """Look for the most throughput with a wait of at most `max_wait_us`, by measurement and by proof.

    An interrupt ends the search with what there is.
    """
    known: dict[tuple[int, int | None], TunedPoint] = {}

    def run(quantum: int, cap: int | None) -> TunedPoint:
        if (quantum, cap) not in known:
            known[quantum, cap] = measure(quantum, cap)
        return known[quantum, cap]

    def keeps(point: TunedPoint) -> bool:
        return point.keeps(max_wait_us)

    def proved(point: TunedPoint) -> bool:
        return keeps(point) and point.bound_us is not None and point.bound_us <= max_wait_us

    complete = True
    try:
        _search(run, quanta, caps, keeps)
        # The promise that is strongest of all says whether any can be strong enough.
        if proved(run(quanta[0], caps[-1])):
            _search(run, quanta, caps, proved)
    except KeyboardInterrupt:
        if not known:
            raise
        complete = False
    points = tuple(known.values())
    return Tuning(points, max_wait_us, _best(points, keeps), _best(points, proved), complete)


def _search(
    run: Measure, quanta: Sequence[int], caps: Sequence[int | None], accept: Callable[[TunedPoint], bool]
) -> None:
    """Run what may be the best acceptable point: for each cap the largest quantum that is accepted, and for the best of
    them the smallest that has as much throughput, since it promises more."""
    best: TunedPoint | None = None
    for cap in caps:

        def at(k: int, cap: int | None = cap) -> TunedPoint:
            return run(quanta[k], cap)

        top = len(quanta) - 1
        if best is not None and at(top).throughput < SAME * best.throughput:
            break
        found = _largest(at, top, accept)
        if found is None:
            continue
        if best is None or found.throughput > best.throughput:
            best = found
    if best is not None:
        cap, enough, most = best.cap, SAME * best.throughput, quanta.index(best.quantum)
        # Counted downwards, so that the last that is good enough has the smallest quantum.
        last_place(0, most + 1, lambda k: accept(point := run(quanta[most - k], cap)) and point.throughput >= enough)


def _largest(at: Callable[[int], TunedPoint], top: int, accept: Callable[[TunedPoint], bool]) -> TunedPoint | None:
    """Run what may be the point with the largest accepted quantum, up to `top`."""
    low = top if accept(at(top)) else _accepted(at, top, accept)
    return None if low is None else at(last_place(low, top, lambda k: accept(at(k))))


def _accepted(at: Callable[[int], TunedPoint], top: int, accept: Callable[[TunedPoint], bool]) -> int | None:
    """Return any accepted place below `top`, if waits fall and then rise: the shortest wait is closed in on."""

    def wait(k: int) -> float:
        return at(k).wait_us.p99 or 0.0

    low, high = 0, top
    if accept(at(low)):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        if accept(at(middle)):
            return middle
        # Where waits fall from the middle on, the shortest lies behind it.
        if middle + 1 <= high and wait(middle + 1) < wait(middle):
            if accept(at(middle + 1)):
                return middle + 1
            low = middle
        else:
            high = middle
    return None


def _best(points: Sequence[TunedPoint], accept: Callable[[TunedPoint], bool]) -> TunedPoint | None:
    """Of the accepted points with the most throughput, or as good as that, the one that promises most."""
    accepted = [point for point in points if accept(point)]
    most = max((point.throughput for point in accepted), default=0.0)
    return min(
        (point for point in accepted if point.throughput >= SAME * most),
        key=lambda point: (point.bound_cost or 0, point.wait_us.p99 or 0.0),
        default=None,
    )
