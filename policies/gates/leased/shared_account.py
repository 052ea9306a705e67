"""The account that holders lease from, as a value: who has how much, and what a renewal makes of it.

Clients are known by name, since each holder numbers its own.  A holder is known from its first renewal until it leaves,
or until it has not renewed for as long as the account waits for it.  One that was given up and is there all the same
comes back with its balances, and nothing is lost; of one that is gone, both credit and debts are.  A renewal whose
answer was lost is taken back by the next one, which says what the holder heard last, and one that comes again changes
nothing (L-again).  For that a holder takes an answer only to the last renewal that it said, and has a name that no
other has, nor had before it was started anew.

What faults cost: a holder that ends without leaving takes at most S of a client's credit with it, or at most U - 1 of
its debt (L-balance).  An account that lost its last writes, or all of them, is wrong by at most what an account of n
holders can have of a client, Q + (n - 1) S where nothing is given back (L-account): what is charged is at the holders.
The gap of two clients grows by what one was given and what the other lost (L-faults).
"""

from collections.abc import Iterable, Mapping

import attrs
import msgspec
import numpy as np

from fairsched.model.algebra import NUMPY, Bools, Ints
from fairsched.policies.gates.leased.gate import is_new, leased, left_over, pooled, taken_back, topped_up

GONE_MAX = 100
"""An account remembers the names of so many holders that it gave up, so that it can tell them."""


class LeaseError(Exception):
    """The account does not take a renewal; the message says why."""


class Credit(msgspec.Struct, frozen=True, array_like=True):
    """A client's: credit that no holder has, and what one round gives."""

    units: int
    quantum: int


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """One that holds credit: which of its renewals was the last, what that `moved` to it of each client's credit, what
    it has since, the clients that wait there, and when it counts as gone."""

    serial: int
    moved: dict[str, int]
    balances: dict[str, int]
    waits: tuple[str, ...]
    until_ns: int


class Terms(msgspec.Struct, frozen=True, array_like=True):
    """What all holders have to agree on, since the bound is made of it: how much of a client's credit one may have on
    lease, in cost units, and how many holders there may be."""

    lease: int
    holders: int


class SharedAccount(msgspec.Struct, frozen=True):
    """Credit by client, and holders by name."""

    terms: Terms
    clients: dict[str, Credit] = {}
    holders: dict[str, Holder] = {}
    gone: tuple[str, ...] = ()
    """The last `GONE_MAX` holders that were given up and have not come back."""


class Renewal(msgspec.Struct, frozen=True):
    """What a holder says: its name, the terms that it was given, the number of this renewal, the last one that it heard
    an answer to (0: none), its balance of each client that has one, the clients that wait there, the quanta of clients
    that it knows, at least of all those, and clients that are to have a lease there without waiting, since their next
    requests are likely to come (unless they wait at another)."""

    holder: str
    terms: Terms
    serial: int
    heard: int
    balances: Mapping[str, int]
    waits: tuple[str, ...]
    quanta: Mapping[str, int]
    active: tuple[str, ...] = ()


@attrs.frozen
class Renewed:
    """What a holder hears: by how much each balance changes, and whether the account had lost what it heard before, or
    had given it up, if one of both.

    Not `noted`: there was nothing to note, and the account is as if the renewal had never come.  The holder goes on as
    if it had not said it.
    """

    moved: Mapping[str, int]
    lost_writes: bool = False
    given_up: bool = False
    noted: bool = True


