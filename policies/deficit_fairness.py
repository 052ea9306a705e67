"""What the deficit gate promises of fairness: its range, its balance, and the gaps between two clients.

The theorems are about the kernel of `fairsched.policies.deficit`, in its symbols, and proved for every number of
clients.  The DLPM paper's statements are reconstructed.  Service is what a client was charged, less what it was given
back; so they hold under each of the gate's `sharing` rules, whoever that charges
(`fairsched.policies.deficit_sharing`).
"""

from fairsched.model.theorem import (
    BACKLOGGED_DURING,
    EQUAL_QUANTA,
    GATE_RESPECTED,
    MEM_RESERVE,
    QUANTUM_POSITIVE,
    REJOIN_KEEPS_DEBT,
    Theorem,
)
from fairsched.policies.deficit_progress import gap_cost, weighted_gap_cost

_BASE = (MEM_RESERVE, GATE_RESPECTED, QUANTUM_POSITIVE, REJOIN_KEEPS_DEBT)

D_RANGE = Theorem(
    "D-range",
    "1 - U_i <= q_i - R_i and q_i <= Q_i, so q_i stays in [1 - U_i, Q_i]",
    "DLPM, the lemma on the deficit's range (reconstructed); here in integers and for the pessimistic deficit",
    _BASE,
    bound="[1 - U_i, Q_i]",
)
D_A1 = Theorem(
    "D-A.1",
    "over any interval |credit refilled to i - W_i| <= Q_i + U_i - 1",
    "DLPM, lemma A.1 (reconstructed), whose constant max(U, Q) holds only from the start",
    _BASE,
    bound="Q_i + U_i - 1",
)
D_41 = Theorem(
    "D-4.1",
    "f and g backlogged over [t1, t2): |W_f - W_g| <= 2(Q + U - 1)",
    "DLPM, theorem 4.1 (reconstructed), which has 2(U + Q)",
    (*_BASE, EQUAL_QUANTA, BACKLOGGED_DURING),
    bound="(Q + U_f - 1) + (Q + U_g - 1)",
    bound_cost=gap_cost,
)
D_42 = Theorem(
    "D-4.2",
    "f backlogged over [t1, t2), g anybody: W_f >= W_g - 2(Q + U - 1)",
    "DLPM, theorem 4.2 (reconstructed); false as printed, whose rejoin rule forgives debt",
    (*_BASE, EQUAL_QUANTA, BACKLOGGED_DURING),
    bound="(Q + U_f - 1) + (Q + U_g - 1)",
    bound_cost=gap_cost,
)
D_WEIGHTED = Theorem(
    "D-weighted",
    "f and g backlogged over [t1, t2): |Q_g W_f - Q_f W_g| <= Q_g (Q_f + U_f - 1) + Q_f (Q_g + U_g - 1)",
    "new; divided by Q_f Q_g it is |W_f/Q_f - W_g/Q_g| <= 2 + (U_f - 1)/Q_f + (U_g - 1)/Q_g",
    (*_BASE, BACKLOGGED_DURING),
    bound="Q_g (Q_f + U_f - 1) + Q_f (Q_g + U_g - 1)",
    bound_cost=weighted_gap_cost,
    per_quantum=True,
)

FAIRNESS = (D_RANGE, D_A1, D_41, D_42, D_WEIGHTED)
"""In the order of the report."""
