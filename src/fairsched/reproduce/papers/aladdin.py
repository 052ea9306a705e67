"""Aladdin: workers that it takes to keep every request's targets, against routers that do not look at requests.

Source: "Aladdin: Joint Placement and Scaling for SLO-Aware LLM Serving", sections 4 and 6.  Engines are vLLM; Llama-2
13B on an A100 is here OPT-13B by vLLM's published profile, which has the same size, layers and KV, and whose times are
those that the paper's targets are made of: a prompt of 4,096 tokens takes 0.6 s, and a token alone 30 ms / 1.3.  Other
machines are by formula.  The testbed's A100 are on PCIe: a worker of several has `pcie-4`'s all-reduces.

ShareGPT and the outputs of Llama-2 on its prompts are not at hand.  Lengths are log-normal: prompts with the mean that
the vLLM paper prints, 161 tokens, a coefficient of variation of ours, 1.5, and cut at 1,024 as vLLM's benchmark does;
outputs with the mean of the vLLM paper, 338, and the median that TetriInfer prints of ShareGPT's answers, 128, which
leave no freedom, cut at the paper's limit of 2,048.  One in ten is of 21 tokens or fewer.  An output is foreseen as the
paper does, by the mean of those of such prompts, which is the same for all here since outputs are independent.
"""

from functools import lru_cache

import attrs
import numpy as np

from fairsched.engines.analysis import Measures
from fairsched.engines.calibration import asked, fit_performance
from fairsched.engines.capacity import fewest, line, measured
from fairsched.engines.capacity.search import decode_only
from fairsched.engines.simulation import Cluster, RunSpec
from fairsched.engines.workloads.sampling import arrivals_ns, lengths
from fairsched.model.machine import LINKS, PRESETS, LatencyModel, Link, gpu_of, preset
from fairsched.model.request import Client, Job, Prompt, Request, Slo, Workload
from fairsched.policies.base import AnyClusterPolicy
from fairsched.policies.batching import EagerPrefill
from fairsched.policies.catalog import FCFS
from fairsched.policies.placement import Aladdin, Demand, Size, size_figures
from fairsched.policies.registry import ROUTERS
from fairsched.reproduce import runs
from fairsched.reproduce.row import Control, Figures, Panel, Platform, Printed, fewer, number, rows_of

ON_A100 = Platform("opt-13b-a100-vllm")
row = rows_of("aladdin", ON_A100)
TARGETS_MS = {
    "70B A100": (1_600, 75),
    "13B A100": (600, 30),
    "7B A100": (400, 15),
    "13B V100": (800, 50),
    "7B V100": (800, 30),
}
"""Milliseconds to the first token and for each further one, of the paper's Table 2."""
CLIENTS, PROMPT_MAX, OUTPUT_MAX = 8, 1_024, 2_048
PROMPT_MEAN, OUTPUT_MEAN, OUTPUT_MEDIAN = 161.31, 337.99, 128
SPAN_S = 30
"""Arrivals last so long in each run."""
LOCAL = FCFS(batching=EagerPrefill(max_batched_tokens=2_048, max_running=256, reserve="optimistic"))
"""The engine of the paper: new prompts first, whole, and outputs grow into free memory."""
JSQ, P2C = "join-shortest-queue", "power-of-two"
THETAS = (90, 80, 70, 60, 50)
"""Percent; the paper has theta "adapt to the prediction error", and prints none."""
WORKERS_MAX = 64
"""A router that does not keep all targets with so many counts as if it did."""
DGX = Link("dgx", 60_000, 185_800 * 10**6, "as `pcie-4`, of four A100 with NVLink (a100_dgx)")
LAYERS, ACTIVATION_BYTES = 40, 2 * 5_120
"""Of a 13B model: each layer reduces two times what its tokens hold."""


def _on_pcie(timed: LatencyModel) -> LatencyModel:
    """Return vLLM's profile of several GPUs of a DGX with all-reduces over PCIe in place of NVLink."""
    slow, fast = (link.message(timed.gpus or 1) for link in (LINKS["pcie-4"], DGX))

    def more_ns(tokens: int) -> int:
        return 2 * LAYERS * (slow.at(ACTIVATION_BYTES * tokens) - fast.at(ACTIVATION_BYTES * tokens))

    step, token = more_ns(0), (more_ns(OUTPUT_MAX) - more_ns(0)) // OUTPUT_MAX
    return attrs.evolve(
        timed,
        prefill_constant_ns=timed.prefill_constant_ns + step,
        prefill_token_ns=timed.prefill_token_ns + token,
        decode=tuple(
            attrs.evolve(piece, constant_ns=piece.constant_ns + step, request_ns=piece.request_ns + token)
            for piece in timed.decode
        ),
    )


