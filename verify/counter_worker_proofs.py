"""V-4.9 on one worker: 2U, for any number of clients, since what two clients have in flight shares one memory.

Elsewhere each client's reservation is bounded by itself.  On one worker it is bounded together with any other's:
x + R_i + r + R_g <= U at every admission of i, with U the largest of any client.  Then, for every i and g, with the
lowest counter that waits as `floor` (that of the last who left, if nobody waits),

    c_i + R_i <= c_g + U    or    c_i + R_i + R_g <= floor + U,

so a client g that does not wait either has no counter to be lifted from, or what it may still be served unseen, R_g, is
missing from what f can be ahead.  Whoever is in the first case at the interval's start is *near* f.
"""

from typing import Any

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import MEM_SHARED
from fairsched.policies import counter
from fairsched.policies.counter import V_49_WORKER
from fairsched.verify.counter_proofs import INTERVAL_STARTS, INVARIANT, system
from fairsched.verify.counter_wait_proofs import charged_as_served, f_waited, met
from fairsched.verify.system import Claim, Clause, Event, Kind, Need, System, World, implies, same, spread


def _fits_beside(o: Algebra, w: World) -> Any:
    """What p may then be charged and what any other may still be, together."""
    together = o.put(w.R, w.p, 0) + (w.x + w.r + o.pick(w.R, w.p, 0))
    return o.where(spread(o.exists(w.p), w.R), together <= w.U_max, True)


def _system(kernel: Any) -> System:
    one = system(kernel, backlogged=("f",))
    shared = Need(_fits_beside, MEM_SHARED)

    def watched(event: Event) -> Event:
        event = event.with_needs(shared) if event.name.startswith("admit") else event
        return event.also(met=met)

    return attrs.evolve(
        one,
        parameters={**one.parameters, "R0": Kind.VECTOR, "U_max": Kind.SCALAR},
        laws=(*one.laws, Need(lambda o, w: w.U_max >= w.U)),
        fields={**one.fields, "met": Kind.MASK},
        events=tuple(map(watched, one.events)),
        derived={**one.derived, "floor": _floor},
    )


# --- the invariant --------------------------------------------------------------------------------------------------


def _floor(o: Algebra, w: World) -> Any:
    """The lowest counter that waits, or waited before the last event; that of the last who left if nobody did."""
    waited = w.queued | w.was
    return o.pick(w.c, o.argmin(w.c, waited), o.pick(w.c, w.last, 0))


def _except(o: Algebra, w: World, i: Any) -> Any:
    return o.put(spread(True, w.c), i, False)


def _close_beside(o: Algebra, w: World, i: Any) -> Any:
    ahead = o.pick(w.c, i, 0) + o.pick(w.R, i, 0) - w.U_max
    return implies(o, _except(o, w, i), (ahead <= w.c) | (ahead + w.R <= w.floor))


def _share_memory(o: Algebra, w: World, i: Any) -> Any:
    return implies(o, _except(o, w, i), o.pick(w.R, i, 0) + w.R <= w.U_max)


SHARED = (
    *INVARIANT,
    Clause("c_i + R_i <= c_g + U or c_i + R_i + R_g <= floor + U", _close_beside, points=1),
    Clause("R_i + R_g <= U", _share_memory, points=1),
)


# --- the interval ---------------------------------------------------------------------------------------------------


def _lowest(o: Algebra, w: World) -> Any:
    """c_f + R_f + R_g - U at t1, over g."""
    return o.pick(w.c0, w.f, 0) + o.pick(w.R0, w.f, 0) + w.R0 - w.U_max


def _near(o: Algebra, w: World) -> Any:
    """Who is f, or was no further than U behind f at t1."""
    near = w.c0 + w.U_max >= o.pick(w.c0, w.f, 0) + o.pick(w.R0, w.f, 0)
    return o.put(near, w.f, True)


def _paid(o: Algebra, w: World) -> Any:
    return implies(o, met(w), _near(o, w) | (w.R0 + w.c - _lowest(o, w) >= w.W))


def _one_sided(o: Algebra, w: World) -> Any:
    left = o.pick(w.W, w.f, 0) + w.U + w.U_max - o.pick(w.R0, w.f, 0)
    return implies(o, _except(o, w, w.f), left >= w.W)


def claims(kernel: Any = counter) -> tuple[Claim, ...]:
    """The claim about the kernel functions of `kernel`."""
    return (
        Claim(
            V_49_WORKER,
            _system(kernel),
            (
                *SHARED,
                *INTERVAL_STARTS,
                Clause("f waited", f_waited),
                Clause("R = R0", lambda o, w: same(w.R, w.R0)),
                Clause("met is who waits", lambda o, w: implies(o, w.met, w.queued)),
            ),
            (
                *SHARED,
                Clause("R0 >= 0", lambda o, w: w.R0 >= 0),
                Clause("f waited", f_waited),
                Clause("c_f = c0_f + W_f", charged_as_served),
                Clause("c >= c0 + W", lambda o, w: w.c >= w.c0 + w.W),
                Clause("floor >= lowest, or near", lambda o, w: _near(o, w) | (_lowest(o, w) <= w.floor)),
                Clause("W <= R0 + c - lowest for who waited, or near", _paid),
                Clause("W + R <= R0 for who did not", lambda o, w: o.where(met(w), True, w.W + w.R <= w.R0)),
            ),
            (Clause("W_g - W_f <= U_g + U - R_f(t1)", _one_sided),),
        ),
    )
