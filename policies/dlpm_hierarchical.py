"""DLPM for organisations of users and keys: longest cached prefix first, where client and groups have credit.

Source: this library; DLPM's order under the gate of `policies.hierarchical`.
Assumptions and theorem: those of that gate; siblings that wait differ in charged service by at most 2(Q + U - 1),
whatever is below them (H-siblings), so that nobody gains by splitting up (H-split).
Composition: longest prefix x hierarchical gate x chunked prefill.
"""

from typing import Any

import attrs

from fairsched.policies.batching import Batching, Chunked
from fairsched.policies.gate import Gate
from fairsched.policies.hierarchical import HierarchicalGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import LongestPrefix, Order


@attrs.frozen
class DLPMHierarchical(ComposedPolicy):
    """Deficit longest prefix match under the hierarchical gate; for clients in no groups it is DLPM."""

    name: str = "dlpm-hierarchical"
    order: Order = attrs.field(factory=LongestPrefix)
    gate: Gate[Any] = attrs.field(factory=HierarchicalGate)
    batching: Batching = attrs.field(factory=Chunked)
