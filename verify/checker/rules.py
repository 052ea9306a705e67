"""What follows from what: a few kinds of reasoning, and which of them a rule of the proof format is.

same        equal terms in equal places, one argument at a time; a chain of equalities; both directions
opened      unit propagation over the literals of the premises, once the conclusion is taken to be false
cases       canonical atoms, unit propagation through connectives, and case splits; a term `ite` is either branch
added       comparisons are added
multiplied  a comparison is multiplied by what is positive, or negative
signed      a monomial has the sign that its factors' signs give it
sized       products are as large as the sizes of their factors
scoped      what follows under an assumption, without it
regrouped   `and` or `or` of the same parts, in another order and with other brackets; or by cases
"""

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

from fairsched.verify.checker.cases import SPLITS_MAX, Cases, refuted
from fairsched.verify.checker.terms import Key, Poly, Term, TermTable, scaled, times, total

ITES_MAX = 8
"""Conditions of `ite` terms that one step may be split by."""

Premises = tuple[Term, ...]


def opened(depth: int) -> Callable[[TermTable, Term, Premises], bool]:
    """Return the kind of reasoning that opens formulas so deep and propagates units."""

    def clauses(t: TermTable, conclusion: Term, premises: Premises) -> bool:
        world = Cases(t, depth)
        for premise in premises:
            world.say(premise)
        world.say(conclusion, False)
        return refuted(world.clauses, len(world.known), 0)

    return clauses


def cases(t: TermTable, conclusion: Term, premises: Premises) -> bool:
    """Return whether the premises are true and the conclusion is false in no case."""
    return opened(3)(t, conclusion, premises) or _contradict(t, (*premises, t.make("not", (conclusion,))), -1)


def _contradict(t: TermTable, formulas: tuple[Term, ...], left: int) -> bool:
    """Return whether formulas contradict each other; -1 leaves `ite` terms alone at first."""
    if left < 0:
        formulas = tuple(_without_abs(t, formulas))
    world = Cases(t)
    for formula in formulas:
        world.say(formula)
    if refuted(world.clauses, len(world.known), SPLITS_MAX):
        return True
    if left == 0 or not (branches := _branches(t, formulas)):
        return False
    condition = t.args[branches[0]][0]
    for holds in (True, False):
        by = {each: t.args[each][1 if holds else 2] for each in branches if t.args[each][0] == condition}
        chosen = tuple(t.replaced(formula, by) for formula in formulas)
        given = condition if holds else t.make("not", (condition,))
        if not _contradict(t, (*chosen, given), ITES_MAX if left < 0 else left - 1):
            return False
    return True


def _without_abs(t: TermTable, formulas: Iterable[Term]) -> Iterator[Term]:
    """Yield formulas with `ite` in place of `abs`."""
    by: dict[Term, Term] = {}

    def plain(term: Term) -> Term:
        if term not in by:
            args = tuple(map(plain, t.args[term]))
            made = term if args == t.args[term] else t.make(t.op[term], args)
            if t.op[term] == "abs":
                nothing = t.number(Fraction(0), t.sort[term])
                made = t.make("ite", (t.make(">=", (*args, nothing)), *args, t.make("-", args)))
            by[term] = made
        return by[term]

    return map(plain, formulas)


def _branches(t: TermTable, formulas: Iterable[Term]) -> list[Term]:
    """Return the `ite` terms in formulas, those first in which there is no other."""
    found: dict[Term, bool] = {}

    def look(term: Term) -> None:
        if term not in found:
            found[term] = False
            for arg in t.args[term]:
                look(arg)
            found[term] = t.op[term] == "ite" and t.sort[term] != "Bool"

    for formula in formulas:
        look(formula)
    return sorted(term for term, is_ite in found.items() if is_ite)


def same(t: TermTable, conclusion: Term, premises: Premises) -> bool:
    """Return whether an equality follows from equalities: argument by argument, or along a chain."""
    if t.op[conclusion] == "not":
        # From a different from b, b different from a.
        return any(t.op[p] == "not" and same(t, t.args[p][0], t.args[conclusion]) for p in premises)
    if t.op[conclusion] != "=" or len(t.args[conclusion]) != 2:
        return False
    pairs = {t.args[p] for p in premises if t.op[p] == "=" and len(t.args[p]) == 2}
    pairs |= {(b, a) for a, b in pairs}
    left, right = t.args[conclusion]
    one, other = t.args[left], t.args[right]
    alike = one and t.op[left] == t.op[right] and len(one) == len(other)
    if alike and all(a == b or (a, b) in pairs for a, b in zip(one, other, strict=True)):
        return True
    reached, waiting = {left}, [left]
    while waiting and right not in reached:
        at = waiting.pop()
        ends = {b for a, b in pairs if a == at} - reached
        reached |= ends
        waiting += ends
    return right in reached


