"""Orders that rank waiting requests together: in each decision (`RanksQueue`), or from time to time (`Regroups`).

An order of one fixed integer a request is kept in a sorted sequence (`policies.local.queue`).  One whose integers all
change with every arrival would have to sort everything again.  Instead it keeps an index beside the queue
(`QueueIndex`), which events keep up to date, and each decision makes a `Ranking` of it, which finds the next request of
a group without a look at all that wait.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from fairsched.model.algebra import Ints
from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import Request
from fairsched.policies.orders.base import Ability, Order, QueuedRequest, QueueExtension

Stop = tuple[int, int]
"""Where in the cache a prompt stops matching: the node, and after how many blocks."""


class Ranking:
    """One decision's order of the waiting requests.  Mutable, and never outlives the decision.

    `heads[g]` is the best of group g as a score (the larger the better), NO_SCORE where none waits.  Scores are
    compared with each other and nothing else, and those of groups that were not looked at are the least.
    """

    heads: Ints

    @abstractmethod
    def best(self, group: int) -> int:
        """Age of the best of a group that is not empty."""

    @abstractmethod
    def leave(self, index: Any, age: int, group: int) -> None:
        """A member of the group was admitted, and the index is another one since."""

    def found(self, group: int) -> bool:
        """Whether the score of this group is known, so that a choice of it stands; if not, more scores are known now,
        and the choice is to be made again."""
        return True


class QueueIndex(QueueExtension[Ability], frozen=True, gc=False):
    """What an order keeps in order to rank the queue in each decision; it follows from the requests that wait."""

    derived: ClassVar[bool] = True

    @abstractmethod
    def ranking(self, order: Ability, groups: int, kv_capacity_tokens: int) -> Ranking:
        """The order in which a decision takes what waits now, in so many groups."""

    def recached(
        self, moved: Sequence[tuple[QueuedRequest, int, Stop]], split: tuple[int, int] | None, cache: PrefixCache
    ) -> "QueueIndex[Ability]":
        """The index after the cache changed: these requests, each with its group, stop matching elsewhere now, and
        `split` is (upper, lower) where a node was cut."""
        return self

    def refreshed(self) -> "QueueIndex[Ability]":
        """The index after the admissions of a decision."""
        return self


class RanksQueue(Order):
    """An order by which each decision ranks the waiting requests anew: ranks depend on how many wait, or on where."""

    index: ClassVar[type[QueueIndex[Any]]]

    def rank(self, request: Request, cached_tokens: int) -> int:
        """Nothing: where a queue is kept in order without a decision, the oldest request is first."""
        return 0

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (*super().extensions(), self.index())


class Regroups(Order):
    """An order that groups waiting requests that share a prefix, from time to time, and ranks groups.

    It happens before the first admission of a decision, and only if the order says that it is due.  A decision that
    admits no request groups none, so no decision of a stretch of decode steps can change by it.
    """

    @abstractmethod
    def regroups(self, waiting: int, joined: int) -> bool:
        """Whether `waiting` requests are to be grouped now, `joined` requests having come since.  O(1)."""

    @abstractmethod
    def groups_together(self, requests: Sequence[Request]) -> tuple[Ints, Ints] | None:
        """The place of each request's group, and how many tokens that shares; None: no groups are to be made."""

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (*super().extensions(), Grouped())


class Grouped(QueueExtension[Regroups], frozen=True, gc=False):
    """How many requests had come when those that wait were last grouped, and how many were admitted since one joined.

    An admission must not make it time to group: the next one of the same decision would find other groups.  So those
    that were `admitted` count as if they waited until another request joins.
    """

    grouped: int = 0
    admitted: int = 0

    def joined(
        self, order: Regroups, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["Grouped", QueuedRequest]:
        return (Grouped(self.grouped) if self.admitted else self), queued

    def left(self, order: Regroups, queued: QueuedRequest, score: int, group: int, admitted: bool) -> "Grouped":
        return Grouped(self.grouped, self.admitted + 1) if admitted else self
