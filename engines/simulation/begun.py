"""A step's first and last half, where they are not the worker's own: what stands in for a plan that it cannot execute
because of KV in transit, and the tokens that come out of the last stage of a pipeline; and which of its events a policy
has folded, or end a request."""

from collections.abc import Mapping

from msgspec.structs import replace

from fairsched.model import events as ev
from fairsched.model import worker as transitions
from fairsched.model.plan import StepPlan
from fairsched.model.worker import Running, WorkerState

FOLDED = frozenset({ev.Admitted, ev.Paused, ev.Preempted, ev.Resumed, ev.SwappedIn, ev.SwappedOut})
"""Events that a policy's own decision has folded already, when its whole plan was executed."""
ENDS = (ev.Finished, ev.Rejected, ev.Cancelled)
"""How a request ends."""
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


TOKENS = (ev.Decoded, ev.Finished, ev.Migrated)
"""What of a step that only prefills comes out of the last stage of a pipeline."""


def last_tokens(state: WorkerState, plan: StepPlan) -> dict[int, Running]:
    """Requests of a step through a pipeline whose last token it makes, as requests that go on.

    So they keep memory and pins until that token has left the last stage.
    """
    done = [i for i, tokens in plan.chunks if state.in_flight[i].remaining_tokens == tokens]
    runs = ((request_id, state.running[request_id]) for request_id in done)
    return {
        request_id: replace(run, waiting=replace(run.waiting, output_tokens=run.waiting.output_tokens + 1))
        for request_id, run in runs
        if run.waiting.output_tokens == run.waiting.generated_tokens + 1
    }


def ending(event: ev.Event, last: Mapping[int, Running]) -> ev.Event:
    """What it is to leave the batch with the last token: the end."""
    if not isinstance(event, ev.Migrated) or event.request_id not in last:
        return event
    return ev.Finished(event.time_ns, event.worker, event.request_id, event.client, event.generated_tokens)
