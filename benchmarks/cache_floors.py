"""Attacks on a polite client's cached prompts, by plain LRU and with a floor; and what an eviction decision costs.

    python benchmarks/cache_floors.py --seeds 3

A polite client asks about four documents of 4,096 tokens once in two seconds, beside an attack, under `dlpm` on a
worker of 49,152 tokens.  A row has the polite client's share of context tokens that were cached, that of all clients,
and all computed and output tokens a second; means over the seeds.  The floor is what four documents and two of its
requests take.  The last lines are microseconds of an eviction from a cache of so many leaves.
"""

import argparse
import random
from statistics import mean
from time import perf_counter
from typing import Any

import numpy as np

from fairsched.engines.analysis import EventTables, Outcomes
from fairsched.engines.simulation import RunSpec, Simulator
from fairsched.engines.workloads import with_floors
from fairsched.engines.workloads.fleet import WorkerSpec
from fairsched.model.machine import PRESETS
from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.model.worker import WorkerState
from fairsched.policies.routers import RoundRobin

MACHINE, KV_TOKENS, FLOOR_TOKENS, BLOCK = PRESETS["llama-3.2-3b-a10g"], 49_152, 20_480, 16
DOCUMENTS, DOCUMENT_TOKENS, QUESTION_TOKENS, OUTPUT_TOKENS, SECONDS = 4, 4_096, 64, 96, 60

ATTACKS = {
    "none": (0.0, 0, 1, False),
    "prefix flooding: one client, every prompt new": (4.0, 4_096, 1, False),
    "many keys: the same from 64 clients": (4.0, 4_096, 64, False),
    "long contexts: prompts of 24,576 tokens": (0.6, 24_576, 1, False),
    "shared prefixes: the polite client's documents, continued by 2,048 tokens": (4.0, 2_048, 1, True),
}
"""Requests a second, new tokens of each, clients, and whether they begin with a document of the polite client."""


def attacked(seed: int, rate: float, tokens: int, clients: int, shares: bool) -> Workload:
    """Return the polite client, number 0, beside an attack; attacks begin 8 seconds after it."""
    draw = np.random.default_rng(seed)
    rng = random.Random(seed)

    def fresh(count: int) -> list[int]:
        return [int(key) for key in draw.integers(1 << 62, size=count // BLOCK)]

    documents = [fresh(DOCUMENT_TOKENS) for _ in range(DOCUMENTS)]
    rows = [(2.0 * i + 1, 0, documents[i % DOCUMENTS] + fresh(QUESTION_TOKENS)) for i in range(SECONDS // 2)]
    at_s = 8.0
    while rate and (at_s := at_s + rng.expovariate(rate)) < SECONDS:
        begins = rng.choice(documents) if shares else []
        rows.append((at_s, 1 + rng.randrange(clients), begins + fresh(tokens)))
    jobs = [
        Job(
            Request(i, client, round(at_s * 1e9), Prompt.from_keys(keys, block_tokens=BLOCK), OUTPUT_TOKENS),
            OUTPUT_TOKENS,
        )
        for i, (at_s, client, keys) in enumerate(sorted(rows))
    ]
    return Workload("attacked", tuple(jobs), tuple(Client(i, f"client-{i}") for i in range(clients + 1)))


def run(workload: Workload) -> tuple[float, float, float]:
    """Return the hit ratios of the polite client and of all, and tokens a second."""
    local: Any = RunSpec.of("dlpm").policy
    spec, tables = WorkerSpec(MACHINE, KV_TOKENS), EventTables()
    Simulator(workload, local, RoundRobin(), MACHINE, workers=[spec], on_events=tables.add).run()
    outcomes = Outcomes(workload, tables.whole())
    every = outcomes.measures(None)
    return outcomes.measures(0).prefix_hit_ratio or 0.0, every.prefix_hit_ratio or 0.0, every.throughput_rps or 0.0


def eviction_us(leaves: int, floors: dict[int, int]) -> float:
    """Return microseconds of an eviction of one block from so many leaves of eight clients."""
    state = WorkerState(0, 2 * leaves * BLOCK).with_floors(floors)
    cache = state.cache if floors else PrefixCache()
    for i in range(leaves):
        prompt = Prompt.from_keys([i], block_tokens=BLOCK)
        cache, _ = cache.complete(i, prompt, 1, i, i % 8)
        cache = cache.release(i)
    state = WorkerState(0, 2 * leaves * BLOCK, cache=cache, floors=state.floors)
    times = []
    for _ in range(50):
        begun = perf_counter()
        state.cache.evict(BLOCK, state.evictor() if floors else None)
        times.append((perf_counter() - begun) * 1e6)
    return sorted(times)[len(times) // 2]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    print("| attack | cache | polite: cached | all: cached | requests a second |\n|---|---|---|---|---|")
    for name, attack in ATTACKS.items():
        for cache, floors in (("LRU", {}), ("floor", {"client-0": FLOOR_TOKENS})):
            made = [attacked(seed, *attack) for seed in range(asked.seeds)]
            runs = [run(Workload(each.name, each.jobs, with_floors(each.clients, floors))) for each in made]
            polite, every, rate = (mean(values) for values in zip(*runs, strict=True))
            print(f"| {name} | {cache} | {polite:.1%} | {every:.1%} | {rate:.2f} |", flush=True)
    for leaves in (100, 1_000, 10_000):
        plain, floored = eviction_us(leaves, {}), eviction_us(leaves, dict.fromkeys(range(8), 10 * BLOCK))
        print(f"| {leaves:,} leaves | {plain:,.0f} us | {floored:,.0f} us |", flush=True)


if __name__ == "__main__":
    main()
