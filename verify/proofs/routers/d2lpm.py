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
from fairsched.policies.gates.deficit import gap_cost
from fairsched.policies.routers.d2lpm import D2_51, D2_52, D2_A4, D2_GATE, D2_RANGE, D2_REFILL, D2_ROUND, D2_SPREAD
from fairsched.verify.logic import (
    BEGIN,
    Claim,
    Clause,
    Event,
    Formula,
    Functions,
    Kind,
    Need,
    RefutedClaim,
    RunStep,
    System,
    Term,
    Values,
    Witness,
    World,
    Written,
    claim_named,
    implies,
    one_step,
    same,
    spread,
    total,
)
from fairsched.verify.proofs.gates import (
    ahead_at_most,
    apart_at_most,
    both,
    deficit_witness,
    latency_in_time,
    same_credit,
)
from fairsched.verify.proofs.kernels import d2lpm_credit
from fairsched.verify.proofs.routers import d2lpm_scenarios as d2lpm_worlds

_ONE = {"p": Kind.POINT, "x": Kind.SCALAR}
_NOT_NEGATIVE = Need(lambda o, w: w.x >= 0)

# --- the router: one client at its workers --------------------------------------------------------------------------


def _gate_claim(kernel: Functions) -> Claim:
    """`sent` is where the request went, and the vectors are those from which it was chosen."""

    def choose(o: Algebra, w: World) -> Written:
        seen = {"d": w.d_now, "here": w.here_now, "holds": w.holds_now, "queue": w.queue_now}
        return {**seen, "sent": kernel.choose(o, w.d_now, w.here_now, w.holds_now, w.queue_now)}

    def no_other(o: Algebra, w: World) -> Term:
        """Of any worker with credit: one that holds less is no reason to go elsewhere, and no such queue is shorter."""
        near = o.pick(w.holds, w.sent, False)
        shorter = spread(o.exists(w.sent), w.queue) & (w.queue < o.pick(w.queue, w.sent, 0))
        as_near = o.where(w.holds, spread(near, w.queue), True)
        unfair = o.where(w.holds, shorter, spread(o.where(near, False, True), w.queue) & shorter)
        found = spread(o.exists(w.sent), w.queue) & as_near & o.where(unfair, False, True)
        return implies(o, w.here & (w.d > 0), found)

    vectors = {"d": Kind.VECTOR, "queue": Kind.VECTOR, "here": Kind.MASK, "holds": Kind.MASK}
    well_chosen = (
        Clause("it takes requests, and its client has credit", lambda o, w: o.pick(w.here & (w.d > 0), w.sent, True)),
        Clause("no holder with credit is passed over, no shorter queue of its kind, and there is one", no_other),
    )
    facts = {f"{name}_now": kind for name, kind in vectors.items()}
    return one_step(
        D2_GATE,
        "D2LPM, its choice",
        {**vectors, "sent": Kind.POINT},
        Event("choose a worker", choose, facts, kernels=(kernel.in_credit, kernel.choose)),
        well_chosen,
    )


def _round_claim(kernel: Functions) -> Claim:
    """`was` are the deficits before the round, `at` are the workers that took requests then."""

    def one_round(o: Algebra, w: World) -> Written:
        due = kernel.refill_due(o, w.d, w.here)
        return {"was": w.d, "at": w.here, "due": due, "d": kernel.refill(o, w.d, w.here, w.Q)}

    def topped_up(o: Algebra, w: World) -> Term:
        without = spread(o.where(w.credit, False, True), w.d)
        return o.where(w.at & without, same(w.d, w.was + w.Q), same(w.d, w.was))

    def is_due(o: Algebra, w: World) -> Term:
        needed = w.serving & o.where(w.credit, False, True)
        return o.where(w.due, needed, True) & o.where(needed, w.due, True)

    exactly = (
        Clause("a quantum wherever it takes requests, if there is credit nowhere there", topped_up),
        Clause("it is due if some take requests and there is credit at none of them", is_due),
    )
    return one_step(
        D2_ROUND,
        "D2LPM, its round",
        {"was": Kind.VECTOR, "d": Kind.VECTOR, "at": Kind.MASK, "due": Kind.FLAG},
        Event("a round", one_round, {"here": Kind.MASK}, kernels=(kernel.refill_due, kernel.refill)),
        exactly,
        parameters={"Q": Kind.VECTOR},
        derived={"credit": lambda o, w: o.any(w.at & (w.was > 0)), "serving": lambda o, w: o.any(w.at)},
    )


