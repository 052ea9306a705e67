"""Rules of admission of programs, beside each other: programs in time, latency, hits, shares and bounds.

    python benchmarks/admission.py --json docs/measured.json

Four workloads of programs at three loads each, on one worker (Llama-3.2-3B on an A10G) that holds few of them, under
ten rules.  The KV of a call that others follow counts as used 10 s after its end (`--keep-s 10`) under all of them.
A program is in time if its last call ends within the target of its workload.  The largest share is that of a client,
of what calls received that finished while all programs were under way; the bound is that of the gate between clients,
over what the busiest received: below 1 it binds.  Figures are means over seeds from 1000 on.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import attrs
import numpy as np

from fairsched.engines.simulation import Cluster, latency_model, simulate
from fairsched.engines.workloads import Account, WorkerSpec, generate, with_account
from fairsched.model.pricing import COMMON
from fairsched.model.request import Workload

MACHINE = latency_model("llama-3.2-3b-a10g")
FIRST_SEED, KEEP_NS = 1000, 10_000_000_000
LOADS = ("low", "middle", "high")


@attrs.frozen
class Cell:
    """A workload: its generator with parameters at each of the three loads, the worker's memory, and within how many
    seconds a program has to end."""

    name: str
    generator: str
    kv_tokens: int
    target_s: float
    params: Mapping[str, Any]
    loads: tuple[Mapping[str, Any], ...]

    def made(self, load: int, seed: int) -> Workload:
        """Return the workload at that load."""
        return generate(self.generator, seed=seed, **{**self.params, **self.loads[load]})


def _rates(*rates: float) -> tuple[Mapping[str, Any], ...]:
    return tuple({"rate": rate} for rate in rates)


TOOLS = {"task_tokens": 1_737, "observation_tokens": 200, "output_tokens": 64, "think_s": 2.0}
CELLS = (
    Cell("tools", "agent", 32_768, 60.0, {"tasks": 40, "steps": 12, **TOOLS}, _rates(3.0, 5.0, 8.0)),
    Cell("embodied", "agent", 16_384, 30.0, {"tasks": 40, "steps": 16, "think_s": 1.0}, _rates(8.0, 14.0, 24.0)),
    Cell(
        "subagents",
        "subagents",
        32_768,
        60.0,
        {"agents": 16, "width": 3, "turns": 8},
        tuple({"others": others} for others in (5, 8, 12)),
    ),
    Cell("chats", "multi-turn", 16_384, 60.0, {"sessions": 80, "think_s": 3.0}, _rates(1.0, 2.0, 4.0)),
)


@attrs.frozen
class Rule:
    """A policy, and whose account calls are charged to."""

    policy: str
    account: Account = "client"
    params: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def name(self) -> str:
        """How tables name it."""
        return f"`{self.policy}`" + "".join(f", {name} {value:,}" for name, value in self.params.items())


RULES = (
    *(Rule("fcfs"), Rule("lpm"), Rule("dlpm-hierarchical", "program")),
    Rule("dlpm-hierarchical", "program", {"quantum": 131_072}),
    *(Rule("las", "program"), Rule("afs")),
    *(Rule("continuum"), Rule("concur"), Rule("thunderagent"), Rule("programs", "program")),
)
FIGURES = ("in time, %", "p99, s", "hits, %", "largest share, %", "bound / busiest")


def figures(cell: Cell, load: int, rule: Rule, seed: int) -> tuple[float | None, ...]:
    """Return what one run shows, by `FIGURES`."""
    made = cell.made(load, seed)
    worker = WorkerSpec(MACHINE, cell.kv_tokens, keep_ns=KEEP_NS)
    cluster = Cluster(MACHINE, (worker,))
    run = simulate(with_account(made, rule.account), rule.policy, cluster=cluster, params=rule.params)
    of_call = {job.request.id: (job.program, job.request.client) for job in made.jobs}
    seen = run.requests
    programs, clients = zip(*[of_call[request] for request in seen["request"].tolist()], strict=True)
    by_program, by_client = np.array(programs), np.array(clients)
    begun, ended = np.full(max(programs) + 1, np.iinfo(np.int64).max), np.zeros(max(programs) + 1, np.int64)
    np.minimum.at(begun, by_program, seen["arrival_ns"])
    np.maximum.at(ended, by_program, seen["end_ns"])
    latency_s = (ended - begun) / 1e9
    cost = COMMON.input * (seen["prompt_tokens"] - seen["cached_tokens"]) + COMMON.output * seen["output_tokens"]
    first_done = min(seen["end_ns"][by_client == client].max() for client in set(clients))
    together = seen["end_ns"] <= first_done
    received = np.bincount(by_client[together], cost[together])
    bound = run.service_gap_bound if run.organisations is None else run.organisations.bound
    busiest = np.bincount(by_client, cost).max()
    return (
        100 * float((latency_s <= cell.target_s).mean()),
        float(np.percentile(latency_s, 99)),
        100 * (run.measures.prefix_hit_ratio or 0.0),
        100 * float(received.max() / received.sum()),
        None if bound is None else bound / float(busiest),
    )


def _shown(found: Sequence[tuple[float | None, ...]]) -> list[str]:
    shown = []
    for each in zip(*found, strict=True):
        known = [value for value in each if value is not None]
        shown.append(f"{fmean(known):.1f}" if known else "none")
    return shown


def table(seeds: int, cells: Sequence[Cell]) -> list[list[str]]:
    """Return the rows of the table, the head first."""
    rows = [["workload", "rule", *(f"{figure} ({'; '.join(LOADS)})" for figure in FIGURES)]]
    for cell in cells:
        for rule in RULES:
            loads = []
            for load in range(len(LOADS)):
                runs = [figures(cell, load, rule, FIRST_SEED + i) for i in range(seeds)]
                loads.append(_shown(runs))
            rows.append([cell.name, rule.name, *map("; ".join, zip(*loads, strict=True))])
            print(f"| {' | '.join(rows[-1])} |", flush=True)
    return rows


def main() -> None:
    """Print the table, and write it to the file of measured figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workloads", default=",".join(cell.name for cell in CELLS))
    parser.add_argument("--json", type=Path, help="a file of tables, of which `admission` is replaced")
    asked = parser.parse_args()
    rows = table(asked.seeds, [cell for cell in CELLS if cell.name in asked.workloads.split(",")])
    if asked.json:
        kept = json.loads(asked.json.read_text())
        asked.json.write_text(json.dumps({**kept, "admission": rows}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
