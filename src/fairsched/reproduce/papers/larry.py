"""LARRY's order before an engine and SAL's choice among engines, on Azure's lengths and Functions-like arrivals.

Source: "Is the GPU Half-Empty or Half-Full?"; no code is public, and of its figures the text names ranges.  It runs
FCFS, No-Preempt and TRAIL+ beside LARRY (section 6: S3 and PiA do not fit its engine, TRAIL+ stands for LTR and
FastServe), on two H100 with 70B and one A100 of 40 GB with 8B, and four and eight of these behind SAL (section 7).  No
two prompts share a prefix.

*Saturation* is the rate at which a worker serves a seed's requests (of more than 2,000 the first), first come, first
served, when all have come at once.  Arrivals are Functions-like, stretched so that requests over the span of arrivals
are a share of it.  The paper's load is "neither under-provisioned nor over-provisioned", with preemptions under 0.1 %.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import log

import attrs
from msgspec.structs import replace

from fairsched.engines.analysis import Measures
from fairsched.engines.simulation import NOTHING, Oracle, Predictor
from fairsched.engines.workloads import at_rate
from fairsched.model.request import Workload
from fairsched.reproduce.row import Control, Figures, Panel, PanelRow, Platform, Printed, more, rows_of
from fairsched.reproduce.runs import alike, measured, run, workload

CHAT, CODE = "azure-chat", "azure-code"
STEP_TOKENS = 1_024
A100 = Platform("llama-3.1-8b-a100-40gb", step_tokens=STEP_TOKENS)
H100 = Platform("llama-3-70b-fp8-h100-tp2", step_tokens=STEP_TOKENS)
row = rows_of("larry", A100)
LARRY: Mapping[str, object] = {"alpha_milli": 1_000, "memory_unit": "blocks"}
"""The paper's alpha, 1, in blocks of 16 tokens a second: the unit is not stated."""
AT_ONCE_RPS, AT_ONCE = 100_000, 2_000
"""Requests that come within 20 ms, which are served in minutes."""

BASELINES: dict[str, tuple[str, Predictor | None, Mapping[str, object]]] = {
    "FCFS": ("fcfs-optimistic", None, NOTHING),
    "No-Preempt": ("no-preempt", None, NOTHING),
    "TRAIL+": ("trail", Oracle(), {"preempt_percent": 0}),
}
"""The paper's; predictions of TRAIL+ are the truth."""


def same(jobs: Workload) -> Workload:
    """Return the workload as it is."""
    return jobs


def saturation(jobs: Workload, on: Platform) -> float:
    """Return what one worker of the platform serves of these requests in a second when all have come at once.

    Between the half of the first tokens and 95 % of them: memory is full by then, and the batch is not yet empty.
    """
    one = Platform(on.model, 1, on.kv_capacity_tokens, on.step_tokens)
    first = at_rate(replace(jobs, jobs=jobs.jobs[:AT_ONCE]), AT_ONCE_RPS)
    found = run(first, "fcfs-optimistic", on=one).measures.ttft_us
    return 0.45 * len(first.jobs) / ((measured(found.p95, "a p95") - measured(found.p50, "a p50")) / 1e6)


def loaded(
    name: str,
    on: Platform,
    seed: int,
    requests: int,
    loads: Sequence[float],
    change: Callable[[Workload], Workload] = same,
) -> list[Workload]:
    """Return a seed's requests, changed as a control wants them, at each of these shares of their saturation."""

    def made(rate: float) -> Workload:
        return change(workload(name, on=on, seed=seed, rate=rate, requests=requests, arrivals="functions"))

    each_rps = saturation(made(AT_ONCE_RPS), on)
    rates = [load * each_rps * on.workers for load in loads]
    return [at_rate(made(rate), rate) for rate in rates]


def equal_prompts(jobs: Workload) -> Workload:
    """Return the workload with every prompt as long as the mean one: no prompt is short."""
    return alike(jobs, outputs=False)


def larry(jobs: Workload, on: Platform, params: Mapping[str, object] = LARRY, policy: str = "larry") -> Measures:
    """Return the figures of LARRY, with its own parameters unless others are given."""
    return run(jobs, policy, on=on, params=params).measures