def renewed(account: SharedAccount, said: Renewal, now_ns: int, ttl_ns: int) -> tuple[SharedAccount, Renewed]:
    """Return the account after a renewal at this time of its clock, and what the holder hears.

    The holder counts as gone after `ttl_ns`.  A renewal that the account has had changes nothing.  One that asks for
    credit, moves none and tells of no other wait is not noted while the holder has three quarters of `ttl_ns`: the
    account itself is returned.  Raises `LeaseError` for one that comes after a later one, for one holder more than
    there may be, and for one with other terms than those of the others that are there.  O(holders, clients that wait,
    are active or owe), and a look at each client.
    """
    found = account
    account = _of_those_there(account, said, now_ns, ttl_ns)
    before = account.holders.get(said.holder)
    serial, last_moved = (0, {}) if before is None else (before.serial, before.moved)
    if not is_new(NUMPY, serial, said.serial):
        if said.serial < serial:
            raise LeaseError(f"renewal {said.serial} of {said.holder} comes after its renewal {serial}")
        return account, Renewed(last_moved)
    elsewhere = {name for key, holder in account.holders.items() if key != said.holder for name in holder.waits}
    told = {*said.balances, *said.waits, *said.active, *last_moved}
    clients = account.clients | {name: Credit(0, said.quanta[name]) for name in told - account.clients.keys()}
    for name, units in said.quanta.items():
        if name in clients and clients[name].quantum != units:
            clients[name] = Credit(clients[name].units, units)
    # What a client has in the account stays there for the holders at which it waits.
    asking, waits = {*said.active} - elsewhere | {*said.waits}, elsewhere | {*said.waits}
    # Rounds give nothing to a client at rest that has credit, and no renewal of others changes what it has.
    names = sorted({*told, *elsewhere, *(name for name, credit in clients.items() if credit.units <= 0)})
    # Where no two clients wait whom a round could treat unequally, a client that is active need not wait for one.
    asks, waiting = _mask(names, asking), _mask(names, waits or asking)
    balance, kept = _vector(names, said.balances), np.array([clients[name].units for name in names], dtype=np.int64)
    q = taken_back(NUMPY, kept, _vector(names, last_moved), serial, said.heard)
    pool = pooled(NUMPY, q, balance)
    quantum = np.array([clients[name].quantum for name in names], dtype=np.int64)
    known = np.ones(len(names), np.bool_)
    pool = topped_up(NUMPY, pool, waiting, asks, known, quantum)
    after = leased(NUMPY, pool, balance, asks, account.terms.lease)
    rest = left_over(NUMPY, pool, after)
    moved = {name: amount for name, amount in zip(names, (after - balance).tolist(), strict=True) if amount}
    has = {name: amount for name, amount in zip(names, after.tolist(), strict=True) if amount}
    holder = Holder(said.serial, moved, has, said.waits, now_ns + ttl_ns)
    clients |= {names[i]: Credit(int(rest[i]), int(quantum[i])) for i in np.flatnonzero(rest != kept)}
    if asking and not moved and clients == account.clients and account == found and knows(before, said, now_ns, ttl_ns):
        return found, Renewed({}, noted=False)
    given_up = said.holder in account.gone
    gone = tuple(name for name in account.gone if name != said.holder)
    holders = account.holders | {said.holder: holder}
    account = msgspec.structs.replace(account, clients=clients, holders=holders, gone=gone)
    return account, Renewed(moved, said.heard > serial and not given_up, given_up)


def knows(before: Holder | None, said: Renewal, now_ns: int, ttl_ns: int) -> bool:
    """Whether the account knows what a renewal says of its holder: clients that wait there, the last answer heard, and
    that it is there."""
    if before is None or (before.serial, before.waits) != (said.heard, said.waits):
        return False
    return before.until_ns - now_ns > ttl_ns * 3 // 4


def left(account: SharedAccount, holder: str) -> SharedAccount:
    """Return the account without a holder that has returned what it had, after a renewal at which nothing waited.

    What it owes stays owed.
    """
    there = account.holders.get(holder)
    if there is None:
        return account
    clients = dict(account.clients)
    for name, units in there.balances.items():
        credit = clients[name]
        clients[name] = Credit(credit.units + units, credit.quantum)
    holders = {name: each for name, each in account.holders.items() if name != holder}
    return msgspec.structs.replace(account, clients=clients, holders=holders)


def _of_those_there(account: SharedAccount, said: Renewal, now_ns: int, ttl_ns: int) -> SharedAccount:
    """Without holders whose time is over, and with the terms of the one that asks.  Raises `LeaseError`.

    None has more time than `ttl_ns` from now: else one that is gone would hold up the others for as long as the clock
    has jumped back.
    """
    last = now_ns + ttl_ns
    there = {
        name: each if each.until_ns <= last else msgspec.structs.replace(each, until_ns=last)
        for name, each in account.holders.items()
        if name == said.holder or each.until_ns > now_ns
    }
    others = len(there) - (said.holder in there)
    if others and said.terms != account.terms:
        raise LeaseError(
            f"{others} gateways share the account with lease = {account.terms.lease} and gateways = "
            f"{account.terms.holders}, and this one has {said.terms.lease} and {said.terms.holders}"
        )
    if others >= said.terms.holders:
        raise LeaseError(f"{others} gateways share the account already: raise `gateways` in each of them")
    gone = (*account.gone, *(name for name in account.holders if name not in there))[-GONE_MAX:]
    return msgspec.structs.replace(account, terms=said.terms, holders=there, gone=gone)


def _vector(names: list[str], amounts: Mapping[str, int]) -> Ints:
    return np.array([amounts.get(name, 0) for name in names], dtype=np.int64)


def _mask(names: list[str], chosen: Iterable[str]) -> Bools:
    there = set(chosen)
    return np.array([name in there for name in names], dtype=np.bool_)
