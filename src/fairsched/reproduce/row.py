"""A row: a panel of a paper, run again on the paper's terms, with the verdict on each thing that it claims.

A row's function takes a `Platform` and a seed and returns figures by name.  The harness calls it once for each seed;
`Printed`s then judge the mean over the seeds and its confidence interval, by the same rules for every row:

sign        the interval lies wholly on the paper's side of "no effect";
size        the mean lies in the printed range, or within 20 % of what is printed as one number;
cause       a `Control` without the cause that the paper names leaves at most a quarter of the effect.

A row holds if all of its claims do.  A row that misses stays, and its note says why and what was tried.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from math import inf, log, nextafter, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Any

import attrs

from fairsched.engines.simulation import Cluster
from fairsched.engines.workloads import WorkerSpec
from fairsched.model.machine import LatencyModel, preset

Curve = Mapping[float, float]
"""A figure along the axis of a sweep, by the value on that axis."""
Figures = Mapping[str, float | Curve]
"""What one seed gives: figures by name.  Curves are drawn, and are not judged."""

NEAR = 0.20
"""A figure that a paper prints as one number is met within this share of it: machines are simulated here."""
LEFT_AT_MOST = 0.25
"""A cause is confirmed if a control without it leaves at most this share of the effect (ratios: of its log)."""
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t at 97.5 %, by degrees of freedom from 1 on."""


