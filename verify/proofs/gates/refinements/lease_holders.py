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
from fairsched.verify.logic import (
    Claim,
    Clause,
    Event,
    Formula,
    Functions,
    Kind,
    Need,
    System,
    Term,
    World,
    Written,
    only,
    same,
    spread,
    total,
)
from fairsched.verify.proofs.gates.deficit import charge_fits
from fairsched.verify.proofs.kernels import deficit
from fairsched.verify.proofs.kernels import leased as leases

_ONE = {"p": Kind.POINT, "x": Kind.SCALAR}
_THERE = Need(lambda o, w: o.exists(w.p))
_NOT_NEGATIVE = Need(lambda o, w: w.x >= 0)
_RESERVED = (_THERE, _NOT_NEGATIVE, Need(lambda o, w: w.x <= o.pick(w.R, w.p, 0), MEM_RESERVE))


# --- what a holder does -----------------------------------------------------------------------------------------------


def _admissions(gate: Functions) -> tuple[Event, Event]:
    """A holder that has a balance lets the client in: x is charged, k of it will come back, r may be charged later."""

    def admit(o: Algebra, w: World) -> Written:
        return {"d": gate.admit(o, w.d, w.p, w.x), "R": o.bump(w.R, w.p, w.r), "K": o.bump(w.K, w.p, w.k)}

    amounts = {"p": Kind.POINT, **dict.fromkeys("xrk", Kind.SCALAR)}
    needs = (
        *(_THERE, _NOT_NEGATIVE),
        Need(lambda o, w: (w.r >= 0) & (w.k >= 0) & (w.k <= w.x)),
        Need(lambda o, w: w.x >= 1, CHARGES_AT_LEAST_ONE),
        Need(lambda o, w: o.pick(w.K, w.p, 0) + w.k <= o.pick(w.back, w.p, 0)),
        Need(lambda o, w: charge_fits(w.x, o.pick(w.R, w.p, 0), w.r, o.pick(w.U, w.p, 0)), MEM_RESERVE),
    )
    in_credit = Need(lambda o, w: o.pick(gate.in_credit(o, w.d, only(o, w.d, w.p)), w.p, False))
    return (
        Event("admit", admit, amounts, (*needs, in_credit), (gate.in_credit, gate.admit)),
        Event("admit past the gate", admit, amounts, needs, (gate.admit,), excluded_by=GATE_RESPECTED),
    )


def _running(gate: Functions) -> tuple[Event, ...]:
    def decode(o: Algebra, w: World) -> Written:
        return {"d": gate.decode(o, w.d, w.c), "R": w.R - w.c}

    def finish(o: Algebra, w: World) -> Written:
        return {"R": o.bump(w.R, w.p, -w.x)}

    def refund(o: Algebra, w: World) -> Written:
        return {"d": gate.refund(o, w.d, w.p, w.x), "K": o.bump(w.K, w.p, -w.x)}

    was_charged = Need(lambda o, w: w.x <= o.pick(w.K, w.p, 0))
    return (
        Event(
            "holders charge what was reserved",
            decode,
            {"c": Kind.VECTOR},
            (Need(lambda o, w: w.c >= 0), Need(lambda o, w: w.c <= w.R, MEM_RESERVE)),
            (gate.decode,),
        ),
        Event("finish", finish, _ONE, _RESERVED),
        Event("refund", refund, _ONE, (_THERE, _NOT_NEGATIVE, was_charged), (gate.refund,)),
    )


# --- renewals ---------------------------------------------------------------------------------------------------------


def _moved(kernel: Functions, o: Algebra, w: World, asks: Term) -> Written:
    pools = kernel.pooled(o, w.q, w.d)
    after = kernel.leased(o, pools, w.d, asks, w.S)
    rest = kernel.left_over(o, pools, after)
    return {"q": o.pick(rest, w.p, w.q), "d": o.put(w.d, w.p, o.pick(after, w.p, 0))}


