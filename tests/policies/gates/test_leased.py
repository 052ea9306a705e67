"""Gateways that share an account keep its theorems while everything between them fails."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.policies.gates import Renewal, SharedAccount, left, renewed
from fairsched.policies.gates.leased import Credit, gate, shared_account
from fairsched.verify.logic import with_names
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


# --- bugs -------------------------------------------------------------------------------------------------------------


def _with(**names: Any) -> Callable[[], World]:
    """Worlds whose account computes with these functions in place of its own."""
    return lambda: World(2, with_names(renewed, **names))


def _who_is_there(account: SharedAccount, said: Renewal, now_ns: int, *, later: int) -> SharedAccount:
    # The first names that the shipped function knows are its own.
    return shared_account._of_those_there(account, said, now_ns + later)


def _debts_taken(account: SharedAccount, said: Renewal, now_ns: int) -> SharedAccount:
    """What a holder owed when it was given up is the account's: it is there twice if the holder comes back."""
    after = shared_account._of_those_there(account, said, now_ns)
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
    return gate.leased(o, pool, balance, asks, most + 4)


def _refills_for_its_own(o: Any, pool: Any, waiting: Any, asks: Any, known: Any, quantum: Any) -> Any:
    return gate.topped_up(o, pool, asks, asks, known, quantum)


BUGS: dict[str, Callable[[], World]] = {
    "renews twice": _with(is_new=lambda o, serial, said: True),
    "takes back what was heard": _with(taken_back=lambda o, q, moved, serial, heard: q + moved),
    "takes back nothing": _with(taken_back=lambda o, q, moved, serial, heard: q),
    "gives up too early": _with(_of_those_there=lambda *args: _who_is_there(*args, later=20)),
    "gives up too late": _with(_of_those_there=lambda *args: _who_is_there(*args, later=-20)),
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
