"""What the counter gate promises a client that waits, against clients that need not: V-4.9 and V-4.11.

Over an interval in which f waits, no counter that joins the queue, and none in it, is ever below `lowest`, whatever is
given back: that is m_f + R_f - U_f at t1 (m_f, if f was lifted then to where no refund takes one that waits).  A client
that has not waited since t1 is served only what was reserved for it, R0; from then on its service is paid for by its
counter, which starts no lower than `lowest` and never gets further above f's than U_g.
"""

from collections.abc import Mapping

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.pricing import charge_max_reserved
from fairsched.model.theorem import CAPACITY_FLOOR, CHARGES_AT_LEAST_ONE, MEM_SHARED, Theorem
from fairsched.policies.gates import V_49, V_49_WORKER, V_411, V_411_TIME
from fairsched.verify import logic as v
from fairsched.verify.proofs.gates import changes
from fairsched.verify.proofs.gates import counter as counter_proofs
from fairsched.verify.proofs.kernels import counter

_AT_LEAST_ONE = v.Need(lambda o, w: w.x >= 1, CHARGES_AT_LEAST_ONE)
_SOMEBODY_ELSE = v.Need(lambda o, w: o.where(o.pick(v.only(o, w.c, w.f), w.p, False), False, True))


def met(w: v.World) -> v.Term:
    """Who has waited since the interval's start."""
    return w.met | w.queued | w.was


def _while_f_waits(
    kernel: v.Functions, on_admission: v.Need, parameters: Mapping[str, v.Kind], **derived: v.Formula
) -> v.System:
    """The gate over an interval in which f waits; `met` remembers who did, `first` who did at its start."""
    one = counter_proofs.counter_system(kernel, backlogged=("f",))

    def watched(event: v.Event) -> v.Event:
        event = event.with_needs(on_admission) if event.name.startswith("admit") else event
        return event.also(met=met)

    return attrs.evolve(
        one,
        parameters={**one.parameters, "R0": v.Kind.VECTOR, **parameters},
        fields={**one.fields, "met": v.Kind.MASK},
        events=tuple(map(watched, one.events)),
        derived={**one.derived, **derived},
    )


_AT_START = {"first": v.Kind.MASK, "lifted": v.Kind.FLAG}


def _from_reserve(o: Algebra, w: v.World) -> v.Term:
    """m_f + R_f - U_f at t1."""
    return o.pick(w.m0, w.f, 0) + o.pick(w.R0, w.f, 0) - o.pick(w.U, w.f, 0)


def _or_lifted(o: Algebra, w: v.World) -> v.Term:
    return o.where(w.lifted, o.pick(w.m0, w.f, 0), _from_reserve(o, w))


def _own_service(o: Algebra, w: v.World) -> v.Term:
    """f is served only what was reserved for it at the start."""
    return o.pick(w.W, w.f, 0) + o.pick(w.R, w.f, 0) <= o.pick(w.R0, w.f, 0)


_F_WAITED = v.Clause("f waited", lambda o, w: o.pick(w.queued | w.was, w.f, True))
_R_IS_R0 = v.Clause("R = R0", lambda o, w: v.same(w.R, w.R0))
_PAID_FOR = (
    v.Clause("m_f <= m0_f + W_f", lambda o, w: o.pick(w.m, w.f, 0) <= o.pick(w.m0, w.f, 0) + o.pick(w.W, w.f, 0)),
    v.Clause("c >= c0 + W", lambda o, w: w.c >= w.c0 + w.W),
)
_DID_NOT_WAIT = v.Clause("W + R <= R0 for who did not", lambda o, w: o.where(met(w), True, w.W + w.R <= w.R0))
_STARTS = (
    *counter_proofs.INVARIANT,
    *counter_proofs.INTERVAL_STARTS,
    _F_WAITED,
    _R_IS_R0,
    v.Clause("met and first wait", lambda o, w: v.implies(o, w.met, w.queued) & v.implies(o, w.first, w.queued)),
)
_WAITING = (
    *counter_proofs.INVARIANT,
    _F_WAITED,
    *_PAID_FOR,
    v.Clause("0 <= R0 <= U", lambda o, w: (w.R0 >= 0) & (w.R0 <= w.U)),
    v.Clause("b >= lowest for waiting clients", lambda o, w: v.implies(o, w.queued | w.was, w.b >= w.lowest)),
    v.Clause("W <= R0 + c - lowest for who waited", lambda o, w: v.implies(o, met(w), w.R0 + w.c - w.lowest >= w.W)),
    _DID_NOT_WAIT,
)


