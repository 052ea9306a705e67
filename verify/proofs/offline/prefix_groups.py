"""Prefix groups: P-BL-1 to 3 of the shipped functions in drawn batches, and what is false of BatchLLM's own.

What could be saved at most is found there by trying every
partition of the batch, with no tree.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
import hypothesis.strategies as st
import numpy as np

from fairsched.model.request import Prompt
from fairsched.policies import offline
from fairsched.verify.logic import Bug, RefutedClaim, SampledClaim, Shown, refuted, sampled

Groups = Callable[[offline.BatchTree], offline.PrefixGroups]
DRAWN = 500
PROMPTS_MAX = 6


def _batches() -> st.SearchStrategy[dict[str, Any]]:
    """Return batches in which much is shared on several levels; half are full, since few small ones tell rules
    apart."""
    prompt = st.integers(0, 8**4 - 1)
    full = st.lists(prompt, min_size=PROMPTS_MAX, max_size=PROMPTS_MAX)
    return st.fixed_dictionaries({"batch": st.one_of(st.lists(prompt, min_size=1, max_size=PROMPTS_MAX), full)})


def _prompts(w: SimpleNamespace) -> list[list[int]]:
    """Take each number as a prompt: every octal digit a run of up to four of one of two tokens, the first digit
    first."""
    return [[int(digit) & 1 for digit in f"{number:o}" for _ in range(1 + int(digit) // 2)] for number in w.batch]


def _tree(prompts: list[list[int]]) -> offline.BatchTree:
    return offline.tree_of([Prompt.from_keys(keys) for keys in prompts])


def _shared(one: list[int], other: list[int]) -> int:
    """Leading tokens that two prompts share, each having one of its own behind them."""
    least = min(len(one), len(other)) - 1
    return next((i for i in range(least) if one[i] != other[i]), least)


def saved_by_partitions(prompts: list[list[int]]) -> int:
    """Return the most that any partition of the prompts saves.  O(3^n): each part is tried with the best of the
    rest."""
    count = len(prompts)
    shared, best = [0] * (1 << count), [0] * (1 << count)
    for chosen in range(1, 1 << count):
        first, last = (chosen & -chosen).bit_length() - 1, chosen.bit_length() - 1
        both = _shared(prompts[first], prompts[last])
        # What a part shares is the least that its first prompt shares with any other.
        shared[chosen] = min(both, shared[chosen ^ 1 << last]) if chosen & (chosen - 1) else len(prompts[first])
        part = chosen
        while part:
            # The first of those chosen is in some part.
            if part >> first & 1:
                best[chosen] = max(best[chosen], (part.bit_count() - 1) * shared[part] + best[chosen ^ part])
            part = (part - 1) & chosen
    return best[-1]


@sampled(offline.P_BL_1, _batches(), drawn=DRAWN)
def saves_most(w: SimpleNamespace, groups: Groups = offline.exact_groups) -> Shown:
    """State that it is as much as the best of all partitions."""
    prompts = _prompts(w)
    tree = _tree(prompts)
    if not tree.saved_tokens_max:
        return {}
    return {"the most that can be saved": groups(tree).saved_tokens == saved_by_partitions(prompts)}


@sampled(offline.P_BL_2, _batches(), drawn=DRAWN)
def between(w: SimpleNamespace, groups: Groups = offline.greedy_groups) -> Shown:
    """Return the greedy groups, literally as printed."""
    tree = _tree(_prompts(w))
    if not tree.saved_tokens_max:
        return {}
    saved = groups(tree).saved_tokens
    return {
        "at most what the exact groups save": saved <= offline.exact_groups(tree).saved_tokens,
        "at least what is saved without forking": saved >= offline.groups_by(tree, "whole").saved_tokens,
    }


@sampled(offline.P_BL_3, _batches())
def parted(w: SimpleNamespace, groups: Groups = offline.exact_groups) -> Shown:
    """Counted in prompts and tokens, without the tree."""
    prompts = _prompts(w)
    made = groups(_tree(prompts))
    members: list[list[list[int]]] = [[] for _ in made.sizes]
    for keys, g in zip(prompts, made.group_of.tolist(), strict=True):
        members[g].append(keys)
    prefixes = made.prefix_tokens.tolist()
    fits = [
        all(keys[:n] == one[0][:n] and len(keys) > n for keys in one) for one, n in zip(members, prefixes, strict=True)
    ]
    computed = sum(n + sum(len(keys) - n for keys in one) for one, n in zip(members, prefixes, strict=True))
    return {
        "in one group each": [len(one) for one in members] == made.sizes.tolist() and all(members),
        "the group's prefix, and more": all(fits),
        "all tokens less those saved": computed == sum(map(len, prompts)) - made.saved_tokens,
    }


def claims() -> tuple[SampledClaim, ...]:
    """About the groups that ship."""
    return (saves_most(), between(), parted())


# --- what is false --------------------------------------------------------------------------------------------------


def _two_levels(
    documents: int, parts: int, asked: int, document_tokens: int, part_tokens: int, tokens: int
) -> list[list[int]]:
    """`asked` prompts of `tokens` tokens about each of the `parts` of each document."""
    own = tokens - document_tokens - part_tokens
    return [
        [d] * document_tokens + [p] * part_tokens + [q] + [0] * (own - 1)
        for d in range(documents)
        for p in range(parts)
        for q in range(asked)
    ]


def _greedy_is_best(w: SimpleNamespace) -> Shown:
    return {
        "the most that can be saved": offline.greedy_groups(_tree(w.prompts)).saved_tokens
        == saved_by_partitions(w.prompts)
    }


def _one_level_is_enough(w: SimpleNamespace) -> Shown:
    """Return the paper's setting B with fewer prompts of each kind."""
    tree = _tree(_two_levels(**vars(w)))
    return {"99 %": 100 * offline.exact_groups(tree).saved_tokens >= 99 * tree.saved_tokens_max}


