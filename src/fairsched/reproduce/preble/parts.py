"""What each part of Preble is worth: its ablation (Fig. 5), the window, and autoscaling."""

from functools import partial

from msgspec.structs import replace

from fairsched.model.request import Workload
from fairsched.reproduce.preble.workloads import (
    FOUR,
    LATENCIES,
    NO_SHARING,
    PREBLE,
    ROBIN,
    TWO,
    run_steady,
    unshared,
)
from fairsched.reproduce.row import Claim, Control, Figures, Platform, Row
from fairsched.reproduce.runs import workload

# --- parts ------------------------------------------------------------------------------------------------------------

STEPS: tuple[tuple[str, tuple[str, str], dict[str, object]], ...] = (
    ("round robin", ROBIN, {}),
    ("E2", ("lpm", "e2"), {"rebalancing": "off", "scaling": "off", "decode_share_percent": 100}),
    ("rebalancing", ("lpm", "e2"), {"rebalancing": "per-source", "scaling": "on", "decode_share_percent": 100}),
    ("prefill-decode", ("lpm", "e2"), {"rebalancing": "per-source", "scaling": "on", "decode_share_percent": 70}),
    ("priority groups", PREBLE, {"rebalancing": "per-source", "scaling": "on", "decode_share_percent": 70}),
)
"""Fig. 5: each part beside those before it; SGLang's order at the workers until the last."""
BETTER = 14.5
"""No step is worth more than the whole is said to be."""


def _steps(*, controlled: bool) -> tuple[Claim, ...]:
    claims = []
    for step, _, _ in STEPS[1:]:
        for what, _ in LATENCIES:
            figure, about = f"{step} {what}", f"{what} latency without {step} over that with it"
            if step == "priority groups" and what == "mean":
                claims.append(Claim(figure, about, "no change", 1, 1, neutral=None))
            else:
                control = Control(NO_SHARING, f"{figure}, nothing shared") if controlled and step == "E2" else None
                claims.append(Claim(figure, about, "lower", 1.001, BETTER, 1.0, control))
    return tuple(claims)


def _ablation(jobs: Workload, on: Platform) -> dict[str, float]:
    figures: dict[str, float] = {}
    found = [run_steady(jobs, on, system, **routing) for _, system, routing in STEPS]
    for step, before, after in zip(STEPS[1:], found[:-1], found[1:], strict=True):
        figures |= {f"{step[0]} {what}": latency(before) / latency(after) for what, latency in LATENCIES}
    return figures


@partial(
    Row,
    id="30",
    about="what each part of Preble is worth",
    paper="preble",
    panel="Fig. 5",
    platform=FOUR,
    setting="round robin, then E2, rebalancing with autoscaling, prefill-decode balancing and priority groups, one by "
    "one; 640 tools, Zipf 1.1, 36 requests/s (the published code's); 90 s, of which the first third is not counted",
    claims=_steps(controlled=True),
    note="E2 alone spreads 640 tools evenly, so rebalancing and prefill-decode balancing find next to nothing to mend. "
    "Earlier runs of 10,000 requests about 60 tools had E2 alone behind round robin: the number of tools decides, "
    "which the text does not give",
    seconds=30,
)
def ablation(on: Platform, seed: int) -> Figures:
    """Latency before each step over that after it."""
    rps = 36
    jobs = workload("toolbench", on=on, seed=seed, rate=rps, documents=640, requests=rps * 90, zipf=1.1)
    alone = unshared(jobs, seed)
    robin, e2 = (run_steady(alone, on, system, **routing) for _, system, routing in STEPS[:2])
    control = {f"E2 {what}, nothing shared": latency(robin) / latency(e2) for what, latency in LATENCIES}
    return _ablation(jobs, on) | control


@partial(
    Row,
    id="30b",
    about="the same with few tools",
    paper="preble",
    panel="Fig. 5, other tools",
    platform=FOUR,
    setting="as row 30, with 60 tools, whose busiest has a quarter of all requests, at 90 % of the estimated "
    "saturation of each seed's workload",
    claims=_steps(controlled=False),
    note="runs of a minute, in which E2 alone is not yet behind round robin, as it is in runs of 10,000 requests: each "
    "of few tools is placed once, by the load of the first requests, fits into memory and never moves, so seeds differ "
    "by where the busiest tools fall, and rebalancing is worth much or nothing. Its control is that of row 30",
    seconds=35,
)
def few_tools(on: Platform, seed: int) -> Figures:
    """Latency before each step over that after it, where one tool is a worker's share of the load."""
    jobs = workload("toolbench", on=on, seed=seed, documents=60, requests=3_000, zipf=1.1)
    return _ablation(jobs, on)


