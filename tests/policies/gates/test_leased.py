"""Gateways that share an account keep its theorems while everything between them fails."""

import random
from collections.abc import Callable
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.gateway import request_of, window_policy
from fairsched.engines.serving import empty_worker
from fairsched.model.events import Arrived, ClientConfigured, Decoded, Event, Lent
from fairsched.model.request import Client
from fairsched.policies.base import Limits
from fairsched.policies.gates import DeficitGate, HierarchicalGate, leased
from fairsched.policies.gates.leased import (
    Credit,
    LeasedGate,
    LeaseError,
    Renewal,
    SharedAccount,
    Terms,
    left,
    on_lease,
    renewed,
)
from fairsched.verify.logic import with_names
from fairsched.verify.proofs.gates.lease_runs import refutations, shipped_restarts
from tests.support.faults.leases import KINDS, WITHOUT_FAULTS, Broken, World, drawn

DAY, NIGHT = 200, 100_000
LENGTH = 80

OPERATIONS = st.lists(st.tuples(st.integers(0, KINDS - 1), *[st.integers(0, 7)] * 2, st.integers(0, 63)), max_size=60)


@given(OPERATIONS, st.integers(1, 3))
def test_no_fault_costs_more_than_its_theorem_says(operations: list[Any], holders: int) -> None:
    """Renewals are lost, late, reordered and repeated, gateways end and come, accounts forget, clocks jump: balances,
    the truth and gaps stay in their bounds, and then every request is served."""
    World(holders).play(operations).finish()


@pytest.mark.nightly
@pytest.mark.parametrize("kinds", [KINDS, WITHOUT_FAULTS], ids=["faults", "no faults"])
def test_many_worlds_keep_their_books(kinds: int, full_budget: bool) -> None:
    """The same in longer worlds, a hundred thousand by night, half of them without faults; most serve requests."""
    served = 0
    for seed in range((NIGHT if full_budget else DAY) // 2):
        world = World(2 + seed % 2).play(drawn(random.Random(seed), LENGTH, kinds))
        world.finish()
        served += any(world.served.values())
        if kinds == WITHOUT_FAULTS:
            assert not any((*world.made.values(), *world.taken.values()))
    assert served > DAY // 4


def test_gateways_that_come_and_go_hide_no_debt() -> None:
    """What shipped first is refuted by F-L-2; in the same world the account that ships keeps L-least."""
    (world,) = (each.world for each in refutations() if each.claim.theorem.id == "F-L-2")
    assert all(shipped_restarts(world).values())


def test_a_renewal_out_of_order_is_refused() -> None:
    """A holder that has another's name, or that of its last start, is told so, and gets nothing."""
    terms = Terms(4, 2)
    account, _ = renewed(SharedAccount(terms), Renewal("a", terms, 2, 0, {}, ("f",), {"f": 5}), 0, 1)
    with pytest.raises(LeaseError, match="renewal 1 of a comes after its renewal 2"):
        renewed(account, Renewal("a", terms, 1, 0, {}, ("f",), {"f": 5}), 0, 1)


NAMES = st.sampled_from("fghij")
UNITS = st.dictionaries(NAMES, st.integers(-9, 9))


@given(UNITS, UNITS, st.sets(NAMES), st.sets(NAMES), st.sets(NAMES))
def test_clients_that_a_renewal_is_not_about_are_looked_at_only(
    has: dict[str, int], balances: dict[str, int], waits: set[str], active: set[str], elsewhere: set[str]
) -> None:
    """What comes of it is the same as if it were about all clients, each with a balance of 0."""
    terms, quanta = Terms(4, 2), dict.fromkeys("fghij", 3)
    account = SharedAccount(terms, {name: Credit(units, 3) for name, units in has.items()})
    account, _ = renewed(account, Renewal("b", terms, 1, 0, {}, tuple(sorted(elsewhere)), quanta), 0, 9)
    said = Renewal("a", terms, 1, 0, balances, tuple(sorted(waits)), quanta, tuple(sorted(active)))
    full = msgspec.structs.replace(said, balances=dict.fromkeys(account.clients, 0) | balances)
    assert renewed(account, said, 1, 9) == renewed(account, full, 1, 9)


def test_a_renewal_that_tells_nothing_new_is_not_noted_as_long_as_the_account_waits_for_its_holder() -> None:
    """A client that waits for credit which others have on lease is asked for again and again."""
    terms, quanta = Terms(4, 2), {"f": 4, "g": 4}
    account, _ = renewed(SharedAccount(terms), Renewal("a", terms, 1, 0, {}, ("f",), quanta), 0, 100)
    account, _ = renewed(account, Renewal("b", terms, 1, 0, {}, ("g",), quanta), 0, 100)

    def again(number: int, heard: int, waits: tuple[str, ...], at: int) -> tuple[bool, bool]:
        after, answer = renewed(account, Renewal("b", terms, number, heard, {"g": 4}, waits, quanta), at, 100)
        assert not answer.lost_writes
        return after is account, answer.noted

    assert again(2, 1, ("g",), 24) == (True, False)
    assert again(3, 1, ("g",), 25) == (False, True)
    assert again(3, 0, ("g",), 24) == (False, True)
    assert again(3, 1, ("f", "g"), 24) == (False, True)
    # It may leave by this one.
    assert again(3, 1, (), 24) == (False, True)


def test_the_bound_of_a_gateway_counts_all_of_them() -> None:
    """The gate's bound is L-gap's: 2(Q + n (U - 1) + (n - 1) S), and D-4.1's where there is one holder."""
    limits = Limits(100, 99, 40, 4, outputs_reserved=True)
    charge_max = DeficitGate(quantum=9).charge_max(limits)
    clients = (Client(0, "f"), Client(1, "g"))
    for holders in (1, 2, 5):
        leased = LeasedGate(quantum=9, lease=3, holders=holders)
        bound = 2 * (9 + holders * (charge_max - 1) + (holders - 1) * 3)
        assert leased.service_gap_bound(clients, limits) == bound
    assert LeasedGate(quantum=9, holders=1).service_gap_bound(clients, limits) == DeficitGate(
        quantum=9
    ).service_gap_bound(clients, limits)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(-9, 9)), max_size=40))
