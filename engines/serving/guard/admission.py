"""The failsafe around a policy that lets in one request at a time, and the one around a router.

Engines of others and the window before servers ask a policy for order and gate only: it sees an empty worker of the
engine's size.  A decision that raises, is late or cannot be followed is not taken, and the engine takes its own choice
this time.  After `failures_max` such decisions in a row, or when the policy refuses an event, the policy is set aside.

A router that fails, or names a worker that takes no requests, is replaced for that request by the worker with the
fewest requests, and set aside in the same way.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar, cast

import attrs
from immutables import Map

from fairsched.engines.serving.guard.advisor import Advisor, FaultError, ObserveError
from fairsched.engines.serving.guard.answers import cluster_plan_of, dispatch_of, plan_of, unfit
from fairsched.engines.serving.guard.budget import OverdueError
from fairsched.engines.serving.guard.guard import PENDING_MAX, Failsafe
from fairsched.model.decision import Admission, ClusterPlan, ClusterView, Dispatch, WorkerView
from fairsched.model.events import Event
from fairsched.model.prefix_cache import SortedTuple
from fairsched.model.request import Request
from fairsched.policies.base import AnyClusterPolicy, AnyLocalPolicy, AnyRouter, LetsPass, PausesClients, Router

T = TypeVar("T")

AdmissionCause = Literal["exception", "infeasible", "late", "stalled", "observe"]
"""Why a decision was not the policy's; see `engines.serving.guard.guard.Cause`."""

BUDGET_MS = 500
"""How long a decision may take: some hundred times what the slowest of ours takes, so that a busy machine is none."""
TOLD_AT_LEAST = 256
"""A policy observes so many events at a time also while it has nothing to decide."""


class NoDecisionError(Exception):
    """The policy gave no decision that can be followed."""


@attrs.frozen
class AdmissionChoice:
    """The request that is let in, and the policy's state in which that has happened."""

    admission: Admission
    after: Any


@attrs.define
class Trial:
    """A policy with a state of its own: what it would decide.  Raises what the policy raises, and `FaultError`."""

    policy: AnyLocalPolicy
    state: Any

    def decide(
        self, view: WorkerView, admissible: Callable[[Admission], bool], past: Sequence[int] = ()
    ) -> tuple[Admission | None, Any]:
        """Return the admission that the policy decides (None: no request goes now), and its state if it is made.
        `past`: clients whose next requests wait for room."""
        policy = self.policy
        if not past:
            decided = policy.decide(self.state, view)
        elif isinstance(policy, LetsPass):
            decided = policy.decide_past(self.state, view, past)
        else:
            return None, self.state
        plan, after = plan_of(decided)
        others = plan.preempt or plan.swap_out or plan.pause or plan.resume
        if others or len(plan.admit) > 1 or (plan.admit and not admissible(plan.admit[0])):
            raise unfit(plan, "one admission of a request that waits and has room")
        return plan.admit[0] if plan.admit else None, after

    def after(self, *events: Event) -> Any:
        """Let events have happened; returns the state."""
        for event in events:
            self.state = self.policy.observe(self.state, event)
        return self.state


def empty_worker(now_ns: int, capacity_tokens: int, free_tokens: int) -> WorkerView:
    """Return the view of a worker of this size without requests, in which so many tokens are free."""
    return WorkerView(now_ns, 0, capacity_tokens, free_tokens, 0, 0, 0, (), (), (), Map(), SortedTuple(), 0)


class _Asked(Failsafe[AdmissionCause]):
    """What is asked for decisions, with its state."""

    def __init__(self, advisor: Advisor, log: logging.Logger, fallback: str, failures_max: int) -> None:
        super().__init__(log, fallback, failures_max)
        self._advisor = advisor

    @property
    def state(self) -> Any:
        """The state, with all that happened unless the policy is set aside."""
        if self._advisor.pending and self.set_aside is None:
            self._catch_up()
        return self._advisor.state

    @state.setter
    def state(self, state: object) -> None:
        self._advisor.state = state

    def observe(self, event: Event) -> None:
        """Tell an event, other than an admission that was committed."""
        if self.set_aside is None:
            self._advisor.pending.append(event)
            if not len(self._advisor.pending) % TOLD_AT_LEAST:
                self._catch_up()

    def _catch_up(self) -> None:
        with suppress(NoDecisionError):
            self._ask(lambda state: None)

    def _ask(self, question: Callable[[Any], T]) -> T:
        """Return the answer to a question about the state.  Raises `NoDecisionError`, and counts why."""
        if self.set_aside is not None:
            raise NoDecisionError(self.set_aside)
        advisor = self._advisor
        if advisor.busy and len(advisor.pending) < PENDING_MAX:
            # That was counted as a failure when it was asked.
            self.interventions["late"] += 1
            raise NoDecisionError(self.last_error)
        try:
            return advisor.ask(question)
        except OverdueError as error:
            self.failed("late", str(error), at_once=len(advisor.pending) >= PENDING_MAX)
        except ObserveError as error:
            # Its state is that of an earlier time.
            self.failed("observe", str(error), at_once=True)
        except FaultError as error:
            self.failed(error.cause, str(error))
        raise NoDecisionError(self.last_error)

    def failed(self, cause: AdmissionCause, why: str, *, at_once: bool = False) -> None:
        """Count a decision that is not the policy's; `at_once` sets it aside."""
        self.interventions[cause] += 1
        self.fail(cause, why, at_once=at_once)
        if self.set_aside is not None:
            self._advisor.pending.clear()
        elif self.interventions[cause] == 1:
            self.log.warning("%s, since the policy failed: %s", self.fallback, self.last_error)


