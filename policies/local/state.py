"""What a local policy remembers, and the transition that deciding and observing share: a request enters the batch."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model.plan import StepPlan
from fairsched.model.prefix_cache import Insertion, PrefixCache
from fairsched.model.request import KEY_BYTES, Prompt
from fairsched.model.serialization import SCHEMA, Derived, StateError, from_json, to_json
from fairsched.model.view import InFlight, WorkerView
from fairsched.policies.batching import Batch, Batching
from fairsched.policies.gates import AdmissionTransaction, AnyGate, pauses_debtors
from fairsched.policies.local.queue import Queue, after_insertion, leave
from fairsched.policies.orders import Order, QueuedRequest, QueueExtension
from fairsched.policies.orders.abilities import (
    CacheMatches,
    FollowsCache,
    Promotes,
    Promotions,
)

G = TypeVar("G")


class Flight(msgspec.Struct, frozen=True, gc=False):
    """A running request as the policy knows it: its queue entry, what it must compute, the KV it may come to hold, the
    step at which it was let in, where steps are counted, and how much of its KV the gate does not count."""

    entry: QueuedRequest
    extend_tokens: int
    kv_tokens: int
    since: int = 0
    uncounted: int = 0

    @property
    def counted(self) -> int:
        """KV tokens that the gate counts as in flight."""
        return self.kv_tokens - self.uncounted

    @property
    def prefix_was_cached(self) -> bool:
        """Whether what it shares with a group was cached when it was let in."""
        return self.entry.prefix_is_cached(self.entry.context_tokens - self.extend_tokens)

    def promoted_steps(self, steps: int) -> int | None:
        """For how many steps it has run since it was let in promoted, None if it was not."""
        return steps - self.since if self.entry.promoted else None


Standing = tuple[int, int, int]
"""The rank that a waiting request must exceed to displace this one, which of equals goes first, and its id."""
Placed = tuple[int, Standing | None, int | None]
"""The group of a request that runs, its standing (None: it may not be displaced), and the clock at which that is to be
looked at again (None: never)."""
_NO_BATCH: Map[int, InFlight] = Map()


class Standings(Derived, frozen=True, eq=False, gc=False):
    """What is known of those that run and decode, under an order by which they may be displaced: by group the standing
    of each, the last in rank first, and (clock, id) of `ends`, ascending: when a rank may fall.  Of batches that run to
    their end, when a request reaches its reservation.

    `placed` says where each of them is in these two; those that are `young` produced nothing yet and are in neither.
    It was true of that batch at that clock, after so many steps with output; ranks may have risen since.
    Requests that come and leave change it, so that none of the others is looked at again; of one that is paused the
    clock stands still, and then nothing is known.
    """

    order: Order | None = None
    in_flight: Map[int, InFlight] = _NO_BATCH
    clock: int = 0
    steps: int = 0
    by_group: Map[int, tuple[Standing, ...]] = Map()
    ends: tuple[tuple[int, int], ...] = ()
    placed: Map[int, Placed] = Map()
    young: tuple[int, ...] = ()
    paused: bool = False

    def updated(
        self, order: Order, view: WorkerView, steps: int, running: Iterable[int], place: Callable[[int], Placed | None]
    ) -> "Standings":
        """What is known of those `running` at this view; `place` says where a request belongs now, None for one that is
        young, or enters in this step.

        O(1) where nothing changed, O(batch log batch) where nothing was known, else for each that changed O(log batch)
        and a copy of the rows that it is in.
        """
        known = self
        if not self._is_of(order, view, steps):
            known = Standings(order, young=tuple(running))
        due = [i for _, i in known.ends[: bisect_left(known.ends, (view.clock + 1,))]]
        if not due and view.in_flight is known.in_flight:
            return known
        for request_id in due:
            known = known.without(request_id)
        asked = {request_id: place(request_id) for request_id in (*known.young, *due)}
        young = tuple([request_id for request_id, placed in asked.items() if placed is None])
        found = {request_id: placed for request_id, placed in asked.items() if placed is not None}
        return known._with(found, view, steps, young)

    def _is_of(self, order: Order, view: WorkerView, steps: int) -> bool:
        """Whether this is of the batch at an earlier time, but for requests that are young."""
        since = view.clock - self.clock
        if self.order is not order or since < 0 or view.paused or self.paused:
            return False
        # Some ranks go by the clock and some by steps with output: both went on together, or are not counted.
        together = steps - self.steps == since or not isinstance(order, Promotes)
        young = sum(request_id in view.in_flight for request_id in self.young)
        return together and len(view.in_flight) == len(self.placed) + young

    def _with(self, found: dict[int, Placed], view: WorkerView, steps: int, young: tuple[int, ...]) -> "Standings":
        """The same with some more placed."""
        by_group, groups, ends = self.by_group, dict[int, list[Standing]](), []
        for request_id, (group, standing, end) in found.items():
            if standing is not None:
                groups.setdefault(group, []).append(standing)
            if end is not None:
                ends.append((end, request_id))
        for group, more in groups.items():
            by_group = by_group.set(group, _merged(by_group.get(group, ()), more))
        return Standings(
            self.order,
            view.in_flight,
            view.clock,
            steps,
            by_group,
            _merged(self.ends, ends),
            self.placed.update(found),
            young,
            bool(view.paused),
        )

    def without(self, request_id: int) -> "Standings":
        """The same when a request has left the batch.  A copy of the rows that it is in."""
        if self.order is None:
            return self
        if request_id in self.young:
            return replace(self, in_flight=_NO_BATCH, young=tuple([i for i in self.young if i != request_id]))
        group, standing, end = self.placed[request_id]
        by_group, ends = self.by_group, self.ends
        if standing is not None:
            by_group = by_group.set(group, _less(by_group[group], standing))
        if end is not None:
            ends = _less(ends, (end, request_id))
        placed = self.placed.delete(request_id)
        return replace(self, in_flight=_NO_BATCH, by_group=by_group, ends=ends, placed=placed)

    def entered(self, request_id: int) -> "Standings":
        """The same when a request was let in."""
        if self.order is None:
            return self
        return replace(self, in_flight=_NO_BATCH, young=(*self.young, request_id))

    def risen(self, group: int, now: dict[int, Standing | None]) -> "Standings":
        """The same with these standings of some of a group, which have risen or are none any more.  O(the group)."""
        placed = self.placed.mutate()
        for request_id, standing in now.items():
            placed[request_id] = group, standing, placed[request_id][2]
        row = tuple([standing for standing in self.by_group[group] if standing[2] not in now])
        row = _merged(row, [standing for standing in now.values() if standing is not None])
        return replace(self, by_group=self.by_group.set(group, row), placed=placed.finish())

    def check(self, running: Iterable[int]) -> None:
        """Raise `AssertionError` unless it is of the requests that run, and says the same of each everywhere."""
        if self.order is None:
            return
        assert sorted((*self.placed, *self.young)) == sorted(running)
        rows: dict[int, list[Standing]] = {}
        for group, standing, _ in self.placed.values():
            if standing is not None:
                rows.setdefault(group, []).append(standing)
        assert {group: row for group, row in self.by_group.items() if row} == {
            g: tuple(sorted(r)) for g, r in rows.items()
        }
        assert list(self.ends) == sorted((end, i) for i, (_, _, end) in self.placed.items() if end is not None)


Item = TypeVar("Item", bound=tuple[int, ...])

_FEW = 8


def _less(row: tuple[Item, ...], item: Item) -> tuple[Item, ...]:
    """A row in order without one item that is in it."""
    place = bisect_left(row, item)
    return row[:place] + row[place + 1 :]


def _merged(row: tuple[Item, ...], more: Sequence[Item]) -> tuple[Item, ...]:
    """A row in order with more items."""
    if len(more) > _FEW:
        return tuple(sorted((*row, *more)))
    for item in more:
        place = bisect_left(row, item)
        row = (*row[:place], item, *row[place:])
    return row


NOT_KNOWN = Standings()


class LocalState(msgspec.Struct, Generic[G], frozen=True, gc=False):
    """What waits, the gate's state, the policy's copy of the prefix cache, what runs, the prompts of those whose
    prefill is under way, and what is known of how those that run stand."""

    gate: G
    queue: Queue
    cache: PrefixCache
    flights: Map[int, Flight]
    computing: Map[int, Prompt]
    standings: Standings = NOT_KNOWN


AnyLocalState: TypeAlias = LocalState[Any]
"""The state of a composed policy, whatever its gate."""


class Composition(Protocol):
    """A local policy as its decisions see it: what it is composed of, and how a request leaves the batch."""

    @property
    def order(self) -> Order: ...

    @property
    def gate(self) -> AnyGate: ...

    @property
    def batching(self) -> Batching: ...

    def step(self, state: AnyLocalState, view: WorkerView) -> tuple[StepPlan, AnyLocalState]:
        """The next step of a worker with what is paused there, and the state after it."""

    def free_tokens(self, view: WorkerView, batch: Batch) -> int:
        """KV that is free beside what is withheld and what this step's output takes."""

    def requeued(self, state: AnyLocalState, request_id: int, decoded: int) -> AnyLocalState:
        """The state in which a running request waits again, at its old age, with `decoded` more tokens to compute."""


