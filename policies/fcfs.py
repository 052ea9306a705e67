"""FCFS: first come, first served; the engine's usual default, and the baseline of everything.

Source: folklore.  Assumptions: none.  Theorem: none about shares, since whoever sends most is served most.
Composition: order of arrival x no gate x chunked prefill; the first request that does not fit stops the line.
"""

from typing import Any

import attrs

from fairsched.policies.batching import Batching, Chunked
from fairsched.policies.gate import Gate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import Arrival, Order


@attrs.frozen
class FCFS(ComposedPolicy):
    """First come, first served."""

    name: str = "fcfs"
    order: Order = attrs.field(factory=Arrival)
    gate: Gate[Any] = attrs.field(factory=OpenGate)
    batching: Batching = attrs.field(factory=Chunked)
