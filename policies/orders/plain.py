"""Orders by arrival, by prompt length, by the cached prefix or share of a prompt, and by the calls that wait for it."""

from typing import ClassVar, Literal, get_args

import attrs

from fairsched.model.request import TOKENS_MAX, Request
from fairsched.model.theorem import Theorem
from fairsched.policies.orders import abilities as able
from fairsched.policies.orders.base import Order, QueuedRequest
from fairsched.policies.orders.queue import FollowsCache
from fairsched.policies.validators import not_negative, one_of, positive


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

    def rank(self, request: Request, cached_tokens: int) -> int:
        return -request.prompt.tokens


Sort = Literal["arrival", "shortest", "longest"]
"""How requests of a batch are ordered: first come first served, fewest or most prompt tokens first."""


@attrs.frozen
class SortedBatches(able.TakesBatches):
    """So many requests in order of arrival, and those by prompt length; the next ones when all of them went.

    Source: TetriInfer's prefill scheduler (FCFS, SJF, LJF over `PrefillSchedBatch` requests).  A request is never far
    from its place in order of arrival (P-TI-2), which shortest or longest first alone does not promise.
    """

    name: ClassVar[str] = "sorted-batches"

    sort: Sort = attrs.field(default="shortest", validator=one_of(*get_args(Sort)))
    """Which prompts of a batch go first: by arrival, the shortest, or the longest."""
    batch_requests: int = able.batch_requests_field()

    def rank_queued(self, queued: QueuedRequest, cached_tokens: int) -> int:
        """Return the rank; a request whose prompt came with its KV has nothing to compute, and goes first."""
        return TOKENS_MAX if queued.kv_tokens else self.rank(queued.request, cached_tokens)

    def rank(self, request: Request, cached_tokens: int) -> int:
        if self.sort == "arrival":
            return 0
        return request.prompt.tokens if self.sort == "longest" else -request.prompt.tokens


@attrs.frozen
class LongestPrefix(FollowsCache):
    """Longest cached prefix first (SGLang's LPM).

    Of several cold requests with one prefix the first computes it and the others wait for it.
    """

    name: ClassVar[str] = "longest-prefix"
    waits_for_prefix: ClassVar[bool] = True

    def rank(self, request: Request, cached_tokens: int) -> int:
        return cached_tokens


@attrs.frozen
class LongestPrefixAtOnce(LongestPrefix):
    """Longest cached prefix first, where a cold prefix is computed as often as it is asked for at a time."""

    name: ClassVar[str] = "longest-prefix-at-once"
    waits_for_prefix: ClassVar[bool] = False


@attrs.frozen
class WarmPrograms(LongestPrefix, able.KeepsPrograms):
    """Longest cached prefix first, with room for the programs that come back."""

    name: ClassVar[str] = "warm-programs"

    keep_steps: int = attrs.field(default=200, validator=not_negative)
    """For how many decode steps a program's KV is kept between two of its calls."""


@attrs.frozen
class OldestPrograms(able.KeepsPrograms):
    """Calls in the order in which their programs came, with room for the programs that come back.

    Source: Continuum (arXiv 2511.02230), by its summary: program-level first come, first served, and a time to live.
    Its time follows from the tool's and the cost of computing again; here it is given.  A program that was forgotten
    comes anew.
    """

    name: ClassVar[str] = "oldest-programs"

    keep_steps: int = attrs.field(default=200, validator=not_negative)
    """For how many decode steps a program's KV is kept between two of its calls."""

    def rank(self, request: Request, cached_tokens: int) -> int:
        return 0

    def rank_queued(self, queued: QueuedRequest, cached_tokens: int) -> int:
        return -min(queued.tag, TOKENS_MAX)


@attrs.frozen
class CountedPrograms(OldestPrograms):
    """The same with so many programs in progress as find their KV when they come back.

    Source: Concur (arXiv 2601.22705), by its summary: additive increase and multiplicative decrease by cache signals.
    Its thresholds are not known to us: a returning call is a hit where half of its context is cached.
    """

    name: ClassVar[str] = "counted-programs"
    limit: ClassVar[Literal["memory", "window"]] = "window"


@attrs.frozen
class LargestPrograms(OldestPrograms):
    """Programs that come back before new ones, the largest first.

    Source: ThunderAgent (arXiv 2602.13692) and its released scheduler: programs in progress fit into memory, those
    between two calls with all they hold; one that does not is paused there.  It pauses the smallest one between two
    calls, at intervals of 5 s, and here the one that comes back pauses, at once.  It is told when a program ends, and
    may halve what it counts of one between two calls with each second; here that counts whole, for a time.
    """

    name: ClassVar[str] = "largest-programs"

    def rank_queued(self, queued: QueuedRequest, cached_tokens: int) -> int:
        return min(queued.context_tokens, TOKENS_MAX) if queued.tag < queued.age else 0


@attrs.frozen
class PriorityGroups(FollowsCache, able.TakesTurns):
    """The larger the cached share of a prompt, the higher its group; groups take turns (`weighted_round_robin`).

    Source: Preble (ICLR'25), the local scheduler: a prompt of which 63 % is cached is in group 6 of 10, and groups are
    served in proportion to their numbers.  The released code rounds the share up, and a request's group follows the
    cache down as well as up, so that a request may wait for ever (F-PG-2).  Here the share is rounded down, the lowest
    group is 1, and a waiting request may only rise.
    """

    name: ClassVar[str] = "priority-groups"

    groups: int = attrs.field(default=10, validator=positive)
    """P: a request whose prompt is cached to c of n tokens is in group P c // n."""
    variant: Literal["shipped", "released"] = attrs.field(default="shipped", validator=one_of("shipped", "released"))
    """Released: shares are rounded up and groups follow the cache, as in Preble's released code."""

    def rank(self, request: Request, cached_tokens: int) -> int:
        share = self.groups * cached_tokens
        return max(
            1, -(-share // request.prompt.tokens) if self.variant == "released" else share // request.prompt.tokens
        )

    def renewed(self, before: int, rank: int) -> int:
        return rank if self.variant == "released" else max(before, rank)

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """What holds of turns; nothing for the released rules."""
        return () if self.variant == "released" else able.THEOREMS


LEVELS_MAX = 31
"""Calls with more levels downstream count as having so many."""
LEVEL = TOKENS_MAX // (LEVELS_MAX + 1)
"""Ranks between two levels: cached prefixes are told apart in steps of `TOKENS_MAX // LEVEL` tokens."""
STEP = TOKENS_MAX // LEVEL


@attrs.frozen
class DownstreamLevels(FollowsCache):
    """Most levels downstream first (or fewest), then the longest cached prefix, to within `STEP` tokens.

    Calls that others wait for go before calls that end a program; with `first="downstream"`, programs that are nearly
    done are finished first.  Source: the DLPM paper leaves dependencies between calls open; this order is ours.  It
    knows what the caller declares (`Request.downstream_levels`), and nothing of calls that were not sent yet.  About
    one program it promises nothing: under overload calls that no other call needs wait longest.
    """

    name: ClassVar[str] = "downstream-levels"
    waits_for_prefix: ClassVar[bool] = True

    first: Literal["upstream", "downstream"] = attrs.field(
        default="upstream", validator=one_of("upstream", "downstream")
    )
    """Whether calls with most or with fewest calls behind them go first."""

    def rank(self, request: Request, cached_tokens: int) -> int:
        levels = min(request.downstream_levels, LEVELS_MAX)
        if self.first == "downstream":
            levels = LEVELS_MAX - levels
        return levels * LEVEL + min(cached_tokens // STEP, LEVEL - 1)
