"""What a decision costs, for every local policy that ships, with 10,000 requests waiting and 256 running.

    python benchmarks/decisions.py [POLICY ...]

Prints microseconds of processor time, medians of up to 31: `observe` of an arrival; a decision right after an arrival
in which no request enters, since 256 is the most that may run or since memory is full (nan: one always enters, in the
place of another); the same after one that ran has ended; one that admits 32.  Each decision is of a state that was
never decided on, and follows one of the state before.  A policy that lets none in beside a batch that runs admits into
an empty worker.  Under an order that makes groups from time to time they are made; what that costs is a line below.

Prompts begin with one of 200 documents of 512 tokens, which are cached with three questions each, and have 80 to 640
tokens of their own, those that run 80.  The requests are of 100 clients, half of them have a target for their first
token, and what waits is predicted to produce more than what runs.

Then what clients cost: each gate before `fcfs`, with 1,000 and 10,000 clients in 100 organisations; `others` is a
decision in which the first in line owes much, so that others go before it.  And what happens now and then: a
displacement, groups of prefixes made anew, admission by predictions.
"""

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import msgspec
import numpy as np

from fairsched.model.decision import WorkerView
from fairsched.model.events import Admitted, Arrived, Cached, ClientConfigured, Decoded, Event, Preempted
from fairsched.model.request import Prompt, Request, Slo
from fairsched.model.worker import WorkerState, transitions
from fairsched.policies.batching import RESERVES_BY, Chunked
from fairsched.policies.catalog import FCFS, BatchLLM, HybridBatchLLM, TetriInferLocal
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import QueuedRequest, Regroups
from fairsched.policies.orders.queue import Queue, regrouped
from fairsched.policies.registry import GATES, LOCAL_POLICIES, local_policy, with_parameters

WAITING, RUNNING, ENTERING, CLIENTS, DOCUMENTS, BLOCK_TOKENS = 10_000, 256, 32, 100, 200, 16
CAPACITY_TOKENS, STEP_TOKENS, OUTPUT_TOKENS = 20_000_000, 1 << 21, 4_000
SAMPLES = 31
SHORT_TOKENS = 60
"""Free memory in which no prompt's own tokens fit, and the next output of all that run does."""

GATED = tuple(f"{order}+deficit" for order in ("larry", "ageing", "edf")) + ("larry+hierarchical",)
DISPLACES = "trail, preempt_percent=100"


def policies() -> dict[str, ComposedPolicy]:
    """All that ship, and compositions under a gate whose cost is another one."""
    displaces = {DISPLACES: with_parameters(LOCAL_POLICIES["trail"], {"preempt_percent": "100"})}
    return {**LOCAL_POLICIES, **displaces, **{name: local_policy(name) for name in GATED}}


class World:
    """A policy's state and its worker, told of the same events."""

    def __init__(self, policy: ComposedPolicy) -> None:
        self.policy, self.state = policy, policy.init()
        self.worker = WorkerState(0, CAPACITY_TOKENS)
        self.random = np.random.default_rng(0)
        self.documents = [self._keys(32) for _ in range(DOCUMENTS)]
        self.sent = 0

    def _keys(self, count: int) -> Any:
        return self.random.integers(0, 2**40, count)

    def _prompt(self, document: int, own: int) -> Prompt:
        keys = np.concatenate([self.documents[document], self._keys(own)])
        return Prompt.from_keys(keys, block_tokens=BLOCK_TOKENS)

    def cache_documents(self) -> None:
        """Both have the same cache, in which nothing is pinned."""
        cache = self.worker.cache
        for i in range(3 * DOCUMENTS):
            prompt, owner = self._prompt(i % DOCUMENTS, 4), 10**9 + i
            cache = cache.complete(owner, prompt, prompt.blocks, 0)[0].release(owner)
            self.state = self.policy.observe(self.state, Cached(0, 0, owner, prompt, prompt.blocks))
        self.worker = msgspec.structs.replace(self.worker, cache=cache)
        self.state = msgspec.structs.replace(self.state, cache=cache)

    def request(self, predicted: int, blocks_max: int = 40) -> Request:
        """The next request, with 5 to so many blocks of its own."""
        i, self.sent = self.sent, self.sent + 1
        own, priority = int(self.random.integers(5, blocks_max + 1)), int(self.random.integers(5))
        prompt = self._prompt(int(self.random.integers(DOCUMENTS)), own)
        slo = Slo(ttft_ns=int(self.random.integers(10**9, 10**11))) if i % 2 else None
        arrival_ns, client = i * 10**6, i % CLIENTS
        return Request(
            i, client, arrival_ns, prompt, OUTPUT_TOKENS, predicted_output_tokens=predicted, slo=slo, priority=priority
        )

    def arrive(self, request: Request) -> None:
        """It joins the queue."""
        self.worker, events = transitions.arrive(self.worker, request, OUTPUT_TOKENS, request.arrival_ns)
        self._tell(events)

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            if type(event) not in self.policy.ignored and not isinstance(event, Admitted | Preempted):
                self.state = self.policy.observe(self.state, event)

    def without(self, request_id: int) -> tuple[Any, WorkerView]:
        """The state and the view after one that runs has ended."""
        worker, events = transitions.stop(self.worker, request_id, 0)
        state = self.state
        for event in events:
            state = self.policy.observe(state, event)
        return state, worker.view(10**11)

    def step(self) -> None:
        """One decision and what comes of it."""
        plan, self.state = self.policy.decide(self.state, self.worker.view(0))
        self.worker, events = transitions.step(self.worker, plan, 0)
        self._tell(events)