def scoped(t: TermTable, conclusion: Term, premises: Premises) -> bool:
    """Return whether assumptions one after the other are taken together."""
    args = t.args[conclusion] if t.op[conclusion] == "=>" else (*t.args[conclusion], t.false)
    if len(premises) != 1 or t.op[conclusion] not in ("=>", "not") or len(args) != 2:
        return False
    given, goal = args
    assumed, then = [], premises[0]
    while then != goal:
        if t.op[then] != "=>" or len(t.args[then]) != 2:
            return False
        assumed.append(t.args[then][0])
        then = t.args[then][1]
    return assumed == [given] or (t.op[given] == "and" and tuple(assumed) == t.args[given])


def added(t: TermTable, conclusion: Term, premises: Premises) -> bool:
    """Return whether a comparison is the sum of comparisons."""
    said = [t.comparison(each) for each in (conclusion, *premises)]
    if None in said:
        return False
    # An equality is read as the first is at most the second.
    (relation, goal), *parts = [(r, scaled(p, -1) if r == "=" else p) for r, p in filter(None, said)]
    enough = relation == ">=" or (relation == ">" and any(r == ">" for r, _ in parts))
    return enough and total(p for _, p in parts) == goal


def multiplied(t: TermTable, conclusion: Term, premises: Premises) -> bool:
    """Return whether it says: if m > 0 and p >= 0, then m p >= 0; or the same of > or =, or of m < 0 and -m."""
    match t.op[conclusion], t.args[conclusion]:
        case "=>", (given, then) if t.op[given] == "and" and len(t.args[given]) == 2:
            said = [t.comparison(each) for each in (*t.args[given], then)]
            if None not in said:
                (sign, by), (relation, what), (concluded, product) = filter(None, said)
                made = times(by, what)
                turned = relation == "=" and scaled(made, -1) == product
                return sign == ">" and relation == concluded and (made == product or turned)
    return False


def signed(t: TermTable, conclusion: Term, premises: Premises) -> bool:
    """Return whether it says that a product is above or below 0, because its factors are; what is squared only is not
    0."""
    if t.op[conclusion] != "=>" or len(t.args[conclusion]) != 2:
        return False
    given, then = t.args[conclusion]
    signs: dict[Key, int] = {}
    for each in t.args[given] if t.op[given] == "and" else (given,):
        different = t.op[each] == "not"
        said = t.comparison(t.args[each][0] if different else each)
        if said is None or said[0] != ("=" if different else ">"):
            return False
        for sign in (1, -1):
            signs[frozenset(scaled(said[1], sign).items())] = 0 if different else sign
    if t.op[then] not in ("<", ">") or t.polynomial(t.args[then][1]):
        return False
    whole = t.args[then][0]
    factors = [frozenset(t.polynomial(arg).items()) for arg in (t.args[whole] if t.op[whole] == "*" else (whole,))]
    found = 1
    for factor in set(factors):
        if factor not in signs:
            return False
        if factors.count(factor) % 2:
            found *= signs[factor]
    return found == (1 if t.op[then] == ">" else -1)


def tangent(t: TermTable, conclusion: Term, premises: Premises) -> bool:
    """Return whether it says that a product c d is at least 0 exactly if both factors are, or neither is above 0."""
    match t.op[conclusion], [(t.op[each], t.args[each]) for each in t.args[conclusion]]:
        case "=", [_, ("or", (one, other))] if t.op[one] == t.op[other] == "and":
            said = [t.comparison(each) for each in (t.args[conclusion][0], *t.args[one], *t.args[other])]
            if len(said) == 5 and all(each and each[0] == ">=" for each in said):
                whole, c, d, minus_c, minus_d = (each[1] for each in said if each)
                return whole == times(c, d) and minus_c == scaled(c, -1) and minus_d == scaled(d, -1)
    return False


def sized(t: TermTable, conclusion: Term, premises: Premises) -> bool:
    """Return whether the size of one product is above that of another, or equal to it, as the sizes of their factors
    are."""

    def sizes(formula: Term) -> tuple[str, Poly, Poly] | None:
        args = t.args[formula]
        if t.op[formula] not in (">", "=") or len(args) != 2 or any(t.op[arg] != "abs" for arg in args):
            return None
        return t.op[formula], *(t.polynomial(t.args[arg][0]) for arg in args)

    goal = sizes(conclusion)
    product: list[Poly] = [{(): Fraction(1)}, {(): Fraction(1)}]
    strict = False
    for premise in premises:
        said = sizes(t.args[premise][0] if t.op[premise] == "and" else premise)
        if goal is None or said is None:
            return False
        if said[0] == "=" and goal[0] == ">":
            # Equal sizes keep what is above above only if they are not 0.
            apart = t.args[premise][1:] if t.op[premise] == "and" else ()
            if not any(t.op[each] == "not" and t.comparison(t.args[each][0]) == ("=", said[1]) for each in apart):
                return False
        if said[0] == ">" and goal[0] == "=":
            return False
        strict = strict or said[0] == ">"
        product = [times(one, other) for one, other in zip(product, said[1:], strict=True)]
    return goal is not None and product == list(goal[1:]) and strict == (goal[0] == ">")


