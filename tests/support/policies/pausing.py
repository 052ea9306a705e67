"""A policy that pauses and resumes requests at random, whatever another one decides."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import attrs
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.simulation import Simulator
from fairsched.model.decision import StepPlan, WorkerView
from fairsched.model.events import Event
from fairsched.model.request import Request, Workload
from fairsched.model.worker import violations
from fairsched.policies.base import Guarantee, LocalPolicy, WaitReason
from fairsched.policies.catalog import VTC
from fairsched.policies.draw import draw
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local.state import requeued
from fairsched.policies.registry import ROUTERS
from tests.support.logs import LATENCY, Case


@attrs.frozen
class RandomPauses(LocalPolicy[Any]):
    """`inner`, but in each period of `every` decode steps some `percent` of the decoding requests are paused.

    Which ones is drawn anew for each period; one goes on where otherwise nothing would be computed.
    """

    inner: ComposedPolicy
    seed: int = 0
    every: int = 3
    percent: int = 40

    @property
    def state_type(self) -> Any:
        """The state is the inner policy's."""
        return self.inner.state_type

    def init(self) -> Any:
        return self.inner.init()

    def observe(self, state: Any, event: Event) -> Any:
        return self.inner.observe(state, event)

    def check(self, state: Any) -> None:
        self.inner.check(state)

    def state_to_json(self, state: Any) -> dict[str, Any]:
        return self.inner.state_to_json(state)

    def state_from_json(self, document: dict[str, Any]) -> Any:
        return self.inner.state_from_json(document)

    def refuses(self, request: Request) -> str | None:
        return self.inner.refuses(request)

    @property
    def guarantee(self) -> Guarantee:
        return self.inner.guarantee

    def wait_reason(self, state: Any, view: WorkerView, request_id: int) -> WaitReason:
        return self.inner.wait_reason(state, replace(view, paused=()), request_id)

    def decide(self, state: Any, view: WorkerView) -> tuple[StepPlan, Any]:
        plan, decided = self.inner.decide(state, replace(view, paused=()))
        rests = {request_id for request_id in view.in_flight if self._rests(request_id, view.clock)}
        leaving = {*plan.preempt, *plan.swap_out}
        decoding = {i for i, flight in view.in_flight.items() if flight.decodes} - leaving
        pause, resume = sorted(decoding & rests), [i for i in view.paused if i not in rests | leaving]
        if self.inner.batching.grows and (plan.chunks or leaving):
            # Whether memory lets more produce tokens beside prompts is not the view's to say.
            resume = []
        computes = bool(plan.chunks or (plan.decode and (decoding - rests or resume)))
        if not computes and not plan.admit and not plan.preempt and not plan.swap_out:
            # Nothing else would be computed.
            if pause:
                pause.pop()
            elif view.paused:
                resume = [view.paused[0]]
                plan = replace(plan, decode=True)
        for stop, go in ((pause, resume), (pause, []), ([], [])):
            changed = replace(plan, pause=tuple(stop), resume=tuple(go))
            if changed.changes_batch:
                changed = replace(changed, valid_steps=1)
            elif not plan.chunks:
                left = self.every - view.clock % self.every
                changed = replace(changed, valid_steps=min(left, plan.valid_steps or left))
            if not violations(changed, view) and (changed.changes_batch or changed.chunks or view.decoding):
                return changed, decided
        if view.paused:
            # All are paused, and memory lets none go on.
            youngest = view.paused[-1]
            return StepPlan((youngest,), decode=False), requeued(
                self.inner.order, self.inner.gate, state, youngest, view.decoded_tokens(youngest)
            )
        return plan, decided

    def _rests(self, request_id: int, clock: int) -> bool:
        return draw(self.seed + request_id, clock // self.every, 100) < self.percent


@attrs.frozen(init=False)
class PausesInTurns(VTC):
    """VTC that pauses some clients in turns while requests wait: which, depends on what came, runs and was charged."""

    pauses: ClassVar[bool] = True

    def paused_clients(self, state: Any, clients: Sequence[int]) -> tuple[int, ...]:
        """About half of them, those with the most tokens first."""
        if not state.queue.entries:
            return ()
        turn = state.queue.arrivals + 31 * len(state.flights) + int(state.gate.c.sum()) // 16
        chosen = [client for client in clients if draw(client, turn, 2)]
        return tuple(sorted(chosen, key=lambda client: (-int(state.gate.c[client]), client)))


def pauses_in_turns(good: VTC) -> PausesInTurns:
    """The policy with pauses."""
    return PausesInTurns(name=good.name, order=good.order, gate=good.gate, batching=good.batching)


PAUSES = st.builds(
    partial(partial, RandomPauses),
    seed=st.integers(0, 1_000),
    every=st.sampled_from([1, 3, 8]),
    percent=st.sampled_from([30, 70, 100]),
)
"""What makes a policy pause at random, given it as `inner`."""


def pause_at_random(simulator: Simulator) -> None:
    """Let the policy of a run, whose states stay its own, pause at random."""
    simulator.pool.policy = RandomPauses(simulator.pool.policy)  # type: ignore[arg-type]


def paused_run(workload: Workload, case: Case, pausing: Any, leap: bool, **options: Any) -> Simulator:
    """The run of the case with pauses, to be made."""
    chosen: dict[str, Any] = {"workers": case.workers, "kv_capacity_tokens": case.kv_capacity_tokens}
    policy = pausing(inner=case.build())
    return Simulator(
        workload, policy, ROUTERS[case.router], LATENCY, leap=leap, changes=case.changes, **chosen, **options
    )
