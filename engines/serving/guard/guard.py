"""The failsafe around a policy: whatever the policy does, the worker gets a plan that it can execute, and says why.

A decision is refused when it is infeasible (`model.worker.feasibility`, and the worker's own transition), when it
raises, comes late or does nothing while something could be done, and when requests only go in and out of the batch.
Then another policy decides, the fallback.  If that fails too, the plan of last resort holds: running requests finish,
one by one. A refused decision leaves no trace in the policy's state, which observes what really happened.

The state of a policy that refuses an event is made anew from the worker's present (`engines.serving.guard.history`).
After `failures_max` failures with no good decision in between the policy is set aside, and the fallback serves until
`replace` puts a policy in again.

`Failsafe` counts failures; `Guard` decides whole steps, `engines.serving.guard.admission` one admission at a time.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, TypeVar, get_args

import attrs

from fairsched.engines.serving.guard.advisor import Advisor, FaultError, ObserveError
from fairsched.engines.serving.guard.answers import plan_of
from fairsched.engines.serving.guard.budget import OverdueError, text_of
from fairsched.engines.serving.guard.history import history
from fairsched.model import worker as transitions
from fairsched.model.decision import Admission, StepPlan
from fairsched.model.events import Admitted, Decoded, Event, Paused, Preempted, Resumed, SwappedIn, SwappedOut
from fairsched.model.request import Client
from fairsched.model.worker import InfeasiblePlanError, WorkerState, violations
from fairsched.policies.base import AnyLocalPolicy

Cause = Literal["infeasible", "exception", "observe", "late", "stalled", "thrash", "set-aside", "fallback"]
"""Why a decision was not the policy's.  "observe": the policy refused an event; "stalled": its plan does nothing though
something could be done; "thrash": it preempts or pauses again and again and nothing is produced; "fallback": the
fallback failed too."""

CAUSES: tuple[Cause, ...] = get_args(Cause)

PENDING_MAX = 1 << 17
"""A policy with so many events to observe, since a call of it does not return, is set aside."""

_FOLDED = frozenset({Admitted, Paused, Preempted, Resumed, SwappedIn, SwappedOut})
_log = logging.getLogger("fairsched.guard")

Rebuild = Callable[[AnyLocalPolicy, Any, list[Event]], Any]
"""Make a policy's state anew: from the policy, the last state that it had (None: none), and the worker's history."""

C = TypeVar("C", bound=str)


class Failsafe(Generic[C]):
    """The failures of a policy, which is set aside after `failures_max` of them in a row.

    `interventions` counts the decisions that were not the policy's, by cause; `last_error` says what the last failure
    was about, and `set_aside` why the policy does not decide any more.  `fallback` says what holds then, for the `log`.
    """

    def __init__(self, log: logging.Logger, fallback: str, failures_max: int) -> None:
        if failures_max < 1:
            raise ValueError(f"failures_max is at least 1, not {failures_max}")
        self.interventions: Counter[C] = Counter()
        self.last_error = ""
        self.set_aside: str | None = None
        self.log = log
        self.fallback = fallback
        self._failures_max = failures_max
        self._failures = 0

    def fail(self, cause: C, why: str, *, at_once: bool = False) -> None:
        """Count a failure; `at_once` sets the policy aside, whatever came before."""
        self.last_error = why
        self._failures += 1
        if at_once or self._failures >= self._failures_max:
            self.set_aside = f"{cause}: {why}"
            self.log.error(
                "the policy is set aside after %d failures, %s from now on: %s",
                *(self._failures, self.fallback, self.set_aside),
            )

    def worked(self) -> None:
        """Count a decision of the policy that was executed: earlier failures do not count any more."""
        self._failures = 0


def from_history(policy: AnyLocalPolicy, _: object, events: list[Event]) -> Any:
    """Return the state of a policy that saw just this history: debts of requests that are over are forgiven."""
    state = policy.init()
    for event in events:
        state = policy.observe(state, event)
    return state


@attrs.frozen
class Begun:
    """A plan that the worker has begun: the state and events of `worker.begin`."""

    plan: StepPlan
    state: WorkerState
    events: list[Event]

    @property
    def computes(self) -> bool:
        """Whether the step computes anything."""
        return bool(self.plan.chunks) or (self.plan.decode and self.state.decoding > 0)


class Guard(Failsafe[Cause]):
    """A policy that decides a worker's steps, and its fallback.

    `clients` gives the clients with their weights, for a policy that must observe the worker's present.
    """

    def __init__(
        self,
        policy: AnyLocalPolicy,
        fallback: AnyLocalPolicy | None = None,
        *,
        state: object = None,
        budget_ns: int | None = None,
        failures_max: int = 8,
        clients: Callable[[], Iterable[Client]] = tuple,
        rebuild: Rebuild = from_history,
    ) -> None:
        super().__init__(_log, "the fallback decides", failures_max)
        self.fallback_policy = fallback
        self._budget_ns = budget_ns
        self._clients = clients
        self._rebuild = rebuild
        self._advisor = Advisor(policy, state, budget_ns)
        self._fallback: Advisor | None = None
        self._undone = 0
        self.may_idle = False
        """Whether it is no failure to let all requests of an idle worker wait: for credit that workers share."""

    # --- the policy and its state -----------------------------------------------------------------------------------

    @property
    def policy(self) -> AnyLocalPolicy:
        policy: AnyLocalPolicy = self._advisor.policy
        return policy

    @property
    def policy_state(self) -> Any:
        """The policy's state, with all that happened unless the policy refuses an event."""
        try:
            self._advisor.catch_up()
        except (ObserveError, OverdueError) as error:
            self.last_error = str(error)
        return self._advisor.state

    def check_out(self, seen: dict[str, Any], worker: int) -> None:
        """Let the policy see the credit that workers share as it is now, after all that happened here."""
        sharing = self.policy.shared_credit
        if sharing is not None:
            self._advisor.state = sharing.checkout(self.policy_state, sharing.seen_from_json(seen), worker)

    @property
    def busy(self) -> bool:
        """Whether a late call of the policy has not returned yet."""
        return self._advisor.busy

    def replace(self, policy: AnyLocalPolicy, state: object, worker: WorkerState, now_ns: int) -> None:
        """Let another policy decide from now on, with this state; with None it observes the worker's present."""
        if state is None:
            state = self._rebuild(policy, None, history(worker, self._clients(), now_ns))
        self._advisor = Advisor(policy, state, self._budget_ns)
        self.set_aside, self._failures = None, 0

    def observe(self, events: list[Event]) -> None:
        self._tell(events, None)

    def _tell(self, events: list[Event], decided_by: Advisor | None) -> None:
        """Queue the events for both policies; the one that decided has folded what its plan does to the batch."""
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
                self._undone = 0
            elif kind in (Preempted, Paused) and decided_by is self._advisor:
                # What an executor that died took out of the batch is not the policy's doing.
                self._undone += 1

    # --- deciding ---------------------------------------------------------------------------------------------------

    def begin(self, state: WorkerState, now_ns: int) -> Begun:
        """Decide the next step of a worker that has something to do, and begin it.  Never raises.

        Costs what the policy does, O(plan) for the checks, and O(worker) when a policy must observe everything anew.
        """
        begun = self._of_policy(state, now_ns)
        if isinstance(begun, Begun):
            self.worked()
            self._tell(begun.events, self._advisor)
            return begun
        self.interventions[begun] += 1
        if self.interventions[begun] == 1:
            _log.warning("worker %d: the fallback decides (%s): %s", state.worker, begun, self.last_error)
        return self._of_fallback(state, now_ns)

    def _of_policy(self, state: WorkerState, now_ns: int) -> Begun | Cause:
        """Return the policy's own plan, begun, or why there is none."""
        if self.set_aside is not None:
            return "set-aside"
        if self._undone > 2 * (len(state.in_flight) + len(state.queue)) + 2:
            return self._failed("thrash", f"{self._undone} preemptions and pauses since the last output token")
        advisor, waits_for_answer = self._advisor, self._advisor.busy
        try:
            begun, after = _asked(advisor, state, now_ns)
        except OverdueError as error:
            if waits_for_answer and len(advisor.pending) < PENDING_MAX:
                return "late"  # Counted as a failure when it was asked.
            return self._failed("late", str(error))
        except ObserveError as error:
            return self._lost_track(error, state, now_ns)
        except FaultError as error:
            return self._failed(error.cause, str(error))
        idles = not state.in_flight and (self.may_idle or waits_for_transfers(state))
        if not (begun.computes or begun.events or idles):
            return self._failed(
                "stalled", f"{len(state.queue)} requests wait, {len(state.in_flight)} run, and the plan does nothing"
            )
        advisor.state = after
        return begun

    def _lost_track(self, error: ObserveError, state: WorkerState, now_ns: int) -> Cause:
        """Make the policy's state anew from the worker's present."""
        advisor, events = self._advisor, history(state, self._clients(), now_ns)
        try:
            rebuilt = self._rebuild(advisor.policy, advisor.state, events)
        except Exception as again:
            self._failures = self._failures_max
            return self._failed("observe", f"{error}; and its state cannot be made anew: {text_of(again)}")
        advisor.state = rebuilt
        advisor.pending.clear()
        return self._failed("observe", str(error))

    def _failed(self, cause: Cause, why: str) -> Cause:
        self.fail(cause, why, at_once=len(self._advisor.pending) >= PENDING_MAX)
        if self.set_aside is not None:
            self._advisor.pending.clear()
        return cause

    def _of_fallback(self, state: WorkerState, now_ns: int) -> Begun:
        """Return the fallback's plan, or the one of last resort."""
        try:
            if self._fallback is None and self.fallback_policy is not None:
                events = history(state, self._clients(), now_ns)
                self._fallback = Advisor(self.fallback_policy, from_history(self.fallback_policy, None, events))
            if self._fallback is not None:
                begun, after = _asked(self._fallback, state, now_ns)
                if begun.computes:
                    self._fallback.state = after
                    self._tell(begun.events, self._fallback)
                    return begun
                self.last_error = "the fallback's plan computes nothing"
        except Exception as error:
            self.last_error = f"the fallback failed too: {text_of(error)}"
        if self.fallback_policy is not None:
            # It observes the present anew when it is needed again.
            self._fallback = None
            self.interventions["fallback"] += 1
            _log.error("worker %d: %s", state.worker, self.last_error)
        begun = last_resort(state, now_ns)
        self._tell(begun.events, None)
        return begun


