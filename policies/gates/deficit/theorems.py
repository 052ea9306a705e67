"""What the deficit gate promises: its statements, their constants and assumptions, and where they come from.

The theorems are about the kernel of `policies.gates.deficit.gate`, in its symbols, and proved for every number of
clients in `verify.proofs.gates.deficit`.  Sources name the DLPM paper, whose statements are reconstructed.  Service is
what a client was charged, less all that it was given back.  B_i is the most that was charged to i for requests in
flight at one time and is given back later: while it was owed others were refilled, so it stands in the bounds.  It is
0 where nothing is given back (NothingRefunded).
"""

from functools import partial

from fairsched.model.theorem import (
    BACKLOGGED_DURING,
    CAPACITY_FLOOR,
    CAPPED,
    CAPPED_TOGETHER,
    CHARGES_AT_LEAST_ONE,
    EQUAL_QUANTA,
    EXTEND_AS_PLANNED,
    GATE_RESPECTED,
    MEM_RESERVE,
    NOTHING_REFUNDED,
    OUTPUTS_LIKELY,
    QUANTUM_POSITIVE,
    REJOIN_KEEPS_DEBT,
    Theorem,
)

_BASE = (MEM_RESERVE, GATE_RESPECTED, QUANTUM_POSITIVE)
_KEPT = (*_BASE, REJOIN_KEEPS_DEBT)
_WAITS = (*_BASE, EQUAL_QUANTA, BACKLOGGED_DURING, REJOIN_KEEPS_DEBT)
_CHARGING = (*_BASE, CHARGES_AT_LEAST_ONE)

# --- constants ------------------------------------------------------------------------------------------------------


def gap_cost(quantum_f: int, charge_max_f: int, quantum_g: int, charge_max_g: int) -> int:
    """The bound of D-4.1, D-4.2 and D-cap in cost units (U of the capped memory for the last), and of D-A.2 for each
    client that f waits for, if f comes with the deepest debt; all where nothing is given back."""
    return (quantum_f + charge_max_f - 1) + (quantum_g + charge_max_g - 1)


gap_theorem = partial(Theorem, bound="(Q + U_f - 1) + (Q + U_g - 1) + B_f + B_g", bound_cost=gap_cost)


def weighted_gap_cost(quantum_f: int, charge_max_f: int, quantum_g: int, charge_max_g: int) -> int:
    """The bound of D-weighted, and of D-A.2-weighted with the deepest debt, in cost units times a quantum."""
    return quantum_g * (quantum_f + charge_max_f - 1) + quantum_f * (quantum_g + charge_max_g - 1)


# --- fairness: the range of deficits, their balance, and the gaps between two clients -------------------------------

D_RANGE = Theorem(
    "D-range",
    "1 - U_i <= q_i - R_i and q_i <= Q_i + B_i, so q_i stays in [1 - U_i, Q_i + B_i]",
    "DLPM, the lemma on the deficit's range (reconstructed); here in integers and for the pessimistic deficit",
    _KEPT,
    bound="[1 - U_i, Q_i + B_i]",
)
D_A1 = Theorem(
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
    (*_KEPT, EQUAL_QUANTA, BACKLOGGED_DURING),
)
D_42 = gap_theorem(
    "D-4.2",
    "f backlogged over [t1, t2), g any client: W_f >= W_g - 2(Q + U - 1) - B_f - B_g",
    "DLPM, theorem 4.2 (reconstructed); false as printed, whose rejoin rule forgives debt",
    (*_KEPT, EQUAL_QUANTA, BACKLOGGED_DURING),
)
D_WEIGHTED = Theorem(
    "D-weighted",
    "f and g backlogged over [t1, t2): |Q_g W_f - Q_f W_g| <= Q_g (Q_f + U_f - 1 + B_f) + Q_f (Q_g + U_g - 1 + B_g)",
    "new; divided by Q_f Q_g it is |W_f/Q_f - W_g/Q_g| <= 2 + (U_f - 1 + B_f)/Q_f + (U_g - 1 + B_g)/Q_g",
    (*_KEPT, BACKLOGGED_DURING),
    bound="Q_g (Q_f + U_f - 1 + B_f) + Q_f (Q_g + U_g - 1 + B_g)",
    bound_cost=weighted_gap_cost,
    per_quantum=True,
)

