"""Proactive swapping: who would be displaced goes to host memory ahead of need, and comes back ahead of time.

Source: FastServe, by its idea: slots of KV are kept idle for new requests; when too few are idle, those who will be
scheduled latest are swapped out, and those who will be next are swapped in.

Rule.  Who is new may have all KV that is free; who comes back leaves `free_percent` of the capacity free, unless it
runs alone.  While requests wait and less is free than that and what the first of them needs, those that run and stand
behind it are swapped out, the one that stands last first, as for a displacement; if all of them would not be enough for
it, none is.  While the next step's output might not fit, those that stand last are swapped out until the share is
free, and one stays.  Transfers last for a step and go on beside it, so the room is there one step later, and who
comes back enters one step before it computes.  No more moves in a step than `step_tokens`, or one request.

As with displacement, no request is swapped out that has produced nothing since it was let in (P-SWAP).  Coming back is
an admission: it passes the gate, and is charged for the one token that it computes again.  Where host memory is full,
displacing means computing again.
"""

import attrs
from msgspec.structs import replace

from fairsched.model.algebra import NO_GROUP
from fairsched.model.decision import StepPlan, WorkerView
from fairsched.policies.batching import Batch
from fairsched.policies.local.adapters import AdapterSlots
from fairsched.policies.local.admission import AdmissionPass, Composition, growth_steps, step_plan
from fairsched.policies.local.preemption import behind, displaced, freed_tokens, last_ranked, standings, undisplaced
from fairsched.policies.local.state import AnyLocalState, requeued
from fairsched.policies.orders import AGE_BITS
from fairsched.policies.orders.abilities import Swap, Swaps


@attrs.frozen
class _Wants:
    """What is short: free KV to `reach`, of which `must` is needed, for a request of `rank` in `group` (None: for the
    output of those who run), and so many `seats`."""

    reach: int
    must: int
    seats: int = 0
    group: int | None = None
    rank: int = 0


def swapping_step(
    policy: Composition, state: AnyLocalState, view: WorkerView, batch: Batch, free: int
) -> tuple[StepPlan, AnyLocalState]:
    """Return the next step of a worker with host memory, and the state after it.

    A decision without swaps, and a requeueing for each that is swapped out; O(batch log batch) where output is short.
    """
    decided, moved = state, 0
    if state.queue.entries:
        admissions = AdmissionPass(policy, state, view, batch, free)
        plan, decided = admissions.run()
        free, moved = admissions.free, admissions.moved
    else:
        optimistic = policy.batching.grows
        plan = step_plan(batch, (), growth_steps(view, policy.batching) if optimistic else None)
    head, output = _head(policy, decided, view, plan), _output(policy, view, plan)
    short_of_head = head is not None and (free < head.reach or head.seats)
    for wants in (head if short_of_head else None, output if output is not None and free < output.must else None):
        if wants is not None:
            decided = replace(decided, standings=standings(policy, decided, view))
            victims, after = _victims(policy, decided, view, wants, free, moved)
            if victims:
                return replace(plan, swap_out=victims, valid_steps=1), after
    if state.queue.entries and not plan.admit:
        short = head is not None and (free < head.must or head.seats)
        if short:
            again, decided = displaced(policy, state, view, free)
            if again is not None:
                return again, decided
        plan = undisplaced(policy, decided, view, plan)
    return _lasting(plan, view, free, head, output), decided


def _head(policy: Composition, state: AnyLocalState, view: WorkerView, plan: StepPlan) -> _Wants | None:
    """Return what the first that waits wants."""
    heads = state.queue.heads
    group = policy.gate.begin(state.gate, heads).choose(heads) if state.queue.entries else NO_GROUP
    if group == NO_GROUP:
        return None
    entry = state.queue.best(group)
    if AdapterSlots(state, view).lacks(entry):
        return None
    request, reserve = entry.request, _swap(policy).reserve(view)
    output = 1 if policy.batching.grows else entry.output_tokens_left
    need = entry.context_tokens + output - state.cache.cached_tokens(request.prompt)
    must = need + (reserve if view.host.kv.get(request.id) else 0)
    seats = max(view.running + len(plan.admit) + 1 - policy.batching.max_running, 0)
    return _Wants(need + reserve, must, seats, group, state.queue.scores[request.id] >> AGE_BITS)


def _output(policy: Composition, view: WorkerView, plan: StepPlan) -> _Wants | None:
    """Return what the next step's output wants, at most; nothing where outputs are reserved."""
    if not policy.batching.grows:
        return None
    growth = view.running + len(plan.admit)
    return _Wants(max(_swap(policy).reserve(view), growth), growth)


def _swap(policy: Composition) -> Swap:
    assert isinstance(policy.order, Swaps)
    return policy.order.swap


def _victims(
    policy: Composition, state: AnyLocalState, view: WorkerView, wants: _Wants, free: int, moved: int
) -> tuple[tuple[int, ...], AnyLocalState]:
    """Return the requests swapped out for that in this step, and the state after; none where they would not be
    enough."""
    swap = _swap(policy)
    if wants.group is None:
        candidates = iter(last_ranked(policy, state, view))
    else:
        candidates = behind(policy, state, view, wants.group, wants.rank, {})
    grows = policy.batching.grows
    victims: list[int] = []
    after, room, host, open_ = state, free, view.host.free_tokens, True
    count = 0
    for victim in candidates:
        if room >= wants.reach and count >= wants.seats:
            break
        count += 1
        room += freed_tokens(state, view, victim, grows)
        kv_tokens = view.computed_tokens(victim)
        # What does not move now, since the link or the host is busy, still counts: it will.
        open_ = open_ and kv_tokens <= host and (not moved or moved + kv_tokens <= swap.step_tokens)
        state = requeued(policy.order, policy.gate, state, victim, view.decoded_tokens(victim))
        if open_:
            victims.append(victim)
            moved, host, after = moved + kv_tokens, host - kv_tokens, state
    if wants.group is not None and (room < wants.must or count < wants.seats):
        return (), after
    return tuple(victims), after


def _lasting(plan: StepPlan, view: WorkerView, free: int, head: _Wants | None, output: _Wants | None) -> StepPlan:
    """Return the plan of a step in which none is swapped out: it stands until output has taken what is wanted."""
    if plan.valid_steps == 1 or not view.growing:
        return plan
    limits = [] if head is None else [head.reach, head.must]
    limits += [] if output is None else [output.must]
    steps = [(free - limit) // view.growing + 1 for limit in limits if 0 < limit <= free]
    known = [plan.valid_steps] if plan.valid_steps is not None else []
    return replace(plan, valid_steps=min([*steps, *known], default=None))
