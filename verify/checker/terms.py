"""The text of questions and proofs, and what it speaks of: terms, each once, with their sorts, and polynomials."""

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import Any

Term = int
Key = Any
Poly = dict[tuple[Term, ...], Fraction]
"""A polynomial: the coefficient of each product of atoms; () is the constant."""


class NotCheckedError(Exception):
    """The text is not a proof that these files can follow."""


# --- text -------------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r';[^\n]*|"(?:[^"]|"")*"|\|[^|]*\||[()]|[^\s()"|;]+')
_NUMERAL = re.compile(r"-?\d+(?:/[1-9]\d*|\.\d+)?")


def expressions(text: str) -> Iterator[Any]:
    """Yield each top-level expression as nested lists of words; raises `NotCheckedError` for unbalanced brackets."""
    stack: list[list[Any]] = []
    for word in _TOKEN.findall(text):
        if word == "(":
            stack.append([])
        elif word == ")":
            if not stack:
                raise NotCheckedError("a bracket closes nothing")
            done = stack.pop()
            if stack:
                stack[-1].append(done)
            else:
                yield done
        elif word[0] != ";":
            if not stack:
                raise NotCheckedError(f"{word} stands outside brackets")
            stack[-1].append(word)
    if stack:
        raise NotCheckedError("a bracket is open at the end")


# --- terms ------------------------------------------------------------------------------------------------------------

NUMBERS = ("Int", "Real")
CONNECTIVES = {"and": (1, None), "or": (1, None), "not": (1, 1), "=>": (2, None), "xor": (2, 2)}
RELATIONS = (">=", "<=", ">", "<")
ARITHMETIC = ("+", "-", "*", "/", "/_total")
WORDS = {
    *CONNECTIVES,
    *RELATIONS,
    *ARITHMETIC,
    "=",
    "distinct",
    "ite",
    "abs",
    "to_int",
    "to_real",
    "@purify",
    "true",
    "false",
}


