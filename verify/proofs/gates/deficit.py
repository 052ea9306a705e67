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

NONE_BACK = v.Need(lambda o, w: w.back <= 0, th.NOTHING_REFUNDED)
"""Nothing is ever given back: B = 0."""
_FITS = (events.NOT_NEGATIVE, *events.PART_COMES_BACK, events.MORE, events.FITS)


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
PARAMETERS = {**dict.fromkeys(("Q", "U", "back", "q0"), v.VECTOR), "f": v.POINT, "g": v.POINT}
LAWS = (
    v.Need(lambda o, w: w.Q >= 1, th.QUANTUM_POSITIVE),
    v.Need(lambda o, w: (w.U >= 1) & (w.back >= 0)),
    v.Need(lambda o, w: o.exists(w.f) & o.exists(w.g)),
)
FIELDS = {"q": v.VECTOR, "queued": v.MASK, "known": v.MASK, **dict.fromkeys("RKWP", v.VECTOR)}
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
    every = events.gate_events(
        of, fits, settled=events.PART_COMES_BACK, reserved=reserved, decoded=decoded, otherwise=printed
    )
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


_NET = v.Clause("|P - W| <= Q + U - 1 + B", _net)

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


# --- progress ---------------------------------------------------------------------------------------------------------
# The deficit gate serves a client, serves each in time, and gives up locality rarely (D-wc, D-A.2, D-price), with
# ghosts: `G` one quantum for each round of refill since anything else happened, `N` admissions of each client in the
# interval or one quantum for each time it ran out of credit, and `R0` what was reserved at the interval's start.
# Counting in quanta keeps everything linear: k rounds are k Q.


def without_refunds(of: v.System) -> v.System:
    """The system in which something is given back only if that assumption is dropped: B = 0."""

    def kept(event: v.Event) -> v.Event:
        return attrs.evolve(event, excluded_by=th.NOTHING_REFUNDED) if event.name == "refund" else event

    return attrs.evolve(of, events=tuple(map(kept, of.events))).with_laws(NONE_BACK)


# --- work conservation ----------------------------------------------------------------------------------------------


def _work_conserved(kernel: v.Functions) -> v.Claim:
    """Rounds in a row: every other event starts the count again."""
    alone = deficit_system(kernel)

    def counted(event: v.Event) -> v.Event:
        if event.name == "refill":
            due = v.Need(lambda o, w: kernel.refill_due(o, w.q, w.queued))
            return v.and_also(event.with_needs(due), G=lambda o, w, _: w.G + w.Q)
        return v.and_also(event, G=lambda o, w, _: w.G - w.G)

    of = attrs.evolve(
        alone,
        fields={**alone.fields, "G": v.VECTOR},
        events=tuple(map(counted, alone.events)),
        derived={
            "due": lambda o, w: kernel.refill_due(o, w.q, w.queued),
            "waits": lambda o, w: o.any(w.queued),
            "served": lambda o, w: o.exists(kernel.choose(o, w.q, w.queued, w.queued, w.q)),
        },
    )
    raised = v.Clause(
        "the rounds so far raised waiting clients by G", lambda o, w: v.implies(o, w.queued, w.q - w.G >= 1 - w.U)
    )
    return v.Claim(
        deficit.D_WC,
        of,
        (*NOTHING_YET, v.Clause("G = 0", lambda o, w: v.same(w.G, 0))),
        (*RANGE, raised),
        (
            v.Clause(
                "a round more is due only if G_i <= U_i - 1",
                lambda o, w: v.implies(o, w.queued & w.due, w.G <= w.U - 1),
            ),
            v.Clause(
                "if none is due and a client waits, one is let in",
                lambda o, w: o.where(w.waits, o.where(w.due, True, w.served), True),
            ),
        ),
    )


# --- latency --------------------------------------------------------------------------------------------------------


def _debt(o: Algebra, w: v.World) -> v.Term:
    """D: what f owed at t1 beyond its deficit, with what was reserved for it."""
    return o.maximum(o.pick(w.R0, w.f, 0) - o.pick(w.q0, w.f, 0), 0)


def _most(o: Algebra, w: v.World) -> v.Term:
    """2Q + U - 1 + D + B: most that a client is served while f waits."""
    return w.Q + w.Q + w.U - 1 + _debt(o, w) + w.back


