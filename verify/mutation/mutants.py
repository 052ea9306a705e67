"""Every small change to the text of one function: an operator, a constant, an argument or a branch.

A mutant is the function with one expression changed.  Changes that cannot matter (the arguments of ``+`` exchanged)
are not made, and equal texts are made once.  What a change amounts to is for `fairsched.verify.mutation.kernels` to
say.
"""

import ast
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import Any

import attrs
import msgspec
import z3

from fairsched.verify.logic import Counterexample, definition_of

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
}
_ORDERED = (ast.Sub, ast.FloorDiv)
_WORDS = {
    "any": ("all", "none"),
    "all": ("any", "none"),
    "none": ("any", "all"),
    "argmax": ("argmin",),
    "argmin": ("argmax",),
    "maximum": ("minimum",),
    "minimum": ("maximum",),
    "bump": ("put",),
    "put": ("bump",),
}
_COMMUTATIVE = ("maximum", "minimum")


@attrs.frozen
class Mutant:
    """A function's text with one change, and the change in words."""

    function: str
    change: str
    text: str


def mutants(function: Callable[..., Any]) -> Iterator[Mutant]:
    """Yield every mutant of a function, each text once and never the original."""
    definition = definition_of(function)
    assert definition is not None
    return changed_texts(definition)


def changed_texts(definition: ast.FunctionDef) -> Iterator[Mutant]:
    """Yield every mutant of a function's parsed text."""
    seen = {ast.unparse(definition)}
    for holder, key, node in _expressions(definition):
        for changed in _changes(node, definition):
            holder[key] = changed
            text = ast.unparse(definition)
            holder[key] = node
            if text not in seen:
                seen.add(text)
                yield Mutant(definition.name, f"{ast.unparse(node)} -> {ast.unparse(changed)}", text + "\n")


def _expressions(definition: ast.FunctionDef) -> Iterator[tuple[Any, int | str, ast.expr]]:
    """Yield every expression that is computed, after what holds it (the fields of a node, or a list) and the place
    there."""
    places: list[tuple[Any, int | str]] = [(vars(definition), "body"), (vars(definition.args), "defaults")]
    while places:
        holder, key = places.pop(0)
        value = holder[key]
        if isinstance(value, list):
            places += [(value, i) for i in range(len(value))]
        elif isinstance(value, ast.AST):
            if isinstance(value, ast.expr) and isinstance(getattr(value, "ctx", ast.Load()), ast.Load):
                yield holder, key, value
            places += [(vars(value), name) for name in value._fields if name in vars(value)]


def _changes(node: ast.expr, definition: ast.FunctionDef) -> Iterator[ast.expr]:  # noqa: C901  (one case a kind)
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            for other in _COMPARISONS.get(type(op), ()):
                yield ast.Compare(left, [other()], [right])
        case ast.BinOp(left=left, op=op, right=right):
            yield from (left, right)
            if type(op) in _OPERATORS:
                yield ast.BinOp(left, _OPERATORS[type(op)](), right)
            if isinstance(op, _ORDERED):
                yield ast.BinOp(right, op, left)
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield from (body, orelse, ast.IfExp(test, orelse, body))
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from (ast.Constant(value + 1), _integer(value - 1))
        case ast.Name(id=name):
            yield from (ast.Name(other) for other in _alike(definition, name))
        case ast.Attribute(value=ast.Name(id="rates"), attr=part):
            yield ast.Attribute(ast.Name("rates"), {"input": "output", "output": "input"}[part])
        case ast.Call():
            yield from _calls(node)
    if _is_returned(node, definition):
        yield ast.Name(_parameters(definition)[0].arg)


def _calls(call: ast.Call) -> Iterator[ast.expr]:
    """Yield another word, an argument in place of the call, two arguments exchanged, a branch that is always taken."""
    arguments = [argument for argument in call.args if not (isinstance(argument, ast.Name) and argument.id == "o")]
    yield from (argument for argument in arguments if not isinstance(argument, ast.Starred))
    word = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    for other in _WORDS.get(word, ()):
        yield ast.Call(ast.Attribute(ast.Name("o"), other), call.args, [])
    if isinstance(call.func, ast.Name) and call.func.id == "lcm":
        yield ast.Call(ast.Name("gcd"), call.args, [])
    if word in _COMMUTATIVE:
        return
    for i, j in combinations(range(len(call.args)), 2):
        exchanged = list(call.args)
        exchanged[i], exchanged[j] = exchanged[j], exchanged[i]
        yield ast.Call(call.func, exchanged, [])


