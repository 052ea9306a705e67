"""The counter gate's theorems for any number of clients: V-4.3 (generalised) and V-4.4.

The invariant is about the *pessimistic* counter c + R, where R is what may still be charged to a client for requests
in flight: c_i + R_i <= c_j + U_i for every i and every waiting j.  When none waits the last that left stands in for
j, which is what the last-leaver branch of the lift is for.  It also holds for a j whose last waiting request has just
been admitted, so the theorem covers half-open intervals [t1, t2) that end with a client's queue.

Refunds: `K` is what was charged for requests in flight and will be given back.  A refund takes a counter down, but not
below `floor`, the level of its client's last lift: if all of K came back, c would be b = max(floor, c - K), which no
refund changes and nothing else lowers while the client waits.  `m` = b + K is c, or as much more as a floor will keep
of K.  The invariant is m_i + R_i <= b_j + U_i: what j may still be given back lies in the same memory as what i is
charged.

`c0` and `m0` are c and m at the interval's start t1, and `W` the service since: what was charged, less all that was
given back, whether a floor kept some of it or not; so m - m0 <= W <= c - c0 for a client that waits.  A lift is no
service, and a waiting client is never lifted.
"""

from collections.abc import Mapping

import attrs

from fairsched.model import theorem as th
from fairsched.model.algebra import Algebra
from fairsched.model.pricing import charge_max_reserved
from fairsched.policies.gates import CounterGate
from fairsched.verify import events
from fairsched.verify import logic as v
from fairsched.verify.proofs.gates.deficit import both, in_time
from fairsched.verify.proofs.gates.deficit_steps import sums_claim
from fairsched.verify.proofs.kernels import counter

# --- what may happen ------------------------------------------------------------------------------------------------


def _fits(o: Algebra, w: v.World) -> v.Term:
    """What p is charged, may still be charged and will be given back is at most its U."""
    return w.x + o.pick(w.R, w.p, 0) + w.r + o.pick(w.K, w.p, 0) <= o.pick(w.U, w.p, w.x + w.r)


def _fits_beside(o: Algebra, w: v.World) -> v.Term:
    """That, with what any one other client will be given back, is at most U; and so is what the other may still be
    charged, with what both will be given back."""
    own = w.x + o.pick(w.R, w.p, 0) + w.r + o.pick(w.K, w.p, 0) - o.pick(w.U, w.p, w.x + w.r)
    theirs = w.R + w.K + (o.pick(w.K, w.p, 0) + w.k) <= w.U
    return (o.put(w.K, w.p, 0) + own <= 0) & o.put(theirs, w.p, True)


FITS = (
    events.NOT_NEGATIVE,
    events.MORE,
    v.Need(lambda o, w: (w.k >= 0) & (w.k <= w.x)),
    v.Need(_fits, th.MEM_RESERVE),
    v.Need(_fits_beside, th.MEM_SHARED),
)
"""Of an admission: what is charged now, what may be later, and what is in the same memory and may be given back."""
NONE_BACK = v.Need(lambda o, w: w.k <= 0, th.NOTHING_REFUNDED)
"""Of an admission: nothing of its charge will be given back."""


def without_refunds(event: v.Event) -> v.Event:
    """The event where nothing is ever given back."""
    if event.name == "refund":
        return attrs.evolve(event, excluded_by=th.NOTHING_REFUNDED)
    return event.with_needs(NONE_BACK) if "k" in event.facts else event


def counter_system(kernel: v.Functions = counter, *, backlogged: tuple[str, ...] = ()) -> v.System:
    """The gate whose kernel functions are `kernel`'s, over an interval in which `backlogged` ("f", "g") wait."""
    of = events.declared(CounterGate, kernel)
    no_lift = events.Otherwise(th.LIFT_ON_JOIN, "without a lift", {})
    every = events.gate_events(of, FITS, otherwise=no_lift, was=True, last=True)
    return v.System(
        "counter gate",
        parameters={**dict.fromkeys(("U", "c0", "m0"), v.VECTOR), "f": v.POINT, "g": v.POINT},
        laws=(v.Need(lambda o, w: w.U >= 1), v.Need(lambda o, w: o.exists(w.f) & o.exists(w.g))),
        fields={
            **{
                "c": v.VECTOR,
                "floor": v.VECTOR,
                "queued": v.MASK,
                "was": v.MASK,
                "last": v.POINT,
            },
            **dict.fromkeys("RKW", v.VECTOR),
        },
        events=tuple(event.with_needs(*map(events.waits, backlogged)) for event in every),
        derived=DERIVED,
    )


