"""Priority bands: the higher band goes first, and each lower one has a guaranteed share of the charge.

Under strict priority a lower band waits for as long as higher ones have work.  Here each band but the highest has a
share of the charge that it gets while it waits, however much comes above it; the rest is for the highest band that
waits.

Rule.  Bands are in a row, the highest first, and s_k is the share of band k in per cent.  Between band k and those
below it: A_k, what those of them that wait are to have, is the sum of their shares, and g_k, what band k is to have
beside them, is s_k while a higher band waits, and all the rest, 100 - A_k, while none does.  `lag` says by how much
those below are behind A_k parts for every g_k parts of band k.  A charge x to band k raises it by A_k x while one of
those below waits, and a charge x to one of those below lowers it by g_k x.  The highest band goes that waits and need
not yield; band k yields while one below it waits and its lag is positive.  When none below waits, what they were behind
is forgotten; what they had beyond their share is kept up to a `floor`, so that a band is not punished for having used
what no other wanted.

Theorem: while one of those below band k waits, A_k W_k - g_k W_below <= A_k U + B + F, whatever bands and clients there
are: those below get their share of what they and band k are charged, less a constant (BAND-share, exact).  While band k
waits, those below get no more than that share and (A_k + g_k) U - 1 (BAND-first, exact).  Where shares change, since
bands come and go, each charge counts by those of its time, and U by the largest.

Within a band clients share as under the deficit gate, whose events are those of the band's own clients: its theorems
hold there as they are.  A client's band is the name of its outermost group; one without is in the lowest.

Source: this library.  A link-sharing scheduler (CBQ, HTB) has the same two aims with rates in place of shares.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import attrs
import msgspec
import numpy as np

from fairsched.model import theorem as th
from fairsched.model.algebra import (
    NO_GROUP,
    NO_SCORE,
    NUMPY,
    SCORE_MAX,
    Algebra,
    Bools,
    ExactVector,
    Ints,
    Mask,
    Point,
    Vector,
)
from fairsched.model.pricing import Rates, price
from fairsched.model.request import Client, Groups
from fairsched.model.serialization import Derived
from fairsched.policies import validators
from fairsched.policies.base import ChargeRule, Limits
from fairsched.policies.gates.authoring import Kernel
from fairsched.policies.gates.base import AdmissionTransaction, BoundedGate, BoundTerms, Returns
from fairsched.policies.gates.deficit import DeficitGate, DeficitState
from fairsched.policies.gates.interpreters import GateInterpreter, Part, interpreter
from fairsched.policies.vectors import column, grown

# --- statements -------------------------------------------------------------------------------------------------------
# All amounts between band k and those below it are scaled by the shares of their time: charges to band k by A_k,
# charges below it by g_k.  U is the most that may be charged to a band, or to all those below one, after a request was
# admitted: all of them share one memory.

_SOURCE = "this library"

BAND_RANGE = th.Theorem(
    "BAND-range",
    "-F <= lag_k <= A_k U + B for every band k",
    _SOURCE,
    (th.MEM_RESERVE, th.GATE_RESPECTED),
    bound="[-F, A_k U + B]",
)
BAND_SHARE = th.Theorem(
    "BAND-share",
    "one of those below band k waits all over [t1, t2): A_k W_k - g_k W_below <= A_k U + B + F",
    _SOURCE,
    (th.MEM_RESERVE, th.GATE_RESPECTED, th.BACKLOGGED_DURING),
    bound="A_k U + B + F",
)
BAND_FIRST = th.Theorem(
    "BAND-first",
    "band k waits all over [t1, t2), and a request of it may go: g_k W_below - A_k W_k <= (A_k + g_k) U - 1",
    _SOURCE,
    (th.MEM_RESERVE, th.GATE_RESPECTED, th.BACKLOGGED_DURING, th.NOTHING_REFUNDED, th.FLOOR_COVERS),
    bound="(A_k + g_k) U - 1",
)
BAND_LATE = th.Theorem(
    "BAND-late",
    "while a request of band k waits and may go, of which W_k are charged: s_k W_below <= A W_k + (A + 100) U - 1, and "
    "s_k W_j <= (100 - s_k) W_below_j + A_j U + F for each band j above it, for shares s, and A their sum below a band",
    "this library; BAND-share and BAND-first with every share of its time at its worst, and W_k of D-late",
    rests_on=("BAND-share", "BAND-first"),
)
BAND_GATE = th.Theorem(
    "BAND-gate",
    "the band that goes waits and need not yield, none above it is such a band, and one goes if one waits below which "
    "none waits",
    "theorems of the kernel itself: what GateRespected means",
)
BAND_COUNT = th.Theorem(
    "BAND-count",
    "a charge changes a lag by its gain less its cost, down to the floor; where none below waits, what those below "
    "were behind is forgotten, and no more than that",
    "theorems of the kernel itself: found necessary by a mutant",
)
BAND_REFUND = th.Theorem(
    "BAND-refund",
    "what is given back changes a lag by the cost less the gain, down to the floor",
    "theorems of the kernel itself: found necessary by a mutant",
)
BAND_WITHIN = th.Theorem(
    "BAND-within",
    "each band's deficits are those of a deficit gate that sees nothing but the events of the band's clients: between "
    "clients of one band D-weighted holds, with D-wc one of them is served when the band goes",
    "this library; in drawn worlds",
    (th.MEM_RESERVE, th.GATE_RESPECTED, th.QUANTUM_POSITIVE, th.BACKLOGGED_DURING),
    scope=th.Scope.TESTED,
    rests_on=("D-range", "D-weighted", "D-wc", "D-gate"),
)
BAND_INT64 = th.Theorem(
    "BAND-int64",
    "with gains, costs and the floor within 2^60, and lags within twice that: every intermediate is within 2^62",
    "this library",
    bound="2^62",
)
THEOREMS = (BAND_RANGE, BAND_SHARE, BAND_FIRST, BAND_LATE, BAND_GATE, BAND_COUNT, BAND_REFUND, BAND_WITHIN, BAND_INT64)


# --- kernel ---------------------------------------------------------------------------------------------------------
# Vectors over bands: lag, what those below are behind; rank, the higher band the larger; waiting, bands of which a
# request waits; ready, those of which one may go now; alone, those below which none waits; gain and cost, what a charge
# to a band itself and what one to those below it counts; floor, the most that is kept of what those below had beyond
# their share.


def may_go(o: Algebra, lag: Vector, waiting: Mask, alone: Mask) -> Mask:
    """Which bands wait and need not yield."""
    return waiting & (alone | (lag <= 0))


def choose(o: Algebra, lag: Vector, waiting: Mask, ready: Mask, alone: Mask, rank: Vector) -> Point:
    """The highest band that waits, need not yield and is ready."""
    return o.argmax(rank, may_go(o, lag, waiting, alone) & ready)


def charged(o: Algebra, lag: Vector, alone: Mask, gain: Vector, cost: Vector, floor: Vector) -> Vector:
    """A charge widens the lag of those below, or narrows it; without any of them waiting it is forgotten."""
    lag = o.where(alone, o.minimum(lag, 0), lag + gain)
    return o.maximum(lag - cost, 0 - floor)


def refunded(o: Algebra, lag: Vector, gain: Vector, cost: Vector, floor: Vector) -> Vector:
    """What was charged and never computed is given back."""
    return o.maximum(lag + cost - gain, 0 - floor)


# --- what other bands are charged while a request waits ---------------------------------------------------------------

PERCENT = 100


def below_most(own: int, charge_max: int, share: int, lower: int) -> int:
    """Return the most that bands below one are charged while that waits and is charged `own`."""
    return (lower * own + (lower + PERCENT) * charge_max - 1) // share


def above_most(below: int, charge_max: int, share: int, lower: int, floor: int) -> int:
    """Return the most that a band is charged while one below it of this share waits, and those below are charged
    so much."""
    return ((PERCENT - share) * below + lower * charge_max + floor) // share


# --- gate -----------------------------------------------------------------------------------------------------------


def parsed(text: str) -> tuple[tuple[str, int], ...]:
    """Return names and shares of bands from `name:percent,...`, the highest first.

    Raises `ValueError` where a name is missing or there twice, or shares are not positive and 100 together.
    """
    found = []
    for part in text.split(","):
        name, _, share = part.strip().partition(":")
        if not name or not (share.isascii() and share.isdigit()):
            raise ValueError(f"bands {text!r}: {part.strip()!r} is no name:percent")
        found.append((name, int(share)))
    names, shares = zip(*found, strict=True)
    if len(set(names)) < len(names):
        raise ValueError(f"bands {text!r}: each name stands once")
    if min(shares) < 1 or sum(shares) != PERCENT:
        raise ValueError(f"bands {text!r}: shares are at least 1 and {PERCENT} together, not {sum(shares)}")
    return tuple(found)


class Members(Derived, frozen=True, eq=False, gc=False):
    """Which clients are in each band, by the vector that says so: for each band the largest score that a client may
    have in it, NO_SCORE where it is in another."""

    band: Ints | None = None
    most: tuple[Ints, ...] = ()


def alone(waits: Ints) -> Bools:
    """Which bands have none below them that waits.

    >>> alone(np.array([0, 2, 0])).tolist()
    [False, True, True]
    """
    lone: Bools = _after(waits) == 0
    return lone


def _after(amounts: Ints) -> Ints:
    """The sum of the amounts of all bands below each."""
    sums: Ints = amounts[::-1].cumsum()[::-1] - amounts
    return sums


class Parts(msgspec.Struct, frozen=True, gc=False):
    """What charges count between each band and those below it while some of them wait: `of_lower` parts of what the
    band itself is charged, and `of_own` parts of what those below are; `gains` and `costs` of one unit to each band.
    `waiting` are the bands that wait, and so `bands` by number, `alone` those below which none does, and `unsteady`
    those that may have to yield."""

    waiting: Bools
    alone: Bools
    of_lower: Ints
    of_own: Ints
    gains: tuple[Ints, ...]
    costs: tuple[Ints, ...]
    bands: tuple[int, ...]
    unsteady: tuple[int, ...]

    def counts(self, charge: Ints) -> tuple[Ints, Ints]:
        """The gain and the cost of the kernel for charges to bands."""
        return self.of_lower * charge, self.of_own * _after(charge)

    def counts_of(self, band: int, amount: int) -> tuple[Ints, Ints]:
        """The same for a charge to one band."""
        return self.gains[band] * amount, self.costs[band] * amount


@lru_cache(maxsize=1_024)
def _parts(waiting: bytes, shares: tuple[int, ...]) -> Parts:
    """The parts of charges while these bands wait, each a byte."""
    mask, own = np.frombuffer(waiting, np.bool_), np.array(shares, dtype=np.int64)
    waits = mask.astype(np.int64)
    lone, of_lower = alone(waits), _after(waits * own)
    of_own: Ints = np.where(waits.cumsum() - waits > 0, own, PERCENT - of_lower)
    units = np.eye(len(own), dtype=np.int64)
    bands = tuple(np.flatnonzero(mask).tolist())
    unsteady = tuple([band for band in bands if not lone[band]])
    gains, costs = tuple([of_lower * unit for unit in units]), tuple([of_own * _after(unit) for unit in units])
    return Parts(mask, lone, of_lower, of_own, gains, costs, bands, unsteady)


class BandState(msgspec.Struct, frozen=True, gc=False):
    """Vectors over bands: `lag`, and how many clients wait in each; the `band` of each client; and the state of the
    deficit gate in each band, whose vectors are over all clients."""

    lag: Ints
    waits: Ints
    band: Ints
    inside: tuple[DeficitState, ...]
    members: Members = Members()

    def in_bands(self) -> Members:
        """Which clients are in each band.  O(1) where it is known, else O(clients) for each band."""
        if self.members.band is self.band:
            return self.members
        return Members(self.band, tuple([_most(self.band, place) for place in range(len(self.lag))]))


def _most(bands: Ints, band: int) -> Ints:
    """The largest score that each client may have in a band."""
    most: Ints = np.where(bands == band, SCORE_MAX, NO_SCORE)
    return most


class BandAdmissions(AdmissionTransaction):
    """One decision: the highest band that need not yield, and in it what its deficit gate chooses.

    Only bands that are asked look at their clients.
    """

    def __init__(self, gate: "BandGate", state: BandState, heads: Ints) -> None:
        self.gate = gate
        self.state = state
        self.lag = state.lag
        self.waits = state.waits
        self.parts = gate.parts(state.waits)
        self.owned = False
        self.heads = heads
        self.members = state.in_bands().most
        self.begun: dict[int, AdmissionTransaction] = {}
        self._asked = NO_GROUP

    def inside(self, band: int) -> AdmissionTransaction:
        """The decision of the gate in a band, of its own clients alone."""
        if band not in self.begun:
            heads = np.minimum(self.heads, self.members[band])
            self.begun[band] = self.gate.inner.begin(self.state.inside[band], heads)
        return self.begun[band]

    def choose(self, heads: Ints) -> int:
        """The client of the band that goes; of bands of which no client may go now, the next one is asked."""
        self.heads = heads
        parts, ready = self.parts, self.parts.waiting
        while True:
            band = int(choose(NUMPY, self.lag, parts.waiting, ready, parts.alone, self.gate.rank))
            client = NO_GROUP if band == NO_GROUP else self.inside(band).choose(heads)
            if band == NO_GROUP or client != NO_GROUP:
                self._asked = band
                return client
            ready = ready.copy()
            ready[band] = False

    def skip(self, group: int) -> None:
        self.inside(int(self.state.band[group])).skip(group)

    def withdraw(self, group: int) -> None:
        self.inside(int(self.state.band[group])).withdraw(group)

    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        band, parts = int(self.state.band[group]), self.parts
        inside = self.inside(band)
        if band != self._asked:
            # The client was chosen past others: then its own band was not asked, and its refill is.
            inside.choose(self.heads)
        inside.admit(group, input_tokens, kv_tokens, emptied)
        self._asked = NO_GROUP
        counts = parts.counts_of(band, price(input_tokens, self.gate.rates.input))
        self.lag = charged(NUMPY, self.lag, parts.alone, *counts, self.gate.floor)
        if emptied:
            self.waits = NUMPY.bump(self.waits, band, -1)
            self.parts = self.gate.parts(self.waits)
        self.owned = True

    def lacks_credit(self, client: int) -> bool:
        """Whether the client has no credit in its band, or its band yields."""
        band = int(self.state.band[client])
        allowed = may_go(NUMPY, self.lag, self.parts.waiting, self.parts.alone)
        return not allowed[band] or self.inside(band).lacks_credit(client)

    def stays(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        """The choice holds until a lag changes its sign, or the choice inside a band that was asked ends."""
        state, parts, spans = self.state, self.parts, list[int | None]()
        chosen = NO_GROUP if group == NO_GROUP else int(state.band[group])
        if chosen != NO_GROUP:
            mine = clients.index(group) if group in clients else len(clients)
            spans.append(self.inside(chosen).stays(group, clients[mine : mine + 1], counts[mine : mine + 1]))
            if parts.bands == (chosen,):
                return spans[0]
        who, each = column(clients), column(counts)
        bands = state.band[who]
        for band in parts.bands:
            own = bands == band
            if band != chosen and NUMPY.any(own):
                spans.append(self.inside(band).stays(NO_GROUP, who[own], each[own]))
        if parts.unsteady:
            decoded = np.zeros_like(self.lag)
            np.add.at(decoded, bands, each * self.gate.rates.output)
            gain, cost = parts.counts(decoded)
            changes, lags = (gain - cost).tolist(), self.lag.tolist()
        for band in parts.unsteady:
            lag, change = lags[band], changes[band]
            if lag > 0 > change:
                spans.append((lag - 1) // -change + 1)
            elif lag <= 0 < change:
                spans.append(-lag // change + 1)
        return min((span for span in spans if span is not None), default=None)


@attrs.frozen
class BandGate(BoundedGate[BandState]):
    """The higher band first, each lower one with its share; within a band, the deficit gate."""

    name: ClassVar[str] = "bands"
    withdraws: ClassVar[bool] = True
    charge_rule: ClassVar[ChargeRule] = "extend"
    state_type: ClassVar[Any] = BandState
    theorems: ClassVar[tuple[th.Theorem, ...]] = THEOREMS
    progress: ClassVar[tuple[str, ...]] = (BAND_GATE.id, BAND_WITHIN.id)
    gap_theorems: ClassVar[tuple[str, ...]] = (BAND_WITHIN.id,)
    returns: ClassVar[Returns] = {
        "return-debt": (BAND_WITHIN.id,),
        "return-credit": (BAND_WITHIN.id,),
        "return-lead": "between clients of one band only D-weighted is said",
    }

    rates: Rates = attrs.field(factory=Rates)
    quantum: int = attrs.field(default=4096, validator=validators.quantum)
    """Credit of one refill for weight 1 within a band, in cost units."""
    bands: str = attrs.field(default="interactive:70,standard:20,batch:10", validator=lambda _, __, text: parsed(text))
    """Names of bands, the highest first, and the share in per cent that each has of the charge at least while it
    waits."""
    kept: int = attrs.field(default=65_536, validator=validators.credit)
    """Most that is remembered of what lower bands had beyond their share, in cost units."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the bands, the highest first."""
        return tuple(name for name, _ in parsed(self.bands))

    @cached_property
    def shares(self) -> Ints:
        """The share of each band in per cent."""
        return np.array([share for _, share in parsed(self.bands)], dtype=np.int64)

    @cached_property
    def _shares(self) -> tuple[int, ...]:
        return tuple(self.shares.tolist())

    def parts(self, waits: Ints) -> Parts:
        """The parts of charges while so many clients wait in each band."""
        return _parts((waits > 0).tobytes(), self._shares)

    @cached_property
    def rank(self) -> Ints:
        """The order of bands: the higher band has the larger rank."""
        return -np.arange(len(self.shares))

    @cached_property
    def floor(self) -> Ints:
        """The most that is kept of what those below each band had beyond their share, as lags count it."""
        return np.full(len(self.shares), PERCENT * self.kept)

    @cached_property
    def inner(self) -> DeficitGate:
        """The gate within a band."""
        return DeficitGate(self.rates, self.quantum)

    def init(self) -> BandState:
        none, count = np.zeros(0, np.int64), len(self.shares)
        return BandState(np.zeros(count, np.int64), np.zeros(count, np.int64), none, (self.inner.init(),) * count)

    def begin(self, state: BandState, heads: Ints) -> AdmissionTransaction:
        return BandAdmissions(self, state, heads)

    def after(self, state: BandState, admissions: AdmissionTransaction) -> BandState:
        assert isinstance(admissions, BandAdmissions)
        if not admissions.owned:
            return state
        begun, inside = admissions.begun, list(state.inside)
        for band, its in begun.items():
            inside[band] = self.inner.after(inside[band], its)
        return BandState(admissions.lag, admissions.waits, state.band, tuple(inside), state.in_bands())

    def _grown(self, state: BandState, size: int) -> BandState:
        """The state with room for more clients, in the lowest band and of weight 1."""
        if size <= len(state.band):
            return state
        inside = tuple(self.inner.configured(own, size - 1, 1) for own in state.inside)
        return msgspec.structs.replace(state, band=grown(state.band, size, len(self.shares) - 1), inside=inside)

    def _within(self, state: BandState, band: int, changed: DeficitState) -> BandState:
        inside = tuple(changed if place == band else own for place, own in enumerate(state.inside))
        return msgspec.structs.replace(state, inside=inside)

    def joined(self, state: BandState, client: int, heads: Ints, waited: bool) -> BandState:
        state = self._grown(state, client + 1)
        band = int(state.band[client])
        state = self._within(state, band, self.inner.joined(state.inside[band], client, heads, waited))
        return state if waited else self._waiting(state, NUMPY.bump(state.waits, band, 1))

    def left(self, state: BandState, client: int) -> BandState:
        return self._waiting(state, NUMPY.bump(state.waits, int(state.band[client]), -1))

    def _waiting(self, state: BandState, waits: Ints) -> BandState:
        return msgspec.structs.replace(state, waits=waits, members=state.in_bands())

    def decoded(self, state: BandState, clients: tuple[int, ...], tokens: tuple[int, ...]) -> BandState:
        who, counts = column(clients), column(tokens)
        of_band, charge = state.band[who], np.zeros_like(state.lag)
        np.add.at(charge, of_band, counts * self.rates.output)
        inside = list(state.inside)
        for band in np.flatnonzero(charge).tolist():
            own = of_band == band
            inside[band] = self.inner.decoded(inside[band], who[own], counts[own])
        parts = self.parts(state.waits)
        lag = charged(NUMPY, state.lag, parts.alone, *parts.counts(charge), self.floor)
        return BandState(lag, state.waits, state.band, tuple(inside), state.in_bands())

    def settled(self, state: BandState, client: int, input_tokens: int, heads: Ints) -> BandState:
        band = int(state.band[client])
        parts = self.parts(state.waits)
        counts = parts.counts_of(band, price(abs(input_tokens), self.rates.input))
        if input_tokens >= 0:
            lag = charged(NUMPY, state.lag, parts.alone, *counts, self.floor)
        else:
            lag = refunded(NUMPY, state.lag, *counts, self.floor)
        state = self._within(state, band, self.inner.settled(state.inside[band], client, input_tokens, heads))
        return msgspec.structs.replace(state, lag=lag)

    def configured(self, state: BandState, client: int, weight: int, groups: Groups = ()) -> BandState:
        state = self._grown(state, client + 1)
        names, band = self.names, int(state.band[client])
        named = names.index(groups[0][0]) if groups and groups[0][0] in names else band
        if named != band:
            if state.inside[band].known[client]:
                raise ValueError(f"client {client} was served in band {names[band]} before it was in {names[named]}")
            state = msgspec.structs.replace(state, band=NUMPY.put(state.band, client, named))
        return self._within(state, named, self.inner.configured(state.inside[named], client, weight))

    def band_of(self, client: Client) -> int:
        """The band of a client by its outermost group, the lowest without one."""
        named = client.place[0][0] if client.place else ""
        return self.names.index(named) if named in self.names else len(self.names) - 1

    def charge_max(self, limits: Limits) -> int:
        """U: most that clients of a band can be charged after the gate let them in, in cost units."""
        return self.inner.charge_max(limits)

    def late_cost(self, band: int, own: int, limits: Limits) -> int | None:
        """BAND-late: the most that clients of other bands are charged while a request of this band waits, of which
        clients are charged `own`.  None where less is kept than the lower bands may have in flight."""
        shares, charge_max = self._shares, self.charge_max(limits)
        lower, share = sum(shares[band + 1 :]), shares[band]
        if lower and self.kept < charge_max:
            return None
        total = own + (below_most(own, charge_max, share, lower) if lower else 0)
        for above in reversed(range(band)):
            lower = sum(shares[above + 1 :])
            total += above_most(total, charge_max, share, lower, PERCENT * self.kept)
        return total - own

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """D-weighted for clients of one band (BAND-within), None for others."""
        return self.inner.service_gap_bound(clients, limits) if len(set(map(self.band_of, clients))) == 1 else None

    def bound_terms(self, clients: tuple[Client, ...], limits: Limits) -> tuple[BoundTerms, ...]:
        return self.inner.bound_terms(clients, limits)

    def check(self, state: BandState) -> None:
        for own in state.inside:
            self.inner.check(own)
            # All vectors over clients speak of the same ones.
            assert len(own.q) == len(state.band)
        # A client is known in its own band only.
        for band, own in enumerate(state.inside):
            assert bool((state.band[own.known] == band).all())
        # What is known of bands is what the vectors say.
        assert all(bool((most == _most(state.band, band)).all()) for band, most in enumerate(state.in_bands().most))
        # No lag is below its floor, and no fewer clients wait than none.
        assert bool((state.lag >= -self.floor).all())
        assert bool((state.waits >= 0).all())


