"""A plan that begins, or what stands in for one that a worker cannot execute because of KV in transit."""

from fairsched.model import worker as transitions
from fairsched.model.plan import StepPlan
from fairsched.model.worker import WorkerState

KEPT, STANDSTILL = StepPlan(), StepPlan(decode=False)
"""What stands in for a plan that counts on memory which a preemption does not free: no request enters or leaves, and
what decodes goes on, or nothing does if there is no room."""


def begun(state: WorkerState, plan: StepPlan, now_ns: int) -> tuple[StepPlan, transitions.Step]:
    """Begin a plan, or what stands in for it where prefixes are pinned for KV in transit.

    A policy's copy of the cache does not have those pins.
    """
    try:
        return plan, transitions.begin(state, plan, now_ns)
    except transitions.InfeasiblePlanError:
        transit = state.transit
        if not any(request_id in state.cache.pins for request_id in (*transit.outgoing, *transit.landed)):
            raise
    try:
        return KEPT, transitions.begin(state, KEPT, now_ns)
    except transitions.InfeasiblePlanError:
        return STANDSTILL, transitions.begin(state, STANDSTILL, now_ns)