def baseline(jobs: Workload, on: Platform, name: str) -> Measures:
    """Return the figures of a baseline by its name."""
    policy, predictor, params = BASELINES[name]
    return run(jobs, policy, on=on, params=params, predictor=predictor).measures


Figure = Callable[[Measures], float | None]
FIGURES: dict[str, Figure] = {
    "p50": lambda found: found.ttft_us.p50,
    "p95": lambda found: found.ttft_us.p95,
    "normalised p95": lambda found: found.normalized_ttft_us.p95,
    "normalised p50": lambda found: found.normalized_ttft_us.p50,
    "TGT p50": lambda found: found.latency_us.p50,
    "TGT p95": lambda found: found.latency_us.p95,
}
"""What is compared; TGT is the time from arrival to the last token."""


def gains(larry: Measures, others: Sequence[Measures], suffix: str = "") -> dict[str, float]:
    """Return, for each figure, how many times the least of the others is LARRY's."""
    return {
        name + suffix: min(measured(of(other), name) for other in others) / measured(of(larry), name)
        for name, of in FIGURES.items()
    }


AT = (0.95,)
"""The share of saturation of rows 21 to 21d and 22, which is ours: signs are certain there over 16 seeds."""
MANY_SEEDS = 16


def _against_baselines(name: str, requests: int, on: Platform, seed: int) -> Figures:
    """LARRY and all baselines near saturation, and without short prompts at its own saturation."""
    (jobs,) = loaded(name, on, seed, requests, AT)
    ours = larry(jobs, on)
    (even,) = loaded(name, on, seed, requests, AT, equal_prompts)
    without = gains(larry(even, on), [baseline(even, on, other) for other in BASELINES], ", equal prompts")
    preempted = 100 * ours.preemptions / ours.requests
    return {**gains(ours, [baseline(jobs, on, other) for other in BASELINES]), **without, "preempted %": preempted}


_SHORT_FIRST = "short prompts go first (every prompt as long as the mean one)"


def _gain(figure: str, about: str, low: float, high: float) -> Printed:
    control = Control(_SHORT_FIRST, f"{figure}, equal prompts")
    return Printed(figure, f"{about}, next best over LARRY", f"{low} to {high}", low, high, control=control)


_NEAR_SATURATION = (
    _gain("p50", "p50 of TTFT", 1.8, 2.1),
    _gain("p95", "p95 of TTFT", 1.2, 1.4),
    _gain("normalised p50", "p50 of TTFT a prompt token", 1.3, 1.5),
    _gain("normalised p95", "p95 of TTFT a prompt token", 3.3, 5.5),
    Printed("preempted %", "preemptions in % of requests", "less than 0.1", 0.0, 0.1, neutral=None),
)
_SETTING = (
    "LARRY with alpha 1 against FCFS, No-Preempt and TRAIL+, each figure against the best of them; chat lengths, 2,000 "
    f"requests, Functions-like arrivals stretched to {AT[0]:g} of saturation: what a worker serves of a seed's first "
    "2,000 requests, which come at once, in order of arrival"
)
_NOTE = (
    "an admission asks for its prompt's memory only, as in the paper, and answers outgrow it: hence the preemptions. "
    "Arrivals are a stand-in for Azure's Functions trace, fitted to nothing; that tails gain more than printed is not "
    "explained"
)


def _saturated(id: str, about: str, panel: str, on: Platform, name: str, seconds: float) -> PanelRow:
    """Return the row of LARRY near saturation on a platform, with requests of these lengths."""
    requests = 1_500 if name == CODE else 2_000
    others = f"as row 21, {'code lengths, 1,500 requests' if name == CODE else '70B'}"
    return row(
        id=id,
        about=f"LARRY near saturation, {about}",
        panel=panel,
        platform=on,
        setting=_SETTING if id == "21" else others,
        claims=_NEAR_SATURATION,
        note=_NOTE if id == "21" else "",
        seconds=seconds,
        seeds=MANY_SEEDS,
    )(partial(_against_baselines, name, requests))


