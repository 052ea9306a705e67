"""What the deficit gate promises under either rejoin rule: `keep`, which ships, and `reset`, which was printed.

A client that comes back at zero is forgiven its debt, and every theorem that counts on debt falls.  These two count on
something else: an admission charges at least one unit, so less than U is left to be charged when a client comes back.
"""

from fairsched.model.theorem import (
    BACKLOGGED_DURING,
    CHARGES_AT_LEAST_ONE,
    EQUAL_QUANTA,
    GATE_RESPECTED,
    MEM_RESERVE,
    QUANTUM_POSITIVE,
    Theorem,
)
from fairsched.policies.deficit_progress import gap_cost

_BASE = (MEM_RESERVE, GATE_RESPECTED, QUANTUM_POSITIVE, CHARGES_AT_LEAST_ONE)

D_RANGE_REJOIN = Theorem(
    "D-range-rejoin",
    "D-range, whether who comes back keeps its deficit or starts at zero",
    "DLPM, the lemma on the deficit's range (reconstructed), under its printed rejoin rule too",
    _BASE,
    bound="[1 - U_i, Q_i]",
)
D_41_REJOIN = Theorem(
    "D-4.1-rejoin",
    "D-4.1, whether who comes back keeps its deficit or starts at zero: |W_f - W_g| <= 2(Q + U - 1)",
    "DLPM, theorem 4.1 (reconstructed), under its printed rejoin rule too; D-4.2 is false under that",
    (*_BASE, EQUAL_QUANTA, BACKLOGGED_DURING),
    bound="(Q + U_f - 1) + (Q + U_g - 1)",
    bound_cost=gap_cost,
)

REJOIN = (D_RANGE_REJOIN, D_41_REJOIN)
"""In the order of the report."""
