"""dfs-weight: the walk against one written from its definition, and what a policy makes of it."""

from collections import defaultdict
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.model.algebra import NO_SCORE
from fairsched.model.events import Admitted, Preempted
from fairsched.model.request import Prompt
from fairsched.policies.catalog import DfsWeight
from fairsched.policies.gates import DeficitGate
from fairsched.policies.orders import DfsWeightOrder, Walk, dfs_weight, walked
from fairsched.verify.proofs.orders.dfs_weight import walk_of
from tests.support.policy_play import Play

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=12)


def by_definition(matched: list[tuple[int, ...]]) -> list[int]:
    """The walk, by recursion through the trie of what is matched, a block a node."""
    weight: dict[tuple[int, ...], int] = defaultdict(int)
    oldest: dict[tuple[int, ...], int] = {}
    for age, keys in enumerate(matched):
        for length in range(len(keys) + 1):
            weight[keys[:length]] += 1
            oldest.setdefault(keys[:length], age)

    def below(prefix: tuple[int, ...]) -> list[int]:
        children = [node for node in weight if len(node) == len(prefix) + 1 and node[:-1] == prefix]
        children.sort(key=lambda node: (-weight[node], oldest[node]))
        here = [age for age, keys in enumerate(matched) if keys == prefix and prefix]
        return [age for child in children for age in below(child)] + here

    return below(()) if matched else []


@given(cached=PROMPTS, waiting=PROMPTS)
def test_the_walk_is_as_defined(cached: list[list[int]], waiting: list[list[int]]) -> None:
    """In any tree and queue the order is that of the definition: SGLang's, with the oldest first among equals."""
    walk, matched = walk_of(cached, waiting)
    assert walked(walk) == by_definition(matched)


def test_where_more_wait_first() -> None:
    """Two requests below one prefix go before one with a longer match elsewhere, those below before the one at the
    node, and whoever matches nothing last."""
    play = Play(DfsWeight(), 1_000)
    for prompt in ((1, 2, 3, 4, 5), (6, 7)):
        play.arrive(prompt=Prompt.from_keys(prompt), output=1)
        play.step()
    cold, keyless = play.arrive(prompt=Prompt.from_keys((9, 9))), play.arrive(prompt=3)
    long = play.arrive(prompt=Prompt.from_keys((1, 2, 3, 4, 9)))
    first, second = play.arrive(prompt=Prompt.from_keys((6, 8))), play.arrive(prompt=Prompt.from_keys((6, 7, 8)))
    assert play.admitted() == [second, first, long, cold, keyless]


def test_a_deep_tree_needs_no_deep_stack() -> None:
    """A chain of 1,200 nodes, with somebody waiting at its end and now and then above, is walked to its beginning."""
    depth = 1_200
    chain = [list(range(length)) for length in range(1, depth + 1)]
    walk, matched = walk_of(chain, [*chain[::200], chain[-1]])
    assert len(walk.kept.forks) > depth
    assert walked(walk) == list(range(len(matched) - 1, -1, -1))
    assert walked(Walk()) == []


def test_one_that_is_let_in_and_comes_back_counts_once() -> None:
    """A policy that is told of an admission and of the preemption after it has the weights of those that wait."""
    play = Play(DfsWeight(), 1_000)
    play.arrive(prompt=Prompt.from_keys((1, 2, 3)), output=1)
    play.step()
    for last in (4, 5):
        play.arrive(prompt=Prompt.from_keys((1, 2, last)))
    state, admissions = play.state, play.decide().admit
    assert len(admissions) == 2
    for each in admissions:
        state = play.policy.observe(state, Admitted(0, 0, each.request_id, 0, each.extend_tokens, 2, 0))
        state = play.policy.observe(state, Preempted(0, 0, each.request_id, 0, 0, each.extend_tokens))
    play.policy.check(state)
    assert set(state.queue.entries) == {1, 2}


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), eligible=st.integers(1, 4), gap=st.sampled_from((1, 4, dfs_weight.GAP)))
def test_each_choice_is_that_of_the_whole_walk(seed: int, eligible: int, gap: int) -> None:
    """Whatever is cached, evicted, cut, preempted or gives up, whichever groups may go, and however near to each other
    their scores are: a decision takes the group and the request that come first in a walk through all that wait."""
    with patch.object(dfs_weight, "GAP", gap):
        chooses_as_the_whole_walk(seed, eligible)


def chooses_as_the_whole_walk(seed: int, eligible: int) -> None:
    """The same, for one world and one number of groups that may go in each choice."""
    rng = np.random.default_rng(seed)
    policy = DfsWeight(gate=DeficitGate(quantum=5))
    play = Play(policy, 400)
    for _ in range(int(rng.integers(5, 40))):
        keys = rng.integers(0, 2, int(rng.integers(1, 9)))
        play.arrive(int(rng.integers(6)), Prompt.from_keys(keys), int(rng.integers(1, 4)))
        if rng.random() < 0.5:
            play.step()
        waiting = list(play.state.queue.entries)
        if waiting and rng.random() < 0.2:
            play.cancel(int(rng.choice(waiting)))
    queue, order = play.state.queue, policy.order
    index = queue.extension(Walk)
    assert index is not None
    assert isinstance(order, DfsWeightOrder)
    anew = Walk()
    for queued in sorted(queue.entries.values(), key=lambda queued: queued.age):
        anew, _ = anew.joined(order, queued, 0, play.state.cache)
    ages = walked(anew)
    left = [*ages, *sorted({queued.age for queued in queue.entries.values()} - set(ages))]
    ranking = index.ranking(order, 6, 400)
    groups = {queued.age: queued.request.client for queued in queue.entries.values()}
    while left:
        may = set(rng.choice(6, eligible, replace=False).tolist())
        first = next((age for age in left if groups[age] in may), None)
        if first is None:
            continue
        heads = np.where(np.isin(np.arange(6), list(may)), ranking.heads, NO_SCORE)
        while not ranking.found(group := int(heads.argmax())):
            heads = np.where(np.isin(np.arange(6), list(may)), ranking.heads, NO_SCORE)
        assert (group, ranking.best(group)) == (groups[first], first)
        left.remove(first)
        ranking.leave(index, first, group)
    assert (ranking.heads == NO_SCORE).all()
