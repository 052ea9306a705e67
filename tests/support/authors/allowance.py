"""An author's gate that is fair: who has overdrawn waits until everybody who waits has, then all get an allowance."""

from fairsched.model.algebra import Algebra, Mask, Point, Scalar, Vector
from fairsched.verify.authoring import Clause, FairGate, change, gap_within, of, service_gap


class Allowance(FairGate):
    """Tokens are paid from an allowance, in arrears; debt is remembered."""

    state = ("q",)
    constants = ("allowance",)
    allowance = 4096

    @staticmethod
    def choose(o: Algebra, q: Vector, queued: Mask, score: Vector) -> Point:
        return o.argmax(score, queued & (q > 0))

    @staticmethod
    def refill(o: Algebra, q: Vector, queued: Mask, allowance: Scalar) -> Vector:
        return o.where(o.none(queued & (q > 0)) & (q <= 0), q + allowance, q)

    @staticmethod
    def admit(o: Algebra, q: Vector, p: Point, charge: Scalar) -> Vector:
        return o.bump(q, p, -charge)

    @staticmethod
    def decode(o: Algebra, q: Vector, charge: Vector) -> Vector:
        return q - charge

    always = (Clause("1 - U <= q - R, q <= allowance", lambda o, w: (w.q - w.R >= 1 - w.U) & (w.q <= w.allowance)),)
    began = Clause("1 - U <= q0 <= allowance", lambda o, w: (w.q0 >= 1 - w.U) & (w.q0 <= w.allowance))
    paid = Clause("paid", lambda o, w: service_gap(o, w) + change(o, w, "q", w.f) <= change(o, w, "q", w.g))

    gap = gap_within(
        "gap",
        lambda o, w: w.allowance + w.allowance - 2 + of(o, w.U, w.f) + of(o, w.U, w.g),
        (began, paid),
    )
    promises = (gap,)
