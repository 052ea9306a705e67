"""Bounds as numbers: each is the largest of its theorem's formula over all pairs, computed here from the formula."""

from itertools import permutations, product
from math import lcm
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.model.pricing import Rates
from fairsched.model.request import Client
from fairsched.model.theorem import (
    CAPPED,
    CAPPED_TOGETHER,
    GLOBAL_REFILL,
    LIFT_ON_JOIN,
    MEM_RESERVE,
    OUTPUTS_BOUNDED,
    REJOIN_KEEPS_DEBT,
    Assumption,
)
from fairsched.policies.base import Limits
from fairsched.policies.batching import Chunked
from fairsched.policies.gates import (
    AnyGate,
    BandGate,
    BoundedGate,
    CounterGate,
    DeficitGate,
    GlobalDeficitGate,
    HierarchicalGate,
    InBatchGate,
    OpenGate,
)
from fairsched.policies.gates.counter import V_44, V_49, V_49_WORKER, V_CHANGE
from fairsched.policies.gates.deficit import D_41, D_LATE, D_WEIGHTED
from fairsched.policies.guarantees import GateGuarantee, wait_bound_cost
from fairsched.policies.guarantees.seconds import T_WAIT
from fairsched.policies.registry import local_policy, with_parameters
from tests.support.authors.allowance import Allowance

WEIGHTS = st.lists(st.integers(1, 6), min_size=2, max_size=5)
LIMITS = Limits(100, 40, 30, 8, True)
LIMITS_OF_GROWTH = attrs.evolve(LIMITS, outputs_reserved=False)
U = 2 * 100 - 1
"""What the default rates make of 100 tokens: one of them is a prompt's."""


def clients(weights: list[int]) -> tuple[Client, ...]:
    """Clients of these weights."""
    return tuple(Client(i, str(i), weight) for i, weight in enumerate(weights))


def promise_of(gate: AnyGate, weights: list[int], limits: Limits = LIMITS) -> Any:
    """What the gate promises to clients of these weights."""
    return GateGuarantee(gate, Chunked(), False).promise(clients(weights), limits)


