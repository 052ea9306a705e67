"""What a swap of gates keeps: the new gate's invariant holds at once, and the gap of an interval with a swap in it.

swap-V and swap-D are about one event, the swap, for any weights: its facts are a state in which the old gate's
invariant holds, and the claim is that the new gate's holds of what the closed forms make of it.  `R` is in cost units;
the counter gate counts it, as everything, times the client's share.

swap-gap-V and swap-gap-D run both gates one after the other: each event belongs to one of them, and the swap ends the
first.  Both books go on: those of the first gate stand still after the swap, and service is the sum.  Nothing is given
back there: what one gate charged and the other gives back is no book's.
"""

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.pricing import charge_max_reserved
from fairsched.model.theorem import Theorem
from fairsched.policies.local import SWAP_D, SWAP_GAP_D, SWAP_GAP_V, SWAP_V, gap_to_counter_cost, gap_to_deficit_cost
from fairsched.verify import logic as v
from fairsched.verify.proofs.gates import counter as counter_proofs
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.proofs.gates.deficit import EQUAL, both, same_credit, waits
from fairsched.verify.proofs.kernels import counter, deficit, state_transfer

# --- the swap alone, for any weights --------------------------------------------------------------------------------

_LAWS = (v.Need(lambda o, w: w.U >= 1), v.Need(lambda o, w: w.share >= 1))
_BEFORE = v.Clause("no swap yet", lambda o, w: o.where(w.swapped, False, True))
_RESERVED = v.Clause("R, K >= 0, R + K <= U", lambda o, w: (w.R >= 0) & (w.K >= 0) & (w.R + w.K <= w.U))


def _in_phase(phase: str, clauses: tuple[v.Clause, ...]) -> Iterator[v.Clause]:
    """The clauses, "first" until the swap happens, "then" once it has."""
    for clause in clauses:

        def holds(o: Algebra, w: v.World, *points: Any, clause: v.Clause = clause) -> v.Term:
            now = w.swapped if phase == "then" else o.where(w.swapped, False, True)
            return v.implies(o, v.spread(now, w.q), clause.holds(o, w, *points))

        yield v.Clause(f"{phase} {clause.name}", holds, clause.points)


def _alone(
    theorem: Theorem, name: str, swap: v.Event, kept: tuple[v.Clause, ...], made: tuple[v.Clause, ...]
) -> v.Claim:
    """`kept` holds of the old gate's state, and `made` of the new one's after the swap."""
    fields = {
        **dict.fromkeys(("q", "c", "floor", "R", "K"), v.Kind.VECTOR),
        "queued": v.Kind.MASK,
        "known": v.Kind.MASK,
        "last": v.Kind.POINT,
    }
    system = v.System(
        name,
        {"U": v.Kind.VECTOR, "share": v.Kind.VECTOR},
        _LAWS,
        {**fields, "swapped": v.Kind.FLAG},
        (swap,),
        derived={"idle": lambda o, w: o.none(w.queued)},
        closed_forms=True,
    )
    then = tuple(_in_phase("then", made))
    return v.Claim(theorem, system, (*kept, _BEFORE), (*kept, *then), then)


def _spare(w: v.World) -> v.Term:
    """What may still be reserved, in the counter's unit."""
    return v.product(w.U - w.R, w.share)


def _back(w: v.World) -> v.Term:
    """What will be given back, in the counter's unit."""
    return v.product(w.K, w.share)


def _most(o: Algebra, w: v.World) -> v.Term:
    """m: the counter, or as much more as its floor will keep of a refund."""
    return o.maximum(w.c, w.floor + _back(w))


def _least(o: Algebra, w: v.World) -> v.Term:
    """b: the counter once all that will be given back is."""
    return o.maximum(w.floor, w.c - _back(w))


def _close(o: Algebra, w: v.World, i: v.Term) -> v.Term:
    """m_i + R_i <= b_j + U_i for every waiting j."""
    return v.implies(o, w.queued, o.pick(_most(o, w), i, 0) - o.pick(_spare(w), i, 0) <= _least(o, w))


