"""What the deficit gate's kernel does in one step: whom it lets in, and that its refill may be taken at once.

These claims are about the text alone, not about intervals: D-gate says what GateRespected means, D-refill that the
closed form which production runs is the event that the other theorems are about, repeated, D-printed what the
variant that the paper prints does, and D-under-cap which clients the cap keeps out.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from fairsched.model import theorem as th
from fairsched.model.algebra import Algebra
from fairsched.verify import events
from fairsched.verify import logic as v
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.proofs.kernels import deficit


def chosen_claim(
    theorem: th.Theorem,
    name: str,
    seen: Mapping[str, v.Kind],
    choose: v.Formula,
    may_go: Callable[[v.World], v.Term],
    kernels: tuple[Callable[..., v.Term], ...],
) -> v.Claim:
    """Return that `served`, which a gate chooses of what it has `seen`, is the best of those that may go, if any is."""

    def best(o: Algebra, w: v.World) -> v.Term:
        found = v.spread(o.exists(w.served), w.score) & (w.score <= o.pick(w.score, w.served, 0))
        return v.implies(o, may_go(w), found)

    well_chosen = (
        v.Clause("who is served may go", lambda o, w: o.pick(may_go(w), w.served, True)),
        v.Clause("none that may go scores better, and one is served if there is one", best),
    )
    event = v.Event("choose", lambda o, w: {"served": choose(o, w)}, kernels=kernels)
    return v.one_step(theorem, name, {"served": v.POINT}, event, well_chosen, parameters=seen)


def first_claim(
    theorem: th.Theorem,
    name: str,
    seen: Mapping[str, v.Kind],
    goes: Callable[[Algebra, v.World, v.Term], v.Term],
    may_go: Callable[[v.World], v.Term],
    kernels: tuple[Callable[..., v.Term], ...],
    *more: v.Clause,
    **derived: v.Formula,
) -> v.Claim:
    """Return that `goes` says of `first`, which has the best score of all that wait, whether the gate may choose it."""

    def ask(o: Algebra, w: v.World) -> v.Written:
        first = o.argmax(w.score, w.queued)
        return {"first": first, "goes": goes(o, w, first)}

    def exactly(o: Algebra, w: v.World) -> v.Term:
        may = o.pick(may_go(w), w.first, False)
        return o.where(w.goes, may, True) & o.where(may, w.goes, True)

    def best(o: Algebra, w: v.World) -> v.Term:
        return v.implies(o, v.spread(w.goes, w.score) & may_go(w), w.score <= o.pick(w.score, w.first, 0))

    clauses = (
        v.Clause("it goes if and only if it may go", exactly),
        v.Clause("none of those that may go scores better", best),
        *more,
    )
    waits = v.Need(lambda o, w: v.implies(o, w.ready, w.queued))
    fields = {"first": v.POINT, "goes": v.FLAG}
    event = v.Event("ask", ask, kernels=kernels)
    return v.one_step(theorem, name, fields, event, clauses, parameters=seen, laws=(waits,), derived=derived)


SEEN = {**v.vectors("q", "score"), **dict.fromkeys(("queued", "ready"), v.MASK)}
"""What a choice sees."""


def in_credit(w: v.World) -> v.Term:
    """Who waits, has credit and is ready."""
    return w.queued & w.ready & (w.q > 0)


def _gate_claim(kernel: v.Functions) -> v.Claim:
    def choose(o: Algebra, w: v.World) -> v.Term:
        return kernel.choose(o, w.q, w.queued, w.ready, w.score)

    return chosen_claim(deficit.D_GATE, "deficit gate, its choice", SEEN, choose, in_credit, (kernel.choose,))


def _first_claim(kernel: v.Functions) -> v.Claim:
    def goes(o: Algebra, w: v.World, first: v.Term) -> v.Term:
        return kernel.goes_first(o, w.q, w.ready, first)

    def due(o: Algebra, w: v.World) -> v.Term:
        return kernel.refill_due(o, w.q, w.queued)

    kernels = (kernel.goes_first, kernel.refill_due)
    none = v.Clause("then no refill is due", lambda o, w: o.where(w.goes & w.due, False, True))
    name = "deficit gate, the first in line"
    return first_claim(deficit.D_FIRST, name, SEEN, goes, in_credit, kernels, none, due=due)


def _round(name: str, kernel: v.Functions, need: v.Need) -> v.Event:
    def one_round(o: Algebra, w: v.World) -> v.Written:
        return {"q": kernel.refill(o, w.q, w.queued, w.known, w.Q)}

    return v.Event(name, one_round, needs=(need,), kernels=(kernel.refill_due, kernel.refill))


def _refill_claim(kernel: v.Functions) -> v.Claim:
    """`y` is what the closed form gave when the refill became due: round by round it stays what is to be reached.

    Every round raises each waiting client by at least 1 as long as all of them are at 0 or below, so the rounds end.
    """

    def due(o: Algebra, w: v.World) -> v.Term:
        return kernel.refill_due(o, w.q, w.queued)

    def at_once(o: Algebra, w: v.World) -> v.Term:
        rounds = kernel.refill_rounds(o, w.q, w.queued, w.known, w.Q)
        return o.where(v.spread(due(o, w), w.q), rounds, w.q)

    return v.Claim(
        deficit.D_REFILL,
        v.System(
            "refill",
            parameters={"Q": v.VECTOR, "queued": v.MASK, "known": v.MASK},
            laws=(v.Need(lambda o, w: w.Q >= 1), v.Need(lambda o, w: v.implies(o, w.queued, w.known))),
            fields=v.vectors("q", "y"),
            events=(_round("one round", kernel, v.Need(lambda o, w: w.due)),),
            derived={"due": due, "at_once": at_once},
            hints=(v.Clause("-(q + Q) // Q = -q // Q - 1", lambda o, w: v.same(-(w.q + w.Q) // w.Q, -w.q // w.Q - 1)),),
            closed_forms=True,
            opaque=True,
        ),
        (v.Clause("a refill is due, y at once", lambda o, w: v.spread(w.due, w.q) & v.same(w.y, w.at_once)),),
        (
            v.Clause(
                "y is to be reached",
                lambda o, w: o.where(v.spread(w.due, w.q), v.same(w.y, w.at_once), v.same(w.y, w.q)),
            ),
        ),
        (v.Clause("y = q once no refill is due", lambda o, w: o.where(v.spread(w.due, w.q), True, v.same(w.y, w.q))),),
    )


def sums_claim(theorem: th.Theorem, gate: str, decode: Callable[..., v.Term]) -> v.Claim:
    """Return that outputs charged one after the other, `t` and then `u`, come to those charged `at_once`."""

    def twice(o: Algebra, w: v.World) -> v.Written:
        return {"after": decode(o, decode(o, w.before, w.t), w.u), "at_once": decode(o, w.before, w.t + w.u)}

    return v.one_step(
        theorem,
        f"{gate} gate, outputs in sums",
        v.vectors("after", "at_once"),
        v.Event("decode twice", twice, kernels=(decode,)),
        (v.Clause("it comes to the same", lambda o, w: v.same(w.after, w.at_once)),),
        parameters=v.vectors("before", "t", "u"),
    )


def _printed_claim(kernel: v.Functions) -> v.Claim:
    """`was` are the deficits before p came back."""
    at_zero = v.Clause(
        "zero, and as before for every other client",
        lambda o, w: o.where(v.only(o, w.q, w.p), v.same(w.q, 0), v.same(w.q, w.was)),
    )
    kernels = (kernel.rejoin_printed,)
    come_back = v.Event("come back", lambda o, w: {"q": kernel.rejoin_printed(o, w.was, w.p)}, kernels=kernels)
    return v.one_step(
        deficit.D_PRINTED,
        "deficit gate as printed",
        v.vectors("q"),
        come_back,
        (at_zero,),
        parameters={"was": v.VECTOR, "p": v.POINT},
    )


def _cap_claim(
    theorem: th.Theorem, name: str, asks: v.Formula, may_go: v.Formula, kernels: Any, **derived: v.Formula
) -> v.Claim:
    """Return that `may`, what the gate says of x more tokens for p, is `may_go`."""

    def exactly(o: Algebra, w: v.World) -> v.Term:
        fits = may_go(o, w)
        return o.where(w.may, fits, True) & o.where(fits, w.may, True)

    return v.one_step(
        theorem,
        name,
        {"may": v.FLAG},
        v.Event("ask", lambda o, w: {"may": asks(o, w)}, kernels=kernels),
        (v.Clause("it may go if and only if it fits", exactly),),
        parameters={"F": v.VECTOR, "queued": v.MASK, "C": v.SCALAR, **events.ONE},
        derived=derived,
    )


def _under_cap_claim(kernel: v.Functions) -> v.Claim:
    def asks(o: Algebra, w: v.World) -> v.Term:
        return kernel.under_cap(o, w.F, w.p, w.x, w.C)

    def fits(o: Algebra, w: v.World) -> v.Term:
        return o.pick(w.F, w.p, 0) + w.x <= w.C

    return _cap_claim(deficit.D_UNDER_CAP, "deficit gate, its cap", asks, fits, (kernel.under_cap,))


def _may_hold_claim(kernel: v.Functions) -> v.Claim:
    def asks(o: Algebra, w: v.World) -> v.Term:
        return kernel.may_hold(o, w.F, w.queued, w.p, w.x, w.C)

    def fits(o: Algebra, w: v.World) -> v.Term:
        held = o.pick(w.F, w.p, 0)
        return o.where(w.others & (held >= 1) & (held + w.x >= w.C + 1), False, True)

    def others(o: Algebra, w: v.World) -> v.Term:
        return o.any(w.queued & o.where(v.only(o, w.F, w.p), False, True))

    kernels = (kernel.may_hold, kernel.under_cap, kernel.lone)
    return _cap_claim(deficit.D_MAY_HOLD, "deficit gate, its elastic cap", asks, fits, kernels, others=others)


# --- a cap on what is in flight, in tokens ----------------------------------------------------------------------------

_LEAVING = {"p": v.POINT, "y": v.SCALAR, "x": v.SCALAR}
_LEAVES = (
    v.Need(lambda o, w: (w.x >= 0) & (w.y >= w.x)),
    v.Need(lambda o, w: o.pick(w.O, w.p, 0) >= w.x, th.MEM_RESERVE),
    v.Need(lambda o, w: o.pick(w.F, w.p, 0) - w.y >= o.pick(w.O, w.p, 0) - w.x, th.MEM_RESERVE),
)
"""A request with `y` tokens promised goes, `x` of which are outputs that it did not produce; the others' fit theirs."""


