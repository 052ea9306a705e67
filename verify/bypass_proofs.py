"""How long one request waits if its order may pass it over at most b times: an attempt at D-request.

No shipped order has a bypass budget, so this is about a rule and not about shipped text: among the requests of one
client the best score goes first, unless somebody has been passed over b times; then the oldest of those does.  A
request is *passed over* when a younger one is let in.  The sort is that of requests, `T` counts what was let in since r
came, `B` how often each was passed over.  With D-starvation, which bounds how much others are let in between two
admissions of the client, it bounds the wait of a request.
"""

from collections.abc import Mapping
from typing import Any

from fairsched.model.algebra import Algebra, Mask, Point, Scalar, Vector
from fairsched.model.theorem import Theorem
from fairsched.verify.system import Claim, Clause, Event, Kind, Need, System, World, implies, only, spread, total

D_REQUEST = Theorem(
    "D-request",
    "with a bypass budget b, at most b + (older requests that waited when r came) requests of its client are let in "
    "before r",
    "new; about a rule that no shipped order has",
    (),
    bound="b + older",
)


def choose(o: Algebra, waits: Mask, score: Vector, age: Vector, bypassed: Vector, budget: Scalar) -> Point:
    """The best score, or the oldest of those whose budget is used up."""
    due = waits & (bypassed >= budget)
    return o.argmin(o.where(due, age, -score), due | (waits & o.none(due)))


def _dispatch(o: Algebra, w: World) -> Mapping[str, Any]:
    served = o.pick(w.age, w.p, 0)
    passed = w.waits & (w.age < served)
    return {
        "waits": o.put(w.waits, w.p, False),
        "B": o.where(passed, w.B + 1, w.B),
        "T": w.T + 1,
    }


def _decides(o: Algebra, w: World) -> Mapping[str, Any]:
    return {"p": choose(o, w.waits, w.score, w.age, w.B, w.b)}


def _arrive(o: Algebra, w: World) -> Mapping[str, Any]:
    return {"waits": o.put(w.waits, w.p, True), "B": o.put(w.B, w.p, 0)}


def _older(o: Algebra, w: World) -> Any:
    """How many older than r wait."""
    return total(o, o.where(w.waits & (w.age < o.pick(w.age, w.r, 0)), 1, 0))


def _r_waits(o: Algebra, w: World) -> Any:
    return o.pick(w.waits, w.r, False)


def _while_r_waits(o: Algebra, w: World, holds: Any) -> Any:
    return o.where(_r_waits(o, w), holds, True)


def _by_age(o: Algebra, w: World, i: Any) -> Any:
    both = w.waits & spread(o.pick(w.waits, i, False), w.B)
    return implies(o, both & (w.age > o.pick(w.age, i, 0)), o.pick(w.B, i, 0) >= w.B)


def _distinct(o: Algebra, w: World, i: Any) -> Any:
    others = o.put(w.waits & spread(o.pick(w.waits, i, False), w.B), i, False)
    own = o.pick(w.age, i, 0)
    return implies(o, others, (w.age < own) | (w.age > own))


def claim() -> Claim:
    """The claim about the rule."""
    budget = Clause("0 <= B <= b", lambda o, w: implies(o, w.waits, (w.B >= 0) & (w.b >= w.B)))
    counted = Clause(
        "T + older <= B_r + older at first",
        lambda o, w: _while_r_waits(o, w, w.T + w.older <= o.pick(w.B, w.r, 0) + w.older0),
    )
    common = (
        budget,
        Clause("who is older was passed over as often at least", _by_age, points=1),
        Clause("ages differ", _distinct, points=1),
    )
    another = Need(lambda o, w: o.where(o.pick(only(o, w.B, w.r), w.p, True), False, True))
    youngest = Need(lambda o, w: implies(o, w.waits, o.pick(w.age, w.p, 0) > w.age))
    return Claim(
        D_REQUEST,
        System(
            "the requests of one client",
            parameters={"b": Kind.SCALAR, "age": Kind.VECTOR, "r": Kind.POINT, "older0": Kind.SCALAR},
            laws=(Need(lambda o, w: w.b >= 0), Need(lambda o, w: o.exists(w.r))),
            fields={"waits": Kind.MASK, "B": Kind.VECTOR, "T": Kind.SCALAR},
            events=(
                Event("arrive", _arrive, {"p": Kind.POINT}, (Need(lambda o, w: o.exists(w.p)), another, youngest)),
                Event(
                    "let in",
                    _dispatch,
                    {"score": Kind.VECTOR},
                    (Need(lambda o, w: o.exists(w.p)),),
                    (choose,),
                    decides=_decides,
                ),
            ),
            derived={"older": _older},
        ),
        (
            *common,
            Clause("r waits", _r_waits),
            Clause("T = 0", lambda o, w: (w.T >= 0) & (w.T <= 0)),
            Clause("older at first", lambda o, w: w.older <= w.older0),
        ),
        (*common, counted),
        (Clause("T <= b + older while r waits", lambda o, w: _while_r_waits(o, w, w.b + w.older0 >= w.T)),),
    )


def claims() -> tuple[Claim, ...]:
    """What was attempted."""
    return (claim(),)