def _t_95(freedom: int) -> float:
    """Return Student's t at 97.5 %: of the table, and of more degrees of freedom by the expansion around the normal
    distribution (Abramowitz and Stegun, 26.7.5)."""
    if freedom <= len(_T_95):
        return _T_95[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


class Verdict(StrEnum):
    """How a claim came out, from good to bad; a row's verdict is the worst of its claims'."""

    HELD = "held"
    """Sign and size are the paper's, and the control removes the effect."""
    SIZE_DIFFERS = "size differs"
    """The sign is the paper's and certain, the size is not."""
    CAUSE_OPEN = "cause not confirmed"
    """The effect is there, and stays without the cause that the paper names."""
    MISSED = "missed"
    """The sign is not the paper's, or not certain."""


@attrs.frozen
class Paper:
    """A paper whose panels are rows; `came_out` says in a sentence what came out, what did not, and why."""

    key: str
    title: str
    where: str
    came_out: str = ""


PAPERS = {
    paper.key: paper
    for paper in (
        Paper(
            "dlpm",
            "DLPM and D2LPM: Locality-aware Fair Scheduling in LLM Serving",
            "Cao et al., 2025",
            "on four workers D2LPM is ahead of VTC and of LPM with round robin in every cell, and fairer than LPM and "
            "Preble; of its lead over Preble in latency, 4.41 for 7.18, 2.15 stays when no client misbehaves",
        ),
        Paper(
            "preble",
            "Preble: Efficient Distributed Prompt Scheduling for LLM Serving",
            "Srivatsa, ICLR 2025",
            "ahead on tools, agents, videos and documents, on two A6000 by the printed sizes but for one tail; "
            "programs gain 1.05 to 1.35 times for 1.56 and more, and what E2's corrections add does not show",
        ),
        Paper(
            "larry",
            "LARRY and SAL: engine queue and load balancer",
            "the LARRY and SAL paper",
            "near saturation LARRY is ahead of all three baselines, by 1.65 to 1.97 at the median and by more than "
            "printed in tails; SAL gains next to nothing over P2C and random choices, which is not explained",
        ),
        Paper(
            "aladdin",
            "Aladdin: Joint Placement and Scaling for SLO-Aware LLM Serving",
            "Nie et al., 2024",
            "packing saves 64 % of GPUs for 40 % against join-shortest-queue, and 94 % for 71 % against the default "
            "engine, slow by vLLM's profile; Table 3 comes out on A100; split phases, 70B and V100 do not",
        ),
        Paper(
            "batchllm",
            "BatchLLM: Optimizing Large Batched LLM Inference",
            "Zheng et al., 2024",
            "what groups save comes out to the decimal, what an LRU cache keeps within 7 %; groups mostly gain more "
            "than printed, since the engine's CPU time is not simulated; token batching gains next to nothing",
        ),
        Paper(
            "distserve",
            "DistServe: Disaggregating Prefill and Decoding for LLM Serving",
            "Zhong, OSDI 2024",
            "equations and figure 1 come out in size; but on OPT-66B its engine gains as much unsplit, and with the "
            "printed lengths vLLM's profile keeps chat's targets at no rate, so that goodput and table 2 differ",
        ),
        Paper(
            "splitwise",
            "Splitwise: Efficient Generative LLM Inference by Phase Splitting",
            "Patel, ISCA 2024",
            "machines for 70 requests a second, and what designs save at equal throughput and cost, come out; at equal "
            "power they gain more than printed (2.93 for 2.15, not explained); the split for conversations and A100's "
            "dollars do not",
        ),
        Paper(
            "tetriinfer",
            "TetriInfer: Inference without Interference",
            "Hu et al., 2024",
            "times to the first token and latencies fall in all five classes, mostly by more than printed; what heavy "
            "prompts cost in resources, and power of two over random choices, do not show",
        ),
        Paper(
            "vidur",
            "Vidur: A Large-Scale Simulation Framework for LLM Inference",
            "Agrawal, MLSys 2024",
            "another trace's best configuration costs up to 2.36 times as much for 2 printed, arXiv's on conversations "
            "1.28 for 2, since both take H100; a step between targets is larger, 10.9 for 1.85",
        ),
        Paper(
            "field",
            "Rules of the field: LMetric, response ratios, attained service, FairBatching, agents, CLIMB",
            "arXiv 2603.15202, 2502.13965, 2510.14392, 2605.00528, 2602.13692, 2601.22705; SGLang 32911; llm-d 1534",
            "LMetric leads, by 89 % for 92 printed; HRRN gains more than printed; LAS gains chats a tenth; "
            "FairBatching's tail 1.45 times as short for 2.29; AFS costs light clients; CLIMB's VIPs gain without "
            "fetches; fitting agents gain 1.89 times",
        ),
        Paper(
            "energy",
            "Energy: the ML.ENERGY leaderboard, FREESH",
            "Chung et al., 2025; arXiv 2511.00807",
            "power of all nine batches comes out, joules per token of 32B, of 70B, and of 8B in small batches; waiting "
            "for a low price saves 13 % of the joules for 28.6 printed, without sites and clocks to choose",
        ),
        Paper("queueing", "Queueing theory: orders before M/M/n queues", "textbook results", "all come out"),
        Paper(
            "fairsched",
            "Results of our own",
            "this project",
            "a rule for quanta keeps 0.94 of E2's throughput and more; Jain's index falls where little waits; "
            "polite programs keep 0.97 beside 64 subagents; DLPM's gate costs a tenth to a sixth of deadlines met, "
            "bands by haste less",
        ),
    )
}
"""The papers by key, in the order of the page."""


@attrs.frozen
class Platform:
    """The machines of a panel: so many workers, each with a latency preset.

    `kv_capacity_tokens` is the preset's unless it is given; `step_tokens` is the most tokens that a step computes, the
    policy's default unless it is given; `host_capacity_tokens` is host memory, for policies that swap KV there.

    >>> Platform("llama-3.1-8b-a100", workers=4).text
    '4 x llama-3.1-8b-a100, 427,000 KV tokens each'
    """

    model: str
    workers: int = 1
    kv_capacity_tokens: int | None = None
    step_tokens: int | None = None
    host_capacity_tokens: int = 0

    @property
    def latency(self) -> LatencyModel:
        """The step times of a worker; raises `ValueError` for a name of no machine."""
        found = preset(self.model)
        if found is None:
            raise ValueError(f"{self.model} is no machine")
        return found

    @property
    def kv_tokens(self) -> int:
        """KV tokens of a worker."""
        return self.kv_capacity_tokens or self.latency.kv_capacity_tokens

    @property
    def cluster(self) -> Cluster:
        spec = WorkerSpec(self.latency, self.kv_capacity_tokens, self.host_capacity_tokens)
        return Cluster(self.model, (spec,) * self.workers)

    @property
    def text(self) -> str:
        if self == ARITHMETIC:
            return "no machine: arithmetic"
        steps = f", steps of {self.step_tokens:,} tokens" if self.step_tokens else ""
        host = f", host memory for {self.host_capacity_tokens:,} more" if self.host_capacity_tokens else ""
        return f"{self.workers} x {self.model}, {self.kv_tokens:,} KV tokens each{host}{steps}"


ARITHMETIC = Platform("none", workers=0)
"""The platform of rows that simulate nothing."""


Measure = Callable[[Platform, int], Figures]
"""Gives the figures of a seed on a platform."""


@attrs.frozen
class Control:
    """The cause that a paper names for an effect, and the figure that is measured without it."""

    cause: str
    figure: str


@attrs.frozen
class Printed:
    """One figure of a panel: what is printed, and the range in which ours must lie.

    `low` and `high` are the printed range, `high` infinite where none is printed; a single printed number is both.
    `neutral` is the figure where there is no effect: 1 of a ratio, 0 of a difference, None where the claim has no sign.
    `decimals` is for exact results: rounded to so many, ours must be what is printed.
    """

    figure: str
    about: str
    printed: str
    low: float
    high: float
    neutral: float | None = 1.0
    control: Control | None = None
    decimals: int | None = None

    @property
    def range_json(self) -> tuple[float, float | None]:
        """The range as it is written; JSON has no infinity."""
        return self.low, None if self.high == inf else self.high

    def __attrs_post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"{self.figure}: the printed range {self.low:g} to {self.high:g} is empty")
        if self.control is not None and self.neutral is None:
            raise ValueError(f"{self.figure}: a control needs the value of no effect")


