"""Proactive swapping: who would be displaced goes to host memory ahead of need, and comes back ahead of time.

Source: FastServe, by its idea: slots of KV are kept idle for new requests; when too few are idle, those who will be
scheduled latest are swapped out, and those who will be next are swapped in.

Rule.  Who is new may have all KV that is free; who comes back leaves `free_percent` of the capacity free, unless it
runs alone.  While somebody waits and less is free than that and what the first who waits needs, those who run and stand
behind it are swapped out, the one that stands last first, as for a displacement; if all of them would not be enough for
it, nobody is.  While the next step's output might not fit, those who stand last are swapped out until the share is
free, and somebody stays.  Transfers last for a step and go on beside it, so the room is there one step later, and who
comes back enters one step before it computes.  No more moves in a step than `step_tokens`, or one request.

As with displacement, nobody is swapped out who has produced nothing since it was let in (P-SWAP).  Coming back is an
admission: it passes the gate, and is charged for the one token that it computes again.  Where host memory is full,
displacing means computing again.
"""

from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from fairsched.model.algebra import NOBODY
from fairsched.model.plan import StepPlan
from fairsched.model.theorem import Scope, Theorem
from fairsched.model.view import WorkerView
from fairsched.policies.batching import Batch
from fairsched.policies.displacement import (
    Requeue,
    behind,
    displaceable,
    displaced,
    freed_tokens,
    standing_of,
    undisplaced,
)
from fairsched.policies.local_state import LocalState
from fairsched.policies.round import Round, growth_steps, step_plan
from fairsched.policies.waiting import AGE_BITS

if TYPE_CHECKING:
    from fairsched.policies.local import ComposedPolicy

P_SWAP = Theorem(
    "P-SWAP",
    "whoever is swapped out has produced a token since it was let in, so it is swapped out less often than it has "
    "tokens of output, and it computes one token again when it comes back",
    "this library; FastServe's proactive swap; in drawn worlds",
    (),
    bound="output tokens - 1",
    scope=Scope.TESTED,
)


_CODE = "this library; the shipped text of model/worker_host.py and model/worker.py on symbolic integers"

KV_HOST = Theorem(
    "KV-host",
    "the KV of all requests on the host, with what is leaving it, never exceeds its capacity",
    "this library; for any number of requests, under the worker's check of each that is swapped out",
    (),
    bound="host_capacity_tokens",
)
KV_SWAP_OUT = Theorem(
    "KV-swap-out",
    "who is swapped out keeps on the device what it computed and promises no more, until the transfer is over; all but "
    "its last token is on the host",
    _CODE,
    (),
)
KV_SWAP_IN = Theorem(
    "KV-swap-in",
    "who is swapped in is promised its memory as at any admission, and computes just what is neither cached nor on the "
    "host",
    _CODE,
    (),
)
THEOREMS = (P_SWAP, KV_HOST, KV_SWAP_OUT, KV_SWAP_IN)


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
    policy: "ComposedPolicy", state: LocalState[Any], view: WorkerView, batch: Batch, free: int, requeued: Requeue
) -> tuple[StepPlan, LocalState[Any]]:
    """The next step of a worker with host memory, and the state after it.

    A decision without swaps, O(batch log batch), and a requeueing for each that is swapped out.
    """
    decided, moved = state, 0
    if state.waiting.entries and policy.batching.first_chunk(batch, 1):
        round_ = Round(policy.order, policy.gate, policy.batching, state, view, batch, free)
        plan, decided = round_.run()
        free, moved = round_.free, round_.moved
    else:
        optimistic = policy.batching.reserve == "optimistic"
        plan = step_plan(batch, (), growth_steps(view, policy.batching) if optimistic else None)
    head, output = _head(policy, decided, view, plan), _output(policy, view, plan)
    short_of_head = head is not None and (free < head.reach or head.seats)
    for wants in (head if short_of_head else None, output if output is not None and free < output.must else None):
        if wants is not None:
            victims, after = _victims(policy, decided, view, wants, free, moved, requeued)
            if victims:
                return msgspec.structs.replace(plan, swap_out=victims, valid_steps=1), after
    if head is not None and not plan.admit:
        again = displaced(policy, state, view, free, requeued) if free < head.must or head.seats else None
        if again is not None:
            return again
        plan = undisplaced(policy, state, view, plan)
    return _lasting(plan, view, free, head, output), decided


