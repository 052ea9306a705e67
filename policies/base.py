"""The contract of every policy: configuration is the object, history is the state, a decision is a value.

A policy object is frozen and holds parameters only.  What it has seen is in its state, an immutable value that every
method takes and returns, so that an old state stays valid, a decision can be replayed, and a restart loses nothing
that was saved.

`decide` returns the plan together with the state in which the plan has happened: it has already folded the admissions
and preemptions it asks for.  An engine that executes the whole plan keeps that state and does not send those events
again; an engine that refuses or changes the plan drops that state and observes what it really did.  Everything else
that happens (tokens decoded, requests finished, blocks cached) reaches the policy through `observe`.

Source of the shape: optax separates parameters from state in the same way; docs/explanation/design.md says why.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import attrs

from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, StepPlan, WorkerLoad, WorkerView
from fairsched.model.events import Event
from fairsched.model.machine import LatencyModel
from fairsched.model.monitor import FirstTokenBound, GateCheck, Promise
from fairsched.model.pricing import CAPACITY_TOKENS_MAX, Rates, accepted, charge_max_optimistic, charge_max_reserved
from fairsched.model.request import Client, Request
from fairsched.model.serialization import from_json, to_json
from fairsched.model.service import ServiceCurve
from fairsched.model.theorem import Assumption, Theorem

State = TypeVar("State")

WaitReason = Literal["gate", "memory", "order", "budget", "prefix", "cap", "swapped", "adapter"]
"""What keeps a waiting request out: its client's credit, KV memory, requests that go first, the step's token or
request budget, another request that is computing its prefix, its client's in-flight cap; of one that was swapped out,
that others come first or memory is short."""


ChargeRule = Literal["extend", "prompt"]
"""What of an input is charged: the tokens that must be computed, or the whole prompt."""


@attrs.frozen
class ChargingRule:
    """Rates, what of an input is charged, and of a cached part that is not charged whole so many per cent."""

    rates: Rates
    input: ChargeRule
    cached_percent: int = 0


@attrs.frozen
class Limits:
    """What bounds rest on, from the configuration: KV capacity of a worker and the largest request, in tokens.

    `output_tokens_max` matters only where outputs are not reserved; `running_max` is the most requests in a batch;
    `workers` of that size share the policy's credit (`SharesCredit`), of which `prefill_workers` are left with the
    first token and the others only decode (0: each may do both).  All outputs of a client are
    reserved but `unreserved_tokens`.  A window before servers reserves what is predicted (`outputs_predicted`): of a
    client no more than `unreserved_tokens` came beside it, and it charges at most `hold_tokens` output tokens for what
    a client holds.  `slots_lack` says that a request may lack a slot for its adapter.  No prompt with its declared
    output has more than `request_tokens_max`, where that is known.
    """

    kv_capacity_tokens: int
    prompt_tokens_max: int
    output_tokens_max: int
    running_max: int
    outputs_reserved: bool
    workers: int = 1
    prefill_workers: int = 0
    unreserved_tokens: int = 0
    hold_tokens: int = 0
    outputs_predicted: bool = False
    slots_lack: bool = False
    request_tokens_max: int = CAPACITY_TOKENS_MAX

    def __attrs_post_init__(self) -> None:
        for name in ("kv_capacity_tokens", "unreserved_tokens", "hold_tokens"):
            accepted(name, getattr(self, name), CAPACITY_TOKENS_MAX, 0)

    def charge_max(self, rates: Rates, memory_tokens: int) -> int:
        """U: most cost units that one client can be charged after it was let in, if its requests share this memory."""
        prompt = min(self.prompt_tokens_max, memory_tokens - 1)
        if self.outputs_reserved:
            produced = charge_max_reserved(rates, memory_tokens + self.unreserved_tokens, prompt)
            return produced + rates.output * self.hold_tokens
        whole = min(prompt + self.output_tokens_max, self.request_tokens_max)
        return charge_max_optimistic(rates, whole, self.output_tokens_max, self.running_max)

    def prompts_max(self, rates: Rates) -> int:
        """Return most cost units of prompts that lie in memory at one time, computed or not."""
        return rates.input * (self.kv_capacity_tokens + self.unreserved_tokens)

    def in_flight_max(self, rates: Rates) -> int:
        """Return most cost units of prompts that lie in memory and of outputs that may come beside them."""
        prompts = self.prompts_max(rates)
        if self.outputs_reserved:
            return prompts
        return prompts + rates.output * self.running_max * self.output_tokens_max


class Policy(ABC, Generic[State]):
    """What all policies have.  Subclasses are `attrs.frozen` classes that name their state's type."""

    state_type: ClassVar[Any]
    theorems: ClassVar[tuple[Theorem, ...]] = ()

    @abstractmethod
    def init(self) -> State:
        """Return the state before anything happened."""

    @abstractmethod
    def observe(self, state: State, event: Event) -> State:
        """Return the state after `event`.  Unknown or irrelevant events return `state` itself."""

    def check(self, state: State) -> None:
        """Raise `AssertionError` unless every representation invariant of `state` holds.  For tests: may be slow."""

    def state_to_json(self, state: State) -> dict[str, Any]:
        """Return a document of plain JSON values, with a schema version, from which `state_from_json` restores the
        state."""
        return to_json(state)

    def state_from_json(self, document: dict[str, Any]) -> State:
        """Return the state of such a document; raises `StateError` for any other."""
        restored: State = from_json(self.document_type, document)
        return restored

    @property
    def document_type(self) -> Any:
        """The state's type with its parameters, which a document does not name."""
        return self.state_type


