"""The deficit gate: a client that is served pays, and only clients with credit are served (DLPM's gate).

Paper: "Locality-aware Fair Scheduling in LLM Serving" (DLPM and D2LPM).  Rules and constants
are reconstructed from its prose and proofs, and where its printed rule breaks its theorem (credit is reset when a
client comes back) ours differs and the printed one is kept as the variant `rejoin="reset"`.

Theorem: between two clients of equal weight that both wait, charged service differs by at most 2(Q + U - 1) over any
interval, whatever the order, where U is the most that one client can be charged after it was let in (D-4.1, exact).

State: one deficit q a client.  An admission subtracts the extend tokens, a decode step the decoded tokens; when no
waiting client has credit, each client without credit gets a quantum, as often as it takes to make one eligible.  A
refill is part of the admission that it allows: a decision that admits nothing changes nothing.

This file is the gate: its rule, the fast paths beside it, what is promised (proved for every number of clients in
`verify.proofs.gates.deficit`), and the declaration at the end, from which all that runs is derived (`authoring`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import attrs
import msgspec
import numpy as np

from fairsched.model import theorem as th
from fairsched.model.algebra import NUMPY, NUMPY_OWNED, Algebra, Bools, Ints, Mask, Point, Scalar, Vector
from fairsched.model.pricing import charged_tokens, multipliers
from fairsched.model.request import Client
from fairsched.policies import validators
from fairsched.policies.base import ChargeRule, ChargingRule, Limits
from fairsched.policies.gates.authoring import Kernel, KernelAdmissions, KernelGate
from fairsched.policies.gates.base import BoundTerms, Returns
from fairsched.policies.validators import one_of, percent, positive
from fairsched.policies.vectors import grown

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


def meet(o: Algebra, known: Mask, p: Point) -> Mask:
    """A client that has come is known from then on."""
    return o.put(known, p, True)


def admit(o: Algebra, q: Vector, p: Point, charge: Scalar) -> Vector:
    """The chosen client pays for the extend tokens of its request, and for those that were computed beyond them."""
    return o.bump(q, p, -charge)


def decode(o: Algebra, q: Vector, charge: Vector) -> Vector:
    """Each client pays for the tokens decoded for it."""
    return q - charge


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


# --- closed form beside the kernel: the fast paths --------------------------------------------------------------------


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


def credit_lasts(o: Algebra, q: Vector, charge: Vector) -> Vector:
    """For how many steps of `charge`, 1 or more each, a client has credit; 0 or fewer where it has none."""
    return (q - 1) // charge + 1


# --- gate: what requests are likely to use ---------------------------------------------------------------------------
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


# --- statements -------------------------------------------------------------------------------------------------------

_BASE = (th.MEM_RESERVE, th.GATE_RESPECTED, th.QUANTUM_POSITIVE)
_KEPT = (*_BASE, th.REJOIN_KEEPS_DEBT)
_WAITS = (*_BASE, th.EQUAL_QUANTA, th.BACKLOGGED_DURING, th.REJOIN_KEEPS_DEBT)
_CHARGING = (*_BASE, th.CHARGES_AT_LEAST_ONE)

# --- constants ------------------------------------------------------------------------------------------------------


def gap_cost(quantum_f: int, charge_max_f: int, quantum_g: int, charge_max_g: int) -> int:
    """The bound of D-4.1, D-4.2 and D-cap in cost units (U of the capped memory for the last), and of D-A.2 for each
    client that f waits for, if f comes with the deepest debt; all where nothing is given back."""
    return (quantum_f + charge_max_f - 1) + (quantum_g + charge_max_g - 1)


gap_theorem = partial(th.Theorem, bound="(Q + U_f - 1) + (Q + U_g - 1) + B_f + B_g", bound_cost=gap_cost)


def weighted_gap_cost(quantum_f: int, charge_max_f: int, quantum_g: int, charge_max_g: int) -> int:
    """The bound of D-weighted, and of D-A.2-weighted with the deepest debt, in cost units times a quantum."""
    return quantum_g * (quantum_f + charge_max_f - 1) + quantum_f * (quantum_g + charge_max_g - 1)


def late_cost(quantum_f: int, charge_max_f: int, quantum_g: int, charge_max_g: int) -> int:
    """The bound of D-late with the deepest debt and nothing of f's own before the request, in cost units times f's
    quantum."""
    return quantum_f * (quantum_g + charge_max_g - 1) + quantum_g * (charge_max_f - 1)


# --- fairness: the range of deficits, their balance, and the gaps between two clients -------------------------------

D_RANGE = th.Theorem(
    "D-range",
    "1 - U_i <= q_i - R_i and q_i <= Q_i + B_i, so q_i stays in [1 - U_i, Q_i + B_i]",
    "DLPM, the lemma on the deficit's range (reconstructed); here in integers and for the pessimistic deficit",
    _KEPT,
    bound="[1 - U_i, Q_i + B_i]",
)
D_A1 = th.Theorem(
    "D-A.1",
    "over any interval |credit refilled to i - W_i| <= Q_i + U_i - 1 + B_i",
    "DLPM, lemma A.1 (reconstructed), whose constant max(U, Q) holds only from the start",
    _KEPT,
    bound="Q_i + U_i - 1 + B_i",
)
D_41 = gap_theorem(
    "D-4.1",
    "f and g backlogged over [t1, t2): |W_f - W_g| <= 2(Q + U - 1) + B_f + B_g",
    "DLPM, theorem 4.1 (reconstructed), which has 2(U + Q)",
    (*_KEPT, th.EQUAL_QUANTA, th.BACKLOGGED_DURING),
)
D_42 = gap_theorem(
    "D-4.2",
    "f backlogged over [t1, t2), g any client: W_f >= W_g - 2(Q + U - 1) - B_f - B_g",
    "DLPM, theorem 4.2 (reconstructed); false as printed, whose rejoin rule forgives debt",
    (*_KEPT, th.EQUAL_QUANTA, th.BACKLOGGED_DURING),
)
D_WEIGHTED = th.Theorem(
    "D-weighted",
    "f and g backlogged over [t1, t2): |Q_g W_f - Q_f W_g| <= Q_g (Q_f + U_f - 1 + B_f) + Q_f (Q_g + U_g - 1 + B_g)",
    "new; divided by Q_f Q_g it is |W_f/Q_f - W_g/Q_g| <= 2 + (U_f - 1 + B_f)/Q_f + (U_g - 1 + B_g)/Q_g",
    (*_KEPT, th.BACKLOGGED_DURING),
    bound="Q_g (Q_f + U_f - 1 + B_f) + Q_f (Q_g + U_g - 1 + B_g)",
    bound_cost=weighted_gap_cost,
    per_quantum=True,
)

# --- either rejoin rule: `keep`, which ships, and `reset`, which was printed ----------------------------------------
# A client that comes back at zero is forgiven its debt, and every theorem that counts on debt falls.  These two count
# on something else: an admission charges at least one unit, so less than U is left to be charged when a client returns.

D_RANGE_REJOIN = th.Theorem(
    "D-range-rejoin",
    "D-range, whether a client that comes back keeps its deficit or starts at zero",
    "DLPM, the lemma on the deficit's range (reconstructed), under its printed rejoin rule too",
    _CHARGING,
    bound="[1 - U_i, Q_i + B_i]",
)
D_41_REJOIN = gap_theorem(
    "D-4.1-rejoin",
    "D-4.1, whether a client that comes back keeps its deficit or starts at zero: "
    "|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g",
    "DLPM, theorem 4.1 (reconstructed), under its printed rejoin rule too; D-4.2 is false under that",
    (*_CHARGING, th.EQUAL_QUANTA, th.BACKLOGGED_DURING),
)

# --- progress: some client is served, each is served in time, and at what price -------------------------------------

D_WC = th.Theorem(
    "D-wc",
    "whenever clients wait, at most floor((U_i - 1) / Q_i) + 1 rounds of refill, for every i that waits, and none to "
    "spare, give a waiting client credit; D-gate then admits one",
    "DLPM, work conservation (reconstructed), which holds only if the refill is repeated; the number of rounds is ours",
    _KEPT,
    bound="floor((U_i - 1) / Q_i) + 1",
)
D_A2 = th.Theorem(
    "D-A.2",
    "while f waits and is not let in: W_g <= 2Q + U_g - 1 + D + B_g for every other g, and W_f <= R_f(t1), where "
    "D = max(0, R_f - q_f) at t1, at most U_f - 1",
    "DLPM, lemma A.2 (reconstructed): 2 (n - 1) (Q + U) / a; holds for clients and not for requests",
    _WAITS,
    bound="2Q + U_g - 1 + D + B_g",
    bound_cost=gap_cost,
)
D_A2_WEIGHTED = th.Theorem(
    "D-A.2-weighted",
    "while f waits and is not let in, whatever the quanta: Q_f W_g <= Q_f (2 Q_g + U_g - 1 + B_g) + Q_g D for g other "
    "than f",
    "new; divided by Q_f it is W_g <= 2 Q_g + U_g - 1 + B_g + D Q_g/Q_f: D-A.2, with f's debt in rounds of its quantum",
    (*_BASE, th.BACKLOGGED_DURING, th.REJOIN_KEEPS_DEBT),
    bound="Q_f (2 Q_g + U_g - 1 + B_g) + Q_g D",
    bound_cost=weighted_gap_cost,
    per_quantum=True,
)
D_A2_TIME = th.Theorem(
    "D-A.2-time",
    "a (t2 - t1) <= R_f(t1) + the sum over g other than f of 2Q + U_g - 1 + D + B_g, for f waiting and not let in",
    "DLPM, lemma A.2 (reconstructed); D-A.2 summed over any number of clients",
    (*_WAITS, th.CAPACITY_FLOOR),
    bound="R_f(t1) + sum over g of 2Q + U_g - 1 + D + B_g",
)
D_LATE = th.Theorem(
    "D-late",
    "r of f waits since t1, and f's own requests that are let in before r may be charged A in all: a request that "
    "ranks behind r is let in before it only if R_f(t1) - q_f(t1) + A >= 0, and after each Q_f (W_g + R_g) <= "
    "Q_f (Q_g + U_g - 1 + B_g) + Q_g (D + A) for every g other than f",
    "new: what the gate adds to an order; divided by Q_f it is W_g + R_g <= Q_g + U_g - 1 + B_g + (D + A) Q_g / Q_f, a "
    "quantum less than D-A.2, since among clients with credit the first in order goes",
    (*_BASE, th.BACKLOGGED_DURING, th.REJOIN_KEEPS_DEBT, th.NEXT_MAY_GO),
    bound="Q_f (Q_g + U_g - 1 + B_g) + Q_g (D + A)",
    bound_cost=late_cost,
    per_quantum=True,
)
D_STARVATION = th.Theorem(
    "D-starvation",
    "while f waits and is not let in, g is let in at most 2Q + U_g - 1 + D times: what is left of that is a ranking "
    "that falls with each admission",
    "this library: starvation freedom as safety",
    (*_WAITS, th.CHARGES_AT_LEAST_ONE, th.NOTHING_REFUNDED),
    bound="2Q + U_g - 1 + D",
    bound_cost=gap_cost,
)
D_PASS = th.Theorem(
    "D-pass",
    "while f waits, has credit and is not let in, no client is given any, and W_g <= Q_g + U_g - 1 + B_g for every "
    "other g: so much passes a request that waits for room",
    "this library: a gateway lets others pass a large call, which then waits for no more than that and for room",
    (th.MEM_RESERVE, th.GATE_RESPECTED, th.BACKLOGGED_DURING, th.REJOIN_KEEPS_DEBT),
    bound="Q_g + U_g - 1 + B_g",
)
D_PRICE = th.Theorem(
    "D-price",
    "over any interval client i runs out of credit at most (W_i - 1) / Q_i + 1 times",
    "new; so locality is given up at most that often: over plain longest prefix match at most w_e L extra prefill for "
    "each time (w_e M if a client keeps several prefixes alive)",
    (th.QUANTUM_POSITIVE, th.REJOIN_KEEPS_DEBT, th.NOTHING_REFUNDED),
    bound="(W_i - 1) / Q_i + 1",
)
S_PREFILL = th.Theorem(
    "S-prefill",
    "with a gate at the prefill workers only, f and g backlogged there: |S_f - S_g| <= 2(Q + U - 1) in what prefill "
    "workers charge, and decoding charges g at most T_g <= h_g + b (S_f + 2(Q + U - 1)), where h_g was left to decode "
    "for g at t1 and b is the most that the decoding of one request costs",
    "this library: what is left where phases are split and decode workers have no gate",
    (*_WAITS, th.CHARGES_AT_LEAST_ONE, th.NOTHING_REFUNDED),
    bound="h_g + b (S_f + (Q + U_f - 1) + (Q + U_g - 1))",
)
D_CAP = th.Theorem(
    "D-cap",
    "with an in-flight cap C: 1 - U <= q_i <= Q_i + B_i, and |W_f - W_g| <= 2(Q + U - 1) + B_f + B_g for f and g "
    "backlogged, with U = w_q min(C, M) + (w_e - w_q) (L if w_e >= w_q else 1)",
    "new: D-range and D-4.1 with min(C, M) in place of M, from the cap's own arithmetic",
    (
        *(
            th.CAPPED,
            th.MEM_RESERVE,
            th.CHARGES_AT_LEAST_ONE,
            th.EXTEND_AS_PLANNED,
            th.GATE_RESPECTED,
            th.QUANTUM_POSITIVE,
        ),
        *(th.EQUAL_QUANTA, th.BACKLOGGED_DURING, th.REJOIN_KEEPS_DEBT),
    ),
    bound="2(Q + U(min(C, M)) - 1) + B_f + B_g",
    bound_cost=gap_cost,
)
D_IN_FLIGHT = th.Theorem(
    "D-in-flight",
    "under any cap or none: 1 - U(Y_i) <= q_i - R_i and q_i <= Q_i + B_i, where Y_i, at least 1, is the KV counted in "
    "flight for i just after it was last let in, and U(Y) is U with min(Y, M) in place of M",
    "new: D-range with what a client has in flight in place of the memory",
    (*_KEPT, th.OUTPUTS_LIKELY),
    bound="[1 - U(Y_i), Q_i + B_i]",
)
D_ELASTIC = th.Theorem(
    "D-elastic",
    "with a cap C that holds while other clients wait, f and g backlogged over [t1, t2), requests of at most S tokens: "
    "if f was let in since t1, W_f - W_g <= (Q + U(max(C, S)) - 1) + (Q + U(max(C, S, Y_g(t1))) - 1) + B_f + B_g, and "
    "else f was served only what was in flight, W_f <= R_f(t1)",
    "new: decisions made while both wait are bounded by the cap, beside what was in flight and owed before",
    (*_WAITS, th.CAPPED_TOGETHER, th.OUTPUTS_LIKELY),
    bound="(Q + U(max(C, S)) - 1) + (Q + U(max(C, S, Y_g)) - 1) + B_f + B_g",
    bound_cost=gap_cost,
)
D_MAY_HOLD = th.Theorem(
    "D-may-hold",
    "an elastic cap keeps a request out exactly if another client waits, something of its own client is in flight, and "
    "that would exceed the cap with the request",
    "this library: what CappedTogether means",
)
D_CAP_HOLDS = th.Theorem(
    "D-cap-holds",
    "while f waits in credit, capped or not, no refill is due and no client is topped up",
    "new: a cap costs time, never fairness",
    (th.BACKLOGGED_DURING,),
)
D_CHANGE = th.Theorem(
    "D-change",
    "whatever weights and quanta do: 1 - U_i <= q_i <= Q_i(now) + B_i, and over any interval in which i's quantum was "
    "at most Q, |credit refilled - credit cut - W_i| <= Q + U_i - 1 + B_i",
    "new: what survives a change; credit above the new quantum is cut and debt stays",
    _KEPT,
    bound="Q_max + U_i - 1 + B_i, beside the credit that was cut",
)
D_CHANGE_GAP = th.Theorem(
    "D-change-gap",
    "f and g wait throughout, and their quanta, equal at each moment, were at most Q: "
    "|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g + the credit that changes cut from the one that got less; a quantum that "
    "grows cuts nothing",
    "new: D-4.1 where the quantum follows the traffic",
    _WAITS,
    bound="(Q_max + U_f - 1) + (Q_max + U_g - 1) + B_f + B_g + the credit that was cut",
)

D_INT64 = th.Theorem(
    "D-int64",
    "with quanta, charges and B of at most 2^60, as all are that is accepted, every number that a kernel computes is "
    "within 2^62, for ever",
    "this library: proofs are about integers, production about int64",
    bound="2^62",
    rests_on=("charge-limit",),
)

# --- what the kernel does in one step, as theorems about the text alone ---------------------------------------------

D_GATE = th.Theorem(
    "D-gate",
    "the gate admits only a client that waits, has q > 0 and is ready, the best score among them, and one if any is",
    "theorems of the kernel itself: what GateRespected means",
)
D_FIRST = th.Theorem(
    "D-first",
    "where a client of the best score of all that wait is ready and has credit, no refill is due, and it is one that "
    "the gate chooses",
    "this library: why a decision need not look at the other clients",
)
D_REFILL = th.Theorem(
    "D-refill",
    "refill_rounds(q) = refill repeated until no refill is due, for any number of rounds and any quanta of 1 or more",
    "this library: the closed form that production runs is the kernel's event, repeated",
)
D_SUMS = th.Theorem(
    "D-sums",
    "outputs of two events, charged one after the other, leave the deficits that they leave charged together",
    "this library: a monitor plays what was decoded when the deficits are next looked at",
)
D_PRINTED = th.Theorem(
    "D-printed",
    "under the printed rule a client that comes back has neither credit nor debt, and no other deficit changes",
    "DLPM, its rejoin rule (reconstructed), kept as a variant: what the refutation of D-4.2 as printed is about",
)
D_UNDER_CAP = th.Theorem(
    "D-under-cap",
    "the cap keeps a request out exactly if the KV promised to its client would exceed it with the request",
    "this library: D-cap holds for any stricter cap, so this was found missing by a mutant",
)

# --- prefixes that several clients use ------------------------------------------------------------------------------
# The DLPM paper leaves it open which client pays.  Here the client that computes them pays for them, and later users
# `cached_percent` of the price.  No admission is charged more than the price of its prompt, and that lies in memory
# while it runs, so U is the same.

_SOURCE = "this library; the DLPM paper leaves open who pays for a prefix of several clients"

D_SHARE_U = th.Theorem(
    "D-share-U",
    "x + w_q O <= U for an admission charged x <= w_e p, whose prompt of p tokens lies in memory, cached or not",
    f"{_SOURCE}: cached tokens that are charged fit into the U without them",
    (th.MEM_RESERVE, th.CHARGES_AT_LEAST_ONE),
    bound="w_q M + (w_e - w_q) (L if w_e >= w_q else 1)",
)
D_EVICTION = th.Theorem(
    "D-eviction",
    "with cached_percent = c of 1 or more: a request is charged at least c per cent of its prompt and at most all of "
    "it, so evicting what is cached multiplies its charge by at most 100 / c",
    f"{_SOURCE}: where c is 0, evicting a prefix multiplies a charge by the prompt's length",
    bound="100 / c",
)

THEOREMS = (
    *(D_RANGE, D_A1, D_41, D_42, D_WEIGHTED, D_RANGE_REJOIN, D_41_REJOIN, D_GATE, D_FIRST, D_UNDER_CAP, D_REFILL),
    *(
        D_SUMS,
        D_WC,
        D_A2,
        D_A2_WEIGHTED,
        D_A2_TIME,
        D_LATE,
        D_STARVATION,
        D_PASS,
        D_PRICE,
        S_PREFILL,
        D_CAP,
        D_CAP_HOLDS,
    ),
    *(D_IN_FLIGHT, D_ELASTIC, D_MAY_HOLD, D_CHANGE),
    *(D_CHANGE_GAP, D_INT64),
)
"""Those about what ships, in the order of the report; D-printed and those of prefixes are about variants."""

# --- declaration -----------------------------------------------------------------------------------------------------

CapHolds = Literal["always", "contended"]

_NONE = np.zeros(0, np.int64)


class DeficitState(msgspec.Struct, frozen=True, gc=False):
    """Vectors over clients: deficit `q`, `known` (seen before), `quantum`, `in_flight`, the KV tokens promised to
    running requests (kept only under a cap), and `usual`, the outputs that are likely (as far as an elastic cap has
    seen any, else shorter)."""

    q: Ints
    known: Bools
    quantum: Ints
    in_flight: Ints
    usual: Ints = msgspec.field(default_factory=lambda: _NONE)


class DeficitAdmissions(KernelAdmissions):
    """A decision under an in-flight cap, if there is one."""

    gate: "DeficitGate"
    q: Ints
    in_flight: Ints

    def entered(self, group: int, kv_tokens: int) -> None:
        if self.gate.counts_in_flight:
            if self.in_flight is self.state.in_flight:
                self.in_flight = self.in_flight.copy()
            self.in_flight = reserve(NUMPY_OWNED, self.in_flight, group, kv_tokens)

    def withdraw(self, group: int) -> None:
        self.skip(group)
        self.queued[group] = False

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


@attrs.frozen
class DeficitGate(KernelGate):
    """Serve only clients with credit; refill when no waiting client has any.

    A client at its in-flight cap that has credit still holds back the refill.
    """

    name: ClassVar[str] = "deficit"
    withdraws: ClassVar[bool] = True
    state_type: ClassVar[Any] = DeficitState
    state, masks, per_weight = ("q", "known"), ("known",), ("quantum",)
    kept: ClassVar[tuple[str, ...]] = ("in_flight",)
    rooms: ClassVar[tuple[str, ...]] = ("in_flight",)

    choose = staticmethod(choose)
    join_known = staticmethod(meet)
    refill_q = staticmethod(refill)
    admit_q = staticmethod(admit)
    refund_q = staticmethod(refund)
    decode_q = staticmethod(decode)
    reweigh_q = staticmethod(reconfigure)
    fast: ClassVar[Mapping[str, Kernel]] = {
        "choose": goes_first,
        "due": refill_due,
        "refill_q": refill_rounds,
        "stays": credit_lasts,
    }
    sparse = True
    variants: ClassVar[Any] = {("rejoin", "reset"): {"join_q": rejoin_printed}}
    admissions: ClassVar[type[KernelAdmissions]] = DeficitAdmissions

    refunds_widen: ClassVar[bool] = True
    follows_weights: ClassVar[bool] = True
    charge_rule: ClassVar[ChargeRule] = "extend"
    theorems: ClassVar[tuple[th.Theorem, ...]] = THEOREMS
    progress: ClassVar[tuple[str, ...]] = ("D-wc", "D-gate")
    gap_theorems: ClassVar[tuple[str, ...]] = (D_WEIGHTED.id, D_CAP.id)
    returns: ClassVar[Returns] = {
        "return-debt": (D_A1.id,),
        "return-credit": (D_A1.id,),
        "return-lead": (D_42.id,),
    }

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
    def counts_in_flight(self) -> bool:
        """Whether it is counted what each client has in flight."""
        return self.in_flight_cap_tokens is not None

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
        percent = self.cached_percent
        return charged_tokens(extend_tokens, cached_tokens, percent) if percent else extend_tokens

    def released(
        self, state: DeficitState, client: int, kv_tokens: int, output_tokens: int | None = None
    ) -> DeficitState:
        if not self.counts_in_flight:
            return state
        in_flight, usual = reserve(NUMPY, state.in_flight, client, -kv_tokens), state.usual
        if self.elastic and output_tokens is not None:
            usual = grown(usual, client + 1, 0)
            usual = NUMPY.put(usual, client, learned(int(usual[client]), output_tokens))
        return msgspec.structs.replace(state, in_flight=in_flight, usual=usual)

    def owners(self, state: DeficitState, clients: int) -> tuple[Ints, Ints]:
        return np.arange(clients), state.quantum[:clients]

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
    def broken_assumptions(self) -> frozenset[th.Assumption]:
        uncapped = set() if self._cap_bounds_charges else {th.CAPPED}
        uncapped |= set() if self._cap_counts_charges else {th.CAPPED_TOGETHER}
        return frozenset(uncapped | ({th.REJOIN_KEEPS_DEBT} if self.rejoin == "reset" else set()))

    def bound_terms(self, clients: tuple[Client, ...], limits: Limits) -> tuple[BoundTerms, ...]:
        charge = self.charge_max(limits)
        return tuple(BoundTerms(self.quantum * client.weight, charge) for client in clients)

    def check(self, state: DeficitState) -> None:
        super().check(state)
        # A client that was never seen has neither credit nor debt.
        assert not state.q[~state.known].any()
        # Weights are positive, and no KV is promised below zero.
        assert bool((state.quantum >= 1).all())
        assert bool((state.in_flight >= 0).all())
        # No output has fewer tokens than none.
        assert bool((state.usual >= 0).all())
