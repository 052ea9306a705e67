"""Formulas as SMT-LIB 2 text that any solver reads: the logic is declared, and nothing is one solver's own.

A shared term is defined once, under a name that begins with ``?``, so the text is as short as the formula is.

Products and quotients of unknowns are beyond what solvers decide, and the text may say less than they mean.  Where a
formula is to be unsatisfiable, a quotient is any integer d with b d <= a < b d + b (for b >= 1).  An `opaque` text, for
formulas that solvers do not decide so, has functions in place of both, of which only instances of laws are known:

    times(0, b) = 0,  times(1, b) = b,  times(a + 1, b) = times(a, b) + b,
    times(a, b) <= times(c, b)                                        (for a <= c, b >= 0),
    times(a, b) >= 0                                                  (for a, b >= 0),
    0 <= d <= a,  times(d, b) <= a,  and d = 0 exactly if a < b       (for d = quotient(a, b), a >= 0, b >= 1),
    a <= d <= -1                                                      (for d = quotient(a, b), a < 0, b >= 1).

What has no model under the laws has none under the meaning.  Where a formula is to be satisfiable the text may say more
than it: products keep their meaning, and with a quotient, which is the d above and b >= 1, unknowns are from -2 to 2.
A model of the text is a model of the formula.

A `relaxed` text, of a formula without quotients that is to be unsatisfiable, is about all real numbers: what has no
model there has none in integers, and products of reals are decidable.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import attrs
import z3

Answer = Literal["sat", "unsat"]

SMALL = 2
"""Size of the unknowns of a satisfiable formula with quotients."""

_OPERATORS = {
    z3.Z3_OP_AND: "and",
    z3.Z3_OP_OR: "or",
    z3.Z3_OP_NOT: "not",
    z3.Z3_OP_IMPLIES: "=>",
    z3.Z3_OP_ITE: "ite",
    z3.Z3_OP_EQ: "=",
    z3.Z3_OP_DISTINCT: "distinct",
    z3.Z3_OP_LE: "<=",
    z3.Z3_OP_LT: "<",
    z3.Z3_OP_GE: ">=",
    z3.Z3_OP_GT: ">",
    z3.Z3_OP_ADD: "+",
    z3.Z3_OP_SUB: "-",
    z3.Z3_OP_UMINUS: "-",
}
_CONSTANTS = {z3.Z3_OP_TRUE: "true", z3.Z3_OP_FALSE: "false"}
_SIMPLE = re.compile(r"[A-Za-z~!$%^&*_+=<>/-][A-Za-z0-9~!@$%^&*_+=<>.?/-]*")
_WORDS = frozenset({*_OPERATORS.values(), *_CONSTANTS.values(), "*", "div", "let", "as", "par", "exists", "forall"})


@attrs.frozen
class SmtScript:
    """A formula that is expected to be satisfiable, or not to be; `text` says it to a solver."""

    logic: str
    expected: Answer
    text: str


def script(
    terms: Iterable[Any],
    expected: Answer,
    comment: Iterable[str] = (),
    *,
    opaque: bool = False,
    relaxed: bool = False,
    seen: "Seen | None" = None,
) -> SmtScript:
    """Return the text that asks whether all of `terms` (Z3's, quantifier-free, over integers and one sort) can be true.

    With `opaque`, products beside quotients are functions that obey laws, and with `relaxed` integers are reals, if the
    answer is to be unsat.  Texts about the same terms are written faster with one `seen`, which changes nothing else.
    Raises `ValueError` for a term that it cannot write.
    """
    writer = _Writer(list(terms), expected, opaque, relaxed, seen or Seen())
    logic = writer.logic()
    lines = [
        *(f"; {line}" for line in comment),
        "(set-info :smt-lib-version 2.6)",
        f"(set-info :status {expected})",
        f"(set-logic {logic})",
        *writer.declarations(),
        *writer.lines,
        "(check-sat)",
    ]
    return SmtScript(logic, expected, "\n".join(lines) + "\n")


def symbol(name: str) -> str:
    """Return a name as SMT-LIB writes it."""
    return name if _SIMPLE.fullmatch(name) and name not in _WORDS else f"|{name}|"


class _Writer:
    """Writes the terms one after the other; what they need is declared and defined on the way."""

    def __init__(self, terms: list[Any], expected: Answer, opaque: bool, relaxed: bool, seen: "Seen") -> None:
        nodes = seen.inside(terms)
        self.nodes = nodes
        self.shared = Counter(child for node in nodes.values() for child in node.children)
        self.products = any(map(self._multiplies, nodes.values()))
        self.quotients = any(node.kind == z3.Z3_OP_IDIV for node in nodes.values())
        self.opaque = opaque and expected == "unsat" and self.products and self.quotients
        self.real = relaxed and expected == "unsat" and not self.quotients
        self.expected = expected
        self.sorts: dict[str, None] = {}
        self.functions: dict[str, str] = {}
        self.lines: list[str] = []
        self.known: dict[int, str] = {}
        self.times: dict[str, list[tuple[str, str]]] = {}
        self.quotient: dict[tuple[str, str], str] = {}
        self.names = 0
        if self.quotients and expected == "sat":
            self._in_small_world()
        for term in terms:
            self.lines.append(f"(assert {self.written(term.get_id())})")

    def logic(self) -> str:
        """Return the smallest logic that has all of it."""
        free = "UF" if self.sorts or any(not kind.startswith("()") for kind in self.functions.values()) else ""
        nonlinear = (self.products or bool(self.quotients)) and not self.opaque
        return f"QF_{free}{'N' if nonlinear else 'L'}{'R' if self.real else 'I'}A"

    def declarations(self) -> Iterator[str]:
        """Yield sorts and functions."""
        yield from (f"(declare-sort {sort} 0)" for sort in self.sorts)
        yield from (f"(declare-fun {name} {kind})" for name, kind in self.functions.items())

    # --- terms ------------------------------------------------------------------------------------------------------

    def written(self, key: int) -> str:
        """Return the term with this id as text: itself, or the name under which it was defined."""
        if key not in self.known:
            node = self.nodes[key]
            text = self._text(node)
            if node.children and self.shared[key] > 1 and not text.startswith("?"):
                text = self._defined(text, self._sort(node.term.sort()))
            self.known[key] = text
        return self.known[key]

    def _text(self, node: "_Node") -> str:
        kind = node.kind
        if node.value is not None:
            return _numeral(node.value, ".0" * self.real)
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind == z3.Z3_OP_UNINTERPRETED:
            return self._applied(node)
        parts = [self.written(child) for child in node.children]
        if kind == z3.Z3_OP_MUL:
            return self._product(node, parts)
        if kind == z3.Z3_OP_IDIV:
            return self._quotient(*parts)
        if kind in (z3.Z3_OP_AND, z3.Z3_OP_OR) and len(parts) == 1:
            return parts[0]
        if kind not in _OPERATORS:
            raise ValueError(f"{node.term.decl().name()} has no place in the exported formulas")
        return f"({_OPERATORS[kind]} {' '.join(parts)})"

    def _applied(self, node: "_Node") -> str:
        declaration = node.term.decl()
        domain = [self._sort(declaration.domain(i)) for i in range(declaration.arity())]
        name = symbol(declaration.name())
        kind = f"({' '.join(domain)}) {self._sort(declaration.range())}"
        if self.functions.setdefault(name, kind) != kind:
            raise ValueError(f"{name} has two types")
        return f"({name} {' '.join(map(self.written, node.children))})" if domain else name

    def _sort(self, sort: Any) -> str:
        name = symbol(sort.name())
        if sort.kind() == z3.Z3_UNINTERPRETED_SORT:
            self.sorts[name] = None
        elif name not in ("Int", "Bool"):
            raise ValueError(f"the sort {name} has no place in the exported formulas")
        return "Real" if self.real and name == "Int" else name

    def _defined(self, text: str, sort: str) -> str:
        self.names += 1
        self.lines.append(f"(define-fun ?{self.names} () {sort} {text})")
        return f"?{self.names}"

    def _named(self, text: str) -> str:
        """Return a name for what is about to be repeated."""
        return text if "(" not in text else self._defined(text, "Int")

    # --- products and quotients -------------------------------------------------------------------------------------

    def _multiplies(self, node: "_Node") -> bool:
        """Return whether it multiplies unknowns."""
        return node.kind == z3.Z3_OP_MUL and sum(self.nodes[child].value is None for child in node.children) > 1

    def _product(self, node: "_Node", parts: list[str]) -> str:
        if not self.opaque or not self._multiplies(node):
            return f"(* {' '.join(parts)})"
        product, *others = parts
        for other in others:
            product = self._times(self._named(product), self._named(other))
        return product

    def _times(self, a: str, b: str) -> str:
        self.functions["times"] = "(Int Int) Int"
        product = self._defined(f"(times {a} {b})", "Int")
        self._law(f"(=> (= {a} 0) (= {product} 0))", f"(=> (= {a} 1) (= {product} {b}))")
        self._law(f"(=> (and (>= {a} 0) (>= {b} 0)) (>= {product} 0))")
        for c, other in self.times.setdefault(b, []):
            self._law(
                f"(=> (= {a} (+ {c} 1)) (= {product} (+ {other} {b})))",
                f"(=> (= {c} (+ {a} 1)) (= {other} (+ {product} {b})))",
                f"(=> (and (>= {b} 0) (<= {a} {c})) (<= {product} {other}))",
                f"(=> (and (>= {b} 0) (<= {c} {a})) (<= {other} {product}))",
            )
        self.times[b].append((a, product))
        return product

    def _quotient(self, a: str, b: str) -> str:
        a, b = self._named(a), self._named(b)
        if (a, b) not in self.quotient:
            self.quotient[a, b] = self._opaque_quotient(a, b) if self.opaque else self._any_quotient(a, b)
        return self.quotient[a, b]

    def _opaque_quotient(self, a: str, b: str) -> str:
        self.functions["quotient"] = "(Int Int) Int"
        d = self._defined(f"(quotient {a} {b})", "Int")
        law = f"(and (<= 0 {d} {a}) (<= {self._times(d, b)} {a}) (= (= {d} 0) (< {a} {b})))"
        self._law(f"(=> (and (>= {a} 0) (>= {b} 1)) {law})", f"(=> (and (< {a} 0) (>= {b} 1)) (<= {a} {d} (- 1)))")
        return d

    def _any_quotient(self, a: str, b: str) -> str:
        self.names += 1
        d = f"?{self.names}"
        self.lines.append(f"(declare-fun {d} () Int)")
        law = f"(and (<= (* {b} {d}) {a}) (< {a} (+ (* {b} {d}) {b})))"
        self._law(f"(=> (>= {b} 1) {law})" if self.expected == "unsat" else f"(and (>= {b} 1) {law})")
        return d

    def _in_small_world(self) -> None:
        for key, node in self.nodes.items():
            if node.kind == z3.Z3_OP_UNINTERPRETED and node.term.sort() == z3.IntSort():
                self._law(f"(<= {_numeral(-SMALL)} {self.written(key)} {SMALL})")

    def _law(self, *texts: str) -> None:
        self.lines += [f"(assert {text})" for text in texts]


class _Node:
    """A term, what it is and the ids of what it is made of; `value` is that of an integer.

    Z3 is asked by its C interface, whose answers need not wait for a wrapper around each part.
    """

    __slots__ = ("children", "kind", "parts", "term", "value")

    def __init__(self, context: Any, ast: Any) -> None:
        c = context.ref()
        self.term = z3.ExprRef(ast, context)
        self.kind = z3.Z3_get_decl_kind(c, z3.Z3_get_app_decl(c, ast))
        self.parts = [z3.Z3_get_app_arg(c, ast, i) for i in range(z3.Z3_get_app_num_args(c, ast))]
        self.children = [z3.Z3_get_ast_id(c, part) for part in self.parts]
        is_integer = self.kind == z3.Z3_OP_ANUM and self.term.sort() == z3.IntSort(context)
        self.value = int(z3.Z3_get_numeral_string(c, ast)) if is_integer else None


class Seen:
    """Every term that was written about, by its id: Z3 is asked once about each."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}

    def inside(self, terms: Iterable[Any]) -> dict[int, _Node]:
        """Return every term inside the terms, by its id."""
        found: dict[int, _Node] = {}
        waiting = [(term.get_id(), term.ctx, term.as_ast()) for term in terms]
        while waiting:
            key, context, ast = waiting.pop()
            if key not in found:
                if key not in self._nodes:
                    self._nodes[key] = _Node(context, ast)
                node = found[key] = self._nodes[key]
                waiting += [(child, context, part) for child, part in zip(node.children, node.parts, strict=True)]
        return found


def _numeral(value: int, decimals: str = "") -> str:
    return f"{value}{decimals}" if value >= 0 else f"(- {-value}{decimals})"
