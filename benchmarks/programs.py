"""What a harness of many agents gets, by whose account its calls are charged to, and how calls are spread.

    python benchmarks/programs.py --agents 1,4,16,64 --seeds 5

A harness of so many agents runs beside seven programs of four agents each (workload `subagents`), on two workers that
each hold some five of their calls at a time.  All have one API key, but in the column that says otherwise.  A cell has
the harness's share of the service while all programs are under way (an equal share is an eighth), and the mean latency
of the other programs: means over the seeds, with 95 % confidence intervals (Student's t).

What stands for what.  Router and engine are ours in all columns; the first four are rules that routers have today:

- *round robin*, *session affinity*: the call goes to the next worker, or to the one that the hash of its session id
  names; the engine there takes the longest cached prefix first and knows no accounts, as SGLang's default does.
- *a queue for each session*: a fair queue of sessions, with the deficit gate as the fairest such.
- *a bucket for each key*: the same of API keys, with one key for all and with a key for each program.

The last is the same gate, order and router by programs: only whose account it is differs from the two before it.
"""

import argparse
from collections.abc import Sequence
from statistics import mean
from typing import Any, ClassVar
from zlib import crc32

import attrs

from fairsched.engines.analysis import EventTables, Outcomes
from fairsched.engines.analysis.metrics import by_program
from fairsched.engines.simulation import Cluster, RunSpec, Simulator
from fairsched.engines.workloads import Account, generate, with_account
from fairsched.model.decision import ClusterView, Dispatch
from fairsched.model.request import Request, Workload
from fairsched.policies.base import AnyRouter, Router
from fairsched.policies.routers import RoundRobin
from fairsched.policies.routers.load_based import NoRouterState
from fairsched.reproduce.row import Interval

MACHINE, KV_TOKENS, QUANTUM = "llama-3.2-3b-a10g", 16_384, 512


@attrs.frozen
class SessionAffinity(Router[NoRouterState]):
    """All calls of a session go to one worker, which the hash of its id names."""

    name: ClassVar[str] = "session-affinity"
    state_type: ClassVar[type[NoRouterState]] = NoRouterState

    def route(self, state: NoRouterState, request: Request, view: ClusterView) -> tuple[Dispatch, NoRouterState]:
        place = crc32((request.session or str(request.id)).encode()) % len(view.workers)
        return Dispatch(request.id, view.workers[place].worker), state


@attrs.frozen
class System:
    """A column: the router, the policy of the workers, whose account it is, and who has an API key."""

    name: str
    router: AnyRouter
    policy: str
    account: Account
    keys: str = "one"


SYSTEMS = (
    System("round robin", RoundRobin(), "lpm", "client"),
    System("session affinity", SessionAffinity(), "lpm", "client"),
    System("a queue for each session", SessionAffinity(), "dlpm", "session"),
    System("a bucket for each key, one key", SessionAffinity(), "dlpm", "client"),
    System("a bucket for each key, a key each", SessionAffinity(), "dlpm", "client", "each"),
    System("by program, one key", SessionAffinity(), "dlpm-hierarchical", "program"),
)


def harness_of(workload: Workload) -> int:
    """Return the number of the harness's program, whose planning agent is session 0.0."""
    return next(job.program for job in workload.jobs if job.request.session == "0.0" and job.program is not None)


def run(workload: Workload, system: System, workers: int) -> tuple[float, float]:
    """Return the harness's share while all programs are under way, and the mean latency of the others in seconds."""
    params = {"quantum": QUANTUM} if "dlpm" in system.policy else {}
    local: Any = RunSpec.of(system.policy, params=params).policy
    cluster, tables = Cluster(MACHINE, workers, KV_TOKENS // workers), EventTables()
    Simulator(workload, local, system.router, cluster.latency, workers=cluster.specs, on_events=tables.add).run()
    programs = by_program(Outcomes(workload, tables.whole()))
    harness = programs.pop(harness_of(workload))
    return harness.share or 0.0, mean((other.latency_ns or 0) / 1e9 for other in programs.values())


def cell(found: Sequence[tuple[float, float]]) -> str:
    """Return both figures over the seeds; half the width of an interval where there are several seeds."""
    share, latency = (Interval.of(values) for values in zip(*found, strict=True))
    if len(found) < 2:
        return f"{share.mean:.1%}; {latency.mean:.0f} s"
    return f"{share.mean:.1%} ± {share.high - share.mean:.1%}; {latency.mean:.0f} ± {latency.high - latency.mean:.0f} s"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", default="1,2,4,8,16,32,64")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="share 16,384 KV tokens")
    asked = parser.parse_args()
    print(f"| agents | {' | '.join(system.name for system in SYSTEMS)} |")
    print("|---" * (len(SYSTEMS) + 1) + "|")
    for agents in map(int, asked.agents.split(",")):
        cells = []
        for system in SYSTEMS:
            made = [generate("subagents", seed=i, agents=agents, keys=system.keys) for i in range(asked.seeds)]
            cells.append(cell([run(with_account(each, system.account), system, asked.workers) for each in made]))
        print(f"| {agents} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
