"""The deficit gate inside the batch, for any number of clients: its U has a batch where the plain gate has the memory.

The system is the deficit gate's, with other bounds on what may be charged.  R is what a client may still be charged
before the gate looks at it again: an admission adds what the first token costs, and every look renews it, to at most
b = w_q B for a client that may decode and to no more than there was for one that is paused.  So nothing in flight
counts, whatever the memory holds.  l is w_e L, the price of the longest request, U = b + l, and the depth P from which
clients are paused may be anything up to l at any time.

A debt may be deeper when an interval starts: of a gate that forgives nothing, or that took the place of another one
while it ran.  D-pause-debt says what that costs.
"""

from typing import Any

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import (
    BATCH_BOUNDED,
    EXTEND_AS_PLANNED,
    PAUSES_OBEYED,
    QUANTUM_POSITIVE,
    Theorem,
)
from fairsched.policies.gates.deficit import (
    D_PAUSE,
    D_PAUSE_DEBT,
    D_PAUSE_GAP,
    D_PAUSE_LAG,
    D_PAUSE_PROGRESS,
    D_PAUSE_RANGE,
    D_PAUSE_WEIGHTED,
    D_PAUSE_WORK,
    gap_cost,
)
from fairsched.verify.logic import (
    BEGIN,
    Claim,
    Clause,
    Event,
    Functions,
    Kind,
    Need,
    RunStep,
    System,
    Term,
    Values,
    Witness,
    World,
    Written,
    implies,
    one,
    one_step,
    same,
    spread,
)
from fairsched.verify.proofs.gates import deficit as plain
from fairsched.verify.proofs.gates.deficit import both
from fairsched.verify.proofs.kernels import deficit, in_batch

# --- what may happen ------------------------------------------------------------------------------------------------

_SCALARS = {"b": Kind.SCALAR, "l": Kind.SCALAR}
_DEPTH = Need(lambda o, w: (w.depth >= 0) & (w.depth <= w.l), BATCH_BOUNDED)
_ENTERS = (
    plain.NOT_NEGATIVE,
    *plain.PART_COMES_BACK,
    Need(lambda o, w: w.r >= 0),
    Need(lambda o, w: w.x <= w.l, BATCH_BOUNDED),
    Need(lambda o, w: o.pick(w.R, w.p, 0) + w.r <= w.b, BATCH_BOUNDED),
)
_LEAVES = (plain.NOT_NEGATIVE, Need(lambda o, w: w.x <= o.pick(w.R, w.p, 0)))


def _obeyed(kernel: Functions) -> Need:
    """Of a client that may not decode no more is charged than what its prompts under way bring."""
    return Need(lambda o, w: o.where(kernel.may_decode(o, w.q, w.depth), True, w.r <= w.R), PAUSES_OBEYED)


def _batch_events(kernel: Functions, obeyed: tuple[Need, ...], stay: tuple[Need, ...]) -> tuple[Event, ...]:
    """What the gate inside the batch does beside the plain one."""

    def settle(o: Algebra, w: World) -> Written:
        q = kernel.forgive(o, w.q, w.queued, w.known, w.depth)
        return {"q": q, "P": w.P + (q - w.q)}

    return (
        Event(
            "look",
            lambda o, w: {"R": w.r},
            {"r": Kind.VECTOR, "depth": Kind.SCALAR},
            (Need(lambda o, w: w.r >= 0), Need(lambda o, w: w.r <= w.b, BATCH_BOUNDED), _DEPTH, *obeyed),
            (kernel.may_decode,),
        ),
        Event(
            "forgive",
            settle,
            {"depth": Kind.SCALAR},
            needs=(_DEPTH, *stay),
            kernels=(kernel.forgive,),
            # While f waits this event is there to change nothing.
            happens=None if stay else lambda o, w: o.none(w.queued) & o.any(w.known & (w.q <= -w.depth)),
        ),
    )


