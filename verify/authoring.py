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
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import product
from math import lcm
from typing import Any, ClassVar

import attrs

from fairsched.model.algebra import EXACT, Algebra, ExactVector
from fairsched.model.request import Client
from fairsched.model.theorem import BACKLOGGED_DURING, GATE_RESPECTED, MEM_RESERVE, NOTHING_REFUNDED, Theorem
from fairsched.policies.base import Limits
from fairsched.policies.gates import EVENTS, Kernel, KernelGate, call, parameters
from fairsched.verify.logic import (
    Claim,
    Clause,
    Event,
    Formula,
    Kind,
    Need,
    System,
    Term,
    World,
    Written,
    implies,
    one_step,
    same,
    spread,
)

__all__ = [
    "Clause", "FairGate", "Promise", "World", "change", "gap_within", "implies", "of", "same", "service_gap", "spread"
]  # fmt: skip

Shares = Callable[[Algebra, World], tuple[Term, Term]]
"""What a unit of service of f, and of g, counts for."""

_OWN = {"queued": Kind.MASK, "was": Kind.MASK, "last": Kind.POINT, "R": Kind.VECTOR, "W": Kind.VECTOR}
_POINT = {"p": Kind.POINT}
_ONE = {**_POINT, "x": Kind.SCALAR}
_AMOUNTS = {"x": Kind.SCALAR, "r": Kind.SCALAR, "score": Kind.VECTOR, "ready": Kind.MASK}
_CHANCE = {"lot": Kind.VECTOR}
_NOT_NEGATIVE = Need(lambda o, w: w.x >= 0)
_RESERVED = (_NOT_NEGATIVE, Need(lambda o, w: w.x <= o.pick(w.R, w.p, 0), MEM_RESERVE))
_FITS = Need(lambda o, w: w.x + o.pick(w.R, w.p, 0) + w.r <= o.pick(w.U, w.p, w.x + w.r), MEM_RESERVE)
_WAITS = Need(lambda o, w: o.pick(w.queued, w.p, True))
_AWAY = Need(lambda o, w: o.where(o.pick(w.queued, w.p, False), False, True))
_EXISTS = Need(lambda o, w: o.exists(w.p))
_RESERVE = Clause("0 <= R <= U", lambda o, w: (w.R >= 0) & (w.R <= w.U))


def of(o: Algebra, vector: Term, client: Any) -> Term:
    """The vector's value for one client, such as `w.f`."""
    return o.pick(vector, client, 0)


def change(o: Algebra, w: World, vector: str, client: Any) -> Term:
    """By how much a vector of the gate has grown for one client since the interval's start."""
    return of(o, getattr(w, vector), client) - of(o, getattr(w, f"{vector}0"), client)


def service_gap(o: Algebra, w: World) -> Term:
    """W_f - W_g."""
    return of(o, w.W, w.f) - of(o, w.W, w.g)


@attrs.frozen
class Promise:
    """What holds over any interval in which the named clients wait: `backlogged` is "fg", "f" or "".

    `holds` is the promise, `during` what is true all along and implies it together with the gate's `always`.  Over the
    interval `W` is the service of each client, and `c0` a vector `c` as it was at the start.

    A promise that is made by `gap_within` has a bound that is a number in every configuration: reports show it, and the
    monitor holds runs to it.
    """

    name: str
    statement: str
    holds: Formula
    during: tuple[Clause, ...] = ()
    backlogged: str = "fg"
    bound: str = ""
    most: Formula | None = None
    shares: Shares | None = None


def gap_within(
    name: str,
    statement: str,
    most: Formula,
    during: tuple[Clause, ...] = (),
    *,
    bound: str = "",
    shares: Shares | None = None,
) -> Promise:
    """The promise that W_f - W_g <= `most` while f and g wait, or, with `shares`, that a W_f - b W_g is.

    `most` is a term of the gate's constants and of `U`; `shares` returns a and b, such as what a token of f and of g
    costs by weight.  The same terms are what is proved and the number that reports show.
    """

    def holds(o: Algebra, w: World) -> Term:
        if shares is None:
            return service_gap(o, w) <= most(o, w)
        a, b = shares(o, w)
        return o.times(a, of(o, w.W, w.f)) - o.times(b, of(o, w.W, w.g)) <= most(o, w)

    return Promise(name, statement, holds, during, bound=bound, most=most, shares=shares)


