"""One client at all holders of leases: L-balance, L-most, L-least and L-account, whatever holders and accounts lose.

Vectors are over *holders*, any number of them, and all is about one client: `d` its balance at each, `R` what each may
still charge it, `K` what each will give back, `q` what the account has of it.  A holder that is not there has none of
it all, so that holders come and go.

A renewal is return, rounds and lending (L-renewal).  `pools` is what each holder would find in the account, were it to
renew: only that of the one that does counts.  Whether a round is due is for all clients that wait to say, so any mask
`told` stands for them.
"""

from functools import partial
from typing import Any

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, GATE_RESPECTED, MEM_RESERVE, QUANTUM_POSITIVE
from fairsched.policies.gates.leased import L_ACCOUNT, L_BALANCE, L_DEBT, L_LEAST, L_MOST
from fairsched.verify import events
from fairsched.verify import logic as v
from fairsched.verify.proofs.kernels import deficit
from fairsched.verify.proofs.kernels import leased as leases

_RESERVED = (events.EXISTS, *events.RESERVED)


# --- what a holder does -----------------------------------------------------------------------------------------------


def _admissions(gate: v.Functions) -> tuple[v.Event, v.Event]:
    """A holder that has a balance lets the client in: x is charged, k of it will come back, r may be charged later."""

    def admit(o: Algebra, w: v.World) -> v.Written:
        return {"d": gate.admit(o, w.d, w.p, w.x), "R": o.bump(w.R, w.p, w.r), "K": o.bump(w.K, w.p, w.k)}

    amounts = {"p": v.POINT, **v.scalars(*"xrk")}
    needs = (
        *(events.EXISTS, events.NOT_NEGATIVE),
        v.Need(lambda o, w: (w.r >= 0) & (w.k >= 0) & (w.k <= w.x)),
        v.Need(lambda o, w: w.x >= 1, CHARGES_AT_LEAST_ONE),
        v.Need(lambda o, w: o.pick(w.K, w.p, 0) + w.k <= o.pick(w.back, w.p, 0)),
        v.Need(lambda o, w: events.charge_fits(w.x, o.pick(w.R, w.p, 0), w.r, o.pick(w.U, w.p, 0)), MEM_RESERVE),
    )
    in_credit = v.Need(lambda o, w: o.pick(gate.in_credit(o, w.d, v.only(o, w.d, w.p)), w.p, False))
    return (
        v.Event("admit", admit, amounts, (*needs, in_credit), (gate.in_credit, gate.admit)),
        v.Event("admit past the gate", admit, amounts, needs, (gate.admit,), excluded_by=GATE_RESPECTED),
    )


def _running(gate: v.Functions) -> tuple[v.Event, ...]:
    def decode(o: Algebra, w: v.World) -> v.Written:
        return {"d": gate.decode(o, w.d, w.c), "R": w.R - w.c}

    def finish(o: Algebra, w: v.World) -> v.Written:
        return {"R": o.bump(w.R, w.p, -w.x)}

    def refund(o: Algebra, w: v.World) -> v.Written:
        return {"d": gate.refund(o, w.d, w.p, w.x), "K": o.bump(w.K, w.p, -w.x)}

    return (
        v.Event(
            "holders charge what was reserved",
            decode,
            {"c": v.VECTOR},
            (lambda o, w: w.c >= 0, v.Need(lambda o, w: w.c <= w.R, MEM_RESERVE)),
            (gate.decode,),
        ),
        v.Event("finish", finish, events.ONE, _RESERVED),
        v.Event("refund", refund, events.ONE, (events.EXISTS, events.NOT_NEGATIVE, events.WAS_CHARGED), (gate.refund,)),
    )


# --- renewals ---------------------------------------------------------------------------------------------------------


def _moved(kernel: v.Functions, o: Algebra, w: v.World, asks: v.Term) -> v.Written:
    pools = kernel.pooled(o, w.q, w.d)
    after = kernel.leased(o, pools, w.d, asks, w.S)
    rest = kernel.left_over(o, pools, after)
    return {"q": o.pick(rest, w.p, w.q), "d": o.put(w.d, w.p, o.pick(after, w.p, 0))}


