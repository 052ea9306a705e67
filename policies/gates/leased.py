"""Credit of one account that several gates spend: each has some of it on lease, and none asks another.

Several gateways before the same servers each see a part of the calls.  With a gate each they turn weights of 4:1 into
1:1, since a client has a share at every one of them.  Here one account has the credit of every client, and each
*holder* (a gateway) serves a client on what it holds of that client's credit: its *balance*.

Rule.  A holder admits a request of a client whose balance is positive, charges balances as the deficit gate does, and
never refills.  When a client waits there without balance it *renews*: all balances, also debts, go back to the account;
when no client that waits at any holder has credit there, the account gives every client without credit a round, as the
deficit gate does; and the holder gets back of each client that waits there what the account has, at most `lease`, and
of each client what it owes.  So credit in the account is negative only for what holders owed as they left.

Theorem: two clients that wait, each at any holder, differ in charged service by at most 2(Q + n (U - 1) + (n - 1) S)
for n holders with leases of at most S, each of which can charge a client at most U after it let it in (L-gap).  Its
statement, and what each fault costs, are in `theorems`.

Source: this library.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import attrs
import msgspec
import numpy as np

from fairsched.model import theorem as th
from fairsched.model.algebra import EXACT, NO_GROUP, NUMPY, Algebra, Bools, ExactVector, Ints, Mask, Scalar, Vector
from fairsched.model.request import Client
from fairsched.policies.base import Limits
from fairsched.policies.gates.authoring import Kernel
from fairsched.policies.gates.base import AnyGate, Returns
from fairsched.policies.gates.deficit import (
    DeficitGate,
    DeficitState,
    credit_lasts,
    gap_cost,
    goes_first,
    refill_due,
    weighted_gap_cost,
)
from fairsched.policies.gates.deficit import refill_rounds as rounds
from fairsched.policies.gates.hierarchical import HierarchicalGate, HierarchicalState, TreeOfDeficits
from fairsched.policies.gates.interpreters import DeclaredRules, interpreter
from fairsched.policies.validators import positive, quantum

# --- statements -------------------------------------------------------------------------------------------------------
# There are n holders, each with at most S of a client's credit on lease; q is what the account has of a client, d_h the
# balance at holder h, R_h what h may still charge it, U_h the most that h can charge it after h let it in, U - 1 the
# sum of all (U_h - 1), and B the sum of what each h gives back at one time.  T = q + the sum of d_h is the client's
# true deficit.  M is credit that faults made for a client since the interval began, and X credit that they took from
# it, both 0 without faults; M0 and X0 are the same for all time before.  Proved in
# `verify.proofs.gates.leases` for every number of clients and holders.  All of it is this library's.

_NEW = "this library"
_KEPT = (th.MEM_RESERVE, th.CHARGES_AT_LEAST_ONE, th.GATE_RESPECTED)
_WAITS = (th.EQUAL_QUANTA, th.BACKLOGGED_DURING, th.WAITS_SAID)
_RESTS = ("L-most", "L-least", "L-renewal", "L-again")

L_RENEWAL = th.Theorem(
    "L-renewal",
    "a renewal is three things one after the other: all balances go back to the account but for what is owed beyond "
    "its credit, rounds are given until none is due, as the deficit gate gives them, and clients that wait there are "
    "lent what there is, at most S each",
    f"{_NEW}: what production computes at once is the events of the other theorems",
)
L_BALANCE = th.Theorem(
    "L-balance",
    "each holder's balance: 1 - U_h <= d_h - R_h and d_h + K_h <= S + B_h; so a holder that ends without leaving makes "
    "at most U_h - 1 for a client or takes at most S + B_h",
    _NEW,
    _KEPT,
    bound="[1 - U_h, S + B_h]",
)
L_MOST = th.Theorem(
    "L-most",
    "T + K <= Q + (n - 1) S + B + M: a client's true deficit, with M that faults made",
    _NEW,
    (th.QUANTUM_POSITIVE,),
    bound="Q + (n - 1) S + B + M",
    rests_on=("L-balance",),
)
L_DEBT = th.Theorem(
    "L-debt",
    "q + the sum of d_h - R_h + U_h - 1 over the holders at which the client has no credit, nor would after refunds, "
    "is -X or more, with X that lost writes took",
    _NEW,
    (th.MEM_RESERVE, th.GATE_RESPECTED, th.QUANTUM_POSITIVE),
    bound="-X",
    rests_on=("L-balance",),
)
L_LEAST = th.Theorem(
    "L-least",
    "T - R >= 1 - U - X: a client's true deficit; holders that come and go change nothing of it, since what they owe "
    "stays with the account",
    _NEW,
    (),
    bound="1 - U - X",
    rests_on=("L-balance", "L-debt"),
)
L_ACCOUNT = th.Theorem(
    "L-account",
    "of an account that lost writes k times, to any versions that it ever had: "
    "-V <= q <= Q + (n - 1) S + B + k (n S + B), where V is what holders owed as they left; so the first loss makes or "
    "takes at most Q + (n - 1) S + B + V of a client's credit",
    _NEW,
    (th.QUANTUM_POSITIVE,),
    bound="[-V, Q + (n - 1) S + B + k (n S + B)]",
    rests_on=("L-balance",),
)
L_GAP = th.Theorem(
    "L-gap",
    "f and g backlogged over [t1, t2), each at any holder: |W_f - W_g| <= 2(Q + U + (n - 1) S - 1) + B_f + B_g, U - 1 "
    "the sum of (U_h - 1)",
    f"{_NEW}; the constant is that of D2-stale with S = (n - 1) S, though a lease may also hide credit, which lets a "
    "refill come early",
    _WAITS,
    bound="(Q + U_f + (n - 1) S - 1) + (Q + U_g + (n - 1) S - 1) + B_f + B_g",
    bound_cost=gap_cost,
    rests_on=_RESTS,
)
L_LAG = th.Theorem(
    "L-lag",
    "f backlogged over [t1, t2) at any holder, g any client: W_f >= W_g - 2(Q + U + (n - 1) S - 1) - B_f - B_g; so "
    "while f waits and is not let in, no other client gets more than that beyond what runs of f",
    _NEW,
    (th.QUANTUM_POSITIVE, *_WAITS),
    bound="(Q + U_f + (n - 1) S - 1) + (Q + U_g + (n - 1) S - 1) + B_f + B_g",
    bound_cost=gap_cost,
    rests_on=_RESTS,
)
L_WEIGHTED = th.Theorem(
    "L-weighted",
    "f and g backlogged over [t1, t2), each at any holder, whatever their quanta: |Q_g W_f - Q_f W_g| <= "
    "Q_g (Q_f + U_f + (n - 1) S - 1 + B_f) + Q_f (Q_g + U_g + (n - 1) S - 1 + B_g)",
    _NEW,
    (th.QUANTUM_POSITIVE, th.BACKLOGGED_DURING, th.WAITS_SAID),
    bound="Q_g (Q_f + U_f + (n - 1) S - 1 + B_f) + Q_f (Q_g + U_g + (n - 1) S - 1 + B_g)",
    bound_cost=weighted_gap_cost,
    per_quantum=True,
    rests_on=_RESTS,
)
L_PROGRESS = th.Theorem(
    "L-progress",
    "after a renewal of a holder at which clients wait, one that waits there has credit there, or one that waits only "
    "at others has credit in the account; each that waits there has credit there if the account had some, and none has "
    "that waits only at others; and a client that owes there has no credit in the account",
    f"{_NEW}; a client in credit that waits where there is no room holds up the refill of others, as with one deficit "
    "for all workers (D2-steal)",
)
L_AGAIN = th.Theorem(
    "L-again",
    "renewals and answers that are lost, late, out of order or come any number of times change no client's T: what one "
    "moves to a balance is gone from the account once, and comes back once if its answer was not heard",
    f"{_NEW}; as long as the account knows the holder and has lost no write",
)
L_FAULTS = th.Theorem(
    "L-faults",
    "f and g backlogged over [t1, t2), each at any holder, with any faults: "
    "W_f - W_g <= 2(Q + U + (n - 1) S - 1) + B_f + B_g + M_f + X_g + (M0 + X0)_f + (M0 + X0)_g, and so of g and f",
    _NEW,
    _WAITS,
    bound="(Q + U_f + (n - 1) S - 1) + (Q + U_g + (n - 1) S - 1) + B_f + B_g + M_f + X_g + M0 + X0 of both",
    rests_on=_RESTS,
)
L_INT64 = th.Theorem(
    "L-int64",
    "with quanta, leases, balances and credit in the account of at most 2^60, every number that a renewal computes is "
    "within 2^62",
    f"{_NEW}: proofs are about integers, production about int64",
    bound="2^62",
)

LEASE_THEOREMS = (
    *(L_BALANCE, L_MOST, L_DEBT, L_LEAST, L_ACCOUNT, L_GAP, L_LAG, L_WEIGHTED),
    *(L_PROGRESS, L_RENEWAL, L_AGAIN, L_FAULTS, L_INT64),
)
"""In the order of the report."""


# --- kernel ---------------------------------------------------------------------------------------------------------
# Vectors over clients: q the account's credit, balance what one holder has of it (a debt is negative), waiting which
# wait at any holder, asks which wait at the one that renews, known which were ever seen, quantum credit a round; most,
# what a holder may have on lease of a client.


def pooled(o: Algebra, q: Vector, balance: Vector) -> Vector:
    """The account with all that a holder has of it, and owes."""
    return q + balance


def topped_up(o: Algebra, pool: Vector, waiting: Mask, asks: Mask, known: Mask, quantum: Vector) -> Vector:
    """The account after the rounds that are due, if the holder that renews has clients that wait.

    None is while a client that waits has credit in the account.
    """
    return rounds(o, pool, waiting & o.any(asks), known, quantum)


def leased(o: Algebra, pool: Vector, balance: Vector, asks: Mask, most: Scalar) -> Vector:
    """A holder's new balances: of clients that wait there at most `most`, and of each what it owes.

    It takes over no debt that another left to the account: else those who come and go would hide what they owe.
    """
    return o.maximum(o.minimum(pool, o.where(asks, most, 0)), o.minimum(balance, 0))


def left_over(o: Algebra, pool: Vector, balance: Vector) -> Vector:
    """The account without what a holder has of it."""
    return pool - balance


def is_new(o: Algebra, serial: Scalar, said: Scalar) -> Scalar:
    """Whether a renewal is none that the account has had, where `serial` was the holder's last."""
    return said > serial


