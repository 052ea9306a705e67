"""LARRY: small prompts first while the queue is long, the oldest first while it is short.

Paper: "LARRY" (engine-level queue order).  Its equation 1 reads `queue_len * memory + alpha * wait`, in decreasing
order, which puts large prompts first; the text means the opposite, so the first term is subtracted here, and
`LARRYPrinted` keeps the equation as printed.  Neither unit is stated and both decide everything: here memory is in
blocks of 16 tokens (or tokens, or shares of the worker's KV capacity) and waits are in seconds, so alpha is in blocks a
second.  The paper's alphas (1, 500, 1,000) make a difference in blocks; in shares of the capacity all of them are
arrival order.

Rule, with q requests waiting (those preempted, and the one that is ranked, included), each of which needs `m` of
memory for its prompt and what it had generated and arrived at `a`:

    the least  alpha * a + q * m  first

Time enters by q only: as long as no request comes or goes the order stands (P-LAR-5), so decode steps may be leapt
over. q -> 0 is first come first served, q -> infinity smallest prompt first.  Keys are computed once a decision, with
the q of its beginning.  The first that does not fit ends the decision's admissions, as in every composition; with
skipping, a large prompt would never be served.

Theorems: P-LAR-1 to P-LAR-5 below.  Without a bound of the queue there is none of the wait: with more work coming than
is served, a large prompt waits for ever once alpha is small (docs/policies/queues/larry.md).
"""

from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal

import attrs

from fairsched.model.request import Request
from fairsched.model.theorem import Assumption, Scope, Theorem
from fairsched.policies.orders.abilities import Key, RanksByKey
from fairsched.policies.orders.base import QueuedRequest
from fairsched.policies.validators import not_negative, one_of

MemoryUnit = Literal["capacity", "tokens", "blocks"]
BLOCK_TOKENS = 16
MILLI_US_PER_S = 1_000_000_000

QUEUE_BOUNDED = Assumption("QueueBounded", "At every decision at most Q requests wait.")
SOURCE = "LARRY's order as meant, with our units; this library"
P_LAR_1 = Theorem(
    "P-LAR-1",
    "the static key orders requests as the score -q m + alpha (now - arrival) does, at any time",
    SOURCE,
)
P_LAR_2 = Theorem(
    "P-LAR-2",
    "of two requests the older goes first if and only if alpha times their distance in time is at least q times what "
    "the older needs more of memory; so the whole order is that of arrival exactly from alpha* on",
    SOURCE,
)
P_LAR_3 = Theorem(
    "P-LAR-3",
    "no request that came more than Q d / alpha after another, which needs at most d more of memory, is before it",
    SOURCE,
    (QUEUE_BOUNDED,),
    bound="Q d / alpha",
)
P_LAR_4 = Theorem(
    "P-LAR-4",
    "at most Q + sigma + rho Q d / alpha requests of its group are let in before one that fits an empty worker, if at "
    "most sigma + rho t come in any time t",
    SOURCE,
    (QUEUE_BOUNDED,),
    bound="Q + sigma + rho Q d / alpha",
    scope=Scope.TESTED,
    rests_on=("P-LAR-3",),
)
P_LAR_5 = Theorem(
    "P-LAR-5",
    "of two requests the same one is first at any time, and however many older ones leave, while the queue is as long",
    SOURCE,
)
THEOREMS = (P_LAR_1, P_LAR_2, P_LAR_3, P_LAR_4, P_LAR_5)


def key(age: Any, size: Any, queue: Any, wait: Any, memory: Any) -> Any:
    """Return the key of a request that came `wait` after the oldest, and of columns of such: the least goes first."""
    return age * wait + size * queue * memory


@attrs.frozen
class LarryOrder(RanksByKey):
    """The least alpha * arrival + q * memory first."""

    name: ClassVar[str] = "larry"
    sign: ClassVar[int] = 1

    alpha_milli: int = attrs.field(default=1_000, validator=not_negative)
    """Thousandths of alpha: how much of a memory unit a second of waiting is worth, while one request waits."""
    memory_unit: MemoryUnit = attrs.field(default="blocks", validator=one_of("capacity", "tokens", "blocks"))
    """What memory is measured in: blocks of 16 tokens, tokens, or shares of the worker's KV capacity."""

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """Return LARRY's own; as printed there are none."""
        return THEOREMS if self.sign > 0 else ()

    def rank(self, request: Request, cached_tokens: int) -> int:
        """Return what is fixed of the rank, where a queue is kept in order without a decision: small prompts first."""
        return -self.sign * request.prompt.tokens

    def number(self, queued: QueuedRequest) -> int:
        """Return what it needs of memory in tokens, with the sign of its term."""
        return self.sign * queued.context_tokens

    def keys(self, waiting: int, kv_capacity_tokens: int) -> Key:
        """Return the keys while the queue is as long as it is now.

        Waits are rounded to microseconds, and count from the oldest, which shifts all keys alike.
        """
        unit = {"capacity": kv_capacity_tokens, "tokens": 1, "blocks": BLOCK_TOKENS}[self.memory_unit]
        age, size = key_factors(self.alpha_milli, unit)
        return partial(key, age, size, waiting)


@lru_cache(maxsize=64)
def key_factors(alpha_milli: int, unit_tokens: int) -> tuple[int, int]:
    """Return what a microsecond of arrival and a token times a waiting request count in a key, as integers without a
    common divisor.

    >>> key_factors(1_000, 427_000)
    (427, 1000)
    """
    return Fraction(alpha_milli * unit_tokens, MILLI_US_PER_S).as_integer_ratio()


@attrs.frozen
class LarryPrintedOrder(LarryOrder):
    """The order of equation 1 as printed: of equal waits the larger prompt first."""

    name: ClassVar[str] = "larry-printed"
    sign: ClassVar[int] = -1