def _admission_events(kernel: v.Functions) -> tuple[v.Event, ...]:
    """p's head enters with e extend tokens, k cached ones and r reserved outputs; z of its charge will come back."""

    def admit(o: Algebra, w: v.World) -> v.Written:
        charge = v.product(w.w_e, w.e)
        return {
            "q": kernel.admit(o, w.q, w.p, charge),
            "F": kernel.reserve(o, w.F, w.p, w.e + w.r),
            "O": o.bump(w.O, w.p, w.r),
            "K": o.bump(w.K, w.p, w.z),
            "W": o.bump(w.W, w.p, charge),
        }

    def choose(o: Algebra, w: v.World) -> v.Term:
        return kernel.choose(o, w.q, w.queued, w.ready, w.score)

    needs = (
        events.EXISTS,
        v.Need(lambda o, w: w.e >= 0),
        v.Need(lambda o, w: w.e >= 1, th.CHARGES_AT_LEAST_ONE),
        v.Need(lambda o, w: (w.k >= 0) & (w.r >= 0) & (w.e + w.k <= w.L)),
        v.Need(lambda o, w: (w.z >= 0) & (w.z <= v.product(w.w_e, w.e))),
        v.Need(lambda o, w: o.pick(w.K, w.p, 0) + w.z <= o.pick(w.back, w.p, w.z)),
        v.Need(lambda o, w: w.e + w.k + o.pick(w.O, w.p, 0) + w.r <= w.M, th.MEM_RESERVE),
        v.Need(lambda o, w: kernel.under_cap(o, w.F, w.p, w.e + w.k + w.r, w.C), th.CAPPED),
    )
    seen, charging = {"ready": v.MASK, "score": v.VECTOR}, (kernel.admit, kernel.under_cap, kernel.reserve)
    amounts = dict.fromkeys("ekrz", v.SCALAR)
    return events.admissions(admit, amounts, needs, choose, seen, (kernel.choose,), charging)


