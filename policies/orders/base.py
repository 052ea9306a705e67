"""The contract of an order: which waiting request of a group goes first, as one integer a request, larger first.

Equal integers are served in order of arrival, so every order is total.

What only some orders need is an ability of its own in `policies.orders.abilities`, a subclass of `Order` that an order
also derives from:

- `FollowsCache`: the rank depends on how much of the prompt is cached.
- `TakesTurns`: ranks are the numbers of priority groups, which take turns.
- `RanksByKey`, `Regroups`: ranks depend on all requests that wait.
- `FollowsOutput`, `Promotes`: the rank depends on the output so far, and on a long wait.
- `Preempts`, `Swaps`: a waiting request takes the place of running ones.
- `KeepsPrograms`: room is kept for programs between two calls.

An ability that must remember something has a `QueueExtension`, a value that the queue carries for it.
"""

from abc import abstractmethod
from typing import Any, ClassVar, Generic, Self, TypeVar

import msgspec
from immutables import Map
from msgspec import structs

from fairsched.model.prefix_cache import PrefixCache, SortedTuple
from fairsched.model.request import TOKENS_MAX, Request
from fairsched.model.theorem import Theorem

AGE_BITS = 40
AGE_MASK = (1 << AGE_BITS) - 1
"""A score packs a rank and the age of the request into one integer: scores are distinct, and the larger goes first."""

NO_PLACE = -1
"""The place of a request that is in no group of requests that share a prefix."""


class QueuedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request in the queue.

    `age` counts arrivals, and `generated_tokens` is what a preemption left to compute again.  The KV of the first
    `kv_tokens` of its context came with it.
    Under an order that promotes, it waits `since` that step, and may be `promoted`.  Under one that groups requests, it
    shares its first `prefix_tokens` with the group at that `place`.  It ran and was taken out `preemptions` times.
    Under an order by virtual finish times, by clients' scores, or that keeps programs, `tag` is its own.
    """

    request: Request
    age: int
    generated_tokens: int
    kv_tokens: int = 0
    since: int = 0
    promoted: bool = False
    place: int = NO_PLACE
    prefix_tokens: int = 0
    preemptions: int = 0
    tag: int = 0

    @property
    def context_tokens(self) -> int:
        """Tokens to be in the KV cache before the next token can be produced."""
        return self.request.prompt.tokens + self.generated_tokens

    @property
    def output_tokens_left(self) -> int:
        """Most output tokens that it may still produce."""
        return self.request.max_output_tokens - self.generated_tokens

    def prefix_is_cached(self, cached_tokens: int) -> bool:
        """Return whether it shares a prefix, and all of that is among so many cached tokens."""
        return 0 < self.prefix_tokens <= cached_tokens


Ability = TypeVar("Ability", bound="Order")
Entries = Map[int, QueuedRequest]
"""Waiting requests by id."""
Numbers = Map[int, int]
"""Ids by age, or scores by id."""


class QueueExtension(msgspec.Struct, Generic[Ability], frozen=True, gc=False):
    """What one ability of an order keeps beside the queue; it is told of each request that joins, leaves or ends."""

    def joined(
        self, order: Ability, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["QueueExtension[Ability]", QueuedRequest]:
        """Return the extension and the request after it joined the queue of `group`."""
        return self, queued

    def left(
        self, order: Ability, queued: QueuedRequest, score: int, group: int, admitted: bool
    ) -> "QueueExtension[Ability]":
        """Return the extension after a request was admitted from the queue of `group`, or left it otherwise."""
        return self

    def finished(self, order: Ability, request: Request, output_tokens: int, time_ns: int) -> "QueueExtension[Ability]":
        """Return the extension after a request ended with so much output."""
        return self

    derived: ClassVar[bool] = False
    """Whether all of it follows from the requests that wait: a document has none of it, and it is made anew of them."""
    picks_head: ClassVar[bool] = False
    """Whether it may choose another head of a group than its best request (`head`)."""

    def head(
        self, order: Ability, group: int, queue: SortedTuple[int], entries: Entries, ids: Numbers, scores: Numbers
    ) -> int:
        """Return the score of the next request of a group that is not empty."""
        return queue.last()

    def check(self, order: Ability, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        """Raise `AssertionError` unless it fits the requests that wait: each with its group and its score, by age."""


class OldestOfEach(QueueExtension[Ability], frozen=True, gc=False):
    """The ages of each client's requests that wait: next is the oldest of one client, which the ability picks."""

    picks_head: ClassVar[bool] = True

    waiting: Map[int, SortedTuple[int]] = Map()

    @abstractmethod
    def first(self, order: Ability, oldest: list[QueuedRequest]) -> QueuedRequest:
        """Return which of these is next: the oldest request of each client that waits, of two clients at least."""

    def joined(
        self, order: Ability, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple[Self, QueuedRequest]:
        ages: SortedTuple[int] = self.waiting.get(queued.request.client, SortedTuple())
        return structs.replace(self, waiting=self.waiting.set(queued.request.client, ages.add(queued.age))), queued

    def left(self, order: Ability, queued: QueuedRequest, score: int, group: int, admitted: bool) -> Self:
        client = queued.request.client
        ages = self.waiting[client].remove(queued.age)
        waiting = self.waiting.set(client, ages) if ages.size else self.waiting.delete(client)
        return structs.replace(self, waiting=waiting)

    def head(
        self, order: Ability, group: int, queue: SortedTuple[int], entries: Entries, ids: Numbers, scores: Numbers
    ) -> int:
        """Return the score of the one that is picked.  O(clients that wait); O(1) under a gate."""
        if queue.size < len(entries) or len(self.waiting) == 1:
            # A group is one client, or there is no other.
            return queue.last()
        return scores[self.first(order, [entries[ids[ages.first()]] for ages in self.waiting.values()]).request.id]

    def check(self, order: Ability, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        ages: dict[int, list[int]] = {}
        for queued, _, _ in waiting:
            ages.setdefault(queued.request.client, []).append(queued.age)
        # Each request that waits is listed with its client.
        assert {client: list(kept) for client, kept in self.waiting.items()} == ages


def score_of(order: "Order", rank: int, age: int) -> int:
    """Return one integer that orders by rank, then by age, the older first.

    Raises `ValueError` for a rank that is no whole number, or is out of range: a score must fit into 64 bits.
    """
    try:
        if -TOKENS_MAX <= rank <= TOKENS_MAX:
            return (rank << AGE_BITS) + (AGE_MASK - age)
    except TypeError:
        pass
    raise ValueError(
        f"order {order.name} ranked a request {rank!r}: a rank is a whole number from {-TOKENS_MAX:,} to {TOKENS_MAX:,}"
    )


class Order:
    """The integer by which waiting requests are ranked.

    It is no `ABC`, although it has an abstract method: decisions ask for abilities by `isinstance`, which is several
    times slower for one.
    """

    name: ClassVar[str]

    @abstractmethod
    def rank(self, request: Request, cached_tokens: int) -> int:
        """Return the rank of a request, between -TOKENS_MAX and TOKENS_MAX: larger goes first.  O(1).

        `cached_tokens` is 0 unless the order is a `FollowsCache`.
        """

    def rank_queued(self, queued: QueuedRequest, cached_tokens: int) -> int:
        """Return the rank of a request as it stands in the queue.  O(1)."""
        return self.rank(queued.request, cached_tokens)

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        """Return what the order's abilities keep beside an empty queue."""
        return ()

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """What the order promises of requests, whatever its ranks are."""
        return ()
