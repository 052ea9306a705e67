"""The hierarchical gate's theorems for any tree of any number of nodes: H-range, H-siblings, H-weighted, H-split.

Vectors are over nodes, clients and groups alike.  A *family* is any mask: a refill of a family runs the deficit gate's
kernel on who waits and is known in it, and the theorems hold for whatever families there are, as long as f and g are in
the same ones.  (Production refills all families at once: `fairsched.model.siblings` runs the same text on masks cut to
each family, which tests hold it to.)  An admission is the gate's own choice of a client, whose groups are two other
nodes or none, and what the kernel saw of these is what they have.  Which groups those are is left open from one event
to the next, so the range and the gaps hold for trees that change, too; H-split speaks of the clients `mine` of g.

The clauses are those of the deficit gate's theorems (`fairsched.verify.deficit_proofs`), now said of nodes.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import EQUAL_QUANTA, GATE_RESPECTED, MEM_RESERVE, Theorem
from fairsched.policies import deficit, hierarchical
from fairsched.policies.hierarchical_theorems import H_CHANGE, H_RANGE, H_SIBLINGS, H_SPLIT, H_WEIGHTED
from fairsched.verify import change_proofs, deficit_proofs
from fairsched.verify.deficit_proofs import FIELDS, LAWS, PARAMETERS, both, waits
from fairsched.verify.system import Claim, Clause, Event, Kind, Need, System, World, only, same, total

# --- what may happen ------------------------------------------------------------------------------------------------

PATH = {"p": Kind.POINT, "inner": Kind.POINT, "outer": Kind.POINT}
_AMOUNT = {**PATH, "x": Kind.SCALAR}


def along(o: Algebra, v: Any, w: World, amount: Any) -> Any:
    """A ghost's change at a client and at its groups; not the kernel of that name, which is under proof."""
    return o.bump(o.bump(o.bump(v, w.p, amount), w.inner, amount), w.outer, amount)


def is_other(o: Algebra, like: Any, one: Any, two: Any) -> Any:
    """Whether two points are not one client."""
    return o.where(o.pick(only(o, like, one), two, False), False, True)


def _a_path(o: Algebra, w: World) -> Any:
    """A client and its groups are different nodes, and nobody else's groups are asked for."""
    apart = is_other(o, w.Q, w.p, w.inner) & is_other(o, w.Q, w.p, w.outer) & is_other(o, w.Q, w.inner, w.outer)
    return o.exists(w.p) & apart


def _charged_within(o: Algebra, w: World) -> Any:
    """What is charged now and what is still reserved is at most U, for the client and for each of its groups."""

    def within(p: Any) -> Any:
        return w.x + o.pick(w.R, p, 0) + w.r <= o.pick(w.U, p, w.x + w.r)

    return within(w.p) & within(w.inner) & within(w.outer)


def _was_reserved(o: Algebra, w: World) -> Any:
    return (w.x <= o.pick(w.R, w.p, 0)) & (w.x <= o.pick(w.R, w.inner, w.x)) & (w.x <= o.pick(w.R, w.outer, w.x))


def _seen(o: Algebra, w: World) -> Any:
    """What the gate saw of the client's groups is what they have, and 1 where there is none."""
    inner = same(o.pick(w.inner_q, w.p, 1), o.pick(w.q, w.inner, 1))
    return inner & same(o.pick(w.outer_q, w.p, 1), o.pick(w.q, w.outer, 1))


IS_PATH = Need(_a_path)
_NOT_NEGATIVE = Need(lambda o, w: w.x >= 0)
_RESERVED = Need(_was_reserved, MEM_RESERVE)


def _queue_events() -> tuple[Event, ...]:
    """Somebody begins or ceases to wait at or below a node: no deficit changes."""

    def arrive(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"queued": o.put(w.queued, w.p, True), "known": o.put(w.known, w.p, True)}

    def leave(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"queued": o.put(w.queued, w.p, False)}

    return Event("arrive", arrive, {"p": Kind.POINT}), Event("leave the queue", leave, {"p": Kind.POINT})