class FairGate(KernelGate):
    """A gate and what is claimed of it.

    Clauses speak of a world `w`: the gate's vectors, `queued`, `was` (who waited before the last event), `last`, `idle`
    (true for every client when none waits), `R` (what may still be charged to each client for requests in flight), `U`
    (the most that it can be charged after it was let in), and in promises `W`, `f` and `g`.

    - Cancelled work is not given back: what an admission was charged stays charged, and promises are about what was
      charged, `W`.  They hold through cancellations, at the expense of the client that cancels.  Reports and monitors
      count what was not computed as not served, so for them promises rest on NothingRefunded.
    - Weights do not change: `always` and promises are about runs in which each weight is set before its client's first
      request.  After a later change a state may not be one of which `always` is true, such as credit above a quantum
      that has become smaller, and nothing is promised from there on.  (`DeficitGate` and `CounterGate` have events for
      both, with theorems of their own.)
    """

    always: ClassVar[tuple[Clause, ...]] = ()
    promises: ClassVar[tuple[Promise, ...]] = ()

    @property
    def theorems(self) -> tuple[Theorem, ...]:  # type: ignore[override]
        """What is claimed of the gate, with its bounds as numbers."""
        costs = {promise.name: partial(self._cost, promise) for promise in self.promises if promise.most}
        stated = (claim.theorem for claim in self.claims())
        by_weight = self.per_weight or self.over_weight
        return tuple(attrs.evolve(each, bound_cost=None if by_weight else costs.get(each.id)) for each in stated)

    @property
    def gap_theorems(self) -> tuple[str, ...]:  # type: ignore[override]
        """The promises that bound a gap."""
        return tuple(promise.name for promise in self.promises if promise.most is not None)

    def _cost(self, promise: Promise, _quantum_f: int, charge_f: int, _quantum_g: int, charge_g: int) -> int:
        bound, _, _ = self._bound(promise, (1, 1), (charge_f, charge_g))
        return bound

    def _bound(self, promise: Promise, weights: tuple[int, int], charges: tuple[int, int]) -> tuple[int, int, int]:
        """The bound for two clients of these weights and U, and what a unit of service of each counts for."""
        fixed = {name: getattr(self, name) for name in self.constants}
        w = World(**fixed, **self.weighed(ExactVector(weights)), U=ExactVector(charges), f=0, g=1)
        assert promise.most is not None
        a, b = promise.shares(EXACT, w) if promise.shares else (1, 1)
        return int(promise.most(EXACT, w)), int(a), int(b)

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
    def shortfall(cls, o: Algebra, w: World) -> Term:
        """How far the gate is from letting in a client: at least 1 while clients wait and none is chosen, and each
        refill lowers it, so that finitely many are enough.

        By default what the first vector, as credit, lacks of 1 for the waiting client that has most of it.
        """
        credit = getattr(w, cls.state[0])
        return 1 - o.pick(credit, o.argmax(credit, w.queued), 0)

    @classmethod
    def claims(cls) -> tuple[Claim, ...]:
        """That `always` is true of every state, that clients which wait are let in, and each promise of an interval."""
        _check(cls)
        name = cls.__name__
        source = (inspect.getdoc(cls) or name).splitlines()[0]
        always = Theorem(
            "always",
            f"always: {'; '.join(clause.name for clause in cls.always) or 'what is reserved is at most U'}",
            source,
            (MEM_RESERVE, GATE_RESPECTED),
        )
        kept = (*cls.always, _RESERVE)
        proofs = [_waiting_only(cls, source), Claim(always, _system(cls, ""), _empty(cls), kept, kept)]
        proofs.append(_progress(cls, source, kept))
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
                bound=promise.bound,
                rests_on=(always.id,),
            )
            start = (*kept, *waited, _zero("W"), *map(_as_at_start, cls.state))
            goal = (Clause(promise.statement, promise.holds),)
            system = _system(cls, promise.backlogged, gives_back=True)
            proofs.append(Claim(theorem, system, start, (*waited, *promise.during), goal, given=kept))
        return tuple(proofs)


