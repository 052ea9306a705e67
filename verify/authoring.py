"""What the author of a new gate writes: its vectors, its kernels, what always holds, and what it promises.

A subclass of `FairGate` is all of that in one class, in the words of `fairsched.model.algebra`.  It runs as it is (see
`fairsched.policies.gates.authoring` for the kernels and what they may ask for).  The rest of a proof is the same for
every gate and is here: clients come and go, requests are admitted, decode, finish and are preempted, whatever the
order and the batching rule; service is counted from what was charged, never by a kernel.  `claims` puts both
together, and ``fairsched verify --policy module:Class`` or ``pytest --theorems`` decides them.

Every moment may be one at which ``refill`` runs, so it has to see for itself whether it is due.  Two things that happen
are no events here, see `FairGate`: work that is cancelled, and weights that change.
"""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial, reduce
from itertools import product
from math import lcm
from operator import and_
from types import MappingProxyType, MemberDescriptorType
from typing import Any, ClassVar

import attrs
import msgspec

from fairsched.model.algebra import EXACT, Algebra, ExactVector
from fairsched.model.request import Client
from fairsched.model.theorem import BACKLOGGED_DURING, GATE_RESPECTED, MEM_RESERVE, NOTHING_REFUNDED, Theorem
from fairsched.policies.base import Limits
from fairsched.policies.gates import EVENTS, Kernel, KernelGate, Returns, parameters, place_of
from fairsched.verify import events
from fairsched.verify import logic as v
from fairsched.verify.events import PROVED, fast_claims
from fairsched.verify.logic import Clause, World, implies, same, spread

__all__ = [
    "Clause", "FairGate", "Promise", "World", "change", "gap_within", "implies", "of", "same", "service_gap", "spread"
]  # fmt: skip

TERM_MAX, FACTOR_MAX = 1 << 40, 1 << 20
"""Most that a constant is, of a gate without and with products: proofs are about integers, runs about 64 bits."""

Shares = Callable[[Algebra, World], tuple[v.Term, v.Term]]
"""What a unit of service of f, and of g, counts for."""

_OWN = {"queued": v.MASK, "was": v.MASK, "last": v.POINT, "R": v.VECTOR, "W": v.VECTOR}
_FITS = (events.NOT_NEGATIVE, events.MORE, events.FITS)
_RESERVE = Clause("0 <= R <= U", lambda o, w: (w.R >= 0) & (w.R <= w.U))


def of(o: Algebra, vector: v.Term, client: Any) -> v.Term:
    """The vector's value for one client, such as `w.f`."""
    return o.pick(vector, client, 0)


def change(o: Algebra, w: World, vector: str, client: Any) -> v.Term:
    """By how much a vector of the gate has grown for one client since the interval's start."""
    return of(o, getattr(w, vector), client) - of(o, getattr(w, f"{vector}0"), client)


def service_gap(o: Algebra, w: World) -> v.Term:
    """W_f - W_g."""
    return of(o, w.W, w.f) - of(o, w.W, w.g)


@attrs.frozen
class Promise:
    """What holds over any interval in which the named clients wait: `backlogged` is "g", "fg", "f" or "".

    `holds` is the promise, `during` what is true all along and implies it together with the gate's `always`.  Over the
    interval `W` is the service of each client, and `c0` a vector `c` as it was at the start.

    A promise that is made by `gap_within` has a bound in place of `holds`, `most`, which is a number in every
    configuration: reports show it, and the monitor holds runs to it.  What is proved is made from it.
    """

    name: str
    holds: v.Formula | None
    during: tuple[Clause, ...] = ()
    backlogged: str = "g"
    most: v.Formula | None = None
    shares: Shares | None = None

    def __attrs_post_init__(self) -> None:
        if (self.holds is None) == (self.most is None):
            raise ValueError(f"promise {self.name!r}: say `holds` or `most` (gap_within): one follows from the other")

    @property
    def formula(self) -> v.Formula:
        """What is promised."""
        return self.holds or _within(self.most, self.shares)

    @property
    def statement(self) -> str:
        """What is promised, in words made from it, and which clients have to wait for it."""
        return f"{v.worded(self.formula)}{_WHILE[self.backlogged]}"