def taken_back(o: Algebra, q: Vector, moved: Vector, serial: Scalar, heard: Scalar) -> Vector:
    """The account, with what the holder's last renewal moved unless the holder heard its answer."""
    return q + o.where(serial > heard, moved, 0)


# --- gate -----------------------------------------------------------------------------------------------------------


class Balances:
    """What gates on lease do beside their own: `tops` are the entries of `state.q` that come from the account, one for
    each client; of several clients with one entry the first by number names it there."""

    def tops(self, state: Any) -> Ints:
        """Return those entries."""
        raise NotImplementedError

    def balance(self, state: Any, client: int) -> int:
        """Return what a client, or the node that it is in, has on lease, in cost units; negative where it owes."""
        tops = self.tops(state)
        return int(state.q[tops[client]]) if client < len(tops) else 0

    def balances(self, state: Any) -> dict[int, int]:
        """Return the balances of those that have one."""
        tops, firsts = np.unique(self.tops(state), return_index=True)
        found = zip(firsts.tolist(), state.q[tops].tolist(), strict=True)
        return {client: units for client, units in found if units}

    def lent(self, state: Any, clients: tuple[int, ...], units: tuple[int, ...]) -> Any:
        """Return the state after so many cost units were moved to balances from the account, or back (negative)."""
        amounts = np.zeros_like(state.q)
        amounts[self.tops(state)[list(clients)]] = units
        return msgspec.structs.replace(state, q=pooled(NUMPY, state.q, amounts))

    def rounds(self, state: Any, waiting: list[int]) -> dict[int, int]:
        """Return what each would get in the rounds that are due where these clients wait, if the account were its
        own."""
        tops, firsts = np.unique(self.tops(state), return_index=True)
        q, known, quanta = state.q[tops], state.known[tops], state.quantum[tops]
        queued = np.isin(tops, self.tops(state)[waiting])
        if not refill_due(NUMPY, q, queued):
            return {}
        given = rounds(NUMPY, q, queued, known, quanta) - q
        return {int(firsts[i]): int(given[i]) for i in np.flatnonzero(given)}


