"""BatchLLM: those who share a prefix go together, groups with most outputs for little prefill first.

Paper: "BatchLLM: Optimizing Large Batched LLM Inference with Global Prefix Sharing and Throughput-oriented Token
Batching".  Groups are exact here (`policies.prefix_groups`), the paper's greedy ones by name; which group goes first is
`policies.group_order`, how much a step does is `MemoryCentric`'s.

Rule.  Those who wait are grouped together when an eighth of them, and one at least, came since the last time, and
only if so many wait (`backlog_min`) and the groups save that share of their prompts (`saving_min_percent`).  Then
groups go in their order, and each from its oldest; whoever came since goes behind, the longest cached prefix first, and
so does everybody where there are no groups.  Of several who share a prefix that is not cached, the first computes it
and the others wait for it.

Assumptions: none.  Theorems: P-BL-1 to 3 about groups, P-BL-4 about memory; to clients nothing, and a group that is
always last waits for ever while others come: with a bypass budget D-request (`policies.bypass`).
`HybridBatchLLM` is the same order among the clients that have credit, only under backlog and where much is shared: the
deficit gate's theorems hold for any order, also for one that changes, so clients online keep their bound.  The paper
leaves it open how batches and online requests should share a worker.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from fairsched.model.algebra import Ints
from fairsched.model.request import TOKENS_MAX, Request
from fairsched.model.theorem import Theorem
from fairsched.policies.batch_tree import tree_of
from fairsched.policies.batching import Batching, Chunked, MemoryCentric
from fairsched.policies.deficit import DeficitGate
from fairsched.policies.gate import Gate, OpenGate
from fairsched.policies.group_order import GROUP_ORDERS, GroupOrder, group_places
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import Order, bypass_budget_field
from fairsched.policies.prefix_groups import THEOREMS
from fairsched.policies.prefix_groups_greedy import GROUPINGS, Grouping, groups_by
from fairsched.policies.validators import one_of, percent, positive

ALONE_MAX = TOKENS_MAX // 2
"""Ranks above this are of groups, the others of requests by what is cached of them."""
JOINED_SHARE = 8
"""Groups are made when one in so many came since."""


@attrs.frozen
class PrefixGroupOrder(Order):
    """Group by group; whoever is in none by cached tokens, to within 2."""

    name: ClassVar[str] = "prefix-groups"
    follows_cache: ClassVar[bool] = True
    waits_for_prefix: ClassVar[bool] = True

    backlog_min: int = attrs.field(default=2, validator=positive)
    """Groups are made only while at least so many requests wait."""
    saving_min_percent: int = attrs.field(default=0, validator=percent)
    """Groups are made only if they save at least this share of the prompt tokens that wait."""
    grouping: Grouping = attrs.field(default="exact", validator=one_of(*GROUPINGS))
    group_order: GroupOrder = attrs.field(default="per_request", validator=one_of(*GROUP_ORDERS))
    """`known_lengths` counts predicted output tokens, or declared ones where nobody predicts."""
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


@attrs.frozen
class BatchLLM(ComposedPolicy):
    """Prefix groups for throughput; promises nothing to anybody."""

    name: str = "batchllm"
    order: Order = attrs.field(factory=PrefixGroupOrder)
    gate: Gate[Any] = attrs.field(factory=OpenGate)
    batching: Batching = attrs.field(factory=MemoryCentric)


def _under_backlog() -> PrefixGroupOrder:
    return PrefixGroupOrder(backlog_min=64, saving_min_percent=30)


@attrs.frozen
class HybridBatchLLM(ComposedPolicy):
    """Prefix groups among the clients that have credit, while many wait and share much; else the longest prefix."""

    name: str = "batchllm-hybrid"
    order: Order = attrs.field(factory=_under_backlog)
    gate: Gate[Any] = attrs.field(factory=DeficitGate)
    batching: Batching = attrs.field(factory=Chunked)
