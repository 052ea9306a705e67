"""What a local policy remembers, and the transition that deciding and observing share: a request enters the batch."""

from typing import Any, Generic, TypeVar

import msgspec
from immutables import Map

from fairsched.model.cache import PrefixCache
from fairsched.model.prefix_tree import Insertion
from fairsched.model.request import KEY_BYTES, Prompt
from fairsched.policies.gate import Gate, Turn
from fairsched.policies.order import Order
from fairsched.policies.prefix_ledger import NO_LEDGER, Ledger, entered
from fairsched.policies.waiting import Entry, Waiting, after_insertion, leave

G = TypeVar("G")


class Flight(msgspec.Struct, frozen=True, gc=False):
    """A running request as the policy knows it: its queue entry, what it must compute, the KV it may come to hold, as
    the gate was told, and the step at which it was let in, where steps are counted."""

    entry: Entry
    extend_tokens: int
    kv_tokens: int
    since: int = 0

    def promoted_steps(self, steps: int) -> int | None:
        """For how many steps it has run since it was let in promoted, None if it was not."""
        return steps - self.since if self.entry.promoted else None


class LocalState(msgspec.Struct, Generic[G], frozen=True, gc=False):
    """What waits, the gate's state, the policy's copy of the prefix cache, what runs, the prompts of those whose
    prefill is under way, and who paid for what is cached if the gate splits that."""

    gate: G
    waiting: Waiting
    cache: PrefixCache
    flights: Map[int, Flight]
    computing: Map[int, Prompt]
    ledger: Ledger = NO_LEDGER


def group_of(gate: Gate[Any], client: int) -> int:
    """The queue in which a client's requests wait: its own under a gate, the only one without."""
    return client if gate.grouped else 0


def enter(
    order: Order,
    gate: Gate[Any],
    state: LocalState[Any],
    turn: Turn,
    entry: Entry,
    extend_tokens: int,
    cache: PrefixCache,
    cut: Insertion | None,
) -> LocalState[Any]:
    """Move an entry from the queue into the batch and charge it to the turn; the gate's state follows with the turn.

    `cache` is the cache in which the entry's prefix is pinned, `cut` the node that was cut for that.
    """
    request = entry.request
    group = group_of(gate, request.client)
    waiting = leave(state.waiting, order, request.id, group, admitted=True)
    if cut is not None and order.follows_cache:
        waiting = after_insertion(waiting, order, cache, cut, request.prompt, gate.grouped)
    flight = Flight(entry, extend_tokens, extend_tokens + entry.output_tokens_left, waiting.steps)
    charged = gate.charged(extend_tokens, entry.context_tokens - extend_tokens)
    turn.admit(group, charged, flight.kv_tokens, group not in waiting.queues)
    ledger = state.ledger
    if gate.splits:
        ledger = entered(ledger, cache, cut, request.id, request.client, turn.take_over)
    computing = state.computing
    if order.waits_for_prefix and request.prompt.keys:
        computing = computing.set(request.id, request.prompt)
    return LocalState(state.gate, waiting, cache, state.flights.set(request.id, flight), computing, ledger)


def waits_for_prefix(order: Order, state: LocalState[Any], entry: Entry) -> bool:
    """Whether a running prefill is computing the block that the entry's prompt needs next.  O(prefills under way)."""
    prompt = entry.request.prompt
    if not order.waits_for_prefix or not prompt.keys or not state.computing:
        return False
    _, blocks = state.waiting.stops[entry.request.id]
    if blocks >= prompt.reusable_blocks:
        return False
    prefix = prompt.keys[: (blocks + 1) * KEY_BYTES]
    return any(other.keys.startswith(prefix) for other in state.computing.values())