DERIVED: Mapping[str, v.Formula] = {
    "idle": lambda o, w: o.none(w.queued),
    "b": lambda o, w: o.maximum(w.floor, w.c - w.K),
    "m": lambda o, w: o.maximum(w.c, w.floor + w.K),
}


# --- what holds -----------------------------------------------------------------------------------------------------


def _close(o: Algebra, w: v.World, i: v.Term) -> v.Term:
    """m_i + R_i <= b_j + U_i for every j that waits, or waited before the last event."""
    return v.implies(o, w.queued | w.was, o.pick(w.m, i, 0) + o.pick(w.R, i, 0) - o.pick(w.U, i, 0) <= w.b)


def _close_to_last(o: Algebra, w: v.World) -> v.Term:
    """While none waits, the last that left stands in for j (and zero, before any left)."""
    return v.implies(o, v.spread(w.idle, w.c), w.m + w.R - w.U <= o.pick(w.b, w.last, 0))


def _close_counters(o: Algebra, w: v.World, i: v.Term) -> v.Term:
    """c_i + R_i <= c_j + U_i: what the invariant says of the counters themselves."""
    return v.implies(o, w.queued | w.was, o.pick(w.c, i, 0) + o.pick(w.R, i, 0) - o.pick(w.U, i, 0) <= w.c)


def _share_memory(o: Algebra, w: v.World, i: v.Term) -> v.Term:
    """R_j + K_j + K_i <= U_j for any two clients."""
    return o.put(w.R + w.K + o.pick(w.K, i, 0) <= w.U, i, True)


INVARIANT = (
    v.Clause("m_i + R_i <= b_j + U_i for waiting j", _close, points=1),
    v.Clause("m_i + R_i <= b_last + U_i when none waits", _close_to_last),
    v.Clause("R, K >= 0, R + K <= U", lambda o, w: (w.R >= 0) & (w.K >= 0) & (w.R + w.K <= w.U)),
    v.Clause("R_j + K_j + K_i <= U_j", _share_memory, points=1),
    v.Clause("0 <= floor <= c", lambda o, w: (w.floor >= 0) & (w.floor <= w.c)),
)
CLOSE = v.Clause("c_i + R_i <= c_j + U_i for waiting j", _close_counters, points=1)
WITHOUT_REFUNDS = (
    CLOSE,
    v.Clause(
        "c_i + R_i <= c_last + U_i when none waits",
        lambda o, w: v.implies(o, v.spread(w.idle, w.c), w.c + w.R - w.U <= o.pick(w.c, w.last, 0)),
    ),
    v.Clause("0 <= R <= U, K = 0", lambda o, w: (w.R >= 0) & (w.R <= w.U) & v.same(w.K, 0)),
    v.Clause("0 <= floor <= c", lambda o, w: (w.floor >= 0) & (w.floor <= w.c)),
)
"""What the invariant says where nothing is ever given back."""
NOTHING_YET = (
    v.Clause(
        "no client waits or runs",
        lambda o, w: v.implies(o, w.queued | w.was, False) & v.same(w.R, 0) & v.same(w.K, 0),
    ),
    v.Clause("c = 0, floor = 0", lambda o, w: v.same(w.c, 0) & v.same(w.floor, 0)),
)


INTERVAL_STARTS = (
    v.Clause("W = 0", lambda o, w: v.same(w.W, 0)),
    v.Clause("c = c0, m = m0", lambda o, w: v.same(w.c, w.c0) & v.same(w.m, w.m0)),
)


def both_waited(o: Algebra, w: v.World) -> v.Term:
    """f and g wait, or did before the last event."""
    waited = w.queued | w.was
    return o.pick(waited, w.f, True) & o.pick(waited, w.g, True)


def started_close(o: Algebra, w: v.World) -> v.Term:
    """f and g began at most U apart, whatever floors will keep of refunds."""
    (start_f, start_g), (charge_f, charge_g) = both(o, w, "c0"), both(o, w, "U")
    (most_f, most_g) = both(o, w, "m0")
    return (most_f <= start_g + charge_f) & (most_g <= start_f + charge_g)


def started_close_counters(o: Algebra, w: v.World) -> v.Term:
    """c0_f and c0_g differ by at most U."""
    (start_f, start_g), (charge_f, charge_g) = both(o, w, "c0"), both(o, w, "U")
    return (start_f <= start_g + charge_f) & (start_g <= start_f + charge_g)


def charged_all(o: Algebra, w: v.World) -> v.Term:
    """The counters of f and g have grown by their service."""
    (c_f, c_g), (start_f, start_g), (service_f, service_g) = both(o, w, "c"), both(o, w, "c0"), both(o, w, "W")
    return v.same(c_f, start_f + service_f) & v.same(c_g, start_g + service_g)


