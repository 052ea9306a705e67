"""LPM: longest cached prefix first, for the highest hit rate of the prefix cache.

Source: SGLang's default order ("SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS'24).
Assumptions: none.  Theorem: none; a request whose prefix is cold waits for ever under a steady stream of warm ones,
and so does a client (docs/policies.md shows it).  With a bypass budget: D-request (`policies.bypass`).
Composition: longest prefix x no gate x chunked prefill.
"""

from typing import Any

import attrs

from fairsched.policies.batching import Batching, Chunked
from fairsched.policies.gate import Gate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import LongestPrefix, Order


@attrs.frozen
class LPM(ComposedPolicy):
    """Longest prefix match."""

    name: str = "lpm"
    order: Order = attrs.field(factory=LongestPrefix)
    gate: Gate[Any] = attrs.field(factory=OpenGate)
    batching: Batching = attrs.field(factory=Chunked)
