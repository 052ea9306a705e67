"""Vidur: its rule for the attention of a batch of prompts, and what a configuration costs that was chosen elsewhere.

Source: Agrawal et al., "Vidur: A Large-Scale Simulation Framework for LLM Inference" (MLSys'24).  Whether its
predictions are near measured times takes the GPUs that were measured.
"""

from collections.abc import Mapping
from itertools import pairwise, product
from math import inf, isqrt

import numpy as np

from fairsched.engines.capacity import DELAY, SloTarget, trial
from fairsched.engines.capacity.search import FleetPlan, FleetPool, decode_only, likely_rate
from fairsched.engines.simulation import Cluster, RunSpec
from fairsched.engines.workloads import at_rate, generate
from fairsched.model.machine import PRESETS, LatencyModel, gpu_of, pipelined
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.reproduce.row import Control, Figures, Panel, Platform, Printed, number, rows_of

row = rows_of("vidur")

OPT = Platform("opt-13b-a100")
BATCHES, PROMPTS = 200, 8


@row(
    id="32",
    about="prompts of a batch as one prompt",
    panel="section 4.3, attention of prompts",
    platform=OPT,
    setting="200 batches of 8 prompts with the lengths of Azure's code completions; the attention of the batch over "
    "that of one prompt of the square root of the sum of squares, which is between two whole numbers; and over that of "
    "one prompt of as many tokens",
    claims=(
        number("rule", "attention by the rule", "it is that of the batch", 1.0, neutral=None, decimals=3),
        Printed("tokens", "attention of as many tokens", "not by tokens", 0.0, 0.999, neutral=None),
    ),
    note="exact because this cost model's attention is quadratic, as the paper assumes of kernels",
    seconds=1,
    quick=True,
)
def one_prompt(on: Platform, seed: int) -> Figures:
    """Return means over the batches."""
    model = PRESETS[on.model]
    jobs = generate("azure-code", requests=BATCHES * PROMPTS, seed=seed).jobs
    tokens = [job.request.prompt.tokens for job in jobs]
    rule, by_tokens = [], []
    for start in range(0, len(tokens), PROMPTS):
        batch = tokens[start : start + PROMPTS]
        root = isqrt(sum(each * each for each in batch))
        found = _attention_ns(model, batch)
        low, high = _attention_ns(model, [root]), _attention_ns(model, [root + 1])
        rule.append(1.0 if low <= found <= high else found / low)
        by_tokens.append(found / _attention_ns(model, [sum(batch)]))
    return {"rule": float(np.mean(rule)), "tokens": float(np.mean(by_tokens))}


def _attention_ns(model: LatencyModel, prompts: list[int]) -> int:
    """Return what attention takes of a step that prefills these prompts."""
    whole = model.step_ns(tuple((each, 0) for each in prompts), 0, 0)
    return whole - model.prefill_constant_ns - model.prefill_token_ns * sum(prompts)


# --- configurations ---------------------------------------------------------------------------------------------------

LENGTHS = {"Chat-1M": (686, 197), "Arxiv-4K": (2_588, 291), "BWB-4K": (1_067, 1_612)}
"""Mean prompt and output tokens of Vidur's workloads, its Table 1."""
LONGEST = 4_096
REQUESTS = 150
SLO_MS = (80, 100, 120, 140, 160, 180, 200)
"""Targets for the P99 of times between tokens."""
CHOSEN_MS = 200
"""The target under which configurations are chosen."""
STEP, GRID = 1.12, range(-10, 13)
HALVED = 2
"""How often the bracket of the last target is halved."""
KINDS = {
    "H100, TP2 PP2": pipelined(PRESETS["llama-3-70b-h100-tp2"], 2),
    "H100, TP2 PP4": pipelined(PRESETS["llama-3-70b-h100-tp2"], 4),
    "H100, TP8": PRESETS["llama-2-70b-h100"],
    "A100, TP8": PRESETS["llama-2-70b-a100"],
}
"""Replicas of Llama 70B with 4 to 8 GPUs."""
SCHEDULERS = {
    name: RunSpec.of("fcfs-optimistic", params={"batching": batching, "max_batched_tokens": step, "max_running": batch})
    for name, batching, step, batch in (
        ("vLLM, batch 256", "eager-prefill", LONGEST, 256),
        ("Sarathi 512, batch 32", "chunked", 512, 32),
        ("Sarathi 512, batch 256", "chunked", 512, 256),
        ("Sarathi 2048, batch 256", "chunked", 2_048, 256),
    )
}
TARGETS = (DELAY, SloTarget(90, (("ttft", 2e6),)), SloTarget(99, (("tbt", 1e3),)))
"""Scheduling delay and first tokens as Vidur-Search filters them, and the P99 of times between tokens in ms."""
Capacities = Mapping[tuple[str, str], Mapping[int, float]]
"""Of each configuration, by target for times between tokens: requests a second for a dollar an hour."""