def test_without_groups_the_tree_on_lease_is_the_flat_gate(steps: list[tuple[int, int, int]]) -> None:
    """Both let in the same calls, keep the same balances, and give the same rounds when they are by themselves."""
    gates = [on_lease(each, 8, 2) for each in (DeficitGate(quantum=5), HierarchicalGate(quantum=5))]
    policies = [attrs.evolve(window_policy("fcfs", 5), gate=each) for each in gates]
    states = [policy.init() for policy in policies]
    seen: set[int] = set()
    view = empty_worker(0, 1000, 1000)
    for number, (kind, client, amount) in enumerate(steps):
        events: list[Event] = []
        if kind == 0 or client not in seen:
            seen.add(client)
            events = [Arrived(0, 0, request_of(number, client, 3, 2, 0))]
        elif kind == 1:
            events = [Decoded(0, 0, 1, (client,), (abs(amount) + 1,))]
        elif kind == 2:
            events = [Lent(0, 0, (client,), (amount,))]
        elif kind == 3:
            events = [ClientConfigured(0, 0, client, abs(amount) + 1)]
        else:
            decided = [policy.decide(state, view) for policy, state in zip(policies, states, strict=True)]
            assert decided[0][0] == decided[1][0]
            states = [state for _, state in decided]
        for event in events:
            states = [policy.observe(state, event) for policy, state in zip(policies, states, strict=True)]
        flat, tree = (state.gate for state in states)
        assert gates[0].balances(flat) == gates[1].balances(tree)
        waiting = sorted({entry.request.client for entry in states[0].queue.entries.values()})
        assert gates[0].rounds(flat, waiting) == gates[1].rounds(tree, waiting)
        gates[1].check(tree)


# --- bugs -------------------------------------------------------------------------------------------------------------


def _with(**names: Any) -> Callable[[], World]:
    """Worlds whose account computes with these functions in place of its own."""
    return lambda: World(2, with_names(renewed, **names))


def _who_is_there(account: SharedAccount, said: Renewal, now_ns: int, ttl_ns: int, *, later: int) -> SharedAccount:
    # The first names that the shipped function knows are its own.
    return leased._of_those_there(account, said, now_ns + later, ttl_ns)


def _time_as_it_was(account: SharedAccount, said: Renewal, now_ns: int, ttl_ns: int) -> SharedAccount:
    return leased._of_those_there(account, said, now_ns, 1 << 60)


def _debts_taken(account: SharedAccount, said: Renewal, now_ns: int, ttl_ns: int) -> SharedAccount:
    """What a holder owed when it was given up is the account's: it is there twice if the holder comes back."""
    after = leased._of_those_there(account, said, now_ns, ttl_ns)
    clients = dict(after.clients)
    for name in set(account.holders) - set(after.holders):
        for client, units in account.holders[name].balances.items():
            credit = clients[client]
            clients[client] = Credit(credit.units + min(units, 0), credit.quantum)
    return msgspec.structs.replace(after, clients=clients)


def _left_twice(account: SharedAccount, holder: str) -> SharedAccount:
    once = left(account, holder)
    debts = account.holders[holder].balances
    clients = {name: Credit(credit.units + debts.get(name, 0), credit.quantum) for name, credit in once.clients.items()}
    return msgspec.structs.replace(once, clients=clients)


def _takes_all_debts(o: Any, pool: Any, balance: Any, asks: Any, most: Any) -> Any:
    return o.minimum(pool, o.where(asks, most, 0))


def _lends_more(o: Any, pool: Any, balance: Any, asks: Any, most: Any) -> Any:
    return leased.leased(o, pool, balance, asks, most + 4)


def _refills_for_its_own(o: Any, pool: Any, waiting: Any, asks: Any, known: Any, quantum: Any) -> Any:
    return leased.topped_up(o, pool, asks, asks, known, quantum)


BUGS: dict[str, Callable[[], World]] = {
    "renews twice": _with(is_new=lambda o, serial, said: True),
    "takes back what was heard": _with(taken_back=lambda o, q, moved, serial, heard: q + moved),
    "takes back nothing": _with(taken_back=lambda o, q, moved, serial, heard: q),
    "gives up too early": _with(_of_those_there=lambda *args: _who_is_there(*args, later=20)),
    "gives up too late": _with(_of_those_there=lambda *args: _who_is_there(*args, later=-20)),
    "lets one that is gone have the time of a clock that jumped back": _with(_of_those_there=_time_as_it_was),
    "takes debts of one that comes back": _with(_of_those_there=_debts_taken),
    "takes over the debts of others": _with(leased=_takes_all_debts),
    "lends more than it may": _with(leased=_lends_more),
    "refills while a client elsewhere has credit": _with(topped_up=_refills_for_its_own),
    "charges debts twice where one leaves": lambda: World(2, leave=_left_twice),
    "writes over what it has not read": lambda: World(2, stamps=False),
    "hears an answer to what it said before": lambda: World(2, only_last=False),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_found(bug: str) -> None:
    """Each error that a protocol like this might have breaks the books of some world."""

    def worlds() -> None:
        for seed in range(600):
            BUGS[bug]().play(drawn(random.Random(seed), LENGTH)).finish()

    with pytest.raises(Broken):
        worlds()
