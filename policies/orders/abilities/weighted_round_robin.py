"""Priority groups take turns: the highest group first, group g at most g times, then the next lower one that waits.

Source: Preble ("Preble: Efficient Distributed Prompt Scheduling for LLM Serving", ICLR'25), section on the local
scheduler: requests are grouped by the share of their prompt that is cached, and a batch takes from each group in
proportion to its number.  The text gives one example (ten groups, 55 slots) and no rule for smaller batches, for groups
that are empty, or for requests whose share changes.  Ours: turns outlast batches, so that shares are exact whatever a
batch holds; a group that is empty, or becomes so, gives up the rest of its turn, and the turn goes to the next lower
group that waits.  (Giving it the rest as picks of its own would serve group 1 in 45 of 55 picks beside group 10.)

A *round* goes once from the highest group to the lowest and lets in at most N = P(P+1)/2 requests.  As long as r waits
in group g, each round lets in g of its group and at most N - g of all others, from wherever the round was when r came.
So the k-th request of group g is let in after at most ceil(k/g) (N - g) + k picks, itself included, which is at most
ceil(k/g) N, whatever else comes.  k counts those of its group before it: older ones that come into the group later
(they rise, or were preempted) count too.  A request that rises is counted anew from there, at most P - 1 times.

State: two integers a queue.  A queue is a client's under a gate, and that of all clients without one.
"""

from typing import Any, ClassVar

import msgspec
from immutables import Map

from fairsched.model.algebra import EXACT, NUMPY, Algebra, ExactVector, Mask, Point, Scalar, Vector
from fairsched.model.prefix_cache import PrefixCache, SortedTuple
from fairsched.model.theorem import Assumption, Theorem
from fairsched.policies.orders.base import AGE_BITS, Entries, Numbers, Order, QueuedRequest, QueueExtension

# --- theorems, proved in fairsched.verify.proofs.orders.weighted_round_robin ------------------------------------------

TURN_RESPECTED = Assumption("TurnRespected", "Every admission is of the priority group whose turn it is.")
GROUPS_RISE = Assumption("GroupsRise", "A request that waits does not come into a lower priority group.")
QUOTA_POSITIVE = Assumption("QuotaPositive", "Every group has a quota of at least 1.")

PG_SERVES = Theorem(
    "PG-serves",
    "as long as requests wait, it is the turn of a group in which one waits",
    "this library; found necessary by mutants",
)
PG_ROUND = Theorem(
    "PG-round",
    "a round lets in at most N requests, and at most g of group g",
    "this library; for any number of groups with any distinct quotas, of sum N",
    (TURN_RESPECTED, QUOTA_POSITIVE),
    bound="N",
)
PG_TURNS = Theorem(
    "PG-turns",
    "while r waits in group g, and R turns of g have ended since it came (one more, if it did not come in one): others "
    "were let in at most R (N - g) times, and its own group at least (R - 1) g times",
    "this library; for any number of groups with any distinct quotas, of sum N",
    (TURN_RESPECTED, GROUPS_RISE, QUOTA_POSITIVE),
    bound="R (N - g)",
    rests_on=("PG-round",),
)
PG_GROUPS = Theorem(
    "PG-groups",
    "the quotas 1 to P of groups 1 to P have the sum N = P(P+1)/2",
    "this library",
    bound="P(P+1)/2",
)
PG_1 = Theorem(
    "PG-1",
    "the k-th request of group g is let in after at most ceil(k/g) (N - g) + k <= ceil(k/g) N picks, N = P(P+1)/2",
    "this library; Preble (ICLR'25) claims that its groups do not starve, without a bound",
    bound="ceil(k/g) (N - g) + k",
    rests_on=("PG-turns", "PG-groups"),
)
THEOREMS = (PG_SERVES, PG_ROUND, PG_TURNS, PG_GROUPS, PG_1)


def round_picks(groups: int) -> int:
    """N: the most requests that a round lets in."""
    return groups * (groups + 1) // 2


