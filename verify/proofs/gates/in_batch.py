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

from fairsched.model import theorem as th
from fairsched.model.algebra import Algebra
from fairsched.policies.gates import deficit as gates_deficit
from fairsched.verify import events
from fairsched.verify import logic as v
from fairsched.verify.proofs.gates import deficit as plain
from fairsched.verify.proofs.gates.deficit import both
from fairsched.verify.proofs.kernels import deficit, in_batch

# --- what may happen ------------------------------------------------------------------------------------------------

_SCALARS = {"b": v.SCALAR, "l": v.SCALAR}
_DEPTH = v.Need(lambda o, w: (w.depth >= 0) & (w.depth <= w.l), th.BATCH_BOUNDED)
_ENTERS = (
    events.NOT_NEGATIVE,
    *events.PART_COMES_BACK,
    events.MORE,
    v.Need(lambda o, w: w.x <= w.l, th.BATCH_BOUNDED),
    v.Need(lambda o, w: o.pick(w.R, w.p, 0) + w.r <= w.b, th.BATCH_BOUNDED),
)
_LEAVES = (events.NOT_NEGATIVE, v.Need(lambda o, w: w.x <= o.pick(w.R, w.p, 0)))


def _obeyed(kernel: v.Functions) -> v.Need:
    """Of a client that may not decode no more is charged than what its prompts under way bring."""
    return v.Need(lambda o, w: o.where(kernel.may_decode(o, w.q, w.depth), True, w.r <= w.R), th.PAUSES_OBEYED)


def _batch_events(kernel: v.Functions, obeyed: tuple[v.Need, ...], stay: tuple[v.Need, ...]) -> tuple[v.Event, ...]:
    """What the gate inside the batch does beside the plain one."""

    def settle(o: Algebra, w: v.World) -> v.Written:
        q = kernel.forgive(o, w.q, w.queued, w.known, w.depth)
        return {"q": q, "P": w.P + (q - w.q)}

    return (
        v.Event(
            "look",
            lambda o, w: {"R": w.r},
            {"r": v.VECTOR, "depth": v.SCALAR},
            (lambda o, w: w.r >= 0, v.Need(lambda o, w: w.r <= w.b, th.BATCH_BOUNDED), _DEPTH, *obeyed),
            (kernel.may_decode,),
        ),
        v.Event(
            "forgive",
            settle,
            {"depth": v.SCALAR},
            needs=(_DEPTH, *stay),
            kernels=(kernel.forgive,),
            # While f waits this event is there to change nothing.
            happens=None if stay else lambda o, w: o.none(w.queued) & o.any(w.known & (w.q <= -w.depth)),
        ),
    )


def in_batch_system(
    kernel: v.Functions = in_batch, *, backlogged: tuple[str, ...] = (), pauses: bool = True
) -> v.System:
    """The gate of these kernel functions, over an interval in which `backlogged` ("f", "g") wait; one that does not
    pause lets every client decode."""
    decoded = (v.Need(lambda o, w: w.d >= 0), v.Need(lambda o, w: w.d <= w.R, th.PAUSES_OBEYED))
    fixed = plain.deficit_system(backlogged=backlogged, fits=_ENTERS, reserved=_LEAVES, decoded=decoded)
    every = (event for event in fixed.events if event.name != "correct")
    obeyed = (_obeyed(kernel),) if pauses else ()
    return v.System(
        "deficit gate inside the batch",
        {**fixed.parameters, **_SCALARS},
        (
            v.Need(lambda o, w: w.Q >= 1, th.QUANTUM_POSITIVE),
            v.Need(lambda o, w: o.exists(w.f) & o.exists(w.g)),
            v.Need(lambda o, w: (w.b >= 1) & (w.l >= 1) & (w.back >= 0)),
            v.Need(lambda o, w: v.same(w.U, w.b + w.l)),
        ),
        fixed.fields,
        (*every, plain.settles_at_more(deficit), *_batch_events(kernel, obeyed, tuple(map(events.waits, backlogged)))),
    )


# --- what holds -----------------------------------------------------------------------------------------------------

RANGE = (*plain.RANGE, v.Clause("R <= b", lambda o, w: w.b >= w.R))
_STARTS = (*RANGE, *plain.NOTHING_COUNTED)
_BEGAN = v.Clause("1 - U <= q0 <= Q + B", lambda o, w: (w.q0 >= 1 - w.U) & (w.q0 <= w.Q + w.back))
_BALANCE = (*RANGE, _BEGAN, plain.BALANCED)


