"""Two clients that wait anywhere, whose credit is on lease: L-gap, L-lag, L-weighted, L-faults, L-progress, L-renewal.

For every number of clients, and of holders, since a holder appears only in what it has: `d` are the balances of the one
that acts, whatever they are, and `D` those of all holders together.  T = q + D is the truth.  Its range is shown for
one client at all holders (`lease_holders`) and given here; `E` is (n - 1) S.  `told` are the clients of which the
account knows that they wait.
"""

from typing import Any

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import QUANTUM_POSITIVE, WAITS_SAID, Theorem
from fairsched.policies.gates.leased import L_FAULTS, L_GAP, L_LAG, L_PROGRESS, L_RENEWAL, L_WEIGHTED
from fairsched.verify import events
from fairsched.verify import logic as v
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.proofs.kernels import deficit
from fairsched.verify.proofs.kernels import leased as leases

_BALANCES = {"d": v.VECTOR}
_ONE = {**_BALANCES, "p": v.POINT, "x": v.SCALAR}


# --- what may happen --------------------------------------------------------------------------------------------------


def _queues() -> tuple[v.Event, ...]:
    def arrive(o: Algebra, w: v.World) -> v.Written:
        return {"queued": o.put(w.queued, w.p, True), "known": o.put(w.known, w.p, True)}

    def leave(o: Algebra, w: v.World) -> v.Written:
        return {"queued": o.put(w.queued, w.p, False)}

    point = {"p": v.POINT}
    return v.Event("arrive", arrive, point), v.Event("leave the queue", leave, point)


def _charges(gate: v.Functions) -> tuple[v.Event, ...]:
    """A holder charges its own balances, and gives back; what it may charge is in the range of T."""

    def admit(o: Algebra, w: v.World) -> v.Written:
        charged = gate.admit(o, w.d, w.p, w.x)
        return {"D": w.D + (charged - w.d), "R": o.bump(w.R, w.p, w.r), "W": o.bump(w.W, w.p, w.x)}

    def decode(o: Algebra, w: v.World) -> v.Written:
        return {"D": w.D + (gate.decode(o, w.d, w.c) - w.d), "R": w.R - w.c, "W": w.W + w.c}

    def correct(o: Algebra, w: v.World) -> v.Written:
        charged = gate.admit(o, w.d, w.p, w.x)
        return {"D": w.D + (charged - w.d), "R": o.bump(w.R, w.p, -w.x), "W": o.bump(w.W, w.p, w.x)}

    def refund(o: Algebra, w: v.World) -> v.Written:
        given = gate.refund(o, w.d, w.p, w.x)
        return {"D": w.D + (given - w.d), "W": o.bump(w.W, w.p, -w.x)}

    def choose(o: Algebra, w: v.World) -> v.Written:
        return {"p": gate.choose(o, w.d, w.here, w.ready, w.score)}

    chosen = {"here": v.MASK, "ready": v.MASK, "score": v.VECTOR}
    return (
        v.Event(
            "admit",
            admit,
            {**_BALANCES, **chosen, "x": v.SCALAR, "r": v.SCALAR},
            kernels=(gate.in_credit, gate.choose, gate.admit),
            decides=choose,
            happens=lambda o, w: o.exists(w.p),
        ),
        v.Event("decode", decode, {**_BALANCES, "c": v.VECTOR}, kernels=(gate.decode,)),
        v.Event("correct", correct, _ONE, kernels=(gate.admit,)),
        v.Event("finish", lambda o, w: {"R": o.bump(w.R, w.p, -w.x)}, {"p": v.POINT, "x": v.SCALAR}),
        v.Event("refund", refund, _ONE, kernels=(gate.refund,)),
    )


def _lends(o: Algebra, w: v.World, kernel: v.Functions) -> v.Written:
    pool = kernel.pooled(o, w.q, w.d)
    after = kernel.leased(o, pool, w.d, w.asks, w.S)
    return {"q": kernel.left_over(o, pool, after), "D": w.D + (after - w.d)}


def _gives(o: Algebra, w: v.World, kernel: v.Functions, gate: v.Functions) -> v.Written:
    pool = kernel.pooled(o, w.q, w.d)
    given = gate.refill(o, pool, w.told, w.known, w.Q) - pool
    return {"q": w.q + given, "P": w.P + given}


def _told(client: str) -> v.Need:
    def told(o: Algebra, w: v.World) -> v.Term:
        p = getattr(w, client)
        return v.implies(o, o.pick(w.queued, p, False), o.pick(w.told, p, True))

    return v.Need(told, WAITS_SAID)


