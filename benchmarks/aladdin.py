"""Aladdin: placements a second, and best fit against the exact optimum of every small instance of a grid.

    PYTHONPATH=src taskset -c 0 python -m benchmarks.aladdin speed [--workers W ...] [--running N] [--capacity K]
    PYTHONPATH=src taskset -c 0 python -m benchmarks.aladdin optimum [--requests N]
    PYTHONPATH=src taskset -c 0 python -m benchmarks.aladdin profile [--model SIZE] [--repeats N]

**speed.**  A placement is its part of a heartbeat's `decide` and of all events of its request and its worker: arrived
at the cluster and at the worker, first token, decoded, finished.  Workers run N requests each on average, whose outputs
end when they were foreseen to, and as many come in a heartbeat as went; lengths are drawn.  Times are processor time,
the median heartbeat.

**optimum.**  Every multiset of up to N requests of the grid, as they come with short prompts first and with long ones
first, is packed by the shipped best fit and by an exact solver.

**profile.**  The torch engine is timed over the grid of `fairsched calibrate` on one thread, Aladdin's lines are fitted
to some scripts and judged by the others, beside the library's own latency model.  Needs the `cli` and `torch` extras.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from statistics import median
from time import thread_time_ns

import attrs
import numpy as np

from fairsched.engines.calibration import fit_performance
from fairsched.engines.calibration.performance_fit import Iteration
from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.events import NOWHERE, Arrived, Decoded, Event, Finished, Prefilled
from fairsched.model.machine import PRESETS, Performance
from fairsched.model.request import Prompt, Request
from fairsched.policies.draw import draw
from fairsched.policies.placement.aladdin import Aladdin, Rules, Wanted, pack
from fairsched.policies.placement.aladdin.placement_state import AladdinState
from tests.support.engines.packing_optimum import Packing, fits_in

HEARTBEAT_NS = 50_000_000
LATENCY = PRESETS["llama-3.1-8b-a100"]
CAPACITY = LATENCY.kv_capacity_tokens // 4
KINDS = tuple((prompt, output) for prompt in (200, 800, 2_000) for output in (100, 400))
"""Prompt and output tokens of the grid."""
GRID = Packing(
    performance=Performance(101_900, 18_100_000, 627, 38_500, 19_930_000),
    requests=(),
    tpot_ns=22_000_000,
    kv_capacity=4_800,
    ttft_ns=400_000_000,
)
"""OPT-13B's lines, with targets and a memory that a few requests fill: 22 ms a token, 400 ms to the first, 4,800
tokens of KV."""
REQUESTS_MAX = 8


class Bench:
    """Workers at which requests come and go, and a scheduler that hears of it."""

    def __init__(self, workers: int, running: int, capacity: int = CAPACITY) -> None:
        self.policy = Aladdin(tpot_us=60_000, ttft_us=2_000_000).fitted(LATENCY)
        self.capacity = capacity
        self.state: AladdinState = self.policy.init()
        self.workers = workers
        self.running = running
        self.now_ns = 0
        self.made = 0
        self.ends: dict[int, list[Request]] = {}
        self.home: dict[int, int] = {}
        self.held: dict[int, Request] = {}

    def request(self) -> Request:
        """The next request, of 100 to 1,600 tokens of prompt and 20 to 400 of output."""
        i = self.made
        self.made += 1
        prompt, output = 100 + draw(1, i, 1_500), 20 + draw(2, i, 380)
        return Request(i, 0, self.now_ns, Prompt(prompt), 1_000, predicted_output_tokens=output)

    def heartbeat(self, beat: int, count: int) -> tuple[int, int]:
        """Let `count` requests come and all others decode once; return the time taken and how many were placed."""
        coming = [self.request() for _ in range(count)]
        loads = tuple(WorkerLoad(w, 0, 0, 0, self.capacity, self.capacity) for w in range(self.workers))
        begun = thread_time_ns()
        self.tell([Arrived(self.now_ns, NOWHERE, request) for request in coming])
        plan, self.state = self.policy.decide(self.state, ClusterView(self.now_ns, loads))
        taken = thread_time_ns() - begun
        known = {request.id: request for request in coming} | self.held
        events: list[Event] = []
        fresh = [0] * self.workers
        for dispatch in plan.dispatches:
            request = known.pop(dispatch.request_id)
            self.home[request.id] = dispatch.worker
            fresh[dispatch.worker] += 1
            self.ends.setdefault(beat + (request.predicted_output_tokens or 1), []).append(request)
            events.append(Arrived(self.now_ns, dispatch.worker, request))
            events.append(Prefilled(self.now_ns, dispatch.worker, request.id, 0, request.prompt.tokens, 0))
        self.held = known
        members = [len(worker.members) for _, worker in sorted(self.state.workers.items())]
        events += [Decoded(self.now_ns, w, 1, (0,), (n + 1,)) for w, n in enumerate(members) if n]
        for request in self.ends.pop(beat, ()):
            output = request.predicted_output_tokens or 1
            events.append(Finished(self.now_ns, self.home.pop(request.id), request.id, 0, output))
        begun = thread_time_ns()
        self.tell(events)
        self.now_ns += HEARTBEAT_NS
        return taken + thread_time_ns() - begun, len(plan.dispatches)

    def tell(self, events: list[Event]) -> None:
        """The scheduler learns events."""
        for event in events:
            self.state = self.policy.observe(self.state, event)


def speed(workers: int, running: int, capacity: int) -> None:
    """Fill the workers, then time heartbeats in which as many come as go."""
    bench = Bench(workers, running, capacity)
    per_beat = max(workers * running // 210, 1)  # The mean output is 210 iterations.
    for beat in range(300):
        bench.heartbeat(beat, per_beat)
    timed = [bench.heartbeat(300 + beat, per_beat) for beat in range(100)]
    each = median(ns / max(placed, 1) for ns, placed in timed)
    sizes = [len(worker.members) for worker in bench.state.workers.values()]
    print(
        f"{workers} workers, {sum(sizes) / max(len(sizes), 1):.0f} requests on each of {sum(map(bool, sizes))}: "
        f"{1e9 / each:,.0f} placements/s, {each / 1e3:.0f} us each, {sum(n for _, n in timed) / 100:.1f} a heartbeat, "
        f"{len(bench.held):,} held"
    )


def optimum(requests_max: int) -> None:
    """Worst and mean ratio of best fit to the optimum."""
    rules = Rules(GRID.performance, GRID.tpot_ns, GRID.theta_percent, GRID.gamma_percent, "normalised", "lock-step")
    for norm in ("normalised", "printed"):
        for order, step in (("short prompts first", 1), ("long prompts first", -1)):
            ratios: Counter[tuple[int, int]] = Counter()
            for count in range(1, requests_max + 1):
                for kinds in combinations_with_replacement(KINDS, count):
                    ratios[_against_optimum(attrs.evolve(rules, norm=norm), kinds[::step])] += 1
            total = sum(ratios.values())
            worst = max(ratios, key=lambda used: used[0] / used[1])
            mean = sum(used / least * n for (used, least), n in ratios.items()) / total
            more = sum(n for (used, least), n in ratios.items() if used > least)
            print(
                f"{norm} norm, {order}: {total:,} instances, worst {worst[0]}/{worst[1]}, mean {mean:.4f}, "
                f"{more:,} ({more / total:.1%}) need more than the optimum",
                flush=True,
            )


_FITS: dict[tuple[tuple[tuple[int, int], ...], int], bool] = {}


def _against_optimum(rules: Rules, requests: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Workers of best fit and of the optimum."""
    assert GRID.ttft_ns is not None
    at = pack(rules, [Wanted(prompt, output, output, GRID.ttft_ns) for prompt, output in requests], GRID.kv_capacity)
    used = 1 + max(row for row in at if row is not None)
    fewest = used
    while fewest > 1 and _fits(tuple(sorted(requests)), fewest - 1):
        fewest -= 1
    return used, fewest