CHAT_8B = _saturated("21", "chat, 8B", "Fig. 8, SW-Chat", A100, CHAT, seconds=5)
CODE_8B = _saturated("21b", "code, 8B", "Fig. 8, SW-Code", A100, CODE, seconds=3)
CHAT_70B = _saturated("21c", "chat, 70B", "Fig. 7, SW-Chat", H100, CHAT, seconds=5)
CODE_70B = _saturated("21d", "code, 70B", "Fig. 7, SW-Code", H100, CODE, seconds=3)


LOADS = (0.3, 0.7, 0.8, 0.9, 1.0)
"""Shares of saturation of the sweep."""
LIMITS_S = (1, 2, 5)
"""Limits of the p95 of TTFT that define a serving capacity."""


def capacity(p95_s: Mapping[float, float], limit_s: float) -> float:
    """Return the load at which the p95 first reaches the limit, between two loads by the logarithm of the p95.

    >>> capacity({0.5: 1.0, 1.0: 4.0}, 2.0)
    0.75
    >>> capacity({0.5: 1.0, 1.0: 4.0}, 8.0)
    1.0
    """
    found = sorted(p95_s.items())
    if found[0][1] > limit_s:
        return found[0][0]
    for (low, below), (high, above) in pairwise(found):
        if above > limit_s:
            return low + (high - low) * log(limit_s / below) / log(above / below)
    return found[-1][0]


@row(
    id="21e",
    about="LARRY's serving capacity",
    panel="Figs 7 and 8, serving capacity",
    setting="as row 21, 1,500 requests, at 0.3 to 1.0 of saturation; capacity is the load at which the p95 of TTFT "
    "reaches 1, 2 or 5 s (limits of ours), at least 0.3",
    claims=(
        *(
            more(f"capacity, {limit} s", f"load with a p95 of {limit} s, LARRY over the next best")
            for limit in LIMITS_S
        ),
        *(
            Printed(f"p50 at {load}", f"p50 of TTFT, next best over LARRY, at {load} of saturation", "1 to 2.1", 1, 2.1)
            for load in LOADS[1:-1]
        ),
        Printed(
            "p95 at 0.9",
            "p95 of TTFT, next best over LARRY, at 0.9 of saturation",
            "1.2 to 1.4",
            1.2,
            1.4,
            control=Control("a queue (0.3 of saturation)", "p95 at 0.3"),
        ),
    ),
    seconds=7,
    axes=("share of saturation", "p95 of TTFT in s"),
)
def serving_capacity(on: Platform, seed: int) -> Figures:
    """Return the p95 by load, and the loads at which it reaches the limits."""
    p95_s: dict[str, dict[float, float]] = {name: {} for name in ("LARRY", *BASELINES)}
    figures: dict[str, float] = {}
    for load, jobs in zip(LOADS, loaded(CHAT, on, seed, 1_500, LOADS), strict=True):
        ours, others = larry(jobs, on), [baseline(jobs, on, name) for name in BASELINES]
        figures |= {name: gain for name, gain in gains(ours, others, f" at {load}").items() if name.startswith("p")}
        for name, found in zip(p95_s, (ours, *others), strict=True):
            p95_s[name][load] = measured(found.ttft_us.p95, "a p95") / 1e6
    for limit in LIMITS_S:
        best = max(capacity(p95_s[name], limit) for name in BASELINES)
        figures[f"capacity, {limit} s"] = capacity(p95_s["LARRY"], limit) / best
    return {**figures, **p95_s}


_TTFT = {
    "p50": "p50 of TTFT",
    "mean": "mean of TTFT",
    "p95": "p95 of TTFT",
    "normalised p95": "p95 of TTFT a prompt token",
}


@row(
    id="21f",
    about="LARRY's equation 1 as printed",
    paper="fairsched",
    panel="LARRY's equation 1",
    setting="the printed equation, the largest score first, against FCFS; requests as in row 21",
    claims=tuple(
        more(f"{name} printed", f"{text}, as printed over FCFS", "worse (our reading)") for name, text in _TTFT.items()
    ),
    note="the paper prints the sum of queue length x memory and alpha x wait, largest first, which sends large "
    "prompts first; its text and its results mean the difference",
    seconds=1,
)
def as_printed(on: Platform, seed: int) -> Figures:
    """Return the sum instead of the difference."""
    (jobs,) = loaded(CHAT, on, seed, 2_000, AT)
    printed, fcfs = larry(jobs, on, policy="larry-printed"), baseline(jobs, on, "FCFS")
    figures: dict[str, Figure] = {**FIGURES, "mean": lambda found: found.ttft_us.mean}
    return {f"{name} printed": measured(of(printed), name) / measured(of(fcfs), name) for name, of in figures.items()}