# --- the rule on exact integers, for monitors -------------------------------------------------------------------------


class Bands(GateInterpreter):
    """A lag a band, the band of each client, which clients wait, and in each band the deficits of its clients."""

    def __init__(self, gate: BandGate) -> None:
        self.gate = gate
        self.names = gate.names
        self.shares = gate.shares.tolist()
        self.rank = ExactVector([-place for place in range(len(self.shares))])
        self.floor = ExactVector([PERCENT * gate.kept for _ in self.shares])
        self.lag = ExactVector([0] * len(self.shares))
        self.band: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.inside = [self._deficits() for _ in self.shares]

    def _deficits(self) -> GateInterpreter:
        found = interpreter(self.gate.inner)
        assert found is not None
        return found

    def of(self, client: int) -> int:
        """The client's band, the lowest unless it was said."""
        return self.band.get(client, len(self.shares) - 1)

    def waits(self) -> ExactVector:
        """How many clients wait in each band."""
        return ExactVector([sum(self.of(client) == band for client in self.waiting) for band in range(len(self.lag))])

    def _seen(self) -> dict[str, ExactVector]:
        """Which bands wait, and which of them have none below that waits."""
        waits = self.waits()
        return {
            "waiting": ExactVector([count > 0 for count in waits]),
            "alone": ExactVector([not sum(waits[place + 1 :]) for place in range(len(waits))]),
        }

    def _count(self, kernel: Kernel, amounts: Mapping[int, int]) -> None:
        """Let a kernel count what bands are charged, or given back."""
        waits, gains, costs = self.waits(), [], []
        for place, share in enumerate(self.shares):
            lower = range(place + 1, len(self.shares))
            theirs = sum(self.shares[band] for band in lower if waits[band])
            own = share if any(waits[:place]) else PERCENT - theirs
            gains.append(theirs * amounts.get(place, 0))
            costs.append(own * sum(amounts.get(band, 0) for band in lower))
        gain, cost = ExactVector(gains), ExactVector(costs)
        self.lag = self.call(kernel, **self._seen(), gain=gain, cost=cost)

    def joined(self, client: int, waiting: Collection[int]) -> None:
        self.inside[self.of(client)].joined(client, waiting)
        self.waiting.add(client)

    def left(self, client: int) -> None:
        self.waiting.discard(client)

    def choose(self, client: int, waiting: Collection[int], skips: bool) -> int:
        own = self.of(client)
        # Where requests may be passed over, those of all other bands may have been.
        ready = ExactVector([not skips or band == own for band in range(len(self.lag))])
        chosen = self.call(choose, **self._seen(), ready=ready)
        there = sorted(each for each in waiting if self.of(each) == chosen)
        if chosen != own:
            return there[0] if there else NO_GROUP
        return self.inside[own].choose(client, there, skips)

    def admitted(self, client: int, tokens: int, waiting: Collection[int], emptied: bool, kv_tokens: int) -> None:
        self.inside[self.of(client)].admitted(client, tokens, waiting, emptied, kv_tokens)
        self._count(charged, {self.of(client): price(tokens, self.gate.rates.input)})
        if emptied:
            self.waiting.discard(client)

    def decoded(self, clients: Iterable[int], tokens: Iterable[int]) -> None:
        amounts: dict[int, int] = {}
        for client, count in zip(clients, tokens, strict=True):
            own = self.of(client)
            self.inside[own].decoded([client], [count])
            amounts[own] = amounts.get(own, 0) + price(count, self.gate.rates.output)
        self._count(charged, amounts)

    def settled(self, client: int, tokens: int, waiting: Collection[int]) -> None:
        own = self.of(client)
        self.inside[own].settled(client, tokens, waiting)
        amounts = {own: price(abs(tokens), self.gate.rates.input)}
        self._count(charged if tokens >= 0 else refunded, amounts)

    def configured(self, client: int, weight: int, groups: Groups) -> None:
        if groups and groups[0][0] in self.names:
            self.band[client] = self.names.index(groups[0][0])
        self.inside[self.of(client)].configured(client, weight, groups)

    def parts(self, state: Any) -> Iterator[Part]:
        yield "the lag of the bands below the band with the number", state.lag.tolist(), self.lag, 0
        yield "the number of waiting clients of the band with the number", state.waits.tolist(), self.waits(), 0
        made = [self.of(client) for client in range(len(state.band))]
        yield "the band", state.band.tolist(), made, len(self.shares) - 1
        for own, kept in zip(self.inside, state.inside, strict=True):
            yield from own.parts(kept)


interpreter.register(BandGate, Bands)
