"""What of vLLM's V1 scheduler matters to a queue, in a page: the same calls in the same order, and no model.

Requests, block pool and the loop over running and waiting requests follow vLLM 0.32; tests/integration/test_vllm.py
runs the shim in the real one.
"""

import logging
import random
from collections import Counter, deque
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

from fairsched.engines.adapters.vllm.memory import KvMemory, Prefixes
from fairsched.engines.adapters.vllm.queue import FairQueue
from fairsched.engines.adapters.vllm.settings import VllmSettings
from fairsched.engines.adapters.vllm.tracker import VllmTracker
from fairsched.engines.serving import AdmissionGuard, EventBus, empty_worker
from fairsched.model import events as ev
from fairsched.policies.base import AnyLocalPolicy
from fairsched.policies.registry import local_policy, with_parameters
from fairsched.verify.conformance.event_invariants import EventLedger

BLOCK = 4


class Status(Enum):
    """Names are vLLM's."""

    WAITING = auto()
    WAITING_FOR_GRAMMAR = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED_STOPPED = auto()
    FINISHED_ABORTED = auto()


class StandInRequest:
    """A request; `stops_after` output tokens it stops by itself."""

    def __init__(self, name: str, client: object, prompt: int, most: int, stops_after: int) -> None:
        self.request_id = name
        self.num_prompt_tokens = prompt
        self.max_tokens = most
        self.stops_after = min(stops_after, most)
        self.num_computed_tokens = 0
        self.num_output_tokens = 0
        self.sampling_params: Any = SimpleNamespace(extra_args=None if client is None else {"client": client})
        self.block_hashes: list[bytes] = []
        self.resumable = False
        self.status = Status.WAITING
        self.puts_off = 0
        self.blocks = 0
        self.next_decode_eligible_step = 0
        self.num_output_placeholders = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return self.num_prompt_tokens + self.num_output_tokens

    def is_finished(self) -> bool:
        """Whether it is over."""
        return self.status.name.startswith("FINISHED")


