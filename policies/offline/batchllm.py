"""BatchLLM: requests that share a prefix go together, groups with many outputs for little prefill first.

Paper: "BatchLLM: Optimizing Large Batched LLM Inference with Global Prefix Sharing and Throughput-oriented Token
Batching".  Groups are exact here (`policies.offline.prefix_groups`), the paper's greedy ones by name; which group
goes first is `group_places`, how much a step does is `MemoryCentric`'s.

Rule.  Waiting requests are grouped together when an eighth of them, and one at least, came since the last time, and
only if so many wait (`backlog_min`) and the groups save that share of their prompts (`saving_min_percent`).  Then
groups go in their order, and each from its oldest; later requests go behind, the longest cached prefix first, and so
do all requests where there are no groups.  Of several that share a prefix that is not cached, the first computes it and
the others wait for it.

Assumptions: none.  Theorems: P-BL-1 to 3 about groups, P-BL-4 about memory; to clients nothing, and a group that is
always last waits for ever while others come: with a bypass budget D-request (`policies.orders.abilities.bypass`).
`HybridBatchLLM` is the same order among the clients that have credit, only under backlog and where much is shared: the
deficit gate's theorems hold for any order, also for one that changes, so clients online keep their bound.  The paper
leaves it open how batches and online requests should share a worker.
"""

from collections.abc import Sequence
from typing import ClassVar

import attrs

from fairsched.model.algebra import Ints
from fairsched.model.request import TOKENS_MAX, Request
from fairsched.model.theorem import Theorem
from fairsched.policies.offline.prefix_groups import (
    GROUP_ORDERS,
    GROUPINGS,
    THEOREMS,
    Grouping,
    GroupOrder,
    group_places,
    groups_by,
)
from fairsched.policies.offline.tree import tree_of
from fairsched.policies.orders.abilities import FollowsCache, LimitsBypass, Regroups, bypass_budget_field
from fairsched.policies.validators import one_of, percent, positive

ALONE_MAX = TOKENS_MAX // 2
"""Ranks above this are of groups, the others of requests by what is cached of them."""
JOINED_SHARE = 8
"""Groups are made when one in so many came since."""


@attrs.frozen
class PrefixGroupOrder(FollowsCache, Regroups, LimitsBypass):
    """Group by group; requests in no group by cached tokens, to within 2."""

    name: ClassVar[str] = "prefix-groups"
    waits_for_prefix: ClassVar[bool] = True

    backlog_min: int = attrs.field(default=2, validator=positive)
    """Groups are made only while at least so many requests wait."""
    saving_min_percent: int = attrs.field(default=0, validator=percent)
    """Groups are made only if they save at least this share of the prompt tokens that wait."""
    grouping: Grouping = attrs.field(default="exact", validator=one_of(*GROUPINGS))
    """How prompts are grouped: `exact` saves most."""
    group_order: GroupOrder = attrs.field(default="per_request", validator=one_of(*GROUP_ORDERS))
    """`known_lengths` counts predicted output tokens, or declared ones without a prediction."""
    bypass_budget: int | None = bypass_budget_field()

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """Those about exact groups, and with a bypass budget a request's bound."""
        return (*(THEOREMS if self.grouping == "exact" else ()), *super().theorems)

    def rank(self, request: Request, cached_tokens: int) -> int:
        return min(cached_tokens // 2, ALONE_MAX)

    def renewed(self, before: int, rank: int) -> int:
        """A place in a group stands until groups are made again."""
        return before if before > ALONE_MAX else rank

    def regroups(self, waiting: int, joined: int) -> bool:
        return JOINED_SHARE * joined >= max(waiting, 1)

    def ranks_together(self, requests: Sequence[Request]) -> Ints | None:
        """Ranks by the places of groups.  O(n log n), and comparisons of prompts by memcmp."""
        if len(requests) < self.backlog_min:
            return None
        tree = tree_of([request.prompt for request in requests])
        groups = groups_by(tree, self.grouping)
        if 100 * groups.saved_tokens < self.saving_min_percent * groups.prompt_tokens:
            return None
        places = group_places(tree, groups, self.group_order, [_outputs(request) for request in requests])
        # More groups than there are ranks share the last one.
        ranks: Ints = TOKENS_MAX - places.clip(max=ALONE_MAX - 1)[groups.group_of]
        return ranks


def _outputs(request: Request) -> int:
    return request.max_output_tokens if request.predicted_output_tokens is None else request.predicted_output_tokens
