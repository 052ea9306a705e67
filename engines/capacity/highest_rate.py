"""The highest rate at which a fleet keeps its targets: DistServe's goodput, Vidur's capacity.

Every rate is simulated on the same requests in the same order, with their arrivals stretched (common random numbers),
so that two rates differ in nothing but the rate.  The bracket is looked for before it is halved, and rates beside the
result are tried as well: with a router before several workers, less load may keep fewer targets (policy cards, D9), and
then the search says so instead of a number that looks exact.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import inf

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.analysis import EventTables, Outcomes, energy_nj, time
from fairsched.engines.simulation import Cluster, RunSpec
from fairsched.engines.workloads import at_rate
from fairsched.model.events import Admitted
from fairsched.model.machine import LatencyModel
from fairsched.model.request import Workload

METRICS = ("ttft", "tpot", "latency", "delay", "tbt")
"""Time to the first token; mean time of each further token; to the last token; from arrival to first admission; between
two tokens, of all requests together."""
Floats = npt.NDArray[np.float64]

RESOLUTION = 0.025
"""The bracket is halved until its ends are this close, as in Vidur-Search."""
RATE_MIN, RATE_MAX = 1e-3, 1e5
PROBES = (0.25, 0.5, 0.75, 1.15, 1.4, 2.0)
"""Multiples of the rate found at which monotony is checked."""


@attrs.frozen
class SloTarget:
    """At a percentile of the requests, all of the metrics are at most their limits.

    Limits are microseconds.  With a `reference` they are multiples of what each request takes alone on a machine with
    that latency model.  A request that did not finish keeps no limit.  Of several metrics the percentile is that of
    requests that keep them jointly; a target for each instead lets as many requests miss one as the other (F-DS-3).
    Times between tokens (tbt) have a target of their own, whose percentile is that of all of them.
    """

    percentile: int
    limits: tuple[tuple[str, float], ...]
    reference: LatencyModel | None = None

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.percentile <= 100 or not self.limits or any(limit <= 0 for _, limit in self.limits):
            raise ValueError(f"a target has a percentile from 1 to 100 and limits above 0, not {self.text}")
        if (unknown := {name for name, _ in self.limits} - set(METRICS)) or len(dict(self.limits)) < len(self.limits):
            raise ValueError(f"a target limits each of {', '.join(METRICS)} at most once, not {sorted(unknown)}")
        if self.of_tokens and (len(self.limits) > 1 or self.reference is not None):
            raise ValueError(f"times between tokens are of no request: tbt has a target of its own, not {self.text}")

    @property
    def of_tokens(self) -> bool:
        """Whether it is about times between tokens, and not about requests."""
        return any(name == "tbt" for name, _ in self.limits)

    @property
    def text(self) -> str:
        """The target in a few words."""
        unit = time if self.reference is None else "{:g}x".format
        return f"P{self.percentile} " + " and ".join(f"{name} <= {unit(limit)}" for name, limit in self.limits)

    def worst(self, outcomes: Outcomes) -> Floats:
        """Return each request's worst metric over its limit: at most 1 if the request keeps all of them.

        Raises `ValueError` for times between tokens, which no request has alone.
        """
        if self.of_tokens:
            raise ValueError(f"{self.text} is about tokens, and says of no request whether it keeps that")
        alone = None if self.reference is None else _alone(outcomes, self.reference)
        worst = np.zeros(len(outcomes.client))
        for name, limit in self.limits:
            limits = limit * 1e3 if alone is None else limit * alone[name]
            worst = np.maximum(worst, np.where(outcomes.finished, samples(outcomes, name) / limits, inf))
        return worst

    def excess(self, outcomes: Outcomes) -> float:
        """Return `worst` at the percentile (nearest rank): at most 1 if the target is kept."""
        if self.of_tokens:
            return self._tokens(outcomes)
        worst = np.sort(self.worst(outcomes))
        return float(worst[(self.percentile * len(worst) + 99) // 100 - 1]) if len(worst) else 0.0

    def _tokens(self, outcomes: Outcomes) -> float:
        gaps, ((_, limit),) = outcomes.gaps, self.limits
        if gaps is None:
            raise ValueError(f"{self.text}: the outcomes have no times between tokens")
        if not outcomes.finished.all():
            return inf
        order = np.argsort(gaps.ns)
        reached = np.cumsum(gaps.weight[order])
        if not len(reached):
            return 0.0
        place = np.searchsorted(reached, (self.percentile * reached[-1] + 99) // 100)
        return float(gaps.ns[order][place]) / (limit * 1e3)


def samples(outcomes: Outcomes, metric: str) -> Floats:
    """Return a metric of each request in nanoseconds; of requests without it the value means nothing.

    A request of one token has no further token, and a time of 0 for each.
    """
    if metric == "ttft":
        return (outcomes.first - outcomes.arrival).astype(np.float64)
    if metric == "tpot":
        return (outcomes.finish - outcomes.first) / np.maximum(outcomes.output - 1, 1)
    if metric == "latency":
        return (outcomes.finish - outcomes.arrival).astype(np.float64)
    return (outcomes.times(Admitted) - outcomes.arrival).astype(np.float64)


def _alone(outcomes: Outcomes, latency: LatencyModel) -> Mapping[str, Floats]:
    """Return what each request takes on an idle machine that computes its prompt in one step."""
    ttft, decode = np.empty(len(outcomes.client)), np.empty(len(outcomes.client))
    for i, (prompt, output) in enumerate(zip(outcomes.prompt.tolist(), outcomes.output.tolist(), strict=True)):
        ttft[i] = latency.step_ns(((prompt, 0),), 0, 0)
        decode[i] = latency.decode_run_ns(1, prompt + 1, output - 1) if output > 1 else 0
    each = np.where(outcomes.output > 1, decode / np.maximum(outcomes.output - 1, 1), latency.decode_ns(1, 1))
    return {"ttft": ttft, "tpot": each, "latency": ttft + decode, "delay": ttft}


NINE = (("ttft", (2.0, 3.0, 6.0)), ("tpot", (1.25, 1.5, 5.0)), ("latency", (1.25, 1.5, 5.0)))
"""Splitwise's Table VI: slowdowns at P50, P90 and P99."""