ALPHAS = (1, 500, 1_000, 10_000, 100_000)
"""The paper's three, and larger ones, in blocks of 16 tokens a second."""
_SIZES = "prompts differ (every prompt as long as the mean one)"


@row(
    id="22",
    about="what LARRY's alpha does",
    panel="Fig. 9",
    setting="as row 21, alpha of 1, 500, 1,000 and larger, in blocks of 16 tokens a second",
    claims=(
        more(
            "p50, 500 over 1",
            "p50 of TTFT, alpha 500 over alpha 1",
            control=Control(_SIZES, "p50, 500 over 1, equal prompts"),
        ),
        more("p50, 1,000 over 500", "p50 of TTFT, alpha 1,000 over alpha 500"),
        more("p99, 1 over 500", "p99 of TTFT, alpha 1 over alpha 500"),
        more("p99, 1 over 1,000", "p99 of TTFT, alpha 1 over alpha 1,000"),
        more("p99, 100,000 over 1,000", "p99 of TTFT, alpha 100,000 over 1,000: very large alphas raise the tail"),
    ),
    note="the paper states no unit of alpha; in shares of the capacity its three alphas are order of arrival. Ratios "
    "to alpha 1 differ much by seed",
    seconds=6,
    axes=("alpha in blocks a second", "TTFT in s"),
)
def alphas(on: Platform, seed: int) -> Figures:
    """P50 and p99 by alpha."""
    (jobs,) = loaded(CHAT, on, seed, 2_000, AT)
    found = {alpha: larry(jobs, on, {**LARRY, "alpha_milli": 1_000 * alpha}).ttft_us for alpha in ALPHAS}
    p50 = {alpha: measured(one.p50, "a p50") / 1e6 for alpha, one in found.items()}
    p99 = {alpha: measured(one.p99, "a p99") / 1e6 for alpha, one in found.items()}
    (even,) = loaded(CHAT, on, seed, 2_000, AT, equal_prompts)
    low, high = (
        measured(larry(even, on, {**LARRY, "alpha_milli": 1_000 * alpha}).ttft_us.p50, "a p50") for alpha in (1, 500)
    )
    return {
        "p50, 500 over 1": p50[500] / p50[1],
        "p50, 500 over 1, equal prompts": high / low,
        "p50, 1,000 over 500": p50[1_000] / p50[500],
        "p99, 1 over 500": p99[1] / p99[500],
        "p99, 1 over 1,000": p99[1] / p99[1_000],
        "p99, 100,000 over 1,000": p99[100_000] / p99[1_000],
        "p50": {float(alpha): one for alpha, one in p50.items()},
        "p99": {float(alpha): one for alpha, one in p99.items()},
    }


alphas_70b = attrs.evolve(
    alphas, id="22b", about="what LARRY's alpha does to 70B", platform=H100, setting="as row 22", note=""
)


NEAR = (0.9,)
"""The share of saturation before SAL, which is ours."""
EACH, FEWER = 1_500, 500
"""Requests an engine; the lower is for controls and row 66."""
ROUTERS: dict[str, tuple[str, Mapping[str, object]]] = {
    "P2C": ("power-of-two", NOTHING),
    "Random": ("random", NOTHING),
    "SAL": ("sal", {"max_batched_tokens": STEP_TOKENS, "poll_us": 100_000}),
    "SAL as printed": ("sal-printed", {"max_batched_tokens": STEP_TOKENS, "poll_us": 100_000}),
}
_SAL_PRINTED = {
    "p50": ("p50 of TTFT", 1.0, 1.5),
    "p95": ("p95 of TTFT", 1.2, 1.3),
    "normalised p50": ("p50 of TTFT a prompt token", 1.0, 1.2),
    "normalised p95": ("p95 of TTFT a prompt token", 1.0, 1.2),
    "TGT p50": ("p50 of TGT", 1.1, 1.3),
    "TGT p95": ("p95 of TGT", 1.1, 1.3),
}
_EQUAL = "equal requests"


