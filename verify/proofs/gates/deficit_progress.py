"""The deficit gate serves a client, serves each in time, and gives up locality rarely: D-wc, D-A.2 and -time, D-price;
and D-first, by which it is soon done.

They rest on the system and the invariants of `fairsched.verify.proofs.gates.deficit`, with ghosts of their
own: `G` one quantum for each round of refill since anything else happened, `N` admissions of each client in the
interval or one quantum for each time it ran out of credit, and `R0` what was reserved at the interval's start.
Counting in quanta keeps everything linear: k rounds are k Q.
"""

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, EQUAL_QUANTA, NOTHING_REFUNDED, Theorem
from fairsched.verify import logic as v
from fairsched.verify.proofs.gates.counter_waits import in_time
from fairsched.verify.proofs.gates.deficit import (
    BALANCE,
    CREDIT,
    INTERVAL_STARTS,
    NONE_BACK,
    NOTHING_YET,
    RANGE,
    both,
    deficit_system,
)
from fairsched.verify.proofs.kernels import deficit


def without_refunds(of: v.System) -> v.System:
    """The system in which something is given back only if that assumption is dropped: B = 0."""

    def kept(event: v.Event) -> v.Event:
        gives = event.name == "refund"
        return attrs.evolve(event, excluded_by=NOTHING_REFUNDED) if gives else event

    return attrs.evolve(of, events=tuple(map(kept, of.events))).with_laws(NONE_BACK)


# --- the first in line ----------------------------------------------------------------------------------------------


def _first_claim(kernel: v.Functions) -> v.Claim:
    """`first` has the best score of all that wait, and `goes` is what the gate says of it before it looks at others."""

    def ask(o: Algebra, w: v.World) -> v.Written:
        first = o.argmax(w.score_now, w.queued_now)
        return {
            **{name: getattr(w, f"{name}_now") for name in vectors},
            "first": first,
            "goes": kernel.goes_first(o, w.q_now, w.ready_now, first),
            "due": kernel.refill_due(o, w.q_now, w.queued_now),
        }

    def best(o: Algebra, w: v.World) -> v.Term:
        may_go = v.spread(w.goes, w.score) & w.queued & w.ready & (w.q > 0)
        return v.implies(o, may_go, w.score <= o.pick(w.score, w.first, 0))

    vectors = {"q": v.Kind.VECTOR, "score": v.Kind.VECTOR, "queued": v.Kind.MASK, "ready": v.Kind.MASK}
    clauses = (
        v.Clause(
            "it waits, has credit and is ready, and only where that holds it goes",
            lambda o, w: (
                o.where(w.goes, o.pick(w.queued & w.ready & (w.q > 0), w.first, False), True)
                & o.where(o.pick(w.queued & w.ready & (w.q > 0), w.first, False), w.goes, True)
            ),
        ),
        v.Clause("no refill is due", lambda o, w: o.where(w.goes & w.due, False, True)),
        v.Clause("none of those that may go scores better", best),
    )
    waits = v.Need(lambda o, w: v.implies(o, w.ready_now, w.queued_now))
    facts = {f"{name}_now": kind for name, kind in vectors.items()}
    event = v.Event("ask", ask, facts, (waits,), (kernel.goes_first, kernel.refill_due))
    fields = {**vectors, "first": v.Kind.POINT, "goes": v.Kind.FLAG, "due": v.Kind.FLAG}
    return v.one_step(deficit.D_FIRST, "deficit gate, the first in line", fields, event, clauses)


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
        fields={**alone.fields, "G": v.Kind.VECTOR},
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
            v.Clause("a round more is due only if G_i <= U_i - 1", _few_rounds),
            v.Clause("if none is due and a client waits, one is let in", _served),
        ),
    )


def _few_rounds(o: Algebra, w: v.World) -> v.Term:
    """After k rounds G = k Q, so one more is due only if k <= floor((U_i - 1) / Q_i)."""
    return v.implies(o, w.queued & w.due, w.G <= w.U - 1)


