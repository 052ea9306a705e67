"""Hypothesis strategies of workers at work: plans that they can execute, states that they reach, events that they tell.

No policy is asked: whatever a worker allows may happen, so that what holds of all of these holds under any policy.
"""

from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.model import worker as transitions
from fairsched.model.events import Event, WorkerJoined
from fairsched.model.host import Host
from fairsched.model.plan import Admission, StepPlan
from fairsched.model.worker import InfeasiblePlanError, Step
from fairsched.model.worker_state import WorkerState
from fairsched.verify.strategies import requests

ACTIONS = ("arrive", "step", "step", "step", "leap", "cancel", "stop", "lose")
"""What may happen next; most of the time the worker works."""


@st.composite
def step_plans(draw: st.DrawFn, state: WorkerState) -> StepPlan:
    """A plan that this worker can execute: some of what waits enters, some prefills go on, somebody may be preempted or
    swapped out, and who comes back from the host may count on its KV there.

    The plan counts on exactly what is cached.
    """
    entering = draw(st.lists(st.sampled_from(sorted(state.queue)), max_size=3, unique=True)) if state.queue else []
    leaving = draw(st.lists(st.sampled_from(sorted(state.running)), max_size=1)) if state.running else []
    swaps = bool(state.host.capacity_tokens) and draw(st.booleans())
    chunks = [(i, draw(_chunks(left))) for i, left in state.prefilling if i not in leaving]
    admissions, coming = [], []
    for request_id in entering:
        waiting = state.queue[request_id]
        request = waiting.request
        cached_tokens = state.cache.cached_tokens(request.prompt)
        extend_tokens = request.prompt.tokens + waiting.generated_tokens - cached_tokens
        kept = state.host.kept(request_id)
        reserved = request.max_output_tokens - waiting.generated_tokens if draw(st.booleans()) else 0
        if kept and draw(st.booleans()):
            coming.append(request_id)
            extend_tokens = min(extend_tokens, waiting.context_tokens - kept)
        else:
            chunks.append((request_id, draw(_chunks(extend_tokens))))
        admissions.append(Admission(request_id, request.client, extend_tokens, cached_tokens, reserved))
    leave, swap = ((), tuple(leaving)) if swaps else (tuple(leaving), ())
    decode = draw(st.sampled_from([True, True, False]))
    plan = StepPlan(leave, tuple(admissions), tuple(chunks), decode, swap_out=swap, swap_in=tuple(coming))
    known = tuple(chunk for chunk in plan.chunks if chunk[0] not in entering)
    for possible in (plan, StepPlan(plan.preempt, (), known, plan.decode, swap_out=swap)):
        try:
            transitions.begin(state, possible, 0)
        except InfeasiblePlanError:
            continue
        return possible
    return StepPlan(decode=False)


def _chunks(tokens: int) -> st.SearchStrategy[int]:
    """All that is left to prefill, or a part."""
    return st.one_of(st.just(tokens), st.integers(1, tokens))


@st.composite
def plays(draw: st.DrawFn, actions_max: int = 20, clients_max: int = 4) -> tuple[WorkerState, list[Event]]:
    """A worker after up to `actions_max` things happened to it, and all that it told, from `WorkerJoined` on.

    A millisecond passes with each.  Requests have ids 0, 1, 2, ... in order of arrival.
    """
    capacity = draw(st.integers(8, 30))
    host = draw(st.sampled_from([0, 0, capacity // 2, 3 * capacity]))
    state, told = WorkerState(0, capacity, host=Host(host)), [WorkerJoined(0, 0, capacity, host)]
    events: list[Event] = list(told)
    came = 0
    for now_ms, action in enumerate(draw(st.lists(st.sampled_from(ACTIONS), max_size=actions_max)), 1):
        now_ns = now_ms * 1_000_000
        if action == "arrive" or not (state.queue or state.running):
            for request in draw(st.lists(requests(0, now_ns, clients_max), min_size=1, max_size=4)):
                output_tokens = draw(st.integers(1, request.max_output_tokens))
                state, more = transitions.arrive(state, replace(request, id=came), output_tokens, now_ns)
                events += more
                came += 1
            continue
        state, more = _happens(draw, state, action, now_ns)
        events += more
    return state, events


def _happens(draw: st.DrawFn, state: WorkerState, action: str, now_ns: int) -> Step:
    """The transition of this name where it can happen, and else a step."""
    if action == "lose":
        return transitions.lose(state, now_ns)
    if action == "cancel":
        return transitions.cancel(state, draw(st.sampled_from(sorted({*state.queue, *state.running}))), now_ns)
    if action == "stop" and state.decoding:
        decoding = sorted(i for i, flight in state.in_flight.items() if flight.clock_start is not None)
        return transitions.stop(state, draw(st.sampled_from(decoding)), now_ns)
    if action == "leap" and state.decoding and state.decode_steps_max() > 0:
        return transitions.step(state, StepPlan(), now_ns, draw(st.integers(1, state.decode_steps_max())))
    return transitions.step(state, draw(step_plans(state)), now_ns)


def worker_states(actions_max: int = 20, clients_max: int = 4) -> st.SearchStrategy[WorkerState]:
    """Workers as they are between two transitions: empty, full, decoding, prefilling, with a cache or without."""
    return plays(actions_max, clients_max).map(lambda play: play[0])


def events(actions_max: int = 20, clients_max: int = 4) -> st.SearchStrategy[list[Event]]:
    """The events of one worker's run so far, in order: what a policy may observe, and a monitor or a log may see."""
    return plays(actions_max, clients_max).map(lambda play: play[1])