class Relation(Protocol):
    """A worker's run beside the transition system that a policy's theorems are about."""

    def observe(self, event: Event) -> None:
        """Observe the worker's next event."""

    def difference(self, state: Any) -> str | None:
        """Return where the policy's state is not the one that the system is in after these events, in one sentence."""


class Guarantee:
    """What a policy promises its clients in a configuration, and what holds a run to it: nothing, unless overridden."""

    @property
    def charging(self) -> ChargingRule | None:
        """How the policy charges for service; None when it charges no client."""
        return None

    def limits(self, kv_capacity_tokens: int, output_tokens_max: int) -> Limits:
        """Return what bounds rest on, on a worker of this size with this limit of output tokens."""
        return Limits(kv_capacity_tokens, kv_capacity_tokens - 1, output_tokens_max, kv_capacity_tokens, True)

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """Return largest difference of charged service between two clients while both are backlogged on one worker.

        In cost units times lcm / weight.  None when nothing is promised of it.  Computed from the configuration, never
        from a trace.
        """
        return None

    def loose(self, clients: tuple[Client, ...], limits: Limits, most: int) -> str:
        """Return what makes a bound of the gap smaller that is above the `most` that a client was charged, or why
        nothing does, as a clause; "" where nothing is known."""
        return ""

    def group_gap_bound(self, groups: tuple[Client, ...], limits: Limits) -> int | None:
        """Return the same of what all clients of a group receive together, for groups beside each other.

        `groups` stand here as clients, with their weights.  None when nothing is promised of groups.
        """
        return None

    def cautions(self, kv_capacity_tokens: int, needs: Sequence[int] = ()) -> tuple[str, ...]:
        """Return what the configuration costs on a worker of so much KV, a sentence each: memory that it leaves idle,
        requests that it refuses.  `needs` are the tokens that each known request may hold."""
        return ()

    def worst_wait(self, clients: tuple[Client, ...], limits: Limits, latency: LatencyModel) -> FirstTokenBound | None:
        """Return the longest wait in seconds on one worker with this latency model; None where none is proved."""
        return None

    def no_wait(self, limits: Limits, latency: LatencyModel | None = None) -> str:
        """Return why no wait in seconds is proved, as a clause; "" where one is.  Without a latency model it is about
        servers whose steps are not seen."""
        return "the policy states no bound of waits"

    def promise(
        self, clients: tuple[Client, ...], limits: Limits, latency: LatencyModel | ServiceCurve | None = None
    ) -> Promise | None:
        """Return what a monitor holds a worker's run to; waits in time only if the worker's latency model is given, or
        a service curve that it is claimed to keep."""
        return None

    def gate_monitor(self) -> GateCheck | None:
        """Return a new monitor of the gate: it follows one worker's events and finds admissions past the gate."""
        return None

    def relation(self) -> Relation | None:
        """Return what holds a run from its first event on to the transition system of the policy's theorems."""
        return None

    def gate_monitors(self) -> Callable[[], GateCheck | None]:
        """Return what makes a monitor for each worker of one cluster, which are told that cluster's events in their
        order."""
        return self.gate_monitor


