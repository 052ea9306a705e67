"""A gate is its declaration: kernels by the event that they are about, vectors, constants, and fast paths beside them.

The kernels are functions in the words of `fairsched.model.algebra`; their parameters are found by name (see
`KernelGate`).  This is what runs them, for the gates that ship and for an author's alike: `deficit` and `counter` are
declarations.  A class of gates has its calls compiled once, so that an event costs what its kernels cost.

A *fast path* is a closed form that stands for calls of kernels.  Those of the shipped gates are proved to be what they
stand for, or played against it (D-refill, D-first, `verify.conformance.gate_holds`).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from itertools import count
from math import lcm
from typing import Any, ClassVar

import attrs
import msgspec
import numpy as np
from msgspec.structs import replace

from fairsched.model.algebra import NO_GROUP, NO_SCORE, NUMPY, NUMPY_OWNED, Algebra, Bools, Ints
from fairsched.model.pricing import UNIT_RATE_MAX, WEIGHT_MAX, Rates, price, unit_fits
from fairsched.model.request import Client, Groups
from fairsched.policies.base import Limits
from fairsched.policies.draw import draw
from fairsched.policies.gates.base import AdmissionTransaction, BoundedGate, BoundTerms
from fairsched.policies.vectors import column, dense, each, grown, least, with_room

Kernel = Callable[..., Any]

EVENTS = ("join", "admit", "refund", "decode", "refill", "reweigh")
"""What may change a gate's vectors."""
REFILLS_MAX = 1 << 20
"""After so many refills in one decision a gate makes no progress: one that is proved needs fewer."""
COUNTER_MAX = 1 << 61
"""No number of a vector that grows is above this: the charge that would take it there ends in an `OverflowError`."""
_NO_SCORE = np.array(NO_SCORE)
"""As an array: numpy compares it with a hundred numbers in half of the time that it takes for one of Python's."""
COMMON_MAX = WEIGHT_MAX
"""Largest least common multiple of weights in which vectors are kept: beyond it they could leave 64 bits on a long
run."""


def lots(seed: int, number: int, weights: Sequence[int]) -> list[int]:
    """Return the best ticket of each client in a draw, the same for the same seed and number.  O(sum of weights).

    A client holds as many tickets as its weight says, and each draws a number: among any clients each wins with a
    chance in proportion to its weight.
    """
    stream = draw(seed, number, 1 << 64)
    tickets = count()
    return [max(draw(stream, next(tickets), 1 << 62) for _ in range(int(weight))) for weight in weights]


def in_queue(heads: Ints) -> Bools:
    """Return which groups have a request that waits, by the best score of each.

    >>> in_queue(np.array([7, NO_SCORE])).tolist()
    [True, False]
    """
    waits: Bools = heads != _NO_SCORE
    return waits


def common(vector: Ints) -> Ints | int:
    """Return the one number that all entries are, or the vector itself: numpy divides by one number ten times as fast.

    >>> common(np.array([3, 3])), common(np.array([3, 4])).tolist()
    (3, [3, 4])
    """
    one = int(vector[0])
    same = vector == one
    return one if same[same.argmin()] else vector


def place_of(function: Kernel) -> str:
    """Return the function's name, file and line."""
    code = function.__code__
    return f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"


@cache
def parameters(kernel: Kernel) -> tuple[str, ...]:
    """Return what a kernel asks for, after its algebra."""
    return tuple(inspect.signature(kernel).parameters)[1:]


def call(kernel: Kernel, seen: Mapping[str, Any], o: Algebra = NUMPY) -> Any:
    """Return what the kernel makes of what its parameters name."""
    unknown = [name for name in parameters(kernel) if name not in seen]
    if unknown:
        raise ValueError(
            f"{place_of(kernel)} asks for {', '.join(unknown)}, which a gate does not know then: it knows "
            f"{', '.join(sorted(seen))}"
        )
    return kernel(o, *[seen[name] for name in parameters(kernel)])


# --- compiled calls -------------------------------------------------------------------------------------------------


class KernelFault(Exception):
    """A kernel failed; the message says which, of which gate and where."""


