"""Whether runs are still the same, event by event: hashes of simulated logs, here and at another commit.

    python -m benchmarks.hashes [--commit REV] [--requests N] [--traces DIR]

Each local policy that ships serves three workloads behind join-shortest-queue, each router and cluster policy places
two before DLPM, all by four small workers whose memory is short; four policies serve the first requests of two traces.
Each run is made by the code here and by that of the other commit (default: the pinned twin of `make bench`), in a
process for each.  A line a run has the beginnings of both hashes.  Exit status 1 when a run differs; one that the other
commit cannot make, since it lacks the policy, is counted apart.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from benchmarks.suite.sides import PINNED, ROOT, check_package, checkout, environment, git

WORKLOADS = ("multi-turn", "toolbench", "azure-chat")
ROUTED = ("toolbench", "multi-turn")
TRACES = ("azure-2023-conv.csv", "mooncake-conversation.jsonl")
TRACED = ("fcfs", "vtc", "dlpm", "larry")
WORKERS, KV_TOKENS = 4, 24_000
SHOWN = 12


def runs(requests: int, traces: Path) -> Iterator[tuple[str, str]]:
    """Yield each run's name and its log's hash, made by whatever package is imported."""
    # Only a process that makes runs imports the package: that of its own tree.
    from fairsched.engines.simulation import Cluster, simulate
    from fairsched.engines.workloads import generate, load_trace
    from fairsched.model.machine import PRESETS
    from fairsched.policies.registry import CLUSTER_POLICIES, LOCAL_POLICIES

    model = PRESETS["llama-3.1-8b-a100"]
    small, large = Cluster(model, workers=WORKERS, kv_capacity_tokens=KV_TOKENS), Cluster(model, workers=WORKERS)
    loads = {name: generate(name, limit=requests) for name in WORKLOADS}
    asked = [(load, policy, "join-shortest-queue", small) for load, policy in product(WORKLOADS, LOCAL_POLICIES)]
    routers = [router for router in CLUSTER_POLICIES if router != "join-shortest-queue"]
    asked += [(load, "dlpm", router, small) for load, router in product(ROUTED, routers)]
    for name in TRACES:
        if (traces / name).exists():
            loads[name] = load_trace(traces / name, limit=2 * requests)
            asked += [(name, policy, "join-shortest-queue", large) for policy in TRACED]
    for load, policy, router, cluster in asked:
        found = simulate(loads[load], policy, router, cluster=cluster).log_sha256
        yield f"{load} {policy} {router}", found


def imported() -> str:
    """Return where the package is that is imported."""
    import fairsched

    return str(fairsched.__file__)


def made_by(tree: Path, requests: int, traces: Path) -> "subprocess.Popen[str]":
    """Start a process that makes the runs with the package of a tree."""
    command = [sys.executable, "-m", "benchmarks.hashes", "--here", f"--requests={requests}", f"--traces={traces}"]
    return subprocess.Popen(command, env=environment(tree), stdout=subprocess.PIPE, text=True)


def read(process: "subprocess.Popen[str]", tree: Path) -> dict[str, str]:
    """Return what a process found with the package of a tree, once it has ended."""
    text, _ = process.communicate()
    if process.returncode:
        raise SystemExit(process.returncode)
    package, *lines = text.splitlines()
    check_package(package, tree)
    return dict(line.rsplit(" ", 1) for line in lines)


def main() -> int:
    """Print the table; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default=PINNED, help="whose runs ours are held to (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=200, help="of a workload (default: %(default)s)")
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"), help="(default: %(default)s)")
    parser.add_argument("--here", action="store_true", help="make the runs with the package that is imported, no more")
    asked = parser.parse_args()
    if asked.here:
        print(imported())
        for name, found in runs(asked.requests, asked.traces):
            print(name, found, flush=True)
        return 0
    trees = (ROOT, checkout(asked.commit))
    ours, theirs = map(read, [made_by(tree, asked.requests, asked.traces.resolve()) for tree in trees], trees)
    commit = git("rev-parse", "--short=8", asked.commit)
    print(f"{'':<58}{'here':<{SHOWN + 2}}{commit:<{SHOWN + 2}}")
    absent = [name for name in ours if name not in theirs]
    different = [name for name in ours if theirs.get(name, ours[name]) != ours[name]]
    for name, found in ours.items():
        said = "DIFFERS" if name in different else ""
        print(f"{name:<58}{found[:SHOWN]:<{SHOWN + 2}}{theirs.get(name, 'absent')[:SHOWN]:<{SHOWN + 2}}{said}")
    equal = len(ours) - len(absent) - len(different)
    print(f"{equal} runs are equal, {len(different)} differ from {commit}, {len(absent)} it cannot make")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
