"""An author's gate with chance: a lottery among the clients that are not too far ahead, whose bound no draw breaks."""

from fairsched.model.algebra import Algebra, Mask, Point, Scalar, Vector
from fairsched.verify.authoring import Clause, FairGate, change, gap_within, implies, of, same, service_gap


class Lottery(FairGate):
    """A ticket decides among clients that were charged at most `slack` more than the one charged least."""

    state = ("c",)
    not_promised = ("return-credit",)
    constants = ("slack",)
    slack = 8192

    @staticmethod
    def choose(o: Algebra, c: Vector, queued: Mask, lot: Vector, slack: Scalar) -> Point:
        lowest = o.pick(c, o.argmin(c, queued), 0)
        return o.argmax(lot, queued & (c <= lowest + slack))

    @staticmethod
    def join(o: Algebra, c: Vector, queued: Mask, p: Point, last: Point) -> Vector:
        return o.put(c, p, o.maximum(o.pick(c, p, 0), o.pick(c, o.argmin(c, queued), o.pick(c, last, 0))))

    @staticmethod
    def admit(o: Algebra, c: Vector, p: Point, charge: Scalar) -> Vector:
        return o.bump(c, p, charge)

    @staticmethod
    def decode(o: Algebra, c: Vector, charge: Vector) -> Vector:
        return c + charge

    always = (
        Clause(
            "close", lambda o, w, i: implies(o, w.queued | w.was, of(o, w.c + w.R - w.U, i) <= w.c + w.slack), points=1
        ),
        Clause("close to the last", lambda o, w: implies(o, w.idle, w.c + w.R - w.U <= of(o, w.c, w.last) + w.slack)),
    )
    began = Clause("began close", lambda o, w: of(o, w.c0 - w.U, w.g) <= of(o, w.c0, w.f) + w.slack)
    paid = Clause("paid", lambda o, w: same(service_gap(o, w), change(o, w, "c", w.f) - change(o, w, "c", w.g)))
    promises = (
        gap_within(
            "gap",
            lambda o, w: w.slack + w.slack + of(o, w.U, w.f) + of(o, w.U, w.g),
            (paid, began),
            backlogged="fg",
        ),
    )
