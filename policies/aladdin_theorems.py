"""What is claimed of Aladdin's placement, its memory, its iteration times and its re-balancing."""

from fairsched.model.theorem import Assumption, Scope, Theorem

PREDICTIONS_BOUND = Assumption("PredictionsBound", "No output is longer than was foreseen.")
STARTS_AT_ONCE = Assumption(
    "StartsAtOnce", "Requests begin when they are placed, and all of a worker advance together, a token an iteration."
)
LINES_EXACT = Assumption("LinesExact", "Iterations take what the worker's lines say.")
GAMMA_WHOLE = Assumption("GammaWhole", "Of a foreseen output all is counted (gamma = 1).")
EQUAL_OUTPUTS = Assumption("EqualOutputs", "All requests of a batch begin together and end together.")
LINEAR_GROUPS = Assumption("LinearGroups", "Each group needs at most a + b rate workers, rounded up.")

_HERE = "this library; Aladdin, section 4"

P_ALD_1 = Theorem(
    "P-ALD-1",
    "where a request is placed by the rule, (b) to (e) hold with it, on an empty worker too",
    _HERE,
    (),
    scope=Scope.TESTED,
)
P_ALD_2 = Theorem(
    "P-ALD-2",
    "a worker that (e) lets a third request into never holds more KV than it has, if it did not before",
    "Aladdin, constraint (e)",
    (PREDICTIONS_BOUND, STARTS_AT_ONCE),
    bound="kv_capacity",
)
P_ALD_3 = Theorem(
    "P-ALD-3",
    "with peaks reserved, KV never exceeds the capacity, for any number of requests, whenever each starts",
    "this library",
    (PREDICTIONS_BOUND,),
    bound="kv_capacity",
)
P_ALD_4 = Theorem(
    "P-ALD-4",
    "while (b) holds of a batch, none of its decode iterations takes longer than the target per token",
    "Aladdin, equation 4",
    (PREDICTIONS_BOUND, LINES_EXACT, GAMMA_WHOLE),
    bound="tpot_ns",
)
P_ALD_5 = Theorem(
    "P-ALD-5",
    "with gamma = 1/2, (b) is about the mean iteration of the batch exactly",
    "Aladdin, section 4.3",
    (LINES_EXACT, EQUAL_OUTPUTS),
    scope=Scope.TESTED,
)
P_ALD_6 = Theorem(
    "P-ALD-6",
    "a move keeps the sum of the workers' errors, and the sum of their sizes stays at least the size of that sum",
    "Aladdin, Algorithm 2",
    (),
    bound="|sum e|",
)
P_ALD_7 = Theorem(
    "P-ALD-7",
    "best fit opens at most 3/2 times as many workers as any packing needs, for up to 5 requests of two kinds",
    "this library",
    (),
    bound="3/2",
    scope=Scope.BOUNDED,
)
P_ALD_8 = Theorem(
    "P-ALD-8",
    "G groups need at most slope rate + G (constant + 1) workers, less a millionth for each",
    "this library's reconstruction of grouped scheduling",
    (LINEAR_GROUPS,),
    bound="slope rate + G (constant + 1 - 10^-6)",
)
THEOREMS = (P_ALD_1, P_ALD_2, P_ALD_3, P_ALD_4, P_ALD_5, P_ALD_6, P_ALD_7)
"""Those of the placement itself; P-ALD-8 is the grouped scheduler's."""
