"""Gates read a second time: each gate's kernels on Python's own integers, event by event, for a monitor.

The shipped gates keep vectors of 64 bits, copies for a decision, masks between choices, shortcuts for a few clients and
shares that a change of weight refines.  Nothing of that is here.  An interpreter holds a number a client, or a node,
and calls the functions that theorems are about (`o` is `EXACT`); so what it says of a run is what was proved, and a
gate that does anything else is seen to.  It knows no cap, no decision under way and no bound.  Memory is O(clients).
An admission costs O(clients that wait) at most, a refill O(clients), any other event O(clients that it names); for an
author's gate, every event costs O(clients).
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import singledispatch
from math import lcm
from typing import Any

from fairsched.model.algebra import EXACT, NO_GROUP, NO_SCORE, ExactVector
from fairsched.model.pricing import price
from fairsched.model.request import Groups
from fairsched.policies.gates import counter, deficit, shared
from fairsched.policies.gates.authoring import Kernel, KernelGate, lots, parameters
from fairsched.policies.gates.base import AnyGate
from fairsched.policies.gates.counter import CounterGate
from fairsched.policies.gates.deficit import DeficitGate, InBatchGate
from fairsched.policies.gates.shared import GlobalDeficitGate

ROUNDS_MAX = 64
"""So many rounds of a refill are played one by one; those that are left of more are taken by the closed form, which
D-refill proves to be the same."""

_NONE = ExactVector()


class GateInterpreter(ABC):
    """What a gate's rules make of the events of a worker, or of workers that share the gate's state.

    Tokens are those that the gate charges.  `waiting` names the clients that wait at the worker of the event.
    """

    def call(self, kernel: Kernel, **seen: Any) -> Any:
        """The kernel on what its parameters name: what is `seen`, or what this interpreter keeps under that name."""
        return kernel(EXACT, *[seen[name] if name in seen else getattr(self, name) for name in parameters(kernel)])

    @abstractmethod
    def joined(self, client: int, waiting: Collection[int]) -> None:
        """A request of the client is about to wait; `waiting` are those that did before."""

    def left(self, client: int) -> None:
        """The last waiting request of the client gave up."""
        return

    @abstractmethod
    def choose(self, client: int, waiting: Collection[int], skips: bool) -> int:
        """The client that may go now, were the order in favour of this one; the refill for that has happened then.

        With `skips` the others may have been passed over, as far as the gate's own rules know of that.
        """

    @abstractmethod
    def admitted(self, client: int, tokens: int, waiting: Collection[int], emptied: bool, kv_tokens: int) -> None:
        """A request of the client, which is among those waiting, is let in and pays; `emptied` says that nothing more
        of it waits, `kv_tokens` what it may come to compute and produce."""

    @abstractmethod
    def decoded(self, clients: Iterable[int], tokens: Iterable[int]) -> None:
        """Output tokens were produced."""

    @abstractmethod
    def settled(self, client: int, tokens: int, waiting: Collection[int]) -> None:
        """So many more tokens are charged for an admission, or are given back (negative)."""

    @abstractmethod
    def configured(self, client: int, weight: int, groups: Groups) -> None:
        """The client has this weight from now on, and is in these groups unless there are none."""

    def settle(self, waiting: Collection[int]) -> None:
        """An event is over: what the gate gives and forgives without an admission has happened."""
        return

    def may_decode(self, client: int) -> bool:
        """Whether the client's running requests may go on in a step that begins now: always, unless overridden."""
        return True

    @property
    def pauses(self) -> bool:
        """Whether a client may ever have to stand still."""
        return type(self).may_decode is not GateInterpreter.may_decode


@singledispatch
def interpreter(gate: AnyGate) -> GateInterpreter | None:
    """A new interpreter of the gate's kernels; None for a gate whose kernels are not known."""
    return None


def among(kept: Sequence[int], clients: Sequence[int]) -> ExactVector:
    """What is kept of these clients, in their order."""
    return ExactVector([kept[client] for client in clients])


