"""What each event does to a gate's accounts, in numbers: charges, refunds, marks, units and reservations."""

from typing import Any

import msgspec
import numpy as np
import pytest

from fairsched.model.algebra import NO_SCORE, Ints
from fairsched.model.pricing import Rates
from fairsched.model.request import Groups
from fairsched.policies.gates import COUNTER_MAX, AnyGate, CounterGate, DeficitGate, GlobalDeficitGate, HierarchicalGate
from fairsched.policies.gates.authoring import COMMON_MAX

LARGE = 1 << 36
"""More than 32 bits hold."""
RATES = Rates(2, 3)


def heads(*waiting: int, of: int = 0) -> Ints:
    """The heads of a queue of so many clients in which these wait; the first is preferred."""
    vector = np.full(max((of, *(client + 1 for client in waiting))), NO_SCORE, np.int64)
    for place, client in enumerate(waiting):
        vector[client] = len(waiting) - place
    return vector


def joined(gate: AnyGate, *clients: int) -> Any:
    """The gate's state when these came, one after the other."""
    state = gate.init()
    for place, client in enumerate(clients):
        state = gate.joined(state, client, heads(*clients[:place]), False)
    return state


def admitted(gate: AnyGate, state: Any, client: int, tokens: int, kv: int = 1, emptied: bool = False) -> Any:
    """The state after the client, which alone has credit or waits first, is let in."""
    alone = heads(client, of=size(gate, state))
    turn = gate.begin(state, alone)
    assert turn.choose(alone) == client
    turn.admit(client, tokens, kv, emptied)
    return gate.after(state, turn)


def size(gate: AnyGate, state: Any) -> int:
    """Of how many clients a state is."""
    return len(state.c) if isinstance(gate, CounterGate) else len(deficits(gate, state))


def deficits(gate: AnyGate, state: Any) -> list[int]:
    """Each client's own deficit, whatever the gate."""
    if isinstance(gate, HierarchicalGate):
        return list(state.q[state.node].tolist())
    return list(state.q.tolist())


DEFICIT = [kind(RATES, quantum=10 * LARGE) for kind in (DeficitGate, HierarchicalGate, GlobalDeficitGate)]
EACH = pytest.mark.parametrize("gate", DEFICIT, ids=lambda gate: gate.name)


@EACH
def test_a_deficit_pays_for_inputs_outputs_and_what_settles(gate: AnyGate) -> None:
    """Each at its rate, however large: an admission, decode steps, a settlement for more and one for less."""
    state = admitted(gate, joined(gate, 0, 1), 0, 3 * LARGE)
    left = 10 * LARGE - 2 * 3 * LARGE
    assert deficits(gate, state) == [left, 10 * LARGE]
    state = gate.decoded(state, (0, 1), (LARGE, 7))
    left -= 3 * LARGE
    assert deficits(gate, state) == [left, 10 * LARGE - 21]
    state = gate.settled(state, 0, 5, heads(1))
    assert deficits(gate, state) == [left - 10, 10 * LARGE - 21]
    state = gate.settled(state, 0, -7, heads(1))
    assert deficits(gate, state) == [left - 10 + 14, 10 * LARGE - 21]
    assert deficits(gate, gate.settled(state, 0, 0, heads(1))) == [left + 4, 10 * LARGE - 21]
    gate.check(state)


@EACH
def test_all_is_given_back_that_was_not_computed(gate: AnyGate) -> None:
    """However much credit the client has by then, and others stay as they were."""
    state = admitted(gate, joined(gate, 0, 1), 0, 3)
    state = gate.settled(state, 0, -5, heads(1))
    assert deficits(gate, state) == [10 * LARGE + 4, 10 * LARGE]
    gate.check(state)
    assert deficits(gate, gate.settled(joined(gate, 0), 0, -LARGE, heads())) == [2 * LARGE]


@EACH
def test_a_client_that_came_is_known_and_is_topped_up_and_no_other_is(gate: AnyGate) -> None:
    """A refill is for those that came, waiting or not; a client whose weight alone was told has nothing."""
    state = gate.configured(joined(gate, 0, 2), 3, 2)
    if not isinstance(gate, HierarchicalGate):
        # Client 0 waits no more.
        state = gate.left(state, 0)
    state = admitted(gate, state, 2, 1)
    assert deficits(gate, state) == [10 * LARGE, 0, 10 * LARGE - 2, 0]
    gate.check(state)