NO_GUARANTEE = Guarantee()


@runtime_checkable
class SharesCredit(Protocol):
    """Credit that the workers of a cluster share, as a transaction of each worker with the value that is shared.

    An engine that runs the cluster keeps the value.  Before each `decide` and `observe` of a worker it makes the
    worker's state with `checkout`, and afterwards puts back with `commit` what became of the value.  Between the two no
    other worker's policy is asked.
    """

    @property
    def exact(self) -> bool:
        """Whether every worker sees all that was charged before."""

    def credit(self) -> Any:
        """Return the shared value at first."""

    def checkout(self, state: Any, credit: Any, worker: int) -> Any:
        """Return the worker's state with what it sees of the shared credit."""

    def commit(self, credit: Any, state: Any, worker: int) -> Any:
        """Return the shared credit after the worker made `state` of what it checked out."""

    def idle(self, credit: Any, worker: int) -> Any:
        """Return the shared credit after the worker has decided to do nothing."""

    def snapshot(self, credit: Any) -> Any:
        """Return what of the shared credit all know: a state of the gate.  It is part of the cluster's view."""

    def seen_to_json(self, credit: Any, worker: int) -> dict[str, Any]:
        """Return what a worker sees of the shared credit, as a document, for a worker in another process."""

    def seen_from_json(self, document: dict[str, Any]) -> Any:
        """Return what such a document tells, to be checked out there; raises `StateError` for any other."""


class LocalPolicy(Policy[State]):
    """Decides what one worker does in its next step."""

    @property
    def ignored(self) -> frozenset[type]:
        """Kinds of event that leave every state as it is: an engine need not tell them."""
        return frozenset()

    @property
    def rests(self) -> bool:
        """Whether `decide` says `DECODE_ONLY`, and leaves the state, wherever no request waits, prefills or is paused:
        an engine need not ask then."""
        return False

    @abstractmethod
    def decide(self, state: State, view: WorkerView) -> tuple[StepPlan, State]:
        """Return the next step's plan, and the state in which it has happened."""

    def refuses(self, request: Request) -> str | None:
        """Return why the policy could never admit the request, however empty the worker, or None."""
        return None

    @property
    def guarantee(self) -> Guarantee:
        """What the policy promises its clients."""
        return NO_GUARANTEE

    @property
    def shared_credit(self) -> SharesCredit | None:
        """What the workers of a cluster share of their states; None when each has a state of its own."""
        return None


@runtime_checkable
class Explains(Protocol):
    """A local policy that says why a request waits."""

    def wait_reason(self, state: Any, view: WorkerView, request_id: int) -> WaitReason:
        """Return why a waiting request is not admitted now.  For explanations, not for the hot path."""


@runtime_checkable
class LetsPass(Protocol):
    """A local policy that lets other clients pass a request that waits for room."""

    def decide_past(self, state: Any, view: WorkerView, clients: Sequence[int]) -> tuple[StepPlan, Any]:
        """Return the next step, and the state after it, where the next request of each of these clients waits for room:
        other clients go as far as their credit (D-pass), and where a gate keeps no credit none does."""