def in_batch_system(kernel: Functions = in_batch, *, backlogged: tuple[str, ...] = (), pauses: bool = True) -> System:
    """The gate of these kernel functions, over an interval in which `backlogged` ("f", "g") wait; one that does not
    pause lets every client decode."""
    fixed = plain.deficit_system(backlogged=backlogged)
    others = {
        "admit": _ENTERS,
        "admit past the gate": _ENTERS,
        "decode": (Need(lambda o, w: w.d >= 0), Need(lambda o, w: w.d <= w.R, PAUSES_OBEYED)),
        "finish": _LEAVES,
        "preempt": _LEAVES,
        "correct": (plain.NOT_NEGATIVE,),
    }
    events = [
        attrs.evolve(event, needs=others.get(event.name, event.needs))
        for event in fixed.events
        if event.name != "correct"
    ]
    settled = Event(
        "settle at more",
        lambda o, w: {"q": deficit.correct(o, w.q, w.p, w.x), "W": o.bump(w.W, w.p, w.x)},
        plain.ONE,
        others["correct"],
        (deficit.correct,),
        excluded_by=EXTEND_AS_PLANNED,
    )
    obeyed = (_obeyed(kernel),) if pauses else ()
    return System(
        "deficit gate inside the batch",
        {**fixed.parameters, **_SCALARS},
        (
            Need(lambda o, w: w.Q >= 1, QUANTUM_POSITIVE),
            Need(lambda o, w: o.exists(w.f) & o.exists(w.g)),
            Need(lambda o, w: (w.b >= 1) & (w.l >= 1) & (w.back >= 0)),
            Need(lambda o, w: same(w.U, w.b + w.l)),
        ),
        fixed.fields,
        (*events, settled, *_batch_events(kernel, obeyed, tuple(map(plain.waits, backlogged)))),
    )


# --- what holds -----------------------------------------------------------------------------------------------------

RANGE = (*plain.RANGE, Clause("R <= b", lambda o, w: w.b >= w.R))
_STARTS = (*RANGE, *plain.NOTHING_COUNTED)
_BEGAN = Clause("1 - U <= q0 <= Q + B", lambda o, w: (w.q0 >= 1 - w.U) & (w.q0 <= w.Q + w.back))
_BALANCE = (*RANGE, _BEGAN, plain.BALANCED)


def _intervals(kernel: Functions) -> tuple[Claim, ...]:
    one, pair = (in_batch_system(kernel, backlogged=clients) for clients in (("f",), ("f", "g")))

    def over_interval(theorem: Theorem, of: System, joint: Clause, *conclusions: Clause) -> Claim:
        return Claim(theorem, of, _STARTS, (*_BALANCE, joint), conclusions)

    return (
        Claim(D_PAUSE_RANGE, in_batch_system(kernel), plain.NOTHING_YET, RANGE, (plain.IN_RANGE,)),
        over_interval(
            D_PAUSE_GAP,
            pair.with_laws(plain.EQUAL),
            Clause("P_f = P_g", plain.same_credit),
            Clause("|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g", plain.gap_within),
        ),
        over_interval(
            D_PAUSE_LAG,
            one.with_laws(plain.EQUAL),
            Clause("P_f >= P_g", plain.at_least_as_much_credit),
            Clause("W_g - W_f <= 2(Q + U - 1) + B_f + B_g", plain.no_less_than_g),
        ),
        over_interval(
            D_PAUSE_WEIGHTED,
            pair,
            Clause("P_f Q_g = P_g Q_f", plain.same_rounds),
            Clause("|Q_g W_f - Q_f W_g| <= bound", plain.weighted_gap_within),
        ),
        _debt_claim(kernel),
    )


# --- a debt from before -----------------------------------------------------------------------------------------------


def _debt_claim(kernel: Functions) -> Claim:
    """Deficits are what they are at t1; none falls below that and below the range."""
    pair = in_batch_system(kernel, backlogged=("f", "g")).with_laws(plain.EQUAL)
    kept = (
        Clause("q - R falls below 1 - U only as deep as it was", _as_deep),
        *RANGE[1:],
        Clause("q0 <= Q + B, 0 <= R0 <= b", lambda o, w: (w.q0 <= w.Q + w.back) & (w.R0 >= 0) & (w.b >= w.R0)),
        plain.BALANCED,
        Clause("P_f = P_g", plain.same_credit),
    )
    return Claim(
        D_PAUSE_DEBT,
        attrs.evolve(pair, parameters={**pair.parameters, "R0": Kind.VECTOR}),
        (*RANGE[1:], *plain.NOTHING_COUNTED, Clause("R = R0", lambda o, w: same(w.R, w.R0))),
        kept,
        (Clause("W_f - W_g <= 2(Q + U - 1) + B_f + B_g + D_g, and the same of g", _gap_with_debt),),
    )