class StandInBlocks:
    """vLLM's cache manager and block pool in one, without prefix caching."""

    def __init__(self, blocks: int) -> None:
        self.block_pool = self
        self.free = blocks
        self.held: dict[str, int] = {}

    def get_num_free_blocks(self) -> int:
        """Blocks that nobody has."""
        return self.free

    def get_blocks(self, name: str) -> Any:
        """What a request has."""
        return SimpleNamespace(blocks=([None] * self.held.get(name, 0),))

    def get_computed_blocks(self, _: object) -> Any:
        """Nothing is cached."""
        return SimpleNamespace(blocks=([],)), 0, 0

    def allocate(self, name: str, tokens: int) -> bool:
        """Give a request blocks for so many tokens in all, if there are any."""
        more = -(-tokens // BLOCK) - self.held.get(name, 0)
        if more > self.free:
            return False
        self.free -= max(more, 0)
        self.held[name] = self.held.get(name, 0) + max(more, 0)
        return True

    def release(self, name: str) -> None:
        """Take a request's blocks back."""
        self.free += self.held.pop(name, 0)


def policy_of(name: str, reserve: bool = True, **parameters: int) -> Any:
    """A policy as vLLM's scheduler makes it."""
    own = {"batching": "iteration-level", "max_running": "1", "reserve": "static" if reserve else "optimistic"}
    return with_parameters(local_policy(name), own | {key: str(value) for key, value in parameters.items()})


class StandIn:
    """The scheduler: `schedule` and `update`, with up to `ahead` steps whose results are not there yet."""

    def __init__(
        self,
        policy: AnyLocalPolicy,
        *,
        blocks: int = 16,
        seats: int = 4,
        budget: int = 16,
        reserve: bool = True,
        unreserved: int = 0,
        settings: VllmSettings | None = None,
    ) -> None:
        self.pool = StandInBlocks(blocks)
        self.events: list[ev.Event] = []
        self.now = 0
        memory = KvMemory(self.pool, BLOCK, 0, reserve)
        # A busy machine may take long over a decision.
        settings = settings or VllmSettings(decision_budget_ms=20_000)
        log, budget_ms = logging.getLogger("vllm.fairsched"), settings.decision_budget_ms
        guard = AdmissionGuard(policy, log, budget_ms=budget_ms)
        clients, bus = settings.registry(), EventBus(None, [self.events.extend])
        self.tracker = VllmTracker(
            *(guard, memory, clients, Prefixes(memory, False), bus, 1 << 20, self._clock), unreserved_max=unreserved
        )
        self.waiting = FairQueue(self.tracker, self._is_ready)
        self.running: list[StandInRequest] = []
        self.ready: set[str] = set()
        self.in_flight: deque[dict[str, int]] = deque()
        self.known: dict[str, StandInRequest] = {}
        self.let_in: list[str] = []
        self._seats, self._budget = seats, budget
        self.steps = 0

    def _clock(self) -> int:
        self.now += 1
        return self.now

    def _is_ready(self, request: Any) -> bool:
        if any(request.request_id in step for step in self.in_flight) and request.status is Status.PREEMPTED:
            return False
        if request.status is Status.WAITING_FOR_GRAMMAR and request.request_id in self.ready:
            request.status = Status.WAITING
        return request.status is not Status.WAITING_FOR_GRAMMAR

    def add(self, request: StandInRequest) -> None:
        """A request comes."""
        self.known[request.request_id] = request
        self.waiting.add_request(request)

    def abort(self, name: str) -> None:
        """A caller gives up."""
        request = self.known[name]
        if not request.is_finished():
            self._end(request, Status.FINISHED_ABORTED)

    def _end(self, request: StandInRequest, status: Status) -> None:
        if request in self.running:
            self.running.remove(request)
        self.waiting.remove_requests([request])
        request.status = status
        self.pool.release(request.request_id)
        self.tracker.leave(request)

    def schedule(self) -> dict[str, int]:
        """Fill a step: how many tokens of each request."""
        self.steps += 1
        self.tracker.pause()
        while (taken_out := self.tracker.in_the_way(self._seats - len(self.running))) is not None:
            assert isinstance(taken_out, StandInRequest)
            self.running.remove(taken_out)
            self._preempt(taken_out)
        self.waiting.open_step(self._seats - len(self.running))
        step: dict[str, int] = {}
        preempted = False
        for request in list(self.running):
            count = self._pending(request) if request.next_decode_eligible_step <= self.steps else 0
            if request not in self.running or count <= 0 or sum(step.values()) >= self._budget:
                continue
            count = min(count, self._budget - sum(step.values()))
            while not self.pool.allocate(request.request_id, request.num_computed_tokens + count):
                victim, preempted = self.running.pop(), True
                self._preempt(victim)
                if victim is request:
                    break
            else:
                step[request.request_id] = count
        if not preempted:
            self._admit(step)
        self.waiting.settle()
        self.tracker.scheduled(id(step), step)
        for name, count in step.items():
            self.known[name].num_computed_tokens += count
            self.known[name].num_output_placeholders += 1
        self.in_flight.append(step)
        return step

    def _pending(self, request: StandInRequest) -> int:
        """Tokens of the request that may be computed: its prompt, or one more output token."""
        sampled = sum(request.request_id in step for step in self.in_flight)
        if request.num_computed_tokens >= request.num_tokens:
            return 0 if sampled and request.num_output_tokens + sampled >= request.max_tokens else 1
        return request.num_tokens - request.num_computed_tokens

    def _preempt(self, victim: StandInRequest) -> None:
        self.pool.release(victim.request_id)
        victim.status, victim.num_computed_tokens = Status.PREEMPTED, 0
        self.waiting.prepend_request(victim)

    def _admit(self, step: dict[str, int]) -> None:
        put_off: deque[StandInRequest] = deque()
        while sum(step.values()) < self._budget and self.waiting and len(self.running) < self._seats:
            request: Any = self.waiting.peek_request()
            self._again(self.waiting.peek_request(), request)
            if request.puts_off:
                request.puts_off -= 1
                self._again(self.waiting.pop_request(), request)
                put_off.appendleft(request)
                continue
            assert self._is_ready(request)
            count = min(request.num_tokens, self._budget - sum(step.values()))
            if not self.pool.allocate(request.request_id, count):
                break
            self._again(self.waiting.pop_request(), request)
            self.running.append(request)
            self.let_in.append(request.request_id)
            request.status, request.num_computed_tokens = Status.RUNNING, 0
            step[request.request_id] = count
        if put_off:
            self.waiting.prepend_requests(put_off)

    def _again(self, answer: object, request: object) -> None:
        """The queue says of its front what it said before."""
        assert answer is request

    def update(self) -> None:
        """The results of the oldest step are there."""
        step = self.in_flight.popleft()
        for name in step:
            request = self.known[name]
            request.num_output_placeholders -= 1
            if request.is_finished() or request.num_computed_tokens < request.num_tokens:
                continue
            request.num_output_tokens += 1
            if request.num_output_tokens >= request.stops_after:
                self.running.remove(request)
                request.status = Status.FINISHED_STOPPED
                self.pool.release(name)
        self.tracker.delivered(id(step), step)

    def run(self, steps: int = 100_000, ahead: int = 1) -> None:
        """Serve until nothing is left, or for so many steps."""
        for _ in range(steps):
            if not self.running and not len(self.waiting) and not self.in_flight:
                return
            self.schedule()
            while len(self.in_flight) >= ahead:
                self.update()
        while self.in_flight:
            self.update()


def requests(rng: random.Random, count: int) -> list[StandInRequest]:
    """Requests of three clients that each fit."""
    return [
        StandInRequest(f"r{i}", rng.choice("aab"), rng.randint(1, 30), rng.randint(1, 30), rng.randint(1, 40))
        for i in range(count)
    ]


def decisions_differ(tracker: VllmTracker, events: list[ev.Event]) -> list[str]:
    """Admissions that the pure policy, told the same events, would not have decided."""
    policy, wrong = tracker.guard.policy, []
    state = policy.init()
    for client in tracker.clients.all:
        if client.weight != 1:
            state = policy.observe(state, ev.ClientConfigured(0, 0, client.id, client.weight))
    for event in events:
        if isinstance(event, ev.Admitted):
            plan, _ = policy.decide(state, empty_worker(event.time_ns, *[tracker.memory.capacity_tokens] * 2))
            if [admission.request_id for admission in plan.admit] != [event.request_id]:
                wrong.append(f"{event} where the policy says {plan}")
        state = policy.observe(state, event)
    assert policy.state_to_json(state) == policy.state_to_json(tracker.guard.state)
    return wrong


def check_pauses(events: list[ev.Event]) -> Counter[type]:
    """What is paused produces nothing until it goes on, and is told to be paused once; how often which happened.

    A preemption counts as going on, too.
    """
    ledger, kept = EventLedger(), dict[int, int]()
    counts = Counter(type(event) for event in events)
    for event in events:
        ledger.record(event)
        if isinstance(event, ev.Paused):
            kept[event.request_id] = event.generated_tokens
        elif isinstance(event, ev.Resumed):
            del kept[event.request_id]
        elif isinstance(event, ev.Preempted | ev.Cancelled):
            assert event.generated_tokens == kept.pop(event.request_id, event.generated_tokens)
            counts[ev.Resumed] += isinstance(event, ev.Preempted)
        elif isinstance(event, ev.Finished):
            assert event.request_id not in kept
    return counts
