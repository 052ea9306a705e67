"""BatchLLM: requests that share a prefix go together, groups with many outputs for little prefill first.

Paper: "BatchLLM: Optimizing Large Batched LLM Inference with Global Prefix Sharing and Throughput-oriented Token
Batching".  Groups are exact here (`policies.offline.prefix_groups`), the paper's greedy ones by name; which group
goes first is `group_places`, how much a step does is `MemoryCentric`'s.

Rule.  Before the first admission of a decision waiting requests are grouped, if an eighth of them, and one at least,
came since the last time (of those that waited when the last one came), and only if so many wait (`backlog_min`) and the
groups save that share of their prompts (`saving_min_percent`).  Requests whose group's prefix is cached go first, and
stay in their group; then groups go in their order, and each from its oldest; later requests go behind, the longest
cached prefix first, and so do all requests where there are no groups.  Of several that share a prefix that is not
cached, the first computes it and the others wait for it.

Assumptions: none.  Theorems: P-BL-1 to 3 about groups, P-BL-4 about memory; to clients nothing, and a group that is
always last waits for ever while others come.
`HybridBatchLLM` is the same order among the clients that have credit, only under backlog and where much is shared: the
deficit gate's theorems hold for any order, also for one that changes, so clients online keep their bound.  The paper
leaves it open how batches and online requests should share a worker.
"""

from collections.abc import Sequence
from typing import ClassVar

import attrs
import numpy as np

from fairsched.model.algebra import Ints
from fairsched.model.request import TOKENS_MAX, Request
from fairsched.model.theorem import Theorem
from fairsched.policies.offline import prefix_groups as pg
from fairsched.policies.offline.prefix_groups import tree_of
from fairsched.policies.orders import NO_PLACE, FollowsCache, QueuedRequest, Regroups
from fairsched.policies.validators import one_of, percent, positive

ALONE_MAX = 0
"""Ranks above this are of groups, the others of requests by what is cached of them."""
NOT_CACHED_MAX = TOKENS_MAX // 2
"""Ranks above this are of requests whose group's prefix is cached."""
JOINED_SHARE = 8
"""Groups are made when one in so many came since."""


@attrs.frozen
class PrefixGroupOrder(FollowsCache, Regroups):
    """First requests whose group's prefix is cached, then group by group, then others by cached tokens."""

    name: ClassVar[str] = "prefix-groups"
    waits_for_prefix: ClassVar[bool] = True

    backlog_min: int = attrs.field(default=2, validator=positive)
    """Groups are made only while at least so many requests wait, without those in groups whose prefix is computed."""
    saving_min_percent: int = attrs.field(default=0, validator=percent)
    """Groups are made only if they save at least this share of the prompt tokens that wait."""
    grouping: pg.Grouping = attrs.field(default="exact", validator=one_of(*pg.GROUPINGS))
    """How prompts are grouped: `exact` saves most."""
    group_order: pg.GroupOrder = attrs.field(default="per_request", validator=one_of(*pg.GROUP_ORDERS))
    """`known_lengths` counts predicted output tokens, or declared ones without a prediction."""

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """Return those about exact groups."""
        return pg.THEOREMS if self.grouping == "exact" else ()

    def rank(self, request: Request, cached_tokens: int) -> int:
        return cached_tokens - TOKENS_MAX

    def rank_queued(self, queued: QueuedRequest, cached_tokens: int) -> int:
        if queued.place == NO_PLACE:
            return self.rank(queued.request, cached_tokens)
        return (TOKENS_MAX if queued.prefix_is_cached(cached_tokens) else NOT_CACHED_MAX) - queued.place

    def regroups(self, waiting: int, joined: int) -> bool:
        return JOINED_SHARE * joined >= max(waiting, 1)

    def groups_together(self, requests: Sequence[Request]) -> tuple[Ints, Ints] | None:
        """Return the places and prefixes of groups.  O(n log n), and comparisons of prompts by memcmp."""
        if len(requests) < self.backlog_min:
            return None
        tree = tree_of([request.prompt for request in requests])
        groups = pg.groups_by(tree, self.grouping)
        if 100 * groups.saved_tokens < self.saving_min_percent * groups.prompt_tokens:
            return None
        places = pg.group_places(tree, groups, self.group_order, [_outputs(request) for request in requests])
        # More groups than there are ranks share the last one.
        return np.minimum(places, NOT_CACHED_MAX - 1)[groups.group_of], groups.prefix_tokens[groups.group_of]


def _outputs(request: Request) -> int:
    return request.max_output_tokens if request.predicted_output_tokens is None else request.predicted_output_tokens