def _head(policy: "ComposedPolicy", state: LocalState[Any], view: WorkerView, plan: StepPlan) -> _Wants | None:
    """What the first who waits wants."""
    heads = state.waiting.heads
    group = policy.gate.turn(state.gate, heads).choose(heads) if state.waiting.entries else NOBODY
    if group == NOBODY:
        return None
    entry, swap = state.waiting.best(group), policy.order.swap
    assert swap is not None
    request, reserve = entry.request, swap.reserve(view)
    output = entry.output_tokens_left if policy.batching.reserve == "static" else 1
    need = entry.context_tokens + output - state.cache.cached_tokens(request.prompt)
    must = need + (reserve if view.host.kv.get(request.id) else 0)
    seats = max(view.running + len(plan.admit) + 1 - policy.batching.max_running, 0)
    return _Wants(need + reserve, must, seats, group, state.waiting.scores[request.id] >> AGE_BITS)


def _output(policy: "ComposedPolicy", view: WorkerView, plan: StepPlan) -> _Wants | None:
    """What the next step's output wants, at most; nothing where outputs are reserved."""
    if policy.batching.reserve == "static":
        return None
    assert policy.order.swap is not None
    growth = view.running + len(plan.admit)
    return _Wants(max(policy.order.swap.reserve(view), growth), growth)


def _victims(
    policy: "ComposedPolicy",
    state: LocalState[Any],
    view: WorkerView,
    wants: _Wants,
    free: int,
    moved: int,
    requeued: Requeue,
) -> tuple[tuple[int, ...], LocalState[Any]]:
    """Who is swapped out for that in this step, and the state after; nobody where it would not be enough."""
    swap = policy.order.swap
    assert swap is not None
    if wants.group is None:
        candidates = _last(policy, state, view)
    else:
        candidates = behind(policy, state, view, wants.group, wants.rank)
    grows = policy.batching.reserve == "optimistic"
    victims: list[int] = []
    after, room, host, open_ = state, free, view.host.free_tokens, True
    for count, victim in enumerate(candidates):
        if room >= wants.reach and count >= wants.seats:
            break
        room += freed_tokens(state, view, victim, grows)
        kv_tokens = view.computed_tokens(victim)
        # What does not move now, since the link or the host is busy, still counts: it will.
        open_ = open_ and kv_tokens <= host and (not moved or moved + kv_tokens <= swap.step_tokens)
        state = requeued(state, victim, view.decoded_tokens(victim))
        if open_:
            victims.append(victim)
            moved, host, after = moved + kv_tokens, host - kv_tokens, state
    if wants.group is not None and (room < wants.must or len(candidates) < wants.seats):
        return (), after
    return tuple(victims), after


def _last(policy: "ComposedPolicy", state: LocalState[Any], view: WorkerView) -> list[int]:
    """Who has produced something, the one that stands last first, without the one that stands first of all who run."""
    ranked = []
    for request_id, flight in view.in_flight.items():
        standing = standing_of(policy, state, view, request_id)
        ranked.append((standing is None, standing or 0, -flight.rank, request_id))
    last = [request_id for never, _, _, request_id in sorted(ranked)[:-1] if not never]
    return [request_id for request_id in last if displaceable(view.in_flight[request_id])]


def _lasting(plan: StepPlan, view: WorkerView, free: int, head: _Wants | None, output: _Wants | None) -> StepPlan:
    """The plan of a step in which nobody is swapped out: it stands until output has taken what somebody wants."""
    if plan.valid_steps == 1 or not view.growing:
        return plan
    limits = [] if head is None else [head.reach, head.must]
    limits += [] if output is None else [output.must]
    steps = [(free - limit) // view.growing + 1 for limit in limits if 0 < limit <= free]
    known = [plan.valid_steps] if plan.valid_steps is not None else []
    return msgspec.structs.replace(plan, valid_steps=min([*steps, *known], default=None))
