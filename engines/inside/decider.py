"""A policy that lets in one request at a time, and what becomes of it when it fails.

It decides order and gate only: it is shown an empty worker of the engine's size, since the engine knows best what is
in memory and what a step may compute.  A decision that raises or cannot be followed is not taken: the `fallback`, the
engine's own choice, is taken this time.  After `FAILURES_MAX` such decisions in a row, or when it cannot be told what
happened, the policy is set aside, and the fallback holds from then on.
"""

import logging
from collections import Counter
from collections.abc import Container
from typing import Any, Literal

import attrs
from immutables import Map

from fairsched.model.events import Event
from fairsched.model.plan import Admission
from fairsched.model.sorted_tuple import SortedTuple
from fairsched.model.view import WorkerView
from fairsched.policies.base import LocalPolicy

Cause = Literal["exception", "infeasible", "stalled", "observe"]
FAILURES_MAX = 8


class FailedError(Exception):
    """The policy gave no decision that can be followed."""


@attrs.frozen
class Decision:
    """Who is let in, and the policy's state in which that has happened."""

    admission: Admission
    after: Any


class Decider:
    """The policy and its state.  `interventions` counts what it did not decide, by cause.

    `fallback` says in the engine's `log` who goes first instead.
    """

    def __init__(
        self,
        policy: LocalPolicy[Any],
        capacity_tokens: int,
        log: logging.Logger,
        fallback: str = "the oldest goes first",
    ) -> None:
        self.policy = policy
        self.state = policy.init()
        self.set_aside: str | None = None
        self.last_error: str | None = None
        self.interventions: Counter[Cause] = Counter()
        self._capacity = capacity_tokens
        self._log = log
        self._fallback = fallback
        self._failures = 0

    def tell(self, event: Event) -> None:
        """What happened, other than an admission that was `followed`."""
        if self.set_aside is None:
            try:
                self.state = self.policy.observe(self.state, event)
            except Exception as error:
                self._failures = FAILURES_MAX
                self.failed("observe", f"{type(error).__name__}: {error}")

    def followed(self, decision: Decision) -> None:
        """The decision was executed as it was."""
        self.state = decision.after
        self.worked()

    def worked(self) -> None:
        """What was decided is followed: earlier failures do not count towards setting the policy aside any more."""
        self._failures = 0

    def decide(self, waiting: Container[int], now_ns: int, state: Any = None) -> Decision | None:
        """Who is next, now or in another `state`, or None: nobody.  Raises `FailedError` if the policy does not say."""
        if self.set_aside is not None:
            raise FailedError(self.set_aside)
        try:
            plan, after = self.policy.decide(self.state if state is None else state, self._view(now_ns))
        except Exception as error:
            self.failed("exception", f"{type(error).__name__}: {error}")
            raise FailedError from error
        if not plan.admit and not plan.preempt:
            return None
        if plan.preempt or len(plan.admit) > 1 or plan.admit[0].request_id not in waiting:
            self.failed("infeasible", f"{plan!r} is not one admission of somebody who waits")
            raise FailedError
        return Decision(plan.admit[0], after)

    def thought(self, state: Any, event: Event) -> Any:
        """Another state in which the event has happened.  Raises `FailedError` if the policy does not say."""
        try:
            return self.policy.observe(state, event)
        except Exception as error:
            self.failed("exception", f"{type(error).__name__}: {error}")
            raise FailedError from error

    def failed(self, cause: Cause, why: str) -> None:
        """Count a decision that somebody else takes."""
        self.interventions[cause] += 1
        self._failures += 1
        self.last_error = f"{cause}: {why}"
        if self._failures >= FAILURES_MAX:
            self.set_aside = self.last_error
            self._log.error("the policy is set aside, %s from now on: %s", self._fallback, self.last_error)
        elif self.interventions[cause] == 1:
            self._log.warning("%s, since the policy failed: %s", self._fallback, self.last_error)

    def _view(self, now_ns: int) -> WorkerView:
        return WorkerView(now_ns, 0, self._capacity, self._capacity, 0, 0, 0, (), (), (), Map(), SortedTuple(), 0)
