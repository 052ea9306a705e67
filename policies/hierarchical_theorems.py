"""What the hierarchical gate promises: siblings share as clients of the deficit gate do, at every level of the tree.

The theorems are about the kernels of `fairsched.policies.hierarchical` and, of the deficit gate, those that it runs in
every family; a *node* is a client or a group, U_i is the most that may be charged to node i after the gate let a client
at or below it in.  All clients of a node share one worker's memory, so its U is that of one client.  The service of a
node is what it was charged, less what it was given back.
"""

from fairsched.model.theorem import (
    BACKLOGGED_DURING,
    EQUAL_QUANTA,
    GATE_RESPECTED,
    MEM_RESERVE,
    QUANTUM_POSITIVE,
    Scope,
    Theorem,
)
from fairsched.policies.deficit_progress import gap_cost, weighted_gap_cost

_BASE = (MEM_RESERVE, GATE_RESPECTED, QUANTUM_POSITIVE)
_SOURCE = "this library; D-4.1 among the children of every node of a tree"

H_RANGE = Theorem(
    "H-range",
    "1 - U_i <= q_i - R_i and q_i <= Q_i for every node i, so q_i stays in [1 - U_i, Q_i]",
    "this library; D-range at every node",
    _BASE,
    bound="[1 - U_i, Q_i]",
)
H_SIBLINGS = Theorem(
    "H-siblings",
    "f and g of one family, below each of which somebody waits all over [t1, t2): |W_f - W_g| <= 2(Q + U - 1), "
    "whatever is below them",
    _SOURCE,
    (*_BASE, EQUAL_QUANTA, BACKLOGGED_DURING),
    bound="(Q + U_f - 1) + (Q + U_g - 1)",
    bound_cost=gap_cost,
)
H_WEIGHTED = Theorem(
    "H-weighted",
    "f and g of one family, below each of which somebody waits: "
    "|Q_g W_f - Q_f W_g| <= Q_g (Q_f + U_f - 1) + Q_f (Q_g + U_g - 1)",
    "this library; D-weighted among the children of every node of a tree",
    (*_BASE, BACKLOGGED_DURING),
    bound="Q_g (Q_f + U_f - 1) + Q_f (Q_g + U_g - 1)",
    bound_cost=weighted_gap_cost,
    per_quantum=True,
)
H_SPLIT = Theorem(
    "H-split",
    "f waits over [t1, t2), g is an organisation beside it: all clients of g together, however many and whenever they "
    "come and go, are served at most W_f + 2(Q + U - 1)",
    "this library; in the flat gate k clients get k shares, and no such bound holds (F-HIER-1)",
    (*_BASE, EQUAL_QUANTA, BACKLOGGED_DURING),
    bound="(Q + U_f - 1) + (Q + U_g - 1)",
    bound_cost=gap_cost,
)
H_GATE = Theorem(
    "H-gate",
    "the gate lets in only who waits, is ready and has credit, as its groups have, the best score among them, and "
    "somebody if there is one",
    "theorems of the kernel itself: what GateRespected means",
    (),
)
H_ROUNDS = Theorem(
    "H-rounds",
    "in a family in which somebody waits, at most floor((U_i - 1) / Q_i) + 1 rounds of refill, for every i who waits, "
    "give somebody who waits credit, whatever other families do",
    "this library; D-wc in every family",
    _BASE,
    bound="floor((U_i - 1) / Q_i) + 1",
)
H_PROGRESS = Theorem(
    "H-progress",
    "in a family whose groups have credit, in which somebody waits, nobody is passed over and no refill is due, "
    "somebody is let in; so, from the root down, a client is let in whenever one waits",
    "this library; the step from a node to its children, which is taken as often as the tree is deep",
    (),
)
H_REFUND = Theorem(
    "H-refund",
    "a client and its groups are given back the same amount: what was asked, or as much as leaves each of them one "
    "quantum of credit; nobody else's deficit changes",
    "this library; so a group's service is the sum of its clients'",
    (),
)
H_CHANGE = Theorem(
    "H-change",
    "whatever weights of clients and groups do: 1 - U_i <= q_i <= Q_i(now) for every node, and over any interval in "
    "which i's quantum was at most Q, |credit refilled - credit cut - W_i| <= Q + U_i - 1",
    "this library; D-change at every node",
    _BASE,
    bound="Q_max + U_i - 1, beside the credit that was cut",
)
H_FAMILIES = Theorem(
    "H-families",
    "all families refilled at once have the deficits that each has when the deficit gate refills it alone",
    "this library: one run of the kernel's text on all nodes, by an interpretation whose words are said of families",
    (),
    scope=Scope.TESTED,
)

THEOREMS = (H_RANGE, H_SIBLINGS, H_WEIGHTED, H_SPLIT, H_GATE, H_ROUNDS, H_PROGRESS, H_REFUND, H_CHANGE, H_FAMILIES)
"""In the order of the report."""