def _intervals(kernel: v.Functions) -> tuple[v.Claim, ...]:
    alone, one, pair = (in_batch_system(kernel, backlogged=clients) for clients in ((), ("f",), ("f", "g")))
    theorems = (in_batch.D_PAUSE_GAP, in_batch.D_PAUSE_LAG, in_batch.D_PAUSE_WEIGHTED)
    return (
        v.Claim(in_batch.D_PAUSE_RANGE, alone, plain.NOTHING_YET, RANGE, (plain.IN_RANGE,)),
        *plain.interval_claims(theorems, one, pair, _STARTS, _BALANCE),
        _debt_claim(kernel),
    )


# --- a debt from before -----------------------------------------------------------------------------------------------


def _debt_claim(kernel: v.Functions) -> v.Claim:
    """Deficits are what they are at t1; none falls below that and below the range."""
    pair = in_batch_system(kernel, backlogged=("f", "g")).with_laws(plain.EQUAL)
    kept = (
        v.Clause(
            "q - R falls below 1 - U only as deep as it was", lambda o, w: w.q - w.R >= o.minimum(1 - w.U, w.q0 - w.R0)
        ),
        *RANGE[1:],
        v.Clause("q0 <= Q + B, 0 <= R0 <= b", lambda o, w: (w.q0 <= w.Q + w.back) & (w.R0 >= 0) & (w.b >= w.R0)),
        plain.BALANCED,
        v.Clause("P_f = P_g", plain.same_credit),
    )
    return v.Claim(
        in_batch.D_PAUSE_DEBT,
        attrs.evolve(pair, parameters={**pair.parameters, "R0": v.VECTOR}),
        (*RANGE[1:], *plain.NOTHING_COUNTED, v.Clause("R = R0", lambda o, w: v.same(w.R, w.R0))),
        kept,
        (v.Clause("W_f - W_g <= 2(Q + U - 1) + B_f + B_g + D_g, and the same of g", _gap_with_debt),),
    )


def _gap_with_debt(o: Algebra, w: v.World) -> v.Term:
    (service_f, service_g), (charge_f, charge_g), (from_f, from_g) = (both(o, w, name) for name in ("W", "U", "q0"))
    quantum_f, quantum_g = both(o, w, "Q")
    bound = gates_deficit.gap_cost(quantum_f, charge_f, quantum_g, charge_g) + plain.both_backs(o, w)
    debt_f, debt_g = o.maximum(1 - charge_f - from_f, 0), o.maximum(1 - charge_g - from_g, 0)
    return (service_f - service_g <= bound + debt_g) & (service_g - service_f <= bound + debt_f)


# --- what the kernel does in one step ---------------------------------------------------------------------------------


def _pause_claim(kernel: v.Functions) -> v.Claim:
    """`may` and `out` are what the kernel says of `q` and of the clients that hold paused requests."""

    def look(o: Algebra, w: v.World) -> v.Written:
        return {"may": kernel.may_decode(o, w.q, w.depth), "out": kernel.deepest_debtor(o, w.q, w.holds, w.depth)}

    def exactly(o: Algebra, w: v.World) -> v.Term:
        return v.implies(o, w.may, w.q > -w.depth) & v.implies(o, w.q > -w.depth, w.may)

    def deepest(o: Algebra, w: v.World) -> v.Term:
        found = v.spread(o.exists(w.out), w.q) & (w.q >= o.pick(w.q, w.out, 0))
        return v.implies(o, w.holds & (w.q <= -w.depth), found)

    return v.one_step(
        in_batch.D_PAUSE,
        "deficit gate inside the batch, its look",
        {"may": v.MASK, "out": v.POINT},
        v.Event("look", look, kernels=(kernel.may_decode, kernel.deepest_debtor)),
        (
            v.Clause("it may decode if and only if it owes less than P", exactly),
            v.Clause("in credit it may decode", lambda o, w: v.implies(o, w.q > 0, w.may)),
            v.Clause(
                "what is taken out is of a client that is paused, holds requests and has no credit",
                lambda o, w: o.pick(w.holds & (w.q <= -w.depth) & (w.q <= 0), w.out, True),
            ),
            v.Clause("of those none owes more, and there is one if one is paused", deepest),
        ),
        parameters={"q": v.VECTOR, "holds": v.MASK, "depth": v.SCALAR},
        laws=(lambda o, w: w.depth >= 0,),
    )


