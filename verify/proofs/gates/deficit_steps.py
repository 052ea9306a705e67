"""What the deficit gate's kernel does in one step: whom it lets in, and that its refill may be taken at once.

These claims are about the text alone, not about intervals: D-gate says what GateRespected means, D-refill that the
closed form which production runs is the event that the other theorems are about, repeated, D-printed what the
variant that the paper prints does, and D-under-cap which clients the cap keeps out.
"""

import attrs

from fairsched.model import theorem as th
from fairsched.model.algebra import Algebra
from fairsched.verify import events
from fairsched.verify.logic import (
    Claim,
    Clause,
    Event,
    Functions,
    Kind,
    Need,
    System,
    Term,
    World,
    Written,
    and_also,
    implies,
    one_step,
    only,
    product,
    same,
    spread,
)
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.proofs.kernels import deficit


def _gate_claim(kernel: Functions) -> Claim:
    """`served` is the client that the gate let in last, and the vectors are those from which it chose."""

    def choose(o: Algebra, w: World) -> Written:
        seen = {"q": w.q_now, "queued": w.queued_now, "ready": w.ready_now, "score": w.score_now}
        return {**seen, "served": kernel.choose(o, w.q_now, w.queued_now, w.ready_now, w.score_now)}

    def best(o: Algebra, w: World) -> Term:
        found = spread(o.exists(w.served), w.score) & (w.score <= o.pick(w.score, w.served, 0))
        return implies(o, w.queued & w.ready & (w.q > 0), found)

    vectors = {"q": Kind.VECTOR, "score": Kind.VECTOR, "queued": Kind.MASK, "ready": Kind.MASK}
    well_chosen = (
        Clause(
            "who is served waits, has credit and is ready",
            lambda o, w: o.pick(w.queued & w.ready & (w.q > 0), w.served, True),
        ),
        Clause("none of them scores better, and one is served if there is one", best),
    )
    facts = {f"{name}_now": kind for name, kind in vectors.items()}
    chosen = Event("choose", choose, facts, kernels=(kernel.choose,))
    return one_step(deficit.D_GATE, "deficit gate, its choice", {**vectors, "served": Kind.POINT}, chosen, well_chosen)


def _round(name: str, kernel: Functions, need: Need) -> Event:
    def one_round(o: Algebra, w: World) -> Written:
        return {"q": kernel.refill(o, w.q, w.queued, w.known, w.Q)}

    return Event(name, one_round, needs=(need,), kernels=(kernel.refill_due, kernel.refill))


