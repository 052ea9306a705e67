"""An author's gate that is subtly unfair: it forgets where the last who left stood."""

from fairsched.model.algebra import Algebra, Mask, Point, Scalar, Vector
from fairsched.verify.authoring import Clause, FairGate, Promise, change, implies, of, same, service_gap


class LeastServed(FairGate):
    """Whoever was charged least goes first, and who joins is lifted to the lowest of those who wait."""

    state, not_promised = ("c",), ("return-credit",)

    @staticmethod
    def choose(o: Algebra, c: Vector, queued: Mask) -> Point:
        return o.argmin(c, queued)

    @staticmethod
    def join(o: Algebra, c: Vector, queued: Mask, p: Point) -> Vector:
        return o.put(c, p, o.maximum(o.pick(c, p, 0), o.pick(c, o.argmin(c, queued), 0)))

    @staticmethod
    def admit(o: Algebra, c: Vector, p: Point, charge: Scalar) -> Vector:
        return o.bump(c, p, charge)

    @staticmethod
    def decode(o: Algebra, c: Vector, charge: Vector) -> Vector:
        return c + charge

    always = (
        Clause("close", lambda o, w, i: implies(o, w.queued | w.was, of(o, w.c + w.R - w.U, i) <= w.c), points=1),
        Clause("close to the last", lambda o, w: implies(o, w.idle, w.c + w.R - w.U <= of(o, w.c, w.last))),
    )
    began = Clause("c0_g <= c0_f + U_g", lambda o, w: of(o, w.c0 - w.U, w.g) <= of(o, w.c0, w.f))
    paid = Clause("paid", lambda o, w: same(change(o, w, "c", w.f), service_gap(o, w) + change(o, w, "c", w.g)))
    promises = (
        Promise("gap", lambda o, w: service_gap(o, w) <= of(o, w.U, w.f) + of(o, w.U, w.g), (paid, began), "fg"),
    )