DEFAULT_13B = _on_pcie(PRESETS["opt-13b-a100-tp4-vllm"])
"""The worker of the default engine: all four GPUs of a machine."""


@lru_cache(maxsize=2)
def _sharegpt(rate_rps: float, model: str, seed: int) -> Workload:
    """Return Poisson arrivals with lengths as of ShareGPT and the targets of a model on a testbed."""
    count = round(rate_rps * SPAN_S)
    rng = np.random.default_rng((seed, count))
    times = arrivals_ns(rng, "poisson", rate=rate_rps, count=count)
    prompts = lengths(rng, count, mean=PROMPT_MEAN, cv=1.5, low=4, high=PROMPT_MAX)
    spread = ((OUTPUT_MEAN / OUTPUT_MEDIAN) ** 2 - 1) ** 0.5
    outputs = lengths(rng, count, mean=OUTPUT_MEAN, cv=spread, low=4, high=OUTPUT_MAX)
    slo, mean = Slo(*(1_000_000 * ms for ms in TARGETS_MS[model])), round(sum(outputs) / count)
    jobs = [
        Job(Request(i, i % CLIENTS, at, Prompt(prompt), OUTPUT_MAX, mean, slo=slo), output)
        for i, (at, prompt, output) in enumerate(zip(times, prompts, outputs, strict=True))
    ]
    return Workload("sharegpt-like", tuple(jobs), tuple(Client(i, f"client-{i}") for i in range(CLIENTS)))


def _aladdin(model: str, theta_percent: int = 90) -> Aladdin:
    ttft_ms, tpot_ms = TARGETS_MS[model]
    return Aladdin(
        ttft_us=1_000 * ttft_ms,
        tpot_us=1_000 * tpot_ms,
        theta_percent=theta_percent,
        gamma_percent=50,
        heartbeat_us=50_000,
        step_tokens=2_048,
        prompt_tokens_max=PROMPT_MAX,
    )


def _spec(router: AnyClusterPolicy) -> RunSpec:
    return RunSpec(LOCAL, LOCAL.name, {}, router)


def _workers(jobs: Workload, router: str, model: LatencyModel, at_least: int = 1) -> int:
    """Return the fewest workers with which every request keeps its targets; for Aladdin under the largest theta that
    keeps them at all."""
    policies = [_aladdin("13B A100", theta) for theta in THETAS] if router == "aladdin" else [ROUTERS[router]]
    for policy in policies:
        found = fewest(measured(jobs, _spec(policy), Cluster(model)), 1.0, at_least=at_least, at_most=WORKERS_MAX)
        if found.workers is not None:
            return found.workers
    return WORKERS_MAX


_SETTING = (
    "the fewest workers with which every request keeps 600 ms to the first token and 30 ms a token; Poisson arrivals "
    "for 30 s, in order with eager prefill, heartbeats of 50 ms, gamma 0.5, the largest theta of 0.9 to 0.5 that keeps "
    "all targets"
)
_RATES = (5, 15, 25)
_ALIKE = "requests differ, and JSQ counts them as equal"
_RULE = "5, 15 and 25 requests a second (section 6.5 prints about 25), the best of them; lengths as of ShareGPT"


