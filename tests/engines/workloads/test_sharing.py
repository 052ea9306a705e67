"""Shared prefixes found by sorting are those found by looking at every pair."""

from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.workloads.sharing import continued, shared_blocks
from fairsched.model.request import Prompt

CHAINS = st.lists(st.tuples(st.sampled_from([4, 16]), st.lists(st.integers(0, 2), max_size=5)), max_size=14)


def prompts_of(chains: list[tuple[int, list[int]]]) -> list[Prompt]:
    """Prompts of these block sizes and keys, each with one token more than its blocks."""
    return [Prompt.from_keys(keys, block_tokens=size, tokens=len(keys) * size + 1) for size, keys in chains]


def common(left: tuple[int, list[int]], right: tuple[int, list[int]]) -> int:
    """Leading keys two chains share, by definition."""
    if left[0] != right[0]:
        return 0
    length = 0
    for one, other in zip(left[1], right[1], strict=False):
        if one != other:
            break
        length += 1
    return length


@given(chains=CHAINS)
def test_shared_blocks_is_the_longest_prefix_with_any_earlier_prompt(chains: list[tuple[int, list[int]]]) -> None:
    """For every prompt the maximum over all earlier ones."""
    expected = [
        max((common(chains[earlier], chain) for earlier in range(index)), default=0)
        for index, chain in enumerate(chains)
    ]
    assert shared_blocks(prompts_of(chains)) == expected


@given(chains=CHAINS)
def test_a_prompt_continues_the_longest_earlier_prompt_it_begins_with(chains: list[tuple[int, list[int]]]) -> None:
    """Of the earlier prompts of two blocks or more that are prefixes, the longest, then the latest."""
    expected = []
    for index, (size, keys) in enumerate(chains):
        begun = [
            (len(chains[earlier][1]), earlier)
            for earlier in range(index)
            if chains[earlier][0] == size and len(chains[earlier][1]) >= 2
            if keys[: len(chains[earlier][1])] == chains[earlier][1]
        ]
        expected.append(max(begun)[1] if begun else None)
    assert continued(prompts_of(chains)) == expected
