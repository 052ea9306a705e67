"""For how long a gate's choice holds: never longer than a choice made anew after every single decode step shows."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from fairsched.model.algebra import NO_GROUP, NO_SCORE
from fairsched.model.request import Groups
from fairsched.policies import gates

FAR = 24
"""So many decode steps are looked at."""
PLACES: tuple[Groups, ...] = ((("acme", 2), ("ann", 1)), (("acme", 2),), (("solo", 3),), ())
BANDS = gates.BandGate(quantum=5, bands="acme:60,solo:30,rest:10", kept=5)
GATES: tuple[gates.AnyGate, ...] = (
    gates.DeficitGate(quantum=5),
    gates.HierarchicalGate(quantum=5),
    gates.CounterGate(),
    BANDS,
)


def settled_choice(turn: gates.AdmissionTransaction, heads: Any, unready: Sequence[int]) -> int:
    """The client that a decision ends with: those that are not ready are passed over."""
    chosen = turn.choose(heads)
    while chosen in unready:
        turn.skip(chosen)
        chosen = turn.choose(heads)
    return chosen


def opened(
    gate: gates.AnyGate, weights: Sequence[int], waiting: Sequence[int], served: Sequence[int], places: Sequence[Groups]
) -> tuple[Any, Any]:
    """The gate's state and heads in which these clients wait and each was served so much, and each is in one of these
    places where the gate has groups."""
    clients = len(weights)
    state, heads = gate.init(), np.full(clients, NO_SCORE, np.int64)
    for client, weight in enumerate(weights):
        groups = places[client % len(places)] if isinstance(gate, gates.HierarchicalGate | gates.BandGate) else ()
        state = gate.configured(state, client, weight, groups)
    for client in range(clients):
        state = gate.joined(state, client, heads, False)
        if served[client]:
            state = gate.decoded(state, (client,), (served[client],))
        if client not in waiting:
            state = gate.left(state, client)
        else:
            heads[client] = clients - client
    # What was refilled is in the state only after an admission.
    turn = gate.begin(state, heads)
    chosen = turn.choose(heads)
    if chosen != NO_GROUP:
        turn.admit(chosen, 1, 1, False)
        state = gate.after(state, turn)
    return state, heads


class Situation(NamedTuple):
    """Weights, who waits, what each was served, whose head is not ready, who decodes, and how many requests of each."""

    weights: list[int]
    waiting: list[int]
    served: list[int]
    unready: list[int]
    clients: list[int]
    counts: list[int]


def situations(count: int) -> Iterator[Situation]:
    """So many drawn situations, always the same: few clients and many, most of them waiting, alike or not."""
    random = Random(1)
    for _ in range(count):
        clients = range(random.choice([2, 2, 3, 4, 9]))
        waiting = [client for client in clients if random.random() < 0.8]
        decoding = [client for client in clients if random.random() < 0.6]
        share = random.choice([0, 0.3, 1])
        yield Situation(
            [random.choice([1, 1, 2, 4]) for _ in clients],
            waiting,
            [random.choice([0, 0, 1, 2, 3, 9]) for _ in clients],
            [client for client in waiting if random.random() < share],
            decoding,
            [random.choice([1, 1, 2, 3]) for _ in decoding],
        )


@pytest.mark.parametrize("places", [PLACES, ((),)], ids=["grouped", "flat"])
@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_a_choice_holds_for_as_long_as_it_says(gate: gates.AnyGate, places: Sequence[Groups]) -> None:
    """After each of that many steps but the last, the same decision comes to the same client; None means for ever."""
    for each in situations(150):
        state, heads = opened(gate, each.weights, each.waiting, each.served, places)
        turn = gate.begin(state, heads)
        chosen = settled_choice(turn, heads, each.unready)
        stays = turn.stays(chosen, each.clients, each.counts)
        assert stays is None or stays >= 1
        for step in range(1, FAR if stays is None else min(stays, FAR)):
            tokens = tuple(step * count for count in each.counts)
            later = gate.decoded(state, tuple(each.clients), tokens) if each.clients else state
            assert settled_choice(gate.begin(later, heads), heads, each.unready) == chosen, (each, step, stays)


class Race(NamedTuple):
    """Weights of two clients that wait, the first prompt, what each decodes a step, for how long that holds, and in
    which groups both are."""

    gate: gates.AnyGate
    weights: tuple[int, int]
    prompt: int
    decodes: tuple[int, int]
    expected: int
    place: Groups = ()


RACES = {
    # Of a quantum of 5 an admission took 1, and client 0 decodes for 2 a step: after two steps it has none.
    "deficit": Race(gates.DeficitGate(quantum=5), (1, 1), 1, (1, 0), 2),
    "hierarchical": Race(gates.HierarchicalGate(quantum=5), (1, 1), 1, (1, 0), 2),
    # Three requests of client 0 decode: of 12 units 6 a step are gone in the second.
    "three": Race(gates.DeficitGate(quantum=13), (1, 1), 1, (3, 0), 2),
    "three of a tree": Race(gates.HierarchicalGate(quantum=13), (1, 1), 1, (3, 0), 2),
    "three of a group": Race(gates.HierarchicalGate(quantum=13), (1, 1), 1, (3, 0), 2, (("acme", 1),)),
    # Counters 1 and 0: client 1 is chosen, and passes client 0 in one step; a tie would be client 0's.
    "counter": Race(gates.CounterGate(), (1, 1), 1, (0, 1), 1),
    # Client 0 pays 9 for its input, and client 1, whose units cost four times as much, passes it in the second step.
    "weighted": Race(gates.CounterGate(), (4, 1), 9, (0, 1), 2),
    # Both decode: of 9 units client 1 makes up 2 a step.
    "both": Race(gates.CounterGate(), (1, 1), 9, (1, 2), 5),
}


@pytest.mark.parametrize("race", RACES.values(), ids=RACES)
def test_a_choice_holds_until_the_step_in_which_it_falls(race: Race) -> None:
    """Where another client takes its place then, the number is exact: neither a step more nor one less."""
    gate, state, heads = race.gate, race.gate.init(), np.zeros(2, np.int64)
    for client, weight in enumerate(race.weights):
        state = gate.configured(state, client, weight, race.place)
        state = gate.joined(state, client, heads, False)
    turn = gate.begin(state, heads)
    turn.admit(turn.choose(heads), race.prompt, 1, False)
    state = gate.after(state, turn)
    turn = gate.begin(state, heads)
    chosen = turn.choose(heads)
    clients = tuple(client for client in range(2) if race.decodes[client])
    counts = tuple(race.decodes[client] for client in clients)
    assert turn.stays(chosen, clients, counts) == race.expected
    for step in range(race.expected + 1):
        later = gate.decoded(state, clients, tuple(step * count for count in counts))
        assert (gate.begin(later, heads).choose(heads) == chosen) is (step < race.expected)


@pytest.mark.parametrize("left", [1, 2])
def test_a_client_that_cannot_go_holds_back_a_refill_for_its_last_units_of_credit(left: int) -> None:
    """Client 0 has what a step costs, or less, and is not ready, client 1 owes: none is chosen for one step, and then
    client 1 is."""
    gate = gates.DeficitGate(quantum=left + 1)
    state, heads = gate.init(), np.zeros(2, np.int64)
    for client in range(2):
        state = gate.joined(state, client, heads, False)
    turn = gate.begin(state, heads)
    turn.admit(turn.choose(heads), 1, 1, False)
    state = gate.decoded(gate.after(state, turn), (1,), (left,))
    assert state.q.tolist() == [left, 1 - left]
    turn = gate.begin(state, heads)
    assert settled_choice(turn, heads, [0]) == NO_GROUP
    assert turn.stays(NO_GROUP, (0,), (1,)) == 1
    later = gate.decoded(state, (0,), (1,))
    assert settled_choice(gate.begin(later, heads), heads, [0]) == 1


def test_no_client_is_chosen_where_none_is_known() -> None:
    """A decision before the first client came."""
    for gate in GATES:
        heads = np.zeros(0, np.int64)
        assert gate.begin(gate.init(), heads).choose(heads) == NO_GROUP


def test_a_step_is_steady_until_a_client_is_paused_or_a_refill_is_due() -> None:
    """Inside the batch the number is exact: after so many decode steps, and not before, a client that decodes stands
    still or those that wait have no credit left."""
    random = Random(2)
    for _ in range(200):
        debt, clients = random.choice([0, 3, 8]), random.choice([2, 3, 4])
        gate = gates.InBatchGate(quantum=5)
        state: Any = msgspec.structs.replace(gate.init(), longest=debt)
        heads = np.full(clients, NO_SCORE, np.int64)
        for client in range(clients):
            state = gate.joined(state, client, heads, False)
        state = msgspec.structs.replace(state, q=np.array([random.randint(1 - debt, 9) for _ in range(clients)]))
        for client in range(clients):
            heads[client] = random.choice([NO_SCORE, 1])
        state = gate.settled_up(state, heads)
        decoding = [client for client in range(clients) if state.q[client] > -debt and random.random() < 0.6]
        counts = [random.choice([1, 2, 3]) for _ in decoding]
        expected = None
        for step in range(1, FAR if (heads != NO_SCORE).any() else 0):
            later: Any = gate.decoded(state, tuple(decoding), tuple(step * count for count in counts))
            paused = not gate.may_decode(later)[decoding].all()
            if paused or not (later.q[heads != NO_SCORE] > 0).any():
                expected = step
                break
        assert gate.steady_steps(state, heads, decoding, counts, None) == expected
        # Where no more than so many are asked for, no more than those are said.
        most = random.randint(1, 9)
        within = gate.steady_steps(state, heads, decoding, counts, most)
        assert within == (most if expected is None else min(expected, most))
