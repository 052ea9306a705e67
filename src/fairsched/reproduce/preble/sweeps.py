"""Preble against round robin: latency over rate, by workload, GPUs, arrivals and backend (Figs 3, 4 and 11)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from fairsched.reproduce.preble.workloads import (
    FOUR,
    H100,
    LATENCIES,
    LONG_S,
    NO_SHARING,
    PREBLE,
    RATES,
    RATES_H100,
    ROBIN,
    TWO,
    WORKLOADS,
    mean_s,
    ratios,
    run_steady,
    unshared,
)
from fairsched.reproduce.row import Claim, Control, Figures, Platform, Row
from fairsched.reproduce.runs import measured, workload

Size = tuple[str, float, float]
"""What is printed, and its range."""
MEAN: Size = ("1.5 to 14.5 times", 1.5, 14.5)
P99: Size = ("2 to 10 times", 2, 10)
BOTH = (MEAN, P99)
PROGRAMMING = (("1.56 to 1.8 times", 1.56, 1.8), ("3 to 4 times", 3, 4))


def _cells(name: str, rates: tuple[float, ...]) -> tuple[Claim, ...]:
    """The printed range at the highest rate, there nothing without shared prefixes, and no lower rate that is worse."""
    found = []
    for what, (printed, low, high) in zip(("mean", "p99"), PROGRAMMING if name == "programming" else BOTH, strict=True):
        for rps in rates[:-1]:
            found.append(
                Claim(f"{what} at {rps:g}", f"{what} latency, {rps:g} requests/s", f"up to {high:g} times", 1, high)
            )
        top = f"{what} at {rates[-1]:g}"
        control = Control("prompts share prefixes", f"{top}, nothing shared")
        found.append(Claim(top, f"{what} latency, {rates[-1]:g} requests/s", printed, low, high, 1.0, control))
    return tuple(found)


def _sweep(name: str, on: Platform, seed: int) -> Figures:
    """Both systems over the rates, and without shared prefixes at the highest."""
    figures: dict[str, float | Mapping[float, float]] = {}
    curves: dict[str, dict[float, float]] = {"round robin": {}, "Preble": {}}
    for rps in RATES[name]:
        jobs = WORKLOADS[name](on, seed, rps)
        robin, ours = run_steady(jobs, on, ROBIN), run_steady(jobs, on, PREBLE)
        curves["round robin"][rps], curves["Preble"][rps] = mean_s(robin), mean_s(ours)
        figures |= {f"{what} at {rps:g}": latency(robin) / latency(ours) for what, latency in LATENCIES}
    for what, alone in ratios(unshared(jobs, seed), on).items():
        figures[f"{what} at {rps:g}, nothing shared"] = alone
    return {**figures, **curves}


_sweep_row = partial(
    Row,
    paper="preble",
    platform=TWO,
    axes=("requests/s", "mean latency in s"),
)
COUNTED = "of which the first third is not counted"
IN_RUNS = f"rates of the paper's axis, Poisson arrivals for 120 s, {COUNTED}; "

TOOLBENCH = _sweep_row(
    partial(_sweep, "toolbench"),
    id="29",
    about="Preble against round robin: tools",
    panel="Fig. 3, tool use, 2 A6000",
    setting="Preble (E2 and its local scheduler) against round robin before LPM; mean and p99 latency of requests; "
    + IN_RUNS
    + "200 tools asked for equally often",
    claims=_cells("toolbench", RATES["toolbench"]),
    seconds=15,
)
AGENT = _sweep_row(
    partial(_sweep, "agent"),
    id="29c",
    about="Preble against round robin: embodied agents",
    panel="Fig. 3, embodied agent, 2 A6000",
    setting="as row 29, with 200 tasks open throughout, whose next step is sent when the one before has finished",
    claims=_cells("agent", RATES["agent"]),
    seconds=15,
)
PROGRAMS = _sweep_row(
    partial(_sweep, "programming"),
    id="29d",
    about="Preble against round robin: programs",
    panel="Fig. 3, programming, 2 A6000",
    setting="as row 29, with 160 problems for 300 s, whose samples come in random order and are cut at 512 tokens",
    claims=_cells("programming", RATES["programming"]),
    note="two workers compute a problem twice, 1,100 tokens or 0.13 s more for all its samples, of which each decodes "
    "for seconds: there is little to gain. The simulated worker is far from the overload of the paper's axis (up to "
    "150 s of mean latency at 4 requests/s). Tried: samples sent together (0.86 to 0.91), twice the rate (0.95 to "
    "1.04), outputs that are not cut, steps of 512 tokens, and trees of dependent calls (0.75 to 0.94)",
    seconds=5,
)
VIDEOS = _sweep_row(
    partial(_sweep, "video-qa"),
    id="29e",
    about="Preble against round robin: videos",
    panel="Fig. 3, video QA, 2 A6000",
    setting="as row 29, with 100 videos for 300 s, all asked about throughout",
    claims=_cells("video-qa", RATES["video-qa"]),
    seconds=6,
)
DOCUMENTS = _sweep_row(
    partial(_sweep, "loogle"),
    id="29f",
    about="Preble against round robin: long documents",
    panel="Fig. 3, LooGLE, 2 A6000",
    setting="as row 29, with 24 documents for 300 s, all asked about throughout",
    claims=_cells("loogle", RATES["loogle"]),
    seconds=2,
    quick=True,
)


# --- more GPUs, real arrivals, another backend ------------------------------------------------------------------------


def _all(similar: bool) -> tuple[Claim, ...]:
    claims = []
    for name in WORKLOADS:
        for what, (printed, low, high) in zip(
            ("mean", "p99"), PROGRAMMING if name == "programming" else BOTH, strict=True
        ):
            claims.append(Claim(f"{name} {what}", f"{name}, {what} latency", printed, low, high))
        if similar:
            about = f"{name}, Preble's mean latency on 4 GPUs over that on 2 at half the rate"
            claims.append(Claim(f"{name} scaled", about, "similar", 1, 1, neutral=None))
    return tuple(claims)


@partial(
    Row,
    id="29b",
    about="Preble against round robin on four GPUs",
    paper="preble",
    panel="Fig. 3, 4 A6000, and its text",
    platform=FOUR,
    setting="as rows 29 and 29c to 29f, at the end of the paper's axes for four GPUs, with twice the documents; and "
    "Preble's mean latency against two GPUs at half the rate",
    claims=_all(similar=True),
    seconds=35,
)
def four_gpus(on: Platform, seed: int) -> Figures:
    """Ratios on four GPUs, and Preble's latency against that on two."""
    figures: dict[str, float] = {}
    for name, made in WORKLOADS.items():
        rps = RATES[name][-1]
        jobs = made(on, seed, 2 * rps)
        robin, ours = run_steady(jobs, on, ROBIN), run_steady(jobs, on, PREBLE)
        half = run_steady(made(TWO, seed, rps), TWO, PREBLE)
        figures |= {f"{name} {what}": latency(robin) / latency(ours) for what, latency in LATENCIES}
        figures[f"{name} scaled"] = mean_s(ours) / mean_s(half)
    return figures


