"""What a kernel's source may contain: straight lines of the algebra's words and operators, and nothing else.

Solver terms refuse misuse when they meet it, but a proof only runs the text once, and some slips look the same there
(a float constant, a call that ignores the algebra, a vector read again after a point update consumed it, which the
owned numpy interpretation has overwritten by then).  So the text itself is checked, and everything that it calls.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from fairsched.model.algebra import Algebra

Kernel = Callable[..., Any]
Breaches = Iterator[tuple[ast.expr | ast.stmt, str]]
"""Where a text leaves the language, and how."""

WORDS = frozenset(name for name in vars(Algebra) if not name.startswith("_"))
_CONSUMING = frozenset({"bump", "put"})
_OPERATORS = (ast.Add, ast.Sub, ast.BitAnd, ast.BitOr)
_COMPARISONS = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)


def violations(kernels: Iterable[Kernel]) -> list[str]:
    """Return every breach in the kernels and in all that they call: function, line within it, and what is wrong."""
    return [breach for kernel in closure(kernels) for breach in _Reader(kernel).breaches()]


def closure(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Return the kernels and every function that they call by name, each once, in order of module and name."""
    found: dict[Kernel, None] = {}
    waiting = list(kernels)
    while waiting:
        kernel = waiting.pop()
        if kernel not in found:
            found[kernel] = None
            waiting += _Reader(kernel).callees()
    return tuple(sorted(found, key=lambda kernel: (kernel.__module__, kernel.__qualname__)))


def kernels_of(module: ModuleType) -> list[Kernel]:
    """Return the functions over the algebra that a module defines, in the order of the file."""
    functions = filter(inspect.isfunction, vars(module).values())
    own = (function for function in functions if function.__module__ == module.__name__)
    return [function for function in own if next(iter(inspect.signature(function).parameters), None) == "o"]


def definition_of(function: Kernel) -> ast.FunctionDef | None:
    """Return the parsed text of a function, without its docstring; None if it is no plain function."""
    parsed = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if not isinstance(parsed, ast.FunctionDef):
        return None
    if ast.get_docstring(parsed) is not None:
        del parsed.body[0]
    return parsed


class _Reader:
    """Reads one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.definition = definition_of(kernel)

    def callees(self) -> list[Kernel]:
        calls = [node.func for node in ast.walk(self.definition or ast.Pass()) if isinstance(node, ast.Call)]
        named = [self._global(func.id) for func in calls if isinstance(func, ast.Name)]
        return [function for function in named if inspect.isfunction(function)]

    def _global(self, name: str) -> Any:
        return getattr(self.kernel, "__globals__", {}).get(name)

    def breaches(self) -> Iterator[str]:
        if self.definition is None:
            yield f"{self.kernel.__qualname__}: a kernel is a plain function"
            return
        if not self.definition.args.args or self.definition.args.args[0].arg != "o":
            yield f"{self.kernel.__qualname__}: a kernel's first argument is its algebra, o"
            return
        self.known = {argument.arg for argument in self.definition.args.args}
        self.consumed: set[str] = set()
        for node, problem in (each for statement in self.definition.body for each in self._statement(statement)):
            yield f"{self.kernel.__qualname__}, line {node.lineno}: {problem}"

    def _statement(self, statement: ast.stmt) -> Breaches:
        value = statement.value if isinstance(statement, ast.Assign | ast.Return) else None
        if value is None:
            yield statement, f"{type(statement).__name__} is control flow or an effect; a kernel assigns and returns"
            return
        yield from self._expression(value)
        yield from _read_after_update(value)
        self.consumed |= {vector.id for _, vector in _updates(value)}
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
            if len(statement.targets) > 1 or not isinstance(target, ast.Name) or target.id == "o":
                yield statement, "a kernel assigns to one plain name at a time"
                return
            if isinstance(value, ast.Name):
                yield statement, "a second name for a vector hides that an update consumed it"
            self.known.add(target.id)
            self.consumed.discard(target.id)

    def _expression(self, node: ast.expr) -> Breaches:
        match node:
            case ast.Constant(value=bool() | int()):
                return
            case ast.Name(id=name):
                if name not in self.known or name == "o":
                    yield node, f"{name} is neither an argument nor assigned before"
                elif name in self.consumed:
                    yield node, f"{name} was consumed by bump or put and is read again"
                return
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
                parts = [left, right]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                parts = [operand]
            case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, _COMPARISONS):
                parts = [left, right]
            case ast.Call(func=func, args=args, keywords=[]):
                yield from self._callee(func)
                parts = [arg for arg in args if not (isinstance(arg, ast.Name) and arg.id == "o")]
            case _:
                yield node, f"{ast.unparse(node)!r} is not written in the algebra's words"
                return
        for part in parts:
            yield from self._expression(part)

    def _callee(self, func: ast.expr) -> Breaches:
        match func:
            case ast.Attribute(value=ast.Name(id="o"), attr=word):
                if word not in WORDS:
                    yield func, f"o.{word} is no word of the algebra"
            case ast.Name(id=name) if inspect.isfunction(self._global(name)):
                return
            case _:
                yield func, f"{ast.unparse(func)!r} is neither a word of the algebra nor a kernel"


def _updates(value: ast.expr) -> Iterator[tuple[ast.Call, ast.Name]]:
    """Yield each point update of a named vector in an expression."""
    for node in ast.walk(value):
        match node:
            case ast.Call(func=ast.Attribute(attr=word), args=[ast.Name() as vector, *_]) if word in _CONSUMING:
                yield node, vector


def _read_after_update(value: ast.expr) -> Breaches:
    """Yield reads of a vector beside its update in one expression: arguments are read before the update, others may
    not."""
    for call, vector in _updates(value):
        inside = {id(node) for node in ast.walk(call)}
        for node in ast.walk(value):
            if isinstance(node, ast.Name) and node.id == vector.id and id(node) not in inside:
                yield node, f"{vector.id} is read beside the bump or put that consumes it"