# --- either rejoin rule: `keep`, which ships, and `reset`, which was printed ----------------------------------------
# A client that comes back at zero is forgiven its debt, and every theorem that counts on debt falls.  These two count
# on something else: an admission charges at least one unit, so less than U is left to be charged when a client returns.

D_RANGE_REJOIN = Theorem(
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
    (*_CHARGING, EQUAL_QUANTA, BACKLOGGED_DURING),
)

# --- progress: some client is served, each is served in time, and at what price -------------------------------------

D_WC = Theorem(
    "D-wc",
    "whenever clients wait, at most floor((U_i - 1) / Q_i) + 1 rounds of refill, for every i that waits, and none to "
    "spare, give a waiting client credit; D-gate then admits one",
    "DLPM, work conservation (reconstructed), which holds only if the refill is repeated; the number of rounds is ours",
    _KEPT,
    bound="floor((U_i - 1) / Q_i) + 1",
)
D_A2 = Theorem(
    "D-A.2",
    "while f waits and is not let in: W_g <= 2Q + U_g - 1 + D + B_g for every other g, and W_f <= R_f(t1), where "
    "D = max(0, R_f - q_f) at t1, at most U_f - 1",
    "DLPM, lemma A.2 (reconstructed): 2 (n - 1) (Q + U) / a; holds for clients and not for requests",
    _WAITS,
    bound="2Q + U_g - 1 + D + B_g",
    bound_cost=gap_cost,
)
D_A2_WEIGHTED = Theorem(
    "D-A.2-weighted",
    "while f waits and is not let in, whatever the quanta: Q_f W_g <= Q_f (2 Q_g + U_g - 1 + B_g) + Q_g D for g other "
    "than f",
    "new; divided by Q_f it is W_g <= 2 Q_g + U_g - 1 + B_g + D Q_g/Q_f: D-A.2, with f's debt in rounds of its quantum",
    (*_BASE, BACKLOGGED_DURING, REJOIN_KEEPS_DEBT),
    bound="Q_f (2 Q_g + U_g - 1 + B_g) + Q_g D",
    bound_cost=weighted_gap_cost,
    per_quantum=True,
)
D_A2_TIME = Theorem(
    "D-A.2-time",
    "a (t2 - t1) <= R_f(t1) + the sum over g other than f of 2Q + U_g - 1 + D + B_g, for f waiting and not let in",
    "DLPM, lemma A.2 (reconstructed); D-A.2 summed over any number of clients",
    (*_WAITS, CAPACITY_FLOOR),
    bound="R_f(t1) + sum over g of 2Q + U_g - 1 + D + B_g",
)
D_STARVATION = Theorem(
    "D-starvation",
    "while f waits and is not let in, g is let in at most 2Q + U_g - 1 + D times: what is left of that is a ranking "
    "that falls with each admission",
    "this library: starvation freedom as safety",
    (*_WAITS, CHARGES_AT_LEAST_ONE, NOTHING_REFUNDED),
    bound="2Q + U_g - 1 + D",
    bound_cost=gap_cost,
)
D_PRICE = Theorem(
    "D-price",
    "over any interval client i runs out of credit at most (W_i - 1) / Q_i + 1 times",
    "new; so locality is given up at most that often: over plain longest prefix match at most w_e L extra prefill for "
    "each time (w_e M if a client keeps several prefixes alive)",
    (QUANTUM_POSITIVE, REJOIN_KEEPS_DEBT, NOTHING_REFUNDED),
    bound="(W_i - 1) / Q_i + 1",
)
S_PREFILL = Theorem(
    "S-prefill",
    "with a gate at the prefill workers only, f and g backlogged there: |S_f - S_g| <= 2(Q + U - 1) in what prefill "
    "workers charge, and decoding charges g at most T_g <= h_g + b (S_f + 2(Q + U - 1)), where h_g was left to decode "
    "for g at t1 and b is the most that the decoding of one request costs",
    "this library: what is left where phases are split and decode workers have no gate",
    (*_WAITS, CHARGES_AT_LEAST_ONE, NOTHING_REFUNDED),
    bound="h_g + b (S_f + (Q + U_f - 1) + (Q + U_g - 1))",
)
D_CAP = Theorem(
    "D-cap",
    "with an in-flight cap C: 1 - U <= q_i <= Q_i + B_i, and |W_f - W_g| <= 2(Q + U - 1) + B_f + B_g for f and g "
    "backlogged, with U = w_q min(C, M) + (w_e - w_q) (L if w_e >= w_q else 1)",
    "new: D-range and D-4.1 with min(C, M) in place of M, from the cap's own arithmetic",
    (
        *(CAPPED, MEM_RESERVE, CHARGES_AT_LEAST_ONE, EXTEND_AS_PLANNED, GATE_RESPECTED, QUANTUM_POSITIVE),
        *(EQUAL_QUANTA, BACKLOGGED_DURING, REJOIN_KEEPS_DEBT),
    ),
    bound="2(Q + U(min(C, M)) - 1) + B_f + B_g",
    bound_cost=gap_cost,
)
D_IN_FLIGHT = Theorem(
    "D-in-flight",
    "under any cap or none: 1 - U(Y_i) <= q_i - R_i and q_i <= Q_i + B_i, where Y_i, at least 1, is the KV counted in "
    "flight for i just after it was last let in, and U(Y) is U with min(Y, M) in place of M",
    "new: D-range with what a client has in flight in place of the memory",
    (*_KEPT, OUTPUTS_LIKELY),
    bound="[1 - U(Y_i), Q_i + B_i]",
)
D_ELASTIC = Theorem(
    "D-elastic",
    "with a cap C that holds while other clients wait, f and g backlogged over [t1, t2), requests of at most S tokens: "
    "if f was let in since t1, W_f - W_g <= (Q + U(max(C, S)) - 1) + (Q + U(max(C, S, Y_g(t1))) - 1) + B_f + B_g, and "
    "else f was served only what was in flight, W_f <= R_f(t1)",
    "new: decisions made while both wait are bounded by the cap, beside what was in flight and owed before",
    (*_WAITS, CAPPED_TOGETHER, OUTPUTS_LIKELY),
    bound="(Q + U(max(C, S)) - 1) + (Q + U(max(C, S, Y_g)) - 1) + B_f + B_g",
    bound_cost=gap_cost,
)
D_MAY_HOLD = Theorem(
    "D-may-hold",
    "an elastic cap keeps a request out exactly if another client waits, something of its own client is in flight, and "
    "that would exceed the cap with the request",
    "this library: what CappedTogether means",
)
D_CAP_HOLDS = Theorem(
    "D-cap-holds",
    "while f waits in credit, capped or not, no refill is due and no client is topped up",
    "new: a cap costs time, never fairness",
    (BACKLOGGED_DURING,),
)
D_CHANGE = Theorem(
    "D-change",
    "whatever weights and quanta do: 1 - U_i <= q_i <= Q_i(now) + B_i, and over any interval in which i's quantum was "
    "at most Q, |credit refilled - credit cut - W_i| <= Q + U_i - 1 + B_i",
    "new: what survives a change; credit above the new quantum is cut and debt stays",
    _KEPT,
    bound="Q_max + U_i - 1 + B_i, beside the credit that was cut",
)
D_CHANGE_GAP = Theorem(
    "D-change-gap",
    "f and g wait throughout, and their quanta, equal at each moment, were at most Q: "
    "|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g + the credit that changes cut from the one that got less; a quantum that "
    "grows cuts nothing",
    "new: D-4.1 where the quantum follows the traffic",
    _WAITS,
    bound="(Q_max + U_f - 1) + (Q_max + U_g - 1) + B_f + B_g + the credit that was cut",
)