@row(
    id="33",
    about="a configuration chosen on another trace, and cost by target",
    panel="figures of Vidur-Search",
    platform=Platform("llama-2-70b-h100"),
    setting="Llama 70B on four replicas (H100 with TP2 PP2, TP2 PP4 and TP8, A100 with TP8), as vLLM with batches of "
    "256, or Sarathi with chunks of 512 (batches of 32 and of 256) and 2,048; 150 requests of lengths as of Chat-1M, "
    "Arxiv-4K and BWB-4K; the highest rate a dollar with the P99 of scheduling delay within 5 s, of first tokens P90 "
    "within 2 s, and of times between tokens P99 within 200 ms, to 3 %; the best on one trace over the one chosen on "
    "another, the worst of six pairs; other targets on rates 12 % apart",
    claims=(
        Printed(
            "wrong trace",
            "cost of the configuration of another trace, worst pair",
            "up to 2 times",
            1.3,
            inf,
            control=Control("traces differ in their lengths", "same lengths"),
        ),
        Printed(
            "step",
            "cost under a target over that under one 20 ms looser, the largest of six steps, Chat-1M",
            "1.85 from 0.12 s to 0.14 s: there is a step",
            STEP**2,
            inf,
            control=Control("prompts are computed between tokens", "without prompts"),
        ),
    ),
    note="lengths are exponential around the published means, prompts and outputs each cut to half of 4,096 tokens or "
    "what the other leaves, since the traces are not there; the coefficients are of Llama 2 and Llama 3 70B, whose "
    "weights and KV are of the same size; where the step lies depends on the coefficients, and less than two steps of "
    "the grid of rates (1.25) is none: the largest is as long as that, and as long where prompts cost nothing, so "
    "that batches which only decode cross a target as well, and the cause is not confirmed",
    seconds=70,
    axes=("target for times between tokens, ms", "dollars for a million requests"),
)
def wrong_trace(on: Platform, seed: int) -> Figures:
    """Worst ratios, and the least cost by target."""
    traces = {name: _trace(name, *means, seed) for name, means in LENGTHS.items()}
    found = {name: _capacities(jobs) for name, jobs in traces.items()}
    chat = "Chat-1M"
    alike = {str(k): _capacities(_trace(chat, *LENGTHS[chat], seed + 1_000 * k)) for k in (1, 2)}
    free = _capacities(traces[chat], decode_only)
    best = {slo: max(row[slo] for row in found[chat].values()) for slo in SLO_MS}
    return {
        "wrong trace": _worst_pair(found),
        "same lengths": _worst_pair({chat: found[chat], **alike}),
        "step": max(_steps(found[chat]).values()),
        "without prompts": max(_steps(free).values()),
        "cost": {float(slo): 1e6 / 3_600 / rate for slo, rate in best.items() if rate},
    }


def _trace(name: str, prompt: int, output: int, seed: int) -> Workload:
    """Return requests with lengths around the means, on Poisson arrivals."""
    rng = np.random.default_rng([seed, prompt])
    arrivals = np.cumsum(rng.exponential(1e9, REQUESTS)).astype(np.int64).tolist()
    jobs = []
    for place, at_ns in enumerate(arrivals):
        prompts, outputs = (int(rng.exponential(mean)) + 1 for mean in (prompt, output))
        prompts = min(prompts, max(LONGEST // 2, LONGEST - outputs))
        outputs = min(outputs, LONGEST - prompts)
        jobs.append(Job(Request(place, 0, at_ns, Prompt(prompts), outputs), outputs))
    return Workload(name, tuple(jobs), (Client(0, "c"),))


def _capacities(jobs: Workload, alone: object = None) -> Capacities:
    """Return what each configuration keeps on a trace; `alone` changes workers."""
    found = {}
    for (kind, latency), (scheduler, run) in product(KINDS.items(), SCHEDULERS.items()):
        worker = alone(latency) if callable(alone) else latency
        dollars = (gpu_of(latency).dollars_per_hour or 0.0) * (latency.gpus or 1)
        start = likely_rate(FleetPlan((FleetPool(1, latency),)), jobs)
        kept = dict.fromkeys(SLO_MS, 0.0)
        open_slos = set(SLO_MS)
        for place in GRID:
            rate = start * STEP**place
            delay, ttft, tbt_ms = trial(at_rate(jobs, rate), run, Cluster(worker), TARGETS).excess
            open_slos = {slo for slo in open_slos if max(delay, ttft) <= 1 and tbt_ms <= slo}
            if not open_slos:
                break
            kept |= dict.fromkeys(open_slos, rate / dollars)
        found[kind, scheduler] = kept
    return found


def _worst_pair(found: Mapping[str, Capacities]) -> float:
    """Return the most that the best configuration of one trace loses on another one."""
    slo, worst = CHOSEN_MS, 1.0
    for here, there in product(found.values(), repeat=2):
        chosen = max(there, key=lambda each: there[each][slo])
        best = max(row[slo] for row in here.values())
        worst = max(worst, best / here[chosen][slo] if here[chosen][slo] else inf)
    return worst


def _steps(found: Capacities) -> dict[int, float]:
    """Return how much cheaper the best configuration is under the next target, by target; of those that are kept."""
    best = {slo: max(row[slo] for row in found.values()) for slo in SLO_MS}
    return {tight: best[loose] / best[tight] for tight, loose in pairwise(SLO_MS) if best[tight]}


PANELS = (
    Panel("section 4.3, attention of prompts", "one prompt in place of a batch of prompts", rows=("32",)),
    Panel(
        "fidelity",
        "errors of predicted latencies, static and dynamic",
        impossible="it compares predictions with times measured on GPUs",
    ),
    Panel("figures of Vidur-Search", "configurations by trace, cost by target", rows=("33",)),
)
"""What the evaluation shows."""
