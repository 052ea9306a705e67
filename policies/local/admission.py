"""One decision under way: admit what gate and order choose, until a rule refuses or the step is full.

What may keep a request out is a list of rules, each with the reason that it gives.  A composition has those that its
parts ask for, found once: `fcfs` has none beside memory and the step's budget, `dlpm` one more.  The pass asks them
from top to bottom:

    the step's budget and seats     full: the decision is over
    the gate                        no client may go: the decision is over
    prefix, adapter                 the request is passed over for the next of its group; under a gate its group is
    cap, landed                     the group is passed over
    memory                          no room: the decision is over

Why a request waits is the first rule that refuses the request itself (`wait_reason`), wherever the pass would come to
it.  What may be done about a refusal, displacing,
swapping and pausing, is in files of their own.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import attrs
from msgspec.structs import replace

from fairsched.model.algebra import NO_GROUP, Ints
from fairsched.model.decision import Admission, StepPlan, WorkerView
from fairsched.model.prefix_cache import Insertion, PrefixCache
from fairsched.model.request import KEY_BYTES
from fairsched.policies.base import WaitReason
from fairsched.policies.batching import Batch, Batching, Chunked, chunks_of
from fairsched.policies.gates import AdmissionTransaction, AnyGate, GlobalDeficitGate, InBatchGate, OpenGate
from fairsched.policies.local.adapters import AdapterSlots
from fairsched.policies.local.programs import ProgramPlaces
from fairsched.policies.local.reservation import Foreseen
from fairsched.policies.local.state import AnyLocalState, Flight, LocalState, group_of, settled, steps_of
from fairsched.policies.orders import (
    AGE_MASK,
    CacheMatches,
    Order,
    QueuedRequest,
    after_insertion,
    leave,
    refreshed,
    waits_for_prefix,
    with_programs,
)
from fairsched.policies.orders import abilities as able

LOOKAHEAD = 64
"""Without a gate, how many requests that wait for a prefix being computed, of one prefix together, are passed over for
the next that enters."""


# --- rules ------------------------------------------------------------------------------------------------------------


class AdmissionRule(NamedTuple):
    """A reason to keep a request out of a decision, and whether it does."""

    reason: WaitReason
    refuses: Callable[["AdmissionPass", QueuedRequest], bool]


def over_cap(room: "AdmissionPass", entry: QueuedRequest) -> bool:
    """Return whether the request would pass a cap on what its client has in flight."""
    turn, group = room.turn, group_of(room.policy.gate, entry.request.client)
    assert turn is not None
    return turn.capped(group, entry.context_tokens + turn.counted(group, entry.output_tokens_left))


def prefix_in_progress(room: "AdmissionPass", entry: QueuedRequest) -> bool:
    """Return whether a running prefill computes the block that the request needs next."""
    return bool(room.state.computing) and computes_prefix(room.policy, room.state, entry)


def computes_prefix(policy: "Composition", state: AnyLocalState, entry: QueuedRequest) -> bool:
    """Return whether a prefill in progress computes the block that a waiting prompt needs next.  O(these).

    A request that shares a prefix with a group waits for no more than that.
    """
    prompt = entry.request.prompt
    if not state.computing or not prompt.keys:
        return False
    assert policy.matches_at is not None
    matches: Any = state.queue.extensions[policy.matches_at]
    _, blocks = matches.stops[entry.request.id]
    # A prompt is never served whole by the cache: its last token is always computed.
    after = blocks + 1
    if after * prompt.block_tokens >= prompt.tokens or after * KEY_BYTES > len(prompt.keys):
        return False
    if 0 < entry.prefix_tokens <= blocks * prompt.block_tokens:
        return False
    prefix = prompt.keys[: after * KEY_BYTES]
    return any(other.keys.startswith(prefix) for other in state.computing.values())


def lacks_slot(room: "AdmissionPass", entry: QueuedRequest) -> bool:
    """Return whether the request lacks a slot for its adapter, or must not go past one that does."""
    return room.slots is not None and room.slots.lacks(entry)


def lacks_place(room: "AdmissionPass", entry: QueuedRequest) -> bool:
    """Return whether the KV of programs in progress leaves no room for the call, where something runs."""
    return room.places is not None and room.room_is_shared and room.places.lacks(room.state, room.view, entry)


def behind_landed(room: "AdmissionPass", entry: QueuedRequest) -> bool:
    """Return whether requests of the client that landed with their KV go before this one, which did not."""
    group = group_of(room.policy.gate, entry.request.client)
    if entry.kv_tokens or room.turn is None or not room.turn.behind_landed(group):
        return False
    return not any(other.kv_tokens for other in islice(room.state.queue.ranked(group), LOOKAHEAD))


def behind_others(room: "AdmissionPass", entry: QueuedRequest) -> bool:
    """Return whether another request goes first, of those that the pass does not pass over."""
    return room.first is not entry


def lacks_memory(room: "AdmissionPass", entry: QueuedRequest) -> bool:
    """Return whether memory has no room for the request, in a step that has room."""
    return room.policy.batching.first_chunk(room.batch, 1) > 0 and not room.fits(entry)


CAP = AdmissionRule("cap", over_cap)
PREFIX = AdmissionRule("prefix", prefix_in_progress)
ADAPTER = AdmissionRule("adapter", lacks_slot)
LANDED = AdmissionRule("order", behind_landed)
ORDER = AdmissionRule("order", behind_others)
PLACE = AdmissionRule("memory", lacks_place)
MEMORY = AdmissionRule("memory", lacks_memory)


@attrs.frozen
class Composition:
    """What a local policy is made of, and what its decisions ask for, found once."""

    name: str
    order: Order
    gate: AnyGate
    batching: Batching = attrs.field(factory=Chunked)

    @cached_property
    def grows(self) -> bool:
        return self.batching.grows

    @cached_property
    def foresees(self) -> bool:
        return self.batching.foresees

    @cached_property
    def ungated(self) -> bool:
        """Whether the order alone decides."""
        return type(self.gate) is OpenGate

    @cached_property
    def gate_pauses(self) -> bool:
        """Whether the gate pauses running requests."""
        return isinstance(self.gate, InBatchGate)

    @cached_property
    def displaces(self) -> bool:
        """Whether a waiting request may take the place of running ones."""
        return able.preempts(self.order)

    @cached_property
    def matches_at(self) -> int | None:
        """The place among the queue's extensions of what knows where in the cache waiting prompts stop matching."""
        kinds = [type(each) for each in self.order.extensions()]
        return kinds.index(CacheMatches) if CacheMatches in kinds else None

    @cached_property
    def passed_over(self) -> tuple[AdmissionRule, ...]:
        """The rules by which a request is passed over for the next of its group."""
        places = (PLACE,) if isinstance(self.order, able.KeepsPrograms) else ()
        return (PREFIX, *places) if waits_for_prefix(self.order) else places

    @cached_property
    def held_back(self) -> tuple[AdmissionRule, ...]:
        """The rules by which a whole group is passed over."""
        caps = not self.ungated and getattr(self.gate, "in_flight_cap_tokens", 0) is not None
        return (*((CAP,) if caps else ()), *((LANDED,) if isinstance(self.gate, GlobalDeficitGate) else ()))

    @cached_property
    def rules(self) -> tuple[AdmissionRule, ...]:
        """All rules but credit, in the order in which they say why a request waits."""
        cap, landed = ((rule,) if rule in self.held_back else () for rule in (CAP, LANDED))
        return (*cap, *self.passed_over, ADAPTER, ORDER, *landed, MEMORY)


