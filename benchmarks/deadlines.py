"""Share of the requests that met their targets, by order and gate.

    python benchmarks/deadlines.py [WORKLOAD ...] [--requests COUNT] [--by client|request] [--quantum UNITS]

The built-in workloads have no targets, so each client, or each request, gets one by its number: every other one wants
the first token within 2 s, the others the whole answer within 60 s.  Each workload is sent at its own rate to one
simulated worker.  A row is an order; its columns are SLO attainment in per cent under an open gate, the counter gate
and the deficit gate, of all requests and, after the slash, of the client that is worst off.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from fairsched.engines.analysis import EventTables, Outcomes
from fairsched.engines.simulation import Cluster, RunSpec, Simulator
from fairsched.engines.workloads import generate
from fairsched.model.request import Slo, Workload

MACHINE = "llama-3.1-8b-a100"
WORKLOADS = ("azure-chat", "azure-code", "tree-of-thoughts", "multi-turn", "toolbench")
ORDERS = ("fcfs-optimistic", "lpm", "larry", "edf", "least-slack", "jitserve", "equinox")
GATES = ("", "+counter", "+deficit")
TARGETS = (Slo(ttft_ns=2 * 10**9), Slo(latency_ns=60 * 10**9))


def with_targets(workload: Workload, by: str) -> Workload:
    """Return the workload with a target for each request, by its client or by its own number."""
    jobs = []
    for job in workload.jobs:
        number = job.request.client if by == "client" else job.request.id // len(workload.clients)
        jobs.append(replace(job, request=replace(job.request, slo=TARGETS[number % len(TARGETS)])))
    return replace(workload, jobs=tuple(jobs))


def attained(workload: Workload, policy: str, quantum: int | None) -> str:
    """Return the attainment of all requests and of the worst client, in per cent."""
    params = {"quantum": str(quantum)} if quantum is not None and policy.endswith("+deficit") else {}
    spec, cluster, tables = RunSpec.of(policy, params=params), Cluster(MACHINE), EventTables()
    decides: Any = spec.policy
    Simulator(workload, decides, spec.router, cluster.latency, workers=cluster.specs, on_events=tables.add).run()
    outcomes = Outcomes(workload, tables.whole())
    clients = [outcomes.measures(client.id).slo_attainment for client in workload.clients]
    worst = min(share for share in clients if share is not None)
    return f"{100 * (outcomes.measures(None).slo_attainment or 0.0):.1f} / {100 * worst:.1f}"


def rows(workload: Workload, quantum: int | None) -> Iterator[str]:
    """Return the lines of a workload's table."""
    yield f"{'order':<16}" + "".join(f"{gate[1:] or 'open':>16}" for gate in GATES)
    for order in ORDERS:
        yield f"{order:<16}" + "".join(f"{attained(workload, order + gate, quantum):>16}" for gate in GATES)


def main() -> None:
    """Print a table for each workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS)
    parser.add_argument("--requests", type=int, default=None, help="so many of each workload, the first ones")
    parser.add_argument("--by", choices=("client", "request"), default="client", help="whose number sets the target")
    parser.add_argument("--quantum", type=int, default=None, help="of the deficit gate, in cost units")
    asked = parser.parse_args()
    for name in asked.workloads:
        made = generate(name)
        workload = with_targets(replace(made, jobs=made.jobs[: asked.requests]), asked.by)
        print(f"\n{name}, {len(workload.jobs):,} requests of {len(workload.clients)} clients")
        for line in rows(workload, asked.quantum):
            print(line, flush=True)


if __name__ == "__main__":
    main()