_WHILE = {
    "g": " while g waits, whatever f does",
    "fg": " while f and g wait; not what f gains when it leaves and returns",
    "f": " while f waits, whatever g does",
    "": "",
}


def gap_within(
    name: str,
    most: v.Formula,
    during: tuple[Clause, ...] = (),
    *,
    shares: Shares | None = None,
    backlogged: str = "g",
) -> Promise:
    """The promise that W_f - W_g <= `most` while g waits, or, with `shares`, that a W_f - b W_g is.

    `most` is a term of the gate's constants and of `U`; `shares` returns a and b, such as what a token of f and of g
    costs by weight.  The same terms are what is proved and the number that reports show.  f may leave and return: a
    gate that forgives what f owes then promises less, which it says by `backlogged="fg"`.
    """
    return Promise(name, None, during, backlogged, most, shares)


def _within(most: Any, shares: Shares | None) -> v.Formula:
    def holds(o: Algebra, w: World) -> v.Term:
        if shares is None:
            return service_gap(o, w) <= most(o, w)
        a, b = shares(o, w)
        return o.times(a, of(o, w.W, w.f)) - o.times(b, of(o, w.W, w.g)) <= most(o, w)

    return holds


class FairGate(KernelGate):
    """A gate and what is claimed of it.

    Clauses speak of a world `w`: the gate's vectors, `queued`, `was` (who waited before the last event), `last`, `idle`
    (true for every client when none waits), `R` (what may still be charged to each client for requests in flight), `U`
    (the most that it can be charged after it was let in), and in promises `W`, `f` and `g`.

    - Cancelled work is not given back: what an admission was charged stays charged, and promises are about what was
      charged, `W`.  They hold through cancellations, at the expense of the client that cancels.  Reports and monitors
      count what was not computed as not served, so for them promises rest on NothingRefunded.
    - A fast path that says how long a choice stays, and that charges are `sparse`, is claimed with the rest.
    - Weights do not change: `always` and promises are about runs in which each weight is set before its client's first
      request.  After a later change a state may not be one of which `always` is true, such as credit above a quantum
      that has become smaller, and nothing is promised from there on.  (`DeficitGate` and `CounterGate` have events for
      both, with theorems of their own.)
    """

    always: ClassVar[tuple[Clause, ...]] = ()
    promises: ClassVar[tuple[Promise, ...]] = ()
    not_promised: ClassVar[tuple[str, ...]] = ()
    """Those of `return-debt` and `return-credit`, which each gate that promises owes, that it does not keep."""

    @property
    def returns(self) -> Returns:  # type: ignore[override]
        """What is proved of a client that leaves and returns, or why nothing is."""
        kept = {name: "its author does not" if name in self.not_promised else (name,) for name in _OF_AUTHORS}
        alone = tuple(promise.name for promise in self.promises if "f" not in promise.backlogged)
        owed = {**kept, RETURN_LEAD: alone or "it promises only while both clients wait"}
        return owed if self.promises else {}

    @property
    def theorems(self) -> tuple[Theorem, ...]:  # type: ignore[override]
        """What is claimed of the gate, with its bounds as numbers."""
        costs = {promise.name: partial(self._cost, promise) for promise in self.promises if promise.most}
        stated = (claim.theorem for claim in self.claims())
        by_weight = self.per_weight or self.over_weight
        return tuple(attrs.evolve(each, bound_cost=None if by_weight else costs.get(each.id)) for each in stated)

    @property
    def gap_theorems(self) -> tuple[str, ...]:  # type: ignore[override]
        """The promises that bound a gap; none of kernels that no proof can read."""
        return () if self.breaches() else tuple(promise.name for promise in self.promises if promise.most is not None)

    @classmethod
    @cache
    def breaches(cls) -> tuple[str, ...]:
        """What is not written in the algebra's words, of which nothing can be proved."""
        return tuple(v.violations(cls._own()))

    @classmethod
    def _own(cls) -> tuple[Kernel, ...]:
        return (cls.choose, *cls.fast.values(), *(each for event in EVENTS for each in cls.kernels(event).values()))

    def cautions(self, _kv_capacity_tokens: int, _needs: Sequence[int] = ()) -> tuple[str, ...]:
        """That a promise is a claim until it is proved, or why it cannot be."""
        name = type(self).__name__
        if found := self.breaches():
            return (f"Gate {name} has no bound, since nothing can be proved of it: {found[0]}.",)
        if self.gap_theorems:
            return (f"The bound of gate {name} is what its author claims: fairsched verify decides it.",)
        return ()

    def _cost(self, promise: Promise, _quantum_f: int, charge_f: int, _quantum_g: int, charge_g: int) -> int:
        bound, _, _ = self._bound(promise, (1, 1), (charge_f, charge_g))
        return bound

    def _bound(self, promise: Promise, weights: tuple[int, int], charges: tuple[int, int]) -> tuple[int, int, int]:
        """The bound for two clients of these weights and U, and what a unit of service of each counts for."""
        fixed, name = {name: getattr(self, name) for name in self.constants}, type(self).__name__
        most = FACTOR_MAX if self._multiplies() else TERM_MAX
        if large := [each for each in (*fixed, *self.per_weight, *self.over_weight) if getattr(self, each) > most]:
            raise ValueError(f"{name}.{large[0]} = {getattr(self, large[0])} is over {most}: a run counts in 64 bits")
        w = World(**fixed, **self.weighed(ExactVector(weights)), U=ExactVector(charges), f=0, g=1)
        assert promise.most is not None
        try:
            a, b = promise.shares(EXACT, w) if promise.shares else (1, 1)
            bound = int(promise.most(EXACT, w))
        except AttributeError as error:
            raise ValueError(
                f"{place_of(promise.most)}: a bound is made of constants and U, not of {error.name}"
            ) from None
        if min(a, b) < 1:
            raise ValueError(f"{name}: shares of promise {promise.name!r} are {a} and {b}: at least 1")
        return bound, int(a), int(b)

    @classmethod
    @cache
    def _multiplies(cls) -> bool:
        """Whether a kernel has products, which reach the end of 64 bits sooner."""
        return any("times" in kernel.__code__.co_names for kernel in v.closure(cls._own()))

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """The least of the promised bounds, for service by weight; None where no promise is about that."""
        bounds = [self._scaled(promise, clients, limits) for promise in self.promises if promise.most is not None]
        return min((bound for bound in bounds if bound is not None), default=None)

    def _scaled(self, promise: Promise, clients: tuple[Client, ...], limits: Limits) -> int | None:
        counts, charge, worst = Counter(client.weight for client in clients), self.charge_max(limits), 0
        common = lcm(*counts)
        for f, g in product(counts, repeat=2):
            if f == g and counts[f] < 2:
                continue
            bound, a, b = self._bound(promise, (f, g), (charge, charge))
            if a * (common // g) != b * (common // f):
                # The promise is about another measure of service than the one by weight.
                return None
            worst = max(worst, bound * (common // f) // a)
        return worst if len(clients) > 1 else None

    @classmethod
    def shortfall(cls, o: Algebra, w: World) -> v.Term:
        """How far the gate is from letting in a client: at least 1 while clients wait and none is chosen, and each
        refill lowers it, so that finitely many are enough.

        By default what the first vector, as credit, lacks of 1 for the waiting client that has most of it.
        """
        credit = getattr(w, cls.state[0])
        return 1 - o.pick(credit, o.argmax(credit, w.queued), 0)

    @classmethod
    def claims(cls) -> tuple[v.Claim, ...]:
        """That `always` is true of every state, that clients which wait are let in, and each promise of an interval."""
        _check(cls)
        name = cls.__name__
        source = (inspect.getdoc(cls) or name).splitlines()[0]
        kept = (*cls.always, _RESERVE)
        always = Theorem(
            "always",
            f"always: {'; '.join(v.worded(clause.holds, clause.points) for clause in kept)}",
            source,
            (MEM_RESERVE, GATE_RESPECTED),
        )
        proofs = [_waiting_only(cls, source), v.Claim(always, _system(cls, ""), _empty(cls), kept, kept)]
        proofs.append(_progress(cls, source, kept))
        proofs += _returns(cls, source, kept) if cls.promises else ()
        for promise in cls.promises:
            waited = tuple(_waited(client) for client in promise.backlogged)
            theorem = Theorem(
                promise.name,
                promise.statement,
                source,
                (
                    *(MEM_RESERVE, GATE_RESPECTED, NOTHING_REFUNDED),
                    *((BACKLOGGED_DURING,) if promise.backlogged else ()),
                ),
                bound=v.worded(promise.most) if promise.most else "",
                rests_on=(always.id,),
            )
            start = (*kept, *waited, _zero("W"), *map(_as_at_start, cls.state))
            goal = (Clause(promise.statement, promise.formula),)
            system = _system(cls, promise.backlogged, gives_back=True)
            proofs.append(v.Claim(theorem, system, start, (*waited, *promise.during), goal, given=kept))
        return (*proofs, *fast_claims(cls))


DATA = frozenset({
    *("state", "constants", "per_weight", "over_weight", "grows", "seed", "fast", "sparse", "name"),
    *("always", "promises", "not_promised"),
})  # fmt: skip
"""What a declaration says by values; everything else that a gate has is the library's."""
_PLAIN = (tuple, str, int, bool, dict, MappingProxyType)
"""Of these types and no subclass of them: any other could answer a proof otherwise than a run."""


def _check(gate: type[FairGate]) -> None:
    if not getattr(gate, "state", ()) or not inspect.isfunction(getattr(gate, "choose", None)):
        raise ValueError(f"{gate.__name__}: a gate has a `state` (names of vectors) and a kernel `choose`")
    unproved = [event for event in ("refund", "reweigh") if gate.kernels(event)]
    unproved += [name for name in ("units", "masks", "variants") if getattr(gate, name)]
    unproved += sorted(gate.fast.keys() - PROVED)
    if gate.fast and gate.kernels("refill"):
        unproved.append("fast paths beside a refill")
    if unproved:
        raise ValueError(
            f"{gate.__name__}: no claim here is about {', '.join(unproved)}, which a `KernelGate` may have"
        )
    if beside := undeclared(gate):
        raise ValueError(f"{gate.__name__}: {', '.join(beside)} is no part of a declaration, and would run beside it")
    taken = {*_OWN, *"xrUfgpdo", "score", "ready", "lot", "charge", "charges", "amount", "idle"}
    names = (*gate.state, *gate.constants, *gate.per_weight, *gate.over_weight, *(f"{name}0" for name in gate.state))
    for name in names:
        if name in taken or names.count(name) > 1:
            raise ValueError(f"{gate.__name__}: the name {name!r} has a meaning already: take another")
    _check_said(gate, {*names, *taken})
    if not gate.breaches():
        _check_kinds(gate)


def _check_said(gate: type[FairGate], names: set[str]) -> None:
    """Refuse what is said of a gate, in clauses and promises, if a proof and a run could read it differently."""
    if unknown := sorted({*gate.not_promised} - {*_OF_AUTHORS}):
        raise ValueError(f"{gate.__name__}: not_promised {', '.join(unknown)}: it is of {', '.join(_OF_AUTHORS)}")
    if gate.promises and not gate.kernels("decode"):
        raise ValueError(f"{gate.__name__}: a gate that promises charges outputs: write a kernel `decode`")
    clauses = (*gate.always, *(each for promise in gate.promises for each in promise.during))
    if odd := {type(each).__name__ for each in (*clauses, *gate.promises) if type(each) not in (Clause, Promise)}:
        raise ValueError(f"{gate.__name__}: {', '.join(sorted(odd))} is neither a Clause nor a Promise")
    of_promises = [f for each in gate.promises for f in (each.formula, each.most, each.shares) if f is not None]
    for promise in gate.promises:
        if promise.most is not None and not gate.breaches():
            gate()._bound(promise, (1, 1), (1, 1))
    for formula in (*(clause.holds for clause in clauses), *of_promises, gate.shortfall.__func__):  # type: ignore[attr-defined]
        if found := next(v.formula_breaches(formula, names), None):
            raise ValueError(f"{gate.__name__}: {found}")
    for clause in clauses:
        if clause.points != len(inspect.signature(clause.holds).parameters) - 2:
            raise ValueError(f"{place_of(clause.holds)}: a clause about clients i, j says so: Clause(..., points=2)")


def _check_kinds(gate: type[FairGate]) -> None:
    """Refuse a kernel that returns something else than a vector of numbers, or than the client to let in."""
    for name, kernel in gate.kernels("decode").items() if gate.sparse else ():
        if parameters(kernel) != (name, "charge"):
            raise ValueError(f"{place_of(kernel)} asks for more than {name} and charge: leave out `sparse`")
    o, of_gate = v.Z3Algebra(), events.declared(gate)
    kinds = {**dict.fromkeys((*gate.state, *gate.per_weight, *gate.over_weight, "charges"), v.VECTOR), **of_gate.seen}
    kinds |= {**dict.fromkeys((*gate.constants, "charge"), v.SCALAR), "queued": v.MASK, "last": v.POINT, "p": v.POINT}
    w = World(**{name: o.symbol(name, kind, False) for name, kind in kinds.items()})
    for event in EVENTS:
        charge = w.charges if event == "decode" else w.charge
        for name, made in of_gate.run(event, o, w, charge=charge).items():
            if not isinstance(made, v.Value) or not made.vector or made.boolean:
                place = place_of(gate.kernels(event)[name])
                raise ValueError(f"{place} does not return the vector {name}, a number for each client")
    if not isinstance(of_gate.choice(o, w), v.Point):
        raise ValueError(f"{place_of(gate.choose)} does not return a client: write o.argmax or o.argmin")


def undeclared(kind: type, proved: type = FairGate) -> list[str]:
    """Return what a class has beside what was proved about its base `proved`: methods, properties, values of names that
    the library reads, another class that makes it.

    What runs is what was proved only if an author adds nothing but data; to `FairGate`, a declaration.
    """
    state = getattr(kind, "state", ()) if proved is FairGate else ()
    kernels = {"choose", *EVENTS, *(f"{event}_{name}" for event in EVENTS for name in state)}
    found = [f"the class of {kind.__name__}"] if type(kind) is not type(proved) else []
    for each in kind.__mro__[: kind.__mro__.index(proved)]:
        for name, value in vars(each).items():
            if ships(each):
                allowed = name.startswith("__") or not hasattr(proved, name) or not _runs(value)
            elif name.startswith("_"):
                allowed = _made_by_python(value)
            elif proved is not FairGate or name not in {*kernels, *DATA, "shortfall", "state_type"}:
                allowed = name == "name" or _is_data(each, name, value, proved)
            elif name in kernels:
                allowed = value is None or isinstance(value, staticmethod)
            elif name == "shortfall":
                allowed = isinstance(value, classmethod)
            else:
                allowed = type(value) in _PLAIN if name in DATA else _is_made_for(value)
            if not allowed:
                advice = _advice(name, value, name in kernels) if proved is FairGate else ""
                found.append(f"{each.__name__}.{name}{advice}")
    return found


def _advice(name: str, value: object, is_kernel: bool) -> str:
    """Return where a member is that is no part of a declaration, and what to write instead."""
    function = getattr(value, "__func__", value)
    place = place_of(function).partition(" (")[2][:-1] + ": " if inspect.isfunction(function) else ""
    if name in DATA:
        return " (plain values only, and of several a tuple)"
    if is_kernel:
        return f" ({place}write @staticmethod before it)"
    known = "kernels are choose, join, admit, decode and refill, closed forms stand in `fast`"
    return f" ({place}{known if place else 'the library has that name: take another'})"


def ships(kind: type) -> bool:
    """Whether a class is this package's: found there by its name, since an author can write any `__module__`."""
    ours = kind.__module__.partition(".")[0] == __package__.partition(".")[0]
    return ours and getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind


def _is_data(kind: type, name: str, value: object, proved: type) -> bool:
    """Whether it is a value of the author's own: no method, and no name that the library reads."""
    of_attrs = isinstance(value, MemberDescriptorType) and name in {each.name for each in attrs.fields(kind)}
    return of_attrs or not (_runs(value) or hasattr(value, "__get__") or hasattr(proved, name))


def _runs(value: object) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def _is_made_for(state: Any) -> bool:
    """Whether a type of states is only its fields, as `KernelGate` makes it for a declaration."""
    own = (
        value for name, value in vars(state).items() if not isinstance(value, MemberDescriptorType) and name[0] != "_"
    )
    return (
        state.__bases__ == (msgspec.Struct,) and not any(map(inspect.isfunction, vars(state).values())) and not [*own]
    )


def _made_by_python(value: object) -> bool:
    """Whether a member that begins with an underscore is what Python or attrs puts into a class, not its author."""
    code = getattr(value, "__code__", None)
    if code is None:
        return not callable(value) and not hasattr(value, "__func__")
    by_attrs = (inspect.getfile(attrs.Attribute), inspect.getfile(attrs.define))
    return str(code.co_filename).startswith("<attrs generated") or code.co_filename in by_attrs


def _as_at_start(vector: str) -> Clause:
    return Clause(f"{vector} = {vector}0", lambda o, w: same(getattr(w, vector), getattr(w, f"{vector}0")))


def _zero(vector: str) -> Clause:
    return Clause(f"{vector} = 0", lambda o, w: same(getattr(w, vector), 0))


def _waited(client: str) -> Clause:
    return Clause(f"{client} waited", lambda o, w: o.pick(w.queued | w.was, getattr(w, client), True))


def _empty(gate: type[FairGate]) -> tuple[Clause, ...]:
    def empty(o: Algebra, w: World) -> v.Term:
        left = spread(o.exists(w.last), w.R) if hasattr(w, "last") else False
        return implies(o, w.queued | w.was, False) & same(w.R, 0) & o.where(left, False, True)

    return (Clause("no client waits, runs or left", empty), *map(_zero, gate.state))


def _waiting_only(gate: type[FairGate], source: str) -> v.Claim:
    """The client that `choose` lets in waits: otherwise there is nothing to admit."""
    of = events.declared(gate)
    seen = {**v.vectors(*gate.state, *gate.per_weight, *gate.over_weight), **of.seen, **v.scalars(*gate.constants)}
    return v.one_step(
        Theorem("gate", "only waiting clients are let in", source, ()),
        f"{gate.__name__}, its choice",
        {"served": v.POINT},
        v.Event("choose", lambda o, w: {"served": of.choice(o, w)}, kernels=(gate.choose,)),
        (Clause("who is let in waits", lambda o, w: o.pick(w.queued, w.served, True)),),
        parameters={**seen, "queued": v.MASK, "last": v.POINT},
    )


def _progress(gate: type[FairGate], source: str, kept: tuple[Clause, ...]) -> v.Claim:
    """Whenever clients wait, one is let in after finitely many refills: a gate that serves nobody is fair to all."""
    system, of = _system(gate, ""), events.declared(gate)

    def waits(o: Algebra, w: World) -> v.Term:
        return o.any(w.queued)

    def chosen(o: Algebra, w: World) -> v.Term:
        return o.exists(of.call(gate.choose, o, w, ready=w.queued))

    def lacks(o: Algebra, w: World) -> v.Term:
        return gate.shortfall(o, w)

    def still_lacks(o: Algebra, w: World) -> v.Term:
        return gate.shortfall(o, World(**{**vars(w), **of.run("refill", o, w)}))

    def nearer(o: Algebra, w: World) -> v.Term:
        left = (w.lacks >= 1) & (w.still_lacks + 1 <= w.lacks)
        return o.where(w.waits, o.where(w.chosen, True, left), True)

    derived: dict[str, v.Formula] = {"waits": waits, "chosen": chosen}
    if of.kernels["refill"]:
        clause = Clause("a client that waits is let in, or a refill brings that nearer", nearer)
        derived |= {"lacks": lacks, "still_lacks": still_lacks}
    else:
        clause = Clause("a client that waits is let in", lambda o, w: o.where(w.waits, w.chosen, True))
    theorem = Theorem(
        "progress",
        "whenever clients wait, one of them is let in after finitely many refills",
        source,
        (MEM_RESERVE, GATE_RESPECTED),
        rests_on=("always",),
    )
    seen = {name: kind for name, kind in of.seen.items() if name != "ready"}
    system = attrs.evolve(system, parameters={**system.parameters, **seen}, derived={**system.derived, **derived})
    return v.Claim(theorem, system, _empty(gate), (), (clause,), given=kept)


# --- who leaves and returns ------------------------------------------------------------------------------------------
# A vector that `decode` moves counts charges; the way in which it moves is that of charges, and the other forgives.

RETURN_DEBT, RETURN_CREDIT, RETURN_LEAD = "return-debt", "return-credit", "return-lead"
RETURNS = {
    RETURN_DEBT: "a client that leaves and returns is forgiven no debt",
    RETURN_CREDIT: "a client that leaves and returns loses no credit beyond a quantum",
    RETURN_LEAD: "a client that comes and goes is served no more than the bound beyond one that waits",
}
"""What every gate that promises a gap owes about one client that leaves and returns, or names as not promised."""
_OF_AUTHORS = {
    RETURN_DEBT: "a charge counts alike for clients of one weight, whether they wait or not, no return and no "
    "admission forgives any, and no refill gives a client that is away more than one that waits",
    RETURN_CREDIT: "a client that returns has all the credit with which it left",
}


def _returns(gate: type[FairGate], source: str, kept: tuple[Clause, ...]) -> Iterator[v.Claim]:
    """Yield the obligations of an author's gate about a client p that leaves and returns, with any charges."""
    system, of_gate = _system(gate, ""), events.declared(gate)
    places = {"decode": {"charge": "charges"}, "admit": {"charge": "amount"}, "join": {}, "refill": {}}

    def move(event: str, name: str) -> v.Formula:
        """Return what the event adds to the vector."""

        def moved(o: Algebra, w: World) -> v.Term:
            own, kernel = getattr(w, name), of_gate.kernels[event].get(name)
            given = {asked: getattr(w, place) for asked, place in places[event].items()}
            return own - own if kernel is None else of_gate.call(kernel, o, w, **given) - own

        return moved

    def clause(said: str, holds: Callable[..., v.Term], points: int = 0) -> Clause:
        def each(o: Algebra, w: World, *i: v.Term) -> v.Term:
            counted = (World(**{event: getattr(w, f"{event} {n}") for event in places}) for n in gate.kernels("decode"))
            return reduce(and_, (holds(o, w, moved, *i) for moved in counted))

        return Clause(said, each, points)

    def forgives_none(o: Algebra, charged: v.Term, moved: v.Term) -> v.Term:
        return o.where(charged > 0, moved >= 0, o.where(charged < 0, moved <= 0, True))

    def weighs(o: Algebra, w: World, i: v.Term) -> v.Term:
        vectors = [getattr(w, name) for name in (*gate.per_weight, *gate.over_weight)]
        return reduce(and_, (same(vector, of(o, vector, i)) for vector in vectors), w.charges >= 1)

    def alike(o: Algebra, w: World, moved: World, i: v.Term) -> v.Term:
        one, other = moved.decode, of(o, moved.decode, i)
        equal = weighs(o, w, i) & same(w.charges, of(o, w.charges, i))
        return implies(o, equal, same(one, other)) & o.where(one > 0, other > 0, (one < 0) & (other < 0))

    def returned(o: Algebra, w: World, moved: v.Term) -> v.Term:
        """Return what p gains if it returns now; it is away."""
        return o.where(spread(o.pick(w.queued, w.p, True), moved), moved - moved, moved)

    def refilled(o: Algebra, w: World, moved: World, i: v.Term) -> v.Term:
        compared = o.where(w.queued, False, weighs(o, w, i) & spread(o.pick(w.queued, i, False), w.U))
        return implies(o, compared, forgives_none(o, moved.decode, moved.refill - of(o, moved.refill, i)))

    clauses = {
        RETURN_DEBT: (
            clause("equal charges count alike, and all one way", alike, 1),
            clause("no admission forgives", lambda o, w, m: forgives_none(o, m.decode, m.admit)),
            clause("no return forgives", lambda o, w, m: forgives_none(o, m.decode, returned(o, w, m.join))),
            clause("no refill gives one that is away more than one that waits", refilled, 1),
        ),
        RETURN_CREDIT: (
            clause("no return takes", lambda o, w, m: forgives_none(o, m.decode, returned(o, w, -m.join))),
        ),
    }
    moves = {f"{event} {name}": move(event, name) for name in gate.kernels("decode") for event in places}
    system = attrs.evolve(
        system,
        parameters={**system.parameters, "p": v.POINT, "charges": v.VECTOR, "amount": v.SCALAR},
        laws=(*system.laws, events.EXISTS, v.Need(lambda o, w: w.charges >= 1), v.Need(lambda o, w: w.amount >= 1)),
        derived={**system.derived, **moves},
    )
    for name, statement in _OF_AUTHORS.items():
        if name not in gate.not_promised:
            theorem = Theorem(name, statement, source, (MEM_RESERVE, GATE_RESPECTED), rests_on=("always",))
            yield v.Claim(theorem, system, _empty(gate), (), clauses[name], given=kept)


# --- what may happen ------------------------------------------------------------------------------------------------


def _system(gate: type[FairGate], backlogged: str, gives_back: bool = False) -> v.System:
    """The gate with everything that may happen to it, over an interval in which `backlogged` wait.

    With `gives_back` service may be less than what was charged, unless NothingRefunded is assumed.
    """

    at_start = {f"{name}0": v.VECTOR for name in gate.state}
    laws = [v.Need(lambda o, w: w.U >= 1), v.Need(lambda o, w: o.exists(w.f) & o.exists(w.g))]
    laws += [events.at_least_one(name) for name in (*gate.constants, *gate.per_weight, *gate.over_weight)]
    of, own = events.declared(gate), dict(_OWN)
    last = of.asks("last") or _speaks_of_last(gate)
    every = events.gate_events(of, _FITS, was=True, last=last)
    if gives_back:
        uncounted = (events.EXISTS, events.NOT_NEGATIVE)
        cancel = v.Event("cancel", lambda o, w: {"W": o.bump(w.W, w.p, -w.x)}, events.ONE, uncounted)
        every += (attrs.evolve(cancel, excluded_by=NOTHING_REFUNDED).also(was=lambda w: w.queued),)
    if not last:
        del own["last"]
    return v.System(
        gate.__name__,
        parameters={
            **dict.fromkeys(gate.constants, v.SCALAR),
            **dict.fromkeys((*gate.per_weight, *gate.over_weight), v.VECTOR),
            "U": v.VECTOR,
            **at_start,
            "f": v.POINT,
            "g": v.POINT,
        },
        laws=tuple(laws),
        fields={**dict.fromkeys(gate.state, v.VECTOR), **own},
        events=tuple(event.with_needs(*map(events.waits, backlogged)) for event in every),
        derived={"idle": lambda o, w: spread(o.none(w.queued), w.R)},
    )


def _speaks_of_last(gate: type[FairGate]) -> bool:
    """Whether a clause speaks of the last who left; otherwise it need not be remembered, unless a kernel takes it."""
    texts: list[Any] = [clause.holds for clause in gate.always]
    texts += [holds for promise in gate.promises for holds in (promise.formula, *(c.holds for c in promise.during))]
    return any("last" in text.__code__.co_names for text in texts)
