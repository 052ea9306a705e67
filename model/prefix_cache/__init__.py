"""Prefix caches as persistent values: a radix tree for one worker, an index for all workers of a cluster. Read `tree`
first.
"""

from fairsched.model.prefix_cache.index import IndexMatch, PrefixIndex, Victim, bits
from fairsched.model.prefix_cache.tree import (
    ROOT,
    Eviction,
    Insertion,
    PrefixCache,
    PrefixTree,
    SortedTuple,
    common_keys,
    walk,
)

__all__ = [
    "ROOT", "Eviction", "IndexMatch", "Insertion", "PrefixCache", "PrefixIndex", "PrefixTree", "SortedTuple", "Victim",
    "bits", "common_keys", "walk"
]  # fmt: skip
