"""What the counter gate promises a client that waits, against clients that need not: V-4.9 and V-4.11.

Over an interval in which f waits, no counter that joins the queue, and none in it, is ever below `lowest`, which is
c_f + R_f - U_f at t1 (c_f, if f was lifted then).  A client that has not waited since t1 is served only what was
reserved for it, R0; from then on its service is paid for by its counter, which starts no lower than `lowest` and never
gets further above f's than U_g.
"""

from collections.abc import Callable
from typing import Any

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE
from fairsched.policies import counter
from fairsched.policies.counter import V_49, V_411
from fairsched.verify.counter_proofs import INTERVAL_STARTS, INVARIANT, system
from fairsched.verify.system import Claim, Clause, Event, Kind, Need, System, World, implies, only, same, spread

_AT_LEAST_ONE = Need(lambda o, w: w.x >= 1, CHARGES_AT_LEAST_ONE)
_SOMEBODY_ELSE = Need(lambda o, w: o.where(o.pick(only(o, w.c, w.f), w.p, False), False, True))


def met(w: World) -> Any:
    """Who has waited since the interval's start."""
    return w.met | w.queued | w.was


def _while_f_waits(kernel: Any, on_admission: Need, lowest: Callable[[Algebra, World], Any]) -> System:
    """The gate over an interval in which f waits; `met` remembers who did, `first` who did at its start."""
    one = system(kernel, backlogged=("f",))

    def watched(event: Event) -> Event:
        event = event.with_needs(on_admission) if event.name.startswith("admit") else event
        return event.also(met=met)

    return attrs.evolve(
        one,
        parameters={**one.parameters, "R0": Kind.VECTOR, "first": Kind.MASK, "lifted": Kind.FLAG},
        fields={**one.fields, "met": Kind.MASK},
        events=tuple(map(watched, one.events)),
        derived={**one.derived, "lowest": lowest},
    )


def _from_reserve(o: Algebra, w: World) -> Any:
    """c_f + R_f - U_f at t1."""
    return o.pick(w.c0, w.f, 0) + o.pick(w.R0, w.f, 0) - o.pick(w.U, w.f, 0)


def _or_lifted(o: Algebra, w: World) -> Any:
    return o.where(w.lifted, o.pick(w.c0, w.f, 0), _from_reserve(o, w))


def f_waited(o: Algebra, w: World) -> Any:
    """f waits, or did before the last event."""
    return o.pick(w.queued | w.was, w.f, True)


def charged_as_served(o: Algebra, w: World) -> Any:
    """f's counter has grown by its service."""
    return same(o.pick(w.c, w.f, 0), o.pick(w.c0, w.f, 0) + o.pick(w.W, w.f, 0))


def _own_service(o: Algebra, w: World) -> Any:
    """f is served only what was reserved for it at the start."""
    return o.pick(w.W, w.f, 0) + o.pick(w.R, w.f, 0) <= o.pick(w.R0, w.f, 0)


_STARTS = (
    *INVARIANT,
    *INTERVAL_STARTS,
    Clause("f waited", f_waited),
    Clause("R = R0", lambda o, w: same(w.R, w.R0)),
    Clause("met and first are who waits", lambda o, w: implies(o, w.met, w.queued) & implies(o, w.first, w.queued)),
)
_WAITING = (
    *INVARIANT,
    Clause("f waited", f_waited),
    Clause("c_f = c0_f + W_f", charged_as_served),
    Clause("c >= c0 + W", lambda o, w: w.c >= w.c0 + w.W),
    Clause("0 <= R0 <= U", lambda o, w: (w.R0 >= 0) & (w.R0 <= w.U)),
    Clause("c >= lowest for who waits", lambda o, w: implies(o, w.queued | w.was, w.c >= w.lowest)),
    Clause("W <= R0 + c - lowest for who waited", lambda o, w: implies(o, met(w), w.R0 + w.c - w.lowest >= w.W)),
    Clause("W + R <= R0 for who did not", lambda o, w: o.where(met(w), True, w.W + w.R <= w.R0)),
)


def _one_sided(kernel: Any) -> Claim:
    room = Clause("R <= U - 1", lambda o, w: (w.R <= w.U - 1) & (w.R0 <= w.U - 1))
    return Claim(
        V_49,
        _while_f_waits(kernel, _AT_LEAST_ONE, _from_reserve),
        (*_STARTS, Clause("R <= U - 1", lambda o, w: w.R <= w.U - 1)),
        (*_WAITING, room),
        (Clause("W_g - W_f <= U_f + 2 U_g - 1", _close_above),),
    )


def _close_above(o: Algebra, w: World) -> Any:
    return o.pick(w.W, w.f, 0) + o.pick(w.U, w.f, 0) + w.U + w.U - 1 >= w.W


def _latency(kernel: Any) -> Claim:
    of = _while_f_waits(kernel, _SOMEBODY_ELSE, _or_lifted)
    return Claim(
        V_411,
        of,
        (*_STARTS, Clause("f was lifted", _was_lifted)),
        (
            *_WAITING,
            Clause("c0 >= lowest for who waited at t1", lambda o, w: implies(o, w.first, w.c0 >= w.lowest)),
            Clause("W_f + R_f <= R0_f, R0_f = 0 if f was lifted", _own_service_at_most),
        ),
        (
            Clause("W_g <= U_f + U_g + R_g(t1)", _bounded),
            Clause("W_f <= R_f(t1)", lambda o, w: o.pick(w.W, w.f, 0) <= o.pick(w.R0, w.f, 0)),
        ),
    )


def _was_lifted(o: Algebra, w: World) -> Any:
    """To the lowest counter that waits, with nothing in flight."""
    lowest = implies(o, w.queued | w.was, w.c >= o.pick(w.c0, w.f, 0)) & (o.pick(w.R0, w.f, 0) <= 0)
    return implies(o, spread(w.lifted, w.c), lowest)


def _own_service_at_most(o: Algebra, w: World) -> Any:
    return _own_service(o, w) & o.where(w.lifted, o.pick(w.R0, w.f, 0) <= 0, True)


def _bounded(o: Algebra, w: World) -> Any:
    own = o.where(w.lifted, 0, o.pick(w.U, w.f, 0))
    return o.put(w.W, w.f, 0) <= w.U + own + o.where(w.first, 0, w.R0)


def claims(kernel: Any = counter) -> tuple[Claim, ...]:
    """The claims about the kernel functions of `kernel`."""
    return (_one_sided(kernel), _latency(kernel))
