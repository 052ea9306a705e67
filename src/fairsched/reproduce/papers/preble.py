"""Preble: what sharing prefixes across GPUs is worth, by workload, GPUs and load, and what each of its parts is worth.

Source: Srivatsa et al., "Preble: Efficient Distributed Prompt Scheduling for LLM Serving" (ICLR'25): its text and its
published code, which says what the text leaves open.  Preble is E2 before workers with its local scheduler; the
baseline sends requests round robin to workers with SGLang's longest prefix match.  As in the published configurations
(WukLab/preble) the baseline's steps prefill first and whole (no `chunk_prefill_budget`, at most the larger of a context
and a sixth of the memory), Preble's have 512 tokens, and a worker has 198,516 KV tokens.  Rates are those of the
paper's axes, in requests a second.  There are as many tools, tasks, videos, documents and problems as in the code,
each asked about equally often and throughout.

In order: the five workloads at the paper's rates and the two systems, latency over rate (Figs 3, 4 and 11), what each
part is worth (Fig. 5, the window, autoscaling), and the appendix (Figs 13 to 17).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from statistics import fmean
from typing import Any, ClassVar, Literal

import attrs
from msgspec.structs import replace

from fairsched.engines.analysis import Measures
from fairsched.engines.workloads.sampling import EMPTY_TEXT, streams
from fairsched.model.decision import WorkerLoad
from fairsched.model.prefix_cache import IndexMatch
from fairsched.model.request import Client, Prompt, Workload
from fairsched.policies.base import AnyClusterPolicy
from fairsched.policies.batching import Chunked, EagerPrefill
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES
from fairsched.policies.routers.e2 import E2, Choice, E2State
from fairsched.reproduce.row import Control, Figures, Panel, PanelRow, Platform, Printed, more, number, rows_of
from fairsched.reproduce.runs import NO_SHARING, measured, run, workload

row = rows_of("preble")


@attrs.frozen
class PrebleSystem:
    """A system of the evaluation: an order at the workers, whether steps chunk prompts or prefill first, a router."""

    order: Literal["fcfs", "lpm", "preble"]
    router: str | AnyClusterPolicy
    chunked: bool = True

    def policy(self, on: Platform) -> ComposedPolicy:
        """Return the workers' policy; no system keeps memory for outputs to come."""
        budget = max(CONTEXT, on.kv_tokens // 6)
        batching = (
            Chunked(max_batched_tokens=CHUNK, reserve="optimistic")
            if self.chunked
            else EagerPrefill(max_batched_tokens=budget, reserve="optimistic")
        )
        made = LOCAL_POLICIES[self.order]
        assert isinstance(made, ComposedPolicy)
        return attrs.evolve(made, batching=batching)


CHUNK, CONTEXT, KV_TOKENS = 512, 32_768, 198_516
"""Preble's `chunk_prefill_budget`, Mistral's context and `max_tokens_gpu` in the published code."""
ROBIN, PREBLE = PrebleSystem("lpm", "round-robin", chunked=False), PrebleSystem("preble", "e2")
"""The baseline and Preble."""
E2_ALONE = PrebleSystem("lpm", "e2")
STEADY = "steady"
"""The requests of a run that are counted: all but those of its first third, since the paper measures stable runs."""
SHORT_S, LONG_S = 120, 300
"""Seconds in which requests come: tools and steps, of which many come in a second, and all else (as in the code)."""
A6000 = "mistral-7b-a6000"
TWO, FOUR = Platform(A6000, 2, KV_TOKENS), Platform(A6000, 4, KV_TOKENS)
H100 = Platform("llama-3-70b-h100-tp4", 2, 305_000)
"""Weights in 16 bits, as the published server has no other, with its `mem_fraction_static` of 0.75."""

Made = Callable[[Platform, int, float], Workload]
"""A workload for a platform, a seed and a rate."""


# --- workloads --------------------------------------------------------------------------------------------------------


def _asked(name: str, documents: int, seconds: int) -> Made:
    """Return questions about so many documents for each worker, over so many seconds."""

    def made(on: Platform, seed: int, rps: float) -> Workload:
        about = documents * on.workers
        requests = max(round(rps * seconds), about)
        return workload(name, on=on, seed=seed, rate=rps, documents=about, requests=requests, live=None, zipf=0)

    return made


def _agent(on: Platform, seed: int, rps: float) -> Workload:
    """Make 100 open tasks for each worker, whose steps come at the rate together."""
    tasks = 100 * on.workers
    steps = round(rps * SHORT_S / tasks)
    return workload("agent", on=on, seed=seed, rate=rps * steps, tasks=tasks, steps=steps, think_s=tasks / rps)


def _programming(on: Platform, seed: int, rps: float) -> Workload:
    """Make 80 problems for each worker, whose samples come in random order and are cut at 512 tokens."""
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


def run_steady(jobs: Workload, on: Platform, system: PrebleSystem, **routing: object) -> Measures:
    """Return the figures of the requests that come when the caches have filled."""
    return run(steady(jobs), system.policy(on), system.router, on=on, routing=routing).clients[STEADY]


def mean_s(found: Measures) -> float:
    """Return the mean latency in seconds."""
    return measured(found.latency_us.mean, "mean latency") / 1e6


def p99_s(found: Measures) -> float:
    """Return the 99th percentile of latency in seconds."""
    return measured(found.latency_us.p99, "p99 latency") / 1e6


LATENCIES = (("mean", mean_s), ("p99", p99_s))


def ratios(jobs: Workload, on: Platform, robin: PrebleSystem = ROBIN) -> dict[str, float]:
    """Mean and p99 latency of round robin over Preble's."""
    base, ours = run_steady(jobs, on, robin), run_steady(jobs, on, PREBLE)
    return {what: latency(base) / latency(ours) for what, latency in LATENCIES}


Size = tuple[str, float, float]
"""What is printed, and its range."""
MEAN: Size = ("1.5 to 14.5 times", 1.5, 14.5)
P99: Size = ("2 to 10 times", 2, 10)
BOTH = (MEAN, P99)
PROGRAMMING = (("1.56 to 1.8 times", 1.56, 1.8), ("3 to 4 times", 3, 4))


def _cells(name: str, rates: tuple[float, ...]) -> tuple[Printed, ...]:
    """Return the printed range at the highest rate, there nothing without shared prefixes, and no lower rate that is
    worse."""
    found = []
    for what, (printed, low, high) in zip(("mean", "p99"), PROGRAMMING if name == "programming" else BOTH, strict=True):
        for rps in rates[:-1]:
            found.append(
                Printed(f"{what} at {rps:g}", f"{what} latency, {rps:g} requests/s", f"up to {high:g} times", 1, high)
            )
        top = f"{what} at {rates[-1]:g}"
        control = Control(NO_SHARING, f"{top}, nothing shared")
        found.append(Printed(top, f"{what} latency, {rates[-1]:g} requests/s", printed, low, high, 1.0, control))
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


def _swept(name: str, id: str, what: str, panel: str, setting: str, seconds: float, note: str = "") -> PanelRow:
    """The row of a workload over its rates on two GPUs."""
    return row(
        id=id,
        about=f"Preble against round robin: {what}",
        panel=f"Fig. 3, {panel}, 2 A6000",
        platform=TWO,
        setting=setting,
        claims=_cells(name, RATES[name]),
        note=note,
        seconds=seconds,
        quick=seconds < 5,
        axes=("requests/s", "mean latency in s"),
    )(partial(_sweep, name))


TOOLBENCH = _swept(
    "toolbench",
    "29",
    "tools",
    "tool use",
    "Preble (E2 and its local scheduler) against round robin before LPM; rates of the paper's axis, Poisson arrivals "
    "for 120 s, the first third not counted; 200 tools asked for equally often",
    seconds=15,
)
AGENT = _swept(
    "agent",
    "29c",
    "embodied agents",
    "embodied agent",
    "as row 29, with 200 tasks open throughout, whose next step is sent when the one before has finished",
    seconds=15,
)
PROGRAMS = _swept(
    "programming",
    "29d",
    "programs",
    "programming",
    "as row 29, with 160 problems for 300 s, whose samples come in random order and are cut at 512 tokens",
    seconds=5,
    note="a problem computed twice costs 0.13 s for all its samples, of which each decodes for seconds; the paper's "
    "axis, up to 150 s of mean latency at 4 requests/s, is an overload, and this worker's is not. Tried: samples sent "
    "together (0.86 to 0.91), twice the rate (0.95 to 1.04), trees of dependent calls (0.75 to 0.94)",
)
VIDEOS = _swept(
    "video-qa", "29e", "videos", "video QA", "as row 29, with 100 videos for 300 s, all asked about throughout", 6
)
DOCUMENTS = _swept(
    "loogle", "29f", "long documents", "LooGLE", "as row 29, with 24 documents for 300 s, all asked about throughout", 2
)


# --- more GPUs, real arrivals, another backend ------------------------------------------------------------------------


def _all(similar: bool) -> tuple[Printed, ...]:
    claims = []
    for name in WORKLOADS:
        for what, (printed, low, high) in zip(
            ("mean", "p99"), PROGRAMMING if name == "programming" else BOTH, strict=True
        ):
            claims.append(Printed(f"{name} {what}", f"{name}, {what} latency", printed, low, high))
        if similar:
            about = f"{name}, Preble's mean latency on 4 GPUs over that on 2 at half the rate"
            claims.append(number(f"{name} scaled", about, "similar", 1, neutral=None))
    return tuple(claims)


@row(
    id="29b",
    about="Preble against round robin on four GPUs",
    panel="Fig. 3, 4 A6000, and its text",
    platform=FOUR,
    setting="as rows 29 and 29c to 29f, at the end of the paper's axes for four GPUs, with twice the documents; and "
    "against two GPUs at half the rate",
    claims=_all(similar=True),
    seconds=35,
)
def four_gpus(on: Platform, seed: int) -> Figures:
    """Compare both systems over the rates, and without shared prefixes at the highest."""
    figures: dict[str, float] = {}
    for name, made in WORKLOADS.items():
        rps = RATES[name][-1]
        jobs = made(on, seed, 2 * rps)
        robin, ours = run_steady(jobs, on, ROBIN), run_steady(jobs, on, PREBLE)
        half = run_steady(made(TWO, seed, rps), TWO, PREBLE)
        figures |= {f"{name} {what}": latency(robin) / latency(ours) for what, latency in LATENCIES}
        figures[f"{name} scaled"] = mean_s(ours) / mean_s(half)
    return figures


@row(
    id="29g",
    about="Preble against round robin with Llama-3-70B",
    panel="Fig. 3, 8 H100",
    platform=H100,
    setting="as rows 29 and 29c to 29f, on two workers of four H100, at the end of the paper's axes",
    claims=_all(similar=False),
    note="the paper does not say how many documents these runs ask about",
    seconds=30,
)
def eight_h100(on: Platform, seed: int) -> Figures:
    """Return ratios on two workers of four H100."""
    figures: dict[str, float] = {}
    for name, rps in RATES_H100.items():
        found = ratios(WORKLOADS[name](on, seed, rps), on)
        figures |= {f"{name} {what}": ratio for what, ratio in found.items()}
    return figures


AZURE_RPS = 8.1
"""Requests a second of Azure's two traces together, measured: 5.53 of conversations and 2.57 of code."""


@row(
    id="42",
    about="tools and videos mixed, arriving as Azure's requests do",
    panel="Fig. 4",
    platform=FOUR,
    setting="four of five requests call one of 400 tools, the others ask about one of 200 videos (the published "
    "code's mix); a generator's arrivals, fitted to Azure's conversations, at the 8.1 requests/s of its two traces; "
    "300 s, the first third not counted; prompts are not chunked",
    claims=tuple(
        number(what, about, f"{size:g} times", size, 1.0, Control(NO_SHARING, f"{what}, nothing shared"))
        for what, about, size in (
            ("mean", "mean latency", 6.02),
            ("p99", "p99 latency", 4.61),
            ("tpot", "mean time per output token", 5.60),
            ("ttft", "mean time to the first token", 2.42),
        )
    ),
    note="sizes are read from the figure's layout. Why less is gained than printed is not explained",
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
        robin, ours = run_steady(given, on, ROBIN), run_steady(given, on, attrs.evolve(PREBLE, chunked=False))
        figures |= {f"{what}{suffix}": latency(robin) / latency(ours) for what, latency in LATENCIES}
        for what in ("ttft", "tpot"):
            ratio = [measured(getattr(one, f"{what}_us").mean, what) for one in (robin, ours)]
            figures[f"{what}{suffix}"] = ratio[0] / ratio[1]
    return figures


@row(
    id="43",
    about="Preble against vLLM's queue",
    panel="Fig. 11",
    platform=TWO,
    setting="as row 29e, before workers that serve in order of arrival, as vLLM's do",
    claims=tuple(
        Printed(
            f"{what} at {rps:g}", f"{what} latency, {rps:g} requests/s", "lower, by less than before SGLang", 1, high
        )
        for what, high in (("mean", 14.5), ("p99", 10.0))
        for rps in RATES["video-qa"]
    ),
    note="in order of arrival a worker's cache turns over between two questions about a video, and round robin has "
    "next to no hits. The paper puts its smaller gain down to vLLM's kernels, prefix cache and scheduling delay, "
    "which are not simulated; the range is that before SGLang",
    seconds=6,
)
def against_vllm(on: Platform, seed: int) -> Figures:
    """Return ratios of latency at the three rates."""
    return {
        f"{what} at {rps:g}": ratio
        for rps in RATES["video-qa"]
        for what, ratio in ratios(
            WORKLOADS["video-qa"](on, seed, rps), on, PrebleSystem("fcfs", "round-robin", chunked=False)
        ).items()
    }


# --- parts ------------------------------------------------------------------------------------------------------------

STEPS: tuple[tuple[str, PrebleSystem, dict[str, object]], ...] = (
    ("round robin", ROBIN, {}),
    ("E2", E2_ALONE, {"rebalancing": "off", "scaling": "off", "decode_share_percent": 100}),
    ("rebalancing", E2_ALONE, {"rebalancing": "per-source", "scaling": "on", "decode_share_percent": 100}),
    ("prefill-decode", E2_ALONE, {"rebalancing": "per-source", "scaling": "on", "decode_share_percent": 70}),
    ("priority groups", PREBLE, {"rebalancing": "per-source", "scaling": "on", "decode_share_percent": 70}),
)
"""Fig. 5: each part beside those before it; SGLang's order at the workers until the last."""
BETTER = 14.5
"""No step is worth more than the whole is said to be."""


def _steps(*, controlled: bool) -> tuple[Printed, ...]:
    claims = []
    for step, _, _ in STEPS[1:]:
        for what, _ in LATENCIES:
            figure, about = f"{step} {what}", f"{what} latency without {step} over that with it"
            if step == "priority groups" and what == "mean":
                claims.append(number(figure, about, "no change", 1, neutral=None))
            else:
                control = Control(NO_SHARING, f"{figure}, nothing shared") if controlled and step == "E2" else None
                claims.append(Printed(figure, about, "lower", 1.001, BETTER, 1.0, control))
    return tuple(claims)


def _ablation(jobs: Workload, on: Platform) -> dict[str, float]:
    figures: dict[str, float] = {}
    found = [run_steady(jobs, on, system, **routing) for _, system, routing in STEPS]
    for step, before, after in zip(STEPS[1:], found[:-1], found[1:], strict=True):
        figures |= {f"{step[0]} {what}": latency(before) / latency(after) for what, latency in LATENCIES}
    return figures


@row(
    id="30",
    about="what each part of Preble is worth",
    panel="Fig. 5",
    platform=FOUR,
    setting="round robin, then E2, rebalancing with autoscaling, prefill-decode balancing and priority groups, one "
    "by one; 640 tools, Zipf 1.1, 36 requests/s (the published code's); 90 s, the first third not counted",
    claims=_steps(controlled=True),
    note="E2 alone spreads 640 tools evenly, which leaves the other parts next to nothing to mend; the text does not "
    "give the number of tools, which decides (row 30b)",
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


@row(
    id="30b",
    about="the same with few tools",
    panel="Fig. 5, other tools",
    platform=FOUR,
    setting="as row 30, with 60 tools, whose busiest has a quarter of all requests, at 90 % of each seed's estimated "
    "saturation",
    claims=_steps(controlled=False),
    note="each of few tools is placed once, by the load of the first requests, fits into memory and never moves: "
    "seeds differ by where the busiest fall, and rebalancing is worth much or nothing",
    seconds=35,
)
def few_tools(on: Platform, seed: int) -> Figures:
    """Latency before each step over that after it, where one tool is a worker's share of the load."""
    jobs = workload("toolbench", on=on, seed=seed, documents=60, requests=3_000, zipf=1.1)
    return _ablation(jobs, on)


def _surge(on: Platform, seed: int, *, zipf: float) -> Workload:
    """Send 60 tools at 10 requests/s for 60 s, then 20 others at 30 requests/s for 90 s, as popular as Zipf's law
    says."""
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


def _improves(figure: str, about: str, control: str | None = None) -> tuple[Printed, ...]:
    cause = "one prefix has most of the load"
    return tuple(
        Printed(
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


@row(
    id="44",
    about="autoscaling when a prefix surges",
    panel="section 3.2, autoscaling",
    platform=FOUR,
    setting="E2 before LPM, H = 40 s: 60 tools at 10 requests/s for 60 s, then 20 others at 30 requests/s for 90 s, "
    "of which one has three in four, more than a worker serves; the first third of requests is not counted",
    claims=(
        *_improves("alone", "autoscaling where nothing is rebalanced", "even"),
        *_improves("beside rebalancing", "autoscaling where rebalancing is on"),
    ),
    note="rebalancing redirects requests for a prefix as soon as loads are apart, and so copies it before its waits "
    "have doubled. The paper has no figure of autoscaling alone",
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
            run_steady(jobs, on, E2_ALONE, window_us=40_000_000, rebalancing=rebalancing, scaling=scaling)
            for scaling in ("off", "on")
        )
        figures |= {f"{name} {what}": latency(off) / latency(scaled) for what, latency in LATENCIES}
    return figures


WINDOWS_S = (60, 180, 600)


@row(
    id="31",
    about="the window hardly matters",
    panel="text, window H",
    platform=TWO,
    setting="H of 60, 180 and 600 s; questions about long documents at 0.8 requests/s for 2,100 s, the first third "
    "not counted; of 96 documents 12 are asked about at a time, so popularity moves on",
    claims=tuple(
        Printed(
            f"{what} {window}", f"{what} latency, H = {window} s over H = 180 s", "no effect", 0.9, 1.1, neutral=None
        )
        for window in (60, 600)
        for what, _ in LATENCIES
    ),
    note="no size is printed, and 10 % is ours. Where popularity moves on a short window is worse",
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


# --- the appendix -----------------------------------------------------------------------------------------------------

MEMSERVE = PrebleSystem("lpm", "longest-prefix")
ORACLE = PrebleSystem("lpm", "oracle-partition")
NAMED = ("toolbench", "video-qa")
PAR = "better or on par"


def _appendix(on: Platform, seed: int, names: Iterable[str], system: PrebleSystem) -> Figures:
    """Return another system's mean latency over Preble's, by workload at the highest rate."""
    found = {}
    for name in names:
        jobs = WORKLOADS[name](on, seed, RATES[name][-1])
        found[name] = mean_s(run_steady(jobs, on, system)) / mean_s(run_steady(jobs, on, PREBLE))
    return found


@row(
    id="29h",
    about="Preble against MemServe's longest prefix match",
    panel="Fig. 13",
    platform=TWO,
    setting="as rows 29 and 29e at the highest rate; the longest cached prefix says where a request goes, whatever "
    "the load",
    claims=tuple(more(name, f"{name}: longest match's mean latency over Preble's") for name in NAMED),
    seconds=20,
)
def against_memserve(on: Platform, seed: int) -> Figures:
    """Return ratios of the two workloads of the figure."""
    return _appendix(on, seed, NAMED, MEMSERVE)


@attrs.frozen
class DynamicE2(E2):
    """E2 by the cluster's load: idle workers exploit nothing, half busy ones as E2, busy ones all that is cached."""

    name: ClassVar[str] = "e2-dynamic"

    def choose(self, state: E2State, prompt: Prompt, match: IndexMatch, workers: Sequence[WorkerLoad]) -> Choice:
        loads = self.case(state, prompt, match, workers).loads
        busy = 100 * sum(loads) // (len(loads) * self.window_us * 1_000)
        now = attrs.evolve(self, exploit_percent=max(100 - busy, 0))
        return E2.choose(now, state, prompt, match, workers)


@row(
    id="29j",
    about="Preble against E2 by the cluster's load",
    panel="Fig. 16",
    platform=TWO,
    setting="as row 29, over all rates; the share of a prompt that is to be cached for it to be exploited falls from "
    "all to nothing as workers are busier through H",
    claims=(
        number("loogle", "loogle: latency by load over Preble's", "3 % more", 1.03),
        number("toolbench", "toolbench: latency by load over Preble's", "5.43 % more", 1.0543),
    ),
    note="how the paper's variant selects is not printed; five seeds are too few for 3 % on loogle",
    seconds=40,
)
def by_load(on: Platform, seed: int) -> Figures:
    """Return means over the rates."""
    found = {}
    for name in ("loogle", "toolbench"):
        ratios = []
        for rps in RATES[name]:
            jobs = WORKLOADS[name](on, seed, rps)
            dynamic = PrebleSystem("preble", DynamicE2())
            ratios.append(mean_s(run_steady(jobs, on, dynamic)) / mean_s(run_steady(jobs, on, PREBLE)))
        found[name] = fmean(ratios)
    return found


@row(
    id="29i",
    about="8 and 16 GPUs",
    panel="Figs 14 and 15",
    platform=Platform(A6000, 16, KV_TOKENS),
    setting="as row 29f, with rate and documents in proportion to the GPUs",
    claims=tuple(
        number(f"{count} GPUs", f"Preble's mean latency on {count} GPUs over that on 2", "linear", 1, neutral=None)
        for count in (8, 16)
    ),
    seconds=30,
)
def many_gpus(on: Platform, seed: int) -> Figures:
    """Return how latency changes where the load of a GPU does not."""
    found = {}
    for count in (2, 8, on.workers):
        few = attrs.evolve(on, workers=count)
        found[count] = mean_s(run_steady(WORKLOADS["loogle"](few, seed, 0.5 * count), few, PREBLE))
    return {f"{count} GPUs": latency / found[2] for count, latency in found.items()}


@row(
    id="29k",
    about="Preble against an oracle's partition",
    panel="Fig. 17",
    platform=TWO,
    setting="as rows 29 and 29c to 29f at the highest rate; prefixes are divided among the workers beforehand",
    claims=(
        *(
            Printed(name, f"{name}: the oracle's mean latency over Preble's", PAR, 0.8, inf, neutral=None)
            for name in ("toolbench", "agent", "loogle")
        ),
        *(more(name, f"{name}: the same", "better") for name in ("programming", "video-qa")),
    ),
    note="the paper's videos have more questions the longer they are; ours have equally many, which an oracle "
    "divides evenly",
    seconds=50,
)
def against_oracle(on: Platform, seed: int) -> Figures:
    """Return ratios of the five workloads."""
    return _appendix(on, seed, WORKLOADS, ORACLE)


PANELS: tuple[Panel, ...] = (
    Panel("Table 1, Fig. 6", "statistics of the five workloads", impossible="input: the generators are fitted to them"),
    Panel("Fig. 3, 2 A6000", "latency over rate, five workloads", rows=("29", "29c", "29d", "29e", "29f")),
    Panel("Fig. 3, 4 A6000", "the same on four GPUs, and latency that stays as rate and GPUs double", rows=("29b",)),
    Panel("Fig. 3, 8 H100", "the same with Llama-3-70B on two workers of four H100", rows=("29g",)),
    Panel("Fig. 4", "tools and videos mixed, arriving as Azure's requests do", rows=("42",)),
    Panel("Fig. 5", "what each part is worth", rows=("30", "30b")),
    Panel("section 3.2, autoscaling", "a prefix that is too much for one GPU gets another", rows=("44",)),
    Panel("section 3.2, window H", "results do not depend on the window", rows=("31",)),
    Panel(
        "section 4.4, global scheduler",
        "245 and 2,931 decisions a second",
        impossible="speed of the host that runs it; benchmarks/e2.py measures ours",
    ),
    Panel("Fig. 7", "times between arrivals and prompts by outputs in Azure's traces", impossible="input of row 42"),
    Panel(
        "Figs 9, 10", "prefill and decode time by length", impossible="input: the preset mistral-7b-a6000 is their fit"
    ),
    Panel("Fig. 11", "vLLM as the backend", rows=("43",)),
    Panel("Fig. 12", "a later version of SGLang", impossible="engine versions differ in kernels; as rows 29 and 29f"),
    Panel("Fig. 13", "MemServe's longest prefix match", rows=("29h",)),
    Panel("Figs 14, 15", "8 and 16 GPUs", rows=("29i",)),
    Panel("Fig. 16", "E2 by the cluster's load", rows=("29j",)),
    Panel("Fig. 17", "an oracle's partition", rows=("29k",)),
)
