"""A plan that begins, or what stands in for one that a worker cannot execute because of KV in transit."""

from fairsched.model import worker as transitions
from fairsched.model.plan import StepPlan
from fairsched.model.worker import WorkerState

KEPT, PAUSED = StepPlan(), StepPlan(decode=False)
"""What stands in for a plan that counts on memory which a preemption does not free: no request enters or leaves, and
what decodes goes on, or pauses if there is no room."""


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
        return PAUSED, transitions.begin(state, PAUSED, now_ns)
