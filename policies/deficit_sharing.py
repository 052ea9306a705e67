"""What the deficit gate promises of prefixes that several clients use, whoever its `sharing` rule charges for them.

The DLPM paper leaves it open who pays.  The gate's other theorems are about what is charged and hold under each rule,
with the same U: no admission is charged more than the price of its prompt, and that lies in memory while it runs.
These say what the rules do to those charges: "equal-split" moves them and adds nothing, "per-use" charges cached tokens
too.
"""

from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, MEM_RESERVE, Scope, Theorem

_SOURCE = "this library; the DLPM paper leaves open who pays for a prefix of several clients"

D_SPLIT = Theorem(
    "D-split",
    "who takes over a share pays what the giver is given back: what was asked, or as much as leaves it one quantum of "
    "credit; nobody else's deficit changes, so all clients together are charged what is computed",
    f"{_SOURCE}: the equal split moves charges and makes none",
    (),
)
D_SPLIT_EVEN = Theorem(
    "D-split-even",
    "of a prefix of price x that k clients used, each has paid x / k, rounded up or down, whoever came first, and all "
    "together x",
    f"{_SOURCE}: the shipped books, for k <= 8 and x <= 120, where no giver was full of credit",
    (),
    scope=Scope.BOUNDED,
)
D_SHARE_U = Theorem(
    "D-share-U",
    "x + w_q O <= U for an admission charged x <= w_e p, whose prompt of p tokens lies in memory, cached or not",
    f"{_SOURCE}: shares that are taken over and cached tokens that are charged fit into the U of first-toucher",
    (MEM_RESERVE, CHARGES_AT_LEAST_ONE),
    bound="w_q M + (w_e - w_q) (L if w_e >= w_q else 1)",
)
D_EVICTION = Theorem(
    "D-eviction",
    "per use at c per cent: a request is charged at least c per cent of its prompt and at most all of it, so evicting "
    "what is cached multiplies its charge by at most 100 / c",
    f"{_SOURCE}: the other rules let whoever evicts a prefix multiply a charge by the prompt's length",
    (),
    bound="100 / c",
)