def limited(policy: ComposedPolicy, running: int) -> ComposedPolicy:
    """The policy with room for so many requests in a batch, and no other limit of a step."""
    return attrs.evolve(
        policy, batching=attrs.evolve(policy.batching, max_batched_tokens=STEP_TOKENS, max_running=running)
    )


def _us(call: Callable[[Any], object], given: list[Any]) -> float:
    """The median of a call with each of these."""
    times = []
    for each in given:
        start = time.process_time_ns()
        call(each)
        times.append(time.process_time_ns() - start)
    return statistics.median(times) / 1e3


def crowded(policy: ComposedPolicy, running: int) -> World:
    """A world in which so many run, or as many as the policy lets, decode and have produced some, and 10,000 wait that
    would produce more."""
    world = World(limited(policy, max(running, 1)))
    world.cache_documents()
    for i in range(running):
        world.arrive(world.request(1_001 + i % 100, blocks_max=5))
    while (decoding := world.worker.decoding) < running:
        world.step()
        if world.worker.decoding == decoding and not world.worker.view(0).prefilling:
            break  # the policy lets no more run
    for _ in range(WAITING):
        world.arrive(world.request(int(world.random.integers(2_100, OUTPUT_TOKENS))))
    return world


def _short(view: WorkerView) -> WorkerView:
    """The view of a worker on which memory is short for every request."""
    return msgspec.structs.replace(view, kv_free_tokens=SHORT_TOKENS + view.growing)


def measured(name: str, policy: ComposedPolicy) -> str:
    """A line of the table."""
    world = crowded(policy, RUNNING)
    if isinstance(policy.order, Regroups):
        # What grouping costs is a line of its own.
        world.state = msgspec.structs.replace(world.state, queue=regrouped_queue(policy, world))
    arrivals = [Arrived(0, 0, world.request(3_000)) for _ in range(SAMPLES)]
    arrival = _us(lambda event: policy.observe(world.state, event), arrivals)
    view = world.worker.view(10**11)

    def decides(running: int, view: WorkerView) -> float:
        asked = limited(policy, running)
        plan, before = asked.decide(world.state, view)
        if plan.admit:
            return float("nan")
        return _us(lambda state: asked.decide(state, view), [policy.observe(before, event) for event in arrivals])

    no_seat = decides(RUNNING, view)
    no_memory = decides(2 * RUNNING, _short(view))
    asked = limited(policy, 2 * RUNNING)
    if no_memory == no_memory:
        _, world.state = asked.decide(world.state, _short(view))
    left = [world.without(i) for i in sorted(world.worker.running)[:SAMPLES]] if no_memory == no_memory else []
    ended = _us(lambda pair: asked.decide(pair[0], _short(pair[1])), left) if left else float("nan")
    asked = limited(policy, RUNNING + ENTERING)
    if not asked.decide(world.state, view)[0].admit:
        asked, world = limited(policy, ENTERING), crowded(policy, 0)
        view = world.worker.view(10**11)
    states = [policy.observe(world.state, event) for event in arrivals]
    entered = len(asked.decide(states[0], view)[0].admit)
    admits = _us(lambda state: asked.decide(state, view), states[1:])
    return f"{name:<28}{arrival:>9.0f}{no_seat:>9.0f}{no_memory:>11.0f}{ended:>9.0f}{admits:>9.0f}{entered:>9}"


