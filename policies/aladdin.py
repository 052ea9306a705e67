"""Aladdin: every 50 ms new requests go to the fullest worker where everybody still keeps the targets.

Paper: "Aladdin: Joint Placement and Scaling for SLO-Aware LLM Serving", section 4, Algorithms 1 and 2; its errors and
what we do instead are in docs/aladdin.md, and `AladdinPrinted` keeps them.

A worker takes a request if (b) an iteration over all its requests stays below theta of the target per output token,
each counted with its prompt and gamma of its foreseen output; (c) all its new prompts are computed before the earliest
deadline of a first token; (d) while they are, no running request loses more than it has saved; (e) its memory is never
passed, if requests start now and advance together, or (`reserve` = peaks) whenever they start.  The fullest worker by
the norm of requests and context takes it; nobody there takes it, and it is held.  A worker without requests is what the
paper calls a new one: it is the emptiest, and is held to the same.

A request that could not keep its targets on an empty worker, or was held for `patience_us`, goes where least is.

Assumptions: predictions are upper bounds for (e) and gamma = 100 (PredictionsBound), requests start when they are
placed (StartsAtOnce).  Theorems: P-ALD-1 to P-ALD-8, `aladdin_theorems`.  State: who is believed where.
"""

from collections.abc import Sequence
from itertools import islice
from typing import ClassVar

import attrs
from msgspec.structs import replace

from fairsched.model.plan import ClusterPlan, Dispatch
from fairsched.model.theorem import Theorem
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies import aladdin_worker as workers
from fairsched.policies.aladdin_books import AladdinState, Books, Errors, Held, Opens, Output, Slack, released
from fairsched.policies.aladdin_draft import FOREVER_NS, Draft, Norm, Row, Wanted
from fairsched.policies.aladdin_limits import context_cost, decode_slack, peak_kv, saved_rates
from fairsched.policies.aladdin_rebalance import Placed, errors, rebalanced
from fairsched.policies.aladdin_theorems import THEOREMS
from fairsched.policies.aladdin_worker import Believed, Member
from fairsched.policies.validators import one_of