def _routed(jobs: Workload, on: Platform, name: str) -> Measures:
    router, params = ROUTERS[name]
    return run(jobs, "larry", router, on=on, params=LARRY, routing=params).measures


def _balanced(name: str, on: Platform, seed: int) -> Figures:
    """Return the best of P2C and Random over SAL near saturation, and so without differences between requests."""
    (jobs,) = loaded(name, on, seed, EACH * on.workers, NEAR)
    (even,) = loaded(name, on, seed, FEWER * on.workers, NEAR, alike)
    found: dict[str, float] = {}
    for each, suffix in ((jobs, ""), (even, f", {_EQUAL}")):
        found |= gains(_routed(each, on, "SAL"), [_routed(each, on, other) for other in ("P2C", "Random")], suffix)
    return found


def _sal_claims() -> tuple[Printed, ...]:
    cause = "requests differ in tokens, and SAL counts tokens (all requests equal)"
    return tuple(
        Printed(
            figure,
            f"{text}, next best over SAL",
            f"{low} to {high}",
            low,
            high,
            control=Control(cause, f"{figure}, {_EQUAL}") if low > 1 else None,
        )
        for figure, (text, low, high) in _SAL_PRINTED.items()
    )


_SAL_SETTING = (
    f"SAL, P2C and Random before engines with LARRY's order; arrivals as in row 21, at {NEAR[0]:g} of saturation, "
    f"{EACH:,} requests an engine (the control's {FEWER:,}), reports every 100 ms"
)


def _sal_row(id: str, about: str, panel: str, model: Platform, engines: int, name: str, seconds: float) -> PanelRow:
    """Return the row of SAL on so many engines, with requests of these lengths."""
    return row(
        id=id,
        about=about,
        panel=panel,
        platform=attrs.evolve(model, workers=engines),
        setting=_SAL_SETTING if id == "23" else "as row 23",
        claims=_sal_claims(),
        note="not explained" if id == "23" else "",
        seconds=seconds,
    )(partial(_balanced, name))


SAL_4 = _sal_row("23", "SAL on 4 engines of 70B, chat", "Fig. 10, SW-Chat", H100, 4, CHAT, seconds=15)
SAL_8 = _sal_row("23b", "SAL on 8 engines of 8B, chat", "Fig. 11, SW-Chat", A100, 8, CHAT, seconds=22)
SAL_4_CODE = _sal_row("23c", "SAL on 4 engines of 70B, code", "Fig. 10, SW-Code", H100, 4, CODE, seconds=10)
SAL_8_CODE = _sal_row("23d", "SAL on 8 engines of 8B, code", "Fig. 11, SW-Code", A100, 8, CODE, seconds=15)


@row(
    id="66",
    about="SAL's equation 2 as printed",
    paper="fairsched",
    panel="SAL's equation 2",
    platform=Platform(A100.model, 4, step_tokens=STEP_TOKENS),
    setting="as row 23, four of 8B, 500 requests an engine; SAL as printed and corrected",
    claims=tuple(
        more(figure, f"{text}, as printed over corrected", "worse (our reading)")
        for figure, (text, _, _) in _SAL_PRINTED.items()
    ),
    note="as printed the deficit of memory is multiplied by what a finished token frees, where it has to be divided",
    seconds=3,
)
def sal_printed(on: Platform, seed: int) -> Figures:
    """Return the equation as printed over the corrected one."""
    (jobs,) = loaded(CHAT, on, seed, FEWER * on.workers, NEAR)
    return gains(_routed(jobs, on, "SAL"), [_routed(jobs, on, "SAL as printed")])


PANELS = (
    Panel("Figs 7 and 8", "LARRY against the baselines, chat and code, 70B and 8B", ("21", "21b", "21c", "21d", "21e")),
    Panel("Fig. 9", "alpha of 1, 500 and 1,000", ("22", "22b")),
    Panel("Figs 10 and 11", "SAL against P2C and Random, four of 70B and eight of 8B", ("23", "23b", "23c", "23d")),
    Panel("Figs 1, 3 and 4 to 6", "drawings and the workload", impossible="no results"),
    Panel("Fig. 2", "tokens a second by batch size", impossible="input: the latency model of the machine"),
)
