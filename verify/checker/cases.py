"""Following by cases: formulas become clauses over canonical atoms, and unit propagation with case splits refutes them.

A comparison of polynomials has one canonical form: over integers p > 0 is p - 1 >= 0, and p = 0 is p >= 0 and -p >= 0;
where p >= 3 holds p >= 2 does.
"""

import sys
from fractions import Fraction
from math import floor, gcd, lcm
from typing import Any

from fairsched.verify.checker.terms import Key, Poly, Term, TermTable, scaled

SPLITS_MAX = 4_000
"""Case splits in one step before it counts as not checked."""


class Cases:
    """Formulas that are to be shown contradictory: clauses over variables 1, 2, ..., where 1 is true.

    A variable stands for a connective or for a canonical atom, so that two ways of writing an atom are one variable.
    With `depth`, formulas are opened only so deep, and what is inside is a variable of its own.
    """

    def __init__(self, terms: TermTable, depth: int | None = None) -> None:
        self.terms = terms
        self.depth = depth
        self.known: dict[Key, int] = {"true": 1}
        self.clauses: list[tuple[int, ...]] = [(1,)]
        self.bounds: dict[Key, list[tuple[Any, int]]] = {}

    def say(self, term: Term, holds: bool = True) -> None:
        """Take a formula to be true, or false."""
        if self.depth == 1 and self.terms.op[term] == "or":
            # A clause, as most formulas of a proof are.
            literals = [self.literal(arg, 0) for arg in self.terms.args[term]]
            self.clauses += [tuple(literals)] if holds else [(-each,) for each in literals]
        literal = self.literal(term, 0 if self.depth == 1 and self.terms.op[term] == "or" else self.depth)
        self.clauses.append((literal if holds else -literal,))

    def literal(self, term: Term, depth: int | None) -> int:
        """Return the variable of a formula, negative if it is the negation."""
        t = self.terms
        op, args = t.op[term], t.args[term]
        if op == "not":
            return -self.literal(args[0], depth)
        if op in ("true", "false"):
            return 1 if op == "true" else -1
        if depth is None:
            if ("term", term) not in self.known:
                self.known["term", term] = self._opened(op, args, term, None)
            return self.known["term", term]
        shut = self._variable(("term", term))
        if depth and ("open", term) not in self.known:
            found = self.known["open", term] = self._opened(op, args, term, depth - 1)
            self.clauses += [(-shut, found), (shut, -found)]
        return shut

    def _opened(self, op: Any, args: tuple[Term, ...], term: Term, depth: int | None) -> int:
        t = self.terms
        if op == "and":
            return self._all([self.literal(arg, depth) for arg in args])
        if op == "or":
            return -self._all([-self.literal(arg, depth) for arg in args])
        if op == "=>":
            *given, last = (self.literal(arg, depth) for arg in args)
            return -self._all([*given, -last])
        if op in ("=", "xor", "ite") and len(args) == (3 if op == "ite" else 2) and t.sort[args[1]] == "Bool":
            literals = [self.literal(arg, depth) for arg in args]
            if op == "ite":
                return self._either(*literals)
            same = self._either(literals[0], literals[1], -literals[1])
            return same if op == "=" else -same
        return self._variable(("term", term)) if depth is not None else self._atom(op, args, term)

    def _atom(self, op: Any, args: tuple[Term, ...], term: Term) -> int:
        t = self.terms
        if op == "distinct":
            pairs = ((one, other) for i, one in enumerate(args) for other in args[:i])
            return self._all([-self.literal(t.make("=", (other, one)), None) for one, other in pairs])
        if said := t.comparison(term):
            relation, polynomial = said
            if relation == "=":
                return self._all([self._bound(polynomial, False), self._bound(scaled(polynomial, -1), False)])
            return self._bound(polynomial, relation == ">")
        if op == "=" and len(args) == 2:
            return 1 if args[0] == args[1] else self._variable(("=", *sorted(args)))
        return self._variable(("term", term))

    def _variable(self, key: Key) -> int:
        return self.known.setdefault(key, len(self.known) + 1)

    def _all(self, literals: list[int]) -> int:
        """Return the variable that is true exactly if all of these are."""
        kept = sorted(set(literals) - {1})
        if -1 in kept:
            return -1
        if len(kept) < 2:
            return kept[0] if kept else 1
        key = ("and", *kept)
        if key not in self.known:
            v = self._variable(key)
            self.clauses += [(-v, each) for each in kept]
            self.clauses.append((v, *(-each for each in kept)))
        return self.known[key]

    def _either(self, condition: int, one: int, other: int) -> int:
        """Return the variable that is the one literal if the condition is true, and else the other."""
        key = ("ite", condition, one, other)
        if key not in self.known:
            v, c = self._variable(key), condition
            self.clauses += [(-v, -c, one), (-v, c, other), (v, -c, -one), (v, c, -other)]
            self.clauses += [(-v, one, other), (v, -one, -other)]
        return self.known[key]

    def _bound(self, polynomial: Poly, strict: bool) -> int:
        """Return the literal that says that a polynomial is at least 0, or above it."""
        parts = {monomial: factor for monomial, factor in polynomial.items() if monomial}
        constant = polynomial.get((), Fraction(0))
        if not parts:
            return 1 if constant > 0 or (constant == 0 and not strict) else -1
        lead = parts[min(parts)]
        whole = all(self.terms.sort[atom] == "Int" for monomial in parts for atom in monomial)
        size = abs(lead)
        if whole:
            size = Fraction(gcd(*(f.numerator for f in parts.values())), lcm(*(f.denominator for f in parts.values())))
        direction = tuple(
            sorted((monomial, factor / size * (1 if lead > 0 else -1)) for monomial, factor in parts.items())
        )
        least = -constant / size
        if lead < 0:
            # direction <= -least, or below it: not above it, or not at least.
            return -self._at_least(direction, -least, not strict, whole)
        return self._at_least(direction, least, strict, whole)

    def _at_least(self, direction: Key, least: Fraction, strict: bool, whole: bool) -> int:
        if whole:
            least, strict = Fraction(floor(least) + 1 if strict else -floor(-least)), False
        known = ("at least", direction, least, strict) in self.known
        v = self._variable(("at least", direction, least, strict))
        if not known:
            for other, w in self.bounds.setdefault(direction, []):
                self.clauses.append((-v, w) if other < (least, strict) else (-w, v))
            self.bounds[direction].append(((least, strict), v))
        return v