def _progress_claim(kernel: v.Functions) -> v.Claim:
    """A settled state: no refill was due, which D-refill says of the closed form, and what is forgiven is forgiven."""

    def may(o: Algebra, w: v.World) -> v.Term:
        return kernel.may_decode(o, w.q, w.depth)

    def settle(o: Algebra, w: v.World) -> v.Written:
        return {"q": kernel.forgive(o, w.before, w.queued, w.known, w.depth)}

    return v.one_step(
        in_batch.D_PAUSE_PROGRESS,
        "deficit gate inside the batch, settled",
        v.vectors("q"),
        v.Event("settle", settle, kernels=(kernel.forgive, deficit.refill_due)),
        (
            v.Clause("if clients wait one has credit", lambda o, w: o.where(w.waits, w.served, True)),
            v.Clause("a client in credit may decode", lambda o, w: v.implies(o, w.q > 0, may(o, w))),
            v.Clause(
                "if none waits every known client may",
                lambda o, w: o.where(v.spread(w.waits, w.q), True, v.implies(o, w.known, may(o, w))),
            ),
            v.Clause(
                "nothing is forgiven while a client waits, and no more than the depth asks",
                lambda o, w: o.where(v.spread(w.waits, w.q), v.same(w.q, w.before), _no_more(o, w)),
            ),
        ),
        parameters={"before": v.VECTOR, "queued": v.MASK, "known": v.MASK, "depth": v.SCALAR},
        laws=(
            lambda o, w: w.depth >= 0,
            lambda o, w: o.where(deficit.refill_due(o, w.before, w.queued), False, True),
        ),
        derived={
            "waits": lambda o, w: o.any(w.queued),
            "served": lambda o, w: o.exists(deficit.choose(o, w.q, w.queued, w.queued, w.q)),
        },
    )


def _no_more(o: Algebra, w: v.World) -> v.Term:
    return v.same(w.q, w.before) | (v.same(w.q, 1 - w.depth) & (w.before <= -w.depth) & w.known)


# --- what is done between two pauses ----------------------------------------------------------------------------------


def _work_claim(kernel: v.Functions) -> v.Claim:
    """Since a client was last let in, `spent` was charged for outputs; `left` is the output that its request had left,
    at the price of input.  The depth is the largest price of a request, with such outputs, so far."""

    def admit(o: Algebra, w: v.World) -> v.Written:
        return {
            "q": deficit.admit(o, w.q, w.p, w.x),
            "spent": o.put(w.spent, w.p, 0),
            "left": o.put(w.left, w.p, w.y),
            "depth": o.maximum(w.depth, w.x + w.y),
        }

    def choose(o: Algebra, w: v.World) -> v.Term:
        return deficit.choose(o, w.q, w.queued, w.ready, w.score)

    masks, none_less = {"queued": v.MASK, "known": v.MASK}, v.Need(lambda o, w: w.x >= 0)
    every = (
        *events.admissions(
            admit,
            {"x": v.SCALAR, "y": v.SCALAR, **masks},
            (events.EXISTS, none_less, v.Need(lambda o, w: w.y >= 0)),
            choose,
            {"ready": v.MASK, "score": v.VECTOR},
            (deficit.choose,),
            (deficit.admit,),
        ),
        v.Event(
            "decode",
            lambda o, w: {"q": deficit.decode(o, w.q, w.d), "spent": w.spent + w.d},
            {"d": v.VECTOR},
            (lambda o, w: w.d >= 0,),
            (deficit.decode,),
        ),
        v.Event("refill", lambda o, w: {"q": deficit.refill(o, w.q, w.queued, w.known, w.Q)}, masks),
        v.Event("forgive", lambda o, w: {"q": kernel.forgive(o, w.q, w.queued, w.known, w.depth)}, masks),
        v.Event("refund", lambda o, w: {"q": deficit.refund(o, w.q, w.p, w.x)}, events.ONE, (none_less,)),
        v.Event(
            "settle at more",
            lambda o, w: {"q": deficit.admit(o, w.q, w.p, w.x)},
            events.ONE,
            (none_less,),
            excluded_by=th.EXTEND_AS_PLANNED,
        ),
    )
    kept = v.Clause("1 - P + left <= q + spent", lambda o, w: w.q + w.spent >= 1 - w.depth + w.left)
    return v.Claim(
        in_batch.D_PAUSE_WORK,
        v.System(
            "deficit gate inside the batch, from one admission to the next",
            {"Q": v.VECTOR},
            (v.Need(lambda o, w: w.Q >= 1, th.QUANTUM_POSITIVE),),
            {"q": v.VECTOR, "spent": v.VECTOR, "left": v.VECTOR, "depth": v.SCALAR},
            every,
        ),
        (
            v.Clause("nothing was let in", lambda o, w: v.same(w.spent, 0) & v.same(w.left, 0) & v.same(w.q, 0)),
            v.Clause("P >= 1", lambda o, w: w.depth >= 1),
        ),
        (kept,),
        (
            v.Clause(
                "what is paused was charged more than that for outputs",
                lambda o, w: kernel.may_decode(o, w.q, w.depth) | (w.spent >= w.left + 1),
            ),
        ),
    )


