"""VTC: the client charged least goes first, whatever it sends.

Paper: "Fairness in Serving Large Language Models" (OSDI'24).
Assumptions and theorem: those of the counter gate (`policies.counter`): two waiting clients' charged service differs
by at most 2U, V-4.4.
Composition: order of arrival x counter gate x chunked prefill.  Prompts are charged whole, cached or not, as in the
paper, which knows no prefix cache.
"""

from typing import Any

import attrs

from fairsched.policies.batching import Batching, Chunked
from fairsched.policies.counter import CounterGate
from fairsched.policies.gate import Gate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import Arrival, Order


@attrs.frozen
class VTC(ComposedPolicy):
    """Virtual token counters."""

    name: str = "vtc"
    order: Order = attrs.field(factory=Arrival)
    gate: Gate[Any] = attrs.field(factory=CounterGate)
    batching: Batching = attrs.field(factory=Chunked)
