"""Orders by deadline: the earliest first, the least slack first, and the least slack and most tokens for the work.

Sources: Liu and Layland (1973) for the earliest deadline, Mok (1983) for the least slack (least laxity), JITServe
(arXiv 2504.20068) for just in time, of which the aims are taken and the rule is ours.  Deadlines are
the callers' own targets (`Request.slo`): a request that is to have its first token within t of its arrival has a
deadline then, and one that is to end within t has another.  The nearest counts.  A request without such a target goes
after all that have one, in order of arrival; a target for the time between tokens says nothing of when to begin.

Slack at a time is what is left until the deadline, less what the request still has to do.  Time shortens the slack of
all waiting requests alike, so the least is that of the least deadline - work: the clock is not in it, a decision stands
until a request comes or goes, and decode steps may be leapt over.

A key is a time in nanoseconds, as exact as the request's own: 63 bits are 292 years, where a rank beside an age in one
score (`score_of`) has 23 bits.  So these orders rank the queue in each decision (`RanksByKey`), by a number that is
found once, when the request joins.

Just in time.  JITServe gives each request just the bandwidth that its target needs, as late as that allows, and prefers
requests that yield many tokens in time for it.  Here slack says how late a request may begin, and its tokens for each
unit of work, told apart by factors of two, what it yields: with twice the tokens it counts as due `window_ns` earlier.
It is the logarithm of the index of apparent tardiness (Vepsalainen and Morton, 1987), in which time is a term, not a
factor, so that the clock cancels here too.  A request that is late is not given up, and bandwidth is not shared out.

None of them promises anything: under overload the earliest deadline goes to requests that are late already.  A late
request is not passed over, since what is late now depends on the clock.

Agent fair share.  Source: SAGA (arXiv 2605.00528), as its artifact says it: a tenant's urgency is the work that is left
of its tasks over the time until its first deadline, which is 1.5 times its expected time after a task came, and
capacity is shared by urgency, anew every 100 ms.  That determines urgency and deadlines; here the client with the most
goes first, its work is that of its calls that wait, each with those that the caller says follow one after the other
(`Request.downstream_levels`), a target for the end stands for the deadline, and the clock is that of the last call that
came or ended.  Who is late goes before who is not, the one with more work first.  Sharing within a worker, weights and
taking seats from running calls (after 500 ms, for twice the urgency) are left out.

Under a gate (`edf+deficit`) deadlines count within a client: no client gains service by asking for more haste.  What
that costs a request that is due first of all, the gate says (D-late).
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Self

import attrs
from immutables import Map
from msgspec.structs import replace

from fairsched.model.prefix_cache import PrefixCache, SortedTuple
from fairsched.model.request import Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.orders.abilities import OWN_MAX, RanksByKey
from fairsched.policies.orders.base import OldestOfEach, QueuedRequest, QueueExtension
from fairsched.policies.orders.predicted_output import PredictedTimes, predicted_left
from fairsched.policies.validators import not_negative

P_DL_1 = Theorem(
    "P-DL-1",
    "behind any gate a request is let in only before those of its client that wait and are due later, or as soon and "
    "came later; without a gate, before all that are",
    "this library; in drawn worlds",
    scope=Scope.TESTED,
)
P_AFS_1 = Theorem(
    "P-AFS-1",
    "from its first deadline on a client goes before every client that is not late; of two that are not late, of the "
    "same deadline, the one with more work goes first",
    "SAGA, its urgency; this library",
)
NS_PER_S = 1_000_000_000
NO_DEADLINE_NS = OWN_MAX
"""The deadline of a request that has none, and the latest there is."""


def deadlines(request: Request, prompt_ns: int, output_ns: int) -> Iterator[int]:
    """Yield the latest times to begin, one for each target: of `prompt_ns` of work until the first token, and
    `output_ns` from then on.

    >>> from fairsched.model.request import Prompt, Slo
    >>> list(deadlines(Request(0, 0, 100, Prompt(8), 4, slo=Slo(ttft_ns=50, latency_ns=200)), 20, 60))
    [130, 220]
    """
    slo = request.slo
    if slo is None:
        return
    if slo.ttft_ns is not None:
        yield request.arrival_ns + slo.ttft_ns - prompt_ns
    if slo.latency_ns is not None:
        yield request.arrival_ns + slo.latency_ns - prompt_ns - output_ns


def nearest(request: Request, prompt_ns: int = 0, output_ns: int = 0) -> int:
    """Return the nearest of a request's deadlines, less the work that is to be done before it."""
    found = min(deadlines(request, prompt_ns, output_ns), default=NO_DEADLINE_NS)
    return max(-OWN_MAX, min(found, NO_DEADLINE_NS))


@attrs.frozen
class EarliestDeadline(RanksByKey):
    """The nearest deadline first; of equals, and of those without one, the oldest."""

    name: ClassVar[str] = "earliest-deadline"

    def number(self, queued: QueuedRequest) -> int:
        """Return when the request is due, in nanoseconds."""
        return nearest(queued.request)

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        return (P_DL_1,)


@attrs.frozen
class LeastSlack(PredictedTimes, EarliestDeadline):
    """The least slack first: the nearest deadline less the predicted work before it."""

    name: ClassVar[str] = "least-slack"

    def number(self, queued: QueuedRequest) -> int:
        """Return the latest time to begin, in nanoseconds."""
        return nearest(queued.request, *self.work_ns(queued))


