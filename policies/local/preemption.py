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

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heappop, heapreplace

from msgspec.structs import replace

from fairsched.model.algebra import NO_GROUP
from fairsched.model.decision import InFlight, StepPlan, WorkerView
from fairsched.policies.local.admission import AdmissionPass, Composition
from fairsched.policies.local.standings import Placed, Standing, Standings
from fairsched.policies.local.state import AnyLocalState, group_of, requeued, steps_of
from fairsched.policies.orders import AGE_BITS, QueuedRequest
from fairsched.policies.orders.abilities import Preempts, Promotes, Promotions


def freed_tokens(state: AnyLocalState, view: WorkerView, request_id: int, produces: bool) -> int:
    """Return the KV that is free again when a request is taken out of a step in which it may produce a token."""
    flight = view.in_flight[request_id]
    cache = state.cache.release(request_id)
    freed = state.cache.tree.protected_tokens - cache.tree.protected_tokens + flight.kv_tokens
    # What it produced is free again, and what it would produce in this step is not needed.
    produces = produces and flight.clock_paused is None
    return freed if flight.reserved else freed + view.decoded_tokens(request_id) + produces


def displaced(
    policy: Composition, state: AnyLocalState, view: WorkerView, free: int
) -> tuple[StepPlan | None, AnyLocalState]:
    """Return the step in which the first that waits takes the place of others, and the state after; None if it may not,
    and the state that knows how those that run stand.

    O(those that changed since the last decision), and a decision for each that is taken out.  Raises `ValueError` where
    clients have cache floors: what a displaced request gives back may be kept for its client.
    """
    if view.reserves:
        raise ValueError(f"{policy.name} displaces running requests, and cache floors of clients forbid that")
    gate, batching, queue = policy.gate, policy.batching, state.queue
    known = standings(policy, state, view)
    state = state if known is state.standings else replace(state, standings=known)
    group = gate.begin(state.gate, queue.heads).choose(queue.heads)
    if group == NO_GROUP:
        return None, state
    request_id = queue.best(group).request.id
    rank = queue.scores[request_id] >> AGE_BITS
    batch = batching.open(view, state.flights)
    optimistic = batching.grows
    after, victims = state, list[int]()
    risen: dict[int, Standing | None] = {}
    for victim in behind(policy, state, view, group, rank, risen):
        free += freed_tokens(after, view, victim, batch.decode and optimistic)
        after = requeued(policy.order, gate, after, victim, view.decoded_tokens(victim))
        victims.append(victim)
        batch = batching.open(view, state.flights)
        for _ in victims:
            batching.vacate(batch)
        entered = AdmissionPass(policy, after, view, batch, free).run_only(group, request_id, victims)
        if entered is not None:
            plan, decided = entered
            return replace(plan, preempt=tuple(victims), valid_steps=1), decided
    return None, replace(state, standings=known.risen(group, risen)) if risen else state


def standings(policy: Composition, state: AnyLocalState, view: WorkerView) -> Standings:
    """Return how those that run stand now, but for ranks that may have risen since.

    O(1) if the batch is that of the last decision and no rank has fallen since, O(log batch) and a copy of a row for
    each that came, left or fell, and O(batch log batch) where nothing was known.
    """
    order, steps = policy.order, steps_of(state.queue)
    assert isinstance(order, Preempts)
    ever = type(order).preemption_rank_steps is Preempts.preemption_rank_steps

    def place(request_id: int) -> Placed | None:
        flight = view.in_flight.get(request_id)
        if flight is None or not displaceable(flight):
            return None
        queued, generated, promoted_steps = _progress(state, view, request_id, steps)
        limit = None if ever else order.preemption_rank_steps(queued.request, generated, promoted_steps)
        standing = order.preemption_rank_queued(queued, generated, promoted_steps)
        group, end = group_of(policy.gate, flight.client), None if limit is None else view.clock + limit
        return group, None if standing is None else (standing, -flight.rank, request_id), end

    return state.standings.updated(order, view, steps, state.flights, place)


def behind(
    policy: Composition,
    state: AnyLocalState,
    view: WorkerView,
    group: int,
    rank: int,
    risen: dict[int, Standing | None],
) -> Iterator[int]:
    """Yield those that may be displaced by one of that rank: the last first, of equals the youngest.

    What is known of each is looked at as it comes, since its rank may have risen: such are put in `risen` as they stand
    now.  O(log batch) each, beside what `standings` takes.
    """
    order, steps = policy.order, steps_of(state.queue)
    assert isinstance(order, Preempts)
    row = standings(policy, state, view).by_group.get(group, ())
    # In order, and so a heap: all others stand at least where they are said to.
    heap = list(row[: bisect_left(row, (rank,))])
    while heap:
        _, last, request_id = said = heap[0]
        now = order.preemption_rank_queued(*_progress(state, view, request_id, steps))
        standing = None if now is None else (now, last, request_id)
        if standing == said:
            heappop(heap)
            yield request_id
            continue
        risen[request_id] = standing
        if standing is None or standing[0] >= rank:
            heappop(heap)
        else:
            heapreplace(heap, standing)


def last_ranked(policy: Composition, state: AnyLocalState, view: WorkerView) -> list[int]:
    """Return the running requests that have produced something, the last in rank first, but for the first in rank of
    all."""
    order, steps = policy.order, steps_of(state.queue)
    assert isinstance(order, Preempts)
    ranked = []
    for request_id, flight in view.in_flight.items():
        rank = order.preemption_rank_queued(*_progress(state, view, request_id, steps))
        ranked.append((rank is None, rank or 0, -flight.rank, request_id))
    last = [request_id for never, _, _, request_id in sorted(ranked)[:-1] if not never]
    return [request_id for request_id in last if displaceable(view.in_flight[request_id])]


def displaceable(flight: InFlight) -> bool:
    """Return whether a running request has produced something since it was let in."""
    return flight.clock_start is not None


def undisplaced(policy: Composition, state: AnyLocalState, view: WorkerView, plan: StepPlan) -> StepPlan:
    """Return the plan of a step in which none could be displaced: it stands until a rank changes."""
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
    limits += [end - view.clock for end, _ in known.ends[:1]]
    for request_id in known.entering(view):
        queued, generated, promoted_steps = _progress(state, view, request_id, steps)
        limits.append(order.preemption_rank_steps(queued.request, generated, promoted_steps))
    valid = min((limit for limit in limits if limit is not None), default=None)
    return replace(plan, valid_steps=valid)


def _progress(
    state: AnyLocalState, view: WorkerView, request_id: int, steps: int
) -> tuple[QueuedRequest, int, int | None]:
    flight = state.flights[request_id]
    generated = flight.entry.generated_tokens + view.decoded_tokens(request_id)
    return flight.entry, generated, flight.promoted_steps(steps)