def everyone(clients: Sequence[int]) -> ExactVector:
    """The mask of all of so many."""
    return ExactVector([True] * len(clients))


def _named(clients: Sequence[int], place: int) -> int:
    """The client at a place among these, or none."""
    return NO_GROUP if place == NO_GROUP else clients[place]


def mask(clients: Collection[int], size: int) -> ExactVector:
    """The truth value of each of `size` clients: whether it is one of these."""
    return ExactVector(map(clients.__contains__, range(size)))


def charges(amounts: Mapping[int, int], size: int) -> ExactVector:
    """The amount of each of `size` clients, 0 where there is none."""
    return ExactVector([amounts.get(client, 0) for client in range(size)])


def longer(vector: ExactVector, size: int, fill: int | bool) -> ExactVector:
    """The vector with at least `size` entries, new ones equal to `fill`."""
    return ExactVector((*vector, *[fill] * (size - len(vector))))


def refilled(q: ExactVector, queued: ExactVector, known: ExactVector, quantum: ExactVector) -> ExactVector:
    """The deficits after as many rounds of the kernel as it takes to give a waiting client credit."""
    for _ in range(ROUNDS_MAX):
        if not deficit.refill_due(EXACT, q, queued):
            return q
        q = deficit.refill(EXACT, q, queued, known, quantum)
    if deficit.refill_due(EXACT, q, queued):
        q = deficit.refill_rounds(EXACT, q, queued, known, quantum)
    return q


class _Balances(GateInterpreter):
    """A number a client, from which a kernel takes what outputs cost, or to which it adds that.

    Kernels are called on the clients that they may change or choose among, and on no others: an event costs what it
    changes, and not what clients there are.  Outputs are played when the numbers are next looked at, those of all
    events since together: that comes to the same (D-sums, V-sums), and most events look at nothing.
    """

    def __init__(self) -> None:
        self._played: list[int] = []
        self._unplayed: dict[int, int] = {}

    @property
    def balances(self) -> list[int]:
        """The numbers now."""
        if self._unplayed:
            clients, charge = list(self._unplayed), ExactVector(self._unplayed.values())
            self._unplayed = {}
            self._put(clients, self._after(among(self._played, clients), charge))
        return self._played

    def on(self, clients: Sequence[int], kernel: Kernel, **seen: Any) -> Any:
        """The kernel on these clients alone, which its vectors have in this order; points are places among them."""
        kept = {name: getattr(self, name) for name in parameters(kernel) if name not in seen}
        vectors = {name: among(each, clients) if isinstance(each, list) else each for name, each in kept.items()}
        return self.call(kernel, **seen, **vectors)

    def _put(self, clients: Sequence[int], balances: ExactVector) -> None:
        """These are the numbers of the clients from now on."""
        now = self.balances
        for client, balance in zip(clients, balances, strict=True):
            now[client] = balance

    def _play(self, client: int, kernel: Kernel, **seen: Any) -> None:
        """Let a kernel change the number of one client."""
        self._put((client,), self.on((client,), kernel, p=0, **seen))

    def decoded(self, clients: Iterable[int], tokens: Iterable[int]) -> None:
        unplayed, known = self._unplayed, len(self._played)
        for client, count in zip(clients, tokens, strict=True):
            if client >= known:
                self._meet(client)
                known = len(self._played)
            unplayed[client] = unplayed.get(client, 0) + self._cost(client, count)

    @abstractmethod
    def _meet(self, client: int) -> None:
        """Give the client, and all before it, a number."""

    @abstractmethod
    def _cost(self, client: int, tokens: int) -> int:
        """What so many output tokens cost the client."""

    @abstractmethod
    def _after(self, balances: ExactVector, charge: ExactVector) -> ExactVector:
        """The numbers after outputs that cost so much."""


# --- one deficit a client -------------------------------------------------------------------------------------------


