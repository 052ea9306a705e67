"""A bypass budget: how many younger requests of a group may be let in before its oldest one.

A gate serves clients in time, and an order may still starve one request of a served client (counterexample CE5).  With
a budget b the group's head is its best request until the oldest has been passed over b times, then the oldest until it
is let in.  A group is a client under a gate, all clients without one.

Counting costs one integer a group and one a request.  A request that comes takes a *position*: how many have left the
group's queue so far, and how many wait in it.  Were none passed over, just as many would have left when it becomes the
oldest; whatever left beyond that passed it over.  Who left for good without being let in counts too, since telling that
apart would cost an index of its own: the budget is then used up earlier, and no wait becomes longer.  A preempted
request comes back to its old place.

D-request with D-A.2 or V-4.11 gives a time, by argument and not in the solver.  Let X bound how long a client with a
ready head waits for one admission (D-A.2-time with the deepest debt D = U - 1; V-4.11-time).  Each admission begins
such a wait anew, so a request waits at most X (b + older + back + 1), the last 1 for its own admission.  Under an open
gate there is no X, and the bound is one of admissions only.  A due head is not skipped: while its prefix is being
computed, or it does not fit, or a cap holds it, its group waits with it.
"""

from operator import lt
from typing import Any, ClassVar

import attrs
import msgspec
from immutables import Map

from fairsched.model.algebra import NUMPY, Algebra, Scalar
from fairsched.model.prefix_cache import PrefixCache, SortedTuple
from fairsched.model.theorem import Assumption, Theorem
from fairsched.policies.orders.base import NO_POSITION, Entries, Numbers, Order, QueuedRequest, QueueExtension
from fairsched.policies.validators import not_negative

# --- theorems, proved in fairsched.verify.proofs.orders.bypass --------------------------------------------------------

DUE_RESPECTED = Assumption(
    "DueRespected", "While a group's oldest request has used up the bypass budget, no other of the group is admitted."
)
D_HEAD = Theorem(
    "D-head",
    "a group's head is the oldest of its requests if that was passed over b times, and its best one if not",
    "this library: the rule itself, found necessary by mutants",
)
D_PASSED = Theorem(
    "D-passed",
    "what counts as passing r over is exactly how many have left the queue since r came, less those who waited then",
    "this library: the budget is not used up too early, found necessary by a mutant",
    bound="gone - ahead",
)
D_LINE = Theorem(
    "D-line",
    "of two requests that came to a group, the places are at least as far apart as requests came from the older one on "
    "before the younger one, however many were let in, gave up or came back",
    "this library: what makes one integer a request enough to count with",
)
D_OLDER = Theorem(
    "D-older",
    "a count that begins with those waiting when r comes, and goes up and down with those before r that return or go, "
    "is the number of those that wait before r",
    "this library: D-request counts so",
    bound="older",
)
D_REQUEST = Theorem(
    "D-request",
    "with a bypass budget b, at most b + older + back requests of its group are let in before r, where `older` are "
    "those that waited when r came (or came back) and `back` counts older ones that came back preempted since",
    "this library",
    (DUE_RESPECTED,),
    bound="b + older + back",
    rests_on=("D-line", "D-older"),
)
THEOREMS = (D_HEAD, D_PASSED, D_LINE, D_OLDER, D_REQUEST)

# --- kernel -----------------------------------------------------------------------------------------------------------
# Scalars of one group: `left` counts those that left its queue, `waiting` those that wait in it.


def place(o: Algebra, left: Scalar, waiting: Scalar) -> Scalar:
    """The position of a request that comes now."""
    return left + waiting


def gone(o: Algebra, left: Scalar) -> Scalar:
    """A request leaves the queue."""
    return left + 1


def due(o: Algebra, left: Scalar, oldest: Scalar, budget: Scalar) -> Scalar:
    """Whether the oldest, whose place this is, has been passed over so often that it is next."""
    return left - oldest >= budget


def head(o: Algebra, best: Scalar, oldest: Scalar, is_due: Scalar) -> Scalar:
    """The score that the group offers: of its best request, or of its oldest."""
    return o.where(is_due, oldest, best)


# --- ability of an order, and what it keeps beside the queue ----------------------------------------------------------