@EACH
def test_many_clients_pay_as_few_do(gate: AnyGate) -> None:
    """Nine clients in one run of steps: each pays its own."""
    clients = tuple(range(0, 18, 2))
    state = gate.decoded(joined(gate, *range(18)), clients, tuple(client + 1 for client in clients))
    assert deficits(gate, state) == [-3 * (i + 1) if i in clients else 0 for i in range(18)]


PLACED: dict[int, Groups] = {0: (("acme", 1), ("ann", 1)), 1: (("acme", 1), ("bob", 1)), 2: (("acme", 1),), 3: ()}


def test_groups_pay_what_their_clients_pay() -> None:
    """Charges, settlements and refunds reach every group that a client is in, each once, and not the root."""
    gate = HierarchicalGate(RATES, quantum=100)
    state = gate.init()
    for client, groups in PLACED.items():
        state = gate.configured(state, client, 1, groups)
    for client in PLACED:
        state = gate.joined(state, client, heads(), False)
    acme, ann, bob = (state.groups[name] for name in (("acme",), ("acme", "ann"), ("acme", "bob")))

    def levels() -> tuple[int, ...]:
        return tuple(int(state.q[node]) for node in (*state.node, ann, bob, acme, 0))

    assert levels() == (0, 0, 0, 0, 0, 0, 0, 1)
    state = admitted(gate, state, 0, 5)
    # Every family was refilled, since in none of them a client that waits had credit.
    assert levels() == (90, 100, 100, 100, 90, 100, 90, 1)
    state = gate.decoded(state, (0, 1, 2, 3), (1, 2, 3, 4))
    assert levels() == (87, 94, 91, 88, 87, 94, 72, 1)
    state = gate.settled(state, 1, 4, heads())
    assert levels() == (87, 86, 91, 88, 87, 86, 64, 1)
    state = gate.settled(state, 1, -2, heads())
    assert levels() == (87, 90, 91, 88, 87, 90, 68, 1)
    state = gate.settled(state, 0, -50, heads())
    assert levels() == (187, 90, 91, 88, 187, 90, 168, 1)
    gate.check(state)


def test_each_level_has_its_own_weight() -> None:
    """A client's weight and those of its groups, whenever they are told."""
    gate = HierarchicalGate(quantum=10)
    state = gate.configured(gate.init(), 0, 5, (("acme", 2), ("ann", 3)))
    levels = [state.groups["acme",], state.groups["acme", "ann"], int(state.node[0])]
    assert state.quantum[levels].tolist() == [20, 30, 50]
    state = gate.configured(state, 0, 6, (("acme", 4), ("ann", 1)))
    assert state.quantum[levels].tolist() == [40, 10, 60]


def test_a_first_request_makes_all_of_its_groups_known() -> None:
    """A refill reaches a group as soon as a client of it came, and no group before."""
    gate = HierarchicalGate(quantum=10)
    state = gate.configured(gate.configured(gate.init(), 0, 1, PLACED[0]), 1, 1, PLACED[1])
    state = gate.joined(state, 0, heads(), False)
    known = {name: bool(state.known[node]) for name, node in state.groups.items()}
    assert known == {("acme",): True, ("acme", "ann"): True, ("acme", "bob"): False}
    assert state.below[[state.groups["acme",], int(state.node[0]), int(state.node[1])]].tolist() == [1, 1, 0]
    assert gate.left(state, 0).below.tolist() == [0] * len(state.below)


@pytest.mark.parametrize("kind", [DeficitGate, HierarchicalGate, GlobalDeficitGate])
def test_what_is_reserved_under_a_cap_is_given_back(kind: Any) -> None:
    """Admissions add up, a release takes off what it says, and the cap counts what is left, to the token."""
    gate = kind(RATES, quantum=1000, in_flight_cap_tokens=10)
    state = admitted(gate, admitted(gate, joined(gate, 0, 1), 0, 1, kv=4), 0, 1, kv=3)

    def capped(client: int, kv_tokens: int) -> bool:
        return bool(gate.begin(state, heads(0, 1)).capped(client, kv_tokens))

    assert [capped(0, 3), capped(0, 4), capped(1, 10), capped(1, 11)] == [False, True, False, True]
    state = gate.released(state, 0, 3)
    assert [capped(0, 6), capped(0, 7)] == [False, True]
    state = gate.released(state, 0, 4)
    assert [capped(0, 10), capped(0, 11)] == [False, True]
    gate.check(state)
    # Within one decision, too.
    turn = gate.begin(state, heads(0, 1))
    assert turn.choose(heads(0, 1)) == 0
    turn.admit(0, 1, 8, False)
    assert [turn.capped(0, 2), turn.capped(0, 3)] == [False, True]
    assert gate.refuses(11)
    assert not gate.refuses(10)
    assert not kind(RATES).refuses(1 << 40)


