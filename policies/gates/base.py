"""What a gate is: which clients may be served now, whatever order prefers.  Theorems live here and hold for any order.

A gate sees clients, never requests.  Its state is a value; during one decision it hands out an `AdmissionTransaction`,
a short-lived owner of copies of the state's vectors, so that several admissions of one step cost point updates only.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import attrs
import msgspec
import numpy as np

from fairsched.model.algebra import NO_GROUP, NO_SCORE, Bools, Ints
from fairsched.model.pricing import Rates
from fairsched.model.request import Client, Groups
from fairsched.model.theorem import Assumption, Theorem
from fairsched.policies.base import ChargeRule, ChargingRule, Limits

GateState = TypeVar("GateState")


class AdmissionTransaction(ABC):
    """One decision's view of a gate: choose, admit, choose again.  Mutable, and never outlives the decision."""

    @abstractmethod
    def choose(self, heads: Ints) -> int:
        """The group to serve next given each group's best score, or NO_GROUP."""

    @abstractmethod
    def skip(self, group: int) -> None:
        """The head of this group cannot go in this decision (its cap, or its prefix is being computed)."""

    def withdraw(self, group: int) -> None:
        """The head of this group lacks a slot for its adapter, which no credit gives it: it is skipped, and a gate
        whose theorems allow that decides as if the group did not wait."""
        self.skip(group)

    @abstractmethod
    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        """The group's head enters: charge it.  `emptied` says that nothing more of it waits."""

    def counted(self, client: int, output_tokens: int) -> int:
        """Of the outputs that a request of the client may have, how many count as in flight: all, unless overridden."""
        return output_tokens

    def capped(self, client: int, kv_tokens: int) -> bool:
        """Whether admitting the client's head now, with this much KV, would pass a cap on what it has in flight."""
        return False

    def lacks_credit(self, client: int) -> bool:
        """Whether the client waits for credit."""
        return False

    def in_credit(self, clients: int) -> Bools:
        """Which of so many clients have credit."""
        return np.ones(clients, np.bool_)

    def credit_lasts(self, clients: Sequence[int], counts: Sequence[int]) -> int:
        """For how many decode steps, 1 at least, no client gets out of credit while `counts[k]` requests of
        `clients[k]` decode.  May be smaller than the truth, never larger."""
        return 1

    def behind_landed(self, client: int) -> bool:
        """Whether requests of the client that came with their KV wait somewhere, and so go before others of it."""
        return False

    def unheld(self, client: int) -> bool:
        """The request of the client that was admitted last had come with its KV.  Whether the gate counts those."""
        return False

    @abstractmethod
    def stays(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        """For how many decode steps `choose` keeps giving `group` while `counts[k]` requests of `clients[k]` decode.

        None: until another event.  May be smaller than the truth, never larger.
        """


@runtime_checkable
class Cautions(Protocol):
    """A gate of which some configurations cost memory or requests."""

    def cautions(self, kv_capacity_tokens: int, needs: Sequence[int] = ()) -> tuple[str, ...]:
        """What this configuration costs on a worker of so much KV, a sentence each; `needs` are the largest numbers of
        tokens that known requests may hold."""


class Gate(ABC, Generic[GateState]):
    """Which clients may be served now.  `grouped` says whether clients are told apart at all."""

    name: ClassVar[str]
    grouped: ClassVar[bool] = True
    charge_rule: ClassVar[ChargeRule] = "extend"
    state_type: ClassVar[Any]
    theorems: ClassVar[tuple[Theorem, ...]] = ()
    progress: ClassVar[tuple[str, ...]] = ("progress",)
    """Ids of the theorems that say that clients who wait are served: a gate that admits no client is fair to all."""
    withdraws: ClassVar[bool] = False
    """Whether a client that lacks a slot for an adapter counts as one that does not wait: then no bound is about it."""
    rates: Rates

    @property
    def charging(self) -> ChargingRule:
        """How admissions are charged."""
        return ChargingRule(self.rates, self.charge_rule)

    def charged(self, extend_tokens: int, cached_tokens: int) -> int:
        """Input tokens that an admission is charged for."""
        return extend_tokens if self.charge_rule == "extend" else extend_tokens + cached_tokens

    @abstractmethod
    def init(self) -> GateState: ...

    @abstractmethod
    def begin(self, state: GateState, heads: Ints) -> AdmissionTransaction:
        """Begin a decision.  O(1); copies are made when something is admitted."""

    @abstractmethod
    def after(self, state: GateState, admissions: AdmissionTransaction) -> GateState:
        """The state in which the decision's admissions have happened; `state` itself if there were none."""

    @abstractmethod
    def joined(self, state: GateState, client: int, heads: Ints, waited: bool) -> GateState:
        """A request of the client is about to join the queue, of which something `waited` already."""

    @abstractmethod
    def left(self, state: GateState, client: int) -> GateState:
        """The client's queue emptied without an admission (its caller gave up)."""

    @abstractmethod
    def decoded(self, state: GateState, clients: tuple[int, ...], tokens: tuple[int, ...]) -> GateState:
        """Charge `tokens[k]` output tokens to `clients[k]`."""

    @abstractmethod
    def settled(self, state: GateState, client: int, input_tokens: int, heads: Ints) -> GateState:
        """An admission turned out to compute `input_tokens` more (negative: fewer) than was charged."""

    def released(self, state: GateState, client: int, kv_tokens: int, output_tokens: int | None = None) -> GateState:
        """A request that was admitted with `kv_tokens` promised left the batch; it ended after so many output tokens,
        or did not end (None)."""
        return state

    @abstractmethod
    def configured(self, state: GateState, client: int, weight: int, groups: Groups = ()) -> GateState:
        """The client's weight is now `weight`, and it is in these groups, of these weights, the outermost first.

        No groups: it stays in those that it is in.  Most gates share among clients only.  Raises `ValueError` for a
        client that was seen elsewhere before.
        """

    def owners(self, state: GateState, clients: int) -> tuple[Ints, Ints]:
        """Who has the share of memory that each of so many clients' programs take, by number, and its weight: the
        client itself, unless it is in groups."""
        return np.arange(clients), np.ones(clients, np.int64)

    def refuses(self, kv_tokens: int) -> str | None:
        """Why a request that needs this much KV could never pass, or None."""
        return None

    @property
    def broken_assumptions(self) -> frozenset[Assumption]:
        """Which assumptions of the gate's theorems this configuration does not fulfil."""
        return frozenset()

    def check(self, state: GateState) -> None:
        """Raise `AssertionError` unless every representation invariant holds."""


AnyGate: TypeAlias = Gate[Any]


@attrs.frozen
class BoundTerms:
    """What the bounds of a gate's theorems are made of, for one client: its quantum (0 where a gate has none), the most
    that it can be charged after it was admitted, and how many of the gate's units one cost unit of it is."""

    quantum: int
    charge_max: int
    scale: int = 1


Returns: TypeAlias = Mapping[str, tuple[str, ...] | str]
"""The theorems that say what a client gains or loses that leaves and returns, by obligation
(`fairsched.verify.authoring.RETURNS`), or in a sentence why it is not promised."""


class BoundedGate(Gate[GateState]):
    """A gate whose theorems have constants: they bound by how much the service of clients differs.

    With `refunds_widen` the bounds grow by what clients are given back.  `gap_theorems` are the ids of those that say
    `service_gap_bound`.
    """

    refunds_widen: ClassVar[bool] = True
    gap_theorems: ClassVar[tuple[str, ...]] = ()
    returns: ClassVar[Returns] = {}

    @abstractmethod
    def bound_terms(self, clients: tuple[Client, ...], limits: Limits) -> tuple[BoundTerms, ...]:
        """What each client's bounds are made of."""

    @abstractmethod
    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """Bound of the gap in charged service between two clients backlogged together; None without a promise."""

    def group_gap_bound(self, groups: tuple[Client, ...], limits: Limits) -> int | None:
        """The same between two groups of one family, whose weights these are; None without a promise."""
        return None


class NoState(msgspec.Struct, frozen=True):
    """An open gate remembers nothing."""


_NOTHING = NoState()


class _OpenAdmissions(AdmissionTransaction):
    def choose(self, heads: Ints) -> int:
        return 0 if len(heads) and heads[0] != NO_SCORE else NO_GROUP

    def skip(self, group: int) -> None:
        raise AssertionError("an open gate has one group, whose members are tried in order")

    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        pass

    def stays(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        return None


_OPEN = _OpenAdmissions()


@attrs.frozen
class OpenGate(Gate[NoState]):
    """No gate: all clients may always go, and the order alone decides.  Promises nothing."""

    name: ClassVar[str] = "open"
    grouped: ClassVar[bool] = False
    state_type: ClassVar[Any] = NoState
    rates: Rates = attrs.field(factory=Rates)

    def init(self) -> NoState:
        return _NOTHING

    def begin(self, state: NoState, heads: Ints) -> AdmissionTransaction:
        return _OPEN

    def _unchanged(self, state: NoState, *seen: Any, **named: Any) -> NoState:
        return state

    after = joined = left = decoded = settled = configured = _unchanged
