"""A gate that does anything else than its kernels is found, by a monitor that does not run it or by asking it again."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from random import Random
from typing import Any

import attrs
import msgspec
import numpy as np
import pytest

from fairsched.model import events
from fairsched.model.algebra import NO_GROUP, NO_SCORE, Ints
from fairsched.model.decision import StepPlan, WorkerView
from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.pricing import Rates
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies import gates
from fairsched.policies.batching import Chunked
from fairsched.policies.gates.deficit import DeficitAdmissions
from fairsched.policies.guarantees import GateMonitor
from fairsched.policies.local import ComposedPolicy, LocalState
from fairsched.policies.orders import Arrival, LongestPrefix, Order, QueuedRequest, ShortestRemaining
from fairsched.verify.conformance import WorkerPlay
from fairsched.verify.conformance.gate_holds import check_choice_holds
from tests.support.authors.allowance import Allowance
from tests.support.authors.least_served import LeastServed
from tests.support.policies.gate_play import GatePlay, first_seed, past_the_gate
from tests.support.policies.misbehaving import wrong

pytestmark = pytest.mark.kept

FEW = GatePlay()
WEIGHED = GatePlay(weight_max=4)
CROWD = GatePlay(clients=12, capacity_blocks=160, step_blocks=20, weight_max=4)
"""More than eight clients, where vectors are filled in another way."""
GROUPS = (("a", 2), ("x", 1)), (("a", 2), ("y", 3)), (("b", 1),), ()
GROUPED = GatePlay(clients=8, capacity_blocks=40, step_blocks=8, weight_max=3, places=GROUPS + GROUPS)
LARGE = GatePlay(clients=4, weight_max=4, block_tokens=1 << 19)
"""Charges of 2^37, which are near 2^41 in the unit of weights."""
HIGH = Rates(1 << 16, 1 << 16)
SEEDS = 60
"""Worlds in which a wrong gate must be found; a right one is found in none of the first `RIGHT`."""
RIGHT = 5


# --- gates as they ship ---------------------------------------------------------------------------------------------

RIGHT_GATES: list[tuple[gates.AnyGate, GatePlay]] = [
    (gates.DeficitGate(quantum=5), FEW),
    (gates.DeficitGate(quantum=5, rejoin="reset"), FEW),
    (gates.DeficitGate(quantum=4, in_flight_cap_tokens=20), WEIGHED),
    (gates.DeficitGate(quantum=7, cached_percent=30), WEIGHED),
    (gates.DeficitGate(quantum=1 << 30, rates=HIGH), LARGE),
    (gates.DeficitGate(quantum=1, rates=HIGH), LARGE),
    (gates.CounterGate(), FEW),
    (gates.CounterGate(), CROWD),
    (gates.CounterGate(lift="none"), WEIGHED),
    (gates.CounterGate(rates=HIGH), LARGE),
    (gates.HierarchicalGate(quantum=5), GROUPED),
    (gates.HierarchicalGate(quantum=3, rates=HIGH), attrs.evolve(GROUPED, block_tokens=1 << 19)),
    (gates.GlobalDeficitGate(quantum=5), CROWD),
    (gates.GlobalDeficitGate(quantum=5, keeps="work"), WEIGHED),
    (Allowance(), CROWD),
    (LeastServed(), CROWD),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("gate", "world"), RIGHT_GATES, ids=lambda each: getattr(each, "name", None))
def test_gates_are_their_kernels(gate: gates.AnyGate, world: GatePlay, full_budget: bool) -> None:
    """Through settlements, cancellations, weights, groups, prefixes that are shared, many clients and large numbers a
    shipped gate and an author's hold the very numbers that their kernels give in exact integers; no admission is past
    the gate, and each choice holds for as long as the gate says."""
    policy = world.policy(gate)
    for seed in range(200 if full_budget else RIGHT):
        rules = gates.interpreter(gate)
        assert rules is not None
        monitor = GateMonitor(rules, gate.charging, skips=True)
        for state, view, happened in world.play(policy, seed):
            assert rules.difference(state.gate) is None
            assert [why for event in happened if (why := monitor.observe(event)) is not None] == []
            check_holds(policy, state, view)


def check_holds(policy: ComposedPolicy, state: LocalState[Any], view: WorkerView) -> None:
    """What a gate says of its choice is so."""
    if view.decoding and state.queue.entries:
        check_choice_holds(policy.gate, state.gate, state.queue.heads, view.decoding_clients, view.decoding_counts)


# --- gates that are wrong -------------------------------------------------------------------------------------------


def only_more(self: Any, own: Any, state: Any, client: int, input_tokens: int, heads: Ints) -> Any:
    """A settlement only charges more, and what is cancelled is not given back."""
    return own(self, state, client, max(input_tokens, 0), heads)


def unweighted(self: Any, own: Any, state: Any, client: int, input_tokens: int, heads: Ints) -> Any:
    """A refund is of tokens, whatever the client's weight."""
    shares = np.where(input_tokens < 0, np.ones_like(state.share), state.share)
    after = own(self, msgspec.structs.replace(state, share=shares), client, input_tokens, heads)
    return msgspec.structs.replace(after, share=state.share)