def test_a_cap_is_of_an_organisation_and_of_a_client_in_none() -> None:
    """What any of its clients has in flight counts for all of them."""
    gate = HierarchicalGate(quantum=1000, in_flight_cap_tokens=10)
    state = gate.init()
    for client, groups in PLACED.items():
        state = gate.joined(gate.configured(state, client, 1, groups), client, heads(), False)
    state = admitted(gate, state, 0, 1, kv=7)
    turn = gate.begin(state, heads(0, 1, 2, 3))
    assert [turn.capped(client, 4) for client in PLACED] == [True, True, True, False]
    assert not turn.capped(1, 3)
    state = gate.released(state, 0, 7)
    assert not any(gate.begin(state, heads(0, of=4)).capped(client, 10) for client in PLACED)
    gate.check(state)


def test_a_smaller_weight_cuts_credit_and_keeps_debt() -> None:
    """The quantum is the weight's; credit above it goes, a debt stays, others are as they were."""
    gates: tuple[AnyGate, ...] = (DeficitGate(quantum=10), HierarchicalGate(quantum=10), GlobalDeficitGate(quantum=10))
    for gate in gates:
        state = gate.configured(gate.configured(joined(gate, 0, 1, 2), 0, 3), 1, 3)
        state = gate.decoded(admitted(gate, state, 2, 1), (1,), (20,))
        assert deficits(gate, state) == [30, -10, 9]
        state = gate.configured(gate.configured(state, 0, 2), 1, 2)
        assert deficits(gate, state) == [20, -10, 9]
        gate.check(state)


# --- counters -------------------------------------------------------------------------------------------------------


def test_counters_pay_in_the_unit_of_their_weights() -> None:
    """Inputs, outputs, settlements and refunds: each times lcm / weight, however large."""
    gate = CounterGate(RATES)
    state = joined(gate, 0, 1, 2)
    for client, weight in enumerate((1, 2, 3)):
        state = gate.configured(state, client, weight)
    assert state.share.tolist() == [6, 3, 2]
    state = admitted(gate, state, 1, LARGE)
    assert state.c.tolist() == [0, 2 * LARGE * 3, 0]
    state = gate.decoded(state, (0, 1, 2), (5, 6, 7))
    now = [3 * 5 * 6, 6 * LARGE + 3 * 6 * 3, 3 * 7 * 2]
    assert state.c.tolist() == now
    state = gate.settled(state, 1, 10, heads(0))
    assert state.c.tolist() == [now[0], now[1] + 2 * 10 * 3, now[2]]
    state = gate.settled(state, 1, -4, heads(0))
    assert state.c.tolist() == [now[0], now[1] + 2 * 6 * 3, now[2]]
    gate.check(state)


def test_counters_follow_a_finer_unit() -> None:
    """A weight that divides no unit so far makes all counters and shares finer, and one that does changes none; a
    client that comes later pays as one of weight 1."""
    gate = CounterGate()
    state = gate.decoded(joined(gate, 0, 1), (0, 1), (3, 4))
    assert state.c.tolist() == [6, 8]
    state = gate.configured(state, 0, 2)
    assert (state.common, state.c.tolist(), state.share.tolist()) == (2, [12, 16], [1, 2])
    state = gate.configured(state, 1, 3)
    assert (state.common, state.c.tolist(), state.share.tolist()) == (6, [36, 48], [3, 2])
    state = gate.configured(state, 1, 2)
    assert (state.common, state.c.tolist(), state.share.tolist()) == (6, [36, 48], [3, 3])
    state = gate.joined(state, 3, heads(0, 1), False)
    assert state.share.tolist() == [3, 3, 6, 6]
    state = gate.configured(state, 5, 1)
    assert state.share.tolist() == [3, 3, 6, 6, 6, 6]
    gate.check(state)