def turns_max(position: int, quota: int) -> int:
    """ceil(k/g): the turns of its group that the request waits at most which is the `position`-th of it (from 1)."""
    return -(-position // quota)


def picks_max(position: int, turns: int, quota: int, round_max: int) -> int:
    """PG-1: after so many picks that request is in, and is the last of them, if it waits `turns` turns.

    `round_max` is N.
    """
    return turns * (round_max - quota) + position


# --- kernel -----------------------------------------------------------------------------------------------------------
# Vectors over the priority groups of a queue: quota, how many picks a turn has (g for group g), and queued, whether
# one waits.  Scalars: in what is left of the round, groups of quota up to `turn` have their turn, and that of
# quota `turn` has had `taken` picks of it.


def chosen(o: Algebra, quota: Vector, queued: Mask, turn: Scalar) -> Point:
    """Return the highest group that waits among those left in the round, or of all in a new round.

    A group without a quota has no turn: it goes only where no other group waits.
    """
    left = queued & (quota > 0) & (quota <= turn)
    return o.argmax(quota, queued & (left | o.none(left)))


def count(o: Algebra, turn: Scalar, taken: Scalar, quota: Scalar) -> Scalar:
    """Return how many picks the group of this quota has had in its turn, after one more."""
    return o.where((quota <= turn) & (quota >= turn), taken + 1, 1)


def turn_after(o: Algebra, quota: Scalar, counted: Scalar) -> Scalar:
    """Return whose turn it is after that pick: the next lower groups' if the turn is over."""
    return o.where(counted >= quota, quota - 1, quota)


def taken_after(o: Algebra, quota: Scalar, counted: Scalar) -> Scalar:
    """Return how many picks the group at turn has had then."""
    return o.where(counted >= quota, 0, counted)


# --- ability of an order, and what it keeps beside the queue ----------------------------------------------------------


class TakesTurns(Order):
    """An order whose ranks are the numbers of priority groups, which take turns."""

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (*super().extensions(), Turns())


class Turn(msgspec.Struct, frozen=True, gc=False):
    """Where the round is: groups up to `turn` are left in it, and group `turn` has had `taken` picks."""

    turn: int = 0
    taken: int = 0


ROUND_OVER = Turn()
"""No group is left: the next pick begins a round."""


def picked(at: Turn, quota: int) -> Turn:
    """Return where the round is after a request of the group of this quota was let in.  O(1)."""
    counted = count(NUMPY, at.turn, at.taken, quota)
    return Turn(turn_after(NUMPY, quota, counted), taken_after(NUMPY, quota, counted))


class Turns(QueueExtension[TakesTurns], frozen=True, gc=False):
    """Where the round of each queue is; it outlasts the queue."""

    picks_head: ClassVar[bool] = True

    turns: Map[int, Turn] = Map()

    def left(self, order: TakesTurns, queued: QueuedRequest, score: int, group: int, admitted: bool) -> "Turns":
        if not admitted:
            return self
        return Turns(self.turns.set(group, picked(self.turns.get(group, ROUND_OVER), score >> AGE_BITS)))

    def head(
        self, order: TakesTurns, group: int, queue: SortedTuple[int], entries: Entries, ids: Numbers, scores: Numbers
    ) -> int:
        """Return the oldest of the priority group that `chosen` gives, found by its score (`check` compares).  O(log
        n)."""
        score = queue.below((self.turns.get(group, ROUND_OVER).turn + 1) << AGE_BITS)
        return queue.last() if score is None or score < 1 << AGE_BITS else score

    def check(self, order: TakesTurns, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        queues: dict[int, list[int]] = {}
        for _, group, score in waiting:
            queues.setdefault(group, []).append(score)
        for group, scores in queues.items():
            # The head is the best score of the priority group that the kernel chooses.
            quota = ExactVector(sorted({score >> AGE_BITS for score in scores}))
            turn = self.turns.get(group, ROUND_OVER).turn
            at_turn = quota[chosen(EXACT, quota, ExactVector([True] * len(quota)), turn)]
            queue = SortedTuple.from_sorted(sorted(scores))
            head = self.head(order, group, queue, Map(), Map(), Map())
            assert head == max(score for score in scores if score >> AGE_BITS == at_turn)
