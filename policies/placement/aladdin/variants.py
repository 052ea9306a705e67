"""Aladdin with split phases: prompts are computed by some workers, outputs by the others, each under its own limits.

Source: Aladdin, section 4.5.  A prefill worker gets requests under (c) alone, as there is no output to hold back.  When
a request has its first token, it goes with its KV to the decode worker that is fullest under (b) and (e); there is no
(d), since nothing is prefilled there.  Where none has room it stays and decodes where it is, and is tried again.

`prefill_workers` are those with the lowest numbers, as many as the parameter says.  A move that an engine refuses is
not tried again: the request is believed at its target until it ends.
"""

from typing import ClassVar

import attrs
from msgspec.structs import replace

from fairsched.model.plan import ClusterPlan, Dispatch, Migration
from fairsched.model.theorem import Theorem
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies.draw import draw
from fairsched.policies.placement.aladdin.limits import P_ALD_8
from fairsched.policies.placement.aladdin.placement_batch import PlacementBatch, Wanted
from fairsched.policies.placement.aladdin.placement_state import AladdinState
from fairsched.policies.placement.aladdin.policy import Aladdin
from fairsched.policies.validators import positive


@attrs.frozen
class AladdinSplit(Aladdin):
    """Prefill and decode by different workers; a heartbeat as Aladdin's, and O(requests at prefill workers)."""

    name: ClassVar[str] = "aladdin-split"
    theorems: ClassVar[tuple[Theorem, ...]] = ()

    heartbeat_us: int = attrs.field(default=10_000, validator=positive)
    prefill_workers: int = attrs.field(default=1, validator=positive)
    """How many workers only compute prompts."""

    def decide(self, state: AladdinState, view: ClusterView) -> tuple[ClusterPlan, AladdinState]:
        state = self._foreseen_anew(state, view)
        first = {load.worker for load in view.workers if load.worker < self.prefill_workers}
        compute = tuple(load for load in view.workers if load.worker in first)
        decode = tuple(load for load in view.workers if load.worker not in first)
        waiting = [i for _, i in state.waiting][: self.lookahead]
        # A phase without workers of its own uses all of them.
        plan, state = self._heartbeat(state, replace(view, workers=compute or view.workers), waiting, "c")
        migrations: tuple[Migration, ...] = ()
        if compute and decode:
            migrations, state = self._handed_over(state, compute, decode, view.now_ns)
        return ClusterPlan(plan.dispatches, migrations), state

    def _handed_over(
        self, state: AladdinState, compute: tuple[WorkerLoad, ...], decode: tuple[WorkerLoad, ...], now_ns: int
    ) -> tuple[tuple[Migration, ...], AladdinState]:
        """Move requests with a first token to decode workers, the one that has had it longest first."""
        ready = sorted(
            (member.first_ns, request_id, load.worker)
            for load in compute
            if load.worker in state.workers
            for request_id, member in state.workers[load.worker].members.items()
            if member.start is not None
        )
        if not ready:
            return (), state
        batch = PlacementBatch(self.rules("be"), self._rows(state, decode, now_ns, True))
        migrations = []
        for _, request_id, source in ready:
            worker = state.workers[source]
            member = worker.members[request_id]
            member = replace(member.anew(worker.clock - (member.start or 0), 0), over=False)
            wanted = Wanted(member.prompt_tokens, member.output_tokens, member.output_tokens)
            row = batch.choose(wanted)
            if row is not None:
                target = batch.rows[row].worker
                batch.take(row, wanted)
                state = self.tracker.joins(self.tracker.without(state, request_id), request_id, target, member)
                migrations.append(Migration(request_id, source, target, with_kv=True))
        return tuple(migrations), state


# --- several schedulers -----------------------------------------------------------------------------------------------


@attrs.frozen
class AladdinGrouped(Aladdin):
    """Several schedulers: requests are dealt to groups, and each group places its own on its own workers.

    **Our reconstruction.**  The paper names grouped distributed scheduling for rates beyond one scheduler and refers to
    an appendix that we could not find.  Here worker i belongs to group i modulo `groups`, and a request to one of the
    groups that have workers, by a hash of its id.  So groups exchange nothing, and each sees an equal part of the rate.
    The price is bounded by the rounding of each group (P-ALD-8).  Cost as Aladdin's, by group.
    """

    name: ClassVar[str] = "aladdin-grouped"
    theorems: ClassVar[tuple[Theorem, ...]] = (P_ALD_8,)

    groups: int = attrs.field(default=2, validator=positive)
    """How many groups of workers know nothing of each other."""

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