@runtime_checkable
class PausesClients(Protocol):
    """A local policy that pauses clients' requests, for engines that make their own plans."""

    @property
    def pauses(self) -> bool:
        """Whether it ever does."""

    def paused_clients(self, state: Any, clients: Sequence[int]) -> tuple[int, ...]:
        """Return of these clients, whose requests run, those that may not decode now; what the first has is taken out
        first where another one lacks memory."""

    def pause_reason(self, state: Any, view: WorkerView, request_id: int) -> str | None:
        """Return why the policy paused a request, in words with numbers; None if it did not.  For explanations."""


class ClusterPolicy(Policy[State]):
    """Decides where requests go.

    It is told of each request that comes by `Arrived` with worker `NOWHERE`, unless it is a `Router`, which places it
    at once.  `decide` is asked after every instant at which something happened that it observes, and when it `wakes_ns`
    (by a live engine somewhat later), or, with a `decide_every_us`, at those times only.
    """

    name: ClassVar[str]
    follows_decoding: ClassVar[bool] = True
    """Whether `Decoded` matters to `observe`: then it is told up to now whenever something is asked.  Set to False, it
    is not told at all, which saves much.  How steps are summed is up to an engine, and is no reason to ask `decide`."""
    splits_phases: ClassVar[bool] = False
    """Whether it keeps to the roles of workers, and sends requests on from those that prefill to those that decode."""

    def init(self) -> State:
        """Return the state before anything happened: an empty `state_type`, unless overridden."""
        empty: State = self.state_type()
        return empty

    @property
    def decide_every_us(self) -> int | None:
        """How often `decide` is asked; None: whenever something happened."""
        return None

    def wakes_ns(self, state: State) -> int | None:
        """Return when `decide` is to be asked although nothing may happen until then; None: never."""
        return None

    @abstractmethod
    def decide(self, state: State, view: ClusterView) -> tuple[ClusterPlan, State]:
        """Dispatches of requests that the policy holds, migrations of others, and the state in which they happened."""

    @property
    def broken_assumptions(self) -> frozenset[Assumption]:
        """Which assumptions of its theorems this configuration does not fulfil."""
        return frozenset()

    def fitted(self, latency: LatencyModel) -> Self:
        """Return this policy with what it was not told about costs taken from the workers' latency model."""
        return self

    def informed(self, requests: Sequence[Request], workers: int) -> Self:
        """Return this policy with what only an oracle knows: all requests that will come, and how many workers there
        are."""
        return self


@runtime_checkable
class AnswersWorkers(Protocol):
    """A cluster policy that every worker asks before each of its steps, and waits for.

    It answers one worker after the other, in the order in which their questions come; question and answer travel.
    """

    @property
    def round_trip_ns(self) -> int:
        """How long question and answer travel, together."""

    def answer_ns(self, state: Any, load: WorkerLoad) -> int:
        """Return how long it works on the answer to a worker with this load."""


class Router(ClusterPolicy[State]):
    """A cluster policy that places every request when it comes: it holds nothing, and most need no events.

    One that also migrates requests overrides `decide`.
    """

    def observe(self, state: State, event: Event) -> State:
        """Return the state after `event`: unchanged, unless a router has something to learn."""
        return state

    @abstractmethod
    def route(self, state: State, request: Request, view: ClusterView) -> tuple[Dispatch, State]:
        """Return a worker of `view` for the request.  `view.workers` is never empty."""

    def decide(self, state: State, view: ClusterView) -> tuple[ClusterPlan, State]:
        """Hold and migrate nothing."""
        return ClusterPlan(), state


AnyLocalPolicy: TypeAlias = LocalPolicy[Any]
AnyClusterPolicy: TypeAlias = ClusterPolicy[Any]
AnyRouter: TypeAlias = Router[Any]