class AdmissionGuard(_Asked):
    """A policy with its state.  `fallback` says, in the engine's `log`, which order holds where the policy fails.

    A decision has a time budget (`engines.serving.guard.budget`).
    """

    def __init__(
        self,
        policy: AnyLocalPolicy,
        log: logging.Logger,
        fallback: str = "the oldest goes first",
        *,
        state: object = None,
        failures_max: int = 8,
        budget_ms: int = BUDGET_MS,
    ) -> None:
        super().__init__(Advisor(policy, state, budget_ms * 1_000_000), log, fallback, failures_max)

    @property
    def policy(self) -> AnyLocalPolicy:
        found: AnyLocalPolicy = self._advisor.policy
        return found

    @policy.setter
    def policy(self, policy: AnyLocalPolicy) -> None:
        self._advisor.entrust(policy)

    def decide(
        self, view: WorkerView, admissible: Callable[[Admission], bool], past: Sequence[int] = ()
    ) -> AdmissionChoice | None:
        """Return the admission that the policy decides, past these clients' next requests; None: no request goes now.

        Raises `NoDecisionError` where the policy is set aside, raises, is late, or decides what is not `admissible`.
        """

        admission, after = self._ask(lambda state: Trial(self.policy, state).decide(view, admissible, past))
        if admission is None:
            self._advisor.state = after
            return None
        return AdmissionChoice(admission, after)

    def commit(self, decision: AdmissionChoice) -> None:
        """Commit a decision that was executed as it was."""
        self._advisor.state = decision.after
        self.worked()

    @property
    def pauses(self) -> bool:
        """Whether the policy pauses running requests."""
        return isinstance(self.policy, PausesClients) and self.policy.pauses

    def paused_clients(self, clients: Sequence[int]) -> tuple[int, ...]:
        """Return which of these clients may not decode now, as the policy says; none where it fails."""
        policy = self.policy
        if not clients or not isinstance(policy, PausesClients):
            return ()

        def question(state: Any) -> tuple[int, ...]:
            found = policy.paused_clients(state, clients)
            if type(found) is not tuple or not {*found} <= {*clients}:
                raise unfit(found, f"some of clients {', '.join(map(str, clients))}")
            return found

        try:
            return self._ask(question)
        except NoDecisionError:
            return ()

    def tried(self, act: Callable[[Trial], T]) -> T:
        """Return what `act` finds out about decisions one after the other; the policy's own state stays as it is.

        `act` runs where decisions are made, under one budget.  Raises `NoDecisionError`.
        """
        return self._ask(lambda state: act(Trial(self.policy, state)))


class RouterGuard(_Asked):
    """A router, or another policy of a cluster, with its state.  `learns` is whether events change it."""

    def __init__(self, router: AnyClusterPolicy, log: logging.Logger, *, budget_ms: int = BUDGET_MS) -> None:
        super().__init__(Advisor(router, None, budget_ms * 1_000_000), log, "the shortest queue is taken", 8)
        self.router = router
        self.learns = type(router).observe is not Router.observe
        self.places = isinstance(router, Router)

    @property
    def failures(self) -> int:
        return self.interventions.total()

    @property
    def decides(self) -> bool:
        """Whether it is asked for more than where a request goes."""
        return type(self.router).decide is not Router.decide

    def route(self, request: Request, view: ClusterView) -> Dispatch:
        """Return where a request goes: to one of the view's loads.  Costs what the router does."""

        def question(state: Any) -> tuple[Dispatch, Any]:
            dispatch, after = dispatch_of(cast(AnyRouter, self.router).route(state, request, view))
            if dispatch.request_id != request.id or all(load.worker != dispatch.worker for load in view.workers):
                raise unfit(dispatch, f"a dispatch of request {request.id} to a worker that takes requests")
            return dispatch, after

        try:
            dispatch, self._advisor.state = self._ask(question)
        except NoDecisionError:
            return self.shortest(request.id, view)
        self.worked()
        return dispatch

    @staticmethod
    def shortest(request_id: int, view: ClusterView) -> Dispatch:
        """Return what holds where the policy fails."""
        chosen = min(view.workers, key=lambda load: load.waiting_requests + load.running_requests)
        return Dispatch(request_id, chosen.worker)

    def decide(self, view: ClusterView) -> ClusterPlan | None:
        """Return which requests are dispatched and migrate now; None where it fails.  Costs what the policy does."""
        try:
            plan, after = self._ask(lambda state: cluster_plan_of(self.router.decide(state, view)))
        except NoDecisionError:
            return None
        self._advisor.state = after
        self.worked()
        return plan

    def wakes_ns(self) -> int | None:
        """Return when the policy wants to be asked again; None also where it fails."""
        try:
            return self._ask(self.router.wakes_ns)
        except NoDecisionError:
            return None

    def observe(self, event: Event) -> None:
        if self.learns:
            super().observe(event)
