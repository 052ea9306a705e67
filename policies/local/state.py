"""What a local policy remembers, and how requests come into its queue, leave its batch, and come back."""

from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import Prompt
from fairsched.model.serialization import SCHEMA, StateError, from_json, to_json
from fairsched.policies.gates import AnyGate, GlobalDeficitGate, InBatchGate
from fairsched.policies.local.standings import NOT_KNOWN, Standings
from fairsched.policies.orders import Order, Queue, QueuedRequest, QueueExtension, join, leave, with_programs
from fairsched.policies.orders.abilities import KeepsPrograms, Promotions

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
        """Return for how many steps it has run since it was let in promoted, None if it was not."""
        return steps - self.since if self.entry.promoted else None


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


def group_of(gate: AnyGate, client: int) -> int:
    """Return the queue in which a client's requests wait: its own under a gate, the only one without."""
    return client if gate.grouped else 0


def forgetful(state: AnyLocalState) -> AnyLocalState:
    """Return the state in which nothing is known of how those that run stand, since some were paused or go on."""
    return state if state.standings is NOT_KNOWN else replace(state, standings=NOT_KNOWN)


def settled(gate: AnyGate, state: AnyLocalState) -> AnyLocalState:
    """Return the state after an event, or what stands for one in a decision, in which the gate has given and forgiven
    what is due.  O(clients) under a gate that pauses."""
    if not isinstance(gate, InBatchGate):
        return state
    settled = gate.settled_up(state.gate, state.queue.heads)
    return state if settled is state.gate else replace(state, gate=settled)


def joined(order: Order, gate: AnyGate, state: AnyLocalState, entry: QueuedRequest) -> AnyLocalState:
    """Return the state in which a request waits that did not."""
    client, queue = entry.request.client, state.queue
    after = gate.joined(state.gate, client, queue.heads, client in queue.queues)
    if entry.kv_tokens and isinstance(gate, GlobalDeficitGate):
        after = gate.held(after, client, 1)
    queue = join(queue, order, state.cache, entry, group_of(gate, client))
    return LocalState(after, queue, state.cache, state.flights, state.computing, state.standings)


def gone(order: Order, gate: AnyGate, state: AnyLocalState, request_id: int, client: int) -> AnyLocalState:
    """Return the state in which a waiting request waits no more, and was not admitted."""
    group = group_of(gate, client)
    queue = leave(state.queue, order, request_id, group, admitted=False)
    after = state.gate if group in queue.queues else gate.left(state.gate, client)
    if state.queue.entries[request_id].kv_tokens and isinstance(gate, GlobalDeficitGate):
        after = gate.held(after, client, -1)
    return LocalState(after, queue, state.cache, state.flights, state.computing, state.standings)


def out(
    order: Order, gate: AnyGate, state: AnyLocalState, request_id: int, output_tokens: int | None = None
) -> AnyLocalState:
    """Return the state in which a request has left the batch, with all of its output or for another reason (None)."""
    flight = state.flights[request_id]
    after = gate.released(state.gate, flight.entry.request.client, flight.counted, output_tokens)
    computing = state.computing
    if request_id in computing:
        computing = computing.delete(request_id)
    cache = state.cache.release(request_id)
    flights, standings = state.flights.delete(request_id), state.standings.without(request_id)
    queue = state.queue
    if isinstance(order, KeepsPrograms):
        queue = with_programs(queue, lambda held: held.ended(order, flight.entry, output_tokens))
    return LocalState(after, queue, cache, flights, computing, standings)


def requeued(order: Order, gate: AnyGate, state: AnyLocalState, request_id: int, decoded: int) -> AnyLocalState:
    """Return the state in which a running request waits again at its old age, with `decoded` more tokens to compute."""
    entry = state.flights[request_id].entry
    entry = QueuedRequest(
        entry.request,
        entry.age,
        entry.generated_tokens + decoded,
        place=entry.place,
        prefix_tokens=entry.prefix_tokens,
        preemptions=entry.preemptions + 1,
        tag=entry.tag,
    )
    return settled(gate, joined(order, gate, out(order, gate, state, request_id), entry))


def steps_of(queue: Queue) -> int:
    """Return how many steps produced output, where the order counts them to promote requests; else 0."""
    promotions = queue.extension(Promotions)
    return 0 if promotions is None else promotions.steps


# --- documents --------------------------------------------------------------------------------------------------------


def document_of(state: AnyLocalState) -> dict[str, Any]:
    """Return the JSON document of a state; what the order's abilities keep is in it by name."""
    document = to_json(state)
    queue = document["state"]["queue"]
    names = [type(kept).__name__ for kept in state.queue.extensions]
    queue["extensions"] = dict(zip(names, queue["extensions"], strict=True))
    return document


def state_of(document: dict[str, Any], order: Order, gate: AnyGate) -> AnyLocalState:
    """Return the state of a document under this order and gate; raises `StateError` where it is not one.

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
