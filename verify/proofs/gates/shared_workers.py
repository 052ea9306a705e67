"""What the workers of a cluster come to together: D2-places and D2-memory.

How the gate's counts follow where each client waits is shown for one worker and any number of others, and every number
of clients.  How the workers' bounds add up is about vectors over *workers*, any number of them, for one client.
"""

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, MEM_RESERVE
from fairsched.policies.gates.shared import D2_MEMORY, D2_PLACES, D2_UNSENT
from fairsched.verify import logic as v
from fairsched.verify.proofs.kernels import credit_ledger, global_deficit

# --- where clients wait----------------------------------------------------------------------------------------------


def _places(kernel: v.Functions) -> v.Claim:
    """`here` are the clients that wait at one worker, `elsewhere` at how many others each does."""

    def begins(o: Algebra, w: v.World) -> v.Written:
        return {"places": kernel.enter(o, w.places, w.p), "here": o.put(w.here, w.p, True)}

    def ends(o: Algebra, w: v.World) -> v.Written:
        return {"places": kernel.depart(o, w.places, w.p), "here": o.put(w.here, w.p, False)}

    def begins_there(o: Algebra, w: v.World) -> v.Written:
        return {"places": kernel.enter(o, w.places, w.p), "elsewhere": o.bump(w.elsewhere, w.p, 1)}

    def ends_there(o: Algebra, w: v.World) -> v.Written:
        return {"places": kernel.depart(o, w.places, w.p), "elsewhere": o.bump(w.elsewhere, w.p, -1)}

    one, somewhere = {"p": v.POINT}, v.Need(lambda o, w: o.pick(w.elsewhere, w.p, 1) >= 1)
    there = v.Need(lambda o, w: o.pick(w.here, w.p, True))
    absent = v.Need(lambda o, w: o.where(o.pick(w.here, w.p, False), False, True))
    counted = (
        v.Clause(
            "places = here + elsewhere", lambda o, w: v.same(w.places, o.where(w.here, w.elsewhere + 1, w.elsewhere))
        ),
        v.Clause("elsewhere >= 0", lambda o, w: w.elsewhere >= 0),
    )
    return v.Claim(
        D2_PLACES,
        v.System(
            "queues of a cluster",
            {},
            (),
            {"places": v.VECTOR, "here": v.MASK, "elsewhere": v.VECTOR},
            (
                v.Event("begins to wait here", begins, one, (absent,), kernels=(kernel.enter,)),
                v.Event("waits no more here", ends, one, (there,), kernels=(kernel.depart,)),
                v.Event("begins to wait elsewhere", begins_there, one, kernels=(kernel.enter,)),
                v.Event("waits no more elsewhere", ends_there, one, (somewhere,), kernels=(kernel.depart,)),
            ),
            derived={"waiting": lambda o, w: kernel.waits(o, w.places)},
        ),
        counted,
        counted,
        (
            v.Clause(
                "clients that wait here or elsewhere are counted", lambda o, w: v.implies(o, _anywhere(w), w.waiting)
            ),
            v.Clause("who is counted waits here or elsewhere", lambda o, w: v.implies(o, w.waiting, _anywhere(w))),
        ),
    )


def _anywhere(w: v.World) -> v.Term:
    return w.here | (w.elsewhere >= 1)


# --- what workers may charge together -------------------------------------------------------------------------------