def as_before(field: str) -> Callable[..., Any]:
    """A change of weights, which makes the unit finer or a quantum smaller, leaves the field as it was."""

    def configured(self: Any, own: Any, state: Any, client: int, weight: int, groups: Any = ()) -> Any:
        after, before = own(self, state, client, weight, groups), getattr(state, field)
        grown = np.concatenate([before, np.zeros(len(getattr(after, field)) - len(before), np.int64)])
        return msgspec.structs.replace(after, **{field: grown})

    return configured


def newcomers_pay_one(self: Any, own: Any, state: Any, client: int, heads: Ints, waited: bool) -> Any:
    """A client of which nothing was said pays one unit a token, whatever the unit is."""
    after = own(self, state, client, heads, waited)
    share = after.share.copy()
    share[len(state.share) :] = 1
    return msgspec.structs.replace(after, share=share)


def of_32_bits(self: Any, own: Any, state: Any, clients: Any, tokens: Any) -> Any:
    """Deficits are of 32 bits."""
    after = own(self, state, clients, tokens)
    return msgspec.structs.replace(after, q=after.q.astype(np.int32).astype(np.int64))


def groups_pay_less(self: Any, own: Any, state: Any, clients: Any, tokens: Any) -> Any:
    """Of what is decoded only clients pay, and not their groups."""
    after = own(self, state, clients, tokens)
    groups = np.array(sorted(state.groups.values()), dtype=np.int64)
    q = after.q.copy()
    q[groups] = state.q[groups]
    return msgspec.structs.replace(after, q=q)


class _Lenient(DeficitAdmissions):
    def choose(self, heads: Ints) -> int:
        self.restore()
        best = int(np.where(self.ready, heads, NO_SCORE).argmax()) if len(heads) else NO_GROUP
        return best if best != NO_GROUP and self.ready[best] and self.q[best] > -2 else super().choose(heads)