def _as_deep(o: Algebra, w: World) -> Term:
    return w.q - w.R >= o.minimum(1 - w.U, w.q0 - w.R0)


def _gap_with_debt(o: Algebra, w: World) -> Term:
    (service_f, service_g), (charge_f, charge_g), (from_f, from_g) = (both(o, w, name) for name in ("W", "U", "q0"))
    quantum_f, quantum_g = both(o, w, "Q")
    bound = gap_cost(quantum_f, charge_f, quantum_g, charge_g) + plain.both_backs(o, w)
    debt_f, debt_g = o.maximum(1 - charge_f - from_f, 0), o.maximum(1 - charge_g - from_g, 0)
    return (service_f - service_g <= bound + debt_g) & (service_g - service_f <= bound + debt_f)


# --- what the kernel does in one step ---------------------------------------------------------------------------------

_SEEN = {"q": Kind.VECTOR, "holds": Kind.MASK}


def _pause_claim(kernel: Functions) -> Claim:
    """`may` and `out` are what the kernel said of `q` and of the clients that hold paused requests."""

    def look(o: Algebra, w: World) -> Written:
        out = kernel.deepest_debtor(o, w.q_now, w.holds_now, w.depth)
        return {"may": kernel.may_decode(o, w.q_now, w.depth), "out": out, "q": w.q_now, "holds": w.holds_now}

    def deepest(o: Algebra, w: World) -> Term:
        found = spread(o.exists(w.out), w.q) & (w.q >= o.pick(w.q, w.out, 0))
        return implies(o, w.holds & (w.q <= -w.depth), found)

    return one_step(
        D_PAUSE,
        "deficit gate inside the batch, its look",
        {**_SEEN, "may": Kind.MASK, "out": Kind.POINT},
        Event(
            "look",
            look,
            {f"{name}_now": kind for name, kind in _SEEN.items()},
            kernels=(kernel.may_decode, kernel.deepest_debtor),
        ),
        (
            Clause("it may decode if and only if it owes less than P", lambda o, w: _exactly(o, w.may, w.q > -w.depth)),
            Clause("in credit it may decode", lambda o, w: implies(o, w.q > 0, w.may)),
            Clause(
                "what is taken out is of a client that is paused, holds requests and has no credit",
                lambda o, w: o.pick(w.holds & (w.q <= -w.depth) & (w.q <= 0), w.out, True),
            ),
            Clause("of those none owes more, and there is one if one is paused", deepest),
        ),
        parameters={"depth": Kind.SCALAR},
        laws=(Need(lambda o, w: w.depth >= 0),),
    )


def _exactly(o: Algebra, a: Term, b: Term) -> Term:
    return implies(o, a, b) & implies(o, b, a)


def _progress_claim(kernel: Functions) -> Claim:
    """A settled state: no refill is due, which D-refill says of the closed form, and what is forgiven is forgiven."""
    masks = {"q": Kind.VECTOR, "queued": Kind.MASK, "known": Kind.MASK}

    def settle(o: Algebra, w: World) -> Written:
        q = kernel.forgive(o, w.q_now, w.queued_now, w.known_now, w.depth)
        return {"q": q, "queued": w.queued_now, "known": w.known_now, "before": w.q_now}

    return one_step(
        D_PAUSE_PROGRESS,
        "deficit gate inside the batch, settled",
        {**masks, "before": Kind.VECTOR},
        Event(
            "settle",
            settle,
            {f"{name}_now": kind for name, kind in masks.items()},
            (Need(lambda o, w: o.where(deficit.refill_due(o, w.q_now, w.queued_now), False, True)),),
            (kernel.forgive, deficit.refill_due),
        ),
        (
            Clause("if clients wait one has credit", lambda o, w: o.where(w.waits, w.served, True)),
            Clause(
                "a client in credit may decode", lambda o, w: implies(o, w.q > 0, kernel.may_decode(o, w.q, w.depth))
            ),
            Clause(
                "if none waits every known client may",
                lambda o, w: o.where(
                    spread(w.waits, w.q), True, implies(o, w.known, kernel.may_decode(o, w.q, w.depth))
                ),
            ),
            Clause(
                "nothing is forgiven while a client waits, and no more than the depth asks",
                lambda o, w: o.where(spread(w.waits, w.q), same(w.q, w.before), _no_more(o, w)),
            ),
        ),
        parameters={"depth": Kind.SCALAR},
        laws=(Need(lambda o, w: w.depth >= 0),),
        derived={
            "waits": lambda o, w: o.any(w.queued),
            "served": lambda o, w: o.exists(deficit.choose(o, w.q, w.queued, w.queued, w.q)),
        },
    )


