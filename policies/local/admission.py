"""One decision under way: admit what order, gate and budget choose, until memory or one of them says stop."""

from collections.abc import Sequence
from itertools import islice

from msgspec.structs import replace

from fairsched.model.algebra import NO_GROUP, Ints
from fairsched.model.plan import Admission, StepPlan
from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.view import WorkerView
from fairsched.policies.base import WaitReason
from fairsched.policies.batching import Batch, Batching
from fairsched.policies.local.adapters import AdapterSlots
from fairsched.policies.local.queue import refreshed
from fairsched.policies.local.reservation import Foreseen
from fairsched.policies.local.state import AnyLocalState, Composition, enter, group_of, prefix_is_computed, settled
from fairsched.policies.orders import QueuedRequest
from fairsched.policies.orders.abilities import CacheMatches, Fronts, KeyRanking, RanksByKey, Swaps, TakenBatches

LOOKAHEAD = 64
"""Without a gate, how many requests that wait for a prefix being computed, of one prefix together, are passed over for
the next that enters."""


def opened(policy: Composition, state: AnyLocalState, view: WorkerView) -> Batch:
    """The batch of the next step, with what is under way.  O(requests that are prefilling)."""
    if not policy.batching.prefixes_last or not view.prefilling:
        return policy.batching.open(view)
    prefixes = frozenset(i for i, _ in view.prefilling if not state.flights[i].prefix_was_cached)
    return policy.batching.open(view, prefixes)