def _close_to_last(o: Algebra, w: v.World) -> v.Term:
    return v.implies(o, v.spread(w.idle, w.c), _most(o, w) - _spare(w) <= o.pick(_least(o, w), w.last, 0))


_V_43 = (
    v.Clause("m_i + R_i <= b_j + U_i for waiting j", _close, points=1),
    v.Clause("m_i + R_i <= b_last + U_i when none waits", _close_to_last),
    v.Clause("0 <= floor <= c", lambda o, w: (w.floor >= 0) & (w.floor <= w.c)),
    _RESERVED,
)
_D_RANGE = (v.Clause("1 - U <= q - R", lambda o, w: w.q - w.R >= 1 - w.U), _RESERVED)


def _counters_take_over(kernel: v.Functions) -> v.Event:
    def swap(o: Algebra, w: v.World) -> v.Written:
        no_floor = w.floor - w.floor
        return {
            "c": kernel.counters(o, w.q, w.share),
            "floor": no_floor,
            "last": w.none,
            "swapped": w.swapped | True,
        }

    none = v.Need(lambda o, w: o.where(o.exists(w.none), False, True))
    return v.Event("counters take over", swap, {"none": v.Kind.POINT}, (none,))


def _deficits_take_over(kernel: v.Functions) -> v.Event:
    def swap(o: Algebra, w: v.World) -> v.Written:
        q = kernel.deficits(o, w.c, w.share, w.queued, w.last)
        return {"q": q, "known": v.spread(True, w.c), "swapped": w.swapped | True}

    return v.Event("deficits take over", swap)


def _to_counter(kernel: v.Functions) -> v.Claim:
    debt = v.Clause("c is the debt", lambda o, w: v.same(w.c, v.product(o.maximum(-w.q, 0), w.share)))
    positive = v.Clause("c >= 0", lambda o, w: w.c >= 0)
    take_over = _counters_take_over(kernel)
    return _alone(SWAP_V, "deficits become counters", take_over, _D_RANGE, (*_V_43, positive, debt))


def _to_deficit(kernel: v.Functions) -> v.Claim:
    def owes(o: Algebra, w: v.World, i: v.Term) -> v.Term:
        owed = v.product(1 - o.pick(w.q, i, 1), o.pick(w.share, i, 1))
        return v.implies(o, w.queued, o.pick(w.c, i, 0) - w.c <= owed)

    def owes_idle(o: Algebra, w: v.World) -> v.Term:
        return v.implies(o, v.spread(w.idle, w.c), w.c - o.pick(w.c, w.last, 0) <= v.product(1 - w.q, w.share))

    debt = (
        v.Clause("a client ahead of one that waits owes that at least", owes, points=1),
        v.Clause("a client ahead of the last that left, when none waits, owes that at least", owes_idle),
    )
    credit = v.Clause("q <= 1", lambda o, w: w.q <= 1)
    take_over = _deficits_take_over(kernel)
    return _alone(
        SWAP_D, "counters become deficits", take_over, _V_43, (*_D_RANGE, credit, *debt, deficit_proofs.KNOWN)
    )


# --- an interval with a swap in it, for equal weights ---------------------------------------------------------------

_SWAPPED = v.Need(lambda o, w: w.swapped)
_NOT_YET = v.Need(lambda o, w: o.where(w.swapped, False, True))
_DEFICITS = deficit_proofs.deficit_system(deficit, backlogged=("f", "g"))
_COUNTERS = counter_proofs.counter_system(counter, backlogged=("f", "g"))


