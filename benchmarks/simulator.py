"""How fast a trace is simulated, beside the mocker of NVIDIA Dynamo (Rust) on the same requests.

    python benchmarks/simulator.py --traces ../shared/traces
    pip install --no-deps ai-dynamo-runtime        # optional: its mocker then runs between our runs

Prints simulated requests a second of CPU time, ours with all metrics and the log's hash: FCFS behind
join-shortest-queue on the Azure conversation trace (lengths only), and DLPM behind round robin on the Mooncake
conversation trace (prefixes of 512-token blocks), four workers each.  Dynamo's mocker replays the same files with its
own defaults and round robin.  Runs alternate, the best of each counts; without the files, generated ones stand in.

`make bench` takes the first 5,000 requests of files in the folder `TRACES`, and leaves out those that are not here.
"""

import argparse
import atexit
import importlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree

from fairsched.engines.simulation import Cluster, RunSpec
from fairsched.engines.simulation.runs import run_one
from fairsched.engines.workloads import generate, load_trace
from fairsched.model.machine import PRESETS
from fairsched.model.request import Workload
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS

WORKERS = 4
CASES = (
    ("azure-2023-conv.csv", "fcfs", "join-shortest-queue"),
    ("mooncake-conversation.jsonl", "dlpm", "round-robin"),
)
BLOCK_TOKENS = 512
REQUESTS = 5_000
"""Requests of a round of `make bench`."""
TRACES = Path(os.environ.get("TRACES", "../shared/traces"))


def ours(workload: Workload, policy: str, router: str) -> None:
    """One simulated run with its figures and hash."""
    cluster = Cluster(PRESETS["llama-3.1-8b-a100"], workers=WORKERS)
    run_one(workload, RunSpec(LOCAL_POLICIES[policy], policy, {}, ROUTERS[router]), cluster)


def dynamo() -> Callable[[Path], None] | None:
    """Dynamo's offline replay, if its wheel is installed."""
    try:
        core = importlib.import_module("dynamo._core")
    except ImportError:
        return None

    def replay(path: Path) -> None:
        core.run_mocker_trace_replay([str(path)], num_workers=WORKERS, trace_block_size=BLOCK_TOKENS)

    return replay


def as_mooncake(workload: Workload, path: Path) -> None:
    """The workload's lengths and times as Dynamo reads them, every block its own."""
    block = 0
    with path.open("w") as file:
        for job in workload.jobs:
            tokens = job.request.prompt.tokens
            blocks = -(-tokens // BLOCK_TOKENS)
            row = {
                "timestamp": job.request.arrival_ns // 1_000_000,
                "input_length": tokens,
                "output_length": job.output_tokens,
                "hash_ids": list(range(block, block + blocks)),
            }
            block += blocks
            file.write(json.dumps(row) + "\n")


def cpu_s(call: Callable[[], None]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def us_a_request(jobs: int, call: Callable[[], None]) -> float:
    """Microseconds of CPU time a request of one run."""
    return cpu_s(call) * 1e6 / jobs


def loaded(name: str) -> Workload | None:
    """The first requests of a file of traces, or the generated workload; None where the file is not there."""
    if not Path(name).suffix:
        return generate(name)
    return load_trace(TRACES / name, limit=REQUESTS) if (TRACES / name).exists() else None


def simulating(name: str, policy: str, router: str) -> Callable[[], float] | None:
    """The side of ours."""
    workload = loaded(name)
    return (
        None if workload is None else partial(us_a_request, len(workload.jobs), partial(ours, workload, policy, router))
    )


def mocking(name: str) -> Callable[[], float] | None:
    """The side of Dynamo's mocker, which reads Mooncake's own lines, or the workload written as such."""
    workload, replay = loaded(name), dynamo()
    if workload is None or replay is None:
        return None
    path = Path(tempfile.mkdtemp()) / "trace.jsonl"
    atexit.register(rmtree, path.parent)
    if name.endswith(".jsonl"):
        path.write_text("".join((TRACES / name).read_text().splitlines(keepends=True)[:REQUESTS]))
    else:
        as_mooncake(workload, path)
    return partial(us_a_request, len(workload.jobs), partial(replay, path))


FIGURES = {
    "simulator: a request of Azure's conversations, FCFS, join-shortest-queue, 4 workers": {
        "ours": partial(simulating, *CASES[0]),
        "Dynamo's mocker": partial(mocking, CASES[0][0]),
    },
    "simulator: a request of Mooncake's conversations, DLPM, round-robin, 4 workers": {
        "ours": partial(simulating, *CASES[1]),
        "Dynamo's mocker": partial(mocking, CASES[1][0]),
    },
    "simulator: a request of `multi-turn`, DLPM, round-robin, 4 workers": {
        "ours": partial(simulating, "multi-turn", "dlpm", "round-robin")
    },
}


def main() -> None:
    """Run every case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    peer = dynamo()
    for name, policy, router in CASES:
        path = arguments.traces / name
        workload = load_trace(path) if path.exists() else generate("multi-turn")
        jobs = len(workload.jobs)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.jsonl"
            if path.suffix == ".jsonl" and path.exists():
                file = path
            else:
                as_mooncake(workload, file)
            mine, theirs = [], []
            for _ in range(arguments.repeat):
                mine.append(cpu_s(lambda w=workload, p=policy, r=router: ours(w, p, r)))  # type: ignore[misc]
                if peer is not None:
                    theirs.append(cpu_s(lambda f=file: peer(f)))  # type: ignore[misc]
        line = f"{workload.name:<30}{policy:<6}{router:<22}{jobs / min(mine):>9,.0f} requests/s"
        if theirs:
            line += (
                f"   Dynamo's mocker {jobs / min(theirs):>8,.0f}   ours is {min(theirs) / min(mine):.1f} times as fast"
            )
        print(line)


if __name__ == "__main__":
    main()
