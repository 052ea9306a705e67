"""What a gate is: who may go now, whatever order prefers.  Theorems live here and hold for any order.

A gate sees clients, never requests.  Its state is a value; during one decision it hands out a `Turn`, a short-lived
owner of copies of the state's vectors, so that several admissions of one step cost point updates only.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import attrs
import msgspec

from fairsched.model.algebra import NO_SCORE, NOBODY, Ints
from fairsched.model.pricing import Rates
from fairsched.model.request import Client, Groups
from fairsched.model.theorem import Assumption, Theorem
from fairsched.policies.base import ChargeRule, ChargingRule, Limits

GateState = TypeVar("GateState")


class Turn(ABC):
    """One decision's view of a gate: choose, admit, choose again.  Mutable, and never outlives the decision."""

    @abstractmethod
    def choose(self, heads: Ints) -> int:
        """The group to serve next given each group's best score, or NOBODY."""

    @abstractmethod
    def skip(self, group: int) -> None:
        """The head of this group cannot go in this turn (its cap, or its prefix is being computed)."""

    @abstractmethod
    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        """The group's head enters: charge it.  `emptied` says that nothing more of it waits."""

    def take_over(self, group: int, giver: int, units: int) -> int:
        """The client that was just admitted takes over part of what `giver` paid for a cached prefix: `units`, or as
        many of them as `giver` may be given back now.  How many; 0 under a gate that splits nothing."""
        return 0

    @abstractmethod
    def stays(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        """For how many decode steps `choose` keeps giving `group` while `counts[k]` requests of `clients[k]` decode.

        None: until another event.  May be smaller than the truth, never larger.
        """


@attrs.frozen
class Stake:
    """What the bounds of a gate's theorems are made of, for one client: its quantum (0 where a gate has none), the most
    that it can be charged after it was let in, and how many of the gate's units one cost unit of it is."""

    quantum: int
    charge_max: int
    scale: int = 1


class Gate(ABC, Generic[GateState]):
    """Who may go.  `grouped` says whether clients are told apart at all."""

    name: ClassVar[str]
    grouped: ClassVar[bool] = True
    charge_rule: ClassVar[ChargeRule] = "extend"
    state_type: ClassVar[Any]
    theorems: ClassVar[tuple[Theorem, ...]] = ()
    rates: Rates

    @property
    def charging(self) -> ChargingRule:
        """How admissions are charged."""
        return ChargingRule(self.rates, self.charge_rule)

    @property
    def splits(self) -> bool:
        """Whether who uses a cached prefix takes over part of what others paid for it."""
        return False

    def charged(self, extend_tokens: int, cached_tokens: int) -> int:
        """Input tokens that an admission is charged for."""
        return extend_tokens if self.charge_rule == "extend" else extend_tokens + cached_tokens

    @abstractmethod
    def init(self) -> GateState: ...

    @abstractmethod
    def turn(self, state: GateState, heads: Ints) -> Turn:
        """Begin a decision.  O(1); copies are made when something is admitted."""

    @abstractmethod
    def after(self, state: GateState, turn: Turn) -> GateState:
        """The state in which the turn's admissions have happened; `state` itself if there were none."""

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

    @abstractmethod
    def released(self, state: GateState, client: int, kv_tokens: int) -> GateState:
        """A request that was admitted with `kv_tokens` promised left the batch."""

    def placed(self, state: GateState, client: int, groups: Groups) -> GateState:
        """The client is in these groups, of these weights, the outermost first; most gates share among clients only.

        Raises `ValueError` for a client that was seen elsewhere before.
        """
        return state

    @abstractmethod
    def configured(self, state: GateState, client: int, weight: int) -> GateState:
        """The client's weight is now `weight`."""

    def credit(self) -> Any | None:
        """What the gates of several workers share, at first; None for a gate that is each worker's own."""
        return None

    @property
    def exact(self) -> bool:
        """Whether every worker sees all that was charged before."""
        return True

    def told(self, credit: Any) -> Any:
        """What of the shared credit everybody knows."""
        raise AssertionError(f"a {self.name} gate shares nothing")

    def lent(self, credit: Any, worker: int) -> GateState:
        """The gate's state as the worker sees the shared credit."""
        raise AssertionError(f"a {self.name} gate shares nothing")

    def repaid(self, credit: Any, state: GateState, worker: int) -> Any:
        """The shared credit after the worker's gate made `state` of what it was lent."""
        raise AssertionError(f"a {self.name} gate shares nothing")

    def rested(self, credit: Any, worker: int) -> Any:
        """The shared credit after a worker has found nothing to do."""
        raise AssertionError(f"a {self.name} gate shares nothing")

    def refuses(self, kv_tokens: int) -> str | None:
        """Why a request that needs this much KV could never pass, or None."""
        return None

    def capped(self, turn: Turn, client: int, kv_tokens: int) -> bool:
        """Whether letting the client's head in now, with this much KV, would pass a cap on what it has in flight."""
        return False

    def credit_shortage(self, turn: Turn, client: int) -> bool:
        """Whether the client waits for credit in this turn."""
        return False

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """Bound of the gap in charged service between two clients backlogged together; None without a promise."""
        return None

    def group_gap_bound(self, groups: tuple[Client, ...], limits: Limits) -> int | None:
        """The same between two groups of one family, whose weights these are; None without a promise."""
        return None

    @property
    def broken_assumptions(self) -> frozenset[Assumption]:
        """Which assumptions of the gate's theorems this configuration does not fulfil."""
        return frozenset()

    def stakes(self, clients: tuple[Client, ...], limits: Limits) -> tuple[Stake, ...]:
        """Each client's stake; nothing where no theorem has a constant."""
        return ()

    def check(self, state: GateState) -> None:
        """Raise `AssertionError` unless every representation invariant holds."""


class NoState(msgspec.Struct, frozen=True):
    """An open gate remembers nothing."""


_NOTHING = NoState()


class _OpenTurn(Turn):
    def choose(self, heads: Ints) -> int:
        return 0 if len(heads) and heads[0] != NO_SCORE else NOBODY

    def skip(self, group: int) -> None:
        raise AssertionError("an open gate has one group, whose members are tried in order")

    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        pass

    def stays(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        return None


_OPEN_TURN = _OpenTurn()


@attrs.frozen
class OpenGate(Gate[NoState]):
    """No gate: everybody may always go, and the order alone decides.  Promises nothing to anybody."""

    name: ClassVar[str] = "open"
    grouped: ClassVar[bool] = False
    state_type: ClassVar[Any] = NoState
    rates: Rates = attrs.field(factory=Rates)

    def init(self) -> NoState:
        return _NOTHING

    def turn(self, state: NoState, heads: Ints) -> Turn:
        return _OPEN_TURN

    def after(self, state: NoState, turn: Turn) -> NoState:
        return state

    def joined(self, state: NoState, client: int, heads: Ints, waited: bool) -> NoState:
        return state

    def left(self, state: NoState, client: int) -> NoState:
        return state

    def decoded(self, state: NoState, clients: tuple[int, ...], tokens: tuple[int, ...]) -> NoState:
        return state

    def settled(self, state: NoState, client: int, input_tokens: int, heads: Ints) -> NoState:
        return state

    def released(self, state: NoState, client: int, kv_tokens: int) -> NoState:
        return state

    def configured(self, state: NoState, client: int, weight: int) -> NoState:
        return state
