"""Plain Python on symbolic integers: every path through a function, each with the conditions that lead there.

For code that is no kernel but small enough to be proved as it stands, such as the pricing of tokens: integers and
comparisons only, and a truth value that is asked for splits the path.  Code that calls kernels runs them on vectors of
such integers (`PATH_WORDS`), and a point is a number, as where it ships.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import z3

from fairsched.model.algebra import NO_GROUP, ExactAlgebra, ExactVector

T = TypeVar("T")


class Way(NamedTuple):
    """Which way a run went at a condition, and whether the other one is still to be gone."""

    choice: bool
    other: bool


class Paths:
    """The decisions of one run: those of `script` first, from then on True.

    With `pruned`, ways that are known to be impossible are left out.  A condition that was decided is not asked again.
    """

    def __init__(self, script: list[Way], pruned: bool = False) -> None:
        self._script = script
        self._solver = z3.Solver() if pruned else None
        self.ways: list[Way] = []
        self._taken: dict[int, tuple[Any, bool]] = {}
        self._assumed: list[Any] = []
        self._multiples: list[tuple[Any, Any, Any]] = []
        self.quotients: dict[tuple[int, int], tuple[Any, SymbolicInt]] = {}
        self._names = 0

    def decide(self, condition: Any) -> bool:
        """Return which way this run goes at a condition."""
        if (known := self._taken.get(condition.get_id())) is not None:
            return known[1]
        step = len(self.ways)
        way = self._script[step] if step < len(self._script) else self._begun(condition)
        self.ways.append(way)
        self._taken[condition.get_id()] = condition, way.choice
        self._tell(condition if way.choice else z3.Not(condition))
        return way.choice

    def _begun(self, condition: Any) -> Way:
        """Return the first way to be gone at a condition."""
        if self._solver is None:
            return Way(True, True)
        if self._solver.check(condition) == z3.unsat:
            return Way(False, False)
        return Way(True, self._solver.check(z3.Not(condition)) != z3.unsat)

    def _tell(self, *terms: Any) -> None:
        if self._solver is not None:
            self._solver.add(*terms)

    def integer(self, name: str) -> "SymbolicInt":
        return SymbolicInt(self, z3.Int(name))

    def fresh(self, name: str) -> "SymbolicInt":
        """Return an unknown integer with no other name: the result of something that is known by its contract only."""
        self._names += 1
        return self.integer(f"{name}!{self._names}")

    def assume(self, *terms: Any) -> None:
        """Assume what a contract promises on this path."""
        self._assumed += terms
        self._tell(*terms)

    def is_multiple(self, product: "SymbolicInt", of: "SymbolicInt") -> None:
        """Note a contract's promise that `product` is a positive multiple of `of`."""
        factor = self.fresh("factor").term
        self.assume(factor >= 1, product.term == factor * of.term)
        self._multiples.append((product.term, factor, of.term))

    def exact(self, product: Any, quotient: Any, divisor: Any) -> None:
        """Assume what follows for a quotient that is known to be exact: the lemma `exact_division`, which is proved
        once."""
        for known, factor, number in self._multiples:
            if known.eq(product) and number.eq(divisor):
                self.assume(z3.Implies(divisor >= 1, quotient == factor))

    def conditions(self) -> list[Any]:
        """Return what the decisions and the contracts say."""
        taken = self._taken.values()
        return [condition if choice else z3.Not(condition) for condition, choice in taken] + self._assumed


def exact_division() -> Any:
    """Return the lemma that `Paths.exact` uses, as a formula to be proved: f d = q d + r and 0 <= r < d give q = f."""
    factor, quotient, divisor, rest = z3.Ints("factor quotient divisor rest")
    known = z3.And(factor * divisor == quotient * divisor + rest, rest >= 0, rest < divisor)
    return z3.Implies(z3.And(divisor >= 1, known), quotient == factor)


