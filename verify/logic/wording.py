"""The algebra's words as text: what a formula says is printed from the formula, so that no statement says less."""

from collections.abc import Callable
from typing import Any

from fairsched.model.algebra import Algebra

_NAME, _PRODUCT, _SUM, _SIDE, _TRUTH, _RULE = 5, 4, 3, 2, 1, 0
"""How tightly a text binds: a name, a product, a sum, a comparison, a conjunction, a rule with its condition."""


class Words:
    """A term of a formula as text.  Operators need no solver and no client."""

    def __init__(self, text: str, binds: int = _NAME, kind: str = "", parts: tuple["Words", ...] = ()) -> None:
        self.text, self.binds, self.kind, self.parts = text, binds, kind, parts

    def __str__(self) -> str:
        return self.text

    def _in(self, least: int) -> str:
        return self.text if self.binds >= least else f"({self.text})"

    def _joined(self, sign: str, other: Any, binds: int, right: int) -> "Words":
        other = _words(other)
        return Words(f"{self._in(binds)} {sign} {other._in(right)}", binds, sign, (self, other))

    def __add__(self, other: Any) -> "Words":
        if self.text == str(other):
            return _words(2).times(self)
        return self._joined("+", other, _SUM, _SUM)

    def __radd__(self, other: Any) -> "Words":
        return _words(other) + self

    def __sub__(self, other: Any) -> "Words":
        return self._joined("-", other, _SUM, _SUM + 1)

    def __rsub__(self, other: Any) -> "Words":
        return _words(other) - self

    def __neg__(self) -> "Words":
        return Words(f"-{self._in(_SUM + 1)}", _SUM)

    def __le__(self, other: Any) -> "Words":
        return self._joined("<=", other, _SIDE, _SIDE + 1)

    def __ge__(self, other: Any) -> "Words":
        return self._joined(">=", other, _SIDE, _SIDE + 1)

    def __lt__(self, other: Any) -> "Words":
        return self._joined("<", other, _SIDE, _SIDE + 1)

    def __gt__(self, other: Any) -> "Words":
        return self._joined(">", other, _SIDE, _SIDE + 1)

    def __and__(self, other: Any) -> "Words":
        also = _words(other)
        if self.kind == "<=":
            left, right = self.parts
            if left.text == right.text:  # `spread`
                return also
            if also.kind == ">=" and self.text.replace("<=", ">=") == also.text:  # `same`
                return left._joined("=", right, _SIDE, _SIDE + 1)
        return self._joined("and", also, _TRUTH, _TRUTH)

    def __rand__(self, other: Any) -> "Words":
        return _words(other) & self

    def __or__(self, other: Any) -> "Words":
        other = _words(other)
        return Words(f"{self._in(_SIDE)} or {other._in(_SIDE)}", _RULE)

    def __ror__(self, other: Any) -> "Words":
        return _words(other) | self

    def times(self, other: Any) -> "Words":
        return Words(f"{self._in(_PRODUCT)} {_words(other)._in(_NAME)}", _PRODUCT, "times", (self, _words(other)))


def _words(value: Any) -> Words:
    return value if isinstance(value, Words) else Words(str(value).lower() if isinstance(value, bool) else str(value))


class Wording:
    """The interpretation of the algebra's words that writes them down."""

    def where(self, m: Any, a: Any, b: Any) -> Words:
        m, a, b = _words(m), _words(a), _words(b)
        if b.text == "true":
            return Words(f"{a._in(_TRUTH)} wherever {m._in(_TRUTH)}", _RULE)
        return Words(f"{a._in(_SUM)} where {m._in(_TRUTH)}, else {b._in(_SUM)}", _RULE)

    def any(self, m: Any) -> Words:
        return Words(f"any({m})")

    def all(self, m: Any) -> Words:
        return Words(f"all({m})")

    def none(self, m: Any) -> Words:
        return Words(f"none({m})")

    def argmax(self, v: Any, m: Any) -> Words:
        return Words(f"argmax({v}, {m})")

    def argmin(self, v: Any, m: Any) -> Words:
        return Words(f"argmin({v}, {m})")

    def exists(self, p: Any) -> Words:
        return Words(f"exists({p})")

    def pick(self, v: Any, p: Any, default: Any) -> Words:
        v, p = _words(v), _words(p)
        if v.kind in ("+", "-", "times"):
            left, right = (self.pick(each, p, default) for each in v.parts)
            return left.times(right) if v.kind == "times" else left + right if v.kind == "+" else left - right
        return v if v.text.isdecimal() else Words(f"{v._in(_NAME)}_{p._in(_NAME)}")

    def bump(self, v: Any, p: Any, x: Any) -> Words:
        return Words(f"{_words(v)._in(_NAME)}[{p} + {x}]")

    def put(self, v: Any, p: Any, x: Any) -> Words:
        return Words(f"{_words(v)._in(_NAME)}[{p} = {x}]")

    def maximum(self, a: Any, b: Any) -> Words:
        return Words(f"max({a}, {b})")

    def minimum(self, a: Any, b: Any) -> Words:
        return Words(f"min({a}, {b})")

    def times(self, a: Any, b: Any) -> Words:
        return _words(b) if str(a) == "1" else _words(a).times(b)


class _Named:
    """A world in which each name stands for itself."""

    def __getattr__(self, name: str) -> Words:
        return Words(name)


_WORDING: Algebra = Wording()


def worded(formula: Callable[..., Any], points: int = 0) -> str:
    """Return what a formula over a world says, about clients called i, j, ... where it speaks of so many `points`."""
    return str(formula(_WORDING, _Named(), *[Words("ijkl"[n]) for n in range(points)]))
