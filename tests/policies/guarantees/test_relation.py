"""The simulation relation: a policy's accounts are those that its gate's kernels make of the events."""

from collections.abc import Iterator
from random import Random
from typing import Any

import attrs
import pytest
from msgspec.structs import replace

from fairsched.model import worker as transitions
from fairsched.model.events import (
    Admitted,
    Arrived,
    Cancelled,
    ClientConfigured,
    Decoded,
    Event,
    Evicted,
    Finished,
    Preempted,
    Settled,
    Transferred,
    WorkerLeft,
)
from fairsched.model.pricing import Rates
from fairsched.model.request import Groups, Prompt, Request
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, VTC
from fairsched.policies.gates import AnyGate, BandGate, CounterGate, DeficitGate, GlobalDeficitGate, HierarchicalGate
from fairsched.policies.guarantees.relation import PromisedTokens
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import ShortestRemaining
from fairsched.verify.conformance import worker_invariants
from tests.support.authors.least_served import LeastServed
from tests.support.policy_play import Play
from tests.verify.mutation.bugs import BUGS, Bug
from tests.verify.mutation.code import in_place

RATES = Rates(2, 3)
GATES: dict[str, AnyGate] = {
    "deficit": DeficitGate(RATES, quantum=9),
    "rich": DeficitGate(RATES, quantum=60),
    "capped": DeficitGate(RATES, quantum=40, in_flight_cap_tokens=24),
    "elastic": DeficitGate(RATES, quantum=40, in_flight_cap_tokens=24, cap_holds="contended"),
    "printed": DeficitGate(RATES, quantum=9, rejoin="reset"),
    "per use": DeficitGate(RATES, quantum=9, cached_percent=30),
    "counter": CounterGate(RATES),
    "counter without a lift": CounterGate(RATES, lift="none"),
    "tree": HierarchicalGate(RATES, quantum=9),
    "capped tree": HierarchicalGate(RATES, quantum=40, in_flight_cap_tokens=24),
    "shared": GlobalDeficitGate(RATES, quantum=9),
    "authored": LeastServed(RATES),
    "bands": BandGate(RATES, quantum=9, bands="acme:50,solo:40,rest:10", kept=20),
}
PLACES: tuple[Groups, ...] = ((("acme", 2), ("ann", 1)), (("acme", 2), ("ann", 1)), (("acme", 2),), (("solo", 1),), ())


class Held(Play):
    """A play in which every state is held to the kernels, and the worker's sums to its requests."""

    def __init__(self, policy: ComposedPolicy, kv_capacity_tokens: int) -> None:
        super().__init__(policy, kv_capacity_tokens)
        self.relation: Any = policy.guarantee.relation()

    def tell(self, events: list[Event], decided: bool = False) -> None:
        """The policy and the relation learn events, and their states agree."""
        super().tell(events, decided)
        for event in events:
            self.relation.observe(event)
        worker_invariants.check(self.worker)
        assert self.relation.difference(self.state) is None
        assert self.relation.refused is None

    def migrate(self, request_id: int) -> None:
        """A request goes to another worker."""
        self.worker, events = transitions.depart(self.worker, request_id, self.now_ns)
        self.tell(events)


def played(policy: ComposedPolicy, seed: int, steps: int = 60, clients: int = 10) -> set[type[Event]]:
    """A small worker under the policy: requests of these clients come, run, are given up, go elsewhere and settle, and
    weights change.  What kinds of events there were."""
    random = Random(seed)
    play = Held(policy, 22 if policy.batching.grows else 40)
    grouped = isinstance(policy.gate, HierarchicalGate | BandGate)
    if grouped:
        play.tell([ClientConfigured(0, 0, client, 1, PLACES[client % 5]) for client in range(10)])
    for _ in range(steps):
        there = sorted((*play.worker.queue, *play.worker.running))
        what = random.choice("aaaassssscmwpp")
        if what == "a":
            shared = Prompt.from_keys([random.randrange(2) for _ in range(random.randrange(1, 8))])
            client = random.randrange(clients) if random.random() < 0.3 else random.randrange(min(clients, 3))
            alone = Prompt(random.randrange(1, 12))
            most = random.randrange(1, 10)
            play.arrive(client, random.choice([shared, alone]), random.randrange(1, most + 1), most)
        elif what == "c" and there:
            prefilling = [request_id for request_id, _ in play.worker.prefilling]
            play.cancel(random.choice(prefilling or there))
        elif what == "m" and there:
            play.migrate(random.choice(there))
        elif what == "w":
            play.configure(random.choice([0, 0, 1, 1, 2, 10]), random.choice([1, 2, 3]))
        elif what == "p" and play.worker.prefilling:
            # An engine says that it computes a token less, or more, than was planned.
            request_id, _ = random.choice(play.worker.prefilling)
            extend = play.state.flights[request_id].extend_tokens
            client = play.worker.in_flight[request_id].client
            play.tell([Settled(play.now_ns, 0, request_id, client, max(extend + random.choice([-1, 1]), 1))])
        else:
            play.step(random.randrange(1, 4))
    return {type(event) for event in play.events}