class AdmissionPass:
    """One decision under way: the state so far, the batch being filled, and the KV that is still free."""

    def __init__(self, policy: Composition, state: AnyLocalState, view: WorkerView, batch: Batch, free: int) -> None:
        self.policy = policy
        order = self.order = policy.order
        gate = self.gate = policy.gate
        self.batching = policy.batching
        self.state = state
        self.view = view
        self.batch = batch
        self.free = free
        self.ranking = self._ranking(order) if isinstance(order, RanksByKey) else None
        self.turn = gate.begin(state.gate, self.heads)
        self.slots = AdapterSlots(state, view)
        self._foreseen: Foreseen | None = None
        self.refused_steps: int | None = None
        self.admissions: list[Admission] = []
        self.swap_in: list[int] = []
        self.moved = 0

    def _ranking(self, order: RanksByKey) -> KeyRanking:
        """The queue as it was when the decision began."""
        index = self.state.queue.extension(Fronts)
        assert index is not None
        return index.ranking(order, len(self.state.queue.heads), self.view.kv_capacity_tokens)

    def chosen(self) -> int:
        """The group to serve next, or NO_GROUP: the gate's choice by scores that are known."""
        return self.turn.choose(self.heads)

    @property
    def heads(self) -> Ints:
        """The best score of each group, as this decision ranks them."""
        return self.state.queue.heads if self.ranking is None else self.ranking.heads

    def best(self, group: int) -> QueuedRequest:
        """The next request of a group that is not empty."""
        queue = self.state.queue
        if self.ranking is None:
            return queue.best(group)
        return queue.entries[queue.ids[self.ranking.best(group)]]

    def run(self) -> tuple[StepPlan, AnyLocalState]:
        """Admit until the gate, memory or the budget says stop."""
        turn, batch, first_chunk = self.turn, self.batch, self.batching.first_chunk
        group: int | None = None
        while first_chunk(batch, 1):
            group = self.chosen()
            if group == NO_GROUP or (batch.padded and self._begins_batch(group)):
                break
            entry = self._head(group)
            if batch.postponed and (entry is None or not self._prefix_is_cached(entry)):
                batch.resume()
                continue
            if entry is not None and not self._capped(group, entry) and not self._behind_landed(group, entry):
                if not self._admit(entry):
                    break
            elif self.gate.grouped:
                turn.skip(group)
            else:
                break
            group = None
        if self.admissions:
            return self._decided()
        return step_plan(self.batch, (), self._valid_steps(group)), self.state

    def _decided(self) -> tuple[StepPlan, AnyLocalState]:
        plan = step_plan(self.batch, tuple(self.admissions), 1)
        plan = replace(plan, swap_in=tuple(self.swap_in)) if self.swap_in else plan
        queue = refreshed(self.state.queue) if self.ranking is not None else self.state.queue
        decided = replace(self.state, gate=self.gate.after(self.state.gate, self.turn), queue=queue)
        return plan, settled(self.policy, decided)

    def run_only(
        self, group: int, request_id: int, victims: Sequence[int] = ()
    ) -> tuple[StepPlan, AnyLocalState] | None:
        """Admit that request, if gate, memory and budget give it the next place, and no other one; None if not.

        Requests that were taken out for it do not go before it, whatever they rank now.
        """
        if not self.batching.first_chunk(self.batch, 1) or self.chosen() != group:
            return None
        entry = self._head(group)
        if entry is not None and entry.request.id in victims:
            entry = self.state.queue.entries[request_id]
        if entry is None or entry.request.id != request_id or self._capped(group, entry) or self.slots.lacks(entry):
            return None
        if not self._admit(entry):
            return None
        return self._decided()

    def refused(self) -> tuple[int, int] | None:
        """The group and the request that go next, if memory, a slot or a place in the batch keeps that out; None if
        not."""
        batch, turn, seats = self.batch, self.turn, self.batch.seats
        batch.seats = max(seats, 1)
        while self.batching.first_chunk(batch, 1):
            group = self.chosen()
            if group == NO_GROUP:
                return None
            if self.slots.lacks(head := self.best(group)):
                return group, head.request.id
            entry = self._head(group)
            if entry is not None and not self._capped(group, entry) and not self._behind_landed(group, entry):
                return None if seats > 0 and self.fits(entry) else (group, entry.request.id)
            if not self.gate.grouped:
                return None
            turn.skip(group)
        return None

    def _valid_steps(self, group: int | None) -> int | None:
        view = self.view
        stays = None if group is None else self.turn.stays(group, view.decoding_clients, view.decoding_counts)
        if stays is not None and (type(stays) is not int or stays < 1):
            raise ValueError(
                f"gate {self.gate.name} says that its choice of client {group} stays for {stays!r} decode steps: "
                "that is a whole number of at least 1, or None"
            )
        if self.slots.open is not None and view.paused:
            # While some requests stand still, another adapter may come to be the first to be done.
            return 1
        if not self.batching.grows:
            return stays
        limits = stays, growth_steps(view, self.batching), self.refused_steps
        return min((limit for limit in limits if limit is not None), default=None)

    def _head(self, group: int) -> QueuedRequest | None:
        """The group's next request that need not wait for its prefix, or for a slot for its adapter.

        A client under a gate offers no other request: it waits for the prefills and the adapters that are under way,
        and for no others of its group.
        """
        queue = self.state.queue
        head = self.best(group)
        if not self._stands_back(head):
            return head
        if self.gate.grouped:
            return None
        for entry in islice(queue.ranked(group), 1, LOOKAHEAD):
            if not self._stands_back(entry):
                return entry
        return None

    def _stands_back(self, entry: QueuedRequest) -> bool:
        return prefix_is_computed(self.order, self.state, entry) or self.slots.lacks(entry)

    def _prefix_is_cached(self, entry: QueuedRequest) -> bool:
        matches = self.state.queue.extension(CacheMatches)
        return matches is not None and entry.prefix_is_cached(matches.cached_tokens(entry.request))

    def _capped(self, group: int, entry: QueuedRequest) -> bool:
        turn = self.turn
        return turn.capped(group, entry.context_tokens + turn.counted(group, entry.output_tokens_left))

    def _behind_landed(self, group: int, entry: QueuedRequest) -> bool:
        """Whether other requests of the client, which landed elsewhere, go before this one, which did not."""
        if entry.kv_tokens or not self.turn.behind_landed(group):
            return False
        return not any(other.kv_tokens for other in islice(self.state.queue.ranked(group), LOOKAHEAD))

    def _own(self, entry: QueuedRequest, cached_tokens: int) -> int:
        """KV that the entry would take from what is free, beside what is cached of it."""
        return entry.context_tokens - cached_tokens + (1 if self.batching.grows else entry.output_tokens_left)

    def _pinned(self, cache: PrefixCache) -> int:
        """KV that is not free any more, since the entry's prefix is pinned in this cache."""
        return cache.tree.protected_tokens - self.state.cache.tree.protected_tokens

    def _match(self, entry: QueuedRequest) -> tuple[int, int]:
        """Where the cache stops to match the entry's prompt, which an order that follows the cache knows."""
        matches = self.state.queue.extension(CacheMatches)
        stop = None if matches is None else matches.stops.get(entry.request.id)
        return self.state.cache.stop(entry.request.prompt) if stop is None else stop

    def _held(self, entry: QueuedRequest) -> int:
        """Memory that the entry holds already, since its KV came with it from another worker."""
        landed = self.view.landed.get(entry.request.id) if self.view.landed else None
        return 0 if landed is None else landed.promised

    def _room(self, kept: int) -> int:
        """KV for the next that enters, of which so much is on the host.

        A request alone may have what the batching rule withholds.  Where an order swaps, what it keeps free is not for
        those who come back, and no more comes back in a step than it says.
        """
        if not self.view.running and not self.admissions:
            return self.free + self.batching.withheld(self.view.kv_capacity_tokens)
        if not kept or not isinstance(self.order, Swaps):
            return self.free
        swap = self.order.swap
        return -1 if self.moved and self.moved + kept > swap.step_tokens else self.free - swap.reserve(self.view)

    def _kept(self, entry: QueuedRequest) -> int:
        """Tokens of the entry's context whose KV comes with it from the host."""
        return self.view.host.kept(entry.request.id) if self.view.host.kv else 0

    def fits(self, entry: QueuedRequest) -> bool:
        """Whether memory would hold the entry."""
        cache, cached_tokens, _ = self.state.cache.admit(entry.request.id, entry.request.prompt, 0)
        need = self._own(entry, cached_tokens) + self._pinned(cache)
        kept, held = self._kept(entry), self._held(entry)
        extend_tokens = entry.context_tokens - max(cached_tokens, entry.kv_tokens, kept)
        whole = kept <= cached_tokens and self.batching.first_chunk(self.batch, extend_tokens) == extend_tokens
        size = entry.context_tokens - cached_tokens
        foreseen = self._foresees(entry, size, need - size - 1 - held, whole)
        return need - held <= self._room(kept) and foreseen

    def _foresees(self, entry: QueuedRequest, size: int, pinned: int, whole: bool) -> bool:
        """Whether the entry fits by what is foreseen, and protects `pinned` more tokens; a request alone always fits.

        What it holds already is as if so many tokens fewer were protected.
        """
        if not self.batching.foresees or not (self.view.running or self.admissions):
            return True
        foreseen = self._foresight()
        slack = foreseen.slack_beside(entry, size, pinned, whole)
        if slack < 0:
            self.refused_steps = foreseen.steps_refused(slack)
        return slack >= 0

    def _foresight(self) -> Foreseen:
        """What running requests are foreseen to hold: made when it is first asked for, before any request enters."""
        if self._foreseen is None:
            self._foreseen = Foreseen(self.batching, self.state, self.view, self.batch, self.free)
        return self._foreseen

    def _begins_batch(self, group: int) -> bool:
        """Whether the group's next request begins a batch of an order that takes requests in batches."""
        taken = self.state.queue.extension(TakenBatches)
        return taken is not None and taken.begins(group)

    def _admit(self, entry: QueuedRequest) -> bool:
        request = entry.request
        kept = self._kept(entry)
        held = self._held(entry)
        room = self._room(kept) + held
        reserved = 0 if self.batching.grows else entry.output_tokens_left
        if reserved > room:
            return False
        # To find what is cached costs a part of pinning it, and tells of most that do not fit.
        match = self._match(entry)
        blocks = min(match[1], request.prompt.reusable_blocks)
        own = self._own(entry, blocks * request.prompt.block_tokens)
        if own > room:
            return False
        cache, cached_tokens, cut = self.state.cache.admit(request.id, request.prompt, 0, match)
        extend_tokens = entry.context_tokens - max(cached_tokens, entry.kv_tokens, kept)
        chunk = self.batching.first_chunk(self.batch, extend_tokens)
        need = own + self._pinned(cache)
        if not chunk or need > room:
            return False
        if self.batching.foresees:
            size, whole = entry.context_tokens - cached_tokens, kept <= cached_tokens and chunk == extend_tokens
            pinned = need - size - 1 - held
            if not self._foresees(entry, size, pinned, whole):
                return False
            self._foresight().enter(entry, size, pinned, whole)
        self.free -= need - held
        if kept > cached_tokens:
            self.swap_in.append(request.id)
            self.moved += kept
            self.batching.seat(self.batch)
        elif held and extend_tokens == 1:
            self.batching.join(self.batch, request.id)
        else:
            self.batching.add(self.batch, request.id, chunk)
        self.admissions.append(Admission(request.id, request.client, extend_tokens, cached_tokens, reserved))
        self.slots.enter(entry)
        self.state = enter(self.policy, self.state, self.turn, entry, extend_tokens, cache, cut)
        if self.ranking is not None:
            index = self.state.queue.extension(Fronts)
            assert index is not None
            self.ranking.leave(index, entry.age, group_of(self.gate, request.client))
        return True