def _renewals(kernel: v.Functions, gate: v.Functions) -> tuple[v.Event, ...]:
    def returned(o: Algebra, w: v.World) -> v.Written:
        return _moved(kernel, o, w, v.spread(False, w.d))

    def lent(o: Algebra, w: v.World) -> v.Written:
        return _moved(kernel, o, w, v.only(o, w.d, w.p))

    def a_round(o: Algebra, w: v.World) -> v.Written:
        # Whether it is due is for all clients that wait to say; `told` makes it so or not.
        pools = kernel.pooled(o, w.q, w.d)
        topped = gate.refill(o, pools, w.told, v.spread(True, w.d), w.d - w.d + w.Q)
        return {"q": w.q + (o.pick(topped, w.p, 0) - o.pick(pools, w.p, 0))}

    moving = (kernel.pooled, kernel.leased, kernel.left_over)
    has_returned = v.Need(lambda o, w: (o.pick(w.d, w.p, 0) <= 0) & ((o.pick(w.d, w.p, 0) >= 0) | (w.q <= 0)))
    point = {"p": v.POINT}
    return (
        v.Event("a holder returns what it has", returned, point, (events.EXISTS,), moving),
        v.Event(
            "a round",
            a_round,
            {**point, "told": v.MASK},
            (events.EXISTS, has_returned),
            (kernel.pooled, gate.refill_due, gate.refill),
        ),
        v.Event("a holder is lent credit", lent, point, (events.EXISTS,), moving),
    )


def _leaving(kernel: v.Functions) -> v.Event:
    """A holder leaves after a renewal at which nothing waited: what it owes stays with the account."""

    def leave(o: Algebra, w: v.World) -> v.Written:
        return {
            "q": o.pick(kernel.pooled(o, w.q, w.d), w.p, w.q),
            "V": w.V - o.pick(w.d, w.p, 0),
            **{name: o.put(getattr(w, name), w.p, 0) for name in ("d", "R", "K")},
        }

    returned = v.Need(lambda o, w: o.pick(w.d, w.p, 0) <= 0)
    return v.Event("a holder leaves", leave, {"p": v.POINT}, (events.EXISTS, returned), (kernel.pooled,))


# --- faults -----------------------------------------------------------------------------------------------------------


def _faults() -> tuple[v.Event, v.Event]:
    """M is what faults made, X what lost writes took; Y is n S + B for each time that writes were lost."""

    def ends(o: Algebra, w: v.World) -> v.Written:
        had = o.pick(w.d, w.p, 0)
        made, taken = o.maximum(-had, 0), o.maximum(had, 0)
        gone: dict[str, Any] = {name: o.put(getattr(w, name), w.p, 0) for name in ("d", "R", "K")}
        return {**gone, "M": w.M + made, "ended": w.p, "made": made, "taken": taken}

    def forgets(o: Algebra, w: v.World) -> v.Written:
        made, taken = o.maximum(w.z - w.q, 0), o.maximum(w.q - w.z, 0)
        return {"q": w.z, "M": w.M + made, "X": w.X + taken, "Y": w.Y + w.N}

    once_had = v.Need(lambda o, w: (w.z >= -w.V) & (w.z <= w.Q + w.N - w.S + w.Y))
    return (
        v.Event("a holder ends", ends, {"p": v.POINT}, (events.EXISTS,)),
        v.Event("the account loses writes", forgets, {"z": v.SCALAR}, (once_had,)),
    )


# --- what holds -------------------------------------------------------------------------------------------------------


def _system(kernel: v.Functions, gate: v.Functions, **sums: v.Formula) -> v.System:
    """`sums` are what the claim adds up over holders: solvers take time with each."""
    return v.System(
        "one client at all holders of leases",
        {**v.vectors("U", "back"), **v.scalars(*"SQN"), "h": v.POINT},
        (
            v.Need(lambda o, w: (w.U >= 1) & (w.back >= 0)),
            v.Need(lambda o, w: (w.S >= 0) & (w.N >= 0) & o.exists(w.h)),
            v.Need(lambda o, w: w.Q >= 1, QUANTUM_POSITIVE),
        ),
        {**v.vectors("d", "R", "K"), **v.scalars("q", "V", "M", "X", "Y", "made", "taken"), "ended": v.POINT},
        (*_admissions(gate), *_running(gate), *_renewals(kernel, gate), _leaving(kernel), *_faults()),
        derived={name: partial(_summed, of=of) for name, of in sums.items()},
    )