@attrs.frozen
class JustInTime(LeastSlack):
    """The least slack first, where more tokens for the work make up for slack."""

    name: ClassVar[str] = "just-in-time"

    window_ns: int = attrs.field(default=1_000_000_000, validator=not_negative)
    """By how much earlier a request counts as due that yields twice the tokens for the same work, in nanoseconds."""

    def number(self, queued: QueuedRequest) -> int:
        """Return the latest time to begin, in nanoseconds, less the window for each factor of two in what it yields."""
        begins = super().number(queued)
        if begins == NO_DEADLINE_NS:
            return begins
        tokens = queued.context_tokens + predicted_left(queued)
        return max(-OWN_MAX, begins - self.window_ns * yield_class(tokens, sum(self.work_ns(queued))))


def yield_class(tokens: int, work_ns: int) -> int:
    """Return the tokens for each second of work, as the whole power of two below: those alike are of one class.

    >>> yield_class(400, 8_000_000_000), yield_class(800, 8_000_000_000)
    (5, 6)
    """
    return (tokens * NS_PER_S // max(work_ns, 1)).bit_length() - 1


@attrs.frozen
class AgentFairShare(PredictedTimes):
    """The client with the most urgent work first; of a client the oldest call."""

    name: ClassVar[str] = "agent-fair-share"

    def rank(self, request: Request, cached_tokens: int) -> int:
        """Return 0: requests of a client go in order of arrival, and clients are compared when one is to be served."""
        return 0

    def owed_ns(self, queued: QueuedRequest) -> int:
        """Return how long a call and those that follow it are predicted to take, 1 at least."""
        return max(sum(self.work_ns(queued)), 1) * (queued.request.downstream_levels + 1)

    def due_ns(self, queued: QueuedRequest) -> int:
        """Return when they are to end: as the call's target says, or 1.5 times that after it came."""
        target = nearest(queued.request)
        return target if target < NO_DEADLINE_NS else queued.request.arrival_ns + 3 * self.owed_ns(queued) // 2

    def goes_before(self, work: Any, left: Any, other_work: Any, other_left: Any) -> Any:
        """Return whether a client with so much work, and so long until its first deadline, goes before another."""
        if left <= 0:
            return other_left > 0 or work > other_work
        return work * other_left > other_work * left

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (UrgentWork(), *super().extensions())

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        return (P_AFS_1,)


class UrgentWork(OldestOfEach[AgentFairShare], frozen=True, gc=False):
    """Of each client the work of its calls that wait, and when they are due, with their ages; and the time of the last
    call that came or ended."""

    work: Map[int, int] = Map()
    due: Map[int, SortedTuple[tuple[int, int]]] = Map()
    now_ns: int = 0

    def joined(
        self, order: AgentFairShare, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple[Self, QueuedRequest]:
        kept, queued = super().joined(order, queued, group, cache)
        client, work = queued.request.client, self.work.get(queued.request.client, 0) + order.owed_ns(queued)
        due: SortedTuple[tuple[int, int]] = self.due.get(client, SortedTuple())
        due = due.add((order.due_ns(queued), queued.age))
        now_ns = max(self.now_ns, queued.request.arrival_ns)
        return replace(kept, work=self.work.set(client, work), due=self.due.set(client, due), now_ns=now_ns), queued

    def left(self, order: AgentFairShare, queued: QueuedRequest, score: int, group: int, admitted: bool) -> Self:
        kept, client = super().left(order, queued, score, group, admitted), queued.request.client
        if client not in kept.waiting:
            return replace(kept, work=self.work.delete(client), due=self.due.delete(client))
        work, due = (
            self.work[client] - order.owed_ns(queued),
            self.due[client].remove((order.due_ns(queued), queued.age)),
        )
        return replace(kept, work=self.work.set(client, work), due=self.due.set(client, due))

    def finished(self, order: AgentFairShare, request: Request, output_tokens: int, time_ns: int) -> Self:
        return replace(self, now_ns=max(self.now_ns, time_ns))

    def first(self, order: AgentFairShare, oldest: list[QueuedRequest]) -> QueuedRequest:
        """Return the call of the client whose work is most urgent; of equals the oldest."""
        oldest = sorted(oldest, key=lambda queued: queued.age)
        best = oldest[0]
        for queued in oldest[1:]:
            if order.goes_before(*self._urgency(queued), *self._urgency(best)):
                best = queued
        return best

    def _urgency(self, queued: QueuedRequest) -> tuple[int, int]:
        client = queued.request.client
        return self.work[client], self.due[client].first()[0] - self.now_ns

    def check(self, order: AgentFairShare, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        super().check(order, waiting, cache)
        work: dict[int, int] = {}
        due: dict[int, list[tuple[int, int]]] = {}
        for queued, _, _ in waiting:
            client = queued.request.client
            work[client] = work.get(client, 0) + order.owed_ns(queued)
            due.setdefault(client, []).append((order.due_ns(queued), queued.age))
        # What waits of a client is its work, and no other is kept.
        assert dict(self.work) == work
        assert {client: list(kept) for client, kept in self.due.items()} == {
            client: sorted(each) for client, each in due.items()
        }
