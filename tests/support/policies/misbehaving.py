"""Policies that do what no policy should, each in its own way, now and then or always."""

import threading
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import attrs
import msgspec

from fairsched.model.decision import Admission, StepPlan, WorkerView
from fairsched.model.events import Admitted, Arrived, Decoded, Event, Preempted
from fairsched.policies.base import LocalPolicy
from fairsched.policies.catalog import VTC
from fairsched.policies.local import ComposedPolicy

Way = Callable[[StepPlan, "Kept", WorkerView], Any]
"""What a policy returns in place of its plan."""


class PolicyBugError(Exception):
    """What a broken policy raises."""


class Kept(msgspec.Struct, frozen=True):
    """The state of a policy that misbehaves: the state of the policy inside it, and how often it has decided."""

    inner: Any
    decisions: int = 0


def wrong(kind: type[Any], **methods: Callable[..., Any]) -> Any:
    """A class of policies, gates or routers with other methods, each of which is given the class's own one."""
    changed = {name: partialmethod(method, getattr(kind, name)) for name, method in methods.items()}
    return type(kind.__name__, (kind,), changed)


def raises(plan: StepPlan, state: Kept, view: WorkerView) -> StepPlan:
    """An exception in the middle of a decision."""
    raise PolicyBugError("an index out of range")


def overcommits(plan: StepPlan, state: Kept, view: WorkerView) -> StepPlan:
    """Everybody who waits is let in, whatever memory there is."""
    waiting = [entry for _, entry in sorted(state.inner.queue.entries.items())]
    admit = tuple(Admission(e.request.id, e.request.client, e.context_tokens, 0, 10_000) for e in waiting)
    return StepPlan(admit=admit, chunks=tuple((a.request_id, a.extend_tokens) for a in admit))


def duplicates(plan: StepPlan, state: Kept, view: WorkerView) -> StepPlan:
    """Everything twice."""
    return StepPlan(plan.preempt * 2, plan.admit * 2, plan.chunks * 2, plan.decode)


def preempts_and_admits(plan: StepPlan, state: Kept, view: WorkerView) -> StepPlan:
    """Everybody in the batch leaves it and enters it in one step."""
    running = sorted(view.in_flight)
    admit = tuple(Admission(i, view.in_flight[i].client, view.in_flight[i].context_tokens, 0, 1) for i in running)
    return StepPlan(tuple(running), admit) if running else plan


def swaps(plan: StepPlan, state: Kept, view: WorkerView) -> StepPlan:
    """Everybody in the batch is swapped out, wherever to."""
    return StepPlan(swap_out=tuple(sorted(view.in_flight)), decode=False) if view.in_flight else plan


def fetches(plan: StepPlan, state: Kept, view: WorkerView) -> StepPlan:
    """Whoever enters is said to come back from the host."""
    entering = tuple(admission.request_id for admission in plan.admit)
    return msgspec.structs.replace(plan, chunks=(), swap_in=entering) if entering else plan


def pauses(plan: StepPlan, state: Kept, view: WorkerView) -> StepPlan:
    """Whatever decodes is paused, and never goes on."""
    decoding = tuple(sorted(i for i, flight in view.in_flight.items() if flight.decodes))
    return StepPlan(pause=decoding, decode=False) if decoding else msgspec.structs.replace(plan, resume=())


def stops_and_goes(plan: StepPlan, state: Kept, view: WorkerView) -> StepPlan:
    """Whatever decodes is paused, whatever is paused goes on, and nothing is computed."""
    if view.prefilling or not view.in_flight:
        return plan
    stop, go = (tuple(sorted(i for i, f in view.in_flight.items() if f.decodes is each)) for each in (True, False))
    return StepPlan(pause=stop, resume=go, decode=False)


def wakes(plan: StepPlan, state: Kept, view: WorkerView) -> StepPlan:
    """What decodes is told to go on."""
    decoding = tuple(sorted(i for i, flight in view.in_flight.items() if flight.decodes))
    return StepPlan(resume=decoding) if decoding else plan


def forgets(plan: StepPlan, state: Kept, view: WorkerView) -> StepPlan:
    """Nobody is let in, ever, and nothing is computed."""
    return StepPlan(decode=False)


def thrashes(plan: StepPlan, state: Kept, view: WorkerView) -> StepPlan:
    """Whoever enters is thrown out before a token comes."""
    return StepPlan(tuple(sorted(view.in_flight))) if view.in_flight else plan


