"""The deficit gate's theorems for any number of clients: D-range, D-A.1, D-4.1, D-4.2 and D-weighted.

The invariant that makes everything inductive is about the *pessimistic* deficit q - R, where R is what may still be
charged to a client for requests in flight without another look at the gate: the output tokens reserved for it, and
extend tokens that were planned as cached and may yet have to be computed.  The queue is the environment's: clients
start and stop to wait as they like, so the theorems hold for every arrival pattern, order and batching rule.

Over an interval [t1, t2), `q0` is the deficit at t1, `W` the service since t1 (what was charged, less what was given
back) and `P` the credit that refills gave since t1.  Every event keeps W + q = q0 + P, for every client.

`K` is what was charged for requests in flight and will be given back, at most `back` (B in the statements).  A client
is refilled as if it owed that, so a refund may leave it more than a quantum: q + K <= Q + B.
"""

from typing import Any

import attrs

from fairsched.model import theorem as th
from fairsched.model.algebra import Algebra
from fairsched.policies.gates import DeficitGate
from fairsched.verify import events
from fairsched.verify import logic as v
from fairsched.verify.proofs.kernels import deficit

# --- what may happen ------------------------------------------------------------------------------------------------

PART_COMES_BACK = (
    v.Need(lambda o, w: (w.k >= 0) & (w.k <= w.x)),
    v.Need(lambda o, w: o.pick(w.K, w.p, 0) + w.k <= o.pick(w.back, w.p, w.k)),
)
"""Of a charge x: k of it will be given back, and B is the most that is so at one time."""
NONE_BACK = v.Need(lambda o, w: w.back <= 0, th.NOTHING_REFUNDED)
"""Nothing is ever given back: B = 0."""
_FITS = (events.NOT_NEGATIVE, *PART_COMES_BACK, events.MORE, events.FITS)


def _credited(event: v.Event, kernel: v.Functions, backlogged: tuple[str, ...]) -> v.Event:
    """A refill gives credit, while the clients `backlogged` wait."""
    if event.name != "refill":
        return event
    event = v.and_also(event, P=lambda o, w, after: w.P + (after["q"] - w.q))
    due = attrs.evolve(event, happens=lambda o, w: kernel.refill_due(o, w.q, w.queued))
    return due.with_needs(*map(events.waits, backlogged))


# What is said of the deficits of clients, and of a tree's nodes: quanta, the most charged after an admission (U), the
# most given back of what is charged at one time (back), f, g; deficits, waiting clients, clients seen, reserves (R),
# what will be given back (K), and since the interval began service (W) and credit (P).
PARAMETERS = {**dict.fromkeys(("Q", "U", "back", "q0"), v.Kind.VECTOR), "f": v.Kind.POINT, "g": v.Kind.POINT}
LAWS = (
    v.Need(lambda o, w: w.Q >= 1, th.QUANTUM_POSITIVE),
    v.Need(lambda o, w: (w.U >= 1) & (w.back >= 0)),
    v.Need(lambda o, w: o.exists(w.f) & o.exists(w.g)),
)
FIELDS = {"q": v.Kind.VECTOR, "queued": v.Kind.MASK, "known": v.Kind.MASK, **dict.fromkeys("RKWP", v.Kind.VECTOR)}
EQUAL = v.Need(lambda o, w: v.same(*both(o, w, "Q")), th.EQUAL_QUANTA)


def deficit_system(
    kernel: v.Functions = deficit,
    *,
    backlogged: tuple[str, ...] = (),
    fits: tuple[v.Need, ...] = _FITS,
    reserved: tuple[v.Need, ...] = events.RESERVED,
    decoded: tuple[v.Need, ...] = events.DECODED,
) -> v.System:
    """The gate whose kernel functions are `kernel`'s, over an interval in which `backlogged` ("f", "g") wait; needs are
    those of `gate_events`."""
    of = events.declared(DeficitGate, kernel, quantum="Q")
    printed = events.Otherwise(
        th.REJOIN_KEEPS_DEBT, "as printed, at zero", {**of.kernels["join"], "q": kernel.rejoin_printed}
    )
    every = events.gate_events(of, fits, settled=PART_COMES_BACK, reserved=reserved, decoded=decoded, otherwise=printed)
    return v.System(
        "deficit gate", PARAMETERS, LAWS, FIELDS, tuple(_credited(event, kernel, backlogged) for event in every)
    )


def settles_at_more(kernel: v.Functions) -> v.Event:
    """Return that more is computed than planned, of which nothing was reserved."""
    return v.Event(
        "settle at more",
        lambda o, w: {"q": kernel.admit(o, w.q, w.p, w.x), "W": o.bump(w.W, w.p, w.x)},
        events.ONE,
        (events.EXISTS, events.NOT_NEGATIVE),
        (kernel.admit,),
        excluded_by=th.EXTEND_AS_PLANNED,
    )


