"""The hierarchical gate: without groups the deficit gate, with groups it at every node of the tree."""

from itertools import pairwise
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from fairsched.model.algebra import NO_GROUP, NO_SCORE, NUMPY, Ints, SiblingAlgebra
from fairsched.model.events import ClientConfigured
from fairsched.model.pricing import Rates
from fairsched.model.request import Client, Groups
from fairsched.policies.base import Limits
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.gates import AnyGate, DeficitGate, HierarchicalGate, HierarchicalState
from fairsched.policies.gates.hierarchical import ROOT
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local.state_transfer import MigrationError, migrate
from fairsched.policies.registry import LOCAL_POLICIES, local_policy
from fairsched.verify.conformance.local import PolicyMachine, World, check_local_policy
from fairsched.verify.proofs.gates.hierarchical import split_up
from tests.support.policy_play import Play

ACME, ANN, BOB = ("acme", 2), ("ann", 1), ("bob", 3)
PLACES: tuple[Groups, ...] = ((ACME, ANN), (ACME, ANN), (ACME, BOB), (ACME,), (("solo", 1),), ())
"""Where six clients are: two keys of a user, one of another, a key of the organisation, one alone, one in none."""


def small(name: str = "dlpm", quantum: int = 5, cap: int | None = None, reserve: Any = "static") -> ComposedPolicy:
    """A policy under the gate, with budgets of the size of a tiny world."""
    gate = HierarchicalGate(quantum=quantum, in_flight_cap_tokens=cap)
    return attrs.evolve(local_policy(name), gate=gate, batching=BATCHINGS["chunked"](8, 4, reserve))


def played(policy: ComposedPolicy) -> Play:
    """Four steps of a request of every client, which are where `PLACES` says."""
    play = Play(policy, 60)
    for client, groups in enumerate(PLACES):
        play.tell([ClientConfigured(0, 0, client, 1, groups)])
        play.arrive(client, 4, 3)
    play.step(4)
    return play


class Placed(PolicyMachine):
    """The battery of every policy, with clients in groups whose weights change."""

    policy = small()
    world = World(clients=len(PLACES))

    @initialize(share=st.integers(0, 1_000), tail=st.integers(0, 2), host=st.sampled_from([0, 1, 3]), slots=st.just(0))
    def _open(self, share: int, tail: int, host: int, slots: int) -> None:
        super()._open(share, tail, host, slots)
        for client, groups in enumerate(PLACES):
            self.tell(ClientConfigured(0, 0, client, 1, groups))

    @rule(client=st.integers(0, len(PLACES) - 1), weight=st.integers(1, 4), own=st.integers(1, 4))
    def reweigh(self, client: int, weight: int, own: int) -> None:
        """The weights of a client and of its outermost group change."""
        groups = ((PLACES[client][0][0], weight), *PLACES[client][1:]) if PLACES[client] else ()
        self.tell(ClientConfigured(self.now_ns, 0, client, own, groups))


@pytest.mark.nightly
@pytest.mark.parametrize("reserve", ["static", "optimistic"])
@pytest.mark.parametrize(("name", "cap"), [("dlpm", None), ("fcfs", None), ("larry", 12), ("trail", None)])
def test_it_conforms_with_groups(name: str, cap: int | None, reserve: Any, full_budget: bool) -> None:
    """Under every order: pure, folded, feasible, kept, served, and leaps are steps."""
    made = type("Tree", (Placed,), {"policy": small(name, cap=cap, reserve=reserve)})
    examples = 200 if full_budget else 10
    run_state_machine_as_test(made, settings=settings(max_examples=examples, stateful_step_count=30))


@pytest.mark.nightly
def test_it_conforms_without_groups_and_keeps_the_flat_promise(full_budget: bool) -> None:
    """As the deficit gate does, bound and all."""
    check_local_policy(small(), settings=settings(max_examples=200 if full_budget else 10, stateful_step_count=30))


# --- one decision ---------------------------------------------------------------------------------------------------

Served = tuple[int, int, int]
"""Which of those who wait is preferred, its input tokens and its output tokens."""
STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=40)


def opened(gate: AnyGate, places: tuple[Groups, ...]) -> Any:
    """The gate's state when one request after the other of every client came."""
    state = gate.init()
    for client, groups in enumerate(places):
        state = gate.configured(state, client, 1, groups) if groups else state
    for client in range(len(places)):
        state = gate.joined(state, client, np.zeros(client + 1, np.int64), False)
    return state


def served(gate: AnyGate, state: Any, preferred: int, inputs: int, outputs: int, clients: int) -> tuple[Any, int]:
    """The state after the gate let somebody in, whom the order prefers as far as the gate lets it, and who that was."""
    heads = np.zeros(clients, np.int64)
    heads[preferred] = 1
    turn = gate.begin(state, heads)
    chosen = turn.choose(heads)
    turn.admit(chosen, inputs, inputs + outputs, False)
    state = gate.after(state, turn)
    return (gate.decoded(state, (chosen,), (outputs,)) if outputs else state), chosen


