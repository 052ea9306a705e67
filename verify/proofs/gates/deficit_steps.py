"""The deficit gate under an in-flight cap, in tokens: U comes from min(C, M), by the cap's own arithmetic.

Elsewhere MemReserve is a statement about cost.  Here the system counts tokens: `F` is the gate's vector of KV promised
to each client's requests in flight, which the cap reads, `O` the outputs among them that may still be charged.  Prices
are w_e and w_q a token, both unknown, and U is `charge_max_reserved` of min(C, M).
"""

from collections.abc import Mapping
from typing import Any

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import (
    BACKLOGGED_DURING,
    CAPPED,
    CHARGES_AT_LEAST_ONE,
    EQUAL_QUANTA,
    EXTEND_AS_PLANNED,
    GATE_RESPECTED,
    MEM_RESERVE,
    QUANTUM_POSITIVE,
)
from fairsched.policies import deficit
from fairsched.policies.deficit_progress import D_CAP, D_CAP_HOLDS
from fairsched.verify.deficit_proofs import IN_RANGE, both, queue_events, refill_event, same_credit
from fairsched.verify.system import Claim, Clause, Event, Kind, Need, System, World, implies, product, same

_LEAVING = {"p": Kind.POINT, "y": Kind.SCALAR, "x": Kind.SCALAR}
_LEAVES = (
    Need(lambda o, w: (w.x >= 0) & (w.y >= w.x)),
    Need(lambda o, w: o.pick(w.O, w.p, 0) >= w.x, MEM_RESERVE),
    Need(lambda o, w: o.pick(w.F, w.p, 0) - w.y >= o.pick(w.O, w.p, 0) - w.x, MEM_RESERVE),
)
"""A request with `y` tokens promised goes, `x` of which are outputs that it did not produce; the others' fit theirs."""


def _admission_events(kernel: Any) -> tuple[Event, ...]:
    """p's head enters with e extend tokens, k cached ones and r reserved outputs."""

    def admit(o: Algebra, w: World) -> Mapping[str, Any]:
        charge = product(w.w_e, w.e)
        return {
            "q": kernel.admit(o, w.q, w.p, charge),
            "F": kernel.reserve(o, w.F, w.p, w.e + w.r),
            "O": o.bump(w.O, w.p, w.r),
            "W": o.bump(w.W, w.p, charge),
        }

    def choose(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"p": kernel.choose(o, w.q, w.queued, w.ready, w.score)}

    amounts = {"e": Kind.SCALAR, "k": Kind.SCALAR, "r": Kind.SCALAR}
    needs = (
        Need(lambda o, w: w.e >= 0),
        Need(lambda o, w: w.e >= 1, CHARGES_AT_LEAST_ONE),
        Need(lambda o, w: (w.k >= 0) & (w.r >= 0) & (w.e + w.k <= w.L)),
        Need(lambda o, w: w.e + w.k + o.pick(w.O, w.p, 0) + w.r <= w.M, MEM_RESERVE),
        Need(lambda o, w: kernel.under_cap(o, w.F, w.p, w.e + w.k + w.r, w.C), CAPPED),
    )
    kernels = (kernel.in_credit, kernel.choose, kernel.admit, kernel.under_cap, kernel.reserve)
    return (
        Event(
            "admit",
            admit,
            {**amounts, "ready": Kind.MASK, "score": Kind.VECTOR},
            needs,
            kernels,
            decides=choose,
            happens=lambda o, w: o.exists(w.p),
        ),
        Event(
            "admit past the gate", admit, {**amounts, "p": Kind.POINT}, needs, kernels[2:], excluded_by=GATE_RESPECTED
        ),
    )


def _running_events(kernel: Any) -> tuple[Event, ...]:
    def decode(o: Algebra, w: World) -> Mapping[str, Any]:
        charge = product(w.t, w.w_q)
        return {"q": kernel.decode(o, w.q, charge), "O": w.O - w.t, "W": w.W + charge}

    def release(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"F": kernel.reserve(o, w.F, w.p, -w.y), "O": o.bump(w.O, w.p, -w.x)}

    def preempt(o: Algebra, w: World) -> Mapping[str, Any]:
        return {**release(o, w), "queued": o.put(w.queued, w.p, True), "known": o.put(w.known, w.p, True)}

    def correct(o: Algebra, w: World) -> Mapping[str, Any]:
        charge = product(w.w_e, w.x)
        return {"q": kernel.correct(o, w.q, w.p, charge), "W": o.bump(w.W, w.p, charge)}

    def refund(o: Algebra, w: World) -> Mapping[str, Any]:
        amount = product(w.w_e, w.x)
        granted = o.minimum(amount, o.pick(w.Q, w.p, 0) - o.pick(w.q, w.p, 0))
        return {"q": kernel.refund(o, w.q, w.p, amount, w.Q), "W": o.bump(w.W, w.p, -granted)}

    one, some = {"p": Kind.POINT, "x": Kind.SCALAR}, Need(lambda o, w: w.x >= 0)
    produced = (Need(lambda o, w: w.t >= 0), Need(lambda o, w: w.t <= w.O, MEM_RESERVE))
    return (
        Event("decode", decode, {"t": Kind.VECTOR}, produced, (kernel.decode,)),
        Event("finish", release, _LEAVING, _LEAVES, (kernel.reserve,)),
        Event("preempt", preempt, _LEAVING, _LEAVES, (kernel.reserve,)),
        Event("settle at more", correct, one, (some,), (kernel.correct,), excluded_by=EXTEND_AS_PLANNED),
        Event("refund", refund, one, (some,), (kernel.refund,)),
    )


