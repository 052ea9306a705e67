"""Aladdin with split phases: prompts are computed by some workers, outputs by the others, each under its own limits.

Source: Aladdin, section 4.5.  A prefill worker gets requests under (c) alone, as there is no output to hold back.  When
a request has its first token, it is staged there, and goes with its KV to the decode worker that is fullest under (b)
and (e); there is no (d), since nothing is prefilled there.  Where none has room it is tried again at each heartbeat;
one that no worker could take, or that waited for `patience_us`, goes to the least loaded, as Aladdin's requests do.

Workers have roles, or those with the lowest numbers compute prompts, as many as `prefill_workers` says.
"""

from typing import ClassVar

import attrs
from msgspec.structs import replace

from fairsched.model.events import Event
from fairsched.model.plan import ClusterPlan, Dispatch, Migration
from fairsched.model.theorem import Theorem
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies.draw import draw
from fairsched.policies.placement.aladdin.limits import P_ALD_8
from fairsched.policies.placement.aladdin.placement_batch import PlacementBatch, Wanted, column
from fairsched.policies.placement.aladdin.placement_state import AladdinState, Held
from fairsched.policies.placement.aladdin.policy import Aladdin
from fairsched.policies.routers.phases import NO_HANDOVERS, Handovers
from fairsched.policies.validators import positive

Pool = tuple[WorkerLoad, ...]


class AladdinSplitState(AladdinState, frozen=True):
    """What Aladdin believes, and the requests between the two phases."""

    handovers: Handovers = NO_HANDOVERS


@attrs.frozen
class AladdinSplit(Aladdin):
    """Prefill and decode by different workers; a heartbeat as Aladdin's, and as much again for what is staged."""

    name: ClassVar[str] = "aladdin-split"
    state_type: ClassVar[type[AladdinState]] = AladdinSplitState
    splits_phases: ClassVar[bool] = True
    theorems: ClassVar[tuple[Theorem, ...]] = ()

    heartbeat_us: int = attrs.field(default=10_000, validator=positive)
    prefill_workers: int = attrs.field(default=1, validator=positive)
    """How many workers only compute prompts, where workers have no roles."""

    def observe(self, state: AladdinState, event: Event) -> AladdinState:
        assert isinstance(state, AladdinSplitState)
        after = super().observe(state, event)
        handovers = state.handovers.observed(event)
        if handovers is state.handovers:
            return after
        if handovers.staged is not state.handovers.staged:
            # What was sent and is staged again is believed nowhere.
            for request_id in handovers.staged:
                after = self.tracker.without(after, request_id)
        return replace(after, handovers=handovers)

    def check(self, state: AladdinState) -> None:
        assert isinstance(state, AladdinSplitState)
        super().check(state)
        state.handovers.check()
        # What is staged is at no worker, and what is sent is believed at its target.
        assert not set(state.handovers.staged) & (set(state.home) | set(state.held))

    def decide(self, state: AladdinState, view: ClusterView) -> tuple[ClusterPlan, AladdinState]:
        state = self._foreseen_anew(state, view)
        assert isinstance(state, AladdinSplitState)
        compute, decode = self._pools(view.workers)
        waiting = [i for _, i in state.waiting][: self.lookahead]
        migrations, state = self._handed_over(state, decode, view.now_ns)
        plan, after = self._heartbeat(state, replace(view, workers=compute or view.workers), waiting, "c")
        if not (compute and decode):
            return ClusterPlan(plan.dispatches, migrations), after
        handovers, dispatches = state.handovers, []
        for dispatch in plan.dispatches:
            handovers = handovers.dispatched(state.held[dispatch.request_id].request)
            dispatches.append(Dispatch(dispatch.request_id, dispatch.worker, prefill_only=True))
        return ClusterPlan(tuple(dispatches), migrations), replace(after, handovers=handovers)

    def _pools(self, workers: Pool) -> tuple[Pool, Pool]:
        """Return the workers that compute prompts, and those that decode; a phase may have none."""
        if any(load.role != "both" for load in workers):
            compute = tuple(load for load in workers if load.role != "decode")
            return compute, tuple(load for load in workers if load.role != "prefill")
        first = tuple(load for load in workers if load.worker < self.prefill_workers)
        return first, tuple(load for load in workers if load.worker >= self.prefill_workers)

    def _handed_over(
        self, state: AladdinSplitState, decode: Pool, now_ns: int
    ) -> tuple[tuple[Migration, ...], AladdinSplitState]:
        """Send staged requests to decode workers, the one that has been staged longest first.

        Without decode workers they go on where they are.
        """
        staged = state.handovers.staged[: self.lookahead]
        if not staged:
            return (), state
        batch = PlacementBatch(self.rules("be"), self._rows(state, decode, now_ns, True)) if decode else None
        migrations = []
        for request_id in staged:
            handover = state.handovers.requests[request_id]
            held = self.tracker.held(handover.request, handover.generated_tokens)
            target = handover.source if batch is None else self._decodes(batch, held, now_ns - handover.since_ns)
            if target is None:
                continue
            # Outputs are reserved by the batching rule when the request is admitted there, as Aladdin's are elsewhere.
            state = replace(state, handovers=state.handovers.sent(request_id, target, 0))
            joined = self.tracker.joins(state, request_id, target, self.tracker.member(held, now_ns))
            assert isinstance(joined, AladdinSplitState)
            state = joined
            migrations.append(Migration(request_id, handover.source, target, with_kv=True))
        return tuple(migrations), state

    def _decodes(self, batch: PlacementBatch, held: Held, staged_ns: int) -> int | None:
        """Return the worker that decodes a staged request; None: it stays staged."""
        asked, _ = self._asked([held], 0)
        wanted = Wanted(held.prompt_tokens, held.output_tokens, held.output_tokens)
        row = batch.choose(wanted)
        if row is None and bool(self._anyway(batch, asked, column([staged_ns]))[0]):
            row = batch.least(wanted)
        if row is None:
            return None
        batch.take(row, wanted)
        return batch.rows[row].worker


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
    """Return one of the groups, drawn by the request's id.

    >>> sorted({group_of(i, (0, 1, 2)) for i in range(10)})
    [0, 1, 2]
    """
    return groups[draw(0, request_id, len(groups))]
