"""How much faster a native core could make a simulation, if it took no time at all.

    python benchmarks/native.py --traces ../shared/traces

Samples where the CPU time of a whole run is spent, by module, and adds up the modules that are values and pure, which
a native core could be made of: prefix cache, worker state and its transitions, the batch, the event loop, the worker
and the dispatcher of the simulation, the latency model.  Policies and kernels stay the Python that is proved.  Prints
the share of those modules and the limit 1 / (1 - share) with a 95 % interval of the sampling (Wilson's).

Then the other side: what policies, kernels, prices and the log take of a request's time.  No simulator that asks these
policies and writes this log is faster than that, whatever the rest of it is made of.
"""

import argparse
import math
import signal
import time
from collections import Counter
from pathlib import Path
from types import FrameType

from simulator import CASES, ours

from fairsched.engines.workloads import generate, load_trace

CORE = (
    "engines/simulation/dispatcher.py",
    "engines/simulation/event_loop.py",
    "engines/simulation/simulated_worker.py",
    "model/machine/",
    "model/prefix_cache/",
    "model/worker/",
)
"""What a native core could be made of."""
STAYS = ("policies/", "model/algebra.py", "model/pricing.py", "engines/logs/")
"""What any simulator of these policies runs: their code, without the caches that they keep, and the canonical log."""
PREFIXES = ("agent", "dlpm", "d2lpm")
"""The case in which prefix caches and the index over workers take most."""


class Sampled:
    """Counts, at each tick of the process's CPU time, the module that runs, while it is entered."""

    def __init__(self, every_s: float = 0.001) -> None:
        self.by_module = Counter[str]()
        self.every_s = every_s

    def __enter__(self) -> "Sampled":
        signal.signal(signal.SIGPROF, self._tick)
        signal.setitimer(signal.ITIMER_PROF, self.every_s, self.every_s)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)

    def _tick(self, _: int, frame: FrameType | None) -> None:
        path = frame.f_code.co_filename if frame is not None else ""
        _, ours_, module = path.rpartition("/fairsched/")
        self.by_module[module if ours_ else "libraries"] += 1


def wilson(hits: int, drawn: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, hits / drawn
    middle = (share + z * z / (2 * drawn)) / (1 + z * z / drawn)
    half = z / (1 + z * z / drawn) * math.sqrt(share * (1 - share) / drawn + z * z / (4 * drawn * drawn))
    return middle - half, middle + half


def main() -> None:
    """Sample every case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--cpu-seconds", type=float, default=20.0, help="how long each case is sampled")
    parser.add_argument("--modules", type=int, default=12, help="how many modules are listed")
    arguments = parser.parse_args()
    for name, policy, router in (*CASES, PREFIXES):
        path = arguments.traces / name
        if path.exists():
            workload = load_trace(path, limit=arguments.requests)
        else:
            workload = generate("multi-turn" if path.suffix else name)
        ours(workload, policy, router)
        with Sampled() as sampled:
            begun, runs = time.process_time(), 0
            while time.process_time() < begun + arguments.cpu_seconds:
                ours(workload, policy, router)
                runs += 1
            us = (time.process_time() - begun) * 1e6 / runs / len(workload.jobs)
        found, drawn = sampled.by_module, sampled.by_module.total()
        core = sum(count for module, count in found.items() if module.startswith(CORE))
        low, high = wilson(core, drawn)
        print(f"{workload.name}, {policy}, {router}: {us:.0f} us a request, {drawn} samples")
        for module, count in found.most_common(arguments.modules):
            print(f"  {count / drawn:6.1%} {'*' if module.startswith(CORE) else ' '} {module}")
        print(f"  * together {core / drawn:.1%} ({low:.1%} to {high:.1%}): without them at most")
        print(f"  {1 / (1 - core / drawn):.2f} times as fast ({1 / (1 - low):.2f} to {1 / (1 - high):.2f})")
        stays = sum(count for module, count in found.items() if module.startswith(STAYS)) / drawn
        print(f"  policies, kernels and log {stays:.1%}: {us * stays:.0f} us a request, so that at most")
        print(f"  {1e6 / (us * stays):,.0f} requests/s are simulated here with all else at no cost")


if __name__ == "__main__":
    main()
