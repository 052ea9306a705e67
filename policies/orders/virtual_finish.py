"""Virtual finish times: the call whose program would be finished first, were all programs served at once.

Sources: self-clocked fair queueing (Golestani, 1994), whose clock is the tag of what is in service; Autellix orders the
calls of programs by the service that they attained, Justitia agents by virtual finish times of predicted costs (both
recalled; that the bound it claims is false, and what is true, is in `fairsched.verify.proofs.orders.virtual_finish`).

Rule.  A program is a client: give each one a client of its own (`with_account`).  A call costs its prompt and twice its
predicted output.  *Attained*: a call's tag is its cost beyond the program's last tag, or beyond the clock if that is
later; so a program that has been served much comes after others.  *Predicted*: the first call sets the tag of all, by
its cost times the calls that the caller says follow one after the other (`Request.downstream_levels`), until the clock
has passed it.  The least tag goes first, and the clock is at the beginning of the last call that was let in.  Where no
request waits, all tags are forgotten.

As an order it promises nothing, and a gate does: under the hierarchical gate programs share by deficits, and the tags
decide only among those in credit.  Tags count in units of `UNIT` cost units from when the queue was last empty; beyond
what a rank can hold (268 million) they are equal, and the order is that of arrival.
"""

from typing import Any, ClassVar, Literal

import attrs
from immutables import Map
from msgspec.structs import replace

from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.pricing import COMMON
from fairsched.model.request import TOKENS_MAX, Request
from fairsched.policies.orders.base import Order, QueuedRequest, QueueExtension
from fairsched.policies.orders.predicted_output import predicted
from fairsched.policies.validators import one_of

UNIT = 64
"""Cost units of a rank."""


def cost(request: Request) -> int:
    """Return what a call is taken to cost."""
    return COMMON.input * request.prompt.tokens + COMMON.output * predicted(request)


@attrs.frozen
class VirtualFinish(Order):
    """The least virtual finish time first."""

    name: ClassVar[str] = "virtual-finish"

    service: Literal["attained", "predicted"] = attrs.field(
        default="attained", validator=one_of("attained", "predicted")
    )
    """Whether a program's tag grows with each of its calls, or is set by its first for all."""

    def rank(self, request: Request, cached_tokens: int) -> int:
        """Rank it as if it were the first to wait."""
        return -min(cost(request) // UNIT, TOKENS_MAX)

    def rank_queued(self, queued: QueuedRequest, cached_tokens: int) -> int:
        return -min(queued.tag // UNIT, TOKENS_MAX)

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (VirtualClock(), *super().extensions())


class VirtualClock(QueueExtension[VirtualFinish], frozen=True, gc=False):
    """The virtual time, the last tag of each program that has one, and how many requests wait."""

    now: int = 0
    tags: Map[int, int] = Map()
    waiting: int = 0

    def joined(
        self, order: VirtualFinish, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["VirtualClock", QueuedRequest]:
        if queued.preemptions:
            # What was taken out keeps the tag that it came with.
            return replace(self, waiting=self.waiting + 1), queued
        request = queued.request
        last, own = max(self.tags.get(request.client, 0), self.now), cost(request)
        if order.service == "attained":
            tag = last + own
        else:
            tag = last if last > self.now else last + own * (request.downstream_levels + 1)
        clock = VirtualClock(self.now, self.tags.set(request.client, tag), self.waiting + 1)
        return clock, replace(queued, tag=tag)

    def left(
        self, order: VirtualFinish, queued: QueuedRequest, score: int, group: int, admitted: bool
    ) -> "VirtualClock":
        if self.waiting == 1:
            return VirtualClock()
        now = max(self.now, queued.tag - cost(queued.request)) if admitted else self.now
        return VirtualClock(now, self.tags, self.waiting - 1)

    def check(self, order: VirtualFinish, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        assert self.waiting == len(waiting)
        # No call waits with a later tag than its program's, and where none waits there are no tags.
        assert waiting or not self.tags
        for queued, _, _ in waiting:
            assert queued.preemptions or queued.tag <= self.tags[queued.request.client]
