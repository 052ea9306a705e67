"""What each event does to the accounts of workers that share credit, in numbers."""

from typing import Any

from fairsched.model.pricing import Rates
from fairsched.policies.gates import GlobalDeficitGate
from tests.policies.gates.test_accounts import admitted, deficits, heads, joined


def test_a_ledger_is_told_of_refunds_as_of_charges() -> None:
    """Whatever a worker charges or gives back, what all know and what it has not told add up to its own."""
    gate = GlobalDeficitGate(Rates(1, 1), quantum=100, unsent_max=10)
    credit: Any = gate.credit()

    def at(worker: int, after: Any) -> None:
        nonlocal credit
        credit = gate.commit(credit, after(gate.checkout(gate.init(), credit, worker)), worker)

    def seen(worker: int) -> int:
        return int(gate.checkout(gate.init(), credit, worker).q[0])

    for client in (0, 1):
        at(0, lambda state, client=client: gate.joined(state, client, heads(), False))
    at(0, lambda state: admitted(gate, state, 0, 30))
    assert (seen(0), seen(1)) == (70, 70)
    at(0, lambda state: gate.decoded(state, (0,), (8,)))
    assert (seen(0), seen(1)) == (62, 70)
    # A refund of less than what is unsent is not told yet, a larger one is at once.
    at(0, lambda state: gate.settled(state, 0, -3, heads()))
    assert (seen(0), seen(1)) == (65, 70)
    at(0, lambda state: gate.settled(state, 0, -20, heads()))
    assert (seen(0), seen(1)) == (85, 85)
    at(1, lambda state: gate.decoded(state, (0,), (4,)))
    at(0, lambda state: gate.decoded(state, (0,), (5,)))
    assert (seen(0), seen(1)) == (80, 81)
    credit = gate.idle(gate.idle(credit, 0), 1)
    assert (seen(0), seen(1)) == (76, 76)
    assert int(gate.snapshot(credit).q[0]) == 76
    # The admission, the larger refund, and each worker's rest; who rests again has nothing to tell.
    assert credit.messages == 4
    assert gate.idle(credit, 0) is credit
    assert gate.commit(credit, gate.checkout(gate.init(), credit, 1), 1) is credit


def test_workers_count_where_clients_wait_and_what_landed() -> None:
    """A client waits at as many workers as its queue is not empty at, and credit is refilled for those that wait
    anywhere."""
    gate = GlobalDeficitGate(quantum=10)
    state = gate.joined(joined(gate, 0, 1), 0, heads(), False)
    assert (state.places.tolist(), state.granted.tolist()) == ([2, 1], [0, 0])
    assert gate.joined(state, 0, heads(), True).places.tolist() == [2, 1]
    assert gate.left(state, 0).places.tolist() == [1, 1]
    state = admitted(gate, state, 0, 4, emptied=True)
    assert (state.places.tolist(), state.granted.tolist(), deficits(gate, state)) == ([1, 1], [10, 10], [6, 10])
    # Client 0 waits elsewhere in credit: client 1 alone is here, in debt, and gets none.
    state = gate.decoded(state, (1,), (9,))
    assert gate.begin(state, heads(1)).choose(heads(1)) == -1
    work = GlobalDeficitGate(quantum=10, keeps="work")
    turn = work.begin(state, heads(1))
    assert turn.choose(heads(1)) == 1
    turn.admit(1, 1, 1, True)
    assert work.after(state, turn).granted.tolist() == [10, 20]
    state = gate.held(gate.held(state, 0, 1), 0, 1)
    turn = gate.begin(state, heads(0, 1))
    assert [turn.behind_landed(client) for client in (0, 1, 7)] == [True, False, False]
    assert turn.unheld(0)
    assert turn.behind_landed(0)
    assert turn.unheld(0)
    assert not turn.behind_landed(0)
    gate.check(state)
