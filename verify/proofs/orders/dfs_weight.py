"""What is true of the walk through the prefix tree, and what is not: tried in drawn trees and queues of what ships."""

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import hypothesis.strategies as st

from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import RequestLevel
from fairsched.policies.catalog import DfsWeight
from fairsched.policies.orders import P_DFS_1, DfsWeightOrder, QueuedRequest, Walk, walked
from fairsched.verify.conformance import WorkerPlay, admitted
from fairsched.verify.logic import Bug, RefutedClaim, SampledClaim, Shown, refuted
from fairsched.verify.proofs import sampled

Walked = Callable[[Walk], list[int]]


def walk_of(cached: list[list[int]], waiting: list[list[int]]) -> tuple[Walk, list[tuple[int, ...]]]:
    """Those who wait, by age, in a cache of these prompts; and what of each prompt is matched."""
    cache, order, walk, matched = PrefixCache(), DfsWeightOrder(), Walk(), []
    for i, keys in enumerate(cached):
        cache, _ = cache.complete(i, Prompt.from_keys(keys), len(keys), 0)
    for age, keys in enumerate(waiting):
        request = Request(age, 0, age, Prompt.from_keys(keys), 1)
        walk, _ = walk.joined(order, QueuedRequest(request, age, 0), 0, cache)
        matched.append(tuple(keys[: cache.tree.match(request.prompt).blocks]))
    return walk, matched


_PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=8)


@sampled(P_DFS_1, st.fixed_dictionaries({"cached": _PROMPTS, "waiting": _PROMPTS}))
def together(w: SimpleNamespace, run: Walked = walked) -> Shown:
    """Of each cached prefix those who match it, and of each fork the two sides."""
    walk, matched = walk_of(w.cached, w.waiting)
    order = run(walk)
    below: dict[tuple[int, ...], list[int]] = {}
    for place, age in enumerate(order):
        for length in range(1, len(matched[age]) + 1):
            below.setdefault(matched[age][:length], []).append(place)
    sides: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for prefix, places in sorted(below.items(), key=lambda item: item[1][0]):
        sides.setdefault(prefix[:-1], []).append((places[0], len(places)))
    return {
        "every request that matches something": sorted(order) == [age for age, keys in enumerate(matched) if keys],
        "none in between": all(places == list(range(places[0], places[-1] + 1)) for places in below.values()),
        "where more wait first": all(one[1] >= other[1] for fork in sides.values() for one, other in pairwise(fork)),
    }


def claims() -> tuple[SampledClaim, ...]:
    """About the walk that ships."""
    return (together(),)


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    return (
        Bug("the lightest side first", together(lambda walk: walked(walk)[::-1])),
        Bug("in order of age", together(lambda walk: sorted(walked(walk)))),
        Bug("the last is lost", together(lambda walk: walked(walk)[:-1])),
    )


def _never_starves(w: SimpleNamespace) -> Shown:
    """A prompt that matches nothing, and in each step one that does: the first makes the prefix of the others warm."""
    play, served = WorkerPlay(DfsWeight(batching=RequestLevel(max_running=1)), WorkerState(0, 20)), list[int]()
    came = 0
    for step in range(w.steps):
        for keys in ((7, 7),) * (step == 1) + ((1, 2, 3),):
            play.arrive(Request(came, 0, step, Prompt.from_keys(keys), 1), 1, step)
            came += 1
        served += admitted(play.step(step))
    return {"not for ever": 1 in served or len(served) < w.steps}


def refutations() -> tuple[RefutedClaim, ...]:
    """What is hoped of it."""
    return (
        refuted(
            "F-DFS-1",
            "no request waits for ever",
            "dfs-weight, as it is hoped",
            _never_starves,
            {"steps": 30},
            variant="the order that ships, without a bypass budget",
            instead=P_DFS_1.id,
            text="one request with a warm prefix comes in every step, and one is served: the cold one waits",
        ),
    )
