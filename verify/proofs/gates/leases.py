"""Two clients that wait anywhere, whose credit is on lease: L-gap, L-lag, L-weighted, L-faults, L-progress, L-renewal.

For every number of clients, and of holders, since a holder appears only in what it has: `d` are the balances of the one
that acts, whatever they are, and `D` those of all holders together.  T = q + D is the truth.  Its range is shown for
one client at all holders (below) and given here; `E` is (n - 1) S.  `told` are the clients of which the
account knows that they wait.
"""

from functools import partial
from typing import Any

import attrs

from fairsched.model import theorem as th
from fairsched.model.algebra import Algebra
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

    def charged(o: Algebra, w: v.World, more: v.Term) -> v.Written:
        after = gate.admit(o, w.d, w.p, w.x)
        return {"D": w.D + (after - w.d), "R": o.bump(w.R, w.p, more), "W": o.bump(w.W, w.p, w.x)}

    def decode(o: Algebra, w: v.World) -> v.Written:
        return {"D": w.D + (gate.decode(o, w.d, w.c) - w.d), "R": w.R - w.c, "W": w.W + w.c}

    def refund(o: Algebra, w: v.World) -> v.Written:
        given = gate.refund(o, w.d, w.p, w.x)
        return {"D": w.D + (given - w.d), "W": o.bump(w.W, w.p, -w.x)}

    def choose(o: Algebra, w: v.World) -> v.Written:
        return {"p": gate.choose(o, w.d, w.here, w.ready, w.score)}

    chosen = {"here": v.MASK, "ready": v.MASK, "score": v.VECTOR}
    return (
        v.Event(
            "admit",
            lambda o, w: charged(o, w, w.r),
            {**_BALANCES, **chosen, "x": v.SCALAR, "r": v.SCALAR},
            kernels=(gate.in_credit, gate.choose, gate.admit),
            decides=choose,
            happens=lambda o, w: o.exists(w.p),
        ),
        v.Event("decode", decode, {**_BALANCES, "c": v.VECTOR}, kernels=(gate.decode,)),
        v.Event("correct", lambda o, w: charged(o, w, -w.x), _ONE, kernels=(gate.admit,)),
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

    return v.Need(told, th.WAITS_SAID)


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
            v.Need(lambda o, w: w.Q >= 1, th.QUANTUM_POSITIVE),
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
    theorem: th.Theorem, system: v.System, joint: v.Clause, conclusion: v.Clause, *, faults: bool = False
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
        _interval(
            leases.L_GAP, pair.with_laws(deficit_proofs.EQUAL), equal, v.Clause(f"|W_f - W_g| <= {bound}", _within)
        ),
        _interval(
            leases.L_LAG,
            alone.with_laws(deficit_proofs.EQUAL),
            v.Clause("P_f >= P_g", deficit_proofs.at_least_as_much_credit),
            v.Clause(f"W_g - W_f <= {bound}", lambda o, w: -_ahead(o, w)[0] <= _ahead(o, w)[1]),
        ),
        _interval(
            leases.L_WEIGHTED,
            pair,
            v.Clause("P_f Q_g = P_g Q_f", deficit_proofs.same_rounds),
            v.Clause("|Q_g W_f - Q_f W_g| <= bound", _weighted),
        ),
        _interval(
            leases.L_FAULTS,
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
        leases.L_RENEWAL,
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
    """`q` and `d` are the account and the holder's balances after its renewal, `pool` what there was to lend; `asks`
    are those that wait here, and some that wait nowhere."""

    def renew(o: Algebra, w: v.World) -> v.Written:
        pool = kernel.topped_up(o, kernel.pooled(o, w.had, w.owed), w.told, w.asks, w.known, w.Q)
        after = kernel.leased(o, pool, w.owed, w.asks, w.S)
        return {"q": kernel.left_over(o, pool, after), "d": after, "pool": pool}

    return v.one_step(
        leases.L_PROGRESS,
        "a renewal, and who may be served after it",
        v.vectors("q", "d", "pool"),
        v.Event("renew", renew, kernels=(kernel.pooled, kernel.leased, kernel.left_over)),
        (
            v.Clause(
                "if clients wait here, one that waits has credit where it waits",
                lambda o, w: o.where(w.waits, w.served, True),
            ),
            v.Clause(
                "a client that asks has credit here if the account had any",
                lambda o, w: o.where(w.asks & (w.pool > 0), w.d > 0, True),
            ),
            v.Clause("a client that does not ask has no credit here", lambda o, w: o.where(w.asks, True, w.d <= 0)),
            v.Clause(
                "a client that owes here has no credit in the account", lambda o, w: o.where(w.q > 0, w.d >= 0, True)
            ),
        ),
        parameters={
            **v.vectors("Q", "had", "owed"),
            **dict.fromkeys(("told", "asks", "known"), v.MASK),
            "S": v.SCALAR,
        },
        laws=(lambda o, w: w.Q >= 1, lambda o, w: w.S >= 1, lambda o, w: v.implies(o, w.told, w.known)),
        derived={
            "waits": lambda o, w: o.any(w.asks & w.told),
            "served": lambda o, w: o.any(w.told & o.where(w.asks, w.d > 0, w.q > 0)),
        },
        closed_forms=True,
    )


# --- one client at all holders ----------------------------------------------------------------------------------------
# Vectors are over *holders*, any number of them, and all is about one client: `d` its balance at each, `R` what each
# may still charge it, `K` what each will give back, `q` what the account has of it.  A holder that is not there has
# none of it all, so that holders come and go.
#
# A renewal is return, rounds and lending (L-renewal).  `pools` is what each holder would find in the account, were it
# to renew: only that of the one that does counts.  Whether a round is due is for all clients that wait to say, so any
# mask `told` stands for them.

_HOLDER_RESERVED = (events.EXISTS, *events.RESERVED)
_CHARGED = (events.EXISTS, events.NOT_NEGATIVE, events.was_charged_at("p"))


# --- what a holder does -----------------------------------------------------------------------------------------------


def _admissions(gate: v.Functions) -> tuple[v.Event, v.Event]:
    """A holder that has a balance lets the client in: x is charged, k of it will come back, r may be charged later."""

    def admit(o: Algebra, w: v.World) -> v.Written:
        return {"d": gate.admit(o, w.d, w.p, w.x), "R": o.bump(w.R, w.p, w.r), "K": o.bump(w.K, w.p, w.k)}

    amounts = {"p": v.POINT, **v.scalars(*"xrk")}
    needs = (
        *(events.EXISTS, events.NOT_NEGATIVE),
        v.Need(lambda o, w: (w.r >= 0) & (w.k >= 0) & (w.k <= w.x)),
        v.Need(lambda o, w: w.x >= 1, th.CHARGES_AT_LEAST_ONE),
        v.Need(lambda o, w: o.pick(w.K, w.p, 0) + w.k <= o.pick(w.back, w.p, 0)),
        v.Need(lambda o, w: events.charge_fits(w.x, o.pick(w.R, w.p, 0), w.r, o.pick(w.U, w.p, 0)), th.MEM_RESERVE),
    )
    in_credit = v.Need(lambda o, w: o.pick(gate.in_credit(o, w.d, v.only(o, w.d, w.p)), w.p, False))
    return (
        v.Event("admit", admit, amounts, (*needs, in_credit), (gate.in_credit, gate.admit)),
        v.Event("admit past the gate", admit, amounts, needs, (gate.admit,), excluded_by=th.GATE_RESPECTED),
    )


def _running(gate: v.Functions) -> tuple[v.Event, ...]:
    def decode(o: Algebra, w: v.World) -> v.Written:
        return {"d": gate.decode(o, w.d, w.c), "R": w.R - w.c}

    def finish(o: Algebra, w: v.World) -> v.Written:
        return {"R": o.bump(w.R, w.p, -w.x)}

    def refund(o: Algebra, w: v.World) -> v.Written:
        return {"d": gate.refund(o, w.d, w.p, w.x), "K": o.bump(w.K, w.p, -w.x)}

    return (
        v.Event(
            "holders charge what was reserved",
            decode,
            {"c": v.VECTOR},
            (lambda o, w: w.c >= 0, v.Need(lambda o, w: w.c <= w.R, th.MEM_RESERVE)),
            (gate.decode,),
        ),
        v.Event("finish", finish, events.ONE, _HOLDER_RESERVED),
        v.Event(
            "refund",
            refund,
            events.ONE,
            _CHARGED,
            (gate.refund,),
        ),
    )


# --- renewals ---------------------------------------------------------------------------------------------------------


def _moved(kernel: v.Functions, o: Algebra, w: v.World, asks: v.Term) -> v.Written:
    pools = kernel.pooled(o, w.q, w.d)
    after = kernel.leased(o, pools, w.d, asks, w.S)
    rest = kernel.left_over(o, pools, after)
    return {"q": o.pick(rest, w.p, w.q), "d": o.put(w.d, w.p, o.pick(after, w.p, 0))}


def _holder_renewals(kernel: v.Functions, gate: v.Functions) -> tuple[v.Event, ...]:
    def returned(o: Algebra, w: v.World) -> v.Written:
        return _moved(kernel, o, w, v.spread(False, w.d))

    def lent(o: Algebra, w: v.World) -> v.Written:
        return _moved(kernel, o, w, v.only(o, w.d, w.p))

    def a_round(o: Algebra, w: v.World) -> v.Written:
        # Whether it is due is for all clients that wait to say; `told` makes it so or not.
        pools = kernel.pooled(o, w.q, w.d)
        topped = gate.refill(o, pools, w.told, v.spread(True, w.d), w.d - w.d + w.Q)
        return {"q": w.q + (o.pick(topped, w.p, 0) - o.pick(pools, w.p, 0))}

    moving = (kernel.pooled, kernel.leased, kernel.left_over)
    has_returned = v.Need(lambda o, w: (o.pick(w.d, w.p, 0) <= 0) & ((o.pick(w.d, w.p, 0) >= 0) | (w.q <= 0)))
    point = {"p": v.POINT}
    return (
        v.Event("a holder returns what it has", returned, point, (events.EXISTS,), moving),
        v.Event(
            "a round",
            a_round,
            {**point, "told": v.MASK},
            (events.EXISTS, has_returned),
            (kernel.pooled, gate.refill_due, gate.refill),
        ),
        v.Event("a holder is lent credit", lent, point, (events.EXISTS,), moving),
    )


def _leaving(kernel: v.Functions) -> v.Event:
    """A holder leaves after a renewal at which nothing waited: what it owes stays with the account."""

    def leave(o: Algebra, w: v.World) -> v.Written:
        return {
            "q": o.pick(kernel.pooled(o, w.q, w.d), w.p, w.q),
            "V": w.V - o.pick(w.d, w.p, 0),
            **{name: o.put(getattr(w, name), w.p, 0) for name in ("d", "R", "K")},
        }

    returned = v.Need(lambda o, w: o.pick(w.d, w.p, 0) <= 0)
    return v.Event("a holder leaves", leave, {"p": v.POINT}, (events.EXISTS, returned), (kernel.pooled,))


# --- faults -----------------------------------------------------------------------------------------------------------


def _holder_faults() -> tuple[v.Event, v.Event]:
    """M is what faults made, X what lost writes took; Y is n S + B for each time that writes were lost."""

    def ends(o: Algebra, w: v.World) -> v.Written:
        had = o.pick(w.d, w.p, 0)
        made, taken = o.maximum(-had, 0), o.maximum(had, 0)
        gone: dict[str, Any] = {name: o.put(getattr(w, name), w.p, 0) for name in ("d", "R", "K")}
        return {**gone, "M": w.M + made, "ended": w.p, "made": made, "taken": taken}

    def forgets(o: Algebra, w: v.World) -> v.Written:
        made, taken = o.maximum(w.z - w.q, 0), o.maximum(w.q - w.z, 0)
        return {"q": w.z, "M": w.M + made, "X": w.X + taken, "Y": w.Y + w.N}

    once_had = v.Need(lambda o, w: (w.z >= -w.V) & (w.z <= w.Q + w.N - w.S + w.Y))
    return (
        v.Event("a holder ends", ends, {"p": v.POINT}, (events.EXISTS,)),
        v.Event("the account loses writes", forgets, {"z": v.SCALAR}, (once_had,)),
    )


# --- what holds -------------------------------------------------------------------------------------------------------


def _system(kernel: v.Functions, gate: v.Functions, **sums: v.Formula) -> v.System:
    """`sums` are what the claim adds up over holders: solvers take time with each."""
    return v.System(
        "one client at all holders of leases",
        {**v.vectors("U", "back"), **v.scalars(*"SQN"), "h": v.POINT},
        (
            v.Need(lambda o, w: (w.U >= 1) & (w.back >= 0)),
            v.Need(lambda o, w: (w.S >= 0) & (w.N >= 0) & o.exists(w.h)),
            v.Need(lambda o, w: w.Q >= 1, th.QUANTUM_POSITIVE),
        ),
        {**v.vectors("d", "R", "K"), **v.scalars("q", "V", "M", "X", "Y", "made", "taken"), "ended": v.POINT},
        (*_admissions(gate), *_running(gate), *_holder_renewals(kernel, gate), _leaving(kernel), *_holder_faults()),
        derived={name: partial(_summed, of=of) for name, of in sums.items()},
    )


def _summed(o: Algebra, w: v.World, of: v.Formula) -> v.Term:
    return v.total(o, of(o, w))


_COUNTED = ("V", "M", "X", "Y", "made", "taken")
_STARTS = (
    v.Clause("d = R = K = 0", lambda o, w: v.same(w.d, 0) & v.same(w.R, 0) & v.same(w.K, 0)),
    v.Clause("q = 0", lambda o, w: v.same(w.q, 0)),
    *(v.Clause(f"{name} = 0", lambda o, w, name=name: v.same(getattr(w, name), 0)) for name in _COUNTED),
)
"""No holder has anything, nor has the account."""
_HOLDER_BALANCES = (
    v.Clause("1 - U_h <= d - R", lambda o, w: w.d - w.R >= 1 - w.U),
    v.Clause("0 <= R <= U_h - 1", lambda o, w: (w.R >= 0) & (w.R <= w.U - 1)),
    v.Clause("d + K <= S + B_h", lambda o, w: w.d + w.K <= w.S + w.back),
    v.Clause("0 <= K <= B_h", lambda o, w: (w.K >= 0) & (w.back >= w.K)),
)
_LEAST = v.Clause("q >= -V", lambda o, w: (w.q >= -w.V) & (w.V >= 0))
_NOT_LESS = v.Clause("X, M, Y >= 0", lambda o, w: (w.X >= 0) & (w.M >= 0) & (w.Y >= 0))
_ENDS = (
    v.Clause("an end makes at most U_h - 1", lambda o, w: w.made <= o.pick(w.U, w.ended, w.made + 1) - 1),
    v.Clause("an end takes at most S + B_h", lambda o, w: w.taken <= w.S + o.pick(w.back, w.ended, w.taken)),
)


def _free(o: Algebra, w: v.World) -> v.Term:
    """What each holder has less of the client's credit than it might."""
    return w.S + w.back - o.maximum(w.d + w.K, 0)


def _owing(o: Algebra, w: v.World) -> v.Term:
    """How far each is above its lowest balance, 0 for one that can let the client in, now or after a refund."""
    return o.where(w.d + w.K > 0, 0, w.d - w.R + w.U - 1)


def _below(o: Algebra, w: v.World) -> v.Term:
    return w.S + w.back - w.K - w.d


def _above(o: Algebra, w: v.World) -> v.Term:
    return w.d - w.R + w.U - 1


def _holder_claims(kernel: v.Functions, gate: v.Functions) -> tuple[v.Claim, ...]:
    """One client at all holders."""
    of = partial(_system, kernel, gate)
    most_had = v.Clause(
        "q <= Q - S + sum of (S + B_h - max(d + K, 0)) + Y", lambda o, w: w.q <= w.Q - w.S + w.free + w.Y
    )
    most = v.Clause("T + K <= Q - S + sum of (S + B_h) + M", lambda o, w: w.q <= w.Q - w.S + w.below + w.M)
    owed = v.Clause("q + owing >= -X", lambda o, w: w.q + w.owing >= -w.X)
    least = v.Clause("T - R >= sum of (1 - U_h) - X", lambda o, w: w.q + w.above >= -w.X)
    return (
        v.Claim(
            leases.L_BALANCE,
            of(),
            _STARTS,
            (*_HOLDER_BALANCES, *_ENDS),
            (_HOLDER_BALANCES[0], _HOLDER_BALANCES[2], *_ENDS),
        ),
        v.Claim(
            leases.L_ACCOUNT,
            of(free=_free),
            _STARTS,
            (_LEAST, _NOT_LESS, most_had),
            (_LEAST, most_had),
            _HOLDER_BALANCES,
        ),
        v.Claim(leases.L_MOST, of(below=_below), _STARTS, (_NOT_LESS, most), (most,), _HOLDER_BALANCES),
        v.Claim(leases.L_DEBT, of(owing=_owing), _STARTS, (_NOT_LESS, owed), (owed,), _HOLDER_BALANCES),
        # It follows, and to show that it does after every event would take minutes.
        v.Claim(
            leases.L_LEAST,
            attrs.evolve(of(owing=_owing, above=_above), events=()),
            _STARTS,
            (_NOT_LESS,),
            (least,),
            (*_HOLDER_BALANCES, owed),
        ),
    )


# --- messages ---------------------------------------------------------------------------------------------------------
# Vectors are over *messages*, any number of them: renewals that one holder said, and for each the answer that the
# account gave.  A message that was sent may arrive at any time and any number of times, or never.  All is about one
# client: `q` is what the account has of it, `d` the holder's balance, `O` what all other holders have.  `s` is the last
# renewal of the holder that the account had and `m` what that moved; `j` is the last that the holder said, and `h` the
# last that it heard an answer to.  It takes an answer only to the last that it said.
#
# A renewal may say any balance, though a holder says what it has: what is moved is added to what the holder has by
# then.

_POINT = {"p": v.POINT}
_SENT = v.Need(lambda o, w: o.pick(w.sent, w.p, False))


def _says(o: Algebra, w: v.World) -> v.Written:
    return {
        "j": w.j + 1,
        "sent": o.put(w.sent, w.p, True),
        "serial": o.put(w.serial, w.p, w.j + 1),
        "heard": o.put(w.heard, w.p, w.h),
    }


def _hears(o: Algebra, w: v.World) -> v.Written:
    return {"d": w.d + o.pick(w.moved, w.p, 0), "h": w.j}


def _arrives(kernel: v.Functions, o: Algebra, w: v.World) -> v.Written:
    """The account renews, gives rounds worth `c`, and answers; one that is not new is answered as it was."""
    said, heard, balance = o.pick(w.serial, w.p, 0), o.pick(w.heard, w.p, 0), w.said_balance
    new = kernel.is_new(o, w.s, said)
    pool = kernel.pooled(o, kernel.taken_back(o, w.q, w.m, w.s, heard), balance) + w.c
    after = kernel.leased(o, pool, balance, w.asks, w.S)
    moved = o.where(new, after - balance, w.m)
    return {
        "q": o.where(new, kernel.left_over(o, pool, after), w.q),
        "P": w.P + o.where(new, w.c, 0),
        "s": o.where(new, said, w.s),
        "m": moved,
        "answered": o.put(w.answered, w.p, o.where(said >= w.s, True, o.pick(w.answered, w.p, False))),
        "moved": o.put(w.moved, w.p, o.where(said >= w.s, moved, o.pick(w.moved, w.p, 0))),
    }


def _message_events(kernel: v.Functions) -> tuple[v.Event, ...]:
    unsent = v.Need(lambda o, w: o.exists(w.p) & o.where(o.pick(w.sent, w.p, True), False, True))
    the_last = v.Need(
        lambda o, w: o.pick(w.answered, w.p, False) & v.same(o.pick(w.serial, w.p, 0), w.j) & (w.h <= w.j - 1)
    )
    return (
        v.Event("the holder says a renewal", _says, _POINT, (unsent,)),
        v.Event(
            "a renewal comes",
            lambda o, w: _arrives(kernel, o, w),
            {**_POINT, "said_balance": v.SCALAR, "c": v.SCALAR, "asks": v.FLAG},
            (_SENT, lambda o, w: w.c >= 0),
            (kernel.is_new, kernel.taken_back, kernel.pooled, kernel.leased, kernel.left_over),
        ),
        v.Event("the holder hears an answer", _hears, _POINT, (the_last,)),
        v.Event("the holder charges", lambda o, w: {"d": w.d - w.x, "W": w.W + w.x}, {"x": v.SCALAR}),
        v.Event("another holder renews", lambda o, w: {"q": w.q - w.x, "O": w.O + w.x}, {"x": v.SCALAR}),
    )


def _heard_of_new(w: v.World, o: Algebra) -> v.Term:
    return v.implies(o, w.sent & (w.serial > w.s), v.same(w.heard, w.h))


_MESSAGE_INVARIANTS = (
    v.Clause("h <= s <= j", lambda o, w: (w.h >= 0) & (w.h <= w.s) & (w.s <= w.j)),
    v.Clause("serials are up to j", lambda o, w: v.implies(o, w.sent, w.serial <= w.j)),
    v.Clause("what is new says what was heard last", lambda o, w: _heard_of_new(w, o)),
    v.Clause("what is answered came", lambda o, w: v.implies(o, w.answered, w.sent & (w.serial <= w.s))),
    v.Clause("the last answer says m", lambda o, w: v.implies(o, w.answered & (w.serial >= w.s), v.same(w.moved, w.m))),
)
_KEPT = v.Clause(
    "W + q + d + O, and m unless it was heard, is what rounds gave",
    lambda o, w: v.same(w.W + w.q + w.d + w.O + o.where(w.s > w.h, w.m, 0), w.P),
)


def _again_claim(kernel: v.Functions) -> v.Claim:
    """However often messages come."""
    scalars = ("q", "m", "s", "d", "O", "h", "j", "W", "P")
    none = v.Clause("no message", lambda o, w: o.where(w.sent | w.answered, False, True))

    def zero(o: Algebra, w: v.World) -> v.Term:
        nothing = v.same(w.q, 0)
        for name in scalars:
            nothing = nothing & v.same(getattr(w, name), 0)
        return v.spread(nothing, w.serial)

    return v.Claim(
        leases.L_AGAIN,
        v.System(
            "messages of a holder and its account",
            {"S": v.SCALAR},
            (),
            {
                **v.scalars(*scalars),
                **v.vectors("serial", "heard", "moved"),
                **dict.fromkeys(("sent", "answered"), v.MASK),
            },
            _message_events(kernel),
        ),
        (none, v.Clause("all is zero", zero)),
        (*_MESSAGE_INVARIANTS, _KEPT),
        (_KEPT,),
    )


def claims(kernel: v.Functions = leases, gate: v.Functions = deficit) -> tuple[v.Claim, ...]:
    """The claims about the kernel functions of `kernel`, and of `gate` as holders run them."""
    return (
        *_holder_claims(kernel, gate),
        *_interval_claims(kernel, gate),
        _renewal_claim(kernel, gate),
        _progress_claim(kernel, gate),
        _again_claim(kernel),
    )