def _renewals(kernel: v.Functions, gate: v.Functions, backlogged: tuple[str, ...]) -> tuple[v.Event, ...]:
    moving = (kernel.pooled, kernel.leased, kernel.left_over)
    needs = (
        v.Need(lambda o, w: v.implies(o, w.told, w.known)),
        *(need for client in backlogged for need in (events.waits(client), _told(client))),
    )
    return (
        v.Event(
            "a holder's balances are moved",
            lambda o, w: _lends(o, w, kernel),
            {**_BALANCES, "asks": v.MASK},
            (),
            moving,
        ),
        v.Event(
            "a round",
            lambda o, w: _gives(o, w, kernel, gate),
            {**_BALANCES, "told": v.MASK},
            needs,
            (kernel.pooled, gate.refill_due, gate.refill),
            happens=lambda o, w: gate.refill_due(o, kernel.pooled(o, w.q, w.d), w.told),
        ),
        v.Event(
            "a holder leaves",
            lambda o, w: {"q": kernel.pooled(o, w.q, w.d), "D": w.D - w.d},
            _BALANCES,
            kernels=(kernel.pooled,),
        ),
    )


def _faults() -> tuple[v.Event, ...]:
    def changes(o: Algebra, w: v.World, made: v.Term, taken: v.Term) -> v.Written:
        return {"M": w.M + o.maximum(made, 0), "X": w.X + o.maximum(taken, 0)}

    return (
        v.Event("a holder ends", lambda o, w: {"D": w.D - w.d, **changes(o, w, -w.d, w.d)}, _BALANCES),
        v.Event(
            "the account loses writes", lambda o, w: {"q": w.z, **changes(o, w, w.z - w.q, w.q - w.z)}, {"z": v.VECTOR}
        ),
    )


def lease_system(
    backlogged: tuple[str, ...], kernel: v.Functions = leases, gate: v.Functions = deficit, *, faults: bool = False
) -> v.System:
    """The shared account over an interval in which `backlogged` wait anywhere."""
    counted = ("M", "X") if faults else ()
    before = ("M0", "X0") if faults else ()
    vectors = ("Q", "U", "back", "q0", *before)
    return v.System(
        "account of several holders",
        {**v.vectors(*vectors), **v.scalars(*"SE"), "f": v.POINT, "g": v.POINT},
        (
            v.Need(lambda o, w: w.Q >= 1, QUANTUM_POSITIVE),
            v.Need(lambda o, w: (w.U >= 1) & (w.back >= 0)),
            v.Need(lambda o, w: (w.S >= 0) & (w.E >= 0) & o.exists(w.f) & o.exists(w.g)),
            *((v.Need(lambda o, w: (w.M0 >= 0) & (w.X0 >= 0)),) if faults else ()),
        ),
        {**v.vectors("q", "D", "R", "W", "P", *counted), **dict.fromkeys(("queued", "known"), v.MASK)},
        (*_queues(), *_charges(gate), *_renewals(kernel, gate, backlogged), *(_faults() if faults else ())),
        derived={"T": lambda o, w: w.q + w.D},
    )


# --- what holds -------------------------------------------------------------------------------------------------------


def _range(faults: bool) -> tuple[v.Clause, ...]:
    """L-most and L-least, now and where the interval began."""

    def made(w: v.World) -> Any:
        return w.M0 + w.M if faults else 0

    def taken(w: v.World) -> Any:
        return w.X0 + w.X if faults else 0

    def began(o: Algebra, w: v.World) -> v.Term:
        more, less = (w.M0, w.X0) if faults else (0, 0)
        return (w.q0 >= 1 - w.U - less) & (w.q0 <= w.Q + w.E + w.back + more)

    return (
        v.Clause("1 - U - X <= T - R, R >= 0", lambda o, w: (w.q + w.D - w.R >= 1 - w.U - taken(w)) & (w.R >= 0)),
        v.Clause("T <= Q + (n - 1) S + B + M", lambda o, w: w.q + w.D <= w.Q + w.E + w.back + made(w)),
        v.Clause("T was in range", began),
    )


def _counts(faults: bool) -> tuple[v.Clause, ...]:
    names = ("W", "P", "M", "X") if faults else ("W", "P")
    return (
        *(v.Clause(f"{name} = 0", lambda o, w, name=name: v.same(getattr(w, name), 0)) for name in names),
        v.Clause("T = T0", lambda o, w: v.same(w.q + w.D, w.q0)),
    )


def _balanced(faults: bool) -> v.Clause:
    def holds(o: Algebra, w: v.World) -> v.Term:
        return v.same(w.W + w.q + w.D, w.q0 + w.P + (w.M - w.X if faults else 0))

    return v.Clause("W + T = T0 + P + M - X" if faults else "W + T = T0 + P", holds)


