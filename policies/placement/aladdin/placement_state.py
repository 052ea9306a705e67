"""Aladdin's books: its parameters, whom it believes where, and what events say about that.

A request is held, or at a worker; what is known of a worker is in `aladdin_worker`.  Decisions are in `aladdin`.
"""

from typing import Any, ClassVar, Literal

import attrs
import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model.events import (
    NOWHERE,
    Arrived,
    Cancelled,
    Decoded,
    Event,
    Finished,
    Migrated,
    Preempted,
    Prefilled,
    Rejected,
    WorkerJoined,
    WorkerLeft,
)
from fairsched.model.latency import LatencyModel
from fairsched.model.performance import PROMPT_TOKENS, Performance
from fairsched.model.presets import DEFAULT_PRESET, PRESETS
from fairsched.model.request import Request
from fairsched.model.sorted_tuple import SortedTuple
from fairsched.policies import aladdin_worker as workers
from fairsched.policies.aladdin_draft import Norm, Reserve, Rules
from fairsched.policies.aladdin_history import OutputHistory
from fairsched.policies.aladdin_limits import saved_from
from fairsched.policies.aladdin_worker import NOBODY, Believed, Member
from fairsched.policies.base import ClusterPolicy
from fairsched.policies.validators import not_negative, one_of, percent, positive

Slack = Literal["ahead", "earned", "printed"]
Output = Literal["predicted", "generated"]
Opens = Literal["checked", "unchecked"]
Errors = Literal["follow", "rebalance", "ignore"]


class Held(msgspec.Struct, frozen=True, gc=False):
    """A request that is at no worker, with the tokens that it has from one that is gone.

    It has `prompt_tokens` to compute with them, `output_tokens` foreseen after them, and its first token is due at
    `due_ns`.
    """

    request: Request
    generated: int
    prompt_tokens: int
    output_tokens: int
    due_ns: int


class AladdinState(msgspec.Struct, frozen=True):
    """The workers as they are believed to be, who is where, who is held (oldest first), and how long outputs were."""

    workers: Map[int, Believed] = Map()
    home: Map[int, int] = Map()
    held: Map[int, Held] = Map()
    waiting: SortedTuple[tuple[int, int]] = SortedTuple()
    history: OutputHistory = OutputHistory()