def _no_more(o: Algebra, w: World) -> Term:
    return same(w.q, w.before) | (same(w.q, 1 - w.depth) & (w.before <= -w.depth) & w.known)


# --- what is done between two pauses ----------------------------------------------------------------------------------


def _work_claim(kernel: Functions) -> Claim:
    """Since a client was last let in, `spent` was charged for outputs; `left` is the output that its request had left,
    at the price of input.  The depth is the largest price of a request, with such outputs, so far."""

    def admit(o: Algebra, w: World) -> Written:
        return {
            "q": deficit.admit(o, w.q, w.p, w.x),
            "spent": o.put(w.spent, w.p, 0),
            "left": o.put(w.left, w.p, w.y),
            "depth": o.maximum(w.depth, w.x + w.y),
        }

    def choose(o: Algebra, w: World) -> Term:
        return deficit.choose(o, w.q, w.queued, w.ready, w.score)

    masks, none_less = {"queued": Kind.MASK, "known": Kind.MASK}, Need(lambda o, w: w.x >= 0)
    events = (
        *plain.admission_events(
            admit,
            {"x": Kind.SCALAR, "y": Kind.SCALAR, **masks},
            (none_less, Need(lambda o, w: w.y >= 0)),
            choose,
            (deficit.in_credit, deficit.choose),
            (deficit.admit,),
        ),
        Event(
            "decode",
            lambda o, w: {"q": deficit.decode(o, w.q, w.d), "spent": w.spent + w.d},
            {"d": Kind.VECTOR},
            (Need(lambda o, w: w.d >= 0),),
            (deficit.decode,),
        ),
        Event("refill", lambda o, w: {"q": deficit.refill(o, w.q, w.queued, w.known, w.Q)}, masks),
        Event("forgive", lambda o, w: {"q": kernel.forgive(o, w.q, w.queued, w.known, w.depth)}, masks),
        Event("refund", lambda o, w: {"q": deficit.refund(o, w.q, w.p, w.x)}, plain.ONE, (none_less,)),
        Event(
            "settle at more",
            lambda o, w: {"q": deficit.correct(o, w.q, w.p, w.x)},
            plain.ONE,
            (none_less,),
            excluded_by=EXTEND_AS_PLANNED,
        ),
    )
    kept = Clause("1 - P + left <= q + spent", lambda o, w: w.q + w.spent >= 1 - w.depth + w.left)
    return Claim(
        D_PAUSE_WORK,
        System(
            "deficit gate inside the batch, from one admission to the next",
            {"Q": Kind.VECTOR},
            (Need(lambda o, w: w.Q >= 1, QUANTUM_POSITIVE),),
            {"q": Kind.VECTOR, "spent": Kind.VECTOR, "left": Kind.VECTOR, "depth": Kind.SCALAR},
            events,
        ),
        (
            Clause("nothing was let in", lambda o, w: same(w.spent, 0) & same(w.left, 0) & same(w.q, 0)),
            Clause("P >= 1", lambda o, w: w.depth >= 1),
        ),
        (kept,),
        (
            Clause(
                "what is paused was charged more than that for outputs",
                lambda o, w: kernel.may_decode(o, w.q, w.depth) | (w.spent >= w.left + 1),
            ),
        ),
    )


def claims(kernel: Functions = in_batch) -> tuple[Claim, ...]:
    """The theorems about the gate inside the batch whose kernel functions are `kernel`'s, over the plain gate's."""
    return (*_intervals(kernel), _pause_claim(kernel), _progress_claim(kernel), _work_claim(kernel))


# --- runs that attain the bounds --------------------------------------------------------------------------------------
# Two requests run (b = 4), the longest costs 5: U = 4 + 5 by the pause and by the prompt, and both ends are -8 and 4.