def refill_event(flat: Any, *needs: Need) -> Event:
    """One round of credit in one family, of which f and g both are, or neither."""

    def refill(o: Algebra, w: World) -> Mapping[str, Any]:
        q = flat.refill(o, w.q, w.queued & w.family, w.known & w.family, w.Q)
        return {"q": q, "P": w.P + (q - w.q)}

    def siblings(o: Algebra, w: World) -> Any:
        here, there = o.pick(w.family, w.f, True), o.pick(w.family, w.g, True)
        return o.where(here, there, True) & o.where(there, here, True)

    return Event(
        "refill a family",
        refill,
        {"family": Kind.MASK},
        (Need(siblings), *needs),
        (flat.refill_due, flat.refill),
        happens=lambda o, w: flat.refill_due(o, w.q, w.queued & w.family),
    )


def _admission_events(kernel: Any) -> tuple[Event, ...]:
    """The client p, in `inner`, which is in `outer`, is admitted, charged x, and r more may be charged to it later."""

    def admit(o: Algebra, w: World) -> Mapping[str, Any]:
        q = kernel.admit(o, w.q, w.p, w.inner, w.outer, w.x)
        return {"q": q, "R": along(o, w.R, w, w.r), "W": along(o, w.W, w, w.x)}

    def choose(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"p": kernel.choose(o, w.q, w.inner_q, w.outer_q, w.queued, w.ready, w.score)}

    groups = {"inner": Kind.POINT, "outer": Kind.POINT, "x": Kind.SCALAR, "r": Kind.SCALAR}
    seen = {"inner_q": Kind.VECTOR, "outer_q": Kind.VECTOR, "ready": Kind.MASK, "score": Kind.VECTOR}
    needs = (IS_PATH, _NOT_NEGATIVE, Need(lambda o, w: w.r >= 0), Need(_charged_within, MEM_RESERVE))
    return (
        Event(
            "admit",
            admit,
            {**groups, **seen},
            (*needs, Need(_seen)),
            (kernel.choose, kernel.admit),
            decides=choose,
            happens=lambda o, w: o.exists(w.p),
        ),
        Event(
            "admit past the gate",
            admit,
            {**groups, "p": Kind.POINT},
            needs,
            (kernel.admit,),
            excluded_by=GATE_RESPECTED,
        ),
    )


def _running_events(kernel: Any, flat: Any) -> tuple[Event, ...]:
    """What happens to requests in flight."""

    def decode(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"q": flat.decode(o, w.q, w.d), "R": w.R - w.d, "W": w.W + w.d}

    def correct(o: Algebra, w: World) -> Mapping[str, Any]:
        q = kernel.admit(o, w.q, w.p, w.inner, w.outer, w.x)
        return {"q": q, "R": along(o, w.R, w, -w.x), "W": along(o, w.W, w, w.x)}

    def release(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"R": along(o, w.R, w, -w.x)}

    def preempt(o: Algebra, w: World) -> Mapping[str, Any]:
        return {**release(o, w), "queued": o.put(w.queued, w.p, True), "known": o.put(w.known, w.p, True)}

    def refund(o: Algebra, w: World) -> Mapping[str, Any]:
        q = kernel.refund(o, w.q, w.p, w.inner, w.outer, w.x, w.Q)
        return {"q": q, "W": along(o, w.W, w, -granted(o, w, w.q))}

    reserved = (IS_PATH, _NOT_NEGATIVE, _RESERVED)
    return (
        Event(
            "decode",
            decode,
            {"d": Kind.VECTOR},
            (Need(lambda o, w: w.d >= 0), Need(lambda o, w: w.d <= w.R, MEM_RESERVE)),
            (flat.decode,),
        ),
        Event("correct", correct, _AMOUNT, reserved, (kernel.admit,)),
        Event("finish", release, _AMOUNT, reserved),
        Event("preempt", preempt, _AMOUNT, reserved),
        Event("refund", refund, _AMOUNT, (IS_PATH, _NOT_NEGATIVE), (kernel.refund,)),
    )


def granted(o: Algebra, w: World, q: Any) -> Any:
    """What of x leaves the client and each of its groups at most one quantum of credit."""

    def left(p: Any) -> Any:
        return o.pick(w.Q - q, p, w.x)

    return o.minimum(w.x, o.minimum(left(w.p), o.minimum(left(w.inner), left(w.outer))))


def system(kernel: Any = hierarchical, flat: Any = deficit, *, backlogged: tuple[str, ...] = ()) -> System:
    """The gate over an interval in which somebody waits at or below each of `backlogged` ("f", "g")."""
    return System(
        "hierarchical gate",
        parameters=PARAMETERS,
        laws=LAWS,
        fields=FIELDS,
        events=(
            *_queue_events(),
            refill_event(flat, *map(waits, backlogged)),
            *_admission_events(kernel),
            *_running_events(kernel, flat),
        ),
    )