def nine_slos(reference: LatencyModel) -> tuple[SloTarget, ...]:
    """Return Splitwise's nine targets: slowdowns against each request alone on a machine, a DGX-A100 in the paper.

    The paper's TBT is the mean of a request, which is TPOT here.
    """
    return tuple(
        SloTarget(percentile, ((metric, factor),), reference)
        for metric, factors in NINE
        for percentile, factor in zip((50, 90, 99), factors, strict=True)
    )


DELAY = SloTarget(99, (("delay", 5e6),))
"""Vidur-Search: the P99 of scheduling delay is below 5 s."""


@attrs.frozen
class RateTrial:
    """What a fleet did at one rate: how far each target was exceeded (at most 1: kept), requests that finished, and the
    mean power that it drew (None: not known)."""

    excess: tuple[float, ...]
    finished: int
    requests: int
    watts: float | None = None

    @property
    def kept(self) -> bool:
        """Whether all targets were kept."""
        return max(self.excess, default=0.0) <= 1

    @property
    def worst(self) -> float:
        """How far the worst target was exceeded."""
        return max(self.excess, default=0.0)


@attrs.frozen
class Goodput:
    """The highest rate that keeps all targets, with every rate that was tried.

    `rate` is None where not even the lowest rate keeps them.  It is the last before the first rate that misses;
    `surprises` are pairs of a rate that misses and a higher one that keeps.  `open_above` is set where the highest rate
    allowed keeps the targets too.
    """

    rate: float | None
    tried: Mapping[float, RateTrial]
    open_above: bool = False

    @property
    def surprises(self) -> tuple[tuple[float, float], ...]:
        """Neighbouring rates of which the lower misses and the higher keeps: attainment is not monotone."""
        rows = [(rate, trial.kept) for rate, trial in self.tried.items()]
        return tuple((low, high) for (low, kept), (high, again) in pairwise(rows) if again and not kept)

    @property
    def is_monotone(self) -> bool:
        """Whether no rate that was tried keeps the targets above one that misses them."""
        return not self.surprises

    @property
    def highest(self) -> float | None:
        """The highest rate of all tried that keeps the targets."""
        return max((rate for rate, trial in self.tried.items() if trial.kept), default=None)


