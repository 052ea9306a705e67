"""What Preble's rows run: its five workloads at the paper's rates, the two systems, and the figures of a run."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from fairsched.engines.analysis import Measures
from fairsched.engines.workloads.sampling import EMPTY_TEXT, streams
from fairsched.model.request import Client, Workload
from fairsched.reproduce.row import Platform
from fairsched.reproduce.runs import measured, run, workload

ROBIN, PREBLE = ("lpm", "round-robin"), ("preble", "e2")
"""The baseline and Preble, each a policy at the workers and a router."""
OPTIMISTIC: Mapping[str, object] = {"reserve": "optimistic"}
"""SGLang and Preble keep no memory for outputs to come."""
STEADY = "steady"
"""The requests of a run that are counted: all but those of its first third, since the paper measures stable runs."""
SHORT_S, LONG_S = 120, 300
"""Seconds in which requests come: tools and steps, of which many come in a second, and all else (as in the code)."""
A6000 = "mistral-7b-a6000"
TWO, FOUR = Platform(A6000, 2), Platform(A6000, 4)
H100 = Platform("llama-3-70b-fp8-h100-tp4", 2)

NO_SHARING = "prompts share prefixes"
"""The cause that the paper names, and what the controls take away."""

Made = Callable[[Platform, int, float], Workload]
"""A workload for a platform, a seed and a rate."""


# --- workloads --------------------------------------------------------------------------------------------------------


def _asked(name: str, documents: int, seconds: int) -> Made:
    """Questions about so many documents for each worker, over so many seconds."""

    def made(on: Platform, seed: int, rps: float) -> Workload:
        about = documents * on.workers
        requests = max(round(rps * seconds), about)
        return workload(name, on=on, seed=seed, rate=rps, documents=about, requests=requests, live=None, zipf=0)

    return made


def _agent(on: Platform, seed: int, rps: float) -> Workload:
    """100 open tasks for each worker, whose steps come at the rate together."""
    tasks = 100 * on.workers
    steps = round(rps * SHORT_S / tasks)
    return workload("agent", on=on, seed=seed, rate=rps * steps, tasks=tasks, steps=steps, think_s=tasks / rps)


def _programming(on: Platform, seed: int, rps: float) -> Workload:
    """80 problems for each worker, whose samples come in random order and are cut at 512 tokens."""
    problems = 80 * on.workers
    samples = round(rps * LONG_S / problems)
    chosen: dict[str, Any] = {"problems": problems, "samples": samples, "sent": "apart", "max_output_tokens": 512}
    return workload("programming", on=on, seed=seed, rate=rps, **chosen)


WORKLOADS: dict[str, Made] = {
    "toolbench": _asked("toolbench", 100, SHORT_S),
    "agent": _agent,
    "programming": _programming,
    "video-qa": _asked("video-qa", 50, LONG_S),
    "loogle": _asked("loogle", 12, LONG_S),
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


def steady(jobs: Workload) -> Workload:
    """Return the workload with two clients, by whether a request is due in the first third of its requests.

    The systems here know no clients; their figures leave out the first.  A call is due when it would come if the calls
    before it took no time.
    """
    due: dict[int, int] = {}
    for job in jobs.jobs:
        due[job.request.id] = job.think_ns + max((due[one] for one in job.after), default=job.request.arrival_ns)
    begun = sorted(due.values())[len(due) // 3]
    made = [replace(job, request=replace(job.request, client=int(due[job.request.id] >= begun))) for job in jobs.jobs]
    return replace(jobs, jobs=tuple(made), clients=(Client(0, "first"), Client(1, STEADY)))


# --- latencies --------------------------------------------------------------------------------------------------------


def run_steady(jobs: Workload, on: Platform, system: tuple[str, str], **routing: object) -> Measures:
    """Return the figures of the requests that come when the caches have filled."""
    policy, router = system
    return run(steady(jobs), policy, router, on=on, params=OPTIMISTIC, routing=routing).clients[STEADY]


def mean_s(found: Measures) -> float:
    """Return the mean latency in seconds."""
    return measured(found.latency_us.mean, "mean latency") / 1e6


def p99_s(found: Measures) -> float:
    """Return the 99th percentile of latency in seconds."""
    return measured(found.latency_us.p99, "p99 latency") / 1e6


LATENCIES = (("mean", mean_s), ("p99", p99_s))


def ratios(jobs: Workload, on: Platform, robin: tuple[str, str] = ROBIN) -> dict[str, float]:
    """Mean and p99 latency of round robin over Preble's."""
    base, ours = run_steady(jobs, on, robin), run_steady(jobs, on, PREBLE)
    return {what: latency(base) / latency(ours) for what, latency in LATENCIES}