def _running_events(kernel: v.Functions) -> tuple[v.Event, ...]:
    def decode(o: Algebra, w: v.World) -> v.Written:
        charge = v.product(w.t, w.w_q)
        return {"q": kernel.decode(o, w.q, charge), "O": w.O - w.t, "W": w.W + charge}

    def release(o: Algebra, w: v.World) -> v.Written:
        return {"F": kernel.reserve(o, w.F, w.p, -w.y), "O": o.bump(w.O, w.p, -w.x)}

    def preempt(o: Algebra, w: v.World) -> v.Written:
        return {**release(o, w), "queued": o.put(w.queued, w.p, True), "known": o.put(w.known, w.p, True)}

    produced = (v.Need(lambda o, w: w.t >= 0), v.Need(lambda o, w: w.t <= w.O, th.MEM_RESERVE))
    return (
        v.Event("decode", decode, {"t": v.VECTOR}, produced, (kernel.decode,)),
        v.Event("finish", release, _LEAVING, _LEAVES, (kernel.reserve,)),
        v.Event("preempt", preempt, _LEAVING, _LEAVES, (kernel.reserve,)),
        deficit_proofs.settles_at_more(kernel),
    )


def _charge_max(o: Algebra, w: v.World) -> v.Term:
    """`charge_max_reserved` of min(C, M), as one formula; U-capped proves that the shipped function says this."""
    last = o.where(w.w_e >= w.w_q, w.L, 1)
    return v.product(w.w_q, o.minimum(w.C, w.M)) + v.product(w.w_e - w.w_q, last)


