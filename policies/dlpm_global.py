"""DLPM with one deficit a client for all workers: longest cached prefix first, among the clients that have credit.

Source: this library; what it changes of D2LPM, why, and what it gives up is in `policies.global_deficit`.
Assumptions and theorem: those of that gate; clients that wait anywhere differ in charged service by at most
2(Q + m(U - 1)) on m workers, whatever routes their requests (D2-global).
Composition: longest prefix x global deficit gate x chunked prefill.
"""

from typing import Any

import attrs

from fairsched.policies.batching import Batching, Chunked
from fairsched.policies.gate import Gate
from fairsched.policies.global_deficit import GlobalDeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import LongestPrefix, Order


@attrs.frozen
class DLPMGlobal(ComposedPolicy):
    """Deficit longest prefix match under one gate for all workers; on one worker it is DLPM."""

    name: str = "dlpm-global"
    order: Order = attrs.field(factory=LongestPrefix)
    gate: Gate[Any] = attrs.field(factory=GlobalDeficitGate)
    batching: Batching = attrs.field(factory=Chunked)