def _while_f_waits(kernel: v.Functions) -> v.System:
    """The gate over an interval in which f waits and is not let in."""
    one = deficit_system(kernel, backlogged=("f",))
    someone_else = v.Need(lambda o, w: o.where(o.pick(v.only(o, w.q, w.f), w.p, False), False, True))

    def kept_out(event: v.Event) -> v.Event:
        return event.with_needs(someone_else) if event.name.startswith("admit") else event

    return attrs.evolve(
        one,
        parameters={**one.parameters, "R0": v.VECTOR},
        events=tuple(map(kept_out, one.events)),
        derived={"debt": _debt},
    )


_EQUAL = v.Need(lambda o, w: v.same(w.Q, o.pick(w.Q, w.f, 1)), th.EQUAL_QUANTA)


def _own_service(o: Algebra, w: v.World) -> v.Term:
    """f is served only what was reserved for it at the start."""
    return o.pick(w.W, w.f, 0) + o.pick(w.R, w.f, 0) <= o.pick(w.R0, w.f, 0)


_WAITING_STARTS = (*INTERVAL_STARTS, v.Clause("R = R0", lambda o, w: v.same(w.R, w.R0)))
_DEBT = v.Clause("D <= U_f - 1", lambda o, w: w.debt <= o.pick(w.U, w.f, 0) - 1)
_WAITING_F = (
    *BALANCE,
    _DEBT,
    v.Clause("W_f + R_f <= R0_f", _own_service),
    v.Clause("P_f <= Q_f + D", lambda o, w: o.pick(w.P, w.f, 0) <= o.pick(w.Q, w.f, 0) + w.debt),
)
_WAITING = (*_WAITING_F, v.Clause("P_g <= P_f", lambda o, w: o.pick(w.P, w.f, 0) >= w.P))


def _latency(kernel: v.Functions) -> v.Claim:
    return v.Claim(
        deficit.D_A2,
        _while_f_waits(kernel).with_laws(_EQUAL),
        _WAITING_STARTS,
        _WAITING,
        (
            v.Clause("W_g <= 2Q + U_g - 1 + D + B_g", lambda o, w: o.put(w.W, w.f, 0) <= _most(o, w)),
            v.Clause("W_f <= R_f(t1)", _own_service),
            _DEBT,
        ),
    )


def in_time(theorem: th.Theorem, waits: v.Claim, most: v.Formula) -> v.Claim:
    """The claim about a wait with a clock: `owed` is a times the time that was last read, and `B` the sum of what each
    client may be charged meanwhile, `most`."""
    read = v.Event(
        "the clock is read",
        lambda o, w: {"owed": w.a_t},
        {"a_t": v.SCALAR},
        (
            # What B stands for is asked where it matters: sums over all clients are dear.
            v.Need(lambda o, w: v.same(w.B, v.total(o, most(o, w)))),
            v.Need(lambda o, w: w.a_t <= v.total(o, w.W), th.CAPACITY_FLOOR),
        ),
    )
    of = waits.system
    bounded = v.Clause("owed <= B once the clock was read", lambda o, w: o.where(w.owed >= 1, w.owed <= w.B, True))
    return v.Claim(
        theorem,
        attrs.evolve(
            of,
            parameters={**of.parameters, "B": v.SCALAR},
            fields={**of.fields, "owed": v.SCALAR},
            events=(*of.events, read),
        ),
        (*waits.start, v.Clause("owed = 0", lambda o, w: v.same(w.owed, 0))),
        (*waits.invariants, bounded),
        (bounded,),
    )


def latency_in_time(theorem: th.Theorem, kernel: v.Functions = deficit) -> v.Claim:
    """D-A.2 with a clock, at one worker: f is charged what was reserved for it, each other client what D-A.2 says."""

    def most(o: Algebra, w: v.World) -> v.Term:
        return o.put(_most(o, w), w.f, o.pick(w.R0, w.f, 0))

    return in_time(theorem, _latency(kernel), most)


