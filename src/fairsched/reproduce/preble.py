"""Preble: what sharing prefixes across GPUs is worth, by workload, GPUs and load, and what each of its parts is worth.

Source: Srivatsa et al., "Preble: Efficient Distributed Prompt Scheduling for LLM Serving" (ICLR'25): its text and its
published code, which says what the text leaves open.  Preble is E2 before workers with its local scheduler; the
baseline sends requests round robin to workers with SGLang's longest prefix match.  Rates are those of the paper's
axes, in requests a second.  A run asks about five minutes, as the code's do: so many tools, videos, documents and
problems for two GPUs, each asked about equally often and throughout, and twice as many for four.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from fairsched.engines.analysis import Run
from fairsched.engines.workloads.sampling import EMPTY_TEXT, streams
from fairsched.model.request import Workload
from fairsched.reproduce.row import Claim, Control, Figures, Panel, Platform, Row
from fairsched.reproduce.runs import measured, run, workload

ROBIN, PREBLE = ("lpm", "round-robin"), ("preble", "e2")
"""The baseline and Preble, each a policy at the workers and a router."""
OPTIMISTIC: Mapping[str, object] = {"reserve": "optimistic"}
"""SGLang and Preble keep no memory for outputs to come."""
RUN_S = 300
"""Seconds in which a run's requests come."""
A6000 = "mistral-7b-a6000"
TWO, FOUR = Platform(A6000, 2), Platform(A6000, 4)
H100 = Platform("llama-3-70b-fp8-h100-tp4", 2)

Made = Callable[[Platform, int, float, float], Workload]
"""A workload for a platform, a seed, a rate, and so many seconds of it."""


# --- workloads --------------------------------------------------------------------------------------------------------


def _asked(name: str, documents: int) -> Made:
    """Questions about so many documents for each worker."""

    def made(on: Platform, seed: int, rps: float, seconds: float) -> Workload:
        about = documents * on.workers
        requests = max(round(rps * seconds), about)
        return workload(name, on=on, seed=seed, rate=rps, documents=about, requests=requests, live=None, zipf=0)

    return made


def _agent(on: Platform, seed: int, rps: float, seconds: float) -> Workload:
    """100 open tasks for each worker, whose steps come at the rate together."""
    tasks = 100 * on.workers
    steps = max(round(rps * seconds / tasks), 2)
    return workload("agent", on=on, seed=seed, rate=rps * steps, tasks=tasks, steps=steps, think_s=tasks / rps)


def _programming(on: Platform, seed: int, rps: float, seconds: float) -> Workload:
    """80 problems for each worker, whose samples come in random order and are cut at 512 tokens."""
    problems = 80 * on.workers
    samples = max(round(rps * seconds / problems), 1)
    chosen: dict[str, Any] = {"problems": problems, "samples": samples, "sent": "apart", "max_output_tokens": 512}
    return workload("programming", on=on, seed=seed, rate=rps, **chosen)


WORKLOADS: dict[str, Made] = {
    "toolbench": _asked("toolbench", 100),
    "agent": _agent,
    "programming": _programming,
    "video-qa": _asked("video-qa", 50),
    "loogle": _asked("loogle", 12),
}
"""The five; facts of the code: 200 tools, 200 tasks, 160 problems, 100 videos or 24 documents for two GPUs."""
RATES: dict[str, tuple[float, ...]] = {
    "toolbench": (5, 10, 15),
    "agent": (5, 10, 15),
    "programming": (2, 3, 4),
    "video-qa": (2, 4, 6),
    "loogle": (0.25, 0.5, 1),
}
"""On two A6000: the axes of Fig. 3.  On four they reach twice as far."""
RATES_H100: dict[str, float] = {"toolbench": 15, "agent": 15, "programming": 5, "video-qa": 6, "loogle": 0.8}


def unshared(jobs: Workload, seed: int) -> Workload:
    """Return the workload with new tokens for every prompt, so that no two have a prefix in common."""
    _, tokens = streams(seed, 1_000)
    fresh = [EMPTY_TEXT.then(tokens.fresh(job.request.prompt_tokens)).prompt() for job in jobs.jobs]
    made = [replace(job, request=replace(job.request, prompt=own)) for job, own in zip(jobs.jobs, fresh, strict=True)]
    return replace(jobs, jobs=tuple(made))


# --- latencies --------------------------------------------------------------------------------------------------------


def _run(jobs: Workload, on: Platform, system: tuple[str, str], **routing: object) -> Run:
    policy, router = system
    return run(jobs, policy, router, on=on, params=OPTIMISTIC, routing=routing)


def _mean_s(result: Run) -> float:
    return measured(result.measures.latency_us.mean, "a mean latency") / 1e6


def _p99_s(result: Run) -> float:
    return measured(result.measures.latency_us.p99, "a p99 latency") / 1e6


def _ratios(jobs: Workload, on: Platform) -> tuple[float, float]:
    """Mean and p99 latency of round robin over Preble's."""
    robin, ours = _run(jobs, on, ROBIN), _run(jobs, on, PREBLE)
    return _mean_s(robin) / _mean_s(ours), _p99_s(robin) / _p99_s(ours)


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
        jobs = WORKLOADS[name](on, seed, rps, RUN_S)
        robin, ours = _run(jobs, on, ROBIN), _run(jobs, on, PREBLE)
        curves["round robin"][rps], curves["Preble"][rps] = _mean_s(robin), _mean_s(ours)
        figures[f"mean at {rps:g}"] = _mean_s(robin) / _mean_s(ours)
        figures[f"p99 at {rps:g}"] = _p99_s(robin) / _p99_s(ours)
    for what, alone in zip(("mean", "p99"), _ratios(unshared(jobs, seed), on), strict=True):
        figures[f"{what} at {rps:g}, nothing shared"] = alone
    return {**figures, **curves}


_sweep_row = partial(
    Row,
    paper="preble",
    platform=TWO,
    axes=("requests/s", "mean latency in s"),
)
IN_RUNS = "the rates of the paper's axis, arriving by a Poisson process for 300 s; "

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
    setting="as row 29, with 160 problems whose samples come in random order and are cut at 512 tokens",
    claims=_cells("programming", RATES["programming"]),
    seconds=5,
)
VIDEOS = _sweep_row(
    partial(_sweep, "video-qa"),
    id="29e",
    about="Preble against round robin: videos",
    panel="Fig. 3, video QA, 2 A6000",
    setting="as row 29, with 100 videos, all asked about throughout",
    claims=_cells("video-qa", RATES["video-qa"]),
    seconds=6,
)
DOCUMENTS = _sweep_row(
    partial(_sweep, "loogle"),
    id="29f",
    about="Preble against round robin: long documents",
    panel="Fig. 3, LooGLE, 2 A6000",
    setting="as row 29, with 24 documents, all asked about throughout",
    claims=_cells("loogle", RATES["loogle"]),
    seconds=2,
)

PANELS: tuple[Panel, ...] = ()