def turned(t: TermTable, conclusion: Term, premises: Premises) -> bool:
    """Return whether it says that two numbers have one size exactly if they are equal, or each the other turned
    around."""
    match [(t.op[each], t.args[each]) for each in t.args[conclusion]] if t.op[conclusion] == "=" else ():
        case [("=", (one, other)), ("or", (same_sign, other_sign))] if t.op[one] == t.op[other] == "abs":
            x, y = t.args[one][0], t.args[other][0]
            negative = t.make("=", (x, t.make("-", (y,))))
            return (same_sign, other_sign) == (t.make("=", (x, y)), negative)
    return False


def regrouped(t: TermTable, conclusion: Term, premises: Premises) -> bool:
    """Return whether it says that two formulas are `and`, or `or`, of the same parts; otherwise it has to follow by
    cases."""
    if t.op[conclusion] == "=" and len(t.args[conclusion]) == 2:
        one, other = t.args[conclusion]
        if any(_parts(t, one, op) == _parts(t, other, op) for op in ("and", "or")):
            return True
    return cases(t, conclusion, premises)


def _parts(t: TermTable, term: Term, op: str) -> set[Term]:
    """Return what a formula is `and`, or `or`, of, whatever its brackets; without what changes nothing."""
    found, waiting = set[Term](), [term]
    while waiting:
        if (at := waiting.pop()) not in found:
            found.add(at)
            waiting += t.args[at] if t.op[at] == op else ()
    return {each for each in found if t.op[each] != op} - {t.true if op == "and" else t.false}


Reasoning = Callable[[TermTable, Term, Premises], bool]

RULES: dict[str, Reasoning] = {
    **dict.fromkeys(("refl", "symm", "trans", "cong", "nary_cong", "pairwise_cong", "skolem_intro"), same),
    **dict.fromkeys(("resolution", "chain_resolution", "chain_m_resolution", "factoring", "reordering"), opened(1)),
    **dict.fromkeys(("eq_resolve", "modus_ponens", "contra", "and_intro", "and_elim", "not_not_elim"), opened(1)),
    **dict.fromkeys(("true_intro", "true_elim", "false_intro", "false_elim", "split"), opened(1)),
    **dict.fromkeys(("implies_elim", "equiv_elim1", "equiv_elim2", "ite_elim1", "ite_elim2"), opened(2)),
    **dict.fromkeys(("xor_elim1", "xor_elim2", "not_xor_elim1", "not_xor_elim2", "not_or_elim"), opened(2)),
    **dict.fromkeys(("not_implies_elim1", "not_implies_elim2", "not_and"), opened(2)),
    # Nothing is trusted: what a solver has no rule for has to follow like all else.
    "trust": cases,
    "process_scope": scoped,
    **dict.fromkeys(("not_equiv_elim1", "not_equiv_elim2", "not_ite_elim1", "not_ite_elim2"), opened(2)),
    **dict.fromkeys((f"cnf_{c}_{s}" for c in ("and", "or", "implies") for s in ("pos", "neg")), opened(2)),
    **dict.fromkeys((f"cnf_implies_neg{i}" for i in (1, 2)), opened(2)),
    **dict.fromkeys(
        (f"cnf_{c}_{s}{i}" for c in ("equiv", "xor", "ite") for s in ("pos", "neg") for i in (1, 2, 3)), opened(2)
    ),
    **dict.fromkeys(("ite_eq", "evaluate", "absorb", "distinct-elim", "distinct-binary-elim", "distinct-false"), cases),
    "aci_norm": regrouped,
    **dict.fromkeys(
        ("arith_poly_norm", "arith_poly_norm_rel", "arith_trichotomy", "int_tight_ub", "int_tight_lb"), cases
    ),
    "arith_sum_ub": added,
    **dict.fromkeys(("arith_mult_pos", "arith_mult_neg"), multiplied),
    "arith_mult_sign": signed,
    "arith-abs-eq": turned,
    "arith_mult_tangent": tangent,
    "arith_mult_abs_comparison": sized,
}

REWRITES = ("arith-", "bool-", "ite-", "eq-")
"""Rules whose names begin so rewrite a term; they are followed by cases."""


def reasoning(rule: str) -> Reasoning | None:
    """Return the kind of reasoning of a rule; None for one that is not known here."""
    return RULES.get(rule, cases if rule.startswith(REWRITES) else None)