@attrs.frozen
class LeasedGate(Balances, DeficitGate):
    """The deficit gate of a holder.  Its state is the deficit gate's, whose deficits are the holder's balances."""

    name: ClassVar[str] = "leased-deficit"
    # What is on lease is all that a holder has: it gives no client credit.
    refill_q = None  # type: ignore[assignment]
    fast: ClassVar[Mapping[str, Kernel]] = {"choose": goes_first, "stays": credit_lasts}

    theorems: ClassVar[tuple[th.Theorem, ...]] = LEASE_THEOREMS
    progress: ClassVar[tuple[str, ...]] = (L_PROGRESS.id,)
    gap_theorems: ClassVar[tuple[str, ...]] = (L_GAP.id, L_WEIGHTED.id)
    returns: ClassVar[Returns] = {
        "return-debt": "no theorem follows one client's charges; its deficit stays in its range (L-least)",
        "return-credit": "no theorem follows one client's charges; its deficit stays in its range (L-most)",
        "return-lead": (L_LAG.id,),
    }

    lease: int = attrs.field(default=4096, validator=quantum)
    """Most credit of a client that a holder has on lease, in cost units."""
    holders: int = attrs.field(default=2, validator=positive)
    """How many there may be."""

    def tops(self, state: DeficitState) -> Ints:
        """Return what the account knows of: each client by itself."""
        return np.arange(len(state.q))

    @property
    def unshared(self) -> DeficitGate:
        """The gate that gives credit by itself."""
        return DeficitGate(**{field.name: getattr(self, field.name) for field in attrs.fields(DeficitGate)})

    def charge_max(self, limits: Limits) -> int:
        """U of all holders, leases included: most that one client can be charged after its true credit was above
        zero, and what the other holders may have of it when it gets a round."""
        return self.holders * (super().charge_max(limits) - 1) + (self.holders - 1) * self.lease + 1


