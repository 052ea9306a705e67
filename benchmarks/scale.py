"""What a growing cluster costs its scheduler: decisions a second, memory and fairness, and the size of states.

    python -m benchmarks.scale [--workers N,...] [--clients N,...] [--requests N,...] [--policy NAME] [--router NAME]
                               [--workload NAME[:PARAM=VALUE,...]] [--rate-scale X] [--state-sizes N,...] [--json FILE]

Every number of workers is simulated with every number of clients and requests (default: 20 a worker, 2 a client), then
the states of policy and router are measured for each client, waiting request, cached block and ended request.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import attrs

from benchmarks.scaling.rows import SIZED, Growth, ScaleRow, growth, scale
from benchmarks.scaling.states import STATE_SIZES, StateCost, state_costs
from fairsched.engines.analysis import Column, count, open_console, print_small, print_table, rate, share
from fairsched.engines.analysis.figures import index
from fairsched.engines.simulation import Cluster, latency_model
from fairsched.model.machine import DEFAULT_PRESET
from fairsched.policies.registry import ROUTERS, local_policy

_Shown = TypeVar("_Shown", ScaleRow, StateCost)

LEGEND = (
    "Decisions/s: one over the mean time that the router, and a worker's policy, takes to decide and to learn events.",
    "CPU s: seconds of one core that the whole simulation took here. Peak: memory of this process so far.",
    "Imbalance: the most work of a worker over the mean. Jain's index: of client service while all clients are active.",
    "Gap: the largest service gap between two clients at one worker; above 256 clients, between the busiest 256.",
    "Bytes each: what one more takes in the state of the policy or the router alone. Decision: with one arrival told.",
)


def numbers(text: str) -> list[int]:
    """Return positive numbers separated by commas, each once, in order."""
    found = sorted({int(part) for part in text.split(",")})
    if found[0] < 1:
        raise ValueError(text)
    return found


def options() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description="grow workers, clients and requests")
    parser.add_argument("--workers", type=numbers, default=[4, 16, 64])
    parser.add_argument("--clients", type=numbers, default=[10, 100])
    parser.add_argument("--requests", type=numbers, default=[])
    parser.add_argument("--router", default="e2")
    parser.add_argument("--policy", default="dlpm")
    parser.add_argument("--workload", default="toolbench", help=f"of {', '.join(SIZED)}")
    parser.add_argument("--requests-per-worker", type=int, default=20)
    parser.add_argument("--requests-per-client", type=int, default=2)
    parser.add_argument("--rate-scale", type=float, default=1.0)
    parser.add_argument("--state-sizes", type=numbers, default=list(STATE_SIZES))
    parser.add_argument("--latency-model", default=DEFAULT_PRESET)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    given = options().parse_args(argv)
    name, _, params = given.workload.partition(":")
    rows: list[ScaleRow] = []
    costs: list[StateCost] = []
    complete = True
    try:
        for row in scale(
            given.workers,
            given.clients,
            given.requests,
            policy=given.policy,
            router=given.router,
            workload=name,
            params={
                key.replace("-", "_"): value
                for key, _, value in (each.partition("=") for each in params.split(",") if each)
            },
            requests_per_worker=given.requests_per_worker,
            requests_per_client=given.requests_per_client,
            rate_scale=given.rate_scale,
            cluster=Cluster(latency_model(given.latency_model)),
            seed=given.seed,
            jobs=given.jobs,
        ):
            rows.append(row)
        for policy in (local_policy(given.policy), ROUTERS[given.router]):
            costs += state_costs(policy, given.state_sizes)
    except KeyboardInterrupt:
        complete = False
        print(f"Interrupted after {len(rows)} sizes.", file=sys.stderr)
    grown = growth(rows)
    if given.json is not None:
        document = {
            "sizes": [attrs.asdict(row) | {"gap_over_bound": row.gap_over_bound} for row in rows],
            "growth": [attrs.asdict(each) for each in grown],
            "state": [
                attrs.asdict(each) | {"bytes_each": each.bytes_each, "exponent": each.exponent} for each in costs
            ],
        }
        given.json.write_text(json.dumps(document, indent=2))
    show(rows, grown, costs, f"{given.policy} behind {given.router}")
    return 0 if complete else 130


_SCALE_COLUMNS: dict[Column, Callable[[ScaleRow], str]] = {
    Column("workers"): lambda row: f"{row.workers:,}",
    Column("clients"): lambda row: f"{row.clients:,}",
    Column("requests", 4): lambda row: f"{row.requests:,}",
    Column("CPU\ns", 3): lambda row: rate(row.cpu_s),
    Column("router\ndecisions/s"): lambda row: count(row.router_decisions_per_s),
    Column("local\ndecisions/s"): lambda row: count(row.local_decisions_per_s),
    Column("peak\nMB", 3): lambda row: f"{row.peak_rss_bytes / 1e6:,.0f}",
    Column("served\nreq/s", 5): lambda row: rate(row.throughput_rps),
    Column("imbalance", 2): lambda row: rate(row.imbalance),
    Column("Jain", 1): lambda row: index(row.jain),
    Column("gap", 2): lambda row: count(row.gap),
    Column("gap /\nbound", 1): lambda row: share(row.gap_over_bound),
}


def _cells(columns: Mapping[Column, Callable[[_Shown], str]], shown: _Shown) -> list[str]:
    return [text(shown) for text in columns.values()]


def _growth_text(grows: Growth) -> str:
    powers = ", ".join(f"{name} as {grows.by}^{power:.2f}" for name, power in grows.exponents.items())
    return f"CPU time, {grows.sizes[0]:,} to {grows.sizes[-1]:,} {grows.by}: {powers}."


_STATE_COLUMNS: dict[Column, Callable[[StateCost], str]] = {
    Column("state of", kind="name"): lambda cost: cost.policy,
    Column("for each", kind="name"): lambda cost: cost.kept,
    Column("bytes\neach"): lambda cost: f"{max(cost.bytes_each, 0):,.0f}",
    Column("decision\nus"): lambda cost: rate(cost.decision_us[-1]),
    Column("grows as\npower"): lambda cost: f"{cost.exponent:.2f}",
}


def show(rows: list[ScaleRow], grown: Sequence[Growth], costs: list[StateCost], title: str) -> None:
    """Print the tables."""
    console = open_console()
    print_table(console, list(_SCALE_COLUMNS), [_cells(_SCALE_COLUMNS, row) for row in rows], title=title)
    print_small(console, [_growth_text(each) for each in grown])
    if costs:
        sizes = costs[0].sizes
        title = f"State with {sizes[0]:,} to {sizes[-1]:,} of each; decisions with {sizes[-1]:,}"
        print_table(console, list(_STATE_COLUMNS), [_cells(_STATE_COLUMNS, cost) for cost in costs], title=title)
    print_small(console, LEGEND)


if __name__ == "__main__":
    sys.exit(main())
