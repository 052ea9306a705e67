"""What survives when weights and quanta change while the gates run: D-change, D-change-gap and V-change.

Quanta, and under the counter gate the unit of account, are fields here and change by an event.  Under the deficit gate
credit above a smaller quantum is cut: `X` counts it, and the books balance beside it.  Under the counter gate a weight
changes prices: a token is reserved at the dearest price that its client ever pays and charged at today's, which is no
more, so the invariant holds with U at the dearest price.  What was charged at yesterday's price and is given back at
today's may be more than was charged: nothing is given back there.
"""

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import EQUAL_QUANTA, MEM_RESERVE, QUANTUM_POSITIVE
from fairsched.policies.gates import V_CHANGE
from fairsched.verify import events
from fairsched.verify import logic as v
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.proofs.gates.counter import (
    CLOSE,
    WITHOUT_REFUNDS,
    both_waited,
    charged_all,
    counter_system,
    gap_within,
    started_close_counters,
    without_refunds,
)
from fairsched.verify.proofs.gates.deficit import both, both_backs
from fairsched.verify.proofs.kernels import counter, deficit

# --- deficit gate ---------------------------------------------------------------------------------------------------


def _quanta_change(kernel: v.Functions, *needs: v.Need) -> v.Event:
    def configured(o: Algebra, w: v.World) -> v.Written:
        return {
            "q": kernel.reconfigure(o, w.q, w.now),
            "Q": w.now,
            "Q_max": o.maximum(w.Q_max, w.now),
            "X": w.X + o.maximum(w.q - w.now, 0),
        }

    positive = v.Need(lambda o, w: w.now >= 1, QUANTUM_POSITIVE)
    return v.Event("configured", configured, {"now": v.VECTOR}, (positive, *needs), (kernel.reconfigure,))


_STARTS = (
    v.Clause("W = 0, P = 0, X = 0", lambda o, w: v.same(w.W, 0) & v.same(w.P, 0) & v.same(w.X, 0)),
    v.Clause("q = q0", lambda o, w: v.same(w.q, w.q0)),
)
_BALANCE = (
    v.Clause("1 - U <= q0 <= Q_max + B", lambda o, w: (w.q0 >= 1 - w.U) & (w.q0 <= w.Q_max + w.back)),
    v.Clause("W + q + X = q0 + P", lambda o, w: v.same(w.W + w.q + w.X, w.q0 + w.P)),
)
_WITHIN = (
    *deficit_proofs.RANGE,
    v.Clause("R <= U", lambda o, w: w.R <= w.U),
    v.Clause("1 <= Q <= Q_max", lambda o, w: (w.Q >= 1) & (w.Q_max >= w.Q)),
)


def _changing(fixed: v.System, change: v.Event) -> v.System:
    """The gate in which quanta are a field and `change` sets them."""
    vectors = v.vectors("Q", "Q_max", "X")
    return v.System(
        "deficit gate, quanta change",
        parameters={name: kind for name, kind in fixed.parameters.items() if name != "Q"},
        laws=(lambda o, w: w.U >= 1, lambda o, w: o.exists(w.f) & o.exists(w.g)),
        fields={**fixed.fields, **vectors},
        events=(*fixed.events, change),
    )


def _deficit_claim(kernel: v.Functions) -> v.Claim:
    return v.Claim(
        deficit.D_CHANGE,
        _changing(deficit_proofs.deficit_system(kernel), _quanta_change(kernel)),
        (*_WITHIN, *_STARTS),
        (*_WITHIN, *_BALANCE),
        (deficit_proofs.IN_RANGE, v.Clause("|P - X - W| <= Q_max + U - 1 + B", _net)),
    )


def _gap_claim(kernel: v.Functions) -> v.Claim:
    """Both wait, and have one quantum, whatever that is; they may have been cut differently."""
    equal = (
        v.Clause("Q_f = Q_g", lambda o, w: v.same(*both(o, w, "Q"))),
        v.Clause("Q_max_f = Q_max_g", lambda o, w: v.same(*both(o, w, "Q_max"))),
    )
    same_now = v.Need(lambda o, w: v.same(*both(o, w, "now")), EQUAL_QUANTA)
    return v.Claim(
        deficit.D_CHANGE_GAP,
        _changing(deficit_proofs.deficit_system(kernel, backlogged=("f", "g")), _quanta_change(kernel, same_now)),
        (*_WITHIN, *equal, *_STARTS),
        (
            *(*_WITHIN, *equal, *_BALANCE),
            v.Clause("X >= 0", lambda o, w: w.X >= 0),
            v.Clause("P_f = P_g", deficit_proofs.same_credit),
        ),
        (v.Clause("W_g - W_f <= 2(Q_max + U - 1) + B_f + B_g + X_f, and the same of f", _gap_within),),
    )


