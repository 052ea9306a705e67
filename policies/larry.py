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

Time enters by q only: as long as nobody comes or goes the order stands (P-LAR-5), so decode steps may be leapt over.
q -> 0 is first come first served, q -> infinity smallest prompt first.  Keys are computed once a decision, with the q
of its beginning.  The first that does not fit ends the decision's admissions, as in every composition; with skipping,
a large prompt would never be served.

Theorems: P-LAR-1 to P-LAR-4 in verify/larry_proofs.py; with a bypass budget D-request bounds every request's wait.
"""

from math import gcd
from typing import Any, ClassVar, Literal

import attrs
import numpy as np

from fairsched.model.algebra import Ints
from fairsched.model.request import Request
from fairsched.policies.batching import Batching, Chunked
from fairsched.policies.columns import Columns, Ranking
from fairsched.policies.deficit import DeficitGate
from fairsched.policies.gate import Gate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import Order, bypass_budget_field
from fairsched.policies.validators import not_negative, one_of

MemoryUnit = Literal["capacity", "tokens", "blocks"]
BLOCK_TOKENS = 16
MILLI_US_PER_S = 1_000_000_000
EXACT_MAX = 2**62
"""Above this keys would leave 64 bits, and are computed as Python integers."""


@attrs.frozen
class LarryOrder(Order):
    """The least alpha * arrival + q * memory first."""

    name: ClassVar[str] = "larry"
    follows_queue: ClassVar[bool] = True
    sign: ClassVar[int] = 1

    alpha_milli: int = attrs.field(default=1_000, validator=not_negative)
    """Thousandths of alpha: how much of a memory unit a second of waiting is worth, while one request waits."""
    memory_unit: MemoryUnit = attrs.field(default="blocks", validator=one_of("capacity", "tokens", "blocks"))
    """What memory is measured in: blocks of 16 tokens, tokens, or shares of the worker's KV capacity."""
    bypass_budget: int | None = bypass_budget_field()

    def rank(self, request: Request, cached_tokens: int) -> int:
        """What is fixed of the rank, where a queue is kept in order without a decision: small prompts first."""
        return -self.sign * request.prompt.tokens

    def ranking(self, columns: Columns, groups: int, kv_capacity_tokens: int) -> Ranking:
        """Everybody in order, with the queue as long as it is now.  O(n) for n waiting."""
        unit = {"capacity": kv_capacity_tokens, "tokens": 1, "blocks": BLOCK_TOKENS}[self.memory_unit]
        return Ranking(columns, self.keys(columns, unit), groups)

    def keys(self, columns: Columns, unit_tokens: int) -> Ints:
        """The key of everybody, less being better, over a common denominator.  O(n).

        Waits are rounded to microseconds, and count from the oldest, which shifts all keys alike.
        """
        if not len(columns.ages):
            return columns.ages
        waits_us = (columns.arrivals_ns - columns.arrivals_ns.min()) // 1_000
        age, size = key_factors(self.alpha_milli, unit_tokens)
        size *= len(columns.ages)
        if age * int(waits_us.max()) + size * int(columns.memory.max()) < EXACT_MAX:
            keys: Ints = age * waits_us + self.sign * size * columns.memory
            return keys
        rows = zip(waits_us.tolist(), columns.memory.tolist(), strict=True)
        exact = [age * wait_us + self.sign * size * memory for wait_us, memory in rows]
        rank = {key: i for i, key in enumerate(sorted(set(exact)))}
        return np.array([rank[key] for key in exact], dtype=np.int64)


def key_factors(alpha_milli: int, unit_tokens: int) -> tuple[int, int]:
    """What a microsecond of arrival and a token times a waiting request count in a key, as integers without a common
    divisor.

    >>> key_factors(1_000, 427_000)
    (427, 1000)
    """
    age, size = alpha_milli * unit_tokens, MILLI_US_PER_S
    divisor = gcd(age, size)
    return age // divisor, size // divisor


@attrs.frozen
class LarryPrintedOrder(LarryOrder):
    """The order of equation 1 as printed: of equal waits the larger prompt first."""

    name: ClassVar[str] = "larry-printed"
    sign: ClassVar[int] = -1


def _optimistic() -> Batching:
    """Prompts must fit, outputs grow: the paper's dispatch rule, with its token budget of a step."""
    return Chunked(reserve="optimistic")


@attrs.frozen
class LARRY(ComposedPolicy):
    """Small prompts first while the queue is long, the oldest first while it is short; promises nothing to anybody."""

    name: str = "larry"
    order: Order = attrs.field(factory=LarryOrder)
    gate: Gate[Any] = attrs.field(factory=OpenGate)
    batching: Batching = attrs.field(factory=_optimistic)


@attrs.frozen
class LARRYPrinted(ComposedPolicy):
    """LARRY by its equation 1 as printed, which serves large prompts first.  For comparison."""

    name: str = "larry-printed"
    order: Order = attrs.field(factory=LarryPrintedOrder)
    gate: Gate[Any] = attrs.field(factory=OpenGate)
    batching: Batching = attrs.field(factory=_optimistic)


@attrs.frozen
class FairLARRY(ComposedPolicy):
    """LARRY's order among the clients that have credit: the deficit gate's bound, in LARRY's order.

    Outputs are reserved, since the tight bound needs it.
    """

    name: str = "larry-fair"
    order: Order = attrs.field(factory=LarryOrder)
    gate: Gate[Any] = attrs.field(factory=DeficitGate)
    batching: Batching = attrs.field(factory=Chunked)