def _fits(requests: tuple[tuple[int, int], ...], workers: int) -> bool:
    """Whether so many workers are enough, asked once for each."""
    key = (requests, workers)
    if key not in _FITS:
        _FITS[key] = fits_in(attrs.evolve(GRID, requests=requests), workers)
    return _FITS[key]


def profile(model: str, repeats: int) -> None:
    """Errors of Aladdin's lines on the torch engine's steps."""
    from fairsched.engines.calibration import Workbench
    from fairsched.engines.calibration.calibrator import calibrated
    from fairsched.engines.torch import TorchSpec

    bench = Workbench.load(TorchSpec(model), clock="thread")
    steps = bench.measured("fcfs", repeats)
    timed = [(step.held_out, step.ns, step.shape) for step in steps]
    fitted = [(ns, shape) for held_out, ns, shape in timed if not held_out]
    judged = [(ns, shape) for held_out, ns, shape in timed if held_out]
    bytes_a_page = bench.spec.page_tokens * bench.model.config.kv_bytes_per_token
    memory = [(n, -(-n // bench.spec.page_tokens) * bytes_a_page) for n in range(32, bench.kv_capacity_tokens, 37)]
    fit = fit_performance(
        (Iteration(ns, tuple(n for n, _ in shape.chunks), shape.batch, shape.context_tokens) for ns, shape in fitted),
        memory,
    )
    p = fit.performance
    found = calibrated(steps, name=model, source="here", kv_capacity_tokens=bench.kv_capacity_tokens)
    own = {residual.kind: f"{residual.mape:.1%}, {residual.worst:+.1%}" for residual in found.residuals}
    prefills = [(ns, shape.chunks) for ns, shape in judged if shape.chunks and not shape.batch]
    decodes = [(ns, shape) for ns, shape in judged if shape.batch and not shape.chunks]
    off = [p.prefill_ns(sum(n for n, _ in chunks)) / ns - 1 for ns, chunks in prefills]
    print(f"prefill: {len(off)} steps, line off by {_misses(off)}; own model {own['prefill']}")
    for (ns, chunks), missed in zip(prefills, off, strict=True):
        said = ", ".join(f"{n} tokens behind {context}" for n, context in chunks)
        print(f"    {said}: {ns / 1e6:.1f} ms, line {missed:+.1%}")
    learned = [(ns, shape.chunks) for ns, shape in fitted if shape.chunks and not shape.batch]
    whole = [(ns, chunks) for ns, chunks in learned if not any(context for _, context in chunks)]
    print(f"    fitted to {len(whole)} steps of whole prompts alone: {_misses(_least_squares(whole, prefills, _line))}")
    print(f"    with what attention reads: {_misses(_least_squares(learned, prefills, _with_context))}")
    off = [p.decode_ns(shape.batch, shape.context_tokens) / ns - 1 for ns, shape in decodes]
    print(f"decode: {len(off)} steps, line off by {_misses(off)}; own model {own['decode']}")
    assert fit.kv is not None
    print(f"memory in pages: {fit.kv.points} lengths, line off by {fit.kv.mean:.1%}, {fit.kv.worst:+.1%}")


def _misses(errors: Sequence[float]) -> str:
    return f"{sum(map(abs, errors)) / len(errors):.1%} on average, {max(errors, key=abs):+.1%} at worst"


Chunks = tuple[tuple[int, int], ...]


def _line(chunks: Chunks) -> list[float]:
    return [1.0, float(sum(n for n, _ in chunks))]


def _with_context(chunks: Chunks) -> list[float]:
    """The line, and what attention reads: the context of each, and half of its own chunk."""
    return [*_line(chunks), sum(n * (context + n / 2) for n, context in chunks)]


def _least_squares(
    learned: Sequence[tuple[float, Chunks]],
    judged: Sequence[tuple[float, Chunks]],
    terms: Callable[[Chunks], list[float]],
) -> list[float]:
    """Relative errors on the judged steps of what was fitted, on relative errors, to the others."""
    x = np.array([terms(chunks) for _, chunks in learned]) / np.array([[ns] for ns, _ in learned])
    solved = np.linalg.lstsq(x, np.ones(len(x)), rcond=None)[0]
    return [float(np.array(terms(chunks)) @ solved / ns - 1) for ns, chunks in judged]


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "optimum", "profile"))
    parser.add_argument("--workers", type=int, nargs="+", default=[100])
    parser.add_argument("--running", type=int, default=12)
    parser.add_argument("--capacity", type=int, default=CAPACITY, help="KV tokens of a worker")
    parser.add_argument("--requests", type=int, default=REQUESTS_MAX)
    parser.add_argument("--model", default="small")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.what == "profile":
        profile(arguments.model, arguments.repeats)
    if arguments.what == "optimum":
        optimum(arguments.requests)
    for workers in arguments.workers if arguments.what == "speed" else ():
        speed(workers, arguments.running, arguments.capacity)
    return 0


if __name__ == "__main__":
    sys.exit(main())