def _no_more_rounds(o: Algebra, w: v.World) -> v.Term:
    """g was topped up no more often than f, who is topped up by every refill."""
    (credit_f, credit_g), (quantum_f, quantum_g) = both(o, w, "P"), both(o, w, "Q")
    return v.product(credit_g, quantum_f) <= v.product(credit_f, quantum_g)


def _weighted_service(o: Algebra, w: v.World) -> v.Term:
    """Q_f W_g <= Q_f (2 Q_g + U_g - 1 + B_g) + Q_g D."""
    (quantum_f, quantum_g), (_, charge_g), (_, service_g) = both(o, w, "Q"), both(o, w, "U"), both(o, w, "W")
    _, back_g = both(o, w, "back")
    most = v.product(quantum_f, quantum_g + quantum_g + charge_g - 1 + back_g) + v.product(quantum_g, w.debt)
    return v.product(quantum_f, service_g) <= most


def _weighted_latency(kernel: v.Functions) -> v.Claim:
    apart = v.Need(lambda o, w: o.where(o.pick(v.only(o, w.q, w.f), w.g, False), False, True))
    return v.Claim(
        deficit.D_A2_WEIGHTED,
        _while_f_waits(kernel).with_laws(apart),
        _WAITING_STARTS,
        (*_WAITING_F, v.Clause("P_g Q_f <= P_f Q_g", _no_more_rounds)),
        (v.Clause("Q_f W_g <= Q_f (2 Q_g + U_g - 1 + B_g) + Q_g D", _weighted_service),),
    )


# --- lateness: what the gate adds to an order -------------------------------------------------------------------------


def _before_r(kernel: v.Functions) -> v.System:
    """The gate while r of f waits, whose score in a decision is `rank`.  `A` is what f's own requests that were let in
    may be charged; `N` counts requests that went before r and rank behind it, and after the last of these clients had
    `H`, with what their requests in flight may still be charged, and had been given `C`."""
    one = deficit_system(kernel, backlogged=("f",))

    def of_f(o: Algebra, w: v.World) -> v.Term:
        return o.pick(v.only(o, w.q, w.f), w.p, False)

    def seen(event: v.Event) -> v.Event:
        if not event.name.startswith("admit"):
            return event
        chosen = event.name == "admit"

        def passes(o: Algebra, w: v.World) -> v.Term:
            return w.rank > o.pick(w.score, w.p, 0) if chosen else o.where(of_f(o, w), False, True)

        if chosen:
            next_goes = v.Need(lambda o, w: o.pick(w.ready & (w.score >= w.rank), w.f, True), th.NEXT_MAY_GO)
            event = attrs.evolve(event, facts={**event.facts, "rank": v.SCALAR}).with_needs(
                events.waits("f"), next_goes
            )
        return v.and_also(
            event,
            A=lambda o, w, _: o.where(of_f(o, w), w.A + w.x + w.r, w.A),
            N=lambda o, w, _: o.where(passes(o, w), w.N + 1, w.N),
            H=lambda o, w, after: o.where(v.spread(passes(o, w), w.H), after["W"] + after["R"], w.H),
            C=lambda o, w, _: o.where(v.spread(passes(o, w), w.C), w.P, w.C),
        )

    return attrs.evolve(
        one,
        parameters={**one.parameters, "R0": v.VECTOR},
        fields={**one.fields, **v.vectors("H", "C"), **v.scalars("A", "N")},
        events=tuple(map(seen, one.events)),
        derived={"debt": _debt},
    )