def test_a_refund_takes_no_counter_below_its_last_lift() -> None:
    """A client comes out as if the request had never been charged: below others that wait, and not below the level to
    which it was lifted, in whatever unit."""
    gate = CounterGate(Rates(1, 1))
    state = gate.decoded(joined(gate, 0, 1), (0, 1), (5, 9))
    state = gate.joined(state, 2, heads(0, 1), False)
    assert (state.c.tolist(), state.floor.tolist()) == ([5, 9, 5], [0, 0, 5])
    state = admitted(gate, state, 2, 7)
    assert gate.settled(state, 2, -4, heads(0, 1)).c.tolist() == [5, 9, 8]
    assert gate.settled(state, 2, -9, heads(0, 1)).c.tolist() == [5, 9, 5]
    assert gate.settled(state, 1, -3, heads(0, 1)).c.tolist() == [5, 6, 12]
    finer = gate.configured(state, 0, 2)
    assert (finer.c.tolist(), finer.floor.tolist()) == ([10, 18, 24], [0, 0, 10])
    assert gate.settled(finer, 2, -9, heads(0, 1)).c.tolist() == [10, 18, 10]
    # A client that waits already, or whose counter is higher, keeps or gets the level of its time.
    assert gate.joined(state, 2, heads(0, 1, 2), True).floor.tolist() == [0, 0, 5]
    assert gate.joined(state, 1, heads(0), False).floor.tolist() == [0, 5, 5]
    gate.check(finer)


def test_units_that_would_be_too_fine_are_refused() -> None:
    """A weight may make the unit as fine as the limit, and not finer."""
    gate = CounterGate()
    assert gate.configured(gate.init(), 0, COMMON_MAX).common == COMMON_MAX
    with pytest.raises(ValueError, match=str(COMMON_MAX)):
        gate.configured(gate.init(), 0, COMMON_MAX + 1)


def test_a_counter_that_comes_back_is_lifted() -> None:
    """To the lowest that waits; where none waits, to the one whose queue emptied last, by an admission or because its
    caller gave up; one that waits already, or is above, stays."""
    gate = CounterGate(Rates(1, 1))
    state = gate.decoded(joined(gate, 0, 1, 2), (0, 1, 2), (5, 9, 2))
    assert gate.joined(state, 2, heads(0, 1), False).c.tolist() == [5, 9, 5]
    assert gate.joined(state, 2, heads(0, 1), True).c.tolist() == [5, 9, 2]
    assert gate.joined(state, 1, heads(0), False).c.tolist() == [5, 9, 2]
    gone = gate.left(state, 1)
    assert gate.joined(gone, 2, heads(), False).c.tolist() == [5, 9, 9]
    assert gate.joined(gone, 3, heads(), False).c.tolist() == [5, 9, 2, 9]
    emptied = admitted(gate, state, 0, 1, emptied=True)
    assert gate.joined(emptied, 2, heads(), False).c.tolist() == [6, 9, 6]
    still = admitted(gate, gone, 0, 1)
    assert gate.joined(still, 2, heads(), False).c.tolist() == [6, 9, 9]
    none = CounterGate(Rates(1, 1), lift="none")
    assert none.joined(gone, 2, heads(), False).c.tolist() == [5, 9, 2]
    assert none.joined(gone, 2, heads(0), False).c.tolist() == [5, 9, 5]


# --- the horizon of the counter gate ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("charge", "event"),
    [
        (3, lambda gate, state: admitted(gate, state, 0, 3)),
        (3, lambda gate, state: gate.settled(state, 0, 3, heads(0))),
        (6, lambda gate, state: gate.decoded(state, (0,), (3,))),
        (COUNTER_MAX // 2, lambda gate, state: gate.configured(state, 0, 2)),
    ],
    ids=["admitted", "settled", "decoded", "a finer unit"],
)
def test_no_counter_passes_its_horizon(charge: int, event: Any) -> None:
    """A charge, or a finer unit, takes a counter up to 2^61 and no further: one more is an error, and no number wraps
    around."""
    gate = CounterGate()
    for more in (0, 1):
        state = msgspec.structs.replace(joined(gate, 0), c=np.array([COUNTER_MAX - charge + more]))
        if more:
            with pytest.raises(OverflowError, match="a counter would be 2,305,843,009,213,69"):
                event(gate, state)
        else:
            assert event(gate, state).c.tolist() == [COUNTER_MAX]
