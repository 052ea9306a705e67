"""A gate that is nothing but its kernels: an author who writes those has a policy that runs.

The kernels are static methods of a subclass, `choose`, `join`, `admit`, `decode` and `refill`, in the words of
`fairsched.model.algebra`; their parameters are found by name (see `KernelGate`).  This is the plain way to run them,
for a gate that is new: each decision costs O(clients) an admission, and each decode step is decided anew.  The shipped
gates, `deficit` and `counter`, hold the same kinds of kernels and keep more between decisions.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any, ClassVar

import attrs
import msgspec
import numpy as np
from msgspec.structs import replace

from fairsched.model.algebra import NO_GROUP, NO_SCORE, NUMPY, Algebra, Ints
from fairsched.model.pricing import Rates, price
from fairsched.model.request import Client, Groups
from fairsched.policies.base import Limits
from fairsched.policies.draw import draw
from fairsched.policies.gates.base import AdmissionTransaction, BoundedGate, BoundTerms
from fairsched.policies.vectors import dense, grown, in_queue

Kernel = Callable[..., Any]

EVENTS = ("join", "admit", "decode", "refill")
"""What may change a gate's vectors."""
REFILLS_MAX = 1 << 20
"""After so many refills in one decision a gate makes no progress: one that is proved needs fewer."""


class KernelState(msgspec.Struct, frozen=True):
    """The gate's vectors in the order of `state`, each client's weight, the client whose queue emptied last, and how
    many requests were let in: chance is a function of that."""

    vectors: tuple[Ints, ...]
    weight: Ints
    last: int
    drawn: int = 0


def lots(seed: int, number: int, weights: Sequence[int]) -> list[int]:
    """The best ticket of each client in a draw, the same for the same seed and number.  O(sum of weights).

    A client holds as many tickets as its weight says, and each draws a number: among any clients each wins with a
    chance in proportion to its weight.
    """
    stream = draw(seed, number, 1 << 64)
    tickets = count()
    return [max(draw(stream, next(tickets), 1 << 62) for _ in range(int(weight))) for weight in weights]


@cache
def parameters(kernel: Kernel) -> tuple[str, ...]:
    """What a kernel asks for, after its algebra."""
    return tuple(inspect.signature(kernel).parameters)[1:]


