"""What the hierarchical gate promises, and what its kernels do: statements; the proofs are in `verify`.

A *node* is a client or a group, U_i is the most that may be charged to node i after a client at or below it was
admitted.  All clients of a node share one worker's memory, so its U is that of one client.
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
from fairsched.policies.gates.deficit import gap_theorem, weighted_gap_cost

_BASE = (MEM_RESERVE, GATE_RESPECTED, QUANTUM_POSITIVE)
_AT_ONCE = ("H-families",)
"""What theorems about rounds of refill rest on: production refills all families at once."""
_SOURCE = "this library; D-4.1 among the children of every node of a tree"

H_RANGE = Theorem(
    "H-range",
    "1 - U_i <= q_i - R_i and q_i <= Q_i + B_i for every node i, so q_i stays in [1 - U_i, Q_i + B_i]",
    "this library; D-range at every node",
    _BASE,
    bound="[1 - U_i, Q_i + B_i]",
    rests_on=_AT_ONCE,
)
H_SIBLINGS = gap_theorem(
    "H-siblings",
    "f and g of one family, below each of which a client waits all over [t1, t2): "
    "|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g, whatever is below them",
    _SOURCE,
    (*_BASE, EQUAL_QUANTA, BACKLOGGED_DURING),
    rests_on=_AT_ONCE,
)
H_WEIGHTED = Theorem(
    "H-weighted",
    "f and g of one family, below each of which a client waits: "
    "|Q_g W_f - Q_f W_g| <= Q_g (Q_f + U_f - 1 + B_f) + Q_f (Q_g + U_g - 1 + B_g)",
    "this library; D-weighted among the children of every node of a tree",
    (*_BASE, BACKLOGGED_DURING),
    bound="Q_g (Q_f + U_f - 1 + B_f) + Q_f (Q_g + U_g - 1 + B_g)",
    bound_cost=weighted_gap_cost,
    per_quantum=True,
    rests_on=_AT_ONCE,
)
H_SPLIT = gap_theorem(
    "H-split",
    "f waits over [t1, t2), g is an organisation beside it: all clients of g together, however many and whenever they "
    "come and go, are served at most W_f + 2(Q + U - 1) + B_f + B_g",
    "this library; in the flat gate k clients get k shares, and no such bound holds (F-HIER-1)",
    (*_BASE, EQUAL_QUANTA, BACKLOGGED_DURING),
    rests_on=_AT_ONCE,
)
H_GATE = Theorem(
    "H-gate",
    "the gate admits only a client that waits, is ready and has credit, as its groups have, the best score among "
    "them, and one if there is one",
    "theorems of the kernel itself: what GateRespected means",
)
H_FIRST = Theorem(
    "H-first",
    "a client of the best score of all that wait, if it is ready and it and its groups have credit, is one that the "
    "gate chooses",
    "this library: why a decision need not look at the other clients",
)
H_ROUNDS = Theorem(
    "H-rounds",
    "in a family in which a client waits, at most floor((U_i - 1) / Q_i) + 1 rounds of refill, for every i that waits, "
    "give a waiting client credit, whatever other families do",
    "this library; D-wc in every family",
    _BASE,
    bound="floor((U_i - 1) / Q_i) + 1",
    rests_on=_AT_ONCE,
)
H_PROGRESS = Theorem(
    "H-progress",
    "in a family whose groups have credit, in which a client waits, none is passed over and no refill is due, "
    "one is let in; so, from the root down, a client is let in whenever one waits",
    "this library; the step from a node to its children, which is taken as often as the tree is deep",
)
H_REFUND = Theorem(
    "H-refund",
    "a client and its groups are each given back what was asked, and no other deficit changes",
    "this library; so a group's service is the sum of its clients'",
)
H_CHANGE = Theorem(
    "H-change",
    "whatever weights of clients and groups do: 1 - U_i <= q_i <= Q_i(now) + B_i for every node, and over any interval "
    "in which i's quantum was at most Q, |credit refilled - credit cut - W_i| <= Q + U_i - 1 + B_i",
    "this library; D-change at every node",
    _BASE,
    bound="Q_max + U_i - 1 + B_i, beside the credit that was cut",
    rests_on=_AT_ONCE,
)
H_FAMILIES = Theorem(
    "H-families",
    "all families refilled at once have the deficits that each has when the deficit gate refills it alone",
    "this library; the shipped text of `refilled`, whose words are said of every family at once",
    rests_on=("D-refill",),
)
H_WORDS = Theorem(
    "H-words",
    "the interpretation whose words are said of families gives each family of a forest what the deficit gate's rounds "
    "give it alone: for all families of up to 3 members, in one forest, in whatever order its nodes are",
    "this library; SiblingAlgebra, the running interpretation of the words that H-families is about",
    scope=Scope.BOUNDED,
)

THEOREMS = (
    *(H_RANGE, H_SIBLINGS, H_WEIGHTED, H_SPLIT, H_GATE, H_FIRST, H_ROUNDS, H_PROGRESS, H_REFUND, H_CHANGE),
    *(H_FAMILIES, H_WORDS),
)