def explore(function: Callable[[Paths], T], pruned: bool = False) -> Iterator[tuple[list[Any], T]]:
    """Run `function` once for every combination of its decisions; with `pruned`, for those that are possible."""
    script: list[Way] = []
    while True:
        paths = Paths(script, pruned)
        result = function(paths)
        yield paths.conditions(), result
        script = paths.ways
        while script and not script[-1].other:
            script.pop()
        if not script:
            return
        script[-1] = Way(not script[-1].choice, False)


class _Symbolic:
    """A term on a path."""

    __slots__ = ("paths", "term")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, paths: Paths, term: Any) -> None:
        self.paths = paths
        self.term = term


class SymbolicBool(_Symbolic):
    """A condition; as a truth value it splits the path."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return self.paths.decide(self.term)

    def __and__(self, other: "SymbolicBool | bool") -> "SymbolicBool":
        return SymbolicBool(self.paths, z3.And(self.term, truth(other)))

    def __or__(self, other: "SymbolicBool | bool") -> "SymbolicBool":
        return SymbolicBool(self.paths, z3.Or(self.term, truth(other)))

    __rand__ = __and__
    __ror__ = __or__


def _arithmetic(operate: Callable[[Any, Any], Any]) -> Callable[["SymbolicInt", Any], "SymbolicInt"]:
    return lambda self, other: SymbolicInt(self.paths, operate(self.term, _term(other)))


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[["SymbolicInt", Any], SymbolicBool]:
    return lambda self, other: SymbolicBool(self.paths, compare(self.term, _term(other)))


class SymbolicInt(_Symbolic):
    """An integer that is not known; it adds, subtracts, multiplies and compares like one."""

    __slots__ = ()
    __hash__ = None

    __add__ = __radd__ = _arithmetic(lambda a, b: a + b)
    __sub__ = _arithmetic(lambda a, b: a - b)
    __rsub__ = _arithmetic(lambda a, b: b - a)
    __mul__ = __rmul__ = _arithmetic(lambda a, b: a * b)
    __eq__ = _comparison(lambda a, b: a == b)  # type: ignore[assignment]
    __ne__ = _comparison(lambda a, b: a != b)  # type: ignore[assignment]
    __ge__ = _comparison(lambda a, b: a >= b)
    __gt__ = _comparison(lambda a, b: a > b)
    __le__ = _comparison(lambda a, b: a <= b)
    __lt__ = _comparison(lambda a, b: a < b)

    def __floordiv__(self, other: Any) -> "SymbolicInt":
        """Return Python's quotient, by what defines it; nothing is said about a divisor of zero."""
        divisor = _term(other)
        asked = self.term.get_id(), divisor.get_id()
        if (known := self.paths.quotients.get(asked)) is not None:
            return known[1]
        quotient, rest = self.paths.fresh("quotient"), self.paths.fresh("rest").term
        self.paths.quotients[asked] = (self.term, divisor), quotient
        self.paths.assume(
            self.term == quotient.term * divisor + rest,
            z3.Implies(divisor > 0, z3.And(rest >= 0, rest < divisor)),
            z3.Implies(divisor < 0, z3.And(rest <= 0, rest > divisor)),
        )
        self.paths.exact(self.term, quotient.term, divisor)
        return quotient

    def __mod__(self, other: Any) -> "SymbolicInt":
        """Return Python's remainder, by the quotient."""
        return SymbolicInt(self.paths, self.term - ((self // other) * other).term)

    def __neg__(self) -> "SymbolicInt":
        return SymbolicInt(self.paths, -self.term)

    def __bool__(self) -> bool:
        return self.paths.decide(self.term != 0)


def if_then(premise: "SymbolicBool | bool", conclusion: "SymbolicBool | bool") -> "SymbolicBool | bool":
    """State that the conclusion holds if the premise does; no path is split."""
    for part in (premise, conclusion):
        if isinstance(part, SymbolicBool):
            return SymbolicBool(part.paths, z3.Implies(truth(premise), truth(conclusion)))
    return bool(conclusion) or not premise


def one_if(condition: "SymbolicBool | bool") -> "SymbolicInt | int":
    """Return 1 if the condition holds, or else 0; no path is split."""
    if isinstance(condition, SymbolicBool):
        return SymbolicInt(condition.paths, z3.If(condition.term, z3.IntVal(1), z3.IntVal(0)))
    return int(condition)


def truth(value: "SymbolicBool | bool") -> Any:
    """Return the formula of a condition, known or not."""
    return value.term if isinstance(value, SymbolicBool) else z3.BoolVal(bool(value))


def _term(value: Any) -> Any:
    if isinstance(value, SymbolicInt):
        return value.term
    if isinstance(value, int):
        return z3.IntVal(int(value))  # A truth value counts as 0 or 1, as in Python.
    raise TypeError(f"symbolic arithmetic is about integers, not {value!r}")


# --- kernels on a path ------------------------------------------------------------------------------------------------


class PathVector(ExactVector):
    """A vector or a mask over numbered clients, whose entries may be unknown."""

    __slots__ = ()
    # An array beside it leaves the operation to this class.
    __array_ufunc__ = None

    def copy(self) -> "PathVector":
        """Return itself, since it never changes."""
        return self

    def tolist(self) -> list[Any]:
        """Return the entries, as an array does."""
        return list(self)

    def _each(self, other: Any, operate: Callable[[Any, Any], Any]) -> "PathVector":
        return PathVector(map(operate, self, _entries(other, len(self))))

    def __neg__(self) -> "PathVector":
        return PathVector([-own for own in self])


class PathAlgebra(ExactAlgebra):
    """The words of kernels on one path: a choice of a client splits it, and a choice between values does not."""

    def where(self, m: Any, a: Any, b: Any) -> Any:
        if not isinstance(m, PathVector):
            return _either(m, a, b)
        return PathVector(map(_either, m, _entries(a, len(m)), _entries(b, len(m))))

    def any(self, m: Any) -> Any:
        return _some(m)

    def none(self, m: Any) -> Any:
        some = _some(m)
        return SymbolicBool(some.paths, z3.Not(some.term)) if isinstance(some, SymbolicBool) else not some

    def argmax(self, v: Any, m: Any) -> int:
        return _best(v, m, lambda one, best: one > best)

    def argmin(self, v: Any, m: Any) -> int:
        return _best(v, m, lambda one, best: one < best)

    def bump(self, v: Any, p: int, x: Any) -> Any:
        return self.put(v, p, v[p] + x) if p >= 0 else v

    def put(self, v: Any, p: int, x: Any) -> Any:
        return PathVector((*v[:p], x, *v[p + 1 :])) if p >= 0 else v

    def minimum(self, a: Any, b: Any) -> Any:
        return self.where(a <= b, a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return self.where(a >= b, a, b)


PATH_WORDS = PathAlgebra()
"""What stands for both of numpy's interpretations: a vector never changes, so each may own it."""


def _entries(value: Any, size: int) -> list[Any]:
    entries: list[Any] = value.tolist() if hasattr(value, "tolist") else [value] * size
    return entries


def _either(condition: Any, a: Any, b: Any) -> Any:
    if not isinstance(condition, SymbolicBool):
        return a if condition else b
    return SymbolicInt(condition.paths, z3.If(condition.term, _term(a), _term(b)))


def _some(m: Any) -> Any:
    """Return whether an entry holds; no path is split."""
    some: Any = False
    for entry in m.tolist():
        some = some | entry
    return some


def _best(v: Any, m: Any, better: Callable[[Any, Any], Any]) -> int:
    """Return the first client of the mask than which none is better; each question of it splits the path."""
    best, values = NO_GROUP, v.tolist()
    for client, held in enumerate(m.tolist()):
        if held and (best == NO_GROUP or better(values[client], values[best])):
            best = client
    return best
