"""Holistic shares: clients take turns by what their requests cost them and the worker, as one order without a gate.

Source: Equinox (arXiv 2508.16646), by its summary: a counter of a client's service, by weighted tokens and latency, and
one of the resources that it took, by throughput and utilization, make one score; the client with the least goes first,
and both are predicted, since neither is known before.  Here a request counts

    user share x (prompt + 2 output tokens, in the time of prompt tokens)  +  the rest x predicted time of its work

with the predicted output.  Its client's score begins where that of the request served last is, if it was less, and
grows by each of its requests as they come; a request goes by the score that its client had before it.  So the clients'
first requests are compared as counters are, and no clock is in it: what waits keeps its place, and decode steps may be
leapt over.  These are the start times of fair queueing (Goyal et al., 1996).

What differs: latency that a client saw lowers no score, utilization is predicted time alone, a prediction that was
wrong is not put right, and weights are not known to orders.  It promises nothing: a client whose predictions are too
low pays too little.  Under a gate the client is the gate's choice, and its requests go in order of arrival.
"""

from typing import Any, ClassVar

import attrs
import msgspec
from immutables import Map

from fairsched.model.prefix_cache import PrefixCache
from fairsched.policies.orders.abilities import OWN_MAX, RanksByKey
from fairsched.policies.orders.base import QueuedRequest, QueueExtension
from fairsched.policies.orders.predicted_output import PredictedTimes, predicted_left
from fairsched.policies.validators import percent

NS_PER_US = 1_000


@attrs.frozen
class HolisticShares(PredictedTimes, RanksByKey):
    """The client with the least predicted cost so far first; of its requests the oldest."""

    name: ClassVar[str] = "holistic"

    user_percent: int = attrs.field(default=50, validator=percent)
    """How much of a request's cost is what its client gets of it, in per cent; the rest is the worker's time."""

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (Scores(), *super().extensions())

    def cost_us(self, queued: QueuedRequest) -> int:
        """Return what a request is predicted to cost, in microseconds, 1 at least."""
        prompt, output = queued.context_tokens, predicted_left(queued)
        user = self.prompt_token_ns * (prompt + 2 * output)
        worker = self.prompt_token_ns * prompt + self.output_token_ns * output
        both = self.user_percent * user + (100 - self.user_percent) * worker
        return max(both // (100 * NS_PER_US), 1)

    def number(self, queued: QueuedRequest) -> int:
        """Return the client's score before the request."""
        return min(queued.tag, OWN_MAX)


class Scores(QueueExtension[HolisticShares], frozen=True, gc=False):
    """Each client's score after its last request, and the largest of a request that was let in: all in microseconds."""

    scores: Map[int, int] = Map()
    served: int = 0

    def joined(
        self, order: HolisticShares, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["Scores", QueuedRequest]:
        if queued.preemptions:
            # What was taken out keeps the score that it came with.
            return self, queued
        client = queued.request.client
        start = max(self.scores.get(client, 0), self.served)
        after = self.scores.set(client, start + order.cost_us(queued))
        return Scores(after, self.served), msgspec.structs.replace(queued, tag=start)

    def left(self, order: HolisticShares, queued: QueuedRequest, score: int, group: int, admitted: bool) -> "Scores":
        return Scores(self.scores, max(self.served, queued.tag)) if admitted else self

    def check(self, order: HolisticShares, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        # A request's score is one that its client had.
        for queued, _, _ in waiting:
            assert queued.tag < self.scores[queued.request.client]