@given(steps=STEPS, quantum=st.integers(1, 9))
def test_without_groups_it_is_the_deficit_gate(steps: list[Served], quantum: int) -> None:
    """The same choices and the same deficits, whatever comes."""
    flat, tree = DeficitGate(quantum=quantum), HierarchicalGate(quantum=quantum)
    one, other = opened(flat, ((),) * 6), opened(tree, ((),) * 6)
    for preferred, inputs, outputs in steps:
        one, chosen = served(flat, one, preferred, inputs, outputs, 6)
        other, also = served(tree, other, preferred, inputs, outputs, 6)
        assert chosen == also
        assert one.q.tolist() == other.q[other.node].tolist()
        tree.check(other)


@given(steps=STEPS, quantum=st.integers(1, 9))
def test_siblings_of_every_level_stay_within_the_bound(steps: list[Served], quantum: int) -> None:
    """H-weighted, at any two moments, with U = 6 + 2 * 4 for one request at a time; somebody is always let in."""
    gate, rates = HierarchicalGate(quantum=quantum), Rates()
    state = opened(gate, PLACES)
    charge_max, seen = 6 * rates.input + 4 * rates.output, [np.zeros(len(state.q), np.int64)]
    for preferred, inputs, outputs in steps:
        state, chosen = served(gate, state, preferred, inputs, outputs, 6)
        assert chosen != NO_GROUP
        service = seen[-1].copy()
        service[[node for node in state.path(chosen) if node != NO_GROUP]] += (
            inputs * rates.input + outputs * rates.output
        )
        seen.append(service)
    quanta = state.quantum
    history = np.array(seen)
    for f in range(1, len(state.up)):
        for g in range(1, f):
            if state.up[f] == state.up[g]:
                lead = quanta[g] * history[:, f] - quanta[f] * history[:, g]
                bound = quanta[g] * (quanta[f] + charge_max - 1) + quanta[f] * (quanta[g] + charge_max - 1)
                assert lead.max() - lead.min() <= bound


@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans()), max_size=30),
    quantum=st.integers(1, 9),
)
def test_one_decision_is_decisions_one_after_the_other(steps: list[tuple[int, int, bool]], quantum: int) -> None:
    """Who is let in within a decision, and the deficits after it, are as if each had been let in by its own: families
    whose refill an admission makes due are refilled before the next."""
    gate, heads = HierarchicalGate(quantum=quantum), np.zeros(6, np.int64)
    alone = start = opened(gate, PLACES)
    turn = gate.begin(start, heads)
    for preferred, inputs, last in steps:
        scores = np.where((heads != NO_SCORE) & (np.arange(6) == preferred), 1, heads)
        own = gate.begin(alone, scores)
        chosen = turn.choose(scores)
        assert own.choose(scores) == chosen
        if chosen == NO_GROUP:
            break
        for each in (turn, own):
            each.admit(chosen, inputs, inputs, last)
        alone = gate.after(alone, own)
        heads[chosen] = NO_SCORE if last else 0
    after = gate.after(start, turn)
    assert (after.q.tolist(), after.below.tolist()) == (alone.q.tolist(), alone.below.tolist())
    gate.check(after)


@pytest.mark.parametrize("keys", [1, 3, 9])
def test_splitting_up_gains_nothing(keys: int) -> None:
    """However many clients an organisation is, it gets half of what it shares with one; else a part for each client."""
    rates = Rates(1, 2)
    assert split_up(HierarchicalGate(rates, 4), keys, 120) == (180, 180)
    together, other = split_up(DeficitGate(rates, 4), keys, 120)
    assert together == other * keys


# --- cancelled, capped, configured ----------------------------------------------------------------------------------


def test_a_client_that_was_served_stays_where_it_is() -> None:
    """Its charges are its groups'; before its first request it may still be placed, with a weight or without."""
    gate = HierarchicalGate()
    state = gate.configured(gate.init(), 1, 3)
    state = gate.configured(state, 1, 3, (ACME,))
    assert state.quantum[state.node[1]] == 3 * gate.quantum
    state = gate.joined(state, 0, np.zeros(0, np.int64), False)
    with pytest.raises(ValueError, match="client 0 was served before it was said to be in acme/ann"):
        gate.configured(state, 0, 1, (ACME, ANN))
    gate.check(state)


def test_a_group_that_weighs_less_keeps_its_debt_and_loses_credit() -> None:
    """As a client of the deficit gate does when its weight changes."""
    gate = HierarchicalGate(quantum=10)
    state, _ = served(gate, opened(gate, PLACES), 0, 3, 0, 6)
    acme = state.groups[("acme",)]
    assert state.q[acme] == 17
    assert gate.configured(state, 0, 1, (("acme", 1), ANN)).q[acme] == 10


