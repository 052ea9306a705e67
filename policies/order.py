"""Orders: whom age, size or locality would pick first.  An order is one integer a request, larger first.

The integer may depend on what of the prompt is cached; whoever keeps the queue (`policies.waiting`) asks again when
that changes.  Equal integers are served in order of arrival, so every order is total.

An order that can starve a request of a served client takes a `bypass_budget` (`policies.bypass`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import attrs

from fairsched.model.algebra import Ints
from fairsched.model.request import Request
from fairsched.model.theorem import Theorem
from fairsched.policies.bypass import THEOREMS
from fairsched.policies.columns import NO_MATCHES, Columns, Matches, Ranking
from fairsched.policies.swap import Swap
from fairsched.policies.validators import not_negative


class Order(ABC):
    """The integer by which waiting requests are ranked; `follows_cache` says that it depends on `cached_tokens`, and
    `follows_queue` that a decision ranks everybody anew (`ranking`), since it depends on how many wait, or on where.

    With `waits_for_prefix`, a request whose next missing block is being computed for somebody else waits for it
    rather than computing it a second time.  With a `bypass_budget` the oldest request of a group goes first once so
    many younger ones have passed it over.  With `takes_turns` ranks are the numbers of priority groups, which take
    turns (`policies.turns`), and with `only_rises` a waiting request's rank never falls.

    An order that `follows_output` ranks by what a request has produced (`rank_after`), with `promote_steps` whoever has
    waited through so many steps that produced output is promoted, and one that `displaces` lets a waiting request take
    the place of running ones that stand behind it (`policies.displacement`).  With a `swap` it uses host memory for
    those who leave (`policies.swapping`).
    """

    name: ClassVar[str]
    follows_cache: ClassVar[bool] = False
    waits_for_prefix: ClassVar[bool] = False
    follows_queue: ClassVar[bool] = False
    takes_turns: ClassVar[bool] = False
    follows_output: ClassVar[bool] = False
    bypass_budget: int | None = None

    @property
    def promote_steps(self) -> int | None:
        """After so many steps with output a waiting request is promoted; None: never."""
        return None

    @property
    def swap(self) -> Swap | None:
        """How it uses host memory where there is some; None: whoever leaves the batch is computed again."""
        return None

    @property
    def displaces(self) -> bool:
        """Whether who waits may take the place of who runs."""
        return False

    @abstractmethod
    def rank(self, request: Request, cached_tokens: int) -> int:
        """Rank of a waiting request, between -TOKENS_MAX and TOKENS_MAX: larger goes first.  O(1)."""

    def rank_after(self, request: Request, generated_tokens: int, promoted: bool) -> int:
        """Rank of a waiting request with so many output tokens behind it, for an order that follows output.  O(1)."""
        return self.rank(request, 0)

    def standing(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        """What a waiting request's rank must exceed to take this running one's place; None: none may.  O(1).

        At least the rank that it would have when it waits again, so that it does not come before who displaced it.
        `promoted_steps` is for how many steps with output it has run since it was let in promoted, None if it was not.
        """
        return None

    def standing_steps(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        """For how many decode steps the standing of a running request does not fall, 1 at least; None: ever.  O(1)."""
        return None

    def ranking(
        self, columns: Columns, groups: int, kv_capacity_tokens: int, matches: Matches = NO_MATCHES
    ) -> Ranking | None:
        """Everybody in this decision's order, for an order that follows the queue; None for any other."""
        return None

    @property
    def only_rises(self) -> bool:
        """Whether the rank of a request that waits may not fall when the cache changes."""
        return False

    def renewed(self, before: int, rank: int) -> int:
        """The rank of a request that waits with the rank `before`, when the cache now gives it `rank`.  O(1)."""
        return max(before, rank) if self.only_rises else rank

    def regroups(self, waiting: int, joined: int) -> bool:
        """Whether all who wait are to be ranked together now, `joined` of them having come since.  O(1)."""
        return False

    def ranks_together(self, requests: Sequence[Request]) -> Ints | None:
        """The ranks of all who wait, found from all of them; None: each has its own.  For an order that regroups."""
        return None

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """What the order promises of requests, whatever its ranks are."""
        return () if self.bypass_budget is None else THEOREMS


def bypass_budget_field() -> int | None:
    """The field of an order that takes a bypass budget: a whole number from 0, or None for none."""
    field: int | None = attrs.field(default=None, validator=attrs.validators.optional(not_negative))
    return field


@attrs.frozen
class Arrival(Order):
    """First come, first served."""

    name: ClassVar[str] = "arrival"

    def rank(self, request: Request, cached_tokens: int) -> int:
        return 0


@attrs.frozen
class ShortestPrompt(Order):
    """Fewest prompt tokens first."""

    name: ClassVar[str] = "shortest-prompt"
    bypass_budget: int | None = bypass_budget_field()

    def rank(self, request: Request, cached_tokens: int) -> int:
        return -request.prompt.tokens


@attrs.frozen
class LongestPrefix(Order):
    """Longest cached prefix first (SGLang's LPM).

    Of several cold requests with one prefix the first computes it and the others wait for it.
    """

    name: ClassVar[str] = "longest-prefix"
    follows_cache: ClassVar[bool] = True
    waits_for_prefix: ClassVar[bool] = True
    bypass_budget: int | None = bypass_budget_field()

    def rank(self, request: Request, cached_tokens: int) -> int:
        return cached_tokens
