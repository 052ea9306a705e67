"""What a local policy remembers, and the transition that deciding and observing share: a request enters the batch."""

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
from fairsched.policies.gates import NO_LEDGER, AdmissionTransaction, AnyGate, Ledger, entered, pauses_debtors
from fairsched.policies.local.queue import Queue, after_insertion, leave, ranked_anew, with_heads
from fairsched.policies.orders import NO_PLACE, Order, QueuedRequest, QueueExtension
from fairsched.policies.orders.abilities import (
    BypassLines,
    CacheMatches,
    FollowsCache,
    Promotes,
    Promotions,
    RanksQueue,
    Regroups,
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


class Standings(Derived, frozen=True, eq=False, gc=False):
    """What a decision found of those that run, under an order by which they may be displaced: by group, (the rank that
    a waiting request must exceed, which of equals goes first, id) of each, the last in rank first; and for how many
    steps none of these ranks falls (None: ever; 0: that was not looked for).  Of batches that run to their end, for how
    many steps none reaches its reservation.

    It is of that batch at that clock, after so many steps with output.
    """

    order: Order | None = None
    in_flight: Map[int, InFlight] = Map()
    clock: int = 0
    steps: int = 0
    by_group: Map[int, tuple[tuple[int, int, int], ...]] = Map()
    lasts: int | None = None

    def steps_since(self, order: Order, view: WorkerView, steps: int) -> int | None:
        """How many decode steps ago that was; None where it is no longer true.  O(1)."""
        if view.in_flight is not self.in_flight or self.order is not order:
            return None
        since = view.clock - self.clock
        if not since:
            return 0 if steps == self.steps else None
        # What is prefilled, or is paused, does not go on with the clock.
        if since < 0 or view.paused or view.prefilling or steps - self.steps not in (0, since):
            return None
        if steps == self.steps and isinstance(order, Promotes):
            return None
        return since if self.lasts is None or since < self.lasts else None


NOT_KNOWN = Standings()


class LocalState(msgspec.Struct, Generic[G], frozen=True, gc=False):
    """What waits, the gate's state, the policy's copy of the prefix cache, what runs, the prompts of those whose
    prefill is under way, who paid for what is cached, None unless the gate splits that, and what is known of how those
    that run stand."""

    gate: G
    queue: Queue
    cache: PrefixCache
    flights: Map[int, Flight]
    computing: Map[int, Prompt]
    ledger: Ledger | None = None
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
    ledger = state.ledger
    if ledger is not None:
        ledger = entered(ledger, cache, cut, request.id, request.client, admissions.take_over)
    computing = state.computing
    if isinstance(order, FollowsCache) and order.waits_for_prefix and request.prompt.keys:
        computing = computing.set(request.id, request.prompt)
    return LocalState(state.gate, queue, cache, state.flights.set(request.id, flight), computing, ledger)


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

    What an ability keeps may be missing where no request waits.  A bypass budget that was kept must be there again, and
    one that was not cannot be there, unless no request ever came.
    """
    try:
        return _restored(document, order, gate)
    except StateError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"the document has another shape than a state of its schema: {error!r}") from error


def _restored(document: dict[str, Any], order: Order, gate: AnyGate) -> AnyLocalState:
    """The state of a document that has the shape of its schema."""
    document, kept = _without_extensions(document)
    if isinstance(order, RanksQueue) and "Columns" in kept:
        # Former versions wrote what follows from the requests that wait.
        kept = {**kept, order.index.__name__: {}}
    generic: Any = LocalState
    restored: AnyLocalState = from_json(generic[gate.state_type], document)
    queue, wanted = restored.queue, {type(each).__name__: each for each in order.extensions()}
    counted = BypassLines.__name__
    if counted in wanted and queue.arrivals and not _lines(kept):
        raise StateError("the state was kept without a bypass budget")
    if counted not in wanted and _lines(kept):
        raise StateError("the state was kept with a bypass budget")
    if queue.entries and (missing := sorted(wanted.keys() - kept.keys())):
        raise StateError(f"the state was kept by another order, without {', '.join(missing)}")
    extensions = tuple(
        _made_anew(from_json(type(empty), {"schema": SCHEMA, "type": name, "state": kept[name]}), order, restored, gate)
        if name in kept
        else empty
        for name, empty in wanted.items()
    )
    queue = replace(queue, extensions=extensions)
    # The budget may be another one now.
    queue = with_heads(queue, order) if counted in wanted else queue
    if isinstance(order, Regroups):
        # A former version may have ranked otherwise.
        queue = ranked_anew(queue, order, gate.grouped)
    ledger = (restored.ledger or NO_LEDGER) if gate.charging.splits else None
    return replace(restored, queue=queue, ledger=ledger)


def _made_anew(kept: QueueExtension[Any], order: Order, state: AnyLocalState, gate: AnyGate) -> QueueExtension[Any]:
    """What an ability keeps; where that follows from the requests that wait, made of them.  O(n log n)."""
    if kept.derived:
        for queued in sorted(state.queue.entries.values(), key=lambda queued: queued.age):
            kept, _ = kept.joined(order, queued, group_of(gate, queued.request.client), state.cache)
    return kept


def _lines(kept: dict[str, Any]) -> bool:
    lines = kept.get(BypassLines.__name__)
    return isinstance(lines, dict) and bool(lines.get("lines"))


def _without_extensions(document: Any) -> tuple[Any, dict[str, Any]]:
    """The document without what abilities keep, and that by name."""
    if not isinstance(document, dict) or not isinstance(document.get("state"), dict):
        return document, {}
    state: dict[str, Any] = document["state"]
    if document.get("schema") == 1 and "waiting" in state:
        document, state = {**document, "schema": SCHEMA}, _upgraded(state)
    gate = state["gate"]
    if isinstance(gate, dict) and "places" in gate and "landed" not in gate:
        # Shared credit that was kept before requests came with their KV.
        state = {**state, "gate": {**gate, "landed": []}}
    elif isinstance(gate, dict) and "common" in gate and "floor" not in gate:
        # Counters that were kept before refunds stopped at the last lift: none is known.
        state = {**state, "gate": {**gate, "floor": [0] * len(gate["c"])}}
    state = _counting(state)
    queue = state["queue"]
    kept: dict[str, Any] = queue["extensions"]
    for missing in (_IN_NO_GROUP, _NOT_PREEMPTED, _UNTAGGED):
        entries, flights = _filled(queue["entries"], missing), _filled(state["flights"], missing, "entry")
        if missing is _IN_NO_GROUP and (entries is not None or flights is not None):
            kept = {**kept, "Grouped": {"grouped": 0, "admitted": 0}}
        queue = queue if entries is None else {**queue, "entries": entries}
        state = state if flights is None else {**state, "flights": flights}
    return {**document, "state": {**state, "queue": {**queue, "extensions": []}}}, kept


_IN_NO_GROUP = {"place": NO_PLACE, "prefix_tokens": 0}
_NOT_PREEMPTED = {"preemptions": 0}
_UNTAGGED = {"tag": 0}


def _counting(state: dict[str, Any]) -> dict[str, Any]:
    """The state with what elastic caps count, of which former versions know nothing."""
    filled = dict(state)
    if (flights := _filled(state["flights"], {"uncounted": 0})) is not None:
        filled["flights"] = flights
    gate = state["gate"]
    if isinstance(gate, dict):
        shared = isinstance(gate.get("deficit"), dict)
        deficit: dict[str, Any] = gate["deficit"] if shared else gate
        if deficit.keys() == {"q", "known", "quantum", "in_flight"}:
            deficit = {**deficit, "usual": []}
            filled["gate"] = {**gate, "deficit": deficit} if shared else deficit
    return filled


def _filled(pairs: Any, missing: dict[str, int], within: str | None = None) -> list[Any] | None:
    """Pairs of (request, its entry or a flight with that `within`) with fields that entries of former versions do not
    have; None where they have them, and for no pairs."""
    filled = []
    for request_id, holder in pairs:
        entry = holder if within is None else holder[within]
        if entry.keys() >= missing.keys():
            return None
        entry = {**missing, **entry}
        filled.append([request_id, entry if within is None else {**holder, within: entry}])
    return filled or None


def _upgraded(state: dict[str, Any]) -> dict[str, Any]:
    """The fields of a schema 1 document in schema 2, where abilities keep what was the queue's own, by name."""
    waiting = dict(state["waiting"])
    extensions = {
        name: {new: waiting.pop(old, None) for new, old in fields.items()} for name, fields in _SCHEMA_1.items()
    }
    extensions["Columns"] = waiting.pop("columns", None)
    # Requests that run took their position and came to the queue as others do.
    entries = [[i, _repositioned(entry)] for i, entry in waiting.get("entries", ())]
    flights = [[i, {**flight, "entry": _repositioned(flight["entry"])}] for i, flight in state.get("flights", ())]
    rest = {name: value for name, value in state.items() if name != "waiting"}
    return {**rest, "queue": {**waiting, "entries": entries, "extensions": extensions}, "flights": flights}


_SCHEMA_1 = {
    "CacheMatches": {"stops": "stops", "stopped": "stopped"},
    "BypassLines": {"lines": "lines"},
    "Turns": {"turns": "turns"},
    "Promotions": {"steps": "steps", "unpromoted": "patient"},
    "Grouped": {"grouped": "grouped"},
}


def _repositioned(entry: dict[str, Any]) -> dict[str, Any]:
    return {("position" if name == "place" else name): value for name, value in entry.items()}
