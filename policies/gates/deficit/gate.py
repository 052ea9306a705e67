"""The deficit gate: a client that is served pays, and only clients with credit are served (DLPM's gate).

Paper: "Locality-aware Fair Scheduling in LLM Serving" (DLPM and D2LPM).  Its listings were not available to us: rules
and constants are reconstructed from its proofs, and where its printed rule breaks its theorem (credit is reset when a
client comes back) ours differs and the printed one is kept as the variant `rejoin="reset"`.

Theorem: between two clients of equal weight that both wait, charged service differs by at most 2(Q + U - 1) over any
interval, whatever the order, where U is the most that one client can be charged after it was let in (D-4.1, exact).
Assumptions and all other statements are in `theorems`.

State: one deficit q a client.  An admission subtracts the extend tokens, a decode step the decoded tokens; when no
waiting client has credit, each client without credit gets a quantum, as often as it takes to make one eligible.  A
refill is part of the admission that it allows: a decision that admits nothing changes nothing.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import attrs
import msgspec
import numpy as np

from fairsched.model.algebra import (
    NO_GROUP,
    NUMPY,
    NUMPY_OWNED,
    Algebra,
    Bools,
    Ints,
    Mask,
    Point,
    Scalar,
    Vector,
)
from fairsched.model.pricing import Rates, charged_tokens, multipliers, price
from fairsched.model.request import Client, Groups
from fairsched.model.theorem import CAPPED, CAPPED_TOGETHER, REJOIN_KEEPS_DEBT, Assumption, Theorem
from fairsched.policies import validators
from fairsched.policies.base import ChargeRule, ChargingRule, Limits
from fairsched.policies.gates.base import AdmissionTransaction, BoundedGate, BoundTerms
from fairsched.policies.gates.deficit.theorems import D_CAP, D_WEIGHTED, THEOREMS
from fairsched.policies.validators import one_of, percent, positive
from fairsched.policies.vectors import column, common, each, grown, in_queue, least, with_room

# --- kernel ---------------------------------------------------------------------------------------------------------
# Vectors over clients: q deficits, queued which wait, known which were ever seen, quantum credit a round, score the
# order's best waiting request, ready whose head may go now (cap not reached, prefix not being computed).


def in_credit(o: Algebra, q: Vector, queued: Mask) -> Mask:
    """Which clients wait and may be served."""
    return queued & (q > 0)


def refill_due(o: Algebra, q: Vector, queued: Mask) -> Scalar:
    """Clients wait, and none of them has credit (rule 2: clients that only run do not count)."""
    return o.any(queued) & o.none(in_credit(o, q, queued))


def refill(o: Algebra, q: Vector, queued: Mask, known: Mask, quantum: Vector) -> Vector:
    """One round: every known client without credit is topped up once, when a refill is due (rule 3)."""
    due = refill_due(o, q, queued)
    return o.where(known & (q <= 0) & due, q + quantum, q)


def choose(o: Algebra, q: Vector, queued: Mask, ready: Mask, score: Vector) -> Point:
    """The client of best score among those that wait, have credit and are ready."""
    return o.argmax(score, in_credit(o, q, queued) & ready)


def admit(o: Algebra, q: Vector, p: Point, charge: Scalar) -> Vector:
    """The chosen client pays for the extend tokens of its request."""
    return o.bump(q, p, -charge)


def decode(o: Algebra, q: Vector, charge: Vector) -> Vector:
    """Each client pays for the tokens decoded for it."""
    return q - charge


def correct(o: Algebra, q: Vector, p: Point, charge: Scalar) -> Vector:
    """The engine computed more at an admission than was planned: the difference is charged."""
    return o.bump(q, p, -charge)


def refund(o: Algebra, q: Vector, p: Point, amount: Scalar) -> Vector:
    """What was charged and never computed is given back, all of it: others were refilled while it was owed."""
    return o.bump(q, p, amount)


def reconfigure(o: Algebra, q: Vector, quantum: Vector) -> Vector:
    """Quanta are others now: credit above the new quantum is cut to it, debt stays."""
    return o.minimum(q, quantum)


def under_cap(o: Algebra, in_flight: Vector, p: Point, kv_tokens: Scalar, cap: Scalar) -> Scalar:
    """Whether so many KV tokens more may be promised to the client."""
    return o.pick(in_flight, p, 0) + kv_tokens <= cap


def lone(o: Algebra, queued: Mask, p: Point) -> Scalar:
    """Whether no other client waits."""
    return o.none(o.put(queued, p, False))


def may_hold(o: Algebra, in_flight: Vector, queued: Mask, p: Point, kv_tokens: Scalar, cap: Scalar) -> Scalar:
    """Under an elastic cap: whether so many KV tokens more fit under it, or nothing of the client is in flight, or no
    other client waits."""
    fits = under_cap(o, in_flight, p, kv_tokens, cap)
    return fits | (o.pick(in_flight, p, 0) <= 0) | lone(o, queued, p)


def reserve(o: Algebra, in_flight: Vector, p: Point, kv_tokens: Scalar) -> Vector:
    """KV is promised to a request that enters, or given back by one that leaves (negative)."""
    return o.bump(in_flight, p, kv_tokens)


def rejoin_printed(o: Algebra, q: Vector, p: Point) -> Vector:
    """The paper's rule, as a variant: a client that comes back after its queue was empty starts at zero."""
    return o.put(q, p, 0)