@row(
    id="18",
    about="GPUs at P100",
    panel="Figure 11",
    setting=f"{_RULE}; {_SETTING}; one GPU a worker, the default engine four on PCIe behind JSQ; a router that needs "
    "more than 64 workers counts as 64; the control has all lengths at their means, at 15 a second",
    claims=(
        number("most default", "fewer GPUs than the default engine, best rate", "up to 71 %", 0.71, neutral=0.0),
        number("most JSQ", "fewer GPUs than JSQ, best rate", "up to 40 %", 0.4, 0.0, Control(_ALIKE, "alike JSQ")),
    ),
    note="vLLM's profile has 25.9 ms of the 30 for a token on four GPUs (23.5 on one), so the default engine keeps "
    "few requests: at 15 a second (seed 0) it takes 252 GPUs, and on DistServe's own engine 12, where Aladdin takes "
    "11. JSQ loses by outputs of a few tokens, which a prompt of others stalls: with outputs of median 239 in place "
    "of 128 it takes 15 GPUs and Aladdin 13, not 26 and 11",
    axes=("requests a second", "GPUs"),
    seconds=15,
)
def fewer_gpus(on: Platform, seed: int) -> Figures:
    """Return GPUs of Aladdin and of the baselines by rate, and with requests that are alike."""
    needed: dict[str, dict[float, float]] = {name: {} for name in ("Aladdin", "JSQ", "P2C", "default")}
    for rate in _RATES:
        jobs, low = _sharegpt(rate, "13B A100", seed), max(rate // 5, 1)
        for name, router in (("Aladdin", "aladdin"), ("JSQ", JSQ), ("P2C", P2C)):
            needed[name][rate] = _workers(jobs, router, on.latency, low)
        needed["default"][rate] = 4 * _workers(jobs, JSQ, DEFAULT_13B)
    found = {
        f"most {name}": max(1 - needed["Aladdin"][rate] / gpus for rate, gpus in needed[name].items())
        for name in ("JSQ", "P2C", "default")
    }
    even = runs.alike(_sharegpt(15, "13B A100", seed))
    ours, theirs = (_workers(even, router, on.latency, 3) for router in ("aladdin", JSQ))
    return {**found, "alike JSQ": 1 - ours / theirs, **needed}


@row(
    id="18b",
    about="decode GPUs at P100 with split phases",
    panel="Figure 12",
    setting="as row 18, but prompts are there with their KV (a prefill takes 1 ns): none stalls a request, and "
    "Aladdin is left with (b) and (e)",
    claims=(
        number("JSQ", "fewer decode GPUs than JSQ", "up to 60 %", 0.6, 0.0, Control(_ALIKE, "alike JSQ")),
        number("P2C", "fewer decode GPUs than P2C", "up to 49 %", 0.49, neutral=0.0),
    ),
    note="without prompts that stall others, equal counts of requests are nearly equal times; and theta below 0.9, "
    "without which targets break on any number of workers, costs as much as placing by length saves",
    seconds=12,
)
def fewer_decode_gpus(on: Platform, seed: int) -> Figures:
    """Return what is saved of a pool that only decodes."""
    model = decode_only(on.latency)
    found = dict.fromkeys(("JSQ", "P2C"), -1.0)
    for rate in _RATES:
        jobs, low = _sharegpt(rate, "13B A100", seed), max(rate // 5, 1)
        aladdin = _workers(jobs, "aladdin", model, low)
        for name, router in (("JSQ", JSQ), ("P2C", P2C)):
            found[name] = max(found[name], 1 - aladdin / _workers(jobs, router, model, low))
    even = runs.alike(_sharegpt(15, "13B A100", seed))
    ours, theirs = (_workers(even, router, model, 3) for router in ("aladdin", JSQ))
    return found | {"alike JSQ": 1 - ours / theirs}


# --- worker sizes and testbeds ----------------------------------------------------------------------------------------

BEST = {"70B A100": 2, "13B A100": 1, "7B A100": 1, "13B V100": 2, "7B V100": 1}
"""GPUs of a worker that are best, by the paper's Table 3."""


def _machine(name: str, gpus: int) -> LatencyModel | None:
    """Return a worker of a testbed: of `pcie-4` for A100, with NVLink for V100; None where the weights do not fit."""
    model, gpu = name.lower().split()
    try:
        return preset(f"llama-2-{model}-{gpu}{'-pcie' * (gpu == 'a100')}" + f"-tp{gpus}" * (gpus > 1))
    except ValueError:
        return None


def _tokens_per_s(worker: LatencyModel, tpot_ms: int) -> float:
    """Return equation 6: tokens a second and GPU, with the all-reduces that the worker's kernels have."""
    context = round(PROMPT_MEAN + OUTPUT_MEAN / 2)
    lines = fit_performance(asked(worker)).performance
    gpus, held = worker.gpus or 1, worker.deployment
    assert held is not None
    memory = gpus * gpu_of(worker).memory_bytes - held.weight_bytes
    size = Size(gpus, lines, memory // held.kv_token_bytes)
    found = size_figures(size, Demand(context, context), 1_000_000 * tpot_ms)
    return 0.0 if found is None else float(found.tokens_per_s)


@row(
    id="18c",
    about="GPUs of a worker by equation 6",
    panel="Table 3",
    platform=Platform("llama-2-13b-a100-pcie"),
    setting="workers of 1, 2 and 4 GPUs by formula, A100 on PCIe and V100 with NVLink, and 13B by vLLM's profile; "
    "ShareGPT's mean lengths, Table 2's targets; t_comm is what all-reduces take over the GPUs' link",
    claims=tuple(
        number(name, f"GPUs a worker, {name}", str(best), best, neutral=None, decimals=0)
        for name, best in (BEST | {"13B by vLLM's profile": 1}).items()
    ),
    note="machines by formula have the constants of a vLLM of 2025, in which more GPUs cost the CPU nothing: V100 "
    "come out larger",
    seconds=1,
    seeds=1,
    quick=True,
)
def worker_sizes(on: Platform, seed: int) -> Figures:
    """Return the best size of each model on each testbed."""
    workers = {name: [_machine(name, gpus) for gpus in (1, 2, 4)] for name in BEST}
    workers["13B by vLLM's profile"] = [ON_A100.latency, _on_pcie(PRESETS["opt-13b-a100-tp2-vllm"]), DEFAULT_13B]
    found = {}
    for name, sizes in workers.items():
        tpot_ms = TARGETS_MS.get(name, TARGETS_MS["13B A100"])[1]
        best = max((each for each in sizes if each), key=lambda worker: _tokens_per_s(worker, tpot_ms))
        found[name] = float(best.gpus or 1)
    return found


SHARES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
"""Loads of a testbed, as shares of the rate at which equation 6 has its four GPUs full."""


def _testbed(
    name: str, one: LatencyModel, four: LatencyModel, seed: int, shares: tuple[float, ...] = SHARES
) -> dict[str, list[Measures]]:
    """Return the measures of Aladdin, JSQ and the default engine on four GPUs, by load."""
    full = 4 * _tokens_per_s(one, TARGETS_MS[name][1]) / OUTPUT_MEAN
    found: dict[str, list[Measures]] = {"Aladdin": [], "JSQ": [], "default": []}
    for share in shares:
        jobs = _sharegpt(share * full, name, seed)
        for system, router in (("Aladdin", _aladdin(name)), ("JSQ", ROUTERS[JSQ]), ("default", ROUTERS[JSQ])):
            worker = four if system == "default" else one
            measure = measured(jobs, _spec(router), Cluster(worker))
            found[system].append(measure(4 // (worker.gpus or 1)))
    return found


def _kept(measures: Measures) -> float:
    return runs.measured(measures.slo_attainment, "an attainment")


def _slowest(measures: Measures) -> float:
    return runs.measured(measures.tpot_us.p99, "a time per token")


_LOADS = (
    "four GPUs: workers of Table 3's size under Aladdin and JSQ, and one worker, the default engine; 0.2 to 1.2 of the "
    "rate at which equation 6 has Table 3's workers full; Poisson arrivals for 30 s"
)


@row(
    id="18d",
    about="attainment on four A100",
    panel="Figure 9",
    setting=f"{_LOADS}; 13B by vLLM's profile and 70B by formula, on PCIe; best loads, one violation counted where "
    "there is none, attainments in points",
    claims=(
        number("70B violations", "violation rate of the default engine over Aladdin's, 70B", "up to 3.5X", 3.5),
        number("70B attainment", "attainment less JSQ's, 70B", "up to 19 %", 0.19, neutral=0.0),
        number("70B P99", "P99 time per token less than JSQ's, 70B", "up to 40 %", 0.4, neutral=0.0),
        number("13B attainment", "attainment less JSQ's, 13B", "up to 51 %", 0.51, neutral=0.0),
    ),
    note="70B on two GPUs has memory for 18,461 tokens of KV: the mean as a forecast says too little of requests "
    "that run long, and best fit fills a worker beyond its memory where JSQ spreads them. Tried (seed 0): no "
    "patience for held requests, 0.98 of the default engine's violations. No rates are printed",
    axes=("load, of the full one", "attainment"),
    seconds=5,
)
def on_four_a100(on: Platform, seed: int) -> Figures:
    """Return the largest differences, and attainments by load."""
    figures: dict[str, float | dict[float, float]] = {}
    two, four = _machine("70B A100", 2), _machine("70B A100", 4)
    assert two is not None
    assert four is not None
    for name, workers in (("70B A100", (two, four)), ("13B A100", (on.latency, DEFAULT_13B))):
        found, model = _testbed(name, *workers, seed), name.split()[0]
        kept = {system: [_kept(each) for each in every] for system, every in found.items()}
        missed = [
            (1 - theirs) / max(1 - ours, 1 / each.requests)
            for ours, theirs, each in zip(kept["Aladdin"], kept["default"], found["JSQ"], strict=True)
        ]
        figures[f"{model} violations"] = max(missed)
        figures[f"{model} attainment"] = max(np.subtract(kept["Aladdin"], kept["JSQ"]).tolist())
        slow = [_slowest(a) / _slowest(b) for a, b in zip(found["Aladdin"], found["JSQ"], strict=True)]
        figures[f"{model} P99"] = 1 - min(slow)
        figures |= {f"{model} {system}": dict(zip(SHARES, each, strict=True)) for system, each in kept.items()}
    return figures


@row(
    id="18e",
    about="few requests on four V100",
    panel="Figure 10",
    platform=Platform("llama-2-7b-v100"),
    setting="as row 18d's lowest load; Llama-2 7B and 13B by formula, with NVLink",
    claims=tuple(
        claim
        for model in ("7B", "13B")
        for claim in (
            fewer(f"{model} P99", f"P99 time per token of the default engine over Aladdin's, {model}", "shorter"),
            number(f"{model} kept", f"least attainment of the three, {model}", "all targets", 1.0, neutral=None),
        )
    ),
    seconds=2,
)
def on_four_v100(on: Platform, seed: int) -> Figures:
    """Return both at the lowest load."""
    figures: dict[str, float] = {}
    for name in ("7B V100", "13B V100"):
        one, four = _machine(name, BEST[name]), _machine(name, 4)
        assert one is not None
        assert four is not None
        low = {system: every[0] for system, every in _testbed(name, one, four, seed, SHARES[:1]).items()}
        model = name.split()[0]
        figures[f"{model} P99"] = _slowest(low["default"]) / _slowest(low["Aladdin"])
        figures[f"{model} kept"] = min(_kept(each) for each in low.values())
    return figures


_LINE = (5, 10, 15, 20, 25)


@row(
    id="19",
    paper="fairsched",
    about="Aladdin's workers against the rate",
    panel="Aladdin's equation 7",
    setting="row 18's Aladdin at 5 to 25 requests a second",
    claims=(Printed("R^2", "R squared of the line", "a line; we ask for 0.97", 0.97, 1.0, neutral=None),),
    note="0.97 is ours; the paper prints no figure. One seed of five has 0.87: 15 a second takes 16 workers and 20 "
    "takes 15",
    axes=("requests a second", "workers"),
    seconds=5,
)
def linear_in_rate(on: Platform, seed: int) -> Figures:
    """Return workers by rate, and how near they are to a line."""
    points = {}
    for rate in _LINE:
        jobs = _sharegpt(rate, "13B A100", seed)
        points[float(rate)] = float(_workers(jobs, "aladdin", on.latency, rate // 5))
    return {"R^2": line(list(points.items())).r2, "Aladdin": points}


_GPU = "it compares lines with times of real GPUs"
PANELS = (
    Panel("Figures 1 to 5, Table 1", "parts of the system, notation, Llama-2's outputs", impossible="no results"),
    Panel("Table 2", "models, testbeds and targets; an input of these rows", rows=("18", "18b", "18c", "18d", "18e")),
    Panel("Figures 6 and 7", "errors of the lines of prefill and decode", impossible=_GPU),
    Panel("Figure 8", "error of the KV line", impossible=_GPU),
    Panel("Table 3", "GPUs of a worker for Llama-2 on A100 and V100", rows=("18c",)),
    Panel("Figure 9", "attainment and P99 time per token on four A100", rows=("18d",)),
    Panel("Figure 10", "the same on four V100", rows=("18e",)),
    Panel("Figure 11", "GPUs by rate against the default engine and JSQ", rows=("18",)),
    Panel("Figure 12", "decode GPUs against JSQ and P2C", rows=("18b",)),
    Panel("Figure 13", "time of a decision by rate", impossible="it is a time of their code on their machine"),
)