def gated(name: str, clients: int) -> str:
    """A line of the table of gates: two requests of each client wait."""
    policy = FCFS(gate=GATES[name], batching=Chunked(STEP_TOKENS, ENTERING))
    state = policy.init()
    for i in range(clients):
        state = policy.observe(state, ClientConfigured(0, 0, i, 1, ((f"organisation-{i % 100}", 1),)))
    for i in range(2 * clients):
        state = policy.observe(state, Arrived(0, 0, Request(i, i % clients, 0, Prompt(100), 64)))
    full, room = (WorkerState(0, 132_000, promised=taken).view(0) for taken in (132_000, 0))
    _, after = policy.decide(state, room)
    decoded = Decoded(0, 0, 1, tuple(range(0, clients, clients // 100)), (1,) * 100)
    told = [policy.observe(after, decoded) for _ in range(SAMPLES)]
    poor = policy.observe(after, Decoded(0, 0, 1, (ENTERING,), (2 * STEP_TOKENS,)))
    behind = [policy.observe(poor, decoded) for _ in range(SAMPLES)]
    first, later = [state] * SAMPLES, [after] * SAMPLES
    none, others, refilled = (_us(lambda state: policy.decide(state, full), given) for given in (told, behind, first))
    admits = _us(lambda state: policy.decide(state, room), first)
    observes = _us(lambda state: policy.observe(state, decoded), later)
    return f"{name:<14}{clients:>8}{none:>9.0f}{others:>9.0f}{refilled:>9.0f}{admits:>11.0f}{observes:>9.0f}"


def _not_computed(queued: QueuedRequest) -> bool:
    return False


def regrouped_queue(policy: ComposedPolicy, world: World) -> Queue:
    """The queue with all that wait in groups that are made now."""
    assert isinstance(policy.order, Regroups)
    return regrouped(world.state.queue, policy.order, policy.gate.grouped, _not_computed)


def regroups(policy: ComposedPolicy) -> str:
    """Making groups of 10,000 requests anew."""
    world = crowded(policy, 0)
    us = _us(lambda _: regrouped_queue(policy, world), [None] * 5)
    return f"{policy.name} groups 10,000: {us / 1e3:.0f} ms"


def displaces(name: str, policy: ComposedPolicy) -> str:
    """A decision in which a short request takes the place of a long one."""
    world = crowded(policy, RUNNING)
    if name == "fastserve":
        # Levels go by what was computed: those that run have long prompts behind them by now.
        for _ in range(40):
            world.step()
    world.step()
    world.arrive(world.request(10))
    view, state = world.worker.view(0), world.state
    displaced = len(world.policy.decide(state, view)[0].preempt)
    us = _us(lambda _: world.policy.decide(state, view), [None] * SAMPLES)
    return f"{name}: {us:.0f} us, {displaced} displaced"


def foreseeing(reserve: Any) -> str:
    """A decision in which some of 512 requests decode, and the others wait for memory that is foreseen to be short."""
    policy = TetriInferLocal(batching=Chunked(STEP_TOKENS, 512, reserve))
    random, world = np.random.default_rng(3), World(policy)
    world.worker = WorkerState(0, 70_000)
    for i, output in enumerate(random.integers(100, 1_000, 512).tolist()):
        world.arrive(Request(i, 0, 0, Prompt(100), output, output))
        world.step()
    view, state = world.worker.view(0), world.state
    us = _us(lambda _: policy.decide(state, view), [None] * SAMPLES)
    return f"tetriinfer, {reserve}: {us:.0f} us, {view.running} run and {len(world.worker.queue)} wait"


def waiting(name: str) -> Callable[[], float]:
    """A decision right after an arrival in which no request enters, since 256 run."""
    policy = policies()[name]
    world = crowded(policy, RUNNING)
    asked, view = limited(policy, RUNNING), world.worker.view(10**11)
    plan, before = asked.decide(world.state, view)
    assert not plan.admit
    arrivals = [Arrived(0, 0, world.request(3_000)) for _ in range(10 * SAMPLES)]
    return lambda: _us(lambda state: asked.decide(state, view), [policy.observe(before, event) for event in arrivals])


def entering(name: str) -> Callable[[], float]:
    """A decision right after an arrival that admits 32."""
    policy = policies()[name]
    world = crowded(policy, RUNNING)
    asked, view = limited(policy, RUNNING + ENTERING), world.worker.view(10**11)
    assert len(asked.decide(world.state, view)[0].admit) == ENTERING
    arrivals = [Arrived(0, 0, world.request(3_000)) for _ in range(SAMPLES)]
    before = world.state
    return lambda: _us(lambda state: asked.decide(state, view), [policy.observe(before, event) for event in arrivals])


FIGURES = {
    **{
        f"{name}: a decision in which no request enters, 10,000 wait": {"ours": partial(waiting, name)}
        for name in ("dlpm", "vtc", "trail", "fastserve")
    },
    **{f"{name}: a decision that admits 32 of 10,000": {"ours": partial(entering, name)} for name in ("dlpm", "vtc")},
}


def main(names: tuple[str, ...]) -> None:
    """Print the tables; with names the first one alone."""
    known = policies()
    print(f"{'':<28}{'arrival':>9}{'no seat':>9}{'no memory':>11}{'ended':>9}{'admits':>9}{'so many':>9}")
    for name in names or known:
        print(measured(name, known[name] if name in known else local_policy(name)), flush=True)
    if names:
        return
    print(f"\n{'':<14}{'clients':>8}{'none':>9}{'others':>9}{'refills':>9}{f'admits {ENTERING}':>11}{'decoded':>9}")
    for name in GATES:
        for clients in (1_000, 10_000) if GATES[name].grouped else ():
            print(gated(name, clients), flush=True)
    print()
    for policy in (BatchLLM(), HybridBatchLLM()):
        print(regroups(policy))
    for name in (DISPLACES, "learning-to-rank", "fastserve", "splitwise-machine"):
        print(displaces(name, known[name]))
    for rule in RESERVES_BY:
        print(foreseeing(rule))


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
