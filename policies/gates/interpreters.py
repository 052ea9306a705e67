"""Gates read a second time: each gate's kernels on Python's own integers, event by event, for a monitor.

The shipped gates keep vectors of 64 bits, copies for a decision, masks between choices, fast paths and shares that a
change of weight refines.  Nothing of that is here.  An interpreter holds a number a client, or a node, and calls the
functions that theorems are about (`o` is `EXACT`); so what it says of a run is what was proved, and a gate that does
anything else is seen to.  It knows no cap, no decision under way and no bound.  Memory is O(clients).  An admission
costs O(clients that wait) at most (O(log n) under a counter gate), a refill O(clients), any other event O(clients that
it names); for a gate that is not `sparse`, every event costs O(clients).
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import singledispatch
from heapq import heappop, heappush, heapreplace
from math import lcm
from typing import Any

from fairsched.model.algebra import EXACT, NO_GROUP, NO_SCORE, ExactVector
from fairsched.model.pricing import price
from fairsched.model.request import Groups
from fairsched.policies.gates import deficit, in_batch, shared
from fairsched.policies.gates.authoring import EVENTS, Kernel, KernelGate, call, lots, parameters
from fairsched.policies.gates.base import AnyGate
from fairsched.policies.gates.counter import CounterGate
from fairsched.policies.gates.deficit import DeficitGate
from fairsched.policies.gates.deficit_printed import PrintedDeficitGate
from fairsched.policies.gates.in_batch import InBatchGate
from fairsched.policies.gates.shared import GlobalDeficitGate

ROUNDS_MAX = 64
"""So many rounds of a refill are played one by one; those that are left of more are taken by the closed form, which is
proved to be the same."""


Part = tuple[str, Sequence[Any], Sequence[Any], Any]
"""A part of both states: its name, one value a client in the gate's state and by the kernels, and the value of clients
that one of them has not met."""


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

    def parts(self, state: Any) -> Iterator[Part]:
        """What a gate's state and an interpreter have in common: the simulation relation between a run and its proofs.

        The theorems are about kernels in unbounded integers; a gate keeps vectors of 64 bits, in copies and units of
        its own.  Where these agree after every event, the run is one of those that the theorems speak about.
        """
        raise TypeError(f"{type(self).__name__}: no relation to a state is known")

    def difference(self, state: Any) -> str | None:
        """Where the gate's state is not the one that the kernels made, in one sentence; None if it is.  O(clients)."""
        for name, kept, made, unmet in self.parts(state):
            if list(kept) == list(made):
                continue
            for client in range(max(len(kept), len(made))):
                one, other = (values[client] if client < len(values) else unmet for values in (kept, made))
                if one != other:
                    where = f"{name} of client {client} is {one} in the gate's state"
                    return f"{where}, and its kernels make {other} of the run"
        return None


@singledispatch
def interpreter(gate: AnyGate) -> GateInterpreter | None:
    """A new interpreter of the gate's kernels; None for a gate whose kernels are not known."""
    return None


def among(kept: Sequence[int], clients: Sequence[int]) -> ExactVector:
    """Return what is kept of these clients, in their order."""
    return ExactVector([kept[client] for client in clients])


def everyone(clients: Sequence[int]) -> ExactVector:
    """Return the mask of all of so many."""
    return ExactVector([True] * len(clients))


def refilled_in_rounds(q: ExactVector, queued: ExactVector, known: ExactVector, quantum: ExactVector) -> ExactVector:
    """Return the deficits after as many rounds of the kernel as it takes to give a waiting client credit."""
    for _ in range(ROUNDS_MAX):
        if not deficit.refill_due(EXACT, q, queued):
            return q
        q = deficit.refill(EXACT, q, queued, known, quantum)
    if deficit.refill_due(EXACT, q, queued):
        q = deficit.refill_rounds(EXACT, q, queued, known, quantum)
    return q


# --- a gate that is its declaration ---------------------------------------------------------------------------------