# --- before a pass ----------------------------------------------------------------------------------------------------


def free_tokens(policy: Composition, view: WorkerView, batch: Batch) -> int:
    """Return the KV that is free beside what is withheld and what this step's output takes; negative if that does not
    fit."""
    free = view.kv_free_tokens - policy.batching.withheld(view.kv_capacity_tokens)
    if not policy.grows:
        return free
    if view.reserves:
        return free - view.kv_free_tokens + view.free_beside(growth(view, batch))
    chunks = batch.chunks + chunks_of(batch.postponed, batch.tokens)[0]
    prefilled = sum(not view.in_flight[request_id].reserved for request_id, _ in chunks)
    return free - prefilled - (view.growing if batch.decode else 0)


def growth(view: WorkerView, batch: Batch) -> Counter[int]:
    """Return the tokens of output without a reservation that a step may produce, by client.  O(batch)."""
    chunked = {request_id for request_id, _ in batch.chunks + chunks_of(batch.postponed, batch.tokens)[0]}
    return Counter(
        flight.client
        for request_id, flight in view.in_flight.items()
        if not flight.reserved and (request_id in chunked or (batch.decode and flight.decodes))
    )


def growth_steps(view: WorkerView, batching: Batching) -> int | None:
    """Return for how many steps outputs that grow into free memory still fit."""
    free = view.kv_free_tokens - batching.withheld(view.kv_capacity_tokens)
    return max(free // view.growing, 1) if view.growing else None


def step_plan(
    batch: Batch, admissions: tuple[Admission, ...], valid_steps: int | None, chunk_steps: int = 1
) -> StepPlan:
    """Return the plan of a filled batch; with chunks it holds for `chunk_steps`."""
    if batch.postponed:
        batch.resume()
    chunks = tuple(batch.chunks)
    if not chunks:
        return StepPlan((), admissions, (), batch.decode, valid_steps)
    return StepPlan(
        (), admissions, chunks, batch.decode, chunk_steps, padding_tokens=max(batch.tokens, 0) * batch.padded
    )


# --- the pass ---------------------------------------------------------------------------------------------------------


class AdmissionPass:
    """One decision under way: the state so far, the batch being filled, and the KV that is still free."""

    def __init__(self, policy: Composition, state: AnyLocalState, view: WorkerView, batch: Batch, free: int) -> None:
        self.policy = policy
        self.state = state
        self.view = view
        self.batch = batch
        self.free = free
        self.reserves = dict(view.reserves)
        if self.reserves and policy.grows:
            for client, tokens in growth(view, batch).items():
                self.reserves[client] = max(self.reserves.get(client, 0) - tokens, 0)
        self.ranking: able.KeyRanking | None = None
        heads = state.queue.heads
        if isinstance(order := policy.order, able.RanksByKey):
            fronts = state.queue.extension(able.Fronts)
            assert fronts is not None
            self.ranking = fronts.ranking(order, len(heads), view.kv_capacity_tokens)
            heads = self.ranking.heads
        self.turn = None if policy.ungated else policy.gate.begin(state.gate, heads)
        self.slots = AdapterSlots(state, view) if view.adapter_slots else None
        self.passed_over = (*policy.passed_over, ADAPTER) if self.slots else policy.passed_over
        order = policy.order
        self.places = ProgramPlaces(order, policy.gate, self.turn) if isinstance(order, able.KeepsPrograms) else None
        self._foreseen: Foreseen | None = None
        self.refused_steps: int | None = None
        self.withdrawn = False
        self.first: QueuedRequest | None = None
        self.admissions: list[Admission] = []
        self.swap_in: list[int] = []
        self.moved = 0

    @property
    def heads(self) -> Ints:
        """The best score of each group, as this decision ranks them."""
        return self.state.queue.heads if self.ranking is None else self.ranking.heads

    @property
    def room_is_shared(self) -> bool:
        """Whether a request that enters now is beside others."""
        return bool(self.view.running or self.admissions)

    def chosen(self) -> int:
        """Return the group to serve next, or NO_GROUP."""
        if self.turn is None:
            return 0 if self.state.queue.entries else NO_GROUP
        return self.turn.choose(self.state.queue.heads if self.ranking is None else self.ranking.heads)

    def best(self, group: int) -> QueuedRequest:
        """Return the next request of a group that is not empty."""
        queue, ranking = self.state.queue, self.ranking
        age = AGE_MASK - (int(queue.heads[group]) & AGE_MASK) if ranking is None else ranking.best(group)
        return queue.entries[queue.ids[age]]

    def run(self, victims: Sequence[int] = ()) -> tuple[StepPlan, AnyLocalState]:
        """Admit until the gate, memory or the budget says stop, or a request would enter that was just taken out."""
        policy, batch, held_back = self.policy, self.batch, self.policy.held_back
        grouped, first_chunk = policy.gate.grouped, policy.batching.first_chunk
        group: int | None = None
        entry: QueuedRequest | None
        while self.state.queue.entries and first_chunk(batch, 1):
            if self.places is not None and self.room_is_shared and self.places.full(self.state, self.view):
                break
            group = self.chosen()
            if group == NO_GROUP or (batch.padded and self._begins_batch(group)):
                break
            entry = self.best(group)
            if victims and entry.request.id in victims:
                break
            for rule in self.passed_over:
                if rule.refuses(self, entry):
                    entry = self._behind(group)
                    break
            if batch.postponed and (entry is None or not self._prefix_is_cached(entry)):
                batch.resume()
                continue
            if entry is None or (held_back and self._held_back(entry)):
                if not grouped:
                    break
                self._pass_over(group)
            elif not self.admit(entry):
                break
            group = None
        if self.admissions:
            return self._decided()
        return step_plan(batch, (), self._valid_steps(group)), self.state

    def _decided(self) -> tuple[StepPlan, AnyLocalState]:
        policy, decided = self.policy, self.state
        plan = step_plan(self.batch, tuple(self.admissions), 1)
        if self.swap_in:
            plan = replace(plan, swap_in=tuple(self.swap_in))
        if self.ranking is not None:
            decided = replace(decided, queue=refreshed(decided.queue))
        if self.turn is not None:
            decided = replace(decided, gate=policy.gate.after(decided.gate, self.turn))
        return plan, settled(policy.gate, decided) if policy.gate_pauses else decided

    def run_only(
        self, group: int, request_id: int, victims: Sequence[int] = ()
    ) -> tuple[StepPlan, AnyLocalState] | None:
        """Admit that request, if gate, memory and budget give it the next place, and no other one; None if not.

        Requests that were taken out for it do not go before it, whatever they rank now.
        """
        if not self.policy.batching.first_chunk(self.batch, 1) or self.chosen() != group:
            return None
        entry = self._next(group)
        if entry is not None and entry.request.id in victims:
            entry = self.state.queue.entries[request_id]
        if entry is None or entry.request.id != request_id or lacks_slot(self, entry):
            return None
        if CAP in self.policy.held_back and over_cap(self, entry):
            return None
        return self._decided() if self.admit(entry) else None

    def refused(self) -> tuple[int, int] | None:
        """Return the group and the request that go next, if memory, a slot or a seat keeps that out; None if not."""
        batch, seats = self.batch, self.batch.seats
        batch.seats = max(seats, 1)
        while self.policy.batching.first_chunk(batch, 1):
            group = self.chosen()
            if group == NO_GROUP:
                return None
            if lacks_slot(self, head := self.best(group)):
                return group, head.request.id
            entry = self._next(group)
            if entry is not None and not self._held_back(entry):
                return None if seats > 0 and self.fits(entry) else (group, entry.request.id)
            if self.turn is None or not self.policy.gate.grouped:
                return None
            self._pass_over(group)
        return None

    def first_allowed(self) -> QueuedRequest | None:
        """Return the request that goes first, of those that this pass does not pass over."""
        while (group := self.chosen()) != NO_GROUP:
            entry = self._next(group)
            if entry is not None and not self._held_back(entry):
                return entry
            if self.turn is None or not self.policy.gate.grouped:
                return None
            self._pass_over(group)
        return None

    def _pass_over(self, group: int) -> None:
        """Go on to the other groups, as if this one did not wait where its best request lacks a slot."""
        assert self.turn is not None
        if lacks_slot(self, self.best(group)):
            self.turn.withdraw(group)
            self.withdrawn = True
        else:
            self.turn.skip(group)

    def _valid_steps(self, group: int | None) -> int | None:
        """Return for how many decode steps the same is decided, where no request enters."""
        view, policy, stays = self.view, self.policy, None
        if group is not None and self.turn is not None:
            stays = self.turn.stays(group, view.decoding_clients, view.decoding_counts)
            if stays is not None and (type(stays) is not int or stays < 1):
                raise ValueError(
                    f"gate {policy.gate.name} says that its choice of client {group} stays for {stays!r} decode steps: "
                    "that is a whole number of at least 1, or None"
                )
        if self.withdrawn or (self.slots is not None and self.slots.open is not None and view.paused):
            # What a gate says of its choice is about all that wait.  While some requests stand still, another adapter
            # may come to be the first to be done.
            return 1
        grown = growth_steps(view, policy.batching) if policy.grows else None
        limits = stays, grown, self.refused_steps, None if self.places is None else self.places.steps(self.state, view)
        return min((limit for limit in limits if limit is not None), default=None)

    def _next(self, group: int) -> QueuedRequest | None:
        """Return the group's next request that is not passed over."""
        head = self.best(group)
        return self._behind(group) if self._is_passed_over(head) else head

    def _behind(self, group: int) -> QueuedRequest | None:
        """Return the next request of a group whose best one is passed over.

        A client under a gate offers no other request: it waits for the prefills and the adapters in progress, and for
        no others of its group.
        """
        if self.policy.gate.grouped:
            return None
        others = islice(self.state.queue.ranked(group), 1, LOOKAHEAD)
        return next((entry for entry in others if not self._is_passed_over(entry)), None)

    def _is_passed_over(self, entry: QueuedRequest) -> bool:
        return any(rule.refuses(self, entry) for rule in self.passed_over)

    def _held_back(self, entry: QueuedRequest) -> bool:
        return any(rule.refuses(self, entry) for rule in self.policy.held_back)

    def _prefix_is_cached(self, entry: QueuedRequest) -> bool:
        matches = self.state.queue.extension(CacheMatches)
        return matches is not None and entry.prefix_is_cached(matches.cached_tokens(entry.request))

    def _begins_batch(self, group: int) -> bool:
        """Return whether the group's next request begins a batch of an order that takes requests in batches."""
        taken = self.state.queue.extension(able.TakenBatches)
        return taken is not None and taken.begins(group)

    # --- memory -------------------------------------------------------------------------------------------------------

    def fits(self, entry: QueuedRequest) -> bool:
        return self.admit(entry, asks=True)

    def admit(self, entry: QueuedRequest, asks: bool = False) -> bool:
        """Let the entry in, if memory holds it and it gets a part of the step; return whether it does.

        With `asks` no request enters, and the answer is about memory alone.
        """
        policy, view, cache, request = self.policy, self.view, self.state.cache, entry.request
        prompt, batching = request.prompt, policy.batching
        context_tokens = prompt.tokens + entry.generated_tokens
        declared = request.max_output_tokens - entry.generated_tokens
        kept, held = _brought(view, request.id) if view.host.kv or view.landed else (0, 0)
        room = (self._room(kept) if not self.room_is_shared or kept else self.free) + held
        room += self.reserves.get(request.client, 0)
        output = self.growing_output(entry) if policy.grows else declared
        # To find what is cached costs a part of pinning it, and tells of most that do not fit.
        if output > room:
            return False
        node = blocks = 0
        if prompt.keys:
            matches: Any = None if policy.matches_at is None else self.state.queue.extensions[policy.matches_at]
            node, blocks = cache.stop(prompt) if matches is None else matches.stops[request.id]
            blocks = min(blocks, (prompt.tokens - 1) // prompt.block_tokens)
        cached_tokens = blocks * prompt.block_tokens
        own = context_tokens - cached_tokens + output
        if own > room:
            return False
        after, cut = cache.pin(request.id, node, blocks, 0) if blocks else (cache, None)
        need = own + after.tree.protected_tokens - cache.tree.protected_tokens
        extend_tokens = context_tokens - max(cached_tokens, entry.kv_tokens, kept)
        chunk = batching.first_chunk(self.batch, extend_tokens)
        if need > room or not (chunk or asks):
            return False
        size, whole = context_tokens - cached_tokens, kept <= cached_tokens and chunk == extend_tokens
        if policy.foresees and not self._foresees(entry, size, need - size - 1 - held, whole, asks):
            return False
        if asks:
            return True
        self.free -= need - held - self._drawn(request.client, need - held)
        if kept > cached_tokens:
            self.swap_in.append(request.id)
            self.moved += kept
            batching.seat(self.batch)
        elif held and extend_tokens == 1:
            batching.join(self.batch, request.id)
        else:
            batching.add(self.batch, request.id, chunk)
        reserved = 0 if policy.grows else declared
        self.admissions.append(Admission(request.id, request.client, extend_tokens, cached_tokens, reserved))
        if self.slots is not None:
            self.slots.enter(entry)
        self.state = enter(policy, self.state, self.turn, entry, extend_tokens, after, cut)
        if self.ranking is not None:
            fronts = self.state.queue.extension(able.Fronts)
            assert fronts is not None
            self.ranking.leave(fronts, entry.age, group_of(policy.gate, request.client))
        return True

    def _drawn(self, client: int, tokens: int) -> int:
        """Return how many of these tokens are not taken from what is free for all, but from the client's own.

        What a client gives back (negative) may be kept for it.
        """
        if not self.reserves:
            return 0
        left = self.reserves.get(client, 0)
        self.reserves[client] = left - max(min(left, tokens), 0)
        return min(left, tokens)

    def growing_output(self, entry: QueuedRequest) -> int:
        """Return how much output has to fit when a request enters whose output then grows."""
        return 1

    def _room(self, kept: int) -> int:
        """Return the KV for the next request that enters, of which so much is on the host.

        A request alone may have what the batching rule withholds.  Where an order swaps, its reserve is not for
        requests that come back, and no more comes back in a step than it says.
        """
        if not self.room_is_shared:
            return self.free + self.policy.batching.withheld(self.view.kv_capacity_tokens)
        if not isinstance(self.policy.order, able.Swaps):
            return self.free
        swap = self.policy.order.swap
        return -1 if self.moved and self.moved + kept > swap.step_tokens else self.free - swap.reserve(self.view)

    def _foresees(self, entry: QueuedRequest, size: int, pinned: int, whole: bool, asks: bool) -> bool:
        """Return whether the entry fits by what is foreseen, and protects `pinned` more tokens; alone it always does.

        What it holds already is as if so many tokens fewer were protected.
        """
        if self._foreseen is None:
            # What running requests are foreseen to hold, before any request enters.
            self._foreseen = Foreseen(self.policy.batching, self.state, self.view, self.batch, self.free)
        if self.room_is_shared:
            slack = self._foreseen.slack_beside(entry, size, pinned, whole)
            if slack < 0:
                self.refused_steps = self._foreseen.steps_refused(slack)
                return False
        if not asks:
            self._foreseen.enter(entry, size, pinned, whole)
        return True


def _brought(view: WorkerView, request_id: int) -> tuple[int, int]:
    """Return for how many tokens of a waiting request's context KV is on the host, and how much memory it holds for KV
    that landed with it."""
    landed = view.landed.get(request_id)
    return view.host.kept(request_id), 0 if landed is None else landed.promised


def enter(
    policy: Composition,
    state: AnyLocalState,
    turn: AdmissionTransaction | None,
    entry: QueuedRequest,
    extend_tokens: int,
    cache: PrefixCache,
    cut: Insertion | None,
) -> AnyLocalState:
    """Move an entry from the queue into the batch and charge it; the gate's state follows with the decision.

    `cache` is the cache in which the entry's prefix is pinned, `cut` the node that was cut for that.
    """
    order, gate, request = policy.order, policy.gate, entry.request
    group = request.client if gate.grouped else 0
    queue = leave(state.queue, order, request.id, group, admitted=True)
    if cut is not None:
        queue = after_insertion(queue, order, cache, cut, request.prompt, gate.grouped)
    if isinstance(order, able.KeepsPrograms):
        queue = with_programs(queue, lambda held: held.started(entry, extend_tokens))
    declared, uncounted = request.max_output_tokens - entry.generated_tokens, 0
    if turn is not None:
        uncounted = declared - turn.counted(group, declared) if policy.held_back else 0
        kv_tokens = extend_tokens + declared - uncounted
        cached_tokens = request.prompt.tokens + entry.generated_tokens - extend_tokens
        turn.admit(group, gate.charged(extend_tokens, cached_tokens), kv_tokens, group not in queue.queues)
        if entry.kv_tokens:
            turn.unheld(request.client)
    computing = state.computing
    if PREFIX in policy.passed_over and request.prompt.keys:
        computing = computing.set(request.id, request.prompt)
    steps = steps_of(queue) if isinstance(order, able.Promotes) else 0
    flight = Flight(entry, extend_tokens, extend_tokens + declared, steps, uncounted)
    standings = state.standings
    if standings.order is not None:
        standings = standings.entered(request.id)
    return LocalState(state.gate, queue, cache, state.flights.set(request.id, flight), computing, standings)


# --- explanations -----------------------------------------------------------------------------------------------------


def wait_reason(policy: Composition, state: AnyLocalState, view: WorkerView, request_id: int) -> WaitReason:
    """Return why a waiting request is not admitted now: credit, the first rule that refuses it, or the step's budget.

    O(clients).
    """
    batch, entry = policy.batching.open(view, state.flights), state.queue.entries[request_id]
    room = AdmissionPass(policy, state, view, batch, free_tokens(policy, view, batch))
    room.first = room.first_allowed()
    if room.turn is not None and room.turn.lacks_credit(entry.request.client):
        return "gate"
    why: WaitReason = next((rule.reason for rule in policy.rules if rule.refuses(room, entry)), "budget")
    return "swapped" if request_id in view.host.kv and why in ("order", "memory", "budget") else why
