"""BatchLLM: what grouping saves, what an LRU cache keeps of it, and what order and token batching are worth.

Source: "BatchLLM: Optimizing Large Batched LLM Inference with Global Prefix Sharing and Throughput-oriented Token
Batching".  Prompts come all at once; outputs of the micro-benchmarks are not stated and are 100 tokens here.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial

import numpy as np

from fairsched.engines.simulation import RunSpec, Simulator
from fairsched.engines.workloads import TokenSource, prompt_of
from fairsched.model.algebra import Ints
from fairsched.model.events import Decoded, Event, Prefilled
from fairsched.model.latency import PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.offline import Grouping, groups_by, tree_of
from fairsched.reproduce.row import A100, Ours, Row, Say, measured, rate, run

VLLM = {"reserve": "optimistic"}
"""First come first served as vLLM has it: outputs grow, at most 256 requests run."""
CAPACITIES = (100_000, 200_000, 300_000, 427_000, 600_000, 800_000)
"""KV tokens; 427,000 is an A100 of 80 GB with a model of 8B."""
STEP_TOKENS = 2_048
Outputs = Callable[[np.random.Generator, int], Ints]


# --- exact ------------------------------------------------------------------------------------------------------------


def _keys(*parts: tuple[int, int]) -> Prompt:
    """A prompt of runs (token, how many), token by token."""
    return Prompt.from_keys(np.concatenate([np.full(count, token) for token, count in parts]))


def _ratio(prompts: list[Prompt], grouping: Grouping = "exact") -> float:
    return 100 * groups_by(tree_of(prompts), grouping).saving_ratio


@partial(
    Row,
    id="1",
    about="what one level of sharing can save",
    source="BatchLLM, evaluation, micro-benchmark",
    paper="85.2 and 92.6 %: 16 prompts share 2,000 or 16,000 tokens and have 200 of their own",
    band="85.23 and 92.59 %",
    tier="A",
    why="15/16 of 2,000/2,200 and of 16,000/16,200, found by the grouping",
    seconds=1,
)
def one_level(say: Say) -> Ours:
    """16 prompts share all but 200 tokens."""
    found = {}
    for prefix in (2_000, 16_000):
        say(f"{prefix:,} shared tokens")
        found[prefix] = _ratio([_keys((g, prefix), (100 + i, 200)) for g in range(4) for i in range(16)])
    short, long = found[2_000], found[16_000]
    return Ours(
        f"{short:.2f} and {long:.2f} %",
        (round(short, 2), round(long, 2)) == (85.23, 92.59),
        {"saving_percent": {str(prefix): ratio for prefix, ratio in found.items()}},
    )


@partial(
    Row,
    id="2",
    about="what grouping saves on two levels",
    source="BatchLLM, evaluation, settings A and B",
    paper="48.6 and 39.7 %; about 25 % by a heuristic",
    band="48.62, 39.69 and 25.05 %, and 49.17 and 44.74 % with sharing on all levels",
    tier="A",
    why="50 documents of 490 (B: 400) tokens, 64 parts of 11 (101) and 2 prompts of 1,000 tokens about each: the "
    "whole numbers that give these figures; the heuristic groups each prompt with those with whom it shares "
    "most",
    seconds=3,
)
def two_levels(say: Say) -> Ours:
    """50 documents, 64 parts of each, 2 prompts about each part, of 1,000 tokens."""
    figures: dict[str, dict[str, float]] = {}
    for setting, document, part in (("A", 490, 11), ("B", 400, 101)):
        say(f"setting {setting}")
        own = 1_000 - document - part
        batch = [
            _keys((d, document), (100 + p, part), (1_000 + q, own))
            for d in range(50)
            for p in range(64)
            for q in (0, 1)
        ]
        tree = tree_of(batch)
        figures[setting] = {
            "exact": _ratio(batch),
            "greedy": _ratio(batch, "greedy"),
            "longest": _ratio(batch, "longest"),
            "all_levels": 100 * tree.saved_tokens_max / tree.prompt_tokens,
        }
    a, b = figures["A"], figures["B"]
    got = tuple(round(one, 2) for one in (a["exact"], b["exact"], b["longest"], a["all_levels"], b["all_levels"]))
    return Ours(
        f"A {a['exact']:.2f} %, B {b['exact']:.2f} %, with the longest prefixes {b['longest']:.2f} %; all levels "
        f"{a['all_levels']:.2f} and {b['all_levels']:.2f} %",
        got == (48.62, 39.69, 25.05, 49.17, 44.74),
        figures,
    )


# --- simulated --------------------------------------------------------------------------------------------------------


@cache
def shared(
    groups: int, degree: int, prefix: int, own: int, outputs: int | Outputs = 100, *, sorted_: bool = False
) -> Workload:
    """`degree` prompts of each group, all at once, shuffled or group by group; every limit is the longest output."""
    tokens, rng = TokenSource(0), np.random.default_rng(0)
    prompts = []
    for _ in range(groups):
        prefix_tokens = tokens.fresh(prefix)
        prompts += [prompt_of(prefix_tokens, tokens.fresh(own)) for _ in range(degree)]
    order = np.arange(len(prompts)) if sorted_ else rng.permutation(len(prompts))
    drawn = np.full(len(prompts), outputs) if isinstance(outputs, int) else outputs(rng, len(prompts))
    limit = int(drawn.max())
    jobs = [
        Job(Request(number, 0, 0, prompts[at], limit), int(drawn[number])) for number, at in enumerate(order.tolist())
    ]
    return Workload("batch", tuple(jobs), (Client(0, "batch"),))


def _hits(jobs: Workload, policy: str, params: Mapping[str, object], capacity: int | None = None) -> float:
    """Share of the prompt tokens that came from the cache, in per cent."""
    found = run(jobs, policy, latency=A100, params=params, kv_capacity_tokens=capacity)
    return 100 * measured(found.measures.prefix_hit_ratio, "a share of cached tokens")


@partial(
    Row,
    id="3",
    about="what an LRU cache keeps of the sharing",
    source="BatchLLM, evaluation",
    paper="40.1 % against 85.2 %, 2.12 times: 6,400 prompts in random order, 16 of each group",
    band="at least 1.8 times",
    why="simulated A100 of 80 GB with a model of 8B, requests as they come and their prefixes evicted in LRU "
    "order; what is hit is what is resident of 400 prefixes of 2,000 tokens, so it grows with memory",
    seconds=30,
)
def lru(say: Say) -> Ours:
    """The cache of a server that takes prompts as they come, and that of one that groups them."""
    jobs = shared(400, 16, 2_000, 200)
    sweep = {}
    for capacity in CAPACITIES:
        say(f"{capacity:,} KV tokens")
        sweep[capacity] = _hits(jobs, "fcfs", VLLM, capacity)
    say("grouped")
    grouped = _hits(jobs, "batchllm", {})
    kept = sweep[427_000]
    return Ours(
        f"{kept:.1f} % against {grouped:.1f} %, {grouped / kept:.2f} times; with "
        + ", ".join(f"{capacity // 1000}k {found:.0f} %" for capacity, found in sweep.items()),
        grouped / kept >= 1.8,
        {"lru_percent": {str(c): found for c, found in sweep.items()}, "grouped_percent": grouped},
    )


@partial(
    Row,
    id="4",
    about="what an LRU cache keeps of long prefixes",
    source="BatchLLM, evaluation",
    paper="6.3 % against 92.6 %, 14.7 times",
    band="at least 10 times",
    why="as row 3 with prefixes of 16,000 tokens, of which 26 fit",
    seconds=15,
)
def lru_long(say: Say) -> Ours:
    """The same with long prefixes, of which few fit."""
    jobs = shared(400, 16, 16_000, 200)
    say("as they come")
    kept = _hits(jobs, "fcfs", VLLM)
    say("grouped")
    grouped = _hits(jobs, "batchllm", {})
    return Ours(
        f"{kept:.1f} % against {grouped:.1f} %, {grouped / kept:.1f} times",
        grouped / kept >= 10,
        {"lru_percent": kept, "grouped_percent": grouped},
    )


@partial(
    Row,
    id="5",
    about="what sorting by prefix is worth",
    source="BatchLLM, evaluation",
    paper="vLLM 6.0 to 13.0 requests a second, 2.17 times, and BatchLLM 18, 1.38 times of that",
    band="1.8 to 2.4 times, and at least 1.05 times of that",
    why="as row 3; sorted prompts that start together compute one prefix several times, where grouped ones wait "
    "for it; the rest of the paper's 1.38 is its attention kernel's, which is not simulated",
    seconds=15,
)
def sorting(say: Say) -> Ours:
    """What sorting alone is worth, and what grouping is beside it."""
    say("as they come")
    shuffled = rate(run(shared(400, 16, 2_000, 200), "fcfs", latency=A100, params=VLLM))
    say("sorted")
    in_order = rate(run(shared(400, 16, 2_000, 200, sorted_=True), "fcfs", latency=A100, params=VLLM))
    say("grouped")
    grouped = rate(run(shared(400, 16, 2_000, 200), "batchllm", latency=A100))
    return Ours(
        f"{shuffled:.1f} to {in_order:.1f} requests a second, {in_order / shuffled:.2f} times; grouped {grouped:.1f}, "
        f"{grouped / in_order:.2f} times",
        1.8 <= in_order / shuffled <= 2.4 and grouped / in_order >= 1.05,
        {"shuffled_rps": shuffled, "sorted_rps": in_order, "grouped_rps": grouped},
    )


def _steps(jobs: Workload, params: dict[str, str]) -> tuple[float, float]:
    """Requests finished a second, and the share of steps that compute less than half of a step's token budget."""
    tokens: dict[int, float] = {}
    steps: dict[int, int] = {}

    def seen(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Prefilled):
                tokens[event.time_ns] = tokens.get(event.time_ns, 0) + event.tokens
            elif isinstance(event, Decoded):
                tokens[event.time_ns] = tokens.get(event.time_ns, 0) + sum(event.tokens) / event.steps
                steps[event.time_ns] = event.steps

    grouped = RunSpec.of("batchllm", params=params)
    Simulator(jobs, grouped.policy, grouped.router, PRESETS[A100], on_events=seen).run()
    low = sum(steps.get(at, 1) for at, count in tokens.items() if count < STEP_TOKENS / 2)
    return len(jobs.jobs) / (max(tokens) / 1e9), low / sum(steps.get(at, 1) for at in tokens)