class LeasedDeficits(DeclaredRules):
    """The gate's rules for a monitor (`policies.gates.interpreters`): a balance a client, and no refill."""

    def lent(self, clients: tuple[int, ...], units: tuple[int, ...]) -> None:
        """So many cost units came from the account, or went back."""
        self.meet(max(clients, default=NO_GROUP))
        self.put("q", clients, self.on(clients, pooled, balance=ExactVector(units)))


interpreter.register(LeasedGate, LeasedDeficits)


# --- the account as a value -------------------------------------------------------------------------------------------
# Clients are known by name, since each holder numbers its own.  A holder is known from its first renewal until it
# leaves, or until it has not renewed for as long as the account waits for it.  One that was given up and is there all
# the same comes back with its balances, and nothing is lost; of one that is gone, both credit and debts are.  A renewal
# whose answer was lost is taken back by the next one, which says what the holder heard last, and one that comes again
# changes nothing (L-again).  For that a holder takes an answer only to the last renewal that it said, and has a name
# that no other has, nor had before it was started anew.
#
# What faults cost: a holder that ends without leaving takes at most S of a client's credit with it, or at most U - 1 of
# its debt (L-balance).  An account that lost its last writes, or all of them, is wrong by at most what an account of n
# holders can have of a client, Q + (n - 1) S where nothing is given back (L-account): what is charged is at the
# holders. The gap of two clients grows by what one was given and what the other lost (L-faults).

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


