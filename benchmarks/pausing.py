"""What the gate inside the batch costs, by the debt P from which it pauses.

    python benchmarks/pausing.py --traces DIR --requests 400

Each trace (vtc-arena.csv and azure-2023-conv.csv in DIR) is replayed on one simulated worker 1.25 times as fast as DLPM
serves it.  `longest` is the gate as it is, whose P is the price of the longest request so far; others pause from one
debt on (U is w_q B + max(w_e L, P) then); `never` is DLPM itself.  Columns: requests and output tokens a second, p99 of
TTFT, pauses, the longest of them, requests taken out of the batch, and the bound of the gap over the service of the
busiest client.
"""

import argparse
from pathlib import Path
from typing import Any

import attrs

from fairsched.engines.analysis import EventTables, Outcomes, run_charging
from fairsched.engines.simulation import Cluster, RunSpec, Simulator, limits_of
from fairsched.engines.workloads import ClientSpec, at_rate, load_trace
from fairsched.model.events import Decoded, Event, Paused, Preempted, Resumed
from fairsched.model.pricing import price
from fairsched.model.request import Workload
from fairsched.model.service import Charging, charges, service
from fairsched.policies.base import Limits
from fairsched.policies.gates import InBatchGate
from fairsched.policies.gates.in_batch import InBatchState

MACHINE, QUANTUM, OVERLOAD = "llama-3.1-8b-a100", 512, 1.25
FILES = {"arena": "vtc-arena.csv", "azure": "azure-2023-conv.csv"}
DEBTS = (0, 2_048, "longest", 8_192, 32_768, None)


@attrs.frozen
class AtDebt(InBatchGate):
    """The gate inside the batch with a debt of its own."""

    debt: int = 0

    def depth(self, state: InBatchState) -> int:
        """P, whatever was let in."""
        return self.debt

    def charge_max(self, limits: Limits) -> int:
        """U by what is deeper, a prompt or P."""
        return super().charge_max(limits) + max(self.debt - price(self.context_tokens or 0, self.rates.input), 0)


def run(workload: Workload, debt: int | str | None) -> tuple[float, list[str]]:
    """Return the requests served a second and the cells of a row."""
    params = {"quantum": str(QUANTUM)}
    longest = max(job.request.prompt.tokens + job.request.max_output_tokens for job in workload.jobs)
    if debt is not None:
        params["context_tokens"] = str(longest)
    spec, cluster = RunSpec.of("dlpm" if debt is None else "dlpm-in-batch", params=params), Cluster(MACHINE)
    policy: Any = spec.policy
    if isinstance(debt, int):
        policy = attrs.evolve(policy, gate=AtDebt(quantum=QUANTUM, context_tokens=longest, debt=debt))
    tables, since, counts = (
        EventTables(),
        dict[int, int](),
        {"pauses": 0, "longest": 0, "out": 0, "tokens": 0, "end": 1},
    )

    def on_events(happened: list[Event]) -> None:
        tables.add(happened)
        for event in happened:
            counts["end"] = max(counts["end"], event.time_ns)
            if isinstance(event, Paused):
                counts["pauses"] += 1
                since[event.request_id] = event.time_ns
            elif isinstance(event, Resumed | Preempted):
                counts["out"] += isinstance(event, Preempted)
                begun = since.pop(event.request_id, event.time_ns)
                counts["longest"] = max(counts["longest"], event.time_ns - begun)
            elif isinstance(event, Decoded):
                counts["tokens"] += sum(event.tokens)

    Simulator(workload, policy, spec.router, cluster.latency, workers=cluster.specs, on_events=on_events).run()
    trace = tables.whole()
    charged = charges(trace, run_charging(policy, workload.clients) or Charging())
    busiest = int(service(charged, len(workload.clients)).max())
    bound = policy.gate.service_gap_bound(workload.clients, limits_of(workload, cluster, policy)) or 0
    found = Outcomes(workload, trace).measures(None)
    rate, ttft = found.throughput_rps or 0.0, (found.ttft_us.p99 or 0.0) / 1e6
    cells = [f"{rate:.2f}", f"{counts['tokens'] * 1e9 / counts['end']:,.0f}", f"{ttft:.1f} s", f"{counts['pauses']:,}"]
    return rate, [*cells, f"{counts['longest'] / 1e9:.1f} s", f"{counts['out']:,}", f"{bound / busiest:.3f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder of the traces")
    parser.add_argument("--requests", type=int, default=400)
    asked = parser.parse_args()
    print("| trace | P | requests/s | tokens/s | p99 of TTFT | pauses | longest | taken out | bound / busiest |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, file in FILES.items():
        mix = None if name == "arena" else ClientSpec.parse("zipf:16:1.0")
        workload = load_trace(asked.traces / file, limit=asked.requests, clients=mix, seed=0)
        rate, _ = run(at_rate(workload, 1e4), None)
        for debt in DEBTS:
            _, cells = run(at_rate(workload, OVERLOAD * rate), debt)
            shown = "never" if debt is None else debt if isinstance(debt, str) else f"{debt:,}"
            print(f"| {name} | {shown} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