def _late(kernel: v.Functions) -> v.Claim:
    def owed(o: Algebra, w: v.World) -> v.Term:
        return o.pick(w.R0, w.f, 0) - o.pick(w.q0, w.f, 0) + w.A

    def no_more_rounds(o: Algebra, w: v.World) -> v.Term:
        (credit_f, credit_g), (quantum_f, quantum_g) = both(o, w, "C"), both(o, w, "Q")
        return v.product(credit_g, quantum_f) <= v.product(credit_f, quantum_g)

    def within(o: Algebra, w: v.World) -> v.Term:
        (quantum_f, quantum_g), (_, charge_g), (_, had_g) = both(o, w, "Q"), both(o, w, "U"), both(o, w, "H")
        _, back_g = both(o, w, "back")
        most = v.product(quantum_f, quantum_g + charge_g - 1 + back_g) + v.product(quantum_g, w.debt + w.A)
        return v.product(quantum_f, had_g) <= most

    passed = v.Clause("passed once: R_f - q_f + A >= 0", lambda o, w: o.where(w.N >= 1, owed(o, w) >= 0, w.N >= 0))
    apart = v.Need(lambda o, w: o.where(o.pick(v.only(o, w.q, w.f), w.g, False), False, True))
    nothing = v.Clause(
        "H = C = A = N = 0", lambda o, w: v.same(w.H, 0) & v.same(w.C, 0) & v.same(w.A, 0) & v.same(w.N, 0)
    )
    return v.Claim(
        deficit.D_LATE,
        _before_r(kernel).with_laws(apart),
        (*_WAITING_STARTS, nothing),
        (
            *BALANCE,
            v.Clause("W_f + R_f <= R0_f + A", lambda o, w: o.pick(w.W + w.R - w.R0, w.f, 0) <= w.A),
            v.Clause("A >= 0, P_f >= 0", lambda o, w: (w.A >= 0) & (o.pick(w.P, w.f, 0) >= 0)),
            v.Clause("P_g Q_f <= P_f Q_g", _no_more_rounds),
            passed,
            v.Clause("H <= Q + U - 1 + B + C", lambda o, w: w.Q + w.U - 1 + w.back + w.C >= w.H),
            v.Clause("C_f <= D + A", lambda o, w: o.pick(w.C, w.f, 0) <= w.debt + w.A),
            v.Clause("C_g Q_f <= C_f Q_g", no_more_rounds),
        ),
        (passed, v.Clause("Q_f H_g <= Q_f (Q_g + U_g - 1 + B_g) + Q_g (D + A)", within)),
    )


def _starvation(kernel: v.Functions) -> v.Claim:
    """What is left of the bound, 2Q + U_g - 1 + D - N_g, is a ranking: never below 0, it falls with each admission."""
    of = without_refunds(_while_f_waits(kernel).with_laws(_EQUAL))
    at_least_one = v.Need(lambda o, w: w.x >= 1, th.CHARGES_AT_LEAST_ONE)

    def counted(event: v.Event) -> v.Event:
        if not event.name.startswith("admit"):
            return event
        return v.and_also(event.with_needs(at_least_one), N=lambda o, w, _: o.bump(w.N, w.p, 1))

    return v.Claim(
        deficit.D_STARVATION,
        attrs.evolve(of, fields={**of.fields, "N": v.VECTOR}, events=tuple(map(counted, of.events))),
        (*_WAITING_STARTS, v.Clause("N = 0", lambda o, w: v.same(w.N, 0))),
        (*_WAITING, v.Clause("N <= W", lambda o, w: w.N <= w.W)),
        (v.Clause("N_g <= 2Q + U_g - 1 + D", lambda o, w: o.put(w.N, w.f, 0) <= _most(o, w)),),
    )


def _passed(kernel: v.Functions) -> v.Claim:
    """A request of f waits for room, and others go: f has credit before each event."""
    in_credit = v.Need(lambda o, w: o.pick(w.q, w.f, 0) > 0)
    waits = _while_f_waits(kernel)
    none_given = v.Clause("P = 0", lambda o, w: v.same(w.P, 0))
    # A refill that is not due changes nothing.
    asked = tuple(attrs.evolve(event, happens=None).with_needs(in_credit) for event in waits.events)
    return v.Claim(
        deficit.D_PASS,
        attrs.evolve(waits, events=asked),
        INTERVAL_STARTS,
        (*BALANCE, none_given),
        (
            none_given,
            v.Clause("W_g <= Q_g + U_g - 1 + B_g", lambda o, w: w.Q + w.U - 1 + w.back >= w.W),
        ),
    )


# --- price ----------------------------------------------------------------------------------------------------------


