"""BatchLLM: what grouping saves, what an LRU cache keeps of it, and what order and token batching are worth.

Source: "BatchLLM: Optimizing Large Batched LLM Inference with Global Prefix Sharing and Throughput-oriented Token
Batching".  Prompts come all at once; outputs of the micro-benchmarks are not stated and are 100 tokens here.  The paper
runs on an A100 of 80 GB and an MI200; the first is simulated with a model of 8B, whose 427,000 KV tokens are what its
cache hits come to.  Its attention kernel is not: what it adds to a speedup is missing here.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import count, islice

import attrs
import numpy as np

from fairsched.engines.simulation import RunSpec, Simulator
from fairsched.model.algebra import Ints
from fairsched.model.events import Decoded, Event, Prefilled
from fairsched.model.machine import PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.offline import Grouping, groups_by, tree_of
from fairsched.reproduce.row import ARITHMETIC, Control, Figures, Panel, Platform, Printed, number, rows_of
from fairsched.reproduce.runs import A100, measured, rate, run

WORKER = Platform(A100, step_tokens=2_048)
row = rows_of("batchllm", WORKER)
VLLM = {"reserve": "optimistic", "max_running": 256}
"""First come, first served, as vLLM has it: outputs grow, at most 256 requests run."""
BATCHLLM = {"kv_threshold_percent": 90, "reserve": "static"}
PROMPTS, DEGREE = 6_400, 16
SHORT, LONG, OWN, OUTPUTS = 2_000, 16_000, 200, 100
"""Tokens of a micro-benchmark's prefixes, of what is a prompt's own, and of outputs."""

# --- exact ------------------------------------------------------------------------------------------------------------


def _keys(*parts: tuple[int, int]) -> Prompt:
    """Return a prompt of runs (token, how many), token by token."""
    return Prompt.from_keys(np.concatenate([np.full(count, token) for token, count in parts]))


def _ratio(prompts: list[Prompt], grouping: Grouping = "exact") -> float:
    return 100 * groups_by(tree_of(prompts), grouping).saving_ratio


def _exactly(figure: str, about: str, percent: float) -> Printed:
    """Return a share that must come out as printed, to two decimals."""
    return number(figure, about, f"{percent:.2f} %", percent, neutral=None, decimals=2)


@row(
    id="1",
    about="what one level of sharing can save",
    panel="evaluation, micro-benchmark",
    platform=ARITHMETIC,
    setting="16 prompts share 2,000 or 16,000 tokens and have 200 of their own; the saving is found by the grouping",
    claims=(_exactly("2000", "2,000 shared tokens", 85.23), _exactly("16000", "16,000 shared tokens", 92.59)),
    note="printed as 85.2 and 92.6 %; the decimals are 15/16 of 2,000/2,200 and of 16,000/16,200",
    seeds=1,
    seconds=1,
    quick=True,
)
def one_level(on: Platform, seed: int) -> Figures:
    """Let 16 prompts share all but 200 tokens."""
    return {
        str(prefix): _ratio([_keys((g, prefix), (100 + i, 200)) for g in range(4) for i in range(16)])
        for prefix in (2_000, 16_000)
    }


@row(
    id="2",
    about="what grouping saves on two levels",
    panel="evaluation, settings A and B",
    platform=ARITHMETIC,
    setting="50 documents of 490 (B: 400) tokens, 64 parts of 11 (101) and 2 prompts of 1,000 tokens about each",
    claims=(
        _exactly("A exact", "setting A, grouped", 48.62),
        _exactly("B exact", "setting B, grouped", 39.69),
        _exactly("B longest", "setting B by the heuristic", 25.05),
        _exactly("A all levels", "setting A, sharing on all levels", 49.17),
        _exactly("B all levels", "setting B, sharing on all levels", 44.74),
    ),
    note="printed as 48.6, 39.7 and about 25 %; the lengths are the whole numbers that give these figures, and the "
    "heuristic groups each prompt with those with which it shares most",
    seeds=1,
    seconds=3,
    quick=True,
)
def two_levels(on: Platform, seed: int) -> Figures:
    """Return 50 documents, 64 parts of each, 2 prompts about each part, of 1,000 tokens."""
    found: dict[str, float] = {}
    for setting, document, part in (("A", 490, 11), ("B", 400, 101)):
        own = 1_000 - document - part
        batch = [
            _keys((d, document), (100 + p, part), (1_000 + q, own))
            for d in range(50)
            for p in range(64)
            for q in (0, 1)
        ]
        tree = tree_of(batch)
        found[f"{setting} exact"] = _ratio(batch)
        found[f"{setting} longest"] = _ratio(batch, "longest")
        found[f"{setting} all levels"] = 100 * tree.saved_tokens_max / tree.prompt_tokens
    return found


# --- batches ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class PromptSet:
    """Prompts of which `degree` at a time share `prefix` tokens (0: none), shuffled by the seed or group by group."""

    prefix: int = SHORT
    degree: int = DEGREE
    own: int = OWN
    outputs: int = OUTPUTS
    prompts: int = PROMPTS
    in_order: bool = False
    heavy_tail: bool = False

    def workload(self, seed: int) -> Workload:
        """Return the batch; the limit of every output is the longest, and blocks are of ten tokens."""
        fresh, rng = count(), np.random.default_rng(seed)
        prompts = []
        for _ in range(self.prompts // self.degree):
            prefix = list(islice(fresh, self.prefix // 10))
            own = [list(islice(fresh, self.own // 10)) for _ in range(self.degree)]
            prompts += [Prompt.from_keys(prefix + behind, block_tokens=10) for behind in own]
        order = np.arange(len(prompts)) if self.in_order else rng.permutation(len(prompts))
        drawn = _lomax(rng, len(prompts)) if self.heavy_tail else np.full(len(prompts), self.outputs)
        limit = int(drawn.max())
        jobs = (
            Job(Request(number, 0, 0, prompts[at], limit), int(drawn[number]))
            for number, at in enumerate(order.tolist())
        )
        return Workload("batch", tuple(jobs), (Client(0, "batch"),))


def _lomax(rng: np.random.Generator, size: int) -> Ints:
    """Draw 10 + 25 Lomax(1.5), cut at 512: mean 50, median 25."""
    return np.minimum(10 + 25 * rng.pareto(1.5, size), 512).astype(np.int64)


_workload = lru_cache(maxsize=2)(PromptSet.workload)


@cache
def _served(batch: PromptSet, policy: str, on: Platform, seed: int) -> tuple[float, float]:
    """Return the share of prompt tokens that came from the cache, in per cent, and requests finished a second.

    Kept, since rows have runs in common.
    """
    found = run(_workload(batch, seed), policy, on=on, params=BATCHLLM if policy == "batchllm" else VLLM)
    return 100 * (found.measures.prefix_hit_ratio or 0.0), rate(found)


# --- what a cache keeps -----------------------------------------------------------------------------------------------


def _kept(prefix: int, ample: int, on: Platform, seed: int) -> dict[str, float]:
    """Return the shares kept by an LRU cache, as they come, sorted, and with memory for all prefixes; and by groups."""
    mixed, in_order = PromptSet(prefix), PromptSet(prefix, in_order=True)
    lru, grouped = _served(mixed, "fcfs", on, seed)[0], _served(mixed, "batchllm", on, seed)[0]
    held = attrs.evolve(on, kv_capacity_tokens=ample)
    return {
        "lru": lru,
        "grouped": grouped,
        "times": grouped / lru,
        "times, sorted": grouped / _served(in_order, "fcfs", on, seed)[0],
        "times, all prefixes fit": grouped / _served(mixed, "fcfs", held, seed)[0],
    }


def _kept_claims(lru: float, grouped: float, times: float) -> tuple[Printed, ...]:
    return (
        number("lru", "an LRU cache keeps", f"{lru} %", lru, neutral=None),
        number("grouped", "groups keep", f"{grouped} %", grouped, neutral=None, decimals=1),
        number(
            "times",
            "groups keep so many times as much",
            f"{times} times",
            times,
            control=Control("prefixes are evicted before they are used again", "times, all prefixes fit"),
        ),
        number(
            "times",
            "groups keep so many times as much (the other cause)",
            f"{times} times",
            times,
            control=Control("prompts that share a prefix come far apart", "times, sorted"),
        ),
    )


@row(
    id="3",
    about="what an LRU cache keeps of the sharing",
    panel="micro-benchmark, prompt tokens saved, 2,000 shared tokens",
    setting="6,400 prompts in random order, 16 of each group share 2,000 tokens and have 200 of their own; the share "
    "of prompt tokens that came from the cache, as they come and by groups; the curve is over the KV that there is",
    claims=_kept_claims(40.1, 85.2, 2.12),
    seconds=14,
    axes=("KV tokens", "% of prompt tokens from an LRU cache"),
)
def lru(on: Platform, seed: int) -> Figures:
    """Return the cache of a server that takes prompts as they come, and that of one that groups them."""
    found = _kept(SHORT, 1_600_000, on, seed)
    sizes = {size: attrs.evolve(on, kv_capacity_tokens=size) for size in (200_000, 300_000, 600_000)}
    curve = {float(size): _served(PromptSet(), "fcfs", there, seed)[0] for size, there in sizes.items()}
    curve[427_000.0] = found["lru"]
    return {**found, "lru by memory": dict(sorted(curve.items()))}


@row(
    id="4",
    about="what an LRU cache keeps of long prefixes",
    panel="micro-benchmark, prompt tokens saved, 16,000 shared tokens",
    setting="as row 3 with prefixes of 16,000 tokens",
    claims=_kept_claims(6.3, 92.6, 14.7),
    seconds=13,
)
def lru_long(on: Platform, seed: int) -> Figures:
    """Return the same with long prefixes, of which few fit."""
    return _kept(LONG, 8_000_000, on, seed)


# --- throughput -------------------------------------------------------------------------------------------------------


def _bare(prefix: int, prompts: int, on: Platform, seed: int) -> float:
    """Return how many times as fast groups are where no prompts share a prefix: what else differs."""
    bare = PromptSet(0, own=prefix + OWN, prompts=prompts)
    return _served(bare, "batchllm", on, seed)[1] / _served(bare, "fcfs", on, seed)[1]


@row(
    id="5",
    about="what sorting by prefix is worth, and what groups are beside it",
    panel="evaluation, sorted input",
    setting="as row 3; requests finished a second by vLLM as prompts come, by vLLM sorted by prefix, and by groups",
    claims=(
        number(
            "sorted",
            "sorted over as they come",
            "6.0 to 13.0 requests/s, 2.17 times",
            2.17,
            control=Control("prefixes are evicted before they are used again", "sorted, all prefixes fit"),
        ),
        number(
            "grouped",
            "groups over sorted",
            "18 over 13.0 requests/s, 1.38 times",
            1.38,
            control=Control("prompts share a prefix", "grouped, nothing shared"),
        ),
    ),
    note="the paper's attention kernel has part in its 1.38; here it is that sorted prompts that start together "
    "compute one prefix several times, and that more than 256 requests run",
    seconds=12,
)
def sorting(on: Platform, seed: int) -> Figures:
    """Return what sorting alone is worth, and what grouping is beside it."""
    mixed, in_order = PromptSet(), PromptSet(in_order=True)
    held = attrs.evolve(on, kv_capacity_tokens=1_600_000)
    shuffled, ordered = _served(mixed, "fcfs", on, seed)[1], _served(in_order, "fcfs", on, seed)[1]
    return {
        "sorted": ordered / shuffled,
        "sorted, all prefixes fit": _served(in_order, "fcfs", held, seed)[1] / _served(mixed, "fcfs", held, seed)[1],
        "grouped": _served(mixed, "batchllm", on, seed)[1] / ordered,
        "grouped, nothing shared": _bare(SHORT, 1_600, on, seed),
        "shuffled requests/s": shuffled,
    }


DEGREES = (2, 4, 8, 16)


def _cell(prefix: int, degree: int) -> Printed:
    return Printed(
        f"{prefix}, {degree}",
        f"groups over vLLM, {degree} prompts share {prefix:,} tokens",
        "1.3 to 10.8 times over all micro-benchmarks",
        1.3,
        10.8,
        control=Control("prompts share a prefix", f"{prefix}, nothing shared"),
    )


@row(
    id="60",
    about="what groups are worth by how many prompts share a prefix",
    panel="micro-benchmarks, end to end",
    setting="6,400 prompts in random order, 2 to 16 of each group share 2,000 or 16,000 tokens and have 200 of their "
    "own; requests finished a second by groups over those by vLLM with its prefix cache, as prompts come",
    claims=(
        *(_cell(prefix, degree) for prefix in (SHORT, LONG) for degree in DEGREES),
        number("16000, 16", "the largest speedup", "up to 10.8 times", 10.8),
    ),
    note="the paper's speedups over SGLang and on the MI200 are in its range too, and its figures by cell were not "
    "available to us; that the largest is of the longest prefixes and most sharers is our reading.  The largest is "
    "missed: the attention kernel, which reads a shared prefix once for all of a group, is not simulated: by this "
    "machine's coefficients reading 16 long contexts in decodes is half of the time of grouped requests",
    seconds=40,
    axes=("prompts that share a prefix", "times the throughput of vLLM"),
)
def degrees(on: Platform, seed: int) -> Figures:
    """Return speedups by degree, for short and for long prefixes."""
    found: dict[str, float | Mapping[float, float]] = {}
    for prefix, bare in ((SHORT, 1_600), (LONG, 400)):
        curve = {}
        for degree in DEGREES:
            batch = PromptSet(prefix, degree)
            curve[float(degree)] = _served(batch, "batchllm", on, seed)[1] / _served(batch, "fcfs", on, seed)[1]
        found |= {f"{prefix}, {int(degree)}": times for degree, times in curve.items()}
        found |= {f"{prefix}, nothing shared": _bare(prefix, bare, on, seed), f"{prefix:,} shared tokens": curve}
    return found


# --- token batching ---------------------------------------------------------------------------------------------------


def _steps(jobs: Workload, on: Platform, params: Mapping[str, object]) -> tuple[float, float]:
    """Return requests finished a second, and the per cent of steps that compute less than half of the token budget."""
    tokens: dict[int, float] = {}
    steps: dict[int, int] = {}

    def seen(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Prefilled):
                tokens[event.time_ns] = tokens.get(event.time_ns, 0) + event.tokens
            elif isinstance(event, Decoded):
                tokens[event.time_ns] = tokens.get(event.time_ns, 0) + sum(event.tokens) / event.steps
                steps[event.time_ns] = event.steps

    budget = measured(on.step_tokens, "a budget of a step")
    spec = RunSpec.of("batchllm", params={"max_batched_tokens": on.step_tokens, "reserve": "optimistic", **params})
    Simulator(jobs, spec.policy, spec.router, PRESETS[on.model], on_events=seen).run()
    low = sum(steps.get(at, 1) for at, computed in tokens.items() if computed < budget / 2)
    return len(jobs.jobs) / (max(tokens) / 1e9), 100 * low / sum(steps.get(at, 1) for at in tokens)


SLOW, FAST, BRIEF = 520, 340, 20
"""Output tokens with which the rate without token batching is the paper's 5.79 and 8.16, and so few that no more than
256 requests run."""


def _gain(figure: str, printed: str, percent: float) -> Printed:
    return number(
        figure,
        f"gain where {printed} requests/s were without",
        f"{percent} %",
        percent,
        neutral=0.0,
        control=Control("a limit of 256 requests binds", f"gain, {BRIEF}"),
    )


@row(
    id="6",
    about="what token batching is worth",
    panel="evaluation, industry traffic, token batching on and off",
    setting="3,000 prompts in random order, of which three share 1,570 tokens and have 30 of their own; grouped; as "
    "many requests as KV holds up to a threshold over at most 256; outputs of a length with which the rate without is "
    "the paper's; outputs grow, as in vLLM; a valley is a step with less than half of the token budget",
    claims=(
        _gain(f"gain, {SLOW}", "5.79", 2.6),
        _gain(f"gain, {FAST}", "8.16", 3.8),
        Printed(f"valleys, {SLOW}", "points fewer valleys at 5.79", "fewer", 1e-9, 100, neutral=0.0),
        Printed(f"valleys, {FAST}", "points fewer valleys at 8.16", "fewer", 1e-9, 100, neutral=0.0),
    ),
    note="the industry's prompts are not published: these have its averages, and the threshold is ours.  The gain at "
    "5.79 is too small: with so long outputs memory is the tighter limit, a tenth of it is kept free, and the youngest "
    "are preempted; with outputs reserved, which vLLM does not do, both gains are larger, the other one too large",
    seconds=11,
)
def token_batching(on: Platform, seed: int) -> Figures:
    """As many requests as memory holds against at most 256, both grouped."""
    found: dict[str, float] = {}
    for outputs in (SLOW, FAST, BRIEF):
        jobs = PromptSet(1_570, 3, 30, outputs, 3_000).workload(seed)
        with_it, low = _steps(jobs, on, {"kv_threshold_percent": 90})
        without, low_without = _steps(jobs, on, {"batching": "chunked", "max_running": "256"})
        found |= {f"gain, {outputs}": 100 * (with_it / without - 1), f"without, {outputs}": without}
        found |= {f"valleys, {outputs}": low_without - low}
    return found


# --- outputs ----------------------------------------------------------------------------------------------------------


@row(
    id="7",
    about="a heavy tail of outputs",
    panel="evaluation, outputs with a heavy tail",
    setting="320 prompts, 16 of each group share 2,000 tokens and have 200 of their own; outputs are 10 + 25 "
    "Lomax(1.5) cut at 512; requests finished a second by groups over those without any sharing",
    claims=(
        number(
            "grouped",
            "groups over no sharing",
            "3.2 times",
            3.2,
            control=Control("prompts share a prefix", "grouped, nothing shared"),
        ),
    ),
    note="the outputs have the paper's mean, median and p99, as a Pareto of 1.5 between 10 and 512 has not.  20 "
    "prefixes fit into memory, so a prefix cache alone is nearly as good",
    seconds=0.8,
    quick=True,
)
def heavy_tail(on: Platform, seed: int) -> Figures:
    """Return a copy with grouping and without any sharing."""
    mixed = PromptSet(prompts=320, heavy_tail=True)
    bare = PromptSet(0, own=SHORT + OWN, prompts=320, heavy_tail=True)
    none, cached = _served(bare, "fcfs", on, seed)[1], _served(mixed, "fcfs", on, seed)[1]
    return {
        "grouped": _served(mixed, "batchllm", on, seed)[1] / none,
        "grouped, nothing shared": _served(bare, "batchllm", on, seed)[1] / none,
        "prefix cache alone": cached / none,
    }


_INDUSTRY = "the industry's prompts, their order and their outputs are not published"

PANELS = (
    Panel("upper bound of sharing", "what one level of sharing can save", rows=("1",)),
    Panel("settings A and B", "what grouping saves on two levels", rows=("2",)),
    Panel(
        "saving by the cache, micro-benchmarks", "what an LRU cache keeps of it, and what groups do", rows=("3", "4")
    ),
    Panel("sorted input", "what sorting is worth to vLLM, and groups beside it", rows=("5",)),
    Panel("micro-benchmarks, end to end", "speedups over vLLM and SGLang by prefix and sharers", rows=("60",)),
    Panel("token batching", "throughput with and without it, and tokens by step", rows=("6",)),
    Panel("heavy tail", "outputs of very different lengths", rows=("7",)),
    Panel("industry traffic, saving", "35.8 % kept of 58.1 % that could be", impossible=_INDUSTRY),
    Panel("industry traffic, end to end", "about 1.3 times vLLM", impossible=_INDUSTRY),
    Panel("MI200", "all of it on another accelerator", impossible="no profile of that machine"),
    Panel("prefix-shared attention", "the fused kernel alone", impossible="a kernel's time on a real GPU"),
    Panel("overhead", "seconds to group 8,000 prompts", impossible="a time by the clock of the authors' machine"),
)
"""By what they show: the paper's text was not available to us beyond the facts that the rows quote, so its numbers of
figures and tables are not given."""
