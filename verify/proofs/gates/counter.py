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

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import LIFT_ON_JOIN, MEM_RESERVE, MEM_SHARED, NOTHING_REFUNDED
from fairsched.policies.gates import V_43, V_44, V_DEBT, V_GATE, V_LIFT, V_REFUND, V_SUMS, CounterGate
from fairsched.verify import events
from fairsched.verify import logic as v
from fairsched.verify.proofs.gates.deficit import both
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
    v.Need(_fits, MEM_RESERVE),
    v.Need(_fits_beside, MEM_SHARED),
)
"""Of an admission: what is charged now, what may be later, and what is in the same memory and may be given back."""
NONE_BACK = v.Need(lambda o, w: w.k <= 0, NOTHING_REFUNDED)
"""Of an admission: nothing of its charge will be given back."""


def without_refunds(event: v.Event) -> v.Event:
    """The event where nothing is ever given back."""
    if event.name == "refund":
        return attrs.evolve(event, excluded_by=NOTHING_REFUNDED)
    return event.with_needs(NONE_BACK) if "k" in event.facts else event


def counter_system(kernel: v.Functions = counter, *, backlogged: tuple[str, ...] = ()) -> v.System:
    """The gate whose kernel functions are `kernel`'s, over an interval in which `backlogged` ("f", "g") wait."""
    of = events.declared(CounterGate, kernel)
    no_lift = events.Otherwise(LIFT_ON_JOIN, "without a lift", {})
    every = events.gate_events(of, FITS, otherwise=no_lift, was=True, last=True)
    return v.System(
        "counter gate",
        parameters={**dict.fromkeys(("U", "c0", "m0"), v.Kind.VECTOR), "f": v.Kind.POINT, "g": v.Kind.POINT},
        laws=(v.Need(lambda o, w: w.U >= 1), v.Need(lambda o, w: o.exists(w.f) & o.exists(w.g))),
        fields={
            **{
                "c": v.Kind.VECTOR,
                "floor": v.Kind.VECTOR,
                "queued": v.Kind.MASK,
                "was": v.Kind.MASK,
                "last": v.Kind.POINT,
            },
            **dict.fromkeys("RKW", v.Kind.VECTOR),
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

_COUNTERS = {"c": v.Kind.VECTOR, "was": v.Kind.VECTOR, "one": v.Kind.POINT}
"""Counters after and before the step, and who took it."""

_OTHERS = v.Clause("no other counter changes", lambda o, w: o.where(v.only(o, w.c, w.one), True, v.same(w.c, w.was)))


def _gate_claim(kernel: v.Functions) -> v.Claim:
    """`served` is the client that the gate let in last, and the vectors are those from which it chose."""

    def choose(o: Algebra, w: v.World) -> v.Written:
        return {"c": w.c_now, "queued": w.queued_now, "served": kernel.choose(o, w.c_now, w.queued_now)}

    def lowest(o: Algebra, w: v.World) -> v.Term:
        found = v.spread(o.exists(w.served), w.c) & (w.c >= o.pick(w.c, w.served, 0))
        return v.implies(o, w.queued, found)

    well_chosen = (
        v.Clause("who is served waits", lambda o, w: o.pick(w.queued, w.served, True)),
        v.Clause("no waiting client has less, and one is served if there is one", lowest),
    )
    return v.one_step(
        V_GATE,
        "counter gate, its choice",
        {"c": v.Kind.VECTOR, "queued": v.Kind.MASK, "served": v.Kind.POINT},
        v.Event("choose", choose, {"c_now": v.Kind.VECTOR, "queued_now": v.Kind.MASK}, kernels=(kernel.choose,)),
        well_chosen,
    )


def _lift_claim(kernel: v.Functions) -> v.Claim:
    """`one` came back while `queued` waited and `last` was the last who had left."""

    def lift(o: Algebra, w: v.World) -> v.Written:
        floor = kernel.lifted_to(o, w.floor, w.c, w.queued, w.p, w.last)
        return {"was": w.c, "c": kernel.lift(o, w.c, w.queued, w.p, w.last), "floor": floor, "one": w.p}

    def no_further(o: Algebra, w: v.World) -> v.Term:
        return v.implies(o, w.queued, o.pick(w.c, w.one, 0) <= o.maximum(o.pick(w.was, w.one, 0), w.was))

    def to_the_last(o: Algebra, w: v.World) -> v.Term:
        own, left = o.pick(w.was, w.one, 0), o.pick(w.was, w.last, 0)
        return o.where(w.idle & o.exists(w.one), v.same(o.pick(w.c, w.one, 0), o.maximum(own, left)), True)

    def to_the_floor(o: Algebra, w: v.World) -> v.Term:
        own, floor = o.pick(w.was, w.one, 0), o.pick(w.floor, w.one, 0)
        return o.where(o.exists(w.one), v.same(o.pick(w.c, w.one, 0), o.maximum(own, floor)), True)

    def floor_no_higher(o: Algebra, w: v.World) -> v.Term:
        return v.implies(o, w.queued & v.spread(o.exists(w.one), w.c), o.pick(w.floor, w.one, 0) <= w.was)

    clauses = (
        _OTHERS,
        v.Clause("a lift ends at the floor", to_the_floor),
        v.Clause("which is no higher than a waiting client", floor_no_higher),
        v.Clause("no counter is lowered", lambda o, w: w.c >= w.was),
        v.Clause("no further than to a waiting client", no_further),
        v.Clause("to the last that left if none waits", to_the_last),
    )
    return v.one_step(
        V_LIFT,
        "counter gate, its lift",
        {**_COUNTERS, "floor": v.Kind.VECTOR},
        v.Event("lift", lift, {"p": v.Kind.POINT}, kernels=(kernel.level, kernel.lift, kernel.lifted_to)),
        clauses,
        parameters={"queued": v.Kind.MASK, "last": v.Kind.POINT},
        derived={"idle": lambda o, w: o.none(w.queued)},
    )


def _refund_claim(kernel: v.Functions) -> v.Claim:
    """`amount` was given back to `one`, whose last lift ended at its `floor`."""

    def refund(o: Algebra, w: v.World) -> v.Written:
        return {"was": w.c, "c": kernel.refund(o, w.c, w.floor, w.p, w.x), "one": w.p, "amount": w.x}

    def given_back(o: Algebra, w: v.World) -> v.Term:
        left = o.maximum(o.pick(w.was, w.one, 0) - w.amount, o.pick(w.floor, w.one, 0))
        return o.where(o.exists(w.one), v.same(o.pick(w.c, w.one, 0), left), True)

    clauses = (
        _OTHERS,
        v.Clause("by the amount, or down to the floor", given_back),
        v.Clause("no counter is raised", lambda o, w: v.implies(o, w.floor <= w.was, w.c <= w.was)),
        v.Clause("by no more than the amount", lambda o, w: w.was - w.c <= o.maximum(w.amount, 0)),
    )
    return v.one_step(
        V_REFUND,
        "counter gate, its refund",
        {**_COUNTERS, "amount": v.Kind.SCALAR},
        v.Event(
            "refund",
            refund,
            {"p": v.Kind.POINT, "x": v.Kind.SCALAR},
            (v.Need(lambda o, w: w.x >= 0),),
            (kernel.refund,),
        ),
        clauses,
        parameters={"floor": v.Kind.VECTOR},
    )


def _sums_claim(kernel: v.Functions) -> v.Claim:
    """`c` are the counters after `t` and then `u` were charged, `at_once` after both together."""

    def decode(o: Algebra, w: v.World) -> v.Written:
        return {"c": kernel.decode(o, kernel.decode(o, w.c, w.t), w.u), "at_once": kernel.decode(o, w.c, w.t + w.u)}

    charges = {"t": v.Kind.VECTOR, "u": v.Kind.VECTOR}
    return v.one_step(
        V_SUMS,
        "counter gate, outputs in sums",
        {"c": v.Kind.VECTOR, "at_once": v.Kind.VECTOR},
        v.Event("decode twice", decode, charges, kernels=(kernel.decode,)),
        (v.Clause("it comes to the same", lambda o, w: v.same(w.c, w.at_once)),),
    )


def gap_claim(kernel: v.Functions) -> v.Claim:
    """V-4.4, about an interval in which f and g wait."""
    both_wait = v.Clause("f and g waited", both_waited)
    return v.Claim(
        V_44,
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


def claims(kernel: v.Functions = counter) -> tuple[v.Claim, ...]:
    """The theorems about the gate whose kernel functions are `kernel`'s."""
    served = (v.Clause("c >= c0 + W", lambda o, w: w.c >= w.c0 + w.W),)
    return (
        v.Claim(V_43, counter_system(kernel), NOTHING_YET, INVARIANT, (CLOSE,)),
        v.Claim(V_DEBT, counter_system(kernel), INTERVAL_STARTS, served, served),
        gap_claim(kernel),
        _gate_claim(kernel),
        _lift_claim(kernel),
        _refund_claim(kernel),
        _sums_claim(kernel),
    )