def charged_as_served(o: Algebra, w: v.World) -> v.Term:
    """The counters of f and g have grown by their service, and by what floors kept of refunds."""
    (c_f, c_g), (start_f, start_g), (service_f, service_g) = both(o, w, "c"), both(o, w, "c0"), both(o, w, "W")
    (now_f, now_g), (most_f, most_g) = both(o, w, "m"), both(o, w, "m0")
    at_most = (start_f + service_f <= c_f) & (start_g + service_g <= c_g)
    return at_most & (now_f <= most_f + service_f) & (now_g <= most_g + service_g)


def gap_within(o: Algebra, w: v.World) -> v.Term:
    """The services of f and g differ by at most U_f + U_g."""
    (service_f, service_g), (charge_f, charge_g) = both(o, w, "W"), both(o, w, "U")
    return (service_f - service_g <= charge_f + charge_g) & (service_g - service_f <= charge_f + charge_g)


# --- one step of the kernel -------------------------------------------------------------------------------------------

_OTHERS = v.Clause("no other counter changes", lambda o, w: o.where(v.only(o, w.c, w.p), True, v.same(w.c, w.was)))


def _gate_claim(kernel: v.Functions) -> v.Claim:
    """`served` is the client that the gate lets in."""

    def lowest(o: Algebra, w: v.World) -> v.Term:
        found = v.spread(o.exists(w.served), w.c) & (w.c >= o.pick(w.c, w.served, 0))
        return v.implies(o, w.queued, found)

    return v.one_step(
        counter.V_GATE,
        "counter gate, its choice",
        {"served": v.POINT},
        v.Event("choose", lambda o, w: {"served": kernel.choose(o, w.c, w.queued)}, kernels=(kernel.choose,)),
        (
            v.Clause("who is served waits", lambda o, w: o.pick(w.queued, w.served, True)),
            v.Clause("no waiting client has less, and one is served if there is one", lowest),
        ),
        parameters={"c": v.VECTOR, "queued": v.MASK},
    )


def _lift_claim(kernel: v.Functions) -> v.Claim:
    """p came back while `queued` waited and `last` was the last who had left; `was` are the counters before."""

    def lift(o: Algebra, w: v.World) -> v.Written:
        floor = kernel.lifted_to(o, w.had, w.was, w.queued, w.p, w.last)
        return {"c": kernel.lift(o, w.was, w.queued, w.p, w.last), "floor": floor}

    def no_further(o: Algebra, w: v.World) -> v.Term:
        return v.implies(o, w.queued, o.pick(w.c, w.p, 0) <= o.maximum(o.pick(w.was, w.p, 0), w.was))

    def to_the_last(o: Algebra, w: v.World) -> v.Term:
        own, left = o.pick(w.was, w.p, 0), o.pick(w.was, w.last, 0)
        return o.where(w.idle & o.exists(w.p), v.same(o.pick(w.c, w.p, 0), o.maximum(own, left)), True)

    def to_the_floor(o: Algebra, w: v.World) -> v.Term:
        own, floor = o.pick(w.was, w.p, 0), o.pick(w.floor, w.p, 0)
        return o.where(o.exists(w.p), v.same(o.pick(w.c, w.p, 0), o.maximum(own, floor)), True)

    def floor_no_higher(o: Algebra, w: v.World) -> v.Term:
        return v.implies(o, w.queued & v.spread(o.exists(w.p), w.c), o.pick(w.floor, w.p, 0) <= w.was)

    return v.one_step(
        counter.V_LIFT,
        "counter gate, its lift",
        v.vectors("c", "floor"),
        v.Event("lift", lift, kernels=(kernel.level, kernel.lift, kernel.lifted_to)),
        (
            _OTHERS,
            v.Clause("a lift ends at the floor", to_the_floor),
            v.Clause("which is no higher than a waiting client", floor_no_higher),
            v.Clause("no counter is lowered", lambda o, w: w.c >= w.was),
            v.Clause("no further than to a waiting client", no_further),
            v.Clause("to the last that left if none waits", to_the_last),
        ),
        parameters={**v.vectors("was", "had"), "queued": v.MASK, "p": v.POINT, "last": v.POINT},
        derived={"idle": lambda o, w: o.none(w.queued)},
    )


