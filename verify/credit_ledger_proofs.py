"""Charges that are told late: D2-unsent, about one holder and all others, for every number of clients.

`q` is the truth, `L` the ledger, `u` what the holder charged and has not told, `v` what all others have not.
"""

from collections.abc import Mapping
from typing import Any

from fairsched.model.algebra import Algebra
from fairsched.policies import credit_ledger
from fairsched.policies.global_theorems import D2_UNSENT
from fairsched.verify.system import Claim, Clause, Event, Kind, Need, System, World, implies, same, spread


def claims(kernel: Any = credit_ledger) -> tuple[Claim, ...]:
    """The claim about the kernel functions of `kernel`."""

    def own(o: Algebra, w: World) -> Mapping[str, Any]:
        """The holder charges d (negative: gives back) and grants c."""
        return {
            "q": w.q - w.d + w.c,
            "u": kernel.unsent_after(o, w.u, w.d, w.T),
            "L": kernel.ledger_after(o, w.L, w.u, w.d, w.c, w.T),
            "owed": w.u + w.d,
        }

    def others(o: Algebra, w: World) -> Mapping[str, Any]:
        """Others charge d and grant c, and then have not told `later`."""
        return {"q": w.q - w.d + w.c, "v": w.later, "L": w.L + w.c - (w.v + w.d - w.later)}

    def rests(o: Algebra, w: World) -> Mapping[str, Any]:
        """The holder tells everything: no bound keeps it."""
        nothing = w.u - w.u
        return {
            "u": kernel.unsent_after(o, w.u, nothing, -1),
            "L": kernel.ledger_after(o, w.L, w.u, nothing, nothing, -1),
            "owed": nothing - 1,
        }

    amounts = {"d": Kind.VECTOR, "c": Kind.VECTOR}
    held = (
        Clause("0 <= u <= T", lambda o, w: (w.u >= 0) & (w.u <= w.T)),
        Clause("v >= 0", lambda o, w: w.v >= 0),
        Clause("L = q + u + v", lambda o, w: same(w.L, w.q + w.u + w.v)),
        Clause("within T nothing is told", lambda o, w: implies(o, spread(w.within, w.u), same(w.u, w.owed))),
        Clause("else everything is", lambda o, w: o.where(spread(w.within, w.u), True, same(w.u, 0))),
    )
    system = System(
        "one holder's copy of the credit",
        {"T": Kind.SCALAR},
        (Need(lambda o, w: w.T >= 0),),
        dict.fromkeys(("q", "L", "u", "v", "owed"), Kind.VECTOR),
        (
            Event("the holder charges", own, amounts, kernels=(kernel.unsent_after, kernel.ledger_after)),
            Event("the holder rests", rests, kernels=(kernel.unsent_after, kernel.ledger_after)),
            Event("others charge", others, {**amounts, "later": Kind.VECTOR}, (Need(lambda o, w: w.later >= 0),)),
        ),
        derived={
            "within": lambda o, w: o.all((w.owed >= 0) & (w.owed <= w.T)),
            "seen": lambda o, w: kernel.seen(o, w.L, w.u),
        },
    )
    ahead = Clause("the copy is ahead by what others have not told", lambda o, w: same(w.seen, w.q + w.v))
    return (Claim(D2_UNSENT, system, held, held, (*held[:3], ahead)),)
