"""Whose bounds bind as shipped: every preset, generated workload, and default policy with a bound.

    python benchmarks/binding.py --csv docs/explanation/promises/binding.csv

Columns are KV memories of presets: the bound over the service of the busiest client if nothing of it is cached, which
needs no simulation.  Simulated on the default preset are requests a second, as a share of LPM's, and the bound over
what the busiest client was charged.
"""

import argparse
import csv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fairsched.engines.simulation import Cluster, limits_of, simulate
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.generators import WORKLOADS
from fairsched.model.machine import PRESETS
from fairsched.model.pricing import COMMON
from fairsched.model.request import Workload
from fairsched.policies.registry import LOCAL_POLICIES

POLICIES = ("vtc", "dlpm", "dlpm-in-batch")
MEMORIES = dict(sorted((model.kv_capacity_tokens, name) for name, model in PRESETS.items()))
"""A preset for each size of memory."""
HEAD = ("workload", "policy", "requests/s", "over charged")


def shares(workload: Workload, name: str, presets: Iterable[str] = MEMORIES.values()) -> list[str]:
    """Return the bound on each preset over the service of the busiest client, of the requests that fit."""
    found, policy = [], LOCAL_POLICIES[name]
    for preset in presets:
        cluster, charged = Cluster(preset), Counter[int]()
        for job in workload.jobs:
            prompt, request = job.request.prompt.tokens, job.request
            if prompt + request.max_output_tokens <= cluster.capacity:
                charged[request.client] += COMMON.input * prompt + COMMON.output * job.output_tokens
        bound = policy.guarantee.service_gap_bound(workload.clients, limits_of(workload, cluster, policy))
        assert bound is not None
        found.append(f"{bound / max(charged.values()):.2g}" if charged else "")
    return found


def rows(workload: Workload) -> list[list[str]]:
    """Return the rows of a workload, with a simulation by each policy."""
    least = simulate(workload, "lpm").measures.throughput_rps or 0.0
    found = []
    for name in POLICIES:
        run = simulate(workload, name)
        served, charged = (run.measures.throughput_rps or 0.0) / least, f"{run.bound_over_busiest:.2g}"
        found.append([workload.name, name, f"{served:.0%}", charged, *shares(workload, name)])
    return found


def main() -> None:
    """Simulate, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, required=True, help="file that the table is written to")
    path = parser.parse_args().csv
    made = [row for name in WORKLOADS if name != "servegen" for row in rows(generate(name))]
    with path.open("w") as file:
        csv.writer(file, lineterminator="\n").writerows(([*HEAD, *MEMORIES], *made))


if __name__ == "__main__":
    main()