class _LastOfEquals(gates.AdmissionTransaction):
    """Of clients with the lowest counter the last is chosen."""

    def __init__(self, inner: gates.AdmissionTransaction) -> None:
        self._inner = inner

    def choose(self, heads: Ints) -> int:
        inner: Any = self._inner
        chosen: int = inner.choose(heads)
        if chosen == NO_GROUP:
            return chosen
        return int(np.flatnonzero(inner.queued & (inner.c == inner.c[chosen]))[-1])

    def skip(self, group: int) -> None:
        self._inner.skip(group)

    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        self._inner.admit(group, input_tokens, kv_tokens, emptied)

    def stays(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        return 1


def unwrapped(self: Any, own: Any, state: Any, admissions: gates.AdmissionTransaction) -> Any:
    """The state after the decision inside."""
    return own(self, state, admissions._inner if isinstance(admissions, _LastOfEquals) else admissions)


WRONG: dict[str, tuple[Any, dict[str, Any], GatePlay]] = {
    "deficits are only charged more": (wrong(gates.DeficitGate, settled=only_more), {"quantum": 5}, FEW),
    "counters are only charged more": (wrong(gates.CounterGate, settled=only_more), {}, FEW),
    "trees are only charged more": (wrong(gates.HierarchicalGate, settled=only_more), {"quantum": 5}, GROUPED),
    "refunds know no weights": (wrong(gates.CounterGate, settled=unweighted), {}, WEIGHED),
    "counters stay in a finer unit": (wrong(gates.CounterGate, configured=as_before("c")), {}, WEIGHED),
    "newcomers pay one": (wrong(gates.CounterGate, joined=newcomers_pay_one), {}, CROWD),
    # It forgets which client left last, unless that was served.
    "the last to leave is forgotten": (
        wrong(gates.CounterGate, left=lambda _self, _own, state, _client: state),
        {},
        FEW,
    ),
    "the first seven pay": (
        wrong(gates.DeficitGate, decoded=lambda self, own, state, who, tokens: own(self, state, who[:7], tokens[:7])),
        {"quantum": 5},
        CROWD,
    ),
    "32 bits": (wrong(gates.DeficitGate, decoded=of_32_bits), {"quantum": 1 << 38, "rates": HIGH}, LARGE),
    "credit stays above the quantum": (wrong(gates.DeficitGate, configured=as_before("q")), {"quantum": 30}, WEIGHED),
    "groups pay less": (wrong(gates.HierarchicalGate, decoded=groups_pay_less), {"quantum": 5}, GROUPED),
    # A client that owes one unit may go, too.
    "a small debt is none": (
        wrong(gates.DeficitGate, begin=lambda self, _own, *given: _Lenient(self, *given)),
        {"quantum": 5},
        FEW,
    ),
    "ties go to the last": (
        wrong(gates.CounterGate, begin=lambda self, own, *given: _LastOfEquals(own(self, *given)), after=unwrapped),
        {},
        FEW,
    ),
}


@pytest.mark.parametrize("error", WRONG)
def test_a_gate_that_is_not_its_kernels_is_found(error: str) -> None:
    """Each of these gates is wrong in one way, and its own run has an admission that its kernels had not let in."""
    kind, params, world = WRONG[error]
    policy = world.policy(kind(**params))
    assert first_seed(lambda seed: past_the_gate(policy, world, watch(policy), seed), SEEDS) is not None


def watch(policy: ComposedPolicy) -> Any:
    """The monitor of what a policy claims its gate to be."""
    return policy.guarantee.gate_monitor()


class Stale(ComposedPolicy):
    """A settlement is forgotten by the next, which counts from what was planned."""

    def observe(self, state: Any, event: events.Event) -> Any:
        after = super().observe(state, event)
        return msgspec.structs.replace(after, flights=state.flights) if isinstance(event, events.Settled) else after


class Displacing(ComposedPolicy):
    """A request displaces others of its client whether the gate lets that client in or not."""

    def decide(self, state: Any, view: WorkerView) -> tuple[StepPlan, Any]:
        anybody = wrong(gates.DeficitGate, begin=lambda gate, _own, *given: _Anybody(gate, *given))
        lenient = ComposedPolicy(self.name, self.order, anybody(quantum=5), self.batching)
        plan, decided = super().decide(state, view)
        if plan.admit or not state.queue.entries:
            return plan, decided
        past, entered = lenient.decide(state, view)
        return (past, entered) if past.preempt and past.admit else (plan, decided)


class _Anybody(DeficitAdmissions):
    def choose(self, heads: Ints) -> int:
        self.restore()
        ready = np.flatnonzero(self.ready)
        return int(ready[heads[ready].argmax()]) if len(ready) else NO_GROUP


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        (Stale, LongestPrefix()),
        (Displacing, ShortestRemaining(60)),
    ],
    ids=["stale", "displacing"],
)
def test_a_policy_around_a_right_gate_is_found(kind: type[ComposedPolicy], order: Order) -> None:
    """A policy that tells its gate something else, or passes it by, is found; the same policy as it ships is not."""

    def past(played: type[ComposedPolicy], seed: int) -> list[str]:
        policy = played("played", order, gates.DeficitGate(quantum=5), Chunked(max_batched_tokens=8, max_running=6))
        try:
            return past_the_gate(policy, FEW, watch(policy), seed)
        except ValueError as error:
            # A gate whose client was passed by may have no number of steps to say.
            return [str(error)]

    assert first_seed(lambda seed: past(kind, seed), SEEDS) is not None
    assert first_seed(lambda seed: past(ComposedPolicy, seed), RIGHT) is None


HEARD = (events.Cancelled, events.ClientConfigured, events.Decoded)
DEAF = [
    *product((gates.DeficitGate(quantum=5), gates.HierarchicalGate(quantum=5)), (events.Settled, *HEARD)),
    *product((gates.CounterGate(),), HEARD),
]


@pytest.mark.parametrize(("gate", "deaf"), DEAF)
def test_a_deaf_monitor_is_found(gate: gates.AnyGate, deaf: type) -> None:
    """The monitor hears each of these: without, it would call a right gate wrong."""
    policy = WEIGHED.policy(gate)

    def misheard(seed: int) -> list[str]:
        monitor = watch(policy)
        heard = [
            event for _, _, happened in WEIGHED.play(policy, seed) for event in happened if type(event) is not deaf
        ]
        return [why for event in heard if (why := monitor.observe(event)) is not None]

    assert first_seed(misheard, SEEDS) is not None


# --- for how long a choice holds ------------------------------------------------------------------------------------

Stays = Callable[[Any, int, Sequence[int], Sequence[int]], int | None]


