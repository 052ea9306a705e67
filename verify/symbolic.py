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

    def decide(self, condition: Any) -> bool:
        """Which way this run goes at a condition."""
        step = len(self.taken)
        choice = self._script[step] if step < len(self._script) else True
        self.taken.append((condition, choice))
        return choice

    def integer(self, name: str) -> "SymbolicInt":
        """An unknown integer of this run."""
        return SymbolicInt(self, z3.Int(name))

    def conditions(self) -> list[Any]:
        """What the decisions say."""
        return [condition if choice else z3.Not(condition) for condition, choice in self.taken]


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


class SymbolicBool:
    """A condition; as a truth value it splits the path."""

    __slots__ = ("paths", "term")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, paths: Paths, term: Any) -> None:
        self.paths = paths
        self.term = term

    def __bool__(self) -> bool:
        return self.paths.decide(self.term)


class SymbolicInt:
    """An integer that is not known; it adds, subtracts, multiplies and compares like one."""

    __slots__ = ("paths", "term")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, paths: Paths, term: Any) -> None:
        self.paths = paths
        self.term = term

    def _with(self, other: Any, operate: Callable[[Any, Any], Any]) -> "SymbolicInt":
        return SymbolicInt(self.paths, operate(self.term, _term(other)))

    def _compared(self, other: Any, compare: Callable[[Any, Any], Any]) -> SymbolicBool:
        return SymbolicBool(self.paths, compare(self.term, _term(other)))

    def __add__(self, other: Any) -> "SymbolicInt":
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> "SymbolicInt":
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> "SymbolicInt":
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> "SymbolicInt":
        return self._with(other, lambda a, b: a * b)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> "SymbolicInt":
        return SymbolicInt(self.paths, -self.term)

    def __bool__(self) -> bool:
        return self.paths.decide(self.term != 0)

    def __eq__(self, other: object) -> SymbolicBool:  # type: ignore[override]
        return self._compared(other, lambda a, b: a == b)

    def __ne__(self, other: object) -> SymbolicBool:  # type: ignore[override]
        return self._compared(other, lambda a, b: a != b)

    def __ge__(self, other: Any) -> SymbolicBool:
        return self._compared(other, lambda a, b: a >= b)

    def __gt__(self, other: Any) -> SymbolicBool:
        return self._compared(other, lambda a, b: a > b)

    def __le__(self, other: Any) -> SymbolicBool:
        return self._compared(other, lambda a, b: a <= b)

    def __lt__(self, other: Any) -> SymbolicBool:
        return self._compared(other, lambda a, b: a < b)


def _term(value: Any) -> Any:
    if isinstance(value, SymbolicInt):
        return value.term
    if isinstance(value, int) and not isinstance(value, bool):
        return z3.IntVal(value)
    raise TypeError(f"symbolic arithmetic is about integers, not {value!r}")
