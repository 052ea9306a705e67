"""What gates that spend credit on lease promise together, and what each fault costs.

There are n holders, each with at most S of a client's credit on lease; q is what the account has of a client, d_h the
balance at holder h, R_h what h may still charge it, U_h the most that h can charge it after h let it in, U - 1 the sum
of all (U_h - 1), and B the sum of what each h gives back at one time.  T = q + the sum of d_h is the client's true
deficit.  M is credit that faults made for a client since the interval began, and X credit that they took from it, both
0 without faults; M0 and X0 are the same for all time before.  Proved in `verify.proofs.gates.refinements`
(`leases`, `lease_holders`, `lease_messages`) for every number of clients and holders.  All of it is this library's.
"""

from fairsched.model.theorem import (
    BACKLOGGED_DURING,
    CHARGES_AT_LEAST_ONE,
    EQUAL_QUANTA,
    GATE_RESPECTED,
    MEM_RESERVE,
    QUANTUM_POSITIVE,
    WAITS_SAID,
    Theorem,
)
from fairsched.policies.gates.deficit import gap_cost, weighted_gap_cost

_NEW = "this library"
_KEPT = (MEM_RESERVE, CHARGES_AT_LEAST_ONE, GATE_RESPECTED)
_WAITS = (EQUAL_QUANTA, BACKLOGGED_DURING, WAITS_SAID)
_RESTS = ("L-most", "L-least", "L-renewal", "L-again")

L_RENEWAL = Theorem(
    "L-renewal",
    "a renewal is three things one after the other: all balances go back to the account but for what is owed beyond "
    "its credit, rounds are given until none is due, as the deficit gate gives them, and clients that wait there are "
    "lent what there is, at most S each",
    f"{_NEW}: what production computes at once is the events of the other theorems",
)
L_BALANCE = Theorem(
    "L-balance",
    "each holder's balance: 1 - U_h <= d_h - R_h and d_h + K_h <= S + B_h; so a holder that ends without leaving makes "
    "at most U_h - 1 for a client or takes at most S + B_h",
    _NEW,
    _KEPT,
    bound="[1 - U_h, S + B_h]",
)
L_MOST = Theorem(
    "L-most",
    "T + K <= Q + (n - 1) S + B + M: a client's true deficit, with M that faults made",
    _NEW,
    (QUANTUM_POSITIVE,),
    bound="Q + (n - 1) S + B + M",
    rests_on=("L-balance",),
)
L_DEBT = Theorem(
    "L-debt",
    "q + the sum of d_h - R_h + U_h - 1 over the holders at which the client has no credit, nor would after refunds, "
    "is -X or more, with X that lost writes took",
    _NEW,
    (MEM_RESERVE, GATE_RESPECTED, QUANTUM_POSITIVE),
    bound="-X",
    rests_on=("L-balance",),
)
L_LEAST = Theorem(
    "L-least",
    "T - R >= 1 - U - X: a client's true deficit; holders that come and go change nothing of it, since what they owe "
    "stays with the account",
    _NEW,
    (),
    bound="1 - U - X",
    rests_on=("L-balance", "L-debt"),
)
L_ACCOUNT = Theorem(
    "L-account",
    "of an account that lost writes k times, to any versions that it ever had: "
    "-V <= q <= Q + (n - 1) S + B + k (n S + B), where V is what holders owed as they left; so the first loss makes or "
    "takes at most Q + (n - 1) S + B + V of a client's credit",
    _NEW,
    (QUANTUM_POSITIVE,),
    bound="[-V, Q + (n - 1) S + B + k (n S + B)]",
    rests_on=("L-balance",),
)
L_GAP = Theorem(
    "L-gap",
    "f and g backlogged over [t1, t2), each at any holder: |W_f - W_g| <= 2(Q + U + (n - 1) S - 1) + B_f + B_g, U - 1 "
    "the sum of (U_h - 1)",
    f"{_NEW}; the constant is that of D2-stale with S = (n - 1) S, though a lease may also hide credit, which lets a "
    "refill come early",
    _WAITS,
    bound="(Q + U_f + (n - 1) S - 1) + (Q + U_g + (n - 1) S - 1) + B_f + B_g",
    bound_cost=gap_cost,
    rests_on=_RESTS,
)
L_LAG = Theorem(
    "L-lag",
    "f backlogged over [t1, t2) at any holder, g any client: W_f >= W_g - 2(Q + U + (n - 1) S - 1) - B_f - B_g; so "
    "while f waits and is not let in, no other client gets more than that beyond what runs of f",
    _NEW,
    (QUANTUM_POSITIVE, *_WAITS),
    bound="(Q + U_f + (n - 1) S - 1) + (Q + U_g + (n - 1) S - 1) + B_f + B_g",
    bound_cost=gap_cost,
    rests_on=_RESTS,
)
L_WEIGHTED = Theorem(
    "L-weighted",
    "f and g backlogged over [t1, t2), each at any holder, whatever their quanta: |Q_g W_f - Q_f W_g| <= "
    "Q_g (Q_f + U_f + (n - 1) S - 1 + B_f) + Q_f (Q_g + U_g + (n - 1) S - 1 + B_g)",
    _NEW,
    (QUANTUM_POSITIVE, BACKLOGGED_DURING, WAITS_SAID),
    bound="Q_g (Q_f + U_f + (n - 1) S - 1 + B_f) + Q_f (Q_g + U_g + (n - 1) S - 1 + B_g)",
    bound_cost=weighted_gap_cost,
    per_quantum=True,
    rests_on=_RESTS,
)
L_PROGRESS = Theorem(
    "L-progress",
    "after a renewal of a holder at which clients wait, one that waits there has credit there, or one that waits only "
    "at others has credit in the account; each that waits there has credit there if the account had some, and none has "
    "that waits only at others; and a client that owes there has no credit in the account",
    f"{_NEW}; a client in credit that waits where there is no room holds up the refill of others, as with one deficit "
    "for all workers (D2-steal)",
)
L_AGAIN = Theorem(
    "L-again",
    "renewals and answers that are lost, late, out of order or come any number of times change no client's T: what one "
    "moves to a balance is gone from the account once, and comes back once if its answer was not heard",
    f"{_NEW}; as long as the account knows the holder and has lost no write",
)
L_FAULTS = Theorem(
    "L-faults",
    "f and g backlogged over [t1, t2), each at any holder, with any faults: "
    "W_f - W_g <= 2(Q + U + (n - 1) S - 1) + B_f + B_g + M_f + X_g + (M0 + X0)_f + (M0 + X0)_g, and so of g and f",
    _NEW,
    _WAITS,
    bound="(Q + U_f + (n - 1) S - 1) + (Q + U_g + (n - 1) S - 1) + B_f + B_g + M_f + X_g + M0 + X0 of both",
    rests_on=_RESTS,
)
L_INT64 = Theorem(
    "L-int64",
    "with quanta, leases, balances and credit in the account of at most 2^60, every number that a renewal computes is "
    "within 2^62",
    f"{_NEW}: proofs are about integers, production about int64",
    bound="2^62",
)

LEASE_THEOREMS = (
    *(L_BALANCE, L_MOST, L_DEBT, L_LEAST, L_ACCOUNT, L_GAP, L_LAG, L_WEIGHTED),
    *(L_PROGRESS, L_RENEWAL, L_AGAIN, L_FAULTS, L_INT64),
)
"""In the order of the report."""