def _check(gate: type[FairGate]) -> None:
    if not getattr(gate, "state", ()) or not inspect.isfunction(getattr(gate, "choose", None)):
        raise ValueError(f"{gate.__name__}: a gate has a `state` (names of vectors) and a kernel `choose`")
    unproved = [event for event in ("refund", "reweigh") if gate.kernels(event)]
    unproved += [name for name in ("fast", "sparse", "units", "masks", "variants") if getattr(gate, name)]
    if unproved:
        raise ValueError(
            f"{gate.__name__}: no claim here is about {', '.join(unproved)}, which a `KernelGate` may have"
        )
    taken = {*_OWN, *_AMOUNTS, *_CHANCE, "U", "f", "g", "p", "charge", "d", "idle", "o"}
    names = (*gate.state, *gate.constants, *gate.per_weight, *gate.over_weight, *(f"{name}0" for name in gate.state))
    for name in names:
        if name in taken or names.count(name) > 1:
            raise ValueError(f"{gate.__name__}: the name {name!r} has a meaning already")


def _as_at_start(vector: str) -> Clause:
    return Clause(f"{vector} = {vector}0", lambda o, w: same(getattr(w, vector), getattr(w, f"{vector}0")))


def _zero(vector: str) -> Clause:
    return Clause(f"{vector} = 0", lambda o, w: same(getattr(w, vector), 0))


def _waited(client: str) -> Clause:
    return Clause(f"{client} waited", lambda o, w: o.pick(w.queued | w.was, getattr(w, client), True))


def _empty(gate: type[FairGate]) -> tuple[Clause, ...]:
    def empty(o: Algebra, w: World) -> Term:
        left = spread(o.exists(w.last), w.R) if hasattr(w, "last") else False
        return implies(o, w.queued | w.was, False) & same(w.R, 0) & o.where(left, False, True)

    return (Clause("no client waits, runs or left", empty), *map(_zero, gate.state))


def _waiting_only(gate: type[FairGate], source: str) -> Claim:
    """The client that `choose` lets in waits: otherwise there is nothing to admit."""
    vectors = (*gate.state, *gate.per_weight, *gate.over_weight, "score", *_drawn(gate))
    seen = {**dict.fromkeys(vectors, Kind.VECTOR), "ready": Kind.MASK}
    facts = {**seen, **dict.fromkeys(gate.constants, Kind.SCALAR), "queued_now": Kind.MASK, "last": Kind.POINT}

    def choose(o: Algebra, w: World) -> Written:
        now = World(**{**vars(w), "queued": w.queued_now})
        return {"queued": w.queued_now, "served": _called(gate, gate.choose, o, now)}

    waits = Clause("who is let in waits", lambda o, w: o.pick(w.queued, w.served, True))
    theorem = Theorem("gate", "only waiting clients are let in", source, ())
    return one_step(
        theorem,
        f"{gate.__name__}, its choice",
        {"queued": Kind.MASK, "served": Kind.POINT},
        Event("choose", choose, facts, kernels=(gate.choose,)),
        (waits,),
    )


