"""The nine-SLO oracle: may a fleet be accepted, by how much its requests are slowed down against a quiet machine.

Source: Patel et al., "Splitwise" (ISCA'24), Table VI.  A request is compared with itself: the same lengths, alone on a
reference machine (a DGX-A100).  Its slowdowns are those of the time to the first token (TTFT), of the mean time
between its tokens (TBT) and of the time to its last token (E2E).  A fleet is accepted if the 50th, 90th and 99th
percentile of each of the three is within its limit: nine targets, all of which must be met.

Silent in the paper, decided here: percentiles are nearest-rank; TBT of a request is its mean gap, and an output of one
token has none; a request that has not finished is slowed down without limit, so that a fleet that drops requests is not
accepted for those that it served.
"""

from collections.abc import Sequence
from math import ceil, inf

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.analysis import Outcomes
from fairsched.model.latency import LatencyModel

Times = npt.NDArray[np.float64]
PERCENTILES = (50, 90, 99)
METRICS = ("ttft", "tbt", "e2e")


@attrs.frozen
class RequestTimes:
    """Times of requests in nanoseconds, one entry each: TTFT, mean TBT (NaN of one token), E2E; infinite if never."""

    ttft: Times
    tbt: Times
    e2e: Times

    def __len__(self) -> int:
        return len(self.ttft)

    @classmethod
    def of(cls, ttft_ns: Times, e2e_ns: Times, output_tokens: npt.NDArray[np.int64]) -> "RequestTimes":
        """Return the times of requests with so long outputs."""
        gaps = output_tokens - 1
        never = ~np.isfinite(e2e_ns)
        with np.errstate(invalid="ignore", divide="ignore"):
            tbt = np.where(gaps > 0, np.where(never, inf, (e2e_ns - ttft_ns) / gaps), np.nan)
        return cls(ttft_ns.astype(np.float64), tbt, e2e_ns.astype(np.float64))

    @classmethod
    def measured(cls, outcomes: Outcomes) -> "RequestTimes":
        """Return what became of a run's requests."""
        begun, finished = outcomes.first >= 0, outcomes.finished
        ttft = np.where(begun, outcomes.first - outcomes.arrival, inf)
        e2e = np.where(finished, outcomes.finish - outcomes.arrival, inf)
        return cls.of(ttft, e2e, outcomes.output)

    @classmethod
    def alone(cls, latency: LatencyModel, prompts: Sequence[int], outputs: Sequence[int]) -> "RequestTimes":
        """Return the times of such requests, each alone on a worker with this model: a whole prompt, then its output.

        >>> from fairsched.model.latency import PRESETS
        >>> RequestTimes.alone(PRESETS["llama-2-70b-h100"], [2_048], [1]).ttft.item() / 1e6  # doctest: +ELLIPSIS
        138.9...
        """
        ttft = np.array([latency.step_ns(((n, 0),), 0, 0) for n in prompts], dtype=np.float64)
        decode = [
            latency.decode_run_ns(1, n + 1, tokens - 1) if tokens > 1 else 0
            for n, tokens in zip(prompts, outputs, strict=True)
        ]
        return cls.of(ttft, ttft + np.array(decode, dtype=np.float64), np.array(outputs, dtype=np.int64))


@attrs.frozen
class SlowdownLimits:
    """The largest slowdown of each metric at the 50th, 90th and 99th percentile; the paper's Table VI by default."""

    ttft: tuple[float, float, float] = (2.0, 3.0, 6.0)
    tbt: tuple[float, float, float] = (1.25, 1.5, 5.0)
    e2e: tuple[float, float, float] = (1.25, 1.5, 5.0)

    def __attrs_post_init__(self) -> None:
        for metric in METRICS:
            limits: tuple[float, float, float] = getattr(self, metric)
            if not 0 < limits[0] <= limits[1] <= limits[2]:
                raise ValueError(f"limits of {metric} are above 0 and rise with the percentile, not {limits}")


TABLE_VI = SlowdownLimits()


@attrs.frozen
class SloCheck:
    """One of the nine: a percentile of a metric's slowdowns, and its limit."""

    metric: str
    percentile: int
    slowdown: float
    limit: float

    @property
    def met(self) -> bool:
        """Whether the slowdown is within the limit."""
        return self.slowdown <= self.limit

    @property
    def used(self) -> float:
        """The share of the limit that is used: 1 is on the edge."""
        return self.slowdown / self.limit


@attrs.frozen
class SloVerdict:
    """The nine checks; `met` is what a search asks."""

    checks: tuple[SloCheck, ...]

    @property
    def met(self) -> bool:
        """Whether all of them are met."""
        return all(check.met for check in self.checks)

    @property
    def worst(self) -> SloCheck:
        """The check that is nearest to its limit, or furthest beyond."""
        return max(self.checks, key=lambda check: check.used)

    @property
    def text(self) -> str:
        """The worst check in words."""
        worst = self.worst
        name, verb = f"P{worst.percentile} {worst.metric.upper()}", "is within" if self.met else "exceeds"
        return f"{name} slowdown {worst.slowdown:.3g} {verb} {worst.limit:g}"


def nine_slos(measured: RequestTimes, reference: RequestTimes, limits: SlowdownLimits = TABLE_VI) -> SloVerdict:
    """Return the verdict on requests against the same requests on the reference.

    Raises `ValueError` unless both have the same requests, at least one.  Where no output has two tokens, there is no
    TBT to slow down, and its checks are met at 0.
    """
    if not len(reference) or len(measured) != len(reference):
        raise ValueError(
            "slowdowns need the same requests, at least one: "
            f"{len(measured)} are measured, {len(reference)} referred to"
        )
    checks = []
    for metric in METRICS:
        slowdowns = getattr(measured, metric) / getattr(reference, metric)
        ordered = np.sort(slowdowns[~np.isnan(slowdowns)])
        for percentile, limit in zip(PERCENTILES, getattr(limits, metric), strict=True):
            rank = ceil(percentile * len(ordered) / 100) - 1
            checks.append(SloCheck(metric, percentile, float(ordered[rank]) if len(ordered) else 0.0, limit))
    return SloVerdict(tuple(checks))


def judge(outcomes: Outcomes, reference: LatencyModel, limits: SlowdownLimits = TABLE_VI) -> SloVerdict:
    """Return the verdict on a run against its requests alone on a worker with the reference's model.

    An output that ended earlier than was foreseen counts with the tokens that it had.
    """
    alone = RequestTimes.alone(reference, outcomes.prompt.tolist(), outcomes.output.tolist())
    return nine_slos(RequestTimes.measured(outcomes), alone, limits)
