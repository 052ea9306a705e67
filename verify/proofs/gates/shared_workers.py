"""What the workers of a cluster come to together: D2-places and D2-memory.

How the gate's counts follow who waits where is shown for one worker and any number of others, and every number of
clients.  How the workers' bounds add up is about vectors over *workers*, any number of them, for one client.
"""

from collections.abc import Mapping
from typing import Any

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, MEM_RESERVE
from fairsched.policies import global_deficit
from fairsched.policies.global_theorems import D2_MEMORY, D2_PLACES
from fairsched.verify.system import Claim, Clause, Event, Kind, Need, System, World, implies, same, total

# --- who waits where ------------------------------------------------------------------------------------------------


def _places(kernel: Any) -> Claim:
    """`here` is who waits at one worker, `elsewhere` at how many others each client does."""

    def begins(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"places": kernel.enter(o, w.places, w.p), "here": o.put(w.here, w.p, True)}

    def ends(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"places": kernel.depart(o, w.places, w.p), "here": o.put(w.here, w.p, False)}

    def begins_there(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"places": kernel.enter(o, w.places, w.p), "elsewhere": o.bump(w.elsewhere, w.p, 1)}

    def ends_there(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"places": kernel.depart(o, w.places, w.p), "elsewhere": o.bump(w.elsewhere, w.p, -1)}

    one, somewhere = {"p": Kind.POINT}, Need(lambda o, w: o.pick(w.elsewhere, w.p, 1) >= 1)
    there = Need(lambda o, w: o.pick(w.here, w.p, True))
    absent = Need(lambda o, w: o.where(o.pick(w.here, w.p, False), False, True))
    counted = (
        Clause("places = here + elsewhere", lambda o, w: same(w.places, o.where(w.here, w.elsewhere + 1, w.elsewhere))),
        Clause("elsewhere >= 0", lambda o, w: w.elsewhere >= 0),
    )
    return Claim(
        D2_PLACES,
        System(
            "queues of a cluster",
            {},
            (),
            {"places": Kind.VECTOR, "here": Kind.MASK, "elsewhere": Kind.VECTOR},
            (
                Event("begins to wait here", begins, one, (absent,), kernels=(kernel.enter,)),
                Event("waits no more here", ends, one, (there,), kernels=(kernel.depart,)),
                Event("begins to wait elsewhere", begins_there, one, kernels=(kernel.enter,)),
                Event("waits no more elsewhere", ends_there, one, (somewhere,), kernels=(kernel.depart,)),
            ),
            derived={"waiting": lambda o, w: kernel.waits(o, w.places)},
        ),
        counted,
        counted,
        (
            Clause("who waits here or elsewhere is counted", lambda o, w: implies(o, _anywhere(w), w.waiting)),
            Clause("who is counted waits here or elsewhere", lambda o, w: implies(o, w.waiting, _anywhere(w))),
        ),
    )


def _anywhere(w: World) -> Any:
    return w.here | (w.elsewhere >= 1)


# --- what workers may charge together -------------------------------------------------------------------------------


def _memory() -> Claim:
    """Vectors are over workers, for one client: R is what each may still charge it.  `v` let it in last, for X."""

    def admit(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"R": o.bump(w.R, w.p, w.r), "v": w.p, "X": w.x}

    def charge(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"R": w.R - w.d}

    def at_last(o: Algebra, w: World) -> Any:
        return w.X + o.pick(w.R, w.v, 0) <= o.pick(w.U, w.v, w.X)

    whole = {
        "charged": lambda o, w: total(o, o.bump(w.R, w.v, w.X - 1)),
        "most": lambda o, w: total(o, w.U - 1),
    }
    held = (
        Clause("0 <= R <= U - 1", lambda o, w: (w.R >= 0) & (w.R <= w.U - 1)),
        Clause("X + R_v <= U_v", at_last),
        Clause("v is a worker", lambda o, w: o.exists(w.v)),
    )
    return Claim(
        D2_MEMORY,
        System(
            "one client on all workers",
            {"U": Kind.VECTOR},
            (Need(lambda o, w: w.U >= 1),),
            {"R": Kind.VECTOR, "v": Kind.POINT, "X": Kind.SCALAR},
            (
                Event(
                    "a worker lets the client in",
                    admit,
                    {"p": Kind.POINT, "x": Kind.SCALAR, "r": Kind.SCALAR},
                    (
                        Need(lambda o, w: o.exists(w.p) & (w.x >= 0) & (w.r >= 0)),
                        Need(lambda o, w: w.x >= 1, CHARGES_AT_LEAST_ONE),
                        Need(lambda o, w: w.x + o.pick(w.R, w.p, 0) + w.r <= o.pick(w.U, w.p, 0), MEM_RESERVE),
                    ),
                ),
                Event(
                    "workers charge what was reserved",
                    charge,
                    {"d": Kind.VECTOR},
                    (Need(lambda o, w: w.d >= 0), Need(lambda o, w: w.d <= w.R, MEM_RESERVE)),
                ),
            ),
            derived=whole,
        ),
        held,
        held,
        (Clause("sum of R, and of X - 1 at v, <= sum of (U - 1)", lambda o, w: w.charged <= w.most),),
    )


def claims(kernel: Any = global_deficit) -> tuple[Claim, ...]:
    """The claims; `kernel` holds the functions that count."""
    return (_memory(), _places(kernel))