def group_of(gate: AnyGate, client: int) -> int:
    """The queue in which a client's requests wait: its own under a gate, the only one without."""
    return client if gate.grouped else 0


def enter(
    policy: Composition,
    state: AnyLocalState,
    admissions: AdmissionTransaction,
    entry: QueuedRequest,
    extend_tokens: int,
    cache: PrefixCache,
    cut: Insertion | None,
) -> AnyLocalState:
    """Move an entry from the queue into the batch and charge it; the gate's state follows with the decision.

    `cache` is the cache in which the entry's prefix is pinned, `cut` the node that was cut for that.
    """
    order, gate, request = policy.order, policy.gate, entry.request
    group = group_of(gate, request.client)
    queue = leave(state.queue, order, request.id, group, admitted=True)
    if cut is not None:
        queue = after_insertion(queue, order, cache, cut, request.prompt, gate.grouped)
    steps = steps_of(queue) if isinstance(order, Promotes) else 0
    declared = entry.output_tokens_left
    uncounted = declared - admissions.counted(group, declared)
    flight = Flight(entry, extend_tokens, extend_tokens + declared, steps, uncounted)
    charged = gate.charged(extend_tokens, entry.context_tokens - extend_tokens)
    admissions.admit(group, charged, flight.counted, group not in queue.queues)
    if entry.kv_tokens:
        admissions.unheld(request.client)
    computing = state.computing
    if isinstance(order, FollowsCache) and order.waits_for_prefix and request.prompt.keys:
        computing = computing.set(request.id, request.prompt)
    flights, standings = state.flights.set(request.id, flight), state.standings.entered(request.id)
    return LocalState(state.gate, queue, cache, flights, computing, standings)


