"""SAL's choice of an engine against P2C and Random, before engines with LARRY's order."""

from collections.abc import Mapping, Sequence
from functools import partial

from fairsched.engines.simulation import NOTHING
from fairsched.model.request import Workload
from fairsched.reproduce.larry.loads import (
    A100,
    CHAT,
    CODE,
    FIGURES,
    LARRY,
    STAND_IN,
    STEP_TOKENS,
    equal_requests,
    loaded,
)
from fairsched.reproduce.row import Claim, Control, Figures, Platform, Row, more
from fairsched.reproduce.runs import measured, run

NEAR, BELOW_AND_NEAR = (0.9,), (0.7, 0.9)
"""Shares of saturation, which are ours."""
EACH, FEWER = 1_500, 500
"""Requests an engine; the lower is for controls and row 66."""
ROUTERS: dict[str, tuple[str, Mapping[str, object]]] = {
    "P2C": ("power-of-two", NOTHING),
    "Random": ("random", NOTHING),
    "SAL": ("sal", {"max_batched_tokens": STEP_TOKENS, "poll_us": 100_000}),
    "SAL as printed": ("sal-printed", {"max_batched_tokens": STEP_TOKENS, "poll_us": 100_000}),
}
_SAL_FIGURES = {name: FIGURES[name] for name in ("p50", "p95", "generation time")}
_SAL_PRINTED = {
    "p50": ("p50 of TTFT", 1.0, 1.5),
    "p95": ("p95 of TTFT", 1.2, 1.3),
    "generation time": ("TGT", 1.1, 1.3),
}
_EQUAL = "equal requests"


def _routed(jobs: Workload, on: Platform, name: str) -> dict[str, float]:
    router, params = ROUTERS[name]
    found = run(jobs, "larry", router, on=on, params=LARRY, routing=params).measures
    return {figure: measured(of(found), figure) for figure, of in _SAL_FIGURES.items()}


def _against_sal(jobs: Workload, on: Platform, others: Sequence[str], suffix: str) -> dict[str, float]:
    sal = _routed(jobs, on, "SAL")
    return {
        f"{other} {figure}{suffix}": value / sal[figure]
        for other in others
        for figure, value in _routed(jobs, on, other).items()
    }


def _balanced(name: str, loads: Sequence[float], on: Platform, seed: int) -> Figures:
    """P2C and Random over SAL at each load, and P2C near saturation without differences between requests."""
    figures: dict[str, float] = {}
    for load, jobs in zip(loads, loaded(name, on, seed, EACH * on.workers, loads), strict=True):
        figures |= _against_sal(jobs, on, ("P2C", "Random"), f" at {load}")
    (alike,) = loaded(name, on, seed, FEWER * on.workers, loads[-1:], equal_requests)
    return {**figures, **_against_sal(alike, on, ("P2C",), f", {_EQUAL}")}


def _sal_claims(loads: Sequence[float]) -> tuple[Claim, ...]:
    cause = "requests differ in tokens, and SAL counts tokens (all requests equal)"
    return tuple(
        Claim(
            f"{other} {figure} at {load}",
            f"{text}, {other} over SAL, at {load} of saturation",
            f"{low} to {high}",
            low,
            high,
            control=Control(cause, f"{other} {figure}, {_EQUAL}")
            if other == "P2C" and load == loads[-1] and low > 1
            else None,
        )
        for load in loads
        for other in ("P2C", "Random")
        for figure, (text, low, high) in _SAL_PRINTED.items()
    )


_SAL_SETTING = (
    "SAL, P2C and Random before engines with LARRY's order (alpha 1); {} lengths, Functions-like arrivals "
    "stretched to shares of each seed's saturation, {:,} requests an engine{}; reports every 100 ms"
)
_FEWER = f" (the control's {FEWER:,})"


def _sal_row(id: str, about: str, panel: str, model: str, engines: int, name: str, note: str, seconds: float) -> Row:
    """The row of SAL on so many engines, with requests of these lengths; row 23 alone has a load below the others'."""
    loads = BELOW_AND_NEAR if id == "23" else NEAR
    return Row(
        partial(_balanced, name, loads),
        id=id,
        about=about,
        paper="larry",
        panel=f"evaluation of SAL, {panel}",
        platform=Platform(model, engines, step_tokens=STEP_TOKENS),
        setting=_SAL_SETTING.format("code" if name == CODE else "chat", EACH, _FEWER),
        claims=_sal_claims(loads),
        note=note + STAND_IN,
        seconds=seconds,
    )


_LOADS_UNKNOWN = "The paper's loads are not known to us; row 23 has a lower one, too.  "
SAL_4 = _sal_row(
    "23",
    "SAL on 4 engines, chat",
    "4 servers",
    A100.model,
    4,
    CHAT,
    "At 0.7 of saturation SAL gains over both at p50 and over Random at the p95; P2C's p95 is SAL's.  At 0.9 no "
    "difference of p50 or p95 is certain.  Times of generation hardly differ.  The paper's loads are not known to "
    "us.  ",
    seconds=19,
)
SAL_8 = _sal_row(
    "23b",
    "SAL on 8 engines, chat",
    "8 servers",
    A100.model,
    8,
    CHAT,
    f"SAL gains over P2C at the p95, less than printed, and not with equal requests.  {_LOADS_UNKNOWN}",
    seconds=22,
)
SAL_CODE = _sal_row(
    "23c",
    "SAL on 4 engines, code",
    "code workload",
    A100.model,
    4,
    CODE,
    f"At p50 P2C and Random are better than SAL in every seed.  {_LOADS_UNKNOWN}",
    seconds=10,
)
SAL_70B = _sal_row(
    "23d",
    "SAL on 70B, TP4 x DP2",
    "70B on 8 H100",
    "llama-3-70b-fp8-h100-tp4",
    2,
    CHAT,
    f"Of two engines P2C draws both, so it is join-shortest-queue.  {_LOADS_UNKNOWN}",
    seconds=6,
)


@partial(
    Row,
    id="66",
    about="SAL's equation 2 as printed",
    paper="larry",
    panel="equation 2",
    platform=Platform(A100.model, 4, step_tokens=STEP_TOKENS),
    setting=_SAL_SETTING.format("chat", FEWER, "").replace("SAL, P2C and Random", "SAL as printed and corrected"),
    claims=tuple(
        more(f"SAL as printed {figure} at 0.9", f"{text}, as printed over corrected", "worse (our reading)")
        for figure, (text, _, _) in _SAL_PRINTED.items()
    ),
    note="As printed the deficit of memory is multiplied by what a finished token frees, where it has to be divided.  "
    + STAND_IN,
    seconds=3,
)
def sal_printed(on: Platform, seed: int) -> Figures:
    """The equation as printed over the corrected one."""
    (jobs,) = loaded(CHAT, on, seed, FEWER * on.workers, NEAR)
    return _against_sal(jobs, on, ("SAL as printed",), " at 0.9")