def _released_lift_claim(kernel: v.Functions) -> v.Claim:
    """The same of the released code's lift, which is so "arrive" or "arrive without a lift" of the gate; `ours`
    is where the gate's own lift ends, `ours_floor` the floor that it leaves."""

    def lifts(o: Algebra, w: v.World) -> v.Written:
        return {
            "c": kernel.lift_released(o, w.was, w.queued, w.p),
            "floor": kernel.floor_released(o, w.had, w.was, w.queued, w.p),
            "ours": kernel.lift(o, w.was, w.queued, w.p, w.last),
            "ours_floor": kernel.lifted_to(o, w.had, w.was, w.queued, w.p, w.last),
        }

    def ours(o: Algebra, w: v.World) -> v.Term:
        return o.where(v.spread(w.idle, w.c), True, v.same(w.c, w.ours) & v.same(w.floor, w.ours_floor))

    def nothing(o: Algebra, w: v.World) -> v.Term:
        return v.implies(o, v.spread(w.idle, w.c), v.same(w.c, w.was) & v.same(w.floor, w.had))

    one = _lift_claim(kernel)
    kernels = (kernel.lift_released, kernel.floor_released, kernel.level, kernel.lift, kernel.lifted_to)
    return v.one_step(
        counter.V_LIFT_RELEASED,
        "counter gate, the released lift",
        v.vectors("c", "floor", "ours", "ours_floor"),
        v.Event("lift", lifts, kernels=kernels),
        (v.Clause("ours while a client waits", ours), v.Clause("nothing changes while none does", nothing)),
        parameters=one.system.parameters,
        derived=one.system.derived,
    )


def _refund_claim(kernel: v.Functions) -> v.Claim:
    """x was given back to p, whose last lift ended at its `floor`; `was` are the counters before."""

    def given_back(o: Algebra, w: v.World) -> v.Term:
        left = o.maximum(o.pick(w.was, w.p, 0) - w.x, o.pick(w.floor, w.p, 0))
        return o.where(o.exists(w.p), v.same(o.pick(w.c, w.p, 0), left), True)

    return v.one_step(
        counter.V_REFUND,
        "counter gate, its refund",
        v.vectors("c"),
        v.Event("refund", lambda o, w: {"c": kernel.refund(o, w.was, w.floor, w.p, w.x)}, kernels=(kernel.refund,)),
        (
            _OTHERS,
            v.Clause("by the amount, or down to the floor", given_back),
            v.Clause("no counter is raised", lambda o, w: v.implies(o, w.floor <= w.was, w.c <= w.was)),
            v.Clause("by no more than the amount", lambda o, w: w.was - w.c <= w.x),
        ),
        parameters={**v.vectors("was", "floor"), **events.ONE},
        laws=(lambda o, w: w.x >= 0,),
    )


def gap_claim(kernel: v.Functions) -> v.Claim:
    """V-4.4, about an interval in which f and g wait."""
    both_wait = v.Clause("f and g waited", both_waited)
    return v.Claim(
        counter.V_44,
        counter_system(kernel, backlogged=("f", "g")),
        (*INVARIANT, both_wait, *INTERVAL_STARTS),
        (
            *INVARIANT,
            both_wait,
            v.Clause("f and g began close", started_close),
            v.Clause("m - m0 <= W <= c - c0 for f and g", charged_as_served),
        ),
        (v.Clause("|W_f - W_g| <= 2U", gap_within),),
    )


# --- a client that waits, against clients that need not ---------------------------------------------------------------
# Over an interval in which f waits, no counter that joins the queue, and none in it, is ever below `lowest`, whatever
# is given back: that is m_f + R_f - U_f at t1 (m_f, if f was lifted then to where no refund takes one that waits).  A
# client that has not waited since t1 is served only what was reserved for it, R0; from then on its service is paid for
# by its counter, which starts no lower than `lowest` and never gets further above f's than U_g.

_AT_LEAST_ONE = v.Need(lambda o, w: w.x >= 1, th.CHARGES_AT_LEAST_ONE)
_SOMEBODY_ELSE = v.Need(lambda o, w: o.where(o.pick(v.only(o, w.c, w.f), w.p, False), False, True))


def met(w: v.World) -> v.Term:
    """Who has waited since the interval's start."""
    return w.met | w.queued | w.was


def _while_f_waits(
    kernel: v.Functions, on_admission: v.Need, parameters: Mapping[str, v.Kind], **derived: v.Formula
) -> v.System:
    """The gate over an interval in which f waits; `met` remembers who did, `first` who did at its start."""
    one = counter_system(kernel, backlogged=("f",))

    def watched(event: v.Event) -> v.Event:
        event = event.with_needs(on_admission) if event.name.startswith("admit") else event
        return event.also(met=met)

    return attrs.evolve(
        one,
        parameters={**one.parameters, "R0": v.VECTOR, **parameters},
        fields={**one.fields, "met": v.MASK},
        events=tuple(map(watched, one.events)),
        derived={**one.derived, **derived},
    )