def test_a_state_keeps_its_tree_through_json() -> None:
    """Written and read, with clients that wait and that run."""
    play = played(small())
    policy, document = play.policy, play.policy.state_to_json(play.state)
    restored = policy.state_from_json(document)
    assert policy.state_to_json(restored) == document
    assert restored.gate.groups == play.state.gate.groups
    policy.check(restored)


def test_a_swap_keeps_the_tree_or_says_what_would_be_lost() -> None:
    """To another quantum with all debts, to another gate not at all."""
    play = played(small(quantum=5))
    debts = np.minimum(play.state.gate.q, 0)
    larger = small(quantum=50, cap=20)
    taken = migrate(play.policy, play.state, larger)
    larger.check(taken)
    assert np.minimum(taken.gate.q, 0).tolist() == debts.tolist()
    assert taken.gate.quantum[1:].tolist() == (play.state.gate.quantum[1:] * 10).tolist()
    flat = attrs.evolve(LOCAL_POLICIES["dlpm"], batching=play.policy.batching)
    with pytest.raises(MigrationError, match="under gate hierarchical means nothing to gate deficit"):
        migrate(play.policy, play.state, flat)


def test_its_bounds_are_those_of_siblings() -> None:
    """Clients of one family have the deficit gate's bound, others none; groups have it as clients have."""
    gate, limits = HierarchicalGate(), Limits(100, 99, 10, 8, True)
    here, there = (ACME, ANN), (ACME, BOB)
    siblings = (Client(0, "a", 1, here), Client(1, "b", 2, here))
    assert gate.service_gap_bound(siblings, limits) == gate.flat.service_gap_bound(siblings, limits)
    assert gate.service_gap_bound((siblings[0], Client(1, "b", 2, there)), limits) is None
    groups = (Client(0, "acme", 2), Client(1, "solo"))
    assert gate.group_gap_bound(groups, limits) == gate.flat.service_gap_bound(groups, limits)
    assert DeficitGate().group_gap_bound(groups, limits) is None


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        ((("a", 1),) * 3, "at most 2 groups"),
        ((("", 1),), "has a name"),
        ((("a", 0),), "the weight of group .a. is a whole number from 1"),
    ],
)
def test_groups_that_cannot_be_are_refused(groups: Groups, problem: str) -> None:
    """Deeper than organisation, user and key, without a name, or of no weight."""
    with pytest.raises(ValueError, match=problem):
        Client(0, "c", 1, groups)


def test_a_client_changes_weights_and_not_groups() -> None:
    """Weights of its groups go with it, and other groups are refused."""
    client = Client(3, "key", 1, (ACME, ANN))
    assert client.changed(2) == Client(3, "key", 2, (ACME, ANN))
    assert client.changed(1, (("acme", 9), ANN)).place == (("acme", 9), ANN)
    with pytest.raises(ValueError, match="is in acme/ann and stays there, not in acme/bob"):
        client.changed(1, (ACME, BOB))
    assert Client(0, "a") == Client(0, "a", groups=())


# --- the words, said of siblings ------------------------------------------------------------------------------------


@given(st.data())
def test_the_words_said_of_families_are_the_words_of_each(data: st.DataObject) -> None:
    """any, all, none, argmin, argmax and pick, on the members of each family alone."""
    size = data.draw(st.integers(1, 8))
    up = np.array([0, *(data.draw(st.integers(0, node - 1)) for node in range(1, size))], np.int64)
    vector = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=size, max_size=size)), np.int64)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), np.bool_)
    families = SiblingAlgebra(up)
    for above in set(up.tolist()):
        family = np.flatnonzero(up == above)
        own, held = vector[family], mask[family]
        for word in ("any", "all", "none"):
            answer = getattr(families, word)(mask)[family]
            assert (answer == getattr(NUMPY, word)(held)).all()
        for word in ("argmin", "argmax"):
            chosen: Ints = getattr(families, word)(vector, mask)
            alone = getattr(NUMPY, word)(own, held)
            expected = NO_GROUP if alone == NO_GROUP else int(family[alone])
            assert chosen[family].tolist() == [expected] * len(family)
            assert (families.exists(chosen)[family] == NUMPY.exists(alone)).all()
            assert (families.pick(vector, chosen, 7)[family] == NUMPY.pick(own, alone, 7)).all()


def test_the_root_is_nobodys_and_paths_are_as_told() -> None:
    """A client's path ends below the root, and the nodes of groups are shared."""
    state = opened(HierarchicalGate(), PLACES)
    assert isinstance(state, HierarchicalState)
    paths = [state.path(client) for client in range(6)]
    assert paths[0][1:] == paths[1][1:]
    assert paths[5][1:] == (NO_GROUP, NO_GROUP)
    assert all(ROOT not in path for path in paths)
    assert [state.up[path[0]] for path in paths] == [path[1] if path[1] != NO_GROUP else ROOT for path in paths]
    assert len({path[0] for path in paths}) == 6
    assert all(one != other for one, other in pairwise(paths))
