"""In which order prefix groups are served: those with many outputs for little prefill first.

Source: BatchLLM, section on throughput-oriented token batching: groups that decode much beside few prompt tokens go
first, so that long prefills are left to be mixed with their decodes.  With all output lengths taken as 1 its equation 3
reads 1 / (prefix + own parts), although a group of n prompts has n outputs; `paper` is that, `per_request` has n in the
numerator, and `known_lengths` the outputs themselves.  Ties go by the group's number.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fairsched.model.algebra import Ints
from fairsched.policies.batch_tree import BatchTree
from fairsched.policies.prefix_groups import PrefixGroups

GroupOrder = Literal["per_request", "paper", "known_lengths"]
GROUP_ORDERS: tuple[GroupOrder, ...] = ("per_request", "paper", "known_lengths")
SCALE_BITS = 96
"""Ratios below 2^40 tokens that differ do so by more than 2^-80: scaled so far, their whole parts differ."""


def ratio(outputs: int, prompt_tokens: int) -> int:
    """Outputs for each token that is computed, so scaled that whole numbers order it exactly."""
    return (outputs << SCALE_BITS) // prompt_tokens


def group_places(
    tree: BatchTree,
    groups: PrefixGroups,
    order: GroupOrder = "per_request",
    outputs: Sequence[int] | Ints | None = None,
) -> Ints:
    """The place of each group, from 0; `outputs` are the output tokens of each prompt, for `known_lengths` only.

    O(n log n) for n prompts.  Raises `ValueError` if lengths are to be known and are not given.
    """
    sizes = groups.sizes
    whole = np.bincount(groups.group_of, weights=tree.tokens, minlength=len(sizes)).astype(np.int64)
    computed = (whole - (sizes - 1) * groups.prefix_tokens).tolist()
    if order == "known_lengths":
        if outputs is None:
            raise ValueError("the order known_lengths needs the output tokens of each prompt")
        decoded = np.bincount(groups.group_of, weights=outputs, minlength=len(sizes)).astype(np.int64).tolist()
    else:
        decoded = sizes.tolist() if order == "per_request" else [1] * len(sizes)
    keys = [-ratio(many, tokens) for many, tokens in zip(decoded, computed, strict=True)]
    places = np.empty(len(keys), dtype=np.int64)
    places[np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)] = np.arange(len(keys))
    return places