def _price(kernel: v.Functions) -> v.Claim:
    """`N` grows by Q with every event that takes a client's credit from above 0 to 0 or below."""
    alone = without_refunds(deficit_system(kernel))

    def counted(event: v.Event) -> v.Event:
        return v.and_also(event, N=lambda o, w, after: _lost(o, w, after.get("q", w.q)))

    return v.Claim(
        deficit.D_PRICE,
        attrs.evolve(alone, fields={**alone.fields, "N": v.VECTOR}, events=tuple(map(counted, alone.events))),
        (*CREDIT, v.Clause("W = 0", lambda o, w: v.same(w.W, 0)), v.Clause("N = 0", lambda o, w: v.same(w.N, 0))),
        (
            *CREDIT,
            v.Clause("N >= 0, W >= 0", lambda o, w: (w.N >= 0) & (w.W >= 0)),
            v.Clause("in credit: W + q >= N + 1", lambda o, w: v.implies(o, w.q > 0, w.W + w.q >= w.N + 1)),
            v.Clause(
                "without: W + q >= N - Q + 1 once N >= 1",
                lambda o, w: v.implies(o, (w.q <= 0) & (w.N >= 1), w.W + w.q >= w.N - w.Q + 1),
            ),
        ),
        (v.Clause("N - Q <= W - 1 once N >= 1", lambda o, w: v.implies(o, w.N >= 1, w.N - w.Q <= w.W - 1)),),
    )


def _lost(o: Algebra, w: v.World, q: v.Term) -> v.Term:
    return o.where((w.q > 0) & (q <= 0), w.N + w.Q, w.N)


# --- weights and quanta change ----------------------------------------------------------------------------------------
# Quanta are a field and change by an event: credit above a smaller quantum is cut, `X` counts it, and the books balance
# beside it.


def _quanta_change(kernel: v.Functions, *needs: v.Need) -> v.Event:
    def configured(o: Algebra, w: v.World) -> v.Written:
        return {
            "q": kernel.reconfigure(o, w.q, w.now),
            "Q": w.now,
            "Q_max": o.maximum(w.Q_max, w.now),
            "X": w.X + o.maximum(w.q - w.now, 0),
        }

    positive = v.Need(lambda o, w: w.now >= 1, th.QUANTUM_POSITIVE)
    return v.Event("configured", configured, {"now": v.VECTOR}, (positive, *needs), (kernel.reconfigure,))


_CHANGE_STARTS = (
    v.Clause("W = 0, P = 0, X = 0", lambda o, w: v.same(w.W, 0) & v.same(w.P, 0) & v.same(w.X, 0)),
    v.Clause("q = q0", lambda o, w: v.same(w.q, w.q0)),
)
_CHANGE_BALANCE = (
    v.Clause("1 - U <= q0 <= Q_max + B", lambda o, w: (w.q0 >= 1 - w.U) & (w.q0 <= w.Q_max + w.back)),
    v.Clause("W + q + X = q0 + P", lambda o, w: v.same(w.W + w.q + w.X, w.q0 + w.P)),
)
_CHANGE_WITHIN = (
    *RANGE,
    v.Clause("R <= U", lambda o, w: w.R <= w.U),
    v.Clause("1 <= Q <= Q_max", lambda o, w: (w.Q >= 1) & (w.Q_max >= w.Q)),
)


def _changing(fixed: v.System, change: v.Event) -> v.System:
    """The gate in which quanta are a field and `change` sets them."""
    vectors = v.vectors("Q", "Q_max", "X")
    return v.System(
        "deficit gate, quanta change",
        parameters={name: kind for name, kind in fixed.parameters.items() if name != "Q"},
        laws=(lambda o, w: w.U >= 1, lambda o, w: o.exists(w.f) & o.exists(w.g)),
        fields={**fixed.fields, **vectors},
        events=(*fixed.events, change),
    )


def _change_claim(kernel: v.Functions) -> v.Claim:
    return v.Claim(
        deficit.D_CHANGE,
        _changing(deficit_system(kernel), _quanta_change(kernel)),
        (*_CHANGE_WITHIN, *_CHANGE_STARTS),
        (*_CHANGE_WITHIN, *_CHANGE_BALANCE),
        (IN_RANGE, v.Clause("|P - X - W| <= Q_max + U - 1 + B", _changed_net)),
    )