class TermTable:
    """Every term once, by number: equal terms have equal numbers.  Terms of wrong sorts are refused."""

    def __init__(self) -> None:
        self.ids: dict[Key, Term] = {}
        self.op: list[Any] = []
        self.args: list[tuple[Term, ...]] = []
        self.sort: list[str] = []
        self.sorts = {"Bool", *NUMBERS}
        self.functions: dict[str, tuple[tuple[str, ...], str]] = {}
        self.named: dict[str, Term] = {}
        self.unread: dict[str, Any] = {}
        self.polynomials: dict[Term, Poly] = {}
        self.true, self.false = self._new("true", (), "Bool"), self._new("false", (), "Bool")

    def _new(self, op: Any, args: tuple[Term, ...], sort: str) -> Term:
        key = (op, sort, args)
        if key not in self.ids:
            self.ids[key] = len(self.op)
            self.op.append(op)
            self.args.append(args)
            self.sort.append(sort)
        return self.ids[key]

    def number(self, value: Fraction, sort: str) -> Term:
        return self._new(value, (), sort)

    def make(self, op: str, args: tuple[Term, ...]) -> Term:
        """Return an application; raises `NotCheckedError` if its arguments have not the sorts that it needs."""
        sorts = [self.sort[arg] for arg in args]
        numbers = all(sort in NUMBERS for sort in sorts)
        if op in CONNECTIVES:
            least, most = CONNECTIVES[op]
            fits, sort = len(args) >= least and (most is None or len(args) <= most) and set(sorts) == {"Bool"}, "Bool"
        elif op in RELATIONS:
            fits, sort = len(args) == 2 and numbers, "Bool"
        elif op in ("=", "distinct"):
            fits, sort = len(args) >= 2 and (numbers or len(set(sorts)) == 1), "Bool"
        elif op in ARITHMETIC:
            fits, sort = bool(args) and numbers, "Real" if "Real" in sorts or op[0] == "/" else "Int"
        elif op == "abs":
            fits, sort = len(args) == 1 and numbers, sorts[0]
        elif op == "to_int":
            fits, sort = len(args) == 1 and numbers, "Int"
        elif op == "ite":
            fits = len(args) == 3 and sorts[0] == "Bool" and (sorts[1] == sorts[2] or set(sorts[1:]) == set(NUMBERS))
            sort = "Real" if "Real" in sorts else sorts[-1]
        elif op in self.functions:
            domain, sort = self.functions[op]
            fits = len(args) == len(domain) and all(
                have == want or (have, want) == NUMBERS for have, want in zip(sorts, domain, strict=True)
            )
        else:
            raise NotCheckedError(f"nothing is known about {op}")
        if not fits:
            raise NotCheckedError(f"{op} does not take {', '.join(sorts)}")
        return self._new(op, args, sort)

    def read(self, said: Any) -> Term:
        if isinstance(said, str):
            if said in self.unread:
                self.define(said, self.read(self.unread.pop(said)))
            if said in self.named:
                return self.named[said]
            if _NUMERAL.fullmatch(said):
                return self.number(Fraction(said), "Real" if "/" in said or "." in said else "Int")
            return self.true if said == "true" else self.false if said == "false" else self.make(said, ())
        match said:
            case ["@purify" | "to_real", inner]:
                return self.read(inner)
            case [str(op), *parts]:
                args = tuple([self.read(part) for part in parts])
                if op in ("=", *RELATIONS) and len(args) > 2:
                    return self.make("and", tuple(self.make(op, pair) for pair in pairwise(args)))
                return self.make(op, args)
        raise NotCheckedError(f"{said} is no term")

    def declare(self, name: str, domain: Iterable[Any], sort: Any) -> None:
        """Declare a function; raises `NotCheckedError` for a name that is known as something else."""
        kind = (tuple(domain), sort)
        if not all(isinstance(each, str) and each in self.sorts for each in (*kind[0], sort)):
            raise NotCheckedError(f"{name} is of an unknown sort")
        if name in WORDS or name in self.named or self.functions.setdefault(name, kind) != kind:
            raise NotCheckedError(f"{name} is declared twice")

    def define_later(self, name: str, body: Any) -> None:
        """Name what may be no term, but a list of arguments that nothing here looks at."""
        if name in self.functions or name in self.unread:
            raise NotCheckedError(f"{name} is defined twice")
        if name in self.named:
            self.define(name, self.read(body))
        else:
            self.unread[name] = body

    def define(self, name: str, term: Term) -> None:
        """Name a term; raises `NotCheckedError` for a name that means something else."""
        if name in WORDS or name in self.functions or name in self.unread or self.named.setdefault(name, term) != term:
            raise NotCheckedError(f"{name} is defined twice")

    def replaced(self, term: Term, by: dict[Term, Term]) -> Term:
        """Return the term with other terms inside it in place of some; `by` grows by what it was worked out for."""
        if term not in by:
            args = tuple(self.replaced(arg, by) for arg in self.args[term])
            by[term] = term if args == self.args[term] else self.make(self.op[term], args)
        return by[term]

    # --- polynomials ---

    def polynomial(self, term: Term) -> Poly:
        """Return a term of numbers as a polynomial over the terms in it that are no sum or product."""
        if term not in self.polynomials:
            self.polynomials[term] = self._polynomial(self.op[term], self.args[term], term)
        return self.polynomials[term]

    def _polynomial(self, op: Any, args: tuple[Term, ...], term: Term) -> Poly:
        if isinstance(op, Fraction):
            return {(): op} if op else {}
        if op == "+":
            return total(map(self.polynomial, args))
        if op == "-":
            first, *others = map(self.polynomial, args)
            return total([first, *(scaled(each, -1) for each in others)]) if others else scaled(first, -1)
        if op == "*":
            product: Poly = {(): Fraction(1)}
            for arg in args:
                product = times(product, self.polynomial(arg))
            return product
        if op in ("/", "/_total") and len(args) == 2:
            by = self.polynomial(args[1])
            if by.keys() == {()}:
                return scaled(self.polynomial(args[0]), 1 / by[()])
        if op == "to_int" and not (inside := self.polynomial(args[0])).keys() - {()}:
            whole = floor(inside.get((), 0))
            return {(): Fraction(whole)} if whole else {}
        return {(term,): Fraction(1)}

    def comparison(self, term: Term) -> tuple[str, Poly] | None:
        """Return a comparison of two numbers as what is said of a polynomial: `=`, `>` or `>=` 0; else None."""
        op, args = self.op[term], self.args[term]
        if (op == "=" and len(args) == 2 and self.sort[args[0]] in NUMBERS) or op in RELATIONS:
            more, less = map(self.polynomial, args)
            if op in ("<", "<="):
                more, less, op = less, more, {"<": ">", "<=": ">="}[op]
            return op, total((more, scaled(less, -1)))
        return None


def total(polynomials: Iterable[Poly]) -> Poly:
    """Return the sum of polynomials."""
    found: Poly = {}
    for polynomial in polynomials:
        for monomial, factor in polynomial.items():
            found[monomial] = found.get(monomial, Fraction(0)) + factor
    return {monomial: factor for monomial, factor in found.items() if factor}


def scaled(polynomial: Poly, factor: Fraction | int) -> Poly:
    """Return a polynomial times a number."""
    return {monomial: each * factor for monomial, each in polynomial.items()} if factor else {}


def times(one: Poly, other: Poly) -> Poly:
    """Return the product of two polynomials."""
    return total({tuple(sorted(a + b)): x * y} for a, x in one.items() for b, y in other.items())
