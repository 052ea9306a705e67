"""Aladdin with several schedulers: requests are dealt to groups, and each group places its own on its own workers.

**Our reconstruction.**  The paper names grouped distributed scheduling for rates beyond one scheduler and refers to an
appendix that we could not find.  Here worker i belongs to group i modulo `groups`, and a request to one of the groups
that have workers by a hash of its id, so groups need no word from each other and each sees an equal part of the rate.
What it costs is bounded by the rounding of each group (P-ALD-8).
"""

from typing import ClassVar

import attrs
from msgspec.structs import replace

from fairsched.model.plan import ClusterPlan, Dispatch
from fairsched.model.theorem import Theorem
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies.aladdin import Aladdin
from fairsched.policies.aladdin_books import AladdinState
from fairsched.policies.aladdin_theorems import P_ALD_8
from fairsched.policies.draw import draw
from fairsched.policies.validators import positive


@attrs.frozen
class AladdinGrouped(Aladdin):
    """A scheduler for each group of workers; cost as Aladdin's, by group."""

    name: ClassVar[str] = "aladdin-grouped"
    theorems: ClassVar[tuple[Theorem, ...]] = (P_ALD_8,)

    groups: int = attrs.field(default=2, validator=positive)

    def decide(self, state: AladdinState, view: ClusterView) -> tuple[ClusterPlan, AladdinState]:
        state = self._foreseen_anew(state, view)
        pools: dict[int, list[WorkerLoad]] = {}
        for load in view.workers:
            pools.setdefault(load.worker % self.groups, []).append(load)
        mine: dict[int, list[int]] = {group: [] for group in sorted(pools)}
        for _, request_id in state.waiting:
            of_group = mine[group_of(request_id, tuple(mine))] if mine else []
            if len(of_group) < self.lookahead:
                of_group.append(request_id)
        dispatches: tuple[Dispatch, ...] = ()
        for group, waiting in mine.items():
            plan, state = self._heartbeat(state, replace(view, workers=tuple(pools[group])), waiting)
            dispatches += plan.dispatches
        return ClusterPlan(dispatches), state


def group_of(request_id: int, groups: tuple[int, ...]) -> int:
    """One of the groups, drawn by the request's id.

    >>> sorted({group_of(i, (0, 1, 2)) for i in range(10)})
    [0, 1, 2]
    """
    return groups[draw(0, request_id, len(groups))]
