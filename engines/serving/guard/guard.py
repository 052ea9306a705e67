"""The guard around a policy: whatever the policy does, the worker gets a plan that it can execute, and says why.

A decision is refused when it is infeasible (`model.feasible`, and the worker's own transition), when it raises, comes
late or does nothing while something could be done, and when requests only go in and out of the batch.  Then the
fallback decides, another policy; if that fails too, the plan of last resort: finish what runs, one by one.  A refused
decision leaves no trace in the policy's state: it observes what really happened.

A policy that cannot be told what happened has lost track, and its state is made anew from the worker's present
(`engines.guard_history`).  After `failures_max` failures with no good decision in between the policy is set aside,
and the fallback serves until `replace` puts a policy in again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Literal

import attrs

from fairsched.engines.guard_advisor import Advisor, LateError, ObserveError
from fairsched.engines.guard_history import history
from fairsched.model import worker as transitions
from fairsched.model.events import Admitted, Decoded, Event, Preempted, SwappedIn, SwappedOut
from fairsched.model.feasible import violations
from fairsched.model.plan import Admission, StepPlan
from fairsched.model.request import Client
from fairsched.model.worker import InfeasiblePlanError
from fairsched.model.worker_state import WorkerState
from fairsched.policies.base import LocalPolicy

Cause = Literal["infeasible", "exception", "observe", "late", "stalled", "thrash", "set-aside", "fallback"]
"""Why somebody else than the policy decided.  "observe": it could not be told what happened; "stalled": its plan does
nothing though something could be done; "thrash": it preempts again and again and nothing is produced; "fallback":
the fallback failed too."""

CAUSES: tuple[Cause, ...] = (
    "infeasible",
    "exception",
    "observe",
    "late",
    "stalled",
    "thrash",
    "set-aside",
    "fallback",
)

PENDING_MAX = 1 << 17
"""A policy that has not been told so many events, since a call of it does not return, is set aside."""

_FOLDED = frozenset({Admitted, Preempted, SwappedIn, SwappedOut})
_log = logging.getLogger("fairsched.guard")

Rebuild = Callable[[LocalPolicy[Any], Any, list[Event]], Any]
"""Makes a policy's state anew: from the policy, the last state that it had (None: none), and the worker's history."""


def from_history(policy: LocalPolicy[Any], _: Any, events: list[Event]) -> Any:
    """The state of a policy that saw just this history: debts of requests that are over are forgiven."""
    state = policy.init()
    for event in events:
        state = policy.observe(state, event)
    return state


@attrs.frozen
class Begun:
    """A plan that the worker has begun: the state and events of `worker.begin`, and why it is not the policy's own."""

    plan: StepPlan
    state: WorkerState
    events: list[Event]
    cause: Cause | None = None

    @property
    def computes(self) -> bool:
        """Whether the step computes anything."""
        return bool(self.plan.chunks) or (self.plan.decode and self.state.decoding > 0)