def _memory() -> v.Claim:
    """Vectors are over workers, for one client: R is what each may still charge it.  `v` let it in last, for X."""

    whole = {"charged": lambda o, w: v.total(o, o.bump(w.R, w.v, w.X - 1)), "most": lambda o, w: v.total(o, w.U - 1)}
    held = (
        v.Clause("0 <= R <= U - 1", lambda o, w: (w.R >= 0) & (w.R <= w.U - 1)),
        v.Clause("X + R_v <= U_v", lambda o, w: w.X + o.pick(w.R, w.v, 0) <= o.pick(w.U, w.v, w.X)),
        v.Clause("v is a worker", lambda o, w: o.exists(w.v)),
    )
    return v.Claim(
        D2_MEMORY,
        v.System(
            "one client on all workers",
            {"U": v.VECTOR},
            (v.Need(lambda o, w: w.U >= 1),),
            {"R": v.VECTOR, "v": v.POINT, "X": v.SCALAR},
            (
                v.Event(
                    "a worker lets the client in",
                    lambda o, w: {"R": o.bump(w.R, w.p, w.r), "v": w.p, "X": w.x},
                    {"p": v.POINT, "x": v.SCALAR, "r": v.SCALAR},
                    (
                        lambda o, w: o.exists(w.p) & (w.x >= 0) & (w.r >= 0),
                        v.Need(lambda o, w: w.x >= 1, CHARGES_AT_LEAST_ONE),
                        v.Need(lambda o, w: w.x + o.pick(w.R, w.p, 0) + w.r <= o.pick(w.U, w.p, 0), MEM_RESERVE),
                    ),
                ),
                v.Event(
                    "workers charge what was reserved",
                    lambda o, w: {"R": w.R - w.d},
                    {"d": v.VECTOR},
                    (lambda o, w: w.d >= 0, v.Need(lambda o, w: w.d <= w.R, MEM_RESERVE)),
                ),
            ),
            derived=whole,
        ),
        held,
        held,
        (v.Clause("sum of R, and of X - 1 at v, <= sum of (U - 1)", lambda o, w: w.charged <= w.most),),
    )


# --- charges that are reported late -----------------------------------------------------------------------------------


def _ledger_claims(kernel: v.Functions = credit_ledger) -> tuple[v.Claim, ...]:
    """The claim about the kernel functions of `kernel`."""

    def own(o: Algebra, w: v.World) -> v.Written:
        """The holder charges d (negative: gives back) and grants c."""
        return {
            "q": w.q - w.d + w.c,
            "u": kernel.unsent_after(o, w.u, w.d, w.T),
            "L": kernel.ledger_after(o, w.L, w.u, w.d, w.c, w.T),
            "owed": w.u + w.d,
        }

    def others(o: Algebra, w: v.World) -> v.Written:
        """Others charge d and grant c, and then have not told `later`."""
        return {"q": w.q - w.d + w.c, "v": w.later, "L": w.L + w.c - (w.v + w.d - w.later)}

    def rests(o: Algebra, w: v.World) -> v.Written:
        """The holder tells everything: no bound keeps it."""
        nothing = w.u - w.u
        return {
            "u": kernel.unsent_after(o, w.u, nothing, -1),
            "L": kernel.ledger_after(o, w.L, w.u, nothing, nothing, -1),
            "owed": nothing - 1,
        }

    amounts = {"d": v.VECTOR, "c": v.VECTOR}
    held = (
        v.Clause("0 <= u <= T", lambda o, w: (w.u >= 0) & (w.u <= w.T)),
        v.Clause("v >= 0", lambda o, w: w.v >= 0),
        v.Clause("L = q + u + v", lambda o, w: v.same(w.L, w.q + w.u + w.v)),
        v.Clause("within T nothing is told", lambda o, w: v.implies(o, v.spread(w.within, w.u), v.same(w.u, w.owed))),
        v.Clause("else everything is", lambda o, w: o.where(v.spread(w.within, w.u), True, v.same(w.u, 0))),
    )
    system = v.System(
        "one holder's copy of the credit",
        {"T": v.SCALAR},
        (v.Need(lambda o, w: w.T >= 0),),
        v.vectors("q", "L", "u", "v", "owed"),
        (
            v.Event("the holder charges", own, amounts, kernels=(kernel.unsent_after, kernel.ledger_after)),
            v.Event("the holder rests", rests, kernels=(kernel.unsent_after, kernel.ledger_after)),
            v.Event("others charge", others, {**amounts, "later": v.VECTOR}, (lambda o, w: w.later >= 0,)),
        ),
        derived={
            "within": lambda o, w: o.all((w.owed >= 0) & (w.owed <= w.T)),
            "seen": lambda o, w: kernel.seen(o, w.L, w.u),
        },
    )
    ahead = v.Clause("the copy is ahead by what others have not told", lambda o, w: v.same(w.seen, w.q + w.v))
    return (v.Claim(D2_UNSENT, system, held, held, (*held[:3], ahead)),)


def claims(
    kernel: v.Functions = global_deficit, credit_ledger_kernel: v.Functions = credit_ledger
) -> tuple[v.Claim, ...]:
    """The claims; `kernel` holds the functions that count."""
    return (_memory(), _places(kernel), *_ledger_claims(credit_ledger_kernel))