class LimitsBypass(Order):
    """An order with a bypass budget: a group's oldest request goes first once so many younger ones were let in."""

    bypass_budget: int | None = None

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        kept = super().extensions()
        return kept if self.bypass_budget is None else (*kept, BypassLines())

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """A bound of each request's wait, with a budget."""
        return super().theorems if self.bypass_budget is None else THEOREMS


def bypass_budget_field() -> int | None:
    """The field of an order that takes a bypass budget: a whole number from 0, or None for none."""
    field: int | None = attrs.field(
        default=None,
        validator=attrs.validators.optional(not_negative),
        metadata={"meaning": "How often the oldest request of a client may be passed over before it goes first."},
    )
    return field


class Line(msgspec.Struct, frozen=True):
    """The ages of the requests that wait in a group, and how many have left its queue."""

    ages: SortedTuple[int] = SortedTuple()
    left: int = 0


NO_LINE = Line()
"""The line of a group in which no request has waited."""


class BypassLines(QueueExtension[LimitsBypass], frozen=True, gc=False):
    """The line of each group; lines outlast the queues."""

    picks_head: ClassVar[bool] = True

    lines: Map[int, Line] = Map()

    def joined(
        self, order: LimitsBypass, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["BypassLines", QueuedRequest]:
        line = self.lines.get(group, NO_LINE)
        if queued.position == NO_POSITION:
            queued = msgspec.structs.replace(queued, position=place(NUMPY, line.left, line.ages.size))
        return BypassLines(self.lines.set(group, Line(line.ages.add(queued.age), line.left))), queued

    def left(self, order: LimitsBypass, queued: QueuedRequest, score: int, group: int, admitted: bool) -> "BypassLines":
        line = self.lines[group]
        return BypassLines(self.lines.set(group, Line(line.ages.remove(queued.age), gone(NUMPY, line.left))))

    def head(
        self, order: LimitsBypass, group: int, queue: SortedTuple[int], entries: Entries, ids: Numbers, scores: Numbers
    ) -> int:
        oldest = ids[self.lines[group].ages.first()]
        is_due = self._due(order, group, entries[oldest])
        return int(head(NUMPY, queue.last(), scores[oldest], is_due))

    def due(self, order: LimitsBypass, group: int, entries: Entries, ids: Numbers) -> bool:
        """Whether the oldest request of a group that is not empty has used up the budget.  O(1)."""
        return self._due(order, group, entries[ids[self.lines[group].ages.first()]])

    def _due(self, order: LimitsBypass, group: int, oldest: QueuedRequest) -> bool:
        budget = order.bypass_budget
        return budget is not None and bool(due(NUMPY, self.lines[group].left, oldest.position, budget))

    def check(self, order: LimitsBypass, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        groups: dict[int, list[QueuedRequest]] = {}
        scored: dict[int, list[int]] = {}
        for queued, group, score in waiting:
            groups.setdefault(group, []).append(queued)
            scored.setdefault(group, []).append(score)
        entries = Map({queued.request.id: queued for queued, _, _ in waiting})
        ids = Map({queued.age: queued.request.id for queued, _, _ in waiting})
        scores = Map({queued.request.id: score for queued, _, score in waiting})
        # Each line has the ages of the requests that wait.
        assert {g: list(line.ages) for g, line in self.lines.items() if line.ages.size} == {
            g: [queued.age for queued in group] for g, group in groups.items()
        }
        for g, group_queue in groups.items():
            line = self.lines[g]
            positions = [queued.position for queued in group_queue]
            # Positions ascend with age, none lies before that of the next request that comes, and none was passed
            # over less than not at all.
            assert all(map(lt, positions, positions[1:]))
            assert positions[0] >= 0
            assert positions[-1] < line.left + line.ages.size
            assert all(line.left - position + older >= 0 for older, position in enumerate(positions))
            # The head is the oldest if that was passed over so often, and the best one if not.
            is_due = order.bypass_budget is not None and line.left - positions[0] >= order.bypass_budget
            queue = SortedTuple.from_sorted(sorted(scored[g]))
            assert self.head(order, g, queue, entries, ids, scores) == (scored[g][0] if is_due else queue.last())