@attrs.frozen
class Books(ClusterPolicy[AladdinState]):
    """Parameters and state of Aladdin and its variants; an event O(log n)."""

    state_type: ClassVar[Any] = AladdinState

    ttft_us: int = attrs.field(default=2_000_000, validator=positive)
    """Target of the first token, for requests that name none."""
    tpot_us: int = attrs.field(default=100_000, validator=positive)
    """Target per further token, the same for all."""
    theta_percent: int = attrs.field(default=90, validator=percent)
    gamma_percent: int = attrs.field(default=50, validator=percent)
    heartbeat_us: int = attrs.field(default=50_000, validator=positive)
    patience_us: int = attrs.field(default=10_000_000, validator=not_negative)
    lookahead: int = attrs.field(default=256, validator=positive)
    """So many held requests, the oldest, are tried at a heartbeat."""
    norm: Norm = attrs.field(default="normalised", validator=one_of("normalised", "printed"))
    reserve: Reserve = attrs.field(default="lock-step", validator=one_of("lock-step", "peaks"))
    slack: Slack = attrs.field(default="earned", validator=one_of("ahead", "earned", "printed"))
    """What (d) takes a running request to have saved; see `saved_from`."""
    output: Output = attrs.field(default="predicted", validator=one_of("predicted", "generated"))
    """What (b) counts of an output: what is foreseen, or, as printed, what there is."""
    opens: Opens = attrs.field(default="checked", validator=one_of("checked", "unchecked"))
    """Whether an empty worker is held to the constraints; as printed it is not."""
    errors: Errors = attrs.field(default="follow", validator=one_of("follow", "rebalance", "ignore"))
    """What is done about wrong predictions: they are corrected in the plan as soon as they are seen; or the plan stays
    and new requests move (Algorithm 2); or nothing."""
    prompt_tokens_max: int = attrs.field(default=PROMPT_TOKENS, validator=positive)
    """Up to this prompt the line of prefill covers attention."""
    performance: Performance | None = attrs.field(default=None, metadata={"text": False})
    """The workers' lines; None: from their latency model."""

    # --- configuration ----------------------------------------------------------------------------------------------

    @property
    def decide_every_us(self) -> int:
        return self.heartbeat_us

    def fitted(self, latency: LatencyModel) -> "Books":
        """With the workers' latency model, unless it has lines of its own."""
        if self.performance is not None:
            return self
        return attrs.evolve(self, performance=Performance.of(latency, self.prompt_tokens_max))

    @property
    def lines(self) -> Performance:
        """The workers' lines."""
        if self.performance is not None:
            return self.performance
        return Performance.of(PRESETS[DEFAULT_PRESET], self.prompt_tokens_max)

    def rules(self, checks: str = "bcde") -> Rules:
        """What placements are held to."""
        return Rules(
            self.lines,
            self.tpot_us * 1_000,
            self.theta_percent,
            self.gamma_percent,
            self.norm,
            self.reserve,
            checks,
        )

    def init(self) -> AladdinState:
        return AladdinState()

    def check(self, state: AladdinState) -> None:
        """Each worker is what its members say, and everybody is at one place."""
        for worker in state.workers.values():
            workers.checked(worker)
        assert {i: w for w, each in state.workers.items() for i in each.members} == dict(state.home)
        assert {(held.request.arrival_ns, i) for i, held in state.held.items()} == set(state.waiting)
        assert not set(state.held) & set(state.home)

    # --- what it learns ---------------------------------------------------------------------------------------------

    def observe(self, state: AladdinState, event: Event) -> AladdinState:
        match event:
            case Decoded():
                return self._decoded(state, event)
            case Prefilled(remaining_tokens=0):
                return self._first_token(state, event)
            case Arrived() if event.worker == NOWHERE:
                return holding(
                    without(self, state, event.request.id), self._held(event.request, event.generated_tokens)
                )
            case Arrived():
                return self._at_worker(state, event)
            case Preempted():
                return self._preempted(state, event)
            case Finished():
                return self._finished(state, event)
            case Migrated() if state.home.get(event.request_id) != event.worker:
                return state  # It is on its way to where it is believed.
            case Cancelled() | Rejected() | Migrated():
                return without(self, state, event.request_id)
            case WorkerLeft() | WorkerJoined():
                return without_worker(state, event.worker)
            case _:
                return state

    def _decoded(self, state: AladdinState, event: Decoded) -> AladdinState:
        """Everybody who decodes has so many tokens more; those with their first token begin.

        A step that only prefills gives a token to nobody else, so the clock stands still.
        """
        worker = state.workers.get(event.worker, NOBODY)
        fresh = worker.fresh
        alone = event.steps == 1 and len(fresh) == sum(event.tokens)
        clock = worker.clock if alone else worker.clock + event.steps
        worker = replace(worker, clock=clock, fresh=())
        for request_id in fresh:
            member = worker.members[request_id]
            begun = replace(member, start=clock - event.steps)
            worker = self._refiled(worker, request_id, begun)
        return replace(state, workers=state.workers.set(event.worker, worker))

    def _first_token(self, state: AladdinState, event: Prefilled) -> AladdinState:
        worker = state.workers.get(event.worker)
        if worker is None or event.request_id not in worker.members:
            return state
        member = worker.members[event.request_id]
        if member.start is not None:
            return state
        member = replace(member, first_ns=event.time_ns)
        members = worker.members.set(event.request_id, member)
        worker = replace(worker, members=members, fresh=(*worker.fresh, event.request_id))
        return replace(state, workers=state.workers.set(event.worker, worker))

    def _at_worker(self, state: AladdinState, event: Arrived) -> AladdinState:
        """It is where it was sent, or somewhere else, and then that is where it is."""
        request_id = event.request.id
        if state.home.get(request_id) == event.worker:
            return state
        state = without(self, state, request_id)
        member = self._member(self._held(event.request, event.generated_tokens), event.time_ns)
        return self._joins(state, request_id, event.worker, member)

    def _preempted(self, state: AladdinState, event: Preempted) -> AladdinState:
        """It has to be computed again, with what it has produced."""
        worker = state.workers.get(event.worker)
        if worker is None or event.request_id not in worker.members:
            return state
        member = worker.members[event.request_id]
        done = event.generated_tokens - member.generated
        again = replace(
            member,
            prompt_tokens=member.prompt_tokens + done,
            output_tokens=max(member.output_tokens - done, 1),
            most=max(member.most - done, 1),
            generated=event.generated_tokens,
            came=worker.clock,
            start=None,
            deadline_ns=None,
        )
        worker = self._refiled(worker, event.request_id, again)
        return replace(state, workers=state.workers.set(event.worker, worker))

    def _finished(self, state: AladdinState, event: Finished) -> AladdinState:
        home = state.home.get(event.request_id)
        if home is None:
            return state
        member = state.workers[home].members[event.request_id]
        prompt_tokens = member.prompt_tokens - member.generated
        state = without(self, state, event.request_id)
        state = replace(state, history=state.history.with_output(prompt_tokens, event.output_tokens))
        if self.errors == "follow":
            return state
        worker = workers.haunted(state.workers[home], event.request_id, member)
        return replace(state, workers=state.workers.set(home, worker))

    # --- members ----------------------------------------------------------------------------------------------------

    def _held(self, request: Request, generated: int) -> Held:
        foreseen = min(request.predicted_output_tokens or request.max_output_tokens, request.max_output_tokens)
        named = None if request.slo is None else request.slo.ttft_ns
        return Held(
            request,
            generated,
            prompt_tokens=request.prompt.tokens + generated,
            output_tokens=max(foreseen - generated, 1),
            due_ns=request.arrival_ns + (self.ttft_us * 1_000 if named is None else named),
        )

    def _member(self, held: Held, now_ns: int) -> Member:
        soonest = now_ns + self.lines.prefill_ns(held.prompt_tokens)
        return Member(
            client=held.request.client,
            prompt_tokens=held.prompt_tokens,
            output_tokens=held.output_tokens,
            most=max(held.request.max_output_tokens - held.generated, 1),
            # What cannot be kept any more, however empty a worker, is no deadline.
            deadline_ns=held.due_ns if soonest <= held.due_ns else None,
            came=0,
            generated=held.generated,
        )

    def saves(self, member: Member) -> int:
        """Where it ranks among those that have saved time."""
        start = 0 if member.start is None else member.start
        tpot_ns = self.tpot_us * 1_000
        saved: int = saved_from(self.slack, self.theta_percent, tpot_ns, start, member.first_ns, member.output_tokens)
        return saved

    def _refiled(self, worker: Believed, request_id: int, member: Member) -> Believed:
        """The worker with what is new about one of its requests."""
        was = worker.members[request_id]
        # First tokens are noted before they count: the rank was filed without.
        worker = workers.left(worker, request_id, self.saves(was))
        return workers.joined(worker, request_id, member, self.saves(member))

    def _joins(self, state: AladdinState, request_id: int, worker: int, member: Member) -> AladdinState:
        believed = state.workers.get(worker, NOBODY)
        member = replace(member, came=believed.clock)
        believed = workers.joined(believed, request_id, member, 0)
        return replace(state, workers=state.workers.set(worker, believed), home=state.home.set(request_id, worker))


