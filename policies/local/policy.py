"""A local policy is an order, a gate and a batching rule: whom one would pick, who may go, and how much a step does.

The order ranks what waits, the gate chooses among clients by their best rank, the batching rule sets the budget, and
memory has the last word: the first chosen request that does not fit ends the step's admissions (skipping it would
let small requests starve a large one).  Everything a theorem needs is in the gate and in the memory check, so a
theorem of a gate holds for any order.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import msgspec
from immutables import Map

from fairsched.model.cache import PrefixCache
from fairsched.model.events import (
    Admitted,
    Arrived,
    Cached,
    Cancelled,
    ClientConfigured,
    Decoded,
    Event,
    Evicted,
    Finished,
    Migrated,
    Preempted,
    Prefilled,
    Rejected,
    Settled,
    WorkerLeft,
)
from fairsched.model.monitor_promise import Promise
from fairsched.model.plan import StepPlan
from fairsched.model.request import Client, Request
from fairsched.model.serial import StateError, from_json
from fairsched.model.view import WorkerView
from fairsched.policies.base import ChargingRule, Limits, LocalPolicy, WaitingFor
from fairsched.policies.batching import Batch, Batching, Chunked
from fairsched.policies.displacement import displaced, freed_tokens, undisplaced
from fairsched.policies.gate import Gate, OpenGate
from fairsched.policies.gate_watch import GateWatch
from fairsched.policies.local_state import LocalState, enter, group_of
from fairsched.policies.order import Order
from fairsched.policies.prefix_ledger import NO_LEDGER, check_ledger, computed, evicted
from fairsched.policies.promise import promise_of
from fairsched.policies.regroup import regrouped
from fairsched.policies.round import DECODE_ONLY, Round, growth_steps, step_plan
from fairsched.policies.shared_watch import SharedGateWatch, SharedState
from fairsched.policies.swapping import swapping_step
from fairsched.policies.waiting import (
    Entry,
    Waiting,
    after_eviction,
    after_insertion,
    after_steps,
    join,
    leave,
    with_groups,
    with_heads,
)
from fairsched.policies.waiting_cause import waiting_cause
from fairsched.policies.waiting_check import check_waiting

G = TypeVar("G")


@attrs.frozen
class ComposedPolicy(LocalPolicy[LocalState[Any]]):
    """`order` x `gate` x `batching`.

    `decide` costs O(clients) when nothing can be admitted, and for each admission O(clients) more, a match of the
    prompt, and O(log n + sqrt n) for n waiting requests; it never walks the queue.
    """

    name: str
    order: Order
    gate: Gate[Any]
    batching: Batching = attrs.field(factory=Chunked)

    @property
    def ignored(self) -> frozenset[type]:
        """Decode steps matter to gates that charge and orders that promote, prefills to who groups or waits for them.

        Nothing is ignored where `observe` is another one.
        """
        order = self.order
        if type(self).observe is not ComposedPolicy.observe or type(self.gate) is not OpenGate:
            return frozenset()
        decoded = () if order.promote_steps is not None else (Decoded,)
        regroups = type(order).regroups is not Order.regroups
        return frozenset((*decoded, *(() if regroups or order.waits_for_prefix else (Prefilled,))))

    def init(self) -> LocalState[Any]:
        return LocalState(self.gate.init(), Waiting(), PrefixCache(), Map(), Map())

    def state_from_json(self, document: dict[str, Any]) -> LocalState[Any]:
        """The state of such a document, with this policy's gate; raises `StateError` for any other.

        A bypass budget may have another value than when the state was kept, but none cannot become one: nobody counted.
        """
        generic: Any = LocalState
        restored: LocalState[Any] = from_json(generic[self.gate.state_type], document)
        waiting, budget = restored.waiting, self.order.bypass_budget
        if (budget is None and waiting.lines) or (budget is not None and waiting.arrivals and not waiting.lines):
            raise StateError(f"the state was kept {'with' if waiting.lines else 'without'} a bypass budget")
        return (
            restored if budget is None else msgspec.structs.replace(restored, waiting=with_heads(waiting, self.order))
        )

    # --- deciding ---------------------------------------------------------------------------------------------------

    def decide(self, state: LocalState[Any], view: WorkerView) -> tuple[StepPlan, LocalState[Any]]:
        """The next step's plan, and the state in which it has happened."""
        batching, waits = self.batching, bool(state.waiting.entries)
        optimistic = batching.reserve == "optimistic"
        if not waits and not view.prefilling and not optimistic:
            return DECODE_ONLY, state
        batch = batching.open(view)
        free = self._free(view, batch)
        if free < 0 and optimistic:
            return self._preempt(state, view, batch, -free)
        if self.order.swap is not None and view.host.capacity_tokens:
            return swapping_step(self, state, view, batch, free, self._requeued)
        displaces = waits and self.order.displaces
        if not displaces and (not waits or not batching.first_chunk(batch, 1)):
            return step_plan(batch, (), growth_steps(view, self.batching) if optimistic else None), state
        plan, decided = Round(self.order, self.gate, batching, state, view, batch, free).run()
        if plan.admit or not displaces:
            return plan, decided
        return displaced(self, state, view, free, self._requeued) or (undisplaced(self, state, view, plan), state)

    def _free(self, view: WorkerView, batch: Batch) -> int:
        """KV that is free beside what is withheld and what this step's output takes; negative if that does not fit."""
        free = view.kv_free_tokens - self.batching.withheld(view.kv_capacity_tokens)
        if self.batching.reserve == "static":
            return free
        prefilled = sum(not view.in_flight[request_id].reserved for request_id, _ in batch.chunks)
        return free - prefilled - (view.growing if batch.decode else 0)

    def _preempt(
        self, state: LocalState[Any], view: WorkerView, batch: Batch, short: int
    ) -> tuple[StepPlan, LocalState[Any]]:
        """Take the youngest out, one by one, until this step's output fits; nobody enters in such a step."""
        victims: list[int] = []
        chunked = {request_id for request_id, _ in batch.chunks}
        for _, request_id in reversed(view.running_ranks):
            if short <= 0 or len(victims) == view.running - 1:
                break
            decodes = batch.decode and view.in_flight[request_id].clock_start is not None
            short -= freed_tokens(state, view, request_id, request_id in chunked or decodes)
            state = self._requeued(state, request_id, view.decoded_tokens(request_id))
            victims.append(request_id)
        gone = set(victims)
        batch.chunks = [chunk for chunk in batch.chunks if chunk[0] not in gone]
        return StepPlan(tuple(victims), (), tuple(batch.chunks), batch.decode, 1), state

    # --- observing --------------------------------------------------------------------------------------------------

    def observe(self, state: LocalState[Any], event: Event) -> LocalState[Any]:
        """The state after `event`.  O(clients + log n + sqrt n), and a match for what touches the cache."""
        handler = _HANDLERS.get(type(event))
        return state if handler is None else handler(self, state, event)

    def _arrived(self, state: LocalState[Any], event: Arrived) -> LocalState[Any]:
        entry = Entry(event.request, state.waiting.arrivals, event.generated_tokens, kv_tokens=event.kv_tokens)
        return self._join(state, entry)

    def _join(self, state: LocalState[Any], entry: Entry) -> LocalState[Any]:
        client = entry.request.client
        waiting = state.waiting
        gate = self.gate.joined(state.gate, client, waiting.heads, client in waiting.queues)
        waiting = join(waiting, self.order, state.cache, entry, group_of(self.gate, client))
        return LocalState(gate, waiting, state.cache, state.flights, state.computing, state.ledger)

    def _admitted(self, state: LocalState[Any], event: Admitted) -> LocalState[Any]:
        turn = self.gate.turn(state.gate, state.waiting.heads)
        turn.choose(state.waiting.heads)
        entry = state.waiting.entries[event.request_id]
        cache, _, cut = state.cache.admit(event.request_id, entry.request.prompt, 0)
        state = enter(self.order, self.gate, state, turn, entry, event.extend_tokens, cache, cut)
        return msgspec.structs.replace(state, gate=self.gate.after(state.gate, turn))

    def _settled(self, state: LocalState[Any], event: Settled) -> LocalState[Any]:
        flight = state.flights[event.request_id]
        context, charged = flight.entry.context_tokens, self.gate.charged
        settled = msgspec.structs.replace(flight, extend_tokens=event.extend_tokens)
        more = charged(event.extend_tokens, context - event.extend_tokens)
        more -= charged(flight.extend_tokens, context - flight.extend_tokens)
        gate = self.gate.settled(state.gate, event.client, more, state.waiting.heads) if more else state.gate
        return msgspec.structs.replace(state, gate=gate, flights=state.flights.set(event.request_id, settled))

    def _prefilled(self, state: LocalState[Any], event: Prefilled) -> LocalState[Any]:
        """The end of a step that computed a prompt is when those who wait may be ranked together."""
        waiting, computing = regrouped(state.waiting, self.order, self.gate.grouped), state.computing
        if not event.remaining_tokens and event.request_id in computing:
            computing = computing.delete(event.request_id)
        elif waiting is state.waiting:
            return state
        return msgspec.structs.replace(state, waiting=waiting, computing=computing)

    def _decoded(self, state: LocalState[Any], event: Decoded) -> LocalState[Any]:
        gate = self.gate.decoded(state.gate, event.clients, event.tokens)
        waiting = state.waiting
        if self.order.promote_steps is not None:
            waiting = after_steps(waiting, self.order, event.steps, self.gate.grouped)
        elif gate is state.gate:
            return state
        return LocalState(gate, waiting, state.cache, state.flights, state.computing, state.ledger)

    def _finished(self, state: LocalState[Any], event: Finished) -> LocalState[Any]:
        return self._out(state, event.request_id)

    def _out(self, state: LocalState[Any], request_id: int) -> LocalState[Any]:
        """The request leaves the batch."""
        flight = state.flights[request_id]
        gate = self.gate.released(state.gate, flight.entry.request.client, flight.kv_tokens)
        computing = state.computing
        if request_id in computing:
            computing = computing.delete(request_id)
        cache = state.cache.release(request_id)
        return LocalState(gate, state.waiting, cache, state.flights.delete(request_id), computing, state.ledger)

    def _preempted(self, state: LocalState[Any], event: Preempted) -> LocalState[Any]:
        generated = event.generated_tokens - state.flights[event.request_id].entry.generated_tokens
        return self._requeued(state, event.request_id, generated)

    def _requeued(self, state: LocalState[Any], request_id: int, decoded: int) -> LocalState[Any]:
        """A running request waits again, at its old age, with `decoded` more tokens to recompute."""
        entry = state.flights[request_id].entry
        entry = Entry(entry.request, entry.age, entry.generated_tokens + decoded, entry.place)
        return self._join(self._out(state, request_id), entry)

    def _cancelled(self, state: LocalState[Any], event: Cancelled | Migrated) -> LocalState[Any]:
        if event.was_running:
            state = self._out(state, event.request_id)
            if not event.uncomputed_tokens:
                return state
            gate = self.gate.settled(state.gate, event.client, -event.uncomputed_tokens, state.waiting.heads)
            return msgspec.structs.replace(state, gate=gate)
        return self._gone(state, event.request_id, event.client)

    def _rejected(self, state: LocalState[Any], event: Rejected) -> LocalState[Any]:
        known = event.request_id in state.waiting.entries
        return self._gone(state, event.request_id, event.client) if known else state

    def _gone(self, state: LocalState[Any], request_id: int, client: int) -> LocalState[Any]:
        group = group_of(self.gate, client)
        waiting = leave(state.waiting, self.order, request_id, group, admitted=False)
        gate = state.gate if group in waiting.queues else self.gate.left(state.gate, client)
        return LocalState(gate, waiting, state.cache, state.flights, state.computing, state.ledger)

    def _cached(self, state: LocalState[Any], event: Cached) -> LocalState[Any]:
        cache, insertion = state.cache.complete(event.owner, event.prompt, event.blocks, 0)
        waiting = state.waiting
        if self.order.follows_cache:
            waiting = after_insertion(waiting, self.order, cache, insertion, event.prompt, self.gate.grouped)
        ledger = state.ledger
        if self.gate.splits:
            owner = state.flights.get(event.owner)
            client = None if owner is None else owner.entry.request.client
            units = self.gate.rates.input * event.prompt.block_tokens
            ledger = computed(ledger, cache.tree, insertion, client, units)
        return LocalState(state.gate, waiting, cache, state.flights, state.computing, ledger)

    def _evicted(self, state: LocalState[Any], event: Evicted) -> LocalState[Any]:
        cache, evictions = state.cache.evicted(event.prompt, event.keep_blocks)
        waiting = state.waiting
        if self.order.follows_cache:
            waiting = after_eviction(waiting, self.order, cache, evictions, self.gate.grouped)
        ledger = evicted(state.ledger, cache.tree, evictions) if self.gate.splits else state.ledger
        return LocalState(state.gate, waiting, cache, state.flights, state.computing, ledger)

    def _configured(self, state: LocalState[Any], event: ClientConfigured) -> LocalState[Any]:
        """A weight may be set before the client's first request: then its head is none yet."""
        gate = self.gate.placed(state.gate, event.client, event.groups) if event.groups else state.gate
        gate = self.gate.configured(gate, event.client, event.weight)
        waiting = with_groups(state.waiting, event.client + 1) if self.gate.grouped else state.waiting
        return msgspec.structs.replace(state, gate=gate, waiting=waiting)

    def _worker_left(self, state: LocalState[Any], event: WorkerLeft) -> LocalState[Any]:
        """Nothing waits, runs or is cached there any more; what clients owe stays.  O(what was there)."""
        for request_id in sorted(state.flights):
            state = self._out(state, request_id)
        for request_id in sorted(state.waiting.entries):
            state = self._gone(state, request_id, state.waiting.entries[request_id].request.client)
        return msgspec.structs.replace(state, cache=PrefixCache(), ledger=NO_LEDGER)

    # --- sharing ----------------------------------------------------------------------------------------------------

    def credit(self) -> Any | None:
        return self.gate.credit()

    def told(self, credit: Any) -> Any:
        return self.gate.told(credit)

    def lent(self, state: LocalState[Any], credit: Any, worker: int) -> LocalState[Any]:
        return msgspec.structs.replace(state, gate=self.gate.lent(credit, worker))

    def repaid(self, credit: Any, state: LocalState[Any], worker: int) -> Any:
        return self.gate.repaid(credit, state.gate, worker)

    def rested(self, credit: Any, worker: int) -> Any:
        return self.gate.rested(credit, worker)

    # --- answering --------------------------------------------------------------------------------------------------

    def refuses(self, request: Request) -> str | None:
        return self.gate.refuses(request.prompt.tokens + request.max_output_tokens)

    @property
    def charging(self) -> ChargingRule | None:
        """The gate's rates and rule; None for an open gate, which charges nobody."""
        return self.gate.charging if self.gate.grouped else None

    @property
    def promises_bound(self) -> bool:
        """Whether the gate bounds the gap between clients."""
        two = (Client(0, "a"), Client(1, "b"))
        return self.gate.service_gap_bound(two, self.limits(2, 1)) is not None

    def limits(self, kv_capacity_tokens: int, output_tokens_max: int) -> Limits:
        """Limits under this batching rule."""
        return Limits(
            kv_capacity_tokens,
            kv_capacity_tokens - 1,
            output_tokens_max,
            self.batching.max_running,
            self.batching.reserve == "static",
        )

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """The gate's, for what it charges; None where a log does not tell who was charged."""
        return None if self.gate.splits else self.gate.service_gap_bound(clients, limits)

    def group_gap_bound(self, groups: tuple[Client, ...], limits: Limits) -> int | None:
        return self.gate.group_gap_bound(groups, limits)

    def promise(self, clients: tuple[Client, ...], limits: Limits) -> Promise | None:
        """The gate's promise; None for an open gate."""
        return promise_of(self.gate, clients, limits) if self.gate.grouped else None

    def gate_check(self) -> GateWatch | None:
        return GateWatch(self.gate, self.order.waits_for_prefix) if self.gate.grouped else None

    def gate_checks(self) -> Callable[[], GateWatch | None]:
        if not self.gate.grouped or self.gate.credit() is None:
            return self.gate_check
        shared = SharedState(self.gate)
        skips = self.order.waits_for_prefix
        return lambda: SharedGateWatch(self.gate, skips, shared) if self.gate.exact else None

    def waiting_for(self, state: LocalState[Any], view: WorkerView, request_id: int) -> WaitingFor:
        """Why a waiting request is not admitted now: what the next decision would say of it.  O(clients)."""
        return waiting_cause(self, state, view, self._free(view, self.batching.open(view)), request_id)

    def check(self, state: LocalState[Any]) -> None:
        """Every invariant of the gate, the queue and the cache."""
        self.gate.check(state.gate)
        check_waiting(state.waiting, self.order, state.cache, self.gate.grouped)
        state.cache.tree.check()
        # Nothing runs and waits at once, and only what runs pins or computes.
        assert not set(state.flights) & set(state.waiting.entries)
        assert set(state.cache.pins) <= set(state.flights)
        assert set(state.computing) <= set(state.flights)
        check_ledger(state.ledger, state.cache.tree, self.gate.rates.input)


_HANDLERS: dict[type, Callable[[ComposedPolicy, LocalState[Any], Any], LocalState[Any]]] = {
    Arrived: ComposedPolicy._arrived,
    Admitted: ComposedPolicy._admitted,
    Settled: ComposedPolicy._settled,
    Prefilled: ComposedPolicy._prefilled,
    Decoded: ComposedPolicy._decoded,
    Preempted: ComposedPolicy._preempted,
    Finished: ComposedPolicy._finished,
    Cancelled: ComposedPolicy._cancelled,
    Migrated: ComposedPolicy._cancelled,
    Rejected: ComposedPolicy._rejected,
    Cached: ComposedPolicy._cached,
    Evicted: ComposedPolicy._evicted,
    ClientConfigured: ComposedPolicy._configured,
    WorkerLeft: ComposedPolicy._worker_left,
}