def _charge_max(o: Algebra, w: World) -> Any:
    """`charge_max_reserved` of min(C, M), as one formula; U-capped proves that the shipped function says this."""
    last = o.where(w.w_e >= w.w_q, w.L, 1)
    return product(w.w_q, o.minimum(w.C, w.M)) + product(w.w_e - w.w_q, last)


def system(kernel: Any = deficit) -> System:
    """The capped gate over an interval in which f and g are backlogged."""
    scalars = dict.fromkeys(("C", "M", "L", "w_e", "w_q"), Kind.SCALAR)
    return System(
        "deficit gate under a cap",
        parameters={"Q": Kind.VECTOR, "q0": Kind.VECTOR, "f": Kind.POINT, "g": Kind.POINT, **scalars},
        laws=(
            Need(lambda o, w: w.Q >= 1, QUANTUM_POSITIVE),
            Need(lambda o, w: o.exists(w.f) & o.exists(w.g)),
            Need(lambda o, w: (w.w_e >= 1) & (w.w_q >= 1) & (w.L >= 1)),
            Need(lambda o, w: (w.L <= w.C - 1) & (w.L <= w.M - 1)),
            Need(lambda o, w: same(*both(o, w, "Q")), EQUAL_QUANTA),
        ),
        fields={
            "q": Kind.VECTOR,
            "queued": Kind.MASK,
            "known": Kind.MASK,
            "F": Kind.VECTOR,
            "O": Kind.VECTOR,
            "W": Kind.VECTOR,
            "P": Kind.VECTOR,
        },
        events=(
            *queue_events(kernel),
            refill_event(kernel, ("f", "g")),
            *_admission_events(kernel),
            *_running_events(kernel),
        ),
        derived={"U": _charge_max},
    )


def _reserved(o: Algebra, w: World) -> Any:
    """What may still be charged to each client for outputs, in cost."""
    return product(w.O, w.w_q)


_CAPPED_RANGE = (
    Clause("1 - U <= q - R", lambda o, w: w.q - _reserved(o, w) >= 1 - w.U),
    Clause("q <= Q", lambda o, w: w.q <= w.Q),
    Clause("0 <= O <= F", lambda o, w: (w.O >= 0) & (w.O <= w.F)),
    Clause("who waits is known", lambda o, w: implies(o, w.queued, w.known)),
)


def _gap_within(o: Algebra, w: World) -> Any:
    service_f, service_g = both(o, w, "W")
    quantum_f, quantum_g = both(o, w, "Q")
    bound = quantum_f + quantum_g + w.U + w.U - 2
    return (service_f - service_g <= bound) & (service_g - service_f <= bound)


def _capped(kernel: Any) -> Claim:
    return Claim(
        D_CAP,
        system(kernel),
        (
            *_CAPPED_RANGE,
            Clause("W = 0, P = 0", lambda o, w: same(w.W, 0) & same(w.P, 0)),
            Clause("q = q0", lambda o, w: same(w.q, w.q0)),
        ),
        (
            *_CAPPED_RANGE,
            Clause("1 - U <= q0 <= Q", lambda o, w: (w.q0 >= 1 - w.U) & (w.q0 <= w.Q)),
            Clause("W + q = q0 + P", lambda o, w: same(w.W + w.q, w.q0 + w.P)),
            Clause("P_f = P_g", same_credit),
        ),
        (
            IN_RANGE,
            Clause("|W_f - W_g| <= 2(Q + U - 1)", _gap_within),
        ),
    )


def _holds_back(kernel: Any) -> Claim:
    """f waits in credit; whether it is `ready` does not matter to a refill."""

    def refill(o: Algebra, w: World) -> Mapping[str, Any]:
        return {"q": kernel.refill(o, w.q, w.queued, w.known, w.Q)}

    waits = Need(lambda o, w: o.pick(w.queued & (w.q > 0), w.f, False), BACKLOGGED_DURING)
    return Claim(
        D_CAP_HOLDS,
        System(
            "refill beside a capped client",
            parameters={"Q": Kind.VECTOR, "queued": Kind.MASK, "known": Kind.MASK, "q0": Kind.VECTOR, "f": Kind.POINT},
            laws=(Need(lambda o, w: w.Q >= 1),),
            fields={"q": Kind.VECTOR},
            events=(Event("refill", refill, needs=(waits,), kernels=(kernel.refill_due, kernel.refill)),),
        ),
        (Clause("q = q0", lambda o, w: same(w.q, w.q0)),),
        (Clause("q = q0", lambda o, w: same(w.q, w.q0)),),
        (Clause("nobody is topped up", lambda o, w: same(w.q, w.q0)),),
    )


def claims(kernel: Any = deficit) -> tuple[Claim, ...]:
    """The claims about the kernel functions of `kernel`."""
    return (_capped(kernel), _holds_back(kernel))