# --- who is where -----------------------------------------------------------------------------------------------------


def holding(state: AladdinState, held: Held) -> AladdinState:
    """The request waits for a decision."""
    request = held.request
    return replace(
        state,
        held=state.held.set(request.id, held),
        waiting=state.waiting.add((request.arrival_ns, request.id)),
    )


def released(state: AladdinState, held: Held) -> AladdinState:
    """The request waits no more."""
    request = held.request
    return replace(
        state,
        held=state.held.delete(request.id),
        waiting=state.waiting.remove((request.arrival_ns, request.id)),
    )


def without(policy: Books, state: AladdinState, request_id: int) -> AladdinState:
    """The request is nowhere."""
    held = state.held.get(request_id)
    if held is not None:
        return released(state, held)
    home = state.home.get(request_id)
    if home is None:
        return state
    worker = state.workers[home]
    worker = workers.left(worker, request_id, policy.saves(worker.members[request_id]))
    return replace(state, workers=state.workers.set(home, worker), home=state.home.delete(request_id))


def without_worker(state: AladdinState, worker: int) -> AladdinState:
    """Nobody is at the worker; those who were come again by themselves."""
    believed = state.workers.get(worker)
    if believed is None:
        return state
    home = state.home
    for request_id in believed.members:
        home = home.delete(request_id)
    return replace(state, workers=state.workers.delete(worker), home=home)
