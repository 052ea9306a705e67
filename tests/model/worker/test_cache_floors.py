"""Floors of clients: what they hold below is not evicted, nor promised, for others; and every request is served."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from fairsched.engines.analysis import replay
from fairsched.engines.serving import Engine
from fairsched.engines.serving.state import resume
from fairsched.engines.serving.state.journal import Tail
from fairsched.engines.serving.state.restart import kept, recovered
from fairsched.engines.workloads import with_floors
from fairsched.model.decision import Host, StepPlan
from fairsched.model.events import Admitted, Event, Evicted, Rejected
from fairsched.model.prefix_cache import ROOT, PrefixTree, walk
from fairsched.model.request import KEY_BYTES, Client, Prompt, Request, Workload
from fairsched.model.worker import WorkerState, transitions, violations
from fairsched.policies.batching import Chunked, EagerPrefill, MemoryCentric
from fairsched.policies.catalog import DLPM, FCFS, LPM, VTC, LearningToRank
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.strategies import prompts
from tests.support.engines.fake_executor import FakeExecutor
from tests.support.logs import RUNS, Case, build, write
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
        capacity=st.integers(16, 40),
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

    def ask(self, client: int, prompt: Prompt, output: int, more: int = 0) -> None:
        need = prompt.tokens + output + more
        fits = need <= self.play.worker.capacity - sum(self.floors.values()) + self.floors[client]
        if self.play.policy.refuses(Request(0, client, 0, prompt, output + more)) is None:
            self.play.arrive(client, prompt, output, output + more)
            assert fits is not isinstance(self.play.events[-1], Rejected)

    @rule(data=st.data(), client=st.integers(0, CLIENTS - 1), output=st.integers(1, 6), more=st.integers(0, 3))
    def arrive(self, data: st.DataObject, client: int, output: int, more: int) -> None:
        self.ask(client, data.draw(prompts(self.block, 10 // self.block, 1)), output, more)

    @rule(client=st.integers(0, CLIENTS - 1))
    def fill(self, client: int) -> None:
        """The client caches as much as its floor."""
        self.ask(client, self.fresh(max(self.floors[client] // self.block, 1)), 1)
        self.step(6)

    @rule(client=st.integers(0, CLIENTS - 1), blocks=st.integers(1, 6), count=st.integers(2, 5))
    def flood(self, client: int, blocks: int, count: int) -> None:
        """The client sends prompts that share nothing."""
        for _ in range(count):
            self.ask(client, self.fresh(max(blocks // self.block, 1)), 3)
        self.step(2)

    def fresh(self, blocks: int) -> Prompt:
        self.seen += blocks
        keys = range(1_000 + self.seen - blocks, 1_000 + self.seen)
        return Prompt.from_keys(keys, block_tokens=self.block, tokens=blocks * self.block + 1)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            play, before = self.play, self.play.worker
            plan, _ = play.policy.decide(play.state, before.view(play.now_ns))
            assert not violations(plan, before.view(play.now_ns))
            middle, _ = transitions.change_batch(before, plan, play.now_ns)
            after, told = transitions.begin(before, plan, play.now_ns)
            self.nothing_below_a_floor_went(middle, held(after) + after.growth_of(plan), told)
            play.step()

    def nothing_below_a_floor_went(self, before: WorkerState, now: Counter[int], told: list[Event]) -> None:
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
        assert +Counter(worker.evictor(StepPlan(decode=False)).held) == +held(worker)

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


def filled(capacity: int, floors: dict[int, int], tokens: int = 10) -> Play:
    """A worker under FCFS on which client 0 has cached so many tokens, and nothing runs."""
    play = Play(FCFS(), capacity)
    play.worker = play.worker.with_floors(floors)
    play.arrive(0, keyed(0, tokens), 1)
    play.step(2)
    return play


def keyed(first: int, tokens: int) -> Prompt:
    """A prompt of keys from `first` on."""
    return Prompt.from_keys(range(first, first + tokens), tokens=tokens)


@pytest.mark.parametrize(("floor", "left"), [(1, 1), (4, 4), (10, 10), (11, 10)])
def test_another_client_takes_all_beyond_a_floor_and_nothing_below(floor: int, left: int) -> None:
    """Attained: a request as large as may come leaves of ten cached blocks those of the floor, and no other one."""
    play = filled(20, {0: floor})
    play.arrive(1, keyed(100, 20 - floor - 3), 3)
    play.step(4)
    assert play.worker.cache.cached_tokens(Prompt.from_keys(range(10), tokens=11)) == left


def test_what_a_floor_keeps_is_not_promised_to_others() -> None:
    """Two requests of nine tokens fit beside what is cached and may go, and one beside what may not."""
    for floor, running in ((1, 2), (10, 1)):
        play = filled(20, {0: floor, 1: 1})
        for i in (1, 2):
            play.arrive(1, keyed(100 * i, 6), 3)
        play.step()
        assert len(play.worker.in_flight) == running


def test_a_client_may_use_its_floor_for_what_it_runs() -> None:
    """A request evicts cached blocks of its own client below the floor, and no others."""
    play = filled(30, {0: 20, 1: 10})
    play.arrive(1, keyed(100, 6), 1)
    play.step(2)
    play.arrive(0, keyed(200, 17), 3)
    play.step(12)
    assert play.worker.cache.cached_tokens(Prompt.from_keys(range(100, 106), tokens=7)) == 6
    assert play.worker.cache.cached_tokens(Prompt.from_keys(range(200, 217), tokens=18)) == 17


def test_a_shared_prefix_stays_while_one_client_that_used_it_is_at_its_floor() -> None:
    """Another client that uses a prefix later, and goes over its share, takes it from no client that holds it."""
    play = filled(20, {0: 10, 1: 1})
    for i in range(6):
        play.arrive(1, keyed(0, 10), 2)
        play.arrive(1, keyed(100 * (i + 1), 6), 3)
        play.step(8)
    assert play.worker.cache.cached_tokens(Prompt.from_keys(range(10), tokens=11)) == 10


def test_a_pinned_prefix_stays_charged_to_the_client_that_pinned_it_first() -> None:
    """The next client that completes a prompt of it takes over no charge: else a floor would be promised twice."""
    play = Play(FCFS(), 40)
    play.worker = play.worker.with_floors({0: 12, 1: 5})
    play.arrive(0, keyed(0, 8), 6)
    play.step()
    play.arrive(1, Prompt.from_keys([*range(8), 90, 91], tokens=10), 6)
    play.step()
    assert dict(play.worker.cache.tree.shares.pinned) == {0: 8, 1: 2}  # type: ignore[union-attr]
    play.cancel(0)
    play.step()
    assert dict(play.worker.cache.tree.shares.pinned) == {0: 8, 1: 2}  # type: ignore[union-attr]


ATTACKS: dict[str, Callable[[int], list[tuple[int, Prompt]]]] = {
    "prefix flooding": lambda i: [(1, keyed(1_000 * i + 100 * j, 18)) for j in range(2)],
    "many keys": lambda i: [(1 + (2 * i + j) % 7, keyed(1_000 * i + 100 * j, 18)) for j in range(2)],
    "long contexts": lambda i: [(1, keyed(1_000 * i, 24))],
    "shared prefixes": lambda i: [(1, Prompt.from_keys([*range(10 * (i % 2), 10 * (i % 2) + 8), 1_000 * i], tokens=9))],
}


@pytest.mark.parametrize("policy", [FCFS(), DLPM(quantum=16), LPM(batching=EagerPrefill(64, 8, "optimistic"))])
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_takes_no_hit_from_a_polite_client(attack: str, policy: FCFS) -> None:
    """Its two prompts and what it runs are within its floor: it finds them whole, as if it were alone."""
    found = Counter[bool]()
    for floored in (False, True):
        play = Play(policy, 48)
        play.worker = play.worker.with_floors({0: 22} if floored else {})
        for i in range(24):
            play.arrive(0, Prompt.from_keys([*range(10 * (i % 2), 10 * (i % 2) + 8)], tokens=9), 2)
            for client, prompt in ATTACKS[attack](i + 2):
                play.arrive(client, prompt, 3)
            play.step(4)
        play.step(300)
        entered = [event for event in play.events if isinstance(event, Admitted)]
        found[floored] = sum(event.cached_prefix_tokens for event in entered if event.client == 0)
    assert found[True] == 22 * 8
    assert found[False] < found[True] or attack == "shared prefixes"


def test_floors_that_cannot_be_kept_are_refused() -> None:
    """Floors beyond the capacity, negative ones, late ones, and those of a worker that swaps."""
    with pytest.raises(ValueError, match="come to 21 tokens, and a worker holds 20"):
        WorkerState(0, 20).with_floors({0: 10, 1: 11})
    with pytest.raises(ValueError, match="is not negative"):
        WorkerState(0, 20).with_floors({0: -1})
    with pytest.raises(ValueError, match="swaps KV to host memory"):
        WorkerState(0, 20, host=Host(5)).with_floors({0: 1})
    with pytest.raises(ValueError, match="before its first request"):
        filled(20, {0: 5}).worker.with_floors({0: 6})
    play = filled(20, {0: 5, 1: 5})
    play.arrive(1, 14, 2)
    assert "keeps 5 for other clients" in play.events[-1].reason  # type: ignore[union-attr]


def test_a_policy_that_displaces_says_that_floors_forbid_it() -> None:
    """What a displaced request gives back may be kept for its client."""
    play = Play(LearningToRank(batching=Chunked(max_running=1)), 40)
    play.worker = play.worker.with_floors({0: 10})
    play.arrive(0, 4, 20, predicted_output_tokens=20)
    play.step(2)
    play.arrive(1, 4, 2, predicted_output_tokens=2)
    with pytest.raises(ValueError, match="displaces running requests, and cache floors"):
        play.step()


@given(st.lists(st.tuples(st.integers(0, 2), prompts(2), st.integers(1, 4)), max_size=12), st.integers(30, 50))
def test_a_tree_with_shares_is_read_as_it_was_written(asked: list[tuple[int, Prompt, int]], capacity: int) -> None:
    """With its holders, keepers and charges."""
    play = Play(FCFS(), capacity)
    play.worker = play.worker.with_floors({0: 10, 1: 5})
    for client, prompt, output in asked:
        play.arrive(client, prompt, output)
        play.step()
        tree = play.worker.cache.tree
        assert PrefixTree.from_json(tree.to_json()) == tree


@given(RUNS, st.integers(1, 12), st.integers(1, 8))
@settings(max_examples=30)
def test_a_log_of_clients_with_floors_replays(run: tuple[Workload, Case], first: int, second: int) -> None:
    """It names their floors, so views and evictions are the same again, also where workers fail and KV moves."""
    workload, case = run
    floors = dict(zip((client.name for client in workload.clients), (first, second), strict=False))
    workload = replace(workload, clients=with_floors(workload.clients, floors))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        if case.build().displaces:
            return
        assert replay(write(path, workload, case).path, build).equal


def test_a_live_engine_keeps_floors_and_is_saved_with_them() -> None:
    """From its clients, or by `configure_client` before its first request; a restart has them again."""
    gold = Client(0, "gold", cache_floor_tokens=8)
    engine = Engine(FCFS(), FakeExecutor(), kv_capacity_tokens=40, clients=[gold])
    engine.configure_client("free", 2, cache_floor_tokens=4)
    assert dict(engine.state.floors) == {0: 8, 1: 4}
    with pytest.raises(ValueError, match="come to 41 tokens"):
        engine.configure_client("free", 2, cache_floor_tokens=33)
    engine.ask("gold", range(20), 2)
    while engine.step():
        pass
    with pytest.raises(ValueError, match="before its first request"):
        engine.configure_client("free", 2, cache_floor_tokens=5)
    engine.configure_client("free", 3)
    assert engine.clients["free"].cache_floor == 4
    again = resume(recovered(FCFS(), kept(engine), Tail()).saved, FCFS(), FakeExecutor())
    assert dict(again.state.floors) == {0: 8, 1: 4}
    again.state.cache.tree.check()