def leaps(plan: StepPlan, state: Kept, view: WorkerView) -> StepPlan:
    """A plan with chunks that claims to hold for ever, and one that holds for a negative number of steps."""
    return msgspec.structs.replace(plan, valid_steps=None if plan.chunks else -3)


def talks(plan: StepPlan, state: Kept, view: WorkerView) -> Any:
    """Something that is no plan at all."""
    return "let them all in"


def strangers(plan: StepPlan, state: Kept, view: WorkerView) -> StepPlan:
    """Requests that nobody sent, and chunks for them."""
    return StepPlan((-1,), (Admission(10**9, 0, 5, 0, 1),), ((10**9, 5), (3, -2)))


WAYS: tuple[Way, ...] = (
    raises,
    overcommits,
    duplicates,
    preempts_and_admits,
    forgets,
    thrashes,
    leaps,
    talks,
    strangers,
)


@attrs.frozen
class Misbehaving(LocalPolicy[Kept]):
    """`inner`, but each decision goes the way that `ways` says, in turn (None: as it should).

    With `lies` its state says that the plan of `inner` was executed, and otherwise that its own was.
    """

    inner: ComposedPolicy
    ways: tuple[Way | None, ...]
    lies: bool = False

    def init(self) -> Kept:
        return Kept(self.inner.init())

    def observe(self, state: Kept, event: Event) -> Kept:
        return Kept(self.inner.observe(state.inner, event), state.decisions)

    def decide(self, state: Kept, view: WorkerView) -> tuple[StepPlan, Kept]:
        plan, inner = self.inner.decide(state.inner, view)
        way = self.ways[view.now_ns % len(self.ways)]
        if way is None or self.lies:
            return plan if way is None else way(plan, state, view), Kept(inner, state.decisions + 1)
        own = way(plan, state, view)
        if own == plan:
            return plan, Kept(inner, state.decisions + 1)
        inner = state.inner
        for request_id in own.preempt if isinstance(own, StepPlan) else ():
            flight, known = view.in_flight.get(request_id), inner.flights.get(request_id)
            if flight is not None and known is not None:
                done = known.entry.generated_tokens + view.decoded_tokens(request_id)
                gone = Preempted(view.now_ns, view.worker, request_id, flight.client, done, flight.remaining_tokens)
                inner = self.inner.observe(inner, gone)
        return own, Kept(inner, state.decisions + 1)


@attrs.frozen
class Deaf(Misbehaving):
    """Raises when it is told of an event of this kind, `times` times in all (counted outside, as no policy should)."""

    kind: type = Arrived
    times: int = 1
    heard: list[Event] = attrs.field(factory=list, eq=False)

    def observe(self, state: Kept, event: Event) -> Kept:
        if type(event) is self.kind and len(self.heard) < self.times:
            self.heard.append(event)
            raise PolicyBugError("cannot hear")
        return super().observe(state, event)


@attrs.frozen
class Absent(Misbehaving):
    """Does not learn of requests with even numbers."""

    def observe(self, state: Kept, event: Event) -> Kept:
        if isinstance(event, Arrived) and event.request.id % 2 == 0:
            return state
        return super().observe(state, event) if not isinstance(event, Admitted) else state


@attrs.frozen
class Sleeping(Misbehaving):
    """Decides nothing until `wake` is set."""

    wake: threading.Event = attrs.field(factory=threading.Event, eq=False)

    def decide(self, state: Kept, view: WorkerView) -> tuple[StepPlan, Kept]:
        self.wake.wait()
        return super().decide(state, view)


def faulty(good: VTC, fault: str) -> VTC:
    """The policy with one fault at every decision or event: it "raises", names somebody "unknown", lets "nobody" in, or
    cannot "observe" that something was decoded."""

    class Faulty(VTC):
        """VTC with a fault."""

        def decide(self, state: Any, view: Any) -> Any:
            plan, after = super().decide(state, view)
            if fault == "raises":
                raise RuntimeError("no")
            if fault == "unknown" and plan.admit:
                plan = msgspec.structs.replace(plan, admit=(msgspec.structs.replace(plan.admit[0], request_id=10_000),))
            return (msgspec.structs.replace(plan, admit=()), state) if fault == "nobody" else (plan, after)

        def observe(self, state: Any, event: Any) -> Any:
            if fault == "observe" and isinstance(event, Decoded):
                raise RuntimeError("no")
            return super().observe(state, event)

    return Faulty(name=good.name, order=good.order, gate=good.gate, batching=good.batching)