def _both_gates(name: str, swap: v.Event, first: v.System, second: v.System) -> v.System:
    """Events of `first` until the swap, of `second` afterwards."""
    waiting = tuple(map(waits, ("f", "g")))
    kept = {"was": lambda w: w.queued}

    def named(system: v.System) -> Iterator[v.Event]:
        for event in system.events:
            # With B = 0 the deficit gate's refunds give nothing back.
            plain = counter_proofs.without_refunds(event) if system is _COUNTERS else event
            yield attrs.evolve(plain, name=f"{system.name}: {event.name}")

    events = (
        *(event.with_needs(*waiting, _NOT_YET).also(**kept) for event in (*named(first), swap)),
        *(event.with_needs(*waiting, _SWAPPED).also(**kept) for event in named(second)),
    )
    return v.System(
        name,
        {**_DEFICITS.parameters, **_COUNTERS.parameters, "share": v.Kind.VECTOR},
        (*_DEFICITS.laws, EQUAL, deficit_proofs.NONE_BACK, v.Need(lambda o, w: v.same(w.share, 1))),
        {**_DEFICITS.fields, **_COUNTERS.fields, "swapped": v.Kind.FLAG},
        events,
        derived=_COUNTERS.derived,
        closed_forms=True,
    )


def _once(holds: v.Formula) -> v.Formula:
    """A statement about f and g, once the swap has happened."""
    return lambda o, w: o.where(w.swapped, holds(o, w), True)


def _first(holds: v.Formula) -> v.Formula:
    """A statement about f and g, until the swap happens."""
    return lambda o, w: o.where(w.swapped, True, holds(o, w))


def _gap_and_bound(o: Algebra, w: v.World, cost: Callable[..., Any]) -> tuple[Any, Any]:
    (service_f, service_g), (quantum_f, quantum_g) = both(o, w, "W"), both(o, w, "Q")
    charge_f, charge_g = both(o, w, "U")
    return service_f - service_g, cost(quantum_f, charge_f, quantum_g, charge_g)


_WAITED = v.Clause("f and g waited", counter_proofs.both_waited)
_NONE_YET = (
    v.Clause("0 <= R <= U", lambda o, w: (w.R >= 0) & (w.R <= w.U)),
    v.Clause("K = 0", lambda o, w: v.same(w.K, 0)),
)


def _gap_to_counter(kernel: v.Functions) -> v.Claim:
    def counted(o: Algebra, w: v.World) -> v.Term:
        kept = v.same(w.c, w.W + o.maximum(w.q, 0) - w.q0 - w.P)
        return o.pick(kept, w.f, True) & o.pick(kept, w.g, True)

    def gap_within(o: Algebra, w: v.World) -> v.Term:
        gap, bound = _gap_and_bound(o, w, gap_to_counter_cost)
        return (gap <= bound) & (-gap <= bound)

    return v.Claim(
        SWAP_GAP_V,
        _both_gates("deficit gate, then counter gate", _counters_take_over(kernel), _DEFICITS, _COUNTERS),
        (*deficit_proofs.INTERVAL_STARTS, *_NONE_YET, _WAITED, _BEFORE),
        (
            *_in_phase("first", deficit_proofs.BALANCE),
            v.Clause("q <= Q, 1 - U <= q0 <= Q", lambda o, w: (w.q <= w.Q) & (w.q0 >= 1 - w.U) & (w.q0 <= w.Q)),
            v.Clause("P_f = P_g", same_credit),
            *_NONE_YET,
            _WAITED,
            *_in_phase("then", counter_proofs.WITHOUT_REFUNDS),
            v.Clause("then c = W + max(q, 0) - q0 - P for f and g", _once(counted)),
        ),
        (v.Clause("|W_f - W_g| <= 2(Q + U) - 1", gap_within),),
    )


def _gap_to_deficit(kernel: v.Functions) -> v.Claim:
    def balanced(o: Algebra, w: v.World) -> v.Term:
        """What f was served beyond its counter's start and its deficit is what g was."""
        ahead = w.W + w.c0 + w.q - w.P
        return v.same(o.pick(ahead, w.f, 0), o.pick(ahead, w.g, 0))

    def gap_within(o: Algebra, w: v.World) -> v.Term:
        gap, bound = _gap_and_bound(o, w, gap_to_deficit_cost)
        return (gap <= bound) & (-gap <= bound)

    return v.Claim(
        SWAP_GAP_D,
        _both_gates("counter gate, then deficit gate", _deficits_take_over(kernel), _COUNTERS, _DEFICITS),
        (
            *counter_proofs.WITHOUT_REFUNDS,
            *counter_proofs.INTERVAL_STARTS,
            v.Clause("P = 0", lambda o, w: v.same(w.P, 0)),
            *_NONE_YET,
            _WAITED,
            _BEFORE,
        ),
        (
            *_in_phase("first", counter_proofs.WITHOUT_REFUNDS),
            *_NONE_YET,
            _WAITED,
            v.Clause("c0_f and c0_g are close", counter_proofs.started_close_counters),
            v.Clause("first c = c0 + W for f and g", _first(counter_proofs.charged_all)),
            v.Clause("P_f = P_g", same_credit),
            *_in_phase("then", deficit_proofs.RANGE),
            v.Clause("then W + c0 + q - P is the same for f and g", _once(balanced)),
        ),
        (v.Clause("|W_f - W_g| <= 2U + Q - 1", gap_within),),
    )


