"""D2LPM's theorems: one client's credit at any number of workers, and the sums over workers of what their gates prove.

Vectors here are over the *workers*.  The router keeps a row for each client and no row reads another, so a theorem
about one row is one about all.  The workers' gates are proved about for any number of clients (`deficit_proofs`), and
no worker's gate reads another's.  So D-4.1 holds at each worker by itself: D2-5.1 rests on it, takes its conclusion
(`apart_at_most`, with the shipped constant) for each worker, and shows that these add up, for any number of workers.
D2-A.4 is about one worker, and its proof that of D-A.2-time.
"""

from collections.abc import Callable, Iterator
from typing import Any

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import BACKLOGGED_EVERYWHERE, BOTH_SERVE, EQUAL_WORKERS, QUANTUM_POSITIVE, Theorem
from fairsched.policies.gates import deficit
from fairsched.policies.routers import D2_51, D2_52, D2_A4, D2_GATE, D2_RANGE, D2_REFILL, D2_ROUND, D2_SPREAD
from fairsched.verify import logic as v
from fairsched.verify.proofs import gates
from fairsched.verify.proofs.kernels import d2lpm_credit
from fairsched.verify.proofs.routers import d2lpm_scenarios as d2lpm_worlds

_ONE = {"p": v.POINT, "x": v.SCALAR}
_NOT_NEGATIVE = v.Need(lambda o, w: w.x >= 0)

# --- the router: one client at its workers --------------------------------------------------------------------------


def _gate_claim(kernel: v.Functions) -> v.Claim:
    """`sent` is where the request went, and the vectors are those from which it was chosen."""

    def choose(o: Algebra, w: v.World) -> v.Written:
        seen = {"d": w.d_now, "here": w.here_now, "holds": w.holds_now, "queue": w.queue_now}
        return {**seen, "sent": kernel.choose(o, w.d_now, w.here_now, w.holds_now, w.queue_now)}

    def no_other(o: Algebra, w: v.World) -> v.Term:
        """Of any worker with credit: one that holds less is no reason to go elsewhere, and no such queue is shorter."""
        near = o.pick(w.holds, w.sent, False)
        shorter = v.spread(o.exists(w.sent), w.queue) & (w.queue < o.pick(w.queue, w.sent, 0))
        as_near = o.where(w.holds, v.spread(near, w.queue), True)
        unfair = o.where(w.holds, shorter, v.spread(o.where(near, False, True), w.queue) & shorter)
        found = v.spread(o.exists(w.sent), w.queue) & as_near & o.where(unfair, False, True)
        return v.implies(o, w.here & (w.d > 0), found)

    vectors = {"d": v.VECTOR, "queue": v.VECTOR, "here": v.MASK, "holds": v.MASK}
    well_chosen = (
        v.Clause("it takes requests, and its client has credit", lambda o, w: o.pick(w.here & (w.d > 0), w.sent, True)),
        v.Clause("no holder with credit is passed over, no shorter queue of its kind, and there is one", no_other),
    )
    facts = {f"{name}_now": kind for name, kind in vectors.items()}
    return v.one_step(
        D2_GATE,
        "D2LPM, its choice",
        {**vectors, "sent": v.POINT},
        v.Event("choose a worker", choose, facts, kernels=(kernel.in_credit, kernel.choose)),
        well_chosen,
    )


def _round_claim(kernel: v.Functions) -> v.Claim:
    """`was` are the deficits before the round, `at` are the workers that took requests then."""

    def one_round(o: Algebra, w: v.World) -> v.Written:
        due = kernel.refill_due(o, w.d, w.here)
        return {"was": w.d, "at": w.here, "due": due, "d": kernel.refill(o, w.d, w.here, w.Q)}

    def topped_up(o: Algebra, w: v.World) -> v.Term:
        without = v.spread(o.where(w.credit, False, True), w.d)
        return o.where(w.at & without, v.same(w.d, w.was + w.Q), v.same(w.d, w.was))

    def is_due(o: Algebra, w: v.World) -> v.Term:
        needed = w.serving & o.where(w.credit, False, True)
        return o.where(w.due, needed, True) & o.where(needed, w.due, True)

    exactly = (
        v.Clause("a quantum wherever it takes requests, if there is credit nowhere there", topped_up),
        v.Clause("it is due if some take requests and there is credit at none of them", is_due),
    )
    return v.one_step(
        D2_ROUND,
        "D2LPM, its round",
        {"was": v.VECTOR, "d": v.VECTOR, "at": v.MASK, "due": v.FLAG},
        v.Event("a round", one_round, {"here": v.MASK}, kernels=(kernel.refill_due, kernel.refill)),
        exactly,
        parameters={"Q": v.VECTOR},
        derived={"credit": lambda o, w: o.any(w.at & (w.was > 0)), "serving": lambda o, w: o.any(w.at)},
    )