def outcomes_of(workload: Workload, run: RunSpec, cluster: Cluster, *, gaps: bool = False) -> Outcomes:
    """Simulate a workload as it is and return what became of each request, with times between tokens if asked."""
    events = EventTables()
    run.simulator(workload, cluster, events.add).run()
    return Outcomes(workload, events.whole(), [spec.latency for spec in cluster.all_specs] if gaps else ())


def trial(workload: Workload, run: RunSpec, cluster: Cluster, targets: Sequence[SloTarget]) -> RateTrial:
    """Simulate a workload as it is and hold every request against the targets."""
    outcomes = outcomes_of(workload, run, cluster, gaps=any(target.of_tokens for target in targets))
    excess = tuple(target.excess(outcomes) for target in targets)
    latencies, span_ns = [spec.latency for spec in cluster.all_specs], outcomes.last_ns
    energy = energy_nj(outcomes.trace, latencies, outcomes.origin, outcomes.origin + span_ns)
    watts = sum(energy.values()) / span_ns if len(energy) == len(latencies) and span_ns else None
    return RateTrial(excess, int(outcomes.finished.sum()), len(workload.jobs), watts)


def goodput(
    workload: Workload,
    run: RunSpec,
    cluster: Cluster,
    targets: Sequence[SloTarget],
    *,
    start: float = 1.0,
    resolution: float = RESOLUTION,
    probes: Sequence[float] = PROBES,
) -> Goodput:
    """Return the highest rate, in requests a second, at which a run on a cluster keeps all targets.

    The workload's requests come at every rate in the same order and with the same relative gaps.  The search begins at
    `start`; any positive rate leads to the same bracket, sooner or later.

    >>> from fairsched.engines.workloads import generate
    >>> jobs = generate("azure-chat", requests=40, arrivals="poisson")
    >>> found = goodput(jobs, RunSpec.of("fcfs"), Cluster("opt-13b-a100"), [SloTarget(90, (("ttft", 2e6),))])
    >>> 0.5 < found.rate < 20, found.is_monotone
    (True, True)
    """
    if not targets:
        raise ValueError("goodput needs at least one target")
    if len(workload.jobs) < 2:
        raise ValueError(f"goodput needs two requests or more, and {workload.name} has {len(workload.jobs)}")
    return bisected(
        lambda rate: trial(at_rate(workload, rate), run, cluster, targets),
        start=start,
        resolution=resolution,
        probes=probes,
    )


def bisected(
    measure: Callable[[float], RateTrial],
    *,
    start: float = 1.0,
    resolution: float = RESOLUTION,
    probes: Sequence[float] = PROBES,
) -> Goodput:
    """Return the highest rate that keeps its targets: a bracket by doubling, halved, and checked at `probes`.

    Where a probe shows that attainment is not monotone, the bracket below the first miss is halved again, so that
    `Goodput.rate` has no rate below it that was tried and missed.
    """
    if not RATE_MIN <= start <= RATE_MAX or not 0 < resolution < 1:
        raise ValueError(f"a search starts from {RATE_MIN:g} to {RATE_MAX:g} with a resolution below 1, not at {start}")
    tried: dict[float, RateTrial] = {}

    def run(rate: float) -> None:
        rate = min(max(rate, RATE_MIN), RATE_MAX)
        if rate not in tried:
            tried[rate] = measure(rate)

    def close() -> tuple[float, float]:
        while (rate := _next(*(edge := _edge(tried)), resolution)) is not None:
            run(rate)
        return edge

    run(start)
    low, high = close()
    if low and high < inf:
        for factor in probes:
            run(low * factor)
        low, high = close()
    return Goodput(low or None, dict(sorted(tried.items())), high == inf)


def _edge(tried: Mapping[float, RateTrial]) -> tuple[float, float]:
    """Return the first rate that misses, infinite if none does, and before it the last that was tried, 0 if none
    was."""
    high = min((rate for rate, trial in tried.items() if not trial.kept), default=inf)
    return max((rate for rate in tried if rate < high), default=0.0), high


def _next(low: float, high: float, resolution: float) -> float | None:
    """Return the rate to try for a closer bracket; None where it is close enough, or at the end of what is allowed."""
    if not low:
        return max(high / 2, RATE_MIN) if high > RATE_MIN else None
    if high == inf:
        return min(low * 2, RATE_MAX) if low < RATE_MAX else None
    return (low + high) / 2 if high > low * (1 + resolution) else None