def claims(kernel: v.Functions = state_transfer) -> tuple[v.Claim, ...]:
    """The claims about the closed forms of `kernel`."""
    return (_to_counter(kernel), _to_deficit(kernel), _gap_to_counter(kernel), _gap_to_deficit(kernel))


# --- runs that attain the bounds --------------------------------------------------------------------------------------

MEMORY = 3
QUANTUM = 4
CHARGE_MAX = charge_max_reserved(v.RATES, MEMORY, 2)


def _under(gate: str, *steps: v.RunStep) -> list[v.RunStep]:
    """The steps as the system of both gates names them."""
    return [(f"{gate} gate: {name}", facts) for name, facts in steps]


def _deficit_turn(client: int, input_tokens: int, output_tokens: int) -> list[v.RunStep]:
    """One request of a client that the order prefers."""
    return _under("deficit", *v.served(2, client, input_tokens, output_tokens, ready=(1, 1), score=v.one(2, client, 1)))


def _counter_turn(client: int) -> list[v.RunStep]:
    """A prompt of one token, and outputs that fill the memory: U."""
    return _under("counter", *v.served(2, client, 1, MEMORY - 1))


def _both_arrive(gate: str) -> list[v.RunStep]:
    return _under(gate, ("arrive", {"p": 0}), ("arrive", {"p": 1}))


def _parameters(f: int, g: int) -> v.Values:
    return {"U": (CHARGE_MAX,) * 2, "Q": (QUANTUM,) * 2, "share": (1, 1), "f": f, "g": g}


def _to_counter_witness() -> v.Witness:
    """swap-gap-V: f spends 3Q of credit, the last of it as g comes to a credit that the swap does not carry; at 0 both,
    f goes first and is served U."""
    refill = _under("deficit", ("refill", {}))
    before = [*_both_arrive("deficit"), *refill, *_deficit_turn(1, 1, 1), *_deficit_turn(1, 1, MEMORY - 1)]
    spent = _deficit_turn(0, 2, 1)
    during = [*spent, *refill, *spent, *refill, *spent, ("counters take over", {"none": -1}), *_counter_turn(0)]
    steps = (*before, (v.BEGIN, {}), *during)
    bound = gap_to_counter_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
    return v.Witness(
        v.claim_named("swap-gap-V", claims()), 2, _parameters(0, 1), steps, bound, {"q0": "q", "c0": "c", "m0": "m"}
    )


def _to_deficit_witness() -> v.Witness:
    """swap-gap-D: g is ahead by U and owes that after the swap, and Q more is given to it while f is served."""
    refill = _under("deficit", ("refill", {}))
    spent = _deficit_turn(1, 2, 1)
    during = [("deficits take over", {}), *spent, *refill, *spent, *refill, *_deficit_turn(1, 1, MEMORY - 1)]
    steps = (*_both_arrive("counter"), *_counter_turn(0), (v.BEGIN, {}), *during)
    bound = gap_to_deficit_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
    return v.Witness(
        v.claim_named("swap-gap-D", claims()), 2, _parameters(1, 0), steps, bound, {"q0": "q", "c0": "c", "m0": "m"}
    )


def witnesses() -> Iterator[v.Witness]:
    """One run a bound."""
    yield from (_to_counter_witness(), _to_deficit_witness())