def capped_system(kernel: v.Functions = deficit) -> v.System:
    """The capped gate over an interval in which f and g are backlogged."""
    scalars = dict.fromkeys(("C", "M", "L", "w_e", "w_q"), v.SCALAR)
    kept = ("arrive", "arrive behind one's own", "arrive as printed, at zero", "leave the queue", "refill")
    both_wait = deficit_proofs.deficit_system(kernel, backlogged=("f", "g"))
    uncapped = (event for event in both_wait.events if event.name in kept)
    return v.System(
        "deficit gate under a cap",
        parameters={
            **dict.fromkeys(("Q", "q0", "back"), v.VECTOR),
            **{"f": v.POINT, "g": v.POINT},
            **scalars,
        },
        laws=(
            v.Need(lambda o, w: w.Q >= 1, th.QUANTUM_POSITIVE),
            v.Need(lambda o, w: o.exists(w.f) & o.exists(w.g)),
            v.Need(lambda o, w: (w.w_e >= 1) & (w.w_q >= 1) & (w.L >= 1)),
            v.Need(lambda o, w: (w.L <= w.C - 1) & (w.L <= w.M - 1)),
            deficit_proofs.EQUAL,
        ),
        fields={"q": v.VECTOR, "queued": v.MASK, "known": v.MASK, **dict.fromkeys("FOKWP", v.VECTOR)},
        events=(*uncapped, *_admission_events(kernel), *_running_events(kernel)),
        derived={"U": _charge_max},
    )


def _reserved(o: Algebra, w: v.World) -> v.Term:
    """What may still be charged to each client for outputs, in cost."""
    return v.product(w.O, w.w_q)


_CAPPED_RANGE = (
    v.Clause("1 - U <= q - R", lambda o, w: w.q - _reserved(o, w) >= 1 - w.U),
    *deficit_proofs.CREDIT,
    v.Clause("0 <= O <= F", lambda o, w: (w.O >= 0) & (w.O <= w.F)),
    v.Clause("waiting clients are known", lambda o, w: v.implies(o, w.queued, w.known)),
)


def _gap_within(o: Algebra, w: v.World) -> v.Term:
    service_f, service_g = deficit_proofs.both(o, w, "W")
    quantum_f, quantum_g = deficit_proofs.both(o, w, "Q")
    bound = quantum_f + quantum_g + w.U + w.U - 2 + deficit_proofs.both_backs(o, w)
    return (service_f - service_g <= bound) & (service_g - service_f <= bound)