def _surge(on: Platform, seed: int, *, zipf: float) -> Workload:
    """60 tools at 10 requests/s for 60 s, then 20 others at 30 requests/s for 90 s, as popular as Zipf's law says."""
    calm = workload("toolbench", on=on, seed=seed, rate=10, documents=60, requests=600, zipf=0)
    # A seed of its own, since equal seeds would give both the same tools.
    surge = workload("toolbench", on=on, seed=seed + 1_000, rate=30, documents=20, requests=2_700, zipf=zipf)
    first, begun_ns = len(calm.jobs), calm.jobs[-1].request.arrival_ns
    late = []
    for job in surge.jobs:
        number = first + job.request.id
        request = replace(job.request, id=number, arrival_ns=begun_ns + job.request.arrival_ns)
        late.append(replace(job, program=number, request=request))
    return replace(calm, jobs=(*calm.jobs, *late))


def _improves(figure: str, about: str, control: str | None = None) -> tuple[Claim, ...]:
    cause = "one prefix has most of the load"
    return tuple(
        Claim(
            f"{figure} {what}",
            f"{what} latency without {about} over that with it",
            "lower",
            1.001,
            BETTER,
            1.0,
            Control(cause, f"{control} {what}") if control else None,
        )
        for what, _ in LATENCIES
    )


@partial(
    Row,
    id="44",
    about="autoscaling when a prefix surges",
    paper="preble",
    panel="section 3.2, autoscaling",
    platform=FOUR,
    setting="E2 before LPM, H = 40 s: 60 tools at 10 requests/s for 60 s, then 20 others at 30 requests/s for 90 s, of "
    "which one has three in four, more than a worker serves; all but the first third of requests is counted",
    claims=(
        *_improves("alone", "autoscaling where nothing is rebalanced", "even"),
        *_improves("beside rebalancing", "autoscaling where rebalancing is on"),
    ),
    note="the paper has no figure of autoscaling alone: it acts where rebalancing leaves a load too high. Rebalancing "
    "redirects requests for a prefix as soon as loads are apart, which copies the prefix before its waits have doubled",
    seconds=10,
)
def autoscaling(on: Platform, seed: int) -> Figures:
    """Latency without autoscaling over that with it, without and with rebalancing, and where all tools are equal."""
    figures: dict[str, float] = {}
    for name, zipf, rebalancing in (
        ("alone", 2.5, "off"),
        ("beside rebalancing", 2.5, "per-source"),
        ("even", 0, "off"),
    ):
        jobs = _surge(on, seed, zipf=zipf)
        off, scaled = (
            run_steady(jobs, on, ("lpm", "e2"), window_us=40_000_000, rebalancing=rebalancing, scaling=scaling)
            for scaling in ("off", "on")
        )
        figures |= {f"{name} {what}": latency(off) / latency(scaled) for what, latency in LATENCIES}
    return figures


WINDOWS_S = (60, 180, 600)


@partial(
    Row,
    id="31",
    about="the window hardly matters",
    paper="preble",
    panel="text, window H",
    platform=TWO,
    setting="Preble with H of 60, 180 and 600 s; questions about long documents at 0.8 requests/s for 2,100 s, of "
    "which the first third is not counted; of 96 documents 12 are asked about at a time, so popularity moves on",
    claims=tuple(
        Claim(f"{what} {window}", f"{what} latency, H = {window} s over H = 180 s", "no effect", 0.9, 1.1, neutral=None)
        for window in (60, 600)
        for what, _ in LATENCIES
    ),
    note="the paper prints no size; the range is 10 %. Where popularity moves on a short window is worse here, and a "
    "window of 600 s better than the default; runs shorter than the window, as all were before, cannot show it",
    axes=("H in s", "latency in s"),
    seconds=20,
)
def window(on: Platform, seed: int) -> Figures:
    """Latency by window, over that at 180 s."""
    jobs = workload("loogle", on=on, seed=seed, rate=0.8, documents=96, requests=1_680, live=12, zipf=0)
    found = {one: run_steady(jobs, on, PREBLE, window_us=one * 1_000_000) for one in WINDOWS_S}
    ratios = {
        f"{what} {one}": latency(found[one]) / latency(found[180]) for one in (60, 600) for what, latency in LATENCIES
    }
    curves = {what: {float(one): latency(each) for one, each in found.items()} for what, latency in LATENCIES}
    return {**ratios, **curves}