def _refill_claim(kernel: Functions) -> Claim:
    """`y` is what the closed form gave when the refill became due: round by round it stays what is to be reached."""

    return Claim(
        D2_REFILL,
        System(
            "D2LPM, its refill",
            parameters={"Q": Kind.VECTOR, "here": Kind.MASK},
            laws=(Need(lambda o, w: w.Q >= 1, QUANTUM_POSITIVE),),
            fields={"d": Kind.VECTOR, "y": Kind.VECTOR},
            events=(
                Event(
                    "one round at all workers",
                    lambda o, w: {"d": kernel.refill(o, w.d, w.here, w.Q)},
                    needs=(Need(lambda o, w: w.due),),
                    kernels=(kernel.refill_due, kernel.refill),
                ),
            ),
            derived={
                "due": lambda o, w: kernel.refill_due(o, w.d, w.here),
                "at_once": lambda o, w: kernel.refill_rounds(o, w.d, w.here, w.Q),
            },
            hints=(Clause("-(d + Q) // Q = -d // Q - 1", lambda o, w: same(-(w.d + w.Q) // w.Q, -w.d // w.Q - 1)),),
            closed_forms=True,
            opaque=True,
        ),
        (Clause("a refill is due, y at once", lambda o, w: spread(w.due, w.d) & same(w.y, w.at_once)),),
        (Clause("y is to be reached", lambda o, w: o.where(spread(w.due, w.d), same(w.y, w.at_once), same(w.y, w.d))),),
        (Clause("y = d once no refill is due", lambda o, w: o.where(spread(w.due, w.d), True, same(w.y, w.d))),),
    )


def system(kernel: Functions = d2lpm_credit, *, compared: bool = False) -> System:
    """One client's row: `W` its charges since t1, less what was given back, `P` the credit since; `f` and `g` are two
    workers, which both serve whenever the client is refilled if they are `compared`."""

    def top_up(o: Algebra, w: World) -> Written:
        d = kernel.refill(o, w.d, w.here, w.Q)
        return {"d": d, "P": w.P + (d - w.d)}

    def pay(o: Algebra, w: World) -> Written:
        return {"d": kernel.charge(o, w.d, w.p, w.x), "W": o.bump(w.W, w.p, w.x)}

    def give_back(o: Algebra, w: World) -> Written:
        granted = o.minimum(w.x, o.pick(w.Q, w.p, 0) - o.pick(w.d, w.p, 0))
        return {"d": kernel.refund(o, w.d, w.p, w.x, w.Q), "W": o.bump(w.W, w.p, -granted)}

    def forget(o: Algebra, w: World) -> Written:
        """The worker left, or the client was forgotten: it has the whole quantum, as if refilled."""
        whole = o.pick(w.Q, w.p, 0)
        return {"d": o.put(w.d, w.p, whole), "P": o.bump(w.P, w.p, whole - o.pick(w.d, w.p, 0))}

    def neither(o: Algebra, w: World) -> Term:
        compares = o.bump(o.bump(w.d - w.d, w.f, 1), w.g, 1)
        return o.pick(compares, w.p, 0) <= 0

    serve = (Need(lambda o, w: o.pick(w.here, w.f, True) & o.pick(w.here, w.g, True), BOTH_SERVE),)
    return System(
        "D2LPM, one client",
        parameters={"Q": Kind.VECTOR, "d0": Kind.VECTOR, "f": Kind.POINT, "g": Kind.POINT},
        laws=(Need(lambda o, w: w.Q >= 1, QUANTUM_POSITIVE), Need(lambda o, w: o.exists(w.f) & o.exists(w.g))),
        fields={"d": Kind.VECTOR, "W": Kind.VECTOR, "P": Kind.VECTOR},
        events=(
            Event(
                "top up",
                top_up,
                {"here": Kind.MASK},
                serve if compared else (),
                kernels=(kernel.refill_due, kernel.refill),
                happens=lambda o, w: kernel.refill_due(o, w.d, w.here),
            ),
            Event(
                "send",
                pay,
                {"x": Kind.SCALAR, "here": Kind.MASK, "holds": Kind.MASK, "queue": Kind.VECTOR},
                (_NOT_NEGATIVE,),
                (kernel.in_credit, kernel.choose, kernel.charge),
                decides=lambda o, w: {"p": kernel.choose(o, w.d, w.here, w.holds, w.queue)},
                happens=lambda o, w: o.exists(w.p),
            ),
            Event("an output ends", pay, _ONE, (_NOT_NEGATIVE,), (kernel.charge,)),
            Event("give back", give_back, _ONE, (_NOT_NEGATIVE,), (kernel.refund,)),
            Event(
                "forget",
                forget,
                {"p": Kind.POINT},
                (Need(neither, BOTH_SERVE),) if compared else (),
            ),
        ),
    )


_RANGE = Clause("d <= Q", lambda o, w: w.d <= w.Q)
_BALANCE = (
    _RANGE,
    Clause("d0 <= Q", lambda o, w: w.d0 <= w.Q),
    Clause("W + d = d0 + P", lambda o, w: same(w.W + w.d, w.d0 + w.P)),
    Clause("P_v = P_w", same_credit),
)
_STARTS = (
    _RANGE,
    Clause("W = 0, P = 0", lambda o, w: same(w.W, 0) & same(w.P, 0)),
    Clause("d = d0", lambda o, w: same(w.d, w.d0)),
)


def _spread_bound(o: Algebra, w: World) -> Term:
    """|W_v - W_w| <= 2Q and what is owed: at the one at the end, at the other in the beginning."""
    (charged_v, charged_w), (now_v, now_w), (was_v, was_w) = both(o, w, "W"), both(o, w, "d"), both(o, w, "d0")
    quantum, other = both(o, w, "Q")
    up = quantum + other + o.maximum(-now_v, 0) + o.maximum(-was_w, 0)
    down = quantum + other + o.maximum(-now_w, 0) + o.maximum(-was_v, 0)
    return (charged_v - charged_w <= up) & (charged_w - charged_v <= down)


def _spread_claim(kernel: Functions) -> Claim:
    equal = Need(lambda o, w: same(*both(o, w, "Q")), EQUAL_WORKERS)
    return Claim(
        D2_SPREAD,
        system(kernel, compared=True).with_laws(equal),
        _STARTS,
        _BALANCE,
        (Clause("|W_v - W_w| <= 2Q + D", _spread_bound),),
    )


# --- the cluster: what the workers' gates prove, summed over the workers --------------------------------------------


Holds = Callable[..., Any]
"""What one worker's gate promises of f and g there: how far g is ahead, and Q and U of f and of g."""


def _summed(theorem: Theorem, per_worker: Holds, *sums: Event) -> Claim:
    """`G` is how much more g than f was charged at each worker since t1, `Q`, `U_f` and `U_g` what its gate has.

    Whatever happens at a worker, its own theorem says what may be true of its two services.  `ahead` is one of the sums
    over all workers, and `B` the sum of the bounds.
    """

    def promised(ahead: Term, w: World) -> Term:
        return per_worker(ahead, w.Q, w.U_f, w.Q, w.U_g)

    at_each = Clause("what D-4.1 or D-4.2 says, at each worker", lambda o, w: promised(w.G, w))
    backlogged = Need(lambda o, w: promised(w.now, w), BACKLOGGED_EVERYWHERE)
    within = Clause("ahead <= B once it was summed", lambda o, w: o.where(w.summed, w.ahead <= w.B, True))
    return Claim(
        theorem,
        System(
            "workers with a deficit gate each",
            parameters={**dict.fromkeys(("Q", "U_f", "U_g"), Kind.VECTOR), "B": Kind.SCALAR},
            laws=(Need(lambda o, w: (w.Q >= 1) & (w.U_f >= 1) & (w.U_g >= 1)),),
            fields={"G": Kind.VECTOR, "ahead": Kind.SCALAR, "summed": Kind.FLAG},
            events=(
                Event("workers serve f and g", lambda o, w: {"G": w.now}, {"now": Kind.VECTOR}, (backlogged,)),
                *sums,
            ),
        ),
        (Clause("G = 0", lambda o, w: same(w.G, 0)), Clause("not summed", lambda o, w: o.where(w.summed, False, True))),
        (at_each, within),
        (within,),
    )


def _sum(name: str, ahead: Formula) -> Event:
    """What one of f and g was charged more than the other over all workers; what B stands for is asked here."""
    bound = Need(lambda o, w: same(w.B, total(o, gap_cost(w.Q, w.U_f, w.Q, w.U_g))))
    return Event(name, lambda o, w: {"ahead": total(o, ahead(o, w)), "summed": w.summed | True}, {}, (bound,))


_MORE_TO_G = _sum("W_g - W_f is summed", lambda o, w: w.G)
_MORE_TO_F = _sum("W_f - W_g is summed", lambda o, w: -w.G)


def kernel_claims(kernel: Functions = d2lpm_credit) -> tuple[Claim, ...]:
    """The theorems about the kernel functions of `kernel`."""
    return (
        _gate_claim(kernel),
        _round_claim(kernel),
        _refill_claim(kernel),
        Claim(D2_RANGE, system(kernel), _STARTS, (_RANGE,), (_RANGE,)),
        _spread_claim(kernel),
    )


def claims(kernel: Functions = d2lpm_credit) -> tuple[Claim, ...]:
    """Those, and the theorems about the workers behind them."""
    return (
        *kernel_claims(kernel),
        _summed(D2_51, apart_at_most, _MORE_TO_G, _MORE_TO_F),
        _summed(D2_52, ahead_at_most, _MORE_TO_G),
        latency_in_time(D2_A4),
    )


def refutations() -> tuple[RefutedClaim, ...]:
    """What is false of it."""
    return d2lpm_worlds.refutations()


# --- runs that attain the bounds --------------------------------------------------------------------------------------

QUANTUM = 4


def _send(worker: int, charge: int) -> RunStep:
    shortest = (0, 1) if worker == 0 else (1, 0)
    return ("send", {"x": charge, "here": (1, 1), "holds": (0, 0), "queue": shortest})


def spread_witness() -> Witness:
    """D2-spread: a debt of 4 at worker 1 is refilled to a whole quantum, while worker 0 is used up and 4 beyond: 16."""
    top_up: RunStep = ("top up", {"here": (1, 1)})
    steps = [top_up, _send(1, 8), (BEGIN, {}), _send(0, 8), top_up, top_up, _send(0, 8)]
    parameters: Values = {"Q": (QUANTUM, QUANTUM), "f": 0, "g": 1}
    return Witness(claim_named("D2-spread", claims()), 2, parameters, tuple(steps), 2 * QUANTUM + 4 + 4, {"d0": "d"})


def _summed_witness(name: str) -> Witness:
    """At each of two workers g is ahead by what D-4.1's own witness attains."""
    one = deficit_witness()
    each, quanta, most = one.bound_cost, one.parameters["Q"], one.parameters["U"]
    served: RunStep = ("workers serve f and g", {"now": (each, each)})
    steps: tuple[RunStep, ...] = ((BEGIN, {}), served, (_MORE_TO_G.name, {}))
    parameters: Values = {"Q": quanta, "U_f": most, "U_g": most, "B": 2 * each}
    return Witness(claim_named(name, claims()), 2, parameters, steps, 2 * each, measure=lambda w: int(w.ahead))


def witnesses() -> Iterator[Witness]:
    """One run a bound."""
    yield from (spread_witness(), _summed_witness("D2-5.1"), _summed_witness("D2-5.2"))
