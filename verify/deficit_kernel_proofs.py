"""What the deficit gate's kernel does in one step: whom it lets in, and that its refill may be taken at once.

These claims are about the text alone, not about intervals: D-gate says what GateRespected means, D-refill that the
closed form which production runs is the event that the other theorems are about, repeated, D-printed what the
variant that the paper prints does, and D-under-cap whom the cap keeps out.
"""

from collections.abc import Mapping
from typing import Any

from fairsched.model.algebra import Algebra
from fairsched.policies import deficit
from fairsched.policies.deficit_steps import D_GATE, D_PRINTED, D_REFILL, D_UNDER_CAP
from fairsched.verify.system import Claim, Clause, Event, Kind, Need, System, World, implies, only, same, spread


def _gate_claim(kernel: Any) -> Claim:
    """`served` is whom the gate let in last, and the vectors are those from which it chose."""

    def choose(o: Algebra, w: World) -> Mapping[str, Any]:
        seen = {"q": w.q_now, "queued": w.queued_now, "ready": w.ready_now, "score": w.score_now}
        return {**seen, "served": kernel.choose(o, w.q_now, w.queued_now, w.ready_now, w.score_now)}

    def best(o: Algebra, w: World) -> Any:
        found = spread(o.exists(w.served), w.score) & (w.score <= o.pick(w.score, w.served, 0))
        return implies(o, w.queued & w.ready & (w.q > 0), found)

    vectors = {"q": Kind.VECTOR, "score": Kind.VECTOR, "queued": Kind.MASK, "ready": Kind.MASK}
    well_chosen = (
        Clause(
            "who is served waits, has credit and is ready",
            lambda o, w: o.pick(w.queued & w.ready & (w.q > 0), w.served, True),
        ),
        Clause("nobody of them scores better, and somebody is served if there is one", best),
    )
    facts = {f"{name}_now": kind for name, kind in vectors.items()}
    chosen = Event("choose", choose, facts, kernels=(kernel.choose,))
    return Claim(
        D_GATE,
        System("deficit gate, its choice", {}, (), {**vectors, "served": Kind.POINT}, (chosen,)),
        well_chosen,
        well_chosen,
        well_chosen,
    )


def _refill_claim(kernel: Any) -> Claim:
    """`y` is what the closed form gave when the refill became due: round by round it stays what is to be reached.

    Every round raises each waiting client by at least 1 as long as all of them are at 0 or below, so the rounds end.
    """

    def one_round(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"q": kernel.refill(o, w.q, w.queued, w.known, w.Q)}

    def to_be_reached(o: Algebra, w: World) -> Any:
        return o.where(spread(w.due, w.q), same(w.y, w.at_once), same(w.y, w.q))

    due = Need(lambda o, w: w.due)
    return Claim(
        D_REFILL,
        System(
            "refill",
            parameters={"Q": Kind.VECTOR, "queued": Kind.MASK, "known": Kind.MASK},
            laws=(Need(lambda o, w: w.Q >= 1), Need(lambda o, w: implies(o, w.queued, w.known))),
            fields={"q": Kind.VECTOR, "y": Kind.VECTOR},
            events=(Event("one round", one_round, needs=(due,), kernels=(kernel.refill_due, kernel.refill)),),
            derived={
                "due": lambda o, w: kernel.refill_due(o, w.q, w.queued),
                "at_once": lambda o, w: o.where(
                    spread(kernel.refill_due(o, w.q, w.queued), w.q),
                    kernel.refill_rounds(o, w.q, w.queued, w.known, w.Q),
                    w.q,
                ),
            },
            hints=(Clause("-(q + Q) // Q = -q // Q - 1", lambda o, w: same(-(w.q + w.Q) // w.Q, -w.q // w.Q - 1)),),
            closed_forms=True,
            opaque=True,
        ),
        (Clause("a refill is due, y at once", lambda o, w: spread(w.due, w.q) & same(w.y, w.at_once)),),
        (Clause("y is to be reached", to_be_reached),),
        (Clause("y = q once no refill is due", lambda o, w: o.where(spread(w.due, w.q), True, same(w.y, w.q))),),
    )


def _printed_claim(kernel: Any) -> Claim:
    """`was` are the deficits before p came back."""

    def rejoin(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"was": w.q, "q": kernel.rejoin_printed(o, w.q, w.p), "back": w.p}

    at_zero = Clause(
        "zero, and as before for everybody else",
        lambda o, w: o.where(only(o, w.q, w.back), same(w.q, 0), same(w.q, w.was)),
    )
    return Claim(
        D_PRINTED,
        System(
            "deficit gate as printed",
            {},
            (),
            {"q": Kind.VECTOR, "was": Kind.VECTOR, "back": Kind.POINT},
            (Event("come back", rejoin, {"p": Kind.POINT}, kernels=(kernel.rejoin_printed,)),),
        ),
        (at_zero,),
        (at_zero,),
        (at_zero,),
    )


def _under_cap_claim(kernel: Any) -> Claim:
    """`may` is what the gate said of `asked` more tokens for `one`."""

    def ask(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"may": kernel.under_cap(o, w.F, w.p, w.x, w.C), "one": w.p, "asked": w.x}

    def fits(o: Algebra, w: World) -> Any:
        within = o.pick(w.F, w.one, 0) + w.asked <= w.C
        return o.where(w.may, within, True) & o.where(within, w.may, True)

    exactly = Clause("it may go if and only if it fits", fits)
    return Claim(
        D_UNDER_CAP,
        System(
            "deficit gate, its cap",
            {"F": Kind.VECTOR, "C": Kind.SCALAR},
            (),
            {"may": Kind.FLAG, "one": Kind.POINT, "asked": Kind.SCALAR},
            (Event("ask", ask, {"p": Kind.POINT, "x": Kind.SCALAR}, kernels=(kernel.under_cap,)),),
        ),
        (exactly,),
        (exactly,),
        (exactly,),
    )


def claims(kernel: Any = deficit) -> tuple[Claim, ...]:
    """The claims about the kernel functions of `kernel`."""
    return (_gate_claim(kernel), _refill_claim(kernel), _printed_claim(kernel), _under_cap_claim(kernel))