def _capped(kernel: v.Functions) -> v.Claim:
    began = v.Clause("1 - U <= q0 <= Q + B", lambda o, w: (w.q0 >= 1 - w.U) & (w.q0 <= w.Q + w.back))
    return v.Claim(
        deficit.D_CAP,
        capped_system(kernel),
        (*_CAPPED_RANGE, *deficit_proofs.NOTHING_COUNTED),
        (*_CAPPED_RANGE, began, deficit_proofs.BALANCED, v.Clause("P_f = P_g", deficit_proofs.same_credit)),
        (deficit_proofs.IN_RANGE, v.Clause("|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g", _gap_within)),
    )


# --- an elastic cap, in cost units ------------------------------------------------------------------------------------
# N are the KV tokens in flight, of outputs those that are likely, and F is what the gate counts.  V is what may be
# charged for so many: U of N just after the client was last let in.  T counts how often it was let in since
# the interval began.

_HELD = dict.fromkeys("FNVT", v.VECTOR)
_COUNTED = v.Clause("F = N", lambda o, w: v.same(w.F, w.N))


def _counting(of: v.System, kernel: v.Functions, *needs: v.Need) -> v.System:
    """The system in which a request of `e` tokens enters with `u` as U of what is then in flight, and `y` leave."""

    def counted(event: v.Event) -> v.Event:
        if event.name.startswith("admit"):
            likely = v.Need(lambda o, w: w.x + o.pick(w.R, w.p, 0) + w.r <= w.u, th.OUTPUTS_LIKELY)
            more = attrs.evolve(event, facts={**event.facts, "e": v.SCALAR, "u": v.SCALAR})
            return v.and_also(
                attrs.evolve(more, kernels=(*event.kernels, kernel.reserve)).with_needs(
                    v.Need(lambda o, w: (w.e >= 1) & (w.u >= 1)), likely, *needs
                ),
                F=lambda o, w, _: kernel.reserve(o, w.F, w.p, w.e),
                N=lambda o, w, _: o.bump(w.N, w.p, w.e),
                V=lambda o, w, _: o.put(w.V, w.p, w.u),
                T=lambda o, w, _: o.bump(w.T, w.p, 1),
            )
        if event.name == "finish" or event.name.startswith("preempt"):
            more = attrs.evolve(event, facts={**event.facts, "y": v.SCALAR})
            more = attrs.evolve(more, kernels=(*event.kernels, kernel.reserve))
            return v.and_also(
                more, F=lambda o, w, _: kernel.reserve(o, w.F, w.p, -w.y), N=lambda o, w, _: o.bump(w.N, w.p, -w.y)
            )
        return event

    return attrs.evolve(of, fields={**of.fields, **_HELD}, events=tuple(map(counted, of.events)))


def in_flight_system(kernel: v.Functions = deficit) -> v.System:
    """The gate under any cap or none."""
    held = _counting(deficit_proofs.deficit_system(kernel), kernel)
    return attrs.evolve(held, derived={"most": lambda o, w: o.maximum(w.V, 1)})


def elastic_system(kernel: v.Functions = deficit) -> v.System:
    """The gate under an elastic cap, over an interval in which f and g are backlogged; `E` is U of max(C, S), S the
    largest request."""

    def within(o: Algebra, w: v.World) -> v.Term:
        after = o.pick(w.N, w.p, 0) + w.e
        return o.where((after <= w.C) | (after <= w.S), w.u <= w.E, True)

    needs = (
        v.Need(lambda o, w: w.e <= w.S),
        v.Need(within),
        v.Need(lambda o, w: kernel.may_hold(o, w.F, w.queued, w.p, w.e, w.C), th.CAPPED_TOGETHER),
        *(events.waits("f"), events.waits("g")),
    )
    both_wait = deficit_proofs.deficit_system(kernel, backlogged=("f", "g"))
    apart = v.Need(lambda o, w: o.where(o.pick(v.only(o, w.Q, w.f), w.g, False), False, True))
    more = {"R0": v.VECTOR, "V0": v.VECTOR, **dict.fromkeys("CES", v.SCALAR)}
    capped = attrs.evolve(
        _counting(both_wait, kernel, *needs).with_laws(deficit_proofs.EQUAL, apart, v.Need(lambda o, w: w.E >= 1)),
        parameters={**both_wait.parameters, **more},
        derived={"before": lambda o, w: o.maximum(w.V0, w.E)},
    )
    asked = (kernel.may_hold, kernel.under_cap, kernel.lone)
    asking = (
        attrs.evolve(event, kernels=(*event.kernels, *asked)) if event.name.startswith("admit") else event
        for event in capped.events
    )
    return attrs.evolve(capped, events=tuple(asking))