def _progress(gate: type[FairGate], source: str, kept: tuple[Clause, ...]) -> Claim:
    """Whenever clients wait, one is let in after finitely many refills: a gate that serves nobody is fair to all."""
    system = _system(gate, "")
    refills = gate.kernels("refill")

    def waits(o: Algebra, w: World) -> Term:
        return o.any(w.queued)

    def chosen(o: Algebra, w: World) -> Term:
        return o.exists(_called(gate, gate.choose, o, w, ready=w.queued))

    def lacks(o: Algebra, w: World) -> Term:
        return gate.shortfall(o, w)

    def still_lacks(o: Algebra, w: World) -> Term:
        refilled = {name: _called(gate, kernel, o, w) for name, kernel in refills.items()}
        return gate.shortfall(o, World(**{**vars(w), **refilled}))

    def nearer(o: Algebra, w: World) -> Term:
        left = (w.lacks >= 1) & (w.still_lacks + 1 <= w.lacks)
        return o.where(w.waits, o.where(w.chosen, True, left), True)

    derived: dict[str, Formula] = {"waits": waits, "chosen": chosen}
    if refills:
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
    of = attrs.evolve(
        system,
        parameters={**system.parameters, "score": Kind.VECTOR, **_drawn(gate)},
        derived={**system.derived, **derived},
    )
    return Claim(theorem, of, _empty(gate), (), (clause,), given=kept)


# --- what may happen ------------------------------------------------------------------------------------------------


def _called(gate: type[FairGate], kernel: Kernel, o: Algebra, w: World, **also: Any) -> Any:
    """The kernel on what its parameters name; what only a proof knows, it cannot ask for."""
    seen = {"queued", "last", "p", "score", "ready", "lot"}
    seen |= {*gate.state, *gate.constants, *gate.per_weight, *gate.over_weight}
    known = {name: value for name, value in vars(w).items() if name in seen} | also
    return call(kernel, known, o)


def _drawn(gate: type[FairGate]) -> dict[str, Kind]:
    """What chance gives to each choice: in proofs, anything."""
    return _CHANCE if "lot" in parameters(gate.choose) else {}


def _system(gate: type[FairGate], backlogged: str, gives_back: bool = False) -> System:
    """The gate with everything that may happen to it, over an interval in which `backlogged` wait.

    With `gives_back` service may be less than what was charged, unless NothingRefunded is assumed.
    """

    def waits(client: str) -> Need:
        return Need(lambda o, w: o.pick(w.queued, getattr(w, client), True), BACKLOGGED_DURING)

    at_start = {f"{name}0": Kind.VECTOR for name in gate.state}
    laws = [Need(lambda o, w: w.U >= 1), Need(lambda o, w: o.exists(w.f) & o.exists(w.g))]
    laws += [_at_least_one(name) for name in (*gate.constants, *gate.per_weight, *gate.over_weight)]
    events, own = (*_queue_events(gate), *_running_events(gate)), dict(_OWN)
    if gives_back:
        uncounted = (_EXISTS, _NOT_NEGATIVE)
        give_back = Event("cancel", lambda o, w: {"W": o.bump(w.W, w.p, -w.x)}, _ONE, uncounted)
        events = (*events, attrs.evolve(give_back, excluded_by=NOTHING_REFUNDED))
    if not _asks_for_last(gate):
        events = tuple(map(_forgets_last, events))
        del own["last"]
    return System(
        gate.__name__,
        parameters={
            **dict.fromkeys(gate.constants, Kind.SCALAR),
            **dict.fromkeys((*gate.per_weight, *gate.over_weight), Kind.VECTOR),
            "U": Kind.VECTOR,
            **at_start,
            "f": Kind.POINT,
            "g": Kind.POINT,
        },
        laws=tuple(laws),
        fields={**dict.fromkeys(gate.state, Kind.VECTOR), **own},
        events=tuple(event.with_needs(*map(waits, backlogged)).also(was=lambda w: w.queued) for event in events),
        derived={"idle": lambda o, w: spread(o.none(w.queued), w.R)},
    )


def _asks_for_last(gate: type[FairGate]) -> bool:
    """Whether a kernel takes the last who left, or a clause speaks of it; otherwise it need not be remembered."""
    kernels = [gate.choose, *(kernel for event in EVENTS for kernel in gate.kernels(event).values())]
    texts: list[Any] = [clause.holds for clause in gate.always]
    texts += [holds for promise in gate.promises for holds in (promise.holds, *(c.holds for c in promise.during))]
    asked = any("last" in parameters(kernel) for kernel in kernels)
    return asked or any("last" in text.__code__.co_names for text in texts)