def _one_sided(kernel: v.Functions) -> v.Claim:
    room = v.Clause("R <= U - 1", lambda o, w: (w.R <= w.U - 1) & (w.R0 <= w.U - 1))
    return v.Claim(
        V_49,
        _while_f_waits(kernel, _AT_LEAST_ONE, _AT_START, lowest=_from_reserve),
        (*_STARTS, v.Clause("R <= U - 1", lambda o, w: w.R <= w.U - 1)),
        (*_WAITING, room),
        (v.Clause("W_g - W_f <= U_f + 2 U_g - 1", _close_above),),
    )


def _close_above(o: Algebra, w: v.World) -> v.Term:
    return o.pick(w.W, w.f, 0) + o.pick(w.U, w.f, 0) + w.U + w.U - 1 >= w.W


def _latency(kernel: v.Functions) -> v.Claim:
    of = _while_f_waits(kernel, _SOMEBODY_ELSE, _AT_START, lowest=_or_lifted)
    return v.Claim(
        V_411,
        of,
        (*_STARTS, v.Clause("f was lifted", _was_lifted)),
        (
            *_WAITING,
            v.Clause("c0 >= lowest for who waited at t1", lambda o, w: v.implies(o, w.first, w.c0 >= w.lowest)),
            v.Clause("W_f + R_f <= R0_f, R0_f = 0 if f was lifted", _own_service_at_most),
        ),
        (
            v.Clause("W_g <= U_f + U_g + R_g(t1)", _bounded),
            v.Clause("W_f <= R_f(t1)", lambda o, w: o.pick(w.W, w.f, 0) <= o.pick(w.R0, w.f, 0)),
        ),
    )


def _was_lifted(o: Algebra, w: v.World) -> v.Term:
    """To the lowest counter that waits, below which no refund takes one, with nothing in flight."""
    lowest = v.implies(o, w.queued | w.was, w.b >= o.pick(w.m0, w.f, 0)) & (o.pick(w.R0, w.f, 0) <= 0)
    return v.implies(o, v.spread(w.lifted, w.c), lowest)


def _own_service_at_most(o: Algebra, w: v.World) -> v.Term:
    return _own_service(o, w) & o.where(w.lifted, o.pick(w.R0, w.f, 0) <= 0, True)


def _most(o: Algebra, w: v.World) -> v.Term:
    """U_f + U_g + R_g(t1) for each g."""
    own = o.where(w.lifted, 0, o.pick(w.U, w.f, 0))
    return w.U + own + o.where(w.first, 0, w.R0)


def _bounded(o: Algebra, w: v.World) -> v.Term:
    return o.put(w.W, w.f, 0) <= _most(o, w)


# --- one worker -------------------------------------------------------------------------------------------------------


def _fits_beside(o: Algebra, w: v.World) -> v.Term:
    """What p may then be charged and what any other may still be, together."""
    together = o.put(w.R, w.p, 0) + (w.x + w.r + o.pick(w.R, w.p, 0))
    return o.where(v.spread(o.exists(w.p), w.R), together <= w.U_max, True)


def _system(kernel: v.Functions) -> v.System:
    one = _while_f_waits(kernel, v.Need(_fits_beside, MEM_SHARED), {"U_max": v.Kind.SCALAR}, least=_least)
    return attrs.evolve(one, events=tuple(map(counter_proofs.without_refunds, one.events))).with_laws(
        v.Need(lambda o, w: w.U_max >= w.U)
    )


# --- the invariant --------------------------------------------------------------------------------------------------


def _least(o: Algebra, w: v.World) -> v.Term:
    """The lowest counter that waits, or waited before the last event; that of the last that left if none did."""
    waited = w.queued | w.was
    return o.pick(w.c, o.argmin(w.c, waited), o.pick(w.c, w.last, 0))


def _except(o: Algebra, w: v.World, i: v.Term) -> v.Term:
    return o.put(v.spread(True, w.c), i, False)


def _close_beside(o: Algebra, w: v.World, i: v.Term) -> v.Term:
    ahead = o.pick(w.c, i, 0) + o.pick(w.R, i, 0) - w.U_max
    return v.implies(o, _except(o, w, i), (ahead <= w.c) | (ahead + w.R <= w.least))


def _share_memory(o: Algebra, w: v.World, i: v.Term) -> v.Term:
    return v.implies(o, _except(o, w, i), o.pick(w.R, i, 0) + w.R <= w.U_max)