class _Deficits(_Balances):
    """The deficit gate: a deficit a client, its quantum, and whether it was ever seen."""

    q = _Balances.balances

    def __init__(self, gate: DeficitGate) -> None:
        super().__init__()
        self.gate = gate
        self.known: list[bool] = []
        self.quantum: list[int] = []
        self._given: set[int] = set()

    def _meet(self, client: int) -> None:
        more = client + 1 - len(self._played)
        self._played += [0] * more
        self.known += [False] * more
        self.quantum += [self.gate.quantum] * more

    def joined(self, client: int, waiting: Collection[int]) -> None:
        self._meet(client)
        if self.gate.rejoin == "reset" and client not in waiting:
            self._play(client, deficit.rejoin_printed)
        self.known[client] = True

    def choose(self, client: int, waiting: Collection[int], skips: bool) -> int:
        # The order is in favour of this one: while it has credit no refill is due, and no other is better.
        if client in waiting and self._best(client, (client,)) == client:
            return client
        clients = sorted(waiting)
        self._refill(clients)
        return self._best(client, clients)

    def _refill(self, waiting: Sequence[int]) -> None:
        """Play the refill, if one is due: it changes no client that has credit."""
        if not deficit.refill_due(EXACT, among(self.q, waiting), everyone(waiting)):
            return
        queue = set(waiting)
        clients = [client for client, q in enumerate(self.q) if q <= 0 or client in queue]
        q, known, quantum = (among(kept, clients) for kept in (self.q, self.known, self.quantum))
        self._put(clients, refilled(q, ExactVector([client in queue for client in clients]), known, quantum))

    def _best(self, client: int, waiting: Sequence[int]) -> int:
        """The best of clients that wait."""
        queued, score = everyone(waiting), ExactVector([each == client for each in waiting])
        return _named(waiting, self.on(waiting, deficit.choose, queued=queued, ready=queued, score=score))

    def admitted(self, client: int, tokens: int, waiting: Collection[int], emptied: bool, kv_tokens: int) -> None:
        self._play(client, deficit.admit, charge=price(tokens, self.gate.rates.input))

    def _cost(self, client: int, tokens: int) -> int:
        return price(tokens, self.gate.rates.output)

    def _after(self, balances: ExactVector, charge: ExactVector) -> ExactVector:
        after: ExactVector = deficit.decode(EXACT, balances, charge)
        return after

    def settled(self, client: int, tokens: int, waiting: Collection[int]) -> None:
        amount = price(abs(tokens), self.gate.rates.input)
        if tokens > 0:
            self._play(client, deficit.correct, charge=amount)
        else:
            self._given.add(client)
            self._play(client, deficit.refund, amount=amount)

    def configured(self, client: int, weight: int, groups: Groups) -> None:
        self._meet(client)
        self.quantum[client] = weight * self.gate.quantum
        # Others have more than a quantum only if they were given something since.
        clients = sorted(self._given | {client})
        self._given.clear()
        self._put(clients, self.on(clients, deficit.reconfigure))


class _PausingDeficits(_Deficits):
    """The same inside the batch: a client that owes too much stands still there."""

    gate: InBatchGate

    def __init__(self, gate: InBatchGate) -> None:
        super().__init__(gate)
        self.depth = 0

    def admitted(self, client: int, tokens: int, waiting: Collection[int], emptied: bool, kv_tokens: int) -> None:
        super().admitted(client, tokens, waiting, emptied, kv_tokens)
        self.depth = max(self.depth, price(kv_tokens, self.gate.rates.input))

    def settle(self, waiting: Collection[int]) -> None:
        clients = sorted(waiting)
        self._refill(clients)
        if not clients:
            # A client that has credit owes nothing that could be forgiven.
            owing = [client for client, q in enumerate(self.q) if q <= 0]
            self._put(owing, self.on(owing, deficit.forgive, queued=ExactVector([False] * len(owing))))

    def may_decode(self, client: int) -> bool:
        return bool(self.on((client,), deficit.may_decode)[0])