def forgetful(state: AnyLocalState) -> AnyLocalState:
    """The state in which nothing is known of how those that run stand, since some were paused or go on."""
    return state if state.standings is NOT_KNOWN else replace(state, standings=NOT_KNOWN)


def settled(policy: Composition, state: AnyLocalState) -> AnyLocalState:
    """The state after an event, or what stands for one in a decision, in which the gate has given and forgiven what is
    due.  O(clients) under a gate that pauses."""
    if not pauses_debtors(policy.gate):
        return state
    gate = policy.gate.settled_up(state.gate, state.queue.heads)
    return state if gate is state.gate else replace(state, gate=gate)


def steps_of(queue: Queue) -> int:
    """How many steps produced output, where the order counts them to promote requests; else 0."""
    promotions = queue.extension(Promotions)
    return 0 if promotions is None else promotions.steps


def prefix_is_computed(order: Order, state: AnyLocalState, entry: QueuedRequest) -> bool:
    """Whether the entry waits for a running prefill that computes the block it needs next.  O(prefills under way).

    One that shares a prefix with a group waits for no more than that.
    """
    prompt = entry.request.prompt
    if not state.computing or not prompt.keys or not isinstance(order, FollowsCache) or not order.waits_for_prefix:
        return False
    matches = state.queue.extension(CacheMatches)
    assert matches is not None
    _, blocks = matches.stops[entry.request.id]
    if blocks >= prompt.reusable_blocks or entry.prefix_is_cached(blocks * prompt.block_tokens):
        return False
    prefix = prompt.keys[: (blocks + 1) * KEY_BYTES]
    return any(other.keys.startswith(prefix) for other in state.computing.values())


# --- documents --------------------------------------------------------------------------------------------------------


def document_of(state: AnyLocalState) -> dict[str, Any]:
    """The JSON document of a state; what the order's abilities keep is in it by name."""
    document = to_json(state)
    queue = document["state"]["queue"]
    names = [type(kept).__name__ for kept in state.queue.extensions]
    queue["extensions"] = dict(zip(names, queue["extensions"], strict=True))
    return document


def state_of(document: dict[str, Any], order: Order, gate: AnyGate) -> AnyLocalState:
    """The state of a document under this order and gate; raises `StateError` where it is not one.

    What an ability keeps may be missing where no request waits.
    """
    try:
        return _restored(document, order, gate)
    except StateError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"the document has another shape than a state of its schema: {error!r}") from error


def _restored(document: dict[str, Any], order: Order, gate: AnyGate) -> AnyLocalState:
    """Return the state of a document that has the shape of its schema."""
    if not isinstance(document, dict):
        raise StateError("a state is a JSON object")
    state = document["state"]
    kept = state["queue"]["extensions"]
    plain = {**document, "state": {**state, "queue": {**state["queue"], "extensions": []}}}
    generic: Any = LocalState
    restored: AnyLocalState = from_json(generic[gate.state_type], plain)
    wanted = {type(each).__name__: each for each in order.extensions()}
    if restored.queue.entries and (missing := sorted(wanted.keys() - kept.keys())):
        raise StateError(f"the state was kept by another order, without {', '.join(missing)}")
    extensions = tuple(
        _made_anew(from_json(type(empty), {"schema": SCHEMA, "type": name, "state": kept[name]}), order, restored, gate)
        if name in kept
        else empty
        for name, empty in wanted.items()
    )
    return replace(restored, queue=replace(restored.queue, extensions=extensions))


def _made_anew(kept: QueueExtension[Any], order: Order, state: AnyLocalState, gate: AnyGate) -> QueueExtension[Any]:
    """Return what an ability keeps; where that follows from waiting requests, made of them.  O(n log n)."""
    if kept.derived:
        for queued in sorted(state.queue.entries.values(), key=lambda queued: queued.age):
            kept, _ = kept.joined(order, queued, group_of(gate, queued.request.client), state.cache)
    return kept