# --- what holds -----------------------------------------------------------------------------------------------------

RANGE = (
    v.Clause("1 - U <= q - R", lambda o, w: w.q - w.R >= 1 - w.U),
    v.Clause("q + K <= Q + B", lambda o, w: w.q + w.K <= w.Q + w.back),
    v.Clause("0 <= K <= B", lambda o, w: (w.K >= 0) & (w.back >= w.K)),
    v.Clause("R >= 0", lambda o, w: w.R >= 0),
    v.Clause("waiting clients are known", lambda o, w: v.implies(o, w.queued, w.known)),
)
CREDIT = RANGE[1:3]
"""What a client may have at most."""
KNOWN = RANGE[-1]
IN_RANGE = v.Clause("1 - U <= q <= Q + B", lambda o, w: (w.q >= 1 - w.U) & (w.q <= w.Q + w.back))
NOTHING_YET = (
    v.Clause("no client waits or runs", lambda o, w: v.implies(o, w.queued, False) & v.same(w.R, 0) & v.same(w.K, 0)),
    v.Clause("q = 0", lambda o, w: v.same(w.q, 0)),
)
NOTHING_COUNTED = (
    v.Clause("W = 0, P = 0", lambda o, w: v.same(w.W, 0) & v.same(w.P, 0)),
    v.Clause("q = q0", lambda o, w: v.same(w.q, w.q0)),
)
INTERVAL_STARTS = (*RANGE, *NOTHING_COUNTED)
BALANCED = v.Clause("W + q = q0 + P", lambda o, w: v.same(w.W + w.q, w.q0 + w.P))
BALANCE = (
    *RANGE,
    v.Clause("1 - U <= q0 <= Q + B", lambda o, w: (w.q0 >= 1 - w.U) & (w.q0 <= w.Q + w.back)),
    BALANCED,
)


def both(o: Algebra, w: v.World, name: str) -> tuple[Any, Any]:
    """The values of f and of g."""
    return o.pick(getattr(w, name), w.f, 0), o.pick(getattr(w, name), w.g, 0)


def same_credit(o: Algebra, w: v.World) -> v.Term:
    """f and g got the same credit."""
    return v.same(*both(o, w, "P"))


def at_least_as_much_credit(o: Algebra, w: v.World) -> v.Term:
    """f got no less credit than g."""
    credit_f, credit_g = both(o, w, "P")
    return credit_f >= credit_g


def same_rounds(o: Algebra, w: v.World) -> v.Term:
    """f and g got credit in the proportion of their quanta."""
    (credit_f, credit_g), (quantum_f, quantum_g) = both(o, w, "P"), both(o, w, "Q")
    return v.same(v.product(credit_f, quantum_g), v.product(credit_g, quantum_f))


def ahead_at_most(ahead: Any, quantum_f: Any, charge_f: Any, quantum_g: Any, charge_g: Any) -> Any:
    """One of f and g is ahead by at most the sum of Q + U - 1: of scalars, or of vectors over workers."""
    return ahead <= deficit.gap_cost(quantum_f, charge_f, quantum_g, charge_g)


def apart_at_most(ahead: Any, *constants: Any) -> Any:
    """Each of f and g is ahead by at most that."""
    return ahead_at_most(ahead, *constants) & ahead_at_most(-ahead, *constants)


def _constants(o: Algebra, w: v.World) -> tuple[Any, Any, Any, Any]:
    """Q + B and U of both: a refund may leave a client B above its quantum."""
    most_f, most_g = (quantum + back for quantum, back in zip(both(o, w, "Q"), both(o, w, "back"), strict=True))
    charge_f, charge_g = both(o, w, "U")
    return most_f, charge_f, most_g, charge_g


def both_backs(o: Algebra, w: v.World) -> v.Term:
    """B_f + B_g."""
    back_f, back_g = both(o, w, "back")
    return back_f + back_g


def no_less_than_g(o: Algebra, w: v.World) -> v.Term:
    """The service of g exceeds that of f by at most the sum of Q + U - 1 + B."""
    service_f, service_g = both(o, w, "W")
    return ahead_at_most(service_g - service_f, *_constants(o, w))


def gap_within(o: Algebra, w: v.World) -> v.Term:
    """The services of f and g differ by at most the sum of Q + U - 1 + B."""
    service_f, service_g = both(o, w, "W")
    return apart_at_most(service_g - service_f, *_constants(o, w))


def weighted_gap_within(o: Algebra, w: v.World) -> v.Term:
    """The services of f and g in units of their quanta differ by at most the sum of 1 + (U - 1) / Q."""
    (service_f, service_g), (quantum_f, quantum_g) = both(o, w, "W"), both(o, w, "Q")
    (charge_f, charge_g), (back_f, back_g) = both(o, w, "U"), both(o, w, "back")
    most_f, most_g = quantum_f + charge_f - 1 + back_f, quantum_g + charge_g - 1 + back_g
    bound = v.product(quantum_g, most_f) + v.product(quantum_f, most_g)
    gap = v.product(quantum_g, service_f) - v.product(quantum_f, service_g)
    return (gap <= bound) & (-gap <= bound)


