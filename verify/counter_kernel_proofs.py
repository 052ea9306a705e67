"""What the counter gate's kernel does in one step: whom it lets in, how far it lifts, what a refund may give back.

V-4.3 says that a lift goes far enough; V-lift says that it goes no further, which no theorem about gaps would notice.
"""

from collections.abc import Mapping
from typing import Any

from fairsched.model.algebra import Algebra
from fairsched.policies import counter
from fairsched.policies.counter import V_GATE, V_LIFT, V_REFUND
from fairsched.verify.system import Claim, Clause, Event, Kind, Need, System, World, implies, only, same, spread

_COUNTERS = {"c": Kind.VECTOR, "was": Kind.VECTOR, "one": Kind.POINT}
"""Counters after and before the step, and who took it."""

_OTHERS = Clause("nobody else's counter changes", lambda o, w: o.where(only(o, w.c, w.one), True, same(w.c, w.was)))


def _gate_claim(kernel: Any) -> Claim:
    """`served` is whom the gate let in last, and the vectors are those from which it chose."""

    def choose(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"c": w.c_now, "queued": w.queued_now, "served": kernel.choose(o, w.c_now, w.queued_now)}

    def lowest(o: Algebra, w: World) -> Any:
        found = spread(o.exists(w.served), w.c) & (w.c >= o.pick(w.c, w.served, 0))
        return implies(o, w.queued, found)

    well_chosen = (
        Clause("who is served waits", lambda o, w: o.pick(w.queued, w.served, True)),
        Clause("nobody who waits has less, and somebody is served if there is one", lowest),
    )
    system = System(
        "counter gate, its choice",
        {},
        (),
        {"c": Kind.VECTOR, "queued": Kind.MASK, "served": Kind.POINT},
        (Event("choose", choose, {"c_now": Kind.VECTOR, "queued_now": Kind.MASK}, kernels=(kernel.choose,)),),
    )
    return Claim(V_GATE, system, well_chosen, well_chosen, well_chosen)


def _lift_claim(kernel: Any) -> Claim:
    """`one` came back while `queued` waited and `last` was the last who had left."""

    def lift(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"was": w.c, "c": kernel.lift(o, w.c, w.queued, w.p, w.last), "one": w.p}

    def no_further(o: Algebra, w: World) -> Any:
        return implies(o, w.queued, o.pick(w.c, w.one, 0) <= o.maximum(o.pick(w.was, w.one, 0), w.was))

    def to_the_last(o: Algebra, w: World) -> Any:
        own, left = o.pick(w.was, w.one, 0), o.pick(w.was, w.last, 0)
        return o.where(w.idle & o.exists(w.one), same(o.pick(w.c, w.one, 0), o.maximum(own, left)), True)

    clauses = (
        _OTHERS,
        Clause("nobody is lowered", lambda o, w: w.c >= w.was),
        Clause("no further than to anybody who waits", no_further),
        Clause("to the last who left if nobody waits", to_the_last),
    )
    system = System(
        "counter gate, its lift",
        {"queued": Kind.MASK, "last": Kind.POINT},
        (),
        _COUNTERS,
        (Event("lift", lift, {"p": Kind.POINT}, kernels=(kernel.lift,)),),
        derived={"idle": lambda o, w: o.none(w.queued)},
    )
    return Claim(V_LIFT, system, clauses, clauses, clauses)


def _refund_claim(kernel: Any) -> Claim:
    """`amount` was given back to `one` while `queued` waited."""

    def refund(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"was": w.c, "c": kernel.refund(o, w.c, w.queued, w.p, w.x), "one": w.p, "amount": w.x}

    clauses = (
        _OTHERS,
        Clause("nobody is raised", lambda o, w: w.c <= w.was),
        Clause("by no more than the amount", lambda o, w: w.was - w.c <= o.maximum(w.amount, 0)),
    )
    system = System(
        "counter gate, its refund",
        {"queued": Kind.MASK},
        (),
        {**_COUNTERS, "amount": Kind.SCALAR},
        (
            Event(
                "refund", refund, {"p": Kind.POINT, "x": Kind.SCALAR}, (Need(lambda o, w: w.x >= 0),), (kernel.refund,)
            ),
        ),
    )
    return Claim(V_REFUND, system, clauses, clauses, clauses)


def claims(kernel: Any = counter) -> tuple[Claim, ...]:
    """The claims about the kernel functions of `kernel`."""
    return (_gate_claim(kernel), _lift_claim(kernel), _refund_claim(kernel))