class _Text:
    """The text of a function that calls kernels of a gate, and the names in it."""

    def __init__(self, gate: str, places: Mapping[str, str], **names: Any) -> None:
        self.gate = gate
        self.places = places
        self.names = names

    def call(self, kernel: Kernel, o: str = "o", **places: str) -> str:
        """Return the call of a kernel on what its parameters name."""
        known = {**self.places, **places}
        unknown = [name for name in parameters(kernel) if name not in known]
        if unknown:
            raise ValueError(f"{kernel.__qualname__} asks for {', '.join(unknown)}, which a gate does not know then")
        name = f"kernel{len(self.names)}"
        self.names[name] = kernel
        return f"{name}({', '.join([o, *(known[each] for each in parameters(kernel))])})"

    def function(self, arguments: str, *lines: str) -> Any:
        """Return the function of these arguments with these lines."""
        made: dict[str, Any] = {}
        kernels = {kernel.__code__ for kernel in self.names.values() if inspect.isfunction(kernel)}

        def told(error: Exception) -> Exception | None:
            frame = error.__traceback__
            while frame is not None and frame.tb_frame.f_code not in kernels:
                frame = frame.tb_next
            if frame is None or type(error).__module__.startswith("fairsched."):
                return None
            code = frame.tb_frame.f_code
            where = f"{code.co_filename}:{frame.tb_lineno}"
            return KernelFault(f"gate {self.gate}, {code.co_qualname} ({where}): {type(error).__name__}: {error}")

        body = "".join(f"\n  {line}" for line in lines or ("pass",))
        fault = "  fault = told(error)\n  if fault is None:\n   raise\n  raise fault from error"
        text = f"def function({arguments}):\n try:{body}\n except Exception as error:\n{fault}"
        exec(text, {**self.names, "told": told}, made)
        return made["function"]


class Calls:
    """What gates of one class call, compiled from their declaration: inside a decision `t`, and at other events."""

    def __init__(self, gate: "KernelGate", o: Algebra = NUMPY, owned: Algebra = NUMPY_OWNED) -> None:
        kernels = {event: gate.kernels_of(event) for event in EVENTS}
        fast, fields = gate.fast, gate.state_type.__struct_fields__
        self.every = [gate.choose, *fast.values(), *(kernel for found in kernels.values() for kernel in found.values())]
        asked = {name for kernel in self.every for name in parameters(kernel)}
        self.last, self.drawn = "last" in fields, "drawn" in fields
        self.lots = "lot" in asked
        self.moving = tuple(dict.fromkeys((*kernels["refill"], *kernels["admit"])))
        self.refilled = tuple(kernels["refill"])
        self.grows, self.units = gate.grows, bool(gate.units)
        kept = (*self.moving, *gate.kept, *(("last",) if self.last else ()), *(("drawn",) if self.drawn else ()))
        outside = {name: f"gate.{name}" for name in gate.constants} | {name: f"state.{name}" for name in fields}
        outside |= {"queued": "queued", "p": "p", "charge": "charge", "amount": "charge"}
        inside = {name: f"t.{place}" for name, place in outside.items()}
        inside |= {name: f"t.{name}" for name in (*kept, "queued", "ready", "score", "p", "charge", "lot")}
        # Numpy divides by one number ten times as fast as by a vector.
        shortly = {name: f"common(t.state.{name})" for name in gate.per_weight if o is NUMPY}

        def text(places: Mapping[str, str]) -> _Text:
            return _Text(type(gate).__name__, places, o=o, owned=owned, common=common, each=each, State=gate.state_type)

        def decides(kernel: Kernel | None, **places: str) -> Any:
            of = text({**inside, **places})
            return of.function("t", f"return {of.call(kernel)}") if kernel is not None else None

        def results(of: _Text, found: Mapping[str, Kernel], **o: str) -> list[str]:
            made = [of.call(kernel, o.get(name, "o")) for name, kernel in found.items()]
            names = [f"t.{name}" for name in found]
            return [f"{', '.join(names)} = {', '.join(made)}"] if found else []

        self.choose, self.first = decides(gate.choose), decides(fast.get("choose"))
        self.give: Any = None
        if "due" in fast:
            given, names = text({**inside, **shortly}), [f"t.{name}" for name in self.refilled]
            rounds = {name: fast[f"refill_{name}"] for name in self.refilled if f"refill_{name}" in fast}
            body = [f"t.before = {', '.join(names)},", *results(given, rounds)]
            self.give = given.function("t", f"if {given.call(fast['due'])}:", *[f" {line}" for line in body])
        refill = text(inside)
        self.refill = refill.function("t", *results(refill, kernels["refill"]))
        # In place, unless another kernel of the event still reads the vector as it was.
        admits = kernels["admit"]
        alone = {n for n in admits if not any(n in parameters(k) for other, k in admits.items() if other != n)}
        pay = text(inside)
        self.pay = pay.function("t", *results(pay, admits, **dict.fromkeys(alone, "owned")))
        self.begin = text({}).function("t, state", *(f"t.{name} = state.{name}" for name in kept))
        self.own = text({}).function(
            "t, state", *(f"if t.{name} is state.{name}: t.{name} = t.{name}.copy()" for name in admits)
        )
        self.after = self._state(text({}), fields, {name: f"t.{name}" for name in kept}, "state, t")
        # Of one client, or of some: their entries, in the order in which they are named.
        of = text({name: f"{place}[c]" for name, place in inside.items() if not place.startswith("t.gate")})
        lasts = fast.get("stays")
        self.lasts: Any = of.function("t, c, charge", f"return {of.call(lasts, charge='charge')}") if lasts else None
        leads = fast.get("leads")
        beside = {"own": f"t.{gate.grows}[p]", "gains": "gains", "ahead": "ahead"}
        self.leads: Any = of.function("t, c, p, gains, ahead", f"return {of.call(leads, **beside)}") if leads else None
        self.by_score = "score" in parameters(gate.choose)
        self.events: dict[str, tuple[Any, bool] | None] = {}
        for event in ("join", "admit", "refund", "decode", "reweigh"):
            made, found = text(outside), kernels[event]
            after = self._state(
                made, fields, {n: made.call(k) for n, k in found.items()}, "gate, state, p, charge, queued"
            )
            self.events[event] = (after, any("queued" in parameters(k) for k in found.values())) if found else None
        self.by_client = None
        if gate.sparse:
            made = text(outside)
            parts = {}
            for name, kernel in kernels["decode"].items():
                made.names[f"decode_{name}"] = kernel
                parts[name] = f"each(decode_{name}, state.{name}, clients, tokens, rate)"
            self.by_client = self._state(made, fields, parts, "state, clients, tokens, rate")

    @staticmethod
    def _state(of: _Text, fields: Iterable[str], parts: Mapping[str, str], arguments: str) -> Any:
        values = ", ".join(parts.get(name, f"state.{name}") for name in fields)
        return of.function(arguments, f"return State({values})")


