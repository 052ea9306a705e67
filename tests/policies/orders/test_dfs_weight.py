"""dfs-weight: the walk against one written from its definition, and what a policy makes of it."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.request import Prompt
from fairsched.policies.catalog import DfsWeight
from fairsched.policies.orders import dfs_weight, walked
from fairsched.policies.orders.abilities import Matches
from fairsched.verify.proofs.orders.dfs_weight import matches_of
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
    matches, matched = matches_of(cached, waiting)
    assert walked(matches) == by_definition(matched)


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


def test_the_walk_is_made_anew_only_when_something_changed() -> None:
    """Deciding again on the same state does not walk again; after an arrival it does."""
    play = Play(DfsWeight(), 1_000)
    play.arrive(prompt=Prompt.from_keys((1, 2, 3)), output=1)
    play.step()
    play.arrive(prompt=Prompt.from_keys((1, 2, 9)))
    before = dfs_weight._walked.cache_info().misses
    play.decide()
    play.decide()
    assert dfs_weight._walked.cache_info().misses == before + 1
    play.arrive(prompt=Prompt.from_keys((1, 8)))
    play.decide()
    assert dfs_weight._walked.cache_info().misses == before + 2


def test_a_deep_tree_needs_no_deep_stack() -> None:
    """A chain of 1,200 nodes, with somebody waiting at each, is walked from its end to its beginning."""
    depth = 1_200
    chain = [list(range(length)) for length in range(1, depth + 1)]
    matches, _ = matches_of(chain, chain)
    assert len(matches.tree.nodes) > depth
    assert walked(matches) == list(range(depth - 1, -1, -1))
    assert walked(Matches()) == []
