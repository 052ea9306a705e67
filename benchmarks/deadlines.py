"""Share of the requests that met their targets, by order and gate.

    python benchmarks/deadlines.py [WORKLOAD ...] [--requests COUNT]

The built-in workloads have no targets, so each client gets one, as in row 95: every other one wants the first token
within 2 s, the others the whole answer within 60 s.  Each workload is sent at its own rate to one simulated worker.  A
row is an order; its columns are SLO attainment in per cent under an open gate, the counter gate, the deficit gate and
in bands, of all requests and, after the slash, of the client that is worst off.
"""

import argparse
from collections.abc import Iterator

from msgspec.structs import replace

from fairsched.engines.workloads import generate
from fairsched.model.request import Workload
from fairsched.policies.registry import local_policy, with_parameters
from fairsched.reproduce.papers.ours import BEHIND, with_targets
from fairsched.reproduce.row import Platform
from fairsched.reproduce.runs import A100, run

WORKLOADS = ("azure-chat", "azure-code", "tree-of-thoughts", "multi-turn", "toolbench")
ORDERS = ("fcfs-optimistic", "lpm", "larry", "edf", "least-slack", "jitserve", "equinox")
GATES = ("", "+counter", "+deficit", "+bands")


def attained(workload: Workload, policy: str, gate: str) -> str:
    """Return the attainment of all requests and of the worst client, in per cent."""
    one = run(workload, with_parameters(local_policy(policy + gate), BEHIND.get(gate, {})), on=Platform(A100))
    clients = [each.slo_attainment for each in one.clients.values()]
    worst = min(share for share in clients if share is not None)
    return f"{100 * (one.measures.slo_attainment or 0.0):.1f} / {100 * worst:.1f}"


def rows(workload: Workload) -> Iterator[str]:
    """Return the lines of a workload's table."""
    yield f"{'order':<16}" + "".join(f"{gate[1:] or 'open':>16}" for gate in GATES)
    for order in ORDERS:
        yield f"{order:<16}" + "".join(f"{attained(workload, order, gate):>16}" for gate in GATES)


def main() -> None:
    """Print a table for each workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS)
    parser.add_argument("--requests", type=int, default=None, help="so many of each workload, the first ones")
    asked = parser.parse_args()
    for name in asked.workloads:
        made = generate(name)
        workload = with_targets(replace(made, jobs=made.jobs[: asked.requests]))
        print(f"\n{name}, {len(workload.jobs):,} requests of {len(workload.clients)} clients")
        for line in rows(workload):
            print(line, flush=True)


if __name__ == "__main__":
    main()
