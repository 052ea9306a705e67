"""Orders by which a waiting request takes the place of running ones, which compute again or go to host memory.

The decisions are in `policies.local.preemption` and `policies.local.swapping`.
"""

from abc import abstractmethod
from typing import TypeGuard

import attrs

from fairsched.model import worker
from fairsched.model.decision import WorkerView
from fairsched.model.request import Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.orders.base import Order, QueuedRequest

P_DISPLACED = Theorem(
    "P-DISPLACED",
    "a displaced request has produced a token since its admission, and is displaced by one that ranks before it; so a "
    "request is displaced less often than it has tokens of output",
    "this library; in drawn worlds",
    bound="output tokens - 1",
    scope=Scope.TESTED,
)
P_SWAP = Theorem(
    "P-SWAP",
    "a request that is swapped out has produced a token since its admission; so that happens less often than it has "
    "tokens of output, and it computes one token again when it comes back",
    "this library; FastServe's proactive swap; in drawn worlds",
    bound="output tokens - 1",
    scope=Scope.TESTED,
)
SWAPPING = (P_SWAP, *worker.theorems.HOST)


class Preempts(Order):
    """An order by which a waiting request may take the place of running requests that rank behind it."""

    @property
    def preempts(self) -> bool:
        """Whether it does so as it is configured."""
        return True

    @abstractmethod
    def preemption_rank(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        """Return what a waiting request's rank must exceed to take this running one's place; None: none may.  O(1).

        At least the rank that it would have when it waits again, so that it does not take its place back at once, or
        the order says itself how often that may happen.  `promoted_steps` is for how many steps with output it has run
        since it was admitted promoted, None if it was not.
        """

    def preemption_rank_queued(
        self, queued: QueuedRequest, generated_tokens: int, promoted_steps: int | None
    ) -> int | None:
        """Return the same of a request as it stood in the queue when it was admitted.  O(1)."""
        return self.preemption_rank(queued.request, generated_tokens, promoted_steps)

    def preemption_rank_steps(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        """Return for how many decode steps that rank does not fall, 1 at least; None: ever.  O(1)."""
        return None


def preempts(order: Order) -> TypeGuard[Preempts]:
    """Return whether waiting requests may take the place of running ones under this order."""
    return isinstance(order, Preempts) and order.preempts


@attrs.frozen
class Swap:
    """How much an order swaps.

    `free_percent` of the KV capacity is kept free for new requests.  Of what goes to the host, or comes back, at most
    `step_tokens` move in a step, or one request.
    """

    free_percent: int
    step_tokens: int

    def reserve(self, view: WorkerView) -> int:
        """Return the KV tokens that are kept free."""
        return view.kv_capacity_tokens * self.free_percent // 100


class Swaps(Preempts):
    """An order that uses host memory, where there is some, for requests that leave the batch."""

    @property
    @abstractmethod
    def swap(self) -> Swap:
        """How much it swaps."""
