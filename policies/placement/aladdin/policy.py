"""Aladdin: every 50 ms new requests go to the fullest worker where all requests still keep their targets.

Paper: "Aladdin: Joint Placement and Scaling for SLO-Aware LLM Serving", section 4, Algorithms 1 and 2; its errors and
what we do instead are in docs/policies/offline-and-placement/aladdin.md, and `AladdinPrinted` keeps them.

A worker takes a request if (b) an iteration over all its requests stays below theta of the target per output token,
each counted with its prompt and gamma of its foreseen output; (c) all its new prompts are computed before the earliest
deadline of a first token; (d) meanwhile no running request loses more than it has saved; (e) its memory is never
exceeded, if requests start now and advance together, or (`reserve` = peaks) whenever they start.  Of the workers that
take the request, the fullest by the norm of requests and context gets it; if none takes it, it is held.  A worker
without requests is what the paper calls a new one: it is the emptiest, under the same constraints.

A request that could not keep its targets on an empty worker, or was held for `patience_us`, goes to the least loaded.

Assumptions: predictions are upper bounds for (e) and gamma = 100 (PredictionsBound), requests start when they are
placed (StartsAtOnce).  Theorems: P-ALD-1 to P-ALD-8, `limits`.  State: which requests are believed where.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from typing import ClassVar, Literal

import attrs
import numpy as np
from msgspec.structs import astuple, replace

from fairsched.model.algebra import Bools, Ints
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, Migration, WorkerLoad
from fairsched.model.events import Event
from fairsched.model.machine import DEFAULT_PRESET, PRESETS, PROMPT_TOKENS, LatencyModel, Performance
from fairsched.model.theorem import Theorem
from fairsched.policies.base import ClusterPolicy
from fairsched.policies.draw import draw
from fairsched.policies.placement.aladdin import limits as lim
from fairsched.policies.placement.aladdin import placement_batch as pb
from fairsched.policies.placement.aladdin.limits import P_ALD_8
from fairsched.policies.placement.aladdin.placement_batch import CandidateFilter, PlacementBatch, Wanted, column
from fairsched.policies.placement.aladdin.placement_state import (
    EMPTY_WORKER,
    AladdinState,
    Believed,
    Held,
    Member,
    PlacementTracker,
    Slack,
    released,
    without_ended_ghosts,
)
from fairsched.policies.routers.phases import NO_HANDOVERS, Handovers
from fairsched.policies.validators import not_negative, one_of, percent, positive

Output = Literal["predicted", "generated"]
Opens = Literal["checked", "unchecked"]
Errors = Literal["follow", "rebalance", "ignore"]


@attrs.frozen
class Aladdin(ClusterPolicy[AladdinState]):
    """Best fit of requests into workers under both targets.

    A heartbeat O(workers + held requests looked at), and each of those that is tried O(workers) in numpy's columns and
    O(requests) for each worker whose memory is not obviously enough; an event O(log n).
    """

    name: ClassVar[str] = "aladdin"
    state_type: ClassVar[type[AladdinState]] = AladdinState
    theorems: ClassVar[tuple[Theorem, ...]] = lim.THEOREMS

    ttft_us: int = attrs.field(default=2_000_000, validator=positive)
    """Target of the first token, for requests that name none."""
    tpot_us: int = attrs.field(default=100_000, validator=positive)
    """Target per further token, the same for all."""
    theta_percent: int = attrs.field(default=90, validator=percent)
    """Share of a target that (b) and (d) may use."""
    gamma_percent: int = attrs.field(default=50, validator=percent)
    """Share of an output that (b) counts."""
    heartbeat_us: int = attrs.field(default=50_000, validator=positive)
    """How often requests are placed; the paper names no time."""
    patience_us: int = attrs.field(default=10_000_000, validator=not_negative)
    """A request that was held for so long goes where the load is least."""
    lookahead: int = attrs.field(default=256, validator=positive)
    """So many held requests, the oldest, are tried at a heartbeat."""
    norm: pb.Norm = attrs.field(default="normalised", validator=one_of("normalised", "printed"))
    """How full a worker is: requests and context as parts of the most that (b) allows or, as printed, as they are."""
    reserve: pb.Reserve = attrs.field(default="lock-step", validator=one_of("lock-step", "peaks"))
    """(e) for requests that start at once and advance together, or with the peak of each reserved."""
    slack: Slack = attrs.field(default="earned", validator=one_of("earned", "printed"))
    """What (d) takes a running request to have saved (`saved_from`); `printed` also leaves out requests that have no
    first token yet, which any prefill before theirs is over would stall."""
    step_tokens: int = attrs.field(default=2_048, validator=positive)
    """Tokens of prompts that a worker computes in one step; no more are placed there together, but one prompt alone."""
    output: Output = attrs.field(default="predicted", validator=one_of("predicted", "generated"))
    """What (b) counts of an output: what is foreseen, or, as printed, what there is."""
    opens: Opens = attrs.field(default="checked", validator=one_of("checked", "unchecked"))
    """Whether an empty worker is held to the constraints; as printed it is not."""
    errors: Errors = attrs.field(default="follow", validator=one_of("follow", "rebalance", "ignore"))
    """What is done about wrong predictions: they are corrected in the plan as soon as they are seen; or the plan stays
    and new requests move (Algorithm 2); or nothing."""
    prompt_tokens_max: int = attrs.field(default=PROMPT_TOKENS, validator=positive)
    """Up to this prompt the line of prefill covers attention."""
    performance: Performance | None = attrs.field(default=None, metadata={"text": False})
    """The workers' lines; None: from their latency model."""
    few: tuple[tuple[int, Performance], ...] = attrs.field(default=(), metadata={"text": False})
    """Lines that are nearer for at most so many requests; from the latency model with those."""

    @property
    def decide_every_us(self) -> int:
        return self.heartbeat_us

    def fitted(self, latency: LatencyModel) -> "Aladdin":
        if self.performance is not None:
            return self
        longest = self.prompt_tokens_max
        last = [piece.batch_min - 1 for piece in latency.decode[1:]]
        few = tuple((most, Performance.of(latency, longest, most)) for most in last)
        return attrs.evolve(self, performance=Performance.of(latency, longest), few=few)

    @property
    def lines(self) -> Performance:
        return self.performance or Performance.of(PRESETS[DEFAULT_PRESET], self.prompt_tokens_max)

    def rules(self, checks: str = "bcde") -> pb.Rules:
        percents = self.theta_percent, self.gamma_percent
        together = None if self.slack == "printed" else self.step_tokens
        aims = self.tpot_us * 1_000, *percents
        return pb.Rules(self.lines, *aims, self.norm, self.reserve, checks, together, self.few)

    @cached_property
    def tracker(self) -> PlacementTracker:
        targets = self.ttft_us * 1_000, self.tpot_us * 1_000, self.theta_percent
        return PlacementTracker(self.lines, *targets, self.slack, self.errors == "follow")

    def observe(self, state: AladdinState, event: Event) -> AladdinState:
        return self.tracker.observe(state, event)

    def check(self, state: AladdinState) -> None:
        self.tracker.check(state)

    # --- decisions --------------------------------------------------------------------------------------------------

    def decide(self, state: AladdinState, view: ClusterView) -> tuple[ClusterPlan, AladdinState]:
        waiting = [i for _, i in islice(state.waiting, self.lookahead)]
        return self._heartbeat(self._foreseen_anew(state, view), view, waiting)

    def _heartbeat(
        self, state: AladdinState, view: ClusterView, waiting: Sequence[int], checks: str = "bcde"
    ) -> tuple[ClusterPlan, AladdinState]:
        """Return the dispatches of these requests to the view's workers."""
        if not waiting or not view.workers:
            return ClusterPlan(), state
        rules = self.rules(checks)
        batch = pb.PlacementBatch(rules, self._rows(state, view.workers, view.now_ns, self.errors == "follow"))
        placed = self._placed(state, batch, view.now_ns, waiting)
        if self.errors == "rebalance" and len(placed):
            true = pb.PlacementBatch(rules, self._rows(state, view.workers, view.now_ns, True))
            for each in placed:
                true.take(each.row, each.wanted)
            placed = pb.rebalanced(true, placed)
        dispatches = []
        for each in placed:
            held, worker = state.held[each.request_id], batch.rows[each.row].worker
            member = self.tracker.member(held, view.now_ns)
            state = self.tracker.joins(released(state, held), each.request_id, worker, member)
            dispatches.append(Dispatch(each.request_id, worker))
        return ClusterPlan(tuple(dispatches)), state

    def _placed(
        self, state: AladdinState, batch: pb.PlacementBatch, now_ns: int, waiting: Sequence[int]
    ) -> tuple[pb.Placed, ...]:
        """Return which held requests go where, one after the other; a request that fits no worker is skipped."""
        asked, waited_ns = self._asked([state.held[request_id] for request_id in waiting], now_ns)
        columns, anyway = astuple(asked), self._anyway(batch, asked, waited_ns)
        placed: list[pb.Placed] = []
        candidates: CandidateFilter | None = None
        at = 0
        while at < len(waiting):
            wanted = pb.Wanted(*(column.item(at) for column in columns))
            row = self._choose(batch, wanted, anyway[at])
            if row is not None:
                batch.take(row, wanted)
                placed.append(pb.Placed(waiting[at], row, wanted))
            else:
                candidates = candidates or CandidateFilter(batch, asked, anyway)
                candidates.failed(at)
            at = at + 1 if candidates is None else candidates.after(at)
        return tuple(placed)

    def _choose(self, batch: pb.PlacementBatch, wanted: pb.Wanted, anyway: bool) -> int | None:
        """Return the row of the request's worker; None: it stays held."""
        row = batch.choose(wanted)
        if row is None and self.opens == "unchecked":
            row = next((i for i, count in enumerate(batch.requests.tolist()) if not count), None)
        return batch.least(wanted) if row is None and anyway else row

    def _asked(self, helds: Sequence[Held], now_ns: int) -> tuple[pb.Wanted, Ints]:
        """Return the held requests as columns, and how long each has waited."""
        prompts, outputs = column([h.prompt_tokens for h in helds]), column([h.output_tokens for h in helds])
        due = column([h.due_ns for h in helds])
        counted = outputs if self.output == "predicted" else np.zeros_like(outputs)
        in_time = lim.prefill_slack(self.lines, prompts, now_ns, due) >= 0
        waited_ns = now_ns - column([h.request.arrival_ns for h in helds])
        deadlines, declared = np.where(in_time, due, pb.FOREVER_NS), column([h.declared_tokens for h in helds])
        return pb.Wanted(prompts, outputs, counted, deadlines, declared), waited_ns

    def _anyway(self, batch: pb.PlacementBatch, asked: pb.Wanted, waited_ns: Ints) -> Bools:
        """Flag requests that are placed in any case: they waited too long, or no worker could ever hold them."""
        p, context = self.lines, lim.context_cost(asked.prompt_tokens, asked.counted_tokens, self.gamma_percent)
        anyway: Bools = waited_ns > self.patience_us * 1_000
        anyway |= batch.rules.decode_slack(1, context) < 0
        peaks = lim.peak_kv(p, asked.prompt_tokens, asked.output_tokens)
        anyway |= np.maximum(peaks, asked.declared_tokens) > batch.capacity.max()
        return anyway

    def _rows(self, state: AladdinState, loads: Sequence[WorkerLoad], now_ns: int, true: bool) -> list[pb.Row]:
        """Return the workers as this heartbeat finds them; `true`: as they are, and not as the plan believed."""
        rates, lines, as_mended = (self.theta_percent, self.tpot_us * 1_000), self.lines, self.slack != "printed"
        rows = []
        for load in loads:
            believed = state.workers.get(load.worker, EMPTY_WORKER)
            batch, context = self._counted(believed, true)
            saved, begins_ns = pb.FOREVER_NS, now_ns
            running = believed.saved.size
            if running:
                saved = lim.saved_now(*rates, believed.saved.first()[0], believed.clock, now_ns)
                if as_mended:
                    begins_ns += lines.decode_ns(running, context // 100)
            if as_mended:
                saved = lim.least_saved(saved, believed.total.batch - running)
            due = believed.deadlines.first()[0] if believed.deadlines.size else pb.FOREVER_NS
            rows.append(pb.Row(load.worker, load.kv_capacity_tokens, believed, batch, context, begins_ns, due, saved))
        return rows

    def _counted(self, believed: Believed, true: bool) -> tuple[int, int]:
        """Return the requests and context of (b)."""
        gamma, sums = self.gamma_percent, believed.total
        output_tokens = sums.output_tokens
        if self.output == "generated":
            output_tokens = believed.saved.size * believed.clock - believed.starts
        batch, context = sums.batch, lim.context_cost(sums.prompt_tokens, output_tokens, gamma)
        if true:
            return batch, context
        over, ghost = believed.over, believed.ghost
        prompts, outputs = ghost.prompt_tokens - over.prompt_tokens, ghost.output_tokens - over.output_tokens
        return batch + ghost.batch - over.batch, context + lim.context_cost(prompts, outputs, gamma)

    def _foreseen_anew(self, state: AladdinState, view: ClusterView) -> AladdinState:
        """Predict anew what outlived its prediction, and drop ghosts that ended.  O(workers + what changed)."""
        every = state.workers
        for load in view.workers:
            worker = every.get(load.worker)
            if worker is None:
                continue
            changed = without_ended_ghosts(worker)
            while changed.ends.size and changed.ends.first()[0] < changed.clock:
                request_id = changed.ends.first()[1]
                changed = self.tracker.refiled(changed, request_id, self._anew(state, changed, request_id))
            if changed is not worker:
                every = every.set(load.worker, changed)
        return state if every is state.workers else replace(state, workers=every)

    def _anew(self, state: AladdinState, worker: Believed, request_id: int) -> Member:
        member = worker.members[request_id]
        if member.start is None:
            return replace(member, came=worker.clock)
        done = worker.clock - member.start
        prompt_tokens = member.prompt_tokens - member.generated
        foreseen = state.history.longer_than(prompt_tokens, done + member.generated, member.most + member.generated)
        output_tokens = max(foreseen - member.generated, done + 1)
        return replace(member, output_tokens=output_tokens, over=self.errors != "follow")


@attrs.frozen
class AladdinPrinted(Aladdin):
    """As printed: (b) counts the tokens that exist, a new worker is not checked, (d) grants a target too much, the norm
    adds requests and tokens, and Algorithm 2 corrects errors."""

    name: ClassVar[str] = "aladdin-printed"
    theorems: ClassVar[tuple[Theorem, ...]] = ()

    norm: pb.Norm = attrs.field(default="printed", validator=one_of("normalised", "printed"))
    slack: Slack = attrs.field(default="printed", validator=one_of("earned", "printed"))
    output: Output = attrs.field(default="generated", validator=one_of("predicted", "generated"))
    opens: Opens = attrs.field(default="unchecked", validator=one_of("checked", "unchecked"))
    errors: Errors = attrs.field(default="rebalance", validator=one_of("follow", "rebalance", "ignore"))


# --- variants ---------------------------------------------------------------------------------------------------------


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

    def _choose(self, batch: PlacementBatch, wanted: Wanted, anyway: bool) -> int | None:
        """Return the row of a prompt: one that is late anywhere goes where prompts are computed soonest, behind those
        that are in time."""
        could = batch.capacity >= wanted.declared_tokens
        if wanted.deadline_ns == pb.FOREVER_NS and could.any():
            return int(np.where(could, batch.computed, pb.FOREVER_NS).argmin())
        return super()._choose(batch, wanted, anyway)

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

        A request that no decode worker could hold goes on where it is.
        """
        staged = state.handovers.staged[: self.lookahead]
        if not staged:
            return (), state
        batch = PlacementBatch(self.rules("be"), self._rows(state, decode, now_ns, True)) if decode else None
        migrations = []
        for request_id in staged:
            handover = state.handovers.requests[request_id]
            held = self.tracker.held(handover.request, handover.generated_tokens)
            able = batch is not None and held.declared_tokens <= batch.capacity.max()
            target = self._decodes(batch, held, now_ns - handover.since_ns) if batch and able else handover.source
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
        output_tokens, declared_tokens = held.output_tokens, held.declared_tokens
        wanted = Wanted(held.prompt_tokens, output_tokens, output_tokens, declared_tokens=declared_tokens)
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