D_INT64 = Theorem(
    "D-int64",
    "with quanta, charges and B of at most 2^60, as all are that is accepted, every number that a kernel computes is "
    "within 2^62, for ever",
    "this library: proofs are about integers, production about int64",
    bound="2^62",
    rests_on=("charge-limit",),
)

# --- what the kernel does in one step, as theorems about the text alone ---------------------------------------------

D_GATE = Theorem(
    "D-gate",
    "the gate admits only a client that waits, has q > 0 and is ready, the best score among them, and one if any is",
    "theorems of the kernel itself: what GateRespected means",
)
D_FIRST = Theorem(
    "D-first",
    "where a client of the best score of all that wait is ready and has credit, no refill is due, and it is one that "
    "the gate chooses",
    "this library: why a decision need not look at the other clients",
)
D_REFILL = Theorem(
    "D-refill",
    "refill_rounds(q) = refill repeated until no refill is due, for any number of rounds and any quanta of 1 or more",
    "this library: the closed form that production runs is the kernel's event, repeated",
)
D_SUMS = Theorem(
    "D-sums",
    "outputs of two events, charged one after the other, leave the deficits that they leave charged together",
    "this library: a monitor plays what was decoded when the deficits are next looked at",
)
D_PRINTED = Theorem(
    "D-printed",
    "under the printed rule a client that comes back has neither credit nor debt, and no other deficit changes",
    "DLPM, its rejoin rule (reconstructed), kept as a variant: what the refutation of D-4.2 as printed is about",
)
D_UNDER_CAP = Theorem(
    "D-under-cap",
    "the cap keeps a request out exactly if the KV promised to its client would exceed it with the request",
    "this library: D-cap holds for any stricter cap, so this was found missing by a mutant",
)

