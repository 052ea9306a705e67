"""Priority groups: the larger the cached share of a prompt, the higher its group; groups take turns.

Source: Preble (ICLR'25), the local scheduler.  Group g of P holds requests of which at least g/P and less than
(g + 1)/P is cached (63 % is group 6 of 10).  As printed, what is cached to less than 1/P is in group 0, which has no
quota, and a request's group follows the cache down as well as up; both let requests wait for ever (F-PG-1, F-PG-2).
Here the lowest group is 1, and a request that waits may only rise.

The rule by which groups take turns, and the theorems, are in `policies.orders.abilities.weighted_round_robin`.
"""

from typing import ClassVar, Literal

import attrs

from fairsched.model.request import Request
from fairsched.model.theorem import Theorem
from fairsched.policies.orders.abilities import THEOREMS, FollowsCache, TakesTurns
from fairsched.policies.validators import one_of, positive


@attrs.frozen
class PriorityGroups(FollowsCache, TakesTurns):
    """`groups` is P.  `lowest` is 1, or 0 as printed: group 0 goes only where no other group waits.

    `regroup` is "rise" (a waiting request's group may only rise) or "always" (as printed).
    """

    name: ClassVar[str] = "priority-groups"

    groups: int = attrs.field(default=10, validator=positive)
    """P: a request whose prompt is cached to c of n tokens is in group P c // n."""
    lowest: int = attrs.field(default=1, validator=attrs.validators.in_((0, 1)))
    """The lowest group; 0, as printed, has no turn."""
    regroup: Literal["rise", "always"] = attrs.field(default="rise", validator=one_of("rise", "always"))
    """Whether the group of a waiting request only rises, or follows the cache, as printed."""

    def rank(self, request: Request, cached_tokens: int) -> int:
        """The request's group: the whole part of P times the cached share of its prompt."""
        return max(self.lowest, self.groups * cached_tokens // request.prompt.tokens)

    def renewed(self, before: int, rank: int) -> int:
        return max(before, rank) if self.regroup == "rise" else rank

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """What holds of turns; nothing for the printed rules."""
        return THEOREMS if self.lowest and self.regroup == "rise" else ()