def _net(o: Algebra, w: v.World) -> v.Term:
    most = w.Q + w.U - 1 + w.back
    return (most >= w.P - w.W) & (most >= w.W - w.P)


# --- either rejoin rule -----------------------------------------------------------------------------------------------

_LESS_THAN_U = v.Clause("R <= U - 1", lambda o, w: w.R <= w.U - 1)
_CHARGED = v.Need(lambda o, w: w.x >= 1, th.CHARGES_AT_LEAST_ONE)


def _either_rule(kernel: v.Functions, backlogged: tuple[str, ...] = ()) -> v.System:
    """Who comes back, by an arrival or a preemption, keeps its deficit or starts at zero; clients in `backlogged`
    always wait, so none of them comes back."""
    fixed = deficit_system(kernel, backlogged=backlogged)
    stay = tuple(map(events.waits, backlogged))

    def widened(event: v.Event) -> v.Event:
        if event.excluded_by is th.REJOIN_KEEPS_DEBT:
            return attrs.evolve(event, excluded_by=None).with_needs(*stay)
        return event.with_needs(_CHARGED) if event.name.startswith("admit") else event

    return attrs.evolve(fixed, events=tuple(map(widened, fixed.events)))


def _began(o: Algebra, w: v.World) -> v.Term:
    (from_f, from_g), (charge_f, charge_g) = both(o, w, "q0"), both(o, w, "U")
    (quantum_f, quantum_g), (back_f, back_g) = both(o, w, "Q"), both(o, w, "back")
    most = (from_f <= quantum_f + back_f) & (from_g <= quantum_g + back_g)
    return (from_f >= 1 - charge_f) & (from_g >= 1 - charge_g) & most


def _balanced(o: Algebra, w: v.World) -> v.Term:
    (service_f, service_g), (now_f, now_g) = both(o, w, "W"), both(o, w, "q")
    (credit_f, credit_g), (from_f, from_g) = both(o, w, "P"), both(o, w, "q0")
    return v.same(service_f + now_f, from_f + credit_f) & v.same(service_g + now_g, from_g + credit_g)


def _rejoin_claims(kernel: v.Functions) -> tuple[v.Claim, ...]:
    kept = (*RANGE, _LESS_THAN_U)
    return (
        v.Claim(deficit.D_RANGE_REJOIN, _either_rule(kernel), NOTHING_YET, kept, (IN_RANGE,)),
        v.Claim(
            deficit.D_41_REJOIN,
            _either_rule(kernel, ("f", "g")).with_laws(EQUAL),
            (*INTERVAL_STARTS, _LESS_THAN_U),
            (
                *kept,
                v.Clause("1 - U <= q0 <= Q + B for f and g", _began),
                v.Clause("W + q = q0 + P for f and g", _balanced),
                v.Clause("P_f = P_g", same_credit),
            ),
            (v.Clause("|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g", gap_within),),
        ),
    )


def claims(kernel: v.Functions = deficit) -> tuple[v.Claim, ...]:
    """The theorems about the gate whose kernel functions are `kernel`'s."""
    alone, one = deficit_system(kernel), deficit_system(kernel, backlogged=("f",))
    pair = deficit_system(kernel, backlogged=("f", "g"))

    def over_interval(theorem: th.Theorem, of: v.System, joint: v.Clause, *conclusions: v.Clause) -> v.Claim:
        return v.Claim(theorem, of, INTERVAL_STARTS, (*BALANCE, joint), conclusions)

    return (
        v.Claim(deficit.D_RANGE, alone, NOTHING_YET, RANGE, (IN_RANGE,)),
        v.Claim(deficit.D_A1, alone, INTERVAL_STARTS, BALANCE, (v.Clause("|P - W| <= Q + U - 1 + B", _net),)),
        over_interval(
            deficit.D_41,
            pair.with_laws(EQUAL),
            v.Clause("P_f = P_g", same_credit),
            v.Clause("|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g", gap_within),
        ),
        over_interval(
            deficit.D_42,
            one.with_laws(EQUAL),
            v.Clause("P_f >= P_g", at_least_as_much_credit),
            v.Clause("W_g - W_f <= 2(Q + U - 1) + B_f + B_g", no_less_than_g),
        ),
        over_interval(
            deficit.D_WEIGHTED,
            pair,
            v.Clause("P_f Q_g = P_g Q_f", same_rounds),
            v.Clause("|Q_g W_f - Q_f W_g| <= bound", weighted_gap_within),
        ),
        *_rejoin_claims(kernel),
    )