def composed(gate: AnyGate, order: Any = None, **rule: Any) -> ComposedPolicy:
    """A policy of that gate, with budgets of the size of a small world."""
    policy: ComposedPolicy = VTC() if isinstance(gate, CounterGate) else DLPM()
    batching = Chunked(**{"max_batched_tokens": 6, "max_running": 4, **rule})
    policy = attrs.evolve(policy, batching=batching)
    return ComposedPolicy("held", order or policy.order, gate, batching)


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
@pytest.mark.parametrize("reserve", ["static", "optimistic"])
def test_every_state_is_the_one_that_kernels_make_of_the_events(gate: AnyGate, reserve: Any) -> None:
    """Arrivals, admissions, decode steps, settlements, refunds, preemptions, requests that go elsewhere, weights and
    groups: each admission is one that the kernels allow, and deficits, quanta, counters, units, marks and what is in
    flight are the kernels' after every event."""
    for seed in range(3):
        played(composed(gate, reserve=reserve), seed)


def of(*names: str) -> pytest.MarkDecorator:
    """For the gates of these names."""
    return pytest.mark.parametrize("gate", [GATES[name] for name in names], ids=names)


@of("capped", "capped tree", "counter")
def test_requests_that_displace_keep_the_relation(gate: AnyGate) -> None:
    """Those that are taken out give back what they reserved, and the one that enters pays for itself."""
    seen = [played(composed(gate, ShortestRemaining(100), max_running=1), seed, clients=1) for seed in range(4)]
    assert any(Preempted in kinds for kinds in seen)


@of("deficit", "tree", "counter")
def test_requests_that_memory_takes_out_keep_the_relation(gate: AnyGate) -> None:
    """Where outputs grow, the youngest waits again, and what is evicted is in no books any more."""
    rule = {"reserve": "optimistic", "max_batched_tokens": 12}
    seen = [played(composed(gate, **rule), seed, clients=2) for seed in range(3)]
    assert any({Preempted, Evicted} <= kinds for kinds in seen)


def wrong(state: Any, *parts: str) -> Iterator[Any]:
    """A policy's state with one number more, in one part of its gate's after the other."""
    for part in parts:
        gate = replace(state.gate, **{part: getattr(state.gate, part) + 1})
        yield replace(state, gate=gate)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("deficit", ("q", "quantum")),
        ("capped", ("q", "in_flight")),
        ("elastic", ("in_flight",)),
        ("capped tree", ("q", "in_flight")),
        ("counter", ("c",)),
    ],
)
def test_a_state_that_is_another_one_is_said(name: str, parts: tuple[str, ...]) -> None:
    """After any event that the gate is told, whatever it is followed by; where only the cap is wrong, too."""
    policy = composed(GATES[name])
    play = Play(policy, 40)
    play.tell([ClientConfigured(0, 0, client, 1, PLACES[client]) for client in range(5 * (name == "capped tree"))])
    play.arrive(0, output=6)
    play.arrive(4, prompt=3, output=6)
    play.step(2)
    assert len(play.worker.running) == 2
    for state in wrong(play.state, *parts):
        relation = policy.guarantee.relation()
        assert relation is not None
        for event in play.events:
            relation.observe(event)
        relation.observe(Transferred(0, 0, 0, 0))
        assert relation.difference(state) is not None
        relation.observe(Transferred(0, 0, 0, 0))
        assert relation.difference(play.state) is None
        relation.observe(Decoded(0, 0, 1, (), ()))
        assert relation.difference(state) is not None


def test_what_is_promised_to_requests_ends_with_them() -> None:
    """A request that is told of again, one that never came, a worker that is lost, and one that had outputs before."""
    promised = PromisedTokens(GATES["capped"])

    def of(*events: Event) -> int:
        for event in events:
            promised.observe(event)
        return promised.in_flight[0]

    came, enters = Arrived(0, 0, Request(1, 0, 0, Prompt(5), 9), 3), Admitted(0, 0, 1, 0, 4, 1, 6)
    assert of(enters) == 0
    assert not promised.waits(1)
    assert of(came) == 0
    assert promised.waits(1)
    assert of(enters) == 4 + 9 - 3
    assert not promised.waits(1)
    assert of(Preempted(0, 0, 1, 0, 5, 0), Preempted(0, 0, 7, 0, 5, 0)) == 0
    assert promised.waits(1)
    assert of(enters) == 4 + 9 - 5
    assert of(Cancelled(0, 0, 1, 0, True, 0, 0), Finished(0, 0, 1, 0, 6), enters) == 0
    assert of(came, enters) == 10
    assert of(WorkerLeft(0, 0)) == 0
    assert of(enters) == 0


ACCOUNTS = [
    bug
    for bug in BUGS
    if "test_accounts.py" in bug.noticed_by
    and bug.module.startswith("fairsched.policies")
    and bug.function.split(".")[-1] in ("admit", "decoded", "settled", "joined", "configured", "released", "_gone")
    and not bug.function.startswith(("Global", "_Global", "CounterGate.joined"))
]
"""Bugs that change what is charged, given back, known, weighed or reserved; without those of several workers, and of a
client that would be lifted to itself."""


@pytest.mark.nightly
@pytest.mark.parametrize("bug", ACCOUNTS, ids=lambda bug: bug.name)
def test_the_relation_notices_what_changes_accounts(bug: Bug) -> None:
    """Of the seeded bugs those that change what is charged, given back, known, weighed or reserved: some run breaks
    under each."""
    with in_place(bug.module, bug.function, bug.old, bug.new):
        assert any(_broken(gate, seed) for gate in GATES.values() for seed in range(6)), bug


def _broken(gate: AnyGate, seed: int) -> bool:
    try:
        played(composed(gate), seed)
    except Exception:
        return True
    return False