class _SharedDeficits(_Deficits):
    """The same for all workers: beside it, at how many of them each client waits."""

    gate: GlobalDeficitGate

    def __init__(self, gate: GlobalDeficitGate) -> None:
        super().__init__(gate)
        self.places: list[int] = []

    def _meet(self, client: int) -> None:
        super()._meet(client)
        self.places += [0] * (client + 1 - len(self.places))

    def joined(self, client: int, waiting: Collection[int]) -> None:
        super().joined(client, waiting)
        if client not in waiting:
            [self.places[client]] = self.on((client,), shared.enter, p=0)

    def left(self, client: int) -> None:
        [self.places[client]] = self.on((client,), shared.depart, p=0)

    def _refill(self, waiting: Sequence[int]) -> None:
        everywhere = self.call(shared.waits, places=ExactVector(self.places))
        super()._refill([client for client, waits in enumerate(everywhere) if waits])
        if self.gate.keeps == "work":
            here = everyone(waiting)
            self._put(waiting, refilled(among(self.q, waiting), here, here, among(self.quantum, waiting)))

    def admitted(self, client: int, tokens: int, waiting: Collection[int], emptied: bool, kv_tokens: int) -> None:
        super().admitted(client, tokens, waiting, emptied, kv_tokens)
        if emptied:
            self.left(client)


# --- one counter a client -------------------------------------------------------------------------------------------


