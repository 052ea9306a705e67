"""How E2 decides, in numbers alone: whether to exploit, which worker is cheapest, and what rebalancing moves.

Lists have a position for each worker that can hold the request, in ascending order of ids.  Loads are L, costs
L + M + P, all in nanoseconds of work; Th is `threshold_percent` / 100.  The theorems are about these functions.  Preble
proves nothing; they state exactly what its prose leads a reader to expect.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from fairsched.model.theorem import Assumption, Scope, Theorem

# --- theorems ---------------------------------------------------------------------------------------------------------


RESIDENCY_KNOWN = Assumption("ResidencyKnown", "The workers hold exactly what they reported to the router.")
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
    "A request that exploits misses as little as at any worker that can hold it, and less than is cached",
    OURS,
    (RESIDENCY_KNOWN,),
    scope=Scope.TESTED,
)
P_E2_2 = Theorem(
    "P-E2-2", "A request exploits exactly if more than half of it is cached, which is less missed than cached", OURS
)
P_E2_3 = Theorem(
    "P-E2-3",
    "Of up to 3 workers the one with the least base and extra cost is found, the first of equals, and another is not "
    "if all bases grow by the same",
    OURS,
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
    scope=Scope.TESTED,
)

P_E2_7 = Theorem(
    "P-E2-7",
    "Splitting up to 3 subtrees leaves the two loads apart by the largest subtree at most, or by their difference "
    "without the subtrees less all of these",
    OURS,
    bound="max(largest, |keeps - gets| - all)",
    scope=Scope.BOUNDED,
)

THEOREMS = (P_E2_1, P_E2_2, P_E2_3, P_E2_4, P_E2_5, P_E2_6, P_E2_7)

# --- what is false of the rule as printed -----------------------------------------------------------------------------

F_E2_1 = Theorem(
    "F-E2-1",
    "A request that exploits the longest node of the path misses as little as at any worker, and less than is cached",
    OURS,
    scope=Scope.TESTED,
)
F_E2_2 = Theorem("F-E2-2", "The worker that is exploited is the one with the least total cost", OURS)
F_E2_3 = Theorem(
    "F-E2-3",
    "With rebalancing from the heaviest worker alone every load is at most Th times the least and c",
    OURS,
    (COST_AT_MOST, THRESHOLD_AT_LEAST_ONE, NOTHING_EXPIRES, STARTS_WITHIN),
)
F_E2_4 = Theorem("F-E2-4", "What the global tree matches of a prompt, some worker holds", OURS, scope=Scope.TESTED)
F_E2_5 = Theorem(
    "F-E2-5",
    "Where what explores goes to the worker that decodes most, every load is at most Th times the least and c",
    OURS,
    (COST_AT_MOST, THRESHOLD_AT_LEAST_ONE, NOTHING_EXPIRES, STARTS_WITHIN),
    scope=Scope.TESTED,
)


Rebalancing = Literal["per-source", "heaviest", "off"]
"""Which workers lose a request that its prefix brought there: each with a load of more than the threshold times the
lightest, if the request costs less there; as printed, the heaviest only, whatever it costs; none."""


def exploits(cached_tokens: int, prompt_tokens: int, percent: int) -> bool:
    """Return whether more than `percent` per cent of the prompt is cached; at 50: less is missed than is cached."""
    return 100 * cached_tokens > percent * prompt_tokens


def is_heavy(load: int, least: int, percent: int) -> bool:
    """Return whether a load is more than `percent` per cent of the least."""
    return 100 * load > percent * least


def lightest(loads: Sequence[int]) -> int:
    """Return where the load is least, the first of equals.  O(workers)."""
    return loads.index(min(loads))


def cheapest(bases: Sequence[int] | Mapping[int, int], extra: Callable[[int], int], among: Sequence[int]) -> int:
    """Return which of `among` (ascending) has the least base and extra cost together, the first of equals.

    Extra costs are not negative.  They are asked for only where they can matter: at the least base, and then where the
    base is below the least cost so far.  O(workers), and what is asked for.
    """
    best = min(among, key=bases.__getitem__)
    if len(among) == 1:
        return best
    least = bases[best] + extra(best)
    for i in among:
        base = bases[i]
        if i != best and (base < least or (base == least and i < best)):
            cost = base + extra(i)
            if cost < least or (cost == least and i < best):
                best, least = i, cost
    return best


def rebalanced(
    target: int, light: int, loads: Sequence[int], percent: int, rule: Rebalancing, cost: Callable[[int], int]
) -> int:
    """Return where a request meant for `target` goes: there, or to `light`, the lightest, if rebalancing takes it.

    A ratio alone takes too much while loads are small: of two workers with one request and two, the second is heavy.
    So a request that costs more at the lightest, all its recomputation included, stays; the loads are no further apart
    for that than one request costs (P-E2-4).  `cost` is L + M + P.  Two costs, and O(workers) as printed.
    """
    if rule == "off":
        return target
    if not is_heavy(loads[target], loads[light], percent):
        return target
    if rule == "heaviest":
        return light if target == max(range(len(loads)), key=loads.__getitem__) else target
    return light if cost(light) < cost(target) else target


def split(subtrees: Sequence[int], keeps: int, gets: int) -> list[int]:
    """Return which of a prefix's subtrees go to its new worker: each in turn goes to the worker with less, the old one
    of equals.

    Without these subtrees the old one has the load `keeps` and the new one `gets`.  O(subtrees).
    """
    given = []
    for i, load in enumerate(subtrees):
        if gets < keeps:
            given.append(i)
            gets += load
        else:
            keeps += load
    return given


def decodes_much(prefill_ns: int, decode_ns: int, percent: int) -> bool:
    """Return whether decoding is more than `percent` per cent of a worker's seconds."""
    return 100 * decode_ns > percent * (prefill_ns + decode_ns)


def decode_heaviest(prefill_ns: Sequence[int], decode_ns: Sequence[int], percent: int) -> int | None:
    """Return the worker whose share of decoding in its seconds is the largest and more than `percent` per cent, the
    first of equals.

    An empty worker has a share of 0.  Shares are compared exactly.  O(workers).
    """
    best, most, whole = 0, 0, 1
    for i, (prefill, decode) in enumerate(zip(prefill_ns, decode_ns, strict=True)):
        if decode * whole > most * (prefill + decode):
            best, most, whole = i, decode, prefill + decode
    return best if decodes_much(whole - most, most, percent) else None
