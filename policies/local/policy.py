"""A local policy is an order, a gate and a batching rule: whom one would pick, who may go, and how much a step does.

The order ranks what waits, the gate chooses among clients by their best rank, the batching rule sets the budget, and
memory has the last word: the first chosen request that does not fit ends the step's admissions (skipping it would
let small requests starve a large one).  Everything a theorem needs is in the gate and in the memory check, so a
theorem of a gate holds for any order.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs
from immutables import Map
from msgspec.structs import replace

from fairsched.model import events
from fairsched.model.decision import DECODE_ONLY, StepPlan, WorkerView
from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import Client, Request
from fairsched.policies.base import NO_GUARANTEE, Guarantee, LocalPolicy, SharesCredit, WaitReason
from fairsched.policies.batching import Batch, full_steps
from fairsched.policies.gates import AnyLeasedGate, DeficitGate, HierarchicalGate, InBatchGate
from fairsched.policies.guarantees import GateGuarantee
from fairsched.policies.local import admission as rules
from fairsched.policies.local import state as states
from fairsched.policies.local.admission import wait_reason
from fairsched.policies.local.pausing import deepest_first, pausing_step
from fairsched.policies.local.preemption import displaced, freed_tokens, undisplaced
from fairsched.policies.local.state import AnyLocalState, gone, settled
from fairsched.policies.local.swapping import swapping_step
from fairsched.policies.orders import QueuedRequest, Regroups, waits_for_prefix
from fairsched.policies.orders import queue as queues
from fairsched.policies.orders.abilities import KeepsPrograms, ProgramsHeld, Promotes, Swaps

G = TypeVar("G")


@attrs.frozen
class SharedGate:
    """Credit that is the state of the gate, for the states of the policies that have it."""

    gate: SharesCredit

    @property
    def exact(self) -> bool:
        return self.gate.exact

    def credit(self) -> Any:
        return self.gate.credit()

    def checkout(self, state: AnyLocalState, credit: Any, worker: int) -> AnyLocalState:
        return replace(state, gate=self.gate.checkout(state.gate, credit, worker))

    def commit(self, credit: Any, state: AnyLocalState, worker: int) -> Any:
        return self.gate.commit(credit, state.gate, worker)

    def idle(self, credit: Any, worker: int) -> Any:
        return self.gate.idle(credit, worker)

    def snapshot(self, credit: Any) -> Any:
        return self.gate.snapshot(credit)

    def seen_to_json(self, credit: Any, worker: int) -> dict[str, Any]:
        return self.gate.seen_to_json(credit, worker)

    def seen_from_json(self, document: dict[str, Any]) -> Any:
        return self.gate.seen_from_json(document)


@attrs.frozen
class ComposedPolicy(rules.Composition, LocalPolicy[states.LocalState[Any]]):
    """`order` x `gate` x `batching`.

    `decide` costs O(clients) when nothing can be admitted, and for each admission O(clients) more, a match of the
    prompt, and O(log n + sqrt n) for n waiting requests; it never walks the queue.
    """

    def __attrs_post_init__(self) -> None:
        if self.gate_pauses and type(self).decide is not ComposedPolicy.decide:
            raise ValueError(f"{self.name}: gate {self.gate.name} pauses what runs, and this policy's own plans do not")

    @property
    def ignored(self) -> frozenset[type]:
        """Decode steps matter to gates that charge and orders that promote, prefills to orders that wait for them.

        Nothing is ignored where `observe` is another one.
        """
        order = self.order
        if type(self).observe is not ComposedPolicy.observe or not self.ungated:
            return frozenset()
        decoded = () if isinstance(order, Promotes | KeepsPrograms) else (events.Decoded,)
        prefilled = () if waits_for_prefix(order) else (events.Prefilled,)
        return frozenset((*decoded, *prefilled))

    @property
    def rests(self) -> bool:
        """Unless outputs may run short of memory or clients are paused."""
        own = type(self).decide is ComposedPolicy.decide and type(self).step is ComposedPolicy.step
        return own and not (self.grows or self.gate_pauses)

    def init(self) -> AnyLocalState:
        return states.LocalState(
            self.gate.init(), queues.Queue(extensions=self.order.extensions()), PrefixCache(), Map(), Map()
        )

    def state_to_json(self, state: AnyLocalState) -> dict[str, Any]:
        return states.document_of(state)

    def state_from_json(self, document: dict[str, Any]) -> AnyLocalState:
        """Return the state of such a document, with this policy's gate; raises `StateError` for any other."""
        return states.state_of(document, self.order, self.gate)

    # --- deciding ---------------------------------------------------------------------------------------------------

    def decide(self, state: AnyLocalState, view: WorkerView) -> tuple[StepPlan, AnyLocalState]:
        if self.gate_pauses:
            return pausing_step(self, self.step, state, view)
        if view.paused:
            state = states.forgetful(state)
            if going := self.going_on(state, view):
                return going
        return self.step(state, view)

    def decide_past(
        self, state: AnyLocalState, view: WorkerView, clients: Sequence[int]
    ) -> tuple[StepPlan, AnyLocalState]:
        room = rules.AdmissionPass(
            self, state, view, batch := self.batching.open(view, state.flights), view.kv_free_tokens
        )
        if room.turn is None or not isinstance(self.gate, DeficitGate | HierarchicalGate):
            return rules.step_plan(batch, (), 1), state
        for client in clients:
            room.turn.skip(client)
        return room.run()

    def step(self, state: AnyLocalState, view: WorkerView) -> tuple[StepPlan, AnyLocalState]:
        """Return the next step of a worker with what is paused there, and the state after it."""
        batching, waits, grows = self.batching, bool(state.queue.entries), self.grows
        if not (waits or view.prefilling or grows):
            return DECODE_ONLY, state
        batch = batching.open(view, state.flights)
        free = rules.free_tokens(self, view, batch)
        if free < 0 and grows and (view.running or not view.reserves):
            return self._preempt(state, view, batch, -free)
        if view.host.capacity_tokens and isinstance(self.order, Swaps):
            return swapping_step(self, state, view, batch, free)
        displaces, full = waits and self.displaces, not batching.first_chunk(batch, 1)
        if not displaces and (not waits or full):
            valid = rules.growth_steps(view, batching) if grows else None
            return rules.step_plan(batch, (), valid, self._full_steps(view) if full else 1), state
        plan, decided = rules.AdmissionPass(self, state, view, batch, free).run()
        if plan.admit:
            if queues.groups_due(state.queue, self.order):
                again = self._regrouped(state)
                plan, decided = rules.AdmissionPass(self, again, view, batching.open(view, state.flights), free).run()
                decided = decided if plan.admit else state
            return plan, decided
        if not displaces:
            return plan, decided
        displacing, state = displaced(self, state, view, free)
        return displacing or undisplaced(self, state, view, plan), state

    def _full_steps(self, view: WorkerView) -> int:
        """Return for how many steps prompts in progress take the whole budget, whatever comes: then none is let in."""
        batching, prefilling = self.batching, view.prefilling
        free = not (self.grows or view.paused or self.displaces or self.gate_pauses)
        if not prefilling or not free or not batching.serves_all:
            return 1
        return full_steps(prefilling[0][1], batching.max_batched_tokens - view.decoding)

    def going_on(self, state: AnyLocalState, view: WorkerView) -> tuple[StepPlan, AnyLocalState] | None:
        """Return the step in which requests go on that another policy, or a guard, had paused: as many as memory lets
        produce a token, the first first.

        Where none does and nothing else computes, the youngest of the batch is taken out; None where something does.
        """
        flights, going = view.in_flight, list[int]()
        taken = Counter(flight.client for flight in flights.values() if flight.decodes and not flight.reserved)
        for request_id in view.paused:
            taken[flights[request_id].client] += not flights[request_id].reserved
            if view.free_beside(taken) >= 0:
                going.append(request_id)
        if going:
            return StepPlan(resume=tuple(going)), state
        if view.decoding or view.prefilling:
            return None
        return self._preempt(state, view, self.batching.open(view, state.flights), 1)

    def _preempt(
        self, state: AnyLocalState, view: WorkerView, batch: Batch, short: int
    ) -> tuple[StepPlan, AnyLocalState]:
        """Take the youngest out, one by one, until this step's output fits; no request enters in such a step.

        The oldest stays, and may have what is withheld.  Where even that does not fit, KV that comes or goes has the
        memory: it pauses.
        """
        victims: list[int] = []
        withheld = self.batching.withheld(view.kv_capacity_tokens)
        batch.resume()
        chunked = {request_id for request_id, _ in batch.chunks}
        candidates = [request_id for _, request_id in reversed(view.running_ranks)]
        if view.paused:
            # What stands still makes room for what goes on.
            candidates.sort(key=lambda request_id: view.in_flight[request_id].decodes)
        for request_id in candidates:
            # One that runs alone fits, unless requests that wait hold memory for the KV that came with them.
            alone = len(victims) == view.running - 1
            if short <= 0 or (alone and (short <= withheld or not view.landed)):
                break
            decodes = batch.decode and view.in_flight[request_id].decodes
            short -= freed_tokens(state, view, request_id, request_id in chunked or decodes)
            state = states.requeued(self.order, self.gate, state, request_id, view.decoded_tokens(request_id))
            victims.append(request_id)
        if short > withheld or (victims and view.reserves):
            # What a client gives back may be kept for it: the next decision sees that.
            return StepPlan(tuple(victims), decode=False), state
        gone = set(victims)
        batch.chunks = [chunk for chunk in batch.chunks if chunk[0] not in gone]
        return StepPlan(tuple(victims), (), tuple(batch.chunks), batch.decode, 1), state

    # --- observing --------------------------------------------------------------------------------------------------

    def observe(self, state: AnyLocalState, event: events.Event) -> AnyLocalState:
        """Return the state after `event`.  O(clients + log n + sqrt n), and a match for what touches the cache."""
        handler = _HANDLERS.get(type(event))
        after = state if handler is None else handler(self, state, event)
        # What changed nothing leaves nothing due either.
        return state if after is state else settled(self.gate, after)

    def _arrived(self, state: AnyLocalState, event: events.Arrived) -> AnyLocalState:
        entry = QueuedRequest(event.request, state.queue.arrivals, event.generated_tokens, kv_tokens=event.kv_tokens)
        return states.joined(self.order, self.gate, state, entry)

    def _admitted(self, state: AnyLocalState, event: events.Admitted) -> AnyLocalState:
        if queues.groups_due(state.queue, self.order):
            state = self._regrouped(state)
        turn = None
        if not self.ungated:
            turn = self.gate.begin(state.gate, state.queue.heads)
            turn.choose(state.queue.heads)
            if self.gate.withdraws and turn.lacks_credit(event.client):
                # Others lacked slots, and the refill was for those that lacked none.
                waits = [entry.request for entry in state.queue.entries.values()]
                for client in sorted({request.client for request in waits if request.adapter} - {event.client}):
                    turn.withdraw(client)
                turn.choose(state.queue.heads)
        entry = state.queue.entries[event.request_id]
        cache, _, cut = state.cache.admit(event.request_id, entry.request.prompt, 0)
        state = rules.enter(self, state, turn, entry, event.extend_tokens, cache, cut)
        return state if turn is None else replace(state, gate=self.gate.after(state.gate, turn))

    def _regrouped(self, state: AnyLocalState) -> AnyLocalState:
        """Return the state with waiting requests grouped anew, as they are before a decision's first admission."""
        assert isinstance(self.order, Regroups)
        computed = partial(rules.computes_prefix, self, state)
        queue = queues.regrouped(state.queue, self.order, self.gate.grouped, computed)
        return replace(state, queue=queue)

    def _settled(self, state: AnyLocalState, event: events.Settled) -> AnyLocalState:
        flight = state.flights[event.request_id]
        context, charged = flight.entry.context_tokens, self.gate.charged
        settled = replace(flight, extend_tokens=event.extend_tokens)
        more = charged(event.extend_tokens, context - event.extend_tokens)
        more -= charged(flight.extend_tokens, context - flight.extend_tokens)
        gate = self.gate.settled(state.gate, event.client, more, state.queue.heads) if more else state.gate
        return replace(state, gate=gate, flights=state.flights.set(event.request_id, settled))

    def _prefilled(self, state: AnyLocalState, event: events.Prefilled) -> AnyLocalState:
        if event.remaining_tokens or event.request_id not in state.computing:
            return state
        return replace(state, computing=state.computing.delete(event.request_id))

    def _decoded(self, state: AnyLocalState, event: events.Decoded) -> AnyLocalState:
        gate = self.gate.decoded(state.gate, event.clients, event.tokens)
        order, queue = self.order, state.queue
        if isinstance(order, Promotes):
            queue = queues.after_steps(queue, order, event.steps, self.gate.grouped)
        elif isinstance(order, KeepsPrograms):
            queue = queues.with_programs(queue, lambda held: held.after(event.steps))
        elif gate is state.gate:
            return state
        return states.LocalState(gate, queue, state.cache, state.flights, state.computing, state.standings)

    def _held(self, state: AnyLocalState, event: events.Held) -> AnyLocalState:
        gate = self.gate.decoded(state.gate, event.clients, event.tokens)
        return state if gate is state.gate else replace(state, gate=gate)

    def _lent(self, state: AnyLocalState, event: events.Lent) -> AnyLocalState:
        if not isinstance(self.gate, AnyLeasedGate):
            return state
        return replace(state, gate=self.gate.lent(state.gate, event.clients, event.units))

    def _finished(self, state: AnyLocalState, event: events.Finished) -> AnyLocalState:
        request = state.flights[event.request_id].entry.request
        state = states.out(self.order, self.gate, state, event.request_id, event.output_tokens)
        if not state.queue.extensions:
            return state
        queue = queues.after_end(state.queue, self.order, request, event.output_tokens, event.time_ns)
        return state if queue is state.queue else replace(state, queue=queue)

    def _preempted(self, state: AnyLocalState, event: events.Preempted) -> AnyLocalState:
        generated = event.generated_tokens - state.flights[event.request_id].entry.generated_tokens
        return states.requeued(self.order, self.gate, state, event.request_id, generated)

    def _stopped(self, state: AnyLocalState, event: events.Paused | events.Resumed) -> AnyLocalState:
        return states.forgetful(state)

    def _cancelled(self, state: AnyLocalState, event: events.Cancelled | events.Migrated) -> AnyLocalState:
        if event.was_running:
            state = states.out(self.order, self.gate, state, event.request_id)
            if not event.uncomputed_tokens:
                return state
            gate = self.gate.settled(state.gate, event.client, -event.uncomputed_tokens, state.queue.heads)
            return replace(state, gate=gate)
        return gone(self.order, self.gate, state, event.request_id, event.client)

    def _rejected(self, state: AnyLocalState, event: events.Rejected) -> AnyLocalState:
        known = event.request_id in state.queue.entries
        return gone(self.order, self.gate, state, event.request_id, event.client) if known else state

    def _cached(self, state: AnyLocalState, event: events.Cached) -> AnyLocalState:
        cache, insertion = state.cache.complete(event.owner, event.prompt, event.blocks, 0)
        queue = queues.after_insertion(state.queue, self.order, cache, insertion, event.prompt, self.gate.grouped)
        return states.LocalState(state.gate, queue, cache, state.flights, state.computing, state.standings)

    def _evicted(self, state: AnyLocalState, event: events.Evicted) -> AnyLocalState:
        cache, evictions = state.cache.evicted(event.prompt, event.keep_blocks)
        queue = queues.after_eviction(state.queue, self.order, cache, evictions, self.gate.grouped)
        return states.LocalState(state.gate, queue, cache, state.flights, state.computing, state.standings)

    def _configured(self, state: AnyLocalState, event: events.ClientConfigured) -> AnyLocalState:
        """Set a weight, perhaps before the client's first request: then its head is none yet."""
        gate = self.gate.configured(state.gate, event.client, event.weight, event.groups)
        queue = queues.with_groups(state.queue, event.client + 1) if self.gate.grouped else state.queue
        return replace(state, gate=gate, queue=queue)

    def _worker_left(self, state: AnyLocalState, event: events.WorkerLeft) -> AnyLocalState:
        """Forget what waited, ran or was cached there; what clients owe stays.  O(what was there)."""
        for request_id in sorted(state.flights):
            state = states.out(self.order, self.gate, state, request_id)
        for request_id in sorted(state.queue.entries):
            client = state.queue.entries[request_id].request.client
            state = gone(self.order, self.gate, state, request_id, client)
        queue = queues.with_programs(state.queue, lambda held: ProgramsHeld())
        return replace(state, queue=queue, cache=PrefixCache())

    # --- answering --------------------------------------------------------------------------------------------------

    def refuses(self, request: Request) -> str | None:
        prompt_tokens = request.prompt.tokens
        return self.gate.refuses(prompt_tokens + request.max_output_tokens) or self.batching.refuses(prompt_tokens)

    @property
    def guarantee(self) -> Guarantee:
        """The gate's; an open gate charges no client and promises nothing."""
        if not self.gate.grouped:
            return NO_GUARANTEE
        displaces = self.displaces or isinstance(self.order, Swaps)
        return GateGuarantee(self.gate, self.batching, bool(self.passed_over), displaces)

    @property
    def promises_bound(self) -> bool:
        """Whether the gate bounds the gap between clients."""
        two, guarantee = (Client(0, "a"), Client(1, "b")), self.guarantee
        return guarantee.service_gap_bound(two, guarantee.limits(2, 1)) is not None

    @property
    def shared_credit(self) -> SharedGate | None:
        """The gate's state, if its workers share that."""
        return SharedGate(self.gate) if isinstance(self.gate, SharesCredit) else None

    def wait_reason(self, state: AnyLocalState, view: WorkerView, request_id: int) -> WaitReason:
        """Return why a waiting request is not admitted now: what the next decision would say of it.  O(clients)."""
        return wait_reason(self, state, view, request_id)

    @property
    def pauses(self) -> bool:
        """Whether the gate pauses what runs."""
        return self.gate_pauses

    def paused_clients(self, state: AnyLocalState, clients: Sequence[int]) -> tuple[int, ...]:
        """Return those of these clients, whose requests run, that may not decode now, the deepest debtor first."""
        gate = self.gate
        return tuple(deepest_first(gate, state, clients)) if isinstance(gate, InBatchGate) else ()

    def pause_reason(self, state: AnyLocalState, view: WorkerView, request_id: int) -> str | None:
        """Return why a running request was just paused."""
        gate, client = self.gate, view.in_flight[request_id].client
        return gate.pause_reason(state.gate, client) if isinstance(gate, InBatchGate) else None

    def check(self, state: AnyLocalState) -> None:
        """Check every invariant of the gate, the queue and the cache."""
        self.gate.check(state.gate)
        queues.check_queue(state.queue, self.order, state.cache, self.gate.grouped)
        state.cache.tree.check()
        # Nothing runs and waits at once, and only what runs pins or computes.
        assert not set(state.flights) & set(state.queue.entries)
        assert set(state.cache.pins) <= set(state.flights)
        assert set(state.computing) <= set(state.flights)
        state.standings.check(state.flights)


_HANDLERS: dict[type, Callable[[ComposedPolicy, AnyLocalState, Any], AnyLocalState]] = {
    events.Arrived: ComposedPolicy._arrived,
    events.Admitted: ComposedPolicy._admitted,
    events.Settled: ComposedPolicy._settled,
    events.Prefilled: ComposedPolicy._prefilled,
    events.Decoded: ComposedPolicy._decoded,
    events.Held: ComposedPolicy._held,
    events.Lent: ComposedPolicy._lent,
    events.Preempted: ComposedPolicy._preempted,
    events.Paused: ComposedPolicy._stopped,
    events.Resumed: ComposedPolicy._stopped,
    events.Finished: ComposedPolicy._finished,
    events.Cancelled: ComposedPolicy._cancelled,
    events.Migrated: ComposedPolicy._cancelled,
    events.Rejected: ComposedPolicy._rejected,
    events.Cached: ComposedPolicy._cached,
    events.Evicted: ComposedPolicy._evicted,
    events.ClientConfigured: ComposedPolicy._configured,
    events.WorkerLeft: ComposedPolicy._worker_left,
}