class _Counters(_Balances):
    """The counter gate: a counter a client in units of 1 / `unit`, below which level a refund does not take it, its
    weight, and which client left last.

    The unit is a multiple of all weights seen, so that every charge is a whole number.
    """

    c = _Balances.balances

    def __init__(self, gate: CounterGate) -> None:
        super().__init__()
        self.gate = gate
        self.floor: list[int] = []
        self.weights: dict[int, int] = {}
        self.unit, self.last = 1, NO_GROUP

    def _charge(self, client: int, tokens: int, rate: int) -> int:
        return price(tokens, rate, self.unit // self.weights.get(client, 1))

    def _meet(self, client: int) -> None:
        more = client + 1 - len(self._played)
        self._played += [0] * more
        self.floor += [0] * more

    def joined(self, client: int, waiting: Collection[int]) -> None:
        self._meet(client)
        if client not in waiting and (waiting or self.gate.lift != "none"):
            clients = sorted({*waiting, client, self.last} - {NO_GROUP})
            place = clients.index(client)
            last = NO_GROUP if self.last == NO_GROUP else clients.index(self.last)
            seen = {"queued": ExactVector([each in waiting for each in clients]), "p": place, "last": last}
            self.floor[client] = self.on(clients, counter.lifted_to, **seen)[place]
            self._put(clients, self.on(clients, counter.lift, **seen))

    def left(self, client: int) -> None:
        self.last = client

    def choose(self, client: int, waiting: Collection[int], skips: bool) -> int:
        clients = sorted(waiting)
        return _named(clients, self.on(clients, counter.choose, queued=everyone(clients)))

    def admitted(self, client: int, tokens: int, waiting: Collection[int], emptied: bool, kv_tokens: int) -> None:
        self._play(client, counter.admit, charge=self._charge(client, tokens, self.gate.rates.input))
        if emptied:
            self.last = client

    def _cost(self, client: int, tokens: int) -> int:
        return self._charge(client, tokens, self.gate.rates.output)

    def _after(self, balances: ExactVector, charge: ExactVector) -> ExactVector:
        after: ExactVector = counter.decode(EXACT, balances, charge)
        return after

    def settled(self, client: int, tokens: int, waiting: Collection[int]) -> None:
        amount = self._charge(client, abs(tokens), self.gate.rates.input)
        self._play(client, counter.admit if tokens > 0 else counter.refund, charge=amount, amount=amount)

    def configured(self, client: int, weight: int, groups: Groups) -> None:
        self._meet(client)
        finer = lcm(self.unit, weight) // self.unit
        if finer > 1:
            everywhere = range(len(self.c))
            self.floor = list(self.on(everywhere, counter.rescaled, c=ExactVector(self.floor), finer=finer))
            self._put(everywhere, self.on(everywhere, counter.rescaled, finer=finer))
        self.unit *= finer
        self.weights[client] = weight


# --- whatever vectors an author's kernels have ----------------------------------------------------------------------


class _Authored(GateInterpreter):
    """A gate that is nothing but kernels: its vectors by name, each client's weight, and which client left last."""

    def __init__(self, gate: KernelGate) -> None:
        self.gate = gate
        self.vectors = dict.fromkeys(gate.state, _NONE)
        self.weight, self.last, self.drawn = _NONE, NO_GROUP, 0

    def _meet(self, client: int) -> None:
        if client >= len(self.weight):
            self.vectors = {name: longer(vector, client + 1, 0) for name, vector in self.vectors.items()}
            self.weight = longer(self.weight, client + 1, 1)

    def _seen(self, **more: Any) -> dict[str, Any]:
        """What kernels may ask for."""
        fixed = {name: getattr(self.gate, name) for name in self.gate.constants}
        return {**self.vectors, **fixed, **self.gate.weighed(self.weight), "last": self.last, **more}

    def _changed(self, event: str, seen: Mapping[str, Any]) -> dict[str, ExactVector]:
        """The vectors after an event."""
        changed = {name: self.gate.call(kernel, seen, EXACT) for name, kernel in self.gate.kernels(event).items()}
        return {**self.vectors, **changed}

    def joined(self, client: int, waiting: Collection[int]) -> None:
        self._meet(client)
        if client not in waiting:
            self.vectors = self._changed("join", self._seen(queued=mask(waiting, len(self.weight)), p=client))

    def left(self, client: int) -> None:
        self.last = client

    def choose(self, client: int, waiting: Collection[int], skips: bool) -> int:
        ready = queued = mask(waiting, len(self.weight))
        score = EXACT.put(EXACT.where(queued, 0, NO_SCORE), client, 1)
        before = self.vectors
        chosen = first = self._choose(queued, ready, score)
        while skips and chosen not in (client, NO_GROUP):
            ready = EXACT.put(ready, chosen, False)
            self.vectors = before
            chosen = self._choose(queued, ready, score)
        return client if chosen == client else first

    def _choose(self, queued: ExactVector, ready: ExactVector, score: ExactVector) -> int:
        """The client to let in, after refills for as long as there is none and they change something."""
        while True:
            seen = self._seen(queued=queued, ready=ready, score=score)
            if self.gate.draws:
                seen["lot"] = ExactVector(lots(self.gate.seed, self.drawn, self.weight))
            chosen: int = self.gate.call(self.gate.choose, seen, EXACT)
            if chosen != NO_GROUP:
                return chosen if ready[chosen] else NO_GROUP
            after = self._changed("refill", seen)
            if after == self.vectors:
                return NO_GROUP
            self.vectors = after

    def admitted(self, client: int, tokens: int, waiting: Collection[int], emptied: bool, kv_tokens: int) -> None:
        self._pay(client, tokens, waiting)
        self.drawn += 1
        if emptied:
            self.last = client

    def _pay(self, client: int, tokens: int, waiting: Collection[int]) -> None:
        charge, queued = price(tokens, self.gate.rates.input), mask(waiting, len(self.weight))
        self.vectors = self._changed("admit", self._seen(queued=queued, p=client, charge=charge))

    def decoded(self, clients: Iterable[int], tokens: Iterable[int]) -> None:
        amounts = {client: price(count, self.gate.rates.output) for client, count in zip(clients, tokens, strict=True)}
        self._meet(max(amounts, default=NO_GROUP))
        self.vectors = self._changed("decode", self._seen(charge=charges(amounts, len(self.weight))))

    def settled(self, client: int, tokens: int, waiting: Collection[int]) -> None:
        # An author's gate gives nothing back.
        if tokens > 0:
            self._pay(client, tokens, waiting)

    def configured(self, client: int, weight: int, groups: Groups) -> None:
        self._meet(client)
        self.weight = EXACT.put(self.weight, client, weight)


interpreter.register(DeficitGate, _Deficits)
interpreter.register(InBatchGate, _PausingDeficits)
interpreter.register(GlobalDeficitGate, _SharedDeficits)
interpreter.register(CounterGate, _Counters)
interpreter.register(KernelGate, _Authored)
