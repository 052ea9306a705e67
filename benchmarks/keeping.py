"""What keeping the KV of a program between its calls gives to programs, and takes from others.

    python benchmarks/keeping.py --seeds 5

Nine programs of one agent each, whose tools take five seconds, share a worker with single requests that have prompts of
their own, one after 0.4 s on average.  By plain LRU these take the place of a program's KV while its tool runs.  A row
has, by how long KV is kept: the programs' share of context tokens that were cached and their mean latency, then the
single requests' mean latency, under `dlpm-hierarchical` by program; means over the seeds.  In the control no call says
that another follows.
"""

import argparse
import random
from statistics import mean
from typing import Any

from msgspec.structs import replace

from fairsched.engines.analysis import EventTables, Outcomes
from fairsched.engines.analysis.metrics import by_program
from fairsched.engines.simulation import RunSpec, Simulator
from fairsched.engines.workloads import generate, with_account
from fairsched.engines.workloads.fleet import WorkerSpec
from fairsched.model.machine import PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.routers import RoundRobin

MACHINE, KV_TOKENS, QUANTUM = PRESETS["llama-3.2-3b-a10g"], 16_384, 512
TOOL_NS, GAP_S, SINGLES, SINGLE_TOKENS, OUTPUT_TOKENS = 5 * 10**9, 0.4, 240, 1_024, 32


def mixed(seed: int, *, says: bool) -> Workload:
    """Return programs beside single requests; without `says` no call tells that others follow it."""
    programs = with_account(generate("subagents", seed=seed, agents=1, others=8, width=1), "program")
    jobs, number = [], len(programs.clients)
    for job in programs.jobs:
        levels = job.request.downstream_levels if says else 0
        jobs.append(replace(job, request=replace(job.request, downstream_levels=levels), think_ns=TOOL_NS))
    rng, at_s, first = random.Random(seed), 0.0, len(jobs)
    for place in range(SINGLES):
        at_s += rng.expovariate(1 / GAP_S)
        keys = [rng.getrandbits(63) for _ in range(SINGLE_TOKENS // 16)]
        prompt = Prompt.from_keys(keys, block_tokens=16)
        jobs.append(Job(Request(first + place, number, round(at_s * 1e9), prompt, OUTPUT_TOKENS), OUTPUT_TOKENS))
    jobs.sort(key=lambda job: (job.request.arrival_ns, job.request.id))
    return Workload("mixed", tuple(jobs), (*programs.clients, Client(number, "chat")))


def run(workload: Workload, keep_s: int) -> tuple[float, float, float]:
    """Return the programs' hit ratio and mean latency, and the single requests' mean latency, in seconds."""
    local: Any = RunSpec.of("dlpm-hierarchical", params={"quantum": QUANTUM}).policy
    spec, tables = WorkerSpec(MACHINE, KV_TOKENS, keep_ns=keep_s * 10**9), EventTables()
    Simulator(workload, local, RoundRobin(), MACHINE, workers=[spec], on_events=tables.add).run()
    outcomes, chat = Outcomes(workload, tables.whole()), len(workload.clients) - 1
    hits = [outcomes.measures(client).prefix_hit_ratio or 0.0 for client in range(chat)]
    latency = mean((program.latency_ns or 0) / 1e9 for program in by_program(outcomes).values())
    return mean(hits), latency, (outcomes.measures(chat).latency_us.mean or 0.0) / 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    print("| kept for | programs: cached | latency | single requests: latency |\n|---|---|---|---|")
    for says in (True, False):
        made = [mixed(seed, says=says) for seed in range(asked.seeds)]
        for keep_s in (0, 5, 10, 30, 120) if says else (120,):
            hits, latency, single = (mean(values) for values in zip(*(run(each, keep_s) for each in made), strict=True))
            name = f"{keep_s} s" + ("" if says else ", no call says that others follow")
            print(f"| {name} | {hits:.1%} | {latency:.1f} s | {single:.2f} s |", flush=True)


if __name__ == "__main__":
    main()
