"""Pausing in the batch: a gate that looks before every step says which clients decode, and one of which is taken out.

A decoding request of a client that the gate lets not decode is paused: it keeps its KV and its place, and goes on when
its client may decode again.  Where the request that the gate would let in next lacks memory or a place in the batch,
and others are paused, those are taken out: of the client that owes most the youngest, one by one, until it fits, and so
on until the step is full.  They compute again; but where no request enters without that, they go to host memory if it
has room for them all, and the request that they make room for enters one step later.  If all that are paused would not
be enough, none is taken out, unless nothing else computes.

A client in credit is never paused and nothing of it is taken out so (D-pause); what was taken out comes back when its
client has credit again, and it had to owe P before it left, so two clients do not take turns with each step.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np
from msgspec.structs import replace

from fairsched.model.algebra import NO_GROUP, NUMPY
from fairsched.model.decision import StepPlan, WorkerView
from fairsched.policies.gates import InBatchGate
from fairsched.policies.local.admission import AdmissionPass, Composition, free_tokens
from fairsched.policies.local.preemption import freed_tokens
from fairsched.policies.local.state import AnyLocalState, forgetful, requeued

Step = Callable[[AnyLocalState, WorkerView], tuple[StepPlan, AnyLocalState]]


def pausing_step(
    policy: Composition, step: Step, state: AnyLocalState, view: WorkerView
) -> tuple[StepPlan, AnyLocalState]:
    """Return the next step under a gate that pauses, which is `step` beside what is paused, and the state after it.

    The decision of a worker on which those are paused that the gate pauses now, and O(batch) more when that changes.
    """
    gate = policy.gate
    assert isinstance(gate, InBatchGate)
    pause, resume = _changes(gate, state, view)
    seen = with_pauses(view, pause, resume) if pause or resume else view
    state = forgetful(state) if pause or view.paused else state
    plan, decided = step(state, seen)
    if seen.paused and state.queue.entries and not plan.preempt:
        plan, decided = _made_room(policy, state, seen, plan) or (plan, decided)
    if seen.paused and not seen.decoding and not (plan.chunks or plan.changes_batch or view.host.moves):
        plan, decided = _vacated(policy, state, seen)
    if plan.admit:
        # What was let in is charged at once, and may be what its client is paused for.
        more, _ = _changes(gate, decided, seen)
        resumed = set(resume)
        pause = (*pause, *[request_id for request_id in more if request_id not in resumed])
        resume = tuple([request_id for request_id in resume if request_id not in set(more)])
        decided = forgetful(decided) if more else decided
    if pause or resume:
        gone = {*plan.preempt, *plan.swap_out}
        pause = tuple([request_id for request_id in pause if request_id not in gone])
        resume = tuple([request_id for request_id in resume if request_id not in gone])
        return replace(plan, pause=pause, resume=resume, valid_steps=1), decided
    if plan.valid_steps == 1 or not state.queue.entries:
        return plan, decided
    decoding = view.decoding_clients, view.decoding_counts
    steady = gate.steady_steps(state.gate, state.queue.heads, *decoding, plan.valid_steps)
    return (plan if steady == plan.valid_steps else replace(plan, valid_steps=steady)), decided


def _changes(gate: InBatchGate, state: AnyLocalState, view: WorkerView) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the requests to be paused, in order of admission, and those that go on.  O(clients), O(batch) if there are
    any.

    A client whose last request in the queue was let in is known to the gate, and so is every client that runs.
    """
    may = gate.may_decode(state.gate)
    if not view.paused and NUMPY.all(may):
        return (), ()
    stop = {client for client in view.decoding_clients if not may[client]}
    flights = view.in_flight
    pause = [i for _, i in view.running_ranks if flights[i].decodes and flights[i].client in stop] if stop else []
    return tuple(pause), tuple([i for i in view.paused if may[flights[i].client]])