_AT_START = {"first": v.MASK, "lifted": v.FLAG}


def _from_reserve(o: Algebra, w: v.World) -> v.Term:
    """m_f + R_f - U_f at t1."""
    return o.pick(w.m0, w.f, 0) + o.pick(w.R0, w.f, 0) - o.pick(w.U, w.f, 0)


def _or_lifted(o: Algebra, w: v.World) -> v.Term:
    return o.where(w.lifted, o.pick(w.m0, w.f, 0), _from_reserve(o, w))


def _own_service(o: Algebra, w: v.World) -> v.Term:
    """f is served only what was reserved for it at the start."""
    return o.pick(w.W, w.f, 0) + o.pick(w.R, w.f, 0) <= o.pick(w.R0, w.f, 0)


_F_WAITED = v.Clause("f waited", lambda o, w: o.pick(w.queued | w.was, w.f, True))
_R_IS_R0 = v.Clause("R = R0", lambda o, w: v.same(w.R, w.R0))
_PAID_FOR = (
    v.Clause("m_f <= m0_f + W_f", lambda o, w: o.pick(w.m, w.f, 0) <= o.pick(w.m0, w.f, 0) + o.pick(w.W, w.f, 0)),
    v.Clause("c >= c0 + W", lambda o, w: w.c >= w.c0 + w.W),
)
_DID_NOT_WAIT = v.Clause("W + R <= R0 for who did not", lambda o, w: o.where(met(w), True, w.W + w.R <= w.R0))
_STARTS = (
    *INVARIANT,
    *INTERVAL_STARTS,
    _F_WAITED,
    _R_IS_R0,
    v.Clause("met and first wait", lambda o, w: v.implies(o, w.met, w.queued) & v.implies(o, w.first, w.queued)),
)
_WAITING = (
    *INVARIANT,
    _F_WAITED,
    *_PAID_FOR,
    v.Clause("0 <= R0 <= U", lambda o, w: (w.R0 >= 0) & (w.R0 <= w.U)),
    v.Clause("b >= lowest for waiting clients", lambda o, w: v.implies(o, w.queued | w.was, w.b >= w.lowest)),
    v.Clause("W <= R0 + c - lowest for who waited", lambda o, w: v.implies(o, met(w), w.R0 + w.c - w.lowest >= w.W)),
    _DID_NOT_WAIT,
)


def _one_sided(kernel: v.Functions) -> v.Claim:
    room = v.Clause("R <= U - 1", lambda o, w: (w.R <= w.U - 1) & (w.R0 <= w.U - 1))
    return v.Claim(
        counter.V_49,
        _while_f_waits(kernel, _AT_LEAST_ONE, _AT_START, lowest=_from_reserve),
        (*_STARTS, v.Clause("R <= U - 1", lambda o, w: w.R <= w.U - 1)),
        (*_WAITING, room),
        (
            v.Clause(
                "W_g - W_f <= U_f + 2 U_g - 1",
                lambda o, w: o.pick(w.W, w.f, 0) + o.pick(w.U, w.f, 0) + w.U + w.U - 1 >= w.W,
            ),
        ),
    )


def _latency(kernel: v.Functions) -> v.Claim:
    of = _while_f_waits(kernel, _SOMEBODY_ELSE, _AT_START, lowest=_or_lifted)
    return v.Claim(
        counter.V_411,
        of,
        (*_STARTS, v.Clause("f was lifted", _was_lifted)),
        (
            *_WAITING,
            v.Clause("c0 >= lowest for who waited at t1", lambda o, w: v.implies(o, w.first, w.c0 >= w.lowest)),
            v.Clause("W_f + R_f <= R0_f, R0_f = 0 if f was lifted", _own_service_at_most),
        ),
        (
            v.Clause("W_g <= U_f + U_g + R_g(t1)", lambda o, w: o.put(w.W, w.f, 0) <= _most(o, w)),
            v.Clause("W_f <= R_f(t1)", lambda o, w: o.pick(w.W, w.f, 0) <= o.pick(w.R0, w.f, 0)),
        ),
    )


def _was_lifted(o: Algebra, w: v.World) -> v.Term:
    """To the lowest counter that waits, below which no refund takes one, with nothing in flight."""
    lowest = v.implies(o, w.queued | w.was, w.b >= o.pick(w.m0, w.f, 0)) & (o.pick(w.R0, w.f, 0) <= 0)
    return v.implies(o, v.spread(w.lifted, w.c), lowest)


def _own_service_at_most(o: Algebra, w: v.World) -> v.Term:
    return _own_service(o, w) & o.where(w.lifted, o.pick(w.R0, w.f, 0) <= 0, True)


