"""What the state of a policy costs: memory of each client, waiting request, cached block and ended request, and how the
time of a decision grows with them.

A simulation that knows nothing but short requests brings a policy to a state in which there are so many of one kind.
The memory of that state are the bytes that are freed with it, as `tracemalloc` counts them: what it shares with nothing
else.  A decision is timed with the news of the request that it is about.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from time import thread_time_ns
from typing import Any, Literal, get_args

import attrs
import numpy as np
from msgspec.structs import replace

from benchmarks.scaling.rows import exponent
from fairsched.engines.simulation.runs import name_of
from fairsched.engines.simulation.simulator import Simulator
from fairsched.model.decision import ClusterView
from fairsched.model.events import Arrived, Event
from fairsched.model.machine import DEFAULT_PRESET, PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.base import AnyLocalPolicy, AnyRouter, Router
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS

Kept = Literal["client", "waiting request", "cached block", "ended request"]
"""What a policy may remember."""
KEPT: tuple[Kept, ...] = get_args(Kept)
STATE_SIZES = (500, 1_000, 2_000)
"""So many of each are there unless others are asked for."""

_BLOCK_TOKENS, _BLOCKS, _TOKENS, _OUTPUT_TOKENS = 16, 32, 100, 4
_GAP_NS = 10_000_000
_WORKERS = 4
_SAMPLES = 101
_ALONE_S = 60.0
"""So long another thread waits for the interpreter."""
_NEXT = 10**9
"""The number of the first request that is decided upon."""
_LATENCY = PRESETS[DEFAULT_PRESET]


@attrs.frozen
class StateCost:
    """What one `kept` more costs a policy: so many `sizes` of them take `bytes` and make a decision last `decision_us`.

    `bytes_each` is the slope of the line through the first by least squares, and `exponent` the power by which the
    second grows.  Under a router stand four workers, under a local policy one.
    """

    policy: str
    kept: Kept
    sizes: tuple[int, ...]
    bytes: tuple[int, ...]
    decision_us: tuple[float, ...]

    @property
    def bytes_each(self) -> float:
        """Bytes of one more."""
        return float(np.polyfit(self.sizes, self.bytes, 1)[0])

    @property
    def exponent(self) -> float:
        """The power of their number that the time of a decision follows."""
        power = exponent([list(zip(self.sizes, self.decision_us, strict=True))])
        assert power is not None  # sizes differ
        return power


def state_costs(
    policy: AnyLocalPolicy | AnyRouter,
    sizes: Sequence[int] = STATE_SIZES,
    progress: Callable[[str, int, int], None] | None = None,
    kinds: Sequence[Kept] = KEPT,
) -> Iterator[StateCost]:
    """Measure what each of these kinds of things costs a local policy or a router; `progress` is told what is measured.

    Raises `ValueError` for less than two sizes, which fix no line.
    """
    if len(set(sizes)) < 2:
        raise ValueError(f"what one more costs takes two sizes or more, not {', '.join(map(str, sizes)) or 'none'}")
    told = progress or (lambda what, done, total: None)
    name = name_of(policy)
    ordered = tuple(sorted(set(sizes)))
    for kept in kinds:
        memory, built = [], []
        for place, size in enumerate(ordered):
            told(f"{name}: {size:,} {kept}s", place, len(ordered))
            memory.append(_bytes(policy, kept, size))
            built.append(_Built.of(policy, kept, size))
        yield StateCost(name, kept, ordered, tuple(memory), _decisions_us(built))


# --- a state with so many of one kind ---------------------------------------------------------------------------------


class _Reached(Exception):
    """All requests have come."""


@attrs.frozen
class _Built:
    """A policy in a state, and what it decides upon: `ask` takes the next request's number."""

    state: object
    ask: Callable[[int], object]

    @classmethod
    def of(cls, policy: AnyLocalPolicy | AnyRouter, kept: Kept, size: int) -> "_Built":
        """Bring a policy to a state with so many."""
        routes = isinstance(policy, Router)
        workload = _workload(kept, size)
        came = 0

        def until_all_came(events: list[Event]) -> None:
            nonlocal came
            came += sum(type(event) is Arrived for event in events)
            if came == size:
                raise _Reached

        simulator = Simulator(
            workload,
            LOCAL_POLICIES["fcfs"] if isinstance(policy, Router) else policy,
            policy if isinstance(policy, Router) else ROUTERS["round-robin"],
            _LATENCY,
            workers=_WORKERS if routes else 1,
            kv_capacity_tokens=max(_LATENCY.kv_capacity_tokens, 2 * size * _BLOCK_TOKENS),
            on_events=until_all_came if kept == "waiting request" else None,
        )
        with suppress(_Reached):
            simulator.run()
        following = partial(_request, kept, client=size // 2 if kept == "client" else 0)
        return _routing(simulator, following) if routes else _deciding(simulator, following, kept == "waiting request")


def _workload(kept: Kept, size: int) -> Workload:
    count = max(size // _BLOCKS, 1) if kept == "cached block" else size
    jobs = []
    for i in range(count):
        request = _request(kept, i, client=i if kept == "client" else 0)
        arrival_ns = 0 if kept == "waiting request" else i * _GAP_NS
        jobs.append(Job(replace(request, arrival_ns=arrival_ns), _OUTPUT_TOKENS))
    clients = tuple(Client(i, f"client-{i}") for i in range(size if kept == "client" else 1))
    return Workload(f"{size} {kept}s", tuple(jobs), clients)


def _request(kept: Kept, number: int, *, client: int) -> Request:
    if kept != "cached block":
        return Request(number, client, 0, Prompt(_TOKENS), _OUTPUT_TOKENS)
    keys = np.arange(number * _BLOCKS, (number + 1) * _BLOCKS)
    prompt = Prompt.from_keys(keys, block_tokens=_BLOCK_TOKENS, tokens=_BLOCKS * _BLOCK_TOKENS + 1)
    return Request(number, client, 0, prompt, _OUTPUT_TOKENS)


def _routing(simulator: Simulator, following: Callable[[int], Request]) -> _Built:
    router: Any = simulator.router
    state, now_ns = simulator.control.state, simulator.loop.now_ns
    view = ClusterView(now_ns, tuple([worker.state.load() for worker in simulator.workers]))

    def ask(number: int) -> object:
        request = replace(following(number), arrival_ns=now_ns)
        dispatch, routed = router.route(state, request, view)
        return router.observe(routed, Arrived(now_ns, dispatch.worker, request))

    return _Built(state, ask)


def _deciding(simulator: Simulator, following: Callable[[int], Request], full: bool) -> _Built:
    policy, worker, now_ns = simulator.pool.policy, simulator.workers[0], simulator.loop.now_ns
    state, credit, sharing = worker.policy_state, simulator.pool.credit, policy.shared_credit
    view = worker.state.view(now_ns)
    if full:
        view = replace(view, kv_free_tokens=0)
    seen = state if sharing is None else sharing.checkout(state, credit, 0)
    _, decided = policy.decide(seen, view)

    def ask(number: int) -> object:
        told = policy.observe(decided, Arrived(now_ns, 0, replace(following(number), arrival_ns=now_ns)))
        return policy.decide(told, view)

    return _Built((state, credit), ask)


# --- its memory and its time ------------------------------------------------------------------------------------------


def _bytes(policy: AnyLocalPolicy | AnyRouter, kept: Kept, size: int) -> int:
    """Return the bytes that are freed with a state."""
    tracing, interval_s = tracemalloc.is_tracing(), sys.getswitchinterval()
    if not tracing:
        tracemalloc.start()
    try:
        state = _Built.of(policy, kept, size).state
        # What other threads take and free is counted, too: none goes on until the bytes are read.
        sys.setswitchinterval(_ALONE_S)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        del state
        gc.collect()
        return before - tracemalloc.get_traced_memory()[0]
    finally:
        sys.setswitchinterval(interval_s)
        if not tracing:
            tracemalloc.stop()


def _decisions_us(built: Sequence[_Built]) -> tuple[float, ...]:
    """Return the median time of a decision in each state; the states take turns, so that a busy time is one of all."""
    times: list[list[int]] = [[] for _ in built]
    for i in range(_SAMPLES + 1):
        for each, taken in zip(built, times, strict=True):
            started = thread_time_ns()
            each.ask(_NEXT + i)
            taken.append(thread_time_ns() - started)
    return tuple([max(median(taken[1:]), 1) / 1e3 for taken in times])
