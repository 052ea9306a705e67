"""What is promised on the machines that people buy, and what it costs: the table of bounds.

    python benchmarks/bounds.py --traces DIR --json out/bounds.json
    python benchmarks/bounds.py --from out/bounds.json --csv docs/explanation/promises/bounds.csv

Each load is replayed on one simulated worker of each machine, faster than DLPM without a cap can serve it, so that
clients wait.  DIR holds vtc-arena.csv, azure-2023-conv.csv and mooncake-conversation.jsonl; `clients` is made here: 16
clients in the files of ServeGen, prompts of 154 and outputs of 35 tokens on average, of which 1,544 are declared.
`steady` is the same at 38 requests a second.  Seeds draw the clients of requests; arena has its own, and runs once.

Columns: DLPM without a cap; with one that always holds; with one that holds while others wait (elastic); and the gate
inside the batch, where this version has one.  `bound / busiest` divides what is promised by the service of the busiest
client.  For the elastic cap it stands twice: for decisions made while both wait, and with all that the worst pair had
in flight or owed before.  Throughput and the p99 of TTFT are beside those without a cap.
"""

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import numpy as np

from fairsched.engines.analysis import EventTables, Outcomes, run_charging
from fairsched.engines.simulation import Cluster, RunSpec, Simulator, limits_of
from fairsched.engines.workloads import ClientSpec, at_rate, generate, load_trace
from fairsched.model.request import Workload
from fairsched.model.service import Charging, charges, service
from fairsched.policies.gates import DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES
from tests.support.policies.contended import Gaps

MACHINES = {
    "A10G": "llama-3.2-3b-a10g",
    "A100": "llama-3.1-8b-a100",
    "H100": "llama-3-70b-fp8-h100-tp2",
}
LOADS = ("arena", "azure", "mooncake", "clients", "steady")
FILES = {"arena": "vtc-arena.csv", "azure": "azure-2023-conv.csv", "mooncake": "mooncake-conversation.jsonl"}
REQUESTS = {"arena": 1_500, "azure": 1_500, "mooncake": 300, "clients": 4_000, "steady": 12_000}
GENERATED = {"clients", "steady"}
STEADY_RATE = 38.0
"""Requests a second of `steady`, which A10G and A100 serve without a cap."""
MIX = "zipf:16:1.0"
"""Who sends the requests of traces that name no clients."""
OVERLOAD = 1.25
"""So many times what the machine serves without a cap."""
CAPS = (8_192, 16_384, 32_768)
QUANTUM = 512
GATES: dict[str, dict[str, str]] = {
    "today": {},
    **{f"capped {cap}": {"in_flight_cap_tokens": str(cap)} for cap in (CAPS[0], CAPS[-1])},
    **{f"elastic {cap}": {"in_flight_cap_tokens": str(cap), "cap_holds": "contended"} for cap in CAPS},
}
IN_BATCH = "dlpm-in-batch"
if IN_BATCH in LOCAL_POLICIES:  # The gate inside the batch, where this version has it; L is the longest request.
    GATES |= {"in-batch": {}}


# --- loads ------------------------------------------------------------------------------------------------------------