def _too_long(turn: Any, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
    steps = type(turn).stays(turn, group, clients, counts)
    return None if steps is None else steps + 1


def _blind_to_ties(turn: Any, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
    return _lead(turn, group, clients, counts, turn.state.share, 0)


def _blind_to_weights(turn: Any, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
    return _lead(turn, group, clients, counts, np.ones_like(turn.state.share), 1)


def _lead(turn: Any, group: int, clients: Sequence[int], counts: Sequence[int], share: Ints, ties: int) -> int | None:
    """As the counter gate, with these shares, and ties counted or not."""
    group = int(turn.calls.choose(turn)) if group == NO_GROUP else group
    if group == NO_GROUP or group not in clients:
        return None
    growth = np.zeros(len(turn.c), np.int64)
    growth[list(clients)] = np.array(counts) * turn.gate.rates.output
    growth = growth * share
    faster = turn.queued & (growth < growth[group])
    lead = turn.c - turn.c[group] - ties * (np.arange(len(turn.c)) < group)
    return int((lead[faster] // (growth[group] - growth[faster])).min()) + 1 if faster.any() else None


def _blind_to_none_ready(turn: Any, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
    return None if group == NO_GROUP else type(turn).stays(turn, group, clients, counts)


HOLDS: list[tuple[gates.AnyGate, Stays, GatePlay]] = [
    (gates.DeficitGate(quantum=5), _too_long, FEW),
    (gates.CounterGate(), _too_long, FEW),
    (gates.HierarchicalGate(quantum=5), _too_long, GROUPED),
    (gates.CounterGate(), _blind_to_ties, FEW),
    (gates.CounterGate(), _blind_to_weights, WEIGHED),
    (gates.DeficitGate(quantum=5), _blind_to_none_ready, FEW),
    (gates.CounterGate(), _blind_to_none_ready, FEW),
    (gates.HierarchicalGate(quantum=5), _blind_to_none_ready, GROUPED),
]


class _Saying:
    """A gate whose decisions say something else about how long they hold."""

    def __init__(self, gate: gates.AnyGate, stays: Stays) -> None:
        self._gate = gate
        self._stays = stays

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gate, name)

    def begin(self, state: Any, heads: Ints) -> Any:
        turn: Any = self._gate.begin(state, heads)
        turn.stays = lambda *asked: self._stays(turn, *asked)
        return turn


@pytest.mark.parametrize(("gate", "stays", "world"), HOLDS)
def test_a_choice_that_is_said_to_hold_too_long_is_found(gate: gates.AnyGate, stays: Stays, world: GatePlay) -> None:
    """A step too long, blind to ties, to weights, or to none being ready: asking again after single steps finds it."""
    saying: Any = _Saying(gate, stays)
    policy = world.policy(gate, Arrival())

    def found(seed: int) -> bool:
        for state, view, _ in world.play(policy, seed):
            try:
                check_holds(ComposedPolicy("asked", policy.order, saying, policy.batching), state, view)
            except AssertionError:
                return True
        return False

    assert first_seed(found, SEEDS) is not None


# --- very many requests ---------------------------------------------------------------------------------------------

MANY = 1 << 16
"""So many requests wait at once."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "policy",
    [
        ComposedPolicy("fcfs", Arrival(), gates.OpenGate()),
        ComposedPolicy("lpm", LongestPrefix(), gates.OpenGate()),
        ComposedPolicy("dlpm", LongestPrefix(), gates.DeficitGate(quantum=5)),
        ComposedPolicy("vtc", Arrival(), gates.CounterGate()),
    ],
    ids=lambda policy: policy.name,
)
@pytest.mark.usefixtures("by_night")
def test_a_queue_of_65_536_requests(policy: ComposedPolicy) -> None:
    """Where more requests wait than 16 bits count, the queue's index is whole on both sides of that number, no
    admission is past the gate, and what enters is what a look at every waiting request finds best."""
    play, rng = WorkerPlay(policy, WorkerState(0, 60)), Random(1)
    told: list[events.Event] = []
    for number in range(MANY + 3):
        keys = [rng.randrange(3) for _ in range(rng.randint(1, 4))]
        request = Request(number, rng.randrange(12), number, Prompt.from_keys(keys, block_tokens=1), rng.randint(1, 4))
        told += play.arrive(request, 1, number)
        if number + 1 in (MANY - 1, MANY, MANY + 1):
            policy.check(play.state)
    for now_ns in range(MANY + 3, MANY + 43):
        best = max(play.state.queue.entries.values(), key=partial(_rank, policy.order, play.worker.cache))
        happened = play.step(now_ns)
        entered = [event.request_id for event in happened if isinstance(event, events.Admitted)]
        assert not entered or policy.gate.grouped or entered[0] == best.request.id
        told += happened
    policy.check(play.state)
    assert len(play.state.queue.entries) < MANY
    if policy.gate.grouped:
        monitor = watch(policy)
        assert [why for event in told if (why := monitor.observe(event)) is not None] == []


def _rank(order: Order, cache: PrefixCache, queued: QueuedRequest) -> tuple[int, int]:
    return order.rank_queued(queued, cache.cached_tokens(queued.request.prompt)), -queued.age