def _change_gap_claim(kernel: v.Functions) -> v.Claim:
    """Both wait, and have one quantum, whatever that is; they may have been cut differently."""
    equal = (
        v.Clause("Q_f = Q_g", lambda o, w: v.same(*both(o, w, "Q"))),
        v.Clause("Q_max_f = Q_max_g", lambda o, w: v.same(*both(o, w, "Q_max"))),
    )
    same_now = v.Need(lambda o, w: v.same(*both(o, w, "now")), th.EQUAL_QUANTA)
    return v.Claim(
        deficit.D_CHANGE_GAP,
        _changing(deficit_system(kernel, backlogged=("f", "g")), _quanta_change(kernel, same_now)),
        (*_CHANGE_WITHIN, *equal, *_CHANGE_STARTS),
        (
            *(*_CHANGE_WITHIN, *equal, *_CHANGE_BALANCE),
            v.Clause("X >= 0", lambda o, w: w.X >= 0),
            v.Clause("P_f = P_g", same_credit),
        ),
        (v.Clause("W_g - W_f <= 2(Q_max + U - 1) + B_f + B_g + X_f, and the same of f", _change_gap_within),),
    )


def _changed_net(o: Algebra, w: v.World) -> v.Term:
    net = w.P - w.X - w.W
    most = w.Q_max + w.U - 1 + w.back
    return (net <= most) & (-net <= most)


def _change_gap_within(o: Algebra, w: v.World) -> v.Term:
    (service_f, service_g), (cut_f, cut_g) = both(o, w, "W"), both(o, w, "X")
    (quantum_f, quantum_g), (charge_f, charge_g) = both(o, w, "Q_max"), both(o, w, "U")
    bound = deficit.gap_cost(quantum_f, charge_f, quantum_g, charge_g) + both_backs(o, w)
    return (service_g - service_f <= bound + cut_f) & (service_f - service_g <= bound + cut_g)


def interval_claims(
    theorems: tuple[th.Theorem, th.Theorem, th.Theorem],
    one: v.System,
    pair: v.System,
    starts: tuple[v.Clause, ...],
    balance: tuple[v.Clause, ...],
) -> tuple[v.Claim, ...]:
    """Return the claims about f and g that both wait, f that waits beside any g, and both with any quanta."""
    gap, lag, weighted = theorems
    within = v.Clause("|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g", gap_within)
    behind = v.Clause("W_g - W_f <= 2(Q + U - 1) + B_f + B_g", no_less_than_g)
    weighed = v.Clause("|Q_g W_f - Q_f W_g| <= bound", weighted_gap_within)
    # With `_NET` said, the second solver multiplies two inequalities and no more.
    rows = (
        (gap, pair.with_laws(EQUAL), (v.Clause("P_f = P_g", same_credit),), within),
        (lag, one.with_laws(EQUAL), (v.Clause("P_f >= P_g", at_least_as_much_credit),), behind),
        (weighted, pair, (_NET, v.Clause("P_f Q_g = P_g Q_f", same_rounds)), weighed),
    )
    return tuple(v.Claim(theorem, of, starts, (*balance, *joint), (clause,)) for theorem, of, joint, clause in rows)


def claims(kernel: v.Functions = deficit) -> tuple[v.Claim, ...]:
    """The theorems about the gate whose kernel functions are `kernel`'s."""
    alone, one, pair = (deficit_system(kernel, backlogged=clients) for clients in ((), ("f",), ("f", "g")))
    theorems = (deficit.D_41, deficit.D_42, deficit.D_WEIGHTED)
    return (
        v.Claim(deficit.D_RANGE, alone, NOTHING_YET, RANGE, (IN_RANGE,)),
        v.Claim(deficit.D_A1, alone, INTERVAL_STARTS, BALANCE, (_NET,)),
        *interval_claims(theorems, one, pair, INTERVAL_STARTS, BALANCE),
        *_rejoin_claims(kernel),
        _work_conserved(kernel),
        _latency(kernel),
        latency_in_time(deficit.D_A2_TIME, kernel),
        _weighted_latency(kernel),
        _late(kernel),
        _starvation(kernel),
        _passed(kernel),
        _price(kernel),
        _change_claim(kernel),
        _change_gap_claim(kernel),
    )


def kernel_claims(kernel: v.Functions = deficit) -> tuple[v.Claim, ...]:
    """Return the same and what is said of the fast paths."""
    return (*claims(kernel), *events.fast_claims(DeficitGate, kernel, (KNOWN,)))