QUANTUM, U_MAX = 4, 9
BOUND = gap_cost(QUANTUM, U_MAX, QUANTUM, U_MAX)
F, G = 0, 1
_REFILL: RunStep = ("refill", {})


def _enters(client: int, charge: int, first: int) -> RunStep:
    return ("admit", {"x": charge, "r": first, "k": 0, "ready": (1, 1), "score": one(2, client, 1)})


def _decodes(client: int, *costs: int) -> tuple[RunStep, ...]:
    """Steps that cost the client so much each; the gate looks before each of them."""
    found: list[RunStep] = []
    for cost in costs:
        found += [("look", {"r": one(2, client, cost), "depth": U_MAX - 4}), ("decode", {"d": one(2, client, cost)})]
    return tuple(found)


def _by_pause(client: int) -> tuple[RunStep, ...]:
    """From 4 to -8: two prompts of 3, then a token, and two more from a debt of 4."""
    return (_enters(client, 3, 0), _enters(client, 3, 0), *_decodes(client, 2, 4))


def _by_prompt(client: int) -> tuple[RunStep, ...]:
    """From 4 to -8: prompts of 3 and 5, whose first tokens come when the client owes 4 and is paused."""
    return (_enters(client, 3, 2), _enters(client, 5, 2), ("decode", {"d": one(2, client, 4)}))


_BOTH: tuple[RunStep, ...] = (("arrive", {"p": F}), ("arrive", {"p": G}), _REFILL)
_START: RunStep = (BEGIN, {})
_WAITS: Values = {"queued": (1, 1), "known": (1, 1)}
_FIRST: Values = {"ready": (1, 1), "score": one(2, F, 1)}
_GAP = (*_BOTH, *_by_pause(G), _START, *_by_pause(F), *((_REFILL,) * 3), *_by_pause(F))


def _witness(claim: Claim, steps: tuple[RunStep, ...], bound: int, **more: Any) -> Witness:
    parameters: Values = {
        **{"Q": (QUANTUM,) * 2, "U": (U_MAX,) * 2, "f": F, "g": G},
        **{"b": 4, "l": U_MAX - 4},
    }
    return attrs.evolve(Witness(claim, 2, parameters, steps, bound, {"q0": "q"}), **more)


def witnesses() -> tuple[Witness, ...]:
    """One run a bound."""
    named = {claim.theorem.id: claim for claim in claims()}
    gap = _witness(named["D-pause-gap"], _GAP, BOUND)
    ends = (*_BOTH, *_by_prompt(G))
    swapped = {**gap.parameters, "f": G, "g": F}
    # g decoded on while the gate did not pause, and owes 4 more than U - 1 when f comes to wait with it.
    owes = (*_BOTH, _enters(G, 3, 0), _enters(G, 3, 0), *_decodes(G, 4, 4, 2), _START)
    spent = (*_by_pause(F), *((_REFILL,) * 3), *_by_pause(F), _REFILL, *_decodes(F, 4))
    return (
        _witness(
            named["D-pause-range"],
            ends,
            QUANTUM + U_MAX - 1,
            measure=lambda w: int(w.q[F]) - int(w.q[G]),
        ),
        gap,
        attrs.evolve(gap, claim=named["D-pause-lag"], parameters=swapped),
        _witness(
            named["D-pause-weighted"],
            _GAP,
            QUANTUM * BOUND,
            measure=lambda w: QUANTUM * (int(w.W[F]) - int(w.W[G])),
        ),
        _witness(
            named["D-pause-debt"],
            (*owes, *spent),
            BOUND + 4,
            snapshots={"q0": "q", "R0": "R"},
            history=in_batch_system(pauses=False),
        ),
        # A prompt of 3 with an output of 2 enters with a credit of 1: 3 for outputs, and it is paused.
        Witness(
            named["D-pause-work"],
            2,
            {"Q": (1, 1)},
            (("refill", _WAITS), ("admit", {"x": 3, "y": 2, **_WAITS, **_FIRST}), ("decode", {"d": (3, 0)})),
            3,
            measure=lambda w: int(w.spent[F]) if int(w.q[F]) <= -int(w.depth) else 0,
        ),
    )
