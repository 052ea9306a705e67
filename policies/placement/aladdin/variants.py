"""Aladdin with split phases: prompts are computed by some workers, outputs by the others, each under its own limits.

Source: Aladdin, section 4.5.  A prefill worker gets requests under (c) alone, as there is no output to hold back.  When
a request has its first token, it goes with its KV to the decode worker that is fullest under (b) and (e); there is no
(d), since nothing is prefilled there.  Where none has room it stays and decodes where it is, and is tried again.

`prefill_workers` are those with the lowest numbers, as many as the parameter says.  A move that an engine refuses is
not tried again: the books have the request at its target until it ends.
"""

from typing import ClassVar

import attrs
from msgspec.structs import replace

from fairsched.model.plan import ClusterPlan, Migration
from fairsched.model.theorem import Theorem
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies.aladdin import Aladdin
from fairsched.policies.aladdin_books import AladdinState, without
from fairsched.policies.aladdin_draft import Draft, Wanted
from fairsched.policies.aladdin_worker import Member
from fairsched.policies.validators import positive


@attrs.frozen
class AladdinSplit(Aladdin):
    """Prefill and decode by different workers; a heartbeat as Aladdin's, and O(requests at prefill workers)."""

    name: ClassVar[str] = "aladdin-split"
    theorems: ClassVar[tuple[Theorem, ...]] = ()

    heartbeat_us: int = attrs.field(default=10_000, validator=positive)
    prefill_workers: int = attrs.field(default=1, validator=positive)

    def decide(self, state: AladdinState, view: ClusterView) -> tuple[ClusterPlan, AladdinState]:
        state = self._foreseen_anew(state, view)
        first = {load.worker for load in view.workers if load.worker < self.prefill_workers}
        compute = tuple(load for load in view.workers if load.worker in first)
        decode = tuple(load for load in view.workers if load.worker not in first)
        waiting = [i for _, i in state.waiting][: self.lookahead]
        # Without workers of its own a phase takes all there are.
        plan, state = self._heartbeat(state, replace(view, workers=compute or view.workers), waiting, "c")
        migrations: tuple[Migration, ...] = ()
        if compute and decode:
            migrations, state = self._handed_over(state, compute, decode, view.now_ns)
        return ClusterPlan(plan.dispatches, migrations), state

    def _handed_over(
        self, state: AladdinState, compute: tuple[WorkerLoad, ...], decode: tuple[WorkerLoad, ...], now_ns: int
    ) -> tuple[tuple[Migration, ...], AladdinState]:
        """Who has a first token goes on to a decode worker, the one first that has had it longest."""
        ready = sorted(
            (member.first_ns, request_id, load.worker)
            for load in compute
            if load.worker in state.workers
            for request_id, member in state.workers[load.worker].members.items()
            if member.start is not None
        )
        if not ready:
            return (), state
        draft = Draft(self.rules("be"), self._rows(state, decode, now_ns, True))
        migrations = []
        for _, request_id, source in ready:
            worker = state.workers[source]
            member = _carried(worker.members[request_id], worker.clock)
            wanted = Wanted(member.prompt_tokens, member.output_tokens, member.output_tokens, None)
            row = draft.choose(wanted)
            if row is not None:
                target = draft.rows[row].worker
                draft.take(row, wanted)
                state = self._joins(without(self, state, request_id), request_id, target, member)
                migrations.append(Migration(request_id, source, target, with_kv=True))
        return tuple(migrations), state


def _carried(member: Member, clock: int) -> Member:
    """The request as it comes to another worker, with what it has produced."""
    done = clock - (member.start or 0)
    return replace(
        member,
        prompt_tokens=member.prompt_tokens + done,
        output_tokens=max(member.output_tokens - done, 1),
        most=max(member.most - done, 1),
        generated=member.generated + done,
        deadline_ns=None,
        start=None,
        over=False,
    )
