"""Plain Python on symbolic integers: every path through a function, each with the conditions that lead there.

For code that is no kernel but small enough to be proved as it stands, such as the pricing of tokens: integers and
comparisons only, and a truth value that is asked for splits the path.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import z3

T = TypeVar("T")


class Paths:
    """The decisions of one run: those of `script` first, True from then on."""

    def __init__(self, script: list[bool]) -> None:
        self._script = script
        self.taken: list[tuple[Any, bool]] = []
        self._assumed: list[Any] = []
        self._multiples: list[tuple[Any, Any, Any]] = []
        self._names = 0

    def decide(self, condition: Any) -> bool:
        """Which way this run goes at a condition."""
        step = len(self.taken)
        choice = self._script[step] if step < len(self._script) else True
        self.taken.append((condition, choice))
        return choice

    def integer(self, name: str) -> "SymbolicInt":
        """An unknown integer of this run."""
        return SymbolicInt(self, z3.Int(name))

    def fresh(self, name: str) -> "SymbolicInt":
        """An unknown integer with no other name: the result of something that is known by its contract only."""
        self._names += 1
        return self.integer(f"{name}!{self._names}")

    def assume(self, *terms: Any) -> None:
        """What a contract promises on this path."""
        self._assumed += terms

    def is_multiple(self, product: "SymbolicInt", of: "SymbolicInt") -> None:
        """A contract promises that `product` is a positive multiple of `of`."""
        factor = self.fresh("factor").term
        self.assume(factor >= 1, product.term == factor * of.term)
        self._multiples.append((product.term, factor, of.term))

    def exact(self, product: Any, quotient: Any, divisor: Any) -> None:
        """What follows for a quotient that is known to be exact: the lemma `exact_division`, which is proved once."""
        for known, factor, number in self._multiples:
            if known.eq(product) and number.eq(divisor):
                self.assume(z3.Implies(divisor >= 1, quotient == factor))

    def conditions(self) -> list[Any]:
        """What the decisions and the contracts say."""
        return [condition if choice else z3.Not(condition) for condition, choice in self.taken] + self._assumed


def exact_division() -> Any:
    """The lemma that `Paths.exact` uses, as a formula to be proved: f d = q d + r and 0 <= r < d give q = f."""
    factor, quotient, divisor, rest = z3.Ints("factor quotient divisor rest")
    known = z3.And(factor * divisor == quotient * divisor + rest, rest >= 0, rest < divisor)
    return z3.Implies(z3.And(divisor >= 1, known), quotient == factor)


def explore(function: Callable[[Paths], T]) -> Iterator[tuple[list[Any], T]]:
    """Runs `function` once for every combination of its decisions."""
    script: list[bool] = []
    while True:
        paths = Paths(script)
        result = function(paths)
        yield paths.conditions(), result
        script = [choice for _, choice in paths.taken]
        while script and not script[-1]:
            script.pop()
        if not script:
            return
        script[-1] = False


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
        """Python's quotient, by what defines it; nothing is said about a divisor of zero."""
        divisor, quotient, rest = _term(other), self.paths.fresh("quotient"), self.paths.fresh("rest").term
        self.paths.assume(
            self.term == quotient.term * divisor + rest,
            z3.Implies(divisor > 0, z3.And(rest >= 0, rest < divisor)),
            z3.Implies(divisor < 0, z3.And(rest <= 0, rest > divisor)),
        )
        self.paths.exact(self.term, quotient.term, divisor)
        return quotient

    def __mod__(self, other: Any) -> "SymbolicInt":
        """Python's remainder, by the quotient."""
        return SymbolicInt(self.paths, self.term - ((self // other) * other).term)

    def __neg__(self) -> "SymbolicInt":
        return SymbolicInt(self.paths, -self.term)

    def __bool__(self) -> bool:
        return self.paths.decide(self.term != 0)


def if_then(premise: "SymbolicBool | bool", conclusion: "SymbolicBool | bool") -> "SymbolicBool | bool":
    """That the conclusion holds if the premise does; no path is split."""
    for part in (premise, conclusion):
        if isinstance(part, SymbolicBool):
            return SymbolicBool(part.paths, z3.Implies(truth(premise), truth(conclusion)))
    return bool(conclusion) or not premise


def one_if(condition: "SymbolicBool | bool") -> "SymbolicInt | int":
    """1 if the condition holds, or else 0; no path is split."""
    if isinstance(condition, SymbolicBool):
        return SymbolicInt(condition.paths, z3.If(condition.term, z3.IntVal(1), z3.IntVal(0)))
    return int(condition)


def truth(value: "SymbolicBool | bool") -> Any:
    """The formula of a condition, known or not."""
    return value.term if isinstance(value, SymbolicBool) else z3.BoolVal(bool(value))


def _term(value: Any) -> Any:
    if isinstance(value, SymbolicInt):
        return value.term
    if isinstance(value, int):
        return z3.IntVal(int(value))  # A truth value counts as 0 or 1, as in Python.
    raise TypeError(f"symbolic arithmetic is about integers, not {value!r}")
