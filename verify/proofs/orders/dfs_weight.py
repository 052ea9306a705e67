"""What is true of the walk through the prefix tree, and what is not: tried in drawn trees and queues of what ships."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
from immutables import Map

from fairsched.model import worker as transitions
from fairsched.model.cache import PrefixCache
from fairsched.model.events import Admitted
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.model.worker_state import WorkerState
from fairsched.policies.batching import RequestLevel
from fairsched.policies.columns import Matches
from fairsched.policies.dfs_weight import P_DFS_1, DfsWeight, walked
from fairsched.verify.false_claim import Bug, FalseClaim
from fairsched.verify.tested import TestedClaim

Walk = Callable[[Matches], list[int]]


def matches_of(cached: list[list[int]], waiting: list[list[int]]) -> tuple[Matches, list[tuple[int, ...]]]:
    """Those who wait, by age, in a cache of these prompts; and what of each prompt is matched."""
    cache = PrefixCache()
    for i, keys in enumerate(cached):
        cache, _ = cache.complete(i, Prompt.from_keys(keys), len(keys), 0)
    found = [cache.tree.match(Prompt.from_keys(keys)) for keys in waiting]
    stops = Map({age: (match.node, match.blocks) for age, match in enumerate(found)})
    ids = Map({age: age for age in range(len(waiting))})
    matched = [tuple(keys[: match.blocks]) for keys, match in zip(waiting, found, strict=True)]
    return Matches(ids, stops, cache.tree), matched


def together(walk: Walk = walked) -> TestedClaim:
    """Of each cached prefix those who match it, and of each fork the two sides."""

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        matches, matched = matches_of(w.cached, w.waiting)
        order = walk(matches)
        below: dict[tuple[int, ...], list[int]] = {}
        for place, age in enumerate(order):
            for length in range(1, len(matched[age]) + 1):
                below.setdefault(matched[age][:length], []).append(place)
        sides: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for prefix, places in sorted(below.items(), key=lambda item: item[1][0]):
            sides.setdefault(prefix[:-1], []).append((places[0], len(places)))
        return {
            "everybody who matches something": sorted(order) == [age for age, keys in enumerate(matched) if keys],
            "nobody in between": all(places == list(range(places[0], places[-1] + 1)) for places in below.values()),
            "where more wait first": all(
                one[1] >= other[1] for fork in sides.values() for one, other in pairwise(fork)
            ),
        }

    prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=8)
    return TestedClaim(P_DFS_1, st.fixed_dictionaries({"cached": prompts, "waiting": prompts}), shows)


def _never_starves() -> TestedClaim:
    """F-DFS-1: a prompt that matches nothing, and in each step one that does."""
    theorem = Theorem("F-DFS-1", "nobody waits for ever", "dfs-weight, as it is hoped", (), scope=Scope.BOUNDED)

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        policy = DfsWeight(batching=RequestLevel(max_running=1))
        state, worker = policy.init(), WorkerState(0, 20)
        came = served = 0
        for step in range(w.steps):
            # The first makes the prefix of the others warm; the cold one comes second.
            for keys in ((7, 7),) * (step == 1) + ((1, 2, 3),):
                request = Request(came, 0, step, Prompt.from_keys(keys), 1)
                worker, events = transitions.arrive(worker, request, 1, step)
                for event in events:
                    state = policy.observe(state, event)
                came += 1
            plan, state = policy.decide(state, worker.view(step))
            worker, begun = transitions.begin(worker, plan, step)
            served += sum(type(event) is Admitted for event in begun)
            if any(type(event) is Admitted and event.request_id == 1 for event in begun):
                return {"not for ever": True}
            worker, ended = transitions.finish(worker, plan, 1, step)
            for event in [one for one in begun if type(one) is not Admitted] + ended:
                state = policy.observe(state, event)
        return {"not for ever": served < w.steps}

    return TestedClaim(theorem, lambda: [{"steps": 30}], shows)


def claims() -> tuple[TestedClaim, ...]:
    """About the walk that ships."""
    return (together(),)


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    return (
        Bug("the lightest side first", together(lambda matches: walked(matches)[::-1])),
        Bug("in order of age", together(lambda matches: sorted(walked(matches)))),
        Bug("the last is lost", together(lambda matches: walked(matches)[:-1])),
    )


def refutations() -> tuple[FalseClaim, ...]:
    """What is hoped of it."""
    return (
        FalseClaim(
            _never_starves(),
            "the order that ships, without a bypass budget",
            P_DFS_1.id,
            "one request with a warm prefix comes in every step, and one is served: the cold one waits",
            {"steps": 30},
        ),
    )
