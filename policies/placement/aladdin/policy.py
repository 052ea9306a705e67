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
import numpy as np
from msgspec.structs import replace

from fairsched.model.plan import ClusterPlan, Dispatch
from fairsched.model.theorem import Theorem
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies import aladdin_worker as workers
from fairsched.policies.aladdin_books import AladdinState, Books, Errors, Held, Opens, Output, Slack, released
from fairsched.policies.aladdin_draft import FOREVER_NS, Draft, Norm, Row, Wanted, column
from fairsched.policies.aladdin_hopes import Asked, Hopes
from fairsched.policies.aladdin_limits import context_cost, decode_slack, peak_kv, prefill_slack, saved_rates
from fairsched.policies.aladdin_memory import Flags, Ints
from fairsched.policies.aladdin_rebalance import Placed, errors, rebalanced
from fairsched.policies.aladdin_theorems import THEOREMS
from fairsched.policies.aladdin_worker import NOBODY, Believed, Member
from fairsched.policies.validators import one_of


@attrs.frozen
class Aladdin(Books):
    """Best fit of requests into workers under both targets.

    A heartbeat O(workers + held requests looked at), and each of those that is tried O(workers) in numpy's columns and
    O(requests) for each worker whose memory is not obviously enough; an event O(log n).
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
        draft = Draft(rules, self._rows(state, view.workers, view.now_ns, self.errors == "follow"))
        placed = self._placed(state, draft, view.now_ns, waiting)
        if self.errors == "rebalance" and len(placed):
            true = Draft(rules, self._rows(state, view.workers, view.now_ns, True))
            for each in placed:
                true.take(each.row, each.wanted)
            placed = rebalanced(true, errors(true), placed)
        dispatches = []
        for each in placed:
            held = state.held[each.request_id]
            worker = draft.rows[each.row].worker
            state = released(state, held)
            member = self._member(held, view.now_ns)
            state = self._joins(state, each.request_id, worker, member)
            dispatches.append(Dispatch(each.request_id, worker))
        return ClusterPlan(tuple(dispatches)), state

    def _placed(self, state: AladdinState, draft: Draft, now_ns: int, waiting: Sequence[int]) -> tuple[Placed, ...]:
        """Which of the held requests go where, one after the other; whoever can find no worker is passed over."""
        asked, waited_ns = self._asked([state.held[request_id] for request_id in waiting], now_ns)
        anyway = self._anyway(draft, asked, waited_ns)
        placed: list[Placed] = []
        hopes: Hopes | None = None
        at = 0
        while at < len(waiting):
            wanted = asked.at(at)
            row = self._choose(draft, wanted, anyway[at])
            if row is not None:
                draft.take(row, wanted)
                placed.append(Placed(waiting[at], row, wanted))
            else:
                hopes = hopes or Hopes(draft, asked, anyway)
                hopes.failed(at)
            at = at + 1 if hopes is None else hopes.after(at)
        return tuple(placed)

    def _choose(self, draft: Draft, wanted: Wanted, anyway: bool) -> int | None:
        """Where the request goes; None: nowhere yet."""
        row = draft.choose(wanted)
        if row is None and self.opens == "unchecked":
            row = next((i for i, batch in enumerate(draft.batch.tolist()) if not batch), None)
        return draft.least(wanted) if row is None and anyway else row

    def _asked(self, helds: Sequence[Held], now_ns: int) -> tuple[Asked, Ints]:
        """Held requests side by side, and for how long each has been waiting."""
        prompts, outputs = column([h.prompt_tokens for h in helds]), column([h.output_tokens for h in helds])
        due = column([h.due_ns for h in helds])
        counted = outputs if self.output == "predicted" else np.zeros_like(outputs)
        in_time = prefill_slack(self.lines, prompts, now_ns, due) >= 0
        waited_ns = now_ns - column([h.request.arrival_ns for h in helds])
        return Asked(prompts, outputs, counted, np.where(in_time, due, FOREVER_NS)), waited_ns

    def _anyway(self, draft: Draft, asked: Asked, waited_ns: Ints) -> Flags:
        """Who goes somewhere in any case: after waiting too long, or with too much for the largest worker, if empty."""
        p, context = self.lines, context_cost(asked.prompt_tokens, asked.counted_tokens, self.gamma_percent)
        anyway: Flags = waited_ns > self.patience_us * 1_000
        anyway |= decode_slack(p, self.theta_percent, self.tpot_us * 1_000, 1, context) < 0
        anyway |= peak_kv(p, asked.prompt_tokens, asked.output_tokens) > draft.capacity.max()
        return anyway

    def _rows(self, state: AladdinState, loads: Sequence[WorkerLoad], now_ns: int, true: bool) -> list[Row]:
        """The workers as this heartbeat finds them; `true`: as they are, and not as the plan believed."""
        per_iteration, per_ns = saved_rates(self.slack, self.theta_percent, self.tpot_us * 1_000)
        passed, lines, residual = per_ns * now_ns, self.lines, self.slack != "printed"
        rows = []
        for load in loads:
            believed = state.workers.get(load.worker, NOBODY)
            batch, context = self._counted(believed, true)
            saved, begins_ns = FOREVER_NS, now_ns
            running = believed.saved.size
            if running:
                saved = believed.saved.first()[0] + per_iteration * believed.clock - passed
                if residual:
                    begins_ns += lines.decode_ns(running, context // 100)
            due = believed.deadlines.first()[0] if believed.deadlines.size else FOREVER_NS
            rows.append(Row(load.worker, load.kv_capacity_tokens, believed, batch, context, begins_ns, due, saved))
        return rows

    def _counted(self, believed: Believed, true: bool) -> tuple[int, int]:
        """Requests and context of (b)."""
        gamma, sums = self.gamma_percent, believed.everybody
        output_tokens = sums.output_tokens
        if self.output == "generated":
            output_tokens = believed.saved.size * believed.clock - believed.starts
        batch, context = sums.batch, context_cost(sums.prompt_tokens, output_tokens, gamma)
        if true:
            return batch, context
        over, ghost = believed.over, believed.ghost
        context += context_cost(
            ghost.prompt_tokens - over.prompt_tokens, ghost.output_tokens - over.output_tokens, gamma
        )
        return batch + ghost.batch - over.batch, context

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