def _most(o: Algebra, w: v.World) -> v.Term:
    """U_f + U_g + R_g(t1) for each g."""
    own = o.where(w.lifted, 0, o.pick(w.U, w.f, 0))
    return w.U + own + o.where(w.first, 0, w.R0)


# --- one worker -------------------------------------------------------------------------------------------------------


def _fits_on_worker(o: Algebra, w: v.World) -> v.Term:
    """What p may then be charged and what any other may still be, together."""
    together = o.put(w.R, w.p, 0) + (w.x + w.r + o.pick(w.R, w.p, 0))
    return o.where(v.spread(o.exists(w.p), w.R), together <= w.U_max, True)


def _worker_system(kernel: v.Functions) -> v.System:
    one = _while_f_waits(kernel, v.Need(_fits_on_worker, th.MEM_SHARED), {"U_max": v.SCALAR}, least=_least)
    return attrs.evolve(one, events=tuple(map(without_refunds, one.events))).with_laws(
        v.Need(lambda o, w: w.U_max >= w.U)
    )


# --- the invariant --------------------------------------------------------------------------------------------------


def _least(o: Algebra, w: v.World) -> v.Term:
    """The lowest counter that waits, or waited before the last event; that of the last that left if none did."""
    waited = w.queued | w.was
    return o.pick(w.c, o.argmin(w.c, waited), o.pick(w.c, w.last, 0))


def _except(o: Algebra, w: v.World, i: v.Term) -> v.Term:
    return o.put(v.spread(True, w.c), i, False)


def _close_beside(o: Algebra, w: v.World, i: v.Term) -> v.Term:
    ahead = o.pick(w.c, i, 0) + o.pick(w.R, i, 0) - w.U_max
    return v.implies(o, _except(o, w, i), (ahead <= w.c) | (ahead + w.R <= w.least))


def _shares_on_worker(o: Algebra, w: v.World, i: v.Term) -> v.Term:
    return v.implies(o, _except(o, w, i), o.pick(w.R, i, 0) + w.R <= w.U_max)


SHARED = (
    *WITHOUT_REFUNDS,
    v.Clause("c_i + R_i <= c_g + U or c_i + R_i + R_g <= least + U", _close_beside, points=1),
    v.Clause("R_i + R_g <= U", _shares_on_worker, points=1),
)


# --- the interval ---------------------------------------------------------------------------------------------------


def _lowest(o: Algebra, w: v.World) -> v.Term:
    """c_f + R_f + R_g - U at t1, over g."""
    return o.pick(w.c0, w.f, 0) + o.pick(w.R0, w.f, 0) + w.R0 - w.U_max


def _near(o: Algebra, w: v.World) -> v.Term:
    """Who is f, or was no further than U behind f at t1."""
    near = w.c0 + w.U_max >= o.pick(w.c0, w.f, 0) + o.pick(w.R0, w.f, 0)
    return o.put(near, w.f, True)


def _paid(o: Algebra, w: v.World) -> v.Term:
    return v.implies(o, met(w), _near(o, w) | (w.R0 + w.c - _lowest(o, w) >= w.W))


def _one_sided_on_worker(o: Algebra, w: v.World) -> v.Term:
    left = o.pick(w.W, w.f, 0) + w.U + w.U_max - o.pick(w.R0, w.f, 0)
    return v.implies(o, _except(o, w, w.f), left >= w.W)


def _on_worker(kernel: v.Functions) -> v.Claim:
    return v.Claim(
        counter.V_49_WORKER,
        _worker_system(kernel),
        (
            *SHARED,
            *INTERVAL_STARTS,
            _F_WAITED,
            _R_IS_R0,
            v.Clause("met waits", lambda o, w: v.implies(o, w.met, w.queued)),
        ),
        (
            *SHARED,
            v.Clause("R0 >= 0", lambda o, w: w.R0 >= 0),
            _F_WAITED,
            v.Clause(
                "c_f = c0_f + W_f", lambda o, w: v.same(o.pick(w.c, w.f, 0), o.pick(w.c0, w.f, 0) + o.pick(w.W, w.f, 0))
            ),
            _PAID_FOR[1],
            v.Clause("least >= lowest, or near", lambda o, w: _near(o, w) | (_lowest(o, w) <= w.least)),
            v.Clause("W <= R0 + c - lowest for who waited, or near", _paid),
            _DID_NOT_WAIT,
        ),
        (v.Clause("W_g - W_f <= U_g + U - R_f(t1)", _one_sided_on_worker),),
    )


# --- from service to time ---------------------------------------------------------------------------------------------


