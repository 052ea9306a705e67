"""What the deficit gate inside the batch promises, for any number of clients (`verify.proofs.gates.refinements`).

U is `charge_max_paused`: w_q B + w_e L, for at most B running requests of at most L tokens, and a pause from a debt of
P on, which is at most w_e L.  R is what may be charged to a client before the gate looks at it again, B_i the most of
its charges at one time that will be given back.
"""

from fairsched.model.theorem import (
    BACKLOGGED_DURING,
    BATCH_BOUNDED,
    EQUAL_QUANTA,
    EXTEND_AS_PLANNED,
    GATE_RESPECTED,
    PAUSES_OBEYED,
    QUANTUM_POSITIVE,
    REJOIN_KEEPS_DEBT,
    Theorem,
)
from fairsched.policies.gates.deficit.theorems import (
    D_FIRST,
    D_GATE,
    D_INT64,
    D_REFILL,
    D_SUMS,
    D_UNDER_CAP,
    gap_theorem,
    weighted_gap_cost,
)

_RANGE = (BATCH_BOUNDED, EXTEND_AS_PLANNED, GATE_RESPECTED, PAUSES_OBEYED, QUANTUM_POSITIVE)
_BASE = (*_RANGE, REJOIN_KEEPS_DEBT)
_PAIR = (*_BASE, EQUAL_QUANTA, BACKLOGGED_DURING)
_SOURCE = "this library: a gate that looks before every step"

D_PAUSE_RANGE = Theorem(
    "D-pause-range",
    "1 - U <= q_i - R_i and q_i <= Q_i + B_i, whatever the memory, with U = w_q B + w_e L",
    f"{_SOURCE}; D-range, with a batch in place of the memory",
    _RANGE,
    bound="[1 - U, Q_i + B_i]",
)
D_PAUSE_GAP = gap_theorem(
    "D-pause-gap",
    "f and g backlogged over [t1, t2): |W_f - W_g| <= 2(Q + U - 1) + B_f + B_g",
    f"{_SOURCE}; D-4.1, with a batch in place of the memory",
    _PAIR,
)
D_PAUSE_LAG = gap_theorem(
    "D-pause-lag",
    "f backlogged over [t1, t2), g any client: W_f >= W_g - 2(Q + U - 1) - B_f - B_g",
    f"{_SOURCE}; D-4.2, with a batch in place of the memory",
    _PAIR,
)
D_PAUSE_WEIGHTED = Theorem(
    "D-pause-weighted",
    "f and g backlogged over [t1, t2): |Q_g W_f - Q_f W_g| <= Q_g (Q_f + U - 1 + B_f) + Q_f (Q_g + U - 1 + B_g)",
    f"{_SOURCE}; D-weighted, with a batch in place of the memory",
    (*_BASE, BACKLOGGED_DURING),
    bound="Q_g (Q_f + U_f - 1 + B_f) + Q_f (Q_g + U_g - 1 + B_g)",
    bound_cost=weighted_gap_cost,
    per_quantum=True,
)
D_PAUSE_DEBT = Theorem(
    "D-pause-debt",
    "from any deficits, of a gate that forgives nothing too: f and g backlogged over [t1, t2): W_f - W_g <= "
    "2(Q + U - 1) + B_f + B_g + D_g, where D_g is what g owed at t1 beyond U - 1",
    f"{_SOURCE}: what a debt costs that was made while no client waited",
    _PAIR,
    bound="(Q + U_f - 1) + (Q + U_g - 1) + B_f + B_g + D_g",
)
D_PAUSE = Theorem(
    "D-pause",
    "a client is paused exactly while it owes P or more, so never in credit; while no client waits no client is, and "
    "what is taken out is of the client that owes most among those that are paused",
    "theorems of the kernel itself: what PausesObeyed means",
)
D_PAUSE_PROGRESS = Theorem(
    "D-pause-progress",
    "once settled: if clients wait, one of them has credit, so that it may decode and be let in, and is never taken "
    "out; if none waits, every client that was seen may decode",
    f"{_SOURCE}: no client stands still for ever",
)
D_PAUSE_WORK = Theorem(
    "D-pause-work",
    "a client that is paused was charged more than w_e o for outputs since a request of it was last let in, of which o "
    "output tokens were declared and left",
    f"{_SOURCE}: requests are not taken out again and again before they get far",
    (EXTEND_AS_PLANNED, GATE_RESPECTED, QUANTUM_POSITIVE),
    bound="w_e o + 1",
)

THEOREMS = (
    *(D_PAUSE_RANGE, D_PAUSE_GAP, D_PAUSE_LAG, D_PAUSE_WEIGHTED, D_PAUSE_DEBT),
    *(D_PAUSE, D_PAUSE_PROGRESS, D_PAUSE_WORK, D_GATE, D_FIRST, D_REFILL, D_SUMS, D_UNDER_CAP, D_INT64),
)
"""Those about what ships, in the order of the report."""
