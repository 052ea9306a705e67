"""How much a worker may charge before a client that waits is let in: D-A.2-time with every term at its largest.

Theorem: while f waits and is not let in, a times that wait is at most R_f + the sum over every other g of
2 Q_g + U_g - 1 + D Q_g / Q_f, for a worker that charges at least a cost units a second (D-A.2-weighted, summed up as
D-A.2-time is; docs/theorems.md).  The configuration bounds what the state of the gate may be: R_f and the debt D are at
most U_f - 1, since who owes anything was let in for at least one token.
"""

from collections import Counter
from typing import Any

from fairsched.model.request import Client
from fairsched.model.theorem import REJOIN_KEEPS_DEBT
from fairsched.policies.base import Limits
from fairsched.policies.deficit_progress import D_A2_WEIGHTED, weighted_gap_cost
from fairsched.policies.gate import Gate


def wait_bound_cost(gate: Gate[Any], clients: tuple[Client, ...], limits: Limits) -> int | None:
    """The most cost units that a worker charges to all while any one of the clients waits and is not let in.

    Divided by a rate it is a time.  None where the gate does not promise it: without quanta, where who comes back is
    forgiven its debt, and where charges move or credit is shared between workers.  O(weights squared).
    """
    if D_A2_WEIGHTED not in gate.theorems or REJOIN_KEEPS_DEBT in gate.broken_assumptions:
        return None
    if gate.splits or limits.workers > 1:
        return None
    kinds = Counter(gate.stakes(clients, limits))
    worst = 0
    for f in kinds:
        bound = f.charge_max - 1
        for g, count in kinds.items():
            # The bound of each other client is times f's quantum.
            each = weighted_gap_cost(f.quantum, f.charge_max, g.quantum, g.charge_max) // f.quantum
            bound += (count - (g == f)) * each
        worst = max(worst, bound)
    return worst