def _latency_in_time(kernel: v.Functions) -> v.Claim:
    """V-4.11 with a clock."""

    def most(o: Algebra, w: v.World) -> v.Term:
        return o.put(_most(o, w), w.f, o.pick(w.R0, w.f, 0))

    return in_time(counter.V_411_TIME, _latency(kernel), most)


# --- weights change ---------------------------------------------------------------------------------------------------
# The unit of account is a field and changes by an event.  A weight changes prices: a token is reserved at the dearest
# price that its client ever pays and charged at today's, which is no more, so the invariant holds with U at the dearest
# price.  What was charged at yesterday's price and is given back at today's may be more than was charged: nothing is
# given back there.


def _finer_unit(kernel: v.Functions) -> v.Event:
    """Everything that is counted in the unit is multiplied; the gate does it to its counters."""

    def finer(o: Algebra, w: v.World) -> v.Written:
        others = {name: v.product(getattr(w, name), w.by) for name in ("R", "K", "U", "W", "c0")}
        return {"c": kernel.rescaled(o, w.c, w.by), "floor": kernel.rescaled(o, w.floor, w.by), **others}

    return v.Event("the unit becomes finer", finer, {"by": v.SCALAR}, (lambda o, w: w.by >= 1,))


def _charges_today(kernel: v.Functions) -> tuple[v.Event, ...]:
    """d is what was reserved for the decoded tokens, y what they cost today; x and z the same for a correction."""

    return (
        v.Event(
            "decode",
            lambda o, w: {"c": kernel.decode(o, w.c, w.y), "R": w.R - w.d, "W": w.W + w.y},
            {"d": v.VECTOR, "y": v.VECTOR},
            (lambda o, w: w.y >= 0, v.Need(lambda o, w: (w.y <= w.d) & (w.d <= w.R), th.MEM_RESERVE)),
            (kernel.decode,),
        ),
        v.Event(
            "correct",
            lambda o, w: {"c": kernel.admit(o, w.c, w.p, w.z), "R": o.bump(w.R, w.p, -w.x), "W": o.bump(w.W, w.p, w.z)},
            {"p": v.POINT, "x": v.SCALAR, "z": v.SCALAR},
            (lambda o, w: w.z >= 0, v.Need(lambda o, w: (w.z <= w.x) & (w.x <= o.pick(w.R, w.p, 0)), th.MEM_RESERVE)),
            (kernel.admit,),
        ),
    )


def _counter_claim(kernel: v.Functions) -> v.Claim:
    """V-4.4's, with events in which prices change; a refund at another price might give back more than was charged."""
    fixed = counter_system(kernel, backlogged=("f", "g"))
    today = {event.name: event.with_needs(events.waits("f"), events.waits("g")) for event in _charges_today(kernel)}
    moved = v.vectors("U", "c0")

    def changed(event: v.Event) -> v.Event:
        return today[event.name].also(was=lambda w: w.queued) if event.name in today else without_refunds(event)

    changing = attrs.evolve(
        fixed,
        name="counter gate, weights change",
        parameters={name: kind for name, kind in fixed.parameters.items() if name not in moved},
        fields={**fixed.fields, **moved},
        events=(*map(changed, fixed.events), _finer_unit(kernel)),
        closed_forms=True,
    )
    waited = v.Clause("f and g waited", both_waited)
    return v.Claim(
        counter.V_CHANGE,
        changing,
        (*WITHOUT_REFUNDS, waited, v.Clause("W = 0, c = c0", lambda o, w: v.same(w.W, 0) & v.same(w.c, w.c0))),
        (
            *WITHOUT_REFUNDS,
            waited,
            v.Clause("c0_f and c0_g are close", started_close_counters),
            v.Clause("c = c0 + W for f and g", charged_all),
        ),
        (v.Clause("|W_f - W_g| <= U_f + U_g", gap_within), CLOSE),
    )


def claims(kernel: v.Functions = counter) -> tuple[v.Claim, ...]:
    """The theorems about the gate whose kernel functions are `kernel`'s."""
    served = (v.Clause("c >= c0 + W", lambda o, w: w.c >= w.c0 + w.W),)
    return (
        v.Claim(counter.V_43, counter_system(kernel), NOTHING_YET, INVARIANT, (CLOSE,)),
        v.Claim(counter.V_DEBT, counter_system(kernel), INTERVAL_STARTS, served, served),
        gap_claim(kernel),
        _gate_claim(kernel),
        _lift_claim(kernel),
        _refund_claim(kernel),
        sums_claim(counter.V_SUMS, "counter", kernel.decode),
        _one_sided(kernel),
        _latency(kernel),
        _on_worker(kernel),
        _latency_in_time(kernel),
        _counter_claim(kernel),
        _released_lift_claim(kernel),
    )


