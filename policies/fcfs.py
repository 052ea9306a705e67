"""FCFS: first come, first served; the engine's usual default, and the baseline of everything.

Source: folklore.  Assumptions: none.  Theorem: none about shares, since whoever sends most is served most.
Composition: order of arrival x no gate x chunked prefill; the first request that does not fit stops the line.

Papers mean two things by it, which differ in what memory must hold before a request enters, and each has its name here:
`no-preempt` reserves the whole declared output, so that nobody is ever preempted and memory stands unused
while outputs end early; `fcfs-optimistic` (vLLM's) admits whatever prompt fits, and when outputs have grown too far
takes the youngest out, which is computed again.  `fcfs`, which takes either `reserve`, reserves by default.
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


def _optimistic() -> Batching:
    return Chunked(reserve="optimistic")


@attrs.frozen
class FCFSOptimistic(FCFS):
    """First come, first served, as soon as the prompt fits; preempts the youngest when memory runs out."""

    name: str = "fcfs-optimistic"
    batching: Batching = attrs.field(factory=_optimistic)


@attrs.frozen
class NoPreempt(FCFS):
    """First come, first served, with room for the whole declared output, so that nobody is preempted."""

    name: str = "no-preempt"