def _sides(o: Algebra, w: v.World) -> tuple[Any, Any]:
    """Q + U + E - 1 + B of f and of g."""
    quanta, charges, backs = (
        deficit_proofs.both(o, w, "Q"),
        deficit_proofs.both(o, w, "U"),
        deficit_proofs.both(o, w, "back"),
    )
    of_f, of_g = (q + u + w.E - 1 + b for q, u, b in zip(quanta, charges, backs, strict=True))
    return of_f, of_g


def _ahead(o: Algebra, w: v.World) -> tuple[v.Term, v.Term]:
    """W_f - W_g, and the bound."""
    service_f, service_g = deficit_proofs.both(o, w, "W")
    side_f, side_g = _sides(o, w)
    return service_f - service_g, side_f + side_g


def _within(o: Algebra, w: v.World) -> v.Term:
    ahead, bound = _ahead(o, w)
    return (ahead <= bound) & (-ahead <= bound)


def _lags(o: Algebra, w: v.World) -> v.Term:
    ahead, bound = _ahead(o, w)
    return -ahead <= bound


def _weighted(o: Algebra, w: v.World) -> v.Term:
    (service_f, service_g), (quantum_f, quantum_g) = deficit_proofs.both(o, w, "W"), deficit_proofs.both(o, w, "Q")
    side_f, side_g = _sides(o, w)
    bound = v.product(quantum_g, side_f) + v.product(quantum_f, side_g)
    ahead = v.product(quantum_g, service_f) - v.product(quantum_f, service_g)
    return (ahead <= bound) & (-ahead <= bound)


def _with_faults(o: Algebra, w: v.World) -> v.Term:
    ahead, bound = _ahead(o, w)
    (made_f, made_g), (taken_f, taken_g) = deficit_proofs.both(o, w, "M"), deficit_proofs.both(o, w, "X")
    before = sum((part for name in ("M0", "X0") for part in deficit_proofs.both(o, w, name)), start=0)
    return (ahead <= bound + made_f + taken_g + before) & (-ahead <= bound + made_g + taken_f + before)


def _interval(
    theorem: Theorem, system: v.System, joint: v.Clause, conclusion: v.Clause, *, faults: bool = False
) -> v.Claim:
    kept = (v.Clause("X, M >= 0", lambda o, w: (w.M >= 0) & (w.X >= 0)),) if faults else ()
    within = _range(faults)
    return v.Claim(
        theorem, system, (*within, *_counts(faults)), (_balanced(faults), joint, *kept), (conclusion,), within
    )


def _interval_claims(kernel: v.Functions, gate: v.Functions) -> tuple[v.Claim, ...]:
    pair, alone = lease_system(("f", "g"), kernel, gate), lease_system(("f",), kernel, gate)
    bound = "2(Q + U + (n - 1) S - 1) + B_f + B_g"
    equal = v.Clause("P_f = P_g", deficit_proofs.same_credit)
    return (
        _interval(L_GAP, pair.with_laws(deficit_proofs.EQUAL), equal, v.Clause(f"|W_f - W_g| <= {bound}", _within)),
        _interval(
            L_LAG,
            alone.with_laws(deficit_proofs.EQUAL),
            v.Clause("P_f >= P_g", deficit_proofs.at_least_as_much_credit),
            v.Clause(f"W_g - W_f <= {bound}", _lags),
        ),
        _interval(
            L_WEIGHTED,
            pair,
            v.Clause("P_f Q_g = P_g Q_f", deficit_proofs.same_rounds),
            v.Clause("|Q_g W_f - Q_f W_g| <= bound", _weighted),
        ),
        _interval(
            L_FAULTS,
            lease_system(("f", "g"), kernel, gate, faults=True).with_laws(deficit_proofs.EQUAL),
            equal,
            v.Clause(f"W_f - W_g <= {bound} + M_f + X_g + M0 + X0 of both, and of g and f", _with_faults),
            faults=True,
        ),
    )


# --- what a renewal is ------------------------------------------------------------------------------------------------


