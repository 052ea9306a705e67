"""Priority preemption: a waiting request takes the place of running ones that rank behind it and compute again.

When no request can enter for want of memory or of a place in the batch, the first that waits may displace.  Those whose
standing its rank exceeds are taken out, the one that stands last first, until it fits; it enters in the same step, and
no other one does.  If they would not be enough, none is taken out.  Under a gate only the client's own requests are
displaced, so no client is charged for what another's request undid.

No request is displaced that has produced nothing since it was admitted, and one that enters ranks strictly before those
it displaces.  So each time that a request is let in yields at least one token of its output, however ranks change: it
is let in at most as often as it has tokens to produce, beside those times that memory alone took it out, and there the
oldest of the batch stays (P-FC-1).  Two requests cannot displace each other for ever (P-DISPLACED).

Ranks of those who wait change by events and by promotions, standings by decoding; an order says for how many steps
neither does, so decode steps may be leapt over.
"""

from immutables import Map
from msgspec.structs import replace

from fairsched.model.algebra import NO_GROUP
from fairsched.model.plan import StepPlan
from fairsched.model.view import InFlight, WorkerView
from fairsched.policies.local.admission import AdmissionPass
from fairsched.policies.local.state import AnyLocalState, Composition, Standings, group_of, steps_of
from fairsched.policies.orders import AGE_BITS, QueuedRequest
from fairsched.policies.orders.abilities import Preempts, Promotes, Promotions


def freed_tokens(state: AnyLocalState, view: WorkerView, request_id: int, produces: bool) -> int:
    """KV that is free again when a running request is taken out of a step in which it may produce a token."""
    flight = view.in_flight[request_id]
    cache = state.cache.release(request_id)
    freed = state.cache.tree.protected_tokens - cache.tree.protected_tokens + flight.kv_tokens
    # What it produced is free again, and what it would produce in this step is not needed.
    produces = produces and flight.clock_paused is None
    return freed if flight.reserved else freed + view.decoded_tokens(request_id) + produces


def displaced(
    policy: Composition, state: AnyLocalState, view: WorkerView, free: int
) -> tuple[StepPlan, AnyLocalState] | None:
    """The step in which the first that waits takes the place of others, and the state after; None if it may not.

    O(1) if how those that run stand is known and none may be, else O(batch), and a decision for each that is taken out.
    """
    gate, batching, queue = policy.gate, policy.batching, state.queue
    group = gate.begin(state.gate, queue.heads).choose(queue.heads)
    if group == NO_GROUP:
        return None
    request_id = queue.best(group).request.id
    rank = queue.scores[request_id] >> AGE_BITS
    lowest = standings(policy, state, view).lowest.get(group)
    if lowest is None or lowest >= rank:
        return None
    batch = batching.open(view)
    optimistic = batching.grows
    victims: list[int] = []
    for victim in behind(policy, state, view, group, rank):
        free += freed_tokens(state, view, victim, batch.decode and optimistic)
        state = policy.requeued(state, victim, view.decoded_tokens(victim))
        victims.append(victim)
        batch = batching.open(view)
        for _ in victims:
            batching.vacate(batch)
        entered = AdmissionPass(policy, state, view, batch, free).run_only(group, request_id, victims)
        if entered is not None:
            plan, decided = entered
            return replace(plan, preempt=tuple(victims), valid_steps=1), decided
    return None


def standings(policy: Composition, state: AnyLocalState, view: WorkerView) -> Standings:
    """How those that run stand now.  O(1) if the batch is the one of the last decision and no rank has fallen since,
    else O(batch)."""
    order, steps = policy.order, steps_of(state.queue)
    assert isinstance(order, Preempts)
    if state.standings.steps_since(order, view, steps) is not None:
        return state.standings
    lowest: dict[int, int] = {}
    lasts: int | None = None
    constant = type(order).preemption_rank_steps is Preempts.preemption_rank_steps
    for request_id, flight in view.in_flight.items():
        queued, generated, promoted_steps = _progress(state, view, request_id, steps)
        if not constant:
            limit = order.preemption_rank_steps(queued.request, generated, promoted_steps)
            lasts = limit if lasts is None or (limit is not None and limit < lasts) else lasts
        if displaceable(flight):
            standing = order.preemption_rank_queued(queued, generated, promoted_steps)
            group = group_of(policy.gate, flight.client)
            if standing is not None and standing < lowest.get(group, standing + 1):
                lowest[group] = standing
    return Standings(order, view.in_flight, view.clock, steps, Map(lowest), lasts)


def behind(policy: Composition, state: AnyLocalState, view: WorkerView, group: int, rank: int) -> list[int]:
    """Who may be displaced by one of that rank: the last first, of equals the youngest.  O(batch log batch)."""
    found: list[tuple[int, int, int]] = []
    order, steps = policy.order, steps_of(state.queue)
    assert isinstance(order, Preempts)
    for request_id, flight in view.in_flight.items():
        if not displaceable(flight) or group_of(policy.gate, flight.client) != group:
            continue
        standing = order.preemption_rank_queued(*_progress(state, view, request_id, steps))
        if standing is not None and standing < rank:
            found.append((standing, -flight.rank, request_id))
    return [request_id for _, _, request_id in sorted(found)]


def last_ranked(policy: Composition, state: AnyLocalState, view: WorkerView) -> list[int]:
    """The running requests that have produced something, the last in rank first, but for the first in rank of all."""
    order, steps = policy.order, steps_of(state.queue)
    assert isinstance(order, Preempts)
    ranked = []
    for request_id, flight in view.in_flight.items():
        rank = order.preemption_rank_queued(*_progress(state, view, request_id, steps))
        ranked.append((rank is None, rank or 0, -flight.rank, request_id))
    last = [request_id for never, _, _, request_id in sorted(ranked)[:-1] if not never]
    return [request_id for request_id in last if displaceable(view.in_flight[request_id])]


def displaceable(flight: InFlight) -> bool:
    """Whether a running request has produced something since it was let in."""
    return flight.clock_start is not None


def undisplaced(policy: Composition, state: AnyLocalState, view: WorkerView, plan: StepPlan) -> StepPlan:
    """The plan of a step in which none could be displaced: it stands until a rank changes."""
    order, queue = policy.order, state.queue
    assert isinstance(order, Preempts)
    if plan.valid_steps == 1:
        return plan
    limits = [plan.valid_steps]
    promotions = queue.extension(Promotions)
    if promotions is not None and isinstance(order, Promotes):
        limits.append(promotions.steps_left(order))
    turn = policy.gate.begin(state.gate, queue.heads)
    limits.append(turn.stays(turn.choose(queue.heads), view.decoding_clients, view.decoding_counts))
    known, steps = standings(policy, state, view), steps_of(queue)
    if known.lasts is not None:
        limits.append(known.lasts - (known.steps_since(order, view, steps) or 0))
    valid = min((limit for limit in limits if limit is not None), default=None)
    return replace(plan, valid_steps=valid)


def _progress(
    state: AnyLocalState, view: WorkerView, request_id: int, steps: int
) -> tuple[QueuedRequest, int, int | None]:
    flight = state.flights[request_id]
    generated = flight.entry.generated_tokens + view.decoded_tokens(request_id)
    return flight.entry, generated, flight.promoted_steps(steps)