def kernel_claims(kernel: v.Functions = counter) -> tuple[v.Claim, ...]:
    """Return the same and what is said of the fast paths."""
    return (*claims(kernel), *events.fast_claims(CounterGate, kernel))


# --- runs that attain the bounds --------------------------------------------------------------------------------------

MEMORY = 3
CHARGE_MAX = charge_max_reserved(v.RATES, MEMORY, 2)


def _turn(client: int) -> list[v.RunStep]:
    """A prompt of one token, and outputs that fill the memory: U."""
    return list(v.served(3, client, 1, MEMORY - 1))


def _arrives(client: int) -> v.RunStep:
    return ("arrive", {"p": client})


def _parameters(f: int, g: int) -> v.Values:
    return {"U": (CHARGE_MAX,) * 3, "f": f, "g": g}


def counter_witness() -> v.Witness:
    """V-4.4: client 0 is served 2U while client 1 waits and gets nothing.

    The kernel serves the first of equals.  Client 1 is served U while client 2 waits at 0; client 0 joins at 0, is
    served U, ties with client 1, and as the first of equals is served U again.
    """
    before = [_arrives(1), _arrives(2), *_turn(1), _arrives(0)]
    steps = (*before, (v.BEGIN, {}), *_turn(0), *_turn(2), *_turn(0))
    bound = counter.gap_cost(0, CHARGE_MAX, 0, CHARGE_MAX)
    return v.Witness(_claim("V-4.4"), 3, _parameters(0, 1), steps, bound, {"c0": "c", "m0": "m"})


def _priced(step: v.RunStep) -> v.RunStep:
    """At the dearest price throughout."""
    name, facts = step
    return (name, {**facts, "y": facts["d"]}) if name == "decode" else step


def _overtaking_run() -> tuple[v.RunStep, ...]:
    """Client 0 (g) has U - 1 reserved and does not wait; 1 (f) stands at 2U, 2 waits at U.

    g decodes U - 1, comes back at U, is served U, ties with f once client 2 has left, and is served U again.
    """
    last = ("admit the last that waits", {"x": 1, "r": CHARGE_MAX - 1, "k": 0})
    before = [_arrives(0), _arrives(1), _arrives(2), last, *_turn(1), *_turn(2), *_turn(1)]
    steps: list[v.RunStep] = [("decode", {"d": v.one(3, 0, CHARGE_MAX - 1)}), _arrives(0), *_turn(0)]
    steps += [("leave the queue", {"p": 2}), *_turn(0)]
    return (*before, (v.BEGIN, {}), *steps)


def _claim(theorem: str) -> v.Claim:
    return v.claim_named(theorem, claims())


def witnesses() -> tuple[v.Witness, ...]:
    """One run a bound of the counter gate."""
    gap, history = counter_witness(), counter_system()
    # Of two who wait at 0 one is admitted with U.
    close = v.Witness(
        _claim("V-4.3"),
        3,
        _parameters(0, 1),
        (_arrives(0), _arrives(1), *_turn(0)[:1]),
        CHARGE_MAX,
        measure=lambda w: int(w.c[0]) + int(w.R[0]) - int(w.c[1]),
    )
    # f gets nothing, g 3U - 1.
    one_sided = v.Witness(
        _claim("V-4.9"),
        3,
        _parameters(1, 0),
        _overtaking_run(),
        counter.one_sided_gap_cost(0, CHARGE_MAX, 0, CHARGE_MAX),
        {"c0": "c", "m0": "m", "R0": "R", "first": "queued", "met": "queued"},
        history=history,
    )
    # The run of V-4.4, in which no request runs beside another.
    on_one_worker = attrs.evolve(
        gap,
        claim=_claim("V-4.9-worker"),
        parameters={**_parameters(1, 0), "U_max": CHARGE_MAX},
        bound_cost=counter.worker_gap_cost(0, CHARGE_MAX, 0, CHARGE_MAX),
        snapshots={"c0": "c", "m0": "m", "R0": "R", "met": "queued"},
        history=history,
    )
    # The run of V-4.9: f is never let in, and 2U + R_g(t1) = 3U - 1.
    latency = attrs.evolve(
        one_sided, claim=_claim("V-4.11"), bound_cost=3 * CHARGE_MAX - 1, measure=lambda w: int(w.W[w.g])
    )
    changing = attrs.evolve(gap, claim=_claim("V-change"), steps=tuple(map(_priced, gap.steps)))
    return (close, gap, one_sided, on_one_worker, latency, changing)
