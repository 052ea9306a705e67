"""A policy that is asked for decisions: its state, the events it has not observed yet, and a time budget.

Events are observed just before the next decision, so that the cost of `observe` and `decide` is in one place and under
one budget.  Without a budget the policy is asked in place.  With one it is asked in a thread of its own, since Python
cannot interrupt a call: when the time is over the caller goes on without an answer, the late plan is dropped when it
comes, and until then the policy is not asked again.  States are values, so the earlier one is still good.  A call that
never returns keeps its thread, which does not keep the process.
"""

from concurrent.futures import Future
from typing import Any

from fairsched.engines.serving.calls import CallThread
from fairsched.model.events import Event
from fairsched.model.plan import StepPlan
from fairsched.model.view import WorkerView
from fairsched.policies.base import AnyLocalPolicy


class LateError(Exception):
    """No plan within the time budget, or none yet from an earlier question."""


class ObserveError(Exception):
    """The policy refused an event; the cause is the exception that it raised."""


_Thought = tuple[Any, int, tuple[StepPlan, Any] | Exception]
"""The state after events, how many were observed, and the decision or why there is none."""


class Advisor:
    """A policy with its state.  `pending` are the events that it has not observed yet, in order."""

    def __init__(self, policy: AnyLocalPolicy, state: object = None, budget_ns: int | None = None) -> None:
        self.policy = policy
        self.state = policy.init() if state is None else state
        self.pending: list[Event] = []
        self.budget_ns = budget_ns
        self._thread = None if budget_ns is None else CallThread("fairsched-policy")
        self._question: Future[_Thought] | None = None

    @property
    def asked(self) -> bool:
        """Whether a question to the thread has no answer yet."""
        return self._question is not None

    def ask(self, view: WorkerView) -> tuple[StepPlan, Any]:
        """Return the policy's plan, and its state if that plan is executed.

        Raises `LateError`, `ObserveError`, or whatever `decide` raised; the state is then the one before the decision.
        """
        if self._thread is None:
            self.catch_up()
            return self.policy.decide(self.state, view)
        if self.asked:
            self._take(0.0)
        told = list(self.pending)
        self._question = self._thread.later(lambda: self._think(self.state, told, view))
        assert self.budget_ns is not None
        decided = self._take(self.budget_ns / 1e9)
        if isinstance(decided, Exception):
            raise decided
        return decided

    def _take(self, timeout_s: float) -> "tuple[StepPlan, Any] | Exception":
        """Return the answer to the open question; what the policy observed on the way is kept in any case."""
        assert self._question is not None
        try:
            self.state, seen, decided = self._question.result(timeout_s)
        except TimeoutError:
            raise LateError(f"no decision within {self.budget_ns} ns") from None
        self._question = None
        del self.pending[:seen]
        return decided

    def _think(self, state: object, told: list[Event], view: WorkerView) -> _Thought:
        state, seen, error = _told(self.policy, state, told)
        try:
            return state, seen, error or self.policy.decide(state, view)
        except Exception as raised:
            return state, seen, raised

    def catch_up(self) -> None:
        """Let the policy observe what is pending.  Raises `ObserveError` at the first event that it refuses."""
        if self.pending and not self.asked:
            self.state, seen, error = _told(self.policy, self.state, self.pending)
            del self.pending[:seen]
            if error is not None:
                raise error

    def close(self) -> None:
        """Let the thread end, when its call has returned."""
        if self._thread is not None:
            self._thread.stop()


def _told(policy: AnyLocalPolicy, state: object, events: list[Event]) -> tuple[Any, int, ObserveError | None]:
    """Return the state after events, how many the policy took, and why it took no more."""
    observe, seen = policy.observe, 0
    try:
        for event in events:
            state = observe(state, event)
            seen += 1
    except Exception as error:
        refused = ObserveError(f"{type(error).__name__} at {type(events[seen]).__name__}: {error}")
        refused.__cause__ = error
        return state, seen, refused
    return state, seen, None
