"""What is true of E2's choices: who is exploited, who is cheapest, and how far loads can be apart.

Source: none of these is in Preble, which proves nothing; they are what its prose leads a reader to expect, made exact.
Loads are L, costs L + M + P, all in nanoseconds of work; Th is `threshold_percent` / 100.
"""

from fairsched.model.theorem import Assumption, Scope, Theorem

RESIDENCY_KNOWN = Assumption("ResidencyKnown", "The workers hold exactly what the router was told.")
COST_AT_MOST = Assumption(
    "CostAtMost", "A request adds at most c to a load, and what it misses and evicts is part of that."
)
THRESHOLD_AT_LEAST_ONE = Assumption("ThresholdAtLeastOne", "The threshold is at least one, and loads are not negative.")
NOTHING_EXPIRES = Assumption("NothingExpires", "No request leaves the window.")
STARTS_WITHIN = Assumption("StartsWithin", "The bound holds before.")
EQUAL_MISS = Assumption("EqualMiss", "The request misses as much at every worker, and nothing is evicted for it.")

OURS = "ours; the rule is Preble's, section 3.2"

P_E2_1 = Theorem(
    "P-E2-1",
    "Whoever exploits misses as little as at any worker that can hold the request, and less than is cached",
    OURS,
    (RESIDENCY_KNOWN,),
    scope=Scope.TESTED,
)
P_E2_2 = Theorem(
    "P-E2-2", "A request exploits exactly if more than half of it is cached, which is less missed than cached", OURS, ()
)
P_E2_3 = Theorem(
    "P-E2-3",
    "Of up to 3 workers the one with the least base and extra cost is found, the first of equals, and another is not "
    "if all bases grow by the same",
    OURS,
    (),
    scope=Scope.BOUNDED,
)
P_E2_4 = Theorem(
    "P-E2-4",
    "With rebalancing per source every load is at most Th times the least and c, after every placement",
    OURS,
    (COST_AT_MOST, THRESHOLD_AT_LEAST_ONE, NOTHING_EXPIRES, STARTS_WITHIN),
    bound="Th L_min + c",
)
P_E2_5 = Theorem(
    "P-E2-5",
    "Where all of up to 3 workers miss as much, exploring keeps loads within c of each other",
    OURS,
    (COST_AT_MOST, EQUAL_MISS, NOTHING_EXPIRES, STARTS_WITHIN),
    bound="c",
    scope=Scope.BOUNDED,
)
P_E2_6 = Theorem(
    "P-E2-6",
    "What a worker is said to hold is closed under prefixes, and evicting its victims in their order frees what they "
    "say, never a part of which it still holds more",
    OURS,
    (),
    scope=Scope.TESTED,
)

THEOREMS = (P_E2_1, P_E2_2, P_E2_3, P_E2_4, P_E2_5, P_E2_6)

# --- what is false of the rule as printed -----------------------------------------------------------------------------

F_E2_1 = Theorem(
    "F-E2-1",
    "Whoever exploits the longest node of the path misses as little as at any worker, and less than is cached",
    OURS,
    (),
    scope=Scope.TESTED,
)
F_E2_2 = Theorem("F-E2-2", "The worker that is exploited is the one with the least total cost", OURS, ())
F_E2_3 = Theorem(
    "F-E2-3",
    "With rebalancing from the heaviest worker alone every load is at most Th times the least and c",
    OURS,
    (COST_AT_MOST, THRESHOLD_AT_LEAST_ONE, NOTHING_EXPIRES, STARTS_WITHIN),
)
F_E2_4 = Theorem("F-E2-4", "What the global tree matches of a prompt, some worker holds", OURS, (), scope=Scope.TESTED)