def _spread(rng: np.random.Generator, count: int) -> Ints:
    """Outputs of 400 tokens in the mean, of any length."""
    return rng.geometric(1 / 400, count).clip(1, 2_000)


@partial(
    Row,
    id="6",
    about="what token batching is worth",
    source="BatchLLM, evaluation, industry traffic",
    paper="5.79 to 5.94 and 8.16 to 8.47 requests a second, 2.6 and 3.8 %",
    band="2 to 5 %, and a smaller share of steps below half of the token budget",
    why="3,000 prompts, of which three share 1,570 tokens and have 30 of their own (the paper's averages); "
    "outputs are not stated, and 400 tokens give a rate between the paper's two.  What is gained over a limit "
    "of 256 requests depends on them: short ones leave before so many run, and where lengths differ and the "
    "longest is reserved for each, memory is the tighter limit and a tenth of it is kept free",
    seconds=25,
)
def token_batching(say: Say) -> Ours:
    """As many requests as memory holds against at most 256, both grouped."""
    cases: tuple[tuple[str, int | Outputs], ...] = (("100", 100), ("200", 200), ("400", 400), ("about 400", _spread))
    gains, valleys = {}, {}
    for name, outputs in cases:
        say(f"outputs of {name} tokens")
        jobs = shared(1_000, 3, 1_570, 30, outputs)
        on, low_on = _steps(jobs, {})
        off, low_off = _steps(jobs, {"batching": "chunked", "max_running": "256"})
        gains[name], valleys[name] = 100 * (on / off - 1), (100 * low_off, 100 * low_on)
        if name == "400":
            rates = (off, on)
    return Ours(
        f"{rates[0]:.2f} to {rates[1]:.2f} requests a second with outputs of 400 tokens, valleys "
        f"{valleys['400'][0]:.0f} to {valleys['400'][1]:.0f} % of steps; gain by outputs: "
        + ", ".join(f"{name} {gain:+.1f} %" for name, gain in gains.items()),
        2 <= gains["400"] <= 5 and valleys["400"][1] < valleys["400"][0],
        {"rps_off_on": rates, "gain_percent": gains, "valley_percent_off_on": valleys},
    )