def refuted(clauses: list[tuple[int, ...]], variables: int, splits: int) -> bool:
    """Return whether unit propagation and at most so many case splits leave no way to make all clauses true."""
    search = _Search(clauses, variables, splits)
    units = [clause[0] for clause in clauses if len(clause) == 1]
    return not all(clauses) or not search.assign(units) or search.fails()


class _Search:
    """Looks for values of variables, 1 or -1, that make all clauses true."""

    def __init__(self, clauses: list[tuple[int, ...]], variables: int, splits: int) -> None:
        self.clauses = clauses
        self.splits = splits
        self.value = [0] * (variables + 1)
        self.trail: list[int] = []
        # By literal: those above the middle are of negative ones.
        self.where: list[list[int]] = [[] for _ in range(2 * variables + 1)]
        for number, clause in enumerate(clauses):
            for literal in clause:
                self.where[literal].append(number)

    def assign(self, waiting: list[int]) -> bool:
        """Make literals true with all that follows; False for a contradiction."""
        while waiting:
            literal = waiting.pop()
            had, wanted = self.value[abs(literal)], 1 if literal > 0 else -1
            if had == -wanted:
                return False
            if had == 0:
                self.value[abs(literal)] = wanted
                self.trail.append(abs(literal))
                for number in self.where[-literal]:
                    forced = self._forced(self.clauses[number])
                    if forced == 0:
                        return False
                    if forced is not None:
                        waiting.append(forced)
        return True

    def _forced(self, clause: tuple[int, ...]) -> int | None:
        """Return the only literal that can make a clause true, 0 if there is none, and None if it need not be made."""
        value, free = self.value, 0
        for each in clause:
            said = value[each] if each > 0 else -value[-each]
            if said > 0 or (said == 0 and free and free != each):
                return None
            if said == 0:
                free = each
        return free

    def _open_literal(self) -> int:
        """Return a literal of the shortest clause that is not yet true, or 0 if there is none."""
        best, fewest = 0, sys.maxsize
        for clause in self.clauses:
            free = [each for each in clause if self.value[abs(each)] == 0]
            if free and len(free) < fewest and all(self.value[abs(each)] * each <= 0 for each in clause):
                best, fewest = free[0], len(free)
        return best

    def fails(self) -> bool:
        """Return whether both values of a variable lead to a contradiction, by further splits if need be."""
        literal = self._open_literal()
        self.splits -= 1
        if not literal or self.splits < 0:
            return False
        mark = len(self.trail)
        for choice in (literal, -literal):
            if self.assign([choice]) and not self.fails():
                return False
            while len(self.trail) > mark:
                self.value[self.trail.pop()] = 0
        return True