def _summed(o: Algebra, w: v.World, of: v.Formula) -> v.Term:
    return v.total(o, of(o, w))


_COUNTED = ("V", "M", "X", "Y", "made", "taken")
_STARTS = (
    v.Clause("d = R = K = 0", lambda o, w: v.same(w.d, 0) & v.same(w.R, 0) & v.same(w.K, 0)),
    v.Clause("q = 0", lambda o, w: v.same(w.q, 0)),
    *(v.Clause(f"{name} = 0", lambda o, w, name=name: v.same(getattr(w, name), 0)) for name in _COUNTED),
)
"""No holder has anything, nor has the account."""
_BALANCES = (
    v.Clause("1 - U_h <= d - R", lambda o, w: w.d - w.R >= 1 - w.U),
    v.Clause("0 <= R <= U_h - 1", lambda o, w: (w.R >= 0) & (w.R <= w.U - 1)),
    v.Clause("d + K <= S + B_h", lambda o, w: w.d + w.K <= w.S + w.back),
    v.Clause("0 <= K <= B_h", lambda o, w: (w.K >= 0) & (w.back >= w.K)),
)
_LEAST = v.Clause("q >= -V", lambda o, w: (w.q >= -w.V) & (w.V >= 0))
_NOT_LESS = v.Clause("X, M, Y >= 0", lambda o, w: (w.X >= 0) & (w.M >= 0) & (w.Y >= 0))
_ENDS = (
    v.Clause("an end makes at most U_h - 1", lambda o, w: w.made <= o.pick(w.U, w.ended, w.made + 1) - 1),
    v.Clause("an end takes at most S + B_h", lambda o, w: w.taken <= w.S + o.pick(w.back, w.ended, w.taken)),
)


def _free(o: Algebra, w: v.World) -> v.Term:
    """What each holder has less of the client's credit than it might."""
    return w.S + w.back - o.maximum(w.d + w.K, 0)


def _owing(o: Algebra, w: v.World) -> v.Term:
    """How far each is above its lowest balance, 0 for one that can let the client in, now or after a refund."""
    return o.where(w.d + w.K > 0, 0, w.d - w.R + w.U - 1)


def _below(o: Algebra, w: v.World) -> v.Term:
    return w.S + w.back - w.K - w.d


def _above(o: Algebra, w: v.World) -> v.Term:
    return w.d - w.R + w.U - 1


def claims(kernel: v.Functions = leases, gate: v.Functions = deficit) -> tuple[v.Claim, ...]:
    """The claims about the kernel functions of `kernel`, and of `gate` as holders run them."""
    of = partial(_system, kernel, gate)
    most_had = v.Clause(
        "q <= Q - S + sum of (S + B_h - max(d + K, 0)) + Y", lambda o, w: w.q <= w.Q - w.S + w.free + w.Y
    )
    most = v.Clause("T + K <= Q - S + sum of (S + B_h) + M", lambda o, w: w.q <= w.Q - w.S + w.below + w.M)
    owed = v.Clause("q + owing >= -X", lambda o, w: w.q + w.owing >= -w.X)
    least = v.Clause("T - R >= sum of (1 - U_h) - X", lambda o, w: w.q + w.above >= -w.X)
    return (
        v.Claim(L_BALANCE, of(), _STARTS, (*_BALANCES, *_ENDS), (_BALANCES[0], _BALANCES[2], *_ENDS)),
        v.Claim(L_ACCOUNT, of(free=_free), _STARTS, (_LEAST, _NOT_LESS, most_had), (_LEAST, most_had), _BALANCES),
        v.Claim(L_MOST, of(below=_below), _STARTS, (_NOT_LESS, most), (most,), _BALANCES),
        v.Claim(L_DEBT, of(owing=_owing), _STARTS, (_NOT_LESS, owed), (owed,), _BALANCES),
        # It follows, and to show that it does after every event would take minutes.
        v.Claim(
            L_LEAST,
            attrs.evolve(of(owing=_owing, above=_above), events=()),
            _STARTS,
            (_NOT_LESS,),
            (least,),
            (*_BALANCES, owed),
        ),
    )