def with_pauses(view: WorkerView, pause: tuple[int, ...], resume: tuple[int, ...]) -> WorkerView:
    """Return the view of a worker on which these are paused and those go on.  O(batch)."""
    flights, growing = view.in_flight.mutate(), view.growing
    counts = defaultdict(int, zip(view.decoding_clients, view.decoding_counts, strict=True))
    for request_id in pause:
        flight = flights[request_id]
        flights[request_id] = replace(flight, clock_paused=view.clock)
        counts[flight.client] -= 1
        growing -= not flight.reserved
    for request_id in resume:
        flight = flights[request_id]
        assert flight.clock_start is not None
        assert flight.clock_paused is not None
        start = flight.clock_start + view.clock - flight.clock_paused
        flights[request_id] = replace(flight, clock_start=start, clock_paused=None)
        counts[flight.client] += 1
        growing += not flight.reserved
    clients = tuple(sorted(client for client, count in counts.items() if count))
    on = set(resume)
    return replace(
        view,
        decoding=view.decoding - len(pause) + len(resume),
        growing=growing,
        decoding_clients=clients,
        decoding_counts=tuple([counts[client] for client in clients]),
        in_flight=flights.finish(),
        paused=(*[request_id for request_id in view.paused if request_id not in on], *pause),
    )


def _made_room(
    policy: Composition, state: AnyLocalState, view: WorkerView, plan: StepPlan
) -> tuple[StepPlan, AnyLocalState] | None:
    """Return the step in which paused requests make room for those that the gate lets in next; None if they cannot.

    As many are taken out as let requests in, until the step is full.  O(batch), and a decision for each.
    """
    gate = policy.gate
    assert isinstance(gate, InBatchGate)
    made, entered, victims = None, len(plan.admit), list[int]()
    free, host, after = (
        free_tokens(policy, view, policy.batching.open(view, state.flights)),
        view.host.free_tokens,
        state,
    )
    for victim in (None, *_debtors(gate, state, view)):
        if victim is not None:
            free += freed_tokens(after, view, victim, produces=False)
            host -= view.computed_tokens(victim)
            after = requeued(policy.order, policy.gate, after, victim, view.decoded_tokens(victim))
            victims.append(victim)
        batch = policy.batching.open(view, state.flights)
        for _ in victims:
            policy.batching.vacate(batch)
        room = AdmissionPass(policy, after, view, batch, free)
        found, decided = room.run(victims)
        if len(found.admit) > entered:
            if not plan.admit and view.host.capacity_tokens and host >= 0:
                return replace(plan, swap_out=tuple(victims), valid_steps=1), after
            entered, made = len(found.admit), (replace(found, preempt=tuple(victims), valid_steps=1), decided)
        elif victims:
            continue
        if room.refused() is None:
            break
    return made


def _vacated(policy: Composition, state: AnyLocalState, view: WorkerView) -> tuple[StepPlan, AnyLocalState]:
    """Return the batch without one paused request, since no other computes anything and none can enter beside it."""
    gate = policy.gate
    assert isinstance(gate, InBatchGate)
    victim = _debtors(gate, state, view)[0]
    return StepPlan((victim,)), requeued(policy.order, policy.gate, state, victim, view.decoded_tokens(victim))


def _debtors(gate: InBatchGate, state: AnyLocalState, view: WorkerView) -> list[int]:
    """Paused requests in the order in which they are taken out: of the deepest debtor first, its youngest first."""
    held = defaultdict[int, list[int]](list)
    paused = set(view.paused)
    for _, request_id in view.running_ranks:
        if request_id in paused:
            held[view.in_flight[request_id].client].append(request_id)
    return [request_id for client in deepest_first(gate, state, held) for request_id in reversed(held[client])]


def deepest_first(gate: InBatchGate, state: AnyLocalState, clients: Iterable[int]) -> list[int]:
    """Return those of the clients that may not decode, the deepest debtor first."""
    holds = np.zeros(len(state.queue.heads), dtype=np.bool_)
    holds[list(clients)] = True
    order: list[int] = []
    while (client := gate.debtor(state.gate, holds)) != NO_GROUP:
        order.append(client)
        holds[client] = False
    return order