class _KernelAdmissions(AdmissionTransaction):
    """One decision: the vectors as they are after what was admitted, and as the last refill left them."""

    def __init__(self, gate: "KernelGate", state: KernelState, heads: Ints) -> None:
        self.gate = gate
        self.state = state
        self.now = self.refilled = gate.named(state)
        self.last = state.last
        self.drawn = state.drawn
        self.queued = in_queue(heads)
        self.ready = self.queued.copy()

    def choose(self, heads: Ints) -> int:
        seen = {"queued": self.queued, "ready": self.ready, "score": heads, "last": self.last}
        if self.gate.draws:
            seen["lot"] = np.array(lots(self.gate.seed, self.drawn, self.state.weight.tolist()), dtype=np.int64)
        self.refilled = self.now
        for _ in range(REFILLS_MAX):
            chosen = int(self.gate.call(self.gate.choose, {**self.refilled, **seen}))
            refilled = self.gate.changed("refill", {**self.refilled, **seen})
            more = any((refilled[name] != self.refilled[name]).any() for name in refilled)
            if chosen != NO_GROUP or not more:
                return chosen if chosen != NO_GROUP and self.ready[chosen] else NO_GROUP
            self.refilled = {**self.refilled, **refilled}
        gate = type(self.gate).__name__
        raise ValueError(f"gate {gate} refilled {REFILLS_MAX:,} times and lets in no client that waits: no progress")

    def skip(self, group: int) -> None:
        self.ready[group] = False

    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        charge = price(input_tokens, self.gate.rates.input)
        seen = {"queued": self.queued, "last": self.last, "p": group, "charge": charge}
        self.now = {**self.refilled, **self.gate.changed("admit", {**self.refilled, **seen})}
        self.drawn += 1
        if emptied:
            self.last = group
            self.queued[group] = self.ready[group] = False

    def stays(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        """What a decode step does to the choice is for the kernels to say: one step at a time."""
        return 1


@attrs.frozen
class KernelGate(BoundedGate[KernelState]):
    """Runs the kernels of a subclass.

    `state` names its vectors (a number a client, 0 at first), `constants`, `per_weight`, `over_weight` its attributes
    that are numbers of at least 1: the latter two are vectors, times and by each client's weight.  A kernel may ask for
    all of these, for `queued` (which clients wait), for `last` (the last whose queue became empty), and

    - ``choose`` for `score` (of each client's best request), `ready` (whose may go now) and `lot` (drawn by `seed` for
      each admission, see `lots`): the client to let in;
    - ``join``, before its request joins, for `p`, whose queue was empty;
    - ``admit`` for `p` and its `charge`; also when more was computed than planned;
    - ``decode`` for `charge`, of each client.

    ``refill`` is applied when no client is chosen, for as long as it changes something.  Each returns the vector that
    it changes; with several vectors there is one a vector, ``admit_q``.  What is cancelled is not given back.
    """

    name: ClassVar[str] = "kernels"
    state_type: ClassVar[Any] = KernelState
    state: ClassVar[tuple[str, ...]]
    constants: ClassVar[tuple[str, ...]] = ()
    per_weight: ClassVar[tuple[str, ...]] = ()
    over_weight: ClassVar[tuple[str, ...]] = ()
    seed: ClassVar[int] = 0
    choose: ClassVar[Kernel]
    refunds_widen: ClassVar[bool] = False

    rates: Rates = attrs.field(factory=Rates)

    @classmethod
    def kernels(cls, event: str) -> dict[str, Kernel]:
        """The kernel of each vector that an event changes."""
        alone = getattr(cls, event, None) if len(cls.state) == 1 else None
        found = {name: getattr(cls, f"{event}_{name}", alone) for name in cls.state}
        return {name: kernel for name, kernel in found.items() if kernel is not None}

    @staticmethod
    def call(kernel: Kernel, seen: Mapping[str, Any], o: Algebra = NUMPY) -> Any:
        """The kernel on what its parameters name."""
        unknown = [name for name in parameters(kernel) if name not in seen]
        if unknown:
            raise ValueError(f"{kernel.__qualname__} asks for {', '.join(unknown)}, which a gate does not know then")
        return kernel(o, *(seen[name] for name in parameters(kernel)))

    def changed(self, event: str, seen: Mapping[str, Any]) -> dict[str, Ints]:
        """The vectors that an event changes."""
        return {name: self.call(kernel, seen) for name, kernel in self.kernels(event).items()}

    def named(self, state: KernelState) -> dict[str, Any]:
        """What kernels may ask for of a state and of the configuration."""
        own: dict[str, Any] = dict(zip(self.state, state.vectors, strict=True))
        own |= {name: getattr(self, name) for name in self.constants}
        return own | self.weighed(state.weight)

    @property
    def draws(self) -> bool:
        """Whether chance has a say."""
        return "lot" in parameters(self.choose)

    def weighed(self, weight: Any) -> dict[str, Any]:
        """The vectors that follow from clients' weights."""
        by_weight = {name: weight * getattr(self, name) for name in self.per_weight}
        return by_weight | {name: (weight - weight + getattr(self, name)) // weight for name in self.over_weight}

    def bound_terms(self, clients: tuple[Client, ...], limits: Limits) -> tuple[BoundTerms, ...]:
        """Of each client the most that it can be charged after it was let in."""
        return tuple(BoundTerms(0, self.charge_max(limits)) for _ in clients)

    def charge_max(self, limits: Limits) -> int:
        """U: most that one client can be charged after it was let in, in cost units."""
        return limits.charge_max(self.rates, limits.kv_capacity_tokens)

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """Kernels alone promise nothing."""
        return None

    def init(self) -> KernelState:
        return KernelState(tuple(np.zeros(0, np.int64) for _ in self.state), np.ones(0, np.int64), NO_GROUP)

    def begin(self, state: KernelState, heads: Ints) -> AdmissionTransaction:
        return _KernelAdmissions(self, state, heads)

    def after(self, state: KernelState, admissions: AdmissionTransaction) -> KernelState:
        assert isinstance(admissions, _KernelAdmissions)
        if admissions.drawn == state.drawn:
            return state
        vectors = tuple(admissions.now[name] for name in self.state)
        return KernelState(vectors, state.weight, admissions.last, admissions.drawn)

    def joined(self, state: KernelState, client: int, heads: Ints, waited: bool) -> KernelState:
        state = _grown(state, client + 1)
        if waited:
            return state
        queued = in_queue(grown(heads, len(state.weight), NO_SCORE))
        return self._event(state, "join", {"queued": queued, "p": client})

    def left(self, state: KernelState, client: int) -> KernelState:
        return replace(state, last=client)

    def decoded(self, state: KernelState, clients: tuple[int, ...], tokens: tuple[int, ...]) -> KernelState:
        return self._event(state, "decode", {"charge": dense(len(state.weight), clients, tokens, self.rates.output)})

    def settled(self, state: KernelState, client: int, input_tokens: int, heads: Ints) -> KernelState:
        if input_tokens <= 0:
            return state
        queued = in_queue(grown(heads, len(state.weight), NO_SCORE))
        return self._event(
            state, "admit", {"queued": queued, "p": client, "charge": price(input_tokens, self.rates.input)}
        )

    def configured(self, state: KernelState, client: int, weight: int, groups: Groups = ()) -> KernelState:
        for name in self.over_weight:
            if weight > getattr(self, name):
                raise ValueError(f"gate {self.name}: {name} = {getattr(self, name)} is less than a weight of {weight}")
        state = _grown(state, client + 1)
        return replace(state, weight=NUMPY.put(state.weight, client, weight))

    def check(self, state: KernelState) -> None:
        # All vectors speak of the same clients, and so does the last leaver.
        assert len(state.vectors) == len(self.state)
        assert all(len(vector) == len(state.weight) for vector in state.vectors)
        assert NO_GROUP <= state.last < len(state.weight)

    def _event(self, state: KernelState, event: str, seen: Mapping[str, Any]) -> KernelState:
        named = self.named(state)
        now = {**named, **self.changed(event, {**named, "last": state.last, **seen})}
        return replace(state, vectors=tuple(now[name] for name in self.state))


def _grown(state: KernelState, size: int) -> KernelState:
    """The state with room for `size` clients, new ones at 0 and of weight 1."""
    vectors = tuple(grown(vector, size, 0) for vector in state.vectors)
    return replace(state, vectors=vectors, weight=grown(state.weight, size, 1))
