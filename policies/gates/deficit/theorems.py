"""What the deficit gate promises beyond fairness: somebody is served, everybody is served in time, and at what price.

The theorems are about the kernel of `fairsched.policies.deficit`, in its symbols, and proved beside those stated there.
Sources name the DLPM paper, whose statements are reconstructed.
"""

from fairsched.model.theorem import (
    BACKLOGGED_DURING,
    CAPACITY_FLOOR,
    CAPPED,
    CHARGES_AT_LEAST_ONE,
    EQUAL_QUANTA,
    EXTEND_AS_PLANNED,
    GATE_RESPECTED,
    MEM_RESERVE,
    NOTHING_REFUNDED,
    QUANTUM_POSITIVE,
    REJOIN_KEEPS_DEBT,
    Theorem,
)

_BASE = (MEM_RESERVE, GATE_RESPECTED, QUANTUM_POSITIVE)
_WAITS = (*_BASE, EQUAL_QUANTA, BACKLOGGED_DURING, REJOIN_KEEPS_DEBT)


def gap_cost(quantum_f: int, charge_max_f: int, quantum_g: int, charge_max_g: int) -> int:
    """The bound of D-4.1, D-4.2 and D-cap in cost units (U of the capped memory for the last), and of D-A.2 for each
    client that f waits for, if f comes with the deepest debt."""
    return (quantum_f + charge_max_f - 1) + (quantum_g + charge_max_g - 1)


def weighted_gap_cost(quantum_f: int, charge_max_f: int, quantum_g: int, charge_max_g: int) -> int:
    """The bound of D-weighted, and of D-A.2-weighted with the deepest debt, in cost units times a quantum."""
    return quantum_g * (quantum_f + charge_max_f - 1) + quantum_f * (quantum_g + charge_max_g - 1)


D_WC = Theorem(
    "D-wc",
    "whenever somebody waits, at most floor((U_i - 1) / Q_i) + 1 rounds of refill, for every i who waits, and none to "
    "spare, give somebody who waits credit; D-gate then lets one in",
    "DLPM, work conservation (reconstructed), which holds only if the refill is repeated; the number of rounds is ours",
    (*_BASE, REJOIN_KEEPS_DEBT),
    bound="floor((U_i - 1) / Q_i) + 1",
)
D_A2 = Theorem(
    "D-A.2",
    "while f waits and is not let in: W_g <= 2Q + U_g - 1 + D for every other g, and W_f <= R_f(t1), where "
    "D = max(0, R_f - q_f) at t1, at most U_f - 1",
    "DLPM, lemma A.2 (reconstructed): 2 (n - 1) (Q + U) / a; holds for clients and not for requests",
    _WAITS,
    bound="2Q + U_g - 1 + D",
    bound_cost=gap_cost,
)
D_A2_WEIGHTED = Theorem(
    "D-A.2-weighted",
    "while f waits and is not let in, whatever the quanta: Q_f W_g <= Q_f (2 Q_g + U_g - 1) + Q_g D for g other than f",
    "new; divided by Q_f it is W_g <= 2 Q_g + U_g - 1 + D Q_g/Q_f: D-A.2, with f's debt in rounds of its own quantum",
    (*_BASE, BACKLOGGED_DURING, REJOIN_KEEPS_DEBT),
    bound="Q_f (2 Q_g + U_g - 1) + Q_g D",
    bound_cost=weighted_gap_cost,
    per_quantum=True,
)
D_A2_TIME = Theorem(
    "D-A.2-time",
    "a (t2 - t1) <= R_f(t1) + the sum over g other than f of 2Q + U_g - 1 + D, for f waiting and not let in",
    "DLPM, lemma A.2 (reconstructed); D-A.2 summed over any number of clients",
    (CAPACITY_FLOOR,),
    bound="R_f(t1) + sum over g of 2Q + U_g - 1 + D",
    rests_on=("D-A.2",),
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
D_CAP = Theorem(
    "D-cap",
    "with an in-flight cap C: 1 - U <= q_i <= Q_i, and |W_f - W_g| <= 2(Q + U - 1) for f and g backlogged, with "
    "U = w_q min(C, M) + (w_e - w_q) (L if w_e >= w_q else 1)",
    "new: D-range and D-4.1 with min(C, M) in place of M, from the cap's own arithmetic",
    (
        CAPPED,
        MEM_RESERVE,
        CHARGES_AT_LEAST_ONE,
        EXTEND_AS_PLANNED,
        GATE_RESPECTED,
        QUANTUM_POSITIVE,
        EQUAL_QUANTA,
        BACKLOGGED_DURING,
        REJOIN_KEEPS_DEBT,
    ),
    bound="2(Q + U(min(C, M)) - 1)",
    bound_cost=gap_cost,
)
D_CAP_HOLDS = Theorem(
    "D-cap-holds",
    "while f waits in credit, capped or not, no refill is due and nobody is topped up",
    "new: a cap costs time, never fairness",
    (BACKLOGGED_DURING,),
)
D_CHANGE = Theorem(
    "D-change",
    "whatever weights and quanta do: 1 - U_i <= q_i <= Q_i(now), and over any interval in which i's quantum was at "
    "most Q, |credit refilled - credit cut - W_i| <= Q + U_i - 1",
    "new: what survives a change; credit above the new quantum is cut and debt stays",
    (MEM_RESERVE, GATE_RESPECTED, QUANTUM_POSITIVE, REJOIN_KEEPS_DEBT),
    bound="Q_max + U_i - 1, beside the credit that was cut",
)

D_INT64 = Theorem(
    "D-int64",
    "with quanta and charges of at most 2^60 every number that a kernel computes is within 2^62, for ever",
    "this library: proofs are about integers, production about int64",
    (),
    bound="2^62",
)

PROGRESS = (D_WC, D_A2, D_A2_WEIGHTED, D_A2_TIME, D_STARVATION, D_PRICE, D_CAP, D_CAP_HOLDS, D_CHANGE, D_INT64)
"""In the order of the report."""
