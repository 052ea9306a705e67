"""DLPM: longest cached prefix first, among the clients that have credit.

Paper: "Locality-aware Fair Scheduling in LLM Serving".
Assumptions and theorem: those of the deficit gate (`policies.deficit`): two waiting clients' charged service differs by
at most 2(Q + U - 1), D-4.1.  About one request nothing, and with a bypass budget D-request (`policies.bypass`).
Composition: longest prefix x deficit gate x chunked prefill.  A large quantum Q approaches LPM, a small one VTC.
`DLPMPrinted` has the paper's rejoin rule, under which the theorem fails (counterexample CE1).
"""

from typing import Any

import attrs

from fairsched.policies.batching import Batching, Chunked
from fairsched.policies.deficit import DeficitGate
from fairsched.policies.gate import Gate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import LongestPrefix, Order


@attrs.frozen
class DLPM(ComposedPolicy):
    """Deficit longest prefix match, with the shipped rules."""

    name: str = "dlpm"
    order: Order = attrs.field(factory=LongestPrefix)
    gate: Gate[Any] = attrs.field(factory=DeficitGate)
    batching: Batching = attrs.field(factory=Chunked)


@attrs.frozen
class DLPMPrinted(ComposedPolicy):
    """DLPM as printed: a client that comes back starts at zero.  For comparison; it promises nothing to anybody who is
    compared with a client that comes and goes (D-4.1-rejoin is all that is left)."""

    name: str = "dlpm-printed"
    order: Order = attrs.field(factory=LongestPrefix)
    gate: Gate[Any] = attrs.field(factory=lambda: DeficitGate(rejoin="reset"))
    batching: Batching = attrs.field(factory=Chunked)