def _net(o: Algebra, w: v.World) -> v.Term:
    net = w.P - w.X - w.W
    most = w.Q_max + w.U - 1 + w.back
    return (net <= most) & (-net <= most)


def _gap_within(o: Algebra, w: v.World) -> v.Term:
    (service_f, service_g), (cut_f, cut_g) = both(o, w, "W"), both(o, w, "X")
    (quantum_f, quantum_g), (charge_f, charge_g) = both(o, w, "Q_max"), both(o, w, "U")
    bound = deficit.gap_cost(quantum_f, charge_f, quantum_g, charge_g) + both_backs(o, w)
    return (service_g - service_f <= bound + cut_f) & (service_f - service_g <= bound + cut_g)


# --- counter gate ---------------------------------------------------------------------------------------------------


def _finer_unit(kernel: v.Functions) -> v.Event:
    """Everything that is counted in the unit is multiplied; the gate does it to its counters."""

    def finer(o: Algebra, w: v.World) -> v.Written:
        others = {name: v.product(getattr(w, name), w.by) for name in ("R", "K", "U", "W", "c0")}
        return {"c": kernel.rescaled(o, w.c, w.by), "floor": kernel.rescaled(o, w.floor, w.by), **others}

    return v.Event("the unit becomes finer", finer, {"by": v.SCALAR}, (lambda o, w: w.by >= 1,))


def _charges_today(kernel: v.Functions) -> tuple[v.Event, ...]:
    """d is what was reserved for the decoded tokens, y what they cost today; x and z the same for a correction."""

    return (
        v.Event(
            "decode",
            lambda o, w: {"c": kernel.decode(o, w.c, w.y), "R": w.R - w.d, "W": w.W + w.y},
            {"d": v.VECTOR, "y": v.VECTOR},
            (lambda o, w: w.y >= 0, v.Need(lambda o, w: (w.y <= w.d) & (w.d <= w.R), MEM_RESERVE)),
            (kernel.decode,),
        ),
        v.Event(
            "correct",
            lambda o, w: {"c": kernel.admit(o, w.c, w.p, w.z), "R": o.bump(w.R, w.p, -w.x), "W": o.bump(w.W, w.p, w.z)},
            {"p": v.POINT, "x": v.SCALAR, "z": v.SCALAR},
            (lambda o, w: w.z >= 0, v.Need(lambda o, w: (w.z <= w.x) & (w.x <= o.pick(w.R, w.p, 0)), MEM_RESERVE)),
            (kernel.admit,),
        ),
    )


def _counter_claim(kernel: v.Functions) -> v.Claim:
    """V-4.4's, with events in which prices change; a refund at another price might give back more than was charged."""
    fixed = counter_system(kernel, backlogged=("f", "g"))
    today = {event.name: event.with_needs(events.waits("f"), events.waits("g")) for event in _charges_today(kernel)}
    moved = v.vectors("U", "c0")

    def changed(event: v.Event) -> v.Event:
        return today[event.name].also(was=lambda w: w.queued) if event.name in today else without_refunds(event)

    changing = attrs.evolve(
        fixed,
        name="counter gate, weights change",
        parameters={name: kind for name, kind in fixed.parameters.items() if name not in moved},
        fields={**fixed.fields, **moved},
        events=(*map(changed, fixed.events), _finer_unit(kernel)),
        closed_forms=True,
    )
    waited = v.Clause("f and g waited", both_waited)
    return v.Claim(
        V_CHANGE,
        changing,
        (*WITHOUT_REFUNDS, waited, v.Clause("W = 0, c = c0", lambda o, w: v.same(w.W, 0) & v.same(w.c, w.c0))),
        (
            *WITHOUT_REFUNDS,
            waited,
            v.Clause("c0_f and c0_g are close", started_close_counters),
            v.Clause("c = c0 + W for f and g", charged_all),
        ),
        (v.Clause("|W_f - W_g| <= U_f + U_g", gap_within), CLOSE),
    )


def claims(deficit_kernel: v.Functions = deficit, counter_kernel: v.Functions = counter) -> tuple[v.Claim, ...]:
    """The claims about the kernel functions of both gates."""
    return (_deficit_claim(deficit_kernel), _gap_claim(deficit_kernel), _counter_claim(counter_kernel))