SHARED = (
    *counter_proofs.WITHOUT_REFUNDS,
    v.Clause("c_i + R_i <= c_g + U or c_i + R_i + R_g <= least + U", _close_beside, points=1),
    v.Clause("R_i + R_g <= U", _share_memory, points=1),
)


# --- the interval ---------------------------------------------------------------------------------------------------


def _lowest(o: Algebra, w: v.World) -> v.Term:
    """c_f + R_f + R_g - U at t1, over g."""
    return o.pick(w.c0, w.f, 0) + o.pick(w.R0, w.f, 0) + w.R0 - w.U_max


def _paid_by_f(o: Algebra, w: v.World) -> v.Term:
    return v.same(o.pick(w.c, w.f, 0), o.pick(w.c0, w.f, 0) + o.pick(w.W, w.f, 0))


def _near(o: Algebra, w: v.World) -> v.Term:
    """Who is f, or was no further than U behind f at t1."""
    near = w.c0 + w.U_max >= o.pick(w.c0, w.f, 0) + o.pick(w.R0, w.f, 0)
    return o.put(near, w.f, True)


def _paid(o: Algebra, w: v.World) -> v.Term:
    return v.implies(o, met(w), _near(o, w) | (w.R0 + w.c - _lowest(o, w) >= w.W))


def _one_sided_on_worker(o: Algebra, w: v.World) -> v.Term:
    left = o.pick(w.W, w.f, 0) + w.U + w.U_max - o.pick(w.R0, w.f, 0)
    return v.implies(o, _except(o, w, w.f), left >= w.W)


def _on_worker(kernel: v.Functions) -> v.Claim:
    return v.Claim(
        V_49_WORKER,
        _system(kernel),
        (
            *SHARED,
            *counter_proofs.INTERVAL_STARTS,
            _F_WAITED,
            _R_IS_R0,
            v.Clause("met waits", lambda o, w: v.implies(o, w.met, w.queued)),
        ),
        (
            *SHARED,
            v.Clause("R0 >= 0", lambda o, w: w.R0 >= 0),
            _F_WAITED,
            v.Clause("c_f = c0_f + W_f", _paid_by_f),
            _PAID_FOR[1],
            v.Clause("least >= lowest, or near", lambda o, w: _near(o, w) | (_lowest(o, w) <= w.least)),
            v.Clause("W <= R0 + c - lowest for who waited, or near", _paid),
            _DID_NOT_WAIT,
        ),
        (v.Clause("W_g - W_f <= U_g + U - R_f(t1)", _one_sided_on_worker),),
    )


# --- from service to time ---------------------------------------------------------------------------------------------


def in_time(theorem: Theorem, waits: v.Claim, most: v.Formula) -> v.Claim:
    """The claim about a wait with a clock: `owed` is a times the time that was last read, and `B` the sum of what each
    client may be charged meanwhile, `most`."""
    read = v.Event(
        "the clock is read",
        lambda o, w: {"owed": w.a_t},
        {"a_t": v.Kind.SCALAR},
        (
            # What B stands for is asked where it matters: sums over all clients are dear.
            v.Need(lambda o, w: v.same(w.B, v.total(o, most(o, w)))),
            v.Need(lambda o, w: w.a_t <= v.total(o, w.W), CAPACITY_FLOOR),
        ),
    )
    of = waits.system
    bounded = v.Clause("owed <= B once the clock was read", lambda o, w: o.where(w.owed >= 1, w.owed <= w.B, True))
    return v.Claim(
        theorem,
        attrs.evolve(
            of,
            parameters={**of.parameters, "B": v.Kind.SCALAR},
            fields={**of.fields, "owed": v.Kind.SCALAR},
            events=(*of.events, read),
        ),
        (*waits.start, v.Clause("owed = 0", lambda o, w: v.same(w.owed, 0))),
        (*waits.invariants, bounded),
        (bounded,),
    )


def _latency_in_time(kernel: v.Functions) -> v.Claim:
    """V-4.11 with a clock."""

    def most(o: Algebra, w: v.World) -> v.Term:
        return o.put(_most(o, w), w.f, o.pick(w.R0, w.f, 0))

    return in_time(V_411_TIME, _latency(kernel), most)


def claims(kernel: v.Functions = counter) -> tuple[v.Claim, ...]:
    """The claims about the kernel functions of `kernel`."""
    return (
        _one_sided(kernel),
        _latency(kernel),
        _on_worker(kernel),
        _latency_in_time(kernel),
    )


