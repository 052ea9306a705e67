"""What messages do to leases: L-again, however often a renewal or an answer comes, and whatever is lost on the way.

Vectors are over *messages*, any number of them: renewals that one holder said, and for each the answer that the account
gave.  A message that was sent may arrive at any time and any number of times, or never.  All is about one client: `q`
is what the account has of it, `d` the holder's balance, `O` what all other holders have.  `s` is the last renewal of
the holder that the account had and `m` what that moved; `j` is the last that the holder said, and `h` the last that it
heard an answer to.  It takes an answer only to the last that it said.

A renewal may say any balance, though a holder says what it has: what is moved is added to what the holder has by then.
"""

from fairsched.model.algebra import Algebra
from fairsched.policies.gates.leased import L_AGAIN
from fairsched.verify import logic as v
from fairsched.verify.proofs.kernels import leased as leases

_POINT = {"p": v.POINT}
_SENT = v.Need(lambda o, w: o.pick(w.sent, w.p, False))


def _says(o: Algebra, w: v.World) -> v.Written:
    return {
        "j": w.j + 1,
        "sent": o.put(w.sent, w.p, True),
        "serial": o.put(w.serial, w.p, w.j + 1),
        "heard": o.put(w.heard, w.p, w.h),
    }


def _hears(o: Algebra, w: v.World) -> v.Written:
    return {"d": w.d + o.pick(w.moved, w.p, 0), "h": w.j}


def _arrives(kernel: v.Functions, o: Algebra, w: v.World) -> v.Written:
    """The account renews, gives rounds worth `c`, and answers; one that is not new is answered as it was."""
    said, heard, balance = o.pick(w.serial, w.p, 0), o.pick(w.heard, w.p, 0), w.said_balance
    new = kernel.is_new(o, w.s, said)
    pool = kernel.pooled(o, kernel.taken_back(o, w.q, w.m, w.s, heard), balance) + w.c
    after = kernel.leased(o, pool, balance, w.asks, w.S)
    moved = o.where(new, after - balance, w.m)
    return {
        "q": o.where(new, kernel.left_over(o, pool, after), w.q),
        "P": w.P + o.where(new, w.c, 0),
        "s": o.where(new, said, w.s),
        "m": moved,
        "answered": o.put(w.answered, w.p, o.where(said >= w.s, True, o.pick(w.answered, w.p, False))),
        "moved": o.put(w.moved, w.p, o.where(said >= w.s, moved, o.pick(w.moved, w.p, 0))),
    }


def _events(kernel: v.Functions) -> tuple[v.Event, ...]:
    unsent = v.Need(lambda o, w: o.exists(w.p) & o.where(o.pick(w.sent, w.p, True), False, True))
    the_last = v.Need(
        lambda o, w: o.pick(w.answered, w.p, False) & v.same(o.pick(w.serial, w.p, 0), w.j) & (w.h <= w.j - 1)
    )
    return (
        v.Event("the holder says a renewal", _says, _POINT, (unsent,)),
        v.Event(
            "a renewal comes",
            lambda o, w: _arrives(kernel, o, w),
            {**_POINT, "said_balance": v.SCALAR, "c": v.SCALAR, "asks": v.FLAG},
            (_SENT, lambda o, w: w.c >= 0),
            (kernel.is_new, kernel.taken_back, kernel.pooled, kernel.leased, kernel.left_over),
        ),
        v.Event("the holder hears an answer", _hears, _POINT, (the_last,)),
        v.Event("the holder charges", lambda o, w: {"d": w.d - w.x, "W": w.W + w.x}, {"x": v.SCALAR}),
        v.Event("another holder renews", lambda o, w: {"q": w.q - w.x, "O": w.O + w.x}, {"x": v.SCALAR}),
    )


def _heard_of_new(w: v.World, o: Algebra) -> v.Term:
    return v.implies(o, w.sent & (w.serial > w.s), v.same(w.heard, w.h))


_INVARIANTS = (
    v.Clause("h <= s <= j", lambda o, w: (w.h >= 0) & (w.h <= w.s) & (w.s <= w.j)),
    v.Clause("serials are up to j", lambda o, w: v.implies(o, w.sent, w.serial <= w.j)),
    v.Clause("what is new says what was heard last", lambda o, w: _heard_of_new(w, o)),
    v.Clause("what is answered came", lambda o, w: v.implies(o, w.answered, w.sent & (w.serial <= w.s))),
    v.Clause("the last answer says m", lambda o, w: v.implies(o, w.answered & (w.serial >= w.s), v.same(w.moved, w.m))),
)
_KEPT = v.Clause(
    "W + q + d + O, and m unless it was heard, is what rounds gave",
    lambda o, w: v.same(w.W + w.q + w.d + w.O + o.where(w.s > w.h, w.m, 0), w.P),
)


def claims(kernel: v.Functions = leases) -> tuple[v.Claim, ...]:
    """The claim about the kernel functions of `kernel`."""
    scalars = ("q", "m", "s", "d", "O", "h", "j", "W", "P")
    none = v.Clause("no message", lambda o, w: o.where(w.sent | w.answered, False, True))

    def zero(o: Algebra, w: v.World) -> v.Term:
        nothing = v.same(w.q, 0)
        for name in scalars:
            nothing = nothing & v.same(getattr(w, name), 0)
        return v.spread(nothing, w.serial)

    return (
        v.Claim(
            L_AGAIN,
            v.System(
                "messages of a holder and its account",
                {"S": v.SCALAR},
                (),
                {
                    **v.scalars(*scalars),
                    **v.vectors("serial", "heard", "moved"),
                    **dict.fromkeys(("sent", "answered"), v.MASK),
                },
                _events(kernel),
            ),
            (none, v.Clause("all is zero", zero)),
            (*_INVARIANTS, _KEPT),
            (_KEPT,),
        ),
    )
