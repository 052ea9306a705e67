"""S3 and PiA: batches that run to their end, in which each request has memory for as much output as was predicted.

Sources: Jin et al., "S3: Increasing GPU Utilization during Generative Inference for Higher Throughput" (NeurIPS'23);
Zheng et al., "Response Length Perception and Sequence Scheduling" (PiA, NeurIPS'23); known to us by their rules only.
Both come before paging and continuous batching and make sense without them: memory of a request is one piece, reserved
when it enters, and none enters before the batch is over.  On an engine that has both they are baselines and no more.

Rule.  When the worker is empty, requests enter in order as long as the context and the reservation of each fit beside
those of the others, and the first that does not fit closes the batch.  A request's reservation is its predicted output,
doubled as often as it takes to be more than it has produced, and never more than it declared.  A request that reaches
its reservation is taken out and waits again, so that it comes with twice the room; what it produced is kept and
computed again with its prompt, which an engine without recompute by prefill would generate again.
- `s3`: in order of arrival.
- `pia`: the least reservation first, in bins of `bin_tokens`, and one bin a batch, so that a batch's outputs end at
  about the same time.  A request with a long prediction waits as long as shorter ones keep coming.
Without a prediction a request counts as predicted to produce what it declared; so it does with `reserve=static`.

Reservations are kept until one is reached, so memory never runs short, and decode steps may be leapt over until the
next one is.

Theorem: P-S3-1.  Of waits there is none under `pia` (F-PIA-1).
"""

from functools import partial
from typing import Any, ClassVar

import attrs
from msgspec.structs import replace

from fairsched.model.decision import StepPlan, WorkerView
from fairsched.model.request import Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.base import WaitReason
from fairsched.policies.batching import Batch
from fairsched.policies.local.admission import AdmissionPass, free_tokens, growth_steps, step_plan
from fairsched.policies.local.policy import ComposedPolicy
from fairsched.policies.local.standings import Placed
from fairsched.policies.local.state import AnyLocalState, forgetful, requeued
from fairsched.policies.orders import QueuedRequest, predicted
from fairsched.policies.orders.abilities import FollowsOutput
from fairsched.policies.validators import positive

P_S3_1 = Theorem(
    "P-S3-1",
    "a request is let in at most 1 + ceil(log2(declared / predicted)) times",
    "S3's doubling; this library",
    bound="1 + ceil(log2(declared / predicted))",
    scope=Scope.BOUNDED,
)


def reservation(request: Request, generated_tokens: int) -> int:
    """Output tokens reserved, in all, for a request that enters with so many behind it.  O(log output)."""
    tokens = max(predicted(request), 1)
    while tokens <= generated_tokens:
        tokens *= 2
    return min(tokens, request.max_output_tokens)


@attrs.frozen
class SimilarLength(FollowsOutput):
    """The least reservation first, in bins of `bin_tokens`."""

    name: ClassVar[str] = "similar-length"

    bin_tokens: int = attrs.field(default=100, validator=positive)
    """Outputs that are as long to within so many tokens are batched together."""

    def rank_after(self, request: Request, generated_tokens: int, promoted: bool) -> int:
        return -((reservation(request, generated_tokens) - 1) // self.bin_tokens)


class _BatchPass(AdmissionPass):
    """A decision in which each request needs memory for its reservation, and only one bin enters."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._bin: int | None = None

    def growing_output(self, entry: QueuedRequest) -> int:
        return reservation(entry.request, entry.generated_tokens) - entry.generated_tokens

    def admit(self, entry: QueuedRequest, asks: bool = False) -> bool:
        rank = self.policy.order.rank_queued(entry, 0)
        if self._bin not in (None, rank) or not super().admit(entry, asks):
            return False
        self._bin = rank
        return True


@attrs.frozen
class PredictedBatches(ComposedPolicy):
    """What S3 and PiA share; they differ in their orders."""

    def decide(self, state: AnyLocalState, view: WorkerView) -> tuple[StepPlan, AnyLocalState]:
        """Return a new batch for an empty worker; else who reached its reservation leaves, and the others go on.

        O(those that came, left or reached theirs since the last decision).
        """
        if view.paused:
            state = forgetful(state)
            if going := self.going_on(state, view):
                return going
        batch = self.batching.open(view, state.flights)
        if not view.running:
            if not state.queue.entries:
                return step_plan(batch, (), None), state
            return _BatchPass(self, state, view, batch, free_tokens(self, view, batch)).run()
        if not self.batching.grows:
            return step_plan(batch, (), None), state
        free = free_tokens(self, view, batch)
        if free < 0:
            # Only a batch that another policy let in can come to this.
            return self._preempt(state, view, batch, -free)
        known = state.standings.updated(self.order, view, 0, state.flights, partial(self._placed, state, view))
        state = state if known is state.standings else replace(state, standings=known)
        entering = [self._left(state, view, request_id) for request_id in known.entering(view)]
        lasts = min([end - view.clock for end, _ in known.ends[:1]] + entering)
        if lasts > 0:
            return self._going_on(view, batch, lasts), state
        late = [i for end, i in known.ends if end <= view.clock]
        late.sort(key=lambda request_id: view.in_flight[request_id].rank)
        for request_id in late:
            state = requeued(self.order, self.gate, state, request_id, view.decoded_tokens(request_id))
        return StepPlan(tuple(late), (), tuple(batch.chunks), batch.decode, 1), state

    def _going_on(self, view: WorkerView, batch: Batch, lasts: int) -> StepPlan:
        """Return the step of a batch of which no request reaches its reservation in fewer than so many steps."""
        grows = growth_steps(view, self.batching)
        return step_plan(batch, (), lasts if grows is None else min(grows, lasts))

    def _placed(self, state: AnyLocalState, view: WorkerView, request_id: int) -> Placed | None:
        """Return when a request that decodes reaches its reservation."""
        flight = view.in_flight.get(request_id)
        if flight is None or flight.clock_start is None:
            return None
        return 0, None, view.clock + self._left(state, view, request_id)

    @staticmethod
    def _left(state: AnyLocalState, view: WorkerView, request_id: int) -> int:
        """Return how many tokens a running request may still produce before it reaches its reservation."""
        entry = state.flights[request_id].entry
        left = reservation(entry.request, entry.generated_tokens) - entry.generated_tokens
        return left - view.decoded_tokens(request_id)

    def wait_reason(self, state: AnyLocalState, view: WorkerView, request_id: int) -> WaitReason:
        """Say that no request enters a batch that runs."""
        return "budget" if view.running else super().wait_reason(state, view, request_id)