def clients_folder(folder: Path, seed: int, clients: int = 16, seconds: int = 600) -> None:
    """Write ServeGen's files of so many clients: rates as by Zipf's law, bursts, and each with lengths of its own."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, clients + 1)
    for number, share in enumerate((shares / shares.sum()).tolist()):
        law, shape = ("Gamma", 0.5) if number % 2 else ("Weibull", 0.7)
        rows = [f"{at},{38 * share * rng.uniform(0.5, 1.5):.4f},1.4,{law},{shape},1.0" for at in range(0, seconds, 60)]
        Path(folder, f"chunk-{number}-trace.csv").write_text("\n".join(rows) + "\n")
        prompts = np.clip(rng.lognormal(np.log(154 * rng.uniform(0.5, 1.5)) - 0.5, 1.0, 400), 8, 8_000)
        outputs = np.clip(rng.lognormal(np.log(35 * rng.uniform(0.5, 1.5)) - 0.5, 1.0, 400), 1, 1_544)
        found = {"input_tokens": _histogram(prompts), "output_tokens": _histogram(outputs)}
        Path(folder, f"chunk-{number}-dataset.json").write_text(json.dumps({"0": found}))


def _histogram(values: Any) -> str:
    tokens, counts = np.unique(values.astype(np.int64), return_counts=True)
    pairs = zip(tokens.tolist(), (counts / counts.sum()).tolist(), strict=True)
    return "{" + ", ".join(f"{token}: {part:.6f}" for token, part in pairs) + "}"


def load(name: str, seed: int, traces: Path | None) -> Workload:
    """The workload of a load."""
    if name in GENERATED:
        with TemporaryDirectory() as folder:
            clients_folder(Path(folder), seed)
            whole = generate("servegen", seed=seed, folder=folder, max_output_tokens=1_544)
        return first_of(whole, REQUESTS[name])
    assert traces is not None
    mix = None if name == "arena" else ClientSpec.parse(MIX)
    return load_trace(traces / FILES[name], limit=REQUESTS[name], clients=mix, seed=seed)


def first_of(workload: Workload, limit: int) -> Workload:
    """The first requests of a workload."""
    return Workload(workload.name, workload.jobs[:limit], workload.clients, workload.notes)


# --- runs -------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Row:
    """One run."""

    machine: str
    load: str
    gate: str
    seed: int
    rate: float
    throughput: float
    ttft_p99_s: float
    finished: int
    rejected: int
    busiest: int
    bound: int
    bound_max: int
    gap: int
    over: int
    unlikely: int


def run(machine: str, name: str, gate: str, seed: int, workload: Workload, rate: float) -> Row:
    """Simulate one run."""
    params = {"quantum": str(QUANTUM), **GATES[gate]}
    inside = gate == "in-batch"
    if inside:
        sizes = (job.request.prompt_tokens + job.request.max_output_tokens for job in workload.jobs)
        params["context_tokens"] = str(max(sizes))
    spec, cluster = RunSpec.of(IN_BATCH if inside else "dlpm", params=params), Cluster(MACHINES[machine])
    policy = spec.policy
    assert isinstance(policy, ComposedPolicy)
    assert isinstance(policy.gate, DeficitGate)
    limits, events = limits_of(workload, cluster, policy), EventTables()
    elastic = Gaps(policy.gate, limits) if policy.gate.elastic else None

    def on_events(happened: list[Any]) -> None:
        events.add(happened)
        if elastic is not None:
            for event in happened:
                elastic.follow(event)

    Simulator(workload, policy, spec.router, cluster.latency, workers=cluster.specs, on_events=on_events).run()
    trace = events.whole()
    charged = charges(trace, run_charging(policy, workload.clients) or Charging())
    found, most = Outcomes(workload, trace).measures(None), int(service(charged, len(workload.clients)).max())
    bound = policy.guarantee.service_gap_bound(workload.clients, limits) or 0
    if elastic is not None:
        elastic.judge(elastic.together)
    return Row(
        machine,
        name,
        gate,
        seed,
        rate,
        found.throughput_rps or 0.0,
        (found.ttft_us.p99 or 0.0) / 1e6,
        found.finished,
        found.rejected,
        most,
        bound if elastic is None else elastic.bound(0),
        bound if elastic is None else max((most for _, most in elastic.seen), default=0),
        0 if elastic is None else max((gap for gap, _ in elastic.seen), default=0),
        0 if elastic is None else elastic.over + elastic.past_cap,
        0 if elastic is None else elastic.unlikely,
    )


def measured(machines: list[str], loads: list[str], seeds: int, traces: Path | None) -> list[Row]:
    """Run everything; a line is printed for each run."""
    rows = []
    for name in loads:
        for seed in range(1 if name == "arena" else seeds):
            workload = load(name, seed, traces)
            for machine in machines:
                rate = STEADY_RATE
                if name != "steady":
                    rate = OVERLOAD * run(machine, name, "today", seed, at_rate(workload, 1e4), 1e4).throughput
                for gate in GATES:
                    row = run(machine, name, gate, seed, at_rate(workload, rate), rate)
                    rows.append(row)
                    print(json.dumps(attrs.asdict(row)), flush=True)
    return rows


# --- table ------------------------------------------------------------------------------------------------------------


def _place(kind: tuple[str, str, str]) -> tuple[int, int, int]:
    machine, name, gate = kind
    return LOADS.index(name), list(MACHINES).index(machine), list(GATES).index(gate)


HEAD = (
    *("machine", "load", "gate", "bound / busiest"),
    *("with what was in flight", "requests/s", "p99 of TTFT", "refused"),
)


def table(rows: list[Row]) -> list[Sequence[str]]:
    """Return the table, medians over seeds; in bold what is below a tenth, with what was in flight, for less than 5 %
    of the throughput, where no request is refused."""
    lines: list[Sequence[str]] = [HEAD]
    kinds = sorted({(row.machine, row.load, row.gate) for row in rows}, key=_place)
    for machine, name, gate in kinds:
        of = [row for row in rows if (row.machine, row.load, row.gate) == (machine, name, gate)]
        without = {row.seed: row for row in rows if (row.machine, row.load, row.gate) == (machine, name, "today")}
        least, most = (statistics.median([getattr(r, b) / r.busiest for r in of]) for b in ("bound", "bound_max"))
        kept = statistics.median([row.throughput / without[row.seed].throughput for row in of])
        ttft = statistics.median([row.ttft_p99_s for row in of])
        rate = statistics.median([row.throughput for row in of])
        whole = most < 0.1 and kept > 0.95 and not any(row.rejected for row in of)
        share = f"**{least:.3f}**" if whole else f"{least:.3f}"
        served = f"{rate:.2f} ({kept:.0%})"
        refused = str(sum(row.rejected for row in of))
        lines.append((machine, name, gate, share, f"{most:.3f}", served, f"{ttft:.1f} s", refused))
    return lines


def main() -> None:
    """Run what is asked, or print the table of a former run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="folder of the three traces")
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=list(MACHINES))
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file that the rows are written to")
    parser.add_argument("--from", dest="former", nargs="+", type=Path, help="files of former runs, in place of running")
    parser.add_argument("--csv", type=Path, help="file that the table is written to (default: standard output)")
    asked = parser.parse_args()
    if asked.former is not None:
        rows = [Row(**each) for file in asked.former for each in json.loads(file.read_text())]
    else:
        if asked.traces is None and not set(asked.loads) <= GENERATED:
            parser.error(f"--traces: the folder of {', '.join(FILES.values())}")
        rows = measured(asked.machines, asked.loads, asked.seeds, asked.traces)
    if asked.json is not None:
        asked.json.write_text(json.dumps([attrs.asdict(row) for row in rows], indent=1) + "\n")
    with asked.csv.open("w") if asked.csv is not None else nullcontext(sys.stdout) as file:
        csv.writer(file, lineterminator="\n").writerows(table(rows))


if __name__ == "__main__":
    main()
