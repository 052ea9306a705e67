"""Shared prefixes and key portions found by sorting are those of their definitions."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.workloads.sharing import KeyPortion, continued, key_portions, shared_blocks
from fairsched.model.request import Prompt

CHAINS = st.lists(st.tuples(st.sampled_from([4, 16]), st.lists(st.integers(0, 2), max_size=7)), max_size=14)


def prompt(size: int, keys: list[int]) -> Prompt:
    """A prompt of these keys with one token more than its blocks."""
    return Prompt.from_keys(keys, block_tokens=size, tokens=len(keys) * size + 1)


def common(left: tuple[int, list[int]], right: tuple[int, list[int]]) -> int:
    """Leading keys two chains share, by definition."""
    pairs = zip(left[1], right[1], strict=False) if left[0] == right[0] else ()
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


@given(chains=CHAINS)
def test_shared_blocks_is_the_longest_prefix_with_any_earlier_prompt(chains: list[tuple[int, list[int]]]) -> None:
    """For every prompt the maximum over all earlier ones."""
    expected = [
        max((common(chains[earlier], chain) for earlier in range(index)), default=0)
        for index, chain in enumerate(chains)
    ]
    assert shared_blocks([prompt(*chain) for chain in chains]) == expected


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
    assert continued([prompt(*chain) for chain in chains]) == expected


# --- key portions -----------------------------------------------------------------------------------------------------


def by_definition(chains: list[tuple[int, list[int]]]) -> dict[tuple[int, int, tuple[int, ...]], list[int]]:
    """Whose key portion is which: (block size, where it begins, the chain up to its end), from all pairs of prompts.

    The nodes on a prompt's path end where it ends, where a prompt that begins it ends, and where another parts from it.
    """
    found: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
    for place, (size, keys) in enumerate(chains):
        ends = sorted({common((size, keys), other) for other in chains} - {0})
        nodes = list(zip([0, *ends], ends, strict=False))
        longer = [(start, end) for start, end in nodes if end - start > start]
        if longer:
            start, end = longer[-1]
            found.setdefault((size, start, tuple(keys[:end])), []).append(place)
    return found


@given(chains=CHAINS)
def test_one_sort_finds_what_the_definition_says(chains: list[tuple[int, list[int]]]) -> None:
    """The key portion of a prompt is the deepest node longer than all before it, shared by prompts that begin so."""
    found = key_portions([prompt(*chain) for chain in chains])
    expected = [
        KeyPortion(
            tokens=(len(chain) - start) * size,
            sharers=sum(size == other and tuple(keys[: len(chain)]) == chain for other, keys in chains),
            prompts=tuple(places),
        )
        for (size, start, chain), places in by_definition(chains).items()
    ]
    assert sorted(found, key=lambda portion: portion.prompts) == sorted(expected, key=lambda portion: portion.prompts)
    assert sorted(place for portion in found for place in portion.prompts) == [
        place for place, (_, keys) in enumerate(chains) if keys
    ]


def test_a_tool_s_instructions_are_the_key_portion() -> None:
    """A system prompt of 2 blocks, tools of 5 and 3, short questions; a long question is its own key portion."""
    system, first, second = [1, 2], [10, 11, 12, 13, 14], [20, 21, 22]
    prompts = [
        prompt(16, [*system, *first, 100]),
        prompt(16, [*system, *second, 101]),
        prompt(16, [*system, *first, 102]),
        prompt(16, [*system, *second, *range(200, 210)]),
        Prompt(tokens=90),
    ]
    assert sorted(key_portions(prompts), key=lambda portion: portion.prompts) == [
        KeyPortion(tokens=80, sharers=2, prompts=(0, 2)),
        KeyPortion(tokens=48, sharers=2, prompts=(1,)),
        KeyPortion(tokens=160, sharers=1, prompts=(3,)),
    ]
