"""The failsafe around a policy that lets in one request at a time, and the one around a router.

Engines of others and the window before servers ask a policy for order and gate only: it sees an empty worker of the
engine's size.  A decision that raises or cannot be followed is not taken, and the engine takes its own choice this
time.  After `failures_max` such decisions in a row, or when the policy refuses an event, the policy is set aside.

A router that fails, or names a worker that takes no requests, is replaced for that request by the worker with the
fewest requests.
"""

import logging
from collections.abc import Callable
from typing import Any, Literal

import attrs
from immutables import Map

from fairsched.engines.serving.guard.guard import Failsafe
from fairsched.model.events import Event
from fairsched.model.plan import Admission, Dispatch, Migration
from fairsched.model.prefix_cache import SortedTuple
from fairsched.model.request import Request
from fairsched.model.view import ClusterView, WorkerView
from fairsched.policies.base import AnyLocalPolicy, AnyRouter, Router

AdmissionCause = Literal["exception", "infeasible", "stalled", "observe"]
"""Why a decision was not the policy's; see `engines.serving.guard.guard.Cause`."""


class FailedError(Exception):
    """The policy gave no decision that can be followed."""


@attrs.frozen
class Decision:
    """The request that is let in, and the policy's state in which that has happened."""

    admission: Admission
    after: Any


def empty_worker(now_ns: int, capacity_tokens: int, free_tokens: int) -> WorkerView:
    """Return the view of a worker of this size without requests, in which so many tokens are free."""
    return WorkerView(now_ns, 0, capacity_tokens, free_tokens, 0, 0, 0, (), (), (), Map(), SortedTuple(), 0)


class AdmissionGuard(Failsafe[AdmissionCause]):
    """A policy with its state.  `fallback` says, in the engine's `log`, which order holds where the policy fails."""

    def __init__(
        self,
        policy: AnyLocalPolicy,
        log: logging.Logger,
        fallback: str = "the oldest goes first",
        *,
        state: object = None,
        failures_max: int = 8,
    ) -> None:
        super().__init__(log, fallback, failures_max)
        self.policy = policy
        self.state = policy.init() if state is None else state

    def observe(self, event: Event) -> None:
        """Tell the policy an event, other than an admission that was committed."""
        if self.set_aside is None:
            try:
                self.state = self.policy.observe(self.state, event)
            except Exception as error:
                self.refused(error)

    def refused(self, error: Exception) -> None:
        """Set the policy aside: it refuses an event, so that its state is that of an earlier time."""
        self.interventions["observe"] += 1
        self.fail("observe", f"{type(error).__name__}: {error}", at_once=True)

    def decide(self, view: WorkerView, admissible: Callable[[int], bool], state: object = None) -> Decision | None:
        """Return the admission that the policy decides, in its own or another `state`; None: no request goes now.

        Raises `FailedError` where the policy is set aside, raises, or lets in a request that is not `admissible`.
        """
        if self.set_aside is not None:
            raise FailedError(self.set_aside)
        try:
            plan, after = self.policy.decide(self.state if state is None else state, view)
            if plan.preempt or len(plan.admit) > 1:
                wrong = True
            elif plan.admit:
                wrong = not admissible(plan.admit[0].request_id)
            else:
                if state is None:
                    self.state = after
                return None
        except Exception as error:
            self.failed("exception", f"{type(error).__name__}: {error}")
            raise FailedError from error
        if wrong:
            self.failed("infeasible", f"{plan!r} is not one admission of a request that waits and has room")
            raise FailedError
        return Decision(plan.admit[0], after)

    def commit(self, decision: Decision) -> None:
        """The decision was executed as it was."""
        self.state = decision.after
        self.worked()

    def after(self, state: object, event: Event) -> Any:
        """Return another state in which the event has happened.  Raises `FailedError` if the policy refuses it."""
        try:
            return self.policy.observe(state, event)
        except Exception as error:
            self.failed("exception", f"{type(error).__name__}: {error}")
            raise FailedError from error

    def failed(self, cause: AdmissionCause, why: str) -> None:
        """Count a decision that the engine takes instead of the policy."""
        self.interventions[cause] += 1
        self.fail(cause, why)
        if self.interventions[cause] == 1 and self.set_aside is None:
            self.log.warning("%s, since the policy failed: %s", self.fallback, self.last_error)


class RouterGuard:
    """A router with its state.  `failures` counts what it failed at; `learns` is whether events change its state."""

    def __init__(self, router: AnyRouter, log: logging.Logger) -> None:
        self.router = router
        self.state = router.init()
        self.failures = 0
        self._log = log
        self.learns = type(router).observe is not Router.observe

    @property
    def decides(self) -> bool:
        """Whether the router also migrates requests."""
        return type(self.router).decide is not Router.decide

    def route(self, request: Request, view: ClusterView) -> Dispatch:
        """Return where a request goes: to one of the view's loads.  Costs what the router does."""
        try:
            dispatch, state = self.router.route(self.state, request, view)
            if any(load.worker == dispatch.worker for load in view.workers):
                self.state = state
                return dispatch
            why = f"request {request.id}: it names worker {dispatch.worker}, which takes none"
        except Exception as error:
            why = f"request {request.id}: {error!r}"
        self._failed(why)
        shortest = min(view.workers, key=lambda load: load.waiting_requests + load.running_requests)
        return Dispatch(request.id, shortest.worker)

    def migrations(self, view: ClusterView) -> tuple[Migration, ...]:
        """Return which requests are to migrate now; none where the router fails.  Costs what the router does."""
        try:
            plan, state = self.router.decide(self.state, view)
            migrations = tuple(plan.migrations)
        except Exception as error:
            self._failed(f"it cannot say which requests migrate: {error!r}")
            return ()
        self.state = state
        return migrations

    def observe(self, event: Event) -> None:
        """Tell the router an event."""
        if self.learns:
            try:
                self.state = self.router.observe(self.state, event)
            except Exception as error:
                self._failed(f"{type(event).__name__} cannot be observed: {error!r}")

    def _failed(self, why: str) -> None:
        self.failures += 1
        if self.failures == 1:
            self._log.error("the router failed, and where it does the shortest queue is taken: %s", why)