def _forgets_last(event: Event) -> Event:
    step = event.step
    return attrs.evolve(event, step=lambda o, w: {name: value for name, value in step(o, w).items() if name != "last"})


def _at_least_one(name: str) -> Need:
    return Need(lambda o, w: getattr(w, name) >= 1)


def _queue_events(gate: type[FairGate]) -> tuple[Event, ...]:
    joined = gate.kernels("join")
    kernels = tuple(joined.values())

    def behind(o: Algebra, w: World) -> Written:
        return {"queued": o.put(w.queued, w.p, True)}

    def arrive(o: Algebra, w: World) -> Written:
        return {**behind(o, w), **{name: _called(gate, kernel, o, w) for name, kernel in joined.items()}}

    def leave(o: Algebra, w: World) -> Written:
        return {"queued": o.put(w.queued, w.p, False), "last": w.p}

    def released(o: Algebra, w: World) -> Written:
        return {"R": o.bump(w.R, w.p, -w.x)}

    return (
        Event("arrive", arrive, _POINT, (_EXISTS, _AWAY), kernels),
        Event("arrive behind one's own", behind, _POINT, (_EXISTS, _WAITS)),
        Event("leave the queue", leave, _POINT, (_EXISTS, _WAITS)),
        Event("finish", released, _ONE, (_EXISTS, *_RESERVED)),
        Event("preempt", lambda o, w: {**arrive(o, w), **released(o, w)}, _ONE, (_EXISTS, *_RESERVED, _AWAY), kernels),
        Event("preempt, others of it wait", released, _ONE, (_EXISTS, *_RESERVED, _WAITS)),
    )


def _running_events(gate: type[FairGate]) -> tuple[Event, ...]:
    admitted, decoded, refilled = (gate.kernels(event) for event in ("admit", "decode", "refill"))
    charging = tuple(admitted.values())

    def charged(o: Algebra, w: World) -> Written:
        return {name: _called(gate, kernel, o, w, charge=w.x) for name, kernel in admitted.items()}

    def admit(o: Algebra, w: World) -> Written:
        return {**charged(o, w), "R": o.bump(w.R, w.p, w.r), "W": o.bump(w.W, w.p, w.x)}

    def admit_last(o: Algebra, w: World) -> Written:
        return {**admit(o, w), "queued": o.put(w.queued, w.p, False), "last": w.p}

    def choose(o: Algebra, w: World) -> Written:
        return {"p": _called(gate, gate.choose, o, w)}

    def correct(o: Algebra, w: World) -> Written:
        return {**charged(o, w), "R": o.bump(w.R, w.p, -w.x), "W": o.bump(w.W, w.p, w.x)}

    def decode(o: Algebra, w: World) -> Written:
        changed = {name: _called(gate, kernel, o, w, charge=w.d) for name, kernel in decoded.items()}
        return {**changed, "R": w.R - w.d, "W": w.W + w.d}

    def refill(o: Algebra, w: World) -> Written:
        return {name: _called(gate, kernel, o, w) for name, kernel in refilled.items()}

    letting_in = (_EXISTS, _NOT_NEGATIVE, Need(lambda o, w: w.r >= 0), _FITS)
    produced = (Need(lambda o, w: w.d >= 0), Need(lambda o, w: w.d <= w.R, MEM_RESERVE))
    kernels = (gate.choose, *charging)
    past, amounts = (*letting_in, _WAITS), {**_AMOUNTS, **_drawn(gate)}
    events = [
        Event("admit", admit, amounts, letting_in, kernels, decides=choose),
        Event("admit the last that waits", admit_last, amounts, letting_in, kernels, decides=choose),
        Event("admit past the gate", admit, {**amounts, **_POINT}, past, charging, excluded_by=GATE_RESPECTED),
        Event("compute more than planned", correct, _ONE, (_EXISTS, *_RESERVED), charging),
        Event("decode", decode, {"d": Kind.VECTOR}, produced, tuple(decoded.values())),
    ]
    if refilled:
        events.append(Event("refill", refill, kernels=tuple(refilled.values())))
    return tuple(events)
