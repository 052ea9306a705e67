"""Displacement: who waits takes the place of those who run and stand behind, who wait again and compute again.

When nobody can enter for want of memory or of a place in the batch, the first who waits may displace.  Those whose
standing its rank exceeds are taken out, the one that stands last first, until it fits; it enters in the same step, and
nobody else does.  If they would not be enough, nobody is taken out.  Under a gate only the client's own requests are
displaced, so nobody is charged for what another's request undid.

Nobody is displaced who has produced nothing since it was let in, and who enters ranks strictly before whom it
displaces.  So each time that a request is let in yields at least one token of its output, however ranks change: it is
let in at most as often as it has tokens to produce, beside those times that memory alone took it out, and there the
oldest of the batch stays (P-FC-1).  Two requests cannot displace each other for ever (P-DISPLACED).

Ranks of those who wait change by events and by promotions, standings by decoding; an order says for how many steps
neither does, so decode steps may be leapt over.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from fairsched.model.algebra import NOBODY
from fairsched.model.plan import StepPlan
from fairsched.model.theorem import Scope, Theorem
from fairsched.model.view import InFlight, WorkerView
from fairsched.policies.local_state import LocalState, group_of
from fairsched.policies.round import Round
from fairsched.policies.waiting import AGE_BITS

if TYPE_CHECKING:
    from fairsched.policies.local import ComposedPolicy

P_DISPLACED = Theorem(
    "P-DISPLACED",
    "whoever is displaced has produced a token since it was let in, and is displaced by one that ranks before it; so a "
    "request is displaced less often than it has tokens of output",
    "this library; in drawn worlds",
    (),
    bound="output tokens - 1",
    scope=Scope.TESTED,
)

Requeue = Callable[[LocalState[Any], int, int], LocalState[Any]]


def freed_tokens(state: LocalState[Any], view: WorkerView, request_id: int, produces: bool) -> int:
    """KV that is free again when a running request is taken out of a step in which it may produce a token."""
    flight = view.in_flight[request_id]
    cache = state.cache.release(request_id)
    freed = state.cache.tree.protected_tokens - cache.tree.protected_tokens + flight.kv_tokens
    # What it produced is free again, and what it would produce in this step is not needed.
    return freed if flight.reserved else freed + view.decoded_tokens(request_id) + produces


def displaced(
    policy: "ComposedPolicy", state: LocalState[Any], view: WorkerView, free: int, requeued: Requeue
) -> tuple[StepPlan, LocalState[Any]] | None:
    """The step in which the first who waits takes the place of others, and the state after; None if it may not.

    O(batch), and a decision for each that is taken out.
    """
    order, gate, batching, waiting = policy.order, policy.gate, policy.batching, state.waiting
    group = gate.turn(state.gate, waiting.heads).choose(waiting.heads)
    if group == NOBODY:
        return None
    request_id = waiting.best(group).request.id
    batch = batching.open(view)
    optimistic = batching.reserve == "optimistic"
    victims: list[int] = []
    for victim in behind(policy, state, view, group, waiting.scores[request_id] >> AGE_BITS):
        free += freed_tokens(state, view, victim, batch.decode and optimistic)
        state = requeued(state, victim, view.decoded_tokens(victim))
        victims.append(victim)
        batch = batching.open(view)
        for _ in victims:
            batching.vacate(batch)
        entered = Round(order, gate, batching, state, view, batch, free).run_only(group, request_id)
        if entered is not None:
            plan, decided = entered
            return msgspec.structs.replace(plan, preempt=tuple(victims), valid_steps=1), decided
    return None


def behind(policy: "ComposedPolicy", state: LocalState[Any], view: WorkerView, group: int, rank: int) -> list[int]:
    """Who may be displaced by one of that rank: the last first, of equals the youngest.  O(batch log batch)."""
    found = []
    for request_id, flight in view.in_flight.items():
        if not displaceable(flight) or group_of(policy.gate, flight.client) != group:
            continue
        standing = standing_of(policy, state, view, request_id)
        if standing is not None and standing < rank:
            found.append((standing, -flight.rank, request_id))
    return [request_id for _, _, request_id in sorted(found)]


def standing_of(policy: "ComposedPolicy", state: LocalState[Any], view: WorkerView, request_id: int) -> int | None:
    """What a waiting request's rank must exceed to take this running one's place; None: none may."""
    return policy.order.standing(*_progress(state, view, request_id))


def displaceable(flight: InFlight) -> bool:
    """Whether a running request has produced something since it was let in."""
    return flight.clock_start is not None


def undisplaced(policy: "ComposedPolicy", state: LocalState[Any], view: WorkerView, plan: StepPlan) -> StepPlan:
    """The plan of a step in which nobody could be displaced: it stands until a rank or a standing changes."""
    order, waiting = policy.order, state.waiting
    if plan.valid_steps == 1:
        return plan
    limits = [plan.valid_steps]
    if order.promote_steps is not None and waiting.patient.size:
        limits.append(waiting.patient.first()[0] + order.promote_steps - waiting.steps)
    turn = policy.gate.turn(state.gate, waiting.heads)
    limits.append(turn.stays(turn.choose(waiting.heads), view.decoding_clients, view.decoding_counts))
    limits += [order.standing_steps(*_progress(state, view, request_id)) for request_id in view.in_flight]
    steps = min((limit for limit in limits if limit is not None), default=None)
    return msgspec.structs.replace(plan, valid_steps=steps)


def _progress(state: LocalState[Any], view: WorkerView, request_id: int) -> tuple[Any, int, int | None]:
    flight = state.flights[request_id]
    generated = flight.entry.generated_tokens + view.decoded_tokens(request_id)
    return flight.entry.request, generated, flight.promoted_steps(state.waiting.steps)