@attrs.frozen
class Aladdin(Books):
    """Best fit of requests into workers under both targets.

    A heartbeat O(workers), and each request that it looks at O(workers) in numpy's columns and O(requests) for each
    worker whose memory is not obviously enough; an event O(log n).
    """

    name: ClassVar[str] = "aladdin"
    theorems: ClassVar[tuple[Theorem, ...]] = THEOREMS

    def decide(self, state: AladdinState, view: ClusterView) -> tuple[ClusterPlan, AladdinState]:
        return self._heartbeat(
            self._foreseen_anew(state, view), view, [i for _, i in islice(state.waiting, self.lookahead)]
        )

    def _heartbeat(
        self, state: AladdinState, view: ClusterView, waiting: Sequence[int], checks: str = "bcde"
    ) -> tuple[ClusterPlan, AladdinState]:
        """Where these requests go, of the view's workers."""
        if not waiting or not view.workers:
            return ClusterPlan(), state
        rules = self.rules(checks)
        draft = Draft(rules, [self._row(state, load, view.now_ns, self.errors == "follow") for load in view.workers])
        placed = self._placed(state, draft, view.now_ns, waiting)
        if self.errors == "rebalance" and len(placed):
            true = Draft(rules, [self._row(state, load, view.now_ns, True) for load in view.workers])
            for each in placed:
                true.take(each.row, each.wanted)
            placed = rebalanced(true, errors(true), placed)
        dispatches = []
        for each in placed:
            held = state.held[each.request_id]
            worker = draft.rows[each.row].worker
            state = released(state, held)
            member = self._member(held.request, held.generated, view.now_ns, 0)
            state = self._joins(state, each.request_id, worker, member)
            dispatches.append(Dispatch(each.request_id, worker))
        return ClusterPlan(tuple(dispatches)), state

    def _placed(self, state: AladdinState, draft: Draft, now_ns: int, waiting: Sequence[int]) -> tuple[Placed, ...]:
        """Which of the held requests go where, one after the other."""
        placed = []
        for request_id in waiting:
            held = state.held[request_id]
            wanted = self._wanted(held, now_ns)
            row = draft.choose(wanted)
            if row is None and self.opens == "unchecked":
                row = next((i for i, batch in enumerate(draft.batch.tolist()) if not batch), None)
            if row is None and (self._waited(held, now_ns) or not self._fits_alone(draft, wanted)):
                row = draft.least(wanted)
            if row is not None:
                draft.take(row, wanted)
                placed.append(Placed(request_id, row, wanted))
        return tuple(placed)

    def _wanted(self, held: Held, now_ns: int) -> Wanted:
        member = self._member(held.request, held.generated, now_ns, 0)
        counted = member.output_tokens if self.output == "predicted" else 0
        return Wanted(member.prompt_tokens, member.output_tokens, counted, member.deadline_ns)

    def _waited(self, held: Held, now_ns: int) -> bool:
        return now_ns - held.request.arrival_ns > self.patience_us * 1_000

    def _fits_alone(self, draft: Draft, wanted: Wanted) -> bool:
        """Whether the largest worker could take it, were it empty."""
        p, context = self.lines, context_cost(wanted.prompt_tokens, wanted.counted_tokens, self.gamma_percent)
        within = decode_slack(p, self.theta_percent, self.tpot_us * 1_000, 1, context) >= 0
        return bool(within and peak_kv(p, wanted.prompt_tokens, wanted.output_tokens) <= draft.capacity.max())

    def _row(self, state: AladdinState, load: WorkerLoad, now_ns: int, true: bool) -> Row:
        """A worker as this heartbeat finds it; `true`: as it is, and not as the plan believed."""
        believed = state.workers.get(load.worker, Believed())
        everybody, over, ghost = believed.everybody, believed.over, believed.ghost
        per_iteration, per_ns = saved_rates(self.slack, self.theta_percent, self.tpot_us * 1_000)
        if self.output == "generated":
            done = believed.saved.size * believed.clock - believed.starts
            context = context_cost(everybody.prompt_tokens, done, self.gamma_percent)
        else:
            context = self._context(everybody)
        batch = everybody.batch
        if not true:
            batch += ghost.batch - over.batch
            context += self._context(ghost) - self._context(over)
        running = believed.saved.size
        under_way = self.lines.decode_ns(running, context // 100) if running else 0
        saved = believed.saved.first()[0] + per_iteration * believed.clock - per_ns * now_ns if running else FOREVER_NS
        return Row(
            worker=load.worker,
            capacity=load.kv_capacity_tokens,
            believed=believed,
            batch=batch,
            context=context,
            begins_ns=now_ns + (under_way if self.slack != "printed" else 0),
            deadline_ns=believed.deadlines.first()[0] if believed.deadlines.size else FOREVER_NS,
            saved=saved,
        )

    def _context(self, sums: workers.Sums) -> int:
        cost: int = context_cost(sums.prompt_tokens, sums.output_tokens, self.gamma_percent)
        return cost

    def _foreseen_anew(self, state: AladdinState, view: ClusterView) -> AladdinState:
        """Who outlived its prediction gets another, and ghosts whose end has come go.  O(workers + what changed)."""
        every = state.workers
        for load in view.workers:
            worker = every.get(load.worker)
            if worker is None:
                continue
            changed = workers.laid(worker)
            while changed.ends.size and changed.ends.first()[0] < changed.clock:
                request_id = changed.ends.first()[1]
                changed = self._refiled(changed, request_id, self._anew(state, changed, request_id))
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
    """As printed: (b) counts tokens that there are, a new worker is not checked, (d) grants a target too much, the norm
    adds requests and tokens, and errors are met by Algorithm 2."""

    name: ClassVar[str] = "aladdin-printed"
    theorems: ClassVar[tuple[Theorem, ...]] = ()

    norm: Norm = attrs.field(default="printed", validator=one_of("normalised", "printed"))
    slack: Slack = attrs.field(default="printed", validator=one_of("ahead", "earned", "printed"))
    output: Output = attrs.field(default="generated", validator=one_of("predicted", "generated"))
    opens: Opens = attrs.field(default="unchecked", validator=one_of("checked", "unchecked"))
    errors: Errors = attrs.field(default="rebalance", validator=one_of("follow", "rebalance", "ignore"))