def number(
    figure: str,
    about: str,
    printed: str,
    value: float,
    neutral: float | None = 1.0,
    control: Control | None = None,
    decimals: int | None = None,
) -> Printed:
    """Return a claim of which one number is printed."""
    return Printed(figure, about, printed, value, value, neutral, control, decimals)


def more(figure: str, about: str, printed: str = "more", control: Control | None = None) -> Printed:
    """Return a claim of which only the sign is printed: a ratio above 1."""
    return Printed(figure, about, printed, nextafter(1, inf), inf, control=control)


def fewer(figure: str, about: str, printed: str, control: Control | None = None) -> Printed:
    """Return a claim of which only the sign is printed: a ratio below 1."""
    return Printed(figure, about, printed, 0, nextafter(1, 0), control=control)


def above_zero(figure: str, about: str, printed: str) -> Printed:
    """Return a claim of which only the sign is printed: a difference above 0."""
    return Printed(figure, about, printed, nextafter(0, inf), inf, neutral=0.0)


@attrs.frozen
class Interval:
    """The mean over the seeds and its 95 % confidence interval (Student's t)."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Return the interval of values, one for each seed; of a single value it is the value.

        >>> Interval.of([1.0, 2.0, 3.0]).text, Interval.of([2.0]).text
        ('2 (-0.484 to 4.48)', '2')
        """
        mean = fmean(values)
        half = _t_95(len(values) - 1) * stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
        return cls(mean, mean - half, mean + half)

    @property
    def text(self) -> str:
        """The mean with its interval, if that is more than a point."""
        if self.low == self.high:
            return f"{self.mean:.4g}"
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


@attrs.frozen
class Judged:
    """A claim, what came out, and the verdict; `left` is the share of the effect that its control leaves."""

    claim: Printed
    ours: Interval
    verdict: Verdict
    without: Interval | None = None
    left: float | None = None