def _renewals(kernel: Functions, gate: Functions) -> tuple[Event, ...]:
    def returned(o: Algebra, w: World) -> Written:
        return _moved(kernel, o, w, spread(False, w.d))

    def lent(o: Algebra, w: World) -> Written:
        return _moved(kernel, o, w, only(o, w.d, w.p))

    def a_round(o: Algebra, w: World) -> Written:
        # Whether it is due is for all clients that wait to say; `told` makes it so or not.
        pools = kernel.pooled(o, w.q, w.d)
        topped = gate.refill(o, pools, w.told, spread(True, w.d), w.d - w.d + w.Q)
        return {"q": w.q + (o.pick(topped, w.p, 0) - o.pick(pools, w.p, 0))}

    moving = (kernel.pooled, kernel.leased, kernel.left_over)
    has_returned = Need(lambda o, w: (o.pick(w.d, w.p, 0) <= 0) & ((o.pick(w.d, w.p, 0) >= 0) | (w.q <= 0)))
    point = {"p": Kind.POINT}
    return (
        Event("a holder returns what it has", returned, point, (_THERE,), moving),
        Event(
            "a round",
            a_round,
            {**point, "told": Kind.MASK},
            (_THERE, has_returned),
            (kernel.pooled, gate.refill_due, gate.refill),
        ),
        Event("a holder is lent credit", lent, point, (_THERE,), moving),
    )


def _leaving(kernel: Functions) -> Event:
    """A holder leaves after a renewal at which nothing waited: what it owes stays with the account."""

    def leave(o: Algebra, w: World) -> Written:
        return {
            "q": o.pick(kernel.pooled(o, w.q, w.d), w.p, w.q),
            "V": w.V - o.pick(w.d, w.p, 0),
            **{name: o.put(getattr(w, name), w.p, 0) for name in ("d", "R", "K")},
        }

    returned = Need(lambda o, w: o.pick(w.d, w.p, 0) <= 0)
    return Event("a holder leaves", leave, {"p": Kind.POINT}, (_THERE, returned), (kernel.pooled,))


# --- faults -----------------------------------------------------------------------------------------------------------


def _faults() -> tuple[Event, Event]:
    """M is what faults made, X what lost writes took; Y is n S + B for each time that writes were lost."""

    def ends(o: Algebra, w: World) -> Written:
        had = o.pick(w.d, w.p, 0)
        made, taken = o.maximum(-had, 0), o.maximum(had, 0)
        gone: dict[str, Any] = {name: o.put(getattr(w, name), w.p, 0) for name in ("d", "R", "K")}
        return {**gone, "M": w.M + made, "ended": w.p, "made": made, "taken": taken}

    def forgets(o: Algebra, w: World) -> Written:
        made, taken = o.maximum(w.z - w.q, 0), o.maximum(w.q - w.z, 0)
        return {"q": w.z, "M": w.M + made, "X": w.X + taken, "Y": w.Y + w.N}

    once_had = Need(lambda o, w: (w.z >= -w.V) & (w.z <= w.Q + w.N - w.S + w.Y))
    return (
        Event("a holder ends", ends, {"p": Kind.POINT}, (_THERE,)),
        Event("the account loses writes", forgets, {"z": Kind.SCALAR}, (once_had,)),
    )


# --- what holds -------------------------------------------------------------------------------------------------------


def _system(kernel: Functions, gate: Functions, **sums: Formula) -> System:
    """`sums` are what the claim adds up over holders: solvers take time with each."""
    return System(
        "one client at all holders of leases",
        {**dict.fromkeys(("U", "back"), Kind.VECTOR), **dict.fromkeys("SQN", Kind.SCALAR), "h": Kind.POINT},
        (
            Need(lambda o, w: (w.U >= 1) & (w.back >= 0)),
            Need(lambda o, w: (w.S >= 0) & (w.N >= 0) & o.exists(w.h)),
            Need(lambda o, w: w.Q >= 1, QUANTUM_POSITIVE),
        ),
        {
            **dict.fromkeys(("d", "R", "K"), Kind.VECTOR),
            **dict.fromkeys(("q", "V", "M", "X", "Y", "made", "taken"), Kind.SCALAR),
            "ended": Kind.POINT,
        },
        (*_admissions(gate), *_running(gate), *_renewals(kernel, gate), _leaving(kernel), *_faults()),
        derived={name: partial(_summed, of=of) for name, of in sums.items()},
    )


