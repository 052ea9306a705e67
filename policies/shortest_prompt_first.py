"""Shortest prompt first: least work first, as far as a prompt tells.

Source: folklore (shortest job first without a predictor).  Assumptions: none.  Theorem: none; a long prompt waits for
ever under a steady stream of shorter ones.  With a bypass budget: D-request (`policies.bypass`).
Composition: shortest prompt x no gate x chunked prefill.
"""

from typing import Any

import attrs

from fairsched.policies.batching import Batching, Chunked
from fairsched.policies.gate import Gate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import Order, ShortestPrompt


@attrs.frozen
class ShortestPromptFirst(ComposedPolicy):
    """Shortest prompt first."""

    name: str = "shortest-prompt"
    order: Order = attrs.field(factory=ShortestPrompt)
    gate: Gate[Any] = attrs.field(factory=OpenGate)
    batching: Batching = attrs.field(factory=Chunked)