def _decodes_first(w: SimpleNamespace) -> Shown:
    """Equation 3 with its numerator of 1 for a group."""
    one, other = (prefix + sum(own) for prefix, own in (w.one, w.other))
    fewer = offline.ratio(len(w.one[1]), one) < offline.ratio(len(w.other[1]), other)
    return {"the other first": not fewer or offline.ratio(1, one) <= offline.ratio(1, other)} if fewer else {}


def refutations() -> tuple[RefutedClaim, ...]:
    """Return what the paper says of its groups and their order."""
    return (
        refuted(
            "F-BL-1",
            "the greedy groups save most",
            "BatchLLM, algorithm 1",
            _greedy_is_best,
            {"prompts": [[0] * 5 + [fork] * 4 + [own] for fork in (1, 2) for own in (1, 2)]},
            variant="algorithm 1 as printed, and as released",
            instead=offline.P_BL_1.id,
            text="5 tokens over two nodes of 4, with two prompts each: 15 saved of 18, since no fork pays alone",
        ),
        refuted(
            "F-BL-2",
            "one level of sharing saves 99 % of what all levels do",
            "BatchLLM",
            _one_level_is_enough,
            {"documents": 2, "parts": 8, "asked": 2, "document_tokens": 400, "part_tokens": 101, "tokens": 1_000},
            variant="any groups of one level",
            instead=offline.P_BL_1.id,
            text="two prompts about each of 8 parts of 101 tokens of a document of 400",
        ),
        refuted(
            "F-BL-3",
            "of two groups that with more outputs for each prompt token goes first",
            "BatchLLM, equation 3 as printed",
            _decodes_first,
            {"one": [2_000, [200]], "other": [2_000, [200] * 16]},
            variant="equation 3, whose numerator is 1 for a group of any size",
            instead=offline.P_BL_3.id,
            text="one request of 2,200 tokens goes before 16 that compute 5,200",
        ),
    )


def _too_long(tree: offline.BatchTree) -> offline.PrefixGroups:
    made = offline.exact_groups(tree)
    return attrs.evolve(made, prefix_tokens=made.prefix_tokens + 1)


def _all_but_the_last(tree: offline.BatchTree) -> offline.PrefixGroups:
    made = offline.exact_groups(tree)
    return attrs.evolve(made, sizes=np.append(made.sizes[:-1], made.sizes[-1] + 1))


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    return (
        Bug("the greedy in its place", saves_most(lambda tree: offline.greedy_groups(tree, absorb_last=True))),
        Bug("groups as deep as can be", saves_most(lambda tree: offline.groups_by(tree, "longest"))),
        Bug("every fork is made, whether it pays or not", between(lambda tree: offline.groups_by(tree, "longest"))),
        Bug("a prefix is a token too long", parted(_too_long)),
        Bug("a prompt is counted twice", parted(_all_but_the_last)),
    )
