"""Floors of clients: what they hold below is not evicted, nor promised, for others; and every request is served."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fairsched.model.decision import Host
from fairsched.model.events import Event, Evicted, Rejected
from fairsched.model.prefix_cache import ROOT, walk
from fairsched.model.request import KEY_BYTES, Prompt, Request
from fairsched.model.worker import WorkerState, transitions, violations
from fairsched.policies.batching import Chunked, EagerPrefill, MemoryCentric
from fairsched.policies.catalog import DLPM, FCFS, LPM, VTC, LearningToRank
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.strategies import prompts
from tests.support.policy_play import Play

CLIENTS = 3
POLICIES = [
    *(FCFS(batching=Chunked(8, 4, reserve)) for reserve in ("static", "optimistic", "predicted")),
    *(LPM(batching=EagerPrefill(12, 4, reserve)) for reserve in ("static", "optimistic")),
    *(DLPM(batching=Chunked(8, 4, reserve)) for reserve in ("static", "optimistic")),
    VTC(batching=MemoryCentric(8, reserve="optimistic", kv_threshold_percent=80)),
]


def held(worker: WorkerState) -> Counter[int]:
    """What each client holds, by the rule and from nothing but nodes and requests."""
    of, tree = Counter[int](), worker.cache.tree
    for i, node in tree.nodes.items():
        if i != ROOT:
            for client in (node.keeper,) if node.refs else node.holders:
                of[client] += (node.end - node.start) * tree.block_tokens
    for flight in worker.in_flight.values():
        of[flight.client] += flight.kv_tokens + (0 if flight.reserved else flight.decoded_tokens(worker.clock))
    return of


def holders(worker: WorkerState, prompt: Prompt, block: int) -> tuple[int, ...]:
    """Who holds that block of a prompt."""
    node, _ = walk(worker.cache.tree.nodes, prompt.keys[: (block + 1) * KEY_BYTES])
    return worker.cache.tree.nodes[node].holders


class FloorsMachine(RuleBasedStateMachine):
    """A worker under any policy keeps what clients hold below their floors, fits, and goes on."""

    @initialize(
        policy=st.sampled_from(POLICIES),
        capacity=st.integers(16, 60),
        block=st.sampled_from((1, 2, 4)),
        data=st.data(),
    )
    def start(self, policy: FCFS, capacity: int, block: int, data: st.DataObject) -> None:
        left, floors = capacity, dict[int, int]()
        for client in data.draw(st.permutations(range(CLIENTS))):
            floors[client] = data.draw(st.integers(0 if floors else 1, left))
            left -= floors[client]
        self.play, self.block = Play(policy, capacity), block
        self.play.worker = self.play.worker.with_floors(floors)
        self.floors, self.seen = floors, 0

    @rule(data=st.data(), client=st.integers(0, CLIENTS - 1), output=st.integers(1, 6), more=st.integers(0, 3))
    def arrive(self, data: st.DataObject, client: int, output: int, more: int) -> None:
        prompt = data.draw(prompts(self.block, blocks_max=8, keys_max=1))
        need = prompt.tokens + output + more
        fits = need <= self.play.worker.capacity - sum(self.floors.values()) + self.floors[client]
        if self.play.policy.refuses(Request(0, client, 0, prompt, output + more)) is None:
            self.play.arrive(client, prompt, output, output + more)
            assert fits is not isinstance(self.play.events[-1], Rejected)

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            play, before = self.play, self.play.worker
            plan, _ = play.policy.decide(play.state, before.view(play.now_ns))
            assert not violations(plan, before.view(play.now_ns))
            middle, _ = transitions.change_batch(before, plan, play.now_ns)
            after, told = transitions.begin(before, plan, play.now_ns)
            self.nothing_below_a_floor_went(middle, after, told)
            play.step()

    def nothing_below_a_floor_went(self, before: WorkerState, after: WorkerState, told: list[Event]) -> None:
        now = held(after)
        for event in told:
            if isinstance(event, Evicted):
                for block in range(event.keep_blocks, event.keep_blocks + event.blocks):
                    for client in holders(before, event.prompt, block):
                        # Before the last of its blocks went it held more than its floor.
                        assert now[client] + self.block > self.floors[client]

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        open_requests = sorted({*self.play.worker.queue, *self.play.worker.in_flight})
        if open_requests:
            self.play.cancel(data.draw(st.sampled_from(open_requests)))

    @rule()
    def lose(self) -> None:
        self.play.worker, events = transitions.lose(self.play.worker, self.play.now_ns)
        self.play.tell(events)
        assert not self.play.worker.cache.tree.cached_tokens

    @invariant()
    def memory_holds_what_is_promised_and_what_floors_keep(self) -> None:
        worker = self.play.worker
        worker_invariants.check(worker)
        assert worker.free >= 0
        assert +Counter(worker.evictor().held) == +held(worker)

    def teardown(self) -> None:
        """Whatever waits is served: what floors keep from a request it does not need."""
        if not hasattr(self, "play"):
            return
        for _ in range(400):
            if not (self.play.worker.queue or self.play.worker.in_flight):
                break
            self.step(1)
        assert not self.play.worker.queue
        assert not self.play.worker.in_flight


TestFloors = FloorsMachine.TestCase