# --- prefixes that several clients use ------------------------------------------------------------------------------
# The DLPM paper leaves it open which client pays.  Here the client that computes them pays for them, and later users
# `cached_percent` of the price.  No admission is charged more than the price of its prompt, and that lies in memory
# while it runs, so U is the same.

_SOURCE = "this library; the DLPM paper leaves open who pays for a prefix of several clients"

D_SHARE_U = Theorem(
    "D-share-U",
    "x + w_q O <= U for an admission charged x <= w_e p, whose prompt of p tokens lies in memory, cached or not",
    f"{_SOURCE}: cached tokens that are charged fit into the U without them",
    (MEM_RESERVE, CHARGES_AT_LEAST_ONE),
    bound="w_q M + (w_e - w_q) (L if w_e >= w_q else 1)",
)
D_EVICTION = Theorem(
    "D-eviction",
    "with cached_percent = c of 1 or more: a request is charged at least c per cent of its prompt and at most all of "
    "it, so evicting what is cached multiplies its charge by at most 100 / c",
    f"{_SOURCE}: where c is 0, evicting a prefix multiplies a charge by the prompt's length",
    bound="100 / c",
)

THEOREMS = (
    *(D_RANGE, D_A1, D_41, D_42, D_WEIGHTED, D_RANGE_REJOIN, D_41_REJOIN, D_GATE, D_FIRST, D_UNDER_CAP, D_REFILL),
    *(D_SUMS, D_WC, D_A2, D_A2_WEIGHTED, D_A2_TIME, D_STARVATION, D_PRICE, S_PREFILL, D_CAP, D_CAP_HOLDS),
    *(D_IN_FLIGHT, D_ELASTIC, D_MAY_HOLD, D_CHANGE),
    *(D_CHANGE_GAP, D_INT64),
)
"""Those about what ships, in the order of the report; D-printed and those of prefixes are about variants."""