# --- the hierarchical gate of a holder --------------------------------------------------------------------------------
# The hierarchical gate of one of several holders: what an organisation has is on lease, what is in it is shared here.
#
# The nodes below the root (organisations, clients in none, or clients whose programs have accounts) have balances that
# come from the account as those of the clients of a `LeasedGate` do; every family below them is refilled here, as the
# hierarchical gate refills it.
#
# A call is let in where its client and all its groups have credit (H-gate), and what it costs is charged to each of
# them (H-refund says the same of what is given back).  So the nodes below the root are the clients of the lease
# theorems, and the gap of two of them over all holders has the bound of L-gap.  Two siblings further down are held to
# H-siblings, at each holder by itself: one that is served at two holders gets a share of its group's at each of them.


@attrs.frozen
class LeasedTreeGate(Balances, HierarchicalGate):
    """The hierarchical gate of a holder.  In the account a node below the root stands for all clients in it: of these
    the first by number names it."""

    name: ClassVar[str] = "leased-hierarchical"
    theorems: ClassVar[tuple[th.Theorem, ...]] = (*HierarchicalGate.theorems, *LEASE_THEOREMS)
    progress: ClassVar[tuple[str, ...]] = (*HierarchicalGate.progress, L_PROGRESS.id)
    refills_top: ClassVar[bool] = False

    lease: int = attrs.field(default=4096, validator=quantum)
    """Most credit of a node below the root that a holder has on lease, in cost units."""
    holders: int = attrs.field(default=2, validator=positive)
    """How many there may be."""

    @property
    def top(self) -> LeasedGate:
        """The gate that works among the nodes below the root."""
        return LeasedGate(self.rates, self.quantum, lease=self.lease, holders=self.holders)

    @property
    def unshared(self) -> HierarchicalGate:
        """The gate that gives credit by itself."""
        return HierarchicalGate(self.rates, self.quantum, self.in_flight_cap_tokens)

    def tops(self, state: HierarchicalState) -> Ints:
        """Return the node below the root that each client is, or is in."""
        tops: Ints = np.where(state.outer > 0, state.outer, np.where(state.inner > 0, state.inner, state.node))
        return tops

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """L-weighted for clients in no group, H-weighted for siblings in one, at one holder."""
        if any(client.place for client in clients):
            return super().service_gap_bound(clients, limits)
        return self.top.service_gap_bound(clients, limits)

    def group_gap_bound(self, groups: tuple[Client, ...], limits: Limits) -> int | None:
        return self.top.service_gap_bound(groups, limits)


class LeasedTree(TreeOfDeficits):
    """The gate's rules for a monitor (`policies.gates.interpreters`)."""

    def lent(self, clients: tuple[int, ...], units: tuple[int, ...]) -> None:
        """So many cost units came from the account, or went back."""
        for client, amount in zip(clients, units, strict=True):
            top = self._path(client)[-1]
            [self.q[top]] = pooled(EXACT, ExactVector([self.q[top]]), ExactVector([amount]))


interpreter.register(LeasedTreeGate, LeasedTree)


AnyLeasedGate = LeasedGate | LeasedTreeGate


def on_lease(gate: AnyGate, lease: int, holders: int) -> AnyLeasedGate:
    """Return the gate of one of so many holders, with leases of at most so many cost units of the credit that the gate
    would give by itself.  Raises `ValueError` for a gate whose credit cannot be on lease."""
    if getattr(gate, "in_flight_cap_tokens", None) is None:
        if type(gate) is DeficitGate and not gate.cached_percent:
            return LeasedGate(gate.rates, gate.quantum, lease=lease, holders=holders)
        if type(gate) is HierarchicalGate:
            return LeasedTreeGate(gate.rates, gate.quantum, lease=lease, holders=holders)
    raise ValueError('what is shared is the credit of a deficit gate: policy = "fcfs+deficit" or "fcfs+hierarchical"')
