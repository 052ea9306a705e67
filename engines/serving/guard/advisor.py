"""A policy or a router that is asked for decisions: its state, the events that it has not observed yet, and a budget.

Events are observed just before the next decision, so that the cost of `observe` and of the decision is in one place and
under one budget.  What else runs code of the policy (its answer is looked at, its exception made a text) belongs to the
question, and so is under the budget, too.  When the time is over the caller goes on without an answer, and until the
late call has returned the policy is not asked again.  States are values, so the one before the decision is still good.

What comes with fairsched is asked in place, since it always returns and a thread costs more than most decisions; an
answer that came late is a failure all the same.
"""

from collections.abc import Callable
from types import NoneType
from typing import Any, Literal, TypeVar, cast

import attrs
from immutables import Map

from fairsched.engines.serving.guard.budget import LateCall, LeftError, OverdueError, text_of, within
from fairsched.model.events import Event
from fairsched.policies.base import AnyClusterPolicy, AnyLocalPolicy

T = TypeVar("T")


class ObserveError(Exception):
    """An event was refused; the message says by which exception."""


class FaultError(Exception):
    """There is no answer, or none that can be followed; the message says why."""

    def __init__(self, cause: Literal["exception", "infeasible"], why: str) -> None:
        super().__init__(why)
        self.cause: Literal["exception", "infeasible"] = cause


AnyPolicy = AnyLocalPolicy | AnyClusterPolicy

_DATA = {NoneType, bool, int, float, str, bytes, Map}


def is_shipped(part: object) -> bool:
    """Return whether the class of a policy or router, and those of all its parts, come with fairsched."""
    kind = type(part)
    if kind is tuple:
        return all(map(is_shipped, cast(tuple[object, ...], part)))
    if kind in _DATA:
        return True
    fields = attrs.fields(kind) if attrs.has(kind) else ()
    parts = (getattr(part, field.name) for field in fields)
    return kind.__module__.startswith("fairsched.") and all(map(is_shipped, parts))


class Advisor:
    """A policy with its state.  `pending` are the events that it has not observed yet, in order."""

    def __init__(self, policy: AnyPolicy, state: object = None, budget_ns: int | None = None) -> None:
        self.entrust(policy)
        self.state = policy.init() if state is None else state
        self.pending: list[Event] = []
        self.budget_ns = budget_ns
        self._late: LateCall | None = None

    def entrust(self, policy: AnyPolicy) -> None:
        """Let this policy decide from now on, with the state that there is."""
        self.policy: Any = policy
        self._in_place = is_shipped(policy)

    @property
    def busy(self) -> bool:
        return self._late is not None and not self._late.over

    def ask(self, question: Callable[[Any], T]) -> T:
        """Let the policy observe what is pending, and return its answer to a question about its state.

        Raises `OverdueError`, `ObserveError`, or `FaultError`: its own, or one with the text of what was raised.
        """
        if self.busy:
            raise OverdueError("an earlier call has not returned yet")
        self._late = None
        events, policy = tuple(self.pending), self.policy
        progress = [(self.state, 0)]
        try:
            return within(self.budget_ns, lambda: _answer(policy, events, progress, question), in_place=self._in_place)
        except OverdueError as error:
            self._late = error.call
            raise
        except LeftError as error:
            raise FaultError("exception", str(error)) from None
        finally:
            self.state, seen = progress[0]
            del self.pending[:seen]

    def catch_up(self) -> None:
        """Let the policy observe what is pending.  Raises `OverdueError`, or `ObserveError` for a refused event."""
        if self.pending and not self.busy:
            self.ask(lambda state: None)


def _answer(policy: Any, events: tuple[Event, ...], progress: list[tuple[Any, int]], question: Callable[[Any], T]) -> T:
    """`progress` is the state so far, and how many events were observed."""
    state, observe = progress[0][0], policy.observe
    for seen, event in enumerate(events, 1):
        try:
            state = observe(state, event)
        except Exception as error:
            raise ObserveError(f"{text_of(error)} at {type(event).__name__}") from None
        progress[0] = state, seen
    try:
        return question(state)
    except FaultError:
        raise
    except Exception as error:
        raise FaultError("exception", text_of(error)) from None
