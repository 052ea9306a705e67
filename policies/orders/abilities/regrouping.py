"""Orders that group waiting requests which share a prefix, from time to time."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from fairsched.model.algebra import Ints
from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import Request
from fairsched.policies.orders.base import Order, QueuedRequest, QueueExtension


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