@partial(
    Row,
    id="29g",
    about="Preble against round robin with Llama-3-70B",
    paper="preble",
    panel="Fig. 3, 8 H100",
    platform=H100,
    setting="as rows 29 and 29c to 29f, on two workers of four H100 each, at the end of the paper's axes",
    claims=_all(similar=False),
    note="665,000 KV tokens a worker hold all of the documents but the videos, so that round robin recomputes next to "
    "nothing, and an even load is all that helps; the paper says neither how many documents these runs ask about "
    "nor in how many bits the model is. Without shared prefixes: rows 29 to 29f",
    seconds=12,
)
def eight_h100(on: Platform, seed: int) -> Figures:
    """Ratios on two workers of four H100."""
    figures: dict[str, float] = {}
    for name, rps in RATES_H100.items():
        found = ratios(WORKLOADS[name](on, seed, rps), on)
        figures |= {f"{name} {what}": ratio for what, ratio in found.items()}
    return figures


AZURE_RPS = 8.1
"""Requests a second of Azure's two traces together, measured: 5.53 of conversations and 2.57 of code."""


@partial(
    Row,
    id="42",
    about="tools and videos mixed, arriving as Azure's requests do",
    paper="preble",
    panel="Fig. 4",
    platform=FOUR,
    setting="four of five requests call one of 400 tools, the others ask about one of 200 videos; arrivals fitted to "
    "Azure's conversations, at the 8.1 requests/s of its two traces; 300 s, of which the first third is not counted",
    claims=tuple(
        Claim(what, about, f"{size:g} times", size, size, 1.0, Control(NO_SHARING, f"{what}, nothing shared"))
        for what, about, size in (
            ("mean", "mean latency", 6.02),
            ("p99", "p99 latency", 4.61),
            ("tpot", "mean time per output token", 5.60),
            ("ttft", "mean time to the first token", 2.42),
        )
    ),
    note="the sizes are read from the figure's layout; the mix is the published code's; Azure's arrivals are a "
    "generator's, since the trace is not part of this project. At 12 and 16 requests/s both systems are overloaded by "
    "the videos, and the ratio of means falls to 1.4 and 1.5 (one seed)",
    seconds=6,
)
def azure(on: Platform, seed: int) -> Figures:
    """Four latencies of round robin over Preble's, with and without shared prefixes."""
    requests = round(AZURE_RPS * LONG_S)
    params: dict[str, Any] = {
        "toolbench.documents": 400,
        "toolbench.requests": requests * 4 // 5,
        "toolbench.zipf": 0,
        "video-qa.documents": 200,
        "video-qa.requests": requests // 5,
        "video-qa.live": None,
        "video-qa.zipf": 0,
    }
    parts = "toolbench+video-qa"
    jobs = workload("mixed", on=on, seed=seed, parts=parts, arrivals="azure", rate=AZURE_RPS, **params)
    figures: dict[str, float] = {}
    for given, suffix in ((jobs, ""), (unshared(jobs, seed), ", nothing shared")):
        robin, ours = run_steady(given, on, ROBIN), run_steady(given, on, PREBLE)
        figures |= {f"{what}{suffix}": latency(robin) / latency(ours) for what, latency in LATENCIES}
        for what in ("ttft", "tpot"):
            ratio = [measured(getattr(one, f"{what}_us").mean, what) for one in (robin, ours)]
            figures[f"{what}{suffix}"] = ratio[0] / ratio[1]
    return figures


@partial(
    Row,
    id="43",
    about="Preble against vLLM's queue",
    paper="preble",
    panel="Fig. 11",
    platform=TWO,
    setting="as row 29e, against round robin before workers that serve in order of arrival, as vLLM's do",
    claims=tuple(
        Claim(f"{what} at {rps:g}", f"{what} latency, {rps:g} requests/s", "lower, by less than before SGLang", 1, high)
        for what, high in (("mean", 14.5), ("p99", 10.0))
        for rps in RATES["video-qa"]
    ),
    note="the paper prints no sizes but those before SGLang, which are the range, and puts the smaller gain down to "
    "vLLM's kernels, prefix cache and scheduling delay, which are not simulated. In order of arrival every worker's "
    "cache turns over between two questions about a video, and round robin has next to no hits",
    seconds=6,
)
def against_vllm(on: Platform, seed: int) -> Figures:
    """Ratios of latency at the three rates."""
    return {
        f"{what} at {rps:g}": ratio
        for rps in RATES["video-qa"]
        for what, ratio in ratios(WORKLOADS["video-qa"](on, seed, rps), on, ("fcfs", "round-robin")).items()
    }