# --- closed form beside the kernel ----------------------------------------------------------------------------------


def refill_rounds(o: Algebra, q: Vector, queued: Mask, known: Mask, quantum: Vector) -> Vector:
    """As many rounds of `refill` as it takes to make a client eligible, at once; at least one is due.

    A client with q <= 0 needs -q // Q + 1 rounds to have credit and gets none beyond that; the fewest that a waiting
    client needs are given.  Equal to iterating the kernel until no refill is due, which `verify` proves.
    """
    needed = o.where(known & (q <= 0), -q // quantum + 1, 0)
    rounds = o.pick(needed, o.argmin(needed, queued), 0)
    return q + o.minimum(needed, rounds) * quantum


def goes_first(o: Algebra, q: Vector, ready: Mask, p: Point) -> Scalar:
    """Whether p, the client of best score of all that wait, may go at once: it is ready and has credit.  Then no refill
    is due, and it is the one that `choose` names, which `verify` proves."""
    return o.pick(ready, p, False) & (o.pick(q, p, 0) > 0)


# --- what requests are likely to use ----------------------------------------------------------------------------------
# An elastic cap counts of a declared output what the client's requests had of late.  `usual` rises to each larger
# output at once, and falls by a sixteenth of the distance with each smaller one.

_MEMORY = 16


def likely(usual: int, output_tokens: int) -> int:
    """Return how many of so many output tokens are counted; all where nothing is known (0)."""
    return min(output_tokens, usual) if usual else output_tokens


def learned(usual: int, output_tokens: int) -> int:
    """Return what is usual after one more request, which had so many output tokens.

    >>> learned(0, 40), learned(40, 8), learned(38, 900)
    (40, 38, 900)
    """
    return max(output_tokens, usual - (usual - output_tokens) // _MEMORY)


# --- gate -----------------------------------------------------------------------------------------------------------

CapHolds = Literal["always", "contended"]


_NONE = np.zeros(0, np.int64)


def credit_lasts(credit: Scalar, rate: int, client: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
    """For how many decode steps a client has credit left, at so much a token; None if nothing of it decodes."""
    if client not in clients:
        return None
    return (int(credit) - 1) // (rate * counts[clients.index(client)]) + 1


class DeficitState(msgspec.Struct, frozen=True, gc=False):
    """Vectors over clients: deficit `q`, `known` (seen before), `quantum`, `in_flight`, the KV tokens promised to
    running requests (kept only under a cap), and `usual`, the outputs that are likely (as far as an elastic cap has
    seen any, else shorter)."""

    q: Ints
    known: Bools
    quantum: Ints
    in_flight: Ints
    usual: Ints = msgspec.field(default_factory=lambda: _NONE)


class DeficitAdmissions(AdmissionTransaction):
    """`q` is the state's vector until an admission, then a copy of our own; `refilled` is what `choose` saw."""

    def __init__(self, gate: "DeficitGate", state: DeficitState, heads: Ints) -> None:
        self.gate = gate
        self.state = state
        self.q = self.refilled = state.q
        self.in_flight = state.in_flight
        self.owned = False
        self.queued = in_queue(heads)
        # A waiting client is ready until it is skipped; then the masks part.
        self.ready = self.queued

    def choose(self, heads: Ints) -> int:
        q = self.refilled = self.q
        first = int(heads.argmax()) if len(heads) else NO_GROUP
        if goes_first(NUMPY, q, self.ready, first):
            return first
        if refill_due(NUMPY, q, self.queued):
            q = self.refilled = refill_rounds(NUMPY, q, self.queued, self.state.known, common(self.state.quantum))
            if goes_first(NUMPY, q, self.ready, first):
                return first
        return int(choose(NUMPY, q, self.queued, self.ready, heads))

    def skip(self, group: int) -> None:
        if self.ready is self.queued:
            self.ready = self.queued.copy()
        self.ready[group] = False

    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        q = self.refilled
        if not self.owned:
            if q is self.state.q:
                q = q.copy()
            if self.gate.in_flight_cap_tokens is not None:
                self.in_flight = self.in_flight.copy()
            self.owned = True
        self.q = admit(NUMPY_OWNED, q, group, price(input_tokens, self.gate.rates.input))
        if emptied:
            self.queued[group] = self.ready[group] = False
        if self.gate.in_flight_cap_tokens is not None:
            self.in_flight = reserve(NUMPY_OWNED, self.in_flight, group, kv_tokens)

    def counted(self, client: int, output_tokens: int) -> int:
        usual = self.state.usual
        return likely(int(usual[client]) if client < len(usual) else 0, output_tokens)

    def capped(self, client: int, kv_tokens: int) -> bool:
        cap = self.gate.in_flight_cap_tokens
        if cap is None:
            return False
        if self.gate.elastic:
            return not may_hold(NUMPY, self.in_flight, self.queued, client, kv_tokens, cap)
        return not under_cap(NUMPY, self.in_flight, client, kv_tokens, cap)

    def lacks_credit(self, client: int) -> bool:
        return int(self.refilled[client]) <= 0

    def stays(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        """A chosen client stays the best as long as its credit lasts, refill or not; when none was ready, the first
        of those in credit that runs out may make a refill due."""
        out, refilled = self.gate.rates.output, self.refilled
        if group != NO_GROUP:
            return credit_lasts(refilled[group], out, group, clients, counts)
        if not len(clients):
            return None
        who = column(clients)
        ends = ~self.ready[who] & (refilled[who] > 0)
        if not NUMPY.any(ends):
            return None
        spans = (refilled[who[ends]] - 1) // column(counts, out)[ends] + 1
        return least(spans)


@attrs.frozen
class DeficitGate(BoundedGate[DeficitState]):
    """Serve only clients with credit; refill when no waiting client has any.

    A client at its in-flight cap that has credit still holds back the refill.
    """

    name: ClassVar[str] = "deficit"
    charge_rule: ClassVar[ChargeRule] = "extend"
    state_type: ClassVar[Any] = DeficitState
    theorems: ClassVar[tuple[Theorem, ...]] = THEOREMS
    progress: ClassVar[tuple[str, ...]] = ("D-wc", "D-gate")
    gap_theorems: ClassVar[tuple[str, ...]] = (D_WEIGHTED.id, D_CAP.id)

    rates: Rates = attrs.field(factory=Rates)
    quantum: int = attrs.field(default=4096, validator=validators.quantum)
    """Credit of one refill for weight 1, in cost units; unless set, twice the step's token budget.  Larger follows
    locality longer, smaller shares sooner."""
    in_flight_cap_tokens: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive))
    """Most KV tokens of one client's running requests, as `cap_holds` says."""
    cap_holds: CapHolds = attrs.field(default="always", validator=one_of(*get_args(CapHolds)))
    """`always`: declared outputs count, and a request above the cap is rejected.  `contended`: only while other clients
    wait, outputs count as the client's last ones had them, and a client with nothing in flight may have one request of
    any size."""
    rejoin: Literal["keep", "reset"] = attrs.field(default="keep", validator=one_of("keep", "reset"))
    """What an arrival does to the deficit of a client that comes back: nothing or, as printed, it starts at zero."""
    cached_percent: int = attrs.field(default=0, validator=percent)
    """The share of its cached tokens that a request is charged for."""

    @property
    def charging(self) -> ChargingRule:
        return ChargingRule(self.rates, "extend", self.cached_percent)

    @property
    def elastic(self) -> bool:
        """Whether there is a cap that holds only while other clients wait."""
        return self.in_flight_cap_tokens is not None and self.cap_holds == "contended"

    @property
    def _cap_counts_charges(self) -> bool:
        """What is said of caps is about computed tokens, which a cap counts; what is charged for cached ones it does
        not."""
        return self.in_flight_cap_tokens is not None and not self.cached_percent

    @property
    def _cap_bounds_charges(self) -> bool:
        """D-cap is about a cap that always holds."""
        return self._cap_counts_charges and not self.elastic

    def charged(self, extend_tokens: int, cached_tokens: int) -> int:
        return charged_tokens(extend_tokens, cached_tokens, self.cached_percent)

    def init(self) -> DeficitState:
        return DeficitState(np.zeros(0, np.int64), np.zeros(0, np.bool_), np.ones(0, np.int64), np.zeros(0, np.int64))

    def begin(self, state: DeficitState, heads: Ints) -> AdmissionTransaction:
        return DeficitAdmissions(self, state, heads)

    def after(self, state: DeficitState, admissions: AdmissionTransaction) -> DeficitState:
        assert isinstance(admissions, DeficitAdmissions)
        if not admissions.owned:
            return state
        return msgspec.structs.replace(state, q=admissions.q, in_flight=admissions.in_flight)

    def joined(self, state: DeficitState, client: int, heads: Ints, waited: bool) -> DeficitState:
        if client >= len(state.q):
            state = _grown(state, client + 1, self.quantum)
        if self.rejoin == "reset" and not waited:
            state = msgspec.structs.replace(state, q=rejoin_printed(NUMPY, state.q, client))
        if state.known[client]:
            return state
        known = state.known.copy()
        known[client] = True
        return msgspec.structs.replace(state, known=known)

    def left(self, state: DeficitState, client: int) -> DeficitState:
        return state

    def decoded(self, state: DeficitState, clients: tuple[int, ...], tokens: tuple[int, ...]) -> DeficitState:
        return msgspec.structs.replace(state, q=each(decode, state.q, clients, tokens, self.rates.output))

    def settled(self, state: DeficitState, client: int, input_tokens: int, heads: Ints) -> DeficitState:
        charge = price(abs(input_tokens), self.rates.input)
        if input_tokens >= 0:
            return msgspec.structs.replace(state, q=correct(NUMPY, state.q, client, charge))
        return msgspec.structs.replace(state, q=refund(NUMPY, state.q, client, charge))

    def released(
        self, state: DeficitState, client: int, kv_tokens: int, output_tokens: int | None = None
    ) -> DeficitState:
        if self.in_flight_cap_tokens is None:
            return state
        in_flight, usual = reserve(NUMPY, state.in_flight, client, -kv_tokens), state.usual
        if self.elastic and output_tokens is not None:
            usual = grown(usual, client + 1, 0)
            usual = NUMPY.put(usual, client, learned(int(usual[client]), output_tokens))
        return msgspec.structs.replace(state, in_flight=in_flight, usual=usual)

    def configured(self, state: DeficitState, client: int, weight: int, groups: Groups = ()) -> DeficitState:
        if client >= len(state.q):
            state = _grown(state, client + 1, self.quantum)
        quanta = NUMPY.put(state.quantum, client, weight * self.quantum)
        return msgspec.structs.replace(state, quantum=quanta, q=reconfigure(NUMPY, state.q, quanta))

    def refuses(self, kv_tokens: int) -> str | None:
        cap = None if self.elastic else self.in_flight_cap_tokens
        return f"{kv_tokens} tokens are over the in-flight cap of {cap}" if cap and kv_tokens > cap else None

    def cautions(self, kv_capacity_tokens: int, needs: Sequence[int] = ()) -> tuple[str, ...]:
        cap = self.in_flight_cap_tokens
        if cap is None or cap >= kv_capacity_tokens:
            return ()
        name, full = f"in_flight_cap_tokens={cap}", -(-kv_capacity_tokens // cap)
        if self.elastic:
            return (f"{name}: while fewer than {full} clients wait, but more than one, KV may be left idle",)
        refused = sum(need > cap for need in needs)
        said = f"{name} refuses {refused} of {len(needs)} requests: the largest has {max(needs, default=0):,} tokens"
        refusals = (said,) if refused else ()
        return (
            f"{name} leaves KV idle while fewer than {full} clients have requests, one alone has {cap:,} of "
            f"{kv_capacity_tokens:,} tokens; a flat gate need not cap it then (cap_holds=contended)",
            *refusals,
        )

    def charge_max(self, limits: Limits) -> int:
        """U: most that one client can be charged after it was let in, in cost units."""
        memory = limits.kv_capacity_tokens
        if self.in_flight_cap_tokens is not None and self._cap_bounds_charges and limits.outputs_reserved:
            memory = min(memory, self.in_flight_cap_tokens)
        return limits.charge_max(self.rates, memory)

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """D-weighted, which is D-4.1 for equal weights (service times lcm / weight, as the report shows it)."""
        if self.rejoin == "reset" or len(clients) < 2:
            return None
        shares = sorted(multipliers([client.weight for client in clients]))
        common = shares[0] * max(client.weight for client in clients)
        return 2 * self.quantum * common + (self.charge_max(limits) - 1) * (shares[-1] + shares[-2])

    @property
    def broken_assumptions(self) -> frozenset[Assumption]:
        uncapped = set() if self._cap_bounds_charges else {CAPPED}
        uncapped |= set() if self._cap_counts_charges else {CAPPED_TOGETHER}
        return frozenset(uncapped | ({REJOIN_KEEPS_DEBT} if self.rejoin == "reset" else set()))

    def bound_terms(self, clients: tuple[Client, ...], limits: Limits) -> tuple[BoundTerms, ...]:
        charge = self.charge_max(limits)
        return tuple(BoundTerms(self.quantum * client.weight, charge) for client in clients)

    def check(self, state: DeficitState) -> None:
        # All vectors speak of the same clients.
        assert len(state.q) == len(state.known) == len(state.quantum) == len(state.in_flight)
        # A client that was never seen has neither credit nor debt.
        assert not state.q[~state.known].any()
        # Weights are positive, and no KV is promised below zero.
        assert bool((state.quantum >= 1).all())
        assert bool((state.in_flight >= 0).all())
        # No output has fewer tokens than none.
        assert bool((state.usual >= 0).all())


def _grown(state: DeficitState, size: int, quantum: int) -> DeficitState:
    """The state with room for more clients: they have no credit, the quantum of weight 1, and are not known yet."""
    return with_room(state, size, q=0, known=False, quantum=quantum, in_flight=0)