@attrs.frozen
class PanelRow:
    """A panel of a paper.

    `setting` says in words what the panel runs: composition, workload, metric, sweep and load.  `note` says where that
    differs from the paper's and, of a miss, why it is one and what was tried.  `seconds` is about how long a seed takes
    on one core.  Rows that are `quick` are those that continuous integration runs.  `axes` name the axes of the curves.
    """

    measure: Measure
    id: str
    about: str
    paper: str = attrs.field(validator=attrs.validators.in_(PAPERS))
    panel: str
    setting: str
    claims: tuple[Printed, ...] = attrs.field(validator=attrs.validators.min_len(1))
    seconds: float
    platform: Platform = ARITHMETIC
    note: str = ""
    seeds: int = attrs.field(default=5, validator=attrs.validators.ge(1))
    quick: bool = False
    axes: tuple[str, str] | None = None

    def run(self, seed: int) -> Figures:
        return self.measure(self.platform, seed)

    def judge(self, found: Sequence[Figures]) -> tuple[Judged, ...]:
        """Return the verdict on each claim; raises `ValueError` for a figure that a seed did not give."""
        return tuple(_judged(claim, found) for claim in self.claims)


def rows_of(paper: str, platform: Platform = ARITHMETIC) -> Callable[..., Callable[[Measure], PanelRow]]:
    """Return what makes rows of a paper: `@row(id=..., ...)` before a function makes a row that is measured by it."""

    def row(**facts: Any) -> Callable[[Measure], PanelRow]:
        return lambda measure: PanelRow(measure, **{"paper": paper, "platform": platform, **facts})

    return row


@attrs.frozen
class Panel:
    """A figure or table of a paper, and what became of it: rows, or why simulated machines cannot show it, or open."""

    name: str
    about: str
    rows: tuple[str, ...] = ()
    impossible: str = ""

    @property
    def status(self) -> str:
        if self.rows:
            return f"row{'s' * (len(self.rows) > 1)} {', '.join(self.rows)}"
        return f"not reproducible on simulated hardware: {self.impossible}" if self.impossible else "open"


def verdict(judged: Sequence[Judged]) -> Verdict:
    """Return the worst of the verdicts."""
    order = list(Verdict)
    return max((each.verdict for each in judged), key=order.index)


def interval(figure: str, found: Sequence[Figures]) -> Interval:
    """Return the interval of a figure over the seeds; raises `ValueError` if a seed did not give it."""
    values = []
    for each in found:
        value = each.get(figure)
        if not isinstance(value, int | float):
            raise ValueError(f"a seed gave no figure {figure!r}, only {', '.join(map(repr, each))}")
        values.append(float(value))
    return Interval.of(values)


def _judged(claim: Printed, found: Sequence[Figures]) -> Judged:
    ours = interval(claim.figure, found)
    without = left = None
    if claim.control is not None:
        without = interval(claim.control.figure, found)
        left = _left(without.mean, ours.mean, claim.neutral)
    if not _sign(claim, ours):
        result = Verdict.MISSED
    elif left is not None and left > LEFT_AT_MOST:
        result = Verdict.CAUSE_OPEN
    elif not _size(claim, ours.mean):
        result = Verdict.SIZE_DIFFERS if claim.neutral is not None else Verdict.MISSED
    else:
        result = Verdict.HELD
    return Judged(claim, ours, result, without, left)


def _sign(claim: Printed, ours: Interval) -> bool:
    """Return whether the interval lies on the paper's side of no effect and does not touch it.

    A range with "no effect" inside has no side.

    >>> up_to_two = Printed("ratio", "a ratio", "up to 2", 1, 2)
    >>> _sign(up_to_two, Interval(1.5, 1.2, 1.8)), _sign(up_to_two, Interval(1.05, 0.9, 1.2))
    (True, False)
    """
    neutral = claim.neutral
    if neutral is None or claim.low < neutral < claim.high:
        return True
    return ours.low > neutral if claim.high > neutral else ours.high < neutral


def _size(claim: Printed, mean: float) -> bool:
    if claim.decimals is not None:
        return claim.low <= round(mean, claim.decimals) <= claim.high
    near = NEAR * abs(claim.low) if claim.low == claim.high else 0.0
    return claim.low - near <= mean <= claim.high + near


def _left(without: float, with_cause: float, neutral: float | None) -> float:
    """Return the share of the effect that is left without the cause; infinite where there is no effect."""
    if neutral == 1.0 and min(without, with_cause) > 0:
        effect, rest = log(with_cause), log(without)
    else:
        effect, rest = with_cause - (neutral or 0.0), without - (neutral or 0.0)
    return rest / effect if effect else float("inf")