class DeclaredRules(GateInterpreter):
    """The vectors of a declaration by name, each client's weight, and which client left last.

    Vectors that are kept in units are in those of 1 / `common` here too, which is a multiple of all weights seen.

    Kernels of a `sparse` gate are called on the clients that they may change or choose among, and on no others.
    Outputs are played when the vectors are next looked at, those of all events since together: that comes to the same
    (D-sums, V-sums), and most events look at nothing.
    """

    def __init__(self, gate: KernelGate) -> None:
        self.gate: Any = gate
        self.weight: list[int] = []
        self.last, self.drawn, self.common = NO_GROUP, 0, 1
        self._kernels = {event: tuple(gate.kernels_of(event).items()) for event in EVENTS}
        asked = {
            event: [n for _, kernel in found for n in parameters(kernel)] for event, found in self._kernels.items()
        }
        self._beside = {event for event, names in asked.items() if {"queued", "last"} & {*names}}
        self._played: dict[str, list[int]] = {name: [] for name in gate.state}
        self._unplayed: dict[int, int] = {}
        self._changed: set[int] = set()
        """Whose numbers changed since a weight did, so that another weight may have to change them."""

    @property
    def vectors(self) -> dict[str, list[int]]:
        """The vectors now."""
        if self._unplayed:
            clients, charge = list(self._unplayed), ExactVector(self._unplayed.values())
            self._unplayed = {}
            self._play("decode", clients, charge=charge)
        return self._played

    # --- kernels on some clients ------------------------------------------------------------------------------------

    def on(self, clients: Sequence[int], kernel: Kernel, **seen: Any) -> Any:
        """Return what the kernel makes of these clients alone, which its vectors have in this order; points are places
        among them."""
        return kernel(EXACT, *[self._seen(name, clients, seen) for name in parameters(kernel)])

    def _seen(self, name: str, clients: Sequence[int], seen: dict[str, Any]) -> Any:
        if name in seen:
            return seen[name]
        if name in self._played:
            return among(self.vectors[name], clients)
        if name == "last":
            return clients.index(self.last) if self.last in clients else NO_GROUP
        if name in self.gate.constants:
            return getattr(self.gate, name)
        weight = among(self.weight, clients)
        return weight if name == "weight" else self.gate.weighed(weight)[name]

    def put(self, name: str, clients: Sequence[int], values: Iterable[int]) -> None:
        """These are the numbers of the clients from now on."""
        now = self.vectors[name]
        self._changed.update(clients)
        for client, value in zip(clients, values, strict=True):
            now[client] = value

    def _play(self, event: str, clients: Sequence[int], **seen: Any) -> bool:
        """Let the kernels of an event change the numbers of these clients; whether they did."""
        after = [(name, self.on(clients, kernel, **seen)) for name, kernel in self._kernels[event]]
        changes = event == "refill" and any(among(self.vectors[name], clients) != values for name, values in after)
        for name, values in after:
            self.put(name, clients, values)
        return changes

    def _one(self, event: str, client: int, waiting: Collection[int], **seen: Any) -> None:
        """Let an event of one client happen."""
        if self.gate.sparse and event not in self._beside:
            self._play(event, (client,), p=0, **seen)
            return
        clients: Sequence[int] = range(len(self.weight))
        if self.gate.sparse:
            clients = sorted({client, *self._first(waiting), self.last} - {NO_GROUP})
        queued = ExactVector([each in waiting for each in clients])
        self._play(event, clients, queued=queued, p=clients.index(client), **seen)

    def _first(self, waiting: Collection[int]) -> Collection[int]:
        """Return of the clients that wait those that kernels have to look at."""
        return waiting

    def meet(self, client: int) -> None:
        """Give the client, and all before it, numbers."""
        more = client + 1 - len(self.weight)
        if more > 0:
            for name, vector in self.vectors.items():
                vector += [name in self.gate.masks and False] * more
            self.weight += [1] * more

    def unit(self, client: int) -> int:
        """Return how many of the gate's units a cost unit of the client is."""
        return self.common // self.weight[client] if self.gate.units else 1

    # --- events -----------------------------------------------------------------------------------------------------

    def joined(self, client: int, waiting: Collection[int]) -> None:
        self.meet(client)
        if client not in waiting:
            self._one("join", client, waiting)

    def left(self, client: int) -> None:
        self.last = client

    def choose(self, client: int, waiting: Collection[int], skips: bool) -> int:
        if "choose" in self.gate.fast and client in waiting and self._chosen(client, [client], [client]) == client:
            # The order is in favour of this one: no other is better, and while it may go no refill is due.
            return client
        if "due" in self.gate.fast:
            self.give(sorted(waiting))
        clients: Sequence[int] = sorted(self._first(waiting)) if self.gate.sparse else range(len(self.weight))
        before = {name: [*vector] for name, vector in self.vectors.items()} if skips and not self.gate.sparse else {}
        chosen = first = self._let_in(client, clients, waiting)
        ready = {*waiting}
        while before and chosen not in (client, NO_GROUP):
            ready -= {chosen}
            self._played = {name: [*vector] for name, vector in before.items()}
            chosen = self._let_in(client, clients, waiting, ready)
        return client if chosen == client else first

    def give(self, waiting: Sequence[int]) -> None:
        """Play the refills that are due while these clients wait; only where that is known before a choice."""
        due, queue = self.gate.fast["due"], {*waiting}
        for _ in range(ROUNDS_MAX):
            if not self.on(waiting, due, queued=everyone(waiting)):
                return
            clients = self._refilled()
            self._play("refill", clients, queued=ExactVector(map(queue.__contains__, clients)))
        while self.on(waiting, due, queued=everyone(waiting)):
            clients = self._refilled()
            queued = ExactVector(map(queue.__contains__, clients))
            for name, _ in self._kernels["refill"]:
                self.put(name, clients, self.on(clients, self.gate.fast[f"refill_{name}"], queued=queued))

    def _refilled(self) -> Sequence[int]:
        """Return the clients that a refill may change."""
        return range(len(self.weight))

    def _let_in(
        self, client: int, clients: Sequence[int], waiting: Collection[int], ready: Collection[int] | None = None
    ) -> int:
        """Return the client that goes, after refills for as long as there is none and they change something."""
        while True:
            chosen = self._chosen(client, clients, waiting, ready)
            if chosen != NO_GROUP or self.gate.sparse:
                return chosen if ready is None or chosen in ready else NO_GROUP
            if not self._play("refill", clients, queued=ExactVector([each in waiting for each in clients])):
                return NO_GROUP

    def _chosen(
        self, client: int, clients: Sequence[int], waiting: Collection[int], ready: Collection[int] | None = None
    ) -> int:
        """Return the best of some clients by an order in favour of `client`."""
        queued = ExactVector([each in waiting for each in clients])
        score = ExactVector([int(each == client) if each in waiting else NO_SCORE for each in clients])
        seen = {"queued": queued, "score": score}
        seen["ready"] = queued if ready is None else ExactVector([each in ready for each in clients])
        if self.gate.draws:
            seen["lot"] = among(lots(self.gate.seed, self.drawn, self.weight), clients)
        place = self.on(clients, self.gate.choose, **seen)
        return NO_GROUP if place == NO_GROUP else clients[place]

    def admitted(self, client: int, tokens: int, waiting: Collection[int], emptied: bool, kv_tokens: int) -> None:
        self._one("admit", client, waiting, charge=price(tokens, self.gate.rates.input, self.unit(client)))
        self.drawn += 1
        if emptied:
            self.left(client)

    def decoded(self, clients: Iterable[int], tokens: Iterable[int]) -> None:
        unplayed, rate, met, in_units = self._unplayed, self.gate.rates.output, len(self.weight), bool(self.gate.units)
        for client, count in zip(clients, tokens, strict=True):
            if client >= met:
                self.meet(client)
                unplayed, met = self._unplayed, len(self.weight)
            cost = price(count, rate, self.common // self.weight[client]) if in_units else price(count, rate)
            unplayed[client] = unplayed.get(client, 0) + cost
        if not self.gate.sparse:
            amounts, self._unplayed = self._unplayed, {}
            everywhere = range(len(self.weight))
            self._play("decode", everywhere, charge=ExactVector([amounts.get(each, 0) for each in everywhere]))

    def settled(self, client: int, tokens: int, waiting: Collection[int]) -> None:
        amount = price(abs(tokens), self.gate.rates.input, self.unit(client))
        if tokens > 0:
            self._one("admit", client, waiting, charge=amount)
        else:
            self._one("refund", client, waiting, amount=amount)

    def configured(self, client: int, weight: int, groups: Groups) -> None:
        self.meet(client)
        finer = lcm(self.common, weight) // self.common
        for name in self.gate.units if finer > 1 else ():
            self.put(name, range(len(self.weight)), self.gate.rescale(EXACT, ExactVector(self.vectors[name]), finer))
        self.common *= finer
        self.weight[client] = weight
        self._play("reweigh", sorted(self._changed | {client}) if self.gate.sparse else range(len(self.weight)))
        self._changed.clear()

    def parts(self, state: Any) -> Iterator[Part]:
        gate, fields = self.gate, state.__struct_fields__
        for name in gate.state:
            kept, made = getattr(state, name).tolist(), self.vectors[name]
            if name in gate.units:
                # The gate's unit is a multiple of the weights, and so is the interpreter's.
                kept, made = [value * self.common for value in kept], [value * state.common for value in made]
            yield name, kept, made, name in gate.masks and False
        for name, made in gate.weighed(ExactVector(self.weight)).items():
            yield name, getattr(state, name).tolist(), made, gate.weighed(1)[name]
        if "weight" in fields:
            yield "the weight", state.weight.tolist(), self.weight, 1
        if gate.units:
            yield "the weight", [state.common // share for share in state.share.tolist()], self.weight, 1
        if "last" in fields:
            size = gate.size(state)
            one, other = ([client == last for client in range(size)] for last in (state.last, self.last))
            yield "whether it left last", one, other, False


class _Counters(DeclaredRules):
    """The counter gate: its kernels read the lowest counter of those that wait, which a heap finds.

    Of each client that waits the heap has an entry that is not above its number; one that is below it is mended when it
    comes first.
    """

    def __init__(self, gate: CounterGate) -> None:
        super().__init__(gate)
        self._queue: set[int] = set()
        self._heap: list[tuple[int, int]] = []

    def joined(self, client: int, waiting: Collection[int]) -> None:
        super().joined(client, waiting)
        self._queue.add(client)
        self._push(client)

    def left(self, client: int) -> None:
        super().left(client)
        self._queue.discard(client)

    def put(self, name: str, clients: Sequence[int], values: Iterable[int]) -> None:
        super().put(name, clients, values)
        for client in clients if name == "c" else ():
            if client in self._queue:
                self._push(client)

    def _push(self, client: int) -> None:
        c = self.vectors["c"]
        heappush(self._heap, (c[client], client))
        if len(self._heap) > 2 * len(self._queue) + 64:
            self._heap = sorted((c[each], each) for each in self._queue)

    def _first(self, waiting: Collection[int]) -> Collection[int]:
        """Return the client of the lowest counter, the first of equals.  O(log n) for each number that changed since,
        if these are all that wait."""
        c, heap = self.vectors["c"], self._heap
        while heap:
            number, client = heap[0]
            if client not in self._queue:
                heappop(heap)
            elif number == c[client]:
                return (client,) if client in waiting else waiting
            else:
                heapreplace(heap, (c[client], client))
        return ()


class _Deficits(DeclaredRules):
    """A deficit gate: a refill changes known clients without credit, and no others."""

    def __init__(self, gate: DeficitGate) -> None:
        super().__init__(gate)
        self._owing: set[int] = set()

    def put(self, name: str, clients: Sequence[int], values: Iterable[int]) -> None:
        super().put(name, clients, values)
        q, owing = self.vectors["q"], self._owing
        for client in clients:
            (owing.add if q[client] <= 0 else owing.discard)(client)

    def _refilled(self) -> Sequence[int]:
        return sorted(self._owing)


class _PausingDeficits(_Deficits):
    """The deficit gate inside the batch: a client that owes too much stands still there."""

    def __init__(self, gate: InBatchGate) -> None:
        super().__init__(gate)
        self.depth = 0
        self._able = NO_GROUP
        """A client that had credit when something was last settled."""

    def admitted(self, client: int, tokens: int, waiting: Collection[int], emptied: bool, kv_tokens: int) -> None:
        super().admitted(client, tokens, waiting, emptied, kv_tokens)
        self.depth = max(self.depth, price(kv_tokens, self.gate.rates.input))

    def settle(self, waiting: Collection[int]) -> None:
        if self._able in waiting and self.vectors["q"][self._able] > 0:
            # A client waits in credit: nothing is given, nor forgiven.
            return
        clients = sorted(waiting)
        self.give(clients)
        self._able = next((client for client in clients if self.vectors["q"][client] > 0), NO_GROUP)
        if not clients:
            # A client that has credit owes nothing that could be forgiven.
            owing = self._refilled()
            queued = ExactVector([False] * len(owing))
            self.put("q", owing, self.on(owing, in_batch.forgive, queued=queued, depth=self.depth))

    def may_decode(self, client: int) -> bool:
        return bool(self.on((client,), in_batch.may_decode, depth=self.depth)[0])

    def parts(self, state: Any) -> Iterator[Part]:
        yield from super().parts(state)
        yield "the debt that pauses", [self.gate.depth(state)], [self.depth], 0


class _SharedDeficits(_Deficits):
    """The deficit gate for all workers: beside it, at how many of them each client waits."""

    def __init__(self, gate: GlobalDeficitGate) -> None:
        super().__init__(gate)
        self.places: list[int] = []

    def meet(self, client: int) -> None:
        super().meet(client)
        self.places += [0] * (client + 1 - len(self.places))

    def _place(self, kernel: Kernel, client: int) -> None:
        [self.places[client]] = call(kernel, {"places": ExactVector([self.places[client]]), "p": 0}, EXACT)

    def joined(self, client: int, waiting: Collection[int]) -> None:
        super().joined(client, waiting)
        if client not in waiting:
            self._place(shared.enter, client)

    def left(self, client: int) -> None:
        self._place(shared.depart, client)

    def give(self, waiting: Sequence[int]) -> None:
        everywhere = shared.waits(EXACT, ExactVector(self.places))
        super().give([client for client, waits in enumerate(everywhere) if waits])
        if self.gate.keeps == "work":
            q, quantum = (self._seen(name, waiting, {}) for name in ("q", "quantum"))
            self.put("q", waiting, refilled_in_rounds(q, everyone(waiting), everyone(waiting), quantum))

    def parts(self, state: Any) -> Iterator[Part]:
        yield from super().parts(state)
        yield "the number of workers where it waits", state.places.tolist(), self.places, 0


interpreter.register(KernelGate, DeclaredRules)
interpreter.register(CounterGate, _Counters)
interpreter.register(
    DeficitGate,
    lambda gate: (_Deficits if gate.sparse and gate.refill_q is deficit.refill else DeclaredRules)(gate),
)
# What waits as a step ends is in none of its events.
interpreter.register(PrintedDeficitGate, lambda gate: None)
interpreter.register(InBatchGate, _PausingDeficits)
interpreter.register(GlobalDeficitGate, _SharedDeficits)
