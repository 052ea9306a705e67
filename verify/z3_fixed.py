"""The words of kernels on solver terms for a fixed number of clients, who are numbered from 0.

What `fairsched.verify.z3_algebra` is for any number, this is for few: a vector has a term for each client, `any` is a
disjunction, and `argmax` and `argmin` take the first of equals as running interpretations do.  It serves searches for
runs of a small world (`fairsched.verify.bounded`); proofs do not need it.
"""

from collections.abc import Callable
from typing import Any

import z3

from fairsched.model.algebra import NOBODY
from fairsched.verify.z3_algebra import ClosedFormValue, KernelError, Point, Value, Z3Algebra, lifted, scalar


def entries(terms: list[Any], *, boolean: bool, closed_form: bool = False) -> Value:
    """A vector or a mask of one term a client."""
    made = ClosedFormValue if closed_form and not boolean else Value
    return made(lambda client: terms[client], boolean=boolean, vector=True)


def point(number: Any) -> Point:
    """The client of that number, nobody for NOBODY."""
    return Point(number >= 0, number)


class FixedAlgebra(Z3Algebra):
    """The words over `size` clients."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def fresh_client(self, name: str) -> Any:
        raise KernelError("all clients of a small world are numbered")

    def _exists(self, mask: Value) -> Any:
        return z3.Or([mask.at(client) for client in range(self.size)])

    def _choose(self, v: Any, m: Any, beats: Callable[[Any, Any], Any]) -> Point:
        values, mask = lifted(v), lifted(m)
        best: Any = z3.IntVal(NOBODY)
        most: Any = z3.IntVal(0)
        for client in range(self.size):
            takes = z3.And(mask.at(client), z3.Or(best < 0, z3.Not(beats(most, values.at(client)))))
            best, most = z3.If(takes, client, best), z3.If(takes, values.at(client), most)
        return point(best)

    def pick(self, v: Any, p: Point, default: Any) -> Value:
        values, found = lifted(v), lifted(default).at(None)
        for client in range(self.size):
            found = z3.If(z3.And(p.found, p.who == client), values.at(client), found)
        return scalar(found)

    def total(self, v: Any) -> Value:
        values = lifted(v)
        return scalar(z3.Sum([values.at(client) for client in range(self.size)]))