def _refill_claim(kernel: Functions) -> Claim:
    """`y` is what the closed form gave when the refill became due: round by round it stays what is to be reached.

    Every round raises each waiting client by at least 1 as long as all of them are at 0 or below, so the rounds end.
    """

    return Claim(
        deficit.D_REFILL,
        System(
            "refill",
            parameters={"Q": Kind.VECTOR, "queued": Kind.MASK, "known": Kind.MASK},
            laws=(Need(lambda o, w: w.Q >= 1), Need(lambda o, w: implies(o, w.queued, w.known))),
            fields={"q": Kind.VECTOR, "y": Kind.VECTOR},
            events=(_round("one round", kernel, Need(lambda o, w: w.due)),),
            derived={
                "due": lambda o, w: kernel.refill_due(o, w.q, w.queued),
                "at_once": lambda o, w: o.where(
                    spread(kernel.refill_due(o, w.q, w.queued), w.q),
                    kernel.refill_rounds(o, w.q, w.queued, w.known, w.Q),
                    w.q,
                ),
            },
            hints=(Clause("-(q + Q) // Q = -q // Q - 1", lambda o, w: same(-(w.q + w.Q) // w.Q, -w.q // w.Q - 1)),),
            closed_forms=True,
            opaque=True,
        ),
        (Clause("a refill is due, y at once", lambda o, w: spread(w.due, w.q) & same(w.y, w.at_once)),),
        (Clause("y is to be reached", lambda o, w: o.where(spread(w.due, w.q), same(w.y, w.at_once), same(w.y, w.q))),),
        (Clause("y = q once no refill is due", lambda o, w: o.where(spread(w.due, w.q), True, same(w.y, w.q))),),
    )


def _sums_claim(kernel: Functions) -> Claim:
    """`q` are the deficits after `t` and then `u` were charged, `at_once` after both together."""

    def decode(o: Algebra, w: World) -> Written:
        return {"q": kernel.decode(o, kernel.decode(o, w.q, w.t), w.u), "at_once": kernel.decode(o, w.q, w.t + w.u)}

    charges = {"t": Kind.VECTOR, "u": Kind.VECTOR}
    return one_step(
        deficit.D_SUMS,
        "deficit gate, outputs in sums",
        {"q": Kind.VECTOR, "at_once": Kind.VECTOR},
        Event("decode twice", decode, charges, kernels=(kernel.decode,)),
        (Clause("it comes to the same", lambda o, w: same(w.q, w.at_once)),),
    )


def _printed_claim(kernel: Functions) -> Claim:
    """`was` are the deficits before p came back."""

    def rejoin(o: Algebra, w: World) -> Written:
        return {"was": w.q, "q": kernel.rejoin_printed(o, w.q, w.p), "back": w.p}

    at_zero = Clause(
        "zero, and as before for every other client",
        lambda o, w: o.where(only(o, w.q, w.back), same(w.q, 0), same(w.q, w.was)),
    )
    return one_step(
        deficit.D_PRINTED,
        "deficit gate as printed",
        {"q": Kind.VECTOR, "was": Kind.VECTOR, "back": Kind.POINT},
        Event("come back", rejoin, {"p": Kind.POINT}, kernels=(kernel.rejoin_printed,)),
        (at_zero,),
    )


def _under_cap_claim(kernel: Functions) -> Claim:
    """`may` is what the gate said of `asked` more tokens for `one`."""

    def ask(o: Algebra, w: World) -> Written:
        return {"may": kernel.under_cap(o, w.F, w.p, w.x, w.C), "one": w.p, "asked": w.x}

    def fits(o: Algebra, w: World) -> Term:
        within = o.pick(w.F, w.one, 0) + w.asked <= w.C
        return o.where(w.may, within, True) & o.where(within, w.may, True)

    exactly = Clause("it may go if and only if it fits", fits)
    return one_step(
        deficit.D_UNDER_CAP,
        "deficit gate, its cap",
        {"may": Kind.FLAG, "one": Kind.POINT, "asked": Kind.SCALAR},
        Event("ask", ask, {"p": Kind.POINT, "x": Kind.SCALAR}, kernels=(kernel.under_cap,)),
        (exactly,),
        parameters={"F": Kind.VECTOR, "C": Kind.SCALAR},
    )


# --- a cap on what is in flight, in tokens ----------------------------------------------------------------------------

_LEAVING = {"p": Kind.POINT, "y": Kind.SCALAR, "x": Kind.SCALAR}
_LEAVES = (
    Need(lambda o, w: (w.x >= 0) & (w.y >= w.x)),
    Need(lambda o, w: o.pick(w.O, w.p, 0) >= w.x, th.MEM_RESERVE),
    Need(lambda o, w: o.pick(w.F, w.p, 0) - w.y >= o.pick(w.O, w.p, 0) - w.x, th.MEM_RESERVE),
)
"""A request with `y` tokens promised goes, `x` of which are outputs that it did not produce; the others' fit theirs."""


def _admission_events(kernel: Functions) -> tuple[Event, ...]:
    """p's head enters with e extend tokens, k cached ones and r reserved outputs; z of its charge will come back."""

    def admit(o: Algebra, w: World) -> Written:
        charge = product(w.w_e, w.e)
        return {
            "q": kernel.admit(o, w.q, w.p, charge),
            "F": kernel.reserve(o, w.F, w.p, w.e + w.r),
            "O": o.bump(w.O, w.p, w.r),
            "K": o.bump(w.K, w.p, w.z),
            "W": o.bump(w.W, w.p, charge),
        }

    def choose(o: Algebra, w: World) -> Term:
        return kernel.choose(o, w.q, w.queued, w.ready, w.score)

    needs = (
        Need(lambda o, w: w.e >= 0),
        Need(lambda o, w: w.e >= 1, th.CHARGES_AT_LEAST_ONE),
        Need(lambda o, w: (w.k >= 0) & (w.r >= 0) & (w.e + w.k <= w.L)),
        Need(lambda o, w: (w.z >= 0) & (w.z <= product(w.w_e, w.e))),
        Need(lambda o, w: o.pick(w.K, w.p, 0) + w.z <= o.pick(w.back, w.p, w.z)),
        Need(lambda o, w: w.e + w.k + o.pick(w.O, w.p, 0) + w.r <= w.M, th.MEM_RESERVE),
        Need(lambda o, w: kernel.under_cap(o, w.F, w.p, w.e + w.k + w.r, w.C), th.CAPPED),
    )
    seen, charging = {"ready": Kind.MASK, "score": Kind.VECTOR}, (kernel.admit, kernel.under_cap, kernel.reserve)
    amounts = dict.fromkeys("ekrz", Kind.SCALAR)
    return events.admissions(admit, amounts, needs, choose, seen, (kernel.choose,), charging)


def _running_events(kernel: Functions) -> tuple[Event, ...]:
    def decode(o: Algebra, w: World) -> Written:
        charge = product(w.t, w.w_q)
        return {"q": kernel.decode(o, w.q, charge), "O": w.O - w.t, "W": w.W + charge}

    def release(o: Algebra, w: World) -> Written:
        return {"F": kernel.reserve(o, w.F, w.p, -w.y), "O": o.bump(w.O, w.p, -w.x)}

    def preempt(o: Algebra, w: World) -> Written:
        return {**release(o, w), "queued": o.put(w.queued, w.p, True), "known": o.put(w.known, w.p, True)}

    produced = (Need(lambda o, w: w.t >= 0), Need(lambda o, w: w.t <= w.O, th.MEM_RESERVE))
    return (
        Event("decode", decode, {"t": Kind.VECTOR}, produced, (kernel.decode,)),
        Event("finish", release, _LEAVING, _LEAVES, (kernel.reserve,)),
        Event("preempt", preempt, _LEAVING, _LEAVES, (kernel.reserve,)),
        deficit_proofs.settles_at_more(kernel),
    )


def _charge_max(o: Algebra, w: World) -> Term:
    """`charge_max_reserved` of min(C, M), as one formula; U-capped proves that the shipped function says this."""
    last = o.where(w.w_e >= w.w_q, w.L, 1)
    return product(w.w_q, o.minimum(w.C, w.M)) + product(w.w_e - w.w_q, last)


def capped_system(kernel: Functions = deficit) -> System:
    """The capped gate over an interval in which f and g are backlogged."""
    scalars = dict.fromkeys(("C", "M", "L", "w_e", "w_q"), Kind.SCALAR)
    kept = ("arrive", "arrive behind one's own", "arrive as printed, at zero", "leave the queue", "refill")
    both_wait = deficit_proofs.deficit_system(kernel, backlogged=("f", "g"))
    uncapped = (event for event in both_wait.events if event.name in kept)
    return System(
        "deficit gate under a cap",
        parameters={
            **dict.fromkeys(("Q", "q0", "back"), Kind.VECTOR),
            **{"f": Kind.POINT, "g": Kind.POINT},
            **scalars,
        },
        laws=(
            Need(lambda o, w: w.Q >= 1, th.QUANTUM_POSITIVE),
            Need(lambda o, w: o.exists(w.f) & o.exists(w.g)),
            Need(lambda o, w: (w.w_e >= 1) & (w.w_q >= 1) & (w.L >= 1)),
            Need(lambda o, w: (w.L <= w.C - 1) & (w.L <= w.M - 1)),
            deficit_proofs.EQUAL,
        ),
        fields={"q": Kind.VECTOR, "queued": Kind.MASK, "known": Kind.MASK, **dict.fromkeys("FOKWP", Kind.VECTOR)},
        events=(*uncapped, *_admission_events(kernel), *_running_events(kernel)),
        derived={"U": _charge_max},
    )


def _reserved(o: Algebra, w: World) -> Term:
    """What may still be charged to each client for outputs, in cost."""
    return product(w.O, w.w_q)


_CAPPED_RANGE = (
    Clause("1 - U <= q - R", lambda o, w: w.q - _reserved(o, w) >= 1 - w.U),
    *deficit_proofs.CREDIT,
    Clause("0 <= O <= F", lambda o, w: (w.O >= 0) & (w.O <= w.F)),
    Clause("waiting clients are known", lambda o, w: implies(o, w.queued, w.known)),
)


def _gap_within(o: Algebra, w: World) -> Term:
    service_f, service_g = deficit_proofs.both(o, w, "W")
    quantum_f, quantum_g = deficit_proofs.both(o, w, "Q")
    bound = quantum_f + quantum_g + w.U + w.U - 2 + deficit_proofs.both_backs(o, w)
    return (service_f - service_g <= bound) & (service_g - service_f <= bound)


def _capped(kernel: Functions) -> Claim:
    began = Clause("1 - U <= q0 <= Q + B", lambda o, w: (w.q0 >= 1 - w.U) & (w.q0 <= w.Q + w.back))
    return Claim(
        deficit.D_CAP,
        capped_system(kernel),
        (*_CAPPED_RANGE, *deficit_proofs.NOTHING_COUNTED),
        (*_CAPPED_RANGE, began, deficit_proofs.BALANCED, Clause("P_f = P_g", deficit_proofs.same_credit)),
        (deficit_proofs.IN_RANGE, Clause("|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g", _gap_within)),
    )


# --- an elastic cap, in cost units ------------------------------------------------------------------------------------
# N are the KV tokens in flight, of outputs those that are likely, and F is what the gate counts.  V is what may be
# charged for so many: U of N just after the client was last let in.  T counts how often it was let in since
# the interval began.

_HELD = dict.fromkeys("FNVT", Kind.VECTOR)
_COUNTED = Clause("F = N", lambda o, w: same(w.F, w.N))


def _counting(of: System, kernel: Functions, *needs: Need) -> System:
    """The system in which a request of `e` tokens enters with `u` as U of what is then in flight, and `y` leave."""

    def counted(event: Event) -> Event:
        if event.name.startswith("admit"):
            likely = Need(lambda o, w: w.x + o.pick(w.R, w.p, 0) + w.r <= w.u, th.OUTPUTS_LIKELY)
            more = attrs.evolve(event, facts={**event.facts, "e": Kind.SCALAR, "u": Kind.SCALAR})
            return and_also(
                attrs.evolve(more, kernels=(*event.kernels, kernel.reserve)).with_needs(
                    Need(lambda o, w: (w.e >= 1) & (w.u >= 1)), likely, *needs
                ),
                F=lambda o, w, _: kernel.reserve(o, w.F, w.p, w.e),
                N=lambda o, w, _: o.bump(w.N, w.p, w.e),
                V=lambda o, w, _: o.put(w.V, w.p, w.u),
                T=lambda o, w, _: o.bump(w.T, w.p, 1),
            )
        if event.name == "finish" or event.name.startswith("preempt"):
            more = attrs.evolve(event, facts={**event.facts, "y": Kind.SCALAR})
            more = attrs.evolve(more, kernels=(*event.kernels, kernel.reserve))
            return and_also(
                more, F=lambda o, w, _: kernel.reserve(o, w.F, w.p, -w.y), N=lambda o, w, _: o.bump(w.N, w.p, -w.y)
            )
        return event

    return attrs.evolve(of, fields={**of.fields, **_HELD}, events=tuple(map(counted, of.events)))


def in_flight_system(kernel: Functions = deficit) -> System:
    """The gate under any cap or none."""
    held = _counting(deficit_proofs.deficit_system(kernel), kernel)
    return attrs.evolve(held, derived={"most": lambda o, w: o.maximum(w.V, 1)})


def elastic_system(kernel: Functions = deficit) -> System:
    """The gate under an elastic cap, over an interval in which f and g are backlogged; `E` is U of max(C, S), S the
    largest request."""

    def within(o: Algebra, w: World) -> Term:
        after = o.pick(w.N, w.p, 0) + w.e
        return o.where((after <= w.C) | (after <= w.S), w.u <= w.E, True)

    needs = (
        Need(lambda o, w: w.e <= w.S),
        Need(within),
        Need(lambda o, w: kernel.may_hold(o, w.F, w.queued, w.p, w.e, w.C), th.CAPPED_TOGETHER),
        *(events.waits("f"), events.waits("g")),
    )
    both_wait = deficit_proofs.deficit_system(kernel, backlogged=("f", "g"))
    apart = Need(lambda o, w: o.where(o.pick(only(o, w.Q, w.f), w.g, False), False, True))
    more = {"R0": Kind.VECTOR, "V0": Kind.VECTOR, **dict.fromkeys("CES", Kind.SCALAR)}
    capped = attrs.evolve(
        _counting(both_wait, kernel, *needs).with_laws(deficit_proofs.EQUAL, apart, Need(lambda o, w: w.E >= 1)),
        parameters={**both_wait.parameters, **more},
        derived={"before": lambda o, w: o.maximum(w.V0, w.E)},
    )
    asked = (kernel.may_hold, kernel.under_cap, kernel.lone)
    asking = (
        attrs.evolve(event, kernels=(*event.kernels, *asked)) if event.name.startswith("admit") else event
        for event in capped.events
    )
    return attrs.evolve(capped, events=tuple(asking))


def _in_flight(kernel: Functions) -> Claim:
    held = Clause("1 - V <= q - R", lambda o, w: w.q - w.R >= 1 - w.most)
    return Claim(
        deficit.D_IN_FLIGHT,
        in_flight_system(kernel),
        (*deficit_proofs.NOTHING_YET, Clause("nothing is in flight", lambda o, w: same(w.F, 0) & same(w.N, 0))),
        (held, *deficit_proofs.RANGE[1:], _COUNTED),
        (held, *deficit_proofs.CREDIT, _COUNTED),
    )


def _elastic(kernel: Functions) -> Claim:
    """f is let in within the cap or with a request alone: what it may still be charged then is U(max(C, S)) at most."""
    not_below = Clause("1 - max(V0, E) <= q - R", lambda o, w: w.q - w.R >= 1 - w.before)
    started = (
        *(*deficit_proofs.RANGE[1:], not_below, *deficit_proofs.NOTHING_COUNTED, _COUNTED),
        Clause("R = R0, T = 0", lambda o, w: same(w.R, w.R0) & same(w.T, 0)),
    )
    began = Clause("1 - max(V0, E) <= q0 <= Q + B", lambda o, w: (w.q0 >= 1 - w.before) & (w.q0 <= w.Q + w.back))
    since = Clause("let in since: 1 - E <= q - R", lambda o, w: implies(o, w.T >= 1, w.q - w.R >= 1 - w.E))
    rest = Clause("else W + R <= R0", lambda o, w: (w.T >= 0) & o.where(w.T >= 1, True, w.W + w.R <= w.R0))

    def gap(o: Algebra, w: World) -> Term:
        (service_f, service_g), (quantum_f, quantum_g) = deficit_proofs.both(o, w, "W"), deficit_proofs.both(o, w, "Q")
        bound = deficit.gap_cost(quantum_f, w.E, quantum_g, o.pick(w.before, w.g, 0)) + deficit_proofs.both_backs(o, w)
        return o.where(o.pick(w.T, w.f, 0) >= 1, service_f - service_g <= bound, service_f <= o.pick(w.R0, w.f, 0))

    invariants = (
        *deficit_proofs.RANGE[1:],
        _COUNTED,
        not_below,
        began,
        since,
        rest,
        deficit_proofs.BALANCED,
        Clause("P_f = P_g", deficit_proofs.same_credit),
    )
    bounded = Clause("the gap is bounded, or f had what was in flight", gap)
    return Claim(deficit.D_ELASTIC, elastic_system(kernel), started, invariants, (bounded,))


def _may_hold_claim(kernel: Functions) -> Claim:
    """`may` is what the gate said of `asked` more tokens for `one`, while `queued` waited."""

    def ask(o: Algebra, w: World) -> Written:
        may = kernel.may_hold(o, w.F, w.queued, w.p, w.x, w.C)
        return {"may": may, "one": w.p, "asked": w.x}

    def kept_out(o: Algebra, w: World) -> Term:
        held = o.pick(w.F, w.one, 0)
        out = w.others & (held >= 1) & (held + w.asked >= w.C + 1)
        return o.where(out, o.where(w.may, False, True), w.may)

    exactly = Clause("it is kept out if and only if it passes the cap beside others", kept_out)
    return one_step(
        deficit.D_MAY_HOLD,
        "deficit gate, its elastic cap",
        {"may": Kind.FLAG, "one": Kind.POINT, "asked": Kind.SCALAR},
        Event("ask", ask, events.ONE, kernels=(kernel.may_hold, kernel.under_cap, kernel.lone)),
        (exactly,),
        parameters={"F": Kind.VECTOR, "queued": Kind.MASK, "C": Kind.SCALAR},
        derived={"others": lambda o, w: o.any(w.queued & o.where(only(o, w.F, w.one), False, True))},
    )


def _holds_back(kernel: Functions) -> Claim:
    """f waits in credit; whether it is `ready` does not matter to a refill."""

    as_before = (Clause("q = q0", lambda o, w: same(w.q, w.q0)),)
    waits = Need(lambda o, w: o.pick(w.queued & (w.q > 0), w.f, False), th.BACKLOGGED_DURING)
    return Claim(
        deficit.D_CAP_HOLDS,
        System(
            "refill beside a capped client",
            parameters={"Q": Kind.VECTOR, "queued": Kind.MASK, "known": Kind.MASK, "q0": Kind.VECTOR, "f": Kind.POINT},
            laws=(Need(lambda o, w: w.Q >= 1),),
            fields={"q": Kind.VECTOR},
            events=(_round("refill", kernel, waits),),
        ),
        as_before,
        as_before,
        (Clause("no client is topped up", lambda o, w: same(w.q, w.q0)),),
    )


def claims(kernel: Functions = deficit) -> tuple[Claim, ...]:
    """The claims about the kernel functions of `kernel`."""
    return (
        _gate_claim(kernel),
        _refill_claim(kernel),
        _sums_claim(kernel),
        _printed_claim(kernel),
        _under_cap_claim(kernel),
        _capped(kernel),
        _in_flight(kernel),
        _elastic(kernel),
        _may_hold_claim(kernel),
        _holds_back(kernel),
    )