def _asked(advisor: Advisor, state: WorkerState, now_ns: int) -> tuple[Begun, Any]:
    """Return an advisor's plan, begun, and its state if the plan is executed.  Raises what speaks against the plan."""
    view = state.view(now_ns)

    def begun(policy_state: Any) -> tuple[Begun, Any]:
        plan, after = plan_of(advisor.policy.decide(policy_state, view))
        if wrong := violations(plan, view):
            raise FaultError("infeasible", f"worker {state.worker}: {'; '.join(wrong)}")
        try:
            return Begun(plan, *transitions.begin(state, plan, now_ns)), after
        except Exception as error:
            why = f"worker {state.worker}: {text_of(plan)} cannot be begun ({text_of(error)})"
            raise FaultError("infeasible", why) from None

    return advisor.ask(begun)


def last_resort(state: WorkerState, now_ns: int) -> Begun:
    """Return a plan that is always possible and always computes.

    Running requests go on, paused ones too, and if none runs the oldest enters.  Where memory is short, the youngest
    leave the batch first; a request that is alone fits.
    """
    if not state.in_flight:
        waiting = min(state.queue.values(), key=lambda w: (w.request.arrival_ns, w.request.id))
        request, context = waiting.request, waiting.request.prompt.tokens + waiting.generated_tokens
        extend = context - state.cache.cached_tokens(request.prompt)
        reserved = request.max_output_tokens - waiting.generated_tokens
        admission = Admission(request.id, request.client, extend, context - extend, reserved)
        plan = StepPlan(admit=(admission,), chunks=((request.id, extend),), decode=False)
        try:
            return Begun(plan, *transitions.begin(state, plan, now_ns))
        except InfeasiblePlanError:
            if not waits_for_transfers(state):
                raise
            return Begun(StepPlan(), state, [])
    leave: tuple[int, ...] = ()
    for _, youngest in reversed(state.ranks):
        chunks = tuple(chunk for chunk in state.prefilling if chunk[0] not in leave)
        resume = tuple([request_id for request_id in state.paused if request_id not in leave])
        plan = StepPlan(preempt=leave, chunks=chunks, resume=resume)
        try:
            return Begun(plan, *transitions.begin(state, plan, now_ns))
        except InfeasiblePlanError:
            leave = (*leave, youngest)
    if not waits_for_transfers(state):
        raise AssertionError(f"worker {state.worker}: a request that is alone does not fit")
    plan = StepPlan(preempt=leave, decode=False)
    return Begun(plan, *transitions.begin(state, plan, now_ns))


def waits_for_transfers(state: WorkerState) -> bool:
    """Return whether requests between two workers hold memory here, so that no request here may have room."""
    return bool(state.transit.outgoing or state.transit.incoming or state.transit.landed)
