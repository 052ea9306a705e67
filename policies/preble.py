"""Preble's local scheduler: priority groups by cached share, which take turns, chunked prefill.

Paper: "Preble: Efficient Distributed Prompt Scheduling for LLM Serving" (ICLR'25), local scheduler; its released code
has no priority groups.  Its global scheduler is a router (E2).
Assumptions: those of `policies.turns` (TurnRespected, GroupsRise, QuotaPositive).  Theorem: the k-th request of group g
is let in after at most ceil(k/g) P(P+1)/2 picks (PG-1).
Composition: priority groups x no gate x chunked prefill.  Under a gate each client's requests take turns of their own.
`PreblePrinted` has a group 0 without a quota and regroups whenever the cache changes; it promises nothing.
"""

from typing import Any

import attrs

from fairsched.policies.batching import Batching, Chunked
from fairsched.policies.gate import Gate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import Order
from fairsched.policies.priority_groups import PriorityGroups


@attrs.frozen
class Preble(ComposedPolicy):
    """Preble's local scheduler, with the shipped rules."""

    name: str = "preble"
    order: Order = attrs.field(factory=PriorityGroups)
    gate: Gate[Any] = attrs.field(factory=OpenGate)
    batching: Batching = attrs.field(factory=Chunked)


@attrs.frozen
class PreblePrinted(ComposedPolicy):
    """The groups as printed.  For comparison: a request that is cold, or whose prefix is evicted, may never go."""

    name: str = "preble-printed"
    order: Order = attrs.field(factory=lambda: PriorityGroups(lowest=0, regroup="always"))
    gate: Gate[Any] = attrs.field(factory=OpenGate)
    batching: Batching = attrs.field(factory=Chunked)
