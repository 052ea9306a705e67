"""The deficit gate under either rejoin rule: D-range and D-4.1 hold though coming back may forgive debt.

The invariant of `fairsched.verify.deficit_proofs` is not kept when q becomes 0 while R = U is reserved.  It is with
R <= U - 1, which every admission keeps that is charged at least one unit.  The books of a client that comes back do not
balance; those of f and g do, who wait all along and so never come back.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, EQUAL_QUANTA, REJOIN_KEEPS_DEBT
from fairsched.policies import deficit
from fairsched.policies.deficit_rejoin import D_41_REJOIN, D_RANGE_REJOIN
from fairsched.verify.deficit_proofs import (
    IN_RANGE,
    INTERVAL_STARTS,
    NOTHING_YET,
    RANGE,
    both,
    gap_within,
    same_credit,
    system,
    waits,
)
from fairsched.verify.system import Claim, Clause, Event, Need, System, World, same

_LESS_THAN_U = Clause("R <= U - 1", lambda o, w: w.R <= w.U - 1)
_CHARGED = Need(lambda o, w: w.x >= 1, CHARGES_AT_LEAST_ONE)


def _either_rule(kernel: Any, backlogged: tuple[str, ...] = ()) -> System:
    """Who comes back, by an arrival or a preemption, keeps its deficit or starts at zero; clients in `backlogged`
    always wait, so none of them comes back."""
    fixed = system(kernel, backlogged=backlogged)
    named = {event.name: event for event in fixed.events}
    printed, preempted = named["arrive as printed, at zero"], named["preempt"]
    stay = tuple(waits(client) for client in backlogged)

    def preempt(o: Algebra, w: World) -> Mapping[str, Any]:
        return {**preempted.step(o, w), "q": kernel.rejoin_printed(o, w.q, w.p)}

    def widened(event: Event) -> Event:
        if event.excluded_by is REJOIN_KEEPS_DEBT:
            return attrs.evolve(event, excluded_by=None).with_needs(*stay)
        return event.with_needs(_CHARGED) if event.name.startswith("admit") else event

    # The first need of an arrival at zero is that nothing of the client waits.
    at_zero = attrs.evolve(
        preempted,
        name="preempt as printed, at zero",
        step=preempt,
        needs=(*preempted.needs, *printed.needs, *stay),
        kernels=printed.kernels,
    )
    return attrs.evolve(fixed, events=(*map(widened, fixed.events), at_zero))


def _began(o: Algebra, w: World) -> Any:
    (from_f, from_g), (charge_f, charge_g) = both(o, w, "q0"), both(o, w, "U")
    quantum_f, quantum_g = both(o, w, "Q")
    return (from_f >= 1 - charge_f) & (from_g >= 1 - charge_g) & (from_f <= quantum_f) & (from_g <= quantum_g)


def _balanced(o: Algebra, w: World) -> Any:
    (service_f, service_g), (now_f, now_g) = both(o, w, "W"), both(o, w, "q")
    (credit_f, credit_g), (from_f, from_g) = both(o, w, "P"), both(o, w, "q0")
    return same(service_f + now_f, from_f + credit_f) & same(service_g + now_g, from_g + credit_g)


def claims(kernel: Any = deficit) -> tuple[Claim, ...]:
    """The claims about the kernel functions of `kernel`."""
    equal = Need(lambda o, w: same(*both(o, w, "Q")), EQUAL_QUANTA)
    kept = (*RANGE, _LESS_THAN_U)
    return (
        Claim(D_RANGE_REJOIN, _either_rule(kernel), NOTHING_YET, kept, (IN_RANGE,)),
        Claim(
            D_41_REJOIN,
            _either_rule(kernel, ("f", "g")).with_laws(equal),
            (*INTERVAL_STARTS, _LESS_THAN_U),
            (
                *kept,
                Clause("1 - U <= q0 <= Q for f and g", _began),
                Clause("W + q = q0 + P for f and g", _balanced),
                Clause("P_f = P_g", same_credit),
            ),
            (Clause("|W_f - W_g| <= 2(Q + U - 1)", gap_within),),
        ),
    )