def step_plan(
    batch: Batch, admissions: tuple[Admission, ...], valid_steps: int | None, chunk_steps: int = 1
) -> StepPlan:
    """The plan of a filled batch; with chunks it holds for `chunk_steps`."""
    batch.resume()
    chunks = tuple(batch.chunks)
    if not chunks:
        return StepPlan((), admissions, (), batch.decode, valid_steps)
    return StepPlan(
        (), admissions, chunks, batch.decode, chunk_steps, padding_tokens=max(batch.tokens, 0) * batch.padded
    )


def growth_steps(view: WorkerView, batching: Batching) -> int | None:
    """For how many steps outputs that grow into free memory still fit."""
    free = view.kv_free_tokens - batching.withheld(view.kv_capacity_tokens)
    return max(free // view.growing, 1) if view.growing else None


def wait_reason(policy: Composition, state: AnyLocalState, view: WorkerView, free: int, request_id: int) -> WaitReason:
    """Why a waiting request is not admitted now, where so much KV is free.  O(clients)."""
    why = _wait_reason(policy, state, view, free, request_id)
    return "swapped" if request_id in view.host.kv and why in ("order", "memory", "budget") else why


def _wait_reason(policy: Composition, state: AnyLocalState, view: WorkerView, free: int, request_id: int) -> WaitReason:
    order, gate, batching = policy.order, policy.gate, policy.batching
    entry = state.queue.entries[request_id]
    client = entry.request.client
    batch = opened(policy, state, view)
    admissions = AdmissionPass(policy, state, view, batch, free)
    turn = admissions.turn
    chosen = admissions.chosen()
    if turn.lacks_credit(client):
        return "gate"
    if turn.capped(client, entry.context_tokens + turn.counted(client, entry.output_tokens_left)):
        return "cap"
    if prefix_is_computed(order, state, entry):
        return "prefix"
    if admissions.slots.lacks(entry):
        return "adapter"
    if chosen != group_of(gate, client):
        return "order"
    if admissions.best(chosen).request.id != request_id:
        return "order"
    return "memory" if batching.first_chunk(batch, 1) and not admissions.fits(entry) else "budget"
