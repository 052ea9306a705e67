"""How E2 decides, in numbers alone: whether to exploit, who is cheapest, and whom rebalancing takes a request from.

These functions are what the theorems of `policies.e2_theorems` are proved about: they see positions in lists, one for
each worker that can hold the request in ascending order of ids, and lists of loads and costs.
"""

from collections.abc import Callable, Sequence
from typing import Literal

Rebalancing = Literal["per-source", "heaviest", "off"]
"""From whom a request is taken that its prefix brought there: from every worker with a load of more than the threshold
times the lightest, if it costs less there; as printed, from the heaviest only, whatever it costs; from nobody."""


def exploits(cached_tokens: int, prompt_tokens: int, percent: int) -> bool:
    """Whether more than `percent` per cent of the prompt is cached; at 50: less is missed than is cached."""
    return 100 * cached_tokens > percent * prompt_tokens


def is_heavy(load: int, least: int, percent: int) -> bool:
    """Whether a load is more than `percent` per cent of the least."""
    return 100 * load > percent * least


def lightest(loads: Sequence[int]) -> int:
    """Where the load is least, the first of equals.  O(workers)."""
    return min(range(len(loads)), key=loads.__getitem__)


def cheapest(bases: Sequence[int], extra: Callable[[int], int], among: Sequence[int]) -> int:
    """Which of `among` (ascending) has the least base and extra cost together, the first of equals.

    Extra costs are not negative, and are asked for only where they can matter: of whom has the least base, and then of
    those whose base is below the least cost so far.  O(workers), and what is asked for.
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


def rebalanced(target: int, loads: Sequence[int], percent: int, rule: Rebalancing, cost: Callable[[int], int]) -> int:
    """Where a request meant for `target` goes: there, or to the lightest if rebalancing takes it.

    A ratio alone takes too much while loads are small: of two workers with one request and two, the second is heavy.
    So a request that costs more at the lightest, all its recomputation included, stays; the loads are no further apart
    for that than one request costs (P-E2-4).  `cost` is L + M + P.  O(workers), and two costs.
    """
    if rule == "off":
        return target
    light = lightest(loads)
    if not is_heavy(loads[target], loads[light], percent):
        return target
    if rule == "heaviest":
        return light if target == max(range(len(loads)), key=loads.__getitem__) else target
    return light if cost(light) < cost(target) else target


def decode_heaviest(prefill_ns: Sequence[int], decode_ns: Sequence[int], percent: int) -> int | None:
    """Whose share of decoding in its seconds is the largest and more than `percent` per cent, the first of equals.

    An empty worker has a share of 0.  Shares are compared exactly.  O(workers).
    """
    best, most, whole = 0, 0, 1
    for i, (prefill, decode) in enumerate(zip(prefill_ns, decode_ns, strict=True)):
        if decode * whole > most * (prefill + decode):
            best, most, whole = i, decode, prefill + decode
    return best if 100 * most > percent * whole else None