class Guard:
    """A policy, its fallback, and what came of the policy's decisions.

    `interventions` counts the steps that somebody else decided, by cause; `last_error` says what the last one was
    about.  `clients` gives the clients with their weights, for whoever must be told the present.
    """

    def __init__(
        self,
        policy: LocalPolicy[Any],
        fallback: LocalPolicy[Any] | None = None,
        *,
        state: Any = None,
        budget_ns: int | None = None,
        failures_max: int = 8,
        clients: Callable[[], Iterable[Client]] = tuple,
        rebuild: Rebuild = from_history,
    ) -> None:
        if failures_max < 1:
            raise ValueError(f"failures_max is at least 1, not {failures_max}")
        self.interventions: Counter[Cause] = Counter()
        self.last_error = ""
        self.set_aside: str | None = None
        self.fallback_policy = fallback
        self._budget_ns = budget_ns
        self._failures_max = failures_max
        self._clients = clients
        self._rebuild = rebuild
        self._advisor = Advisor(policy, state, budget_ns)
        self._fallback: Advisor | None = None
        self._failures = 0
        self._preempted = 0

    # --- the policy and its state -----------------------------------------------------------------------------------

    @property
    def policy(self) -> LocalPolicy[Any]:
        """The policy that decides while it does well."""
        return self._advisor.policy

    @property
    def policy_state(self) -> Any:
        """The policy's state, with all that happened unless the policy refuses to be told."""
        try:
            self._advisor.catch_up()
        except ObserveError as error:
            self.last_error = str(error)
        return self._advisor.state

    def replace(self, policy: LocalPolicy[Any], state: Any, worker: WorkerState, now_ns: int) -> None:
        """Another policy decides from now on, with this state; with None it is told the worker's present."""
        if state is None:
            state = self._rebuild(policy, None, history(worker, self._clients(), now_ns))
        self._advisor.close()
        self._advisor = Advisor(policy, state, self._budget_ns)
        self.set_aside, self._failures = None, 0

    def observe(self, events: list[Event]) -> None:
        """What happened, other than what `begin` returned."""
        self._tell(events, None)

    def _tell(self, events: list[Event], decided_by: Advisor | None) -> None:
        """Everybody learns the events; whoever decided them has folded its admissions and preemptions already."""
        for advisor in (self._advisor, self._fallback):
            if advisor is None or (advisor is self._advisor and self.set_aside is not None):
                continue
            if advisor is decided_by:
                advisor.pending += [event for event in events if type(event) not in _FOLDED]
            else:
                advisor.pending += events
        for event in events:
            kind = type(event)
            if kind is Decoded:
                self._preempted = 0
            elif kind is Preempted and decided_by is self._advisor:
                # What an executor that died took out of the batch is not the policy's doing.
                self._preempted += 1

    # --- deciding ---------------------------------------------------------------------------------------------------

    def begin(self, state: WorkerState, now_ns: int) -> Begun:
        """Decide the next step of a worker that has something to do, and begin it.  Never raises.

        What the policy costs, and O(plan) for the checks; O(worker) when somebody has to be told everything anew.
        """
        begun = self._of_policy(state, now_ns)
        if isinstance(begun, Begun):
            self._failures = 0
            self._tell(begun.events, self._advisor)
            return begun
        self.interventions[begun] += 1
        if self.interventions[begun] == 1:
            _log.warning("worker %d: the fallback decides (%s): %s", state.worker, begun, self.last_error)
        return self._of_fallback(state, begun, now_ns)

    def _of_policy(self, state: WorkerState, now_ns: int) -> Begun | Cause:
        """The policy's own plan, begun, or why there is none."""
        if self.set_aside is not None:
            return "set-aside"
        if self._preempted > 2 * (len(state.in_flight) + len(state.queue)) + 2:
            return self._failed("thrash", f"{self._preempted} preemptions since the last output token")
        advisor, waits_for_answer = self._advisor, self._advisor.asked
        try:
            begun, after = _asked(advisor, state, now_ns)
        except LateError as error:
            if waits_for_answer and len(advisor.pending) < PENDING_MAX:
                return "late"  # Counted as a failure when it was asked.
            return self._failed("late", str(error))
        except ObserveError as error:
            return self._lost_track(error, state, now_ns)
        except InfeasiblePlanError as error:
            return self._failed("infeasible", str(error))
        except Exception as error:
            return self._failed("exception", f"{type(error).__name__}: {error}")
        if not begun.computes and not begun.events:
            return self._failed(
                "stalled", f"{len(state.queue)} wait, {len(state.in_flight)} run, and the plan does nothing"
            )
        advisor.state = after
        return begun

    def _lost_track(self, error: ObserveError, state: WorkerState, now_ns: int) -> Cause:
        """The policy's state is made anew from the worker's present."""
        advisor, events = self._advisor, history(state, self._clients(), now_ns)
        try:
            rebuilt = self._rebuild(advisor.policy, advisor.state, events)
        except Exception as again:
            self._failures = self._failures_max
            return self._failed("observe", f"{error}; and its state cannot be made anew: {again}")
        advisor.state = rebuilt
        advisor.pending.clear()
        return self._failed("observe", str(error))

    def _failed(self, cause: Cause, why: str) -> Cause:
        self.last_error = why
        self._failures += 1
        if self._failures >= self._failures_max or len(self._advisor.pending) >= PENDING_MAX:
            self.set_aside = f"{cause}: {why}"
            self._advisor.pending.clear()
            _log.error("the policy is set aside after %d failures: %s", self._failures, self.set_aside)
        return cause

    def _of_fallback(self, state: WorkerState, cause: Cause, now_ns: int) -> Begun:
        """The fallback's plan, or the one of last resort."""
        try:
            if self._fallback is None and self.fallback_policy is not None:
                events = history(state, self._clients(), now_ns)
                self._fallback = Advisor(self.fallback_policy, from_history(self.fallback_policy, None, events))
            if self._fallback is not None:
                begun, after = _asked(self._fallback, state, now_ns)
                if begun.computes:
                    self._fallback.state = after
                    self._tell(begun.events, self._fallback)
                    return attrs.evolve(begun, cause=cause)
                self.last_error = "the fallback's plan computes nothing"
        except Exception as error:
            self.last_error = f"the fallback failed too: {type(error).__name__}: {error}"
        if self.fallback_policy is not None:
            # It is told the present anew when it is needed again.
            self._fallback = None
            self.interventions["fallback"] += 1
            _log.error("worker %d: %s", state.worker, self.last_error)
        plan, after_state, events = last_resort(state, now_ns)
        self._tell(events, None)
        return Begun(plan, after_state, events, cause)

    def close(self) -> None:
        """Let threads end."""
        self._advisor.close()


