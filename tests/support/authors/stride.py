"""An author's gate with products of variables: stride scheduling, in which a token costs a client its stride."""

from fairsched.model.algebra import Algebra, Mask, Point, Scalar, Vector
from fairsched.verify.authoring import Clause, FairGate, change, gap_within, implies, of, same


class Stride(FairGate):
    """The client of smallest pass goes first; a token adds stride / weight to it."""

    state = ("c",)
    not_promised = ("return-credit",)
    over_weight = ("stride",)
    stride = 2520

    @staticmethod
    def choose(o: Algebra, c: Vector, queued: Mask) -> Point:
        return o.argmin(c, queued)

    @staticmethod
    def join(o: Algebra, c: Vector, queued: Mask, p: Point, last: Point) -> Vector:
        return o.put(c, p, o.maximum(o.pick(c, p, 0), o.pick(c, o.argmin(c, queued), o.pick(c, last, 0))))

    @staticmethod
    def admit(o: Algebra, c: Vector, p: Point, charge: Scalar, stride: Vector) -> Vector:
        return o.bump(c, p, o.times(charge, o.pick(stride, p, 0)))

    @staticmethod
    def decode(o: Algebra, c: Vector, charge: Vector, stride: Vector) -> Vector:
        return c + o.times(charge, stride)

    always = (
        Clause(
            "close",
            lambda o, w, i: implies(o, w.queued | w.was, of(o, w.c + o.times(w.stride, w.R - w.U), i) <= w.c),
            points=1,
        ),
        Clause(
            "close to the last",
            lambda o, w: implies(o, w.idle, w.c + o.times(w.stride, w.R - w.U) <= of(o, w.c, w.last)),
        ),
    )
    began = Clause("began close", lambda o, w: of(o, w.c0 - o.times(w.stride, w.U), w.g) <= of(o, w.c0, w.f))
    paid = Clause(
        "paid",
        lambda o, w: same(
            o.times(of(o, w.stride, w.f), of(o, w.W, w.f)) - o.times(of(o, w.stride, w.g), of(o, w.W, w.g)),
            change(o, w, "c", w.f) - change(o, w, "c", w.g),
        ),
    )
    promises = (
        gap_within(
            "gap",
            lambda o, w: of(o, o.times(w.stride, w.U), w.f) + of(o, o.times(w.stride, w.U), w.g),
            (paid, began),
            shares=lambda o, w: (of(o, w.stride, w.f), of(o, w.stride, w.g)),
            backlogged="fg",
        ),
    )
