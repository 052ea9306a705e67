"""Prefix caches as persistent values: a radix tree for one worker, an index for all workers of a cluster. Read `tree`
first.
"""

from fairsched.model.prefix_cache.index import IndexMatch, PrefixIndex, Victim, bits
from fairsched.model.prefix_cache.shares import (
    NO_CLIENT,
    NO_FLOORS,
    CachedBlock,
    EvictionOrder,
    Evictor,
    Shares,
    beyond,
    blocks_over,
    by_cost,
    by_last_use,
    by_share,
    checked_floors,
    eviction_order,
    reserve,
)
from fairsched.model.prefix_cache.sorted_tuple import SortedTuple
from fairsched.model.prefix_cache.tree import (
    ROOT,
    Eviction,
    Insertion,
    PrefixCache,
    PrefixTree,
    common_keys,
    walk,
)

__all__ = [
    "NO_CLIENT", "NO_FLOORS", "ROOT", "CachedBlock", "Eviction", "EvictionOrder", "Evictor", "IndexMatch", "Insertion",
    "PrefixCache", "PrefixIndex", "PrefixTree", "Shares", "SortedTuple", "Victim", "beyond", "bits", "blocks_over",
    "by_cost", "by_last_use", "by_share", "checked_floors", "common_keys", "eviction_order", "reserve", "walk"
]  # fmt: skip
