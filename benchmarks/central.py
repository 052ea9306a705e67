"""What an answer of a central DLPM scheduler costs: its pass over waiting requests, and the way there and back.

    PYTHONPATH=src taskset -c 0 python benchmarks/central.py [--workers W ...]

The scheduler runs trees of thoughts in the simulator, with free answers; every pass that looks at waiting requests is
timed, and its time divided by the number of these.  The way is a question of 100 bytes and an answer of as many between
two processes of this machine over TCP, as their median.  `look_ns` and `round_trip_us` of `dlpm-central` are these.
"""

import argparse
from multiprocessing import Pipe, Process
from multiprocessing.connection import Client, Connection, Listener
from statistics import median
from time import perf_counter_ns
from typing import ClassVar

import attrs

from fairsched.engines.simulation import Cluster, simulate
from fairsched.engines.workloads import generate
from fairsched.model.decision import ClusterPlan, ClusterView
from fairsched.policies.routers import CentralDLPM
from fairsched.policies.routers.central import CentralState

QUESTIONS = 5_000
MESSAGE = bytes(100)


@attrs.frozen
class Timed(CentralDLPM):
    """Notes how many requests each pass looks at, and how long it takes."""

    passes: ClassVar[list[tuple[int, int]]] = []

    def decide(self, state: CentralState, view: ClusterView) -> tuple[ClusterPlan, CentralState]:
        """Time a pass."""
        start = perf_counter_ns()
        made = super().decide(state, view)
        taken = perf_counter_ns() - start
        if any(attrs.evolve(self, look_ns=1).answer_ns(state, load) for load in view.workers):
            self.passes.append((self.looked_at(state), taken))
        return made


def looks_ns(workers: int) -> list[tuple[int, int]]:
    """Return how many waiting requests each pass looked at, and its time in nanoseconds."""
    Timed.passes.clear()
    jobs = generate("tree-of-thoughts", misbehave="longer-prefix", seed=0, trees=2 * workers, rate=4.0 * workers)
    cluster = Cluster("llama-3.2-3b-a10g", workers)
    simulate(jobs, "fcfs", Timed(round_trip_us=0, look_ns=0), cluster=cluster)
    return list(Timed.passes)


def _answers(port: Connection) -> None:
    with Listener(("127.0.0.1", 0)) as listener:
        port.send(listener.address)
        with listener.accept() as asked:
            for _ in range(QUESTIONS):
                asked.send_bytes(asked.recv_bytes())


def round_trip_ns() -> float:
    """Return the median time from a question to its answer, between two processes."""
    here, there = Pipe()
    process = Process(target=_answers, args=(there,))
    process.start()
    taken = []
    with Client(here.recv()) as asks:
        for _ in range(QUESTIONS):
            start = perf_counter_ns()
            asks.send_bytes(MESSAGE)
            asks.recv_bytes()
            taken.append(perf_counter_ns() - start)
    process.join()
    return median(taken)


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8])
    for workers in parser.parse_args().workers:
        passes = looks_ns(workers)
        looked, taken = (sum(column) for column in zip(*passes, strict=True))
        print(
            f"{workers} workers: {len(passes):,} passes over {looked / len(passes):.0f} requests on average, "
            f"{taken / looked / 1e3:.1f} us each (median of passes {median(t / n for n, t in passes) / 1e3:.1f})"
        )
    print(f"question and answer: {round_trip_ns() / 1e3:.0f} us")


if __name__ == "__main__":
    main()