def _renewal_claim(kernel: v.Functions, gate: v.Functions) -> v.Claim:
    """`pool` goes round by round to `y`, which the shipped form makes of it at once; `d` is what is owed meanwhile."""

    def none(o: Algebra, w: v.World) -> v.Term:
        return v.spread(False, w.pool)

    def a_round(o: Algebra, w: v.World) -> v.Written:
        pool = gate.refill(o, w.pool, w.told, w.known, w.Q)
        return {"pool": pool, "d": kernel.leased(o, pool, w.d, none(o, w), w.S)}

    def at_once(o: Algebra, w: v.World) -> v.Term:
        return kernel.topped_up(o, w.pool, w.told, w.asks, w.known, w.Q)

    returned = v.Clause("d is what is owed", lambda o, w: v.same(w.d, kernel.leased(o, w.pool, w.had, none(o, w), w.S)))
    reached = v.Clause("y is to be reached", lambda o, w: v.same(w.y, w.at_once))
    return v.Claim(
        L_RENEWAL,
        v.System(
            "a renewal",
            {**v.vectors("Q", "had"), **dict.fromkeys(("told", "asks", "known"), v.MASK), "S": v.SCALAR},
            (
                v.Need(lambda o, w: w.Q >= 1),
                v.Need(lambda o, w: v.implies(o, w.told, w.known)),
                v.Need(lambda o, w: w.S >= 0),
            ),
            v.vectors("pool", "d", "y"),
            (
                v.Event(
                    "a round, and what is owed is paid",
                    a_round,
                    needs=(lambda o, w: w.due,),
                    kernels=(gate.refill_due, gate.refill, kernel.leased),
                ),
            ),
            derived={
                "due": lambda o, w: gate.refill_due(o, w.pool, w.told) & o.any(w.asks),
                "at_once": at_once,
                "lent": lambda o, w: kernel.leased(o, w.y, w.d, w.asks, w.S),
                "as_shipped": lambda o, w: kernel.leased(o, w.y, w.had, w.asks, w.S),
            },
            hints=(
                v.Clause(
                    "-(pool + Q) // Q = -pool // Q - 1", lambda o, w: v.same(-(w.pool + w.Q) // w.Q, -w.pool // w.Q - 1)
                ),
            ),
            closed_forms=True,
            opaque=True,
        ),
        (returned, reached),
        (returned, reached),
        (
            v.Clause(
                "y = pool once no round is due", lambda o, w: o.where(v.spread(w.due, w.y), True, v.same(w.y, w.pool))
            ),
            v.Clause(
                "what is lent then is the same",
                lambda o, w: o.where(v.spread(w.due, w.y), True, v.same(w.lent, w.as_shipped)),
            ),
        ),
    )


def _progress_claim(kernel: v.Functions, gate: v.Functions) -> v.Claim:
    """The fields are the account and the holder's balances after its renewal, and who waited where: `asks` are those
    that wait here, and some that wait nowhere."""

    def renew(o: Algebra, w: v.World) -> v.Written:
        pool = kernel.topped_up(o, kernel.pooled(o, w.q_now, w.d_now), w.told_now, w.asks_now, w.known, w.Q)
        after = kernel.leased(o, pool, w.d_now, w.asks_now, w.S)
        rest = kernel.left_over(o, pool, after)
        return {"q": rest, "d": after, "pool": pool, "told": w.told_now, "asks": w.asks_now}

    derived = {
        "waits": lambda o, w: o.any(w.asks & w.told),
        "served": lambda o, w: o.any(w.told & o.where(w.asks, w.d > 0, w.q > 0)),
    }
    served = v.Clause(
        "if clients wait here, one that waits has credit where it waits", lambda o, w: o.where(w.waits, w.served, True)
    )
    lent = v.Clause(
        "a client that asks has credit here if the account had any",
        lambda o, w: o.where(w.asks & (w.pool > 0), w.d > 0, True),
    )
    none = v.Clause("a client that does not ask has no credit here", lambda o, w: o.where(w.asks, True, w.d <= 0))
    paid = v.Clause(
        "a client that owes here has no credit in the account", lambda o, w: o.where(w.q > 0, w.d >= 0, True)
    )
    masks, now = ("told", "asks"), ("told_now", "asks_now")
    return v.one_step(
        L_PROGRESS,
        "a renewal, and who may be served after it",
        {**v.vectors("q", "d", "pool"), **dict.fromkeys(masks, v.MASK)},
        v.Event(
            "renew",
            renew,
            {**v.vectors("q_now", "d_now"), **dict.fromkeys(now, v.MASK)},
            (lambda o, w: v.implies(o, w.told_now, w.known),),
            (kernel.pooled, kernel.leased, kernel.left_over),
        ),
        (served, lent, none, paid),
        parameters={"Q": v.VECTOR, "known": v.MASK, "S": v.SCALAR},
        laws=(lambda o, w: w.Q >= 1, lambda o, w: w.S >= 1),
        derived=derived,
        closed_forms=True,
    )


def claims(kernel: v.Functions = leases, gate: v.Functions = deficit) -> tuple[v.Claim, ...]:
    """The claims about the kernel functions of `kernel`, and of `gate` as holders run them."""
    return (*_interval_claims(kernel, gate), _renewal_claim(kernel, gate), _progress_claim(kernel, gate))
