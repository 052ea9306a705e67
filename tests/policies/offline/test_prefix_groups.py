"""Prefix groups: the tree, the groups of each rule, the order; how much they save is P-BL-1 to 3."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.request import Prompt
from fairsched.policies import offline
from fairsched.policies.offline.prefix_groups import GROUPINGS, ROOT

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)
BATCHES = st.lists(TOKENS, max_size=40)


def tree(batch: list[list[int]], block_tokens: int = 1) -> offline.BatchTree:
    """The tree of prompts whose blocks have these keys."""
    return offline.tree_of([Prompt.from_keys(keys, block_tokens=block_tokens) for keys in batch])


def shared(one: list[int], other: list[int]) -> int:
    """Leading blocks that two prompts can share: each keeps one of its own."""
    both = 0
    while both < min(len(one), len(other)) - 1 and one[both] == other[both]:
        both += 1
    return both


def pairs_of(top: int, *below: int) -> list[list[int]]:
    """Two prompts under each of the `below`-token nodes under one node of `top` tokens."""
    return [[7] * top + [10 + at] * own + [100 + 2 * at + each] for at, own in enumerate(below) for each in (0, 1)]


@given(BATCHES, st.integers(1, 3))
def test_the_tree_says_who_shares_what(batch: list[list[int]], block_tokens: int) -> None:
    """Two prompts share what the deepest node above both has; a node has two of prompts and nodes below it."""
    made = tree(batch, block_tokens)
    paths = []
    for home in made.homes.tolist():
        path = [home]
        while path[-1] != ROOT:
            path.append(int(made.parents[path[-1]]))
            assert path[-1] < path[-2]
        paths.append(path)
    for one, keys in enumerate(batch):
        for other, others in enumerate(batch[:one]):
            meet = max(set(paths[one]) & set(paths[other]))
            assert made.depths[meet] == shared(keys, others) * block_tokens
    under = np.bincount(made.homes, minlength=len(made.depths)) + np.bincount(made.parents, minlength=len(made.depths))
    assert (under[1:] >= 2).all()


@given(BATCHES, st.sampled_from(GROUPINGS))
def test_every_prompt_is_in_one_group(batch: list[list[int]], name: offline.Grouping) -> None:
    """Groups part the batch, and all of a group begin with its prefix and have a token of their own."""
    groups = offline.groups_by(tree(batch), name)
    assert sorted(groups.group_of.tolist()) == [g for g, size in enumerate(groups.sizes) for _ in range(size)]
    for g, prefix in enumerate(groups.prefix_tokens.tolist()):
        members = [batch[i] for i in np.flatnonzero(groups.group_of == g)]
        assert all(keys[:prefix] == members[0][:prefix] and len(keys) > prefix for keys in members)
        assert prefix == 0 or len(members) > 1
    # Numbered by their first prompts.
    firsts = [int(np.flatnonzero(groups.group_of == g)[0]) for g in range(len(groups.sizes))]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize(
    ("batch", "exact", "printed", "released"),
    [
        (pairs_of(4, 3, 2), 13, 12, 12),
        (pairs_of(5, 4, 4), 18, 15, 15),
        (pairs_of(5, 5, 5), 20, 15, 15),
        (pairs_of(3, 4, 2), 12, 10, 12),
        ([[1], [1, 2, 2, 2, 9], [1, 2, 2, 2, 8]], 4, 4, 4),
    ],
)
def test_the_greedy_is_not_optimal(batch: list[list[int]], exact: int, printed: int, released: int) -> None:
    """Forks that pay together only are never made; and the batch at which the released code crashes is grouped."""
    made = tree(batch)
    saved = [
        groups.saved_tokens
        for groups in (
            offline.exact_groups(made),
            offline.greedy_groups(made),
            offline.greedy_groups(made, absorb_last=True),
        )
    ]
    assert saved == [exact, printed, released]


def test_block_sizes_are_kept_apart() -> None:
    """Prompts of equal keys and other block sizes share nothing; of one block size they share in whole blocks."""
    prompts = [Prompt.from_keys([1, 2, 3], block_tokens=size) for size in (4, 4, 8, 8)]
    groups = offline.exact_groups(offline.tree_of(prompts))
    assert groups.group_of.tolist() == [0, 0, 1, 1]
    assert groups.prefix_tokens.tolist() == [8, 16]


def test_four_bytes_a_key_are_enough_for_tokens() -> None:
    """Chains of four-byte keys give the same tree as those of eight."""
    batch = pairs_of(5, 4, 4) + pairs_of(3, 2)
    wide, tokens = tree(batch), np.array([len(keys) for keys in batch])
    chains = [np.array(keys, dtype="<u4").tobytes() for keys in batch]
    narrow = offline.batch_tree(chains, tokens, np.ones_like(tokens), 4)
    assert (narrow.homes == wide.homes).all()
    assert (narrow.depths == wide.depths).all()


@given(BATCHES, st.data())
def test_groups_are_ordered_by_exact_ratios(batch: list[list[int]], data: st.DataObject) -> None:
    """Each rule's ratio falls from place to place, compared as fractions; ties go by number."""
    made = tree(batch)
    groups = offline.exact_groups(made)
    outputs = data.draw(st.lists(st.integers(1, 9), min_size=len(batch), max_size=len(batch)))
    for name, counts in (
        ("per_request", [1] * len(batch)),
        ("known_lengths", outputs),
        ("paper", None),
    ):
        ranked = []
        for g, place in enumerate(offline.group_places(made, groups, name, outputs).tolist()):  # type: ignore[arg-type]
            members = np.flatnonzero(groups.group_of == g).tolist()
            prefix = int(groups.prefix_tokens[g])
            computed = prefix + sum(len(batch[i]) - prefix for i in members)
            decoded = 1 if counts is None else sum(counts[i] for i in members)
            ranked.append((place, -Fraction(decoded, computed), g))
        ranked.sort()
        assert [row[0] for row in ranked] == list(range(len(ranked)))
        assert [row[1:] for row in ranked] == sorted(row[1:] for row in ranked)


def test_known_lengths_must_be_given() -> None:
    """The order by outputs refuses to guess them."""
    made = tree(pairs_of(2, 2))
    with pytest.raises(ValueError, match="output tokens"):
        offline.group_places(made, offline.exact_groups(made), "known_lengths")