def _served(o: Algebra, w: v.World) -> v.Term:
    return o.where(w.waits, o.where(w.due, True, w.served), True)


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
        parameters={**one.parameters, "R0": v.Kind.VECTOR},
        events=tuple(map(kept_out, one.events)),
        derived={"debt": _debt},
    )


_EQUAL = v.Need(lambda o, w: v.same(w.Q, o.pick(w.Q, w.f, 1)), EQUAL_QUANTA)


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


def latency_in_time(theorem: Theorem, kernel: v.Functions = deficit) -> v.Claim:
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


def _starvation(kernel: v.Functions) -> v.Claim:
    """What is left of the bound, 2Q + U_g - 1 + D - N_g, is a ranking: never below 0, it falls with each admission."""
    of = without_refunds(_while_f_waits(kernel).with_laws(_EQUAL))
    at_least_one = v.Need(lambda o, w: w.x >= 1, CHARGES_AT_LEAST_ONE)

    def counted(event: v.Event) -> v.Event:
        if not event.name.startswith("admit"):
            return event
        return v.and_also(event.with_needs(at_least_one), N=lambda o, w, _: o.bump(w.N, w.p, 1))

    return v.Claim(
        deficit.D_STARVATION,
        attrs.evolve(of, fields={**of.fields, "N": v.Kind.VECTOR}, events=tuple(map(counted, of.events))),
        (*_WAITING_STARTS, v.Clause("N = 0", lambda o, w: v.same(w.N, 0))),
        (*_WAITING, v.Clause("N <= W", lambda o, w: w.N <= w.W)),
        (v.Clause("N_g <= 2Q + U_g - 1 + D", lambda o, w: o.put(w.N, w.f, 0) <= _most(o, w)),),
    )


# --- price ----------------------------------------------------------------------------------------------------------


def _price(kernel: v.Functions) -> v.Claim:
    """`N` grows by Q with every event that takes a client's credit from above 0 to 0 or below."""
    alone = without_refunds(deficit_system(kernel))

    def counted(event: v.Event) -> v.Event:
        return v.and_also(event, N=lambda o, w, after: _lost(o, w, after.get("q", w.q)))

    return v.Claim(
        deficit.D_PRICE,
        attrs.evolve(alone, fields={**alone.fields, "N": v.Kind.VECTOR}, events=tuple(map(counted, alone.events))),
        (*CREDIT, v.Clause("W = 0", lambda o, w: v.same(w.W, 0)), v.Clause("N = 0", lambda o, w: v.same(w.N, 0))),
        (
            *CREDIT,
            v.Clause("N >= 0, W >= 0", lambda o, w: (w.N >= 0) & (w.W >= 0)),
            v.Clause("in credit: W + q >= N + 1", lambda o, w: v.implies(o, w.q > 0, w.W + w.q >= w.N + 1)),
            v.Clause("without: W + q >= N - Q + 1 once N >= 1", _out_of_credit),
        ),
        (v.Clause("N - Q <= W - 1 once N >= 1", lambda o, w: v.implies(o, w.N >= 1, w.N - w.Q <= w.W - 1)),),
    )


def _lost(o: Algebra, w: v.World, q: v.Term) -> v.Term:
    return o.where((w.q > 0) & (q <= 0), w.N + w.Q, w.N)


def _out_of_credit(o: Algebra, w: v.World) -> v.Term:
    return v.implies(o, (w.q <= 0) & (w.N >= 1), w.W + w.q >= w.N - w.Q + 1)


def claims(kernel: v.Functions = deficit) -> tuple[v.Claim, ...]:
    """The claims about the kernel functions of `kernel`."""
    return (
        _first_claim(kernel),
        _work_conserved(kernel),
        _latency(kernel),
        latency_in_time(deficit.D_A2_TIME, kernel),
        _weighted_latency(kernel),
        _starvation(kernel),
        _price(kernel),
    )