def _heavy_tail(rng: np.random.Generator, count: int) -> Ints:
    """10 + 25 Lomax(1.5), cut at 512: mean 50, median 25."""
    return np.minimum(10 + 25 * rng.pareto(1.5, count), 512).astype(np.int64)


@partial(
    Row,
    id="7",
    about="a heavy tail of outputs",
    source="BatchLLM, evaluation",
    paper="3.2 times: 320 requests, 20 groups of 16, 2,000 shared tokens and 200 of their own",
    band="at least 2 times, from prefill alone",
    why="against no sharing at all; outputs are 10 + 25 Lomax(1.5) cut at 512, which has the paper's mean, median "
    "and p99, as a Pareto of 1.5 between 10 and 512 has not.  20 prefixes fit into memory, so a prefix cache "
    "alone is as good",
    seconds=3,
)
def heavy_tail(say: Say) -> Ours:
    """With grouping and without any sharing."""
    jobs = shared(20, 16, 2_000, 200, _heavy_tail)
    bare = Workload(
        "no sharing",
        tuple(
            Job(Request(job.request.id, 0, 0, Prompt(2_200), job.request.max_output_tokens), job.output_tokens)
            for job in jobs.jobs
        ),
        jobs.clients,
    )
    say("without a prefix cache")
    none = rate(run(bare, "fcfs", latency=A100, params=VLLM))
    say("with one")
    cached = rate(run(jobs, "fcfs", latency=A100, params=VLLM))
    say("grouped")
    grouped = rate(run(jobs, "batchllm", latency=A100))
    return Ours(
        f"{none:.1f} to {grouped:.1f} requests a second, {grouped / none:.2f} times; {cached:.1f} with a prefix cache "
        "alone",
        grouped / none >= 2,
        {"no_cache_rps": none, "lru_rps": cached, "grouped_rps": grouped},
    )