def _integer(value: int) -> ast.expr:
    return ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))


def _parameters(definition: ast.FunctionDef) -> list[ast.arg]:
    return [argument for argument in definition.args.args if argument.arg != "o"]


def _alike(definition: ast.FunctionDef, name: str) -> list[str]:
    """Return the other parameters of the same annotation; for a local name the other local names."""
    types = {argument.arg: ast.unparse(argument.annotation or ast.Constant("")) for argument in _parameters(definition)}
    for statement in definition.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            types.setdefault(statement.targets[0].id, "local")
    return [other for other in types if name in types and other != name and types[other] == types[name]]


def _is_returned(node: ast.expr, definition: ast.FunctionDef) -> bool:
    """Return whether it is what the function returns, and of the type of its first argument: the state, left as it
    was."""
    parameters = _parameters(definition)
    if not parameters or not definition.returns or not parameters[0].annotation:
        return False
    returned = any(isinstance(statement, ast.Return) and statement.value is node for statement in definition.body)
    return returned and ast.unparse(definition.returns) == ast.unparse(parameters[0].annotation)


class Fate(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    EQUIVALENT = "equivalent"
    UNKNOWN = "unknown"


@attrs.frozen
class MutantOutcome:
    """A mutant's fate; `by` is the theorem that kills it, or under which hypotheses it is equivalent."""

    mutant: Mutant
    fate: Fate
    by: str
    world: Counterexample | None


class MutationEntry(msgspec.Struct, frozen=True):
    """What became of the mutants of one kernel, as it stands in the report; `kept`: found by an earlier run."""

    kernel: str
    mutants: int
    killed: int
    equivalent: int
    unknown: int
    kept: bool = False


class KeptRows(msgspec.Struct, frozen=True):
    """The rows of each task, and a hash of the text and of the solver that they were found with."""

    text: str
    rows: dict[str, list[MutationEntry]]


KEPT = Path(__file__).with_name("kernels.json")
"""What `make mutation` found of kernels, prices and claims."""


@cache
def rested_on() -> str:
    """Return a hash of all that a fate rests on: the texts of model, policies and proofs, and the solver."""
    total, package = sha256(z3.get_version_string().encode()), Path(__file__).parents[2]
    for path in sorted(path for room in ("model", "policies", "verify") for path in (package / room).rglob("*.py")):
        total.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return total.hexdigest()[:20]


@cache
def kept_rows() -> dict[str, list[MutationEntry]]:
    """Return the rows that were kept, by the words of their task; none if anything that they rest on has changed."""
    found = msgspec.json.decode(KEPT.read_bytes(), type=KeptRows) if KEPT.exists() else KeptRows("", {})
    return found.rows if found.text == rested_on() else {}


def row(kernel: str, of: Iterable[MutantOutcome]) -> MutationEntry:
    """Return the figures of some mutants."""
    fates = Counter(outcome.fate for outcome in of)
    return MutationEntry(kernel, fates.total(), fates[Fate.KILLED], fates[Fate.EQUIVALENT], fates[Fate.UNKNOWN])


# --- the code around the kernels -------------------------------------------------------------------------------------


class CodeEntry(msgspec.Struct, frozen=True):
    """What became of the changes to one module when `make mutation` ran, and whether its text is still that one.

    `same` of them change no decision, charge or bound, each for a reason that is written down; a test noticed
    `noticed`, and none did `unnoticed`.  Of a run cut short only each `every`-th change was made.
    """

    module: str
    date: str
    command: str
    mutants: int
    noticed: int
    same: int
    unnoticed: int
    every: int
    current: bool


def recorded() -> tuple[CodeEntry, ...]:
    """Return the entries of all runs that were kept, by module."""
    path = Path(__file__).with_name("code.json")
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return tuple(_entry(name, said) for name, said in sorted(found.items()))


def _entry(module: str, said: dict[str, Any]) -> CodeEntry:
    kept = {key: said[key] for key in ("date", "command", "mutants", "noticed", "same", "every")}
    current = said["text"] == text_of(Path(__file__).parents[2] / said["file"])
    return CodeEntry(module, **kept, unnoticed=len(said["unnoticed"]) + len(said["unreached"]), current=current)


def text_of(path: Path) -> str:
    """Return a short hash of what a file means, whatever its comments and docstrings say; none of a file that is
    gone."""
    if not path.exists():
        return ""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and _is_text(body[0].value):
            body.pop(0)
    return sha256(ast.dump(tree).encode()).hexdigest()[:12]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