@pytest.mark.parametrize("gate", [DeficitGate(quantum=7), HierarchicalGate(quantum=7)], ids=lambda gate: gate.name)
@given(weights=WEIGHTS)
def test_the_gap_of_a_deficit_gate_is_the_widest_of_any_pair(gate: BoundedGate[Any], weights: list[int]) -> None:
    """D-weighted for each two clients, in service times lcm / weight; so no pair has a bound that is too small."""
    common = lcm(*weights)
    widest = max(common * (g * (7 * f + U - 1) + f * (7 * g + U - 1)) // (f * g) for f, g in permutations(weights, 2))
    assert gate.service_gap_bound(clients(weights), LIMITS) == widest
    assert promise_of(gate, weights).gap_bound == widest


@given(weights=WEIGHTS)
def test_the_gap_of_a_counter_gate_is_the_widest_of_any_pair(weights: list[int]) -> None:
    """V-4.4 for each two clients: U times the multiplier of each, or all prompts of memory, which may be given back to
    another, at the dearest."""
    common, dearest = lcm(*weights), lcm(*weights) // min(weights)
    maxima = [max(U * common // weight, 100 * dearest) for weight in weights]
    widest = max(f + g for f, g in permutations(maxima, 2))
    assert promise_of(CounterGate(), weights).gap_bound == widest


@given(weights=WEIGHTS)
def test_a_lag_is_the_widest_of_any_pair(weights: list[int]) -> None:
    """V-4.9 for clients of each two weights, which may be the same; D-4.2 is about clients of one weight, and nothing
    is promised of others."""
    common = lcm(*weights)
    charges = [max(U * common // weight, 100 * common // min(weights)) for weight in weights]
    assert promise_of(CounterGate(), weights).lag_bound == max(f + 2 * g - 1 for f, g in product(charges, repeat=2))
    lag = promise_of(DeficitGate(quantum=7), weights).lag_bound
    quantum = 7 * weights[0]
    assert lag == (2 * (quantum + U - 1) if len(set(weights)) == 1 else None)


@given(weights=WEIGHTS)
def test_a_wait_is_the_longest_of_any_client(weights: list[int]) -> None:
    """D-A.2-weighted summed over all others, each from the deepest debt of the one that waits."""

    def waits(f: int) -> int:
        others = [weight for i, weight in enumerate(weights) if i != f]
        own = 7 * weights[f]
        return U - 1 + sum((7 * g * (own + U - 1) + own * (7 * g + U - 1)) // own for g in others)

    longest = max(waits(f) for f in range(len(weights)))
    assert wait_bound_cost(DeficitGate(quantum=7), clients(weights), LIMITS) == longest


def late_costs(gate: AnyGate, of: tuple[Client, ...], limits: Limits = LIMITS, skips: bool = False) -> dict[str, int]:
    """What others are charged while a request waits that is first in order, by band."""
    return GateGuarantee(gate, Chunked(), skips).late_costs(of, limits)


@given(weights=WEIGHTS)
def test_the_first_in_order_waits_for_the_debt_of_its_client(weights: list[int]) -> None:
    """D-late summed over all others, for the client that fares worst; nothing where there is no other."""

    def waits(f: int) -> int:
        own, others = 7 * weights[f], [7 * weight for i, weight in enumerate(weights) if i != f]
        return sum(D_LATE.bound_cost(own, U, g, U) // own for g in others)  # type: ignore[misc]

    assert late_costs(DeficitGate(quantum=7), clients(weights)) == {"": max(map(waits, range(len(weights))))}
    assert late_costs(DeficitGate(quantum=7), clients(weights[:1])) == {"": 0}


def test_the_first_in_order_waits_under_bands_for_shares() -> None:
    """BAND-late, by hand, for two clients in the middle band; nothing above the lowest where less is kept than U."""
    gate = BandGate(quantum=7, bands="high:20,middle:40,low:40", kept=300)
    own = 7 + 2 * (U - 1)
    whole = own + U - 1
    below = (40 * whole + 140 * U - 1) // 40
    above = (60 * (whole + below) + 80 * U + 100 * 300) // 40
    costs = late_costs(gate, clients([1, 1]))
    assert costs["middle"] == own + below + above
    assert set(costs) == {"high", "middle", "low"}
    assert set(late_costs(attrs.evolve(gate, kept=U - 1), clients([1, 1]))) == {"low"}


def test_nothing_is_said_of_the_first_in_order_where_it_may_be_passed_over() -> None:
    """Under a cap, where a prefix is waited for, before several workers, and of gates that have no such theorem."""
    two = clients([1, 1])
    others = (OpenGate(), CounterGate(), HierarchicalGate(), InBatchGate(), GlobalDeficitGate())
    variants = (DeficitGate(in_flight_cap_tokens=30), DeficitGate(rejoin="reset"))
    assert not any(late_costs(gate, two) for gate in (*others, *variants))
    assert not late_costs(DeficitGate(), two, skips=True)
    assert not late_costs(DeficitGate(), two, attrs.evolve(LIMITS, workers=2))
    small = attrs.evolve(LIMITS, prompt_tokens_max=4, output_tokens_max=6)
    guarantee = GateGuarantee(DeficitGate(), Chunked(max_batched_tokens=20), False)
    late, longest = guarantee.worst_late(two, small, LATENCY), guarantee.worst_wait(two, small, LATENCY)
    assert late is not None
    assert longest is not None
    assert (late.theorem.id, longest.cost - late.cost) == ("T-late", 4096)
    assert attrs.evolve(guarantee, skips=True).worst_late(two, small, LATENCY) is None


def test_u_of_a_cluster_is_of_all_its_workers() -> None:
    """Each worker that let a client in before may still charge it U - 1.  A cap is over all workers, as far as there is
    memory, of all of them; a copy that is late adds what the others may not have told."""
    for workers in (1, 2, 3):
        limits = attrs.evolve(LIMITS, workers=workers)
        assert GlobalDeficitGate().charge_max(limits) == workers * (U - 1) + 1
        assert GlobalDeficitGate(unsent_max=9).charge_max(limits) == workers * (U - 1) + 1 + 9 * (workers - 1)
        for cap in (50, 150, 1000):
            memory = min(cap, 100 * workers)
            capped = GlobalDeficitGate(in_flight_cap_tokens=cap).charge_max(limits)
            assert capped == min(2 * memory - 1, workers * (2 * min(cap, 100) - 2) + 1)
        # Where outputs grow, neither a cap nor the split of phases bounds what may be charged.
        grown = attrs.evolve(limits, outputs_reserved=False)
        each = DeficitGate().charge_max(LIMITS_OF_GROWTH) - 1
        for gate, some in ((GlobalDeficitGate(in_flight_cap_tokens=50), 0), (GlobalDeficitGate(), 1)):
            assert gate.charge_max(attrs.evolve(grown, prefill_workers=some)) == workers * each + 1


def test_a_cap_and_the_rates_make_u() -> None:
    """U is that of the smaller of cap and memory; where input is dearer the longest prompt counts, and the longest is
    what fits; without reserved outputs it is what may run at once."""
    assert DeficitGate(in_flight_cap_tokens=30).charge_max(LIMITS) == 2 * 30 - 1
    assert DeficitGate(in_flight_cap_tokens=300).charge_max(LIMITS) == U
    dear = Rates(3, 1)
    assert DeficitGate(dear).charge_max(LIMITS) == 100 + 2 * 40
    assert DeficitGate(dear, in_flight_cap_tokens=30).charge_max(LIMITS) == 30 + 2 * 29
    # A counter's refunds are of prompts that lie in memory, of which there may be many.
    assert CounterGate(dear).charge_max(LIMITS) == 3 * 100
    grown = attrs.evolve(LIMITS, outputs_reserved=False)
    assert DeficitGate().charge_max(grown) == (40 + 30) + 2 * 8 * 30
    assert DeficitGate(in_flight_cap_tokens=30).charge_max(grown) == (40 + 30) + 2 * 8 * 30
    # What is charged for cached tokens no cap counts.
    assert DeficitGate(in_flight_cap_tokens=30, cached_percent=10).charge_max(LIMITS) == U
    held = attrs.evolve(LIMITS, unreserved_tokens=20, hold_tokens=5)
    assert DeficitGate().charge_max(held) == 2 * 120 - 1 + 2 * 5
    assert CounterGate().charge_max(held) == 2 * 120 - 1 + 2 * 5


@given(st.integers(40, 4_000), st.integers(1, 30), st.integers(1, 20), st.integers(2, 4_000))
def test_u_is_of_memory_or_of_places_in_the_batch(memory: int, outputs: int, running: int, longest: int) -> None:
    """Whichever is less, and the theorems assume what it rests on; a cap and a window have that of memory."""
    promised = GateGuarantee(DeficitGate(), Chunked(max_running=running), False)
    limits = attrs.evolve(promised.limits(memory, outputs), request_tokens_max=longest)
    of_places = min(memory - 1 + outputs, longest) + 2 * running * outputs
    promise = promised.promise(clients([1, 1]), limits)
    assert promise.charge_max == min(2 * memory - 1, of_places)
    assert promise.gap_bound == 2 * (4_096 + promise.charge_max - 1)
    assumed = {each for theorem in promise.theorems for each in theorem.assumptions}
    assert (MEM_RESERVE in assumed) != (OUTPUTS_BOUNDED in assumed) == (of_places < 2 * memory - 1)
    capped = attrs.evolve(promised, gate=DeficitGate(in_flight_cap_tokens=memory))
    assert capped.promise(clients([1, 1]), limits).charge_max == 2 * memory - 1
    window = attrs.evolve(limits, outputs_predicted=True)
    assert promised.promise(clients([1, 1]), window).charge_max == 2 * memory - 1


def test_what_a_client_may_owe_inside_the_batch() -> None:
    """The price of the longest context, and a token of each that runs; and what is held."""
    for declared, longest in ((None, 40 + 30), (50, 50), (500, 40 + 30), (1, 1)):
        gate = InBatchGate(context_tokens=declared)
        assert gate.charge_max(LIMITS) == 2 * 8 + longest
        assert gate.charge_max(attrs.evolve(LIMITS, hold_tokens=5)) == 2 * 8 + longest + 2 * 5
        assert gate.charge_max(attrs.evolve(LIMITS, running_max=500)) == 2 * 100 + longest
    assert InBatchGate().charge_max(attrs.evolve(LIMITS, kv_capacity_tokens=60)) == 2 * 8 + 60
    assert InBatchGate().charge_max(attrs.evolve(LIMITS, request_tokens_max=20)) == 2 * 8 + 20


def test_no_bound_is_promised_where_its_rule_is_another() -> None:
    """A forgiven debt, a missing lift, one client alone, clients of different families, or work before fairness."""
    two = clients([1, 1])
    family = (Client(0, "a", 1, (("acme", 1),)), Client(1, "b"))
    nothing: list[tuple[BoundedGate[Any], tuple[Client, ...], Limits]] = [
        (DeficitGate(rejoin="reset"), two, LIMITS),
        (CounterGate(lift="none"), two, LIMITS),
        (DeficitGate(), two[:1], LIMITS),
        (CounterGate(), two[:1], LIMITS),
        (HierarchicalGate(), family, LIMITS),
        (GlobalDeficitGate(keeps="work"), two, attrs.evolve(LIMITS, workers=2)),
    ]
    for gate, some, limits in nothing:
        assert gate.service_gap_bound(some, limits) is None
        assert gate.bound_terms((), limits) == ()
    assert GlobalDeficitGate(keeps="work").service_gap_bound(two, LIMITS) is not None


@given(before=WEIGHTS, after=st.integers(1, 6))
def test_a_bound_after_a_change_of_weights(before: list[int], after: int) -> None:
    """A deficit's bounds are those of the weights now; a counter remembers the dearest price that a client ever paid:
    its gap is that of the lowest weights, in the unit of now, and nothing is said of lags."""
    now = [after, *before[1:]]
    lowest = [min(pair) for pair in zip(before, now, strict=True)]
    none = ((),) * len(now)
    deficit, counter = DeficitGate(quantum=7), CounterGate()
    changed = promise_of(deficit, before).reweighted(tuple(now), tuple(lowest), none)
    assert (changed.gap_bound, changed.lag_bound) == (
        promise_of(deficit, now).gap_bound,
        promise_of(deficit, now).lag_bound,
    )
    changed = promise_of(counter, before).reweighted(tuple(now), tuple(lowest), none)
    assert changed.gap_bound == promise_of(counter, lowest).gap_bound * lcm(*now) // lcm(*lowest)
    assert changed.gap_theorems == (V_CHANGE.id,)
    assert promise_of(CounterGate(lift="none"), before).reweighted(tuple(now), tuple(lowest), none).gap_bound is None
    assert changed.lag_bound is None
    assert changed.weights == tuple(now)


def test_what_a_configuration_breaks_is_said() -> None:
    """Its own variants of the rules, and a cap that is not there."""
    broken: dict[AnyGate, set[Assumption]] = {
        CounterGate(): set(),
        CounterGate(lift="none"): {LIFT_ON_JOIN},
        DeficitGate(): {CAPPED, CAPPED_TOGETHER},
        DeficitGate(in_flight_cap_tokens=9): set(),
        DeficitGate(in_flight_cap_tokens=9, cached_percent=10): {CAPPED, CAPPED_TOGETHER},
        DeficitGate(in_flight_cap_tokens=9, cap_holds="contended"): {CAPPED},
        DeficitGate(in_flight_cap_tokens=9, rejoin="reset"): {REJOIN_KEEPS_DEBT},
        HierarchicalGate(): {CAPPED},
        HierarchicalGate(in_flight_cap_tokens=9): set(),
        GlobalDeficitGate(in_flight_cap_tokens=9, keeps="work"): {GLOBAL_REFILL},
    }
    assert {gate: set(gate.broken_assumptions) for gate in broken} == broken


def test_constants_of_theorems() -> None:
    """Each as its statement has it, for two clients of different quanta and U."""
    f, g = (7, 30), (11, 50)
    constants = {
        V_44: 30 + 50,
        V_49: 30 + 2 * 50 - 1,
        V_49_WORKER: 50 + 50,
        D_41: (7 + 30 - 1) + (11 + 50 - 1),
        D_WEIGHTED: 11 * (7 + 30 - 1) + 7 * (11 + 50 - 1),
    }
    for theorem, constant in constants.items():
        assert theorem.bound_cost is not None
        assert theorem.bound_cost(*f, *g) == constant, theorem.id
    assert V_49_WORKER.bound_cost is not None
    assert V_49_WORKER.bound_cost(*g, *f) == 30 + 50


@given(st.integers(2, 60), st.integers(1, 4), st.integers(1, 9))
def test_u_of_workers_that_do_one_phase(memory: int, prefill: int, output: int) -> None:
    """A prefill worker charges a prompt and its first token, a decode worker one token and the outputs of all the rest
    but that; where outputs are dear a prefill worker may as well have many short requests."""
    rates = Rates(1, output)
    limits = Limits(memory, memory - 1, memory - 1, 8, True, workers=prefill + 2, prefill_workers=prefill)
    both = (memory - 1) + output if output <= 2 else output * memory + (1 - output)
    alone = 1 + output * (memory - 2)
    assert GlobalDeficitGate(rates).charge_max(limits) == prefill * (both - 1) + 2 * (alone - 1) + 1


def test_what_a_promise_says_beside_its_bounds() -> None:
    """A cap that always holds and what is proved under it, whether refunds widen the gap, groups, and which assumption
    stands for memory where outputs grow."""
    two, family = clients([1, 2]), (Client(0, "a", 1, (("acme", 1),)), Client(1, "b"))

    def promise(gate: AnyGate, some: tuple[Client, ...] = two, limits: Limits = LIMITS) -> Any:
        return GateGuarantee(gate, Chunked(), False).promise(some, limits)

    capped = DeficitGate(in_flight_cap_tokens=30)
    elastic = attrs.evolve(capped, cap_holds="contended")
    assert [promise(gate).in_flight_cap_tokens for gate in (DeficitGate(), capped, elastic)] == [None, 30, None]
    for gate, missing in ((DeficitGate(), {CAPPED, CAPPED_TOGETHER}), (capped, set()), (elastic, {CAPPED})):
        said = {assumption for theorem in promise(gate).theorems for assumption in theorem.assumptions}
        assert {CAPPED, CAPPED_TOGETHER} - said == missing
        assert MEM_RESERVE in said
    assert (promise(DeficitGate()).refunds_widen, promise(CounterGate()).refunds_widen) == (True, False)
    assert promise(HierarchicalGate(), family).groups == ((("acme", 1),), ())
    assert promise(HierarchicalGate()).groups == ()
    counter, alone = promise(CounterGate()), promise(CounterGate(), two[:1])
    assert (counter.charge_max, alone.lag_bound, V_49.id in counter.lag_theorems) == (U, None, True)
    assert V_44.id not in counter.lag_theorems
    assert promise(OpenGate()).gap_theorems == ()
    assert promise(DeficitGate()).gap_theorems == DeficitGate.gap_theorems
    assert promise(InBatchGate(), clients([1, 1])).lag_bound is not None
    assert promise(InBatchGate()).lag_bound is None
    grown = promise(DeficitGate(), limits=LIMITS_OF_GROWTH).theorems
    for before, after in zip(promise(DeficitGate()).theorems, grown, strict=True):
        expected = tuple(OUTPUTS_BOUNDED if each == MEM_RESERVE else each for each in before.assumptions)
        assert (after.id, after.assumptions) == (before.id, expected)
    printed = DeficitGate(in_flight_cap_tokens=30, rejoin="reset")
    assert len(promise(printed).theorems) == len(printed.theorems)
    assert GateGuarantee(CounterGate(), Chunked(), False).cautions(100) == ()
    groups = clients([2, 3])
    promised = GateGuarantee(HierarchicalGate(), Chunked(), False).group_gap_bound(groups, LIMITS)
    assert promised == DeficitGate().service_gap_bound(groups, LIMITS)


def test_nothing_is_promised_of_an_authors_gate_once_weights_change() -> None:
    """While clients that were known keep theirs, and new ones have weight 1, its promise stays."""
    promise = GateGuarantee(Allowance(), Chunked(), False).promise(clients([1, 1]), LIMITS)
    assert promise.gap_bound is not None
    assert promise.reweighted is not None
    changed = {
        now: promise.reweighted(now, now, ((),) * len(now))
        for now in ((1, 1), (1, 1, 1), (2, 1), (2, 2), (1, 1, 2), (1, 2, 1))
    }
    assert changed[1, 1].gap_bound == changed[1, 1, 1].gap_bound == promise.gap_bound
    assert changed[1, 1, 1].reweighted is not None
    for now in ((2, 1), (2, 2), (1, 1, 2), (1, 2, 1)):
        assert (changed[now].gap_bound, changed[now].lag_bound, changed[now].reweighted) == (None, None, None)


def test_no_wait_is_promised_where_debts_move_or_are_forgiven() -> None:
    """Under the printed rules, shared credit, and a counter with weights that differ."""
    two = clients([1, 1])
    for gate in (DeficitGate(), CounterGate()):
        assert wait_bound_cost(gate, two, LIMITS) is not None
    assert wait_bound_cost(CounterGate(), clients([1, 2]), LIMITS) is None
    for gate in (CounterGate(lift="none"), DeficitGate(rejoin="reset")):
        assert wait_bound_cost(gate, two, LIMITS) is None
    assert wait_bound_cost(DeficitGate(), two, attrs.evolve(LIMITS, workers=2)) is None


@given(WEIGHTS, st.sampled_from(["dlpm", "vtc", "fcfs+in-batch", "dlpm-hierarchical"]), st.integers(1, 2_000))
def test_what_would_bind_is_said_or_why_nothing_does(weights: list[int], name: str, most: int) -> None:
    """The gate that is named has the bound that is said, below what a client was charged; where a step's batch and the
    longest request cost more, the gate inside the batch has no smaller one with any quantum; of trees nothing is
    said."""
    policy, clients_ = local_policy(name), clients(weights)
    said = policy.guarantee.loose(clients_, LIMITS, most)
    inside = [
        with_parameters(local_policy("fcfs+in-batch"), {"quantum": quantum}).guarantee.service_gap_bound(
            clients_, LIMITS
        )
        for quantum in ("4096", "1")
    ]
    bound = next((each for each in inside if each is not None and each < most), None)
    if name == "dlpm-hierarchical":
        assert said == ""
    elif bound is None:
        assert said == "a step's batch and the longest request alone cost more"
    else:
        assert said.endswith(f"it would be {bound:,}")


LATENCY = LatencyModel("small", "made up", 900, 13, 700, (DecodePiece(1, 1_000, 3, 11),), 40)


def test_waits_in_time_rest_on_what_is_there() -> None:
    """How many requests run at least follows from the cap or the memory, where no request is passed over; nothing is
    promised of other gates, where requests are taken out, or outputs grow; and the promise names T-wait."""
    two = clients([1, 1])
    small = attrs.evolve(LIMITS, prompt_tokens_max=4, output_tokens_max=6)

    def worst(gate: AnyGate, skips: bool = False, displaces: bool = False, limits: Limits = small) -> Any:
        return GateGuarantee(gate, Chunked(max_batched_tokens=20), skips, displaces).worst_wait(two, limits, LATENCY)

    capped = DeficitGate(in_flight_cap_tokens=30)
    least = {
        DeficitGate(): 8,
        capped: 3,
        DeficitGate(in_flight_cap_tokens=300): 8,
        attrs.evolve(capped, cap_holds="contended"): 1,
    }
    for gate, expected in least.items():
        assert worst(gate).pace.least == expected
        assert worst(gate, skips=True).pace.least == 1
        assert worst(gate, displaces=True) is None
        assert worst(gate, limits=attrs.evolve(small, outputs_reserved=False)) is None
    others: tuple[AnyGate, ...] = (CounterGate(lift="none"), OpenGate(), HierarchicalGate(), BandGate())
    assert [worst(other) for other in (*others, DeficitGate(rejoin="reset"))] == [None] * 5
    shared = (*others, GlobalDeficitGate())
    whys = {GateGuarantee(other, Chunked(max_batched_tokens=20), False).no_wait(small, LATENCY) for other in shared}
    assert len(whys - {""}) == 5
    assert worst(CounterGate()).theorem.id == "T-wait-counted"
    guarantee = GateGuarantee(capped, Chunked(max_batched_tokens=20), False)
    assert guarantee.promise(two, small).wait_theorems == ()
    assert guarantee.promise(two, small, LATENCY).wait_theorems == (T_WAIT.id,)
    assert guarantee.promise(two, small, LATENCY).worst_wait == worst(capped)


def test_inside_the_batch_a_wait_rests_on_what_is_there() -> None:
    """D-pause-lag, equal quanta and no cap; the promise names T-wait-paused, and no end of a request."""
    two, small = clients([1, 1]), attrs.evolve(LIMITS, prompt_tokens_max=4, output_tokens_max=6)

    class Another(InBatchGate):
        theorems = ()

    def of(gate: AnyGate, skips: bool = False) -> GateGuarantee:
        return GateGuarantee(gate, Chunked(max_batched_tokens=20), skips)

    promise = of(InBatchGate()).promise(two, small, LATENCY)
    assert promise.wait_theorems == ("T-wait-paused",)
    assert {theorem.id for theorem in promise.theorems} >= {"T-refills", "T-paused-cost", "D-pause-lag"}
    worst = of(InBatchGate()).worst_wait(two, small, LATENCY)
    assert worst == promise.worst_wait
    assert worst is not None
    assert worst.completion_ns() is None
    assert of(InBatchGate()).worst_wait(clients([1, 2]), small, LATENCY) is None
    for gate in (InBatchGate(in_flight_cap_tokens=30), Another()):
        assert of(gate).worst_wait(two, small, LATENCY) is None
        assert of(gate).no_wait(small, LATENCY)


def test_limits_of_arrivals_need_a_request_let_in_whenever_one_has_room() -> None:
    """Not where requests are passed over, capped, or wait for other workers."""
    small = attrs.evolve(LIMITS, prompt_tokens_max=4, output_tokens_max=6)

    def limited(gate: AnyGate, skips: bool = False) -> Any:
        return GateGuarantee(gate, Chunked(max_batched_tokens=20), skips).limited_wait(2, small, LATENCY)

    for gate in (DeficitGate(), CounterGate(), InBatchGate(), HierarchicalGate()):
        assert limited(gate) is not None
        assert limited(gate, skips=True) is None
    assert [limited(gate) for gate in (DeficitGate(in_flight_cap_tokens=30), GlobalDeficitGate(), OpenGate())] == [
        None
    ] * 3


class UnknownSharing(OpenGate):
    """A gate of somebody else that shares credit."""

    exact = True

    def nothing(self, *told: Any) -> None:
        """Keep nothing."""

    credit = checkout = commit = idle = snapshot = seen_to_json = seen_from_json = nothing


def test_a_gate_whose_kernels_are_not_known_has_no_monitor() -> None:
    """Nor a bound; and of one of which workers keep copies events tell no order."""

    def of(gate: AnyGate) -> GateGuarantee:
        return GateGuarantee(gate, Chunked(), False)

    two = clients([1, 1])
    assert of(CounterGate()).service_gap_bound(two, LIMITS) == CounterGate().service_gap_bound(two, LIMITS)
    assert of(OpenGate()).group_gap_bound(two, LIMITS) is None
    assert of(OpenGate()).relation() is None
    assert of(DeficitGate()).relation() is not None
    assert of(OpenGate()).gate_monitor() is None
    assert of(OpenGate()).gate_monitors()() is None
    assert of(DeficitGate()).gate_monitor() is not None
    assert of(DeficitGate()).gate_monitors()() is not None
    assert of(UnknownSharing()).gate_monitors()() is None
    assert of(GlobalDeficitGate()).gate_monitors()() is not None
    assert of(GlobalDeficitGate(unsent_max=9)).gate_monitors()() is None
