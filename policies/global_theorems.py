"""What is promised about one deficit a client for all workers (`policies.global_deficit`), in its symbols.

m workers; U_w is the U of worker w, U = sum over w of (U_w - 1) + 1 that of the cluster.  W_i is what all workers
together charged client i.  Proved in `fairsched.verify.global_proofs` for every number of clients, and of workers.
All of it is this library's; the paper's gate keeps a deficit for each client and worker (see docs/d2lpm.md).
"""

from fairsched.model.theorem import (
    BACKLOGGED_DURING,
    BACKLOGGED_TOGETHER,
    CHARGES_AT_LEAST_ONE,
    EQUAL_QUANTA,
    GATE_RESPECTED,
    GLOBAL_REFILL,
    MEM_RESERVE,
    QUANTUM_POSITIVE,
    REJOIN_KEEPS_DEBT,
    STALE_READS,
    Theorem,
)
from fairsched.policies.deficit_progress import gap_cost

_NEW = "this library"
_BASE = (MEM_RESERVE, GATE_RESPECTED, QUANTUM_POSITIVE, REJOIN_KEEPS_DEBT)
_GAP = (*_BASE, EQUAL_QUANTA, BACKLOGGED_DURING)
_RESTS = ("D2-memory", "D2-places")

D2_MEMORY = Theorem(
    "D2-memory",
    "if each worker w charges a client at most U_w after it let it in, the cluster charges it at most "
    "sum of (U_w - 1) + 1 after any worker did",
    _NEW,
    (MEM_RESERVE, CHARGES_AT_LEAST_ONE),
    bound="sum over w of (U_w - 1) + 1",
)
D2_PLACES = Theorem(
    "D2-places",
    "the gate counts at how many workers a client waits: it waits somewhere if and only if the count is above zero, "
    "also while its requests move",
    _NEW,
    (),
)
D2_GLOBAL = Theorem(
    "D2-global",
    "f and g backlogged anywhere over [t1, t2): |W_f - W_g| <= 2(Q + U - 1) = 2(Q + sum of (U_w - 1)), whatever "
    "routes, orders and moves their requests",
    _NEW,
    (*_GAP, GLOBAL_REFILL),
    bound="(Q + U_f - 1) + (Q + U_g - 1), U = sum over w of (U_w - 1) + 1",
    bound_cost=gap_cost,
    rests_on=_RESTS,
)
D2_LAG = Theorem(
    "D2-lag",
    "f backlogged anywhere over [t1, t2), g anybody: W_f >= W_g - 2(Q + U - 1)",
    _NEW,
    (*_GAP, GLOBAL_REFILL),
    bound="(Q + U_f - 1) + (Q + U_g - 1), U = sum over w of (U_w - 1) + 1",
    bound_cost=gap_cost,
    rests_on=_RESTS,
)
D2_STEAL = Theorem(
    "D2-steal",
    "whenever somebody waits anywhere and no refill is due, a client in credit waits somewhere: an idle worker may "
    "take its request, so with stealing none idles while something waits that fits it",
    _NEW,
    (),
)
D2_GIFT = Theorem(
    "D2-gift",
    "with keeps=work, f and g backlogged anywhere: |W_f - W_g - (G_f - G_g)| <= 2(Q + U - 1), where G_i is the credit "
    "that workers gave i to keep themselves busy",
    _NEW,
    _GAP,
    bound="(Q + U_f - 1) + (Q + U_g - 1), beside the gifts",
    bound_cost=gap_cost,
    rests_on=_RESTS,
)
D2_TOGETHER = Theorem(
    "D2-together",
    "with keeps=work, f and g backlogged at the same workers over [t1, t2): |W_f - W_g| <= 2(Q + U - 1)",
    _NEW,
    (*_GAP, BACKLOGGED_TOGETHER),
    bound="(Q + U_f - 1) + (Q + U_g - 1)",
    bound_cost=gap_cost,
    rests_on=_RESTS,
)
D2_UNSENT = Theorem(
    "D2-unsent",
    "what a holder has not told stays in [0, most] for each client, and ledger less all that is unsent is the truth",
    _NEW,
    (),
    bound="most",
)
D2_STALE = Theorem(
    "D2-stale",
    "copies that lack at most S charges of each client, f and g backlogged anywhere: |W_f - W_g| <= 2(Q + U + S - 1)",
    _NEW,
    (*_GAP, GLOBAL_REFILL, STALE_READS),
    bound="(Q + U_f + S - 1) + (Q + U_g + S - 1)",
    bound_cost=gap_cost,
    rests_on=(*_RESTS, "D2-unsent"),
)

THEOREMS = (
    *(D2_MEMORY, D2_PLACES, D2_GLOBAL, D2_LAG, D2_STEAL),
    *(D2_GIFT, D2_TOGETHER, D2_UNSENT, D2_STALE),
)
"""In the order of the report."""