def _summed(o: Algebra, w: World, of: Formula) -> Term:
    return total(o, of(o, w))


_COUNTED = ("V", "M", "X", "Y", "made", "taken")
_STARTS = (
    Clause("d = R = K = 0", lambda o, w: same(w.d, 0) & same(w.R, 0) & same(w.K, 0)),
    Clause("q = 0", lambda o, w: same(w.q, 0)),
    *(Clause(f"{name} = 0", lambda o, w, name=name: same(getattr(w, name), 0)) for name in _COUNTED),  # type: ignore[misc]
)
"""No holder has anything, nor has the account."""
_BALANCES = (
    Clause("1 - U_h <= d - R", lambda o, w: w.d - w.R >= 1 - w.U),
    Clause("0 <= R <= U_h - 1", lambda o, w: (w.R >= 0) & (w.R <= w.U - 1)),
    Clause("d + K <= S + B_h", lambda o, w: w.d + w.K <= w.S + w.back),
    Clause("0 <= K <= B_h", lambda o, w: (w.K >= 0) & (w.back >= w.K)),
)
_LEAST = Clause("q >= -V", lambda o, w: (w.q >= -w.V) & (w.V >= 0))
_NOT_LESS = Clause("X, M, Y >= 0", lambda o, w: (w.X >= 0) & (w.M >= 0) & (w.Y >= 0))
_ENDS = (
    Clause("an end makes at most U_h - 1", lambda o, w: w.made <= o.pick(w.U, w.ended, w.made + 1) - 1),
    Clause("an end takes at most S + B_h", lambda o, w: w.taken <= w.S + o.pick(w.back, w.ended, w.taken)),
)


def _free(o: Algebra, w: World) -> Term:
    """What each holder has less of the client's credit than it might."""
    return w.S + w.back - o.maximum(w.d + w.K, 0)


def _owing(o: Algebra, w: World) -> Term:
    """How far each is above its lowest balance, 0 for one that can let the client in, now or after a refund."""
    return o.where(w.d + w.K > 0, 0, w.d - w.R + w.U - 1)


def _below(o: Algebra, w: World) -> Term:
    return w.S + w.back - w.K - w.d


def _above(o: Algebra, w: World) -> Term:
    return w.d - w.R + w.U - 1


def claims(kernel: Functions = leases, gate: Functions = deficit) -> tuple[Claim, ...]:
    """The claims about the kernel functions of `kernel`, and of `gate` as holders run them."""
    of = partial(_system, kernel, gate)
    most_had = Clause("q <= Q - S + sum of (S + B_h - max(d + K, 0)) + Y", lambda o, w: w.q <= w.Q - w.S + w.free + w.Y)
    most = Clause("T + K <= Q - S + sum of (S + B_h) + M", lambda o, w: w.q <= w.Q - w.S + w.below + w.M)
    owed = Clause("q + owing >= -X", lambda o, w: w.q + w.owing >= -w.X)
    least = Clause("T - R >= sum of (1 - U_h) - X", lambda o, w: w.q + w.above >= -w.X)
    return (
        Claim(L_BALANCE, of(), _STARTS, (*_BALANCES, *_ENDS), (_BALANCES[0], _BALANCES[2], *_ENDS)),
        Claim(L_ACCOUNT, of(free=_free), _STARTS, (_LEAST, _NOT_LESS, most_had), (_LEAST, most_had), _BALANCES),
        Claim(L_MOST, of(below=_below), _STARTS, (_NOT_LESS, most), (most,), _BALANCES),
        Claim(L_DEBT, of(owing=_owing), _STARTS, (_NOT_LESS, owed), (owed,), _BALANCES),
        # It follows, and to show that it does after every event would take minutes.
        Claim(
            L_LEAST,
            attrs.evolve(of(owing=_owing, above=_above), events=()),
            _STARTS,
            (_NOT_LESS,),
            (least,),
            (*_BALANCES, owed),
        ),
    )