def _in_flight(kernel: v.Functions) -> v.Claim:
    held = v.Clause("1 - V <= q - R", lambda o, w: w.q - w.R >= 1 - w.most)
    return v.Claim(
        deficit.D_IN_FLIGHT,
        in_flight_system(kernel),
        (*deficit_proofs.NOTHING_YET, v.Clause("nothing is in flight", lambda o, w: v.same(w.F, 0) & v.same(w.N, 0))),
        (held, *deficit_proofs.RANGE[1:], _COUNTED),
        (held, *deficit_proofs.CREDIT, _COUNTED),
    )


def _elastic(kernel: v.Functions) -> v.Claim:
    """f is let in within the cap or with a request alone: what it may still be charged then is U(max(C, S)) at most."""
    not_below = v.Clause("1 - max(V0, E) <= q - R", lambda o, w: w.q - w.R >= 1 - w.before)
    started = (
        *(*deficit_proofs.RANGE[1:], not_below, *deficit_proofs.NOTHING_COUNTED, _COUNTED),
        v.Clause("R = R0, T = 0", lambda o, w: v.same(w.R, w.R0) & v.same(w.T, 0)),
    )
    began = v.Clause("1 - max(V0, E) <= q0 <= Q + B", lambda o, w: (w.q0 >= 1 - w.before) & (w.q0 <= w.Q + w.back))
    since = v.Clause("let in since: 1 - E <= q - R", lambda o, w: v.implies(o, w.T >= 1, w.q - w.R >= 1 - w.E))
    rest = v.Clause("else W + R <= R0", lambda o, w: (w.T >= 0) & o.where(w.T >= 1, True, w.W + w.R <= w.R0))

    def gap(o: Algebra, w: v.World) -> v.Term:
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
        v.Clause("P_f = P_g", deficit_proofs.same_credit),
    )
    bounded = v.Clause("the gap is bounded, or f had what was in flight", gap)
    return v.Claim(deficit.D_ELASTIC, elastic_system(kernel), started, invariants, (bounded,))


def _holds_back(kernel: v.Functions) -> v.Claim:
    """f waits in credit; whether it is `ready` does not matter to a refill."""

    as_before = (v.Clause("q = q0", lambda o, w: v.same(w.q, w.q0)),)
    waits = v.Need(lambda o, w: o.pick(w.queued & (w.q > 0), w.f, False), th.BACKLOGGED_DURING)
    return v.Claim(
        deficit.D_CAP_HOLDS,
        v.System(
            "refill beside a capped client",
            parameters={"Q": v.VECTOR, "queued": v.MASK, "known": v.MASK, "q0": v.VECTOR, "f": v.POINT},
            laws=(v.Need(lambda o, w: w.Q >= 1),),
            fields={"q": v.VECTOR},
            events=(_round("refill", kernel, waits),),
        ),
        as_before,
        as_before,
        (v.Clause("no client is topped up", lambda o, w: v.same(w.q, w.q0)),),
    )


def claims(kernel: v.Functions = deficit) -> tuple[v.Claim, ...]:
    """The claims about the kernel functions of `kernel`."""
    return (
        _gate_claim(kernel),
        _first_claim(kernel),
        _refill_claim(kernel),
        sums_claim(deficit.D_SUMS, "deficit", kernel.decode),
        _printed_claim(kernel),
        _under_cap_claim(kernel),
        _capped(kernel),
        _in_flight(kernel),
        _elastic(kernel),
        _may_hold_claim(kernel),
        _holds_back(kernel),
    )
