"""Prefix caches as persistent values: a radix tree for one worker, an index for all workers of a cluster. Read `tree`
first, then `cache`, which adds what running requests pin.
"""

from fairsched.model.prefix_cache.cache import PrefixCache
from fairsched.model.prefix_cache.index import Match, PrefixIndex, Victim
from fairsched.model.prefix_cache.index_node import bits
from fairsched.model.prefix_cache.sorted_tuple import SortedTuple
from fairsched.model.prefix_cache.tree import Insertion, PrefixTree
from fairsched.model.prefix_cache.tree_draft import NO_NODE, ROOT, Eviction, common_keys, walk

__all__ = [
    "NO_NODE", "ROOT", "Eviction", "Insertion", "Match", "PrefixCache", "PrefixIndex", "PrefixTree", "SortedTuple",
    "Victim", "bits", "common_keys", "walk"
]  # fmt: skip