def _asked(advisor: Advisor, state: WorkerState, now_ns: int) -> tuple[Begun, Any]:
    """An advisor's plan, begun, and its state if the plan is executed.  Raises whatever speaks against it."""
    view = state.view(now_ns)
    plan, after = advisor.ask(view)
    try:
        if wrong := violations(plan, view):
            raise InfeasiblePlanError(f"worker {state.worker}: {'; '.join(wrong)}")
        state, events = transitions.begin(state, plan, now_ns)
    except InfeasiblePlanError:
        raise
    except Exception as error:
        raise InfeasiblePlanError(f"worker {state.worker}: {plan!r} is no plan ({type(error).__name__})") from error
    return Begun(plan, state, events), after


def last_resort(state: WorkerState, now_ns: int) -> tuple[StepPlan, WorkerState, list[Event]]:
    """A plan that is always possible and always computes: what runs goes on, and if nothing runs the oldest enters.

    Where memory is short, the youngest leave the batch first; whoever is alone fits.
    """
    if not state.in_flight:
        waiting = min(state.queue.values(), key=lambda w: (w.request.arrival_ns, w.request.id))
        request, context = waiting.request, waiting.request.prompt.tokens + waiting.generated_tokens
        extend = context - state.cache.cached_tokens(request.prompt)
        reserved = request.max_output_tokens - waiting.generated_tokens
        admission = Admission(request.id, request.client, extend, context - extend, reserved)
        plan = StepPlan(admit=(admission,), chunks=((request.id, extend),), decode=False)
        return plan, *transitions.begin(state, plan, now_ns)
    leave: tuple[int, ...] = ()
    for _, youngest in reversed(state.ranks):
        chunks = tuple(chunk for chunk in state.prefilling if chunk[0] not in leave)
        plan = StepPlan(preempt=leave, chunks=chunks)
        try:
            return plan, *transitions.begin(state, plan, now_ns)
        except InfeasiblePlanError:
            leave = (*leave, youngest)
    raise AssertionError(f"worker {state.worker}: a request that is alone does not fit")