def _refill_claim(kernel: v.Functions) -> v.Claim:
    """`y` is what the closed form gave when the refill became due: round by round it stays what is to be reached."""

    return v.Claim(
        D2_REFILL,
        v.System(
            "D2LPM, its refill",
            parameters={"Q": v.VECTOR, "here": v.MASK},
            laws=(v.Need(lambda o, w: w.Q >= 1, QUANTUM_POSITIVE),),
            fields={"d": v.VECTOR, "y": v.VECTOR},
            events=(
                v.Event(
                    "one round at all workers",
                    lambda o, w: {"d": kernel.refill(o, w.d, w.here, w.Q)},
                    needs=(lambda o, w: w.due,),
                    kernels=(kernel.refill_due, kernel.refill),
                ),
            ),
            derived={
                "due": lambda o, w: kernel.refill_due(o, w.d, w.here),
                "at_once": lambda o, w: kernel.refill_rounds(o, w.d, w.here, w.Q),
            },
            hints=(v.Clause("-(d + Q) // Q = -d // Q - 1", lambda o, w: v.same(-(w.d + w.Q) // w.Q, -w.d // w.Q - 1)),),
            closed_forms=True,
            opaque=True,
        ),
        (v.Clause("a refill is due, y at once", lambda o, w: v.spread(w.due, w.d) & v.same(w.y, w.at_once)),),
        (
            v.Clause(
                "y is to be reached",
                lambda o, w: o.where(v.spread(w.due, w.d), v.same(w.y, w.at_once), v.same(w.y, w.d)),
            ),
        ),
        (v.Clause("y = d once no refill is due", lambda o, w: o.where(v.spread(w.due, w.d), True, v.same(w.y, w.d))),),
    )


def system(kernel: v.Functions = d2lpm_credit, *, compared: bool = False) -> v.System:
    """Return one client's row: `W` its charges since t1, less what was given back, `P` the credit since; `f` and `g`
    are two workers, which both serve whenever the client is refilled if they are `compared`."""

    def top_up(o: Algebra, w: v.World) -> v.Written:
        d = kernel.refill(o, w.d, w.here, w.Q)
        return {"d": d, "P": w.P + (d - w.d)}

    def pay(o: Algebra, w: v.World) -> v.Written:
        return {"d": kernel.charge(o, w.d, w.p, w.x), "W": o.bump(w.W, w.p, w.x)}

    def give_back(o: Algebra, w: v.World) -> v.Written:
        granted = o.minimum(w.x, o.pick(w.Q, w.p, 0) - o.pick(w.d, w.p, 0))
        return {"d": kernel.refund(o, w.d, w.p, w.x, w.Q), "W": o.bump(w.W, w.p, -granted)}

    def forget(o: Algebra, w: v.World) -> v.Written:
        """Forget a worker that left, or a client: it has the whole quantum, as if refilled."""
        whole = o.pick(w.Q, w.p, 0)
        return {"d": o.put(w.d, w.p, whole), "P": o.bump(w.P, w.p, whole - o.pick(w.d, w.p, 0))}

    def neither(o: Algebra, w: v.World) -> v.Term:
        compares = o.bump(o.bump(w.d - w.d, w.f, 1), w.g, 1)
        return o.pick(compares, w.p, 0) <= 0

    serve = (v.Need(lambda o, w: o.pick(w.here, w.f, True) & o.pick(w.here, w.g, True), BOTH_SERVE),)
    return v.System(
        "D2LPM, one client",
        parameters={"Q": v.VECTOR, "d0": v.VECTOR, "f": v.POINT, "g": v.POINT},
        laws=(v.Need(lambda o, w: w.Q >= 1, QUANTUM_POSITIVE), lambda o, w: o.exists(w.f) & o.exists(w.g)),
        fields={"d": v.VECTOR, "W": v.VECTOR, "P": v.VECTOR},
        events=(
            v.Event(
                "top up",
                top_up,
                {"here": v.MASK},
                serve if compared else (),
                kernels=(kernel.refill_due, kernel.refill),
                happens=lambda o, w: kernel.refill_due(o, w.d, w.here),
            ),
            v.Event(
                "send",
                pay,
                {"x": v.SCALAR, "here": v.MASK, "holds": v.MASK, "queue": v.VECTOR},
                (_NOT_NEGATIVE,),
                (kernel.in_credit, kernel.choose, kernel.charge),
                decides=lambda o, w: {"p": kernel.choose(o, w.d, w.here, w.holds, w.queue)},
                happens=lambda o, w: o.exists(w.p),
            ),
            v.Event("an output ends", pay, _ONE, (_NOT_NEGATIVE,), (kernel.charge,)),
            v.Event("give back", give_back, _ONE, (_NOT_NEGATIVE,), (kernel.refund,)),
            v.Event("forget", forget, {"p": v.POINT}, (v.Need(neither, BOTH_SERVE),) if compared else ()),
        ),
    )


_RANGE = v.Clause("d <= Q", lambda o, w: w.d <= w.Q)
_BALANCE = (
    _RANGE,
    v.Clause("d0 <= Q", lambda o, w: w.d0 <= w.Q),
    v.Clause("W + d = d0 + P", lambda o, w: v.same(w.W + w.d, w.d0 + w.P)),
    v.Clause("P_v = P_w", gates.same_credit),
)
_STARTS = (
    _RANGE,
    v.Clause("W = 0, P = 0", lambda o, w: v.same(w.W, 0) & v.same(w.P, 0)),
    v.Clause("d = d0", lambda o, w: v.same(w.d, w.d0)),
)


def _spread_bound(o: Algebra, w: v.World) -> v.Term:
    """|W_v - W_w| <= 2Q and what is owed: at the one at the end, at the other in the beginning."""
    (charged_v, charged_w), (now_v, now_w), (was_v, was_w) = (
        gates.both(o, w, "W"),
        gates.both(o, w, "d"),
        gates.both(o, w, "d0"),
    )
    quantum, other = gates.both(o, w, "Q")
    up = quantum + other + o.maximum(-now_v, 0) + o.maximum(-was_w, 0)
    down = quantum + other + o.maximum(-now_w, 0) + o.maximum(-was_v, 0)
    return (charged_v - charged_w <= up) & (charged_w - charged_v <= down)


def _spread_claim(kernel: v.Functions) -> v.Claim:
    equal = v.Need(lambda o, w: v.same(*gates.both(o, w, "Q")), EQUAL_WORKERS)
    return v.Claim(
        D2_SPREAD,
        system(kernel, compared=True).with_laws(equal),
        _STARTS,
        _BALANCE,
        (v.Clause("|W_v - W_w| <= 2Q + D", _spread_bound),),
    )


# --- the cluster: what the workers' gates prove, summed over the workers --------------------------------------------


Holds = Callable[..., Any]
"""What one worker's gate promises of f and g there: how far g is ahead, and Q and U of f and of g."""


def _summed(theorem: Theorem, per_worker: Holds, *sums: v.Event) -> v.Claim:
    """`G` is how much more g than f was charged at each worker since t1, `Q`, `U_f` and `U_g` what its gate has.

    Whatever happens at a worker, its own theorem says what may be true of its two services.  `ahead` is one of the sums
    over all workers, and `B` the sum of the bounds.
    """

    def promised(ahead: v.Term, w: v.World) -> v.Term:
        return per_worker(ahead, w.Q, w.U_f, w.Q, w.U_g)

    at_each = v.Clause("what D-4.1 or D-4.2 says, at each worker", lambda o, w: promised(w.G, w))
    backlogged = v.Need(lambda o, w: promised(w.now, w), BACKLOGGED_EVERYWHERE)
    within = v.Clause("ahead <= B once it was summed", lambda o, w: o.where(w.summed, w.ahead <= w.B, True))
    return v.Claim(
        theorem,
        v.System(
            "workers with a deficit gate each",
            parameters={**v.vectors("Q", "U_f", "U_g"), "B": v.SCALAR},
            laws=(lambda o, w: (w.Q >= 1) & (w.U_f >= 1) & (w.U_g >= 1),),
            fields={"G": v.VECTOR, "ahead": v.SCALAR, "summed": v.FLAG},
            events=(
                v.Event("workers serve f and g", lambda o, w: {"G": w.now}, {"now": v.VECTOR}, (backlogged,)),
                *sums,
            ),
        ),
        (
            v.Clause("G = 0", lambda o, w: v.same(w.G, 0)),
            v.Clause("not summed", lambda o, w: o.where(w.summed, False, True)),
        ),
        (at_each, within),
        (within,),
    )


def _sum(name: str, ahead: v.Formula) -> v.Event:
    """Return what one of f and g was charged more than the other over all workers; what B stands for is asked here."""
    bound = v.Need(lambda o, w: v.same(w.B, v.total(o, deficit.gap_cost(w.Q, w.U_f, w.Q, w.U_g))))
    return v.Event(name, lambda o, w: {"ahead": v.total(o, ahead(o, w)), "summed": w.summed | True}, {}, (bound,))


_MORE_TO_G = _sum("W_g - W_f is summed", lambda o, w: w.G)
_MORE_TO_F = _sum("W_f - W_g is summed", lambda o, w: -w.G)


def kernel_claims(kernel: v.Functions = d2lpm_credit) -> tuple[v.Claim, ...]:
    """Return the theorems about the kernel functions of `kernel`."""
    return (
        _gate_claim(kernel),
        _round_claim(kernel),
        _refill_claim(kernel),
        v.Claim(D2_RANGE, system(kernel), _STARTS, (_RANGE,), (_RANGE,)),
        _spread_claim(kernel),
    )


def claims(kernel: v.Functions = d2lpm_credit) -> tuple[v.Claim, ...]:
    """Those, and the theorems about the workers behind them."""
    return (
        *kernel_claims(kernel),
        _summed(D2_51, gates.apart_at_most, _MORE_TO_G, _MORE_TO_F),
        _summed(D2_52, gates.ahead_at_most, _MORE_TO_G),
        gates.latency_in_time(D2_A4),
    )


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return what is false of it."""
    return d2lpm_worlds.refutations()


# --- runs that attain the bounds --------------------------------------------------------------------------------------

QUANTUM = 4


def _send(worker: int, charge: int) -> v.RunStep:
    shortest = (0, 1) if worker == 0 else (1, 0)
    return ("send", {"x": charge, "here": (1, 1), "holds": (0, 0), "queue": shortest})


def spread_witness() -> v.Witness:
    """D2-spread: a debt of 4 at worker 1 is refilled to a whole quantum, while worker 0 is used up and 4 beyond: 16."""
    top_up: v.RunStep = ("top up", {"here": (1, 1)})
    steps = [top_up, _send(1, 8), (v.BEGIN, {}), _send(0, 8), top_up, top_up, _send(0, 8)]
    parameters: v.Values = {"Q": (QUANTUM, QUANTUM), "f": 0, "g": 1}
    return v.Witness(
        v.claim_named("D2-spread", claims()), 2, parameters, tuple(steps), 2 * QUANTUM + 4 + 4, {"d0": "d"}
    )


def _summed_witness(name: str) -> v.Witness:
    """At each of two workers g is ahead by what D-4.1's own witness attains."""
    one = gates.deficit_witness()
    each, quanta, most = one.bound_cost, one.parameters["Q"], one.parameters["U"]
    served: v.RunStep = ("workers serve f and g", {"now": (each, each)})
    steps: tuple[v.RunStep, ...] = ((v.BEGIN, {}), served, (_MORE_TO_G.name, {}))
    parameters: v.Values = {"Q": quanta, "U_f": most, "U_g": most, "B": 2 * each}
    return v.Witness(v.claim_named(name, claims()), 2, parameters, steps, 2 * each, measure=lambda w: int(w.ahead))


def witnesses() -> Iterator[v.Witness]:
    """Return one run a bound."""
    yield from (spread_witness(), _summed_witness("D2-5.1"), _summed_witness("D2-5.2"))