# --- an organisation and its clients --------------------------------------------------------------------------------


def _of_g(o: Algebra, w: World) -> Any:
    """g is one of the client's groups exactly if the client is one of `mine`."""
    above = o.where(is_other(o, w.Q, w.g, w.inner), o.where(is_other(o, w.Q, w.g, w.outer), False, True), True)
    mine = o.pick(w.mine, w.p, False)
    return o.where(mine, above, o.where(above, False, True)) & is_other(o, w.Q, w.g, w.p)


def _not_mine(o: Algebra, w: World) -> Any:
    """Groups are no clients."""
    return o.where(o.pick(w.mine, w.inner, False) | o.pick(w.mine, w.outer, False), False, True)


def _sum_of_mine(o: Algebra, w: World, v: Any) -> Any:
    return total(o, o.where(w.mine, v, 0))


def _split_system(kernel: Any, flat: Any) -> System:
    """The gate in which g is charged whatever its clients are, and nothing else."""
    one = system(kernel, flat, backlogged=("f",))
    decoded = Need(lambda o, w: same(o.pick(w.d, w.g, 0), _sum_of_mine(o, w, w.d)))

    def of_clients(event: Event) -> Event:
        if "inner" in event.facts:
            return event.with_needs(Need(_of_g), Need(_not_mine))
        return event.with_needs(decoded) if event.name == "decode" else event

    return attrs.evolve(
        one,
        parameters={**one.parameters, "mine": Kind.MASK},
        laws=(*one.laws, _EQUAL, Need(lambda o, w: o.where(o.pick(w.mine, w.g, True), False, True))),
        events=tuple(map(of_clients, one.events)),
        derived={"clients_of_g": lambda o, w: _sum_of_mine(o, w, w.W)},
    )


def _no_more_than_f(o: Algebra, w: World) -> Any:
    (quantum_f, quantum_g), (charge_f, charge_g) = both(o, w, "Q"), both(o, w, "U")
    return w.clients_of_g - o.pick(w.W, w.f, 0) <= (quantum_f + charge_f - 1) + (quantum_g + charge_g - 1)


# --- claims ---------------------------------------------------------------------------------------------------------

_EQUAL = Need(lambda o, w: same(*both(o, w, "Q")), EQUAL_QUANTA)
_FLAT = {claim.theorem.id: claim for claim in deficit_proofs.claims()}


def _as_of_clients(theorem: Theorem, of: System, flat: str) -> Claim:
    """The deficit gate's claim about clients as one about the nodes of a tree."""
    return attrs.evolve(_FLAT[flat], theorem=theorem, system=of)


def _change_claim(kernel: Any, flat: Any) -> Claim:
    """The deficit gate's claim about quanta that change; the event in which they do is its own."""
    of = change_proofs.claims(flat)[0]
    events = (*system(kernel, flat).events, *(event for event in of.system.events if event.name == "configured"))
    changing = attrs.evolve(of.system, name="hierarchical gate, quanta change", events=events)
    return attrs.evolve(of, theorem=H_CHANGE, system=changing)


def claims(kernel: Any = hierarchical, flat: Any = deficit) -> tuple[Claim, ...]:
    """The theorems about the gate whose kernel functions are `kernel`'s and, in families, `flat`'s."""
    pair = system(kernel, flat, backlogged=("f", "g"))
    split = _as_of_clients(H_SPLIT, _split_system(kernel, flat), "D-4.2")
    of_g = Clause("W_g is the sum over g's clients", lambda o, w: same(o.pick(w.W, w.g, 0), w.clients_of_g))
    return (
        _as_of_clients(H_RANGE, system(kernel, flat), "D-range"),
        _as_of_clients(H_SIBLINGS, pair.with_laws(_EQUAL), "D-4.1"),
        _as_of_clients(H_WEIGHTED, pair, "D-weighted"),
        attrs.evolve(
            split,
            invariants=(*split.invariants, of_g),
            conclusions=(Clause("sum over g's clients - W_f <= 2(Q + U - 1)", _no_more_than_f),),
        ),
        _change_claim(kernel, flat),
    )
