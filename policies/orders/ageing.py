"""Ageing: the highest priority first, where waiting raises priority.

Source: folklore of operating systems (Silberschatz et al.: "gradually increasing the priority of processes that wait");
the static key, the units and the bounds are this library's.  Priorities are the callers' own labels
(`Request.priority`, the larger first).

Rule, with a boost of b levels a second: at any time t the request with the largest

    priority + b (t - arrival),   which is the one with the least   b * arrival - priority

goes next; of equals the older.  The clock is not in it, so an order once found stands, and decode steps may be leapt
over.  With b = 0 it is strict priority, under which a low one may wait for ever; with b -> infinity it is first come
first served.

Theorems: P-AGE-1 to P-AGE-3 below.  Unlike LARRY's they need no bound of the queue: what a request may lose to others
is fixed when it comes, by the requests that are there and by how many levels a request may be above it.
Under a gate (`ageing+deficit`) priorities count within a client and change nothing of its claims against others.
"""

from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, ClassVar

import attrs

from fairsched.model.request import TOKENS_MAX, Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.orders.abilities import Key, RanksByKey
from fairsched.policies.orders.base import QueuedRequest
from fairsched.policies.validators import not_negative

MILLI_US_PER_S = 1_000_000_000
PRIORITY_MAX = 2**31
"""Priorities beyond this count as this."""

SOURCE = "priority with ageing, with our units; this library"
P_AGE_1 = Theorem(
    "P-AGE-1",
    "the static key orders requests as priority + boost (now - arrival) does, at any time",
    SOURCE,
)
P_AGE_2 = Theorem(
    "P-AGE-2",
    "no request that came more than D / boost after another, and whose priority is at most D higher, is before it",
    SOURCE,
    bound="D / boost",
)
P_AGE_3 = Theorem(
    "P-AGE-3",
    "at most n + sigma + rho D / boost requests of its group are let in before one that fits an empty worker, where n "
    "waited when it came, none is more than D above it, and at most sigma + rho t come in any time t",
    SOURCE,
    bound="n + sigma + rho D / boost",
    scope=Scope.TESTED,
    rests_on=("P-AGE-2",),
)
THEOREMS = (P_AGE_1, P_AGE_2, P_AGE_3)


def key(boost: Any, level: Any, wait: Any, priority: Any) -> Any:
    """Return the key of a request that came `wait` after the oldest, and of columns of such: the least goes first."""
    return boost * wait - level * priority


@lru_cache(maxsize=64)
def key_factors(boost_milli: int) -> tuple[int, int]:
    """Return what a microsecond of arrival and a level of priority count in a key, as integers without a common
    divisor.

    >>> key_factors(1_000)
    (1, 1000000)
    """
    return Fraction(boost_milli, MILLI_US_PER_S).as_integer_ratio()


@attrs.frozen
class AgeingOrder(RanksByKey):
    """The largest priority + boost * wait first."""

    name: ClassVar[str] = "ageing"

    boost_milli: int = attrs.field(default=1_000, validator=not_negative)
    """Thousandths of a priority level by which a second of waiting raises a request."""

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """Return ageing's own; P-AGE-2 and P-AGE-3 need a boost."""
        return THEOREMS if self.boost_milli else (P_AGE_1,)

    def rank(self, request: Request, cached_tokens: int) -> int:
        """Return what is fixed of the rank, where a queue is kept in order without a decision: the priority."""
        return max(-TOKENS_MAX, min(request.priority, TOKENS_MAX))

    def number(self, queued: QueuedRequest) -> int:
        """Return the priority, within what is told apart, with the sign turned."""
        return -max(-PRIORITY_MAX, min(queued.request.priority, PRIORITY_MAX))

    def keys(self, waiting: int, kv_capacity_tokens: int) -> Key:
        """Return the keys with waits rounded to microseconds."""
        return partial(_key_of_number, *key_factors(self.boost_milli))


def _key_of_number(boost: int, level: int, wait: Any, number: Any) -> Any:
    return key(boost, level, wait, -number)