# --- runs that attain the bounds --------------------------------------------------------------------------------------

MEMORY = 3
CHARGE_MAX = charge_max_reserved(v.RATES, MEMORY, 2)


def _turn(client: int) -> list[v.RunStep]:
    """A prompt of one token, and outputs that fill the memory: U."""
    return list(v.served(3, client, 1, MEMORY - 1))


def _arrives(client: int) -> v.RunStep:
    return ("arrive", {"p": client})


def _parameters(f: int, g: int) -> v.Values:
    return {"U": (CHARGE_MAX,) * 3, "f": f, "g": g}


def counter_witness() -> v.Witness:
    """V-4.4: client 0 is served 2U while client 1 waits and gets nothing.

    The kernel serves the first of equals.  Client 1 is served U while client 2 waits at 0; client 0 joins at 0, is
    served U, ties with client 1, and as the first of equals is served U again.
    """
    before = [_arrives(1), _arrives(2), *_turn(1), _arrives(0)]
    steps = (*before, (v.BEGIN, {}), *_turn(0), *_turn(2), *_turn(0))
    bound = counter.gap_cost(0, CHARGE_MAX, 0, CHARGE_MAX)
    return v.Witness(_claim("V-4.4"), 3, _parameters(0, 1), steps, bound, {"c0": "c", "m0": "m"})


def _priced(step: v.RunStep) -> v.RunStep:
    """At the dearest price throughout."""
    name, facts = step
    return (name, {**facts, "y": facts["d"]}) if name == "decode" else step


def _overtaking_run() -> tuple[v.RunStep, ...]:
    """Client 0 (g) has U - 1 reserved and does not wait; 1 (f) stands at 2U, 2 waits at U.

    g decodes U - 1, comes back at U, is served U, ties with f once client 2 has left, and is served U again.
    """
    last = ("admit the last that waits", {"x": 1, "r": CHARGE_MAX - 1, "k": 0})
    before = [_arrives(0), _arrives(1), _arrives(2), last, *_turn(1), *_turn(2), *_turn(1)]
    steps: list[v.RunStep] = [("decode", {"d": v.one(3, 0, CHARGE_MAX - 1)}), _arrives(0), *_turn(0)]
    steps += [("leave the queue", {"p": 2}), *_turn(0)]
    return (*before, (v.BEGIN, {}), *steps)


def _claim(theorem: str) -> v.Claim:
    return v.claim_named(theorem, (*counter_proofs.claims(), *claims(), *changes.claims()))


def witnesses() -> tuple[v.Witness, ...]:
    """One run a bound of the counter gate."""
    gap, history = counter_witness(), counter_proofs.counter_system()
    # Of two who wait at 0 one is admitted with U.
    close = v.Witness(
        _claim("V-4.3"),
        3,
        _parameters(0, 1),
        (_arrives(0), _arrives(1), *_turn(0)[:1]),
        CHARGE_MAX,
        measure=lambda w: int(w.c[0]) + int(w.R[0]) - int(w.c[1]),
    )
    # f gets nothing, g 3U - 1.
    one_sided = v.Witness(
        _claim("V-4.9"),
        3,
        _parameters(1, 0),
        _overtaking_run(),
        counter.one_sided_gap_cost(0, CHARGE_MAX, 0, CHARGE_MAX),
        {"c0": "c", "m0": "m", "R0": "R", "first": "queued", "met": "queued"},
        history=history,
    )
    # The run of V-4.4, in which no request runs beside another.
    on_one_worker = attrs.evolve(
        gap,
        claim=_claim("V-4.9-worker"),
        parameters={**_parameters(1, 0), "U_max": CHARGE_MAX},
        bound_cost=counter.worker_gap_cost(0, CHARGE_MAX, 0, CHARGE_MAX),
        snapshots={"c0": "c", "m0": "m", "R0": "R", "met": "queued"},
        history=history,
    )
    # The run of V-4.9: f is never let in, and 2U + R_g(t1) = 3U - 1.
    latency = attrs.evolve(
        one_sided, claim=_claim("V-4.11"), bound_cost=3 * CHARGE_MAX - 1, measure=lambda w: int(w.W[w.g])
    )
    changing = attrs.evolve(gap, claim=_claim("V-change"), steps=tuple(map(_priced, gap.steps)))
    return (close, gap, one_sided, on_one_worker, latency, changing)