# --- a decision -----------------------------------------------------------------------------------------------------


class KernelAdmissions(AdmissionTransaction):
    """One decision: the vectors that it may change, as the last refill left them.

    They are the state's until an admission, then copies of our own.
    """

    gate: "KernelGate"
    drawn: int
    before: tuple[Any, ...] | None = None
    """The vectors before a refill that no admission followed: then it has not happened."""
    owned = parted = False

    def __init__(self, gate: "KernelGate", state: Any, heads: Ints) -> None:
        self.gate = gate
        self.calls = calls = gate.calls
        self.state = state
        calls.begin(self, state)
        # A waiting client is ready until it is skipped; then the masks part.
        self.queued = self.ready = in_queue(heads)
        self.score = heads

    def choose(self, heads: Ints) -> int:
        calls = self.calls
        if self.before is not None:
            self.restore()
        self.score = heads
        if calls.first is not None:
            self.p = int(heads.argmax()) if len(heads) else NO_GROUP
            if calls.first(self):
                return self.p
        if calls.lots:
            numbers = lots(self.gate.seed, self.drawn, self.state.weight.tolist())
            self.lot = np.array(numbers, dtype=np.int64)
        if calls.give is not None:
            self.give()
        chosen = int(calls.choose(self))
        if chosen == NO_GROUP and calls.refilled and calls.give is None:
            chosen = self._refilling()
        return chosen if chosen != NO_GROUP and self.ready[chosen] else NO_GROUP

    def give(self) -> None:
        """Give the credit that is due, where that is known before a choice."""
        self.calls.give(self)

    def restore(self) -> None:
        """Take back a refill that no admission followed."""
        if self.before is not None:
            for name, vector in zip(self.calls.refilled, self.before, strict=True):
                setattr(self, name, vector)
            self.before = None

    def _refilling(self) -> int:
        calls, names = self.calls, self.calls.refilled
        self.before = seen = tuple([getattr(self, name) for name in names])
        for _ in range(REFILLS_MAX):
            calls.refill(self)
            now = tuple([getattr(self, name) for name in names])
            if all(np.array_equal(one, other) for one, other in zip(seen, now, strict=True)):
                return NO_GROUP
            chosen = int(calls.choose(self))
            if chosen != NO_GROUP:
                return chosen
            seen = now
        gate = type(self.gate).__name__
        raise ValueError(f"gate {gate} refilled {REFILLS_MAX:,} times and lets in no client that waits: no progress")

    def skip(self, group: int) -> None:
        if not self.parted:
            self.ready, self.parted = self.ready.copy(), True
        self.ready[group] = False

    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        calls = self.calls
        self.before = None
        if not self.owned:
            calls.own(self, self.state)
            self.owned = True
        self.p = group
        # What `price` says, without a call for each admission.
        charge = input_tokens * self.gate.rates.input
        self.charge = charge * int(self.state.share[group]) if calls.units else charge
        calls.pay(self)
        if calls.grows:
            _within(int(getattr(self, calls.grows)[group]))
        if calls.drawn:
            self.drawn += 1
        self.entered(group, kv_tokens)
        if emptied:
            self.emptied(group)

    def entered(self, group: int, kv_tokens: int) -> None:
        """So much KV is promised to a request that was just admitted."""

    def emptied(self, group: int) -> None:
        """Nothing more of the client waits here."""
        self.last = group
        self.queued[group] = self.ready[group] = False

    def lacks_credit(self, client: int) -> bool:
        """Whether a client has no credit; under a gate without credit, whether another client that waits goes first,
        in whatever order."""
        calls = self.calls
        if calls.lasts is not None:
            return bool(calls.lasts(self, client, 1) <= 0)
        if calls.by_score:
            return False
        return int(calls.choose(self)) not in (NO_GROUP, client)

    def in_credit(self, clients: int) -> Bools:
        if self.calls.lasts is None:
            return super().in_credit(clients)
        has: Bools = self.calls.lasts(self, np.arange(clients), np.ones(clients, np.int64)) > 0
        return has

    def credit_lasts(self, clients: Sequence[int], counts: Sequence[int]) -> int:
        if self.calls.lasts is None or not len(clients):
            return 1
        spans = self.calls.lasts(self, column(clients), column(counts, self.gate.rates.output))
        return least(spans[spans > 0]) if (spans > 0).any() else COUNTER_MAX

    def stays(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        """As long as the chosen client has credit, or is ahead of all others; else it is for the kernels to say, one
        step at a time."""
        if self.calls.lasts is not None:
            return self._in_credit(group, clients, counts)
        if self.calls.leads is not None:
            return self._ahead(group, clients, counts)
        return 1

    def _in_credit(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        """Return for how long the chosen client has credit, refill or not; when none was ready, the first of those in
        credit that runs out may make a refill due."""
        out, lasts = self.gate.rates.output, self.calls.lasts
        if group != NO_GROUP:
            return int(lasts(self, group, out * counts[clients.index(group)])) if group in clients else None
        if not len(clients):
            return None
        who = column(clients)
        spans = lasts(self, who, column(counts, out))[~self.ready[who]]
        spans = spans[spans > 0]
        return least(spans) if len(spans) else None

    def _ahead(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        """Return for how long the chosen client, or the one that is not ready, stays ahead of others that wait."""
        if group == NO_GROUP:
            group = int(self.calls.choose(self))
        if group == NO_GROUP or group not in clients:
            return None
        growth = dense(len(self.ready), clients, counts, self.gate.rates.output) * self.gate.units_of(self.state)
        gains = growth[group] - growth
        faster = (self.queued & (gains > 0)).nonzero()[0]
        if not len(faster):
            return None
        return least(self.calls.leads(self, faster, group, gains.take(faster), faster < group))


def _within(number: int) -> None:
    """Raise `OverflowError` for a number past the horizon up to which none leaves 64 bits."""
    if number > COUNTER_MAX:
        raise OverflowError(
            f"a counter would be {number:,}, over {COUNTER_MAX:,}: begin with new counters, or use the deficit gate, "
            "whose numbers do not grow"
        )


_CALLS: dict[tuple[Any, ...], Calls] = {}
_STANDS_FOR = {
    "choose": {"choose", "refill"},
    "due": {"refill"},
    "refill": {"refill"},
    "stays": {"choose", "refill", "decode"},
    "leads": {"choose", "decode"},
}
"""The kernels that each closed form stands for."""


def _check_names(gate: "type[KernelGate]") -> None:
    """Raise `ValueError` for a closed form of nothing, and for a kernel of which it is not said which vector it
    changes."""
    for name in ("state", "constants", "per_weight", "over_weight"):
        if isinstance(said := getattr(gate, name), str):
            raise ValueError(f"{gate.__name__}.{name} is a tuple of names: write ({said!r},)")
    known = {"choose", "due", "stays", "leads", *(f"refill_{name}" for name in gate.state)}
    if unknown := sorted(gate.fast.keys() - known):
        raise ValueError(f"{gate.__name__}: fast {', '.join(unknown)}: there are only {', '.join(sorted(known))}")
    bare = [event for event in EVENTS if len(gate.state) > 1 and event in vars(gate)]
    if bare:
        each = ", ".join(f"{bare[0]}_{name}" for name in gate.state)
        raise ValueError(f"{gate.__name__}: which vector does {bare[0]} change? It is called one of {each}")


# --- gates ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class KernelGate(BoundedGate[Any]):
    """A gate that is its declaration.

    `state` names its vectors (a number a client, 0 at first; truth values where it is in `masks`), `constants`,
    `per_weight`, `over_weight` its attributes that are numbers of at least 1: the latter two are vectors, times and by
    each client's weight.  A kernel may ask for all of these, for `queued` (which clients wait), for `last` (the last
    whose queue became empty), and

    - ``choose`` for `score` (of each client's best request), `ready` (whose may go now) and `lot` (drawn by `seed` for
      each admission, see `lots`): the client to let in;
    - ``join``, before its request joins, for `p`, whose queue was empty;
    - ``admit`` for `p` and its `charge`; also when more was computed than planned;
    - ``refund`` for `p` and the `amount` of its charge that was not computed; without one nothing is given back;
    - ``decode`` for `charge`, of each client;
    - ``reweigh``, after a client's weight changed.

    ``refill`` is applied when no client is chosen, for as long as it changes something.  Each returns the vector that
    it changes; with several vectors there is one a vector, ``admit_q``.  `variants` are other kernels where an
    attribute has a value, such as a rule as a paper prints it.

    Charges are in units of the least common multiple of all weights by the client's own where the gate counts in
    `units`: these are the vectors that are kept in it, and `rescale` takes each to a unit that is so many times finer.
    `grows` names a vector whose numbers only grow.

    `fast` are closed forms: ``choose``, whether the client of best score goes at once; ``due``, whether there is a
    refill at all, and ``refill_q``, all refills at once; ``stays``, for how many steps of `charge` a client's credit
    lasts; ``leads``, for how many steps each other client stays behind, whose number in the vector that `grows` gains
    so much less a step than the chosen client's `own`, and which goes `ahead` of equals.  With `sparse` a charge
    changes the client that is charged and no other, and so do refunds and weights.  A subclass with another kernel
    inherits neither theorems nor closed forms that stand for its parent's.
    """

    name: ClassVar[str] = "kernels"
    state_type: ClassVar[Any] = None
    state: ClassVar[tuple[str, ...]] = ()
    masks: ClassVar[tuple[str, ...]] = ()
    constants: ClassVar[tuple[str, ...]] = ()
    per_weight: ClassVar[tuple[str, ...]] = ()
    over_weight: ClassVar[tuple[str, ...]] = ()
    units: ClassVar[tuple[str, ...]] = ()
    rescale: ClassVar[Kernel]
    grows: ClassVar[str] = ""
    kept: ClassVar[tuple[str, ...]] = ()
    """Parts of the state that a decision changes and no kernel does."""
    rooms: ClassVar[tuple[str, ...]] = ()
    """Vectors of the state beside `state` and those by weight, 0 at first."""
    seed: ClassVar[int] = 0
    choose: ClassVar[Kernel]
    fast: ClassVar[Mapping[str, Kernel]] = {}
    sparse: ClassVar[bool] = False
    variants: ClassVar[Mapping[tuple[str, str], Mapping[str, Kernel]]] = {}
    admissions: ClassVar[type[KernelAdmissions]] = KernelAdmissions
    refunds_widen: ClassVar[bool] = False
    follows_weights: ClassVar[bool] = False
    """Whether something is proved of runs in which weights change."""

    rates: Rates = attrs.field(factory=Rates)

    def __attrs_post_init__(self) -> None:
        for name in (*self.constants, *self.per_weight, *self.over_weight):
            if type(value := getattr(self, name)) is not int or value < 1:
                raise ValueError(f"{type(self).__name__}.{name} = {value!r} is no integer of at least 1")

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        own = vars(cls)
        _check_names(cls)
        others = {event for event in ("choose", *EVENTS) if own.keys() & {event, *(f"{event}_{n}" for n in cls.state)}}
        if "fast" not in own and others:
            cls.fast = {n: kernel for n, kernel in cls.fast.items() if not others & _STANDS_FOR[n.partition("_")[0]]}
        if "sparse" not in own and others & {"admit", "refund", "decode"}:
            cls.sparse = False
        if others and "theorems" not in own and isinstance(cls.theorems, tuple):
            cls.theorems, cls.gap_theorems = (), ()  # those of the parent are about the parent's kernels
        if "state_type" not in own and {"state", "masks", "per_weight", "over_weight", "units"} & own.keys():
            fields = [(name, Bools if name in cls.masks else Ints) for name in cls.state]
            fields += [(name, Ints) for name in (*cls.per_weight, *cls.over_weight, "weight")]
            cls.state_type = msgspec.defstruct(
                f"{cls.__name__}State", [*fields, ("last", int), ("drawn", int)], frozen=True, gc=False
            )

    @classmethod
    def kernels(cls, event: str) -> dict[str, Kernel]:
        """Return the kernel of each vector that an event changes."""
        alone = getattr(cls, event, None) if len(cls.state) == 1 else None
        found = {name: getattr(cls, f"{event}_{name}", alone) for name in cls.state}
        return {name: kernel for name, kernel in found.items() if kernel is not None}

    def kernels_of(self, event: str) -> dict[str, Kernel]:
        """Return the same of this configuration."""
        chosen = [more for (name, value), more in self.variants.items() if getattr(self, name) == value]
        other = {name: more[f"{event}_{name}"] for more in chosen for name in self.state if f"{event}_{name}" in more}
        return {**self.kernels(event), **other}

    @cached_property
    def calls(self) -> Calls:
        """What gates of this configuration call."""
        key = (type(self), *[getattr(self, name) for name, _ in self.variants])
        if key not in _CALLS:
            _CALLS[key] = Calls(self)
        return _CALLS[key]

    @property
    def draws(self) -> bool:
        """Whether chance has a say."""
        return "lot" in parameters(self.choose)

    def weighed(self, weight: Any) -> dict[str, Any]:
        """Return the vectors that follow from clients' weights."""
        by_weight = {name: weight * getattr(self, name) for name in self.per_weight}
        return by_weight | {name: (weight - weight + getattr(self, name)) // weight for name in self.over_weight}

    def unit(self, state: Any, client: int) -> int:
        """Return how many of the gate's units a cost unit of the client is."""
        return int(state.share[client]) if self.units else 1

    def units_of(self, state: Any) -> Ints | int:
        """Return the same of every client."""
        share: Ints | int = state.share if self.units else 1
        return share

    def bound_terms(self, clients: tuple[Client, ...], limits: Limits) -> tuple[BoundTerms, ...]:
        """Of each client the most that it can be charged after it was let in."""
        return tuple(BoundTerms(0, self.charge_max(limits)) for _ in clients)

    def charge_max(self, limits: Limits) -> int:
        """U: most that one client can be charged after it was let in, in cost units."""
        return limits.charge_max(self.rates, limits.kv_capacity_tokens)

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """Kernels alone promise nothing."""
        return None

    # --- state ------------------------------------------------------------------------------------------------------

    def init(self) -> Any:
        vectors: dict[str, Any] = {
            name: np.zeros(0, np.bool_ if name in self.masks else np.int64) for name in self._fills(1)
        }
        kept = {"last": NO_GROUP, "drawn": 0, "common": 1}
        return self.state_type(
            **{n: {**kept, **vectors}[n] for n in self.state_type.__struct_fields__ if n in vectors or n in kept}
        )

    def _fills(self, unit: int) -> dict[str, int | bool]:
        """What each vector has of a client that is new."""
        fills: dict[str, int | bool] = {name: name in self.masks and False for name in self.state}
        fills |= {**self.weighed(1), **dict.fromkeys(self.rooms, 0)}
        fields = self.state_type.__struct_fields__
        return fills | {name: fill for name, fill in (("weight", 1), ("share", unit)) if name in fields}

    def grown(self, state: Any, size: int) -> Any:
        """Return the state with room for so many clients."""
        return with_room(state, size, **self._fills(state.common if self.units else 1))

    def size(self, state: Any) -> int:
        """Return how many clients the state has room for."""
        return len(getattr(state, self.state[0]))

    def begin(self, state: Any, heads: Ints) -> AdmissionTransaction:
        return self.admissions(self, state, heads)

    def after(self, state: Any, admissions: AdmissionTransaction) -> Any:
        assert isinstance(admissions, KernelAdmissions)
        if not admissions.owned:
            return state
        # A refill is part of the admission that it allows: one that allowed none has not happened.
        if admissions.before is not None:
            admissions.restore()
        return self.calls.after(state, admissions)

    def joined(self, state: Any, client: int, heads: Ints, waited: bool) -> Any:
        if client >= self.size(state):
            state = self.grown(state, client + 1)
        return state if waited else self._event("join", state, client, 0, heads)

    def left(self, state: Any, client: int) -> Any:
        return replace(state, last=client) if self.calls.last else state

    def decoded(self, state: Any, clients: tuple[int, ...], tokens: tuple[int, ...]) -> Any:
        calls, rate = self.calls, self.rates.output
        if calls.by_client is not None and not self.units:
            return calls.by_client(state, clients, tokens, rate)
        charge = dense(self.size(state), clients, tokens, rate) * self.units_of(state)
        after = self._event("decode", state, NO_GROUP, charge, None)
        if calls.grows:
            _within(int(getattr(after, calls.grows).max(initial=0)))
        return after

    def settled(self, state: Any, client: int, input_tokens: int, heads: Ints) -> Any:
        if not input_tokens:
            return state
        charge = price(abs(input_tokens), self.rates.input, self.unit(state, client))
        if input_tokens < 0:
            return self._event("refund", state, client, charge, heads)
        if self.grows:
            _within(int(getattr(state, self.grows)[client]) + charge)
        return self._event("admit", state, client, charge, heads)

    def configured(self, state: Any, client: int, weight: int, groups: Groups = ()) -> Any:
        """The client's weight is another one.  A gate that counts in units may take a finer one."""
        for name in self.over_weight:
            if weight > getattr(self, name):
                raise ValueError(f"gate {self.name}: {name} = {getattr(self, name)} is less than a weight of {weight}")
        if client >= self.size(state):
            state = self.grown(state, client + 1)
        by_weight = {
            name: NUMPY.put(getattr(state, name), client, value) for name, value in self.weighed(weight).items()
        }
        if "weight" in self.state_type.__struct_fields__:
            by_weight["weight"] = NUMPY.put(state.weight, client, weight)
        if self.units:
            by_weight |= self._finer(state, client, weight)
        return self._event("reweigh", replace(state, **by_weight), client, 0, None)

    def _finer(self, state: Any, client: int, weight: int) -> dict[str, Any]:
        """Vectors are kept in units of 1 / lcm of all weights seen."""
        unit = lcm(state.common, weight)
        if not unit_fits(self.rates, unit):
            most = min(COMMON_MAX, UNIT_RATE_MAX // max(self.rates.input, self.rates.output))
            raise ValueError(f"the weights' least common multiple is {unit}, over {most}: use rounder weights")
        finer = unit // state.common
        if self.grows:
            _within(int(getattr(state, self.grows).max(initial=0)) * finer)
        share = NUMPY.put(state.share * finer, client, unit // weight)
        return {
            "share": share,
            "common": unit,
            **{name: self.rescale(NUMPY, getattr(state, name), finer) for name in self.units},
        }

    def check(self, state: Any) -> None:
        # All vectors speak of the same clients, and so does the last leaver.
        size = self.size(state)
        assert all(len(getattr(state, name)) == size for name in self._fills(1))
        assert not self.calls.last or NO_GROUP <= state.last < size

    def _event(self, event: str, state: Any, p: int, charge: Any, heads: Ints | None) -> Any:
        found = self.calls.events[event]
        if found is None:
            return state
        after, asks = found
        queued = in_queue(grown(heads, self.size(state), NO_SCORE)) if asks and heads is not None else None
        return after(self, state, p, charge, queued)