def claims(kernel: v.Functions = in_batch) -> tuple[v.Claim, ...]:
    """The theorems about the gate inside the batch whose kernel functions are `kernel`'s, over the plain gate's."""
    return (*_intervals(kernel), _pause_claim(kernel), _progress_claim(kernel), _work_claim(kernel))


# --- runs that attain the bounds --------------------------------------------------------------------------------------
# Two requests run (b = 4), the longest costs 5: U = 4 + 5 by the pause and by the prompt, and both ends are -8 and 4.

QUANTUM, U_MAX = 4, 9
BOUND = gates_deficit.gap_cost(QUANTUM, U_MAX, QUANTUM, U_MAX)
F, G = 0, 1
_REFILL: v.RunStep = ("refill", {})


def _enters(client: int, charge: int, first: int) -> v.RunStep:
    return ("admit", {"x": charge, "r": first, "k": 0, "ready": (1, 1), "score": v.one(2, client, 1)})


def _decodes(client: int, *costs: int) -> tuple[v.RunStep, ...]:
    """Steps that cost the client so much each; the gate looks before each of them."""
    found: list[v.RunStep] = []
    for cost in costs:
        found += [
            ("look", {"r": v.one(2, client, cost), "depth": U_MAX - 4}),
            ("decode", {"d": v.one(2, client, cost)}),
        ]
    return tuple(found)


def _by_pause(client: int) -> tuple[v.RunStep, ...]:
    """From 4 to -8: two prompts of 3, then a token, and two more from a debt of 4."""
    return (_enters(client, 3, 0), _enters(client, 3, 0), *_decodes(client, 2, 4))


def _by_prompt(client: int) -> tuple[v.RunStep, ...]:
    """From 4 to -8: prompts of 3 and 5, whose first tokens come when the client owes 4 and is paused."""
    return (_enters(client, 3, 2), _enters(client, 5, 2), ("decode", {"d": v.one(2, client, 4)}))


_BOTH: tuple[v.RunStep, ...] = (("arrive", {"p": F}), ("arrive", {"p": G}), _REFILL)
_START: v.RunStep = (v.BEGIN, {})
_WAITS: v.Values = {"queued": (1, 1), "known": (1, 1)}
_FIRST: v.Values = {"ready": (1, 1), "score": v.one(2, F, 1)}
_GAP = (*_BOTH, *_by_pause(G), _START, *_by_pause(F), *((_REFILL,) * 3), *_by_pause(F))


def _witness(claim: v.Claim, steps: tuple[v.RunStep, ...], bound: int, **more: Any) -> v.Witness:
    parameters: v.Values = {**{"Q": (QUANTUM,) * 2, "U": (U_MAX,) * 2, "f": F, "g": G}, **{"b": 4, "l": U_MAX - 4}}
    return attrs.evolve(v.Witness(claim, 2, parameters, steps, bound, {"q0": "q"}), **more)


def witnesses() -> tuple[v.Witness, ...]:
    """One run a bound."""
    named = {claim.theorem.id: claim for claim in claims()}
    gap = _witness(named["D-pause-gap"], _GAP, BOUND)
    ends = (*_BOTH, *_by_prompt(G))
    swapped = {**gap.parameters, "f": G, "g": F}
    # g decoded on while the gate did not pause, and owes 4 more than U - 1 when f comes to wait with it.
    owes = (*_BOTH, _enters(G, 3, 0), _enters(G, 3, 0), *_decodes(G, 4, 4, 2), _START)
    spent = (*_by_pause(F), *((_REFILL,) * 3), *_by_pause(F), _REFILL, *_decodes(F, 4))
    return (
        _witness(named["D-pause-range"], ends, QUANTUM + U_MAX - 1, measure=lambda w: int(w.q[F]) - int(w.q[G])),
        gap,
        attrs.evolve(gap, claim=named["D-pause-lag"], parameters=swapped),
        _witness(
            named["D-pause-weighted"], _GAP, QUANTUM * BOUND, measure=lambda w: QUANTUM * (int(w.W[F]) - int(w.W[G]))
        ),
        _witness(
            named["D-pause-debt"],
            (*owes, *spent),
            BOUND + 4,
            snapshots={"q0": "q", "R0": "R"},
            history=in_batch_system(pauses=False),
        ),
        # A prompt of 3 with an output of 2 enters with a credit of 1: 3 for outputs, and it is paused.
        v.Witness(
            named["D-pause-work"],
            2,
            {"Q": (1, 1)},
            (("refill", _WAITS), ("admit", {"x": 3, "y": 2, **_WAITS, **_FIRST}), ("decode", {"d": (3, 0)})),
            3,
            measure=lambda w: int(w.spent[F]) if int(w.q[F]) <= -int(w.depth) else 0,
        ),
    )
