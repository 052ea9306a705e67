"""Offline batches: prefix trees of a batch, prefix groups, and BatchLLM's order. Read `prefix_groups` first."""

from fairsched.policies.offline.batchllm import PrefixGroupOrder
from fairsched.policies.offline.prefix_groups import (
    P_BL_1,
    P_BL_2,
    P_BL_3,
    BatchTree,
    Grouping,
    GroupOrder,
    PrefixGroups,
    batch_tree,
    exact_groups,
    greedy_groups,
    group_places,
    groups_by,
    ratio,
    tree_of,
)

__all__ = [
    "P_BL_1", "P_BL_2", "P_BL_3", "BatchTree", "GroupOrder", "Grouping", "PrefixGroupOrder", "PrefixGroups",
    "batch_tree", "exact_groups", "greedy_groups", "group_places", "groups_by", "ratio", "tree_of"
]  # fmt: skip
